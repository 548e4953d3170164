"""Long jobs: chunks of work, done in this process or in several, kept in a folder as they come.

A chunk is done at once, or in steps, each of which is kept as well.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.arrays import Arrays, write_columns
from bnn_vnnlib.jobs.parts import NO_COST, Cost, Kept, Part, PartsFolder, Step
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.jobs.progress import Progress, Watch
from bnn_vnnlib.jobs.worker import Died, Overdue, WorkerKind, discard, own_worker
from bnn_vnnlib.system.environment import plain_state

_FIRST, _GROWTH = 4, 4
"""Rows of the first chunk, which soon tells the speed; each next one is so many times larger, up to the usual size."""


class _ChunkTask(Protocol):
    """The work of one chunk; it is sent to another process."""

    def run(self, earlier: Step | None) -> Arrays | Step:
        """Columns of one length; or one step further than `earlier` (None: the beginning), which decides the next."""
        ...


class _Job(Protocol):
    """Work in chunks, which are the same whenever the same is asked."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides the results."""
        ...

    def __len__(self) -> int: ...

    def size(self, chunk: int) -> int:
        """Number of rows of the chunk."""
        ...

    def task(self, chunk: int) -> _ChunkTask:
        """What a worker is asked to do for the chunk."""
        ...


def carry_out(
    job: _Job, folder: PartsFolder | None, where: Slots, watch: Watch | None = None, *, file: str, order: Sequence[str]
) -> tuple[Arrays, Cost]:
    """Do what is left of a job: all its rows, which the folder gets as one file, and what they cost.

    Parameters
    ----------
    file : its name
    order : columns by which the rows are sorted (the last one first, as in numpy's lexsort)

    Raises
    ------
    OptionError : the folder holds another job
    InputError : a worker process was ended from outside, twice at the same chunk
    """
    with nullcontext() if folder is None else folder.kept(job.settings) as kept:
        parts = _carried_out(job, kept, where, watch)
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        index = np.lexsort([columns[name] for name in order])
        columns = {name: values[index] for name, values in columns.items()}
        if folder is not None:
            write_columns(folder.path / file, columns)
    return columns, sum((part.cost for part in parts), NO_COST)


def _carried_out(job: _Job, kept: Kept | None, where: Slots, watch: Watch | None) -> list[Part]:
    """Work on all chunks that are left, keep what is finished, and return the parts of all chunks."""
    todo = [chunk for chunk in range(len(job)) if kept is None or chunk not in kept.parts]
    begun = {} if kept is None else {chunk: kept.step(chunk) for chunk in todo if chunk in kept.steps}
    rows, left = (sum(job.size(chunk) for chunk in chunks) for chunks in (range(len(job)), todo))
    halves = {chunk: step.done for chunk, step in begun.items()}
    first, steps = rows - left + sum(halves.values()), 0
    finished, fresh = rows - left, dict[int, Part]()
    redone = {"damaged or of another job": len(kept.rejected)} if kept is not None and kept.rejected else {}

    def tell() -> None:
        if watch is not None:
            watch(Progress(finished + sum(halves.values()), rows, first, steps, redone))

    tell()
    for chunk, found in _parts(job, todo, begun, where):
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
    size = min(_FIRST, most)
    while True:
        yield size
        size = min(most, _GROWTH * size)


def _parts(job: _Job, todo: Sequence[int], begun: dict[int, Step], where: Slots) -> Iterator[tuple[int, Part | Step]]:
    """The chunks and their steps, as they are done: here, if they are to be done one after the other."""
    if not todo:
        return
    if where.scheduler is None and (where.workers == 1 or len(todo) <= 1):
        with _threads(where.threads):
            for chunk in todo:
                found: Part | Step | None = begun.get(chunk)
                while not isinstance(found, Part):
                    found = _run(job.task(chunk), found)
                    yield chunk, found
        return
    waiting, kind = deque(todo), WorkerKind(where.threads)

    def call(chunk: int) -> tuple[Any, ...]:
        return _in_process, kind, job.task(chunk), begun.get(chunk)

    with replace(where, workers=min(where.workers, len(todo))).pool() as pool:
        for chunk, result in pool.completed(waiting, call):
            if isinstance(result, Died | Overdue):
                raise InputError(
                    f"a worker process was ended from outside, twice at the same chunk ({result}); what is finished is "
                    "kept: give the same command again, with fewer workers if memory was short"
                )
            if isinstance(result, BaseException):
                raise result
            if isinstance(result, Step):
                begun[chunk] = result
                waiting.appendleft(chunk)
            yield chunk, result


def _in_process(kind: WorkerKind, task: _ChunkTask, earlier: Step | None) -> Part | Step:
    """`_run` in the process of this thread; once more in a new one, if that one is ended from outside."""
    with suppress(Died, Overdue):
        return own_worker(kind)[0].call(_run, task, earlier)
    discard()
    return own_worker(kind)[0].call(_run, task, earlier)


@plain_state()
def _run(task: _ChunkTask, earlier: Step | None) -> Part | Step:
    begun = time.monotonic()
    found = task.run(earlier)
    columns = found.columns if isinstance(found, Step) else found
    cost = Cost(len(next(iter(columns.values()))), time.monotonic() - begun, _peak_megabytes())
    if earlier is not None:
        cost += replace(earlier.cost, rows=0)
    return replace(found, cost=cost) if isinstance(found, Step) else Part(found, cost)


def _peak_megabytes() -> float:
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
