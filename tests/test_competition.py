"""A plain shell loop that does what the competition's runner does, around our scripts and around others."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))
(assert (>= Y_0 {bound}))
"""
NEW = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0)))
(assert (>= Y[0,0] 0.5))
"""


def loop(table: Path, out: Path, *more: str, **environment: str) -> list[list[str]]:
    command = ["bash", str(ROOT / "scripts/competition.sh"), "cat", str(table), str(out), *more]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with (out / "results.csv").open() as stream:
        rows = list(csv.reader(stream))
    assert done.stdout.splitlines() == (out / "results.csv").read_text().splitlines()
    return rows


def test_our_scripts_under_the_loop(tmp_path, identity_model):
    tool = tmp_path / "tool"
    tool.write_text(f'#!/usr/bin/env bash\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m bnn_vnnlib "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "net.onnx").write_bytes(identity_model.read_bytes())
    for name, bound in {"holds": 1.5, "fails": 0.5}.items():
        (tmp_path / f"{name}.vnnlib").write_text(PROPERTY.format(bound=bound))
    (tmp_path / "broken.vnnlib").write_text("(declare-const X_0 Real")
    # What the ranges of X_0 and Y_0 alone do not settle: that needs no time.
    (tmp_path / "slow.vnnlib").write_text(PROPERTY.format(bound="(+ X_0 0.5)"))
    # Stored packed, named unpacked; VNN-LIB 2.0.
    (tmp_path / "packed.onnx.gz").write_bytes(gzip.compress(identity_model.read_bytes()))
    (tmp_path / "new.vnnlib.gz").write_bytes(gzip.compress(NEW.encode()))
    lines = ["net.onnx,holds.vnnlib,100.0", "\"[('f', 'net.onnx')]\",fails.vnnlib,100", "net.onnx,broken.vnnlib,100",
             "net.onnx,nowhere.vnnlib,100", "nowhere.onnx,holds.vnnlib,100", "packed.onnx,new.vnnlib,100",
             "net.onnx,slow.vnnlib,0.1", "\"[('f', 'net.onnx'), ('g', 'net.onnx')]\",holds.vnnlib,100"]  # fmt: skip
    (tmp_path / "instances.csv").write_text("\n".join(lines))  # the last line without its end
    out = tmp_path / "out"
    rows = loop(tmp_path / "instances.csv", out, BNN_VNNLIB=str(tool))
    assert [row[4] for row in rows] == [
        "unsat", "sat", "error", "prepare_failed", "prepare_failed", "sat", "timeout", "prepare_failed",
    ]  # fmt: skip
    assert (out / "6.txt").read_text().startswith("sat\nX float32 [1,2]\n")
    assert "several networks are not supported" in (out / "8.log").read_text()
    assert rows[1][1] == "[('f', 'net.onnx')]"
    assert all(len(row) == 6 and float(row[3]) > 0 for row in rows)
    assert (out / "2.txt").read_text().startswith("sat\n((X_0 ")
    assert "no such file: nowhere.vnnlib" in (out / "4.log").read_text()


@pytest.mark.parametrize("script", ["sleep 600", "echo unsat >$5; exec sleep 600", "(sleep 3; echo >$5.alive) & wait"])
def test_a_tool_that_overstays_is_killed_with_all_it_started(tmp_path, script):
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "prepare_instance.sh").write_text("exit 0\n")
    (folder / "run_instance.sh").write_text(f"{script}\n")
    (tmp_path / "instances.csv").write_text("a.onnx,b.vnnlib,0.5\n")
    begun = time.monotonic()
    (row,) = loop(tmp_path / "instances.csv", tmp_path / "out", "0.5", SCRIPTS=str(folder))
    assert time.monotonic() - begun < 60
    assert row[4] == "run_instance_timeout"
    assert float(row[5]) >= 1.0
    if "alive" in script:
        time.sleep(max(0.0, begun + 5 - time.monotonic()))
        assert not (tmp_path / "out" / "1.txt.alive").exists()
