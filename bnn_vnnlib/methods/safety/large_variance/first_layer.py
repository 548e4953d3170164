"""The first hidden layer of a network: at one point, and around it within a box.

1. At one point. Independent h_k = relu(z_k), z_k ~ N(m_k, s_k^2), and exponential moments.

2. The first hidden layer around a point x*, and rows over what it changes by within a box.

Let x = x* + delta, low <= delta <= high (low <= 0 <= high), z_k = V_k x* + b_k ~ N(m_k, s_k^2) and g_k(x) = relu(z_k +
V_k . delta) - relu(z_k). Fix thresholds theta_k >= 0 and let a_k = 1[z_k > theta_k].

Reach. sup over delta of V_k . delta = sum_j max(high_j V_kj, low_j V_kj) is convex in V_k with the Lipschitz constant
root of sum_j w_j^2 sig_kj^2, w = max(high, -low), in standard units: by isoperimetry, and since the median is at most
the mean, it exceeds `up`_k = mean + y root(..) with probability at most Phi(-y); -V_k . delta exceeds `down`_k alike.

Kinks. For v = V_k . delta in [-down, up] the number relu(z + v) - relu(z) - a v lies in [-fall(z), rise(z)]:
    z <= theta:  relu(z + v) - relu(z) >= -min(down, relu(z)),  and  <= relu(z + up) - relu(z);
    z > theta:   relu(z + v) - z - v >= 0,  and  <= relu(down - z).
Hence for all numbers w_k, with U_j = sum_k w_k a_k V_kj,
    sum_k w_k g_k(x) >= sum_j delta_j U_j - sum_k (w_k^+ fall_k(z_k) + w_k^- rise_k(z_k))    for all x of the box.

Rows. Let w_k ~ N(mean_k, variance_k) be independent of each other and of V, b. Chernoff's bound needs
- for U_j: with kappa = +-tau, given V_kj = v the mean over w_k is exp(kappa mean v + kappa^2 variance v^2 / 2) where
  z_k > theta_k, and 1 else. For v ~ N(mu, sig^2), of covariance sig^2 x*_j with z_k, and c = 1 - kappa^2 variance
  sig^2, completing the square gives exp(B) P(z' > theta), B = (kappa^2 variance mu^2 / 2 + kappa mean mu + (kappa
  mean sig)^2 / 2) / c - log(c) / 2, z' Gaussian of mean m + x*_j (mu' - mu), mu' = (mu + kappa mean sig^2) / c, and
  variance s^2 + (x*_j sig)^2 (1 / c - 1);
- for the kinks: z_k runs over cells on which fall and rise are replaced by their largest values, and
  E e^{kappa w^+ fall + kappa w^- rise} = E e^{kappa fall w^+} + E e^{kappa rise w^-} - 1.
A further part e_k of w_k with |e_k| <= extra_k changes the kinks by at most extra_k max(fall, rise).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.hidden import HiddenRanges
from bnn_vnnlib.gaussian.normal import ABSOLUTE, LEAST, cdf, density, log_cdf_above
from bnn_vnnlib.gaussian.relu import SAFE, log_moment, log_moment_below, relu_mean, relu_square
from bnn_vnnlib.methods.safety.large_variance.lines import unit_inputs
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import UNIT, UP, gamma
from bnn_vnnlib.system.memory import at_once

_SEGMENTS, _RATIO = 12, 1.2
"""Parts of [0, near], each so many times as long as the next."""

_SERIES_FROM = 30.0
"""Deviations beyond which a Gaussian tail is summed as a series: five terms leave 2e-11."""

_MIN_ARGUMENT = 0.02
"""y over one by s, at least, where variances are bounded."""


@dataclass(frozen=True, eq=False)
class UnitLaw:
    """m, s : (P, 1, H); blur : (P,) bound on the total variation to the law at any x of the boxes (nearly points)."""

    m: Tensor
    s: Tensor
    blur: Tensor

    def pick(self, some: Tensor) -> UnitLaw:
        """The law at some of the points."""
        return UnitLaw(self.m[some], self.s[some], self.blur[some])

    def above(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """log E exp(alpha h + beta h^2) for alpha, beta (P, R, H) of any sign, rounded up."""
        return log_moment(alpha, beta, self.m, self.s)

    def tilted_mean(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """The mean of h under the density e^{alpha h + beta h^2}, not rounded: up to 1e-10 of itself and of s."""
        m, s = self.m, self.s
        c = (1 - 2 * beta * s**2).clamp(min=SAFE)
        mean, dev = (m + alpha * s**2) / c, s / torch.sqrt(c)
        top = (beta * m**2 + alpha * m + alpha**2 * s**2 / 2) / c - torch.log(c) / 2
        on = top + torch.special.log_ndtr(mean / dev)
        logs = torch.logaddexp(torch.special.log_ndtr(-m / s), on)
        ratio = (mean / dev).clamp(min=-_SERIES_FROM)
        near = mean + dev * torch.exp(-(ratio**2) / 2 - torch.special.log_ndtr(ratio)) / math.sqrt(2 * math.pi)
        far = (mean / dev).clamp(max=-_SERIES_FROM)  # the mean of the part above 0 of a Gaussian far below it
        series = -(1 - (2 - (10 - (74 - 706 / far**2) / far**2) / far**2) / far**2) / far
        inner = torch.where(mean < -_SERIES_FROM * dev, dev * series, near.clamp(min=0.0))
        return torch.exp(on - logs) * inner

    def proxy(self, alpha: Tensor, beta: Tensor, near: Tensor) -> Tensor:
        """u with E e^{y (h - mean)} <= e^{u y^2 / 2} for |y| <= near under the tilted law; infinite if none is known.

        g(y) = log E e^{y (h - mean)} is convex with its minimum 0 at 0, so that 2 g(y) / y^2 <= 2 g(b) / a^2 for y in
        [a, b]; near 0, (e^{g(y)} - 1) / y^2 is convex in y (see `chaos`), and so largest at an end.
        """
        near = torch.maximum(near, _MIN_ARGUMENT / self.s)
        mean, base = self.tilted_mean(alpha, beta), log_moment_below(alpha, beta, self.m, self.s)

        def log(y: Tensor) -> Tensor:
            value = self.above(alpha + y, beta) - base
            value = value - y * mean + 4 * UNIT * value.abs() + 1e-10 * ((y * mean).abs() + y.abs() * self.s)
            return value.clamp(min=0.0).nan_to_num(torch.inf, torch.inf)

        found = torch.zeros_like(near)
        for sign in (1, -1):
            end, parts = near, torch.zeros_like(near)
            best = torch.full_like(near, torch.inf)
            for _ in range(_SEGMENTS):
                high = log(sign * end)
                best = torch.minimum(best, torch.maximum(parts, 2 * torch.expm1(high.clamp(max=600.0)) / end**2))
                best = torch.where(high < 600.0, best, torch.inf)
                start = torch.maximum(end / _RATIO, _MIN_ARGUMENT / self.s)
                parts, end = torch.maximum(parts, 2 * high / start**2), start
            found = torch.maximum(found, best)
        return found

    def plain(self) -> tuple[Tensor, Tensor, Tensor]:
        """E h, E h^2 and the deviation of h (at least a part of s), not rounded."""
        m, s = self.m, self.s
        mean = relu_mean(m, s)
        second = relu_square(m, s)
        return mean, second, torch.sqrt((second - mean**2).clamp(min=0.0)) + 1e-3 * s


def law_of(first: HiddenRanges) -> UnitLaw:
    """The law of the first layer over boxes of size nearly zero; its blur pays for their size."""
    relative = gamma(8) + (first.high - first.low) / first.least + (first.most / first.least) ** 2 - 1
    blur = relative.sum(-1).nan_to_num(1.0, 1.0)
    return UnitLaw(((first.low + first.high) / 2)[:, None], first.most[:, None], blur)


_ALLOWED = 1e-9
"""Relative error allowed to one logarithm of a mean, over 1 plus the sizes of its parts; see `FirstLayer.served`."""

_TAUS = (0.75, 1.0, 1.3)
"""Values of tau that are tried, over the best one for a Gaussian law: any tau is sound."""

_KINK_TAUS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4)
"""Values of tau for kinks, over the best one for a Gaussian law, from which their laws are far."""

_RARE_TAUS = (0.1, 0.3, 1.0)
"""tau over STEEPEST, over one by the largest kink: where hardly any kink is likely."""

_STEEPEST = 25.0
"""Largest rate, over one by the largest kink: beyond, cells of hardly any probability count too much."""

_CELLS = 6
"""Number of cells on either side."""

_LEAST_C = 0.05
"""Least c that is used."""

_MAX_VARIANCE = 1e100
"""What all variances are below."""

_MAX_EXPONENT = 300.0
"""Exponents above are taken as infinite."""


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """H neurons at Q points of n inputs.

    point, low, high : (Q, n) x* and the ends of delta
    m, s : (Q, H) of z; mean, variance : (H, n) of V
    served : (Q,) whether rounding of m and s is so small that ALLOWED covers it
    """

    point: Tensor
    low: Tensor
    high: Tensor
    m: Tensor
    s: Tensor
    mean: Tensor
    variance: Tensor
    served: Tensor

    @property
    def width(self) -> Tensor:
        """(Q, n): |delta_j|, at most."""
        return torch.maximum(self.high, -self.low)

    def reach(self, y: float) -> tuple[Tensor, Tensor]:
        """(Q, H), (Q, H): `up` and `down`, each exceeded with probability at most Phi(-y)."""
        s = torch.sqrt(self.variance)
        plus, minus = (relu_mean(side * self.mean, s) + ABSOLUTE * (self.mean.abs() + s) for side in (1, -1))
        lip = y * torch.sqrt(self.width**2 @ self.variance.mT)
        up, down = self.high @ plus.mT - self.low @ minus.mT, self.high @ minus.mT - self.low @ plus.mT
        return (up + lip) * UP**2 + LEAST, (down + lip) * UP**2 + LEAST


def first_layer(first: DenseLayer, point: Tensor, lower: Tensor, upper: Tensor) -> FirstLayer:
    """The layer at points (Q, n) of boxes (Q, n)."""
    at, off = unit_inputs(first, point), gamma(point.shape[1] + 16)
    low, high = (lower - point).clamp(max=0.0) * UP, (upper - point).clamp(min=0.0) * UP
    # squares of inputs underflow below 1e-162: no variance may be so large that this counts beside 1e-200
    known = torch.isfinite(at.m + at.s).all(1) & (first.variance < _MAX_VARIANCE).all()
    served = at.served & known & (off * (at.size / at.s + 1) < _ALLOWED / 100).all(1)
    return FirstLayer(point, low, high, at.m, at.s, first.mean, first.variance, served)


@dataclass(frozen=True, eq=False)
class RowWeights:
    """w_k ~ N(mean, variance), and extra: (Q, K, H) each."""

    mean: Tensor
    variance: Tensor
    extra: Tensor


def row_moments(layer: FirstLayer, rows: RowWeights, theta: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, K, n): mean and standard deviation of U_j. For choices only."""
    gap = layer.m - theta
    ratio = gap / layer.s
    share, slope = cdf(ratio), density(ratio) / layer.s
    first = share[..., None] * layer.mean + slope[..., None] * layer.variance * layer.point[:, None]
    second = share[..., None] * (layer.mean**2 + layer.variance)
    total = (rows.mean**2 + rows.variance) @ second - rows.mean**2 @ first**2
    return rows.mean @ first, torch.sqrt(total.clamp(min=0.0)) + 1e-9 * rows.mean.abs() @ torch.sqrt(second) + LEAST


def slope_quantiles(layer: FirstLayer, rows: RowWeights, theta: Tensor, log_share: float) -> tuple[Tensor, Tensor]:
    """(Q, K, n), (Q, K, n): U_j and -U_j exceed these with probability at most exp(log_share) each; theta (Q, H). Rates
    that are out of reach end as nan, and are left out.
    """
    _, spread = row_moments(layer, rows, theta)
    found = []
    m, s, x = (layer.m - theta)[:, :, None], layer.s[:, :, None], layer.point[:, None]
    off = log_cdf_above(-m / s)[:, None]
    mean, variance = rows.mean[..., None], rows.variance[..., None]
    steepest = torch.sqrt((1 - _LEAST_C) / ((variance * layer.variance).amax(2) + 1e-200))
    for sign in (1.0, -1.0):
        best = torch.full_like(spread, torch.inf)
        for times in _TAUS:
            tau = torch.minimum(times * math.sqrt(-2 * log_share) / spread, steepest)
            kappa = (sign * tau)[:, :, None]  # (Q, K, 1, n) against (H, n)
            c = 1 - kappa**2 * variance * layer.variance
            pull = kappa * mean
            top = (kappa**2 * variance / 2 * layer.mean**2 + pull * layer.mean + pull**2 * layer.variance / 2) / c
            top = top - torch.log(c) / 2
            moved = (layer.mean + pull * layer.variance) / c - layer.mean
            wide = torch.sqrt(s[:, None] ** 2 + (x**2 * layer.variance)[:, None] * (1 / c - 1))
            active = log_cdf_above((m[:, None] + x[:, None] * moved) / wide)
            each = torch.logaddexp(off, top + active)
            size = top.abs() + 2 * (pull * layer.mean).abs() / c + active.abs()
            each = each + _ALLOWED * (1 + each.abs() + torch.where(each > off + 1e-12, size, 0.0))
            best = torch.fmin(best, (each.sum(2) - log_share) / tau * UP)
        found.append(best)
    return found[0], found[1]


def kinks(layer: FirstLayer, rows: RowWeights, theta: Tensor, reach: tuple[Tensor, Tensor], log_share: float) -> Tensor:
    """(Q, K): what the kinks of a row cost, exceeded with probability at most exp(log_share)."""
    mass, fall, rise = (part[:, None] for part in _cells(layer, theta, *reach))
    return cost(mass, fall, rise, rows, log_share)


def cost(mass: Tensor, fall: Tensor, rise: Tensor, rows: RowWeights, log_share: float) -> Tensor:
    """(Q, K): sum_k w_k^+ fall_k + w_k^- rise_k exceeds it with probability at most exp(log_share), where (fall_k,
    rise_k), independent of each other and of w, take their values with these masses, all (Q, K or 1, H, C), and else 0.
    Rates that are out of reach end as infinite or nan, and are left out.
    """
    dev = torch.maximum(torch.sqrt(rows.variance), 1e-12 * rows.mean.abs() + LEAST)
    extra = rows.extra[..., None] * torch.maximum(fall, rise)
    plus, minus = relu_mean(rows.mean, dev)[..., None], relu_mean(-rows.mean, dev)[..., None]
    typical = fall * plus + rise * minus + extra
    size, most = torch.sqrt((mass * typical**2).sum((2, 3))) + LEAST, typical.amax((2, 3)) + LEAST
    largest = (torch.maximum(fall, rise) * (rows.mean.abs() + 3 * dev)[..., None] + extra).amax((2, 3)) + LEAST
    rates = [torch.minimum(times * math.sqrt(-2 * log_share) / size, _STEEPEST / most) for times in _KINK_TAUS]
    rates += [times * _STEEPEST / largest for times in _RARE_TAUS]
    sides, means = torch.stack([fall, rise]), torch.stack([rows.mean, -rows.mean])[..., None]
    found = []
    for rate in torch.stack(rates).split(at_once(32 * extra.numel())):
        kappa = rate[..., None, None]
        logs = log_moment(kappa[:, None] * sides, torch.zeros_like(means), means, dev[..., None])
        both = torch.where(logs < _MAX_EXPONENT, torch.exp(logs), torch.inf).sum(1) - 1
        grown = (both * UP + 1e-14).clamp(min=1.0) * torch.exp((kappa * extra).clamp(max=_MAX_EXPONENT)) * UP
        over = torch.where(kappa * extra < _MAX_EXPONENT, grown - 1, torch.inf)
        total = torch.log1p((mass * over).sum(-1) * (1 + 1e-9)).sum(-1)
        found.append((total * (1 + 1e-9) - log_share) / rate * UP)
    return torch.cat(found).nan_to_num(torch.inf, torch.inf).amin(0)


def _cells(layer: FirstLayer, theta: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(Q, H, 2 CELLS + 1) each: probabilities of cells of z, and the largest fall and rise on them; elsewhere both
    are 0.
    """
    part = torch.linspace(0.0, 1.0, _CELLS + 1, dtype=up.dtype, device=up.device)
    far = torch.maximum(down, theta)
    left = -up[..., None] * (1 - part[:-1])
    right = theta[..., None] + (far - theta)[..., None] * part[:-1]
    edges = torch.cat([left, torch.zeros_like(up)[..., None], right, far[..., None]], -1)
    low, high = edges[..., :-1], edges[..., 1:]
    m, s = layer.m[..., None], layer.s[..., None]
    mass = (cdf((high - m) / s) - cdf((low - m) / s)).clamp(min=0.0) + 1e-12
    below = high <= theta[..., None]
    fall = torch.where(below, torch.minimum(down[..., None], high.clamp(min=0.0)), 0.0)
    rise = torch.where(high <= 0, (high + up[..., None]).clamp(min=0.0), up[..., None])
    rise = torch.where(below, rise, (down[..., None] - low).clamp(min=0.0))
    return mass, fall * UP, rise * UP
