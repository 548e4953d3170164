"""Pairs of a weight setting and an item, each with an input box of its own: what branch and bound works on.

The engine bounds K weight settings x M items. A frontier is ragged: some settings have thousands of open boxes and most
have none. Pairs are sorted by setting and padded to such grids, in few groups of settings with about as many boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib.attack import transformed
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.points import feasible, point_box
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.rounding import TINY

_ROUNDED_ZERO = 1e-9
"""Points that miss a violation by no more than this in plain floating point are worth a rigorous check."""


_DESCENT, _OVERSHOOT = 10, 1.3
"""Steps towards a violation, and their length as a multiple of the one that reaches it if all is linear."""


@dataclass(frozen=True, eq=False)
class Decided:
    """What is proved of K weight settings x N items.

    safe (K, N): no x of the item violates any case; violated (K, N): `point` (K, N, n) is in the item and violates one.
    """

    safe: Tensor
    violated: Tensor
    point: Tensor

    def met(self, other: Decided) -> Decided:
        """All that both know."""
        point = torch.where(other.violated[..., None], other.point, self.point)
        return Decided(self.safe | other.safe, self.violated | other.violated, point)


@dataclass(frozen=True, eq=False)
class PairForms:
    """Linear functions below the rows: slope (P, R, n), and their own minima over the boxes, least (P, R)."""

    slope: Tensor
    least: Tensor


@dataclass(frozen=True, eq=False)
class PairBounds:
    """lower (P, R): lower bounds of the rows, at least the minima of the linear functions, or more."""

    lower: Tensor
    form: PairForms | None


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs.

    Attributes
    ----------
    bounds, weights : the engine and the K weight settings (or boxes)
    setting : (P,) which of the K
    problem : P items, one instance
    """

    bounds: OutputBounds
    weights: WeightBoxes
    setting: Tensor
    problem: Problem

    def __post_init__(self) -> None:
        """A scale for each item would not follow the items into the grids."""
        if self.weights.scale.shape[1] != 1:
            raise ValueError("pairs need weight settings that are the same for all items")

    @cached_property
    def grids(self) -> list[tuple[Tensor, Tensor]]:
        """See `grids`."""
        return grids(self.setting)

    def lower(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, *, forms: bool = False
    ) -> PairBounds:
        """Lower bounds (P, R) of the rows over boxes (P, n).

        outputs (P or 1, R, m), inputs (P or 1, R, n) or None; linear functions only if asked for, and where there are
        any.
        """
        low, slope, least = None, None, None
        for settings, index in self.grids:
            found = self.bounds.rows(
                self.weights.boxes(settings), lower[index], upper[index], _gridded(outputs, index),
                None if inputs is None else _gridded(inputs, index), forms=forms,
            )  # fmt: skip
            low = scatter(low, found.lower, index, len(lower))
            if found.form is not None:
                slope = scatter(slope, found.form.slope, index, len(lower))
                minimum = found.form.minimum(Interval(lower[index], upper[index]))
                least = scatter(least, minimum, index, len(lower))
        if low is None:
            raise ValueError("no pairs")
        return PairBounds(low, None if slope is None or least is None else PairForms(slope, least))

    def defined(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P,): the network is surely defined on the boxes (P, n); see `OutputBounds.defined`."""
        known = None
        for settings, index in self.grids:
            found = self.bounds.defined(self.weights.boxes(settings), lower[index], upper[index])
            known = scatter(known, found, index, len(lower))
        if known is None:
            raise ValueError("no pairs")
        return known

    def outputs(self, x: Tensor) -> Tensor:
        """What the rows are over, at points (P, n), in plain floating point: (P, m)."""
        y = None
        network = self.bounds.engine.network
        for settings, index in self.grids:
            some = self.weights.boxes(settings)
            params = {name: some.centers[name] for name, center in self.weights.centers.items() if len(center) > 1}
            value = evaluate(network, x[index] if params else x[index].flatten(0, 1), params)
            value = transformed(value.reshape(*index.shape, -1), self.bounds.transform)
            y = scatter(y, value, index, len(x))
        if y is None:
            raise ValueError("no pairs")
        return y

    def violated(self, x: Tensor) -> Tensor:
        """(P,): the point (P, n), one of the item's inner box, is in the item and violates a case, proved.

        Most points are turned down in plain floating point.
        """
        with torch.no_grad():
            near = self._nearest(self._values(x)).amin(-1)
        index = torch.nonzero(near <= _ROUNDED_ZERO)[:, 0]
        held = torch.zeros_like(near, dtype=torch.bool)
        index = index[feasible(self.problem.items(index), x[index])]
        if len(index):
            some = Pairs(self.bounds, self.weights, self.setting[index], self.problem.items(index))
            held[index] = some._proved(x[index])
        return held

    def descend(self, x: Tensor, width: Tensor) -> Tensor:
        """Move points (P, n) a few steps towards a violation, inside the inner boxes, in units of `width` (P, n).

        Polyak's step for the sum of the rows of the nearest case that do not hold, which reaches zero at once where
        that sum is linear; a little more, so as to end inside.
        """
        problem = self.problem
        for _ in range(_DESCENT):
            x = x.detach().requires_grad_()
            value = self._values(x)
            nearest = self._nearest(value.detach()).argmin(-1, keepdim=True)
            of_nearest = problem.rows.case.expand(value.shape) == nearest
            goal = torch.where(of_nearest, value.clamp(min=0), 0.0).sum(-1)
            (gradient,) = torch.autograd.grad(goal.sum(), x)
            steep = (gradient * width) ** 2
            length = _OVERSHOOT * goal.detach() / steep.sum(-1).clamp(min=TINY)
            x = x.detach() - (length[:, None] * width**2 * gradient).nan_to_num(0.0, 0.0, 0.0)
            x = torch.minimum(torch.maximum(x, problem.inner_lower), problem.inner_upper)
        return x

    def _values(self, x: Tensor) -> Tensor:
        """(P, R): a.y + g.x - b, in plain floating point."""
        rows = self.problem.rows
        value = (self.outputs(x)[:, None] * rows.outputs).sum(-1) - rows.inner_bound
        return value if rows.inputs is None else value + (x[:, None] * rows.inputs).sum(-1)

    def _nearest(self, value: Tensor) -> Tensor:
        """(P, C): the largest of the values (P, R) in each case; inf where there is no case."""
        return torch.where(self.problem.exists, self.problem.worst(value), torch.inf)

    def _proved(self, x: Tensor) -> Tensor:
        """(P,): all rows of some case hold at the points (P, n), rounding included."""
        rows = self.problem.rows
        low, high = point_box(self.problem, x)
        above = -self.lower(low, high, -rows.outputs, None if rows.inputs is None else -rows.inputs).lower
        held = self.problem.met(rows.implied(above)).any(-1)
        return held & self.defined(low, high)


class Witnesses:
    """Of Q pairs: violated (Q,), proved at `point` (Q, n); the points are any in the items' boxes at first."""

    def __init__(self, point: Tensor) -> None:
        self.point = point.clone()
        self.violated = torch.zeros(len(point), dtype=torch.bool, device=point.device)

    def look(self, pairs: Pairs, owner: Tensor, x: Tensor, width: Tensor) -> None:
        """Try points x (P, n) of pairs that belong to owners (P,), after a short descent; width (P, n): its units."""
        x = pairs.descend(x, width)
        hit = torch.nonzero(pairs.violated(x))[:, 0]
        owner, first = owner[hit].unique(return_inverse=True)
        # any of an owner's points will do: the last one, so that it does not depend on chance
        last = torch.zeros_like(owner).scatter_reduce(0, first, hit, "amax")
        self.violated[owner] = True
        self.point[owner] = x[last]

    def decided(self, proved: Tensor) -> Decided:
        """With the pairs (K, N) of which every part is proved to be safe."""
        shape = proved.shape
        violated = self.violated.reshape(shape)
        return Decided(proved & ~violated, violated, self.point.reshape(*shape, -1))


def grids(setting: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Sort P pairs by their setting: (settings (K'), index (K', M') into the pairs); padding repeats a pair."""
    order = torch.argsort(setting, stable=True)
    settings, counts = torch.unique_consecutive(setting[order], return_counts=True)
    starts = counts.cumsum(0) - counts
    sizes = torch.ceil(torch.log2(counts.double())).long()  # grids of about equal counts waste at most half
    found = []
    for size in sizes.unique().tolist():
        chosen = torch.nonzero(sizes == size)[:, 0]
        slot = torch.arange(int(counts[chosen].max()), device=order.device)
        place = starts[chosen, None] + torch.minimum(slot, counts[chosen, None] - 1)
        found.append((settings[chosen], order[place]))
    return found


def _gridded(rows: Tensor, index: Tensor) -> Tensor:
    """(1, R, ..) as it is, (P, R, ..) -> (K', M', R, ..)."""
    return rows if len(rows) == 1 else rows[index]


def scatter(out: Tensor | None, values: Tensor, index: Tensor, count: int) -> Tensor:
    """Put a grid's values (K', M', ..) at their pairs; padding writes the same value again."""
    if out is None:
        out = values.new_empty(count, *values.shape[2:])
    values = values.expand(*index.shape, *values.shape[2:])
    out[index.flatten()] = values.flatten(0, 1)
    return out
