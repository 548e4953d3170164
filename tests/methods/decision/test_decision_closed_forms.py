"""Networks so small that P_safe and D are known: linear ones in closed form, others by quadrature over weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from scipy import special, stats

from bnn_vnnlib import BatchResult, verify_batch
from bnn_vnnlib.methods.decision import by_weights
from bnn_vnnlib.methods.decision.by_weights import output_norms
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem import weight_sets
from support.builders import from_nodes, model, random_model, rows

ROUNDING = 1e-9


def p_safe(net, lower, upper, *cases, **settings_) -> tuple[float, float]:
    found = verify_batch(net, [lower], [upper], properties=[list(cases)], query="probabilistic", **settings_)
    return float(found.lower[0]), float(found.upper[0])


seeds = st.integers(0, 10**6)


@given(seeds, st.integers(1, 4), st.sampled_from(["mean", "sampled"]), st.sampled_from(["interval", "linear"]))
@settings(max_examples=25, deadline=None)
def test_one_row_of_a_linear_network_at_a_point(seed, size, boxes, method):
    rng = np.random.default_rng(seed)
    w, b, x = rng.normal(size=(1, size)), rng.normal(size=1), rng.normal(size=size)
    sw, sb = rng.uniform(0.05, 1, size=(1, size)), rng.uniform(0, 1, size=1)
    net = model([(w, b)], [(sw**2, sb**2)])
    mean, deviation = float(w[0] @ x + b[0]), float(np.sqrt((sw[0] * x) ** 2 @ np.ones(size) + sb[0] ** 2))
    bound = mean - deviation * rng.normal()
    truth = stats.norm.sf((bound - mean) / deviation)  # V: y <= bound
    lower, upper = p_safe(net, x, x, rows([[1.0]], [bound]), boxes=boxes, method=method)
    assert lower <= truth + ROUNDING
    assert upper >= truth - ROUNDING


@pytest.mark.parametrize("distance", [0.3, 1.0, 2.0, 3.5, 6.0])
@pytest.mark.parametrize("method", ["interval", "linear"])
def test_one_weight_is_decided_as_well_as_one_symmetric_box_can(distance, method):
    """V: w <= -distance. The largest safe box at the mean has the mass of |w| < distance."""
    lower, upper = p_safe(
        model([([[0.0]], [0.0])], [([[1.0]], None)]), [1.0], [1.0], rows([[1.0]], [-distance]), method=method
    )
    assert 1 - 2 * stats.norm.sf(distance) - 0.02 <= lower <= stats.norm.cdf(distance)
    assert upper == 1.0
    lower, upper = p_safe(
        model([([[0.0]], [0.0])], [([[1.0]], None)]), [1.0], [1.0], rows([[1.0]], [distance]), method=method
    )
    assert lower == 0.0
    assert stats.norm.sf(distance) <= upper <= 2 * stats.norm.sf(distance) + 0.02


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_a_line_over_an_interval(seed):
    """y = w x + b over [l, u], V: y >= c: safe where the line is below c at both ends, an interval of w."""
    rng = np.random.default_rng(seed)
    mu, sd, b = rng.normal(), rng.uniform(0.05, 1.0), rng.normal()
    low, high = np.sort(rng.uniform(-2, 2, 2))
    c = b + rng.uniform(0.0, 3.0)
    ends = [((c - b) / x, x > 0) for x in (low, high)]
    most = min([limit for limit, positive in ends if positive], default=np.inf)
    least = max([limit for limit, positive in ends if not positive], default=-np.inf)
    truth = max(0.0, float(stats.norm.cdf((most - mu) / sd) - stats.norm.cdf((least - mu) / sd)))
    net = model([([[mu]], [b])], [([[sd**2]], None)])
    for method in ("interval", "linear"):
        lower, upper = p_safe(net, [low], [high], rows([[-1.0]], [-c]), method=method)
        assert lower <= truth + ROUNDING
        assert upper >= truth - ROUNDING


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_two_rows_of_a_linear_network_at_a_point(seed):
    """V: both outputs <= 0, weights independent between the rows: the probabilities multiply."""
    rng = np.random.default_rng(seed)
    w, sd, x = rng.normal(size=(2, 2)), rng.uniform(0.1, 1.0, size=(2, 2)), rng.normal(size=2)
    net = model([(w, np.zeros(2))], [(sd**2, None)])
    single = stats.norm.cdf(0, w @ x, np.sqrt((sd * x) ** 2 @ np.ones(2)))
    lower, upper = p_safe(net, x, x, rows(np.eye(2), [0.0, 0.0]))
    assert lower <= 1 - single.prod() + ROUNDING
    assert upper >= 1 - single.prod() - ROUNDING
    lower, upper = p_safe(net, x, x, rows([[1.0, 0.0]], [0.0]), rows([[0.0, 1.0]], [0.0]))
    assert lower <= (1 - single).prod() + ROUNDING
    assert upper >= (1 - single).prod() - ROUNDING


def decide(net, lower, upper, query_rows, **settings_) -> BatchResult:
    return verify_batch(net, lower, upper, properties=[[rows(*query_rows)]], query="decision", **settings_)


@given(seeds, st.sampled_from(["mean", "sampled"]))
@settings(max_examples=30, deadline=None)
def test_the_decision_of_a_linear_regression_is_its_mean(seed, boxes):
    rng = np.random.default_rng(seed)
    w, b = rng.normal(size=(2, 3)), rng.normal(size=2)
    net = model([(w, b)], [(rng.uniform(0, 0.3, size=(2, 3)), rng.uniform(0, 0.3, size=2))], likelihood="gaussian")
    low = rng.normal(size=3)
    high = low + rng.uniform(0, 0.5, size=3)
    found = decide(net, [low], [high], ([[1.0, -2.0]], [0.0]), boxes=boxes)
    x = low + (high - low) * rng.integers(0, 2, size=(30, 3))
    mean = x @ w.T + b
    assert (found.lower[0] <= mean + ROUNDING).all()
    assert (found.upper[0] >= mean - ROUNDING).all()
    row = mean @ [1.0, -2.0]
    assert found.row_lower[0, 0] <= row.min() + ROUNDING
    assert found.row_upper[0, 0] >= row.max() - ROUNDING


def test_the_decision_without_variance_is_exact():
    net = model([([[2.0]], [1.0])], [([[0.0]], None)], likelihood="gaussian")
    found = decide(net, [[1.0], [0.0]], [[1.0], [2.0]], ([[1.0]], [0.0]))
    np.testing.assert_allclose(found.lower[:, 0], [3.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(found.upper[:, 0], [3.0, 5.0], atol=1e-12)


# quantiles of the midpoints of equal slices of probability: integrals over N(0, 1) become means
SLICES = 400


def weight_grid(count: int, slices: int = SLICES) -> np.ndarray:
    """(number of nodes, count) standard normal weights, all of equal probability."""
    nodes = special.ndtri((np.arange(slices) + 0.5) / slices)
    return np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * count, indexing="ij")], 1)


ACTIVATION = {"relu": lambda z: np.maximum(z, 0), "tanh": np.tanh, "sigmoid": special.expit}


def bent(activation: str, rng: np.random.Generator, two: bool, **settings_):
    """y = w2 act(w1 x + b1) + b2 with one or two random weights, and (x, standard weights) -> y."""
    mean, sd, bias = rng.normal(size=2), rng.uniform(0.1, 0.8, size=2), rng.normal(size=2)
    sd = sd if two else sd * [1, 0]
    net = model(
        [([[mean[0]]], [bias[0]]), ([[mean[1]]], [bias[1]])],
        [([[sd[0] ** 2]], None), ([[sd[1] ** 2]], None)], activation=activation, **settings_,
    )  # fmt: skip

    def output(x: float, z: np.ndarray) -> np.ndarray:
        second = mean[1] + (sd[1] * z[:, 1] if two else 0.0)
        return second * ACTIVATION[activation]((mean[0] + sd[0] * z[:, 0]) * x + bias[0]) + bias[1]

    return net, output


@given(seeds, st.sampled_from(["relu", "tanh", "sigmoid"]), st.booleans(), st.sampled_from(["mean", "sampled"]))
@settings(max_examples=25, deadline=None)
def test_p_safe_of_one_and_two_weights_by_quadrature(seed, activation, two, boxes):
    rng = np.random.default_rng(seed)
    net, output = bent(activation, rng, two)
    low = rng.normal()
    high = low + rng.uniform(0, 0.5)
    z = weight_grid(2 if two else 1)
    ends = np.stack([output(low, z), output(high, z)])  # y is monotone in x: the ends are extreme
    bound = float(np.median(ends)) + rng.normal() * 0.5
    truth = float((ends.min(0) > bound).mean())  # V: y <= bound
    lower, upper = p_safe(net, [low], [high], rows([[1.0]], [bound]), boxes=boxes)
    slack = 4 / SLICES
    assert lower <= truth + slack
    assert upper >= truth - slack


@given(seeds, st.sampled_from(["relu", "tanh", "sigmoid"]), st.booleans(), st.sampled_from(["gaussian", "bernoulli"]))
@settings(max_examples=25, deadline=None)
def test_the_decision_of_one_and_two_weights_by_quadrature(seed, activation, two, likelihood):
    rng = np.random.default_rng(seed)
    net, output = bent(activation, rng, two, likelihood=likelihood)
    low = rng.normal()
    high = low + rng.uniform(0, 0.5)
    z = weight_grid(2 if two else 1)
    found = decide(net, [[low]], [[high]], ([[1.0]], [0.0]))
    link = special.expit if likelihood == "bernoulli" else np.asarray
    for x in np.linspace(low, high, 7):
        truth = float(link(output(x, z)).mean())
        assert found.lower[0, 0] <= truth + 2e-3
        assert found.upper[0, 0] >= truth - 2e-3
        assert found.row_lower[0, 0] <= truth + 2e-3
        assert found.row_upper[0, 0] >= truth - 2e-3


@given(seeds, st.sampled_from(["logits", "Softmax"]), st.sampled_from(["mean", "sampled"]))
@settings(max_examples=15, deadline=None)
def test_the_decision_of_a_softmax_by_quadrature(seed, kind, boxes):
    """Three classes, two random weights: f = (w1 x, w2 x, 1); constants and differences of probabilities."""
    rng = np.random.default_rng(seed)
    mean, sd = rng.normal(size=2), rng.uniform(0.1, 0.8, size=2)
    net = model(
        [([[mean[0]], [mean[1]], [0.0]], [0.0, 0.0, 1.0])],
        [([[sd[0] ** 2], [sd[1] ** 2], [0.0]], None)],
        likelihood="categorical", end=["Softmax"] if kind == "Softmax" else [],
    )  # fmt: skip
    low = rng.normal()
    high = low + rng.uniform(0, 0.3)
    weights = mean + sd * weight_grid(2, 150)
    found = decide(net, [[low]], [[high]], ([[1.0, -1.0, 0.0], [0.0, 0.3, 0.7]], [0.0, 0.2]), boxes=boxes)
    for x in np.linspace(low, high, 4):
        truth = special.softmax(np.column_stack([weights * x, np.ones(len(weights))]), axis=1).mean(0)
        assert (found.lower[0] <= truth + 3e-3).all()
        assert (found.upper[0] >= truth - 3e-3).all()
        row = np.array([truth[0] - truth[1], 0.3 * truth[1] + 0.7 * truth[2]])
        assert (found.row_lower[0] <= row + 3e-3).all()
        assert (found.row_upper[0] >= row - 3e-3).all()


@given(seeds, st.sampled_from(["relu", "tanh", "sigmoid", "leaky_relu"]), st.floats(0.05, 3.0))
@settings(max_examples=30, deadline=None)
def test_second_moments_are_above_those_of_sampled_networks(seed, activation, spread):
    net = random_model(seed, [2, 4, 3, 2], spread=spread, activation=activation)
    low = torch.tensor([[-1.0, 0.5]], dtype=torch.float64)
    high = torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    norms = output_norms(net.network, weight_sets.centred(net.network, net.posterior), low, high)[0]
    drawn = sample(net.network, net.posterior, 4000, torch.Generator().manual_seed(seed))
    share = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).round(decimals=1)
    squares = evaluate(net.network, low + (high - low) * share, drawn) ** 2  # (4000, 12, 2)
    slack = 7 * squares.std(0) / np.sqrt(len(squares))
    assert bool((squares.mean(0) - slack <= norms**2).all())


def test_second_moments_are_exact_for_one_weight():
    net = model([([[2.0]], [0.0])], [([[9.0]], None)])
    low, high = torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)
    norm = output_norms(net.network, weight_sets.centred(net.network, net.posterior), low, high)
    assert float(norm) == pytest.approx(3 * np.sqrt(4 + 9), rel=1e-9)


def twice(nodes: list, weights: dict, size: int, variances: dict) -> torch.Tensor:
    net = from_nodes(nodes, weights, (1, size), variances, likelihood="gaussian")
    one = torch.ones(1, size, dtype=torch.float64)
    return output_norms(net.network, weight_sets.centred(net.network, net.posterior), one, one)


def test_the_norm_of_a_weight_that_two_layers_share_is_one_of_its_square():
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="h"),
        helper.make_node("MatMul", ["h", "W"], ["y"], name="y"),
    ]
    found = twice(nodes, {"W": np.zeros((1, 1))}, 1, {"W": [[1.0]]}).item()
    assert np.sqrt(3) <= found <= 2.5  # E (w w)^2 = 3, and 1 for two independent weights


def test_a_decision_without_a_norm_says_nothing():
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="h"),
        helper.make_node("Exp", ["h"], ["e"], name="e"),
        helper.make_node("Exp", ["e"], ["y"], name="y"),
    ]
    net = from_nodes(nodes, {"W": np.zeros((1, 1))}, (1, 1), {"W": [[1.0]]}, likelihood="gaussian")
    found = decide(net, [[1.0]], [[1.0]], ([[1.0]], [0.5]))  # D = E exp(exp(w)) is infinite
    assert found.upper[0, 0] == np.inf


def test_copies_of_a_weight_are_not_independent():
    """y = w (x1 + x2): E y^2 = 4 at (1, 1); two independent weights would give 2."""
    nodes = [
        helper.make_node("Tile", ["w", "repeats"], ["W"], name="tile"),
        helper.make_node("MatMul", ["x", "W"], ["y"], name="y"),
    ]
    norm = twice(nodes, {"w": np.zeros((1, 1)), "repeats": np.array([2, 1])}, 2, {"w": [[1.0]]})
    assert 2.0 <= norm.item() <= 2.0 + ROUNDING


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_a_copied_weight_in_p_safe_and_in_the_decision(spread):
    nodes = [
        helper.make_node("Tile", ["w", "repeats"], ["W"], name="tile"),
        helper.make_node("MatMul", ["x", "W"], ["z"], name="z"),
        helper.make_node("Relu", ["z"], ["y"], name="y"),
    ]
    weights = {"w": np.zeros((1, 1)), "repeats": np.array([2, 1])}
    net = from_nodes(nodes, weights, (1, 2), {"w": [[spread**2]]}, likelihood="gaussian")
    truth = 2 * spread / np.sqrt(2 * np.pi)  # E relu(2 w)
    for margin in (None, 0.5, 1.0):
        found = decide(net, [[1.0, 1.0]], [[1.0, 1.0]], ([[1.0]], [0.0]), margin=margin)
        assert found.lower[0, 0] <= truth <= found.upper[0, 0]
    lower, upper = p_safe(net, [1.0, 1.0], [1.0, 1.0], rows([[-1.0]], [-1.0]))
    assert lower <= stats.norm.cdf(0.5 / spread) <= upper


class Uncertain:
    """A union of which no more is known than that its mass lies in [.2, .9]."""

    def union_lower(self, member: torch.Tensor) -> torch.Tensor:
        return 0.2 * member.any(-1).double()

    def union_upper(self, member: torch.Tensor) -> torch.Tensor:
        return 0.9 * member.any(-1).double()


@pytest.mark.parametrize(("value", "least"), [(-1.0, -0.9), (1.0, 0.2)])
def test_a_value_counts_with_the_mass_that_hurts(value, least):
    """The row has this value on the union and vanishes off it: E = value times the mass, whatever that is."""
    values, norm = torch.full((1, 1, 3), value, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    found = by_weights.on_union(values, 3, 3, Uncertain(), norm)
    assert float(found) <= least
    assert float(found) == pytest.approx(least, abs=1e-12)
