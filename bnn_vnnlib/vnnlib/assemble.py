"""Cases of constraints to the arrays of the normal form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import PropertyError, UnsupportedError
from bnn_vnnlib.property import Boxes, HalfSpaces
from bnn_vnnlib.vnnlib.check import Scope
from bnn_vnnlib.vnnlib.dnf import Conjunction, Disjunction
from bnn_vnnlib.vnnlib.input_sets import InputSets
from bnn_vnnlib.vnnlib.linear import Bound, Row
from bnn_vnnlib.vnnlib.literals import bracket

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_CELLS = 30_000_000
_SHOWN = 5


@dataclass(frozen=True)
class Assembled:
    """The array part of a `Property`, and remarks."""

    boxes: Boxes
    constraints: HalfSpaces
    case_box: Ints
    rows: HalfSpaces
    notes: tuple[str, ...]


def assemble(disjunction: Disjunction, scope: Scope) -> Assembled:
    """Build boxes, constraints and rows; drop cases without inputs and repeated cases; share equal boxes.

    Raises
    ------
    PropertyError : an input is unbounded in a case
    UnsupportedError : the arrays would be too large
    """
    table = disjunction.constraints
    is_input = [isinstance(part, Bound) or part.on_inputs for part in table]
    case_key, keys = _input_keys(disjunction, is_input)
    n = scope.signature.input_size
    _check_cells(scope, len(keys), n, "input boxes", "inputs")
    inputs = InputSets(table, [i for i in disjunction.common if is_input[i]], keys, n)
    alive = np.flatnonzero(~inputs.empty[case_key])
    _check_bounded(inputs, np.unique(case_key[alive]), scope)
    used, alive_box = inputs.share(case_key[alive])
    boxes = inputs.boxes(used)
    constraints = _half_spaces([inputs.rows(k) for k in used.tolist()], table, scope, boxes, np.arange(len(used)), 0)
    case_box, case_rows = _distinct_cases(disjunction, is_input, alive, alive_box)
    rows = _half_spaces(case_rows, table, scope, boxes, case_box, scope.signature.output_size)
    return Assembled(boxes, constraints, case_box, rows, _notes_on_empty(len(case_key), alive))


def _input_keys(disjunction: Disjunction, is_input: list[bool]) -> tuple[Ints, list[Conjunction]]:
    """The distinct sets of input constraints that cases have of their own, and the one of each case."""
    keys: dict[Conjunction, int] = {}
    case_key = np.empty(len(disjunction.cases), np.int64)
    for number, case in enumerate(disjunction.cases):
        key = tuple(sorted({i for i in case if is_input[i]}))
        case_key[number] = keys.setdefault(key, len(keys))
    return case_key, list(keys)


def _distinct_cases(
    disjunction: Disjunction, is_input: list[bool], alive: Ints, alive_box: Ints
) -> tuple[Ints, list[Conjunction]]:
    """Box and rows of each case; cases with the same box and the same set of rows appear once."""
    common = [i for i in disjunction.common if not is_input[i]]
    distinct: dict[tuple[int, frozenset[int]], Conjunction] = {}
    for number, box in zip(alive.tolist(), alive_box.tolist(), strict=True):
        rows = tuple(dict.fromkeys((*common, *(i for i in disjunction.cases[number] if not is_input[i]))))
        distinct.setdefault((box, frozenset(rows)), rows)
    return np.array([box for box, _ in distinct], np.int64), list(distinct.values())


def _check_cells(scope: Scope, count: int, width: int, what: str, of: str) -> None:
    if count * width > MAX_CELLS:
        message = f"{count:,} {what} over {width:,} {of} are too many (at most {MAX_CELLS:,} numbers); split the file"
        raise scope.source.error(UnsupportedError, message)


def _check_bounded(inputs: InputSets, keys: Ints, scope: Scope) -> None:
    lower, upper = inputs.lower[keys], inputs.upper[keys]
    for infinite, bound in ((np.isneginf(lower), "lower"), (np.isposinf(upper), "upper")):
        columns = np.flatnonzero(np.any(infinite, axis=0))
        if len(columns):
            names = ", ".join(scope.name(int(column)) for column in columns[:_SHOWN])
            more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
            where = "" if infinite[:, columns].all(axis=0).any() else " in some case"
            message = f"unbounded, add bounds: no {bound} bound for {names}{more}{where}"
            raise scope.source.error(PropertyError, message)


def _notes_on_empty(count: int, alive: Ints) -> tuple[str, ...]:
    dropped = np.setdiff1d(np.arange(count), alive) + 1
    notes = [f"case {case} of {count}: empty input set, dropped" for case in dropped[:_SHOWN]]
    if len(dropped) > _SHOWN:
        notes.append(f"{len(dropped) - _SHOWN} more cases have empty input sets, dropped")
    return tuple(notes)


def _half_spaces(
    groups: Sequence[Sequence[int]], table: list[Bound | Row], scope: Scope, boxes: Boxes, box_of: Ints, m: int
) -> HalfSpaces:
    """The rows of each group (a box if m = 0, else a case); box_of (groups,) tells over which box they hold."""
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    flat = np.array([i for group in groups for i in group], np.int64)
    distinct, position = np.unique(flat, return_inverse=True)
    rows = [row for row in map(table.__getitem__, distinct.tolist()) if isinstance(row, Row)]
    n = scope.signature.input_size
    outputs = _dense(rows, n, m, len(flat), scope)[position]
    with_inputs = m == 0 or any(min(row.columns) < n for row in rows)
    inputs = _dense(rows, 0, n, len(flat), scope)[position] if with_inputs else None
    bound = np.array([row.up for row in rows], float)[position]
    inner = np.array([row.down for row in rows], float)[position]
    for r in np.flatnonzero(np.array([bool(row.errors) for row in rows], bool)[position]):
        bound[r], inner[r] = _widened(rows[position[r]], boxes, box_of[owner[r]], scope)
    strict = np.array([row.strict for row in rows], bool)[position]
    return HalfSpaces(outputs, inputs, bound, inner, strict, owner)


def _dense(rows: list[Row], start: int, width: int, copies: int, scope: Scope) -> Floats:
    """Coefficients (rows, width) of the columns from `start` on; `copies` is how many rows they will become."""
    _check_cells(scope, copies, width, "constraints", "variables")
    dense = np.zeros((len(rows), width))
    row = np.repeat(np.arange(len(rows)), [len(each.columns) for each in rows])
    column = np.array([j for each in rows for j in each.columns], np.int64) - start
    value = np.array([a for each in rows for a in each.values], float)
    inside = (column >= 0) & (column < width)
    dense[row[inside], column[inside]] = value[inside]
    return dense


def _widened(row: Row, boxes: Boxes, box: int, scope: Scope) -> tuple[float, float]:
    """Bound and inner bound that cover the rounding of input coefficients anywhere in the box."""
    error = Fraction(0)
    for column, off in row.errors:
        largest = max(abs(boxes.lower[box, column]), abs(boxes.upper[box, column]))
        error += off * Fraction(float(largest))
    try:
        return bracket(Fraction(row.up) + error)[1], bracket(Fraction(row.down) - error)[0]
    except OverflowError:
        raise scope.source.error(UnsupportedError, "a constraint's numbers are beyond the range of float64") from None
