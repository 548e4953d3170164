"""Refinement by the bounds for large variances, where tails have left something open."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.large_variance.rows import LARGE_VARIANCE, SPARE, LargeVarianceBounds, chain_of
from bnn_vnnlib.methods.safety.refine import owned, rarely, refine
from bnn_vnnlib.methods.safety.safety import Pass, SafetyBounds, Task, from_masses, last_of_each, nothing_known
from bnn_vnnlib.methods.safety.tails import TAILS, lower_of
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.network.network import GaussianDiagonal
from bnn_vnnlib.problem.problem import Problem, point_box

CHUNK = 16
"""Items of one piece of work, with one hidden layer."""

PACE = 8
"""Turns that other stages have for each item with more hidden layers: it takes 1 to 30 s."""

JUDGED = 256
"""Items of which it is found out at once whether they pay; some arrays hold 15 numbers a neuron of each."""


class LargeVarianceItems:
    """A stage (see `refine`): each item's lower bound once, then its upper bound at the attacked point.

    Parameters
    ----------
    tight : of the network
    points, usable : (N, n), (N,) attacked points, and which of them surely lie in their item
    """

    def __init__(self, tight: LargeVarianceBounds, problem: Problem, points: Tensor, usable: Tensor) -> None:
        self._tight, self._problem, self._points = tight, problem, points
        self._failures = torch.ones(len(problem), dtype=torch.float64, device=points.device)
        self._mass = torch.zeros_like(self._failures)
        self._safe, self._unsafe = ~tight.serves(problem), ~usable
        self._judged = torch.zeros_like(usable)
        self._chunk, self._steps = CHUNK if tight.quick else 1, 0

    def due(self, turn: int) -> bool:
        """At the first turns, and then rarely: it is soon done. If an item takes long, when others had their turns."""
        if self._tight.quick:
            return turn < 2 or rarely(turn)
        return turn >= PACE * (self._steps + 1)

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """The next items that are wanted and have not been looked at."""
        problem = self._problem
        for wanted, seen, look in ((below, self._safe, self._lower), (above, self._unsafe, self._upper)):
            index = owned(wanted, problem.instance)
            self._judge(index[~seen[index] & ~self._judged[index]])
            index = index[~seen[index]][: self._chunk]
            if len(index):
                self._steps += 1
                look(index)
                seen[index] = True
                return self._bounds()
        return None

    def _judge(self, index: Tensor) -> None:
        """Leave out the items that do not pay."""
        for part in index.split(JUDGED):
            idle = part[~self._tight.pays(self._problem.items(part))]
            self._safe[idle] = self._unsafe[idle] = True
        self._judged[index] = True

    def _lower(self, index: Tensor) -> None:
        self._failures[index] = self._tight.item_failures(self._problem.items(index))

    def _upper(self, index: Tensor) -> None:
        part = self._problem.items(index)
        mass = self._tight.unsafe(part, *point_box(part, self._points[index]))
        self._mass[index] = (mass - SPARE).clamp(min=0.0)

    def _bounds(self) -> SafetyBounds:
        found = nothing_known(self._problem, self._points)
        best = last_of_each(self._problem, torch.argsort(self._mass, stable=True))
        lower, upper = from_masses(lower_of(self._problem, self._failures), self._mass[best])
        return replace(
            found, lower=lower, upper=upper, point=self._points[best], point_mass=self._mass[best],
        ).named(LARGE_VARIANCE)  # fmt: skip


def _chain(task: Task) -> DenseChain | str:
    reason = TAILS.serves(task)
    if reason is None and not isinstance(task.posterior, GaussianDiagonal):
        reason = "the posterior's weights are not independent"
    if reason is None and task.means == "tails":
        reason = "tails alone are asked for"
    return chain_of(task.bounds, cast(GaussianDiagonal, task.posterior), task.problem) if reason is None else reason


def _serves(task: Task) -> str | None:
    found = _chain(task)
    return found if isinstance(found, str) else None


def large_variance_of(task: Task) -> LargeVarianceBounds | None:
    """The bounds of a task that they serve."""
    found = _chain(task)
    return None if isinstance(found, str) else LargeVarianceBounds(found, task.deadline)


def _bounds(task: Task, known: SafetyBounds | None) -> SafetyBounds:
    """All items of the instances that are open, one after the other."""
    found, (points, _, usable) = large_variance_of(task), task.attacked
    stages = [] if found is None else [LargeVarianceItems(found, task.problem, points, usable)]
    return refine(known or task.nothing, task.goal, stages, task.deadline)


BY_LARGE_VARIANCE: Method[Task, Pass] = Method(LARGE_VARIANCE, _serves, _bounds)
