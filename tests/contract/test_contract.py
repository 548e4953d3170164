"""Every registered method, on one zoo: no bound is wrong, and enough of them say something.

A method that is registered is met here without a line more, but for its floor in `FLOORS`. The table of informative
bounds is part of the output (`-s`, or of a failure). `MISTAKES` are what the zoo has to notice.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from bnn_vnnlib import Verdict, verify_batch
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.errors import SoundnessError
from bnn_vnnlib.methods import decision
from bnn_vnnlib.methods.safety.portfolio import METHODS
from bnn_vnnlib.methods.safety.safety import CASELESS, DRAWN, NAMES, NONE, Goal, SafetyBounds, SafetyTask
from bnn_vnnlib.model import Mixture
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import from_cases
from bnn_vnnlib.result import Rule
from bnn_vnnlib.system.clock import Deadline
from contract import zoo
from contract.truth import Truth
from fuzz.mutants import MUTANTS
from fuzz.outcomes import processor_time
from support.blocks import BLOCKS

WAYS: tuple[dict[str, Any], ...] = ({}, {"means": "boxes"}, {"means": "boxes", "margin": 2.5}, {"boxes": "sampled"})
"""Options of a task of P_safe: which methods are asked for."""

SECONDS, LONGER = 0.6, 1.2
"""Processor time of one call, in which refinement may end anywhere; of mixtures, and of norms and attention. A machine
that takes twice as long meets the floors too."""

NEWS = 0.05
"""P_safe, or what is missing from it, below which a bound cannot say much."""

CLOSE = 2.5
"""Standard deviations of a row between the decision and a bound that says something."""

PORTFOLIO = "all together"

FLOORS = {
    "weight samples": 0.9, "components of a mixture": 0.5, "boxes around samples": 0.02, "tails": 0.6,
    "centred boxes": 0.08, "large variance": 0.25, "cells of weights": 0.45, "last layer": 0.5,
    PORTFOLIO: 0.6,
}  # fmt: skip
"""Least share of informative bounds on P_safe, both sides together, of what there is to say."""

DECISION_FLOORS = {
    "usual": {
        "components": 0.4, "boxes or samples of weights": 0.3, "softmax of weight samples": 0.9,
        "softmax of one layer": 0.9, "softmax by exponential moments": 0.9, "softmax by tails": 0.9,
        "Gaussian logits": 0.9, "softmax by P_safe": 0.02, "expectation by tails": 0.9,
        "expectation of one layer": 0.9, "expectation by moments": 0.9, "expectation of two layers": 0.9,
        "medians by weights": 0.2, "medians of one layer": 0.25, "medians by tails": 0.2, "expectation by cells": 0.9,
        "medians by cells": 0.7, PORTFOLIO: 0.8,
    },
    "few": {"expectation by cells": 0.9, PORTFOLIO: 0.3},
    "blocks": {"expectation by tails": 0.5, "softmax by tails": 0.45, PORTFOLIO: 0.35},
}  # fmt: skip
"""Least share of informative bounds on the decision: of usual networks, of those with few random weights whose
deviations are large, where bounds are asked for, and of those with norms or attention."""


@cache
def truths(decision: bool) -> tuple[Truth, ...]:
    """Of all cases of a query."""
    return tuple(Truth(case) for case in zoo.cases() if (case.options.get("query") == "decision") is decision)


def limit_of(case: zoo.Case) -> float:
    """Seconds of one call."""
    return LONGER if isinstance(case.posterior, Mixture) or _kind(case) == "blocks" else SECONDS


def told(truth: Truth, lower: np.ndarray, upper: np.ndarray) -> Counter[str]:
    """How many bounds on P_safe there are to give, and how many say at least half of what could be said."""
    safe = truth.safe
    asked = np.array([safe > NEWS, 1 - safe > NEWS])
    said = np.array([lower >= safe / 2, 1 - upper >= (1 - safe) / 2])
    return Counter(asked=int(asked.sum()), told=int((asked & said).sum()))


def methods_of(truth: Truth) -> Iterator[tuple[str, SafetyBounds]]:
    """The bounds of every method that serves, each alone, and by name."""
    case, posterior = truth.case, truth.case.posterior
    problem = from_cases(*map(zoo.tensor, (case.lower, case.upper)), case.properties, case.outputs)
    dear = isinstance(posterior, Mixture)
    for way in WAYS[:1] if dear or problem.lower.shape[1] > 8 else WAYS:
        for method in METHODS:
            with processor_time():
                deadline = Deadline(time.monotonic() + limit_of(case))
                bounds = OutputBounds(Engine(case.model.network, "linear", deadline), "identity")
                attack = Attack(steps=20, restarts=2, deadline=deadline)
                task = SafetyTask(bounds, posterior, problem, attack, deadline, Goal(0.95, 0.95), **way)
                if method.serves(task) is None:
                    yield method.name, method.bounds(task, None)


def judged_safety(truth: Truth, tallies: dict[str, Counter[str]]) -> list[str]:
    """What speaks against the bounds on P_safe of each method, and of all together; into `tallies` what they say."""
    evidence = []
    for name, found in methods_of(truth):
        lower, upper, point = (part.numpy() for part in (found.lower, found.upper, found.point))
        tallies[name] += told(truth, lower, upper)
        evidence += [f"{name}: {what}" for what in truth.safety_evidence(lower, upper, point)]
        sides = zip(found.methods, (lower > 0, upper < 1), strict=True)
        evidence += [f"{name}: bounds by {by}" for by, news in sides if set(np.array(by)[news]) - {name}]
    with processor_time():
        case = truth.case
        found = verify_batch(case.model, case.lower, case.upper, properties=case.properties, timeout=limit_of(case))
    tallies[PORTFOLIO] += told(truth, found.lower, found.upper)
    evidence += truth.safety_evidence(found.lower, found.upper, found.points)
    assert found.lower_by is not None
    assert found.upper_by is not None
    evidence += [f"item {i}: by nobody" for i in np.flatnonzero((found.lower > 0) != (found.lower_by != NONE))]
    evidence += [f"item {i}: by nobody" for i in np.flatnonzero((found.upper < 1) != (found.upper_by != NONE))]
    right = {Verdict.UNSAT: found.lower >= 0.95, Verdict.SAT: found.upper < 0.95}
    evidence += [f"item {i}: {v}" for i, v in enumerate(found.verdicts) if v in right and not right[v][i]]
    return [f"{case.name}, {what}" for what in evidence]


def judged_decision(truth: Truth, tallies: dict[str, Counter[str]], **options: Any) -> list[str]:
    """The same of the decision."""
    case = truth.case
    evidence = []
    for name, lower, upper in rows_of(truth):
        evidence += [f"{name}: {what}" for what in truth.decision_evidence(lower, upper)]
        close = np.array(truth.gaps(lower, upper)) <= CLOSE
        tallies[name] += Counter(asked=close.size, told=int(close.sum()))
    with processor_time():
        found = verify_batch(
            case.model, case.lower, case.upper, properties=case.properties,
            **{"timeout": limit_of(case), **case.options, **options},
        )  # fmt: skip
    assert found.row_lower is not None
    assert found.row_upper is not None
    lower = np.concatenate([found.row_lower[:, :1], found.lower], 1)
    upper = np.concatenate([found.row_upper[:, :1], found.upper], 1)
    assert found.lower_by is not None
    evidence += [f"item {i}: by nobody" for i in np.flatnonzero(np.isfinite(lower).any(1) & (found.lower_by == NONE))]
    close = np.array(truth.gaps(lower, upper)) <= CLOSE
    tallies[PORTFOLIO] += Counter(asked=close.size, told=int(close.sum()))
    evidence += [*truth.decision_evidence(lower, upper), *_wrong_verdicts(truth, found.verdicts, found.points)]
    return [f"{case.name}, {what}" for what in evidence]


def rows_of(truth: Truth) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Bounds (N, 1 + m) on row 0 and the outputs by each method that serves, the best of its steps, and its name."""
    case = truth.case
    low, high = zoo.tensor(case.lower), zoo.tensor(case.upper)
    unit = np.eye(case.outputs)
    rows = zoo.tensor(np.stack([np.concatenate([cases[0][0], unit]) for cases in case.properties]))
    for method in decision.METHODS:
        with processor_time():
            deadline = Deadline(time.monotonic() + limit_of(case))
            bounds = OutputBounds(Engine(case.model.network, "linear", deadline), case.transform)
            rule = Rule(case.options.get("rule", Rule.MEAN))
            task = decision.DecisionTask(bounds, case.posterior, torch.device("cpu"), rule)
            if method.serves(task) is not None:
                continue
            steps = method.bounds(task)
            if steps.longest:  # without a limit one pass; with one all the time that there is
                steps = method.bounds(replace(task, bounds=replace(bounds, engine=Engine(case.model.network))))
            every = (*steps.rows, *steps.longest)
            sides = [one.lower(low, high, sign * rows) for one in every for sign in (1, -1)]
        lower, upper = (torch.stack(sides[start::2]).amax(0).numpy() for start in (0, 1))
        yield method.name, lower, -upper


def _wrong_verdicts(truth: Truth, verdicts: np.ndarray, points: np.ndarray) -> Iterator[str]:
    for i, verdict in enumerate(verdicts):
        if verdict == Verdict.SAT:
            excess, error = truth.decided(i, points[i])
            if excess > error:
                yield f"item {i}: sat, and its point keeps a distance of {excess} from the violation"
        if verdict == Verdict.UNSAT:
            for x in truth.points[i]:
                excess, error = truth.decided(i, x)
                if excess < -error:
                    yield f"item {i}: unsat, and {x.tolist()} violates by {-excess}"


def shares(tallies: dict[str, Counter[str]]) -> dict[str, float]:
    """Of informative bounds, by name; written out."""
    for name, tally in sorted(tallies.items()):
        sys.stdout.write(f"{name:50s} {tally['told'] / tally['asked']:6.1%} of {tally['asked']}\n")
    return {name: tally["told"] / tally["asked"] for name, tally in tallies.items()}


def test_bounds_on_p_safe_are_right_and_informative() -> None:
    assert {method.name for method in METHODS} == set(NAMES) - {NONE, CASELESS, DRAWN} == set(FLOORS) - {PORTFOLIO}
    tallies: dict[str, Counter[str]] = defaultdict(Counter)
    evidence = [what for truth in truths(False) for what in judged_safety(truth, tallies)]
    found = shares(tallies)
    assert evidence == []
    assert {name: share for name, share in found.items() if share < FLOORS[name]} == {}
    assert set(found) == set(FLOORS)


def _kind(case: zoo.Case) -> str:
    if case.name.partition(",")[0] in BLOCKS:
        return "blocks"
    return "few" if "goal" in case.options else "usual"


@pytest.mark.parametrize("kind", DECISION_FLOORS)
def test_bounds_on_the_decision_are_right_and_informative(kind: str) -> None:
    tallies: dict[str, Counter[str]] = defaultdict(Counter)
    of_kind = (truth for truth in truths(True) if _kind(truth.case) == kind)
    evidence = [what for truth in of_kind for what in judged_decision(truth, tallies)]
    found, floors = shares(tallies), DECISION_FLOORS[kind]
    assert evidence == []
    assert {name: found[name] for name, floor in floors.items() if found[name] < floor} == {}


def test_every_method_of_decisions_has_a_floor() -> None:
    assert {method.name for method in decision.METHODS} == set(DECISION_FLOORS["usual"]) - {PORTFOLIO}


# -- what the zoo notices

MISTAKES = {
    "weight samples": (0.01, 0.01), "components of a mixture": (0.05, 0.05), "boxes around samples": (0.9, 0.3),
    "tails": (0.05, 0.05), "centred boxes": (0.5, 0.3), "large variance": (0.05, 0.05),
    "last layer": (0.05, 0.05),
}  # fmt: skip
"""By how much the lower and the upper bound of a method come nearer to each other: that is noticed."""


@pytest.mark.parametrize("side", [0, 1], ids=["lower", "upper"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_method_whose_bounds_are_a_little_too_good_is_noticed(
    name: str, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, step = SafetyBounds.named, MISTAKES[name][side]

    def wrong(found: SafetyBounds, method: str) -> SafetyBounds:
        if method == name and side == 0:
            found = replace(found, lower=(found.lower + step).clamp(max=1))
        if method == name and side == 1:
            found = replace(found, upper=(found.upper - step).clamp(min=0))
        return right(found, method)

    monkeypatch.setattr(SafetyBounds, "named", wrong)
    assert noticed(WITNESSES.get(name, "linear, gaussian, wide"))


WITNESSES = {
    "weight samples": "linear, samples, narrow", "components of a mixture": "linear, mixture, narrow",
    "large variance": "one layer, gaussian, wide", "last layer": "two layers, gaussian, wide, last layer",
}  # fmt: skip
"""Cases that notice mistakes of a method; the others are noticed where only a bias is random: that truth is exact."""


def noticed(witness: str) -> bool:
    """Some bound on P_safe of that case is found to be wrong, or contradicts another."""
    try:
        (truth,) = (truth for truth in truths(False) if truth.case.name == witness)
        return bool(judged_safety(truth, defaultdict(Counter)))
    except SoundnessError:
        return True


INSIDE = ("cases do not add up", "rows of a point do not add up", "wrong side", "spread")
"""Mistakes of the fuzzer's mutants that the zoo notices at once."""


@pytest.mark.parametrize("name", INSIDE)
def test_a_mistake_inside_a_method_is_noticed(name: str) -> None:
    with MUTANTS[name].applied():
        assert noticed("linear, gaussian, narrow")


@pytest.mark.parametrize("step", [0.02, -0.02])
def test_a_decision_whose_bounds_are_a_little_too_good_is_noticed(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right, side = verify_batch, "lower" if step > 0 else "upper"

    def wrong(*args: Any, **options: Any) -> Any:
        found = right(*args, **options)
        return replace(found, **{name: getattr(found, name) + step for name in (side, f"row_{side}")})

    monkeypatch.setattr(sys.modules[__name__], "verify_batch", wrong)
    assert any(judged_decision(truth, defaultdict(Counter)) for truth in truths(True)[1:3])
