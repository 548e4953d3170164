"""`bnn-vnnlib radius`: how far an input may be changed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnn_vnnlib.cli.guard import check_positive, guard, stderr_console
from bnn_vnnlib.cli.long_jobs import (
    Clip,
    Delta,
    Out,
    Own,
    Restarts,
    Threads,
    Workers,
    read_source,
    shown,
    tell,
    usual_workers,
    widths,
)
from bnn_vnnlib.cli.options import Debug, Device, Likelihood, Margin, Method, QueryName, Rule, Search, Seed

if TYPE_CHECKING:
    from rich.console import Console

    from bnn_vnnlib.sweeps.radius import RadiusSummary


def radius(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    inputs: Annotated[
        Path,
        typer.Argument(help="x (N, n), if wanted label or y, scale, valid_lower, valid_upper; .npz or .parquet."),
    ],
    out: Out,
    threshold: Annotated[float, typer.Option(help="Robust: P_safe >= this; unrobust: P_safe < this.")] = 0.7,
    largest: Annotated[float, typer.Option(help="No radius beyond this is tried.")] = 1.0,
    tolerance: Annotated[float, typer.Option(help="Radii are found up to this.")] = 1e-3,
    first: Annotated[
        float | None, typer.Option(help="The first radius that is tried.", show_default="LARGEST / 32")
    ] = None,
    delta: Delta = None,
    predicted: Own = False,
    clip: Clip = None,
    query: Annotated[QueryName | None, typer.Option(help="What is asked.", show_default="as verify")] = None,
    likelihood: Likelihood = None,
    rule: Rule = None,
    method: Method = "auto",
    margin: Margin = None,
    seed: Seed = 0,
    search: Search = "float64",
    device: Device = None,
    restarts: Restarts = 2,
    chunk: Annotated[int, typer.Option(min=1, help="Inputs that are searched together.")] = 256,
    workers: Workers = None,
    threads: Threads = 1,
    debug: Debug = False,
) -> None:
    """Find the largest certified-robust and the smallest certified-unrobust radius (l-infinity) of each input.

    A robust radius certifies all smaller ones, an unrobust one all larger ones. OUT gets radii.parquet and summary.csv.
    Needs the extra `parquet`.
    """
    console = stderr_console()
    with guard(console, debug):
        check_positive("--margin", margin)
        from bnn_vnnlib.sweeps import Bounding, Radii, radii, read_inputs
        from bnn_vnnlib.sweeps.radius import summary

        read = read_inputs(inputs, clip)
        bounding = Bounding(
            query, likelihood=likelihood, rule=rule, method=method, margin=margin, seed=seed, restarts=restarts,
            device=device, search=search,
        )  # fmt: skip
        with shown(console, "inputs") as watch:
            found = radii(
                read_source(model), read, Radii(largest, tolerance, first), threshold=threshold, delta=widths(delta),
                own=predicted, bounding=bounding, out=out, chunk=chunk, workers=usual_workers(workers, threads),
                threads=threads, watch=watch,
            )  # fmt: skip
        _summary(console, summary(found))
        tell(console, found.spent, "inputs", out)


def _summary(console: Console, found: RadiusSummary) -> None:
    from rich.table import Table

    table = Table("inputs", "robust", "mean radius", "unrobust", "mean radius", "mean gap")
    table.add_row(*(f"{value:.5g}" for value in asdict(found).values()))
    console.print(table)
