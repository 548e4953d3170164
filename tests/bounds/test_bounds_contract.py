"""Every node type, every graph: the bounds hold at attacked weights and inputs, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import mpmath
import numpy as np
import pytest
import torch

from bnn_vnnlib.bounds import engine, linear
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Conv, Linear, Scale
from support import exact
from support.attack import Falsifier
from support.networks import point_weights, random_boxes, random_inputs, random_rows
from support.zoo import GRAPHS, PIECES, bare

METHODS: tuple[Literal["interval", "linear"], ...] = ("interval", "linear")
WEIGHTED = [name for name in PIECES if name.startswith(("linear", "conv", "scale"))]


def seed_of(name: str) -> int:
    """The same random numbers in every run."""
    return sum(map(ord, name))


@pytest.mark.parametrize("boxes", [1, 3])
@pytest.mark.parametrize("name", WEIGHTED)
def test_adjoint_is_the_transpose(name: str, boxes: int) -> None:
    network = bare(name)
    rng = np.random.default_rng(seed_of(name))
    for node in network.nodes:
        if not isinstance(node, Linear | Conv | Scale):
            continue
        shape = network.nodes[node.inputs[0]].shape
        weight = torch.as_tensor(rng.normal(size=(boxes, *node.weight.shape)))
        for lead in {1, boxes}:
            z = torch.as_tensor(rng.normal(size=(lead, 2, *shape)))
            a = torch.as_tensor(rng.normal(size=(boxes, 2, *node.shape)))
            y, back = maps.apply(node, weight, z), maps.adjoint(node, weight, a, shape)
            assert y.shape == (boxes, 2, *node.shape)
            assert back.shape == (boxes, 2, *shape)
            torch.testing.assert_close((y * a).flatten(2).sum(2), (z * back).flatten(2).sum(2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", WEIGHTED)
def test_fan_counts_the_products(name: str) -> None:
    """`fan` enters the rounding: with ones for the weights no sum of either direction may exceed it."""
    network = bare(name)
    for node in network.nodes:
        if isinstance(node, Linear | Conv | Scale):
            shape = network.nodes[node.inputs[0]].shape
            ones = torch.ones(1, *node.weight.shape, dtype=torch.float64)
            forward = maps.apply(node, ones, torch.ones(1, 1, *shape, dtype=torch.float64))
            backward = maps.adjoint(node, ones, torch.ones(1, 1, *node.shape, dtype=torch.float64), shape)
            assert max(forward.max(), backward.max()) <= maps.fan(node)


@pytest.mark.parametrize("name", GRAPHS)
def test_forward_pass_matches_exact_arithmetic(name: str) -> None:
    network = GRAPHS[name]()
    rng = np.random.default_rng(seed_of(name))
    x = rng.normal(size=network.signature.input_size)
    sources = {key: exact.fractions(tensor) for key, tensor in network.tensors.items()}
    expected = exact.evaluate(network, exact.fractions(x), sources).astype(np.float64)
    np.testing.assert_allclose(evaluate(network, torch.as_tensor(x)).numpy(), expected, rtol=1e-10, atol=1e-10)


ATTACKED = [(name, 2, 1, True) for name in GRAPHS] + [(name, 1, 2, False) for name in GRAPHS if "alone" not in name]


@pytest.mark.parametrize(("name", "boxes", "items", "own_inputs"), ATTACKED)
def test_attacked_weights_and_inputs_never_contradict(name: str, boxes: int, items: int, own_inputs: bool) -> None:
    attack(name, boxes, items, own_inputs)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_done_for_wide_inputs_is_attacked_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rough walks, and a first layer that is bounded by intervals: here for inputs of any width."""
    monkeypatch.setattr(linear, "MANY_INPUTS", 0)
    attack(name, 2, 2, True)


def attack(name: str, boxes: int, items: int, own_inputs: bool) -> None:
    network = GRAPHS[name]()
    rng = np.random.default_rng(seed_of(name) + boxes)
    weights = random_boxes(network, rng, boxes, items)
    lower, upper = random_inputs(network, rng, items, boxes if own_inputs else 1)
    C, G = random_rows(network, rng, items, 2)
    falsifier = Falsifier(network, weights, lower, upper, C, G)
    falsifier.search(rng)
    for method in METHODS:
        found = Engine(network, method).rows(weights, lower, upper, C, G, forms=True)
        assert found.lower.shape == (boxes, items, C.shape[1])
        assert found.magnitude.shape == (boxes, items, C.shape[2])
        assert torch.isfinite(found.lower).all()
        falsifier.check(found)


@pytest.mark.parametrize("name", ["residual", "several", "deep_conv", "tied", "linear_left_matrix_inside"])
@pytest.mark.parametrize("method", METHODS)
def test_own_inputs_with_one_weight_box(name: str, method: Literal["interval", "linear"]) -> None:
    """Input boxes (K, N, n) with weights that are the same in every box."""
    network = GRAPHS[name]()
    rng = np.random.default_rng(0)
    weights = random_boxes(network, rng, 1, 1)
    lower, upper = random_inputs(network, rng, 2, 3)
    C, G = random_rows(network, rng, 1)
    together = Engine(network, method).rows(weights, lower, upper, C, G)
    assert together.lower.shape == (3, 2, C.shape[1])
    for k in range(3):
        alone = Engine(network, method).rows(weights, lower[k], upper[k], C, G)
        torch.testing.assert_close(together.lower[k], alone.lower[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in GRAPHS if not name.endswith("_alone")][::2])
@pytest.mark.parametrize("method", METHODS)
def test_an_item_does_not_depend_on_its_neighbours(
    name: str, method: Literal["interval", "linear"], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = GRAPHS[name]()
    rng = np.random.default_rng(1)
    boxes, items = 2, 3
    weights = random_boxes(network, rng, boxes, items)
    lower, upper = random_inputs(network, rng, items)
    C, G = random_rows(network, rng, items)
    bounds = Engine(network, method)
    together = bounds.rows(weights, lower, upper, C, G, forms=True)
    for memory in (1, 400):
        monkeypatch.setattr(engine, "at_once", lambda numbers, most=32 * memory: max(1, most // numbers))
        chunked = bounds.rows(weights, lower, upper, C, G, forms=True)
        torch.testing.assert_close(chunked.lower, together.lower, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(chunked.magnitude, together.magnitude, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(chunked.form.offset, together.form.offset, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(chunked.form.slope, together.form.slope, rtol=1e-9, atol=1e-9)
    monkeypatch.undo()
    for item in range(items):
        one = slice(item, item + 1)
        alone = bounds.rows(weights.items(one), lower[one], upper[one], C[one], G[one])
        torch.testing.assert_close(alone.lower[:, 0], together.lower[:, item], rtol=1e-9, atol=1e-9)
    order = torch.as_tensor(rng.permutation(items))
    shuffled = bounds.rows(weights.items(order), lower[order], upper[order], C[order], G[order])
    torch.testing.assert_close(shuffled.lower, together.lower[:, order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("method", METHODS)
def test_rows_common_to_all_items(name: str, method: Literal["interval", "linear"]) -> None:
    """They are walked back once as far as they stay the same: the answers are those of rows of every item's own."""
    network = GRAPHS[name]()
    rng = np.random.default_rng(2)
    boxes, items = 2, 3
    weights = random_boxes(network, rng, boxes, items)
    lower, upper = random_inputs(network, rng, items)
    C, G = (part[:1] for part in random_rows(network, rng, items))
    bounds = Engine(network, method)
    one = bounds.rows(weights, lower, upper, C, G, forms=True)
    own = bounds.rows(weights, lower, upper, C.expand(items, -1, -1), G.expand(items, -1, -1), forms=True)
    torch.testing.assert_close(one.lower, own.lower, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.form.slope, own.form.slope, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.form.offset, own.form.offset, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["residual", "deep_conv", "tied", "several"])
def test_larger_boxes_give_lower_bounds(name: str) -> None:
    """Intervals are monotone under inclusion, up to rounding."""
    network = GRAPHS[name]()
    rng = np.random.default_rng(2)
    weights = random_boxes(network, rng, 1, 2)
    lower, upper = random_inputs(network, rng, 2)
    C, _ = random_rows(network, rng, 1)
    bounds = Engine(network, "interval")
    small = bounds.rows(weights, lower, upper, C).lower
    wide_weights = bounds.rows(weights.scaled(2 * weights.scale), lower, upper, C).lower
    wide_inputs = bounds.rows(weights, lower - 0.1, upper + 0.1, C).lower
    assert (wide_weights < small).all()
    assert (wide_inputs < small).all()


@pytest.mark.parametrize("name", GRAPHS)
def test_ranges_hold_at_every_node(name: str) -> None:
    """The enclosures and magnitudes of hidden nodes, not only the outputs."""
    network = GRAPHS[name]()
    rng = np.random.default_rng(3)
    weights = random_boxes(network, rng, 2, 1)
    lower, upper = random_inputs(network, rng, 1)
    everything = type(network)(network.signature, network.nodes, tuple(range(len(network.nodes))), network.tensors)
    t = torch.as_tensor(rng.uniform(-1, 1, size=(50, 1)))
    x = lower + torch.as_tensor(rng.random((50, 1, lower.shape[-1]))) * (upper - lower)
    for method in METHODS:
        ranges = Engine(network, method).ranges(weights, Interval(lower[None], upper[None]))
        for k in range(2):
            params = {
                key: center[k] + t.reshape(-1, *(1,) * (center.dim() - 1)) * weights.scale[k, 0] * weights.spreads[key]
                for key, center in weights.centers.items()
            }
            values = evaluate(everything, x, params)[:, 0]
            sides = [
                torch.cat([_flat(getattr(ranges.values[i], side), k) for i in everything.outputs])
                for side in ("lower", "upper")
            ]
            assert (values >= sides[0] - 1e-12).all()
            assert (values <= sides[1] + 1e-12).all()


@pytest.mark.parametrize("name", GRAPHS)
def test_losses_add_up_to_what_the_bound_misses(name: str) -> None:
    """At the input where the linear function is least, the row less all losses is the bound, and affine nodes lose
    nothing."""
    network, rng = GRAPHS[name](), np.random.default_rng(seed_of(name))
    weights = random_boxes(network, rng, 2, 1, size=0.0)
    weights = WeightBoxes(weights.centers, {}, torch.zeros_like(weights.scale))
    box = Interval(*(side[None] for side in random_inputs(network, rng, 3)))
    C, G = (part[None] for part in random_rows(network, rng, 3, 1))
    form = Engine(network).rows(weights, box.lower[0], box.upper[0], C[0], G[0], forms=True).form
    assert form is not None
    x = torch.where(form.slope[:, :, 0] >= 0, box.lower, box.upper)
    row = (C[:, :, 0] * evaluate(network, x, weights.centers)).sum(-1) + (G[:, :, 0] * x).sum(-1)
    losses = Engine(network).losses(weights, box, C, G)
    total = sum(losses.values(), torch.zeros_like(row))
    torch.testing.assert_close(row - total, form.minimum(box)[..., 0], rtol=1e-9, atol=1e-9, equal_nan=True)
    for position, loss in losses.items():
        assert (loss >= -1e-9).all()
        if isinstance(network.nodes[position], Linear | Conv | Scale) and "slack" not in name:
            assert (loss <= 1e-9 * (1 + row.abs())).all()


def _flat(z: torch.Tensor, k: int) -> torch.Tensor:
    """Box k, item 0 of (K or 1, 1, *shape)."""
    return z[min(k, len(z) - 1), 0].reshape(-1)


@pytest.mark.parametrize("name", [name for name in GRAPHS if "slack" not in name])
@pytest.mark.parametrize("method", METHODS)
def test_points_are_tight(name: str, method: Literal["interval", "linear"]) -> None:
    """On a point, with exact weights, the bound is within 1e-9 of the value and never above it."""
    network = GRAPHS[name]()
    rng = np.random.default_rng(4)
    x = torch.as_tensor(rng.normal(size=(1, network.signature.input_size)))
    C, G = random_rows(network, rng, 1)
    both = Engine(network, method).rows(point_weights(network), x, x, torch.cat([C, -C], 1), torch.cat([G, -G], 1))
    low, high = both.lower[0, 0].chunk(2)
    sources = {key: exact.fractions(tensor) for key, tensor in network.tensors.items()}
    point = exact.fractions(x[0])
    y = exact.evaluate(network, point, sources)
    for row in range(C.shape[1]):
        with mpmath.workprec(exact.BITS):
            value = exact.fractions(C[0, row]) @ y + exact.fractions(G[0, row]) @ point
        assert exact.at_most(Fraction(low[row].item()), value)
        assert exact.at_most(value, Fraction(-high[row].item()))
    assert (-high - low).max() < 1e-9
