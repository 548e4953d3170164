"""Syntax tree to normal form.

1. `_InputSets`: the input parts of the cases, boxes and further constraints, each distinct one once.
2. `_assemble`: the arrays of the normal form of the cases of constraints.
3. `normalise` goes the whole way: it checks the tree, reads what is simple, expands the rest into cases and notes
   what a reader of the numbers should know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from bnn_vnnlib.arrays import Flags, Floats, Ints
from bnn_vnnlib.errors import PropertyError, UnsupportedError
from bnn_vnnlib.question.property import Boxes, HalfSpaces, Polynomial, Property
from bnn_vnnlib.signature import Signature
from bnn_vnnlib.vnnlib.check import ConstraintTable, Scope, check
from bnn_vnnlib.vnnlib.dnf import Disjunction, expand
from bnn_vnnlib.vnnlib.groups import Groups, compare_signatures, first_and_number
from bnn_vnnlib.vnnlib.linear import Comparisons
from bnn_vnnlib.vnnlib.parse import read_options
from bnn_vnnlib.vnnlib.simple import read_runs, read_simple
from bnn_vnnlib.vnnlib.tree import SourceText, SyntaxTree, bracket


class _InputSets:
    """K input sets. Arrays (K, n); unbounded is infinite.

    `empty` (K,) tells exactly whether a box holds no real point; the further constraints are not looked at.

    Parameters
    ----------
    table : all constraints
    on_inputs : which of them concern nothing but inputs
    common : those on inputs that hold in every set
    own : for each set, its own constraints on inputs
    n : number of inputs
    """

    def __init__(self, table: ConstraintTable, on_inputs: Flags, common: Ints, own: Groups, n: int) -> None:
        self._table, self._common, self._own = table, Groups.one(common), own
        self._is_bound = (table.columns.lengths == 1) & on_inputs
        self._is_curved = table.columns.lengths == 0
        everywhere = self._tightened([np.full((1, n), start) for start in (-np.inf, np.inf) * 2], self._common)
        self.lower, self.upper, self.inner_lower, self.inner_upper = self._tightened(
            [side.repeat(len(own), axis=0) for side in everywhere], own
        )
        self.empty: Flags = np.any(np.greater(self.lower, self.upper), axis=1)
        self._decide_close()

    def share(self) -> tuple[Ints, Ints]:
        """First set of each distinct kind among those that are not empty; for every set its kind (K,), -1 if empty."""
        further = self._own.where(~self._is_bound[self._own.items]).numbered().tolist()
        sides = np.concatenate((self.lower, self.upper, self.inner_lower, self.inner_upper), axis=1)
        kind = np.full(len(sides), -1)
        first: list[int] = []
        numbers: dict[tuple[int, bytes], int] = {}
        for k in np.flatnonzero(~self.empty).tolist():
            kind[k] = number = numbers.setdefault((further[k], sides[k].tobytes()), len(first))
            if number == len(first):
                first.append(k)
        return np.array(first, np.int64), kind

    def complete(self) -> None:
        """Give inputs without bounds those that follow from the others by the further constraints, exactly.

        X_g == X_f says as much of X_g as a box would, and X_f >= X_g gives it an upper end. Each constraint
        sum a_j x_j <= b bounds x_j by the least that its other terms can be; what follows is rounded outward.
        Ends of the file stay as they are.
        """
        for k in np.flatnonzero(~self.empty & ~np.isfinite((self.lower, self.upper)).all(axis=(0, 2))).tolist():
            rows = self.rows(np.array([k])).items.tolist()
            if self._table.columns.places(np.array(rows, np.int64)).items.size > _MAX_TERMS:
                continue
            terms = [self._exact_row(row) for row in rows]
            while sum(self._implied(k, *row) for row in terms):
                pass
            self.empty[k] = bool((self.lower[k] > self.upper[k]).any())

    def fill(self, scope: Scope) -> list[str]:
        """Let inputs that still have no bound range over all numbers of float32, and say so."""
        kept = ~self.empty[:, None]
        ends = ((self.lower, self.inner_lower, -LARGEST_FLOAT32), (self.upper, self.inner_upper, LARGEST_FLOAT32))
        named = np.zeros(self.lower.shape[1], np.bool_)
        for outer, inner, end in ends:
            free = np.isinf(outer) & kept
            outer[free], inner[free], named = end, end, named | free.any(axis=0)
        names = ", ".join(scope.name(int(column)) for column in np.flatnonzero(named)[:_SHOWN])
        more = f" and {named.sum() - _SHOWN} more" if named.sum() > _SHOWN else ""
        told = f"no bound for {names}{more}: all numbers of float32 are meant, up to {LARGEST_FLOAT32:.4g} in size"
        return [told] if named.any() else []

    def _exact_row(self, row: int) -> tuple[list[tuple[int, Fraction]], Fraction]:
        """Terms (input, coefficient) and right side of a constraint."""
        table = self._table
        part = slice(table.columns.starts[row], table.columns.starts[row + 1])
        pairs = zip(table.columns.items[part].tolist(), table.values[part].tolist(), strict=True)
        side = table.exact.get(row, Fraction(float(table.up[row]))) if not table.errors.get(row) else None
        return [(j, Fraction(a)) for j, a in pairs if side is not None], side or Fraction(0)

    def _implied(self, k: int, terms: list[tuple[int, Fraction]], side: Fraction) -> bool:
        """Bound the inputs of one constraint in set k that have no bound yet; whether there were any."""
        ends = [float(self.lower[k, j] if a > 0 else self.upper[k, j]) for j, a in terms]
        free = [i for i, end in enumerate(ends) if not math.isfinite(end)]
        targets = range(len(terms)) if not free else free if len(free) == 1 else []
        changed = False
        for i in targets:
            j, a = terms[i]
            sides = (self.upper, self.inner_upper) if a > 0 else (self.lower, self.inner_lower)
            if math.isfinite(sides[0][k, j]):
                continue
            rest = sum((b * Fraction(end) for n, ((_, b), end) in enumerate(zip(terms, ends, strict=True)) if n != i),
                       Fraction(0))  # fmt: skip
            try:
                value = bracket((side - rest) / a)[1 if a > 0 else 0]
            except OverflowError:
                continue
            for array in sides:
                array[k, j] = value
            changed = True
        return changed

    def rows(self, used: Ints) -> Groups:
        """The linear constraints of these sets (common ones too) that are no bounds."""
        rows = self._common.copies(len(used)).beside(self._own.take(used))
        return rows.where(~(self._is_bound | self._is_curved)[rows.items])

    def polynomials(self, used: Ints) -> tuple[tuple[Polynomial, ...], ...]:
        """The constraints of these sets with products; () where there are none at all."""
        if not self._table.polynomials:
            return ()
        rows = self._common.copies(len(used)).beside(self._own.take(used))
        curved = rows.where(self._is_curved[rows.items]).distinct()
        ends = zip(curved.starts[:-1].tolist(), curved.starts[1:].tolist(), strict=True)
        return tuple(tuple(self._table.polynomials[r] for r in curved.items[a:b].tolist()) for a, b in ends)

    def boxes(self, used: Ints) -> Boxes:
        """The boxes of these sets."""
        return Boxes(self.lower[used], self.upper[used], self.inner_lower[used], self.inner_upper[used])

    def _tightened(self, sides: list[Floats], groups: Groups) -> list[Floats]:
        """Lower, upper, inner lower and inner upper bounds after the bounds of the groups; changes the arrays."""
        table = self._table
        group, column, bound = self._entries(groups)
        upper = table.values[table.columns.starts[bound]] > 0
        strict, down, up = table.strict[bound], table.down[bound], table.up[bound]
        # A strict bound that float64 holds excludes itself; the next number satisfies it.
        inside = np.where(strict & (down == up), np.nextafter(down, -np.inf), down)
        place = group * sides[0].shape[1] + column  # in the arrays as one row: numpy is much faster on that
        for k, (side, select, values) in enumerate(
            zip(sides, (~upper, upper) * 2, (0.0 - up, up, 0.0 - inside, inside), strict=True)
        ):
            (np.minimum if k % 2 else np.maximum).at(side.reshape(-1), place[select], values[select])
            side += 0.0  # -0.0 becomes 0.0
        return sides

    def _entries(self, groups: Groups) -> tuple[Ints, Ints, Ints]:
        """Group, column and constraint of all bounds in the groups."""
        bounds = groups.where(self._is_bound[groups.items])
        return bounds.owner, self._table.columns.items[self._table.columns.starts[bounds.items]], bounds.items

    def _decide_close(self) -> None:
        """Decide exactly where rounding or strictness hides whether a box is empty."""
        close = (self.inner_lower > self.inner_upper) & ~self.empty[:, None]
        if not close.any():
            return
        places = np.flatnonzero(close)  # of the flattened (K, n)
        bounds = self._bounds_at(places, close.shape)
        self.empty[places[self._hold_nothing(bounds)] // close.shape[1]] = True

    def _bounds_at(self, places: Ints, shape: tuple[int, ...]) -> Groups:
        """The bounds on a column in a set, a list for each place (set and column in one number)."""
        n = shape[1]
        _, column, bound = self._entries(self._common)
        order = np.argsort(column, kind="stable")
        common = Groups.of_lengths(np.bincount(column, minlength=n), bound[order]).take(places % n)
        group, column, bound = self._entries(self._own)
        where = np.searchsorted(places, group * n + column)
        found = where < len(places)
        found[found] = places[where[found]] == (group * n + column)[found]
        where, bound = where[found], bound[found]
        own = Groups.of_lengths(np.bincount(where, minlength=len(places)), bound[np.argsort(where, kind="stable")])
        return common.beside(own)

    def _hold_nothing(self, bounds: Groups) -> Flags:
        """Whether no real number satisfies all the bounds of a list, exactly; lists with bounds of both kinds."""
        table = self._table
        # One literal in all bounds is the common case of a point, without fractions: empty if a bound is strict.
        starts = bounds.starts[:-1]
        sides = table.sides[bounds.items]
        same = (np.minimum.reduceat(sides, starts) == np.maximum.reduceat(sides, starts)) & (sides[starts] >= 0)
        empty = same & np.maximum.reduceat(table.strict[bounds.items], starts)
        known: dict[bytes, bool] = {}
        for k in np.flatnonzero(~same).tolist():
            items = bounds.items[bounds.starts[k] : bounds.starts[k + 1]]
            key = items.tobytes()
            if key not in known:
                known[key] = self._holds_nothing(items.tolist())
            empty[k] = known[key]
        return empty

    def _holds_nothing(self, bounds: list[int]) -> bool:
        table = self._table
        upper = {i: bool(table.values[table.columns.starts[i]] > 0) for i in bounds}
        high = min((table.right_side(i), not table.strict[i]) for i in bounds if upper[i])
        low = max((-table.right_side(i), bool(table.strict[i])) for i in bounds if not upper[i])
        return low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1]))


LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
MAX_CELLS = 10_000_000
_MAX_TERMS = 100_000  # of constraints from which missing bounds are worked out
_SHOWN = 5


def _assemble(disjunction: Disjunction, scope: Scope) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The array part of a `Property`, by its fields, and remarks.

    Cases without inputs and repeated cases are dropped; equal boxes are shared.

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
    inputs = _InputSets(table, is_input, disjunction.common[is_input[disjunction.common]], keys, n)
    inputs.complete()
    alive = np.flatnonzero(~inputs.empty[case_key])
    unbounded = inputs.fill(scope) if scope.second is not None else []
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
    arrays = {
        "boxes": boxes, "constraints": constraints, "case_box": case_box, "rows": rows,
        "polynomials": inputs.polynomials(used),
    }  # fmt: skip
    return arrays, (*unbounded, *_notes_on_empty(len(case_key), alive))


def _check_cells(scope: Scope, count: int, width: int, what: str, of: str) -> None:
    if count * width > MAX_CELLS:
        message = f"{count:,} {what} over {width:,} {of} are too many (at most {MAX_CELLS:,} numbers); split the file"
        raise scope.source.error(UnsupportedError, message)


def _check_bounded(inputs: _InputSets, keys: Ints, scope: Scope) -> None:
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


def _half_spaces(
    groups: Groups, table: ConstraintTable, scope: Scope, boxes: Boxes, box_of: Ints, m: int
) -> HalfSpaces:
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


def _widened(table: ConstraintTable, row: int, boxes: Boxes, box: int, scope: Scope) -> tuple[float, float]:
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


def normalise(query: SyntaxTree, source: SourceText, signature: Signature | None = None) -> Property:
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
    arrays, on_empty = _assemble(expand(query.assertions, simple, comparisons, source), scope)
    numbers = _notes_on_numbers((*runs.numbers, *comparisons.literals), scope)
    notes = (*scope.notes, *shapes, *numbers, *comparisons.notes, *on_empty)
    return Property(
        version=scope.version, network=scope.network, signature=scope.signature, options=options, notes=notes,
        hidden=scope.hidden, second=scope.second, **arrays,
    )  # fmt: skip


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
