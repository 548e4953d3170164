"""Tail bounds against closed forms and quadrature."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bnn_vnnlib.network import evaluate
from bnn_vnnlib.problem.weight_sets import all_params
from support.networks import Array, Builder, dense_network
from support.tails import (
    SMOOTH,
    Case,
    failures,
    random_sources,
    setup,
    tensor,
)
from support.zoo import IMAGE, PIECES, bare


@pytest.mark.parametrize("z", [-3.0, 0.0, 0.5, 2.0, 7.0, 20.0, 36.0])
def test_a_linear_layer_at_a_point_is_exact(z: float) -> None:
    """P(c (W x + b) <= t) is a normal probability, on both sides of the mean."""
    rng = np.random.default_rng(0)
    builder = Builder(1)
    builder.dense(builder.input(1, 4), 3)
    network = builder.network()
    sd = {"w0": rng.random((3, 4)), "w1": rng.random(3)}
    x, c = rng.normal(size=4), rng.normal(size=3)
    mean = c @ (network.tensors["w0"] @ x + network.tensors["w1"])
    spread = math.sqrt((c**2 @ sd["w0"] ** 2) @ x**2 + c**2 @ sd["w1"] ** 2)
    found = failures(network, sd, (x, x), [c], [mean - z * spread]).item()
    exact = float(mpmath.ncdf(-mpmath.mpf(z)))
    assert exact <= found * (1 + 1e-12)
    assert found == pytest.approx(exact, rel=1e-9)


def test_a_deterministic_network_is_an_indicator() -> None:
    network = dense_network([3, 4, 2])
    x = np.array([0.3, -0.2, 0.9])
    y = evaluate.evaluate(network, tensor(x)).numpy()
    rows = np.array([[1.0, 0.0]] * 3)
    bounds = y[0] + np.array([-1e-6, 1e-6, 0.0])
    zero = {name: np.zeros(value.shape) for name, value in network.tensors.items()}
    for deviations in ({}, zero):
        assert failures(network, deviations, (x, x), rows, bounds).tolist() == [[[0.0, 1.0, 1.0]]]


@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (1.0, 0.5), (0.3, 2.0)])
def test_one_weight_over_an_interval(mean: float, sd: float) -> None:
    """min over [a, b] of w x is a w for w > 0 and b w below: both tails are known."""
    builder = Builder()
    builder.linear(builder.input(1, 1), np.array([[mean]]))
    network = builder.network()
    a, b = -0.7, 1.3
    for t in [-0.1, -1.0, -2.0, -5.0, -8.0]:
        exact = stats.norm.sf((t / a - mean) / sd) + stats.norm.cdf((t / b - mean) / sd)
        found = failures(network, {"w0": np.array([[sd]])}, ([a], [b]), [[1.0]], [t]).item()
        assert exact <= found * (1 + 1e-12)


def test_two_weights_over_a_square_against_quadrature() -> None:
    """F = sum of hc w - rho |w|: its distribution by quadrature, and it is within a factor of the bound."""
    builder = Builder()
    builder.linear(builder.input(1, 2), np.zeros((1, 2)))
    network = builder.network()
    low, high, sd = np.array([-0.2, 0.5]), np.array([0.4, 0.9]), np.array([[1.5, 0.7]])
    points = np.linspace(-12, 12, 40_001)
    w, mass = sd[0, 0] * points, stats.norm.pdf(points) * (points[1] - points[0])
    first = np.minimum(w * low[0], w * high[0])
    for t in [-0.5, -1.0, -2.0, -3.0, -4.0]:
        rest = t - first  # the second weight's minimum lies below this
        second = np.where(
            rest < 0,
            stats.norm.cdf(rest / high[1] / sd[0, 1]),
            stats.norm.cdf(rest / low[1] / sd[0, 1]),
        )
        exact = float(mass @ second)
        found = failures(network, {"w0": sd}, (low, high), [[1.0]], [t]).item()
        assert exact <= found * (1 + 1e-7)
        assert found <= max(30 * exact, 1e-12) or t > -1


@pytest.mark.parametrize("shape", [(), (3,), (2, 1), (1, 1), (2, 3), (1, 3)])
def test_a_bias_is_one_variable_at_all_its_places(shape: tuple[int, ...]) -> None:
    builder = Builder()
    builder.shift(builder.input(2, 3), np.zeros(shape))
    network = builder.network()
    rng = np.random.default_rng(1)
    a, sd = rng.normal(size=(2, 3)), rng.random(shape) + 0.1
    tied = np.array(a.sum()) if shape == () else a.sum(axis=tuple(i for i in (0, 1) if _repeats(shape, i)))
    spread = math.sqrt((tied.reshape(-1) ** 2 * sd.reshape(-1) ** 2).sum())
    found = failures(network, {"w0": sd}, (np.zeros(6), np.zeros(6)), [a.reshape(-1)], [-2 * spread]).item()
    assert found == pytest.approx(stats.norm.cdf(-2), rel=1e-9)


def _repeats(shape: tuple[int, ...], axis: int) -> bool:
    return ((1,) * (2 - len(shape)) + shape)[axis] == 1


def test_a_bias_of_a_convolution_is_one_variable() -> None:
    builder = Builder(2)
    x = builder.input(*IMAGE)
    builder.shift(builder.conv(x, np.zeros((2, 2, 2, 2))), np.zeros((2, 1, 1)))
    network = builder.network()
    rng = np.random.default_rng(2)
    a, sd = rng.normal(size=(2, 12)), np.array([0.5, 2.0])
    spread = math.sqrt((a.sum(1) ** 2) @ sd**2)
    zero = np.zeros(40)
    found = failures(network, {"w1": sd.reshape(2, 1, 1)}, (zero, zero), [a.reshape(-1)], [-3 * spread]).item()
    assert found == pytest.approx(stats.norm.cdf(-3), rel=1e-9)


@pytest.mark.parametrize("kind", ["shift", "scale", "conv", "linear"])
def test_uses_that_cancel_are_not_rounded_away(kind: str) -> None:
    """1e16 + 1 - 1e16 is 1, not 0: one weight of deviation 1, so that P(y <= -1e-3) is nearly a half."""
    builder = Builder()
    x = builder.input(1, 1, 1, 3)
    match kind:
        case "shift":
            builder.shift(x, np.zeros(()))
        case "scale":
            builder.scale(x, np.zeros(()))
        case "conv":
            builder.conv(x, np.zeros((1, 1, 1, 1)))
        case "linear":
            builder.linear(x, np.zeros((1, 1)), axis=1)
    network = builder.network()
    at = np.full(3, 0.0 if kind == "shift" else 1.0)  # values would be paid for anyway
    sd = {"w0": np.ones(network.tensors["w0"].shape)}
    found = failures(network, sd, (at, at), [[1e16, 1.0, -1e16]], [-1e-3]).item()
    assert found >= stats.norm.cdf(-1e-3)


def test_products_that_underflow_are_paid_for() -> None:
    """a^2 sigma^2 is 0 in float64, but a sigma x is as large as the mean."""
    builder = Builder()
    builder.linear(builder.input(1, 1), np.ones((1, 1)))
    found = failures(builder.network(), {"w0": np.ones((1, 1))}, ([1e150], [1e150]), [[1e-165]], [0.0]).item()
    assert found >= stats.norm.cdf(-1)


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("x", [1e100, 1e154, 1e160, 1e200])
def test_variances_that_overflow(x: float, thorough: bool) -> None:
    """The variance of w x is infinite in float64, and still w x <= t almost surely for t far above."""
    builder = Builder()
    builder.linear(builder.input(1, 1), np.zeros((1, 1)))
    for t in (-3 * x, -0.1 * x, 0.1 * x, 3 * x, 1e5 * x, 1e100 * x):
        box, sd = ([x], [x]), {"w0": np.ones((1, 1))}
        found = failures(builder.network(), sd, box, [[1.0]], [t], (0.0,), thorough=thorough).item()
        assert found >= stats.norm.cdf(t / x)


AFFINE = [
    name for name in PIECES
    if random_sources(bare(name)) and all(p.copies == 1 for p in all_params(bare(name)))
    and name not in ("sqrt", "reciprocal", "product")
]  # fmt: skip


@pytest.mark.parametrize("name", AFFINE)
def test_a_single_piece_at_a_point_has_the_exact_deviation(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Affine in its weights: L is the length of the gradient, by autograd, and the mean is the mean network's row."""
    network = bare(name)
    case, rows, grid = setup(monkeypatch, name, 0.7, 0.0, 1e-3, network)
    mean, gradient = _gradient(case, rows, grid[0])
    torch.testing.assert_close(case.normal.spread[0, 0], gradient, rtol=1e-9, atol=1e-150)
    torch.testing.assert_close(case.normal.mean[0, 0], mean, rtol=1e-9, atol=1e-9)


def _gradient(case: Case, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the mean network at a point, and the lengths of their gradients in standard deviations."""
    zero = {
        name: torch.zeros(1, *sd.shape, dtype=torch.float64, requires_grad=True) for name, sd in case.deviations.items()
    }
    value = (evaluate.evaluate(case.network, x[None], case.weights(zero))[0, 0] * rows).sum(-1)
    lengths = []
    for row in value:
        parts = torch.autograd.grad(row, list(zero.values()), retain_graph=True, allow_unused=True)
        lengths.append(torch.sqrt(sum((part**2).sum() for part in parts if part is not None) + torch.zeros(())))
    return value.detach(), torch.stack(lengths).to(torch.float64)


@pytest.mark.parametrize("name", SMOOTH)
def test_tiny_deviations_reach_the_linearised_ones(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """To first order a row is its mean plus gradient . noise: L may not be smaller, for any node and any sharing."""
    case, rows, grid = setup(monkeypatch, name, 1e-7, 0.0, 1e-3)
    mean, gradient = _gradient(case, rows, grid[0])
    spread = case.normal.spread[0, 0]
    assert (spread >= gradient * (1 - 1e-4)).all()
    assert (case.normal.mean[0, 0] <= mean + 1e-5 * gradient).all()
    if name not in ("tied", "shared_source", "sum_itself_inside"):
        assert (spread <= gradient * (1 + 1e-3) + 1e-15).all()


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "tanh", "sigmoid"])
@pytest.mark.parametrize(("mean", "spread"), [(1.0, 0.3), (0.3, 1.0), (-0.5, 1.0), (2.0, 1.5)])
@pytest.mark.parametrize("thorough", [False, True])
def test_two_layers_of_one_weight_against_quadrature(kind: str, mean: float, spread: float, thorough: bool) -> None:
    """y = v f(w x) for x in [a, b]: given w the least value is v f(w a) or v f(w b), and v is normal."""
    builder = Builder()
    x = builder.activation(builder.linear(builder.input(1, 1), np.array([[mean]])), kind, 0.2)
    builder.linear(x, np.array([[1.2]]))
    network = builder.network()
    deviations, budget = {"w0": np.array([[spread]]), "w1": np.array([[0.5]])}, 1e-5
    points = np.linspace(-10, 10, 20_001)
    mass, w = stats.norm.pdf(points) * (points[1] - points[0]), mean + spread * points
    for a, b in [(0.7, 0.7), (0.7, 0.8), (0.2, 1.5)]:
        ends = [_function(kind, w * x) for x in (a, b)]
        for t in [-4.0, -1.5, -0.5, 0.05, 0.3, 1.0]:
            exact = float(mass @ _least_product(ends, t, 1.2, 0.5))
            found = failures(network, deviations, ([a], [b]), [[1.0]], [t], (budget,), thorough=thorough).item()
            assert exact <= found + budget + 1e-6


def _function(kind: str, z: Array) -> Array:
    match kind:
        case "relu":
            return np.maximum(z, 0)
        case "leaky_relu":
            return np.where(z > 0, z, 0.2 * z)
        case "tanh":
            return np.tanh(z)
        case _:
            return 1 / (1 + np.exp(-z))


def _least_product(ends: list[Array], t: float, mean: float, sd: float) -> Array:
    """P(min(v p, v q) <= t) for v ~ N(mean, sd): an interval of v is left out."""
    low, high = np.full_like(ends[0], -np.inf), np.full_like(ends[0], np.inf)
    for p in ends:
        with np.errstate(divide="ignore", invalid="ignore"):
            edge = t / p
        low = np.where(p > 0, np.maximum(low, edge), low)
        high = np.where(p < 0, np.minimum(high, edge), high)
        never = (p == 0) & (t >= 0)
        low = np.where(never, np.inf, low)
    kept = stats.norm.cdf((high - mean) / sd) - stats.norm.cdf((low - mean) / sd)
    return 1 - np.maximum(kept, 0)
