"""Tail bounds: what is computed is rounded outward."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bnn_vnnlib.bounds.block import Block
from bnn_vnnlib.bounds.tails.noise import Uses, _add_use
from bnn_vnnlib.bounds.tails.tail import MarginSplit, Martingale, Normal, Swing, Tail
from bnn_vnnlib.bounds.weights import ParamBox
from bnn_vnnlib.gaussian.normal import quantile
from bnn_vnnlib.network import evaluate
from bnn_vnnlib.network.nodes import Linear
from support.networks import Builder, dense_network
from support.tails import (
    failures,
    tensor,
)


def test_failure_is_never_below_the_normal_probability() -> None:
    rng = np.random.default_rng(10)
    gaps = np.concatenate([rng.uniform(0, 5, 200), rng.uniform(5, 37, 200), [1e-300, 1e-12, 37.4, 38.4, 39.0, 100.0]])
    spreads = np.exp(rng.uniform(-30, 30, len(gaps)))
    offsets = rng.normal(size=len(gaps)) * spreads
    mean, threshold, spread = tensor(offsets + gaps * spreads), tensor(offsets), tensor(spreads)
    found = Tail((Normal(mean, spread),)).failure(threshold)
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
    assert Tail((Normal(tensor(mean), tensor(spread)),)).failure(tensor(threshold)).item() == expected


def test_deviations_are_rounded_up() -> None:
    asked = np.concatenate([10.0 ** -np.arange(0.0, 320.0, 1.7), [0.5, 0.4999, 1.0, 1e-300, 5e-324]])
    with mpmath.workdps(50):
        for probability, z in zip(asked.tolist(), quantile(tensor(asked)).tolist(), strict=True):
            assert z > 0
            assert mpmath.ncdf(-mpmath.mpf(z)) <= mpmath.mpf(probability)
            assert mpmath.ncdf(-mpmath.mpf(z)) >= mpmath.mpf(min(probability, 0.5)) * (1 - 1e-6)
    assert quantile(tensor([0.0])).tolist() == [math.inf]


def test_quantiles_are_rounded_down() -> None:
    rng = np.random.default_rng(12)
    mean, spread, z = (tensor(rng.normal(size=300) * scale) for scale in (1e3, 1.0, 5.0))
    spread, z = spread.abs(), z.abs()
    found = Normal(mean, spread).quantile({1: z})
    for m, s, d, value in zip(mean.tolist(), spread.tolist(), z.tolist(), found.tolist(), strict=True):
        assert mpmath.mpf(value) <= mpmath.mpf(m) - mpmath.mpf(d) * mpmath.mpf(s)
    ends = Normal(tensor([1.0, -math.inf, math.nan, 1.0]), tensor([0.0, 1.0, 1.0, math.inf]))
    ends = ends.quantile({1: tensor(math.inf)})
    assert (ends == -math.inf).all()


@pytest.mark.parametrize("budget", [1e-300, 5e-324, 0.0])
def test_tiny_budgets(budget: float) -> None:
    """Ranges become wide or infinite: a valid probability, never below the one of a deterministic violation."""
    network = dense_network([2, 3, 1])
    sd = {name: np.full(value.shape, 0.01) for name, value in network.tensors.items()}
    x = np.array([0.1, 0.2])
    y = evaluate.evaluate(network, tensor(x)).item()
    found = failures(network, sd, (x, x), np.ones((2, 1)), [y + 0.1, y - 0.001], (budget,))[0, 0]
    assert found[0] > 0.999
    assert 0.4 < found[1] <= 1.0


def test_infinite_numbers_prove_nothing() -> None:
    network = dense_network([2, 3, 1])
    sd = {name: np.full(value.shape, 1e150) for name, value in network.tensors.items()}
    found = failures(network, sd, ([-1e200, 0.0], [1e200, 1e300]), [[1.0]], [-1.0])
    assert found.item() == 1.0


def test_martingales_add_up_what_they_lose() -> None:
    """2 Phi(-gap / L), or with the swings 2 Phi(-gap / L(z)) + events Phi(-z) for some z: never below the best z."""
    rng = np.random.default_rng(13)
    for _ in range(20):
        square, other, root, slope = (float(np.exp(rng.normal())) for _ in range(4))
        mean, t = float(rng.normal() * 10), float(rng.normal() * 3)
        swings = (Swing(tensor(root), tensor(slope)), None)
        one = Martingale(tensor(mean), (tensor(square), tensor(other)), swings)
        found = mpmath.mpf(one.failure(tensor(t)).item())
        gap = mpmath.mpf(mean) - mpmath.mpf(t)
        if gap <= 0:
            assert found >= 1
            continue
        best = 2 * mpmath.ncdf(-gap / mpmath.sqrt(square + other))
        for z in np.linspace(0.01, 39, 600):
            part = min(square, (root + z * slope) ** 2)
            best = min(best, 2 * mpmath.ncdf(-gap / mpmath.sqrt(part + other)) + mpmath.ncdf(-z))
        assert best * mpmath.mpf("0.9") <= found <= max(best * 4, mpmath.mpf("1e-300"))
        levels = {k: quantile(tensor(1e-3 / k)) for k in (1, 2, 4, 8)}
        assert one.failure(one.quantile(levels)).item() <= 1e-3 * (1 + 1e-6)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_stopped_motions_against_quadrature(share: float) -> None:
    """P(B_a <= u, or B falls to u during [a, b]) by integrating over B_a; plus the folded part."""
    b = 2.0
    a = share * b
    for u in (-9.0, -3.0, -0.5, 0.0, 0.4, 2.0, 5.0):
        split = MarginSplit(tensor(-u), tensor(0.0), tensor(a), tensor(b), torch.tensor(False))
        found = Tail((), split).failure(tensor(0.0)).item()
        exact = _stopped_probability(u, a, b)
        assert exact * (1 - 1e-9) <= found <= exact + 1e-7 * (share == 1) + 1e-10
        folded = MarginSplit(tensor(-u), tensor(0.3), tensor(a), tensor(b), torch.tensor(False))
        assert Tail((), folded).failure(tensor(0.0)).item() >= exact
    fixed = MarginSplit(tensor(1.0), tensor(0.0), tensor(b), tensor(b), torch.tensor(True))
    for t in (-1.0, 0.0, 3.0):
        exact = float(mpmath.ncdf((t - 1) / mpmath.sqrt(b)))
        assert Tail((), fixed).failure(tensor(t)).item() == pytest.approx(exact, rel=1e-10)


def test_a_variance_that_is_known_up_to_roundings() -> None:
    """Phi(u / sqrt(v)) for the v that serves u worst: the least one above the mean, the largest one below."""
    for u in (-2.0, -0.1, 0.1, 2.0):
        for least, most in ((1.0, 1.0), (0.5, 2.0), (0.0, 2.0)):
            split = MarginSplit(tensor(-u), tensor(0.0), tensor(least), tensor(most), torch.tensor(True))
            found = Tail((), split).failure(tensor(0.0)).item()
            for v in (max(least, 1e-6), most):
                assert found >= float(mpmath.ncdf(u / mpmath.sqrt(v))) * (1 - 1e-12)


def test_the_folded_part_fails_too() -> None:
    """With hardly any other noise the folded part alone takes the row below 0: Q - E Q may be as wide as L' N."""
    for mean in (0.6, 1.0, 2.5):
        split = MarginSplit(tensor(mean), tensor(1.0), tensor(1e-12), tensor(1e-12), torch.tensor(False))
        assert Tail((), split).failure(tensor(0.0)).item() >= float(mpmath.ncdf(-mean))


@pytest.mark.parametrize("small", [0, 1])
def test_no_sure_noise_out_of_underflow(small: int) -> None:
    """sum a^2 sigma^2 h^2 from below, where one of a^2 and sigma^2 underflows and h^2 would bring it back."""
    size = [1.0, 1.0]
    size[small] = 1e-170
    network = dense_network((2, 2))
    (node,) = (node for node in network.nodes if isinstance(node, Linear))
    ones = torch.ones(1, 2, 2, dtype=torch.float64)
    box = ParamBox(ones, size[0] * ones, None)
    uses = Uses(node, box, Block(size[1] * torch.ones(1, 1, 1, 1, 2, dtype=torch.float64)), None, (1, 2))
    h = torch.full((1, 1, 1, 2), 1e150, dtype=torch.float64)
    assert uses.once
    assert float(uses.least(h, torch.zeros_like(h))) <= 4e-40
    exact = 4.0 * 1e-3**2
    rows = Block(torch.ones(1, 1, 1, 1, 2, dtype=torch.float64))
    large = Uses(node, ParamBox(ones, 1e-3 * ones, None), rows, None, (1, 2))
    assert float(large.least(torch.ones_like(h), torch.zeros_like(h))) == pytest.approx(exact, rel=1e-12)


def test_a_square_that_underflows_meets_a_large_variance() -> None:
    """One weight that is used twice: sigma^2 (2 a h)^2 = 4e-24, where (2 a h)^2 = 4e-326."""
    make = Builder(0)
    node = make.nodes[make.linear(make.input(2, 1), (1, 1))]
    assert isinstance(node, Linear)

    def full(value: float, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=torch.float64)

    box = ParamBox(full(0.0, 1, 1, 1), full(1e151, 1, 1, 1), None)
    uses = Uses(node, box, Block(full(1e-82, 1, 1, 1, 2, 1)), None, (2, 1))
    found: dict[str, Tensor] = {}
    (most,) = uses.most([(full(1e-81, 1, 1, 2, 1), full(0.0, 1, 1, 2, 1))])
    _add_use(found, node.weight, most, uses.terms)
    assert float(found[node.weight.source]) >= 4e-24 * (1 - 1e-9)


def test_every_swing_may_fail() -> None:
    """Three swings and no other noise than theirs: 2 Phi(-gap / L(z)) + 3 Phi(-z) at the best z."""
    swing = Swing(tensor(0.1), tensor(1.0))
    for gap in (6.0, 12.0, 20.0):
        one = Martingale(tensor(gap), (tensor(100.0),) * 3, (swing,) * 3)
        z = np.linspace(0.01, 39, 4000)
        best = (2 * stats.norm.sf(gap / (np.sqrt(3) * (0.1 + z))) + 3 * stats.norm.sf(z)).min()
        assert one.failure(tensor(0.0)).item() >= min(best, 2 * stats.norm.sf(gap / math.sqrt(300))) * 0.999
        levels = {k: quantile(tensor(1e-3 / k)) for k in (1, 2, 4, 8)}
        found = gap - one.quantile(levels).item()
        lost = (2 * stats.norm.sf(found / (np.sqrt(3) * (0.1 + z))) + 3 * stats.norm.sf(z)).min()
        assert min(lost, 2 * stats.norm.sf(found / math.sqrt(300))) <= 1e-3


def _stopped_probability(u: float, a: float, b: float) -> float:
    if a == 0:
        return 1.0 if u >= 0 else float(2 * mpmath.ncdf(u / mpmath.sqrt(b)))
    if a == b:
        return float(mpmath.ncdf(u / mpmath.sqrt(a)))

    def later(y: mpmath.mpf) -> mpmath.mpf:
        density = mpmath.npdf(y, 0, mpmath.sqrt(a))
        return density * 2 * mpmath.ncdf((u - y) / mpmath.sqrt(b - a))

    return float(mpmath.ncdf(u / mpmath.sqrt(a)) + mpmath.quad(later, [u, u + 1, u + 4, u + 30]))
