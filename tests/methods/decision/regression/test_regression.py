"""Expectations of networks with one hidden layer against closed forms, exact numbers and sampled weights."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from scipy.stats import norm

from bnn_vnnlib import Model, verify_batch
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.dense_chain import DenseChain, dense_chain
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.system.clock import Deadline
from support.builders import from_nodes, model, outputs, random_model, regression_methods

LEAK = float(np.float32(0.01))
"""Slope of LeakyRelu where the file does not say."""

CPU = torch.device("cpu")
BOTH = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)


def tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(value, np.float64))


def chain(net: Model) -> DenseChain:
    found = dense_chain(net.network, net.posterior, CPU)
    assert found is not None
    return found


def ranges(net: Model, lower: Any, upper: Any, which: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the single output over boxes (N, n)."""
    method = regression_methods(net, Deadline())[which]
    found = method.lower(tensor(lower), tensor(upper), BOTH).numpy()
    return found[:, 0], -found[:, 1]


def closed_form(net: Model, x: np.ndarray, alpha: float = 0.0) -> np.ndarray:
    """E f at points (B, n), by scipy."""
    hidden, top = (
        {k: getattr(layer, k).numpy() for k in ("mean", "variance", "bias", "bias_variance")}
        for layer in chain(net).layers
    )
    m = x @ hidden["mean"].T + hidden["bias"]
    s = np.sqrt(x**2 @ hidden["variance"].T + hidden["bias_variance"])
    t = m / np.where(s > 0, s, 1e-300)
    relu = m * norm.cdf(t) + s * norm.pdf(t)
    return (alpha * m + (1 - alpha) * relu) @ top["mean"].T + top["bias"]


def grid(lower: np.ndarray, upper: np.ndarray, count: int) -> np.ndarray:
    axes = [np.linspace(low, high, count) for low, high in zip(lower, upper, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(lower))


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
@pytest.mark.parametrize("spread", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("inputs", [1, 2])
def test_ranges_enclose_a_dense_grid_and_are_tight(activation: str, spread: float, inputs: int) -> None:
    for seed in range(4):
        net = random_model(seed, [inputs, 9, 1], spread=spread, activation=activation)
        rng = np.random.default_rng(seed)
        center, radius = rng.normal(size=inputs), rng.choice([0.0, 0.05, 0.5, 2.0], size=inputs)
        lower, upper = center - radius, center + radius
        low, high = ranges(net, lower[None], upper[None])
        values = closed_form(
            net, grid(lower, upper, 401 if inputs == 1 else 61), LEAK if activation == "leaky_relu" else 0.0
        )
        assert low[0] <= values.min() + 1e-14
        assert values.max() - 1e-14 <= high[0]
        room = 0.01 * (values.max() - values.min()) + 1e-9
        assert values.min() - low[0] < room
        assert high[0] - values.max() < room


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 12), st.sampled_from([1e-3, 0.1, 1.0]))
@settings(max_examples=40, deadline=None)
def test_no_point_is_outside(seed: int, inputs: int, width: int, spread: float) -> None:
    net = random_model(seed, [inputs, width, 1], spread=spread)
    rng = np.random.default_rng(seed)
    lower = rng.normal(size=(3, inputs))
    upper = lower + rng.choice([0.0, 0.1, 1.0], size=(3, inputs))
    low, high = ranges(net, lower, upper)
    corners = rng.choice([0.0, 0.5, 1.0], size=(200, 3, inputs))
    values = closed_form(net, lower + corners * (upper - lower))[..., 0]
    assert (low <= values.min(0) + 1e-13).all()
    assert (values.max(0) - 1e-13 <= high).all()


def test_points_against_exact_numbers() -> None:
    net = random_model(3, [2, 5, 1], spread=0.4)
    x = [0.3, -0.7]
    hidden, top = chain(net).layers
    with mpmath.workdps(50):
        total = mpmath.mpf(float(top.bias[0]))
        for k in range(5):
            m = sum(mpmath.mpf(float(hidden.mean[k, j])) * mpmath.mpf(x[j]) for j in range(2))
            m += mpmath.mpf(float(hidden.bias[k]))
            q = sum(mpmath.mpf(float(hidden.variance[k, j])) * mpmath.mpf(x[j]) ** 2 for j in range(2))
            s = mpmath.sqrt(q + mpmath.mpf(float(hidden.bias_variance[k])))
            total += mpmath.mpf(float(top.mean[0, k])) * (m * mpmath.ncdf(m / s) + s * mpmath.npdf(m / s))
    low, high = ranges(net, [x], [x])
    assert mpmath.mpf(low[0]) <= total <= mpmath.mpf(high[0])
    assert high[0] - low[0] < 1e-10


def test_sampled_weights() -> None:
    net = random_model(5, [3, 8, 1], spread=0.7)
    x = np.array([0.4, -1.0, 0.2])
    params = sample(net.network, net.posterior, 40_000, torch.Generator().manual_seed(0))
    drawn = outputs(net, x[None], params).reshape(-1)
    low, high = ranges(net, x[None], x[None])
    assert abs(drawn.mean() - low[0]) < 6 * drawn.std() / 200
    assert high[0] - low[0] < 1e-9


def test_without_variance_it_is_the_network_itself() -> None:
    net = model(
        [([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, 1.0]], [0.5])], [([[0.0], [0.0]], [0.0, 0.0]), ([[1.0, 1.0]], [1.0])]
    )
    low, high = ranges(net, [[-1.0], [0.25]], [[2.0], [0.25]])  # |x| + 1/2
    assert low == pytest.approx([0.5, 0.75], abs=1e-3)
    assert high == pytest.approx([2.5, 0.75], abs=1e-3)
    assert (low <= [0.5, 0.75]).all()
    assert (high >= [2.5, 0.75]).all()


def test_rows_that_mix_outputs_and_inputs() -> None:
    net = random_model(2, [2, 7, 3], spread=0.5)
    method = regression_methods(net, Deadline())[0]
    rng = np.random.default_rng(0)
    c, g = rng.normal(size=(1, 2, 3)), rng.normal(size=(1, 2, 2))
    lower, upper = np.array([[-0.5, 0.1], [1.0, 1.0]]), np.array([[0.5, 0.4], [1.5, 1.0]])
    found = method.lower(tensor(lower), tensor(upper), tensor(c), tensor(g)).numpy()
    for i in range(2):
        x = grid(lower[i], upper[i], 60)
        values = (closed_form(net, x) @ c[0].T + x @ g[0].T).min(0)
        assert (found[i] <= values + 1e-13).all()
        assert (values - found[i] < 0.01).all()


def test_an_item_does_not_depend_on_its_neighbours() -> None:
    net = random_model(7, [3, 10, 1], spread=0.3)
    rng = np.random.default_rng(1)
    lower = rng.normal(size=(6, 3))
    upper = lower + rng.uniform(0, 0.6, size=(6, 3))
    together = ranges(net, lower, upper)
    for i in range(6):
        alone = ranges(net, lower[i : i + 1], upper[i : i + 1])
        assert alone[0][0] == pytest.approx(together[0][i], abs=1e-12)
        assert alone[1][0] == pytest.approx(together[1][i], abs=1e-12)


def test_an_unbounded_box_says_nothing() -> None:
    net = random_model(7, [1, 3, 1])
    low, high = ranges(net, [[-np.inf]], [[np.inf]])
    assert low[0] == -np.inf
    assert high[0] == np.inf


def test_time_that_is_up_leaves_the_first_bound() -> None:
    net = random_model(7, [3, 10, 1], spread=0.3)
    method = regression_methods(net, Deadline(0.0))[0]
    found = method.lower(tensor([[-1.0] * 3]), tensor([[1.0] * 3]), BOTH)
    low, _ = ranges(net, [[-1.0] * 3], [[1.0] * 3])
    assert torch.isfinite(found).all()
    assert found[0, 0] <= low[0]


def two_layers(*between: Any, weights: dict[str, np.ndarray], variances: dict[str, np.ndarray], shape: Any) -> Model:
    return from_nodes(list(between), weights, shape, variances)


def test_moves_are_folded_into_the_columns() -> None:
    rng = np.random.default_rng(0)
    weights = {"V": rng.normal(size=(6, 4)), "W": rng.normal(size=(4, 1)), "flat": np.array([1, 6])}
    net = from_nodes(
        [
            helper.make_node("Transpose", ["x"], ["t"], "t", perm=[0, 2, 1]),
            helper.make_node("Reshape", ["t", "flat"], ["r"], "r"),
            helper.make_node("MatMul", ["r", "V"], ["h"], "h"),
            helper.make_node("Relu", ["h"], ["z"], "z"),
            helper.make_node("MatMul", ["z", "W"], ["y"], "y"),
        ],
        weights, [1, 2, 3], {"V": np.full((6, 4), 1e-30), "W": np.ones((4, 1))},
    )  # fmt: skip
    x = rng.normal(size=(1, 6))
    low, high = ranges(net, x, x)
    assert outputs(net, x).reshape(-1)[0] == pytest.approx(low[0], abs=1e-9)
    assert high[0] - low[0] < 1e-9


@pytest.mark.parametrize("tied", [True, False])
def test_tied_random_weights_are_not_independent(tied: bool) -> None:
    square = {"V": np.eye(2), "W": np.eye(2)}
    net = from_nodes(
        [
            helper.make_node("MatMul", ["x", "V"], ["h"], "h"),
            helper.make_node("Relu", ["h"], ["z"], "z"),
            helper.make_node("MatMul", ["z", "V" if tied else "W"], ["y"], "y"),
        ],
        square if not tied else {"V": np.eye(2)}, [1, 2],
        {"V": np.ones((2, 2))} if tied else {"V": np.ones((2, 2)), "W": np.ones((2, 2))},
    )  # fmt: skip
    assert bool(regression_methods(net, Deadline())) is not tied
    drawn_means_lie_within(net)


def test_a_random_number_added_everywhere_is_not_independent() -> None:
    net = from_nodes(
        [
            helper.make_node("MatMul", ["x", "V"], ["h"], "h"),
            helper.make_node("Add", ["h", "b"], ["k"], "k"),
            helper.make_node("Relu", ["k"], ["z"], "z"),
            helper.make_node("MatMul", ["z", "W"], ["y"], "y"),
        ],
        {"V": np.eye(2), "W": np.ones((2, 1)), "b": np.zeros(1)}, [1, 2], {"b": np.ones(1)},
    )  # fmt: skip
    assert regression_methods(net, Deadline()) == ()
    drawn_means_lie_within(net)


def drawn_means_lie_within(net: Model) -> None:
    """Of whatever serves: tails, if nothing else."""
    x = np.array([[0.3, -0.2], [1.0, 0.5]])
    size = net.network.signature.output_size
    nothing = [[(np.eye(size)[:1], np.array([-1e6]), np.array([False]))]] * 2
    found = verify_batch(net, x, x, properties=nothing, query="decision", likelihood="gaussian")
    y = evaluate(
        net.network,
        torch.tensor(x),
        sample(net.network, net.posterior, 20_000, torch.Generator().manual_seed(0)),
    )
    mean, error = y.mean(0).numpy(), (y.std(0) / len(y) ** 0.5).numpy()
    assert (found.lower <= mean + 6 * error).all()
    assert (mean - 6 * error <= found.upper).all()
