"""What the runs came to: the tables of a report, and what has no verdict."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bnn_vnnlib.display import digits
from bnn_vnnlib.report.guarantee import GuaranteeWords, guarantee
from bnn_vnnlib.report.page import PageTable
from bnn_vnnlib.report.row import ReportRow
from bnn_vnnlib.report.source import Conflict, ReportedRun
from bnn_vnnlib.result import Verdict

OF_COMPARISON = {
    "contradictions": "Contradictions between tools",
    "disagreements": "Statistical disagreements: one of the two holds with a confidence",
    "agreement": "How often two tools agree",
    "solved": "What each tool solved",
}
_TEXTS = {"agreement": 2, "solved": 1}
"""Columns before those of numbers; the tables of contradictions and disagreements have none."""
_SHOWN = 20
"""Names of a problem's instances on the page; the list of instances has all of them."""


@dataclass(frozen=True)
class _Problem:
    """Instances that ended without a verdict for one and the same reason.

    Attributes
    ----------
    run, verdict, reason : of all of them
    names : of the first few
    count : of all
    """

    run: str
    verdict: Verdict
    reason: str
    names: tuple[str, ...]
    count: int


def counts(runs: Sequence[ReportedRun]) -> PageTable:
    """How often each verdict, by run, benchmark and query."""
    found: dict[tuple[str, ...], Counter[Verdict]] = defaultdict(Counter)
    seconds: dict[tuple[str, ...], float] = defaultdict(float)
    for run in runs:
        for row in run.rows:
            place = (run.label, row.category, row.query.value if row.query else "not known")
            found[place][row.verdict] += 1
            seconds[place] += row.seconds
    words = (Verdict.UNSAT, Verdict.SAT, Verdict.UNKNOWN, Verdict.TIMEOUT, Verdict.ERROR)
    rows = [(*place, *(str(count[word]) for word in words), str(count.total()), f"{seconds[place]:.1f}")
            for place, count in found.items()]  # fmt: skip
    head = ("run", "benchmark", "query", *(word.value for word in words), "all", "seconds")
    return PageTable("counts", "Verdicts by run, benchmark and query", head, tuple(rows), frozenset(range(3, 10)))


def instances(rows: Sequence[ReportRow]) -> PageTable:
    """One line an instance. Six digits, bounds rounded outward; all digits are in the run's own table.csv."""
    head = ("run", "benchmark", "network", "property", "query", "verdict", "guarantee", "P_safe lower", "P_safe upper",
            "D lower", "D upper", "seconds", "checked", "reason")  # fmt: skip
    return PageTable(
        "instances", "Instances", head, tuple(_instance(row) for row in rows), frozenset({7, 8, 9, 10, 11})
    )


def _instance(row: ReportRow) -> tuple[str, ...]:
    p_low, p_high = ("", "") if row.p_safe is None else (_low(row.p_safe[0]), _high(row.p_safe[1]))
    d_low, d_high = ("", "") if row.decision is None else (
        " ".join(map(_low, row.decision[0])), " ".join(map(_high, row.decision[1])))  # fmt: skip
    kind = row.guarantee if row.confidence is None else f"statistical, confidence {row.confidence!r}"
    return (row.run, *row.names, row.query or "", row.verdict.value, kind, p_low, p_high, d_low, d_high,
            f"{row.seconds:.4g}", row.checks or "", row.reason or "")  # fmt: skip


def _low(value: float) -> str:
    return digits(value, down=True)


def _high(value: float) -> str:
    return digits(value, down=False)


def disagreements(found: Sequence[Conflict]) -> PageTable:
    """Rows of ours that cannot both be right."""
    rows = [(one.what, *one.first.names, *(_answer(row) for row in (one.first, one.second))) for one in found]
    head = ("conflict", "benchmark", "network", "property", "first", "second")
    return PageTable("conflicts", "Results that exclude each other", head, tuple(rows))


def _answer(row: ReportRow) -> str:
    bounds = "" if row.p_safe is None else f" [{_low(row.p_safe[0])}, {_high(row.p_safe[1])}]"
    return f"{row.run}: {row.verdict.value}{bounds}"


def of_comparison(tables: Mapping[str, tuple[tuple[str, ...], ...]]) -> list[PageTable]:
    """The tables that `compare` wrote; lines that are cut off are filled up."""
    found = []
    for name, title in OF_COMPARISON.items():
        head, *rows = tables.get(name) or ((),)
        if head:
            width = len(head)
            lines = tuple((*row, *[""] * width)[:width] for row in rows)
            found.append(PageTable(name, title, head, lines, frozenset(range(_TEXTS.get(name, width), width))))
    return found


def problems(rows: Sequence[ReportRow]) -> list[_Problem]:
    """Everything without a verdict, errors first; `unknown` is none: its bounds are the answer."""
    groups: dict[tuple[str, Verdict, str], list[str]] = defaultdict(list)
    for row in rows:
        if row.verdict in (Verdict.ERROR, Verdict.TIMEOUT):
            groups[row.run, row.verdict, row.reason or _unsaid(row)].append(" ".join(row.names))
    order = sorted(groups, key=lambda group: (group[1] is not Verdict.ERROR, -len(groups[group])))
    return [_Problem(*group, tuple(groups[group][:_SHOWN]), len(groups[group])) for group in order]


def _unsaid(row: ReportRow) -> str:
    """The reason of a row that records none."""
    if row.verdict is Verdict.ERROR:
        return "no reason is recorded"
    bounded = row.p_safe is not None or row.decision is not None
    return "the time limit came before a verdict" + ("; the bounds so far are valid" if bounded else "")


def guarantees(rows: Sequence[ReportRow]) -> list[tuple[str, str, GuaranteeWords, int]]:
    """(query, verdict, words, how many) of every kind of certificate among the rows."""
    found: Counter[tuple[str, str, GuaranteeWords]] = Counter(
        (row.query.value if row.query else "not known", row.verdict.value, guarantee(row)) for row in rows
    )
    return [(*kind, count) for kind, count in sorted(found.items(), key=lambda item: item[0][:2])]


def settings(runs: Sequence[ReportedRun]) -> PageTable:
    """How each run was made: its run.json, thresholds, seeds, limits, versions and models as the records have them."""
    rows: list[tuple[str, str, str]] = []
    for run in runs:
        rows += [(run.label, name, json.dumps(value)) for name, value in run.settings.items()]
        for name in ("tau_safe", "tau_unsafe", "rule", "seed", "timeout"):
            rows.append((run.label, name, _distinct(getattr(row, name) for row in run.rows)))
        programs = list(dict.fromkeys(name for row in run.rows for name in row.versions))
        rows += [
            (run.label, f"version of {name}", _distinct(row.versions.get(name) for row in run.rows))
            for name in programs
        ]
        models = dict.fromkeys((row.network, row.hashes["model"]) for row in run.rows if "model" in row.hashes)
        rows += [(run.label, f"SHA-256 of {network}", digest) for network, digest in models]
    return PageTable("settings", "Settings and versions", ("run", "what", "value"), tuple(rows))


def _distinct(values: Iterable[object]) -> str:
    """All values that occur; whole numbers without a point."""
    known = (int(value) if isinstance(value, float) and value.is_integer() else value for value in values)
    return ", ".join(dict.fromkeys(str(value) for value in known if value is not None)) or "none"
