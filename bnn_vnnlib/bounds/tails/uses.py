"""Sums over the weights of one map, over all places where a weight is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn_vnnlib.bounds.walk import dot, dots, over_rows, sum_to
from bnn_vnnlib.bounds.weights import ParamBox, aligned
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.nodes import Conv, Linear, Scale
from bnn_vnnlib.rounding import TINY, gamma, squared, squared_down

Weighted = Linear | Conv | Scale

Range = tuple[Tensor, Tensor]
"""Center and radius."""


@dataclass(frozen=True, eq=False)
class Uses:
    """Sums over the weights k of a node, over their uses: sum_k sigma_k^2 (|g_k| + r_k)^2 -> (K, M, R).

    a (K, M, R, *output shape), amplitude : the same or None, added to |A| where signs are not known;
    shape : of the node's input
    """

    node: Weighted
    box: ParamBox
    a: Tensor
    amplitude: Tensor | None
    shape: tuple[int, ...]

    @property
    def deviation(self) -> Tensor:
        """sigma."""
        if self.box.spread is None:
            raise TypeError("a map without noise has no uses")
        return self.box.spread

    @cached_property
    def squares(self) -> Tensor:
        """A^2, rounded up."""
        return squared(self.a)

    @cached_property
    def plain(self) -> Tensor:
        """s_j^2, rounded up."""
        return self._variance(self.squares)

    @cached_property
    def root(self) -> Tensor:
        """s_j, up to a rounding."""
        return torch.sqrt(self.plain)

    @cached_property
    def variance(self) -> Tensor:
        """s_j^2 with the amplitudes, rounded up."""
        return self.plain if self.amplitude is None else self._variance(squared(self.a.abs() + self.amplitude))

    @property
    def terms(self) -> int:
        """Products in one sum, at most."""
        return math.prod(self.shape) + math.prod(self.node.shape) + maps.fan(self.node)

    def most(self, ranges: Sequence[Range]) -> Sequence[Tensor]:
        """From above, for each range of h."""
        if self.once:
            return dots(self.variance, [squared(center.abs() + radius) for center, radius in ranges])
        return [self._most(center, radius) for center, radius in ranges]

    def _most(self, center: Tensor, radius: Tensor) -> Tensor:
        total, rest = self._sums(center, radius)
        if self.amplitude is not None:
            rest = rest + self._uses(self.amplitude, center.abs() + radius)
        return (squared(total + rest) * squared(self._flat)).sum(-1)

    def least(self, center: Tensor, radius: Tensor) -> Tensor:
        """From below, for every h in the range: sum_k sigma_k^2 max(0, |g_k| - r_k)^2, up to relative roundings.

        For a weight that is used once, `plain` is s_j^2 apart from relative roundings and an `excess`.
        """
        if self.once:
            square = squared_down((center.abs() - radius).clamp(min=0))
            added = excess(self.squares, self.box, self.terms)
            return dot(self.plain, square) - added * square.flatten(2).sum(-1, keepdim=True)
        total, rest = self._sums(center, radius)
        return (squared_down((total - rest).clamp(min=0)) * squared_down(self._flat)).sum(-1)

    @property
    def once(self) -> bool:
        """Every weight is used once."""
        node = self.node
        return isinstance(node, Linear) and math.prod(node.shape) == node.shape[node.axis]

    def _variance(self, squares: Tensor) -> Tensor:
        variances = self.box.variance
        found = over_rows(lambda flat: maps.adjoint(self.node, variances, flat, self.shape), squares)
        return found.add_(TINY)  # a sum of products, which nobody else has

    @property
    def _flat(self) -> Tensor:
        deviation = aligned(self.deviation, len(self.node.shape)) if isinstance(self.node, Scale) else self.deviation
        return deviation.reshape(1, 1, 1, -1)

    def _sums(self, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """|g_k|, and r_k with what the rounding of the signed sums may have cost."""
        reach = center.abs() + radius
        slack = gamma(2 * math.prod(self.node.shape)) * self._uses(self.a.abs(), reach)
        return self._uses(self.a, center).abs(), self._uses(self.a.abs(), radius) + slack + TINY

    def _uses(self, a: Tensor, h: Tensor) -> Tensor:
        """For each weight the sum over its uses of A_i h_j: (K, M, R, weights)."""
        node = self.node
        match node:
            case Scale():
                shape = aligned(self.deviation, len(node.shape)).shape[2:]
                return sum_to(a * h[:, :, None], shape).flatten(3)
            case Linear():
                left = a.movedim(node.axis + 3, -1).flatten(3, -2)  # (K, M, R, P, out)
                right = h.movedim(node.axis + 2, -1).flatten(2, -2)[:, :, None]  # (K, M, 1, P, in)
                return (left.mT @ right).flatten(3)
            case Conv():
                return _convolved(node, a, h)


def excess(squares: Tensor, box: ParamBox, terms: int) -> Tensor:
    """(K, M, R): what is added for underflow to a sum of less than `terms` products A^2 sigma^2.

    `squared` adds at most TINY to each factor, and for products and sum there are 2 TINY: less than
    TINY (sum of A^2 + sum of sigma^2 + terms + 2), with a factor of 2 for relative roundings.
    """
    return 2 * TINY * (squares.reshape(*squares.shape[:3], -1).sum(-1) + (box.total + (terms + 2)))


def _convolved(node: Conv, a: Tensor, h: Tensor) -> Tensor:
    """The gradient of a . conv(h) with respect to the kernel."""
    k, m = h.shape[:2]
    batch, outputs = node.shape[:2]
    top, left, bottom, right = node.pads
    image = F.pad(h.reshape(k * m * batch, *h.shape[3:]), (left, right, top, bottom))
    kernel = node.weight.shape[2:]
    patches = F.unfold(image, kernel, dilation=node.dilations, stride=node.strides)  # (K M B, C kernel, places)
    per_group = node.weight.shape[1] * math.prod(kernel)
    patches = patches.reshape(k, m, batch, node.groups, per_group, -1)
    rows = a.reshape(*a.shape[:3], batch, node.groups, outputs // node.groups, -1)
    used = torch.einsum("kmrbgop,kmbgcp->kmrgoc", rows.expand(k, m, -1, -1, -1, -1, -1), patches)
    return used.flatten(3)
