"""Which operators are supported: one explicit table by operator and version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from onnx import ModelProto, NodeProto
from onnx.defs import SchemaError, get_schema

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model import operators_elementwise as elementwise
from bnn_vnnlib.model import operators_linear as linear
from bnn_vnnlib.model import operators_shape as shapes
from bnn_vnnlib.model import tensors
from bnn_vnnlib.model.attributes import inconsistent, unsupported
from bnn_vnnlib.model.builder import Builder
from bnn_vnnlib.model.folding import FOLDABLE
from bnn_vnnlib.model.values import Value

Converter = Callable[[Builder, NodeProto, Sequence[Value | None]], Value]
STOCHASTIC = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")


def supported_operators() -> list[str]:
    """Names of the operators in the table."""
    return sorted({operator for _, operator, _ in OPERATORS})


def find_converter(graph: Builder, node: NodeProto, proto: ModelProto) -> Converter | None:
    """Row of the table; None for an operator that is only ever folded."""
    local = any((f.domain, f.name) == (node.domain, node.op_type) for f in proto.functions)
    if local or node.domain not in ("", "ai.onnx"):
        raise missing_operator(graph, node, proto)
    try:
        schema = get_schema(node.op_type, graph.opset, "")
    except SchemaError:
        raise missing_operator(graph, node, proto) from None
    for attribute in node.attribute:
        if attribute.name not in schema.attributes:
            raise inconsistent(node, f"attribute {attribute.name!r} does not exist in opset {graph.opset}")
        if attribute.ref_attr_name:
            raise inconsistent(node, f"attribute {attribute.name!r} refers to a function's attribute")
    converter = OPERATORS.get(("", node.op_type, schema.since_version))
    if converter is None and node.op_type not in FOLDABLE:
        raise missing_operator(graph, node, proto)
    return converter


def missing_operator(graph: Builder, node: NodeProto, proto: ModelProto, what: str = "") -> UnsupportedError:
    domain = node.domain or "ai.onnx"
    known = {*supported_operators(), *FOLDABLE}
    others = Counter(other.op_type for other in proto.graph.node if other.op_type not in known)
    others.pop(node.op_type, None)
    more = f" (the file also has {', '.join(sorted(others))})" if others else ""
    message = f"operator {domain}::{node.op_type} {what}of opset {graph.opset} is not supported{more}; supported: "
    return unsupported(node, message + ", ".join(supported_operators()))


def operator_table(*rows: tuple[str, tuple[int, ...], Converter]) -> dict[tuple[str, str, int], Converter]:
    """{(domain, operator, since version): converter} of the default domain; refuses duplicates."""
    table: dict[tuple[str, str, int], Converter] = {}
    for operator, versions, converter in rows:
        for version in versions:
            if ("", operator, version) in table:
                raise ValueError(f"operator {operator} version {version} is in the table twice")
            table["", operator, version] = converter
    return table


def _constant(graph: Builder, node: NodeProto, _inputs: Sequence[Value | None]) -> Value:
    return graph.constant(node.output[0], tensors.constant_of(node))


# "since versions": the opsets in which ONNX changed the operator, up to the newest that was checked
OPERATORS = operator_table(
    ("Add", (7, 13, 14), elementwise.add),
    ("AveragePool", (7, 10, 11, 19, 22), linear.average_pool),
    ("BatchNormalization", (7, 9, 14, 15), linear.batch_normalization),
    ("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), shapes.cast),
    ("Concat", (4, 11, 13), shapes.concat),
    ("Constant", (1, 9, 11, 12, 13, 19, 21, 23, 24, 25), _constant),
    ("Conv", (1, 11, 22), linear.conv),
    ("Div", (7, 13, 14), elementwise.divide),
    ("Dropout", (7, 10, 12, 13, 22), shapes.dropout),
    ("Flatten", (1, 9, 11, 13, 21, 23, 24, 25), shapes.flatten),
    ("Gemm", (7, 9, 11, 13), linear.gemm),
    ("GlobalAveragePool", (1, 22), linear.global_average_pool),
    ("Identity", (1, 13, 14, 16, 19, 21, 23, 24, 25), shapes.identity),
    ("LeakyRelu", (6, 16), elementwise.leaky_relu),
    ("MatMul", (1, 9, 13), linear.matmul),
    ("Mul", (7, 13, 14), elementwise.multiply),
    ("Neg", (6, 13), elementwise.negate),
    ("Relu", (6, 13, 14), elementwise.relu),
    ("Reshape", (5, 13, 14, 19, 21, 23, 24, 25), shapes.reshape),
    ("Shape", (1, 13, 15, 19, 21, 23, 24, 25), shapes.shape_of),
    ("Sigmoid", (6, 13), elementwise.sigmoid),
    ("Softmax", (1, 11), elementwise.softmax_flattening),
    ("Softmax", (13,), elementwise.softmax),
    ("Squeeze", (1, 11, 13, 21, 23, 24, 25), shapes.squeeze),
    ("Sub", (7, 13, 14), elementwise.subtract),
    ("Tanh", (6, 13), elementwise.tanh),
    ("Transpose", (1, 13, 21, 23, 24, 25), shapes.transpose),
    ("Unsqueeze", (1, 11, 13, 21, 23, 24, 25), shapes.unsqueeze),
)
