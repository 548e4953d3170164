"""Tail bounds of weights that a node uses several times: one variable, however many entries it has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from bnn_vnnlib.bounds.tails.tail import Martingale
from bnn_vnnlib.gaussian.normal import quantile
from bnn_vnnlib.network.nodes import Param
from support.networks import Builder
from support.tails import failures, record, tensor

FOLD = np.sqrt(2 / np.pi)


def copied(builder: Builder, shape: tuple[int, ...], factors: Sequence[float] = (1.0, 1.0)) -> Param:
    """A parameter all entries of which are one number of mean 0, times factors."""
    base = builder.param(np.zeros(1))
    return Param(base.source, np.zeros(shape, np.int64), np.asarray(factors).reshape(shape))


def test_copies_add_up_in_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """y0 + y1 = 2 w x over |x| <= 3: the mean of the least value is -sqrt(2 / pi) 6 sigma."""
    builder = Builder()
    builder.linear(builder.input(1, 1), copied(builder, (2, 1)))
    network, sd = builder.network(), {"w0": np.array([0.5])}
    case = record(monkeypatch, network, sd, ([-3.0], [3.0]), tensor([[1.0, 1.0]]), 1e-6)
    for bound in case.tail.bounds:
        assert bound.mean.item() <= -FOLD * 3.0
    assert case.tail.split is not None
    assert case.tail.split.mean.item() <= -FOLD * 3.0
    assert case.tail.split.folded.item() >= 3.0


def test_copies_that_cancel_have_no_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """w - w = 0: no bound may rest on noise that is not there."""
    builder = Builder()
    z = builder.linear(builder.input(1, 2), copied(builder, (1, 2), (1.0, -1.0)))
    network, sd = builder.network(builder.activation(z, "relu")), {"w0": np.array([1.0])}
    at = [1.0, 1.0]
    for thorough in (False, True):
        found = failures(network, sd, (at, at), [[1.0], [1.0]], [1e-3, 0.1], (1e-6,), thorough=thorough)
        assert (found == 1).all()
    case = record(monkeypatch, network, sd, (at, at), tensor([[1.0]]), 1e-6, True)
    assert case.run.variation is not None
    least, _ = case.run.variation.variances[z]
    assert least.item() == 0
    builder = Builder()
    builder.linear(builder.input(1, 2), copied(builder, (1, 2), (1.0, -1.0)))
    assert failures(builder.network(), sd, (at, at), [[1.0]], [0.1]).item() == 1


def test_copies_add_up_in_variations_and_variances(monkeypatch: pytest.MonkeyPatch) -> None:
    """z = w (x0 + x1): it varies by |w| (r0 + r1), and its variance is sigma^2 (x0 + x1)^2."""
    builder, reach, budget = Builder(), np.array([0.5, 0.5]), 0.3
    z = builder.linear(builder.input(1, 2), copied(builder, (1, 2)))
    builder.linear(builder.activation(z, "relu"), np.ones((1, 1)))
    network, sd, at = builder.network(), {"w0": np.array([2.0])}, np.array([3.0, 3.0])
    case = record(monkeypatch, network, sd, (at - reach, at + reach), tensor([[1.0]]), budget, True)
    assert case.run.variation is not None
    share = quantile(tensor(budget / 5)).item()
    assert case.run.variation.known[z].item() >= 2.0 * (FOLD + share) * (1 - 1e-9)
    assert case.run.variation.variances[z][1].item() >= 4.0 * 6.0**2


def test_copies_add_up_in_swings(monkeypatch: pytest.MonkeyPatch) -> None:
    """v (h0 + h1) with h = relu of independent noise: its length is sigma |h0 + h1|."""
    builder = Builder()
    x = builder.activation(builder.linear(builder.input(1, 1), np.full((2, 1), 0.3)), "relu")
    builder.linear(x, copied(builder, (1, 2)))
    network, sd = builder.network(), {"w0": np.full((2, 1), 0.5), "w1": np.array([0.8])}
    case = record(monkeypatch, network, sd, ([1.0], [1.0]), tensor([[1.0]]), 1e-6, True)
    h = np.maximum(0.3 + 0.5 * stats.norm.ppf((np.arange(20_001) + 0.5) / 20_001), 0)
    square = 2 * (h**2).mean() + 2 * h.mean() ** 2
    checked = 0
    for bound in case.tail.bounds:
        for swing in bound.swings if isinstance(bound, Martingale) else ():
            if swing is not None:
                assert swing.root.item() >= 0.8 * np.sqrt(square) * (1 - 1e-6)
                assert swing.slope.item() >= 0.8 * np.sqrt(2) * 0.5 * (1 - 1e-9)
                checked += 1
    assert checked


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_smoothed_lines_of_one_weight_at_two_places(monkeypatch: pytest.MonkeyPatch, sign: float) -> None:
    """+-(relu(w) + relu(w)) may follow 2 w."""
    builder = Builder()
    z = builder.activation(builder.linear(builder.input(1, 2, 1), np.array([[0.1]])), "relu")
    network = builder.network(builder.linear(builder.reshape(z, 1, 2), np.ones((1, 2))))
    case = record(monkeypatch, network, {"w0": np.array([[0.7]])}, ([1.0] * 2,) * 2, tensor([[sign]]), 1e-6, True)
    (smooth,) = case.run.smooth.values()
    assert ((smooth.below if sign > 0 else smooth.above) > 0).all()
    bound = case.tail.bounds[-1]
    assert isinstance(bound, Martingale)
    assert bound.spread().item() >= 1.4 * (1 - 1e-9)


@pytest.mark.parametrize("places", [1, 2])
def test_the_least_variance_is_that_of_the_smallest_outputs(monkeypatch: pytest.MonkeyPatch, places: int) -> None:
    """S = v (h_1 + ..), h anywhere in its range above 0: the lower bound of its variance is at the lower ends."""
    builder = Builder()
    z = builder.activation(builder.linear(builder.input(1, places, 1), np.array([[5.0]])), "relu")
    builder.linear(z, np.zeros((1, 1)))
    sd = {"w0": np.array([[0.5]]), "w1": np.array([[0.8]])}
    case = record(monkeypatch, builder.network(), sd, ([1.0] * places,) * 2, tensor(np.ones((1, places))), 1e-3)
    lowest = case.run.ranges.values[z].lower.sum().item()
    assert lowest > 1
    assert case.tail.split is not None
    assert 0 < case.tail.split.least.item() <= (0.8 * lowest) ** 2 * (1 + 1e-9)


@pytest.mark.parametrize("shared", ["weights", "weight and bias"])
def test_sources_that_enter_twice_have_bound_1_only(monkeypatch: pytest.MonkeyPatch, shared: str) -> None:
    """w relu(w x): the noise of the second layer is not independent of what it meets."""
    builder = Builder()
    w = builder.param(np.ones((1, 1)))
    x = builder.activation(builder.linear(builder.input(1, 1), w), "relu")
    builder.linear(x, w) if shared == "weights" else builder.shift(x, w)
    case = record(monkeypatch, builder.network(), {"w0": np.ones((1, 1))}, ([1.0], [1.0]), tensor([[1.0]]), 1e-3, True)
    assert case.run.variation is None
    assert case.tail.split is None
    assert not any(isinstance(bound, Martingale) for bound in case.tail.bounds)
