"""How many rows of a sweep are safe, unsafe and undecided, by network and by label or group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.files.arrays import Arrays
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.readers import table_text

_ALL = "all"


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


def summarise(columns: Arrays, tau_safe: float, tau_unsafe: float) -> Summary:
    """Counts by network and group, by network, by group, and over all; a level with one member is left out."""
    names, network = np.unique(columns["network"], return_inverse=True)
    group = columns.get("group", columns.get("label", np.zeros(len(network), np.int64)))
    groups, member = np.unique(group, return_inverse=True)
    place = network * len(groups) + member
    sums = {
        name: np.bincount(place, values, len(names) * len(groups)).reshape(len(names), len(groups))
        for name, values in _states(columns, tau_safe, tau_unsafe).items()
    }
    lines = (
        _counts(name, of_group, {kind: float(values[i, j].sum()) for kind, values in sums.items()})
        for name, i in _levels(names)
        for of_group, j in _levels(groups)
    )
    return tuple(line for line in lines if line.rows + line.skipped)


def _levels(names: NDArray) -> Iterator[tuple[str, slice]]:
    """Names and rows of the levels of a summary: each name if there are several, and then all of them."""
    if len(names) > 1:
        yield from ((str(name), slice(i, i + 1)) for i, name in enumerate(names))
    yield _ALL, slice(None)


def _states(columns: Arrays, tau_safe: float, tau_unsafe: float) -> dict[str, NDArray]:
    """The columns that a summary adds up, by row."""
    count = len(columns["row"])
    skipped = columns["label"] == -1 if "label" in columns else np.zeros(count, bool)
    safe = unsafe = between = np.zeros(count, bool)
    if "p_safe_lower" in columns:
        lower, upper = columns["p_safe_lower"], columns["p_safe_upper"]
        safe, unsafe = lower >= tau_safe, upper < tau_unsafe
        between = ~safe & ~unsafe & (lower >= tau_unsafe) & (upper < tau_safe)
    elif "verdict" in columns:
        safe, unsafe = columns["verdict"] == "unsat", columns["verdict"] == "sat"
    low, high = (np.where(skipped, 0.0, side) for side in _one_number(columns))
    return {
        "rows": ~skipped, "skipped": skipped, "safe": safe, "unsafe": unsafe, "between": between, "lower": low,
        "upper": high,
    }  # fmt: skip


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


def _counts(network: str, group: str, sums: dict[str, float]) -> Counts:
    rows, skipped, safe, unsafe, between = (int(sums[n]) for n in ("rows", "skipped", "safe", "unsafe", "between"))
    lower, upper = (sums[side] / rows if rows else float("nan") for side in ("lower", "upper"))
    return Counts(network, group, rows, skipped, safe, unsafe, rows - safe - unsafe, between, lower, upper)


def write_summary(path: Path, lines: Iterable[object]) -> None:
    """Dataclasses of one kind as CSV."""
    rows = list(lines)
    head = [[field.name for field in fields(rows[0])]] if rows else []  # type: ignore[arg-type]
    write_text(path, table_text([*head, *(astuple(row) for row in rows)]))  # type: ignore[call-overload]
