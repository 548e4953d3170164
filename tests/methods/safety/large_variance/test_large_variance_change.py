"""What the second layer's inputs move by over a box, where weights are almost known; and what events cost, counted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats

from bnn_vnnlib.methods.safety.large_variance import first_layer as near
from bnn_vnnlib.methods.safety.large_variance import output_layer, variation
from bnn_vnnlib.methods.safety.large_variance.first_layer import FirstLayer
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from support.large_variance import dense, in_numpy, least_margins, least_margins_deep

ROW = np.array([1.0, -1.0])

first_layer, last_weights = map(in_numpy, (near.first_layer, output_layer.last_weights))
loss, second, inputs_of = map(in_numpy, (variation.loss, variation.second, variation._inputs))


def known(seed: int, widths: tuple[int, ...] = (2, 4, 3, 2)) -> tuple[DenseChain, np.ndarray]:
    rng = np.random.default_rng(seed)
    return DenseChain.relu(*(dense(rng, o, i, spread=1e-9) for i, o in itertools.pairwise(widths))), rng.normal(size=2)


def at_corner(net: DenseChain, x: np.ndarray, eps: float, side: int) -> FirstLayer:
    """x* at one of four corners of the box, or in its middle, so that either end of delta counts."""
    places = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1], [0, 0]])
    return first_layer(net.layers[0], (x + eps * places[side])[None], x[None] - eps, x[None] + eps)


@pytest.mark.parametrize("side", range(5))
@pytest.mark.parametrize("seed", range(6))
def test_known_weights_move_within_their_ranges(seed: int, side: int) -> None:
    """Exact infima and suprema of the second layer's inputs; gradients flip, neurons wake up or die in such boxes."""
    net, x = known(seed)
    eps = 0.6
    layer = at_corner(net, x, eps, side)
    at = second(layer, net.layers[1], np.random.default_rng(seed).normal(size=(1, 4)), 1e-3)
    shallow = DenseChain.relu(net.layers[0], net.layers[1])
    for k, sign in itertools.product(range(3), (1.0, -1.0)):
        row = sign * np.eye(3)[k]
        there = least_margins(shallow, row, 0.0, layer.point[0], layer.point[0], 3, 1)
        least = least_margins(shallow, row, 0.0, x - eps, x + eps, 3, 1)
        moved = (at.fall if sign > 0 else at.rise)[0, k]
        assert (there - least <= moved + 1e-6).all()
        assert (there - least >= 0.0).all()


@pytest.mark.parametrize("side", range(5))
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_known_weights_lose_no_more(seed: int, side: int) -> None:
    net, x = known(seed)
    eps = 0.4
    layer = at_corner(net, x, eps, side)
    at = second(layer, net.layers[1], np.ones((1, 4)), 1e-3)
    for row in (ROW, -ROW):
        weights = last_weights(net.layers[2], row[None], np.zeros(1))[0]
        there = least_margins_deep(net, row, 0.0, layer.point[0], layer.point[0], 3, 1)
        least = least_margins_deep(net, row, 0.0, x - eps, x + eps, 3, 1)
        assert (there - least <= float(loss(layer, at, weights, 1e-3)[0]) + 1e-6).all()


def test_noise_of_a_bias_widens_the_inputs() -> None:
    """Hardly any other noise in front of the second layer."""
    net, x = known(0)
    layer, part = at_corner(net, x, 0.1, 4), net.layers[1]
    noisy = replace(part, bias_variance=torch.ones(3, dtype=torch.float64))
    low, high = inputs_of(layer, noisy, np.log(0.05))
    assert (special.ndtr(-(high - low) / 2) <= 0.05).all()
    assert (special.ndtr(-(high - low) / 2) > 0.002).all()


@pytest.mark.parametrize("moved", [0.0, 0.7])
def test_noise_of_the_last_layer_turns_gradients(moved: float) -> None:
    """One input, one neuron each, all but D known: the row loses |D| times what the second layer's input falls by."""
    one = torch.ones((1, 1), dtype=torch.float64)
    hidden = DenseLayer.exact(
        one, torch.full((1,), 5.0, dtype=torch.float64), 1e-20 * one, torch.full((1,), 1e-20).double()
    )
    last = DenseLayer.exact(moved * one, torch.zeros(1).double(), one, torch.zeros(1).double())
    layer = first_layer(hidden, np.zeros((1, 1)), np.full((1, 1), -0.5), np.full((1, 1), 0.5))
    at = second(layer, hidden, np.ones((1, 1)), 0.01)
    weights = last_weights(last, np.ones((1, 1)), np.zeros(1))[0]
    share = 0.3
    lost = float(loss(layer, at, weights, share)[0])
    samples = np.abs(moved + np.random.default_rng(0).standard_normal(100_000)) * 0.5
    assert stats.binom.sf(int((samples > lost).sum()) - 1, len(samples), share + 0.01) > 1e-9


def test_every_event_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is spent on single neurons and on the row: events times their probabilities."""
    net, x = known(1)
    layer, shares = at_corner(net, x, 0.1, 4), []

    def watched(name: str) -> None:
        kept = getattr(variation, name)

        def counted(*parts: Any) -> Any:
            shares.append(float(np.exp(parts[-1])))
            return kept(*parts)

        monkeypatch.setattr(variation, name, counted)

    for name in ("slope_quantiles", "kinks", "cost", "_inputs"):
        watched(name)
    inputs, width, count, structure, share = 2, 4, 3, 0.02, 0.03
    at = second(layer, net.layers[1], np.ones((1, width)), structure)
    assert len(shares) == 4  # slopes, kinks twice, inputs
    each = max(*shares, float(special.ndtr(-at.y)))
    ends, gradients, others, noises = 2 * width, 2 * inputs * count, 4 * count, 3 * width
    assert each * (ends + gradients + others + noises) <= structure * (1 + 1e-9)
    shares.clear()
    loss(layer, at, last_weights(net.layers[2], ROW[None], np.zeros(1))[0], share)
    assert len(shares) == 3  # what unsure neurons cost, slopes, kinks
    assert max(shares) * (2 * inputs + 2 * inputs + 2) <= share * (1 + 1e-9)
