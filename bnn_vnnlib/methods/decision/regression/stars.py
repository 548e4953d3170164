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

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bnn_vnnlib.methods.decision.regression.bending import WIDER, density

Floats = NDArray[np.float64]
Layer = dict[str, Floats]


def curvature(first: Layer, second: Layer, lower: Floats, upper: Floats, reach: Floats, room: Floats) -> Floats:
    """B(u) (A, I) over boxes (A, n) with u = reach (A, n); room (A, K): errors of m and s."""
    center, size = (lower + upper) / 2, np.maximum(np.abs(lower), np.abs(upper))
    absolute, variance = np.abs(first["mean"]) + first["slack"], first["variance"] * WIDER
    m = center @ first["mean"].T + first["bias"]
    radius = (upper - lower) / 2 @ absolute.T * WIDER + room
    smallest = np.where((lower <= 0) & (upper >= 0), 0.0, np.minimum(lower**2, upper**2))
    noise = first["bias_variance"]
    s_low = np.sqrt(smallest @ first["variance"].T + noise)
    s_low = np.maximum((s_low - room) * (1 - 1e-9), 1e-100)
    s_high = np.sqrt(size**2 @ variance.T + noise) * WIDER + room
    low, high = m - radius, m + radius
    t_low, t_high = np.minimum(low / s_low, low / s_high), np.maximum(high / s_low, high / s_high)
    nearest = np.where((t_low <= 0) & (t_high >= 0), 0.0, np.minimum(np.abs(t_low), np.abs(t_high)))
    p_low, p_high = special.ndtr(t_low) - 1e-14, special.ndtr(t_high) + 1e-14
    peak = (density(nearest) + 1e-14) / s_low

    a, v = reach @ absolute.T, reach**2 @ variance.T
    square = np.minimum(a**2 + v, np.sqrt((a**4 + 6 * a**2 * v + 3 * v**2) * p_high)) * WIDER
    middle, spread = (p_low + p_high) / 2, (p_high - p_low) / 2 * WIDER
    tilt = np.minimum(peak[..., None] * variance * size[:, None], 0.4 * np.sqrt(variance))  # (A, K, n)
    off = spread[..., None] * absolute + tilt + first["slack"]
    weight = second["mean"]
    large = np.abs(weight) + second["slack"]
    slope = np.abs(np.einsum("ik,ak,kn->ain", weight, middle, first["mean"], optimize=True))
    slope = slope + np.einsum("ik,akn->ain", large, off, optimize=True)
    slope = slope + np.einsum("ik,kn->in", second["slack"] + 1e-9 * large, absolute)
    mean = (slope * reach[:, None]).sum(-1)

    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        shifted = a + (size * reach) @ variance.T * np.maximum(np.abs(low), np.abs(high)) / s_low**2
        kink = peak * (shifted**2 + v)
        bent = square @ (large**2 + second["variance"]).T + mean**2
        found = bent / (np.sqrt(2 * np.pi) * np.sqrt(second["bias_variance"]))
        found = found + kink @ (large + 0.79789 * np.sqrt(second["variance"])).T
        return np.asarray(np.nan_to_num(found * WIDER**4, nan=np.inf, posinf=np.inf))


def star_points(lower: Floats, upper: Floats) -> Floats:
    """(A, 1 + 2 n, n): the center, then the upper and the lower end of each axis through it."""
    center = (lower + upper) / 2
    n = center.shape[-1]
    points = np.repeat(center[:, None], 1 + 2 * n, axis=1)
    axis = np.arange(n)
    points[:, 1 + axis, axis] = upper
    points[:, 1 + n + axis, axis] = lower
    return points


def star_bound(below: Floats, above: Floats, along: Floats, whole: Floats) -> tuple[Floats, Floats]:
    """(A, R) bounds and (A, R, n) what each axis costs.

    below, above (A, R, 1 + 2 n) : rows at the star's points, from below and above
    along (A, R, n), whole (A, R) : sum |v_i| B of the axes and of the box
    """
    n = along.shape[-1]
    up, down = slice(1, 1 + n), slice(1 + n, 1 + 2 * n)
    rise = np.maximum(np.abs(above[..., up] - below[..., down]), np.abs(above[..., down] - below[..., up]))
    cost = (rise + along) / 2 * WIDER
    value = below[..., 0] - (cost.sum(-1) + whole / 2) * WIDER
    return np.nan_to_num(value, nan=-np.inf, neginf=-np.inf), cost
