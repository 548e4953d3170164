"""The page as text, and the command: nothing is loaded, nothing of strangers runs, every mistake is one message."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bnn_vnnlib.cli import app
from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.report import page as pages
from bnn_vnnlib.report.report import write_report
from support.records import WEAK_BOUND, decision, plain, safe, write_run

pytest.importorskip("plotly", reason="the extra `report` is not installed")

EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked=1'> & \"'`{{ 7*7 }}"
A, B, C = (("digits", "onnx/a.onnx", f"vnnlib/{name}.vnnlib") for name in "abc")


@pytest.fixture
def folder(tmp_path):
    return write_run(
        tmp_path / "out", (A, safe("unsat", 0.97, 1.0, notes=(EVIL,))), (B, decision("sat", [0.0, -1.0], [1.0, 2.0])),
        ((EVIL, EVIL, EVIL), plain("unsat")), (C, EVIL),
    )  # fmt: skip


def own_text(path: Path) -> str:
    """The page without Plotly, which lies beside it or in it."""
    text = path.read_text(encoding="utf-8")
    return text.replace(f"<script>{pages._script(pages.library())}</script>", "")


def data_of(text: str) -> dict[str, Any]:
    """What the page's scripts read."""
    found: dict[str, Any] = json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    )
    return found


def test_names_and_messages_are_text(folder):
    text = own_text(write_report(folder).page)
    assert "<script>window" not in text
    assert "<img" not in text
    assert "&lt;/script&gt;&lt;script&gt;window.hacked" in text
    assert "{{ 7*7 }}" in text
    data = data_of(text)
    assert EVIL in data["texts"]["property"]["values"]
    assert EVIL in data["texts"]["reason"]["values"]


def test_a_row_without_a_verdict_says_why(tmp_path):
    """All lines of the diagnosis, where the record has one; the browser's test sees them on the page."""
    why = replace(WEAK_BOUND, advice=EVIL)
    results = [safe("unsat", 0.97, 1.0), replace(safe("timeout", 0.2, 1.0), diagnosis=why), safe("unknown", 0.1, 1.0)]
    text = own_text(write_report(write_run(tmp_path / "out", *zip((A, B, C), results, strict=True))).page)
    data = data_of(text)
    names = data["texts"]["property"]
    told = {names["values"][names["codes"][int(row)]]: more.get("diagnosis") for row, more in data["more"].items()}
    assert {name: lines for name, lines in told.items() if lines} == {B[2]: list(why.lines)}
    assert "<script>window" not in text
    assert '"Why no verdict", (more.diagnosis' in text


def test_the_page_loads_nothing_but_the_plots_beside_it(folder):
    text = own_text(write_report(folder).page)
    (nonce,) = re.findall(r"'nonce-([\w-]{20,})'", unescape(text))
    text = text.replace(f'<script nonce="{nonce}" src="report_plotly.js"></script>', "")
    text = text.replace("&lt;img src=x", "").replace("<img src=x".replace("<", r"\u003c"), "")
    for loading in (r"https?:", r"\bsrc\s*=", "<link", "@import", r"url\(", r"\bfetch\(", "XMLHttp", r"\bimport\("):
        assert not re.search(loading, text), loading
    assert "default-src 'none'" in unescape(text)


def test_a_page_is_small_or_one_file(folder, tmp_path):
    """Of few instances: the page alone is small; the nonce, which no stranger may know before, is never the same."""
    one, two = (write_report(folder, tmp_path / f"{name} page.html") for name in "ab")
    assert one.beside == tmp_path / "a page_plotly.js"
    assert one.beside.read_text(encoding="utf-8") == pages.library()
    assert one.page.stat().st_size < 150_000
    assert 'src="a%20page_plotly.js"' in one.page.read_text(encoding="utf-8")
    nonces = [re.search(r"nonce-([\w-]+)", page.page.read_text(encoding="utf-8"))[1] for page in (one, two)]
    assert nonces[0] != nonces[1]
    whole = write_report(folder, tmp_path / "whole.html", single_file=True)
    assert whole.beside is None
    assert "nonce=" not in own_text(whole.page)
    assert whole.page.stat().st_size > len(pages.library())


def test_no_script_of_ours_reads_text_as_html():
    script = pages._own_scripts()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)


def test_tables_lie_beside_the_page(folder, tmp_path):
    report = write_report(folder, tmp_path / "page.html")
    names = {path.name for path in report.tables}
    assert {path.parent for path in report.tables} == {tmp_path / "page_tables"}
    assert names == {f"{name}.{kind}" for name in ("counts", "instances", "settings") for kind in ("csv", "md", "tex")}
    assert (tmp_path / "page_tables/instances.csv").read_text().count("\n") >= 5


def test_another_run_beside_it(folder, tmp_path):
    other = write_run(tmp_path / "other", (A, safe("unsat", 0.96, 1.0)), (B, decision("unsat", [0.0, 0.0], [1.0, 1.0])))
    report = write_report(folder, against=other)
    assert report.conflicts == 0  # no file is known to be the same
    text = own_text(report.page)
    assert "out against other" in text
    assert 'id="filter-run"' in text


def test_conflicts_are_shown_and_told(tmp_path):
    (tmp_path / "p").write_text("p")
    files = {"property": tmp_path / "p"}
    one = write_run(tmp_path / "one", (A, plain("sat")), files=files)
    other = write_run(tmp_path / "other", (A, plain("unsat")), files=files)
    result = CliRunner().invoke(app, ["report", str(one), "--against", str(other)])
    assert result.exit_code == 0
    assert "results that exclude each other: 1 pairs" in result.stderr
    assert "Results that exclude each other" in own_text(one / "report.html")
    assert (one / "report_tables/conflicts.csv").is_file()
    write_report(one)
    assert not (one / "report_tables/conflicts.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{tmp}/nowhere"], "nowhere: no such folder"),
        (["{tmp}/empty"], "empty: nothing is finished"),
        (["{tmp}/out", "--against", "{tmp}/out/../out"], "is the same folder"),
        (["{tmp}/out", "--against", "{tmp}/nowhere"], "nowhere: no such folder"),
        (["{tmp}/out", "--against", "{tmp}/strange"], "strange: no instance in common"),
        (["{tmp}/out", "--image", "8"], "--image 8: expected HEIGHTxWIDTH"),
        (["{tmp}/out", "--image", "7x7"], "--image 1x7x7 needs 49 inputs; the instances have 4"),
        (["{tmp}/out", "--out", "{tmp}/nowhere/page.html"], "there is no such folder to write into"),
        (["{tmp}/out", "--out", "{tmp}/empty"], "cannot be written"),
        (["{tmp}/damaged"], "damaged record"),
    ],
)
def test_every_mistake_is_one_message(folder, tmp_path, arguments, says):
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "strange", (("other", "n", "p"), plain("unsat")))
    damaged = write_run(tmp_path / "damaged", (A, plain("unsat")))
    next(damaged.glob("instances/*/*.json")).write_text("{}")
    result = CliRunner().invoke(app, ["report", *(word.format(tmp=tmp_path) for word in arguments)])
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("missing", ["jinja2", "plotly"])
def test_what_is_missing_is_named(folder, monkeypatch, missing):
    real = pages.import_module

    def without(name):
        if name == missing:
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(pages, "import_module", without)
    with pytest.raises(OptionError, match=rf"report needs {missing}: pip install 'bnn-vnnlib\[report\]'"):
        write_report(folder)


def test_a_folder_for_tables_that_is_a_file(folder):
    (folder / "report_tables").write_text("")
    with pytest.raises(InputError, match="the folder for the tables cannot be made"):
        write_report(folder)


def test_a_folder_that_is_refused_costs_no_heavy_import(tmp_path):
    """What is wrong with the folder is said before torch is loaded; a page needs none of it either."""
    folder = write_run(tmp_path / "out", (A, safe("unsat", 0.97, 1.0)))
    program = (
        "import sys; from typer.testing import CliRunner; from bnn_vnnlib.cli import app\n"
        f"code = CliRunner().invoke(app, ['report', {str(folder)!r}]).exit_code\n"
        "heavy = {'torch', 'onnxruntime', 'scipy.stats'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
