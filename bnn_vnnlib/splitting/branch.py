"""Branch and bound over the inputs: what one pass of linear bounds leaves open is split until it is decided.

1. `Pairs`: a weight setting and an item each, with an input box of its own. The engine bounds K weight settings x M
items. A frontier is ragged: some settings have thousands of open boxes and most have none. Pairs are sorted by setting
and padded to such grids, in few groups of settings with about as many boxes.

2. `Branching`.
Guarantee: sound, rounding included. Complete in the limit for properties that are not violated by less than rounding:
a pair stays open only when time is up, when it takes too many boxes, or when one of them cannot be split any more.
Method: each box is bounded by linear functions below the rows. A case is refuted on the box when one of its rows is
false everywhere. Otherwise the rows cut the box: where row(x) >= s.x + t and the minimum of s.x + t over the box is
`least`, a violation needs s_j x_j - min s_j x_j <= bound - least for every j, so the box shrinks to the hull of what
the open cases leave. Then it is halved where the linear functions vary most. The corner that minimises the row and
the centre are tried as witnesses on the way, after a short descent.
Reference: Wang et al., ReluVal, USENIX Security 2018 (splitting of inputs); Xu et al., Fast and Complete, ICLR 2021
(batched, with backward linear bounds).
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
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.problem.problem import Constraints, Problem, feasible, point_box
from bnn_vnnlib.rounding import TINY, UNIT
from bnn_vnnlib.splitting.frontier import Frontier, OpenBoxes, paired

# 1. Pairs

_ROUNDED_ZERO = 1e-9
"""Points that miss a violation by no more than this in plain floating point are worth a rigorous check."""


_DESCENT, _OVERSHOOT = 10, 1.3
"""Number of steps towards a violation; their length as a multiple of the one that reaches it if all is linear."""


@dataclass(frozen=True, eq=False)
class Decided:
    """What is proved of K weight settings x N items.

    safe (K, N): no x of the item violates any case; violated (K, N): `point` (K, N, n) is in the item and violates one.
    """

    safe: Tensor
    violated: Tensor
    point: Tensor

    def met(self, other: Decided) -> Decided:
        """What either of both knows."""
        point = torch.where(other.violated[..., None], other.point, self.point)
        return Decided(self.safe | other.safe, self.violated | other.violated, point)


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
        """The pairs, sorted into grids by their setting."""
        return grids(self.setting)

    def lower(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, *, forms: bool = False
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Lower bounds (P, R) of the rows over boxes (P, n); and linear functions below them, by their slopes (P, R, n)
        and their own minima over the boxes (P, R), which may be less: only if asked for, and where there are any.

        outputs (P or 1, R, m), inputs (P or 1, R, n) or None
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
        return low, None if slope is None or least is None else (slope, least)

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
            alone = self.weights.count == 1  # one setting need not be that of the network's own tensors
            params = {n: some.centers[n] for n, center in self.weights.centers.items() if alone or len(center) > 1}
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
        above = -self.lower(low, high, -rows.outputs, None if rows.inputs is None else -rows.inputs)[0]
        held = self.problem.met(rows.implied(above)).any(-1)
        return held & self.defined(low, high)


class Witnesses:
    """What is known of Q pairs: violated (Q,), proved at `point` (Q, n).

    At first the points are any in the items' boxes.
    """

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
        """What is decided of the pairs (K, N): safe where `proved` (K, N) and no violation was found, violated, and the
        points.
        """
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
    """Rows in a grid of pairs: (1, R, ..) as it is, (P, R, ..) -> (K', M', R, ..)."""
    return rows if len(rows) == 1 else rows[index]


def scatter(out: Tensor | None, values: Tensor, index: Tensor, count: int) -> Tensor:
    """Put a grid's values (K', M', ..) at their pairs; padding writes the same value again."""
    if out is None:
        out = values.new_empty(count, *values.shape[2:])
    values = values.expand(*index.shape, *values.shape[2:])
    out[index.flatten()] = values.flatten(0, 1)
    return out


# 2. Branch and bound

_BATCH = 2**10
"""Boxes bounded at a time."""


class Branching:
    """One run over the open pairs; the pair of weight setting k and item i owns its boxes as number k N + i.

    Parameters
    ----------
    bounds, weights : the engine and K weight settings; boxes of weights are served too (violated then means: by all
        weights of the box)
    problem : N items
    open_ : (K, N) the pairs to decide
    most : boxes of one pair, at most; None = no limit but time
    """

    def __init__(
        self, bounds: OutputBounds, weights: WeightBoxes, problem: Problem, open_: Tensor, most: int | None
    ) -> None:
        self._bounds, self._weights, self._problem, self._open = bounds, weights, problem, open_
        pair = torch.nonzero(open_.flatten())[:, 0]
        boxes = OpenBoxes(pair, problem.lower[pair % len(problem)], problem.upper[pair % len(problem)])
        self._frontier = Frontier(boxes, open_.numel(), most, bounds.engine.deadline)
        self._witnesses = Witnesses(problem.lower.repeat(len(open_), 1))

    def run(self) -> Decided:
        """Halve boxes until all is decided or time is up; returns what is decided."""
        self._frontier.run(self._step, _BATCH)
        proved = (~self._frontier.open).reshape(self._open.shape) & self._open
        return self._witnesses.decided(proved)

    def _step(self, boxes: OpenBoxes) -> OpenBoxes:
        """The halves of what cannot be closed; a box that cannot be halved leaves its pair open."""
        left, steepness = self._cut(boxes)
        self._frontier.settle(self._witnesses.violated)
        halves, points = left.halves(steepness)
        self._frontier.give_up(points.owner)
        return halves

    def _cut(self, boxes: OpenBoxes) -> tuple[OpenBoxes, Tensor]:
        """What is left of the boxes, and the slope (P, n) along each input."""
        problem = self._problem.items(boxes.owner % len(self._problem))
        pairs = Pairs(self._bounds, self._weights, boxes.owner // len(self._problem), problem)
        rows = problem.rows
        lower, form = pairs.lower(boxes.lower, boxes.upper, rows.outputs, rows.inputs, forms=True)
        open_ = ~problem.refuted(rows.excluded(lower))
        index = torch.nonzero(open_.any(-1))[:, 0]
        if len(index) == 0:
            return boxes.pick(index), boxes.lower[index]
        boxes, problem, lower, open_ = boxes.pick(index), problem.items(index), lower[index], open_[index]
        pairs = Pairs(self._bounds, self._weights, pairs.setting[index], problem)
        if form is None:  # a Softmax in between: no linear functions, so the input that is widest at first is halved
            self._witnesses.look(pairs, boxes.owner, (boxes.lower + boxes.upper) / 2, boxes.upper - boxes.lower)
            low, high = boxes.lower, boxes.upper
            steepest = 1.0 / (problem.upper - problem.lower).clamp(min=TINY)
        else:
            slope, least = form[0][index].nan_to_num(), form[1][index]
            self._look(pairs, boxes, lower, slope, open_)
            low, high = _hull(problem, boxes, least, slope, open_)
            # a row counts for the direction of the split if its case is open
            live = torch.nn.functional.pad(open_, (0, 1)).gather(-1, _case_of(problem, lower))
            steepest = torch.where(live[..., None], slope.abs(), 0.0).amax(1)
        if problem.constraints is not None:
            low, high = constrained(problem.constraints, low, high)
        kept = torch.nonzero((low <= high).all(-1) & ~self._witnesses.violated[boxes.owner])[:, 0]
        steepest = paired(self._bounds.engine.network, steepest)
        return OpenBoxes(boxes.owner[kept], low[kept], high[kept]), steepest[kept]

    def _look(self, pairs: Pairs, boxes: OpenBoxes, lower: Tensor, slope: Tensor, open_: Tensor) -> None:
        """Corner of the row that is nearest to a violation, and centre, as witnesses."""
        problem = pairs.problem
        worst = torch.where(open_, problem.worst(lower - problem.rows.bound), torch.inf)
        case = worst.argmin(-1, keepdim=True)
        gap = torch.where(_case_of(problem, lower) == case, lower - problem.rows.bound, -torch.inf)
        row = gap.argmax(-1)
        direction = slope[torch.arange(len(row), device=row.device), row]
        middle = (boxes.lower + boxes.upper) / 2
        for x in (torch.where(direction >= 0, boxes.lower, boxes.upper), middle):
            self._witnesses.look(pairs, boxes.owner, x, boxes.upper - boxes.lower)


def _hull(problem: Problem, boxes: OpenBoxes, least: Tensor, slope: Tensor, open_: Tensor) -> tuple[Tensor, Tensor]:
    """The hull of what the open cases leave of each box: (P, n) twice; empty (lower > upper) where nothing is left.

    least (P, R): the minima of the linear functions themselves; a better bound on the row would cut too much.
    """
    down, up = _cut_by(boxes.lower, boxes.upper, slope, problem.rows.bound, least)
    # the rows of a case intersect, the cases unite; a case without rows cuts nothing
    case = _case_of(problem, least)[..., None].expand(slope.shape)
    shape = (len(least), problem.cases + 1, slope.shape[-1])
    down = slope.new_full(shape, -torch.inf).scatter_reduce(1, case, down, "amax")[:, :-1]
    up = slope.new_full(shape, torch.inf).scatter_reduce(1, case, up, "amin")[:, :-1]
    down, up = torch.maximum(down, boxes.lower[:, None]), torch.minimum(up, boxes.upper[:, None])
    empty = (~open_ | (down > up).any(-1))[..., None]
    return torch.where(empty, torch.inf, down).amin(1), torch.where(empty, -torch.inf, up).amax(1)


def constrained(extra: Constraints, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Cut boxes (P, n) by the constraints of their items: none is left of one that they exclude."""
    empty = (low > high).any(-1)[:, None]
    low, high = torch.where(empty, high, low), torch.where(empty, low, high)  # in order, and empty again below
    least = over_box(extra.inputs, low, high)[0]
    false = (extra.excluded(least).any(-1) | extra.impossible(low, high))[:, None]
    down, up = _cut_by(low, high, extra.inputs, extra.bound, least)
    gone = empty | false
    return torch.where(gone, torch.inf, down.amax(1)), torch.where(gone, -torch.inf, up.amin(1))


def _cut_by(low: Tensor, high: Tensor, slope: Tensor, bound: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """What s.x + t <= b leaves of boxes (P, n), for each of R functions alone: (P, R, n) twice.

    With `least` (P, R) at most the minimum over the box, s_j (x_j - l_j) <= b - least where s_j > 0, and
    |s_j| (u_j - x_j) <= b - least where s_j < 0. All is rounded outward.
    """
    room = (bound - least) + 2 * UNIT * (bound.abs() + least.abs())
    reach = (room.clamp(min=0)[..., None] / slope.abs()).nan_to_num(torch.inf, torch.inf) * (1 + 8 * UNIT)
    low, high = low[:, None], high[:, None]
    reach = reach + 4 * UNIT * (low.abs() + high.abs() + reach) + TINY
    return (
        torch.where(slope < 0, torch.maximum(low, high - reach), low),
        torch.where(slope > 0, torch.minimum(high, low + reach), high),
    )


def _case_of(problem: Problem, values: Tensor) -> Tensor:
    """The local case of each row, (P, R)."""
    return problem.rows.case.expand(values.shape)
