"""A benchmark folder of boxes of the HCAS grid, for `run` and `compare`.

    python scripts/npz_to_onnx.py DATA/hcas_hmc_pra0_tau20.npz OUT/hcas_hmc.onnx --likelihood gaussian
    python scripts/measure/hcas_benchmark.py DATA OUT hcas_hmc.onnx [--count 5] [--radius 0.025] [--timeout 60]

DATA holds hcas_X.npy and hcas_labels_pra0_tau20.npy. The boxes are drawn with seed 0 from those with a label; the
violation is that another output is at least that of the label.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer


def text(lower: list[float], upper: list[float], label: int, outputs: int) -> str:
    """VNN-LIB 1.0."""
    lines = [f"(declare-const X_{k} Real)" for k in range(len(lower))]
    lines += [f"(declare-const Y_{k} Real)" for k in range(outputs)]
    for k, (low, high) in enumerate(zip(lower, upper, strict=True)):
        lines += [f"(assert (>= X_{k} {low:.9f}))", f"(assert (<= X_{k} {high:.9f}))"]
    others = " ".join(f"(and (>= Y_{k} Y_{label}))" for k in range(outputs) if k != label)
    return "\n".join([*lines, f"(assert (or {others}))", ""])


def main(
    data: Path,
    out: Path,
    network: Annotated[str, typer.Argument(help="Name of the network's file in OUT.")],
    count: int = 5,
    radius: float = 0.025,
    timeout: float = 60.0,
) -> None:
    """Write the properties and instances.csv."""
    inputs, labels = np.load(data / "hcas_X.npy"), np.load(data / "hcas_labels_pra0_tau20.npy")
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in np.random.default_rng(0).permutation(np.flatnonzero(labels >= 0))[:count]:
        lower, upper = (inputs[i] - radius).tolist(), (inputs[i] + radius).tolist()
        (out / f"box_{i}.vnnlib").write_text(text(lower, upper, int(labels[i]), 5))
        rows.append(f"{network},box_{i}.vnnlib,{timeout:g}\n")
    (out / "instances.csv").write_text("".join(rows))


if __name__ == "__main__":
    typer.run(main)
