"""What a row of a network with two hidden ReLU layers loses, at most, between a point x* and the other points of a box.

Let zeta_i = W_i h(x*) + c_i be the second layer's inputs at x*, h the first layer's outputs, v_i(x) = W_i g(x) with g
of `first_layer`, and D_i ~ N(mean_i, dev_i^2) the row's combination of the last layer. Then
    row(x) - row(x*) = sum_i D_i (relu(zeta_i + v_i) - relu(zeta_i)).

Ranges. zeta_i lies in [low_i, high_i] by Chernoff's bound: E e^{tau zeta_i} is a product over k of
E e^{tau mean h_k + tau^2 variance h_k^2 / 2}, h_k = relu(z_k), in closed form. v_i lies in [-fall_i, rise_i] for all x
of the box: `first_layer` with the rows +-W_i, whose entries are independent of the first layer.

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
The last sum is bounded by Chernoff's bound (`first_layer.cost`), where p and q may depend on zeta, see below. The first
one is w . g(x), w_k = sum_i a_i mean_i W_ik + e_k, e_k = sum_i a_i (D_i - mean_i) W_ik: a row of `first_layer` with
- |e_k| <= y root of sum_i (a_i dev_i W_ik)^2 but with probability 2 Phi(-y), given W; and that root, a norm, is at most
  root of sum (a_i dev_i)^2 E W_ik^2 + y max_i (a_i dev_i sd W_ik) but with probability Phi(-y);
- N_j = sum_k e_k a_k V_kj = sum_i a_i (D_i - mean_i) U_ij, U_ij that of row W_i: |N_j| <= y root of sum_i (a_i dev_i
  q_ij)^2 but with probability 2 Phi(-y), where |U_ij| <= q_ij.
Hence w . g(x) >= -sum_j max(high_j (U'_j)^-, -low_j (U'_j)^+) - kinks, U'_j = U_j + N_j.

Every event is one about the weights whose failures have a probability that is known without the others, so that all are
added: `structure` is spent on the events about single neurons, `share` on those about the row. What is left out of
these events is nothing: on them the row loses at most `loss` anywhere in the box.

What neurons of the second layer cost of which it is not sure whether they are active.

As above let f = relu(zeta + v) - relu(zeta) - a v, v in [-fall, rise], -p <= f <= q, cost D^+ p + D^- q. For
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
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import LEAST, cdf, quantile
from bnn_vnnlib.gaussian.relu import Rectangle, log_moment, relu_mean, relu_square
from bnn_vnnlib.methods.safety.large_variance.first_layer import FirstLayer, RowWeights, cost, kinks, slope_quantiles
from bnn_vnnlib.methods.safety.large_variance.lines import summed
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import PAID, UP, gamma

_CELLS = 8
"""Cells of zeta on either side of 0."""


@dataclass(frozen=True, eq=False)
class _Costs:
    """slope (Q, H): a. mass, plus, minus (Q, H, C): masses of cells of zeta, p and q on them; elsewhere both are 0."""

    slope: Tensor
    mass: Tensor
    plus: Tensor
    minus: Tensor

    def padded(self, count: int) -> _Costs:
        """These costs in `count` cells, of which the added ones have mass 0 and cost nothing."""
        wide = (0, count - self.mass.shape[2])
        return _Costs(self.slope, *(torch.nn.functional.pad(part, wide) for part in (self.mass, self.plus, self.minus)))


def cheapest(
    constant: list[_Costs], weights: Weights, fall: Tensor, rise: Tensor, ranges: Rectangle | None = None
) -> _Costs:
    """The costs of the candidate that costs least on average, neuron by neuron: any is sound."""
    tried = list(constant)
    if ranges is not None:
        low, high, least, most = (side[:, 0] for side in (ranges.low, ranges.high, ranges.least, ranges.most))
        tried += [_random(fall, rise, high, least, most, 0.0), _random(rise, fall, -low, least, most, 1.0)]
    count = max(one.mass.shape[2] for one in tried)
    tried = [one.padded(count) for one in tried]
    plus, minus = (relu_mean(side * weights.mean, weights.dev)[..., None] for side in (1, -1))
    means = torch.stack([(one.mass * (plus * one.plus + minus * one.minus)).sum(2) for one in tried])
    best = means.nan_to_num(torch.inf, torch.inf).argmin(0, keepdim=True)

    def of_best(parts: tuple[Tensor, ...]) -> Tensor:
        shape = best.shape + (1,) * (parts[0].dim() - 2)
        return torch.stack(parts).take_along_dim(best.reshape(shape), 0)[0]

    return _Costs(*(of_best(parts) for parts in zip(*(vars(one).values() for one in tried), strict=True)))


def _random(fall: Tensor, rise: Tensor, high: Tensor, least: Tensor, most: Tensor, slope: float) -> _Costs:
    """Costs with a = 0 of neurons whose zeta is at most `high` on average, in cells of zeta; with everything mirrored,
    those with a = 1.
    """
    part = torch.linspace(0.0, 1.0, _CELLS + 1, dtype=fall.dtype, device=fall.device)
    zero = torch.zeros_like(fall)[..., None]
    ends = torch.cat([-rise[..., None] * (1 - part[:-1]), zero, fall[..., None] * part[1:]], -1)
    over = high[..., None] - ends[..., :-1]
    above = cdf(over / torch.where(over < 0, most[..., None], least[..., None]))
    mass = (above - torch.cat([above[..., 1:], zero], -1)).clamp(min=0.0) + 1e-12
    plus = torch.minimum(fall[..., None], ends[..., 1:].clamp(min=0.0)) * UP
    minus = (rise[..., None] + ends[..., 1:].clamp(max=0.0)).clamp(min=0.0) * UP
    return _Costs(torch.full_like(fall, slope), mass, plus, minus)


_ZETA_TAUS = (0.7, 0.9, 1.0, 1.2)
"""Values of tau for zeta that are tried, over the best one for a Gaussian law."""


_SURELY = 40.0
"""Deviations that no weight exceeds, but for 1e-300."""


@dataclass(frozen=True, eq=False)
class SecondLayer:
    """The second layer at Q points: mean, variance (H2, H1) of W, and ranges (Q, H2) of zeta and v;
    tilt (Q, H2, n) : q_ij; spare : y of one event.
    """

    mean: Tensor
    variance: Tensor
    low: Tensor
    high: Tensor
    fall: Tensor
    rise: Tensor
    tilt: Tensor
    theta: Tensor
    reach: tuple[Tensor, Tensor]
    y: float


def _deviations(share: float) -> float:
    """y with Phi(-y) <= share."""
    return float(quantile(torch.tensor(share, dtype=torch.float64)))


def second(layer: FirstLayer, dense: DenseLayer, guess: Tensor, structure: float) -> SecondLayer:
    """Ranges at all points, for rows whose gradient in h is about `guess` (Q, H1)."""
    mean, variance = dense.mean, dense.variance
    (count, width), inputs = mean.shape, layer.point.shape[1]
    share = structure / (2 * width + count * (2 * inputs + 4) + 3 * width)
    log_share, y = math.log(share), _deviations(share)
    up, down = layer.reach(y)
    theta = torch.where(guess > 0, 0.0, (down - up).clamp(min=0.0))
    shape = len(layer.point), count, width
    rows = RowWeights(mean.expand(shape), variance.expand(shape), mean.new_zeros(shape))
    above, below = slope_quantiles(layer, rows, theta, log_share)
    other = RowWeights(-rows.mean, rows.variance, rows.extra)
    fall = _least_over_box(layer, above, below) + kinks(layer, rows, theta, (up, down), log_share)
    rise = _least_over_box(layer, below, above) + kinks(layer, other, theta, (up, down), log_share)
    low, high = _inputs(layer, dense, log_share)
    tilt = torch.maximum(above, below).clamp(min=0.0)
    return SecondLayer(mean, variance, low, high, fall, rise, tilt, theta, (up, down), y)


def _least_over_box(layer: FirstLayer, above: Tensor, below: Tensor) -> Tensor:
    """(Q, K): -inf over the box of sum_j delta_j U_j for U_j in [-below_j, above_j] (Q, K, n)."""
    high, low = layer.high[:, None], layer.low[:, None]
    return torch.maximum(high * below.clamp(min=0.0), -low * above.clamp(min=0.0)).sum(2) * UP


def _inputs(layer: FirstLayer, dense: DenseLayer, log_share: float) -> tuple[Tensor, Tensor]:
    """(Q, H2), (Q, H2): zeta is outside with probability at most exp(log_share) on either side."""
    mean, bias, variance, noise = dense.mean, dense.bias, dense.variance, dense.bias_variance
    h, square = relu_mean(layer.m, layer.s), relu_square(layer.m, layer.s)
    spread = torch.sqrt((square - h**2).clamp(min=0.0) @ (mean**2).mT + square @ variance.mT + noise) + LEAST
    ends = []
    for sign in (-1.0, 1.0):
        best = torch.full_like(spread, torch.inf)
        for times in _ZETA_TAUS:
            tau = times * math.sqrt(-2 * log_share) / spread
            alpha, beta = sign * tau[..., None] * mean, tau[..., None] ** 2 * variance / 2
            logs = log_moment(alpha, beta, layer.m[:, None], layer.s[:, None])
            total = logs.sum(2) + 1e-9 * (1 + logs.abs().sum(2)) + tau**2 * noise / 2 * UP - log_share
            best = torch.fmin(best, total / tau * UP)
        ends.append(best + sign * bias + PAID * bias.abs())
    return -ends[0], ends[1]


def loss(layer: FirstLayer, at: SecondLayer, weights: Weights, share: float, ranges: Rectangle | None = None) -> Tensor:
    """(Q,): what the rows lose at most on the events; ranges (Q, 1, H2) of mean and deviation of zeta given h(x*)."""
    inputs = layer.point.shape[1]
    each = share / (4 * inputs + 2)
    log_share, y = math.log(each), _deviations(each)
    found = cheapest(_constant(at), weights, at.fall, at.rise, ranges)
    slope, parts = found.slope, (found.mass[:, None], found.plus[:, None], found.minus[:, None])
    last = RowWeights(weights.mean[:, None], weights.dev[:, None] ** 2 * UP, torch.zeros_like(weights.mean)[:, None])
    unsure = cost(*parts, last, log_share)[:, 0]
    scaled, moved = slope * weights.mean, slope * weights.dev
    shaken = torch.sqrt(at.variance)
    size = torch.sqrt(((moved[..., None] * torch.hypot(at.mean, shaken)) ** 2).sum(1))
    largest = (moved[..., None] * shaken).amax(1)
    extra = at.y * (size + at.y * largest) * UP**2
    paid = gamma(2 * len(at.mean) + 8) * (scaled.abs() @ at.mean.abs())
    rows = RowWeights((scaled @ at.mean)[:, None], (scaled**2 @ at.variance)[:, None] * UP, (extra + paid)[:, None])
    noise = y * torch.sqrt(summed(moved**2, at.tilt**2)) * UP**2
    noise = noise + paid @ (layer.mean.abs() + _SURELY * torch.sqrt(layer.variance))
    above, below = (part + noise[:, None] for part in slope_quantiles(layer, rows, at.theta, log_share))
    return (_least_over_box(layer, above, below) + kinks(layer, rows, at.theta, at.reach, log_share))[
        :, 0
    ] + unsure * UP**2


def _constant(at: SecondLayer) -> list[_Costs]:
    """Four candidates for a, with p and q for all zeta of the range, which may be infinite."""
    below, above = torch.minimum(at.fall, at.high.clamp(min=0.0)), torch.minimum(at.rise, (-at.low).clamp(min=0.0))
    over_, start = torch.minimum(at.rise, (at.high + at.rise).clamp(min=0.0)), at.low.clamp(min=0.0)
    zero, found = torch.zeros_like(below), []
    for tried in (zero, zero + 1, below / (below + above), (over_ + start) / (over_ + at.fall)):
        a = tried.nan_to_num().clamp(0.0, 1.0)
        plus = torch.maximum((1 - a) * below, a * above) * UP
        minus = torch.maximum((1 - a) * over_, (a * at.fall - start).clamp(min=0.0)) * UP
        found.append(_Costs(a, torch.ones_like(a)[..., None], plus[..., None], minus[..., None]))
    return found
