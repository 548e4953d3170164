"""Handwritten digits: bounds on the decision against the radius, and radii against the architecture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnn_vnnlib.model import Model
from bnn_vnnlib.sweeps import (
    Bounding,
    Inputs,
    Radii,
    RadiusResult,
    Reading,
    Source,
    UncertaintyResult,
    make_inputs,
    radii,
    uncertainty,
)
from studies import published as paper
from studies import tables
from studies.figures import MARKS, SERIES, grid, in_words, panels, save
from studies.places import Net, Places, mnist, mnist_held_out, nets, own_models
from studies.tables import Row
from studies.watching import watched

EPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25)
PUBLISHED = tuple(f"mnist_vogn_{shape}_eps{trained}" for trained in ("0.1", "0.05") for shape in ("128x1", "32x1"))
LOGGED = "mnist_vogn_32x1_eps0.05"
"""The network that the logs of the published code are about, as far as their figures show (docs/studies/mnist.md)."""
SHAPES = ("32x1", "64x1", "128x1", "32x2", "64x2", "32x3")
OWN_SHAPES = {"mnist_ivon_128": ("128x1", "0.1")}
"""Shape, and the radius that the network was trained at."""
SEARCH = Radii(largest=0.5, tolerance=0.005)
THRESHOLD = 0.7
SHARE = 10
"""The radii are searched for one in so many images of those that the bounds on the decision are asked for."""


def images(places: Places, ours: bool, count: int | None = None) -> Inputs:
    """The first test images; for our own networks the first that they were not trained on."""
    x, y = mnist(places)
    rows = mnist_held_out(places) if ours else np.arange(len(x))
    rows = rows[: places.limit if count is None else count]
    return make_inputs({"x": x[rows], "label": y[rows]}, clip=(0.0, 1.0))


def bounded(places: Places, net: Net) -> UncertaintyResult:
    """Bounds on D of every class at every radius."""
    inputs, model = images(places, net.ours), net.read(places)
    folder = places.out / "work" / f"mnist-decision-{len(inputs)}" / net.name
    with watched(net.name) as watch:
        return uncertainty(Source(memory=model), inputs, EPS, Reading(quick=True), out=folder, watch=watch)


def decisions(places: Places, only: Sequence[str] = ()) -> str:
    """D against eps: table and figure."""
    chosen = nets(dict.fromkeys(PUBLISHED, "mnist"), own_models("mnist"), only)
    found = {net.name: bounded(places, net) for net in chosen}
    rows: list[Row] = []
    for name, result in found.items():
        for reading in result.readings:
            theirs = paper.MNIST_CODE.get(reading.radius) if name == LOGGED else None
            rows.append({
                "network": name, "eps": reading.radius, "images": reading.inputs, "mean D lower": reading.lower,
                "mean D upper": reading.upper, "sd of D lower": reading.deviation,
                "proved correct %": 100 * reading.correct,
                "published code, D lower": None if theirs is None else theirs[0],
                "published code, D upper": None if theirs is None else theirs[1],
                "s an image": result.spent.seconds / reading.inputs,
            })  # fmt: skip
    draw_decisions(places.out, found)
    return tables.write(places.out, "mnist_decision", rows, "Bounds on the expected probability of the label")


def draw_decisions(out: Path, found: dict[str, UncertaintyResult]) -> None:
    """Mean bounds with bands of one standard deviation over the images."""
    figure, axes = grid(len(found))
    for one, (name, result) in zip(axes, found.items(), strict=True):
        radius = result.columns["radius"]
        for column, colour, mark, word in (
            ("label_lower", SERIES[0], "o", "lower bound"),
            ("label_upper", SERIES[4], "s", "upper bound"),
        ):
            values = [result.columns[column][radius == eps] for eps in EPS]
            mean, deviation = (np.array([f(v) for v in values]) for f in (np.mean, np.std))
            low, high = (mean + sign * deviation for sign in (-1, 1))
            one.fill_between(EPS, low.clip(0), high.clip(max=1), color=colour, alpha=0.18, linewidth=0)
            one.plot(EPS, mean, color=colour, marker=mark, label=word)
        one.set(title=in_words(name), xlabel="eps (pixels in [0, 1])", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("probability of the label")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save(figure, out, "mnist_decision")


def searched(places: Places, name: str, model: Model, inputs: Inputs) -> RadiusResult:
    """Radii of P_safe."""
    folder = places.out / "work" / f"mnist-radii-{len(inputs)}" / name
    with watched(name) as watch:
        return radii(
            Source(memory=model), inputs, SEARCH, threshold=THRESHOLD, bounding=Bounding(query="probabilistic"),
            out=folder, chunk=16, watch=watch,
        )  # fmt: skip


def architectures(places: Places, only: Sequence[str] = ()) -> str:
    """Radii against width and depth: table and figure."""
    count = None if places.limit is None else max(1, places.limit // SHARE)
    rows: list[Row] = []
    names = {f"mnist_vogn_{shape}_eps{trained}": (shape, trained) for shape in SHAPES for trained in ("0.05", "0.1")}
    for net in nets(dict.fromkeys(names, "mnist"), OWN_SHAPES, only):
        name, (shape, trained) = net.name, (names | OWN_SHAPES)[net.name]
        found = searched(places, name, net.read(places), images(places, net.ours, count))
        right = found.robust >= 0
        finite = right & np.isfinite(found.unrobust)  # where the image itself fails, a radius of 0 says nothing
        width, depth = (int(part) for part in shape.split("x"))
        theirs = paper.MNIST_CODE_RADII if name == LOGGED else None
        rows.append({
            "network": name, "width": width, "depth": depth, "trained at eps": float(trained), "images": len(right),
            "correct": int(right.sum()), "mean MaxRR": tables.mean(found.robust[right]),
            "mean MinUR": tables.mean(found.unrobust[finite]), "without MinUR": int((right & ~finite).sum()),
            "published code MaxRR": None if theirs is None else theirs[0],
            "published code MinUR": None if theirs is None else theirs[1],
            "s an image": found.spent.seconds / len(right),
        })  # fmt: skip
    draw_architectures(places.out, [row for row in rows if row["network"] in names] or rows)
    return tables.write(places.out, "mnist_radii", rows, f"P_safe, threshold {THRESHOLD}; pixels in [0, 1]")


def draw_architectures(out: Path, rows: list[Row]) -> None:
    """Mean radii against width at depth 1, and against depth at width 32."""
    figure, axes = panels(2, height=3.0)
    for one, along, fixed, value in ((axes[0], "width", "depth", 1), (axes[1], "depth", "width", 32)):
        if not any(row[fixed] == value for row in rows):  # an empty panel would look like a result
            one.set_axis_off()
            continue
        for k, (trained, column) in enumerate((t, c) for t in (0.05, 0.1) for c in ("mean MaxRR", "mean MinUR")):
            of = sorted(
                (float(row[along] or 0), float(row[column] or 0))
                for row in rows
                if row[fixed] == value and row["trained at eps"] == trained
            )
            if not of:
                continue
            style = "-" if "MaxRR" in column else "--"
            one.plot(
                *zip(*of, strict=True),
                style,
                color=SERIES[k // 2],
                marker=MARKS[k],
                label=f"{column[5:]}, trained at {trained}",
            )
        one.set(xlabel=f"{along} ({fixed} {value})", ylabel="mean radius (pixels in [0, 1])")
        one.set_xticks(sorted({float(row[along] or 0) for row in rows if row[fixed] == value}))
        shown = [float(row[c] or 0) for row in rows for c in ("mean MaxRR", "mean MinUR") if row[fixed] == value]
        one.set_ylim(0, 1.1 * max((radius for radius in shown if radius > 0), default=1.0))  # nan is left out
    known = {name: handle for one in axes for handle, name in zip(*one.get_legend_handles_labels(), strict=True)}
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=2, frameon=False)
    save(figure, out, "mnist_radii")
