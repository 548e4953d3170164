"""How many rows of a sweep are safe, unsafe and undecided, by network and by label or group."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.sweeps.arrays import Arrays
from bnn_vnnlib.sweeps.folder import Cost
from bnn_vnnlib.vnncomp import write_text

ALL = "all"


@dataclass(frozen=True)
class Counts:
    """One line of the summary.

    Attributes
    ----------
    network, group : names, or `all`
    rows : that were bounded; skipped : label -1
    safe, unsafe, undecided : proved at the thresholds (or by the decision's verdict), and the rest
    between : those of the undecided whose P_safe is proved to lie between the thresholds, where no verdict is possible
    lower, upper : mean bounds on P_safe, or on the decision's label; nan where there is no one number
    """

    network: str
    group: str
    rows: int
    skipped: int
    safe: int
    unsafe: int
    undecided: int
    between: int
    lower: float
    upper: float


Summary = tuple[Counts, ...]


@dataclass(frozen=True)
class Spent:
    """rows; seconds of work, over all processes; the largest memory of a process in 2^20 bytes."""

    rows: int
    seconds: float
    peak_mb: float

    @staticmethod
    def of(costs: Iterable[Cost]) -> Spent:
        """Of all chunks, those of earlier calls included."""
        known = list(costs)
        return Spent(
            sum(cost.rows for cost in known), sum(cost.seconds for cost in known), max(c.peak_mb for c in known)
        )  # fmt: skip


def summarise(columns: Arrays, tau_safe: float, tau_unsafe: float) -> Summary:
    """Counts by network and group, by network, by group, and over all; a level with one member is left out."""
    network = columns["network"]
    group = columns.get("group", columns.get("label"))
    group = np.full(len(network), ALL) if group is None else group.astype(str)
    states = _states(columns, tau_safe, tau_unsafe)
    lower, upper = _one_number(columns)
    lines = []
    for name in _levels(network):
        for member in _levels(group):
            chosen = np.ones(len(network), bool)
            chosen &= True if name == ALL else network == name
            chosen &= True if member == ALL else group == member
            if chosen.any():
                lines.append(
                    _counts(name, member, {k: v[chosen] for k, v in states.items()}, lower[chosen], upper[chosen])
                )
    return tuple(lines)


def _levels(names: NDArray) -> Iterator[str]:
    distinct = [str(name) for name in np.unique(names)]
    yield from distinct if len(distinct) > 1 else ()
    yield ALL


def _states(columns: Arrays, tau_safe: float, tau_unsafe: float) -> dict[str, NDArray[np.bool_]]:
    count = len(columns["row"])
    skipped = np.zeros(count, bool) if "label" not in columns else columns["label"] == -1
    if "p_safe_lower" in columns:
        lower, upper = columns["p_safe_lower"], columns["p_safe_upper"]
        safe, unsafe = lower >= tau_safe, upper < tau_unsafe
        between = (lower >= tau_unsafe) & (upper < tau_safe)
    else:
        verdict = columns.get("verdict", np.full(count, "unknown"))
        safe, unsafe, between = verdict == "unsat", verdict == "sat", np.zeros(count, bool)
    return {"skipped": skipped, "safe": safe, "unsafe": unsafe, "between": between}


def _one_number(columns: Arrays) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds on P_safe; on the label's probability; on the only output; else nan."""
    if "p_safe_lower" in columns:
        return columns["p_safe_lower"], columns["p_safe_upper"]
    lower, upper = columns["decision_lower"], columns["decision_upper"]
    if lower.shape[1] == 1:
        return lower[:, 0], upper[:, 0]
    if "label" not in columns:
        return np.full(len(lower), np.nan), np.full(len(lower), np.nan)
    rows, label = np.arange(len(lower)), columns["label"].clip(min=0)
    return lower[rows, label], upper[rows, label]


def _counts(
    name: str, member: str, states: dict[str, NDArray[np.bool_]], lower: NDArray[np.float64], upper: NDArray[np.float64]
) -> Counts:
    kept = ~states["skipped"]
    rows, safe, unsafe = int(kept.sum()), int((kept & states["safe"]).sum()), int((kept & states["unsafe"]).sum())
    means = (float(side[kept].mean()) if kept.any() else float("nan") for side in (lower, upper))
    return Counts(
        name, member, rows, int(states["skipped"].sum()), safe, unsafe, rows - safe - unsafe,
        int((kept & states["between"] & ~states["safe"] & ~states["unsafe"]).sum()), *means,
    )  # fmt: skip


def write_summary(path: Path, lines: Iterable[object]) -> None:
    """Dataclasses of one kind as CSV."""
    rows = list(lines)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if rows:
        writer.writerow([field.name for field in fields(rows[0])])  # type: ignore[arg-type]
        writer.writerows(astuple(row) for row in rows)  # type: ignore[call-overload]
    write_text(path, text.getvalue())
