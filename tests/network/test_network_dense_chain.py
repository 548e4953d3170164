"""One function, many graphs: the recognised chain has the same law, bit for bit or up to what is paid for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from bnn_vnnlib.model import GaussianDiagonal, Network, sample
from bnn_vnnlib.network.dense_chain import VARIANCE, DenseChain, DenseLayer, _Entries, dense_chain
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Param
from support.networks import Builder

CPU = torch.device("cpu")
Array = NDArray[np.float64]
UNIT = 2.0**-53


class Writer:
    """Writes dense layers in a random way, and keeps their law: mean and variance of every entry, as real numbers."""

    def __init__(self, seed: int, sizes: tuple[int, ...], exact: bool) -> None:
        self.rng, self.exact, self.b = np.random.default_rng(seed), exact, Builder(seed)
        self.variances: dict[str, Array] = {}
        self.layers = [(self.rng.normal(size=(o, i)), self.rng.normal(size=o)) for i, o in itertools.pairwise(sizes)]
        self.spreads = [
            (self.rng.random((o, i)) * 0.01, self.rng.random(o) * 0.01) for i, o in itertools.pairwise(sizes)
        ]

    def random(self, mean: Array, variance: Array, move: Callable[[Array], Array] = lambda part: part) -> Param:
        """A random parameter that the file holds as move(mean)."""
        param = self.b.param(move(mean))
        self.variances[param.source] = np.array(move(variance))
        return param

    def number(self) -> float:
        """A factor: a power of two where all shall be exact."""
        sign = self.rng.choice([-1.0, 1.0])
        return float(sign * (2.0 ** self.rng.integers(-3, 4) if self.exact else self.rng.uniform(0.3, 3)))

    def moved(self, x: int, *, fixed: bool) -> tuple[int, Array]:
        """A permutation of the elements, and the order in which they stand then; what is random is read only once."""
        size = int(np.prod(self.b.shape(x)))
        order = np.arange(size)
        for way in self.rng.integers(0, 5, 2):
            if way == 0:
                index = self.rng.permutation(size).reshape(self.b.shape(x))
                x, order = self.b.select(x, index), order[index.reshape(-1)]
            elif way == 1:
                x = self.b.reshape(x, size, 1) if self.rng.random() < 0.5 else self.b.reshape(x, 1, 1, size)
            elif way == 2:
                axes = tuple(int(axis) for axis in self.rng.permutation(len(self.b.shape(x))))
                order = order.reshape(self.b.shape(x)).transpose(axes).reshape(-1)
                x = self.b.transpose(x, *axes)
            elif way == 3 and size > 1 and fixed:
                flat = self.b.reshape(x, size)
                cut = int(self.rng.integers(1, size))
                parts = [self.b.select(flat, np.arange(cut)), self.b.select(flat, np.arange(cut, size))]
                x, order = self.b.concat(parts[1], parts[0]), np.roll(order, -cut)
            else:
                x = self.b.reshape(x, 1, size)
                permutation = self.rng.permutation(size)
                x, order = self.b.linear(x, np.eye(size)[permutation]), order[permutation]
        return self.b.reshape(x, 1, size), order

    def dense(self, x: int, place: int) -> int:
        """W z + b: moved, scaled, as a product or a convolution, in one branch or two, then moved and shifted."""
        (w, b), (v, u) = self.layers[place], self.spreads[place]
        first = place == 0
        x, order = self.moved(x, fixed=True) if first or self.rng.random() < 0.7 else (x, np.arange(w.shape[1]))
        # what the file holds is found by undoing: factors c are folded back where that is exact
        c = self.number() if first and self.exact else 1.0
        x = self.b.scale(x, np.array(c)) if c != 1 else x
        held, spread = w[:, order] / c, v[:, order] / c**2
        if self.rng.random() < 0.3:
            image = self.b.reshape(x, 1, w.shape[1], 1, 1)
            z = self.b.conv(image, self.random(held[..., None, None], spread[..., None, None]))
            z = self.b.reshape(z, 1, len(w))
        elif self.rng.random() < 0.3 and len(w) > 1:
            half = len(w) // 2
            parts = [
                self.b.linear(x, self.random(held[rows], spread[rows])) for rows in (slice(half), slice(half, None))
            ]
            z = self.b.concat(*parts)
        else:
            z = self.b.linear(x, self.random(held, spread))
        z, rows = self.moved(z, fixed=False)
        z = self.b.shift(z, self.random(b[rows][None], u[rows][None]))
        z = self.b.scale(self.b.scale(z, np.array(-1.0)), np.array(-1.0)) if self.rng.random() < 0.5 else z
        return self.b.select(z, np.argsort(rows)[None])

    def network(self) -> tuple[Network, GaussianDiagonal]:
        x = self.b.input(1, self.layers[0][0].shape[1])
        for place in range(len(self.layers)):
            x = self.dense(x, place)
            if place + 1 < len(self.layers):
                x = self.b.activation(x)
        return self.b.network(), GaussianDiagonal(self.variances)


def chain(network: Network, variances: dict[str, Array], *, prefix: bool = False) -> DenseChain | None:
    return dense_chain(network, GaussianDiagonal(variances), CPU, prefix=prefix)


def parts(layer: DenseLayer) -> dict[str, Array]:
    return {name: values.numpy() for name, values in vars(layer).items()}


@pytest.mark.parametrize("seed", range(40))
def test_exact_rewrites_change_no_bit(seed: int) -> None:
    sizes = (4, 6, 3) if seed % 2 else (3, 5, 4, 2)
    writer = Writer(seed, sizes, exact=True)
    network, posterior = writer.network()
    found = dense_chain(network, posterior, CPU)
    assert found is not None
    assert found.law_distance == 0
    assert found.kinds == {"relu"}
    for layer, (w, b), (v, u) in zip(found.layers, writer.layers, writer.spreads, strict=True):
        for values, expected in ((layer.mean, w), (layer.bias, b), (layer.variance, v), (layer.bias_variance, u)):
            np.testing.assert_array_equal(values.numpy(), expected)
        assert not layer.slack.any()
        assert not layer.bias_slack.any()


@pytest.mark.parametrize("seed", range(12))
def test_what_is_rounded_is_paid_for(seed: int) -> None:
    """Factors in front of and behind a layer, against fractions."""
    rng, b = np.random.default_rng(seed), Builder(seed)
    w, v, bias, u = rng.normal(size=(3, 4)), rng.random((3, 4)), rng.normal(size=3), rng.random(3)
    before, after, minus = rng.uniform(0.1, 3, 4), rng.uniform(0.1, 3, 3), rng.normal(size=3)
    x = b.scale(b.input(1, 4), before[None])
    weight, shift = b.param(w, factor=rng.uniform(0.1, 3)), b.param(bias)
    z = b.shift(b.shift(b.linear(x, weight), shift), minus[None])
    b.scale(z, after[None])
    found = chain(b.network(), {weight.source: v, shift.source: u})
    assert found is not None
    (layer,) = (parts(layer) for layer in found.layers)
    factor = Fraction(float(weight.factor))
    total = 0.0
    for i in range(3):
        for j in range(4):
            times = factor * Fraction(before[j]) * Fraction(after[i])
            off = abs(Fraction(w[i, j]) * times - Fraction(layer["mean"][i, j]))
            assert off <= Fraction(layer["slack"][i, j])
            exact = Fraction(v[i, j]) * times**2
            assert abs(exact - Fraction(layer["variance"][i, j])) <= VARIANCE * Fraction(UNIT) * exact
            total += float(off) / np.sqrt(v[i, j])
        exact = (Fraction(bias[i]) + Fraction(minus[i])) * Fraction(after[i])
        assert abs(exact - Fraction(layer["bias"][i])) <= Fraction(layer["bias_slack"][i])
    assert 0.1 * total < found.law_distance < 1e-12


def test_law_distance_of_one_number() -> None:
    """It is at least the total variation of the two Gaussians, by quadrature."""
    grid = np.linspace(-40, 40, 2_000_001)
    for slack, loose in ((0.1, 0.0), (0.0, 0.2 / UNIT), (0.3, 0.4 / UNIT), (0.01, -0.3 / UNIT)):
        entries = _Entries(*(np.array([part]) for part in (1.0, slack, 2.0, abs(loose))))
        other = 2.0 * (1 + loose * UNIT)
        one, two = (stats.norm.pdf(grid, *law) for law in ((1.0, np.sqrt(2.0)), (1.0 + slack, np.sqrt(other))))
        distance = np.abs(one - two).sum() * (grid[1] - grid[0]) / 2
        assert distance <= entries.law_distance < 4 * distance


def layers_of(b: Builder, variances: dict[str, Array], share: float = 0.2) -> None:
    """A variance for every tensor of at least two numbers."""
    for name, tensor in b.tensors.items():
        if tensor.size > 1 and name not in variances:
            variances[name] = share * b.rng.random(tensor.shape)


def difference(b: Builder) -> dict[str, Array]:
    """Rows of the last layer are subtracted: each is in one output."""
    z = b.dense(b.dense(b.input(1, 2), 4, "relu"), 4)
    variances: dict[str, Array] = {}
    layers_of(b, variances)
    b.linear(z, np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 2.0, -1.0]]))
    return variances


def heads(b: Builder) -> dict[str, Array]:
    """Two heads joined, of one activation."""
    h = b.dense(b.input(1, 2), 4, "relu")
    b.concat(b.dense(h, 1), b.dense(h, 2))
    variances: dict[str, Array] = {}
    layers_of(b, variances)
    return variances


def branches(b: Builder) -> dict[str, Array]:
    """A difference of two layers of one input, and a constant branch."""
    x = b.input(1, 2)
    z = b.sum(b.dense(x, 3), b.dense(x, 3), b.constant(np.full((1, 3), 0.5)), signs=(1, -1, -1))
    b.dense(b.activation(z, "tanh"), 2)
    variances: dict[str, Array] = {}
    layers_of(b, variances)
    return variances


def padded(b: Builder) -> dict[str, Array]:
    """A convolution in two groups whose window hangs over the image."""
    image = b.conv(b.reshape(b.input(1, 8), 1, 2, 2, 2), (4, 1, 3, 3), (3, 3), (1, 1, 0, 0), (1, 1), 2)
    b.linear(b.activation(b.reshape(image, 1, 4)), (2, 4))
    variances: dict[str, Array] = {}
    layers_of(b, variances)
    return variances


def copies(b: Builder) -> dict[str, Array]:
    """An input that two columns read, one that none does, and a zero."""
    b.dense(b.dense(b.select(b.input(1, 3), [[0, 2, 0, -1]]), 3, "relu"), 2)
    variances: dict[str, Array] = {}
    layers_of(b, variances)
    return variances


def packed(b: Builder) -> dict[str, Array]:
    """Both layers lie in one source."""
    whole = b.param((5, 4))
    rows = [Param(whole.source, whole.index[some], whole.factor) for some in (slice(0, 4), slice(4, 5))]
    b.linear(b.activation(b.linear(b.input(1, 4), rows[0])), rows[1])
    return {whole.source: 0.2 * b.rng.random((5, 4))}


def fixed_inside(b: Builder) -> dict[str, Array]:
    """A fixed map, of one entry a row, below a random one."""
    z = b.linear(b.linear(b.input(1, 2), np.array([[0.0, 3.0], [-1.0, 0.0], [0.5, 0.0]])), (3, 3))
    variances = {b.nodes[z].weight.source: np.full((3, 3), 0.2)}
    b.linear(b.activation(z), (2, 3))
    return variances


SERVED = [difference, heads, branches, padded, copies, packed, fixed_inside]


@pytest.mark.parametrize("write", SERVED, ids=lambda write: write.__name__)
def test_the_law_by_sampling(write: Callable[[Builder], dict[str, Array]]) -> None:
    """First and second moments of outputs at two points, drawn from the graph and from the chain."""
    b = Builder(1)
    variances = write(b)
    network = b.network()
    found = chain(network, variances)
    assert found is not None
    x, count = torch.tensor(b.rng.normal(size=(2, network.signature.input_size))), 50_000
    drawn = sample(network, GaussianDiagonal(variances), count, torch.Generator().manual_seed(0))
    graph = evaluate(network, x, drawn).flatten(1).numpy()
    rng, z = np.random.default_rng(0), x.numpy()[None]
    for place, layer in enumerate(map(parts, found.layers)):
        w = rng.normal(size=(count, *layer["mean"].shape)) * np.sqrt(layer["variance"]) + layer["mean"]
        c = rng.normal(size=(count, *layer["bias"].shape)) * np.sqrt(layer["bias_variance"]) + layer["bias"]
        z = z @ w.swapaxes(1, 2) + c[:, None]
        if place < len(found.activations):
            z = np.tanh(z) if found.activations[place][0] == "tanh" else np.maximum(z, 0)
    ours = z.reshape(count, -1)
    for power in (lambda y: y, lambda y: (y[:, :, None] * y[:, None]).reshape(len(y), -1)):
        one, two = power(graph), power(ours)
        error = 5.5 * np.sqrt((one.var(0) + two.var(0)) / count) + 1e-12
        assert (np.abs(one.mean(0) - two.mean(0)) <= error).all()


def tied(b: Builder) -> dict[str, Array]:
    z = b.linear(b.input(1, 3), weight := b.param((3, 3)))
    b.linear(b.activation(z), weight)
    return {weight.source: np.ones((3, 3))}


def repeated(b: Builder) -> dict[str, Array]:
    b.linear(b.activation(b.select(b.linear(b.input(1, 3), (2, 3)), [[0, 1, 1]])), (2, 3))
    return {"w0": np.ones((2, 3))}


def twice(b: Builder) -> dict[str, Array]:
    z = b.linear(b.input(1, 3), (3, 3))
    b.sum(z, z)
    return {"w0": np.ones((3, 3))}


def residual(b: Builder) -> dict[str, Array]:
    x = b.input(1, 3)
    b.sum(b.linear(b.activation(b.linear(x, (3, 3))), (3, 3)), x)
    return {"w0": np.ones((3, 3))}


def skip(b: Builder) -> dict[str, Array]:
    """The input beside the activations: two bases."""
    x = b.input(1, 3)
    b.linear(b.concat(x, b.activation(b.linear(x, (3, 3)))), (2, 6))
    return {"w0": np.ones((3, 3))}


def shortcut(b: Builder) -> dict[str, Array]:
    """A layer of the activations plus one of the input."""
    x = b.input(1, 3)
    b.sum(b.linear(b.activation(b.linear(x, (3, 3))), (2, 3)), b.linear(x, (2, 3)))
    return {"w0": np.ones((3, 3))}


def ends_active(b: Builder) -> dict[str, Array]:
    b.activation(b.linear(b.input(1, 3), (3, 3)))
    return {"w0": np.ones((3, 3))}


def product(b: Builder) -> dict[str, Array]:
    b.linear(b.linear(b.input(1, 3), (3, 3)), (2, 3))
    return {"w0": np.ones((3, 3)), "w1": np.ones((2, 3))}


def mixed(b: Builder) -> dict[str, Array]:
    b.linear(b.linear(b.input(1, 3), (3, 3)), (2, 3))
    return {"w0": np.ones((3, 3))}


def stretched(b: Builder) -> dict[str, Array]:
    b.shift(b.linear(b.input(1, 3), (2, 3)), (1, 1))
    return {"w1": np.ones((1, 1))}


def random_factor(b: Builder) -> dict[str, Array]:
    b.scale(b.linear(b.input(1, 3), (2, 3)), (1, 2))
    return {"w1": np.ones((1, 2))}


def all_rows(b: Builder) -> dict[str, Array]:
    b.linear(b.input(1, 2, 3), (2, 3))
    return {"w0": np.ones((2, 3))}


def moved_input(b: Builder) -> dict[str, Array]:
    b.linear(b.shift(b.input(1, 3), np.ones((1, 3))), (2, 3))
    return {"w1": np.ones((2, 3))}


def convolution(b: Builder) -> dict[str, Array]:
    b.conv(b.reshape(b.input(1, 4), 1, 1, 2, 2), (1, 1, 1, 1))
    return {"w0": np.ones((1, 1, 1, 1))}


REFUSED = [
    tied, repeated, twice, residual, skip, shortcut, ends_active, product, mixed, stretched, random_factor, all_rows,
    moved_input, convolution,
]  # fmt: skip


@pytest.mark.parametrize("write", REFUSED, ids=lambda write: write.__name__)
def test_graphs_of_dependent_entries_are_no_chain(write: Callable[[Builder], dict[str, Array]]) -> None:
    b = Builder(0)
    variances = write(b)
    assert chain(b.network(), variances) is None


def faded(b: Builder) -> dict[str, Array]:
    """Variances that underflow on the way: their weights are not fixed, and may not be added up."""
    w = b.param((1, 2), factor=2.0**-100)
    b.linear(b.linear(b.input(1, 2), np.array([[1.0, 1.0], [1.0, -1.0]])), w)
    return {w.source: np.full((1, 2), 1e-300)}


def faded_below(b: Builder) -> dict[str, Array]:
    """The same below a layer: no fixed prefix."""
    w = b.param((1, 2), factor=2.0**-100)
    b.linear(b.linear(b.input(1, 2), w), (2, 1))
    return {w.source: np.full((1, 2), 1e-300), "w1": np.ones((2, 1))}


def overflown(b: Builder) -> dict[str, Array]:
    """Powers of two, which change no number but for this."""
    w = b.param(np.array([[2.0**600]]))
    b.scale(b.linear(b.input(1, 1), w), np.array([[2.0**600]]))
    return {w.source: np.ones((1, 1))}


def cancelled(b: Builder) -> dict[str, Array]:
    """A factor 0.3 * 0.1 - 0.03.. + 1e-300 of about 1e-18: its square times 1e26 counts beside 1."""
    x = b.input(1, 1)
    rounded = b.linear(b.scale(b.scale(x, np.array([[0.3]])), np.array([[0.1]])), np.array([[1.0]]))
    left = b.sum(b.sum(rounded, b.linear(x, np.array([[-0.3 * 0.1]]))), b.linear(x, np.array([[1e-300]])))
    z = b.linear(b.concat(b.linear(x, np.array([[1.0]])), left), np.ones((1, 2)))
    return {b.nodes[z].weight.source: np.array([[1.0, 1e26]])}


def lost_square(b: Builder) -> dict[str, Array]:
    """A variance of 1e-40 from a square that is 0 in floats, beside one of 1e-140."""
    z = b.linear(b.linear(b.input(1, 1), np.array([[1e-170], [1e-60]])), np.ones((1, 2)))
    return {b.nodes[z].weight.source: np.array([[1e300, 1e-20]])}


def unknown_bias(b: Builder) -> dict[str, Array]:
    """Random weights of which the means are not known, of constants: no product is a number."""
    w = b.param(np.ones((1, 2)), slack=np.array([[1.0, 1e-3]]))
    b.linear(b.shift(b.linear(b.input(1, 1), np.zeros((2, 1))), np.array([[2.0, 0.0]])), w)
    return {w.source: np.ones((1, 2))}


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize(
    "write", [faded, faded_below, overflown, cancelled, lost_square, unknown_bias], ids=lambda write: write.__name__
)
def test_laws_that_floats_do_not_hold_are_no_chain(write: Callable[[Builder], dict[str, Array]], prefix: bool) -> None:
    b = Builder(0)
    variances = write(b)
    assert chain(b.network(), variances, prefix=prefix) is None


def test_a_fixed_weight_that_underflows_is_not_known_to_be_zero() -> None:
    b = Builder(0)
    z = b.linear(b.linear(b.input(1, 1), np.array([[1.5 * 2.0**-600]])), np.array([[2.0**-600]]))
    shift = b.param((1, 1))
    b.scale(b.linear(b.shift(z, shift), np.array([[2.0**-100]])), np.array([[2.0**-100]]))
    found = chain(b.network(), {shift.source: np.ones((1, 1))})
    assert found is not None
    assert 1.5 * Fraction(2) ** -1400 <= Fraction(found.last.slack.item())
    assert found.law_distance == np.inf


def test_several_outputs_are_no_chain() -> None:
    b = Builder(0)
    x = b.input(1, 2)
    one, two = b.linear(x, (1, 2)), b.linear(x, (1, 2))
    assert chain(b.network(one, two), {"w0": np.ones((1, 2))}) is None


def test_a_fixed_prefix_ends_where_the_chain_begins() -> None:
    """Any operators in front, a residual and a shift among them, without randomness."""
    b = Builder(0)
    smooth = b.dense(b.input(1, 3), 3, "softplus")
    start = b.shift(b.sum(smooth, b.dense(smooth, 3, "relu")), (1, 3))
    z = b.linear(b.select(start, [[2, 0, 1]]), (4, 3))
    weights = {b.nodes[z].weight.source: np.ones((4, 3))}
    b.linear(b.activation(z), (2, 4))
    network = b.network()
    assert chain(network, weights) is None
    found = chain(network, weights, prefix=True)
    assert found is not None
    assert found.prefix == start
    assert [layer.mean.shape for layer in found.layers] == [(4, 3), (2, 4)]
    x = torch.ones(1, 3, dtype=torch.float64)
    features = evaluate(
        Network(network.signature, network.nodes, (start,), network.tensors), x := torch.ones(1, 3).double()
    )
    hidden, top = found.layers
    value = torch.relu(features @ hidden.mean.mT + hidden.bias) @ top.mean.mT + top.bias
    torch.testing.assert_close(value, evaluate(network, x))
