"""The table of a sweep: N boxes of inputs, what is asked of each, and on which network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import InputError, names_arguments
from bnn_vnnlib.files.arrays import Arrays, integers, number, read_arrays, refuse_unknown
from bnn_vnnlib.sweeps.questions import AskedRows
from bnn_vnnlib.sweeps.source import digest
from bnn_vnnlib.system.environment import plain_state

_NAMES = ("lower", "upper", "label", "output_lower", "output_upper", "a", "b", "case", "network", "group")


@dataclass(frozen=True, eq=False)
class Table:
    """N boxes.

    Attributes
    ----------
    lower, upper : (N, n) finite, lower <= upper
    asked : the violation of each row
    network : (N,) names, or None: one network for all
    group : (N,) names under which the summary counts, or None: labels if there are any
    path : for messages
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    asked: AskedRows
    network: NDArray[np.str_] | None = None
    group: NDArray[np.str_] | None = None
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def digests(self) -> dict[str, str]:
        """{array: hash of its contents}."""
        asked = {
            "labels": "label",
            "lower": "output_lower",
            "upper": "output_upper",
            "a": "a",
            "b": "b",
            "case": "case",
        }
        arrays = {"lower": self.lower, "upper": self.upper, "network": self.network, "group": self.group}
        arrays |= {there: getattr(self.asked, here) for here, there in asked.items()}
        return {name: digest(values) for name, values in arrays.items() if values is not None}


@names_arguments
def read_table(path: str | Path) -> Table:
    """Read an npz or Parquet table.

    lower, upper (N, n); one of: label (N,) int (-1: skip), output_lower and output_upper (N, m), a (N, R, m) and b
    (N, R) with or without case (R,) or (N, R) (see docs/sweeps.md), or none (bounds on the decision only); network
    (N,) and group (N,), if wanted.

    Raises
    ------
    InputError : the file, or an array of it, by name
    """
    path = Path(path)
    return make_table(read_arrays(path, _NAMES), path)


@names_arguments
@plain_state()
def make_table(arrays: dict[str, ArrayLike] | Arrays, path: Path | None = None) -> Table:
    """A table of arrays in memory, named as in a file."""
    named = {name: np.asarray(values) for name, values in arrays.items()}
    refuse_unknown(named, _NAMES, path)
    lower, upper = (number(named, side, path, dims=2) for side in ("lower", "upper"))
    if lower.shape != upper.shape:
        raise InputError(f"lower has shape {lower.shape} and upper {upper.shape}", path=path)
    empty = np.argwhere(lower > upper)
    if len(empty):
        row, column = (int(i) for i in empty[0])
        ends = f"{lower[row, column]} > {upper[row, column]}"
        raise InputError(f"row {row} is empty: lower exceeds upper in input {column} ({ends})", path=path)
    texts = {name: _texts(named, name, path, len(lower)) for name in ("network", "group")}
    return Table(lower, upper, _asked(named, path, len(lower)), texts["network"], texts["group"], path)


def _asked(arrays: Arrays, path: Path | None, length: int) -> AskedRows:
    """What the arrays of a table ask of the outputs; InputError where they say it twice, or not in full."""
    ways = [way for way in (("label",), ("output_lower", "output_upper"), ("a", "b")) if set(way) & set(arrays)]
    if len(ways) > 1:
        raise InputError(f"{ways[0][0]!r} and {ways[1][0]!r} both say what is asked; give one of them", path=path)
    if "case" in arrays and ways != [("a", "b")]:
        raise InputError("'case' goes with 'a' and 'b'", path=path)
    if not ways:
        return AskedRows()
    if ways[0] == ("label",):
        return AskedRows(labels=integers(arrays, "label", path, length))
    if ways[0] == ("a", "b"):
        return _cases(arrays, path, length)
    low, high = (number(arrays, side, path, dims=2, finite=False) for side in ways[0])
    if low.shape != high.shape or len(low) != length:
        message = f"output_lower and output_upper must have shape ({length}, m), found {low.shape} and {high.shape}"
        raise InputError(message, path=path)
    bad = np.flatnonzero((low > high).any(1))
    if len(bad):
        raise InputError(f"row {bad[0]} allows no output: output_lower exceeds output_upper", path=path)
    return AskedRows(lower=low, upper=high)


def _cases(arrays: Arrays, path: Path | None, length: int) -> AskedRows:
    a, b = number(arrays, "a", path, dims=3), number(arrays, "b", path, dims=2)
    if a.shape[:2] != b.shape or len(b) != length or b.shape[1] == 0:
        raise InputError(f"a must be ({length}, R, m) and b ({length}, R), found {a.shape} and {b.shape}", path=path)
    if "case" not in arrays:
        return AskedRows(a=a, b=b, case=np.arange(b.shape[1]))
    case = arrays["case"]
    if case.ndim == 2 and len(case) and (case == case[:1]).all():
        case = case[0]  # Parquet has no array that belongs to the table as a whole
    if case.shape != b.shape[1:]:
        raise InputError(f"case must hold {b.shape[1]} integers, the same for all rows, found {case.shape}", path=path)
    return AskedRows(a=a, b=b, case=integers({"case": case}, "case", path, b.shape[1]))


def _texts(arrays: Arrays, name: str, path: Path | None, length: int) -> NDArray[np.str_] | None:
    if name not in arrays:
        return None
    values = arrays[name]
    if values.shape != (length,) or values.dtype.kind not in "UOiu":
        raise InputError(f"array {name!r} must hold {length} names, found {values.dtype} of {values.shape}", path=path)
    return values.astype(str)
