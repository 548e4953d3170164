"""E relu(zeta), zeta = sum_k W_k z_k + b with z_k = relu(N(m_k, s_k^2)) and W, b Gaussian, all independent.

Characteristic function of one term, alpha = w mu, beta = w sig, r = sqrt(1 + beta^2 s^2), t = m / s:
    c = E e^{i alpha z - beta^2 z^2 / 2} = Phi(-t) + e^{-t^2/2} F(-i y) / (2 r),    y = (t + i alpha s) / (sqrt 2 r),
F the Faddeeva function (complete the square on z > 0). Where Re y > 0, F(-iy) = 2 e^{y^2} - F(iy), and the exponents
combine to e^{-(alpha^2 s^2 + beta^2 m^2) / (2 r^2) + i alpha m / r^2} / r, free of divisions by s. Then
    phi(w) = e^{i w b - w^2 sig_b^2 / 2} prod_k c_k(w).
The triangle wave T of period 2P that is |zeta| on [-P, P] is below |zeta| elsewhere, and
    E T = P/2 - (4P/pi^2) sum over odd n of Re phi(n pi / P) / n^2,        E |zeta| in [E T, E T + R],
    R = E |zeta| 1[|zeta| > P] <= P e^{-lam P} (E e^{lam zeta} + E e^{-lam zeta}),
for lam P >= 1, where x e^{-lam x} falls.
Generating function, for lam sig s < 1, a = lam mu, b = lam sig, k = sqrt(1 - b^2 s^2):
    E e^{a z + b^2 z^2 / 2} = Phi(-t) + e^{(2 a m + a^2 s^2 + b^2 m^2) / (2 k^2)} Phi((t + a s) / k) / k.
Truncation: for w >= w_N, |c_k| <= Phi(-t) + min(E[e^{-beta^2 z^2/2}; z > 0] at w_N, 2 phi(0) / (s |alpha_N|)), the
second since a unimodal density has a Fourier transform of at most 2 sup / |alpha|. Both fall with w, and the sum of
1/n^2 over odd n > N is at most 1 / (2N).

Errors: each c is computed to 1e-12 absolutely (tested against mpmath) and |c| <= 1, so that a product of K is off by at
most K 1e-12. Errors of m, s, mu, b and of phases cost at most w G (`Sums.blur`) as |dc/dm| <= |alpha| + beta, and the
sum over n of w_n / n^2 is at most (pi / P) (1 + log(N) / 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bnn_vnnlib.rounding import UNIT

Floats = NDArray[np.float64]

TERM = 1e-12
"""Absolute error allowed to one characteristic function."""

BLOCK = 16
"""Terms of the series at once."""

TERMS = 4001
"""Largest n."""

MEMORY = 2**20
"""Complex numbers at once, at most about."""

ENOUGH = 1e-6
"""Error of the tail and of the truncation, in standard deviations of zeta, that asks for no more."""

REACHES = np.array([4.0, 6.0, 8.0, 10.0, 13.0, 17.0, 25.0, 40.0, 60.0, 100.0])
"""P beyond |E zeta|, in standard deviations."""

RATES = np.array([0.3, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0])
"""lam times the standard deviation."""


@dataclass(frozen=True, eq=False)
class Sums:
    """A sums zeta: m, s (A, K) of the terms below, mu, sig (A, K), b, sig_b (A,), blur (A,) = G, in units of zeta."""

    m: Floats
    s: Floats
    mu: Floats
    sig: Floats
    b: Floats
    sig_b: Floats
    blur: Floats

    def of(self, index: NDArray[np.intp]) -> Sums:
        """Some of them."""
        return Sums(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def term(alpha: Floats, beta: Floats, m: Floats, s: Floats) -> NDArray[np.complex128]:
    """c, for arrays that broadcast; absolute error TERM besides that of the arguments."""
    t = np.clip(m / np.maximum(s, 1e-100), -60, 60)
    square = 1 + (beta * s) ** 2
    r = np.sqrt(square)
    y = (t + 1j * alpha * s) / (np.sqrt(2.0) * r)
    positive = t > 0
    side = special.wofz(np.where(positive, 1j * y, -1j * y)) * (np.exp(-(t**2) / 2) / (2 * r))
    exponent = (-((alpha * s) ** 2 + (beta * m) ** 2) / 2 + 1j * alpha * m) / square
    main = np.where(positive, np.exp(np.where(positive, exponent, 0.0)) / r, 0.0)
    return special.ndtr(-t) + np.where(positive, main - side, side)


def log_generating(a: Floats, b: Floats, m: Floats, s: Floats) -> Floats:
    """log E e^{a z + b^2 z^2 / 2}; infinite unless b s < 1."""
    room = 1 - (b * s) ** 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        k = np.sqrt(np.where(room > 0, room, np.nan))
        t = m / np.maximum(s, 1e-100)
        top = (2 * a * m + (a * s) ** 2 + (b * m) ** 2) / (2 * k**2) + special.log_ndtr((t + a * s) / k) - np.log(k)
        found = np.logaddexp(special.log_ndtr(-t), top)
    return np.where(room > 1e-6, found, np.inf)


def expected_relu(sums: Sums) -> tuple[Floats, Floats]:
    """Lower and upper bounds (A,) on E relu(zeta)."""
    count = max(1, MEMORY // (BLOCK * max(1, sums.m.shape[1])))
    parts = [_chunk(sums.of(np.arange(i, min(i + count, len(sums.b))))) for i in range(0, len(sums.b), count)]
    return np.concatenate([low for low, _ in parts]), np.concatenate([high for _, high in parts])


def _chunk(sums: Sums) -> tuple[Floats, Floats]:
    mean, deviation, size = moments(sums)
    period, tail = _period(sums, mean, deviation)
    series, rest = _series(sums, period, deviation)
    width = sums.m.shape[1]
    absolute = period / 2 - 4 * period / np.pi**2 * series
    rest = rest + period * (width * TERM + 1e-13) + 8 * sums.blur + 1e-12 * period
    off = 8 * (width + 16) * UNIT * size + sums.blur
    low, high = (mean + absolute - rest - off) / 2, (mean + absolute + rest + tail + off) / 2
    return np.maximum(low, 0.0), high


def moments(sums: Sums) -> tuple[Floats, Floats, Floats]:
    """E zeta, its standard deviation (a choice of scale, not a bound), and the sum of absolute values."""
    t = sums.m / np.maximum(sums.s, 1e-100)
    p, d = special.ndtr(t), np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)
    first = np.maximum(sums.m * p + sums.s * d, 0.0)
    second = np.maximum((sums.m**2 + sums.s**2) * p + sums.m * sums.s * d, first**2)
    variance = (sums.mu**2 * (second - first**2) + sums.sig**2 * second).sum(-1) + sums.sig_b**2
    size = (np.abs(sums.mu) * (np.abs(sums.m) + sums.s)).sum(-1) + np.abs(sums.b)
    mean = (sums.mu * first).sum(-1) + sums.b
    return mean, np.sqrt(variance) + 1e-9 * (1 + size), size


def _period(sums: Sums, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """P and R: the smallest reach whose tail is small enough, else the largest."""
    steepest = np.max(sums.sig * sums.s, -1)
    rate = np.minimum(RATES[:, None] / deviation, 0.98 / np.maximum(steepest, 1e-100))  # (J, A)
    logs = []
    for sign in (1.0, -1.0):
        each = log_generating(sign * rate[..., None] * sums.mu, rate[..., None] * sums.sig, sums.m, sums.s).sum(-1)
        logs.append(each + sign * rate * sums.b + (rate * sums.sig_b) ** 2 / 2)
    both = np.logaddexp(*logs)
    period = np.abs(mean) + REACHES[:, None] * deviation  # (F, A)
    exponent = np.log(period)[:, None] - rate * period[:, None] + both
    # errors of m, s move the exponents by rate times blur, times 1 / k^2 and t at most
    exponent = exponent + 1e-9 * (1 + rate * period[:, None]) + 1e4 * rate * sums.blur
    exponent = np.where(rate * period[:, None] >= 1 + 1e-9, exponent, np.inf)
    tail = np.exp(np.minimum(exponent.min(1), 600.0))
    good = tail <= ENOUGH * deviation
    choice = np.where(good.any(0), good.argmax(0), tail.argmin(0))
    index = np.arange(len(mean))
    tail = tail[choice, index]
    return period[choice, index], np.where(tail < 1e200, tail * (1 + 1e-6) + 1e-300, np.inf)


def _series(sums: Sums, period: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """Sum over odd n <= N of Re phi / n^2, and a bound on what the rest adds to E T."""
    total, rest = np.zeros_like(period), np.zeros_like(period)
    left = np.arange(len(period))
    for start in range(1, TERMS, 2 * BLOCK):
        some = sums.of(left)
        n = np.arange(start, start + 2 * BLOCK, 2)
        w = n * np.pi / period[left, None]
        c = term(w[..., None] * some.mu[:, None], w[..., None] * some.sig[:, None], some.m[:, None], some.s[:, None])
        phi = c.prod(-1) * np.exp(1j * w * some.b[:, None] - (w * some.sig_b[:, None]) ** 2 / 2)
        total[left] += (phi.real / n**2).sum(-1)
        rest[left] = 4 * period[left] / np.pi**2 * envelope(some, w[:, -1]) / (2 * n[-1]) * (1 + 1e-9)
        left = left[rest[left] > ENOUGH * deviation[left]]
        if len(left) == 0:
            break
    return total, rest


def envelope(sums: Sums, w: Floats) -> Floats:
    """Bound on |phi| at and beyond w (A,)."""
    alpha, beta = w[:, None] * np.abs(sums.mu), w[:, None] * sums.sig
    off = special.ndtr(-sums.m / np.maximum(sums.s, 1e-100))
    damped = term(np.zeros_like(alpha), beta, sums.m, sums.s).real - off
    waves = 0.7979 / np.maximum(alpha * sums.s, 1e-300)
    each = np.minimum(off + np.minimum(damped, waves) + 4 * TERM, 1.0)
    return each.prod(-1) * np.exp(-((w * sums.sig_b) ** 2) / 2) * (1 + 1e-9) + TERM
