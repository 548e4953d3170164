"""Keep a few small cells of the panel with the project: `python subset.py --out FOLDER`, after `estimate.py`.

benchmarks/panel/subset gets onnx, vnnlib, instances.csv (a benchmark as `bnn-vnnlib run` takes it) and answers.csv:
what this revision says of them. tests/test_panel.py fails where a later one says less.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from pathlib import Path

from questions import QUERIES

from bnn_vnnlib import Result, UnsupportedError, Verdict, read_model, read_property, verify

HERE = Path(__file__).parent / "subset"
MEMBERS = (
    "digits-64-64-10_torchbnn-VI",
    "digits-64-64-10_IVON",
    "digits-64-64-64-10_Laplace-last-layer",
    "breast-cancer-30-16-2_NUTS",
    "control-6-32-32-32-1_Laplace-last-layer",
)
"""Posteriors trained on data that comes with scikit-learn, or on data that is computed; below 250 kB each."""
INPUTS = (0, 1)
PLACES = (0, 1)
"""Of the radii: point and small, most of which take less than a second."""
TIMEOUT, QUICK = 10, 4.0
"""Seconds of a cell; a decided one is kept if it took no more than QUICK."""


def bounds(result: Result, output: int) -> tuple[float, float]:
    """On P_safe, or on the output of D that the property is about."""
    if result.p_safe is not None:
        return result.p_safe.lower, result.p_safe.upper
    if result.decision is None:
        raise ValueError("no bounds")
    return float(result.decision.lower[output]), float(result.decision.upper[output])


def main() -> None:
    """Copy the cells that are decided quickly, and write down their answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the panel's folder")
    out = parser.parse_args().out
    estimates = json.loads((out / "estimates.json").read_text(encoding="utf-8"))
    shutil.rmtree(HERE, ignore_errors=True)
    (HERE / "onnx").mkdir(parents=True)
    (HERE / "vnnlib").mkdir()
    instances, answers = [], []
    for member in MEMBERS:
        shutil.copy(out / "onnx" / f"{member}.onnx", HERE / "onnx")
        model = read_model(HERE / "onnx" / f"{member}.onnx")
        for name in (f"{member}_{i}_{k}" for i in INPUTS for k in PLACES):
            shutil.copy(out / "vnnlib" / f"{name}.vnnlib", HERE / "vnnlib")
            question = read_property(HERE / "vnnlib" / f"{name}.vnnlib", model.network.signature)
            instances.append((f"onnx/{member}.onnx", f"vnnlib/{name}.vnnlib", TIMEOUT))
            for query in QUERIES:
                output = estimates[name]["output"]
                try:
                    result = verify(model, question, query=query, timeout=TIMEOUT)
                except UnsupportedError:
                    continue
                if result.verdict in (Verdict.SAT, Verdict.UNSAT) and result.time_s <= QUICK:
                    lower, upper = bounds(result, output)
                    answers.append((member, name, query, output, result.verdict.value, repr(lower), repr(upper)))
                print(f"{name} {query}: {result.verdict.value}, {result.time_s:.1f} s", flush=True)
    for file, rows in (("instances.csv", instances), ("answers.csv", answers)):
        with (HERE / file).open("w", encoding="utf-8", newline="") as stream:
            table = csv.writer(stream, lineterminator="\n")
            if file == "answers.csv":
                table.writerow(("network", "property", "query", "output", "verdict", "lower", "upper"))
            table.writerows(rows)


if __name__ == "__main__":
    main()
