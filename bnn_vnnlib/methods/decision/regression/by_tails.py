"""The expected output of a network of any depth and graph, by the tails of its rows.

Guarantee: sound with probability 1, rounding included.
Method. V = c . f(x) for one x of the box. On an event G the tails know V >= E' + M with E M = 0 (`bounds.tails.tail`,
5.): noise that is linear costs nothing, and what G fails with is paid with a sure bound of V (`OutputBounds.closed`) or
its norm sqrt(E V^2) (`output_norms`). The best of several probabilities that G may fail with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.methods.decision.by_weights import output_norms
from bnn_vnnlib.network.families import names_of
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, Network
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.rounding import UNIT, gamma

_BUDGETS = (1e-2, 1e-4, 1e-7, 1e-11)
"""Probabilities that the ranges may fail with."""


@dataclass(frozen=True, eq=False)
class ExpectationByTails:
    """A `decision.method.RowMethod` for Gaussian weights and outputs as they are; `thorough`: see `TailPlan`."""

    bounds: OutputBounds
    engine: TailEngine
    posterior: Gaussian
    means: WeightBoxes
    deviations: WeightBoxes
    spreads: WeightBoxes
    thorough: bool = False

    name: ClassVar[str] = "tails"

    @staticmethod
    def over(bounds: OutputBounds, network: Network, posterior: Gaussian, device: torch.device) -> ExpectationByTails:
        """The method for a network with a Gaussian posterior."""
        engine = TailEngine(network, bounds.engine.deadline, correlation=correlation(network, posterior, device))
        deviations = weight_sets.centred(network, independent(posterior), device)
        means, spreads = weight_sets.mean_weights(network, device), weight_sets.marginal(network, posterior, device)
        return ExpectationByTails(bounds, engine, posterior, means, deviations, spreads)

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; outputs (N or 1, R, m), inputs alike or None."""
        outputs = outputs.expand(len(lower), -1, -1)
        sure = self.bounds.closed(self.means, lower, upper, outputs, None, names_of(self.posterior))[0]
        value = self.engine.expectations(
            self.means, self.deviations, (lower, upper), outputs, sure, self._norm(lower, upper, outputs),
            lower.new_tensor(_BUDGETS), thorough=self.thorough,
        ).amax(0).maximum(sure)  # fmt: skip
        if inputs is None:
            return value
        moved = over_box(inputs, lower, upper)[0]
        return value + moved - 2 * UNIT * (value.abs() + moved.abs())

    def _norm(self, lower: Tensor, upper: Tensor, outputs: Tensor) -> Tensor:
        """(N, R): at least ||V||, infinite where it is not known."""
        independent = isinstance(self.posterior, GaussianDiagonal)
        norms = output_norms(self.engine.network, self.spreads, lower, upper, independent=independent)
        each = torch.where(outputs != 0, outputs.abs() * norms[:, None], 0.0)
        return each.sum(-1) * (1 + gamma(outputs.shape[-1] + 4))
