"""Convolutions and poolings, over any number of axes.

The network knows 2-d convolutions only. One axis is two with a height of 1; three are a sum over the first of them, one
2-d convolution for each entry of the kernel along it. A ConvTranspose is a Conv with the kernel flipped over an image
with zeros between its pixels. Pools over other than two axes, and those with partial windows, gather each window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from bnn_vnnlib.model.attributes import attribute, inconsistent, ints_attribute, label, raw_attribute, unsupported
from bnn_vnnlib.model.builder import MAX_ENTRIES, Builder, Computed, Fixed, Value
from bnn_vnnlib.model.operators_linear import constant_operand, per_channel
from bnn_vnnlib.model.operators_shape import Operands, positions_of, variable
from bnn_vnnlib.network import nodes

_Ints = tuple[int, ...]


@dataclass(frozen=True)
class _Window:
    """A window that moves over the axes behind the channels; begins and ends are the pads, `counts` its places."""

    kernel: _Ints
    strides: _Ints
    dilations: _Ints
    begins: _Ints
    ends: _Ints
    counts: _Ints


def _image(graph: Builder, node: NodeProto, inputs: Operands) -> Computed:
    x = variable(graph, node, inputs)
    if len(x.shape) < 3:
        raise inconsistent(node, f"input of shape {x.shape}: expected (batch, channels, ..)")
    return x


def _axes_attribute(node: NodeProto, name: str, rank: int) -> _Ints:
    values = ints_attribute(node, name, (1,) * rank)
    if min(values) < 1:
        raise unsupported(node, f"{name} {values} below 1")
    return values


def _window(node: NodeProto, x: Computed, kernel: _Ints) -> _Window:
    """Pads and number of places along each axis."""
    rank, sizes = len(kernel), x.shape[2:]
    if rank != len(sizes) or min(kernel) < 1:
        raise inconsistent(node, f"a kernel {kernel} does not fit the input {x.shape}")
    strides, dilations = (_axes_attribute(node, name, rank) for name in ("strides", "dilations"))
    extent = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    auto = _auto_pad(node, rank)
    if auto.startswith("SAME"):
        if max(dilations) > 1:
            raise unsupported(node, f"auto_pad = {auto} with dilations, which runtimes read differently; give the pads")
        begins, ends = _same_pads(auto, sizes, strides, extent)
    else:
        pads = ints_attribute(node, "pads", (0,) * (2 * rank))  # zeros unless auto_pad is NOTSET
        begins, ends = pads[:rank], pads[rank:]
    if min(*begins, *ends, 0) < 0 or max(*begins, *ends) > MAX_ENTRIES:
        raise unsupported(node, f"pads {(*begins, *ends)}")
    padded = [sum(parts) for parts in zip(sizes, begins, ends, strict=True)]
    room = [size - reach for size, reach in zip(padded, extent, strict=True)]
    if min(room) < 0:
        raise inconsistent(node, f"the kernel {kernel} is larger than the padded input {x.shape}")
    counts = [gap // stride + 1 for gap, stride in zip(room, strides, strict=True)]
    if attribute(node, "ceil_mode", 0) and not auto.startswith("SAME"):
        over = [gap % stride for gap, stride in zip(room, strides, strict=True)]
        if auto == "VALID" and any(over):
            message = "auto_pad = VALID with ceil_mode, which runtimes read differently; leave auto_pad out"
            raise unsupported(node, message)
        counts = [count + (rest > 0) for count, rest in zip(counts, over, strict=True)]
        # a window that would start in the pads behind the image is left out
        starts = zip(counts, strides, sizes, begins, strict=True)
        counts = [count - ((count - 1) * stride >= size + front) for count, stride, size, front in starts]
    return _Window(kernel, strides, dilations, begins, ends, tuple(counts))


def _same_pads(auto: str, sizes: _Ints, strides: _Ints, extent: Sequence[int]) -> tuple[_Ints, _Ints]:
    """Pads in front and behind with which the window stands at every stride-th entry."""
    spans = zip(sizes, strides, extent, strict=True)
    total = [max((-(-size // stride) - 1) * stride + reach - size, 0) for size, stride, reach in spans]
    # the odd row or column goes behind (UPPER) or in front (LOWER)
    begins = tuple((amount + (auto == "SAME_LOWER")) // 2 for amount in total)
    return begins, tuple(amount - front for amount, front in zip(total, begins, strict=True))


def _auto_pad(node: NodeProto, rank: int) -> str:
    """The attribute; pads beside it contradict it (zeros do no harm in front of a pool, but no runtime convolves)."""
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise inconsistent(node, f"auto_pad {auto!r} is unknown")
    pads = ints_attribute(node, "pads", (0,) * (2 * rank))
    convolves = node.op_type.startswith("Conv") and raw_attribute(node, "pads") is not None
    if auto != "NOTSET" and (any(pads) or convolves):
        raise inconsistent(node, f"has auto_pad = {auto} and pads {pads}, of which ONNX allows one")
    return auto


# convolutions ----------------------------------------------------------------------------------------------------


def conv(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Convolution over one, two or three axes; bias as a Shift per channel."""
    x, weight = _image(graph, node, inputs), constant_operand(node, inputs, 1, "the kernel")
    groups = attribute(node, "group", 1)
    fits = len(weight.shape) == len(x.shape) and groups >= 1 and weight.shape[1] * groups == x.shape[1]
    if not fits or weight.shape[0] % groups:
        raise inconsistent(node, f"kernel {weight.shape} in {groups} groups does not fit input {x.shape}")
    if ints_attribute(node, "kernel_shape", weight.shape[2:]) != weight.shape[2:]:
        raise inconsistent(node, f"kernel_shape differs from the kernel's {weight.shape[2:]}")
    window = _window(node, x, weight.shape[2:])
    return _biased(graph, node, inputs, _convolved(graph, node, x, weight, window, groups))


def _biased(graph: Builder, node: NodeProto, inputs: Operands, y: Computed) -> Computed:
    if len(inputs) < 3 or inputs[2] is None:
        return y
    return graph.shift(label(node), y, per_channel(node, constant_operand(node, inputs, 2, "the bias"), y))


def _convolved(graph: Builder, node: NodeProto, x: Computed, weight: Fixed, window: _Window, groups: int) -> Computed:
    """A convolution over one, two or three axes, in terms of the network's own."""
    name, rank = label(node), len(window.kernel)
    if rank == 1:
        flat = graph.reshape(name, x, (*x.shape[:2], 1, x.shape[2]))
        wide = _Window((1, *window.kernel), (1, *window.strides), (1, *window.dilations), (0, *window.begins),
                      (0, *window.ends), (1, *window.counts))  # fmt: skip
        y = _plane(graph, name, flat, weight.reshaped(*weight.shape[:2], 1, *weight.shape[2:]), wide, groups)
        return graph.reshape(name, y, (*y.shape[:2], y.shape[3]))
    if rank == 2:
        return _plane(graph, name, x, weight, window, groups)
    if rank == 3:
        return _solid(graph, name, x, weight, window, groups)
    raise unsupported(node, f"a convolution over {rank} axes: at most 3 are supported")


def _plane(graph: Builder, name: str, x: Computed, weight: Fixed, window: _Window, groups: int) -> Computed:
    """The network's own 2-d convolution."""
    shape = (x.shape[0], weight.shape[0], *window.counts)
    strides, dilations, pads = window.strides, window.dilations, (*window.begins, *window.ends)
    maps = nodes.Conv(
        name, (x.position,), shape, weight.weight, (strides[0], strides[1]), (pads[0], pads[1], pads[2], pads[3]),
        (dilations[0], dilations[1]), groups,
    )  # fmt: skip
    return graph.append(maps, x.element)


def _solid(graph: Builder, name: str, x: Computed, weight: Fixed, window: _Window, groups: int) -> Computed:
    """Sum over the depth of the kernel: planes of the input are picked, and join the batch."""
    batch, channels = x.shape[:2]
    flat = _Window(*(part[1:] for part in (window.kernel, window.strides, window.dilations, window.begins, window.ends,
                                          window.counts)))  # fmt: skip
    index = np.pad(positions_of(x), [(0, 0), (0, 0), (window.begins[0], window.ends[0]), (0, 0), (0, 0)],
                   constant_values=-1)  # fmt: skip
    terms = []
    for k in range(window.kernel[0]):
        places = np.arange(window.counts[0]) * window.strides[0] + k * window.dilations[0]
        planes = np.moveaxis(index[:, :, places], 2, 1).reshape(-1, channels, *x.shape[3:])
        kernel = weight.moved(partial(np.take, indices=k, axis=2))
        terms.append((1, _plane(graph, name, graph.select(name, x, planes), kernel, flat, groups)))
    y = graph.total(name, terms)
    y = graph.reshape(name, y, (batch, window.counts[0], *y.shape[1:]))
    return graph.transpose(name, y, (0, 2, 1, 3, 4))


def conv_transpose(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """The transposed convolution: y[i stride + k dilation - pad] += W[k] x[i].

    With stride - 1 zeros between the entries of x it is the convolution of stride 1 with the flipped kernel.
    """
    x, weight = _image(graph, node, inputs), constant_operand(node, inputs, 1, "the kernel")
    groups, rank = attribute(node, "group", 1), len(x.shape) - 2
    if len(weight.shape) != len(x.shape) or groups < 1 or weight.shape[0] != x.shape[1] or x.shape[1] % groups:
        raise inconsistent(node, f"kernel {weight.shape} in {groups} groups does not fit input {x.shape}")
    kernel, sizes = weight.shape[2:], x.shape[2:]
    if ints_attribute(node, "kernel_shape", kernel) != kernel:
        raise inconsistent(node, f"kernel_shape differs from the kernel's {kernel}")
    strides, dilations = (_axes_attribute(node, what, rank) for what in ("strides", "dilations"))
    begins, counts = _transposed_window(node, sizes, kernel, strides, dilations)
    index = positions_of(x)
    for axis in range(rank):
        # entry o of the result reads places o .. o + reach of the stuffed image behind `front` zeros
        reach = dilations[axis] * (kernel[axis] - 1)
        front, length = reach - begins[axis], counts[axis] + reach
        if length * math.prod(index.shape) // index.shape[axis + 2] > MAX_ENTRIES:
            raise inconsistent(node, f"computes a tensor of {counts} entries along its axes")
        place = np.arange(length) - front
        inside = (place % strides[axis] == 0) & (place >= 0) & (place < sizes[axis] * strides[axis])
        picked = np.take(index, np.where(inside, place // strides[axis], 0), axis + 2)
        index = np.where(inside.reshape(-1, *(1,) * (rank - 1 - axis)), picked, -1)
    stuffed = graph.select(label(node), x, index)
    window = _Window(kernel, (1,) * rank, dilations, (0,) * rank, (0,) * rank, counts)
    return _biased(graph, node, inputs, _convolved(graph, node, stuffed, _flipped(weight, groups), window, groups))


def _flipped(weight: Fixed, groups: int) -> Fixed:
    """(in, out / groups, *kernel) -> (out, in / groups, *kernel), the kernel from back to front."""
    inputs, outputs, *kernel = weight.shape

    def move(array: NDArray[np.float64]) -> NDArray[np.float64]:
        array = array.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
        array = array.reshape(groups * outputs, inputs // groups, *kernel)
        return np.flip(array, tuple(range(2, array.ndim)))

    return weight.moved(move)


def _transposed_window(
    node: NodeProto, sizes: _Ints, kernel: _Ints, strides: _Ints, dilations: _Ints
) -> tuple[_Ints, _Ints]:
    """Pads in front, and the sizes of the result."""
    rank = len(sizes)
    extra = ints_attribute(node, "output_padding", (0,) * rank)
    if not all(0 <= added < stride for added, stride in zip(extra, strides, strict=True)):
        raise unsupported(node, f"output_padding {extra}: each must be at least 0 and below the stride ({strides})")
    full = [
        stride * (size - 1) + added + dilation * (k - 1) + 1
        for stride, size, added, dilation, k in zip(strides, sizes, extra, dilations, kernel, strict=True)
    ]
    auto, wanted = _auto_pad(node, rank), ints_attribute(node, "output_shape", ())
    if auto.startswith("SAME") and not wanted:
        wanted = tuple(size * stride for size, stride in zip(sizes, strides, strict=True))
    if wanted:
        if len(wanted) != rank:
            raise inconsistent(node, f"output_shape {wanted} does not fit")
        total = [have - want for have, want in zip(full, wanted, strict=True)]
        if min(total) < 0:
            message = f"an output of {wanted} along its axes, where the kernel reaches {tuple(full)}; runtimes differ"
            raise unsupported(node, message)
        begins = tuple(amount // 2 if auto == "SAME_UPPER" else amount - amount // 2 for amount in total)
        return begins, wanted
    pads = ints_attribute(node, "pads", (0,) * (2 * rank))
    counts = tuple(have - pads[i] - pads[rank + i] for i, have in enumerate(full))
    if min(counts) < 1 or min(pads) < 0:
        raise inconsistent(node, f"pads {pads} leave an output of {counts}")
    return pads[:rank], counts


# pools -----------------------------------------------------------------------------------------------------------


def _gathered(graph: Builder, node: NodeProto, x: Computed, window: _Window) -> NDArray[np.int64]:
    """(batch, channels, *counts, entries): what each window sees, -1 outside the image."""
    spots = _spots(window)
    if math.prod(window.counts) * math.prod(window.kernel) * math.prod(x.shape[:2]) > MAX_ENTRIES:
        raise inconsistent(node, f"pools {math.prod(window.counts)} windows of {window.kernel}")
    rank = len(spots)
    flat: NDArray[np.int64] = np.zeros((1,) * (2 * rank), np.int64)
    inside = np.ones((1,) * (2 * rank), bool)
    for axis, (spot, size) in enumerate(zip(spots, x.shape[2:], strict=True)):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = spot.shape
        flat = flat * size + spot.reshape(shape)
        inside = inside & ((spot >= 0) & (spot < size)).reshape(shape)
    flat, inside = np.broadcast_arrays(flat, inside)
    flat = np.where(inside, flat, -1).reshape(*window.counts, -1)
    if not inside.reshape(*window.counts, -1).any(-1).all():
        raise unsupported(node, "a window that lies in the padding entirely")
    image = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * (rank + 1)) * math.prod(x.shape[2:])
    return np.where(flat < 0, -1, flat + image)


def _pool_window(node: NodeProto, x: Computed) -> _Window:
    """The window of a pool, which must not lie in the pads entirely, nor skip entries to make SAME come out."""
    window = _window(node, x, ints_attribute(node, "kernel_shape", ()) or (0,) * (len(x.shape) - 2))
    if any(max(pads) >= k for *pads, k in zip(window.begins, window.ends, window.kernel, strict=True)):
        raise unsupported(node, f"pads {(*window.begins, *window.ends)}: each must be below the kernel {window.kernel}")
    spans = zip(x.shape[2:], window.counts, window.strides, window.kernel, strict=True)
    if attribute(node, "auto_pad", "NOTSET").startswith("SAME") and any(
        (count - 1) * stride + k < size for size, count, stride, k in spans
    ):
        raise unsupported(
            node, "auto_pad = SAME where the strides skip the last entries, which runtimes read differently"
        )
    return window


def max_pool(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Maximum of each window; in place of the padding the window sees one of its entries again."""
    x, name = _image(graph, node, inputs), label(node)
    index = _gathered(graph, node, x, _pool_window(node, x))
    index = np.where(index < 0, index.max(-1, keepdims=True), index)
    return graph.maximum(name, graph.select(name, x, index))


def average_pool(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Sum of each window divided by the number of its entries (of all its places with count_include_pad)."""
    x, name = _image(graph, node, inputs), label(node)
    window = _pool_window(node, x)
    kernel = window.kernel
    size = _entries(x, window, bool(attribute(node, "count_include_pad", 0)))
    ones = graph.number(f"{node.output[0]}.one", 1.0, x)
    if len(kernel) == 2 and window.counts == _whole(x, window):
        kernels = ones.moved(lambda array: np.broadcast_to(array, (x.shape[1], 1, *kernel)))
        y = _plane(graph, name, x, kernels, window, x.shape[1])
    else:
        places = graph.select(name, x, _gathered(graph, node, x, window))
        y = graph.sum_over(name, places, len(places.shape) - 1)
        y = graph.reshape(name, y, y.shape[:-1])
    if not size.all():
        raise unsupported(node, "a window that lies in the padding entirely")
    return graph.divided(name, y, size.max() if size.min() == size.max() else size)


def _whole(x: Computed, window: _Window) -> _Ints:
    """Number of places at which the window stays inside image and pads."""
    spans = zip(x.shape[2:], window.begins, window.ends, window.kernel, window.dilations, window.strides, strict=True)
    return tuple((n + a + b - d * (k - 1) - 1) // s + 1 for n, a, b, k, d, s in spans)


def _entries(x: Computed, window: _Window, pads: bool) -> NDArray[np.float64]:
    """Entries of each window that lie in the image, or in image and pads (ceil_mode reaches behind them)."""
    total = np.ones(())
    for axis, spot in enumerate(_spots(window)):
        size, front, behind = x.shape[2 + axis], window.begins[axis], window.ends[axis]
        low, high = (-front, size + behind) if pads else (0, size)
        total = np.multiply.outer(total, ((spot >= low) & (spot < high)).sum(1).astype(np.float64))
    return total


def _spots(window: _Window) -> list[NDArray[np.int64]]:
    """(count, kernel) along each axis: where the entries of a window lie."""
    spans = zip(window.counts, window.strides, window.begins, window.kernel, window.dilations, strict=True)
    return [
        np.arange(count)[:, None] * stride - front + np.arange(k) * dilation
        for count, stride, front, k, dilation in spans
    ]


def global_average_pool(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Mean over all axes behind the channels."""
    x, name = _image(graph, node, inputs), label(node)
    flat = graph.reshape(name, x, (*x.shape[:2], math.prod(x.shape[2:])))
    mean = graph.divided(name, graph.sum_over(name, flat, 2), flat.shape[2])
    return graph.reshape(name, mean, (*x.shape[:2], *(1,) * (len(x.shape) - 2)))


def global_max_pool(graph: Builder, node: NodeProto, inputs: Operands) -> Value:
    """Maximum over all axes behind the channels."""
    x, name = _image(graph, node, inputs), label(node)
    largest = graph.maximum(name, graph.reshape(name, x, (*x.shape[:2], math.prod(x.shape[2:]))))
    return graph.reshape(name, largest, (*x.shape[:2], *(1,) * (len(x.shape) - 2)))
