"""Long jobs: chunks of work, done in this process or in several, kept in a folder as they come.

A chunk is done at once, or in steps, each of which is kept as well.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.sweeps.arrays import Arrays
from bnn_vnnlib.sweeps.folder import Cost, Folder, Kept, Part, Step
from bnn_vnnlib.system.environment import plain_state
from bnn_vnnlib.system.heap import keep_freed_memory
from bnn_vnnlib.system.isolation import isolated

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model

AHEAD = 2
"""Chunks handed out to each worker at a time, so that none waits for the next."""

FIRST, GROWTH = 4, 4
"""Rows of the first chunk, which soon tells the speed; each next one is so many times larger, up to the usual size."""


class Task(Protocol):
    """The work of one chunk; it is sent to another process."""

    def run(self, earlier: Step | None) -> Arrays | Step:
        """Columns of one length; or one step further than `earlier` (None: the beginning), which decides the next."""
        ...


class Job(Protocol):
    """Work in chunks, which are the same whenever the same is asked."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides the results."""
        ...

    def __len__(self) -> int: ...

    def size(self, chunk: int) -> int:
        """Its rows."""
        ...

    def task(self, chunk: int) -> Task:
        """Its work."""
        ...


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes
    ----------
    done, rows : rows finished, and in all
    kept : how many of them an earlier call had finished
    steps : of this call, in chunks that are done in steps
    again : chunks that were finished, but damaged or not of this job, and are done again
    """

    done: int
    rows: int
    kept: int
    steps: int = 0
    again: int = 0


Watch = Callable[[Progress], None]
"""Called at the start, and after each chunk and step."""


@dataclass(frozen=True, eq=False)
class Source:
    """A network by its file, read where the work is done, or in memory."""

    path: Path | None = None
    memory: Model | None = None

    @property
    def model(self) -> Model:
        """The model; the last ones that were read stay in memory."""
        if self.memory is not None:
            return self.memory
        if self.path is None:
            raise InputError("a network needs a file or a model in memory")
        return _read(self.path)


@lru_cache(maxsize=2)
def _read(path: Path) -> Model:
    from bnn_vnnlib.model.reading import read_model

    return read_model(path)


@dataclass(frozen=True)
class Workers:
    """Where the work is done.

    Attributes
    ----------
    number : processes (1: this one)
    threads : torch threads of each; None: as they are (in other processes: as the environment says, else one)
    """

    number: int = 1
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("workers", self.number), ("threads", self.threads)):
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, found {value}")


def carry_out(job: Job, folder: Folder | None, workers: Workers, watch: Watch | None = None) -> list[Part]:
    """Do what is left of a job and return all parts in order.

    Raises
    ------
    OptionError : the folder holds another job
    InputError : a worker process was ended from outside
    """
    if folder is None:
        return _carried_out(job, None, workers, watch)
    with folder.opened(job.settings) as kept:
        return _carried_out(job, kept, workers, watch)


def _carried_out(job: Job, kept: Kept | None, workers: Workers, watch: Watch | None) -> list[Part]:
    todo = [chunk for chunk in range(len(job)) if kept is None or chunk not in kept.parts]
    begun = {} if kept is None else {chunk: kept.step(chunk) for chunk in todo if chunk in kept.steps}
    rows, left = (sum(job.size(chunk) for chunk in chunks) for chunks in (range(len(job)), todo))
    halves = {chunk: step.done for chunk, step in begun.items()}
    first, steps = rows - left + sum(halves.values()), 0
    finished, fresh = rows - left, dict[int, Part]()

    def tell() -> None:
        if watch is not None:
            again = 0 if kept is None else len(kept.rejected)
            watch(Progress(finished + sum(halves.values()), rows, first, steps, again))

    tell()
    for chunk, found in _parts(job, todo, begun, workers):
        if isinstance(found, Step):
            halves[chunk] = found.done
            steps += 1
            if kept is not None:
                kept.keep_step(chunk, found)
        else:
            halves.pop(chunk, None)
            finished += job.size(chunk)
            if kept is None:
                fresh[chunk] = found
            else:
                kept.keep(chunk, found)
        tell()
    return [fresh[chunk] if kept is None else kept.part(chunk) for chunk in range(len(job))]


def usual_chunk(rows: int, workers: int, most: int, least: int = 1, pieces: int = 1) -> int:
    """Rows of a chunk, where nobody says: so that all workers have work until the end.

    Parameters
    ----------
    most : rows, for the sake of memory
    least, pieces : so many chunks for each worker, if they do not become smaller than that
    """
    number = max(-(-rows // most), min(pieces * workers, -(-rows // least)), min(workers, rows))
    number = -(-number // workers) * workers
    return -(-rows // number)


def growing(most: int) -> Iterator[int]:
    """Sizes of chunks, without end: small ones first."""
    size = min(FIRST, most)
    while True:
        yield size
        size = min(most, GROWTH * size)


def joined(parts: Sequence[Part], order: Sequence[str]) -> Arrays:
    """All rows of all parts, sorted by some columns (the last one first, as in numpy's lexsort)."""
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    index = np.lexsort([columns[name] for name in order])
    return {name: values[index] for name, values in columns.items()}


def _parts(
    job: Job, todo: Sequence[int], begun: Mapping[int, Step], workers: Workers
) -> Iterator[tuple[int, Part | Step]]:
    """The chunks and their steps, as they are done."""
    if workers.number == 1 or len(todo) <= 1:
        with _threads(workers.threads):
            for chunk in todo:
                found: Part | Step | None = begun.get(chunk)
                while not isinstance(found, Part):
                    found = _run(job.task(chunk), found)
                    yield chunk, found
        return
    context = multiprocessing.get_context("spawn")
    number = min(workers.number, len(todo))
    life, line = context.Pipe(duplex=False)  # the workers end when this end of the line is closed, even by a kill
    pool = ProcessPoolExecutor(number, context, initializer=_start, initargs=(workers.threads, life))
    try:
        yield from _from_pool(pool, job, todo, begun, AHEAD * number)
        pool.shutdown()
    except BrokenProcessPool:
        message = "a worker process was ended from outside, perhaps for lack of memory; what is finished is kept: "
        raise InputError(f"{message}give the same command again, with fewer workers") from None
    finally:
        line.close()
        pool.shutdown(cancel_futures=True)
        life.close()


def _from_pool(
    pool: ProcessPoolExecutor, job: Job, todo: Sequence[int], begun: Mapping[int, Step], ahead: int
) -> Iterator[tuple[int, Part | Step]]:
    running: dict[Future[Part | Step], int] = {}
    waiting = iter(todo)

    def submit(chunk: int, earlier: Step | None) -> None:
        with isolated():  # this may start a process
            running[pool.submit(_run, job.task(chunk), earlier)] = chunk

    while True:
        while len(running) < ahead and (chunk := next(waiting, None)) is not None:
            submit(chunk, begun.get(chunk))
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            chunk, found = running.pop(future), future.result()
            if isinstance(found, Step):
                submit(chunk, found)
            yield chunk, found


@plain_state()
def _run(task: Task, earlier: Step | None) -> Part | Step:
    begun = time.monotonic()
    found = task.run(earlier)
    columns = found.columns if isinstance(found, Step) else found
    seconds, peak = time.monotonic() - begun, peak_megabytes()
    if earlier is not None:
        seconds, peak = seconds + earlier.cost.seconds, max(peak, earlier.cost.peak_mb)
    cost = Cost(len(next(iter(columns.values()))), seconds, peak)
    return replace(found, cost=cost) if isinstance(found, Step) else Part(found, cost)


def peak_megabytes() -> float:
    """The most memory that this process ever had."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Torch with so many threads, and then with as many as before."""
    if number is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _start(threads: int | None, life: Connection) -> None:
    """A worker process: whoever started it decides when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    keep_freed_memory()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _end_with(life: Connection) -> None:
    multiprocessing.connection.wait([life])
    os._exit(1)
