"""`make fuzz`: attack the bounds for a while. Exit code 1 if anything was violated."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fuzz.campaign import Campaign, judged, read_spec
from fuzz.tiny import judge_tiny
from fuzz.wide import cases, judge

WIDE_SAMPLES = 100_000
"""Networks behind one bound of a wide posterior."""


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    seed: Annotated[int, typer.Option(help="First seed; a second run goes on where the first one stopped.")] = 0,
    folder: Annotated[Path, typer.Option(help="Progress and failing cases.")] = Path("fuzz-runs"),
    nets: Annotated[int, typer.Option(help="Tiny networks against exact rational arithmetic.")] = 1500,
    seconds: Annotated[float, typer.Option(help="Limit of each call.")] = 0.25,
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
    end = time.monotonic() + 60 * minutes
    wrong = _tiny(console, nets, seed, end)
    campaign = Campaign(folder, seed, seconds=seconds)
    wrong += _wide(console, campaign.next, end)
    _watch(console, campaign, end, 60 * minutes)
    failed = len(campaign.failures)
    console.print(
        f"{campaign.cases} cases ({', '.join(f'{n} {name}' for name, n in campaign.counts.items())}), "
        f"{failed} with violations; next seed {campaign.next}"
    )
    if failed:
        console.print(f"see {', '.join(str(folder / f'seed-{one}') for one in campaign.failures[:10])}", markup=False)
    raise typer.Exit(bool(failed or wrong))


def _tiny(console: Console, nets: int, seed: int, end: float) -> int:
    """Bounds of tiny networks against exact arithmetic; at most a third of the time."""
    start, wrong, done = time.monotonic(), 0, 0
    for number in range(nets):
        if time.monotonic() > start + (end - start) / 3:
            break
        done += 1
        for text in judge_tiny(10**6 * seed + number):
            wrong += 1
            console.print(f"tiny {10**6 * seed + number}: {text}", markup=False)
    console.print(
        f"{done} tiny networks against exact arithmetic, {wrong} violations, {time.monotonic() - start:.0f} s"
    )
    return wrong


def _wide(console: Console, seed: int, end: float) -> int:
    """Bounds of wide posteriors against exact infima of sampled networks; at most a fifth of the time left."""
    start, wrong, done = time.monotonic(), 0, 0
    for name, case in cases(seed, sys.maxsize, [1, 2, 3]):
        if time.monotonic() > start + (end - start) / 5:
            break
        done += 1
        line, violated = judge(case, WIDE_SAMPLES)
        if violated:
            wrong += 1
            console.print(f"wide {name}: {line}", markup=False)
    console.print(
        f"{done} bounds of wide posteriors against {WIDE_SAMPLES} networks each, {wrong} violations, "
        f"{time.monotonic() - start:.0f} s"
    )
    return wrong


def _watch(console: Console, campaign: Campaign, end: float, total: float) -> None:
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    start, before = time.monotonic(), campaign.cases
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=total, completed=total - (end - start))
        for _ in campaign.run(end):
            now = time.monotonic()
            rate = (campaign.cases - before) / (now - start)
            progress.update(
                task, completed=total - (end - now),
                description=f"{campaign.cases} cases, {rate:.2f}/s, {len(campaign.failures)} with violations",
            )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
