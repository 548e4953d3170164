"""Failure probabilities of rows at fixed inputs for dense networks of any depth, by exponential moments.

For a row a and M = a . f(x) - bound, Markov's inequality on the event G of `classification.exponents` (all ranges
hold):
    P(M <= 0) <= delta + e^{lam bound} E[e^{-lam a . f(x)} 1_G].
Lemma. Given the last hidden layer h, M is Gaussian with some mean and variance s^2 >= S. Then
    P(M <= 0 | h) <= kap(lam s) E[e^{-lam M} | h],    kap(eta) = sup over u of Phi(-u) e^{eta u - eta^2 / 2}.
Proof: with u = E[M | h] / s the left side is Phi(-u), and E[e^{-lam M} | h] = e^{-lam s u + (lam s)^2 / 2}.
kap falls: at the best u, d log kap / d eta = u - eta, and there phi(u) / Phi(-u) = eta, a hazard that exceeds u. Hence
    P(M <= 0) <= delta + P(s^2 < S, G) + kap(lam sqrt S) e^{lam bound} E[e^{-lam a . f(x)} 1_G],
    P(s^2 < S, G) <= e^{rho (S - noise)} E[e^{-rho sum_j (a^2 sig^2)_j h_j^2} 1_G],
which spends SPARE of delta once more for each row.
log Phi(-u) + eta u is concave in u, so that its maximum is at most its value at u0 plus |slope at u0| times the
distance to the maximum, which is below 1 where the slopes at u0 - 1 and u0 + 1 differ in sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import Exponents, Ranges, Typical
from bnn_vnnlib.bounds.dense.hidden import Lines
from bnn_vnnlib.methods.safety.large_variance import second_order
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import gamma
from bnn_vnnlib.system.clock import Deadline

BUDGETS = (1e-1, 3e-2, 1e-2, 1e-3, 1e-5)
"""delta, of which the best is taken for each row."""

SHARPER = (3e-2, 5e-3, 3e-4, 1e-5)
"""The same for two hidden layers."""

SPARE = 0.02
"""Share of delta spent on s^2 >= S."""

RATES = (0.3, 0.5, 0.75, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 5.5, 8.0)
"""lam times the standard deviation of M, about; rho times that of s^2 alike."""

NEWTON = 40
"""Steps towards the maximum of kap, from a start within 1 of it."""


@dataclass(frozen=True, eq=False)
class RowsAtPoints:
    """Is outputs . f(x) <= bound: boxes (P, n) of size nearly zero, one fixed x in each.

    outputs (P, R, m), bound (P, R).
    """

    lower: Tensor
    upper: Tensor
    outputs: Tensor
    bound: Tensor


def failures(chain: DenseChain, question: RowsAtPoints, deadline: Deadline) -> list[tuple[float, Tensor]]:
    """For each budget delta and (P, R): the row holds at x with at most this probability while G does; at most 1. As
    many budgets as time suffices for.

    G is the same for all rows at a point, so that its delta is paid once for them all.
    """
    sharper = second_order.serves(chain)

    def tried(budget: float) -> tuple[float, Tensor]:
        exponents = Exponents(chain, budget)
        values = _sharper(chain, budget, question, deadline) if sharper else _with(exponents, question)
        return exponents.delta, values.nan_to_num(1.0).clamp(max=1.0)

    budgets = SHARPER if sharper else BUDGETS
    return deadline.reached(budgets if Exponents(chain, budgets[0]).sides else budgets[:1], tried)


def _rates(guess: Typical, a: Tensor) -> Tensor:
    """lam, (L, P, R)."""
    spread = torch.sqrt((a * a * (guess.v + guess.m_spread**2)[:, None]).sum(-1)) + 1e-100
    return a.new_tensor(RATES)[:, None, None] / spread


def _best(logs: Tensor, factor: Tensor, spent: float) -> Tensor:
    """(P, R): of all rates the best, with the lemma and without."""
    plain, sharp = (torch.exp(part.clamp(max=0.0)).amin(0) for part in (logs, logs + factor))
    return torch.minimum(plain, sharp + spent)


def _with(exponents: Exponents, question: RowsAtPoints) -> Tensor:
    last, a = exponents.chain.layers[-1], question.outputs
    ranges = exponents.ranges(question.lower, question.upper)
    lam = _rates(ranges.typical[-1], a)
    logs = _at_rates(lam[..., None] * -a, lambda rows: exponents.lines(ranges, rows), ranges)
    shift = lam * question.bound
    logs = logs + shift + 1e-12 * (1 + logs.abs() + shift.abs())
    spent = SPARE * exponents.budget
    noise = (a * a) @ last.bias_variance
    least = _least_variance(exponents, ranges, (a * a) @ last.variance, noise, spent)
    return _best(logs, log_kappa(lam * torch.sqrt(least)), spent) * (1 + 1e-12)


def _sharper(chain: DenseChain, budget: float, question: RowsAtPoints, deadline: Deadline) -> Tensor:
    """The same for two hidden layers, with the exponents of `second_order`."""
    last, a = chain.layers[-1], question.outputs
    at = second_order.at_points(chain, question.lower, question.upper, budget)
    lam = _rates(at.typical[-1], a)
    shift, spent = lam * question.bound, SPARE * budget
    variance, noise = (a * a) @ last.variance, (a * a) @ last.bias_variance
    least = second_order.least_variance(at, variance, noise, noise.new_tensor(RATES), spent, deadline)
    factor = log_kappa(lam * torch.sqrt(least))
    parts = []
    for rate in lam.split(at.rates_at_once(a.shape[1])):
        deadline.check()
        rows, points, height = (rate[..., None] * -a).transpose(0, 1), a.shape[0], a.shape[1]
        logs = at.log_moments(rows.reshape(points, -1, a.shape[2]), spent)
        parts.append(logs.reshape(2, points, len(rate), height).transpose(1, 2))
    found = torch.ones_like(question.bound)
    for paid, logs in zip((0.0, spent), torch.cat(parts, 1), strict=True):
        logs = logs + shift + 1e-12 * (1 + logs.abs() + shift.abs())
        found = torch.minimum(found, (_best(logs, factor, spent) + paid).nan_to_num(1.0))
    return (found + at.law.blur[:, None]) * (1 + 1e-12)


def _at_rates(rows: Tensor, below: Callable[[Tensor], Lines], ranges: Ranges) -> Tensor:
    """(L, P, R): upper bounds on the logarithms that lines are below the negatives of, for rows (L, P, R, m)."""
    rates, points, height = rows.shape[:3]
    flat = rows.transpose(0, 1).reshape(points, rates * height, -1)
    return -below(flat).minimum(ranges.first.radius).reshape(points, rates, height).transpose(0, 1)


def _least_variance(exponents: Exponents, ranges: Ranges, variance: Tensor, noise: Tensor, spent: float) -> Tensor:
    """(P, R): S with P(s^2 < S, G) <= spent, s^2 = noise + sum_j variance_j h_j^2; variance (P, R, H)."""
    guess = ranges.typical[-2].output[:, None]
    spread = torch.sqrt(((variance * guess * guess) ** 2).sum(-1)) + 1e-100
    rho = noise.new_tensor(RATES)[:, None, None] / spread
    top = _at_rates(-rho[..., None] * variance, lambda rows: exponents.squares(ranges, rows), ranges)
    best = ((math.log(spent) - top) / rho * (1 + 1e-12)).nan_to_num(0.0, 0.0, 0.0).amax(0).clamp(min=0.0)
    return (best + noise) * (1 - gamma(2 * variance.shape[-1] + 16) - 1e-9)


def log_kappa(eta: Tensor) -> Tensor:
    """log kap(eta), rounded up; at most 0."""
    eta = eta.clamp(min=0.0)
    low, high = torch.full_like(eta, -40.0), eta + 1.0
    for _ in range(NEWTON):  # bisection: the slope falls in u
        middle = (low + high) / 2
        rising = _slope(middle, eta) > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    value = torch.special.log_ndtr(-low) + eta * low - eta**2 / 2
    inside = (_slope(low - 1, eta) > 0) & (_slope(low + 1, eta) < 0)
    bound = value + _slope(low, eta).abs() + 1e-10 * (1 + (eta * low).abs() + eta**2)
    return torch.where(inside, bound.clamp(max=0.0), 0.0)


def _slope(u: Tensor, eta: Tensor) -> Tensor:
    """eta - phi(u) / Phi(-u)."""
    return eta - torch.exp(-(u**2) / 2 - torch.special.log_ndtr(-u)) / math.sqrt(2 * math.pi)
