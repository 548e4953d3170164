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
    M_j = sum r'_i e(nu_ji, sig_ji) >= E R'_j,    h_j = sum r'^2_i sig_ji^2,
as R'_j is a function of a standard Gaussian vector with Lipschitz constant sup over delta of the root of
delta' Cov(E_j) delta <= h_j. So R'_j is dominated by a variable that takes the level M_j + y_l sqrt(h_j) with
probability Phi(y_l) - Phi(y_{l-1}), independent of zeta_j and of the last layer, but for the event `PAST_LEVELS` of
each neuron.

2. Lines below D relu(zeta + v), the gradient G that they leave, and a bound on r . |G| by independent terms.

Slopes: a_j = 1[zeta_j > 0] where D_j > 0, since relu(zeta + v) >= a (zeta + v) for every v; where D_j < 0
a_j = clip((zeta_j + R~_j) / (2 R~_j), 0, 1), R~_j a fixed number, since relu is convex and for |v| <= R
    relu(zeta + v) <= n + a v,    n = max(relu(zeta + R) - a R, relu(zeta - R) + a R).
For R <= R~ this n is relu(zeta) + R min(a, 1 - a); it grows with R by max(a, 1 - a) at most, and it is relu(zeta)
where |zeta| >= max(R, R~). With v as in 1, |zeta (kappa_j - kap) . delta'| <= rho_j |zeta|, and A_j = D_j a_j,
    sum_j D_j relu(zeta_j + v_j) >= sum_j D_j p_j + G . delta',    G_i = sum_j A_j (nu_ji + E_ji),
p = a (zeta - rho |zeta|) for D > 0, p = n + rho a |zeta| for D < 0, and G . delta' >= -L, L = sum_i r'_i |G_i|.

Given all D and zeta, G_i is Gaussian with mean gam_i = sum_j A_j nu_ji and variance at most q_i = sum_j A_j^2 sig_ji^2.
By the lemma of `gaussian.relu.mean_abs` and the tangent of the root, for any rho_i > 0 (`root`), any gbar_i,
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

import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import LEAST, cdf, density
from bnn_vnnlib.gaussian.relu import mean_abs, relu_mean, relu_square
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import PAID, UP, gamma

EXCESS_LEVELS = (0.0, 0.8, 1.8, 5.2)
"""y_l; the slopes of the lines are chosen for the last but one."""

_BELOW = (0.0, *(NormalDist().cdf(level) for level in EXCESS_LEVELS[:-1]), 1.0)

LEVEL_SHARES = tuple(high - low for low, high in itertools.pairwise(_BELOW))
"""Probabilities of the levels; what exceeds the last one is paid for as PAST_LEVELS."""

PAST_LEVELS = NormalDist().cdf(-EXCESS_LEVELS[-1]) * UP
"""P(R'_j exceeds the last level), for one neuron."""

_NARROW = 0.01
"""R~ over s up to which the mean of a ramp is a series."""

_STEEPEST = 0.5
"""Largest rb and rho that are served."""


@dataclass(frozen=True, eq=False)
class UnitInputs:
    """zeta at P points: m, s (P, H); size (P, H) sums of absolute terms behind m; blur (P,) bound on the total
    variation that rounding of m and s costs; served (P,) whether it is known.
    """

    m: Tensor
    s: Tensor
    size: Tensor
    blur: Tensor
    served: Tensor


def unit_inputs(first: DenseLayer, points: Tensor) -> UnitInputs:
    """The hidden layer's inputs zeta at points (P, n), and what their rounding costs."""
    off = gamma(points.shape[1] + 16)
    m, size = points @ first.mean.mT + first.bias, points.abs() @ first.mean.abs().mT + first.bias.abs()
    square = points**2 @ first.variance.mT + first.bias_variance
    s = torch.sqrt(square.clamp(min=1e-280))
    blur = (off * size / s + off).sum(1) * UP
    return UnitInputs(m, s, size, blur, (square > 1e-200).all(1) & (blur < 1e-3))


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

    m: Tensor
    s: Tensor
    blur: Tensor
    share: Tensor
    radius: Tensor
    rho: Tensor
    nu: Tensor
    nu_error: Tensor
    variance: Tensor
    h: Tensor
    levels: Tensor
    served: Tensor

    @property
    def ramp(self) -> Tensor:
        """(P, H): R~, half the width of the ramps; never 0."""
        return self.levels[..., -2].clamp(min=LEAST)

    @property
    def reach(self) -> Tensor:
        """(P, H): beyond it the sign of zeta + v is known."""
        return self.levels[..., -1].clamp(min=2 * LEAST)


def neurons(first: DenseLayer, lower: Tensor, upper: Tensor) -> Neurons:
    """The hidden layer over boxes (P, n)."""
    mean, variance = first.mean, first.variance
    center = (lower + upper) / 2
    r = torch.maximum(upper - center, center - lower) * UP
    at = unit_inputs(first, center)
    m, s, size = at.m, at.s, at.size
    kappa = variance * center[:, None] / (s**2)[..., None]
    common = (kappa * s[..., None]).sum(1) / s.sum(1)[:, None]
    shift = (r * common.abs()).sum(1) * UP
    common = torch.where((shift < _STEEPEST)[:, None], common, 0.0)
    shift = torch.where(shift < _STEEPEST, shift, 0.0)
    radius = r / (1 - shift)[:, None] * UP
    rho = (radius[:, None] * ((kappa - common[:, None]).abs() + PAID * (kappa + common[:, None].abs()))).sum(2) * UP
    nu = mean - m[..., None] * kappa
    nu_error = PAID * (mean.abs() + (size[..., None] * kappa).abs())
    h = (radius**2 @ variance.mT) * UP
    expected = (mean_abs(nu.abs() + nu_error, torch.sqrt(variance)) @ radius[..., None])[..., 0] * UP
    plain = (expected[..., None] + h.new_tensor(EXCESS_LEVELS) * torch.sqrt(h)[..., None]) * UP
    reach = plain[..., -1:] / (1 - rho.clamp(max=_STEEPEST))[..., None]
    served = at.served & (rho < _STEEPEST).all(1)
    return Neurons(
        m, s, at.blur, shift / (1 - shift) * UP, radius, rho, nu, nu_error, variance, h,
        (plain + rho[..., None] * reach) * UP, served & torch.isfinite(expected).all(1),
    )  # fmt: skip


THETAS = tuple(0.25 * 32 ** (k / 11) for k in range(12))
"""Values of theta, over one by `LineTerms.scale`; the best one is chosen."""

_ROOT = 1.45
"""root_i over the one that is best on average: with a larger one c_i is smaller, and Q, whose moments are dear, counts
less.
"""


@dataclass(frozen=True, eq=False)
class LineTerms:
    """What the rows need. Arrays (A, H) but for constant, rate, width (A,) and coefficient (A, n).

    up, down : E of a over zeta for D > 0 and D < 0, errors below 1e-9; slope_mean : E A_j, up to 1e-9 E |D|;
    variance : of A_j, for choices only
    tilt, tilt_error : l_j; curvature, per_rate : k_j = curvature + theta per_rate
    coefficient : c_i; constant : sum_i (r'_i root_i / 2 - c_i gbar_i^2), rounded up
    center, spread : of Y at theta = 0; excess = E H, scale = its root plus E Q; for choices only
    """

    up: Tensor
    down: Tensor
    slope_mean: Tensor
    variance: Tensor
    tilt: Tensor
    tilt_error: Tensor
    curvature: Tensor
    per_rate: Tensor
    coefficient: Tensor
    constant: Tensor
    center: Tensor
    spread: Tensor
    excess: Tensor
    scale: Tensor


def half_line_moments(weights: Weights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E D 1[D > 0], E D 1[D < 0], E D^2 1[D > 0], E D^2 1[D < 0]."""
    mean, dev = weights.mean, weights.dev
    first, second = relu_mean(mean, dev), relu_square(mean, dev)
    return first, mean - first, second, mean**2 + dev**2 - second


def lines(layer: Neurons, weights: Weights) -> LineTerms:
    """The lines of A rows; `layer` has A boxes."""
    m, s = layer.m, layer.s
    up = cdf(m / s)
    down, squared, bent = _ramps(layer)
    e1, e2, s1, s2 = half_line_moments(weights)
    slope = e1 * up + e2 * down
    square = s1 * up + s2 * squared
    gradient = summed(slope, layer.nu)
    around = summed((square - slope**2).clamp(min=0.0), layer.nu**2)
    root = _ROOT * torch.sqrt(gradient**2 + around + (2 / math.pi) * (square @ layer.variance)) + LEAST
    coefficient = layer.radius / (2 * root)
    pull = 2 * coefficient * gradient
    tilt = (layer.nu @ pull[..., None])[..., 0]
    size = ((layer.nu.abs() * PAID + layer.nu_error) @ pull.abs()[..., None])[..., 0] * UP
    constant = (layer.radius * root / 2 - coefficient * gradient**2).sum(1)
    paid = PAID * (layer.radius * root + coefficient * gradient**2).sum(1)
    curvature = (2 / math.pi * coefficient) @ layer.variance.mT * UP
    z1, z2 = relu_mean(m, s), relu_square(m, s)
    pieces = e1 * (z1 * (1 - layer.rho) - tilt * up) + e2 * (z1 * (1 + layer.rho) + bent - tilt * down)
    center = weights.bias + (pieces - curvature * square).sum(1) - constant
    center = center - layer.share * torch.sqrt(weights.bias**2 + weights.bias_dev**2)
    largest = (s1 + s2) * z2
    spread = ((largest - ((e1 + e2) * z1) ** 2).clamp(min=0.0) + 1e-18 * largest).sum(1) + weights.bias_dev**2
    spread = torch.sqrt(spread) + 1e-9 * weights.bias.abs() + LEAST
    excess = (square * layer.h).sum(1)
    return LineTerms(
        up, down, slope, torch.maximum(square - slope**2, 1e-12 * square), tilt, size, curvature, layer.h / 2 * UP,
        coefficient, constant + paid,
        center, spread, excess, torch.sqrt(excess) + (coefficient * around).sum(1) + 1e-6 * spread,
    )  # fmt: skip


_NODES, _GAUSS = np.polynomial.hermite_e.hermegauss(24)


def _ramps(layer: Neurons) -> tuple[Tensor, Tensor, Tensor]:
    """E a for D < 0 (error below 1e-9); for choices only, E a^2 and E n - relu(zeta)."""
    m, s, ramp = layer.m, layer.s, layer.ramp
    z = m[..., None] + s[..., None] * m.new_tensor(_NODES)
    a = ((z / ramp[..., None] + 1) / 2).clamp(0.0, 1.0)
    weight = m.new_tensor(_GAUSS / _GAUSS.sum())
    height = (torch.minimum(layer.levels, ramp[..., None]) * m.new_tensor(LEVEL_SHARES)).sum(-1)
    return _ramp_mean(m, s, ramp), a**2 @ weight, height * (torch.minimum(a, 1 - a) @ weight)


def _ramp_mean(m: Tensor, s: Tensor, ramp: Tensor) -> Tensor:
    """E clip((zeta + R~) / (2 R~), 0, 1) = (E relu(zeta + R~) - E relu(zeta - R~)) / (2 R~).

    The difference loses at most ABSOLUTE (2 R~ + 40 s) / R~ where |m| < R~ + 38 s; farther out the value is 0 or 1.
    For small r = R~ / s it is Phi(t) - r^2 t phi(t) / 6, t = m / s, up to r^4 / 120 times the largest derivative of
    phi of order 3, which is below 1.4: with NARROW both errors are below 2e-10.
    """
    near = torch.clamp(m, -ramp - 38 * s, ramp + 38 * s)
    wide = (relu_mean(near + ramp, s) - relu_mean(near - ramp, s)) / (2 * ramp)
    t = m / s
    narrow = cdf(t) - (ramp / s) ** 2 * t * density(t) / 6
    return torch.where(ramp < _NARROW * s, narrow, wide.clamp(0.0, 1.0))


def summed(weights: Tensor, terms: Tensor) -> Tensor:
    """(A, n): sums over neurons of weights (A, H) times terms (A, H, n)."""
    return (weights[:, None] @ terms)[:, 0]
