"""Elementwise operators: arithmetic, functions, comparisons and Where.

1. Arithmetic.
2. Functions of one computed tensor.
3. Comparisons of computed tensors, and Where: a choice that is known, or one that makes a continuous function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast as typed

import numpy as np
from onnx import NodeProto

from bnn_vnnlib.model.attributes import attribute, float_attribute, inconsistent, label, raw_attribute, unsupported
from bnn_vnnlib.model.balls import Ball, reciprocal
from bnn_vnnlib.model.builder import Builder, Compared, Computed, Fixed, Value
from bnn_vnnlib.model.operators_linear import constant_operand
from bnn_vnnlib.model.operators_reduce import maximum, minimum
from bnn_vnnlib.model.operators_shape import Operands, variable
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.nodes import ActivationKind

# 1. Arithmetic


def _operands(graph: Builder, node: NodeProto, inputs: Operands) -> tuple[Value, Value]:
    """Both operands; not both constant (those were folded before)."""
    pair = [inputs[i] if isinstance(inputs[i], Fixed) else variable(graph, node, inputs, i) for i in (0, 1)]
    return typed(Value, pair[0]), typed(Value, pair[1])


def add(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Add: a + b of computed tensors or constants."""
    match _operands(graph, node, inputs):
        case (Computed() as x, Fixed() as bias) | (Fixed() as bias, Computed() as x):
            return graph.shift(label(node), x, bias)
        case a, b:
            return graph.total(label(node), [(1, typed(Computed, a)), (1, typed(Computed, b))])


def subtract(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Sub: a - b of computed tensors or constants."""
    name = label(node)
    match _operands(graph, node, inputs):
        case Computed() as x, Fixed() as bias:
            return graph.shift(name, x, graph.negated(bias))
        case Fixed() as bias, Computed() as x:
            return graph.shift(name, graph.total(name, [(-1, x)]), bias)
        case a, b:
            return graph.total(name, [(1, typed(Computed, a)), (-1, typed(Computed, b))])


def multiply(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """a * b; x sigmoid(x) and x (1 + erf(c x)) are taken as one function, because x enters them twice."""
    name = label(node)
    match _operands(graph, node, inputs):
        case (Computed() as x, Fixed() as weight) | (Fixed() as weight, Computed() as x):
            return graph.scale(name, x, weight)
        case a, b:
            a, b = typed(Computed, a), typed(Computed, b)
    return _gate(graph, name, a, b) or _gate(graph, name, b, a) or graph.product(name, a, b)


def _gate(graph: Builder, name: str, x: Computed, gate: Computed) -> Computed | None:
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


def divide(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """a / b; where b is computed, bounds need it to stay away from 0."""
    a, b = _operands(graph, node, inputs)
    if not isinstance(b, Fixed):
        inverse = graph.activation(label(node), b, "reciprocal")
        if isinstance(a, Fixed):
            return graph.scale(label(node), inverse, a)
        return graph.product(label(node), a, inverse)
    if b.uncertain:
        raise unsupported(node, f"the divisor {b.name!r} has a posterior: 1 / weight is not Gaussian")
    inverse_b = graph.derived(f"1/{b.name}", reciprocal(b.ball), b.element)
    return graph.scale(label(node), typed(Computed, a), inverse_b)


def negate(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Neg: -x."""
    return graph.total(label(node), [(-1, variable(graph, node, inputs))])


def power(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """x^p for one constant p: an integer, 1/2 or -1/2."""
    x, name = variable(graph, node, inputs), label(node)
    exponent = inputs[1] if len(inputs) > 1 else None
    if not isinstance(exponent, Fixed) or exponent.values.size != 1 or not exponent.known:
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


def scaler(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
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


# 2. Functions of one computed tensor

_Elementwise = Callable[[Builder, NodeProto, Operands], Value]


def activation_of(kind: ActivationKind) -> _Elementwise:
    """An operator that is an activation as it stands."""

    def converter(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
        return graph.activation(label(node), variable(graph, node, inputs), kind)

    return converter


def leaky_relu(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """x for x >= 0, alpha x below."""
    alpha = float_attribute(node, "alpha", 0.01)
    kind: ActivationKind = "leaky_relu" if 0 <= alpha <= 1 else "prelu"
    return graph.activation(label(node), variable(graph, node, inputs), kind, alpha)


def prelu(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """x for x >= 0, slope * x below; a slope that is random or not exact is a Scale of relu(-x)."""
    x, name = variable(graph, node, inputs), label(node)
    slope = constant_operand(node, inputs, 1, "the slope")
    if len(slope.shape) > len(x.shape) or np.broadcast_shapes(slope.shape, x.shape) != x.shape:
        raise inconsistent(node, f"a slope of shape {slope.shape} does not broadcast to {x.shape}")
    if not slope.uncertain and slope.weight.slack is None:
        return graph.activation(name, x, "prelu", np.array(slope.values, np.float64))
    negative = graph.activation(name, graph.total(name, [(-1, x)]), "relu")
    return graph.total(name, [(1, graph.activation(name, x, "relu")), (-1, graph.scale(name, negative, slope))])


def clip(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
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
    if not isinstance(operand, Fixed) or not operand.known or operand.values.size != 1:
        raise unsupported(node, f"{name} must be one constant number, exactly and without a posterior")
    if operand.param is None:
        raise inconsistent(node, f"{name} is of type {operand.element}, expected floats")
    return float(operand.values.reshape(()))


def _times(graph: Builder, node: NodeProto, x: Computed, factor: float, what: str) -> Computed:
    return graph.scale(label(node), x, graph.number(f"{node.output[0]}.{what}", factor, x))


def elu(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """x for x >= 0, alpha (exp x - 1) below."""
    x = variable(graph, node, inputs)
    return graph.activation(label(node), x, "elu", float_attribute(node, "alpha", 1.0))


def selu(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Selu: gamma elu(x), a scaled Elu."""
    x = variable(graph, node, inputs)
    y = graph.activation(label(node), x, "elu", float_attribute(node, "alpha", 1.67326319217681884765625))
    return _times(graph, node, y, float_attribute(node, "gamma", 1.05070102214813232421875), "gamma")


def celu(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)) = alpha elu(x / alpha), alpha > 0."""
    alpha = float_attribute(node, "alpha", 1.0)
    if alpha <= 0:
        raise unsupported(node, f"alpha {alpha}: must be positive")
    x, name = variable(graph, node, inputs), label(node)
    inner = graph.derived(f"{node.output[0]}.inverse", reciprocal(Ball(np.array(alpha))), x.element)
    return _times(graph, node, graph.activation(name, graph.scale(name, x, inner), "elu", 1.0), alpha, "alpha")


def hard_sigmoid(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """max(0, min(1, alpha x + beta))."""
    x, name = variable(graph, node, inputs), label(node)
    y = _times(graph, node, x, float_attribute(node, "alpha", 0.2), "alpha")
    y = graph.shift(name, y, graph.number(f"{node.output[0]}.beta", float_attribute(node, "beta", 0.5), x))
    return graph.activation(name, y, "clip", (0.0, 1.0))


def gelu(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Gelu as an activation: the exact one, with erf, or its approximation with tanh."""
    x, name, approximate = variable(graph, node, inputs), label(node), attribute(node, "approximate", "none")
    if approximate == "none":
        return graph.activation(name, x, "gelu", math.sqrt(0.5))
    if approximate == "tanh":
        return graph.activation(name, x, "gelu_tanh")
    raise inconsistent(node, f"approximate = {approximate!r}")


def swish(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """x sigmoid(alpha x) = silu(alpha x) / alpha."""
    x, alpha = variable(graph, node, inputs), float_attribute(node, "alpha", 1.0)
    if alpha == 1:
        return graph.activation(label(node), x, "silu")
    if alpha == 0:
        return _times(graph, node, x, 0.5, "half")
    y = graph.activation(label(node), _times(graph, node, x, alpha, "alpha"), "silu")
    return graph.divided(label(node), y, alpha)


def mish(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """x tanh(softplus(x))."""
    x, name = variable(graph, node, inputs), label(node)
    return graph.product(name, x, graph.activation(name, graph.activation(name, x, "softplus"), "tanh"))


# 3. Comparisons and Where

Limits = tuple[float, float]


def comparison(swapped: bool) -> Callable[[Builder, NodeProto, Operands], Value]:
    """Greater and GreaterOrEqual; Less and LessOrEqual, `swapped`."""

    def converter(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
        """A comparison of two values, which is kept for the Where that takes it."""
        if len(inputs) != 2 or any(value is None for value in inputs):
            raise inconsistent(node, "needs two operands")
        a, b = (x if isinstance(x, Fixed) else variable(graph, node, inputs, i) for i, x in enumerate(inputs))
        left, right = (b, a) if swapped else (a, b)
        return Compared(-1, np.broadcast_shapes(a.shape, b.shape), np.dtype(bool), left, right)

    return converter


def negation(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Not: the opposite of a comparison (ties aside)."""
    value = inputs[0] if inputs else None
    if not isinstance(value, Compared):
        raise unsupported(node, "only a constant or a comparison can be negated")
    return Compared(-1, value.shape, value.element, value.right, value.left)


def where(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """mask * a + (1 - mask) * b, for a mask that is known; for a comparison, what `_chosen_by_comparison` can read."""
    name, (mask, a, b) = label(node), (*inputs, None, None, None)[:3]
    if a is None or b is None:
        raise inconsistent(node, "needs three operands")
    if isinstance(mask, Compared):
        # probabilities are nodes of their own from here on: else they would be taken for what they are the Softmax of
        a, b = (graph.branch(name, x) if isinstance(x, Computed) else x for x in (a, b))
        y = _chosen_by_comparison(graph, node, mask, a, b)
        if y is None:
            message = "its condition depends on the input, and it is no maximum, minimum, LeakyRelu or Clip of what is "
            raise unsupported(node, f"{message}compared")
        return graph.broadcast(name, y, np.broadcast_shapes(mask.shape, a.shape, b.shape))
    if not isinstance(mask, Fixed) or mask.values.dtype != np.bool_:
        raise unsupported(node, "the condition must be constant, or a comparison")
    terms = []
    for value, chosen in ((a, mask.values), (b, ~mask.values)):
        branch = graph.branch(name, value)
        part = graph.derived(f"{node.output[0]}.mask", Ball(chosen.astype(np.float64)), branch.element)
        terms.append((1, graph.scale(name, branch, part)))
    return graph.total(name, terms)


def _chosen_by_comparison(graph: Builder, node: NodeProto, mask: Compared, a: Value, b: Value) -> Computed | None:
    """a where left >= right, b elsewhere, in the cases in which this is a continuous function; else None.

    Both are equal where left = right, so that it does not matter which branch a tie takes:
    - the branches are what is compared: max(left, right), or min;
    - x is compared with 0, and the branches are x and s x: a LeakyRelu, of x or (mirrored) of -x;
    - x is compared with c, and the branches are c and clip(x, l, h) with l <= c <= h: for x >= c both clip(x, c, h) and
      clip(x, l, h) are min(x, h), and for x <= c the former is c. Mirrored, clip(x, l, c).
    """
    for join, (first, second) in ((maximum, (a, b)), (minimum, (b, a))):
        if _same(first, mask.left) and _same(second, mask.right):
            return typed(Computed, join(graph, node, [mask.left, mask.right]))
    match mask.left, mask.right:
        case Computed() as x, Fixed() as limit:
            above, below = a, b
        case Fixed() as limit, Computed() as x:
            above, below = b, a
        case _:
            return None
    if limit.param is None or not limit.known or (limit.values != limit.values.flat[0]).any():
        return None
    return _chosen_at_zero(graph, node, x, limit, above, below) or _chosen_at_limit(graph, node, x, limit, above, below)


def _chosen_at_zero(
    graph: Builder, node: NodeProto, x: Computed, limit: Fixed, above: Value, below: Value
) -> Computed | None:
    """A LeakyRelu of x, or (mirrored) of -x."""
    if limit.values.flat[0] != 0:
        return None
    name, upper, lower = label(node), _slope(graph, above, x), _slope(graph, below, x)
    if _same(above, x) and lower is not None:
        return _leaky(graph, node, x, lower)
    if _same(below, x) and upper is not None:
        return graph.total(name, [(-1, _leaky(graph, node, graph.total(name, [(-1, x)]), upper))])
    return None


def _chosen_at_limit(
    graph: Builder, node: NodeProto, x: Computed, limit: Fixed, above: Value, below: Value
) -> Computed | None:
    """A Clip that begins or ends at the limit."""
    c = float(limit.values.flat[0])
    for branch, other, rises in ((above, below, True), (below, above, False)):
        limits = _limits(graph, branch, x)
        if limits is not None and _same(other, limit) and limits[0] <= c <= limits[1]:
            return graph.activation(label(node), x, "clip", (c, limits[1]) if rises else (limits[0], c))
    return None


def _same(a: Value, b: Value) -> bool:
    """Whether both are one computed tensor, or equal numbers without a posterior."""
    if isinstance(a, Fixed) and isinstance(b, Fixed):
        return a.known and b.known and bool((a.values == b.values).all())
    return isinstance(a, Computed) and isinstance(b, Computed) and a.position == b.position


def _slope(graph: Builder, branch: Value, x: Computed) -> Fixed | None:
    """The constant s, if the branch is s x; else None."""
    if not isinstance(branch, Computed):
        return None
    match graph.nodes[branch.position]:
        case nodes.Scale(inputs=(source,), weight=weight) if source == x.position:
            values = graph.sources[weight.source].reshape(-1)[weight.index] * weight.factor
            return Fixed(weight.source, values, x.element, weight, weight.source in graph.uncertain)
        case nodes.Sum(inputs=(source,), signs=(-1,)) if source == x.position:
            return graph.number("slope", -1.0, x)
    return None


def _leaky(graph: Builder, node: NodeProto, x: Computed, slope: Fixed) -> Computed:
    """x for x >= 0, slope * x below."""
    number = graph.exact_number(slope.weight)
    if number is not None and 0 <= number <= 1:
        return graph.activation(label(node), x, "leaky_relu", number)
    return typed(Computed, prelu(graph, node, [x, slope]))


def _limits(graph: Builder, branch: Value, x: Computed) -> Limits | None:
    """The limits (l, h), if the branch is clip(x, l, h); else None."""
    if not isinstance(branch, Computed):
        return None
    match graph.nodes[branch.position]:
        case nodes.Activation(kind="clip", inputs=(source,), alpha=(low, high)) if source == x.position and low <= high:
            return low, high
        case nodes.Activation(kind="relu", inputs=(source,)) if source == x.position:
            return 0.0, math.inf
    return None
