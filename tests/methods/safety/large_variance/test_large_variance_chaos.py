"""Moments of squares of one neuron by quadrature: G, generating functions, and what the shifted law leaves out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special

from bnn_vnnlib.methods.safety.large_variance import chaos as module
from bnn_vnnlib.methods.safety.large_variance import lines as hidden
from bnn_vnnlib.methods.safety.large_variance import output_layer
from bnn_vnnlib.methods.safety.large_variance.chaos import SPENT, Chaos
from bnn_vnnlib.network.dense_chain import DenseLayer
from support.large_variance import in_numpy

GAUSS = np.polynomial.legendre.leggauss(80)

neurons, lines, last_weights = map(in_numpy, (hidden.neurons, hidden.lines, output_layer.last_weights))
chaos, local_proxy = map(in_numpy, (module.chaos, module._local))

CASES = [(0.0, 1.0, 0.5, 0.5), (0.0, 1.0, 1.0, 0.05), (-1.5, 1.0, -0.5, 1.0), (1.5, 1.0, -0.2, 0.5)]
"""m, s of zeta; mean and deviation of D."""


def law(m: float, s: float, cuts: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of N(m, s^2), exact for what is smooth between the cuts."""
    edges = np.sort(np.clip([m - 9 * s, *cuts, m + 9 * s], m - 9 * s, m + 9 * s))
    low, high = edges[:-1, None], edges[1:, None]
    x = (high + low) / 2 + (high - low) / 2 * GAUSS[0]
    weight = (high - low) / 2 * GAUSS[1] * np.exp(-(((x - m) / s) ** 2) / 2) / (s * np.sqrt(2 * np.pi))
    return x.ravel(), weight.ravel()


def of(case: tuple[float, float, float, float]) -> tuple[Chaos, np.ndarray, np.ndarray]:
    """The moments of one neuron over +-.05 around 0; a = A - E A at nodes of (D, zeta) and their weights."""
    m, s, mu, d = case
    parts = (((1.0,),), (m,), ((0.01,),), (s**2,)), (((mu,),), (0.0,), ((d**2,),), (0.01,))
    first, last = (DenseLayer.exact(*(torch.tensor(part, dtype=torch.float64) for part in side)) for side in parts)
    layer = neurons(first, np.array([[-0.05]]), np.array([[0.05]]))
    weights, _, _ = last_weights(last, np.ones((1, 1)), np.zeros(1))
    found = lines(layer, weights)
    ramp = layer.ramp[0, 0]
    (zeta, inner), (out, outer) = law(m, s, [-ramp, 0.0, ramp]), law(mu, d, [0.0])
    out = out[:, None]
    a = out * np.where(out > 0, zeta > 0, np.clip((zeta + ramp) / (2 * ramp), 0, 1))
    return chaos(layer, weights, found), a - found.slope_mean[0, 0], outer[:, None] * inner


@pytest.mark.parametrize("case", CASES)
def test_squares_are_limited_as_often_as_is_said(case: tuple[float, float, float, float]) -> None:
    """G, against its exact probability."""
    square, a, weight = of(case)
    size = np.abs(square.factor[0, 0, 0] ** 2 * a)
    assert (weight * (size > square.bound[0, 0])).sum() <= SPENT
    if case == CASES[0]:
        assert (weight * (size > 0.8 * square.bound[0, 0])).sum() > SPENT


@pytest.mark.parametrize("case", CASES)
def test_moments_on_the_event(case: tuple[float, float, float, float]) -> None:
    """E[e^{theta Q}; G] for theta up to where nothing is known."""
    square, a, weight = of(case)
    scaled, seen = square.factor[0, 0, 0] ** 2, 0
    inside = np.abs(scaled * a) <= square.bound[0, 0]
    for share in (0.02, 0.1, 0.3, 0.5, 0.8):
        theta = share / (2 * scaled * (weight * a**2).sum())
        bound = float(square.log_moment(np.array([theta]))[0])
        truth = np.log((weight * np.exp(np.minimum(theta * scaled * a**2, 600.0)) * inside).sum())
        assert truth <= bound
        seen += bool(np.isfinite(bound))
    assert seen


@pytest.mark.parametrize("case", CASES)
def test_generating_functions_of_one_neuron(case: tuple[float, float, float, float]) -> None:
    """Of the limited and of the unlimited kind; where D hardly varies and zeta is often below 0, both are needed."""
    square, a, weight = of(case)
    needed = []
    for near in (0.3, 1.0, 3.0):
        y = np.concatenate([np.linspace(-near, -near / 20, 9), np.linspace(near / 20, near, 9)])
        logs = np.array([np.log((weight * np.exp(t * a)).sum()) for t in y])
        local = local_proxy(square.weights, square.lines, np.full((1, 1), near))[0, 0]
        assert (logs <= local * y**2 / 2 + 1e-9).all()
        needed.append((2 * logs / y**2).max())
        assert (logs <= square.full[0, 0] * y**2 / 2 + 1e-9).all()
    if case == CASES[1]:
        assert max(needed) > 0.95 * square.full[0, 0]


@pytest.mark.parametrize("z", [1.0, 3.0])
def test_what_the_shifted_law_leaves_out(z: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the edge of G, y is beyond y_j with nearly the probability that is paid for."""
    square, _, _ = of(CASES[0])
    seen, right = [], module._local
    monkeypatch.setattr(module, "_local", lambda *parts: seen.append(parts[2].numpy()) or right(*parts))
    theta = 0.3 / (2 * square.factor[0, 0, 0] ** 2 * square.full[0, 0])
    square.log_moment(np.array([theta]), (z,))
    mean, dev = 2 * theta * square.bound[0, 0], np.sqrt(2 * theta) * abs(square.factor[0, 0, 0])
    beyond = special.ndtr((mean - seen[0][0, 0]) / dev) + special.ndtr((-mean - seen[0][0, 0]) / dev)
    lost = 2 * special.ndtr(-z)
    assert 0.45 * lost < beyond <= lost
    assert square.log_moment(np.array([1e-9]), (z,))[0] >= -np.log1p(-lost)
