"""P_safe from drawn networks: against the truth for all families, and where draws are slow, unknown or cut off."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from bnn_vnnlib import Model, Options, Verdict, verify, verify_batch
from bnn_vnnlib.batch_views import columns
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.files.sidecar import record
from bnn_vnnlib.files.vnncomp import results_text, standard_output
from bnn_vnnlib.martingale import exceeds, failing, lower_bounds
from bnn_vnnlib.methods.statistical import safety
from bnn_vnnlib.network import draws
from contract import zoo
from contract.truth import Truth
from fuzz.posterior_families import FAMILIES
from support.builders import model, properties
from support.clock import Clock

ASKED: dict[str, Any] = {"query": "probabilistic", "guarantee": "statistical"}


def threshold_model() -> Model:
    """y = x + w, w ~ N(0, 1)."""
    return model([([[1.0]], [0.0])], [([[0.0]], [1.0])])


def asked(p_safe: float, **options: Any) -> Any:
    """Of y >= t on [0, 1], with P_safe = Phi(t - 1)."""
    t = 1 + float(ndtri(p_safe))
    above = [(np.array([[-1.0]]), np.array([-t]), np.array([False]))]
    return verify_batch(threshold_model(), [[0.0]], [[1.0]], properties=above, **ASKED, **options)


@pytest.mark.parametrize(
    ("graph", "family"),
    [*(("two layers", family) for family in FAMILIES), ("attention", "mixture"), ("convolution", "samples")],
)
def test_intervals_hold_the_truth(graph: str, family: str) -> None:
    """Against all samples of the posterior, or thousands of drawn networks, at points and corners of the boxes."""
    case = zoo.probabilistic(graph, family, "narrow")
    found = verify_batch(
        case.model, case.lower, case.upper, properties=case.properties, draws=100, seed=1, goal="bounds",
        **ASKED,
    )  # fmt: skip
    assert not Truth(case).safety_evidence(found.lower, found.upper, found.points)
    assert found.draws is not None
    assert (found.draws[:, 0] == found.draws[:, 1:].sum(1)).all()
    assert (found.draws[:, 3] <= 0.05 * found.draws[:, 0] + 3).all()
    assert (found.upper - found.lower <= 0.6).all()


def test_the_closed_form_is_met_and_verdicts_follow() -> None:
    for p_safe in (0.02, 0.6, 0.99):
        found = asked(p_safe, draws=2000, seed=3, goal="bounds")
        assert found.lower[0] <= p_safe <= found.upper[0]
        assert found.upper[0] - found.lower[0] <= 0.15
        assert found.verdicts[0] is (Verdict.UNSAT if p_safe > 0.95 else Verdict.SAT)
    assert asked(0.99, seed=1).verdicts[0] is Verdict.UNSAT
    assert asked(0.5, seed=1).verdicts[0] is Verdict.SAT
    assert asked(0.95, seed=1, draws=200).verdicts[0] is Verdict.UNKNOWN


def test_a_run_stops_where_its_threshold_is_passed() -> None:
    quick, long = (asked(0.9999, seed=2, tau_safe=tau, tau_unsafe=0.5) for tau in (0.9, 0.99))
    assert quick.draws[0, 0] < long.draws[0, 0] < 3000
    assert quick.lower[0] >= 0.9
    counts = np.array([[quick.draws[0, 0] - quick.draws[0, 1], quick.draws[0, 1]]], dtype=np.int64)
    assert exceeds(counts, 0.9, failing(0.999999, 2)).all()
    assert quick.lower[0] <= max(0.9, float(lower_bounds(counts, failing(0.999999, 2))[0]))


def test_seeds_and_batches() -> None:
    """The same seed gives the same bounds, whatever other boxes are asked of; another one gives others."""
    one, same, other = (asked(0.7, seed=seed, draws=300, goal="bounds") for seed in (5, 5, 6))
    assert one.lower[0] == same.lower[0]
    assert one.draws[0, 1] != other.draws[0, 1]
    unseeded = {Options(guarantee="statistical").seeded.seed for _ in range(4)}
    assert len(unseeded) == 4
    assert Options().seeded.seed is None


def test_unknown_draws_count_against_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of all draws are not known: neither bound may profit from them."""
    whole = draws._normal

    def half(words: Any) -> Any:
        z, known = whole(words)
        return z, known & (torch.arange(len(known)) % 2 == 0)

    monkeypatch.setattr(draws, "_normal", half)
    found = asked(0.6, draws=1000, seed=3, goal="bounds")
    assert found.draws[0].tolist()[0] == 1000
    assert abs(found.draws[0, 3] - 500) <= 20
    assert found.lower[0] <= 0.3
    assert found.upper[0] >= 0.8


def test_slow_unsafe_draws_are_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is ever proved of draws that violate, as if the clock had struck: they still count."""
    monkeypatch.setattr(safety, "unsafe_items", lambda b, w, problem, x, usable: torch.zeros_like(usable))
    monkeypatch.setattr(safety, "branched", lambda bounds, weights, problem, found, share: found)
    found = asked(0.5, draws=600, seed=1, goal="bounds")
    assert found.draws[0, 0] == 600
    assert found.draws[0, 3] > 200
    assert found.lower[0] <= 0.5
    assert found.upper[0] == 1.0


def test_wherever_the_clock_strikes_the_bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, case = Clock(monkeypatch), zoo.probabilistic("two layers", "full", "narrow")
    truth, said = Truth(case), False
    for look in (0, 1, 3, 10, 60, 200):
        clock.stopped_at(look)
        found = verify_batch(case.model, case.lower, case.upper, properties=case.properties, seed=1, draws=100,
                             timeout=100.0, goal="bounds", **ASKED)  # fmt: skip
        assert not truth.safety_evidence(found.lower, found.upper, found.points)
        said |= bool((found.lower > 0).any())
    assert said


@pytest.mark.parametrize("p_safe", [0.5, 0.9, 0.99])
def test_coverage_of_whole_runs(p_safe: float) -> None:
    """60 runs with fresh draws that stop when they like: misses are as rare as the confidence 0.8 says."""
    runs, missed = 60, 0
    for seed in range(runs):
        found = asked(p_safe, seed=seed, confidence=0.8, draws=60, tau_safe=0.97, tau_unsafe=0.85)
        missed += not found.lower[0] <= p_safe <= found.upper[0]
    assert missed <= runs * 0.2 + 3 * np.sqrt(runs * 0.2 * 0.8)


def test_results_and_records_say_what_kind_of_answer_it_is() -> None:
    net = model([([[1.0]], [0.0])], [([[0.0]], [0.01])])
    for bound, verdict in ((3.0, Verdict.UNSAT), (0.5, Verdict.SAT)):
        prop = properties(net, [(0.0, 1.0)], [(0, [([-1.0], None, -bound, False)])])
        result = verify(net, prop, seed=4, confidence=0.999, **ASKED)
        assert result.verdict is verdict
        assert results_text(result, prop) == standard_output(result, prop) == "unknown\n"
        kept = json.loads(json.dumps(record(result, {}, seed=4, timeout=None)))
        assert (kept["verdict"], kept["guarantee"], kept["confidence"]) == (verdict.value, "statistical", 0.999)
        parts = kept["draws"]
        assert parts["counted"] == parts["safe"] + parts["violating"] + parts["open"] > 0
        assert parts["generator"] == draws.GENERATOR
        assert (result.witness is not None) == (verdict is Verdict.SAT)
    certain = verify(net, prop, query="probabilistic")
    assert record(certain, {}, seed=0, timeout=None)["guarantee"] == "certain"
    assert results_text(certain, prop).startswith("sat\n")


def test_what_needs_no_draw_is_certain() -> None:
    """A relu that must be below 0: excluded for all weights."""
    net = model([([[1.0]], [0.0])], [([[1.0]], [1.0])], end=["Relu"])
    prop = properties(net, [(0.0, 1.0)], [(0, [([1.0], None, -1.0, False)])])
    result = verify(net, prop, **ASKED)
    assert (result.verdict, result.guarantee) == (Verdict.UNSAT, "certain")
    assert results_text(result, prop) == "unsat\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"confidence": 0.99}, "add guarantee statistical"),
        ({"draws": 10}, "add guarantee statistical"),
        ({"guarantee": "statistical", "confidence": 1.0}, "neither of them"),
        ({"guarantee": "statistical", "confidence": 0.0}, "neither of them"),
        ({"guarantee": "statistical", "draws": 0}, "a positive whole number"),
        ({"guarantee": "statistical", "method": "tails"}, "leave out method"),
        ({"guarantee": "statistical", "query": "deterministic"}, "random weights"),
        ({"guarantee": "probable"}, "known are certain, statistical"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    above = [(np.array([[-1.0]]), np.array([0.0]), np.array([False]))]
    with pytest.raises(OptionError, match=words):
        verify_batch(threshold_model(), [[0.0]], [[1.0]], properties=above, **options)


def test_one_seed_serves_several_boxes_and_nested_ones_agree() -> None:
    """Larger boxes are safe under fewer draws, on the same draws."""
    net = zoo.model_of("two layers", "gaussian", "narrow")
    radii = np.array([0.0, 0.05, 0.2, 0.5])[:, None]
    x = np.full((4, 2), 0.3)
    found = verify_batch(net, x - radii, x + radii, labels=[0] * 4, draws=200, seed=9, goal="bounds",
                         **ASKED)  # fmt: skip
    assert (np.diff(found.draws[:, 2]) >= 0).all()
    assert (found.draws[:, 3] == 0).all()


def test_views_of_a_batch_never_say_proved() -> None:
    found, certain = asked(0.99, seed=1), asked_certain()
    told, other = found.summary(), certain.summary()
    assert "proved" in other
    assert "statistical" not in other
    assert "proved" not in told
    assert "each input by itself, with confidence 0.999999" in told
    assert "certified share" not in told
    assert "confidence" in columns(found)
    assert "confidence" not in columns(certain)


def asked_certain() -> Any:
    above = [(np.array([[-1.0]]), np.array([-5.0]), np.array([False]))]
    return verify_batch(threshold_model(), [[0.0]], [[1.0]], properties=above, query="probabilistic")
