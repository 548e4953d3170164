"""Empirical validation, as in the paper's appendix: what attacks reach lies between the bounds.

Decision: projected gradients (25 iterations, 100 restarts) drive the predictive of the label down and up. Of weight
samples the predictive is exact, and nothing may lie outside of the bounds. Of a Gaussian the attack sees GUIDES sampled
networks, and the value at the point that it finds is the mean over FRESH others; what lies outside by more than the
empirical Bernstein inequality (Maurer and Pontil, 2009) allows at level LEVEL counts as a violation.

P_safe: each of K sampled networks is attacked for itself. Networks that no attack breaks are at least as many as the
safe ones, so the count must not be implausibly small under a probability equal to the lower bound (exact binomial test
at level LEVEL). An attack can fail, so nothing is tested on the other side there; but networks that violate at one
common point are at most as many as violate at all, and the upper bound rests on such a point: the share that is safe at
the point must not be implausibly large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import stats
from torch import Tensor

from bnn_vnnlib.model import Model, WeightSamples
from bnn_vnnlib.model.evaluate import evaluate
from bnn_vnnlib.robustness import attack
from bnn_vnnlib.robustness.attack import Attack
from bnn_vnnlib.robustness.problem import Problem, from_cases, from_labels
from bnn_vnnlib.sweeps import Bounding, Pair, Source, make_table, sweep
from bnn_vnnlib.sweeps.arrays import read_columns, write_columns
from studies import tables
from studies.drawing import LEVEL, networks
from studies.figures import SERIES, panels, save
from studies.places import Floats, Places, hcas_grid, hcas_labels, mnist
from studies.tables import Row
from studies.watching import watched

ATTACK = Attack(steps=25, restarts=100)
SINGLE = Attack(steps=25, restarts=4)
"""For networks one by one; there are many of them."""
GUIDES, FRESH = 20, 2000
NETWORKS = 100
CHUNK = 5


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, boxes around labelled inputs, and the seed that draws its networks."""

    name: str
    model: Model
    lower: Floats
    upper: Floats
    labels: NDArray[np.int64]

    def networks(self, count: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        """Sets of weights (K, ..) and their probabilities (K,)."""
        return networks(self.model, count, seed)

    @property
    def exact(self) -> bool:
        """Whether the predictive is a finite sum."""
        return isinstance(self.model.posterior, WeightSamples)


def subjects(places: Places) -> list[Subject]:
    """Collision avoidance (VI and HMC) on +-.025, digits on +-.05."""
    grid, labels = hcas_grid(places), hcas_labels(places, 0, 20)
    rows = places.some(len(grid))
    ends = grid[rows] - 0.025, grid[rows] + 0.025
    found = [
        Subject(name, places.published(name, "categorical"), *ends, labels[rows])
        for name in ("hcas_rob_pra0_tau20", "hcas_hmc_pra0_tau20")
    ]
    x, digit = mnist(places)
    x, digit = x[: places.limit], digit[: places.limit]
    name = "mnist_vogn_32x1_eps0.1"
    ends = np.maximum(x - 0.05, 0), np.minimum(x + 0.05, 1)
    return [*found, Subject(name, places.published(name, "categorical"), *ends, digit)]


def bounds(places: Places, subject: Subject, query: str) -> dict[str, NDArray]:
    """Columns of a sweep over the boxes."""
    table = make_table({"lower": subject.lower, "upper": subject.upper, "label": subject.labels})
    folder = places.out / "work" / f"validation-{query}-{len(subject.labels)}" / subject.name
    how = Bounding(query=query, tau_safe=None if query == "decision" else 0.98,
                   tau_unsafe=None if query == "decision" else 0.05)  # fmt: skip
    with watched(f"{subject.name} {query}") as watch:
        pair = Pair(Source(memory=subject.model), table)
        return sweep([pair], how, out=folder, points=True, watch=watch).columns


def driven(subject: Subject, rows: NDArray[np.int64]) -> dict[str, Floats]:
    """Least and largest predictive probability of the label that the attack finds, and how far off they may be."""
    guides, _ = subject.networks(GUIDES, 0)
    low, high = torch.as_tensor(subject.lower[rows]), torch.as_tensor(subject.upper[rows])
    label = torch.as_tensor(subject.labels[rows])
    outputs = subject.model.network.signature.output_size
    found = {}
    for name, sign in (("least", 1.0), ("most", -1.0)):
        rows_of = sign * torch.nn.functional.one_hot(label, outputs).double().numpy()
        # -2 is never reached: the attack goes on to the end
        cases = [[(row[None], np.array([-2.0]), np.array([False]))] for row in rows_of]
        problem = from_cases(low, high, cases, outputs)
        x, _ = attack.run(subject.model.network, problem, guides, ATTACK, "softmax", "mean")
        found[name], found[f"{name}_slack"] = predictive(subject, x[0], label)
    return found


def predictive(subject: Subject, x: Tensor, label: Tensor) -> tuple[Floats, Floats]:
    """Mean probability of the label at points (N, n), and how far D may be from it but with probability LEVEL."""
    params, share = subject.networks(FRESH, 1)
    with torch.no_grad():
        values = torch.softmax(evaluate(subject.model.network, x, params), -1)
    values = values.gather(-1, label[None, :, None].expand(len(share), -1, 1))[..., 0]
    mean = (share[:, None] * values).sum(0).numpy()
    if subject.exact:
        return mean, np.full(len(mean), 1e-9)
    spread, logarithm = values.var(0).numpy(), math.log(4 / LEVEL)
    return mean, np.sqrt(2 * spread * logarithm / FRESH) + 7 * logarithm / (3 * (FRESH - 1))


def unbroken(subject: Subject, rows: NDArray[np.int64]) -> Floats:
    """Share of the networks for which no attack finds a violation in the box."""
    params, share = subject.networks(NETWORKS, 2)
    problem = _problem(subject, rows)
    _, value = attack.run(subject.model.network, problem, params, SINGLE)
    return np.asarray((share[:, None] * (value > 0)).sum(0).numpy(), np.float64)


def _problem(subject: Subject, rows: NDArray[np.int64]) -> Problem:
    ends = torch.as_tensor(subject.lower[rows]), torch.as_tensor(subject.upper[rows])
    outputs = subject.model.network.signature.output_size
    return from_labels(*ends, torch.as_tensor(subject.labels[rows]), outputs)


def safe_at(subject: Subject, rows: NDArray[np.int64], points: Floats) -> Floats:
    """Share of the networks that are safe at one point of each box: an upper estimate of P_safe."""
    params, share = subject.networks(NETWORKS, 3)
    with torch.no_grad():
        value = evaluate(subject.model.network, torch.as_tensor(points), params)
    label = torch.as_tensor(subject.labels[rows])[None, :, None].expand(len(share), -1, 1)
    mine = value.gather(-1, label)[..., 0]
    rest = value.scatter(-1, label, -torch.inf).amax(-1)
    return np.asarray((share[:, None] * (mine > rest)).sum(0).numpy(), np.float64)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of one subject: bounds, what attacks reached, and the violations."""

    low: Floats
    high: Floats
    least: Floats
    most: Floats
    p_low: Floats
    p_high: Floats
    share: Floats
    at_point: Floats
    slack: tuple[Floats, Floats]
    exact: bool

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Predictives beyond the bounds on D."""
        return (self.least < self.low - self.slack[0]) | (self.most > self.high + self.slack[1])

    @property
    def too_few(self) -> NDArray[np.bool_]:
        """Networks that no attack breaks are too few for the lower bound on P_safe."""
        if self.exact:
            return self.share < self.p_low - 1e-9
        return stats.binom.cdf(np.round(self.share * NETWORKS), NETWORKS, self.p_low) < LEVEL

    @property
    def too_many(self) -> NDArray[np.bool_]:
        """Safe networks at the point are too many for the upper bound on P_safe, where that is below 1."""
        if self.exact:
            return np.zeros(len(self.share), bool)  # violating samples may have different points
        tail = stats.binom.sf(np.round(self.at_point * NETWORKS) - 1, NETWORKS, self.p_high)
        return (self.p_high < 1) & (tail < LEVEL)


def validated(places: Places, subject: Subject) -> Outcome:
    """Attack every box; finished chunks are kept."""
    decision, safety = (bounds(places, subject, query) for query in ("decision", "probabilistic"))
    kept = np.flatnonzero(subject.labels >= 0)
    folder = places.out / "work" / f"validation-attacks-{len(subject.labels)}" / subject.name
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    chunks = [kept[k : k + CHUNK] for k in range(0, len(kept), CHUNK)]
    for number, rows in enumerate(track(chunks, subject.name, console=Console(stderr=True), transient=True)):
        path = folder / f"{number:05d}.parquet"
        if not path.is_file():
            found = driven(subject, rows) | {"share": unbroken(subject, rows)}
            write_columns(path, found | {"at_point": safe_at(subject, rows, safety["point"][rows])})
        parts.append(read_columns(path)[0])
    reached = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    each, label = kept, subject.labels[kept]
    return Outcome(
        decision["decision_lower"][each, label], decision["decision_upper"][each, label], reached["least"],
        reached["most"], safety["p_safe_lower"][kept], safety["p_safe_upper"][kept], reached["share"],
        reached["at_point"], (reached["least_slack"], reached["most_slack"]), subject.exact,
    )  # fmt: skip


def row_of(name: str, found: Outcome) -> Row:
    """Counts of violations and mean distances."""
    return {
        "network": name, "boxes": len(found.low), "D: violations": int(found.outside.sum()),
        "P_safe lower: violations": int(found.too_few.sum()), "P_safe upper: violations": int(found.too_many.sum()),
        "D: mean attacked least - lower": float((found.least - found.low).mean()),
        "D: mean upper - attacked most": float((found.high - found.most).mean()),
        "D: mean gap": float((found.high - found.low).mean()), "mean slack": float(np.mean(found.slack)),
        "mean P_safe lower": float(found.p_low.mean()), "mean share unbroken": float(found.share.mean()),
        "mean P_safe upper": float(found.p_high.mean()),
    }  # fmt: skip


def run(places: Places) -> str:
    """Write the table and the box plots."""
    found = {subject.name: validated(places, subject) for subject in subjects(places)}
    draw(places.out, found)
    caption = f"{places.which}; {NETWORKS} networks attacked; a violation has probability below {LEVEL} by chance"
    return tables.write(places.out, "validation", [row_of(*item) for item in found.items()], caption)


def draw(out: Path, found: dict[str, Outcome]) -> None:
    """Box plots of bounds and of what attacks reached."""
    figure, axes = panels(len(found), width=3.0, height=3.0)
    for one, (name, outcome) in zip(axes, found.items(), strict=True):
        data = [outcome.low, outcome.least, outcome.most, outcome.high]
        names = ["lower\nbound", "attack\ndown", "attack\nup", "upper\nbound"]
        plot = one.boxplot(data, tick_labels=names, patch_artist=True, medianprops={"color": "black"}, widths=0.6)
        for patch, colour in zip(plot["boxes"], (SERIES[0], "#dddddd", "#dddddd", SERIES[4]), strict=True):
            patch.set_facecolor(colour)
        one.set(title=name, ylim=(-0.03, 1.03))
    axes[0].set_ylabel("D of the label")
    save(figure, out, "validation")
