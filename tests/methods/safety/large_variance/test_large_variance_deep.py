"""Rows of deep networks at fixed inputs, by exponential moments with the lemma on Gaussian last layers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats

from bnn_vnnlib import verify_batch
from bnn_vnnlib.bounds.dense.exponents import Exponents
from bnn_vnnlib.methods.safety.large_variance.moments import RowsAtPoints, failures_by_budget, log_kappa
from bnn_vnnlib.methods.safety.large_variance.rows import LargeVarianceBounds
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.system.clock import Deadline
from support.builders import model, rows
from support.large_variance import dense, in_numpy, sampled

ROW = np.array([1.0, -1.0])


def stack(seed: int, spread: float, widths: tuple[int, ...] = (3, 12, 12, 2)) -> DenseChain:
    rng = np.random.default_rng(seed)
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layer = dense(rng, outputs, inputs, spread=spread)
        size = 1 / np.sqrt(inputs)
        scaled = (layer.mean * size, layer.bias, layer.variance * size**2, layer.bias_variance)
        layers.append(DenseLayer.exact(*scaled))
    return DenseChain.relu(*layers)


def outputs(net: DenseChain, x: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (S, m) and the last hidden layer (S, H) of sampled networks."""
    rng, h = np.random.default_rng(seed), np.broadcast_to(x, (count, len(x)))
    hidden = h
    for place, layer in enumerate(net.layers):
        w, b = sampled(layer, count, rng)
        hidden, h = h, np.einsum("soi,si->so", w, h) + b
        h = np.maximum(h, 0.0) if place + 1 < len(net.layers) else h
    return h, hidden


def asked(x: np.ndarray, bound: float) -> RowsAtPoints:
    point = torch.tensor(x)[None]
    return RowsAtPoints(point, point, torch.tensor(ROW)[None, None], torch.tensor([[bound]]))


def least(ways: list[tuple[float, torch.Tensor]]) -> float:
    return min(delta + float(values[0, 0]) for delta, values in ways)


@pytest.mark.parametrize(("seed", "spread"), [(0, 0.1), (1, 0.3)])
@pytest.mark.parametrize("share", [1e-3, 0.2])
def test_no_more_networks_fail_than_the_bound_says(seed: int, spread: float, share: float) -> None:
    net, x, count = stack(seed, spread), np.random.default_rng(seed).normal(size=3), 40_000
    margin = outputs(net, x, count, 1)[0] @ ROW
    bound = float(np.quantile(margin, share))
    failed = int((outputs(net, x, count, 2)[0] @ ROW <= bound).sum())
    found = least(failures_by_budget(net, asked(x, bound), Deadline()))
    assert stats.binom.sf(failed - 1, count, min(found, 1.0)) > 1e-9


def test_moderate_noise_is_far_from_vacuous() -> None:
    net, x = stack(0, 0.1), np.random.default_rng(0).normal(size=3)
    margin = outputs(net, x, 20_000, 1)[0] @ ROW
    found = least(failures_by_budget(net, asked(x, float(np.quantile(margin, 0.01))), Deadline()))
    assert 0.01 < found < 0.05


def test_the_lemma_wins_over_markov_alone() -> None:
    """One layer of hidden units that hardly move: M is Gaussian, and the bound comes near Phi(-u)."""
    net, x = stack(3, 1e-3, (3, 40, 2)), np.random.default_rng(3).normal(size=3)
    last = net.layers[-1]
    noisy = DenseChain.relu(
        net.layers[0], DenseLayer.exact(last.mean, last.bias, torch.ones_like(last.variance), last.bias_variance)
    )
    margin = outputs(noisy, x, 20_000, 1)[0] @ ROW
    bound = float(margin.mean() - 2.5 * margin.std())
    found = least(failures_by_budget(noisy, asked(x, bound), Deadline()))
    assert special.ndtr(-2.5) * 0.9 < found < special.ndtr(-2.5) * 1.6
    assert found < np.exp(-(2.5**2) / 2) / 3


def test_kappa() -> None:
    eta = np.array([0.0, 0.1, 0.7, 1.0, 2.0, 5.0, 20.0])
    u = np.linspace(-40, 40, 400_001)
    truth = np.array([(special.log_ndtr(-u) + e * u - e**2 / 2).max() for e in eta])
    found = in_numpy(log_kappa)(eta)
    assert (found >= truth - 1e-9).all()
    assert (found <= truth + 1e-6).all()
    assert (np.diff(found) <= 0).all()


def test_lower_tails_of_squares() -> None:
    net, x = stack(1, 0.4), np.random.default_rng(1).normal(size=3)
    exponents = Exponents(net, 1e-3)
    point = torch.tensor(x)[None]
    ranges = exponents.ranges(point, point)
    weights = -torch.tensor(np.random.default_rng(0).uniform(0.05, 0.3, 12))
    top = -exponents.squares(ranges, weights[None, None]).minimum(ranges.first.radius)
    hidden = outputs(net, x, 40_000, 3)[1]
    truth = np.exp(hidden**2 @ weights.numpy()).mean()
    assert np.exp(float(top[0, 0])) >= truth - exponents.delta - 0.01
    assert float(top[0, 0]) < 0


def test_delta_is_paid_once_a_point() -> None:
    net, x = stack(0, 0.2), np.random.default_rng(0).normal(size=3)
    ways = failures_by_budget(net, asked(x, -100.0), Deadline())
    assert len(ways) > 1
    assert all(delta > 0 and float(values[0, 0]) < delta for delta, values in ways)


@pytest.mark.parametrize(("share", "verdict"), [(0.01, "unsat"), (0.99, "sat")])
def test_the_portfolio_takes_it(share: float, verdict: str) -> None:
    net, x = stack(0, 0.15), np.random.default_rng(0).normal(size=3)
    found = model(
        [(part.mean.numpy(), part.bias.numpy()) for part in net.layers],
        [(part.variance.numpy(), part.bias_variance.numpy()) for part in net.layers],
    )
    bound = float(np.quantile(outputs(net, x, 20_000, 1)[0] @ ROW, share))
    options: dict[str, Any] = {"query": "probabilistic", "tau_safe": 0.8, "tau_unsafe": 0.2}
    both = verify_batch(found, [x], [x], properties=[[rows(ROW, bound)]], timeout=60, **options)
    assert both.verdicts[0] == verdict


@pytest.mark.parametrize("widths", [(3, 12, 2), (3, 12, 12, 2)])
def test_it_is_tried_where_weights_move_a_row_as_much_as_inputs_do(widths: tuple[int, ...]) -> None:
    x = torch.tensor(np.random.default_rng(0).normal(size=(5, 3)))
    labels = torch.zeros(5, dtype=torch.int64)
    for spread, radius, wanted in ((0.5, 0.05, True), (1e-4, 0.05, False), (1e-4, 0.0, True)):
        wide = LargeVarianceBounds(stack(0, spread, widths), Deadline())
        assert wide.pays(from_labels(x - radius, x + radius, labels, 2)).tolist() == [wanted] * 5
