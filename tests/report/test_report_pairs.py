"""The same instance in two runs: who belongs together, and which results exclude each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bnn_vnnlib.report.source import ReportedRun, conflicts, instance_keys
from bnn_vnnlib.result import Rule
from support.records import decision, plain, row, safe

FILES = {"property": "11", "model": "22"}


def found(first, second, *, hashes=(FILES, FILES), **changed):
    one, other = (replace(row(result), hashes=files) for result, files in zip((first, second), hashes, strict=True))
    return [conflict.what for conflict in conflicts([one, replace(other, **changed)], [0, 0])]


def test_rows_of_the_same_names_share_a_number():
    def run(label, *props):
        return ReportedRun(label, {}, tuple(row(plain("unsat"), label, ("c", "n", prop)) for prop in props))

    assert instance_keys([run("one", "p", "q", "p"), run("other", "q", "p", "r", "p", "p")], {}) == [
        0,
        1,
        2,
        1,
        0,
        3,
        2,
        4,
    ]


def test_a_query_on_the_bnn_is_paired_with_its_merged_network():
    merged = ReportedRun("ours", {}, (row(plain("unsat"), "ours", ("c", "n@merged", "p")),))
    asked = ReportedRun("decision", {}, (row(decision("unsat", [0.0], [1.0]), "decision", ("c", "n", "p")),))
    assert instance_keys([merged, asked], {("decision", ("c", "n", "p")): ("c", "n@merged", "p")}) == [0, 0]
    assert instance_keys([merged, asked], {}) == [0, 1]


def test_verdicts_that_exclude_each_other():
    assert found(plain("sat"), plain("unsat")) == ["one is sat, the other unsat"]
    assert found(decision("sat", [0.0], [1.0]), decision("unsat", [0.0], [1.0])) == ["one is sat, the other unsat"]
    assert found(plain("sat"), plain("unknown")) == []


def test_thresholds_that_leave_room_for_both():
    """P_safe >= .95 beside P_safe < .9 is a conflict; P_safe >= .5 beside P_safe < .9 is none."""
    unsat, sat = safe("unsat", 0.95, 1.0), safe("sat", 0.0, 0.95)
    assert found(unsat, sat) == ["one is sat, the other unsat"]
    assert found(sat, unsat, tau_safe=0.5) == []
    assert found(sat, unsat, tau_safe=0.9) == ["one is sat, the other unsat"]


def test_bounds_that_exclude_each_other():
    low, high = safe("unknown", 0.1, 0.4), safe("unknown", 0.5, 0.8)
    assert found(low, high) == ["the bounds on P_safe exclude each other"]
    assert found(low, safe("unknown", 0.4, 0.8)) == []
    assert found(decision("unknown", [0.0, 0.0], [1.0, 1.0]), decision("unknown", [0.0, 2.0], [1.0, 3.0])) == [
        "the bounds on D exclude each other"
    ]


@pytest.mark.parametrize(
    "hashes",
    [(FILES, {**FILES, "model": "33"}), ({}, {}), (FILES, {})],
    ids=["another model", "unknown", "one unknown"],
)
def test_other_files_are_another_question(hashes):
    assert found(plain("sat"), plain("unsat"), hashes=hashes) == []


def test_another_rule_query_or_tool_is_another_question():
    mean, median = decision("sat", [0.0], [1.0]), decision("unsat", [2.0], [3.0], Rule.MEDIAN)
    assert found(mean, median) == []
    assert found(plain("sat"), safe("unsat", 1.0, 1.0)) == []
    assert found(plain("sat"), plain("unsat"), tool="theirs") == []
