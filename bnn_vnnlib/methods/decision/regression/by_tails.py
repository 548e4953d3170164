"""The expected output of a network of any depth and graph, by the tails of its rows.

Guarantee: sound with probability 1, rounding included.
Method. V = c . f(x) for one x of the box. On an event G the tails know V >= E' + M with E M = 0 (`bounds.tails.tail`,
5.): noise that is linear costs nothing, and what G fails with is paid with a sure bound of V (`OutputBounds.closed`) or
its norm |V|_4 (`output_norms`). The best of several probabilities that G may fail with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

_BUDGETS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-7, 1e-10)
"""Probabilities that the ranges may fail with."""

_NORMS = (2, 8)
"""Orders of the norms: high ones pay less where G fails, but may be infinite, or large behind exponentials."""


@dataclass(frozen=True, eq=False)
class ExpectationByTails:
    """A `decision.method.RowMethod` for Gaussian weights and outputs as they are, with these budgets; `thorough`: see
    `TailPlan`."""

    bounds: OutputBounds
    engine: TailEngine
    posterior: Gaussian
    means: WeightBoxes
    deviations: WeightBoxes
    spreads: WeightBoxes
    thorough: bool = False
    budgets: tuple[float, ...] = _BUDGETS

    name: ClassVar[str] = "tails"

    @staticmethod
    def over(bounds: OutputBounds, network: Network, posterior: Gaussian, device: torch.device) -> ExpectationByTails:
        """The method for a network with a Gaussian posterior."""
        engine = TailEngine(network, bounds.engine.deadline, correlation=correlation(network, posterior, device))
        deviations = weight_sets.centred(network, independent(posterior), device)
        means, spreads = weight_sets.mean_weights(network, device), weight_sets.marginal(network, posterior, device)
        return ExpectationByTails(bounds, engine, posterior, means, deviations, spreads)

    @property
    def quick(self) -> ExpectationByTails:
        """This method with the single budget 1e-5: looser bounds in a third of the time or less, because in a
        large network each budget has walks of its own."""
        return replace(self, budgets=(1e-5,))

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; outputs (N or 1, R, m), inputs alike or None."""
        outputs = outputs.expand(len(lower), -1, -1)
        sure = self.bounds.closed(self.means, lower, upper, outputs, None, names_of(self.posterior))[0]
        budgets = lower.new_tensor(self.budgets)
        value = self.engine.expectations(
            self.means, self.deviations, (lower, upper), outputs, sure, self._off(lower, upper, outputs, budgets),
            budgets, thorough=self.thorough,
        ).amax(0).maximum(sure)  # fmt: skip
        if inputs is None:
            return value
        moved = over_box(inputs, lower, upper)[0]
        return value + moved - 2 * UNIT * (value.abs() + moved.abs())

    def _off(self, lower: Tensor, upper: Tensor, outputs: Tensor, budgets: Tensor) -> Tensor:
        """(K, N, R): at least |E[V; not G]| where P(not G) is at most a budget, infinite where no norm is known."""
        independent, found = isinstance(self.posterior, GaussianDiagonal), []
        for order in _NORMS:
            norms = output_norms(
                self.engine.network, self.spreads, lower, upper, independent=independent, order=order
            )  # fmt: skip
            each = torch.where(outputs != 0, outputs.abs() * norms[:, None], 0.0)
            found.append(
                budgets[:, None, None] ** (1 - 1 / order) * (each.sum(-1) * (1 + gamma(outputs.shape[-1] + 16)))
            )
        return torch.stack(found).amin(0)
