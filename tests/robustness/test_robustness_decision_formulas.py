"""The formulas behind bounds on the decision, one by one, where they are met exactly: nothing may be taken off them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from robustness_builders import model

from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.robustness.classification.by_tails import _layer_cake
from bnn_vnnlib.robustness.classification.hidden import hidden
from bnn_vnnlib.robustness.classification.layers import Dense, one_layer
from bnn_vnnlib.robustness.classification.lines import Lines
from bnn_vnnlib.robustness.classification.noise import log_excess
from bnn_vnnlib.robustness.classification.one_layer import OneLayerSoftmax
from bnn_vnnlib.robustness.classification.softmax import Pairs, classes
from bnn_vnnlib.robustness.regression.chain import chain_of
from bnn_vnnlib.robustness.regression.moments_deep import MomentsDeep

CPU = torch.device("cpu")
ROOT = float(np.sqrt(2 * np.pi))


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def log_excess_of(a: float, square: float, m: float, s: float) -> float:
    """log E exp(U z) - E U z by the rectangle rule, U ~ N(a, square), z = relu(N(m, s^2))."""
    t = np.linspace(-14, 14, 200_001)
    z, p = np.maximum(m + s * t, 0.0), np.exp(-(t**2) / 2) / ROOT * (t[1] - t[0])
    return float(np.log((np.exp(a * z + square * z**2 / 2) * p).sum()) - a * (z * p).sum())


def one_neuron(m: float, s: float) -> Dense:
    return Dense(torch.zeros(1, 1).double(), tensor(m), torch.zeros(1, 1).double(), tensor(s * s))


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
    layers = one_layer(net.network, net.posterior, CPU)
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
        margin = Lines(value[:, :, None] - value[:, None], slope[:, :, None] - slope[:, None])
        radius = torch.full((20, 2), width, dtype=torch.float64)
        found = classes(Pairs(margin, torch.zeros_like(margin.value), radius), None)
        for x in (torch.rand(200, 20, 2, generator=generator, dtype=torch.float64) * 2 - 1) * width:
            truth = torch.softmax(value + (slope @ x[..., None])[..., 0], -1)
            below, above = (s.value + (s.slope @ x[..., None])[..., 0] for s in (found.below, found.above))
            assert (torch.maximum(below, found.low) <= truth + 1e-12).all()
            assert (torch.minimum(-above, found.high) >= truth - 1e-12).all()
            if width == 0.0:
                assert torch.allclose(found.low, truth, atol=1e-9)
                assert torch.allclose(found.high, truth, atol=1e-9)


def test_the_log_excess_is_paid_in_full() -> None:
    margin = Lines(tensor(0.0, 1.0, -1.0, 0.0).reshape(1, 2, 2), torch.zeros(1, 2, 2, 1).double())
    excess = tensor(0.0, 0.3, 0.2, 0.0).reshape(1, 2, 2)
    found = classes(Pairs(margin, excess, torch.zeros(1, 1).double()), tensor(0.1, 0.4)[None])
    low, high = 1 / (1 + torch.exp(-tensor(1.0, -1.0) + tensor(0.3, 0.2))), torch.sigmoid(tensor(1.0, -1.0))
    assert torch.allclose(found.low[0], low, atol=1e-9)
    assert torch.allclose(found.high[0], torch.minimum(high * torch.exp(tensor(0.1, 0.4)), 1 - low.flip(0)), atol=1e-9)


def test_the_layer_cake_of_one_threshold() -> None:
    """At best, softmax >= 1 / (1 + 2 e^-t) off events of probability delta + p_1 + p_2."""
    failure, budgets, t = torch.ones(1, 1, 2, 2, dtype=torch.float64), tensor(0.01), tensor(0.5, 2.0)
    failure[..., 0] = tensor(0.02, 0.03)
    assert float(_layer_cake(failure, t, budgets)) == pytest.approx(0.94 / (1 + 2 * np.exp(-0.5)), rel=1e-9)
    failure[..., 1] = tensor(0.2, 0.2)
    steps = 0.94 / (1 + 2 * np.exp(-0.5)), 0.59 * (1 / (1 + 2 * np.exp(-2.0)) - 1 / (1 + 2 * np.exp(-0.5)))
    assert float(_layer_cake(failure, t, budgets)) == pytest.approx(sum(steps), rel=1e-9)


def deep(*layers: tuple[float, float, float, float]) -> MomentsDeep:
    """A chain of single neurons; a layer: weight, bias and their deviations."""
    net = model([([[w]], [b]) for w, b, _, _ in layers], [([[v**2]], [u**2]) for *_, v, u in layers])
    chain = chain_of(net.network, net.posterior, CPU)
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
