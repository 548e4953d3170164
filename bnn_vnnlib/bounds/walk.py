"""The state of a backward walk, and what it ends in: linear functions of the input below the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bnn_vnnlib.bounds.block import Block
from bnn_vnnlib.bounds.curves import Lines
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Conv, Linear, Node, Scale
from bnn_vnnlib.rounding import TINY, UNIT, gamma
from bnn_vnnlib.system.clock import Deadline

RangeKey = tuple[str, int, int]


@dataclass(frozen=True, eq=False)
class Ranges:
    """What the forward pass left behind, by position of the node.

    values : enclosure of each node; magnitudes : see `interval`; lines : for activations, over their input's range
    """

    values: dict[int, Interval] = field(default_factory=dict)
    magnitudes: dict[int, Tensor] = field(default_factory=dict)
    lines: dict[int, Lines] = field(default_factory=dict)

    def tensors(self) -> dict[RangeKey, Tensor]:
        """Every tensor by (kind, position, number)."""
        out: dict[RangeKey, Tensor] = {}
        for position, z in self.values.items():
            out |= {("value", position, i): side for i, side in enumerate((z.lower, z.upper))}
        for position, size in self.magnitudes.items():
            out["magnitude", position, 0] = size
        for position, lines in self.lines.items():
            out |= {("line", position, i): part for i, part in enumerate(lines.parts)}
        return out

    @classmethod
    def of(cls, tensors: Mapping[RangeKey, Tensor]) -> Ranges:
        """The ranges from their tensors: the inverse of `tensors`."""
        groups: dict[str, dict[int, list[Tensor]]] = {"value": {}, "magnitude": {}, "line": {}}
        for (kind, position, _), tensor in tensors.items():
            groups[kind].setdefault(position, []).append(tensor)
        return cls(
            {position: Interval(*sides) for position, sides in groups["value"].items()},
            {position: size for position, (size,) in groups["magnitude"].items()},
            {position: Lines(*parts) for position, parts in groups["line"].items()},
        )

    def gather(self, index: Tensor) -> Ranges:
        """The ranges of a grid (K, M) of pairs, (K, M, *shape), from those of Q pairs, (Q, *shape)."""
        return self.of({key: tensor[index] for key, tensor in self.tensors().items()})


@dataclass(frozen=True, eq=False)
class LinearForm:
    """row(x) >= slope . x + offset for all x of the item's box and all weights of the box.

    slope (K, M, R, n), offset (K, M, R); all rounding is in the offset. level : the slope is 0 everywhere
    """

    slope: Tensor
    offset: Tensor
    level: bool = False

    def plus(self, inputs: Tensor, box: Interval) -> LinearForm:
        """Add exact rows G x, (M or 1, R, n): one rounding a coefficient, paid at |x|."""
        slope = self.slope + inputs
        paid = UNIT * (slope.abs() * box.magnitude[:, :, None]).sum(-1) * (1 + 1e-6)
        return LinearForm(slope, self.offset - paid - 2 * UNIT * self.offset.abs())

    def minimum(self, box: Interval) -> Tensor:
        """Lower bound (K, M, R) over the input box (1, M, n)."""
        return least_of_rows(None if self.level else Block(self.slope), self.offset, box)


def least_of_rows(rows: Block | None, offset: Tensor, box: Interval) -> Tensor:
    """Lower bound (K, M, R) of rows over the input plus an offset (K, M, R), over a box (1, M, *shape of the rows).

    Products and sums are off by less than (2 n + 8) u |slope| . |x|, for which the second product takes gamma(2 n) |x|
    along, and by a unit of the offset. Products with a vector: nothing of the size of the slopes is stored but their
    absolute values.
    """
    lower = offset
    if rows is not None:
        center, radius = box.center_radius
        reach = torch.add(radius, box.magnitude, alpha=gamma(2 * math.prod(rows.shape)))
        lower = rows.dot(center) - rows.abs().dot(reach) + lower
    return torch.sub(lower, offset.abs(), alpha=2 * UNIT).sub(TINY).nan_to_num(-torch.inf, -torch.inf, -torch.inf)


@dataclass(eq=False)
class Walk:
    """The state of one walk: coefficients still to be taken to the input, and what has been paid.

    pending : rows over nodes that wait; owed : what |A| of such a node still has to be charged with (K or 1, M or 1,
    *shape); constant (K, M, R); error (K, M, R or 1)
    rough : spend less on the noise of maps over a wide input, see `linear`
    largest : numbers that a row has held, at most
    deadline : looked at between the nodes; a walk that it cuts off raises OutOfTime
    """

    network: Network
    weights: WeightBoxes
    ranges: Ranges
    pending: dict[int, Block]
    constant: Tensor
    error: Tensor
    rough: bool = False
    owed: dict[int, Tensor] = field(default_factory=dict)
    largest: int = 1
    deadline: Deadline = Deadline()

    def copy(self) -> Walk:
        """A copy, to go on in another way from here."""
        return replace(self, pending=dict(self.pending), owed=dict(self.owed))

    def give(self, position: int, a: Block) -> None:
        """Add rows over a node; a sum of two is rounded."""
        if position in self.pending:
            self.settle(position)
            a = self.pending[position].plus(a)
            self.error = self.error + UNIT * a.abs().dot(self.ranges.values[position].magnitude)
        self.pending[position] = a
        self.largest = max(self.largest, a.values.shape[3:].numel())

    def owe(self, position: int, a: Block, loss: Tensor) -> None:
        """Give rows of which |a| . loss is to be taken off; a weighted map does it together with its own."""
        later = position not in self.pending and isinstance(self.network.nodes[position], Linear | Conv | Scale)
        self.give(position, a)
        if later:
            self.owed[position] = loss
        else:
            self.gain(-a.abs().dot(loss))

    def settle(self, position: int) -> None:
        """Take off what is owed for a node's coefficients as they are."""
        if position in self.owed:
            self.gain(-self.pending[position].abs().dot(self.owed.pop(position)))

    def underflow(self, position: int) -> None:
        """Pay for the products that make a node's coefficients: each may be off by TINY, whatever the node's value."""
        self.error = torch.add(self.error, self.ranges.values[position].extent, alpha=TINY)

    def rate(self, terms: int) -> float:
        """What is paid for sums of so many products, per sum of absolute products; see `linear` on rounding."""
        return 4 * gamma(2 * terms + len(self.network.nodes))

    def gain(self, value: Tensor) -> None:
        """Add a lower bound to the constant, in which its own rounding is paid for at a `rate`."""
        self.constant = self.constant + value


def filled(z: Tensor, node: Node) -> Tensor:
    """Broadcast (K or 1, M or 1, *shape that broadcasts) to the node's shape."""
    return z.expand(*z.shape[:2], *node.shape)


def some(rows: Tensor, part: slice) -> Tensor:
    """The rows (N or 1, R, ..) or (K, N, R, ..) of some items; rows that are common to all stay as they are."""
    if rows.dim() == 4:
        return rows[:, part]
    return rows if len(rows) == 1 else rows[part]


def completed(parts: Sequence[Tensor], shape: Sequence[int], fill: float, like: Tensor, axis: int = 0) -> Tensor:
    """The parts of a tensor of this shape along an axis; what is missing at its end is filled (see `clock`)."""
    left = shape[axis] - sum(part.shape[axis] for part in parts)
    if left == 0 and parts:
        return parts[0] if len(parts) == 1 else torch.cat(list(parts), axis)
    return torch.cat([*parts, like.new_full((*shape[:axis], left, *shape[axis + 1 :]), fill)], axis)
