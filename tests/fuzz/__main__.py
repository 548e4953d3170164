"""`make fuzz`: attack the bounds for a while. Exit code 1 if anything was violated."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fuzz.campaign import Campaign, judged, read_spec
from fuzz.stages import SHARES, Stage, next_of, stages


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    seed: Annotated[int, typer.Option(help="First seed; a second run goes on with the cases where it stopped.")] = 0,
    folder: Annotated[Path, typer.Option(help="Progress and failing cases.")] = Path("fuzz-runs"),
    only: Annotated[str, typer.Option(help=f"One of {', '.join(SHARES)}.")] = "",
    seconds: Annotated[float, typer.Option(help="Limit of each call, of processor time.")] = 0.25,
    again: Annotated[Path | None, typer.Option(help="Run one case.json again instead.")] = None,
) -> None:
    """Random networks, posteriors and properties: bound, attack, compare."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    console = Console()
    if again is not None:
        violations = judged(read_spec(again), 17, seconds)
        for violation in violations:
            console.print(f"{violation.check}: {violation.evidence}", markup=False)
        raise typer.Exit(bool(violations))
    chosen = [s for s in stages(Campaign(folder, seed, seconds=seconds), seed) if only in ("", s.name)]
    _watch(console, chosen, 60 * minutes)
    for stage in chosen:
        if stage.tally.counts:
            console.print(stage.tally.table(f"{stage.name}: how much the bounds say"))
    for stage in chosen:
        said = f", {stage.tally.share():.0%} of the bounds informative" if stage.tally.counts else ""
        console.print(f"{stage.name}: {stage.done} cases{said}, {stage.violations} violations")
    raise typer.Exit(any(stage.violations for stage in chosen))


def _watch(console: Console, chosen: list[Stage], total: float) -> None:
    """Case after case; what is violated is printed at once."""
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    start = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=total)
        while (now := time.monotonic() - start) < total:
            for text in next_of(chosen).step():
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            done = ", ".join(f"{stage.done} {stage.name}" for stage in chosen)
            violations = sum(stage.violations for stage in chosen)
            progress.update(task, completed=now, description=f"{done}; {violations} violations")


if __name__ == "__main__":
    typer.run(main)
