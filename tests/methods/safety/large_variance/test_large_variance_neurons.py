"""One hidden layer neuron by neuron: levels in closed form, lines for every x, and what is paid for in each bound."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import special

from bnn_vnnlib.gaussian.relu import mean_abs
from bnn_vnnlib.methods.safety.large_variance import lines, one_layer, output_layer
from bnn_vnnlib.methods.safety.large_variance.chaos import SPENT
from bnn_vnnlib.methods.safety.large_variance.lines import EXCESS_LEVELS, LEVEL_SHARES, PAST_LEVELS
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.system.clock import Deadline
from support.large_variance import dense, in_numpy, network, sampled

rows_at_boxes, failures = map(in_numpy, (RowsAtBoxes, one_layer.failures))
neurons, last_weights = map(in_numpy, (lines.neurons, output_layer.last_weights))


def layer_of(*parts: object) -> DenseLayer:
    """Mean, bias, variance, variance of the bias."""
    return DenseLayer.exact(*(torch.tensor(part, dtype=torch.float64) for part in parts))


def asked(low: np.ndarray, high: np.ndarray, row: np.ndarray, bound: float) -> RowsAtBoxes:
    return rows_at_boxes(low[None], high[None], row[None], np.array([bound]), np.zeros(1, dtype=np.int64))


def test_ranges_exceed_their_levels_as_seldom_as_is_said() -> None:
    """Where nearly attained: one input at 0, with a weight far from 0, so that R' is Gaussian. Exact shares."""
    layer = neurons(layer_of(((10.0,),), (0.5,), ((1.0,),), (0.3,)), np.array([[-0.1]]), np.array([[0.1]]))
    above = special.ndtr(-(layer.levels[0, 0] / 0.1 - 10.0))
    claimed = np.append(1 - np.cumsum(LEVEL_SHARES[:-1]), PAST_LEVELS)
    assert (above <= claimed * (1 + 1e-9)).all()
    assert above == pytest.approx(claimed, rel=1e-3)


def ramp_above(zeta: np.ndarray, level: np.ndarray, ramp: np.ndarray, top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a and n of `lines` for D < 0."""
    a = np.clip((zeta + ramp) / (2 * ramp), 0, 1)
    bend = np.minimum(level, ramp) * np.minimum(a, 1 - a)
    bend = bend + np.where(np.abs(zeta) < top, np.maximum(level - ramp, 0.0) * np.maximum(a, 1 - a), 0.0)
    return a, np.maximum(zeta, 0.0) + bend


@pytest.mark.parametrize("eps", [0.3, 0.45, 0.6])
def test_lines_of_single_neurons_hold_for_every_x(eps: float) -> None:
    """relu(zeta + v) against both lines at the corners, for boxes so large that rho nears its limit."""
    most, seen = 0.0, 0
    for seed in range(8):
        net, x0 = network(seed, 2, 6, 2, 0.8), np.random.default_rng(1000 + seed).normal(size=2)
        layer = neurons(net.first, (x0 - eps)[None], (x0 + eps)[None])
        if not layer.served[0]:
            continue
        v, b = sampled(net.first, 3000, np.random.default_rng(seed))
        kappa = net.first.variance.numpy() * x0 / layer.s[0][:, None] ** 2
        common = (kappa * layer.s[0][:, None]).sum(0) / layer.s[0].sum() if layer.share[0] else 0 * x0
        zeta, rho, levels = v @ x0 + b, layer.rho[0], layer.levels[0]
        rest = v - zeta[..., None] * kappa  # nu + E
        expected = in_numpy(mean_abs)(layer.nu[0], np.sqrt(net.first.variance.numpy())) @ layer.radius[0]
        plain = expected[:, None] + np.array(EXCESS_LEVELS) * np.sqrt(layer.h[0])[:, None]  # for R' alone
        place = ((np.abs(rest) @ layer.radius[0])[..., None] > plain * (1 - 1e-12)).sum(-1)
        inside = place < levels.shape[1]
        level = np.take_along_axis(levels[None].repeat(len(v), 0), np.minimum(place, 3)[..., None], -1)[..., 0]
        a, n = ramp_above(zeta, level, levels[:, -2], levels[:, -1])
        for corner in itertools.product((-eps, eps), repeat=2):
            scale = 1 + common @ corner
            truth = np.maximum(zeta + v @ corner, 0.0) / scale
            moved = rest @ (np.array(corner) / scale)
            assert (truth <= n + rho * a * np.abs(zeta) + a * moved + 1e-9)[inside].all()
            assert (truth >= (zeta > 0) * (zeta - rho * np.abs(zeta) + moved) - 1e-9).all()
        most, seen = max(most, rho.max()), seen + 1
    assert most > 0.2
    assert seen > 1


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_what_is_left_out_is_in_every_bound(eps: float) -> None:
    """Where nothing else fails: ranges and G over a box, and mass beyond the nodes everywhere."""
    net, x0 = network(3, 2, 4, 2, 0.2), np.random.default_rng(3).normal(size=2)
    spent = 4 * PAST_LEVELS + SPENT if eps else 0.0
    found = failures(net, asked(x0 - eps, x0 + eps, np.array([1.0, -1.0]), -1e6), Deadline())[0]
    assert spent < found < spent + 1e-7


def test_rounding_of_means_is_paid_for() -> None:
    """Where it is seen: 2^34 + 2^-20 - 2^34 is 0 in floats, of zeta and of D; the laws are that far apart."""
    big, rest = 2.0**34, 2.0**-20
    mean, ones = np.array([[big, rest, -big]]), np.full((1, 3), 1 / 3)
    truth = float(sum(Fraction(part) for part in mean[0]))
    distance = 2 * special.ndtr(truth / 2) - 1  # in total variation, of deviation 1
    layer = neurons(layer_of(mean, (0.0,), ones, (0.0,)), np.ones((1, 3)), np.ones((1, 3)))
    assert layer.served[0]
    assert layer.m[0, 0] == 0
    assert layer.blur[0] > distance
    last = layer_of(mean.T, np.zeros(3), ones.T, np.zeros(3))
    weights, blur, _ = last_weights(last, np.ones((1, 3)), np.zeros(1))
    assert weights.mean[0, 0] == 0
    assert blur[0] > distance
    one, far = layer_of(((1.0,),), (0.0,), ((1.0,),), (0.0,)), np.full(1, -1e6)
    for net, row, x in (
        (DenseChain.relu(layer_of(mean, (0.0,), ones, (0.0,)), one), np.ones(1), np.ones(3)),
        (DenseChain.relu(one, last), np.ones(3), np.ones(1)),
    ):
        assert failures(net, in_numpy(replace)(asked(x, x, row, 0.0), bound=far), Deadline())[0] > distance


def test_the_constant_is_rounded_to_the_safe_side() -> None:
    """-|B| share and the error of B's mean lower Y; the mean is that of exact sums or below."""
    rng = np.random.default_rng(0)
    last, row = dense(rng, 5, 3, spread=0.5), rng.normal(size=(1, 5)) * 1e6
    exact = sum(Fraction(a) * Fraction(b) for a, b in zip(row[0], last.bias.tolist(), strict=True)) - Fraction(0.1)
    weights, _, _ = last_weights(last, row, np.array([0.1]))
    assert Fraction(weights.bias[0]) < exact
    assert Fraction(weights.bias[0]) > exact - Fraction(1, 10**8)
