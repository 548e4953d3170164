"""Moments of deep relu networks against sampled weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bnn_vnnlib import Model
from bnn_vnnlib.methods.decision.regression.moments_deep import MomentsDeep, pieces
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.dense_chain import dense_chain
from bnn_vnnlib.system.clock import Deadline
from support.builders import outputs, random_model, regression_methods

CPU = torch.device("cpu")
BOTH = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)


def tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(value, np.float64))


def moments(net: Model) -> MomentsDeep:
    chain = dense_chain(net.network, net.posterior, CPU)
    assert chain is not None
    return MomentsDeep.over(chain, Deadline())


def sampled_layers(net: Model, x: np.ndarray, count: int) -> list[np.ndarray]:
    """z^1, z^2, ... (count, K) at one x for sampled weights, from plain numpy."""
    chain = dense_chain(net.network, net.posterior, CPU)
    assert chain is not None
    rng = np.random.default_rng(0)
    z, found = np.broadcast_to(x, (count, len(x))), []
    for layer in chain.layers[:-1]:
        mean, sd = layer.mean.numpy(), np.sqrt(layer.variance.numpy())
        w = mean + sd * rng.standard_normal((count, *mean.shape))
        b = layer.bias.numpy() + np.sqrt(layer.bias_variance.numpy()) * rng.standard_normal((count, len(mean)))
        z = np.maximum((w @ z[..., None])[..., 0] + b, 0)
        found.append(z)
    return found


@pytest.mark.parametrize("widths", [[2, 6, 5, 1], [1, 5, 6, 4, 1], [3, 4, 4, 4, 4, 1]])
@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_moments_of_every_layer(widths: list[int], spread: float) -> None:
    count = 20_000
    net = random_model(sum(widths), widths, spread=spread)
    x = np.random.default_rng(1).normal(size=widths[0])
    bounds = moments(net).hidden(tensor(x[None]), tensor(x[None]))
    for z, bound in zip(sampled_layers(net, x, count), bounds, strict=True):
        error = 6 * z.std(0) / count**0.5 + 1e-4  # rare events may not have been drawn
        assert (bound.low[0].numpy() <= z.mean(0) + error).all()
        assert (z.mean(0) - error <= bound.high[0].numpy()).all()
        square = z**2
        assert (square.mean(0) - 6 * square.std(0) / count**0.5 <= bound.square[0].numpy() + 1e-9).all()


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("widths", [[2, 6, 5, 1], [2, 5, 5, 5, 1]])
def test_sampled_outputs_lie_in_the_range(widths: list[int], spread: float) -> None:
    count = 10_000
    for seed in range(3):
        net = random_model(seed, widths, spread=spread)
        rng = np.random.default_rng(seed)
        lower = rng.normal(size=(1, 2))
        upper = lower + rng.uniform(0, 0.3, size=(1, 2))
        (method,) = [m for m in regression_methods(net, Deadline()) if isinstance(m, MomentsDeep)]
        found = method.lower(tensor(lower), tensor(upper), BOTH)[0].numpy()
        params = sample(net.network, net.posterior, count, torch.Generator().manual_seed(seed))
        x = lower + rng.uniform(size=(5, 2)) * (upper - lower)
        drawn = outputs(net, x, params)[..., 0]
        error = 6 * drawn.std(0) / count**0.5
        assert (found[0] <= drawn.mean(0) + error).all()
        assert (drawn.mean(0) - error <= -found[1]).all()


def test_a_narrow_posterior_is_almost_the_mean_network() -> None:
    net = random_model(3, [2, 6, 5, 1], spread=1e-6)
    x = np.array([[0.3, -0.2]])
    found = moments(net).lower(tensor(x), tensor(x), BOTH)[0].numpy()
    assert found == pytest.approx([outputs(net, x)[..., 0].item(), -outputs(net, x)[..., 0].item()], abs=1e-5)
    assert found[0] <= -found[1]


def test_rows_over_inputs_and_outputs_add_up() -> None:
    net = random_model(4, [2, 4, 4, 2], spread=0.1)
    x, c, g = np.array([[0.3, -0.2]]), np.array([[[1.0, -2.0]]]), np.array([[[3.0, 0.5]]])
    plain = moments(net).lower(tensor(x), tensor(x), tensor(c))
    mixed = moments(net).lower(tensor(x), tensor(x), tensor(c), tensor(g))
    assert mixed.item() == pytest.approx(plain.item() + 0.9 - 0.1, abs=1e-12)


def test_pieces_cover_the_box() -> None:
    low, high = pieces(tensor([[0.0, 0.0]]), tensor([[1.0, 4.0]]), tensor([1.0, 1.0]), 16)
    assert low.shape == (1, 16, 2)
    assert float((high - low).prod(-1).sum()) == pytest.approx(4.0)
    assert float((high - low)[0, 0, 1]) == pytest.approx(0.25) or float((high - low)[0, 0, 1]) == pytest.approx(0.5)
    x = np.random.default_rng(0).uniform(size=(200, 1, 2)) * [1.0, 4.0]
    inside = (low[0].numpy() <= x) & (x <= high[0].numpy())
    assert (inside.all(-1).sum(-1) >= 1).all()
