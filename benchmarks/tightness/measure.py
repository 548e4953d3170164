"""How close the bounds on P_safe are to a sampled estimate, by method, as the posterior or the input box grows.

    python benchmarks/tightness/measure.py [--data DATA --images IMAGES] [--family digits] [--count 20]

Adds to results.csv beside this file, one line a point of a curve as soon as it is there; points that are there already
are not measured again, so that a run that was killed goes on, and a new measurement starts with removing them. Prints
what it has. "digits" are networks that this script trains on scikit-learn's
digits, with standard deviations of s |mean| for s from .005 to 1. "mnist" and "hcas" need DATA, a folder with the
published posteriors as .npz and the HCAS grid; "mnist" also IMAGES, an .npz with x (N, 28, 28) in 0 .. 255 and y (N,).

All figures are means over the points that the mean network classifies correctly: P_safe lower bounds by tails in one
pass, by tuned tails and by the best box of weights; lower and upper bound of `verify_batch` with its refinement; and an
estimate from sampled networks under attack, which is no bound: the attack may miss what is there.
"""

from __future__ import annotations

import csv
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "measure"))

from npz_to_onnx import convert

from bnn_vnnlib import Model, attack, read_model, verify_batch
from bnn_vnnlib.methods.safety.tails import TailBounds, lower_of
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import GaussianDiagonal, Network
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.system.clock import Deadline
from dense import dense_network

HERE = Path(__file__).resolve().parent
SCALES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
MNIST = ("batten_MNIST_MLP_2_50", "batten_MNIST_MLP_2_150", "batten_wick_MNIST_1_512", "bnndp_mnist_1x128")
NETWORKS, STEPS, SECONDS = 200, 40, 60.0
"""Sampled networks an estimate; steps of tuning; time limit of `verify_batch` on all points of one network and box."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One point of a curve."""

    family: str
    network: str
    sd_scale: float
    eps: float
    points: int
    estimate: float
    tails: float
    tuned: float
    box: float
    lower: float
    upper: float
    tails_s: float
    tuned_s: float
    total_s: float


@dataclass(frozen=True, eq=False)
class Question:
    """A model, points (N, n) with labels, and a box of +-eps around each, clipped to [0, 1] where `clip`."""

    family: str
    name: str
    sd_scale: float
    eps: float
    model: Model
    x: Floats
    label: NDArray[np.int64]
    clip: bool

    @property
    def key(self) -> tuple[str, ...]:
        """What its line starts with."""
        return tuple(map(_cell, (self.family, self.name, self.sd_scale, self.eps)))


def measured(question: Question) -> Curve:
    """All methods on the same points."""
    network, posterior = question.model.network, question.model.posterior
    if not isinstance(posterior, GaussianDiagonal):
        raise TypeError("a Gaussian posterior is needed")
    right = evaluate(network, torch.tensor(question.x)).argmax(-1).numpy() == question.label
    x, label = question.x[right], question.label[right]
    low, high = x - question.eps, x + question.eps
    if question.clip:
        low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
    problem = from_labels(torch.tensor(low), torch.tensor(high), torch.tensor(label), network.signature.output_size)
    tails = TailBounds(network, posterior, torch.device("cpu"), Deadline())
    begun = time.perf_counter()
    failures = tails.item_failures(problem)
    middle = time.perf_counter()
    tuned = tails.improved(problem, failures, STEPS, 1e-4)
    end = time.perf_counter()
    boxes = verify_batch(question.model, low, high, label, method="linear", tau_safe=1.0, tau_unsafe=0.0)
    full = verify_batch(question.model, low, high, label, timeout=SECONDS)
    return Curve(
        question.family, question.name, question.sd_scale, question.eps, len(x),
        estimate(network, posterior, low, high, label), float(lower_of(problem, failures).mean()),
        float(lower_of(problem, tuned).mean()), float(boxes.lower.mean()), float(full.lower.mean()),
        float(full.upper.mean()), (middle - begun) / len(x), (end - middle) / len(x), full.seconds / len(x),
    )  # fmt: skip


def estimate(
    network: Network, posterior: GaussianDiagonal, low: Floats, high: Floats, label: NDArray[np.int64]
) -> float:
    """Share of sampled networks on which an attack finds nothing, mean over the points."""
    drawn = sample(network, posterior, NETWORKS, torch.Generator().manual_seed(1))
    problem = from_labels(torch.tensor(low), torch.tensor(high), torch.tensor(label), network.signature.output_size)
    settings = attack.Attack(steps=20, restarts=2)
    unbroken = []
    for some in torch.arange(NETWORKS).split(20):
        params = {name: tensor[some] for name, tensor in drawn.items()}
        unbroken.append((attack.run(network, problem, params, settings)[1] > 0).double().mean())
    return float(torch.stack(unbroken).mean())


def digits(count: int) -> Iterator[Question]:
    """One and two hidden layers of 64, trained here."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, label = data.data / 16.0, data.target.astype(np.int64)
    train, test = np.split(np.random.default_rng(0).permutation(len(x)), [1400])
    for sizes in ([64, 64, 10], [64, 64, 64, 10]):
        network = trained(sizes, x[train], label[train])
        for scale in SCALES:
            posterior = GaussianDiagonal({name: (scale * value) ** 2 for name, value in network.tensors.items()})
            model = Model(network, posterior, "categorical", None, b"")
            name = "-".join(map(str, sizes))
            yield Question("digits", name, scale, 0.01, model, x[test[:count]], label[test[:count]], True)


def trained(sizes: list[int], x: Floats, label: NDArray[np.int64]) -> Network:
    """A ReLU network with weight decay, by full-batch Adam."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b, dtype=torch.float64) for a, b in itertools.pairwise(sizes)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=5e-3, weight_decay=1e-4)
    inputs, target = torch.tensor(x), torch.tensor(label)
    for _ in range(300):
        y = inputs
        for layer in layers[:-1]:
            y = torch.relu(layer(y))
        loss = torch.nn.functional.cross_entropy(layers[-1](y), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return dense_network([(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in layers])


def published(file: Path) -> Model:
    """A posterior in an .npz file, through ONNX."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        onnx.save(convert(file, "categorical"), path)
        return read_model(path)


def mnist(data: Path, images: Path, count: int) -> Iterator[Question]:
    """The published posteriors around test images."""
    with np.load(images) as stored:
        x, label = stored["x"][:count].reshape(count, -1) / 255.0, stored["y"][:count].astype(np.int64)
    for name in MNIST:
        model = published(data / f"{name}.npz")
        for eps in (0.005, 0.01, 0.02, 0.03, 0.05):
            yield Question("mnist", name, 1.0, eps, model, x, label, True)


def hcas(data: Path, count: int) -> Iterator[Question]:
    """The published posterior on boxes of its grid."""
    x, label = np.load(data / "hcas_X.npy"), np.load(data / "hcas_labels_pra0_tau20.npy")
    chosen = np.random.default_rng(0).choice(len(x), 10 * count, replace=False)
    model = published(data / "hcas_rob_pra0_tau20.npz")
    for eps in (0.005, 0.01, 0.025, 0.05):
        yield Question(
            "hcas", "hcas_rob_pra0_tau20", 1.0, eps, model, x[chosen].astype(np.float64),
            label[chosen].astype(np.int64), False,
        )  # fmt: skip


def main(
    data: Path | None = None,
    images: Path | None = None,
    family: Annotated[
        list[str] | None, typer.Option(help="digits, mnist, hcas; all that can be run if left out.")
    ] = None,
    count: Annotated[int, typer.Option(help="Points of digits and mnist; ten times as many of hcas.")] = 20,
) -> None:
    """Measure, write, print."""
    torch.set_num_threads(1)
    wanted = family or ["digits", *(["hcas"] if data else []), *(["mnist"] if data and images else [])]
    questions: list[Question] = []
    if "digits" in wanted:
        questions += digits(count)
    if "hcas" in wanted and data is not None:
        questions += hcas(data, count)
    if "mnist" in wanted and data is not None and images is not None:
        questions += mnist(data, images, count)
    names, file = [field.name for field in fields(Curve)], HERE / "results.csv"
    if not file.exists():
        _append(file, names)
    with file.open(newline="") as stream:
        done = {tuple(line[:4]) for line in csv.reader(stream)}
    with Progress(console=Console(stderr=True)) as progress:
        for question in progress.track([question for question in questions if question.key not in done]):
            _append(file, [_cell(value) for value in vars(measured(question)).values()])
    table = Table(*names)
    with file.open(newline="") as stream:
        for line in list(csv.reader(stream))[1:]:
            table.add_row(*line)
    Console(width=220).print(table)


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _append(file: Path, line: list[str]) -> None:
    with file.open("a", newline="") as stream:
        csv.writer(stream).writerow(line)


if __name__ == "__main__":
    typer.run(main)
