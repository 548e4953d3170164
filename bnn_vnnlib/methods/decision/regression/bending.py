"""How fast E relu(zeta_i(x)), zeta of the second layer, may change along a segment x_j in [l, u] of one input.

zeta = sum_k W_k relu(a_k) + b, a_k = m_k(x) + s_k(x) N along the segment has the derivative V_k ~ N(mu_k, sig_k^2).
    |d/dx E relu(zeta)|  <= L = sqrt(E zeta'^2),
    |d2/dx2 E relu(zeta)| <= B = E zeta'^2 / (sqrt(2 pi) sig_b) + sum_k E|W_k| (phi(t)/s) E[V_k^2 | a_k = 0]:
over b alone E relu(y + b) has a second derivative of at most 1 / (sqrt(2 pi) sig_b), and z_k'' is V_k^2 at a_k = 0.
    E zeta'^2 = sum (mu_W^2 + sig_W^2) E[V^2; a > 0] - sum mu_W^2 E[V; a > 0]^2 + (sum mu_W E[V; a > 0])^2,
    E[V; a > 0] = Phi(t) mu + phi(t) rho, rho = sig^2 x / s: the slope of a convex function of x, so its ends serve;
    E[V^2; a > 0] = (mu^2 + sig^2) Phi(t) + 2 mu rho phi(t) - rho^2 t phi(t), and |t| phi(t) < .242;
    V given a = 0 has the mean mu - rho t and the variance sig^2 - rho^2.
The linear interpolant of a function on a segment of length h is off by at most min(B h^2 / 8, L h / 2).

Rounding: m, s are widened by their errors, and B, L by a factor that exceeds what sums of this length can lose.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import ABSOLUTE, LEAST, cdf, density
from bnn_vnnlib.network.dense_chain import DenseLayer

WIDER = 1 + 1e-9
"""Covers sums of a million nonnegative products."""


def nearest(low: Tensor, high: Tensor) -> Tensor:
    """The least |t| for t in [low, high]."""
    return torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))


def quotients(low: Tensor, high: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Range of m / s for m in [low, high] and s in [least, most], least > 0."""
    return torch.minimum(low / least, low / most), torch.maximum(high / least, high / most)


def interpolation_errors(
    means: tuple[Tensor, Tensor], deviations: tuple[Tensor, Tensor], room: Tensor, ends: tuple[Tensor, Tensor],
    mu: Tensor, variance: Tensor, top: DenseLayer,
) -> Tensor:  # fmt: skip
    """(A, I): bounds for A segments and the I neurons of the second layer, `top`.

    means, deviations : m and s (A, K) at both ends; room (A, K) their errors; ends (A,) each: l <= u
    mu, variance : (A, K) of the weights that the input of the segment has
    """
    lower, upper = ends
    largest = torch.maximum(lower.abs(), upper.abs())[:, None]
    low, high = torch.minimum(*means) - room, torch.maximum(*means) + room
    crosses = ((lower <= 0) & (upper >= 0))[:, None]
    bottom = torch.sqrt((torch.minimum(*deviations) ** 2 - crosses * variance * largest**2).clamp(min=0.0))
    s_low = ((bottom - room) * (1 - 1e-9)).clamp(min=LEAST)
    s_high = torch.maximum(*deviations) + room
    t_low, t_high = quotients(low, high, s_low, s_high)
    peak, mass = density(nearest(t_low, t_high)) + ABSOLUTE, cdf(t_high) + ABSOLUTE
    sig = torch.sqrt(variance) * WIDER
    rho = torch.minimum(sig, variance * largest / s_low * WIDER)
    absolute = mu.abs()

    square = (mu**2 + variance) * mass + 2 * absolute * rho * peak + 0.242 * rho**2 * (t_low < 0)
    square = torch.minimum(square, mu**2 + variance) * WIDER
    first, last = (_slope(m, s, x, mu, variance, room) for m, s, x in zip(means, deviations, ends, strict=True))
    lowest, highest = first[0], last[1]
    smallest = nearest(lowest, highest) ** 2 / WIDER
    weight, slack, noise, bias = top.mean, top.slack, torch.sqrt(top.variance), torch.sqrt(top.bias_variance)
    large, small = weight.abs() + slack, (weight.abs() - slack).clamp(min=0.0)
    center, radius = (lowest + highest) / 2, (highest - lowest) / 2 * WIDER
    mean = (center @ weight.mT).abs() + radius @ large.mT + center.abs() @ (slack + 1e-12 * large).mT
    bent = square @ (large**2 + noise**2).mT * WIDER - smallest @ (small**2).mT / WIDER + mean**2 * WIDER

    tilt = absolute + rho * (torch.maximum(low.abs(), high.abs()) / s_low).clamp(max=1e150)
    kink = peak / s_low * (tilt**2 + variance).clamp(max=1e300) * WIDER
    kink = torch.where(absolute + sig > 0, kink, 0.0)
    expected = large * WIDER + 0.79789 * noise  # E|W| <= |mu| + E|N| sig
    length = (upper - lower)[:, None] * WIDER
    curved = bent / (math.sqrt(2 * math.pi) * bias) + kink @ expected.mT
    curved = curved.nan_to_num(torch.inf, torch.inf).clamp(max=1e300)  # no noise in the bias: L is what is left
    return torch.minimum(curved * length**2 / 8, torch.sqrt(bent) * length / 2) * WIDER


def _slope(m: Tensor, s: Tensor, x: Tensor, mu: Tensor, variance: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """E[V; a > 0] at a point, from below and above."""
    least, most = (s - room).clamp(min=LEAST), s + room
    t_low, t_high = quotients(m - room, m + room, least, most)
    low, high = cdf(t_low) - ABSOLUTE, cdf(t_high) + ABSOLUTE
    first = torch.minimum(low * mu, high * mu), torch.maximum(low * mu, high * mu)
    far = torch.maximum(t_low.abs(), t_high.abs())
    rho = variance * x.abs()[:, None]
    cap = torch.sqrt(variance) * 0.4
    small = torch.minimum((density(far) - ABSOLUTE).clamp(min=0.0) * rho / most, cap) / WIDER
    large = torch.minimum((density(nearest(t_low, t_high)) + ABSOLUTE) * rho / least, cap) * WIDER
    positive = x[:, None] >= 0
    second = torch.where(positive, small, -large), torch.where(positive, large, -small)
    paid = 1e-13 * (mu.abs() + cap)
    return first[0] + second[0] - paid, first[1] + second[1] + paid
