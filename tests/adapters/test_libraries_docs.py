"""Every page of docs/libraries runs where its library is installed; `make test-libraries` installs them."""

from __future__ import annotations

from pathlib import Path

import libraries
import pytest
import torch

from bnn_vnnlib import adapters


def test_every_page_is_listed_and_linked() -> None:
    pages = {path.stem for path in libraries.FOLDER.glob("*.md")}
    assert pages == set(libraries.PAGES)
    index = (libraries.FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({page}.md)" in index for page in pages - {"README"})
    assert "libraries/README.md" in (libraries.FOLDER.parent / "posteriors.md").read_text(encoding="utf-8")
    assert all(f"{name}(" in index for name in adapters.__all__ if name.startswith("from_") and name != "from_samples")


@pytest.mark.parametrize("page", libraries.PAGES)
def test_the_example_runs_and_agrees_with_its_library(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking := libraries.missing(page):
        pytest.skip(f"{', '.join(lacking)} not installed; `make test-libraries` does it")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    with torch.random.fork_rng(devices=[]):
        rows = libraries.run_page(page)
    assert rows
    compared = [row for row in rows if row.adapted.agreement is not None]
    assert len(compared) >= len(rows) - 1
    for row in compared:
        agreement = row.adapted.agreement
        assert agreement.errors is None or agreement.errors <= agreement.allowed
        assert row.adapted.model.posterior is not None
