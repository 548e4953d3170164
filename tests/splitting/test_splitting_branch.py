"""Branch and bound over inputs and over neurons, judged by exact minima: one linear program an activation pattern."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bnn_vnnlib import Model
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, from_labels, from_property
from bnn_vnnlib.splitting.branch import Branching, Pairs
from bnn_vnnlib.splitting.branch_neurons import NeuronBranching
from bnn_vnnlib.system.clock import Deadline
from support.builders import model, problem, properties, random_model, random_samples, rows
from support.networks import dense_network

METHODS = [Branching, NeuronBranching]
CLOSE, APART = 1e-6, {Branching: 0.01, NeuronBranching: 1e-5}
"""Nothing wrong may be claimed that close to the exact minimum, and that far from it all is decided.

Inputs are split for ever along a flat minimum that lies across kinks; the leaves of neurons are exact.
"""

seeds = st.integers(0, 10**6)


def layers_of(net: Model, sample: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases of the mean network, or of one sample."""
    tensors = dict(net.network.tensors)
    if sample is not None:
        tensors |= {name: values[sample] for name, values in net.posterior.samples.items()}
    count = len(tensors) // 2
    return [(tensors[f"W{k}"], tensors[f"b{k}"]) for k in range(count)]


def least(layers, row: np.ndarray, low: np.ndarray, high: np.ndarray, slope: float = 0.0) -> float:
    """Minimum of row.f(x) over the box: every activation pattern is a linear program."""
    hidden = [len(b) for _, b in layers[:-1]]
    best = np.inf
    for pattern in itertools.product([0, 1], repeat=sum(hidden)):
        a, c, start = np.eye(len(low)), np.zeros(len(low)), 0
        signs, offsets = [], []
        for (w, b), size in zip(layers[:-1], hidden, strict=True):
            on = np.array(pattern[start : start + size])
            start += size
            a, c = w @ a, w @ c + b
            signs.append(np.where(on, -1, 1)[:, None] * a)
            offsets.append(np.where(on, 1, -1) * c)
            factor = np.where(on, 1.0, slope)
            a, c = factor[:, None] * a, factor * c
        w, b = layers[-1]
        found = linprog(
            row @ w @ a, A_ub=np.concatenate(signs), b_ub=np.concatenate(offsets),
            bounds=list(zip(low, high, strict=True)), method="highs",
        )  # fmt: skip
        if found.status == 0:
            best = min(best, found.fun + row @ (w @ c + b))
    return best


def decided(method, net: Model, question: Problem, *, most: int | None = 4096, deadline: Deadline = Deadline()):
    """Of all pairs of a weight setting and an item."""
    weights = weight_sets.mean_weights(net.network)
    if net.posterior is not None and hasattr(net.posterior, "samples"):
        weights = weight_sets.SampledWeights.of(net.network, net.posterior).boxes(
            torch.arange(len(net.posterior.probabilities))
        )
    open_ = torch.ones(weights.count, len(question), dtype=torch.bool)
    bounds = OutputBounds(Engine(net.network, deadline=deadline), "identity")
    return method(bounds, weights, question, open_, most).run()


@pytest.mark.parametrize("method", METHODS)
@given(seeds, st.sampled_from([(2, 4, 1), (3, 3, 3, 2), (5, 6, 2)]), st.sampled_from(["relu", "leaky_relu"]))
@settings(max_examples=12, deadline=None)
def test_both_sides_of_the_exact_minimum_are_told_apart(method, seed, widths, activation):
    net = random_model(seed, widths, activation=activation)
    rng = np.random.default_rng(seed)
    low = rng.normal(size=widths[0])
    high = low + rng.uniform(0, 2, size=widths[0])
    row = rng.normal(size=widths[-1])
    truth = least(layers_of(net), row, low, high, 0.01 if activation == "leaky_relu" else 0.0)
    for side, kind, other in ((-1, "safe", "violated"), (1, "violated", "safe")):
        for gap, most in ((CLOSE, 200), (APART[method], 4096)):
            question = problem(low, high, rows(row, truth + side * gap), outputs=widths[-1])
            found = decided(method, net, question, most=most)
            assert not bool(getattr(found, other)), (gap, kind, truth)
            assert bool(getattr(found, kind)) or gap == CLOSE, (kind, truth)


@pytest.mark.parametrize("method", METHODS)
@given(seeds)
@settings(max_examples=5, deadline=None)
def test_samples_items_and_cases_are_decided_each_for_itself(method, seed):
    """3 samples x 3 boxes x several cases, against the exact minima; and alone as in company."""
    net = random_samples(seed, (2, 3, 3), 3)
    rng = np.random.default_rng(seed)
    low = rng.normal(size=(3, 2))
    high = low + rng.uniform(0, 1.5, size=(3, 2))
    labels = rng.integers(0, 3, size=3)
    question = from_labels(torch.tensor(low), torch.tensor(high), torch.tensor(labels), 3)
    found = decided(method, net, question)
    for s, n in itertools.product(range(3), range(3)):
        margins = [
            least(layers_of(net, s), np.eye(3)[labels[n]] - np.eye(3)[j], low[n], high[n])
            for j in range(3)
            if j != labels[n]
        ]
        if abs(min(margins)) < APART[method]:
            assert not bool(found.safe[s, n] if min(margins) <= 0 else found.violated[s, n])
            continue
        assert bool(found.safe[s, n]) == (min(margins) > 0), (s, n, margins)
        assert bool(found.violated[s, n]) == (min(margins) <= 0), (s, n, margins)
        alone = decided(method, net, question.items(torch.tensor([n])))
        assert bool(alone.safe[s, 0]) == bool(found.safe[s, n])
    x = found.point[found.violated]
    inside = (torch.tensor(low) <= found.point) & (found.point <= torch.tensor(high))
    assert len(x) == 0 or bool(inside.all(-1)[found.violated].all())


@pytest.mark.parametrize("method", METHODS)
@given(seeds, st.integers(0, 2))
@settings(max_examples=12, deadline=None)
def test_several_rows_rows_on_inputs_and_constraints(method, seed, count):
    """A conjunction of rows c.y + g.x <= b under constraints on x, against a dense grid."""
    net = random_model(seed, (2, 4, 2))
    rng = np.random.default_rng(seed)
    low, high = np.array([-1.0, -1.0]), np.array([1.0, 1.0])
    a, g = rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
    b = rng.normal(size=2) - 0.5
    constraints = [(0, rng.normal(size=2), float(rng.normal()), False) for _ in range(count)]
    cases = [(0, [(a[0], g[0], b[0], False), (a[1], None, b[1], True)])]
    question = from_property(properties(net, [(low, high)], cases, constraints))
    found = decided(method, net, question, most=400)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 401)] * 2), -1).reshape(-1, 2)
    y = grid
    for k, (w, bias) in enumerate(layers_of(net)):
        y = y @ w.T + bias
        y = np.maximum(y, 0) if k == 0 else y
    inside = np.all([grid @ g_ <= b_ for _, g_, b_, _ in constraints], axis=0) if constraints else True
    bad = (y @ a[0] + grid @ g[0] <= b[0]) & (y @ a[1] < b[1]) & inside
    assert not (bool(found.safe) and bad.any())
    assert not (bool(found.safe) and bool(found.violated))
    if bad.mean() > 0.02:
        assert bool(found.violated)


@pytest.mark.parametrize("method", METHODS)
def test_little_work_leaves_open_and_claims_nothing(method):
    """Work that is cut short: what is claimed stays true, and some of it is left open."""
    net = random_model(3, (3, 12, 12, 1))
    low, high = -np.ones(3), np.ones(3)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 41)] * 3), -1).reshape(-1, 3)
    y = grid
    for k, (w, b) in enumerate(layers_of(net)):
        y = y @ w.T + b
        y = np.maximum(y, 0) if k < 2 else y
    least_seen = y.min()
    states = set()
    for most in (0, 1, 3, 10_000):
        gap = 0.02 if method is Branching else 0.2
        question = problem(low, high, rows(np.ones(1), least_seen - gap), outputs=1)
        found = decided(method, net, question, most=most)
        assert not bool(found.violated)
        states.add(bool(found.safe))
    assert states == {False, True}


@pytest.mark.parametrize("method", METHODS)
def test_no_time_decides_nothing(method):
    net = random_model(3, (3, 12, 12, 1))
    question = problem(-np.ones(3), np.ones(3), rows(np.ones(1), -100.0), outputs=1)
    found = decided(method, net, question, deadline=Deadline(0.0))
    assert not bool(found.safe)
    assert not bool(found.violated)


@pytest.mark.parametrize("method", METHODS)
def test_a_case_without_rows_is_violated_wherever_the_inputs_are(method):
    net = random_model(3, (2, 3, 1))
    property_ = properties(net, [(-np.ones(2), np.ones(2))], [(0, [])], [(0, [1.0, 1.0], 1.0, False)])
    found = decided(method, net, from_property(property_), most=50)
    assert bool(found.violated)
    property_ = properties(net, [(-np.ones(2), np.ones(2))], [(0, [])], [(0, [1.0, 1.0], -3.0, False)])
    found = decided(method, net, from_property(property_), most=50)
    assert not bool(found.violated)
    assert bool(found.safe)


def test_a_box_one_float_wide_ends():
    """A box that cannot be halved any more is given up, not halved for ever."""
    net = model([([[1.0]], [0.0]), ([[1.0]], [0.0])])
    low = np.array([1.0])
    high = np.nextafter(low, 2)
    found = decided(Branching, net, problem(low, high, rows([1.0], 1.0, [True]), outputs=1), most=None)
    assert not bool(found.violated)


def test_inputs_are_split_for_smooth_activations():
    net = random_model(5, (2, 6, 6, 1), activation="tanh")
    grid = torch.tensor(np.stack(np.meshgrid(*[np.linspace(-1, 1, 201)] * 2), -1).reshape(-1, 2))
    seen = evaluate(net.network, grid).min().item()
    for bound, kind in ((seen - 1e-3, "safe"), (seen + 1e-3, "violated")):
        found = decided(Branching, net, problem([-1, -1], [1, 1], rows([1.0], bound), outputs=1))
        assert bool(getattr(found, kind))


def test_one_setting_is_evaluated_with_its_own_weights() -> None:
    """Points are looked for under the setting, not under the tensors of the network, which may be its mean."""
    net = dense_network((2, 3, 2))
    centers = {name: torch.tensor(tensor)[None] + 1.0 for name, tensor in net.tensors.items()}
    weights = WeightBoxes(centers, {}, torch.ones(1, 1, dtype=torch.float64))
    zero = torch.zeros(3, 2, dtype=torch.float64)
    question = from_labels(zero, zero + 1, torch.zeros(3, dtype=torch.int64), 2)
    pairs = Pairs(OutputBounds(Engine(net), "identity"), weights, torch.zeros(3, dtype=torch.int64), question)
    x = torch.rand(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pairs.outputs(x), evaluate(net, x, centers)[0].reshape(3, 2))
    assert not torch.equal(pairs.outputs(x), evaluate(net, x).reshape(3, 2))
