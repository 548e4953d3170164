"""Comparisons of computed tensors, and Where: a choice that is known, or one that makes a continuous function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast as typed

import numpy as np
from onnx import NodeProto

from bnn_vnnlib.model.attributes import inconsistent, label, unsupported
from bnn_vnnlib.model.balls import Ball
from bnn_vnnlib.model.builder import Builder
from bnn_vnnlib.model.operators_activation import prelu
from bnn_vnnlib.model.operators_reduce import maximum, minimum
from bnn_vnnlib.model.operators_shape import Inputs, variable
from bnn_vnnlib.model.values import Compared, Constant, Value, Variable
from bnn_vnnlib.network import nodes

Limits = tuple[float, float]


def comparison(swapped: bool) -> Callable[[Builder, NodeProto, Inputs], Value]:
    """Greater and GreaterOrEqual; Less and LessOrEqual, `swapped`."""

    def converter(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
        """Kept for the Where that takes it."""
        if len(inputs) != 2 or any(value is None for value in inputs):
            raise inconsistent(node, "needs two operands")
        a, b = (x if isinstance(x, Constant) else variable(graph, node, inputs, i) for i, x in enumerate(inputs))
        left, right = (b, a) if swapped else (a, b)
        return Compared(-1, np.broadcast_shapes(a.shape, b.shape), np.dtype(bool), left, right)

    return converter


def negation(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Not: the opposite of a comparison (ties aside)."""
    value = inputs[0] if inputs else None
    if not isinstance(value, Compared):
        raise unsupported(node, "only a constant or a comparison can be negated")
    return Compared(-1, value.shape, value.element, value.right, value.left)


def where(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """mask * a + (1 - mask) * b, for a mask that is known; for a comparison, what `_chosen_by_comparison` can read."""
    name, (mask, a, b) = label(node), (*inputs, None, None, None)[:3]
    if a is None or b is None:
        raise inconsistent(node, "needs three operands")
    if isinstance(mask, Compared):
        # probabilities are nodes of their own from here on: else they would be taken for what they are the Softmax of
        a, b = (graph.branch(name, x) if isinstance(x, Variable) else x for x in (a, b))
        y = _chosen_by_comparison(graph, node, mask, a, b)
        if y is None:
            message = "its condition depends on the input, and it is no maximum, minimum, LeakyRelu or Clip of what is "
            raise unsupported(node, f"{message}compared")
        return graph.broadcast(name, y, np.broadcast_shapes(mask.shape, a.shape, b.shape))
    if not isinstance(mask, Constant) or mask.values.dtype != np.bool_:
        raise unsupported(node, "the condition must be constant, or a comparison")
    terms = []
    for value, chosen in ((a, mask.values), (b, ~mask.values)):
        branch = graph.branch(name, value)
        part = graph.derived(f"{node.output[0]}.mask", Ball(chosen.astype(np.float64)), branch.element)
        terms.append((1, graph.scale(name, branch, part)))
    return graph.total(name, terms)


def _chosen_by_comparison(graph: Builder, node: NodeProto, mask: Compared, a: Value, b: Value) -> Variable | None:
    """a where left >= right, b elsewhere, in the cases in which this is a continuous function; else None.

    Both are equal where left = right, so that it does not matter which branch a tie takes:
    - the branches are what is compared: max(left, right), or min;
    - x is compared with 0, and the branches are x and s x: a LeakyRelu, of x or (mirrored) of -x;
    - x is compared with c, and the branches are c and clip(x, l, h) with l <= c <= h: for x >= c both clip(x, c, h) and
      clip(x, l, h) are min(x, h), and for x <= c the former is c. Mirrored, clip(x, l, c).
    """
    for join, (first, second) in ((maximum, (a, b)), (minimum, (b, a))):
        if _same(first, mask.left) and _same(second, mask.right):
            return typed(Variable, join(graph, node, [mask.left, mask.right]))
    match mask.left, mask.right:
        case Variable() as x, Constant() as limit:
            above, below = a, b
        case Constant() as limit, Variable() as x:
            above, below = b, a
        case _:
            return None
    if limit.param is None or not limit.known or (limit.values != limit.values.flat[0]).any():
        return None
    c, name = float(limit.values.flat[0]), label(node)
    if c == 0:
        upper, lower = _slope(graph, above, x), _slope(graph, below, x)
        if _same(above, x) and lower is not None:
            return _leaky(graph, node, x, lower)
        if _same(below, x) and upper is not None:
            return graph.total(name, [(-1, _leaky(graph, node, graph.total(name, [(-1, x)]), upper))])
    for branch, other, rises in ((above, below, True), (below, above, False)):
        limits = _limits(graph, branch, x)
        if limits is not None and _same(other, limit) and limits[0] <= c <= limits[1]:
            return graph.activation(name, x, "clip", (c, limits[1]) if rises else (limits[0], c))
    return None


def _same(a: Value, b: Value) -> bool:
    """The same computed tensor, or equal numbers without a posterior."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return a.known and b.known and bool((a.values == b.values).all())
    return isinstance(a, Variable) and isinstance(b, Variable) and a.position == b.position


def _slope(graph: Builder, branch: Value, x: Variable) -> Constant | None:
    """s, if the branch is s x."""
    if not isinstance(branch, Variable):
        return None
    match graph.nodes[branch.position]:
        case nodes.Scale(inputs=(source,), weight=weight) if source == x.position:
            values = graph.sources[weight.source].reshape(-1)[weight.index] * weight.factor
            return Constant(weight.source, values, x.element, weight, weight.source in graph.uncertain)
        case nodes.Sum(inputs=(source,), signs=(-1,)) if source == x.position:
            return graph.number("slope", -1.0, x)
    return None


def _leaky(graph: Builder, node: NodeProto, x: Variable, slope: Constant) -> Variable:
    """x for x >= 0, slope * x below."""
    number = graph.exact_number(slope.weight)
    if number is not None and 0 <= number <= 1:
        return graph.activation(label(node), x, "leaky_relu", number)
    return typed(Variable, prelu(graph, node, [x, slope]))


def _limits(graph: Builder, branch: Value, x: Variable) -> Limits | None:
    """(l, h), if the branch is clip(x, l, h)."""
    if not isinstance(branch, Variable):
        return None
    match graph.nodes[branch.position]:
        case nodes.Activation(kind="clip", inputs=(source,), alpha=(low, high)) if source == x.position and low <= high:
            return low, high
        case nodes.Activation(kind="relu", inputs=(source,)) if source == x.position:
            return 0.0, math.inf
    return None
