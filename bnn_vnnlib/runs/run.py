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
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.jobs.progress import Progress
from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.records import AnyTask, Entry, Records, hashes
from bnn_vnnlib.runs.tables import write_tables
from bnn_vnnlib.runs.task import InstanceTask, Outcome, run_task, unanswered

_FORMAT = 2
"""Version of the folder's format. Before 2, records did not say which options they were made with."""


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
    certificates : have certificates written
    """

    queries: tuple[str | None, ...] = (None,)
    arguments: tuple[str, ...] = ()
    seed: int = 0
    timeout: float | None = None
    memory: float | None = None
    fresh: bool = False
    check: bool = False
    certificates: bool = False

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

    def tasks(self, instances: Sequence[Instance], threads: int | None) -> list[InstanceTask]:
        """The tasks, one for each query and instance."""
        return [self._task(instance, query, threads) for query in self.queries for instance in instances]

    def _task(self, instance: Instance, query: str | None, threads: int | None) -> InstanceTask:
        """The task of one instance and query."""
        several = len(self.queries) > 1
        return InstanceTask(
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
            certificates=self.certificates,
            missing=tuple(map(str, instance.missing)),
            own_timeout=instance.timeout,
        )


def selected(instances: Sequence[Instance], patterns: Sequence[str]) -> list[Instance]:
    """Instances of which a pattern matches "category/network/property" (shell style); all without patterns."""
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
    records : the folder
    tasks : in the order of the tables; what is there twice is run once
    todo : those that are to be run
    redone : {why what was finished does not count: how often}
    """

    records: Records
    tasks: tuple[AnyTask, ...]
    todo: tuple[AnyTask, ...]
    redone: Mapping[str, int]

    @staticmethod
    @contextmanager
    def opened(tasks: Sequence[AnyTask], records: Records, settings: Mapping[str, Any]) -> Iterator[Run]:
        """Lock the folder and look at what is finished.

        Raises
        ------
        OptionError : another process is at work in the folder, or it holds a run with other settings
        """
        with records.opened({"format": _FORMAT, **settings}):
            todo, redone = records.todo({records.place(task): task for task in tasks}.values())
            yield Run(records, tuple(tasks), tuple(todo), redone)

    @property
    def progress(self) -> Progress:
        """Where the run stands before any work, in lines of the tables."""
        open_ = {self.records.place(task) for task in self.todo}
        kept = sum(self.records.place(task) not in open_ for task in self.tasks)
        return Progress(kept, kept + len(self.todo), kept, redone=self.redone)

    def go(self, where: Slots, function: Callable[[Any], Outcome] = run_task) -> Iterator[Entry]:
        """Run what is to be run and yield each entry once it is kept; the tables are written however it ends."""
        of = {id(task): hashes(task) for task in self.todo}
        try:
            with where.pool() as pool:
                for task, outcome in pool.completed(deque(self.todo), lambda task: (function, task)):
                    if not isinstance(outcome, Outcome):  # outside its process: a cluster that gave it up
                        reason = f"the task failed: {type(outcome).__name__}: {outcome}"
                        outcome = unanswered(task, Verdict.ERROR, reason)
                    yield self.records.write(task, outcome, of[id(task)])
        finally:
            self.tables()

    def tables(self) -> list[Entry]:
        """Write the tables of what is finished."""
        entries = [entry for task in self.tasks if (entry := self.records.entry(task)) is not None]
        write_tables(self.records.path, entries)
        return entries
