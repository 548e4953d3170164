"""Small networks with posteriors, for the tests of what is written for other tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from bnn_vnnlib.model import GaussianDiagonal, WeightSamples, attach

Arrays = dict[str, np.ndarray]


def op(operator: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], name=f"{operator}_{output}", **attributes)


def graph(
    nodes: list[onnx.NodeProto],
    tensors: Arrays,
    shape: tuple[int, ...] = (1, 4),
    out: tuple[int, ...] = (1, 3),
    opset: int = 17,
) -> ModelProto:
    """x -> y in float32."""
    stored = []
    for name, array in tensors.items():
        values = np.asarray(array)
        stored.append(numpy_helper.from_array(values.astype(np.float32) if values.dtype.kind == "f" else values, name))
    ends = (("x", shape), ("y", out))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, list(size)) for name, size in ends)
    body = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def mlp(activation: str = "Relu", *, softmax: bool = False, seed: int = 0) -> ModelProto:
    """4 - 5 - 6 - 3 behind a normalisation, in the spellings of several exporters."""
    rng = np.random.default_rng(seed)
    tensors = {"shift": rng.normal(size=4), "W1": rng.normal(size=(5, 4)), "b1": rng.normal(size=5)}
    tensors |= {"W2": rng.normal(size=(5, 6)), "b2": rng.normal(size=6), "W3": rng.normal(size=(6, 3))}
    nodes = [op("Sub", "x shift", "n"), op("Flatten", "n", "f"), op("Gemm", "f W1 b1", "h1", transB=1)]
    nodes += [op(activation, "h1", "a1"), op("MatMul", "a1 W2", "m"), op("Add", "m b2", "h2")]
    nodes += [op(activation, "h2", "a2"), op("MatMul", "a2 W3", "z" if softmax else "y")]
    return graph([*nodes, *([op("Softmax", "z", "y", axis=1)] if softmax else [])], tensors)


def samples(proto: ModelProto, names: tuple[str, ...], count: int = 3, seed: int = 1) -> WeightSamples:
    """Samples around the weights, with unequal probabilities."""
    rng = np.random.default_rng(seed)
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    shares = rng.uniform(0.5, 1.5, count)
    tensors = {name: arrays[name] + rng.normal(size=(count, *arrays[name].shape)) for name in names}
    return WeightSamples(tensors, shares / shares.sum())


def gaussian(proto: ModelProto, names: tuple[str, ...], seed: int = 2) -> GaussianDiagonal:
    rng = np.random.default_rng(seed)
    shapes = {t.name: tuple(t.dims) for t in proto.graph.initializer}
    return GaussianDiagonal({name: rng.uniform(0.01, 0.2, shapes[name]) for name in names})


def saved(proto: ModelProto, path: Path, posterior: GaussianDiagonal | WeightSamples, likelihood: str | None) -> Path:
    onnx.save(attach(proto, posterior, likelihood=likelihood), path)
    return path
