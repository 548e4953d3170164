"""What the commands of long jobs share: options, networks by name, progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.system.isolation import usual_threads

if TYPE_CHECKING:
    from rich.console import Console

    from bnn_vnnlib.jobs.chunks import Progress, Watch
    from bnn_vnnlib.jobs.folder import Cost
    from bnn_vnnlib.sweeps.source import Source

ModelFile = Annotated[Path, typer.Argument(help="The ONNX model.")]
InputsFile = Annotated[
    Path, typer.Argument(help="x (N, n), if wanted label or y, scale, valid_lower, valid_upper; .npz or .parquet.")
]
Out = Annotated[Path, typer.Option(help="Folder for all results; a job that was ended goes on in it.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="cores / threads")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of each process.", show_default="OMP_NUM_THREADS, else 1")
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Rows at a time, at most, and lost at most by each process that is killed; the first chunks are smaller.",
        show_default="a quarter of the rows of a worker, as memory allows",
    ),
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

EVERY = 10.0
"""Seconds between two lines of progress, where nobody looks at a terminal."""


def places(workers: int | None, threads: int | None, scheduler: str | None) -> dict[str, Any]:
    """`workers`, `threads` (where not given: as the environment says, else one) and `scheduler` of a job."""
    from bnn_vnnlib.jobs.pool import Places

    return vars(Places.shared(workers, threads or usual_threads(), scheduler))


def widths(delta: list[float] | None) -> list[float] | float | None:
    """One number for all outputs, or one for each."""
    return delta[0] if delta is not None and len(delta) == 1 else delta


def read_source(path: Path) -> Source:
    """A network that is read where the work is done."""
    from bnn_vnnlib.sweeps.source import Source

    if path.is_dir():
        raise InputError("is a folder, not an ONNX model", path=path)
    return Source(path)


def read_sources(folder: Path, names: set[str]) -> Mapping[str, Source]:
    """The networks of a folder that a table names, with or without `.onnx`.

    Raises
    ------
    InputError : one of them is not there
    """
    from bnn_vnnlib.sweeps.source import Source

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
            if progress.again and not progress.steps and progress.done == progress.kept:
                bar.console.print(f"damaged, or of another job, so done again: {progress.again}")
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
                if progress.again:
                    self._say(f"damaged, or of another job, so done again: {progress.again}")
                self._say(f"{progress.kept} of {progress.rows} {self._what} are finished; "
                          f"{progress.rows - progress.kept} to go")  # fmt: skip
            elif not self._moved or self._due() or progress.done == progress.rows:
                self._moved = True
                self._tell(progress)

    def end(self) -> None:
        """Nothing more is said."""
        self._over.set()

    def _due(self) -> bool:
        return time.monotonic() - self._said >= EVERY

    def _remind(self) -> None:
        """A chunk may take long: it is still going on."""
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
        self._say(line)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def tell(console: Console, spent: Cost, what: str, out: Path) -> None:
    """Speed and memory, then where it was written."""
    rate = spent.rows / max(spent.seconds, 1e-9)
    text = f"{spent.rows} {what} in {spent.seconds:.1f} s of work over all processes: {rate:.4g} a second and process"
    for line in (f"{text}; at most {spent.peak_mb:.0f} MB a process", f"written to {out}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
