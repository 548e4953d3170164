"""The decision from drawn networks: against the truth for all families, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, special

from bnn_vnnlib import Verdict, verify, verify_batch
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.files.sidecar import record
from bnn_vnnlib.methods.statistical import decision
from bnn_vnnlib.network import draws
from contract import zoo
from contract.truth import Truth
from fuzz.posterior_families import FAMILIES
from support.builders import model, properties
from support.clock import Clock

ASKED: dict[str, Any] = {"query": "decision", "guarantee": "statistical"}


def bounded(case: zoo.Case, **options: Any) -> Any:
    return verify_batch(
        case.model, case.lower, case.upper, properties=case.properties, **{**case.options, **ASKED, **options}
    )


@pytest.mark.parametrize(
    ("family", "likelihood", "rule"),
    [
        *((family, "categorical", "mean") for family in FAMILIES),
        *((family, "gaussian", "median") for family in ("gaussian", "full", "samples")),
        ("gaussian", "gaussian", "quantile:0.2"), ("mixture", "gaussian", "quantile:0.9"),
        ("gaussian", "bernoulli", "mean"), ("kron", "bernoulli", "mean"),
    ],
)  # fmt: skip
def test_bounds_hold_the_truth(family: str, likelihood: str, rule: str) -> None:
    graph = "two layers" if rule == "mean" else "one output"
    case = zoo.decision(graph, family, "wide", likelihood, rule=rule)
    found = bounded(case, draws=400, seed=1)
    low, high = (
        np.concatenate([row[:, :1], side], 1)
        for row, side in ((found.row_lower, found.lower), (found.row_upper, found.upper))
    )
    assert not Truth(case).decision_evidence(low, high)
    assert np.isfinite(low).all() if rule == "mean" else np.isfinite(low).mean() > 0.9
    for item, verdict in enumerate(found.verdicts):
        if np.isfinite(found.points[item]).all() and verdict is not Verdict.UNKNOWN:
            excess, error = Truth(case).decided(item, found.points[item])
            assert excess + error > 0 if verdict is Verdict.UNSAT else excess - error <= 0


def logistic(mean: float, deviation: float) -> float:
    """E sigmoid(N(mean, deviation^2))."""
    return float(integrate.quad(
        lambda z: special.expit(mean + deviation * z) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi), -12, 12,
    )[0])  # fmt: skip


def test_expected_probabilities_of_one_number() -> None:
    """sigmoid(w x + b) on [0.5, 1]: the least of the means lies at an end."""
    net = model([([[1.0]], [0.2])], [([[0.5]], [0.3])], likelihood="bernoulli")
    ends = [logistic(x + 0.2, np.sqrt(0.5 * x * x + 0.3)) for x in (0.5, 1.0)]
    for bound, verdict in ((min(ends) - 0.1, Verdict.UNSAT), (max(ends) + 0.1, Verdict.SAT)):
        below = [(np.array([[1.0]]), np.array([bound]), np.array([False]))]
        found = verify_batch(net, [[0.5]], [[1.0]], properties=below, seed=2, draws=4000, **ASKED)
        assert found.verdicts[0] is verdict
        assert found.lower[0, 0] <= min(ends)
        assert found.upper[0, 0] >= max(ends)
        assert found.row_lower[0, 0] <= min(ends)
    free = verify_batch(net, [[0.5]], [[1.0]], seed=2, draws=2000, **ASKED)
    assert min(ends) - 0.12 <= free.lower[0, 0] <= min(ends)
    assert max(ends) <= free.upper[0, 0] <= max(ends) + 0.12


@pytest.mark.parametrize("level", [0.05, 0.5, 0.9])
def test_quantiles_of_a_line(level: float) -> None:
    """x + N(0, 1) on [0, 1], and its negative by a row of its own: which side of the law each bound is about."""
    net, truth = model([([[1.0]], [0.0])], [([[0.0]], [1.0])], likelihood="gaussian"), float(special.ndtri(level))
    rule = f"quantile:{level}"
    found = verify_batch(net, [[0.0]], [[1.0]], seed=1, draws=3000, confidence=0.999, **ASKED, rule=rule)
    assert truth - 0.4 <= found.lower[0, 0] <= truth
    assert truth + 1 <= found.upper[0, 0] <= truth + 1.4
    for sign, bound, verdict in (
        (1.0, truth - 0.5, Verdict.UNSAT), (1.0, truth + 1.5, Verdict.SAT),
        (-1.0, -truth - 1.5, Verdict.UNSAT), (-1.0, -truth + 0.5, Verdict.SAT),
    ):  # fmt: skip
        below = [(np.array([[sign]]), np.array([bound]), np.array([False]))]
        asked = verify_batch(net, [[0.0]], [[1.0]], properties=below, seed=2, draws=3000, **ASKED, rule=rule)
        assert asked.verdicts[0] is verdict


@pytest.mark.parametrize("rule", ["mean", "median", "quantile:0.2"])
def test_coverage_at_a_low_confidence(rule: str) -> None:
    """60 runs: each side fails as rarely as it may."""
    if rule == "mean":
        net, truth = model([([[1.0]], [0.2])], [([[0.5]], [0.3])], likelihood="bernoulli"), logistic(1.2, np.sqrt(0.8))
    else:
        net = model([([[1.0]], [0.2])], [([[0.5]], [0.3])], likelihood="gaussian")
        truth = 1.2 + np.sqrt(0.8) * float(special.ndtri({"median": 0.5}.get(rule, 0.2)))
    runs, below, above = 60, 0, 0
    for seed in range(runs):
        found = verify_batch(net, [[1.0]], [[1.0]], seed=seed, draws=30, confidence=0.6, rule=rule, **ASKED)
        below += found.lower[0, 0] > truth
        above += found.upper[0, 0] < truth
    limit = runs * 0.2 + 3 * np.sqrt(runs * 0.16)
    assert below <= limit
    assert above <= limit


def test_negative_numbers_and_unknown_draws_count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with g.x and both signs; a third of all draws is not known, and says nothing of either side."""
    whole = draws._normal
    monkeypatch.setattr(draws, "_normal", lambda w: (whole(w)[0], torch.arange(len(w)) % 3 != 0))
    net = model([([[1.0], [-1.0]], [0.0, 0.5])], [([[0.5], [0.5]], [0.1, 0.1])], likelihood="categorical")
    prop = properties(net, [(0.4, 0.6)], [(0, [([1.0, -1.0], [-2.0], -3.0, False)])])
    result = verify(net, prop, draws=900, seed=1, outputs="probabilities", **ASKED)
    assert result.statistics is not None
    assert abs(result.statistics.open - 300) <= 30
    assert result.decision is not None
    lower, upper = result.decision.row_lower[0], result.decision.row_upper[0]
    with pytest.MonkeyPatch.context() as undone:
        undone.setattr(draws, "_normal", whole)
        inner = verify(net, prop, draws=900, seed=1, outputs="probabilities", **ASKED).decision
        assert inner is not None
        assert lower < inner.row_lower[0] < inner.row_upper[0] < upper


def test_the_best_of_many_points_is_no_violation() -> None:
    """Fair coins at a million points would all show tails at one: the point is chosen before the counted draws."""
    net = model([([[1.0]], [0.0])], [([[1.0]], [1.0])], likelihood="bernoulli")
    below = [(np.array([[1.0]]), np.array([0.5]), np.array([True]))]
    seen = {str(verify_batch(net, [[-1e-9]], [[1.0]], properties=below, seed=seed, draws=200, confidence=0.9,
                             **ASKED).verdicts[0]) for seed in range(12)}  # fmt: skip
    assert seen <= {"unknown", "sat"}
    chosen = decision._PILOT
    assert chosen < 200


def test_wherever_the_clock_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, case = Clock(monkeypatch), zoo.decision("two layers", "full", "narrow", "categorical")
    truth = Truth(case)
    for look in (0, 2, 6, 20, 60):
        clock.stopped_at(look)
        found = bounded(case, draws=60, seed=1, timeout=100.0)
        low, high = (
            np.concatenate([row[:, :1], side], 1)
            for row, side in ((found.row_lower, found.lower), (found.row_upper, found.upper))
        )
        assert not truth.decision_evidence(low, high)


def test_means_of_unbounded_outputs_are_refused_and_bounded_ones_are_not() -> None:
    layers, spread = [([[1.0]], [0.2]), ([[1.0]], [0.1])], [([[0.5]], [0.3]), ([[0.1]], [0.1])]
    net = model(layers, spread, likelihood="gaussian")
    below = [(np.array([[1.0]]), np.array([0.0]), np.array([False]))]
    with pytest.raises(UnsupportedError, match="without a certain range cannot be bounded from draws alone"):
        verify_batch(net, [[0.5]], [[1.0]], properties=below, **ASKED)
    with pytest.raises(UnsupportedError, match="cannot be bounded from draws alone"):
        verify_batch(net, [[0.5]], [[1.0]], **ASKED)
    ends = model(layers, spread, likelihood="gaussian", end=["Tanh"])
    found = verify_batch(ends, [[0.5]], [[1.0]], properties=below, draws=500, seed=1, **ASKED)
    assert -1 < found.lower[0, 0] < found.upper[0, 0] < 1
    two = model([([[1.0], [2.0]], [0.0, 0.1])], [([[0.5], [0.5]], [0.3, 0.3])], likelihood="gaussian")
    with pytest.raises(UnsupportedError, match="one output at a time"):
        verify_batch(two, [[0.5]], [[1.0]], properties=[(np.array([[1.0, -1.0]]), np.zeros(1), np.array([False]))],
                     rule="median", **ASKED)  # fmt: skip


def test_the_record_of_a_decision() -> None:
    net = model([([[1.0]], [0.2])], [([[0.5]], [0.3])], likelihood="bernoulli")
    prop = properties(net, [(0.5, 1.0)], [(0, [([1.0], None, 0.95, False)])])
    result = verify(net, prop, seed=3, outputs="probabilities", **ASKED)
    assert result.verdict is Verdict.SAT
    assert result.witness is not None
    assert "with confidence" in result.witness.shows
    kept = record(result, {}, seed=3, timeout=None)
    assert kept["guarantee"] == "statistical"
    assert kept["draws"]["safe"] is None
    assert kept["draws"]["counted"] > 0
