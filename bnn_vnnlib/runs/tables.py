"""The tables of a run: the competition's results.csv, and one with the bounds, as CSV and (with pyarrow) Parquet."""

from __future__ import annotations

import json
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
