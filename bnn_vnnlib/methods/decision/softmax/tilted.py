"""The expected softmax behind one hidden ReLU layer by tilting: for points and small boxes, where deviations are large.

Guarantee: sound with probability 1, rounding included.
Let S = sum_l exp(f_l - f_i), so that softmax_i = 1 / S, and Y = exp(g . f) for any row g. Cauchy and Schwarz give
    (E Y)^2 = (E[S^(-1/2) S^(1/2) Y])^2 <= E[1 / S] E[S Y^2],   hence
    D_i >= (E exp(g . f))^2 / sum_l E exp((2 g + e_l - e_i) . f).
It is an equality where Y is proportional to 1 / S, so g is taken along the gradient of log softmax_i at scaled means.
Upper bounds are what the lower bounds of the other classes leave.

The moments. Given the hidden outputs z, a row u . f is Gaussian, and its log E exp is sum_k f_k(z_k) + constant with
f_k(z) = alpha z + beta z^2, alpha = u W, beta = u^2 sig^2 / 2, and independent z_k = relu(N(m_k, s_k^2)).
Over a box, and with rounding, (m, s) is known up to |m' - m| <= d, |s' - s| <= e s. Then a' = m' + s' N is at most
D = d + e |m| away from r (m + s N), r = s' / s, and z' from r z, since relu is 1-Lipschitz and positively homogeneous.
With 2 r z D <= D (r^2 z^2 + 1) and e < 1 that leaves
    f(z') <= (alpha + e |alpha|) z + beta (1 + e)^2 (1 + D) z^2 + |alpha| D + beta (D + D^2),
    f(z') >= (alpha - e |alpha|) z + beta max(0, (1 - e)^2 - D) z^2 - |alpha| D - beta D.
The moments of these at (m, s) have closed forms (`exponentials`). A neuron without noise is a number in a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import typical
from bnn_vnnlib.bounds.dense.hidden import Hidden, Lines, hidden
from bnn_vnnlib.gaussian.normal import LEAST
from bnn_vnnlib.gaussian.relu import log_moment, log_moment_below
from bnn_vnnlib.methods.decision.softmax.softmax import Classes
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import ELEMENTARY, TINY, UNIT, gamma

SCALES = (1.0, 0.6, 0.3)
"""Means are scaled by these before the gradient is taken: the softmax of a noisy network is flatter than its mean's."""

TILTS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Lengths of g along that gradient; 0 is tried as well (Jensen's inequality)."""

NARROW = 0.1
"""Boxes over which a deviation varies more than that (less than 1) are left alone, and"""

DEAR = 2.0
"""those whose width costs more than about that in log D."""

GRAIN = 2.0**20
"""Rows g are multiples of 1 / GRAIN, so that 2 g + e_l - e_i is exact."""


@dataclass(frozen=True, eq=False)
class Tilted:
    """A `method.Source`."""

    layers: DenseChain

    name: ClassVar[str] = "closed forms"

    @property
    def count(self) -> int:
        """Classes."""
        return self.layers.last.outputs

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        combinations = 1 + len(SCALES) * len(TILTS)
        return 8 * combinations * self.count * (1 + self.count) * self.layers.first.outputs

    def value(self, x: Tensor) -> None:
        """There is no closed form."""

    def context(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Nothing."""
        return lower.new_zeros(len(lower), 0)

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[Lines, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n)."""
        m = self.count
        low = lower.new_zeros(len(lower), m)
        neurons = hidden(self.layers.first, lower, upper)
        small = torch.nonzero(self._cost(neurons) < DEAR)[:, 0]
        if len(small):
            low[small] = self._below(lower[small], upper[small])
        high = 1 - (low.sum(-1, keepdim=True) - low) + 4 * m * UNIT
        flat = lower.new_zeros(len(lower), m, lower.shape[-1])
        found = Classes(Lines(low, flat), Lines(-high, flat), low, high, (upper - lower) / 2)
        return found.rows(outputs)

    def _cost(self, neurons: Hidden) -> Tensor:
        """(P,): about what the width of a box costs; nothing rests on it."""
        weights = self.layers.last.mean
        return ((neurons.high - neurons.low) / 2) @ (weights.amax(0) - weights.amin(0))

    def _below(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, m): D_i from below, at least 0."""
        m = self.count
        g = _tilts(typical(self.layers, (lower + upper) / 2)[-1].m)
        unit = torch.eye(m, dtype=g.dtype, device=g.device)
        top = 2 * g[..., None, :] + (unit - unit[:, None])  # (P, C, m, m, m): 2 g + e_l - e_i
        moments = _Moments(self.layers, hidden(self.layers.first, lower, upper))
        tilted = moments.below(g.flatten(1, 2)).unflatten(1, g.shape[1:3])
        total = torch.logsumexp(moments.above(top.flatten(1, 3)).unflatten(1, top.shape[1:4]), -1)
        value = 2 * tilted - total
        value = value - 16 * (m + 8) * UNIT * (1 + 2 * tilted.abs() + total.abs()) - 4 * ELEMENTARY
        value = value.nan_to_num(-torch.inf, -torch.inf, -torch.inf).amax(1)
        return (torch.exp(value.clamp(max=0.0)) * (1 - ELEMENTARY)).clamp(min=0.0)


def _tilts(mean: Tensor) -> Tensor:
    """Rows g (P, C, m, m) of all classes for expected logits of about `mean` (P, m); any are sound."""
    scales = mean.new_tensor(SCALES)
    lengths = mean.new_tensor(TILTS)
    p = torch.softmax(scales[:, None] * mean[:, None], -1)
    gradient = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device) - p[:, :, None]  # (P, S, m, m)
    g = (lengths[:, None, None, None] * gradient[:, None]).flatten(1, 2)
    return torch.cat([torch.zeros_like(g[:, :1]), (g * GRAIN).round() / GRAIN], 1)


@dataclass(frozen=True, eq=False)
class _Moments:
    """log E exp(u . f) over boxes, from both sides, for rows u (P, R, m)."""

    layers: DenseChain
    neurons: Hidden

    def above(self, rows: Tensor) -> Tensor:
        """(P, R), rounded up; inf where it is out of reach."""
        return self._sum(rows, 1.0)

    def below(self, rows: Tensor) -> Tensor:
        """(P, R), rounded down; -inf where it is out of reach."""
        return self._sum(rows, -1.0)

    def _sum(self, rows: Tensor, sign: float) -> Tensor:
        last = self.layers.last
        relative = gamma(4 * rows.shape[-1] + 16)
        alpha, size = rows @ last.mean, rows.abs() @ last.mean.abs()
        beta = (rows * rows) @ last.variance / 2
        alpha = alpha + sign * (relative * size + TINY)  # z >= 0: the moment grows with both coefficients
        beta = (beta * (1 + sign * relative) + sign * TINY).clamp(min=0.0)
        terms = torch.where(self._fixed, self._numbers(alpha, beta, sign), self._noisy(alpha, beta, sign))
        shift = rows @ last.bias + (rows * rows) @ last.bias_variance / 2
        paid = rows.abs() @ last.bias.abs() + (rows * rows) @ last.bias_variance / 2
        lost = gamma(terms.shape[-1] + 8) * terms.abs().sum(-1) + relative * paid + LEAST
        total = terms.sum(-1) + shift
        return total + sign * (lost + 4 * UNIT * total.abs())

    @property
    def _fixed(self) -> Tensor:
        """(H,): neurons without noise."""
        first = self.layers.first
        return (first.variance == 0).all(-1) & (first.bias_variance == 0)

    def _numbers(self, alpha: Tensor, beta: Tensor, sign: float) -> Tensor:
        """alpha z + beta z^2 for z in a range: at its ends, term by term."""
        low, high = (side.clamp(min=0.0)[:, None] for side in (self.neurons.low, self.neurons.high))
        end = torch.where((alpha >= 0) == (sign > 0), high, low)
        square = high if sign > 0 else low
        value = alpha * end + beta * square * square
        return value + sign * (8 * UNIT * ((alpha * end).abs() + beta * square * square) + LEAST)

    def _noisy(self, alpha: Tensor, beta: Tensor, sign: float) -> Tensor:
        n = self.neurons
        m, s = ((a + b)[:, None] / 2 for a, b in ((n.low, n.high), (n.least, n.most)))
        apart = torch.maximum(n.high[:, None] - m, m - n.low[:, None]) * (1 + 4 * UNIT) + TINY
        e = torch.maximum(n.most[:, None] - s, s - n.least[:, None]) / s * (1 + 8 * UNIT) + 4 * UNIT
        reach = (apart + e * m.abs()) * (1 + 8 * UNIT) + LEAST
        if sign > 0:
            square, constant = (1 + e) ** 2 * (1 + reach) * (1 + 16 * UNIT), reach + reach * reach
        else:
            square, constant = ((1 - e) ** 2 - reach - 16 * UNIT).clamp(min=0.0), reach
        first = alpha + sign * e * alpha.abs() * (1 + 8 * UNIT) + sign * 4 * UNIT * alpha.abs()
        moment = (log_moment if sign > 0 else log_moment_below)(first, beta * square, m, s)
        paid = (alpha.abs() * reach + beta * constant) * (1 + 16 * UNIT) + LEAST
        value = moment + sign * (paid + 4 * UNIT * (moment.abs() + paid))
        return torch.where(e < NARROW, value, sign * torch.inf).nan_to_num(sign * torch.inf, torch.inf, -torch.inf)
