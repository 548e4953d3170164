"""What a statistical guarantee costs: draws used beside the best fixed number, and intervals of a trained network.

    python scripts/measure/statistical.py draws [--runs 400]
    python scripts/measure/statistical.py network MODEL.onnx POINTS.npz [--eps 0.01] [--draws 20000] [--points 10]

`draws` is simulated: verified networks are 0 or 1 with a known probability. Beside the median number of draws until a
threshold is passed stands the smallest fixed number whose exact binomial test has power one half: it has to be known
beforehand. `network` asks for the interval of P_safe (no threshold) of l-infinity balls around the points X, y of the
archive, clipped to [0, 1], and prints draws, processor seconds and draws a second of one thread.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
import typer
from scipy.stats import binom

from bnn_vnnlib import read_model, verify_batch
from bnn_vnnlib.martingale import exceeds, failing

CONFIDENCE = 0.999999

SHOWN = ((1.0, 0.9), (1.0, 0.95), (1.0, 0.99), (0.97, 0.95), (0.98, 0.95), (0.99, 0.95), (0.999, 0.99))
"""(true P_safe, threshold to show from below)."""

REFUTED = ((0.0, 0.95), (0.5, 0.95), (0.9, 0.95))
"""(true P_safe, threshold to show from above)."""

app = typer.Typer(add_completion=False)


def used(share: float, threshold: float, runs: int, most: int = 12_000) -> np.ndarray:
    """Draws until a share of ones is proved to exceed the threshold; looked at after every tenth."""
    rng, delta = np.random.default_rng(0), failing(CONFIDENCE, 2)
    step = 1 if share in (0.0, 1.0) else 10
    n = np.arange(step, most + 1, step)
    ones = (rng.random((runs, most)) < share).cumsum(1)[:, n - 1]
    found = np.full(runs, np.inf)
    for run, hits in enumerate(ones):
        shown = exceeds(np.stack([n - hits, hits], 1), threshold, delta)
        if shown.any():
            found[run] = n[shown.argmax()]
    return found


def fixed(share: float, threshold: float) -> int:
    """The least n whose binomial test at this level shows the threshold in half of all cases."""
    delta = failing(CONFIDENCE, 2)
    for n in range(1, 20_000):
        least = int(binom.isf(delta, n, threshold)) + 1
        if least <= n and binom.sf(least - 1, n, share) >= 0.5:
            return n
    return 20_000


@app.command()
def draws(runs: int = 400) -> None:
    """A line for each pair of a true probability and a threshold."""
    print("true P_safe, threshold: fixed number, median, 90 % quantile of draws")
    for share, threshold in SHOWN:
        took = used(share, threshold, runs if share < 1 else 1)
        print(f"{share} >= {threshold}: {fixed(share, threshold)}, {np.median(took):g}, {np.quantile(took, 0.9):g}")
    for share, threshold in REFUTED:
        took = used(1 - share, 1 - threshold, runs if share else 1)
        print(f"{share} < {threshold}: {fixed(1 - share, 1 - threshold)}, {np.median(took):g}, "
              f"{np.quantile(took, 0.9):g}")  # fmt: skip


@app.command()
def network(model: Path, archive: Path, eps: float = 0.01, draws: int = 20_000, points: int = 10) -> None:
    """A line for each point."""
    torch.set_num_threads(1)
    net, data = read_model(model), np.load(archive)
    for i in range(points):
        x, label = data["X"][i : i + 1].astype(np.float64), data["y"][i : i + 1].astype(int)
        low, high = np.clip(x - eps, 0, 1), np.clip(x + eps, 0, 1)
        begun = time.process_time()
        found = verify_batch(net, low, high, labels=label, query="probabilistic", guarantee="statistical", draws=draws,
                             goal="bounds", seed=i)  # fmt: skip
        took = time.process_time() - begun
        if found.draws is None:
            raise SystemExit("no draws were counted")
        counted, safe, violating, open_ = found.draws[0].astype(int).tolist()
        width = found.upper[0] - found.lower[0]
        print(f"{i}: [{found.lower[0]:.4f}, {found.upper[0]:.4f}], width {width:.4f}; {counted} draws: {safe} safe, "
              f"{violating} violating, {open_} open; {took:.0f} processor s, {counted / took:.0f} a second",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    app()
