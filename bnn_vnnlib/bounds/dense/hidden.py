"""A hidden ReLU layer over boxes: linear bounds of c . G(x), G_k(x) = E relu(a_k(x)), a_k(x) ~ N(m_k(x), s_k(x)^2).

1. `CentredForm`: linear lower bounds of functions over boxes, written from the centres of the boxes.

2. `HiddenRanges`. g(m, s) = E relu(N(m, s^2)) is convex and nondecreasing in (m, s), m is linear in x, s^2 = q is
quadratic.
Below, for any tau:  g >= Phi(tau) m + phi(tau) s,  and  s(x) s_c >= q_c + p . (x - x_c)  with p_j = v_j x_cj, v the
variances (Cauchy and Schwarz), so s >= (q_c + p . (x - x_c)) / sigma for every sigma >= s_c.
Above:  g <= beta m + gamma s + kappa on the rectangle of (m, s), kappa from its four corners, gamma >= 0;
s <= sigma / 2 + q / (2 sigma) for every sigma > 0, and x_j^2 <= x_cj^2 + 2 x_cj (x_j - x_cj) + r_j^2.
The signs of c decide which is used, before x is minimised over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import LEAST, ROUND, cdf, density
from bnn_vnnlib.gaussian.relu import excess_above_mean, mean_plane, relu_mean
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import TINY, UNIT, gamma

# 1. Linear functions over boxes


@dataclass(frozen=True, eq=False)
class CentredForm:
    """f(x) >= value + slope . (x - center) for |x - center| <= radius: value (.., R), slope (.., R, n)."""

    value: Tensor
    slope: Tensor

    def reach(self, radius: Tensor) -> Tensor:
        """How far the line moves from its value over |x - center| <= radius (.., n), rounded up: (.., R)."""
        moved = (self.slope.abs() @ radius[..., None])[..., 0]
        return moved * (1 + gamma(2 * radius.shape[-1])) + TINY

    def minimum(self, radius: Tensor) -> Tensor:
        """Minima (.., R) of the lines over boxes of this radius, rounded down."""
        reach = self.reach(radius)
        return (self.value - reach - 2 * UNIT * (self.value.abs() + reach)).nan_to_num(-torch.inf, torch.inf)


def mixed(weights: Tensor, lines: CentredForm, radius: Tensor) -> CentredForm:
    """sum_l weights_rl lines_l, weights >= 0: (.., R, L) over lines (.., L) -> (.., R); roundings are paid for."""
    used = torch.where(weights > 0, weights, 0.0)
    value, slope = lines.value.nan_to_num(0.0), lines.slope.nan_to_num(0.0)
    size = value.abs() + lines.reach(radius).nan_to_num(0.0)
    total = (used @ value[..., None])[..., 0]
    error = 2 * gamma(2 * weights.shape[-1] + 8) * (used @ size[..., None])[..., 0] + TINY
    unusable = (used > 0) & ~torch.isfinite(lines.value)[..., None, :]
    return CentredForm(torch.where(unusable.any(-1), -torch.inf, total - error), used @ slope)


# 2. The layer


@dataclass(frozen=True, eq=False)
class HiddenRanges:
    """Over P boxes |x - center| <= radius (P, n), all rounded outward; (P, H) each.

    middle, slack : m at the centre and the error of it; low, high : of m over the box; least, most : of s over the box;
    square, square_above : q at the centre, from below (where x^2 underflows) and above, up to a relative gamma
    """

    layer: DenseLayer
    center: Tensor
    radius: Tensor
    middle: Tensor
    slack: Tensor
    low: Tensor
    high: Tensor
    least: Tensor
    most: Tensor
    square: Tensor
    square_above: Tensor

    @cached_property
    def mean_above(self) -> Tensor:
        """Upper bound on G over the box."""
        return relu_mean(self.high, self.most) + ROUND * (self.high.abs() + self.most) + LEAST

    @cached_property
    def excess(self) -> Tensor:
        """Upper bound on G - relu(m) over the box."""
        nearest = torch.where((self.low <= 0) & (self.high >= 0), 0.0, torch.minimum(self.low.abs(), self.high.abs()))
        return excess_above_mean(nearest, self.most)

    @property
    def _size(self) -> Tensor:
        """At least |m| + s, everywhere in the box."""
        return torch.maximum(self.low.abs(), self.high.abs()) + self.most

    @cached_property
    def _below(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Coefficients of m and of q / .., and the value at the centre: alpha, gamma / sigma, value."""
        relative = gamma(2 * self.center.shape[-1] + 8)
        sigma = torch.sqrt(self.square_above) * (1 + 2 * relative) + LEAST
        t = (self.middle / sigma).clamp(-40.0, 40.0)
        alpha, share = cdf(t), density(t) / sigma
        value = alpha * self.middle + share * self.square * (1 - 2 * relative)
        return alpha, share, value - self.slack - 2 * ROUND * self._size - LEAST, sigma

    @cached_property
    def _above(self) -> tuple[Tensor, Tensor, Tensor]:
        """The plane above G on (m, s): beta, gamma / sigma, and the value at the centre."""
        least, most = self.least.clamp(min=LEAST), self.most.clamp(min=LEAST)
        beta, gain, kappa = mean_plane(self.low, self.high, least, most)
        kappa, sigma = kappa + 4 * ROUND * self._size + LEAST, (least + most) / 2
        spread = self.square_above + (self.radius**2 + TINY) @ self.layer.variance.mT
        relative = 2 * gamma(2 * self.center.shape[-1] + 16)
        value = beta * self.middle + gain * (sigma / 2 + spread / (2 * sigma)) * (1 + relative) + kappa + self.slack
        return beta, gain / sigma, value

    def lines(self, weights: Tensor, constant: Tensor) -> CentredForm:
        """Linear lower bounds of weights . G(x) + constant; weights (R, H), constant (R,), exact or rounded once."""
        alpha, share, low, _ = self._below
        beta, gain, high = self._above
        up, down = weights.clamp(min=0.0), weights.clamp(max=0.0)
        value = low @ up.mT + high @ down.mT + constant
        of_mean = alpha[:, None] * up + beta[:, None] * down
        of_square = share[:, None] * up + gain[:, None] * down
        slope = of_mean @ self.layer.mean + (of_square @ self.layer.variance) * self.center[:, None]
        size = 8 * self._size + torch.maximum(low.abs(), high.abs())
        relative = gamma(4 * sum(self.layer.mean.shape) + 64)
        lost = (
            TINY * len(self.layer.bias) * ((1 + self.center.abs()) * (1 + self.radius)).sum(-1, keepdim=True)
        )  # underflow
        error = relative * (size @ weights.abs().mT + constant.abs() + value.abs()) + lost + LEAST
        return CentredForm(value - error, slope)


def hidden(layer: DenseLayer, lower: Tensor, upper: Tensor) -> HiddenRanges:
    """The layer over boxes (P, n)."""
    center = (lower + upper) / 2
    radius = torch.maximum(upper - center, center - lower) * (1 + 2 * UNIT)
    relative = gamma(2 * center.shape[-1] + 16)
    middle = center @ layer.mean.mT + layer.bias
    slack = relative * (center.abs() @ layer.mean.abs().mT + layer.bias.abs()) + TINY
    reach = (radius @ layer.mean.abs().mT) * (1 + relative) + 2 * slack
    across = (lower <= 0) & (upper >= 0)
    near = torch.where(across, 0.0, torch.minimum(lower.abs(), upper.abs()))
    far = torch.maximum(lower.abs(), upper.abs())

    def squared(square: Tensor) -> Tensor:
        return square @ layer.variance.mT + layer.bias_variance

    least = torch.sqrt(squared((near**2 - TINY).clamp(min=0.0))) * (1 - relative)
    most = torch.sqrt(squared(far**2 + TINY)) * (1 + relative) + LEAST
    return HiddenRanges(
        layer, center, radius, middle, slack, middle - reach, middle + reach, least, most,
        squared((center**2 - TINY).clamp(min=0.0)), squared(center**2 + TINY),
    )  # fmt: skip
