"""Balls around traffic signs: a network of two convolutions with 396,510 Gaussian weights.

    python scripts/measure/signs.py signs DATA [--images N] [--timeout S] [--radius R] [--deviations 10] [--networks 20]
    python scripts/measure/signs.py others DATA [--timeout S]

DATA holds gtsrb_SWAG_small_Posterior_0.npz, gtsrb_50kmh_roadwork_28.npz and, for `others`, gtsrb_ood_28_bgr.npz (in
`posteriors` and `sets`, or by themselves). Images are drawn with seed 0; the label is that of the mean network. Each
ball is one question. `--deviations` multiplies the standard deviations, or takes their square roots ("root");
`--networks` says in how many drawn networks an attack is to look for another class. `others` asks for the decision on
images that are no such signs: is it proved that no class is more likely than 0.55 anywhere in the ball, or that one is?
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bnn_vnnlib import Model, attack, verify_batch
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import GaussianDiagonal
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.problem import from_labels
from studies.places import Places
from studies.places import signs as stored

NAME = "gtsrb_SWAG_small_Posterior_0"
ENOUGH, UNSURE = 0.95, 0.55
RADII = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)

app = typer.Typer(help=__doc__)


def widened(model: Model, deviations: str) -> Model:
    """The model with other standard deviations."""
    if not isinstance(model.posterior, GaussianDiagonal):
        raise typer.BadParameter("the posterior is not Gaussian")
    variances = {
        name: np.sqrt(values) if deviations == "root" else values * float(deviations) ** 2
        for name, values in model.posterior.variances.items()
    }
    return replace(model, posterior=GaussianDiagonal(variances))


def unbroken(model: Model, low: np.ndarray, high: np.ndarray, label: int, networks: int) -> float:
    """The share of drawn networks in which an attack finds no other class: an estimate."""
    if model.posterior is None:
        raise typer.BadParameter("nothing is random")
    drawn = sample(model.network, model.posterior, networks, torch.Generator().manual_seed(0))
    problem = from_labels(torch.tensor(low), torch.tensor(high), torch.tensor([label]), 2)
    _, values = attack.run(model.network, problem, drawn, attack.Attack(steps=20, restarts=1), "identity")
    return float((values > 0).double().mean())


@app.command()
def signs(
    data: Path, images: int = 20, timeout: float = 20.0, radius: Annotated[list[float] | None, typer.Option()] = None,
    deviations: str = "1", networks: int = 0,
) -> None:  # fmt: skip
    """Print a table; the time limit is that of one ball."""
    torch.set_num_threads(1)
    time.monotonic = time.process_time
    places = Places(data, data)
    model = widened(places.published(NAME, "categorical"), deviations)
    pictures = np.ascontiguousarray(stored(places)[0][..., ::-1])  # blue first
    rows = np.random.default_rng(0).choice(len(pictures), images, replace=False)
    x = pictures[rows].reshape(len(rows), -1)
    network, mean = model.network, weight_sets.mean_weights(model.network)
    labels = evaluate(network, torch.tensor(x)).argmax(-1).reshape(-1).numpy()
    differences = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)

    def asked(low: np.ndarray, high: np.ndarray, label: int) -> tuple[float, float, bool, float]:
        begun = time.process_time()
        found = verify_batch(model, low, high, [label], query="probabilistic", timeout=timeout)
        spent = time.process_time() - begun
        with torch.no_grad():
            bound = Engine(network).rows(mean, torch.tensor(low), torch.tensor(high), differences[None, label, None])
        share = unbroken(model, low, high, label, networks) if networks else np.nan
        return float(found.lower[0]), spent, bool(bound.lower > 0), share

    asked(x[:1], x[:1], int(labels[0]))  # imports
    print(
        f"radius (of 255) | P_safe >= {ENOUGH} | mean network, linear bounds | processor s, mean | largest | unbroken"
    )
    for r in radius or RADII:
        lower, spent, proved, share = zip(
            *(
                asked((image - r / 255).clip(0, 1)[None], (image + r / 255).clip(0, 1)[None], int(label))
                for image, label in zip(x, labels, strict=True)
            ),
            strict=True,
        )
        enough = sum(bound >= ENOUGH for bound in lower)
        told = f"{np.mean(spent):.1f} | {max(spent):.1f} | {np.mean(share):.3f}"
        print(f"{r} | {enough} | {sum(proved)} | {told}", flush=True)


@app.command()
def others(data: Path, timeout: float = 10.0) -> None:
    """Print a table of the kinds of images; the time limit is that of one ball."""
    torch.set_num_threads(1)
    time.monotonic = time.process_time
    places = Places(data, data)
    model = places.published(NAME, "categorical")
    print(
        f"images | radius | no class above {UNSURE} | one above {UNSURE} | mean bounds on class 0 | processor s, mean"
    )
    with np.load(places.file("gtsrb_ood_28_bgr.npz")) as file:
        kinds = {name: file[name].reshape(len(file[name]), -1) / 255.0 for name in file}
    for name, pictures in kinds.items():
        for r in (0.0, 1.0, 2.0):
            spent, unsure, sure, ends = 0.0, 0, 0, []
            for image in pictures:
                low, high = ((image + sign * r / 255).clip(0, 1)[None] for sign in (-1, 1))
                label = int(evaluate(model.network, torch.tensor(image[None])).argmax())
                begun = time.process_time()
                found = verify_batch(model, low, high, [label], query="decision", timeout=timeout)
                spent += time.process_time() - begun
                unsure += bool((found.upper[0] <= UNSURE).all())
                sure += bool((found.lower[0] > UNSURE).any())
                ends.append((found.lower[0, 0], found.upper[0, 0]))
            least, most = np.mean(ends, 0)
            told = f"[{least:.3f}, {most:.3f}] | {spent / len(pictures):.1f}"
            print(f"{name}, {len(pictures)} | {r:g}/255 | {unsure} | {sure} | {told}", flush=True)


if __name__ == "__main__":
    app()
