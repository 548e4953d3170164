"""Matrix products, normalisations, and Einsum of two operands where it is a matrix product, up to transpositions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from bnn_vnnlib.model.attributes import attribute, float_attribute, inconsistent, label, unsupported
from bnn_vnnlib.model.balls import Ball, ball_sum, reciprocal, square_root
from bnn_vnnlib.model.builder import Builder, Computed, Fixed, Value
from bnn_vnnlib.model.operators_shape import Operands, normal_axis, variable
from bnn_vnnlib.network import nodes


def constant_operand(node: NodeProto, inputs: Operands, position: int, what: str) -> Fixed:
    value = inputs[position] if position < len(inputs) else None
    if not isinstance(value, Fixed):
        raise unsupported(node, f"{what} must be constant")
    return value


def _times(graph: Builder, node: NodeProto, weight: Fixed, attribute_name: str, like: Computed) -> Fixed:
    """weight * alpha (or beta), the attribute's float32 taken exactly."""
    factor = float_attribute(node, attribute_name, 1.0)
    if factor == 1:
        return weight
    return graph.times(weight, graph.number(f"{node.output[0]}.{attribute_name}", factor, like))


# MatMul, Gemm ----------------------------------------------------------------------------------------------------


def matmul(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """x @ W or W @ x."""
    a, b = (*inputs, None, None)[:2]
    if isinstance(b, Fixed):
        return _right(graph, node, variable(graph, node, inputs, 0), b)
    if isinstance(a, Fixed):
        return _left(graph, node, a, variable(graph, node, inputs, 1))
    return _contracted(graph, node, variable(graph, node, inputs, 0), variable(graph, node, inputs, 1))


def _contracted(graph: Builder, node: NodeProto, a: Computed, b: Computed) -> Computed:
    """a @ b of two computed tensors: all products, then their sums."""
    name = label(node)
    if not a.shape or not b.shape:
        raise inconsistent(node, "a scalar cannot be multiplied by a matrix")
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if left[-1] != right[-2]:
        raise inconsistent(node, f"{a.shape} and {b.shape} cannot be multiplied")
    x = graph.reshape(name, a, (*left, 1))
    y = graph.reshape(name, b, (*right[:-2], 1, *right[-2:]))
    product = graph.product(name, x, y)  # (.., m, k, n)
    z = graph.sum_over(name, product, len(product.shape) - 2)
    rows = left[-2:-1] if len(a.shape) > 1 else ()
    columns = right[-1:] if len(b.shape) > 1 else ()
    return graph.reshape(name, z, (*z.shape[:-3], *rows, *columns))


def _plain(node: NodeProto, weight: Fixed) -> tuple[Fixed, tuple[int, ...]]:
    """Matrix (or vector) of a weight and its leading axes, which must have size 1."""
    lead = weight.shape[:-2]
    if not weight.shape or math.prod(lead) != 1:
        raise unsupported(node, f"a stack of matrices {weight.shape} as the constant is not supported")
    return weight.reshaped(*weight.shape[-2:]), lead


def _right(graph: Builder, node: NodeProto, x: Computed, weight: Fixed) -> Value:
    """(.., n) @ (n, m) or (n,)."""
    name = label(node)
    weight, lead = _plain(node, weight)
    if not x.shape:
        raise inconsistent(node, "a scalar cannot be multiplied by a matrix")
    axis = len(x.shape) - 1
    if len(weight.shape) == 1:
        y = graph.linear(name, x, weight.reshaped(1, -1), axis)
        return graph.reshape(name, y, y.shape[:-1])
    y = graph.linear(name, x, weight.transposed(), axis)
    return _with_lead(graph, name, y, lead, 1 if len(x.shape) == 1 else 2)


def _left(graph: Builder, node: NodeProto, weight: Fixed, x: Computed) -> Value:
    """(m, n) or (n,) @ (n,) or (.., n, p)."""
    name = label(node)
    weight, lead = _plain(node, weight)
    if not x.shape:
        raise inconsistent(node, "a matrix cannot be multiplied by a scalar")
    axis = max(len(x.shape) - 2, 0)
    if len(weight.shape) == 1:
        y = graph.linear(name, x, weight.reshaped(1, -1), axis)
        return graph.reshape(name, y, (*y.shape[:axis], *y.shape[axis + 1 :]))
    y = graph.linear(name, x, weight, axis)
    return _with_lead(graph, name, y, lead, 1 if len(x.shape) == 1 else 2)


def _with_lead(graph: Builder, name: str, y: Computed, lead: tuple[int, ...], core: int) -> Computed:
    """The result has the leading axes of the longer operand; those of the weight have size 1."""
    missing = len(lead) - (len(y.shape) - core)
    return graph.reshape(name, y, (*(1,) * max(missing, 0), *y.shape))


def gemm(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """alpha A' B' + beta C, A or B constant; ' = transposed if asked for."""
    name = label(node)
    a, b = (*inputs, None, None)[:2]
    flip_a, flip_b = attribute(node, "transA", 0), attribute(node, "transB", 0)
    if isinstance(b, Fixed):
        x = _matrix(graph, node, inputs, 0, bool(flip_a))
        weight = _matrix_weight(node, b) if flip_b else _matrix_weight(node, b).transposed()
        y = graph.linear(name, x, _times(graph, node, weight, "alpha", x), 1)
    elif isinstance(a, Fixed):
        x = _matrix(graph, node, inputs, 1, bool(flip_b))
        weight = _matrix_weight(node, a).transposed() if flip_a else _matrix_weight(node, a)
        y = graph.linear(name, x, _times(graph, node, weight, "alpha", x), 0)
    else:
        x, z = _matrix(graph, node, inputs, 0, bool(flip_a)), _matrix(graph, node, inputs, 1, bool(flip_b))
        y = _contracted(graph, node, x, z)
        alpha = float_attribute(node, "alpha", 1.0)
        y = y if alpha == 1 else graph.scale(name, y, graph.number(f"{node.output[0]}.alpha", alpha, y))
    return _plus_c(graph, node, y, inputs[2] if len(inputs) > 2 else None)


def _matrix(graph: Builder, node: NodeProto, inputs: Operands, position: int, flip: bool) -> Computed:
    x = variable(graph, node, inputs, position)
    if len(x.shape) != 2:
        raise inconsistent(node, f"operand {position} has shape {x.shape}, expected a matrix")
    return graph.transpose(label(node), x, (1, 0)) if flip else x


def _matrix_weight(node: NodeProto, weight: Fixed) -> Fixed:
    if len(weight.shape) != 2:
        raise inconsistent(node, f"weight {weight.name!r} has shape {weight.shape}, expected a matrix")
    return weight


def _plus_c(graph: Builder, node: NodeProto, y: Computed, c: Value | None) -> Value:
    """y + beta C of a Gemm; y itself without C."""
    name = label(node)
    if c is None:
        return y
    if np.broadcast_shapes(c.shape, y.shape) != y.shape:
        raise inconsistent(node, f"C of shape {c.shape} does not broadcast to {y.shape}")
    if isinstance(c, Fixed):
        return graph.shift(name, y, _times(graph, node, c, "beta", y))
    c = graph.branch(name, c)
    beta = float_attribute(node, "beta", 1.0)
    if beta != 1:
        c = graph.scale(name, c, graph.number(f"{node.output[0]}.beta", beta, y))
    return graph.total(name, [(1, y), (1, c)])


def per_channel(node: NodeProto, constant: Fixed, x: Computed) -> Fixed:
    """(C,) -> (C, 1, ..): broadcasts along axis 1 of x."""
    if constant.shape != (x.shape[1],):
        raise inconsistent(node, f"{constant.name!r} has shape {constant.shape}, expected ({x.shape[1]},)")
    return constant.reshaped(-1, *(1,) * (len(x.shape) - 2))


# BatchNormalization ----------------------------------------------------------------------------------------------


def batch_normalization(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, per channel.

    In four nodes, so that gamma and beta may carry a posterior. Samples may differ in the running statistics, too (an
    ensemble): 1 / sqrt(variance + epsilon) is then computed by nodes of its own, from the variance of each sample. No
    other posterior may be on them: a Gaussian variance is negative with some probability.
    """
    x, name = variable(graph, node, inputs), label(node)
    if attribute(node, "training_mode", 0) or not attribute(node, "spatial", 1):
        raise unsupported(node, "training_mode (or spatial = 0); export the model in eval mode")
    if len(x.shape) < 2:
        raise unsupported(node, f"input of shape {x.shape} has no channel axis")
    names = ("scale", "bias", "running mean", "running variance")
    parts = [per_channel(node, constant_operand(node, inputs, i + 1, f"the {what}"), x) for i, what in enumerate(names)]
    gamma, beta, mean, variance = parts
    if not graph.sampled:
        graph.certain(mean, f"the running mean of {name}")
        graph.certain(variance, f"the running variance of {name}")
    epsilon = Ball(np.array(float_attribute(node, "epsilon", 1e-5)))
    total = ball_sum(variance.ball, epsilon)
    if not (total.mid > 0).all():
        raise inconsistent(node, f"running variance {variance.name!r} plus epsilon is not positive")
    y = graph.shift(name, x, graph.negated(mean))
    if variance.uncertain:
        own = graph.append(nodes.Constant(name, (), variance.shape, variance.weight), x.element)
        own = graph.shift(name, own, graph.derived(f"{node.output[0]}.epsilon", epsilon, x.element))
        y = graph.product(name, y, graph.activation(name, graph.activation(name, own, "sqrt"), "reciprocal"))
    else:
        inverse = graph.derived(f"{node.output[0]}.inverse_sd", reciprocal(square_root(total)), x.element)
        y = graph.scale(name, y, inverse)
    return graph.shift(name, graph.scale(name, y, gamma), beta)


def layer_normalization(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on, scale and bias constant."""
    x, name = variable(graph, node, inputs), label(node)
    first = normal_axis(node, attribute(node, "axis", -1), len(x.shape))
    flat = graph.reshape(name, x, (*x.shape[:first], math.prod(x.shape[first:])))
    size = flat.shape[-1]
    mean = graph.divided(name, graph.sum_over(name, flat, first), size)
    centred = graph.total(name, [(1, flat), (-1, mean)])
    y = graph.reshape(name, _normalised(graph, node, centred), x.shape)
    y = graph.scale(name, y, constant_operand(node, inputs, 1, "the scale"))
    if len(inputs) > 2 and inputs[2] is not None:
        y = graph.shift(name, y, constant_operand(node, inputs, 2, "the bias"))
    return y


def _normalised(graph: Builder, node: NodeProto, centred: Computed) -> Computed:
    """x / sqrt(mean of x^2 + epsilon) over the last axis.

    Of n entries the mean is at least x_i^2 / n, so that none of the quotients exceeds sqrt(n), whatever the weights in
    front: the Clip changes nothing but bounds.
    """
    name, axis = label(node), len(centred.shape) - 1
    epsilon = float_attribute(node, "epsilon", 1e-5)
    if epsilon <= 0:
        raise unsupported(node, f"epsilon {epsilon}: must be positive")
    squares = graph.activation(name, centred, "power", 2)
    variance = graph.divided(name, graph.sum_over(name, squares, axis), centred.shape[axis])
    # the Relu changes nothing but bounds that rounding has made negative
    variance = graph.activation(name, variance, "relu")
    variance = graph.shift(name, variance, graph.number(f"{node.output[0]}.epsilon", epsilon, centred))
    inverse = graph.activation(name, graph.activation(name, variance, "sqrt"), "reciprocal")
    most = math.sqrt(centred.shape[axis]) * (1 + 2.0**-20)  # beyond what rounding may add to an evaluation
    return graph.activation(name, graph.product(name, centred, inverse), "clip", (-most, most))


def instance_normalization(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes behind the channels; both per channel."""
    x, name = variable(graph, node, inputs), label(node)
    if len(x.shape) < 3:
        raise inconsistent(node, f"input of shape {x.shape}: expected (batch, channels, ..)")
    flat = graph.reshape(name, x, (*x.shape[:2], math.prod(x.shape[2:])))
    mean = graph.divided(name, graph.sum_over(name, flat, 2), flat.shape[2])
    y = graph.reshape(name, _normalised(graph, node, graph.total(name, [(1, flat), (-1, mean)])), x.shape)
    scale, bias = (per_channel(node, constant_operand(node, inputs, i, "scale and bias"), x) for i in (1, 2))
    return graph.shift(name, graph.scale(name, y, scale), bias)


def rms_normalization(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """x / sqrt(mean of x^2 + epsilon) * scale over the axes from `axis` on."""
    x, name = variable(graph, node, inputs), label(node)
    first = normal_axis(node, attribute(node, "axis", -1), len(x.shape))
    flat = graph.reshape(name, x, (*x.shape[:first], math.prod(x.shape[first:])))
    y = graph.reshape(name, _normalised(graph, node, flat), x.shape)
    return graph.scale(name, y, constant_operand(node, inputs, 1, "the scale"))


# Einsum --------------------------------------------------------------------------------------------------

_TERM = r"([A-Za-z]*(?:\.\.\.)?[A-Za-z]*)"
_EQUATION = re.compile(rf"{_TERM},{_TERM}(?:->{_TERM})?")

Axes = tuple[str, ...]
"""Names of a tensor's axes, one for each."""


def einsum(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Sum over the axes that both operands have and the result has not.

    The axes are sorted into common ones (both operands and the result), left and right ones (one operand and the
    result) and summed ones (both operands): with these four groups made one axis each, the result is
    y[c, l, r] = sum_s a[c, l, s] b[c, r, s]. A constant operand is only moved, so that its posterior follows.
    """
    operands: list[Value] = [
        value if isinstance(value, Fixed) else variable(graph, node, inputs, i) for i, value in enumerate(inputs)
    ]
    given, result = _axes(node, [operand.shape for operand in operands])
    sizes = _sizes(node, operands, given)
    if isinstance(operands[0], Fixed):  # b a, then: the sum is symmetric
        operands, given = operands[::-1], given[::-1]
    (a, b), (of_a, of_b) = operands, given
    common = [axis for axis in of_a if axis in of_b and axis in result]
    summed = [axis for axis in of_a if axis in of_b and axis not in result]
    left, right = ([axis for axis in own if axis not in (*common, *summed)] for own in (of_a, of_b))
    if not set(left + right) <= set(result):
        raise unsupported(node, "sums over an axis that only one operand has; only a matrix product is supported")
    name, counts = label(node), [math.prod(sizes[axis] for axis in group) for group in (common, left, right, summed)]
    c, l, r, s = counts  # noqa: E741
    x = _grouped(graph, name, variable(graph, node, [a]), of_a, common + left + summed, (c, l, s))
    if isinstance(b, Fixed) and not common:
        weight = b.moved(lambda array: array.transpose([of_b.index(axis) for axis in right + summed]).reshape(r, s))
        y = graph.linear(name, x, weight, 2)
    elif isinstance(b, Fixed) and not right and not summed:
        weight = b.moved(lambda array: array.transpose([of_b.index(axis) for axis in common]).reshape(c, 1, 1))
        y = graph.scale(name, x, weight)
    elif isinstance(b, Fixed):
        raise unsupported(node, "a stack of matrices as the constant is not supported")
    else:
        y = _contracted(graph, node, x, _grouped(graph, name, b, of_b, common + summed + right, (c, s, r)))
    y = graph.reshape(name, y, tuple(sizes[axis] for axis in common + left + right))
    perm = tuple((common + left + right).index(axis) for axis in result)
    return y if perm == tuple(range(len(perm))) else graph.transpose(name, y, perm)


def _grouped(
    graph: Builder, name: str, x: Computed, axes: Axes, order: Sequence[str], shape: tuple[int, ...]
) -> Computed:
    perm = tuple(axes.index(axis) for axis in order)
    moved = x if perm == tuple(range(len(perm))) else graph.transpose(name, x, perm)
    return graph.reshape(name, moved, shape)


def _axes(node: NodeProto, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Axes], Axes]:
    """Names of the axes of both operands and of the result; those of an ellipsis are counted from its end."""
    equation = attribute(node, "equation", "").replace(" ", "")
    found = _EQUATION.fullmatch(equation)
    if found is None or len(shapes) != 2:
        raise unsupported(node, f"equation {equation!r}: only products of two operands are supported")
    given = []
    for term, shape in zip(found.groups()[:2], shapes, strict=True):
        letters, hidden = term.replace("...", ""), "..." in term
        rank = len(shape) - len(letters)
        if rank < 0 or (rank and not hidden):
            raise inconsistent(
                node, f"equation {equation!r} does not fit operands of shape {shapes[0]} and {shapes[1]}"
            )
        before = term.index("...") if hidden else len(letters)
        given.append((*letters[:before], *(f"...{i}" for i in reversed(range(rank))), *letters[before:]))
    dots = max(([axis for axis in axes if "." in axis] for axes in given), key=len)
    letters = [axis for axes in given for axis in axes if "." not in axis]
    term = found[3]
    if dots and term is not None and "..." not in term:
        raise inconsistent(node, f"equation {equation!r}: the axes of the ellipsis are missing in the result")
    if term is None:
        result = (*dots, *sorted(axis for axis in set(letters) if letters.count(axis) == 1))
    else:
        before = term.index("...") if "..." in term else len(term)
        result = (*term[:before], *(dots if "..." in term else ()), *term[before:].replace("...", ""))
    repeated = any(len(set(axes)) < len(axes) for axes in (*given, result))
    if repeated or not set(result) <= {axis for axes in given for axis in axes}:
        raise unsupported(node, f"equation {equation!r}: an axis that is repeated (a diagonal) or is in no operand")
    return given, result


def _sizes(node: NodeProto, operands: Sequence[Value], given: Sequence[Axes]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for operand, axes in zip(operands, given, strict=True):
        for axis, size in zip(axes, operand.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise unsupported(node, f"axis {axis!r} has the sizes {sizes[axis]} and {size}; they must be equal")
    return sizes
