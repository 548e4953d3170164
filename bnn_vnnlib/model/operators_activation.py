"""Elementwise functions of one computed tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import NodeProto

from bnn_vnnlib.model.attributes import attribute, float_attribute, inconsistent, label, raw_attribute, unsupported
from bnn_vnnlib.model.balls import Ball, reciprocal
from bnn_vnnlib.model.builder import Builder
from bnn_vnnlib.model.operators_linear import constant_operand
from bnn_vnnlib.model.operators_shape import Inputs, variable
from bnn_vnnlib.model.values import Constant, Value, Variable
from bnn_vnnlib.network.nodes import Kind

Converter = Callable[[Builder, NodeProto, Inputs], Value]


def plain(kind: Kind) -> Converter:
    """An operator that is an activation as it stands."""

    def converter(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
        return graph.activation(label(node), variable(graph, node, inputs), kind)

    return converter


def leaky_relu(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """x for x >= 0, alpha x below."""
    alpha = float_attribute(node, "alpha", 0.01)
    kind: Kind = "leaky_relu" if 0 <= alpha <= 1 else "prelu"
    return graph.activation(label(node), variable(graph, node, inputs), kind, alpha)


def prelu(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """x for x >= 0, slope * x below; a slope that is random or not exact is a Scale of relu(-x)."""
    x, name = variable(graph, node, inputs), label(node)
    slope = constant_operand(node, inputs, 1, "the slope")
    if len(slope.shape) > len(x.shape) or np.broadcast_shapes(slope.shape, x.shape) != x.shape:
        raise inconsistent(node, f"a slope of shape {slope.shape} does not broadcast to {x.shape}")
    if not slope.uncertain and slope.weight.slack is None:
        return graph.activation(name, x, "prelu", np.array(slope.values, np.float64))
    negative = graph.activation(name, graph.total(name, [(-1, x)]), "relu")
    return graph.total(name, [(1, graph.activation(name, x, "relu")), (-1, graph.scale(name, negative, slope))])


def clip(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """min(max(x, low), high); the limits are attributes before opset 11, inputs since."""
    x = variable(graph, node, inputs)
    limits = []
    for position, (name, default) in enumerate((("min", -math.inf), ("max", math.inf)), 1):
        operand = inputs[position] if position < len(inputs) else None
        limit = default
        if operand is not None:
            limit = _number(node, operand, name)
            if len(operand.shape) > len(x.shape):
                raise inconsistent(node, f"{name} has shape {operand.shape}, expected a scalar")
        elif raw_attribute(node, name) is not None:
            limit = float(attribute(node, name, default))
        limits.append(limit)
    if any(math.isnan(limit) for limit in limits):
        raise inconsistent(node, f"limits {limits}")
    if graph.opset < 11 and limits[0] > limits[1]:
        raise inconsistent(node, f"min {limits[0]} is above max {limits[1]}, which is defined from opset 11 on only")
    return graph.activation(label(node), x, "clip", (limits[0], limits[1]))


def _number(node: NodeProto, operand: Value, name: str) -> float:
    if not isinstance(operand, Constant) or not operand.known or operand.values.size != 1:
        raise unsupported(node, f"{name} must be one constant number, exactly and without a posterior")
    if operand.param is None:
        raise inconsistent(node, f"{name} is of type {operand.element}, expected floats")
    return float(operand.values.reshape(()))


def _times(graph: Builder, node: NodeProto, x: Variable, factor: float, what: str) -> Variable:
    return graph.scale(label(node), x, graph.number(f"{node.output[0]}.{what}", factor, x))


def elu(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """x for x >= 0, alpha (exp x - 1) below."""
    x = variable(graph, node, inputs)
    return graph.activation(label(node), x, "elu", float_attribute(node, "alpha", 1.0))


def selu(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """gamma elu(x)."""
    x = variable(graph, node, inputs)
    y = graph.activation(label(node), x, "elu", float_attribute(node, "alpha", 1.67326319217681884765625))
    return _times(graph, node, y, float_attribute(node, "gamma", 1.05070102214813232421875), "gamma")


def celu(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)) = alpha elu(x / alpha), alpha > 0."""
    alpha = float_attribute(node, "alpha", 1.0)
    if alpha <= 0:
        raise unsupported(node, f"alpha {alpha}: must be positive")
    x, name = variable(graph, node, inputs), label(node)
    inner = graph.derived(f"{node.output[0]}.inverse", reciprocal(Ball(np.array(alpha))), x.element)
    return _times(graph, node, graph.activation(name, graph.scale(name, x, inner), "elu", 1.0), alpha, "alpha")


def hard_sigmoid(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """max(0, min(1, alpha x + beta))."""
    x, name = variable(graph, node, inputs), label(node)
    y = _times(graph, node, x, float_attribute(node, "alpha", 0.2), "alpha")
    y = graph.shift(name, y, graph.number(f"{node.output[0]}.beta", float_attribute(node, "beta", 0.5), x))
    return graph.activation(name, y, "clip", (0.0, 1.0))


def gelu(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """With erf, or approximated with tanh."""
    x, name, approximate = variable(graph, node, inputs), label(node), attribute(node, "approximate", "none")
    if approximate == "none":
        return graph.activation(name, x, "gelu", math.sqrt(0.5))
    if approximate == "tanh":
        return graph.activation(name, x, "gelu_tanh")
    raise inconsistent(node, f"approximate = {approximate!r}")


def swish(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """x sigmoid(alpha x) = silu(alpha x) / alpha."""
    x, alpha = variable(graph, node, inputs), float_attribute(node, "alpha", 1.0)
    if alpha == 1:
        return graph.activation(label(node), x, "silu")
    if alpha == 0:
        return _times(graph, node, x, 0.5, "half")
    y = graph.activation(label(node), _times(graph, node, x, alpha, "alpha"), "silu")
    return graph.divided(label(node), y, alpha)


def mish(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """x tanh(softplus(x))."""
    x, name = variable(graph, node, inputs), label(node)
    return graph.product(name, x, graph.activation(name, graph.activation(name, x, "softplus"), "tanh"))
