"""Long jobs: chunks of work, done in this process or in several, kept in a folder as they come."""

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
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.heap import keep_freed_memory
from bnn_vnnlib.sweeps.arrays import Arrays
from bnn_vnnlib.sweeps.folder import Cost, Folder, Part

if TYPE_CHECKING:
    from bnn_vnnlib.model.network import Model

AHEAD = 2
"""Chunks handed out to each worker at a time, so that none waits for the next."""


class Task(Protocol):
    """The work of one chunk; it is sent to another process."""

    def run(self) -> Arrays:
        """Columns of one length."""
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
    """done, rows : rows finished, and in all; kept : how many of them an earlier call had finished."""

    done: int
    rows: int
    kept: int


Watch = Callable[[Progress], None]
"""Called after each chunk."""


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
    """number : processes (1: this one); threads : torch threads of each, None: as they are (1 in other processes)."""

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
    folder.open(job.settings)
    with folder.locked():
        folder.clear()
        return _carried_out(job, folder, workers, watch)


def _carried_out(job: Job, folder: Folder | None, workers: Workers, watch: Watch | None) -> list[Part]:
    todo = [chunk for chunk in range(len(job)) if folder is None or not folder.has(chunk)]
    total, left = (sum(job.size(chunk) for chunk in chunks) for chunks in (range(len(job)), todo))
    done = kept = total - left
    fresh: dict[int, Part] = {}
    if watch is not None:
        watch(Progress(done, total, kept))
    for chunk, part in _parts(job, todo, workers):
        if folder is None:
            fresh[chunk] = part
        else:
            folder.keep(chunk, part)
        done += job.size(chunk)
        if watch is not None:
            watch(Progress(done, total, kept))
    return [fresh[chunk] for chunk in range(len(job))] if folder is None else list(folder.parts(len(job)))


def joined(parts: Sequence[Part], order: Sequence[str]) -> Arrays:
    """All rows of all parts, sorted by some columns (the last one first, as in numpy's lexsort)."""
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    index = np.lexsort([columns[name] for name in order])
    return {name: values[index] for name, values in columns.items()}


def _parts(job: Job, todo: Sequence[int], workers: Workers) -> Iterator[tuple[int, Part]]:
    """The chunks as they are done."""
    if workers.number == 1 or len(todo) <= 1:
        _set_threads(workers.threads)
        for chunk in todo:
            yield chunk, _run(job.task(chunk))
        return
    context = multiprocessing.get_context("spawn")
    number = min(workers.number, len(todo))
    life, line = context.Pipe(duplex=False)  # the workers end when this end of the line is closed, even by a kill
    pool = ProcessPoolExecutor(number, context, initializer=_start, initargs=(workers.threads or 1, life))
    try:
        yield from _from_pool(pool, job, todo, AHEAD * number)
        pool.shutdown()
    except BrokenProcessPool:
        message = "a worker process was ended from outside, perhaps for lack of memory; what is finished is kept: "
        raise InputError(f"{message}give the same command again, with fewer workers") from None
    finally:
        line.close()
        pool.shutdown(cancel_futures=True)
        life.close()


def _from_pool(pool: ProcessPoolExecutor, job: Job, todo: Sequence[int], ahead: int) -> Iterator[tuple[int, Part]]:
    running: dict[Future[Part], int] = {}
    waiting = iter(todo)
    while True:
        while len(running) < ahead and (chunk := next(waiting, None)) is not None:
            running[pool.submit(_run, job.task(chunk))] = chunk
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


def _run(task: Task) -> Part:
    begun = time.monotonic()
    columns = task.run()
    rows = len(next(iter(columns.values())))
    return Part(columns, Cost(rows, time.monotonic() - begun, peak_megabytes()))


def peak_megabytes() -> float:
    """The most memory that this process ever had."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _start(threads: int, life: Connection) -> None:
    """A worker process: whoever started it decides when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    keep_freed_memory()
    _set_threads(threads)


def _end_with(life: Connection) -> None:
    multiprocessing.connection.wait([life])
    os._exit(1)
