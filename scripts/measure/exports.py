"""What is recovered from stochastic exports, against known means and deviations.

    python scripts/measure/exports.py FOLDER

FOLDER holds *.onnx and manifest.json: {file: {"recovered": {weight: {"mean": .., "std": ..}}}}.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import typer
from rich.console import Console
from rich.table import Table

from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.model.recovery import NotRecoverable, Recovery, recover
from bnn_vnnlib.posteriors.origin import origin


def largest_error(recovery: Recovery, truth: dict[str, dict[str, list[float]]]) -> str:
    """Largest difference to the known means and deviations."""
    if not truth:
        return "no truth listed"
    tensors = {name: array_of(tensor) for name, tensor in holders(recovery.proto).items()}
    pairs = [(tensors[name], known["mean"]) for name, known in truth.items()]
    pairs += [(recovery.deviations[name], known["std"]) for name, known in truth.items()]
    return f"{max(np.abs(found - np.array(known)).max() for found, known in pairs):.1e}"


def main(folder: Path) -> None:
    """Print a table."""
    manifest = json.loads((folder / "manifest.json").read_text())
    table = Table("file", "layers like", "outcome", "largest error")
    for path in sorted(folder.glob("*.onnx")):
        proto = onnx.load(path)
        truth = (manifest.get(path.name) or {}).get("recovered") or {}
        cells = [path.name, origin(proto).library]
        try:
            recovery = recover(proto)
            table.add_row(*cells, f"{len(recovery.deviations)} weights", largest_error(recovery, truth))
        except NotRecoverable as error:
            table.add_row(*cells, error.kind, "")
            if error.kind == "frozen noise":
                released = recover(proto, frozen_noise=True)
                outcome = f"{len(released.deviations)} weights"
                table.add_row("", "", f"--frozen-noise: {outcome}", largest_error(released, truth))
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
