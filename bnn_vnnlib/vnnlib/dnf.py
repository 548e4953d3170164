"""Nested and/or to cases: an or of conjunctions of constraints, each constraint stored once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.vnnlib.linear import MAX_DEPTH, Bound, Comparisons, Row
from bnn_vnnlib.vnnlib.source import Source
from bnn_vnnlib.vnnlib.tree import Compare, Junction

MAX_CASES = 1_000_000
MAX_ENTRIES = 20_000_000

Conjunction = tuple[int, ...]  # indices of constraints


@dataclass(frozen=True)
class Disjunction:
    """The assertions as: all constraints of `common`, and all those of one of the `cases` (indices)."""

    constraints: list[Bound | Row]
    common: Conjunction
    cases: list[Conjunction]


@dataclass
class _Expansion:
    """The walk over the formulas, with the constraints met so far."""

    source: Source
    comparisons: Comparisons
    constraints: list[Bound | Row] = field(default_factory=list)
    seen: dict[tuple[str, str, str], list[Conjunction]] = field(default_factory=dict)

    def formula(self, formula: Compare | Junction, depth: int = 1) -> list[Conjunction]:
        """The alternatives of a formula."""
        if isinstance(formula, Compare):
            return self.comparison(formula)
        if depth > MAX_DEPTH:
            message = f"a formula is nested more than {MAX_DEPTH} deep"
            raise self.source.error(UnsupportedError, message, formula.at)
        if formula.connective == "and":
            return self.conjunction((self.formula(part, depth + 1) for part in formula.parts), formula.at)
        alternatives: list[Conjunction] = []
        entries = 0
        for part in formula.parts:
            more = self.formula(part, depth + 1)
            entries += sum(map(len, more))
            self.check_size(len(alternatives) + len(more), entries, formula.at)
            alternatives.extend(more)
        return alternatives

    def comparison(self, comparison: Compare) -> list[Conjunction]:
        """The alternatives of a comparison, the same for every repetition of it."""
        left, right = comparison.left, comparison.right
        if not (isinstance(left, str) and isinstance(right, str)):
            return self.add(comparison)
        key = (comparison.operator, left, right)
        found = self.seen.get(key)
        if found is None:
            found = self.seen[key] = self.add(comparison)
        return found

    def add(self, comparison: Compare) -> list[Conjunction]:
        """Store the constraints of a new comparison."""
        alternatives = []
        for conjunction in self.comparisons.alternatives(comparison):
            start = len(self.constraints)
            self.constraints.extend(conjunction)
            alternatives.append(tuple(range(start, len(self.constraints))))
        return alternatives

    def conjunction(self, parts: Iterable[list[Conjunction]], at: int | None = None) -> list[Conjunction]:
        """Every choice of one alternative per part."""
        single: list[int] = []
        choices: list[list[Conjunction]] = []
        for part in parts:
            if len(part) == 1:
                single.extend(part[0])
            else:
                choices.append(part)
        if not all(choices):  # one part is false
            return []
        cases: list[Conjunction] = [tuple(single)]
        for choice in choices:
            count = len(cases) * len(choice)
            entries = sum(map(len, cases)) * len(choice) + sum(map(len, choice)) * len(cases)
            self.check_size(count, entries, at)
            cases = [first + second for first in cases for second in choice]
        return cases

    def check_size(self, cases: int, entries: int, at: int | None) -> None:
        """Refuse a property whose cases are too many to write out."""
        if cases > MAX_CASES or entries > MAX_ENTRIES:
            limits = f"{MAX_CASES:,} cases and {MAX_ENTRIES:,} comparisons"
            message = f"and/or multiply out to {cases:,} cases with {entries:,} comparisons; the limits are {limits}"
            raise self.source.error(UnsupportedError, message, at)


def expand(assertions: Iterable[Compare | Junction], comparisons: Comparisons, source: Source) -> Disjunction:
    """Multiply out the conjunction of all assertions; what holds in every case is kept apart.

    Raises
    ------
    UnsupportedError : too deep, or too many cases
    PropertyError, UnsupportedError : as `Comparisons.alternatives`
    """
    expansion = _Expansion(source, comparisons)
    common: dict[int, None] = {}
    choices: list[list[Conjunction]] = []
    for part in _conjuncts(assertions):
        alternatives = expansion.formula(part)
        if len(alternatives) == 1:
            common.update(dict.fromkeys(alternatives[0]))
        else:
            choices.append(alternatives)
    return Disjunction(expansion.constraints, tuple(common), expansion.conjunction(choices))


def _conjuncts(assertions: Iterable[Compare | Junction]) -> Iterable[Compare | Junction]:
    """The assertions, with an `and` at the top replaced by its parts."""
    pending = list(assertions)[::-1]
    while pending:
        formula = pending.pop()
        if isinstance(formula, Junction) and formula.connective == "and":
            pending.extend(reversed(formula.parts))
        else:
            yield formula
