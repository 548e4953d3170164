"""The pages: links lead somewhere, every page is reached, examples run, commands and options exist."""

from __future__ import annotations

import pydoc
import re
import runpy
from pathlib import Path

import pytest

from bnn_vnnlib import Query, Verdict
from bnn_vnnlib.cli.capabilities import CAPABILITIES
from bnn_vnnlib.cli.commands import COMMANDS
from bnn_vnnlib.files.sidecar import RECORD

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [page.relative_to(DOCS).as_posix() for page in PAGES]


def links(page: Path) -> list[Path]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_somewhere(page):
    assert [target for target in links(page) if not target.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_lists_and_tables_begin_after_an_empty_line(page):
    """GitHub draws them anywhere, the site as text that goes on."""
    item, inside, before = re.compile(r"([-*]|\d+\.) "), False, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        inside ^= line.startswith("```")
        if not inside and before and not before.startswith(" "):
            assert not item.match(line) or item.match(before), f"line {number}"
            assert not line.startswith("| ") or before.startswith("|"), f"line {number}"
        before = line


def test_every_page_is_reached_from_the_readme():
    found: set[Path] = set()
    pending = [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page not in found and page.suffix == ".md":
            found.add(page)
            pending.extend(links(page))
    assert [page.relative_to(DOCS).as_posix() for page in PAGES if page not in found] == []


@pytest.mark.parametrize("name", ["organisers", "verifier-authors"])
def test_commands_and_options_exist(name):
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    reference = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    commands = {function.__name__.replace("_", "-") for function in COMMANDS}
    assert set(re.findall(r"(?:`|^ *)bnn-vnnlib ([a-z][a-z-]+)", text, re.MULTILINE)) <= commands
    known = set(re.findall(r"--[a-z][a-z-]*", reference)) | {"--timeout"}
    assert set(re.findall(r"--[a-z][a-z-]*", text)) <= known


def test_organisers_are_told_of_every_capability():
    text = (DOCS / "organisers.md").read_text(encoding="utf-8")
    assert [name for name in CAPABILITIES if f"--{name}`" not in text] == []


def test_the_table_of_guarantees_is_complete():
    text = (DOCS / "semantics.md").read_text(encoding="utf-8")
    section = text.split("## The table of guarantees")[1].split("\n## ")[0]
    assert [query for query in Query if f"certain, `{query}`, verdict" not in section] == []
    assert [verdict for verdict in Verdict if f"| `{verdict}` |" not in text] == []
    keys = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+(?:\[[ir]\])?)`", section)
    assert len(keys) > 10
    assert [key for key in keys if key not in RECORD] == []


def test_the_picture_of_the_packages_is_what_the_imports_say():
    drawn = runpy.run_path(str(ROOT / "scripts" / "architecture.py"))
    assert drawn["PICTURE"].read_text(encoding="utf-8") == drawn["picture"](drawn["imports"]())


def test_modules_that_the_architecture_names_exist():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "bnn_vnnlib"
    paths = re.findall(r"`([a-z_/]+(?:\.py|/))`", text)
    assert len(paths) > 30
    assert [path for path in paths if not any((start / path).exists() for start in (ROOT, package))] == []
    parts = {path.stem for path in package.iterdir()}
    dotted = re.findall(r"`([a-z_]+(?:\.\w+)+)`", text)
    named = [name for name in dotted if name.split(".")[0] in parts and not name.endswith(".py")]
    assert len(named) > 20
    assert [name for name in named if not is_there(f"bnn_vnnlib.{name}")] == []


def is_there(name: str) -> bool:
    """Whether a module, or something in one, has this name."""
    try:
        pydoc.resolve(name)
    except (ImportError, pydoc.ErrorDuringImport):
        return False
    return True


def test_the_examples_for_authors_run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "verifier-authors.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/verifier-authors.md", "exec"), names)
    assert len(blocks) == 3
    assert "bnn.posterior" in capsys.readouterr().out
    assert names["found"].lower[0] > 0.999  # the instance of the README
