"""Certify a published HCAS posterior on its whole grid, in one call, and confirm a part of it by sampling.

    python scripts/measure/hcas.py DATA [--count 53792] [--confirm 200] [--query probabilistic]

DATA holds hcas_rob_pra0_tau20.npz, hcas_X.npy and hcas_labels_pra0_tau20.npy (the posteriors published with
'Adversarial Robustness Certification for Bayesian Neural Networks', and the grid).
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnx
from npz_to_onnx import convert

from bnn_vnnlib import Model, attack, read_model, verify_batch
from bnn_vnnlib.batch import BatchResult
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.question.options import MethodChoice
from bnn_vnnlib.system.heap import keep_freed_memory

RADIUS = 0.025


def main(
    data: Path,
    posterior: str = "hcas_rob_pra0_tau20",
    count: int = 53_792,
    confirm: int = 200,
    query: str = "probabilistic",
    method: MethodChoice = "auto",
    margin: Annotated[float | None, typer.Option(help="A fixed margin in sd.")] = None,
) -> None:
    """Print counts, seconds and peak memory."""
    keep_freed_memory()  # as the commands do
    console = Console()
    inputs = np.load(data / "hcas_X.npy")[:count].astype(np.float64)
    labels = np.load(data / "hcas_labels_pra0_tau20.npy")[:count].astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        onnx.save(convert(data / f"{posterior}.npz", "categorical"), file)
        model = read_model(file)
    tau_safe, tau_unsafe = (0.98, 0.05) if query == "probabilistic" else (None, None)
    result = verify_batch(
        model, inputs - RADIUS, inputs + RADIUS, labels, query=query, method=method, margin=margin,
        tau_safe=tau_safe, tau_unsafe=tau_unsafe,
    )  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    words, counts = np.unique(result.verdicts.astype(str), return_counts=True)
    console.print(f"{len(inputs)} boxes, {query}, {result.method}: {result.seconds:.1f} s, peak {peak:.0f} MB")
    console.print(dict(zip(words.tolist(), counts.tolist(), strict=True)))
    if query == "probabilistic":
        console.print(
            f"P_safe lower >= .98: {(result.lower >= 0.98).sum()}; upper < .05: {(result.upper < 0.05).sum()}"
        )
        if confirm:
            _confirm(console, model, inputs, labels, result, confirm)
    else:
        console.print(f"mean gap of D over outputs: {(result.upper - result.lower)[labels >= 0].mean():.4f}")


def _confirm(
    console: Console, model: Model, inputs: np.ndarray, labels: np.ndarray, result: BatchResult, count: int
) -> None:
    """Attack sampled networks by PGD: the share that stays unbroken is an upper estimate of P_safe."""
    if model.posterior is None:
        raise typer.BadParameter("the model carries no posterior")
    draws = np.random.default_rng(0)
    for name, chosen in (("safe", result.lower >= 0.98), ("unsafe", result.upper < 0.05)):
        index = draws.choice(np.flatnonzero(chosen), min(count, int(chosen.sum())), replace=False)
        boxes = torch.tensor(inputs[index])
        problem = from_labels(boxes - RADIUS, boxes + RADIUS, torch.tensor(labels[index]), 5)
        params = sample(model.network, model.posterior, 500, torch.Generator().manual_seed(1))
        _, value = attack.run(model.network, problem, params, attack.Attack(steps=20, restarts=2))
        share = (value > 0).double().mean(0).numpy()  # of the networks that the attack could not break
        wrong = (share < 0.98 - 0.03).sum() if name == "safe" else (share > 0.05 + 0.05).sum()
        console.print(
            f"{len(index)} {name}: share of 500 sampled networks unbroken by PGD: min {share.min():.3f}, "
            f"max {share.max():.3f}; contradictions: {wrong}"
        )


if __name__ == "__main__":
    typer.run(main)
