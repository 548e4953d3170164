"""docs/tutorial.md runs: its Python and its commands, in their order and in one folder."""

from __future__ import annotations

import csv
import re
import shlex
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bnn_vnnlib.cli import app

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```(python|sh|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block without a language is the first line of what the command above it prints."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "tutorial"}
    said, checked = "", 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # the exporter that traces
        for language, text in BLOCK.findall((DOCS / "tutorial.md").read_text(encoding="utf-8")):
            match language:
                case "python":
                    exec(compile(text, "docs/tutorial.md", "exec"), names)
                case "sh":
                    for line in text.splitlines():
                        program, *words = shlex.split(line)
                        assert program == "bnn-vnnlib"
                        outcome = CliRunner().invoke(app, words)
                        assert outcome.exit_code == 0, outcome.stderr
                        said = outcome.stdout
                case _:
                    assert said.splitlines()[0] == text.strip()
                    checked += 1
    assert checked == 4
    with (tmp_path / "results" / "table.csv").open() as stream:
        rows = [(row["result"], row["checked"]) for row in csv.DictReader(stream)]
    assert rows == [("unsat", ""), ("sat", "valid")]
