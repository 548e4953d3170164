"""Regression: how far every test input can move before the output is certified to stay, or to leave, its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnn_vnnlib.model import Model
from bnn_vnnlib.sweeps import Bounding, Radii, RadiusResult, Source, make_inputs, radii
from studies import published as paper
from studies import tables
from studies.figures import SERIES, grid, save
from studies.places import Net, Places, named, own_models, regression
from studies.tables import Row
from studies.watching import watched

THRESHOLD = 0.7
SHARE = 0.25
"""The output may move from its target by this share of the range of the test targets."""
SEARCH = Radii(largest=1.0, tolerance=0.002)
CHUNK, OWN_CHUNK = 1024, 64
"""Inputs at a time, all of a set or many: one batch of what is hard takes little longer than a few of them."""
PUBLISHED = {name: f"uci_vogn32tanh_{name}1" for name in ("concrete", "powerplant")}


def networks(name: str) -> dict[str, Net]:
    """The published network of a set, and ours."""
    ours = {kind: Net(kind, name, True) for kind in own_models(name)}
    return {f"published {name}, 32 tanh": Net(PUBLISHED[name], name, False)} | ours


def searched(places: Places, name: str, kind: str, model: Model) -> RadiusResult:
    """Radii around the test inputs; a radius of 1 is half of the test range of each feature."""
    x, y = regression(places, name)
    rows = places.some(len(x))
    inputs = make_inputs({"x": x[rows], "y": y[rows], "scale": np.ptp(x, axis=0) / 2})
    chunk = CHUNK if kind.startswith("published") else OWN_CHUNK
    folder = places.out / "work" / f"regression-{len(rows)}" / kind.replace(", ", "_").replace(" ", "_")
    with watched(f"{name} {kind}") as watch:
        return radii(
            Source(memory=model), inputs, SEARCH, threshold=THRESHOLD, delta=SHARE * float(np.ptp(y)),
            bounding=Bounding(query="probabilistic"), out=folder, chunk=chunk, watch=watch,
        )  # fmt: skip


def row_of(name: str, kind: str, found: RadiusResult) -> Row:
    """Means over the inputs that have the radius in question."""
    some, finite = ~np.isnan(found.robust), np.isfinite(found.unrobust)
    gap = (found.unrobust - found.robust)[some & finite]
    theirs = paper.CODE_RADII[name] if kind.startswith("published") else paper.RADII[name]

    return {
        "set": name, "network": kind, "inputs": len(some), "wrong at radius 0": int((found.unrobust == 0).sum()),
        "robust at radius 1": int((found.robust >= 1).sum()), "mean MaxRR": tables.mean(found.robust[some]),
        "mean MinUR": tables.mean(found.unrobust[finite]), "mean gap": tables.mean(gap),
        "largest gap": float(gap.max(initial=0.0)),
        "without MinUR below 1": int((~finite).sum()), "published MaxRR": theirs[0], "published MinUR": theirs[1],
        "s an input": found.spent.seconds / len(some),
    }  # fmt: skip


def draw(out: Path, found: dict[str, dict[str, RadiusResult]]) -> None:
    """Both radii of every test input, inputs sorted by the robust one."""
    from matplotlib.ticker import MaxNLocator

    results = {kind: result for of in found.values() for kind, result in of.items()}
    figure, axes = grid(len(results))
    for one, (kind, result) in zip(axes, results.items(), strict=True):
        robust, unrobust = np.nan_to_num(result.robust), np.minimum(result.unrobust, SEARCH.largest)
        order = np.lexsort([unrobust, robust])
        edges = np.arange(len(order) + 1) + 0.5  # a step for each input, so that few of them are seen as well
        one.stairs(unrobust[order], edges, baseline=robust[order], fill=True, color="#dddddd", label="not decided")
        one.stairs(robust[order], edges, baseline=None, color=SERIES[0], label="largest robust radius")
        one.stairs(
            unrobust[order],
            edges,
            baseline=None,
            color=SERIES[4],
            linestyle="--",
            label="smallest unrobust radius (cut at 1)",
        )
        one.set(
            title=kind.replace("powerplant", "power plant"),
            xlabel="test inputs, sorted",
            xlim=(0.5, len(order) + 0.5),
            ylim=(0, 1.03),
        )
        one.set_ylabel("radius (half ranges)")
        one.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(figure, out, "regression")


def run(places: Places, only: Sequence[str] = ()) -> str:
    """Write the table and the figure."""
    everything = {name: networks(name) for name in PUBLISHED}
    chosen = named((kind for nets in everything.values() for kind in nets), only)
    found = {
        name: {kind: searched(places, name, kind, net.read(places)) for kind, net in nets.items() if kind in chosen}
        for name, nets in everything.items()
        if not nets.keys().isdisjoint(chosen)
    }
    rows = [row_of(name, kind, result) for name, results in found.items() for kind, result in results.items()]
    draw(places.out, found)
    caption = f"|y - target| <= {SHARE} of the range of the test targets, threshold {THRESHOLD}; {places.which}"
    return tables.write(places.out, "regression", rows, caption)
