"""Runs and reports of answers with a stated confidence: seeds, tables, words, and marks that nobody can mix up."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bnn_vnnlib.report.guarantee import guarantee
from bnn_vnnlib.report.page import page_data
from bnn_vnnlib.report.source import conflicts
from bnn_vnnlib.report.summary import instances
from bnn_vnnlib.result import Statistics
from support.command import call
from support.records import decision, row, safe
from sweeps.sweep_models import write_net

PROPERTY = """(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (and (>= X_0 0.1) (<= X_0 0.2) (>= X_1 0.1) (<= X_1 0.2)))
(assert (<= Y_0 {bound}))
"""

COUNTED = Statistics(0.999999, 100, 90, 4, 6, 7, "Philox4x64-10")


def tables(out: Path) -> tuple[list[list[str]], list[dict[str, str]]]:
    with (out / "results.csv").open() as results, (out / "table.csv").open() as table:
        return list(csv.reader(results)), list(csv.DictReader(table))


def test_a_run_keeps_its_seed_and_says_unknown_where_the_competition_reads(tmp_path: Path) -> None:
    folder, out = tmp_path / "bench", tmp_path / "out"
    folder.mkdir()
    write_net(folder / "net.onnx", (2, 4, 2))
    for name, bound in (("safe", -50), ("unsafe", 50)):
        (folder / f"{name}.vnnlib").write_text(PROPERTY.format(bound=bound))
    (folder / "instances.csv").write_text("net.onnx,safe.vnnlib,60\nnet.onnx,unsafe.vnnlib,60\n")
    words = ("run", folder, "--out", out, "--guarantee", "statistical", "--confidence", "0.999", "--workers", "1")
    call(*words)
    results, table = tables(out)
    assert [line[4] for line in results] == ["unknown", "unknown"]
    assert [(line["result"], line["guarantee"], line["confidence"]) for line in table] == [
        ("unsat", "statistical", "0.999"), ("sat", "statistical", "0.999"),
    ]  # fmt: skip
    assert all(int(float(line["draws_counted"])) > 0 for line in table)
    seeds = {line["seed"] for line in table}
    assert len(seeds) == 1
    (seed,) = (word for word in json.loads((out / "run.json").read_text())["arguments"] if word.startswith("--seed="))
    assert int(seed.removeprefix("--seed=")) == float(seeds.pop())
    kept = (out / "table.csv").read_bytes()
    call(*words)  # goes on, though a fresh seed would be another run
    assert (out / "table.csv").read_bytes() == kept
    call(*words, "--rerun", "all")
    assert json.loads((out / "run.json").read_text())["arguments"].count(seed) == 1


def counted(result: object) -> object:
    return replace(result, statistics=COUNTED)  # type: ignore[type-var]


@pytest.mark.parametrize("result", [safe("unsat", 0.96, 1.0), safe("sat", 0.0, 0.3), safe("unknown", 0.1, 0.96),
                                    decision("unsat", [0.1], [0.2]), decision("unknown", [0.1], [0.2])])  # fmt: skip
def test_no_word_of_certainty_stands_beside_a_confidence(result: object) -> None:
    certain, other = guarantee(row(result)), guarantee(row(counted(result)))
    assert "confidence" not in certain.says
    assert other.says.startswith("With confidence 0.999999 over the drawn networks, not with certainty:")
    assert "Proved" not in other.says
    assert "with certainty all the same" not in other.says


def test_tables_pages_and_disagreements_keep_them_apart() -> None:
    certain, other = row(safe("unsat", 0.96, 1.0)), row(counted(safe("sat", 0.0, 0.3)))
    kinds = [line[6] for line in instances([certain, other]).rows]
    assert kinds == ["certain", "statistical, confidence 0.999999"]
    data = page_data([certain, other], [0, 1], {})
    assert data["texts"]["guarantee"]["values"] == ["certain", "statistical"]
    assert data["numbers"]["confidence"] == [None, 0.999999]
    same = {"property": "a", "model": "b"}
    pair = [replace(one, hashes=same, tau_safe=0.9, tau_unsafe=0.9) for one in (certain, other)]
    (found,) = conflicts(pair, [0, 0])
    assert found.what.startswith("statistical disagreement:")
    both = [replace(one, confidence=None) for one in pair]
    (found,) = conflicts(both, [0, 0])
    assert "statistical" not in found.what
