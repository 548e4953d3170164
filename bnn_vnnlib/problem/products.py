"""Constraints with products of inputs, as far as linear bounds can use them: cells of boxes, and planes over each.

`in_cells` says the same of the same inputs: a box with such constraints becomes cells that cover it, each with the same
constraints and with linear ones that follow from them. What lies in T is always decided by the constraints themselves,
in rational arithmetic (`property.input_feasible`, `problem.feasible`).

1. Planes. Let c be a corner of a cell, and m(x) = x_1 ... x_d a product of inputs, repetitions allowed. Then

       m(x) - m(c) = sum over k of (x_1 ... x_{k-1}) (x_k - c_k) (c_{k+1} ... c_d),

   and x_k - c_k has one sign in the cell: >= 0 where c_k is the lower end, <= 0 at the upper one. So with s_k the least
   value of a (x_1 ... x_{k-1}) (c_{k+1} ... c_d) over the cell in the first case and the largest in the second,
   a m(x) >= a m(c) + sum of s_k (x_k - c_k). For x y these are McCormick's planes. The sum of all terms' planes bounds
   the polynomial from below, so that p(x) <= b implies that plane <= b. All of it is exact.
2. Slopes are rounded to `_BITS` bits, down where x_k >= c_k and up where x_k <= c_k, which lowers the plane; the
   constant is adjusted at c, exactly, and the bound is rounded up. Short slopes stay exact when problems of two
   networks add them up (`problem.pairs`).
3. Cells. A box is halved where its products vary most until there are `CELLS` of them; a cell in which a constraint
   cannot hold (its least value, each term by itself, exceeds the bound) holds no point of T and is left out. Cells
   meet at float64 numbers that the box's inner bounds allow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats, Ints
from bnn_vnnlib.question.property import Boxes, HalfSpaces, Polynomial, Property, row_false, span

CELLS, _ALL_CELLS = 16, 2**12
"""Cells of one box, and cells of all boxes together, about."""

_CORNERS = 4
"""Inputs of a constraint whose ends are combined, those that its products have; 2 to this power planes."""

_BITS = 24

Cell = tuple[Floats, ...]
"""A cell of inputs: lower, upper, inner_lower, inner_upper (n,)."""


def in_cells(property: Property) -> tuple[Property, Ints]:
    """The property with boxes that have products cut into cells, and for each row of it the row that it comes from."""
    boxes, rows, n = property.boxes, property.rows, property.boxes.lower.shape[1]
    if not any(property.polynomials):
        return property, np.arange(len(rows))
    most = max(1, min(CELLS, _ALL_CELLS // sum(map(bool, property.polynomials))))
    sides = (boxes.lower, boxes.upper, boxes.inner_lower, boxes.inner_upper)
    cells: list[Cell] = []
    box_of: list[int] = []
    for box, polynomials in enumerate(property.polynomials):
        whole = tuple(side[box] for side in sides)
        found = _cells(whole, polynomials, most) if polynomials else [whole]
        cells += found
        box_of += [box] * len(found)
    cases = [(cell, case) for cell, box in enumerate(box_of) for case in np.flatnonzero(property.case_box == box)]
    which = [np.flatnonzero(rows.owner == case) for _, case in cases]
    origin = np.concatenate([np.zeros(0, np.int64), *which])
    made = replace(
        property, boxes=Boxes(*(np.array([cell[k] for cell in cells]).reshape(-1, n) for k in range(4))),
        constraints=_constraints(property, cells, box_of),
        case_box=np.array([cell for cell, _ in cases], np.int64),
        rows=HalfSpaces(
            rows.outputs[origin], None if rows.inputs is None else rows.inputs[origin], rows.bound[origin],
            rows.inner_bound[origin], rows.strict[origin], np.repeat(np.arange(len(cases)), [*map(len, which)]),
        ),
        polynomials=tuple(property.polynomials[box] for box in box_of),
    )  # fmt: skip
    return made, origin


def _constraints(property: Property, cells: Sequence[Cell], box_of: Sequence[int]) -> HalfSpaces:
    """The linear constraints of each cell's box, and its planes."""
    old, n = property.constraints, property.boxes.lower.shape[1]
    inputs = np.zeros((len(old), n)) if old.inputs is None else old.inputs.reshape(-1, n)
    parts: list[tuple[NDArray[Any], ...]] = [
        (np.zeros((0, n)), np.zeros(0), np.zeros(0), np.zeros(0, bool), np.zeros(0, int))
    ]
    for number, (cell, box) in enumerate(zip(cells, box_of, strict=True)):
        kept = np.flatnonzero(old.owner == box)
        slopes, bounds = _planes_of(cell, property.polynomials[box])
        parts.append((inputs[kept], old.bound[kept], old.inner_bound[kept], old.strict[kept], 0 * kept + number))
        parts.append((slopes, bounds, bounds, np.zeros(len(bounds), bool), np.full(len(bounds), number)))
    values, bound, inner, strict, owner = (np.concatenate(each) for each in zip(*parts, strict=True))
    return HalfSpaces(np.zeros((len(owner), 0)), values, bound, inner, strict.astype(bool), owner.astype(np.int64))


def _cells(whole: Cell, polynomials: Sequence[Polynomial], most: int) -> list[Cell]:
    """Cells that cover the points of T in a box, `most` at most (step 3)."""
    if not _possible(whole, polynomials):
        return []
    open_: list[Cell] = [whole]
    closed: list[Cell] = []
    while open_ and len(open_) + len(closed) < most:
        sizes = [_widest(cell, polynomials) for cell in open_]
        chosen = int(np.argmax([size for size, _ in sizes]))
        cell, (size, j) = open_.pop(chosen), sizes[chosen]
        middle = cell[0][j] / 2 + cell[1][j] / 2
        if size == 0 or not cell[2][j] < middle < cell[3][j]:
            closed.append(cell)
            continue
        for end in (1, 0):
            half = tuple(side.copy() for side in cell)
            half[end][j] = half[2 + end][j] = middle
            if _possible(half, polynomials):
                open_.append(half)
    return open_ + closed


def _exact(cell: Sequence[Floats]) -> tuple[list[Fraction], list[Fraction]]:
    lower, upper = ([Fraction(end) for end in side.tolist()] for side in cell[:2])
    return lower, upper


def _possible(cell: Sequence[Floats], polynomials: Sequence[Polynomial]) -> bool:
    """Whether no constraint is excluded in the whole cell."""
    ends = _exact(cell)
    least = (sum((span(a, inputs, *ends)[0] for a, inputs in one.terms), Fraction(0)) for one in polynomials)
    return not any(row_false(low, one.bound, one.strict) for low, one in zip(least, polynomials, strict=True))


def _widest(cell: Cell, polynomials: Sequence[Polynomial]) -> tuple[float, int]:
    """How much the products vary with one input, and with which input most; only a heuristic."""
    lower, upper = cell[:2]
    size, width = np.maximum(np.abs(lower), np.abs(upper)), upper - lower
    change = np.zeros(len(lower))
    for a, inputs in (term for one in polynomials for term in one.terms if len(term[1]) > 1):
        for k, j in enumerate(inputs):
            change[j] += abs(float(a)) * width[j] * math.prod(size[list(inputs[:k] + inputs[k + 1 :])])
    j = int(change.argmax())
    return float(change[j]), j


def _planes_of(cell: Cell, polynomials: Sequence[Polynomial]) -> tuple[Floats, Floats]:
    """Slopes (P, n) and bounds (P,), rounded up, of step 1 for the constraints of a cell."""
    ends, n = _exact(cell), len(cell[0])
    found = [_plane(one, corner, *ends) for one in polynomials for corner in _corners(one, cell)]
    slopes = np.zeros((len(found), n))
    for row, (values, _) in zip(slopes, found, strict=True):
        row[list(values)] = list(values.values())
    return slopes, np.array([_rounded_up(bound) for _, bound in found])


def _corners(polynomial: Polynomial, cell: Cell) -> Iterator[dict[int, bool]]:
    """Corners of a cell, as input -> whether it is at its lower end: all combinations of the inputs that vary most, by
    which the others take turns.
    """
    used = sorted({j for _, inputs in polynomial.terms if len(inputs) > 1 for j in inputs},
                  key=lambda j: float(cell[0][j] - cell[1][j]))  # fmt: skip
    for ends in itertools.product((True, False), repeat=min(len(used), _CORNERS)):
        yield {j: ends[k % len(ends)] for k, j in enumerate(used)}


def _plane(
    polynomial: Polynomial, at_lower: dict[int, bool], lower: Sequence[Fraction], upper: Sequence[Fraction]
) -> tuple[dict[int, float], Fraction]:
    """A linear constraint, sum of slope * x <= bound, that a polynomial one implies on a cell: slopes by input, and the
    bound (steps 1 and 2).
    """
    corner = {j: lower[j] if low else upper[j] for j, low in at_lower.items()}
    slopes: dict[int, Fraction] = {}
    constant = Fraction(0)
    for a, inputs in polynomial.terms:
        for j in inputs:
            corner.setdefault(j, lower[j])
        constant += a * math.prod(corner[j] for j in inputs)
        for k, j in enumerate(inputs):
            behind = a * math.prod(corner[i] for i in inputs[k + 1 :])
            slope = span(behind, inputs[:k], lower, upper)[0 if at_lower.get(j, True) else 1]
            slopes[j] = slopes.get(j, Fraction(0)) + slope
            constant -= slope * corner[j]
    short = {j: _short(slope, up=not at_lower.get(j, True)) for j, slope in slopes.items()}
    constant += sum(((slopes[j] - Fraction(short[j])) * corner[j] for j in slopes), Fraction(0))
    return short, polynomial.bound - constant


def _rounded_up(value: Fraction) -> float:
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -np.finfo(np.float64).max
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def _short(value: Fraction, *, up: bool) -> float:
    """A number of `_BITS` bits next to it, above or below."""
    if value == 0:
        return 0.0
    unit = Fraction(2) ** (math.frexp(float(value))[1] - _BITS)
    return float((math.ceil if up else math.floor)(value / unit) * unit)
