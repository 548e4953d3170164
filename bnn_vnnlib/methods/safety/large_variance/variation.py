"""What a row of a network with two hidden ReLU layers loses, at most, between a point x* and the other points of a box.

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

from dataclasses import dataclass

import numpy as np
import torch
from scipy import special

from bnn_vnnlib.gaussian.half_line import UP, Floats, mean_relu
from bnn_vnnlib.gaussian.relu import Rectangle, log_moment
from bnn_vnnlib.methods.safety.large_variance.first_layer import FirstLayer, Rows, cost, kinks, slopes
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
from bnn_vnnlib.methods.safety.large_variance.undecided_neurons import Costs, cheapest
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import gamma

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
def _constant(at: Second) -> list[Costs]:
    """Four candidates for a, with p and q for all zeta of the range."""
    below, above = np.minimum(at.fall, np.maximum(at.high, 0.0)), np.minimum(at.rise, np.maximum(-at.low, 0.0))
    over_, start = np.minimum(at.rise, np.maximum(at.high + at.rise, 0.0)), np.maximum(at.low, 0.0)
    zero, found = np.zeros_like(below), []
    for tried in (zero, zero + 1, below / (below + above), (over_ + start) / (over_ + at.fall)):
        a = np.clip(np.nan_to_num(tried), 0.0, 1.0)
        plus = np.maximum((1 - a) * below, a * above) * UP
        minus = np.maximum((1 - a) * over_, np.maximum(a * at.fall - start, 0.0)) * UP
        found.append(Costs(a, np.ones((*a.shape, 1)), plus[..., None], minus[..., None]))
    return found
