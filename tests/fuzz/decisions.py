"""Judging bounds on the decision D(x): exactly for samples, by means of sampled networks for all other posteriors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import stats

from bnn_vnnlib import Verdict
from bnn_vnnlib.model import WeightSamples
from fuzz.judge import AT_ONCE, Court
from fuzz.ladder import LARGER, LAST
from fuzz.outcomes import Outcome
from fuzz.questions import Array
from fuzz.tally import kind

ROUNDS = {False: ((4096, 0.02), (65_536, 1e-4), (262_144, LAST)), True: ((512, 0.02), (8192, 1e-4), (65_536, LAST))}
"""Networks and level of one-sided tests of a mean, of small networks and of larger ones. They are tests by Student's t;
heavy tails make them the less exact the fewer networks are drawn."""

POOL, SCOUTS = 48, 256
"""Points of every part, and networks that say at which of them rows and outputs are extreme."""


@dataclass(frozen=True, eq=False)
class Means:
    """Of the rows of one part, then of the outputs: means (P, Q) at points x (P, n), and their standard errors.

    spread (Q,): standard deviation over the networks and the points
    """

    x: Array
    mean: Array
    error: Array
    spread: Array


@dataclass(frozen=True, eq=False)
class Decisions:
    """D as far as sampled networks tell."""

    court: Court

    @cached_property
    def _rounds(self) -> tuple[tuple[int, float], ...]:
        return ((0, 0.0),) if isinstance(self.court.posterior, WeightSamples) else ROUNDS[self.court.ladder is LARGER]

    @cached_property
    def _parts(self) -> list[Means | None]:
        """First estimates, at points where rows and outputs seem to be extreme."""
        rng, found = np.random.default_rng(self.court.seed), []
        for index, pool in enumerate(self.court.points(rng, POOL)):
            x = pool[self.court.feasible(index, pool)]
            if not len(x):
                found.append(None)
                continue
            guess, _ = self._means(index, x, SCOUTS, 1)
            x = x[np.unique([guess.argmin(0), guess.argmax(0)])]
            mean, spread = self._means(index, x, self._rounds[0][0], 2)
            found.append(Means(x, mean, self._error(spread, self._rounds[0][0]), spread.max(0) + mean.std(0)))
        return found

    def _means(self, index: int, x: Array, count: int, seed: int) -> tuple[Array, Array]:
        """Means and standard deviations over the networks (P, Q)."""
        rows = [row for case in self.court.question.parts[index].cases for row in case]
        a, g = np.stack([row.a for row in rows]), np.stack([row.g for row in rows])
        posterior = self.court.posterior

        def values(params: dict[str, torch.Tensor]) -> Array:
            y = self.court.outputs(torch.as_tensor(x)[None], params)
            return np.concatenate([y @ a.T + x @ g.T, y], -1)

        if isinstance(posterior, WeightSamples):
            share = posterior.probabilities / posterior.probabilities.sum()
            found = values({name: torch.tensor(v) for name, v in posterior.samples.items()})
            mean = np.tensordot(share, found, 1)
            return mean, np.sqrt(np.tensordot(share, (found - mean) ** 2, 1))
        total, square, origin = 0.0, 0.0, None
        with np.errstate(over="ignore", invalid="ignore"):
            for part in range(0, count, AT_ONCE):
                found = values(self.court.draw(min(AT_ONCE, count - part), 10**5 * seed + part))
                origin = found.mean(0) if origin is None else origin  # against cancellation
                total, square = total + (found - origin).sum(0), square + ((found - origin) ** 2).sum(0)
            mean = total / count
            return origin + mean, np.sqrt(np.maximum(square / count - mean**2, 0.0) * count / (count - 1))

    def _error(self, spread: Array, count: int) -> Array:
        return spread / np.sqrt(count) if count else np.zeros_like(spread)

    def _slack(self, level: float, count: int, mean: Array, error: Array) -> Array:
        """How far the truth may be from a mean."""
        return (stats.t.isf(level, count - 1) * error if count else 0.0) + 1e-9 * np.abs(mean) + 1e-300

    def evidence(self, outcome: Outcome) -> str | None:
        """Evidence against bounds on D over T, or against the verdict."""
        for index, low, high in self._bounds(outcome):
            found = self._outside(index, low, high)
            if found is not None:
                return found
        if outcome.verdict is Verdict.SAT and outcome.point is not None and np.isfinite(outcome.point).all():
            return self._witness(outcome.point)
        return None

    def kinds(self, outcome: Outcome) -> Iterator[tuple[str, str]]:
        """Whether the bounds on rows are informative."""
        for index, low, high in self._bounds(outcome):
            means, rows = self._parts[index], sum(map(len, self.court.question.parts[index].cases))
            if means is None:
                continue
            for row in range(rows):
                scale = float(means.spread[row])
                for side, bound, gap in (
                    ("lower", low[row], means.mean[:, row].min() - low[row]),
                    ("upper", high[row], high[row] - means.mean[:, row].max()),
                ):
                    near = float(gap) / scale if scale > 0 else np.inf
                    yield side, kind(near, vacuous=not np.isfinite(bound), stake=scale > 0)

    def _bounds(self, outcome: Outcome) -> Iterator[tuple[int, Array, Array]]:
        """Of each part the bounds on its rows and, where there are any, on the outputs."""
        sizes = [sum(map(len, part.cases)) for part in self.court.question.parts]
        if sum(sizes) != len(outcome.lower):
            return
        stops = np.cumsum(sizes)
        for index, (size, stop) in enumerate(zip(sizes, stops, strict=True)):
            low, high = outcome.lower[stop - size : stop], outcome.upper[stop - size : stop]
            if outcome.outputs is not None:
                low, high = np.append(low, outcome.outputs[0]), np.append(high, outcome.outputs[1])
            yield index, low, high

    def _outside(self, index: int, low: Array, high: Array) -> str | None:
        means = self._parts[index]
        if means is None:
            return None
        x, mean, error = means.x, means.mean[:, : len(low)], means.error[:, : len(low)]
        for number, (count, level) in enumerate(self._rounds):
            if number:
                mean, spread = (part[:, : len(low)] for part in self._means(index, x, count, 3 + number))
                error = self._error(spread, count)
            slack = self._slack(level, count, mean, error)
            wrong = (low > mean + slack) | (high < mean - slack)
            if not wrong.any():
                return None
            x, mean, slack, wrong = (part[wrong.any(1)] for part in (x, mean, slack, wrong))
        point, row = np.argwhere(wrong)[0]
        return f"D = {mean[point, row]!r} +- {slack[point, row]!r}, bounds [{low[row]!r}, {high[row]!r}]"

    def _witness(self, point: Array) -> str | None:
        """The decision at the witness is not in V: some row of each case fails by more than the error of its mean."""
        outputs = self.court.model.network.signature.output_size
        for number, (count, level) in enumerate(self._rounds):
            mean, spread = (part[0, -outputs:] for part in self._means(0, point[None], count, 10 + number))
            slack = self._slack(level, count, mean, self._error(spread, count))
            if self.court.distance_of_mean(point, mean, slack) <= 1e-9:
                return None
        return f"sat, but D at {point.tolist()} is {mean.tolist()} +- {slack.tolist()}"
