"""Collision avoidance: bounds on the expected probability of the advisory, by inference method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.arrays import Arrays
from bnn_vnnlib.model import Model, read_model
from bnn_vnnlib.sweeps import Bounding, Pair, Source, make_table, sweep
from studies import published as paper
from studies import tables
from studies.figures import SERIES, panels, save
from studies.hcas import ADVISORIES, cubes
from studies.places import Places, hcas_grid, hcas_labels, named, own_models, place_of
from studies.tables import Row
from studies.watching import watched

GAPS = np.linspace(0, 1, 11)
"""Where the bins of the histogram end."""
CHUNK, OWN_CHUNK = 500, 10
"""Boxes at a time: those of our own networks take seconds each, and what is not finished is lost by a kill."""


def pair(places: Places, place: str, ours: bool, only: Sequence[str] = ()) -> dict[str, Model]:
    """The networks of one advisory and time: by variational inference, and by Hamiltonian Monte Carlo."""
    if ours:
        found = {name: path for name, path in own_models("hcas").items() if place in name}
        if not found:
            raise InputError(f"benchmarks/hcas has no network of {place}")
        return {name: read_model(found[name]) for name in named(found, only)}
    kinds = {"VI": f"hcas_rob_{place}", "HMC": f"hcas_hmc_{place}"}
    there = {name: kind for kind, name in kinds.items() if places.has(f"{name}.npz")}
    if not there:
        places.file(f"{next(iter(kinds.values()))}.npz")  # says what is missing, and where
    return {there[name]: places.published(name, "categorical") for name in named(there, only)}


def bounded(places: Places, place: str, name: str, model: Model, chunk: int) -> Arrays:
    """Bounds on D of the label, the decision's verdict, and whether the grid point itself is classified correctly."""
    grid, labels = hcas_grid(places), hcas_labels(places, *place_of(place))
    rows = places.some(len(grid))
    lower, upper = cubes(grid[rows])
    how = Bounding(query="decision")
    columns: dict[str, Arrays] = {}
    for what, ends in (("box", (lower, upper)), ("point", (grid[rows], grid[rows]))):
        table = make_table({"lower": ends[0], "upper": ends[1], "label": labels[rows]})
        folder = places.out / "work" / f"decision-{what}-{len(rows)}" / f"{place}-{name}"
        with watched(f"{place} {name} {what}") as watch:
            columns[what] = sweep(
                [Pair(Source(memory=model), table)], how, out=folder, chunk=chunk, watch=watch
            ).columns
    each, label = np.arange(len(rows)), labels[rows].clip(min=0)
    return {
        "label": labels[rows],
        "lower": columns["box"]["decision_lower"][each, label],
        "upper": columns["box"]["decision_upper"][each, label],
        "robust": columns["box"]["verdict"] == "unsat",
        "broken": columns["box"]["verdict"] == "sat",
        "accurate": columns["point"]["verdict"] == "unsat",
    }


def summary(kind: str, found: Arrays) -> list[Row]:
    """Means by property, and over all."""
    rows: list[Row] = []
    for label in (*range(len(ADVISORIES)), None):
        of = found["label"] >= 0 if label is None else found["label"] == label
        if not of.any():
            continue
        gap = (found["upper"] - found["lower"])[of]
        rows.append({
            "inference": kind, "property": "all" if label is None else f"phi_{label}", "boxes": int(of.sum()),
            "mean D lower": float(found["lower"][of].mean()), "mean D upper": float(found["upper"][of].mean()),
            "mean gap": float(gap.mean()), "largest gap": float(gap.max()),
            "accurate %": 100 * float(found["accurate"][of].mean()),
            "proved robust %": 100 * float(found["robust"][of].mean()),
            "accurate, proved not robust %": 100 * float((found["accurate"] & found["broken"])[of].mean()),
            "published mean gap": paper.HCAS_GAP.get(kind) if label is None else None,
        })  # fmt: skip
    return rows


def draw(out: Path, name: str, found: dict[str, Arrays]) -> None:
    """Mean lower bound by property, and the distribution of the gap."""
    figure, (bars, hist) = panels(2)
    width = 0.8 / len(found)
    for k, (kind, columns) in enumerate(found.items()):
        of = [columns["label"] == label for label in range(len(ADVISORIES))]
        heights = [float(columns["lower"][o].mean()) if o.any() else np.nan for o in of]
        shift = (k - (len(found) - 1) / 2) * width
        bars.bar(np.arange(len(of)) + shift, heights, width, color=SERIES[k], label=kind)
        kept = columns["label"] >= 0
        counts, _ = np.histogram((columns["upper"] - columns["lower"])[kept], GAPS)
        middle = (GAPS[:-1] + GAPS[1:]) / 2
        hist.bar(middle + shift * GAPS[1], 100 * counts / kept.sum(), width * GAPS[1], color=SERIES[k])
    bars.set_xticks(range(len(ADVISORIES)), [word.replace(" ", "\n") for word in ADVISORIES], fontsize=7)
    bars.set(xlabel="advisory that must be given", ylabel="mean lower bound", ylim=(0, 1))
    most = max(int((columns["label"] >= 0).sum()) for columns in found.values())
    hist.set(xlabel="gap between the bounds", ylabel="share of boxes (%)", yscale="log", ylim=(min(8, 50 / most), 110))
    hist.yaxis.set_major_formatter("{x:g}")
    hist.yaxis.set_minor_formatter("")
    figure.legend(*bars.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    save(figure, out, name)


def run(places: Places, place: str, ours: bool, only: Sequence[str] = ()) -> str:
    """Write the table and the figure."""
    chunk = OWN_CHUNK if ours else CHUNK
    found = {
        kind: bounded(places, place, kind, model, chunk) for kind, model in pair(places, place, ours, only).items()
    }
    name = f"decision_{'own_' if ours else ''}{place}"
    draw(places.out, name, found)
    rows = [row for kind, columns in found.items() for row in summary(kind, columns)]
    return tables.write(places.out, name, rows, f"D on cubes of ±0.025 (scaled inputs); {places.which}")
