"""Branch and bound over the inputs: what one pass of linear bounds leaves open is split until it is decided.

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

import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.problem.problem import Constraints, Problem
from bnn_vnnlib.rounding import TINY, UNIT
from bnn_vnnlib.splitting.frontier import Boxes, Frontier
from bnn_vnnlib.splitting.pairs import Decided, Pairs, Witnesses

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
        boxes = Boxes(pair, problem.lower[pair % len(problem)], problem.upper[pair % len(problem)])
        self._frontier = Frontier(boxes, open_.numel(), most, bounds.engine.deadline)
        self._witnesses = Witnesses(problem.lower.repeat(len(open_), 1))

    def run(self) -> Decided:
        """Until all is decided, or time is up."""
        self._frontier.run(self._step, _BATCH)
        proved = (~self._frontier.open).reshape(self._open.shape) & self._open
        return self._witnesses.decided(proved)

    def _step(self, boxes: Boxes) -> Boxes:
        """The halves of what cannot be closed; a box that cannot be halved leaves its pair open."""
        left, steepness = self._cut(boxes)
        self._frontier.settle(self._witnesses.violated)
        halves, points = left.halves(steepness)
        self._frontier.give_up(points.owner)
        return halves

    def _cut(self, boxes: Boxes) -> tuple[Boxes, Tensor]:
        """What is left of the boxes, and the slope (P, n) along each input."""
        problem = self._problem.items(boxes.owner % len(self._problem))
        pairs = Pairs(self._bounds, self._weights, boxes.owner // len(self._problem), problem)
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
            self._witnesses.look(pairs, boxes.owner, (boxes.lower + boxes.upper) / 2, boxes.upper - boxes.lower)
            low, high = boxes.lower, boxes.upper
            steepest = 1.0 / (problem.upper - problem.lower).clamp(min=TINY)
        else:
            slope = form.slope[index].nan_to_num()
            self._look(pairs, boxes, lower, slope, open_)
            low, high = _hull(problem, boxes, form.least[index], slope, open_)
            # a row counts for the direction of the split if its case is open
            live = torch.nn.functional.pad(open_, (0, 1)).gather(-1, _case_of(problem, lower))
            steepest = torch.where(live[..., None], slope.abs(), 0.0).amax(1)
        if problem.constraints is not None:
            low, high = _constrained(problem.constraints, low, high)
        kept = torch.nonzero((low <= high).all(-1) & ~self._witnesses.violated[boxes.owner])[:, 0]
        return Boxes(boxes.owner[kept], low[kept], high[kept]), steepest[kept]

    def _look(self, pairs: Pairs, boxes: Boxes, lower: Tensor, slope: Tensor, open_: Tensor) -> None:
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


def _hull(problem: Problem, boxes: Boxes, least: Tensor, slope: Tensor, open_: Tensor) -> tuple[Tensor, Tensor]:
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
