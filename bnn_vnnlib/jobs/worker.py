"""A process that works for us, at both ends of its pipe: it is asked, waited for, ended, replaced.

Importing torch costs seconds, so a worker serves until something goes wrong in it. Nothing that we start outlives us:

1. A worker leads a process group, which whatever it starts belongs to, and has a pipe of its own. When the pipe ends,
   it kills the group, itself included, whatever it is busy with. The system closes the pipe however we end.
2. We end a worker by killing its group, at its time limit, too. So nothing that it started is left, and a worker that
   is stopped (SIGSTOP) or does not listen is ended all the same.

Out of reach are a process that leaves the group (setsid), one of another user, and what a worker started if the worker
and we are killed at the same moment.

This is our own because the pools that we tried do not hold: a busy worker of pebble 5.2 or loky 3.7 goes on when its
parent is killed, for hours if its task takes hours; one idle worker that is killed makes either pool useless, because
the workers share one queue; loky knows no time limits; and neither ends what a worker started.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.system.heap import keep_freed_memory
from bnn_vnnlib.system.isolation import trusted_path, with_threads

PROGRAM = (
    "-c",
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from bnn_vnnlib.jobs.worker import serve; serve()",
)
"""What a worker runs; its first argument are the folders in which it looks for modules, one a line."""

_START_LIMIT = 300.0
"""Seconds for a worker to import what it needs, on a machine that is busy."""


class Died(Exception):
    """The process ended before it answered; the text says how."""


class Overdue(Exception):
    """The process did not answer in time and was ended."""


@dataclass(frozen=True)
class WorkerKind:
    """What distinguishes workers.

    Attributes
    ----------
    threads : of the numerical libraries in it; None: as the environment says, else one
    memory : bytes of data that it may allocate; None: no limit
    modules : what it imports before it is ready, so that no time limit counts for that
    """

    threads: int | None = None
    memory: float | None = None
    modules: tuple[str, ...] = ()


class Worker:
    """One process; it does one thing at a time and belongs to one thread.

    Raises
    ------
    Died, Overdue : it could not be started
    """

    def __init__(self, kind: WorkerKind) -> None:
        if os.name != "posix":
            raise OptionError("processes of our own need a POSIX system; a sweep works with one worker")
        self.kind = kind
        self._lock = threading.Lock()  # once we have waited for the process, its number may be another one's
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", *PROGRAM, "\n".join(trusted_path())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=with_threads(kind.threads),
                start_new_session=True,  # a group of its own; and Ctrl-C is for us, who end it in good order
            )
        try:
            self.call(_prepare, kind, limit=_START_LIMIT)
        except BaseException:
            self.end()
            raise

    def call(self, function: Callable[..., Any], *arguments: object, limit: float | None = None) -> Any:
        """What a function returns, or raises, in the process. All of it is pickled, functions by their name.

        Parameters
        ----------
        limit : seconds until the process is ended; None: never

        Raises
        ------
        Died, Overdue : no answer; the process is of no further use
        """
        overdue = threading.Event()
        answer: Any = None
        error: BaseException | None = None
        with self._limited(limit, overdue):
            try:
                self._pipe.send((function, arguments))
                answer, error = self._pipe.recv()
            except (EOFError, OSError):
                error = Died(_in_words(self.end()))
        if overdue.is_set():
            raise Overdue(f"no answer after {limit:g} s")
        if error is not None:
            raise error
        return answer

    @contextmanager
    def _limited(self, limit: float | None, overdue: threading.Event) -> Iterator[None]:
        """End the process if the block takes longer than this."""
        if limit is None:
            yield
            return

        def end() -> None:
            overdue.set()
            self.end()

        timer = threading.Timer(limit, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @property
    def alive(self) -> bool:
        """Whether one that is asked nothing is still there: its end of the pipe says nothing but that it is closed."""
        return not self._pipe.poll()

    def end(self) -> int:
        """Kill the process and all that it started; its exit code, which is its own if it had ended by itself."""
        with self._lock:
            if self._process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    hint = ", as when memory runs out" if -code == signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{hint}"


class Fleet:
    """The workers of some threads, one each, kept from task to task until all of them are ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._closed = threading.Event()

    def join(self) -> None:
        """From now on, this thread's workers belong to this fleet."""
        _HERE.fleet, _HERE.worker = self, None

    def close(self) -> None:
        """End the workers; none is started any more, and whoever waits for one goes on at once."""
        with self._lock:
            self._closed.set()
            workers = set(self._workers)
        for worker in workers:
            worker.end()

    def start(self, kind: WorkerKind) -> Worker:
        """A new worker. Raises Died or Overdue if it could not be started, or the fleet was closed meanwhile."""
        if not self._closed.is_set():
            worker = Worker(kind)
            with self._lock:
                if not self._closed.is_set():
                    self._workers.add(worker)
                    return worker
            worker.end()
        raise Died("the run was ended")

    def end(self, worker: Worker) -> None:
        """End one of the workers."""
        with self._lock:
            self._workers.discard(worker)
        worker.end()


class _Here(threading.local):
    """The worker of this thread. A thread of no pool, such as one of Dask's workers, has a fleet of its own."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.worker: Worker | None = None


_HERE = _Here()


def own_worker(kind: WorkerKind) -> tuple[Worker, float]:
    """This thread's worker, and the seconds that its start took (0 for one that was there).

    Raises
    ------
    Died, Overdue : it could not be started
    """
    if _HERE.worker is not None and _HERE.worker.kind == kind and _HERE.worker.alive:
        return _HERE.worker, 0.0
    discard()
    begun = time.monotonic()
    _HERE.worker = _HERE.fleet.start(kind)
    return _HERE.worker, time.monotonic() - begun


def discard() -> None:
    """End this thread's worker, and all that it started."""
    worker, _HERE.worker = _HERE.worker, None
    if worker is not None:
        _HERE.fleet.end(worker)


# The worker's end of the pipe


def serve() -> None:
    """Answer requests, (function, its arguments), with (what it returns, what it raises), until the pipe ends."""
    pipe = Connection(os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for stream in (sys.stdout, sys.stderr):  # both may go into one log, in the order in which they were written
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, requests), daemon=True).start()
    while True:
        answer: Any = None
        error: BaseException | None = None
        try:
            function, arguments = pickle.loads(requests.get())  # noqa: S301
            answer = function(*arguments)
        except BaseException as raised:
            error = raised if isinstance(raised, Exception) else RuntimeError(repr(raised))
            if not isinstance(error, InputError):  # a fault, not the user's: where it happened is not known elsewhere
                error.add_note(f"In the worker process:\n{traceback.format_exc()}")
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pipe.send((answer, error))
        except (pickle.PicklingError, AttributeError, TypeError):
            pipe.send((None, RuntimeError(f"an answer that cannot be sent: {error or type(answer).__name__}")))


def _listen(pipe: Connection, requests: queue.SimpleQueue[bytes]) -> None:
    """Pass the requests on; without a parent there is nobody to work for, so the group ends at once."""
    with suppress(EOFError, OSError):
        while True:
            requests.put(pipe.recv_bytes())
    os.killpg(0, signal.SIGKILL)


def _prepare(kind: WorkerKind) -> None:
    """What a worker does before it is ready."""
    with suppress(OSError):  # when memory runs out, Linux shall end this process and not the one that keeps the results
        Path("/proc/self/oom_score_adj").write_text("1000")
    if kind.memory is not None:
        import resource

        size = int(kind.memory)  # more is a MemoryError of this process, not a hunt through the machine
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    keep_freed_memory()
    for name in kind.modules:
        import_module(name)


def run_program(words: list[str], log: str) -> int:
    """Have a worker run a program of somebody else's, which then ends with it; exit code, 127 where it cannot start.

    Parameters
    ----------
    log : file for all that it prints; it has no standard input
    """
    with open(log, "wb") as stream:
        try:
            return subprocess.call(words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)  # noqa: S603
        except OSError as error:
            stream.write(f"{words[0]}: {error.strerror}".encode())
            return 127
