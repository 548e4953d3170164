"""Quantiles of zeta = sum_k W_k z_k + b, z_k = relu(N(m_k, s_k^2)), W and b Gaussian, all independent.

The square wave of period 2P, sign(y) for |y| < P, has the series (4/pi) sum over odd n of sin(n pi y / P) / n, whose
partial sums are bounded, so that its mean at y = zeta - t is  S(t) = (4/pi) sum Im(phi(w_n) e^{-i w_n t}) / n,
w_n = n pi / P, phi from `characteristic`. With |t - a| <= H' and P = H + H', the wave differs from sign(zeta - t) only
where |zeta - a| >= H, by at most 2, and E sign(zeta - t) = P(zeta > t) - P(zeta < t) <= 1 - 2 P(zeta < t). Hence
    P(zeta < t) <= (1 - S(t)) / 2 + P(|zeta - a| >= H),    P(|zeta - a| >= H) <= e^{-lam H} (E e^{lam (zeta - a)} + ..).
Rest of the series: |phi| falls below an envelope that falls with w, the sum of 1/n over odd n in (N, 2N] is at most
(log 2) / 2, and beyond w_M the factor e^{-w^2 sig_b^2 / 2} makes it at most the envelope times E_1(w_M^2 sig_b^2/2) / 4
(/ 3.6 in the code, as the sum starts a little before M), where E_1(x) <= e^{-x} log(1 + 1 / x).
Errors: those of `characteristic`, K TERM + w_n G for each phi; the sum of 1/n over odd n <= N is at most 1 + log(N)/2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.characteristic import BLOCK, REACHES, TERMS, Sums, envelope, moments, tails, waves
from bnn_vnnlib.gaussian.normal import TERM
from bnn_vnnlib.rounding import UNIT

ENOUGH = 1e-6
"""Error of a probability that asks for no more."""

ASIDE = 2.0
"""Quantiles are looked for within this many standard deviations of the mean."""

STEPS = 24
"""Bisections."""

DOUBLINGS = 12
"""Of the last wave, in the bound on the rest of the series."""


def quantiles(sums: Sums, shares: Tensor) -> Tensor:
    """(A, L): numbers t with P(zeta < t) < 1/2 - share, for shares (L,) in [0, 1/2); -inf where none is found."""
    return torch.cat([_chunk(part, shares) for part in sums.parts()])


def spread(sums: Sums) -> Tensor:
    """(A,): upper bounds on the standard deviation."""
    _, deviation, size = moments(sums)
    return (deviation + 4 * sums.blur + 1e-7 * size) * (1 + 1e-9)


def _chunk(sums: Sums, shares: Tensor) -> Tensor:
    mean, deviation, _ = moments(sums)
    reach, tail = _reach(sums, mean, deviation)
    aside = ASIDE * deviation
    period = reach + aside * (1 + 1e-6)
    w, phi, rest = _series(sums, period)
    count = phi.shape[1]
    n = torch.arange(1, 2 * count, 2, dtype=w.dtype, device=w.device)
    turned = (8 * UNIT * w * (mean.abs() + aside + period)[:, None] + w * sums.blur[:, None]) / n
    each = (sums.m.shape[1] * TERM + 1e-13) * (1 + math.log(2 * count - 1) / 2)
    error = 4 / math.pi * (rest + turned.sum(-1) * (1 + 1e-9) + each) + 2 * tail + 1e-12
    error = torch.where(torch.isfinite(error), error, torch.inf)

    def enough(t: Tensor) -> Tensor:
        """(A, L): P(zeta < t) is below 1/2 - share."""
        turns = (torch.polar(torch.ones_like(w), -w * part[:, None]) for part in t.T)
        wave = torch.stack([((phi * turn).imag / n).sum(-1) for turn in turns], -1)
        return 4 / math.pi * wave - error[:, None] > 2 * shares

    low, high = ((mean + sign * aside)[:, None].repeat(1, len(shares)) for sign in (-1, 1))
    found = torch.where(enough(low), low, -torch.inf)
    for _ in range(STEPS):
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
    good = tail <= ENOUGH
    choice = torch.where(good.any(0), good.to(torch.uint8).argmax(0), tail.argmin(0))[None]
    return reach.gather(0, choice)[0], tail.gather(0, choice)[0] * (1 + 1e-9) + 1e-300


def _series(sums: Sums, period: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """w_n, phi(w_n) (A, N) for odd n, and a bound (A,) on the sum of |phi(w_n)| / n over the rest."""
    places, values = [], []
    rest = torch.full_like(period, torch.inf)
    for start in range(1, TERMS, 2 * BLOCK):
        n = torch.arange(start, start + 2 * BLOCK, 2, dtype=period.dtype, device=period.device)
        w = n * math.pi / period[:, None]
        places.append(w)
        values.append(waves(sums, w))
        rest = _rest(sums, w[:, -1])
        if bool((rest <= ENOUGH).all()):
            break
    return torch.cat(places, 1), torch.cat(values, 1), rest


def _rest(sums: Sums, w: Tensor) -> Tensor:
    total = torch.zeros_like(w)
    for _ in range(DOUBLINGS):
        total = total + envelope(sums, w) * (math.log(2) / 2)
        w = 2 * w
    last = envelope(sums, w).clamp(max=1.0)
    far = (w * sums.sig_b) ** 2 / 2
    end = last * torch.exp(-far) * torch.log1p(1 / far) / 3.6
    return (total + torch.where(far > 600.0, 1e-200, end)) * (1 + 1e-9)
