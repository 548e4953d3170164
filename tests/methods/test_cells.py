"""Few latent numbers: the unfolded network, cells of Gaussian numbers, and bounds that converge to the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from scipy import integrate, stats

from bnn_vnnlib import Model, verify, verify_batch
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.gaussian.cells import Cells, half_space_mass
from bnn_vnnlib.methods import decision
from bnn_vnnlib.methods.safety.by_cells import BY_CELLS
from bnn_vnnlib.methods.safety.safety import Goal, SafetyTask
from bnn_vnnlib.model import GaussianDiagonal, GaussianFull, GaussianLowRank, Network
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.latents import by_units, directions, unfolded, with_probabilities
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import from_cases
from bnn_vnnlib.result import Rule
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.vnnlib import parse_property
from contract.zoo import GRAPHS, scaled
from fuzz.outcomes import processor_time
from fuzz.posterior_families import gaussian
from support.builders import from_nodes
from support.networks import Builder, dense_network
from support.zoo import PIECES, sandwiched

seeds = st.integers(0, 2**31)


def few(network: Network, count: int, deviation: float, seed: int) -> GaussianDiagonal:
    """So many random weights, anywhere."""
    rng = np.random.default_rng(seed)
    variances = {name: np.zeros_like(tensor) for name, tensor in network.tensors.items()}
    places = [(name, i) for name, tensor in network.tensors.items() for i in range(tensor.size)]
    for k in rng.permutation(len(places))[:count]:
        name, i = places[k]
        variances[name].reshape(-1)[i] = deviation**2
    return GaussianDiagonal(variances)


# -- the unfolded network


def compared(network: Network, posterior, rng: np.random.Generator) -> None:
    found = directions(network, posterior)
    assert found
    fixed, n = unfolded(network, found), network.signature.input_size
    x, z = rng.normal(size=(3, n)), rng.normal(size=(3, len(found)))
    y = evaluate(fixed, torch.tensor(np.concatenate([x, z], 1)))
    for i in range(3):
        drawn = {name: torch.tensor(tensor) for name, tensor in network.tensors.items()}
        for k, direction in enumerate(found):
            for name, (part, _) in direction.items():
                drawn[name] = drawn[name] + z[i, k] * torch.tensor(part)
        expected = evaluate(network, torch.tensor(x[i : i + 1]), {k: v[None] for k, v in drawn.items()})[0, 0]
        assert y[i].numpy() == pytest.approx(expected.numpy(), rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("name", PIECES)
def test_a_network_of_latent_numbers_is_the_drawn_network(name: str) -> None:
    network = sandwiched(name)
    if network.tensors:
        compared(network, few(network, 4, 0.5, 3), np.random.default_rng(1))


@pytest.mark.parametrize("family", ["full", "low_rank", "kron"])
def test_latent_numbers_of_correlated_weights(family: str) -> None:
    network = scaled(GRAPHS["linear"]())
    rng = np.random.default_rng(5)
    posterior = gaussian(family, {name: 0.3 + 0 * tensor for name, tensor in network.tensors.items()}, rng)
    if isinstance(posterior, GaussianLowRank):
        posterior = GaussianLowRank(posterior.factors, {k: 0 * v for k, v in posterior.variances.items()})
    found = directions(network, posterior)
    assert found
    compared(network, posterior, rng)
    weights = {name: tensor.size for name, tensor in network.tensors.items()}
    moves = [np.concatenate([one.get(n, (np.zeros(s), True))[0].ravel() for n, s in weights.items()]) for one in found]
    drawn = {
        "full": lambda p: sum(_outer(p.factors, weights, k) for k in range(p.rank)),
        "low_rank": lambda p: sum(_outer(p.factors, weights, k) for k in range(p.rank)),
        "kron": lambda p: _kron(p, weights),
    }[family](posterior)
    assert sum(np.outer(move, move) for move in moves) == pytest.approx(drawn, abs=1e-12)


def _outer(factors, sizes, k):
    move = np.concatenate([np.asarray(factors[name][k]).ravel() for name in sizes])
    return np.outer(move, move)


def _kron(posterior, sizes):
    ends = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    total = np.zeros((sum(sizes.values()),) * 2)
    for layer in posterior.layers:
        root = np.einsum("ia,ab,jb->ijab", layer.left, np.sqrt(layer.spectrum), layer.right)
        flat = layer.split(root.transpose(2, 3, 0, 1))
        names = [np.arange(ends[name], ends[name] + sizes[name]) for name in flat]
        values = np.concatenate([part.reshape(*root.shape[2:], -1) for part in flat.values()], -1)
        place = np.concatenate(names)
        total[np.ix_(place, place)] += np.einsum("abi,abj->ij", values, values)
    return total


def test_probabilities_as_nodes() -> None:
    networks = ((2, 3, 1), "softmax"), ((2, 3, 2), "softmax"), ((2, 3, 4), "softmax"), ((2, 3, 3), "sigmoid")
    for sizes, transform in networks:
        network, x = dense_network(sizes, seed=2), torch.randn(7, 2, dtype=torch.float64)
        y = evaluate(network, x)
        expected = torch.softmax(y, -1) if transform == "softmax" else torch.sigmoid(y)
        assert evaluate(with_probabilities(network, transform), x).numpy() == pytest.approx(expected.numpy(), abs=1e-12)


# -- cells


@given(seeds, st.integers(1, 4), st.floats(0.01, 6.0))
@settings(max_examples=60, deadline=None)
def test_half_spaces_in_cells(seed: int, k: int, width: float) -> None:
    rng = np.random.default_rng(seed)
    low = rng.normal(size=k) * 2
    high = low + width * rng.uniform(0.2, 1, k)
    slope = rng.normal(size=k) * 10.0 ** rng.integers(-9, 1, k) * (rng.random(k) < 0.9)
    level = float(slope @ (low + high) / 2 + rng.normal() * 0.3 * (np.abs(slope) @ (high - low)))
    found = float(half_space_mass(*(torch.tensor(part)[None] for part in (slope, level, low, high))))
    mirrored = float(half_space_mass(*(torch.tensor(part)[None] for part in (-slope, -level, low, high))))
    near, far = np.where(low > 0, -high, low), np.where(low > 0, -low, high)  # in the tail that has digits
    mass = float(np.prod(stats.norm.cdf(far) - stats.norm.cdf(near)))
    assert found + mirrored >= mass * (1 - 1e-9)
    assert found <= mass * (1 + 1e-9)
    u = stats.qmc.Halton(k, seed=seed % 2**30).random(2**13)
    inner, outer = stats.norm.cdf(low), stats.norm.cdf(high)
    share = float((stats.norm.ppf(inner + (outer - inner) * u) @ slope <= level).mean())
    assert found >= mass * (share - 0.02)
    assert found <= mass * (share + 0.02 + 0.25 * (k > 1) * (0 < share < 1))


def test_half_spaces_are_close_to_the_truth() -> None:
    """In two dimensions by quadrature; from above, and by no more than the steps cost."""
    low, high, slope, level = np.array([-0.5, 0.2]), np.array([0.5, 0.9]), np.array([1.0, 0.8]), 0.5

    def inner(z: float) -> float:
        end = np.clip((level - slope[1] * z) / slope[0], low[0], high[0])
        return float((stats.norm.cdf(end) - stats.norm.cdf(low[0])) * stats.norm.pdf(z))

    truth = integrate.quad(inner, low[1], high[1], epsabs=1e-13)[0]
    found = float(half_space_mass(*(torch.tensor(part)[None] for part in (slope, level, low, high))))
    assert truth <= found <= truth * 1.05


def test_the_mass_of_a_sum_with_one_steep_coordinate_is_not_lost() -> None:
    slope = torch.tensor([[-1.4e-18, -5.7e-307, 0.0, 1.0939]], dtype=torch.float64)
    end = torch.full((1, 4), 12.0, dtype=torch.float64)
    found = float(half_space_mass(slope, torch.tensor([1.53], dtype=torch.float64), -end, end))
    assert found == pytest.approx(stats.norm.cdf(1.53 / 1.0939), rel=1e-9)


@given(st.floats(-11.9, 11.5), st.floats(1e-6, 20.0))
def test_means_in_cells(low: float, width: float) -> None:
    high = min(low + width, 12.0)
    cells = Cells.of(torch.tensor([[low]], dtype=torch.float64), torch.tensor([[high]], dtype=torch.float64))
    mass = stats.norm.cdf(high) - stats.norm.cdf(low) if low < 0 else stats.norm.sf(low) - stats.norm.sf(high)
    assert float(cells.least) <= mass * (1 + 1e-12)
    assert float(cells.most) >= mass * (1 - 1e-12)
    if low < 0 < high:
        return  # the reference loses its digits
    mean = integrate.quad(lambda z: z * np.exp(-(z**2 - min(low**2, high**2)) / 2), low, high, epsabs=0, epsrel=1e-11)
    total = integrate.quad(lambda z: np.exp(-(z**2 - min(low**2, high**2)) / 2), low, high, epsabs=0, epsrel=1e-11)
    assert abs(float(cells.mean) - mean[0] / total[0]) <= float(cells.error) + 1e-8 * abs(low)


# -- bounds


def test_units_of_a_first_layer_have_the_law_of_their_weights() -> None:
    """At every x the deviation t times u, as the sum of what the weights of the unit add has it."""
    network = dense_network((3, 4, 2), seed=1)
    names = list(network.tensors)
    rng = np.random.default_rng(0)
    variances = {name: rng.uniform(0, 1, network.tensors[name].shape) for name in names[:2]}
    variances[names[0]][1], variances[names[1]][1] = 0, 0
    units = by_units(network, GaussianDiagonal({**variances, names[3]: np.array([0.5, 0.0])}))
    assert units is not None
    assert set(units.posterior.variances) == {names[3]}
    x, u = rng.normal(size=3), rng.normal(size=3)
    spread = np.sqrt(variances[names[0]] @ x**2 + variances[names[1]])[[0, 2, 3]]
    assert np.sqrt(units.weight @ x[units.inputs] ** 2 + units.bias) == pytest.approx(spread)
    hidden = network.tensors[names[0]] @ x + network.tensors[names[1]]
    hidden[[0, 2, 3]] += spread * u
    expected = network.tensors[names[2]] @ np.maximum(hidden, 0) + network.tensors[names[3]]
    found = evaluate(units.network, torch.tensor(np.concatenate([x, spread, u]))[None])[0]
    assert found.numpy() == pytest.approx(expected)


@pytest.mark.parametrize("query", ["probabilistic", "decision"])
def test_one_unit_at_points(query: str) -> None:
    """y = relu(w x + b), w and b random: closed forms."""
    network = dense_network((1, 1, 1), seed=0)
    names = list(network.tensors)
    values = dict(zip(names, ([[1.0]], [0.2], [[1.0]], [0.0]), strict=True))
    network = Network(network.signature, network.nodes, network.outputs, {k: np.array(v) for k, v in values.items()})
    posterior = GaussianDiagonal({names[0]: np.array([[0.5]]), names[1]: np.array([0.3])})
    x = np.array([[1.0], [-0.5]])
    mean, spread = x[:, 0] + 0.2, np.sqrt(0.5 * x[:, 0] ** 2 + 0.3)
    bounds, points = OutputBounds(Engine(network, "linear", Deadline()), "identity"), torch.tensor(x)
    if query == "decision":
        task = decision.DecisionTask(bounds, posterior, torch.device("cpu"), gap=1e-4)
        (method,) = (one for one in decision.METHODS if one.name == "expectation by cells")
        (rows,) = method.bounds(task).last
        unit = torch.ones(1, 1, 1, dtype=torch.float64)
        truth = mean * stats.norm.cdf(mean / spread) + spread * stats.norm.pdf(mean / spread)
        low, high = rows.lower(points, points, unit)[:, 0].numpy(), -rows.lower(points, points, -unit)[:, 0].numpy()
        box = rows.lower(points, points + 0.2, unit)[:, 0].numpy()
        assert (box <= low + 1e-9).all()
        assert (box >= low - 0.25).all()
    else:
        cases = [[(np.array([[1.0]]), np.array([1.0]), np.array([False]))]] * 2
        problem = from_cases(points, points, cases, 1)
        task = SafetyTask(bounds, posterior, problem, Attack(steps=5, restarts=1), Deadline(), Goal(0.95, 0.95, 1e-4))
        found = BY_CELLS.bounds(task, None)
        low, high, truth = found.lower.numpy(), found.upper.numpy(), 1 - stats.norm.cdf((1 - mean) / spread)
    assert (low <= truth).all()
    assert (truth <= high).all()
    assert (high - low <= 2e-3).all()


def one_unit() -> tuple[Model, float, float]:
    """logits (v relu(w x + b) + c, 0) at x = 1 with deviations 3: and the truth by quadrature."""
    network = dense_network((1, 1, 2), seed=0)
    names = list(network.tensors)
    tensors = dict(zip(names, ([[1.0]], [0.5], [[2.0], [0.0]], [-1.0, 0.0]), strict=True))
    network = Network(network.signature, network.nodes, network.outputs, {k: np.array(v) for k, v in tensors.items()})
    variances = dict(zip(names, ([[9.0]], [9.0], [[9.0], [0.0]], [9.0, 0.0]), strict=True))
    model = Model(network, GaussianDiagonal({k: np.array(v) for k, v in variances.items()}), "categorical", None, b"")
    logistic = stats.logistic.ppf((np.arange(2000) + 0.5) / 2000)  # E sigmoid(X) = P(L <= X)

    def over_hidden(f) -> float:
        """E f(m, s) of the Gaussian logit, over z = relu(N(1.5, 18))."""
        spread = np.sqrt(18.0)
        return float(integrate.quad(
            lambda t: f(2 * (z := max(1.5 + spread * t, 0)) - 1, 3 * np.hypot(z, 1)) * stats.norm.pdf(t),
            -12, 12, points=[-1.5 / spread], limit=200,
        )[0])  # fmt: skip

    safe = over_hidden(lambda m, s: stats.norm.cdf(m / s))
    decision = over_hidden(lambda m, s: float(stats.norm.cdf((m - logistic) / s).mean()))
    return model, safe, decision


def test_a_classifier_of_one_unit() -> None:
    model, safe, decision = one_unit()
    x = np.ones((1, 1))
    violated = [[(np.array([[1.0, -1.0]]), np.array([0.0]), np.array([False]))]]
    with processor_time():
        found = verify_batch(model, x, x, properties=violated, goal="bounds", gap=0.05, timeout=6)
    assert found.lower[0] <= safe <= found.upper[0]
    assert found.upper[0] - found.lower[0] <= 0.3
    with processor_time():
        found = verify_batch(model, x, x, query="decision", goal="bounds", gap=0.05, timeout=6)
    assert found.lower[0, 0] <= decision + 1e-4
    assert decision - 1e-4 <= found.upper[0, 0]
    assert found.upper[0, 0] - found.lower[0, 0] <= 0.2


def test_medians_of_correlated_weights() -> None:
    """y = w x with w = 2 + a z, of rank 1: the median is 2 x, over boxes as at points."""
    network = dense_network((1, 1), seed=0)
    names = list(network.tensors)
    tensors = {names[0]: np.array([[2.0]]), names[1]: np.array([0.0])}
    network = Network(network.signature, network.nodes, network.outputs, tensors)
    posterior = GaussianFull({names[0]: np.array([[[0.7]]]), names[1]: np.array([[0.2]])})
    model = Model(network, posterior, "gaussian", None, b"")
    with processor_time():
        found = verify_batch(
            model, [[1.0], [0.5]], [[1.0], [1.5]], query="decision", rule="median", goal="bounds", gap=0.01, timeout=10
        )
    assert found.lower[:, 0] == pytest.approx([2.0, 1.0], abs=0.05)
    assert found.upper[:, 0] == pytest.approx([2.0, 3.0], abs=0.05)
    assert (found.lower[:, 0] <= [2.0, 1.0]).all()
    assert (found.upper[:, 0] >= [2.0, 3.0]).all()


def test_a_sat_by_cells_has_a_witness_that_is_bounded_again() -> None:
    """y = (w x)^2 at x = 1, w ~ N(0, 1) in a sum of two weights: P(y >= 0.01) = 0.92, which tails do not prove."""
    text = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (= X_0 1))\n(assert (>= Y_0 0.01))"
    nodes = [helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Mul", ["h", "h"], ["y"])]
    net = from_nodes(nodes, {"W": np.zeros((1, 1))}, (1, 1), {"W": [[1.0]]}, likelihood="gaussian")
    with processor_time():
        result = verify(net, parse_property(text), tau_safe=0.2, timeout=10)
    assert result.verdict == "sat"
    assert result.details["upper_by"] == "cells of weights"
    assert result.witness is not None
    assert 0.8 <= result.witness.check["violation_mass_lower"] <= 0.9204


def test_units_over_a_box_of_inputs() -> None:
    """y = relu(w.x), w ~ N(0, I): D(x) = |x| / sqrt(2 pi), which is largest at the corner that is farthest from 0."""
    build = Builder()
    x = build.input(2)
    network = build.network(build.linear(build.activation(build.linear(x, np.zeros((1, 2)))), np.ones((1, 1))))
    posterior, low, high = GaussianDiagonal({"w0": np.ones((1, 2))}), [[-2.0, -1.0]], [[0.5, 1.0]]
    (method,) = (one for one in decision.METHODS if one.name == "expectation by cells")
    bounds = OutputBounds(Engine(network, "linear", Deadline()), "identity")
    steps = method.bounds(decision.DecisionTask(bounds, posterior, torch.device("cpu"), Rule.MEAN))
    rows = torch.ones(1, 1, 1, dtype=torch.float64)
    every = (*steps.rows, *steps.longest)
    box = [torch.tensor(side, dtype=torch.float64) for side in (low, high)]
    least, most = (max(float(one.lower(*box, sign * rows)) for one in every) for sign in (1, -1))
    assert least <= 0
    assert np.sqrt(5 / (2 * np.pi)) <= -most < np.inf
