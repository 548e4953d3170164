"""Operators that move entries about.

1. Each computes the new shape and appends a node.
2. Those that pick, repeat, drop or pad entries of a computed tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto
from onnx.helper import tensor_dtype_to_np_dtype

from bnn_vnnlib.model.attributes import (
    attribute,
    evaluate_node,
    inconsistent,
    ints_attribute,
    label,
    raw_attribute,
    unsupported,
)
from bnn_vnnlib.model.balls import Ball
from bnn_vnnlib.model.builder import MAX_ENTRIES, Builder, Computed, Fixed, Value

# 1. Shapes

Operands = Sequence[Value | None]


def variable(graph: Builder, node: NodeProto, inputs: Operands, position: int = 0) -> Computed:
    """An operand that must be computed by the graph."""
    value = inputs[position] if position < len(inputs) else None
    if value is None:
        raise inconsistent(node, f"operand {position} is missing")
    return graph.branch(label(node), value)


def known_integers(node: NodeProto, value: Value | None, what: str) -> tuple[int, ...]:
    """An operand that must be a list of integers known beforehand."""
    if not isinstance(value, Fixed):
        raise unsupported(node, f"{what} must be constant")
    if value.values.dtype.kind not in "iu" or value.values.ndim > 1:
        raise inconsistent(node, f"{what} must be a list of integers")
    return tuple(int(item) for item in value.values.reshape(-1))


def normal_axis(node: NodeProto, axis: int, rank: int) -> int:
    """Axis counted from the front."""
    if not -rank <= axis < rank:
        raise inconsistent(node, f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def flatten(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Flatten: two dimensions, the axes before `axis` and those from it on."""
    x = variable(graph, node, inputs)
    return graph.reshape(label(node), x, flattened(graph, node, x.shape))


def flattened(graph: Builder, node: NodeProto, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape behind a Flatten; a negative axis is allowed from opset 11 on."""
    axis, rank = attribute(node, "axis", 1), len(shape)
    if not (-rank if graph.opset >= 11 else 0) <= axis <= rank:
        raise inconsistent(node, f"axis {axis} is out of range for rank {rank} in opset {graph.opset}")
    axis = axis + rank if axis < 0 else axis
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def reshape(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """New shape; 0 copies a dimension (unless allowzero), -1 takes what is left."""
    x = variable(graph, node, inputs)
    wanted = list(known_integers(node, inputs[1] if len(inputs) > 1 else None, "the new shape"))
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


def transpose(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Permuted axes; reversed without `perm`."""
    x = variable(graph, node, inputs)
    return graph.transpose(label(node), x, ints_attribute(node, "perm", ()) or tuple(range(len(x.shape)))[::-1])


def _axes(node: NodeProto, inputs: Operands) -> tuple[int, ...] | None:
    """The axes of a node: an attribute before opset 13, an input since; None if absent."""
    if len(inputs) > 1 and inputs[1] is not None:
        axes = known_integers(node, inputs[1], "the axes")
    elif raw_attribute(node, "axes") is not None:
        axes = ints_attribute(node, "axes", ())
    else:
        return None
    if not axes:
        raise unsupported(node, "an empty list of axes, which runtimes read differently (none, or all of size 1)")
    return axes


def squeeze(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Drop axes of size 1."""
    x = variable(graph, node, inputs)
    return graph.reshape(label(node), x, squeezed(node, inputs, x.shape))


def squeezed(node: NodeProto, inputs: Operands, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape behind a Squeeze."""
    given = _axes(node, inputs)
    axes = {normal_axis(node, axis, len(shape)) for axis in given or ()}
    if given is None:
        axes = {axis for axis, size in enumerate(shape) if size == 1}
    if any(shape[axis] != 1 for axis in axes):
        raise inconsistent(node, f"cannot drop axes {sorted(axes)} of {shape}: they must have size 1")
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def unsqueeze(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Insert axes of size 1."""
    x = variable(graph, node, inputs)
    return graph.reshape(label(node), x, unsqueezed(node, inputs, x.shape))


def unsqueezed(node: NodeProto, inputs: Operands, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape behind an Unsqueeze; the axes are those of the result."""
    given = _axes(node, inputs) or ()
    rank = len(shape) + len(given)
    axes = {normal_axis(node, axis, rank) for axis in given}
    if len(axes) != len(given):
        raise inconsistent(node, f"axes {given} repeat themselves")
    sizes = iter(shape)
    return tuple(1 if axis in axes else next(sizes) for axis in range(rank))


def tile_repeats(node: NodeProto, inputs: Operands, rank: int) -> tuple[int, ...]:
    """How often along each axis."""
    repeats = known_integers(node, inputs[1] if len(inputs) > 1 else None, "the repeats")
    if len(repeats) != rank:
        raise inconsistent(node, f"repeats {repeats} for {rank} axes")
    return repeats


def concat(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Join along `axis`; constants take part as branches."""
    branches = [variable(graph, node, inputs, position) for position in range(len(inputs))]
    shapes = [branch.shape for branch in branches]
    axis = normal_axis(node, attribute(node, "axis", 0), len(shapes[0]))
    rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rests) > 1 or len({len(shape) for shape in shapes}) > 1:
        raise inconsistent(node, f"cannot join shapes {shapes} along axis {axis}")
    return graph.joined(label(node), branches, axis)


def identity(_graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Identity: the value itself."""
    if not inputs or inputs[0] is None:
        raise inconsistent(node, "operand 0 is missing")
    return inputs[0]


def dropout(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Dropout: the value itself, at inference."""
    training = inputs[2] if len(inputs) > 2 else None
    if training is not None and not (isinstance(training, Fixed) and not training.values.any()):
        message = (
            "runs in training mode (MC dropout) on what does not depend on the input, or in a branch; only masks of "
        )
        raise unsupported(node, message + "activations are read as a posterior; export the model in eval mode")
    return identity(graph, node, inputs)


def cast(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """The value itself where the new type holds every value of the old one."""
    x, target = variable(graph, node, inputs), cast_type(node)
    if not widens(x.element, target):
        raise unsupported(node, f"a Cast from {x.element} to {target} rounds; only float casts that keep every value")
    return Computed(x.position, x.shape, target)


def cast_type(node: NodeProto) -> np.dtype[Any]:
    """What a Cast makes; `saturate` and `round_mode` are for 8-bit floats, which are not read."""
    if not attribute(node, "saturate", 1) or raw_attribute(node, "round_mode") is not None:
        raise unsupported(node, "saturate = 0 and round_mode are for casts to 8-bit floats only")
    try:
        return np.dtype(tensor_dtype_to_np_dtype(attribute(node, "to", 0)))
    except (KeyError, TypeError, ValueError) as error:
        raise inconsistent(node, "casts to an unknown type") from error


def shape_of(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Shape as a constant: every dimension is known here."""
    whole = identity(graph, node, inputs).shape
    start, end = attribute(node, "start", 0), attribute(node, "end", len(whole))
    return graph.constant(node.output[0], np.array(whole[start:end], np.int64))


def widens(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether float `target` holds every value of float `source`."""
    order = ["float16", "float32", "float64"]
    names = [source.name, target.name]
    return source == target or (set(names) <= set(order) and order.index(names[0]) <= order.index(names[1]))


# 2. Entries


def positions_of(x: Computed) -> NDArray[np.int64]:
    """The flat index of each entry."""
    return np.arange(math.prod(x.shape), dtype=np.int64).reshape(x.shape)


def moved(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Slice, Gather and their like: what the operator does to the indices of the entries, it does to the entries."""
    x = variable(graph, node, inputs)
    others = [_values(node, value) for value in inputs[1:]]
    _refuse_large(node, x, others)
    return graph.select(label(node), x, evaluate_node(node, graph.opset, [positions_of(x), *others]))


def gather_elements(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """The index says for each entry of the result where along `axis` it comes from; it may be smaller elsewhere."""
    x = variable(graph, node, inputs)
    index = _values(node, inputs[1] if len(inputs) > 1 else None)
    axis = normal_axis(node, attribute(node, "axis", 0), len(x.shape))
    if index is None or index.ndim != len(x.shape):
        raise inconsistent(node, f"needs an index of {len(x.shape)} axes")
    extent = tuple(slice(None if i == axis else size) for i, size in enumerate(index.shape))
    lines = positions_of(x)[extent]
    size = x.shape[axis]
    if np.delete(lines.shape, axis).tolist() != np.delete(index.shape, axis).tolist():
        raise inconsistent(node, f"an index of shape {index.shape} is larger than the data {x.shape}")
    if index.size > MAX_ENTRIES or (index.size and not (-size <= index.min() and index.max() < size)):
        raise inconsistent(node, f"its index must lie in {-size} .. {size - 1}")
    return graph.select(label(node), x, np.take_along_axis(lines, index.astype(np.int64) % size, axis))


def _refuse_large(node: NodeProto, x: Computed, others: list[NDArray[Any] | None]) -> None:
    """Refuse a Gather whose result is too large: only by gathering may a small file ask for that."""
    index = others[0] if others else None
    if index is None or not node.op_type.startswith("Gather"):
        return
    size = index.size
    if node.op_type == "Gather":
        axis = normal_axis(node, attribute(node, "axis", 0), len(x.shape))
        size = index.size * (math.prod(x.shape) // x.shape[axis])
    elif node.op_type == "GatherND" and index.ndim:
        size = index.size // max(index.shape[-1], 1) * math.prod(x.shape[attribute(node, "batch_dims", 0) :])
    if size > MAX_ENTRIES:
        raise unsupported(node, f"picks {size} entries")


def _values(node: NodeProto, value: Value | None) -> NDArray[Any] | None:
    if isinstance(value, Computed):
        raise unsupported(node, "its indices (or sizes) must be constant")
    return None if value is None else value.values


def expand(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """numpy broadcasting to the common shape."""
    x = variable(graph, node, inputs)
    wanted = known_integers(node, inputs[1] if len(inputs) > 1 else None, "the new shape")
    if math.prod(wanted) * math.prod(x.shape) > MAX_ENTRIES:
        raise inconsistent(node, f"would make a tensor of shape {wanted}")
    return graph.broadcast(label(node), x, np.broadcast_shapes(x.shape, wanted))


def tile(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Tile: copies along axes, as numpy.tile."""
    x = variable(graph, node, inputs)
    repeats = tile_repeats(node, inputs, len(x.shape))
    if min(repeats, default=1) < 1 or math.prod(repeats) * math.prod(x.shape) > MAX_ENTRIES:
        raise inconsistent(node, f"repeats {repeats} times")
    return graph.select(label(node), x, np.tile(positions_of(x), repeats))


def split(graph: Builder, node: NodeProto, inputs: Operands) -> tuple[Value, ...]:
    """Parts along an axis, of given or of equal sizes (the last may be smaller)."""
    value = inputs[0] if inputs else None
    if not isinstance(value, Fixed):
        value = variable(graph, node, inputs)
    axis = normal_axis(node, attribute(node, "axis", 0), len(value.shape))
    size, count = value.shape[axis], len(node.output)
    sizes = ints_attribute(node, "split", ())
    if len(inputs) > 1 and inputs[1] is not None:
        sizes = known_integers(node, inputs[1], "the sizes")
    if not sizes:
        each = -(-size // count)
        if graph.opset < 18 and size % count:
            raise inconsistent(node, f"cannot split axis {axis} of {value.shape} into {count} equal parts")
        sizes = tuple(min(each, size - i * each) for i in range(count))
    if sum(sizes) != size or min(sizes) < 1 or len(sizes) != count:
        raise inconsistent(node, f"cannot split axis {axis} of {value.shape} into {sizes} for {count} outputs")
    cuts = np.cumsum(sizes)[:-1].tolist()
    if isinstance(value, Fixed):
        return tuple(value.moved(partial(_part, cuts=cuts, axis=axis, i=i)) for i in range(count))
    parts = np.split(positions_of(value), cuts, axis)
    return tuple(graph.select(label(node), value, part) for part in parts)


def _part(array: NDArray[Any], cuts: list[int], axis: int, i: int) -> NDArray[Any]:
    return np.split(array, cuts, axis)[i]


def pad(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Pad in the modes constant, edge, reflect and wrap; negative pads cut off."""
    x, name = variable(graph, node, inputs), label(node)
    amounts, fill, axes = _pads(node, inputs, len(x.shape))
    mode = attribute(node, "mode", "constant")
    if mode != "constant" and min(amounts, default=0) < 0:
        raise unsupported(node, f"mode {mode} with negative pads, which runtimes read differently; use a Slice")
    widths = [(0, 0)] * len(x.shape)
    for axis, before, after in zip(axes, amounts[: len(axes)], amounts[len(axes) :], strict=True):
        widths[axis] = before, after
    grown = [(max(before, 0), max(after, 0)) for before, after in widths]
    if math.prod(size + a + b for size, (a, b) in zip(x.shape, grown, strict=True)) > MAX_ENTRIES:
        raise inconsistent(node, f"pads {widths}")
    index = positions_of(x)
    if mode == "reflect" and any(max(pair) >= size for pair, size in zip(widths, x.shape, strict=True)):
        raise unsupported(node, f"reflects more entries than {x.shape} has behind its first or before its last")
    if mode == "constant":
        index = np.pad(index, grown, constant_values=-1)
    elif mode in ("edge", "reflect", "wrap"):
        index = np.pad(index, grown, mode=mode)  # type: ignore[call-overload]
    else:
        raise inconsistent(node, f"mode {mode!r} is unknown")
    cuts = zip(widths, index.shape, strict=True)
    index = index[tuple(slice(max(-before, 0), size - max(-after, 0)) for (before, after), size in cuts)]
    y = graph.select(name, x, index)
    if fill == 0 or (index >= 0).all():
        return y
    border = Ball(np.where(index < 0, fill, 0.0))
    return graph.shift(name, y, graph.derived(f"{node.output[0]}.border", border, x.element))


def _pads(node: NodeProto, inputs: Operands, rank: int) -> tuple[tuple[int, ...], float, list[int]]:
    """Pads, value and axes: attributes before opset 11, inputs since."""
    given = (*inputs, None, None, None)
    if raw_attribute(node, "pads") is not None:
        pads, fill = ints_attribute(node, "pads", ()), attribute(node, "value", 0.0)
    else:
        pads, constant = known_integers(node, given[1], "the pads"), given[2]
        if isinstance(constant, Computed) or (
            constant is not None and (not constant.known or constant.values.size != 1)
        ):
            raise unsupported(node, "the value that is put in must be one constant number, exactly")
        fill = 0.0 if constant is None else float(constant.values.reshape(()))
    axes = list(range(rank))
    if given[3] is not None:
        axes = [normal_axis(node, axis, rank) for axis in known_integers(node, given[3], "the axes")]
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise inconsistent(node, f"{len(pads)} pads for axes {axes}")
    if not math.isfinite(fill):
        raise unsupported(node, f"pads with {fill}")
    return pads, fill, axes


# Upsample, Resize ------------------------------------------------------------------------------------------------


def upsample(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Nearest neighbour: entry floor(i / scale); the scales are at least 1."""
    x = variable(graph, node, inputs)
    if attribute(node, "mode", "nearest") != "nearest":
        raise unsupported(node, "only the mode nearest is supported")
    scales = raw_attribute(node, "scales")
    if scales is None:
        scales = _floats(node, inputs[1] if len(inputs) > 1 else None, "the scales")
    if min(scales, default=1) < 1:
        raise inconsistent(node, f"scales {list(scales)}: it can only enlarge")
    sizes = _scaled(node, x.shape, scales)
    picks = [_nearest(graph, node, old, new, scale) for old, new, scale in zip(x.shape, sizes, scales, strict=True)]
    return graph.select(label(node), x, positions_of(x)[np.ix_(*picks)])


def resize(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Resize to the nearest neighbour, with the coordinates of ONNX."""
    x, rank = variable(graph, node, inputs), len(variable(graph, node, inputs).shape)
    if attribute(node, "mode", "nearest") != "nearest":
        raise unsupported(node, "only the mode nearest is supported")
    if attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise unsupported(node, "only keep_aspect_ratio_policy = stretch is supported")
    if attribute(node, "antialias", 0) or attribute(node, "exclude_outside", 0):
        raise inconsistent(node, "antialias and exclude_outside are for other modes than nearest")
    if attribute(node, "coordinate_transformation_mode", "asymmetric") == "tf_crop_and_resize":
        raise unsupported(node, "coordinate_transformation_mode 'tf_crop_and_resize'")
    operands = (*inputs, None, None, None)[1:4]
    scales, sizes = (None, operands[0], None)[1:] if graph.opset == 10 else (operands[1], operands[2])
    axes = [normal_axis(node, axis, rank) for axis in ints_attribute(node, "axes", ())] or list(range(rank))
    factors, lengths = np.ones(rank), list(x.shape)
    if sizes is not None and sizes.shape != (0,):
        for axis, new in zip(axes, known_integers(node, sizes, "the sizes"), strict=True):
            factors[axis], lengths[axis] = new / x.shape[axis], new
    else:
        factors[axes] = _floats(node, scales, "the scales")
        lengths = list(_scaled(node, x.shape, factors))
    if min(lengths) < 1 or math.prod(lengths) > MAX_ENTRIES:
        raise inconsistent(node, f"resizes {x.shape} to {tuple(lengths)}")
    picks = [_nearest(graph, node, *sides) for sides in zip(x.shape, lengths, factors, strict=True)]
    return graph.select(label(node), x, positions_of(x)[np.ix_(*picks)])


def _nearest(graph: Builder, node: NodeProto, old: int, new: int, scale: float) -> NDArray[np.int64]:
    """The entry along one axis that each new one takes.

    Where a coordinate lies on the border between two entries, runtimes round differently unless all is exact: refused.
    """
    if old == new and scale == 1:
        return np.arange(old)
    at, rounded = _coordinates(graph, node, old, new, scale), _rounding(graph, node, scale)
    picks = np.clip(rounded(at), 0, old - 1).astype(np.int64)
    exact = scale == round(scale) or math.frexp(scale)[0] == 0.5
    if not exact:
        others = [np.clip(rounded(at + shift), 0, old - 1) for shift in (-1e-4, 1e-4)]
        if any((other != picks).any() for other in others):
            raise unsupported(node, f"which entry is the nearest depends on rounding (from {old} to {new} entries)")
    return picks


def _coordinates(graph: Builder, node: NodeProto, old: int, new: int, scale: float) -> NDArray[np.float64]:
    """Coordinates (new,) on the old axis, of `old` entries, at which the entries of the resized axis are read."""
    default = "asymmetric" if graph.opset <= 10 else "half_pixel"
    mode = attribute(node, "coordinate_transformation_mode", default)
    i = np.arange(new, dtype=np.float64)
    match mode:
        case "asymmetric":
            return i / scale
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if new > 1 else np.zeros(1)
        case "align_corners":
            return i * ((old - 1) / (new - 1)) if new > 1 else np.zeros(1)
        case "half_pixel_symmetric":
            return old / 2 * (1 - new / (scale * old)) + (i + 0.5) / scale - 0.5
    raise unsupported(node, f"coordinate_transformation_mode {mode!r}")


def _rounding(graph: Builder, node: NodeProto, scale: float) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """How Resize rounds a coordinate to an entry, by nearest_mode and opset."""
    # opsets up to 10 leave it open; onnxruntime takes the entry below when it enlarges, above when it shrinks
    default = ("floor" if scale >= 1 else "ceil") if graph.opset <= 10 else "round_prefer_floor"
    mode = attribute(node, "nearest_mode", default)
    match mode:
        case "floor":
            return np.floor
        case "ceil":
            return np.ceil
        case "round_prefer_floor":
            return lambda at: np.ceil(at - 0.5)
        case "round_prefer_ceil":
            return lambda at: np.floor(at + 0.5)
    raise inconsistent(node, f"nearest_mode {mode!r} is unknown")


def _floats(node: NodeProto, value: Value | None, what: str) -> list[float]:
    if not isinstance(value, Fixed) or not value.known:
        raise unsupported(node, f"{what} must be constant numbers, exactly and without a posterior")
    return [float(item) for item in value.values.reshape(-1)]


def _scaled(node: NodeProto, shape: tuple[int, ...], scales: Any) -> tuple[int, ...]:
    if len(scales) != len(shape) or not all(0 < scale < MAX_ENTRIES for scale in scales):
        raise inconsistent(node, f"scales {list(scales)} do not fit {shape}")
    sizes = tuple(math.floor(size * scale) for size, scale in zip(shape, scales, strict=True))
    if min(sizes) < 1 or math.prod(sizes) > MAX_ENTRIES:
        raise inconsistent(node, f"resizes {shape} to {sizes}")
    return sizes
