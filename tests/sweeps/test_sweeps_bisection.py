"""Bisection: brackets hold the truth, whatever proofs fail."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib import OptionError
from bnn_vnnlib.sweeps.radius import _NOTHING_PROVED, Bisection, Radii

RADII = Radii(largest=1.0, tolerance=0.01)


def prober(safe_below, unsafe_above, flaky=None):
    """Certificates up to one threshold and from another one on; `flaky(radius)` makes proofs fail at will."""

    def probe(index, radius):
        assert len({*zip(index.tolist(), radius.tolist(), strict=True)}) == len(index)  # nothing is asked twice at once
        robust, broken = radius <= safe_below[index], radius >= unsafe_above[index]
        if flaky is not None:
            fails = flaky(index, radius)
            robust, broken = robust & ~fails, broken & ~fails
        return robust, np.where(broken, radius, np.inf)

    return probe


thresholds = st.lists(st.tuples(st.floats(-0.2, 1.3), st.floats(0, 0.5)), min_size=1, max_size=20)


@given(thresholds)
def test_both_radii_are_found_up_to_the_tolerance(pairs):
    safe = np.array([low for low, _ in pairs])
    unsafe = np.array([max(low, 0) + gap + 1e-9 for low, gap in pairs])
    search = Bisection(len(pairs), RADII)
    search.run(prober(safe, unsafe))
    below, above = safe < 0, safe >= 1
    assert (search.robust[below] == _NOTHING_PROVED).all()
    assert (search.robust[above] == 1).all()
    inside = ~below & ~above
    assert (search.robust[inside] <= safe[inside]).all()
    assert (search.robust[inside] > safe[inside] - 0.01 - 1e-12).all()
    reached = unsafe <= 1
    assert np.isinf(search.broken[~reached]).all()
    assert (search.broken[reached] >= unsafe[reached]).all()
    assert (search.broken[reached] < unsafe[reached] + 0.01 + 1e-12).all()


@settings(max_examples=200)
@given(thresholds, st.integers(0, 2**32 - 1))
def test_proofs_that_fail_at_random_cost_tightness_and_never_truth(pairs, seed):
    safe = np.array([low for low, _ in pairs])
    unsafe = np.array([max(low, 0) + gap + 1e-9 for low, gap in pairs])
    rng = np.random.default_rng(seed)
    search = Bisection(len(pairs), RADII)
    search.run(prober(safe, unsafe, lambda index, radius: rng.random(len(index)) < 0.4))
    known = search.robust != _NOTHING_PROVED
    assert (search.robust[known] <= safe[known]).all()
    assert (search.broken >= unsafe).all()
    assert search.rounds < 200


def test_a_proof_at_a_larger_radius_makes_an_earlier_failure_forgotten():
    """Fails at .25 only: the search for the unrobust radius proves a larger one, and goes on from there."""
    safe, unsafe = np.array([0.8]), np.array([np.inf])
    search = Bisection(1, Radii(1.0, 0.01, first=0.25))
    search.run(prober(safe, unsafe, lambda index, radius: (radius > 0.2) & (radius < 0.3)))
    assert 0.79 - 1e-9 < search.robust[0] <= 0.8


def test_one_radius_an_input_while_all_is_decided():
    """Unrobust radii are rounded up: the brackets of both searches are the same all the same."""
    safe = np.linspace(0.1, 0.9, 20)

    def probe(index, radius):
        assert len(np.unique(index)) == len(index)
        robust = radius <= safe[index]
        return robust, np.where(robust, np.inf, np.nextafter(radius, np.inf))

    search = Bisection(len(safe), RADII)
    search.run(probe)
    assert (search.robust <= safe).all()
    assert (search.broken - search.robust < 0.01 + 1e-12).all()


def test_an_input_that_is_unsafe_itself():
    search = Bisection(1, RADII)
    search.run(prober(np.array([-1.0]), np.array([0.0])))
    assert search.robust[0] == _NOTHING_PROVED
    assert search.broken[0] == 0
    assert search.rounds == 1


@pytest.mark.parametrize(
    "values", [(0.0, 0.1), (1.0, 0.0), (1.0, 2.0), (1.0, 1e-14), (np.inf, 1.0), (1.0, 0.1, 2.0), (np.nan, 0.1)]
)
def test_radii_that_make_no_sense_are_refused(values):
    with pytest.raises(OptionError):
        Radii(*values)
