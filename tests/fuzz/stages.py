"""The four kinds of cases, side by side."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fuzz.campaign import Campaign
from fuzz.known import judge_known
from fuzz.large_variance import cases, judge
from fuzz.tally import Tally
from fuzz.tiny import judge_tiny

LARGE_VARIANCE_SAMPLES = 100_000
"""Networks behind one bound under a large variance."""

SHARES = {"known": 0.4, "tiny": 0.15, "large-variance": 0.1, "cases": 0.35}
"""Of the time: see docs/testing.md."""


@dataclass
class Stage:
    """One kind of case, seed after seed.

    steps : a name and the violations of the next case, for ever; spent : processor time, over its share
    """

    name: str
    steps: Iterator[tuple[str, list[str]]]
    tally: Tally = field(default_factory=Tally)
    spent: float = 0.0
    done: int = 0
    violations: int = 0

    def step(self) -> list[str]:
        """The violations of the next case."""
        start = time.process_time()
        name, found = next(self.steps)
        self.spent += (time.process_time() - start) / SHARES[self.name]
        self.done, self.violations = self.done + 1, self.violations + len(found)
        return [f"{self.name} {name}: {text}" for text in found]


def next_of(stages: list[Stage]) -> Stage:
    """The one that is furthest behind its share."""
    return min(stages, key=lambda stage: stage.spent)


def stages(campaign: Campaign, seed: int) -> list[Stage]:
    """All four, from a seed on."""
    known = Tally()

    def of_seeds(check: Callable[[int], list[str]]) -> Iterator[tuple[str, list[str]]]:
        return ((str(number), _or_crash(check, number)) for number in itertools.count(seed))

    def large_variance() -> Iterator[tuple[str, list[str]]]:
        for name, case in cases(seed, 10**9, [1, 2, 3]):
            line, violated = judge(case, LARGE_VARIANCE_SAMPLES)
            yield name, [line] * violated

    def drawn() -> Iterator[tuple[str, list[str]]]:
        for number in campaign.run(float("inf")):
            yield str(number), [f"see {campaign.folder}/seed-{number}"] * (number in campaign.failures)

    return [
        Stage("known", of_seeds(lambda number: judge_known(number, known)), known),
        Stage("tiny", of_seeds(judge_tiny)), Stage("large-variance", large_variance()),
        Stage("cases", drawn(), campaign.tally),
    ]  # fmt: skip


def _or_crash(check: Callable[[int], list[str]], number: int) -> list[str]:
    try:
        return check(number)
    except Exception:
        return [traceback.format_exc()]
