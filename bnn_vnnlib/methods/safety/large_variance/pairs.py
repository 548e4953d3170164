"""Two rows at once: lower bounds on the probability that both hold at a point, for one hidden ReLU layer.

Failures A_1, .., A_R of rows somewhere in a box satisfy, for every tree over the rows (Hunter and Worsley),
    P(A_1 or .. or A_R) <= sum of P(A_k) - sum over its edges of P(A_j and A_k),
since the edges among the A_k that happen are a forest, and so fewer than those. The right side stays a bound if P(A_k)
is replaced by something larger and P(A_j and A_k) by something smaller, such as the probability q that both rows hold
at one point x of the box; x may depend on the two rows.

At x let M_r = B_r + sum_j D_rj h_j, r = 1, 2: h_j = relu(z_j), z_j ~ N(m_j, s_j^2) independent of each other and of
the Gaussian (D_1j, D_2j) with means mu_rj and covariances C_j, and of B. Given h the exponent of a wave (w, v) is
Gaussian, a_j = w mu_1j + v mu_2j, b_j = (w, v)' C_j (w, v), and so E e^{i (w M_1 + v M_2)} is a product of factors
    E e^{i a h - b h^2 / 2}
as in `gaussian.characteristic`. Each is of size at most E e^{-b h^2 / 2}, which falls in b, and b >= (C_11 - C_12^2 /
C_22) w^2 for every v: an envelope of all waves beyond w, to which the noise of B adds alike.

Inversion. With independent standard Gaussian N_r, y_r = M_r + eta_r (N_r + c) and y_1, y_2 <= 0 imply M_1, M_2 <= 0
unless some N_r < -c. By 3. of `gaussian.inversion`
    q >= E (1 - wave_1)(1 - wave_2) / 4 - sum over r of (P(y_r >= P_r) + Phi(-c)),
where the tails beyond P_r are Chernoff's.

What several rows of an item fail with at once: see `pairs` for the inequality.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian import inversion
from bnn_vnnlib.gaussian.characteristic import term
from bnn_vnnlib.gaussian.normal import LEAST, TERM, cdf, density
from bnn_vnnlib.gaussian.relu import log_moment, relu_mean, relu_square
from bnn_vnnlib.methods.safety.large_variance.lines import UnitInputs, unit_inputs
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.rounding import DOWN, PAID, UP
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

WAVES = 16
"""Odd numbers of either series."""

SMOOTH = ((1e-4, 5.0), (1e-3, 4.5), (0.01, 4.0), (0.05, 3.5))
"""eta over the standard deviation of M, and c."""

DEVIATIONS = 6.0
"""Standard deviations from the mean within which the wave is right."""

_PAIR_RATES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0)
"""Values of lam that are tried, over one by the standard deviation of M."""


@dataclass(frozen=True, eq=False)
class PairsAtBoxes:
    """Question: do outputs_r . f(x) <= bound_r hold for both r. Boxes (P, n); outputs (A, 2, m), bound (A, 2), box
    (A,) of each pair."""

    lower: Tensor
    upper: Tensor
    outputs: Tensor
    bound: Tensor
    box: Tensor

    def some(self, index: Tensor) -> PairsAtBoxes:
        """The pairs `some` (indices or a mask)."""
        return PairsAtBoxes(self.lower, self.upper, self.outputs[index], self.bound[index], self.box[index])


@dataclass(frozen=True, eq=False)
class _Pair:
    """mean, size (A, 2, H): of D, and the sums of the absolute terms behind it; covariance (A, 2, 2, H) of D; known
    (A, 2), noise (A, 2, 2): mean and covariance of B; at : z at x; center, spread (A, 2): of M, about.
    """

    mean: Tensor
    size: Tensor
    covariance: Tensor
    known: Tensor
    noise: Tensor
    at: UnitInputs
    center: Tensor
    spread: Tensor


def both(layers: DenseChain, question: PairsAtBoxes, deadline: Deadline) -> Tensor:
    """(A,): lower bounds on the probability that both rows hold at some point of the box; 0 where nothing is known."""
    found = torch.zeros_like(question.bound[:, 0])
    each = at_once(8 * layers.first.outputs * 2 * WAVES * (WAVES + 1))
    for some in torch.arange(len(found), device=found.device).split(each):
        if deadline.passed:
            break
        found[some] = _bounded(layers, question.some(some))
    return found


def _bounded(layers: DenseChain, question: PairsAtBoxes) -> Tensor:
    """Bounds for the pairs of the question; what overflows ends as 0."""
    pair = _pair(layers, question)
    period = pair.center.abs() + DEVIATIONS * pair.spread
    waves = inversion.pairs(math.pi / period, WAVES)
    smooth, c = (period.new_tensor(part) for part in zip(*SMOOTH, strict=True))
    eta = pair.spread[..., None] * smooth
    first, second = (functools.partial(_envelope, pair, r) for r in (0, 1))
    found = waves.quadrant(*_transform(pair, waves.w, waves.v), (first, second), eta, c)
    lost = torch.stack([_beyond(pair, period, *part) for part in zip(eta.unbind(-1), c, strict=True)], -1)
    best = torch.zeros_like(period[:, 0])
    for one in (found - lost - 2 * cdf(-c) * UP - 1e-11).unbind(-1):
        best = torch.fmax(best, one)
    return torch.where(pair.at.served, (best - pair.at.blur).clamp(min=0.0), 0.0) * DOWN


def _pair(layers: DenseChain, question: PairsAtBoxes) -> _Pair:
    """The pairs of rows in terms of the first layer at a corner of their box, with their moments."""
    last, a = layers.last, question.outputs
    d, size = a @ last.mean, a.abs() @ last.mean.abs()
    scaled, shaken = a[..., None] * torch.sqrt(last.variance), a * torch.sqrt(last.bias_variance)  # squares underflow
    covariance = torch.einsum("aroh,asoh->arsh", scaled, scaled)
    known = a @ last.bias - question.bound
    known = known + PAID * (a.abs() @ last.bias.abs() + question.bound.abs())  # rows hold less often
    at = unit_inputs(layers.first, _worst(layers.first, d.sum(1), question))
    h, square = relu_mean(at.m, at.s)[:, None], relu_square(at.m, at.s)[:, None]
    own, noises = covariance.diagonal(dim1=1, dim2=2).mT, shaken @ shaken.mT
    total = ((d**2 + own) * square - (d * h) ** 2).sum(-1)
    spread = torch.sqrt(total.clamp(min=0.0) + noises.diagonal(dim1=1, dim2=2)) + LEAST
    center = known + (d * h).sum(-1)
    return _Pair(d, size, covariance, known, noises, at, center, spread)


def _worst(first: DenseLayer, gradient: Tensor, question: PairsAtBoxes) -> Tensor:
    """(A, n): x, the corner where both rows are smallest on average to first order. Any x of the box will do."""
    lower, upper = question.lower[question.box], question.upper[question.box]
    center = (lower + upper) / 2
    at = unit_inputs(first, center)
    active, edge = cdf(at.m / at.s), density(at.m / at.s) / at.s
    slope = (gradient * active) @ first.mean + center * ((gradient * edge) @ first.variance)
    return torch.where(torch.isfinite(slope) & (slope <= 0), upper, lower)


def _form(matrix: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(A, K, ..): the quadratic forms (A, 2, 2, ..) at (x, y) (A, K)."""
    tail = (slice(None), slice(None), *[None] * (matrix.dim() - 3))
    x, y, form = x[tail], y[tail], matrix[:, None]
    return x**2 * form[:, :, 0, 0] + 2 * x * y * form[:, :, 0, 1] + y**2 * form[:, :, 1, 1]


def _transform(pair: _Pair, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """E e^{i (w M_1 + v M_2)} at waves (A, K), and bounds on its errors.

    Errors of a and b are at most PAID times `size` and the sizes of the terms of b, and move a factor by that times
    E h and E h^2 / 2; a factor is computed to TERM.
    """
    m, s = pair.at.m[:, None], pair.at.s[:, None]
    a = w[..., None] * pair.mean[:, None, 0] + v[..., None] * pair.mean[:, None, 1]
    b = _form(pair.covariance, w, v).clamp(min=0.0)
    phase = w * pair.known[:, :1] + v * pair.known[:, 1:]
    product = term(a, torch.sqrt(b), m, s).prod(2) * torch.polar(torch.exp(-_form(pair.noise, w, v) / 2), phase)
    large, high = w.abs(), v.abs()
    sizes = large[..., None] * pair.size[:, None, 0] + high[..., None] * pair.size[:, None, 1]
    wide = _form(pair.covariance.abs(), large, high)
    wrong = (4 * TERM + PAID * (sizes * relu_mean(m, s) + wide * (m**2 + s**2))).sum(2)
    known = large * pair.known[:, :1].abs() + high * pair.known[:, 1:].abs()
    wrong = wrong + PAID * (known + _form(pair.noise.abs(), large, high))
    return product, wrong.nan_to_num(2.0).clamp(max=2.0) * UP


def _envelope(pair: _Pair, r: int, w: Tensor) -> Tensor:
    """(A, W): bounds on |phi| where the wave of entry r is at or beyond w (A, W), whatever the other one is."""
    beta = w[..., None] * torch.sqrt(_own(pair.covariance, r))[:, None]
    each = term(torch.zeros_like(beta), beta, pair.at.m[:, None], pair.at.s[:, None]).real + 4 * TERM
    noise = torch.exp(-(w**2) * _own(pair.noise, r)[:, None] / 2)
    return (each * (1 + 1e-9)).clamp(max=1.0).prod(2) * noise


def _own(covariance: Tensor, r: int) -> Tensor:
    """(A, ..): the variance of entry r given the other one, from below."""
    mixed, other = covariance[:, 0, 1], covariance[:, 1 - r, 1 - r]
    return (covariance[:, r, r] * DOWN**4 - mixed**2 / other.clamp(min=1e-300)).clamp(min=0.0)


def _beyond(pair: _Pair, period: Tensor, eta: Tensor, reach: Tensor) -> Tensor:
    """(A,): P(y_1 >= P_1) + P(y_2 >= P_2), from above."""
    m, s = pair.at.m[:, None], pair.at.s[:, None]
    own, noises = pair.covariance.diagonal(dim1=1, dim2=2).mT, pair.noise.diagonal(dim1=1, dim2=2)
    best = torch.ones_like(period)
    for rate in _PAIR_RATES:
        lam = rate / pair.spread
        alpha = lam[..., None] * (pair.mean + PAID * pair.size)  # h is never negative
        beta = lam[..., None] ** 2 / 2 * own * UP
        logs = log_moment(alpha, beta, m, s)
        noise = (noises + eta**2) * lam**2 / 2 * UP
        exponent = logs.sum(2) + 1e-9 * (1 + logs.abs().sum(2)) + noise + lam * (pair.known + eta * reach - period)
        exponent = exponent + PAID * lam * (pair.known.abs() + eta * reach + period)
        best = torch.fmin(best, torch.exp(exponent))
    return best.sum(1)


_WORTH = 3e-3
"""What the sum over rows exceeds its largest term by, at least: it cannot exceed the union by more."""

_SELDOM = 1e-4
"""Least failure probability of a row that is looked at."""


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
    worth = (values.sum(1, keepdim=True) - most > _WORTH) & (most < 1)
    chosen = lone & worth & (values > _SELDOM)
    item, row = torch.nonzero(chosen.scatter(1, hub, torch.zeros_like(worth)), as_tuple=True)
    found = torch.zeros_like(failures[:, 0])
    if not len(item):
        return found
    pair = torch.stack([hub[item, 0], row], 1)
    rows, bounds = (part[item[:, None], pair] for part in (outputs, bound))
    values = both(layers, PairsAtBoxes(problem.lower, problem.upper, rows, bounds, item), deadline)
    return found.index_add(0, item, values) * DOWN
