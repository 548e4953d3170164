"""Tail bounds against sampled networks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from bnn_vnnlib.bounds import backward
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.tails.tail import Normal
from bnn_vnnlib.network import evaluate
from bnn_vnnlib.network.network import GaussianDiagonal
from bnn_vnnlib.network.nodes import Sum
from support.blocks import BLOCKS, TRAINED, random
from support.networks import Builder, dense_network
from support.tails import (
    INSIDE,
    failures,
    left_claims,
    node_values,
    random_deviations,
    record,
    rows_of,
    seed_of,
    setup,
    surprising,
    tensor,
)

SAMPLES = 5_000


@pytest.mark.parametrize(
    ("size", "thorough", "alone"), [(0.1, True, False), (1.0, False, False), (1.0, True, False), (1.0, False, True)]
)
@pytest.mark.parametrize("name", INSIDE)
def test_sampled_networks_fail_no_more_often(
    monkeypatch: pytest.MonkeyPatch, name: str, size: float, thorough: bool, alone: bool
) -> None:
    """The grid over-estimates the minimum: its frequencies are below the true ones, which are below the bounds.

    alone : units of dense layers walk by themselves, as those of large ones do
    """
    budget = 0.02
    if alone:
        monkeypatch.setattr(backward, "lengthy", lambda network, position: True)
    case, rows, grid = setup(monkeypatch, name, size, 0.1, budget, thorough=thorough)
    weights = case.weights(case.draw(torch.Generator().manual_seed(seed_of(name)), SAMPLES))
    values = node_values(case.network, grid, weights)
    values = [value.nan_to_num(0.0) if value.isnan().any() else value for value in values]  # log of a negative number
    left = left_claims(case, values)
    assert not surprising(left.sum().reshape(1), SAMPLES, tensor([budget])).any()
    least = rows_of(case.network, values, rows).amin(1)
    for one in case.tail.bounds:
        z = tensor([-2.0, -0.5, 0.01, 0.5, 1.0, 2.0, 3.0, 4.0])[:, None, None, None]
        thresholds = one.mean - z * (one.spread if isinstance(one, Normal) else one.spread())
        bound = case.tail.failure(thresholds)[:, 0, 0] + budget  # (Z, R)
        count = (least[None] <= thresholds[:, 0]).sum(1).expand(bound.shape) * (SAMPLES // len(least))
        assert not surprising(count, SAMPLES, bound).any()


@pytest.mark.parametrize("source", [0, 1, 2, 3, None])
def test_one_random_layer_alone_is_sampled_closely(monkeypatch: pytest.MonkeyPatch, source: int | None) -> None:
    """Ranges that hold with a budget near 0, and the bulk of the distribution at a point."""
    network = dense_network([3, 6, 2], "leaky_relu", 0.3, seed=3)
    rng = np.random.default_rng(5)
    deviations = random_deviations(network, rng, 0.2)
    if source is not None:
        deviations = {f"w{source}": deviations[f"w{source}"]}
    x, rows = rng.normal(size=3), tensor([[1.0, -1.0]])
    case = record(monkeypatch, network, deviations, (x, x), rows, 1e-6)
    weights = case.weights(case.draw(torch.Generator().manual_seed(6), 200_000))
    y = evaluate.evaluate(network, tensor(x)[None], weights)[:, 0] @ rows[0]
    thresholds = torch.quantile(y[:1000], tensor([0.001, 0.01, 0.1, 0.3, 0.6]))
    found = failures(network, deviations, (x, x), rows.expand(5, 2), thresholds, (1e-6,))[0, 0] + 1e-6
    count = (y[1000:, None] <= thresholds).sum(0)
    assert not surprising(count, len(y) - 1000, found).any()
    if source in (2, 3):  # the last layer: exact
        exact = stats.norm.cdf(thresholds.numpy(), y.mean(), y.std())
        assert (found.numpy() <= np.where(exact < 0.4, exact * 1.1 + 1e-5, 1.1)).all()


def test_the_budget_is_shared_by_all_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent exact tails: two of the five events of an element are left as often as the budget says."""
    builder = Builder(7)
    x = builder.dense(builder.input(1, 2), 50, "relu")
    builder.dense(x, 1)
    network, at = builder.network(), np.array([0.5, -1.0])
    sd = {"w0": np.full((50, 2), 0.3), "w1": np.full(50, 0.1)}
    case = record(monkeypatch, network, sd, (at, at), tensor([[1.0]]), 0.2)
    weights = case.weights(case.draw(torch.Generator().manual_seed(8), SAMPLES))
    rate = left_claims(case, node_values(network, tensor(at)[None], weights)).double().mean()
    assert 0.06 < rate < 0.2 + 0.015


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("radius", [0.0, 0.02])
@pytest.mark.parametrize("name", ["layer norm behind", "instance norm", "self-attention"])
def test_norms_and_attention(monkeypatch: pytest.MonkeyPatch, name: str, radius: float, thorough: bool) -> None:
    """Ranges, the budget of which is large, rows, and means of rows; what a norm subtracts narrows its terms."""
    model = random(BLOCKS[name](), 0.05, *TRAINED)
    network, posterior = model.network, model.posterior
    assert isinstance(posterior, GaussianDiagonal)
    rng, n, budget = np.random.default_rng(seed_of(name)), network.signature.input_size, 0.3
    center, rows = 0.7 * rng.normal(size=n), tensor([[1.0, -1.0], [-1.0, 1.0]])
    deviations = {key: np.sqrt(variance) for key, variance in posterior.variances.items()}
    case = record(monkeypatch, network, deviations, (center - radius, center + radius), rows, budget, thorough)
    weights = case.weights(case.draw(torch.Generator().manual_seed(1), SAMPLES))
    grid = tensor(center + radius * np.sign(rng.normal(size=(4, n))) * np.arange(4)[:, None].clip(max=1))
    values = node_values(network, grid, weights)
    assert not surprising(left_claims(case, values).sum().reshape(1), SAMPLES, tensor([budget])).any()
    y = rows_of(network, values, rows)
    nothing = torch.full((1, len(rows)), -torch.inf, dtype=torch.float64)
    off = (y**2).mean((0, 1)).sqrt() * budget**0.5
    mean = case.tail.expectation(tensor(budget).reshape(1, 1, 1), nothing, off.reshape(1, 1, -1))
    assert (mean[0, 0] <= y.mean(0).amin(0) + 6 * y.std(0).amax(0) / SAMPLES**0.5).all()
    ranges = case.run.ranges.values
    for position, node in enumerate(network.nodes):
        if isinstance(node, Sum) and name == "layer norm behind":
            first, second = (ranges[place] for place in node.inputs)
            apart = (first.upper - first.lower) + (second.upper - second.lower)
            assert (ranges[position].upper - ranges[position].lower < 0.9 * apart).all()


@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_what_is_claimed_of_a_sum_is_paid_for(monkeypatch: pytest.MonkeyPatch, radius: float) -> None:
    """z - its mean behind a dense layer: each event has its share of the budget; bounds are near what corners do."""
    model = random(BLOCKS["layer norm behind"](), 0.05, "first")
    network, posterior, count, center = model.network, model.posterior, 40_000, np.array([0.5, -0.3, 0.2, 0.7])
    assert isinstance(posterior, GaussianDiagonal)
    deviations = {key: np.sqrt(variance) for key, variance in posterior.variances.items()}
    case = record(
        monkeypatch, network, deviations, (center - radius, center + radius), tensor([[1.0, -1.0]]), 0.9, True
    )
    weights = case.weights(case.draw(torch.Generator().manual_seed(1), count))
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=4))) if radius else np.zeros((1, 4))
    values = node_values(network, tensor(np.concatenate([center[None], center + radius * signs])), weights)
    (place,) = (i for i, node in enumerate(network.nodes) if isinstance(node, Sum))
    share = tensor(0.9 / TailEngine(network).events)
    z, value = case.run.ranges.values[place], values[place]
    assert case.run.variation is not None
    near, varied = case.run.variation.known[place][0, 0], (value - value[:, :1]).abs().amax(1)
    for left in ((value.amin(1) < z.lower[0]), (value.amax(1) > z.upper[0]), (varied > near + 1e-12)):
        assert not surprising(left.sum(0).flatten(), count, share).any()
    if radius:
        assert (varied.quantile(0.999, 0) > 0.85 * near).all()
