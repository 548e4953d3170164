"""The fuzzer itself: a few cases with fixed seeds, and proof that it finds what is wrong."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch

from bnn_vnnlib import Verdict
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.splitting.branch import Decided
from fuzz import campaign as campaigns
from fuzz import outcomes
from fuzz.campaign import Campaign, judged, read_spec
from fuzz.checks import Violation, judged_deterministic, run_case
from fuzz.judge import Court
from fuzz.known import judge_known, random_known
from fuzz.ladder import LARGER, TINY, chance, seen
from fuzz.large_variance import Case, cases, judge
from fuzz.models import make_model
from fuzz.mutants import MUTANTS
from fuzz.outcomes import Outcome
from fuzz.posterior_families import FAMILIES
from fuzz.proofs import proof_evidence
from fuzz.questions import make_question
from fuzz.specs import Spec, random_spec, simpler
from fuzz.tally import Tally, of_probability
from fuzz.tiny import judge_tiny

SECONDS = 0.15
EASY = Spec(3, inputs=2, outputs=2, width=4, depth=1, spread=0.3, radius=0.3, quantile=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_random_cases(seed):
    assert run_case(random_spec(seed), variants=2, seconds=SECONDS) == []


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_tiny_networks_against_exact_numbers(first):
    assert [text for seed in range(first, first + 10) for text in judge_tiny(seed)] == []


def test_networks_of_every_family_whose_truth_is_known():
    """And more than half of what is looked at could have been found wrong."""
    tally = Tally()
    assert [text for seed in range(24) for text in judge_known(seed, tally)] == []
    assert tally.share() > 0.5
    assert {family for family, *_ in tally.counts} == set(FAMILIES)


@pytest.mark.parametrize("seed", range(12))
def test_known_truths_are_those_of_sampled_networks(seed):
    """The judge judged: closed forms against networks drawn, whatever the verifier says."""
    known = random_known(seed)
    if known.family != "samples" and known.truth is not None:
        count = 10_000
        broken = known.broken(count, 3)
        assert min(chance(broken, count, 1 - float(known.truth), side) for side in (True, False)) > 1e-6
    mean, spread = known.means(known.lower[None], 10_000, 5, classes=False)
    for output in range(2):
        truth = known.decision(known.lower, np.eye(2)[output])
        if truth is not None:
            assert abs(float(truth) - mean[0, output]) <= 6 * spread[0, output] / 10_000**0.5 + 1e-9


def test_least_margins_are_those_of_a_grid():
    """Over a box of one input, by kinks and crossings, against 2,001 points of it."""
    compared = 0
    for seed in range(60):
        known = random_known(seed)
        if known.place < 0 or known.family == "samples":
            continue
        params, compared = known.params(20, 1), compared + 1
        least = known.least(params)
        x = known.lower + np.linspace(0, 1, 2001)[:, None] * (known.upper - known.lower)
        sources = {n: torch.as_tensor(v) for n, v in params.items() if len(v) > 1}
        y = evaluate(known.network, torch.as_tensor(x)[None], sources).numpy()
        grid = np.min([(y @ a.T - b).max(-1).min(-1) for a, b, _ in known.cases], 0)
        assert (least <= grid + 1e-9).all()
        assert np.allclose(least, grid, atol=0.02 * float(np.ptp(y)) + 1e-9)
    assert compared > 10


def test_what_the_rounds_see():
    """Errors of a claim that is nearly certain; a claim that holds passes."""
    assert seen(TINY, 1e-3) < 1.2e-3
    assert seen(TINY, 1e-6) < 2e-4
    assert seen(LARGER, 1e-3) < 5e-3
    rng = np.random.default_rng(0)

    def event(count, seed):
        return int(rng.binomial(count, 0.01))

    assert all(TINY.contradicts(event, 0.01, more=more) is None for more in (True, False) for _ in range(200))
    assert TINY.contradicts(event, 0.006, more=True) is not None
    assert TINY.contradicts(event, 0.015, more=False) is not None


def test_bounds_that_say_nothing_are_not_counted_as_informative():
    assert of_probability(0.0, 1.0, 0.97) == [("lower", "vacuous"), ("upper", "vacuous")]
    assert of_probability(0.95, 0.99, 0.97) == [("lower", "informative"), ("upper", "informative")]
    assert of_probability(0.5, 0.99, 0.97)[0] == ("lower", "loose")
    assert of_probability(0.99, 1.0, 1.0) == [("lower", "no stake"), ("upper", "vacuous")]


@pytest.mark.parametrize(("name", "seed"), [("E|N|", 8), ("mixture: equal weights", 7), ("wrong side", 2)])
def test_mutants_are_noticed(name, seed):
    """Some of them, by a case that is known to tell; all others by `python -m fuzz.mutants`."""
    assert judge_known(seed) == []
    with MUTANTS[name].applied():
        assert judge_known(seed) != []


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_follow_the_code(name):
    """Their text is there, and the engine is as it was afterwards."""
    mutant = MUTANTS[name]
    before = mutant.target.__code__
    with mutant.applied():
        assert mutant.target.__code__ is not before
    assert mutant.target.__code__ is before


def test_wide_posteriors_against_sampled_networks():
    assert [name for name, case in cases(0, 2, [1, 2, 3]) if judge(case, 20_000)[1]] == []


@pytest.mark.parametrize("hidden", [1, 3])
def test_bounds_of_wide_posteriors_that_are_too_low_are_found(monkeypatch, hidden):
    (_, case), *_ = cases(0, 1, [hidden])
    right = case.failure()
    monkeypatch.setattr(Case, "failure", lambda _: right / 100)
    assert judge(case, 20_000)[1]


def test_cases_are_reproducible():
    spec = random_spec(12)
    assert spec == random_spec(12)
    one, two = make_model(spec), make_model(spec)
    assert one.onnx_bytes == two.onnx_bytes
    signature = one.network.signature
    assert make_question(spec, one).text(signature, 2) == make_question(spec, two).text(signature, 2)


def test_simpler_cases_are_simpler():
    for seed in range(40):
        spec = random_spec(seed)
        assert all(one != spec for one in simpler(spec))
    assert list(simpler(Spec(0))) == []


def broken(monkeypatch, change):
    """`verify` and `verify_batch` with their bounds changed."""
    for name in ("call_verify", "call_batch"):
        right = getattr(outcomes, name)

        def wrong(*args, _right=right, **options):
            found = _right(*args, **options)
            return None if found is None else change(found)

        monkeypatch.setattr(f"fuzz.checks.{name}", wrong)


def test_lower_bounds_that_are_too_high_are_found(monkeypatch):
    def change(found):
        lower = np.full(1, 0.999)
        return outcomes.Outcome(found.name, lower, np.ones(1), found.verdict)

    broken(monkeypatch, change)
    assert any(v.check.startswith("lower bound") for v in run_case(EASY, 0, SECONDS))


def test_upper_bounds_that_are_too_low_are_found(monkeypatch):
    def change(found):
        return outcomes.Outcome(found.name, np.zeros(1), np.minimum(found.upper, 0.3), found.verdict, found.point)

    broken(monkeypatch, change)
    assert any(v.check.startswith("upper bound") for v in run_case(EASY, 0, SECONDS))


def test_a_wrong_union_of_boxes_is_found(monkeypatch):
    """The union taken as the sum of the masses (no overlaps), for boxes around samples of one weight."""
    monkeypatch.setattr(
        weight_sets.ScatteredUnion,
        "union_lower",
        lambda self, member: (member * self.single_upper).sum(-1).clamp(max=1.0),
    )  # fmt: skip
    found = []
    for seed in range(3, 60, 4):
        found += judge_tiny(seed)
    assert any("union" in text for text in found)


@pytest.mark.parametrize(("query", "likelihood"), [("decision", "gaussian"), ("decision", "categorical")])
def test_decisions_that_are_too_narrow_are_found(monkeypatch, query, likelihood):
    def change(found):
        middle = (found.lower + found.upper) / 2
        away = middle + 10 * (found.upper - found.lower + 1)
        return outcomes.Outcome(found.name, away, away, found.verdict)

    broken(monkeypatch, change)
    spec = Spec(5, inputs=1, outputs=2, width=3, depth=1, query=query, likelihood=likelihood, quantile=0.5)
    assert any(v.check.startswith("decision") for v in run_case(spec, 0, SECONDS))


def test_failures_are_written_and_run_again(tmp_path, monkeypatch):
    def wrong(spec, variants, seconds, tally):
        return [Violation("lower bound x", "made up")] if spec.width > 1 and spec.depth > 0 else []

    monkeypatch.setattr(campaigns, "run_case", wrong)
    seed = next(s for s in range(100) if random_spec(s).width > 2 and random_spec(s).depth > 1)
    run = Campaign(tmp_path, seed)
    assert list(run.run(time.monotonic() + 60, most=1)) == [seed]
    assert run.failures == [seed]
    folder = tmp_path / f"seed-{seed}"
    spec = read_spec(folder / "case.json")
    assert (spec.depth, spec.width, spec.graph, spec.boxes) == (1, 2, "dense", 1)
    assert judged(spec, 0, None) != []
    assert {path.name for path in folder.iterdir()} == {"case.json", "model.onnx", "property.vnnlib"}
    assert json.loads((folder / "case.json").read_text())["original"]["seed"] == seed


def test_a_campaign_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(campaigns, "run_case", lambda spec, variants, seconds, tally: [])
    assert list(Campaign(tmp_path, 5).run(time.monotonic() + 60, most=3)) == [5, 6, 7]
    again = Campaign(tmp_path, 5)
    assert (again.next, again.cases) == (8, 3)
    assert list(again.run(time.monotonic() + 60, most=2)) == [8, 9]


def test_a_crash_is_a_violation(monkeypatch):
    def crash(spec, variants, seconds, tally):
        raise RuntimeError("torch says no")

    monkeypatch.setattr(campaigns, "run_case", crash)
    (found,) = judged(EASY, 0, None)
    assert found.check == "crash"
    assert "torch says no" in found.evidence


def test_wrong_proofs_are_found(monkeypatch):
    def believe(self):
        shape = self._open.shape
        return Decided(
            torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool), torch.zeros(*shape, 2)
        )

    spec = Spec(3, inputs=2, outputs=1, width=4, depth=1, query="deterministic", radius=0.5, quantile=0.9)
    net = make_model(spec)
    court = Court(net, make_question(spec, net), "identity", 3)
    assert proof_evidence(court, np.random.default_rng(0)) is None
    monkeypatch.setattr("fuzz.proofs.Branching.run", believe)
    assert "safe" in proof_evidence(court, np.random.default_rng(0))


def test_a_deterministic_sat_is_judged_by_the_file_as_it_runs(monkeypatch):
    """Its point has to be near V in real arithmetic, or in V for onnxruntime."""
    spec = Spec(3, inputs=2, outputs=1, width=4, depth=1, query="deterministic", radius=0.5, quantile=0.9)
    net = make_model(spec)
    court = Court(net, make_question(spec, net), "identity", 3)
    x, y = court.attacked({})
    away = court.distance(x.numpy(), y)[0]
    far, near = (x[0, index].numpy() for index in (away.argmax(), away.argmin()))
    assert away.min() < 0 < away.max()
    np.testing.assert_allclose(court.replayed(far), y[0, away.argmax()], rtol=1e-4)

    def judge(point):
        return list(judged_deterministic(court, [Outcome("base", np.zeros(1), np.zeros(1), Verdict.SAT, point)]))

    assert not judge(near)
    assert "away from V" in judge(far)[0].evidence
    monkeypatch.setattr(Court, "replayed", lambda court, point: y[0, away.argmin()])
    assert not judge(far)
