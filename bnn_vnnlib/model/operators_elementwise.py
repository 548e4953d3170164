"""Elementwise operators, and the Softmax that may end a graph."""

from __future__ import annotations

import math
from typing import cast as typed

from onnx import NodeProto

from bnn_vnnlib.model.attributes import attribute, float_attribute, label, unsupported
from bnn_vnnlib.model.balls import reciprocal
from bnn_vnnlib.model.builder import Builder
from bnn_vnnlib.model.operators_shape import Inputs, normal_axis, variable
from bnn_vnnlib.model.values import Constant, Softmaxed, Value, Variable


def _operands(graph: Builder, node: NodeProto, inputs: Inputs) -> tuple[Value, Value]:
    """Both operands; not both constant (those were folded before)."""
    pair = [inputs[i] if isinstance(inputs[i], Constant) else variable(graph, node, inputs, i) for i in (0, 1)]
    return typed(Value, pair[0]), typed(Value, pair[1])


def add(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """a + b."""
    match _operands(graph, node, inputs):
        case (Variable() as x, Constant() as bias) | (Constant() as bias, Variable() as x):
            return graph.shift(label(node), x, bias)
        case a, b:
            return graph.total(label(node), [(1, typed(Variable, a)), (1, typed(Variable, b))])


def subtract(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """a - b."""
    name = label(node)
    match _operands(graph, node, inputs):
        case Variable() as x, Constant() as bias:
            return graph.shift(name, x, graph.negated(bias))
        case Constant() as bias, Variable() as x:
            return graph.shift(name, graph.total(name, [(-1, x)]), bias)
        case a, b:
            return graph.total(name, [(1, typed(Variable, a)), (-1, typed(Variable, b))])


def multiply(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """a * b, one of them constant."""
    match _operands(graph, node, inputs):
        case (Variable() as x, Constant() as weight) | (Constant() as weight, Variable() as x):
            return graph.scale(label(node), x, weight)
    raise unsupported(node, "the product of two computed tensors is not supported; one operand must be constant")


def divide(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """a / b, b constant."""
    a, b = _operands(graph, node, inputs)
    if not isinstance(b, Constant) or not isinstance(a, Variable):
        raise unsupported(node, "division by a computed tensor is not supported; the divisor must be constant")
    if b.uncertain:
        raise unsupported(node, f"the divisor {b.name!r} has a posterior: 1 / weight is not Gaussian")
    inverse = graph.derived(f"1/{b.name}", reciprocal(b.ball), b.element)
    return graph.scale(label(node), a, inverse)


def negate(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """-x."""
    return graph.total(label(node), [(-1, variable(graph, node, inputs))])


def relu(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """max(x, 0)."""
    return graph.activation(label(node), variable(graph, node, inputs), "relu")


def leaky_relu(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """max(x, alpha x), 0 <= alpha <= 1."""
    alpha = float_attribute(node, "alpha", 0.01)
    if not 0 <= alpha <= 1:
        raise unsupported(node, f"slope alpha = {alpha} is outside [0, 1]")
    return graph.activation(label(node), variable(graph, node, inputs), "leaky_relu", alpha)


def sigmoid(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """1 / (1 + exp(-x))."""
    return graph.activation(label(node), variable(graph, node, inputs), "sigmoid")


def tanh(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Hyperbolic tangent."""
    return graph.activation(label(node), variable(graph, node, inputs), "tanh")


def softmax(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Opset 13 and later: over one axis."""
    x = variable(graph, node, inputs)
    return _softmax(node, x, normal_axis(node, attribute(node, "axis", -1), len(x.shape)))


def softmax_flattening(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Before opset 13: over all axes from `axis` on, together; supported where that is one axis."""
    x = variable(graph, node, inputs)
    first = normal_axis(node, attribute(node, "axis", 1), len(x.shape))
    wide = [axis for axis in range(first, len(x.shape)) if x.shape[axis] > 1]
    if len(wide) > 1:
        raise unsupported(node, f"a Softmax over several axes together (shape {x.shape} from axis {first})")
    return _softmax(node, x, wide[0] if wide else first)


def _softmax(node: NodeProto, x: Variable, axis: int) -> Value:
    if x.shape[axis] != math.prod(x.shape):
        message = f"axis {axis} of shape {x.shape}: only one Softmax over all outputs is supported"
        raise unsupported(node, message)
    return Softmaxed(x.position, x.shape, x.element, axis)
