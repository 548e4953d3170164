"""Judging bounds on the decision D(x): exactly for samples, by means of sampled networks for Gaussian posteriors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy import stats

from bnn_vnnlib.model.network import WeightSamples
from bnn_vnnlib.result import Verdict
from fuzz.judge import Court
from fuzz.outcomes import Outcome
from fuzz.questions import Array

FEW, MANY = 1000, 60_000
LEVEL = 1e-12
"""Of a one-sided test of a mean, by Student's t; heavy tails make it the less exact the fewer networks are drawn."""


def decision_evidence(court: Court, outcome: Outcome) -> str | None:
    """Evidence against bounds on D over T, or against the verdict."""
    rng = np.random.default_rng(court.seed)
    for index, x in enumerate(court.points(rng, 6)):
        evidence = _at_points(court, outcome, index, x)
        if evidence is not None:
            return evidence
    if outcome.verdict is Verdict.SAT and outcome.point is not None and np.isfinite(outcome.point).all():
        return _witness(court, outcome.point)
    return None


def _at_points(court: Court, outcome: Outcome, index: int, x: Array) -> str | None:
    part = court.question.parts[index]
    rows = [row for p in court.question.parts for case in p.cases for row in case]
    if len(rows) != len(outcome.lower):
        return None
    first = sum(len(case) for p in court.question.parts[:index] for case in p.cases)
    own = range(first, first + sum(len(case) for case in part.cases))
    a = np.stack([rows[r].a for r in own])
    g = np.stack([rows[r].g for r in own])
    inside = court.feasible(index, x)
    if not inside.any():
        return None
    x = x[inside]
    for count, level in _rounds(court):
        y = _outputs(court, x, count)
        values = y @ a.T + x @ g.T
        low, high = outcome.lower[list(own)], outcome.upper[list(own)]
        if outcome.outputs is not None:
            values = np.concatenate([values, y], -1)
            low, high = np.append(low, outcome.outputs[0]), np.append(high, outcome.outputs[1])
        mean, slack = _mean(court, values, level)
        wrong = (low > mean + slack) | (high < mean - slack)
        if not wrong.any():
            return None
    where = np.argwhere(wrong)[0]
    return f"D = {mean[tuple(where)]!r} +- {slack[tuple(where)]!r}, bounds [{low[where[1]]!r}, {high[where[1]]!r}]"


def _rounds(court: Court) -> Iterator[tuple[int, float]]:
    if isinstance(court.posterior, WeightSamples):
        yield 0, 0.0
        return
    yield FEW, 1e-4
    yield MANY, LEVEL


def _outputs(court: Court, x: Array, count: int) -> Array:
    """(K, P, m): of `count` drawn networks, or of all samples."""
    posterior = court.posterior
    if isinstance(posterior, WeightSamples):
        params = {name: torch.as_tensor(values) for name, values in posterior.samples.items()}
    else:
        params = court.draw(count, 5 + count)
    return court.outputs(torch.as_tensor(x)[None], params)


def _mean(court: Court, values: Array, level: float) -> tuple[Array, Array]:
    """Mean over the networks, and how far the truth may be from it."""
    posterior = court.posterior
    size = 1e-9 * np.abs(values).max(0) + 1e-300
    if isinstance(posterior, WeightSamples):
        share = posterior.probabilities / posterior.probabilities.sum()
        return np.tensordot(share, values, 1), size
    deviations = stats.t.isf(level, len(values) - 1)
    return values.mean(0), deviations * values.std(0, ddof=1) / np.sqrt(len(values)) + size


def _witness(court: Court, point: Array) -> str | None:
    """The decision at the witness is not in V: some row of each case fails by more than the error of its mean."""
    for count, level in _rounds(court):
        y = _outputs(court, point[None], count)
        mean, slack = _mean(court, y, level)
        best = court.distance_of_mean(point, mean[0], slack[0])
        if best <= 1e-9:
            return None
    return f"sat, but D at {point.tolist()} is {mean[0].tolist()} +- {slack[0].tolist()}"
