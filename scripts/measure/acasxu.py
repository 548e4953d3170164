"""Run the ACAS Xu networks of a folder on their properties, deterministically, against published verdicts.

    python scripts/measure/acasxu.py CORPUS [--timeout 30]

CORPUS holds acasxu/*.onnx, acasxu/prop_*.vnnlib and expected/expected_results.csv.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import track

from bnn_vnnlib import read_model, read_property, verify


def expected(corpus: Path) -> dict[tuple[str, str], str]:
    """Published verdicts by (network file, property file)."""
    with (corpus / "expected" / "expected_results.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if "acasxu" in row["bench"]]
    return {(Path(row["onnx"]).name, Path(row["vnnlib"]).name): row["result"] for row in rows}


def main(corpus: Path, timeout: float = 30.0) -> None:
    """Print verdicts by kind, contradictions and seconds."""
    console, published = Console(), expected(corpus)
    pairs = [
        (net, prop)
        for net in sorted((corpus / "acasxu").glob("*.onnx"))
        for prop in sorted((corpus / "acasxu").glob("prop_*.vnnlib"))
        if (net.name, prop.name) in published
    ]
    counts: Counter[tuple[str, str]] = Counter()
    begun = time.perf_counter()
    for net, prop in track(pairs, console=Console(stderr=True)):
        model = read_model(net)
        verdict = verify(model, read_property(prop, model.network.signature), query="deterministic", timeout=timeout)
        truth = published[net.name, prop.name]
        counts[truth, verdict.verdict.value] += 1
        if {truth, verdict.verdict.value} == {"sat", "unsat"}:
            console.print(
                f"[bold red]CONTRADICTION[/] {net.name} {prop.name}: {verdict.verdict.value}, published {truth}"
            )
    console.print(f"{len(pairs)} instances in {time.perf_counter() - begun:.1f} s; (published, ours): {dict(counts)}")


if __name__ == "__main__":
    typer.run(main)
