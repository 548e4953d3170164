"""What a release needs: links that the package index can follow, one version everywhere, small set-ups."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from bnn_vnnlib import __version__

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RELEASE = runpy.run_path(str(ROOT / "scripts" / "release.py"))
URL = "https://example.org/owner/name"


def test_the_readme_of_a_release_has_no_relative_link():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = re.findall(r"\]\((?!https?:|#)([^)]+)\)", readme)
    changed = RELEASE["absolute"](readme, URL, "v9")
    links = re.findall(r"\]\(([^)]+)\)", changed)
    assert all(link.startswith("https://") for link in links)
    for path in relative:
        assert any(link in (f"{URL}/blob/v9/{path}", f"{URL}/raw/v9/{path}") for link in links)
    assert f"]({URL}/raw/v9/docs/gallery/digits.svg)" in changed


def test_a_release_names_its_repository():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    urls = tomllib.loads(RELEASE["with_urls"](text, URL, "v9"))["project"]["urls"]
    assert {"Homepage", "Documentation", "Issues", "Changelog"} == set(urls)
    assert all(url.startswith(URL) for url in urls.values())


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_the_source_distribution_lists_is_there():
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert [path for path in targets["sdist"]["include"] if not (ROOT / path.lstrip("/")).exists()] == []


def test_every_extra_is_explained():
    text = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    assert [name for name in PROJECT["optional-dependencies"] if f"| `{name}` |" not in text] == []


def test_the_site_has_every_page():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    def pages(part: object) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [page for one in (part.values() if isinstance(part, dict) else part) for page in pages(one)]  # type: ignore[attr-defined]

    docs = ROOT / "docs"
    assert sorted(pages(nav)) == sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))


def test_links_out_of_the_site_become_names():
    hooks = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))

    class Page:
        class file:  # noqa: N801
            src_uri = "studies/a.md"

    text = "[b](../b.md#c), [`benchmarks`](../../benchmarks), [the change](../../CHANGELOG.md#d), ![p](../../p.svg)"
    assert hooks["on_page_markdown"](text, Page) == (
        "[b](../b.md#c), `benchmarks`, the change (`CHANGELOG.md`), ![p](../../p.svg)"
    )


def test_only_a_site_among_versions_has_the_menu(monkeypatch):
    hooks = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))

    class Config:
        extra: dict = {}  # noqa: RUF012

    monkeypatch.delenv("MIKE_DOCS_VERSION", raising=False)
    assert hooks["on_config"](Config).extra == {}
    monkeypatch.setenv("MIKE_DOCS_VERSION", "0.1.0")
    assert hooks["on_config"](Config).extra["version"]["provider"] == "mike"
