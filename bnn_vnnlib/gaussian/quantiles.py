"""Quantiles of zeta = sum_k W_k z_k + b, z_k = relu(N(m_k, s_k^2)), W and b Gaussian, all independent.

The square wave of period 2P, sign(y) for |y| < P, has the series (4/pi) sum over odd n of sin(n pi y / P) / n, whose
partial sums are bounded, so that its mean at y = zeta - t is  S(t) = (4/pi) sum Im(phi(w_n) e^{-i w_n t}) / n,
w_n = n pi / P, phi from `characteristic`. With |t - a| <= H' and P = H + H', the wave differs from sign(zeta - t) only
where |zeta - a| >= H, by at most 2, and E sign(zeta - t) = P(zeta > t) - P(zeta < t) <= 1 - 2 P(zeta < t). Hence
    P(zeta < t) <= (1 - S(t)) / 2 + P(|zeta - a| >= H),    P(|zeta - a| >= H) <= e^{-lam H} (E e^{lam (zeta - a)} + ..).
Rest of the series: |phi| falls below an envelope that falls with w, the sum of 1/n over odd n in (N, 2N] is at most
(log 2) / 2, and beyond w_M the factor e^{-w^2 sig_b^2 / 2} makes it at most the envelope times E_1(w_M^2 sig_b^2/2) / 4
(/ 3.6 in the code, as the sum starts a little before M).
Errors: those of `characteristic`, K TERM + w_n G for each phi; the sum of 1/n over odd n <= N is at most 1 + log(N)/2.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from bnn_vnnlib.gaussian.characteristic import (
    BLOCK,
    MEMORY,
    RATES,
    REACHES,
    TERM,
    TERMS,
    Floats,
    Sums,
    envelope,
    log_generating,
    moments,
    term,
)
from bnn_vnnlib.rounding import UNIT

ENOUGH = 1e-6
"""Error of a probability that asks for no more."""

ASIDE = 2.0
"""Quantiles are looked for within this many standard deviations of the mean."""

STEPS = 24
"""Bisections."""

DOUBLINGS = 12


def quantiles(sums: Sums, shares: Floats) -> Floats:
    """(A, L): numbers t with P(zeta < t) < 1/2 - share, for shares (L,) in [0, 1/2); -inf where none is found."""
    count = max(1, MEMORY // (BLOCK * max(1, sums.m.shape[1])))
    parts = [_chunk(sums.of(np.arange(i, min(i + count, len(sums.b)))), shares) for i in range(0, len(sums.b), count)]
    return np.concatenate(parts)


def spread(sums: Sums) -> Floats:
    """(A,): upper bounds on the standard deviation."""
    _, deviation, size = moments(sums)
    return (deviation + 4 * sums.blur + 1e-7 * size) * (1 + 1e-9)


def _chunk(sums: Sums, shares: Floats) -> Floats:
    mean, deviation, _ = moments(sums)
    reach, tail = _reach(sums, mean, deviation)
    aside = ASIDE * deviation
    period = reach + aside * (1 + 1e-6)
    w, phi, rest = _series(sums, period)
    n = np.arange(1, 2 * phi.shape[1], 2)
    turned = (8 * UNIT * w * (np.abs(mean) + aside + period)[:, None] + w * sums.blur[:, None]) / n
    each = (sums.m.shape[1] * TERM + 1e-13) * (1 + np.log(n[-1]) / 2)
    error = 4 / np.pi * (rest + turned.sum(-1) * (1 + 1e-9) + each) + 2 * tail + 1e-12
    error = np.where(np.isfinite(error), error, np.inf)

    def enough(t: Floats) -> np.ndarray:
        """(A, L): P(zeta < t) is below 1/2 - share."""
        wave = np.stack([(np.imag(phi * np.exp(-1j * w * part[:, None])) / n).sum(-1) for part in t.T], -1)
        return np.asarray(4 / np.pi * wave - error[:, None] > 2 * shares)

    low = np.repeat((mean - aside)[:, None], len(shares), 1)
    high = np.repeat((mean + aside)[:, None], len(shares), 1)
    found = np.where(enough(low), low, -np.inf)
    for _ in range(STEPS):
        middle = (low + high) / 2
        good = enough(middle)
        found = np.where(good & (found > -np.inf), np.maximum(found, middle), found)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return found


def _reach(sums: Sums, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """H and a bound on P(|zeta - mean| >= H): the smallest H whose tail is small enough, else the best."""
    steepest = np.max(sums.sig * sums.s, -1)
    rate = np.minimum(RATES[:, None] / deviation, 0.98 / np.maximum(steepest, 1e-100))  # (J, A)
    logs = []
    for sign in (1.0, -1.0):
        each = log_generating(sign * rate[..., None] * sums.mu, rate[..., None] * sums.sig, sums.m, sums.s)
        moved = sign * rate * (sums.b - mean)
        payment = 1e-12 * (np.abs(each).sum(-1) + np.abs(moved) + rate * np.abs(mean))
        logs.append(each.sum(-1) + moved + (rate * sums.sig_b) ** 2 / 2 + payment)
    both = np.logaddexp(*logs)
    reach = REACHES[:, None] * deviation  # (F, A)
    exponent = both - rate * reach[:, None] + 1e-9 * (1 + rate * reach[:, None]) + 1e4 * rate * sums.blur
    tail = np.exp(np.minimum(np.nan_to_num(exponent, nan=np.inf).min(1), 1.0))
    good = tail <= ENOUGH
    choice, index = np.where(good.any(0), good.argmax(0), tail.argmin(0)), np.arange(len(mean))
    return reach[choice, index], tail[choice, index] * (1 + 1e-9) + 1e-300


def _series(sums: Sums, period: Floats) -> tuple[Floats, np.ndarray, Floats]:
    """w_n, phi(w_n) (A, N) for odd n, and a bound (A,) on the sum of |phi(w_n)| / n over the rest."""
    waves, values = [], []
    rest = np.full_like(period, np.inf)
    for start in range(1, TERMS, 2 * BLOCK):
        n = np.arange(start, start + 2 * BLOCK, 2)
        w = n * np.pi / period[:, None]
        c = term(w[..., None] * sums.mu[:, None], w[..., None] * sums.sig[:, None], sums.m[:, None], sums.s[:, None])
        waves.append(w)
        values.append(c.prod(-1) * np.exp(1j * w * sums.b[:, None] - (w * sums.sig_b[:, None]) ** 2 / 2))
        rest = _rest(sums, w[:, -1])
        if (rest <= ENOUGH).all():
            break
    return np.concatenate(waves, 1), np.concatenate(values, 1), rest


def _rest(sums: Sums, w: Floats) -> Floats:
    total = np.zeros_like(w)
    for _ in range(DOUBLINGS):
        total = total + envelope(sums, w) * (np.log(2) / 2)
        w = 2 * w
    last = np.minimum(envelope(sums, w), 1.0)
    far = (w * sums.sig_b) ** 2 / 2
    with np.errstate(invalid="ignore"):
        end = last * np.exp(np.minimum(far, 600.0)) * special.exp1(far) / 3.6
    return np.asarray((total + np.where(far > 600.0, 1e-200, end)) * (1 + 1e-9))
