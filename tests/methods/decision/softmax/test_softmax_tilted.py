"""Tilted bounds of the expected softmax, and their moments from both sides, against exact values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.bounds.dense.hidden import hidden
from bnn_vnnlib.methods.decision.softmax.deep import ExponentialMoments
from bnn_vnnlib.methods.decision.softmax.method import SoftmaxRows
from bnn_vnnlib.methods.decision.softmax.one_layer import OneLayerSoftmax, Tilted, _Moments
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.dense_chain import DenseChain, dense_chain
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.system.clock import Deadline
from support.builders import expectation, model, random_model
from support.gaussian import exact_log_moment

CPU = torch.device("cpu")
NORMAL = 6.2
"""A Gaussian is that many deviations from its mean with probability 6e-10."""


def form(net) -> DenseChain:
    found = dense_chain(net.network, net.posterior, CPU)
    assert found is not None
    return found


def number(value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def classes_from_below(source, lower, upper, m: int) -> torch.Tensor:
    return SoftmaxRows(source, Deadline()).lower(lower, upper, torch.eye(m, dtype=torch.float64)[None])


@pytest.mark.parametrize("width", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("spread", [0.1, 0.8])
def test_moments_of_rows_at_points_of_a_box(width, spread):
    """Exact at every corner and inside; rows of both signs; one neuron without noise."""
    rng = np.random.default_rng(3)
    layers = [(rng.normal(size=(4, 2)), rng.normal(size=4)), (rng.normal(size=(3, 4)), rng.normal(size=3))]
    first = spread**2 * rng.uniform(0.2, 1, size=(4, 2)), spread**2 * rng.uniform(0.2, 1, size=4)
    first[0][1], first[1][1] = 0.0, 0.0
    net = model(layers, [first, (0.04 * rng.uniform(size=(3, 4)), 0.04 * rng.uniform(size=3))])
    lower = number([[-width / 3, 0.7]])
    upper = lower + width
    rows = number(rng.normal(size=(1, 7, 3)))
    shallow = form(net)
    moments = _Moments(shallow, hidden(shallow.first, lower, upper))
    low, high = moments.below(rows)[0], moments.above(rows)[0]
    (v, b), (w, c) = ((layer.mean.numpy(), layer.bias.numpy()) for layer in (shallow.first, shallow.last))
    for x in ([0, 0], [0, 1], [1, 0], [1, 1], [0.3, 0.6]):
        at = lower[0].numpy() + width * np.array(x)
        m = v @ at + b
        s = np.sqrt(shallow.first.variance.numpy() @ at**2 + shallow.first.bias_variance.numpy())
        for u, below, above in zip(rows[0].numpy(), low, high, strict=True):
            alpha, beta = u @ w, u**2 @ shallow.last.variance.numpy() / 2
            truth = u @ c + u**2 @ shallow.last.bias_variance.numpy() / 2
            for k in range(4):
                if s[k] == 0:
                    truth += alpha[k] * max(m[k], 0) + beta[k] * max(m[k], 0) ** 2
                else:
                    truth += float(exact_log_moment(alpha[k], beta[k], m[k], s[k]))
            assert float(below) <= truth + 1e-12
            assert float(above) >= truth - 1e-12
            if width == 0:
                assert float(above - below) <= 1e-8


@pytest.mark.parametrize("weight", [(1.5, 0.0), (-1.5, 0.0), (0.0, 0.4), (0.3, 0.05)])
@pytest.mark.parametrize(
    "neuron",
    [(1.0, 0.0, 0.0, 0.25), (0.0, 0.0, 0.25, 0.0), (0.0, -1.4, 0.25, 0.0), (0.5, 0.0, 0.25, 0.0), (1.0, 0.0, 0.0, 0.0)],
    ids=["mean moves", "deviation moves", "deviation of an inactive one", "both move", "a number moves"],
)
def test_one_neuron_over_a_box(neuron, weight):
    """Extremes at the ends of the box: each side is met to within what its width costs, and not crossed."""
    v, bias, variance, bias_variance = neuron
    net = model(
        [([[v]], [bias]), ([[weight[0]], [0.0]], [0.0, 0.0])],
        [([[variance]], [bias_variance]), ([[weight[1]], [0.0]], [0.0, 0.0])],
    )
    shallow = form(net)
    lower, upper = number([[0.95]]), number([[1.05]])
    moments = _Moments(shallow, hidden(shallow.first, lower, upper))
    truth = []
    for x in (0.95, 1.0, 1.05):
        m, s, beta = v * x + bias, np.sqrt(variance * x * x + bias_variance), weight[1] / 2
        exact = weight[0] * m + beta * m * m if s == 0 else float(exact_log_moment(weight[0], beta, m, s))
        truth.append(exact)
    row = number([[[1.0, 0.0]]])
    low, high = float(moments.below(row)), float(moments.above(row))
    assert low <= min(truth)
    assert high >= max(truth)
    assert high - low < 0.6


def test_a_neuron_with_one_random_weight_is_not_a_number():
    net = model(
        [([[1.0, 1.0]], [0.0]), ([[1.0], [0.0]], [0.0, 0.0])], [([[0.0, 0.5]], [0.0]), (np.zeros((2, 1)), [0, 0])]
    )
    shallow = form(net)
    x = number([[0.4, 0.8]])
    moments = _Moments(shallow, hidden(shallow.first, x, x))
    truth = float(exact_log_moment(1.0, 0.0, 1.2, np.sqrt(0.32)))
    row = number([[[1.0, 0.0]]])
    assert float(moments.below(row)) == pytest.approx(truth, abs=1e-8)
    assert float(moments.above(row)) == pytest.approx(truth, abs=1e-8)


def margin_quadrature(net, x: float) -> float:
    """D_0 of two classes behind two hidden neurons, one input: f_0 - f_1 is Gaussian given the hidden outputs."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    shallow = form(net)
    first, last = shallow.first, shallow.last
    m = (first.mean[:, 0] * x + first.bias).numpy()
    s = np.sqrt((first.variance[:, 0] * x * x + first.bias_variance).numpy())
    grid = np.linspace(-9, 9, 801)
    density = np.exp(-(grid**2) / 2)
    density /= density.sum()
    z = np.maximum(m[:, None] + s[:, None] * grid, 0)
    mean = (last.mean[0] - last.mean[1]).numpy()
    noise = (last.variance[0] + last.variance[1]).numpy()
    shift, shake = float(last.bias[0] - last.bias[1]), float(last.bias_variance.sum())
    centre = shift + mean[0] * z[0][:, None] + mean[1] * z[1]
    spread = np.sqrt(shake + noise[0] * z[0][:, None] ** 2 + noise[1] * z[1] ** 2)
    value = sum(w / (1 + np.exp(-(centre + spread * t))) for t, w in zip(nodes, weights, strict=True))
    return float(density @ value @ density)


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_two_hidden_neurons_by_quadrature(spread):
    gaps = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        layers = [(rng.normal(size=(2, 1)), rng.normal(size=2)), (rng.normal(size=(2, 2)), rng.normal(size=2))]
        noise = [(np.full((2, 1), spread**2), np.zeros(2)), (np.full((2, 2), spread**2 / 4), np.zeros(2))]
        net = model(layers, noise)
        x = number([[0.7]])
        truth = margin_quadrature(net, 0.7)
        low = classes_from_below(Tilted(form(net)), x, x, 2)[0]
        assert float(low[0]) <= truth + 1e-6
        assert float(low[1]) <= 1 - truth + 1e-6
        gaps.append(1 - float(low.sum()))
    assert np.mean(gaps) < {0.05: 2e-3, 0.3: 0.03, 1.0: 0.3}[spread]


@given(st.integers(0, 10_000), st.sampled_from([0.02, 0.3, 1.0, 2.0]), st.sampled_from([0.0, 0.003, 0.05]))
@settings(max_examples=15, deadline=None)
def test_against_sampled_networks(seed, spread, width):
    net = random_model(seed, [3, 7, 4], spread=spread)
    generator = torch.Generator().manual_seed(seed)
    lower = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    outputs = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    found = SoftmaxRows(Tilted(form(net)), Deadline()).lower(lower, lower + width, outputs)
    params = sample(net.network, net.posterior, 4000, generator)
    for _ in range(3):
        x = lower + width * torch.rand(3, 3, generator=generator, dtype=torch.float64).round(decimals=1)
        rows = (torch.softmax(evaluate(net.network, x, params), -1)[:, :, None] * outputs).sum(-1)
        error = NORMAL * rows.std(0) / np.sqrt(len(rows)) + 1e-9
        assert (found <= rows.mean(0) + error).all()


def test_closer_than_the_others_where_deviations_are_moderate():
    net = random_model(5, [3, 20, 4], spread=1.5)
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = form(net)
    gaps = {}
    for name, source in (
        ("tilted", Tilted(found)), ("closed", OneLayerSoftmax(found)),
        ("powers", ExponentialMoments(dense_chain(net.network, net.posterior, CPU), (1e-2,))),
    ):  # fmt: skip
        low = classes_from_below(source, x, x, 4)
        gaps[name] = float((1 - low.sum(-1)).mean())
    assert gaps["tilted"] < 0.8 * min(gaps["closed"], gaps["powers"])


def test_a_deviation_that_varies_by_its_own_size_is_not_known():
    """The change of scale must stay below 1."""
    net = model([([[0.0]], [0.1]), ([[1.5], [0.0]], [0.0, 0.0])], [([[1.0]], [0.0]), (np.zeros((2, 1)), [0, 0])])
    shallow = form(net)
    lower, upper = number([[1e-3]]), number([[1.0]])
    moments = _Moments(shallow, hidden(shallow.first, lower, upper))
    row = number([[[1.0, 0.0]]])
    assert float(moments.below(row)) == -np.inf
    assert float(moments.above(row)) == np.inf


def test_wide_boxes_are_left_alone():
    net = random_model(1, [3, 7, 4], spread=0.3)
    lower = torch.zeros(1, 3, dtype=torch.float64)
    assert (classes_from_below(Tilted(form(net)), lower, lower + 3, 4) <= 0).all()


def test_the_portfolio_has_it():
    net = random_model(1, [3, 7, 4], spread=0.3, likelihood="categorical")
    methods = list(expectation(net, "softmax").steps.rows)
    assert any(isinstance(method, SoftmaxRows) and isinstance(method.source, Tilted) for method in methods)
