"""Models that must be refused: name -> content, and words of the one message. The network is y = x W."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bnn_vnnlib.model import GaussianDiagonal, WeightSamples, attach

EYE = np.eye(2, dtype=np.float32)


def tensor(name: str, array: Any, kind: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, kind), name)


def model(*nodes: NodeProto, weights: list[TensorProto] | None = None, shape: tuple[Any, ...] = (1, 2)) -> ModelProto:
    """A model from x to y."""
    graph = helper.make_graph(
        list(nodes) or [helper.make_node("MatMul", ["x", "W"], ["y"], name="multiply")],
        "mangled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [tensor("W", EYE)] if weights is None else weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def changed(change: Callable[[ModelProto], Any], base: ModelProto | None = None) -> ModelProto:
    proto = model() if base is None else base
    change(proto)
    return proto


def node(operator: str, inputs: str, output: str = "y", **attributes: Any) -> NodeProto:
    return helper.make_node(operator, ["" if name == "-" else name for name in inputs.split()], output.split(),
                            name=f"the_{operator.lower()}", **attributes)  # fmt: skip


def weight(array: Any, dims: list[int] | None = None) -> ModelProto:
    """The weight is another one."""
    proto = model(weights=[tensor("W", array)])
    if dims is not None:
        proto.graph.initializer[0].dims[:] = dims
    return proto


def constants(*nodes: NodeProto, **arrays: Any) -> ModelProto:
    """Constants computed to "c", which shifts the input."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    return model(*nodes, node("Add", "x c"), weights=tensors)


def posterior(change: Callable[[ModelProto], Any]) -> ModelProto:
    return changed(change, attach(model(), GaussianDiagonal({"W": np.full((2, 2), 0.25)})))


def manifest(change: Callable[[dict[str, Any]], Any]) -> ModelProto:
    """The record of the posterior is another one."""

    def rewrite(proto: ModelProto) -> None:
        content = json.loads(proto.metadata_props[0].value)
        change(content)
        proto.metadata_props[0].value = json.dumps(content)

    return posterior(rewrite)


def record(text: str) -> ModelProto:
    return posterior(lambda proto: setattr(proto.metadata_props[0], "value", text))


def by_name(suffix: str, array: Any) -> ModelProto:
    """A posterior without a record."""
    return changed(lambda proto: proto.graph.initializer.append(tensor(f"W_{suffix}", array)))


def external(**entries: Any) -> ModelProto:
    """The weight claims to lie in another file."""
    proto = model()
    lies = proto.graph.initializer[0]
    lies.data_location = TensorProto.EXTERNAL
    lies.ClearField("raw_data")
    for key, value in entries.items():
        lies.external_data.add(key=key, value=str(value))
    return proto


def nested(depth: int) -> bytes:
    """Graphs inside attributes inside graphs."""
    graph = helper.make_graph([], "g", [], []).SerializeToString()
    for _ in range(depth):
        inner = b"\x32" + _varint(len(graph)) + graph  # attribute.g
        attribute = b"\x2a" + _varint(len(inner)) + inner  # node.attribute
        graph = b"\x0a" + _varint(len(attribute)) + attribute  # graph.node
    return b"\x08\x09\x3a" + _varint(len(graph)) + graph


def crowd() -> bytes:
    """More nodes than any network has, of two bytes each."""
    graph = b"\x0a\x00" * 1_000_100
    return b"\x08\x09\x3a" + _varint(len(graph)) + graph


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number % 128 + 128])
        number //= 128
    return found + bytes([number])


def sparse(indices: list[int], dims: list[int]) -> ModelProto:
    values = tensor("W", [1.0] * len(indices))
    made = helper.make_sparse_tensor(values, tensor("", indices, np.int64), dims)
    return changed(lambda proto: proto.graph.sparse_initializer.append(made), model(weights=[]))


def subgraph(operator: str) -> NodeProto:
    body = helper.make_graph([node("Identity", "x", "z")], "b", [], [helper.make_empty_tensor_value_info("z")])
    return node(operator, "x", body=body) if operator == "Loop" else node(operator, "x", then_branch=body)


BIG = 2**40
PROTOS: dict[str, tuple[ModelProto, str]] = {
    "cycle": (model(node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b")), "before it is used"),
    "loop_of_one": (model(node("Add", "x y")), "before it is used"),
    "missing_value": (model(node("Add", "x nowhere")), "nothing computes the value 'nowhere'"),
    "output_twice": (model(node("Relu", "x"), node("Relu", "x")), "defined already"),
    "overwrites_input": (model(node("Relu", "x", "x"), node("Relu", "x")), "defined already"),
    "weights_twice": (changed(lambda p: p.graph.initializer.append(tensor("W", EYE))), "two initializers"),
    "no_input": (changed(lambda p: p.graph.ClearField("input")), "no input"),
    "no_output": (changed(lambda p: p.graph.ClearField("output")), "no graph with outputs"),
    "no_shape": (changed(lambda p: p.graph.input[0].type.tensor_type.ClearField("shape")), "no shape"),
    "no_type": (changed(lambda p: p.graph.input[0].ClearField("type")), "tensor"),
    "negative_input": (model(shape=(1, -2)), "shape (1, -2)"),
    "giant_input": (model(shape=(BIG, 2)), "shape"),
    "integer_input": (changed(lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 7)), "int64"),
    "integer_output": (model(node("Shape", "x")), "a constant of type int64"),
    "unknown_type": (changed(lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 99)), "element type"),
    "opset_99": (changed(lambda p: setattr(p.opset_import[0], "version", 99)), "opset 99"),
    "opset_3": (changed(lambda p: setattr(p.opset_import[0], "version", 3)), "opset 3"),
    "opset_negative": (changed(lambda p: setattr(p.opset_import[0], "version", -(2**62))), "opset -"),
    "no_opset": (changed(lambda p: p.ClearField("opset_import")), "operator set"),
    "two_opsets": (changed(lambda p: p.opset_import.append(helper.make_opsetid("", 11))), "[11, 17]"),
    "unknown_operator": (model(node("Frobnicate", "x")), "Frobnicate"),
    "custom_operator": (model(node("Relu", "x", domain="com.evil")), "com.evil::Relu"),
    "escape_codes": (model(node("\x1b[31mRelu\n", "x")), "\\x1b[31mRelu"),
    "long_name": (model(node("R" * 100_000, "x")), "RRR"),
    "long_type_of_a_node_that_is_named_late": (model(node("Re\0lu" * 10_000, "nowhere")), "the_re\\x00lu"),
    "unknown_attribute": (model(node("Relu", "x", evil=1)), "'evil' does not exist"),
    "no_operands": (model(node("Gemm", "")), "Gemm"),
    "loop": (model(subgraph("Loop")), "Loop"),
    "branch": (model(subgraph("If")), "If"),
    "random": (model(node("RandomNormalLike", "x")), "stochastic export"),
    "random_without_shape": (model(node("RandomNormal", "", "w"), node("MatMul", "x w")), "cannot be evaluated"),
    "signalling_nan": (by_name("variance", np.full((2, 2), 0x7FA00000, np.uint32).view(np.float32)), "variance"),
    "nan_weight": (weight([[1, np.nan], [0, 1]]), "NaN or infinite"),
    "infinite_weight": (weight([[1, np.inf], [0, 1]]), "NaN or infinite"),
    "negative_dims": (weight(EYE, [-2, -2]), "W"),
    "giant_dims": (weight(EYE, [BIG, BIG]), "W"),
    "short_data": (weight(EYE, [3, 3]), "W"),
    "text_weight": (model(weights=[helper.make_tensor("W", TensorProto.STRING, [2, 2], [b"a"] * 4)]), "multiply"),
    "type_99": (changed(lambda p: setattr(p.graph.initializer[0], "data_type", 99)), "W"),
    "sparse_outside": (sparse([0, 99], [2, 2]), "99"),
    "sparse_giant": (sparse([0], [BIG, BIG]), "sparse"),
    "shapes": (weight(np.eye(3)), "multiply"),
    "reshape": (model(node("Reshape", "x s"), weights=[tensor("s", [7, 7], np.int64)]), "reshape"),
    "transpose": (model(node("Transpose", "x", perm=[0, 0])), "perm"),
    "stride_0": (model(node("Conv", "x W", strides=[0, 0]), weights=[tensor("W", np.ones((1, 1, 1, 1)))],
                       shape=(1, 1, 1, 2)), "strides"),
    "variance_negative": (model(node("BatchNormalization", "x a a a v"),
                                weights=[tensor("a", [1, 1]), tensor("v", [1, -2])]), "the_batchnormalization"),
    "variance_nan": (model(node("BatchNormalization", "x a a a v"),
                           weights=[tensor("a", [1, 1]), tensor("v", [1, np.nan])]), "NaN"),
    "expand_bomb": (model(node("Expand", "x s"), weights=[tensor("s", [2**30, 1], np.int64)]), "would make"),
    "tile_bomb": (model(node("Tile", "x r"), weights=[tensor("r", [2**20, 2**20], np.int64)]), "repeats"),
    "pad_bomb": (model(node("Pad", "x p"), weights=[tensor("p", [2**40, 0, 0, 0], np.int64)]), "pads"),
    "resize_bomb": (model(node("Resize", "x - s"), weights=[tensor("s", [1e8, 1e8])]), "resizes"),
    "gather_bomb": (model(node("Gather", "x i", axis=0), weights=[tensor("i", np.zeros(20_000), np.int32)],
                          shape=(1, 20_000)), "picks"),
    "shape_bomb": (constants(node("ConstantOfShape", "s", "c"), s=np.array([2**31, 2**31])), "entries"),
    "range_bomb": (constants(node("Range", "a b d", "c"), a=np.array(0), b=np.array(2**40), d=np.array(1)), "entries"),
    "product_bomb": (constants(node("Mul", "a b", "c"), a=np.ones((200_000, 1), np.float32),
                               b=np.ones(200_000, np.float32)), "entries"),
    "doubling_bomb": (constants(*(node("Concat", f"c{i} c{i}", f"c{i + 1}", axis=0) for i in range(40)),
                                node("Identity", "c40", "c"), c0=np.ones(2)), "entries"),
    "branches_bomb": (model(*(node("Expand", "x s", f"e{i}") for i in range(9)),
                            node("Sum", " ".join(f"e{i}" for i in range(9))),
                            weights=[tensor("s", [2**25, 1], np.int64)]), "the limit"),
    "external_above": (external(location="../secret"), "leave the model's folder"),
    "external_absolute": (external(location="/etc/passwd"), "leave the model's folder"),
    "external_hidden": (external(location="a/../../secret"), "leave the model's folder"),
    "external_link": (external(location="link"), "leave the model's folder"),
    "external_missing": (external(location="nothing.data"), "is missing"),
    "external_folder": (external(location="."), "is missing"),
    "external_nowhere": (external(offset=4), "leave the model's folder"),
    "external_zero_byte": (external(location="a\x00b"), "no file name"),
    "external_long_name": (external(location="a" * 5000), "is no file name"),
    "external_negative": (external(location="data", offset=-8), "do not fit"),
    "external_beyond": (external(location="data", offset=2**62), "do not fit"),
    "external_text": (external(location="data", offset="0x"), "not a number"),
    "external_dims": (changed(lambda p: p.graph.initializer[0].dims.__setitem__(0, -2), external(location="data")),
                      "negative dimensions"),
    "record_no_json": (record("{"), "not JSON"),
    "record_deep": (record("[" * 200_000), "nested too deep"),
    "record_list": (record("[]"), "not a JSON object"),
    "record_number": (record('{"format": ' + "1" * 10_000 + "}"), "not JSON"),
    "record_twice": (posterior(lambda p: p.metadata_props.add(key="bnn.posterior", value="{}")), "2 metadata entries"),
    "record_format": (manifest(lambda c: c.update(format=2)), "format 2"),
    "record_family": (manifest(lambda c: c.update(family="dropout")), "dropout"),
    "record_unknown": (manifest(lambda c: c.update(family=["x"])), "family"),
    "record_empty": (manifest(lambda c: c.update(params={})), "params"),
    "record_shape": (manifest(lambda c: c["params"]["W"].update(shape=[-1, "x"])), "list of sizes"),
    "record_stale": (manifest(lambda c: c["params"]["W"].update(sha256_mean="0")), "stale"),
    "record_stripped": (posterior(lambda p: p.graph.initializer.pop()), "stripped"),
    "record_embedded": (manifest(lambda c: c["params"]["W"].update(variance_base64="%%%")), "damaged"),
    "negative_variance": (by_name("variance", [[1, -1], [1, 1]]), "negative"),
    "nan_variance": (by_name("variance", [[1, np.nan], [1, 1]]), "NaN"),
    "infinite_variance": (by_name("variance", [[1, np.inf], [1, 1]]), "infinite"),
    "variance_shape": (by_name("variance", [1, 1, 1]), "shape"),
    "samples_alone": (by_name("samples", np.ones((3, 2, 2))), "posterior_probabilities"),
    "samples_sum": (changed(lambda p: p.graph.initializer.append(tensor("posterior_probabilities", [0.5, 0.1])),
                            by_name("samples", np.ones((2, 2, 2)))), "sum"),
    "samples_changed": (changed(lambda p: setattr(p.graph.initializer[-1], "raw_data", bytes(16)),
                                attach(model(), WeightSamples({"W": np.stack([EYE, EYE])}, np.array([0.5, 0.5])))),
                        "changed after"),
}  # fmt: skip
_NET = model().SerializeToString()
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "text": (b"(declare-const X_0 Real)", "VNN-LIB text"),
    "page": (b"<!DOCTYPE html>", "web page"),
    "zip": (b"PK\x03\x04" + bytes(100), "zip archive"),
    "tar": (bytes(257) + b"ustar" + bytes(300), "tar archive"),
    "pickle": (b"\x80\x04cos\nsystem\n(S'touch gone'\ntR.", "a Python pickle"),
    "git_lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git-LFS"),
    "noise": (bytes(range(255, 0, -1)) * 20, "not an ONNX model"),
    "cut_off": (_NET[: len(_NET) // 2], "not an ONNX model"),
    "not_utf8": (_NET.replace(b"multiply", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"), "not an ONNX model"),
    "nested": (nested(400), "not an ONNX model"),
    "crowd": (crowd(), "parts"),
    "gzip_cut_off": (gzip.compress(_NET)[:-12], "ends too early"),
    "gzip_changed": (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "damaged gzip"),
    "gzip_twice": (gzip.compress(gzip.compress(_NET)), "not an ONNX model"),
    "gzip_bomb": (gzip.compress(bytes(2**27 + 1), 9), "gzip bomb"),
    **{name: (proto.SerializeToString(), words) for name, (proto, words) in PROTOS.items()},
}
