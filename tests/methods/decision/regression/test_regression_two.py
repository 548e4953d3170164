"""Two hidden relu layers: characteristic functions against mpmath, values and segments against sampled weights."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bnn_vnnlib import Model
from bnn_vnnlib.gaussian.characteristic import Sums, expected_relu
from bnn_vnnlib.methods.decision.regression.two_layers import TwoLayers, interpolation_errors
from bnn_vnnlib.network.dense_chain import DenseLayer, dense_chain
from bnn_vnnlib.system.clock import Deadline
from support.builders import model, random_model, regression_methods

CPU = torch.device("cpu")
BOTH = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)


def tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(value, np.float64))


def two_layers(net: Model) -> TwoLayers:
    found = regression_methods(net, Deadline())[-1]
    assert isinstance(found, TwoLayers)
    return found


def ranges(net: Model, lower: Any, upper: Any) -> tuple[np.ndarray, np.ndarray]:
    found = two_layers(net).lower(tensor(lower), tensor(upper), BOTH).numpy()
    return found[:, 0], -found[:, 1]


def sampled(net: Model, x: np.ndarray, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """E f at points (B, n) and standard errors: layer 1 sampled, the rest in closed form."""
    chain = dense_chain(net.network, net.posterior, CPU)
    assert chain is not None
    first, second, top = chain.layers
    rng = np.random.default_rng(seed)
    v = first.mean.numpy() + np.sqrt(first.variance.numpy()) * rng.standard_normal((count, *first.mean.shape))
    b = first.bias.numpy() + np.sqrt(first.bias_variance.numpy()) * rng.standard_normal((count, len(first.bias)))
    z = np.maximum(np.einsum("skn,bn->bsk", v, x) + b, 0)
    m = z @ second.mean.numpy().T + second.bias.numpy()
    s = np.sqrt(z**2 @ second.variance.numpy().T + second.bias_variance.numpy()) + 1e-300
    y = (m * norm.cdf(m / s) + s * norm.pdf(m / s)) @ top.mean.numpy().T + top.bias.numpy()
    return y[..., 0].mean(1), y[..., 0].std(1) / count**0.5


def expected(*parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = expected_relu(Sums(*(tensor(part) for part in parts)))
    return low.numpy(), high.numpy()


def test_a_sum_without_terms_is_gaussian() -> None:
    b, sig = np.array([-1.0, 0.0, 2.0]), np.array([0.5, 1.0, 0.1])
    zero = np.zeros((3, 1))
    low, high = expected(zero, zero, zero, zero, b, sig, np.zeros(3))
    exact = b * norm.cdf(b / sig) + sig * norm.pdf(b / sig)
    assert (low <= exact).all()
    assert (exact <= high).all()
    assert (high - low < 1e-5).all()


def test_two_terms_against_double_quadrature() -> None:
    m, s, mu, sig = np.array([0.3, -0.4]), np.array([0.8, 0.5]), np.array([1.2, -0.7]), np.array([0.3, 0.6])
    low, high = expected(m[None], s[None], mu[None], sig[None], np.array([0.1]), np.array([0.2]), np.zeros(1))
    t = np.arange(-8, 8, 1e-2) + 3e-3
    weight = norm.pdf(t) * 1e-2
    z = np.maximum(m + s * t[:, None], 0)
    mean = mu[0] * z[:, None, 0] + mu[1] * z[None, :, 1] + 0.1
    deviation = np.sqrt((sig[0] * z[:, None, 0]) ** 2 + (sig[1] * z[None, :, 1]) ** 2 + 0.04)
    value = mean * norm.cdf(mean / deviation) + deviation * norm.pdf(mean / deviation)
    assert weight @ value @ weight == pytest.approx(low[0], abs=2e-5)
    assert 0 < high[0] - low[0] < 1e-5


@pytest.mark.parametrize("spread", [0.03, 0.3, 1.0])
def test_points_against_sampled_weights(spread: float) -> None:
    for seed in range(3):
        net = random_model(seed, [2, 5, 4, 1], spread=spread)
        x = np.random.default_rng(seed).normal(size=(3, 2))
        mean, error = sampled(net, x, 40_000)
        low, high = ranges(net, x, x)
        assert (low <= mean + 6 * error + 1e-9).all()
        assert (mean - 6 * error - 1e-9 <= high).all()
        assert (high - low < 2e-3 * (1 + np.abs(mean))).all()


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("inputs", [1, 3])
def test_segments_against_sampled_weights(spread: float, inputs: int) -> None:
    for seed in range(2):
        net = random_model(seed + 10, [inputs, 6, 5, 1], spread=spread)
        rng = np.random.default_rng(seed)
        lower = rng.normal(size=(1, inputs))
        upper = lower.copy()
        upper[0, -1] += 0.4
        low, high = ranges(net, lower, upper)
        x = lower + np.linspace(0, 1, 21)[:, None] * (upper - lower)
        mean, error = sampled(net, x, 10_000)
        assert low[0] <= (mean + 6 * error).min()
        assert (mean - 6 * error).max() <= high[0]
        varies = mean.max() - mean.min()
        assert mean.min() - low[0] < 0.05 * varies + 6 * error.max() + 1e-3
        assert high[0] - mean.max() < 0.05 * varies + 6 * error.max() + 1e-3


def test_interpolation_errors_bound_those_that_occur() -> None:
    """Same samples at all points: the interpolation error of the sampled mean is nearly that of the mean."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        k, neurons = 4, 3
        mu, sig, bias, noise = rng.normal(size=k), rng.uniform(0.1, 1, k), rng.normal(size=k), rng.uniform(0.1, 1, k)
        weight, spread = rng.normal(size=(neurons, k)), rng.uniform(0.05, 0.5, (neurons, k))
        sig_b = rng.uniform(0.2, 1.0, neurons)
        ends = np.sort(rng.normal(size=2))
        x = np.linspace(*ends, 9)
        m, s = x[:, None] * mu + bias, np.sqrt(x[:, None] ** 2 * sig**2 + noise**2)
        top = DenseLayer.exact(tensor(weight), tensor(0 * sig_b), tensor(spread**2), tensor(sig_b**2))
        bound = interpolation_errors(
            (tensor(m[:1]), tensor(m[-1:])), (tensor(s[:1]), tensor(s[-1:])), tensor(np.full((1, k), 1e-12)),
            (tensor(ends[:1]), tensor(ends[1:])), tensor(mu[None]), tensor((sig**2)[None]), top,
        )[0].numpy()  # fmt: skip
        v = mu + sig * rng.standard_normal((20_000, k))
        b = bias + noise * rng.standard_normal((20_000, k))
        z = np.maximum(x[:, None, None] * v + b, 0)
        mean = z @ weight.T
        deviation = np.sqrt(z**2 @ (spread**2).T + sig_b**2)
        value = (mean * norm.cdf(mean / deviation) + deviation * norm.pdf(mean / deviation)).mean(1)
        share = ((x - ends[0]) / (ends[1] - ends[0]))[:, None]
        off = np.abs(value - ((1 - share) * value[0] + share * value[-1])).max(0)
        assert (off <= bound * 1.02 + 1e-3).all()


def test_a_posterior_without_variance_is_the_network() -> None:
    layers = [([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, 1.0], [0.5, -1.0]], [-0.5, 0.2]), ([[1.0, 2.0]], [0.0])]
    none = [(np.zeros_like(np.array(w)), np.zeros_like(np.array(b))) for w, b in layers]
    none[2] = (np.ones((1, 2)), np.ones(1))
    net = model(layers, none)
    low, high = ranges(net, [[1.0]], [[1.0]])  # 0.5 + 2 * 0.7
    assert low[0] <= 1.9 <= high[0]


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("inputs", [2, 3])
def test_boxes_against_sampled_weights(spread: float, inputs: int) -> None:
    for seed in range(3):
        net = random_model(seed + 20, [inputs, 6, 5, 1], spread=spread)
        rng = np.random.default_rng(seed)
        lower = rng.normal(size=(1, inputs))
        upper = lower + rng.choice([0.01, 0.1, 0.5], size=(1, inputs))
        low, high = ranges(net, lower, upper)
        x = lower + rng.choice([0.0, 0.5, 1.0], size=(30, inputs)) * (upper - lower)
        mean, error = sampled(net, x, 10_000)
        assert (low[0] <= mean + 6 * error).all()
        assert (mean - 6 * error <= high[0]).all()


def test_small_boxes_are_tight() -> None:
    net = random_model(3, [3, 12, 12, 1], spread=0.5)
    x = np.array([[0.3, -0.5, 0.1]])
    low, high = ranges(net, x - 1e-3, x + 1e-3)
    corners = np.array(list(itertools.product([-1e-3, 1e-3], repeat=3)))
    at = ranges(net, x + corners, x + corners)
    width = at[1].max() - at[0].min()
    assert low[0] <= at[0].min() + 1e-9
    assert at[1].max() - 1e-9 <= high[0]
    assert high[0] - low[0] < 1.1 * width


def test_boxes_with_many_free_inputs_are_left_to_others() -> None:
    net = random_model(1, [7, 3, 3, 1])
    box = np.zeros((2, 7))
    box[0] = 1
    low, high = ranges(net, np.zeros((2, 7)), box)
    assert low[0] == -np.inf
    assert high[0] == np.inf
    assert np.isfinite(low[1])


def test_rows_over_inputs_and_outputs() -> None:
    net = random_model(4, [2, 4, 4, 2], spread=0.3)
    x, c, g = np.array([[0.3, -0.2]]), np.array([[[1.0, -2.0]]]), np.array([[[3.0, 0.5]]])
    plain = two_layers(net).lower(tensor(x), tensor(x), tensor(c))
    mixed = two_layers(net).lower(tensor(x), tensor(x), tensor(c), tensor(g))
    assert mixed.item() == pytest.approx(plain.item() + 0.9 - 0.1, abs=1e-11)


def published(shared: Path, name: str) -> Model:
    """A net published with BNN-DP: y = act(x W + b), standard deviations stored."""
    arrays = np.load(shared / "data" / "posteriors" / name)
    depth = sum(key.startswith("mean_") for key in arrays.files) // 2

    def layers(kind: str, power: int) -> list[tuple[np.ndarray, np.ndarray]]:
        parts = [arrays[f"{kind}_{i}"].astype(np.float64) ** power for i in range(2 * depth)]
        return [(parts[2 * k].T, parts[2 * k + 1]) for k in range(depth)]

    return model(layers("mean", 1), layers("std", 2))


def test_the_published_nets_with_one_hidden_layer(shared: Path) -> None:
    net = published(shared, "bnndp_noisysine_1x256.npz")
    (method,) = regression_methods(net, Deadline())
    low, high = method.lower(tensor([[0.625]]), tensor([[0.775]]), BOTH)[0].tolist()
    assert low == pytest.approx(-0.89136, abs=1e-4)  # BNN-DP: -1.36685
    assert -high == pytest.approx(-0.57934, abs=1e-4)


def test_the_published_nets_with_two_hidden_layers(shared: Path) -> None:
    net = published(shared, "bnndp_noisysine_2x64.npz")
    low, high = ranges(net, [[0.075]], [[0.125]])
    assert 0.349 < low[0] < 0.35  # BNN-DP: .33052
    assert 0.607 < high[0] < 0.609  # BNN-DP: .64174
