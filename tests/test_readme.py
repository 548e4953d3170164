"""The README keeps its promises: its files exist, its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


NAMED = {*re.findall(r"benchmarks/[\w./]*\w", README), *re.findall(r"\]\((.+?)\)", README)}


@pytest.mark.parametrize("path", sorted(NAMED))
def test_every_file_it_names_is_there(path):
    assert (ROOT / path).exists()


def test_its_example_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    verdict, lower = capsys.readouterr().out.split()
    assert verdict == "unsat"
    assert float(lower) >= 0.999999
