"""Random networks, posteriors, boxes and properties: sampled networks under attack never contradict a bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from bnn_vnnlib import attack, verify, verify_batch
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.model import sample
from bnn_vnnlib.problem.problem import from_property
from support.builders import (
    outputs,
    problem,
    properties,
    random_model,
    random_samples,
    rows,
    sampled_violations,
)

LEVEL = 1e-9
SAMPLES = 300


def contradicts_lower(lower: float, violations: int, count: int = SAMPLES) -> bool:
    """Whether so many violations are impossible if P_safe >= lower."""
    return bool(stats.binom.sf(violations - 1, count, 1 - lower) < LEVEL)


def contradicts_mass(mass: float, violations: int, count: int = SAMPLES) -> bool:
    """Whether so few violations at one point are impossible if they have at least this probability."""
    return bool(stats.binom.cdf(violations, count, mass) < LEVEL)


def test_the_test_can_fail():
    assert contradicts_lower(0.99, 30)
    assert not contradicts_lower(0.9, 30)
    assert contradicts_mass(0.5, 30)
    assert not contradicts_mass(0.1, 30)


def drawn_case(rng: np.random.Generator, centre: np.ndarray, count: int):
    """One to three rows that hold near, or not far from, the output at the centre."""
    a = rng.normal(size=(count, len(centre)))
    return rows(a, a @ centre - rng.uniform(-0.2, 0.8, size=count), rng.random(count) < 0.5)


def violations_at(net, question, point: np.ndarray, seed: int, transform: str = "identity") -> int:
    params = sample(net.network, net.posterior, SAMPLES, torch.Generator().manual_seed(seed))
    x = torch.tensor(point).expand(SAMPLES, 1, 1, -1)
    return int((attack.violation(net.network, question, params, x, transform) <= 1e-9).sum())


shapes = st.sampled_from([[1, 3, 1], [2, 4, 2], [2, 5, 4, 3], [3, 6, 2]])
kinds = st.sampled_from(["relu", "tanh", "sigmoid", "leaky_relu"])


@given(
    st.integers(0, 10**6), shapes, kinds, st.sampled_from([0.02, 0.1, 0.5]), st.sampled_from([0.0, 0.05, 0.4]),
    st.sampled_from([[], ["Softmax"]]), st.sampled_from(["mean", "sampled"]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_p_safe_is_never_contradicted(seed, widths, activation, spread, radius, end, boxes):
    rng = np.random.default_rng(seed)
    if widths[-1] == 1:
        end = []
    net = random_model(seed, widths, spread=spread, activation=activation, end=end)
    x = rng.normal(size=widths[0])
    centre = outputs(net, x)
    centre, transform = (special.softmax(centre), "softmax") if end else (centre, "identity")
    cases = [drawn_case(rng, centre, rng.integers(1, 3)) for _ in range(rng.integers(1, 3))]
    low, high = x - radius, x + radius
    found = verify_batch(net, [low], [high], properties=[cases], query="probabilistic", boxes=boxes)
    question = problem(low, high, *cases, outputs=widths[-1])
    assert not contradicts_lower(found.lower[0], sampled_violations(net, question, SAMPLES, seed, transform))
    assert not contradicts_mass(1 - found.upper[0], violations_at(net, question, found.points[0], seed, transform))


@given(
    st.integers(0, 10**6),
    kinds,
    st.sampled_from([0.02, 0.2, 1.0]),
    st.sampled_from(["categorical", "bernoulli", "gaussian"]),
)
@settings(max_examples=15, deadline=None)
def test_decisions_are_never_contradicted(seed, activation, spread, likelihood):
    rng = np.random.default_rng(seed)
    net = random_model(seed, [2, 5, 4, 3], spread=spread, activation=activation, likelihood=likelihood)
    low = rng.normal(size=2)
    high = low + rng.choice([0.0, 0.3])
    a = rng.normal(size=3)
    found = verify_batch(net, [low], [high], properties=[[rows([a], [0.0])]], query="decision")
    params = sample(net.network, net.posterior, 2000, torch.Generator().manual_seed(seed))
    x = low + (high - low) * rng.random((8, 2)).round(1)
    y = outputs(net, x, params)
    link = {"categorical": lambda v: special.softmax(v, -1), "bernoulli": special.expit, "gaussian": np.asarray}[
        likelihood
    ]
    y = np.concatenate([link(y), (link(y) @ a)[..., None]], -1)
    slack = 7 * y.std(0) / np.sqrt(len(y)) + 1e-9
    below = np.append(found.lower[0], found.row_lower[0])
    above = np.append(found.upper[0], found.row_upper[0])
    assert (below <= y.mean(0) + slack).all()
    assert (above >= y.mean(0) - slack).all()


@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.5]), st.sampled_from([0.0, 0.2, 1.0]))
@settings(max_examples=15, deadline=None)
def test_samples_of_piecewise_linear_networks_are_enumerated(seed, spread, radius):
    """One input and one hidden ReLU layer: every sample is extreme at an end or at a kink, so all is known."""
    rng = np.random.default_rng(seed)
    net = random_samples(seed, [1, 4, 1], 6, spread=spread, likelihood="gaussian")
    drawn, weights = net.posterior.samples, net.posterior.probabilities
    middle = rng.normal()
    low, high = middle - radius, middle + radius
    kinks = np.clip(-drawn["b0"] / drawn["W0"][..., 0], low, high)
    x = np.unique(np.concatenate([[low, high], kinks.ravel()]))
    y = outputs(net, x[:, None], {k: torch.tensor(v) for k, v in drawn.items()})[..., 0]  # (6, points)
    bound = float(np.median(y)) + 0.3 * rng.normal()
    safe = y.min(1) > bound  # V: y <= bound
    found = verify_batch(net, [[low]], [[high]], properties=[[rows([[1.0]], [bound])]], query="probabilistic")
    assert found.lower[0] <= weights[safe].sum() + 1e-12
    assert found.upper[0] >= weights[safe].sum() - 1e-12
    if radius == 0:
        assert found.lower[0] == pytest.approx(weights[safe].sum(), abs=1e-9)
        assert found.upper[0] == pytest.approx(weights[safe].sum(), abs=1e-9)
    decided = verify_batch(net, [[low]], [[high]], properties=[[rows([[1.0]], [bound])]], query="decision")
    mean = weights @ y
    assert decided.lower[0, 0] <= mean.min() + 1e-12
    assert decided.upper[0, 0] >= mean.max() - 1e-12


@given(st.integers(0, 10**6), kinds)
@settings(max_examples=15, deadline=None)
def test_samples_on_a_grid_of_inputs(seed, activation):
    rng = np.random.default_rng(seed)
    net = random_samples(seed, [2, 5, 3], 5, activation=activation, likelihood="categorical")
    weights = net.posterior.probabilities
    low = rng.normal(size=2)
    axis = np.linspace(0, 0.4, 15)
    x = low + np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    logits = outputs(net, x, {k: torch.tensor(v) for k, v in net.posterior.samples.items()})
    label = int(logits.mean((0, 1)).argmax())
    others = np.delete(logits, label, -1).max(-1)
    violated = (others >= logits[..., label]).any(1)
    found = verify_batch(net, [low], [low + 0.4], labels=[label])
    assert found.lower[0] <= 1 - weights[violated].sum() + 1e-12
    assert found.lower[0] <= found.upper[0]
    decided = verify_batch(net, [low], [low + 0.4], labels=[label], query="decision")
    mean = np.tensordot(weights, special.softmax(logits, -1), 1)
    assert (decided.lower[0] <= mean.min(0) + 1e-12).all()
    assert (decided.upper[0] >= mean.max(0) - 1e-12).all()
    differences = mean[:, [label]] - np.delete(mean, label, -1)
    assert (decided.row_lower[0] <= differences.min(0) + 1e-12).all()
    assert (decided.row_upper[0] >= differences.max(0) - 1e-12).all()


@given(st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_mixed_rows_and_constraints_are_never_contradicted(seed):
    rng = np.random.default_rng(seed)
    net = random_model(seed, [2, 4, 2], spread=0.15)
    boxes = [(rng.normal(size=2) - 0.2,) for _ in range(2)]
    boxes = [(low, low + 0.4) for (low,) in boxes]
    cases = []
    for k, (low, _) in enumerate(boxes):
        centre = outputs(net, low + 0.2)
        a, g = rng.normal(size=2), rng.normal(size=2)
        cases.append((k, [(a, g, float(a @ centre + g @ (low + 0.2) - rng.uniform(-0.1, 0.5)), False)]))
    g = rng.normal(size=2)
    prop = properties(net, boxes, cases, [(0, g, float(g @ (boxes[0][0] + 0.2)), False)])
    question = from_property(prop)
    found = verify(net, prop, query="probabilistic")
    params = sample(net.network, net.posterior, SAMPLES, torch.Generator().manual_seed(seed))
    x, value = attack.run(net.network, question, params, Attack(steps=10, restarts=2, seed=seed))
    inside = (x[:, 0] @ torch.tensor(g)) <= g @ (boxes[0][0] + 0.2)
    broken = ((value[:, 0] < -1e-9) & inside) | (value[:, 1] < -1e-9)
    assert not contradicts_lower(found.p_safe.lower, int(broken.sum()))
