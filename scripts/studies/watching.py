"""A progress bar for the long jobs of a study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bnn_vnnlib.jobs.chunks import Progress as Done
from bnn_vnnlib.jobs.chunks import Watch


@contextmanager
def watched(what: str) -> Iterator[Watch]:
    """Show how far the job is, on standard error."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)

        def watch(done: Done) -> None:
            bar.update(task, total=done.rows, completed=done.done)

        yield watch
