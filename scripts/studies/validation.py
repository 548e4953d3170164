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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import stats
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.files.arrays import read_columns, write_columns
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.problem import from_cases
from bnn_vnnlib.sweeps import Bounding, Pair, Source, sweep
from studies import boxes, tables
from studies.boxes import Boxes
from studies.drawing import LEVEL, networks
from studies.figures import boxplot, grid, in_words, save
from studies.places import Floats, Places, nets
from studies.tables import Row
from studies.watching import watched

ATTACK = Attack(steps=25, restarts=100)
SINGLE = Attack(steps=25, restarts=4)
"""For networks one by one; there are many of them."""
GUIDES, FRESH = 20, 2000
NETWORKS = 100
CHUNK, BOXES = 5, 10
"""Boxes that are attacked, and bounded, at a time."""


RADII = {"hcas": 0.025, "concrete": 0.02, "mnist": 0.05, "digits": 0.02}
PUBLISHED = {"hcas_rob_pra0_tau20": "hcas", "hcas_hmc_pra0_tau20": "hcas", "mnist_vogn_32x1_eps0.1": "mnist"}
"""Name -> family."""
OWN = ("hcas_vi_125_pra0_tau20", "hcas_hmc_125_pra0_tau20", "concrete_vi_100", "concrete_ivon_100", "digits_vi_mlp",
       "digits_ensemble")  # fmt: skip
FAR = 1e6
"""No output is as large: the attack goes on to the end."""


def bounds(places: Places, subject: Boxes, query: str) -> dict[str, NDArray]:
    """Columns of a sweep over the boxes."""
    folder = places.out / "work" / f"validation-{query}-{len(subject)}" / subject.name
    how = Bounding(query=query, tau_safe=None if query == "decision" else 0.98,
                   tau_unsafe=None if query == "decision" else 0.05)  # fmt: skip
    with watched(f"{subject.name} {query}") as watch:
        pair = Pair(Source(memory=subject.model), subject.table())
        return sweep([pair], how, out=folder, points=True, chunk=BOXES, watch=watch).columns


def driven(subject: Boxes, rows: NDArray[np.int64]) -> dict[str, Floats]:
    """Least and largest predictive of the label (regression: output) that attacks find, and how far off they may be."""
    guides, _ = networks(subject.model, GUIDES, 0)
    ends = torch.as_tensor(subject.lower[rows]), torch.as_tensor(subject.upper[rows])
    picked = np.zeros(len(rows), np.int64) if subject.labels is None else subject.labels[rows]
    transform = "identity" if subject.labels is None else "softmax"
    found = {}
    for name, sign in (("least", 1.0), ("most", -1.0)):
        outward = sign * np.eye(subject.outputs)[picked]
        cases = [[(row[None], np.array([-FAR]), np.array([False]))] for row in outward]
        problem = from_cases(*ends, cases, subject.outputs)
        x, _ = attack.run(subject.model.network, problem, guides, ATTACK, transform, "mean")
        found[name], found[f"{name}_slack"] = predictive(subject, x[0], torch.as_tensor(picked))
    return found


def predictive(subject: Boxes, x: Tensor, picked: Tensor) -> tuple[Floats, Floats]:
    """Mean of the label's probability, or of the output, at points (N, n), and how far D may be from it."""
    params, share = networks(subject.model, FRESH, 1)
    with torch.no_grad():
        values = evaluate(subject.model.network, x, params)
        values = values if subject.labels is None else torch.softmax(values, -1)
    values = values.gather(-1, picked[None, :, None].expand(len(share), -1, 1))[..., 0]
    mean = (share[:, None] * values).sum(0).numpy()
    if subject.exact:
        return mean, np.full(len(mean), 1e-9)
    return mean, slack(values.var(0).numpy(), bounded=subject.labels is not None)


def slack(variance: Floats, bounded: bool) -> Floats:
    """How far the mean of FRESH values may be from the expectation but with probability LEVEL.

    Probabilities lie in [0, 1]: empirical Bernstein. Outputs have no range: Student's t, exact for normal values only.
    """
    if not bounded:
        return np.sqrt(variance / FRESH) * float(stats.t.isf(LEVEL / 2, FRESH - 1))
    logarithm = math.log(4 / LEVEL)
    return np.sqrt(2 * variance * logarithm / FRESH) + 7 * logarithm / (3 * (FRESH - 1))


def unbroken(subject: Boxes, rows: NDArray[np.int64]) -> Floats:
    """Share of the networks for which no attack finds a violation in the box."""
    params, share = networks(subject.model, NETWORKS, 2)
    _, value = attack.run(subject.model.network, subject.problem(rows), params, SINGLE)
    return np.asarray((share[:, None] * (value > 0)).sum(0).numpy(), np.float64)


def safe_at(subject: Boxes, rows: NDArray[np.int64], points: Floats) -> Floats:
    """Share of the networks that are safe at one point of each box: an upper estimate of P_safe."""
    params, share = networks(subject.model, NETWORKS, 3)
    with torch.no_grad():
        value = evaluate(subject.model.network, torch.as_tensor(points), params)
    if subject.labels is None:
        least, most = (torch.as_tensor(ends) for ends in subject.ranges(rows))
        safe = (least < value[..., 0]) & (value[..., 0] < most)
    else:
        label = torch.as_tensor(subject.labels[rows])[None, :, None].expand(len(share), -1, 1)
        safe = value.gather(-1, label)[..., 0] > value.scatter(-1, label, -torch.inf).amax(-1)
    return np.asarray((share[:, None] * safe).sum(0).numpy(), np.float64)


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
    what: str = "D of the label"

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


def validated(places: Places, subject: Boxes) -> Outcome:
    """Attack every box; finished chunks are kept."""
    decision, safety = (bounds(places, subject, query) for query in ("decision", "probabilistic"))
    kept = subject.asked
    folder = places.out / "work" / f"validation-attacks-{len(subject)}" / subject.name
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
    place = kept, (0 if subject.labels is None else subject.labels[kept])
    return Outcome(
        decision["decision_lower"][place], decision["decision_upper"][place], reached["least"], reached["most"],
        safety["p_safe_lower"][kept], safety["p_safe_upper"][kept], reached["share"],
        reached["at_point"], (reached["least_slack"], reached["most_slack"]), subject.exact,
        "D of the label" if subject.labels is not None else "expected output (sd of targets)",
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


def run(places: Places, only: Sequence[str] = ()) -> str:
    """Write the table and the box plots."""
    found = {
        net.name: validated(places, boxes.made(places, net, RADII[net.family])) for net in nets(PUBLISHED, OWN, only)
    }
    draw(places.out, found)
    caption = f"{places.which}; {NETWORKS} networks attacked; a violation has probability below {LEVEL} by chance"
    return tables.write(places.out, "validation", [row_of(*item) for item in found.items()], caption)


def draw(out: Path, found: dict[str, Outcome]) -> None:
    """Box plots of bounds and of what attacks reached."""
    figure, axes = grid(len(found))
    for one, (name, outcome) in zip(axes, found.items(), strict=True):
        data = [outcome.low, outcome.least, outcome.most, outcome.high]
        boxplot(one, data, ["lower\nbound", "attack\ndown", "attack\nup", "upper\nbound"])
        one.set(title=in_words(name), ylabel=outcome.what)
        if outcome.what == "D of the label":
            one.set_ylim(-0.03, 1.03)
    save(figure, out, "validation")
