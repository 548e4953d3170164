"""The last layer as rows see it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.characteristic import half_line
from bnn_vnnlib.gaussian.normal import LEAST
from bnn_vnnlib.gaussian.relu import log_half_moment
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import PAID, UP, gamma


@dataclass(frozen=True, eq=False)
class Weights:
    """The last layer as A rows see it: D_j ~ N(mean, dev^2) (A, H), B ~ N(bias, bias_dev^2) (A,); all independent."""

    mean: Tensor
    dev: Tensor
    bias: Tensor
    bias_dev: Tensor

    def rows(self, some: Tensor) -> Weights:
        """The last layer as the rows `some` (indices or a mask) see it."""
        return Weights(*(part[some] for part in vars(self).values()))


def last_weights(last: DenseLayer, outputs: Tensor, bound: Tensor) -> tuple[Weights, Tensor, Tensor]:
    """The last layer as the rows outputs . f(x) - bound see it, (A, m) and (A,).

    Returns
    -------
    tuple of (Weights, Tensor, Tensor)
        also (A,): a bound on the total variation that the rounding of D's moments costs, and whether they are served
    """
    a, size, off = outputs, outputs.abs(), gamma(outputs.shape[1] + 8)
    # products first: a square of a small coefficient underflows, though the weight's deviation may be large
    dev = torch.sqrt(((size[..., None] * torch.sqrt(last.variance)) ** 2).sum(1))
    center = a @ last.bias - bound - off * (size @ last.bias.abs() + bound.abs())
    spread = torch.sqrt(((size * torch.sqrt(last.bias_variance)) ** 2).sum(1))
    blur = (off * (size @ last.mean.abs()) / dev.clamp(min=1e-280) + off).sum(1) + off
    good = (dev > LEAST).all(1) & (blur < 1e-3) & torch.isfinite(center)
    return Weights(a @ last.mean, dev, center, spread), blur * UP, good


@dataclass(frozen=True, eq=False)
class Sides:
    """Independent terms of A rows, of their own Gaussian variables delta ~ N(0, dev^2): low delta where delta > 0, and
    high delta where delta < 0; 0 <= low <= high, dev (A, K) each.
    """

    low: Tensor
    high: Tensor
    dev: Tensor

    def rows(self, some: Tensor) -> Sides:
        """The terms of the rows `some` (indices or a mask)."""
        return Sides(self.low[some], self.high[some], self.dev[some])

    def scaled(self, share: Tensor) -> Sides:
        """Below themselves over 1 + t, where 1 / (1 + t) is within share (A,) of 1."""
        low, high = self.low * (1 - share[:, None]), self.high * (1 + share[:, None])
        return Sides(low - PAID * low.abs(), high + PAID * high.abs(), self.dev)

    def transform(self, waves: Tensor) -> Tensor:
        """(A, W): E e^{i w (sum of terms)}, up to 3 TERM a term."""
        if not self.dev.shape[1]:  # as most rows: a product of nothing
            return torch.ones_like(waves, dtype=torch.complex128)
        w, dev = waves[:, None], self.dev.clamp(min=LEAST)[..., None]
        zero = torch.zeros_like(dev)
        plus, minus = (half_line(w * part[..., None], zero, zero, dev) for part in (self.low, self.high))
        return (plus + minus.conj_physical()).prod(1)

    def log_moment(self, rate: Tensor) -> Tensor:
        """(A,): log E e^{-rate (sum of terms)}, rate (A,), from above."""
        x = rate[:, None] * self.dev
        zero, one = torch.zeros_like(x), torch.ones_like(x)
        plus, minus = (log_half_moment(x * side, zero, zero, one) for side in (-self.low, self.high))
        return (torch.logaddexp(plus, minus) + 1e-12 * (1 + plus.abs() + minus.abs())).sum(1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """(A,), (A,): mean and variance, not rounded."""
        mean = (self.low - self.high) * self.dev / math.sqrt(2 * math.pi)
        return mean.sum(1), ((self.low**2 + self.high**2) / 2 * self.dev**2 - mean**2).sum(1)


def no_sides(rows: Tensor) -> Sides:
    """No terms, for rows (A,)."""
    return Sides(*(rows.new_zeros(len(rows), 0) for _ in range(3)))
