"""One case: every public way to bound it, attacked, and compared with the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from bnn_vnnlib import Model, Verdict
from fuzz.decisions import Decisions
from fuzz.judge import CLEAR, Court
from fuzz.models import from_network, make_network, make_posterior
from fuzz.outcomes import Outcome, call_batch, call_verify
from fuzz.proofs import proof_evidence
from fuzz.questions import make_question, transform_of
from fuzz.specs import Spec
from fuzz.tally import Tally, of_probability
from fuzz.variants import CHANGES, Ask, halves, make_variant

ROUND = 1e-12
"""Relative error of the sums made here out of several bounds."""

PROOFS = 0.3
"""Share of the cases whose mean network is put to branch and bound alone."""


@dataclass(frozen=True)
class Violation:
    """A claim that does not hold: which check found it, and the evidence."""

    check: str
    evidence: str


def run_case(
    spec: Spec, variants: int = 4, seconds: float | None = None, tally: Tally | None = None
) -> list[Violation]:
    """All violations of one case.

    variants : of the question, chosen at random; seconds : time limit of each call (None: none); tally : counts how
    much the bounds say
    """
    network = make_network(spec)
    posterior = make_posterior(spec, network)
    model = from_network(network, posterior, spec)
    limit = {} if seconds is None else {"timeout": seconds}
    ask = Ask(network, posterior, make_question(spec, model), options=limit)
    court = Court(model, ask.question, transform_of(spec, model), spec.seed)
    rng = spec.stream("variants")
    return list(_violations(spec, model, ask, court, rng, variants, tally or Tally()))


def _violations(
    spec: Spec, model: Model, ask: Ask, court: Court, rng: np.random.Generator, variants: int, tally: Tally
) -> Iterator[Violation]:
    base = _ask(spec, ask)
    if base is None:
        tally.add(spec.family, spec.query, "auto", [("both", "vacuous")])  # refused by name
        return
    known = [base]
    same = [
        call_batch(spec, model, ask.question, "batch", **ask.options),
        call_batch(spec, model, ask.question, "beside", beside=True, **ask.options),
    ]
    if len(ask.question.parts) == 1 and len({len(case) for case in ask.question.parts[0].cases}) == 1:
        known += [outcome for outcome in same if outcome is not None and outcome.lower.shape == base.lower.shape]
    for index in rng.permutation(len(CHANGES))[:variants]:
        variant = make_variant(CHANGES[index], ask, spec, rng)
        found = None if variant is None else _ask(spec, variant)
        if variant is None or found is None:
            continue
        if spec.query == "decision" and not variant.rows_kept:
            continue
        if variant.posterior is not ask.posterior:
            found = replace(found, violating=[])  # numbers of other samples
        if found.lower.shape != base.lower.shape:
            continue  # rows that say nothing are dropped by the reader, and rows cannot be told apart
        if variant.sense == "same" and variant.question is ask.question:
            known.append(found)
        yield from _compare(base, found, variant.sense)
    for outcome in known[1:]:
        yield from _compare(base, outcome, "same")
    if spec.query != "decision":
        yield from _pieces(spec, ask, base, rng)
    yield from _attacked(spec, court, known, tally)
    if spec.query != "decision" and rng.random() < PROOFS:
        evidence = proof_evidence(court, rng)
        if evidence is not None:
            yield Violation("proof", evidence)


def _ask(spec: Spec, ask: Ask) -> Outcome | None:
    model = from_network(ask.network, ask.posterior, spec)
    property = ask.question.read(model.network.signature, ask.version)
    found = call_verify(spec, model, property, ask.name, **ask.options)
    if found is None or spec.query != "deterministic" or found.verdict is not Verdict.SAT or found.point is None:
        return found
    # a replay in onnxruntime rounds: only what holds in real arithmetic may be compared
    court = Court(model, ask.question, transform_of(spec, model), spec.seed)
    exactly = court.transform == "identity" and court.violates_exactly(found.point, {}, 0)
    return replace(found, upper=np.zeros(1)) if exactly else found


def _compare(base: Outcome, other: Outcome, sense: str) -> Iterator[Violation]:
    """Bounds on quantities with a known relation; "safer": that of the other is at least that of the base."""
    name = f"{base.name} / {other.name}"
    decision = base.outputs is not None  # D(x) itself does not depend on what is asked of it
    below = (base.lower > other.upper).any() and (decision or sense != "riskier")
    above = (other.lower > base.upper).any() and (decision or sense != "safer")
    if below or above:
        pair = [[*map(list, (o.lower, o.upper))] for o in (base, other)]
        yield Violation(f"relation {name}", f"{sense}: {pair[0]} against {pair[1]}")
    contrary = {base.verdict, other.verdict} == {Verdict.SAT, Verdict.UNSAT}
    allowed = (sense == "safer" and other.verdict is Verdict.UNSAT) or (
        sense == "riskier" and other.verdict is Verdict.SAT
    )
    if contrary and not allowed and (decision or base.upper[0] <= 0 or other.upper[0] <= 0):
        yield Violation(f"verdicts {name}", f"{sense}: {base.verdict} against {other.verdict}")
    if base.outputs is not None and other.outputs is not None and base.outputs.shape == other.outputs.shape:
        moved = other.name in ("outputs_moved", "outputs_scaled")
        apart = np.maximum(base.outputs[0], other.outputs[0]) > np.minimum(base.outputs[1], other.outputs[1])
        if apart.any() and not moved:
            yield Violation(f"outputs {name}", f"{base.outputs.tolist()} against {other.outputs.tolist()}")


def _pieces(spec: Spec, ask: Ask, base: Outcome, rng: np.random.Generator) -> Iterator[Violation]:
    """T cut in two: P(T) <= min P(T_i), and P(T) >= 1 - sum (1 - P(T_i))."""
    first, *rest = ask.question.parts
    found = []
    for half in halves(first, rng):
        piece = replace(ask, question=replace(ask.question, parts=(half, *rest)), name="half")
        outcome = _ask(spec, piece)
        if outcome is None:
            return
        yield from _compare(base, outcome, "safer")
        found.append(outcome)
    least = 1 - sum(1 - float(outcome.lower[0]) for outcome in found)
    if float(base.upper[0]) < least - ROUND:
        yield Violation("two halves", f"P(T) <= {base.upper[0]!r}, halves give >= {least!r}")


def _attacked(spec: Spec, court: Court, known: list[Outcome], tally: Tally) -> Iterator[Violation]:
    if spec.query == "decision":
        decisions = Decisions(court)
        for outcome in known:
            tally.add(spec.family, spec.query, outcome.method, decisions.kinds(outcome))
            evidence = decisions.evidence(outcome)
            if evidence is not None:
                yield Violation(f"decision {outcome.name}", evidence)
        return
    if spec.query == "deterministic":
        decided = {Verdict.SAT: "informative", Verdict.UNSAT: "informative"}
        for outcome in known:
            tally.add(spec.family, spec.query, outcome.method, [("verdict", decided.get(outcome.verdict, "vacuous"))])
        yield from judged_deterministic(court, known)
        return
    for outcome in known:
        sides = of_probability(float(outcome.lower[0]), float(outcome.upper[0]), court.estimate)
        tally.add(spec.family, spec.query, outcome.method, sides)
    best = max(known, key=lambda outcome: float(outcome.lower[0]))
    evidence = court.refuted_lower(float(best.lower[0]))
    if evidence is not None:
        yield Violation(f"lower bound {best.name}", evidence)
    for outcome in known:
        if outcome.point is not None and np.isfinite(outcome.point).all():
            evidence = court.refuted_upper(float(outcome.upper[0]), outcome.point)
        else:
            evidence = court.samples_above(outcome.violating) or court.suspect_upper(float(outcome.upper[0]))
        if evidence is not None:
            yield Violation(f"upper bound {outcome.name}", evidence)
        right = {Verdict.UNSAT: outcome.lower[0] >= 0.95, Verdict.SAT: outcome.upper[0] < 0.95}
        if not right.get(outcome.verdict, True):
            yield Violation("verdict", f"{outcome.verdict} with [{outcome.lower[0]}, {outcome.upper[0]}]")


def judged_deterministic(court: Court, known: list[Outcome]) -> Iterator[Violation]:
    for outcome in known:
        if outcome.verdict is Verdict.UNSAT:
            x, y = court.attacked({}, strength=2)
            if (court.distance(x.numpy(), y) < -CLEAR).any() and court.confirmed({}, x, y) == 1:
                yield Violation(f"deterministic {outcome.name}", "unsat, and an attack violates")
        if outcome.verdict is Verdict.SAT and outcome.point is not None:
            x = torch.as_tensor(outcome.point)[None, None]
            away = float(court.distance(x.numpy(), court.outputs(x, None))[0, 0])
            # rounding in float32 may decide, as in the sine of a large number; the verdict is about the file as it runs
            if away > CLEAR and court.distance(outcome.point, court.replayed(outcome.point)) > CLEAR:
                yield Violation(f"deterministic {outcome.name}", f"sat, and its point is {away} away from V")
