"""Certificates of whole benchmarks: how many answers have one, what the bound loses, sizes, and times beside the run.

    python scripts/measure/certificates.py benchmarks BENCHMARK ... [--timeout S] [--only TEXT]
    python scripts/measure/certificates.py balls MODEL INPUTS.npy RADIUS [--count N] [--tau-safe T] [--timeout S]

BENCHMARK is a folder with an instances.csv. Each instance is run with its own time limit, or S; then its certificate
is made, and checked by `bnn-vnnlib-check` in this process. `balls` asks whether the class of the mean network stays the
largest around inputs that are drawn with seed 0: all in one batch, and those that it proves get certificates. The clock
is processor time, for limits too.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "checker"))

import bnn_vnnlib_check.cli as checker
from bnn_vnnlib import read_model, read_property, verify, verify_batch
from bnn_vnnlib.certificates.prove import certified, refuse, write_proof
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.question.options import Options
from bnn_vnnlib.requirements import around, property_text, robust
from bnn_vnnlib.result import Bounds, Query, Result, Verdict
from bnn_vnnlib.setting import settle_run
from bnn_vnnlib.vnnlib import match
from bnn_vnnlib_check.errors import RejectedError, UnreadableError

app = typer.Typer()


@app.callback()
def main() -> None:
    """One thread, and processor time."""
    torch.set_num_threads(1)
    time.monotonic = time.process_time


@app.command()
def balls(
    model: Path, inputs: Path, radius: float, count: int = 1000, tau_safe: float = 0.95, timeout: float = 2.0,
    clip: tuple[float, float] | None = None, batch: float = 60.0,
) -> None:  # fmt: skip
    """Print what became of the balls; `timeout` is for each certificate, `batch` for the run of all balls together."""
    network = read_model(model)
    x = np.load(inputs)
    x = x[np.random.default_rng(0).choice(len(x), min(count, len(x)), replace=False)].astype(np.float64)
    label = evaluate(network.network, torch.tensor(x)).argmax(-1).reshape(-1).tolist()
    ends, sizes, spent = Counter[str](), list[int](), {"run": 0.0, "prove": 0.0, "check": 0.0, "longest check": 0.0}
    begun, sides = time.process_time(), clip or (-np.inf, np.inf)
    run = verify_batch(
        network, np.clip(x - radius, *sides), np.clip(x + radius, *sides), labels=label, query="probabilistic",
        tau_safe=tau_safe, tau_unsafe=0.0, timeout=batch,
    )  # fmt: skip
    spent["run"] = time.process_time() - begun
    proved = run.verdicts == "unsat"
    ends["not proved by the run"] = int((~proved).sum())
    x, label = x[proved], [own for own, yes in zip(label, proved, strict=True) if yes]
    with tempfile.TemporaryDirectory() as place:
        prop, path = Path(place) / "p.vnnlib", Path(place) / "answer.cert"
        for center, own in zip(x, label, strict=True):
            region = around(center, radius, clip)
            prop.write_text(property_text(region, robust(network.network.signature.output_size, own)))
            property_ = match(read_property(prop), network.network.signature, prop)
            setting = settle_run(network, Options(timeout=timeout, tau_safe=tau_safe, tau_unsafe=0.0), property_)
            wanted = Result(Verdict.UNSAT, Query.PROBABILISTIC, tau_safe, 0.0, "", 0.0, p_safe=Bounds(0.0, 1.0))
            start = time.process_time()
            found = write_proof(path, {"model": model, "property": prop}, setting, property_, wanted)
            spent["prove"] += (done := time.process_time()) - start
            if isinstance(found, str) or found.verdict != "unsat":
                ends["no certificate"] += 1
                continue
            sizes.append(found.size)
            try:
                said = checker.check(model, prop, path, {"tau_safe": str(tau_safe), "tau_unsafe": "0"})
            except (RejectedError, UnreadableError) as error:
                said = str(error)
            ends[said.partition(":")[0]] += 1
            spent["check"] += (now := time.process_time()) - done
            spent["longest check"] = max(spent["longest check"], now - done)
    print(
        f"{dict(ends)}; seconds {dict(spent)}; bytes {statistics.median(sizes or [0]):.0f}, at most {max(sizes or [0])}"
    )


@app.command()
def benchmarks(folders: list[Path], timeout: float | None = None, only: str = "") -> None:
    """Print a line an instance with a verdict and a certificate to be had, and a summary of each benchmark."""
    for folder in folders:
        found, refused = [], Counter[str]()
        with (folder / "instances.csv").open() as stream:
            for name, prop, limit in csv.reader(stream):
                if only in prop:
                    one = _instance(folder / name, folder / prop, timeout or float(limit), refused)
                    found += [one] if one else []
        for reason, count in refused.items():
            print(f"{folder.name}: {count} refused: {reason}")
        for verdict in ("unsat", "sat"):
            rows = [row for row in found if row["verdict"] == verdict]
            good = [row for row in rows if row["claim"] == verdict and row["said"].startswith("accepted")]
            ends = Counter(row["said"].partition(":")[0] if row["claim"] != "none" else "none" for row in rows)
            sizes, checks = ([row[key] for row in good] or [0] for key in ("size", "check"))
            lost = max((row["lost"] or 0 for row in good), default=0)
            spent = ", ".join(f"{key} {sum(row[key] for row in rows):.1f} s" for key in ("run", "prove", "check"))
            print(
                f"{folder.name}: {verdict} {len(rows)}, certified {len(good)}, {dict(ends)}, lost at most {lost:.2g};"
            )
            print(f"  bytes {statistics.median(sizes):.0f}, at most {max(sizes)}; all together {spent};", end=" ")
            print(f"check {statistics.median(checks):.2f} s, at most {max(checks):.2f} s", flush=True)


def _instance(model: Path, prop: Path, limit: float, refused: Counter[str]) -> dict[str, Any] | None:
    if not model.exists():
        model = model.with_name(f"{model.name}.gz")
    network = read_model(model, likelihood="gaussian" if "regression" in model.name else None)
    property_ = match(read_property(prop), network.network.signature, prop)
    options = Options(timeout=limit)
    question = options.question(property_.options, prop)
    try:
        refuse(network, question.query_of(network.posterior is not None), "certain")
    except UnsupportedError as error:
        refused[error.message] += 1
        return None
    begun = time.process_time()
    result = verify(network, property_, timeout=limit)
    name, spent = f"{model.stem} {prop.stem}", time.process_time() - begun
    row: dict[str, Any] = {"name": name, "verdict": result.verdict.value, "run": spent}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "answer.cert"
        start = time.process_time()
        result = certified(path, {"model": model, "property": prop}, network, property_, options, result, begun)
        told = result.details["certificate"]
        row |= {"prove": time.process_time() - start, "claim": told.get("verdict", "none"), "lost": told.get("lost")}
        row |= {"size": told.get("size") or 0, "why": told.get("why", ""), "bound": told.get("bound"), "said": ""}
        start = time.process_time()
        if path.exists():
            try:
                row["said"] = checker.check(model, prop, path)
            except (RejectedError, UnreadableError) as error:
                row["said"] = f"{type(error).__name__}: {error}"
        row["check"] = time.process_time() - start
    if row["verdict"] in ("sat", "unsat"):
        p_safe = result.p_safe and (round(result.p_safe.lower, 6), round(result.p_safe.upper, 6))
        print(
            f"{row['name']} {row['verdict']} by {result.details.get('lower_by') or result.method}, P_safe {p_safe} "
            f"tau {result.tau_safe}: {row['claim']} {row['bound']} lost {row['lost']}, {row['size']} bytes, "
            f"run {row['run']:.2f}, prove {row['prove']:.2f}, check {row['check']:.2f}; {row['why']}{row['said']}",
            flush=True,
        )
        return row
    refused[f"verdict {row['verdict']}"] += 1
    return None


if __name__ == "__main__":
    app()
