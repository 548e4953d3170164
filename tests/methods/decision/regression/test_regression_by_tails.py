"""Expected outputs by tails: what a tail says of the mean against known laws, whole networks against drawn ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bnn_vnnlib import verify_batch
from bnn_vnnlib.bounds.tails.tail import Martingale, Normal, Tail
from bnn_vnnlib.model import Component, Mixture, from_factor, sample
from bnn_vnnlib.network.evaluate import evaluate
from support.builders import random_model


@pytest.mark.parametrize("known", ["range", "part"])
@pytest.mark.parametrize("lost", [0.5, 0.1, 1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("mean", [-1.0, 0.0, 3.0])
@pytest.mark.parametrize("spread", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("low", [-7.0, 1.0, 2.0])
def test_the_mean_of_what_a_tail_knows(known, lost, mean, spread, low):
    """V = E' + M on G, M normal; where M is highest, G fails and V is as low as what is known of it allows."""
    paid = spread * norm.pdf(norm.isf(lost))  # E[M; not G]
    exact = mean * (1 - lost) - paid + low * lost
    sure, off = (low, np.inf) if known == "range" else (-np.inf, max(0.0, -low * lost))
    at, deviation, probability, least, d = (
        torch.full((1, 1, 1), one, dtype=torch.float64) for one in (mean, spread, lost, sure, off)
    )
    for tail in (Normal(at, deviation), Martingale(at, (deviation**2,), (None,))):
        found = float(Tail((tail,)).expectation(probability, least[0], d))
        assert found <= exact
        if known == "range" and low <= mean:
            assert found >= exact - 0.6 * paid - 1e-12
        if known == "part" and low <= 0 <= mean:
            assert found >= exact - 0.6 * paid - 1e-12


@pytest.mark.parametrize(
    ("activation", "widths"), [("tanh", [3, 8, 8, 2]), ("sigmoid", [3, 8, 8, 2]), ("tanh", [2, 5, 5, 5, 1])]
)
@pytest.mark.parametrize("spread", [0.05, 0.2])
@pytest.mark.parametrize("radius", [0.0, 0.05])
def test_drawn_means_lie_within(activation, widths, spread, radius):
    net = random_model(3, widths, spread=spread, activation=activation, likelihood="gaussian")
    x = np.random.default_rng(1).normal(size=(5, widths[0]))
    rows = [[(np.eye(widths[-1])[:1], np.array([-100.0]), np.array([False]))]] * 5
    found = verify_batch(net, x - radius, x + radius, properties=rows, query="decision")
    drawn = sample(net.network, net.posterior, 6000, torch.Generator().manual_seed(0))
    inside = x[None] + radius * np.random.default_rng(2).uniform(-1, 1, size=(6, *x.shape))
    y = evaluate(net.network, torch.tensor(inside.reshape(-1, widths[0])), drawn).unflatten(1, (6, 5))
    mean, error = y.mean(0).numpy(), (y.std(0) / len(y) ** 0.5).numpy()
    assert (found.lower <= mean + 6 * error).all()
    assert (mean - 6 * error <= found.upper).all()
    if spread == 0.05 and radius == 0:
        assert (found.upper - found.lower < 0.2 * (y.amax((0, 1)) - y.amin((0, 1))).numpy() + 0.2).all()
        assert "tails" in found.method


def test_a_last_layer_alone_makes_the_decision_the_mean_network():
    net = random_model(3, [3, 8, 8, 1], activation="tanh", likelihood="gaussian")
    factor = np.random.default_rng(0).normal(size=(9, 5))
    net = replace(net, posterior=from_factor(factor, {"W2": (1, 8), "b2": (1,)}))
    x = np.random.default_rng(1).normal(size=(4, 3))
    rows = [[(np.eye(1), np.array([-100.0]), np.array([False]))]] * 4
    found = verify_batch(net, x, x, properties=rows, query="decision")
    exact = evaluate(net.network, torch.tensor(x)).numpy()
    np.testing.assert_allclose(found.lower, exact, atol=1e-9)
    np.testing.assert_allclose(found.upper, exact, atol=1e-9)
    assert (found.lower <= exact).all()
    assert (exact <= found.upper).all()


@pytest.mark.parametrize("family", ["full", "mixture"])
@pytest.mark.parametrize("radius", [0.0, 0.03])
def test_dependent_weights(family, radius):
    net = random_model(3, [3, 6, 6, 1], activation="tanh", likelihood="gaussian")
    rng = np.random.default_rng(0)
    shapes = {name: values.shape for name, values in net.network.tensors.items() if name not in ("W2", "b2")}
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    full = from_factor(0.02 * rng.normal(size=(size, 4)), shapes)
    if family == "mixture":
        moved = {name: values + 0.3 for name, values in net.network.tensors.items()}
        parts = Component(net.network.tensors, net.posterior), Component(moved, full)
        net = replace(net, posterior=Mixture(parts, np.array([0.3, 0.7])))
    else:
        net = replace(net, posterior=full)
    x = rng.normal(size=(4, 3))
    rows = [[(np.eye(1), np.array([-100.0]), np.array([False]))]] * 4
    found = verify_batch(net, x - radius, x + radius, properties=rows, query="decision")
    y = evaluate(
        net.network, torch.tensor(x), sample(net.network, net.posterior, 8000, torch.Generator().manual_seed(0))
    )
    mean, error = y.mean(0).numpy(), (y.std(0) / len(y) ** 0.5).numpy()
    assert (found.lower <= mean + 6 * error).all()
    assert (mean - 6 * error <= found.upper).all()
    assert (found.upper - found.lower < 1.5).all()


def test_what_nothing_bounds_has_no_bound():
    """Exponentials of weights that depend on each other: V has no range and no known norm."""
    net = random_model(3, [2, 4, 1], activation="exp", likelihood="gaussian")
    shapes = {name: values.shape for name, values in net.network.tensors.items()}
    net = replace(net, posterior=from_factor(0.02 * np.random.default_rng(0).normal(size=(17, 4)), shapes))
    rows = [[(np.eye(1), np.array([-100.0]), np.array([False]))]]
    found = verify_batch(net, [[0.1, 0.2]], [[0.1, 0.2]], properties=rows, query="decision")
    assert (found.lower[0, 0], found.upper[0, 0]) == (-np.inf, np.inf)
    assert found.verdicts[0].value == "unknown"
