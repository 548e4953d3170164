"""Checking witnesses: of our own runs, of other tools', and ones that were tampered with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib.check_witness import at_point
from bnn_vnnlib.question.property import violated_case
from bnn_vnnlib.vnnlib import parse_property
from support.command import call

DECLARED = "(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)\n"
BOX = "(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))\n"
OLD = DECLARED + BOX + "(assert (>= Y_0 0.5))\n"
NEW = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0)))
(assert (>= Y[0,0] 0.5))
"""


def check(model, prop, result, *more, code: int = 0) -> tuple[str, str]:
    """(what was said, remarks)"""
    outcome = call("check-witness", model, prop, result, *more, code=code)
    return outcome.stdout.removesuffix("\n"), outcome.stderr


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.fixture(scope="module")
def bayesian(tmp_path_factory):
    """Writes a model y = x W with a posterior over W: Gaussian with these deviations, or samples."""
    folder = tmp_path_factory.mktemp("bayesian")

    def make(name: str, likelihood: str | None = None, **posterior: np.ndarray) -> Path:
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "W"], ["y"], name="layer")], "layer",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
            [numpy_helper.from_array(np.eye(2, dtype=np.float32), "W")],
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "plain")
        np.savez(folder / "posterior.npz", **posterior)
        target = folder / f"{name}.onnx"
        more = [] if likelihood is None else ["--likelihood", likelihood]
        call("attach", folder / "plain", folder / "posterior.npz", target, *more)
        return target

    return make


# Deterministic


@pytest.mark.parametrize(
    ("witness", "judgement", "code"),
    [
        ("((X_0 0.75)\n(X_1 0.25)\n(Y_0 0.75)\n(Y_1 0.25))", "valid", 0),
        ("((X_0 0.5) (X_1 0.25) (Y_0 0.5) (Y_1 0.25))", "valid", 0),  # a tie is a violation
        ("((X_0 0.75)\n(X_1 0.25))", "valid", 0),  # Y decides nothing
        ("((X_0 0.75) (X_1 0.25) (Y_0 9.0) (Y_1 9.0))", "valid", 0),
        ("((X_0 1.00005) (X_1 0.25))", "valid within tolerance", 0),
        ("((X_0 1.0002) (X_1 0.25))", "invalid", 3),  # outside
        ("((X_0 0.49999) (X_1 0.25))", "invalid", 3),  # outputs have no tolerance
        ("((X_0 0.49999) (X_1 0.25) (Y_0 0.75) (Y_1 0.25))", "invalid", 3),  # whatever the file says of Y
        ("", "invalid", 3),
    ],
)
def test_the_competitions_rules(write, identity_model, witness, judgement, code):
    said, _ = check(identity_model, write("p.vnnlib", OLD), write("r.txt", f"sat\n{witness}\n"), code=code)
    assert said == judgement


def test_the_input_counts_as_the_model_holds_it(write, identity_model):
    """float32(0.1) > 0.1: rounded, the witness leaves its box by 1.5e-9."""
    prop = write("p.vnnlib", OLD.replace("(<= X_0 1.0)", "(<= X_0 0.1)").replace("(>= Y_0 0.5)", "(>= Y_0 0.09)"))
    assert check(identity_model, prop, write("r.txt", "sat\n((X_0 0.1) (X_1 0.0))\n"))[0] == "valid within tolerance"
    below = float(np.nextafter(np.float32(0.1), np.float32(0)))
    assert check(identity_model, prop, write("s.txt", f"sat\n((X_0 {below!r}) (X_1 0.0))\n"))[0] == "valid"


def test_strict_rows_are_strict(write, identity_model):
    prop = write("p.vnnlib", OLD.replace("(>= Y_0 0.5)", "(> Y_0 0.5)"))
    assert check(identity_model, prop, write("r.txt", "sat\n((X_0 0.5) (X_1 0.0))\n"), code=3)[0] == "invalid"


@pytest.mark.parametrize("dims", ["[1,2]", "[2]", "[1, 2]"])
def test_a_witness_of_2_x(write, identity_model, dims):
    text = f"sat\nX float32 {dims}\n0.75\n0.25\nY float32 {dims}\n0.75\n0.25\n"
    assert check(identity_model, write("p.vnnlib", NEW), write("r.txt", text))[0] == "valid"


@pytest.mark.parametrize("verdict", ["unsat", "unknown", "timeout", "timed-out", "error"])
def test_other_verdicts_have_nothing_to_check(write, identity_model, verdict):
    assert check(identity_model, write("p.vnnlib", OLD), write("r.txt", f"{verdict}\n"))[0] == "no witness"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sat\n((X_0 0.75))\n", "has 1 values for X, expected 2"),
        ("sat\nZ float32 [2]\n0.75\n0.25\n", "no values for X; it has Z"),
        ("sat\n((X_0 nan) (X_1 0.25))\n", "must be finite"),
        ("violated\n", "unknown verdict 'violated'"),
    ],
)
def test_what_is_no_witness_is_refused(write, identity_model, text, message):
    _, remarks = check(identity_model, write("p.vnnlib", OLD), write("r.txt", text), code=2)
    assert message in remarks


def test_real_result_files(shared):
    cases = shared / "cases"
    for name in ("r01_sat_v1.txt", "r02_sat_sameline.txt", "r06_missing_y.txt"):
        assert check(cases / "id2.onnx", cases / "v10_or_bare.vnnlib", cases / name)[0] == "valid"
    assert check(cases / "id2.onnx", cases / "w01_basic.vnnlib", cases / "r07_sat_v2.txt")[0] == "valid"


# Our own runs: written by verify, read by check-witness


@pytest.mark.parametrize("version", [OLD, NEW])
def test_our_own_deterministic_witness(write, identity_model, tmp_path, version):
    prop, results = write("p.vnnlib", version), tmp_path / "r.txt"
    call("verify", prop, identity_model, "--results-file", results)
    assert check(identity_model, prop, results)[0] == "valid"


def test_a_probabilistic_witness_is_bounded_again(write, bayesian, tmp_path):
    model = bayesian("gaussian", W_std=np.full((2, 2), 0.1, np.float32))
    prop, results = write("p.vnnlib", OLD), tmp_path / "r.txt"
    call("verify", prop, model, "--tau-safe", 0.9, "--tau-unsafe", 0.2, "--results-file", results)
    said, remarks = check(model, prop, results)
    assert said == "valid"
    assert "query probabilistic" in remarks
    assert "needed: more than 0.8" in remarks
    # At (0.5, 0) every second network violates; at (0.4, 0) hardly any does.
    for x, tau, expected, code in ((0.5, 0.6, "valid", 0), (0.5, 0.2, "invalid", 3), (0.4, 0.95, "invalid", 3)):
        tampered = write("t.txt", f"sat\n((X_0 {x}) (X_1 0.0) (Y_0 {x}) (Y_1 0.0))\n")
        assert check(model, prop, tampered, "--tau-unsafe", tau, code=code)[0] == expected
    outside = write("o.txt", "sat\n((X_0 1.00001) (X_1 0.0) (Y_0 1.0) (Y_1 0.0))\n")
    assert check(model, prop, outside, code=3)[0] == "invalid"


def test_a_sat_that_rests_on_an_input_for_each_sample(write, bayesian, tmp_path):
    """Two networks, x and 1 - x as it were: each violates somewhere, no input violates both."""
    samples = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]], np.float32)
    model = bayesian("samples", W_samples=samples)
    text = OLD.replace("(assert (>= Y_0 0.5))", "(assert (>= Y_0 0.9)) (assert (<= (+ X_0 X_1) 1.0))")
    prop, results = write("p.vnnlib", text), tmp_path / "r.txt"
    call("verify", prop, model, "--tau-unsafe", 0.1, "--results-file", results)
    assert results.read_text().startswith("sat")
    said, remarks = check(model, prop, results)
    assert said == "valid"
    assert "an input for each violating sample" in remarks


def test_a_decision_witness_is_bounded_again(write, bayesian, tmp_path):
    model = bayesian("decision", "gaussian", W_std=np.full((2, 2), 0.1, np.float32))
    prop, results = write("p.vnnlib", OLD), tmp_path / "r.txt"
    call("verify", prop, model, "--query", "decision", "--results-file", results)
    said, remarks = check(model, prop, results)
    assert said == "valid"
    assert "query decision" in remarks
    assert check(model, prop, write("t.txt", "sat\n((X_0 0.25) (X_1 0.0))\n"), "--query", "decision", code=3)[0] == (
        "invalid"
    )


def test_a_record_of_other_files_is_told(write, identity_model, tmp_path):
    prop, results = write("p.vnnlib", OLD), tmp_path / "r.txt"
    call("verify", prop, identity_model, "--results-file", results)
    assert "another" not in check(identity_model, prop, results)[1]
    prop.write_text(OLD + "\n")
    assert "the record was made for another property" in check(identity_model, prop, results)[1]


def test_a_damaged_record_is_refused(write, identity_model):
    write("r.txt.json", "[")
    _, remarks = check(identity_model, write("p.vnnlib", OLD), write("r.txt", "sat\n((X_0 0.75) (X_1 0.25))\n"), code=2)
    assert "cannot be read as JSON" in remarks


def test_the_record_says_what_was_asked(write, bayesian, tmp_path):
    """A deterministic run of a model with a posterior: its record, not the default, decides whose rules count."""
    model = bayesian("asked", W_std=np.full((2, 2), 0.1, np.float32))
    prop, results = write("p.vnnlib", OLD), tmp_path / "r.txt"
    call("verify", prop, model, "--query", "deterministic", "--results-file", results)
    assert json.loads(Path(f"{results}.json").read_text())["query"] == "deterministic"
    assert "query deterministic" in check(model, prop, results)[1]
    assert "query probabilistic" in check(model, prop, results, "--query", "probabilistic")[1]


# The property at a point


def test_only_cases_that_hold_the_point_are_left():
    text = (
        DECLARED
        + """(assert (or
    (and (>= X_0 0.0) (<= X_0 1.0) (>= X_1 0.0) (<= X_1 1.0) (>= Y_0 0.5) (<= Y_1 X_0))
    (and (>= X_0 2.0) (<= X_0 3.0) (>= X_1 0.0) (<= X_1 1.0) (>= Y_1 0.5))
    (and (>= X_0 0.5) (<= X_0 3.0) (>= X_1 0.0) (<= X_1 1.0) (>= Y_1 0.7))))"""
    )
    prop = parse_property(text)
    x = np.array([0.75, 0.25])
    part = at_point(prop, x)
    assert part.num_cases == 2
    assert part.boxes.lower.tolist() == part.boxes.upper.tolist() == [[0.75, 0.25]]
    for y in ([0.6, 0.1], [0.1, 0.8], [0.1, 0.6], [0.6, 0.9]):
        whole = violated_case(prop, x, np.array(y))
        assert (whole is None) == (violated_case(part, x, np.array(y)) is None)
    assert at_point(prop, np.array([5.0, 0.0])).num_cases == 0


def test_cases_count_from_one(identity_model, write):
    cases = "(assert (or (and (>= Y_0 2.0)) (and (<= Y_1 0.5))))"
    result = write("r.txt", "sat\n((X_0 0.5)\n(X_1 0.0))\n")
    said, remarks = check(identity_model, write("p.vnnlib", DECLARED + BOX + cases), result)
    assert said == "valid"
    assert "case 2 of 2" in remarks
