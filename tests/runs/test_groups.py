"""Tools do not outlive the program that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bnn_vnnlib.runs.groups import Ended, Groups

ROOT = Path(__file__).resolve().parents[2]
STARTER = """
import sys
import signal
from bnn_vnnlib.runs.pools import Places, completed
from bnn_vnnlib.runs.tools import Tool, ToolTask, run_tool

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored
command = "bash -c 'sleep 600 & echo $$ $! >{0}; mv {0} {1}; wait' {{onnx}} {{vnnlib}}".format(*sys.argv[1:])
task = ToolTask("c", "net", "p", Tool("other", command), "net.onnx", "p.vnnlib", 600.0)
with Places(1, 1).executor() as executor:
    list(completed(executor, run_tool, [task]))
"""


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not happened() and time.monotonic() < until:
        time.sleep(0.02)
    return happened()


def runs(pid: int) -> bool:
    """Whether a process is there and is no zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_leaves_no_tool_and_none_of_its_helpers(tmp_path, number):
    """The stand-in of a tool starts a child; the program runs it as `compare` does, and gets the signal."""
    pids = tmp_path / "pids"
    words = [sys.executable, "-c", STARTER, str(tmp_path / "scratch"), str(pids)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert within(60, pids.exists)
        tool, child = map(int, pids.read_text().split())
        assert runs(tool)
        assert runs(child)
        process.send_signal(number)
        process.wait(20)  # far below the tool's own limit
        assert within(20, lambda: not runs(tool) and not runs(child))
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (-number, 1 if number is signal.SIGINT else -number)


def test_nothing_starts_after_the_end():
    groups = Groups()
    process = groups.start(["sleep", "600"])
    groups.close()
    assert process.wait(20) == -signal.SIGKILL
    with pytest.raises(Ended):
        groups.start(["sleep", "600"])
    groups.end(process)
    groups.rest()
    groups.end(groups.start(["true"]))
    groups.rest()


def test_a_watchdog_that_is_gone_is_replaced_and_told_of_everything():
    groups = Groups()
    first = groups.start(["sh", "-c", "echo ready; exec sleep 600"], stdout=subprocess.PIPE)
    assert first.stdout is not None
    with first.stdout:
        assert first.stdout.readline() == b"ready\n"  # it has announced itself, which needs the watchdog
    assert groups._watchdog is not None
    groups._watchdog.kill()
    groups._watchdog.wait()
    second = groups.start(["sleep", "600"])
    watchdog = groups._watchdog
    assert watchdog.poll() is None
    groups._watchdog = None
    watchdog.communicate()  # as if this process were gone
    assert first.wait(20) == second.wait(20) == -signal.SIGKILL
    for process in (first, second):
        groups.end(process)
    groups.rest()
