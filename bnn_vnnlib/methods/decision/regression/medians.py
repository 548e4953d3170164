"""Medians of the outputs of a net with one hidden relu layer over boxes, from its law at the centre.

Let c be the centre of a box, x in it, and Delta = f(x) - f(c). For every v and d
    P(f(x) < v) <= P(f(c) < v + d) + P(Delta < -d),   P(Delta < -d) <= p  for d = -E Delta + sqrt(Var Delta (1/p - 1)),
by Cantelli's inequality. So v = t - d exceeds no median of f(x) if P(f(c) < t) < 1/2 - p: `gaussian.characteristic`
supplies t. The best of several p is taken; so is E f(x) - sd f(x) (Cantelli at p = 1/2), sd f(x) <= sd f(c) + sd Delta.

E Delta: `one_layer.ReluRows` bounds E f over the box and at c.
Var Delta <= sum_k mu_k^2 Var delta_k + sig_k^2 E delta_k^2, where
delta_k = relu(a_k(x)) - relu(a_k(c)) is independent of W_k, |delta| <= |V u|, u = x - c, V u ~ N(m, s^2) with
|m| <= |mu_V| . r, s^2 <= sig_V^2 . r^2; the output's bias cancels. With q the probability that one of both is on,
    E delta^2 <= (m^2 + s^2) min(1, sqrt(3 q))                 (Cauchy-Schwarz; E N^4 <= 3 (m^2 + s^2)^2),
and with q the probability that one of both is off,  Var delta <= E (delta - m)^2 <= s^2 (1 + 2 sqrt(3 q)) + 8 m^2 q,
since delta = V u where both are on, and |delta - m| <= |V u - m| + 2 |m| elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.walk import completed
from bnn_vnnlib.gaussian.characteristic import Sums, deviations, quantiles
from bnn_vnnlib.gaussian.normal import ABSOLUTE, cdf
from bnn_vnnlib.methods.decision.regression.one_layer import ReluRows, rows_over, squares, sums_at
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import UNIT, gamma
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

_TAIL_SHARES = (0.0, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2)
"""Values of p that are tried; 0 serves points."""

_UP = 1 + 1e-9
"""Factor that covers the roundings of sums of nonnegative products."""


@dataclass(frozen=True, eq=False)
class OneLayerMedians:
    """Lower bounds on the medians of the outputs and of their negatives."""

    chain: DenseChain
    deadline: Deadline

    name: ClassVar[str] = "closed forms"

    @staticmethod
    def serves(chain: DenseChain) -> bool:
        """Whether the chain has one hidden layer, of relu."""
        return len(chain.activations) == 1 and chain.kinds == {"relu"}

    def sides(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, 2 m): no median of f_j(x), then of -f_j(x), is below, for all x of the boxes (P, n)."""
        hidden, top = self.chain.layers
        step = at_once(8 * top.outputs * max(hidden.outputs, hidden.inputs))
        parts = torch.arange(len(lower), device=lower.device).split(step)
        found = self.deadline.reached(parts, lambda index: self._chunk(lower[index], upper[index]))
        return completed(found, (len(lower), 2 * top.outputs), -torch.inf, lower)

    def _chunk(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Bounds of `sides` for some boxes, by the law at the centre and how far f moves from there."""
        center = (lower + upper) / 2
        radius = torch.maximum(upper - center, center - lower) * (1 + 4 * UNIT)
        sums = self._sums(center)
        law = quantiles(sums, lower.new_tensor(_TAIL_SHARES)).unflatten(0, (len(center), -1))  # (P, 2 m, L)
        least, at = self._means(lower, upper), self._means(center, center)
        at = at.roll(at.shape[1] // 2, 1)  # E f(c) <= -(lower bound of -f)
        drift = (least + at).clamp(max=0.0) - 4 * UNIT * (least.abs() + at.abs())
        moves = self._variance(lower, upper, radius).repeat(1, 2)
        share = lower.new_tensor(_TAIL_SHARES[1:])
        down = torch.sqrt(moves[..., None] * (1 / share - 1)) * _UP - drift[..., None]
        value = torch.cat([law[..., :1], law[..., 1:] - down], -1)
        value[..., 0] = torch.where((radius == 0).all(-1)[:, None], value[..., 0], -torch.inf)
        value = value - 4 * UNIT * (law.abs() + value.abs())
        wide = deviations(sums).unflatten(0, (len(center), -1)) + torch.sqrt(moves) * _UP
        plain = least - wide - 8 * UNIT * (least.abs() + wide)
        best = torch.maximum(value.nan_to_num(-torch.inf, -torch.inf, -torch.inf).amax(-1), plain)
        return best.nan_to_num(-torch.inf, -torch.inf, -torch.inf)

    def _means(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, 2 m): lower bounds on E f_j and E -f_j over boxes."""
        hidden, top = self.chain.layers
        unit = torch.eye(top.outputs, dtype=lower.dtype, device=lower.device)
        both, count = torch.cat([unit, -unit]), len(lower)

        def each(part: Tensor) -> Tensor:
            return part.repeat_interleave(len(both), 0)

        size = torch.maximum(lower.abs(), upper.abs())
        rows = rows_over(hidden, top, "relu", 0.0, both.repeat(count, 1), None, each(size))
        return ReluRows(hidden).bound(rows, each(lower), each(upper)).value.reshape(count, -1)

    def _sums(self, center: Tensor) -> Sums:
        """The outputs and their negatives at the centres, as sums of independent terms: 2 m a centre."""
        sums, count = sums_at(self.chain.first, self.chain.last, center), len(center)

        def both(part: Tensor, sign: int = -1) -> Tensor:
            each = part.unflatten(0, (count, -1))
            return torch.cat([each, sign * each], 1).flatten(0, 1)

        return Sums(
            both(sums.m, 1), both(sums.s, 1), both(sums.mu), both(sums.sig, 1), both(sums.b), both(sums.sig_b, 1),
            both(sums.blur, 1),
        )  # fmt: skip

    def _variance(self, lower: Tensor, upper: Tensor, radius: Tensor) -> Tensor:
        """(P, m): upper bounds on Var(f(x) - f(c))."""
        hidden, top = self.chain.layers
        shift = radius @ (hidden.mean.abs() + hidden.slack).mT * _UP
        square = (radius**2) @ hidden.variance.mT * _UP
        center, reach = hidden.range(lower, upper)
        size = torch.maximum(lower.abs(), upper.abs())
        room = gamma(2 * hidden.inputs + 16) * (size @ hidden.mean.abs().mT + hidden.bias.abs())
        room = room * 2 + size @ hidden.slack.mT + hidden.bias_slack
        most = hidden.deviation(squares(lower, upper)[1]) * _UP + 1e-140
        on = _rarely((center + reach + room) * (1 - 1e-9) / most)
        off = _rarely(-(center - reach - room) * (1 - 1e-9) / most)
        second = (shift**2 + square) * (3 * on).sqrt().clamp(max=1.0)
        variance = torch.minimum(second, square * (1 + 2 * (3 * off).sqrt()) + 8 * shift**2 * off)
        mean = (top.mean.abs() + top.slack) ** 2
        return (variance @ mean.mT + second @ top.variance.mT) * _UP + 1e-280


def _rarely(t: Tensor) -> Tensor:
    """Upper bound on twice the largest Phi over what is at most t where that is below 0; else 1."""
    return torch.where(t < 0, 2 * cdf(t) * _UP + ABSOLUTE, torch.ones_like(t)).clamp(max=1.0)
