"""Traffic signs: Bayesian convolutional networks, one convolution (published) and two (ours).

Bounds on D answer both questions by themselves, so nothing is attacked: what they leave open counts as not proved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnn_vnnlib.model import Model, read_model
from bnn_vnnlib.sweeps import Reading, Source, UncertaintyResult, make_inputs, uncertainty
from studies import published as paper
from studies import tables
from studies.figures import SERIES, WIDTH, in_words, panels, save
from studies.places import Floats, Labels, Places, named, own_models, signs, signs_held_out
from studies.tables import Row
from studies.watching import watched

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RADII = (0.0, 1 / 255, 2 / 255)
"""The paper states 2/255; the published code has 1/255."""
TAU = 0.55
NOISE = 400 / 250
"""Noise for each image, as published."""
PUBLISHED = ("gtsrb_VOGN_small_Posterior_0", "gtsrb_VOGN_small_Posterior_5")
"""Trained without and with the robust likelihood, on images whose channels are blue, green, red: with red first the
first one is right on 58 % of the images, with blue first on 99 %."""
CHUNK = 10
SIGNS, NOISY, CENTRED = "signs", "noise in [0, 1]", "noise in [-0.5, 0.5]"


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, its images and their labels, and noise by its kind."""

    name: str
    model: Model
    labels: Labels
    inputs: Mapping[str, Floats]


def subjects(places: Places, only: Sequence[str] = ()) -> list[Subject]:
    """Images are flattened as each network takes them: blue first, channels last (published); channels first (ours).

    What noise was published is not known; the images behind the published networks are stored in [-.5, .5].
    """
    images, labels = signs(places)

    def subject(name: str, model: Model, known: Labels, ours: bool) -> Subject:
        rows = known[places.some(len(known))]
        noise = np.random.default_rng(0).random((round(NOISE * len(rows)), *images.shape[1:]))

        def flat(x: Floats) -> Floats:
            moved = x.transpose(0, 3, 1, 2) if ours else x[..., ::-1]
            return np.ascontiguousarray(moved).reshape(len(x), -1)

        inputs = {SIGNS: flat(images[rows]), NOISY: flat(noise)}
        return Subject(name, model, labels[rows], inputs if ours else {**inputs, CENTRED: flat(noise - 0.5)})

    everything, ours = np.arange(len(images)), own_models("traffic_signs")
    return [
        subject(name, read_model(ours[name]), signs_held_out(labels), True)
        if name in ours
        else subject(name, places.published(name, "categorical"), everything, False)
        for name in named([*PUBLISHED, *ours], only)
    ]


def bounded(places: Places, subject: Subject, kind: str) -> UncertaintyResult:
    """Bounds on D at the images (or the noise) and in the balls around them."""
    arrays = {"x": subject.inputs[kind]} | ({"label": subject.labels} if kind == SIGNS else {})
    clip = (-0.5, 0.5) if kind == CENTRED else (0.0, 1.0)
    word = {SIGNS: "signs", NOISY: "noise", CENTRED: "centred"}[kind]
    folder = places.out / "work" / f"signs-{len(subject.labels)}" / f"{subject.name}-{word}"
    with watched(f"{subject.name}, {kind}") as watch:
        return uncertainty(
            Source(memory=subject.model), make_inputs(arrays, clip=clip), RADII, Reading(TAU, quick=True),
            out=folder, chunk=CHUNK, watch=watch,
        )  # fmt: skip


def rows_of(name: str, kind: str, result: UncertaintyResult) -> list[Row]:
    """One row a radius."""
    of_signs = kind == SIGNS
    theirs = paper.SIGNS["certified" if of_signs else "noise uncertain"]
    return [
        {
            "network": name, "inputs": kind, "eps": reading.radius, "count": reading.inputs,
            "proved correct %": 100 * reading.correct if of_signs else None,
            "mean D lower of the label": reading.lower if of_signs else None,
            "mean D upper of the label": reading.upper if of_signs else None,
            f"proved uncertain (tau {TAU}) %": 100 * reading.uncertain,
            "proved not uncertain %": 100 * reading.not_uncertain,
            "mean of the largest D upper": reading.aleatoric,
            "published %": theirs if reading.radius > 0 else None,
            "s an input": result.spent.seconds / reading.inputs,
        }
        for reading in result.readings
    ]  # fmt: skip


def draw(out: Path, results: Mapping[str, Mapping[str, UncertaintyResult]]) -> None:
    """Bounds at the largest radius, inputs sorted: on the label's probability, and on the largest one on noise."""
    kinds = (SIGNS, NOISY, CENTRED)
    figure, axes = panels(len(results), len(kinds), 2 * WIDTH / max(2, len(results)), 1.9)
    for number, one in enumerate(axes):
        line, place = divmod(number, len(results))
        (name, found), kind = list(results.items())[place], kinds[line]
        if kind not in found:
            one.set_axis_off()
            continue
        panel(one, found[kind], kind)
        one.set_title(f"{in_words(name)}\n{kind}" if line == 0 else kind)
        if place == 0:
            one.set_ylabel("D of the label" if kind == SIGNS else "largest D of any class")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, 2 * len(results)), frameon=False
    )
    save(figure, out, "signs")


def panel(one: Axes, result: UncertaintyResult, kind: str) -> None:
    """The inputs of one kind on one network."""
    from matplotlib.ticker import MaxNLocator

    low, high = ends(result, kind, RADII[-1])
    least, most = ends(result, kind, 0.0)
    order = np.argsort(low + high)
    number = np.arange(1, len(order) + 1)
    one.fill_between(number, low[order], high[order], color=SERIES[0], alpha=0.35, step="mid", linewidth=0,
                     label="bounds within 2/255")  # fmt: skip
    middle = (least + most)[order] / 2
    one.errorbar(number, middle, (most - least)[order] / 2, fmt=".", color="black", markersize=2, elinewidth=0.6,
                 label="bounds at the input")  # fmt: skip
    one.axhline(0.5, color=SERIES[4], linewidth=1, linestyle="--", label="D = 0.5")
    one.axhline(TAU, color=SERIES[1], linewidth=1, linestyle=":", label=f"tau = {TAU}")
    one.set(xlabel="inputs, sorted", ylim=(-0.02, 1.02))
    one.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def ends(result: UncertaintyResult, kind: str, radius: float) -> tuple[Floats, Floats]:
    """Bounds on D of the label, or on the largest D (at least the share of one class), by input."""
    some = result.columns["radius"] == radius
    if kind == SIGNS:
        return result.columns["label_lower"][some], result.columns["label_upper"][some]
    low, high = (result.columns[f"decision_{side}"][some] for side in ("lower", "upper"))
    return np.maximum(low.max(-1), 1 / low.shape[1]), high.max(-1)


def run(places: Places, only: Sequence[str] = ()) -> str:
    """Write the table and the figure."""
    results = {one.name: {kind: bounded(places, one, kind) for kind in one.inputs} for one in subjects(places, only)}
    draw(places.out, results)
    rows = [
        row for name, found in results.items() for kind, result in found.items() for row in rows_of(name, kind, result)
    ]
    return tables.write(places.out, "signs", rows, f"{places.which}, pixels in [0, 1]")
