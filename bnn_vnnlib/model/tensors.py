"""The tensors that a file holds: initializers and the values of Constant nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from bnn_vnnlib.errors import ModelError
from bnn_vnnlib.model.attributes import inconsistent, label, raw_attribute

FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
_LARGEST = 2**28  # entries; a sparse tensor of a few bytes may claim any shape
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
    if not 0 <= math.prod(dims) <= _LARGEST:
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
