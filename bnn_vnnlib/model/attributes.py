"""What is stored in an ONNX graph: the attributes of a node, and the tensors of a file.

1. A NodeProto: its label in messages, its attributes with defaults and types.
2. The tensors that a file holds: initializers and the values of Constant nodes.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from bnn_vnnlib.errors import ModelError, UnsupportedError

# 1. Nodes

T = TypeVar("T", int, float, str)


def label(node: NodeProto) -> str:
    """Name and operator; an unnamed node goes by its first output."""
    name = node.name or (node.output[0] if node.output else "?")
    return f"{name} ({node.op_type})"


def unsupported(node: NodeProto, message: str) -> UnsupportedError:
    """Valid ONNX that this version does not handle."""
    return UnsupportedError(message, node=label(node))


def inconsistent(node: NodeProto, message: str) -> ModelError:
    """Not valid ONNX."""
    return ModelError(message, node=label(node))


def raw_attribute(node: NodeProto, name: str) -> Any | None:
    """Value of an attribute; None if it is absent."""
    for attribute in node.attribute:
        if attribute.name == name:
            value = onnx.helper.get_attribute_value(attribute)
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return None


def attribute(node: NodeProto, name: str, default: T) -> T:
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
