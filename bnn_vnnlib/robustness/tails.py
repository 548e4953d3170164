"""Bounds on P_safe from the tails of the rows (`bounds.tails`), which do not pay for every weight at once.

Lower: 1 - sum over items of (delta + sum over the cases of the least failure probability of their rows), where delta is
the budget of the item's own event. Upper: at one point x* the failures of the rows of one case add up, because all of
them have to hold: P_safe <= delta + sum of failures. Several budgets are tried, and the best bound is taken.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnn_vnnlib.bounds.rounding import UNIT
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.clock import Deadline, OutOfTime
from bnn_vnnlib.model.network import GaussianDiagonal, Network
from bnn_vnnlib.model.nodes import Constant
from bnn_vnnlib.robustness import weight_sets
from bnn_vnnlib.robustness.outputs import OutputBounds, is_difference
from bnn_vnnlib.robustness.problem import Problem
from bnn_vnnlib.robustness.safety import SafetyBounds, from_masses, last_of_each, nothing_known, point_box

BUDGETS = (1e-2, 1e-4, 1e-7, 1e-13)
"""Probabilities spent on the ranges of one item."""

SETTLED = 0.999
"""No upper bound is looked for where the lower bound exceeds this."""


class TailBounds:
    """Tail bounds of one network and posterior."""

    def __init__(self, network: Network, posterior: GaussianDiagonal, device: torch.device, deadline: Deadline) -> None:
        self._engine = TailEngine(network, deadline)
        self._means = weight_sets.mean_weights(network, device)
        self._deviations = weight_sets.centred(network, posterior, device)
        self._budgets = torch.tensor(BUDGETS, dtype=torch.float64, device=device)

    def lower(self, problem: Problem) -> Tensor:
        """(I,) lower bounds on P_safe."""
        return lower_of(problem, self.item_failures(problem))

    def item_failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on P_w(some x of the item violates some case), the item's budget included; at most 1."""
        rows = problem.rows
        failure = self._failures((problem.lower, problem.upper), rows.outputs, rows.inputs, rows.bound)
        worst = problem.least(failure)  # (K, N, C): one row is enough
        total = torch.where(problem.exists, worst, 0.0).sum(-1) + self._budgets[:, None]
        return (total.amin(0) * (1 + 4 * (problem.cases + 8) * UNIT)).clamp(max=1.0)

    def improved(self, problem: Problem, failures: Tensor, steps: int, goal: float) -> Tensor:
        """(N,) bounds no larger than `failures` (N,), of `item_failures`, after some steps of optimisation.

        Parameters
        ----------
        steps : at most
        goal : items whose bound is below are left alone
        """
        return failures

    def unsafe(self, problem: Problem, lower: Tensor, upper: Tensor) -> Tensor:
        """(N,) lower bounds on P_w(some case holds at the point), the point given as a box of size (nearly) zero."""
        rows = problem.rows
        inputs = None if rows.inputs is None else -rows.inputs
        failure = self._failures((lower, upper), -rows.outputs, inputs, -rows.inner_bound)
        total = problem.total(failure) + self._budgets[:, None, None]
        best = torch.where(problem.exists, total, torch.inf).amin(-1).amin(0)
        return _remaining(best, rows.outputs.shape[1])

    def _failures(self, box: tuple[Tensor, Tensor], outputs: Tensor, inputs: Tensor | None, bound: Tensor) -> Tensor:
        return self._engine.failures(self._means, self._deviations, box, outputs, inputs, bound, self._budgets)


def tails_apply(bounds: OutputBounds, posterior: GaussianDiagonal, problem: Problem) -> bool:
    """Whether tails serve the graph and the rows.

    They bound rows over the graph's outputs before a Softmax: enough for differences compared with 0. A random tensor
    that is a branch of the graph is not served.
    """
    network, rows = bounds.engine.network, problem.rows
    random = weight_sets.random_sources(network, posterior)
    if any(isinstance(node, Constant) and node.value.source in random for node in network.nodes):
        return False
    if bounds.transform == "identity":
        return True
    suits = is_difference(rows.outputs) & (rows.bound == 0) & (rows.inner_bound == 0)
    real = rows.case < problem.cases
    return bounds.transform == "softmax" and rows.inputs is None and bool((suits | ~real).all())


def by_tails(
    network: Network, posterior: GaussianDiagonal, problem: Problem, points: Tensor, usable: Tensor, deadline: Deadline
) -> SafetyBounds:
    """Tails over T for the lower bound; for the upper bound at the attacked points (N, n) that are usable (N,), where
    the lower bound leaves something open.
    """
    found = nothing_known(problem, points)
    tails = TailBounds(network, posterior, points.device, deadline)
    try:
        lower = tails.lower(problem)
        mass = torch.zeros(len(problem), dtype=torch.float64, device=points.device)
        index = torch.nonzero(usable & (lower < SETTLED)[problem.instance])[:, 0]
        if len(index):
            part = problem.items(index)
            mass[index] = tails.unsafe(part, *point_box(part, points[index]))
    except OutOfTime:
        return found
    best = last_of_each(problem, torch.argsort(mass))
    lower, upper = from_masses(lower, mass[best])
    return replace(
        found, lower=lower, upper=upper, point=points[best], point_mass=mass[best],
        by_tails=torch.ones_like(found.by_tails),
    )  # fmt: skip


def lower_of(problem: Problem, failures: Tensor) -> Tensor:
    """(I,) lower bounds on P_safe from upper bounds (N,) on the items' failures, which add up."""
    spent = failures.new_zeros(problem.instances).index_add(0, problem.instance, failures)
    return _remaining(spent, len(problem))


def _remaining(spent: Tensor, terms: int) -> Tensor:
    """1 - spent, rounded down; the terms of the sum were added with roundings."""
    spent = spent * (1 + 4 * (terms + 8) * UNIT)
    value = torch.nextafter(1.0 - spent, spent.new_tensor(-torch.inf))
    return value.nan_to_num(0.0).clamp(0.0, 1.0)
