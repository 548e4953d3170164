"""Operators that move entries about: each computes the new shape and appends a node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto
from onnx.helper import tensor_dtype_to_np_dtype

from bnn_vnnlib.model.attributes import attribute, inconsistent, ints_attribute, label, raw_attribute, unsupported
from bnn_vnnlib.model.builder import Builder, Constant, Value, Variable

Inputs = Sequence[Value | None]


def variable(graph: Builder, node: NodeProto, inputs: Inputs, position: int = 0) -> Variable:
    """An operand that must be computed by the graph."""
    value = inputs[position] if position < len(inputs) else None
    if value is None:
        raise inconsistent(node, f"operand {position} is missing")
    return graph.branch(label(node), value)


def integers(node: NodeProto, value: Value | None, what: str) -> tuple[int, ...]:
    """An operand that must be a list of integers known beforehand."""
    if not isinstance(value, Constant):
        raise unsupported(node, f"{what} must be constant")
    if value.values.dtype.kind not in "iu" or value.values.ndim > 1:
        raise inconsistent(node, f"{what} must be a list of integers")
    return tuple(int(item) for item in value.values.reshape(-1))


def normal_axis(node: NodeProto, axis: int, rank: int) -> int:
    """Axis counted from the front."""
    if not -rank <= axis < rank:
        raise inconsistent(node, f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def flatten(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Two dimensions: before and from `axis`."""
    x = variable(graph, node, inputs)
    return graph.reshape(label(node), x, flattened(graph, node, x.shape))


def flattened(graph: Builder, node: NodeProto, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape behind a Flatten; a negative axis is allowed from opset 11 on."""
    axis, rank = attribute(node, "axis", 1), len(shape)
    if not (-rank if graph.opset >= 11 else 0) <= axis <= rank:
        raise inconsistent(node, f"axis {axis} is out of range for rank {rank} in opset {graph.opset}")
    axis = axis + rank if axis < 0 else axis
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def reshape(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """New shape; 0 copies a dimension (unless allowzero), -1 takes what is left."""
    x = variable(graph, node, inputs)
    wanted = list(integers(node, inputs[1] if len(inputs) > 1 else None, "the new shape"))
    if not attribute(node, "allowzero", 0):
        if any(size == 0 and axis >= len(x.shape) for axis, size in enumerate(wanted)):
            raise inconsistent(node, f"shape {wanted} copies a dimension that {x.shape} has not")
        wanted = [x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if -1 in wanted:
        rest = math.prod(size for size in wanted if size != -1)
        if wanted.count(-1) > 1 or rest == 0 or math.prod(x.shape) % rest:
            raise inconsistent(node, f"cannot reshape {x.shape} to {wanted}")
        wanted[wanted.index(-1)] = math.prod(x.shape) // rest
    return graph.reshape(label(node), x, tuple(wanted))


def transpose(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Permuted axes; reversed without `perm`."""
    x = variable(graph, node, inputs)
    return graph.transpose(label(node), x, ints_attribute(node, "perm", ()) or tuple(range(len(x.shape)))[::-1])


def _axes(node: NodeProto, inputs: Inputs) -> tuple[int, ...] | None:
    """Attribute before opset 13, input since; None if absent."""
    if len(inputs) > 1 and inputs[1] is not None:
        axes = integers(node, inputs[1], "the axes")
    elif raw_attribute(node, "axes") is not None:
        axes = ints_attribute(node, "axes", ())
    else:
        return None
    if not axes:
        raise unsupported(node, "an empty list of axes, which runtimes read differently (none, or all of size 1)")
    return axes


def squeeze(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Drop axes of size 1."""
    x = variable(graph, node, inputs)
    return graph.reshape(label(node), x, squeezed(node, inputs, x.shape))


def squeezed(node: NodeProto, inputs: Inputs, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape behind a Squeeze."""
    given = _axes(node, inputs)
    axes = {normal_axis(node, axis, len(shape)) for axis in given or ()}
    if given is None:
        axes = {axis for axis, size in enumerate(shape) if size == 1}
    if any(shape[axis] != 1 for axis in axes):
        raise inconsistent(node, f"cannot drop axes {sorted(axes)} of {shape}: they must have size 1")
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def unsqueeze(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Insert axes of size 1."""
    x = variable(graph, node, inputs)
    return graph.reshape(label(node), x, unsqueezed(node, inputs, x.shape))


def unsqueezed(node: NodeProto, inputs: Inputs, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape behind an Unsqueeze; the axes are those of the result."""
    given = _axes(node, inputs) or ()
    rank = len(shape) + len(given)
    axes = {normal_axis(node, axis, rank) for axis in given}
    if len(axes) != len(given):
        raise inconsistent(node, f"axes {given} repeat themselves")
    sizes = iter(shape)
    return tuple(1 if axis in axes else next(sizes) for axis in range(rank))


def tile_repeats(node: NodeProto, inputs: Inputs, rank: int) -> tuple[int, ...]:
    """How often along each axis."""
    repeats = integers(node, inputs[1] if len(inputs) > 1 else None, "the repeats")
    if len(repeats) != rank:
        raise inconsistent(node, f"repeats {repeats} for {rank} axes")
    return repeats


def concat(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Join along `axis`; constants take part as branches."""
    branches = [variable(graph, node, inputs, position) for position in range(len(inputs))]
    shapes = [branch.shape for branch in branches]
    axis = normal_axis(node, attribute(node, "axis", 0), len(shapes[0]))
    rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rests) > 1 or len({len(shape) for shape in shapes}) > 1:
        raise inconsistent(node, f"cannot join shapes {shapes} along axis {axis}")
    return graph.joined(label(node), branches, axis)


def identity(_graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """The value itself."""
    if not inputs or inputs[0] is None:
        raise inconsistent(node, "operand 0 is missing")
    return inputs[0]


def dropout(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """The value itself, at inference."""
    training = inputs[2] if len(inputs) > 2 else None
    if training is not None and not (isinstance(training, Constant) and not training.values.any()):
        message = "runs in training mode (MC dropout): a dropout posterior is not supported yet, and a runtime "
        raise unsupported(node, message + "would silently drop the noise; export the model in eval mode")
    return identity(graph, node, inputs)


def cast(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """The value itself where the new type holds every value of the old one."""
    x, target = variable(graph, node, inputs), cast_type(node)
    if not widens(x.element, target):
        raise unsupported(node, f"a Cast from {x.element} to {target} rounds; only float casts that keep every value")
    return Variable(x.position, x.shape, target)


def cast_type(node: NodeProto) -> np.dtype[Any]:
    """What a Cast makes; `saturate` and `round_mode` are for 8-bit floats, which are not read."""
    if not attribute(node, "saturate", 1) or raw_attribute(node, "round_mode") is not None:
        raise unsupported(node, "saturate = 0 and round_mode are for casts to 8-bit floats only")
    try:
        return np.dtype(tensor_dtype_to_np_dtype(attribute(node, "to", 0)))
    except (KeyError, TypeError, ValueError) as error:
        raise inconsistent(node, "casts to an unknown type") from error


def shape_of(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Shape as a constant: every dimension is known here."""
    whole = identity(graph, node, inputs).shape
    start, end = attribute(node, "start", 0), attribute(node, "end", len(whole))
    return graph.constant(node.output[0], np.array(whole[start:end], np.int64))


def widens(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether float `target` holds every value of float `source`."""
    order = ["float16", "float32", "float64"]
    names = [source.name, target.name]
    return source == target or (set(names) <= set(order) and order.index(names[0]) <= order.index(names[1]))
