"""P_safe of published MNIST posteriors around test images.

    python scripts/measure/mnist.py DATA IMAGES [--count 20] [--method tails]

DATA holds the posteriors as .npz, IMAGES is an .npz with x (N, 28, 28) in 0 .. 255 and y (N,).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npz_to_onnx import convert

from bnn_vnnlib import read_model, verify_batch
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.question.options import MethodChoice

RUNS = (
    ("batten_MNIST_MLP_2_50", 0.02),
    ("batten_MNIST_MLP_2_150", 0.005),
    ("batten_wick_MNIST_1_512", 0.02),
    ("bnndp_mnist_1x128", 0.025),
)


def main(data: Path, images: Path, count: int = 20, method: MethodChoice = "tails") -> None:
    """Print one table."""
    with np.load(images) as stored:
        x, label = stored["x"][:count].reshape(count, -1) / 255.0, stored["y"][:count].astype(np.int64)
    table = Table("posterior", "eps", "correct", "lower >= 1 - 1e-6", "upper < .05", "s an image")
    for name, eps in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "net.onnx"
            onnx.save(convert(data / f"{name}.npz", "categorical"), file)
            model = read_model(file)
        correct = (evaluate(model.network, torch.tensor(x)).argmax(-1).numpy() == label).sum()
        result = verify_batch(model, np.maximum(x - eps, 0), np.minimum(x + eps, 1), label, method=method)
        certain, unsafe = (result.lower >= 1 - 1e-6).sum(), (result.upper < 0.05).sum()
        row = (name, eps, correct, certain, unsafe, f"{result.seconds / count:.2f}")
        table.add_row(*(str(cell) for cell in row))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
