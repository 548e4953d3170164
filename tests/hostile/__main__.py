"""Read mangled files until the time is over: `make fuzz-inputs`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hostile.inputs import SHARES, Campaign, seeds
from hostile.reader import Reader

SHIPPED = Path(__file__).resolve().parents[2] / "benchmarks"


def main(
    minutes: float = 30.0,
    seed: Annotated[int, typer.Option(help="Number of the first file; its content follows from it.")] = 0,
    folder: Annotated[Path, typer.Option(help="For the progress and the files that break a reader.")] = Path(
        "fuzz-runs/inputs"
    ),
    corpus: Annotated[list[Path] | None, typer.Option(help="Further folders with files to mangle.")] = None,
    again: Annotated[
        Path | None, typer.Option(help="Read this one file under the same limits, and say what happens.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help=f"Only such files: {', '.join(SHARES)}.")] = None,
    limit: Annotated[float, typer.Option(help="Seconds a file may take.")] = 20.0,
) -> None:
    """Exit code 1 if a reader crashed or hung."""
    console = Console()
    with Reader(limit) as reader:
        if again is not None:
            outcome = reader.read(again.suffix, again.read_bytes())
            console.print(f"{outcome.kind}: {outcome.text}", markup=False, highlight=False)
            raise typer.Exit(int(outcome.kind in ("crash", "hang")))
        campaign = Campaign(folder, seed, seeds([SHIPPED, *(corpus or [])]), kind)
        _watch(console, campaign, reader, 60 * minutes)
    campaign.save()
    for kind, count in sorted(campaign.counts.items()):
        console.print(f"{kind}: {count}")
    total = sum(campaign.counts.values())
    bad = {kind: sum(n for key, n in campaign.counts.items() if key.endswith(kind)) for kind in ("crash", "hang")}
    console.print(f"{total} files: crashes {bad['crash']}, hangs {bad['hang']}")
    for path in campaign.failures:
        console.print(f"make fuzz-inputs AGAIN={path}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(int(any(bad.values())))


def _watch(console: Console, campaign: Campaign, reader: Reader, seconds: float) -> None:
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    begun = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=seconds)
        for done, _ in enumerate(campaign.run(reader, begun + seconds), 1):
            spent = time.monotonic() - begun
            rate = f"{sum(campaign.counts.values())} files, {done / spent:.0f}/s, {len(campaign.failures)} failures"
            progress.update(task, completed=spent, description=rate)


if __name__ == "__main__":
    typer.run(main)
