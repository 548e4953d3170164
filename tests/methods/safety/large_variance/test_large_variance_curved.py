"""Two hidden layers at a point: moments of one unit against quadrature, parabolas on grids, quadratic forms and ranges
by samples."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from bnn_vnnlib.gaussian.relu import Rectangle
from bnn_vnnlib.methods.safety.large_variance import moments
from bnn_vnnlib.methods.safety.large_variance.first_layer import UnitLaw
from bnn_vnnlib.methods.safety.large_variance.moments import (
    BENDS,
    AtPoints,
    Parabola,
    first_moments,
    laws_at_points,
    least_variance,
    parabolas,
)
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.system.clock import Deadline
from support.large_variance import dense, sampled

NODES = np.linspace(-12, 12, 40_001)
MASS = np.exp(-(NODES**2) / 2) / np.sqrt(2 * np.pi) * (NODES[1] - NODES[0])


def exact(alpha: float, beta: float, m: float, s: float, power: int = 0) -> float:
    """E[h^power exp(alpha h + beta h^2)], h = relu(N(m, s^2))."""
    h = np.maximum(m + s * NODES, 0.0)
    return float((h**power * np.exp(alpha * h + beta * h**2)) @ MASS)


def law(m: np.ndarray, s: np.ndarray) -> UnitLaw:
    return UnitLaw(torch.tensor(m)[None, None], torch.tensor(s)[None, None], torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("beta", [-3.0, -0.1, 0.0, 0.05])
def test_moments_of_one_unit(beta: float) -> None:
    m, s = np.array([-2.0, -0.1, 0.5, 3.0]), np.array([0.5, 1.0, 1.5, 0.7])
    for alpha in (-2.0, 0.0, 1.5):
        value = law(m, s).above(torch.full((1, 1, 4), alpha), torch.full((1, 1, 4), beta))
        truth = np.log([exact(alpha, beta, a, b) for a, b in zip(m, s, strict=True)])
        assert np.allclose(value[0, 0], truth, atol=1e-8)
        mean = law(m, s).tilted_mean(torch.full((1, 1, 4), alpha), torch.full((1, 1, 4), beta))
        ratio = [
            exact(alpha, beta, a, b, 1) / exact(alpha, beta, a, b) for a, b in zip(m, s, strict=True)
        ]  # fmt: skip
        assert np.allclose(mean[0, 0], ratio, atol=1e-7)
    assert torch.isinf(law(np.zeros(1), np.ones(1)).above(torch.ones(1, 1, 1), torch.full((1, 1, 1), 0.6))).all()


@pytest.mark.parametrize("near", [0.3, 2.0, 6.0])
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 1.0])
def test_proxies_bound_the_generating_function(near: float, alpha: float) -> None:
    m, s = np.array([-2.0, 0.0, 1.0, 4.0]), np.array([1.0, 1.0, 0.5, 1.0])
    tilt, zero, far = (torch.full((1, 1, 4), value) for value in (alpha, 0.0, near))
    u = law(m, s).proxy(tilt, zero, far)[0, 0].numpy()
    for place, (a, b) in enumerate(zip(m, s, strict=True)):
        base, mean = exact(alpha, 0.0, a, b), exact(alpha, 0.0, a, b, 1) / exact(alpha, 0.0, a, b)
        y = np.linspace(-near, near, 41)
        logs = np.array([np.log(exact(alpha + t, 0.0, a, b) / base) - t * mean for t in y])
        assert (logs <= u[place] * y**2 / 2 + 1e-8).all()
        needed = (2 * logs[np.abs(y) > 0] / y[np.abs(y) > 0] ** 2).max()
        assert u[place] < 1.6 * needed + 0.02


def rectangle(rng: np.random.Generator, count: int) -> Rectangle:
    low, wide = rng.normal(size=count) - 1, rng.uniform(0, 3, count)
    least, tall = rng.uniform(0.3, 1.0, count), rng.uniform(0, 0.8, count)
    m, s = low + wide * rng.uniform(0, 1, count), least + tall * rng.uniform(0, 1, count)
    return Rectangle(*(torch.tensor(part)[None, None] for part in (low, low + wide, least, least + tall, m, s)))


@pytest.mark.parametrize("seed", range(3))
def test_parabolas_lie_above(seed: int) -> None:
    rng, count = np.random.default_rng(seed), 24
    box = rectangle(rng, count)
    alpha, beta = (
        torch.tensor(rng.normal(size=count) * 1.5)[None, None],
        torch.tensor(rng.uniform(0, 0.1, count))[None, None],
    )
    spread = torch.tensor(rng.uniform(0.1, 0.5, count))[None, None]
    flat, bent = parabolas(alpha, beta, box, spread, ((0.0,), BENDS))
    assert not flat.bend.any()
    assert (bent.bend > 0).any()
    gains = 0
    for j in range(count):
        ends = [float(side[0, 0, j]) for side in vars(box).values()]
        for m in np.linspace(ends[0], ends[1], 7):
            for s in np.linspace(ends[2], ends[3], 4):
                truth = np.log(exact(float(alpha[0, 0, j]), float(beta[0, 0, j]), m, s))
                for found in (flat, bent):
                    part = Parabola(*(side[0, 0, j] for side in vars(found).values()))
                    gap = m - part.center
                    value = part.constant + part.slope * gap + part.bend * gap**2 / 2 + part.square * s**2
                    assert truth <= float(value) + 1e-9
        gains += int(bent.worth(box, spread)[0, 0, j] < flat.worth(box, spread)[0, 0, j] - 1e-3)
    assert gains > count // 4


def second_layer(seed: int, outputs: int, inputs: int) -> tuple[DenseLayer, UnitLaw]:
    rng = np.random.default_rng(seed)
    layer = dense(rng, outputs, inputs, spread=0.3)
    size = 1 / np.sqrt(inputs)
    layer = DenseLayer.exact(layer.mean * size, layer.bias, layer.variance * size**2, layer.bias_variance)
    return layer, law(rng.normal(size=inputs), rng.uniform(0.3, 1.0, inputs))


@pytest.mark.parametrize("seed", range(4))
def test_moments_of_quadratic_forms(seed: int) -> None:
    """log E exp of sums of parabolas of the second layer's means and variances, sampled, from both sides."""
    layer, first = second_layer(seed, 6, 5)
    rng, count = np.random.default_rng(seed), 200_000
    shape, zero = (1, 1, 6), torch.zeros(1, 1, 6, dtype=torch.float64)
    slope, bend, square = (torch.tensor(rng.normal(size=shape) * size) for size in (0.4, 0.25, 0.15))
    h = np.maximum(first.m.numpy()[0] + first.s.numpy()[0] * rng.standard_normal((count, 5)), 0.0)
    m, v = h @ layer.mean.numpy().T + layer.bias.numpy(), h**2 @ layer.variance.numpy().T + layer.bias_variance.numpy()
    center = torch.tensor(m.mean(0))[None, None] + 0.3
    for bent in (False, True):
        found = Parabola(zero, slope, bend.abs() if bent else zero, square, center)
        gap = m - center.numpy()[0, 0]
        exponent = gap @ slope.numpy()[0, 0] + gap**2 @ found.bend.numpy()[0, 0] / 2 + v @ square.numpy()[0, 0]
        truth = np.log(np.exp(exponent).mean())
        bound = float(first_moments(layer, first, found, 1e-4, bent=bent)[0, 0])
        assert truth - 0.02 <= bound + 2e-4
        assert bound < truth + (0.35 if bent else 0.02) + 0.3 * abs(truth) * bent


def stack(seed: int, spread: float) -> tuple[DenseChain, torch.Tensor]:
    rng, layers = np.random.default_rng(seed), []
    for inputs, outputs in ((3, 8), (8, 8), (8, 2)):
        layer, size = dense(rng, outputs, inputs, spread=spread), 1 / np.sqrt(inputs)
        layers.append(DenseLayer.exact(layer.mean * size, layer.bias, layer.variance * size**2, layer.bias_variance))
    return DenseChain.relu(*layers), torch.tensor(rng.normal(size=(1, 3)))


def hidden(net: DenseChain, x: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means and variances in front of the second layer, and its outputs, (S, H2) each."""
    rng = np.random.default_rng(11)
    v, b = sampled(net.layers[0], count, rng)
    w, c = sampled(net.layers[1], count, rng)
    h = np.maximum(v @ x + b, 0.0)
    dense_ = net.layers[1]
    m = h @ dense_.mean.numpy().T + dense_.bias.numpy()
    square = h**2 @ dense_.variance.numpy().T + dense_.bias_variance.numpy()
    return m, square, np.maximum(np.einsum("sij,sj->si", w, h) + c, 0.0)


@pytest.mark.parametrize(("seed", "spread"), [(0, 0.3), (1, 0.8)])
def test_ranges_hold_as_often_as_is_said(seed: int, spread: float) -> None:
    net, x = stack(seed, spread)
    budget, count = 0.3, 40_000
    box = laws_at_points(net, x, x, budget).ranges
    m, v, _ = hidden(net, x[0].numpy(), count)
    low, high, least, most = (getattr(box, name)[0, 0].numpy() for name in ("low", "high", "least", "most"))
    for outside in (m < low, m > high, v < least**2, v > most**2):
        often = outside.mean(0)
        assert (stats.binom.sf(often * count - 1, count, budget / 32) > 1e-9).all()
    assert ((m < low) | (m > high)).any()
    assert ((v < least**2) | (v > most**2)).any()


@pytest.mark.parametrize(("seed", "spread"), [(0, 0.3), (1, 0.3)])
def test_least_variances(seed: int, spread: float) -> None:
    net, x = stack(seed, spread)
    variance = torch.tensor(np.random.default_rng(seed).uniform(0.1, 1, (1, 1, 8)))
    noise, spent, count = torch.full((1, 1), 0.01, dtype=torch.float64), 0.2, 40_000
    at = laws_at_points(net, x, x, 0.01)
    found = float(least_variance(at, variance, noise, torch.tensor([0.3, 1.0, 3.0]), spent, Deadline())[0, 0])
    truth = hidden(net, x[0].numpy(), count)[2] ** 2 @ variance[0, 0].numpy() + 0.01
    assert stats.binom.sf(int((truth < found).sum()) - 1, count, spent + 0.01) > 1e-9
    assert found > 0.011


def test_both_bounds_of_lower_tails() -> None:
    """log E exp(-sum w relu^2) from above, by tangents and by the ends of the ranges."""
    net, x = stack(0, 0.3)
    at = laws_at_points(net, x, x, 1e-3)
    weights = torch.tensor(np.random.default_rng(0).uniform(0.05, 0.3, (1, 1, 8)))
    truth = np.log(np.exp(-(hidden(net, x[0].numpy(), 40_000)[2] ** 2) @ weights[0, 0].numpy()).mean())
    for bound in (at.log_squares, at.log_coupled):
        assert truth - 0.01 <= float(bound(weights)[0, 0]) < truth + 1.5


def test_the_two_halves_of_a_square() -> None:
    for low in (-1.0, 0.0, 0.7):
        for s, sign in ((0.5, 1.0), (1.2, -1.0)):
            z = low + s * NODES
            truth = (np.exp(-0.8 * np.maximum(z, 0) ** 2) * (sign * NODES > 0)) @ MASS
            w, at, dev = (torch.tensor([[[value]]], dtype=torch.float64) for value in (0.8, low, s))
            assert abs(float(moments._half_square(w, at, dev, sign)) - truth) < 3e-4


@pytest.mark.parametrize(("seed", "spread"), [(0, 0.3), (1, 0.8), (2, 0.5)])
def test_exponents_lie_above_sampled_ones(seed: int, spread: float) -> None:
    net, x = stack(seed, spread)
    at: AtPoints = laws_at_points(net, x, x, 1e-3)
    _, _, h = hidden(net, x[0].numpy(), 100_000)
    last = net.layers[2]
    for scale in (0.3, 1.0):
        u = scale * torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]], dtype=torch.float64)
        row = u[0].numpy()
        mean = h @ (row @ last.mean.numpy()).T + row @ last.bias.numpy()
        noise = h**2 @ (row**2 @ last.variance.numpy()).T + row**2 @ last.bias_variance.numpy()
        truth = np.log(np.exp(mean + noise / 2).mean(0))
        for found in at.log_moments(u, 1e-4):
            assert (truth - 0.05 - 3e-3 <= found[0].numpy()).all()
        assert (found[0].numpy() < truth + 1.5).all()


@pytest.mark.parametrize(
    ("m", "s", "alpha", "beta"),
    [(13.667, 1.0, -27.256, 0.46284), (-0.05, 1.0, -39.9, 0.315), (2.0, 1.0, -31.0, 0.2), (1e-3, 1e-4, -5e5, 0.0)],
)
def test_tilted_means_far_below_zero(m: float, s: float, alpha: float, beta: float) -> None:
    """Where nearly all of the tilted Gaussian is below 0; the proxy counts on the mean."""
    one = law(np.array([m]), np.array([s]))
    a, b = (torch.tensor([[[part]]], dtype=torch.float64) for part in (alpha, beta))
    with mpmath.workdps(60):
        c = 1 - 2 * mpmath.mpf(beta) * s**2
        mean, dev = (m + mpmath.mpf(alpha) * s**2) / c, s / mpmath.sqrt(c)

        def log_mass(y: float) -> mpmath.mpf:
            slope = mpmath.mpf(alpha) + y
            top = (beta * mpmath.mpf(m) ** 2 + slope * m + slope**2 * mpmath.mpf(s) ** 2 / 2) / c
            on = mpmath.exp(top) / mpmath.sqrt(c) * mpmath.ncdf((m + slope * s**2) / c / dev)
            return mpmath.log(mpmath.ncdf(-mpmath.mpf(m) / s) + on)

        exact_mean = mpmath.diff(log_mass, 0)
        near = 1 / s
        u = one.proxy(a, b, torch.full_like(a, near)).item()
        worst = max(
            log_mass(y) - y * exact_mean - u * mpmath.mpf(y) ** 2 / 2
            for y in (sign * near * part for sign in (-1, 1) for part in (0.01, 0.1, 0.3, 1.0))
        ) - log_mass(0)
    assert one.tilted_mean(a, b).item() == pytest.approx(float(exact_mean), rel=1e-9, abs=1e-10 * s)
    assert mean < -30 * dev
    assert worst <= 0
