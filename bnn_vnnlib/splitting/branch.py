"""Branch and bound over the inputs: what one pass of linear bounds leaves open is split until it is decided.

Guarantee: sound, rounding included. Complete in the limit for properties that are not violated by less than rounding:
a pair stays open only when time or its share of boxes is used up, or when its boxes cannot be split any more.
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

import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.problem.problem import Constraints, Problem
from bnn_vnnlib.rounding import TINY, UNIT
from bnn_vnnlib.splitting.pairs import Pairs
from bnn_vnnlib.system.clock import OutOfTime

BATCH = 2**10
"""Boxes bounded at a time."""


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
class _Boxes:
    """P boxes and the pair (setting * N + item) that each belongs to; lower, upper (P, n)."""

    pair: Tensor
    lower: Tensor
    upper: Tensor

    def __len__(self) -> int:
        return len(self.pair)

    def pick(self, index: Tensor | slice) -> _Boxes:
        return _Boxes(self.pair[index], self.lower[index], self.upper[index])

    def join(self, other: _Boxes) -> _Boxes:
        mine, theirs = vars(self).values(), vars(other).values()
        return _Boxes(*(torch.cat(both) for both in zip(mine, theirs, strict=True)))


class Branching:
    """One run over the open pairs.

    Parameters
    ----------
    bounds, weights : the engine and K weight settings; boxes of weights are served too (violated then means: by all
        weights of the box)
    problem : N items
    open_ : (K, N) the pairs to decide
    most : boxes spent on one pair, at most; None = no limit but time
    """

    def __init__(
        self, bounds: OutputBounds, weights: WeightBoxes, problem: Problem, open_: Tensor, most: int | None
    ) -> None:
        self._bounds, self._weights, self._problem, self._most = bounds, weights, problem, most
        self._items = len(problem)
        count = open_.numel()
        self._spent = torch.zeros(count, dtype=torch.int64, device=open_.device)
        self._left = open_.flatten().long()  # boxes on the stack
        self._given_up = torch.zeros_like(self._left, dtype=torch.bool)
        self._violated = torch.zeros_like(self._given_up)
        self._point = problem.lower.repeat(len(open_), 1)
        self._open = open_
        pair = torch.nonzero(open_.flatten())[:, 0]
        item = pair % self._items
        self._stack = _Boxes(pair, problem.lower[item], problem.upper[item])

    def run(self) -> Decided:
        """Until all is decided, or time is up."""
        try:
            while len(self._stack):
                self._bounds.engine.deadline.check()
                self._step()
        except OutOfTime:
            pass
        shape = self._open.shape
        safe = self._open.flatten() & (self._left == 0) & ~self._violated & ~self._given_up
        return Decided(
            safe.reshape(shape), self._violated.reshape(shape), self._point.reshape(*shape, self._point.shape[-1])
        )

    def _step(self) -> None:
        top, rest = self._stack.pick(slice(-BATCH, None)), self._stack.pick(slice(None, -BATCH))
        parts = self._halves(self._cut(top))
        change = _count(parts.pair, len(self._left)) - _count(top.pair, len(self._left))
        self._left, self._spent = self._left + change, self._spent + _count(top.pair, len(self._left))
        if self._most is not None:  # the size of a proof does not depend on what else is on the stack
            self._given_up |= self._spent > self._most
        done = self._violated | self._given_up
        self._stack = rest.join(parts)
        if bool(done[self._stack.pair].any()):
            self._stack = self._stack.pick(~done[self._stack.pair])

    def _cut(self, boxes: _Boxes) -> tuple[_Boxes, Tensor]:
        """What is left of the boxes, and the slope (P, n) along each input."""
        problem = self._problem.items(boxes.pair % self._items)
        pairs = Pairs(self._bounds, self._weights, boxes.pair // self._items, problem)
        rows = problem.rows
        found = pairs.lower(boxes.lower, boxes.upper, rows.outputs, rows.inputs, forms=True)
        lower, form = found.lower, found.form
        open_ = ~problem.refuted(rows.excluded(lower))
        index = torch.nonzero(open_.any(-1))[:, 0]
        if len(index) == 0:
            return boxes.pick(index), boxes.lower[index]
        boxes, problem, lower, open_ = boxes.pick(index), problem.items(index), lower[index], open_[index]
        pairs = Pairs(self._bounds, self._weights, pairs.setting[index], problem)
        if form is None:  # a Softmax in between: no linear functions, so the input that is widest at first is halved
            self._falsify(pairs, boxes, (boxes.lower + boxes.upper) / 2)
            low, high = boxes.lower, boxes.upper
            steepest = 1.0 / (problem.upper - problem.lower).clamp(min=TINY)
        else:
            slope = form.slope[index].nan_to_num()
            self._try(pairs, boxes, lower, slope, open_)
            low, high = _hull(problem, boxes, form.least[index], slope, open_)
            # a row counts for the direction of the split if its case is open
            live = torch.nn.functional.pad(open_, (0, 1)).gather(-1, _case_of(problem, lower))
            steepest = torch.where(live[..., None], slope.abs(), 0.0).amax(1)
        if problem.constraints is not None:
            low, high = _constrained(problem.constraints, low, high)
        kept = torch.nonzero((low <= high).all(-1) & ~self._violated[boxes.pair])[:, 0]
        return _Boxes(boxes.pair[kept], low[kept], high[kept]), steepest[kept]

    def _try(self, pairs: Pairs, boxes: _Boxes, lower: Tensor, slope: Tensor, open_: Tensor) -> None:
        """Corner of the row that is nearest to a violation, and centre, as witnesses."""
        problem = pairs.problem
        worst = torch.where(open_, problem.worst(lower - problem.rows.bound), torch.inf)
        case = worst.argmin(-1, keepdim=True)
        gap = torch.where(_case_of(problem, lower) == case, lower - problem.rows.bound, -torch.inf)
        row = gap.argmax(-1)
        direction = slope[torch.arange(len(row), device=row.device), row]
        middle = (boxes.lower + boxes.upper) / 2
        for x in (torch.where(direction >= 0, boxes.lower, boxes.upper), middle):
            self._falsify(pairs, boxes, x)

    def _falsify(self, pairs: Pairs, boxes: _Boxes, x: Tensor) -> None:
        x = pairs.descend(x, boxes.upper - boxes.lower)
        hit = torch.nonzero(pairs.violated(x))[:, 0]
        pair, first = boxes.pair[hit].unique(return_inverse=True)
        # any of a pair's points will do: the last one, by its place on the stack
        last = torch.zeros_like(pair).scatter_reduce(0, first, hit, "amax")
        self._violated[pair] = True
        self._point[pair] = x[last]

    def _halves(self, cut: tuple[_Boxes, Tensor]) -> _Boxes:
        """Halve each box along the input where the linear functions vary most; a box that cannot be halved is lost."""
        boxes, steepness = cut
        if len(boxes) == 0:
            return boxes
        width = boxes.upper - boxes.lower
        middle = boxes.lower + width / 2
        possible = (boxes.lower < middle) & (middle < boxes.upper)
        score = (steepness + 1e-3 * steepness.amax(-1, keepdim=True) + TINY) * width
        index = torch.where(possible, score, -1.0).argmax(-1, keepdim=True)
        stuck = ~possible.any(-1)
        self._given_up[boxes.pair[stuck]] = True
        at = middle.gather(-1, index)
        left = _Boxes(boxes.pair, boxes.lower, boxes.upper.scatter(-1, index, at)).pick(~stuck)
        right = _Boxes(boxes.pair, boxes.lower.scatter(-1, index, at), boxes.upper).pick(~stuck)
        return left.join(right)


def _hull(problem: Problem, boxes: _Boxes, least: Tensor, slope: Tensor, open_: Tensor) -> tuple[Tensor, Tensor]:
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


def _constrained(extra: Constraints, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Cut boxes (P, n) by the linear constraints of their items."""
    empty = (low > high).any(-1)[:, None]
    low, high = torch.where(empty, high, low), torch.where(empty, low, high)  # in order, and empty again below
    least = over_box(extra.inputs, low, high)[0]
    false = extra.excluded(least).any(-1)[:, None]
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


def _count(pair: Tensor, pairs: int) -> Tensor:
    return torch.bincount(pair, minlength=pairs)
