"""Runs: processes that crash and hang, folders that resume, tables. A small program stands for the real process."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import onnx
import pytest

from bnn_vnnlib import Verdict
from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.jobs import worker
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.runs import task as tasks
from bnn_vnnlib.runs.records import Records
from bnn_vnnlib.runs.tables import COLUMNS
from bnn_vnnlib.system.durable import locked
from support.command import call

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import json, os, signal, sys, time
sys.path[:] = sys.argv.pop(1).split("\\n")
from bnn_vnnlib.jobs import worker
from bnn_vnnlib.runs import task

def decide(arguments, log):
    given = dict(word.split("=", 1) for word in arguments if "=" in word)
    with open(log, "w") as stream:
        print("valid" if arguments[0] == "check-witness" else "words of the program", file=stream)
    if arguments[0] == "check-witness":
        return 0
    what = open(arguments[1]).read().split()[0]
    if what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "memory":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(600)
    if what == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "nothing":
        return 7
    word = {"fault": "error", "late": "timeout"}.get(what, what)
    if what == "edits":
        open(arguments[1], "a").write(" edited")
        word = "unsat"
    record = {"verdict": word, "query": given.get("--query"), "p_safe": {"lower": 0.25, "upper": 0.75},
              "decision": {"lower": ["-Infinity", 0.5], "upper": [1.0, 2.0]}, "method": "stand-in", "notes": ["a note"],
              "timeout": float(given["--timeout"]), "pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"],
              "mkl": os.environ["MKL_NUM_THREADS"]}
    with open(given["--results-file"] + ".json", "w") as stream:
        json.dump(record, stream)
    with open(given["--results-file"], "w") as stream:
        stream.write(word + "\\n" + ("((X_0 1.0) (Y_0 2.0))\\n" if word == "sat" else ""))
    if what == "late":
        os._exit(0)
    return 1 if what == "fault" else 0

task.work_off = decide
worker.serve()
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A process that does what the property's file says."""
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    monkeypatch.setattr(worker, "PROGRAM", (str(program),))
    monkeypatch.setattr(tasks, "MODULES", ())
    monkeypatch.setattr(tasks, "GRACE", 0.5)
    return program


@pytest.fixture
def benchmark(tmp_path):
    """Makes a benchmark: a property for each word."""

    def make(*words: str, name: str = "bench", timeout: float = 20.0) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "net.onnx").write_text("a network")
        rows = []
        for index, word in enumerate(words):
            if word != "missing":
                (folder / f"{index}_{word}.vnnlib").write_text(word)
            rows.append(f"net.onnx,{index}_{word}.vnnlib,{0.1 if word in ('hang', 'stopped') else timeout}\n")
        (folder / "instances.csv").write_text("".join(rows))
        return folder

    return make


def run(*args: object, code: int = 0):
    return call("run", *args, code=code)


def results(out: Path) -> list[tuple[str, str]]:
    """(property's word, result) of results.csv."""
    with (out / "results.csv").open() as stream:
        return [(row[2].split("_")[1].removesuffix(".vnnlib"), row[4]) for row in csv.reader(stream)]


def table(out: Path) -> list[dict[str, str]]:
    with (out / "table.csv").open() as stream:
        return list(csv.DictReader(stream))


def record(out: Path, word: str) -> dict:
    (path,) = (out / "instances").glob(f"*/*_{word}-*.txt.json")
    return json.loads(path.read_text())


def test_one_instance_that_dies_does_not_end_the_run(stand_in, benchmark, tmp_path):
    words = ("unsat", "segfault", "memory", "sat", "hang", "stopped", "nothing", "fault", "late", "missing", "unknown")
    out = tmp_path / "out"
    run(benchmark(*words), "--out", out, "--workers", 2)
    expected = {"segfault": "error", "memory": "error", "hang": "timeout", "stopped": "timeout", "nothing": "error",
                "fault": "error", "late": "timeout", "missing": "error"}  # fmt: skip
    assert results(out) == [(word, expected.get(word, word)) for word in words]
    reasons = {row["property"].split("_")[1].removesuffix(".vnnlib"): row["reason"] for row in table(out)}
    assert "signal SIGSEGV" in reasons["segfault"]
    assert "SIGKILL, as when memory runs out" in reasons["memory"]
    assert "hung beyond the time limit" in reasons["hang"]
    assert "hung beyond the time limit" in reasons["stopped"]
    assert "exit code 7" in reasons["nothing"]
    assert "no such file" in reasons["missing"]
    (log,) = (out / "instances").glob("*/*segfault-*.log")
    assert log.read_text() == "words of the program\n"
    assert not list((out / "instances").glob("*/*_unsat-*.log"))


def test_a_process_serves_again_unless_something_went_wrong(stand_in, benchmark, tmp_path):
    out = tmp_path / "out"
    run(benchmark("unsat", "unknown", "fault", "sat"), "--out", out, "--workers", 1)
    pids = {word: record(out, word)["pid"] for word in ("unsat", "unknown", "fault", "sat")}
    assert pids["unsat"] == pids["unknown"] == pids["fault"]
    assert pids["sat"] != pids["fault"]
    for pid in set(pids.values()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_fresh_gives_every_instance_a_process(stand_in, benchmark, tmp_path):
    out = tmp_path / "out"
    run(benchmark("unsat", "unknown"), "--out", out, "--workers", 1, "--fresh")
    assert record(out, "unsat")["pid"] != record(out, "unknown")["pid"]
    assert all(float(row["prepare_time"]) > 0 for row in table(out))


def test_a_run_that_was_ended_goes_on(stand_in, benchmark, tmp_path):
    folder, out = benchmark("unsat", "sat", "unknown", "fault"), tmp_path / "out"
    run(folder, "--out", out)
    before = {path: path.stat().st_mtime_ns for path in (out / "instances").rglob("*.txt")}
    (done,) = (out / "instances").glob("*/*_sat-*.txt")
    done.unlink()  # as if it had been ended before this instance was finished
    said = run(folder, "--out", out).stderr
    assert "3 of 4 instances are finished; 1 to go" in said
    changed = [path for path in before if path.stat().st_mtime_ns != before[path]]
    assert changed == [done]
    assert results(out) == [("unsat", "unsat"), ("sat", "sat"), ("unknown", "unknown"), ("fault", "error")]


@pytest.mark.parametrize(
    ("again", "words"),
    [
        ("never", []),
        ("failed", ["fault"]),
        ("unknown", ["fault", "late", "unknown"]),
        ("all", ["fault", "late", "sat", "unknown"]),
    ],
)
def test_what_is_run_again(stand_in, benchmark, tmp_path, again, words):
    folder, out = benchmark("sat", "unknown", "fault", "late"), tmp_path / "out"
    run(folder, "--out", out, "--workers", 1)
    pids = {word: record(out, word)["pid"] for word in ("sat", "unknown", "fault", "late")}
    run(folder, "--out", out, "--workers", 1, "--rerun", again)
    assert sorted(word for word, pid in pids.items() if record(out, word)["pid"] != pid) == words


def test_a_folder_with_other_settings_is_refused(stand_in, benchmark, tmp_path):
    folder, out = benchmark("unknown"), tmp_path / "out"
    run(folder, "--out", out)
    said = run(folder, "--out", out, "--method", "interval", "--timeout", 5, code=2).stderr
    assert "other settings" in said
    assert "(--timeout: not given there, 5 now, --method: not given there, interval now)" in said
    run(folder, "--out", out, "--timeout", 5, "--rerun", "unknown")
    assert record(out, "unknown")["timeout"] == 5.0
    run(folder, "--out", out, "--timeout", 5, "--workers", 2)  # where it runs is no setting


def test_results_of_other_files_are_not_taken_over(stand_in, benchmark, tmp_path):
    folder, out = benchmark("unsat", "unknown", "sat"), tmp_path / "out"
    run(folder, "--out", out)
    (folder / "0_unsat.vnnlib").write_text("sat")
    said = run(folder, "--out", out).stderr
    assert "finished, but made of other files, so run again: 1" in said
    assert results(out)[0] == ("unsat", "sat")
    (folder / "net.onnx").write_text("another network")
    assert "finished, but made of other files, so run again: 3" in run(folder, "--out", out).stderr
    assert "so run again" not in run(folder, "--out", out).stderr


def test_another_benchmark_of_the_same_name_has_its_own_results(stand_in, benchmark, tmp_path):
    out = tmp_path / "out"
    first = benchmark("unsat")
    run(first, "--out", out)
    other = tmp_path / "elsewhere" / "bench"
    shutil.copytree(first, other)
    assert "1 of 1 instances are finished" in run(other, "--out", out).stderr  # the same files at another place
    (other / "0_unsat.vnnlib").write_text("unknown")
    run(other, "--out", out)
    assert results(out) == [("unsat", "unknown")]


def test_weights_beside_the_model_belong_to_it(stand_in, benchmark, tmp_path, identity_model):
    folder, out = benchmark("unsat"), tmp_path / "out"
    weights = {"location": "weights.bin", "all_tensors_to_one_file": True, "size_threshold": 0}
    onnx.save(onnx.load(identity_model), folder / "net.onnx", save_as_external_data=True, **weights)
    run(folder, "--out", out)
    (folder / "weights.bin").write_bytes((folder / "weights.bin").read_bytes()[::-1])
    assert "made of other files, so run again: 1" in run(folder, "--out", out).stderr


def test_files_that_change_while_they_are_worked_on_give_no_verdict(stand_in, benchmark, tmp_path):
    folder, out = benchmark("edits"), tmp_path / "out"
    assert "files changed while the run went on" in run(folder, "--out", out, code=1).stderr
    assert results(out) == [("edits", "error")]


def test_a_table_may_be_edited(stand_in, benchmark, tmp_path):
    """Lines that move, go and come leave the others their results; the tables are in the order of the lines."""
    folder, out = benchmark("unsat", "sat", "unknown"), tmp_path / "out"
    one, two, three = (folder / "instances.csv").read_text().splitlines()
    run(folder, "--out", out)
    (folder / "instances.csv").write_text("\n".join([three, one]))
    assert "2 of 2 instances are finished" in run(folder, "--out", out).stderr
    assert results(out) == [("unknown", "unknown"), ("unsat", "unsat")]
    (folder / "9_late.vnnlib").write_text("late")
    (folder / "instances.csv").write_text("\n".join(["net.onnx,9_late.vnnlib,20.0", two, three, one]))
    assert "3 of 4 instances are finished; 1 to go" in run(folder, "--out", out).stderr
    assert [word for word, _ in results(out)] == ["late", "sat", "unknown", "unsat"]


def test_a_line_that_is_there_twice_is_run_once_and_shown_twice(stand_in, benchmark, tmp_path):
    folder, out = benchmark("unsat", "sat"), tmp_path / "out"
    one, two = (folder / "instances.csv").read_text().splitlines()
    (folder / "instances.csv").write_text("\n".join([one, two, one, one.replace("20.0", "30")]))
    assert "[3/3]" in run(folder, "--out", out, "--workers", 1).stderr  # another limit is another instance
    assert results(out) == [("unsat", "unsat"), ("sat", "sat"), ("unsat", "unsat"), ("unsat", "unsat")]
    rows = table(out)
    assert rows[0] == rows[2]
    assert [row["timeout"] for row in rows] == ["20.0", "20.0", "20.0", "30.0"]
    assert "4 of 4 instances are finished; 0 to go" in run(folder, "--out", out).stderr


def test_what_was_decided_with_other_options_is_not_kept(stand_in, benchmark, tmp_path):
    """Limits apart: what was decided within other ones is decided."""
    folder, out = benchmark("unsat", "sat", "unknown"), tmp_path / "out"
    run(folder, "--out", out)
    said = run(folder, "--out", out, "--tau-safe", 0.5, code=2).stderr
    assert "add --rerun all to run everything again" in said
    assert "--rerun unknown" not in said
    said = run(folder, "--out", out, "--tau-safe", 0.5, "--rerun", "failed").stderr
    assert "finished, but made with other options, so run again: 3" in said
    limited = (folder, "--out", out, "--tau-safe", 0.5, "--timeout", 30)
    assert "or --rerun unknown to keep what is decided" in run(*limited, code=2).stderr
    said = run(*limited, "--rerun", "failed").stderr
    assert "made with other options, so run again: 1" in said
    assert "2 of 3 instances are finished; 1 to go" in said
    assert "3 of 3 instances are finished; 0 to go" in run(*limited).stderr


def test_a_witness_that_was_not_checked_is_checked_when_asked(stand_in, benchmark, tmp_path):
    folder, out = benchmark("unsat", "sat"), tmp_path / "out"
    run(folder, "--out", out)
    assert "finished, but not checked, so run again: 1" in run(folder, "--out", out, "--check").stderr
    assert [row["checked"] for row in table(out)] == ["", "valid"]


@pytest.mark.parametrize("part", ["record", "results"])
def test_a_damaged_record_is_run_again(stand_in, benchmark, tmp_path, part):
    """Whatever bit is flipped: the tables are those of an undisturbed run."""
    folder, out = benchmark("sat"), tmp_path / "out"
    run(folder, "--out", out)
    (path,) = (out / "instances").glob("*/*.json" if part == "record" else "*/*.txt")
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(12):
        place = rng.randrange(8 * len(whole))
        broken = bytearray(whole)
        broken[place // 8] ^= 1 << place % 8
        path.write_bytes(broken)
        said = run(folder, "--out", out).stderr
        assert ("finished, but damaged, so run again: 1" in said) == (json_of(broken) != json_of(whole))
        assert results(out) == [("sat", "sat")]
        assert table(out)[0]["p_safe_lower"] == "0.25"


def json_of(data: bytes) -> object:
    """What a record says: blanks in it do not count."""
    try:
        return json.loads(data)
    except ValueError:
        return bytes(data)


def test_records_of_an_older_version_do_not_count(stand_in, benchmark, tmp_path):
    """They did not say which files and options they are of."""
    folder, out = benchmark("unsat"), tmp_path / "out"
    run(folder, "--out", out)
    (out / "run.json").write_text('{"version": "0.1.0"}')
    (path,) = (out / "instances").glob("*/*.json")
    old = json.loads(path.read_text())
    del old["run"]["digest"], old["run"]["asked"]
    path.write_text(json.dumps(old))
    assert "(format: not given there, 2 now" in run(folder, "--out", out, code=2).stderr
    said = run(folder, "--out", out, "--rerun", "failed").stderr
    assert "finished, but damaged, so run again: 1" in said
    assert results(out) == [("unsat", "unsat")]


def test_a_flipped_bit_in_the_settings_is_seen(stand_in, benchmark, tmp_path):
    folder, out = benchmark("unsat"), tmp_path / "out"
    run(folder, "--out", out)
    path = out / "run.json"
    path.write_text(path.read_text().replace("mixed", "mixee"))
    assert "damaged settings; delete the file" in run(folder, "--out", out, code=2).stderr
    path.unlink()
    assert "1 of 1 instances are finished" in run(folder, "--out", out).stderr


def test_a_folder_has_one_run_at_a_time(stand_in, benchmark, tmp_path):
    folder, out = benchmark("unsat"), tmp_path / "out"
    with locked(out):
        said = run(folder, "--out", out, code=2).stderr
    assert f"{out}: another process is at work in this folder (process {os.getpid()} on" in said
    assert not (out / "run.json").exists()
    run(folder, "--out", out)


def test_nothing_but_errors_is_said_and_is_a_failure(stand_in, benchmark, tmp_path):
    words = ("segfault", "segfault", "nothing", "fault", "missing")
    said = run(benchmark(*words), "--out", tmp_path / "out", "--workers", 1, code=1).stderr
    assert "every instance ended in an error:" in said
    assert "  2 times: the process died: signal SIGSEGV" in said
    assert "and 1 other reasons" in said
    said = run(benchmark(*words, "unsat", name="some"), "--out", tmp_path / "some_out", "--workers", 1).stderr
    assert "5 errors:" in said


def test_options_reach_the_process_and_queries_multiply(stand_in, benchmark, tmp_path):
    out = tmp_path / "out"
    args = ("--query", "decision", "--query", "deterministic", "--workers", 1, "--threads", 3)
    run(benchmark("unsat", "sat"), "--out", out, *args)
    rows = table(out)
    asked = [(row["category"], row["query"], row["result"]) for row in rows]
    assert asked == [(f"bench:{query}", query, word) for query in args[1::2][:2] for word in ("unsat", "sat")]
    assert {json.loads((out / f"{row['results_file']}.json").read_text())["threads"] for row in rows} == {"3"}
    assert len({row["results_file"] for row in rows}) == 4


def test_a_witness_is_checked_where_asked(stand_in, benchmark, tmp_path):
    out = tmp_path / "out"
    run(benchmark("unsat", "sat"), "--out", out, "--check")
    assert [row["checked"] for row in table(out)] == ["", "valid"]
    (results_file,) = (out / "instances/bench").glob("net_1_sat-*.txt")
    assert results_file.read_text().startswith("sat\n((X_0 1.0)")


def test_a_check_gets_the_options_of_its_query():
    """check-witness refuses what does not apply, too."""
    task = tasks.InstanceTask(
        "c", "n", "p", ((None, "n"),), "p", None, ("--likelihood=gaussian", "--tau-safe=0.9", "--seed=3")
    )
    assert task.check_command(Path("r"), "decision")[4:] == ["--likelihood=gaussian", "--seed=3"]
    assert task.check_command(Path("r"), "probabilistic")[4:] == ["--seed=3"]


def test_the_table_holds_numbers(stand_in, benchmark, tmp_path):
    out = tmp_path / "out"
    run(benchmark("unsat", "missing"), "--out", out)
    first, second = table(out)
    assert list(first) == ["results_file", *(column.name for column in COLUMNS)]
    assert (first["p_safe_lower"], first["p_safe_upper"]) == ("0.25", "0.75")
    assert [float(number) for number in json.loads(first["decision_lower"])] == [float("-inf"), 0.5]
    assert first["reason"] == ""
    assert second["p_safe_lower"] == second["method"] == ""


def test_the_table_as_parquet(stand_in, benchmark, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    out = tmp_path / "out"
    run(benchmark("unsat", "missing"), "--out", out)
    found = pq.read_table(out / "table.parquet").to_pydict()
    assert found["p_safe_lower"] == [0.25, None]
    assert found["decision_lower"] == [[float("-inf"), 0.5], None]
    assert found["result"] == ["unsat", "error"]


def test_without_pyarrow_no_older_parquet_stays(stand_in, benchmark, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "out"
    out.mkdir()
    (out / "table.parquet").write_text("old")
    run(benchmark("unsat"), "--out", out)
    assert not (out / "table.parquet").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--query", "what"), "unknown query 'what'"),
        (("--tau-safe", "2"), "tau_safe must be a probability"),
        (("--timeout", "0"), "--timeout must be a positive number"),
        (("--memory", "-1"), "--memory must be a positive number"),
        (("--only", "nothing"), "no instance is left to run"),
        (("--query", "deterministic", "--tau-safe", ".9"), "tau_safe does not apply"),
        (("--query", "deterministic", "--query", "decision", "--tau-safe", ".9"), "tau_safe does not apply"),
        (("--query", "probabilistic", "--rule", "median"), "rule does not apply"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(stand_in, benchmark, tmp_path, args, message):
    assert message in run(benchmark("unsat"), "--out", tmp_path / "out", *args, code=2).stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("variables", "threads", "expected"),
    [
        ({}, None, ("1", "1")),
        ({"OMP_NUM_THREADS": "3"}, None, ("3", "1")),
        ({"MKL_NUM_THREADS": "2"}, None, ("1", "2")),
        ({"OMP_NUM_THREADS": "3"}, 2, ("2", "2")),
    ],
)
def test_a_process_has_one_thread_unless_somebody_says_otherwise(
    stand_in, benchmark, tmp_path, monkeypatch, variables, threads, expected
):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "out"
    run(benchmark("unsat"), "--out", out, "--workers", 1, *([] if threads is None else ["--threads", threads]))
    found = record(out, "unsat")
    assert (found["threads"], found["mkl"]) == expected


def test_workers_follow_the_cores_and_their_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert Slots.shared(None, None, None) == Slots(8, None)
    assert Slots.shared(None, 3, None) == Slots(2, 3)
    assert Slots.shared(1, None, None) == Slots(1, None)
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert Slots.shared(None, None, None) == Slots(2, None)
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert Slots.shared(None, None, None) == Slots(8, None)


def test_a_place_depends_on_the_line_alone(tmp_path):
    def place(category="c", onnx="onnx/a.onnx", vnnlib="vnnlib/p.vnnlib", limit=60.0):
        task = tasks.InstanceTask(category, onnx, vnnlib, models=(), prop="", timeout=5, own_timeout=limit)
        return Records(tmp_path).place(task)

    assert re.fullmatch(r"instances/c/a_p-[0-9a-f]{12}\.txt", place())
    assert place("c/2.0", "a", "p.gz").startswith("instances/c_2.0/a_p-")
    assert place(onnx="[('f', 'a.onnx')]", vnnlib="../p.vnnlib.gz").startswith("instances/c/f_a.onnx_p-")
    # the same readable part, yet another place
    others = [place("c_"), place("c"), place(onnx="a.onnx"), place(vnnlib="p.vnnlib.gz"), place(limit=61.0)]
    assert len(set(others)) == 5
    long = "x" * 300
    assert place(onnx=f"{long}1.onnx") != place(onnx=f"{long}2.onnx")


def test_a_cluster_needs_dask(stand_in, benchmark, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    said = run(benchmark("unsat"), "--out", tmp_path / "out", "--scheduler", "tcp://127.0.0.1:1", code=2).stderr
    assert "bnn-vnnlib[cluster]" in said


def test_a_task_lost_outside_its_process_is_an_error(stand_in, benchmark, tmp_path):
    from bnn_vnnlib.files.benchmarks import read_benchmarks
    from bnn_vnnlib.runs.run import How, Run

    def lose(_task):
        raise OptionError("the cluster is gone")

    instances = read_benchmarks([benchmark("unsat")])
    with Run.opened(How().tasks(instances, 1), Records(tmp_path / "out"), How().settings) as opened:
        (entry,) = opened.go(Slots(1, 1), lose)
    assert entry.verdict is Verdict.ERROR
    assert "the cluster is gone" in table(tmp_path / "out")[0]["reason"]


def test_a_killed_run_leaves_no_process_and_goes_on(stand_in, benchmark, tmp_path):
    """The whole program is killed in the middle; what it had finished is kept and its process ends by itself."""
    folder, out = benchmark("unsat", "hang", "sat", timeout=60), tmp_path / "out"
    (folder / "instances.csv").write_text((folder / "instances.csv").read_text().replace("0.1", "60"))
    starter = f"""
import sys
from bnn_vnnlib.jobs import worker
from bnn_vnnlib.runs import task
worker.PROGRAM, task.MODULES = ({str(stand_in)!r},), ()
from bnn_vnnlib.cli import app
app(["run", {str(folder)!r}, "--out", {str(out)!r}, "--workers", "1"])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", starter], env=environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not list(out.rglob("*_unsat-*.txt")) and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.wait()
    (folder / "1_hang.vnnlib").write_text("unknown")
    assert "1 of 3 instances are finished" in run(folder, "--out", out).stderr
    assert results(out) == [("unsat", "unsat"), ("hang", "unknown"), ("sat", "sat")]


# The process itself


@pytest.fixture
def real(identity_model, tmp_path):
    """A benchmark of the identity: one property that holds and one that fails."""
    text = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))
(assert (>= Y_0 {bound}))
"""
    folder = tmp_path / "identity"
    folder.mkdir()
    (folder / "net.onnx").write_bytes(identity_model.read_bytes())
    for name, bound in {"0_holds": 1.5, "1_fails": 0.5}.items():
        (folder / f"{name}.vnnlib").write_text(text.format(bound=bound))
    (folder / "2_broken.vnnlib").write_text("(declare-const X_0 Real")
    names = ("0_holds", "1_fails", "2_broken")
    (folder / "instances.csv").write_text("".join(f"net.onnx,{name}.vnnlib,60\n" for name in names))
    return folder


def test_the_real_process(real, tmp_path):
    out = tmp_path / "out"
    run(real, "--out", out, "--workers", 1, "--check")
    assert results(out) == [("holds", "unsat"), ("fails", "sat"), ("broken", "error")]
    rows = table(out)
    assert rows[1]["checked"] == "valid"
    assert "2_broken.vnnlib:1" in rows[2]["reason"]
    assert Counter(float(row["prepare_time"]) > 0 for row in rows) == {True: 1, False: 2}


def test_options_of_a_run_are_left_out_where_they_do_not_apply(real, tmp_path):
    """The run's options are meant for whichever instances they fit; a note says where one does not."""
    out = tmp_path / "out"
    told = run(real, "--out", out, "--workers", 1, "--tau-safe", "0.9", "--only", "0_holds").stderr
    assert "tau_safe applies to none of the instances" in told
    assert results(out) == [("holds", "unsat")]
    (path,) = (out / "instances").glob("*/*holds-*.txt.json")
    assert any(note.startswith("tau_safe is left out: it is a thr") for note in json.loads(path.read_text())["notes"])


GREEDY = """
import sys
sys.path[:] = sys.argv.pop(1).split("\\n")
from bnn_vnnlib import cli
from bnn_vnnlib.jobs import worker
cli.app = lambda arguments, obj: len(bytearray(2**32))
worker.serve()
"""


def test_an_instance_cannot_allocate_more_than_it_may(benchmark, tmp_path, monkeypatch):
    program = tmp_path / "greedy.py"
    program.write_text(GREEDY)
    monkeypatch.setattr(worker, "PROGRAM", (str(program),))
    monkeypatch.setattr(tasks, "MODULES", ())
    out = tmp_path / "out"
    run(benchmark("unsat"), "--out", out, "--memory", 1, code=1)
    assert results(out) == [("unsat", "error")]
    assert "MemoryError" in table(out)[0]["reason"]
    (log,) = (out / "instances").glob("*/*.log")
    assert "MemoryError" in log.read_text()


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "9" * 5000, '"text"', '{"query": '], ids=["deep", "long", "text", "cut"]
)
def test_a_damaged_settings_file_is_one_message(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with (
        pytest.raises(InputError, match="delete the file: instances that are finished still count"),
        Records(tmp_path).opened({}),
    ):
        pass


@pytest.mark.parametrize("settings", ['"memory": "much"', '"arguments": 3', '"arguments": [3]', '"queries": [[]]'])
def test_settings_of_other_types_are_one_message(tmp_path, settings):
    (tmp_path / "run.json").write_text(f'{{"format": 2, {settings}}}')
    with pytest.raises(InputError, match="damaged settings; delete the file"), Records(tmp_path).opened({}):
        pass
