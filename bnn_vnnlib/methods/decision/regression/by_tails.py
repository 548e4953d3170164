"""The expected output of a network of any depth and graph, by the tails of its rows.

Guarantee: sound with probability 1, rounding included.
Method (layer cake). V = c . f(x) for one x of the box; thresholds u_1 < .. < u_T; F_k bounds P(V <= u_k for some x of
the box), what the ranges fail with included, and grows with k.
1. Where V >= a surely (`OutputBounds.closed`), V >= a + sum_k (u_k - u_(k-1)) 1{V > u_k} with u_0 = a <= u_1, so that
   E V >= a + sum_k (u_k - u_(k-1)) (1 - F_k).
2. Without such an a, for any s, V >= u_s - (u_s - V)^+ + sum_(k > s) (u_k - u_(k-1)) 1{V > u_k}, and by Cauchy and
   Schwarz E (u_s - V)^+ <= sqrt(E (u_s - V)^2) sqrt(P(V <= u_s)) <= (||V|| + |u_s|) sqrt(F_s), ||V|| = sqrt(E V^2).
The better of both, for the best budget and s.
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
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import names_of, sample
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, Network
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.rounding import SPECIAL, TINY, UNIT, gamma

_BUDGETS = (1e-2, 1e-4, 1e-7, 1e-11)
"""Probabilities that the ranges may fail with."""

_OFFSETS = (
    -1e3, -300.0, -100.0, -60.0, -40.0, -30.0, -24.0, -19.0, -15.0, -12.0, -10.0, -8.5, -7.2, -6.2, -5.4, -4.7, -4.1,
    -3.6, -3.2, -2.8, -2.4, -2.0, -1.7, -1.4, -1.1, -0.8, -0.5, -0.25, 0.0, 0.25, 0.5, 0.8, 1.1, 1.4, 1.7, 2.0, 2.4,
    2.8, 3.2, 3.6, 4.1, 4.7, 5.4,
)  # fmt: skip
"""Thresholds, from the mean at the centre of the box on, in standard deviations of drawn networks there."""

_DRAWN = 64
"""Networks behind that mean and deviation, which are estimates: they place thresholds, and no bound rests on them."""


@dataclass(frozen=True, eq=False)
class ExpectationByTails:
    """A `decision.method.RowMethod` for Gaussian weights and outputs as they are."""

    bounds: OutputBounds
    engine: TailEngine
    posterior: Gaussian
    means: WeightBoxes
    deviations: WeightBoxes
    spreads: WeightBoxes

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
        u = torch.maximum(self._thresholds(lower, upper, outputs), sure[..., None])
        budgets = u.new_tensor(_BUDGETS)
        fails = self.engine.levels(self.means, self.deviations, (lower, upper), outputs, u, budgets)
        fails = (fails + budgets[:, None, None, None]) * (1 + 4 * UNIT)
        value = layer_cake(u, fails, sure, self._norm(lower, upper, outputs)).amax(0)
        value = value.nan_to_num(-torch.inf, neginf=-torch.inf)
        if inputs is None:
            return value
        moved = over_box(inputs, lower, upper)[0]
        return value + moved - 2 * UNIT * (value.abs() + moved.abs())

    def _thresholds(self, lower: Tensor, upper: Tensor, outputs: Tensor) -> Tensor:
        """Thresholds (N, R, T) at which the rows' tails are bounded, in ascending order."""
        center, network = lower + (upper - lower) / 2, self.engine.network
        drawn = sample(network, self.posterior, _DRAWN, torch.Generator().manual_seed(0))
        params = {name: values.to(center) for name, values in drawn.items()}
        y = evaluate(network, center, params) if params else evaluate(network, center)[None]
        rows = (y[..., None, :] * outputs).sum(-1)  # (S, N, R)
        mean = rows.mean(0).nan_to_num(0.0, 0.0, 0.0)
        unit = rows.std(0, correction=0).nan_to_num(1.0, 1.0, 1.0) + 1e-9 * (1 + mean.abs())
        return mean[..., None] + unit[..., None] * mean.new_tensor(_OFFSETS)

    def _norm(self, lower: Tensor, upper: Tensor, outputs: Tensor) -> Tensor:
        """(N, R): at least ||V||, infinite where it is not known."""
        independent = isinstance(self.posterior, GaussianDiagonal)
        norms = output_norms(self.engine.network, self.spreads, lower, upper, independent=independent)
        each = torch.where(outputs != 0, outputs.abs() * norms[:, None], 0.0)
        return each.sum(-1) * (1 + gamma(outputs.shape[-1] + 4))


def layer_cake(u: Tensor, fails: Tensor, sure: Tensor, norm: Tensor) -> Tensor:
    """Lower bounds (K, N, R) on E V.

    Parameters
    ----------
    u : (N, R, T) thresholds, in ascending order, none below `sure`
    fails : (K, N, R, T) upper bounds on P(V <= u)
    sure, norm : (N, R) V >= sure, -inf where there is none; ||V|| <= norm, inf where it is not known
    """
    fails = fails.flip(-1).cummin(-1).values.flip(-1).clamp(max=1.0)  # what holds at a larger threshold does below
    layers = (u[..., 1:] - u[..., :-1]).clamp(min=0) * (1 - fails[..., 1:])
    by_range = sure + (u[..., 0] - sure).nan_to_num(0.0) * (1 - fails[..., 0]) + layers.sum(-1)
    above = torch.nn.functional.pad(layers.flip(-1).cumsum(-1).flip(-1), (0, 1))  # of the layers behind s
    spent = (norm[..., None] + u.abs()) * fails.sqrt() * (1 + SPECIAL)
    by_norm = (u + above - spent).nan_to_num(-torch.inf, neginf=-torch.inf).amax(-1)
    return torch.maximum(by_range, by_norm) - 8 * gamma(2 * u.shape[-1] + 16) * u.abs().amax(-1) - TINY
