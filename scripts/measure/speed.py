"""Time one pass of each method side by side, single thread: deterministic bounds, weight boxes, tails.

    python scripts/measure/speed.py [--batch 64] [--repeats 7] [--rival PATH]

Networks have random weights (seed 0). "crown" is the linear method on the mean network, "boxes" the same with a box of
+-.002 on every weight, "tails" one pass with one budget and standard deviations of .002. "gemm" is the arithmetic
alone: the time that the matrix products of one deterministic pass take at the rate measured in the same run. PATH is a
checkout of auto_LiRPA (github.com/Verified-Intelligence/auto_LiRPA) together with what it imports; its bounds are those
of method "backward" with perturbed weights, in float64, on the same weights, boxes and rows.
"""

from __future__ import annotations

import importlib
import itertools
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.system.heap import keep_freed_memory
from dense import dense_network

SIZES = ([3, 125, 5], [784, 128, 10], [784, 50, 50, 10], [5, 50, 50, 50, 50, 50, 50, 5])
SPREAD, EPS = 0.002, 0.01


def random_network(sizes: list[int]) -> Network:
    """Weights of a usual size."""
    rng = np.random.default_rng(0)
    return dense_network([
        (rng.normal(size=(after, before)) / np.sqrt(before), 0.1 * rng.normal(size=after))
        for before, after in itertools.pairwise(sizes)
    ])  # fmt: skip


def margins(classes: int) -> Tensor:
    """Y_0 - Y_j, (1, m - 1, m)."""
    rows = -torch.eye(classes, dtype=torch.float64)[1:]
    rows[:, 0] = 1.0
    return rows[None]


def medians(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each, after one run to warm up; they take turns, so that a slow moment of the machine hits all."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            begun = time.thread_time()  # of this thread alone: other processes on the machine count for less
            run()
            if turn:
                found[name].append(time.thread_time() - begun)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def median(run: Callable[[], Any], repeats: int) -> float:
    """The same of a single one."""
    return medians({"": run}, repeats)[""]


def ours(sizes: list[int], batch: int) -> dict[str, Callable[[], Tensor]]:
    """What is timed, by name; each returns lower bounds of the rows or failure probabilities."""
    network = random_network(sizes)
    torch.manual_seed(0)
    x = torch.rand(batch, sizes[0], dtype=torch.float64)
    lower, upper, rows = x - EPS, x + EPS, margins(sizes[-1])
    centers = {name: torch.as_tensor(value)[None] for name, value in network.tensors.items()}
    spreads = {name: torch.full(value.shape, SPREAD, dtype=torch.float64) for name, value in network.tensors.items()}
    zero = torch.zeros(1, 1, dtype=torch.float64)
    mean, box = WeightBoxes(centers, {}, zero), WeightBoxes(centers, spreads, zero + 1)
    engine, tails = Engine(network), TailEngine(network)
    bound, budget = torch.zeros(1, rows.shape[1], dtype=torch.float64), torch.tensor([1e-4], dtype=torch.float64)
    return {
        "crown": lambda: engine.rows(mean, lower, upper, rows).lower[0],
        "boxes": lambda: engine.rows(box, lower, upper, rows).lower[0],
        "tails": lambda: tails.failures(mean, box, (lower, upper), rows, None, bound, budget)[0],
    }


def gemm(sizes: list[int], batch: int, repeats: int) -> float:
    """Seconds of the matrix products of one deterministic pass: every layer's rows back through all layers below."""
    total = 0.0
    for k in range(1, len(sizes) - 1):
        rows = 2 * sizes[k + 1] if k + 2 < len(sizes) else sizes[-1] - 1
        for below in range(k, -1, -1):
            a = torch.rand(batch * rows, sizes[below + 1], dtype=torch.float64)
            w = torch.rand(sizes[below + 1], sizes[below], dtype=torch.float64)
            if below < k or k + 2 == len(sizes):
                total += median(partial(torch.matmul, a, w), repeats)
    return total


def rival(path: Path, sizes: list[int], batch: int) -> Callable[[], Tensor]:
    """auto_LiRPA with perturbed weights and biases."""
    sys.path.insert(0, str(path))
    lirpa = importlib.import_module("auto_LiRPA")
    torch.set_default_dtype(torch.float64)  # the rival makes its identities in the default type

    network = random_network(sizes)
    layers: list[torch.nn.Module] = []
    for k, (before, after) in enumerate(itertools.pairwise(sizes)):
        layer = torch.nn.Linear(before, after, dtype=torch.float64)
        for name, tensor in (("weight", f"W{k}"), ("bias", f"b{k}")):
            value = torch.as_tensor(network.tensors[tensor])
            setattr(layer, name, lirpa.BoundedParameter(value, lirpa.PerturbationLpNorm(norm=float("inf"), eps=SPREAD)))
        layers += [layer, torch.nn.ReLU()]
    torch.manual_seed(0)
    x = torch.rand(batch, sizes[0], dtype=torch.float64)
    dense_only = dict.fromkeys(  # perturbed weights are not served by its sparse coefficients
        ("sparse_intermediate_bounds", "sparse_conv_intermediate_bounds", "sparse_intermediate_bounds_with_ibp"), False
    )
    module = lirpa.BoundedModule(torch.nn.Sequential(*layers[:-1]), x, bound_opts=dense_only)
    box = lirpa.BoundedTensor(x, lirpa.PerturbationLpNorm(norm=float("inf"), x_L=x - EPS, x_U=x + EPS))
    rows = margins(sizes[-1]).expand(batch, -1, -1).contiguous()

    def run() -> Tensor:
        with torch.no_grad():
            lower: Tensor = module.compute_bounds(x=(box,), C=rows, method="backward", bound_upper=False)[0]
        return lower

    return run


def main(
    batch: int = 64,
    repeats: int = 7,
    other: Annotated[Path | None, typer.Option("--rival", help="A checkout of auto_LiRPA.")] = None,
) -> None:
    """Print milliseconds a batch, ratios, and the mean lower bound where both give one."""
    keep_freed_memory()  # as the commands do; it serves the rival as well
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = Console(width=120)
    table = Table(*(
        "network", "gemm ms", "crown ms", "boxes / crown", "tails / crown", "crown / gemm", "rival ms", "rival / boxes",
        "rival's bound", "ours",
    ))  # fmt: skip
    runs_of = {tuple(sizes): ours(sizes, batch) for sizes in SIZES}
    seconds_of = {key: medians(runs, repeats) for key, runs in runs_of.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # before what others need
    for sizes in SIZES:
        runs, seconds = runs_of[tuple(sizes)], seconds_of[tuple(sizes)]
        least = gemm(sizes, batch, repeats)
        cells = [
            "-".join(map(str, sizes)), f"{1e3 * least:.2f}", f"{1e3 * seconds['crown']:.2f}",
            *(f"{seconds[name] / seconds['crown']:.2f}" for name in ("boxes", "tails")),
            f"{seconds['crown'] / least:.1f}",
        ]  # fmt: skip
        if other is not None:
            run = rival(other, sizes, batch)
            took = median(run, max(1, repeats // 2))
            cells += [f"{1e3 * took:.1f}", f"{took / seconds['boxes']:.0f}", f"{run().mean():.5f}"]
            cells.append(f"{runs['boxes']().mean():.5f}")
        table.add_row(*cells)
    console.print(table)
    console.print(f"peak memory of our passes {peak:.0f} MB, torch itself included")


if __name__ == "__main__":
    typer.run(main)
