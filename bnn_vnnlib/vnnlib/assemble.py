"""Syntax tree to normal form.

`normalise` goes the whole way: it checks the tree, reads what is simple, expands the rest into cases and notes what a
reader of the numbers should know. `assemble` makes the arrays of the normal form of the cases of constraints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import PropertyError, UnsupportedError
from bnn_vnnlib.question.property import Boxes, HalfSpaces, Property
from bnn_vnnlib.signature import Signature
from bnn_vnnlib.vnnlib.check import Scope, Table, check
from bnn_vnnlib.vnnlib.dnf import Disjunction, expand
from bnn_vnnlib.vnnlib.groups import Groups, compare_signatures, first_and_number
from bnn_vnnlib.vnnlib.input_sets import InputSets
from bnn_vnnlib.vnnlib.linear import Comparisons
from bnn_vnnlib.vnnlib.options import read_options
from bnn_vnnlib.vnnlib.runs import read_runs
from bnn_vnnlib.vnnlib.simple import read_simple
from bnn_vnnlib.vnnlib.tree import Query, Source, bracket

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_CELLS = 10_000_000
_SHOWN = 5


@dataclass(frozen=True)
class _Assembled:
    """The array part of a `Property`, and remarks."""

    boxes: Boxes
    constraints: HalfSpaces
    case_box: Ints
    rows: HalfSpaces
    notes: tuple[str, ...]


def assemble(disjunction: Disjunction, scope: Scope) -> _Assembled:
    """Build boxes, constraints and rows; drop cases without inputs and repeated cases; share equal boxes.

    Raises
    ------
    PropertyError : an input is unbounded in a case
    UnsupportedError : the arrays would be too large
    """
    table, n, m = disjunction.table, scope.signature.input_size, scope.signature.output_size
    is_input = table.on_inputs(n)
    own = disjunction.cases.where(is_input[disjunction.cases.items])
    case_key = own.numbered()
    keys = own.take(first_and_number(case_key)[0])
    _check_cells(scope, len(keys), n, "input boxes", "inputs")
    inputs = InputSets(table, is_input, disjunction.common[is_input[disjunction.common]], keys, n)
    alive = np.flatnonzero(~inputs.empty[case_key])
    _check_bounded(inputs, np.flatnonzero(~inputs.empty), scope)
    used, box_of = inputs.share()
    alive_box = box_of[case_key[alive]]
    boxes = inputs.boxes(used)
    constraints = _half_spaces(inputs.rows(used), table, scope, boxes, np.arange(len(used)), 0)
    everywhere = Groups.one(disjunction.common[~is_input[disjunction.common]])
    case_rows = disjunction.cases.where(~is_input[disjunction.cases.items])
    if len(alive) < len(case_key):
        case_rows = case_rows.take(alive)
    case_rows = everywhere.copies(len(alive)).beside(case_rows)
    # Cases with the same box and the same set of rows appear once.
    first = first_and_number(case_rows.numbered(alive_box))[0]
    case_box = alive_box[first]
    rows = _half_spaces(case_rows.take(first).distinct(), table, scope, boxes, case_box, m)
    return _Assembled(boxes, constraints, case_box, rows, _notes_on_empty(len(case_key), alive))


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
    dropped = np.delete(np.arange(count), alive) + 1
    notes = [f"case {case} of {count}: empty input set, dropped" for case in dropped[:_SHOWN]]
    if len(dropped) > _SHOWN:
        notes.append(f"{len(dropped) - _SHOWN} more cases have empty input sets, dropped")
    return tuple(notes)


def _half_spaces(groups: Groups, table: Table, scope: Scope, boxes: Boxes, box_of: Ints, m: int) -> HalfSpaces:
    """The rows of each group (a box if m = 0, else a case); box_of (groups,) tells over which box they hold."""
    n, owner, rows = scope.signature.input_size, groups.owner, groups.items
    if not len(rows):
        nothing = np.zeros(0)
        inputs = np.zeros((0, n)) if m == 0 else None
        return HalfSpaces(np.zeros((0, m)), inputs, nothing, nothing, np.zeros(0, np.bool_), owner)
    first, position = first_and_number(rows)
    places = table.columns.places(rows[first])
    columns, values = Groups(places.starts, table.columns.items[places.items]), table.values[places.items]
    outputs = _dense(columns, values, n, m, len(rows), scope)[position]
    with_inputs = m == 0 or bool((columns.items < n).any())
    inputs = _dense(columns, values, 0, n, len(rows), scope)[position] if with_inputs else None
    bound, inner = table.up[rows], table.down[rows]
    if table.errors:
        for r in np.flatnonzero(np.isin(rows, np.array([*table.errors]))).tolist():
            bound[r], inner[r] = _widened(table, int(rows[r]), boxes, box_of[owner[r]], scope)
    return HalfSpaces(outputs, inputs, bound, inner, table.strict[rows], owner)


def _dense(columns: Groups, values: Floats, start: int, width: int, copies: int, scope: Scope) -> Floats:
    """Coefficients (rows, width) of the columns from `start` on; `copies` is how many rows they will become."""
    _check_cells(scope, copies, width, "constraints", "variables")
    dense = np.zeros((len(columns), width))
    column = columns.items - start
    inside = (column >= 0) & (column < width)
    dense[columns.owner[inside], column[inside]] = values[inside]
    return dense


def _widened(table: Table, row: int, boxes: Boxes, box: int, scope: Scope) -> tuple[float, float]:
    """Bound and inner bound that cover the rounding of input coefficients anywhere in the box."""
    error = Fraction(0)
    for column, off in table.errors[row]:
        largest = max(abs(boxes.lower[box, column]), abs(boxes.upper[box, column]))
        error += off * Fraction(float(largest))
    try:
        return bracket(Fraction(float(table.up[row])) + error)[1], bracket(Fraction(float(table.down[row])) - error)[0]
    except OverflowError:
        raise scope.source.error(UnsupportedError, "a constraint's numbers are beyond the range of float64") from None


_NUMBER_2X = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_NUMBERS_2X = re.compile(rf"(?:{_NUMBER_2X.pattern}(?: |\Z))*+")


def normalise(query: Query, source: Source, signature: Signature | None = None) -> Property:
    """The property that a syntax tree describes; checked against a model's signature, if there is one.

    Raises
    ------
    PropertyError, UnsupportedError : located in the text where possible
    """
    options = read_options(source)
    scope = check(query, source)
    shapes = [] if signature is None else compare_signatures(scope.version, scope.signature, signature, source.path)
    comparisons = Comparisons(scope)
    runs = read_runs(query.assertions)
    simple = read_simple(runs, scope, comparisons)
    assembled = assemble(expand(query.assertions, simple, comparisons, source), scope)
    numbers = _notes_on_numbers((*runs.numbers, *comparisons.literals), scope)
    notes = (*scope.notes, *shapes, *numbers, *comparisons.notes, *assembled.notes)
    return Property(
        version=scope.version,
        network=scope.network,
        signature=scope.signature,
        boxes=assembled.boxes,
        constraints=assembled.constraints,
        case_box=assembled.case_box,
        rows=assembled.rows,
        options=options,
        notes=notes,
        hidden=scope.hidden,
    )


def _notes_on_numbers(literals: Iterable[str], scope: Scope) -> list[str]:
    if scope.version[0] == 1:
        return []
    texts = list(literals)
    if _NUMBERS_2X.fullmatch(" ".join(texts)):  # one match is many times cheaper than one for each
        return []
    foreign = {text: None for text in texts if not _NUMBER_2X.fullmatch(text)}
    first, others = next(iter(foreign)), len(foreign) - 1
    more = f" ({others} more like it)" if others else ""
    return [f"{first} is not how VNN-LIB 2.x writes a number; it is read as in 1.0{more}"]
