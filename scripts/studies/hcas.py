"""Horizontal collision avoidance: P_safe of the advisories over the whole grid of encounters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bnn_vnnlib.files.arrays import Arrays, read_columns
from bnn_vnnlib.model import Model, read_model
from bnn_vnnlib.sweeps import Bounding, Pair, Source, SweepResult, make_table, sweep
from bnn_vnnlib.sweeps.inputs import mean_output
from studies import published as paper
from studies import tables
from studies.figures import OPEN, SAFE, UNSAFE, panels, save
from studies.hcas_maps import draw_map
from studies.places import Floats, Labels, Places, hcas_grid, hcas_labels, named, own_models, place_of
from studies.tables import Row
from studies.watching import watched

RADIUS = 0.025
TAU_SAFE, TAU_UNSAFE = 0.98, 0.05
ADVISORIES = ("clear of conflict", "weak left", "weak right", "strong left", "strong right")
TIMES = (0, 5, 10, 15, 20, 30, 40, 60)
CUBES, CELLS = "cubes", "cells"
MAPPED = "pra0_tau20"
OWN_CHUNK = 20
"""Boxes at a time of our own networks, which take seconds each: what is not finished is lost by a kill."""
HEADING = 10
"""Index of the relative heading of the maps: -pi / 2."""


@dataclass(frozen=True)
class Choice:
    """networks : substrings of names, empty: all; kind : cubes of ±0.025, or the cells that partition the grid."""

    networks: tuple[str, ...] = ()
    kind: str = CUBES
    ours: bool = False

    def names(self) -> list[str]:
        """Names of the networks that are looked at."""
        published = [f"hcas_rob_pra{pra}_tau{time:02d}" for pra in range(5) for time in TIMES]
        return named(own_models("hcas") if self.ours else published, self.networks)


def cubes(grid: Floats) -> tuple[Floats, Floats]:
    """±0.025 in every scaled input, as published; neighbours overlap."""
    return grid - RADIUS, grid + RADIUS


def cells(grid: Floats) -> tuple[Floats, Floats]:
    """The partition of the grid's hull: every cell reaches to the midpoints between neighbours, or to the end."""
    lower, upper = np.empty_like(grid), np.empty_like(grid)
    for column in range(grid.shape[1]):
        values, place = np.unique(grid[:, column], return_inverse=True)
        middle = (values[:-1] + values[1:]) / 2
        lower[:, column] = np.concatenate([values[:1], middle])[place]
        upper[:, column] = np.concatenate([middle, values[-1:]])[place]
    return lower, upper


BOXES = {CUBES: cubes, CELLS: cells}


def bounded(places: Places, name: str, model: Model, choice: Choice, rows: np.ndarray, what: str) -> SweepResult:
    """P_safe of these rows of the grid; goes on where an earlier call was ended."""
    lower, upper = (side[rows] for side in BOXES[choice.kind](hcas_grid(places)))
    labels = hcas_labels(places, *place_of(name))[rows]
    table = make_table({"lower": lower, "upper": upper, "label": labels})
    how = Bounding(query="probabilistic", tau_safe=TAU_SAFE, tau_unsafe=TAU_UNSAFE)
    folder = places.out / "work" / f"{what}-{choice.kind}-{len(rows)}" / name
    with watched(f"{name} {choice.kind}") as watch:
        return sweep(
            [Pair(Source(memory=model), table)], how, out=folder, chunk=OWN_CHUNK if choice.ours else None, watch=watch
        )


def networks(places: Places, choice: Choice) -> Iterator[tuple[str, Model]]:
    """The published networks, or our own."""
    for name in choice.names():
        yield name, network(places, name, choice.ours)


def network(places: Places, name: str, ours: bool) -> Model:
    """One of them."""
    return read_model(own_models("hcas")[name]) if ours else places.published(name, "categorical")


def counts(name: str, columns: Arrays) -> list[Row]:
    """Counts of a network by property."""
    kept = columns["label"] >= 0
    safe, unsafe = columns["p_safe_lower"] >= TAU_SAFE, columns["p_safe_upper"] < TAU_UNSAFE
    between = (columns["p_safe_lower"] >= TAU_UNSAFE) & (columns["p_safe_upper"] < TAU_SAFE) & ~safe & ~unsafe
    rows: list[Row] = []
    for label in range(len(ADVISORIES)):
        of = kept & (columns["label"] == label)
        rows.append({
            "network": name, "property": f"phi_{label}", "boxes": int(of.sum()), "safe": int((of & safe).sum()),
            "unsafe": int((of & unsafe).sum()), "between": int((of & between).sum()),
        })  # fmt: skip
    return rows


def shares(rows: Sequence[Row]) -> list[Row]:
    """Percentages by property over all networks, beside the published ones."""
    table: list[Row] = []
    for label in (*range(len(ADVISORIES)), None):
        of = [row for row in rows if label is None or row["property"] == f"phi_{label}"]
        total, safe, unsafe, between = (
            sum(int(row[key] or 0) for row in of) for key in ("boxes", "safe", "unsafe", "between")
        )
        theirs = paper.HCAS_ALL if label is None else paper.HCAS_SHARES[label]
        percent = 100 / max(total, 1)
        table.append({
            "property": "all" if label is None else f"phi_{label}", "boxes": total, "safe %": percent * safe,
            "unsafe %": percent * unsafe, "undecided %": percent * (total - safe - unsafe),
            "of these proved between %": percent * between, "published safe %": theirs[0],
            "published unsafe %": theirs[1], "published undecided %": theirs[2],
        })  # fmt: skip
    return table


def draw_shares(out: Path, name: str, table: Sequence[Row]) -> None:
    """Stacked bars: ours and the published ones."""
    figure, (axes,) = panels(width=5.2)
    for k, row in enumerate(table):
        for shift, prefix, hatch in ((-0.2, "", ""), (0.2, "published ", "//")):
            base = 0.0
            for word, colour in (("safe", SAFE), ("undecided", OPEN), ("unsafe", UNSAFE)):
                height = float(row[f"{prefix}{word} %"] or 0)
                label = f"{prefix}{word}" if k == 0 else None
                axes.bar(k + shift, height, 0.36, base, color=colour, hatch=hatch, edgecolor="white", label=label)
                base += height
    axes.set_xticks(range(len(table)), [str(row["property"]) for row in table])
    axes.set(xlabel="property", ylabel="share of boxes (%)", ylim=(0, 103))
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    save(figure, out, name)


def from_file(path: Path) -> list[Row]:
    """Counts from the bounds.parquet of a sweep over networks that are named as ours are."""
    columns, _ = read_columns(path)
    rows: list[Row] = []
    for name in np.unique(columns["network"]):
        place_of(str(name))
        rows += counts(str(name), {key: values[columns["network"] == name] for key, values in columns.items()})
    return rows


def run(places: Places, choice: Choice, bounds: Path | None = None) -> str:
    """Write the tables and figures; returns the table of shares."""
    rows: list[Row] = [] if bounds is None else from_file(bounds)
    seconds: list[Row] = []
    if bounds is None:
        chosen = places.some(len(hcas_grid(places)))
        for name, model in networks(places, choice):
            found = bounded(places, name, model, choice, chosen, "sweep")
            rows += counts(name, found.columns)
            done = int((found.columns["label"] >= 0).sum())
            seconds.append({
                "network": name, "boxes": done, "s": found.spent.seconds, "boxes / s": done / found.spent.seconds,
                "peak MB": found.spent.peak_mb,
            })  # fmt: skip
    stem = f"hcas_{'own_' if choice.ours else ''}{choice.kind}"
    table = shares(rows)
    caption = f"P_safe >= {TAU_SAFE} / < {TAU_UNSAFE}; {places.which} of each network's grid"
    tables.write(places.out, f"{stem}_networks", rows, caption)
    if seconds:
        tables.write(places.out, f"{stem}_time", seconds)
    draw_shares(places.out, stem, table)
    return tables.write(places.out, stem, table, caption)


def maps(places: Places, choice: Choice, index: int = HEADING) -> None:
    """Encounter geometry at one relative heading for one of the networks: what is advised, and what is certified."""
    names = choice.names()
    name = next((name for name in names if MAPPED in name), names[0])
    grid = hcas_grid(places)
    headings = np.unique(grid[:, 2])
    rows = np.flatnonzero(grid[:, 2] == headings[index])
    model = network(places, name, choice.ours)
    found = bounded(places, name, model, replace(choice, kind=CELLS), rows, "map")
    labels: Labels = found.columns["label"]
    bounds = found.columns["p_safe_lower"], found.columns["p_safe_upper"]
    draw_map(places.out, name, grid[rows], labels, mean_output(model, grid[rows]).argmax(-1), bounds)
