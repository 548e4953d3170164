"""The expected softmax of a network of any depth, by the tails of its margins.

Guarantee: sound with probability 1, rounding included.
Method (layer cake): off an event of probability delta, and off {some x with f_i - f_j <= t_j}, of probability p_j each
(`bounds.tails`), softmax_i >= v = 1 / (1 + sum_j exp(-t_j)) for all x. So P(softmax_i >= v everywhere) is at least
1 - delta - sum_j p_j, and E softmax_i is at least the integral of such bounds over v. Of a row only the class with the
largest coefficient is bounded, the others count as probabilities >= 0:  c . D >= min c + (max c - min c) D_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.rounding import ELEMENTARY, UNIT
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.robustness.outputs import over_box

BUDGETS = (1e-2, 1e-4, 1e-7)
"""Probabilities delta."""

THRESHOLDS = (-3.0, -1.5, -0.75, -0.25, 0.0, 0.25, 0.75, 1.5, 2.5, 4.0, 6.0, 9.0, 14.0)
"""Values of t that are tried."""

LEVELS = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3)
"""For each level and class, t_j is the largest threshold with p_j below it."""


@dataclass(frozen=True, eq=False)
class SoftmaxTails:
    """A `decision.method.Method` for Gaussian weights and outputs under a softmax."""

    engine: TailEngine
    means: WeightBoxes
    deviations: WeightBoxes

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; outputs (N or 1, R, m), inputs alike or None."""
        outputs = outputs.expand(len(lower), -1, -1)
        m, best = outputs.shape[-1], outputs.argmax(-1)
        item = torch.arange(len(lower), device=lower.device)[:, None].expand_as(best)
        target, place = (item * m + best).unique(return_inverse=True)
        expected = self._class(lower[target // m], upper[target // m], target % m, m)[place]
        least, most = outputs.amin(-1), outputs.amax(-1)
        value = least + (most - least) * expected
        value = value - 8 * UNIT * (least.abs() + most.abs())
        if inputs is None:
            return value
        moved = over_box(inputs, lower, upper)[0]
        return value + moved - 2 * UNIT * (value.abs() + moved.abs())

    def _class(self, lower: Tensor, upper: Tensor, index: Tensor, m: int) -> Tensor:
        """(P,) lower bounds on D_i over boxes (P, n)."""
        unit = torch.eye(m, dtype=torch.float64, device=lower.device)
        pairs = (unit[:, None] - unit)[~unit.bool()].reshape(m, m - 1, m)
        t = lower.new_tensor(THRESHOLDS)
        rows = pairs[index].repeat_interleave(len(t), 1)
        bound = t.repeat(m - 1)[None].expand(len(lower), -1)
        budgets = lower.new_tensor(BUDGETS)
        failure = self.engine.failures(self.means, self.deviations, (lower, upper), rows, None, bound, budgets)
        return _layer_cake(failure.unflatten(-1, (m - 1, len(t))), t, budgets)


def _layer_cake(failure: Tensor, t: Tensor, budgets: Tensor) -> Tensor:
    """(P,) from failure (K, P, m - 1, T): the best budget."""
    levels = failure.new_tensor(LEVELS)
    fits = failure[..., None, :] <= levels[:, None]  # (K, P, m - 1, L, T)
    chosen = torch.where(fits, torch.arange(len(t), device=t.device), -1).amax(-1)
    usable = (chosen >= 0).all(-2)
    spent = failure.gather(-1, chosen.clamp(min=0)).sum(-2) + budgets[:, None, None]  # (K, P, L)
    up = 1 + 4 * (failure.shape[-2] + 8) * UNIT
    mass = torch.where(usable, 1 - spent * up, 0.0).clamp(min=0.0)
    total = 1 + torch.exp(-t[chosen.clamp(min=0)]).sum(-2) * (1 + ELEMENTARY) * up
    value = torch.where(usable, 1 / total * (1 - 8 * UNIT), 0.0)
    value, order = value.sort(-1)
    mass = mass.gather(-1, order).flip(-1).cummax(-1).values.flip(-1)  # of any event that gives at least this value
    steps = value - torch.nn.functional.pad(value, (1, 0))[..., :-1]
    return ((steps * mass).sum(-1) * (1 - 4 * (len(LEVELS) + 4) * UNIT)).amax(0).clamp(min=0.0)
