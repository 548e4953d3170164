"""`bnn-vnnlib uncertainty`: how uncertain a network is around inputs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn_vnnlib.cli import long_jobs
from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Scheduler, with_options
from bnn_vnnlib.jobs.progress import shown
from bnn_vnnlib.question.options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from bnn_vnnlib.sweeps.certainty import RadiusReading


SHORT = {"not_uncertain": "not", "not_epistemic": "not", "deviation": "sd"}


@with_options("likelihood", "margin", "guarantee", "confidence", "draws", "seed", "restarts", "device", "search")
def uncertainty(
    model: long_jobs.ModelFile,
    inputs: long_jobs.InputsFile,
    out: long_jobs.Out,
    radius: Annotated[list[float], typer.Option("--radius", "-r", help="May be given several times, increasing.")],
    tau: Annotated[
        float | None, typer.Option(help="An input counts as uncertain if no class exceeds this.", show_default="0.4")
    ] = None,
    epistemic: Annotated[
        float | None,
        typer.Option(help="Also P_safe of every class (or, with --delta, of the output) at this threshold."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only bound D; no attack, no search at tau.")] = False,
    delta: long_jobs.Delta = None,
    predicted: long_jobs.Own = False,
    clip: long_jobs.Clip = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Inputs at a time.", show_default="inputs / workers, at most 64")
    ] = None,
    workers: long_jobs.Workers = None,
    threads: long_jobs.Threads = None,
    scheduler: Scheduler = None,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Bound the decision in balls (l-infinity) of several radii around each input, and read uncertainty from it.

    OUT gets uncertainty.parquet and summary.csv. Needs the extra `parquet`.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.sweeps import Reading, read_inputs
        from bnn_vnnlib.sweeps import uncertainty as bounded

        how, read = Options(**options), read_inputs(inputs, clip)
        with shown(console, "balls") as watch:
            found = bounded(
                long_jobs.read_source(model), read, radius, Reading(tau, epistemic, quick),
                delta=long_jobs.widths(delta), own=predicted, bounding=how, out=out, chunk=chunk,
                **long_jobs.slots(workers, threads, scheduler), watch=watch,
            )  # fmt: skip
        _summary(console, found.readings)
        long_jobs.tell_cost(console, found.spent, "balls", out)


def _summary(console: Console, lines: tuple[RadiusReading, ...]) -> None:
    """What is known for all lines; the file has the rest."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    values = [asdict(line) for line in lines]
    names = [name for name in values[0] if not all(math.isnan(line[name]) for line in values)]
    # Narrow, so that the names of all columns can be read on a terminal of 80 columns.
    table = Table(*(SHORT.get(name, name) for name in names), box=SIMPLE_HEAD, padding=0)
    for line in values:
        table.add_row(*(f"{line[name]:.3g}" for name in names))
    console.print(table)
