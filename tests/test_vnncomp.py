"""Results files: exact when written, lenient when read."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib import Bounds, DecisionBounds, Property, Query, Result, Verdict, Witness
from bnn_vnnlib.errors import InputError, SoundnessError
from bnn_vnnlib.files.sidecar import as_json, record, sidecar_path, to_text, unfinished
from bnn_vnnlib.files.vnncomp import read_result, results_text, standard_output, write_text
from bnn_vnnlib.question.property import Boxes, HalfSpaces
from bnn_vnnlib.signature import Signature, Variable


def a_property(version=(1, 0), inputs=((2,),), outputs=((2,),)) -> Property:
    """A property without cases over the given shapes."""
    letters = "XY" if version[0] == 1 else ("first", "second")
    signature = Signature(
        tuple(Variable(f"{letters[0]}{i or ''}", "real", shape) for i, shape in enumerate(inputs)),
        tuple(Variable(f"{letters[1]}{i or ''}", "real", shape) for i, shape in enumerate(outputs)),
    )
    n, m = signature.input_size, signature.output_size

    def nothing(width: int) -> HalfSpaces:
        flags, owner = np.empty(0, dtype=bool), np.empty(0, dtype=np.int64)
        return HalfSpaces(np.empty((0, width)), None, np.empty(0), np.empty(0), flags, owner)

    boxes = Boxes(np.zeros((1, n)), np.ones((1, n)), np.zeros((1, n)), np.ones((1, n)))
    return Property(version, None, signature, boxes, nothing(0), np.empty(0, dtype=np.int64), nothing(m))


def a_result(verdict=Verdict.SAT, x=(0.75, 0.25), y=(0.75, 0.25), **more) -> Result:
    witness = Witness(np.array(x), np.array(y), "an input that violates") if verdict is Verdict.SAT else None
    defaults = {"query": Query.DETERMINISTIC, "tau_safe": 0.95, "tau_unsafe": 0.95, "method": "interval"}
    return Result(verdict=verdict, witness=witness, time_s=0.5, **{**defaults, **more})


def test_a_1_0_witness_is_written_as_the_competition_reads_it():
    assert results_text(a_result(), a_property()) == "sat\n((X_0 0.75)\n(X_1 0.25)\n(Y_0 0.75)\n(Y_1 0.25))\n"


def test_a_2_x_witness_lists_every_variable_in_order():
    prop = a_property((2, 0), inputs=((1, 2), ()), outputs=((2, 1),))
    text = results_text(a_result(x=(0.5, 1e-7, -3.0)), prop)
    first = ["first real [1,2]", "0.5", "0.0000001", "first1 real []", "-3.0"]
    assert text.splitlines() == ["sat", *first, "second real [2,1]", "0.75", "0.25"]


@pytest.mark.parametrize("name", ["r01_sat_v1.txt", "r07_sat_v2.txt"])
def test_valid_files_are_what_we_would_write(shared, tmp_path, name):
    theirs = (shared / "cases" / name).read_text()
    prop = a_property((1, 0)) if "v1" in name else a_property((2, 0))
    assert results_text(a_result(), prop) == theirs.replace("X real", "first real").replace("Y real", "second real")


@pytest.mark.parametrize(
    ("name", "verdict", "shapes"),
    [
        ("r01_sat_v1.txt", Verdict.SAT, {"X": (2,), "Y": (2,)}),
        ("r02_sat_sameline.txt", Verdict.SAT, {"X": (2,), "Y": (2,)}),
        ("r06_missing_y.txt", Verdict.SAT, {"X": (2,)}),
        ("r07_sat_v2.txt", Verdict.SAT, {"X": (2,), "Y": (2,)}),
        ("r08_v2_space_dims.txt", Verdict.SAT, {"X": (1, 2), "Y": (1, 2)}),
        ("r09_timedout.txt", Verdict.TIMEOUT, {}),
    ],
)
def test_real_files_are_read(shared, name, verdict, shapes):
    result = read_result(shared / "cases" / name)
    assert result.verdict is verdict
    assert {key: value.shape for key, value in result.values.items()} == shapes
    for value in result.values.values():
        assert value.ravel().tolist() == [0.75, 0.25]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    ["((X_0 0.75)\n(X_1 0.25))\n", "\n ((X_0 0.75) (X_1 0.25))", "sat\n((X_0 0.75)\n(X_1 0.25))",
     "X real [2]\n0.75\n0.25\n", "\nX real [1, 2]\n0.75\n0.25\n"],
)  # fmt: skip
def test_archived_witnesses_are_read(tmp_path, text, packed):
    """Competitions pack them, and the first line may be missing."""
    path = tmp_path / ("r.counterexample" + ".gz" * packed)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    for asked in (path, tmp_path / "r.counterexample"):
        result = read_result(asked)
        assert result.verdict is Verdict.SAT
        assert result.values["X"].ravel().tolist() == [0.75, 0.25]


@pytest.mark.parametrize("data", [b"\x1f\x8bbroken", b"\xff\xfe\x00"])
def test_a_results_file_that_is_no_text_is_refused(tmp_path, data):
    (tmp_path / "r.txt").write_bytes(data)
    with pytest.raises(InputError, match=r"r\.txt.*(gzip|a results file)"):
        read_result(tmp_path / "r.txt")


@pytest.mark.parametrize(
    ("name", "message"), [("r03_violated.txt", "unknown verdict 'violated'"), ("r04_nan.txt", "finite, found 'nan'")]
)
def test_bad_real_files_are_refused(shared, name, message):
    with pytest.raises(InputError, match=message):
        read_result(shared / "cases" / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown verdict ''"),
        ("satisfied\n", "unknown verdict"),
        ("sat\n((X_0 1) (X_2 1))\n", "expected X_1, found X_2"),
        ("sat\n((X_0 1) what (X_1 1))\n", "found 'what'"),
        ("sat\n((X_0 one))\n", "'one' is not a number"),
        ("sat\nX real [2]\n1\n", "X needs 2 values, found 1"),
        ("sat\nX real 2\n1\n", "expected 'name type"),
        ("sat\nX real [1]\ninf\n", "finite, found 'inf'"),
    ],
)
def test_malformed_files_are_refused_with_a_reason(tmp_path, text, message):
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        read_result(tmp_path / "r.txt")


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=60)
@given(st.lists(finite, min_size=1, max_size=5), st.lists(finite, min_size=1, max_size=3), st.sampled_from([1, 2]))
def test_every_finite_witness_survives_a_round_trip(tmp_path_factory, x, y, major):
    path = tmp_path_factory.mktemp("r") / "results.txt"
    prop = a_property((major, 0), inputs=((len(x),),), outputs=((1, len(y)),))
    write_text(path, results_text(a_result(x=x, y=y), prop))
    first, second = read_result(path).values.values()
    assert first.tolist() == x
    assert second.ravel().tolist() == y


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("major", [1, 2])
def test_a_witness_that_is_not_finite_is_never_written(bad, major):
    with pytest.raises(SoundnessError, match="finite"):
        results_text(a_result(y=(0.0, bad)), a_property((major, 0)))


def test_a_sat_without_a_witness_is_never_written():
    result = Result(Verdict.SAT, Query.DECISION, 0.95, 0.95, "interval", 0.1)
    with pytest.raises(SoundnessError, match="no witness"):
        results_text(result, a_property())


def test_a_witness_of_the_wrong_size_is_never_written():
    with pytest.raises(SoundnessError, match="does not fit"):
        results_text(a_result(x=(1.0,)), a_property())


def test_a_timeout_is_spelt_by_the_place_and_the_version():
    late = a_result(Verdict.TIMEOUT)
    old, new = a_property((1, 0)), a_property((2, 0))
    assert [results_text(late, prop) for prop in (old, new)] == ["timeout\n", "timeout\n"]
    assert [standard_output(late, prop) for prop in (old, new)] == ["timeout\n", "timed-out\n"]


def test_files_are_replaced_whole_and_leave_no_scratch(tmp_path):
    path = tmp_path / "results.txt"
    path.write_text("x" * 1000)
    write_text(path, "unsat\n")
    assert path.read_text() == "unsat\n"
    assert os.listdir(tmp_path) == ["results.txt"]


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    write_text(Path(os.devnull), "unsat\n")
    assert not Path(os.devnull).is_file()


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        write_text(tmp_path / "missing" / "results.txt", "unsat\n")


def test_the_record_holds_every_promised_key_as_strict_json(tmp_path):
    (tmp_path / "p").write_text("abc")
    rows = DecisionBounds(np.array([-np.inf]), np.array([1.0]), np.array([0.25]), np.array([np.inf]))
    result = a_result(
        p_safe=Bounds(0.5, 0.75),
        decision=rows,
        details={"mass": np.float64(0.1), "seeds": np.arange(2), "bad": math.nan, "query": Query.DECISION},
        notes=("remark",),
    )
    files = {"property": tmp_path / "p", "model": tmp_path / "absent"}
    text = to_text(record(result, files, seed=7, timeout=2.5))

    def refuse(token: str) -> None:
        raise AssertionError(token)

    found = json.loads(text, parse_constant=refuse)
    assert found["verdict"] == "sat"
    assert found["query"] == "deterministic"
    assert (found["tau_safe"], found["tau_unsafe"]) == (0.95, 0.95)
    assert found["p_safe"] == {"lower": 0.5, "upper": 0.75}
    assert found["decision"] == {
        "lower": ["-Infinity"],
        "upper": [1.0],
        "rows": {"lower": [0.25], "upper": ["Infinity"]},
    }
    assert found["method"] == "interval"
    assert found["witness"]["x"] == [0.75, 0.25]
    assert found["witness"]["shows"] == "an input that violates"
    assert found["time_s"] == 0.5
    assert found["sha256"]["property"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert found["sha256"]["model"] is None
    assert found["details"] == {"mass": 0.1, "seeds": [0, 1], "bad": None, "query": "decision"}
    assert (found["seed"], found["timeout"], found["notes"]) == (7, 2.5, ["remark"])
    assert {"bnn-vnnlib", "torch", "onnx", "onnxruntime", "python"} <= found["versions"].keys()


def test_an_unfinished_run_has_the_same_keys(tmp_path):
    whole = record(a_result(), {}, seed=0, timeout=None)
    part = unfinished(Verdict.ERROR, "why", {}, query=None, seed=0, timeout=None, time_s=0.1)
    assert part.keys() == whole.keys()
    assert part["notes"] == ["why"]


def test_infinities_can_be_read_back_as_numbers():
    assert [float(word) for word in as_json([math.inf, -math.inf])] == [math.inf, -math.inf]


def test_the_record_lies_next_to_the_results():
    assert sidecar_path(Path("out/r.txt")) == Path("out/r.txt.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"sat\nX real [{'9' * 5000}]\n", "a shape that no witness has"),
        (f"sat\nX real [0{',1' * 40}]\n", "a shape that no witness has"),
        ("sat\nX real [0,999999999,999999999,999999999]\n", "a shape that no witness has"),
        ("sat\nX real [1]\n1\nX real [1]\n2\n", "X is there twice"),
        (f"sat\n((X_{'9' * 5000} 1))\n", "expected X_0"),
    ],
)
def test_witnesses_that_no_verifier_wrote(tmp_path, text, words):
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_result(tmp_path / "r.txt")
    assert len(str(caught.value)) < 1000


def test_many_empty_variables_take_no_time(tmp_path):
    """Their lines were copied once for each of them."""
    (tmp_path / "r.txt").write_text("sat\n" + "".join(f"v{i} real [0]\n" for i in range(100_000)))
    assert len(read_result(tmp_path / "r.txt").values) == 100_000
