"""The fuzzer itself: a few cases with fixed seeds, and proof that it finds what is wrong."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch

from bnn_vnnlib import Verdict
from bnn_vnnlib.robustness import mass
from bnn_vnnlib.robustness.branch import Decided
from fuzz import campaign as campaigns
from fuzz import outcomes
from fuzz.campaign import Campaign, judged, read_spec
from fuzz.checks import Violation, judged_deterministic, run_case
from fuzz.judge import Court
from fuzz.models import make_model
from fuzz.outcomes import Outcome
from fuzz.proofs import proof_evidence
from fuzz.questions import make_question
from fuzz.specs import Spec, random_spec, simpler
from fuzz.tiny import judge_tiny
from fuzz.wide import Case, cases, judge

SECONDS = 0.15
EASY = Spec(3, inputs=2, outputs=2, width=4, depth=1, spread=0.3, radius=0.3, quantile=0.2)


@pytest.mark.parametrize("seed", range(12))
def test_random_cases(seed):
    assert run_case(random_spec(seed), variants=2, seconds=SECONDS) == []


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_tiny_networks_against_exact_numbers(first):
    assert [text for seed in range(first, first + 20) for text in judge_tiny(seed)] == []


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
        mass.ScatteredUnion, "union_lower", lambda self, member: (member * self.single_upper).sum(-1).clamp(max=1.0)
    )
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
    def wrong(spec, variants, seconds):
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
    monkeypatch.setattr(campaigns, "run_case", lambda spec, variants, seconds: [])
    assert list(Campaign(tmp_path, 5).run(time.monotonic() + 60, most=3)) == [5, 6, 7]
    again = Campaign(tmp_path, 5)
    assert (again.next, again.cases) == (8, 3)
    assert list(again.run(time.monotonic() + 60, most=2)) == [8, 9]


def test_a_crash_is_a_violation(monkeypatch):
    def crash(spec, variants, seconds):
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

    spec = Spec(3, inputs=2, outputs=1, width=4, depth=1, query="deterministic", radius=0.5, quantile=0.2)
    net = make_model(spec)
    court = Court(net, make_question(spec, net), "identity", 3)
    assert proof_evidence(court, np.random.default_rng(0)) is None
    monkeypatch.setattr("fuzz.proofs.Branching.run", believe)
    assert "safe" in proof_evidence(court, np.random.default_rng(0))


def test_a_deterministic_sat_is_judged_by_the_file_as_it_runs(monkeypatch):
    """Its point has to be near V in real arithmetic, or in V for onnxruntime."""
    spec = Spec(3, inputs=2, outputs=1, width=4, depth=1, query="deterministic", radius=0.5, quantile=0.2)
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
