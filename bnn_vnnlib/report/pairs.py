"""Runs side by side: which entries are about one instance, and which of their verdicts cannot both be right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from bnn_vnnlib.report.row import Row, Vector
from bnn_vnnlib.report.source import Names, Run
from bnn_vnnlib.result import Query, Verdict


@dataclass(frozen=True)
class Conflict:
    """Two rows of ours about the same files that cannot both be right: a fault of the program, or a forged record."""

    first: Row
    second: Row
    what: str


def instance_keys(runs: Sequence[Run], same: Mapping[tuple[str, Names], Names]) -> list[int]:
    """For every row of all runs, in their order, a number that rows of the same instance share.

    Rows of one run never share a number: where it has the same names several times, the first belongs to the first of
    another run, and so on. `same` is that of `Source`.
    """
    numbers: dict[tuple[Names, int], int] = {}
    keys = []
    for run in runs:
        seen: Counter[Names] = Counter()
        for row in run.rows:
            names = same.get((run.label, row.names), row.names)
            seen[names] += 1
            keys.append(numbers.setdefault((names, seen[names]), len(numbers)))
    return keys


def conflicts(rows: Sequence[Row], keys: Sequence[int]) -> Iterator[Conflict]:
    """Every pair of our own rows of one instance, of the same files, query and rule, that contradict each other."""
    together: dict[int, list[Row]] = defaultdict(list)
    for row, key in zip(rows, keys, strict=True):
        if row.tool is None:
            together[key].append(row)
    for group in together.values():
        for first, second in combinations(group, 2):
            what = _conflict(first, second) if _same_question(first, second) else None
            if what is not None:
                yield Conflict(first, second, what)


def _same_question(first: Row, second: Row) -> bool:
    known = first.hashes.keys() == second.hashes.keys() != set()
    return known and first.hashes == second.hashes and (first.query, first.rule) == (second.query, second.rule)


def _conflict(first: Row, second: Row) -> str | None:
    """P_safe >= a excludes P_safe < b where a >= b; bounds on one number overlap; other queries have no thresholds."""
    if {first.verdict, second.verdict} == {Verdict.SAT, Verdict.UNSAT}:
        unsat, sat = (first, second) if first.verdict is Verdict.UNSAT else (second, first)
        apart = first.query is Query.PROBABILISTIC and (unsat.tau_safe or 0.0) < (sat.tau_unsafe or 0.0)
        if not apart:
            return "one is sat, the other unsat"
    p_safe, also = first.p_safe, second.p_safe
    if p_safe is not None and also is not None and _disjoint(*zip(p_safe, also, strict=True)):
        return "the bounds on P_safe exclude each other"
    one, other = first.decision, second.decision
    if one is not None and other is not None and len(one[0]) == len(other[0]):
        pairs = zip(zip(one[0], other[0], strict=True), zip(one[1], other[1], strict=True), strict=True)
        if any(_disjoint(lowers, uppers) for lowers, uppers in pairs):
            return "the bounds on D exclude each other"
    return None


def _disjoint(lowers: Vector, uppers: Vector) -> bool:
    return max(lowers) > min(uppers)
