"""Units of a row, and of the numbers inside a network, do not change what is known of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from bnn_vnnlib.methods.safety.large_variance import moments, one_layer, two_layers
from bnn_vnnlib.methods.safety.large_variance.moments import RowsAtPoints
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.system.clock import Deadline
from support.large_variance import dense, in_numpy

UNITS = (1.0, 1000.0, 0.001, 1e9)
SHAPES = [((2, 5, 2), 0.5, (0.0, 0.005)), ((2, 8, 8, 2), 0.1, (0.0, 0.005)), ((2, 5, 5, 5, 2), 0.03, (0.0,))]
"""Widths, deviations and radii; boxes are served for one and two hidden layers."""

CASES = [(widths, spread, eps) for widths, spread, radii in SHAPES for eps in radii]


def stack(seed: int, widths: tuple[int, ...], spread: float) -> tuple[DenseChain, np.ndarray]:
    rng, layers = np.random.default_rng(seed), []
    for inputs, outputs in itertools.pairwise(widths):
        layer, size = dense(rng, outputs, inputs, spread=spread), 1 / np.sqrt(inputs)
        layers.append(DenseLayer.exact(layer.mean * size, layer.bias, layer.variance * size**2, layer.bias_variance))
    return DenseChain.relu(*layers), rng.normal(size=2)


def central(net: DenseChain, x: np.ndarray) -> np.ndarray:
    """Outputs of the mean network."""
    for place, layer in enumerate(net.layers):
        x = layer.mean.numpy() @ (np.maximum(x, 0.0) if place else x) + layer.bias.numpy()
    return x


def failures(net: DenseChain, x: np.ndarray, eps: float, rows: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """(A,): of rows (A, 2) at one point or over one box."""
    if len(net.layers) > 2 and eps == 0:
        point, height = torch.tensor(x)[None], torch.tensor(rows)[None]
        asked = RowsAtPoints(point, point, height, torch.tensor(bounds)[None])
        return np.min(
            [delta + values[0].numpy() for delta, values in moments.failures_by_budget(net, asked, Deadline())], 0
        )
    question = in_numpy(RowsAtBoxes)(x[None] - eps, x[None] + eps, rows, bounds, np.zeros(len(rows), dtype=np.int64))
    if len(net.layers) == 2:
        return in_numpy(one_layer.failures)(net, question, Deadline())
    return in_numpy(two_layers.failures)(net, question, Deadline())


@pytest.mark.parametrize(("widths", "spread", "eps"), CASES)
@pytest.mark.parametrize("seed", range(2))
def test_rows_in_other_units(seed: int, widths: tuple[int, ...], spread: float, eps: float) -> None:
    """Also rows of more than 24 bits, such as those behind a scale of the outputs."""
    net, x = stack(seed, widths, spread)
    y = central(net, x)
    for row in (np.array([1.0, -1.0]), np.array([0.1, 1 / 3])):
        bound = float(row @ y) - 3 * spread * float(np.abs(row).sum())
        each = np.array(UNITS)
        found = failures(net, x, eps, each[:, None] * row, each * bound)
        assert 1e-9 < found[0] < 0.9
        assert found == pytest.approx(np.full(len(each), found[0]), rel=1e-5)


@pytest.mark.parametrize("eps", [0.0, 0.02])
def test_neurons_in_other_units(eps: float) -> None:
    """One hidden layer: V_j and b_j times c_j > 0, D_j over c_j. Over a box the common kappa is chosen otherwise."""
    net, x = stack(0, (2, 5, 2), 0.5)
    row = np.array([1.0, -1.0])
    bound = np.array([float(row @ central(net, x)) - 3.0])
    c = torch.tensor([1e-6, 1e-3, 1.0, 1e3, 1e6], dtype=torch.float64)
    first, last = net.layers
    other = DenseChain.relu(
        DenseLayer.exact(
            first.mean * c[:, None], first.bias * c, first.variance * c[:, None] ** 2, first.bias_variance * c**2
        ),
        DenseLayer.exact(last.mean / c, last.bias, last.variance / c**2, last.bias_variance),
    )  # fmt: skip
    plain, scaled = (float(failures(some, x, eps, row[None], bound)[0]) for some in (net, other))
    assert 1e-9 < plain < 0.9
    assert scaled == pytest.approx(plain, rel=0.05 if eps else 1e-5)
