"""Exponential moments of logits and the bounds that follow, against quadrature, high precision and sampled networks."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib import verify_batch
from bnn_vnnlib.bounds.dense.exponents import Exponents
from bnn_vnnlib.bounds.dense.hidden import CentredForm
from bnn_vnnlib.gaussian.relu import Rectangle, log_moment, relu_planes
from bnn_vnnlib.methods.decision.softmax import deep
from bnn_vnnlib.methods.decision.softmax.deep import ExponentialMoments, WithMoments
from bnn_vnnlib.methods.decision.softmax.method import SoftmaxRows
from bnn_vnnlib.methods.decision.softmax.one_layer import OneLayerSoftmax
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.dense_chain import DenseChain, dense_chain
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.splitting.frontier import Effort
from bnn_vnnlib.system.clock import Deadline
from support.builders import expectation, model, random_model

CPU = torch.device("cpu")
NORMAL = 6.2
"""A Gaussian is that many deviations from its mean with probability 6e-10."""


def stack_of(net) -> DenseChain:
    found = dense_chain(net.network, net.posterior, CPU)
    assert found is not None
    return found


def both(method, lower, upper, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper bounds on every D_i."""
    unit = torch.eye(m, dtype=torch.float64)[None]
    found = method.lower(lower, upper, torch.cat([unit, -unit], 1))
    return found[:, :m], -found[:, m:]


def number(value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("size", [0.05, 1.0, 12.0])
@pytest.mark.parametrize("width", [0.0, 0.1, 3.0])
def test_planes_are_above(size, width):
    generator = torch.Generator().manual_seed(int(10 * size + width))

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(400, generator=generator, dtype=torch.float64)

    alpha, beta = uniform(-size, size), uniform(0, 0.1) * (uniform(0, 1) > 0.3)
    low, least = uniform(-3, 3), uniform(0.01, 0.6)
    high, most = low + width * uniform(0, 1), least + 0.3 * width * uniform(0, 1)
    rectangle = Rectangle(low, high, least, most, (low + high) / 2, (least + most) / 2)
    plane = relu_planes(alpha, beta, rectangle)
    assert torch.isfinite(plane.constant).all()
    gaps = []
    for u in (0.0, 0.3, 0.5, 1.0):
        for v in (0.0, 0.5, 1.0):
            m, s = low + u * (high - low), least + v * (most - least)
            truth = log_moment(alpha, beta, m, s)
            gap = plane.at(m, s) - truth
            assert (gap >= -1e-8 * (1 + truth.abs())).all()
            gaps.append(gap)
    if width == 0.0:
        assert (torch.stack(gaps).amax(0)[truth > -20] <= 1e-2).all()


def test_planes_without_a_bound_are_infinite():
    """beta s^2 too large, undefined coefficients, infinite ranges: nothing is claimed."""
    one, inf, nan = number([1.0] * 5), torch.inf, torch.nan
    alpha, beta = number([1.0, nan, 1.0, -1.0, nan]), number([0.6, 0.1, 0.1, 0.1, 0.0])
    high, most = number([1.0, 1.0, inf, inf, nan]), number([1.0, 1.0, 1.0, inf, 1.0])
    plane = relu_planes(alpha, beta, Rectangle(-one, high, one / 2, most, 0 * one, one / 2))
    assert (plane.constant == inf).all()


@given(st.sampled_from(deep.BELOW), st.floats(1e-9, 1e6))
@settings(max_examples=60, deadline=None)
def test_tangents_of_powers_are_below(power, at):
    """1 / (1 + S) >= a - b S^lam for every S >= 0."""
    s = np.concatenate([[0.0], np.geomspace(1e-12, 1e12, 4001), [at ** (1 / power), (1 - power) / power]])
    size = len(s)
    total = CentredForm(-torch.as_tensor(s**power)[:, None, None], torch.zeros(size, 1, 1, 1, dtype=torch.float64))
    point = torch.full_like(total.value, at)
    found = deep._tangent(total, point, number([power]), torch.zeros(size, 1, dtype=torch.float64), 0.0)
    assert (found.value[:, 0, 0].numpy() <= 1 / (1 + s)).all()
    touch = max(at ** (1 / power), (1 - power) / power)
    value = found.value[np.argmin(np.abs(s - touch)), 0, 0]
    assert float(value) == pytest.approx(1 / (1 + touch), rel=1e-2, abs=1e-9)


def test_the_event_is_paid_for():
    """Off G anything may happen: D = 1 - delta with S = 0 on G, and D = delta with a vanishing softmax on G."""
    delta, radius = 0.1, torch.zeros(1, 1, dtype=torch.float64)
    slope = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    for power in deep.BELOW:
        nothing = CentredForm(number([[[0.0]]]), slope)
        below = deep._tangent(nothing, number([[[1e-300]]]), number([power]), radius, delta).value.item()
        assert 0.5 * (1 - delta) < below <= 1 - delta
    above, most = deep._above(CentredForm(number([[[50.0]]]), slope), radius, delta)
    assert delta <= most.item() <= delta + 1e-9
    assert -above.value.item() >= delta


def deep_quadrature(net, x: float) -> np.ndarray:
    """D(x) of a chain of two neurons with random weights W0, W1, W2[0] only, by three nested sums."""
    tensors, variances = net.network.tensors, net.posterior.variances
    t = np.linspace(-8, 8, 97)
    p = np.exp(-t * t / 2)
    p /= p.sum()
    w0, w1, w2 = (tensors[f"W{k}"].ravel()[0] + np.sqrt(variances[f"W{k}"].ravel()[0]) * t for k in range(3))
    first = np.maximum(w0 * x + tensors["b0"][0], 0)
    second = np.maximum(w1[:, None] * first + tensors["b1"][0], 0)
    f = w2[:, None, None] * second - tensors["W2"][1, 0] * second + tensors["b2"][0] - tensors["b2"][1]
    value = np.einsum("i,j,k,kji->", p, p, p, 1 / (1 + np.exp(-f)))
    return np.array([value, 1 - value])


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_two_hidden_neurons_by_quadrature(spread):
    gaps = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        layers = [(rng.normal(size=s), rng.normal(size=s[0])) for s in ((1, 1), (1, 1), (2, 1))]
        square, one = [[spread**2]], [0.0]
        net = model(layers, [(square, one), (square, one), ([[spread**2], [0.0]], [0.0, 0.0])])
        source = ExponentialMoments(stack_of(net), (1e-2, 1e-5))
        lower, upper = number([[0.2]]), number([[0.9]])
        truth = np.stack([deep_quadrature(net, x) for x in np.linspace(0.2, 0.9, 5)])
        low, high = both(SoftmaxRows(source, Deadline(), Effort(3e-3, 20)), lower, upper, 2)
        assert (low[0].numpy() <= truth.min(0) + 1e-6).all()
        assert (high[0].numpy() >= truth.max(0) - 1e-6).all()
        gaps.append(float((high - low).mean() - np.ptp(truth, axis=0).mean()))
    assert np.mean(gaps) < {0.05: 0.01, 0.3: 0.1, 1.0: 1.0}[spread]


@given(
    st.integers(0, 10_000), st.sampled_from([[3, 6, 4], [3, 6, 5, 4], [2, 5, 5, 5, 3]]),
    st.sampled_from([0.02, 0.2, 0.6, 1.5]), st.sampled_from([0.0, 0.05, 0.5]),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_against_sampled_networks(seed, widths, spread, width):
    """Rows of all kinds, at points of the boxes."""
    net = random_model(seed, widths, spread=spread)
    n, m = widths[0], widths[-1]
    generator = torch.Generator().manual_seed(seed)
    lower = torch.randn(3, n, generator=generator, dtype=torch.float64)
    outputs = torch.randn(3, 5, m, generator=generator, dtype=torch.float64)
    inputs = torch.randn(3, 5, n, generator=generator, dtype=torch.float64)
    method = SoftmaxRows(ExponentialMoments(stack_of(net), (1e-2, 1e-5)), Deadline())
    found = method.lower(lower, lower + width, outputs, inputs)
    single = torch.cat([method.lower(lower, lower + width, outputs[:, [r]], inputs[:, [r]]) for r in range(5)], 1)
    params = sample(net.network, net.posterior, 3000, generator)
    for _ in range(4):
        x = lower + width * torch.rand(3, n, generator=generator, dtype=torch.float64).round(decimals=1)
        rows = (torch.softmax(evaluate(net.network, x, params), -1)[:, :, None] * outputs).sum(-1)
        error = NORMAL * rows.std(0) / np.sqrt(len(rows)) + 1e-9
        truth = rows.mean(0) + (inputs @ x[..., None])[..., 0]
        assert (found <= truth + error).all()
        assert (single <= truth + error).all()


def test_a_million_sampled_networks():
    """Wide enough for the choice of the powers to matter; the bounds stay close."""
    net = random_model(4, [2, 6, 6, 3], spread=0.5)
    x = number([[0.4, -1.1], [1.2, 0.7]])
    low, high = both(SoftmaxRows(ExponentialMoments(stack_of(net), (1e-2, 1e-5)), Deadline()), x, x, 3)
    total, square, count = 0.0, 0.0, 10**6
    for seed in range(20):
        params = sample(net.network, net.posterior, count // 20, torch.Generator().manual_seed(seed))
        y = torch.softmax(evaluate(net.network, x, params), -1)
        total, square = total + y.sum(0), square + (y * y).sum(0)
    mean = total / count
    error = NORMAL * torch.sqrt((square / count - mean**2) / count)
    assert (low <= mean + error).all()
    assert (high >= mean - error).all()
    assert float((high - low).amax()) < 0.3


def test_events_hold_as_often_as_claimed():
    """Means and variances of the second and third layer, given the earlier weights, at a point and in a box."""
    budget = 0.3
    for seed in range(3):
        net = random_model(seed, [2, 6, 6, 5, 3], spread=0.4)
        layers = stack_of(net).layers
        exponents = Exponents(stack_of(net), budget)
        lower = number([[0.3, -0.8]])
        ranges = exponents.ranges(lower, lower + 0.2)
        assert exponents.sides == 4 * 11
        assert exponents.delta == budget
        params = sample(net.network, net.posterior, 4000, torch.Generator().manual_seed(seed))
        h, missed = (lower + 0.15).expand(4000, -1), torch.zeros(4000, dtype=torch.bool)
        for place, layer in enumerate(layers[:-1]):
            m, v = h @ layer.mean.mT + layer.bias, h * h @ layer.variance.mT + layer.bias_variance
            box, s = ranges.rectangles[place], torch.sqrt(v)
            inside = (m >= box.low) & (m <= box.high) & (s >= box.least) & (s <= box.most)
            missed |= ~inside.all(-1)
            weight, bias = params[f"W{place}"], params[f"b{place}"]
            h = torch.relu((weight @ h[..., None])[..., 0] + bias)
        assert float(missed.double().mean()) <= budget + NORMAL * np.sqrt(budget / 4000)


def test_exponential_moments_are_bounded():
    """With a budget that is nearly nothing, of E exp(u . f) itself."""
    net = random_model(2, [2, 6, 6, 3], spread=0.15)
    exponents = Exponents(stack_of(net), 1e-12)
    x = number([[0.4, -1.1], [1.2, 0.7]])
    rows = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = -exponents.lines(exponents.ranges(x, x), rows).value
    y = evaluate(net.network, x, sample(net.network, net.posterior, 100_000, torch.Generator().manual_seed(1)))
    moment = torch.exp((y[:, :, None] * rows).sum(-1))
    truth = moment.mean(0)
    error = NORMAL * moment.std(0) / np.sqrt(len(moment))
    assert (torch.exp(found) >= truth - error).all()
    assert float((found - torch.log(truth)).amax()) < 0.25


def test_fixed_weights_are_met_at_points():
    net = random_model(3, [2, 6, 6, 3], spread=0.0)
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = both(SoftmaxRows(ExponentialMoments(stack_of(net), (1e-6,)), Deadline()), x, x, 3)
    truth = torch.softmax(evaluate(net.network, x), -1)
    assert (low <= truth).all()
    assert (truth <= high).all()
    assert float((high - low).max()) < 1e-3


def test_an_item_does_not_depend_on_its_neighbours():
    net = random_model(5, [3, 8, 7, 4], spread=0.2)
    method = SoftmaxRows(ExponentialMoments(stack_of(net), (1e-2, 1e-5)), Deadline())
    lower = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    unit = torch.eye(4, dtype=torch.float64)[None]
    together = method.lower(lower, lower + 0.1, unit)
    alone = torch.cat([method.lower(x[None], x[None] + 0.1, unit) for x in lower])
    assert torch.allclose(together, alone, atol=1e-9)


@pytest.mark.parametrize("spread", [30.0, 1e6])
def test_where_nothing_is_known_nothing_is_claimed(spread):
    net = random_model(1, [2, 6, 6, 3], spread=spread)
    x = number([[0.4, -1.1]])
    low, high = both(SoftmaxRows(ExponentialMoments(stack_of(net), (1e-2,)), Deadline()), x, x, 3)
    y = torch.softmax(evaluate(net.network, x, sample(net.network, net.posterior, 4000, torch.Generator())), -1)
    error = NORMAL * y.std(0) / np.sqrt(4000)
    assert (low <= y.mean(0) + error).all()
    assert (high >= y.mean(0) - error).all()


def test_one_hidden_layer_gains_where_deviations_are_large():
    net = random_model(7, [3, 10, 4], spread=1.0)
    layers = stack_of(net)
    closed = OneLayerSoftmax(layers)
    source = WithMoments(closed, ExponentialMoments(layers, (1e-2,)))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    old, new = (both(SoftmaxRows(one, Deadline()), x, x, 4) for one in (closed, source))
    assert (new[0] >= old[0]).all()
    assert (new[1] <= old[1]).all()
    assert float((new[1] - new[0]).mean()) < 0.8 * float((old[1] - old[0]).mean())
    narrow = random_model(7, [3, 10, 4], spread=1e-3)
    layers = stack_of(narrow)
    closed = OneLayerSoftmax(layers)
    source = WithMoments(closed, ExponentialMoments(layers, (1e-2,)))
    old, new = (both(SoftmaxRows(one, Deadline()), x, x, 4) for one in (closed, source))
    assert torch.equal(old[0], new[0])


def test_the_portfolio_of_deep_classifiers():
    """Far better than tails, which hold for all inputs at once."""
    net = random_model(0, [3, 16, 16, 3], spread=0.4)
    expect = expectation(net, "softmax")
    portfolio = expect.steps
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = torch.eye(3, dtype=torch.float64)[None]
    (tails,), (look,), (thorough,) = portfolio.quick, portfolio.second, portfolio.aimed
    found = [method.lower(x - 0.02, x + 0.02, unit).amax(-1).mean() for method in (look, tails)]
    assert found[0] > found[1] + 0.1
    goal = number([[0.3]]).expand(6, 3)
    aimed = thorough.towards(x - 0.1, x + 0.1, unit, None, goal)
    once = thorough.towards(x - 0.1, x + 0.1, unit, None, -goal)
    assert (aimed >= once - 1e-12).all()


def test_one_logit_behind_two_hidden_layers():
    net = random_model(2, [2, 5, 5, 1], spread=0.2)
    expect = expectation(net, "sigmoid")
    (method,) = expect.steps.quick
    assert isinstance(method, SoftmaxRows)
    x = number([[0.1, -0.2]])
    low, high = both(method, x, x, 1)
    y = torch.sigmoid(evaluate(net.network, x, sample(net.network, net.posterior, 4000, torch.Generator())))[:, 0, 0]
    error = NORMAL * float(y.std()) / np.sqrt(4000)
    assert float(low) <= float(y.mean()) + error
    assert float(high) >= float(y.mean()) - error
    assert float(high - low) < 0.1


def test_of_large_networks_tails_come_first(monkeypatch):
    """What P_safe or tails decide needs no moments, which are dear there; bounds hold sampled networks either way."""
    net = random_model(4, [2, 6, 6, 3], spread=0.05, likelihood="categorical")
    x = number([[0.4, -1.1], [1.2, 0.7]])
    params = sample(net.network, net.posterior, 3000, torch.Generator().manual_seed(0))
    y = torch.softmax(evaluate(net.network, x, params), -1)
    mean, error = y.mean(0), NORMAL * y.std(0) / np.sqrt(len(y)) + 1e-9
    asked = []
    rows = ExponentialMoments.rows
    monkeypatch.setattr(ExponentialMoments, "rows", lambda *given, **named: asked.append(1) or rows(*given, **named))
    for steps, by_moments in ((4, True), (1e-9, False)):
        monkeypatch.setattr(sys.modules["bnn_vnnlib.methods.decision.portfolio"], "_STEPS_OF_MOMENTS", steps)
        asked.clear()
        found = verify_batch(net, x.numpy(), x.numpy(), mean.argmax(-1).tolist(), query="decision", timeout=60.0)
        assert bool(asked) == by_moments
        assert (found.verdicts == "unsat").all()
        assert (torch.as_tensor(found.lower) <= mean + error).all()
        assert (torch.as_tensor(found.upper) >= mean - error).all()
