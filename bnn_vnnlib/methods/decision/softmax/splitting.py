"""Minima of functions over boxes of inputs, by splitting them.

The function is given by a lower bound over boxes, with a slope that says where it varies. At a point the bound itself
is the best that can be hoped for there, so a box is split until its bound is within a tolerance of the least bound met
at a point, or exceeds the goal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.system.clock import Deadline, OutOfTime

Bound = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""lower, upper (P, n), target (P,) -> lower bounds (P,) over the boxes, and slopes (P, n)."""

BATCH = 2**9
"""Boxes bounded at a time."""


@dataclass(frozen=True)
class Effort:
    """tolerance : excess that is not worth a split; most : boxes of one target, at most."""

    tolerance: float
    most: int


@dataclass(eq=False)
class Splitting:
    """T targets, each the minimum of one function over one box.

    Parameters
    ----------
    goal : (T,) bounds above it are good enough; with `hopeless`, a target is given up once a point misses it
    """

    bound: Bound
    goal: Tensor
    effort: Effort
    deadline: Deadline
    hopeless: bool

    def run(self, lower: Tensor, upper: Tensor, known: Tensor) -> Tensor:
        """(T,) lower bounds on the minima over boxes (T, n), at least the `known` ones."""
        count = len(lower)
        self._best = torch.full((count,), torch.inf, dtype=lower.dtype, device=lower.device)
        self._closed = self._best.clone()
        self._spent = torch.zeros(count, dtype=torch.int64, device=lower.device)
        front = (torch.arange(count, device=lower.device), lower, upper, known.clone())
        waiting = known.new_full((count,), torch.inf)
        try:
            while len(front[0]):
                waiting = known.new_full((count,), torch.inf).scatter_reduce(0, front[0], front[3], "amin")
                front = self._round(*front)
            waiting = known.new_full((count,), torch.inf)
        except OutOfTime:
            pass
        return torch.maximum(torch.minimum(self._closed, waiting), known)

    def _round(
        self, target: Tensor, lower: Tensor, upper: Tensor, known: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The halves of what stays open."""
        value, slope = self._bounded(lower, upper, target)
        value = torch.maximum(value, known)
        self._look(target, lower, upper, slope)
        self._spent += torch.bincount(target, minlength=len(self._spent))
        middle = (lower + upper) / 2
        can = (lower < middle) & (middle < upper)
        enough = (value > self.goal[target]) | (value >= self._best[target] - self.effort.tolerance)
        left = torch.bincount(target[~enough], minlength=len(self._spent))
        over = self._spent + 2 * left > self.effort.most  # decided for the target as a whole
        if self.hopeless:
            over = over | (self._best <= self.goal)
        done = enough | over[target] | ~can.any(-1)
        self._closed.scatter_reduce_(0, target[done], value[done], "amin")
        keep = torch.nonzero(~done)[:, 0]
        target, lower, upper, value, middle = (part[keep] for part in (target, lower, upper, value, middle))
        width = torch.where(can[keep], upper - lower, -1.0)
        score = width * (slope[keep].abs() + 1e-3 * slope[keep].abs().amax(-1, keepdim=True) + 1e-300)
        axis = score.argmax(-1, keepdim=True)
        at = middle.gather(-1, axis)
        return (
            torch.cat([target, target]),
            torch.cat([lower, lower.scatter(-1, axis, at)]),
            torch.cat([upper.scatter(-1, axis, at), upper]),
            torch.cat([value, value]),
        )

    def _look(self, target: Tensor, lower: Tensor, upper: Tensor, slope: Tensor) -> None:
        """The bound at the corner that the slope points to, and at the centre."""
        corner = torch.where(slope > 0, lower, upper)
        for x in (corner, (lower + upper) / 2):
            value = self._bounded(x, x, target)[0]
            self._best.scatter_reduce_(0, target, value.nan_to_num(torch.inf), "amin")

    def _bounded(self, lower: Tensor, upper: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        parts = []
        for index in torch.arange(len(target), device=target.device).split(BATCH):
            self.deadline.check()
            value, slope = self.bound(lower[index], upper[index], target[index])
            parts.append((value.nan_to_num(-torch.inf, torch.inf, -torch.inf), slope.nan_to_num(0.0)))
        return torch.cat([value for value, _ in parts]), torch.cat([slope for _, slope in parts])
