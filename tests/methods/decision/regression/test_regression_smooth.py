"""Expectations of networks with one hidden tanh or sigmoid layer against mpmath, quadrature and brute force."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib import Model
from bnn_vnnlib.gaussian.tanh import _DERIVATIVES, PowerSeries, expectations_for
from bnn_vnnlib.methods.decision.regression.one_layer import C2, C3, C4, by_coordinates, convexified, least_quadratic
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.dense_chain import dense_chain
from bnn_vnnlib.system.clock import Deadline
from support.builders import model, outputs, random_model, regression_methods

CPU = torch.device("cpu")
BOTH = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
NODES = np.arange(-9, 9, 1 / 40)
WEIGHTS = np.exp(-(NODES**2) / 2)
"""A trapezoidal rule that is good to 1e-12 for s < 3."""


def tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(value, np.float64))


def ranges(net: Model, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (method,) = regression_methods(net, Deadline())
    found = method.lower(tensor(lower), tensor(upper), BOTH).numpy()
    return found[:, 0], -found[:, 1]


def by_quadrature(net: Model, x: np.ndarray, activation: str) -> np.ndarray:
    """E f at points (B, n), by a fine rule."""
    chain = dense_chain(net.network, net.posterior, CPU)
    assert chain is not None
    hidden, top = chain.layers
    m = x @ hidden.mean.numpy().T + hidden.bias.numpy()
    s = np.sqrt(x**2 @ hidden.variance.numpy().T + hidden.bias_variance.numpy())
    z = m[..., None] + s[..., None] * NODES
    h = np.tanh(z) if activation == "tanh" else 1 / (1 + np.exp(-z))
    return (h @ WEIGHTS / WEIGHTS.sum()) @ top.mean.numpy().T + top.bias.numpy()


@pytest.mark.parametrize("large", [1.0, 10.0])
def test_a_steady_neuron_beside_one_with_a_large_deviation(large: float) -> None:
    """Fine steps for one neuron must not cost the other its bound: D = E tanh(N(0, large^2)) + tanh(1) = tanh(1)."""
    net = model(
        [([[0.0], [0.0]], [0.0, 1.0]), ([[1.0, 1.0]], [0.0])], [([[0], [0]], [large**2, 0.0]), ([[0, 0]], [0])],
        activation="tanh",
    )  # fmt: skip
    (method,) = regression_methods(net, Deadline())
    zero = torch.zeros(1, 1, dtype=torch.float64)
    found = method.lower(zero, zero, torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64))[0].numpy()
    assert found[0] <= np.tanh(1) <= -found[1]
    assert -found[1] - found[0] < 1e-8


def test_constants_bound_the_derivatives_of_tanh() -> None:
    t = np.linspace(-1, 1, 200_001)
    derivative, found = np.polynomial.Polynomial([0.0, 1.0]), []
    for _ in range(8):
        derivative = derivative.deriv() * np.polynomial.Polynomial([1.0, 0.0, -1.0])
        found.append(np.abs(derivative(t)).max())
    assert found[1] < C2 < found[1] * 1.001
    assert found[2] == C3  # at 0
    assert found[3] < C4 < found[3] * 1.001
    assert (np.array(found[5:]) < _DERIVATIVES).all()


@pytest.mark.parametrize("s", [0.0, 1e-3, 0.03, 0.1, 0.5, 1.0, 3.0, 8.0])
def test_expectations_of_tanh_and_their_errors(s: float) -> None:
    points = np.array([-20.0, -2.0, 0.0, 0.7, 5.0])
    way = expectations_for(tensor(s))
    assert isinstance(way, PowerSeries) == (s <= 0.03)
    got, errors = way.values(tensor(points), tensor(s).expand(5)), way.errors(tensor(s))
    shapes = (mpmath.tanh, lambda z: mpmath.sech(z) ** 2, lambda z: -2 * mpmath.tanh(z) * mpmath.sech(z) ** 2)
    with mpmath.workdps(20):
        for shape, values, error in zip(shapes, got, errors, strict=True):
            assert float(error) < 1e-7
            for m, value in zip(points, values.numpy(), strict=True):
                kinks = [
                    -12,
                    *sorted({min(max(-m / max(s, 1e-9) + d / max(s, 1e-9), -12), 12) for d in (-3, 0, 3)}),
                    12,
                ]
                exact = mpmath.quad(lambda t, m=m, f=shape: f(m + s * t) * mpmath.npdf(t), kinks)
                assert abs(exact - mpmath.mpf(float(value))) <= mpmath.mpf(float(error))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("spread", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("inputs", [1, 2])
def test_ranges_enclose_a_dense_grid_and_are_tight(activation: str, spread: float, inputs: int) -> None:
    for seed in range(3):
        net = random_model(seed, [inputs, 7, 1], spread=spread, activation=activation)
        rng = np.random.default_rng(seed)
        center, radius = rng.normal(size=inputs), rng.choice([0.0, 0.05, 0.5, 2.0], size=inputs)
        lower, upper = center - radius, center + radius
        low, high = ranges(net, lower[None], upper[None])
        axes = [np.linspace(a, b, 301 if inputs == 1 else 41) for a, b in zip(lower, upper, strict=True)]
        x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, inputs)
        values = by_quadrature(net, x, activation)
        assert low[0] <= values.min() + 1e-11
        assert values.max() - 1e-11 <= high[0]
        room = 0.01 * (values.max() - values.min()) + 1e-7
        assert values.min() - low[0] < room
        assert high[0] - values.max() < room


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 12), st.sampled_from([1e-3, 0.1, 1.0]))
@settings(max_examples=20, deadline=None)
def test_no_point_is_outside(seed: int, inputs: int, width: int, spread: float) -> None:
    activation = ("tanh", "sigmoid")[seed % 2]
    net = random_model(seed, [inputs, width, 1], spread=spread, activation=activation)
    rng = np.random.default_rng(seed)
    lower = rng.normal(size=(3, inputs))
    upper = lower + rng.choice([0.0, 0.1, 1.0], size=(3, inputs))
    low, high = ranges(net, lower, upper)
    x = lower + rng.choice([0.0, 0.5, 1.0], size=(50, 3, inputs)) * (upper - lower)
    values = by_quadrature(net, x, activation)[..., 0]
    assert (low <= values.min(0) + 1e-10).all()
    assert (values.max(0) - 1e-10 <= high).all()


def test_sampled_weights() -> None:
    net = random_model(5, [3, 8, 1], spread=0.7, activation="sigmoid")
    x = np.array([[0.4, -1.0, 0.2]])
    params = sample(net.network, net.posterior, 40_000, torch.Generator().manual_seed(0))
    drawn = outputs(net, x, params).reshape(-1)
    low, high = ranges(net, x, x)
    assert abs(drawn.mean() - low[0]) < 6 * drawn.std() / 200
    assert high[0] - low[0] < 1e-8


def test_an_item_does_not_depend_on_its_neighbours() -> None:
    net = random_model(7, [3, 10, 1], spread=0.3, activation="tanh")
    rng = np.random.default_rng(1)
    lower = rng.normal(size=(5, 3))
    upper = lower + rng.uniform(0, 0.6, size=(5, 3))
    together = ranges(net, lower, upper)
    for i in range(5):
        alone = ranges(net, lower[i : i + 1], upper[i : i + 1])
        assert alone[0][0] == pytest.approx(together[0][i], abs=1e-9)
        assert alone[1][0] == pytest.approx(together[1][i], abs=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_quadratics_stay_above_their_bounds(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    slope, r = rng.normal(size=n), rng.choice([0.0, 0.3, 1.0], size=n)
    half = rng.normal(size=(n, n)) * 10.0 ** rng.integers(-3, 2)
    curve = half + half.T
    axes = [np.linspace(-1, 1, 21)] * n
    d = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, n) * r
    smallest = (d @ slope + np.einsum("bi,ij,bj->b", d, curve, d) / 2).min()
    g, h, radius = tensor(slope)[None], tensor(curve)[None], tensor(r)[None]
    scaled = h * radius[:, :, None] * radius[:, None]
    for bound in (
        least_quadratic(g, h, radius), by_coordinates(g, h, radius), convexified(g * radius, scaled, radius > 0)
    ):  # fmt: skip
        assert float(bound) <= smallest + 1e-12 * (1 + abs(smallest))


def test_a_convex_quadratic_is_minimised_almost_exactly() -> None:
    curve = tensor([[[2.0, 1.9], [1.9, 2.0]]])
    g, r = tensor([[0.3, 0.1]]), tensor([[1.0, 1.0]])
    d = np.stack(np.meshgrid(*[np.linspace(-1, 1, 801)] * 2), -1).reshape(-1, 2)
    smallest = (d @ g[0].numpy() + np.einsum("bi,ij,bj->b", d, curve[0].numpy(), d) / 2).min()
    assert float(least_quadratic(g, curve, r)) > smallest - 0.05
    assert float(by_coordinates(g, curve, r)) < smallest - 1
