"""Tail bounds in activation space against closed forms, against their own definition and against sampled networks."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bnn_vnnlib.bounds import maps, tails
from bnn_vnnlib.bounds.tails import Tail, TailEngine, claimed, deviations_of
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model import evaluate, nodes
from bnn_vnnlib.model.network import GaussianDiagonal, Network
from bnn_vnnlib.model.nodes import Param
from bnn_vnnlib.robustness import weight_sets
from bnn_vnnlib.robustness.weight_sets import params_of
from support.networks import Array, Builder, dense_network
from support.zoo import GRAPHS, IMAGE, PIECES, bare

ROUNDING = 1e-9
"""Room for the roundings of the tests' own float64 computations."""


def tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values, np.float64))


def seed_of(text: str) -> int:
    return zlib.crc32(text.encode())


def random_sources(network: Network) -> list[str]:
    """Sources that may carry a variance: no branch of its own, no rounded factor (the importer refuses both)."""
    fixed = {node.value.source for node in network.nodes if isinstance(node, nodes.Constant)}
    fixed |= {param.source for param in params_of(network) if param.slack is not None}
    return sorted({param.source for param in params_of(network)} - fixed)


def random_deviations(network: Network, rng: np.random.Generator, size: float) -> dict[str, Array]:
    """Standard deviations, some of them 0."""
    found = {}
    for name in random_sources(network):
        shape = network.tensors[name].shape
        found[name] = size * rng.uniform(0.3, 1.0, shape) * (rng.random(shape) < 0.9)
    return found


def failures(
    network: Network, deviations: dict[str, Array], box: tuple[Any, Any], rows: Any, bound: Any,
    budgets: tuple[float, ...] = (1e-7,), inputs: Any = None,
) -> Tensor:  # fmt: skip
    """(K, N, R) for boxes (N, n), rows (R, m) or (N, R, m) and bounds (R,) or (N, R)."""
    posterior = GaussianDiagonal({name: np.asarray(sd, np.float64) ** 2 for name, sd in deviations.items()})
    lower, upper = (torch.atleast_2d(tensor(side)) for side in box)
    outputs, sides = tensor(rows), torch.atleast_2d(tensor(bound))
    slopes = None if inputs is None else tensor(inputs)
    return TailEngine(network).failures(
        weight_sets.mean_weights(network), weight_sets.centred(network, posterior), (lower, upper),
        outputs if outputs.dim() == 3 else outputs[None],
        slopes if slopes is None or slopes.dim() == 3 else slopes[None], sides, tensor(budgets),
    )  # fmt: skip


@dataclass(eq=False)
class Piece:
    """What one use of a parameter contributed to F: hc . delta - rho . |delta|, or a bias."""

    node: nodes.Node
    a: Tensor
    center: Tensor | None
    radius: Tensor | None


@dataclass(eq=False)
class Recorder(tails._Noise):
    """The noise of a walk, with its pieces kept, so that F can be evaluated by its definition."""

    pieces: list[Piece] = field(default_factory=list)

    def weighted(self, walk: Any, node: Any, position: int, a: Tensor) -> None:
        z = walk.ranges.values[node.inputs[0]]
        center = (z.lower + z.upper) / 2
        self.pieces.append(Piece(node, a, center, torch.maximum(z.upper - center, center - z.lower)))
        super().weighted(walk, node, position, a)

    def shift(self, walk: Any, node: Any, position: int, a: Tensor) -> None:
        self.pieces.append(Piece(node, a, None, None))
        super().shift(walk, node, position, a)


@dataclass(eq=False)
class Case:
    """One item of one network, with its tails and the recorded F; everything at K = M = 1."""

    network: Network
    deviations: dict[str, Array]
    budget: float
    run: tails._Run
    tail: Tail
    noise: Recorder

    @property
    def constant(self) -> Tensor:
        """m0 (R,)."""
        return (self.tail.mean + math.sqrt(2 / math.pi) * self.noise.folded)[0, 0]

    def value(self, drawn: dict[str, Tensor]) -> Tensor:
        """F - m0 by its definition for noises {source: (S, *shape)} in standard deviations -> (S, R)."""
        total = torch.zeros(1, dtype=torch.float64)
        for piece in self.noise.pieces:
            param = piece.node.bias if isinstance(piece.node, nodes.Shift) else piece.node.weight  # type: ignore[attr-defined]
            if param.source not in self.deviations:
                continue
            delta = self._delta(param, drawn[param.source])
            a = piece.a[0, 0][None]  # (1, R, *shape)
            if isinstance(piece.node, nodes.Shift):
                rank = len(piece.node.shape)
                spread = delta.reshape(len(delta), 1, *(1,) * (rank - delta.dim() + 1), *delta.shape[1:])
                product = a * spread
                total = total + product.reshape(*product.shape[:2], -1).sum(-1)
                continue
            shape = self.network.nodes[piece.node.inputs[0]].shape
            moved = maps.adjoint(piece.node, delta, a, shape)  # type: ignore[arg-type]
            moved = moved.reshape(*moved.shape[:2], -1)
            center, radius = (side.reshape(-1) for side in (piece.center, piece.radius))  # type: ignore[union-attr]
            total = total + moved @ center - moved.abs() @ radius
        return total

    def _delta(self, param: Param, drawn: Tensor) -> Tensor:
        noise = drawn * tensor(self.deviations[param.source])
        entries = noise.reshape(len(noise), -1)[:, torch.as_tensor(param.index).reshape(-1)]
        return entries.reshape(len(noise), *param.shape) * tensor(param.factor)

    def draw(self, generator: torch.Generator, count: int) -> dict[str, Tensor]:
        return {
            name: torch.randn(count, *sd.shape, dtype=torch.float64, generator=generator)
            for name, sd in self.deviations.items()
        }

    def weights(self, drawn: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor(self.network.tensors[name]) + noise * tensor(self.deviations[name])
            for name, noise in drawn.items()
        }


def record(
    monkeypatch: pytest.MonkeyPatch, network: Network, deviations: dict[str, Array], box: tuple[Any, Any],
    rows: Tensor, budget: float,
) -> Case:  # fmt: skip
    """The tails of rows (R, m) over one box (n,)."""
    kept: list[Recorder] = []
    runs: list[tails._Run] = []

    def recorder(*args: Any) -> Recorder:
        kept.append(Recorder(*args))
        return kept[-1]

    def run(*args: Any, real: Any = tails._Run) -> tails._Run:
        runs.append(real(*args))
        return runs[-1]

    with monkeypatch.context() as patch:
        patch.setattr(tails, "_Noise", recorder)
        patch.setattr(tails, "_Run", run)
        failures(network, deviations, box, rows, torch.zeros(len(rows)), (budget,))  # the engine shares the budget
        tail = runs[-1].tail(rows[None], None)
    return Case(network, deviations, budget, runs[-1], tail, kept[-1])


def setup(
    monkeypatch: pytest.MonkeyPatch, name: str, size: float, width: float, budget: float, network: Network | None = None
) -> tuple[Case, Tensor, Tensor]:
    """A case of the zoo, its rows (R, m), and a grid of inputs (G, n) that holds corners of the box."""
    network = GRAPHS[name]() if network is None else network
    rng = np.random.default_rng(seed_of(f"{name}{size}{width}"))
    n, m = network.signature.input_size, network.signature.output_size
    center, reach = rng.normal(size=n), width * rng.random(n)
    rows = tensor(np.concatenate([rng.normal(size=(1, m)), np.eye(m)[:1]]))
    case = record(
        monkeypatch, network, random_deviations(network, rng, size), (center - reach, center + reach), rows, budget
    )
    corner = np.sign(rng.normal(size=(1, n)))
    signs = np.concatenate([rng.uniform(-1, 1, size=(1, n)), corner, -corner])
    return case, rows, tensor(np.clip(center + signs * reach, center - reach, center + reach))


def node_values(network: Network, grid: Tensor, weights: dict[str, Tensor]) -> list[Tensor]:
    """Value (S, G, *shape) of every node."""
    return evaluate._forward(network, grid[None], evaluate._gatherer(network, weights, grid.device))


def left_ranges(case: Case, values: list[Tensor]) -> Tensor:
    """(S,): some claimed range is left at some input of the grid."""
    left = torch.zeros(1, dtype=torch.bool)
    for position in claimed(case.network):
        z, value = case.run.ranges.values[position], values[position]
        room = ROUNDING * (1 + value.abs())
        outside = (value < z.lower[0] - room) | (value > z.upper[0] + room)
        left = left | outside.reshape(len(value), -1).any(-1)
    return left


def surprising(count: Tensor, total: int, probability: Tensor) -> Tensor:
    """The counts that a binomial variable of at most this probability reaches with probability below 1e-9."""
    return tensor(stats.binom.sf(count.numpy() - 1, total, probability.clamp(0, 1).numpy())) < 1e-9


# ---------------------------------------------------------------------------------------------------------------------
# closed forms


@pytest.mark.parametrize("z", [-3.0, 0.0, 0.5, 2.0, 7.0, 20.0, 36.0])
def test_a_linear_layer_at_a_point_is_exact(z: float) -> None:
    """P(c (W x + b) <= t) is a normal probability; 1 where the mean is below the threshold."""
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
    assert found == (1.0 if z <= 0 else pytest.approx(exact, rel=1e-9))


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


AFFINE = [
    name for name in PIECES
    if random_sources(bare(name)) and all(p.copies == 1 for p in params_of(bare(name)))
]  # fmt: skip


@pytest.mark.parametrize("name", AFFINE)
def test_a_single_piece_at_a_point_has_the_exact_deviation(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Affine in its weights: L is the length of the gradient, by autograd, and the mean is the mean network's row."""
    network = bare(name)
    case, rows, grid = setup(monkeypatch, name, 0.7, 0.0, 1e-3, network)
    mean, gradient = _gradient(case, rows, grid[0])
    torch.testing.assert_close(case.tail.spread[0, 0], gradient, rtol=1e-9, atol=1e-150)
    torch.testing.assert_close(case.tail.mean[0, 0], mean, rtol=1e-9, atol=1e-9)


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


INSIDE = [name for name in GRAPHS if not name.endswith("_alone") and name not in ("identity", "only_constant")]
SMOOTH = [name for name in INSIDE if random_sources(GRAPHS[name]())]


@pytest.mark.parametrize("name", SMOOTH)
def test_tiny_deviations_reach_the_linearised_ones(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """To first order a row is its mean plus gradient . noise: L may not be smaller, for any node and any sharing."""
    case, rows, grid = setup(monkeypatch, name, 1e-7, 0.0, 1e-3)
    mean, gradient = _gradient(case, rows, grid[0])
    spread = case.tail.spread[0, 0]
    assert (spread >= gradient * (1 - 1e-4)).all()
    assert (case.tail.mean[0, 0] <= mean + 1e-5 * gradient).all()
    if name not in ("tied", "shared_source", "sum_itself_inside"):
        assert (spread <= gradient * (1 + 1e-3) + 1e-15).all()


# ---------------------------------------------------------------------------------------------------------------------
# F itself


def lip_networks() -> Iterator[tuple[str, Network]]:
    for name in ("tied", "shared_source", "residual", "deep_conv", "conv_groups_inside", "scale_column_inside"):
        yield name, GRAPHS[name]()
    yield "tiled", tiled()


def tiled() -> Network:
    """Entries of one tensor that are used several times within one map, by different factors."""
    builder = Builder(11)
    base = builder.param((2, 2))
    wide = Param(base.source, np.tile(base.index, (2, 2)), builder.rng.normal(size=(4, 4)))
    bias = Param(base.source, base.index[[0, 0, 1, 1], [0, 0, 1, 0]], np.asarray(-0.5))
    x = builder.activation(builder.shift(builder.linear(builder.input(1, 4), wide), bias), "tanh")
    return builder.network(builder.scale(builder.linear(x, wide), bias))


LIP = dict(lip_networks())


@pytest.mark.parametrize("size", [0.1, 1.0])
@pytest.mark.parametrize("name", LIP)
def test_f_is_concave_and_lipschitz_with_the_claimed_mean(
    monkeypatch: pytest.MonkeyPatch, name: str, size: float
) -> None:
    case, _, _ = setup(monkeypatch, name, size, 0.3, 1e-2, LIP[name])
    generator = torch.Generator().manual_seed(3)
    spread = case.tail.spread[0, 0]
    one, two = (case.draw(generator, 150) for _ in range(2))
    for step in (1.0, 1e-3):
        near = {source: one[source] + step * (two[source] - one[source]) for source in one}
        middle = {source: (one[source] + near[source]) / 2 for source in one}
        left, right, between = (case.value(noise) for noise in (one, near, middle))
        distance = torch.cat([(one[s] - near[s]).reshape(len(one[s]), -1) for s in one], -1).norm(dim=-1)[:, None]
        room = ROUNDING * (1 + left.abs())
        assert ((left - right).abs() <= spread * distance * (1 + 1e-9) + room * step).all()
        assert (between >= (left + right) / 2 - room).all()
    # the steepest direction, not a random one
    steep = {source: noise.clone().requires_grad_() for source, noise in one.items()}
    for row in range(len(spread)):
        parts = torch.autograd.grad(case.value(steep)[:, row].sum(), list(steep.values()), allow_unused=True)
        length = torch.cat([part.reshape(len(part), -1) for part in parts if part is not None], -1).norm(dim=-1)
        assert (length <= spread[row] * (1 + 1e-9)).all()
        assert length.max() >= 0.2 * spread[row]  # the claim is about this F
    drawn = case.value(case.draw(generator, 4_000))
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert (drawn.mean(0) + case.constant >= case.tail.mean[0, 0] - 7 * error).all()
    assert (drawn.std(0) <= spread * 1.1).all()  # Poincare: Var F <= L^2


@pytest.mark.parametrize("size", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("name", INSIDE)
def test_rows_stay_above_f_where_the_ranges_hold(monkeypatch: pytest.MonkeyPatch, name: str, size: float) -> None:
    """The inequality behind everything, sample by sample: on G, row(x) >= m0 + the noise, for the x of the grid."""
    case, rows, grid = setup(monkeypatch, name, size, 0.2, 0.5)
    drawn = case.draw(torch.Generator().manual_seed(4), 300)
    values = node_values(case.network, grid, case.weights(drawn))
    good = ~left_ranges(case, values).expand(300)
    least = _rows_of(case.network, values, rows).amin(1).expand(300, -1)
    above = least - (case.constant + case.value(drawn))
    assert good.any()
    assert (above[good] >= -ROUNDING * (1 + least[good].abs())).all()


def _rows_of(network: Network, values: list[Tensor], rows: Tensor) -> Tensor:
    """(S, G, R)."""
    count = max(len(value) for value in values)
    wide = max(value.shape[1] for value in values)
    outputs = [values[i].reshape(*values[i].shape[:2], -1).expand(count, wide, -1) for i in network.outputs]
    return torch.cat(outputs, -1) @ rows.mT


# ---------------------------------------------------------------------------------------------------------------------
# sampled networks

SAMPLES = 20_000


@pytest.mark.parametrize("size", [0.1, 1.0])
@pytest.mark.parametrize("name", INSIDE)
def test_sampled_networks_fail_no_more_often(monkeypatch: pytest.MonkeyPatch, name: str, size: float) -> None:
    """The grid over-estimates the minimum: its frequencies are below the true ones, which are below the bounds."""
    budget = 0.02
    case, rows, grid = setup(monkeypatch, name, size, 0.1, budget)
    weights = case.weights(case.draw(torch.Generator().manual_seed(seed_of(name)), SAMPLES))
    values = node_values(case.network, grid, weights)
    left = left_ranges(case, values)
    assert not surprising(left.sum().reshape(1), SAMPLES, tensor([budget])).any()
    least = _rows_of(case.network, values, rows).amin(1)
    z = tensor([0.01, 0.5, 1.0, 2.0, 3.0, 4.0])[:, None, None, None]
    thresholds = case.tail.mean - z * case.tail.spread
    bound = case.tail.failure(thresholds)[:, 0, 0] + budget  # (Z, R)
    count = (least[None] <= thresholds[:, 0]).sum(1).expand(bound.shape) * (SAMPLES // len(least))
    assert not surprising(count, SAMPLES, bound).any()


@pytest.mark.parametrize("source", [0, 1, 2, 3, None])
def test_one_random_layer_alone_is_sampled_closely(monkeypatch: pytest.MonkeyPatch, source: int | None) -> None:
    """Ranges that hold with a budget near 0, and the bulk of the distribution at a point."""
    network = dense_network([3, 6, 2], "leaky_relu", 0.3, seed=3)
    rng = np.random.default_rng(5)
    deviations = random_deviations(network, rng, 0.2)
    if source is not None:
        deviations = {f"w{source}": deviations[f"w{source}"]}
    x, rows = rng.normal(size=3), tensor([[1.0, -1.0]])
    case = record(monkeypatch, network, deviations, (x, x), rows, 1e-6)
    weights = case.weights(case.draw(torch.Generator().manual_seed(6), 200_000))
    y = evaluate.evaluate(network, tensor(x)[None], weights)[:, 0] @ rows[0]
    thresholds = torch.quantile(y[:1000], tensor([0.001, 0.01, 0.1, 0.3, 0.6]))
    found = failures(network, deviations, (x, x), rows.expand(5, 2), thresholds, (1e-6,))[0, 0] + 1e-6
    count = (y[1000:, None] <= thresholds).sum(0)
    assert not surprising(count, len(y) - 1000, found).any()
    if source in (2, 3):  # the last layer: exact
        exact = stats.norm.cdf(thresholds.numpy(), y.mean(), y.std())
        assert (found.numpy() <= np.where(exact < 0.4, exact * 1.1 + 1e-5, 1.1)).all()


def test_the_budget_is_shared_by_all_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent exact tails: the ranges of one wide layer are left nearly as often as the budget says, not more."""
    builder = Builder(7)
    x = builder.dense(builder.input(1, 2), 50, "relu")
    builder.dense(x, 1)
    network, at = builder.network(), np.array([0.5, -1.0])
    sd = {"w0": np.full((50, 2), 0.3), "w1": np.full(50, 0.1)}
    case = record(monkeypatch, network, sd, (at, at), tensor([[1.0]]), 0.2)
    weights = case.weights(case.draw(torch.Generator().manual_seed(8), SAMPLES))
    rate = left_ranges(case, node_values(network, tensor(at)[None], weights)).double().mean()
    assert 0.16 < rate < 0.2 + 0.015


# ---------------------------------------------------------------------------------------------------------------------
# structure


@pytest.mark.parametrize("ending", ["output", "sum", "shift", "reshape"])
def test_a_broadcast_behind_random_weights(ending: str) -> None:
    """One random value repeated six times, read with the same coefficient: one variable."""
    builder = Builder()
    x = builder.broadcast(builder.shift(builder.input(2, 1), np.zeros((2, 1))), 2, 3)
    match ending:
        case "sum":
            builder.sum(x, builder.constant(np.zeros((2, 3))))
        case "shift":
            builder.shift(x, np.zeros(()))
        case "reshape":
            builder.reshape(x, 6)
    network = builder.network()
    found = failures(network, {"w0": np.ones((2, 1))}, ([0, 0], [0, 0]), np.ones((1, 6)), [-9.0]).item()
    assert found == pytest.approx(stats.norm.cdf(-9 / math.sqrt(18)), rel=1e-6)


def test_a_random_constant_is_refused() -> None:
    """A Constant with a variance is a bias: its noise may not be forgotten."""
    builder = Builder()
    builder.sum(builder.input(1, 2), builder.constant(np.ones((1, 2))))
    with pytest.raises(UnsupportedError):
        failures(builder.network(), {"w0": np.ones((1, 2))}, ([0, 0], [0, 0]), [[1.0, 0.0]], [0.0])


@pytest.mark.parametrize("name", ["dense", "residual", "tied", "shared_source", "several", "linear_vector_inside"])
def test_a_dense_layer_claims_what_the_general_walk_claims(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The shortcut of dense layers is the walk from the rows I and -I, mean and spread."""
    network = dense_network([3, 5, 4, 2], seed=4) if name == "dense" else None
    case, _, _ = setup(monkeypatch, name, 0.3, 0.8, 1e-2, network)
    compared = 0
    for position in claimed(case.network):
        shape = case.network.nodes[position].shape
        (short, *rest), size = list(case.run._units(position, math.prod(shape))), math.prod(shape)
        if rest:
            continue
        unit = torch.eye(size, dtype=torch.float64)
        long = case.run._walk([(position, torch.cat([unit, -unit]).reshape(1, 1, -1, *shape))])
        torch.testing.assert_close(short.mean, long.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(short.spread, long.spread, rtol=1e-9, atol=1e-9)
        compared += 1
    assert compared > 0


@pytest.mark.parametrize("name", ["residual", "deep_conv", "linear_left_matrix_inside", "several"])
def test_items_chunks_and_budgets_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    network = GRAPHS[name]()
    rng = np.random.default_rng(9)
    n, m, budgets = network.signature.input_size, network.signature.output_size, (1e-1, 1e-5, 1e-13)
    lower = rng.normal(size=(5, n))
    upper = lower + 0.1 * rng.random((5, n))
    sd = random_deviations(network, rng, 0.05)
    rows, slopes, bound = rng.normal(size=(5, 3, m)), rng.normal(size=(5, 3, n)), rng.normal(size=(5, 3)) - 3
    whole = failures(network, sd, (lower, upper), rows, bound, budgets, slopes)
    assert whole.shape == (3, 5, 3)
    assert ((whole > 0) & (whole < 1)).any()
    for i, k in itertools.product(range(5), range(3)):
        alone = failures(
            network, sd, (lower[i], upper[i]), rows[i : i + 1], bound[i : i + 1], budgets[k : k + 1], slopes[i : i + 1]
        )
        torch.testing.assert_close(alone[0, 0], whole[k, i], rtol=1e-6, atol=1e-300)
    for memory in (1, 40, 500):
        monkeypatch.setattr(tails, "MEMORY", memory)
        chunked = failures(network, sd, (lower, upper), rows, bound, budgets, slopes)
        torch.testing.assert_close(chunked, whole, rtol=1e-6, atol=1e-300)


def test_rows_with_input_terms() -> None:
    """y + g x - g x: the mixed row of a linear layer over a box, as a shifted weight."""
    builder = Builder()
    builder.linear(builder.input(1, 2), np.array([[1.0, -2.0]]))
    network, sd = builder.network(), {"w0": np.array([[0.2, 0.5]])}
    box = ([-0.3, 0.2], [0.5, 0.6])
    g, t = np.array([[0.7, 2.5]]), -0.8
    mixed = failures(network, sd, box, [[1.0]], [t], inputs=g)
    network.tensors["w0"][:] += g
    torch.testing.assert_close(mixed, failures(network, sd, box, [[1.0]], [t]), rtol=1e-9, atol=0)
    assert 0 < mixed.item() < 1


# ---------------------------------------------------------------------------------------------------------------------
# numbers


def test_failure_is_never_below_the_normal_probability() -> None:
    rng = np.random.default_rng(10)
    gaps = np.concatenate([rng.uniform(0, 5, 200), rng.uniform(5, 37, 200), [1e-300, 1e-12, 37.4, 38.4, 39.0, 100.0]])
    spreads = np.exp(rng.uniform(-30, 30, len(gaps)))
    offsets = rng.normal(size=len(gaps)) * spreads
    mean, threshold, spread = tensor(offsets + gaps * spreads), tensor(offsets), tensor(spreads)
    found = Tail(mean, spread).failure(threshold)
    with mpmath.workdps(50):
        for m, t, s, value in zip(mean.tolist(), threshold.tolist(), spread.tolist(), found.tolist(), strict=True):
            z = (mpmath.mpf(m) - mpmath.mpf(t)) / mpmath.mpf(s)
            assert mpmath.ncdf(-z) <= mpmath.mpf(value)
            assert value <= mpmath.ncdf(-z) * (1 + 1e-9) + 1e-300 or z < 1e-9


@pytest.mark.parametrize(
    ("mean", "spread", "threshold", "expected"),
    [
        (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), (-1.0, 0.0, 0.0, 1.0), (0.0, 1.0, 0.0, 1.0),
        (-math.inf, 1.0, 0.0, 1.0), (math.nan, 1.0, 0.0, 1.0), (1.0, math.nan, 0.0, 1.0),
        (1.0, 1.0, math.inf, 1.0), (-math.inf, 0.0, -math.inf, 1.0), (math.inf, math.inf, 0.0, 1.0),
    ],
)  # fmt: skip
def test_failure_at_the_ends(mean: float, spread: float, threshold: float, expected: float) -> None:
    assert Tail(tensor(mean), tensor(spread)).failure(tensor(threshold)).item() == expected


def test_deviations_are_rounded_up() -> None:
    asked = np.concatenate([10.0 ** -np.arange(0.0, 320.0, 1.7), [0.5, 0.4999, 1.0, 1e-300, 5e-324]])
    with mpmath.workdps(50):
        for probability, z in zip(asked.tolist(), deviations_of(asked).tolist(), strict=True):
            assert z > 0
            assert mpmath.ncdf(-mpmath.mpf(z)) <= mpmath.mpf(probability)
            assert mpmath.ncdf(-mpmath.mpf(z)) >= mpmath.mpf(min(probability, 0.5)) * (1 - 1e-6)
    assert deviations_of(np.array([0.0])).tolist() == [math.inf]


def test_quantiles_are_rounded_down() -> None:
    rng = np.random.default_rng(12)
    mean, spread, z = (tensor(rng.normal(size=300) * scale) for scale in (1e3, 1.0, 5.0))
    spread, z = spread.abs(), z.abs()
    found = Tail(mean, spread).quantile(z)
    for m, s, d, value in zip(mean.tolist(), spread.tolist(), z.tolist(), found.tolist(), strict=True):
        assert mpmath.mpf(value) <= mpmath.mpf(m) - mpmath.mpf(d) * mpmath.mpf(s)
    ends = Tail(tensor([1.0, -math.inf, math.nan, 1.0]), tensor([0.0, 1.0, 1.0, math.inf])).quantile(tensor(math.inf))
    assert (ends == -math.inf).all()


@pytest.mark.parametrize("budget", [1e-300, 5e-324, 0.0])
def test_tiny_budgets(budget: float) -> None:
    """Ranges become wide or infinite: a valid probability, never below the one of a deterministic violation."""
    network = dense_network([2, 3, 1])
    sd = {name: np.full(value.shape, 0.01) for name, value in network.tensors.items()}
    x = np.array([0.1, 0.2])
    y = evaluate.evaluate(network, tensor(x)).item()
    found = failures(network, sd, (x, x), np.ones((2, 1)), [y + 0.1, y - 0.001], (budget,))[0, 0]
    assert found[0] == 1.0
    assert 0.4 < found[1] <= 1.0


def test_infinite_numbers_prove_nothing() -> None:
    network = dense_network([2, 3, 1])
    sd = {name: np.full(value.shape, 1e150) for name, value in network.tensors.items()}
    found = failures(network, sd, ([-1e200, 0.0], [1e200, 1e300]), [[1.0]], [-1.0])
    assert found.item() == 1.0
