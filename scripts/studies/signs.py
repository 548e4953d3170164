"""Traffic signs: Bayesian convolutional networks, one convolution (published) and two (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnn_vnnlib.model import Model
from bnn_vnnlib.sweeps import Reading, Source, UncertaintyResult, make_inputs, uncertainty
from studies import published as paper
from studies import tables
from studies.figures import SERIES, panels, save
from studies.places import Floats, Labels, Places, own, signs
from studies.tables import Row
from studies.watching import watched

RADIUS = 2 / 255
TAU = 0.55
PUBLISHED = "gtsrb_VOGN_small_Posterior_5"
CHUNK = 10


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, its images and labels, and noise."""

    name: str
    model: Model
    x: Floats
    labels: Labels
    noise: Floats


def subjects(places: Places) -> list[Subject]:
    """Images are flattened as each network takes them: channels last (published), channels first (ours)."""
    images, labels = signs(places)
    rows = places.some(len(images))
    images, labels = images[rows], labels[rows]
    noise = np.random.default_rng(0).random(images.shape)

    def flat(x: Floats, first: bool) -> Floats:
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2) if first else x).reshape(len(x), -1)

    found = [(PUBLISHED, places.published(PUBLISHED, "categorical"), False)]
    found += [(name, model, True) for name, model in own("traffic_signs").items()]
    return [Subject(name, model, flat(images, first), labels, flat(noise, first)) for name, model, first in found]


def bounded(places: Places, subject: Subject, kind: str) -> UncertaintyResult:
    """Bounds on D at the image and at 2/255 around it."""
    arrays = {"x": subject.x, "label": subject.labels} if kind == "signs" else {"x": subject.noise}
    folder = places.out / "work" / f"signs-{len(subject.x)}" / f"{subject.name}-{kind}"
    with watched(f"{subject.name}, {kind}") as watch:
        return uncertainty(
            Source(memory=subject.model), make_inputs(arrays, clip=(0.0, 1.0)), (0.0, RADIUS), Reading(tau=TAU),
            out=folder, chunk=CHUNK, watch=watch,
        )  # fmt: skip


def run(places: Places) -> str:
    """Write the table and the figure."""
    rows: list[Row] = []
    results: dict[str, dict[str, UncertaintyResult]] = {}
    for subject in subjects(places):
        results[subject.name] = {kind: bounded(places, subject, kind) for kind in ("signs", "noise")}
        for kind, result in results[subject.name].items():
            for reading in result.readings:
                at_radius = reading.radius > 0
                rows.append({
                    "network": subject.name, "inputs": kind, "eps": reading.radius, "count": reading.inputs,
                    "proved correct %": 100 * reading.correct if kind == "signs" else None,
                    "mean D lower of the label": reading.lower if kind == "signs" else None,
                    "mean D upper of the label": reading.upper if kind == "signs" else None,
                    f"proved uncertain (tau {TAU}) %": 100 * reading.uncertain,
                    "proved not uncertain %": 100 * reading.not_uncertain,
                    "published %": paper.SIGNS["certified" if kind == "signs" else "noise uncertain"]
                    if at_radius else None,
                    "s an input": result.spent.seconds / reading.inputs,
                })  # fmt: skip
    figure, axes = panels(len(results))
    for one, (name, found) in zip(axes, results.items(), strict=True):
        columns = found["signs"].columns
        near = columns["radius"] > 0
        order = np.argsort(columns["label_lower"][near])
        low, high = columns["label_lower"][near][order], columns["label_upper"][near][order]
        one.fill_between(np.arange(len(low)), low, high, color=SERIES[0], alpha=0.35, label="bounds on D at 2/255")
        point = columns["label_lower"][~near][order]
        one.plot(np.arange(len(low)), point, ".", color="black", markersize=2, label="D at the image")
        one.axhline(0.5, color=SERIES[4], linewidth=0.8)
        one.set(title=name, xlabel="images, sorted", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("D of the label")
    axes[0].legend(loc="upper left", frameon=False)
    save(figure, places.out, "signs")
    return tables.write(places.out, "signs", rows, f"{places.which}, pixels in [0, 1]")
