"""Two hidden layers over a box where the laws are Gaussian: bounds that fail with probability 1e-12, in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special

from bnn_vnnlib.methods.safety.large_variance import first_layer as near
from bnn_vnnlib.methods.safety.large_variance import two_layers, variation
from bnn_vnnlib.methods.safety.large_variance.first_layer import FirstLayer, RowWeights
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
from bnn_vnnlib.methods.safety.large_variance.two_layers import BUDGETS
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.system.clock import Deadline
from support.large_variance import dense, in_numpy

first_layer, rows_of, cost, slopes = map(in_numpy, (near.first_layer, RowWeights, near.cost, near.slope_quantiles))
inputs_of, loss, second = map(in_numpy, (variation._inputs, variation.loss, variation.second))

SHARE = 1e-12
QUANTILE, CHERNOFF = -special.ndtri(SHARE), math.sqrt(-2 * math.log(SHARE))
"""Of a standard Gaussian: what is exceeded with that probability, and what Chernoff's bound makes of it."""


def active() -> FirstLayer:
    """One neuron that is surely active, z ~ N(500, 1.25), V ~ N(1, .25)."""
    parts = (((1.0,),), (499.0,), ((0.25,),), (1.0,))
    first, one = DenseLayer.exact(*(torch.tensor(part, dtype=torch.float64) for part in parts)), np.ones((1, 1))
    return first_layer(first, one, 0.9 * one, 1.1 * one)


def test_gradients() -> None:
    """U = w V."""
    rows = rows_of(np.full((1, 1, 1), 3.0), np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
    above, below = slopes(active(), rows, np.zeros((1, 1)), math.log(SHARE))
    for bound, mean in ((above, 3.0), (below, -3.0)):
        assert mean + 1.5 * QUANTILE <= bound[0, 0, 0] <= mean + 1.5 * CHERNOFF * 1.001


def test_inputs_of_the_second_layer() -> None:
    """zeta = W z + c with W known."""
    parts = (((2.0,),), (0.0,), ((0.0,),), (4.0,))
    known = DenseLayer.exact(*(torch.tensor(part, dtype=torch.float64) for part in parts))
    low, high = inputs_of(active(), known, math.log(SHARE))
    dev = math.sqrt(4 * 1.25 + 4)
    assert 1000 + dev * QUANTILE <= high[0, 0] <= 1000 + dev * CHERNOFF * 1.001
    assert 1000 - dev * CHERNOFF * 1.001 <= low[0, 0] <= 1000 - dev * QUANTILE


def test_costs() -> None:
    """D^+ p for D ~ N(2, 1), whose upper tail is Gaussian."""
    one = np.ones((1, 1, 1))
    parts = one[..., None], 0.5 * one[..., None], 0 * one[..., None]
    found = cost(*parts, rows_of(2 * one, one, 0 * one), math.log(SHARE))
    assert 1 + 0.5 * QUANTILE <= found[0, 0] <= 1.1 * (1 + 0.5 * CHERNOFF)


def test_reach() -> None:
    """sup over the box of V delta = .1 V where V is surely positive."""
    up, down = active().reach(1.5)
    assert up[0, 0] >= 0.1 * (1 + 1.5 * 0.5)
    assert down[0, 0] >= 0.1 * (-1 + 1.5 * 0.5)
    parts = (((10.0,),), (0.0,), ((0.25,),), (1.0,))
    layer = first_layer(
        DenseLayer.exact(*(torch.tensor(part, dtype=torch.float64) for part in parts)),
        np.ones((1, 1)), np.full((1, 1), 0.9), np.full((1, 1), 1.1),
    )  # fmt: skip
    up, _ = layer.reach(1.5)
    exact = 0.1 * (10 + 1.5 * 0.5)
    assert exact <= up[0, 0] <= exact * 1.001


def test_what_the_events_spend_is_in_every_bound() -> None:
    """A row that is nearly sure, over a box: the smaller budget is all that is left."""
    rng = np.random.default_rng(0)
    net = DenseChain.relu(*(dense(rng, out, into, spread=0.05) for into, out in ((2, 4), (4, 4), (4, 2))))
    one = np.ones((1, 2))
    question = in_numpy(RowsAtBoxes)(
        one, 1.01 * one, np.array([[1.0, -1.0]]), np.array([-1e4]), np.zeros(1, dtype=np.int64)
    )
    small = BUDGETS[1]
    spent = small.structure + small.ranges + small.shares[0]
    assert spent <= in_numpy(two_layers.failures)(net, question, Deadline())[0] < 1.2 * spent


@pytest.mark.parametrize(("bias", "moved"), [(49.0, 0.1), (-1.05, 0.05)])
def test_noise_of_the_last_layer(bias: float, moved: float) -> None:
    """One neuron a layer, D ~ N(0, 1), all else nearly known: the row changes by |D| times what the neurons move by,
    0.1 where the first one is surely active at x*, and 0.05 where only its kink lies in the box.
    """
    one, small = np.ones((1, 1)), 1e-8
    first, middle = (
        DenseLayer.exact(
            *(torch.tensor(part, dtype=torch.float64) for part in (((1.0,),), (shift,), ((small,),), (1e-6,)))
        )
        for shift in (bias, 50.0)
    )
    layer = first_layer(first, one, 0.9 * one, 1.1 * one)
    for share in (0.03, SHARE):
        at = second(layer, middle, one, share)
        lost = loss(layer, at, in_numpy(Weights)(0 * one, one, np.zeros(1), np.zeros(1)), share)[0]
        assert 0.98 * moved * -special.ndtri(share) <= lost < np.inf
