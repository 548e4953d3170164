"""Ranges and lines of the activations, judged by exact fractions and by mpmath."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.bounds.activations import ACTIVATIONS, Lines
from support import exact

KINDS = [
    ("relu", 0.0), ("leaky_relu", 0.0), ("leaky_relu", 0.1), ("leaky_relu", 0.01), ("leaky_relu", 1.0),
    ("leaky_relu", 2.0), ("leaky_relu", 1e-300), ("leaky_relu", 1e20), ("tanh", 0.0), ("sigmoid", 0.0),
]  # fmt: skip
SMOOTH = [kind for kind in KINDS if kind[0] in ("tanh", "sigmoid")]
SIZES = [
    5e-324, 1.5e-323, 1e-310, 2.3e-308, 1e-300, 1e-17, 1e-9, 1e-4, 0.3, 1.0, 1.0 + 2**-52, 2.7, 6.0, 13.8, 18.9, 36.9,
    709.9, 745.2, 1e4, 1e13, 1e30, 1e150, 1.7e308,
]  # fmt: skip
VALUES = sorted([0.0, *SIZES, *(-size for size in SIZES)])


@functools.lru_cache(maxsize=100_000)
def value(kind: str, alpha: float, z: float) -> Any:
    """f(z): a fraction where that is exact, else 300 bits."""
    if kind in ("tanh", "sigmoid") and abs(z) > 1e6:  # mpmath would compute an exponential with a million digits
        return mpmath.mpf((z > 0) - (z < 0)) if kind == "tanh" else mpmath.mpf(z > 0)
    with mpmath.workprec(exact.BITS):
        return exact.scalar(kind, alpha, Fraction(z))


def points(lower: float, upper: float) -> list[float]:
    """End points, their neighbours, zero, and numbers between: evenly and by magnitude."""
    inner = [lower * (1 - share) + upper * share for share in (0.01, 0.2, 0.5, 0.77, 0.99)]
    geometric = [math.copysign(math.sqrt(abs(end)) * math.sqrt(1e-3), end) for end in (lower, upper)]
    candidates = [
        lower, upper, 0.0, math.nextafter(lower, math.inf), math.nextafter(upper, -math.inf), *inner, *geometric,
        *(end / scale for end in (lower, upper) for scale in (2, 3, 1e3)), 0.7, -0.7,
    ]  # fmt: skip
    return [z for z in candidates if lower <= z <= upper]


def below(left: float, kind: str, alpha: float, slope: float, z: float, sign: int) -> bool:
    """sign * (slope z + intercept) <= sign * f(z)."""
    line = Fraction(slope) * Fraction(z) + Fraction(left)
    f = value(kind, alpha, z)
    return exact.at_most(line, f) if sign > 0 else exact.at_most(f, line)


def check(kind: str, alpha: float, lower: float, upper: float, lines: Lines, low: float, high: float, at: int) -> None:
    """The range and both lines on one interval; an infinite intercept claims nothing and is kept for overflow."""
    case = (kind, alpha, lower, upper)
    for z in points(lower, upper):
        f = value(kind, alpha, z)
        assert math.isinf(low) or exact.at_most(Fraction(low), f), (case, z, low)
        assert math.isinf(high) or exact.at_most(f, Fraction(high)), (case, z, high)
        for sign, slopes, intercepts in (
            (1, lines.lower_slope, lines.lower_intercept), (-1, lines.upper_slope, lines.upper_intercept)
        ):  # fmt: skip
            slope, intercept = slopes[at].item(), intercepts[at].item()
            if not math.isfinite(intercept):
                assert max(abs(lower), abs(upper)) * max(alpha, 1) > 1e307, (case, sign)
                assert intercept != math.copysign(math.inf, sign), (case, sign)
                continue
            assert below(intercept, kind, alpha, slope, z, sign), (case, z, sign, slope, intercept)


def check_all(kind: str, alpha: float, pairs: list[tuple[float, float]], choice: float | None = None) -> None:
    """Many intervals in one tensor; a choice is taken for both lines."""
    lower, upper = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    shape = ACTIVATIONS[kind]
    chosen = None if choice is None else torch.full((2, len(pairs)), choice, dtype=torch.float64)
    lines, (low, high) = shape.lines(alpha, lower, upper, chosen), shape.range(alpha, lower, upper)
    for at, pair in enumerate(pairs):
        check(kind, alpha, *pair, lines, low[at].item(), high[at].item(), at)


@pytest.mark.parametrize(("kind", "alpha"), KINDS)
def test_table_of_intervals(kind: str, alpha: float) -> None:
    check_all(kind, alpha, list(itertools.combinations_with_replacement(VALUES, 2)))


def sided(magnitude: st.SearchStrategy[float]) -> st.SearchStrategy[float]:
    """Both signs."""
    return st.builds(math.copysign, magnitude, st.sampled_from([-1.0, 1.0]))


floats = st.one_of(
    sided(st.floats(0, 50)),
    sided(st.builds(math.ldexp, st.floats(0.5, 1), st.integers(-1073, 100))),
    sided(st.builds(lambda n: n * 5e-324, st.integers(0, 40))),
)
widths = st.one_of(st.just(0.0), st.builds(math.ldexp, st.floats(0.5, 1), st.integers(-1073, 100)), st.floats(0, 20))


@settings(max_examples=70, deadline=None)
@given(
    st.lists(st.tuples(floats, widths), min_size=1, max_size=4),
    st.sampled_from(KINDS),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_any_interval(starts: list[tuple[float, float]], kind: tuple[str, float], choice: float | None) -> None:
    """Whatever slopes are chosen."""
    pairs = [(start, max(start, start + width)) for start, width in starts]
    pairs += [(start, math.nextafter(start, math.inf)) for start, _ in starts]
    check_all(*kind, pairs, choice)


@pytest.mark.parametrize(("kind", "alpha"), SMOOTH)
def test_dense_sampling(kind: str, alpha: float) -> None:
    """Thousands of intervals, hundreds of points each, in float64 with 2e-16 for the reference itself."""
    rng = np.random.default_rng(0)
    ends = torch.as_tensor(np.sort(rng.normal(size=(4000, 2)) * 10.0 ** rng.uniform(-6, 2, size=(4000, 1)), 1))
    lower, upper = ends.unbind(1)
    lines = ACTIVATIONS[kind].lines(alpha, lower, upper)
    z = lower[:, None] + torch.linspace(0, 1, 300, dtype=torch.float64) * (upper - lower)[:, None]
    f = torch.tanh(z) if kind == "tanh" else torch.sigmoid(z)
    slack = 1e-15 * (1 + z.abs())
    assert (lines.lower_slope[:, None] * z + lines.lower_intercept[:, None] <= f + slack).all()
    assert (lines.upper_slope[:, None] * z + lines.upper_intercept[:, None] >= f - slack).all()


@pytest.mark.parametrize(("kind", "alpha"), KINDS)
def test_lines_touch(kind: str, alpha: float) -> None:
    """Usefulness: on moderate intervals each line comes within 1e-9 of the function somewhere."""
    rng = np.random.default_rng(1)
    lower, upper = torch.as_tensor(np.sort(rng.normal(size=(500, 2)) * 4, 1)).unbind(1)
    lines = ACTIVATIONS[kind].lines(alpha, lower, upper)
    z = lower[:, None] + torch.linspace(0, 1, 4001, dtype=torch.float64) * (upper - lower)[:, None]
    z = torch.cat([z, torch.zeros_like(lower)[:, None].clamp(lower[:, None], upper[:, None])], 1)
    f = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}.get(kind, lambda z: torch.where(z < 0, alpha * z, z))(z)
    size = max(1.0, alpha) * 1e-5
    assert ((f - lines.lower_slope[:, None] * z - lines.lower_intercept[:, None]).amin(1) < size).all()
    assert ((lines.upper_slope[:, None] * z + lines.upper_intercept[:, None] - f).amin(1) < size).all()


@pytest.mark.parametrize(("kind", "alpha"), SMOOTH)
def test_lines_are_the_best_in_the_middle(kind: str, alpha: float) -> None:
    """No line of another slope is closer to the function at the middle of the interval."""
    rng = np.random.default_rng(2)
    lower, upper = torch.as_tensor(np.sort(rng.normal(size=(300, 2)) * 4, 1)).unbind(1)
    lines, middle = ACTIVATIONS[kind].lines(alpha, lower, upper), (lower + upper) / 2
    z = lower[:, None] + torch.linspace(0, 1, 801, dtype=torch.float64) * (upper - lower)[:, None]
    f = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}[kind](z)
    above, below = torch.full_like(lower, torch.inf), torch.full_like(lower, -torch.inf)
    for slope in torch.linspace(0, 1, 401, dtype=torch.float64):
        rest = f - slope * z
        above = torch.minimum(above, slope * middle + rest.amax(1))
        below = torch.maximum(below, slope * middle + rest.amin(1))
    assert (lines.upper_slope * middle + lines.upper_intercept <= above + 1e-4).all()
    assert (lines.lower_slope * middle + lines.lower_intercept >= below - 1e-4).all()


@pytest.mark.parametrize(("kind", "alpha"), KINDS)
def test_points_have_no_width(kind: str, alpha: float) -> None:
    """On a degenerate interval both lines give the value, to about 1e-13."""
    z = torch.tensor([-30.0, -2.0, -1e-9, 0.0, 1e-9, 0.5, 40.0], dtype=torch.float64)
    lines = ACTIVATIONS[kind].lines(alpha, z, z)
    gap = (lines.upper_slope - lines.lower_slope) * z + lines.upper_intercept - lines.lower_intercept
    assert (gap.abs() <= 1e-13 * max(1.0, alpha) * (1 + z.abs())).all()


def test_alpha_is_not_rounded_to_float32() -> None:
    """torch.where with a bare number makes float32: the line 0.1f z is above 0.1 z on z < 0."""
    z = torch.tensor([-1.0], dtype=torch.float64)
    lines = ACTIVATIONS["leaky_relu"].lines(0.1, z, z)
    assert lines.lower_slope.item() == lines.upper_slope.item() == 0.1


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "tanh", "sigmoid"])
def test_what_is_not_known_is_never_claimed(kind: str) -> None:
    """Infinite and undefined ends give no finite claim that is false."""
    inf, nan = math.inf, math.nan
    lower = torch.tensor([-inf, -inf, 0.0, nan, nan], dtype=torch.float64)
    upper = torch.tensor([inf, 0.0, inf, 1.0, nan], dtype=torch.float64)
    low, high = ACTIVATIONS[kind].range(0.0, lower, upper)
    floor, roof = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}.get(kind, (0.0, inf))
    assert all(bound <= floor or math.isnan(bound) for bound in (low[0].item(), low[3].item(), low[4].item()))
    assert high[0].item() >= roof
    assert high[2].item() >= roof
    lines = ACTIVATIONS[kind].lines(0.0, lower, upper)
    z = torch.tensor([[-1e3, -5.0, 0.0, 5.0, 1e3]], dtype=torch.float64)
    z = z.clamp(lower.nan_to_num(-1.0)[:, None], upper.nan_to_num(1.0)[:, None])
    f = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}.get(kind, torch.relu)(z)
    under = lines.lower_slope[:, None] * z + lines.lower_intercept[:, None]
    over = lines.upper_slope[:, None] * z + lines.upper_intercept[:, None]
    assert ((under <= f) | under.isnan()).all()
    assert ((over >= f) | over.isnan()).all()
