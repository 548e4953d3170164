"""What waits in a branch and bound: boxes of inputs, or parts of a box on which some neurons have a known sign.

Every item belongs to one of N owners: a question that is to be decided for itself. A step bounds some items; those that
it cannot close give way to items that cover them. So what waits and what was left open always cover all that is not
closed, and a proof for the closed ones together with what is known of the others is a proof for the whole.

Guarantee: time may end anywhere. A step that it cuts off (OutOfTime) leaves its items waiting, as if they had never
been taken. An owner's end does not depend on other owners: in any order its tree is the same, and it is given up where
that tree becomes larger than `most`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from bnn_vnnlib.rounding import TINY
from bnn_vnnlib.system.clock import Deadline, OutOfTime

_STEEPEST, _FLATTEST = 1e300, 1e-3
"""What an infinite slope counts as, and what a slope counts as at least, relative to the steepest one of its box: no
bound is so good that an input which it ignores could stay wide for ever."""


@dataclass(frozen=True, eq=False)
class Items:
    """P items; every field has one entry for each. owner (P,)."""

    owner: Tensor

    def __len__(self) -> int:
        return len(self.owner)

    def pick(self, index: Tensor | slice) -> Self:
        """Some of them, by index or mask."""
        return type(self)(*(part[index] for part in vars(self).values()))

    def join(self, *others: Self) -> Self:
        """These, then the others."""
        fields = zip(*(vars(items).values() for items in (self, *others)), strict=True)
        return type(self)(*(torch.cat(parts) for parts in fields))


@dataclass(frozen=True, eq=False)
class Boxes(Items):
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
        """All that waits, which then waits no more."""
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
        """What belongs to owners that are settled or given up."""
        if self._most is not None:
            self._given_up |= self._spent + self._count(self._waiting) > self._most
        gone = (self._settled | self._given_up)[self._waiting.owner]
        if bool(gone.any()):
            self._left(self._waiting.pick(gone))
            self._waiting = self._waiting.pick(~gone)

    def _count(self, items: Items) -> Tensor:
        """(N,)."""
        return torch.bincount(items.owner, minlength=len(self._spent))
