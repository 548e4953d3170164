"""Balls around traffic signs: a network of two convolutions with 396,510 Gaussian weights.

    python scripts/measure/signs.py DATA [--images N] [--timeout S]

DATA holds gtsrb_SWAG_small_Posterior_0.npz and gtsrb_50kmh_roadwork_28.npz (in `posteriors` and `sets`, or by
themselves). Images are drawn with seed 0; the label is that of the mean network. Each ball is one question.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bnn_vnnlib import verify_batch
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem import weight_sets
from studies.places import Places, signs

NAME = "gtsrb_SWAG_small_Posterior_0"
ENOUGH = 0.95
RADII = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def main(data: Path, images: int = 20, timeout: float = 20.0) -> None:
    """Print a table; the time limit is that of one ball."""
    torch.set_num_threads(1)
    places = Places(data, data)
    model = places.published(NAME, "categorical")
    pictures = np.ascontiguousarray(signs(places)[0][..., ::-1])  # blue first
    rows = np.random.default_rng(0).choice(len(pictures), images, replace=False)
    x = pictures[rows].reshape(len(rows), -1)
    network, mean = model.network, weight_sets.mean_weights(model.network)
    labels = evaluate(network, torch.tensor(x)).argmax(-1).reshape(-1).numpy()
    differences = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)

    def asked(low: np.ndarray, high: np.ndarray, label: int) -> tuple[float, float, bool]:
        begun = time.process_time()
        found = verify_batch(model, low, high, [label], query="probabilistic", timeout=timeout)
        spent = time.process_time() - begun
        with torch.no_grad():
            bound = Engine(network).rows(mean, torch.tensor(low), torch.tensor(high), differences[None, label, None])
        return float(found.lower[0]), spent, bool(bound.lower > 0)

    asked(x[:1], x[:1], int(labels[0]))  # imports
    print(f"radius (of 255) | P_safe >= {ENOUGH} | mean network, linear bounds | processor s, mean | largest")
    for radius in RADII:
        lower, spent, proved = zip(
            *(
                asked((image - radius / 255).clip(0, 1)[None], (image + radius / 255).clip(0, 1)[None], int(label))
                for image, label in zip(x, labels, strict=True)
            ),
            strict=True,
        )
        enough = sum(bound >= ENOUGH for bound in lower)
        print(f"{radius} | {enough} | {sum(proved)} | {np.mean(spent):.1f} | {max(spent):.1f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
