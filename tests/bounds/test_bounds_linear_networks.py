"""Networks without activations: linear in each variable, so the exact optimum is at a corner of the box."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
import torch

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from bnn_vnnlib.network.evaluate import evaluate
from support import exact
from support.networks import Builder, random_boxes, random_inputs, random_rows

METHODS: tuple[Literal["interval", "linear"], ...] = ("interval", "linear")


def affine(shape: str) -> Network:
    """One affine layer in different clothes, few enough variables to enumerate all corners."""
    b = Builder(3)
    if shape == "dense":
        b.shift(b.linear(b.input(1, 2), (2, 2)), (2,))
    elif shape == "left":
        b.shift(b.linear(b.input(2, 1), (2, 2), axis=0), ())
    elif shape == "scale":
        b.shift(b.scale(b.input(1, 3), (3,)), (3,))
    elif shape == "conv":
        b.shift(b.conv(b.input(1, 1, 2, 1), (2, 1, 2, 1)), (2, 1, 1))
    elif shape == "two":
        b.linear(b.linear(b.input(1, 2), (2, 2)), (1, 2))
    elif shape == "three":
        b.linear(b.shift(b.linear(b.linear(b.input(1, 1), (2, 1)), (1, 2)), (1,)), (1, 1))
    elif shape == "skip":
        x = b.input(1, 2)
        b.linear(b.sum(x, b.scale(x, (2,))), (1, 2))
    return b.network()


def optimum(
    network: Network, weights: WeightBoxes, k: int, item: int, sides: tuple[torch.Tensor, torch.Tensor],
    C: torch.Tensor, G: torch.Tensor,
) -> Fraction:  # fmt: skip
    """Exact minimum of c y + g x: all corners in float64, the lowest one again in fractions."""
    names = list(weights.centers)
    sizes = [weights.spreads[name].numel() for name in names]
    n = len(sides[0])
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=n + sum(sizes))), dtype=torch.float64)
    x = torch.where(signs[:, :n] < 0, *sides)
    parts = dict(zip(names, signs[:, n:].split(sizes, 1), strict=True))
    scale = weights.scale[k, item]
    params = {
        name: weights.centers[name][k] + (t * scale).unflatten(1, weights.spreads[name].shape) * weights.spreads[name]
        if weights.spreads[name].dim()
        else weights.centers[name][k] + t[:, 0] * scale * weights.spreads[name]
        for name, t in parts.items()
    }
    values = evaluate(network, x[:, None], params)[:, 0] @ C + x @ G
    best = int(values.argmin())
    sources = {
        name: exact.fractions(weights.centers[name][k])
        + exact.fractions(parts[name][best].reshape(weights.spreads[name].shape))
        * Fraction(scale.item())
        * exact.fractions(weights.spreads[name])
        for name in names
    }
    point = exact.fractions(x[best])
    return exact.fractions(C) @ exact.evaluate(network, point, sources) + exact.fractions(G) @ point


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["dense", "left", "scale", "conv", "two", "three", "skip"])
def test_corners(shape: str, seed: int) -> None:
    """Sound everywhere; with one layer the linear method finds the optimum, because the chord is exact there."""
    network = affine(shape)
    rng = np.random.default_rng(seed)
    weights = random_boxes(network, rng, 2, 2, size=[0.01, 0.3, 3.0, 1.0][seed])
    lower, upper = random_inputs(network, rng, 2, size=[0.1, 3.0, 1.0, 0.0][seed])
    C, G = random_rows(network, rng, 2, 2)
    found = {method: Engine(network, method).rows(weights, lower, upper, C, G).lower for method in METHODS}
    for k, item, row in itertools.product(range(2), repeat=3):
        truth = optimum(network, weights, k, item, (lower[item], upper[item]), C[item, row], G[item, row])
        low = {method: found[method][k, item, row].item() for method in METHODS}
        assert all(Fraction(bound) <= truth for bound in low.values())
        if shape in ("dense", "left", "scale", "conv"):
            assert float(truth - Fraction(low["linear"])) < 1e-12 * (1 + abs(float(truth)))


def test_the_tie_of_a_bias_is_used() -> None:
    """A bias that is added at several places is one variable: in y0 - y1 it cancels, whatever its radius."""
    b = Builder()
    b.shift(b.input(1, 2), np.array(0.5))
    network = b.network()
    weights = WeightBoxes(
        {"w0": torch.tensor([0.5], dtype=torch.float64)},
        {"w0": torch.tensor(10.0, dtype=torch.float64)},
        torch.ones(1, 1, dtype=torch.float64),
    )
    x = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    low = Engine(network).rows(weights, x, x, torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)).lower.item()
    assert 2 - 1e-12 < low <= 2


def test_inputs_in_rows_are_minimised_together() -> None:
    """y - x with y = x is 0, not the difference of two ranges."""
    b = Builder()
    b.scale(b.input(1, 1), np.array([1.0]))
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    weights = WeightBoxes({"w0": one[0]}, {}, one[0])
    for method in METHODS:
        found = Engine(b.network(), method).rows(weights, -10 * one[0], 10 * one[0], one, -one)
        assert -1e-12 < found.lower.item() <= 0
