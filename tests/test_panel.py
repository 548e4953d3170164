"""A few cells of the panel (benchmarks/panel): what was once decided stays decided, by bounds that are no wider."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bnn_vnnlib import read_model, read_property, verify

SUBSET = Path(__file__).resolve().parents[1] / "benchmarks" / "panel" / "subset"
LIMIT = 60
"""Seconds: fifteen times what the slowest cell took when it was written down."""
WIDER = 0.01
"""Bounds end where the verdict is clear, so that another order of methods may leave them a little wider."""


def answers() -> list[dict[str, str]]:
    with (SUBSET / "answers.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("kept", answers(), ids=lambda kept: f"{kept['property']}-{kept['query']}")
def test_a_cell_says_no_less_than_it_did(kept):
    model = read_model(SUBSET / "onnx" / f"{kept['network']}.onnx")
    question = read_property(SUBSET / "vnnlib" / f"{kept['property']}.vnnlib", model.network.signature)
    result = verify(model, question, query=kept["query"], timeout=LIMIT)
    assert result.verdict == kept["verdict"]
    if result.p_safe is not None:
        lower, upper = result.p_safe.lower, result.p_safe.upper
    else:
        output = int(kept["output"])
        lower, upper = float(result.decision.lower[output]), float(result.decision.upper[output])
    assert upper - lower <= float(kept["upper"]) - float(kept["lower"]) + WIDER


def test_the_subset_has_both_queries_and_both_verdicts():
    found = {(kept["query"], kept["verdict"]) for kept in answers()}
    assert len(answers()) >= 25
    assert {("probabilistic", "sat"), ("probabilistic", "unsat"), ("decision", "unsat")} <= found


def test_the_table_names_no_folder_of_the_machine_that_measured_it():
    table = SUBSET.parents[2] / "docs" / "panel.csv"
    with table.open(encoding="utf-8", newline="") as stream:
        reasons = {row["reason"] for row in csv.DictReader(stream)}
    assert len(reasons) > 1
    assert not [reason for reason in reasons if Path(reason.split(":")[0]).is_absolute()]
