"""The generated reference is what the code says, and what the code says is true of the files."""

from __future__ import annotations

import csv
import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bnn_vnnlib import Bounds, DecisionBounds, Query, Result, Verdict, Witness
from bnn_vnnlib.cli import app
from bnn_vnnlib.cli.commands import COMMANDS
from bnn_vnnlib.files.sidecar import RECORD, record, unfinished
from bnn_vnnlib.result import Asked, Diagnosis, Rule, Statistics
from bnn_vnnlib.runs.compare import TABLES, Line, ToolAnswer, write_comparison
from bnn_vnnlib.runs.records import Entry
from bnn_vnnlib.runs.tables import RESULTS, write_tables

ROOT = Path(__file__).resolve().parents[1]
PAGES: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["pages"]()
OPEN = ("witness.check", "details")  # whatever there is to say
ROLES = {
    "files.": "files.ROLE",
    "sha256.": "sha256.ROLE",
    "versions.": "versions.NAME",
    "diagnosis.loss.": "diagnosis.loss.PART",
}


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_not_stale(name):
    """After a change of an option or a column: python scripts/reference.py"""
    assert (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") == PAGES[name]


@pytest.mark.parametrize("function", COMMANDS, ids=lambda function: function.__name__)
def test_every_option_of_the_help_is_in_the_reference(function):
    """The help is made by typer, the reference from the same annotations by a way of its own."""
    name = function.__name__.replace("_", "-")
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300", "TERM": "dumb"}).stdout
    section = PAGES["command-line.md"].split(f"## bnn-vnnlib {name}\n")[1].split("\n## ")[0]
    options = set(re.findall(r"^[^\w]*(--[a-z][a-z-]*)", shown, re.MULTILINE)) - {"--help"}
    assert options, shown
    assert options <= set(re.findall(r"--[a-z][a-z-]*", section))


def paths(value: Any, at: str = "") -> Iterator[str]:
    """Every key of a record as the reference spells it."""
    for start, role in ROLES.items():
        if at.startswith(start):
            at = role
    if isinstance(value, Mapping) and at not in OPEN:
        for key, item in value.items():
            yield from paths(item, f"{at}.{key}".removeprefix("."))
    elif isinstance(value, list):
        yield f"{at}[{'r' if '.rows.' in at else 'i'}]"
    else:
        yield at


def full(tmp_path: Path) -> dict[str, Any]:
    one = np.ones(2)
    diagnosis = Diagnosis("weak bound", "so", 2, 0.5, 0.1, ("Y_0 <= 0",), {"layer 1": 1.0}, "time", "it", ("that",),
                          0.5, ("a", "b"), "more", False, 0.1)  # fmt: skip
    result = Result(
        Verdict.SAT, Query.DECISION, 0.9, 0.8, "m", 1.0, Bounds(0, 1), DecisionBounds(one, one, one, one),
        Witness(one, one, "that", {"a": 1}, (one,)), ("note",), Rule.MEAN, {"b": {"c": 2}}, Asked("that", "this", None),
        diagnosis, Statistics(0.9, 3, 1, 1, 1, 0, "bits"),
    )  # fmt: skip
    return record(result, {"property": tmp_path / "p", "model": tmp_path / "m"}, seed=0, timeout=1.0)


def test_every_key_of_a_record_has_a_meaning_and_every_meaning_a_key(tmp_path):
    assert set(paths(full(tmp_path))) == set(RECORD)
    nothing = unfinished(Verdict.ERROR, "why", {}, query=None, seed=0, timeout=None, time_s=0.0)
    assert {key.split(".")[0].split("[")[0] for key in RECORD} == set(nothing)


def rows(path: Path) -> list[list[str]]:
    with path.open() as stream:
        return list(csv.reader(stream))


def test_the_tables_have_the_described_columns(tmp_path):
    run = {"category": "c", "network": "n", "property": "p", "prepare_time": 0.1, "run_time": 0.2, "checked": None}
    write_tables(tmp_path, [Entry(tmp_path / "x.txt", {**full(tmp_path), "run": run})])
    (row,) = rows(tmp_path / "results.csv")
    assert dict(zip(RESULTS, row, strict=True))["result"] == "unknown"  # the record has a confidence
    answers = {tool: ToolAnswer(Verdict.UNSAT, 1.0) for tool in ("one", "two")}
    write_comparison(tmp_path, [Line("c", "n", "p", "mean", "mean", answers)])
    for name, columns in TABLES.items():
        head = rows(tmp_path / name)[0]
        described = list(columns)
        if name == "comparison.csv":
            parts = [column for column in described if column.startswith("TOOL: ")]
            described = [column for column in described if column not in parts]
            described += [part.replace("TOOL", tool) for tool in answers for part in parts]
        assert head == [column for entry in described for column in entry.split(", ")]
