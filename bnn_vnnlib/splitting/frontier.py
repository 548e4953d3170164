"""What waits in a branch and bound, minima of rows over boxes by it, and forests of boxes.

1. `Frontier`: boxes of inputs, or parts of a box on which some neurons have a known sign. Every item belongs to one of
N owners: a question that is to be decided for itself. A step bounds some items; those that it cannot close give way to
items that cover them. So what waits and what was left open always cover all that is not closed, and a proof for the
closed ones together with what is known of the others is a proof for the whole.
Guarantee: time may end anywhere. A step that it cuts off (OutOfTime) leaves its items waiting, as if they had never
been taken. An owner's end does not depend on other owners: in any order its tree is the same, and it is given up where
that tree becomes larger than `most`.

2. `minimise`: minima of rows over boxes of inputs. Every box is halved until its bounds are as good as the values that
are met.
Guarantee: sound, since boxes cover each other's parts; what time or the number of boxes cuts off counts with the bounds
that are known of it. Complete in the limit as far as the bounds are.
Method: breadth first, all items at once. A row is done on a box whose bound comes within the tolerance of the least
value that the row takes at a point: no split can gain more. A box is halved while some of its rows are not done, along
the input in which those vary most. Values at points decide how long to work, never what is claimed, and need no
rounding. With a goal, a row is done where its bound exceeds the goal, and everywhere once a point misses it.

3. `Forest`: each item of a problem is a root, a box of inputs is split into two, and failures add up.
P(some x of a box violates) is at most the box's own bound, and at most the sum over its halves: a tree counts as the
least of both, at every node. So a split that does not pay costs nothing, and the total never grows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Gap
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.rounding import TINY, UNIT
from bnn_vnnlib.system.clock import Deadline, OutOfTime

_STEEPEST, _FLATTEST = 1e300, 1e-3
"""What an infinite slope counts as, and what a slope counts as at least, relative to the steepest one of its box: no
bound is so good that an input which it ignores could stay wide for ever."""


# 1. What waits


@dataclass(frozen=True, eq=False)
class Items:
    """P items; every field has one entry for each. owner (P,)."""

    owner: Tensor

    def __len__(self) -> int:
        return len(self.owner)

    def pick(self, index: Tensor | slice) -> Self:
        """The items of an index or a mask."""
        return type(self)(*(part[index] for part in vars(self).values()))

    def join(self, *others: Self) -> Self:
        """These items, and then the others."""
        fields = zip(*(vars(items).values() for items in (self, *others)), strict=True)
        return type(self)(*(torch.cat(parts) for parts in fields))


@dataclass(frozen=True, eq=False)
class OpenBoxes(Items):
    """Boxes of inputs: lower, upper (P, n)."""

    lower: Tensor
    upper: Tensor

    def halves(self, steepness: Tensor) -> tuple[Self, Self]:
        """All first halves, then all second ones; and the boxes that cannot be halved, since no float lies inside.

        Parameters
        ----------
        steepness : (P, n) how much the bounds vary along each input; a box is cut where this times the width is largest
        """
        middle = self.lower / 2 + self.upper / 2  # the sum of the two may overflow
        possible = (self.lower < middle) & (middle < self.upper)
        steepness = steepness.nan_to_num(0.0, _STEEPEST)
        steepness = steepness + _FLATTEST * steepness.amax(-1, keepdim=True) + TINY
        axis = torch.where(possible, steepness * (self.upper - self.lower), -1.0).argmax(-1, keepdim=True)
        at = middle.gather(-1, axis)
        cut = possible.any(-1)
        first = replace(self, upper=self.upper.scatter(-1, axis, at)).pick(cut)
        second = replace(self, lower=self.lower.scatter(-1, axis, at)).pick(cut)
        return first.join(second), self.pick(~cut)


_S = TypeVar("_S", bound=Items)
_T = TypeVar("_T", bound=Items)


class Frontier(Generic[_T]):
    """The items of N owners that wait.

    Parameters
    ----------
    waiting : at the start
    most : items of one owner, bounded and waiting ones together, at most; None = no limit but time
    left : told of items that will never be bounded, because their owner is given up or settled, or time is up
    """

    def __init__(
        self, waiting: _T, owners: int, most: int | None, deadline: Deadline, left: Callable[[_T], None] | None = None
    ) -> None:
        self._waiting, self._most, self._deadline = waiting, most, deadline
        self._left = left or (lambda items: None)
        self._spent = torch.zeros(owners, dtype=torch.int64, device=waiting.owner.device)
        self._given_up = torch.zeros_like(self._spent, dtype=torch.bool)
        self._settled = torch.zeros_like(self._given_up)

    @property
    def open(self) -> Tensor:
        """(N,): owners that are given up, or of which something waits."""
        return self._given_up | (self._count(self._waiting) > 0)

    def give_up(self, owner: Tensor) -> None:
        """Owners, by their numbers: nothing of theirs is bounded any more, and they stay open."""
        self._given_up[owner] = True

    def settle(self, owners: Tensor) -> None:
        """Owners, by a mask (N,): decided otherwise, so that their items are forgotten."""
        self._settled |= owners

    def taken(self) -> _T:
        """Take out all that waits, and return it."""
        taken, self._waiting = self._waiting, self._waiting.pick(slice(0, 0))
        return taken

    def sweep(self, items: _S, step: Callable[[_S], _T], batch: int) -> None:
        """Take items of whatever kind once, in their order; what the steps leave of them waits.

        Owners whose items time does not suffice for are given up.
        """
        found: list[_T] = []
        with suppress(OutOfTime):
            while len(items):
                self._deadline.check()
                found.append(self._replaced(items.pick(slice(batch)), step))
                items = items.pick(slice(batch, None))
        self.give_up(items.owner)
        self._waiting = self._waiting.join(*found)
        self._drop()

    def run(self, step: Callable[[_T], _T], batch: int | None = None) -> None:
        """Take the last `batch` items, or all; put in their place what the step leaves of them; until nothing waits."""
        with suppress(OutOfTime):
            while len(self._waiting):
                self._deadline.check()
                start = 0 if batch is None else max(0, len(self._waiting) - batch)
                parts = self._replaced(self._waiting.pick(slice(start, None)), step)
                self._waiting = self._waiting.pick(slice(start)).join(parts)
                self._drop()
        self._left(self._waiting)

    def _replaced(self, taken: _S, step: Callable[[_S], _T]) -> _T:
        parts = step(taken)
        self._spent += self._count(taken)
        return parts

    def _drop(self) -> None:
        """Take out what waits of owners that are settled or given up."""
        if self._most is not None:
            self._given_up |= self._spent + self._count(self._waiting) > self._most
        gone = (self._settled | self._given_up)[self._waiting.owner]
        if bool(gone.any()):
            self._left(self._waiting.pick(gone))
            self._waiting = self._waiting.pick(~gone)

    def _count(self, items: Items) -> Tensor:
        """Number (N,) of the items that each owner has."""
        return torch.bincount(items.owner, minlength=len(self._spent))


def paired(network: Network, steepness: Tensor) -> Tensor:
    """(P, n): of two networks in differences, all parts of an input are as steep as x_f - x_g is, at least.

    A difference of two activations has lines in the difference alone, whose slopes depend on the ranges of both
    inputs: the width of x_f costs as much, and no slope tells.
    """
    gaps = [node for node in network.nodes if isinstance(node, Gap)]
    if not gaps:
        return steepness
    parts = steepness.unflatten(-1, (3 if gaps[0].quotient else 2, -1))
    return parts.maximum(parts[:, 1:2]).flatten(1)


# 2. Minima of rows

_ROUNDS = 200
"""Halvings that lead to one box, at most: bounds that do not converge end here, and not at the size of a float."""


@dataclass(frozen=True, eq=False)
class Look:
    """What is found of boxes (P, n).

    value (P, R) : lower bounds of the rows; slope (P, R, n) : how the rows vary, about: they fall against it
    lower, upper (P, n) : the boxes, or parts of them in which the minima are proved to lie
    """

    value: Tensor
    slope: Tensor
    lower: Tensor
    upper: Tensor


Bound = Callable[[Tensor, Tensor, Tensor], Look]
"""items (P,), lower, upper (P, n) -> bounds that do not depend on the other boxes."""

_Value = Callable[[Tensor, Tensor], Tensor]
"""items (P,), points x (P, n) -> values (P, R) of the rows, not rounded."""


@dataclass(frozen=True)
class Effort:
    """How far boxes are split.

    tolerance : excess that is not worth a split, of all rows or (N, R); relative : more of it, as a share of how much
        the row varies between the points of the first round
    most : boxes of an item, at most; batch : boxes that are bounded between two looks at the clock
    once : the items' own boxes are bounded whatever the time: for bounds that are quick, where nothing is known yet
    """

    tolerance: Tensor | float
    most: int
    batch: int = 2**9
    relative: float = 0.0
    once: bool = False


def minimise(
    bound: Bound, value: _Value | None, lower: Tensor, upper: Tensor, known: Tensor, effort: Effort, deadline: Deadline,
    goal: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(N, R) lower bounds on the minima over boxes (N, n), at least the `known` ones.

    Parameters
    ----------
    value : None where nothing is known of a row but its bounds: at a point they are the best that can be hoped for
    goal : (N, R) bounds above it are good enough, and none is looked for where a point shows that it is out of reach
    """
    search = _Search(bound, value, known, effort, Deadline() if effort.once else deadline, goal)
    front = _Bounded(torch.arange(len(lower), device=lower.device), lower, upper, known)
    if effort.once:
        front = search.step(front)
        search.deadline = deadline
    Frontier(front, len(lower), effort.most, deadline, search.close).run(search.step)
    return torch.maximum(search.closed, known)


@dataclass(frozen=True, eq=False)
class _Bounded(OpenBoxes):
    """Boxes with what is known of their rows, (P, R)."""

    known: Tensor


class _Search:
    """best (N, R) : the least value met at a point; closed (N, R) : the least bound of a box that is not split."""

    def __init__(
        self, bound: Bound, value: _Value | None, known: Tensor, effort: Effort, deadline: Deadline,
        goal: Tensor | None,
    ) -> None:  # fmt: skip
        self._bound, self._value, self._effort, self.deadline, self._goal = bound, value, effort, deadline, goal
        self.best, self.closed = torch.full_like(known, torch.inf), torch.full_like(known, torch.inf)
        self._tolerance, self._round = torch.zeros_like(known) + effort.tolerance, 0

    def close(self, boxes: _Bounded) -> None:
        """Boxes that are not split any more."""
        self.closed.scatter_reduce_(0, boxes.owner[:, None].expand_as(boxes.known), boxes.known, "amin")

    def step(self, boxes: _Bounded) -> _Bounded:
        """The halves of what is not good enough."""
        boxes, slope = self._looked(boxes)
        self._meet(boxes, slope)
        best = self.best[boxes.owner]
        open_ = boxes.known < best - self._tolerance[boxes.owner]
        if self._goal is not None:
            goal = self._goal[boxes.owner]
            open_ = open_ & (boxes.known <= goal) & (best > goal)
        self._round += 1
        more = open_.any(-1) & (self._round <= _ROUNDS) & (not self.deadline.passed)
        self.close(boxes.pick(~more))
        steepness = torch.where(open_[more, :, None], slope[more].abs(), 0.0).amax(1)
        halves, points = boxes.pick(more).halves(steepness)
        self.close(points)
        return halves

    def _looked(self, boxes: _Bounded) -> tuple[_Bounded, Tensor]:
        """The boxes with better bounds, and slopes (P, R, n); where time is up nothing is gained."""
        owner, lower, upper = boxes.owner, boxes.lower.clone(), boxes.upper.clone()
        known, slope = boxes.known.clone(), boxes.known.new_zeros(*boxes.known.shape, lower.shape[-1])

        def look(part: slice) -> None:
            found = self._bound(owner[part], boxes.lower[part], boxes.upper[part])
            lower[part], upper[part], slope[part] = found.lower, found.upper, found.slope.nan_to_num(0.0)
            known[part] = torch.maximum(known[part], found.value.nan_to_num(-torch.inf, torch.inf, -torch.inf))

        self.deadline.reached(self._batches(len(boxes)), look)
        return replace(boxes, lower=lower, upper=upper, known=known), slope

    def _meet(self, boxes: _Bounded, slope: Tensor) -> None:
        """Values at the centres, then at the corners to which the rows fall that may be farthest below the best."""
        at = [self._met(boxes.owner, boxes.lower / 2 + boxes.upper / 2)]
        worst = (self.best[boxes.owner] - boxes.known).nan_to_num(0.0).argmax(-1)
        rising = slope[torch.arange(len(worst), device=worst.device), worst] > 0
        at.append(self._met(boxes.owner, torch.where(rising, boxes.lower, boxes.upper)))
        if self._round == 0 and self._effort.relative > 0:
            at.append(self._met(boxes.owner, torch.where(rising, boxes.upper, boxes.lower)))
            values = torch.stack(at)
            self._tolerance = self._tolerance + self._effort.relative * (values.amax(0) - values.amin(0))

    def _met(self, owner: Tensor, x: Tensor) -> Tensor:
        """(P, R): values at points (P, n), inf where time is up."""
        values = self.best.new_full((len(x), self.best.shape[1]), torch.inf)

        def met(part: slice) -> None:
            at = owner[part], x[part]
            found = self._bound(*at, x[part]).value if self._value is None else self._value(*at)
            values[part] = found.nan_to_num(torch.inf, torch.inf, torch.inf)

        self.deadline.reached(self._batches(len(x)), met)
        self.best.scatter_reduce_(0, owner[:, None].expand_as(values), values, "amin")
        return values

    def _batches(self, count: int) -> list[slice]:
        return [slice(start, start + self._effort.batch) for start in range(0, count, self._effort.batch)]


# 3. Forests


@dataclass(frozen=True, eq=False)
class _Nodes(OpenBoxes):
    """own (P,) : bounds of the boxes themselves; depth (P,) : halvings that led here; first (P,) : the first of the
    two halves, which follow each other, or -1; stuck (P,) : no float lies inside.
    """

    own: Tensor
    depth: Tensor
    first: Tensor
    stuck: Tensor

    @staticmethod
    def leaves(boxes: OpenBoxes, own: Tensor, depth: Tensor) -> _Nodes:
        none, no = torch.full_like(depth, -1), torch.zeros_like(depth, dtype=torch.bool)
        return _Nodes(boxes.owner, boxes.lower, boxes.upper, own, depth, none, no)


class Forest:
    """Boxes (P) of N items, which own them, with upper bounds on their probabilities of being violated.

    Parameters
    ----------
    problem : the items
    own : (N,) bounds of the items' boxes

    Attributes
    ----------
    nodes : all boxes, in the order of their making: first those of the items
    """

    def __init__(self, problem: Problem, own: Tensor) -> None:
        index = torch.arange(len(problem), device=own.device)
        self.problem = problem
        self.nodes = _Nodes.leaves(OpenBoxes(index, problem.lower, problem.upper), own, torch.zeros_like(index))

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def instance(self) -> Tensor:
        """(P,) the instance that each part belongs to."""
        return self.problem.instance[self.nodes.owner]

    def boxes(self, index: Tensor) -> Problem:
        """Some boxes as items, in the instances of theirs."""
        return self._asked(self.nodes.pick(index))

    def _asked(self, boxes: OpenBoxes) -> Problem:
        return replace(self.problem.items(boxes.owner), lower=boxes.lower, upper=boxes.upper)

    def worst(self, among: Tensor, most: Tensor) -> Tensor:
        """Indices of the leaves of each chosen instance (I,) that matter most, `most` (I,) of them or fewer: down to a
        tenth of the instance's largest bound.

        Equal bounds are taken in the order of their making, so that the larger boxes come first.
        """
        nodes = self.nodes
        usable = (nodes.first < 0) & ~nodes.stuck & among[self.instance]
        own = torch.where(usable, nodes.own, 0.0)
        largest = own.new_zeros(len(among)).scatter_reduce(0, self.instance, own, "amax")
        index = torch.nonzero(usable & (own >= 0.1 * largest[self.instance]))[:, 0]
        index = index[torch.argsort(own[index], descending=True, stable=True)]
        index = index[torch.argsort(self.instance[index], stable=True)]
        count = torch.bincount(self.instance[index], minlength=len(among))
        start = count.cumsum(0) - count
        rank = torch.arange(len(index), device=index.device) - start[self.instance[index]]
        return index[rank < most[self.instance[index]]]

    def split(self, index: Tensor, steepness: Tensor, failures: Callable[[Problem], Tensor]) -> None:
        """Halve boxes (P',) as `OpenBoxes.halves` says, and bound the halves; what cannot be halved is left alone.

        Parameters
        ----------
        steepness : (P', n)
        failures : bounds (2 P'') of the halves, which are given as items, side by side; where time ends it, nothing is
            split
        """
        nodes = self.nodes
        halves, points = OpenBoxes(index, nodes.lower[index], nodes.upper[index]).halves(steepness)
        nodes.stuck[points.owner] = True
        if len(halves) == 0:
            return
        count, parent = len(halves) // 2, halves.owner[: len(halves) // 2]
        halves = halves.pick(torch.arange(2 * count, device=index.device).reshape(2, count).mT.flatten())
        boxes = OpenBoxes(nodes.owner[halves.owner], halves.lower, halves.upper)
        new = _Nodes.leaves(boxes, failures(self._asked(boxes)), nodes.depth[halves.owner] + 1)
        nodes.first[parent] = len(self) + 2 * torch.arange(count, device=index.device)
        self.nodes = nodes.join(new)

    def without(self, items: list[int]) -> Forest:
        """The forest with some items not split."""
        pruned = Forest(self.problem, self.nodes.own[: len(self.problem)])
        first = self.nodes.first.clone()
        first[items] = -1
        pruned.nodes = replace(self.nodes, first=first)
        return pruned

    def roots(self) -> Tensor:
        """(N,) upper bounds on the probability that the item is violated: of its box and of all ways to split it."""
        nodes = self.nodes
        value = nodes.own.clone()
        for depth in range(int(nodes.depth.max()) - 1, -1, -1):
            node = torch.nonzero((nodes.depth == depth) & (nodes.first >= 0))[:, 0]
            first = nodes.first[node]
            value[node] = torch.minimum(value[node], (value[first] + value[first + 1]) * (1 + 2 * UNIT))
        return value[: len(self.problem)]
