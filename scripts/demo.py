"""Verify some instances of the shipped benchmark and print a table for each query."""

from __future__ import annotations

import csv
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bnn_vnnlib import Query, Result, Verdict, read_model, read_property, verify
from bnn_vnnlib.display import digits

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "digits"
# Of each model: the first and the last of these kinds (small perturbations first; the last is made to fail) ...
ENDS = ("robust", "interval")
# ... and the first of these.
FIRSTS = ("decision", "deterministic")
TITLES = {
    Query.PROBABILISTIC: "How likely is it that a drawn network meets the requirement? (P_safe; unsat: at least 0.95)",
    Query.DECISION: "Does the averaged prediction meet it?",
    Query.DETERMINISTIC: "Does the one network of the mean weights meet it?",
}
LEGEND = "unsat: proved to hold; sat: proved to fail, with a witness; unknown, timeout: valid bounds that do not decide"
NEXT = """Next: one instance with all that is known of it, a requirement of your own, a page of all instances.
  bnn-vnnlib verify benchmarks/digits/vnnlib/1.0/digits_vi_mlp_robust_313_0.02.vnnlib \\
      --network benchmarks/digits/onnx/digits_vi_mlp.onnx
  bnn-vnnlib property --help
  bnn-vnnlib run benchmarks/digits --out results && bnn-vnnlib report results
The program is in {where}; docs/tutorial.md goes from training to a certificate."""
COLOURS = {Verdict.UNSAT: "green", Verdict.SAT: "red"}


def main() -> None:
    """Verify the instances and print one table for each query."""
    console = Console()
    results: dict[Query, list[tuple[str, Result]]] = defaultdict(list)
    for model, prop, timeout in track(list(instances()), "Verifying", console=console, transient=True):
        result = run(model, prop, timeout)
        results[result.query].append((f"{model.stem}\n  {short_name(model, prop)}", result))
    for query, title in TITLES.items():
        table = Table("model\nproperty", "verdict", "bounds", "method", "s", title=title, title_justify="left")
        for name, result in results[query]:
            verdict = f"[{COLOURS.get(result.verdict, 'yellow')}]{result.verdict}"
            table.add_row(name, verdict, bounds(result), result.method, f"{result.time_s:.1f}")
        console.print(table)
    console.print(LEGEND, NEXT.format(where=Path(sys.executable).parent), sep="\n\n", highlight=False, soft_wrap=True)


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
