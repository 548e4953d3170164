"""Two rows at once: lower bounds on the probability that both hold at a point, for one hidden ReLU layer.

Failures A_1, .., A_R of rows somewhere in a box satisfy, for every tree over the rows (Hunter and Worsley),
    P(A_1 or .. or A_R) <= sum of P(A_k) - sum over its edges of P(A_j and A_k),
since the edges among the A_k that happen are a forest, and so fewer than those. The right side stays a bound if P(A_k)
is replaced by something larger and P(A_j and A_k) by something smaller, such as the probability q that both rows hold
at one point x of the box; x may depend on the two rows.

At x let M_r = B_r + sum_j D_rj h_j, r = 1, 2: h_j = relu(z_j), z_j ~ N(m_j, s_j^2) independent of each other and of
the Gaussian (D_1j, D_2j) with means mu_rj and covariances C_j, and of B. Given h the exponent of a wave (w, v) is
Gaussian, a_j = w mu_1j + v mu_2j, b_j = (w, v)' C_j (w, v), and so E e^{i (w M_1 + v M_2)} is a product of
    P(z <= 0) + E[e^{i a z - b z^2 / 2}; z > 0],
    E[..] = c^{-1/2} e^{-b m^2 / (2 c)} E[e^{i a z'}; z' > 0],   z' ~ N(m / c, s^2 / c),   c = 1 + b s^2,
the last factor being J of `gaussian`. Each is of size at most P(z <= 0) + E[e^{-b z^2 / 2}; z > 0], which falls in b,
and b >= (C_11 - C_12^2 / C_22) w^2 for every v: an envelope of all waves beyond w, to which the noise of B adds alike.

Inversion. With independent standard Gaussian N_r, y_r = M_r + eta_r (N_r + c) and y_1, y_2 <= 0 imply M_1, M_2 <= 0
unless some N_r < -c. Let S be the square wave of period 2 P that is sign(y) on (-P, P): (1 - S) / 2 lies in [0, 1] and
is 0 on (0, P), so that (1 - S_1)(1 - S_2) / 4 is at most the indicator of y_1, y_2 <= 0 unless some y_r >= P_r. Hence
    q >= E (1 - S_1)(1 - S_2) / 4 - sum over r of (P(y_r >= P_r) + Phi(-c)),
    E S_r = (4 / pi) sum over odd n of Im phi(w_n) / n,
    E S_1 S_2 = (8 / pi^2) sum over odd n, k of Re(phi(w_n, -v_k) - phi(w_n, v_k)) / (n k),
phi that of y; the series converge absolutely because of N_r. The tails beyond P_r are Chernoff's. What is left out of
the series, n or k beyond an even number L, is cut into shells (L 2^d, L 2^{d+1}] of the larger one of n, k: the sum of
1 / n over the odd numbers of a shell is at most (log 2) / 2, that over odd numbers up to K at most 1 + log(K) / 2.

What several rows of an item fail with at once: see `pairs` for the inequality.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import special
from torch import Tensor

from bnn_vnnlib.gaussian.half_line import DOWN, PAID, TERM, UP, Complexes, Floats, density, half_line, mean_relu
from bnn_vnnlib.gaussian.relu import log_moment
from bnn_vnnlib.methods.safety.large_variance.lines import Inputs, inputs
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

WAVES = 16
"""Odd numbers of either series."""

SMOOTH = ((1e-4, 5.0), (1e-3, 4.5), (0.01, 4.0), (0.05, 3.5))
"""eta over the standard deviation of M, and c."""

BEYOND = 6.0
"""Standard deviations from the mean within which the wave is right."""

RATES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0)
"""lam times the standard deviation of M."""

DOUBLINGS, FINAL = 40, 9.0
"""Shells, and eta times the last wave at least: what comes after it is below 1e-15."""


@dataclass(frozen=True, eq=False)
class PairsAtBoxes:
    """Question: do outputs_r . f(x) <= bound_r hold for both r. Boxes (P, n); outputs (A, 2, m), bound (A, 2), box
    (A,) of each pair."""

    lower: Floats
    upper: Floats
    outputs: Floats
    bound: Floats
    box: np.ndarray

    def some(self, index: slice) -> PairsAtBoxes:
        """Some of the pairs."""
        return PairsAtBoxes(self.lower, self.upper, self.outputs[index], self.bound[index], self.box[index])


@dataclass(frozen=True, eq=False)
class _Pair:
    """mean, size (A, 2, H): of D, and the sums of the absolute terms behind it; covariance (A, 2, 2, H) of D; known
    (A, 2), noise (A, 2, 2): mean and covariance of B; at : z at x; center, spread (A, 2): of M, about.
    """

    mean: Floats
    size: Floats
    covariance: Floats
    known: Floats
    noise: Floats
    at: Inputs
    center: Floats
    spread: Floats


def both(layers: DenseChain, question: PairsAtBoxes, deadline: Deadline) -> Floats:
    """(A,): lower bounds on the probability that both rows hold at some point of the box; 0 where nothing is known."""
    found = np.zeros(len(question.box))
    each = at_once(8 * layers.first.outputs * 2 * WAVES * (WAVES + 1))
    for start in range(0, len(found), each):
        if deadline.passed:
            break
        found[start : start + each] = _bounded(layers, question.some(slice(start, start + each)))
    return found


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what overflows ends as 0
def _bounded(layers: DenseChain, question: PairsAtBoxes) -> Floats:
    pair = _pair(layers, question)
    period = np.abs(pair.center) + BEYOND * pair.spread
    step = np.pi / period
    w, v, scale = _series(step)
    phi, wrong = _transform(pair, w, v)
    best = np.zeros(len(period))
    for smooth, reach in SMOOTH:
        eta = smooth * pair.spread
        damped = np.exp(-((w * eta[:, :1]) ** 2 + (v * eta[:, 1:]) ** 2) / 2)
        moved = np.exp(1j * reach * (w * eta[:, :1] + v * eta[:, 1:]))
        total = (1 + (scale * phi * damped * moved).real.sum(1)) / 4
        error = (np.abs(scale) * wrong * damped).sum(1) / 4 + _rest(pair, step, eta)
        lost = _beyond(pair, period, eta, reach) + 2 * float(special.ndtr(-reach)) * UP
        best = np.fmax(best, total - error - lost - 1e-11)
    return np.where(pair.at.served, np.maximum(best - pair.at.blur, 0.0), 0.0) * DOWN


def _series(step: Floats) -> tuple[Floats, Floats, Complexes]:
    """Waves w, v (A, K) and factors (K,) of which the real parts of factor times phi are the terms of -E S_1 - E S_2 +
    E S_1 S_2; step (A, 2) is pi / P.
    """
    n = np.arange(1.0, 2 * WAVES, 2)
    zero, one, other = np.zeros(WAVES), np.repeat(n, WAVES), np.tile(n, WAVES)
    single, double = 4j / (np.pi * n), 8 / np.pi**2 / (one * other)
    w, v = np.concatenate([n, zero, one, one]), np.concatenate([zero, n, -other, other])
    return w * step[:, :1], v * step[:, 1:], np.concatenate([single, single, double, -double])


def _pair(layers: DenseChain, question: PairsAtBoxes) -> _Pair:
    last = layers.last
    parts = (last.mean, last.bias, last.variance, last.bias_variance)
    mean, bias, variance, noise = (part.numpy(force=True) for part in parts)
    a = question.outputs
    d, size = a @ mean, np.abs(a) @ np.abs(mean)
    scaled, shaken = a[..., None] * np.sqrt(variance), a * np.sqrt(noise)  # products first: squares underflow
    covariance = np.einsum("aroh,asoh->arsh", scaled, scaled)
    known = a @ bias - question.bound
    known = known + PAID * (np.abs(a) @ np.abs(bias) + np.abs(question.bound))  # rows hold less often
    at = inputs(layers.first, _worst(layers.first, d.sum(1), question))
    h = mean_relu(at.m, at.s)
    square = (at.m**2 + at.s**2) * special.ndtr(at.m / at.s) + at.m * at.s * density(at.m / at.s)
    own = np.einsum("arrh->arh", covariance)
    total = np.einsum("arh,ah->ar", d**2 + own, square) - np.einsum("arh,ah->ar", d**2, h**2)
    noises = shaken @ shaken.mT
    spread = np.sqrt(np.maximum(total, 0.0) + np.einsum("arr->ar", noises)) + 1e-100
    center = known + np.einsum("arh,ah->ar", d, h)
    return _Pair(d, size, covariance, known, noises, at, center, spread)


def _worst(first: DenseLayer, gradient: Floats, question: PairsAtBoxes) -> Floats:
    """(A, n): x, the corner where both rows are smallest on average to first order. Any x of the box will do."""
    lower, upper = question.lower[question.box], question.upper[question.box]
    center = (lower + upper) / 2
    at = inputs(first, center)
    active, edge = special.ndtr(at.m / at.s), density(at.m / at.s) / at.s
    slope = (gradient * active) @ first.mean.numpy(force=True)
    slope = slope + center * ((gradient * edge) @ first.variance.numpy(force=True))
    corner = np.where(slope > 0, lower, upper)
    return np.where(np.isfinite(slope), corner, lower)


def _form(matrix: Floats, x: Floats, y: Floats) -> Floats:
    """(A, K, ..): the quadratic forms (A, 2, 2, ..) at (x, y) (A, K)."""
    tail = (slice(None), slice(None), *[None] * (matrix.ndim - 3))
    x, y, form = x[tail], y[tail], matrix[:, None]
    return np.asarray(x**2 * form[:, :, 0, 0] + 2 * x * y * form[:, :, 0, 1] + y**2 * form[:, :, 1, 1])


def _transform(pair: _Pair, w: Floats, v: Floats) -> tuple[Complexes, Floats]:
    """E e^{i (w M_1 + v M_2)} at waves (A, K), and bounds on its errors.

    Errors of a and b are at most PAID times `size` and the sizes of the terms of b, and move a factor by that times
    E h and E h^2 / 2; J is computed to TERM, and what multiplies it is at most 1.
    """
    m, s = pair.at.m[:, None], pair.at.s[:, None]
    a = w[..., None] * pair.mean[:, None, 0] + v[..., None] * pair.mean[:, None, 1]
    b = np.maximum(_form(pair.covariance, w, v), 0.0)
    c = 1 + b * s**2
    factor = np.exp(-b * m**2 / (2 * c)) / np.sqrt(c)
    each = special.ndtr(-m / s) + factor * half_line(a, m / c, s / np.sqrt(c), 0.0)
    phase = w * pair.known[:, :1] + v * pair.known[:, 1:]
    product = each.prod(2) * np.exp(1j * phase - _form(pair.noise, w, v) / 2)
    large, high = np.abs(w), np.abs(v)
    sizes = large[..., None] * pair.size[:, None, 0] + high[..., None] * pair.size[:, None, 1]
    wide = _form(np.abs(pair.covariance), large, high)
    wrong = (4 * TERM + PAID * (sizes * mean_relu(m, s) + wide * (m**2 + s**2))).sum(2)
    known = large * np.abs(pair.known[:, :1]) + high * np.abs(pair.known[:, 1:])
    wrong = wrong + PAID * (known + _form(np.abs(pair.noise), large, high))
    return product, np.minimum(np.nan_to_num(wrong, nan=2.0), 2.0) * UP


def _rest(pair: _Pair, step: Floats, eta: Floats) -> Floats:
    """(A,): what the waves that are left out add to a quarter of the series."""
    at, last = pair.at, 2 * WAVES
    numbers = last * 2.0 ** np.arange(DOUBLINGS)
    total = np.zeros(len(step))
    for r in (0, 1):
        waves = step[:, r, None] * numbers
        b = waves[..., None] ** 2 * _own(pair.covariance, r)[:, None]
        c = 1 + b * (at.s**2)[:, None]
        m, s = at.m[:, None], at.s[:, None]
        each = special.ndtr(-m / s) + np.exp(-b * m**2 / (2 * c)) / np.sqrt(c) * special.ndtr(m / (s * np.sqrt(c)))
        noise = _own(pair.noise, r) + eta[:, r] ** 2 * DOWN
        size = np.minimum(each * (1 + 1e-9), 1.0).prod(2) * np.exp(-(waves**2) * noise[:, None] / 2)
        shells = np.log(2) / 2 * (4 / np.pi + 16 / np.pi**2 * (1 + np.log(2 * numbers) / 2))
        short = waves[:, -1] * eta[:, r] < FINAL
        total = total + np.where(short, np.inf, (size * shells).sum(1))
    return total / 4 * (1 + 1e-9) + 1e-12


def _own(covariance: Floats, r: int) -> Floats:
    """(A, ..): the variance of entry r given the other one, from below."""
    mixed, other = covariance[:, 0, 1], covariance[:, 1 - r, 1 - r]
    return np.maximum(covariance[:, r, r] * DOWN**4 - mixed**2 / np.maximum(other, 1e-300), 0.0)


def _beyond(pair: _Pair, period: Floats, eta: Floats, reach: float) -> Floats:
    """(A,): P(y_1 >= P_1) + P(y_2 >= P_2), from above."""
    m, s = (torch.as_tensor(part)[:, None] for part in (pair.at.m, pair.at.s))
    best = np.ones_like(period)
    for rate in RATES:
        lam = rate / pair.spread
        alpha = lam[..., None] * (pair.mean + PAID * pair.size)  # h is never negative
        beta = lam[..., None] ** 2 / 2 * np.einsum("arrh->arh", pair.covariance) * UP
        logs = log_moment(torch.as_tensor(alpha), torch.as_tensor(beta), m, s).numpy()
        noise = (np.einsum("arr->ar", pair.noise) + eta**2) * lam**2 / 2 * UP
        exponent = logs.sum(2) + 1e-9 * (1 + np.abs(logs).sum(2)) + noise + lam * (pair.known + eta * reach - period)
        exponent = exponent + PAID * lam * (np.abs(pair.known) + eta * reach + period)
        best = np.fmin(best, np.exp(exponent))
    return np.asarray(best.sum(1))


WORTH = 3e-3
"""What the sum over rows exceeds its largest term by, at least: it cannot exceed the union by more."""

LEAST = 1e-4
"""Failure of a row, at least, that is looked at."""


def shared(
    layers: DenseChain, problem: Problem, outputs: Tensor, bound: Tensor, failures: Tensor, deadline: Deadline
) -> Tensor:
    """(N,): at least this much may be taken from the sum over cases of an item.

    The tree is a star: the row that fails most, joined with the others. Only cases of one row are looked at; the
    other ones are left out of the tree, which stays a forest.

    Parameters
    ----------
    outputs, bound : (N, R, m), (N, R): rows outputs . f(x) <= bound of which the cases are made
    failures : (N, R) upper bounds, at most 1, on the probabilities that they hold somewhere in the box
    """
    case = problem.rows.case.expand(failures.shape)
    heights = torch.cat([problem.total(torch.ones_like(failures)), failures.new_zeros(len(problem), 1)], 1)
    exists = torch.cat([problem.exists.expand(len(problem), -1), problem.exists.new_zeros(len(problem), 1)], 1)
    lone = (heights.gather(1, case) == 1) & exists.gather(1, case) & torch.isfinite(bound)
    values = torch.where(lone, failures, 0.0)
    most, hub = values.max(1, keepdim=True)
    worth = (values.sum(1, keepdim=True) - most > WORTH) & (most < 1)
    chosen = lone & worth & (values > LEAST)
    item, row = torch.nonzero(chosen.scatter(1, hub, torch.zeros_like(worth)), as_tuple=True)
    found = torch.zeros_like(failures[:, 0])
    if not len(item):
        return found
    pair = torch.stack([hub[item, 0], row], 1)
    lower, upper = (np.asarray(part.numpy(force=True), dtype=np.float64) for part in (problem.lower, problem.upper))
    rows, bounds = (part[item[:, None], pair].numpy(force=True) for part in (outputs, bound))
    question = PairsAtBoxes(lower, upper, rows, bounds, item.numpy(force=True))
    values = torch.as_tensor(both(layers, question, deadline), device=found.device)
    return found.index_add(0, item, values) * (1 - 1e-12)
