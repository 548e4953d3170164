"""Answer the questions of OUT/instances.csv, under both queries: `python answer.py --out FOLDER --cells FILE`.

Each answer becomes a row of FILE; rows of this revision that are there already are kept, and those of another one are
measured again. So the panel can be measured in several sittings.

A question has one thread and 60 seconds of its processor, not of the wall clock, so that whatever else the machine does
changes no answer: in the process of a question, `time.monotonic` is the time that the process has computed.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from questions import QUERIES, TIMEOUT

COLUMNS = (
    "property", "architecture", "posterior", "radius", "query", "verdict", "lower", "upper", "estimate", "estimate_to",
    "unit", "probability", "method", "seconds", "cause", "diagnosis", "reason", "revision",
)  # fmt: skip
"""Of FILE. `estimate` and `estimate_to`: the estimated P_safe twice, or the attained range of D; `unit`: what bounds
are measured by; `probability`: whether they lie in [0, 1]; `diagnosis`: the share of `seconds` that it took; `reason`:
why the question was refused."""
MEMORY = 8
"""GiB a question."""


def answer(name: str, network: str, out: Path, query: str, estimate: dict[str, Any]) -> dict[str, Any]:
    """The row of one question, without its revision; in a process of its own."""
    time.monotonic = time.process_time
    import torch

    from bnn_vnnlib import InputError, read_model, read_property, verify

    torch.set_num_threads(1)
    probability = query == "probabilistic" or estimate["classes"] is not None
    known = [estimate["p_safe"]] * 2 if query == "probabilistic" else estimate["d"]
    row: dict[str, Any] = {
        "property": name, "architecture": estimate["architecture"], "posterior": estimate["method"],
        "radius": estimate["radius"], "query": query, "verdict": "error", "lower": 0.0 if probability else -math.inf,
        "upper": 1.0 if probability else math.inf, "estimate": known[0], "estimate_to": known[1],
        "unit": 1.0 if query == "probabilistic" else estimate["unit"], "probability": int(probability),
    }  # fmt: skip
    begun = time.monotonic()
    try:
        model = read_model(out / network)
        asked = read_property(out / "vnnlib" / f"{name}.vnnlib", model.network.signature)
        found = verify(model, asked, query=query, timeout=TIMEOUT, memory=MEMORY, started=begun)
    except InputError as refused:
        reason = str(refused).replace(f"{out}{os.sep}", "")
        return row | {"reason": reason, "seconds": time.monotonic() - begun}
    bounds = (found.p_safe.lower, found.p_safe.upper) if found.p_safe else (row["lower"], row["upper"])
    if found.decision is not None:
        bounds = tuple(float(side[estimate["output"]]) for side in (found.decision.lower, found.decision.upper))
    why = found.diagnosis
    return row | {
        "verdict": str(found.verdict), "lower": bounds[0], "upper": bounds[1], "method": found.method,
        "seconds": found.time_s, "cause": why.cause if why else "",
        "diagnosis": why.seconds / max(found.time_s, 1e-9) if why else "",
    }  # fmt: skip


def _row(question: tuple[Any, ...]) -> dict[str, Any]:
    return answer(*question)


def text(value: object) -> str:
    """A value of a row as it stands in the file."""
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("\n", " ")


def read_rows(cells: Path) -> list[dict[str, str]]:
    """The rows that are there."""
    if not cells.exists():
        return []
    with cells.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def main() -> None:
    """All questions that have no row yet, in the order of the instances, which takes all networks in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the panel's folder")
    parser.add_argument("--cells", type=Path, required=True, help="the table of all cells")
    parser.add_argument("--revision", required=True, help="of the program, as `git rev-parse --short HEAD` names it")
    parser.add_argument("--workers", type=int, default=2, help="questions at the same time (2)")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    estimates = json.loads((options.out / "estimates.json").read_text(encoding="utf-8"))
    kept = [row for row in read_rows(options.cells) if row.get("revision") == options.revision]
    done = {(row["property"], row["query"]) for row in kept}
    with (options.out / "instances.csv").open(encoding="utf-8", newline="") as stream:
        instances = [(Path(property).stem, network) for network, property, _ in csv.reader(stream)]
    asked = [
        (name, network, options.out, query, estimates[name])
        for name, network in instances
        for query in QUERIES
        if (name, query) not in done
    ]
    with options.cells.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(kept)
        # A fresh process a question, so that none finds warm what another one left; imports are not counted.
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "scipy.special", "bnn_vnnlib.setting", "bnn_vnnlib.model"])
        with context.Pool(options.workers, maxtasksperchild=1) as pool:
            for count, row in enumerate(pool.imap(_row, asked, chunksize=1), 1):
                shown = {name: text(value) for name, value in row.items()}
                table.writerow(shown | {"revision": options.revision})
                stream.flush()
                print(f"{count}/{len(asked)} {row['property']} {row['query']}: {row['verdict']}", flush=True)


if __name__ == "__main__":
    main()
