"""Which operators are supported: one explicit table by operator and version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onnx import ModelProto, NodeProto
from onnx.defs import OpSchema, SchemaError, get_schema

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model import attributes
from bnn_vnnlib.model import operators_elementwise as elementwise
from bnn_vnnlib.model import operators_linear as linear
from bnn_vnnlib.model import operators_reduce as reduce
from bnn_vnnlib.model import operators_shape as shapes
from bnn_vnnlib.model import operators_window as window
from bnn_vnnlib.model.attributes import inconsistent, unsupported
from bnn_vnnlib.model.builder import Builder, Value
from bnn_vnnlib.model.folding import FOLDABLE, OperatorRow
from bnn_vnnlib.model.operators_linear import einsum

STOCHASTIC = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
FROZEN_NOISE = ("_sampler.eps_w", "_sampler.eps_b")
"""How BLiTZ names the buffers that hold the noise of its last forward pass."""


def supported_operators() -> list[str]:
    """Names of the operators in the table."""
    return sorted({operator for _, operator, _ in OPERATORS})


def find_converter(graph: Builder, node: NodeProto, proto: ModelProto) -> OperatorRow | None:
    """Row of the table; None for an operator that is only ever folded."""
    domain, opset = _domain(node), _opset(graph, node, proto)
    try:
        schema = None if opset is None else get_schema(node.op_type, opset, domain)
    except SchemaError:
        schema = None
    if schema is None or opset is None:
        raise missing_operator(graph, node, proto)
    _check_signature(node, schema, opset)
    converter = OPERATORS.get((domain, node.op_type, schema.since_version))
    if converter is None and (domain or node.op_type not in FOLDABLE):
        raise missing_operator(graph, node, proto)
    return converter


def _check_signature(node: NodeProto, schema: OpSchema, opset: int) -> None:
    """The node has attributes and as many operands and results as ONNX's schema says."""
    for attribute in node.attribute:
        if attribute.name not in schema.attributes:
            raise inconsistent(node, f"attribute {attribute.name!r} does not exist in opset {opset}")
        if attribute.ref_attr_name:
            raise inconsistent(node, f"attribute {attribute.name!r} refers to a function's attribute")
    names = Counter(attribute.name for attribute in node.attribute)
    for name, entry in schema.attributes.items():
        if names[name] > 1 or (entry.required and not names[name]):
            raise inconsistent(node, f"attribute {name!r} is given {names[name]} times, expected once")
    if not schema.min_input <= len(node.input) <= schema.max_input or len(node.output) > schema.max_output:
        has = f"{len(node.input)} operands and {len(node.output)} results"
        raise inconsistent(node, f"has {has}, which {node.op_type} of opset {opset} has not")


def missing_operator(graph: Builder, node: NodeProto, proto: ModelProto, what: str = "") -> UnsupportedError:
    """What an operator is that cannot be read, and what could be."""
    name, opset = f"{_domain(node) or 'ai.onnx'}::{node.op_type}", _opset(graph, node, proto)
    if any((function.domain, function.name) == (node.domain, node.op_type) for function in proto.functions):
        message = f"{name} is a local function that imports another opset than the model, and cannot be inlined"
        return unsupported(node, f"{message}; export the model without functions")
    known = {*supported_operators(), *FOLDABLE}
    others = Counter(other.op_type for other in proto.graph.node if other.op_type not in known)
    others.pop(node.op_type, None)
    more = f" (the file also has {', '.join(sorted(others))})" if others else ""
    which = f"of opset {opset}" if opset is not None else "of a domain that the file does not import"
    message = f"operator {name} {what}{which} is not supported{more}; supported: "
    return unsupported(node, message + ", ".join(supported_operators()))


def _domain(node: NodeProto) -> str:
    """Domain of a node; "" for the default domain, which has two names."""
    return "" if node.domain == "ai.onnx" else node.domain


def _opset(graph: Builder, node: NodeProto, proto: ModelProto) -> int | None:
    """Version of the operator set that the node is from; None if the file does not say."""
    if not _domain(node):
        return graph.opset
    return next((entry.version for entry in proto.opset_import if entry.domain == node.domain), None)


def operator_table(
    *rows: tuple[str, tuple[int, ...], OperatorRow], domain: str = ""
) -> dict[tuple[str, str, int], OperatorRow]:
    """{(domain, operator, since version): converter} of one domain; refuses duplicates."""
    table: dict[tuple[str, str, int], OperatorRow] = {}
    for operator, versions, converter in rows:
        for version in versions:
            if (domain, operator, version) in table:
                raise ValueError(f"operator {operator} version {version} is in the table twice")
            table[domain, operator, version] = converter
    return table


def _constant(graph: Builder, node: NodeProto, _inputs: Sequence[Value | None]) -> Value:
    return graph.constant(node.output[0], attributes.constant_of(node))


# "since versions": the opsets in which ONNX changed the operator, up to the newest that was checked
OPERATORS = operator_table(
    ("Abs", (6, 13), elementwise.activation_of("abs")),
    ("Add", (7, 13, 14), elementwise.add),
    ("Atan", (7, 22), elementwise.activation_of("atan")),
    ("AveragePool", (7, 10, 11, 19, 22), window.average_pool),
    ("BatchNormalization", (7, 9, 14, 15), linear.batch_normalization),
    ("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), shapes.cast),
    ("Celu", (12, 28), elementwise.celu),
    ("Clip", (6, 11, 12, 13), elementwise.clip),
    ("Concat", (4, 11, 13), shapes.concat),
    ("Constant", (1, 9, 11, 12, 13, 19, 21, 23, 24, 25), _constant),
    ("Conv", (1, 11, 22), window.conv),
    ("ConvTranspose", (1, 11, 22), window.conv_transpose),
    ("Cos", (7, 22), elementwise.activation_of("cos")),
    ("DepthToSpace", (1, 11, 13, 28), shapes.moved),
    ("Div", (7, 13, 14), elementwise.divide),
    ("Dropout", (7, 10, 12, 13, 22), shapes.dropout),
    ("Einsum", (12,), einsum),
    ("Elu", (6, 22), elementwise.elu),
    ("Erf", (9, 13), elementwise.activation_of("erf")),
    ("Exp", (6, 13), elementwise.activation_of("exp")),
    ("Expand", (8, 13), shapes.expand),
    ("Flatten", (1, 9, 11, 13, 21, 23, 24, 25), shapes.flatten),
    ("Gather", (1, 11, 13), shapes.moved),
    ("GatherElements", (11, 13), shapes.gather_elements),
    ("GatherND", (11, 12, 13), shapes.moved),
    ("Gelu", (20,), elementwise.gelu),
    ("Gemm", (7, 9, 11, 13), linear.gemm),
    ("GlobalAveragePool", (1, 22), window.global_average_pool),
    ("GlobalMaxPool", (1, 22), window.global_max_pool),
    ("Greater", (7, 9, 13), elementwise.comparison(False)),
    ("GreaterOrEqual", (12, 16), elementwise.comparison(False)),
    ("HardSigmoid", (6, 22), elementwise.hard_sigmoid),
    ("HardSwish", (14, 22), elementwise.activation_of("hard_swish")),
    ("Identity", (1, 13, 14, 16, 19, 21, 23, 24, 25), shapes.identity),
    ("InstanceNormalization", (6, 22), linear.instance_normalization),
    ("LayerNormalization", (17,), linear.layer_normalization),
    ("LeakyRelu", (6, 16), elementwise.leaky_relu),
    ("Less", (7, 9, 13), elementwise.comparison(True)),
    ("LessOrEqual", (12, 16), elementwise.comparison(True)),
    ("Log", (6, 13), elementwise.activation_of("log")),
    ("LogSoftmax", (1, 11), reduce.log_softmax_flattening),
    ("LogSoftmax", (13,), reduce.log_softmax),
    ("MatMul", (1, 9, 13), linear.matmul),
    ("Max", (6, 8, 12, 13), reduce.maximum),
    ("MaxPool", (1, 8, 10, 11, 12, 22), window.max_pool),
    ("Mean", (6, 8, 13), reduce.mean),
    ("Min", (6, 8, 12, 13), reduce.minimum),
    ("Mish", (18, 22), elementwise.mish),
    ("Mul", (7, 13, 14), elementwise.multiply),
    ("Neg", (6, 13), elementwise.negate),
    ("Not", (1,), elementwise.negation),
    ("PRelu", (7, 9, 16), elementwise.prelu),
    ("Pad", (2, 11, 13, 18, 19, 21, 23, 24, 25), shapes.pad),
    ("Pow", (7, 12, 13, 15), elementwise.power),
    ("RMSNormalization", (23,), linear.rms_normalization),
    ("Reciprocal", (6, 13), elementwise.activation_of("reciprocal")),
    ("ReduceL1", (1, 11, 13, 18), reduce.reduce_l1),
    ("ReduceL2", (1, 11, 13, 18), reduce.reduce_l2),
    ("ReduceMax", (1, 11, 12, 13, 18, 20), reduce.reduce_max),
    ("ReduceMean", (1, 11, 13, 18), reduce.reduce_mean),
    ("ReduceMin", (1, 11, 12, 13, 18, 20), reduce.reduce_min),
    ("ReduceSum", (1, 11, 13), reduce.reduce_sum),
    ("ReduceSumSquare", (1, 11, 13, 18), reduce.reduce_sum_square),
    ("Relu", (6, 13, 14), elementwise.activation_of("relu")),
    ("Reshape", (5, 13, 14, 19, 21, 23, 24, 25), shapes.reshape),
    ("Resize", (10, 11, 13, 18, 19), shapes.resize),
    ("Selu", (6, 22), elementwise.selu),
    ("Shape", (1, 13, 15, 19, 21, 23, 24, 25), shapes.shape_of),
    ("Sigmoid", (6, 13), elementwise.activation_of("sigmoid")),
    ("Sign", (9, 13), elementwise.activation_of("sign")),
    ("Sin", (7, 22), elementwise.activation_of("sin")),
    ("Slice", (1, 10, 11, 13), shapes.moved),
    ("Softmax", (1, 11), reduce.softmax_flattening),
    ("Softmax", (13,), reduce.softmax),
    ("Softplus", (1, 22), elementwise.activation_of("softplus")),
    ("Softsign", (1, 22), elementwise.activation_of("softsign")),
    ("SpaceToDepth", (1, 13, 28), shapes.moved),
    ("Split", (2, 11, 13, 18), shapes.split),
    ("Sqrt", (6, 13), elementwise.activation_of("sqrt")),
    ("Squeeze", (1, 11, 13, 21, 23, 24, 25), shapes.squeeze),
    ("Sub", (7, 13, 14), elementwise.subtract),
    ("Sum", (6, 8, 13), reduce.total),
    ("Swish", (24,), elementwise.swish),
    ("Tanh", (6, 13), elementwise.activation_of("tanh")),
    ("Tile", (6, 13), shapes.tile),
    ("Transpose", (1, 13, 21, 23, 24, 25), shapes.transpose),
    ("Unsqueeze", (1, 11, 13, 21, 23, 24, 25), shapes.unsqueeze),
    ("Upsample", (7, 9), shapes.upsample),
    ("Where", (9, 16), elementwise.where),
) | operator_table(
    ("Scaler", (1,), elementwise.scaler), domain="ai.onnx.ml",
)  # fmt: skip
