"""A chain of layers with weight samples as one chain of wider layers.

The S networks lie side by side: where they part, their weights are stacked; further ones are block-diagonal; the last
ones are joined in a row, with the probabilities as factors. Every reader of Gemm and activations understands that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from scipy.linalg import block_diag

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.model import WeightSamples
from bnn_vnnlib.network import nodes
from bnn_vnnlib.posteriors.layers import Affine, Layer
from bnn_vnnlib.signature import Floats, Signature, Variable

End = Literal["outputs", "softmax", "sigmoid"]
ACTIVATIONS = {
    "abs": "Abs",
    "elu": "Elu",
    "leaky_relu": "LeakyRelu",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
}
_WITH_ALPHA = ("leaky_relu", "elu")
_MAX_MATRIX_ENTRIES = 2**27
"""Entries of one matrix: half a gigabyte in float32."""
_OPSET, _IR = 13, 7


@dataclass
class _Writer:
    """Nodes and tensors of the graph under construction; `value` is the last one."""

    element: Any
    value: str
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)

    def store(self, array: NDArray) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(self, operator: str, *arrays: NDArray | None, **attributes: Any) -> None:
        """A node on new tensors and (in front of them, or in the place of None) the last value."""
        operands = arrays if any(array is None for array in arrays) else (None, *arrays)
        inputs = [self.value if array is None else self.store(array) for array in operands]
        self.value = f"v{len(self.nodes)}"
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [self.value], name=name, **attributes))

    def gemm(self, weight: Floats, bias: Floats) -> None:
        if weight.size > _MAX_MATRIX_ENTRIES:
            raise OptionError(f"a block matrix of {weight.size:,} entries is too large; use --form copies")
        self.add("Gemm", weight.astype(self.element), bias.astype(self.element), transB=1)

    def shape(self, *sizes: int) -> None:
        self.add("Reshape", np.array(sizes, np.int64))


def merged_blocks(chain: list[Layer], posterior: WeightSamples, signature: Signature, end: End) -> ModelProto | None:
    """One deterministic network whose output is the average over the samples; None for activations without a name here.

    Parameters
    ----------
    end : what is averaged: the outputs, or softmax or sigmoid of them
    """
    activations = [layer for layer in chain if isinstance(layer, nodes.Activation)]
    if any(layer.kind not in ACTIVATIONS for layer in activations):
        return None
    (source,), (target,) = signature.inputs, signature.outputs
    writer = _Writer(np.dtype(source.element_type), source.name)
    if source.shape != (1, source.size):
        writer.shape(1, source.size)
    copies = 1
    *body, last = chain
    for layer in body:
        copies = _write(writer, layer, copies)
    if not isinstance(last, Affine):
        raise ValueError("a chain ends in an affine map")
    share = posterior.probabilities
    if end == "outputs":
        writer.gemm(*_averaged(last, share, copies))
    else:
        copies = _write(writer, last, copies)
        _squash(writer, end, share, copies, target.size)
    return _finished(writer, source, target)


def _write(writer: _Writer, layer: Layer, copies: int) -> int:
    """Write one layer; returns how many copies lie side by side behind it."""
    if isinstance(layer, nodes.Activation):
        alpha = {"alpha": float(layer.alpha)} if layer.kind in _WITH_ALPHA and isinstance(layer.alpha, float) else {}
        writer.add(ACTIVATIONS[layer.kind], **alpha)
        return copies
    if copies == 1:
        weight, bias = _spread(layer, layer.samples)
        writer.gemm(weight.reshape(-1, weight.shape[-1]), bias.reshape(-1))
        return layer.samples
    weight, bias = _spread(layer, copies)
    if copies**2 * weight[0].size > _MAX_MATRIX_ENTRIES:
        raise OptionError(f"a block matrix of {copies**2 * weight[0].size:,} entries is too large; use --form copies")
    writer.gemm(block_diag(*weight), bias.reshape(-1))
    return copies


def _spread(layer: Affine, count: int) -> tuple[Floats, Floats]:
    weight = np.broadcast_to(layer.weight, (count, *layer.weight.shape[1:]))
    return weight, np.broadcast_to(layer.bias, (count, *layer.bias.shape[1:]))


def _averaged(layer: Affine, share: Floats, copies: int) -> tuple[Floats, Floats]:
    """The last layer and the mean over the samples in one."""
    weight, bias = _spread(layer, len(share))
    mean: Floats = np.tensordot(share, bias, 1)
    if copies == 1:
        return np.tensordot(share, weight, 1), mean
    return np.concatenate(share[:, None, None] * weight, axis=1), mean


def _squash(writer: _Writer, end: End, share: Floats, copies: int, size: int) -> None:
    """Softmax (or sigmoid) of every copy's outputs, and their mean."""
    if end == "sigmoid":
        writer.add("Sigmoid")
    if end == "softmax":
        if copies > 1:
            writer.shape(-1, copies, size)
        writer.add("Softmax", axis=-1)
    if copies == 1:
        return
    if end == "softmax":
        writer.add("MatMul", share[None].astype(writer.element), None)
        writer.shape(-1, size)
    else:
        writer.gemm(np.kron(share[None], np.eye(size)).astype(np.float64), np.zeros(size))


def _finished(writer: _Writer, source: Variable, target: Variable) -> ModelProto:
    if target.shape != (1, target.size):
        writer.shape(*target.shape)
    writer.nodes[-1].output[0] = target.name
    kind = helper.np_dtype_to_tensor_dtype(writer.element)
    inputs, outputs = (helper.make_tensor_value_info(v.name, kind, list(v.shape)) for v in (source, target))
    graph = helper.make_graph(writer.nodes, "merged", [inputs], [outputs], writer.tensors)
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="bnn-vnnlib")
