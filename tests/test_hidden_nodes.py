"""Assignments of VNN-LIB 2.x that the competition's reader accepts: every declared variable, hidden nodes too."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib import Query, Result, Verdict, Witness
from bnn_vnnlib.errors import SoundnessError
from bnn_vnnlib.files.vnncomp import results_text
from bnn_vnnlib.vnnlib import parse_property
from support.command import call

TYPES = {"float32": (TensorProto.FLOAT, np.float32), "float64": (TensorProto.DOUBLE, np.float64)}
HIDDEN = {
    "none": "",
    "one": '(declare-hidden H {t} [1,3] "pre")',
    "an output too": '(declare-hidden H {t} [1,3] "act") (declare-hidden O {t} [1,2] "y")',
    "many shapes": '(declare-hidden Total {t} [] "total") (declare-hidden Cube {t} [1,3,1] "cube") '
    '(declare-hidden Flat {t} [3] "act") (declare-hidden Again {t} [1,3] "act")',
    "an escaped name": '(declare-hidden H {t} [1,3] "relu \\"3\\"")',
}
QUERY = """(vnnlib-version <2.0>)
(declare-network f
  (declare-input A {t} [1,2]) (declare-input B {t} [1,1])
  {hidden}
  (declare-output Y {t} [1,2]) (declare-output s {t} []))
(assert (and (>= A[0,0] 0.25) (<= A[0,0] 0.5) (>= A[0,1] -1.0) (<= A[0,1] 1.0) (>= B[0,0] 0.0) (<= B[0,0] 0.125)))
(assert (>= Y[0,0] {bound}))
"""


def network(element_type: str = "float32") -> onnx.ModelProto:
    """y = relu((a | b) V) W, s = the sum of the relu; with tensors of several ranks on the way."""
    code, kind = TYPES[element_type]
    random = np.random.default_rng(1)
    weights = {"V": random.uniform(-1, 1, (3, 3)), "W": random.uniform(-1, 1, (3, 2))}
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["ab"], axis=1),
        helper.make_node("MatMul", ["ab", "V"], ["pre"]),
        helper.make_node("Relu", ["pre"], ["act"]),
        helper.make_node("Relu", ["act"], ['relu "3"']),
        helper.make_node("Reshape", ['relu "3"', "long"], ["cube"]),
        helper.make_node("Reshape", ["cube", "wide"], ["back"]),
        helper.make_node("MatMul", ["back", "W"], ["y"]),
        helper.make_node("ReduceSum", ["act"], ["total"], keepdims=0),
        helper.make_node("Relu", ["total"], ["s"]),
    ]
    initializers = [numpy_helper.from_array(value.astype(kind), name) for name, value in weights.items()]
    initializers += [
        numpy_helper.from_array(np.array(to), name) for name, to in (("long", [1, 3, 1]), ("wide", [1, 3]))
    ]
    inputs = [helper.make_tensor_value_info(name, code, [1, size]) for name, size in (("a", 2), ("b", 1))]
    outputs = [helper.make_tensor_value_info("y", code, [1, 2]), helper.make_tensor_value_info("s", code, [])]
    graph = helper.make_graph(nodes, "f", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def as_the_competition_reads(text: str, declared: list[tuple[str, str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """The rules of vnncomp2026's checker: a header for every declared variable in order, with name, type and shape as
    declared, then as many numbers, and nothing else. Numbers as VNN-LIB 2.x writes them, which is stricter."""
    lines = text.splitlines()
    assert lines.pop(0) == "sat"
    found = {}
    for name, kind, shape in declared:
        assert lines.pop(0) == f"{name} {kind} [{','.join(map(str, shape))}]"
        values, lines = lines[: math.prod(shape)], lines[math.prod(shape) :]
        assert all(re.fullmatch(r"-?[0-9]+\.[0-9]+", value) for value in values)
        found[name] = np.array(values, np.float64).reshape(shape)
    assert not lines
    return found


def declared_in(text: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, type and shape of all variables of a query, in the order of the text."""
    tensors = re.findall(r"\(declare-(?:input|hidden|output) (\w+) (\w+) \[([\d,]*)\]", text)
    return [(name, kind, tuple(map(int, filter(None, shape.split(","))))) for name, kind, shape in tensors]


def computed(model: onnx.ModelProto, values: dict[str, np.ndarray], nodes: dict[str, str]) -> dict[str, np.ndarray]:
    """What onnxruntime computes for these nodes, with the graph's own outputs replaced by them, one at a time."""
    kind = np.float64 if model.graph.input[0].type.tensor_type.elem_type == TensorProto.DOUBLE else np.float32
    feeds = {"a": values["A"].astype(kind), "b": values["B"].astype(kind)}
    found = {}
    for name, node in nodes.items():
        single = onnx.ModelProto()
        single.CopyFrom(model)
        del single.graph.output[:]
        single.graph.output.append(onnx.ValueInfoProto(name=node))
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        found[name] = ort.InferenceSession(single.SerializeToString(), options).run([node], feeds)[0]
    return found


@pytest.fixture
def make(tmp_path):
    """Writes a query and its model."""

    def make(hidden: str, declared: str = "float32", kind: str = "float32", bound: str = "-9.0") -> tuple[Path, Path]:
        (tmp_path / "q.vnnlib").write_text(QUERY.format(t=declared, hidden=hidden.format(t=declared), bound=bound))
        onnx.save(network(kind), tmp_path / "f.onnx")
        return tmp_path / "q.vnnlib", tmp_path / "f.onnx"

    return make


@pytest.mark.parametrize(
    ("which", "declared", "kind"),
    [(which, "float32", "float32") for which in HIDDEN]
    + [("many shapes", "real", "float32"), ("many shapes", "float64", "float64"), ("none", "real", "float64")],
)
def test_the_competition_reads_every_declared_variable(tmp_path, make, which, declared, kind):
    prop, model = make(HIDDEN[which], declared, kind)
    folder, results = tmp_path / "tensors", tmp_path / "r.txt"
    plain = call("verify", prop, "--network", f"f={model}").stdout
    out = call("verify", prop, "--network", f"f={model}", "--serialise-assignments", folder, "--results-file", results)
    assert out.stdout == plain == results.read_text()
    variables = declared_in(prop.read_text())
    values = as_the_competition_reads(plain, variables)
    assert list(values) == [name for name, _, _ in variables]
    nodes = dict(re.findall(r'\(declare-hidden (\w+) \w+ \[[\d,]*\] "((?:[^"\\]|\\.)*)"', prop.read_text()))
    nodes = {"Y": "y", "s": "s"} | {name: node.replace('\\"', '"') for name, node in nodes.items()}
    for name, expected in computed(network(kind), values, nodes).items():
        np.testing.assert_allclose(values[name].reshape(-1), expected.reshape(-1), rtol=1e-6)
    assert {path.stem for path in folder.iterdir()} == set(values)
    for name, value in values.items():
        tensor = onnx.load_tensor(folder / f"{name}.pb")
        assert (tensor.name, tuple(tensor.dims)) == (name, value.shape)
        assert numpy_helper.to_array(tensor).dtype == TYPES[kind][1]
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), value)
    said = call("check-witness", model, prop, results)
    assert said.stdout == "valid\n"
    assert "would refuse" not in said.stderr
    recorded = json.loads((tmp_path / "r.txt.json").read_text())["witness"]["hidden"]
    assert recorded == [values[name].tolist() for name in nodes if name not in ("Y", "s")]


@pytest.mark.parametrize("query", ["probabilistic", "decision"])
def test_hidden_nodes_of_a_posterior_are_those_of_the_mean_network(tmp_path, make, query):
    prop, model = make(HIDDEN["one"])
    np.savez(tmp_path / "p.npz", V_std=np.full((3, 3), 0.01))
    with_posterior = tmp_path / "bnn.onnx"
    call("attach", model, tmp_path / "p.npz", with_posterior, "--likelihood", "gaussian")
    out = call("verify", prop, with_posterior, "--query", query, "--results-file", tmp_path / "r.txt").stdout
    values = as_the_competition_reads(out, declared_in(prop.read_text()))
    for name, expected in computed(network(), values, {"H": "pre", "Y": "y"}).items():
        np.testing.assert_allclose(values[name], expected, rtol=1e-6)
    assert call("check-witness", with_posterior, prop, tmp_path / "r.txt").stdout == "valid\n"


@pytest.mark.parametrize("which", ["none", "one"])
def test_without_a_sat_there_is_no_assignment(make, which):
    prop, model = make(HIDDEN[which], bound="9.0")
    assert call("verify", prop, model).stdout == "unsat\n"


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ('(declare-hidden H float32 [1,3] "gone")', "hidden node H: no node of .*f.onnx computes 'gone'; they compute"),
        ('(declare-hidden H float32 [1,3] "a")', "computes 'a'"),  # an input is no node output
        ('(declare-hidden H float32 [1,3] "V")', "computes 'V'"),  # nor are weights
        ('(declare-hidden H float32 [1,4] "pre")', r"hidden node H is declared \[1, 4\], the model's pre is \[1, 3\]"),
        ('(declare-hidden H float32 [] "pre")', r"H is declared \[\], the model's pre is \[1, 3\]"),
        ('(declare-hidden H float32 [3,1,1,2] "pre")', "the shapes must agree"),
    ],
)
def test_hidden_nodes_that_the_model_does_not_have_are_refused(make, hidden, message):
    """Before any work: the bound makes the query unsat, so that no witness is ever needed."""
    prop, model = make(hidden, bound="9.0")
    said = call("verify", prop, model, code=2)
    assert re.search(message, " ".join(said.stderr.split()))
    assert said.stdout == ""


def test_the_type_of_a_hidden_node_is_the_models(make):
    prop, model = make('(declare-hidden H float64 [1,3] "pre")')
    assert "hidden node H is declared float64" in call("verify", prop, model, code=2).stderr


def test_a_constrained_hidden_node_is_refused(make):
    prop, model = make(HIDDEN["one"])
    prop.write_text(prop.read_text() + "(assert (<= H[0,0] 1.0))")
    assert "H is a hidden node" in " ".join(call("verify", prop, model, code=2).stderr.split())


def test_files_that_lack_a_hidden_node_or_disagree_are_judged_by_their_input(tmp_path, make):
    prop, model = make(HIDDEN["one"])
    results = tmp_path / "r.txt"
    call("verify", prop, model, "--results-file", results)
    text = results.read_text()
    start, end = text.index("H "), text.index("Y ")
    results.write_text(text[:start] + text[end:])
    said = call("check-witness", model, prop, results)
    assert said.stdout == "valid\n"
    assert "reader would refuse the file: it lists A [1, 2], B [1, 1], Y [1, 2], s []; declared are" in said.stderr
    results.write_text(text[:start] + "H float32 [1,3]\n100.0\n0.0\n0.0\n" + text[end:])
    said = call("check-witness", model, prop, results)
    assert said.stdout == "valid\n"
    off = re.search(r"H in the file and H of onnxruntime differ by at most (\S+)", said.stderr)
    assert off is not None
    assert 90 < float(off[1]) < 110


def test_an_assignment_without_its_hidden_nodes_is_never_written():
    text = QUERY.format(t="real", hidden=HIDDEN["one"].format(t="real"), bound="0.5")
    prop = parse_property(text)
    for hidden in ((), (np.zeros((3, 1)),)):
        witness = Witness(np.zeros(3), np.zeros(3), "that", hidden=hidden)
        result = Result(Verdict.SAT, Query.DETERMINISTIC, 0.9, 0.9, "interval", 0.0, witness=witness)
        with pytest.raises(SoundnessError, match="hidden nodes"):
            results_text(result, prop)


def test_names_of_nodes_are_unescaped():
    text = QUERY.format(t="real", hidden=r'(declare-hidden H real [1] "a\\b\"c\nd\te")', bound="0.5")
    (hidden,) = parse_property(text).hidden
    assert hidden.node == 'a\\b"c\nd\te'
    assert (hidden.name, hidden.element_type, hidden.shape) == ("H", "real", (1,))
