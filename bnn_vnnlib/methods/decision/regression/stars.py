"""Two hidden relu layers over boxes with several free inputs: values at a star of points, and curvature.

With B(u) >= |d' Hess E relu(zeta_i) d| for all x of the box and |d_j| <= u_j, c the center, r the radii and D+-j the
values at the ends of axis j,
    D(x) >= D(c) - sum_j ( |D+j - D-j| / 2 + B(r_j e_j) / 2 ) - B(r) / 2:
Taylor's remainder is at most B(r) / 2, and (D+j - D-j) / 2 is g_j r_j up to B(r_j e_j) / 2.
B as in `bending`, with the slope V_k.d of each first-layer neuron: its mean is at most a = sum |mu_kj| u_j, its
variance at most v = sum sig_kj^2 u_j^2, so that
    E[(V.d)^2; a_k > 0] <= min(a^2 + v, sqrt((a^4 + 6 a^2 v + 3 v^2) Phi(t)))                 (Cauchy and Schwarz),
    E[V_j; a_k > 0] = Phi(t) mu_j + phi(t) sig_j^2 x_j / s,
and V.d given a_k = 0 has a mean of at most a + |t| sum sig_j^2 |x_j| u_j / s and a variance of at most v.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import ABSOLUTE, LEAST, cdf, density
from bnn_vnnlib.methods.decision.regression.bending import WIDER, nearest, quotients
from bnn_vnnlib.methods.decision.regression.one_layer import squares
from bnn_vnnlib.network.dense_chain import DenseLayer


def curvature(
    first: DenseLayer, second: DenseLayer, lower: Tensor, upper: Tensor, reach: Tensor, room: Tensor
) -> Tensor:
    """B(u) (A, I) over boxes (A, n) with u = reach (A, n); room (A, K): errors of m and s."""
    center, size = (lower + upper) / 2, torch.maximum(lower.abs(), upper.abs())
    absolute, variance = first.mean.abs() + first.slack, first.variance * WIDER
    m = center @ first.mean.mT + first.bias
    radius = (upper - lower) / 2 @ absolute.mT * WIDER + room
    noise = first.bias_variance
    s_low = torch.sqrt(squares(lower, upper)[0] @ first.variance.mT + noise)
    s_low = ((s_low - room) * (1 - 1e-9)).clamp(min=LEAST)
    s_high = torch.sqrt(size**2 @ variance.mT + noise) * WIDER + room
    low, high = m - radius, m + radius
    t_low, t_high = quotients(low, high, s_low, s_high)
    p_low, p_high = cdf(t_low) - ABSOLUTE, cdf(t_high) + ABSOLUTE
    peak = (density(nearest(t_low, t_high)) + ABSOLUTE) / s_low

    a, v = reach @ absolute.mT, reach**2 @ variance.mT
    square = torch.minimum(a**2 + v, torch.sqrt((a**4 + 6 * a**2 * v + 3 * v**2) * p_high)) * WIDER
    middle, spread = (p_low + p_high) / 2, (p_high - p_low) / 2 * WIDER
    tilt = torch.minimum(peak[..., None] * variance * size[:, None], 0.4 * torch.sqrt(variance))  # (A, K, n)
    off = spread[..., None] * absolute + tilt + first.slack
    large = second.mean.abs() + second.slack
    slope = (second.mean @ (middle[..., None] * first.mean)).abs() + large @ off  # (A, I, n)
    slope = slope + (second.slack + 1e-9 * large) @ absolute
    mean = (slope * reach[:, None]).sum(-1)

    shifted = a + (size * reach) @ variance.mT * torch.maximum(low.abs(), high.abs()) / s_low**2
    kink = peak * (shifted**2 + v)
    bent = square @ (large**2 + second.variance).mT + mean**2
    found = bent / (math.sqrt(2 * math.pi) * torch.sqrt(second.bias_variance))
    found = found + kink @ (large + 0.79789 * torch.sqrt(second.variance)).mT
    return (found * WIDER**4).nan_to_num(torch.inf, torch.inf)


def star_points(lower: Tensor, upper: Tensor) -> Tensor:
    """(A, 1 + 2 n, n): the center, then the upper and the lower end of each axis through it."""
    center = (lower + upper) / 2
    n = center.shape[-1]
    points = center[:, None].repeat(1, 1 + 2 * n, 1)
    axis = torch.arange(n, device=center.device)
    points[:, 1 + axis, axis] = upper
    points[:, 1 + n + axis, axis] = lower
    return points


def star_bound(below: Tensor, above: Tensor, along: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """(A, R) bounds and (A, R, n) what each axis costs.

    below, above (A, R, 1 + 2 n) : rows at the star's points, from below and above
    along (A, R, n), whole (A, R) : sum |v_i| B of the axes and of the box
    """
    n = along.shape[-1]
    up, down = slice(1, 1 + n), slice(1 + n, 1 + 2 * n)
    rise = torch.maximum((above[..., up] - below[..., down]).abs(), (above[..., down] - below[..., up]).abs())
    cost = (rise + along) / 2 * WIDER
    value = below[..., 0] - (cost.sum(-1) + whole / 2) * WIDER
    return value.nan_to_num(-torch.inf, torch.inf, -torch.inf), cost
