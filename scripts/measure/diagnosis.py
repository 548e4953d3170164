"""What the diagnosis of runs without a verdict costs and says, on the shipped benchmarks.

    python scripts/measure/diagnosis.py [FAMILY ...] [--each 5] [--limit 5 --limit 10 --limit 20] [--lines]

Of every family, instances from all over its list are asked until `each` of them ended in unknown or timeout, under one
limit after the other. Limits and times are processor times of one thread, so that other work on the machine changes
neither. A run's time has the reading of its files, but not the imports (about 4 s); a run shorter than 0.63 s may spend
25 ms on its diagnosis, which is more than its 4 %.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from rich.console import Console

from bnn_vnnlib import diagnosis, read_model, read_property, verify
from bnn_vnnlib.files.benchmarks import Instance, read_benchmarks
from bnn_vnnlib.result import Diagnosis
from bnn_vnnlib.system.heap import keep_freed_memory

ROOT = Path(__file__).resolve().parents[2] / "benchmarks"
FAMILIES = ["digits", "concrete", "hcas", "mnist"]
STRIDE = 11
"""Neighbours in a list are alike: every 11th instance is taken, around and around; no list has a multiple of 11."""

MIN_SECONDS = 0.025 / 0.04
"""Runs that take less may spend 25 ms on their diagnosis, whatever share that is."""


def asked(instance: Instance, limit: float) -> tuple[str, float, float, Diagnosis | None]:
    """Verdict, processor seconds of the run and of its diagnosis, and the diagnosis itself."""
    ((_, path),) = instance.models
    right, spent = diagnosis.diagnose, list[float]()

    def measured(*args: Any) -> Diagnosis:
        before = time.process_time()
        found = right(*args)
        spent.append(time.process_time() - before)
        return found

    begun, started = time.process_time(), time.monotonic()
    with patch.object(diagnosis, "diagnose", measured):
        model = read_model(path)
        prop = read_property(instance.prop, model.network.signature)
        result = verify(model, prop, timeout=limit, started=started)
    seconds = time.process_time() - begun
    found = result.diagnosis and result.diagnosis.with_files(instance.prop, path)
    return str(result.verdict), seconds, sum(spent), found


def undecided(family: str, each: int, limits: list[float]) -> Iterator[tuple[str, float, str, float, float, Diagnosis]]:
    """Instance, limit and what `asked` says, of the first `each` without a verdict."""
    instances, done = read_benchmarks([ROOT / family / "instances.csv"]), 0
    for number in range(len(instances)):
        if done == each:
            return
        instance, limit = instances[STRIDE * number % len(instances)], limits[done % len(limits)]
        verdict, seconds, spent, found = asked(instance, limit)
        if found is not None:
            done += 1
            yield instance.prop.stem, limit, verdict, seconds, spent, found


def main(
    families: Annotated[list[str] | None, typer.Argument(help="Folders of benchmarks/.")] = None,
    each: Annotated[int, typer.Option(help="Instances without a verdict, of every family.")] = 5,
    limit: Annotated[list[float] | None, typer.Option(help="Seconds; several take turns.")] = None,
    lines: Annotated[bool, typer.Option(help="Print the diagnoses, too.")] = False,
) -> None:
    """Exit code 1 if a diagnosis took more than 5 % of a run that was long enough."""
    time.monotonic = time.process_time  # every deadline goes by it
    keep_freed_memory()
    torch.set_num_threads(1)
    first = read_benchmarks([ROOT / "digits" / "instances.csv"])[2]
    asked(first, 2.0)  # imports and first calls
    shares = []
    console = Console(width=150, soft_wrap=True, highlight=False, markup=False)
    console.print("| instance | limit, s | run, s | verdict | cause | most is lost in | share, % |")
    console.print("|---|---|---|---|---|---|---|")
    for family in families or FAMILIES:
        for name, seconds, verdict, run, spent, found in undecided(family, each, limit or [5.0, 10.0, 20.0]):
            layer = max(found.loss, key=lambda part: found.loss[part], default="-")
            share = 100 * spent / run
            shares += [share] if run >= MIN_SECONDS else []
            cells = name, f"{seconds:g}", f"{run:.1f}", verdict, found.cause, layer, f"{share:.1f}"
            console.print(f"| {' | '.join(cells)} |")
            if lines:
                console.print(*found.lines, "", sep="\n")
    if shares:
        console.print(f"{len(shares)} runs of {MIN_SECONDS:.2f} s or more: median {statistics.median(shares):.1f} %, "
                      f"most {max(shares):.1f} %")  # fmt: skip
    raise typer.Exit(max(shares, default=0.0) > 5.0)


if __name__ == "__main__":
    typer.run(main)
