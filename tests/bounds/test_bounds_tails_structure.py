"""Tail bounds: graphs, batches, refusals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bnn_vnnlib.bounds.block import Block
from bnn_vnnlib.bounds.tails import TailEngine, claimed, run
from bnn_vnnlib.bounds.tails import engine as tail_engine
from bnn_vnnlib.bounds.tails.engine import ItemRows
from bnn_vnnlib.bounds.tails.run import stages
from bnn_vnnlib.bounds.tails.tail import Martingale, Normal
from bnn_vnnlib.errors import SoundnessError, UnsupportedError
from bnn_vnnlib.model import GaussianDiagonal, Network
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem import weight_sets
from support.networks import Builder, dense_network
from support.tails import (
    failures,
    node_values,
    random_deviations,
    record,
    rows_of,
    setup,
    surprising,
    tensor,
)
from support.zoo import GRAPHS


@pytest.mark.parametrize("ending", ["output", "sum", "shift", "reshape"])
def test_a_broadcast_behind_random_weights(ending: str) -> None:
    """One random value repeated six times, read with the same coefficient: one variable."""
    builder = Builder()
    x = builder.broadcast(builder.shift(builder.input(2, 1), np.zeros((2, 1))), 2, 3)
    match ending:
        case "sum":
            builder.sum(x, builder.constant(np.zeros((2, 3))))
        case "shift":
            builder.shift(x, np.zeros(()))
        case "reshape":
            builder.reshape(x, 6)
    network = builder.network()
    found = failures(network, {"w0": np.ones((2, 1))}, ([0, 0], [0, 0]), np.ones((1, 6)), [-9.0]).item()
    assert found == pytest.approx(stats.norm.cdf(-9 / math.sqrt(18)), rel=1e-6)


def test_a_random_constant_is_refused() -> None:
    """A Constant with a variance is a bias: its noise may not be forgotten."""
    builder = Builder()
    builder.sum(builder.input(1, 2), builder.constant(np.ones((1, 2))))
    with pytest.raises(UnsupportedError):
        failures(builder.network(), {"w0": np.ones((1, 2))}, ([0, 0], [0, 0]), [[1.0, 0.0]], [0.0])


@pytest.mark.parametrize("name", ["dense", "residual", "tied", "shared_source", "several", "linear_vector_inside"])
@pytest.mark.parametrize("thorough", [False, True])
def test_a_dense_layer_claims_what_the_general_walk_claims(
    monkeypatch: pytest.MonkeyPatch, name: str, thorough: bool
) -> None:
    """The shortcut of dense layers is the walk from the rows I and -I, mean and spread."""
    network = dense_network([3, 5, 4, 2], seed=4) if name == "dense" else None
    case, _, _ = setup(monkeypatch, name, 0.3, 0.8, 1e-2, network, thorough)
    compared = 0
    for position in claimed(case.network):
        shape = case.network.nodes[position].shape
        size = math.prod(shape)
        pair, tight = case.run.shortcut(position)
        if pair is None or not tight:
            continue
        short, _ = pair
        unit = torch.eye(size, dtype=torch.float64)
        seeds = [(position, Block(torch.cat([unit, -unit]).reshape(1, 1, -1, *shape)))]
        for own, smooth in zip(short.bounds, (False, False, True), strict=False):
            (other, *_) = [b for b in case.run._walk(seeds, smooth)[0].bounds if type(b) is type(own)]
            torch.testing.assert_close(own.mean, other.mean, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(_spread(own), _spread(other), rtol=1e-9, atol=1e-9)
        compared += 1
    assert compared > 0


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("thorough", [False, True])
def test_rows_common_to_all_items(name: str, thorough: bool) -> None:
    """They are walked back once as far as they stay the same: the answers are those of rows of every item's own."""
    network = GRAPHS[name]()
    rng = np.random.default_rng(1)
    n, m = network.signature.input_size, network.signature.output_size
    lower = rng.normal(size=(3, n))
    deviations, rows = random_deviations(network, rng, 0.1), rng.normal(size=(2, m))
    one, all_ = (
        failures(network, deviations, (lower, lower + 0.1), some, [-5.0, -2.0], (1e-9,), thorough=thorough)
        for some in (rows, np.stack([rows] * 3))
    )
    torch.testing.assert_close(one, all_, rtol=1e-8, atol=1e-12)


def test_all_thresholds_of_a_row_in_one_walk() -> None:
    """As if the row were asked once for each of them."""
    network = GRAPHS["deep_conv"]()
    rng = np.random.default_rng(0)
    posterior = GaussianDiagonal({k: sd**2 for k, sd in random_deviations(network, rng, 0.1).items()})
    n, m = network.signature.input_size, network.signature.output_size
    lower = tensor(rng.normal(size=(3, n)))
    rows, thresholds = tensor(rng.normal(size=(3, 2, m))), tensor([-8.0, -4.0, 0.0])
    budgets = tensor([1e-2, 1e-5])
    weights = weight_sets.mean_weights(network), weight_sets.centred(network, posterior)
    engine = TailEngine(network)
    found = engine.levels(*weights, (lower, lower + 0.1), rows, thresholds, budgets)
    for k, threshold in enumerate(thresholds):
        bound = threshold.expand(1, 2)
        alone = engine.failures(*weights, (lower, lower + 0.1), rows, None, bound, budgets)
        torch.testing.assert_close(found[..., k], alone, rtol=1e-9, atol=1e-12)
    assert 0 < found.min() < 0.9
    assert found.max() == 1
    nothing = engine.levels(*weights, (lower[:0], lower[:0]), rows[:0], thresholds, budgets)
    assert nothing.shape == (2, 0, 2, 3)


CONVOLUTIONS = {
    "plain": ((1, 2, 4, 5), {}),
    "pads": ((1, 2, 4, 3), {"pads": (1, 2, 0, 1)}),
    "strides": ((2, 2, 5, 6), {"strides": (2, 3), "pads": (0, 1, 1, 0)}),
    "dilations": ((1, 2, 5, 4), {"dilations": (3, 2), "pads": (1, 0, 1, 0)}),
    "groups": ((1, 4, 4, 4), {"groups": 2}),
}


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("moved", ["", "both"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_of_the_input_claims_what_the_general_walk_claims(
    monkeypatch: pytest.MonkeyPatch, name: str, moved: str, thorough: bool
) -> None:
    """Mean, spread, and the mean given the earlier weights, of every element in the order in which it is claimed."""
    shape, options = CONVOLUTIONS[name]
    builder = Builder(seed=3)
    if moved:
        x = builder.transpose(builder.input(*(shape[axis] for axis in (0, 2, 3, 1))), 0, 3, 1, 2)
    else:
        x = builder.input(*shape)
    kernel = (4, shape[1] // options.get("groups", 1), 2, 2)
    x = builder.shift(builder.conv(x, kernel, **options), (4, 1, 1))
    size = math.prod(builder.shape(x))
    if moved:
        x = builder.transpose(builder.reshape(builder.transpose(x, 0, 2, 3, 1), size // 4, 4), 1, 0)
    builder.linear(builder.reshape(builder.activation(x), 1, size), (2, size))
    case, _, _ = setup(monkeypatch, "conv", 0.3, 0.8, 1e-2, builder.network(), thorough)
    (position, *_) = claimed(case.network)
    pair, tight = case.run.shortcut(position)
    assert tight
    assert pair is not None
    unit = torch.eye(size, dtype=torch.float64)
    rows = torch.cat([unit, -unit]).reshape(1, 1, -1, *case.network.nodes[position].shape)
    own = case.run.variation.own(case.network, position) if thorough else frozenset()
    for found, walked in zip(pair, case.run._walk([(position, Block(rows))], False, own=own), strict=True):
        assert [type(bound) for bound in found.bounds] == [type(bound) for bound in walked.bounds]
        for bound, other in zip(found.bounds, walked.bounds, strict=True):
            torch.testing.assert_close(bound.mean, other.mean, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(_spread(bound), _spread(other), rtol=1e-9, atol=1e-9)


def _spread(bound: Normal | Martingale) -> Tensor:
    """With the swings where there are some."""
    return bound.spread if isinstance(bound, Normal) else bound.spread(tensor(2.0))


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("name", ["residual", "deep_conv", "linear_left_matrix_inside", "several"])
def test_items_chunks_and_budgets_do_not_depend_on_each_other(
    monkeypatch: pytest.MonkeyPatch, name: str, thorough: bool
) -> None:
    network = GRAPHS[name]()
    rng = np.random.default_rng(9)
    n, m, budgets = network.signature.input_size, network.signature.output_size, (1e-1, 1e-5, 1e-13)
    lower = rng.normal(size=(5, n))
    upper = lower + 0.1 * rng.random((5, n))
    sd = random_deviations(network, rng, 0.05)
    rows, slopes, bound = rng.normal(size=(5, 3, m)), rng.normal(size=(5, 3, n)), rng.normal(size=(5, 3)) - 3
    whole = failures(network, sd, (lower, upper), rows, bound, budgets, slopes, thorough)
    assert whole.shape == (3, 5, 3)
    assert ((whole > 0) & (whole < 1)).any()
    for i, k in itertools.product(range(5), range(3)):
        alone = failures(
            network,
            sd,
            (lower[i], upper[i]),
            rows[i : i + 1],
            bound[i : i + 1],
            budgets[k : k + 1],
            slopes[i : i + 1],
            thorough,
        )  # fmt: skip
        torch.testing.assert_close(alone[0, 0], whole[k, i], rtol=1e-6, atol=1e-300)
    for memory in (1, 40, 500):
        for module in (run, tail_engine):
            monkeypatch.setattr(module, "at_once", lambda numbers, most=32 * memory: max(1, most // numbers))
        chunked = failures(network, sd, (lower, upper), rows, bound, budgets, slopes, thorough)
        torch.testing.assert_close(chunked, whole, rtol=1e-6, atol=1e-300)


def test_rows_with_input_terms() -> None:
    """y + g x - g x: the mixed row of a linear layer over a box, as a shifted weight."""
    builder = Builder()
    builder.linear(builder.input(1, 2), np.array([[1.0, -2.0]]))
    network, sd = builder.network(), {"w0": np.array([[0.2, 0.5]])}
    box = ([-0.3, 0.2], [0.5, 0.6])
    g, t = np.array([[0.7, 2.5]]), -0.8
    mixed = failures(network, sd, box, [[1.0]], [t], inputs=g)
    network.tensors["w0"][:] += g
    torch.testing.assert_close(mixed, failures(network, sd, box, [[1.0]], [t]), rtol=1e-9, atol=0)
    assert 0 < mixed.item() < 1


@pytest.mark.parametrize("heads", [1, 4, 5, 9])
def test_one_activation_may_have_many_readers(heads: int) -> None:
    """Each map that reads an activation has a swing of its own, more of them than there are activations."""
    builder = Builder(3)
    x = builder.dense(builder.input(1, 2), 3, "relu")
    x = builder.sum(*(builder.linear(x, (2, 3)) for _ in range(heads)), builder.linear(x, (2, 3)))
    builder.linear(builder.activation(x, "relu"), (1, 2))
    network = builder.network()
    sd = {name: np.full(value.shape, 1e-3) for name, value in network.tensors.items()}
    at = np.array([0.4, -0.7])
    y = evaluate(network, tensor(at)).item()
    found = failures(network, sd, (at, at), [[1.0]], [y - 0.5], thorough=True).item()
    assert found < 1e-6


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("kind", ["relu", "tanh"])
@pytest.mark.parametrize("way", ["concat", "reshape", "sum"])
def test_ranges_that_are_claimed_twice(way: str, kind: str, thorough: bool) -> None:
    """A claimed node is moved, and what comes out is claimed again, without noise of its own."""
    builder = Builder(5)
    z = builder.linear(builder.input(1, 2), (2, 2))
    match way:
        case "concat":
            moved = builder.concat(z, builder.sum(z, signs=(-1,)))
        case "reshape":
            moved = builder.reshape(z, 1, 1, 2)
        case _:
            moved = builder.sum(z, builder.constant(np.full((1, 2), 0.1)))
    a, b = builder.activation(z, kind), builder.activation(moved, kind)
    x = builder.concat(a, builder.reshape(b, 1, math.prod(builder.shape(b))))
    builder.linear(x, (1, builder.shape(x)[1]))
    network, at = builder.network(), np.array([0.8, -0.3])
    sd, generator = random_deviations(network, np.random.default_rng(2), 0.2), torch.Generator().manual_seed(3)
    weights = {
        name: tensor(network.tensors[name])
        + tensor(part) * torch.randn(20_000, *part.shape, dtype=torch.float64, generator=generator)
        for name, part in sd.items()
    }
    y = evaluate(network, tensor(at)[None], weights)[:, 0, 0]
    thresholds = torch.cat([y.min()[None] - 3, torch.quantile(y, tensor([0.001, 0.1, 0.5]))])
    rows = np.ones((len(thresholds), 1))
    found = failures(network, sd, (at, at), rows, thresholds, (1e-6,), thorough=thorough)[0, 0] + 1e-6
    assert not surprising((y[:, None] <= thresholds).sum(0), len(y), found).any()
    assert found[0] < 0.01


def test_what_tuning_spends_is_what_it_uses() -> None:
    """k Phi(-z) is at most the share of the event for all its levels, and the shares are the budget, which is paid."""
    network, rng = dense_network([2, 3, 3, 1]), np.random.default_rng(4)
    posterior = GaussianDiagonal({name: part**2 for name, part in random_deviations(network, rng, 0.1).items()})
    weights = weight_sets.mean_weights(network), weight_sets.centred(network, posterior)
    box, budgets = (tensor([[0.0, 0.1]]), tensor([[0.1, 0.2]])), tensor([0.01])
    engine = TailEngine(network)
    tuning = engine.start(ItemRows(network, *weights, box, tensor([[[1.0]]]), None, 1, slice(0, 1)), budgets)
    tuning.shares += tensor(rng.normal(size=tuple(tuning.shares.shape)))
    plan, spent = tuning.plan(rounded=True)
    used = 0.0
    for found in plan.deviations.values():
        for levels in (found.sides, found.middle, {1: found.near}):
            lost = torch.stack([k * torch.special.ndtr(-z) for k, z in levels.items()]).amax(0)
            torch.testing.assert_close(lost, torch.special.ndtr(-levels[1]), rtol=1e-6, atol=0)
            used += lost.sum().item()
    assert used <= spent.item()
    assert spent.item() == pytest.approx(0.01)
    least = tensor([[-100.0]])
    total = engine.tuned(*weights, box, tensor([[[1.0]]]), None, least, budgets, lambda rows, _: rows[0].sum(-1), 0)
    assert total.item() >= 0.01 * (1 - 1e-9)


def early_skip() -> Network:
    """z = W_1 x + W_5 relu(W_2 x + b_3) + b_6 behind a Relu: the map of the skip connection comes first."""
    builder = Builder(3)
    x = builder.input(1, 2)
    skip = builder.linear(x, (3, 2))
    hidden = builder.activation(builder.shift(builder.linear(x, (4, 2)), (4,)))
    z = builder.sum(skip, builder.shift(builder.linear(hidden, (3, 4)), (3,)))
    builder.linear(builder.activation(z), (2, 3))
    return builder.network()


def test_noise_comes_in_the_order_of_the_claims() -> None:
    """That of the skip connection is z's own, and comes after the claim in front of the first Relu."""
    assert stages(early_skip()) == {1: 7, 2: 3, 3: 3, 5: 7, 6: 7, 9: 10}


@pytest.mark.parametrize("name", GRAPHS)
def test_noise_is_claimed_before_anything_but_sums_reads_it(name: str) -> None:
    network = GRAPHS[name]()
    for position, stage in stages(network).items():
        assert stage == len(network.nodes) or stage in claimed(network)
        assert stage >= position


@pytest.mark.parametrize(("left", "name"), [(3, "shift"), (7, "sum")])
def test_noise_that_gets_past_the_claims_is_a_fault(left: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim left out: its noise reaches an activation."""
    network = early_skip()
    monkeypatch.setattr(run, "claimed", lambda network: [p for p in claimed(network) if p != left])
    with pytest.raises(SoundnessError, match="noise gets past the claims"):
        failures(network, {}, ([0, 0], [0, 0]), [[1.0, 0.0]], [0.0])


def test_noise_with_two_readers_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """One map added twice, with other noise in between: it has to be claimed."""
    builder = Builder()
    x = builder.linear(builder.input(1, 2), (2, 2))
    builder.sum(builder.shift(x, (2,)), x)
    network = builder.network()
    assert stages(network) == {1: 1, 2: 4}
    monkeypatch.setattr(run, "claimed", lambda _: [])
    with pytest.raises(SoundnessError, match="noise gets past the claims"):
        stages(network)


def test_the_law_of_a_claim_given_the_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of z, with the weights in front of the first Relu fixed: the noise of the skip connection is still to come."""
    network = early_skip()
    deviations = {name: np.full(tensor.shape, 0.3) for name, tensor in network.tensors.items()}
    skip = network.nodes[1].weight.source  # type: ignore[attr-defined]
    deviations[skip] = np.ones_like(deviations[skip])
    grid = tensor([[0.5, -0.8]])
    case = record(monkeypatch, network, deviations, (grid[0] - 0.1, grid[0] + 0.1), torch.eye(2).double(), 1e-3, True)
    drawn = case.draw(torch.Generator().manual_seed(0), 20_000)
    early = {network.nodes[2].weight.source, network.nodes[3].bias.source}  # type: ignore[attr-defined]
    fixed = {name: noise[:1].expand_as(noise) if name in early else noise for name, noise in drawn.items()}
    z = node_values(network, grid[:1], case.weights(fixed))[7][:, 0, 0]
    least, most = (side[0, 0, 0] for side in case.run.variation.variances[7])  # type: ignore[union-attr]
    middle = case.run._middles[7]
    assert (least < 1.05 * z.var(0)).all()
    assert (z.var(0) < 1.05 * most).all()
    without = {**fixed, skip: torch.zeros_like(fixed[skip])}
    assert (node_values(network, grid[:1], case.weights(without))[7][:, 0, 0].var(0) < least).all()
    assert (middle.lower[0, 0, 0] < z.mean(0) + 0.05).all()
    assert (z.mean(0) - 0.05 < middle.upper[0, 0, 0]).all()


@pytest.mark.parametrize("size", [0.05, 0.1])
@pytest.mark.parametrize("thorough", [False, True])
def test_an_early_skip_connection_against_sampled_weights(
    size: float, thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, rows, grid = setup(monkeypatch, "early_skip", size, 0.02, 1e-3, early_skip(), thorough)
    weights = case.weights(case.draw(torch.Generator().manual_seed(1), 20_000))
    least = rows_of(case.network, node_values(case.network, grid, weights), rows).amin(1)
    informative = 0
    for share in (1e-3, 1e-2, 0.1, 0.4):
        level = least.quantile(share, 0)
        bound = case.tail.failure(level) + case.budget
        assert not surprising((least <= level).sum(0), len(least), bound[0, 0]).any()
        informative += int((bound < 0.5).sum())
    assert informative > 0
