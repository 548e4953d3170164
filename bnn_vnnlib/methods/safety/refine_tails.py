"""Refinement by tuning the tails: budgets, shares and slopes of single items, by gradient on their bounds."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnn_vnnlib.methods.safety.refine import owned, rarely
from bnn_vnnlib.methods.safety.safety import SafetyBounds
from bnn_vnnlib.methods.safety.tails import TAILS, TailBounds, lower_of
from bnn_vnnlib.problem.problem import Problem

STEPS = (10, 30, 100)
"""Gradient steps of the pieces, each from the start."""

FEW, LATER = 16, 32
"""With up to so many inputs the first piece waits for so many turns: splits of the inputs decide most of it sooner."""

SHARE = 0.01
"""Items that lose less than this share of what their instance has lost are left alone."""


class Tuning:
    """A stage (see `refine`).

    Parameters
    ----------
    tails : of the network
    nothing : bounds [0, 1] of all instances
    """

    def __init__(self, tails: TailBounds, problem: Problem, nothing: SafetyBounds) -> None:
        self._tails, self._problem, self._nothing = tails, problem, nothing
        self._failures: Tensor | None = None
        self._left = list(STEPS)

    def due(self, turn: int) -> bool:
        """Rarely: each piece takes longer than all before."""
        first = LATER if self._problem.lower.shape[1] <= FEW else 0
        return turn >= first and rarely(turn - first)

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """Tune the items of the instances whose lower bound is wanted."""
        if not self._left or not bool(below.any()):
            return None
        problem = self._problem
        if self._failures is None:
            self._failures = self._tails.item_failures(problem)
        failures = self._failures
        lost = torch.zeros(problem.instances, dtype=failures.dtype, device=failures.device)
        lost = lost.index_add(0, problem.instance, failures)
        index = owned(below, problem.instance)
        index = index[failures[index] > SHARE * lost[problem.instance[index]]]
        better = self._tails.improved(problem.items(index), failures[index], self._left.pop(0), 0.0)
        self._failures = failures.index_copy(0, index, better)
        lower = lower_of(problem, self._failures)
        return replace(self._nothing, lower=lower).named(TAILS.name)
