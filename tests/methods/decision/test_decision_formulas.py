"""The formulas behind bounds on the decision, one by one, where they are met exactly: nothing may be taken off them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bnn_vnnlib.bounds.dense.hidden import CentredForm, hidden
from bnn_vnnlib.gaussian import characteristic
from bnn_vnnlib.gaussian.tanh import Quadrature
from bnn_vnnlib.methods.decision.by_weights import on_union
from bnn_vnnlib.methods.decision.regression.moments_deep import MomentsDeep
from bnn_vnnlib.methods.decision.regression.one_layer import TanhRows, _relaxation, rows_over
from bnn_vnnlib.methods.decision.regression.two_layers import curvature, interpolation_errors, star_bound
from bnn_vnnlib.methods.decision.softmax.by_tails import _above, _layer_cake
from bnn_vnnlib.methods.decision.softmax.one_layer import MeanNetwork, OneLayerSoftmax
from bnn_vnnlib.methods.decision.softmax.softmax import ClassPairs, classes, log_excess
from bnn_vnnlib.network.dense_chain import DenseLayer, dense_chain
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.problem.weight_sets import CentredUnion
from bnn_vnnlib.splitting.frontier import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline, OutOfTime
from support.builders import bounds_of, expectation, model, random_model

CPU = torch.device("cpu")
ROOT = float(np.sqrt(2 * np.pi))


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def matrix(value: float) -> torch.Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


def log_excess_of(a: float, square: float, m: float, s: float) -> float:
    """log E exp(U z) - E U z by the rectangle rule, U ~ N(a, square), z = relu(N(m, s^2))."""
    t = np.linspace(-14, 14, 200_001)
    z, p = np.maximum(m + s * t, 0.0), np.exp(-(t**2) / 2) / ROOT * (t[1] - t[0])
    return float(np.log((np.exp(a * z + square * z**2 / 2) * p).sum()) - a * (z * p).sum())


def one_neuron(m: float, s: float) -> DenseLayer:
    return DenseLayer.exact(torch.zeros(1, 1).double(), tensor(m), torch.zeros(1, 1).double(), tensor(s * s))


def bounded_excess(a: float, square: float, m: float, s: float, constant: float = 0.0) -> float:
    zero = torch.zeros(1, 1, dtype=torch.float64)
    found = log_excess(hidden(one_neuron(m, s), zero, zero), tensor(a)[None], tensor(square)[None], tensor(constant))
    return float(found)


@pytest.mark.parametrize(("a", "b", "s"), [(0.5, 0.0, 0.4), (0.5, 0.3, 0.4), (0.0, 0.5, 1.0), (2.0, 0.2, 0.1)])
def test_the_log_excess_of_an_active_neuron_is_exact(a: float, b: float, s: float) -> None:
    m = 10 * s
    truth = a**2 * s**2 / 2 + b**2 * (m + a * s**2) ** 2 / (2 * (1 - b**2 * s**2)) - np.log1p(-((b * s) ** 2)) / 2
    assert log_excess_of(a, b**2, m, s) == pytest.approx(truth, rel=1e-6)
    assert truth <= bounded_excess(a, b**2, m, s) <= truth * (1 + 1e-6) + 1e-90
    assert truth + 0.2 <= bounded_excess(a, b**2, m, s, 0.4) <= (truth + 0.2) * (1 + 1e-6)


def test_no_log_excess_is_too_small() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        s, a = 10 ** rng.uniform(-2, 0.5), rng.normal()
        b, m = rng.uniform(0, 0.7) / s, s * rng.uniform(-4, 4)
        assert bounded_excess(a, b**2, m, s) >= log_excess_of(a, b**2, m, s) - 1e-9


def two_classes(first: float, second: float) -> OneLayerSoftmax:
    """An active neuron, m = 2 and s = .2, and two classes that weigh it with deviations of .1 and .3."""
    net = model(
        [(np.zeros((1, 1)), [2.0]), ([[first], [second]], [0.0, 0.0])],
        [(np.zeros((1, 1)), [0.04]), ([[0.01], [0.09]], [0.02, 0.03])],
    )
    layers = dense_chain(net.network, net.posterior, CPU)
    assert layers is not None
    return OneLayerSoftmax(layers)


def test_log_excesses_of_two_classes_are_exact_for_active_neurons() -> None:
    source, zero = two_classes(0.7, 0.2), torch.zeros(1, 1, dtype=torch.float64)
    neurons = hidden(source.layers.first, zero, zero)
    pairs = source.pairs(neurons)
    whole = log_excess_of(0.5, 0.1, 2.0, 0.2) + 0.05 / 2
    assert float(pairs.excess[0, 1, 0]) == pytest.approx(whole, rel=1e-6)  # of f_0 - f_1
    p = 1 / (1 + np.exp(0.5 * 2.0))
    above = log_excess_of(0.5 * p, 0.1 * p**2, 2.0, 0.2) + 0.05 * p**2 / 2
    assert float(source.above(neurons, pairs)[0, 0]) == pytest.approx(above, rel=1e-6)
    found = source.comparisons(zero, zero, torch.tensor([[0]]), torch.tensor([[1]]))
    assert float(found.needed) >= pairs.excess[0, 0].max() + source.above(neurons, pairs)[0, 1]


def test_bounds_of_fixed_margins_enclose_the_softmax() -> None:
    """Three logits that are linear in x and certain: the margins are exact, and so are the bounds at points."""
    generator = torch.Generator().manual_seed(0)
    for width in (0.0, 0.3, 2.0):
        value, slope = (torch.randn(20, 3, k, generator=generator, dtype=torch.float64) for k in (1, 2))
        value = value[..., 0] * 2
        margin = CentredForm(value[:, :, None] - value[:, None], slope[:, :, None] - slope[:, None])
        radius = torch.full((20, 2), width, dtype=torch.float64)
        found = classes(ClassPairs(margin, torch.zeros_like(margin.value), radius), None)
        for x in (torch.rand(200, 20, 2, generator=generator, dtype=torch.float64) * 2 - 1) * width:
            truth = torch.softmax(value + (slope @ x[..., None])[..., 0], -1)
            below, above = (s.value + (s.slope @ x[..., None])[..., 0] for s in (found.below, found.above))
            assert (torch.maximum(below, found.low) <= truth + 1e-12).all()
            assert (torch.minimum(-above, found.high) >= truth - 1e-12).all()
            if width == 0.0:
                assert torch.allclose(found.low, truth, atol=1e-9)
                assert torch.allclose(found.high, truth, atol=1e-9)


def test_the_log_excess_is_paid_in_full() -> None:
    margin = CentredForm(tensor(0.0, 1.0, -1.0, 0.0).reshape(1, 2, 2), torch.zeros(1, 2, 2, 1).double())
    excess = tensor(0.0, 0.3, 0.2, 0.0).reshape(1, 2, 2)
    found = classes(ClassPairs(margin, excess, torch.zeros(1, 1).double()), tensor(0.1, 0.4)[None])
    low, high = 1 / (1 + torch.exp(-tensor(1.0, -1.0) + tensor(0.3, 0.2))), torch.sigmoid(tensor(1.0, -1.0))
    assert torch.allclose(found.low[0], low, atol=1e-9)
    assert torch.allclose(found.high[0], torch.minimum(high * torch.exp(tensor(0.1, 0.4)), 1 - low.flip(0)), atol=1e-9)


def test_the_layer_cake_of_one_threshold() -> None:
    """At best, softmax >= 1 / (1 + 2 e^-t) off events of probability delta + p_1 + p_2."""
    failure, budgets, t = torch.ones(1, 1, 1, 2, 2, dtype=torch.float64), tensor(0.01), tensor(0.5, 2.0)
    failure[..., 0] = tensor(0.02, 0.03)
    assert float(_layer_cake(failure, t, budgets)) == pytest.approx(0.94 / (1 + 2 * np.exp(-0.5)), rel=1e-9)
    failure[..., 1] = tensor(0.2, 0.2)
    steps = 0.94 / (1 + 2 * np.exp(-0.5)), 0.59 * (1 / (1 + 2 * np.exp(-2.0)) - 1 / (1 + 2 * np.exp(-0.5)))
    assert float(_layer_cake(failure, t, budgets)) == pytest.approx(sum(steps), rel=1e-9)


def test_a_class_is_no_more_likely_than_another_one_lets_it() -> None:
    """P(f_i - f_j <= -1) <= .1 and P(.. <= 2) <= .4, each plus .01: these shares of the steps of 1 / (1 + e^t)."""
    failure, t = tensor(0.1, 0.4).reshape(1, 1, 1, 2), tensor(-1.0, 2.0)
    first, second = 1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(2.0))
    expected = second + (first - second) * 0.41 + (1 - first) * 0.11
    assert float(_above(failure, t, tensor(0.01))) == pytest.approx(expected, rel=1e-12)
    # a law that these bounds allow: f_i - f_j is far below -1, at -1 and at 2 with the probabilities .11, .3 and .59
    assert float(_above(failure, t, tensor(0.01))) >= 0.11 + 0.3 * first + 0.59 * second


def deep(*layers: tuple[float, float, float, float]) -> MomentsDeep:
    """A chain of single neurons; a layer: weight, bias and their deviations."""
    net = model([([[w]], [b]) for w, b, _, _ in layers], [([[v**2]], [u**2]) for *_, v, u in layers])
    chain = dense_chain(net.network, net.posterior, CPU)
    assert chain is not None
    return MomentsDeep.over(chain, Deadline())


def test_upper_moments_are_met_by_a_centred_neuron() -> None:
    """z = 1 for certain, then N(0, 4): E relu = 2 / sqrt(2 pi)."""
    one = tensor(1.0)[None]
    last = deep((1, 0, 0, 0), (0, 0, 2, 0), (1, 0, 0, 0)).hidden(one, one)[-1]
    assert 2 / ROOT <= float(last.high) <= 2 / ROOT * (1 + 1e-9)
    assert 2 / ROOT * (1 - 1e-9) <= float(last.low) <= 2 / ROOT


def test_the_variance_of_the_means_counts() -> None:
    """z = N(5, 1) almost, then z - 5 for certain: E relu = 1 / sqrt(2 pi), E relu^2 = 1/2."""
    zero = tensor(0.0)[None]
    last = deep((0, 5, 0, 1), (1, -5, 0, 0), (1, 0, 0, 0)).hidden(zero, zero)[-1]
    assert float(last.high) >= 1 / ROOT
    assert float(last.square) >= 0.5


def test_the_mean_deviation_is_below_the_root_of_the_mean_variance() -> None:
    """z = |N(0, 1)| cut at 0, then N(0, z^2): E relu = E z / sqrt(2 pi)."""
    zero = tensor(0.0)[None]
    last = deep((0, 0, 0, 1), (0, 0, 1, 0), (1, 0, 0, 0)).hidden(zero, zero)[-1]
    assert float(last.low) <= 1 / ROOT**2


def test_slopes_count_what_noise_in_the_weights_adds() -> None:
    """E relu(W z) = .3989 z for W ~ N(0, 1), whatever certain weights of 1 come after it."""
    two = deep((1, 0, 0, 1), (0, 0, 1, 0), (1, 0, 0, 0), (1, 0, 0, 0)).steep
    assert float(two[1][1]) >= 1 / (2 * np.pi)
    three = deep((1, 0, 0, 1), (0, 0, 1, 0), (1, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0)).steep
    assert float(three[2][2]) >= 1 / (2 * np.pi)


def test_the_mean_network_has_to_keep_what_noise_takes() -> None:
    """z = relu(N(0, .04)) takes .08 from a margin of .06, on average: the classes do not keep their order."""
    net = model(
        [(np.zeros((1, 21)), [0.0]), ([[-1.0], [0.0]], [0.06, 0.0])],
        [(np.zeros((1, 21)), [0.04]), ([[0.0], [0.0]], [0.0, 0.0])],
    )
    z = np.maximum(0.2 * np.linspace(-8, 8, 100_001), 0.0)
    p = np.exp(-(np.linspace(-8, 8, 100_001) ** 2) / 2)
    assert (p / (1 + np.exp(z - 0.06))).sum() / p.sum() < 0.499
    layers = dense_chain(net.network, net.posterior, CPU)
    assert layers is not None
    criterion = MeanNetwork(bounds_of(net, "softmax"), OneLayerSoftmax(layers))
    low = -torch.ones(1, 21, dtype=torch.float64)
    assert not bool(criterion.refuted(from_labels(low, -low, torch.tensor([0]), 2)).any())
    wide = replace(net, network=replace(net.network, tensors={**net.network.tensors, "b1": np.array([0.2, 0.0])}))
    layers = dense_chain(wide.network, wide.posterior, CPU)
    assert layers is not None
    criterion = MeanNetwork(bounds_of(wide, "softmax"), OneLayerSoftmax(layers))
    assert bool(criterion.refuted(from_labels(low, -low, torch.tensor([0]), 2)).all())


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 9])
def test_boxes_that_wait_when_time_is_up_count(calls: int) -> None:
    """The minimum of |x - .3| - 1, whose bound of a box is -1 there and 0 elsewhere: no box is lost."""
    left = [calls]

    def bound(item: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> Look:
        left[0] -= 1
        if left[0] < 0:
            raise OutOfTime
        value = torch.maximum(torch.maximum(low - 0.3, 0.3 - high), torch.zeros_like(low)) - 1
        return Look(value - (high - low), torch.ones_like(low)[:, None], low, high)

    start = tensor(-1)[None], tensor(1)[None], tensor(-9)[None]
    assert float(minimise(bound, None, *start, Effort(1e-3, 400), Deadline())) <= -1


@pytest.mark.parametrize(("kind", "width", "spread"), [("relu", 6, 0.6), ("tanh", 6, 0.6), ("relu", 1, 5.0)])
def test_slopes_of_a_row_lie_in_their_range(kind: str, width: int, spread: float) -> None:
    """Which a box may become a face for."""
    net = random_model(5, [2, width, 1], spread=spread, activation=kind)
    chain = dense_chain(net.network, net.posterior, CPU)
    assert chain is not None
    generator = torch.Generator().manual_seed(0)
    for radius in (0.01, 0.2, 1.0):
        center = torch.randn(40, 2, generator=generator, dtype=torch.float64)
        lower, upper = center - radius, center + radius
        size = torch.maximum(lower.abs(), upper.abs())
        hidden_layer, top = chain.layers
        rows = rows_over(hidden_layer, top, kind, 0.0, torch.ones(40, 1, dtype=torch.float64), None, size)
        relaxation = _relaxation(kind, hidden_layer, size)
        found = relaxation.bound(rows, lower, upper)
        for share in torch.rand(60, 40, 2, generator=generator, dtype=torch.float64):
            x = (lower + share * (upper - lower)).requires_grad_()
            value = relaxation.value(rows, x)
            (slope,) = torch.autograd.grad(value.sum(), x)
            assert (found.slope_low <= slope + 1e-10).all()
            assert (slope - 1e-10 <= found.slope_high).all()
            assert (found.value <= value + 1e-10).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_parabola_for_tanh_misses_by_what_it_says(sign: float) -> None:
    """Over wide boxes, where the cubics alone would not cover it."""
    line = DenseLayer.exact(tensor(1)[None], tensor(0), tensor(0)[None], tensor(0))
    center = torch.linspace(-4, 4, 161, dtype=torch.float64)[:, None]
    for radius in (0.5, 1.5, 3.0):
        lower, upper = center - radius, center + radius
        rows = rows_over(line, line, "tanh", 0.0, torch.full_like(center, sign), None, center.abs() + radius)
        relaxation = _relaxation("tanh", line, center.abs() + radius)
        assert isinstance(relaxation, TanhRows)
        fit = relaxation._fit(rows, center, torch.full_like(center, radius), lower, upper)
        d = radius * torch.linspace(-1, 1, 401, dtype=torch.float64)
        gap = sign * (fit.value + fit.slope * d + fit.curve * d**2 / 2 - torch.tanh(center + d))
        assert (gap <= fit.missed).all()


def test_what_lies_beyond_the_period_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """zeta = N(.5, 1), and a period so short that the triangle wave misses much of |zeta|."""
    monkeypatch.setattr(characteristic, "REACHES", (1.5,))
    none, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    sums = characteristic.Sums(none, none, none, none, 0.5 * one, one, 0.0 * one)
    low, high = characteristic.expected_relu(sums)
    truth = 0.5 * norm.cdf(0.5) + norm.pdf(0.5)
    assert low[0] <= truth - 1e-3
    assert truth <= high[0]


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.5])
def test_curvatures_of_tanh_over_a_box_lie_in_their_range(radius: float) -> None:
    line = DenseLayer.exact(tensor(1)[None], tensor(0), tensor(0)[None], tensor(0))
    center = torch.linspace(-4, 4, 161, dtype=torch.float64)[:, None]
    lower, upper = center - radius, center + radius
    rows = rows_over(line, line, "tanh", 0.0, torch.ones_like(center), None, center.abs() + radius)
    relaxation = _relaxation("tanh", line, center.abs() + radius)
    assert isinstance(relaxation, TanhRows)
    fit = relaxation._fit(rows, center, torch.full_like(center, radius), lower, upper)
    d = radius * torch.linspace(-1, 1, 401, dtype=torch.float64)
    t = torch.tanh(center + d)
    assert ((-2 * t * (1 - t * t) - fit.second).abs() <= fit.dev).all()
    assert ((1 - t * t - fit.slope - fit.curve * d).abs() <= fit.bent + 1e-12).all()


@pytest.mark.parametrize("s", [0.5, 1.0, 2.0, 4.0])
def test_the_rule_for_tanh_is_off_by_what_it_says_at_most(s: float) -> None:
    """Steps so wide that the error is seen."""
    fine = 0.001 * torch.arange(-12_000, 12_001, dtype=torch.float64)
    exact = Quadrature(0.001, fine, 0.001 * torch.exp(-(fine**2) / 2) / ROOT)
    m, deviation = torch.linspace(-3, 3, 101, dtype=torch.float64), torch.full((101,), s, dtype=torch.float64)
    for step in (0.5, 1.0, 1.5):
        nodes = step * torch.arange(-20, 21, dtype=torch.float64)
        rule = Quadrature(step, nodes, step * torch.exp(-(nodes**2) / 2) / ROOT)
        for found, truth, error in zip(
            rule.values(m, deviation), exact.values(m, deviation), rule.errors(deviation), strict=True
        ):
            assert ((found - truth).abs() <= error).all()


def test_a_blur_of_the_arguments_widens_the_bounds() -> None:
    none = matrix(0.0)
    for shift in (-0.1, 0.1):
        sums = characteristic.Sums(none, none, none, none, tensor(0.5 + shift), tensor(1.0), tensor(0.1))
        low, high = characteristic.expected_relu(sums)
        assert low[0] <= 0.5 * norm.cdf(0.5) + norm.pdf(0.5) <= high[0]


def interpolation(end: float, m: float, mu: float, noise: tuple[float, float], b: float) -> float:
    """One first-layer neuron N(m + mu x, v x^2 + q) over [-end, end], weighed by 1, and a bias of deviation b."""
    v, q = noise
    s, ends = matrix(math.sqrt(v * end**2 + q)), (tensor(-end), tensor(end))
    top = DenseLayer.exact(matrix(1.0), tensor(0.0), matrix(0.0), tensor(b))
    found = interpolation_errors(
        (matrix(m - mu * end), matrix(m + mu * end)), (s, s), matrix(1e-12), ends, matrix(mu), matrix(v), top
    )
    return float(found.item())


def test_interpolation_errors_that_are_met() -> None:
    # zeta = x + N(0, 1) where a = x + 10 is active for certain: a curvature of phi(0) at 0
    end = 0.05
    truth = end * norm.cdf(end) + norm.pdf(end) - end / 2 - norm.pdf(0)
    assert truth * (1 + 1e-6) <= interpolation(end, 10.0, 1.0, (0.0, 0.01), 1.0) * (1 + 1e-4) <= truth * 1.01
    # a = N(0, x^2 + q): E relu(a) = phi(0) sqrt(x^2 + q), which bends most at 0, in the middle of the segment
    for end, q in ((0.5, 0.1), (0.2, 0.04)):
        truth = norm.pdf(0) * (np.sqrt(end**2 + q) - np.sqrt(q))
        assert truth <= interpolation(end, 0.0, 0.0, (1.0, q), 1e9)


def test_a_star_pays_for_what_lies_off_its_axes() -> None:
    """-d_1 d_2 is 0 on the axes and -1 in a corner, with B(r) = 2."""
    flat, along = torch.zeros(1, 1, 5, dtype=torch.float64), torch.zeros(1, 1, 2, dtype=torch.float64)
    assert star_bound(flat, flat, along, matrix(2.0))[0].item() <= -1.0


def test_what_no_box_covers_costs_its_norm_times_the_root_of_its_mass() -> None:
    """A row that is 0 on the box of mass 3/4 and -4 off it: E = -1, and its norm is 2."""
    union = CentredUnion(tensor(0.75), tensor(0.75))
    found = float(on_union(torch.zeros(1, 1, 1, dtype=torch.float64), 1, 1, union, tensor(2.0)[None]))
    assert -1 - 1e-9 <= found <= -1


def test_a_negative_row_counts_with_the_largest_mass_of_its_boxes() -> None:
    union = CentredUnion(tensor(0.5), tensor(0.75))
    assert float(on_union(-torch.ones(1, 1, 1, dtype=torch.float64), 1, 1, union, tensor(0.0)[None])) <= -0.75


def test_curvature_is_that_of_the_smallest_deviation_of_the_box() -> None:
    """E relu(N(0, x^2 + .01)) over 0 <= x <= 1 bends by phi(0) / .1 at 0."""
    zero, one = matrix(0.0), matrix(1.0)
    first = DenseLayer.exact(zero, tensor(0.0), one, tensor(0.01))
    second = DenseLayer.exact(one, tensor(0.0), zero, tensor(1e18))
    assert curvature(first, second, zero, one, one, 1e-12 * one).item() >= norm.pdf(0) / 0.1 * (1 - 1e-9)


@pytest.mark.parametrize("transform", ["softmax", "identity"])
def test_weights_beyond_all_measure_are_left_to_boxes_and_cells(transform: str) -> None:
    net = model([([[1e13]], [0.0]), ([[1.0], [0.0]], [0.0, 0.0])], [([[1.0]], [0.0]), ([[0.1], [0.1]], [0.0, 0.0])])
    assert {one.name for one in expectation(net, transform).steps.rows} == {"centred boxes", "cells of weights"}
