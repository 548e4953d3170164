"""The time limit of a run: what becomes of work that it cuts off, and the end of a run that overstays it.

1. `Deadline`. Whatever was proved in time counts. Who bounds many items does it part by part (`Deadline.reached`), and
the items that time does not suffice for get the value that says nothing: -inf for a lower bound, 1 for a probability of
failing, 0 for a mass, False for a proof. No bound raises OutOfTime: it only ends the part, or the search, in which it
is raised.

2. `Backstop`. The engine watches the clock itself and returns its best bounds in time. The backstop ends the run where
it cannot: a huge file that is still being read, one library call that takes too long.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

_Part = TypeVar("_Part")
_Found = TypeVar("_Found")


class OutOfTime(Exception):
    """Raised in the middle of a part of some work when time is up; whoever holds the other parts catches it."""


def for_diagnosis(seconds: float) -> float:
    """What a run of so many seconds may spend on why it has no verdict: 4 %, so that with the last look, which ends
    late, it is less than 5 %; no more than five seconds, in which all looks come to their end."""
    return max(0.0, min(0.04 * seconds, 5.0))


@dataclass(frozen=True)
class Deadline:
    """A moment of time.monotonic(); None = never."""

    at: float | None = None

    @property
    def passed(self) -> bool:
        """Whether time is up."""
        return self.at is not None and time.monotonic() >= self.at

    def check(self) -> None:
        """Raise OutOfTime if time is up."""
        if self.passed:
            raise OutOfTime

    def reached(self, parts: Iterable[_Part], work: Callable[[_Part], _Found]) -> list[_Found]:
        """What the work makes of the parts, in their order, as far as time suffices."""
        found: list[_Found] = []
        with suppress(OutOfTime):
            for part in parts:
                self.check()
                found.append(work(part))
        return found

    def later(self, seconds: float) -> Deadline:
        """So many seconds after this one."""
        return self if self.at is None else Deadline(self.at + seconds)

    def share(self, count: int) -> Deadline:
        """The moment when the first of `count` equal parts of what is left is over."""
        if self.at is None:
            return self
        now = time.monotonic()
        return Deadline(now + max(0.0, self.at - now) / max(1, count))


class Backstop:
    """After `delay` seconds run `last_words` and end the process with exit code 0, unless disarmed before.

    Exactly one of the two speaks: `disarm` and the alarm claim the same lock, and it is never released.
    Only the thread that made it may disarm it.
    """

    def __init__(self, delay: float, last_words: Callable[[], None]) -> None:
        self._claim = threading.Lock()
        self._disarmed = False
        self._last_words = last_words
        self._timer = threading.Timer(max(delay, 0.0), self._alarm)
        self._timer.daemon = True
        self._timer.start()

    def disarm(self) -> None:
        """Claim the last word for the caller. Does not return if the alarm has already claimed it."""
        if not self._disarmed:
            self._timer.cancel()
            self._claim.acquire()
            self._disarmed = True

    def _alarm(self) -> None:
        if self._claim.acquire(blocking=False):
            try:
                self._last_words()
            finally:
                os._exit(0)
