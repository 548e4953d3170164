"""Backward walks as a whole: where they start (rows over nodes, or all units of a layer), and how they reach the input.

The rules of the nodes, and what is guaranteed, are in `linear`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds import block, interval, linear
from bnn_vnnlib.bounds.block import Block
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import INTERVAL, LINEAR, Rules
from bnn_vnnlib.bounds.walk import LinearForm, Ranges, Walk, filled, least_of_rows
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Activation, Conv, Input, Linear, Max, Reshape, Select, Shift, Transpose
from bnn_vnnlib.rounding import TINY
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

LAST_ROWS = 0.5
"""Seconds for the rows of an item whose ranges were cut off by the clock."""


def seeds_of(network: Network, outputs: Tensor) -> list[tuple[int, Tensor]]:
    """Split the columns of C (K, M, R, m) by output; a node may be listed twice."""
    shapes = [network.nodes[position].shape for position in network.outputs]
    parts = outputs.split([math.prod(shape) for shape in shapes], -1)
    return [
        (position, part.reshape(*part.shape[:3], *shape))
        for position, part, shape in zip(network.outputs, parts, shapes, strict=True)
    ]


def begin(
    network: Network,
    weights: WeightBoxes,
    ranges: Ranges,
    seeds: Sequence[tuple[int, Tensor]],
    count: tuple[int, int] | None = None,
    *,
    rough: bool = False,
    deadline: Deadline = Deadline(),
) -> Walk:
    """A walk that has not left its seeds; `count`: K and M, of which rows that are common to all have only 1."""
    lead = seeds[0][1]
    zero = lead.new_zeros(*(count or lead.shape[:2]), lead.shape[2])
    walk = Walk(network, weights, ranges, {}, zero, zero[..., :1], rough, deadline=deadline)
    for position, a in seeds:
        walk.give(position, Block(a))
    return walk


def common_walk(walk: Walk) -> int:
    """Go on as long as all methods do the same; the position of the first node where they do not, or of an input."""
    while walk.pending:
        last = max(walk.pending)
        node = walk.network.nodes[last]
        if isinstance(node, Input) or LINEAR[type(node)] is not INTERVAL[type(node)]:
            return last
        LINEAR[type(node)](walk, node, last, walk.pending.pop(last))
    return -1


@dataclass(frozen=True, eq=False)
class Descent:
    """A walk that has reached the input: rows over its nodes, each with its first scalar, and constants (K, M, R)."""

    rows: Sequence[tuple[int, Block]]
    offset: Tensor

    def form(self, size: int) -> LinearForm:
        """The rows as functions of x (K, M, R, size)."""
        rows, offset = [(start, a.flat) for start, a in self.rows], self.offset
        if len(rows) == 1 and rows[0][1].shape[-1] == size:
            return LinearForm(rows[0][1].expand(*offset.shape, size), offset)
        if not rows:
            return LinearForm(offset.new_zeros(()).expand(*offset.shape, size), offset, level=True)
        slope = offset.new_zeros(*offset.shape, size)
        for start, part in rows:
            slope[..., start : start + part.shape[-1]] += part
        return LinearForm(slope, offset)

    def minimum(self, box: Interval) -> Tensor:
        """`LinearForm.minimum` of the form, for which rows that have windows need not become whole."""
        size = box.lower.shape[-1]
        if len(self.rows) != 1 or math.prod((a := self.rows[0][1]).shape) != size:
            return self.form(size).minimum(box)
        return least_of_rows(
            a, self.offset, Interval(*(side.reshape(*side.shape[:2], *a.shape) for side in (box.lower, box.upper)))
        )


def descend(walk: Walk, last: int, rules: Rules) -> Descent:
    """Take a walk that has been started from node `last` to the input; raises OutOfTime (see `Walk.deadline`)."""
    rows: list[tuple[int, Block]] = []
    for position in range(last, -1, -1):
        if (a := walk.pending.pop(position, None)) is None:
            continue
        walk.deadline.check()
        node = walk.network.nodes[position]
        if isinstance(node, Input):
            rows.append((node.start, a))
        else:
            rules[type(node)](walk, node, position, a)
    # the payments themselves were added up with roundings; each of the sums may have lost its share of TINY
    offset = walk.constant - (walk.error * (1 + 2e-6) + TINY * len(walk.network.nodes))
    return Descent(rows, offset.nan_to_num(-torch.inf, -torch.inf, -torch.inf))


def finish(walk: Walk, last: int, size: int, rules: Rules) -> LinearForm:
    """Take a walk that has been started from node `last` to the input: its rows as functions of x (K, M, R, size)."""
    return descend(walk, last, rules).form(size)


def unit_walk(
    network: Network, weights: WeightBoxes, ranges: Ranges, position: int, index: Tensor, items: int,
    deadline: Deadline = Deadline(), sides: Sequence[int] = (0, 1),
) -> tuple[Walk, Descent]:  # fmt: skip
    """The rows of `block.units` for the elements in `index` of a node. Raises OutOfTime."""
    lead = weights.count, items
    zero = weights.scale.new_zeros(*lead, len(sides) * len(index))
    walk = Walk(network, weights, ranges, {}, zero, zero[..., :1], rough=True, deadline=deadline)
    walk.give(position, block.units(index, network.nodes[position].shape, lead, zero, sides))
    return walk, descend(walk, position, LINEAR)


def dense_units(
    network: Network, weights: WeightBoxes, ranges: Ranges, position: int, items: int, size: int
) -> LinearForm | None:
    """`unit_walk` for all elements of a dense layer's output, without storing an identity; None for any other node."""
    zero = weights.scale.new_zeros(weights.count, items, 2 * math.prod(network.nodes[position].shape))
    walk = Walk(network, weights, ranges, {}, zero, zero[..., :1], rough=True)
    return finish(walk, position, size, LINEAR) if start_at_units(walk, position) else None


def sides(network: Network, position: int) -> Sequence[tuple[int, ...]]:
    """The sides of a node's elements, from below (0) and from above (1), in the order in which they are walked.

    Where nothing but Relu reads the node, those from above come first: of an element that is below 0 the other one does
    not matter.
    """
    readers = [node for node in network.nodes if position in node.inputs]
    relu = all(isinstance(node, Activation) and node.kind == "relu" for node in readers)
    return ((1,), (0,)) if relu and position not in network.outputs else ((0, 1),)


def lengthy(network: Network, position: int) -> bool:
    """Whether a walk from all elements of a node fills a step with one item: then those that matter walk alone.

    A row holds as many numbers as the largest node or, where noise is collected, the largest kernel.
    """
    nodes = network.nodes[: position + 1]
    held = [math.prod(node.shape) for node in nodes]
    held += [math.prod(node.weight.shape) for node in nodes if isinstance(node, Conv)]
    return at_once(16 * math.prod(nodes[-1].shape) * max(held)) == 1


def start_at_units(walk: Walk, position: int) -> bool:
    """Start with the rows I and -I over a dense layer without ever storing the identity.

    Serves a Linear, or a Shift of one, whose output is a plain vector; returns False for any other node.
    """
    node, nodes = walk.network.nodes[position], walk.network.nodes
    bias = node if isinstance(node, Shift) else None
    place = position if bias is None else bias.inputs[0]
    dense = nodes[place]
    if not isinstance(dense, Linear) or math.prod(dense.shape) != dense.shape[dense.axis]:
        return False

    def both(tensor: Tensor, sign: int = 1) -> Tensor:
        return torch.cat([tensor, sign * tensor], 2)

    (source,) = dense.inputs
    box, shape = walk.weights.param(dense.weight), nodes[source].shape
    paid = walk.ranges.magnitudes[place]
    if bias is None:
        walk.gain(-both(walk.rate(math.prod(shape) + maps.fan(dense)) * paid.flatten(2)))
    else:
        b = walk.weights.addend(bias.bias, len(bias.shape))
        paid = walk.rate(math.prod(shape) + maps.fan(dense)) * (paid + b.magnitude)
        loss = paid if b.radius is None else paid + b.radius
        walk.gain(both(filled(b.center, bias).flatten(2), -1) - both(loss.flatten(2)))
    k, m = walk.constant.shape[:2]
    carried = both(box.center[:, None], -1).expand(k, m, -1, -1).reshape(k, m, -1, *shape)
    noises = [
        (both(part[:, None]).reshape(1, 1, -1, *shape), factor)
        for part, factor in ((box.spread, walk.weights.scale), (box.slack, None))
        if part is not None
    ]
    linear.carry(walk, source, Block(carried), [(Block(part), factor) for part, factor in noises])
    return True


def rivals(network: Network, weights: WeightBoxes, position: int, z: Interval) -> Tensor | None:
    """(K or 1, M, *shape): elements of a node in the range z that may be the largest of several, whatever moves them
    there; None: no maximum reads the node. Only their ranges matter to the lines around a maximum (`linear`)."""
    found: Tensor | None = None
    for place, node in enumerate(network.nodes):
        if position not in node.inputs:
            continue
        mine: Tensor | None = None
        if isinstance(node, Max):
            highest = z.upper >= z.lower.amax(-1, keepdim=True)
            mine = highest & (highest.sum(-1, keepdim=True) > 1)
        elif isinstance(node, Reshape | Transpose | Select):
            moved = rivals(network, weights, place, interval.RULES[type(node)](node, weights, z)[0])
            mine = None if moved is None else _moved_back(node, moved, network.nodes[position].shape)
        if mine is not None:
            found = mine if found is None else found | mine
    return found


def _moved_back(node: Reshape | Transpose | Select, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Elements of the input, from a mask (K or 1, M, *shape of the node)."""
    rows = Block(mask.to(torch.float64)[:, :, None])
    match node:
        case Transpose():
            found = block.transposed(rows, node.perm)
        case Select():
            found = block.select_back(node, rows, shape)
        case Reshape():
            found = block.reshaped(rows, shape)
    return found.values[:, :, 0] > 0
