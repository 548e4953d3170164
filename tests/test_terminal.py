"""Nothing that a file says becomes a code of the terminal, nor a raw byte of a table or a page."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from bnn_vnnlib.cli import app
from bnn_vnnlib.errors import InputError
from bnn_vnnlib.system.terminal import Terminal
from support.records import safe, write_run

EVIL = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\r\x08"
SHOWN = r"a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\r\x08"
PROPERTY = (
    "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
    "(assert (>= X_0 0))(assert (<= X_0 1))(assert (>= X_1 0))(assert (<= X_1 1))(assert (>= Y_0 2))\n"
)
OWN = re.compile(r"\x1b\[[0-9;]*m")


def harmless(text: str) -> bool:
    """Nothing but text and this program's own colours."""
    return all(letter.isprintable() or letter in "\n\t" for letter in OWN.sub("", text))


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_whatever_is_printed(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Screen() if terminal else io.StringIO()
    console = Terminal(file)
    table = Table(EVIL)
    table.add_row(EVIL)
    table.add_row(Text(EVIL, style="bold red"))
    console.print(EVIL, soft_wrap=True)
    console.print(Text(EVIL), table, "[link=http://evil]x[/link] :skull: [red]y[/red]")
    try:
        raise ValueError(EVIL)
    except ValueError:
        console.print_exception()
    said = file.getvalue()
    assert harmless(said)
    assert r"\x1b[2J" in said
    assert "[link=http://evil]x[/link] :skull: [red]y[/red]" in OWN.sub("", said).replace("\n", "")
    assert ("\x1b[" in said) is terminal


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar moves the cursor itself; what it shows does not."""
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Screen()
    with Progress(TextColumn("{task.fields[name]}"), console=Terminal(file)) as bar:
        bar.add_task("", name="\x1b]0;title\x07")
        bar.console.print("\x1b[2J")
    said = file.getvalue()
    assert "\x1b]0" not in said
    assert "\x1b[2J" not in said
    assert r"\x1b]0" in said


def test_paths_in_messages_stay_on_one_line() -> None:
    error = InputError("no such file", path=f"{EVIL}\nverdict: unsat", node=EVIL)
    assert str(error).isprintable()
    assert str(error).startswith(SHOWN)


def evil_model(path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Gemm", [f"x{EVIL}", f"W{EVIL}"], ["y"], name=EVIL)], EVIL,
        [helper.make_tensor_value_info(f"x{EVIL}", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(np.eye(2, dtype=np.float32), f"W{EVIL}")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name=EVIL)
    path.write_bytes(proto.SerializeToString())


def test_a_model_with_evil_names(tmp_path: Path) -> None:
    name = tmp_path / f"{EVIL}.onnx".replace("/", "")
    evil_model(name)
    (tmp_path / "p.vnnlib").write_text(PROPERTY)
    for arguments in (["inspect", name], ["verify", tmp_path / "p.vnnlib", "--network", name], ["mean", name, name]):
        outcome = CliRunner().invoke(app, list(map(str, arguments)))
        assert harmless(outcome.output), arguments
        assert harmless(outcome.stderr), arguments
    outcome = CliRunner().invoke(app, ["inspect", str(name)])
    assert r"W" + SHOWN[:10] in outcome.output.replace("\n", "")


@pytest.mark.parametrize("missing", [False, True])
def test_a_benchmark_with_evil_names(tmp_path: Path, missing: bool) -> None:
    """From its table to the terminal, the tables of the run and the report."""
    benchmark = tmp_path / "bench\x1b[31m\udc80"
    benchmark.mkdir()
    if not missing:
        evil_model(benchmark / "n\x1b[2J.onnx")
        (benchmark / "p\u202e.vnnlib").write_text(PROPERTY)
    (benchmark / "instances.csv").write_text("n\x1b[2J.onnx,p\u202e.vnnlib,60\n")
    out = tmp_path / "out"
    run = subprocess.run(
        [sys.executable, "-m", "bnn_vnnlib", "run", benchmark, "--out", out, "--workers", "1"],
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert harmless(run.stderr + run.stdout)
    assert r"n\x1b[2J.onnx" in run.stderr
    for name in ("results.csv", "table.csv"):
        text = (out / name).read_text(encoding="utf-8")
        assert harmless(text)
        assert r"bench\x1b[31m\udc80" in text
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow (extra `parquet`) is not installed")
    assert pq.read_table(out / "table.parquet")["category"].to_pylist() == [r"bench\x1b[31m\udc80"]
    ((category, network, prop, _, verdict, _),) = csv.reader(io.StringIO((out / "results.csv").read_text()))
    assert (category, network, prop) == (r"bench\x1b[31m\udc80", r"n\x1b[2J.onnx", r"p\u202e.vnnlib")
    assert verdict == ("error" if missing else "unsat")


def test_a_report_holds_no_raw_escapes(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the extra `report` is not installed")
    from bnn_vnnlib.report.report import write_report

    names = (f"c{EVIL}", f"n{EVIL}\\", f"p{EVIL}")
    result = safe("unsat", 0.97, 1.0, method=EVIL, notes=(EVIL, "two\nlines"))
    folder = write_run(tmp_path / "out\x1b[31m", (names, result))
    report = write_report(folder)
    page = report.page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    text = OWN.sub("", page[: page.index("<script")]) + data
    assert harmless(text)
    assert r"\u001b" not in data
    assert json.loads(data)["texts"]["network"]["values"] == [rf"n{SHOWN}\\"[:-1]]
    assert json.loads(data)["texts"]["method"]["values"] == [SHOWN]
    assert r"\nlines" in data
    for path in report.tables:
        assert harmless(path.read_text(encoding="utf-8")), path.name
