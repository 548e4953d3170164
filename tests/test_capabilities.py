"""`supports`, and witnesses as serialised tensors: what VNN-LIB 2.x asks of a solver's command line."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bnn_vnnlib.cli import capabilities
from bnn_vnnlib.errors import UnsupportedError
from support.command import call

NEW = """(vnnlib-version <2.0>)
(declare-network f (declare-input X {type} [1,2]) (declare-output Y {type} [1,2]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0)))
(assert (>= Y[0,0] {bound}))
"""


@pytest.mark.parametrize(
    ("capability", "answer"),
    [
        ("onnx-element-types", "float32\nfloat64\nreal\n"),
        ("vnnlib-versions", "1.0\n2.1\n"),
        ("hidden-node-theories", "NH\n"),
        ("multiple-input-output-theories", "SIO\nMIO\n"),
        ("multiple-inputs-output-theories", "SIO\nMIO\n"),  # the standard spells it both ways
        ("multiple-network-theories", "SNET\nMENET\nMINET\n"),
        ("multiple-node-comparison-theories", "SNC\nMNC\n"),
        ("arithmetic-complexity-theories", "BND\nOUTC\nLIN\n"),
        ("optimised-disjunctive-reasoning", "true\n"),
        ("serialise-assignments", "true\n"),
        ("unsat-proofs", "false\n"),
    ],
)
def test_answers_are_what_the_code_does_today(capability, answer):
    assert call("supports", f"--{capability}").stdout == answer


def test_operators_and_opsets_come_from_the_tables():
    from onnx.defs import onnx_opset_version

    from bnn_vnnlib.model.operators import OPERATORS

    listed = call("supports", "--onnx-operators").stdout.splitlines()
    assert set(listed) == {operator for _, operator, _ in OPERATORS}
    assert call("supports", "--onnx-opset-versions").stdout == f"7\n{onnx_opset_version()}\n"


def test_an_answer_follows_the_parser(monkeypatch):
    """Were multiplication no longer read, LIN would no longer be claimed."""
    import bnn_vnnlib.vnnlib as reader

    def without_products(text, read=reader.parse_property):
        if "(*" in text:
            raise UnsupportedError("no products")
        return read(text)

    assert capabilities.theories("OUTC", "LIN") == ["OUTC", "LIN"]
    monkeypatch.setattr(reader, "parse_property", without_products)
    assert capabilities.theories("OUTC", "LIN") == ["OUTC"]


@pytest.mark.parametrize("flags", [(), ("--onnx-operators", "--vnnlib-versions")])
def test_one_question_at_a_time(flags):
    assert f"found {len(flags)}" in call("supports", *flags, code=2).stderr


@pytest.mark.parametrize("option", ["--serialise-assignments", "--assignments"])
@pytest.mark.parametrize("element_type", ["float32", "real"])
def test_a_witness_as_tensors(tmp_path, identity_model, option, element_type):
    prop, folder = tmp_path / "p.vnnlib", tmp_path / "new" / "folder"
    prop.write_text(NEW.format(type=element_type, bound="0.5"))
    out = call("verify", prop, "--network", f"f={identity_model}", option, folder).stdout.splitlines()
    assert out[0] == "sat"
    for name, first in (("X", 2), ("Y", 5)):
        tensor = onnx.load_tensor(folder / f"{name}.pb")
        values = numpy_helper.to_array(tensor)
        assert tensor.name == name
        assert values.dtype == np.float32
        assert values.shape == (1, 2)
        assert values.ravel().tolist() == [np.float32(word) for word in out[first : first + 2]]


def test_without_a_sat_no_tensors(tmp_path, identity_model):
    prop = tmp_path / "p.vnnlib"
    prop.write_text(NEW.format(type="float32", bound="1.5"))
    assert call("verify", prop, identity_model, "--serialise-assignments", tmp_path / "f").stdout == "unsat\n"
    assert not list((tmp_path / "f").iterdir())


def test_a_folder_that_cannot_be_is_refused_before_work(tmp_path, identity_model):
    prop, file = tmp_path / "p.vnnlib", tmp_path / "file"
    prop.write_text(NEW.format(type="float32", bound="0.5"))
    file.write_text("")
    said = call("verify", prop, identity_model, "--serialise-assignments", file / "below", code=2).stderr
    assert "the folder cannot be made" in said
