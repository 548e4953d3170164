"""What draws show about an expectation, at every moment, with a stated confidence: a test martingale.

Let Y_1, Y_2, ... in [0, 1] have the mean q each, given all that was drawn before (independent and of one law, say), and
let y_i be what was proved of Y_i: any number of [0, Y_i], however it was found and however long it took. With fixed
bets c_j in (0, 1] and weights p_j > 0 of sum 1,

    K_n(m) = sum_j p_j prod_{i <= n} (1 + c_j (y_i / m - 1)),        m in (0, 1).

1. At m = q, with Y_i in the place of y_i, every factor is >= 1 - c_j >= 0 and has the mean 1, so that the products, and
   their mixture, are nonnegative martingales with mean 1. By Ville's inequality
   P(some n has K_n(q) >= 1 / delta) <= delta.
2. Every factor grows with y_i, so that K_n(q) of the y_i is at most that of the Y_i, and 1 holds for it as well.
3. Every factor falls as m grows, since y_i >= 0, and so does K_n. If K_n(m) >= 1 / delta for some n and m >= q, then
   K_n(q) >= 1 / delta. So, but for an event of probability delta, q > m for all m and n with K_n(m) >= 1 / delta.

Hence the best bound ever reached holds, whenever and for whatever reason one stops. What is not known of a draw of the
prefix 1..n (no time, a crash, nan) counts 0; no draw of the prefix may be left out. An upper bound on q is 1 less a
lower bound on E(1 - Y), from what is proved of 1 - Y_i, at a delta of its own.

4. Quantiles. Let L_i be independent and of one law, and t_0 the supremum of all t with P(L >= t) > m. For every t > t_0
   the number of L_i >= t is at most S = that of L_i > t_0, and P(L > t_0) <= m. Let s be the least number of ones among
   n for which K_n(m) >= 1 / delta. But for an event of probability delta, S < s for all n, and then the s-th largest of
   L_1 .. L_n is at most t_0: one delta serves all t at once.

Numbers. y_i is rounded down to a level b / B, so that counts (.., B + 1) of the levels are all that is kept (B = 1:
safe or not). Of a factor f = (1 - c) + c b / (B m) both terms are >= 0 and four roundings move it by 4 u f, so that its
computed logarithm is off by 6 u + 2 u |log f|; a sum of B + 1 of them, times their counts, by (B + 3) u of the sum of
the absolute terms. `_PAID` is 2^13 u, for B <= 2^11, and what is left of it pays for the mixture. log 1 / delta is
rounded up.

References: Ville, 1939; Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B 2024.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from bnn_vnnlib.arrays import Flags, Floats, Ints

_BETS: Floats = np.array([1.0, *(k / 10 for k in range(9, 0, -1)), *(2.0**-k for k in range(4, 14))])
"""c_j: the first is the best while no draw fails; small ones serve differences between small shares of failures."""

_WEIGHTS: Floats = np.array([0.2, *[0.05] * 9, *[0.035] * 10]) * (1 - 2.0**-40)
"""p_j, whose sum is at most 1, roundings included: less of the mixture is only weaker."""

LEVELS = 2**11
"""Number B of levels, at most, for numbers that are no indicators."""

_PAID = 2.0**-40
"""What is paid for rounding at each draw, relative to 1 + |log f|."""

_HALVINGS = 30
"""Halvings of the interval (0, 1) in the search for a bound."""


def failing(confidence: float, shares: int = 1) -> float:
    """delta = 1 - confidence in decimal arithmetic, divided by the number of events that share it; rounded down."""
    return float((1 - Decimal(repr(confidence))) / shares) * (1 - 2.0**-50)


def levels_of(proved: Floats, levels: int) -> Ints:
    """Counts (I, B + 1) of numbers (n, I) of [0, 1], rounded down to levels; what is no such number counts 0.

    Parameters
    ----------
    levels : B, a power of two, so that the product is exact
    """
    y = np.where((proved >= 0) & (proved <= 1), proved, 0.0)
    level = np.floor(y * levels).astype(np.int64)
    width, means = levels + 1, level.shape[1]
    counts = np.bincount((level + width * np.arange(means)).ravel(), minlength=means * width)
    return counts.reshape(means, width)


def exceeds(counts: Ints, m: Floats | float, delta: Floats | float) -> Flags:
    """(I,): the mean is proved to exceed m, by counts (I, B + 1) of levels of the draws 1..n; False outside (0, 1).

    Parameters
    ----------
    m, delta : (I,) or one number each
    """
    mean = np.broadcast_to(np.asarray(m, np.float64), counts.shape[:1])
    inside = (mean > 0) & (mean < 1)
    goal = -np.log(delta) * (1 + 1e-12) + 1e-12
    return inside & (_evidence(counts, np.where(inside, mean, 0.5)) >= goal)


def lower_bounds(counts: Ints, delta: Floats | float) -> Floats:
    """(I,): the largest m that `exceeds` shows, about; 0 where it shows none."""
    low, high = np.zeros(len(counts)), np.ones(len(counts))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        shown = exceeds(counts, middle, delta)
        low, high = np.where(shown, middle, low), np.where(shown, high, middle)
    return low


def ones_needed(count: int, m: float, delta: float) -> int | None:
    """The least number of ones among so many draws for which a mean is proved to exceed m; None: not even all."""
    ones = np.arange(count + 1)
    shown = np.flatnonzero(exceeds(np.stack([count - ones, ones], 1), m, delta))
    return int(shown[0]) if len(shown) else None


def _evidence(counts: Ints, m: Floats) -> Floats:
    """Lower bounds (I,) on log K_n(m), by what the draws showed."""
    used = np.flatnonzero(counts.any(0))
    y, seen = used / (counts.shape[1] - 1), counts[:, used, None]
    with np.errstate(divide="ignore"):
        log = np.log((1 - _BETS) + _BETS * (y[:, None] / m[:, None, None]))
    held = np.where(seen > 0, log, 0.0)  # no draw has no factor, even if it were 0
    paid = _PAID * (seen * (1 + np.where(np.isfinite(held), np.abs(held), 0.0))).sum(1)
    terms = np.log(_WEIGHTS) + (seen * held).sum(1) - paid
    largest = terms.max(1)
    mixed = largest + np.log(np.exp(terms - largest[:, None]).sum(1))
    return mixed - _PAID * (1 + np.abs(largest))
