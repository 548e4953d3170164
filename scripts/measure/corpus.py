"""Run deterministic instances with published verdicts, and print what agrees, what is open and what contradicts.

    python scripts/measure/corpus.py CORPUS --out DIR [--only acasxu --only mnist_fc] [--timeout 116] [--workers 2]

CORPUS holds .onnx and .vnnlib files (or .gz) in any folders and expected/expected_results.csv with the columns bench,
onnx, vnnlib, result. Files are matched by their names. Names are reused between editions of a benchmark: a published
`unsat` beside our `sat`, whose witness has been replayed in onnxruntime, means that the file is another one.

The instances are run as `bnn-vnnlib run --query deterministic --check` runs them, and DIR is what it makes; a run that
was ended goes on.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bnn_vnnlib.files.benchmarks import Instance
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.runs.records import Entry, Records
from bnn_vnnlib.runs.run import How, Run

KINDS = ("same", "open", "differs", "error")


def instances(corpus: Path, only: list[str], timeout: float) -> list[tuple[Instance, str]]:
    """Instances both files of which are there, each with its published verdict."""
    here = {path.name.removesuffix(".gz"): path for path in sorted(corpus.rglob("*")) if path.is_file()}
    found = []
    with (corpus / "expected" / "expected_results.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            net, prop = (here.get(Path(row[kind]).name.removesuffix(".gz")) for kind in ("onnx", "vnnlib"))
            wanted = not only or any(row["bench"].startswith(name) for name in only)
            if wanted and net is not None and prop is not None:
                instance = Instance(row["bench"], row["onnx"], row["vnnlib"], ((None, net),), prop, timeout)
                found.append((instance, row["result"]))
    return found


def kind_of(entry: Entry, published: str) -> str:
    """Which of KINDS."""
    ours = entry.verdict.value
    return ours if ours == "error" else "same" if ours == published else "open" if ours[-3:] != "sat" else "differs"


def main(
    corpus: Path,
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    only: Annotated[list[str] | None, typer.Option(help="Benchmarks whose names begin so.")] = None,
    timeout: float = 116.0,
    workers: int | None = None,
) -> None:
    """Print a table by benchmark, and every instance on which the verdicts are not the same."""
    console = Console()
    chosen = instances(corpus, only or [], timeout)
    how, where = How(queries=("deterministic",), check=True), Slots.shared(workers, None, None)
    tasks = how.tasks([instance for instance, _ in chosen], where.threads)
    with Run.opened(tasks, Records(out), how.settings) as run:
        for _ in track(run.go(where), total=len(run.todo), console=Console(stderr=True)):
            pass
        entries = run.tables()
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    checks: Counter[str] = Counter()
    for entry, (instance, published) in zip(entries, chosen, strict=True):
        kind, facts = kind_of(entry, published), entry.record["run"]
        counts[instance.category].update({kind: 1, "seconds": facts["run_time"]})
        checks.update([facts["checked"]] if facts["checked"] else [])
        if kind != "same":
            names = f"{instance.onnx} {instance.vnnlib}"
            console.print(f"{kind}: {names}: {entry.verdict}, published {published}, {facts['run_time']:.1f} s")
    table = Table("benchmark", *KINDS, "s")
    for bench, count in sorted(counts.items()):
        table.add_row(bench, *(str(count[kind]) for kind in KINDS), f"{count['seconds']:.0f}")
    console.print(table)
    console.print(f"witnesses checked: {dict(checks)}")


if __name__ == "__main__":
    typer.run(main)
