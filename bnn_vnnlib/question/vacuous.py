"""Properties that nothing can violate, whatever the network: usually a mistake, and a proof of nothing.

A case is contradictory if its rows a.y + g.x <= b (or <) and the constraints on its inputs have no solution with x in
the box and y anywhere. By Farkas' lemma it is enough to find multipliers l >= 0 with sum l a = 0 and

    sum l b < min over the box of (sum l g).x,   or = if a row with l > 0 is strict:

every solution would give (sum l g).x <= sum l b (<, with such a row), which no x of the box does. A linear program
proposes multipliers; they are rounded to simple fractions and checked exactly, with the outward bounds. So the mark is
proved where it is given; a contradiction that needs other multipliers is missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.question.property import HalfSpaces, Property, row_false

MOST = 1000
"""Cases that are looked at, at most: with so many contradictory ones in a row nothing is said."""

LOOKED = 100
"""Cases among which one is looked for that is easily met."""

LARGEST = 1_000_000
"""Coefficients of a case, at most, that are looked at."""

DENOMINATORS = (1, 12, 1000, 10**6)
"""Largest denominators of the multipliers, the simplest first."""

Floats = NDArray[np.float64]


def vacuous(property: Property) -> str | None:
    """Why nothing can violate the property, or None where something might."""
    if property.num_cases == 0:
        return "no input satisfies its input part"
    if _easily_met(property):
        return None
    without_inputs = 0
    for case in range(property.num_cases):
        if case == MOST:
            return None
        if _system(property, case, rows=False).contradictory:
            without_inputs += 1
        elif not _system(property, case, rows=True).contradictory:
            return None
    if without_inputs == property.num_cases:
        return "no input satisfies its input part"
    return (
        "its rows contradict each other" if property.num_cases == 1 else "the rows of every case contradict each other"
    )


def vacuous_row(a: Floats, b: Floats, case: NDArray[np.int64]) -> int | None:
    """Of N boxes with cases of their own the first whose rows contradict each other in every case, or None.

    Parameters
    ----------
    a, b, case : (N, R, m), (N, R), (R,): the case holds where all its rows a.y <= b do
    """
    numbers, owner = np.unique(case, return_inverse=True)
    open_ = np.flatnonzero(~np.any([_far_out(a[:, owner == k]) for k in range(len(numbers))], axis=0))
    none, strict = np.zeros((len(case), 0)), np.zeros(len(case), bool)
    for row in open_[:MOST].tolist():
        parts = [owner == k for k in range(len(numbers))]
        systems = (_System(a[row, r], none[r], b[row, r], strict[r], none[0], none[0]) for r in parts)
        if all(system.contradictory for system in systems):
            return row
    return None


def _far_out(a: Floats) -> NDArray[np.bool_]:
    """(N,): one direction leads away from all rows of a (N, R, m); see `_easily_met`."""
    length = np.sqrt((a**2).sum(axis=-1, keepdims=True))
    unit = a / np.where(length > 0, length, 1.0)
    away: NDArray[np.bool_] = ((unit * -unit.sum(axis=1, keepdims=True)).sum(axis=-1) < -1e-9).all(axis=1)
    return away


def _easily_met(property: Property) -> bool:
    """Some case is met by an output far out in one direction, which covers nearly all properties: no row is against it.

    With d = -(sum of the rows' unit vectors) and a_r.d < 0 for all rows, y = t d meets all of them for large t.
    """
    cases = min(property.num_cases, LOOKED)
    owner = property.rows.owner[: np.searchsorted(property.rows.owner, cases)]
    outputs = property.rows.outputs[: len(owner)]
    length = np.sqrt((outputs**2).sum(axis=1))
    unit = outputs / np.where(length > 0, length, 1.0)[:, None]
    direction = np.zeros((cases, outputs.shape[1]))
    np.subtract.at(direction, owner, unit)
    against = ~((unit * direction[owner]).sum(axis=1) < -1e-9)
    met = np.bincount(owner, weights=against, minlength=cases) == 0
    limited = np.isin(property.case_box[:cases], property.constraints.owner)
    return bool((met & ~limited).any())


@dataclass(frozen=True, eq=False)
class _System:
    """R rows a.y + g.x <= b (or <), x in [lower, upper]; inputs that no row mentions are left out."""

    outputs: Floats
    inputs: Floats
    bound: Floats
    strict: NDArray[np.bool_]
    lower: Floats
    upper: Floats

    @property
    def contradictory(self) -> bool:
        """Proved to have no solution."""
        if len(self.bound) == 0 or len(self.bound) * (self.outputs.shape[1] + self.inputs.shape[1]) > LARGEST:
            return False
        multipliers = self._proposed()
        return multipliers is not None and any(self._proves(multipliers, most) for most in DENOMINATORS)

    def _proposed(self) -> Floats | None:
        """min l.b - eps l.strict - p.lower + q.upper  with  l a = 0, l g = p - q, sum l = 1, all >= 0; rows scaled."""
        from scipy import sparse
        from scipy.optimize import linprog

        scale = np.abs(np.concatenate([self.outputs, self.inputs, self.bound[:, None]], axis=1)).max(axis=1)
        scale = np.where(scale > 0, scale, 1.0)
        a, g = self.outputs / scale[:, None], self.inputs / scale[:, None]
        unit, one = sparse.identity(g.shape[1]), np.ones((1, len(a)))
        left = sparse.vstack([sparse.csr_matrix(part) for part in (a.T, g.T, one)], format="csr")
        right = sparse.vstack([sparse.csr_matrix((a.shape[1], g.shape[1])), unit, sparse.csr_matrix((1, g.shape[1]))])
        cost = np.concatenate([self.bound / scale - 1e-6 * self.strict, -self.lower, self.upper])
        equal, goal = sparse.hstack([left, -right, right], format="csr"), np.append(np.zeros(left.shape[0] - 1), 1.0)
        solution = linprog(cost, A_eq=equal, b_eq=goal, bounds=(0, None), method="highs")
        return None if solution.x is None else np.maximum(solution.x[: len(a)], 0.0) / scale

    def _proves(self, multipliers: Floats, most: int) -> bool:
        """Farkas' certificate, in rational arithmetic, with multipliers rounded to denominators up to `most`."""
        used = np.flatnonzero(multipliers > 1e-9 * multipliers.max())
        weight = [Fraction(float(multipliers[r] / multipliers.max())).limit_denominator(most) for r in used]

        def combined(values: NDArray[Any]) -> Fraction:
            return sum((w * Fraction(float(values[r])) for w, r in zip(weight, used, strict=True)), Fraction(0))

        if any(combined(column) != 0 for column in self.outputs.T):
            return False
        slope = [combined(column) for column in self.inputs.T]
        ends = zip(slope, self.lower.tolist(), self.upper.tolist(), strict=True)
        least = sum((s * Fraction(low if s > 0 else high) for s, low, high in ends), Fraction(0))
        right = combined(self.bound)
        strict = any(self.strict[r] and w > 0 for w, r in zip(weight, used, strict=True))
        return any(w > 0 for w in weight) and bool(row_false(least, right, strict))


def _system(property: Property, case: int, *, rows: bool) -> _System:
    """The constraints on the inputs of a case, with its rows or without."""
    box = int(property.case_box[case])
    parts = [_part(property, property.constraints, box)] + ([_part(property, property.rows, case)] if rows else [])
    outputs, inputs, bound, strict = (np.concatenate(each) for each in zip(*parts, strict=True))
    used = inputs.any(axis=0)
    return _System(
        outputs, inputs[:, used], bound, strict, property.boxes.lower[box, used], property.boxes.upper[box, used]
    )  # fmt: skip


def _part(property: Property, rows: HalfSpaces, owner: int) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Rows of one owner, over all outputs and inputs."""
    which = slice(*np.searchsorted(rows.owner, (owner, owner + 1)))
    bound = rows.bound[which]
    outputs = rows.outputs[which]
    if outputs.shape[1] == 0:
        outputs = np.zeros((len(bound), property.signature.output_size))
    inputs = np.zeros((len(bound), property.signature.input_size)) if rows.inputs is None else rows.inputs[which]
    return outputs, inputs, bound, rows.strict[which]
