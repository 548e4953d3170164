"""Tails of correlated weights: closed forms, quadrature, sampled weights, and the pieces of the bound by definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.tails.run import TailRun
from bnn_vnnlib.bounds.tails.shared import Dense, Kron, Use, largest
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.model import (
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Network,
    from_covariance,
    from_factor,
    sample,
)
from bnn_vnnlib.network import evaluate, nodes
from bnn_vnnlib.network.network import Gaussian
from bnn_vnnlib.network.nodes import Param
from bnn_vnnlib.problem import weight_sets
from support.networks import Array, Builder, dense_network
from support.tails import tensor


def failures(
    network: Network, posterior: Gaussian, box: tuple[Array, Array], rows: Array, bound: Array, budget: float = 1e-4,
    thorough: bool = False,
) -> Array:  # fmt: skip
    """(R,) upper bounds on P(row <= bound for some x), the budget included."""
    shared = correlation(network, posterior)
    engine = TailEngine(network, correlation=shared)
    lower, upper = (tensor(side)[None] for side in box)
    budget = budget if engine.events else 0.0
    found = engine.failures(
        weight_sets.mean_weights(network), weight_sets.centred(network, independent(posterior)), (lower, upper),
        tensor(rows)[None], None, tensor(bound)[None], tensor([budget]), thorough=thorough,
    )  # fmt: skip
    return np.minimum(found[0, 0].numpy() + budget, 1.0)


def full(network: Network, rng: np.random.Generator, size: float, names: list[str] | None = None) -> GaussianFull:
    """A random covariance of rank about half of the weights, so that the correlations are strong."""
    shapes = {name: network.tensors[name].shape for name in names or network.tensors}
    n = sum(math.prod(shape) for shape in shapes.values())
    root = size * rng.normal(size=(n, max(1, n // 2)))
    return from_covariance(root @ root.T / root.shape[1], shapes)


def low_rank(network: Network, rng: np.random.Generator, size: float, rank: int = 2) -> GaussianLowRank:
    factors = {n: size * rng.normal(size=(rank, *t.shape)) / math.sqrt(rank) for n, t in network.tensors.items()}
    return GaussianLowRank(factors, {n: (0.3 * size * rng.random(t.shape)) ** 2 for n, t in network.tensors.items()})


def kron(network: Network, rng: np.random.Generator, size: float, joint: bool = True) -> GaussianKron:
    """Every dense layer; biases in the last column, or independent."""
    layers = []
    names = list(network.tensors)
    for weight, bias in zip(names[::2], names[1::2], strict=True):
        p, q = network.tensors[weight].shape
        inner = q + joint
        left, right = rng.normal(size=(p, 2)), rng.normal(size=(inner, 2))
        spectrum = size**2 * rng.uniform(0.2, 1, (2, 2)) / 2
        layers.append(KronLayer(weight, left, right, spectrum, bias if joint else None))
        if not joint:
            layers.append(KronLayer(bias, rng.normal(size=(p, 2)), np.ones((1, 1)), np.full((2, 1), size**2)))
    return GaussianKron(tuple(layers))


def variance_of(network: Network, posterior: Gaussian, gradient: dict[str, Array]) -> float:
    """The variance of the sum of gradient times weight over all weights."""
    total = 0.0
    for root in roots(network, posterior):
        parts = [(factor * gradient[name]).reshape(len(factor), -1).sum(1) for name, factor in root.items()]
        total += float((np.sum(parts, axis=0) ** 2).sum())
    for name, variance in independent(posterior).variances.items():
        total += float((variance * gradient[name] ** 2).sum())
    return total


def roots(network: Network, posterior: Gaussian) -> list[dict[str, Array]]:
    match posterior:
        case GaussianKron(layers=layers):
            found = []
            for layer in layers:
                for a, b in np.ndindex(layer.spectrum.shape):
                    matrix = math.sqrt(layer.spectrum[a, b]) * np.outer(layer.left[:, a], layer.right[:, b])
                    parts = layer.split(matrix)
                    found.append({n: v.reshape(1, *network.tensors[n].shape) for n, v in parts.items()})
            return found
        case GaussianFull(factors=factors) | GaussianLowRank(factors=factors):
            return [dict(factors)]
        case _:
            return []


MAKERS = {"full": full, "lowrank": low_rank, "kron": kron}


@pytest.mark.parametrize("family", [*MAKERS, "kron apart"])
@pytest.mark.parametrize("z", [-2.0, 0.5, 3.0, 12.0])
def test_a_linear_layer_at_a_point_is_exact(family: str, z: float) -> None:
    """P(c (W x + b) <= t) is a normal probability, on both sides of the mean, whatever the covariance."""
    rng = np.random.default_rng(0)
    builder = Builder(1)
    builder.dense(builder.input(1, 4), 3)
    network = builder.network()
    posterior = kron(network, rng, 1.0, joint=False) if family == "kron apart" else MAKERS[family](network, rng, 1.0)
    x, c = rng.normal(size=4), rng.normal(size=3)
    weight, bias = network.tensors
    mean = float(c @ (network.tensors[weight] @ x + network.tensors[bias]))
    spread = math.sqrt(variance_of(network, posterior, {weight: np.outer(c, x), bias: c}))
    found = failures(network, posterior, (x, x), c[None], np.array([mean - z * spread])).item()
    exact = float(stats.norm.sf(z))
    assert exact <= found * (1 + 1e-9)
    assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("correlated", [-1.0, -0.6, 0.0, 0.9, 1.0])
def test_two_weights_over_a_square_against_quadrature(correlated: float) -> None:
    """min over the square of w.x, w two correlated weights: exact by quadrature over their two latents."""
    builder = Builder()
    builder.linear(builder.input(1, 2), np.array([[0.4, 0.3]]))
    network = builder.network()
    sd = np.array([0.8, 0.5])
    root = np.array([[sd[0], 0.0], [correlated * sd[1], math.sqrt(1 - correlated**2) * sd[1]]])
    posterior = from_factor(root, {"w0": (1, 2)})
    low, high = np.array([-0.2, 0.5]), np.array([0.4, 0.9])
    grid = np.linspace(-8, 8, 801)
    mass = stats.norm.pdf(grid) * (grid[1] - grid[0])
    w = np.array([0.4, 0.3])[:, None, None] + np.tensordot(root, np.array(np.meshgrid(grid, grid, indexing="ij")), 1)
    least = np.minimum(w * low[:, None, None], w * high[:, None, None]).sum(0)
    for t in (-0.5, -0.8, -1.5, -2.5):
        exact = float(mass @ (least <= t) @ mass)
        found = failures(network, posterior, (low, high), np.ones((1, 1)), np.array([t])).item()
        assert exact <= found * 1.02 + 1e-12, t
    assert stats.norm.isf(found) >= 0.6 * stats.norm.isf(exact)


def chain(first: Array, second: Array) -> Network:
    """relu(first x) times second."""
    builder = Builder()
    hidden = builder.activation(builder.linear(builder.input(1, 1), first), "relu")
    builder.linear(hidden, second)
    return builder.network()


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("correlated", [-1.0, -0.7, 1.0])
@pytest.mark.parametrize("own", [0.0, 0.05])
def test_weights_of_two_layers_against_quadrature(correlated: float, own: float, thorough: bool) -> None:
    """v relu(w x) with w and v correlated, for all x of an interval and at a point: no failure is understated.

    Latents of the first layer that are taken for fresh ones at the second would be: E v relu(w x) is not v E relu(w x).
    """
    network = chain(np.array([[1.0]]), np.array([[1.0]]))
    sd = np.array([0.12, 0.12])
    root = np.array([[sd[0], 0.0], [correlated * sd[1], math.sqrt(1 - correlated**2) * sd[1]]])
    factors = {"w0": root[0].reshape(2, 1, 1), "w1": root[1].reshape(2, 1, 1)}
    posterior: Gaussian = GaussianFull(factors)
    if own:
        variance = np.full((1, 1), own**2)
        posterior = GaussianLowRank(factors, {"w0": variance, "w1": variance})
    spread = root @ root.T + own**2 * np.eye(2)
    grid = np.linspace(-7, 7, 401)
    mass = stats.norm.pdf(grid) * (grid[1] - grid[0])
    exact_root = np.linalg.cholesky(spread + 1e-15 * np.eye(2))
    w, v = 1.0 + np.tensordot(exact_root, np.array(np.meshgrid(grid, grid, indexing="ij")), 1)
    for low, high in ((1.0, 1.0), (0.8, 1.2)):
        values = np.stack([v * np.maximum(w * x, 0) for x in (low, high)])
        least = values.min(0)
        order = np.argsort(least.ravel())
        cumulated = np.cumsum((mass[:, None] * mass)[np.unravel_index(order, least.shape)])
        for quantile in (1e-4, 1e-3, 0.02, 0.2, 0.5):
            t = float(least.ravel()[order[np.searchsorted(cumulated, quantile)]])
            exact = float(mass @ (least <= t) @ mass)
            found = failures(
                network, posterior, (np.array([low]), np.array([high])), np.ones((1, 1)), np.array([t]), 1e-5, thorough
            ).item()
            assert exact <= found * 1.05, (low, quantile)


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("own", [0.0, 0.01])
def test_a_group_in_two_layers_shifts_the_mean(own: float, thorough: bool) -> None:
    """sum_j v_j relu(w_j) with w_j = 1 + s z_j, v_j = 1 - s z_j is n - s^2 chi^2_n: E v relu(w) is not E v E relu(w).

    A group that is taken for a fresh one at its second layer, or folded at its first only, understates this.
    """
    n, sd = 100, 0.12
    network = chain(np.ones((n, 1)), np.ones((1, n)))
    root = sd * np.eye(n)
    posterior = GaussianLowRank(
        {"w0": root.reshape(n, n, 1), "w1": -root.reshape(n, 1, n)},
        {"w0": np.full((n, 1), own**2), "w1": np.full((1, n), own**2)},
    )
    one = np.ones(1)
    for quantile in (0.01, 0.5):
        t = n - sd**2 * stats.chi2.isf(quantile, n)
        found = failures(network, posterior, (one, one), np.ones((1, 1)), np.array([t]), 1e-3, thorough).item()
        assert found >= quantile * (0.98 if own == 0 else 0.5)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("kind", ["full", "kron"])
@pytest.mark.parametrize("thorough", [False, True])
def test_weight_and_bias_of_a_hidden_layer_together(sign: float, kind: str, thorough: bool) -> None:
    """+-relu(w + b) with w and b moved by one latent: both ends of its range are as far away as that makes them."""
    builder = Builder()
    hidden = builder.shift(builder.linear(builder.input(1, 1), np.array([[0.3]])), np.array([0.2]))
    builder.linear(builder.activation(hidden, "relu"), np.array([[sign]]))
    network = builder.network()
    posterior: Gaussian = GaussianFull({"w0": np.full((1, 1, 1), 0.2), "w1": np.full((1, 1), 0.2)})
    if kind == "kron":
        posterior = GaussianKron((KronLayer("w0", np.ones((1, 1)), np.ones((2, 1)), np.full((1, 1), 0.04), "w1"),))
    for level in (0.7, 1.3) if sign < 0 else (0.45, 0.1):
        exact = float(stats.norm.sf((level - 0.5) / 0.4) if sign < 0 else stats.norm.cdf((level - 0.5) / 0.4))
        one = np.ones(1)
        found = failures(
            network, posterior, (one, one), np.ones((1, 1)), np.array([sign * level]), 1e-3, thorough
        ).item()
        assert exact <= found
        assert found <= 4 * exact + 0.2


@pytest.mark.parametrize("thorough", [False, True])
def test_what_a_box_costs_is_folded(thorough: bool) -> None:
    """min over [-1, 1]^n of w.x is -sum |w_j|, far below its value at the centre."""
    n = 60
    builder = Builder()
    builder.linear(builder.input(1, n), np.zeros((1, n)))
    posterior = GaussianFull({"w0": np.eye(n).reshape(n, 1, n)})
    sums = np.abs(np.random.default_rng(0).normal(size=(20_000, n))).sum(1)
    for quantile in (0.02, 0.2):
        t = -np.quantile(sums, 1 - quantile)
        found = failures(
            builder.network(), posterior, (-np.ones(n), np.ones(n)), np.ones((1, 1)), np.array([t]), 0.0, thorough
        )
        assert quantile * 0.9 <= found.item() <= 0.1 + 1.2 * quantile


def test_above_the_mean_the_least_variance_counts() -> None:
    """v h with v ~ N(0, 1) of a group and h = relu(w), w ~ N(1, .3^2) of its own: P(v h <= t) = E Phi(t / h)."""
    network = chain(np.ones((1, 1)), np.zeros((1, 1)))
    zero, variance = np.zeros((1, 1)), np.full((1, 1), 0.09)
    factors = {"w0": np.zeros((1, 1, 1)), "w1": np.ones((1, 1, 1))}
    posterior = GaussianLowRank(factors, {"w0": variance, "w1": zero})
    w = np.linspace(-1.5, 3.5, 20_001)
    mass = stats.norm.pdf(w, 1.0, 0.3) * (w[1] - w[0])
    one = np.ones(1)
    for t in (0.5, 1.0, 2.0):
        exact = float((mass * np.where(w > 0, stats.norm.cdf(t / np.maximum(w, 1e-9)), 1.0)).sum())
        found = failures(network, posterior, (one, one), np.ones((1, 1)), np.array([t]), 1e-4).item()
        assert exact <= found + 1e-9


@pytest.mark.parametrize("seed", range(2))
def test_how_far_a_layer_varies_over_the_box(seed: int) -> None:
    """|z(x) - z(x0)| <= rho' but for a share of the budget, for all x: sum_j |w_ij| r_j of sampled weights."""
    rng = np.random.default_rng(seed)
    network = dense_network([3, 4, 2], seed=seed)
    posterior = full(network, rng, 0.5)
    radius, budget = np.array([0.3, 0.2, 0.1]), 0.05
    shared = correlation(network, posterior)
    engine = TailEngine(network, correlation=shared)
    center = tensor(rng.normal(size=3)).reshape(1, 1, 3)
    made = TailRun(
        network, weight_sets.mean_weights(network), weight_sets.centred(network, independent(posterior)),
        Interval(center - tensor(radius), center + tensor(radius)), engine._plan(tensor([[budget]]), False), shared,
    )  # fmt: skip
    assert made.variation is not None
    near = made.variation.known[2].reshape(-1).numpy()  # behind the first layer and its bias
    weight = next(iter(network.tensors))
    drawn = sample(network, posterior, 20_000, torch.Generator().manual_seed(0))[weight].numpy()
    found = (np.abs(drawn) @ radius > near).mean(0)
    share = budget / engine.events
    assert (found <= share + 6 * math.sqrt(share / 20_000)).all()
    assert (np.quantile(np.abs(drawn) @ radius, 0.9, axis=0) <= near).all()


def attacked(network: Network, params: dict[str, Tensor], box: tuple[Array, Array], rng: np.random.Generator) -> Tensor:
    """Outputs (S, P, m) of sampled networks at corners and random points of the box."""
    low, high = box
    corners = np.array(list(itertools.product(*zip(low, high, strict=True))))
    points = np.concatenate([corners, rng.uniform(low, high, (20, len(low)))])
    return evaluate.evaluate(network, tensor(points), params)


SAMPLED = 4000


@pytest.mark.parametrize("family", [*MAKERS, "kron apart", "last layer"])
@pytest.mark.parametrize("seed", range(3))
def test_sampled_weights_do_not_fail_more_often(family: str, seed: int) -> None:
    """Networks of two and three layers with strongly correlated weights, near the threshold where bounds say much."""
    rng = np.random.default_rng(seed)
    network = dense_network([2, 4, 3, 2] if seed % 2 else [2, 5, 2], seed=seed)
    size = (0.02, 0.06, 0.15, 0.3)[seed]
    if family == "last layer":
        posterior: Gaussian = full(network, rng, size, list(network.tensors)[-2:])
    else:
        posterior = kron(network, rng, size, False) if family == "kron apart" else MAKERS[family](network, rng, size)
    center = rng.normal(size=2)
    box = (center - 0.05, center + 0.05)
    drawn = sample(network, posterior, SAMPLED, torch.Generator().manual_seed(seed))
    rows = np.array([[1.0, -1.0], [0.0, 1.0], [-1.0, 0.0]])
    least = (attacked(network, drawn, box, rng) @ tensor(rows).T).amin(1).numpy()  # (S, R)
    for quantile in (0.0, 0.001, 0.01, 0.1, 0.4):
        t = np.quantile(least, quantile, axis=0)
        found = failures(network, posterior, box, rows, t, thorough=True)
        failed = (least <= t).sum(0)
        for count, bound in zip(failed, found, strict=True):
            assert stats.binom.sf(count - 1, SAMPLED, min(bound, 1.0)) > 1e-7


def brute(use: Use, columns: Array, radius: Array) -> float:
    """The largest |B (rho e)| over all signs e."""
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=len(radius))))
    return float(np.linalg.norm((signs * radius) @ columns.T, axis=1).max())


def linear(out: int, inputs: int) -> nodes.Linear:
    index = np.arange(out * inputs).reshape(out, inputs)
    return nodes.Linear("n", (0,), (1, out), weight=Param("w", index, np.ones(())), axis=1)


@pytest.mark.parametrize("kind", ["dense", "kron"])
@pytest.mark.parametrize("seed", range(6))
def test_a_group_at_a_map_by_definition(kind: str, seed: int) -> None:
    """Deviations and B h are exact, reach lies between the truth and the sum of the deviations."""
    rng = np.random.default_rng(seed)
    out, inputs = 3, 5
    if kind == "dense":
        root = rng.normal(size=((2, 40)[seed % 2], out, inputs))
        group: Dense | Kron = Dense({"w": tensor(root)})
    else:
        left, right = rng.normal(size=(out, 2)), rng.normal(size=(inputs, 4))
        spectrum = rng.uniform(0, 1, (2, 4))
        group = Kron("w", tensor(left), tensor(right), tensor(spectrum))
        root = np.sqrt(spectrum)[:, :, None, None] * np.einsum("ia,jb->abij", left, right)
        root = root.reshape(-1, out, inputs)
    a, h, radius = rng.normal(size=(4, out)), rng.normal(size=inputs), rng.uniform(0, 1, inputs)
    node = linear(out, inputs)
    use = group.use(node, tensor(a).reshape(1, 1, 4, 1, out), (1, inputs), [tensor(h).reshape(1, 1, 1, inputs)])
    for row in range(4):
        columns = np.einsum("i,rij->rj", a[row], root)
        np.testing.assert_allclose(use.deviation[0, 0, row, 0].numpy(), np.linalg.norm(columns, axis=0), rtol=1e-10)
        center = use.centers[0][0, 0, row].numpy()
        assert np.linalg.norm(center) == pytest.approx(np.linalg.norm(columns @ h), rel=1e-10)
        reach = use.reach(tensor(radius).reshape(1, 1, 1, inputs))[0, 0, row].item()
        truth = brute(use, columns, radius)
        assert truth <= reach * (1 + 1e-12)
        assert reach <= min(np.linalg.norm(columns, axis=0) @ radius * (1 + 1e-9), 2.0 * truth)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_largest_eigenvalue(n: int) -> None:
    rng = np.random.default_rng(n)
    for rank in (1, n, 5 * n):
        root = rng.normal(size=(n, rank))
        root /= np.linalg.norm(root, axis=1, keepdims=True)
        gram = root @ root.T
        found = largest(tensor(gram), rank).item()
        truth = np.linalg.eigvalsh(gram)[-1]
        assert truth <= found <= 1.7 * truth
    assert largest(torch.eye(n, dtype=torch.float64), 1).item() == pytest.approx(1.0, abs=1e-6)


def test_a_root_is_cut_by_layers() -> None:
    """Of a lower triangular root each layer has its own latents; a general one has them all at the first."""
    network = dense_network([2, 3, 2])
    shapes = {name: tensor_.shape for name, tensor_ in network.tensors.items()}
    n = sum(math.prod(shape) for shape in shapes.values())
    rng = np.random.default_rng(0)
    root = rng.normal(size=(n, n))
    general = correlation(network, from_factor(root, shapes))
    triangular = correlation(network, from_factor(np.tril(root), shapes))
    assert general is not None
    assert triangular is not None
    assert [group.latents for group in general.groups] == [n]
    assert [group.latents for group in triangular.groups] == [math.prod(shape) for shape in shapes.values()]
    assert [len(group.sources) for group in triangular.groups] == [4, 3, 2, 1]
    backwards = dict(reversed(shapes.items()))  # the order of the archive is not that of the layers
    other = correlation(network, from_factor(np.tril(root), backwards))
    assert other is not None
    assert sum(group.latents for group in other.groups) == n


def test_kronecker_factors_and_the_same_written_out() -> None:
    """One covariance in two representations: other bounds on eigenvalues, nothing else."""
    rng = np.random.default_rng(3)
    network = dense_network([2, 4, 2], seed=3)
    posterior = kron(network, rng, 0.05)
    parts: dict[str, list[Array]] = {name: [] for name in network.tensors}
    for root in roots(network, posterior):
        for name, mean in network.tensors.items():
            parts[name].append(root.get(name, np.zeros((1, *mean.shape))))
    written = GaussianFull({name: np.concatenate(part) for name, part in parts.items()})
    box = (np.array([0.1, -0.2]), np.array([0.2, -0.1]))
    center = evaluate.evaluate(network, tensor(np.array([0.15, -0.15]))[None]).numpy()[0]
    rows, t = np.eye(2), center - np.array([0.4, 0.5])
    one, two = (failures(network, p, box, rows, t) for p in (posterior, written))
    np.testing.assert_allclose(one, two, rtol=0.2)


def test_convolution_and_tied_weights_at_a_point() -> None:
    """A kernel that is used at every place, correlated with its bias: the output is linear in it."""
    builder = Builder(2)
    image = builder.conv(builder.input(1, 1, 3, 3), (2, 1, 2, 2))
    builder.linear(builder.reshape(builder.shift(image, (2, 1, 1)), 1, 8), (1, 8))
    network = builder.network()
    rng = np.random.default_rng(1)
    kernel, bias, _ = network.tensors
    posterior = full(network, rng, 0.5, [kernel, bias])
    x = rng.normal(size=9)
    gradient = {}
    for name in (kernel, bias):
        base = network.tensors[name]
        unit = np.eye(base.size).reshape(-1, *base.shape)
        value = evaluate.evaluate(network, tensor(x)[None], {name: tensor(base + unit)})
        mean = evaluate.evaluate(network, tensor(x)[None])
        gradient[name] = (value.reshape(-1) - mean.reshape(-1)).numpy().reshape(base.shape)
    mean = float(evaluate.evaluate(network, tensor(x)[None]).item())
    spread = math.sqrt(variance_of(network, posterior, gradient))
    found = failures(network, posterior, (x, x), np.ones((1, 1)), np.array([mean - 2 * spread]), 1e-7).item()
    exact = float(stats.norm.sf(2))
    assert exact <= found
    assert found <= exact * 1.1


def test_kronecker_factors_of_a_convolution_are_written_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from bnn_vnnlib.methods import correlation as module

    builder = Builder(2)
    builder.conv(builder.input(1, 1, 3, 3), (2, 1, 2, 2))
    network = builder.network()
    posterior = GaussianKron((KronLayer("w0", np.eye(2), np.eye(4), np.ones((2, 4))),))
    found = correlation(network, posterior)
    assert found is not None
    assert isinstance(found.groups[0], Dense)
    monkeypatch.setattr(module, "EXPANDED", 10)
    with pytest.raises(UnsupportedError, match="'w0' is served for dense layers only"):
        correlation(network, posterior)
