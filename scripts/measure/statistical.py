"""What a statistical guarantee costs: draws used beside the best fixed number, and intervals of a trained network.

    python scripts/measure/statistical.py draws [--runs 400]
    python scripts/measure/statistical.py contradictions [--networks 500]
    python scripts/measure/statistical.py network MODEL.onnx POINTS.npz [--eps 0.01] [--draws 20000] [--points 10]

`draws` is simulated: verified networks are 0 or 1 with a known probability. Beside the median number of draws until a
threshold is passed stands the smallest fixed number whose exact binomial test has power one half: it has to be known
beforehand. `network` asks for the interval of P_safe (no threshold) of l-infinity balls around the points X, y of the
archive, clipped to [0, 1], and prints draws, processor seconds and draws a second of one thread.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from onnx import TensorProto, helper, numpy_helper
from scipy.stats import binom

from bnn_vnnlib import read_model, verify_batch
from bnn_vnnlib.martingale import exceeds, failing
from bnn_vnnlib.model import GaussianDiagonal, Model, attach
from bnn_vnnlib.model.reading import model_from_proto

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


@app.command()
def contradictions(networks: int = 500, limit: float = 0.3) -> None:
    """Certain and statistical bounds of random small networks, which may not exclude each other."""
    torch.set_num_threads(1)
    excluding, narrower, spent, widths = 0, 0, [0.0, 0.0], np.zeros((networks, 2))
    for seed in range(networks):
        net, x, radius = small(seed)
        sides = []
        hows: tuple[dict[str, Any], ...] = (
            {"timeout": limit},
            {"guarantee": "statistical", "draws": 500, "seed": seed},
        )
        for place, how in enumerate(hows):
            begun = time.process_time()
            found = verify_batch(net, x - radius, x + radius, labels=[0], query="probabilistic", goal="bounds", **how)
            spent[place] += time.process_time() - begun
            sides.append((found.lower[0], found.upper[0]))
            widths[seed, place] = found.upper[0] - found.lower[0]
        (low, high), (below, above) = sides
        excluding += bool(low > above or high < below)
        narrower += bool(widths[seed, 1] < widths[seed, 0])
    print(f"{networks} networks: {excluding} contradictions; statistical narrower for {narrower}; mean width "
          f"{widths[:, 0].mean():.3f} certain, {widths[:, 1].mean():.3f} statistical; processor s a network "
          f"{spent[0] / networks:.2f}, {spent[1] / networks:.2f}")  # fmt: skip


def small(seed: int) -> tuple[Model, np.ndarray, float]:
    """A random ReLU network with one or two hidden layers and independent Gaussian weights, a point and a radius."""
    rng = np.random.default_rng(seed)
    sizes = [int(rng.integers(2, 5)), *rng.integers(3, 9, rng.integers(1, 3)).tolist(), int(rng.integers(2, 4))]
    spread = float(rng.choice([0.03, 0.1, 0.3, 0.6]))
    nodes, tensors, value = [], {}, "x"
    for place, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = place == len(sizes) - 2
        tensors[f"W{place}"] = rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)
        tensors[f"b{place}"] = 0.3 * rng.standard_normal(outputs)
        nodes.append(helper.make_node("Gemm", [value, f"W{place}", f"b{place}"], ["y" if last else f"z{place}"],
                                      transB=1))  # fmt: skip
        if not last:
            nodes.append(helper.make_node("Relu", [f"z{place}"], [f"h{place}"]))
            value = f"h{place}"
    shapes = (("x", sizes[0]), ("y", sizes[-1]))
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, size]) for name, size in shapes]
    stored = [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], stored)
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    posterior = GaussianDiagonal({name: np.full(tensor.shape, (spread / np.sqrt(tensor.shape[-1])) ** 2)
                                  for name, tensor in tensors.items()})  # fmt: skip
    return model_from_proto(attach(plain, posterior)), rng.standard_normal((1, sizes[0])), float(rng.choice([0.0, 0.1]))


if __name__ == "__main__":
    app()
