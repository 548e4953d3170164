"""Columns and shares that are read off bounds on the decision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.files.arrays import Arrays
from bnn_vnnlib.result import Verdict

if TYPE_CHECKING:
    from bnn_vnnlib.batch import BatchResult

Flags = NDArray[np.bool_]

YES, NO, OPEN = "yes", "no", "unknown"


def yes_or_no(yes: Flags, no: Flags) -> NDArray[np.str_]:
    """Proved, refuted, or neither."""
    return np.where(yes, YES, np.where(no, NO, OPEN))


def nested(found: BatchResult, count: int) -> BatchResult:
    """Bounds of balls around each input, `count` radii in increasing order: what holds on a ball holds inside it."""
    low, high = (side.reshape(-1, count, side.shape[-1])[:, ::-1] for side in (found.lower, found.upper))
    lower, upper = np.maximum.accumulate(low, axis=1), np.minimum.accumulate(high, axis=1)
    return replace(
        found, lower=lower[:, ::-1].reshape(found.lower.shape), upper=upper[:, ::-1].reshape(found.upper.shape)
    )


def class_columns(found: BatchResult, tau: float, *, quick: bool, single: bool, count: int) -> Arrays:
    """Readings of a classifier's balls.

    Parameters
    ----------
    found : bounds on D, with verdicts on "uncertain" unless `quick`
    single : one probability; the opposite event is a class as well
    count : of radii; rows are inputs times radii, these in increasing order

    Proofs: D_i <= upper_i <= tau for all i is what "uncertain" says; lower_i > tau refutes it at every point. Where
    lower_i > upper_j for all j != i, D_i > D_j everywhere, so i is the decision. What is proved of every x of a ball
    holds in the balls inside it, and what some x of a ball refutes is refuted in the balls around it.
    """
    lower, upper = found.lower, found.upper
    if single:
        # 1 - D, rounded outward
        opposite_low, opposite_high = np.nextafter(1 - upper, -np.inf), np.nextafter(1 - lower, np.inf)
        lower, upper = np.concatenate([opposite_low, lower], 1), np.concatenate([opposite_high, upper], 1)
    yes, no = np.asarray((upper <= tau).all(1)), np.asarray((lower > tau).any(1))
    if not quick:
        yes, no = yes | (found.verdicts == Verdict.UNSAT), no | (found.verdicts == Verdict.SAT)
    yes = np.logical_or.accumulate(yes.reshape(-1, count)[:, ::-1], axis=1)[:, ::-1].ravel()
    no = np.logical_or.accumulate(no.reshape(-1, count), axis=1).ravel()
    best = lower.argmax(1)
    rest = np.where(np.arange(lower.shape[1]) == best[:, None], -np.inf, upper).max(1)
    decided = np.where(lower.max(1) > rest, best, -1)
    return {"uncertain": yes_or_no(yes, no), "decided": decided, "aleatoric": upper.max(1)}


@dataclass(frozen=True)
class RadiusReading:
    """Over all inputs at one radius; nan where it is not asked.

    Attributes
    ----------
    uncertain, not_uncertain : shares proved and refuted
    decided : share of balls on which one class is proved to be the decision; correct : and it is the label
    lower, upper : mean bounds on D: of the label's class, or of the only output
    deviation : standard deviation of the lower bounds over the inputs
    aleatoric : mean of the largest probability that any class can reach
    epistemic, not_epistemic : shares proved and refuted
    """

    radius: float
    inputs: int
    uncertain: float
    not_uncertain: float
    decided: float
    correct: float
    lower: float
    upper: float
    deviation: float
    aleatoric: float
    epistemic: float
    not_epistemic: float


def readings(columns: Arrays) -> tuple[RadiusReading, ...]:
    """One line a radius."""
    return tuple(
        _reading(float(radius), {name: values[columns["radius"] == radius] for name, values in columns.items()})
        for radius in np.unique(columns["radius"])
    )


def _reading(radius: float, some: Arrays) -> RadiusReading:
    def share(name: str, word: str | int) -> float:
        return float((some[name] == word).mean()) if name in some else float("nan")

    lower, upper = some.get("label_lower"), some.get("label_upper")
    if lower is None and some["decision_lower"].shape[1] == 1:
        lower, upper = some["decision_lower"][:, 0], some["decision_upper"][:, 0]
    decided = some.get("decided")
    label = some.get("label")
    return RadiusReading(
        radius=radius,
        inputs=len(some["row"]),
        uncertain=share("uncertain", YES),
        not_uncertain=share("uncertain", NO),
        decided=float("nan") if decided is None else float((decided >= 0).mean()),
        correct=float("nan") if decided is None or label is None else float((decided == label).mean()),
        lower=float("nan") if lower is None else float(lower.mean()),
        upper=float("nan") if upper is None else float(upper.mean()),
        deviation=float("nan") if lower is None else float(lower.std()),
        aleatoric=float(some["aleatoric"].mean()) if "aleatoric" in some else float("nan"),
        epistemic=share("epistemic", YES),
        not_epistemic=share("epistemic", NO),
    )
