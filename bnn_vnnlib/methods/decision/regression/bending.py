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

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

WIDER = 1 + 1e-9


def density(t: Floats) -> Floats:
    """phi(t)."""
    return np.asarray(np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi))


def interpolation_errors(
    means: tuple[Floats, Floats], deviations: tuple[Floats, Floats], room: Floats, ends: tuple[Floats, Floats],
    mu: Floats, variance: Floats, top: tuple[Floats, Floats, Floats, Floats],
) -> Floats:  # fmt: skip
    """(A, I): bounds for A segments and I neurons.

    means, deviations : m and s (A, K) at both ends; room (A, K) their errors; ends (A,) each: l <= u
    mu, variance : (A, K) of the weights that the input of the segment has
    top : W's means, their slack and standard deviations (I, K), sig_b (I,)
    """
    lower, upper = ends
    largest = np.maximum(np.abs(lower), np.abs(upper))[:, None]
    low, high = np.minimum(*means) - room, np.maximum(*means) + room
    crosses = ((lower <= 0) & (upper >= 0))[:, None]
    bottom = np.sqrt(np.maximum(np.minimum(*deviations) ** 2 - crosses * variance * largest**2, 0))
    s_low = np.maximum((bottom - room) * (1 - 1e-9), 1e-100)
    s_high = np.maximum(*deviations) + room
    t_low, t_high = np.minimum(low / s_low, low / s_high), np.maximum(high / s_low, high / s_high)
    nearest = np.where((t_low <= 0) & (t_high >= 0), 0.0, np.minimum(np.abs(t_low), np.abs(t_high)))
    peak, mass = density(nearest) + 1e-14, special.ndtr(t_high) + 1e-14
    sig = np.sqrt(variance) * WIDER
    rho = np.minimum(sig, variance * largest / s_low * WIDER)
    absolute = np.abs(mu)

    square = (mu**2 + variance) * mass + 2 * absolute * rho * peak + 0.242 * rho**2 * (t_low < 0)
    square = np.minimum(square, mu**2 + variance) * WIDER
    first, last = (_slope(m, s, x, mu, variance, room) for m, s, x in zip(means, deviations, ends, strict=True))
    lowest, highest = first[0], last[1]
    smallest = np.where((lowest <= 0) & (highest >= 0), 0.0, np.minimum(lowest**2, highest**2)) / WIDER
    weight, slack, noise, bias = top
    large, small = np.abs(weight) + slack, np.maximum(np.abs(weight) - slack, 0)
    center, radius = (lowest + highest) / 2, (highest - lowest) / 2 * WIDER
    mean = np.abs(center @ weight.T) + radius @ large.T + np.abs(center) @ (slack + 1e-12 * large).T
    bent = square @ (large**2 + noise**2).T * WIDER - smallest @ (small**2).T / WIDER + mean**2 * WIDER

    tilt = absolute + rho * np.minimum(np.maximum(np.abs(low), np.abs(high)) / s_low, 1e150)
    kink = peak / s_low * np.minimum(tilt**2 + variance, 1e300) * WIDER
    kink = np.where(absolute + sig > 0, kink, 0.0)
    expected = large * WIDER + 0.79789 * noise  # E|W| <= |mu| + E|N| sig
    length = (upper - lower)[:, None] * WIDER
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        curved = bent / (np.sqrt(2 * np.pi) * bias) + kink @ expected.T
        curved = np.minimum(np.nan_to_num(curved, nan=np.inf), 1e300)  # no noise in the bias: L is what is left
        return np.asarray(np.minimum(curved * length**2 / 8, np.sqrt(bent) * length / 2) * WIDER)


def _slope(m: Floats, s: Floats, x: Floats, mu: Floats, variance: Floats, room: Floats) -> tuple[Floats, Floats]:
    """E[V; a > 0] at a point, from below and above."""
    least, most = np.maximum(s - room, 1e-100), s + room
    t_low, t_high = np.minimum((m - room) / least, (m - room) / most), np.maximum((m + room) / least, (m + room) / most)
    low, high = special.ndtr(t_low) - 1e-14, special.ndtr(t_high) + 1e-14
    first = np.minimum(low * mu, high * mu), np.maximum(low * mu, high * mu)
    crossing = (t_low <= 0) & (t_high >= 0)
    near = np.where(crossing, 0.0, np.minimum(np.abs(t_low), np.abs(t_high)))
    far = np.maximum(np.abs(t_low), np.abs(t_high))
    rho = variance * np.abs(x)[:, None]
    cap = np.sqrt(variance) * 0.4
    small = np.minimum(np.maximum(density(far) - 1e-14, 0) * rho / most, cap) / WIDER
    large = np.minimum((density(near) + 1e-14) * rho / least, cap) * WIDER
    sign = np.sign(x)[:, None]
    second = np.where(sign >= 0, small, -large), np.where(sign >= 0, large, -small)
    paid = 1e-13 * (np.abs(mu) + cap)
    return first[0] + second[0] - paid, first[1] + second[1] + paid
