"""Inputs that are no digits: for how large a ball is it certified that the network is not sure about them?

FashionMNIST, which the paper uses, is not read unless it is given as --inputs; here digits are rotated by a quarter
turn or cut into shuffled patches, and noise is drawn. Nothing is attacked: the radii begin at 0, so that a network that
is sure about an image itself is proved to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.model import Model
from bnn_vnnlib.sweeps import Reading, Source, UncertaintyResult, make_inputs, uncertainty
from studies import tables
from studies.figures import MARKS, SERIES, grid, in_words, save
from studies.places import Floats, Places, mnist, mnist_held_out, nets, own_models
from studies.tables import Row
from studies.watching import watched

EPS = (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1)
TAU = 0.4
PATCH = 7
PUBLISHED = {"mnist_vogn_32x1_eps0.1": "mnist", "mnist_vogn_128x1_eps0.1": "mnist"}
"""Name -> family."""


def kinds(places: Places, given: Path | None) -> dict[str, Floats]:
    """Images (N, 784) by kind; held-out digits as they are come first."""
    x, _ = mnist(places)
    x = x[mnist_held_out(places)][: places.limit].reshape(-1, 28, 28)
    chance = np.random.default_rng(0)
    found = {
        "digits": x,
        "rotated by 90 deg": np.rot90(x, axes=(1, 2)),
        "shuffled patches": shuffled(x, chance),
        "uniform noise": chance.random(x.shape),
    }
    if given is not None:
        found[given.stem] = read(given)[: places.limit]
    return {name: np.ascontiguousarray(images).reshape(len(images), -1) for name, images in found.items()}


def shuffled(x: Floats, chance: np.random.Generator) -> Floats:
    """Images (N, 28, 28) whose PATCH x PATCH patches changed places, differently in each image."""
    side = 28 // PATCH
    patches = x.reshape(-1, side, PATCH, side, PATCH).swapaxes(2, 3).reshape(len(x), side * side, PATCH, PATCH)
    order = chance.permuted(np.tile(np.arange(side * side), (len(x), 1)), axis=1)
    moved = np.take_along_axis(patches, order[:, :, None, None], axis=1)
    return moved.reshape(-1, side, side, PATCH, PATCH).swapaxes(2, 3).reshape(-1, 28, 28)


def read(path: Path) -> Floats:
    """Images of an npz file: `x` (N, 28, 28) or (N, 784), in 0 .. 255 or in [0, 1]."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            x = stored["x"].astype(np.float64)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"expected a NumPy archive with an array x of images ({error})", path=path) from None
    if x.ndim not in (2, 3) or x[0].size != 784 or not np.isfinite(x).all() or x.min() < 0 or x.max() > 255:
        raise InputError(f"x must be (N, 28, 28) with values in [0, 1] or 0 .. 255, found {x.shape}", path=path)
    return x / (255.0 if x.max() > 1 else 1.0)


def read_off(places: Places, name: str, model: Model, kind: str, x: Floats) -> UncertaintyResult:
    """Bounds on D and certificates of uncertainty."""
    folder = places.out / "work" / f"outliers-{len(x)}" / f"{name}-{kind.replace(' ', '_')}"
    with watched(f"{name}, {kind}") as watch:
        return uncertainty(
            Source(memory=model), make_inputs({"x": x}, clip=(0.0, 1.0)), EPS, Reading(TAU, quick=True),
            out=folder, watch=watch,
        )  # fmt: skip


def run(places: Places, given: Path | None, only: Sequence[str] = ()) -> str:
    """Write the table and the figure."""
    found: dict[str, dict[str, UncertaintyResult]] = {}
    chosen = nets(PUBLISHED, own_models("mnist"), only)
    images = kinds(places, given)
    for net in chosen:
        model = net.read(places)
        found[net.name] = {kind: read_off(places, net.name, model, kind, x) for kind, x in images.items()}
    rows: list[Row] = [
        {
            "network": name, "inputs": kind, "eps": reading.radius, "count": reading.inputs,
            f"proved uncertain (tau {TAU}) %": 100 * reading.uncertain,
            "proved not uncertain %": 100 * reading.not_uncertain, "mean of the largest D upper": reading.aleatoric,
        }
        for name, results in found.items()
        for kind, result in results.items()
        for reading in result.readings
    ]  # fmt: skip
    draw(places.out, found)
    return tables.write(places.out, "outliers", rows, f"No class above {TAU} anywhere in the ball")


def draw(out: Path, found: Mapping[str, Mapping[str, UncertaintyResult]]) -> None:
    """Share certified uncertain against the radius."""
    figure, axes = grid(len(found))
    for one, (name, results) in zip(axes, found.items(), strict=True):
        for k, (kind, result) in enumerate(results.items()):
            shares = [100 * reading.uncertain for reading in result.readings]
            one.plot(EPS, shares, color=SERIES[k % 6], marker=MARKS[k % 6], label=kind)
        one.set(title=in_words(name), xlabel="eps (pixels in [0, 1])", ylim=(-3, 103), xticks=(0, 0.05, 0.1))
    axes[0].set_ylabel("proved uncertain (%)")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=min(4, 2 * len(found)), frameon=False)
    save(figure, out, "outliers")
