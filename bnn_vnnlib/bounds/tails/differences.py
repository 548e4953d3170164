"""A tighter rho' (see `variation`): rows of the differences h(x) - h(x0), walked back to x - x0.

Differences obey the network without its biases, with lines of their own: on G an activation whose slopes lie in
[c - r, c + r] over the range of its input has |f(z + d) - f(z) - c d| <= r |d| <= r rho'. What is left of a row,
    |row| <= |a (x - x0)| + sum of r rho' + sum over maps of rho'_j |delta_j|,
is a convex function of the noise, and bound 1 of `tail` serves it. Rows e_i are enough: everything is symmetric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds import backward
from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.block import Block
from bnn_vnnlib.bounds.curves import Lines
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import LINEAR, Rules
from bnn_vnnlib.bounds.tails.noise import Noise
from bnn_vnnlib.bounds.tails.tail import Normal
from bnn_vnnlib.bounds.tails.variation import Variation
from bnn_vnnlib.bounds.walk import Ranges, Walk
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Activation, Constant, Linear, Max, Node, Product, Shift
from bnn_vnnlib.rounding import UNIT
from bnn_vnnlib.system.clock import Deadline


@dataclass(eq=False)
class RangeDifferences:
    """The differences on G, from what is known of them so far."""

    network: Network
    means: WeightBoxes
    deviations: WeightBoxes
    box: Interval
    ranges: Ranges
    variation: Variation
    deadline: Deadline = Deadline()

    def bound(self, position: int, rows: Block) -> Normal:
        """Normal whose quantile is at most -|row of differences| with the probability asked for."""
        walk, noise = self._start(position, rows.values.new_zeros(rows.values.shape[:3]))
        walk.give(position, rows)
        return self._finish(walk, noise, position)

    def dense(self, position: int) -> Normal | None:
        """What `rows` gives for all rows e_i over a dense layer, without an identity; None for any other node."""
        nodes = self.network.nodes
        node = nodes[position]
        place = node.inputs[0] if isinstance(node, Shift) else position
        weighted = nodes[place]
        if not isinstance(weighted, Linear) or math.prod(weighted.shape) != weighted.shape[weighted.axis]:
            return None
        (source,), box = weighted.inputs, self.means.param(weighted.weight)
        if box.slack is not None:
            return None
        near = self.variation.known[source]
        magnitude = 2 * self.ranges.magnitudes[place].flatten(2)
        walk, noise = self._start(position, torch.zeros_like(magnitude).expand(*self.box.lower.shape[:2], -1))
        noise.rows_of(weighted, place, near)
        walk.gain(-walk.rate(near[0, 0].numel() + maps.fan(weighted)) * magnitude)
        walk.underflow(source)
        shape = nodes[source].shape
        rows = box.center.expand(*self.box.lower.shape[:2], -1, -1).reshape(*walk.constant.shape, *shape)
        walk.give(source, Block(rows))
        return self._finish(walk, noise, source)

    def _start(self, position: int, zero: Tensor) -> tuple[Walk, Noise]:
        values = {p: Interval(-near, near) for p, near in self.variation.known.items()}
        # a difference is at most twice the largest value
        magnitudes = {p: 2 * magnitude for p, magnitude in self.ranges.magnitudes.items()}
        lines = {p: self._lines(p) for p in self.ranges.lines if p < position}
        ranges, paid = Ranges(values, magnitudes, lines), zero[..., :1]
        walk = Walk(self.network, self.means, ranges, {}, zero, paid, deadline=self.deadline)
        return walk, Noise(self.deviations, None, zero, correlation=self.variation.correlation)

    def _finish(self, walk: Walk, noise: Noise, last: int) -> Normal:
        rules: Rules = {**noise.rules(), Activation: LINEAR[Activation], Shift: _same, Constant: _nothing,
                        Product: _stop, Max: _stop}  # fmt: skip
        _, radius = self.box.center_radius
        lowest = backward.descend(walk, last, rules).minimum(Interval(-radius, radius))
        (normal,) = noise.tail(lowest).bounds
        if not isinstance(normal, Normal):
            raise TypeError("without a variation there is one normal bound")
        return normal

    def _lines(self, position: int) -> Lines:
        """c d - r rho' <= f(z + d) - f(z) <= c d + r rho'."""
        node = self.network.nodes[position]
        if not isinstance(node, Activation):
            raise TypeError("only activations have lines")
        (source,) = node.inputs
        z = self.ranges.values[source]
        least, most = ACTIVATIONS[node.kind].slopes(node.alpha, z.lower, z.upper)
        slope = (least + most) / 2
        reach = (torch.maximum(most - slope, slope - least) * (1 + 2 * UNIT)) * self.variation.known[source]
        offset = torch.where(torch.isfinite(slope), reach * (1 + 2 * UNIT), self.variation.known[position])
        slope = torch.where(torch.isfinite(slope), slope, 0.0)
        return Lines(slope, -offset, slope, offset)


def _same(walk: Walk, node: Shift, position: int, a: Block) -> None:
    walk.give(node.inputs[0], a)


def _nothing(walk: Walk, node: Constant, position: int, a: Block) -> None:
    """Take rows over a constant off: it does not vary."""


def _stop(walk: Walk, node: Node, position: int, a: Block) -> None:
    """End rows over a node that is not linear: it varies by its rho' at most."""
    near = walk.ranges.values[position].upper
    walk.gain(-(1 + walk.rate(math.prod(node.shape))) * a.abs().dot(near))
