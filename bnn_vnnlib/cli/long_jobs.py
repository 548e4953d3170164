"""What the commands of long jobs share: options, networks by name, progress."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnn_vnnlib.cli.options import QueryName
from bnn_vnnlib.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from bnn_vnnlib.sweeps.jobs import Progress, Source, Watch
    from bnn_vnnlib.sweeps.summary import Spent

ModelFile = Annotated[Path, typer.Argument(help="The ONNX model.")]
InputsFile = Annotated[
    Path, typer.Argument(help="x (N, n), if wanted label or y, scale, valid_lower, valid_upper; .npz or .parquet.")
]
Query = Annotated[QueryName | None, typer.Option(help="What is asked.", show_default="as verify")]
Out = Annotated[Path, typer.Option(help="Folder for all results; a job that was ended goes on in it.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="cores / threads")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of each process.")]
Restarts = Annotated[int, typer.Option(min=1, help="Starting points of the attack on each box.")]
Chunk = Annotated[
    int | None, typer.Option(min=1, help="Rows at a time, and lost at most by each process that is killed.")
]
Clip = Annotated[
    tuple[float, float] | None, typer.Option(metavar="LOW HIGH", help="Valid range of every input, if not in the file.")
]
Own = Annotated[
    bool, typer.Option("--predicted", help="What the mean network says counts, though the file has labels or y.")
]
Delta = Annotated[
    list[float] | None,
    typer.Option(help="Regression: how far each output may be off; once, or once for each output."),
]

EVERY = 30.0
"""Seconds between two lines of progress, where nobody looks at a terminal."""


def usual_workers(workers: int | None, threads: int) -> int:
    """As many as there are cores for."""
    return workers or max(1, len(os.sched_getaffinity(0)) // threads)


def widths(delta: list[float] | None) -> list[float] | float | None:
    """One number for all outputs, or one for each."""
    return delta[0] if delta is not None and len(delta) == 1 else delta


def read_source(path: Path) -> Source:
    """A network that is read where the work is done."""
    from bnn_vnnlib.sweeps.jobs import Source

    if path.is_dir():
        raise InputError("is a folder, not an ONNX model", path=path)
    return Source(path)


def read_sources(folder: Path, names: set[str]) -> Mapping[str, Source]:
    """The networks of a folder that a table names, with or without `.onnx`.

    Raises
    ------
    InputError : one of them is not there
    """
    from bnn_vnnlib.sweeps.jobs import Source

    found = {}
    for name in sorted(names):
        paths = [folder / name, folder / f"{name}.onnx", folder / f"{name}.gz", folder / f"{name}.onnx.gz"]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            there = sorted(other.name for other in folder.glob("*.onnx*"))
            known = f"there are {', '.join(there[:5])}{' ...' if len(there) > 5 else ''}" if there else "there is none"
            raise InputError(f"the table names an unknown network {name!r}; {known}", path=folder)
        found[name] = Source(path)
    return found


@contextmanager
def shown(console: Console, what: str) -> Iterator[Watch]:
    """A bar with rate and time left on a terminal, else a line now and then."""
    if not console.is_terminal:
        yield _Lines(console, what)
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
            rate = (progress.done - progress.kept) / max(time.monotonic() - begun, 1e-9)
            bar.update(task, completed=progress.done, total=progress.rows, rate=f"{rate:.4g}/s")

        yield watch


class _Lines:
    """Progress as lines of text."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what = console, what
        self._begun = self._said = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        first, last = progress.done == progress.kept, progress.done == progress.rows
        if first and progress.kept:
            self._say(
                f"{progress.kept} of {progress.rows} {self._what} are finished; {progress.rows - progress.kept} to go"
            )
        if first or (now - self._said < EVERY and not last):
            return
        self._said = now
        rate = (progress.done - progress.kept) / max(now - self._begun, 1e-9)
        left = (progress.rows - progress.done) / rate
        self._say(f"{progress.done} of {progress.rows} {self._what}, {rate:.4g} a second, {left:.0f} s left")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def tell(console: Console, spent: Spent, what: str, out: Path) -> None:
    """Speed and memory, then where it was written."""
    rate = spent.rows / max(spent.seconds, 1e-9)
    text = f"{spent.rows} {what} in {spent.seconds:.1f} s of work over all processes: {rate:.4g} a second and process"
    for line in (f"{text}; at most {spent.peak_mb:.0f} MB a process", f"written to {out}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
