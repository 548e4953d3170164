"""Claims about probabilities against sampled networks: a suspicion from few is tested again on many fresh ones.

Only the last round can raise a false alarm, with probability LAST for each claim. `seen` says what a claim has to be
wrong by in order to be noticed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

Event = Callable[[int, int], int]
"""(networks, seed) -> for how many of these the event holds."""

LAST = 1e-12


@dataclass(frozen=True)
class Ladder:
    """Rounds (networks, level), then `chunks` of networks, with a look after each; the looks share LAST."""

    rounds: tuple[tuple[int, float], ...]
    chunk: int
    chunks: int = 16

    def contradicts(self, event: Event, claimed: float, *, more: bool) -> tuple[int, int] | None:
        """(k, n) that refute P(event) <= claimed (more: the event is too frequent), or P(event) >= claimed."""
        for seed, (count, level) in enumerate(self.rounds):
            if chance(event(count, seed), count, claimed, more) >= level:
                return None
        found = total = 0
        for part in range(self.chunks):
            found, total = found + event(self.chunk, len(self.rounds) + part), total + self.chunk
            if chance(found, total, claimed, more) < LAST / self.chunks:
                return found, total
        return None


def chance(found: int, count: int, claimed: float, more: bool) -> float:
    """Of at least (more) or at most as many, if the claim holds with equality."""
    claimed = min(max(claimed, 0.0), 1.0)
    return float(stats.binom.sf(found - 1, count, claimed) if more else stats.binom.cdf(found, count, claimed))


TINY = Ladder(((4096, 0.05), (65_536, 1e-3)), 65_536)
"""For networks that take a few operations."""

LARGER = Ladder(((512, 0.02), (4096, 1e-3)), 8192)


def rounds_passed(ladder: Ladder, claimed: float, truth: float) -> float:
    """Probability that an event of that probability refutes P(event) <= claimed: the rounds are independent."""
    sizes = [*ladder.rounds, (ladder.chunk * ladder.chunks, LAST / ladder.chunks)]
    passed = []
    for count, level in sizes:
        least = int(stats.binom.isf(level, count, claimed)) + 1  # as many, or more, are too many
        passed.append(float(stats.binom.sf(least - 1, count, truth)))
    return float(np.prod(passed))


@functools.cache
def seen(ladder: Ladder, claimed: float, power: float = 0.5) -> float:
    """The error of a claim P(event) <= claimed that is noticed with probability `power`, by bisection."""
    low, high = 0.0, 1.0 - claimed
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if rounds_passed(ladder, claimed, claimed + middle) >= power else (middle, high)
    return high
