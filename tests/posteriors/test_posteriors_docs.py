"""The examples of docs/posteriors.md run, in their order and in one folder."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import typer

from bnn_vnnlib.cli.commands import COMMANDS
from bnn_vnnlib.model.recovery import graph as diagnosis

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "posteriors.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {"__name__": "posteriors"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # the exporter that traces
        for block in blocks:
            exec(compile(block, "docs/posteriors.md", "exec"), names)


def test_every_command_and_diagnosis_is_there() -> None:
    commands = {typer.main.get_command_name(command.__name__) for command in COMMANDS}
    named = set(re.findall(r"^    bnn-vnnlib ([\w-]+)", PAGE, re.MULTILINE))
    assert {"recover", "convert", "simplify", "mean", "sample", "merge", "inspect"} == named
    assert named <= commands
    kinds = set(re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.MULTILINE)) - {"blocks", "copies"}
    assert kinds == set(diagnosis.Obstacle.__args__)
