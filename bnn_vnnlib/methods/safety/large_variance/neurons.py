"""The hidden layer over a box, given its inputs zeta = V x0 + b at the centre.

zeta_j ~ N(m_j, s_j^2). Regression of V_j on zeta_j: V_j = nu_j + zeta_j kappa_j + E_j with kappa_ji = sig_ji^2 x0_i /
s_j^2, nu_j = mu_j - m_j kappa_j and E_j Gaussian, independent of zeta_j, Cov E_j <= diag(sig_j^2). For x = x0 + delta,
a common kap and t = kap . delta,  |t| <= rb = sum r_i |kap_i| < 1, the input of neuron j is
    zeta_j (1 + t) + nu_j . delta + zeta_j (kappa_j - kap) . delta + E_j . delta = (1 + t) (zeta_j + v_j),
    v_j = (nu_j + E_j) . delta' + zeta_j (kappa_j - kap) . delta',
    delta' = delta / (1 + t),    |delta'_i| <= r'_i = r_i / (1 - rb).
As relu is homogeneous, (margin)(x) = B + sum_j D_j relu((1 + t)(zeta_j + v_j)) is positive if and only if
B / (1 + t) + sum_j D_j relu(zeta_j + v_j) is, and B / (1 + t) >= B - |B| rb / (1 - rb). What x - x0 has along the
weights' own variance thus costs nothing but a little of B: it only scales the network.

Range: |v_j| <= R'_j + rho_j |zeta_j|, R'_j = sum r'_i |nu_ji + E_ji|, rho_j = sum r'_i |kappa_ji - kap_i|, and by the
Gaussian isoperimetric inequality and median <= mean of a convex function (Kwapien), for y >= 0,
    P(R'_j > M_j + y sqrt(h_j)) <= Phi(-y),
    M_j = sum r'_i e(nu_ji, sig_ji^2) >= E R'_j,    h_j = sum r'^2_i sig_ji^2,
as R'_j is a function of a standard Gaussian vector with Lipschitz constant sup over delta of the root of
delta' Cov(E_j) delta <= h_j. So R'_j is dominated by a variable that takes the level M_j + y_l sqrt(h_j) with
probability Phi(y_l) - Phi(y_{l-1}), independent of zeta_j and of the last layer, but for the event `BEYOND` of each
neuron.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from bnn_vnnlib.gaussian.half_line import PAID, UP, Floats, mean_abs
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import gamma

LEVELS = np.array([0.0, 0.8, 1.8, 5.2])
"""y_l; the slopes of the lines are chosen for the last but one."""

SHARES = np.diff(np.concatenate([[0.0], special.ndtr(LEVELS[:-1]), [1.0]]))
"""Probabilities of the levels; what exceeds the last one is paid for as BEYOND."""

BEYOND = float(special.ndtr(-LEVELS[-1])) * UP
"""P(R'_j exceeds the last level), for one neuron."""

STEEPEST = 0.5
"""Largest rb and rho that are served."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """zeta at P points: m, s (P, H); size (P, H) sums of absolute terms behind m; blur (P,) bound on the total
    variation that rounding of m and s costs; served (P,) whether it is known.
    """

    m: Floats
    s: Floats
    size: Floats
    blur: Floats
    served: np.ndarray


def inputs(first: DenseLayer, points: Floats) -> Inputs:
    """Of the hidden layer at points (P, n)."""
    mean, bias, variance, noise = (
        part.detach().cpu().numpy() for part in (first.mean, first.bias, first.variance, first.bias_variance)
    )
    off = gamma(points.shape[1] + 16)
    m, size = points @ mean.T + bias, np.abs(points) @ np.abs(mean).T + np.abs(bias)
    square = points**2 @ variance.T + noise
    s = np.sqrt(np.maximum(square, 1e-280))
    blur = (off * size / s + off).sum(1) * UP
    return Inputs(m, s, size, blur, (square > 1e-200).all(1) & (blur < 1e-3))


@dataclass(frozen=True, eq=False)
class Neurons:
    """H neurons over P boxes of n inputs.

    m, s : (P, H) mean and standard deviation of zeta
    blur : (P,) bound on the total variation that their rounding costs
    share : (P,) rb / (1 - rb); radius : (P, n) r'; rho : (P, H)
    nu : (P, H, n) with errors up to nu_error; variance : (H, n) of V; h : (P, H)
    levels : (P, H, L) ranges, those of zeta (kappa - kap) included where |zeta| is below the last one
    served : (P,) whether the formulas apply
    """

    m: Floats
    s: Floats
    blur: Floats
    share: Floats
    radius: Floats
    rho: Floats
    nu: Floats
    nu_error: Floats
    variance: Floats
    h: Floats
    levels: Floats
    served: np.ndarray

    @property
    def ramp(self) -> Floats:
        """(P, H): R~, half the width of the ramps; never 0."""
        return np.maximum(self.levels[..., -2], 1e-100)

    @property
    def reach(self) -> Floats:
        """(P, H): beyond it the sign of zeta + v is known."""
        return np.maximum(self.levels[..., -1], 2e-100)


def neurons(first: DenseLayer, lower: Floats, upper: Floats) -> Neurons:
    """The hidden layer over boxes (P, n)."""
    mean, variance = (part.detach().cpu().numpy() for part in (first.mean, first.variance))
    center = (lower + upper) / 2
    r = np.maximum(upper - center, center - lower) * UP
    at = inputs(first, center)
    m, s, size = at.m, at.s, at.size
    kappa = variance * center[:, None] / (s**2)[..., None]
    common = (kappa * s[..., None]).sum(1) / s.sum(1)[:, None]
    shift = (r * np.abs(common)).sum(1) * UP
    common = np.where((shift < STEEPEST)[:, None], common, 0.0)
    shift = np.where(shift < STEEPEST, shift, 0.0)
    radius = r / (1 - shift)[:, None] * UP
    rho = (radius[:, None] * (np.abs(kappa - common[:, None]) + PAID * (kappa + np.abs(common[:, None])))).sum(2) * UP
    nu = mean - m[..., None] * kappa
    nu_error = PAID * (np.abs(mean) + np.abs(size[..., None] * kappa))
    h = (radius**2 @ variance.T) * UP
    expected = np.einsum("pi,phi->ph", radius, mean_abs(np.abs(nu) + nu_error, variance)) * UP
    plain = (expected[..., None] + LEVELS * np.sqrt(h)[..., None]) * UP
    reach = plain[..., -1:] / (1 - np.minimum(rho, STEEPEST))[..., None]
    served = at.served & (rho < STEEPEST).all(1)
    return Neurons(
        m, s, at.blur, shift / (1 - shift) * UP, radius, rho, nu, nu_error, variance, h,
        (plain + rho[..., None] * reach) * UP, served & np.isfinite(expected).all(1),
    )  # fmt: skip
