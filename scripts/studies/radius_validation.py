"""Radii beside attacks: the radius at which attacked networks fail lies between the two certified ones.

Networks are drawn from the posterior (of weight samples all are taken) and each is attacked for itself, by projected
gradients with 25 iterations and 100 restarts, in balls of several radii. A point at which network k violates shows, up
to rounding, that k is unsafe on every ball that holds it; d_k is the smallest such distance that was found. The
empirical radius is the least r at which the networks with d_k > r have a share below the threshold: as far as attacks
can tell, P_safe of these networks falls below the threshold there.

What is tested: P_safe >= threshold is proved on the ball of MaxRR, so the number of networks with d_k <= MaxRR must not
be implausibly large (exact binomial test at level LEVEL; of weight samples their probability itself). An empirical
radius a little below MaxRR can come from the draw of the networks; the test says when it cannot. What is not tested: an
attack can fail, so an empirical radius above MinUR would prove nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import stats

from bnn_vnnlib import attack, rules
from bnn_vnnlib.attack import Attack, Params
from bnn_vnnlib.files.arrays import read_columns, write_columns
from bnn_vnnlib.model import Model, WeightSamples
from bnn_vnnlib.problem.problem import Problem, from_cases, from_labels
from bnn_vnnlib.sweeps import Bounding, Inputs, Radii, RadiusResult, Source, make_inputs, radii
from studies import boxes, tables
from studies import regression as by_regression
from studies.drawing import LEVEL, networks
from studies.figures import boxplot, grid, in_words, save
from studies.places import UCI_FILES, Floats, Net, Places, nets, regression
from studies.tables import Row
from studies.watching import watched

ATTACK = Attack(steps=25, restarts=100)
NETWORKS = 100
THRESHOLD = 0.7
HALVINGS = 7
"""Of the interval between 0 and MinUR, or the largest radius, in which the empirical radius is looked for."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, inputs that it is right about, and how its radii are searched; delta None: a classifier."""

    name: str
    model: Model
    inputs: Inputs
    search: Radii
    delta: float | None = None
    unit: str = "half ranges"

    @property
    def exact(self) -> bool:
        """Whether the posterior is a finite sum."""
        return isinstance(self.model.posterior, WeightSamples)


PUBLISHED = {"uci_vogn32tanh_concrete1": "concrete", "hcas_rob_pra0_tau20": "hcas", "hcas_hmc_pra0_tau20": "hcas"}
"""Name -> family."""
OWN = ("concrete_vi_100", "concrete_hmc_100", "hcas_vi_125_pra0_tau20", "digits_vi_mlp")
LARGEST = {"hcas": 1.0, "digits": 0.5}
UNITS = {"hcas": "scaled inputs", "digits": "pixels in [0, 1]"}


def subject(places: Places, net: Net) -> Subject:
    """A network and inputs of its family (points without a label are left out)."""
    model = net.read(places)
    if net.family in UCI_FILES:
        x, y = regression(places, net.family)
        rows = places.some(len(x))
        arrays = {"x": x[rows], "y": y[rows], "scale": np.ptp(x, axis=0) / 2}
        delta = by_regression.SHARE * float(np.ptp(y))
        return Subject(net.name, model, make_inputs(arrays), by_regression.SEARCH, delta)
    x, labels = boxes.labelled(places, net)
    some = labels >= 0
    inputs = make_inputs({"x": x[some], "label": labels[some]}, clip=None if net.family == "hcas" else (0.0, 1.0))
    return Subject(net.name, model, inputs, Radii(largest=LARGEST[net.family], tolerance=0.002), unit=UNITS[net.family])


def searched(places: Places, subject: Subject) -> RadiusResult:
    """MaxRR and MinUR."""
    folder = places.out / "work" / f"validation-radii-{len(subject.inputs)}" / subject.name
    with watched(f"{subject.name} radii") as watch:
        return radii(
            Source(memory=subject.model), subject.inputs, subject.search, threshold=THRESHOLD, delta=subject.delta,
            bounding=Bounding(query="probabilistic"), out=folder, watch=watch,
        )  # fmt: skip


def _problem(subject: Subject, found: RadiusResult, row: int, radius: float) -> Problem:
    """The ball of one input."""
    lower, upper = subject.inputs.balls.boxes(np.array([row]), np.array([radius]))
    ends = torch.as_tensor(lower), torch.as_tensor(upper)
    outputs = subject.model.network.signature.output_size
    if subject.delta is None:
        return from_labels(*ends, torch.as_tensor(found.columns["label"][row : row + 1]), outputs)
    cases = rules.within(found.columns["output_lower"][row], found.columns["output_upper"][row])
    return from_cases(*ends, [cases], outputs)


def distances(subject: Subject, found: RadiusResult, row: int, params: Params, share: Floats) -> Floats:
    """(K,) the smallest radius at which each network was seen to violate, inf where none was.

    Attacked are the balls of MaxRR and MinUR, and balls in between which halve the bracket of the empirical radius.
    """
    least = np.full(len(share), np.inf)

    def attacked(radius: float) -> None:
        problem = _problem(subject, found, row, radius)
        x, value = attack.run(subject.model.network, problem, params, ATTACK)
        reach = subject.inputs.balls.reach(np.full(len(share), row), *(2 * [x[:, 0].numpy()]))
        reach = np.minimum(reach, radius)  # what lies on the surface is not further away for the rounding of the ball
        np.minimum(least, np.where(value[:, 0].numpy() <= 0, reach, np.inf), out=least)

    low, high = 0.0, float(min(found.unrobust[row], subject.search.largest))
    for radius in (float(np.nan_to_num(found.robust[row])), high):
        attacked(radius)
    for _ in range(HALVINGS):
        attacked((low + high) / 2)
        if empirical(least, share) <= (low + high) / 2:
            high = (low + high) / 2
        else:
            low = (low + high) / 2
    return least


def empirical(least: Floats, share: Floats) -> float:
    """The least r at which the networks whose distance exceeds r have a share below the threshold, or inf."""
    order = np.argsort(least, kind="stable")
    broken = np.cumsum(share[order]) > 1 - THRESHOLD + 1e-12
    return float(least[order][broken.argmax()]) if broken.any() else np.inf


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of N inputs: both radii, the empirical one (in `unit`), and the share of networks broken within MaxRR."""

    robust: Floats
    unrobust: Floats
    reached: Floats
    broken: Floats
    exact: bool
    unit: str = "inputs"

    @property
    def too_many(self) -> NDArray[np.bool_]:
        """More networks are broken on the ball of MaxRR than P_safe >= threshold allows."""
        if self.exact:
            return self.broken > 1 - THRESHOLD + 1e-9
        return stats.binom.sf(np.round(self.broken * NETWORKS) - 1, NETWORKS, 1 - THRESHOLD) < LEVEL


def validated(places: Places, subject: Subject) -> Outcome:
    """Attack every input that has a robust radius; finished inputs are kept."""
    found = searched(places, subject)
    folder = places.out / "work" / f"validation-radii-attacks-{len(subject.inputs)}" / subject.name
    folder.mkdir(parents=True, exist_ok=True)
    params, share = networks(subject.model, NETWORKS, 4)
    weights = share.numpy()
    rows = np.flatnonzero(found.robust >= 0)
    reached, broken = [], []
    for row in track(rows.tolist(), subject.name, console=Console(stderr=True), transient=True):
        path = folder / f"{row:05d}.parquet"
        if not path.is_file():
            write_columns(path, {"distance": distances(subject, found, row, params, weights)})
        least = read_columns(path)[0]["distance"]
        reached.append(empirical(least, weights))
        broken.append(float(weights[least <= found.robust[row]].sum()))
    ends, unit = (found.robust[rows], found.unrobust[rows]), subject.unit
    return Outcome(*ends, np.array(reached), np.array(broken), subject.exact, unit)


def row_of(name: str, found: Outcome) -> Row:
    """Counts and means."""
    inside = (found.robust <= found.reached) & (found.reached <= found.unrobust)
    return {
        "network": name, "inputs": len(found.robust), "violations": int(found.too_many.sum()),
        "between": int(inside.sum()), "empirical below MaxRR": int((found.reached < found.robust).sum()),
        "empirical above MinUR": int((found.reached > found.unrobust).sum()),
        "mean MaxRR": tables.mean(found.robust), "mean empirical": tables.mean(found.reached[found.reached < np.inf]),
        "mean MinUR": tables.mean(found.unrobust[found.unrobust < np.inf]),
        "largest share broken within MaxRR": float(found.broken.max(initial=0.0)),
    }  # fmt: skip


def run(places: Places, only: Sequence[str] = ()) -> str:
    """Write the table and the box plots."""
    found = {net.name: validated(places, subject(places, net)) for net in nets(PUBLISHED, OWN, only)}
    draw(places.out, found)
    caption = (
        f"{places.which}; threshold {THRESHOLD}; {NETWORKS} networks (of weight samples all), each attacked with "
        f"{ATTACK.steps} iterations and {ATTACK.restarts} restarts; a violation has probability below {LEVEL} by chance"
    )
    return tables.write(places.out, "validation_radii", [row_of(*item) for item in found.items()], caption)


def draw(out: Path, found: dict[str, Outcome]) -> None:
    """Box plots of the three radii."""
    figure, axes = grid(len(found))
    for one, (name, outcome) in zip(axes, found.items(), strict=True):
        data = [values[np.isfinite(values)] for values in (outcome.robust, outcome.reached, outcome.unrobust)]
        boxplot(one, data, ["MaxRR\n(proved)", "attacks", "MinUR\n(proved)"])
        one.set(title=in_words(name), ylabel=f"radius ({outcome.unit})")
        one.set_ylim(bottom=0)
    save(figure, out, "validation_radii")
