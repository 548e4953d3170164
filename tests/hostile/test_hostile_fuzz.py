"""The fuzzer of the readers: a short run, and proof that it finds what is wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from bnn_vnnlib.errors import ModelError, PropertyError
from hostile.inputs import SHARES, Campaign, case, seeds
from hostile.mangled_properties import HEAD
from hostile.reader import Outcome, Reader, judged

SHIPPED = Path(__file__).resolve().parents[2] / "benchmarks"
TEXT = HEAD + "(assert (<= Y_0 0.5))"


@pytest.fixture(scope="module")
def found() -> dict[str, list[bytes]]:
    return seeds([SHIPPED])


class InProcess:
    """Reads in this process: without limits, without the start of another one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, suffix: str, data: bytes) -> Outcome:
        path = self.folder / f"case{suffix}"
        path.write_bytes(data)
        return judged(path)


def test_a_short_run(tmp_path: Path, found: dict[str, list[bytes]]) -> None:
    campaign = Campaign(tmp_path / "runs", 0, found)
    assert len(list(campaign.run(InProcess(tmp_path), time.monotonic() + 60, most=400))) == 400  # type: ignore[arg-type]
    assert campaign.failures == []
    assert campaign.counts[".onnx read"] > 10
    assert campaign.counts[".vnnlib read"] > 5
    assert campaign.counts[".vnnlib refused"] > 50
    assert all(campaign.counts[f"{suffix} refused"] for suffix in SHARES)


@pytest.mark.parametrize("kind", [".npz", ".csv", ".json", ".txt", ".parquet"])
def test_a_short_run_of_one_kind(tmp_path: Path, found: dict[str, list[bytes]], kind: str) -> None:
    campaign = Campaign(tmp_path / "runs", 1000, found, kind)
    list(campaign.run(InProcess(tmp_path), time.monotonic() + 60, most=100))  # type: ignore[arg-type]
    assert campaign.failures == []
    assert campaign.counts[f"{kind} refused"] > 10
    assert sum(campaign.counts.values()) == 100


@pytest.mark.parametrize("kind", [".npz", ".csv", ".json", ".txt", ".parquet"])
def test_files_that_are_not_mangled_are_read(tmp_path: Path, found: dict[str, list[bytes]], kind: str) -> None:
    """Or the fuzzer would look at refusals only. A table of one kind is none of another, so one reader is enough."""
    for data in found[kind][: 28 if kind == ".npz" else 2]:
        (tmp_path / f"case{kind}").write_bytes(data)
        assert judged(tmp_path / f"case{kind}").kind == "read"


def test_cases_are_reproducible(found: dict[str, list[bytes]]) -> None:
    assert [case(number, found) for number in range(20)] == [case(number, found) for number in range(20)]
    assert case(3, found) != case(4, found)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (KeyError("x"), "crash"),
        (MemoryError(), "crash"),
        (RecursionError(), "crash"),
        (PropertyError(""), "crash"),
        (ModelError("Unable to allocate 8 GiB"), "crash"),
        (PropertyError("no"), "refused"),
    ],
)
def test_what_counts_as_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, kind: str) -> None:
    import bnn_vnnlib

    def broken(_path: Path) -> None:
        raise fault

    monkeypatch.setitem(vars(bnn_vnnlib), "read_property", broken)
    (tmp_path / "p.vnnlib").write_text(TEXT)
    assert judged(tmp_path / "p.vnnlib").kind == kind


def test_a_process_of_its_own_with_limits(tmp_path: Path, found: dict[str, list[bytes]]) -> None:
    """A file that takes too long is a hang, a process that dies a crash; the next file is read all the same."""
    with Reader(60) as reader:
        assert reader.read(".vnnlib", TEXT.encode()).kind == "read"
        assert reader.read(".onnx", b"").kind == "refused"
        assert reader._process is not None
        assert reader._process.pid is not None
        os.kill(reader._process.pid, signal.SIGSTOP)  # certain not to answer, however fast the machine
        reader.seconds = 0.05
        assert reader.read(".vnnlib", TEXT.encode()).kind == "hang"
        reader.seconds = 60
        assert reader.read(".vnnlib", TEXT.encode()).kind == "read"
        assert reader._process is not None
        reader._process.kill()
        reader._process.join()
        campaign = Campaign(tmp_path, 7, found)
        assert list(campaign.run(reader, time.monotonic() + 60, most=1)) == [7]
    (kept,) = campaign.failures
    assert Path(kept).read_bytes() == case(7, found)[1]
    assert "the process ended" in Path(f"{kept}.txt").read_text()
    campaign.save()
    assert json.loads((tmp_path / "progress-7.json").read_text())["next"] == 8
    assert Campaign(tmp_path, 7, found).next == 8
