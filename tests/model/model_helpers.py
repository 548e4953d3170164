"""Small ONNX models for the tests of the model package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bnn_vnnlib.model.replay import FULL_PRECISION

Arrays = Mapping[str, np.ndarray]


def node(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> NodeProto:
    """A node; names separated by blanks, "-" for an operand that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), name=f"{operator}_{outputs.split()[0]}", **attributes)


def make_model(
    nodes: Sequence[NodeProto],
    weights: Arrays,
    shape: Sequence[int | str] | Mapping[str, Sequence[int | str]] = (1, 4),
    *,
    outputs: str = "y",
    opset: int = 17,
    element: Any = np.float64,
    ir_version: int = 8,
) -> ModelProto:
    """A model with input x (or several) and output y; float weights take the element type."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(element))
    shapes = shape if isinstance(shape, Mapping) else {"x": shape}
    initializers = [
        numpy_helper.from_array(np.asarray(array).astype(element) if array.dtype.kind == "f" else array, name)
        for name, array in weights.items()
    ]
    inputs = [helper.make_tensor_value_info(name, kind, list(size)) for name, size in shapes.items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name in outputs.split()]
    graph = helper.make_graph(list(nodes), "test", inputs, results, initializers)
    imports = [helper.make_opsetid("", opset)]
    if any(one.domain == "ai.onnx.ml" for one in nodes):
        imports.append(helper.make_opsetid("ai.onnx.ml", 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def with_weights(proto: ModelProto, weights: Arrays) -> ModelProto:
    """A copy with other values in some initializers."""
    changed = ModelProto()
    changed.CopyFrom(proto)
    for tensor in changed.graph.initializer:
        if tensor.name in weights:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(weights[tensor.name]).astype(dtype), tensor.name))
    return changed


def run_onnx(proto: ModelProto, x: np.ndarray) -> np.ndarray:
    """Outputs (N, m) by onnxruntime at points x (N, n) of a model with one input."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry(*FULL_PRECISION)
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rows, start = [], 0
    for point in x:
        feeds, start = {}, 0
        for info in session.get_inputs():
            shape = [size if isinstance(size, int) else 1 for size in info.shape]
            size = int(np.prod(shape))
            dtype = {"tensor(double)": np.float64, "tensor(float)": np.float32}[info.type]
            feeds[info.name] = point[start : start + size].reshape(shape).astype(dtype)
            start += size
        rows.append(np.concatenate([np.ravel(y).astype(np.float64) for y in session.run(None, feeds)]))
    return np.array(rows)


def small_net(element: Any = np.float32, seed: int = 0) -> ModelProto:
    """4 - 5 relu - 3, Gemm with transB in the first layer and without in the second."""
    rng = np.random.default_rng(seed)
    weights = {"W1": rng.normal(size=(5, 4)), "b1": rng.normal(size=5)}
    weights |= {"W2": rng.normal(size=(5, 3)), "b2": rng.normal(size=3)}
    nodes = [node("Gemm", "x W1 b1", "h", transB=1), node("Relu", "h", "a"), node("Gemm", "a W2 b2", "y")]
    return make_model(nodes, weights, element=element)


def element_type(proto: ModelProto) -> int:
    """Element type of the first input."""
    return proto.graph.input[0].type.tensor_type.elem_type


FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
