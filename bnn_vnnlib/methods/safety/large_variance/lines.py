"""Lines below D relu(zeta + v), the gradient G that they leave, and a bound on r . |G| by independent terms.

Slopes: a_j = 1[zeta_j > 0] where D_j > 0, since relu(zeta + v) >= a (zeta + v) for every v; where D_j < 0
a_j = clip((zeta_j + R~_j) / (2 R~_j), 0, 1), R~_j a fixed number, since relu is convex and for |v| <= R
    relu(zeta + v) <= n + a v,    n = max(relu(zeta + R) - a R, relu(zeta - R) + a R).
For R <= R~ this n is relu(zeta) + R min(a, 1 - a); it grows with R by max(a, 1 - a) at most, and it is relu(zeta)
where |zeta| >= max(R, R~). With v as in `neurons`, |zeta (kappa_j - kap) . delta'| <= rho_j |zeta|, and A_j = D_j a_j,
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

from bnn_vnnlib.gaussian.half_line import PAID, UP, Floats, density, mean_relu
from bnn_vnnlib.methods.safety.large_variance.neurons import SHARES, Neurons
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights

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
