"""Sweeps: the same bounds as verify_batch, kept in chunks, gone on with after a kill."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import bit_flips
from bnn_vnnlib import InputError, OptionError, read_model, verify_batch
from bnn_vnnlib.files.arrays import read_columns
from bnn_vnnlib.jobs import progress
from bnn_vnnlib.jobs.chunks import carry_out, growing, usual_chunk
from bnn_vnnlib.jobs.parts import PartsFolder
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.jobs.progress import Progress
from bnn_vnnlib.sweeps import Bounding, Pair, Radii, Source, make_inputs, make_table, radii, sweep
from bnn_vnnlib.system.durable import LOCK, locked
from sweeps.sweep_models import Killing, boxes, documented, told, write_net

pytest.importorskip("pyarrow", reason="pyarrow (extra `parquet`) is not installed")


@pytest.fixture(scope="module")
def nets(tmp_path_factory) -> Path:
    """A folder with networks of weight samples, which take little time, and one with Gaussian weights."""
    folder = tmp_path_factory.mktemp("nets")
    for seed, name in enumerate(("one", "two")):
        write_net(folder / f"{name}.onnx", [3, 8, 4], seed, samples=3)
    write_net(folder / "gaussian.onnx", [3, 8, 4])
    write_net(folder / "wider.onnx", [5, 4, 3], samples=3)
    write_net(folder / "sine.onnx", [3, 6, 1], likelihood="gaussian", samples=3)
    return folder


def test_the_bounds_are_those_of_verify_batch(nets):
    table = boxes(15, 3, 4, radius=0.01)
    found = sweep([Pair(Source(nets / "gaussian.onnx"), make_table(table))], chunk=7)
    expected = verify_batch(read_model(nets / "gaussian.onnx"), table["lower"], table["upper"], table["label"])
    np.testing.assert_allclose(found.columns["p_safe_lower"], expected.lower, atol=1e-9)
    np.testing.assert_allclose(found.columns["p_safe_upper"], expected.upper, atol=1e-9)
    assert found.columns["verdict"].tolist() == [str(word) for word in expected.verdicts]
    assert found.columns["row"].tolist() == list(range(15))
    total = next(line for line in found.summary if (line.network, line.group) == ("all", "all") or line.group == "all")
    assert total.skipped == (table["label"] == -1).sum() > 0
    assert total.safe == (expected.verdicts == "unsat").sum() > 0
    assert total.unsafe == (expected.verdicts == "sat").sum() > 0
    assert total.rows == total.safe + total.unsafe + total.undecided == 15 - total.skipped
    assert found.spent.rows == 15
    assert found.spent.seconds > 0
    assert found.spent.peak_mb > 10


def test_networks_by_name_and_several_tables(nets):
    table = boxes(20, 3, 4)
    names = np.array(["two", "one"])[np.arange(20) % 3 % 2]
    sources = {name: Source(nets / f"{name}.onnx") for name in ("one", "two", "wider")}
    plain = make_table(boxes(5, 3, 4, seed=1))
    found = sweep([Pair(sources, make_table(table | {"network": names})), Pair(sources["one"], plain)], chunk=4)
    columns = found.columns
    assert columns["table"].tolist() == [0] * 20 + [1] * 5
    assert columns["row"].tolist() == [*range(20), *range(5)]
    assert columns["network"][:20].tolist() == names.tolist()
    for name in ("one", "two"):
        some = names == name
        model = read_model(nets / f"{name}.onnx")
        expected = verify_batch(model, table["lower"][some], table["upper"][some], table["label"][some])
        np.testing.assert_allclose(columns["p_safe_lower"][:20][some], expected.lower, atol=1e-9)
    lines = {(line.network, line.group): line for line in found.summary}
    assert lines["all", "all"].rows == sum(
        line.rows for (name, group), line in lines.items() if "all" not in (name, group) and group != "-1"
    )


@pytest.mark.parametrize("query", ["probabilistic", "decision"])
def test_what_may_be_asked_of_a_row(nets, query):
    """Labels, cases in any order, ranges of outputs; the same question in two forms has the same answer."""
    table = boxes(8, 3, 4)
    label = np.abs(table.pop("label"))
    a = np.stack([np.delete(np.eye(4)[i] - np.eye(4), i, axis=0) for i in label])
    by_label = sweep([Pair(Source(nets / "one.onnx"), make_table(table | {"label": label}))], Bounding(query))
    cases = {"a": a, "b": np.zeros((8, 3)), "case": np.array([5, 2, 9])}
    by_cases = sweep([Pair(Source(nets / "one.onnx"), make_table(table | cases))], Bounding(query))
    assert by_label.columns["verdict"].tolist() == by_cases.columns["verdict"].tolist()
    for name in ("p_safe_lower", "p_safe_upper", "decision_lower", "row_lower", "row_upper"):
        if name in by_label.columns:
            np.testing.assert_allclose(by_label.columns[name], by_cases.columns[name], atol=1e-9, err_msg=name)
    ends = {"output_lower": np.full((8, 1), -0.5), "output_upper": np.full((8, 1), np.inf)}
    found = sweep([Pair(Source(nets / "sine.onnx"), make_table(table | ends))], Bounding(query))
    below = [(np.ones((1, 1)), np.array([-0.5]), np.array([True]))]
    model = read_model(nets / "sine.onnx")
    expected = verify_batch(model, table["lower"], table["upper"], properties=[below], query=query)
    assert found.columns["verdict"].tolist() == [str(word) for word in expected.verdicts]
    assert {"sat", "unsat"} <= set(found.columns["verdict"])


def test_bounds_on_the_decision_alone(nets):
    table = boxes(6, 3, 4)
    del table["label"]
    pair = [Pair(Source(nets / "one.onnx"), make_table(table))]
    with pytest.raises(InputError, match="query probabilistic needs a violation for each row"):
        sweep(pair)
    found = sweep(pair, Bounding("decision"), points=True).columns
    assert "verdict" not in found
    assert "row_lower" not in found
    assert found["point"].shape == (6, 3)
    assert (found["decision_lower"] <= found["decision_upper"]).all()
    assert (found["decision_upper"] < 1).all()  # the bounds are no empty ones


def test_what_does_not_fit_is_refused_before_any_work(nets, tmp_path):
    table = boxes(4, 3, 4)
    one, wider = Source(nets / "one.onnx"), Source(nets / "wider.onnx")
    for source, arrays, words in (
        (wider, table, "boxes have 3 inputs, network wider.onnx takes 5"),
        (one, table | {"label": np.array([0, 1, 4, -1])}, r"labels must lie in -1 \(skip\) .. 3; row 2 has 4"),
        (one, table | {"label": np.array([0, -2, 3, -1])}, "row 1 has -2"),
        (one, table | {"network": np.array(["one"] * 4)}, "give the folder that holds them"),
        ({"one": one}, table, "array 'network' is missing"),
        ({"one": one}, table | {"network": np.array(["one", "three"] * 2)}, "row 1 names an unknown network 'three'"),
        (one, {"lower": np.zeros((0, 3)), "upper": np.zeros((0, 3))}, "holds no rows"),
    ):
        with pytest.raises(InputError, match=words):
            sweep([Pair(source, make_table(arrays))], out=tmp_path / "out")
    for ends, words in ((np.zeros((4, 2)), "'output_lower' is over 2 outputs, the network has 4"),):
        arrays = {"lower": table["lower"], "upper": table["upper"], "output_lower": ends, "output_upper": ends}
        with pytest.raises(InputError, match=words):
            sweep([Pair(one, make_table(arrays))], out=tmp_path / "out")
    with pytest.raises(OptionError, match="at least one row"):
        sweep([Pair(one, make_table(table))], chunk=0)
    assert not (tmp_path / "out").exists()


def test_another_sweep_in_the_same_folder_is_refused_by_name(nets, tmp_path):
    table = boxes(6, 3, 4)
    one = Source(nets / "one.onnx")
    sweep([Pair(one, make_table(table))], out=tmp_path / "out")
    moved = table | {"upper": table["upper"] + 0.01}
    for source, arrays, bounding, words in (
        (one, moved, Bounding(), r"\(array upper: changed\)"),
        (one, table, Bounding(tau_safe=0.5), "tau_safe: 0.95 there, 0.5 now, tau_unsafe: 0.95 there, 0.5 now"),
        (one, table, Bounding(seed=3), "seed: not given there, 3 now"),
        (Source(nets / "two.onnx"), table, Bounding(), "network one.onnx: gone, network two.onnx: not there before"),
    ):
        with pytest.raises(OptionError, match=words):
            sweep([Pair(source, make_table(arrays))], bounding, out=tmp_path / "out")
    with pytest.raises(OptionError, match=r"holds a job of another kind \(sweep, not radius\); take another one"):
        radii(one, make_inputs({"x": np.zeros((2, 3))}), Radii(largest=0.1, tolerance=0.01), out=tmp_path / "out")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.tex").write_text("mine")
    with pytest.raises(OptionError, match="not empty, and holds no job"):
        sweep([Pair(one, make_table(table))], out=tmp_path / "own")


def test_a_finished_sweep_is_not_computed_again(nets, tmp_path, monkeypatch):
    pair = [Pair(Source(nets / "one.onnx"), make_table(boxes(10, 3, 4)))]
    first = sweep(pair, out=tmp_path / "out", chunk=3)
    monkeypatch.setattr("bnn_vnnlib.batch.verify_batch", None)
    again = sweep(pair, out=tmp_path / "out", chunk=3)
    for name, values in first.columns.items():
        np.testing.assert_array_equal(values, again.columns[name])
    assert again.spent == first.spent


def test_one_process_at_a_time_works_in_a_folder(nets, tmp_path):
    pytest.importorskip("fcntl", reason="no locks of this kind on this system")
    pair = [Pair(Source(nets / "one.onnx"), make_table(boxes(6, 3, 4)))]
    with locked(tmp_path / "out"), pytest.raises(OptionError, match="another process is at work in this folder"):
        sweep(pair, out=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK]
    sweep(pair, out=tmp_path / "out")


def again(pair, out: Path) -> tuple[int, bytes]:
    """How many chunks a sweep does again, and the file that it writes."""
    seen = []
    sweep(pair, out=out, watch=seen.append)
    redone = sum(seen[0].redone.values())
    assert seen[0].rows - seen[0].kept == 2 * redone  # chunks of two rows
    return redone, (out / "bounds.parquet").read_bytes()


def test_a_damaged_part_is_done_again(nets, tmp_path):
    pair = [Pair(Source(nets / "one.onnx"), make_table(boxes(8, 3, 4)))]
    out = tmp_path / "out"
    sweep(pair, out=out, chunk=2)
    whole = (out / "bounds.parquet").read_bytes()
    first, _, third, _ = sorted((out / "parts").iterdir())
    for damage in (
        lambda part: part.write_bytes(part.read_bytes()[:-20]),
        lambda part: part.write_bytes(b""),
        lambda part: part.rename(part.with_name("000001.parquet")),  # as versions without hashes called it
        lambda part: part.write_bytes(third.read_bytes()),  # a good file, of another chunk
        lambda part: part.write_bytes(flipped(part.read_bytes(), 800)),
    ):
        damage(next((out / "parts").glob("000001-*")))
        assert again(pair, out) == (1, whole)
    assert first.exists()
    assert again(pair, out) == (0, whole)
    part = first.read_bytes()
    other = [Pair(Source(nets / "two.onnx"), make_table(boxes(8, 3, 4)))]
    sweep(other, out=tmp_path / "other", chunk=2)
    expected = (tmp_path / "other" / "bounds.parquet").read_bytes()
    taken = min((tmp_path / "other" / "parts").iterdir())
    taken.unlink()
    (tmp_path / "other" / "parts" / first.name).write_bytes(part)  # of another network
    assert again(other, tmp_path / "other")[1] == expected


def flipped(data: bytes, bit: int) -> bytes:
    """With one bit changed."""
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def test_damaged_settings_cost_nothing_and_give_nothing_away(nets, tmp_path):
    pair = [Pair(Source(nets / "one.onnx"), make_table(boxes(8, 3, 4)))]
    out = tmp_path / "out"
    sweep(pair, out=out, chunk=2)
    whole, place = (out / "bounds.parquet").read_bytes(), out / "settings.json"
    text = place.read_text()
    for damaged in (text.replace('"seed": 0', '"seed": 1'), text[:-20], "", "[" * 100_000):
        place.write_text(damaged)
        sweep(pair, out=out, chunk=2)
        assert place.read_text() == text
        assert (out / "bounds.parquet").read_bytes() == whole
    place.write_text("")
    other = [Pair(Source(nets / "two.onnx"), make_table(boxes(8, 3, 4)))]
    with pytest.raises(OptionError, match=r"settings\.json: is damaged, and no finished part belongs to this job"):
        sweep(other, out=out, chunk=2)
    assert len(list((out / "parts").iterdir())) == 4


def test_no_flipped_bit_changes_a_result(tmp_path):
    """scripts/measure/bit_flips.py does this hundreds of times, over all files of three jobs."""
    found = bit_flips.experiment(tmp_path, 8, 0, kinds=("sweep",), inside="parts")
    assert found["sweep"] == {bit_flips.AGAIN: 8}


def test_the_first_rows_are_done_soon_and_all_workers_have_work():
    for rows, workers in ((1, 1), (1, 4), (7, 2), (40, 2), (400, 2), (53_792, 2), (53_792, 16), (2_000_000, 3)):
        size = usual_chunk(rows, workers, most=1048, least=32, pieces=4)
        assert 1 <= size <= 1048
        cuts, left = [], rows
        for piece in growing(size):
            cuts.append(min(piece, left))
            left -= cuts[-1]
            if not left:
                break
        assert sum(cuts) == rows
        assert cuts[0] <= 4
        assert len(cuts) >= min(rows // 4, workers)  # each has something at once
        assert max(cuts) <= max(4, -(-rows // workers))
        assert len(cuts) <= rows / size + 8  # and not many more chunks than need be
    assert usual_chunk(100, 2, most=256) == 50
    assert usual_chunk(600, 2, most=256) == 150


def test_a_sweep_that_goes_on_keeps_its_chunks(nets, tmp_path):
    """They are those of the workers that it began with."""
    pair = [Pair(Source(nets / "one.onnx"), make_table(boxes(40, 3, 4)))]
    out, seen = tmp_path / "out", []
    sweep(pair, out=out, workers=2)
    assert PartsFolder(out).chunk == 20
    names = sorted(path.name for path in (out / "parts").iterdir())
    assert len(names) == 3  # 4, 16 and 20 rows
    whole = (out / "bounds.parquet").read_bytes()
    (out / "parts" / names[1]).unlink()
    sweep(pair, out=out, workers=5, watch=seen.append)
    assert seen[0].kept == 40 - 16
    assert sorted(path.name for path in (out / "parts").iterdir())[2:] == names[2:]
    assert (out / "bounds.parquet").read_bytes() == whole
    with pytest.raises(OptionError, match="chunk: 20 there, 7 now"):
        sweep(pair, out=out, chunk=7)


def test_somebody_who_looks_at_no_terminal_hears_of_it(monkeypatch):
    """At once, after the first step, and every now and then, whether anything is finished or not."""
    monkeypatch.setattr(progress, "EVERY", 1.0)
    text = io.StringIO()
    with progress.shown(Console(file=text, width=200), "boxes") as watch:
        watch(Progress(4, 20, 4, redone={"damaged": 1}))
        assert text.getvalue().splitlines() == [
            "finished, but damaged, so run again: 1",
            "4 of 20 boxes are finished; 16 to go",
        ]
        watch(Progress(4, 20, 4, 1))
        assert "4 of 20 boxes after 0 s, step 1" in text.getvalue()
        watch(Progress(4, 20, 4, 2))
        assert "step 2" not in text.getvalue()
        until = time.monotonic() + 30
        while "step 2" not in text.getvalue() and time.monotonic() < until:
            time.sleep(0.05)
        assert "4 of 20 boxes after" in text.getvalue().splitlines()[-1]
        watch(Progress(20, 20, 4, 9))
        assert " s, step 9, " in text.getvalue().splitlines()[-1]
        assert text.getvalue().endswith("a second, 0 s left\n")


def children(pid: int) -> list[int]:
    """Processes that the threads of a process have started."""
    return [int(word) for place in Path(f"/proc/{pid}/task").glob("*/children") for word in place.read_text().split()]


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_is_killed_is_replaced_once(tmp_path, times):
    """By whoever looks for memory, for one; what it had in work is done again."""
    job = Killing(tmp_path, times)
    if times == 1:
        columns, spent = carry_out(job, None, Slots(2, 1), file="rows.parquet", order=("row",))
        assert columns["row"].tolist() == [0, 1, 2, 3]
        assert spent.rows == 4
        return
    with pytest.raises(InputError, match=r"ended from outside, twice at the same chunk \(signal SIGKILL"):
        carry_out(job, None, Slots(2, 1), file="rows.parquet", order=("row",))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes in /proc")
def test_killed_in_the_middle_and_gone_on_with_it_is_as_if_nothing_had_happened(nets, tmp_path):
    """SIGKILL while two workers are busy: no worker survives, and the file at the end is the same byte for byte."""
    table = boxes(400, 3, 4) | {"network": np.array(["one", "two"] * 200)}
    np.savez(tmp_path / "table.npz", **table)
    arguments = ["sweep", str(nets), str(tmp_path / "table.npz"), "--chunk", "4", "--tau-safe", "0.9"]
    told(*arguments, "--out", tmp_path / "undisturbed", "--workers", "1")
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "bnn_vnnlib", *arguments, "--out", str(out), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while len(list((out / "parts").glob("[0-9]*"))) < 6:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = len(list((out / "parts").glob("[0-9]*")))
    assert 6 <= finished < 100
    assert not (out / "bounds.parquet").exists()
    (out / "parts" / ".000099.parquet.1.part").write_bytes(b"half a file")
    while any(Path(f"/proc/{pid}/exe").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(workers) >= 2
    said = told(*arguments, "--out", out, "--workers", "1")
    assert "of 400 boxes are finished" in said
    assert (out / "bounds.parquet").read_bytes() == (tmp_path / "undisturbed" / "bounds.parquet").read_bytes()
    assert (out / "summary.csv").read_text() == (tmp_path / "undisturbed" / "summary.csv").read_text()
    assert len(list((out / "parts").iterdir())) == 100


def test_the_command(nets, tmp_path):
    """Two tables; a summary on standard error and in a file; columns that the documentation names."""
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", **boxes(6, 3, 4, seed=number))
    one, two = nets / "one.onnx", nets / "two.onnx"
    out = tmp_path / "out"
    tables = (one, tmp_path / "0.npz", two, tmp_path / "1.npz")
    said = told("sweep", *tables, "--out", out, "--query", "decision", "--workers", "1")
    assert "12 boxes in" in said
    assert "written to" in said
    columns, _ = read_columns(out / "bounds.parquet")
    names = {
        "table",
        "row",
        "network",
        "label",
        "decision_lower",
        "decision_upper",
        "row_lower",
        "row_upper",
        "verdict",
    }
    assert set(columns) == names
    assert documented(names)
    with (out / "summary.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert {line["network"] for line in lines} == {"one.onnx", "two.onnx", "all"}
    assert json.loads((out / "settings.json").read_text())["query"] == "decision"


def test_the_command_says_what_is_wrong(nets, tmp_path):
    table = boxes(6, 3, 4)
    np.savez(tmp_path / "table.npz", **table)
    np.savez(tmp_path / "named.npz", **table, network=np.array(["one"] * 5 + ["three"]))
    out = ["--out", tmp_path / "out"]
    for arguments, words in (
        ([nets / "one.onnx"], "models and tables come in pairs, found 1 paths"),
        ([nets / "one.onnx", tmp_path / "nowhere.npz"], "nowhere.npz: no such file"),
        ([nets / "none.onnx", tmp_path / "table.npz"], "none.onnx: no such file"),
        ([nets, tmp_path / "named.npz"], "unknown network 'three'; there are gaussian.onnx, one.onnx, sine.onnx"),
        ([nets / "one.onnx", tmp_path / "table.npz", "--tau-safe", "0.5", "--tau-unsafe", "0.6"], "must not exceed"),
        ([nets / "one.onnx", tmp_path / "table.npz", "--margin", "-1"], "margin must be a positive number"),
    ):
        said = told("sweep", *arguments, *out, code=2)
        assert said.startswith("error: ")
        assert words in said
    assert not (tmp_path / "out").exists()


def test_without_pyarrow_the_command_names_the_extra(nets, tmp_path, monkeypatch):
    np.savez(tmp_path / "table.npz", **boxes(2, 3, 4))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = told("sweep", nets / "one.onnx", tmp_path / "table.npz", "--out", tmp_path / "out", code=2)
    assert "pip install 'bnn-vnnlib[parquet]'" in said
