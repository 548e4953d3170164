"""What is stored in an ONNX graph.

1. A NodeProto: its label in messages, its attributes with defaults and types.
2. The tensors that a file holds: initializers and the values of Constant nodes.
3. One node computed by ONNX's reference evaluator.
4. Local functions and subgraphs: what a node reads, and a model without functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    defs,
    helper,
    numpy_helper,
)

from bnn_vnnlib.errors import ModelError, UnsupportedError

# 1. Nodes

_T = TypeVar("_T", int, float, str)


def label(node: NodeProto) -> str:
    """Name and operator; an unnamed node goes by its first output."""
    name = node.name or (node.output[0] if node.output else "?")
    return f"{name} ({node.op_type})"


def unsupported(node: NodeProto, message: str) -> UnsupportedError:
    """An error about valid ONNX that this version does not handle."""
    return UnsupportedError(message, node=label(node))


def inconsistent(node: NodeProto, message: str) -> ModelError:
    """An error about what is not valid ONNX."""
    return ModelError(message, node=label(node))


def raw_attribute(node: NodeProto, name: str) -> Any | None:
    """Value of an attribute; None if it is absent."""
    for attribute in node.attribute:
        if attribute.name == name:
            value = onnx.helper.get_attribute_value(attribute)
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return None


def attribute(node: NodeProto, name: str, default: _T) -> _T:
    """A scalar attribute of the default's type."""
    value = raw_attribute(node, name)
    if value is None:
        return default
    if not isinstance(value, type(default)):
        raise inconsistent(node, f"attribute {name} must be {type(default).__name__}, not {value!r}")
    return value


def float_attribute(node: NodeProto, name: str, default: float) -> float:
    """A float attribute, exactly as the file holds it (float32); so is the default."""
    value = attribute(node, name, float(np.float32(default)))
    if not np.isfinite(value):
        raise inconsistent(node, f"attribute {name} is {value}")
    return value


def ints_attribute(node: NodeProto, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """A list of integers, of the default's length if the default has one."""
    value = raw_attribute(node, name)
    if value is None:
        return default
    if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
        raise inconsistent(node, f"attribute {name} must be a list of integers, not {value!r}")
    if default and len(value) != len(default):
        raise inconsistent(node, f"attribute {name} must have {len(default)} entries, not {len(value)}")
    return tuple(value)


# 2. Tensors

FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
_MAX_SPARSE_ENTRIES = 2**28  # entries; a sparse tensor of a few bytes may claim any shape
_LISTS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def array_of(tensor: TensorProto) -> NDArray[Any]:
    """The tensor as an array of its own type."""
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"the tensor is damaged or of an unknown type ({error})", node=tensor.name) from error


def dense_of(sparse: SparseTensorProto) -> NDArray[Any]:
    """A sparse tensor written out."""
    values, indices, dims = array_of(sparse.values), array_of(sparse.indices), tuple(sparse.dims)
    if not 0 <= math.prod(dims) <= _MAX_SPARSE_ENTRIES:
        raise ModelError(f"a sparse tensor of shape {dims}", node=sparse.values.name)
    flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
    dense = np.zeros(math.prod(dims), values.dtype)
    dense[flat] = values
    return dense.reshape(dims)


def constant_of(node: NodeProto) -> NDArray[Any]:
    """Value of a Constant node, whichever attribute holds it."""
    present = [attribute.name for attribute in node.attribute]
    if len(present) != 1:
        raise inconsistent(node, f"needs exactly one attribute, has {present}")
    (name,) = present
    value = raw_attribute(node, name)
    if name == "value" and isinstance(value, TensorProto):
        return array_of(value)
    if name == "sparse_value" and isinstance(value, SparseTensorProto):
        return dense_of(value)
    if name in _LISTS:
        return np.array(value, _LISTS[name])
    raise inconsistent(node, f"attribute {name} is not supported")


def holders(proto: ModelProto) -> dict[str, TensorProto]:
    """Dense tensors by the name under which the graph knows them: initializers, then Constant nodes.

    The protos themselves, so that a caller may change their data.
    """
    found: dict[str, TensorProto] = {}
    for tensor in proto.graph.initializer:
        if tensor.name in found:
            raise ModelError("two initializers have this name", node=tensor.name)
        found[tensor.name] = tensor
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    if node.output[0] in found:
                        raise ModelError("its output has the name of another tensor", node=label(node))
                    found[node.output[0]] = attribute.t
    return found


# 3. One node computed


def evaluate_node(node: NodeProto, opset: int, arrays: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    """First output of one node, by ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator  # loaded here: few graphs need it, and it is slow to load

    alone = NodeProto()
    alone.CopyFrom(node)
    del alone.input[:], alone.output[:]
    alone.input.extend("" if array is None else f"x{i}" for i, array in enumerate(arrays))
    alone.output.append("y")
    feeds: dict[str, Any] = {f"x{i}": array for i, array in enumerate(arrays) if array is not None}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    body = helper.make_graph([alone], "fold", inputs, [helper.make_value_info("y", TypeProto())])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)])
    try:
        with np.errstate(all="ignore"):
            return np.asarray(next(iter(ReferenceEvaluator(model).run(None, feeds))))
    except Exception as error:  # the evaluator lets whatever happens inside it through
        raise inconsistent(node, f"cannot be computed from its constants: {error}") from error


# 4. Functions and subgraphs

MAX_INLINED_NODES = 1_000_000
"""Functions may call each other: a file of some lines can stand for any number of nodes."""

MAX_CALL_DEPTH = 50
"""Depth to which calls of functions may be nested, at most."""


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes (the branches of an If, the body of a Loop)."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def reads(node: NodeProto) -> Iterator[str]:
    """Names of the values that a node reads, its operands first, then what its subgraphs take from outside.

    Names that a subgraph defines itself are among them: no value of the graph around it has such a name.
    """
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from reads(inner)
        yield from (info.name for info in graph.output)


def inlined(proto: ModelProto) -> ModelProto:
    """The model without local functions: a copy, or the model itself where it has none.

    Raises
    ------
    UnsupportedError : a function that calls itself or has the name of an operator, or functions that stand for too
        many nodes
    ModelError : the functions cannot be inlined
    """
    if not proto.functions:
        return proto
    _refuse_growth(proto)
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(proto)
    except Exception as error:  # whatever the C++ side raises
        raise ModelError(f"its local functions cannot be inlined: {error}") from error


def _refuse_growth(proto: ModelProto) -> None:
    """Count the nodes that the functions stand for, before anything of that size is made."""
    bodies = {(function.domain, function.name, function.overload): function.node for function in proto.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: list[NodeProto], callers: tuple[tuple[str, str, str], ...]) -> int:
        """How many nodes these stand for, inside so many functions that call each other."""
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += sum(size(list(graph.node), callers) for graph in subgraphs(node))
            if key not in bodies:
                total += 1
                continue
            if defs.has(node.op_type, node.domain):  # ONNX leaves it to the runtime which of the two is meant
                raise UnsupportedError("a local function has the name of this operator", node=label(node))
            if key in callers or len(callers) == MAX_CALL_DEPTH:
                what = "calls itself" if key in callers else f"is nested deeper than {MAX_CALL_DEPTH}"
                raise UnsupportedError(f"the local function {node.op_type!r} {what}", node=label(node))
            if key not in sizes:
                sizes[key] = size(list(bodies[key]), (*callers, key))
            total += sizes[key]
        if total > MAX_INLINED_NODES:
            raise UnsupportedError(f"its local functions stand for more than {MAX_INLINED_NODES:,} nodes, the limit")
        return total

    size(list(proto.graph.node), ())
    for key, body in bodies.items():  # also those that nobody calls: the inliner looks at them, too
        size(list(body), (key,))
