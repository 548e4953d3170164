"""One hidden layer over a box: the range of what x adds to its inputs, and the lines below the output that this gives.

1. The hidden layer over a box, given its inputs zeta = V x0 + b at the centre.

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

2. Lines below D relu(zeta + v), the gradient G that they leave, and a bound on r . |G| by independent terms.

Slopes: a_j = 1[zeta_j > 0] where D_j > 0, since relu(zeta + v) >= a (zeta + v) for every v; where D_j < 0
a_j = clip((zeta_j + R~_j) / (2 R~_j), 0, 1), R~_j a fixed number, since relu is convex and for |v| <= R
    relu(zeta + v) <= n + a v,    n = max(relu(zeta + R) - a R, relu(zeta - R) + a R).
For R <= R~ this n is relu(zeta) + R min(a, 1 - a); it grows with R by max(a, 1 - a) at most, and it is relu(zeta)
where |zeta| >= max(R, R~). With v as in 1, |zeta (kappa_j - kap) . delta'| <= rho_j |zeta|, and A_j = D_j a_j,
    sum_j D_j relu(zeta_j + v_j) >= sum_j D_j p_j + G . delta',    G_i = sum_j A_j (nu_ji + E_ji),
p = a (zeta - rho |zeta|) for D > 0, p = n + rho a |zeta| for D < 0, and G . delta' >= -L, L = sum_i r'_i |G_i|.

Given all D and zeta, G_i is Gaussian with mean gam_i = sum_j A_j nu_ji and variance at most q_i = sum_j A_j^2 sig_ji^2.
By the lemma of `gaussian` and the tangent of the root, for any rho_i > 0 (`root`), any gbar_i,
    E[r'_i |G_i|] <= r'_i (root_i / 2 + (gam_i^2 + 2 q_i / pi) / (2 root_i)),
    gam_i^2 = 2 gbar_i gam_i - gbar_i^2 + (gam_i - gbar_i)^2,
and L is a function of independent Gaussian vectors of Lipschitz constant at most root of H = sum_j A_j^2 h_j, so that
E[e^{theta (L - E L)}] <= e^{theta^2 H / 2}. With c_i = r'_i / (2 root_i), w = 2 c gbar and
    Q = sum_i c_i (gam_i - gbar_i)^2,    l_j = sum_i w_i nu_ji,    k_j = sum_i (2 c_i / pi) sig_ji^2 + theta h_j / 2,
    Y = B - |B| share + sum_j (D_j p_j - l_j A_j - k_j A_j^2) - sum_i (r'_i root_i / 2 - c_i gbar_i^2)
this says E e^{theta (L - [its bound but for Q] )} <= E e^{theta Q}, hence for all l
    P(margin <= 0 somewhere) <= P(Y <= l) + e^{-theta l} E e^{theta Q} + sum_j P(R'_j exceeds its last level).
The first two events are joined by the union bound: Y contains levels that depend on E_j, which is why nothing here is
conditioned on them (the form that treats noise of E_j inside Y as independent of the levels is unsound).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from bnn_vnnlib.gaussian.half_line import PAID, UP, Floats, density, mean_abs, mean_relu
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
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


RATES = np.geomspace(0.25, 8.0, 12)
"""theta, over one by `Lines.scale`, among which one is chosen."""

ROOT = 1.45
"""root_i over the one that is best on average: with a larger one c_i is smaller, and Q, whose moments are dear, counts
less.
"""


@dataclass(frozen=True, eq=False)
class Lines:
    """What the rows need. Arrays (A, H) but for constant, rate, width (A,) and coefficient (A, n).

    up, down : E of a over zeta for D > 0 and D < 0, errors below 1e-9; slope_mean : E A_j, up to 1e-9 E |D|;
    variance : of A_j, for choices only
    tilt, tilt_error : l_j; curvature, per_rate : k_j = curvature + theta per_rate
    coefficient : c_i; constant : sum_i (r'_i root_i / 2 - c_i gbar_i^2), rounded up
    center, spread : of Y at theta = 0; excess = E H, scale = its root plus E Q; for choices only
    """

    up: Floats
    down: Floats
    slope_mean: Floats
    variance: Floats
    tilt: Floats
    tilt_error: Floats
    curvature: Floats
    per_rate: Floats
    coefficient: Floats
    constant: Floats
    center: Floats
    spread: Floats
    excess: Floats
    scale: Floats


def halves(weights: Weights) -> tuple[Floats, Floats, Floats, Floats]:
    """E D 1[D > 0], E D 1[D < 0], E D^2 1[D > 0], E D^2 1[D < 0]."""
    mean, dev = weights.mean, weights.dev
    t = mean / dev
    p, d = special.ndtr(t), density(t)
    first, second = mean * p + dev * d, (mean**2 + dev**2) * p + mean * dev * d
    return first, mean - first, second, mean**2 + dev**2 - second


def lines(layer: Neurons, weights: Weights) -> Lines:
    """The lines of A rows; `layer` has A boxes."""
    m, s = layer.m, layer.s
    up = special.ndtr(m / s)
    down, squared, bent = _ramps(layer)
    e1, e2, s1, s2 = halves(weights)
    slope = e1 * up + e2 * down
    square = s1 * up + s2 * squared
    gradient = np.einsum("ah,ahi->ai", slope, layer.nu)
    around = np.einsum("ah,ahi->ai", np.maximum(square - slope**2, 0.0), layer.nu**2)
    root = ROOT * np.sqrt(gradient**2 + around + (2 / np.pi) * (square @ layer.variance)) + 1e-100
    coefficient = layer.radius / (2 * root)
    pull = 2 * coefficient * gradient
    tilt = np.einsum("ai,ahi->ah", pull, layer.nu)
    size = np.einsum("ai,ahi->ah", np.abs(pull), np.abs(layer.nu) * PAID + layer.nu_error) * UP
    constant = (layer.radius * root / 2 - coefficient * gradient**2).sum(1)
    paid = PAID * (layer.radius * root + coefficient * gradient**2).sum(1)
    curvature = (2 / np.pi * coefficient) @ layer.variance.T * UP
    z1 = mean_relu(m, s)
    z2 = (m**2 + s**2) * up + m * s * density(m / s)
    pieces = e1 * (z1 * (1 - layer.rho) - tilt * up) + e2 * (z1 * (1 + layer.rho) + bent - tilt * down)
    center = weights.bias + (pieces - curvature * square).sum(1) - constant
    center = center - layer.share * np.sqrt(weights.bias**2 + weights.bias_dev**2)
    largest = (s1 + s2) * z2
    spread = (np.maximum(largest - ((e1 + e2) * z1) ** 2, 0.0) + 1e-18 * largest).sum(1) + weights.bias_dev**2
    spread = np.sqrt(spread) + 1e-9 * np.abs(weights.bias) + 1e-100
    excess = (square * layer.h).sum(1)
    return Lines(
        up, down, slope, np.maximum(square - slope**2, 1e-12 * square), tilt, size, curvature, layer.h / 2 * UP,
        coefficient, constant + paid,
        center, spread, excess, np.sqrt(excess) + (coefficient * around).sum(1) + 1e-6 * spread,
    )  # fmt: skip


NODES, GAUSS = np.polynomial.hermite_e.hermegauss(24)


def _ramps(layer: Neurons) -> tuple[Floats, Floats, Floats]:
    """E a for D < 0 (error below 1e-9); for choices only, E a^2 and E n - relu(zeta)."""
    m, s, ramp = layer.m, layer.s, layer.ramp
    z = m[..., None] + s[..., None] * NODES
    a = np.clip((z / ramp[..., None] + 1) / 2, 0.0, 1.0)
    weight = GAUSS / GAUSS.sum()
    height = (np.minimum(layer.levels, ramp[..., None]) * SHARES).sum(-1)
    return _ramp_mean(m, s, ramp), a**2 @ weight, height * (np.minimum(a, 1 - a) @ weight)


def _ramp_mean(m: Floats, s: Floats, ramp: Floats) -> Floats:
    """E clip((zeta + R~) / (2 R~), 0, 1) = (E relu(zeta + R~) - E relu(zeta - R~)) / (2 R~).

    The difference loses at most 1e-16 (2 R~ + 40 s) / R~ where |m| < R~ + 38 s; farther out the value is 0 or 1, and
    for R~ < 1e-5 s it differs from Phi(m / s) by less than R~^2 / s^2.
    """
    near = np.clip(m, -ramp - 38 * s, ramp + 38 * s)
    wide = (mean_relu(near + ramp, s) - mean_relu(near - ramp, s)) / (2 * ramp)
    return np.where(ramp < 1e-5 * s, special.ndtr(m / s), np.clip(wide, 0.0, 1.0))
