"""Failure probabilities of rows at fixed inputs for two hidden ReLU layers: `moments` with sharper exponents.

With M = a . f(x) - bound, G the event that all (m_i, s_i) of the second layer stay in their ranges, and J of `curved`,
    P(M <= 0) <= P(not G) + P(not J) + P(s^2 < S, G) + kap(lam root S) e^{lam bound} E[e^{-lam a . f}; G, J]
as in `moments`: given both hidden layers M is Gaussian, and G, J, s^2 are known.

Ranges. m_i and v_i are sums over k of functions of the independent h_k: Chernoff's bound with exact moments, four
sides a neuron. Where `classification.exponents` replaces -h^2 by a tangent, -h^2 is kept: its moments are known as
well. s^2 = noise + sum_j (a^2 sig^2)_j relu_j^2 is bounded in two ways, `log_squares` and `log_coupled`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import Typical, typical
from bnn_vnnlib.bounds.dense.hidden import hidden
from bnn_vnnlib.gaussian.normal import LEAST, cdf
from bnn_vnnlib.gaussian.relu import Rectangle
from bnn_vnnlib.methods.safety.large_variance.curved import first_moments
from bnn_vnnlib.methods.safety.large_variance.law import Law, law_of
from bnn_vnnlib.methods.safety.large_variance.parabolas import BENDS, LEVELS, NODES, PAID, Parabola, parabolas
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.rounding import gamma
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

WIDEST = 256
"""Neurons of the first layer, at most."""

TIMES = (0.6, 0.8, 1.0, 1.25)
"""Rates over the best one for a Gaussian law, for ranges."""

LARGEST_BETA = 0.4
"""beta s^2 of the rows that bound variances, at most."""


def serves(chain: DenseChain) -> bool:
    """Two hidden layers, not too wide for a matrix a row."""
    return len(chain.layers) == 3 and chain.layers[0].outputs <= WIDEST


@dataclass(frozen=True, eq=False)
class AtPoints:
    """What is known of P points at a budget: the first layer's law, typical values, ranges (P, 1, H2)."""

    chain: DenseChain
    law: Law
    typical: list[Typical]
    ranges: Rectangle

    @property
    def spread(self) -> Tensor:
        """(P, 1, H2): deviations of the m_i, about."""
        return self.typical[1].m_spread[:, None]

    def rates_at_once(self, rows: int) -> int:
        """How many rates of that many rows to look at in one go."""
        return at_once(2 * len(self.law.blur) * rows * self.chain.layers[1].outputs * NODES * LEVELS)

    def log_moments(self, u: Tensor, spent: float) -> Tensor:
        """(2, P, R): upper bounds on log E[e^{u . f}; G] and on log E[e^{u . f}; G, J] for u (P, R, m),
        each entry rounded once at most."""
        last, square = self.chain.layers[2], u * u
        alpha, size = u @ last.mean, u.abs() @ last.mean.abs()
        beta = square @ last.variance / 2 * (1 + PAID)
        known, paid = u @ last.bias + square @ last.bias_variance / 2, u.abs() @ last.bias.abs()
        known = known + PAID * (paid + square @ last.bias_variance)
        flat, bent = self._parabolas(alpha + PAID * size, beta, ((0.0,), BENDS))
        found = [self._first(part, spent, bent=part is bent) for part in (flat, bent)]
        return torch.stack(found) + known

    def log_squares(self, weights: Tensor) -> Tensor:
        """(P, R): upper bounds on log E[exp(-sum_j weights_j relu_j^2); G], relu_j the second layer's outputs, weights
        (P, R, H2): -z^2 <= c^2 - 2 c z.
        """
        middle = self.typical[1].output[:, None]
        lost = weights * middle**2
        alpha = -2 * weights * middle
        found = self._parabolas(alpha + PAID * alpha.abs(), torch.zeros_like(alpha), ((0.0,),))[0]
        return (lost * (1 + PAID)).sum(-1) * (1 + PAID) + self._first(found, 0.0, bent=False)

    def _parabolas(self, alpha: Tensor, beta: Tensor, bends: Sequence[Sequence[float]]) -> list[Parabola]:
        return parabolas(alpha, beta, self.ranges, self.spread.expand(alpha.shape), bends)

    def _first(self, found: Parabola, spent: float, *, bent: bool) -> Tensor:
        total = found.constant.sum(-1) + PAID * found.constant.abs().sum(-1)
        return total + first_moments(self.chain.layers[1], self.law, found, spent, bent=bent)

    def log_coupled(self, weights: Tensor) -> Tensor:
        """Like `log_squares`, from the ends of the ranges: relu(m + s N) is at least relu(low + least N) for N > 0, and
        relu(low + most N) for N < 0, so that with independent N_j the sum is at least one of independent terms.
        """
        low, least, most = self.ranges.low, self.ranges.least, self.ranges.most
        above, below = (_half_square(weights, low, s, sign) for s, sign in ((least, 1.0), (most, -1.0)))
        return (torch.log(above + below) + 1e-11).sum(-1)


def _half_square(weights: Tensor, low: Tensor, s: Tensor, sign: float) -> Tensor:
    """E[exp(-w relu(low + s N)^2); sign N > 0], rounded up: absolute error 1e-12. With c = 1 + 2 w s^2 the square is
    completed, and N has mean -2 w low s / c and variance 1 / c; where low + s N < 0 the integrand is 1.
    """
    c = 1 + 2 * weights * s**2
    middle, root = -2 * weights * low * s / c, torch.sqrt(c)
    scale = torch.exp(-weights * low**2 / c) / root
    kink = -low / s
    if sign > 0:
        start = kink.clamp(min=0.0)
        return scale * cdf((middle - start) * root) + (cdf(start) - 0.5).clamp(min=0.0) + 1e-12
    start = kink.clamp(max=0.0)
    return scale * (cdf(-middle * root) - cdf((start - middle) * root)).clamp(min=0.0) + cdf(start) + 1e-12


def over_rates(rows: Tensor, above: Callable[[Tensor], Tensor]) -> Tensor:
    """(L, P, R) from a function of rows (P, R, m), for rows (L, P, R, m)."""
    rates, points, height = rows.shape[:3]
    flat = rows.transpose(0, 1).reshape(points, rates * height, -1)
    return above(flat).reshape(points, rates, height).transpose(0, 1)


def at_points(chain: DenseChain, lower: Tensor, upper: Tensor, budget: float) -> AtPoints:
    """For boxes (P, n) of size nearly zero; P(not G) <= budget."""
    first = hidden(chain.layers[0], lower, upper)
    law, expected = law_of(first), typical(chain, first.center)
    return AtPoints(chain, law, expected, _ranges(chain.layers[1], law, expected[1], budget))


def _ranges(dense: DenseLayer, law: Law, guess: Typical, budget: float) -> Rectangle:
    level = math.log(4 * dense.outputs / budget) * (1 + 1e-12)
    reach = math.sqrt(2 * level)
    mean, square, _ = law.plain()
    spread = torch.sqrt((square - mean**2).clamp(min=0.0) @ (dense.mean**2).mT)[:, 0] + 1e-9 * (1 + guess.m.abs())
    shaken = guess.v_spread + 1e-6 * guess.v + LEAST
    most = LARGEST_BETA / ((dense.variance * law.s**2).amax(-1) + LEAST)
    sides = []
    for linear, sign in ((True, 1.0), (True, -1.0), (False, 1.0), (False, -1.0)):
        best = torch.full_like(spread, torch.inf)
        for times in TIMES:
            rate = times * reach / (spread if linear else shaken)
            rate = torch.minimum(rate, most) if not linear and sign > 0 else rate
            row = sign * rate[..., None] * (dense.mean if linear else dense.variance)
            zero = torch.zeros_like(row)
            logs = law.above(row + PAID * row.abs(), zero) if linear else law.above(zero, row + PAID * row.abs())
            total = logs.sum(-1) + PAID * logs.abs().sum(-1) + level
            best = torch.minimum(best, (total / rate + PAID * (total / rate).abs()).nan_to_num(torch.inf, torch.inf))
        shift = dense.bias if linear else dense.bias_variance
        sides.append(best + sign * shift + PAID * shift.abs())
    high, low, most_v, least_v = sides
    least = torch.sqrt(torch.maximum((-least_v).clamp(min=0.0), dense.bias_variance)) * (1 - PAID)
    least = least.clamp(min=LEAST)
    above = torch.maximum(torch.sqrt(most_v) * (1 + PAID), least)
    high = torch.maximum(high, -low)
    middle, dev = guess.m.clamp(-low, high), torch.sqrt(guess.v).clamp(least, above)
    return Rectangle(*(side[:, None] for side in (-low, high, least, above, middle, dev)))


def least_variance(
    at: AtPoints, variance: Tensor, noise: Tensor, rates: Tensor, spent: float, deadline: Deadline
) -> Tensor:
    """(P, R): S with P(s^2 < S, G) <= spent, s^2 = noise + sum_j variance_j relu_j^2; variance (P, R, H2)."""
    guess = at.typical[1]
    second = (guess.output_variance + guess.output**2)[:, None]
    spread = torch.sqrt(((variance * second) ** 2).sum(-1)) + 1e-100
    best = torch.zeros_like(noise)
    for rate in rates.split(at.rates_at_once(noise.shape[1])):
        rho = rate[:, None, None] / spread
        for logs in (at.log_squares, at.log_coupled):
            deadline.check()
            top = over_rates(rho[..., None] * variance, logs)
            value = ((math.log(spent) - top) / rho * (1 + 1e-12)).nan_to_num(0.0, 0.0, 0.0)
            best = torch.maximum(best, value.amax(0))
    return (best + noise) * (1 - gamma(2 * variance.shape[-1] + 16) - 1e-9)
