"""The gallery: every example has its figure on the page, and three of them run here (`make gallery` runs all)."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "gallery.py"))


def test_every_example_and_every_figure_is_on_the_page():
    page = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((\w+)\.py\)", page)) == SCRIPT["examples"]()
    figures = set(re.findall(r"!\[.+?\]\((\w+)\.svg\)", page))
    assert figures == set(SCRIPT["examples"]())
    assert {path.stem for path in GALLERY.glob("*.svg")} == figures | {"digits_bounds"}


def test_no_example_needs_what_the_repository_does_not_hold():
    for path in GALLERY.glob("*.py"):
        assert "shared" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("name", ["ensemble", "regression", "deterministic"])
def test_an_example_runs(name, tmp_path):
    if lacking := SCRIPT["missing"](name):
        pytest.skip(f"{', '.join(lacking)} is not installed")
    assert SCRIPT["run"](name, tmp_path) == 0
    assert "<svg" in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
