"""Verify some instances of the shipped benchmark and print a table."""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bnn_vnnlib import Result, Verdict, read_model, read_property, verify
from bnn_vnnlib.display import digits

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "digits"
# Of each model: the first and the last of these kinds (small perturbations first; the last is made to fail) ...
ENDS = ("robust", "interval")
# ... and the first of these.
FIRSTS = ("decision", "deterministic")
LEGEND = (
    "unsat: proved to hold; sat: proved not to hold, with a witness; unknown: the bounds are valid but decide neither"
)
COLOURS = {Verdict.UNSAT: "green", Verdict.SAT: "red"}


def main() -> None:
    """Verify the instances and print one table."""
    console = Console()
    headings = ("model\nproperty", "verdict", "bounds", "method", "s")
    table = Table(*headings, title="benchmarks/digits", caption=LEGEND, caption_justify="left")
    for model, prop, timeout in track(list(instances()), "Verifying", console=console, transient=True):
        result = run(model, prop, timeout)
        name = f"{model.stem}\n{short_name(model, prop)}"
        verdict = f"[{COLOURS.get(result.verdict, 'yellow')}]{result.verdict}"
        table.add_row(name, verdict, bounds(result), result.method, f"{result.time_s:.1f}")
    console.print(table)


def instances() -> Iterator[tuple[Path, Path, float]]:
    """Model, property and time limit of the instances to show, from instances.csv."""
    groups = defaultdict(list)
    with (BENCHMARK / "instances.csv").open(newline="") as stream:
        for model, prop, timeout in csv.reader(stream):
            kind = short_name(Path(model), Path(prop)).partition("_")[0]
            groups[model, kind].append((BENCHMARK / model, BENCHMARK / prop, float(timeout)))
    for (_, kind), group in groups.items():
        if kind in ENDS + FIRSTS:
            yield group[0]
        if kind in ENDS and len(group) > 1:
            yield group[-1]


def short_name(model: Path, prop: Path) -> str:
    """A property's name without that of its model."""
    return prop.stem.removeprefix(model.stem).strip("_")


def run(model: Path, prop: Path, timeout: float) -> Result:
    """Verify one instance."""
    return verify(read_model(model), read_property(prop), timeout=timeout, started=time.monotonic())


def bounds(result: Result) -> str:
    """What is bounded under the query, and its bounds, rounded outward; the deterministic query has none."""
    if result.p_safe is not None:
        what, lower, upper = "P_safe", result.p_safe.lower, result.p_safe.upper
    elif result.decision is not None and len(result.decision.lower):
        what, lower, upper = "decision", float(result.decision.lower.min()), float(result.decision.upper.max())
    else:
        return "(mean network)"
    return f"{what}\n{digits(lower, down=True, places=3)} .. {digits(upper, down=False, places=3)}"


if __name__ == "__main__":
    main()
