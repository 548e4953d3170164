"""The expected softmax of a network of any depth, by the tails of its margins.

Guarantee: sound with probability 1, rounding included.
Method (layer cake): off an event of probability delta, and off {some x with f_i - f_j <= t_j}, of probability p_j each
(`bounds.tails`), softmax_i >= v = 1 / (1 + sum_j exp(-t_j)) for all x. So P(softmax_i >= v everywhere) is at least
1 - delta - sum_j p_j, and E softmax_i is at least the integral of such bounds over v.
The other way, softmax_i <= 1 / (1 + exp(f_j - f_i)) for any j, and off {some x with f_j - f_i <= t} that is at most
s(t) = 1 / (1 + exp(t)): with thresholds t_1 < .. < t_T of probabilities q_k, delta included, and s(t_0) = 1,
    D_i <= s(t_T) + sum_k (s(t_(k-1)) - s(t_k)) min(1, q_k).
Classes that are not bounded have 0 and 1 (`softmax.rows_over_classes`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.methods.decision.softmax.softmax import rows_over_classes
from bnn_vnnlib.network.network import Gaussian, Network
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import over_box
from bnn_vnnlib.rounding import ELEMENTARY, UNIT
from bnn_vnnlib.system.clock import Deadline

_BUDGETS = (1e-2, 1e-4, 1e-7)
"""Probabilities delta that the ranges may fail with; the best one counts."""

_THRESHOLDS = (
    -6.0, -4.5, -3.5, -3.0, -2.5, -2.0, -1.75, -1.5, -1.25, -1.0, -0.85, -0.7, -0.6, -0.5, -0.4, -0.32, -0.26, -0.2,
    -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.26, 0.32, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.25, 1.5, 1.75, 2.0,
    2.5, 3.0, 3.5, 4.5, 6.0, 7.5, 9.0, 11.0, 14.0,
)  # fmt: skip
"""Thresholds t of the margins at which the tails are bounded."""

_LEVELS = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 0.03, 0.06, 0.1, 0.15, 0.22, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Levels of p_j: at each of them and for each class j, t_j is the largest threshold whose p_j is within the level."""

ALL_UP_TO = 12
"""Number of classes up to which all of them are bounded; of more, only the one that each row counts most."""


@dataclass(frozen=True, eq=False)
class SoftmaxTails:
    """A `decision.method.RowMethod` for Gaussian weights and outputs under a softmax, with these budgets."""

    engine: TailEngine
    means: WeightBoxes
    deviations: WeightBoxes
    budgets: tuple[float, ...] = _BUDGETS

    name: ClassVar[str] = "tails"

    @staticmethod
    def over(network: Network, posterior: Gaussian, device: torch.device, deadline: Deadline) -> SoftmaxTails:
        """The method for a network with a Gaussian posterior."""
        engine = TailEngine(network, deadline, correlation=correlation(network, posterior, device))
        deviations = weight_sets.centred(network, independent(posterior), device)
        return SoftmaxTails(engine, weight_sets.mean_weights(network, device), deviations)

    @property
    def quick(self) -> SoftmaxTails:
        """This method with the single budget 1e-4: looser bounds in a third of the time or less, because in a
        large network each budget has walks of its own."""
        return replace(self, budgets=(1e-4,))

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; outputs (N or 1, R, m), inputs alike or None."""
        outputs = outputs.expand(len(lower), -1, -1)
        classes = _classes(outputs)
        low, high = self._bounds(lower, upper, classes, outputs.shape[-1])
        low = torch.zeros_like(outputs[:, 0]).scatter(1, classes, low)
        high = torch.ones_like(outputs[:, 0]).scatter(1, classes, high)
        value = rows_over_classes(outputs, low, high)
        if inputs is None:
            return value
        moved = over_box(inputs, lower, upper)[0]
        return value + moved - 2 * UNIT * (value.abs() + moved.abs())

    def _bounds(self, lower: Tensor, upper: Tensor, classes: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """(N, C) lower and upper bounds on D_i over boxes (N, n), i in classes (N, C)."""
        if m == 1:  # the softmax of one output is 1
            one = torch.ones_like(classes, dtype=lower.dtype)
            return one, one
        unit = torch.eye(m, dtype=torch.float64, device=lower.device)
        off = ~unit.bool()
        pairs = (unit[:, None] - unit)[off].reshape(m, m - 1, m)
        t, budgets = lower.new_tensor(_THRESHOLDS), lower.new_tensor(self.budgets)
        rows = pairs[classes].flatten(1, 2)
        failure = self.engine.levels(self.means, self.deviations, (lower, upper), rows, t, budgets)
        failure = failure.flip(-1).cummin(-1).values.flip(-1)  # a bound at a larger threshold holds at all smaller ones
        low = _layer_cake(failure.unflatten(2, (-1, m - 1)), t, budgets)
        if m > ALL_UP_TO:
            return low, torch.ones_like(low)
        above = failure.new_ones(len(budgets), len(lower), m, m)
        above[:, :, off] = _above(failure, t, budgets)
        return low, above.amin((0, 2))


def _classes(outputs: Tensor) -> Tensor:
    """(N, C): classes to be bounded; a class may be listed for the sake of other items."""
    count = outputs.shape[-1]
    if count <= ALL_UP_TO:
        return torch.arange(count, device=outputs.device).expand(len(outputs), -1)
    wanted = torch.zeros_like(outputs[:, 0]).scatter(1, outputs.argmax(-1), 1.0)
    return wanted.argsort(dim=-1, descending=True, stable=True)[:, : int(wanted.sum(-1).amax())]


def _layer_cake(failure: Tensor, t: Tensor, budgets: Tensor) -> Tensor:
    """(N, C) lower bounds from failure (K, N, C, m - 1, T), which grows with t: the best budget."""
    levels = failure.new_tensor(_LEVELS).expand(*failure.shape[:-1], -1).contiguous()
    chosen = torch.searchsorted(failure.contiguous(), levels, right=True) - 1  # (K, N, C, m - 1, L)
    usable = (chosen >= 0).all(-2)
    chosen = chosen.clamp(min=0)
    spent = failure.gather(-1, chosen).sum(-2) + budgets[:, None, None, None]  # (K, N, C, L)
    up = 1 + 4 * (failure.shape[-2] + 8) * UNIT
    mass = torch.where(usable, 1 - spent * up, 0.0).clamp(min=0.0)
    total = 1 + torch.exp(-t[chosen]).sum(-2) * (1 + ELEMENTARY) * up
    value = torch.where(usable, 1 / total * (1 - 8 * UNIT), 0.0)
    value, order = value.sort(-1)
    mass = mass.gather(-1, order).flip(-1).cummax(-1).values.flip(-1)  # of any event that gives at least this value
    steps = value - torch.nn.functional.pad(value, (1, 0))[..., :-1]
    return ((steps * mass).sum(-1) * (1 - 4 * (len(_LEVELS) + 4) * UNIT)).amax(0).clamp(min=0.0)


def _above(failure: Tensor, t: Tensor, budgets: Tensor) -> Tensor:
    """(K, N, R) upper bounds on D_j from the failures (K, N, R, T) of rows f_i - f_j, which grow with t."""
    share = 1 / (1 + torch.exp(t))
    steps = torch.cat([1 - share[:1], share[:-1] - share[1:]])
    mass = (failure + budgets[:, None, None, None]).clamp(max=1.0)
    total = share[-1] + (steps * mass).sum(-1)
    return (total + (len(t) + 8) * (8 * UNIT + 4 * ELEMENTARY)).clamp(max=1.0)
