"""Inversion of laws: bounds on P(Z <= t), and on P(Z_1 <= 0, Z_2 <= 0), from characteristic functions.

Let phi(w) = E e^{i w Z}, and let N be an independent standard Gaussian.

1. Smoothing. P(Z <= t) Phi(c) = P(Z <= t, N <= c) <= P(Z + eta N <= t + eta c). It makes series converge; eta = 0 is
allowed. Z + eta N has phi(w) e^{-(eta w)^2 / 2}.

2. One row. The square wave of period 2 P that is sign(y) on (-P, P) has the partial sums, bounded, of (4 / pi) sum over
odd n of sin(n pi y / P) / n. So its mean at y = Z - t is
    S(t) = (4 / pi) sum over odd n of Im(phi(w_n) e^{-i w_n t}) / n,    w_n = n pi / P.
(1 - S) / 2 is the mean of a function in [0, 1] that is 1 on (t - P, t) and 0 on (t, t + P), so that
    P(Z < t) <= (1 - S(t)) / 2 + P(Z <= t - P).

3. Two rows. With waves of periods 2 P_r, (1 - wave_1)(1 - wave_2) / 4 lies in [0, 1] and is 0 where some Z_r is in
(0, P_r). Hence P(Z_1 <= 0, Z_2 <= 0) >= E (1 - wave_1)(1 - wave_2) / 4 - P(Z_1 >= P_1) - P(Z_2 >= P_2), where
    E wave_r = (4 / pi) sum over odd n of Im phi(w_n) / n,
    E wave_1 wave_2 = (8 / pi^2) sum over odd n, k of Re(phi(w_n, -v_k) - phi(w_n, v_k)) / (n k).

4. Truncation. What follows n = N is cut into shells (2^d N, 2^{d+1} N]. 1 / x is convex, so that 1 / n for odd n is at
most half the integral of 1 / x over [n - 1, n + 1], and the sum over a shell is at most (log 2) / 2. A bound on |phi|
at and beyond w is called an envelope. With one at the start of each shell the rest is at most
    sum over d of (log 2) / 2 envelope(2^d w_N) e^{-(sigma 2^d w_N)^2 / 2},
sigma the standard deviation of what is Gaussian and independent in Z + eta N and not in the envelope. After the last
shell sigma w is FINAL at least, and what follows below AFTER; where it is not, nothing is known. In two rows what is
left out has n or k beyond N; in the shell of the larger one of them the sum over the other, up to K, of 1 / k is at
most 1 + log(K) / 2, and each series of one row is left out alike.

5. Rounding. Values come with bounds on their errors. Waves, targets and phases are rounded by a few units of
w (E |Z| + |t| + P).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnn_vnnlib.rounding import DOWN, UNIT, UP
from bnn_vnnlib.system.memory import at_once

_DOUBLINGS, _FINAL, _AFTER = 60, 9.0, 1e-15
"""Shells; sigma w after them, at least; what follows: less than e^{-81 / 2} times 60 or so."""

Envelope = Callable[[Tensor], Tensor]
"""Waves (A, N) to bounds on |phi| at and beyond them."""


class Law(Protocol):
    """Random variables Z of A rows."""

    @property
    def noise(self) -> Tensor:
        """(A,): standard deviation of an independent Gaussian part of Z that the envelope leaves out, from below."""
        ...

    @property
    def size(self) -> Tensor:
        """(A,): at least E |Z|, and the numbers that phases are made of."""
        ...

    def transform(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """phi at waves (A, N), and bounds on the errors of its values."""
        ...

    def envelope(self, w: Tensor) -> Tensor:
        """An envelope, see `Envelope`."""
        ...


def odd_numbers(most: int, block: int, like: Tensor) -> Iterator[Tensor]:
    """1, 3, 5, .. below `most` or a block beyond, so many at once."""
    for start in range(1, most, 2 * block):
        yield torch.arange(start, start + 2 * block, 2, dtype=like.dtype, device=like.device)


@dataclass(frozen=True, eq=False)
class WaveSeries:
    """Square waves of A laws at odd numbers n (N,): period (A,) = P; w, values, wrong (A, N) waves, phi and errors."""

    law: Law
    period: Tensor
    n: Tensor
    w: Tensor
    values: Tensor
    wrong: Tensor

    def mean(self, t: Tensor, eta: Tensor, c: Tensor) -> Tensor:
        """(A, T, S): S at targets t (A, T), of Z + eta (N - c) for eta (A, S), c (S,)."""
        moved = self.w[..., None] * eta[:, None]
        scaled = (self.values / self.n)[..., None] * torch.polar(torch.exp(-(moved**2) / 2), -moved * c)
        found = []
        for some in t.split(at_once(4 * self.w.numel()), 1):
            angle = -some[..., None] * self.w[:, None]
            found.append((torch.polar(torch.ones_like(angle), angle) @ scaled).imag)
        return 4 / math.pi * torch.cat(found, 1)

    def error(self, reach: Tensor, eta: Tensor) -> Tensor:
        """(A, S): bounds on the errors of `mean` where |t| + eta |c| <= reach (A,); infinite where nothing is known."""
        turned = 8 * UNIT * self.w * (self.law.size + reach + self.period)[:, None]
        damped = torch.exp(-((self.w[..., None] * eta[:, None]) ** 2) / 2)
        total = (((self.wrong + turned) / self.n)[:, None] @ damped)[:, 0] * UP
        total = total + rest(self.law.envelope, torch.hypot(eta, self.law.noise[:, None]) * DOWN, self.w[:, -1])
        return (4 / math.pi * UP * total).nan_to_num(torch.inf, torch.inf)


def series(law: Law, period: Tensor, *, block: int, most: int, enough: float) -> WaveSeries:
    """Blocks of odd numbers up to `most`, until all envelopes are below `enough`."""
    parts = []
    for n in odd_numbers(most, block, period):
        w = n * math.pi / period[:, None]
        parts.append((n, w, *law.transform(w)))
        last = law.envelope(w[:, -1:]) * torch.exp(-((w[:, -1:] * law.noise[:, None]) ** 2) / 2)
        if bool((last <= enough).all()):
            break
    n, w, values, wrong = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    return WaveSeries(law, period, n, w, values, wrong)


def rest(envelope: Envelope, sigma: Tensor, w: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    """(A, S): the sum over the shells beyond w (A,) for sigma (A, S), with weights (DOUBLINGS,); inf if not known."""
    waves = w[:, None] * 2.0 ** torch.arange(_DOUBLINGS, dtype=w.dtype, device=w.device)
    size = (envelope(waves) * weights)[:, None] @ torch.exp(-((waves[..., None] * sigma[:, None]) ** 2) / 2)
    known = waves[:, -1:] * sigma >= _FINAL
    return torch.where(known, math.log(2) / 2 * (size[:, 0] + _AFTER) * UP, torch.inf)


@dataclass(frozen=True, eq=False)
class WavePairs:
    """Waves of two rows, A times: w, v (A, K), factors (K,) of which the real parts of factor times phi are the terms
    of -E wave_1 - E wave_2 + E wave_1 wave_2; step (A, 2) : pi / P; count : odd numbers of each series.
    """

    step: Tensor
    count: int
    w: Tensor
    v: Tensor
    factors: Tensor

    def quadrant(
        self, values: Tensor, wrong: Tensor, envelopes: tuple[Envelope, Envelope], eta: Tensor, c: Tensor
    ) -> Tensor:
        """(A, S): lower bounds on E (1 - wave_1)(1 - wave_2) / 4 of Z_r + eta_r (N_r + c) for phi and its errors
        (A, K), eta (A, 2, S), c (S,).
        """
        one, other = self.w[..., None] * eta[:, :1], self.v[..., None] * eta[:, 1:]  # (A, K, S)
        damped = torch.exp(-(one**2 + other**2) / 2)
        turned = torch.polar(damped, c * (one + other))
        total = (1 + ((self.factors * values)[:, None] @ turned)[:, 0].real) / 4
        return total - ((self.factors.abs() * wrong)[:, None] @ damped)[:, 0] / 4 - self.rest(envelopes, eta)

    def rest(self, envelopes: tuple[Envelope, Envelope], eta: Tensor) -> Tensor:
        """(A, S): what the waves that are left out add to a quarter of the series."""
        last = 2 * self.count
        number = last * 2.0 ** torch.arange(_DOUBLINGS, dtype=eta.dtype, device=eta.device)
        weights = 4 / math.pi + 16 / math.pi**2 * (1 + torch.log(2 * number) / 2)
        first, second = (
            rest(envelope, eta[:, r] * DOWN, self.step[:, r] * last, weights) for r, envelope in enumerate(envelopes)
        )
        return (first + second) / 4 * (1 + 1e-9) + 1e-12


def pairs(step: Tensor, count: int) -> WavePairs:
    """The first `count` odd numbers of each series."""
    (n,) = odd_numbers(2 * count, count, step)
    zero, one, other = torch.zeros_like(n), n.repeat_interleave(count), n.repeat(count)
    single, double = torch.complex(zero, 4 / (math.pi * n)), 8 / math.pi**2 / (one * other)
    w, v = torch.cat([n, zero, one, one]), torch.cat([zero, n, -other, other])
    return WavePairs(step, count, w * step[:, :1], v * step[:, 1:], torch.cat([single, single, double, -double]))
