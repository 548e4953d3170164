"""A run: instances, options and a folder in; outcomes as they come, then the tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from bnn_vnnlib import __version__
from bnn_vnnlib.files.benchmarks import Instance, existing
from bnn_vnnlib.files.sidecar import unfinished
from bnn_vnnlib.jobs.pool import Places
from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.store import Again, Entry, Runnable, Store, hashes
from bnn_vnnlib.runs.tables import write_tables
from bnn_vnnlib.runs.task import Outcome, Task, run_task
from bnn_vnnlib.system.durable import locked


@dataclass(frozen=True)
class How:
    """How each instance is run.

    Attributes
    ----------
    queries : asked of each instance, None: the property's or the model's own; with several of them each instance is
        run once for each, under the category "BENCHMARK:QUERY"
    arguments : further options of `bnn-vnnlib verify`
    seed : as among the arguments
    timeout : replaces every instance's own
    memory : bytes of data for a process
    fresh : a process of its own for each instance
    check : have every witness checked
    """

    queries: tuple[str | None, ...] = (None,)
    arguments: tuple[str, ...] = ()
    seed: int = 0
    timeout: float | None = None
    memory: float | None = None
    fresh: bool = False
    check: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the outcomes, for run.json. Where and in how many processes it runs does not."""
        return {
            "version": __version__,
            "queries": list(self.queries),
            "arguments": list(self.arguments),
            "timeout": self.timeout,
            "memory": self.memory,
        }

    def tasks(self, instances: Sequence[Instance], threads: int | None) -> list[Task]:
        """One for each instance and query."""
        return [self._task(instance, query, threads) for query in self.queries for instance in instances]

    def _task(self, instance: Instance, query: str | None, threads: int | None) -> Task:
        several = len(self.queries) > 1
        return Task(
            category=f"{instance.category}:{query or 'own'}" if several else instance.category,
            onnx=instance.onnx,
            vnnlib=instance.vnnlib,
            models=tuple((name, str(existing(path) or path)) for name, path in instance.models),
            prop=str(existing(instance.prop) or instance.prop),
            timeout=self.timeout or instance.timeout,
            arguments=(*(() if query is None else (f"--query={query}",)), *self.arguments),
            query=query,
            seed=self.seed,
            threads=threads,
            memory=self.memory,
            fresh=self.fresh,
            check=self.check,
            missing=tuple(map(str, instance.missing)),
            own_timeout=instance.timeout,
        )


def selected(instances: Sequence[Instance], patterns: Sequence[str]) -> list[Instance]:
    """Those whose "category/network/property" one of the patterns matches (shell style); all without patterns."""
    if not patterns:
        return list(instances)

    def name(one: Instance) -> str:
        return f"{one.category}/{one.onnx}/{one.vnnlib}"

    return [one for one in instances if any(fnmatchcase(name(one), f"*{pattern}*") for pattern in patterns)]


@dataclass(frozen=True)
class Run:
    """A run in its folder, which is locked meanwhile.

    Attributes
    ----------
    store : the folder
    tasks : in the order of the tables; what is there twice is run once
    todo : those that are to be run
    remarks : for people: what was finished and is run again, and why
    """

    store: Store
    tasks: tuple[Any, ...]
    todo: tuple[Any, ...]
    remarks: tuple[str, ...] = ()

    @staticmethod
    @contextmanager
    def opened(tasks: Sequence[Runnable], store: Store, settings: Mapping[str, Any], again: Again) -> Iterator[Run]:
        """Lock the folder and look at what is finished.

        Raises
        ------
        OptionError : another process is at work in the folder, or it holds a run with other settings
        """
        with locked(store.folder):
            remarks = store.open(settings, again)
            once = {store.place(task): task for task in tasks}
            todo, why = store.todo(once.values(), again)
            remarks += tuple(f"finished, but {reason}, so run again: {count}" for reason, count in why.items())
            yield Run(store, tuple(tasks), tuple(todo), remarks)

    @property
    def kept(self) -> int:
        """How many lines of the tables are finished."""
        open_ = {self.store.place(task) for task in self.todo}
        return sum(self.store.place(task) not in open_ for task in self.tasks)

    def go(self, where: Places, function: Callable[[Any], Outcome] = run_task) -> Iterator[Entry]:
        """Run what is to be run and yield each entry once it is kept; the tables are written however it ends."""
        of = {id(task): hashes(task) for task in self.todo}
        try:
            with where.pool() as pool:
                for task, outcome in pool.completed(deque(self.todo), lambda task: (function, task)):
                    kept = outcome if isinstance(outcome, Outcome) else _lost(task, outcome)
                    yield self.store.write(task, kept, of[id(task)])
        finally:
            self.tables()

    def tables(self) -> list[Entry]:
        """Write the tables of what is finished."""
        entries = list(self.store.entries(self.tasks))
        write_tables(self.store.folder, entries)
        return entries


def _lost(task: Runnable, error: object) -> Outcome:
    """A task whose execution failed outside its process: a cluster that gave it up."""
    reason = f"the task failed: {type(error).__name__}: {error}"
    record = unfinished(
        Verdict.ERROR, reason, task.files, query=None, seed=task.seed, timeout=task.timeout, time_s=0.0
    )  # fmt: skip
    return Outcome(f"{Verdict.ERROR}\n", record, 0.0, 0.0)
