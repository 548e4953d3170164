"""Run deterministic instances with published verdicts, and print what agrees, what is open and what contradicts.

    python scripts/measure/corpus.py CORPUS [--only acasxu --only mnist_fc] [--timeout 116] [--out verdicts.csv]

CORPUS holds .onnx and .vnnlib files (or .gz) in any folders and expected/expected_results.csv with the columns bench,
onnx, vnnlib, result. Files are matched by their names. Names are reused between editions of a benchmark: a published
`unsat` beside our `sat`, whose witness has been replayed in onnxruntime, means that the file is another one.
"""

from __future__ import annotations

import csv
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bnn_vnnlib import read_model, read_property, verify
from bnn_vnnlib.errors import BnnVnnlibError

Row = dict[str, str]


def instances(corpus: Path, only: list[str]) -> list[Row]:
    """Rows of the published verdicts both files of which are there, with the paths added."""
    here = {path.name.removesuffix(".gz"): path for path in sorted(corpus.rglob("*")) if path.is_file()}
    with (corpus / "expected" / "expected_results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = []
    for row in rows:
        net, prop = (Path(row[kind]).name.removesuffix(".gz") for kind in ("onnx", "vnnlib"))
        if net in here and prop in here and (not only or any(row["bench"].startswith(name) for name in only)):
            found.append({**row, "net": str(here[net]), "prop": str(here[prop])})
    return found


def decided(row: Row, timeout: float) -> tuple[str, float]:
    """Our verdict (or the reason of a refusal) and the seconds it took, reading included."""
    begun = time.monotonic()
    try:
        model = read_model(Path(row["net"]))
        prop = read_property(Path(row["prop"]), model.network.signature)
        result = verify(model, prop, query="deterministic", timeout=timeout, started=begun)
        word = result.verdict.value
    except BnnVnnlibError as error:
        word = f"refused: {error}"
    return word, time.monotonic() - begun


def main(
    corpus: Path,
    only: Annotated[list[str] | None, typer.Option(help="Benchmarks whose names begin so.")] = None,
    timeout: float = 116.0,
    out: Annotated[Path | None, typer.Option(help="A CSV file for every verdict.")] = None,
) -> None:
    """Print a table by benchmark, and every instance on which the verdicts differ."""
    console = Console()
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seconds: defaultdict[str, float] = defaultdict(float)
    lines = []
    for row in track(instances(corpus, only or []), console=Console(stderr=True)):
        word, took = decided(row, timeout)
        kind = "same" if word == row["result"] else "open" if word not in ("sat", "unsat") else "differs"
        if word.startswith("refused"):
            kind = "refused"
        counts[row["bench"]][kind] += 1
        seconds[row["bench"]] += took
        lines.append([row["bench"], row["onnx"], row["vnnlib"], row["result"], word, f"{took:.2f}"])
        if kind != "same":
            console.print(f"{kind}: {row['onnx']} {row['vnnlib']}: {word}, published {row['result']}, {took:.1f} s")
    table = Table("benchmark", "same", "open", "differs", "refused", "s")
    for bench, count in sorted(counts.items()):
        table.add_row(bench, *(str(count[k]) for k in ("same", "open", "differs", "refused")), f"{seconds[bench]:.0f}")
    console.print(table)
    if out is not None:
        with out.open("w", newline="") as stream:
            csv.writer(stream).writerows([["bench", "onnx", "vnnlib", "published", "ours", "s"], *lines])


if __name__ == "__main__":
    typer.run(main)
