"""Nested and/or to cases: an or of conjunctions of constraints, each distinct constraint stored once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from bnn_vnnlib.arrays import Ints
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.vnnlib.check import Constraint, ConstraintTable
from bnn_vnnlib.vnnlib.groups import Groups
from bnn_vnnlib.vnnlib.linear import MAX_FORMULA_DEPTH, Comparisons
from bnn_vnnlib.vnnlib.simple import Simple
from bnn_vnnlib.vnnlib.tree import Compare, Junction, SimpleRun, SourceText

MAX_CASES = 1_000_000
MAX_COMPARISONS = 5_000_000

Formula = Compare | Junction | SimpleRun


@dataclass(frozen=True)
class Disjunction:
    """The assertions as: all constraints of `common`, and all those of one of the `cases` (numbers in the table)."""

    table: ConstraintTable
    common: Ints
    cases: Groups


@dataclass
class _Expansion:
    """The walk over the formulas, with the constraints met so far. A formula becomes its alternatives."""

    source: SourceText
    comparisons: Comparisons
    simple: Simple
    rows: list[Constraint]
    numbers: dict[Constraint, int] = field(default_factory=dict)

    def formula(self, formula: Compare | Junction, depth: int = 1) -> Groups:
        """The alternatives of a formula: lists of constraints, one of which must hold."""
        if isinstance(formula, Compare):
            alternatives = self.comparisons.alternatives(formula)
            return Groups.of([[self.number(row) for row in conjunction] for conjunction in alternatives])
        if depth > MAX_FORMULA_DEPTH:
            message = f"a formula is nested more than {MAX_FORMULA_DEPTH} deep"
            raise self.source.error(UnsupportedError, message, formula.at)
        if formula.connective == "and":
            return self.conjunction(
                (each for part in formula.parts for each in self.conjuncts(part, depth)), formula.at
            )
        parts: list[Groups] = []
        cases = entries = 0
        for part in formula.parts:
            more = self.disjuncts(part) if isinstance(part, SimpleRun) else self.formula(part, depth + 1)
            cases, entries = cases + len(more), entries + len(more.items)
            self.check_size(cases, entries, formula.at)
            parts.append(more)
        return Groups.chain(parts)

    def number(self, row: Constraint) -> int:
        """The number of a constraint that was read alone."""
        found = self.numbers.get(row)
        if found is None:
            found = self.numbers[row] = len(self.simple.table) + len(self.rows)
            self.rows.append(row)
        return found

    def conjuncts(self, part: Formula, depth: int) -> Iterable[Groups]:
        """The parts of a part of an `and`: a run is many."""
        if isinstance(part, SimpleRun):
            return self.members(*self.simple.places[part])
        return [self.formula(part, depth + 1)]

    def members(self, start: int, stop: int) -> Iterable[Groups]:
        """Simple comparisons that must all hold: all those with one alternative together, then each of the others."""
        first = self.simple.first[start : stop + 1]
        branching = np.flatnonzero(first[1:] - first[:-1] != 1)
        here = self.simple.alternatives.part(int(first[0]), int(first[-1]))
        if not len(branching):
            yield Groups.one(here.items)
            return
        single = np.delete(first[:-1], branching) - first[0]
        yield Groups.one(here.take(single).items)
        for one in branching.tolist():
            yield self.simple.alternatives.part(int(first[one]), int(first[one + 1]))

    def disjuncts(self, run: SimpleRun) -> Groups:
        """A run as a part of an `or`."""
        start, stop = self.simple.places[run]
        first = self.simple.first
        if run.kind == "comparisons":
            return self.simple.alternatives.part(int(first[start]), int(first[stop]))
        clauses = self.simple.clauses
        ends = np.append(clauses[slice(*clauses.searchsorted((start, stop)))], stop)
        if (first[start + 1 : stop + 1] - first[start:stop] == 1).all():
            here = self.simple.alternatives.part(int(first[start]), int(first[stop]))
            return Groups(here.starts[ends - start], here.items)
        pairs = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        return Groups.chain([self.conjunction(self.members(a, b), run.at) for a, b in pairs])

    def conjunction(self, parts: Iterable[Groups], at: int | None = None) -> Groups:
        """The alternatives of an `and`: every choice of one alternative per part."""
        single: list[Ints] = [np.zeros(0, np.int64)]
        choices: list[Groups] = []
        for part in parts:
            if len(part) == 1:
                single.append(part.items)
            else:
                choices.append(part)
        if not all(map(len, choices)):  # one part is false
            return Groups.of([])
        cases = Groups.one(np.concatenate(single))
        self.check_product([cases, *choices], at)
        for choice in choices:
            cases = cases.times(choice)
        return cases

    def check_product(self, factors: list[Groups], at: int | None) -> None:
        """Refuse what would be too large before any of it is written out."""
        count, entries = 1, 0
        for factor in factors:
            count, entries = count * len(factor), entries * len(factor) + len(factor.items) * count
            self.check_size(count, entries, at)

    def check_size(self, cases: int, entries: int, at: int | None) -> None:
        """Refuse a property whose cases are too many to write out."""
        if cases > MAX_CASES or entries > MAX_COMPARISONS:
            limits = f"{MAX_CASES:,} cases and {MAX_COMPARISONS:,} comparisons"
            message = f"and/or multiply out to {cases:,} cases with {entries:,} comparisons; the limits are {limits}"
            raise self.source.error(UnsupportedError, message, at)


def expand(assertions: Iterable[Formula], simple: Simple, comparisons: Comparisons, source: SourceText) -> Disjunction:
    """Multiply out the conjunction of all assertions; what holds in every case is kept apart.

    Raises
    ------
    UnsupportedError : too deep, or too many cases
    PropertyError, UnsupportedError : as `Comparisons.alternatives`
    """
    expansion = _Expansion(source, comparisons, simple, list(simple.rows))
    common = [np.zeros(0, np.int64)]
    choices: list[Groups] = []
    for part in _conjuncts(assertions):
        for alternatives in expansion.conjuncts(part, 0):
            if len(alternatives) == 1:
                common.append(alternatives.items)
            else:
                choices.append(alternatives)
    together = Groups.one(np.concatenate(common)).distinct()
    table = simple.table.with_rows(expansion.rows)
    return Disjunction(table, together.items, expansion.conjunction(choices))


def _conjuncts(assertions: Iterable[Formula]) -> Iterable[Formula]:
    """The assertions, with an `and` at the top replaced by its parts."""
    pending = list(assertions)[::-1]
    while pending:
        formula = pending.pop()
        if isinstance(formula, Junction) and formula.connective == "and":
            pending.extend(reversed(formula.parts))
        else:
            yield formula
