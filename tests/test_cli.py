"""The command line: what goes to which stream, exit codes, files, and what is imported when."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import bnn_vnnlib
from bnn_vnnlib import Bounds, DecisionBounds, Query, Result, Verdict, Witness
from bnn_vnnlib.cli import app
from bnn_vnnlib.errors import SoundnessError
from bnn_vnnlib.files.vnncomp import read_result
from support.command import call

ROOT = Path(__file__).resolve().parents[1]
OLD = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))
(assert (>= Y_0 0.5))
"""
NEW = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0)))
(assert (>= Y[0,0] 0.5))
"""


def a_result(verdict: Verdict = Verdict.UNSAT, **more) -> Result:
    witness = Witness(np.array([0.75, 0.25]), np.array([0.75, 0.25]), "shows") if verdict is Verdict.SAT else None
    facts = {"query": Query.PROBABILISTIC, "tau_safe": 0.95, "tau_unsafe": 0.95, "method": "linear", "time_s": 0.25}
    return Result(verdict=verdict, witness=witness, **{**facts, **more})


@pytest.fixture
def old(tmp_path):
    (tmp_path / "old.vnnlib").write_text(OLD)
    return tmp_path / "old.vnnlib"


@pytest.fixture
def new(tmp_path):
    (tmp_path / "new.vnnlib").write_text(NEW)
    return tmp_path / "new.vnnlib"


@pytest.fixture
def engine(monkeypatch):
    """Replaces the engine: `engine.result` is what it returns (or raises), `engine.options` what it was asked."""

    class Engine:
        result: Result | Exception = a_result()
        options: dict[str, object] = {}  # noqa: RUF012

        def __call__(self, model, prop, **options):
            self.options, self.comment = options, dict(prop.options)
            if isinstance(self.result, BaseException):
                raise self.result
            return self.result

    engine = Engine()
    monkeypatch.setitem(vars(bnn_vnnlib), "verify", engine)
    return engine


def python(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


# Streams and exit codes


def test_the_verdict_goes_to_standard_output_and_the_rest_to_standard_error(old, identity_model, engine):
    engine.result = a_result(p_safe=Bounds(0.98765432, 1.0), notes=("a remark",))
    outcome = call("verify", old, "--network", identity_model)
    assert outcome.stdout == "unsat\n"
    for text in ("P_safe >= 0.95", "[0.987654, 1]", "linear", "0.25 s", "a remark", "probabilistic"):
        assert text in outcome.stderr


def test_what_was_asked_is_said_in_words(tmp_path, old, identity_model):
    """An inverted comparison is seen by whoever reads the answer."""
    told = " ".join(call("verify", old, identity_model, "--json", tmp_path / "r.json").stderr.split())
    assert "violation Y_0 >= 0.5 for some X_0 in [0, 1], X_1 in [0, 1]" in told
    assert "so unsat means the network has no such input" in told
    assert json.loads((tmp_path / "r.json").read_text())["asked"] == {
        "violation": "Y_0 >= 0.5 for some X_0 in [0, 1], X_1 in [0, 1]",
        "unsat_means": "the network has no such input",
        "vacuous": None,
    }


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("(assert (<= Y_0 0.25))", "its rows contradict each other"),
        ("(assert (>= X_0 2.0))", "no input satisfies its input part"),
    ],
)
def test_an_unsat_that_proves_nothing_is_loud(tmp_path, old, identity_model, more, why):
    old.write_text(f"{OLD}\n{more}\n")
    outcome = call("verify", old, identity_model, "--json", tmp_path / "r.json")
    assert outcome.stdout == "unsat\n"
    assert outcome.stderr.startswith(f"WARNING: nothing can violate this property, whatever the network: {why}\n")
    assert json.loads((tmp_path / "r.json").read_text())["asked"]["vacuous"] == why
    refused = call("verify", old, identity_model, "--strict", code=2)
    assert refused.stdout == ""
    assert f"old.vnnlib: nothing can violate this property, whatever the network: {why}" in refused.stderr


def test_an_unsat_that_proves_nothing_is_marked_in_the_table(tmp_path, old, identity_model):
    old.write_text(f"{OLD}\n(assert (<= Y_0 0.25))\n")
    (tmp_path / "net.onnx").write_bytes(identity_model.read_bytes())
    (tmp_path / "instances.csv").write_text(f"net.onnx,{old.name},60\n")

    def table(out: Path) -> dict[str, str]:
        with (out / "table.csv").open() as stream:
            (row,) = csv.DictReader(stream)
        return row

    told = call("run", tmp_path / "instances.csv", "--out", tmp_path / "out", "--workers", 1).stderr
    assert "(vacuous)" in told
    row = table(tmp_path / "out")
    assert (row["result"], row["vacuous"]) == ("unsat", "its rows contradict each other")
    CliRunner().invoke(
        app, ["run", str(tmp_path / "instances.csv"), "--out", str(tmp_path / "strict"), "--workers=1", "--strict"]
    )
    row = table(tmp_path / "strict")
    assert (row["result"], "nothing can violate this property" in row["reason"]) == ("error", True)


@pytest.mark.parametrize("order", ["shape of 2.x", "named", "property first", "model first"])
def test_every_way_to_name_the_files(new, identity_model, engine, order):
    ways = {
        "shape of 2.x": [new, "--network", identity_model],
        "named": [new, "--network", f"f={identity_model}"],
        "property first": [new, identity_model],
        "model first": [identity_model, new],
    }
    assert call("verify", *ways[order]).stdout == "unsat\n"


def test_a_witness_of_1_0_on_standard_output(old, identity_model, engine):
    engine.result = a_result(Verdict.SAT)
    assert call("verify", old, identity_model).stdout == "sat\n((X_0 0.75)\n(X_1 0.25)\n(Y_0 0.75)\n(Y_1 0.25))\n"


def test_a_witness_of_2_x_on_standard_output(new, identity_model, engine):
    engine.result = a_result(Verdict.SAT)
    expected = "sat\nX float32 [1,2]\n0.75\n0.25\nY float32 [1,2]\n0.75\n0.25\n"
    assert call("verify", new, identity_model).stdout == expected


@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.TIMEOUT])
def test_undecided_is_a_verdict_too(old, new, identity_model, engine, verdict):
    engine.result = a_result(verdict, p_safe=Bounds(0.0, 1.0))
    assert call("verify", old, identity_model).stdout == f"{verdict}\n"
    spelt = "timed-out" if verdict is Verdict.TIMEOUT else verdict
    assert call("verify", new, identity_model).stdout == f"{spelt}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["old.vnnlib"], "the model is missing"),
        (["model"], "the property is missing"),
        (["old.vnnlib", "old.vnnlib"], "both files are VNN-LIB text"),
        (["old.vnnlib", "model", "model"], "expected PROPERTY --network MODEL"),
        (["model", "model"], "neither file is VNN-LIB text"),
        (["nowhere.vnnlib", "model"], "nowhere.vnnlib: no such file"),
        (["old.vnnlib", "--network", "nowhere.onnx"], "nowhere.onnx: no such file"),
        (["old.vnnlib", "--network", "."], "is a folder"),
        (["old.vnnlib", "--network", "f=model", "--network", "g=model"], "about one network, and 2 were given"),
        (["old.vnnlib", *["--network=f=model"] * 3], "two at most"),
        (["new.vnnlib", "--network", "g=model"], "declares the network 'f', but --network names 'g'"),
        (["old.vnnlib", "model", "--timeout", "0"], "--timeout must be a positive number"),
        (["old.vnnlib", "model", "--timeout", "nan"], "--timeout must be a positive number"),
        (["old.vnnlib", "model", "--margin", "-1"], "margin must be a positive number"),
        (["old.vnnlib", "model", "--tau-safe", "2"], "tau_safe must be a probability"),
        (["old.vnnlib", "model", "--tau-safe", ".5", "--tau-unsafe", ".6"], "must not exceed tau_safe"),
        (["old.vnnlib", "model", "--results-file", "nowhere/r.txt"], "nowhere/r.txt: cannot be written: there is no"),
        (["old.vnnlib", "model", "--json", "nowhere/r.json"], "nowhere/r.json: cannot be written: there is no"),
        (["old.vnnlib", "model", "--json", "."], "cannot be written: this is a folder"),
        (["old.vnnlib", "model", "--results-file", "."], "cannot be written: this is a folder"),
        (["old.vnnlib", "model", "--json", "/proc/r.json"], "/proc/r.json: cannot be written"),
        (["old.vnnlib", "model", "--json", "r" * 300], "cannot be written: File name too long"),
        (["old.vnnlib", "model", "--results-file", "r" * 253], "cannot be written: File name too long"),  # its record's
        (["old.vnnlib", "model", "--json", "r", "--results-file", "./r"], "the results file and the record need two"),
        (["old.vnnlib", "model", "--json", "./model"], "model: this is the model, which the results would replace"),
        (["old.vnnlib", "model", "--results-file", "old.vnnlib"], "this is the property, which the results would"),
        (["old.vnnlib", "model", "--assignments", "/proc/none"], "the folder cannot be made"),
        (["old.vnnlib", "model", "--query", "robust"], "'robust' is not one of 'probabilistic', 'decision'"),
        (["old.vnnlib", "model", "--query", "desicion"], "did you mean 'decision'?"),
        (["old.vnnlib", "model", "--method", "tail"], "did you mean 'tails'?"),
        (["old.vnnlib", "model", "--seed", "one"], "expected a whole number"),
        (["old.vnnlib", "model", "--margin", "wide"], "expected a number"),
        (["old.vnnlib", "model", "--num-boxes", "0"], "num_boxes must be a positive whole number"),
        (["comment.vnnlib", "model"], "unknown setting 'tau'"),
        (["broken.vnnlib", "model"], "broken.vnnlib:3:1: "),
    ],
)
def test_refused_input_is_one_message_and_no_output(
    tmp_path, old, new, identity_model, engine, monkeypatch, args, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").write_bytes(identity_model.read_bytes())
    (tmp_path / "comment.vnnlib").write_text(f"; bnn-vnnlib: tau=0.9\n{OLD}")
    (tmp_path / "broken.vnnlib").write_text("(declare-const X_0 Real)\n(assert (<= X_0\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = call("verify", *args, code=2)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert outcome.stdout == ""
    told = " ".join(outcome.stderr.replace("│", " ").split())
    assert message in told
    assert not any(word in told for word in ("pydantic", "Value error", "Input should", "codec"))
    assert engine.options == {}


def test_refused_input_leaves_error_in_the_files(tmp_path, identity_model):
    (tmp_path / "p.vnnlib").write_text("(declare-const X_0 Real")
    results = tmp_path / "r.txt"
    call("verify", tmp_path / "p.vnnlib", "--network", identity_model, "--results-file", results, code=2)
    assert results.read_text() == "error\n"
    record = json.loads((tmp_path / "r.txt.json").read_text())
    assert record["verdict"] == "error"
    assert "p.vnnlib:1:" in record["notes"][0]
    assert len(record["sha256"]["property"]) == 64


@pytest.mark.parametrize("fault", [SoundnessError("a check failed"), ZeroDivisionError("by zero"), MemoryError()])
def test_a_fault_is_owned_and_says_how_to_report_it(tmp_path, old, identity_model, engine, fault):
    engine.result = fault
    results = tmp_path / "r.txt"
    outcome = call("verify", old, identity_model, "--results-file", results, code=1)
    assert outcome.stdout == ""
    assert type(fault).__name__ in outcome.stderr
    assert "Please report it" in outcome.stderr
    assert results.read_text() == "error\n"


@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_traceback_is_there_for_who_asks(old, identity_model, engine, monkeypatch, way):
    engine.result = ZeroDivisionError("by zero")
    if way == "variable":
        monkeypatch.setenv("BNN_VNNLIB_DEBUG", "1")
    args = ["verify", old, identity_model, *(["--debug"] if way == "option" else [])]
    outcome = CliRunner().invoke(app, [str(arg) for arg in args])
    assert outcome.exit_code == 1
    assert "Traceback" in outcome.stderr


def test_an_interruption_ends_quietly(old, identity_model, engine):
    engine.result = KeyboardInterrupt()
    assert "interrupted" in call("verify", old, identity_model, code=130).stderr


# Options


def test_options_reach_the_engine(old, identity_model, engine):
    options = {
        "query": "decision",
        "tau_safe": 0.9,
        "tau_unsafe": 0.1,
        "likelihood": "categorical",
        "outputs": "probabilities",
        "rule": "median",
        "method": "interval",
        "boxes": "sampled",
        "num_boxes": 7,
        "margin": 2.5,
        "timeout": 12.5,
        "seed": 3,
        "search": "float32",
        "device": "cuda:1",
    }
    given = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)]
    call("verify", old, identity_model, *given)
    started = engine.options.pop("started")
    assert 0.0 <= time.monotonic() - started < 60.0
    assert engine.options == options


def test_defaults_and_the_comment_of_the_property(tmp_path, old, identity_model, engine):
    call("verify", old, identity_model)
    assert list(engine.options) == ["started"]
    (tmp_path / "c.vnnlib").write_text(f"; bnn-vnnlib: query=deterministic tau_safe=0.98 tau_unsafe=0.05\n{OLD}")
    call("verify", tmp_path / "c.vnnlib", identity_model, "--tau-safe", "0.99")
    assert set(engine.options) == {"started", "tau_safe"}
    assert engine.options["tau_safe"] == 0.99
    assert engine.comment == {"query": "deterministic", "tau_safe": "0.98", "tau_unsafe": "0.05"}


# Files


def test_results_file_and_record(tmp_path, old, identity_model, engine):
    engine.result = a_result(
        Verdict.SAT,
        p_safe=Bounds(0.1, 0.2),
        decision=DecisionBounds(*(np.array([v]) for v in (-math.inf, 0.5, 0.0, 1.0))),
    )
    results = tmp_path / "r.txt"
    call("verify", old, identity_model, "--results-file", results, "--seed", 5)
    assert read_result(results).values["X"].tolist() == [0.75, 0.25]
    record = json.loads((tmp_path / "r.txt.json").read_text())
    assert (record["verdict"], record["seed"], record["p_safe"]) == ("sat", 5, {"lower": 0.1, "upper": 0.2})
    assert record["decision"]["lower"] == ["-Infinity"]
    assert record["files"] == {"property": str(old), "model": str(identity_model)}
    assert all(len(digest) == 64 for digest in record["sha256"].values())


def test_the_record_may_go_elsewhere(tmp_path, old, identity_model, engine):
    call("verify", old, identity_model, "--json", tmp_path / "only.json")
    assert json.loads((tmp_path / "only.json").read_text())["verdict"] == "unsat"


def test_a_device_as_results_file_gets_no_record_beside_it(old, identity_model, engine):
    call("verify", old, identity_model, "--results-file", os.devnull)
    assert not Path(f"{os.devnull}.json").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_files_without_permission_are_refused_before_work(tmp_path, old, identity_model, engine, what):
    (tmp_path / "r.json").touch(0o444 if what == "file" else 0o644)
    tmp_path.chmod(0o555 if what == "folder" else 0o755)
    outcome = call("verify", old, identity_model, "--json", tmp_path / "r.json", code=2)
    tmp_path.chmod(0o755)
    assert "cannot be written" in outcome.stderr
    assert engine.options == {}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_verdict_is_not_lost_to_its_record(tmp_path, old, identity_model, engine):
    """The disk is full at the end: the verdict is said and written where it can be, and the exit code tells."""
    results = tmp_path / "r.txt"
    outcome = call("verify", old, identity_model, "--results-file", results, "--json", "/dev/full", code=2)
    assert outcome.stdout == results.read_text() == "unsat\n"
    assert "/dev/full: cannot be written: No space left on device" in outcome.stderr
    outcome = call("verify", old, identity_model, "--results-file", "/dev/full", "--json", tmp_path / "r.json", code=2)
    assert outcome.stdout == "unsat\n"
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "unsat"


def test_a_verdict_is_not_lost_to_a_fault_in_its_record(tmp_path, old, identity_model, engine):
    engine.result = a_result(details={"strange": float("nan"), "more": {1: object()}}, p_safe="nonsense")
    outcome = call("verify", old, identity_model, "--results-file", tmp_path / "r.txt", code=1)
    assert outcome.stdout == (tmp_path / "r.txt").read_text() == "unsat\n"
    assert "internal fault" in outcome.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_standard_output_that_cannot_be_written_leaves_the_files(tmp_path, old, identity_model):
    results = tmp_path / "r.txt"
    command = [sys.executable, "-m", "bnn_vnnlib", "verify", str(old), str(identity_model), f"--results-file={results}"]
    command.append(f"--serialise-assignments={tmp_path / 'tensors'}")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, results.read_text().split()[0]) == (2, "sat")
    assert sorted(path.name for path in (tmp_path / "tensors").iterdir()) == ["X.pb", "Y.pb"]
    assert "standard output cannot be written" in done.stderr
    assert "Exception ignored" not in done.stderr


# inspect and attach


def test_a_posterior_is_attached_inspected_and_asked_for(tmp_path, old, identity_model, engine):
    np.savez(tmp_path / "p.npz", W_std=np.full((2, 2), 0.25))
    target = tmp_path / "bnn.onnx.gz"
    outcome = call("attach", identity_model, tmp_path / "p.npz", target, "--likelihood", "gaussian")
    assert outcome.stdout == ""
    assert target.is_file()
    shown = call("inspect", target).stdout
    for text in ("x float32 [1, 2]", "gaussian_diag", "gaussian", "of which 4 are uncertain", "W", "2x2", "0.25"):
        assert text in shown
    call("verify", old, target)
    assert bnn_vnnlib.read_model(target).likelihood == "gaussian"


def test_a_posterior_for_another_model_is_refused(tmp_path, identity_model):
    np.savez(tmp_path / "p.npz", V_std=np.ones((2, 2)))
    outcome = call("attach", identity_model, tmp_path / "p.npz", tmp_path / "bnn.onnx", code=2)
    assert "V" in outcome.stderr
    assert not (tmp_path / "bnn.onnx").exists()


@pytest.fixture
def two_layers(tmp_path):
    """An ONNX file with four tensors: W1, b1, W2, b2."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    tensors = {"W1": np.eye(2), "b1": np.zeros(2), "W2": np.eye(2), "b2": np.ones(2)}
    nodes = [
        helper.make_node("Gemm", ["x", "W1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "W2", "b2"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    stored = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "two", ends[:1], ends[1:], stored)
    path = tmp_path / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_attach_counts_a_weight_that_a_product_scales(tmp_path):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = {"W": np.ones((2, 2), np.float32), "b": np.ones(2, np.float32)}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    scaled = helper.make_node("Gemm", ["x", "W", "b"], ["y"], alpha=2.0, beta=0.5)
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph([scaled], "scaled", ends[:1], ends[1:], stored)
    path = tmp_path / "scaled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    np.savez(tmp_path / "p.npz", W_std=np.full((2, 2), 0.1))
    assert "1 of 2 tensors are uncertain" in call("attach", path, tmp_path / "p.npz", tmp_path / "w.onnx").stderr
    np.savez(tmp_path / "p.npz", W_std=np.full((2, 2), 0.1), b_std=np.full(2, 0.1))
    told = call("attach", path, tmp_path / "p.npz", tmp_path / "wb.onnx", "--require-all").stderr
    assert "2 of 2 tensors are uncertain" in told


def test_attach_says_how_many_tensors_are_uncertain(tmp_path, two_layers):
    target = tmp_path / "bnn.onnx"
    np.savez(tmp_path / "p.npz", W1_std=np.full((2, 2), 0.1), W2_std=np.full((2, 2), 0.1), b2_std=np.zeros(2))
    told = call("attach", two_layers, tmp_path / "p.npz", target).stderr
    assert "2 of 4 tensors are uncertain; not b1, b2" in told
    outcome = call("attach", two_layers, tmp_path / "p.npz", tmp_path / "n.onnx", "--require-all", code=2)
    assert "p.npz: says nothing about b1, and --require-all was given" in outcome.stderr
    assert not (tmp_path / "n.onnx").exists()
    np.savez(
        tmp_path / "p.npz",
        **{
            f"{name}_samples": np.ones((2, *shape)) * [[[1]], [[2]]]
            if len(shape) == 2
            else np.ones((2, *shape)) * [[1], [2]]
            for name, shape in {"W1": (2, 2), "b1": (2,), "W2": (2, 2), "b2": (2,)}.items()
        },
    )
    assert (
        "4 of 4 tensors are uncertain\n"
        in call("attach", two_layers, tmp_path / "p.npz", target, "--require-all").stderr
    )


@pytest.mark.parametrize("key", ["W1_std", "W1_variance", "W1_samples"])
def test_a_posterior_without_uncertainty_is_refused(tmp_path, two_layers, key):
    np.savez(tmp_path / "p.npz", **{key: np.zeros((3, 2, 2) if "samples" in key else (2, 2))})
    outcome = call("attach", two_layers, tmp_path / "p.npz", tmp_path / "bnn.onnx", code=2)
    assert "no weight would be uncertain" in outcome.stderr
    assert not (tmp_path / "bnn.onnx").exists()


@pytest.mark.parametrize("command", ["attach", "recover", "convert", "simplify", "merge", "mean"])
def test_no_command_writes_over_what_it_reads(tmp_path, two_layers, command):
    np.savez(tmp_path / "p.npz", W1_std=np.ones((2, 2)))
    other = tmp_path / "hard.onnx"
    other.hardlink_to(two_layers)
    extra = {"attach": [tmp_path / "p.npz"], "convert": []}.get(command, [])
    options = ["--likelihood", "gaussian", "--sd", "0.1"] if command == "convert" else []
    before = two_layers.read_bytes()
    for target in (two_layers, tmp_path / "." / "two.onnx", other):
        assert "this file is read" in call(command, two_layers, *extra, target, *options, code=2).stderr
    if command == "attach":
        assert "this file is read" in call("attach", two_layers, tmp_path / "p.npz", tmp_path / "p.npz", code=2).stderr
    assert two_layers.read_bytes() == before


def test_inspect_names_what_is_not_supported(tmp_path, identity_model):
    import onnx

    model = onnx.load(identity_model)
    model.graph.node[0].op_type = "GridSample"
    onnx.save(model, tmp_path / "odd.onnx")
    outcome = call("inspect", tmp_path / "odd.onnx", code=2)
    assert outcome.stdout == ""
    assert "GridSample" in outcome.stderr
    assert "supported" in outcome.stderr


# What is imported, and how long it takes


def test_help_is_quick():
    def cpu_time() -> float:
        before = os.times()
        assert "verify" in python("-m", "bnn_vnnlib", "--help").stdout
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    # The processor's time, and the best of three: other tests run at the same time.
    assert min(cpu_time() for _ in range(3)) < 0.5


HEAVY = ("torch", "onnx", "onnxruntime", "scipy", "numpy")


def imported(code: str) -> list[str]:
    """Heavy packages that are loaded once `code` has run (and perhaps exited)."""
    ending = f"import sys, atexit; atexit.register(lambda: print('LOADED', [m for m in {HEAVY} if m in sys.modules]))"
    done = python("-c", f"{ending}\n{code}")
    return [m for m in HEAVY if f"'{m}'" in done.stdout.rpartition("LOADED")[2]]


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["verify", "--help"]])
def test_help_and_version_load_nothing_heavy(args):
    assert imported(f"from bnn_vnnlib.cli import main; main({args})") == []


def test_the_package_itself_loads_nothing_heavy():
    assert imported("import bnn_vnnlib") == []


def test_an_error_in_the_property_does_not_wait_for_torch(tmp_path, identity_model):
    (tmp_path / "p.vnnlib").write_text("(declare-const X_0 Real")
    args = ["verify", str(tmp_path / "p.vnnlib"), str(identity_model)]
    assert imported(f"from bnn_vnnlib.cli import main; main({args})") == ["numpy"]


def test_name_and_version():
    assert call("--name").stdout == "bnn-vnnlib\n"
    assert call("--version").stdout == f"{bnn_vnnlib.__version__}\n"


def test_every_public_name_is_there():
    for name in bnn_vnnlib.__all__:
        assert getattr(bnn_vnnlib, name) is not None
    assert set(bnn_vnnlib.__all__) <= set(dir(bnn_vnnlib))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bnn_vnnlib.nothing  # noqa: B018


# The time limit


def test_a_run_that_overstays_its_limit_is_ended(tmp_path, new, identity_model):
    results = tmp_path / "r.txt"
    args = ["verify", str(new), str(identity_model), "--timeout", "0.5", "--results-file", str(results)]
    sleepy = "import bnn_vnnlib, time; vars(bnn_vnnlib)['verify'] = lambda *a, **k: time.sleep(100)"
    started = time.monotonic()
    done = python("-c", f"{sleepy}\nfrom bnn_vnnlib.cli import main; main({args})")
    assert time.monotonic() - started < 20.0
    assert done.returncode == 0, done.stderr
    assert done.stdout == "timed-out\n"
    assert "the time limit ended the run" in done.stderr
    assert results.read_text() == "timeout\n"
    assert json.loads((tmp_path / "r.txt.json").read_text())["verdict"] == "timeout"


# The real engine


@pytest.mark.parametrize(("bound", "verdict"), [("0.5", "sat"), ("1.5", "unsat")])
@pytest.mark.parametrize("text", [OLD, NEW])
def test_a_verdict_from_two_files(tmp_path, identity_model, text, bound, verdict):
    (tmp_path / "p.vnnlib").write_text(text.replace("0.5", bound))
    results = tmp_path / "r.txt"
    outcome = call("verify", tmp_path / "p.vnnlib", identity_model, "--results-file", results, "--timeout", 60)
    assert outcome.stdout.splitlines()[0] == verdict
    assert outcome.stdout == results.read_text()
    assert "deterministic" in outcome.stderr
    if verdict == "sat":
        values = list(read_result(results).values.values())
        assert values[0].ravel().tolist() == values[1].ravel().tolist()
        assert 0.5 <= values[0].ravel()[0] <= 1.0


def test_the_start_of_the_program_is_no_time_of_solving(tmp_path, identity_model):
    """A small instance takes seconds of libraries and next to nothing of solving."""
    (tmp_path / "p.vnnlib").write_text(OLD.replace("0.5", "1.5"))
    (tmp_path / "broken.vnnlib").write_text("(declare-const X_0 Real")
    record = {}
    for name in ("p", "broken"):
        words = ["verify", f"{name}.vnnlib", str(identity_model), "--json", f"{name}.json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "bnn_vnnlib", *words], cwd=tmp_path, env=environment, capture_output=True)
        taken = time.monotonic() - begun
        record[name] = json.loads((tmp_path / f"{name}.json").read_text())
        assert record[name]["start_s"] + record[name]["time_s"] < taken + 0.1
    assert record["p"]["time_s"] < record["p"]["start_s"]
    assert record["broken"]["time_s"] < 0.01 < record["broken"]["start_s"]
