"""The mean network alone: one weight setting, no posterior."""

from __future__ import annotations

from torch import Tensor

from bnn_vnnlib.robustness import weight_sets
from bnn_vnnlib.robustness.outputs import OutputBounds
from bnn_vnnlib.robustness.problem import Problem
from bnn_vnnlib.robustness.refute import refuted_cases


def refuted_items(bounds: OutputBounds, problem: Problem) -> Tensor:
    """(N,): no x of the item violates any case, proved."""
    weights = weight_sets.mean_weights(bounds.engine.network, problem.lower.device)
    return refuted_cases(bounds, weights, problem)[0].all(-1)
