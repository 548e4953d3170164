"""Convolutional and wide networks: what is proved of them, how fast, and in how much memory.

    python scripts/measure/large.py SETS [--folder DIR] [--only vgg] [--query decision] [--seconds 20]

SETS has mnist_t10k.npz, of which coloured digits (3 x 32 x 32) are made: every network here is trained on them, once,
for about a minute of processor time (`--folder` keeps them). All weights and biases get standard deviations of 1 % of
their means (`--deviation`). The questions: balls around the first images that the mean network gets right, clipped to
[0, 1]. Query `mean` takes one pass of linear bounds over the mean network; `--rival PATH`, a checkout of auto_LiRPA
(github.com/Verified-Intelligence/auto_LiRPA) together with what it imports, takes the same pass in float32 and float64
for comparison. A network and query is a process of its own. Clocks count processor seconds of one thread, so that other
work on the machine changes nothing. Memory is the peak beyond what the libraries take.
"""

from __future__ import annotations

import importlib
import itertools
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
import typer
from torch import Tensor, nn

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Network

IMAGES, EPOCHS, BATCH = 1500, 3, 50


class Residual(nn.Module):
    """Two convolutions with batch norm, and a convolution around them where the size changes."""

    def __init__(self, size: int, after: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = convolved(size, after, stride), convolved(after, after, 1)
        self.around = nn.Identity() if size == after else convolved(size, after, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, size, H, W) to (N, after, H / stride, W / stride)."""
        return torch.relu(self.two(torch.relu(self.one(x))) + self.around(x))


def convolved(size: int, after: int, stride: int, kernel: int = 3) -> nn.Sequential:
    """A convolution without bias, and batch norm."""
    return nn.Sequential(nn.Conv2d(size, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after))


def resnet8() -> nn.Sequential:
    """One block of 16, 32 and 64 channels each."""
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    return nn.Sequential(convolved(3, 16, 1), nn.ReLU(), *blocks, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))


def conv4() -> nn.Sequential:
    """Four convolutions and two dense layers, 2.2 M weights."""
    layers: list[nn.Module] = []
    for size, after, stride in ((3, 32, 1), (32, 32, 2), (32, 64, 1), (64, 64, 2)):
        layers += [nn.Conv2d(size, after, 3, stride, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))


def vgg() -> nn.Sequential:
    """Eight convolutions and five pools, 9.2 M weights."""
    layers: list[nn.Module] = []
    size = 3
    for after in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        layers += [nn.Conv2d(size, after, 3, padding=1), nn.ReLU()] if after else [nn.MaxPool2d(2)]
        size = after or size
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def dense(*sizes: int) -> nn.Sequential:
    """Layers with Relu between."""
    layers = [part for n, m in itertools.pairwise(sizes) for part in (nn.Linear(n, m), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


@dataclass(frozen=True)
class Asked:
    """A network, and the radii of the balls around its images, in units of 1/255."""

    made: Callable[[], nn.Module]
    radii: tuple[float, ...]
    grey: bool = False


NETWORKS = {
    "conv4": Asked(conv4, (0.25, 1.0)),
    "resnet8": Asked(resnet8, (0.25, 1.0)),
    "wide": Asked(lambda: dense(784, 4096, 10), (1.0, 4.0), grey=True),
    "deep": Asked(lambda: dense(3072, 512, 512, 512, 512, 10), (0.25, 1.0)),
    "vgg": Asked(vgg, (0.25, 1.0)),
}


def digits(sets: Path, *, grey: bool) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and their labels: as they are (1 x 28 x 28), or in a colour of their own (3 x 32 x 32)."""
    with np.load(sets / "mnist_t10k.npz") as file:
        x, y = torch.tensor(file["x"][:IMAGES] / 255.0, dtype=torch.float32)[:, None], torch.tensor(file["y"][:IMAGES])
    if not grey:
        colours = 0.5 + 0.5 * torch.rand(len(x), 3, 1, 1, generator=torch.Generator().manual_seed(0))
        x = nn.functional.pad(x, (2, 2, 2, 2)) * colours
    return x, y.long()


def trained(name: str, sets: Path, target: Path) -> None:
    """Write the network, trained on all images but the first 50."""
    torch.manual_seed(0)
    asked = NETWORKS[name]
    x, y = digits(sets, grey=asked.grey)
    net = asked.made()
    descent = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-2)
    for _ in range(EPOCHS):
        for part in (50 + torch.randperm(len(x) - 50)).split(BATCH):
            descent.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            descent.step()
    kept = torch.onnx.TrainingMode.PRESERVE  # batch norm as a node of its own
    torch.onnx.export(net.eval(), (x[:1],), str(target), dynamo=False, training=kept)


def balls(name: str, sets: Path, network: Network, count: int) -> list[tuple[Tensor, int, float]]:
    """Centres, labels and radii."""
    from bnn_vnnlib.network.evaluate import evaluate

    images, labels = digits(sets, grey=NETWORKS[name].grey)
    x = images[:50].double().flatten(1)
    right = (evaluate(network, x).reshape(len(x), -1).argmax(1) == labels[:50]).nonzero()[:, 0][:count]
    pairs = zip(x[right], labels[right], strict=True)
    return [(image, int(label), radius) for image, label in pairs for radius in NETWORKS[name].radii]


def rival(question: tuple[str, Path, Path, Path, int]) -> None:
    """Print a line for each ball and floating type: one pass of auto_LiRPA over the mean network."""
    import onnx

    from bnn_vnnlib import read_model

    name, path, sets, checkout, count = question
    torch.set_num_threads(1)
    sys.path.insert(0, str(checkout))
    lirpa = importlib.import_module("auto_LiRPA")
    graph, net = onnx.load(path).graph, NETWORKS[name].made().eval()
    stored = {item.name: torch.tensor(onnx.numpy_helper.to_array(item).copy()) for item in graph.initializer}
    stored |= {node.output[0]: stored[node.input[0]] for node in graph.node if node.op_type == "Identity"}
    net.load_state_dict(
        {key: stored.get(key, torch.tensor(0)) for key in net.state_dict()}
    )  # 0: batches that were seen
    network = read_model(path).network
    for dtype, (image, label, radius) in itertools.product(
        (torch.float32, torch.float64), balls(name, sets, network, count)
    ):
        torch.set_default_dtype(dtype)
        x = image.to(dtype).reshape(1, *((1, 28, 28) if NETWORKS[name].grey else (3, 32, 32)))
        low, high = ((x + sign * radius / 255).clamp(0, 1) for sign in (-1, 1))
        module = lirpa.BoundedModule(net.to(dtype), x)
        box = lirpa.BoundedTensor(x, lirpa.PerturbationLpNorm(norm=float("inf"), x_L=low, x_U=high))
        eye = torch.eye(10)
        rows = eye[label] - eye[[other for other in range(10) if other != label]]
        begun = time.process_time()
        with torch.no_grad():
            least = module.compute_bounds(x=(box,), C=rows[None], method="backward", bound_upper=False)[0].min()
        spent = time.process_time() - begun
        print(f"{name} | auto_LiRPA, {dtype} | {radius:g}/255 | margin {float(least):.3g} | {spent:.1f} s", flush=True)


def measure(question: tuple[str, Path, Path, str, float, int, float]) -> None:
    """Print a line for each ball."""
    name, path, sets, query, seconds, count, deviation = question
    time.monotonic = time.process_time
    torch.set_num_threads(1)
    from bnn_vnnlib import InputError, verify_batch
    from bnn_vnnlib.bounds.engine import Engine
    from bnn_vnnlib.model import model_from_proto
    from bnn_vnnlib.posteriors.convert import Spread, Stated, convert
    from bnn_vnnlib.problem import weight_sets

    spread = Spread(deviation, relative=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = model_from_proto(convert(path, Stated((spread,)), "categorical")[0])
    network, mean = model.network, weight_sets.mean_weights(model.network)
    for image, label, radius in balls(name, sets, network, count):
        low, high = ((image + sign * radius / 255).clamp(0, 1)[None].numpy() for sign in (-1, 1))
        begun = time.process_time()
        try:
            if query == "mean":
                others = [other for other in range(10) if other != label]
                rows = torch.eye(10, dtype=torch.float64)[label] - torch.eye(10, dtype=torch.float64)[others]
                with torch.no_grad():
                    margin = Engine(network).rows(mean, torch.tensor(low), torch.tensor(high), rows[None]).lower.min()
                told = f"margin {float(margin):.3g}"
            else:
                found = verify_batch(model, low, high, [label], query=query, timeout=seconds)
                of = label if query == "decision" else 0  # of the outputs, the label's probability
                least, most = (float(side.reshape(-1)[of]) for side in (found.lower, found.upper))
                told = f"{found.verdicts[0]} [{least:.6g}, {most:.6g}]"
        except InputError as refused:
            told = f"refused: {refused}"
        spent = time.process_time() - begun
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        print(f"{name} | {query} | {radius:g}/255 | {told} | {spent:.1f} s | {peak:.2f} GiB", flush=True)


def main(
    sets: Path,
    folder: Annotated[Path | None, typer.Option(help="Where trained networks are kept.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Names of networks.")] = None,
    query: Annotated[list[str] | None, typer.Option()] = None,
    seconds: float = 20.0,
    count: Annotated[int, typer.Option(help="Images.")] = 3,
    deviation: Annotated[float, typer.Option(help="Of each weight, as a share of its mean.")] = 0.01,
    other: Annotated[Path | None, typer.Option("--rival", help="A checkout of auto_LiRPA.")] = None,
) -> None:
    """A line for each ball: network, query, radius, answer, processor seconds, GiB."""
    torch.set_num_threads(1)
    kept = folder or Path(tempfile.mkdtemp())
    kept.mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in only or NETWORKS:
            path = kept / f"{name}.onnx"
            if not path.exists():
                pool.apply(trained, (name, sets, path))
            for asked in query or ["mean", "probabilistic", "decision"]:
                pool.apply(measure, ((name, path, sets, asked, seconds, count, deviation),))
            if other is not None:
                pool.apply(rival, ((name, path, sets, other, count),))


if __name__ == "__main__":
    typer.run(main)
