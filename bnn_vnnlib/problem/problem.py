"""Instances as arrays: what the bounds of this package work on, and points of T.

1. `Problem`. An instance is one question (a VNN-LIB property, or one box of `verify_batch`). It consists of items: one
input box with its constraints, and the cases over that box. A case is a conjunction of rows. One VNN-LIB property is
one instance with an item per distinct input set; a batch of N boxes is N instances with one item each.

2. `feasible`, `point_box`. Points of T, exactly: in rational arithmetic, and where the real point lies between two
floats.

3. `some_case`. Cases that exclude each other at a point: no network violates two of them there, so that their masses
add up. Let E_c be the event that all rows a.f(x) + g.x < b of case c hold, at one x. Two rows with a' = -a, g' = -g and
b + b' <= 0 cannot hold both: their sum would read 0 < b + b' <= 0. So E_c and E_d are disjoint if c has a row and d has
one that are such a pair, and for a set S of cases any two of which are disjoint

    P(some case holds at x) >= P(union of the E_c, c in S) = sum over S of P(E_c).

Both ends of a range of outputs are such cases, and so are "class i is the largest" for different i. The comparisons are
exact: equality of floats, and the sign of a sum of two floats, which rounding keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.question.property import Polynomial, Property, row_false, row_true
from bnn_vnnlib.rounding import TINY, UNIT, gamma

# 1. Instances

OutputCases = Sequence[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]]
"""A DNF over the outputs: cases (A, b, strict), each the conjunction of A y <= b (or <)."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Half-spaces a.y + g.x <= bound (or <), padded to the same number for every item.

    outputs (N or 1, R, m); inputs (N or 1, R, n) or None; bound, inner_bound, strict (N or 1, R);
    case (N or 1, R): local index of the row's case, `cases` for padding; origin (N or 1, R): the property's row, or -1.
    """

    outputs: Tensor
    inputs: Tensor | None
    bound: Tensor
    inner_bound: Tensor
    strict: Tensor
    case: Tensor
    origin: Tensor

    def excluded(self, lower: Tensor) -> Tensor:
        """(.., N, R): no value that is at least `lower` (.., N, R) satisfies the row."""
        return row_false(lower, self.bound, self.strict)

    def implied(self, upper: Tensor) -> Tensor:
        """(.., N, R): every value that is at most `upper` (.., N, R) satisfies the row."""
        return row_true(upper, self.inner_bound, self.strict)


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints on the inputs of each item: linear ones g.x <= bound (or <), padded with 0 <= 1, and polynomials.

    inputs (N, Q, n); bound, inner_bound, strict (N, Q); which (N,): the set of polynomials of each item.
    """

    inputs: Tensor
    bound: Tensor
    inner_bound: Tensor
    strict: Tensor
    polynomials: tuple[tuple[Polynomial, ...], ...]
    which: Tensor

    def items(self, index: Tensor) -> Constraints:
        """The constraints of some items."""
        inputs, bound, inner, strict = (
            part[index] for part in (self.inputs, self.bound, self.inner_bound, self.strict)
        )
        return Constraints(inputs, bound, inner, strict, self.polynomials, self.which[index])

    def excluded(self, lower: Tensor) -> Tensor:
        """Constraints (.., N, Q) that cannot hold, as their left sides are at least `lower`."""
        return row_false(lower, self.bound, self.strict)

    def impossible(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(N,): some polynomial exceeds its bound everywhere in the box (N, n), each term by itself.

        Each end of a term of d factors is d + 1 roundings of one product, and a sum of T terms T more; all of them are
        at most gamma_{T + d + 3} of the sum of the terms' magnitudes, of which twice as much is paid.
        """
        out = torch.zeros(len(lower), dtype=torch.bool, device=lower.device)
        for number in self.which.unique().tolist() if any(self.polynomials) else []:
            own = torch.nonzero(self.which == number)[:, 0]
            low, high = lower[own], upper[own]
            size = torch.maximum(low.abs(), high.abs())
            for one in self.polynomials[number]:
                least, factors = torch.zeros_like(low[:, 0]), 0
                total = torch.full_like(least, abs(float(one.bound)))
                for a, inputs in one.terms:
                    ends = [torch.full_like(low[:, 0], float(a))] * 2
                    for j in inputs:
                        every = torch.stack([end * side[:, j] for end in ends for side in (low, high)])
                        ends = [every.amin(0), every.amax(0)]
                    least, factors = least + ends[0], max(factors, len(inputs))
                    total = total + abs(float(a)) * size[:, list(inputs)].prod(-1)
                paid = 2 * gamma(len(one.terms) + factors + 3) * total + TINY * (1 + total)
                out[own] |= least - paid > float(one.bound)
        return out


@dataclass(frozen=True, eq=False)
class Problem:
    """N items of I instances.

    Attributes
    ----------
    lower, upper : (N, n) outward boxes; inner_lower, inner_upper : (N, n), see `property.Boxes`
    rows, constraints : see there; constraints is None if no item has any
    exists : (N or 1, C) which of the padded cases are real
    instance : (N,) the instance of each item; instances : I
    """

    lower: Tensor
    upper: Tensor
    inner_lower: Tensor
    inner_upper: Tensor
    rows: Rows
    exists: Tensor
    constraints: Constraints | None
    instance: Tensor
    instances: int

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def cases(self) -> int:
        """C: cases an item, padding included."""
        return self.exists.shape[-1]

    def items(self, index: Tensor) -> Problem:
        """Some items, with the instances' numbering kept."""

        def pick(tensor: Tensor) -> Tensor:
            return tensor if len(tensor) == 1 != len(self) else tensor[index]

        rows, constraints = self.rows, self.constraints
        picked = Rows(
            pick(rows.outputs), None if rows.inputs is None else pick(rows.inputs), pick(rows.bound),
            pick(rows.inner_bound), pick(rows.strict), pick(rows.case), pick(rows.origin),
        )  # fmt: skip
        if constraints is not None:
            constraints = constraints.items(index)
        return replace(
            self, lower=self.lower[index], upper=self.upper[index], inner_lower=self.inner_lower[index],
            inner_upper=self.inner_upper[index], rows=picked, exists=pick(self.exists), constraints=constraints,
            instance=self.instance[index],
        )  # fmt: skip

    def to(self, dtype: torch.dtype) -> Problem:
        """This problem, rounded to another floating type: for searches only."""

        def cast(part: Any) -> dict[str, Any]:
            tensors = {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}
            return {name: value.to(dtype) for name, value in tensors.items() if value.is_floating_point()}

        rows, constraints = replace(self.rows, **cast(self.rows)), self.constraints
        if constraints is not None:
            constraints = replace(constraints, **cast(constraints))
        return replace(self, rows=rows, constraints=constraints, **cast(self))

    def refuted(self, false: Tensor) -> Tensor:
        """(.., N, R) which rows are false on all of an item -> (.., N, C): some row of the case is, or it is padded."""
        return self.any_row(false) | ~self.exists

    def met(self, true: Tensor) -> Tensor:
        """(.., N, R) which rows hold -> (.., N, C): the case is real, and all of its rows hold."""
        return self.all_rows(true) & self.exists

    def any_row(self, holds: Tensor) -> Tensor:
        """(.., N, R) -> (.., N, C): some row of the case."""
        return self._by_case(holds, 0, "amax")

    def all_rows(self, holds: Tensor) -> Tensor:
        """(.., N, R) -> (.., N, C): all rows of the case (true for a case without rows)."""
        return self._by_case(holds, 1, "amin")

    def _by_case(self, holds: Tensor, start: int, reduce: str) -> Tensor:
        case = self.rows.case.expand(holds.shape)
        shape = (*holds.shape[:-1], self.cases + 1)
        out = torch.full(shape, start, dtype=torch.int8, device=holds.device)
        return out.scatter_reduce(-1, case, holds.to(torch.int8), reduce)[..., :-1].bool()

    def least(self, values: Tensor) -> Tensor:
        """(.., N, R) -> (.., N, C): the smallest value in [0, 1] among the rows of the case (1 without rows)."""
        case = self.rows.case.expand(values.shape)
        out = values.new_ones(*values.shape[:-1], self.cases + 1)
        return out.scatter_reduce(-1, case, values, "amin")[..., :-1]

    def worst(self, values: Tensor) -> Tensor:
        """(.., N, R) -> (.., N, C): the largest value among the rows of the case (-inf without rows)."""
        case = self.rows.case.expand(values.shape)
        out = values.new_full((*values.shape[:-1], self.cases + 1), -torch.inf)
        return out.scatter_reduce(-1, case, values, "amax")[..., :-1]

    def total(self, values: Tensor) -> Tensor:
        """(.., N, R) -> (.., N, C): the sum over the rows of the case."""
        case = self.rows.case.expand(values.shape)
        out = values.new_zeros(*values.shape[:-1], self.cases + 1)
        return out.scatter_add(-1, case, values)[..., :-1]

    def all_items(self, holds: Tensor) -> Tensor:
        """(.., N) -> (.., I): all items of the instance."""
        return self._by_instance(holds, 1, "amin")

    def any_item(self, holds: Tensor) -> Tensor:
        """(.., N) -> (.., I): some item of the instance."""
        return self._by_instance(holds, 0, "amax")

    def _by_instance(self, holds: Tensor, start: int, reduce: str) -> Tensor:
        out = torch.full((*holds.shape[:-1], self.instances), start, dtype=torch.int8, device=holds.device)
        return out.scatter_reduce(-1, self.instance.expand(holds.shape), holds.to(torch.int8), reduce).bool()


def from_property(property: Property, device: torch.device | str = "cpu") -> Problem:
    """One instance; items are the property's boxes that some case uses."""
    used, item_of_case = np.unique(property.case_box, return_inverse=True)
    case_slot, width = _slots(item_of_case, len(used))
    item_of_row = item_of_case[property.rows.owner]
    order = np.argsort(item_of_row, kind="stable")
    row_slot = np.empty_like(order)
    slots, most = _slots(item_of_row[order], len(used))
    row_slot[order], height = slots, max(1, most)  # no rows at all: padding, so that nothing is of size zero

    def padded(values: NDArray, fill: float, count: int, item: NDArray, slot: NDArray) -> Tensor:
        out = np.full((len(used), count, *values.shape[1:]), fill, dtype=values.dtype)
        out[item, slot] = values
        return torch.as_tensor(out, device=device)

    def of_rows(values: NDArray, fill: float) -> Tensor:
        return padded(values, fill, height, item_of_row, row_slot)

    rows = property.rows
    exists = padded(np.ones(len(item_of_case), dtype=bool), False, width, item_of_case, case_slot)

    def of_boxes(values: NDArray) -> Tensor:
        return torch.as_tensor(values[used], device=device)

    boxes = property.boxes
    return Problem(
        of_boxes(boxes.lower), of_boxes(boxes.upper), of_boxes(boxes.inner_lower), of_boxes(boxes.inner_upper),
        Rows(
            of_rows(rows.outputs, 0.0), None if rows.inputs is None else of_rows(rows.inputs, 0.0),
            of_rows(rows.bound, np.inf), of_rows(rows.inner_bound, -np.inf), of_rows(rows.strict, False),
            of_rows(case_slot[rows.owner], width), of_rows(np.arange(len(rows)), -1),
        ),
        exists,
        _constraints(property, used, device),
        torch.zeros(len(used), dtype=torch.int64, device=device),
        1,
    )  # fmt: skip


def _slots(owner: NDArray, owners: int) -> tuple[NDArray, int]:
    """Running number of each entry within its owner, and the largest count; entries grouped or not."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=owners) if owners else np.zeros(0, dtype=np.int64)
    starts = np.cumsum(counts) - counts
    slot = np.empty(len(owner), dtype=np.int64)
    slot[order] = np.arange(len(owner)) - np.repeat(starts, counts)
    return slot, int(counts.max(initial=0))


def _constraints(property: Property, used: NDArray, device: torch.device | str) -> Constraints | None:
    """The constraints on the inputs of the used boxes as padded tensors; None if there are none."""
    extra = property.constraints
    keep = np.flatnonzero(np.isin(extra.owner, used))
    of_box = [property.polynomials[box] if property.polynomials else () for box in used.tolist()]
    polynomials = tuple(dict.fromkeys(of_box))
    if len(keep) == 0 and not any(polynomials):
        return None
    item = np.searchsorted(used, extra.owner[keep])
    slot, count = _slots(item, len(used))
    inputs = np.zeros((0, property.boxes.lower.shape[1])) if extra.inputs is None or len(keep) == 0 else extra.inputs

    def padded(values: NDArray, fill: float) -> Tensor:
        out = np.full((len(used), max(1, count), *values.shape[1:]), fill, dtype=values.dtype)
        out[item, slot] = values[keep]
        return torch.as_tensor(out, device=device)

    return Constraints(
        padded(inputs, 0.0), padded(extra.bound, 1.0), padded(extra.inner_bound, 1.0), padded(extra.strict, False),
        polynomials, torch.tensor([polynomials.index(each) for each in of_box], device=device),
    )  # fmt: skip


def from_labels(lower: Tensor, upper: Tensor, labels: Tensor, classes: int) -> Problem:
    """One instance a box; V = some class j != label with Y_label - Y_j <= 0 (ties are violations)."""
    n, device = len(lower), lower.device
    other = torch.arange(classes - 1, device=device).expand(n, -1)
    other = other + (other >= labels[:, None])
    outputs = torch.zeros(n, classes - 1, classes, dtype=torch.float64, device=device)
    outputs.scatter_(2, labels[:, None, None].expand(-1, classes - 1, 1), 1.0)
    outputs.scatter_(2, other[..., None], -1.0)
    zero = torch.zeros(1, classes - 1, dtype=torch.float64, device=device)
    case = torch.arange(classes - 1, device=device)[None]
    rows = Rows(outputs, None, zero, zero, zero.bool(), case, case)
    return _independent(lower, upper, rows, torch.ones(1, classes - 1, dtype=torch.bool, device=device))


def from_cases(lower: Tensor, upper: Tensor, properties: Sequence[OutputCases], outputs: int) -> Problem:
    """One instance a box; `properties` holds one output DNF for all boxes or one for each."""
    if len(properties) not in (1, len(lower)):
        raise OptionError(f"{len(properties)} properties for {len(lower)} boxes: give one for all, or one a box")
    height = max(1, *(sum(len(b) for _, b, _ in cases) for cases in properties))
    width = max(1, *(len(cases) for cases in properties))
    count = len(properties)
    a = np.zeros((count, height, outputs))
    bound, strict = np.full((count, height), np.inf), np.zeros((count, height), dtype=bool)
    case = np.full((count, height), width)
    exists = np.zeros((count, width), dtype=bool)
    for i, cases in enumerate(properties):
        start = 0
        for c, (part, b, s) in enumerate(cases):
            stop = start + len(b)
            a[i, start:stop], bound[i, start:stop], strict[i, start:stop] = part, b, s
            case[i, start:stop], exists[i, c], start = c, True, stop
    device = lower.device
    padding = case == width
    origin = np.where(padding, -1, np.arange(height)[None])
    tensors = [
        torch.as_tensor(v, device=device) for v in (a, bound, np.where(padding, -np.inf, bound), strict, case, origin)
    ]
    rows = Rows(tensors[0], None, *tensors[1:])
    return _independent(lower, upper, rows, torch.as_tensor(exists, device=device))


def _independent(lower: Tensor, upper: Tensor, rows: Rows, exists: Tensor) -> Problem:
    """One instance an item, boxes exact in float64."""
    count = len(lower)
    instance = torch.arange(count, device=lower.device)
    return Problem(lower, upper, lower, upper, rows, exists, None, instance, count)


# 2. Points of T


def feasible(problem: Problem, x: Tensor) -> Tensor:
    """(N,): x (N, n) satisfies the item's constraints exactly (rational arithmetic); the boxes hold by construction.

    Where x stands for a real point between two floats (see `point_box`), all of what is between must satisfy them.
    """
    extra = problem.constraints
    if extra is None:
        return torch.ones(len(problem), dtype=torch.bool, device=x.device)
    lower, upper = point_box(problem, x)
    answers = [_satisfies(extra, i, lower[i], upper[i]) for i in range(len(x))]
    return torch.tensor(answers, dtype=torch.bool, device=x.device)


def _satisfies(extra: Constraints, item: int, lower: Tensor, upper: Tensor) -> bool:
    ends = [(Fraction(low), Fraction(high)) for low, high in zip(lower.tolist(), upper.tolist(), strict=True)]
    for g, bound, strict in zip(
        extra.inputs[item].tolist(), extra.inner_bound[item].tolist(), extra.strict[item].tolist(), strict=True
    ):
        left = sum((Fraction(a) * end[a > 0] for a, end in zip(g, ends, strict=True) if a), Fraction(0))
        if not row_true(left, Fraction(bound), strict):
            return False
    if not extra.polynomials:
        return True
    low, high = zip(*ends, strict=True)
    return all(one.holds(low, high) for one in extra.polynomials[int(extra.which[item])])


def point_box(problem: Problem, x: Tensor) -> tuple[Tensor, Tensor]:
    """The point (.., N, n) as a box that surely holds a real point of T near it.

    Where no float64 lies in the item's interval (x == 0.1), the interval's own outward bounds, one unit apart.
    """
    empty = problem.inner_lower > problem.inner_upper
    return torch.where(empty, problem.lower, x), torch.where(empty, problem.upper, x)


# 3. Cases that exclude each other


def some_case(problem: Problem, failures: Tensor) -> Tensor:
    """(N,) lower bounds on the probability that some case holds at a point of each item.

    The masses of disjoint cases are added up, from the likeliest case on; any such set gives a bound.

    Parameters
    ----------
    failures : (N, C) upper bounds on 1 - P(E_c), but for the roundings of a sum of R + 1 terms
    """
    terms = problem.rows.outputs.shape[1] + 1
    spent = (failures * (1 + 4 * (terms + 8) * UNIT)).nan_to_num(1.0)
    mass = torch.nextafter(1.0 - spent, spent.new_tensor(-torch.inf)).clamp(min=0.0)
    mass = torch.where(problem.exists, mass, 0.0)
    total = mass.amax(-1)
    index = torch.nonzero((mass > 0).sum(-1) > 1)[:, 0]  # one case alone has nothing to be added to it
    if len(index):
        total = total.index_copy(0, index, _added(mass[index], apart(problem.items(index))))
    return total.clamp(max=1.0)


def _added(mass: Tensor, disjoint: Tensor) -> Tensor:
    """(N,): sums of masses (N, C) over cases any two of which are `disjoint` (N or 1, C, C), rounded down."""
    items, cases = torch.arange(len(mass), device=mass.device), mass.shape[-1]
    disjoint = disjoint.expand(len(mass), -1, -1)
    left, total = mass, torch.zeros_like(mass[:, 0])
    for _ in range(cases):
        value, chosen = left.max(-1)
        if not bool((value > 0).any()):
            break
        total = total + value
        left = torch.where(disjoint[items, chosen], left, 0.0)
    return torch.maximum(total * (1 - 4 * (cases + 8) * UNIT), mass.amax(-1))


def apart(problem: Problem) -> Tensor:
    """(N or 1, C, C): pairs of cases that are proved to be disjoint at every x; never a case and itself."""
    rows = problem.rows
    items = max(len(part) for part in (rows.case, rows.outputs, rows.inner_bound))
    case = rows.case.expand(items, -1)
    outputs, bound = rows.outputs.expand(items, -1, -1), rows.inner_bound.expand(items, -1)
    # the sums of opposite rows are opposite: a quick look at all pairs, and an exact one at those that are left
    weight = torch.linspace(1.0, 2.0, outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    size = (outputs * weight).sum(-1)
    real = case < problem.cases
    maybe = (size[:, :, None] == -size[:, None]) & (bound[:, :, None] + bound[:, None] <= 0)
    maybe = maybe & real[:, :, None] & real[:, None] & (case[:, :, None] < case[:, None])
    item, p, q = torch.nonzero(maybe, as_tuple=True)
    opposite = (outputs[item, p] == -outputs[item, q]).all(-1)
    if rows.inputs is not None:
        inputs = rows.inputs.expand(items, -1, -1)
        opposite = opposite & (inputs[item, p] == -inputs[item, q]).all(-1)
    item, p, q = item[opposite], p[opposite], q[opposite]
    found = torch.zeros(items, problem.cases, problem.cases, dtype=torch.bool, device=case.device)
    found[item, case[item, p], case[item, q]] = True
    return found | found.mT
