"""P_safe of families of small networks with two hidden layers, standard deviations of s times the means.

    python scripts/measure/large_variance_families.py [--spreads 0.1,0.2,0.3] [--eps 0,0.01] [--networks 1000]

An 8-64-64-2 ReLU network is trained (AdamW, 150 full steps of rate .003, decay .001, seed 0) on the first eight
features of the breast cancer data of scikit-learn, scaled to [0, 1]. Points: those at the given shares of all points,
ordered by margin. Printed: the estimate (share of sampled networks of which projected gradient descent breaks none),
and lower bounds by tails and by `methods.safety.large_variance`. Class of the mean network; boxes x +- eps.
"""

from __future__ import annotations

import itertools
import time
from typing import Annotated

import numpy as np
import torch
import typer
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib.methods.safety.large_variance.rows import LargeVarianceBounds
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.model.reading import model_from_proto
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.network.network import GaussianDiagonal, Network
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.system.clock import Deadline

WIDTHS = (8, 64, 64, 2)

Layers = list[tuple[torch.Tensor, torch.Tensor]]


def trained() -> tuple[Layers, torch.Tensor]:
    """Weights and biases, and the points."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = x[:, : WIDTHS[0]]
    points, labels = torch.tensor((x - x.min(0)) / (x.max(0) - x.min(0))), torch.tensor(y)
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(WIDTHS):
        parts += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    net = torch.nn.Sequential(*parts[:-1]).double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(points), labels).backward()
        optimizer.step()
    weights = [part.detach() for part in net.parameters()]
    return list(zip(weights[::2], weights[1::2], strict=True)), points


def family(layers: Layers, spread: float) -> DenseChain:
    """Standard deviations of `spread` times the means."""
    return DenseChain.relu(*(DenseLayer.exact(w, b, (spread * w) ** 2, (spread * b) ** 2) for w, b in layers))


def as_graph(stack: DenseChain) -> tuple[Network, GaussianDiagonal]:
    """The same network, as the tails read it."""
    tensors: dict[str, np.ndarray] = {}
    variances: dict[str, np.ndarray] = {}
    nodes, value = [], "x"
    for place, layer in enumerate(stack.layers):
        names = f"w{place}", f"b{place}"
        mean, bias, variance, noise, *_ = (part.numpy() for part in vars(layer).values())
        tensors |= dict(zip(names, (mean, bias), strict=True))
        variances |= dict(zip(names, (variance, noise), strict=True))
        last = place + 1 == len(stack.layers)
        nodes.append(helper.make_node("Gemm", [value, *names], ["y" if last else f"z{place}"], transB=1))
        value = f"a{place}"
        nodes += [] if last else [helper.make_node("Relu", [f"z{place}"], [value])]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, size])
        for name, size in (("x", WIDTHS[0]), ("y", WIDTHS[-1]))
    ]
    stored = [numpy_helper.from_array(part, name) for name, part in tensors.items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "family", ends[:1], ends[1:], stored),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=9,
    )  # fmt: skip
    return model_from_proto(proto).network, GaussianDiagonal(variances)


def estimated(stack: DenseChain, low: torch.Tensor, high: torch.Tensor, label: int, networks: int) -> float:
    """The share of sampled networks that keep the label at every point that the descent visits."""
    generator, safe = torch.Generator().manual_seed(0), 0
    for _ in range(networks):
        drawn = [
            (layer.mean + torch.sqrt(layer.variance) * torch.randn(layer.mean.shape, generator=generator).double(),
             layer.bias + torch.sqrt(layer.bias_variance) * torch.randn(layer.bias.shape, generator=generator).double())
            for layer in stack.layers
        ]  # fmt: skip
        x, worst = (low + high) / 2, np.inf
        for step in range(8):
            x = x.detach().requires_grad_(True)
            h = x
            for place, (w, b) in enumerate(drawn):
                h = w @ h + b
                h = torch.relu(h) if place + 1 < len(drawn) else h
            margin = h[label] - h[1 - label]
            worst = min(worst, float(margin.detach()))
            (gradient,) = torch.autograd.grad(margin, x)
            size = (high - low) * (1.0 if step == 0 else 0.5 / (1 + step))
            x = torch.maximum(torch.minimum(x.detach() - size * gradient.sign(), high), low)
        safe += worst > 0
    return safe / networks


def main(
    spreads: Annotated[str, typer.Option()] = "0.1,0.2,0.3",
    eps: Annotated[str, typer.Option()] = "0,0.01",
    shares: Annotated[str, typer.Option()] = "0.08,0.2,0.5",
    networks: Annotated[int, typer.Option()] = 1000,
) -> None:
    """Print one line a spread, point and radius."""
    torch.set_num_threads(1)
    layers, points = trained()
    plain = family(layers, 0.0)
    h = points
    for place, layer in enumerate(plain.layers):
        h = h @ layer.mean.T + layer.bias
        h = torch.relu(h) if place < 2 else h
    order = (h[:, 0] - h[:, 1]).abs().argsort()
    for spread in map(float, spreads.split(",")):
        stack = family(layers, spread)
        graph = as_graph(stack)
        for share in map(float, shares.split(",")):
            point = int(order[int(share * len(points))])
            label, x = int(h[point].argmax()), points[point]
            for radius in map(float, eps.split(",")):
                problem = from_labels((x - radius)[None], (x + radius)[None], torch.tensor([label]), 2)
                cpu = time.process_time()
                bound = float(LargeVarianceBounds(stack, Deadline()).lower(problem)[0])
                cpu = time.process_time() - cpu
                tails = TailBounds(*graph, torch.device("cpu"), Deadline())
                line = f"s {spread:g} point {share:g} eps {radius:g} large variance {bound:.4f} cpu {cpu:.1f} s"
                line += f" tails {float(tails.lower(problem)[0]):.4f}"
                kept = estimated(stack, x - radius, x + radius, label, networks)
                print(f"{line} estimate {kept:.3f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
