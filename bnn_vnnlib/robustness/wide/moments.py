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

import numpy as np
import torch
from scipy import special
from torch import Tensor

from bnn_vnnlib.bounds.rounding import gamma
from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.robustness.classification.exponents import Exponents, Ranges
from bnn_vnnlib.robustness.classification.layers import Stack
from bnn_vnnlib.robustness.classification.lines import Lines

BUDGETS = (1e-1, 3e-2, 1e-2, 1e-3, 1e-5)
"""delta, of which the best is taken for each row."""

SPARE = 0.02
"""Share of delta spent on s^2 >= S."""

RATES = torch.tensor([0.3, 0.5, 0.75, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 5.5, 8.0], dtype=torch.float64)
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


def failures(stack: Stack, question: RowsAtPoints, deadline: Deadline) -> list[tuple[float, Tensor]]:
    """For each budget delta and (P, R): the row holds at x with at most this probability while G does; at most 1.

    G is the same for all rows at a point, so that its delta is paid once for them all.
    """
    found = []
    for budget in BUDGETS:
        deadline.check()
        exponents = Exponents(stack, budget)
        ranges = exponents.ranges(question.lower, question.upper)
        found.append((exponents.delta, _with(exponents, ranges, question).nan_to_num(1.0).clamp(max=1.0)))
        if not exponents.sides:
            break
    return found


def _with(exponents: Exponents, ranges: Ranges, question: RowsAtPoints) -> Tensor:
    last, a = exponents.stack.layers[-1], question.outputs
    guess = ranges.typical[-1]
    spread = torch.sqrt((a * a * (guess.v + guess.m_spread**2)[:, None]).sum(-1)) + 1e-100
    lam = _exact_rates(RATES[:, None, None] / spread, a)  # (L, P, R)
    logs = _at_rates(lam[..., None] * -a, lambda rows: exponents.lines(ranges, rows), ranges)
    shift = lam * question.bound
    logs = logs + shift + 1e-12 * (1 + logs.abs() + shift.abs())
    plain = torch.exp(logs.clamp(max=0.0)).amin(0)
    spent = SPARE * exponents.budget
    noise = (a * a) @ last.bias_variance
    least = _least_variance(exponents, ranges, (a * a) @ last.variance, noise, spent)
    factor = torch.as_tensor(log_kappa((lam * torch.sqrt(least)).numpy(force=True)), device=logs.device)
    sharp = torch.exp((logs + factor).clamp(max=0.0)).amin(0) + spent
    return torch.minimum(plain, sharp) * (1 + 1e-12)


def _at_rates(rows: Tensor, below: Callable[[Tensor], Lines], ranges: Ranges) -> Tensor:
    """(L, P, R): upper bounds on the logarithms that lines are below the negatives of, for rows (L, P, R, m)."""
    rates, points, height = rows.shape[:3]
    flat = rows.transpose(0, 1).reshape(points, rates * height, -1)
    return -below(flat).minimum(ranges.first.radius).reshape(points, rates, height).transpose(0, 1)


def _exact_rates(lam: Tensor, a: Tensor) -> Tensor:
    """Rates near lam (L, P, R) for which lam a is exact: three bits where a (P, R, m) has at most 24, else one."""
    mantissa, exponent = torch.frexp(lam)
    short = (a == a.float().double()).all(-1)
    one = torch.where(mantissa > 0.7071, 1.0, 0.5).to(lam)
    return torch.ldexp(torch.where(short, (8 * mantissa).round() / 8, one), exponent)


def _least_variance(exponents: Exponents, ranges: Ranges, variance: Tensor, noise: Tensor, spent: float) -> Tensor:
    """(P, R): S with P(s^2 < S, G) <= spent, s^2 = noise + sum_j variance_j h_j^2; variance (P, R, H)."""
    guess = ranges.typical[-2].output[:, None]
    spread = torch.sqrt(((variance * guess * guess) ** 2).sum(-1)) + 1e-100
    rho = RATES[:, None, None] / spread
    top = _at_rates(-rho[..., None] * variance, lambda rows: exponents.squares(ranges, rows), ranges)
    best = ((math.log(spent) - top) / rho * (1 + 1e-12)).nan_to_num(0.0, 0.0, 0.0).amax(0).clamp(min=0.0)
    return (best + noise) * (1 - gamma(2 * variance.shape[-1] + 16) - 1e-9)


@np.errstate(over="ignore")
def log_kappa(eta: np.ndarray) -> np.ndarray:
    """log kap(eta), rounded up; at most 0."""
    eta = np.maximum(eta, 0.0)
    low, high = np.full_like(eta, -40.0), eta + 1.0
    for _ in range(NEWTON):  # bisection: the slope falls in u
        middle = (low + high) / 2
        rising = _slope(middle, eta) > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    value = special.log_ndtr(-low) + eta * low - eta**2 / 2
    inside = (_slope(low - 1, eta) > 0) & (_slope(low + 1, eta) < 0)
    bound = value + np.abs(_slope(low, eta)) + 1e-10 * (1 + np.abs(eta * low) + eta**2)
    return np.where(inside, np.minimum(bound, 0.0), 0.0)


def _slope(u: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """eta - phi(u) / Phi(-u)."""
    return eta - np.exp(-(u**2) / 2 - special.log_ndtr(-u)) / math.sqrt(2 * math.pi)
