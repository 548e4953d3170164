"""Simple comparisons, by whole arrays.

1. `read_runs`: the text of runs of simple comparisons to arrays of operators and atoms by number.
2. `read_simple`: these to constraints, as `linear` makes them one by one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count, islice, repeat

import numpy as np

from bnn_vnnlib.arrays import Floats, Ints
from bnn_vnnlib.errors import InputError, PropertyError, SoundnessError
from bnn_vnnlib.vnnlib.check import Constraint, ConstraintTable, Scope
from bnn_vnnlib.vnnlib.groups import Groups, first_and_number
from bnn_vnnlib.vnnlib.linear import Comparisons, bracket_literals
from bnn_vnnlib.vnnlib.tree import Compare, Junction, SimpleRun, SourceText, bracket_literal, is_number

# 1. Words to numbers

_COMPARATORS = (">=", ">", "<=", "<", "=", "==", "!=")
_AND = len(_COMPARATORS)
_COMPARISON = re.compile(r"\([ \t\r\n]*[<>=!]")


@dataclass(frozen=True, eq=False)
class SimpleRuns:
    """All simple comparisons s = 0, ..., S - 1 of a property, in the order of the text.

    Attributes
    ----------
    atoms : the words; the first ones are OPERATORS and "and", all others are operands
    operators, left, right : (S,) words
    runs : where they come from
    first : (len(runs) + 1,) first comparison of each run
    clauses : the first comparison of each clause, in the runs that consist of clauses
    """

    atoms: list[str]
    operators: Ints
    left: Ints
    right: Ints
    runs: list[SimpleRun]
    first: Ints
    clauses: Ints

    def compare(self, s: int) -> Compare:
        """Comparison s as a node of the tree."""
        number = int(np.searchsorted(self.first, s, "right")) - 1
        run = self.runs[number]
        place = next(islice(_COMPARISON.finditer(run.text), s - int(self.first[number]), None))
        operator, left, right = (self.atoms[column[s]] for column in (self.operators, self.left, self.right))
        return Compare(operator, left, right, run.at + place.start() + 1)

    def first_use(self, atom: int) -> int:
        """The first comparison in which an atom is an operand."""
        return int(np.argmax((self.left == atom) | (self.right == atom)))

    @property
    def numbers(self) -> list[str]:
        """The atoms that are numbers."""
        return [atom for atom in self.atoms[_AND + 1 :] if is_number(atom)]


def read_runs(assertions: Iterable[Compare | Junction | SimpleRun]) -> SimpleRuns:
    """Gather the runs of all formulas."""
    known = (*_COMPARATORS, "and")
    numbers = defaultdict(count(len(known)).__next__, zip(known, range(len(known)), strict=True))
    runs, parts = [*_leaves(assertions)], [np.zeros(0, np.int32)]
    for run in runs:
        words = run.words()
        if run.kind == "assertions":
            del words[::4]  # assert
        parts.append(np.fromiter(map(numbers.__getitem__, words), np.int32, len(words)))
    codes = np.concatenate(parts)
    ands = np.flatnonzero(codes == _AND)  # the grammar lets no variable be named so
    clauses = (ands - np.arange(len(ands))) // 3
    first = np.array([*map(len, parts)]).cumsum()
    first = (first - ands.searchsorted(first)) // 3
    operators, left, right = np.delete(codes, ands).reshape(-1, 3).T.astype(np.int64)
    return SimpleRuns(list(numbers), operators, left, right, runs, first, clauses)


def _leaves(assertions: Iterable[Compare | Junction | SimpleRun]) -> Iterable[SimpleRun]:
    pending = list(assertions)[::-1]
    while pending:
        formula = pending.pop()
        if isinstance(formula, SimpleRun):
            yield formula
        elif isinstance(formula, Junction):
            pending.extend(reversed(formula.parts))


# 2. Constraints

_STRICT = np.array(["=" not in word for word in _COMPARATORS])
_UPPER = np.array([word.startswith("<") for word in _COMPARATORS])
_EQUAL = np.array([word in ("=", "==") for word in _COMPARATORS])
_UNEQUAL = np.array([word == "!=" for word in _COMPARATORS])


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
    clauses : the first comparison of each clause, in the runs that consist of clauses
    """

    table: ConstraintTable
    rows: list[Constraint]
    alternatives: Groups
    first: Ints
    places: Mapping[SimpleRun, tuple[int, int]]
    clauses: Ints


def read_simple(runs: SimpleRuns, scope: Scope, comparisons: Comparisons) -> Simple:
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
    ends = zip(runs.first[:-1].tolist(), runs.first[1:].tolist(), strict=True)
    places = dict(zip(runs.runs, ends, strict=True))
    if not odd.any():
        table, conjunctions = _table(runs, operators, left, right, columns, scope.source)
        return Simple(table, [], conjunctions.take(which), np.arange(len(which) + 1), places, runs.clauses)
    plain = np.flatnonzero(~odd)
    table, conjunctions = _table(runs, operators[plain], left[plain], right[plain], columns, scope.source)
    rows: list[Constraint] = []
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
    return Simple(table, rows, conjunctions.take(chosen.items), chosen.starts, places, runs.clauses)


def _resolved(runs: SimpleRuns, scope: Scope) -> Ints:
    """The column of each atom; -1 for a number, and for what is no operand."""
    columns = np.fromiter(map(scope.columns.get, runs.atoms, repeat(-1)), np.int64, len(runs.atoms))
    for atom in (np.flatnonzero(columns[_AND + 1 :] < 0) + _AND + 1).tolist():  # behind the words that are no operands
        word = runs.atoms[atom]
        if not is_number(word):
            try:
                columns[atom] = scope.column(word, 0)
            except InputError:
                scope.column(word, runs.compare(runs.first_use(atom)).at)  # fails again, and knows the place
                raise
    return columns


def _table(
    runs: SimpleRuns, operators: Ints, left: Ints, right: Ints, columns: Ints, source: SourceText
) -> tuple[ConstraintTable, Groups]:
    """The distinct constraints of comparisons with one variable or two, and those of each comparison."""
    swap = columns[left] < 0
    left, right = np.where(swap, right, left), np.where(swap, left, right)
    strict, upper, starts = _STRICT[operators], _UPPER[operators] ^ swap, np.arange(len(left) + 1)
    equal = _EQUAL[operators]
    if equal.any():  # two constraints, first the upper bound
        starts[1:] += equal.cumsum()
        part = np.arange(len(left)).repeat(1 + equal)
        left, right, strict, upper = left[part], right[part], strict[part], upper[part]
        upper[starts[1:][equal] - 2], upper[starts[1:][equal] - 1] = True, False
    columns_left, columns_right = columns[left], columns[right]
    two = columns_right >= 0
    # left <= right of two variables is left - right <= 0; x >= v is -x <= -v.
    column = np.where(two & ~upper, columns_right, columns_left)
    other = np.where(upper, columns_right, columns_left)  # where there are two
    above = two | upper
    width = int(columns.max(initial=0)) + len(columns) + 2
    key = ((2 * column + above) * width + np.where(two, len(columns) + other, right)) * 2 + strict
    where, which = first_and_number(key)
    two, above = two[where], above[where]
    pairs = Groups.of_lengths(1 + two, np.empty(len(where) + np.count_nonzero(two), np.int64))
    firsts = pairs.starts[:-1]
    pairs.items[firsts], pairs.items[firsts[two] + 1] = column[where], other[where][two]
    values = np.full(len(pairs.items), -1.0)
    values[firsts] = np.where(above, 1.0, -1.0)
    sides = np.where(two, -1, right[where])
    down, up = _brackets(runs, sides, source)
    down, up = np.where(above, down, 0.0 - up), np.where(above, up, 0.0 - down)
    table = ConstraintTable(pairs, values, strict[where], down, up, sides, runs.atoms, {}, {})
    return table, Groups(starts, which)


def _brackets(runs: SimpleRuns, sides: Ints, source: SourceText) -> tuple[Floats, Floats]:
    """The float64 numbers next to the literals with these numbers; 0 for -1."""
    is_used = np.zeros(len(runs.atoms) + 1, np.bool_)
    is_used[sides] = True
    used = np.flatnonzero(is_used[:-1])
    down, up = np.zeros(len(is_used)), np.zeros(len(is_used))  # the last one for -1
    try:
        down[used], up[used] = bracket_literals([runs.atoms[atom] for atom in used.tolist()])
    except (ValueError, OverflowError):
        raise _unusable(runs, used, source) from None
    return down[sides], up[sides]


def _unusable(runs: SimpleRuns, literals: Ints, source: SourceText) -> InputError:
    """The error for the first of the literals that cannot be read."""
    for atom in literals.tolist():
        try:
            bracket_literal(runs.atoms[atom])
        except (ValueError, OverflowError) as error:
            at = runs.compare(runs.first_use(atom)).at
            return source.error(PropertyError, str(error), source.find(runs.atoms[atom], at))
    raise SoundnessError("a number can be read alone and cannot among others")
