"""Every line of the table in `gaussian.normal`, against mpmath."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.gaussian.characteristic import term
from bnn_vnnlib.gaussian.faddeeva import by_trapezoids, faddeeva
from bnn_vnnlib.gaussian.normal import (
    ABSOLUTE,
    LOGARITHM,
    TERM,
    cdf,
    cdf_above,
    cdf_below,
    density,
    log_cdf_above,
    log_cdf_below,
)
from bnn_vnnlib.gaussian.relu import (
    HIGHEST_DENSITY,
    excess_above_mean,
    exponential_excess,
    log_half_moment,
    log_moment,
    log_moment_active,
    log_moment_below,
    mean_abs,
    mean_plane,
    relu_fourth,
    relu_mean,
    relu_square,
)
from support.gaussian import exact_log_moment, exact_relu_moment

POINTS = np.concatenate([np.linspace(-9, 9, 401), [-1e3, -40.0, -37.5, -25.0, 25.0, 40.0, 1e3]])


def number(value: float) -> torch.Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


@pytest.mark.parametrize(
    ("ours", "exact"), [(cdf, mpmath.ncdf), (density, mpmath.npdf), (torch.tanh, mpmath.tanh)],
    ids=["cdf", "density", "tanh"],
)  # fmt: skip
def test_densities(ours: Callable[[torch.Tensor], torch.Tensor], exact: Callable[[mpmath.mpf], mpmath.mpf]) -> None:
    with mpmath.workdps(40):
        for t, found in zip(POINTS, ours(torch.as_tensor(POINTS)).tolist(), strict=True):
            assert abs(exact(mpmath.mpf(t)) - mpmath.mpf(found)) < ABSOLUTE / 10


def test_the_distribution_is_rounded_outward_in_its_tails() -> None:
    low, high = (side(torch.as_tensor(POINTS)).tolist() for side in (cdf_below, cdf_above))
    with mpmath.workdps(60):
        for t, below, above in zip(POINTS, low, high, strict=True):
            exact, room = mpmath.ncdf(mpmath.mpf(t)), 1e-9 if t < 0 else 1e-12
            assert exact <= mpmath.mpf(above) <= exact * (1 + mpmath.mpf(room)) + mpmath.mpf(1e-300)
            assert exact >= mpmath.mpf(below) >= exact * (1 - mpmath.mpf(room)) - mpmath.mpf(1e-300)


def test_the_logarithm_of_the_distribution() -> None:
    points = np.concatenate([POINTS, [-9e3, -2e4, -1e9]])
    low, high = (side(torch.as_tensor(points)).tolist() for side in (log_cdf_below, log_cdf_above))
    with mpmath.workdps(60):
        for t, below, above in zip(points, low, high, strict=True):
            z = mpmath.mpf(t)
            # Phi(-z) = phi(z) / z (1 - 1 / z^2 + ..) far out, where mpmath gives up
            far = -(z**2) / 2 - mpmath.log(abs(z) * mpmath.sqrt(2 * mpmath.pi)) if t <= -1e3 else 0
            exact = far or mpmath.log(mpmath.ncdf(z))
            assert below <= exact + mpmath.mpf(1e-6) * (t <= -1e3)
            assert above >= exact - mpmath.mpf(1e-6) * (t <= -1e3)
            if t > -9e3:
                assert above - below <= 4 * LOGARITHM * (1 + abs(exact))


@pytest.mark.parametrize("s", [0.0, 1e-200, 1e-9, 0.3, 5.0, 1e6])
@pytest.mark.parametrize(("power", "ours", "times"), [(1, relu_mean, 1), (2, relu_square, 1), (4, relu_fourth, 6)])
def test_moments_of_relu(power: int, ours: Callable[..., torch.Tensor], times: int, s: float) -> None:
    with mpmath.workdps(60):
        for m in (-1e3, -9.0, -1.0, -1e-9, 0.0, 1e-12, 0.5, 30.0):
            found = mpmath.mpf(float(ours(number(m), number(s))))
            assert abs(exact_relu_moment(power, m, s) - found) <= times * ABSOLUTE * (abs(m) + s) ** power + 1e-300


@pytest.mark.parametrize("s", [0.0, 1e-9, 0.3, 5.0, 1e6])
def test_the_mean_of_an_absolute_value(s: float) -> None:
    """Relative to itself, and the lemma on its square."""
    with mpmath.workdps(60):
        for g in (-1e3, -9.0, -1.0, -1e-9, 0.0, 1e-12, 0.5, 30.0):
            exact = 2 * exact_relu_moment(1, abs(g), s) - abs(mpmath.mpf(g))
            assert abs(mpmath.mpf(float(mean_abs(number(g), number(s)))) - exact) <= 8 * ABSOLUTE * exact
            assert exact**2 <= mpmath.mpf(g) ** 2 + 2 * mpmath.mpf(s) ** 2 / mpmath.pi


@given(st.floats(-12, 12), st.floats(1e-3, 4), st.floats(-2, 2), st.floats(0, 0.05))
@settings(max_examples=40, deadline=None)
def test_excesses(m: float, s: float, a: float, square: float) -> None:
    with mpmath.workdps(400):
        mean = exact_relu_moment(1, m, s)
        assert float(excess_above_mean(number(m), number(s))) >= mean - max(mpmath.mpf(m), mpmath.mpf(0))
        exponential = mpmath.exp(exact_log_moment(a, mpmath.mpf(square) / 2, m, s))
        found = float(exponential_excess(*map(number, (a, square, m, s))))
        excess = exponential - 1 - mpmath.mpf(a) * mean
        assert found >= excess
        assert found == float("inf") or found - excess <= 1e-9 * (exponential + 1 + abs(a) * mean)


def test_the_exponential_excess_is_rounded_up_where_b_s_is_almost_one() -> None:
    """r^2 = 1 - b^2 s^2 loses its digits there, and with them exp(y^2 / 2)."""
    rng = np.random.default_rng(0)
    with mpmath.workdps(250):
        for _ in range(60):
            s, left, t, y = 10 ** rng.uniform(-2, 0), 10 ** rng.uniform(-5.9, -4), *rng.uniform((-33, 15), (-25, 22))
            a, square, m = (float(v) for v in ((y * np.sqrt(left) - t) / s, (1 - left) / s**2, t * s))
            excess = mpmath.exp(exact_log_moment(a, mpmath.mpf(square) / 2, m, float(s))) - 1
            excess -= mpmath.mpf(a) * exact_relu_moment(1, m, float(s))
            assert float(exponential_excess(*map(number, (a, square, m, float(s))))) >= excess


@given(st.floats(-30, 30), st.floats(-3, 0.49), st.floats(-8, 8), st.sampled_from([1e-7, 1e-3, 0.1, 0.5, 1.0]))
@settings(max_examples=150, deadline=None)
def test_exponential_moments_from_both_sides(alpha: float, beta: float, m: float, s: float) -> None:
    if m / s > 1e5:  # mpmath's own limits
        return
    low, high = (float(side(*map(number, (alpha, beta, m, s)))) for side in (log_moment_below, log_moment))
    with mpmath.workdps(60):
        exact = exact_log_moment(alpha, beta, m, s)
        assert low <= exact <= high
        assert high - low <= 1e-11 * (1 + abs(exact) + (alpha * m) ** 2 + (alpha * s) ** 2)
        c = 1 - 2 * mpmath.mpf(beta) * mpmath.mpf(s) ** 2
        a, b, z, v = (mpmath.mpf(part) for part in (alpha, beta, m, s))
        active = (b * z * z + a * z + a * a * v * v / 2) / c - mpmath.log(c) / 2
        assert float(log_moment_active(*map(number, (alpha, beta, m, s)))) >= active
        y = (z + a * v * v) / (v * mpmath.sqrt(c))
        if abs(y) < 1e3:  # mpmath's own limits again
            half, found = active + mpmath.log(mpmath.ncdf(y)), float(log_half_moment(*map(number, (alpha, beta, m, s))))
            assert half <= found <= half + 1e-11 * (1 + abs(half) + y * y + (alpha * m) ** 2 + (alpha * s) ** 2)


@pytest.mark.parametrize("left", [0.0011, 0.002, 0.03])
def test_exponential_moments_where_2_beta_s_squared_is_almost_one(left: float) -> None:
    rng = np.random.default_rng(0)
    with mpmath.workdps(80):
        for _ in range(100):
            s = float(10 ** rng.uniform(-3, 3))
            alpha, beta, m = float(rng.normal() / s), float((1 - left) / (2 * s * s)), float(rng.normal() * s)
            exact = exact_log_moment(alpha, beta, m, s)
            parts = tuple(map(number, (alpha, beta, m, s)))
            assert float(log_moment_below(*parts)) <= exact <= float(log_moment(*parts))


def test_planes_lie_above_the_mean_and_touch_it_at_opposite_corners() -> None:
    """On a grid of each rectangle, some of them points or without width on one side. At the other two corners they lack
    half of what the four values differ from those of a plane by.
    """
    rng = np.random.default_rng(0)
    low, least = rng.normal(size=300) * 3, 10.0 ** rng.uniform(-3, 1, 300)
    wide, tall = (rng.uniform(0, 4, 300) * (rng.random(300) < 0.8) for _ in range(2))
    ends = [torch.tensor(part) for part in (low, low + wide, least, least + tall)]
    beta, gain, kappa = mean_plane(*ends)
    part = torch.linspace(0.0, 1.0, 9, dtype=torch.float64)
    m = (ends[0] + part[:, None] * (ends[1] - ends[0]))[:, None]
    s = (ends[2] + part[:, None] * (ends[3] - ends[2]))[None]
    over = beta * m + gain * s + kappa - relu_mean(m, s)
    size = m.abs() + s
    assert (over >= -4 * ABSOLUTE * size).all()
    bent = relu_mean(m, s)[[0, 0, -1, -1], [0, -1, 0, -1]] * torch.tensor([1.0, -1.0, -1.0, 1.0]).double()[:, None]
    most = torch.stack([over[i, j] for i in (0, -1) for j in (0, -1)]).amax(0)
    assert (most <= bent.sum(0).abs() / 2 + 1e-8 * size.amax((0, 1))).all()
    assert (over.amin((0, 1)) <= 4 * ABSOLUTE * size.amax((0, 1))).all()
    assert ((beta >= 0) & (beta <= 1) & (gain >= 0) & (gain <= HIGHEST_DENSITY)).all()


def test_closed_forms_are_integrals() -> None:
    """The closed forms of the tests above, by quadrature."""
    m, s, a, q = -0.7, 1.3, 0.8, 0.2
    y = np.linspace(m - 14 * s, m + 14 * s, 400_001)
    z = np.maximum(y, 0)
    p = np.exp(-(((y - m) / s) ** 2) / 2) / (s * np.sqrt(2 * np.pi))
    with mpmath.workdps(30):
        for power in (1, 2, 4):
            assert float(exact_relu_moment(power, m, s)) == pytest.approx(np.trapezoid(z**power * p, y), rel=1e-7)
        truth = np.log(np.trapezoid(np.exp(a * z + q * z * z / 2) * p, y))
        assert float(exact_log_moment(a, q / 2, m, s)) == pytest.approx(truth, abs=1e-9)


def test_of_a_moment_out_of_reach_only_the_inactive_part_is_known() -> None:
    arguments = [number(v) for v in (0.3, 0.6, 0.1, 1.0)]  # 2 beta s^2 > 1: infinite
    assert float(log_moment(*arguments)) == np.inf
    assert float(log_moment_below(*arguments)) == pytest.approx(float(mpmath.log(mpmath.ncdf(-0.1))))


@pytest.mark.parametrize("ours", [by_trapezoids, faddeeva], ids=lambda ours: ours.__name__)
def test_the_faddeeva_function(ours: Callable[..., torch.Tensor]) -> None:
    """At random places, near the nodes of either rule and on the edges between the rules."""
    rng, step = np.random.default_rng(0), np.sqrt(np.pi / 12)
    edges = np.arange(-60, 60) * step / 4
    x = np.concatenate([rng.normal(size=200) * 3, rng.normal(size=100) * 100, edges, edges + 1e-9, [0.0, 1e-300, 1e8]])
    y = np.abs(np.concatenate([rng.normal(size=200) * 3, 10.0 ** rng.uniform(-12, 3, len(x) - 200)]))
    y[::5] = 0
    found = ours(torch.as_tensor(x), torch.as_tensor(y)).tolist()
    with mpmath.workdps(60):
        for a, b, w in zip(x, y, found, strict=True):
            z = mpmath.mpc(a, b)
            if abs(z) < 40:
                exact = mpmath.exp(-(z**2)) * mpmath.erfc(-1j * z)
            else:  # the continued fraction, cut off
                exact = 1j / mpmath.sqrt(mpmath.pi) / (z - 0.5 / (z - 1 / (z - 1.5 / (z - 2 / z))))
            assert abs(exact - mpmath.mpc(w)) < 1e-13 * (1 + 1e3 * (abs(z) >= 40) * float(abs(exact)))


@given(
    st.floats(-30, 30), st.floats(1e-3, 10), st.floats(-100, 100), st.floats(0, 20)
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_one_factor_of_a_characteristic_function(m: float, s: float, alpha: float, beta: float) -> None:
    with mpmath.workdps(60):
        a = mpmath.mpf(beta) ** 2 + 1 / mpmath.mpf(s) ** 2
        b = mpmath.mpf(m) / mpmath.mpf(s) ** 2 + 1j * mpmath.mpf(alpha)
        y = b / mpmath.sqrt(2 * a)
        t = mpmath.mpf(m) / mpmath.mpf(s)
        exact = mpmath.ncdf(-t) + mpmath.exp(y**2 - t**2 / 2) * mpmath.erfc(-y) / (2 * s * mpmath.sqrt(a))
        found = complex(term(number(alpha), number(beta), number(m), number(s)))
        assert abs(exact - mpmath.mpc(found)) < TERM
