"""Tables of a study, as CSV and as markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.files.vnncomp import write_text

Cell = str | int | float | bool | None
Row = Mapping[str, Cell]


def mean(values: NDArray) -> float:
    """The mean, nan of nothing."""
    return float(values.mean()) if len(values) else math.nan


def text(value: Cell) -> str:
    """A cell for people: four significant digits, a dash for what is not known."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, (float, np.floating)):
        size = abs(float(value))
        return f"{value:.4g}" if size == 0 or 1e-4 <= size < 1e5 else f"{value:.2e}"
    return str(value)


def markdown(rows: Sequence[Row]) -> str:
    """A markdown table."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([text(row[name]) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def write(out: Path, name: str, rows: Sequence[Row], caption: str = "") -> str:
    """Write NAME.csv (all digits) and NAME.md, and return the markdown."""
    if not rows:
        raise ValueError(f"table {name} has no rows")
    out.mkdir(parents=True, exist_ok=True)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out / f"{name}.csv", stream.getvalue())
    table = markdown(rows)
    write_text(out / f"{name}.md", f"{caption}\n\n{table}" if caption else table)
    return table
