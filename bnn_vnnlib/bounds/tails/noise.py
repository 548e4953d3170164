"""What the noise of the weights adds up to during one walk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn_vnnlib.bounds import linear, maps
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import LINEAR, Rules, Walk, dot, filled, over_rows, sum_to
from bnn_vnnlib.bounds.rounding import TINY, UNIT, gamma
from bnn_vnnlib.bounds.tails.tail import FOLD, Split, Tail
from bnn_vnnlib.bounds.tails.variation import Variation, center_radius, squared
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model.nodes import Conv, Linear, Node, Param, Scale, Shift

LOST = 1e-290
"""Squares below this may have lost digits."""

Weighted = Linear | Conv | Scale


@dataclass(eq=False)
class Noise:
    """The sums behind a `Tail`, collected on the way back.

    deviations : standard deviations
    variation : rho' and h0 of the nodes, or None where a source enters at several nodes
    detailed : collect for bound 3, too
    folded, near : sum of rho_j s_j, sum of rho'_j s_j (K, M, R)
    squares, near_squares : source -> its part of L^2, of L'^2
    most : source -> its part of b; least : a; play : 0 where the variance of S is no random variable
    """

    deviations: WeightBoxes
    variation: Variation | None
    zero: Tensor
    detailed: bool = False
    squares: dict[str, Tensor] = field(default_factory=dict)
    near_squares: dict[str, Tensor] = field(default_factory=dict)
    most: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folded = self.near = self.least = self.play = self.zero

    def rules(self) -> Rules:
        """The linear method, with the noise of every parameter collected on the way."""
        return {**LINEAR, Linear: self.weighted, Conv: self.weighted, Scale: self.weighted, Shift: self.shift}

    def tail(self, level: Tensor) -> Tail:
        """The tail of a row with this m0."""
        spread = _root(self.squares, self.zero)
        mean = _less(level, FOLD * self.folded)
        if self.variation is None:
            return Tail(mean, spread)
        centred = _less(level, FOLD * self.near)
        if not self.detailed:
            return Tail(mean, spread, centred)
        least = self.least * (1 - 2 * (len(self.squares) + 8) * UNIT)
        most = _root(self.most, self.zero) ** 2 * (1 + 2 * UNIT)
        split = Split(_root(self.near_squares, self.zero), least, most, self.play == 0)
        return Tail(mean, spread, centred, split)

    def weighted(self, walk: Walk, node: Weighted, position: int, a: Tensor) -> None:
        """The mean goes on; delta . h is charged."""
        deviation = self.deviations.param(node.weight).spread
        if deviation is not None:
            (source,) = node.inputs
            h, shape = walk.ranges.values[source], walk.network.nodes[source].shape
            uses, root, terms = self._charge_map(node, deviation, a, h, shape)
            if self.variation is not None:
                near = self.variation.known[source]
                self.near = self._fold(self.near, node.weight, dot(root, near), terms)
                if self.detailed:
                    add(self.near_squares, node.weight, uses.most(torch.zeros_like(near), near), terms)
                    center, radius = self.variation.at_center(source, h)
                    add(self.most, node.weight, uses.most(center, radius), terms)
                    self._charge_least(node.weight, uses.least(center, radius, shape), terms)
                    self.play = self.play + dot(root, radius)
        linear.weighted(walk, node, position, a)

    def shift(self, walk: Walk, node: Shift, position: int, a: Tensor) -> None:
        """A bias that is added at several places is one variable."""
        deviation = self.deviations.param(node.bias).spread
        if deviation is not None:
            aligned = _aligned(deviation, node)
            terms = math.prod(node.shape)
            total, slack = sum_to(a, aligned.shape[2:]).abs(), gamma(2 * terms) * sum_to(a.abs(), aligned.shape[2:])
            variances = squared(aligned)
            self._charge(node.bias, dot(squared(total + slack), variances), 2 * terms)
            if self.detailed:
                add(self.most, node.bias, dot(squared(total + slack), variances), 2 * terms)
                sure = dot(_squared_down((total - slack).clamp(min=0)), _squared_down(aligned))
                self._charge_least(node.bias, sure, 2 * terms)
        linear.shift(walk, node, position, a)

    def units(self, node: Node, weighted: Linear, h: Interval) -> None:
        """The same for the rows I and -I over a dense layer: its own weights and biases, row by row."""
        if isinstance(node, Shift):
            deviation = self.deviations.param(node.bias).spread
            if deviation is not None:
                flat = squared(filled(_aligned(deviation, node), node).flatten(2))
                self._charge(node.bias, torch.cat([flat, flat], 2).expand_as(self.zero), 1)
        deviation = self.deviations.param(weighted.weight).spread
        if deviation is None:
            return
        terms = deviation.shape[-1]
        center, radius = center_radius(h)
        square = squared((center.abs() + radius).flatten(2)) @ squared(deviation[0]).mT
        self._charge(weighted.weight, torch.cat([square, square], 2), terms)
        folded = radius.flatten(2) @ deviation[0].mT
        self.folded = self._fold(self.folded, weighted.weight, torch.cat([folded, folded], 2), terms)
        if self.variation is not None:
            folded = self.variation.known[weighted.inputs[0]].flatten(2) @ deviation[0].mT
            self.near = self._fold(self.near, weighted.weight, torch.cat([folded, folded], 2), terms)

    def _charge_map(
        self, node: Weighted, deviation: Tensor, a: Tensor, h: Interval, shape: tuple[int, ...]
    ) -> tuple[Uses, Tensor, int]:
        """Bound 1; also the sums over uses, s_j and the number of terms, for the others."""
        center, radius = center_radius(h)
        variances = squared(deviation)
        variance = over_rows(lambda flat: maps.adjoint(node, variances, flat, shape), squared(a)) + TINY
        root, terms = torch.sqrt(variance), math.prod(shape) + math.prod(node.shape) + maps.fan(node)
        self.folded = self._fold(self.folded, node.weight, dot(root, radius), terms)
        uses = Uses(node, deviation, a, variance)
        self._charge(node.weight, uses.most(center, radius), terms)
        return uses, root, terms

    def _charge(self, param: Param, square: Tensor, terms: int) -> None:
        add(self.squares, param, square, terms)

    def _charge_least(self, param: Param, square: Tensor, terms: int) -> None:
        if param.copies == 1:  # entries that are one variable could cancel
            self.least = self.least + (square * (1 - gamma(4 * terms + 64)) - TINY).clamp(min=0)

    def _fold(self, total: Tensor, param: Param, folded: Tensor, terms: int) -> Tensor:
        up = math.sqrt(param.copies) * (1 + gamma(4 * terms + 16))
        return (total + folded * up) * (1 + 2 * UNIT) + TINY


def add(squares: dict[str, Tensor], param: Param, square: Tensor, terms: int) -> None:
    """Add one use of a parameter; uses of a source at several nodes add up before they are squared."""
    square = square * param.copies * (1 + gamma(4 * terms + 16)) + TINY
    if param.source in squares:
        square = (torch.sqrt(squares[param.source]) + torch.sqrt(square)) ** 2 * (1 + 16 * UNIT)
    squares[param.source] = square


def _root(squares: Mapping[str, Tensor], zero: Tensor) -> Tensor:
    """Root of the sum over the sources, which are independent of each other, rounded up."""
    if not squares:
        return zero
    total = sum(squares.values(), zero)
    return torch.sqrt(total * (1 + 2 * len(squares) * UNIT)) * (1 + 4 * UNIT)


def _less(level: Tensor, fold: Tensor) -> Tensor:
    return level - fold - 2 * UNIT * (level.abs() + fold)


def _aligned(deviation: Tensor, node: Node) -> Tensor:
    """(1, *p) -> (1, 1, 1, .., *p) of the node's rank."""
    return deviation.reshape(1, 1, *(1,) * (len(node.shape) - deviation.ndim + 1), *deviation.shape[1:])


def _squared_down(x: Tensor) -> Tensor:
    """x^2, or 0 where it may have lost digits to underflow."""
    square = x**2
    return torch.where(square > LOST, square, 0.0)


@dataclass(frozen=True, eq=False)
class Uses:
    """Sums over the weights k of a node, over their uses: sum_k sigma_k^2 (|g_k| + r_k)^2 -> (K, M, R)."""

    node: Weighted
    deviation: Tensor
    a: Tensor
    variance: Tensor

    @property
    def _once(self) -> bool:
        """Every weight is used once."""
        node = self.node
        return isinstance(node, Linear) and math.prod(node.shape) == node.shape[node.axis]

    def most(self, center: Tensor, radius: Tensor) -> Tensor:
        """From above."""
        if self._once:
            return dot(self.variance, squared(center.abs() + radius))
        total, rest = self._sums(center, radius)
        return (squared(total + rest) * squared(self._flat)).sum(-1)

    def least(self, center: Tensor, radius: Tensor, shape: tuple[int, ...]) -> Tensor:
        """From below, for every h in the range: sum_k sigma_k^2 max(0, |g_k| - r_k)^2, up to relative roundings."""
        if self._once:
            variances = _squared_down(self.deviation)
            back = over_rows(lambda flat: maps.adjoint(self.node, variances, flat, shape), _squared_down(self.a))
            return dot((back - TINY).clamp(min=0), _squared_down((center.abs() - radius).clamp(min=0)))
        total, rest = self._sums(center, radius)
        return (_squared_down((total - rest).clamp(min=0)) * _squared_down(self._flat)).sum(-1)

    @property
    def _flat(self) -> Tensor:
        deviation = _aligned(self.deviation, self.node) if isinstance(self.node, Scale) else self.deviation
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
                shape = _aligned(self.deviation, node).shape[2:]
                return sum_to(a * h[:, :, None], shape).reshape(*a.shape[:3], -1)
            case Linear():
                left = a.movedim(node.axis + 3, -1).flatten(3, -2)  # (K, M, R, P, out)
                right = h.movedim(node.axis + 2, -1).flatten(2, -2)[:, :, None]  # (K, M, 1, P, in)
                return (left.mT @ right).flatten(3)
            case Conv():
                return _convolved(node, a, h)


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
    used = torch.einsum("kmrbgop,kmbgcp->kmrgoc", rows.expand(k, -1, -1, -1, -1, -1, -1), patches)
    return used.flatten(3)
