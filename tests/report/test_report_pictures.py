"""Pictures: which instances have any, of what shape, and what is in them."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.files.sidecar import sha256
from bnn_vnnlib.report.pictures import Picture, parse_shape, pictures
from support.records import plain, row, safe

BOX = "(assert (>= X_{i} {low})) (assert (<= X_{i} {high}))"


@pytest.fixture
def files(tmp_path):
    """Property and model of inputs (1, 1, 2, 2), each pixel in [0, .5]."""
    lines = [f"(declare-const X_{i} Real)" for i in range(4)] + ["(declare-const Y_0 Real)"]
    lines += [BOX.format(i=i, low="0.0", high="0.5") for i in range(4)]
    prop = tmp_path / "p.vnnlib"
    prop.write_text("\n".join([*lines, "(assert (>= Y_0 1.0))"]))
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, 2])],
    )  # fmt: skip
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), model)
    return {"property": str(prop), "model": str(model)}


def with_files(one, files):
    return replace(one, files=files, hashes={role: sha256(prop) for role, prop in paths(files).items()})


def paths(files):
    from pathlib import Path

    return {role: Path(path) for role, path in files.items()}


def test_input_and_witness_of_an_image(files):
    rows = [with_files(row(safe("unsat", 1.0, 1.0)), files), with_files(row(safe("sat", 0.0, 0.1)), files)]
    found = pictures(rows, None, 10)
    assert list(found) == [1, 0]  # the witness first
    assert found[1].shape == (1, 2, 2)
    np.testing.assert_array_equal(found[1].centre, [0.25] * 4)
    np.testing.assert_array_equal(found[1].witness, [0.1, 0.2, 0.3, 0.4])
    assert found[0].witness is None
    assert len(pictures(rows, None, 1)) == 1
    assert pictures(rows, None, 0) == {}


def test_of_several_boxes_the_one_that_holds_the_witness(files):
    lines = [f"(declare-const X_{i} Real)" for i in range(4)] + ["(declare-const Y_0 Real)"]
    boxes = [" ".join(f"(>= X_{i} {low}) (<= X_{i} {low + 0.5})" for i in range(4)) for low in (0.0, 2.0)]
    cases = " ".join(f"(and {box} (>= Y_0 1.0))" for box in boxes)
    paths(files)["property"].write_text("\n".join([*lines, f"(assert (or {cases}))"]))
    rows = [with_files(row(safe(verdict, 0.0, 0.1)), files) for verdict in ("sat", "unknown")]
    found = pictures(rows, None, 10)
    np.testing.assert_array_equal(found[0].centre, [0.25] * 4)
    assert list(found) == [0]  # without a witness nobody knows which


def test_files_that_changed_are_not_shown(files):
    one = with_files(row(safe("sat", 0.0, 0.1)), files)
    path = paths(files)["property"]
    path.write_text(path.read_text().replace("0.5", "0.75"))
    assert pictures([one], None, 10)[0].centre is None
    paths(files)["model"].write_bytes(b"")
    assert pictures([one], None, 10) == {}


def test_without_files_the_shape_must_be_told():
    one = row(safe("sat", 0.0, 0.1))
    assert pictures([one], None, 10) == {}
    found = pictures([one], (1, 2, 2), 10)[0]
    assert (found.shape, found.centre) == ((1, 2, 2), None)


def test_an_image_of_another_size_is_refused():
    with pytest.raises(OptionError, match="--image 1x3x3 needs 9 inputs; the instances have 4"):
        pictures([row(safe("sat", 0.0, 0.1))], (1, 3, 3), 10)
    assert pictures([row(plain("unsat"))], (1, 3, 3), 10) == {}  # nothing known of its inputs


@pytest.mark.parametrize(
    "text", ["8", "8x", "x8", "0x8", "2x8x8", "8x8x8x8", "axb", "-1x8", "9999x9999", "8 x 8", "８x８", ""]
)
def test_shapes_that_are_none(text):
    with pytest.raises(OptionError, match="expected HEIGHTxWIDTH"):
        parse_shape(text)


def test_bytes_of_the_page():
    values = Picture((1, 1, 2), np.array([0.0, 1.0]), np.array([0.5, 0.9])).values()
    assert list(b64decode(values["input"])) == [0, 255]
    assert list(b64decode(values["witness"])) == [128, 230]
    assert list(b64decode(values["difference"])) == [255, 102]
    assert values["largest"] == 0.5
    constant = Picture((1, 1, 2), np.array([3.0, 3.0]), None).values()
    assert (list(b64decode(constant["input"])), constant["witness"], constant["low"]) == ([0, 0], None, 3.0)
