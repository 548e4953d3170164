"""Elementwise arithmetic."""

from __future__ import annotations

import math
from typing import cast as typed

import numpy as np
from onnx import NodeProto

from bnn_vnnlib.model.attributes import inconsistent, label, raw_attribute, unsupported
from bnn_vnnlib.model.balls import Ball, reciprocal
from bnn_vnnlib.model.builder import Builder
from bnn_vnnlib.model.operators_shape import Inputs, variable
from bnn_vnnlib.model.values import Constant, Value, Variable
from bnn_vnnlib.network import nodes


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
    """a * b; x sigmoid(x) and x (1 + erf(c x)) are taken as one function, because x enters them twice."""
    name = label(node)
    match _operands(graph, node, inputs):
        case (Variable() as x, Constant() as weight) | (Constant() as weight, Variable() as x):
            return graph.scale(name, x, weight)
        case a, b:
            a, b = typed(Variable, a), typed(Variable, b)
    return _gate(graph, name, a, b) or _gate(graph, name, b, a) or graph.product(name, a, b)


def _gate(graph: Builder, name: str, x: Variable, gate: Variable) -> Variable | None:
    """x * gate, if the gate is a function of x that is known together with x; else None."""
    match graph.nodes[gate.position]:
        case nodes.Activation(kind="sigmoid", inputs=(source,)) if source == x.position:
            return graph.activation(name, x, "silu")
        case nodes.Shift(inputs=(source,), bias=bias) if graph.exact_number(bias) == 1:
            match graph.nodes[source]:
                case nodes.Activation(kind="erf", inputs=(inner,)):
                    steepness = _steepness(graph, inner, x.position)
                    if steepness is not None:
                        y = graph.activation(name, x, "gelu", steepness)
                        return graph.scale(name, y, graph.number(f"{name}.two", 2.0, x))
    return None


def _steepness(graph: Builder, position: int, source: int) -> float | None:
    """c, if the node is c times the source and c is 1 / sqrt 2 nearly enough; its rounding is in the activation."""
    match graph.nodes[position]:
        case nodes.Scale(inputs=(inner,), weight=weight) if inner == source:
            number = graph.number_of(weight)
            if number is not None and abs(number[0] - math.sqrt(0.5)) < 1e-2 and number[1] <= 2e-16:
                return number[0]
    return None


def divide(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """a / b; where b is computed, bounds need it to stay away from 0."""
    a, b = _operands(graph, node, inputs)
    if not isinstance(b, Constant):
        inverse = graph.activation(label(node), b, "reciprocal")
        if isinstance(a, Constant):
            return graph.scale(label(node), inverse, a)
        return graph.product(label(node), a, inverse)
    if b.uncertain:
        raise unsupported(node, f"the divisor {b.name!r} has a posterior: 1 / weight is not Gaussian")
    inverse_b = graph.derived(f"1/{b.name}", reciprocal(b.ball), b.element)
    return graph.scale(label(node), typed(Variable, a), inverse_b)


def negate(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """-x."""
    return graph.total(label(node), [(-1, variable(graph, node, inputs))])


def power(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """x^p for one constant p: an integer, 1/2 or -1/2."""
    x, name = variable(graph, node, inputs), label(node)
    exponent = inputs[1] if len(inputs) > 1 else None
    if not isinstance(exponent, Constant) or exponent.values.size != 1 or not exponent.known:
        raise unsupported(node, "the exponent must be one constant number, exactly")
    p = float(np.asarray(exponent.values, np.float64).reshape(()))
    x = graph.broadcast(name, x, np.broadcast_shapes(x.shape, exponent.shape))
    if p == 0:
        return graph.shift(name, graph.scale(name, x, graph.number(f"{name}.zero", 0.0, x)),
                           graph.number(f"{name}.one", 1.0, x))  # fmt: skip
    size = abs(p)
    if size == 0.5:
        y = graph.activation(name, x, "sqrt")
    elif size == int(size) and size <= 64:
        y = x if size == 1 else graph.activation(name, x, "power", int(size))
    else:
        raise unsupported(node, f"the exponent {p}: an integer up to 64, or 1/2")
    return y if p > 0 else graph.activation(name, y, "reciprocal")


def scaler(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """(x - offset) * scale, one number or one for each feature (the last axis): how scikit-learn standardises."""
    x, name = variable(graph, node, inputs), label(node)
    if x.element != np.float32 or len(x.shape) not in (1, 2):
        expected = "expected float32 of shape (features) or (N, features)"
        raise unsupported(node, f"an input of type {x.element} and shape {x.shape}; {expected}")
    # as the file holds them: float32, exactly
    offset, scale = (np.array(raw_attribute(node, what) or (), np.float64) for what in ("offset", "scale"))
    if offset.shape != scale.shape or scale.shape not in ((1,), x.shape[-1:]) or not np.isfinite([offset, scale]).all():
        raise inconsistent(node, f"offset and scale must be one finite number each, or one for each of {x.shape[-1]}")
    y = graph.shift(name, x, graph.derived(f"{node.output[0]}.offset", Ball(-offset), x.element))
    return graph.scale(name, y, graph.derived(f"{node.output[0]}.scale", Ball(scale), x.element))
