"""Folders that `run` and `compare` wrote -> runs of rows.

1. `read_folder`: a folder to its runs.
2. Runs side by side: which entries are about one instance, and which of their verdicts cannot both be right.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from bnn_vnnlib.certificates.checked import outcome
from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.sidecar import read_object, sidecar_path
from bnn_vnnlib.readers import read_rows, read_start
from bnn_vnnlib.report.row import ReportRow, Vector, read_row
from bnn_vnnlib.result import Query, Verdict
from bnn_vnnlib.runs.compare import OURS
from bnn_vnnlib.runs.tables import published

# 1. Folders

_Names = tuple[str, str, str]
_COMPARISON = ("contradictions.csv", "disagreements.csv", "agreement.csv", "solved.csv")
_VARIANT = re.compile(r"plain|mean|merged|draw_\d+")
_OWN = frozenset({OURS, *(f"{OURS} {query}" for query in Query)})


@dataclass(frozen=True)
class ReportedRun:
    """One run.

    Attributes
    ----------
    label : in tables and plots; unlike that of every other run of a report
    settings : its run.json; empty where there is none
    rows : its finished instances, by path
    """

    label: str
    settings: Mapping[str, Any]
    rows: tuple[ReportRow, ...]


@dataclass(frozen=True)
class ReportedFolder:
    """What a folder holds.

    Attributes
    ----------
    folder : as given
    runs : one, or one for each tool of a comparison
    comparison : whether `compare` wrote it
    tables : of a comparison, by file name without suffix, the head first; absent where it is not finished
    same : of a comparison: (label, names) of a query on the BNN -> names of the plain network with the same answer
    """

    folder: Path
    runs: tuple[ReportedRun, ...]
    comparison: bool = False
    tables: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    same: Mapping[tuple[str, _Names], _Names] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[ReportRow, ...]:
        """The rows of all runs, in the order of the runs."""
        return tuple(row for run in self.runs for row in run.rows)


def read_folder(folder: Path, mark: str = "") -> ReportedFolder:
    """Read a folder of `run` or of `compare`.

    Parameters
    ----------
    folder : see above
    mark : put in front of the labels

    Raises
    ------
    InputError : no such folder; nothing finished in it; a damaged file, by its path
    """
    if not folder.is_dir():
        what = "is a file, expected a folder" if folder.exists() else "no such folder; expected one"
        raise InputError(f"{what} that `bnn-vnnlib run` or `compare` wrote", path=folder)
    source = _comparison(folder, mark) if (folder / "runs").is_dir() else _run(folder, mark)
    if not source.rows:
        raise InputError("nothing is finished in this folder; expected one that `bnn-vnnlib run` or `compare` wrote",
                         path=folder)  # fmt: skip
    return source


def _run(folder: Path, mark: str) -> ReportedFolder:
    label = mark or folder.resolve().name
    return ReportedFolder(folder, (_read_run(label, folder, folder),))


def _comparison(folder: Path, mark: str) -> ReportedFolder:
    """A row knows whose word it is, which plain network it is about, and how its sat was checked."""
    checked, same = _answers(_table(folder / "comparison.csv") or ((),))
    prefix = f"{mark}: " if mark else ""
    runs = []
    for place in sorted((path for path in (folder / "runs").iterdir() if path.is_dir()), key=_ours_first):
        run = _read_run(f"{prefix}{place.name}", place, folder)
        rows = tuple(_compared(row, place.name, checked.get((place.name, row.names))) for row in run.rows)
        runs += [ReportedRun(run.label, run.settings, rows)] if rows else []
    tables = {Path(name).stem: table for name in _COMPARISON if (table := _table(folder / name))}
    labelled = {(f"{prefix}{tool}", asked): names for (tool, asked), names in same.items()}
    return ReportedFolder(folder, tuple(runs), True, tables, labelled)


def _ours_first(place: Path) -> tuple[bool, str]:
    return place.name not in _OWN, place.name


def _compared(row: ReportRow, tool: str, checked: str | None) -> ReportRow:
    _, at, variant = row.network.rpartition("@")
    plain = at and row.query is Query.DETERMINISTIC and _VARIANT.fullmatch(variant)
    theirs = None if tool in _OWN else tool
    return replace(row, variant=variant if plain else None, tool=theirs, checked=checked or row.checked)


def _answers(
    lines: tuple[tuple[str, ...], ...],
) -> tuple[dict[tuple[str, _Names], str], dict[tuple[str, _Names], _Names]]:
    """What comparison.csv adds to the records: checks of witnesses, and which questions have the same answer."""
    checked: dict[tuple[str, _Names], str] = {}
    same: dict[tuple[str, _Names], _Names] = {}
    head, *rest = lines
    tools = [cell.removesuffix(": result") for cell in head if cell.endswith(": result")]
    for line in rest:
        cells = dict(zip(head, line, strict=False))
        category, network, prop = (cells.get(name, "") for name in ("category", "network", "property"))
        names = (category, f"{network}@{cells.get('variant', '')}", prop)
        for tool in tools:
            if cells.get(f"{tool}: checked"):
                checked[tool, names] = cells[f"{tool}: checked"]
            if tool in _OWN and tool != OURS and cells.get(f"{tool}: result"):
                same[tool, (category, network, prop)] = names
    return checked, same


def _read_run(label: str, folder: Path, base: Path) -> ReportedRun:
    settings = folder / "run.json"
    values = read_object(settings, "delete it, or run again") if settings.is_file() else {}
    return ReportedRun(label, values, tuple(_rows(label, folder, base)))


def _rows(label: str, folder: Path, base: Path) -> Iterator[ReportRow]:
    """An instance is finished when its results file is there, beside the record."""
    for results in sorted((folder / "instances").glob("*/*.txt")):
        path = sidecar_path(results)
        if not path.is_file():
            continue
        again = "delete it to have its instance run again"
        record = read_object(path, again)
        row = read_row(label, path.relative_to(base).as_posix(), record, path)
        row = replace(row, certificate=outcome(record, results))
        said = _first_word(results)
        if said != published(record):
            raise InputError(f"the results file says {said!r} and its record {row.verdict.value!r}; {again}",
                             path=results)  # fmt: skip
        yield row


def _first_word(path: Path) -> str:
    try:
        return (read_start(path, 100).decode().split(maxsplit=1) or [""])[0]
    except UnicodeDecodeError:
        raise InputError("is no text, expected a results file", path=path) from None


def _table(path: Path) -> tuple[tuple[str, ...], ...]:
    """A CSV file; nothing where there is none."""
    if not path.is_file():
        return ()
    try:
        return tuple(tuple(row) for _, row in read_rows(path))
    except InputError as error:
        raise InputError(f"{error.message}; run the comparison again", path=path, line=error.line) from None


# 2. Runs side by side


@dataclass(frozen=True)
class Conflict:
    """Two rows of ours about the same files that cannot both be right: a fault of the program, or a forged record; or,
    where one of them has a confidence, one of the rare runs that are wrong."""

    first: ReportRow
    second: ReportRow
    what: str


def instance_keys(runs: Sequence[ReportedRun], same: Mapping[tuple[str, _Names], _Names]) -> list[int]:
    """A number for every row of all runs, in their order; rows of the same instance share it.

    Rows of one run never share a number: where it has the same names several times, the first belongs to the first of
    another run, and so on. `same` is that of `ReportedFolder`.
    """
    numbers: dict[tuple[_Names, int], int] = {}
    keys = []
    for run in runs:
        seen: Counter[_Names] = Counter()
        for row in run.rows:
            names = same.get((run.label, row.names), row.names)
            seen[names] += 1
            keys.append(numbers.setdefault((names, seen[names]), len(numbers)))
    return keys


def conflicts(rows: Sequence[ReportRow], keys: Sequence[int]) -> Iterator[Conflict]:
    """Every pair of our own rows of one instance, of the same files, query and rule, that contradict each other."""
    together: dict[int, list[ReportRow]] = defaultdict(list)
    for row, key in zip(rows, keys, strict=True):
        if row.tool is None:
            together[key].append(row)
    for group in together.values():
        for first, second in combinations(group, 2):
            what = _conflict(first, second) if _same_question(first, second) else None
            if what is not None and first.guarantee != second.guarantee:
                what = f"statistical disagreement: {what}"
            if what is not None:
                yield Conflict(first, second, what)


def _same_question(first: ReportRow, second: ReportRow) -> bool:
    known = first.hashes.keys() == second.hashes.keys() != set()
    return known and first.hashes == second.hashes and (first.query, first.rule) == (second.query, second.rule)


def _conflict(first: ReportRow, second: ReportRow) -> str | None:
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
