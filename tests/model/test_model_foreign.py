"""What other people's exporters write: Einsum, Where over a comparison, Scaler, If, local functions, quantized weights,
outputs that cannot be asked about; with the machinery of `test_model_operators`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from model_helpers import make_model, node, run_onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from test_model_operators import (
    Case,
    model_of,
    normal,
    points,
    test_operator_agrees_with_onnxruntime,
    test_posterior_follows_the_weight,
    uncertain_names,
)

from bnn_vnnlib import read_model, read_property, verify
from bnn_vnnlib.errors import InputError, ModelError, PropertyError, UnsupportedError
from bnn_vnnlib.model import build_network, replay
from bnn_vnnlib.model.importer import import_graph
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Activation, Linear, Product

f32 = np.float32


def einsum(name: str, equation: str, weight: Any, shape: tuple[int, ...], order: str = "x W") -> Case:
    weights = {} if weight is None else {"W": normal(*weight)}
    return Case(f"einsum_{name}", [node("Einsum", order, equation=equation)], weights, shape, element=f32)


def where(name: str, relation: str, compared: str, branches: str, *front: Any, **weights: Any) -> Case:
    """y = Where(relation of two values, branch, branch); "zero" and "c" are constants."""
    nodes = [*front, node(relation, compared, "mask"), node("Where", f"mask {branches}")]
    tensors = {"zero": np.array(0.0), "c": np.array(0.375), "s": np.array(0.25)} | weights
    used = {one for step in nodes for one in step.input}
    tensors = {key: array for key, array in tensors.items() if key in used}
    return Case(f"where_{name}", nodes, tensors, (2, 4), certain=tuple(set(tensors) - {"slopes"}), element=f32)


def scaler(name: str, shape: tuple[int, ...], **numbers: list[float]) -> Case:
    return Case(f"scaler_{name}", [node("Scaler", "x", domain="ai.onnx.ml", **numbers)], {}, shape, element=f32)


SCALED, TWICE = node("Mul", "x s", "sx"), node("Clip", "x - six", "capped")
CASES = [
    einsum("dense", "ab,bc->ac", (4, 3), (2, 4)),
    einsum("transposed_weight", "bi,oi->bo", (3, 4), (2, 4)),
    einsum("ellipsis", "...x,xy->...y", (4, 3), (2, 3, 4)),
    einsum("ellipsis_behind", "x...,xy->y...", (2, 3), (2, 3, 4)),
    einsum("implicit", "ij,jk", (4, 3), (2, 4)),
    einsum("implicit_sorts", "bz,zh", (4, 3), (2, 4)),
    einsum("weight_first", "oi, bi -> bo", (3, 4), (2, 4), "W x"),
    einsum("two_axes", "bhd,hde->be", (3, 4, 5), (2, 3, 4)),
    einsum("result_turned", "bsd,de->ebs", (4, 3), (2, 3, 4)),
    einsum("new_axes", "bd,dhk->bhk", (4, 2, 3), (2, 4)),
    einsum("inner", "i,i->", (4,), (4,)),
    einsum("outer", "i,j->ij", (3,), (4,)),
    einsum("scale", "bi,i->ib", (4,), (2, 4)),
    einsum("itself", "bid,bjd->bij", None, (2, 3, 4), "x x"),
    einsum("itself_turned", "ab,cb->ca", None, (2, 4), "x x"),
    where("max", "Greater", "x n", "x n", node("Mul", "x s", "n")),
    where("min", "GreaterOrEqual", "x n", "n x", node("Mul", "x s", "n")),
    where("relu", "Greater", "x zero", "x zero"),
    where("relu_of_zeros", "Less", "x zero", "zeros x", zeros=np.zeros((2, 4))),
    where("relu_not", "Not", "m", "zero x", node("LessOrEqual", "zero x", "m")),
    where("from_below", "Less", "x c", "x c"),
    where("from_above", "LessOrEqual", "c x", "x c"),
    where("leaky", "Greater", "x zero", "x sx", SCALED),
    where("leaky_less", "Less", "x zero", "sx x", SCALED),
    where("leaky_zero_first", "Less", "zero x", "x sx", SCALED),
    where("leaky_mirrored", "Greater", "x zero", "sx x", SCALED),
    where("leaky_steep", "Greater", "x zero", "x sx", SCALED, s=np.array(-1.5)),
    where("prelu", "GreaterOrEqual", "x zero", "x sx", node("Mul", "slopes x", "sx"), slopes=normal(4)),
    where("abs", "Less", "x zero", "n x", node("Neg", "x", "n")),
    where("clip", "Less", "x zero", "zero capped", TWICE, six=np.array(0.75)),
    where("clip_from_above", "Greater", "x c", "c r", node("Relu", "x", "r")),
    scaler("features", (2, 4), offset=[0.1, -0.2, 0.3, 4.0], scale=[1.1, 0.7, -3.0, 0.1]),
    scaler("one", (4,), offset=[0.1], scale=[1.1]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_onnxruntime(case: Case) -> None:
    test_operator_agrees_with_onnxruntime(case)


@pytest.mark.parametrize("case", [case for case in CASES if uncertain_names(case)], ids=lambda case: case.name)
def test_random_weights_follow(case: Case) -> None:
    test_posterior_follows_the_weight(case)


@pytest.mark.parametrize("name", ["relu", "leaky", "leaky_zero_first", "clip", "abs", "from_below"])
def test_a_choice_is_one_activation(name: str) -> None:
    network = build_network(model_of(next(case for case in CASES if case.name == f"where_{name}")))
    assert isinstance(network.nodes[network.outputs[0]], Activation)


def test_an_einsum_with_a_weight_is_one_linear_map() -> None:
    network = build_network(model_of(CASES[0]))
    assert any(isinstance(one, Linear) for one in network.nodes)
    assert not any(isinstance(one, Product) for one in network.nodes)


def test_at_the_kink() -> None:
    """A tie takes either branch, which are equal there."""
    for case in CASES:
        if case.name.startswith("where"):
            proto = model_of(case)
            x = np.full((1, 8), float(case.weights.get("c", np.array(0.0))))
            y = evaluate(build_network(proto), torch.tensor(x), softmax=True).numpy()
            np.testing.assert_allclose(y, run_onnx(proto, x), atol=1e-6, err_msg=case.name)


REFUSED = {
    "three_operands": ([node("Einsum", "x W V", equation="ab,bc,cd->ad")], {"W": normal(4, 3), "V": normal(3, 2)},
                       "two operands"),
    "diagonal": ([node("Einsum", "x W", equation="ab,bb->ab")], {"W": normal(4, 4)}, "diagonal"),
    "sum_of_one": ([node("Einsum", "x W", equation="ab,cd->ac")], {"W": normal(3, 2)}, "only one operand has"),
    "ellipsis_lost": ([node("Einsum", "x W", equation="...a,...ab->b")], {"W": normal(1, 4, 3)}, "of the ellipsis"),
    "unknown_axis": ([node("Einsum", "x W", equation="ab,bc->ad")], {"W": normal(4, 2)}, "in no operand"),
    "stack": ([node("Einsum", "x W", equation="bi,bij->bj")], {"W": normal(1, 4, 3)}, "stack of matrices"),
    "sizes": ([node("Einsum", "x W", equation="ab,bc->ac")], {"W": normal(3, 4)}, "sizes 4 and 3"),
    "jump": ([node("Greater", "x c", "m"), node("Where", "m x zero")], {"c": np.array(0.5), "zero": np.array(0.0)},
             "no maximum, minimum"),
    "jump_at_0": ([node("Greater", "x zero", "m"), node("Mul", "x c", "s"), node("Add", "s c", "t"),
                   node("Where", "m x t")], {"c": np.array(0.5), "zero": np.array(0.0)}, "no maximum, minimum"),
    "other_source": ([node("Neg", "x", "n"), node("Greater", "n zero", "m"), node("Mul", "x c", "s"),
                      node("Where", "m x s")], {"c": np.array(0.5), "zero": np.array(0.0)}, "no maximum, minimum"),
    "clip_beyond": ([node("Less", "x c", "m"), node("Clip", "x - zero", "r"), node("Where", "m c r")],
                    {"c": np.array(0.5), "zero": np.array(0.0)}, "no maximum, minimum"),
    "leaky_elsewhere": ([node("Greater", "x c", "m"), node("Mul", "x c", "s"), node("Where", "m x s")],
                        {"c": np.array(0.5)}, "no maximum, minimum"),
    "clip_to_another": ([node("Less", "x zero", "m"), node("Relu", "x", "r"), node("Where", "m c r")],
                        {"c": np.array(0.5), "zero": np.array(0.0)}, "no maximum, minimum"),
    "clip_of_another": ([node("Neg", "x", "n"), node("Less", "x zero", "m"), node("Relu", "n", "r"),
                         node("Where", "m zero r")], {"zero": np.array(0.0)}, "no maximum, minimum"),
    "clip_of_another_too": ([node("Neg", "x", "n"), node("Less", "x zero", "m"), node("Clip", "n zero c", "r"),
                             node("Where", "m zero r")], {"c": np.array(0.5), "zero": np.array(0.0)}, "no maximum"),
    "slope_of_another": ([node("Abs", "x", "n"), node("Greater", "x zero", "m"), node("Mul", "n c", "s"),
                          node("Where", "m x s")], {"c": np.array(0.5), "zero": np.array(0.0)}, "no maximum"),
    "several_limits": ([node("Greater", "x c", "m"), node("Relu", "x", "r"), node("Where", "m c r")],
                       {"c": np.array([0.5, 1.0, 1.0, 1.0])}, "no maximum, minimum"),
    "comparison_alone": ([node("Greater", "x c", "m"), node("Cast", "m", to=1)], {"c": np.array(0.5)}, "comparison"),
    "comparison_and": ([node("Greater", "x c", "m"), node("Less", "x d", "n"), node("And", "m n", "o"),
                        node("Where", "o x c")], {"c": np.array(0.5), "d": np.array(1.0)}, "And"),
    # the probabilities are no branch of what is compared: neither x itself, nor s x, nor a Clip of x
    "probabilities_or_c": ([node("Softmax", "x", "p"), node("Greater", "x c", "m"), node("Where", "m p c")],
                           {"c": np.array(0.5)}, "no maximum, minimum"),
    "probabilities_or_slope": ([node("Softmax", "x", "p"), node("Greater", "x zero", "m"), node("Mul", "x c", "s"),
                                node("Where", "m p s")], {"c": np.array(0.5), "zero": np.array(0.0)}, "no maximum"),
    "probabilities_of_slope": ([node("Mul", "x c", "s"), node("Softmax", "s", "p"), node("Greater", "x zero", "m"),
                                node("Where", "m x p")], {"c": np.array(0.5), "zero": np.array(0.0)}, "no maximum"),
    "probabilities_of_relu": ([node("Relu", "x", "r"), node("Softmax", "r", "p"), node("Greater", "x c", "m"),
                               node("Where", "m p c")], {"c": np.array(0.5)}, "no maximum, minimum"),
    "integer_limit": ([node("Greater", "x c", "m"), node("Relu", "x", "r"), node("Where", "m r c")],
                      {"c": np.array(2)}, "no maximum, minimum"),
    "integer_minimum": ([node("Clip", "x c")], {"c": np.array(2)}, "int64"),
    "scaler_lengths": ([node("Scaler", "x", domain="ai.onnx.ml", offset=[1.0, 2.0], scale=[1.0])], {}, "offset and"),
    "ml_operator": ([node("Normalizer", "x", domain="ai.onnx.ml")], {}, "ai.onnx.ml::Normalizer of opset 1 is not"),
    "custom": ([helper.make_node("Mine", ["x"], ["y"], domain="org.me")], {}, "org.me::Mine of a domain that the file"),
    "relation_to_input": ([node("ReduceSum", "x", "s", keepdims=0), node("Cast", "s", "b", to=9), node("If", "b",
                           then_branch=helper.make_graph([], "t", [], []),
                           else_branch=helper.make_graph([], "e", [], []))], {}, "rounds|condition"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    nodes, weights, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as caught:
        build_network(make_model(nodes, weights, element=f32))
    assert caught.value.node


# quantized weights -----------------------------------------------------------------------------------------------


def quantized(name: str, shape: tuple[int, ...], scale: np.ndarray, opset: int = 21, **more: Any) -> ModelProto:
    """x times a dequantized weight; `zero` is the zero point."""
    kind, zero = more.pop("kind", np.int8), more.pop("zero", None)
    info = np.iinfo(kind)
    steps = np.random.default_rng(3).integers(max(info.min, -1000), min(info.max, 1000), shape).astype(kind)
    weights = {"Q": steps, "s": scale} | ({} if zero is None else {"z": np.asarray(zero, kind)})
    operands = "Q s" if zero is None else "Q s z"
    nodes = [node("DequantizeLinear", operands, "W", **more), node("MatMul", "x W")]
    return make_model(nodes, weights, (2, shape[0]), opset=opset, element=f32, ir_version=10)


QUANTIZED = {
    "tensor": quantized("tensor", (4, 3), np.array(0.03), 17, zero=-7),
    "no_zero": quantized("no_zero", (4, 3), np.array(0.03), 13),
    "int32": quantized("int32", (4, 3), np.array(0.03), 17, kind=np.int32),
    "axis": quantized("axis", (4, 3), np.array([0.1, 0.02, 0.3]), 17, zero=[1, -2, 3]),
    "axis_0": quantized("axis_0", (4, 3), normal(4) ** 2, 13, zero=[1, 2, 3, 4], axis=0, kind=np.uint8),
    "axis_last": quantized("axis_last", (4, 3), np.array([0.1, 0.02, 0.3]), 17, axis=-1),
    "blocks": quantized("blocks", (4, 3), normal(2, 3) ** 2, 21, axis=0, block_size=2, zero=np.ones((2, 3))),
}  # fmt: skip


def four_bits() -> ModelProto:
    proto = quantized("four_bits", (4, 3), np.array(0.3))
    del proto.graph.initializer[0]
    proto.graph.initializer.append(helper.make_tensor("Q", TensorProto.INT4, [4, 3], range(-8, 4)))
    return proto


QUANTIZED["four_bits"] = four_bits()


@pytest.mark.parametrize("name", QUANTIZED)
def test_dequantized_weights(name: str) -> None:
    """As onnxruntime does; the products of the file's numbers are exact, and a posterior of the scale follows."""
    proto = QUANTIZED[name]
    x = points(proto)
    network = build_network(proto)
    np.testing.assert_allclose(evaluate(network, torch.tensor(x)).numpy(), run_onnx(proto, x), rtol=1e-5, atol=1e-5)
    assert all(one.weight.slack is None for one in network.nodes if isinstance(one, Linear))
    uncertain = build_network(proto, ["s"])
    drawn = {"s": torch.tensor(uncertain.tensors["s"])[None] * 2}
    y, twice = evaluate(network, torch.tensor(x)), evaluate(uncertain, torch.tensor(x), drawn)[0]
    np.testing.assert_allclose(twice.numpy(), 2 * y.numpy(), rtol=1e-12)


def test_replay_does_not_round_what_meets_quantized_weights(tmp_path: Path) -> None:
    """onnxruntime would, to 8 bits, unless it is told not to; the reader says so."""
    for name, proto in QUANTIZED.items():
        onnx.save(proto, tmp_path / "net.onnx")
        model, x = read_model(tmp_path / "net.onnx"), points(proto)
        y = evaluate(model.network, torch.tensor(x)).numpy()
        np.testing.assert_allclose(replay(model, x), y, rtol=1e-5, atol=1e-5, err_msg=name)
        assert any("8 bits" in note for note in model.notes)


def test_quantized_activations_are_refused() -> None:
    nodes = [node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q s")]
    with pytest.raises(UnsupportedError, match="QuantizeLinear"):
        build_network(make_model(nodes, {"s": np.array(0.1)}, element=f32))


def test_a_zero_point_of_another_shape_is_refused() -> None:
    with pytest.raises(ModelError, match="zero point"):
        build_network(quantized("", (4, 3), np.array(0.1), zero=[1, 2, 3]))


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((3,), {"axis": 0}),
        ((4,), {"axis": 1}),
        ((1, 3), {"axis": 0}),
        ((4, 3), {}),
        ((3, 3), {"axis": 0, "block_size": 2}),
        ((1, 3), {"axis": 1, "block_size": 2}),
        ((2, 1), {"axis": 0, "block_size": 2}),
    ],
)
def test_a_scale_of_another_shape_is_refused(shape: tuple[int, ...], more: dict[str, int]) -> None:
    """Also where numpy would broadcast it, along another axis than is meant; onnxruntime does not run these."""
    with pytest.raises(ModelError, match="expected"):
        build_network(quantized("", (4, 3), normal(*shape) ** 2, **more))


# If --------------------------------------------------------------------------------------------------------------


def branch(name: str, *nodes: Any, output: str, **tensors: np.ndarray) -> onnx.GraphProto:
    initializers = [numpy_helper.from_array(array.astype(f32), key) for key, array in tensors.items()]
    return helper.make_graph(list(nodes), name, [], [helper.make_value_info(output, onnx.TypeProto())], initializers)


def chooses(condition: Any, **branches: onnx.GraphProto) -> ModelProto:
    nodes = [node("MatMul", "x W", "h"), node("If", "b", "c", **branches), node("MatMul", "c W")]
    weights = {"W": normal(4, 4), "b": np.array(condition)}
    return make_model(nodes, weights, element=f32)


BRANCHES = {
    "then_branch": branch("t", node("Relu", "h", "t"), output="t"),
    "else_branch": branch("e", node("Add", "h k", "e"), output="e", k=np.ones(4)),
}


@pytest.mark.parametrize("condition", [True, False, [True]])
def test_an_if_whose_condition_is_constant(condition: Any) -> None:
    proto = chooses(condition, **BRANCHES)
    x = points(proto)
    for uncertain in ([], ["W"]):
        y = evaluate(build_network(proto, uncertain), torch.tensor(x)).numpy()
        np.testing.assert_allclose(y, run_onnx(proto, x), rtol=1e-5, atol=1e-5)


def test_an_if_whose_condition_is_computed_from_shapes() -> None:
    """How torch exports a squeeze: If(Equal(Shape(x)[0], 1)); a weight that only a branch reads is no spare tensor."""
    squeezed = branch("t", node("Flatten", "h", "t", axis=0), output="t")
    kept = branch("e", node("MatMul", "h V", "e"), output="e")
    nodes = [node("Relu", "x", "h"), node("Shape", "x", "n"), node("Gather", "n i", "d"), node("Equal", "d two", "b"),
             node("If", "b", then_branch=squeezed, else_branch=kept)]  # fmt: skip
    weights = {"i": np.array(0), "two": np.array(2), "V": normal(4, 3)}
    for rows in (1, 2):
        proto = make_model(nodes, weights, (rows, 4), element=f32)
        x = points(proto)
        network = build_network(proto, ["V"] if rows == 1 else [])
        assert network.signature.outputs[0].shape == ((1, 3) if rows == 1 else (1, 8))
        y = evaluate(network, torch.tensor(x)).numpy()
        np.testing.assert_allclose(y, run_onnx(proto, x), rtol=1e-5, atol=1e-5)


def test_ifs_inside_ifs_and_names_twice() -> None:
    """Branches of two Ifs may call their own tensors alike; each gets its own."""
    inner = {"then_branch": branch("ti", node("Add", "h k", "u"), output="u", k=np.full(4, 2.0)),
             "else_branch": branch("ei", output="h")}  # fmt: skip
    first = branch("t", node("If", "b", "t", **inner), output="t")
    second = {"then_branch": branch("t2", node("Mul", "c k", "v"), output="v", k=np.full(4, 3.0)),
              "else_branch": branch("e2", output="c")}  # fmt: skip
    nodes = [node("Identity", "x", "h"), node("If", "b", "c", then_branch=first, else_branch=branch("e", output="h")),
             node("If", "b", **second)]  # fmt: skip
    proto = make_model(nodes, {"b": np.array(True)}, element=f32)
    x = points(proto)
    np.testing.assert_allclose(evaluate(build_network(proto), torch.tensor(x)).numpy(), (x + 2) * 3, rtol=1e-6)


def test_a_branch_must_not_hide_a_weight() -> None:
    """A tensor of a branch with the name of a weight would be taken for the weight with the posterior."""
    shadow = branch("t", node("MatMul", "h W", "t"), output="t", W=np.eye(4))
    with pytest.raises(ModelError, match="defined around it already"):
        build_network(chooses(True, then_branch=shadow, else_branch=BRANCHES["else_branch"]), ["W"])


def shadowed(where: str) -> ModelProto:
    """An If with a tensor "w" of its own, beside a weight "w"."""
    own = branch("t", node("Add", "x w", "t"), output="t", w=np.ones(4))
    if where == "sparse in the branch":
        del own.initializer[:]
        entries = numpy_helper.from_array(np.ones(1, f32), "w")
        places = numpy_helper.from_array(np.ones(1, np.int64), "places")
        own.sparse_initializer.append(helper.make_sparse_tensor(entries, places, [4]))
    nodes = [node("If", "b", "c", then_branch=own, else_branch=branch("e", output="x")), node("Add", "c w")]
    weights, weight = {"b": np.array(True)}, np.full(4, 7.0)
    if where == "computed later":
        nodes.insert(1, node("Constant", "", "w", value=numpy_helper.from_array(weight.astype(f32))))
    else:
        weights["w"] = weight
    return make_model(nodes, weights, element=f32)


@pytest.mark.parametrize("where", ["sparse in the branch", "computed later"])
def test_a_branch_must_not_hide_a_posterior(where: str) -> None:
    with pytest.raises(ModelError, match="defined around it already"):
        build_network(shadowed(where), ["w"])


def test_a_tensor_of_a_branch_never_takes_the_name_of_a_weight() -> None:
    """The second "w" gets another name, but none that is in the file."""
    nodes, x = [], "x"
    for i in range(2):
        own = branch("t", node("Add", f"{x} w", f"t{i}"), output=f"t{i}", w=np.full(4, 1.0 + i))
        nodes.append(node("If", "b", f"c{i}", then_branch=own, else_branch=branch("e", output=x)))
        x = f"c{i}"
    proto = make_model([*nodes, node("Add", "c1 w'")], {"b": np.array(True), "w'": np.full(4, 7.0)}, element=f32)
    network = build_network(proto, ["w'"])
    np.testing.assert_array_equal(network.tensors["w'"], np.full(4, 7.0))
    assert sorted(tensor[0] for tensor in network.tensors.values()) == [1, 2, 7]


def test_a_draw_in_a_branch_is_refused() -> None:
    noisy = branch("t", node("RandomNormalLike", "h", "t"), output="t")
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        build_network(chooses(True, then_branch=noisy, else_branch=BRANCHES["else_branch"]))


def test_external_data_of_a_branch_stay_in_the_folder(tmp_path: Path) -> None:
    leaving = branch("t", node("Add", "h k", "t"), output="t", k=np.ones(4))
    tensor = leaving.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "net.onnx"
    path.write_bytes(chooses(True, then_branch=leaving, else_branch=BRANCHES["else_branch"]).SerializeToString())
    with pytest.raises(ModelError, match="leave the model's folder"):
        read_model(path)


# local functions -------------------------------------------------------------------------------------------------


def with_functions(nodes: list[Any], *functions: onnx.FunctionProto, opset: int = 17) -> ModelProto:
    proto = make_model(nodes, {"W": normal(4, 4)}, element=f32, opset=opset)
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("my", 1))
    return proto


def function(name: str, *nodes: Any, opset: int = 17) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_function("my", name, ["a", "w"], ["o"], list(nodes), imports)


def my(name: str, inputs: str, output: str = "y") -> onnx.NodeProto:
    return helper.make_node(name, inputs.split(), [output], domain="my")


def test_local_functions_are_inlined() -> None:
    dense = function("Dense", node("MatMul", "a w", "t"), node("Relu", "t", "o"))
    deep = function("Deep", my("Dense", "a w", "t"), my("Dense", "t w", "o"))
    proto = with_functions([my("Deep", "x W", "h"), my("Dense", "h W")], dense, deep)
    x = points(proto)
    network = build_network(proto, ["W"])
    np.testing.assert_allclose(evaluate(network, torch.tensor(x)).numpy(), run_onnx(proto, x), rtol=1e-5, atol=1e-5)
    assert "W" in network.tensors
    assert sum(isinstance(one, Linear) for one in network.nodes) == 3


def test_frozen_noise_in_a_function_is_refused() -> None:
    """The inliner changes the name by which it is known."""
    noise = node("Constant", "", "l.weight_sampler.eps_w", value=numpy_helper.from_array(np.ones(4, f32)))
    noisy = function("f", noise, node("Mul", "a l.weight_sampler.eps_w", "o"))
    with pytest.raises(UnsupportedError, match="one sample of the weights"):
        build_network(with_functions([my("f", "x W")], noisy))


def test_functions_that_call_themselves_or_explode_are_refused() -> None:
    loop = function("Loop", my("Loop", "a w", "o"))
    with pytest.raises(UnsupportedError, match="calls itself"):
        build_network(with_functions([my("Loop", "x W")], loop))
    with pytest.raises(UnsupportedError, match="calls itself"):
        build_network(with_functions([node("Relu", "x")], loop))
    bomb = [function("F0", node("MatMul", "a w", "o"))]
    bomb += [function(f"F{i}", my(f"F{i - 1}", "a w", "t"), my(f"F{i - 1}", "t w", "o")) for i in range(1, 40)]
    with pytest.raises(UnsupportedError, match="more than 1,000,000 nodes"):
        build_network(with_functions([my("F39", "x W")], *bomb))
    chain = [function("F0", node("MatMul", "a w", "o"))]
    chain += [function(f"F{i}", my(f"F{i - 1}", "a w", "o")) for i in range(1, 3000)]
    with pytest.raises(UnsupportedError, match="nested deeper"):
        build_network(with_functions([my("F2999", "x W")], *chain))


def test_a_function_with_the_name_of_an_operator_is_refused() -> None:
    """onnxruntime takes the operator, onnx's inliner the function; ONNX leaves it open."""
    relu = helper.make_function("", "Relu", ["a"], ["o"], [node("Neg", "a", "o")], [helper.make_opsetid("", 17)])
    with pytest.raises(UnsupportedError, match="has the name of this operator"):
        build_network(with_functions([node("Relu", "x")], relu))
    build_network(with_functions([node("Abs", "x")], relu))


def test_overloads_of_a_function_are_told_apart() -> None:
    """One calls the other, which is no recursion."""
    one, other = function("f", my("f", "a w", "o")), function("f", node("Neg", "a", "o"))
    one.overload, one.node[0].overload, other.overload = "one", "two", "two"
    call = my("f", "x W")
    call.overload = "one"
    x = np.ones((1, 4))
    network = build_network(with_functions([call], other, one))
    np.testing.assert_array_equal(evaluate(network, torch.tensor(x)).numpy(), -x)


def test_a_function_of_another_opset_is_named() -> None:
    older = function("Old", node("Relu", "a", "o"), opset=13)
    with pytest.raises(UnsupportedError, match=r"my::Old is a local function that imports another opset"):
        build_network(with_functions([my("Old", "x W")], older))


# outputs ---------------------------------------------------------------------------------------------------------

RELUS = "\n".join([
    "(vnnlib-version <2.0>)", "(declare-network f (declare-input X float32 [1,4])", "{outputs}",
    "(declare-output Y float32 [1,4]))",
    *(f"(assert (and (>= X[0,{i}] -1.0) (<= X[0,{i}] 1.0)))" for i in range(4)), "(assert {row})",
])  # fmt: skip


def relu_and_constants() -> ModelProto:
    """y = relu(x) between a version number and a divergence of the weights."""
    nodes = [node("Identity", "v", "version"), node("Relu", "x"), node("Log", "W", "l"), node("Mul", "W l", "m"),
             node("ReduceSum", "m", "kl", keepdims=0)]  # fmt: skip
    return make_model(nodes, {"v": np.array([3.0]), "W": np.ones((2, 2)) * 2}, outputs="version y kl", element=f32)


def test_outputs_that_depend_on_no_input_are_left_out(tmp_path: Path) -> None:
    onnx.save(relu_and_constants(), tmp_path / "net.onnx")
    model = read_model(tmp_path / "net.onnx")
    assert [one.name for one in model.network.signature.outputs] == ["y"]
    assert [one.name for one in model.network.signature.every_output] == ["version", "y", "kl"]
    assert [note for note in model.notes if "depends on no input" in note] == [
        f"output {name} depends on no input: left out unless a property declares all outputs"
        for name in ("version", "kl")
    ]
    assert not any("does not contribute" in note for note in model.notes)
    (tmp_path / "old.vnnlib").write_text(
        "".join(f"(declare-const X_{i} Real)(declare-const Y_{i} Real)" for i in range(4))
        + "".join(f"(assert (<= X_{i} 1))(assert (>= X_{i} -1))" for i in range(4)) + "(assert (>= Y_0 1.01))"
    )  # fmt: skip
    assert verify(model, read_property(tmp_path / "old.vnnlib", model.network.signature)).verdict == "unsat"


@pytest.mark.parametrize(("row", "verdict"), [("(>= Y[0,0] 1.01)", "unsat"), ("(>= V[0] 3.0)", "sat"),
                                              ("(>= V[0] 3.01)", "unsat"), ("(<= K 5.54)", "unsat"),
                                              ("(<= K 5.55)", "sat")])  # fmt: skip
def test_a_property_that_declares_all_outputs_is_about_all(tmp_path: Path, row: str, verdict: str) -> None:
    proto = relu_and_constants()
    del proto.graph.output[:]
    proto.graph.output.extend(make_model([], {}, outputs="version kl y", element=f32).graph.output)
    onnx.save(proto, tmp_path / "net.onnx")
    outputs = "(declare-output V float32 [1])(declare-output K float32 [])"
    (tmp_path / "p.vnnlib").write_text(RELUS.format(outputs=outputs, row=row))
    model = read_model(tmp_path / "net.onnx")
    result = verify(model, read_property(tmp_path / "p.vnnlib", model.network.signature))
    assert result.verdict == verdict
    if result.witness is not None:
        assert result.witness.y.shape == (6,)


def test_a_property_that_declares_some_outputs_is_refused(tmp_path: Path) -> None:
    onnx.save(relu_and_constants(), tmp_path / "net.onnx")
    (tmp_path / "p.vnnlib").write_text(RELUS.format(outputs="(declare-output V float32 [1])", row="(>= V[0] 1.0)"))
    with pytest.raises(PropertyError, match="2 outputs"):
        read_property(tmp_path / "p.vnnlib", read_model(tmp_path / "net.onnx").network.signature)


def test_where_every_output_is_constant_they_stay() -> None:
    proto = make_model([node("Identity", "v", "y")], {"v": normal(1, 4)}, element=f32)
    assert [one.name for one in build_network(proto).signature.outputs] == ["y"]


def classifier(zipmap: bool) -> ModelProto:
    """As skl2onnx writes it: a label and the probabilities, as a tensor or as a map."""
    nodes = [node("MatMul", "x W", "h"), node("Softmax", "h", "p"), node("ArgMax", "p", "label", axis=1, keepdims=0)]
    if zipmap:
        nodes.append(node("ZipMap", "p", "probabilities", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]))
    else:
        nodes.append(node("Identity", "p", "probabilities"))
    proto = make_model(nodes, {"W": normal(4, 3)}, outputs="label probabilities", element=f32)
    label, probabilities = proto.graph.output
    label.CopyFrom(helper.make_tensor_value_info("label", TensorProto.INT64, [1]))
    if zipmap:
        pair = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        probabilities.CopyFrom(helper.make_value_info("probabilities", helper.make_sequence_type_proto(pair)))
    return proto


@pytest.mark.parametrize("zipmap", [False, True])
def test_probabilities_of_a_classifier_with_a_label(tmp_path: Path, zipmap: bool) -> None:
    onnx.save(classifier(zipmap), tmp_path / "net.onnx")
    model = read_model(tmp_path / "net.onnx")
    assert model.network.softmax_axis == 1
    assert model.network.signature.output_size == 3
    notes = " ".join(model.notes)
    assert "output label (int64) is no tensor of floating-point numbers and is left out" in notes
    assert ("the tensor p in front of it is taken" in notes) == zipmap
    text = "".join(f"(declare-const X_{i} Real)(assert (<= X_{i} 1))(assert (>= X_{i} 1))" for i in range(4))
    text += "".join(f"(declare-const Y_{i} Real)" for i in range(3)) + "(assert (or (and (>= Y_0 0)) (and (<= Y_0 2))))"
    (tmp_path / "p.vnnlib").write_text(text)
    result = verify(model, read_property(tmp_path / "p.vnnlib", model.network.signature))
    assert result.verdict == "sat"  # replayed in onnxruntime
    assert result.witness is not None
    assert result.witness.y.sum() == pytest.approx(1, abs=1e-6)


def test_an_output_of_an_unknown_type_is_left_out() -> None:
    proto = classifier(False)
    proto.graph.output[0].type.tensor_type.elem_type = 99
    _, notes = import_graph(proto)
    assert "output label (of an unknown type) is no tensor of floating-point numbers and is left out" in notes


def test_a_label_alone_is_refused() -> None:
    proto = classifier(False)
    del proto.graph.output[1:]
    with pytest.raises(UnsupportedError, match="ArgMax"):
        build_network(proto)
