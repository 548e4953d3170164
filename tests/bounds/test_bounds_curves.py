"""Curves: ranges and lines on chosen and random intervals, judged by 300 bits; nothing unknown is claimed."""

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

from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.curves import CURVES, Curve, Piece
from bnn_vnnlib.network.evaluate import FUNCTIONS
from support import exact

KINDS: list[tuple[str, Any]] = [
    *((kind, 0.0) for kind in CURVES if kind not in ("clip", "prelu", "elu", "gelu", "power")),
    ("clip", (-0.25, 0.5)), ("clip", (-1.0, math.inf)), ("clip", (-math.inf, 0.0)), ("clip", (1.0, -1.0)),
    ("clip", (0.0, 0.0)), ("prelu", 0.25), ("prelu", -0.5), ("prelu", 3.0), ("prelu", 1e-300),
    ("elu", 1.0), ("elu", 0.5), ("elu", 1.7), ("elu", -0.5), ("elu", 0.0), ("gelu", exact.GELU), ("gelu", 1.0),
    ("gelu", 0.1), ("power", 2), ("power", 3), ("power", 4), ("power", 7),
]  # fmt: skip
IDS = [f"{kind}_{alpha}" for kind, alpha in KINDS]
ALGEBRAIC = ("abs", "clip", "prelu", "hard_swish", "power", "sqrt", "reciprocal", "softsign", "sign")
SIZES = [
    5e-324,
    1e-310,
    1e-170,
    1e-17,
    1e-9,
    1e-3,
    0.3,
    1.0,
    1.4142135623730951,
    2.399,
    3.0,
    3.2,
    6.0,
    7.9,
    40.0,
    745.2,
]
LARGE = [1e4, 1e13, 1e100, 1e160, 1.7e308]
INFLECTIONS = [1.4142135623730951, 1.4185040087908284, 2.3993572805154677, math.pi, math.pi / 2, 3 * math.pi, 10.0]


def numbers(kind: str) -> list[float]:
    sizes = SIZES + (LARGE if kind in ALGEBRAIC else [100.0, 1e4])
    return sorted([0.0, *sizes, *(-size for size in sizes)])


def defined(kind: str, lower: float, upper: float) -> bool:
    match kind:
        case "log":
            return lower > 0
        case "sqrt":
            return lower >= 0
        case "reciprocal":
            return lower > 0 or upper < 0
    return True


@functools.lru_cache(maxsize=200_000)
def value(kind: str, alpha: Any, z: float) -> Any:
    """f(z), exact or with 300 bits."""
    with mpmath.workprec(exact.BITS):
        return exact.scalar(kind, exact_clip(alpha) if kind == "clip" else alpha, Fraction(z))


def exact_clip(alpha: tuple[float, float]) -> tuple[float, float]:
    return min(alpha), alpha[1]


def points(kind: str, lower: float, upper: float) -> list[float]:
    inner = [lower * (1 - share) + upper * share for share in (0.003, 0.2, 0.5, 0.77, 0.997)]
    special = [0.0, 0.7, -0.7, 3.0, -3.0, *INFLECTIONS, *(-z for z in INFLECTIONS), -1.278, -0.7518, -1.1924]
    near = [math.nextafter(lower, math.inf), math.nextafter(upper, -math.inf), upper / 3, lower / 3, lower + 1e-3]
    return [z for z in {lower, upper, *inner, *special, *near} if lower <= z <= upper]


def at_most(left: Fraction, right: Any) -> bool:
    return exact.at_most(left, right)


def check_all(kind: str, alpha: Any, pairs: list[tuple[float, float]], choice: float | None = None) -> None:
    pairs = [(lower, upper) for lower, upper in pairs if defined(kind, lower, upper)]
    if not pairs:
        return
    shape = ACTIVATIONS[kind]
    lower, upper = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    chosen = None if choice is None else torch.full((2, len(pairs)), choice, dtype=torch.float64)
    lines = shape.lines(alpha, lower, upper, chosen)
    low, high = shape.range(alpha, lower, upper)
    sides = (
        (1, lines.lower_slope.tolist(), lines.lower_intercept.tolist(), low.tolist()),
        (-1, lines.upper_slope.tolist(), lines.upper_intercept.tolist(), high.tolist()),
    )
    for at, pair in enumerate(pairs):
        for z in points(kind, *pair):
            f = value(kind, alpha, z)
            for sign, slopes, intercepts, ends in sides:
                case = (kind, alpha, pair, choice, z, sign, slopes[at], intercepts[at], ends[at])
                if math.isfinite(ends[at]):
                    assert at_most(Fraction(sign * ends[at]), sign * f), case
                else:
                    assert ends[at] != sign * math.inf, case
                if math.isfinite(intercepts[at]):
                    line = Fraction(slopes[at]) * Fraction(z) + Fraction(intercepts[at])
                    assert at_most(sign * line, sign * f), case
                else:
                    assert intercepts[at] != sign * math.inf, case


@pytest.mark.parametrize(("kind", "alpha"), KINDS, ids=IDS)
@pytest.mark.parametrize("choice", [None, 0.9])
def test_table_of_intervals(kind: str, alpha: Any, choice: float | None) -> None:
    table = numbers(kind)
    pairs = list(itertools.combinations_with_replacement(table, 2))
    check_all(kind, alpha, pairs[::3] if choice is None else pairs[::11], choice)


def sided(magnitude: st.SearchStrategy[float]) -> st.SearchStrategy[float]:
    return st.builds(math.copysign, magnitude, st.sampled_from([-1.0, 1.0]))


starts = st.one_of(
    sided(st.floats(0, 8)),
    sided(st.floats(0, 60)),
    sided(st.builds(math.ldexp, st.floats(0.5, 1), st.integers(-1073, 9))),
    sided(st.builds(lambda z, n: z + n * math.ulp(z), st.sampled_from(INFLECTIONS), st.integers(-3, 3))),
)
widths = st.one_of(
    st.just(0.0), st.floats(0, 8), st.builds(math.ldexp, st.floats(0.5, 1), st.integers(-1073, 4)), st.floats(0, 60)
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(starts, widths), min_size=1, max_size=5),
    st.sampled_from(KINDS),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_any_interval(drawn: list[tuple[float, float]], kind: tuple[str, Any], choice: float | None) -> None:
    check_all(*kind, [(start, max(start, start + width)) for start, width in drawn], choice)


SLOPED = [*KINDS, ("relu", 0.0), ("leaky_relu", 0.2), ("leaky_relu", 2.0), ("tanh", 0.0), ("sigmoid", 0.0)]


@pytest.mark.parametrize(("kind", "alpha"), SLOPED, ids=[f"{kind}_{alpha}" for kind, alpha in SLOPED])
def test_chords_lie_between_the_slopes(kind: str, alpha: Any) -> None:
    """All chords of thousands of intervals, and the slopes are no wider than the chords of neighbours suggest."""
    rng = np.random.default_rng(0)
    ends = torch.as_tensor(np.sort(rng.normal(size=(2000, 2)) * 10.0 ** rng.uniform(-1, 1, size=(2000, 1)), 1))
    lower, upper = ends[torch.tensor([defined(kind, *pair) for pair in ends.tolist()])].unbind(1)
    least, most = ACTIVATIONS[kind].slopes(alpha, lower, upper)
    share = torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
    z = torch.minimum(lower + share * (upper - lower), upper)
    f = FUNCTIONS[kind](alpha, z)
    for step in (1, 7, 200):
        chord = (f[step:] - f[:-step]) / (z[step:] - z[:-step])
        room = 4e-16 * (f.abs().amax(0) + z.abs().amax(0) * chord.abs().amax(0)) / (upper - lower) * 201 + 1e-12
        assert (chord >= least - room).all()
        assert (chord <= most + room).all()
    chord = (f[1:] - f[:-1]) / (z[1:] - z[:-1])
    near = (upper - lower < 0.3) & (lower.abs() > 0.5) & (kind != "sign") & (alpha != (1.0, -1.0))
    wide = most - least
    seen = chord.amax(0) - chord.amin(0)
    assert (wide[near] <= 1.1 * seen[near] + 1e-6).all()


@pytest.mark.parametrize(("kind", "alpha"), SLOPED, ids=[f"{kind}_{alpha}" for kind, alpha in SLOPED])
def test_slopes_where_numbers_are_large_or_undefined(kind: str, alpha: Any) -> None:
    """Infinite ends, ends that coincide, inflection points and their neighbours; where f is not defined, nothing."""
    table = [*SIZES, *INFLECTIONS, 1e4, 1.7e308, math.inf]
    table = sorted([0.0, *table, *(-z for z in table)])
    pairs = torch.tensor(list(itertools.combinations_with_replacement(table, 2)), dtype=torch.float64)
    least, most = ACTIVATIONS[kind].slopes(alpha, *pairs.unbind(1))
    assert (least <= most).all()  # hence no NaN
    known = torch.tensor([defined(kind, *pair) for pair in pairs.tolist()])
    assert torch.isinf(torch.stack([least, most])[:, ~known]).all()
    for (low, high), small, large in zip(pairs.tolist(), least.tolist(), most.tolist(), strict=True):
        inside = [z for z in points(kind, low, high) if abs(z) <= 60] if defined(kind, low, high) else []
        for x, y in itertools.pairwise(sorted(inside)):
            if y - x > 1e-3:
                change = (value(kind, alpha, y) - value(kind, alpha, x)) / (Fraction(y) - Fraction(x))
                assert math.isinf(small) or at_most(Fraction(small), change), (kind, alpha, low, high, x, y)
                assert math.isinf(large) or at_most(change, Fraction(large)), (kind, alpha, low, high, x, y)
    undefined = torch.tensor([math.nan, 1.0], dtype=torch.float64)
    bad = ACTIVATIONS[kind].slopes(alpha, undefined, undefined.flip(0))
    if isinstance(shape := ACTIVATIONS[kind], Curve):
        assert (torch.stack(bad).abs() == shape.steepest).all()


@pytest.mark.parametrize(("kind", "alpha"), KINDS, ids=IDS)
def test_dense_sampling(kind: str, alpha: Any) -> None:
    """Thousands of intervals, 400 points each, with a few units for the sampled function itself."""
    rng = np.random.default_rng(0)
    ends = torch.as_tensor(np.sort(rng.normal(size=(3000, 2)) * 10.0 ** rng.uniform(-5, 1.5, size=(3000, 1)), 1))
    lower, upper = ends.unbind(1)
    keep = torch.tensor([defined(kind, *pair) for pair in ends.tolist()])
    lower, upper = lower[keep], upper[keep]
    shape = ACTIVATIONS[kind]
    z = lower[:, None] + torch.linspace(0, 1, 400, dtype=torch.float64) * (upper - lower)[:, None]
    z = torch.minimum(z, upper[:, None])
    f = FUNCTIONS[kind](alpha, z)
    (low, high), lines = shape.range(alpha, lower, upper), shape.lines(alpha, lower, upper)
    slack = 1e-14 * (1 + f.abs())
    assert (low[:, None] <= f + slack).all()
    assert (high[:, None] >= f - slack).all()
    steep = [slope[:, None].abs() * z.abs() * 1e-15 for slope in (lines.lower_slope, lines.upper_slope)]
    assert (lines.lower_slope[:, None] * z + lines.lower_intercept[:, None] <= f + slack + steep[0]).all()
    assert (lines.upper_slope[:, None] * z + lines.upper_intercept[:, None] >= f - slack - steep[1]).all()


@pytest.mark.parametrize(("kind", "alpha"), [k for k in KINDS if k[0] != "sign"])
def test_lines_and_ranges_touch(kind: str, alpha: Any) -> None:
    """Usefulness: on moderate intervals each comes within a thousandth of the function's variation."""
    rng = np.random.default_rng(1)
    lower, upper = torch.as_tensor(np.sort(rng.uniform(-4, 4, size=(500, 2)), 1)).unbind(1)
    if kind in ("log", "sqrt", "reciprocal"):
        lower, upper = lower / 2 + 2.1, upper / 2 + 2.1
    shape = ACTIVATIONS[kind]
    z = lower[:, None] + torch.linspace(0, 1, 2001, dtype=torch.float64) * (upper - lower)[:, None]
    z = torch.cat([z, torch.zeros(len(z), 1, dtype=torch.float64).clamp(lower[:, None], upper[:, None])], 1)
    f = FUNCTIONS[kind](alpha, z)
    (low, high), lines = shape.range(alpha, lower, upper), shape.lines(alpha, lower, upper)
    variation = 2e-3 * (f.amax(1) - f.amin(1)) + 1e-5
    assert (f.amin(1) - low <= variation).all()
    assert (high - f.amax(1) <= variation).all()
    assert ((f - lines.lower_slope[:, None] * z - lines.lower_intercept[:, None]).amin(1) <= variation).all()
    assert ((lines.upper_slope[:, None] * z + lines.upper_intercept[:, None] - f).amin(1) <= variation).all()


@pytest.mark.parametrize(("kind", "alpha"), KINDS, ids=IDS)
def test_points_have_no_width(kind: str, alpha: Any) -> None:
    z = torch.tensor([-30.0, -2.0, -1e-9, 1e-9, 0.5, 20.0], dtype=torch.float64)
    z = z[torch.tensor([defined(kind, v, v) for v in z.tolist()])]
    lines, (low, high) = ACTIVATIONS[kind].lines(alpha, z, z), ACTIVATIONS[kind].range(alpha, z, z)
    gap = (lines.upper_slope - lines.lower_slope) * z + lines.upper_intercept - lines.lower_intercept
    size = 1 + FUNCTIONS[kind](alpha, z).abs()
    assert (gap <= 2e-13 * size).all()
    assert (high - low <= 2e-13 * size).all()


@pytest.mark.parametrize(("kind", "alpha"), KINDS, ids=IDS)
def test_what_is_not_known_is_never_claimed(kind: str, alpha: Any) -> None:
    """Infinite, undefined and crossed ends, and intervals that leave the domain."""
    inf, nan = math.inf, math.nan
    lower = torch.tensor([-inf, -inf, 0.0, nan, nan, 0.0, 1e9], dtype=torch.float64)
    upper = torch.tensor([inf, 1.0, inf, 1.0, nan, nan, inf], dtype=torch.float64)
    shape = ACTIVATIONS[kind]
    z = torch.tensor([[-50.0, -5.0, -0.75, 0.0, 0.5, 5.0, 50.0]], dtype=torch.float64)
    inside = (z >= lower.nan_to_num(-inf)[:, None]) & (z <= upper.nan_to_num(inf)[:, None])
    f = FUNCTIONS[kind](alpha, z).expand(len(lower), -1)
    inside = inside & f.isfinite()
    lines, (low, high) = shape.lines(alpha, lower, upper), shape.range(alpha, lower, upper)
    under, over = (
        slope[:, None] * z + offset[:, None]
        for slope, offset in ((lines.lower_slope, lines.lower_intercept), (lines.upper_slope, lines.upper_intercept))
    )
    slack = 1e-12 * (1 + f.abs())
    for claim in (low[:, None].expand_as(f), under):
        assert ((claim <= f + slack) | claim.isnan() | ~inside).all()
    for claim in (high[:, None].expand_as(f), over):
        assert ((claim >= f - slack) | claim.isnan() | ~inside).all()


@pytest.mark.parametrize("kind", ["log", "sqrt", "reciprocal"])
def test_outside_the_domain_nothing_is_known(kind: str) -> None:
    lower = torch.tensor([-1.0, -1.0, -5e-324], dtype=torch.float64)
    upper = torch.tensor([1.0, 0.0, 5e-324], dtype=torch.float64)
    low, high = ACTIVATIONS[kind].range(0.0, lower, upper)
    assert (low == -math.inf).all()
    assert (high == math.inf).all()
    lines = ACTIVATIONS[kind].lines(0.0, lower, upper)
    assert (lines.lower_intercept == -math.inf).all()
    assert (lines.upper_intercept == math.inf).all()


def test_slopes_by_element() -> None:
    """A PRelu with a slope for each channel."""
    alpha = np.array([0.25, -1.0, 2.0])
    lower, upper = torch.full((1, 1, 2, 3), -1.0).double(), torch.full((1, 1, 2, 3), 1.0).double()
    low, high = ACTIVATIONS["prelu"].range(alpha, lower, upper)
    torch.testing.assert_close(low[0, 0], torch.tensor([[-0.25, 0.0, -2.0]] * 2, dtype=torch.float64))
    torch.testing.assert_close(high[0, 0], torch.tensor([[1.0, 1.0, 1.0]] * 2, dtype=torch.float64))


def test_choices_are_differentiable() -> None:
    lower, upper = torch.tensor([-1.0, 0.5]).double(), torch.tensor([2.0, 3.0]).double()
    for kind, alpha in KINDS:
        if kind == "sign":
            continue
        choice = torch.full((2, 2), 0.3, dtype=torch.float64, requires_grad=True)
        start = lower if defined(kind, -1.0, 2.0) else lower + 2
        lines = ACTIVATIONS[kind].lines(alpha, start, upper + 2, choice)
        (lines.lower_intercept.sum() + lines.upper_intercept.sum()).backward()
        assert choice.grad is not None
        assert choice.grad.isfinite().all()


def test_a_wrong_derivative_is_not_covered() -> None:
    """The scheme is only as good as what a piece declares: this is what the tables above would catch."""
    lower, upper = torch.tensor([-2.0]).double(), torch.tensor([2.0]).double()
    good = Piece(lambda z: z**2, lambda z: 2 * z, 1)
    bad = Piece(lambda z: z**2, lambda z: 2 * z + 1, 1)
    least = [piece.least(torch.ones(1).double(), lower, upper) for piece in (good, bad)]
    assert least[0] is not None
    assert least[1] is not None
    assert -0.25 - 1e-9 < least[0].item() <= -0.25 < least[1].item()
