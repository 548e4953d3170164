"""How far a long job is, and what it took, for whoever looks at a terminal or at a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bnn_vnnlib.printable import say

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 10.0
"""Seconds between two lines of progress, where nobody looks at a terminal."""


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes
    ----------
    done, rows : rows (or instances) finished, and in all
    kept : how many of them an earlier call had finished
    steps : of this call, in chunks that are done in steps
    redone : {why finished chunks or instances do not count: how many}
    """

    done: int
    rows: int
    kept: int
    steps: int = 0
    redone: Mapping[str, int] = field(default_factory=dict)


Watch = Callable[[Progress], None]
"""Called at the start, and after each chunk, step or instance."""


@contextmanager
def shown(console: Console, what: str) -> Iterator[Watch]:
    """A bar with rate and time left on a terminal, else a line now and then."""
    if not console.is_terminal:
        lines = _Lines(console, what)
        try:
            yield lines
        finally:
            lines.end()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True),
    )  # fmt: skip
    with Bar(*columns, console=console, speed_estimate_period=600) as bar:
        task = bar.add_task(what, total=None, rate="")
        begun = time.monotonic()

        def watch(progress: Progress) -> None:
            if bar.tasks[0].total is None:
                say(bar.console, *_redone(progress))
            rate = (progress.done - progress.kept) / max(time.monotonic() - begun, 1e-9)
            steps = f", step {progress.steps}" if progress.steps else ""
            bar.update(task, completed=progress.done, total=progress.rows, rate=f"{rate:.4g}/s{steps}")

        yield watch


class _Lines:
    """Progress as lines of text: at the start, after the first chunk or step, then now and then."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what = console, what
        self._begun = self._said = time.monotonic()
        self._moved = False
        self._latest: Progress | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()  # of all but the clock
        threading.Thread(target=self._remind, daemon=True).start()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            start, self._latest = self._latest is None, progress
            if start:
                self._said = time.monotonic()
                finished = f"{progress.kept} of {progress.rows} {self._what} are finished"
                say(self._console, *_redone(progress), f"{finished}; {progress.rows - progress.kept} to go")
            elif not self._moved or self._due() or progress.done == progress.rows:
                self._moved = True
                self._tell(progress)

    def end(self) -> None:
        """Say nothing more from now on."""
        self._over.set()

    def _due(self) -> bool:
        return time.monotonic() - self._said >= EVERY

    def _remind(self) -> None:
        """Say from time to time that a chunk that takes long is still going on."""
        while not self._over.wait(1.0):
            with self._lock:
                if self._latest is not None and self._due():
                    self._tell(self._latest)

    def _tell(self, progress: Progress) -> None:
        self._said = time.monotonic()
        taken, fresh = self._said - self._begun, progress.done - progress.kept
        line = f"{progress.done} of {progress.rows} {self._what} after {taken:.0f} s"
        if progress.steps:
            line += f", step {progress.steps}"
        if fresh and taken:
            line += f", {fresh / taken:.4g} a second, {(progress.rows - progress.done) * taken / fresh:.0f} s left"
        say(self._console, line)


def _redone(progress: Progress) -> list[str]:
    return [f"finished, but {why}, so run again: {count}" for why, count in progress.redone.items()]
