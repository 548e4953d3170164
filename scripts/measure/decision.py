"""Bounds on the decision of published posteriors, beside what is attained, the box method and other published bounds.

    python scripts/measure/decision.py PART DATA SETS     (PART: sine, uci, hcas or mnist)

DATA holds the posteriors as .npz (see scripts/npz_to_onnx.py) and the HCAS grid, SETS the test inputs (uci_*.npz,
uci_split1.npz, mnist_t10k.npz). "Attained" is the range of the decision over points of the box: exact for one hidden
layer under regression (closed forms or quadrature, searched by gradient) and for weight samples, else an estimate from
sampled networks. Seconds are CPU time of one thread.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import onnx
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npz_to_onnx import convert

from bnn_vnnlib import Model, read_model, verify_batch
from bnn_vnnlib.batch import BatchResult
from bnn_vnnlib.model import WeightSamples
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.question.options import Options
from bnn_vnnlib.setting import settle_run

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)
Folder = Annotated[Path, typer.Argument(exists=True, file_okay=False)]

SINE = (("bnndp_noisysine_1x256", 0.7, 0.075, "[-1.36685, -.57934] 8.4 s"),
        ("bnndp_noisysine_2x64", 0.1, 0.025, "[.33052, .64174] 6.3 s"))  # fmt: skip
UCI = {"powerplant": "power-plant", "concrete": "concrete", "energy": "energy", "kin8nm": "kin8nm",
       "wine": "wine-quality-red", "boston": "bostonHousing"}  # fmt: skip
MNIST = (("bnndp_mnist_1x128", 0.025), ("bnndp_mnist_1x128", 0.05), ("batten_wick_MNIST_1_128", 0.05),
         ("batten_wick_MNIST_1_512", 0.05))  # fmt: skip
RADIUS = 0.025


def read(path: Path, likelihood: str) -> Model:
    """The model of an .npz file."""
    proto = convert(path, likelihood)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        onnx.save(proto, file)
        return read_model(file)


LATTICE = 6
"""Inputs for which a lattice of 3^n points is looked at."""

Outcome = TypeVar("Outcome")


def timed(run: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """The result and the CPU seconds that it took."""
    begun = time.process_time()
    return run(), time.process_time() - begun


def bounded(model: Model, lower: np.ndarray, upper: np.ndarray, rule: str = "mean") -> tuple[BatchResult, float]:
    """Bounds on D over the boxes, and seconds; the violation is one that cannot be: nothing is spent on a verdict."""
    size = model.network.signature.output_size
    nothing = [[(np.zeros((1, size)), np.array([-1.0]), np.array([False]))]]
    return timed(lambda: verify_batch(model, lower, upper, properties=nothing, query="decision", rule=rule))


def by_boxes(model: Model, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same by boxes of weights alone, the method of the paper with its masses mended."""
    setting = settle_run(model, Options("decision"))
    (method,) = setting.decision().steps.any_graph
    unit = torch.eye(model.network.signature.output_size, dtype=torch.float64)[None]
    low, high = torch.as_tensor(lower), torch.as_tensor(upper)
    return method.lower(low, high, unit).numpy(), -method.lower(low, high, -unit).numpy()


def exact_mean(path: Path, scale: float = 1.0) -> Callable[[Tensor], Tensor]:
    """x (.., n) -> D(x) of one hidden layer and one output: closed form for relu, Gauss-Hermite for tanh."""
    with np.load(path) as stored:
        v, b, w, c = (torch.as_tensor(stored[f"mean_{i}"].astype(np.float64)) for i in range(4))
        sv, sb = (scale * torch.as_tensor(stored[f"std_{i}"].astype(np.float64)) for i in range(2))
        relu = "relu" in str(stored["arch_json"])
    gauss = np.polynomial.hermite_e.hermegauss(60)
    nodes, weights = torch.as_tensor(gauss[0]), torch.as_tensor(gauss[1]) / math.sqrt(2 * math.pi)

    def mean(x: Tensor) -> Tensor:
        m, s = x @ v + b, (x**2 @ sv**2 + sb**2).sqrt()
        if relu:
            t = m / s
            hidden = m * torch.special.ndtr(t) + s * torch.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
        else:
            hidden = (torch.tanh(m[..., None] + s[..., None] * nodes) * weights).sum(-1)
        return (hidden @ w + c)[..., 0]

    return mean


def attained(mean: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, steps: int = 60) -> tuple[Tensor, Tensor]:
    """Least and largest value that projected gradients reach on each box (N, n), from its centre and random points."""
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(20, *lower.shape, generator=generator, dtype=torch.float64)
    share[0], share[1::2] = 0.5, share[1::2].round()
    ends = []
    for sign in (1.0, -1.0):
        x, best = lower + (upper - lower) * share, torch.full(lower.shape[:1], torch.inf, dtype=torch.float64)
        for i in range(steps):
            x = x.detach().requires_grad_()
            value = sign * mean(x)
            best = torch.minimum(best, value.detach().amin(0))
            (gradient,) = torch.autograd.grad(value.sum(), x)
            x = (x - 0.5 * 0.9**i * (upper - lower) * gradient.sign()).clamp(lower, upper)
        ends.append(sign * best)
    return ends[0], ends[1]


@app.command()
def sine(data: Folder, sets: Folder) -> None:
    """Noisy sine, regression on one input."""
    table = Table("net, inputs", "attained", "bounds", "s", "box method", "BNN-DP")
    for name, center, radius, published in SINE:
        model = read(data / f"{name}.npz", "gaussian")
        low, high = np.array([[center - radius]]), np.array([[center + radius]])
        bounded(model, low, high)  # loads what is loaded when it is first used
        found, seconds = bounded(model, low, high)
        box = by_boxes(model, low, high)
        grid = torch.linspace(center - radius, center + radius, 2001, dtype=torch.float64)[:, None]
        if "1x" in name:
            values = exact_mean(data / f"{name}.npz")(grid)
            reached = f"[{values.min():.6f}, {values.max():.6f}]"
        else:
            values = predictive(model, 4000)(grid[::20])
            reached = f"about [{values.min():.4f}, {values.max():.4f}]"
        table.add_row(
            f"{name}, {center} +- {radius}", reached, f"[{found.lower[0, 0]:.6f}, {found.upper[0, 0]:.6f}]",
            f"{seconds:.3f}", f"[{box[0][0, 0]:.4g}, {box[1][0, 0]:.4g}]", published,
        )  # fmt: skip
    Console().print(table)


def uci_inputs(sets: Path, name: str, count: int) -> np.ndarray:
    """The first test inputs, standardised by the training inputs."""
    with np.load(sets / "uci_split1.npz") as split, np.load(sets / f"uci_{UCI[name]}.npz") as stored:
        inputs = stored["X"][split[f"{name}_test"][:count]].astype(np.float64)
        return (inputs - split[f"{name}_x_mean"]) / split[f"{name}_x_std"]


@app.command()
def uci(data: Folder, sets: Folder, eps: float = 0.25, count: int = 50) -> None:
    """Mean width of the bounds around test inputs, one hidden layer of 32 tanh."""
    table = Table("set", "inputs", "attained", "bounds", "excess", "box method", "specs / s")
    for name in UCI:
        path = data / f"uci_vogn32tanh_{name}1.npz"
        model, x = read(path, "gaussian"), uci_inputs(sets, name, count)
        found, seconds = bounded(model, x - eps, x + eps)
        least, most = attained(exact_mean(path), torch.as_tensor(x - eps), torch.as_tensor(x + eps))
        truth, width = float((most - least).mean()), float((found.upper - found.lower).mean())
        if (torch.as_tensor(found.lower[:, 0]) > least).any() or (torch.as_tensor(found.upper[:, 0]) < most).any():
            raise SystemExit(f"{name}: a bound was crossed")
        box = by_boxes(model, x - eps, x + eps)
        table.add_row(
            name, str(x.shape[1]), f"{truth:.4f}", f"{width:.4f}", f"{100 * (width / truth - 1):.3f} %",
            f"{(box[1] - box[0]).mean():.2f}", f"{len(x) / seconds:.1f}",
        )  # fmt: skip
    Console().print(table)


def predictive(model: Model, count: int) -> Callable[[Tensor], Tensor]:
    """x (P, n) -> D(x) (P, m): exact for weight samples, else an estimate from `count` networks."""
    if isinstance(model.posterior, WeightSamples):
        params = {key: torch.as_tensor(values) for key, values in model.posterior.samples.items()}
        share = torch.as_tensor(model.posterior.probabilities)[:, None, None]
    elif model.posterior is not None:
        params = sample(model.network, model.posterior, count, torch.Generator().manual_seed(0))
        share = torch.full((count, 1, 1), 1 / count, dtype=torch.float64)
    else:
        raise typer.BadParameter("the model carries no posterior")

    def mean(x: Tensor) -> Tensor:
        y = evaluate(model.network, x, params)
        return (share * (torch.softmax(y, -1) if model.likelihood == "categorical" else y)).sum(0)

    return mean


def attained_gap(model: Model, x: Tensor, radius: float, count: int) -> tuple[Tensor, Tensor]:
    """Labels (N,) and the attained range (N,) of their probability: 200 random points of each box, and a 3^n lattice
    or, where inputs are many, 200 random corners.
    """
    mean = predictive(model, count)
    generator = torch.Generator().manual_seed(0)
    points = x + radius * (2 * torch.rand(200, *x.shape, generator=generator, dtype=torch.float64) - 1)
    if x.shape[1] <= LATTICE:
        lattice = torch.cartesian_prod(*[torch.tensor([-radius, 0.0, radius], dtype=torch.float64)] * x.shape[1])
        more = x + lattice[:, None]
    else:
        more = x + radius * torch.where(points > x, 1.0, -1.0)
    points = torch.cat([points, more])
    values = torch.stack([mean(part) for part in points])
    label = mean(x).argmax(-1)
    return label, (values.amax(0) - values.amin(0)).gather(-1, label[:, None])[:, 0]


@app.command()
def hcas(data: Folder, sets: Folder, count: int = 500, networks: int = 200) -> None:
    """Mean gap of the predicted class's probability over grid points drawn at random (seed 0)."""
    grid = np.load(data / "hcas_X.npy").astype(np.float64)
    x = grid[np.random.default_rng(0).choice(len(grid), count, replace=False)]
    table = Table("posterior", "attained", "bounds", "excess", "box method", "unsat", "sat", "open", "specs / s")
    for name in ("hcas_rob_pra0_tau20", "hcas_hmc_pra0_tau20"):
        model = read(data / f"{name}.npz", "categorical")
        label, reached = attained_gap(model, torch.as_tensor(x), RADIUS, networks)
        chosen = np.arange(count), label.numpy()
        boxes, labels = (x - RADIUS, x + RADIUS), label.numpy()
        found, seconds = timed(partial(verify_batch, model, *boxes, labels=labels, query="decision"))
        gap, truth = (found.upper - found.lower)[chosen].mean(), float(reached.mean())
        box = by_boxes(model, x - RADIUS, x + RADIUS)
        words = found.verdicts.astype(str)
        table.add_row(
            name, f"{truth:.4f}", f"{gap:.4f}", f"{100 * (gap / truth - 1):.2f} %",
            f"{(box[1] - box[0])[chosen].mean():.4f}", str((words == "unsat").sum()), str((words == "sat").sum()),
            str((words == "unknown").sum()), f"{count / seconds:.1f}",
        )  # fmt: skip
    Console().print(table)


@app.command()
def mnist(data: Folder, sets: Folder, count: int = 50, timeout: float = 1800.0) -> None:
    """Test images whose predicted class is proved to be the decision on the whole box (clipped to [0, 1])."""
    with np.load(sets / "mnist_t10k.npz") as stored:
        x = stored["x"][:count].reshape(count, -1) / 255.0
    table = Table("posterior", "eps", "proved", "refuted", "open", "proved by boxes", "s an image")
    for name, eps in MNIST:
        model = read(data / f"{name}.npz", "categorical")
        lower, upper = np.maximum(x - eps, 0), np.minimum(x + eps, 1)
        label = evaluate(model.network, torch.as_tensor(x)).argmax(-1).numpy()
        ask = partial(verify_batch, model, lower, upper, labels=label, query="decision", timeout=timeout)
        found, seconds = timed(ask)
        low, high = by_boxes(model, lower, upper)
        chosen = np.arange(count), label
        mine, others = low[chosen], high.copy()
        others[chosen] = -np.inf
        words = found.verdicts.astype(str)
        proved, refuted = (words == "unsat").sum(), (words == "sat").sum()
        table.add_row(
            name, str(eps), str(proved), str(refuted), str(count - proved - refuted),
            str((mine > others.max(-1)).sum()), f"{seconds / count:.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
