"""What bounds on the decision cost, and how they weaken as the posterior gets wider.

    python scripts/measure/decision_spread.py spread DATA
    python scripts/measure/decision_spread.py points DATA
    python scripts/measure/decision_spread.py cost
    python scripts/measure/decision_spread.py queries DATA IMAGES

`spread` multiplies the standard deviations of published posteriors (see decision.py) by factors; attained ranges are
estimates from sampled networks, except for regression with one hidden layer. `points` compares the methods for one
hidden layer of a classifier at points, `cost` takes networks with random weights
(seed 0, standard deviations of .1 times those of the weights) and boxes of +-.02. `queries` asks networks of two
hidden layers for P_safe and for the decision on the same balls (IMAGES: mnist_t10k.npz). Seconds are CPU time of
one thread.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decision import RADIUS, SINE, Folder, attained_gap, bounded, exact_mean, predictive, read, timed

from bnn_vnnlib import Model, verify_batch
from bnn_vnnlib.model import GaussianDiagonal, model_from_proto
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.signature import Likelihood

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)

HCAS = ("hcas_rob_pra0_tau20", "hcas_cls2x50_pra0_tau20")
DIGITS, DIGITS_RADIUS = ("digits_vi_64x1", "digits_vi_64x2"), 0.01
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)


def widened(model: Model, factor: float) -> Model:
    """The same means, standard deviations times the factor."""
    if not isinstance(model.posterior, GaussianDiagonal):
        raise typer.BadParameter("the posterior is not Gaussian")
    variances = {name: values * factor**2 for name, values in model.posterior.variances.items()}
    return replace(model, posterior=GaussianDiagonal(variances))


def median_range(model: Model, x: Tensor, networks: int = 4001) -> float:
    """Range of the estimated median over points x (P, n)."""
    if model.posterior is None:
        raise typer.BadParameter("the model has no posterior")
    params = sample(model.network, model.posterior, networks, torch.Generator().manual_seed(0))
    y = evaluate(model.network, x, params)[..., 0].median(0).values
    return float(y.max() - y.min())


@app.command()
def spread(data: Folder, count: int = 50) -> None:
    """The gap against the standard deviations."""
    table = Table("posterior", "factor", "attained range", "width of the bounds", "ratio", "s a spec")
    progress = Console(stderr=True)
    for name, factor, truth, width, seconds in itertools.chain(_sines(data), _wide_classifiers(data, count)):
        progress.print(name, factor, f"{truth:.4f} {width:.4f} {seconds:.2f}")
        table.add_row(
            name, f"{factor:g}", f"{truth:.4f}", f"{width:.4f}", f"{width / truth:.3f}", f"{seconds:.2f}"
        )  # fmt: skip
    Console().print(table)


def _sines(data: Path) -> Iterator[tuple[str, float, float, float, float]]:
    for name, center, radius, _ in SINE:
        low, high = np.array([[center - radius]]), np.array([[center + radius]])
        grid = torch.linspace(center - radius, center + radius, 101, dtype=torch.float64)[:, None]
        for factor in FACTORS:
            model = widened(read(data / f"{name}.npz", "gaussian"), factor)
            one = "1x" in name
            values = exact_mean(data / f"{name}.npz", factor)(grid) if one else predictive(model, 4000)(grid)
            found, seconds = bounded(model, low, high)
            yield name, factor, float(values.max() - values.min()), float((found.upper - found.lower)[0, 0]), seconds
            if one:
                found, seconds = bounded(model, low, high, rule="median")
                width = float((found.upper - found.lower)[0, 0])
                yield f"{name}, median", factor, median_range(model, grid), width, seconds


def _wide_classifiers(data: Path, count: int) -> Iterator[tuple[str, float, float, float, float]]:
    """The published deviations of HCAS are tiny, those of the digits about as large as the weights."""
    for name, factor, model, x in _classifiers(data, count):
        radius = RADIUS if name.startswith("hcas") else DIGITS_RADIUS
        label, reached = attained_gap(model, x, radius, 400)
        found, seconds = bounded(model, x.numpy() - radius, x.numpy() + radius)
        gap = (found.upper - found.lower)[np.arange(len(x)), label.numpy()].mean()
        yield name, factor, float(reached.mean()), float(gap), seconds / len(x)


@app.command()
def points(data: Folder, count: int = 50) -> None:
    """The expected probability of the predicted class at points: lower bounds by method, beside an estimate."""
    from bnn_vnnlib.methods.decision.softmax.deep import ExponentialMoments
    from bnn_vnnlib.methods.decision.softmax.method import SoftmaxRows, SoftmaxSource
    from bnn_vnnlib.methods.decision.softmax.one_layer import OneLayerSoftmax, Tilted
    from bnn_vnnlib.network.dense_chain import dense_chain
    from bnn_vnnlib.system.clock import Deadline

    table = Table("posterior", "factor", "estimate", "closed forms", "powers", "tilted", "s a point, tilted")
    device = torch.device("cpu")
    for name, factor, model, x in _classifiers(data, count):
        if not isinstance(model.posterior, GaussianDiagonal):
            raise typer.BadParameter("the posterior is not Gaussian")
        layers = dense_chain(model.network, model.posterior, device)
        if layers is None or layers.kinds != {"relu"}:
            raise typer.BadParameter("not a chain of dense layers with Relu")
        if len(layers.layers) != 2:
            continue
        expected = predictive(model, 4000)(x)
        rows = torch.nn.functional.one_hot(expected.argmax(-1), expected.shape[-1]).to(x)[:, None]
        row = [name, f"{factor:g}", f"{expected.amax(-1).mean():.4f}"]
        seconds = 0.0
        sources: tuple[SoftmaxSource, ...] = (
            OneLayerSoftmax(layers),
            ExponentialMoments(layers, (1e-2,)),
            Tilted(layers),
        )
        for source in sources:
            found, seconds = timed(partial(SoftmaxRows(source, Deadline()).lower, x, x, rows))
            row.append(f"{found.mean():.4f}")
        table.add_row(*row, f"{seconds / len(x):.3f}")
    Console().print(table)


def _classifiers(data: Path, count: int) -> Iterator[tuple[str, float, Model, Tensor]]:
    from sklearn.datasets import load_digits

    grid = np.load(data / "hcas_X.npy").astype(np.float64)
    digits = load_digits().data[:count] / 16.0
    for names, factors, x in (
        (HCAS, (1.0, 100.0, 200.0, 300.0), grid[np.random.default_rng(0).choice(len(grid), count, replace=False)]),
        (DIGITS, (0.1, 0.25, 0.5, 1.0), digits),
    ):
        for name, factor in itertools.product(names, factors):
            yield name, factor, widened(read(data / f"{name}.npz", "categorical"), factor), torch.as_tensor(x)


def random_net(sizes: list[int], likelihood: Likelihood) -> Model:
    """A dense relu network with random weights."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    nodes, value = [], "x"
    for k, (before, after) in enumerate(itertools.pairwise(sizes)):
        tensors[f"W{k}"], tensors[f"b{k}"] = (
            rng.normal(size=(after, before)) / before**0.5,
            0.3 * rng.normal(size=after),
        )
        nodes.append(helper.make_node("Gemm", [value, f"W{k}", f"b{k}"], [f"z{k}"], transB=1))
        value = f"z{k}"
        if k + 2 < len(sizes):
            nodes.append(helper.make_node("Relu", [value], [f"a{k}"]))
            value = f"a{k}"
    graph = helper.make_graph(
        nodes, "random",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, sizes[0]])],
        [helper.make_tensor_value_info(value, TensorProto.DOUBLE, [1, sizes[-1]])],
        [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    deviation = {f"W{k}": 0.1 / before**0.5 for k, before in enumerate(sizes[:-1])}
    deviation |= {f"b{k}": 0.03 for k in range(len(sizes) - 1)}
    variances = {name: np.full(tensor.shape, deviation[name] ** 2) for name, tensor in tensors.items()}
    return replace(model_from_proto(proto, likelihood=likelihood), posterior=GaussianDiagonal(variances))


NETS = {
    "width": [[4, 32], [4, 128], [4, 512], [4, 2048]],
    "inputs": [[2, 128], [4, 128], [8, 128], [16, 128], [64, 128]],
    "depth": [[4, 64], [4, 64, 64], [4, 64, 64, 64], [4, 64, 64, 64, 64]],
}


@app.command()
def cost(count: int = 10, eps: float = 0.02) -> None:
    """Seconds a spec against width, number of inputs and depth."""
    table = Table("varied", "hidden layers", "regression, s a spec", "of 5 classes, s a spec", "decided")
    progress = Console(stderr=True)
    bounded(random_net([2, 4, 1], "gaussian"), np.zeros((1, 2)), np.ones((1, 2)))  # loads what is loaded at first use
    for varied, nets in NETS.items():
        for sizes in nets:
            x = np.random.default_rng(1).normal(size=(count, sizes[0]))
            model = random_net([*sizes, 1], "gaussian")
            _, regression = bounded(model, x - eps, x + eps)
            model = random_net([*sizes, 5], "categorical")
            label = evaluate(model.network, torch.as_tensor(x)).argmax(-1).numpy()
            found, seconds = timed(partial(verify_batch, model, x - eps, x + eps, labels=label, query="decision"))
            decided = (found.verdicts.astype(str) != "unknown").sum()
            progress.print(varied, str(sizes), f"{regression / count:.3f} {seconds / count:.3f} {decided}")
            table.add_row(
                varied, "-".join(map(str, sizes)), f"{regression / count:.3f}", f"{seconds / count:.3f}",
                f"{decided} of {count}",
            )  # fmt: skip
    Console().print(table)


@app.command()
def queries(data: Folder, images: Path, count: int = 20, seconds: float = 60.0) -> None:
    """Seconds a ball of both queries, each ball by itself; asked for is the class of the mean network."""
    from sklearn.datasets import load_digits

    mnist = np.load(images)["x"][:count].reshape(count, -1) / 255.0
    grid = np.load(data / "hcas_X.npy").astype(np.float64)
    grid = grid[np.random.default_rng(0).choice(len(grid), count, replace=False)]
    digits = load_digits().data[:count] / 16.0
    asked = [
        ("batten_MNIST_MLP_2_50", 1.0, mnist, 0.01), ("batten_MNIST_MLP_2_150", 1.0, mnist, 0.005),
        ("hcas_cls2x50_pra0_tau20", 1.0, grid, 0.01), ("digits_vi_64x2", 0.1, digits, 0.01),
    ]  # fmt: skip
    models = [
        (name, widened(read(data / f"{name}.npz", "categorical"), factor), *rest) for name, factor, *rest in asked
    ]
    table = Table("network", "radius", "P_safe, s a ball", "decided", "decision, s a ball", "decided", "ratio")
    time.monotonic = time.process_time
    for name, model, x, radius in models:
        label = evaluate(model.network, torch.as_tensor(x)).argmax(-1).reshape(-1).tolist()
        cells = []
        for query in ("probabilistic", "decision"):
            spent, decided = 0.0, 0
            for center, own in zip(x, label, strict=True):
                box = (center - radius)[None], (center + radius)[None]
                found, took = timed(partial(verify_batch, model, *box, labels=[own], query=query, timeout=seconds))
                spent, decided = spent + took, decided + int(found.verdicts[0] in ("sat", "unsat"))
            cells.append((spent / count, decided))
        (one, sure), (two, known) = cells
        table.add_row(name, f"{radius:g}", f"{one:.3f}", f"{sure}", f"{two:.3f}", f"{known}", f"{two / one:.2f}")
    Console().print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
