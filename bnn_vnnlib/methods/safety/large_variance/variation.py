"""Upper bounds on E[e^{theta Q}; G] for a centred quadratic form Q of independent terms.

Q = sum_i c_i (gam_i - gbar_i)^2, gam_i - gbar_i = sum_j a_j nu_ji, a_j = A_j - E A_j. With F_ji = sqrt(c_i) nu_ji,
h = sqrt(2 theta) F' a (|h|^2 = 2 theta Q) and g standard Gaussian, e^{theta Q} = E_g e^{g . h} (Hubbard-Stratonovich),
so that the a_j, which are independent, enter by their generating functions at y = sqrt(2 theta) F g:
- for every y, E e^{y a_j} <= e^{y^2 v_j / 2}, v_j = d_j^2 + width_j^2 / 4: given zeta_j, A_j is a function of D_j with
  slopes in [0, 1], and its mean lies in the hull of {0, mu, e1 + e2 / 2, e2 / 2}, of that width (e1, e2 are the means
  of D on D > 0 and on D < 0);
- for |y| <= y_j, E e^{y a_j} <= e^{y^2 u_j / 2}, u_j = max over both signs of 2 (E e^{+-y_j a_j} - 1) / y_j^2. As
  E a_j = 0, E e^{y a} - 1 = y^2 E a^2 f(y a), f(x) = (e^x - 1 - x) / x^2 = int_0^1 (1 - t) e^{t x} dt. f is convex,
  hence E a^2 f(y a) is convex in y and largest at an end of [-y_j, y_j]. And e^{y a D} is convex in a on [0, 1], so
  E e^{y A} <= (1 - E a+) P(D > 0) + E a+ E[e^{y D}; D > 0] + the same for D < 0.
G is the event that |M_j . a| <= b_j for all j, M = F F'. By the second bound, as long as lam |M_jk| <= y_k,
    P(M_j . a > b_j) <= e^{-lam b_j + lam^2 S_j / 2},    S_j = sum_k M_jk^2 u_k,
so that b_j = lam S_j / 2 + log(2 H / SPENT) / lam makes P(not G) <= SPENT. On G, F_j . h = sqrt(2 theta) M_j . a: under
the law of g + h some |y_j| exceeds y_j = sqrt(2 theta) (sqrt(2 theta) b_j + z |F_j|) with probability at most
e = 2 H Phi(-z). Hence e^{theta Q} (1 - e) <= E_g[e^{g . h}; all |y_j| <= y_j] on G, and with
B = 2 theta F' diag(u) F < I
    E[e^{theta Q}; G] <= det(I - B)^{-1/2} / (1 - e).
Rounding: a symmetric eigenvalue is off by at most SOLVED times the trace. An error of F moves the root of each
eigenvalue by at most its Frobenius norm (Weyl). Where gbar_i misses sum_j E A_j nu_ji by b_i, use
(x + b)^2 <= (1 + t) x^2 + (1 + 1/t) b^2 with t = LEANING.

What neurons of the second layer cost of which it is not sure whether they are active.

Notation of `change`: f = relu(zeta + v) - relu(zeta) - a v, v in [-fall, rise], -p <= f <= q, cost D^+ p + D^- q. For
a = 0, whatever zeta is,
    p = min(fall, zeta^+),    q = (rise + min(zeta, 0))^+,
as f = max(v, -zeta) for zeta > 0 and f = (zeta + v)^+ else. Both grow with zeta. For a = 1 the same holds with -zeta,
-v: relu(u) - u = relu(-u), so that f = relu(-zeta - v) - relu(-zeta), fall and rise exchanged.

Given the first layer's outputs at x*, the zeta_i are independent of each other, N(m_i, s_i^2), and D is independent of
them. With thresholds t_0 = -rise < .. < t_K = fall a function g of the cost that grows is at most g(t_k) on (t_{k-1},
t_k], and g(t_K) beyond; hence
    E g(zeta) <= g(0 cost) + sum_k (P_{k-1} - P_k) (g(t_k) - g(0 cost)),    P_k >= P(zeta > t_k) falling in k, P_K = 0.
On a rectangle of (m, s) the largest P(zeta > t) is Phi((high - t) / s), s its most if high < t, its least else. So the
means given h are bounded, whatever h is on the event that all rectangles hold, and their product bounds E[e^{tau cost};
that event]. `fall` and `rise` are fixed numbers: that v stays between them is another event.

Neurons that are sure to some degree are cheaper by the largest cost on their range: one cell of mass 1.

What a row of a network with two hidden ReLU layers loses, at most, between a point x* and the other points of a box.

Let zeta_i = W_i h(x*) + c_i be the second layer's inputs at x*, h the first layer's outputs, v_i(x) = W_i g(x) with g
of `around`, and D_i ~ N(mean_i, dev_i^2) the row's combination of the last layer. Then
    row(x) - row(x*) = sum_i D_i (relu(zeta_i + v_i) - relu(zeta_i)).

Ranges. zeta_i lies in [low_i, high_i] by Chernoff's bound: E e^{tau zeta_i} is a product over k of
E e^{tau mean h_k + tau^2 variance h_k^2 / 2}, h_k = relu(z_k), in closed form. v_i lies in [-fall_i, rise_i] for all x
of the box: `around` with the rows +-W_i, whose entries are independent of the first layer.

Slopes. Let f = relu(zeta + v) - relu(zeta) - a v, a in [0, 1] a number, v in [-fall, rise], zeta in [low, high]. Then
f >= -p, p = max((1 - a) min(fall, high^+), a min(rise, (-low)^+)):
    zeta > 0, zeta + v > 0:  f = (1 - a) v >= -(1 - a) min(fall, zeta);
    zeta > 0, zeta + v <= 0:  f = a |v| - zeta >= -(1 - a) zeta, as zeta <= |v| <= fall;
    zeta <= 0, zeta + v > 0:  f = zeta + (1 - a) v >= -a |zeta|, as |zeta| < v <= rise;
    zeta <= 0, zeta + v <= 0:  f = -a v >= -a min(v^+, |zeta|);
and f <= q, q = max((1 - a) min(rise, (high + rise)^+), (a fall - low^+)^+):
    zeta + v > 0:  f = min(zeta, 0) + (1 - a) v <= (1 - a) (min(zeta, 0) + v)^+;
    zeta + v <= 0:  f = -a v - relu(zeta) <= (a fall - low^+)^+.
Hence, since a_i is a fixed number (chosen from the ranges),
    row(x) - row(x*) >= sum_i a_i D_i v_i(x) - sum_i (D_i^+ p_i + D_i^- q_i).
The last sum is bounded by Chernoff's bound (`around.cost`), where p and q may depend on zeta, see `unsure`. The first
one is w . g(x), w_k = sum_i a_i mean_i W_ik + e_k, e_k = sum_i a_i (D_i - mean_i) W_ik: a row of `around` with
- |e_k| <= y root of sum_i (a_i dev_i W_ik)^2 but with probability 2 Phi(-y), given W; and that root, a norm, is at most
  root of sum (a_i dev_i)^2 E W_ik^2 + y max_i (a_i dev_i sd W_ik) but with probability Phi(-y);
- N_j = sum_k e_k a_k V_kj = sum_i a_i (D_i - mean_i) U_ij, U_ij that of row W_i: |N_j| <= y root of sum_i (a_i dev_i
  q_ij)^2 but with probability 2 Phi(-y), where |U_ij| <= q_ij.
Hence w . g(x) >= -sum_j max(high_j (U'_j)^-, -low_j (U'_j)^+) - kinks, U'_j = U_j + N_j.

Every event is one about the weights whose failures have a probability that is known without the others, so that all are
added: `structure` is spent on the events about single neurons, `share` on those about the row. What is left out of
these events is nothing: on them the row loses at most `loss` anywhere in the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special

from bnn_vnnlib.gaussian.half_line import UP, Floats, mean_relu
from bnn_vnnlib.gaussian.relu import Rectangle, log_moment
from bnn_vnnlib.methods.safety.large_variance.first_layer import FirstLayer, Rows, cost, kinks, slopes
from bnn_vnnlib.methods.safety.large_variance.lines import Lines, Neurons, halves
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import gamma

SOLVED = 1e-10
"""Backward error of eigenvalues here, relative to the trace, for matrices of up to some thousand rows."""

REACHES = (3.0, 3.5, 4.0, 5.0)
"""z."""

SPENT = 1e-6
"""P(not G), paid for each row."""

LEANING = 1e-6
"""t."""

LARGEST = 0.99
"""Largest eigenvalue of B that is served."""

MOST_LOST = 0.999
"""Largest e that is served."""

LEAST = 0.01
"""Smallest y_j times the size |mean_j| + d_j of D_j: below, rounding would be magnified by 1 / y_j^2."""


@dataclass(frozen=True, eq=False)
class Chaos:
    """Q of A rows: factor F (A, H, n), error of |F_j|, norm |F_j|, full v, bound b_j (A, H).

    off : (A,) sum_i c_i (1 + 1/t) b_i^2
    """

    weights: Weights
    lines: Lines
    factor: Floats
    error: Floats
    norm: Floats
    off: Floats
    full: Floats
    bound: Floats

    def log_moment(self, theta: Floats, reaches: Sequence[float] = REACHES) -> Floats:
        """(A,): bounds on log E[e^{theta Q}; G] for theta (A,); infinite where there is none."""
        found = np.full_like(theta, np.inf)
        root = np.sqrt(2 * theta)[:, None]
        for reach in reaches:
            near = np.maximum(root * (root * self.bound + reach * self.norm), _smallest(self.weights)) * UP
            local = np.minimum(_local(self.weights, self.lines, near), self.full)
            lost = self.norm.shape[1] * 2 * float(special.ndtr(-reach)) * UP
            if lost >= MOST_LOST:
                continue
            moment = _minus_half_log_det(_eigenvalues(self.factor, self.error, local), 2 * theta)
            found = np.minimum(found, moment - np.log1p(-lost))
        return found + theta * self.off + 1e-9


def chaos(layer: Neurons, weights: Weights, lines: Lines) -> Chaos:
    """Q of the rows, and G."""
    e1, e2, _, _ = halves(weights)
    ends = np.stack([np.zeros_like(e1), weights.mean, e1 + e2 / 2, e2 / 2])
    full = (weights.dev**2 + np.ptp(ends, axis=0) ** 2 / 4) * (1 + 1e-9) + 1e-9 * weights.mean**2
    root = np.sqrt(lines.coefficient * (1 + LEANING))[:, None] * (1 + 1e-9)
    factor, error = root * layer.nu, np.sqrt(((root * layer.nu_error) ** 2).sum(2)) * UP
    norm = np.sqrt((factor**2).sum(2)) * UP + error + 1e-30
    products = np.abs(factor @ factor.mT) + SOLVED * norm[:, :, None] * norm[:, None]
    products = products + norm[:, :, None] * error[:, None] + error[:, :, None] * norm[:, None]
    missed = np.einsum("ah,ahi->ai", 1e-9 * (np.abs(weights.mean) + weights.dev), np.abs(layer.nu) + layer.nu_error)
    missed = missed + np.einsum("ah,ahi->ai", np.abs(lines.slope_mean), layer.nu_error)
    off = (lines.coefficient * missed**2).sum(1) * (2 + 1 / LEANING)
    exponent = np.log(2 * norm.shape[1] / SPENT)
    rate = np.sqrt(2 * exponent / (((products**2) @ lines.variance[..., None])[..., 0] + 1e-100))
    near = np.maximum((rate[..., None] * products).max(1), _smallest(weights)) * UP
    local = np.minimum(_local(weights, lines, near), full)
    size = (products**2 @ local[..., None])[..., 0]
    bound = (rate * size / 2 + exponent / rate) * UP
    return Chaos(weights, lines, factor, error, norm, off, full, bound)


def _eigenvalues(factor: Floats, error: Floats, proxy: Floats) -> Floats:
    """(A, n or H): of F' diag(proxy) F, from above."""
    scaled = np.sqrt(proxy)[..., None] * factor
    transposed = scaled.mT
    matrix = transposed @ scaled if scaled.shape[2] <= scaled.shape[1] else scaled @ transposed
    good = np.asarray(np.isfinite(matrix).all((1, 2)))
    values = np.linalg.eigvalsh(np.where(good[:, None, None], matrix, 0.0))
    values = np.maximum(values, 0.0) + SOLVED * np.trace(matrix, axis1=1, axis2=2)[:, None]
    values = (np.sqrt(values) + np.sqrt((proxy * error**2).sum(1))[:, None] * UP) ** 2
    return np.where(good[:, None], values, np.inf)


def _minus_half_log_det(values: Floats, times: Floats) -> Floats:
    """-log det(I - times B) / 2; infinite where times B is too large."""
    scaled = values * times[:, None]
    good = scaled.max(1) < LARGEST
    return np.where(good, -np.log1p(-np.where(good[:, None], scaled, 0.0)).sum(1) / 2 * (1 + 1e-9), np.inf)


def _smallest(weights: Weights) -> Floats:
    """(A, H): y_j, at least; in the units of 1 / D_j, so that units of rows or of neurons do not matter."""
    return LEAST / (np.abs(weights.mean) + weights.dev)


def _local(weights: Weights, lines: Lines, near: Floats) -> Floats:
    """u_j for |y| <= near (A, H)."""
    mean, dev = weights.mean, weights.dev
    positive = special.ndtr(mean / dev)
    found = np.zeros_like(mean)
    far = near * np.abs(mean) + (near * dev) ** 2 / 2 > 300.0
    near = np.where(far, _smallest(weights), near)
    for y in (near, -near):
        whole = np.exp(np.minimum(y * mean + (y * dev) ** 2 / 2, 301.0))
        above = whole * special.ndtr(mean / dev + y * dev)
        below = whole * special.ndtr(-mean / dev - y * dev)
        total = 1 + lines.up * (above - positive) + lines.down * (below - (1 - positive))
        size = 1 + above + below
        slack = 1e-8 * near * (np.abs(mean) + dev) * size + 1e-11 * size
        log = np.log(total + slack) - y * lines.slope_mean
        found = np.maximum(found, 2 * np.expm1(np.minimum(log, 600.0)) / near**2)
    return np.where(far, np.inf, found)


CELLS = 8
"""Cells of zeta on either side of 0."""


@dataclass(frozen=True, eq=False)
class _Costs:
    """slope (Q, H): a. mass, plus, minus (Q, H, C): masses of cells of zeta, p and q on them; elsewhere both are 0."""

    slope: Floats
    mass: Floats
    plus: Floats
    minus: Floats

    def padded(self, count: int) -> _Costs:
        """With cells of mass 0."""
        wide = [(0, 0), (0, 0), (0, count - self.mass.shape[2])]
        return _Costs(self.slope, *(np.pad(part, wide) for part in (self.mass, self.plus, self.minus)))


def cheapest(
    constant: list[_Costs], weights: Weights, fall: Floats, rise: Floats, ranges: Rectangle | None = None
) -> _Costs:
    """Of the candidates the one that costs least on average, neuron by neuron: any is sound."""
    tried = list(constant)
    if ranges is not None:
        low, high, least, most = (
            getattr(ranges, name)[:, 0].numpy(force=True) for name in ("low", "high", "least", "most")
        )
        tried += [_random(fall, rise, high, least, most, 0.0), _random(rise, fall, -low, least, most, 1.0)]
    count = max(one.mass.shape[2] for one in tried)
    tried = [one.padded(count) for one in tried]
    plus, minus = (mean_relu(side * weights.mean, weights.dev)[..., None] for side in (1, -1))
    means = np.stack([(one.mass * (plus * one.plus + minus * one.minus)).sum(2) for one in tried])
    best = np.where(np.isnan(means), np.inf, means).argmin(0)
    slope = np.take_along_axis(np.stack([one.slope for one in tried]), best[None], 0)[0]
    parts = (
        np.take_along_axis(np.stack([getattr(one, name) for one in tried]), best[None, ..., None], 0)[0]
        for name in ("mass", "plus", "minus")
    )
    return _Costs(slope, *parts)


def _random(fall: Floats, rise: Floats, high: Floats, least: Floats, most: Floats, slope: float) -> _Costs:
    """For a = 0 and zeta at most `high` on average; for a = 1 with everything mirrored."""
    part = np.linspace(0.0, 1.0, CELLS + 1)
    zero = np.zeros((*fall.shape, 1))
    ends = np.concatenate([-rise[..., None] * (1 - part[:-1]), zero, fall[..., None] * part[1:]], -1)
    over = high[..., None] - ends[..., :-1]
    above = special.ndtr(over / np.where(over < 0, most[..., None], least[..., None]))
    mass = np.maximum(above - np.concatenate([above[..., 1:], zero], -1), 0.0) + 1e-12
    plus = np.minimum(fall[..., None], np.maximum(ends[..., 1:], 0.0)) * UP
    minus = np.maximum(rise[..., None] + np.minimum(ends[..., 1:], 0.0), 0.0) * UP
    return _Costs(np.full(fall.shape, slope), mass, plus, minus)


RATES = (0.7, 0.9, 1.0, 1.2)
"""tau over the best one for a Gaussian law, for zeta."""


SURELY = 40.0
"""Deviations that no weight exceeds, but for 1e-300."""


@dataclass(frozen=True, eq=False)
class Second:
    """The second layer at Q points: mean, variance (H2, H1) of W, and ranges (Q, H2) of zeta and v;
    tilt (Q, H2, n) : q_ij; spare : y of one event.
    """

    mean: Floats
    variance: Floats
    low: Floats
    high: Floats
    fall: Floats
    rise: Floats
    tilt: Floats
    theta: Floats
    reach: tuple[Floats, Floats]
    y: float


def quantile(share: float) -> float:
    """y with Phi(-y) <= share."""
    return float(-special.ndtri(share)) * (1 + 1e-9) + 1e-9


def second(layer: FirstLayer, dense: DenseLayer, guess: Floats, structure: float) -> Second:
    """Ranges at all points, for rows whose gradient in h is about `guess` (Q, H1)."""
    mean, bias, variance, noise = (
        part.detach().cpu().numpy() for part in (dense.mean, dense.bias, dense.variance, dense.bias_variance)
    )
    (count, width), inputs = mean.shape, layer.point.shape[1]
    share = structure / (2 * width + count * (2 * inputs + 4) + 3 * width)
    log_share, y = np.log(share), quantile(share)
    up, down = layer.reach(y)
    theta = np.where(guess > 0, 0.0, np.maximum(down - up, 0.0))
    shape = len(layer.point), count, width
    rows = Rows(np.broadcast_to(mean, shape), np.broadcast_to(variance, shape), np.zeros(shape))
    above, below = slopes(layer, rows, theta, log_share)
    other = Rows(-rows.mean, rows.variance, rows.extra)
    fall = over(layer, above, below) + kinks(layer, rows, theta, (up, down), log_share)
    rise = over(layer, below, above) + kinks(layer, other, theta, (up, down), log_share)
    low, high = _inputs(layer, mean, bias, variance, noise, log_share)
    tilt = np.maximum(np.maximum(above, below), 0.0)
    return Second(mean, variance, low, high, fall, rise, tilt, theta, (up, down), y)


def over(layer: FirstLayer, above: Floats, below: Floats) -> Floats:
    """(Q, K): -inf over the box of sum_j delta_j U_j for U_j in [-below_j, above_j] (Q, K, n)."""
    high, low = layer.high[:, None], layer.low[:, None]
    return np.maximum(high * np.maximum(below, 0.0), -low * np.maximum(above, 0.0)).sum(2) * UP


def _inputs(
    layer: FirstLayer, mean: Floats, bias: Floats, variance: Floats, noise: Floats, log_share: float
) -> tuple[Floats, Floats]:
    """(Q, H2), (Q, H2): zeta is outside with probability at most exp(log_share) on either side."""
    m, s = (torch.as_tensor(part)[:, None] for part in (layer.m, layer.s))
    at = Rectangle(m, m, s, s, m, s)
    h = mean_relu(layer.m, layer.s)
    square = (layer.m**2 + layer.s**2) * special.ndtr(layer.m / layer.s)
    spread = np.sqrt(np.maximum(square - h**2, 0.0) @ (mean**2).T + square @ variance.T + noise) + 1e-100
    ends = []
    for sign in (-1.0, 1.0):
        best = np.full(spread.shape, np.inf)
        for times in RATES:
            tau = times * np.sqrt(-2 * log_share) / spread
            alpha = torch.as_tensor(sign * tau[..., None] * mean)
            beta = torch.as_tensor(tau[..., None] ** 2 * variance / 2)
            logs = log_moment(alpha, beta, at.low, at.least).numpy()
            total = logs.sum(2) + 1e-9 * (1 + np.abs(logs).sum(2)) + tau**2 * noise / 2 * UP - log_share
            best = np.fmin(best, total / tau * UP)
        ends.append(np.where(np.isnan(best), np.inf, best) + sign * bias + 1e-12 * np.abs(bias))
    return -ends[0], ends[1]


def loss(layer: FirstLayer, at: Second, weights: Weights, share: float, ranges: Rectangle | None = None) -> Floats:
    """(Q,): what the rows lose at most on the events; ranges (Q, 1, H2) of mean and deviation of zeta given h(x*)."""
    inputs = layer.point.shape[1]
    each = share / (4 * inputs + 2)
    log_share, y = np.log(each), quantile(each)
    found = cheapest(_constant(at), weights, at.fall, at.rise, ranges)
    slope, parts = found.slope, (found.mass[:, None], found.plus[:, None], found.minus[:, None])
    last = Rows(weights.mean[:, None], weights.dev[:, None] ** 2 * UP, np.zeros_like(weights.mean)[:, None])
    unsure = cost(*parts, last, log_share)[:, 0]
    scaled, moved = slope * weights.mean, slope * weights.dev
    size = np.sqrt(((moved[..., None] * np.hypot(at.mean, np.sqrt(at.variance))) ** 2).sum(1))
    largest = (moved[..., None] * np.sqrt(at.variance)).max(1)
    extra = at.y * (size + at.y * largest) * UP**2
    paid = gamma(2 * len(at.mean) + 8) * (np.abs(scaled) @ np.abs(at.mean))
    rows = Rows((scaled @ at.mean)[:, None], (scaled**2 @ at.variance)[:, None] * UP, (extra + paid)[:, None])
    noise = y * np.sqrt(np.einsum("qi,qij->qj", moved**2, at.tilt**2)) * UP**2
    noise = noise + paid @ (np.abs(layer.mean) + SURELY * np.sqrt(layer.variance))
    above, below = (part + noise[:, None] for part in slopes(layer, rows, at.theta, log_share))
    return (over(layer, above, below) + kinks(layer, rows, at.theta, at.reach, log_share))[:, 0] + unsure * UP**2


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # ranges may be infinite
def _constant(at: Second) -> list[_Costs]:
    """Four candidates for a, with p and q for all zeta of the range."""
    below, above = np.minimum(at.fall, np.maximum(at.high, 0.0)), np.minimum(at.rise, np.maximum(-at.low, 0.0))
    over_, start = np.minimum(at.rise, np.maximum(at.high + at.rise, 0.0)), np.maximum(at.low, 0.0)
    zero, found = np.zeros_like(below), []
    for tried in (zero, zero + 1, below / (below + above), (over_ + start) / (over_ + at.fall)):
        a = np.clip(np.nan_to_num(tried), 0.0, 1.0)
        plus = np.maximum((1 - a) * below, a * above) * UP
        minus = np.maximum((1 - a) * over_, np.maximum(a * at.fall - start, 0.0)) * UP
        found.append(_Costs(a, np.ones((*a.shape, 1)), plus[..., None], minus[..., None]))
    return found
