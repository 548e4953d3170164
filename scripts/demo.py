"""Verify some instances of the shipped benchmark and print a table."""

from __future__ import annotations

import csv
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bnn_vnnlib import Result, Verdict, read_model, read_property, verify
from bnn_vnnlib.display import interval
from bnn_vnnlib.result import Bounds

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "digits"
PER_MODEL = 2
COLOURS = {Verdict.UNSAT: "green", Verdict.SAT: "red"}


def main() -> None:
    """Verify the instances and print one table."""
    console = Console()
    console.print(f"bnn-vnnlib on {BENCHMARK.name}: {PER_MODEL} properties of each model")
    table = Table("model", "property", "query", "verdict", "bounds", "method", "seconds")
    for model, prop, timeout in instances():
        result = run(model, prop, timeout)
        verdict = f"[{COLOURS.get(result.verdict, 'yellow')}]{result.verdict}"
        table.add_row(
            model.stem, prop.stem, result.query, verdict, bounds(result), result.method, f"{result.time_s:.2f}"
        )
    console.print(table)


def instances() -> Iterator[tuple[Path, Path, float]]:
    """The first properties of each model in instances.csv, with their time limits."""
    with (BENCHMARK / "instances.csv").open(newline="") as stream:
        rows = sorted(csv.reader(stream), key=lambda row: row[0])
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        for model, prop, timeout in itertools.islice(group, PER_MODEL):
            yield BENCHMARK / model, BENCHMARK / prop, float(timeout)


def run(model: Path, prop: Path, timeout: float) -> Result:
    """Verify one instance; its reading counts, as in the competition."""
    started = time.monotonic()
    return verify(read_model(model), read_property(prop), timeout=timeout, started=started)


def bounds(result: Result) -> str:
    """The bounds that belong to the query, for the eye."""
    if result.p_safe is not None:
        return f"P_safe {interval(result.p_safe)}"
    if result.decision is not None and len(result.decision.lower):
        worst = Bounds(float(result.decision.lower.min()), float(result.decision.upper.max()))
        return f"decision {interval(worst)}"
    return "-"


if __name__ == "__main__":
    main()
