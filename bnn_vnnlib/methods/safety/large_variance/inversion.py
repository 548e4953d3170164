"""Upper bounds on P(Y <= t) from the characteristic function of Y.

Smoothing: with an independent standard Gaussian N, P(Y <= t) Phi(c) = P(Y <= t, N <= c) <= P(Y + eta N <= t + eta c).
Inversion: the square wave of period 2 P that is sign(y) on (-P, P) has the partial sums, bounded, of
(4 / pi) sum over odd n of sin(n pi y / P) / n. For y = Y + eta N - t the wave is -1 on all of (-P, 0), hence
    P(Y + eta N <= t) <= (1 - S) / 2 + P(Y + eta N <= t - P),
    S = (4 / pi) sum over odd n of Im(phi(w_n) e^{-i w_n t}) / n,   w_n = n pi / P,
phi(w) = E e^{i w Y} e^{-eta^2 w^2 / 2}. What lies beyond t + P can only raise the right side. For even N the sum of
1 / n over odd n in (N, 2 N] is at most (log 2) / 2, so that the rest of the series after N is at most the sum over
d >= 0 of (log 2) / 2 times envelope(2^d w_N) e^{-(eta 2^d w_N)^2 / 2}.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from bnn_vnnlib.gaussian.half_line import TERM, UP, Complexes, Floats, half_line
from bnn_vnnlib.methods.safety.large_variance.tails import envelope, far_below
from bnn_vnnlib.methods.safety.large_variance.transforms import Terms, errors, spread

BLOCK = 8
"""Terms of the series at once."""

BLOCKS = 24
"""At most."""

ENOUGH = 1e-5
"""Rest of the series that asks for no more terms."""

SMOOTH = ((1e-5, 6.0), (1e-3, 5.0), (0.01, 4.0), (0.03, 3.5), (0.1, 3.0))
"""eta over the standard deviation of Y, and c."""

BEYOND = 6.5
"""Standard deviations above the mean within which the wave is right."""

DOUBLINGS = 60

FINAL = 9.0
"""eta times the last doubled wave, at least: what comes after it is below 1e-15."""

LOST = 5e-9
"""Mass of the law that is left out or counted wrongly (D_j and zeta_j beyond their nodes), below 4e-9 a neuron; see
`transforms`.
"""


def below(terms: Terms, targets: Floats) -> Floats:
    """(A, T): bounds on P(Y <= targets (A, T))."""
    lines = terms.lines
    spread = lines.spread
    period = np.maximum(lines.center, 0.0) + BEYOND * spread + targets.max(1)
    waves, values, wrong, rest = _series(terms, period)
    n = np.arange(1, 2 * waves.shape[1], 2)
    lost = LOST * (1 + terms.k.shape[1])
    # very many deviations away the series is of no use, and this is all there is to know
    best = np.minimum(np.ones_like(targets), far_below(terms, targets.max(1), spread)[:, None] + lost)
    most = spread * max(smooth * (reach + 9) for smooth, reach in SMOOTH)
    far = far_below(terms, targets.max(1) + most - period, spread) + 1.2e-19  # or the Gaussian is below -9 eta
    for smooth, reach in SMOOTH:
        eta = smooth * spread
        damped = np.exp(-((eta[:, None] * waves) ** 2) / 2)
        t = targets + (eta * reach)[:, None]
        wave = np.imag(np.einsum("aw,atw->at", values * damped / n, np.exp(-1j * waves[:, None] * t[..., None])))
        error = (wrong * damped / n).sum(1) + rest(eta)
        half = 0.5 - 2 / np.pi * wave + (2 / np.pi * error)[:, None]
        found = (half + far[:, None] + lost) / special.ndtr(reach) * UP
        best = np.fmin(best, np.maximum(found, 0.0))
    return best


def _series(terms: Terms, period: Floats) -> tuple[Floats, Complexes, Floats, Callable[[Floats], Floats]]:
    """Waves (A, W), E e^{i w Y}, bounds on its errors, and a function of eta (A,) that bounds what the rest adds."""
    waves, values, wrong = [], [], []
    law = spread(terms)
    # a phase is rounded by a few units of its size
    phases = period + np.abs(terms.weights.bias) + np.abs(terms.lines.constant) + law.largest.sum(1)
    for block in range(BLOCKS):
        n = np.arange(2 * BLOCK * block + 1, 2 * BLOCK * (block + 1), 2)
        w = n * np.pi / period[:, None]
        each = law.at(w)
        error = (errors(terms, w[:, -1]) + law.error(w[:, -1]))[..., None]
        each = each / np.maximum(np.abs(each), 1.0)  # the true value lies in the disc, no farther than before
        size = np.minimum(np.abs(each) + error, 1.0)
        shift = _bias(terms, w) * terms.more.transform(w)
        product = each.prod(1) * shift
        waves.append(w)
        values.append(product * np.exp(-1j * w * terms.lines.constant[:, None]))
        bound = envelope(terms, w)
        off = (error / size).sum(1) * size.prod(1) * (1 + 1e-9) * (np.abs(shift) + 4 * TERM)
        off = np.minimum(off, np.abs(product) + bound)
        wrong.append(off + 4 * TERM * (1 + terms.more.dev.shape[1]) + 1e-15 * w * phases[:, None])
        last = w[:, -1]
        if (bound[:, -1] <= ENOUGH).all():
            break
    doubled = last[:, None] * 2.0 ** np.arange(DOUBLINGS)
    high = envelope(terms, doubled)

    def rest(eta: Floats) -> Floats:
        damped = high * np.exp(-((eta[:, None] * doubled) ** 2) / 2)
        total = np.log(2) / 2 * (damped.sum(1) + 1e-15) * UP
        return np.where(eta * doubled[:, -1] >= FINAL, total, np.inf)

    return np.concatenate(waves, 1), np.concatenate(values, 1), np.concatenate(wrong, 1), rest


def _bias(terms: Terms, waves: Floats) -> Complexes:
    """E e^{i w (B - |B| share)}."""
    mean, dev, share = (part[:, None] for part in (terms.weights.bias, terms.weights.bias_dev, terms.layer.share))
    known = np.exp(1j * waves * (mean - np.abs(mean) * share))
    sure = np.maximum(dev, 1e-100)
    plus = half_line(waves * (1 - share), mean, sure, 0.0)
    minus = np.conj(half_line(waves * (1 + share), -mean, sure, 0.0))
    return np.where(dev > 0, plus + minus, known)
