"""Functionals of softmax and sigmoid over boxes of logits, against all vertices in 300 bits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.bounds.functional import sigmoid_lower, softmax_lower
from support import exact


def tensor(values: Any) -> torch.Tensor:
    """float64."""
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def softmax_minimum(c: list[float], lower: list[float], upper: list[float]) -> Any:
    """Minimum of c . softmax over the vertices; the functional is monotone in every logit, so they suffice."""
    best = None
    with mpmath.workprec(exact.BITS):
        for vertex in itertools.product(*zip(lower, upper, strict=True)):
            top = max(vertex)
            e = [mpmath.exp(mpmath.mpf(d) - top) if abs(d - top) < 1e5 else mpmath.mpf(0) for d in vertex]
            value = mpmath.fdot(zip(map(mpmath.mpf, c), e, strict=True)) / mpmath.fsum(e)
            best = value if best is None or value < best else best
    return best


def check_softmax(c: list[float], lower: list[float], upper: list[float], tight: float) -> None:
    """Below the minimum, and not by more than `tight`."""
    low = softmax_lower(tensor(c), tensor(lower), tensor(upper)).item()
    truth = softmax_minimum(c, lower, upper)
    with mpmath.workprec(exact.BITS):
        error = mpmath.mpf(max(map(abs, c), default=0)) * mpmath.mpf(2) ** -280  # of the reference
        assert low <= truth + error, (c, lower, upper, low, truth)
    assert truth - low <= tight * max(map(abs, c), default=0) + 1e-25, (c, lower, upper, low, truth)


@settings(max_examples=70, deadline=None)
@given(st.data(), st.integers(1, 5), st.sampled_from([1e-3, 1.0, 30.0, 400.0]))
def test_softmax_against_all_vertices(data: st.DataObject, m: int, size: float) -> None:
    values = st.floats(-size, size)
    c = data.draw(st.lists(st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-10, 10)), min_size=m, max_size=m))
    ends = data.draw(st.lists(st.tuples(values, values), min_size=m, max_size=m))
    lower, upper = [min(pair) for pair in ends], [max(pair) for pair in ends]
    check_softmax(c, lower, upper, 1e-11)


SPECIAL = [
    ([1.0, 0.0], [0.0, -1e300], [0.0, 1e300]),
    ([1.0, -1.0], [-1e308, 5.0], [1e308, 6.0]),
    ([1.0, 0.0, 0.5], [-745.0, 0.0, -746.0], [-744.0, 0.0, 700.0]),
    ([1.0, 0.0], [700.0, 709.0], [720.0, 720.0]),
    ([1.0, 0.0], [-800.0, -750.0], [-790.0, -740.0]),
    ([1e300, -1e300], [0.0, 0.0], [1.0, 1.0]),
    ([1e-310, 0.0], [0.0, 0.0], [0.0, 0.0]),
    ([5e-324, 1e-323], [-1.0, 0.0], [2.0, 0.5]),
    ([0.0, 0.0, 1e-280], [0.0, 0.0, 0.0], [0.0, 0.0, 77.0]),  # products underflow, and the mass is small
    ([0.0, 0.0, 1e-200], [0.0, 0.0, 0.0], [0.0, 500.0, 500.0]),
    ([3.0], [-5.0], [1e5]),
    ([2.0, 2.0, 2.0], [-1.0, -2.0, 0.0], [1.0, 9.0, 4.0]),
    ([1.0, 1.0 + 2**-52], [0.0, 0.0], [1.0, 1.0]),
    ([0.0, 0.0], [-1.0, -1.0], [1.0, 1.0]),
    ([1.0, 0.0], [1e16, 1e16], [1e16 + 2, 1e16]),
    ([1.0, 0.0], [0.0, 0.0], [640.0, 650.0]),
    ([1.0, -1.0, 0.0], [-1e4, -1e4, 0.0], [1e4, 1e4, 1e4]),
]


@pytest.mark.parametrize(("c", "lower", "upper"), SPECIAL)
def test_softmax_of_extreme_logits(c: list[float], lower: list[float], upper: list[float]) -> None:
    check_softmax(c, lower, upper, 1e-11)


def test_softmax_of_unbounded_logits() -> None:
    """Where nothing is known of a logit, the smallest coefficient is the bound; never nan."""
    inf = math.inf
    for lower, upper in (([-inf, -inf], [inf, inf]), ([0.0, -inf], [0.0, inf]), ([math.nan, 0.0], [1.0, 1.0])):
        for c in ([1.0, 0.0], [0.0, 1.0], [2.0, 3.0]):
            low = softmax_lower(tensor(c), tensor(lower), tensor(upper)).item()
            assert low == min(c)
    # a logit that may be arbitrarily small only
    low = softmax_lower(tensor([1.0, 0.0]), tensor([0.0, -inf]), tensor([0.0, 0.0])).item()
    assert 0.5 - 1e-12 < low <= 0.5
    low = softmax_lower(tensor([0.0, 1.0]), tensor([0.0, -inf]), tensor([0.0, 0.0])).item()
    assert low <= 0


def test_softmax_has_the_shape_of_the_boxes() -> None:
    rng = np.random.default_rng(0)
    c, low = rng.normal(size=(1, 4, 5, 3)), rng.normal(size=(2, 4, 1, 3))
    high = low + rng.random(low.shape)
    together = softmax_lower(tensor(c), tensor(low), tensor(high))
    assert together.shape == (2, 4, 5)
    for k, item, row in itertools.product(range(2), range(4), range(5)):
        alone = softmax_lower(tensor(c[0, item, row]), tensor(low[k, item, 0]), tensor(high[k, item, 0]))
        assert alone.item() == pytest.approx(together[k, item, row].item(), abs=1e-14)


def test_softmax_never_above_samples() -> None:
    """Interior points as well, many classes."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        m = int(rng.integers(2, 12))
        c, low = rng.normal(size=m), rng.normal(size=m) * 5
        high = low + rng.exponential(size=m) * 3
        bound = softmax_lower(tensor(c), tensor(low), tensor(high)).item()
        d = low + (high - low) * rng.beta(0.2, 0.2, size=(2000, m))
        assert (torch.softmax(tensor(d), -1) @ tensor(c)).min().item() >= bound


logits = st.one_of(st.floats(-40, 40), st.floats(-760, 760), st.sampled_from([0.0, -709.9, -745.5, 1e300, -1e300]))


@settings(max_examples=70, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_sigmoid_against_all_vertices(data: st.DataObject, m: int) -> None:
    coefficients = st.one_of(
        st.floats(-10, 10), st.sampled_from([0.0, 1.0, -1.0, 1e-310, -1e-310, 5e-324, -5e-324, 1e300])
    )
    c = data.draw(st.lists(coefficients, min_size=m, max_size=m))
    ends = data.draw(st.lists(st.tuples(logits, logits), min_size=m, max_size=m))
    lower, upper = [min(pair) for pair in ends], [max(pair) for pair in ends]
    low = sigmoid_lower(tensor(c), tensor(lower), tensor(upper)).item()
    with mpmath.workprec(exact.BITS):
        truth = mpmath.fsum(
            mpmath.mpf(k) * sigmoid(a if k >= 0 else b) for k, a, b in zip(c, lower, upper, strict=True)
        )
    assert low <= truth
    assert truth - low <= 1e-13 * sum(map(abs, c)) + 1e-300


def sigmoid(d: float) -> Any:
    """In 300 bits."""
    if abs(d) > 1e5:
        return mpmath.mpf(d > 0)
    return 1 / (1 + mpmath.exp(-mpmath.mpf(d)))


def test_sigmoid_of_unbounded_logits() -> None:
    inf = math.inf
    low = sigmoid_lower(tensor([1.0, -2.0]), tensor([-inf, -inf]), tensor([inf, inf])).item()
    assert -2 - 1e-12 < low <= -2
    assert sigmoid_lower(tensor([1.0]), tensor([math.nan]), tensor([1.0])).item() == -inf
