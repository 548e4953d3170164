"""Every known problem of the shared cases, from the command line to the results file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bnn_vnnlib.cli import app
from bnn_vnnlib.files.vnncomp import read_result

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


def known() -> list[tuple[str, str, str]]:
    """Property, model and the allowed outcomes of every case; empty where the folder is absent."""
    table = CASES / "expected.tsv"
    lines = table.read_text().splitlines() if table.is_file() else []
    return [tuple(line.split("\t")) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(("prop", "model", "allowed"), known())
def test_known_problems_end_as_they_must(tmp_path, prop, model, allowed):
    results = tmp_path / "r.txt"
    files = [str(CASES / prop), "--network", str(CASES / model), "--results-file", str(results)]
    outcome = CliRunner().invoke(app, ["verify", *files, "--query", "deterministic", "--timeout", "60"])
    assert "Traceback" not in outcome.stderr
    if outcome.exit_code == 2:
        assert "refuse" in allowed.split("|"), outcome.stderr
        assert outcome.stdout == ""
        assert outcome.stderr.count("error: ") == 1
        assert results.read_text() == "error\n"
        return
    assert outcome.exit_code == 0, outcome.stderr
    word = outcome.stdout.splitlines()[0]
    assert word in allowed.split("|"), outcome.stderr
    found = read_result(results)
    assert found.verdict == word
    if word == "sat":
        x, y = (values.ravel() for values in found.values.values())
        np.testing.assert_array_equal(x, y)  # every model of the table is the identity


def test_the_cases_are_all_there(shared):
    assert len(known()) >= 44
    assert {model for _, model, _ in known()} == {"id2.onnx"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("o26_tar_inside.onnx.gz", "tar archive"),
        ("o28_lfs_pointer.onnx", "Git"),
        ("o14_two_outputs.onnx", "output"),
    ],
)
def test_models_that_cannot_be_used_are_refused_by_name(shared, model, message):
    files = [str(shared / "cases" / "v10_or_bare.vnnlib"), "--network", str(shared / "cases" / model)]
    outcome = CliRunner().invoke(app, ["verify", *files])
    assert outcome.exit_code == 2, outcome.stderr
    assert message in outcome.stderr
    assert outcome.stderr.count("error: ") == 1
