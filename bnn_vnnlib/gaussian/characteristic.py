"""The law of zeta = sum_k W_k z_k + b, z_k = relu(N(m_k, s_k^2)), W and b Gaussian, all independent.

1. Characteristic function of one term, alpha = w mu, beta = w sig, r = sqrt(1 + beta^2 s^2), t = m / s:
    c = E e^{i alpha z - beta^2 z^2 / 2} = Phi(-t) + e^{-t^2/2} F(-i y) / (2 r),    y = (t + i alpha s) / (sqrt 2 r),
F the Faddeeva function (complete the square on z > 0). Where Re y > 0, F(-iy) = 2 e^{y^2} - F(iy), and the exponents
combine to e^{-(alpha^2 s^2 + beta^2 m^2) / (2 r^2) + i alpha m / r^2} / r, free of divisions by s. Then
    phi(w) = e^{i w b - w^2 sig_b^2 / 2} prod_k c_k(w).
For w >= w_N, |c_k| <= Phi(-t) + min(E[e^{-beta^2 z^2/2}; z > 0] at w_N, 2 phi(0) / (s |alpha_N|)), the second since a
unimodal density has a Fourier transform of at most 2 sup / |alpha|. Both fall with w.

2. E relu(zeta) = (E zeta + E |zeta|) / 2. The triangle wave T of period 2P that is |zeta| on [-P, P] is below |zeta|
elsewhere, and
    E T = P/2 - (4P/pi^2) sum over odd n of Re phi(n pi / P) / n^2,        E |zeta| in [E T, E T + R],
    R = E |zeta| 1[|zeta| > P] <= P e^{-lam P} (E e^{lam zeta} + E e^{-lam zeta}),
for lam P >= 1, where x e^{-lam x} falls.
Generating function, for lam sig s < 1, a = lam mu, b = lam sig, k = sqrt(1 - b^2 s^2):
    E e^{a z + b^2 z^2 / 2} = Phi(-t) + e^{(2 a m + a^2 s^2 + b^2 m^2) / (2 k^2)} Phi((t + a s) / k) / k.
Truncation: the envelope falls with w, and the sum of 1/n^2 over odd n > N is at most 1 / (2N).

3. Quantiles. With |t - a| <= H' and P = H + H', `inversion` gives
    P(zeta < t) <= (1 - S(t)) / 2 + P(|zeta - a| >= H),    P(|zeta - a| >= H) <= e^{-lam H} (E e^{lam (zeta - a)} + ..).

Errors: each c is computed to 1e-12 absolutely (tested against mpmath) and |c| <= 1, so that a product of K is off by at
most K 1e-12. Errors of m, s, mu, b and of phases cost at most w G (`Sums.blur`) as |dc/dm| <= |alpha| + beta, and the
sum over n of w_n / n^2 is at most (pi / P) (1 + log(N) / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.faddeeva import faddeeva
from bnn_vnnlib.gaussian.inversion import odd_numbers, series
from bnn_vnnlib.gaussian.normal import LEAST, TERM, cdf, ratio
from bnn_vnnlib.gaussian.relu import log_moment, relu_mean, relu_square
from bnn_vnnlib.rounding import UNIT
from bnn_vnnlib.system.memory import at_once

_BLOCK = 16
"""Number of terms of the series that are computed at once."""

_TERMS = 4001
"""Largest n of the series."""

_ENOUGH = 1e-6
"""Error of the tail and of the truncation, in standard deviations of zeta, that asks for no more."""

REACHES = (4.0, 6.0, 8.0, 10.0, 13.0, 17.0, 25.0, 40.0, 60.0, 100.0)
"""Values of P beyond |E zeta| that are tried, in standard deviations."""

_CHERNOFF_RATES = (0.3, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Rates lam of Chernoff's bound that are tried, times the standard deviation."""


@dataclass(frozen=True, eq=False)
class Sums:
    """A sums zeta: m, s (A, K) of the terms below, mu, sig (A, K), b, sig_b (A,), blur (A,) = G, in units of zeta."""

    m: Tensor
    s: Tensor
    mu: Tensor
    sig: Tensor
    b: Tensor
    sig_b: Tensor
    blur: Tensor

    def of(self, index: Tensor) -> Sums:
        """The sums at these indices."""
        return Sums(*(part[index] for part in vars(self).values()))

    @property
    def noise(self) -> Tensor:
        """(A,): standard deviation of b."""
        return self.sig_b

    @property
    def size(self) -> Tensor:
        """(A,): at least E |zeta|."""
        mean, deviation, _ = moments(self)
        return mean.abs() + deviation

    def transform(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """phi(w) at waves w (A, N), and bounds on its errors."""
        columns = [part[:, None] for part in (self.mu, self.sig, self.m, self.s)]
        c = term(w[..., None] * columns[0], w[..., None] * columns[1], *columns[2:])
        noise = torch.polar(torch.exp(-((w * self.sig_b[:, None]) ** 2) / 2), w * self.b[:, None])
        return c.prod(-1) * noise, self.m.shape[1] * TERM + 1e-13 + w * self.blur[:, None]

    def envelope(self, w: Tensor) -> Tensor:
        """(A, N): bounds on |phi| at and beyond waves w (A, N), but for the noise of b."""
        mu, sig, m, s = (part[:, None] for part in (self.mu.abs(), self.sig, self.m, self.s))
        alpha, beta = w[..., None] * mu, w[..., None] * sig
        off = cdf(-ratio(m, s))
        damped = half_line(torch.zeros_like(alpha), beta, m, s).real
        steep = 0.7979 / (alpha * s).clamp(min=1e-300)
        each = (off + torch.minimum(damped, steep) + 4 * TERM).clamp(max=1.0)
        return each.prod(-1) * (1 + 1e-9) + TERM

    def parts(self) -> list[Sums]:
        """The sums in parts, each of as many as memory allows at once."""
        count = at_once(32 * _BLOCK * max(1, self.m.shape[1]))
        return [self.of(index) for index in torch.arange(len(self.b), device=self.b.device).split(count)]


def term(alpha: Tensor, beta: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """c, for tensors that broadcast; absolute error TERM besides that of the arguments."""
    return cdf(-ratio(m, s)) + half_line(alpha, beta, m, s)


def half_line(alpha: Tensor, beta: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """E[e^{i alpha z - beta^2 z^2 / 2}; z > 0] for z ~ N(m, s^2) itself: c without the share of z <= 0."""
    t = ratio(m, s).clamp(-60.0, 60.0)
    square = 1 + (beta * s) ** 2
    r = torch.sqrt(square)
    positive = t > 0
    turn = alpha * s / (math.sqrt(2.0) * r)
    side = faddeeva(torch.where(positive, -turn, turn), t.abs() / (math.sqrt(2.0) * r))  # w(i y) or w(-i y)
    side = side * (torch.exp(-(t**2) / 2) / (2 * r))
    size = torch.exp(-((alpha * s) ** 2 + (beta * m) ** 2) / (2 * square)) / r
    main = torch.polar(torch.where(positive, size, 0.0), torch.where(positive, alpha * m / square, 0.0))
    return torch.where(positive, main - side, side)


def expected_relu(sums: Sums) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds (A,) on E relu(zeta)."""
    parts = [_chunk(part) for part in sums.parts()]
    return torch.cat([low for low, _ in parts]), torch.cat([high for _, high in parts])


def _chunk(sums: Sums) -> tuple[Tensor, Tensor]:
    mean, deviation, size = moments(sums)
    period, tail = _period(sums, mean, deviation)
    series, rest = _series(sums, period, deviation)
    width = sums.m.shape[1]
    absolute = period / 2 - 4 * period / math.pi**2 * series
    rest = rest + period * (width * TERM + 1e-13) + 8 * sums.blur + 1e-12 * period
    off = 8 * (width + 16) * UNIT * size + sums.blur
    low, high = (mean + absolute - rest - off) / 2, (mean + absolute + rest + tail + off) / 2
    return low.clamp(min=0.0), high


def moments(sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """E zeta, its standard deviation (a choice of scale, not a bound), and the sum of absolute values."""
    first = relu_mean(sums.m, sums.s).clamp(min=0.0)
    second = torch.maximum(relu_square(sums.m, sums.s), first**2)
    variance = (sums.mu**2 * (second - first**2) + sums.sig**2 * second).sum(-1) + sums.sig_b**2
    size = (sums.mu.abs() * (sums.m.abs() + sums.s)).sum(-1) + sums.b.abs()
    mean = (sums.mu * first).sum(-1) + sums.b
    return mean, torch.sqrt(variance) + 1e-9 * (1 + size), size


def tails(sums: Sums, deviation: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Rates lam (J, A), and log(E e^{lam (zeta - shift)} + E e^{-lam (zeta - shift)}) (J, A), rounded up."""
    steepest = (sums.sig * sums.s).amax(-1)
    rate = torch.minimum(deviation.new_tensor(_CHERNOFF_RATES)[:, None] / deviation, 0.98 / steepest.clamp(min=LEAST))
    slope = rate[..., None] * sums.mu
    each = log_moment(
        torch.stack([slope, -slope]), (rate[..., None] * sums.sig) ** 2 / 2, sums.m, sums.s.clamp(min=LEAST)
    )
    moved = rate * (sums.b - shift)
    paid = 1e-12 * (each.abs().sum(-1) + moved.abs() + rate * shift.abs())
    logs = each.sum(-1) + torch.stack([moved, -moved]) + (rate * sums.sig_b) ** 2 / 2 + paid
    return rate, torch.logaddexp(*logs)


def _period(sums: Sums, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """P and R: the smallest reach whose tail is small enough, else the largest."""
    rate, both = tails(sums, deviation, torch.zeros_like(mean))
    period = mean.abs() + mean.new_tensor(REACHES)[:, None] * deviation  # (F, A)
    exponent = torch.log(period)[:, None] - rate * period[:, None] + both
    # errors of m, s move the exponents by rate times blur, times 1 / k^2 and t at most
    exponent = exponent + 1e-9 * (1 + rate * period[:, None]) + 1e4 * rate * sums.blur
    exponent = torch.where(rate * period[:, None] >= 1 + 1e-9, exponent, torch.inf).nan_to_num(torch.inf, torch.inf)
    tail = torch.exp(exponent.amin(1).clamp(max=600.0))
    period, tail = _smallest(period, tail, _ENOUGH * deviation)
    return period, torch.where(tail < 1e200, tail * (1 + 1e-6) + 1e-300, torch.inf)


def _series(sums: Sums, period: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over odd n <= N of Re phi / n^2, and a bound on what the rest adds to E T."""
    total, rest = torch.zeros_like(period), torch.zeros_like(period)
    left = torch.arange(len(period), device=period.device)
    for n in odd_numbers(_TERMS, _BLOCK, period):
        some = sums.of(left)
        w = n * math.pi / period[left, None]
        total[left] += (some.transform(w)[0].real / n**2).sum(-1)
        last = w[:, -1:]
        beyond = (some.envelope(last) * torch.exp(-((last * some.sig_b[:, None]) ** 2) / 2))[:, 0]
        rest[left] = 4 * period[left] / math.pi**2 * beyond / (2 * n[-1]) * (1 + 1e-9)
        left = left[rest[left] > _ENOUGH * deviation[left]]
        if len(left) == 0:
            break
    return total, rest


_ASIDE = 2.0
"""Quantiles are looked for within this many standard deviations of the mean."""

_STEPS = 24
"""Number of bisections in the search for a quantile."""


def quantiles(sums: Sums, shares: Tensor) -> Tensor:
    """(A, L): numbers t with P(zeta < t) < 1/2 - share, for shares (L,) in [0, 1/2); -inf where none is found."""
    return torch.cat([_quantiles(part, shares) for part in sums.parts()])


def deviations(sums: Sums) -> Tensor:
    """Upper bounds (A,) on the standard deviations of the sums."""
    _, deviation, size = moments(sums)
    return (deviation + 4 * sums.blur + 1e-7 * size) * (1 + 1e-9)


def _quantiles(sums: Sums, shares: Tensor) -> Tensor:
    """Numbers (A, L) below which the sums lie with a probability under 1/2 - share, as large as bisection finds; -inf:
    none is known.
    """
    mean, deviation, _ = moments(sums)
    reach, tail = _reach(sums, mean, deviation)
    aside, plain = _ASIDE * deviation, mean.new_zeros(len(mean), 1)
    waves = series(sums, reach + aside * (1 + 1e-6), block=_BLOCK, most=_TERMS, enough=_ENOUGH)
    error = waves.error(mean.abs() + aside, plain) + (2 * tail + 1e-12)[:, None]

    def enough(t: Tensor) -> Tensor:
        """(A, L): P(zeta < t) is below 1/2 - share."""
        return waves.mean(t, plain, plain[0])[..., 0] - error > 2 * shares

    low, high = ((mean + sign * aside)[:, None].repeat(1, len(shares)) for sign in (-1, 1))
    found = torch.where(enough(low), low, -torch.inf)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        good = enough(middle)
        found = torch.where(good & (found > -torch.inf), torch.maximum(found, middle), found)
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    return found


def _reach(sums: Sums, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """H and a bound on P(|zeta - mean| >= H): the smallest H whose tail is small enough, else the best."""
    rate, both = tails(sums, deviation, mean)
    reach = mean.new_tensor(REACHES)[:, None] * deviation  # (F, A)
    exponent = both - rate * reach[:, None] + 1e-9 * (1 + rate * reach[:, None]) + 1e4 * rate * sums.blur
    tail = torch.exp(exponent.nan_to_num(torch.inf, torch.inf).amin(1).clamp(max=1.0))
    reach, tail = _smallest(reach, tail, _ENOUGH)
    return reach, tail * (1 + 1e-9) + 1e-300


def _smallest(reach: Tensor, tail: Tensor, enough: Tensor | float) -> tuple[Tensor, Tensor]:
    """(A,), (A,): of reaches (F, A) the first one whose tail is small enough, else the one of the least tail."""
    good = tail <= enough
    choice = torch.where(good.any(0), good.to(torch.uint8).argmax(0), tail.argmin(0))[None]
    return reach.gather(0, choice)[0], tail.gather(0, choice)[0]
