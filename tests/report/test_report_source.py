"""Folders -> rows: runs, comparisons, and whatever is wrong with them."""

from __future__ import annotations

import csv
import json
import math

import pytest

from bnn_vnnlib import Query, Verdict
from bnn_vnnlib.errors import InputError
from bnn_vnnlib.report.row import read_row
from bnn_vnnlib.report.source import read_folder
from support.records import decision, plain, safe, write_run

A, B = ("digits", "onnx/a.onnx", "vnnlib/a.vnnlib"), ("digits", "onnx/a.onnx", "vnnlib/b.vnnlib")


def record_of(folder, number=0):
    return sorted(folder.glob("instances/*/*.json"))[number]


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_run(tmp_path):
    folder = write_run(tmp_path / "out", (A, safe("unsat", 0.97, 1.0)), (B, "no such file"))
    first, second = read_folder(folder).rows
    assert (first.verdict, first.query, first.p_safe) == (Verdict.UNSAT, Query.PROBABILISTIC, (0.97, 1.0))
    assert (first.names, first.run, first.tool, first.variant, first.seconds) == (A, "out", None, None, 1.5)
    assert (second.verdict, second.reason, second.gap) == (Verdict.ERROR, "no such file", None)


def test_infinite_bounds_are_numbers_again(tmp_path):
    folder = write_run(tmp_path / "out", (A, decision("unknown", [-math.inf, 0.0], [1.0, math.inf])))
    (row,) = read_folder(folder).rows
    assert row.decision == ((-math.inf, 0.0), (1.0, math.inf))
    assert row.gap == math.inf


@pytest.mark.parametrize("missing", ["record", "results file"])
def test_what_is_not_finished_is_left_out(tmp_path, missing):
    folder = write_run(tmp_path / "out", (A, plain("unsat")), (B, plain("unsat")))
    record = record_of(folder)
    (record if missing == "record" else record.with_suffix("")).unlink()
    assert [row.names for row in read_folder(folder).rows] == [B]


@pytest.fixture
def comparison(tmp_path):
    """A run of ours, our decision, and another tool that names a network with an @ of its own."""
    folder = tmp_path / "compared"
    mean, merged = (("digits", f"onnx/a.onnx@{variant}", "p") for variant in ("mean", "merged"))
    write_run(folder / "runs/bnn-vnnlib", (mean, plain("unsat")), (merged, plain("sat")))
    write_run(folder / "runs/bnn-vnnlib decision", (("digits", "onnx/a.onnx", "p"), decision("sat", [0.0], [1.0])))
    write_run(folder / "runs/another", (mean, plain("sat")), (merged, plain("sat")))
    tools = ("bnn-vnnlib", "another", "bnn-vnnlib decision")
    head = ["category", "network", "property", "kind", "variant"]
    head += [f"{tool}: {part}" for tool in tools for part in ("result", "time", "checked")]
    lines = [
        ["digits", "onnx/a.onnx", "p", "mean", "mean", "unsat", "1", "", "sat", "1", "invalid", "", "", ""],
        [
            "digits",
            "onnx/a.onnx",
            "p",
            "merged",
            "merged",
            "sat",
            "1",
            "valid",
            "sat",
            "1",
            "valid",
            "sat",
            "1",
            "valid",
        ],
    ]
    for name, rows in (("comparison", [head, *lines]), ("agreement", [["first", "second", "same"], ["a", "b", "1"]])):
        with (folder / f"{name}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows(rows)
    return folder


def test_a_comparison(comparison):
    source = read_folder(comparison)
    assert source.comparison
    assert [run.label for run in source.runs] == ["bnn-vnnlib", "bnn-vnnlib decision", "another"]
    ours, own, theirs = (run.rows for run in source.runs)
    assert [(row.tool, row.variant, row.checked) for row in ours] == [(None, "mean", None), (None, "merged", "valid")]
    assert [(row.tool, row.variant) for row in own] == [(None, None)]
    assert [(row.tool, row.checked) for row in theirs] == [("another", "invalid"), ("another", "valid")]
    assert source.same == {
        ("bnn-vnnlib decision", ("digits", "onnx/a.onnx", "p")): ("digits", "onnx/a.onnx@merged", "p")
    }
    assert source.tables["agreement"] == (("first", "second", "same"), ("a", "b", "1"))


def test_a_comparison_beside_another_has_its_name_in_front(comparison):
    source = read_folder(comparison, "one")
    assert [run.label for run in source.runs] == ["one: bnn-vnnlib", "one: bnn-vnnlib decision", "one: another"]
    assert [label for label, _ in source.same] == ["one: bnn-vnnlib decision"]


def test_an_unfinished_comparison_has_runs_alone(comparison):
    for name in ("comparison", "agreement"):
        (comparison / f"{name}.csv").unlink()
    source = read_folder(comparison)
    assert (len(source.rows), source.tables, source.same) == (5, {}, {})


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_text('{"verdict": "uns'), "cannot be read as JSON"),
        (lambda path: path.write_text("[" * 200_000), "nested too deep"),
        (lambda path: path.write_bytes(b"\xff\xfe\xfa"), "cannot be read as JSON"),
        (lambda path: path.write_text("[1, 2]"), "expected a JSON object"),
        (lambda path: change(path, verdict=None), "verdict is missing"),
        (lambda path: change(path, verdict="safe"), "'safe' is none of sat, unsat"),
        (lambda path: change(path, query="p"), "'p' is none of probabilistic"),
        (lambda path: change(path, run=None), "run.category is missing"),
        (lambda path: change(path, run={"category": "c", "network": 3, "property": "p"}), "run.network is no text"),
        (lambda path: change(path, p_safe={"lower": 0.9, "upper": 0.1}), "p_safe has a lower bound above"),
        (lambda path: change(path, p_safe={"lower": "low", "upper": 0.1}), "p_safe.lower has something"),
        (lambda path: path.write_text(path.read_text().replace("0.97", "NaN")), "no number"),
        (lambda path: change(path, p_safe={"lower": True, "upper": 1}), "no number"),
        (lambda path: change(path, p_safe={"lower": 0.5, "upper": "Infinity"}), "p_safe.upper is infinite"),
        (lambda path: change(path, tau_safe="Infinity"), "tau_safe is infinite"),
        (lambda path: path.write_text(path.read_text().replace('"run_time": 1.5', '"run_time": -1')), "run_time"),
        (lambda path: path.write_text(path.read_text().replace('"run_time": 1.5', '"run_time": 1e999')), "infinite"),
        (lambda path: change(path, decision={"lower": ["Infinity"], "upper": ["Infinity"]}), "no intervals"),
        (lambda path: change(path, decision={"lower": [0.0], "upper": []}), "decision has bounds that are no"),
        (lambda path: change(path, decision={"lower": [2.0], "upper": [1.0]}), "no intervals"),
        (lambda path: change(path, decision={"lower": 1.0, "upper": [1.0]}), "decision.lower is no list"),
        (lambda path: change(path, witness={"x": [1, "a"]}), "x has something that is no number"),
        (lambda path: change(path, witness=[1.0]), "expected a JSON object"),
        (lambda path: change(path, notes=[1]), "notes is no list of texts"),
        (lambda path: change(path, verdict="sat"), "the results file says 'unsat' and its record 'sat'"),
        (lambda path: path.with_suffix("").write_text(""), "the results file says ''"),
        (lambda path: (path.parents[2] / "run.json").write_text("no"), "run.json: cannot be read as JSON"),
        (lambda path: (path.parents[2] / "run.json").write_text("[]"), "expected a JSON object"),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_file(tmp_path, spoil, says):
    folder = write_run(tmp_path / "out", (A, safe("unsat", 0.97, 1.0)))
    spoil(record_of(folder))
    with pytest.raises(InputError, match=says.replace("(", r"\(")) as caught:
        read_folder(folder)
    assert str(tmp_path) in str(caught.value)


def test_folders_that_are_none(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"nowhere: no such folder; expected one that `bnn-vnnlib run` or `compare`"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="file: is a file"):
        read_folder(tmp_path / "file")
    with pytest.raises(InputError, match="empty: nothing is finished"):
        read_folder(tmp_path / "empty")


def test_a_record_of_an_older_version_may_lack_what_is_not_needed(tmp_path):
    names = {"category": "c", "network": "n", "property": "p", "run_time": 1.0}
    row = read_row("r", "p", {"verdict": "unknown", "run": names}, tmp_path)
    assert (row.verdict, row.query, row.p_safe, row.notes) == (Verdict.UNKNOWN, None, None, ())
