"""Planes around products and lines around maxima, at corners and inside, in exact arithmetic."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import max_lines, planes

ENDS = [-1e300, -3.0, -1.0, -0.1, -1e-200, -5e-324, 0.0, 5e-324, 1e-17, 0.3, 1.0, 7.0, 1e160]
BOXES = list(itertools.combinations_with_replacement(ENDS, 2))


def interval(pairs: list[tuple[float, float]]) -> Interval:
    lower, upper = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    return Interval(lower, upper)


def inside(pair: tuple[float, float]) -> list[Fraction]:
    low, high = map(Fraction, pair)
    return [low, high, low + (high - low) / 3]


def test_planes_at_corners_and_inside() -> None:
    """The planes are exact functions of end points: no tolerance, no rounding to forgive."""
    pairs = list(itertools.product(BOXES[::2], BOXES[1::3]))
    x, y = (interval([pair[side] for pair in pairs]) for side in (0, 1))
    below, above = planes(x, y)
    for at, (first, second) in enumerate(pairs):
        for a, b in itertools.product(inside(first), inside(second)):
            for plane, sign in ((below, 1), (above, -1)):
                p, q = Fraction(plane.p[at].item()), Fraction(plane.q[at].item())
                assert sign * (q * a + p * b - p * q) <= sign * a * b, (first, second, sign)


def test_planes_touch_three_corners() -> None:
    x, y = interval([(-1.0, 2.0)]), interval([(-3.0, 0.5)])
    for plane in planes(x, y):
        gaps = [
            a * b - (plane.q.item() * a + plane.p.item() * b - plane.p.item() * plane.q.item())
            for a, b in itertools.product((-1.0, 2.0), (-3.0, 0.5))
        ]
        assert sum(gap == 0 for gap in gaps) == 3


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lines_around_maxima(size: int) -> None:
    rng = np.random.default_rng(size)
    rows = [[BOXES[i] for i in rng.integers(0, len(BOXES), size)] for _ in range(300)]
    rows += [[tuple(sorted(pair)) for pair in rng.normal(size=(size, 2)).tolist()] for _ in range(100)]
    rows += [[(v, v) for v in rng.normal(size=size).tolist()] for _ in range(20)]
    rows += [[(-1.0, 1.0)] * size, [(0.0, 0.0)] * size]
    ends = torch.tensor(rows, dtype=torch.float64)
    lines = max_lines(Interval(ends[..., 0], ends[..., 1]))
    for at, row in enumerate(rows):
        under, over = lines.under[at, 0].item(), lines.over[at, 0].item()
        slope, offset = Fraction(lines.slope[at, 0].item()), Fraction(lines.offset[at, 0].item())
        assert 0 <= slope <= 1
        # the maximum is convex and both sides are linear: the corners decide above; below any entry will do
        for point in itertools.product(*(map(Fraction, pair) for pair in row)):
            assert point[under] <= max(point)
            assert max(point) <= slope * point[over] + offset, row


def test_a_dominant_entry_is_the_maximum() -> None:
    lines = max_lines(interval([(-1.0, 0.5), (1.0, 2.0), (-3.0, 1.0)]))
    assert (lines.under.item(), lines.over.item(), lines.slope.item(), lines.offset.item()) == (1, 1, 1.0, 0.0)


def test_the_line_above_is_the_chord() -> None:
    """max(x, c) on [-1, 3] with c = 1: from (-1, 1) to (3, 3)."""
    lines = max_lines(interval([(-1.0, 3.0), (-5.0, 1.0)]))
    assert lines.slope.item() == 0.5
    assert lines.offset.item() == pytest.approx(1.5, abs=1e-14)


def test_unknown_entries_claim_nothing() -> None:
    nan, inf = math.nan, math.inf
    lower, upper = (torch.tensor(side).double() for side in ([[nan, 0.0], [0.0, -inf]], [[nan, 1.0], [1.0, inf]]))
    lines = max_lines(Interval(lower, upper))
    assert not torch.isfinite(lines.offset).any()
