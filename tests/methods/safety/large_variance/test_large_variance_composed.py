"""Two hidden layers as one: ranges over boxes, lines above and below the second layer, terms with two sides."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from bnn_vnnlib.methods.safety.large_variance import lines, one_layer, output_layer, two_layers
from bnn_vnnlib.methods.safety.large_variance.lines import Neurons
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.methods.safety.large_variance.output_layer import Sides, Weights
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.system.clock import Deadline
from support.large_variance import dense, in_numpy, least_margins, least_margins_deep, network

ROW = np.array([1.0, -1.0])

neurons, bounded, lowest = map(in_numpy, (lines.neurons, one_layer.bounded, one_layer.lowest))
last_weights, weights_of, sides_of = map(in_numpy, (output_layer.last_weights, Weights, Sides))
failures, ranges, levels_of, composed_rows = map(
    in_numpy, (two_layers.composed_failures, two_layers.input_ranges, two_layers._levels, two_layers.composed)
)


def two_sides(delta: np.ndarray, sides: Sides) -> np.ndarray:
    """(S,): the sum of the terms of the first row, for samples (S, K)."""
    return np.asarray(np.where(delta > 0, sides.low[0] * delta, sides.high[0] * delta).sum(1))


def some_sides(scale: float = 1.0) -> Sides:
    return sides_of(*(scale * np.array([part]) for part in ([0.1, 0.0, 0.5], [0.9, 0.4, 0.5], [1.0, 2.0, 0.3])))


def test_moments_of_two_sides() -> None:
    sides = some_sides()
    total = two_sides(np.random.default_rng(0).standard_normal((400_000, 3)) * sides.dev, sides)
    mean, variance = sides.moments()
    assert abs(total.mean() - mean[0]) < 0.01
    assert abs(total.var() - variance[0]) < 0.02
    for w in (0.3, 1.0):
        assert abs(np.exp(1j * w * total).mean() - sides.transform(np.array([[w]]))[0, 0]) < 0.01
        assert abs(np.log(np.exp(-w * total).mean()) - sides.log_moment(np.array([w]))[0]) < 0.05
    assert sides.rows(np.array([0, 0])).low.shape == (2, 3)


@given(st.floats(-0.29, 0.29), st.floats(-3.0, 3.0))
def test_scaled_sides_are_below(t: float, delta: float) -> None:
    """Where 1 / (1 + t) lies within share of 1."""
    share = abs(t) / (1 - abs(t))
    sides = sides_of(*(np.array([[part]]) for part in (0.2, 0.7, 1.0)))
    below = two_sides(np.array([[delta]]), sides.scaled(np.array([share])))
    assert below[0] <= two_sides(np.array([[delta]]), sides)[0] / (1 + t) + 1e-15


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_bounds_with_two_sides(scale: float) -> None:
    """At a point, against samples from both sides."""
    net, x, rng = network(3, 2, 12, 2, 0.7), np.array([0.4, -0.3]), np.random.default_rng(1)
    layer, sides = neurons(net.first, x[None], x[None]), some_sides(scale)
    count = 400_000
    h = np.maximum(layer.m + layer.s * rng.standard_normal((count, 12)), 0.0)
    weights = last_weights(net.last, ROW[None], np.zeros(1))[0]
    total = (h * (weights.mean + weights.dev * rng.standard_normal((count, 12)))).sum(1)
    total = total + two_sides(sides.dev * rng.standard_normal((count, 3)), sides)
    total = total + weights.bias_dev * rng.standard_normal(count)
    shift = -float(np.quantile(total, 0.05))
    moved = weights_of(weights.mean, weights.dev, np.full(1, shift), weights.bias_dev)
    hits = int((total + shift <= 0).sum())
    found = float(bounded(layer, moved, sides)[0])
    assert stats.binom.sf(hits - 1, count, found) > 1e-9
    assert found < 0.053


@pytest.mark.parametrize(
    ("seed", "hidden", "eps", "level"), [(0, 6, 0.05, 0.02), (1, 10, 0.02, 0.1), (2, 8, 0.0, 0.01), (3, 4, 0.1, 0.05)]
)
def test_numbers_that_rows_seldom_fall_below(seed: int, hidden: int, eps: float, level: float) -> None:
    """Exact infima of sampled networks; at a point about as often as allowed."""
    net, x = network(seed, 2, hidden, 2, 0.4), np.random.default_rng(100 + seed).normal(size=2)
    layer = neurons(net.first, x[None] - eps, x[None] + eps)
    weights = last_weights(net.last, ROW[None], np.zeros(1))[0]
    low = float(lowest(layer, weights, np.array([level]))[0])
    count = 20_000
    least = least_margins(net, ROW, 0.0, x - eps, x + eps, count, 3)
    hits = int((least < low).sum())
    assert np.isfinite(low)
    assert stats.binom.sf(hits - 1, count, level) > 1e-9
    assert low > np.quantile(least, level) - (4 * least.std() if eps else 1.5 * least.std())


def test_rows_out_of_reach_have_no_number() -> None:
    """Of two rows the one that overflows; the other one is served as if it were alone."""
    net, x = network(0, 2, 6, 2, 0.4), np.array([0.5, 0.5])
    layer = neurons(net.first, np.tile(x, (2, 1)) - 0.01, np.tile(x, (2, 1)) + 0.01)
    weights = last_weights(net.last, np.stack([ROW, ROW]), np.zeros(2))[0]
    huge = in_numpy(replace)(
        weights, mean=weights.mean * np.array([[1.0], [1e200]]), dev=weights.dev * np.array([[1.0], [1e200]])
    )
    with np.errstate(all="ignore"):
        low = lowest(layer, huge, np.full(2, 0.01))
    assert low[0] == lowest(layer, weights, np.full(2, 0.01))[0]
    assert low[1] == -np.inf


@settings(max_examples=200)
@given(
    mean=st.floats(-2, 2), dev=st.floats(0.01, 1), low=st.floats(-2, 2), width=st.floats(0, 2), share=st.floats(0, 1),
    part=st.floats(0, 1), delta=st.floats(-3, 3),
)  # fmt: skip
@example(mean=1.0, dev=0.1, low=-1.0, width=2.0, share=0.5, part=0.5, delta=0.0)  # the kink, where relu and line touch
def test_lines_on_the_second_layer(
    mean: float, dev: float, low: float, width: float, share: float, part: float, delta: float
) -> None:
    """D relu(z) is at least what the composed row says, for every z of the range and every D."""
    high = low + width
    second = DenseLayer.exact(
        *(torch.tensor(value, dtype=torch.float64) for value in ([[1.0]], [0.0], [[1e-6]], [0.0]))
    )
    weights = weights_of(*(np.array(value) for value in ([[mean]], [[dev]], [0.3], [0.0])))
    ends = (np.array([[value]]) for value in (low, high, share))
    rows, sides, _, _ = composed_rows(second, weights, *ends)
    z = min(low + part * width, high)
    below = rows.mean[0, 0] * z + rows.bias[0] + two_sides(np.array([[delta * dev]]), sides)[0]
    assert below <= 0.3 + (mean + delta * dev) * max(z, 0.0) + 1e-12
    assert rows.bias_dev[0] == 0.0


def test_noise_of_both_biases() -> None:
    """B's own, and that of the second layer's bias times the row."""
    second = DenseLayer.exact(
        *(torch.tensor(value, dtype=torch.float64) for value in ([[1.0]], [0.0], [[1e-6]], [0.04]))
    )
    weights = weights_of(*(np.array(value) for value in ([[2.0]], [[0.1]], [0.3], [0.3])))
    rows, *_ = composed_rows(second, weights, *(np.array([[value]]) for value in (1.0, 2.0, 0.5)))
    assert rows.bias_dev[0] == pytest.approx(0.5)  # .3 and 2 times .2


def small(seed: int, spread: float = 0.05) -> tuple[DenseChain, np.ndarray]:
    rng = np.random.default_rng(seed)
    layers = [dense(rng, out, into, spread=spread) for into, out in itertools.pairwise((2, 3, 3, 2))]
    return DenseChain.relu(*layers), rng.normal(size=2)


@pytest.mark.parametrize("seed", range(4))
def test_exact_infima_of_two_hidden_layers(seed: int) -> None:
    net, x = small(seed)
    eps, count = 0.02, 20_000
    least = least_margins_deep(net, ROW, 0.0, x - eps, x + eps, count, 9)
    for share in (0.02, 0.2, 0.6):
        bound = np.array([float(np.quantile(least, share))])
        weights = last_weights(net.layers[2], ROW[None], bound)[0]
        found = float(failures(net, x - eps, x + eps, weights, Deadline())[0])
        assert stats.binom.sf(int((least <= bound[0]).sum()) - 1, count, found) > 1e-9
        assert found >= two_layers.BUDGET


def test_what_ranges_spend_is_in_every_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else fails, what is left is their budget, which both ends of all neurons share."""
    net, x = small(0)
    spent: list[torch.Tensor] = []

    def exact(
        second: DenseLayer, layer: Neurons, levels: torch.Tensor, deadline: Deadline
    ) -> tuple[torch.Tensor, torch.Tensor]:
        spent.append(levels)
        return -torch.ones_like(levels), torch.ones_like(levels)

    monkeypatch.setattr(two_layers, "input_ranges", exact)
    monkeypatch.setattr(two_layers, "bounded", lambda layer, weights, more: torch.zeros_like(weights.bias))
    weights = last_weights(net.layers[2], np.stack([ROW, -ROW]), np.zeros(2))[0]
    found = failures(net, x - 0.02, x + 0.02, weights, Deadline())
    assert (found >= 2 * float(spent[0].sum())).all()
    assert spent[0].sum() > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_ranges_hold_as_often_as_they_say(seed: int) -> None:
    """At a level that samples can see, each end that is known: in so small a network some are not."""
    net, x = small(seed, 0.3)
    eps, level, count = 0.02, 0.05, 20_000
    layer = neurons(net.layers[0], x[None] - eps, x[None] + eps)
    low, high = ranges(net.layers[1], layer, np.full(3, level), Deadline())
    shallow = DenseChain.relu(net.layers[0], net.layers[1])
    for k, sign in itertools.product(range(3), (1.0, -1.0)):
        least = least_margins(shallow, sign * np.eye(3)[k], 0.0, x - eps, x + eps, count, 4 + k)
        hits = int((least < (low[k] if sign > 0 else -high[k])).sum())
        assert stats.binom.sf(hits - 1, count, level) > 1e-9
    assert np.isfinite(low).any()


def test_levels_add_up_to_the_budget() -> None:
    weights = weights_of(*(np.random.default_rng(0).normal(size=shape) ** 2 for shape in ((4, 7), (4, 7), 4, 4)))
    levels = levels_of(weights, np.linspace(-2, 2, 7), np.ones(7))
    assert 2 * levels.sum() <= two_layers.BUDGET
    assert levels.min() >= two_layers.BUDGET * two_layers.EVENLY / 14 * (1 - 1e-9)


def test_it_is_asked_where_rows_fail_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rows at a box the one that fails often, and its bound counts if it is smaller."""
    net, x = small(1)
    least = least_margins_deep(net, ROW, 0.0, x, x, 4000, 9)
    question = in_numpy(RowsAtBoxes)(
        x[None] - 1e-3, x[None] + 1e-3, np.stack([ROW, ROW]), np.quantile(least, [0.5, 0.0]) - np.array([0.0, 2.0]),
        np.zeros(2, dtype=np.int64),
    )  # fmt: skip
    asked = []

    def counted(*parts: Any) -> torch.Tensor:
        asked.append(len(parts[3].bias))
        return torch.tensor([0.25], dtype=torch.float64)

    monkeypatch.setattr(two_layers, "composed_failures", counted)
    found = in_numpy(two_layers.failures)(net, question, Deadline())
    assert asked == [1]
    assert found[0] == pytest.approx(0.25, abs=1e-9)
    assert found[1] < two_layers.HARD
