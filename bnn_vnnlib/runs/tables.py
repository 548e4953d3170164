"""The tables of a run: the competition's results.csv, and one with the bounds, as CSV and (with pyarrow) Parquet; and
what the run came to, counted, with reasons where nothing was decided.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.printable import printable
from bnn_vnnlib.readers import table_text
from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.records import Entry, reason_of
from bnn_vnnlib.system.durable import replacing

ColumnKind = Literal["text", "number", "numbers"]
Record = Mapping[str, Any]


@dataclass(frozen=True)
class _Column:
    """A column of the table with the bounds.

    Attributes
    ----------
    name, meaning : for people
    kind : text, number, or numbers (in CSV a JSON list)
    value : from an instance's record
    """

    name: str
    kind: ColumnKind
    meaning: str
    value: Callable[[Record], Any]


def _at(*path: str) -> Callable[[Record], Any]:
    """The value at a path in the record; None where some of it is missing."""

    def value(record: Record) -> Any:
        found: Any = record
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    return value


COLUMNS = (
    _Column("category", "text", "the benchmark", _at("run", "category")),
    _Column("network", "text", "the network's cell in instances.csv", _at("run", "network")),
    _Column("property", "text", "the property's cell in instances.csv", _at("run", "property")),
    _Column("result", "text", "sat, unsat, unknown, timeout or error", _at("verdict")),
    _Column("query", "text", "what was asked; empty where the run ended before that was known", _at("query")),
    _Column(
        "vacuous",
        "text",
        "why nothing can violate the property, whatever the network: its unsat proves nothing",
        _at("asked", "vacuous"),
    ),
    _Column("tau_safe", "number", "unsat if P_safe is at least this (query probabilistic)", _at("tau_safe")),
    _Column("tau_unsafe", "number", "sat if P_safe is below this (query probabilistic)", _at("tau_unsafe")),
    _Column("p_safe_lower", "number", "guaranteed lower bound on P_safe", _at("p_safe", "lower")),
    _Column("p_safe_upper", "number", "guaranteed upper bound on P_safe", _at("p_safe", "upper")),
    _Column("decision_lower", "numbers", "guaranteed lower bounds on D over T, by output", _at("decision", "lower")),
    _Column("decision_upper", "numbers", "guaranteed upper bounds on D over T, by output", _at("decision", "upper")),
    _Column("row_lower", "numbers", "the same on each of the property's rows", _at("decision", "rows", "lower")),
    _Column("row_upper", "numbers", "the same on each of the property's rows", _at("decision", "rows", "upper")),
    _Column("guarantee", "text", "certain, or statistical: result and bounds hold with a confidence", _at("guarantee")),
    _Column("confidence", "number", "statistical: that of each interval, over the draws", _at("confidence")),
    _Column("draws_counted", "number", "statistical: networks drawn and counted", _at("draws", "counted")),
    _Column("draws_safe", "number", "of these, proved safe; both under query probabilistic", _at("draws", "safe")),
    _Column("draws_violating", "number", "of these, proved to violate", _at("draws", "violating")),
    _Column("draws_open", "number", "of these, those of which nothing is proved", _at("draws", "open")),
    _Column("method", "text", "what gave the bounds", _at("method")),
    _Column(
        "cause",
        "text",
        "likely cause where nothing was decided: weak network, weak bound or between",
        _at("diagnosis", "cause"),
    ),
    _Column("timeout", "number", "time limit in seconds", _at("timeout")),
    _Column("time", "number", "seconds that solving took, by its own clock", _at("time_s")),
    _Column(
        "start", "number", "seconds before that: libraries that were not loaded yet, reading the files", _at("start_s")
    ),
    _Column("prepare_time", "number", "seconds for a process that was ready to work", _at("run", "prepare_time")),
    _Column("run_time", "number", "seconds as seen from outside, reading the files included", _at("run", "run_time")),
    _Column("seed", "number", "seed of attacks and sampled boxes", _at("seed")),
    _Column("checked", "text", "what check-witness said of a sat, if it was asked to", _at("run", "checked")),
    _Column(
        "certificate",
        "text",
        "what the certificate claims: unsat, sat, or bound, which is less than the answer",
        _at("details", "certificate", "verdict"),
    ),
    _Column("reason", "text", "why there is no verdict", reason_of),
)
"""The columns, in the order of the table. The file's path comes first, as the column `results_file`."""

RESULTS = {
    "category": "the benchmark; with several queries BENCHMARK:QUERY",
    "network": "the network's cell in instances.csv",
    "property": "the property's cell in instances.csv",
    "prepare_time": "seconds for a process that was ready to work",
    "result": "sat, unsat, unknown, timeout or error; unknown for a verdict with a confidence, which table.csv has",
    "run_time": "seconds as seen from outside, reading the files included",
}
"""The competition's columns, in its order."""


def write_tables(folder: Path, entries: Iterable[Entry]) -> list[Path]:
    """Write the tables of a run into its folder.

    Parameters
    ----------
    folder : of the run
    entries : its finished instances, in the order of the tables

    Returns
    -------
    the files: results.csv, table.csv, and table.parquet if pyarrow is installed
    """
    entries = list(entries)
    write_text(folder / "results.csv", table_text([_result_row(entry.record) for entry in entries]))
    names = [entry.results.relative_to(folder).as_posix() for entry in entries]
    columns = {column.name: [_typed(column, entry.record) for entry in entries] for column in COLUMNS}
    columns = {"results_file": names, **columns}
    rows = zip(*columns.values(), strict=True)
    write_text(folder / "table.csv", table_text([list(columns), *([_cell(value) for value in row] for row in rows)]))
    written = [folder / "results.csv", folder / "table.csv"]
    return [*written, folder / "table.parquet"] if _write_parquet(folder / "table.parquet", columns) else written


def _result_row(record: Record) -> list[str]:
    """category,network,property,prepare_time,result,run_time"""
    run = record["run"]
    names = [run["category"], run["network"], run["property"]]
    return [*names, f"{run['prepare_time']:.6f}", published(record), f"{run['run_time']:.6f}"]


def published(record: Record) -> str:
    """The verdict in files of the competition: unknown for one that holds with a confidence only."""
    certain = record.get("guarantee") != "statistical" or record["verdict"] not in (Verdict.SAT, Verdict.UNSAT)
    return str(record["verdict"]) if certain else Verdict.UNKNOWN.value


def _typed(column: _Column, record: Record) -> Any:
    """The value in the column's type; the record's "Infinity" is a number again."""
    value = column.value(record)
    match column.kind:
        case "text":
            return printable(value, lines=True) if isinstance(value, str) else value
        case "number":
            return None if value is None else float(value)
        case "numbers":
            return None if value is None else [float(number) for number in value]


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case list():
            return json.dumps([number if abs(number) != float("inf") else str(number) for number in value])
        case float():
            return repr(value)
        case _:
            return str(value)


def _write_parquet(path: Path, columns: Mapping[str, list[Any]]) -> bool:
    """Whether it could be written: pyarrow is an extra. A file of an earlier state never stays beside a newer CSV."""
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        path.unlink(missing_ok=True)
        return False
    types = {"text": pa.string(), "number": pa.float64(), "numbers": pa.list_(pa.float64())}
    fields = [pa.field("results_file", pa.string())]
    fields += [pa.field(c.name, types[c.kind], metadata={"meaning": c.meaning}) for c in COLUMNS]
    with replacing(path) as stream:
        pq.write_table(pa.table(dict(columns), schema=pa.schema(fields)), stream)
    return True


def by_category(entries: Iterable[Entry]) -> list[tuple[str, Counter[Verdict], float]]:
    """(category, how often each verdict, seconds in all), in the order of the entries."""
    counts: dict[str, Counter[Verdict]] = {}
    seconds: Counter[str] = Counter()
    for entry in entries:
        run = entry.record["run"]
        counts.setdefault(run["category"], Counter())[entry.verdict] += 1
        seconds[run["category"]] += run["run_time"]
    return [(category, count, seconds[category]) for category, count in counts.items()]


def causes(entries: Iterable[Entry]) -> str | None:
    """Why nothing was decided: `12 unknown or timeout: 9 weak bound (5 layer 1), 3 weak network`; None if all was.

    With each cause the part of the question in which most of these bounds lose most.
    """
    parts: dict[str, Counter[str]] = {}
    for entry in entries:
        if entry.verdict in (Verdict.UNKNOWN, Verdict.TIMEOUT):
            found = entry.record.get("diagnosis") or {}
            loss: dict[str, float] = found.get("loss") or {}
            most = max(loss.items(), key=lambda part: part[1])[0] if loss else ""
            parts.setdefault(found.get("cause", "not known"), Counter())[most] += 1
    if not parts:
        return None
    ordered = sorted(parts.items(), key=lambda one: -one[1].total())
    texts = []
    for cause, counts in ordered:
        named = [(count, part) for part, count in counts.most_common() if part][:1]
        texts.append(f"{counts.total()} {cause}" + "".join(f" ({count} {part})" for count, part in named))
    return f"{sum(counts.total() for counts in parts.values())} unknown or timeout: {', '.join(texts)}"


def first_reasons(reasons: Iterable[str | None], most: int = 3) -> list[str]:
    """The most frequent reasons, in words, the first of them first among equals."""
    counts = Counter(reason or "no reason is known" for reason in reasons)
    lines = [f"{count} times: {reason}" if count > 1 else reason for reason, count in counts.most_common(most)]
    rest = len(counts) - len(lines)
    return [*lines, f"and {rest} other reasons: see the column `reason` of table.csv"] if rest else lines
