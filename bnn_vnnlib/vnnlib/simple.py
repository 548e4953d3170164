"""Simple comparisons to constraints: what `linear` says of them one by one, by whole arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError, PropertyError, SoundnessError
from bnn_vnnlib.vnnlib.check import Scope
from bnn_vnnlib.vnnlib.groups import Groups, first_and_number
from bnn_vnnlib.vnnlib.linear import Comparisons
from bnn_vnnlib.vnnlib.literals import bracket_literal, is_number
from bnn_vnnlib.vnnlib.rounding import bracket_literals
from bnn_vnnlib.vnnlib.runs import AND, OPERATORS, Runs
from bnn_vnnlib.vnnlib.source import Source
from bnn_vnnlib.vnnlib.table import Row, Table
from bnn_vnnlib.vnnlib.tree import Run

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

_STRICT = np.array(["=" not in word for word in OPERATORS])
_UPPER = np.array([word.startswith("<") for word in OPERATORS])
_EQUAL = np.array([word in ("=", "==") for word in OPERATORS])
_UNEQUAL = np.array([word == "!=" for word in OPERATORS])


@dataclass(frozen=True, eq=False)
class Simple:
    """The simple comparisons of a property.

    Attributes
    ----------
    table : the constraints that they stand for; those of `rows` follow
    rows : constraints that were read one by one
    alternatives : for each comparison in turn, the conjunctions (numbers of constraints) one of which must hold
    first : (S + 1,) the first alternative of each comparison; nearly all have one
    places : the first comparison of each run, and its last one + 1
    clauses : for each run of clauses, how many comparisons each has
    """

    table: Table
    rows: list[Row]
    alternatives: Groups
    first: Ints
    places: Mapping[Run, tuple[int, int]]
    clauses: Mapping[Run, Ints]


def read_simple(runs: Runs, scope: Scope, comparisons: Comparisons) -> Simple:
    """The constraints of all runs.

    Raises
    ------
    PropertyError, UnsupportedError : as `Comparisons.alternatives`
    """
    columns = _resolved(runs, scope)
    # Distinct comparisons first: real files repeat them.
    size = len(runs.atoms)
    where, which = first_and_number((runs.operators * size + runs.left) * size + runs.right)
    operators, left, right = runs.operators[where], runs.left[where], runs.right[where]
    odd = _UNEQUAL[operators] | (columns[left] == columns[right])  # both sides numbers, or the same variable
    if not scope.has_one_type:
        odd |= (columns[left] >= 0) & (columns[right] >= 0)
    plain = np.flatnonzero(~odd)
    table, conjunctions = _table(runs, operators[plain], left[plain], right[plain], columns, scope.source)
    rows: list[Row] = []
    owner, lists = [*plain.tolist()], []
    for one in np.flatnonzero(odd).tolist():
        for conjunction in comparisons.alternatives(runs.compare(int(where[one]))):
            start = len(table) + len(rows)
            rows.extend(conjunction)
            lists.append(range(start, len(table) + len(rows)))
            owner.append(one)
    conjunctions = Groups.chain([conjunctions, Groups.of(lists)]).take(np.argsort(owner, kind="stable"))
    counts = np.bincount(np.array(owner, np.int64), minlength=len(where))
    chosen = Groups.of_lengths(counts, np.arange(len(owner))).take(which)
    ends = zip(runs.first[:-1].tolist(), runs.first[1:].tolist(), strict=True)
    places = dict(zip(runs.runs, ends, strict=True))
    return Simple(table, rows, conjunctions.take(chosen.items), chosen.starts, places, runs.clauses)


def _resolved(runs: Runs, scope: Scope) -> Ints:
    """The column of each atom; -1 for a number, and for what is no operand."""
    known = scope.columns
    columns = [known.get(word, -1) for word in runs.atoms]
    for atom, word in enumerate(runs.atoms[AND + 1 :], AND + 1):  # behind the words that are no operands
        if columns[atom] < 0 and not is_number(word):
            try:
                columns[atom] = scope.column(word, 0)
            except InputError:
                scope.column(word, runs.compare(runs.first_use(atom)).at)  # fails again, and knows the place
                raise
    return np.array(columns, np.int64)


def _table(runs: Runs, operators: Ints, left: Ints, right: Ints, columns: Ints, source: Source) -> tuple[Table, Groups]:
    """The distinct constraints of comparisons with one variable or two, and those of each comparison."""
    swap = columns[left] < 0
    left, right = np.where(swap, right, left), np.where(swap, left, right)
    upper = _UPPER[operators] ^ (swap & ~_EQUAL[operators])
    # An equality is two constraints, first the upper bound.
    halves = Groups.of_lengths(1 + _EQUAL[operators], np.repeat(np.arange(len(left)), 1 + _EQUAL[operators]))
    second = np.zeros(len(halves.items), np.bool_)
    second[halves.starts[1:][_EQUAL[operators]] - 1] = True
    left, right, strict = left[halves.items], right[halves.items], _STRICT[operators][halves.items]
    upper = (upper | _EQUAL[operators])[halves.items] & ~second
    two = columns[right] >= 0
    # left <= right of two variables is left - right <= 0; x >= v is -x <= -v.
    column = np.where(two & ~upper, columns[right], columns[left])
    other = np.where(two, np.where(upper, columns[right], columns[left]), -1)
    sign = np.where(two | upper, 1.0, -1.0)
    side = np.where(two, -1, right)
    width = int(columns.max(initial=0)) + len(columns) + 2
    key = ((2 * column + (sign > 0)) * width + np.where(two, len(columns) + other, right)) * 2 + strict
    where, which = first_and_number(key)
    column, other, sign, side, strict = column[where], other[where], sign[where], side[where], strict[where]
    pairs = Groups.of_lengths(1 + (other >= 0), np.column_stack([column, other]).ravel()[_kept(other)])
    values = np.column_stack([sign, np.full(len(sign), -1.0)]).ravel()[_kept(other)]
    down, up = _brackets(runs, side, source)
    above = sign > 0
    down, up = np.where(above, down, 0.0 - up), np.where(above, up, 0.0 - down)
    table = Table(pairs, values, strict, down, up, side, runs.atoms, {}, {})
    return table, Groups(halves.starts, which)


def _kept(other: Ints) -> Flags:
    """Which entries of pairs (first, second), written out, are there: all first ones, and the second ones that are."""
    return np.column_stack([np.ones(len(other), np.bool_), other >= 0]).ravel()


def _brackets(runs: Runs, sides: Ints, source: Source) -> tuple[Floats, Floats]:
    """The float64 numbers next to the literals with these numbers; 0 for -1."""
    first, which = first_and_number(sides)
    used = sides[first]
    texts = [runs.atoms[atom] if atom >= 0 else "0" for atom in used.tolist()]
    try:
        down, up = bracket_literals(texts)
    except (ValueError, OverflowError):
        raise _unusable(runs, used[used >= 0], source) from None
    return down[which], up[which]


def _unusable(runs: Runs, literals: Ints, source: Source) -> InputError:
    """The error for the first of the literals that cannot be read."""
    for atom in literals.tolist():
        try:
            bracket_literal(runs.atoms[atom])
        except (ValueError, OverflowError) as error:
            at = runs.compare(runs.first_use(atom)).at
            return source.error(PropertyError, str(error), source.find(runs.atoms[atom], at))
    raise SoundnessError("a number can be read alone and cannot among others")
