"""Ending a run that overstays its time limit.

The engine watches the clock itself and returns its best bounds in time. This is for the rest: a huge file that is
still being read, one library call that takes too long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


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
