"""Rounding: tiny networks of ill-conditioned numbers against exact fractions, without any tolerance."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import Ranges
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from bnn_vnnlib.network.nodes import Linear, Param
from support import exact
from support.networks import Builder, dense_network, point_weights

METHODS: tuple[Literal["interval", "linear"], ...] = ("interval", "linear")
SIZES = [
    1.0, 1.0 + 2**-52, 1 / 3, 0.1, 3.0, 1e16, 1e16 + 2, 2.0**53 + 2, 2.0**-53, 1e-17, 1e-30, 1e30, 1e-150, 1e150,
    1e-300, 1e300, 2.3e-308, 1e-310, 5e-324, 1.5e-323,
]  # fmt: skip
number = st.builds(lambda size, sign: size * sign, st.sampled_from([0.0, *SIZES]), st.sampled_from([1.0, -1.0]))
mild = st.builds(lambda size, sign: size * sign, st.sampled_from([0.0, *SIZES[:9]]), st.sampled_from([1.0, -1.0]))
radius = st.one_of(st.just(0.0), st.sampled_from(SIZES))


def tensor(values: Any) -> torch.Tensor:
    """float64."""
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def judge(network: Network, weights: WeightBoxes, x: tuple[Any, Any], C: Any, G: Any, rng: np.random.Generator) -> None:
    """Both methods, and the forms, against random corners of one box."""
    lower, upper = (tensor(side)[None] for side in x)
    C, G = tensor(C)[None], tensor(G)[None]
    found = [Engine(network, method).rows(weights, lower, upper, C, G, forms=True) for method in METHODS]
    box = Interval(lower[None], upper[None])
    ranges = [Engine(network, method).ranges(weights, box) for method in METHODS]
    everything = Network(network.signature, network.nodes, tuple(range(len(network.nodes))), network.tensors)
    scale = Fraction(weights.scale[0, 0].item())
    for _ in range(8):
        point = exact.fractions(np.where(rng.random(lower.shape[1]) < 0.5, lower[0], upper[0]))
        sources = {}
        for name, center in weights.centers.items():
            sources[name] = exact.fractions(center[0])
            if name in weights.spreads:
                signs = exact.fractions(rng.choice([-1.0, 1.0], size=center.shape[1:]))
                sources[name] = sources[name] + signs * scale * exact.fractions(weights.spreads[name])
        hidden = exact.evaluate(everything, point, sources)
        for enclosures in ranges:
            check_ranges(network, enclosures, sources, hidden)
        y = hidden[len(hidden) - C.shape[2] :]
        for row in range(C.shape[1]):
            value = exact.fractions(C[0, row]) @ y + exact.fractions(G[0, row]) @ point
            for bounds in found:
                low = bounds.lower[0, 0, row].item()
                assert low == -np.inf or Fraction(low) <= value, (low, float(value))
                offset = bounds.form.offset[0, 0, row].item()
                slope = bounds.form.slope[0, 0, row]
                if np.isfinite(offset) and torch.isfinite(slope).all():
                    assert exact.fractions(slope) @ point + Fraction(offset) <= value
        for output, size in zip(y, found[0].magnitude[0, 0].tolist(), strict=True):
            assert not np.isfinite(size) or abs(output) <= Fraction(size)


def check_ranges(network: Network, ranges: Ranges, sources: dict[str, Any], values: exact.Exact) -> None:
    """Every node is in its enclosure, and magnitudes are at least the sum of the absolute products."""
    ends = np.cumsum([int(np.prod(node.shape)) for node in network.nodes])
    parts = [part.reshape(node.shape) for part, node in zip(np.split(values, ends[:-1]), network.nodes, strict=True)]
    for position, (node, part) in enumerate(zip(network.nodes, parts, strict=True)):
        z = ranges.values[position]
        for value, low, high in zip(part.ravel(), z.lower.flatten().tolist(), z.upper.flatten().tolist(), strict=True):
            assert not low > value, (node.name, low, float(value))  # an undefined end claims nothing
            assert not high < value, (node.name, high, float(value))
        if isinstance(node, Linear):
            products = np.abs(sources[node.weight.source]) @ np.abs(parts[node.inputs[0]].ravel())
            for size, total in zip(ranges.magnitudes[position].flatten().tolist(), products, strict=True):
                assert not size < total, (node.name, size, float(total))


@st.composite
def problems(draw: st.DrawFn, entry: st.SearchStrategy[float]) -> tuple[Any, ...]:
    """A network of one or two hidden layers, boxes around it, rows over it."""
    sizes = [
        draw(st.integers(1, 2)),
        *draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)),
        draw(st.integers(1, 2)),
    ]
    alpha = draw(st.sampled_from([None, 0.0, 0.1, 2.0]))
    template = dense_network(sizes, *(("relu",) if alpha is None else ("leaky_relu", alpha)))

    def array(strategy: st.SearchStrategy[float], *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        return np.array(draw(st.lists(strategy, min_size=count, max_size=count))).reshape(shape)

    tensors = {name: array(entry, *t.shape) for name, t in template.tensors.items()}
    network = Network(template.signature, template.nodes, template.outputs, tensors)
    spreads = {name: tensor(array(radius, *t.shape)) for name, t in tensors.items() if draw(st.booleans())}
    scale = draw(st.sampled_from([0.0, 1.0, 0.3, 1e-17, 4.0, 1e-300]))
    centers = {name: tensor(t)[None] for name, t in tensors.items()}
    weights = WeightBoxes(centers, spreads, torch.full((1, 1), scale, dtype=torch.float64))
    lower = array(entry, sizes[0])
    upper = np.maximum(lower, lower + array(radius, sizes[0]))
    return network, weights, (lower, upper), array(entry, 2, sizes[-1]), array(entry, 2, sizes[0])


@settings(max_examples=50, deadline=None)
@given(problems(number), st.integers(0, 2**32 - 1))
def test_numbers_far_apart(problem: tuple[Any, ...], seed: int) -> None:
    judge(*problem, np.random.default_rng(seed))


@settings(max_examples=50, deadline=None)
@given(problems(mild), st.integers(0, 2**32 - 1))
def test_cancellation(problem: tuple[Any, ...], seed: int) -> None:
    judge(*problem, np.random.default_rng(seed))


@pytest.mark.parametrize("method", METHODS)
def test_cancelled_sum(method: Literal["interval", "linear"]) -> None:
    """1e16 + 1 - 1e16 in each order of summation: enclosed, and no wider than the rounding of 1e16."""
    for order in ([1e16, 1.0, -1e16], [1.0, 1e16, -1e16], [1e16, -1e16, 1.0], [1e16 + 2, 0.3, -1e16]):
        b = Builder()
        b.linear(b.input(1, 3), np.array([order]))
        network = b.network()
        ones = torch.ones(1, 3, dtype=torch.float64)
        rows = tensor([[[1.0], [-1.0]]])
        low, high = Engine(network, method).rows(point_weights(network), ones, ones, rows).lower[0, 0].tolist()
        exactly = sum(map(Fraction, order))
        assert low <= exactly <= -high
        assert -high - low < 1e3
        z = Engine(network, method).ranges(point_weights(network), Interval(ones[None], ones[None])).values[1]
        assert z.lower.item() <= exactly <= z.upper.item()


def test_coefficients_that_underflow() -> None:
    """1e-200 * 1e-200 is 0 in float64, but times z = 1e300 it is 1e-100: walked backwards it must be paid for."""
    b = Builder()
    x = b.linear(b.input(1, 1), np.array([[1e-200]]))
    b.linear(x, np.array([[1e-200]]))
    network = b.network()
    weights = point_weights(network)
    big = tensor([[1e300]])
    for sign in (1.0, -1.0):
        for method in METHODS:
            low = Engine(network, method).rows(weights, sign * big, sign * big, tensor([[[-1.0]]])).lower.item()
            value = Fraction(-sign * 1e300) * Fraction(1e-200) ** 2
            assert Fraction(low) <= value, method


def test_lines_that_underflow() -> None:
    """The slope of LeakyRelu times a coefficient underflows, and z is large."""
    b = Builder()
    x = b.shift(b.scale(b.input(1, 1), np.array([1.0])), np.array([0.0]))
    b.scale(b.activation(x, "leaky_relu", 1e-200), np.array([1e-200]))
    network = b.network()
    for end in (-1e300, -1e305):
        x = tensor([[end]])
        for row in (1.0, -1.0):
            low = Engine(network, "linear").rows(point_weights(network), x, x, tensor([[[row]]])).lower.item()
            assert Fraction(low) <= Fraction(row) * Fraction(end) * Fraction(1e-200) ** 2


def test_radius_that_underflows() -> None:
    """scale * spread is below the subnormals, and the input is large."""
    for kind in ("linear", "scale", "shift"):
        b = Builder()
        x = b.input(1, 1)
        getattr(b, kind)(x, np.zeros((1, 1)))
        if kind == "shift":
            b.scale(1, np.array([1e300]))
        network = b.network()
        centers = {name: tensor(t)[None] for name, t in network.tensors.items()}
        weights = WeightBoxes(centers, {"w0": tensor([[5e-324]])}, torch.full((1, 1), 0.3, dtype=torch.float64))
        x = tensor([[0.0 if kind == "shift" else 1e300]])
        for method in METHODS:
            low = Engine(network, method).rows(weights, x, x, tensor([[[1.0]]])).lower
            assert Fraction(low.item()) <= -Fraction(0.3) * Fraction(5e-324) * Fraction(1e300), (kind, method)


def test_chord_of_a_subnormal_range() -> None:
    """|z| <= s z + t on subnormal ranges, where t cannot be rounded up by a relative error; the radius is large."""
    spacing = 5e-324
    for low in range(-6, 0):
        for high in range(1, 6):
            b = Builder()
            x = b.scale(b.input(1, 1), np.array([1.0]))
            b.linear(x, np.array([[0.0]]))
            network = b.network()
            centers = {name: tensor(t)[None] for name, t in network.tensors.items()}
            weights = WeightBoxes(centers, {"w1": tensor([[1e300]])}, torch.ones(1, 1, dtype=torch.float64))
            sides = tensor([[low * spacing]]), tensor([[high * spacing]])
            for forms in (False, True):
                found = Engine(network, "linear").rows(weights, *sides, tensor([[[1.0]]]), forms=forms)
                if forms:
                    slope, offset = Fraction(found.form.slope.item()), Fraction(found.form.offset.item())
                    for z in range(low, high + 1):
                        x_exact = z * Fraction(spacing)
                        assert slope * x_exact + offset <= -Fraction(1e300) * abs(x_exact), (low, high, z)
                assert Fraction(found.lower.item()) <= -Fraction(1e300) * Fraction(spacing) * max(-low, high)


def test_an_output_that_is_listed_twice() -> None:
    """Coefficients of both names of a node are added, and that sum is rounded."""
    b = Builder()
    x = b.scale(b.input(1, 1), np.array([1.0]))
    network = b.network(x, x)
    one = tensor([[1.0]])
    for row in ([1.0, 2.0**-60], [1.0, -(2.0**-60)], [-1.0, 2.0**-60], [-1.0, -(2.0**-60)]):
        for method in METHODS:
            low = Engine(network, method).rows(point_weights(network), one * 2**40, one * 2**40, tensor([[row]])).lower
            assert Fraction(low.item()) <= sum(map(Fraction, row)) * 2**40


def test_sharp_products() -> None:
    """A row and inputs with 53 random bits: every bound is on its side and within 1e-12."""
    rng = np.random.default_rng(0)
    for kind in ("relu", "leaky_relu"):
        network = dense_network([3, 4, 4, 2], kind, 0.1, seed=11)
        weights = point_weights(network)
        x = rng.normal(size=(1, 3))
        C, G = rng.normal(size=(6, 2)), rng.normal(size=(6, 3))
        sources = {name: exact.fractions(t) for name, t in network.tensors.items()}
        y = exact.evaluate(network, exact.fractions(x[0]), sources)
        for method in METHODS:
            low = Engine(network, method).rows(weights, tensor(x), tensor(x), tensor(C)[None], tensor(G)[None]).lower
            for row in range(6):
                value = exact.fractions(C[row]) @ y + exact.fractions(G[row]) @ exact.fractions(x[0])
                gap = value - Fraction(low[0, 0, row].item())
                assert 0 <= gap < 1e-11


def test_boxes_outlive_a_network() -> None:
    """Gathered parameters belong to the parameter, not to its address, which may be used again."""
    centers = {"w0": tensor([[2.0]])[None]}
    weights = WeightBoxes(centers, {}, torch.ones(1, 1, dtype=torch.float64))
    for factor in range(1, 50):
        param = Param("w0", np.zeros((1, 1), dtype=np.int64), np.asarray(float(factor)))
        assert weights.param(param).center.item() == 2.0 * factor
        del param


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["relu", "tanh", "sigmoid"])
def test_overflow_claims_nothing_false(method: Literal["interval", "linear"], kind: str) -> None:
    """Numbers that leave float64: the bound is -inf or true, never nan, never +inf."""
    rng = np.random.default_rng(5)
    for _ in range(10):
        b = Builder(int(rng.integers(1000)))
        x = b.scale(b.input(1, 2), np.array([1e200, 1.0]))
        x = b.activation(b.linear(x, rng.choice([-1e200, 1e200, 1.0], size=(2, 2))), kind)
        b.linear(x, rng.choice([-1.0, 1e-100, 1e200], size=(2, 2)))
        network = b.network()
        lower = tensor(rng.choice([-1e10, 1.0], size=(1, 2)))
        rows = tensor(rng.choice([-1.0, 1.0], size=(1, 2, 2)))
        low = Engine(network, method).rows(point_weights(network), lower, lower + 1, rows).lower
        assert not low.isnan().any()
        assert not (low == np.inf).any()
        sources = {name: exact.fractions(t) for name, t in network.tensors.items()}
        if kind == "relu":
            y = exact.evaluate(network, exact.fractions(lower[0]), sources)
            for row in range(2):
                if low[0, 0, row] > -np.inf:
                    assert Fraction(low[0, 0, row].item()) <= exact.fractions(rows[0, row]) @ y
