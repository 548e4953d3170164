"""A folder full of modules that must not run, and everything that starts processes from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bnn_vnnlib.system import isolation
from sweeps.sweep_models import boxes, write_net

ROOT = Path(__file__).resolve().parents[1]
OURS = ("bnn_vnnlib", "torch", "numpy", "onnx", "onnxruntime", "scipy", "typer", "rich", "pyarrow", "lark")
PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))
(assert (>= Y_0 1.5))
"""


@pytest.fixture
def trap(tmp_path, identity_model) -> Path:
    """A benchmark with a module for every name of the standard library and of what we use; each tells that it ran."""
    folder = tmp_path / "benchmark"
    folder.mkdir()
    tell = (
        f"open({str(tmp_path / 'ran.txt')!r}, 'a').write(__name__ + ' ')\nraise SystemExit('a module of a benchmark')\n"
    )
    for name in (*sys.stdlib_module_names, *OURS):
        (folder / f"{name}.py").write_text(tell)
    (folder / "net.onnx").write_bytes(identity_model.read_bytes())
    (folder / "holds.vnnlib").write_text(PROPERTY)
    (folder / "instances.csv").write_text("net.onnx,holds.vnnlib,60\n")
    return folder


def started(trap: Path, *words: object, path: str = str(ROOT), **more: str) -> subprocess.CompletedProcess[str]:
    """A command, from that folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": path, **more}
    done = subprocess.run(
        list(map(str, words)), cwd=trap, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    ran = trap.parent / "ran.txt"
    assert not ran.exists(), ran.read_text()
    assert done.returncode == 0, done.stderr
    return done


def test_the_trap_works(trap):
    subprocess.run([sys.executable, "-c", "import argparse"], cwd=trap, capture_output=True, check=False)
    assert (trap.parent / "ran.txt").read_text() == "argparse "


@pytest.mark.parametrize("scheduler", [None, "local"])
def test_workers_of_a_run(trap, scheduler):
    if scheduler is not None:
        pytest.importorskip("distributed", reason="Dask (distributed) is not installed")
    more = [] if scheduler is None else ["--scheduler", scheduler, "--workers", "1"]
    out = trap.parent / "out"
    started(trap, sys.executable, "-P", "-m", "bnn_vnnlib", "run", ".", "--out", out, *more)
    assert ",unsat," in (out / "results.csv").read_text()


def test_workers_of_a_sweep(trap):
    pytest.importorskip("pyarrow", reason="pyarrow (extra `parquet`) is not installed")
    net = write_net(trap.parent / "net.onnx", [3, 6, 4], samples=3)
    np.savez(trap.parent / "table.npz", **boxes(8, 3, 4))
    words = ("sweep", net, trap.parent / "table.npz", "--out", trap.parent / "out", "--workers", 2, "--chunk", 2)
    started(trap, sys.executable, "-P", "-m", "bnn_vnnlib", *words)


def test_other_verifiers_and_the_watchdog(trap):
    liar = "liar=bash -c 'echo unsat >$0' {results} {onnx} {vnnlib}"
    words = ("compare", ".", "--out", trap.parent / "out", "--tool", liar)
    started(trap, sys.executable, "-P", "-m", "bnn_vnnlib", *words)


def test_what_python_itself_leaves_open_is_closed_at_once(trap):
    """`python -m` looks into the folder for what it needs itself and for the package; for nothing that we import."""
    wanted = {"argparse", "json", *OURS} - {"bnn_vnnlib"}
    for path in trap.glob("*.py"):
        if path.stem not in wanted:
            path.unlink()
    started(trap, sys.executable, "-m", "bnn_vnnlib", "run", ".", "--out", trap.parent / "out")


def test_a_path_that_names_the_folder_does_not_reach_the_workers(trap):
    """The program's own path may hold '' or '.', where somebody put it there."""
    program = trap.parent / "starter.py"
    program.write_text("""
import sys
from bnn_vnnlib.jobs.worker import Worker, WorkerKind
sys.path[:0] = ["", ".", sys.argv[1]]
Worker(WorkerKind()).end()
""")
    started(trap, sys.executable, "-P", program, trap)


def test_the_scripts_of_the_competition(trap):
    tool = trap.parent / "tool"
    tool.write_text(f'#!/usr/bin/env bash\nexec "{sys.executable}" -m bnn_vnnlib "$@"\n')
    tool.chmod(0o755)
    names = ("v1", "category", "net.onnx", "holds.vnnlib")
    started(trap, "bash", ROOT / "scripts/prepare_instance.sh", *names, BNN_VNNLIB=str(tool))
    results = trap.parent / "results.txt"
    started(trap, "bash", ROOT / "scripts/run_instance.sh", *names, results, 60, BNN_VNNLIB=str(tool))
    assert results.read_text() == "unsat\n"


def test_the_trusted_path(tmp_path, monkeypatch):
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
    (tmp_path / "link").symlink_to(here)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", str(other), ".", str(here), str(tmp_path / "link"), "../other", str(ROOT)])
    assert isolation.trusted_path() == [str(other), str(ROOT)]
    with isolation.isolated():
        assert sys.path == [str(other), str(ROOT)]
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert sys.path[0] == ""
    assert os.environ.get("PYTHONSAFEPATH") != "1"
    monkeypatch.chdir(ROOT)  # a checkout: this package's own folder
    assert isolation.trusted_path()[0] == str(ROOT)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(here / "script.py"), raising=False)
    assert str(here) in isolation.trusted_path()  # a script's own folder
