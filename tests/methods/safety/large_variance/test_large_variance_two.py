"""Two hidden layers over boxes: exact infima by kinks, each event by samples, each inequality on grids."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from bnn_vnnlib import verify_batch
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.gaussian.relu import Rectangle
from bnn_vnnlib.methods.safety.large_variance import first_layer as near
from bnn_vnnlib.methods.safety.large_variance import output_layer, two_layers, variation
from bnn_vnnlib.methods.safety.large_variance.first_layer import FirstLayer, RowWeights
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
from bnn_vnnlib.methods.safety.large_variance.rows import LARGE_VARIANCE, LargeVarianceBounds
from bnn_vnnlib.methods.safety.large_variance.variation import SecondLayer
from bnn_vnnlib.methods.safety.refine import LATE, MorePoints
from bnn_vnnlib.methods.safety.safety import NONE, Goal, SafetyTask
from bnn_vnnlib.model import GaussianDiagonal
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.system.clock import Deadline
from support.builders import bounds_of, model, problem, rows
from support.clock import Clock
from support.large_variance import dense, in_numpy, least_margins_deep, sampled

ROW = np.array([1.0, -1.0])

first_layer, rows_of, kinks, slopes = map(in_numpy, (near.first_layer, RowWeights, near.kinks, near.slope_quantiles))
failures, ranges_of, worst = map(in_numpy, (two_layers.failures, two_layers._ranges, two_layers._worst))
second_of, second, loss, inputs_of = map(in_numpy, (SecondLayer, variation.second, variation.loss, variation._inputs))
cheapest, random_costs, constant = map(in_numpy, (variation.cheapest, variation._random, variation._constant))
rows_at_boxes, weights_of, last_weights = map(in_numpy, (RowsAtBoxes, Weights, output_layer.last_weights))


def stack(seed: int, widths: tuple[int, ...], spread: float) -> DenseChain:
    rng, layers = np.random.default_rng(seed), []
    for inputs, outputs in itertools.pairwise(widths):
        layers.append(dense(rng, outputs, inputs, spread=spread))
    return DenseChain.relu(*layers)


def asked(x0: np.ndarray, eps: float, bound: float) -> RowsAtBoxes:
    return rows_at_boxes(x0[None] - eps, x0[None] + eps, ROW[None], np.array([bound]), np.array([0]))


def placed(net: DenseChain, x0: np.ndarray, share: float) -> float:
    return float(np.quantile(least_margins_deep(net, ROW, 0.0, x0, x0, 4000, 7), share))


@pytest.mark.parametrize(("hidden", "spread", "eps"), [(2, 0.05, 0.02), (3, 0.15, 0.05), (4, 0.05, 0.02)])
@pytest.mark.parametrize("share", [0.001, 0.02])
def test_no_more_networks_fail_than_the_bound_says(hidden: int, spread: float, eps: float, share: float) -> None:
    net, x0 = stack(hidden, (2, hidden, hidden, 2), spread), np.random.default_rng(hidden).normal(size=2)
    question, count = asked(x0, eps, placed(net, x0, share)), 5_000
    least = least_margins_deep(
        net, ROW, float(question.bound[0]), question.lower[0], question.upper[0], count, 3
    )  # fmt: skip
    found = float(failures(net, question, Deadline())[0])
    assert stats.binom.sf(int((least <= 0).sum()) - 1, count, found) > 1e-9
    assert found < 1.0


@pytest.mark.parametrize("eps", [0.0, 0.02, 1.0])
def test_least_margins_are_exact(eps: float) -> None:
    """No grid goes below them, and a fine one comes near; most cells of the first layer do not meet a small box."""
    net, x0, count = stack(1, (2, 3, 4, 2), 0.3), np.array([0.2, -0.1]), 40
    least = least_margins_deep(net, ROW, 0.3, x0 - eps, x0 + eps, count, 5)
    rng = np.random.default_rng(5)
    (v, b), (w, c), (d, e) = (sampled(layer, count, rng) for layer in net.layers)
    axis = np.linspace(-eps, eps, 201 if eps else 1)
    x = x0 + np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    h = np.maximum(np.einsum("shi,ki->skh", v, x) + b[:, None], 0.0)
    h = np.maximum(np.einsum("soh,skh->sko", w, h) + c[:, None], 0.0)
    grid = ((np.einsum("soh,skh->sko", d, h) + e[:, None]) @ ROW - 0.3).min(1)
    assert (least <= grid + 1e-12).all()
    assert (grid - least).max() < 0.02 * eps + 1e-12


def scaled(seed: int, widths: tuple[int, ...], spread: float) -> DenseChain:
    """Standard deviations of `spread` times the means, which shrink with the inputs of a layer."""
    rng, layers = np.random.default_rng(seed), []
    for inputs, outputs in itertools.pairwise(widths):
        mean = torch.tensor(rng.normal(size=(outputs, inputs)) * np.sqrt(2 / inputs))
        bias = torch.tensor(0.1 * rng.normal(size=outputs))
        dense(rng, outputs, inputs, spread=1.0)  # draws that the numbers of the next layer come after
        layers.append(DenseLayer.exact(mean, bias, (spread * mean) ** 2 + 1e-12, (spread * bias) ** 2 + 1e-12))
    return DenseChain.relu(*layers)


def test_moderate_noise_over_a_box_is_far_from_vacuous() -> None:
    net, x0 = scaled(0, (4, 24, 24, 2), 0.1), np.random.default_rng(0).normal(size=4)
    question = asked(x0, 0.01, placed_wide(net, x0, 1e-4))
    assert float(failures(net, question, Deadline())[0]) < 0.2


def placed_wide(net: DenseChain, x0: np.ndarray, share: float) -> float:
    rng, h = np.random.default_rng(0), np.broadcast_to(x0, (40_000, len(x0)))
    for place, layer in enumerate(net.layers):
        noise = np.sqrt(h**2 @ layer.variance.numpy().T + layer.bias_variance.numpy())
        h = h @ layer.mean.numpy().T + layer.bias.numpy() + noise * rng.standard_normal(noise.shape)
        h = np.maximum(h, 0.0) if place + 1 < len(net.layers) else h
    return float(np.quantile(h @ ROW, share))


def parts(
    net: DenseChain, x0: np.ndarray, eps: float, structure: float
) -> tuple[FirstLayer, SecondLayer, Weights, Rectangle | None, float]:
    weights = last_weights(net.layers[-1], ROW[None], np.zeros(1))[0]
    lower, upper = x0[None] - eps, x0[None] + eps
    point, guess = worst(net, lower, upper, weights)
    layer = first_layer(net.layers[0], point, lower, upper)
    ranges, spent = ranges_of(net, point, structure / 4)
    return layer, second(layer, net.layers[1], guess, structure), weights, ranges, structure + float(spent[0])


@pytest.mark.parametrize(("seed", "spread", "eps"), [(0, 0.3, 0.1), (1, 0.1, 0.3), (2, 0.5, 0.02)])
def test_rows_lose_no_more_than_the_loss(seed: int, spread: float, eps: float) -> None:
    """The exact change of sampled networks, with large budgets, and a loss within sight of it."""
    net, x0, count = stack(seed, (2, 3, 4, 2), spread), np.random.default_rng(seed).normal(size=2), 5_000
    for structure, share in ((0.2, 0.2), (0.5, 0.3)):
        layer, at, weights, ranges, spent = parts(net, x0, eps, structure)
        lost = float(loss(layer, at, weights, share, ranges)[0])
        x = layer.point[0]
        there = least_margins_deep(net, ROW, 0.0, x, x, count, 5)
        least = least_margins_deep(net, ROW, 0.0, x0 - eps, x0 + eps, count, 5)
        fallen = there - least
        assert (fallen >= -1e-9).all()
        assert stats.binom.sf(int((fallen > lost).sum()) - 1, count, spent + share) > 1e-9
        assert lost < 50 * np.quantile(fallen, 0.9) + 1e-6


def single(
    seed: int, eps: float, inputs: int = 2, hidden: int = 5
) -> tuple[FirstLayer, RowWeights, np.random.Generator]:
    rng = np.random.default_rng(seed)
    layer = dense(rng, hidden, inputs, spread=0.6)
    x = rng.normal(size=(1, inputs))
    found = first_layer(layer, x, x - eps * rng.uniform(0, 1, inputs), x + eps * rng.uniform(0, 2, inputs))
    shape = 1, 3, hidden
    return found, rows_of(rng.normal(size=shape), rng.uniform(0, 0.5, shape), rng.uniform(0, 0.1, shape)), rng


def drawn(seed: int, count: int, inputs: int = 2, hidden: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """V (S, H, n) and b (S, H) of the layer of `single`."""
    layer = dense(np.random.default_rng(seed), hidden, inputs, spread=0.6)
    return sampled(layer, count, np.random.default_rng(100 + seed))


@pytest.mark.parametrize("share", [0.2, 0.02])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_exceed_their_bounds_as_seldom_as_is_said(seed: int, share: float) -> None:
    layer, row, rng = single(seed, 0.1)
    theta, count = np.abs(rng.normal(size=layer.m.shape)) * 0.3, 40_000
    above, below = slopes(layer, row, theta, np.log(share))
    v, b = drawn(seed, count)
    active = (v @ layer.point[0] + b) > theta
    w = row.mean + np.sqrt(row.variance) * rng.standard_normal((count, *row.mean.shape[1:]))
    u = np.einsum("skh,sh,shi->ski", w, active, v)
    for value, bound in ((u, above), (-u, below)):
        often = (value > bound[0]).mean(0)
        assert (stats.binom.sf(often * count - 1, count, share) > 1e-9).all()
        assert often.max() > share / 30


@pytest.mark.parametrize("seed", range(3))
def test_kinks_cost_what_is_said(seed: int) -> None:
    """Pathwise: sum w g >= sum delta U - kinks for sampled weights and points of the box, kinks from their definition;
    and the bound on the kinks holds as often as is said.
    """
    layer, row, rng = single(seed, 0.5)
    theta, count, share = np.abs(rng.normal(size=layer.m.shape)) * 0.2, 20_000, 0.1
    up, down = layer.reach(2.5)
    v, b = drawn(seed, count)
    z = v @ layer.point[0] + b
    active = z > theta
    fall = np.where(active, 0.0, np.minimum(down, np.maximum(z, 0.0)))
    rise = np.where(active, np.maximum(down - z, 0.0), np.maximum(z + up, 0.0) - np.maximum(z, 0.0))
    e = row.extra * rng.choice([-1.0, 1.0], (count, *row.mean.shape[1:]))
    w = row.mean + np.sqrt(row.variance) * rng.standard_normal(e.shape) + e
    cost = np.einsum("skh,sh->sk", np.maximum(w, 0), fall) + np.einsum("skh,sh->sk", np.maximum(-w, 0), rise)
    within = np.ones(count, dtype=bool)
    for _ in range(30):
        delta = rng.choice([layer.low[0], layer.high[0]], axis=0) * rng.choice([1.0, rng.uniform()])
        moved = v @ delta
        within &= ((moved <= up) & (moved >= -down)).all(1)
        gap = np.maximum(z + moved, 0) - np.maximum(z, 0)
        left = np.einsum("skh,sh->sk", w, gap)
        right = np.einsum("skh,sh->sk", w, active * moved) - cost
        good = ((moved <= up) & (moved >= -down)).all(1)
        assert (left >= right - 1e-9)[good].all()
        assert good.any()
    bound = kinks(layer, row, theta, (up, down), np.log(share))[0]
    often = (cost > bound).mean(0)
    assert (stats.binom.sf(often * count - 1, count, share) > 1e-9).all()
    assert (bound < 20 * np.quantile(cost, 1 - share, axis=0) + 0.05).all()


def test_inputs_move_within_reach_as_often_as_is_said() -> None:
    layer, _, _ = single(4, 0.5)
    y, count = 1.0, 40_000
    up, down = layer.reach(y)
    v, _ = drawn(4, count)
    most = np.maximum(v * layer.high[0], v * layer.low[0]).sum(-1)
    least = np.maximum(-v * layer.high[0], -v * layer.low[0]).sum(-1)
    for value, bound in ((most, up), (least, down)):
        often = (value > bound[0]).mean(0)
        assert (stats.binom.sf(often * count - 1, count, special.ndtr(-y)) > 1e-9).all()
        assert often.max() > 0.02


def test_slopes_of_the_second_layer_on_a_grid() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        low, high = np.sort(rng.normal(size=2))
        fall, rise = rng.uniform(0, 1.5, 2)
        ends = [np.array([[end]]) for end in (low, high, fall, rise)]
        empty = np.zeros((1, 1))
        at = second_of(
            empty, empty, ends[0], ends[1], ends[2], ends[3], empty[..., None], empty, (empty, empty), 3.0
        )  # fmt: skip
        weights = weights_of(np.array([[rng.normal()]]), np.array([[0.5]]), np.zeros(1), np.zeros(1))
        found = cheapest(constant(at), weights, at.fall, at.rise)
        a, p, q = (float(part.ravel()[0]) for part in (found.slope, found.plus, found.minus))
        z, v = np.meshgrid(np.linspace(low, high, 81), np.linspace(-fall, rise, 81))
        f = np.maximum(z + v, 0) - np.maximum(z, 0) - a * v
        assert f.min() >= -p - 1e-12
        assert f.max() <= q + 1e-12


def test_costs_of_unsure_neurons() -> None:
    """p and q on every cell against f for all v, and masses against the worst law of a rectangle: for the cost and any
    function that grows with it, means from above and from nearby.
    """
    rng = np.random.default_rng(1)
    for place in range(200):
        low, least, fall, rise = rng.normal() - 0.5, rng.uniform(0.2, 1), rng.uniform(0.1, 1.5), rng.uniform(0.1, 1.5)
        high, most = low + rng.uniform(0, 1), least + rng.uniform(0, 0.5)
        slope = float(place % 2)
        ends = [np.array([[part]]) for part in (fall, rise, high if slope == 0 else -low, least, most)]
        found = random_costs(*(ends if slope == 0 else [ends[1], ends[0], *ends[2:]]), slope)
        mass, p, q = found.mass[0, 0], found.plus[0, 0], found.minus[0, 0]
        z = np.linspace(-6, 6, 6001)
        v = np.linspace(-fall, rise, 41)[:, None]
        f = np.maximum(z + v, 0) - np.maximum(z, 0) - slope * v
        lost = np.maximum(1.3 * -f.min(0), 0) + np.maximum(0.7 * f.max(0), 0)
        claimed = 1.3 * p + 0.7 * q
        for m, s in itertools.product((low, (low + high) / 2, high), (least, most)):
            law = np.exp(-(((z - m) / s) ** 2) / 2) * (z[1] - z[0]) / (s * np.sqrt(2 * np.pi))
            for rate in (0.1, 1.0, 3.0):
                truth, bound = np.expm1(rate * lost) @ law, mass @ np.expm1(rate * claimed)
                assert truth <= bound + 1e-6
        tight = low + 1e-9 if slope else high
        law = np.exp(-(((z - tight) / most) ** 2) / 2) * (z[1] - z[0]) / (most * np.sqrt(2 * np.pi))
        if abs(least - most) < 0.05:
            assert mass @ np.expm1(claimed) < 1.6 * np.expm1(lost) @ law + 0.02


def test_inputs_of_the_second_layer_stay_in_their_ranges() -> None:
    net, x0, count = stack(1, (2, 4, 5, 2), 0.4), np.random.default_rng(1).normal(size=2), 40_000
    layer, *_ = parts(net, x0, 0.1, 0.5)
    dense_ = net.layers[1]
    low, high = inputs_of(layer, dense_, np.log(0.05))
    rng = np.random.default_rng(9)
    v, b = sampled(net.layers[0], count, rng)
    w, c = sampled(dense_, count, rng)
    zeta = np.einsum("sij,sj->si", w, np.maximum(v @ layer.point[0] + b, 0.0)) + c
    for outside in (zeta < low[0], zeta > high[0]):
        often = outside.mean(0)
        assert (stats.binom.sf(often * count - 1, count, 0.05) > 1e-9).all()
        assert often.max() > 0.001


def test_the_portfolio_takes_it() -> None:
    net, x0 = scaled(0, (4, 24, 24, 2), 0.1), np.random.default_rng(0).normal(size=4)
    found = model(
        [(part.mean.numpy(), part.bias.numpy()) for part in net.layers],
        [(part.variance.numpy(), part.bias_variance.numpy()) for part in net.layers],
    )
    bound = placed_wide(net, x0, 1e-4)
    both = verify_batch(
        found, [x0 - 0.01], [x0 + 0.01], properties=[[rows(ROW, bound)]], timeout=60, query="probabilistic",
        tau_safe=0.75, tau_unsafe=0.05,
    )  # fmt: skip
    assert both.verdicts[0] == "unsat"


def test_boxes_and_points_of_one_problem() -> None:
    """Points go one way, boxes another: each item gets what it would get alone, and a box no less than its centre."""
    net, x0 = scaled(0, (4, 24, 24, 2), 0.1), np.random.default_rng(0).normal(size=4)
    wide = LargeVarianceBounds(net, Deadline())
    label = int(placed_wide(net, x0, 0.5) < 0)
    x, r = torch.tensor(np.stack([x0, x0])), torch.tensor([[0.0], [0.01]])
    both = wide.item_failures(from_labels(x - r, x + r, torch.tensor([label, label]), 2))
    assert wide.serves(from_labels(x - r, x + r, torch.tensor([label, label]), 2)).all()
    alone = wide.item_failures(from_labels(x[1:] - r[1:], x[1:] + r[1:], torch.tensor([label]), 2))
    assert both[1] == alone[0]
    assert both[0] < both[1] < 1


@pytest.mark.parametrize("widths", [(4, 24, 2), (4, 24, 24, 2), (4, 24, 24, 24, 2)])
@pytest.mark.parametrize("above", [False, True])
def test_what_was_found_before_time_is_up_is_kept(
    widths: tuple[int, ...], above: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Item by item: one that was not reached has the bound that says nothing; dear ones are cut off within."""
    monkeypatch.setattr("bnn_vnnlib.methods.safety.large_variance.rows.PIECE", 1)
    net, x0 = scaled(0, widths, 0.1), np.random.default_rng(0).normal(size=4)
    x = torch.tensor(np.stack([x0, x0 + 0.1, x0 - 0.1]))
    label = int(placed_wide(net, x0, 0.5) < 0) ^ above
    asked = from_labels(x, x, torch.full((3,), label), 2)

    clock = Clock(monkeypatch)

    def bounds(looks: int) -> Tensor:
        clock.stopped_at(looks)
        wide = LargeVarianceBounds(net, Deadline(0.0))
        return wide.unsafe(asked, x, x) if above else wide.item_failures(asked)

    whole, used = bounds(10**9), clock.looks
    nothing = 0.0 if above else 1.0
    assert (bounds(0) == nothing).all()
    partly = bounds(used // 3)
    assert partly[0] == whole[0] != nothing
    assert (partly[1:] == nothing).all()
    assert used >= (24 if len(widths) == 4 else 3)


def test_more_points_are_bounded_by_the_wide_method_too() -> None:
    """Upper bounds at the points found later: one item of each instance, where the weights move a row much."""
    net, x0 = scaled(0, (4, 24, 24, 2), 0.1), np.random.default_rng(0).normal(size=4)
    found = model(
        [(part.mean.numpy(), part.bias.numpy()) for part in net.layers],
        [(part.variance.numpy(), part.bias_variance.numpy()) for part in net.layers],
    )
    bound = placed_wide(net, x0, 0.995)
    question = problem([x0 - 1e-3, x0 - 1e-3], [x0 + 1e-3, x0 + 1e-3], rows(ROW, bound), outputs=2)
    points = torch.tensor(np.stack([x0, x0]))
    wide, values = LargeVarianceBounds(net, Deadline()), torch.zeros(2, dtype=torch.float64)
    assert isinstance(found.posterior, GaussianDiagonal)

    def asked(deadline: Deadline) -> SafetyTask:
        task = SafetyTask(bounds_of(found), found.posterior, question, Attack(steps=2), deadline, Goal(0.95, 0.95))
        vars(task)["attacked"] = points, values, torch.ones(2, dtype=torch.bool)
        return task

    stages = [MorePoints(asked(Deadline()), None, None, some) for some in (None, wide)]
    above, both = torch.tensor([True, False]), torch.tensor([True, True])
    late = Deadline(time.monotonic() + 600)
    in_time = MorePoints(asked(late), None, None, wide)
    known = []
    for _ in range(LATE + 1):  # with several instances, an item that takes long waits for the other stages
        piece = in_time.step(both, both)
        assert piece is not None
        known.append(piece.methods[1].count(LARGE_VARIANCE))
    assert known == [0] * LATE + [1]
    without, bounds = (stage.step(above, above) for stage in stages)
    assert without is not None
    assert bounds is not None
    assert without.upper.tolist() == [1.0, 1.0]
    assert bounds.upper[0] < 0.2
    assert bounds.upper[1] == 1.0
    assert bounds.methods[1] == [LARGE_VARIANCE, NONE]
    assert bounds.point_mass[0] <= wide.unsafe(question, bounds.point[[0, 0]], bounds.point[[0, 0]])[0]


def test_small_coefficients_of_large_weights_count() -> None:
    """A coefficient whose square underflows, of weights so uncertain that its product does not."""
    tiny, big, ones = 0.7 * 2.0**-537, 2.0**500, np.ones(2)
    variances = np.array([big**2 * ones, 0.01 * ones])
    last = DenseLayer.exact(*map(torch.tensor, (np.array([0 * ones, ones]), np.zeros(2), variances, np.zeros(2))))
    weights, _, good = last_weights(last, np.array([[tiny, 1.0]]), np.zeros(1))
    assert not good[0] or (weights.dev[0] >= tiny * big).all()
    first = DenseLayer.exact(*map(torch.tensor, (np.ones((2, 2)), np.zeros(2), np.full((2, 2), 1e102), ones)))
    box = np.array([[1e-170, 1e-170]])
    assert not first_layer(first, box, box, box * 2).served.any()
