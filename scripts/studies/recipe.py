"""The paper's own recipe, done faithfully: boxes around sampled weights, so many, with such a margin.

For each of the N sampled weights the box of +-margin standard deviations is bounded; what is certified is the posterior
mass of the union of the safe boxes. The published code certified these boxes and added up the masses of boxes *twice as
wide*; the weights between the two were never looked at. Both numbers are shown, beside a bound that needs no boxes and
an estimate of what is true.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special
from torch import Tensor

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.model import Model
from bnn_vnnlib.network.network import GaussianDiagonal
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.refute import refuted_cases
from bnn_vnnlib.problem.weight_sets import BoxFamily
from bnn_vnnlib.sweeps import Bounding, Pair, Source, sweep
from studies import boxes, tables
from studies.boxes import Boxes
from studies.figures import MARKS, SERIES, panels, save
from studies.places import Floats, Places, nets
from studies.tables import Row
from studies.watching import watched

NUMBERS = (1, 5, 20)
MARGINS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
CHUNK = 20
LEAST = -1e5
"""Where the figures' axis ends, in powers of ten."""


@dataclass(frozen=True, eq=False)
class Setup:
    """Boxes of inputs, and the recipe of their study: method, and the paper's number and margin."""

    boxes: Boxes
    method: str
    number: int
    margin: float

    @property
    def model(self) -> Model:
        """The network."""
        return self.boxes.model

    @property
    def posterior(self) -> GaussianDiagonal:
        """Its posterior."""
        if not isinstance(self.model.posterior, GaussianDiagonal):
            raise TypeError(f"{self.boxes.name} has no Gaussian posterior")
        return self.model.posterior


RECIPES = {"hcas": ("linear", 5, 2.5), "concrete": ("interval", 10, 2.0), "powerplant": ("interval", 10, 2.0),
           "mnist": ("interval", 5, 2.5), "digits": ("interval", 5, 2.5)}  # fmt: skip
"""Family -> method, N and margin that the paper states; `digits`, which it has not, as the other digits."""
RADII = {"hcas": 0.025, "concrete": 0.02, "powerplant": 0.02, "mnist": 0.02, "digits": 0.02}
PUBLISHED = {"hcas_rob_pra0_tau20": "hcas", "uci_vogn32tanh_concrete1": "concrete",
             "uci_vogn32tanh_powerplant1": "powerplant", "mnist_vogn_32x1_eps0.1": "mnist",
             "mnist_vogn_128x1_eps0.1": "mnist"}  # fmt: skip
"""Name -> family."""
OWN = ("hcas_vi_125_pra0_tau20", "hcas_vi_50x50_pra0_tau20", "concrete_vi_100", "powerplant_ivon_100",
       "digits_vi_mlp", "mnist_ivon_128")  # fmt: skip


def setups(places: Places, only: Sequence[str] = ()) -> Iterator[Setup]:
    """A few inputs of each network, published and ours, with the settings that the paper states."""
    for net in nets(PUBLISHED, OWN, only):
        yield Setup(boxes.made(places, net, RADII[net.family]), *RECIPES[net.family])


def sampled(setup: Setup, number: int, margin: float, seed: int = 0) -> BoxFamily:
    """Boxes of +-margin standard deviations around sampled weights."""
    return weight_sets.scattered_family(setup.model.network, setup.posterior, number, margin, seed)


def safe_boxes(setup: Setup, family: BoxFamily) -> Tensor:
    """(I, N): inputs and sampled boxes that are proved safe for every input of the ball."""
    problem = setup.boxes.problem(setup.boxes.asked)
    engine = Engine(setup.model.network, "interval" if setup.method == "interval" else "linear")
    bounds = OutputBounds(engine, "identity")
    return problem.all_items(refuted_cases(bounds, family.weights, problem).all(-1)).mT


def log_masses(setup: Setup, family: BoxFamily, margins: Sequence[float]) -> list[Floats]:
    """(N,) powers of ten of the masses of boxes of each margin around a family's centres, not rounded outward."""
    centers = family.weights.centers
    totals = [np.zeros(len(next(iter(centers.values())))) for _ in margins]
    for name in weight_sets.random_sources(setup.model.network, setup.posterior):
        mean, sd = setup.model.network.tensors[name], np.sqrt(setup.posterior.variances[name])
        random = sd > 0
        z = (centers[name].numpy()[:, random] - mean[random]) / sd[random]
        for total, margin in zip(totals, margins, strict=True):
            total += np.log10(1 - special.ndtr(z - margin) - special.ndtr(-z - margin)).sum(1)
    return totals


def at(setup: Setup, number: int, margin: float) -> Row:
    """One line of the ablation. Sums of masses are above the mass of the union: the claims are not made smaller."""
    family = sampled(setup, number, margin)
    safe = safe_boxes(setup, family).numpy()
    with np.errstate(divide="ignore"):
        really, claimed = (
            np.log10((safe * 10.0 ** (masses - masses.max())).sum(1)) + masses.max()
            for masses in log_masses(setup, family, (margin, 2 * margin))
        )
    some = safe.any(1)

    def median(values: Floats) -> float | None:
        return float(min(np.median(values[some]), 0.0)) if some.any() else None

    return {
        "network": setup.boxes.name, "weights": weight_sets.random_count(setup.model.network, setup.posterior),
        "N": number, "margin (sd)": margin, "inputs": len(safe), "inputs with a safe box": int(some.sum()),
        "safe boxes %": 100 * float(safe.mean()), "log10 of the mass certified (median)": median(really),
        "log10 of the mass that twice the margin would claim": median(claimed),
    }  # fmt: skip


def ours(places: Places, setup: Setup) -> tuple[float, float]:
    """Mean lower and upper bound on P_safe without sampled boxes, on the same inputs."""
    how = Bounding(query="probabilistic", tau_safe=0.98, tau_unsafe=0.05)
    folder = places.out / "work" / f"recipe-{len(setup.boxes)}" / setup.boxes.name
    with watched(setup.boxes.name) as watch:
        pair = Pair(Source(memory=setup.model), setup.boxes.table())
        found = sweep([pair], how, out=folder, chunk=CHUNK, watch=watch).columns
    return float(np.nanmean(found["p_safe_lower"])), float(np.nanmean(found["p_safe_upper"]))


def run(places: Places, only: Sequence[str] = ()) -> str:
    """The recipe, the ablation over N and margin, and the counterexamples."""
    from studies.shortcuts import counterexamples

    recipe: list[Row] = []
    ablation: list[Row] = []
    for setup in setups(places, only):
        lower, upper = ours(places, setup)
        row = at(setup, setup.number, setup.margin)
        recipe.append({**row, "mean P_safe lower, no boxes": lower, "mean P_safe upper, no boxes": upper})
        ablation += [at(setup, number, margin) for number in NUMBERS for margin in MARGINS]
    tables.write(places.out, "recipe_ablation", ablation, f"Sampled boxes; {places.which}")
    for stem, some in (("recipe", PUBLISHED.keys()), ("recipe_own", set(OWN))):
        of = [row for row in ablation if row["network"] in some]
        if of:
            draw(places.out, stem, of)
    shortcuts = tables.write(places.out, "recipe_shortcuts", counterexamples(), "Small networks on which it shows")
    return f"{tables.write(places.out, 'recipe', recipe, places.which)}\n{shortcuts}"


def draw(out: Path, stem: str, rows: list[Row]) -> None:
    """Safe boxes, and the mass that they certify, against the margin."""
    figure, (share, mass) = panels(2, height=3.4)
    networks = list(dict.fromkeys(str(row["network"]) for row in rows))
    column = "log10 of the mass certified (median)"
    for k, name in enumerate(networks):
        of = [row for row in rows if row["network"] == name and row["N"] == 5]
        margins = [float(row["margin (sd)"] or 0) for row in of]
        style: dict[str, Any] = {"color": SERIES[k], "marker": MARKS[k]}
        share.plot(
            margins, [float(row["safe boxes %"] or 0) for row in of], label=f"{name} ({of[0]['weights']})", **style
        )
        certified = [math.nan if row[column] is None else max(float(row[column] or 0), LEAST) for row in of]
        twice = "log10 of the mass that twice the margin would claim"
        claimed = [math.nan if row[twice] is None else max(float(row[twice] or 0), LEAST) for row in of]
        mass.plot(margins, certified, **style)
        mass.plot(margins, claimed, linestyle=":", **style)
    share.set(xlabel="margin (sd)", ylabel="sampled boxes proved safe (%)", ylim=(-3, 103))
    mass.set(xlabel="margin (sd)", ylabel="log10 of the mass, median", yscale="symlog", ylim=(LEAST, 1))
    styles = [mass.plot([], [], color="black", linestyle=style)[0] for style in ("-", ":")]
    handles, labels = share.get_legend_handles_labels()
    words = ["certified at most, N = 5", "claimed with twice the margin"]
    figure.legend([*handles, *styles], [*labels, *words], loc="outside lower center", ncols=2, frameon=False,
                  title="network (weights)")  # fmt: skip
    save(figure, out, stem)
