"""The law of Y of one neuron over a box by quadrature, level by level: tails, inversion, envelopes from both sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special

from bnn_vnnlib.methods.safety.large_variance import law as module
from bnn_vnnlib.methods.safety.large_variance import lines as hidden
from bnn_vnnlib.methods.safety.large_variance import output_layer
from bnn_vnnlib.methods.safety.large_variance.law import Terms
from bnn_vnnlib.methods.safety.large_variance.lines import LEVEL_SHARES
from bnn_vnnlib.network.dense_chain import DenseLayer
from support.large_variance import in_numpy

GAUSS = np.polynomial.legendre.leggauss(60)
NOISE = 0.4

neurons, lines, last_weights = map(in_numpy, (hidden.neurons, hidden.lines, output_layer.last_weights))
terms, below = map(in_numpy, (module.terms, module.below))
envelope, far_below = map(in_numpy, (module.envelope, module.far_below))

CASES = [(0.0, 0.3, -1.0, 0.2), (0.5, 0.7, -0.3, 0.6), (0.0, 0.5, 0.8, 0.3)]
"""m, s of zeta; mean and deviation of D. Over +-1 ranges are 2.8 and, seldom, 6.2: much wider than s."""


def law(m: float, s: float, cuts: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of N(m, s^2), exact for what is smooth between the cuts."""
    edges = np.unique(np.clip([m - 8 * s, *cuts, m + 8 * s], m - 8 * s, m + 8 * s))
    low, high = edges[:-1, None], edges[1:, None]
    x = (high + low) / 2 + (high - low) / 2 * GAUSS[0]
    weight = (high - low) / 2 * GAUSS[1] * np.exp(-(((x - m) / s) ** 2) / 2) / (s * np.sqrt(2 * np.pi))
    return x.ravel(), weight.ravel()


def of(
    case: tuple[float, float, float, float], eps: float = 1.0, noise: float = NOISE
) -> tuple[Terms, np.ndarray, np.ndarray]:
    """Terms over +-eps around 0 of one input with V ~ N(1, 1); X at all nodes and levels, and the weights of these."""
    m, s, mu, d = case
    parts = (((1.0,),), (m,), ((1.0,),), (s**2,)), (((mu,),), (2.0,), ((d**2,),), (noise**2,))
    first, last = (DenseLayer.exact(*(torch.tensor(part, dtype=torch.float64) for part in side)) for side in parts)
    layer = neurons(first, np.full((1, 1), -eps), np.full((1, 1), eps))
    weights, _, _ = last_weights(last, np.ones((1, 1)), np.zeros(1))
    drawn = lines(layer, weights)
    found = terms(layer, weights, drawn, 0.5 / drawn.scale)
    ramp, reach, levels = layer.ramp[0, 0], layer.reach[0, 0], layer.levels[0, 0][:, None, None]
    (zeta, inner), (out, outer) = law(m, s, [-reach, -ramp, 0.0, ramp, reach]), law(mu, d, [0.0])
    out = out[:, None]
    a = np.where(out > 0, (zeta > 0) * 1.0, np.clip((zeta + ramp) / (2 * ramp), 0, 1))
    bend = np.minimum(levels, ramp) * np.minimum(a, 1 - a)
    bend = bend + (np.abs(zeta) < reach) * np.maximum(levels - ramp, 0.0) * np.maximum(a, 1 - a)
    p = np.where(out > 0, np.maximum(zeta, 0.0), np.maximum(zeta, 0.0) + bend)
    x = out * p - drawn.tilt[0, 0] * a * out - found.k[0, 0] * (a * out) ** 2
    return found, x, np.array(LEVEL_SHARES)[:, None, None] * outer[:, None] * inner


def exact(found: Terms, x: np.ndarray, weight: np.ndarray, target: float) -> float:
    """P(Y <= target)."""
    gap = target + found.lines.constant[0] - found.weights.bias[0] - x
    return float((weight * special.ndtr(gap / found.weights.bias_dev[0])).sum())


@pytest.mark.parametrize("case", CASES)
def test_laws_of_one_neuron_from_both_sides(case: tuple[float, float, float, float]) -> None:
    found, x, weight = of(case, 0.1, 0.8)
    spread = found.lines.spread
    for times in (-2.0, -1.0, 0.0, 1.0, 2.0):
        target = found.lines.center + times * spread
        truth = exact(found, x, weight, float(target[0]))
        value = below(found, target[:, None])[0, 0]
        assert truth <= value + 1e-9
        assert value <= 1.05 * truth + 1e-3


@pytest.mark.parametrize("case", [*CASES, (0.0, 0.02, -1.0, 0.02), (3.0, 0.02, 1.0, 0.02)])
def test_far_tails_of_one_neuron(case: tuple[float, float, float, float]) -> None:
    """The last two hardly vary but for their level: half the usual range, and with it a seldom one, are what counts."""
    found, x, weight = of(case, noise=NOISE if case in CASES else 0.02)
    spread = found.lines.spread
    for target in [
        *(found.lines.center - times * spread for times in (0.5, 1.0, 2.0, 4.0, 6.0, 9.0)),
        *quantiles(found, x),
    ]:
        for scale in (spread, np.full(1, 0.05)):
            truth, value = exact(found, x, weight, float(target[0])), float(far_below(found, target, scale)[0])
            assert truth <= value + 1e-8


def quantiles(found: Terms, x: np.ndarray) -> list[np.ndarray]:
    """Targets all over what Y takes at its nodes."""
    shift = found.weights.bias - found.lines.constant
    return [shift + place + 0.03 for place in np.linspace(x.min(), x.max(), 30)]


@pytest.mark.parametrize("less", ["rest", "errors", "errors above", "far"])
def test_what_the_inversion_leaves_out_is_paid_for(less: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short series, coarse rules, and a period that ends within the law, so that each payment is needed."""
    coarse = {"errors": (6, (1.5, 0.3, -0.8, 0.3)), "errors above": (4, (0.0, 0.3, 1.5, 0.2))}
    count, case = coarse.get(less, (0, (0.5, 0.7, -0.3, 0.6)))
    if less == "rest":
        monkeypatch.setattr(module, "BLOCKS", 1)
        monkeypatch.setattr(module, "BLOCK", 2)
    if less in coarse:
        monkeypatch.setattr(module, "_RULES", {count: np.polynomial.legendre.leggauss(count)})
        monkeypatch.setattr(module, "FINER", ((1, count),))
        monkeypatch.setattr(module, "OUTER", 1)
        monkeypatch.setattr(module, "INNER", 1)
    if less == "far":
        monkeypatch.setattr(module, "_DEVIATIONS", -0.5)
    found, x, weight = of(case, 0.1, 0.5)
    nearest = 1.0
    for times in np.linspace(-2.5, 1.0, 36):
        target = found.lines.center + times * found.lines.spread
        truth, value = exact(found, x, weight, float(target[0])), below(found, target[:, None])[0, 0]
        assert truth <= value + 1e-9
        nearest = min(nearest, value - truth)
    assert nearest < 0.5


def test_the_envelope_of_one_side() -> None:
    """Where nearly attained: D is nearly certain, and zeta is cut at its mean."""
    found, _, _ = of((0.0, 1.0, 1.0, 1e-4), noise=0.0)
    waves = np.linspace(0.2, 6.0, 40)[None]
    x, weight = law(0.0, 1.0, [0.0])
    rest = 1 - found.sides[0].mass[0, 0] / 2
    side = np.abs((weight * (x > 0)) @ np.exp(1j * waves * x[:, None]))
    claimed = envelope(found, waves)[0] - rest
    assert (side <= claimed + 1e-9).all()
    assert (claimed < 2 * side + 0.02).all()
