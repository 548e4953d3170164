"""Upper bounds of log E exp(u . f(x)) against the exact value where there is one: they are above, and close."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import DenseRanges, Exponents, QuadraticRow
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer

BUDGET = 1e-3


def dense(rng: np.random.Generator, outputs: int, inputs: int, spread: float, shift: float = 0.0) -> DenseLayer:
    """Random means; deviations of about `spread`, exactly 0 if it is."""

    def random(*shape: int) -> Tensor:
        return torch.as_tensor(rng.normal(size=shape))

    deviations = [torch.as_tensor(spread * rng.uniform(0.5, 1.5, size=s)) for s in ((outputs, inputs), (outputs,))]
    return DenseLayer.exact(random(outputs, inputs), random(outputs) + shift, *(d * d for d in deviations))


def log_moment(alpha: float, beta: float, m: float, s: float) -> mpmath.mpf:
    """log E exp(alpha z + beta z^2), z = relu(N(m, s^2)), by quadrature."""
    if s == 0:
        return mpmath.mpf(alpha * max(m, 0.0) + beta * max(m, 0.0) ** 2)

    def integrand(t: mpmath.mpf) -> mpmath.mpf:
        z = m + s * t
        return mpmath.exp(alpha * z + beta * z * z - t * t / 2) / mpmath.sqrt(2 * mpmath.pi)

    kink = -m / s
    places = sorted({kink, *(p for p in (-12.0, -4.0, 0.0, 4.0, 12.0, 30.0) if p > kink)})
    return mpmath.log(mpmath.ncdf(kink) + mpmath.quad(integrand, places))


def exactly(u: np.ndarray, before: DenseLayer, last: DenseLayer, h: np.ndarray) -> float:
    """log E exp(u . f) where h are the fixed inputs of `before`, and f = last(relu(before(h)))."""
    a, b, v, w = (part.numpy() for part in (last.mean, last.bias, last.variance, last.bias_variance))
    m = before.mean.numpy() @ h + before.bias.numpy()
    s = np.sqrt(before.variance.numpy() @ (h * h) + before.bias_variance.numpy())
    terms = zip(u @ a, (u * u) @ v / 2, m, s, strict=True)
    return float(u @ b + (u * u) @ w / 2 + sum(log_moment(*map(float, term)) for term in terms))


def bounds(exponents: Exponents, ranges: DenseRanges, u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The upper bounds at points x (K, n) of the one box, for rows u (R, m): (K, R)."""
    lines = exponents.lines(ranges, torch.as_tensor(u)[None])
    moved = torch.as_tensor(x) - ranges.first.center
    return -(lines.value[0] + moved @ lines.slope[0].mT).numpy()


@pytest.mark.parametrize("spread", [0.1, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_one_hidden_layer(seed: int, spread: float) -> None:
    """Nothing is lost at a point; over a box the curvature of the variances is."""
    rng = np.random.default_rng(seed)
    stack = DenseChain.relu(dense(rng, 3, 2, spread), dense(rng, 2, 3, spread))
    exponents, u, x = Exponents(stack, BUDGET), 0.5 * rng.normal(size=(4, 2)), rng.normal(size=2)
    assert exponents.delta == 0
    center = torch.as_tensor(x)[None]
    found = bounds(exponents, exponents.ranges(center, center), u, x[None])[0]
    truth = np.array([exactly(row, *stack.layers, x) for row in u])
    assert (found >= truth - 1e-12 * (1 + abs(truth))).all()
    np.testing.assert_allclose(found, truth, atol=1e-6)
    for radius in (1e-3, 0.2, 1.0):
        ranges = exponents.ranges(center - radius, center + radius)
        points = x + radius * rng.choice([-1.0, 0.0, 1.0], size=(5, 2))
        truth = np.array([[exactly(row, *stack.layers, point) for row in u] for point in points])
        assert (bounds(exponents, ranges, u, points) >= truth - 1e-12 * (1 + abs(truth))).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_random_layer_between_fixed_ones(seed: int) -> None:
    """Where the second layer reads fixed numbers, its means and variances are known, and little is lost."""
    rng = np.random.default_rng(seed)
    stack = DenseChain.relu(dense(rng, 3, 2, 0.0), dense(rng, 3, 3, 0.4), dense(rng, 2, 3, 0.0))
    exponents, u, x = Exponents(stack, BUDGET), rng.normal(size=(6, 2)), rng.normal(size=2)
    assert exponents.delta == BUDGET
    center = torch.as_tensor(x)[None]
    found = bounds(exponents, exponents.ranges(center, center), u, x[None])[0]
    first = stack.layers[0]
    h = np.maximum(first.mean.numpy() @ x + first.bias.numpy(), 0)
    truth = np.array([exactly(row, stack.layers[1], stack.layers[2], h) for row in u])
    assert (found >= truth - 1e-9).all()
    np.testing.assert_allclose(found, truth, atol=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_squares_with_negative_coefficients(seed: int) -> None:
    """beta z^2 lies below its tangent, which is exact where z hardly varies."""
    rng = np.random.default_rng(seed)
    stack = DenseChain.relu(dense(rng, 3, 2, 1e-5), dense(rng, 3, 3, 0.1), dense(rng, 2, 3, 0.1))
    exponents, x = Exponents(stack, BUDGET), rng.normal(size=2)
    center = torch.as_tensor(x)[None]
    ranges = exponents.ranges(center, center)
    alpha, beta = rng.normal(size=(5, 3)), -rng.uniform(0, 2, size=(5, 3))
    row = QuadraticRow(
        torch.zeros(1, 5, dtype=torch.float64), torch.as_tensor(alpha)[None], torch.as_tensor(beta)[None]
    )
    found = -exponents._back(0, row, ranges).value[0].numpy()
    first = stack.layers[0]
    z = np.maximum(first.mean.numpy() @ x + first.bias.numpy(), 0)
    truth = alpha @ z + beta @ (z * z)
    np.testing.assert_allclose(found, truth, atol=1e-3)
    assert (found >= truth - 1e-4).all()


@pytest.mark.parametrize("seed", range(3))
def test_sides_are_as_far_out_as_their_share_of_the_budget_asks(seed: int) -> None:
    """Active neurons make means of the next layer Gaussian: by Chernoff a side is sigma sqrt(2 log(1 / p)) away."""
    rng = np.random.default_rng(seed)
    stack = DenseChain.relu(dense(rng, 4, 2, 0.3, shift=50.0), dense(rng, 5, 4, 0.3), dense(rng, 2, 5, 0.1))
    exponents, x = Exponents(stack, BUDGET), torch.as_tensor(rng.normal(size=(1, 2)))
    first, second = stack.layers[:2]
    box = exponents.ranges(x, x).rectangles[1]
    m, v = x @ first.mean.mT + first.bias, (x * x) @ first.variance.mT + first.bias_variance
    mean, sigma = m @ second.mean.mT + second.bias, torch.sqrt(v @ (second.mean**2).mT)
    away = sigma * math.sqrt(2 * math.log(4 * 5 / BUDGET)) * (1 - 1e-9)
    assert (box.high >= mean + away).all()
    assert (box.low <= mean - away).all()
    assert (box.high <= mean + 1.1 * away).all()
