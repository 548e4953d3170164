"""P_safe under large variances: bounds of `methods.safety.large_variance` at points of a digits file, beside samples.

    python scripts/measure/large_variance.py FILE.npz [--points 0,1,2] [--eps 0,0.01] [--scale 1] [--sampled 100000]

FILE holds mean_k, std_k (W1, b1, W2, b2, ..; y = act(x W + b)) and X. Boxes are x +- eps cut at [0, 1]; the class is
that of the mean network. Printed: the lower bound, and at eps 0 the estimate and the sum over rows of sampled networks.
Networks with more than one hidden layer are bounded at points only.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from bnn_vnnlib.methods.safety.large_variance.rows import LargeVarianceBounds
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.problem.problem import Problem, from_labels
from bnn_vnnlib.system.clock import Deadline


def network(file: Path, scale: float) -> tuple[DenseChain, np.ndarray]:
    """The layers, with standard deviations times `scale`, and the points."""
    data = np.load(file, allow_pickle=True)
    count = sum(name.startswith("mean_") for name in data) // 2

    def layer(place: int) -> DenseLayer:
        names = f"{2 * place}", f"{2 * place + 1}"
        parts = [data[f"mean_{names[0]}"].T, data[f"mean_{names[1]}"]]
        parts += [(scale * data[f"std_{names[0]}"].T) ** 2, (scale * data[f"std_{names[1]}"]) ** 2]
        return DenseLayer.exact(*(torch.tensor(np.ascontiguousarray(part), dtype=torch.float64) for part in parts))

    return DenseChain.relu(*(layer(k) for k in range(count))), data["X"]


def outputs(stack: DenseChain, x: torch.Tensor, count: int) -> torch.Tensor:
    """(count, m): outputs at x of sampled networks.

    Given its inputs, the outputs of a layer are independent Gaussians, which are drawn instead of weights.
    """
    generator = torch.Generator().manual_seed(0)
    h = x.expand(count, -1)
    for place, layer in enumerate(stack.layers):
        noise = torch.sqrt(h**2 @ layer.variance.T + layer.bias_variance)
        draw = torch.randn(noise.shape, generator=generator, dtype=torch.float64)
        h = h @ layer.mean.T + layer.bias + noise * draw
        h = torch.relu(h) if place + 1 < len(stack.layers) else h
    return h


def sampled(stack: DenseChain, x: torch.Tensor, label: int, count: int) -> tuple[float, float]:
    """Estimates at x: the share of sampled networks that keep the class, and 1 - the sum over rows of failures."""
    h = outputs(stack, x, count)
    others = torch.arange(h.shape[1]) != label
    kept = h[:, [label]] > h[:, others]
    return float(kept.all(1).double().mean()), 1 - float((~kept).double().mean(0).sum())


def question(stack: DenseChain, x: torch.Tensor, eps: float) -> tuple[Problem, int]:
    """Class of the mean network at x, kept over the box."""
    h = x
    for place, layer in enumerate(stack.layers):
        h = layer.mean @ h + layer.bias
        h = torch.relu(h) if place + 1 < len(stack.layers) else h
    label = int(h.argmax())
    low, high = (x - eps).clamp(0, 1), (x + eps).clamp(0, 1)
    return from_labels(low[None], high[None], torch.tensor([label]), len(h)), label


def main(
    file: Path,
    points: Annotated[str, typer.Option()] = "0,1,2,3,4",
    eps: Annotated[str, typer.Option()] = "0,0.01",
    scale: Annotated[float, typer.Option()] = 1.0,
    draws: Annotated[int, typer.Option("--sampled")] = 100_000,
) -> None:
    """Print one line a point and radius."""
    torch.set_num_threads(1)
    stack, data = network(file, scale)
    bounds = LargeVarianceBounds(stack, Deadline())
    for place in map(int, points.split(",")):
        x = torch.tensor(data[place])
        for radius in map(float, eps.split(",")):
            problem, label = question(stack, x, radius)
            wall, cpu = time.perf_counter(), time.process_time()
            lower = float(bounds.lower(problem)[0])
            line = f"point {place} eps {radius:g} lower {lower:.4f} wall {time.perf_counter() - wall:.1f} s"
            line += f" cpu {time.process_time() - cpu:.1f} s"
            if radius == 0:
                kept, union = sampled(stack, x, label, draws)
                line += f" estimates: {kept:.4f}, sum over rows {union:.4f}"
            print(line, flush=True)


if __name__ == "__main__":
    typer.run(main)
