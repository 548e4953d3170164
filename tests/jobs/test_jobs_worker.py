"""Worker processes: they answer, end in time, and leave nothing behind, however they or their parent end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.jobs import worker as workers
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.jobs.worker import Died, Fleet, Overdue, Worker, WorkerKind, discard, own_worker

ROOT = Path(__file__).resolve().parents[2]
STARTER = """
import sys
import signal
from collections import deque
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.runs.tools import Tool, ToolTask, run_tool

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored
command = "bash -c 'sleep 600 & echo $$ $! >{0}; mv {0} {1}; wait' {{onnx}} {{vnnlib}}".format(*sys.argv[1:])
task = ToolTask("c", "net", "p", Tool("other", command), "net.onnx", "p.vnnlib", 600.0)
with Slots(1, 1).pool() as pool:
    list(pool.completed(deque([task]), lambda task: (run_tool, task)))
"""


@pytest.fixture
def worker():
    worker = Worker(WorkerKind(threads=1))
    yield worker
    worker.end()


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


def test_it_answers_and_raises_and_goes_on(worker):
    assert worker.call(pow, 2, 10) == 1024
    assert worker.call(bytes, 3 * 10**6) == bytes(3 * 10**6)  # more than a pipe holds
    with pytest.raises(ZeroDivisionError) as caught:
        worker.call(divmod, 1, 0)
    assert "In the worker process:" in caught.value.__notes__[0]
    with pytest.raises(OptionError, match=r"^workers must be at least 1, found 0$"):
        worker.call(Slots, 0)
    with pytest.raises(RuntimeError, match="SystemExit"):
        worker.call(sys.exit, 3)
    with pytest.raises(RuntimeError, match="an answer that cannot be sent: lock"):
        worker.call(threading.Lock)
    assert worker.call(os.getenv, "OMP_NUM_THREADS") == "1"
    assert worker.call(input_of_nobody) == ""


def input_of_nobody() -> str:
    return sys.stdin.read()


def test_how_it_died_is_told(worker):
    with pytest.raises(Died, match=r"^exit code 3$"):
        worker.call(os._exit, 3)
    with pytest.raises(Died, match=r"^exit code 3$"):  # and again
        worker.call(pow, 2, 2)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_that_ended_it_is_told(worker, number):
    with pytest.raises(Died, match=f"^signal {number.name}"):
        worker.call(signal.raise_signal, number)


def test_one_that_overstays_or_is_stopped_is_ended_with_all_that_it_started(worker):
    child = worker.call(sleeper)
    assert runs(child)
    begun = time.monotonic()
    worker._process.send_signal(signal.SIGSTOP)  # whatever it is sent: more than its pipe holds
    with pytest.raises(Overdue, match=r"no answer after 0\.5 s"):
        worker.call(len, bytes(10**7), limit=0.5)
    assert time.monotonic() - begun < 20
    assert within(20, lambda: not runs(child))


def sleeper() -> int:
    """Start a program, in the group of whoever calls."""
    return subprocess.Popen(["sleep", "600"]).pid


@pytest.mark.parametrize("busy", [False, True])
def test_without_a_parent_it_ends_whatever_it_does_and_whatever_it_started(worker, busy):
    child = worker.call(sleeper)
    if busy:
        worker._pipe.send((time.sleep, (600,)))
    worker._pipe.close()
    assert worker._process.wait(20) == -signal.SIGKILL
    assert within(20, lambda: not runs(child))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGKILL,), (signal.SIGSTOP, signal.SIGKILL)],
    ids=lambda signals: "-".join(number.name for number in signals),
)
def test_a_signal_leaves_no_tool_and_none_of_its_helpers(tmp_path, signals):
    """The stand-in of a tool starts a child; the program runs it as `compare` does, and gets the signals."""
    pids = tmp_path / "pids"
    words = [sys.executable, "-c", STARTER, str(tmp_path / "scratch"), str(pids)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert within(60, pids.exists)
        tool, child = map(int, pids.read_text().split())
        assert runs(tool)
        assert runs(child)
        for number in signals:
            process.send_signal(number)
        process.wait(20)  # far below the tool's own limit
        assert within(20, lambda: not runs(tool) and not runs(child))
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (-signals[-1], 1 if signals == (signal.SIGINT,) else -signals[-1])


def test_a_thread_keeps_its_worker_until_another_kind_is_wanted():
    first, seconds = own_worker(WorkerKind(threads=1))
    try:
        assert seconds > 0
        assert own_worker(WorkerKind(threads=1)) == (first, 0.0)
        second, _ = own_worker(WorkerKind(threads=2))
        assert first._process.returncode == -signal.SIGKILL
        with ThreadPoolExecutor(1) as pool:  # another thread, another worker
            assert pool.submit(lambda: own_worker(WorkerKind(threads=2))[0]).result() is not second
            pool.submit(discard).result()
        assert second.call(pow, 2, 2) == 4
    finally:
        discard()
    assert second._process.returncode == -signal.SIGKILL


def test_one_that_starts_while_the_run_ends_is_not_left_behind(tmp_path, monkeypatch):
    program = tmp_path / "slow.py"
    program.write_text(
        "import sys, time\ntime.sleep(0.5)\nsys.path[:] = sys.argv.pop(1).split('\\n')\n"
        "from bnn_vnnlib.jobs.worker import serve\nserve()\n"
    )
    monkeypatch.setattr(workers, "PROGRAM", (str(program),))
    fleet = Fleet()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(fleet.start, WorkerKind())
        time.sleep(0.2)
        fleet.close()
        with pytest.raises(Died, match="the run was ended"):
            started.result(60)
    with pytest.raises(Died, match="the run was ended"):
        fleet.start(WorkerKind())


def test_a_pool_takes_tasks_that_come_late_and_tells_what_failed():
    tasks, found = deque([1, 2]), {}
    with Slots(2).pool() as pool:
        for task, result in pool.completed(tasks, lambda task: (divmod, 12, 3 - task)):
            found[task] = result
            if task == 1:
                tasks.extend([3, 4])
    assert {task: result for task, result in found.items() if task != 3} == {1: (6, 0), 2: (12, 0), 4: (-12, 0)}
    assert isinstance(found[3], ZeroDivisionError)


def test_an_idle_worker_that_is_killed_costs_nothing_but_itself():
    """What the pools of pebble and loky do not survive."""
    with Slots(2, 1).pool() as pool:
        pids = {pid for _, pid in pool.completed(deque(range(6)), lambda _task: (pid_after, 0.2))}
        assert len(pids) == 2
        os.kill(min(pids), signal.SIGKILL)
        assert within(20, lambda: not runs(min(pids)))
        time.sleep(1)  # its threads, and with them its end of the pipe, may last a moment longer than its first one
        found = {pid for _, pid in pool.completed(deque(range(6)), lambda _task: (pid_after, 0.2))}
    assert max(pids) in found
    assert min(pids) not in found
    assert len(found) == 2


def pid_after(seconds: float) -> int:
    """The number of this thread's worker, which takes so long to tell it."""
    worker, _ = own_worker(WorkerKind(1))
    worker.call(time.sleep, seconds)
    return worker.call(os.getpid)
