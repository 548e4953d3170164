"""A network of the project's own nodes written as an ONNX file, so that every case also goes through the importer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bnn_vnnlib.model import Network
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.nodes import Param

OPERATORS = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "leaky_relu": "LeakyRelu", "elu": "Elu", "abs": "Abs",
    "softplus": "Softplus", "softsign": "Softsign", "atan": "Atan", "exp": "Exp", "sin": "Sin", "cos": "Cos",
    "erf": "Erf",
}  # fmt: skip
COMPOSED = ("silu", "clip", "power")
UNWRITTEN = (nodes.Broadcast, nodes.Select)  # only made by the importer itself


def has_conv(network: Network) -> bool:
    """Whether the graph has convolutions."""
    return any(isinstance(node, nodes.Conv) for node in network.nodes)


def writable(network: Network) -> bool:
    """Whether an ONNX file can hold the graph exactly."""

    def suits(node: nodes.Node) -> bool:
        if not isinstance(node, nodes.Activation):
            return not isinstance(node, UNWRITTEN)
        steep = node.kind == "leaky_relu" and float(node.alpha) > 1
        return node.kind in (*OPERATORS, *COMPOSED) and not steep

    return all(suits(node) for node in network.nodes)


class _Writer:
    def __init__(self, network: Network) -> None:
        self.network = network
        # onnxruntime convolves in float32 only; the weights of such graphs are numbers of float32 already
        self.element = np.float32 if has_conv(network) else np.float64
        self.nodes: list[onnx.NodeProto] = []
        self.holders = {
            name: numpy_helper.from_array(tensor.astype(self.element), name) for name, tensor in network.tensors.items()
        }

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """One more node; the name of its output."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: Any) -> str:
        """One more initializer."""
        name = f"c{len(self.holders)}"
        self.holders[name] = numpy_helper.from_array(np.asarray(values), name)
        return name

    def param(self, param: Param) -> str:
        """A parameter: moved elements of its source, times a factor."""
        source, name = self.network.tensors[param.source], param.source
        places = np.arange(source.size).reshape(source.shape)
        if source.ndim == 2 and np.array_equal(param.index, places.T) and source.size > 1:
            name = self.add("Transpose", [name], perm=[1, 0])
        elif not np.array_equal(param.index, places) or param.shape != source.shape:
            flat = self.add("Reshape", [name, self.constant(np.array([-1]))])
            name = self.add("Gather", [flat, self.constant(param.index)], axis=0)
        if np.all(param.factor == 1):
            return name
        return self.add("Mul", [name, self.constant(np.asarray(param.factor, self.element))])

    def node(self, node: nodes.Node, xs: list[str]) -> str:
        """Output name of one node."""
        match node:
            case nodes.Constant():
                return self.add("Identity", [self.param(node.value)])
            case nodes.Linear():
                return self.linear(node, xs[0])
            case nodes.Conv():
                return self.add(
                    "Conv", [xs[0], self.param(node.weight)], strides=node.strides, pads=node.pads,
                    dilations=node.dilations, group=node.groups,
                )  # fmt: skip
            case nodes.Scale():
                return self.add("Mul", [xs[0], self.param(node.weight)])
            case nodes.Shift():
                return self.add("Add", [xs[0], self.param(node.bias)])
            case nodes.Activation():
                return self.activation(node, xs[0])
            case nodes.Product():
                return self.add("Mul", xs)
            case nodes.Max():
                return self.add("ReduceMax", xs, axes=[-1], keepdims=0)
            case nodes.Sum():
                return self.sum(node, xs)
            case nodes.Reshape():
                return self.add("Reshape", [xs[0], self.constant(np.array(node.shape, np.int64))])
            case nodes.Transpose():
                return self.add("Transpose", xs, perm=node.perm)
            case nodes.Concat():
                return self.add("Concat", xs, axis=node.axis)
        raise TypeError(type(node))

    def activation(self, node: nodes.Activation, x: str) -> str:
        """One operator, or the few that make up the function."""
        match node.kind:
            case "silu":
                return self.add("Mul", [x, self.add("Sigmoid", [x])])
            case "clip":
                ends = [self.constant(np.asarray(e, self.element)) if np.isfinite(e) else "" for e in node.alpha]
                return self.add("Clip", [x, *ends])
            case "power":
                return self.add("Pow", [x, self.constant(np.asarray(node.alpha, self.element))])
        extra = {"alpha": node.alpha} if node.kind in ("leaky_relu", "elu") else {}
        return self.add(OPERATORS[node.kind], [x], **extra)

    def linear(self, node: nodes.Linear, x: str) -> str:
        """MatMul over the last axis; any other axis is moved there and back."""
        weight = self.add("Transpose", [self.param(node.weight)], perm=[1, 0])
        rank = len(node.shape)
        order = [axis for axis in range(rank) if axis != node.axis] + [node.axis]
        if node.axis == rank - 1:
            return self.add("MatMul", [x, weight])
        moved = self.add("MatMul", [self.add("Transpose", [x], perm=order), weight])
        return self.add("Transpose", [moved], perm=[order.index(axis) for axis in range(rank)])

    def sum(self, node: nodes.Sum, xs: list[str]) -> str:
        """Add and Sub, one after the other."""
        total = xs[0] if node.signs[0] > 0 else self.add("Neg", [xs[0]])
        for sign, x in zip(node.signs[1:], xs[1:], strict=True):
            total = self.add("Add" if sign > 0 else "Sub", [total, x])
        return total


def to_onnx(network: Network, end: str = "") -> onnx.ModelProto:
    """The graph in float64 (float32 with convolutions); `end`: an operator behind the only output ("Softmax")."""
    writer = _Writer(network)
    inputs = [node for node in network.nodes if isinstance(node, nodes.Input)]
    by_start = {node.start: variable for node, variable in zip(inputs, network.signature.inputs, strict=True)}
    names: list[str] = []
    for node in network.nodes:
        if isinstance(node, nodes.Input):
            names.append(by_start[node.start].name)
        else:
            names.append(writer.node(node, [names[source] for source in node.inputs]))
    outputs = [writer.add(end or "Identity", [names[position]]) for position in network.outputs]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(writer.element))
    graph = helper.make_graph(
        writer.nodes, "fuzz",
        [helper.make_tensor_value_info(v.name, kind, v.shape) for v in network.signature.inputs],
        [
            helper.make_tensor_value_info(name, kind, variable.shape)
            for name, variable in zip(outputs, network.signature.outputs, strict=True)
        ],
        list(writer.holders.values()),
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
