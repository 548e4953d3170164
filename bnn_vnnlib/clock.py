"""The time limit of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass


class OutOfTime(Exception):
    """Raised between two chunks of work when time is up; whoever holds bounds catches it and keeps them."""


@dataclass(frozen=True)
class Deadline:
    """A moment of time.monotonic(); None = never."""

    at: float | None = None

    @property
    def passed(self) -> bool:
        """Time is up."""
        return self.at is not None and time.monotonic() >= self.at

    def check(self) -> None:
        """Raise OutOfTime if time is up."""
        if self.passed:
            raise OutOfTime

    def share(self, count: int) -> Deadline:
        """The moment when the first of `count` equal parts of what is left is over."""
        if self.at is None:
            return self
        now = time.monotonic()
        return Deadline(now + max(0.0, self.at - now) / max(1, count))
