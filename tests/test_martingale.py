"""The test martingale: against exact rationals, exact binomial bounds, and simulated runs that stop when they like."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import beta, binom

from bnn_vnnlib import martingale
from bnn_vnnlib.martingale import LEVELS, exceeds, failing, levels_of, lower_bounds, ones_needed

DELTA = failing(0.999999, 2)


def exact(levels: list[int], size: int, m: Fraction) -> Fraction:
    """K_n(m) by rational arithmetic, of the bets and weights as they are stored."""
    total = Fraction(0)
    for c, p in zip(martingale._BETS.tolist(), martingale._WEIGHTS.tolist(), strict=True):
        product = Fraction(p)
        for level in levels:
            product *= 1 + Fraction(c) * (Fraction(level, size) / m - 1)
        total += product
    return total


def test_delta_is_decimal_and_shared() -> None:
    for confidence, delta in ((0.999999, Fraction(1, 10**6)), (0.95, Fraction(1, 20)), (0.9, Fraction(1, 10))):
        for shares in (1, 2, 7):
            assert Fraction(failing(confidence, shares)) <= delta / shares
            assert failing(confidence, shares) >= float(delta / shares) * (1 - 1e-12)


def test_evidence_is_at_most_the_exact_one_and_close_to_it() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 4, LEVELS):
        for count in (1, 3, 17, 60):
            levels = rng.integers(0, size + 1, count)
            m = float(rng.uniform(0.01, 0.99))
            counts = levels_of(levels[:, None] / size, size)
            value = float(martingale._evidence(counts, np.array([m]))[0])
            truth = exact(levels.tolist(), size, Fraction(m))
            log = math.log(truth.numerator) - math.log(truth.denominator)
            assert value <= log + 1e-14 * (1 + abs(log))
            assert value == pytest.approx(log, rel=1e-9, abs=1e-9)


def test_the_mixture_of_bets_is_no_more_than_one() -> None:
    assert sum(map(Fraction, martingale._WEIGHTS.tolist())) <= 1
    assert ((martingale._BETS > 0) & (martingale._BETS <= 1)).all()


def test_numbers_are_rounded_down_to_levels_and_nonsense_counts_nothing() -> None:
    y = np.array([[0.3, np.nan], [0.999, -0.5], [1.0, 1.5], [np.inf, 0.0]])
    counts = levels_of(y, 4)
    assert counts.tolist() == [[1, 1, 0, 1, 1], [4, 0, 0, 0, 0]]


def test_draws_that_all_hold_need_no_more_than_the_page_says() -> None:
    """Beside the least fixed number that an exact binomial test needs (docs/statistical.md)."""
    for threshold, least, ours in ((0.9, 138, 153), (0.95, 283, 313), (0.99, 1444, 1598), (0.999, 14502, 16050)):
        count = np.arange(least - 1, ours + 1)
        shown = exceeds(np.stack([0 * count, count], 1), threshold, DELTA)
        assert not shown[:-1].any()
        assert shown[-1]
        binomial = threshold**count <= DELTA
        assert not binomial[0]
        assert binomial[1:].all()


def test_bounds_are_below_the_exact_binomial_ones() -> None:
    """Clopper and Pearson's bound is the best for a fixed number of draws; ours holds for all numbers at once."""
    for n, ones in ((50, 50), (400, 390), (2000, 1500), (2000, 3)):
        ours = float(lower_bounds(np.array([[n - ones, ones]]), DELTA)[0])
        best = float(beta.ppf(DELTA, ones, n - ones + 1))
        assert 0 <= ours <= best
        assert ours >= best - 4.5 * math.sqrt(max(best * (1 - best), 0.01) / n)


def test_a_bound_shows_what_it_says_and_grows_with_the_evidence() -> None:
    counts = np.array([[5, 95], [4, 96], [0, 100], [100, 0]])
    bound = lower_bounds(counts, 0.01)
    assert (np.diff(bound[:3]) > 0).all()
    assert bound[3] == 0
    assert exceeds(counts[:3], bound[:3], 0.01).all()
    assert not exceeds(counts, bound + 1e-6, 0.01).any()
    assert not exceeds(counts[2:3], 0.0, 0.01).any()
    assert not exceeds(counts[2:3], 1.0, 0.01).any()


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99, 1.0])
def test_interval_covers_wherever_a_run_stops(q: float) -> None:
    """2,000 runs, delta = 0.05: each is looked at after every draw, and is a miss if a bound ever fails.

    Worse than any rule of stopping. Bounds are inverted only where they could fail: at q itself.
    """
    runs, draws, delta = 2000, 400, failing(0.95, 2)
    ones = (np.random.default_rng(1).random((runs, draws)) < q).cumsum(1)
    zeros = np.arange(1, draws + 1) - ones
    missed = np.zeros(runs, dtype=bool)
    for counts, truth in ((np.stack([zeros, ones], -1), q), (np.stack([ones, zeros], -1), 1 - q)):
        if 0 < truth < 1:
            missed |= exceeds(counts.reshape(-1, 2), truth, delta).reshape(runs, draws).any(1)
    assert missed.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_numbers_that_are_no_indicators_are_covered() -> None:
    """y in [0, 1] with a law far from an indicator's, looked at after every tenth draw."""
    runs, draws, delta = 300, 200, 0.05
    y = np.random.default_rng(2).beta(0.2, 0.3, (draws, runs))
    missed = np.zeros(runs, dtype=bool)
    for n in range(10, draws + 1, 10):
        missed |= exceeds(levels_of(y[:n], 64), 0.4, delta)
    assert missed.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_quantiles_of_order_statistics() -> None:
    """The s-th largest of n exceeds the quantile with probability delta at most, by the exact binomial law."""
    for n, m in ((100, 0.5), (400, 0.95), (400, 0.05)):
        needed = ones_needed(n, m, 0.01)
        assert needed is not None
        assert float(binom.sf(needed - 1, n, m)) <= 0.01
        assert float(binom.sf(needed - 1 - math.isqrt(4 * n), n, m)) > 0.01
    assert ones_needed(10, 0.95, 0.01) is None
