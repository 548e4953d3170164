"""Runs of simple comparisons to arrays: operators and atoms by number."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.vnnlib.tree import Compare, Junction, Run, is_number

Ints = NDArray[np.int64]
OPERATORS = (">=", ">", "<=", "<", "=", "==", "!=")
AND = len(OPERATORS)
_COMPARISON = re.compile(r"\([ \t\r\n]*[<>=!]")


@dataclass(frozen=True, eq=False)
class Runs:
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
    runs: list[Run]
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
        return [atom for atom in self.atoms[AND + 1 :] if is_number(atom)]


def read_runs(assertions: Iterable[Compare | Junction | Run]) -> Runs:
    """Gather the runs of all formulas."""
    known = (*OPERATORS, "and")
    numbers = defaultdict(count(len(known)).__next__, zip(known, range(len(known)), strict=True))
    runs, parts = [*_leaves(assertions)], [np.zeros(0, np.int32)]
    for run in runs:
        words = run.words()
        if run.kind == "assertions":
            del words[::4]  # assert
        parts.append(np.fromiter(map(numbers.__getitem__, words), np.int32, len(words)))
    codes = np.concatenate(parts)
    ands = np.flatnonzero(codes == AND)  # the grammar lets no variable be named so
    clauses = (ands - np.arange(len(ands))) // 3
    first = np.array([*map(len, parts)]).cumsum()
    first = (first - ands.searchsorted(first)) // 3
    operators, left, right = np.delete(codes, ands).reshape(-1, 3).T.astype(np.int64)
    return Runs(list(numbers), operators, left, right, runs, first, clauses)


def _leaves(assertions: Iterable[Compare | Junction | Run]) -> Iterable[Run]:
    pending = list(assertions)[::-1]
    while pending:
        formula = pending.pop()
        if isinstance(formula, Run):
            yield formula
        elif isinstance(formula, Junction):
            pending.extend(reversed(formula.parts))
