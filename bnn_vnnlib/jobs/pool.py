"""Where tasks run: in threads of this process, each with a worker process of its own, or on a Dask cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.jobs.worker import Died, Fleet
from bnn_vnnlib.system.isolation import cores, isolated, usual_threads

_T = TypeVar("_T")

CONNECT = 20.0
"""Seconds to wait for a scheduler."""

_AHEAD = 2
"""Tasks handed out for each that is carried out at a time, so that no worker waits for the next one."""


@dataclass(frozen=True)
class _Pool:
    """Something that carries out tasks.

    Attributes
    ----------
    submit : (function, arguments) -> Future, as of `concurrent.futures`
    size : how many tasks are carried out at a time, now
    """

    submit: Callable[..., Future[Any]]
    size: Callable[[], int]

    def completed(
        self, tasks: deque[_T], call: Callable[[_T], tuple[Any, ...]]
    ) -> Iterator[tuple[_T, Any | BaseException]]:
        """Every task with its result, as they come; an exception that its execution raised stands for the result.

        Parameters
        ----------
        tasks : taken from the left, not long before they are carried out; more may be added meanwhile
        call : task -> (function, arguments)
        """
        running: dict[Future[Any], _T] = {}
        try:
            while True:
                ahead = _AHEAD * max(1, self.size()) if tasks else 0
                while tasks and len(running) < ahead:
                    task = tasks.popleft()
                    running[self.submit(*call(task))] = task
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), _outcome(future)
        finally:
            for future in running:
                future.cancel()


def _outcome(future: Future[Any]) -> Any | BaseException:
    """Result or exception of a task; `Died` where a cluster gave it up, or went away."""
    try:
        error = future.exception()
    except CancelledError:
        return Died("the cluster went away")
    if error is not None and type(error).__module__.startswith("distributed."):
        return Died(f"the cluster gave it up: {error}")
    return future.result() if error is None else error


@dataclass(frozen=True)
class Slots:
    """How many tasks at a time, with how many threads each.

    Attributes
    ----------
    workers : tasks at a time (on a cluster its own threads decide, and this counts for a cluster made here)
    threads : of each; None: as the environment (OMP_NUM_THREADS, ...) of the process says that decides it, else one
    scheduler : address of a Dask scheduler; "local": a cluster of processes on this machine; None: no cluster
    """

    workers: int = 1
    threads: int | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        for option, number in (("workers", self.workers), ("threads", self.threads)):
            if number is not None and number < 1:
                raise OptionError(f"{option} must be at least 1, found {number}")

    @staticmethod
    def shared(workers: int | None, threads: int | None, scheduler: str | None) -> Slots:
        """Fill in what was not given: as many workers as there are cores for."""
        return Slots(cores() // (threads or usual_threads()) or 1 if workers is None else workers, threads, scheduler)

    @contextmanager
    def pool(self) -> Iterator[_Pool]:
        """A pool; on leaving, what has not begun is dropped and what runs here is ended.

        Raises
        ------
        OptionError : Dask is not installed
        InputError : no scheduler at that address
        """
        if self.scheduler is not None:
            with _client(self.scheduler, self.workers) as client:
                # Done once more where its worker is lost; `pure` would let two runs of one task be one.
                yield _Pool(client.get_executor(pure=False).submit, lambda: sum(client.nthreads().values()))
            return
        fleet = Fleet()
        threads = ThreadPoolExecutor(self.workers, thread_name_prefix="worker", initializer=fleet.join)
        try:
            yield _Pool(threads.submit, lambda: self.workers)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            fleet.close()
            threads.shutdown(wait=True)


@contextmanager
def _client(scheduler: str, workers: int) -> Iterator[Any]:
    """A client of a Dask scheduler, or of a cluster of `workers` processes on this machine."""
    try:
        dask = import_module("distributed")
    except ImportError:
        message = "--scheduler needs Dask: pip install 'bnn-vnnlib[cluster]', here and on the workers"
        raise OptionError(message) from None
    if scheduler == "local":
        with (
            isolated(),  # all the while: a worker that is lost is started again
            dask.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
            dask.Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = dask.Client(scheduler, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {scheduler}: {error}") from None
    with client:
        yield client
