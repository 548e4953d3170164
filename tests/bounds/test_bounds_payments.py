"""Each rounding on its own: one node, numbers with 53 random bits, and forms that may not be off by one unit.

With a single node no other payment can hide one that is missing.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from bnn_vnnlib.bounds import backward
from bnn_vnnlib.bounds.activations import Kink
from bnn_vnnlib.bounds.curves import Lines
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import LINEAR
from bnn_vnnlib.bounds.walk import LinearForm, Ranges
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from support import exact
from support.networks import Builder, point_weights
from support.zoo import PIECES, bare

ROWS = 30


def tensor(values: object) -> torch.Tensor:
    """float64."""
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def check_forms(network: Network, x: np.ndarray, C: np.ndarray, G: np.ndarray | None = None) -> None:
    """At a point, with exact weights, every form is below its row."""
    sides, rows = tensor(x)[None], tensor(C)[None]
    inputs = None if G is None else tensor(G)[None]
    form = Engine(network).rows(point_weights(network), sides, sides, rows, inputs, forms=True).form
    point = exact.fractions(x)
    y = exact.evaluate(network, point, {name: exact.fractions(t) for name, t in network.tensors.items()})
    for row in range(len(C)):
        value = exact.fractions(C[row]) @ y
        if G is not None:
            value = value + exact.fractions(G[row]) @ point
        below = exact.fractions(form.slope[0, 0, row]) @ point + Fraction(form.offset[0, 0, row].item())
        assert exact.at_most(below, value), (row, float(value - below))


@pytest.mark.parametrize("name", [name for name in PIECES if "slack" not in name])
def test_forms_of_one_node(name: str) -> None:
    network = bare(name)
    rng = np.random.default_rng(sum(map(ord, name)))
    for sign in (1.0, -1.0, 0.0):
        x = rng.normal(size=network.signature.input_size)
        x = sign * np.abs(x) if sign else x
        check_forms(network, x, rng.normal(size=(ROWS, network.signature.output_size)))


def test_chords_of_the_absolute_value_and_of_kinks() -> None:
    """Exactly above |z| and relu at both ends, hence between them: any signs, points, and ends that are neighbours."""
    rng = np.random.default_rng(3)
    high, other = np.exp(rng.normal(0, 3, (2, 1200)))
    low = np.where(np.arange(1200) < 600, -other, high * rng.uniform(0.5, 1, 1200))
    low[600:700] = high[600:700]
    low[700:800] = np.nextafter(high[700:800], -np.inf)
    low[:3], high[:3] = (-5e-324, -1e300, -2e-308), (5e-324, 1e-300, 3e-308)
    check_chords(low, high)
    check_chords(-high, -low)
    subnormal = 5e-324 * np.mgrid[-6:0, 1:6].reshape(2, -1)
    check_chords(subnormal[0], subnormal[1])


def check_chords(low: np.ndarray, high: np.ndarray) -> None:
    """The lines of both, in exact numbers."""
    slope, offset = Interval(tensor(low)[None], tensor(high)[None]).chord
    assert offset is not None
    lines = Kink().lines(0.0, tensor(low), tensor(high))
    for line, rule in (((slope[0], offset[0]), abs), ((lines.upper_slope, lines.upper_intercept), positive)):
        s, t = (exact.fractions(part.numpy()) for part in line)
        for ends in (exact.fractions(low), exact.fractions(high)):
            above = s * ends + t - np.array([rule(z) for z in ends])
            assert (above >= 0).all()
    fixed = (low >= 0) | (high <= 0)
    lost = (offset[0] - tensor(np.where(low == high, np.abs(low) - low, 0.0))).numpy()[fixed]
    assert (lost <= 1e-15 * (high - low)[fixed] + 1e-300).all()


def test_no_chord_where_no_value_is_negative() -> None:
    low = tensor(np.array([[0.0, 1e300, 5e-324]]))
    slope, offset = Interval(low[None], 2 * low[None]).chord
    assert offset is None
    assert slope.shape == (1, 1, 1)
    assert slope.item() == 1.0


def positive(z: Fraction) -> Fraction:
    """relu."""
    return max(z, Fraction(0))


def test_sum_of_coefficients() -> None:
    """Where two paths meet, the coefficients are added; nothing else is rounded here."""
    b = Builder()
    x = b.input(1, 2)
    network = b.network(b.reshape(x, 2), x)
    rng = np.random.default_rng(0)
    check_forms(network, rng.normal(size=2) * 100, rng.normal(size=(ROWS, 4)))


def test_coefficients_over_inputs() -> None:
    b = Builder()
    b.input(1, 2)
    rng = np.random.default_rng(1)
    check_forms(b.network(), rng.normal(size=2), rng.normal(size=(ROWS, 2)), rng.normal(size=(ROWS, 2)))


@pytest.mark.parametrize("kind", ["broadcast", "select"])
def test_sum_over_copies(kind: str) -> None:
    b = Builder()
    x = b.input(1, 2)
    if kind == "broadcast":
        b.broadcast(x, 7, 2)
    else:
        b.select(x, np.array([[0, 1] * 7]))
    rng = np.random.default_rng(2)
    check_forms(b.network(), rng.normal(size=2), rng.normal(size=(ROWS, 14)))


def test_lines_above_a_maximum() -> None:
    """A line above max(y, z) is exact where y is at its upper end, and where y is at its lower, z at its upper one."""
    rng = np.random.default_rng(4)
    n = 12
    b = Builder()
    b.maximum(b.input(1, n, 2))
    network = b.network()
    low, middle, high = np.sort(rng.normal(size=(3, n)), 0)
    sides = (np.stack(ends, -1).reshape(1, -1) for ends in ((low, low), (high, middle)))
    C = -rng.random((ROWS, n)) * 10.0 ** rng.uniform(-3, 3, (ROWS, n))
    form = Engine(network).rows(point_weights(network), *map(tensor, sides), tensor(C)[None], forms=True).form
    assert form is not None
    for y, z in ((low, middle), (high, low), (high, middle)):
        x = exact.fractions(np.stack([y, z], -1).ravel())
        for row in range(ROWS):
            value = exact.fractions(C[row]) @ exact.fractions(np.maximum(y, z))
            below = exact.fractions(form.slope[0, 0, row]) @ x + Fraction(form.offset[0, 0, row].item())
            assert below <= value, float(below - value)


def test_minimum_that_vanishes_beside_the_offset() -> None:
    """1 - 1e-17 is 1 in float64."""
    form = LinearForm(tensor([[[[-1e-17]]]]), tensor([[[1.0]]]))
    one = tensor([[[1.0]]])
    assert Fraction(form.minimum(Interval(one, one)).item()) <= 1 - Fraction(1e-17)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_minimum_of_a_form(n: int) -> None:
    """A dot product that cancels, on points and on boxes, and an offset that cancels it."""
    rng = np.random.default_rng(n)
    slope = rng.normal(size=(ROWS, n)) * 10.0 ** rng.uniform(-8, 8, size=(ROWS, n))
    lower = rng.normal(size=n)
    for width in (0.0, 1e-17, 1.0):
        upper = np.maximum(lower, lower + width * rng.random(n))
        ends = np.where(slope > 0, lower, upper)
        truth = [exact.fractions(row) @ exact.fractions(end) for row, end in zip(slope, ends, strict=True)]
        offset = np.array([-float(value) for value in truth])
        for moved in (np.zeros(ROWS), offset):
            form = LinearForm(tensor(slope)[None, None], tensor(moved)[None, None])
            low = form.minimum(Interval(tensor(lower)[None, None], tensor(upper)[None, None]))[0, 0]
            for row in range(ROWS):
                assert Fraction(low[row].item()) <= truth[row] + Fraction(moved[row])


@pytest.mark.parametrize("start", ["rows", "units"])
@pytest.mark.parametrize("kind", ["linear", "shift", "scale"])
@pytest.mark.parametrize("size", [1e-6, 1.0])
@pytest.mark.parametrize("slack", [False, True])
def test_radii(kind: str, start: str, size: float, slack: bool) -> None:
    """Center minus radius is rounded; x > 0, so that the chord is exact and the worst weight is known."""
    rng = np.random.default_rng(3)
    n = 12
    b = Builder()
    x = b.input(1, n)
    if kind == "shift":
        x = b.linear(x, np.eye(n))
    shape = (n, n) if kind == "linear" else (1, n)
    radius = size * rng.random(shape)
    param = b.param(rng.normal(size=shape), slack=radius if slack else None)
    getattr(b, kind)(x, param)
    network = b.network()
    centers = {key: tensor(t)[None] for key, t in network.tensors.items()}
    scale = 1.0 if slack else 0.3
    weights = WeightBoxes(centers, {} if slack else {param.source: tensor(radius)}, tensor([[scale]]))
    point = rng.random(n) + 0.5
    box = Interval(tensor(point)[None, None], tensor(point)[None, None])
    position = len(network.nodes) - 1
    rows = np.concatenate([np.eye(n), -np.eye(n)])
    if start == "units":
        form = backward.dense_units(network, weights, Engine(network).ranges(weights, box), position, 1, n)
        if kind == "scale":
            assert form is None
            return
    else:
        form = Engine(network).rows(weights, box.lower[0], box.upper[0], tensor(rows)[None], forms=True).form
    signs = np.repeat([[-1.0], [1.0]], n, 0)
    for i in range(2 * n):
        sources = {key: exact.fractions(t) for key, t in network.tensors.items()}
        worst = Fraction(scale) * Fraction(signs[i, 0]) * exact.fractions(radius)
        sources[param.source] = sources[param.source] + worst
        value = exact.fractions(rows[i]) @ exact.evaluate(network, exact.fractions(point), sources)
        below = exact.fractions(form.slope[0, 0, i]) @ exact.fractions(point) + Fraction(form.offset[0, 0, i].item())
        assert below <= value, (i, float(value - below))
        assert value - below < 1e-10


def test_factor_of_a_constant() -> None:
    """factor * entry is rounded when it is gathered; the enclosure of the constant holds the exact product."""
    b = Builder()
    b.input(1, 1)
    values = np.random.default_rng(4).normal(size=ROWS)
    b.constant(values, factor=1 / 3)
    network = b.network()
    one = tensor([[[1.0]]])
    for method in ("interval", "linear"):
        z = Engine(network, method).ranges(point_weights(network), Interval(one, one)).values[1]
        for i, value in enumerate(values):
            truth = Fraction(value) * Fraction(1 / 3)
            assert Fraction(z.lower[0, 0, i].item()) <= truth <= Fraction(z.upper[0, 0, i].item())


def test_what_is_owed_does_not_cancel() -> None:
    """A bias of radius 1 is added to a node whose own coefficients cancel with those of another branch."""
    b = Builder()
    z = b.linear(b.input(1, 1), np.array([[3.0]]))
    other = b.scale(z, np.array([1.0]))
    network = b.network(b.shift(z, np.array([0.0])), other)
    centers = {name: tensor(t)[None] for name, t in network.tensors.items()}
    one = tensor([[1.0]])
    weights = WeightBoxes(centers, {"w2": tensor([1.0])}, one)
    low = Engine(network).rows(weights, one, one, tensor([[[1.0, -1.0]]])).lower.item()
    assert -1 - 1e-10 < low <= -1


@pytest.mark.parametrize("kind", ["slopes", "levels"])
def test_halves_of_lines(kind: str) -> None:
    """A row over any two lines, also where half their sum or difference is no float64, times 1e300."""
    spacing = 5e-324
    sizes = [0.0, spacing, 3 * spacing, 5 * spacing, 1 / 3, 1.0]
    rows = [1e300, -1e300, 1 / 3, -1 / 3, 1.0, -1.0]
    low, high = (tensor(side).reshape(1, -1, 1) for side in np.meshgrid(sizes, sizes))
    zero = torch.zeros_like(low)
    lines = Lines(low, zero, high, zero) if kind == "slopes" else Lines(zero, low, zero, high)
    b = Builder()
    b.activation(b.input(1, 1), "relu")
    network = b.network()
    for z in (1e-300, 1.0, -1e3, 1e100):
        end = torch.full_like(low, z)[..., None]
        ranges = Ranges({0: Interval(end, end)}, {}, {1: Lines(*(part[..., None] for part in lines.parts))})
        a = tensor(rows).reshape(1, 1, -1, 1, 1).expand(1, low.shape[1], -1, 1, 1)
        walk = backward.begin(network, point_weights(network), ranges, [(1, a)])
        form = backward.finish(walk, 1, 1, LINEAR)
        for item in range(low.shape[1]):
            for row, size in enumerate(rows):
                slope, level = ((lines.parts[side + 2 * (size < 0)][0, item, 0].item()) for side in (0, 1))
                value = Fraction(size) * (Fraction(slope) * Fraction(z) + Fraction(level))
                offset = form.offset[0, item, row].item()
                if z == 1e100 and abs(size) > 1 and low[0, item] + high[0, item] > 0.1 and offset == -np.inf:
                    continue  # 1e400 leaves float64
                found = Fraction(form.slope[0, item, row, 0].item()) * Fraction(z) + Fraction(offset)
                assert found <= value, (slope, level, size, z)


def test_ends_of_a_bias_that_cancels() -> None:
    """Center less radius is rounded before x is added, of which only a rounding is left."""
    rng = np.random.default_rng(5)
    values, radii = rng.normal(size=ROWS), 1e-9 * rng.random(ROWS)
    b = Builder()
    b.shift(b.input(1, ROWS), values)
    network = b.network()
    centers = {name: tensor(t)[None] for name, t in network.tensors.items()}
    weights = WeightBoxes(centers, {"w0": tensor(radii)}, tensor([[1.0]]))
    for sign in (-1, 1):
        x = -(values + sign * radii)
        z = Engine(network).ranges(weights, Interval(tensor(x)[None, None], tensor(x)[None, None])).values[1]
        for i in range(ROWS):
            end = Fraction(x[i]) + Fraction(values[i]) + sign * Fraction(radii[i])
            assert Fraction(z.lower.flatten()[i].item()) <= end <= Fraction(z.upper.flatten()[i].item())
