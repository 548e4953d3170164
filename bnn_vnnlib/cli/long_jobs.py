"""What the commands of long jobs share: options, networks by name, lines about what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.jobs.progress import shown
from bnn_vnnlib.printable import say
from bnn_vnnlib.system.isolation import usual_threads

if TYPE_CHECKING:
    from rich.console import Console

    from bnn_vnnlib.jobs.parts import Cost
    from bnn_vnnlib.runs.records import Entry
    from bnn_vnnlib.runs.run import Run
    from bnn_vnnlib.sweeps.source import Source

ModelFile = Annotated[Path, typer.Argument(help="The ONNX model.")]
InputsFile = Annotated[
    Path, typer.Argument(help="x (N, n), and optionally label or y, scale, valid_lower, valid_upper; .npz or .parquet.")
]
Out = Annotated[Path, typer.Option(help="Folder for all results; an interrupted job resumes from it.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="cores / threads")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of each process.", show_default="OMP_NUM_THREADS, else 1")
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="The most rows at a time, and the most that a killed process loses; the first chunks are smaller.",
        show_default="a quarter of the rows of a worker, as memory allows",
    ),
]
Clip = Annotated[
    tuple[float, float] | None, typer.Option(metavar="LOW HIGH", help="Valid range of every input, if not in the file.")
]
Own = Annotated[
    bool, typer.Option("--predicted", help="Use the mean network's predictions, although the file has labels or y.")
]
Delta = Annotated[
    list[float] | None,
    typer.Option(help="Regression: how far each output may be off; once, or once for each output."),
]


def slots(workers: int | None, threads: int | None, scheduler: str | None) -> dict[str, Any]:
    """`workers`, `threads` (where not given: as the environment says, else one) and `scheduler` of a job."""
    from bnn_vnnlib.jobs.pool import Slots

    return vars(Slots.shared(workers, threads or usual_threads(), scheduler))


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


def follow(console: Console, run: Run, entries: Iterator[Entry], tool: str = "") -> None:
    """A line for each instance that is finished, beside how far the run is; taking the entries does the work."""
    begun, todo = run.progress, len(run.todo)
    with shown(console, f"instances of {tool}" if tool else "instances") as watch:
        watch(begun)
        for number, entry in enumerate(entries, 1):
            facts = entry.record["run"]
            vacuous = " (vacuous)" if (entry.record.get("asked") or {}).get("vacuous") else ""
            line = f"[{number}/{todo}] {entry.verdict} {facts['run_time']:.2f} s{vacuous}  "
            line += f"{facts['category']} {facts['network']} {facts['property']}"
            say(console, f"{tool} {line}".lstrip())
            watch(replace(begun, done=begun.done + number))


def tell_cost(console: Console, spent: Cost, what: str, out: Path) -> None:
    """Speed and memory, then where it was written."""
    rate = spent.rows / max(spent.seconds, 1e-9)
    text = f"{spent.rows} {what} in {spent.seconds:.1f} s of work over all processes: {rate:.4g} a second and process"
    say(console, f"{text}; at most {spent.peak_mb:.0f} MB a process", f"written to {out}")
