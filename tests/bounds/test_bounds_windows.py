"""Rows with windows give the bounds of whole rows: convolutions, pools, branches, normalisation, moved axes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bnn_vnnlib.bounds import backward, block
from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import INTERVAL, LINEAR
from bnn_vnnlib.bounds.tails import TailEngine, claimed
from bnn_vnnlib.bounds.tails import run as run_module
from bnn_vnnlib.bounds.tails.engine import ItemRows
from bnn_vnnlib.bounds.tails.run import Deviations, TailPlan, TailRun
from bnn_vnnlib.bounds.tails.tail import Normal
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.model import GaussianDiagonal, GaussianLowRank, Network
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Activation, Scale, Select
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.system.clock import Deadline, OutOfTime
from support.clock import Clock
from support.networks import Builder, point_weights, random_boxes, random_inputs, random_rows
from support.tails import random_deviations, seed_of

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
WHOLE, WINDOWS = 0.0, float("inf")
"""Values of `block.WHOLE_SHARE`: no row has a window, every row keeps its own."""


def _pooled(make: Builder, x: int, size: int, stride: int, pad: int) -> int:
    """The largest number of each window of a node (1, C, H, W); what is beyond the border counts as 0."""
    _, channels, height, width = make.shape(x)
    index = np.full((channels, height + 2 * pad, width + 2 * pad), -1)
    index[:, pad : pad + height, pad : pad + width] = np.arange(channels * height * width).reshape(channels, height, -1)
    views = np.lib.stride_tricks.sliding_window_view(index, (size, size), (1, 2))[:, ::stride, ::stride]
    return make.maximum(make.select(x, views.reshape(1, *views.shape[:3], -1)))


def _strided() -> Network:
    make = Builder(1)
    x = make.conv(make.input(1, 2, 11, 10), (4, 2, 3, 2), strides=(2, 1), pads=(1, 0, 2, 1))
    x = make.activation(make.shift(x, (4, 1, 1)))
    x = make.activation(make.shift(make.conv(x, (3, 4, 2, 3), dilations=(1, 2), pads=(0, 2, 1, 1)), (3, 1, 1)))
    x = make.activation(make.conv(x, (3, 3, 2, 2)), "tanh")
    return make.network(make.dense(make.reshape(x, 1, int(np.prod(make.shape(x)))), 3))


def _grouped() -> Network:
    make = Builder(2)
    x = make.activation(make.shift(make.conv(make.input(1, 4, 9, 9), (6, 2, 3, 3), groups=2), (6, 1, 1)))
    x = make.activation(make.conv(x, (6, 1, 3, 3), groups=6, pads=(1, 1, 1, 1)))
    x = make.activation(make.conv(x, (4, 3, 2, 2), groups=2, strides=(2, 2)), "leaky_relu", 0.1)
    return make.network(make.dense(make.reshape(x, 1, int(np.prod(make.shape(x)))), 2))


def _residual() -> Network:
    make = Builder(3)
    x = make.activation(make.shift(make.conv(make.input(1, 2, 10, 10), (3, 2, 3, 3), pads=(1, 1, 1, 1)), (3, 1, 1)))
    y = make.activation(make.shift(make.conv(x, (4, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (4, 1, 1)))
    y = make.shift(make.conv(y, (4, 4, 3, 3), pads=(1, 1, 1, 1)), (4, 1, 1))
    z = make.activation(make.sum(y, make.conv(x, (4, 3, 1, 1), strides=(2, 2)), signs=(1, -1)))
    w = make.activation(make.conv(z, (2, 4, 2, 2)))
    return make.network(make.dense(make.reshape(w, 1, int(np.prod(make.shape(w)))), 2))


def _pools() -> Network:
    make = Builder(4)
    x = make.activation(make.shift(make.conv(make.input(1, 2, 10, 10), (3, 2, 2, 2)), (3, 1, 1)))
    x = _pooled(make, x, 3, 2, 1)
    x = make.activation(make.shift(make.conv(x, (4, 3, 2, 2)), (4, 1, 1)))
    x = make.activation(make.conv(_pooled(make, x, 2, 1, 0), (3, 4, 2, 2)))
    return make.network(make.dense(make.reshape(x, 1, int(np.prod(make.shape(x)))), 2))


def _channels_last() -> Network:
    make = Builder(5)
    x = make.transpose(make.input(1, 9, 8, 2), 0, 3, 1, 2)
    x = make.transpose(make.shift(make.conv(x, (4, 2, 3, 3)), (4, 1, 1)), 0, 2, 3, 1)
    x = make.shift(make.scale(make.activation(x), (4,)), (4,))  # a normalisation
    x = make.activation(make.linear(x, (3, 4)))  # the same map at every place
    x = make.conv(make.transpose(x, 0, 3, 1, 2), (4, 3, 2, 2), strides=(2, 1))
    x = make.activation(make.transpose(x, 0, 2, 3, 1))
    x = make.conv(make.reshape(make.transpose(x, 0, 3, 1, 2), 1, 4, *make.shape(x)[1:3]), (2, 4, 2, 2))
    x = make.activation(make.reshape(x, int(np.prod(make.shape(x)))))
    return make.network(make.dense(x, 2))


def _joined() -> Network:
    make = Builder(6)
    x = make.activation(make.shift(make.conv(make.input(1, 2, 9, 9), (3, 2, 2, 2)), (3, 1, 1)))
    y = make.activation(make.conv(x, (2, 3, 3, 3), pads=(1, 1, 1, 1)))
    gate = make.activation(make.conv(x, (1, 3, 3, 3), pads=(1, 1, 1, 1)), "sigmoid")
    y = make.product(y, make.broadcast(gate, *make.shape(y)))
    z = make.activation(make.conv(make.concat(x, y, axis=1), (3, 5, 2, 2)))
    return make.network(make.dense(make.reshape(z, 1, int(np.prod(make.shape(z)))), 2))


def _normalised() -> Network:
    """Padded maps with no activation between them: what is beyond a border meets biases and kernels."""
    make = Builder(7)
    x = make.shift(make.conv(make.input(1, 2, 9, 9), (3, 2, 3, 3), pads=(1, 1, 1, 1)), (3, 1, 1))
    x = make.shift(make.scale(make.activation(x), (3, 1, 1)), (3, 1, 1))
    x = make.conv(make.conv(x, (3, 3, 3, 3), pads=(1, 1, 1, 1)), (2, 3, 3, 3), pads=(0, 2, 1, 0))
    x = make.activation(make.shift(x, (2, 1, 1)))
    return make.network(make.dense(make.reshape(x, 1, int(np.prod(make.shape(x)))), 2))


def _batch_norms() -> Network:
    """Convolutions with two scales each, of which the first one is certain: as a reader takes batch norm apart."""
    make = Builder(9)

    def normed(x: int, kernel: tuple[int, ...]) -> int:
        channels = (kernel[0], 1, 1)
        x = make.shift(make.conv(x, kernel, pads=(1, 1, 1, 1)), channels)
        return make.shift(make.scale(make.scale(x, channels), channels), channels)

    x = make.activation(normed(make.input(1, 2, 8, 8), (3, 2, 3, 3)))
    y = normed(make.activation(normed(x, (3, 3, 3, 3))), (3, 3, 3, 3))
    x = make.activation(make.sum(y, x))
    return make.network(make.dense(make.reshape(x, 1, int(np.prod(make.shape(x)))), 2))


def _shared_inputs() -> Network:
    """Relu and another node read the same units, in front of a sum and of a second map."""
    make = Builder(10)
    x = make.shift(make.conv(make.input(1, 2, 8, 8), (3, 2, 3, 3), pads=(1, 1, 1, 1)), (3, 1, 1))
    y = make.shift(make.conv(make.activation(x), (3, 3, 3, 3), pads=(1, 1, 1, 1)), (3, 1, 1))
    z = make.sum(y, x)
    z = make.sum(make.conv(make.activation(z), (2, 3, 2, 2)), make.conv(z, (2, 3, 2, 2)))
    z = make.activation(z)
    return make.network(make.dense(make.reshape(z, 1, int(np.prod(make.shape(z)))), 2))


NETWORKS: dict[str, Callable[[], Network]] = {
    "strided": _strided, "grouped": _grouped, "residual": _residual, "pools": _pools,
    "channels last": _channels_last, "joined": _joined, "normalised": _normalised,
    "batch norms": _batch_norms, "shared inputs": _shared_inputs,
}  # fmt: skip


@pytest.mark.parametrize("shape", [(2**31 - 1,), (2**31 + 5,), (2**20, 2**10), (2**16, 2**15, 2)])
def test_indices_into_large_nodes(shape: tuple[int, ...]) -> None:
    """Windows of two rows at the last but one element, at one before the first, and behind all."""
    start = torch.tensor([[size - 2 for size in shape], [-1 for _ in shape], list(shape)])
    index = block._flat(start, (2,) + (1,) * (len(shape) - 1), shape).reshape(3, 2).tolist()
    size, rows = math.prod(shape), math.prod(shape[1:])
    last = int(np.ravel_multi_index([size - 2 for size in shape], shape))
    assert index == [[last, last + rows], [size, 0 if len(shape) == 1 else size], [size, size]]


def _units(network: Network, boxes: int, items: int) -> list[tuple[Tensor, Tensor, Tensor, int]]:
    """Of some units of every node: slopes, offsets and minima of their rows, and how many numbers a row has held."""
    rng = np.random.default_rng(0)
    weights, (lower, upper) = random_boxes(network, rng, boxes, items), random_inputs(network, rng, items)
    box = Interval(lower[None], upper[None])
    ranges, found = Engine(network, "interval").ranges(weights, box), []
    for position, node in enumerate(network.nodes):
        if isinstance(node, Activation):
            z = ranges.values[node.inputs[0]]
            ranges.lines[position] = ACTIVATIONS[node.kind].lines(node.alpha, z.lower, z.upper)
    for position, node in enumerate(network.nodes):
        size = int(np.prod(node.shape))
        index = torch.as_tensor(rng.choice(size, min(size, 12), replace=False))
        walk, end = backward.unit_walk(network, weights, ranges, position, index, items)
        form = end.form(lower.shape[-1])
        found.append((form.slope, form.offset, end.minimum(box), walk.largest))
    return found


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("boxes", "items"), [(1, 1), (2, 3)])
def test_linear_bounds_are_those_of_whole_rows(
    name: str, boxes: int, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of units of all nodes, at borders and inside, with weights in boxes."""
    network = NETWORKS[name]()
    monkeypatch.setattr(block, "WHOLE_SHARE", WHOLE)
    whole = _units(network, boxes, items)
    monkeypatch.setattr(block, "WHOLE_SHARE", WINDOWS)
    windows = _units(network, boxes, items)
    for one, other in zip(whole, windows, strict=True):
        for mine, theirs in zip(one[:3], other[:3], strict=True):
            torch.testing.assert_close(mine, theirs, **CLOSE)
    monkeypatch.undo()
    fewer = [theirs[-1] < mine[-1] for mine, theirs in zip(whole, _units(network, 1, 1), strict=True)]
    assert sum(fewer) > len(fewer) / 2  # or nothing has been tested


def _tails(network: Network, thorough: bool, shared: bool) -> list[Tensor]:
    """Ranges of all nodes, variations, and the failures of rows at several thresholds."""
    rng = np.random.default_rng(seed_of("windows"))
    deviations = {name: sd**2 for name, sd in random_deviations(network, rng, 0.02).items()}
    posterior: GaussianDiagonal | GaussianLowRank = GaussianDiagonal(deviations)
    if shared:
        factors = {name: 0.02 * rng.normal(size=(2, *network.tensors[name].shape)) for name in deviations}
        posterior = GaussianLowRank(factors, deviations)
    device = torch.device("cpu")
    means, noise = weight_sets.mean_weights(network), weight_sets.centred(network, independent(posterior))
    groups = correlation(network, posterior, device)
    x = torch.as_tensor(rng.uniform(-1, 1, (2, network.signature.input_size)))
    engine = TailEngine(network, correlation=groups)
    outputs = torch.as_tensor(rng.normal(size=(1, 2, network.nodes[network.outputs[0]].shape[-1])))
    rows = ItemRows(network, means, noise, (x - 0.02, x + 0.02), outputs, None, 1, slice(0, 2), groups)
    plan = engine._plan(torch.full((1, 1), 1e-3, dtype=torch.float64), thorough)
    run: TailRun = rows.run(plan)
    tail = run.tail(outputs, None)
    found = [tail.failure(outputs.new_full((), level)) for level in (-2.0, -0.5, 0.0, 0.5)]
    for position in claimed(network):
        found += [run.ranges.values[position].lower, run.ranges.values[position].upper]
        found += [] if run.variation is None else [run.variation.known[position]]
    return found


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("thorough", "shared"), [(False, False), (True, False), (True, True)])
def test_tails_are_those_of_whole_rows(
    name: str, thorough: bool, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of kernels, biases and groups of weights, amplitudes and variations.

    What weights share is bounded by the largest eigenvalue of the correlations of what they add. Rows of it whose
    coefficients are 0 are undefined, and depend on roundings. They add nothing to the sum that is bounded, and a
    principal submatrix has no larger eigenvalue: the bound holds with whatever such rows, and differs a little.
    """
    network = NETWORKS[name]()
    monkeypatch.setattr(block, "WHOLE_SHARE", WHOLE)
    whole = _tails(network, thorough, shared)
    monkeypatch.setattr(block, "WHOLE_SHARE", WINDOWS)
    for mine, theirs in zip(whole, _tails(network, thorough, shared), strict=True):
        torch.testing.assert_close(mine, theirs, **({"rtol": 1e-2, "atol": 1e-2} if shared else CLOSE))


@pytest.mark.parametrize("name", NETWORKS)
def test_no_sampled_network_is_outside(name: str) -> None:
    """Inputs of activations at corners of the boxes of inputs and weights."""
    network = NETWORKS[name]()
    places = [node.inputs[0] for node in network.nodes if isinstance(node, Activation)]
    rng = np.random.default_rng(1)
    weights, (lower, upper) = random_boxes(network, rng, 1, 1), random_inputs(network, rng, 1)
    ranges = Engine(network).ranges(weights, Interval(lower[None], upper[None]))
    all_places = replace(network, outputs=tuple(places))
    for _ in range(20):
        x = torch.where(torch.as_tensor(rng.random(lower.shape) < 0.5), lower, upper)
        ends = {key: torch.as_tensor(rng.choice([-1.0, 1.0], center.shape)) for key, center in weights.centers.items()}
        drawn = {
            key: center + weights.scale[0, 0] * ends[key] * weights.spreads[key]
            for key, center in weights.centers.items()
        }
        values = evaluate(all_places, x, drawn).reshape(-1)
        low = torch.cat([ranges.values[place].lower.reshape(-1) for place in places])
        high = torch.cat([ranges.values[place].upper.reshape(-1) for place in places])
        assert ((values >= low - 1e-9) & (values <= high + 1e-9)).all()


def _run(
    network: Network, size: float, deadline: Deadline = Deadline(), *, shared: bool = False, thorough: bool = False,
    radii: Sequence[float] = (0.05,), plan: TailPlan | None = None,
) -> TailRun:  # fmt: skip
    """A pass over small boxes around one point, with deviations of this size."""
    rng = np.random.default_rng(3)
    posterior = GaussianDiagonal({name: sd**2 for name, sd in random_deviations(network, rng, size).items()})
    means, noise = weight_sets.mean_weights(network), weight_sets.centred(network, posterior)
    groups = None
    if shared:
        factors = {name: variance[None] ** 0.5 for name, variance in posterior.variances.items()}
        groups = correlation(network, GaussianLowRank(factors, posterior.variances))
    x = torch.as_tensor(rng.uniform(-1, 1, (1, 1, network.signature.input_size)))
    wide = torch.tensor(radii, dtype=torch.float64)[None, :, None]
    plan = plan or TailEngine(network)._plan(torch.full((1, 1), 1e-3, dtype=torch.float64), thorough)
    return TailRun(network, means, noise, Interval(x - wide, x + wide), plan, groups, deadline)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("thorough", [False, True])
def test_shortcuts_are_walks_that_stop_at_known_nodes(name: str, thorough: bool) -> None:
    """Mean and spread of every unit of every claimed node: by elements of the maps, and by rows."""
    network, run = NETWORKS[name](), _run(NETWORKS[name](), 0.05, thorough=thorough)
    compared = 0
    for position in claimed(network):
        shape = network.nodes[position].shape
        if len(shape) < 3:
            continue
        (short, middle), tight = run.shortcut(position)
        units = block.units(torch.arange(int(np.prod(shape))), shape, (1, 1), run.box.lower)
        walk, noise = run._start(units.values.new_zeros(units.values.shape[:3]), False, run._own(position))
        rules = noise.rules()
        walk.give(position, units)
        for place in range(position, -1, -1):
            if (a := walk.pending.pop(place, None)) is not None:
                known = place != position and place in run.ranges.values
                rule = INTERVAL[Activation] if known else rules[type(network.nodes[place])]
                rule(walk, network.nodes[place], place, a)
        stopped = noise.tail(walk.constant - walk.error)
        for mine, theirs in zip(short.bounds, stopped.bounds, strict=True):
            torch.testing.assert_close(mine.mean, theirs.mean, **CLOSE)
            spreads = (bound.spread if isinstance(bound, Normal) else bound.spread() for bound in (mine, theirs))
            torch.testing.assert_close(*spreads, **CLOSE)
        if noise.own and not tight:
            torch.testing.assert_close(middle.bounds[0].mean, walk.constant - walk.error, **CLOSE)
            assert not middle.bounds[0].squares
        compared += 1
    assert compared > 1


@pytest.mark.parametrize("name", ["pools"])
def test_units_that_are_not_walked_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where weights are all but known: no line rests on units of fixed sign, or that others of a pool exceed."""
    network, walked = NETWORKS[name](), 0
    real = TailRun._walked

    def counted(self: TailRun, position: int, units: Tensor, sides: Sequence[int], known: bool) -> Iterator[Any]:
        nonlocal walked
        walked += len(units) * len(sides)
        yield from real(self, position, units, sides, known)

    monkeypatch.setattr(TailRun, "_walked", counted)
    outputs = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]], dtype=torch.float64)
    outputs = torch.nn.functional.pad(outputs, (0, network.signature.output_size - 2))
    fewer, count = _run(network, 1e-9).tail(outputs, None), walked
    monkeypatch.setattr(TailRun, "_open", lambda self, position, levels: torch.ones_like(levels[:, :, :1]) > 0)
    every = _run(network, 1e-9).tail(outputs, None)
    assert 0 < count < walked - count
    torch.testing.assert_close(fewer.bounds[0].mean, every.bounds[0].mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("lengthy", [False, True])
def test_ranges_do_not_depend_on_the_neighbours(name: str, lengthy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a point and of a box that leaves more signs open, in one pass and alone."""
    monkeypatch.setattr(backward, "lengthy", lambda network, position: lengthy)
    both = _run(NETWORKS[name](), 1e-3, radii=(0.0, 0.1))
    for i, radius in enumerate((0.0, 0.1)):
        alone = _run(NETWORKS[name](), 1e-3, radii=(radius,))
        for position in claimed(alone.network):
            for side in ("lower", "upper"):
                one, other = (getattr(run.ranges.values[position], side) for run in (alone, both))
                torch.testing.assert_close(one[:, 0], other[:, i], **CLOSE)


@pytest.mark.parametrize("name", ["strided", "residual", "grouped"])
def test_each_side_of_a_unit_has_a_level_of_its_own(name: str) -> None:
    """As tuned plans have them: 1 deviation below and 6 above."""
    network = NETWORKS[name]()
    second = [p for p in claimed(network) if len(network.nodes[p].shape) == 4][1]

    def claim(low: float, high: float) -> Interval:
        found = {}
        for position in claimed(network):
            z = torch.full((1, 1, 2 * math.prod(network.nodes[position].shape)), 4.0, dtype=torch.float64)
            if position == second:
                z = torch.tensor([low, high], dtype=torch.float64).repeat_interleave(z.shape[2] // 2).expand_as(z)
            levels = dict.fromkeys(run_module.powers(network), z)
            found[position] = Deviations(levels, levels, z.chunk(2, -1)[0])
        return _run(network, 0.05, plan=TailPlan(found, thorough=True)).ranges.values[second]

    mixed, low, high = claim(1.0, 6.0), claim(1.0, 1.0), claim(6.0, 6.0)
    torch.testing.assert_close(mixed.lower, low.lower)
    torch.testing.assert_close(mixed.upper, high.upper)
    assert bool((low.upper < high.upper - 1e-6).any())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("lengthy", [False, True])
def test_drawn_networks_are_within_the_ranges(name: str, lengthy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of all claimed nodes at drawn weights and inputs: a range fails with a probability of 1e-3 together."""
    monkeypatch.setattr(backward, "lengthy", lambda network, position: lengthy)
    network, size = NETWORKS[name](), 0.02
    run, rng = _run(network, size), np.random.default_rng(5)
    deviations, places = random_deviations(network, np.random.default_rng(3), size), claimed(network)
    every = replace(network, outputs=tuple(places))
    low, high = (
        torch.cat([getattr(run.ranges.values[p], side).reshape(-1) for p in places]) for side in ("lower", "upper")
    )
    assert torch.isfinite(low).all()
    assert torch.isfinite(high).all()
    outside, ends = 0, torch.as_tensor(rng.choice([-0.05, 0.0, 0.05], (60, network.signature.input_size)))
    for end in ends:
        drawn = {
            key: torch.as_tensor(network.tensors[key] + sd * rng.normal(size=sd.shape))[None]
            for key, sd in deviations.items()
        }
        values = evaluate(every, (run.box.lower + run.box.upper)[0] / 2 + end, drawn).reshape(-1)
        outside += bool(((values < low - 1e-9) | (values > high + 1e-9)).any())
    assert outside == 0


def _walked_units(network: Network, monkeypatch: pytest.MonkeyPatch, *, shared: bool = False) -> dict[int, int]:
    """How many units of each claimed node are walked, in a pass whose ranges are finite."""
    counts: dict[int, int] = {}
    real = TailRun._walked

    def counted(self: TailRun, position: int, units: Tensor, sides: Sequence[int], known: bool) -> Iterator[Any]:
        counts[position] = counts.get(position, 0) + len(units) * len(sides)
        yield from real(self, position, units, sides, known)

    with monkeypatch.context() as patch:
        patch.setattr(TailRun, "_walked", counted)
        run = _run(network, 0.02, shared=shared)
    assert all(torch.isfinite(run.ranges.values[p].lower).all() for p in claimed(network))
    return counts


def test_what_a_scale_reads_is_walked_for_the_sake_of_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the scale is certain, nor in a large network; where weights share noise, there is nothing else."""
    network = _batch_norms()
    read = [node.inputs[0] for node in network.nodes if isinstance(node, Scale)]
    behind = {p: int(np.prod(network.nodes[p].shape)) for p in read}
    weights = [node.weight.source for node in network.nodes if isinstance(node, Scale)]
    noisy = _walked_units(network, monkeypatch)
    assert all(noisy[p] == 2 * size for p, size in behind.items() if p in noisy)
    assert len([p for p in behind if p in noisy]) > 2
    real = random_deviations
    monkeypatch.setattr(
        sys.modules[__name__], "random_deviations",
        lambda *given: {name: 0 * sd if name in weights[::2] else sd for name, sd in real(*given).items()},
    )  # fmt: skip
    certain = _walked_units(network, monkeypatch)
    assert all(certain[p] == 0 for p in read[::2] if p in certain)
    assert all(certain[p] == noisy[p] for p in read[1::2] if p in certain)
    monkeypatch.setattr(backward, "lengthy", lambda network, position: True)
    assert all(_walked_units(network, monkeypatch).get(p, 0) == 0 for p in read)
    shared = _walked_units(network, monkeypatch, shared=True)
    assert all(shared[p] == 2 * size for p, size in behind.items() if p in shared)


@pytest.mark.parametrize("name", NETWORKS)
def test_units_below_0_are_walked_from_above_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower bounds of other units are as good as if all were walked, and where another node reads them, of all. (In a
    pool a unit that is no rival does not matter, either.)"""
    network = NETWORKS[name]()
    fewer = _run(network, 1e-6).ranges.values
    monkeypatch.setattr(backward, "sides", lambda network, position: ((0, 1),))
    every = _run(network, 1e-6).ranges.values
    for position in claimed(network):
        torch.testing.assert_close(fewer[position].upper, every[position].upper, **CLOSE)
        matters = every[position].upper > 0
        readers = [node for node in network.nodes if position in node.inputs]
        if any(not isinstance(node, Activation) or node.kind != "relu" for node in readers):
            matters = torch.ones_like(matters)
        if name != "pools":
            torch.testing.assert_close(fewer[position].lower[matters], every[position].lower[matters], **CLOSE)


@pytest.mark.parametrize("name", NETWORKS)
def test_units_that_time_does_not_suffice_for_keep_their_first_range(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges of a pass that was cut off hold those of one that was not, wherever it was cut off."""
    network = NETWORKS[name]()
    monkeypatch.setattr(run_module, "at_once", lambda numbers: 4)
    whole, widths = _run(network, 1e-3), []
    for allowed in (0, 2, 10**9):
        Clock(monkeypatch, allowed)
        cut = _run(network, 1e-3, Deadline(0.0))
        widths.append(0.0)
        for position in claimed(network):
            z, tight = cut.ranges.values[position], whole.ranges.values[position]
            assert ((z.lower <= tight.lower + 1e-12) & (z.upper >= tight.upper - 1e-12)).all()
            widths[-1] += (z.upper - z.lower).sum().item()
    assert np.isfinite(widths).all()
    assert widths[0] >= widths[1] >= widths[2]
    assert widths[0] > widths[2] + 1e-6


def test_without_a_first_range_time_cuts_the_item_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a convolution with weights that share noise there is no shortcut: nothing is known of the item."""
    Clock(monkeypatch, 1)
    with pytest.raises(OutOfTime):
        _run(NETWORKS["residual"](), 1e-3, Deadline(0.0), shared=True)


def test_who_wins_a_pool_is_a_rival() -> None:
    """Of sampled values: whoever wins where somebody else has won, too. Elsewhere one element exceeds all others."""
    network, rng = NETWORKS["pools"](), np.random.default_rng(4)
    place = next(p for p, node in enumerate(network.nodes) if isinstance(node, Select))
    (position,), index = network.nodes[place].inputs, torch.as_tensor(network.nodes[place].index)
    center = torch.as_tensor(rng.uniform(0, 1, (1, 1, *network.nodes[position].shape)))
    z = Interval(center - 0.2, center + 0.2)
    rival = backward.rivals(network, random_boxes(network, rng, 1, 1), position, z)
    values = torch.cat([torch.as_tensor(rng.uniform(z.lower, z.upper)).reshape(1, -1) for _ in range(300)])
    values = torch.cat([values, torch.zeros_like(values[:, :1])], 1)  # the border
    winner = values[:, index].argmax(-1)  # (samples, *windows)
    won = torch.zeros_like(rival.reshape(-1))
    for window in np.ndindex(*index.shape[:-1]):
        winners = index[window][winner[(slice(None), *window)].unique()]
        if len(winners) > 1:
            won[winners[winners >= 0]] = True
    assert won.sum() > 10
    assert (rival.reshape(-1) | ~won).all()
    assert not rival.all()


def test_tighter_rivals_tighten_what_follows_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fixed weights, where all else is the same."""
    network, rng = NETWORKS["pools"](), np.random.default_rng(5)
    weights, (lower, upper) = point_weights(network), random_inputs(network, rng, 3, size=0.1)
    rows = torch.as_tensor(rng.normal(size=(1, 4, network.signature.output_size)))
    tight = Engine(network).rows(weights, lower, upper, rows).lower
    monkeypatch.setattr(backward, "rivals", lambda *_: None)
    loose = Engine(network).rows(weights, lower, upper, rows).lower
    assert (tight >= loose - 1e-9).all()
    assert (tight > loose + 1e-3).any()


def test_a_single_number_has_no_axes() -> None:
    """As input and in front of an activation: ranges hold the interval of the mean, and the walk ends at the input."""
    make = Builder(8)
    x = make.shift(make.scale(make.input(), np.array(1.5)), np.array(0.2))
    network = make.network(make.dense(make.reshape(make.activation(x), 1, 1), 2))
    run = _run(network, 0.01)
    z, box = run.ranges.values[x], run.box
    assert z.lower < 1.5 * box.lower[0, 0, 0] + 0.2
    assert z.upper > 1.5 * box.upper[0, 0, 0] + 0.2
    found = Engine(network).rows(
        point_weights(network), box.lower[0], box.upper[0], torch.eye(2, dtype=torch.float64)[None]
    )
    assert torch.isfinite(found.lower).all()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("looks", [3, 40, 10**9])
def test_large_layers_and_little_time(name: str, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units walk alone, as far as time suffices: intervals are no better, and no drawn network is below the bounds."""
    network, rng = NETWORKS[name](), np.random.default_rng(1)
    weights, (lower, upper) = random_boxes(network, rng, 1, 1), random_inputs(network, rng, 1)
    outputs = random_rows(network, rng, 1)[0]
    intervals = Engine(network, "interval").rows(weights, lower, upper, outputs).lower
    monkeypatch.setattr(backward, "lengthy", lambda network, position: True)
    Clock(monkeypatch, looks)
    found = Engine(network, deadline=Deadline(1e18)).rows(weights, lower, upper, outputs).lower
    assert bool((found >= intervals - 1e-9).all())
    drawn = {
        name: center
        + weights.scale.item()
        * weights.spreads[name]
        * torch.as_tensor(rng.choice([-1.0, 1.0], (20, *center[0].shape)))
        for name, center in weights.centers.items()
    }
    x = lower + torch.as_tensor(rng.random((50, lower.shape[-1]))) * (upper - lower)
    least = (evaluate(network, x, drawn) @ outputs[0].mT).amin((0, 1))
    assert bool((least >= found[0, 0] - 1e-9).all())


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_are_cut_off_by_the_clock_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once ranges have used the time up, the walk of the rows ends at its first look at the clock: intervals remain."""
    network, rng = NETWORKS[name](), np.random.default_rng(1)
    weights, (lower, upper) = random_boxes(network, rng, 1, 1), random_inputs(network, rng, 1)
    outputs, cut = random_rows(network, rng, 1)[0], []
    intervals = Engine(network, "interval").rows(weights, lower, upper, outputs).lower
    real = backward.finish

    def noted(walk: Any, last: int, size: int, rules: Any) -> Any:
        try:
            return real(walk, last, size, rules)
        except OutOfTime:
            cut.append(rules is LINEAR)
            raise

    monkeypatch.setattr(backward, "finish", noted)
    Clock(monkeypatch, 1)
    found = Engine(network, deadline=Deadline(0.0)).rows(weights, lower, upper, outputs).lower
    assert cut == [True]
    assert bool((found >= intervals - 1e-9).all())
