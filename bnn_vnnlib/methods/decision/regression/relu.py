"""Bounds on rows of a one-hidden-layer net with relu or leaky relu over boxes.

Below, for v_k >= 0 and any tau, any y:       g(m, s) >= Phi(tau) m + phi(tau) s          (see `special`)
    s(x) = |diag(sig) x, sig_b| >= (sum_j sig_j^2 y_j x_j + sig_b^2) / s(y)              (Cauchy-Schwarz).
With y the center and tau = t(y) it is the tangent there.
Above, for v_k < 0, on the rectangle [m] x [s] of the box and any beta in [0, 1], gamma in [0, .4]:
    g <= beta m + gamma s + kappa, kappa = the maximum of g - beta m - gamma s at the four corners (it is convex),
    s(x) <= s_0/2 + q(x) / (2 s_0) for any s_0 > 0,      x_j^2 <= (l + u) x_j - l u on [l, u].
The signed sum is linear in x; its minimum over the box is taken coordinate by coordinate.

Slopes: d_j = linear_j + sum v_k [Phi(t) mu_kj + phi(t)/s sig_kj^2 x_j], wherever s > 0.

Rounding (see `rows` for the payment): kappa is evaluated at corners off by at most `room`, where g - beta m - gamma s
moves by at most (1 + .4) room; s_0 >= s_max / 4 keeps gamma q / s_0 below 2 s_max. Slopes take m and s widened by
`room` before t is formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import ABSOLUTE, LEAST, cdf, density, ratio
from bnn_vnnlib.gaussian.relu import relu_mean
from bnn_vnnlib.methods.decision.regression.branching import Bounded
from bnn_vnnlib.methods.decision.regression.rows import Rows
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import gamma

STEEPEST = 0.4
"""More than phi(0)."""


def squares(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Range of x^2, not rounded."""
    below, above = lower**2, upper**2
    inside = (lower <= 0) & (upper >= 0)
    return torch.where(inside, torch.zeros_like(below), torch.minimum(below, above)), torch.maximum(below, above)


@dataclass(frozen=True, eq=False)
class ReluRows:
    """A `branching.Relaxation`."""

    hidden: DenseLayer

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        return self.hidden.outputs

    def value(self, rows: Rows, x: Tensor) -> Tensor:
        """The rows at points (B, n), not rounded."""
        m = x @ self.hidden.mean.mT + self.hidden.bias
        expected = relu_mean(m, self.hidden.deviation(x**2))
        return (rows.v * expected).sum(-1) + (rows.linear * x).sum(-1) + rows.constant

    def bound(self, rows: Rows, lower: Tensor, upper: Tensor) -> Bounded:
        """Lower bounds of the rows over boxes (B, n), and ranges of their slopes."""
        center = (lower + upper) / 2
        m, radius = self.hidden.range(lower, upper)
        s, (least, most) = self.hidden.deviation(center**2), (self.hidden.deviation(q) for q in squares(lower, upper))
        low, high = m - radius, m + radius
        positive, negative = rows.v.clamp(min=0), rows.v.clamp(max=0)
        slope, constant = self._below(positive, m, s, center)
        above, added = self._above(negative, m, s, (low, high), (least, most), lower, upper)
        slope, constant = slope + above + rows.linear, constant + added + rows.constant
        value = torch.minimum(slope * lower, slope * upper).sum(-1) + constant - rows.payment
        return Bounded(value, *self._slopes(rows, (low, high), (least, most), lower, upper))

    def _below(self, v: Tensor, m: Tensor, s: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
        t = ratio(m, s)
        beta = v * cdf(t)
        weight = torch.where(s > LEAST, v * density(t) / s.clamp(min=LEAST), torch.zeros_like(s))
        slope = beta @ self.hidden.mean + (weight @ self.hidden.variance) * center
        return slope, beta @ self.hidden.bias + weight @ self.hidden.bias_variance

    def _above(
        self, v: Tensor, m: Tensor, s: Tensor, means: tuple[Tensor, Tensor], deviations: tuple[Tensor, Tensor],
        lower: Tensor, upper: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        (low, high), (least, most) = means, deviations
        corners = [(a, b, relu_mean(a, b)) for a in (low, high) for b in (least, most)]
        (_, _, ll), (_, _, lu), (_, _, ul), (_, _, uu) = corners
        t = ratio(m, s)
        wide, tall = high > low, most > least
        beta = torch.where(wide, (ul + uu - ll - lu) / (2 * (high - low)), cdf(t)).nan_to_num(0.0).clamp(0, 1)
        steep = torch.where(tall, (lu + uu - ll - ul) / (2 * (most - least)), density(t))
        steep = torch.where(most > LEAST, steep.nan_to_num(0.0).clamp(0, STEEPEST), torch.zeros_like(steep))
        kappa = torch.stack([g - beta * a - steep * b for a, b, g in corners]).amax(0)
        anchor = torch.maximum(s, most / 4).clamp(min=LEAST)
        weight = v * steep / (2 * anchor)
        spread = weight @ self.hidden.variance
        slope = (v * beta) @ self.hidden.mean + spread * (lower + upper)
        constant = (v * (kappa + steep * anchor / 2)).sum(-1) + (v * beta) @ self.hidden.bias
        constant = constant + weight @ self.hidden.bias_variance - (spread * lower * upper).sum(-1)
        return slope, constant

    def _slopes(
        self, rows: Rows, means: tuple[Tensor, Tensor], deviations: tuple[Tensor, Tensor], lower: Tensor, upper: Tensor
    ) -> tuple[Tensor, Tensor]:
        low, high = means[0] - rows.room, means[1] + rows.room
        least, most = (deviations[0] - rows.room).clamp(min=LEAST), (deviations[1] + rows.room).clamp(min=LEAST)
        t_low, t_high = torch.minimum(low / least, low / most), torch.maximum(high / least, high / most)
        inside = (t_low <= 0) & (t_high >= 0)
        near = torch.where(inside, torch.zeros_like(t_low), torch.minimum(t_low.abs(), t_high.abs()))
        far = torch.maximum(t_low.abs(), t_high.abs())
        p, p_radius = _middle(cdf(t_low) - ABSOLUTE, cdf(t_high) + ABSOLUTE)
        d, d_radius = _middle((density(far) - ABSOLUTE).clamp(min=0) / most, (density(near) + ABSOLUTE) / least)
        size, v = torch.maximum(lower.abs(), upper.abs()), rows.v.abs()
        curve = (d * rows.v) @ self.hidden.variance
        slope = (p * rows.v) @ self.hidden.mean + curve * (lower + upper) / 2 + rows.linear
        radius = (p_radius * v) @ self.hidden.mean.abs() + curve.abs() * (upper - lower) / 2
        radius = radius + ((d_radius * v) @ self.hidden.variance) * size
        long = gamma(2 * (self.hidden.outputs + self.hidden.inputs) + 32)
        radius = radius * (1 + 16 * long) + rows.slope_payment
        return slope - radius, slope + radius


def _middle(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Center and radius, the radius with room for its own rounding."""
    radius = (high - low) / 2
    return (low + high) / 2, radius * (1 + 1e-12)
