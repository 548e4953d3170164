"""Operators with weights, and the poolings that are linear maps with fixed ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from bnn_vnnlib.model import nodes
from bnn_vnnlib.model.attributes import attribute, float_attribute, inconsistent, ints_attribute, label, unsupported
from bnn_vnnlib.model.balls import Ball, add, reciprocal, square_root
from bnn_vnnlib.model.builder import Builder
from bnn_vnnlib.model.operators_shape import Inputs, variable
from bnn_vnnlib.model.values import Constant, Value, Variable

Pads = tuple[int, int, int, int]
Pair = tuple[int, int]


def _weight(node: NodeProto, inputs: Inputs, position: int, what: str) -> Constant:
    value = inputs[position] if position < len(inputs) else None
    if not isinstance(value, Constant):
        raise unsupported(node, f"{what} must be constant")
    return value


def _times(graph: Builder, node: NodeProto, weight: Constant, attribute_name: str, like: Variable) -> Constant:
    """weight * alpha (or beta), the attribute's float32 taken exactly."""
    factor = float_attribute(node, attribute_name, 1.0)
    if factor == 1:
        return weight
    return graph.times(weight, graph.number(f"{node.output[0]}.{attribute_name}", factor, like))


# MatMul, Gemm ----------------------------------------------------------------------------------------------------


def matmul(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """x @ W or W @ x."""
    a, b = (*inputs, None, None)[:2]
    if isinstance(b, Constant):
        return _right(graph, node, variable(graph, node, inputs, 0), b)
    if isinstance(a, Constant):
        return _left(graph, node, a, variable(graph, node, inputs, 1))
    raise unsupported(node, "the product of two computed tensors is not supported; one operand must be constant")


def _plain(node: NodeProto, weight: Constant) -> tuple[Constant, tuple[int, ...]]:
    """Matrix (or vector) of a weight and its leading axes, which must have size 1."""
    lead = weight.shape[:-2]
    if not weight.shape or math.prod(lead) != 1:
        raise unsupported(node, f"a stack of matrices {weight.shape} as the constant is not supported")
    return weight.reshaped(*weight.shape[-2:]), lead


def _right(graph: Builder, node: NodeProto, x: Variable, weight: Constant) -> Value:
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


def _left(graph: Builder, node: NodeProto, weight: Constant, x: Variable) -> Value:
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


def _with_lead(graph: Builder, name: str, y: Variable, lead: tuple[int, ...], core: int) -> Variable:
    """The result has the leading axes of the longer operand; those of the weight have size 1."""
    missing = len(lead) - (len(y.shape) - core)
    return graph.reshape(name, y, (*(1,) * max(missing, 0), *y.shape))


def gemm(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """alpha A' B' + beta C, A or B constant; ' = transposed if asked for."""
    name = label(node)
    a, b = (*inputs, None, None)[:2]
    flip_a, flip_b = attribute(node, "transA", 0), attribute(node, "transB", 0)
    if isinstance(b, Constant):
        x = _matrix(graph, node, inputs, 0, bool(flip_a))
        weight = _matrix_weight(node, b) if flip_b else _matrix_weight(node, b).transposed()
        y = graph.linear(name, x, _times(graph, node, weight, "alpha", x), 1)
    elif isinstance(a, Constant):
        x = _matrix(graph, node, inputs, 1, bool(flip_b))
        weight = _matrix_weight(node, a).transposed() if flip_a else _matrix_weight(node, a)
        y = graph.linear(name, x, _times(graph, node, weight, "alpha", x), 0)
    else:
        raise unsupported(node, "the product of two computed tensors is not supported; A or B must be constant")
    return _plus_c(graph, node, y, inputs[2] if len(inputs) > 2 else None)


def _matrix(graph: Builder, node: NodeProto, inputs: Inputs, position: int, flip: bool) -> Variable:
    x = variable(graph, node, inputs, position)
    if len(x.shape) != 2:
        raise inconsistent(node, f"operand {position} has shape {x.shape}, expected a matrix")
    return graph.transpose(label(node), x, (1, 0)) if flip else x


def _matrix_weight(node: NodeProto, weight: Constant) -> Constant:
    if len(weight.shape) != 2:
        raise inconsistent(node, f"weight {weight.name!r} has shape {weight.shape}, expected a matrix")
    return weight


def _plus_c(graph: Builder, node: NodeProto, y: Variable, c: Value | None) -> Value:
    name = label(node)
    if c is None:
        return y
    if np.broadcast_shapes(c.shape, y.shape) != y.shape:
        raise inconsistent(node, f"C of shape {c.shape} does not broadcast to {y.shape}")
    if isinstance(c, Constant):
        return graph.shift(name, y, _times(graph, node, c, "beta", y))
    c = graph.branch(name, c)
    beta = float_attribute(node, "beta", 1.0)
    if beta != 1:
        c = graph.scale(name, c, graph.number(f"{node.output[0]}.beta", beta, y))
    return graph.total(name, [(1, y), (1, c)])


# windows ---------------------------------------------------------------------------------------------------------


def _image(graph: Builder, node: NodeProto, inputs: Inputs) -> Variable:
    x = variable(graph, node, inputs)
    if len(x.shape) != 4:
        raise unsupported(node, f"input of shape {x.shape}: only 2-d images (batch, channels, height, width)")
    return x


def _window(node: NodeProto, x: Variable, kernel: Pair, dilations: Pair, strides: Pair) -> tuple[Pads, Pair]:
    """Padding and number of windows per axis."""
    extent = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        counts = [-(-size // stride) for size, stride in zip(x.shape[2:], strides, strict=True)]
        spans = zip(counts, strides, extent, x.shape[2:], strict=True)
        total = [max((count - 1) * stride + reach - size, 0) for count, stride, reach, size in spans]
        # the odd row or column goes behind (UPPER) or in front (LOWER)
        front = [(amount + (auto == "SAME_LOWER")) // 2 for amount in total]
        pads = (front[0], front[1], total[0] - front[0], total[1] - front[1])
    elif auto == "VALID":
        pads = (0, 0, 0, 0)
    elif auto == "NOTSET":
        top, left, bottom, right = ints_attribute(node, "pads", (0, 0, 0, 0))
        pads = (top, left, bottom, right)
    else:
        raise inconsistent(node, f"auto_pad {auto!r} is unknown")
    if min(pads) < 0 or min(*kernel, *dilations, *strides) < 1:
        raise unsupported(node, "negative pads, or a kernel, stride or dilation below 1")
    room = [x.shape[2 + axis] + pads[axis] + pads[axis + 2] - extent[axis] for axis in (0, 1)]
    if min(room) < 0:
        raise inconsistent(node, f"the kernel {kernel} is larger than the padded input {x.shape}")
    if attribute(node, "ceil_mode", 0) and any(gap % stride for gap, stride in zip(room, strides, strict=True)):
        raise unsupported(node, "ceil_mode with windows that reach over the edge")
    return pads, (room[0] // strides[0] + 1, room[1] // strides[1] + 1)


def _pair(node: NodeProto, name: str) -> Pair:
    first, second = ints_attribute(node, name, (1, 1))
    return first, second


def conv(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """2-d convolution, bias as a Shift per channel."""
    x, weight = _image(graph, node, inputs), _weight(node, inputs, 1, "the kernel")
    groups = attribute(node, "group", 1)
    if len(weight.shape) != 4 or groups < 1 or weight.shape[1] * groups != x.shape[1] or weight.shape[0] % groups:
        raise inconsistent(node, f"kernel {weight.shape} in {groups} groups does not fit input {x.shape}")
    outputs, _, height, width = weight.shape
    kernel = (height, width)
    if ints_attribute(node, "kernel_shape", kernel) != kernel:
        raise inconsistent(node, f"kernel_shape differs from the kernel's {kernel}")
    strides, dilations = _pair(node, "strides"), _pair(node, "dilations")
    pads, counts = _window(node, x, kernel, dilations, strides)
    shape = (x.shape[0], outputs, *counts)
    maps = nodes.Conv(label(node), (x.position,), shape, weight.weight, strides, pads, dilations, groups)
    y = graph.append(maps, x.element)
    if len(inputs) < 3 or inputs[2] is None:
        return y
    return graph.shift(label(node), y, _per_channel(node, _weight(node, inputs, 2, "the bias"), y))


def _per_channel(node: NodeProto, constant: Constant, x: Variable) -> Constant:
    """(C,) -> (C, 1, ..): broadcasts along axis 1 of x."""
    if constant.shape != (x.shape[1],):
        raise inconsistent(node, f"{constant.name!r} has shape {constant.shape}, expected ({x.shape[1]},)")
    return constant.reshaped(-1, *(1,) * (len(x.shape) - 2))


def average_pool(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Sum of each window (a convolution with ones) divided by its number of entries."""
    x, name = _image(graph, node, inputs), label(node)
    height, width = ints_attribute(node, "kernel_shape", (0, 0))
    strides, dilations = _pair(node, "strides"), _pair(node, "dilations")
    pads, counts = _window(node, x, (height, width), dilations, strides)
    channels = x.shape[1]
    ones = graph.number(f"{node.output[0]}.one", 1.0, x)
    kernel = ones.moved(lambda array: np.broadcast_to(array, (channels, 1, height, width)))
    shape = (x.shape[0], channels, *counts)
    sums = nodes.Conv(name, (x.position,), shape, kernel.weight, strides, pads, dilations, channels)
    y = graph.append(sums, x.element)
    size = np.array(float(height * width))
    if not attribute(node, "count_include_pad", 0) and any(pads):
        size = np.multiply.outer(
            *(
                _inside(
                    x.shape[2 + axis], pads[axis], counts[axis], strides[axis], (height, width)[axis], dilations[axis]
                )
                for axis in (0, 1)
            )
        )
    if not size.all():
        raise unsupported(node, "a window that lies in the padding entirely")
    return graph.scale(name, y, graph.derived(f"{node.output[0]}.share", reciprocal(Ball(size)), x.element))


def _inside(length: int, before: int, count: int, stride: int, size: int, dilation: int) -> NDArray[np.float64]:
    """How many entries of each window along one axis lie in the input."""
    rows = np.arange(count)[:, None] * stride - before + np.arange(size) * dilation
    inside: NDArray[np.float64] = ((rows >= 0) & (rows < length)).sum(1).astype(np.float64)
    return inside


def global_average_pool(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Mean over all axes behind the channels."""
    x, name = variable(graph, node, inputs), label(node)
    if len(x.shape) < 3:
        raise inconsistent(node, f"input of shape {x.shape} has no axis to average over")
    size = math.prod(x.shape[2:])
    flat = graph.reshape(name, x, (*x.shape[:2], size))
    ones = graph.number(f"{node.output[0]}.one", 1.0, x).moved(lambda array: np.broadcast_to(array, (1, size)))
    total = graph.linear(name, flat, ones, 2)
    share = graph.derived(f"{node.output[0]}.share", reciprocal(Ball(np.array(float(size)))), x.element)
    mean = graph.scale(name, total, share)
    return graph.reshape(name, mean, (*x.shape[:2], *(1,) * (len(x.shape) - 2)))


# BatchNormalization ----------------------------------------------------------------------------------------------


def batch_normalization(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, per channel.

    In four nodes, so that gamma and beta may carry a posterior; the running statistics may not.
    """
    x, name = variable(graph, node, inputs), label(node)
    if attribute(node, "training_mode", 0) or not attribute(node, "spatial", 1):
        raise unsupported(node, "training_mode (or spatial = 0); export the model in eval mode")
    if len(x.shape) < 2:
        raise unsupported(node, f"input of shape {x.shape} has no channel axis")
    names = ("scale", "bias", "running mean", "running variance")
    parts = [_per_channel(node, _weight(node, inputs, i + 1, f"the {what}"), x) for i, what in enumerate(names)]
    gamma, beta = parts[:2]
    mean = graph.certain(parts[2], f"the running mean of {name}")
    variance = graph.certain(parts[3], f"the running variance of {name}")
    epsilon = Ball(np.array(float_attribute(node, "epsilon", 1e-5)))
    total = add(variance.ball, epsilon)
    if not (total.mid > 0).all():
        raise inconsistent(node, f"running variance {variance.name!r} plus epsilon is not positive")
    inverse = graph.derived(f"{node.output[0]}.inverse_sd", reciprocal(square_root(total)), x.element)
    y = graph.shift(name, x, graph.negated(mean))
    y = graph.scale(name, y, inverse)
    return graph.shift(name, graph.scale(name, y, gamma), beta)
