"""Gaussian logits: exact at points, and against dense grids and drawn networks over boxes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import mpmath
import numpy as np
import pytest
import torch

from bnn_vnnlib import Model, verify_batch
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.methods.decision.softmax.gaussian_logits import GaussianLogits, expected_sigmoid, last_layer
from bnn_vnnlib.model import GaussianDiagonal, GaussianFull, GaussianKron, GaussianLowRank, KronLayer
from bnn_vnnlib.network.network import Gaussian
from bnn_vnnlib.problem.outputs import OutputBounds
from support.builders import model, rows


def true_mean(m: float, s: float) -> float:
    """E sigmoid(m + s N) by a fine rule in 40 digits."""
    with mpmath.workdps(40):
        if s == 0:
            return float(1 / (1 + mpmath.exp(-mpmath.mpf(m))))
        step, reach = mpmath.mpf(1) / 16 / max(1, math.ceil(s)), 12
        count = int(reach / step)
        nodes = (step * i for i in range(-count, count + 1))
        total = mpmath.fsum(mpmath.exp(-(t**2) / 2) / (1 + mpmath.exp(-(m + s * t))) for t in nodes)
        return float(step * total / mpmath.sqrt(2 * mpmath.pi))


@pytest.mark.parametrize("s", [0.0, 1e-3, 0.05, 0.06, 0.3, 1.0, 2.5, 7.0])
def test_the_integral(s):
    m = torch.tensor([-40.0, -9.0, -1.5, -0.2, 0.0, 1e-8, 0.7, 3.0, 25.0], dtype=torch.float64)
    low, high = expected_sigmoid(m, torch.full_like(m, s))
    assert (high - low <= 2e-9).all()
    for i, value in enumerate(m.tolist()):
        truth = true_mean(value, s)
        assert float(low[i]) <= truth + 1e-16
        assert float(high[i]) >= truth - 1e-16


def test_wide_logits_tend_to_a_normal_probability():
    s = torch.tensor([60.0, 1e6, 1e200], dtype=torch.float64)
    low, high = expected_sigmoid(s, s)
    known = torch.tensor([true_mean(60.0, 60.0), 0.8413447460685429, 0.8413447460685429], dtype=torch.float64)
    assert (low <= known + 1e-12).all()
    assert (high >= known - 1e-12).all()
    assert (high - low <= 0.8 / s**2 + 1e-12).all()
    low, high = expected_sigmoid(torch.tensor([math.nan, math.inf, 1.0]), torch.tensor([1.0, 1.0, math.inf]))
    assert (low == 0).all()
    assert (high == 1).all()


HIDDEN, INPUTS = 5, 3
FAMILIES = ("diagonal", "full", "low rank", "kronecker", "bias alone")


def posterior_of(family: str, outputs: int, rng: np.random.Generator) -> Gaussian:
    shape = (outputs, HIDDEN)
    match family:
        case "diagonal":
            return GaussianDiagonal({"W1": rng.uniform(0.1, 1, shape) ** 2, "b1": rng.uniform(0.1, 1, outputs) ** 2})
        case "full":
            return GaussianFull({"W1": rng.normal(size=(7, *shape)) / 3, "b1": rng.normal(size=(7, outputs)) / 3})
        case "low rank":
            factors = {"W1": rng.normal(size=(2, *shape)) / 3, "b1": rng.normal(size=(2, outputs)) / 3}
            return GaussianLowRank(factors, {"W1": np.full(shape, 0.04), "b1": np.full(outputs, 0.01)})
        case "kronecker":
            left, right = rng.normal(size=(outputs, outputs)), rng.normal(size=(HIDDEN, HIDDEN))
            return GaussianKron((KronLayer("W1", left, right, rng.uniform(0.01, 0.3, shape)),))
        case _:
            return GaussianDiagonal({"b1": rng.uniform(0.1, 1, outputs) ** 2})


def deviations(posterior: Gaussian, a: np.ndarray, z: np.ndarray) -> np.ndarray:
    """(P,) of the logit a . (W z + b) at features z (P, HIDDEN)."""
    outer = a[None, :, None] * z[:, None, :]
    match posterior:
        case GaussianDiagonal(variances=variances):
            square = (outer**2 * variances.get("W1", 0.0)).sum((1, 2)) + a**2 @ variances["b1"]
        case GaussianFull(factors=factors):
            square = ((np.einsum("pij,kij->pk", outer, factors["W1"]) + factors["b1"] @ a) ** 2).sum(1)
        case GaussianLowRank(factors=factors, variances=variances):
            square = ((np.einsum("pij,kij->pk", outer, factors["W1"]) + factors["b1"] @ a) ** 2).sum(1)
            square += (outer**2 * variances["W1"]).sum((1, 2)) + a**2 @ variances["b1"]
        case GaussianKron(layers=(layer,)):
            square = (a @ layer.left) ** 2 @ layer.spectrum @ ((z @ layer.right) ** 2).T
    return np.sqrt(square)


def network_of(family: str, outputs: int) -> Model:
    """One random layer behind fixed tanh features."""
    rng = np.random.default_rng(outputs)
    sizes = ((HIDDEN, INPUTS), (outputs, HIDDEN))
    layers = [(rng.normal(size=size), rng.normal(size=size[0])) for size in sizes]
    net = model(layers, activation="tanh", likelihood="categorical" if outputs == 2 else "bernoulli")
    return replace(net, posterior=posterior_of(family, outputs, rng))


def truth(net: Model, x: np.ndarray) -> np.ndarray:
    """(P, m): D at points, by one-dimensional integrals."""
    tensors, outputs = net.network.tensors, net.network.signature.output_size
    z = np.tanh(x @ tensors["W0"].T + tensors["b0"])
    mean = z @ tensors["W1"].T + tensors["b1"]
    rows = np.array([[-1.0, 1.0]]) if outputs == 2 else np.eye(outputs)
    p = np.array([
        [true_mean(m, s) for m, s in zip(mean @ a, deviations(net.posterior, a, z), strict=True)] for a in rows
    ]).T  # fmt: skip
    return np.concatenate([1 - p, p], 1) if outputs == 2 else p


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_points_are_exact(family, outputs):
    net = network_of(family, outputs)
    x = np.random.default_rng(0).normal(size=(4, INPUTS)) * 2
    found, known = verify_batch(net, x, x, query="decision"), truth(net, x)
    assert (found.lower <= known + 1e-15).all()
    assert (found.upper >= known - 1e-15).all()
    assert (found.upper - found.lower <= 5e-9).all()


@pytest.mark.parametrize(
    ("family", "outputs"), [*((family, 2) for family in FAMILIES), ("diagonal", 1), ("low rank", 3)]
)
def test_boxes_hold_what_is_attained(family, outputs):
    """Both signs of the mean and of features; inputs that do not vary; rows over inputs."""
    net, rng = network_of(family, outputs), np.random.default_rng(1)
    center, radius = rng.normal(size=(2, INPUTS)), np.array([[0.02], [0.4]]) * [1.0, 0.0, 1.0]
    asked = [[rows(np.ones((1, outputs)), [-1.0])]] * 2
    wanted = {"query": "decision", "goal": "bounds", "gap": 5e-3}
    found = verify_batch(net, center - radius, center + radius, properties=asked, **wanted)
    for i in range(2):
        grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 3)] * 2), -1).reshape(-1, 2)
        x = center[i] + radius[i] * np.insert(grid, 1, 0.0, 1)
        known = truth(net, x)
        assert (found.lower[i] <= known.min(0) + 1e-12).all()
        assert (found.upper[i] >= known.max(0) - 1e-12).all()
        assert (found.upper[i] - found.lower[i] <= 1.6 * (known.max(0) - known.min(0)) + 0.02).all()


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_a_sigmoid_in_the_graph(likelihood):
    """E sigmoid is the expected output, whatever the outputs stand for."""
    layers, spread = [(np.array([[1.0, -2.0]]), np.array([0.3]))], [(np.array([[1.0, 0.25]]), np.array([0.04]))]
    x = np.array([[0.5, 0.1], [-1.0, 2.0]])
    inside = verify_batch(model(layers, spread, end=("Sigmoid",), likelihood=likelihood), x, x, query="decision")
    known = [[true_mean(m, s)] for m, s in zip(x @ [1.0, -2.0] + 0.3, np.sqrt(x**2 @ [1.0, 0.25] + 0.04), strict=True)]
    assert (inside.lower <= np.array(known) + 1e-15).all()
    assert (inside.upper >= np.array(known) - 1e-15).all()
    assert (inside.upper - inside.lower <= 5e-9).all()


CLASSES, LATENTS = 4, 2


def several_classes(scale: float) -> Model:
    """Four classes whose noise two numbers move, so that expectations are integrals over a plane."""
    rng = np.random.default_rng(7)
    sizes = ((HIDDEN, INPUTS), (CLASSES, HIDDEN))
    net = model([(rng.normal(size=size), rng.normal(size=size[0])) for size in sizes], activation="tanh",
                likelihood="categorical")  # fmt: skip
    factors = {"W1": rng.normal(size=(LATENTS, CLASSES, HIDDEN)), "b1": rng.normal(size=(LATENTS, CLASSES))}
    return replace(net, posterior=GaussianFull({name: scale * factor for name, factor in factors.items()}))


def expected_softmax(net: Model, x: np.ndarray, step: float = 0.1) -> np.ndarray:
    """(P, m): D at points by the trapezoidal rule, whose error is far below rounding for such integrands."""
    posterior, tensors = net.posterior, net.network.tensors
    assert isinstance(posterior, GaussianFull)
    z = np.tanh(x @ tensors["W0"].T + tensors["b0"])
    axis = np.arange(-9, 9.01, step)
    t = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, LATENTS)
    weight = np.exp(-(t**2).sum(1) / 2)
    noise = np.einsum("kij,pj->pki", posterior.factors["W1"], z) + posterior.factors["b1"]
    logits = (z @ tensors["W1"].T + tensors["b1"])[:, None] + t @ noise
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray((p / p.sum(-1, keepdims=True) * weight[:, None]).sum(1) / weight.sum())


def bounded_softmax(net: Model, lower: np.ndarray, upper: np.ndarray, asked: torch.Tensor) -> torch.Tensor:
    """Lower bounds of the rows `asked` over D, by the method alone."""
    bounds = OutputBounds(Engine(net.network), "softmax")
    method = GaussianLogits.over(bounds, cast("Gaussian", net.posterior), torch.device("cpu"))
    return method.lower(torch.tensor(lower), torch.tensor(upper), asked[None])


CLASS = torch.eye(CLASSES, dtype=torch.float64)
ASKED = torch.cat([CLASS, -CLASS, CLASS[:1] - CLASS[1:]])
"""Each class from both sides, and margins."""


@pytest.mark.parametrize("scale", [1e-9, 0.05, 0.3, 1.0])
def test_several_classes_at_points(scale):
    """Without noise the bounds lose no more than p does, which lies on a grid."""
    net, x = several_classes(scale), 2 * np.random.default_rng(1).normal(size=(6, INPUTS))
    known = torch.tensor(expected_softmax(net, x)) @ ASKED.mT
    lost = known - bounded_softmax(net, x, x, ASKED)
    assert (lost >= -1e-12).all()
    assert float(lost.amax()) <= (1e-5 if scale < 1e-3 else 2.0)
    assert float(lost.mean()) <= {0.05: 0.01, 0.3: 0.04}.get(scale, 0.25)


@pytest.mark.parametrize("radius", [0.01, 0.1])
def test_several_classes_over_boxes(radius):
    net, rng = several_classes(0.25), np.random.default_rng(2)
    center = rng.normal(size=(4, INPUTS))
    found = bounded_softmax(net, center - radius, center + radius, ASKED)
    corners = np.stack(np.meshgrid(*[[-1, 1]] * INPUTS), -1).reshape(-1, INPUTS)
    for i in range(4):
        x = center[i] + radius * np.concatenate([corners, rng.uniform(-1, 1, (40, INPUTS))])
        known = (torch.tensor(expected_softmax(net, x, 0.3)) @ ASKED.mT).amin(0)
        assert (found[i] <= known + 1e-12).all()
        assert float((known - found[i]).mean()) <= 0.05 + 4 * radius


def test_other_networks_are_not_served():
    net = network_of("diagonal", 2)
    posterior = net.posterior
    assert isinstance(posterior, GaussianDiagonal)
    assert last_layer(net.network, posterior) is not None
    assert last_layer(net.network, GaussianDiagonal({**posterior.variances, "b0": np.ones(HIDDEN)})) is None
    assert last_layer(net.network, GaussianDiagonal({"W0": np.ones((HIDDEN, INPUTS))})) is None
    other = replace(net, posterior=GaussianDiagonal({"W0": np.ones((HIDDEN, INPUTS))}))
    found = verify_batch(other, [[0.1] * 3], [[0.1] * 3], query="decision")
    assert "Gaussian logits" not in found.method
