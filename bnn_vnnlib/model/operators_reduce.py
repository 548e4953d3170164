"""Operators that join entries of a tensor, or several tensors: sums, means, maxima, norms, Softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast as typed

import numpy as np
from onnx import NodeProto

from bnn_vnnlib.model.attributes import attribute, inconsistent, ints_attribute, label, unsupported
from bnn_vnnlib.model.builder import Builder, Computed, Fixed, Softmaxed, Value, composed_softmax
from bnn_vnnlib.model.operators_shape import Operands, known_integers, normal_axis, variable

Join = Callable[[Builder, str, Computed, int], Computed]


def _reduction(join: Join) -> Callable[[Builder, NodeProto, Operands], Value]:
    """A reduction over axes that are an attribute or an input, all if there are none."""

    def converter(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
        """The axes are moved to the end and made one; the join takes that. Without axes each entry is joined alone."""
        x = variable(graph, node, inputs)
        given = ints_attribute(node, "axes", ())
        if len(inputs) > 1 and inputs[1] is not None:
            given = known_integers(node, inputs[1], "the axes")
        axes = sorted({normal_axis(node, axis, len(x.shape)) for axis in given})
        if not axes and not attribute(node, "noop_with_empty_axes", 0):
            axes = list(range(len(x.shape)))
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        perm = (*(axis for axis in range(len(x.shape)) if axis not in axes), *axes)
        lead = tuple(x.shape[axis] for axis in perm[: len(x.shape) - len(axes)])
        name = label(node)
        moved = x if perm == tuple(range(len(x.shape))) else graph.transpose(name, x, perm)
        flat = graph.reshape(name, moved, (*lead, math.prod(x.shape[axis] for axis in axes)))
        y = join(graph, name, flat, len(lead))
        dropped = tuple(size for axis, size in enumerate(kept) if axis not in axes)
        return graph.reshape(name, y, kept if attribute(node, "keepdims", 1) else dropped)

    return converter


def _squares(graph: Builder, name: str, x: Computed, axis: int) -> Computed:
    return graph.sum_over(name, graph.activation(name, x, "power", 2), axis)


def _length(graph: Builder, name: str, x: Computed, axis: int) -> Computed:
    # the Relu changes nothing but bounds that rounding has made negative
    return graph.activation(name, graph.activation(name, _squares(graph, name, x, axis), "relu"), "sqrt")


reduce_sum = _reduction(lambda graph, name, x, axis: graph.sum_over(name, x, axis))
reduce_mean = _reduction(lambda graph, name, x, axis: graph.divided(name, graph.sum_over(name, x, axis), x.shape[axis]))
reduce_sum_square = _reduction(_squares)
reduce_l1 = _reduction(lambda graph, name, x, axis: graph.sum_over(name, graph.activation(name, x, "abs"), axis))
reduce_l2 = _reduction(_length)
reduce_max = _reduction(lambda graph, name, x, axis: graph.maximum(name, x))
reduce_min = _reduction(
    lambda graph, name, x, axis: graph.total(name, [(-1, graph.maximum(name, graph.total(name, [(-1, x)])))])
)


# several tensors -------------------------------------------------------------------------------------------------


def _extreme(sign: int) -> Callable[[Builder, NodeProto, Operands], Value]:
    """Max (sign 1) or Min (-1) of tensors, some of which may be constant."""

    def converter(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
        """The largest (or least) of all computed tensors at once, and then of that and each constant."""
        name = label(node)
        computed = [value for value in inputs if isinstance(value, Computed)]
        constants = [value for value in inputs if isinstance(value, Fixed)]
        if len(computed) + len(constants) < len(inputs) or not computed:
            raise inconsistent(node, "an operand is missing")
        shape = np.broadcast_shapes(*(x.shape for x in computed), *(c.shape for c in constants))
        branches = [graph.broadcast(name, graph.branch(name, value), shape) for value in computed]
        y = branches[0]
        if len(branches) > 1:
            signed = [graph.total(name, [(-1, x)]) if sign < 0 else x for x in branches]
            y = graph.maximum(
                name, graph.joined(name, [graph.reshape(name, x, (*shape, 1)) for x in signed], len(shape))
            )
            y = graph.total(name, [(-1, y)]) if sign < 0 else y
        for constant in constants:
            y = _with_constant(graph, name, y, graph.certain(constant, f"an operand of {name}"), sign)
        return y

    return converter


def _with_constant(graph: Builder, name: str, x: Computed, constant: Fixed, sign: int) -> Computed:
    """max(x, c) = c + relu(x - c), min(x, c) = c - relu(c - x); for one exact number as a clip."""
    if constant.values.size == 1 and constant.weight.slack is None and constant.shape == (1,) * len(constant.shape):
        number = float(constant.values.reshape(()))
        if number == 0 and sign > 0:
            return graph.activation(name, x, "relu")
        return graph.activation(name, x, "clip", (number, math.inf) if sign > 0 else (-math.inf, number))
    difference = graph.shift(name, x if sign > 0 else graph.total(name, [(-1, x)]),
                             graph.negated(constant) if sign > 0 else constant)  # fmt: skip
    positive = graph.activation(name, difference, "relu")
    return graph.shift(name, positive if sign > 0 else graph.total(name, [(-1, positive)]), constant)


maximum, minimum = _extreme(1), _extreme(-1)


def total(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Sum of any number of tensors."""
    branches = [variable(graph, node, inputs, position) for position in range(len(inputs))]
    return graph.total(label(node), [(1, branch) for branch in branches])


def mean(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Mean of several tensors, elementwise."""
    return graph.divided(label(node), typed(Computed, total(graph, node, inputs)), len(inputs))


# Softmax ---------------------------------------------------------------------------------------------------------


def softmax(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Softmax of opset 13 and later: over one axis."""
    x = variable(graph, node, inputs)
    return _softmax(graph, node, x, normal_axis(node, attribute(node, "axis", -1), len(x.shape)))


def softmax_flattening(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Softmax before opset 13: over all axes from `axis` on, together; supported where that is one axis."""
    x = variable(graph, node, inputs)
    return _softmax(graph, node, x, _flattened_axis(node, x))


def _flattened_axis(node: NodeProto, x: Computed) -> int:
    first = normal_axis(node, attribute(node, "axis", 1), len(x.shape))
    wide = [axis for axis in range(first, len(x.shape)) if x.shape[axis] > 1]
    if len(wide) > 1:
        raise unsupported(node, f"a Softmax over several axes together (shape {x.shape} from axis {first})")
    return wide[0] if wide else first


def _softmax(graph: Builder, node: NodeProto, x: Computed, axis: int) -> Value:
    """A softmax over one axis: over all entries it may end the graph, which is treated apart; otherwise it is
    composed.
    """
    if x.shape[axis] == math.prod(x.shape):
        return Softmaxed(x.position, x.shape, x.element, axis)
    return composed_softmax(graph, label(node), x, axis)


def log_softmax(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """LogSoftmax of opset 13 and later: over one axis."""
    x = variable(graph, node, inputs)
    axis = normal_axis(node, attribute(node, "axis", -1), len(x.shape))
    return composed_softmax(graph, label(node), x, axis, logarithm=True)


def log_softmax_flattening(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """LogSoftmax before opset 13: over all axes from `axis` on; supported where that is one axis."""
    x = variable(graph, node, inputs)
    return composed_softmax(graph, label(node), x, _flattened_axis(node, x), logarithm=True)
