"""Files that outlast a power cut, and a lock that no dead process holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.system.durable import LOCK, locked, make_folder, replacing

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks in /proc which file is flushed")
def test_contents_are_on_the_disk_before_the_name_and_the_name_before_it_is_said(tmp_path, monkeypatch):
    done = []
    flush, rename = os.fsync, Path.replace

    def fsync(descriptor):
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append("flush " + ("folder" if name.is_dir() else f"{name.stat().st_size} bytes"))
        flush(descriptor)

    def replace(self, target):
        done.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_text(tmp_path / "a.txt", "four")
    assert done == ["flush 4 bytes", "rename", "flush folder"]
    done.clear()
    make_folder(tmp_path / "b" / "c")
    assert done == ["flush folder"] * 2


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("earlier")
    with pytest.raises(ZeroDivisionError), replacing(path) as stream:
        stream.write(bytes(1 // 0))
    assert path.read_text() == "earlier"
    assert [other.name for other in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(InputError, match="cannot be written"), replacing(tmp_path / "nowhere" / "b.txt"):
        pass


def test_what_a_killed_process_left_is_cleared(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in (".a.txt.123.part", "deep/.b.parquet.9.part", "a.txt", "mine.part"):
        (tmp_path / name).write_text("half")
    with locked(tmp_path):
        left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left - {LOCK} == {"a.txt", "mine.part"}


HOLDER = """
import sys, time
from pathlib import Path
from bnn_vnnlib.system.durable import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_the_second_process_is_told_and_a_dead_one_holds_nothing(tmp_path):
    pytest.importorskip("fcntl", reason="no locks of this kind on this system")
    folder = tmp_path / "made"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"locked\n"
    said = rf"another process .*\(process {process.pid} on .*take another folder"
    with pytest.raises(OptionError, match=said), locked(folder):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / LOCK).exists()
    with locked(folder):
        pass
    with locked(folder):
        pass


def test_without_locks_of_this_kind_the_work_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file.*out: the folder cannot be made"), locked(tmp_path / "file" / "out"):
        pass
