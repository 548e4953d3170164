"""`bnn-vnnlib radius`: how far an input may be changed."""

from __future__ import annotations

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

    from bnn_vnnlib.sweeps.radius import RadiusSummary


@with_options(without=("coupling", "boxes", "num_boxes", "outputs", "timeout", "strict"))
def radius(
    model: long_jobs.ModelFile,
    inputs: long_jobs.InputsFile,
    out: long_jobs.Out,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Both TAU_SAFE and TAU_UNSAFE. Robust: P_safe >= this; unrobust: P_safe < this.", show_default="0.7"
        ),
    ] = None,
    largest: Annotated[float, typer.Option(help="The largest radius to try.")] = 1.0,
    tolerance: Annotated[float, typer.Option(help="How precisely radii are found.")] = 1e-3,
    first: Annotated[float | None, typer.Option(help="The first radius to try.", show_default="LARGEST / 32")] = None,
    delta: long_jobs.Delta = None,
    predicted: long_jobs.Own = False,
    clip: long_jobs.Clip = None,
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help="Inputs to search together.", show_default="inputs / workers, at most 256"),
    ] = None,
    workers: long_jobs.Workers = None,
    threads: long_jobs.Threads = None,
    scheduler: Scheduler = None,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Find the largest certified-robust and the smallest certified-unrobust radius (l-infinity) of each input.

    A robust radius certifies all smaller ones, an unrobust one all larger ones. OUT gets radii.parquet and summary.csv.
    Needs the extra `parquet`.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.sweeps import Radii, radii, read_inputs
        from bnn_vnnlib.sweeps.radius import radius_summary

        how, read = Options(**options), read_inputs(inputs, clip)
        with shown(console, "inputs") as watch:
            found = radii(
                long_jobs.read_source(model), read, Radii(largest, tolerance, first), threshold=threshold,
                delta=long_jobs.widths(delta), own=predicted, bounding=how, out=out, chunk=chunk,
                **long_jobs.slots(workers, threads, scheduler), watch=watch,
            )  # fmt: skip
        _summary(console, radius_summary(found))
        long_jobs.tell_cost(console, found.spent, "inputs", out)


def _summary(console: Console, found: RadiusSummary) -> None:
    from rich.table import Table

    table = Table("inputs", "robust", "mean radius", "unrobust", "mean radius", "mean gap")
    table.add_row(*(f"{value:.5g}" for value in asdict(found).values()))
    console.print(table)
