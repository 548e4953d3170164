"""Boxes around balls hold them, whatever is rounded; a reach is never too short."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bnn_vnnlib import InputError
from bnn_vnnlib.sweeps.inputs import make_balls

numbers = st.floats(-1e6, 1e6, allow_subnormal=True)
sizes = st.floats(0, 1e6, allow_subnormal=True)


@example(4.0, 5e-324, 1.0)  # the quotient overflows
@given(numbers, sizes, sizes)
def test_the_box_holds_the_ball_and_the_reach_holds_the_box(x, scale, radius):
    balls = make_balls(np.array([[x]]), np.array([scale]))
    row = np.array([0])
    low, high = balls.boxes(row, np.array([radius]))
    size = Fraction(radius) * Fraction(scale)
    assert Fraction(low[0, 0]) <= Fraction(x) - size
    assert Fraction(high[0, 0]) >= Fraction(x) + size
    if scale > 0:
        reach = balls.reach(row, low, high)[0]
        assert reach == np.inf or Fraction(reach) * Fraction(scale) >= max(
            Fraction(high[0, 0]) - Fraction(x), Fraction(x) - Fraction(low[0, 0])
        )


def test_the_roundings_are_needed():
    """.1 + .2 is not .3: the sum to nearest misses the end of one of these balls."""
    x, radius = np.full((1, 1), 0.1), np.array([0.2])
    exact = Fraction(0.1) + Fraction(0.2)
    assert Fraction(0.3) < exact or Fraction(0.1 + 0.2) < exact or Fraction(0.1 - 0.2) > Fraction(0.1) - Fraction(0.2)
    low, high = make_balls(x).boxes(np.array([0]), radius)
    assert Fraction(low[0, 0]) <= Fraction(0.1) - Fraction(0.2)
    assert Fraction(high[0, 0]) >= exact


def test_fixed_inputs_the_valid_range_and_radius_zero():
    balls = make_balls(np.array([[0.5, 0.9]]), np.array([0.0, 2.0]), 0.0, 1.0)
    low, high = balls.boxes(np.array([0, 0]), np.array([0.0, 0.25]))
    np.testing.assert_array_equal(low[0], [0.5, 0.9])
    np.testing.assert_array_equal(high[0], [0.5, 0.9])
    assert low[1, 0] == high[1, 0] == 0.5
    np.testing.assert_allclose([low[1, 1], high[1, 1]], [0.4, 1.0])
    np.testing.assert_allclose(balls.reach(np.array([0, 0]), low, high), [0.0, 0.25])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scale": np.array([-1.0, 1.0])}, "scale must be finite and not negative"),
        ({"scale": np.array([np.nan, 1.0])}, "scale must be finite and not negative"),
        ({"low": 0.6}, r"input 0 of row 0 is 0.5, outside of the valid range \[0.6, inf\]"),
        ({"high": 0.6}, r"input 1 of row 0 is 0.9"),
    ],
)
def test_what_is_refused(fields, words):
    with pytest.raises(InputError, match=words):
        make_balls(np.array([[0.5, 0.9]]), **fields)
