"""How time and memory of one pass grow: fitted exponents in the work that must be done.

    python scripts/measure/growth.py [--only width]

Random networks with independent Gaussian weights, standard deviations of 1 % of each. One thing grows, the rest stays.
The work is the products of one walk back from every unit and every row: for each layer its units times the products of
all layers up to it, times the boxes; for weight samples the products of all layers, times the samples. Times are
processor seconds of one thread, memory is the peak beyond what the libraries take. A size is a process of its own. The
exponent is that of a line fitted to logarithms: 1 where time grows as the work does.
"""

from __future__ import annotations

import resource
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import GaussianDiagonal, Network, WeightSamples
    from bnn_vnnlib.problem.problem import Problem

Sizes = dict[str, int]

USUAL: Sizes = {"width": 64, "depth": 2, "channels": 0, "side": 8, "boxes": 16, "samples": 0}
GROWING: dict[str, tuple[Sizes, tuple[int, ...]]] = {
    "width": ({}, (128, 256, 512, 1024)),
    "depth": ({"width": 128}, (2, 3, 4, 6)),
    "boxes": ({"width": 128}, (16, 64, 256, 1024)),
    "samples": ({"width": 128}, (16, 64, 256, 1024)),
    "channels": ({"boxes": 1, "side": 16}, (8, 16, 32, 64)),
    "side": ({"boxes": 1, "channels": 16}, (12, 16, 24, 32)),
}
"""By name: what differs from the usual sizes, and the sizes that are measured."""


def measured(sizes: Sizes) -> tuple[float, float, float]:
    """Work, processor seconds and MiB of one pass."""
    import torch

    from bnn_vnnlib.network.network import GaussianDiagonal, WeightSamples
    from bnn_vnnlib.problem.problem import from_labels
    from dense import dense_network

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    if sizes["channels"]:
        network, units, products = convolutions(sizes, rng)
    else:
        widths = [sizes["width"]] * (sizes["depth"] + 1) + [10]
        pairs = list(zip(widths[1:], widths[:-1], strict=True))
        layers = [(rng.normal(size=pair) / pair[1] ** 0.5, rng.normal(size=pair[0])) for pair in pairs]
        network, units, products = dense_network(layers), widths[1:], [m * n for m, n in pairs]
    if sizes["samples"]:
        stored = {n: v + 0.01 * v * rng.normal(size=(sizes["samples"], *v.shape)) for n, v in network.tensors.items()}
        posterior: GaussianDiagonal | WeightSamples = WeightSamples(
            stored, np.full(sizes["samples"], 1 / sizes["samples"])
        )
        work = float(sum(products) * sizes["samples"] * sizes["boxes"])
    else:
        posterior = GaussianDiagonal({name: (0.01 * value) ** 2 for name, value in network.tensors.items()})
        work = float(sum(u * sum(products[: i + 1]) for i, u in enumerate(units)) * sizes["boxes"])
    x = torch.tensor(rng.uniform(size=(sizes["boxes"], network.signature.input_size)))
    problem = from_labels(x - 1e-4, x + 1e-4, torch.zeros(len(x), dtype=torch.int64), 10)
    one_pass(network, posterior, problem.items(torch.arange(1)))
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    one_pass(network, posterior, problem)
    spent = time.process_time() - begun
    return work, spent, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


def one_pass(network: Network, posterior: GaussianDiagonal | WeightSamples, problem: Problem) -> None:
    """One plain pass of tails, or of linear bounds over all samples."""
    import torch

    from bnn_vnnlib.bounds.engine import Engine
    from bnn_vnnlib.bounds.tails import TailEngine
    from bnn_vnnlib.network.network import WeightSamples
    from bnn_vnnlib.problem import weight_sets

    rows, box = problem.rows, (problem.lower, problem.upper)
    with torch.no_grad():
        if isinstance(posterior, WeightSamples):
            samples = weight_sets.SampledWeights.of(network, posterior)
            for index in samples.parts():
                Engine(network).rows(samples.boxes(index), *box, rows.outputs)
            return
        weights = weight_sets.mean_weights(network), weight_sets.centred(network, posterior)
        TailEngine(network).failures(*weights, box, rows.outputs, None, rows.bound, torch.tensor([1e-8]).double())


def convolutions(sizes: Sizes, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """Two 3 x 3 convolutions, the second one with stride 2, and a dense layer; their units and products."""
    import io

    import onnx
    import torch
    from torch import nn

    from bnn_vnnlib.model import model_from_proto

    torch.manual_seed(int(rng.integers(2**31)))
    c, side = sizes["channels"], sizes["side"]
    half = (side + 1) // 2
    net = nn.Sequential(
        nn.Conv2d(3, c, 3, 1, 1), nn.ReLU(), nn.Conv2d(c, c, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(c * half * half, 10),
    )  # fmt: skip
    stored = io.BytesIO()
    torch.onnx.export(net.eval(), (torch.zeros(1, 3, side, side),), stored, dynamo=False)  # type: ignore[arg-type]
    network = model_from_proto(onnx.load_from_string(stored.getvalue())).network
    units = [c * side * side, c * half * half, 10]
    return network, units, [units[0] * 27, units[1] * 9 * c, units[1] * 10]


def main(only: Annotated[list[str] | None, typer.Option(help="What grows.")] = None) -> None:
    """A table in Markdown: what grows, its sizes, seconds, MiB, and both exponents."""
    print("| grows | sizes | s | MiB | exponent of time | of memory |\n|---|---|---|---|---|---|")
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in only or GROWING:
            fixed, sizes = GROWING[name]
            rows = [pool.apply(measured, ({**USUAL, **fixed, name: size},)) for size in sizes]
            work, seconds, memory = (np.log(np.maximum(column, 1e-3)) for column in np.array(rows).T)
            slopes = [np.polyfit(work, values, 1)[0] for values in (seconds, memory)]
            told = (", ".join(f"{value:.3g}" for value in column) for column in (sizes, *np.array(rows).T[1:]))
            print(f"| {name} | {' | '.join(told)} | {slopes[0]:.2f} | {slopes[1]:.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
