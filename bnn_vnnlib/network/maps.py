"""The weighted linear maps of a network, applied forwards and backwards with any weight.

Shapes, here and in the whole engine: K weight boxes (or samples), M items; a weight is (K or 1, *parameter shape), an
activation (K or 1, M, *node shape). The same functions serve the mean, its absolute value, the standard deviation and
sampled weights, so a map is written once.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn_vnnlib.network.nodes import Conv, Linear, Scale, Select, WeightedMap
from bnn_vnnlib.system.devices import plain_convolution


def apply(node: WeightedMap, weight: Tensor, z: Tensor) -> Tensor:
    """The map itself: z (K or 1, M, *input shape) -> (K, M, *output shape)."""
    match node:
        case Linear():
            return _contract(weight, z, node.axis)
        case Conv():
            return _convolve(node, weight, z)
        case Scale():
            return z * _aligned(weight, len(node.shape))


def adjoint(node: WeightedMap, weight: Tensor, a: Tensor, input_shape: tuple[int, ...]) -> Tensor:
    """The transposed map: a (K or 1, M, *output shape) -> (K, M, *input shape)."""
    match node:
        case Linear():
            return _contract(weight.mT, a, node.axis)
        case Conv():
            return _convolve_transposed(node, weight, a, input_shape)
        case Scale():
            return a * _aligned(weight, len(node.shape))


def spread_window(node: Conv, weight: Tensor, a: Tensor) -> Tensor:
    """The transposed convolution of a window of outputs, (K or 1, M, B, O, h, w), over all inputs that it reads.

    (K, M, B, C, height, width): row 0 is row -top of the input if row 0 of the window is that of the output.
    """
    kernel, image, groups = _grouped(weight, a, node.groups)
    with plain_convolution(image.device):
        z = F.conv_transpose2d(image, kernel, stride=node.strides, dilation=node.dilations, groups=groups)
    return _ungrouped(z, len(weight), a.shape[:3])


def select(node: Select, z: Tensor) -> Tensor:
    """Pick entries: z (K or 1, M, *input shape) -> (K or 1, M, *output shape)."""
    flat = z.reshape(*z.shape[:2], -1)
    if (node.index < 0).any():  # -1, the last entry, is then the 0 that is put there
        flat = torch.cat([flat, flat.new_zeros(*z.shape[:2], 1)], -1)
    index = torch.as_tensor(node.index, device=z.device).reshape(-1)
    return flat[..., index].reshape(*z.shape[:2], *node.shape)


def select_back(node: Select, a: Tensor, input_shape: tuple[int, ...]) -> Tensor:
    """The transposed map: each entry gets the sum of what its copies have; a (.., *output shape)."""
    lead = a.shape[: a.dim() - len(node.shape)]
    size = math.prod(input_shape)
    index = torch.as_tensor(node.index, device=a.device).reshape(-1)
    flat = a.new_zeros(*lead, size + 1).index_add(-1, torch.where(index < 0, size, index), a.reshape(*lead, -1))
    return flat[..., :size].reshape(*lead, *input_shape)


def fan(node: WeightedMap) -> int:
    """Number of products in one sum of either direction, at most."""
    match node:
        case Linear():
            return max(node.weight.shape)
        case Conv():
            outputs, inputs, *kernel = node.weight.shape
            return max(outputs // node.groups, inputs) * math.prod(kernel)
        case Scale():
            return 1


def _aligned(weight: Tensor, rank: int) -> Tensor:
    """(K, *p) -> (K, 1, 1, .., *p): broadcasts over items and over the leading axes that p lacks."""
    k, *shape = weight.shape
    return weight.reshape(k, 1, *(1,) * (rank - len(shape)), *shape)


def _contract(weight: Tensor, z: Tensor, axis: int) -> Tensor:
    """Contract `axis` of the node's shape with the last axis of weight (K or 1, out, in)."""
    last = axis + 3 == z.dim()
    z = z if last else z.movedim(axis + 2, -1)
    lead = z.shape[1:-1]
    if len(weight) == 1:
        y = z @ weight[0].mT
    else:
        y = z.reshape(len(z), -1, z.shape[-1]) @ weight.mT
        y = y.reshape(len(y), *lead, weight.shape[-2])
    return y if last else y.movedim(-1, axis + 2)


def _grouped(weight: Tensor, z: Tensor, groups: int) -> tuple[Tensor, Tensor, int]:
    """Put the weight boxes into the channel groups of one convolution.

    z (K or 1, M, B, C, H, W) becomes (M * B, K * C, H, W); with a single weight, (K * M * B, C, H, W).
    """
    if len(weight) == 1:
        return weight[0], z.reshape(-1, *z.shape[3:]), groups
    z = z.expand(len(weight), *z.shape[1:]).movedim(0, 2)
    return weight.flatten(0, 1), z.flatten(2, 3).flatten(0, 1), groups * len(weight)


def _ungrouped(y: Tensor, boxes: int, lead: torch.Size) -> Tensor:
    """Undo `_grouped`: lead = (K or 1, M, B) of the activation that went in."""
    if boxes == 1:
        return y.reshape(*lead, *y.shape[1:])
    y = y.reshape(lead[1], lead[2], boxes, -1, *y.shape[2:])
    return y.movedim(2, 0)


def _convolve(node: Conv, weight: Tensor, z: Tensor) -> Tensor:
    top, left, bottom, right = node.pads
    kernel, image, groups = _grouped(weight, z, node.groups)
    image = F.pad(image, (left, right, top, bottom))
    with plain_convolution(image.device):
        y = F.conv2d(image, kernel, stride=node.strides, dilation=node.dilations, groups=groups)
    return _ungrouped(y, len(weight), z.shape[:3])


def _convolve_transposed(node: Conv, weight: Tensor, a: Tensor, input_shape: tuple[int, ...]) -> Tensor:
    """The transposed convolution of a, in the input's shape."""
    top, left, bottom, right = node.pads
    height, width = input_shape[2:]
    # rows and columns of the padded input behind the last window were never read: their gradient is 0
    unread = [
        size + before + after - ((out - 1) * stride + dilation * (k - 1) + 1)
        for size, before, after, out, stride, dilation, k in zip(
            (height, width),
            (top, left),
            (bottom, right),
            a.shape[-2:],
            node.strides,
            node.dilations,
            weight.shape[-2:],
            strict=True,
        )
    ]
    z = F.pad(spread_window(node, weight, a), (0, unread[1], 0, unread[0]))
    return z[..., top : top + height, left : left + width]
