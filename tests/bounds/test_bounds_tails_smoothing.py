"""The lines of bound 4, moments, swings and means given earlier weights, against quadrature and sampled weights."""

from __future__ import annotations

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails import claimed
from bnn_vnnlib.bounds.tails.smoothing import InputLaw, moments_of, smoothed
from bnn_vnnlib.bounds.tails.tail import Martingale
from bnn_vnnlib.network.nodes import Activation
from support.networks import Array, Builder, dense_network
from support.tails import node_values, random_deviations, record, surprising, tensor

KINKED = [("relu", 0.0), ("leaky_relu", 0.0), ("leaky_relu", 0.3), ("leaky_relu", 1.0)]


def laws(rng: np.random.Generator, count: int) -> InputLaw:
    """Random ones, with degenerate radii, variances and variations among them."""

    def some(scale: float) -> Array:
        return np.exp(rng.normal(size=count)) * scale * (rng.random(count) < 0.8)

    middle, radius, least = rng.normal(size=count), some(0.5), some(0.5)
    most = least + some(0.5)
    reach = radius + 6 * np.sqrt(most) + (rng.random(count) < 0.2)
    sides = [tensor(middle + sign * r)[None, None] for r in (radius, reach) for sign in (-1, 1)]
    near = np.minimum(some(0.3), 2 * reach)
    return InputLaw(
        Interval(sides[2], sides[3]), Interval(sides[0], sides[1]), tensor(least)[None, None],
        tensor(most)[None, None], tensor(near)[None, None],
    )  # fmt: skip


def kinked(z: Array, leak: float) -> Array:
    return np.where(z > 0, z, leak * z)


@pytest.mark.parametrize("choice", [None, 0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize(("kind", "leak"), KINKED)
def test_smoothed_lines_hold_in_the_mean(kind: str, leak: float, choice: float | None) -> None:
    """E of the least f(zeta + d) - slope d over |d| <= rho' is above the lower line at m, for all m and s allowed."""
    law = laws(np.random.default_rng(3), 400)
    node = Activation("a", (0,), (400,), kind, leak)
    lines = ACTIVATIONS[kind].lines(leak, law.z.lower, law.z.upper)
    chosen = None if choice is None else torch.full((2, 1, 1, 400), choice, dtype=torch.float64)
    found = smoothed(node, law, lines, chosen)
    assert found is not None
    changed = found.below[0, 0].numpy() > 0
    assert changed.any() or leak == 1
    low, high, least, most, near = (
        side[0, 0].numpy() for side in (law.middle.lower, law.middle.upper, law.least, law.most, law.near)
    )
    d = np.linspace(-1, 1, 3)[:, None, None] * near  # convex: ends and kink are enough
    for place in (0.0, 0.37, 1.0):
        m = low + place * (high - low)
        for s in (np.sqrt(least), np.sqrt(most)):
            zeta = m + s * _fine(s)
            for sign, slope, intercept, far in (
                (1, found.lines.lower_slope, found.lines.lower_intercept, found.below),
                (-1, found.lines.upper_slope, found.lines.upper_intercept, found.above),
            ):
                c = slope[0, 0].numpy()
                kink = np.clip(-zeta, -near, near)[None]
                over_d = np.concatenate([kinked(zeta + x, leak) - c * x for x in (d, kink)])
                gap = over_d.min(0) if sign > 0 else -over_d.max(0)
                mean = gap.mean(0)
                room = 2e-4 * s + 1e-12 * (1 + np.abs(m))
                used = far[0, 0].numpy() > 0  # elsewhere the line holds on the range of z, not in the mean
                assert (mean >= sign * (c * m + intercept[0, 0].numpy()) - room)[used].all()
                amplitude = far[0, 0].numpy()
                assert (np.maximum(c - leak, 1 - c) <= amplitude + 1e-12)[used].all()


GRID = 2001


def _fine(s: Array) -> Array:
    return stats.norm.ppf((np.arange(GRID) + 0.5) / GRID)[:, None] * np.ones_like(s)


@pytest.mark.parametrize(("kind", "leak"), KINKED)
def test_second_moments(kind: str, leak: float) -> None:
    law = laws(np.random.default_rng(4), 300)
    node, near = Activation("a", (0,), (300,), kind, leak), law.near / 2
    found = moments_of(node, law, near, True)
    assert found is not None
    largest = np.zeros(300)
    for place in (0.0, 0.5, 1.0):
        m = (law.middle.lower + place * (law.middle.upper - law.middle.lower))[0, 0].numpy()
        for s in (np.sqrt(law.least[0, 0].numpy()), np.sqrt(law.most[0, 0].numpy())):
            values = (np.abs(kinked(m + s * _fine(s), leak)) + near[0, 0].numpy()) ** 2
            largest = np.maximum(largest, values.mean(0))
    square = found.square[0, 0].numpy()
    assert (largest <= square * (1 + 1e-9) + 1e-12).all()
    assert (square <= largest * 1.02 + 1e-9).mean() > 0.6


def test_activations_that_are_not_smoothed() -> None:
    law = laws(np.random.default_rng(5), 5)
    for kind, leak in (("tanh", 0.0), ("sigmoid", 0.0), ("leaky_relu", 1.5), ("elu", 1.0)):
        node = Activation("a", (0,), (5,), kind, leak)  # type: ignore[arg-type]
        assert smoothed(node, law, ACTIVATIONS[kind].lines(leak, law.z.lower, law.z.upper)) is None
        assert moments_of(node, law, law.near, True) is None


@pytest.mark.parametrize("kind", ["relu", "leaky_relu"])
@pytest.mark.parametrize("width", [0.0, 0.2])
def test_means_and_swings_given_earlier_weights(monkeypatch: pytest.MonkeyPatch, kind: str, width: float) -> None:
    """With the noise of its own layer left out, z(x0) stays in its middle; the part of L^2 stays below the swing."""
    network, rng = (
        dense_network([3, 5, 6, 4, 2], kind, 0.2 if kind == "leaky_relu" else 0.0, seed=5),
        np.random.default_rng(7),
    )
    deviations = random_deviations(network, rng, 0.4)
    x, budget, count = rng.normal(size=3), 0.3, 20_000
    case = record(monkeypatch, network, deviations, (x - width, x + width), tensor([[1.0, -1.0]]), budget, True)
    drawn = case.draw(torch.Generator().manual_seed(8), count)
    for layer, position in enumerate(sorted(case.run._middles)):
        own = {f"w{2 * layer}", f"w{2 * layer + 1}"}
        quiet = {name: torch.zeros_like(noise) if name in own else noise for name, noise in drawn.items()}
        m = node_values(network, tensor(x)[None], case.weights(quiet))[position][:, 0]
        middle = case.run._middles[position]
        outside = ((m < middle.lower[0] - 1e-9) | (m > middle.upper[0] + 1e-9)).reshape(len(m), -1).any(-1)
        assert not surprising(outside.sum().reshape(1) * (count // len(m)), count, tensor([budget])).any()
    values = node_values(network, tensor(x)[None], case.weights(drawn))
    _swings(case.tail.bounds[-1], case.run, values, deviations, count, width == 0)


def _swings(
    bound: object, run: object, values: list[Tensor], deviations: dict[str, Array], count: int, tight: bool
) -> None:
    """P(root of sum s_j^2 |h_j|^2 > root + z slope) <= Phi(-z), for the last layer of the row (1, -1)."""
    square = sum(deviations["w6"][i] ** 2 for i in range(2))
    h = values[run.network.nodes[-2].inputs[0]][:, 0].reshape(count, -1).numpy()  # type: ignore[attr-defined]
    part = np.sqrt((square * h**2).sum(-1))
    (swing,) = [s for s, q in zip(bound.swings, bound.squares, strict=True) if s is not None][:1]  # type: ignore[attr-defined]
    for z in (0.1, 1.0, 2.0, 3.0):
        edge = (swing.root + z * swing.slope).item()
        assert stats.binom.sf((part > edge).sum() - 1, count, stats.norm.sf(z)) >= 1e-9
    assert part.mean() > 0.2 * swing.root.item() or not tight


def test_owens_function_is_as_exact_as_is_claimed() -> None:
    """2 T(k, ratio) with mpmath's quadrature."""
    from bnn_vnnlib.bounds.tails.tail import OWEN

    rng = np.random.default_rng(9)
    for k in [0.0, 1e-8, 0.3, -1.0, 2.5, -4.0, 7.0, *rng.normal(size=12) * 3]:
        for a in [0.0, 1e-9, 0.1, 0.9, 1.0, 1.1, 5.0, 1e9]:
            if a < 100:
                exact = mpmath.quad(
                    lambda x, k=k: mpmath.exp(-(k**2) * (1 + x * x) / 2) / (1 + x * x), [0, min(a, 1), a]
                ) / (2 * mpmath.pi)
            else:
                exact = mpmath.ncdf(-abs(k)) / 2
            assert abs(special.owens_t(k, a) - float(exact)) <= OWEN + (1 / a if a > 100 else 0)


def test_a_swing_follows_the_neuron_that_varies_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four neurons has nearly all the noise: the part of L^2 is its square."""
    builder = Builder()
    x = builder.activation(builder.linear(builder.input(1, 1), np.zeros((4, 1))), "relu")
    builder.linear(x, np.zeros((1, 4)))
    network, sd = builder.network(), {"w0": np.array([[1.0], [0.01], [0.01], [0.01]]), "w1": np.ones((1, 4))}
    case = record(monkeypatch, network, sd, ([1.0], [1.0]), tensor([[1.0]]), 1e-3, True)
    found = case.tail.bounds[-1]
    assert isinstance(found, Martingale)
    (swing,) = (swing for swing in found.swings if swing is not None)
    for z in (0.0, 1.0, 3.0):
        edge = (swing.root + z * swing.slope).item()
        assert stats.norm.sf(edge) <= stats.norm.sf(z)
    assert swing.root.item() == pytest.approx(np.sqrt(0.5 + 3 * 0.5e-4), rel=1e-6)
    assert swing.slope.item() == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("thorough", [False, True])
def test_the_variation_counts_the_noise_of_the_weights(monkeypatch: pytest.MonkeyPatch, thorough: bool) -> None:
    """Weights of mean 0 over [-r, r]: |z_i(x) - z_i(0)| reaches sum |w_ij| r_j, behind a known first layer."""
    rng, count, budget = np.random.default_rng(10), 20_000, 0.4
    builder = Builder()
    x = builder.activation(builder.linear(builder.input(1, 20), np.eye(20)), "leaky_relu", 1.0)
    x = builder.activation(builder.linear(x, np.zeros((3, 20))), "relu")
    builder.linear(x, np.ones((1, 3)))
    network, reach = builder.network(), rng.uniform(0.5, 1.5, 20)
    sd = {"w1": rng.uniform(0.5, 1.5, (3, 20))}
    case = record(monkeypatch, network, sd, (-reach, reach), tensor([[1.0]]), budget, thorough)
    drawn = case.weights(case.draw(torch.Generator().manual_seed(11), count))
    largest = (drawn["w1"].abs() * tensor(reach)).sum(-1)
    first, second = (case.run.variation.known[position].reshape(-1) for position in claimed(network))  # type: ignore[union-attr]
    torch.testing.assert_close(first, tensor(reach), rtol=1e-9, atol=0)
    assert not surprising((largest > second).sum(0), count, tensor([budget])).any()
    assert (second < 2 * largest.mean(0)).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("way", ["weight", "bias", "both", "reshape", "sum", "branches"])
def test_smoothed_lines_pay_for_the_steepest_slope(monkeypatch: pytest.MonkeyPatch, way: str, sign: float) -> None:
    """relu may follow all the noise of its input, of which a line of slope c has c: L is at least what relu needs."""
    builder = Builder()
    x = builder.input(1, 1)
    z = builder.linear(x, np.array([[0.1]]))
    match way:
        case "bias" | "both":
            z = builder.shift(z, np.zeros((1, 1)))
        case "reshape":
            z = builder.reshape(z, 1)
        case "sum":
            z = builder.sum(x, z, signs=(1, -1))
        case "branches":
            z = builder.sum(z, builder.linear(x, np.array([[0.2]])))
    z = builder.activation(z, "relu")
    network = builder.network(builder.linear(z, np.array([[1.0]])))
    first, second = np.array([[0.7]]), np.array([[0.4]])
    sd = {"weight": {"w0": first}, "bias": {"w1": second}, "reshape": {"w0": first}, "sum": {"w0": first}}.get(
        way, {"w0": first, "w1": second}
    )
    at = [0.0 if way == "bias" else 1.0 if way != "sum" else 0.5]
    needed = np.sqrt(
        sum((part.item() * (at[0] if name == "w0" or way == "branches" else 1.0)) ** 2 for name, part in sd.items())
    )
    case = record(monkeypatch, network, sd, (at, at), tensor([[sign]]), 1e-6, True)
    (smooth,) = case.run.smooth.values()
    assert (smooth.below if sign > 0 else smooth.above).item() > 0
    bound = case.tail.bounds[-1]
    assert isinstance(bound, Martingale)
    assert bound.spread().item() >= needed * (1 - 1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_swings_of_smoothed_layers(monkeypatch: pytest.MonkeyPatch, sign: float) -> None:
    """y = +-relu(v . relu(w)): the noise of v has the length of relu(w), whatever the slope of the outer line."""
    builder = Builder()
    x = builder.activation(builder.linear(builder.input(1, 1), np.full((3, 1), 0.2)), "relu")
    x = builder.activation(builder.linear(x, np.zeros((1, 3))), "relu")
    network = builder.network(builder.linear(x, np.array([[1.0]])))
    sd = {"w0": np.full((3, 1), 0.5), "w1": np.full((1, 3), 0.8)}
    case = record(monkeypatch, network, sd, ([1.0], [1.0]), tensor([[sign]]), 1e-6, True)
    bound = case.tail.bounds[-1]
    assert isinstance(bound, Martingale)
    assert len(case.run.smooth) == 2
    (swing,) = (swing for swing in bound.swings if swing is not None)
    h = np.maximum(0.2 + 0.5 * stats.norm.ppf((np.arange(20_001) + 0.5) / 20_001), 0)
    assert swing.root.item() >= 0.8 * np.sqrt(3 * (h**2).mean()) * (1 - 1e-6)
    assert swing.slope.item() >= 0.8 * 0.5 * (1 - 1e-9)
    assert case.tail.split is not None
    assert not case.tail.split.fixed.any()  # the variance of S depends on h0, which is random


def test_products_vary_by_both_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """x^2 over 1 +- 1/2 varies by 5/4."""
    builder = Builder()
    x = builder.input(1, 1)
    square = builder.product(builder.linear(x, np.eye(1)), builder.linear(x, np.eye(1)))
    builder.linear(builder.activation(square, "relu"), np.eye(1))
    case = record(monkeypatch, builder.network(), {"w2": np.eye(1)}, ([0.5], [1.5]), tensor([[1.0]]), 1e-6)
    assert case.run.variation is not None
    assert case.run.variation.known[square].item() >= 1.25


def test_the_fold_of_the_centred_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least value of w . x over |x_j| <= r_j has the mean -sqrt(2 / pi) sum r_j s_j for w of mean 0."""
    builder, reach, sd = Builder(), np.array([0.5, 2.0]), np.array([[1.0, 0.3]])
    builder.linear(builder.input(1, 2), np.zeros((1, 2)))
    case = record(monkeypatch, builder.network(), {"w0": sd}, (-reach, reach), tensor([[1.0]]), 1e-6)
    exact = -np.sqrt(2 / np.pi) * (sd[0] @ reach)
    for bound in case.tail.bounds:
        assert exact * (1 + 1e-9) <= bound.mean.item() <= exact
    assert case.tail.split is not None
    assert case.tail.split.mean.item() <= exact
    assert case.tail.split.folded.item() == pytest.approx(np.sqrt(sd[0] ** 2 @ reach**2), rel=1e-9)


@pytest.mark.parametrize("way", ["relu", "max"])
def test_differences_reach_what_the_mean_network_varies_by(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """relu(x), and |x| as a maximum, vary by 1 over [-1, 1]."""
    builder = Builder()
    x = builder.activation(builder.linear(builder.input(1, 1), np.array([[1.0], [-1.0]])), "relu")
    if way == "max":
        x = builder.reshape(builder.maximum(x), 1, 1)
    z = builder.linear(x, np.array([[1.0, 0.0]] if way == "relu" else [[1.0]]))
    builder.linear(builder.activation(z, "relu"), np.ones((1, 1)))
    case = record(monkeypatch, builder.network(), {"w2": np.ones((1, 1))}, ([-1.0], [1.0]), tensor([[1.0]]), 0.5, True)
    assert case.run.variation is not None
    assert case.run.variation.known[z].item() >= 1.0
