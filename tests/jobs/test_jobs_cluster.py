"""Jobs on a Dask cluster whose scheduler and workers are processes of their own, one of which is killed on the way."""

from __future__ import annotations

from pathlib import Path

import lost_workers
import pytest

from bnn_vnnlib.jobs import pool
from bnn_vnnlib.sweeps import Radii, Source, make_inputs, radii
from support.command import call
from sweeps.sweep_models import boxes, write_net

pytest.importorskip("distributed", reason="Dask (distributed) is not installed")

PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))
(assert (>= Y_0 {bound}))
"""
COUNT = 12


@pytest.fixture
def benchmark(tmp_path, identity_model) -> Path:
    folder = tmp_path / "identity"
    folder.mkdir()
    (folder / "net.onnx").write_bytes(identity_model.read_bytes())
    for index in range(COUNT):
        (folder / f"{index}.vnnlib").write_text(PROPERTY.format(bound=0.5 + 0.1 * index))
    (folder / "instances.csv").write_text("".join(f"net.onnx,{index}.vnnlib,60\n" for index in range(COUNT)))
    return folder


def test_a_worker_that_is_killed_changes_nothing_of_a_run(benchmark, tmp_path):
    """scripts/measure/lost_workers.py compares more of them."""
    lost_workers.ran(benchmark, [], tmp_path)
    assert {row[3] for row in lost_workers.verdicts(tmp_path / "run True")} == {"sat", "unsat"}


def test_a_worker_that_is_killed_changes_no_byte_of_a_sweep(tmp_path):
    """scripts/measure/lost_workers.py does this with 200,000 boxes."""
    pytest.importorskip("pyarrow", reason="pyarrow (extra `parquet`) is not installed")
    net = write_net(tmp_path / "net.onnx", [3, 8, 4], samples=3)
    lost_workers.swept(net, boxes(300, 3, 4), tmp_path, chunk=8)


def test_steps_of_a_search_on_a_cluster_of_its_own(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow (extra `parquet`) is not installed")
    net = Source(write_net(tmp_path / "net.onnx", [3, 8, 4], samples=3))
    inputs, search = make_inputs({"x": boxes(6, 3, 4)["lower"]}), Radii(largest=0.5, tolerance=0.1)
    radii(net, inputs, search, out=tmp_path / "alone", chunk=3, threads=1)
    seen = []
    radii(net, inputs, search, out=tmp_path / "local", chunk=3, threads=1, scheduler="local", watch=seen.append)
    assert seen[-1].steps > 2
    for name in ("radii.parquet", "summary.csv"):
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_cluster_of_its_own(benchmark, tmp_path, command):
    args = (benchmark, "--out", tmp_path / "out", "--scheduler", "local", "--workers", 1, "--only", "/0.vnnlib")
    call(command, *args)
    folder = tmp_path / "out" if command == "run" else tmp_path / "out" / "runs" / "bnn-vnnlib"
    assert [row[3] for row in lost_workers.verdicts(folder)] == ["sat"]


def test_no_scheduler_there(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "CONNECT", 0.5)
    args = ("run", benchmark, "--out", tmp_path / "out", "--scheduler", "tcp://127.0.0.1:1")
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in call(*args, code=2).stderr
