"""Bounds on P_safe from the failure probabilities of `one_layer`, as `robustness.tails` has them from tails.

Lower: 1 - sum over items and cases of the least failure probability among the rows of the case. Upper: at one point the
rows of one case all have to hold, so that the failures of their negations add up.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.rounding import UNIT
from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.model.network import GaussianDiagonal
from bnn_vnnlib.robustness.classification.layers import OneLayer, one_layer
from bnn_vnnlib.robustness.outputs import OutputBounds, over_box
from bnn_vnnlib.robustness.problem import Problem
from bnn_vnnlib.robustness.tails import lower_of, tails_apply
from bnn_vnnlib.robustness.wide.one_layer import RowsAtBoxes, failures

LARGEST = 1024
"""Neurons, and inputs, at most: matrices of that size are decomposed for every row."""


class WideBounds:
    """Bounds for one network and posterior."""

    def __init__(self, layers: OneLayer, deadline: Deadline) -> None:
        self._layers, self._deadline = layers, deadline

    def lower(self, problem: Problem) -> Tensor:
        """(I,) lower bounds on P_safe."""
        return lower_of(problem, self.item_failures(problem))

    def item_failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on P_w(some x of the item violates some case), at most 1."""
        rows = problem.rows
        found = self._failures(problem, problem.lower, problem.upper, rows.outputs, rows.inputs, rows.bound)
        return _added(torch.where(problem.exists, problem.least(found), 0.0).sum(-1), problem)

    def unsafe(self, problem: Problem, lower: Tensor, upper: Tensor) -> Tensor:
        """(N,) lower bounds on P_w(some case holds at the point), the point given as a box of size (nearly) zero."""
        rows = problem.rows
        inputs = None if rows.inputs is None else -rows.inputs
        found = self._failures(problem, lower, upper, -rows.outputs, inputs, -rows.inner_bound)
        spent = _added(torch.where(problem.exists, problem.total(found), torch.inf).amin(-1), problem)
        return torch.nextafter(1.0 - spent, spent.new_tensor(-torch.inf)).clamp(0.0, 1.0)

    def _failures(
        self, problem: Problem, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, bound: Tensor
    ) -> Tensor:
        """(N, R): upper bounds on P_w(outputs . f(x) + inputs . x <= bound for some x), at most 1."""
        count, height = len(problem), outputs.shape[1]
        bound = bound.expand(count, height)
        if inputs is not None:
            bound = torch.nextafter(bound - over_box(inputs, lower, upper)[0], bound.new_tensor(torch.inf))
        real = (problem.rows.case < problem.cases).expand(count, height) & torch.isfinite(bound)
        item, row = torch.nonzero(real, as_tuple=True)
        question = RowsAtBoxes(
            _numbers(lower), _numbers(upper), _numbers(outputs.expand(count, height, -1)[item, row]),
            _numbers(bound[item, row]), item.cpu().numpy(),
        )  # fmt: skip
        found = torch.ones_like(bound, dtype=torch.float64)
        found[item, row] = torch.as_tensor(failures(self._layers, question, self._deadline), device=found.device)
        return found


def _numbers(values: Tensor) -> np.ndarray:
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float64)


def _added(total: Tensor, problem: Problem) -> Tensor:
    """The terms of the sum were added with roundings."""
    terms = problem.cases + problem.rows.outputs.shape[1]
    return (total * (1 + 4 * (terms + 8) * UNIT)).nan_to_num(1.0, 1.0, 1.0).clamp(max=1.0)


def wide_layers(bounds: OutputBounds, posterior: GaussianDiagonal, problem: Problem) -> OneLayer | None:
    """The network as one hidden ReLU layer with independent Gaussian weights everywhere, if that is what it is."""
    if not tails_apply(bounds, posterior, problem):
        return None
    found = one_layer(bounds.engine.network, posterior, problem.lower.device)
    if found is None or max(found.first.mean.shape) > LARGEST:
        return None
    last = (found.last.variance > 0) | (found.last.mean == 0)
    return found if bool(last.all()) and bool((found.first.variance > 0).any(-1).all()) else None
