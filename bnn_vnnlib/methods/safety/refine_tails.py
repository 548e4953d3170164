"""Refinement of lower bounds on P_safe by tails.

1. `InputSplitting`: the inputs are split under tail bounds, best first; failures of the parts add up.
2. `Tuning`: budgets, shares and slopes of single items are tuned by gradient on their bounds.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnn_vnnlib.methods.safety.refine import owned, rarely
from bnn_vnnlib.methods.safety.safety import SafetyBounds, Task
from bnn_vnnlib.methods.safety.tails import TAILS, TailBounds, lower_of
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import outside
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.problem.refute import before_softmax
from bnn_vnnlib.splitting.frontier import Forest
from bnn_vnnlib.system.memory import at_once

SPLITS, FEWEST, INPUTS = 256, 16, 64
"""Splits of one instance before the next ones have their turn; four times as many in each further round. With more
inputs than INPUTS proportionally fewer, since halving one of many changes little; but no fewer than FEWEST."""

ROUND = 32
"""Splits of one instance in one piece of work, at most; later an eighth of those made before."""

CHUNK = 2**10
"""Boxes that are bounded between two looks at the clock."""

COORDINATES = 2**24
"""Coordinates of the boxes of one instance, at most: beyond, it is not split on."""


class InputSplitting:
    """A stage (see `refine`).

    Parameters
    ----------
    task : the linear functions below the mean network's rows choose where to split
    tails : of its network
    """

    def __init__(self, task: Task, tails: TailBounds) -> None:
        problem = task.problem
        self._bounds, self._tails, self._problem = before_softmax(task.bounds, problem), tails, problem
        self._nothing, self._deadline = task.nothing, task.deadline
        self._means = weight_sets.mean_weights(task.bounds.engine.network, problem.lower.device)
        self._forest: Forest | None = None
        self._spent = torch.zeros(problem.instances, dtype=torch.int64, device=problem.lower.device)
        self._limit, self._alone = 0, False
        self._queue: list[Tensor] = []

    def due(self, turn: int) -> bool:
        """In every turn."""
        return True

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """Split the leaves that matter most of each instance."""
        while self._forest is None or len(index := self._due(self._forest, below)) == 0:
            if not self._advance(below):
                return None
        forest = self._forest
        self._spent += torch.bincount(forest.instance[index], minlength=len(below))

        def split(part: Tensor) -> None:
            forest.split(part, self._steepness(forest.boxes(part)), self._failures)

        self._deadline.reached(index.split(CHUNK), split)
        known = torch.zeros_like(below).index_fill(0, forest.problem.instance, True)
        lower = torch.where(known, lower_of(forest.problem, forest.roots()), 0.0)
        return replace(self._nothing, lower=lower).named(TAILS.name)

    def _due(self, forest: Forest, below: Tensor) -> Tensor:
        """Leaves to split next."""
        return forest.worst(below & (self._spent < self._limit), (self._spent // 8).clamp(min=ROUND))

    def _advance(self, below: Tensor) -> bool:
        """Take up the next instances, or go round again with more splits for each; False: nothing is left.

        The boxes of instances that leave are forgotten. A single group stays.
        """
        if not self._queue:
            if self._limit and self._deadline.at is None:
                return False
            inputs = self._problem.lower.shape[1]
            self._limit = 4 * self._limit or min(SPLITS, max(FEWEST, SPLITS * INPUTS // inputs))
            each = 2 * self._limit * inputs
            if each > COORDINATES or not bool(below.any()):
                return False
            self._queue = list(torch.nonzero(below)[:, 0].split(at_once(each)))
            if self._alone:
                self._queue = []
                return True
            self._alone = len(self._queue) == 1
        chosen = torch.zeros_like(below).index_fill(0, self._queue.pop(0), True) & below
        part = self._problem.items(owned(chosen, self._problem.instance))
        self._forest = Forest(part, self._failures(part)) if len(part) else None
        self._spent = torch.zeros_like(self._spent)
        return True

    def _failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on the probability that the item is violated; a box outside the constraints is not."""
        own = self._tails.item_failures(problem)
        return torch.where(outside(problem, problem.lower, problem.upper), 0.0, own)

    def _steepness(self, problem: Problem) -> Tensor:
        """(N, n): slopes of the linear function below the row that decides: the best one of the most violated case."""
        rows = problem.rows
        found = self._bounds.rows(self._means, problem.lower, problem.upper, rows.outputs, rows.inputs, forms=True)
        if found.form is None:
            return torch.ones_like(problem.lower)
        gap = found.lower[0] - rows.bound
        case = rows.case.expand(gap.shape)
        best = torch.where(problem.exists, problem.worst(gap), torch.inf).argmin(-1, keepdim=True)
        row = torch.where(case == best, gap, -torch.inf).argmax(-1)
        slope = found.form.slope[0][torch.arange(len(row), device=row.device), row]
        return slope.abs().nan_to_num(0.0, 0.0, 0.0)


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
