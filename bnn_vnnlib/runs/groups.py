"""Programs that are not ours, each in a process group of its own, none of which outlives us.

A tool starts helpers, and a signal to this program reaches none of them. So every tool leads a group that is killed as
a whole: by `Groups.close` where we end in good order (Ctrl-C), and by a watchdog process where we are killed (SIGTERM,
SIGKILL). A group is known to the watchdog before its tool begins. Out of reach are a helper that leaves the group
(setsid), a program of another user, and everything if the watchdog itself is killed before us.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

WATCHDOG = Path(__file__).with_name("watchdog.py")

# Its standard input is the watchdog's pipe. The shell's number remains that of the program, and of its group.
_ANNOUNCED = ("sh", "-c", 'echo "+$$" >&0 && exec "$@" </dev/null', "sh")


class Ended(Exception):
    """The run was ended; nothing begins any more."""


class Groups:
    """The groups of this process; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._open = True

    def start(self, words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program, without standard input, as the leader of a group.

        Raises
        ------
        Ended : after `close`
        OSError : no further process can be started. (A program that does not exist ends with 127, as in a shell.)
        """
        with self._lock:
            if not self._open:
                raise Ended("the run was ended")
            process = subprocess.Popen(  # noqa: S603
                [*_ANNOUNCED, *words], stdin=self._pipe(), start_new_session=True, **options
            )
            self._running.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill what is left of a group, and wait for its leader."""
        _kill(process)
        with self._lock:
            self._running.discard(process)
            self._tell(f"-{process.pid}\n")
        process.wait()

    def close(self) -> None:
        """Kill all groups, and start none until `rest`; who waits for a program goes on at once."""
        with self._lock:
            self._open = False
            for process in self._running:
                _kill(process)

    def rest(self) -> None:
        """After a run: the watchdog goes if nothing is left to watch, and programs may be started again."""
        with self._lock:
            self._open = True
            watchdog = self._watchdog
            if watchdog is not None and not self._running:
                self._watchdog = None
                watchdog.communicate()  # the end of its input is its end

    def _pipe(self) -> IO[bytes]:
        """The watchdog's input; one that is gone is replaced, and told of everything that runs."""
        watchdog = self._watchdog
        if watchdog is None or watchdog.poll() is not None:
            if watchdog is not None and watchdog.stdin is not None:
                watchdog.stdin.close()
            watchdog = self._watchdog = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", str(WATCHDOG)], bufsize=0, stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            self._tell("".join(f"+{process.pid}\n" for process in self._running))
        if watchdog.stdin is None:
            raise OSError("the watchdog has no input")
        return watchdog.stdin

    def _tell(self, lines: str) -> None:
        if self._watchdog is not None and self._watchdog.stdin is not None:
            with suppress(OSError):  # it is gone; the next start replaces it
                self._watchdog.stdin.write(lines.encode())


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


GROUPS = Groups()
"""One a process, as `worker.FLEET`."""
