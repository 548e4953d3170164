"""A run on a Dask cluster whose scheduler and workers are processes of their own, one of which is killed on the way."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bnn_vnnlib.cli import app

pytest.importorskip("distributed", reason="Dask (distributed) is not installed")

ROOT = Path(__file__).resolve().parents[2]
PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))
(assert (>= Y_0 {bound}))
"""
COUNT = 12


@pytest.fixture
def benchmark(tmp_path, identity_model):
    folder = tmp_path / "identity"
    folder.mkdir()
    (folder / "net.onnx").write_bytes(identity_model.read_bytes())
    bounds = [0.5 + 0.1 * index for index in range(COUNT)]
    for index, bound in enumerate(bounds):
        (folder / f"{index}.vnnlib").write_text(PROPERTY.format(bound=bound))
    (folder / "instances.csv").write_text("".join(f"net.onnx,{index}.vnnlib,60\n" for index in range(COUNT)))
    return folder


@pytest.fixture
def cluster(tmp_path):
    """Address of a scheduler, and its two workers; the address is the scheduler's own choice, so no port is guessed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    told = tmp_path / "scheduler.json"
    started: list[subprocess.Popen] = []

    def start(*args: str) -> subprocess.Popen:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "distributed.cli." + args[0], *args[1:]],
                env=environment,
                cwd=tmp_path,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        return started[-1]

    start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told))
    same = ("--nthreads", "1", "--no-dashboard", "--scheduler-file", str(told), "--host", "127.0.0.1")
    workers = [start("dask_worker", *same, "--no-nanny", "--name", name) for name in ("one", "two")]
    until = time.monotonic() + 60
    while not told.exists() and time.monotonic() < until:
        time.sleep(0.05)
    import json

    yield json.loads(told.read_text())["address"], workers
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def verdicts(out: Path) -> list[list[str]]:
    """results.csv without its times."""
    with (out / "results.csv").open() as stream:
        return [[*row[:3], row[4]] for row in csv.reader(stream)]


def test_a_killed_worker_changes_nothing(benchmark, cluster, tmp_path, monkeypatch):
    address, workers = cluster
    plain, clustered = tmp_path / "plain", tmp_path / "clustered"
    assert CliRunner().invoke(app, ["run", str(benchmark), "--out", str(plain)]).exit_code == 0

    from bnn_vnnlib.runs.store import Store

    keep, kept = Store.write, []

    def write(self, place, *args, **more):
        kept.append(place)
        if len(kept) == 2:
            workers[0].kill()
        return keep(self, place, *args, **more)

    monkeypatch.setattr(Store, "write", write)
    said = CliRunner().invoke(app, ["run", str(benchmark), "--out", str(clustered), "--scheduler", address])
    assert said.exit_code == 0, said.stderr
    assert workers[0].wait(10) == -signal.SIGKILL
    assert workers[1].poll() is None
    assert len(kept) == len(set(kept)) == COUNT
    assert verdicts(clustered) == verdicts(plain)
    assert {row[3] for row in verdicts(plain)} == {"sat", "unsat"}


def test_a_cluster_of_its_own(benchmark, tmp_path):
    out = tmp_path / "out"
    args = ["run", str(benchmark), "--out", str(out), "--scheduler", "local", "--workers", "1", "--only", "/0.vnnlib"]
    said = CliRunner().invoke(app, args)
    assert said.exit_code == 0, said.stderr
    assert [row[3] for row in verdicts(out)] == ["sat"]


def test_no_scheduler_there(benchmark, tmp_path, monkeypatch):
    from bnn_vnnlib.runs import pools

    monkeypatch.setattr(pools, "CONNECT", 0.5)
    args = ["run", str(benchmark), "--out", str(tmp_path / "out"), "--scheduler", "tcp://127.0.0.1:1"]
    said = CliRunner().invoke(app, args)
    assert said.exit_code == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in said.stderr
