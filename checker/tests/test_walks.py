"""Walks through random chains of layers, against values at points of their boxes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from flint import arb, arb_mat, ctx

from bnn_vnnlib_check.bounds import KINKS, Box, Chain, Ranges, reached
from bnn_vnnlib_check.errors import RejectedError
from bnn_vnnlib_check.model import Layer
from bnn_vnnlib_check.tails import Charged, Gaussian, Leaf

FUNCTIONS = {
    "": lambda z: z, "relu": lambda z: np.maximum(z, 0), "leaky": lambda z: np.where(z > 0, z, 0.25 * z),
    "tanh": np.tanh, "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
}  # fmt: skip


def _chain(rng: np.random.Generator, noisy: bool) -> list[Layer]:
    """Layers of all kinds, some without a matrix; many of the numbers behind Relu are 0."""
    kinds, size, found = ["relu", "relu", "relu", "leaky", "tanh", "sigmoid", ""], 3, list[Layer]()
    for kind in [*rng.choice(kinds, 4), ""]:
        plain = rng.random() < 0.3
        width = size if plain else int(rng.integers(3, 9))
        weight = None if plain else rng.normal(size=(width, size))
        spread = 1e-3 * rng.random((width, size)) if noisy and not plain else None
        bias, other = rng.normal(size=width) - (kind == "relu"), 1e-3 * rng.random(width) if noisy else None
        found.append(Layer(weight, bias, spread, other, activation=str(kind), alpha=0.25 if kind == "leaky" else 0.0))
        size = width
    return found


def _reached(layers: list[Layer], x: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """z (N, out) of all layers at x (N, n), under other weights of a box of 2 deviations for each x."""
    found, h = [], x
    for layer in layers:
        weight, bias = (None if layer.weight is None else layer.weight[None]), layer.bias[None]
        if weight is not None and layer.weight_variance is not None:
            sign = rng.integers(-1, 2, (len(x), *layer.weight.shape))
            weight = weight + 2 * np.sqrt(layer.weight_variance) * sign
        if layer.bias_variance is not None:
            bias = bias + 2 * np.sqrt(layer.bias_variance) * rng.integers(-1, 2, (len(x), len(layer.bias)))
        found.append((h if weight is None else (weight * h[:, None]).sum(-1)) + bias)
        h = FUNCTIONS[layer.activation](found[-1])
    return found


@pytest.mark.parametrize("noisy", [False, True])
def test_walks_hold(noisy: bool) -> None:
    """Ranges and rows of random chains, against values at random points of small boxes; none is far from them."""
    rng, dead, loose = np.random.default_rng(0), 0, list[float]()
    for _ in range(40):
        layers = _chain(rng, noisy)
        chain, x = Chain(layers, Fraction(2) if noisy else None), rng.normal(size=3)
        ranges, last = Ranges(chain, Box(x - 0.02, x + 0.02)), len(layers) - 1
        z = _reached(layers, x + 0.02 * rng.choice([-1.0, 0.3, 1.0], (200, 3)), rng)
        for k in range(last):
            ranges.add(ranges.next())
            assert (ranges.z[k].lower <= z[k].min(0) + 1e-9).all()
            assert (ranges.z[k].upper >= z[k].max(0) - 1e-9).all()
            units = np.eye(len(layers[k].bias))
            best = np.array([float(v) for v in ranges.walk(k, np.concatenate([units, -units]))]).reshape(2, -1)
            zero = (k == 0) | (layers[k].activation == "relu") & (ranges.z[k].upper <= 0)
            assert (zero | (ranges.z[k].lower >= best[0] - 1e-9)).all()  # all others have had walks
            assert (zero | (ranges.z[k].upper <= 1e-9 - best[1])).all()
            dead += int((ranges.h[k + 1].upper == 0).sum())
        rows = rng.normal(size=(4, len(layers[last].bias)))
        rows[:, 0] = 0
        for folded in (False, True):
            found = np.array([float(v) for v in ranges.walk(last, rows, folded=folded)])
            least = (z[last] @ rows.T).min(0)
            assert (found <= least + 1e-9).all()
            loose.append(float((least - found).max()) if not folded else 0.0)
    assert dead > 40
    assert noisy or np.median(loose) < 0.05, "bounds that are so far off show no fault"


@pytest.mark.parametrize("bits", [12, 20])
@pytest.mark.parametrize("noisy", [False, True])
def test_walks_hold_with_few_bits(noisy: bool, bits: int) -> None:
    """Balls hold at any precision, and those of few bits are so wide that a radius which is left out shows."""
    rng, before, checked = np.random.default_rng(0), ctx.prec, 0
    try:
        ctx.prec = bits
        for _ in range(40):
            layers, x = _chain(rng, noisy), rng.normal(size=3)
            last = len(layers) - 1
            try:
                ranges = reached(Chain(layers, Fraction(2) if noisy else None), Box(x - 0.02, x + 0.02), last)
            except RejectedError:  # nothing is known with so few bits
                continue
            z = _reached(layers, x + 0.02 * rng.choice([-1.0, 0.3, 1.0], (200, 3)), rng)
            for k in range(last):
                assert (ranges.z[k].lower <= z[k].min(0) + 1e-9).all()
                assert (ranges.z[k].upper >= z[k].max(0) - 1e-9).all()
            rows = rng.normal(size=(4, len(layers[last].bias)))
            for folded in (False, True):
                found = np.array([float(v) for v in ranges.walk(last, rows, folded=folded)])
                assert (found <= (z[last] @ rows.T).min(0) + 1e-9).all()
            checked += 1
    finally:
        ctx.prec = before
    assert checked > 20


def test_walks_under_signs_hold() -> None:
    """Rows less multiples of z, where x has the signs; slopes of the lines below count."""
    rng, moved, signs_seen = np.random.default_rng(1), 0, 0
    for _ in range(40):
        layers = _chain(rng, noisy=False)
        kinks = [k for k, layer in enumerate(layers) if layer.activation in KINKS]
        if not kinks:
            continue
        x, behind = rng.normal(size=3), Layer(rng.normal(size=(2, len(layers[-1].bias))), np.zeros(2))
        known, chain = reached(Chain(layers), Box(x - 0.3, x + 0.3), len(layers)), Chain([*layers, behind])
        z = _reached([*layers, behind], x + rng.uniform(-0.3, 0.3, (500, 3)), rng)
        inputs = np.concatenate([z[k] for k in kinks], 1)
        signs = np.where(rng.random(inputs.shape[1]) < 0.3, np.sign(inputs[0]), 0.0)
        beta = rng.random(len(signs)) * signs
        parts = np.split(beta[None], np.cumsum([z[k].shape[1] for k in kinks])[:-1], 1)
        has, row = (inputs * signs >= 0).all(1), np.array([[1.0, 0.5]])
        assert has[0]
        found = []
        for slope in (0.0, 1.0):
            ranges = known.signed(chain, signs, np.full(len(signs), slope))
            assert ranges is not None
            (least,) = ranges.walk(len(layers), row, less=dict(zip(kinks, parts, strict=True)))
            found.append(float(least))
            assert found[-1] <= (z[-1] @ row[0] - inputs @ beta)[has].min() + 1e-9
        moved, signs_seen = moved + (found[0] != found[1]), signs_seen + int((signs < 0).sum())
    assert moved > 5
    assert signs_seen > 20


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("kind", ["leaky", "tanh", ""])
def test_what_ends_at_0_is_not_0(kind: str, folded: bool) -> None:
    """f(x) on [-1, 0], which is below 0, and 0 at most."""
    layers = [Layer(np.eye(1), np.zeros(1), activation=kind, alpha=0.25), Layer(np.eye(1), np.zeros(1))]
    box = Box(np.array([-1.0]), np.array([0.0]))
    (least,) = reached(Chain(layers), box, 1).walk(1, np.eye(1), folded=folded)
    assert float(least) <= FUNCTIONS[kind](np.array(-1.0))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("front", [0, 1])
def test_what_rounding_misses_is_paid_for(front: int, folded: bool) -> None:
    """-(1 + e)^2 2^100, e = 2^-52: its coefficient has more than 96 bits, and 2^-4 of the value is behind them."""
    number, size = 1 + 2.0**-52, np.array([2.0**100])
    layers = [Layer(np.eye(1), np.zeros(1), activation="relu")] * front + [Layer(np.array([[number]]), np.zeros(1))]
    (least,) = reached(Chain(layers), Box(size, size), front).walk(front, np.array([[-number]]), folded=folded)
    exact = least.fmpq()
    assert Fraction(int(exact.p), int(exact.q)) <= -(Fraction(number) ** 2) * 2**100


def _noisy(order: list[np.ndarray]) -> tuple[list[Layer], list[tuple[Box, np.ndarray]], dict[int, np.ndarray]]:
    """Two layers and a convolution with a kernel of 2, all with noise, and one more; with claims, and slopes. The
    neurons of the three layers in front are in this order."""
    rng, places = np.random.default_rng(3), np.array([[0, 1], [2, 3], [4, 5]])
    bias = [np.array([0.5, -3.0, 0.4, 0.3, -3.0, 0.6]), np.array([-3.0, 0.5, -3.0, 0.4, 0.5, 0.3]), np.full(3, 0.2)]
    kernel, shared = np.array([0.5, 0.7]), np.array([[1e-3, 2e-3, 3e-3]])
    conv, spread = np.zeros((3, 6)), np.zeros((3, 6))
    for o, place in enumerate(places):
        conv[o, place], spread[o, place] = kernel, shared[0, :2]
    bias[2][1] = -3.0
    found, claims, front = list[Layer](), list[tuple[Box, np.ndarray]](), np.arange(2)
    for k, mine in enumerate(order):
        weight = conv if k == 2 else 0.1 * rng.normal(size=(6, len(front)))
        variance = spread if k == 2 else 1e-2 * rng.random(weight.shape)
        other = np.full(3, shared[0, 2]) if k == 2 else 1e-3 * rng.random(6)
        weight, variance, center = weight[mine][:, front], variance[mine][:, front], bias[k][mine]
        where = np.argsort(front)[places[mine]] if k == 2 else None
        found.append(
            Layer(weight, center, variance, other[mine], "relu", patches=where, shared=shared if k == 2 else None)
        )
        width = (0.4, 1.3, 2.4)[k] + 0.05 * mine
        claims.append((Box(center - width, center + width), (0.15, 0.25, 0.55)[k] + 0.002 * mine))
        front = mine
    hints = {k: rng.uniform(0.9, 1, (2, len(mine)))[:, mine] for k, mine in enumerate(order)}
    last = np.array([[1.0, 0.6, 0.8]])
    return [*found, Layer(last[:, front], np.array([0.1]), np.full((1, 3), 1e-3))], claims, hints


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_neurons_does_not_count(seed: int) -> None:
    """Of tails: some neurons are 0 by their claims, wherever they are."""
    rng, found = np.random.default_rng(seed), []
    for order in ([np.arange(6), np.arange(6), np.arange(3)], [rng.permutation(n) for n in (6, 6, 3)]):
        layers, claims, hints = _noisy(order)
        box = Box(np.array([-0.1, 0.2]), np.array([0.1, 0.3]))
        leaf = Leaf(Gaussian(Chain(layers)), box, [*claims], hints)
        (failure,) = leaf.failures(np.array([[1.0]]), [arb(-0.3)], None, [False])
        found.append((float(leaf.q), float(failure)))
    assert 1e-30 < found[0][0] < 0.9
    assert 1e-30 < found[0][1] < 0.9
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_noise_of_a_kernel_for_all_rows_of_a_ball() -> None:
    """A coefficient in [0, 2] and a number in [-1, 1]: the kernel has a variance of 1, and the noise one of up to 4."""
    patches, shared, box = np.array([[0]]), np.array([[1.0, 0.0]]), Box(np.array([-1.0]), np.array([1.0]))
    layer = Layer(np.eye(1), np.zeros(1), np.ones((1, 1)), np.zeros(1), patches=patches, shared=shared)
    chain = Chain([layer])
    charged = Charged(Gaussian(chain), [box], [None], 1)
    charged.charge(0, arb_mat([[arb(1, 1)]]), chain.part(0, box))
    assert charged.square[0, 0].upper() >= 4


def test_a_layer_that_is_0() -> None:
    """Nothing reaches the output but its bias."""
    layers = [Layer(np.ones((2, 1)), np.full(2, -3.0), activation="relu")]
    layers += [Layer(np.ones((2, 2)), np.full(2, -1.0), activation="relu"), Layer(np.ones((1, 2)), np.array([0.5]))]
    ranges = reached(Chain(layers), Box(np.array([0.0]), np.array([1.0])), 2)
    for folded in (False, True):
        assert [float(v) for v in ranges.walk(2, np.array([[1.0], [-1.0]]), folded=folded)] == [0.5, -0.5]
