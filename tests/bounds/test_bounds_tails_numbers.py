"""Tail bounds: what is computed is rounded outward."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from bnn_vnnlib.bounds.tails import deviations_of
from bnn_vnnlib.bounds.tails.tail import Normal, Tail
from bnn_vnnlib.model import evaluate
from support.networks import dense_network
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
        for probability, z in zip(asked.tolist(), deviations_of(asked).tolist(), strict=True):
            assert z > 0
            assert mpmath.ncdf(-mpmath.mpf(z)) <= mpmath.mpf(probability)
            assert mpmath.ncdf(-mpmath.mpf(z)) >= mpmath.mpf(min(probability, 0.5)) * (1 - 1e-6)
    assert deviations_of(np.array([0.0])).tolist() == [math.inf]


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
