"""Hand-made cases that broke a bound once, or were meant to."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from bnn_vnnlib import attach, verify_batch
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.splits import SplitEngine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import GaussianDiagonal, model_from_proto
from bnn_vnnlib.problem import refute, weight_sets
from bnn_vnnlib.splitting.branch import Branching, Pairs
from bnn_vnnlib.splitting.branch_neurons import NeuronBranching
from bnn_vnnlib.system.clock import Deadline, OutOfTime
from fuzz.posterior_families import CORRELATED, drawn
from support.builders import bounds_of, from_nodes, model, outputs, problem, rows
from support.networks import Builder


def nowhere(pairs: Pairs, x: torch.Tensor) -> torch.Tensor:
    """No point violates: what is left to a search is its proof."""
    return torch.zeros(len(x), dtype=torch.bool)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_boxes_are_cut_by_the_linear_functions_own_minimum(activation, monkeypatch):
    """A row's bound may be better than the minimum of the linear function below it; cutting a box by that function
    with the better bound cut violations off (and proved nets safe that are not).
    """
    monkeypatch.setattr(Pairs, "violated", nowhere)
    rng = np.random.default_rng(3)
    for _ in range(12):
        n, w = int(rng.integers(1, 3)), int(rng.integers(1, 6))
        layers = [(rng.normal(size=(a, b)), rng.normal(size=a)) for a, b in ((w, n), (w, w), (1, w))]
        net = model(layers, activation=activation)
        x, reach = rng.normal(size=n), rng.choice([1.0, 3.0])
        y = outputs(net, x + reach * (2 * rng.random((4000, n)) - 1))[:, 0]
        limit = float(np.quantile(y, rng.choice([1e-3, 0.01, 0.05])))
        question = problem(x - reach, x + reach, rows([[1.0]], [limit]))
        every = torch.ones(1, 1, dtype=torch.bool)
        found = Branching(bounds_of(net), weight_sets.mean_weights(net.network), question, every, 200).run()
        assert not found.safe.any() or not (y < limit - 1e-9 * (1 + abs(limit))).any()


@pytest.mark.parametrize(("deviation", "x"), [(1.0, 1.0), (1e150, 1e-170), (1e-150, 1e130)])
def test_moments_that_underflow(deviation, x):
    """E relu(w x) = .3989 sd x in any units: squares of tiny hidden values and deviations must not vanish."""
    net = model([([[0.0]], [0.0]), ([[1 / (deviation * x)]], [0.0]), ([[1.0]], [0.0])], likelihood="gaussian")
    net = replace(net, posterior=GaussianDiagonal({"W0": np.array([[deviation**2]])}))
    found = verify_batch(net, [[x]], [[x]], properties=[[rows([[1.0]], [0.0])]], query="decision")
    assert found.lower[0, 0] <= 1 / np.sqrt(2 * np.pi)
    assert found.upper[0, 0] >= 0.3990 - 1e-4


def test_combinations_that_underflow():
    """1e-200 * 1e-200 is lost, but z = 1e300: the rows hold (they are 1e-30 - 1e100 and less)."""
    rows_ = torch.tensor([[[1e200, -1e-200], [2e200, -1e-200]]], dtype=torch.float64)
    point = torch.tensor([[1e-230, 1e300]], dtype=torch.float64)
    system = refute._System(rows_, torch.zeros(1, 2, dtype=torch.float64), point, point)
    for multipliers in ([1e-200, 0.0], [0.0, 1e-200], [1e-200, 1e-200]):
        assert not refute._check(system, torch.tensor([multipliers], dtype=torch.float64)).any()
    assert not refute._infeasible(system, Deadline()).any()


@pytest.mark.parametrize("factor", [1.0, 1e-150, 1e-165, 1e-200])
@pytest.mark.parametrize("hidden", [False, True])
def test_deviations_whose_squares_underflow(factor, hidden):
    """y ~ N(0, 1) in any units; P(y > -.5) = .6915."""
    x = 1e150 if factor > 1e-160 else 1e130
    nodes = [
        helper.make_node("Mul", ["W", "factor"], ["small"]),
        helper.make_node("MatMul", ["x", "small"], ["h"]),
        helper.make_node("Relu", ["h"], ["z"]),
        helper.make_node("MatMul", ["z" if hidden else "h", "V"], ["y"]),
    ]
    nodes = nodes if hidden else [nodes[0], nodes[1], nodes[3]]
    sign = -1.0 if hidden else 1.0
    weights = {"W": np.zeros((1, 1)), "factor": np.array(factor), "V": np.array([[sign / (factor * x)]])}
    plain = from_nodes(nodes, weights, (1, 1), {"W": np.ones((1, 1))})
    net = model_from_proto(attach(onnx.load_from_string(plain.onnx_bytes), plain.posterior))
    for method in ("auto", "linear", "tails"):
        found = verify_batch(net, [[x]], [[x]], properties=[[rows([[1.0]], [-0.5])]], method=method, timeout=1)
        assert found.lower[0] <= 0.6915
        assert found.upper[0] >= 0.6914


@pytest.mark.parametrize(
    ("query", "end"),
    [("probabilistic", ["Softmax"]), ("deterministic", ["Softmax"]), ("decision", ["Softmax"]), ("decision", [])],
)
@pytest.mark.parametrize("family", ["variances", "samples"])
def test_softmax_of_one_output(query, end, family):
    """It is 1, whatever the weights; the decision is about it also where the graph ends before it."""
    layer = ([[1.0]], [1.0]) if family == "variances" else ([[[1.0]], [[2.0]]], [[0.0], [1.0]])
    net = model([([[1.0]], [0.0])], end=end, likelihood="categorical", **{family: [layer]})
    safe = verify_batch(net, [[-1.0]], [[1.0]], properties=[[rows([[1.0]], [0.5])]], query=query)
    assert safe.verdicts[0] == "unsat"
    tied = verify_batch(net, [[-1.0]], [[1.0]], properties=[[rows([[1.0]], [1.0])]], query=query)
    assert tied.verdicts[0] in ("sat", "unknown")


@pytest.mark.parametrize("family", CORRELATED)
def test_softmax_of_one_output_with_correlated_weights(family):
    net = model([([[1.0]], [0.0])], end=["Softmax"], likelihood="categorical")
    tensors = net.network.tensors
    posterior = drawn(family, tensors, {n: np.ones(t.shape) for n, t in tensors.items()}, np.random.default_rng(0), 2)
    net = replace(net, posterior=posterior)
    safe = verify_batch(net, [[-1.0]], [[1.0]], properties=[[rows([[1.0]], [0.5])]], query="decision")
    assert safe.verdicts[0] == "unsat"


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 20])
def test_time_that_ends_in_the_middle_of_a_split(calls, monkeypatch):
    """A part that was taken off the stack, and whose halves were never bounded, is not closed."""
    ascend, left = SplitEngine.ascend, [calls]

    def limited(*given):
        left[0] -= 1
        if left[0] < 0:
            raise OutOfTime
        return ascend(*given)

    monkeypatch.setattr(Pairs, "violated", nowhere)
    monkeypatch.setattr(SplitEngine, "ascend", limited)
    rng = np.random.default_rng(1)
    net = model([(rng.normal(size=(a, b)), rng.normal(size=a)) for a, b in ((4, 2), (1, 4))])
    y = outputs(net, 6 * rng.random((2000, 2)) - 3)[:, 0]
    question = problem([-3, -3], [3, 3], rows([[1.0]], [float(np.quantile(y, 0.2))]))
    every = torch.ones(1, 1, dtype=torch.bool)
    found = NeuronBranching(bounds_of(net), weight_sets.mean_weights(net.network), question, every, 1000).run()
    assert not found.safe.any()


@pytest.mark.parametrize("strict", [True, False])
def test_rows_that_only_fill_up_close_nothing(strict, monkeypatch):
    """Cases of one and of two rows side by side, all of which can hold."""
    monkeypatch.setattr(Pairs, "violated", nowhere)
    rng = np.random.default_rng(2)
    net = model([(rng.normal(size=(a, b)), rng.normal(size=a)) for a, b in ((4, 2), (2, 4))])
    one, two = rows([[1.0, 0.0]], [50.0], [strict]), rows(np.eye(2), [50.0, 50.0], [strict, strict])
    question = problem([-1, -1], [1, 1], one, two, outputs=2)
    every = torch.ones(1, 1, dtype=torch.bool)
    found = NeuronBranching(bounds_of(net), weight_sets.mean_weights(net.network), question, every, 100).run()
    assert not found.safe.any()


@pytest.mark.parametrize("method", ["linear", "interval"])
@pytest.mark.parametrize(
    ("row", "scale", "size"), [(1e-200, 1e-150, 1e150), (1e-300, 1e-30, 1e150), (5e-324, 0.3, 1e150)]
)
def test_rows_times_margins_that_underflow(method, row, scale, size):
    """|A| scale is lost, but spread and input are large: the row reaches -row scale spread x."""
    b = Builder()
    b.linear(b.input(1, 1), np.zeros((1, 1)))
    network = b.network()
    one = torch.ones(1, 1, dtype=torch.float64)
    weights = WeightBoxes({"w0": 0 * one[None]}, {"w0": size * one}, scale * one)
    found = Engine(network, method).rows(weights, size * one, size * one, row * one[None]).lower.item()
    assert Fraction(found) <= -Fraction(row) * Fraction(scale) * Fraction(size) ** 2
