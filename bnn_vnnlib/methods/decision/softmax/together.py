"""Minima of several functions over boxes of inputs, by splitting a box once for all of them.

As in `splitting`, except that nothing has a goal: all rows of an item share its boxes, since most of the work on a box
does not depend on the row. The least value met at a point only says when a box is good enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnn_vnnlib.methods.decision.softmax.splitting import BATCH
from bnn_vnnlib.system.clock import Deadline, OutOfTime


class Look(Protocol):
    """What is minimised: R rows over the boxes of each item."""

    def boxes(self, lower: Tensor, upper: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Lower bounds (P, R) over boxes (P, n) of the items (P,), and slopes (P, R, n)."""
        ...

    def points(self, x: Tensor, item: Tensor) -> Tensor:
        """(P, R): the rows at points (P, n), or what can be hoped for there; nothing rests on them."""
        ...


@dataclass(frozen=True, eq=False)
class Together:
    """N items with R rows each.

    Parameters
    ----------
    tolerance : (N, R) excess of a row that is not worth a split
    most : boxes of an item, at most
    """

    look: Look
    tolerance: Tensor
    most: int
    deadline: Deadline

    def run(self, lower: Tensor, upper: Tensor, known: Tensor) -> Tensor:
        """(N, R) lower bounds on the minima over boxes (N, n), at least the `known` ones."""
        tally = _Tally(torch.full_like(known, torch.inf), torch.full_like(known, torch.inf), self.most)
        front = _Front(torch.arange(len(lower), device=lower.device), lower, upper, known)
        waiting = front.least(known)
        try:
            while len(front.item):
                waiting = front.least(known)
                front = self._round(front, tally)
            waiting = torch.full_like(known, torch.inf)
        except OutOfTime:
            pass
        return torch.maximum(torch.minimum(tally.closed, waiting), known)

    def _round(self, front: _Front, tally: _Tally) -> _Front:
        """The halves of what stays open."""
        value, slope = self._boxes(front)
        value = torch.maximum(value, front.known)
        middle = (front.lower + front.upper) / 2
        tally.meet(front.item, self._points(middle, front.item))
        worst = (tally.best[front.item] - value).nan_to_num(0.0).argmax(-1)
        towards = slope[torch.arange(len(worst), device=worst.device), worst]
        tally.meet(front.item, self._points(torch.where(towards > 0, front.lower, front.upper), front.item))
        open_ = value < (tally.best - self.tolerance)[front.item]
        can = (front.lower < middle) & (middle < front.upper)
        keep = tally.may_go_on(front.item, open_.any(-1) & can.any(-1))
        tally.close(front.item[~keep], value[~keep])
        return _Front(front.item, front.lower, front.upper, value).halves(keep, slope, open_, can, middle)

    def _boxes(self, front: _Front) -> tuple[Tensor, Tensor]:
        parts = []
        for index in torch.arange(len(front.item), device=front.item.device).split(BATCH):
            self.deadline.check()
            value, slope = self.look.boxes(front.lower[index], front.upper[index], front.item[index])
            parts.append((value.nan_to_num(-torch.inf, torch.inf, -torch.inf), slope.nan_to_num(0.0)))
        return torch.cat([value for value, _ in parts]), torch.cat([slope for _, slope in parts])

    def _points(self, x: Tensor, item: Tensor) -> Tensor:
        parts = []
        for index in torch.arange(len(item), device=item.device).split(BATCH):
            self.deadline.check()
            parts.append(self.look.points(x[index], item[index]))
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class _Front:
    """Boxes that are not good enough yet: item (P,), lower and upper (P, n), what is known of the rows (P, R)."""

    item: Tensor
    lower: Tensor
    upper: Tensor
    known: Tensor

    def least(self, like: Tensor) -> Tensor:
        """(N, R): the least that is known of the boxes of each item, inf where it has none."""
        index = self.item[:, None].expand(-1, like.shape[1])
        return torch.full_like(like, torch.inf).scatter_reduce(0, index, self.known, "amin")

    def halves(self, keep: Tensor, slope: Tensor, open_: Tensor, can: Tensor, middle: Tensor) -> _Front:
        """Two boxes from each that is kept, at the middle of the coordinate in which an open row varies most."""
        item, lower, upper, known, at, can = (
            part[keep] for part in (self.item, self.lower, self.upper, self.known, middle, can)
        )
        steep = (slope[keep].abs() * open_[keep, :, None]).amax(1)
        steep = steep + 1e-3 * steep.amax(-1, keepdim=True) + 1e-300
        axis = (torch.where(can, upper - lower, -1.0) * steep).argmax(-1, keepdim=True)
        at = at.gather(-1, axis)
        return _Front(
            item.repeat(2),
            torch.cat([lower, lower.scatter(-1, axis, at)]),
            torch.cat([upper.scatter(-1, axis, at), upper]),
            known.repeat(2, 1),
        )


class _Tally:
    """best (N, R) : the least value met at a point; closed (N, R) : the least bound of a box that is not split."""

    def __init__(self, best: Tensor, closed: Tensor, most: int) -> None:
        self.best, self.closed, self._most = best, closed, most
        self._spent = torch.zeros(len(best), dtype=torch.int64, device=best.device)

    def meet(self, item: Tensor, value: Tensor) -> None:
        index = item[:, None].expand_as(value)
        self.best.scatter_reduce_(0, index, value.nan_to_num(torch.inf, torch.inf, torch.inf), "amin")

    def close(self, item: Tensor, value: Tensor) -> None:
        self.closed.scatter_reduce_(0, item[:, None].expand_as(value), value, "amin")

    def may_go_on(self, item: Tensor, wanted: Tensor) -> Tensor:
        """The boxes that are wanted, of items that have not used up their number; decided for an item as a whole."""
        self._spent += torch.bincount(item, minlength=len(self._spent))
        after = self._spent + 2 * torch.bincount(item[wanted], minlength=len(self._spent))
        return wanted & (after <= self._most)[item]
