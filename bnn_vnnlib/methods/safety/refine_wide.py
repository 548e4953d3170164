"""Refinement by the method for wide posteriors (`wide`), where tails have left something open."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnn_vnnlib.methods.safety.large_variance.rows import SPARE, WideBounds
from bnn_vnnlib.methods.safety.refine import owned, rarely
from bnn_vnnlib.methods.safety.safety import SafetyBounds, from_masses, last_of_each, nothing_known
from bnn_vnnlib.methods.safety.tails import lower_of
from bnn_vnnlib.problem.points import point_box
from bnn_vnnlib.problem.problem import Problem

CHUNK = 16
"""Items of one piece of work, with one hidden layer."""

PACE = 8
"""Turns that other stages have for each item with more hidden layers: it takes 1 to 30 s."""

JUDGED = 256
"""Items of which it is found out at once whether they pay; some arrays hold 15 numbers a neuron of each."""


class Wide:
    """A stage (see `refine`): each item's lower bound once, then its upper bound at the attacked point.

    Parameters
    ----------
    wide : of the network
    points, usable : (N, n), (N,) attacked points, and which of them surely lie in their item
    """

    def __init__(self, wide: WideBounds, problem: Problem, points: Tensor, usable: Tensor) -> None:
        self._wide, self._problem, self._points = wide, problem, points
        self._failures = torch.ones(len(problem), dtype=torch.float64, device=points.device)
        self._mass = torch.zeros_like(self._failures)
        self._safe, self._unsafe = ~wide.serves(problem), ~usable
        self._judged = torch.zeros_like(usable)
        self._chunk, self._steps = CHUNK if wide.quick else 1, 0

    def due(self, turn: int) -> bool:
        """At the first turns, and then rarely: it is soon done. If an item takes long, when others had their turns."""
        if self._wide.quick:
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
            idle = part[~self._wide.pays(self._problem.items(part))]
            self._safe[idle] = self._unsafe[idle] = True
        self._judged[index] = True

    def _lower(self, index: Tensor) -> None:
        self._failures[index] = self._wide.item_failures(self._problem.items(index))

    def _upper(self, index: Tensor) -> None:
        part = self._problem.items(index)
        mass = self._wide.unsafe(part, *point_box(part, self._points[index]))
        self._mass[index] = (mass - SPARE).clamp(min=0.0)

    def _bounds(self) -> SafetyBounds:
        found = nothing_known(self._problem, self._points)
        best = last_of_each(self._problem, torch.argsort(self._mass, stable=True))
        lower, upper = from_masses(lower_of(self._problem, self._failures), self._mass[best])
        return replace(
            found, lower=lower, upper=upper, point=self._points[best], point_mass=self._mass[best],
            by_wide=torch.ones_like(found.by_wide),
        )  # fmt: skip
