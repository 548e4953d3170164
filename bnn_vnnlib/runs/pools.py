"""Where tasks run: in threads of this process, each with a worker process of its own, or on a Dask cluster.

Both are executors of `concurrent.futures`, so that a run does not know which one it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.runs.groups import GROUPS
from bnn_vnnlib.runs.worker import FLEET
from bnn_vnnlib.system.isolation import cores, isolated, usual_threads

T = TypeVar("T")
R = TypeVar("R")

CONNECT = 20.0
"""Seconds to wait for a scheduler."""


@dataclass(frozen=True)
class Places:
    """How many instances at a time, with how many threads each.

    Attributes
    ----------
    workers : instances at a time (on a cluster its own threads decide, and this counts for a cluster made here)
    threads : of each; None: as the environment (OMP_NUM_THREADS, ...) of the process says that decides it, else one
    scheduler : address of a Dask scheduler; "local": a cluster of processes on this machine; None: no cluster
    """

    workers: int
    threads: int | None
    scheduler: str | None = None

    @staticmethod
    def shared(workers: int | None, threads: int | None, scheduler: str | None) -> Places:
        """Fill in what was not given: as many workers as there are cores for."""
        for option, number in (("--workers", workers), ("--threads", threads)):
            if number is not None and number < 1:
                raise OptionError(f"{option} must be at least 1, found {number}")
        return Places(workers or max(1, cores() // (threads or usual_threads())), threads, scheduler)

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """An executor; on leaving, what has not begun is dropped and what runs here is ended.

        Raises
        ------
        OptionError : Dask is not installed
        InputError : no scheduler at that address
        """
        if self.scheduler is None:
            pool = ThreadPoolExecutor(self.workers, thread_name_prefix="instance")
            try:
                yield pool
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                FLEET.close()
                GROUPS.close()
                pool.shutdown(wait=True)
                GROUPS.rest()
            return
        with _client(self.scheduler, self.workers) as client:
            # Decided once more where its worker is lost; `pure` would let two runs of one instance be one task.
            yield client.get_executor(pure=False)


@contextmanager
def _client(scheduler: str, workers: int) -> Iterator[Any]:
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


def completed(
    executor: Executor, function: Callable[[T], R], tasks: Sequence[T]
) -> Iterator[tuple[T, R | BaseException]]:
    """Every task with its result, as they come; an exception that its execution raised stands for the result."""
    futures = {executor.submit(function, task): task for task in tasks}
    try:
        for future in as_completed(futures):
            error = _error(future)
            yield futures[future], future.result() if error is None else error
    finally:
        for future in futures:
            future.cancel()


def _error(future: Any) -> BaseException | None:
    try:
        error: BaseException | None = future.exception()
    except CancelledError as cancelled:  # a cluster that goes away cancels what it had
        return cancelled
    return error
