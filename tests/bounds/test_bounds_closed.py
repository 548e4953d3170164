"""Closed ranges: never beyond what networks reach, in exact arithmetic; equal to it where float64 makes no error."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from bounds.test_bounds_exact import mild, number, problems, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.bounds import exact as closed
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from bnn_vnnlib.network.evaluate import evaluate
from support import exact
from support.networks import Builder, dense_network, point_weights
from support.zoo import GRAPHS

LARGEST = float(np.finfo(np.float64).max)


def ranges(network: Network, lower: Any, upper: Any, random: Any = ()) -> Interval:
    """(m,) each, over one box."""
    box = Interval(*(tensor(side)[None, None] for side in (lower, upper)))
    found = closed.outputs(network, point_weights(network), box, random)
    return Interval(found.lower[0, 0], found.upper[0, 0])


def held(found: Interval, values: Any) -> None:
    for low, high, value in zip(found.lower.tolist(), found.upper.tolist(), values, strict=True):
        assert low == -np.inf or Fraction(low) <= value
        assert high == np.inf or Fraction(high) >= value


@settings(max_examples=150, deadline=None)
@given(st.one_of(problems(number), problems(mild)), st.integers(0, 2**32 - 1))
def test_in_exact_arithmetic(question: tuple[Any, ...], seed: int) -> None:
    """Corners of a box of ill-conditioned numbers; what has a spread may be any numbers at all."""
    network, weights, (lower, upper), rows, _ = question
    rng, random = np.random.default_rng(seed), list(weights.spreads)
    found = ranges(network, lower, upper, random)
    least = closed.least(tensor(rows)[None], Interval(found.lower[None, None], found.upper[None, None]))[0, 0]
    for _ in range(6):
        x = exact.fractions(np.where(rng.random(len(lower)) < 0.5, lower, upper))
        sources = {name: exact.fractions(value) for name, value in network.tensors.items()}
        for name in random:
            sources[name] = exact.fractions(1e3 * rng.normal(size=network.tensors[name].shape))
        y = exact.evaluate(network, x, sources)
        held(found, y)
        for row, low in zip(exact.fractions(rows), least.tolist(), strict=True):
            assert low == -np.inf or Fraction(low) <= row @ y


def test_a_row_that_overflows_is_unknown() -> None:
    """The product is finite in truth, but no float64 number."""
    rows = tensor([[1e16, 0.0], [-1e16, 0.0], [1e16, 1e16], [0.0, 1.0]])[None]
    z = Interval(*(tensor([[[1e300, -1e300]]]),) * 2)
    assert closed.least(rows, z)[0, 0].tolist() == [-np.inf, -np.inf, -np.inf, -1e300]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_of_every_kind_of_node(name: str, share: float) -> None:
    network = GRAPHS[name]()
    rng = np.random.default_rng(1)
    n = network.signature.input_size
    lower = rng.normal(size=n)
    upper = lower + rng.random(n)
    random = [source for source in network.tensors if rng.random() < share]
    found = ranges(network, lower, upper, random)
    x = tensor(lower + rng.random((40, n)) * (upper - lower))
    for _ in range(4):
        drawn = {source: tensor(3 * rng.normal(size=(1, *network.tensors[source].shape))) for source in random}
        y = evaluate(network, x, drawn).reshape(40, -1)
        defined = torch.isfinite(y)
        room = 1e-9 * (1 + y.abs())
        assert ((found.lower - room <= y) & (y <= found.upper + room) | ~defined).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_whole_numbers_make_no_error(seed: int) -> None:
    """At a point the range is the value; over a box it holds what corners reach."""
    rng = np.random.default_rng(seed)
    template = dense_network([3, 5, 4, 2])
    tensors = {name: rng.integers(-64, 64, value.shape) / 8 for name, value in template.tensors.items()}
    network = Network(template.signature, template.nodes, template.outputs, tensors)
    x = rng.integers(-64, 64, 3) / 16
    y = exact.evaluate(network, exact.fractions(x), {name: exact.fractions(v) for name, v in tensors.items()})
    found = ranges(network, x, x)
    assert [Fraction(v) for v in found.lower.tolist()] == list(y) == [Fraction(v) for v in found.upper.tolist()]
    held(ranges(network, x - 0.5, x), y)


def of_one_sum(terms: list[float], z: list[float]) -> Interval:
    builder = Builder()
    builder.linear(builder.input(len(z)), np.array([terms]), axis=0)
    return ranges(builder.network(), z, z)


@pytest.mark.parametrize(
    ("terms", "z", "sharp"),
    [
        ([1.0, 2.0**-51], [1.0, 1.0], True),
        ([1.0, 2.0**-54], [1.0, 1.0], False),  # float64 rounds the sum to 1
        ([2.0**52, 1.0, -(2.0**52)], [1.0, 0.25, 1.0], False),  # a partial sum may lose the quarter
        ([2.0**-600, 1.0], [2.0**-600, 0.0], False),  # the product underflows
        ([3.0, 5.0], [2.0**-1074, 2.0**-1074], True),
        ([1 / 3, 1.0], [3.0, 0.0], False),
        ([0.0, 1 / 3], [1 / 3, 1.0], False),  # of the grain of all numbers, not of those that count
        ([2.0**200, 2.0**146], [1.0, 1.0], False),
        ([2.0**200, 2.0**150], [1.0, 1.0], True),
        ([1e308, 1e308], [10.0, 10.0], False),
    ],
)
def test_a_sum_is_sharp_only_if_it_is_exact(terms: list[float], z: list[float], sharp: bool) -> None:
    found = of_one_sum(terms, z)
    value = sum(Fraction(a) * Fraction(b) for a, b in zip(terms, z, strict=True))
    held(found, [value])
    assert (found.lower.item() == found.upper.item() == value) == sharp


def test_a_constant_that_had_to_be_rounded() -> None:
    """The value is off by less than half a unit of its last place, which the bounds still pay for."""
    for numerator, denominator in itertools.product(range(1, 8), range(2, 60)):
        true = Fraction(numerator, denominator)
        stored = float(true)
        error = abs(Fraction(stored) - true)
        slack = float(error) if Fraction(float(error)) >= error else np.nextafter(float(error), np.inf)
        builder = Builder()
        weight = builder.param(np.array([[stored, 0.0]]), slack=[[slack, 0.0]])
        builder.linear(builder.input(2), weight, axis=0)
        held(ranges(builder.network(), [1.0, 0.0], [1.0, 0.0]), [true])


@settings(max_examples=200, deadline=None)
@given(number, number)
def test_one_addition(x: float, y: float) -> None:
    total = closed.add_down(tensor([x]), tensor([y])).item()
    exact_sum = Fraction(x) + Fraction(y)
    assert Fraction(total) <= exact_sum
    assert total == x + y or total == np.nextafter(x + y, -np.inf)
    assert (Fraction(x + y) <= exact_sum) == (total == x + y)


@pytest.mark.parametrize("other", [-1.1893e307, -4.8769e306, -(2.0**1000 + 2.0**950), 2.0**970, 1e308, -LARGEST, 0.1])
def test_an_addition_near_the_largest_number(other: float) -> None:
    """The error of a sum is not known where its own computation overflows."""
    for signs in itertools.product((1, -1), (1, -1)):
        x, y = signs[0] * LARGEST, signs[1] * other
        for first, second in ((x, y), (y, x)):
            total = closed.add_down(tensor([first]), tensor([second])).item()
            assert total == -np.inf or Fraction(total) <= Fraction(first) + Fraction(second)


def test_unbounded_numbers_times_nothing() -> None:
    """0 relu(w x) - 2 relu(v x) + 1 is at most 1, and at least nothing."""
    builder = Builder()
    hidden = builder.activation(builder.linear(builder.input(1, 1), (3, 1)))
    builder.shift(builder.linear(hidden, np.array([[0.0, -2.0, 0.0], [0.0, 0.0, 0.0]])), np.array([[1.0, 7.0]]))
    found = ranges(builder.network(), [-1.0], [1.0], ["w0"])
    assert found.lower.tolist() == [-np.inf, 7.0]
    assert found.upper.tolist() == [1.0, 7.0]


def test_ends_that_do_not_count_cost_nothing() -> None:
    """relu(a) + 2 relu(b) is at least 0 exactly, however finely the upper ends are divided."""
    builder = Builder(3)
    hidden = builder.activation(builder.linear(builder.input(2), (2, 2), axis=0))
    builder.linear(hidden, np.array([[1.0, 2.0]]), axis=0)
    found = ranges(builder.network(), [-1 / 3, -1 / 7], [1 / 3, 1 / 7])
    assert found.lower.item() == 0.0
    assert 0.0 < found.upper.item() < np.inf
    rows = tensor([[[1.0, 2.0], [3.0, 0.0]]])
    assert (closed.least(rows, Interval(tensor([[[0.0, 0.0]]]), tensor([[[1 / 3, 1 / 7]]]))) == 0.0).all()


@pytest.mark.parametrize("k", [1, 3])
def test_several_settings_of_the_weights_at_once(k: int) -> None:
    network = dense_network([2, 3, 2])
    rng = np.random.default_rng(0)
    drawn = {name: tensor(rng.integers(-8, 8, (k, *value.shape))) for name, value in network.tensors.items()}
    weights = WeightBoxes(drawn, {}, torch.zeros(k, 1, dtype=torch.float64))
    x = tensor(rng.integers(-8, 8, (k, 4, 2)))
    found = closed.outputs(network, weights, Interval(x, x))
    expected = torch.cat([evaluate(network, x[i], {name: v[i : i + 1] for name, v in drawn.items()}) for i in range(k)])
    assert torch.equal(found.lower, expected)
    assert torch.equal(found.upper, expected)


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [("log", [1.0, 2.0], [0.0, 2.0]), ("sqrt", [0.0, 2.0], [-1.0, 2.0]), ("reciprocal", [1.0, 2.0], [-1.0, 2.0])],
)
def test_nothing_is_claimed_where_a_function_may_be_undefined(
    kind: str, inside: list[float], outside: list[float]
) -> None:
    """Relu(log(x)) is no number for x < 0, so that it is not at least 0 either; nor is it for random weights."""
    builder = Builder()
    x = builder.linear(builder.input(1), np.array([[1.0]]), axis=0)
    builder.activation(builder.activation(x, kind), "relu")
    network = builder.network()
    assert ranges(network, inside[:1], inside[1:]).lower.tolist()[0] >= 0
    for found in (ranges(network, outside[:1], outside[1:]), ranges(network, inside[:1], inside[1:], ["w0"])):
        assert (found.lower.tolist(), found.upper.tolist()) == ([-np.inf], [np.inf])


def test_functions_that_are_undefined_for_some_numbers() -> None:
    """Whoever adds one decides here whether violations have to ask for it (`exact.defined`)."""
    assert set(closed.PARTIAL) == {"log", "sqrt", "reciprocal"}
