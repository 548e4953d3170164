"""A process that works for us, seen from outside: asked, waited for, ended, replaced."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bnn_vnnlib.system.isolation import trusted_path, with_threads

PROGRAM = (
    "-c",
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from bnn_vnnlib.cli.serve import main; main()",
)
"""What a process runs; its first argument are the folders in which it looks for modules, one a line."""

START_LIMIT = 300.0
"""Seconds for a process to import what it needs, on a machine that is busy."""


class Died(Exception):
    """The process ended before it answered; the text says how."""


class Overdue(Exception):
    """The process did not answer in time and was ended."""


class Worker:
    """One process; it does one thing at a time and belongs to one thread.

    Parameters
    ----------
    threads : of the numerical libraries in it; None: as the environment says, else one
    memory : bytes of data that it may allocate; None: no limit

    Raises
    ------
    Died, Overdue : it could not be started
    """

    def __init__(self, threads: int | None, memory: float | None) -> None:
        self.settings = (threads, memory)
        limit = [] if memory is None else [f"--memory={memory:.0f}"]
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", *PROGRAM, "\n".join(trusted_path()), *limit],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=with_threads(threads),
            start_new_session=True,  # Ctrl-C is for us, who end it in good order
        )
        try:
            self._answer(START_LIMIT)
        except BaseException:
            self.end()
            raise

    def ask(self, arguments: list[str], log: Path, limit: float | None) -> int:
        """Exit code of a command line, worked off in the process.

        Parameters
        ----------
        arguments : of the program
        log : file for whatever is printed
        limit : seconds until the process is ended; None: never

        Raises
        ------
        Died, Overdue : no answer; the process is of no further use
        """
        request = json.dumps({"arguments": arguments, "log": str(log)}) + "\n"
        stdin = self._process.stdin
        if stdin is None:
            raise Died("the process has no input")
        try:
            stdin.write(request.encode())
            stdin.flush()
        except OSError:
            raise Died(self._how()) from None
        return int(self._answer(limit)["code"])

    def end(self) -> None:
        """End the process, whatever it does, and wait for it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # what could not be written to the dead
                    stream.close()

    def _answer(self, limit: float | None) -> dict[str, Any]:
        stdout = self._process.stdout
        if stdout is None:
            raise Died("the process has no output")
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                self.end()
                raise Overdue(f"no answer after {limit:g} s")
        line = stdout.readline()
        if not line.endswith(b"\n"):
            raise Died(self._how())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _how(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"exit code {code}"
        hint = ", as when memory runs out" if -code == signal.SIGKILL else ""
        return f"signal {signal.Signals(-code).name}{hint}"


class Fleet:
    """The workers of this process: one a thread, kept from instance to instance."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._all: set[Worker] = set()
        self._closed = 0  # how often

    def worker(self, threads: int | None, memory: float | None) -> tuple[Worker, float]:
        """This thread's worker, and the seconds that its start took (0 for one that was there).

        Raises
        ------
        Died, Overdue : it could not be started, or the fleet was closed meanwhile
        """
        known: Worker | None = getattr(self._mine, "worker", None)
        if known is not None and known in self._all and known.settings == (threads, memory):
            return known, 0.0
        self.discard()
        begun, closed = time.monotonic(), self._closed
        worker = Worker(threads, memory)
        with self._lock:
            wanted = closed == self._closed
            if wanted:
                self._all.add(worker)
        if not wanted:
            worker.end()
            raise Died("the run was ended")
        self._mine.worker = worker
        return worker, time.monotonic() - begun

    def discard(self) -> None:
        """End this thread's worker."""
        known: Worker | None = getattr(self._mine, "worker", None)
        self._mine.worker = None
        if known is not None:
            with self._lock:
                self._all.discard(known)
            known.end()

    def close(self) -> None:
        """End the workers of all threads."""
        with self._lock:
            workers, self._all = self._all, set()
            self._closed += 1
        for worker in workers:
            worker.end()


FLEET = Fleet()
"""One a process: a Dask worker calls plain functions, which can hold nothing of their own."""
