"""The same network in float64: for comparisons that float32 would blur."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper


def doubled(proto: ModelProto) -> ModelProto:
    """A copy whose float32 tensors, casts, inputs and outputs are float64."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    attributes = [attribute for node in copy.graph.node for attribute in node.attribute]
    for tensor in [*copy.graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
    for info in (*copy.graph.input, *copy.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    return copy
