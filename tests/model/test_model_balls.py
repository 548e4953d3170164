"""Constants with an error bound: the enclosure is checked in exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.model.balls import Ball, ball_product, ball_sum, reciprocal, square_root

numbers = st.floats(-1e6, 1e6, allow_subnormal=True) | st.floats(allow_nan=False, allow_infinity=False, width=32)
radii = st.none() | st.floats(0, 1e-3)


def ball(mid: float, rad: float | None) -> Ball:
    return Ball(np.array(mid), None if rad is None else np.array(rad))


def ends(b: Ball) -> list[Fraction]:
    """Points of the ball to try: both ends and the middle."""
    rad = Fraction(0 if b.rad is None else float(b.rad))
    return [Fraction(float(b.mid)) + sign * rad for sign in (-1, 0, 1)]


def holds(b: Ball, exact: Fraction) -> bool:
    rad = Fraction(0 if b.rad is None else float(b.rad))
    return abs(Fraction(float(b.mid)) - exact) <= rad


@settings(max_examples=200, deadline=None)
@given(numbers, radii, numbers, radii)
def test_sum_and_product_enclose(a: float, r: float | None, b: float, s: float | None) -> None:
    x, y = ball(a, r), ball(b, s)
    for p in ends(x):
        for q in ends(y):
            assert holds(ball_sum(x, y), p + q)
            assert holds(ball_product(x, y), p * q)


@settings(max_examples=200, deadline=None)
@given(numbers.filter(lambda v: abs(v) > 1e-307), st.none() | st.floats(0, 0.5))
def test_reciprocal_encloses(a: float, share: float | None) -> None:
    x = ball(a, None if share is None else abs(a) * share)
    inverse = reciprocal(x)
    if inverse.rad is None or np.isfinite(inverse.rad):
        assert all(holds(inverse, 1 / p) for p in ends(x))
    else:
        assert abs(a) < 1e-290  # near the end of the range the bound overflows, which the importer refuses


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1e12, allow_subnormal=False), st.none() | st.floats(0, 0.5))
def test_square_root_encloses(a: float, share: float | None) -> None:
    x = ball(a, None if share is None or a == 0 else a * share)
    root = square_root(x)
    rad = Fraction(0 if root.rad is None else float(root.rad))
    low, high = Fraction(float(root.mid)) - rad, Fraction(float(root.mid)) + rad
    # sqrt p lies in [low, high] iff p lies between the squares
    assert all(max(low, 0) ** 2 <= p <= high**2 for p in ends(x))


@settings(max_examples=100, deadline=None)
@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32))
def test_products_of_float32_are_exact_and_said_to_be(a: float, b: float) -> None:
    if abs(a * b) > 1e-200 or a * b == 0:
        assert ball_product(ball(a, None), ball(b, None)).rad is None


@pytest.mark.parametrize("value", [1.0, -2.0, 0.125, 2.0**40])
def test_reciprocal_of_a_power_of_two_is_exact(value: float) -> None:
    assert reciprocal(ball(value, None)).rad is None


def test_what_is_not_known_is_not_finite() -> None:
    for undefined in (reciprocal(ball(0.0, None)), reciprocal(ball(1.0, 2.0)), square_root(ball(-1.0, None))):
        rad = undefined.rad
        assert not np.isfinite(undefined.mid) or (rad is not None and not np.isfinite(rad))
