"""The state of a backward walk, and what it ends in: linear functions of the input below the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnn_vnnlib.bounds.curves import Lines
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.rounding import TINY, UNIT, gamma
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model.network import Network
from bnn_vnnlib.model.nodes import Node

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
            out |= {("line", position, i): part for i, part in enumerate(vars(lines).values())}
        return out

    @classmethod
    def of(cls, tensors: Mapping[RangeKey, Tensor]) -> Ranges:
        """The inverse of `tensors`."""
        groups: dict[str, dict[int, list[Tensor]]] = {"value": {}, "magnitude": {}, "line": {}}
        for (kind, position, _), tensor in tensors.items():
            groups[kind].setdefault(position, []).append(tensor)
        return cls(
            {position: Interval(*sides) for position, sides in groups["value"].items()},
            {position: size for position, (size,) in groups["magnitude"].items()},
            {position: Lines(*parts) for position, parts in groups["line"].items()},
        )

    def gather(self, index: Tensor) -> Ranges:
        """From tensors (Q, *shape) those of a grid (K, M) of Q: (K, M, *shape)."""
        return self.of({key: tensor[index] for key, tensor in self.tensors().items()})


@dataclass(frozen=True, eq=False)
class LinearForm:
    """row(x) >= slope . x + offset for all x of the item's box and all weights of the box.

    slope (K, M, R, n), offset (K, M, R); all rounding is in the offset.
    """

    slope: Tensor
    offset: Tensor

    def plus(self, inputs: Tensor, box: Interval) -> LinearForm:
        """Add exact rows G x, (M or 1, R, n): one rounding a coefficient, paid at |x|."""
        slope = self.slope + inputs
        paid = UNIT * (slope.abs() * box.magnitude[:, :, None]).sum(-1) * (1 + 1e-6)
        return LinearForm(slope, self.offset - paid - 2 * UNIT * self.offset.abs())

    def minimum(self, box: Interval) -> Tensor:
        """Lower bound (K, M, R) over the input box (1, M, n)."""
        xc = (box.lower + box.upper) / 2
        xr = torch.maximum(box.upper - xc, xc - box.lower) * (1 + 2 * UNIT)
        g = gamma(2 * xc.shape[-1])
        # products with a vector: nothing of the size of the slopes is stored but their absolute values
        value = dot(self.slope, xc) - dot(self.slope.abs(), xr * (1 + g) + g * xc.abs()) * (1 + g)
        lower = value + self.offset
        lower = lower - 4 * UNIT * (value.abs() + self.offset.abs()) - TINY
        return lower.nan_to_num(-torch.inf, torch.inf, -torch.inf)


@dataclass(eq=False)
class Walk:
    """The state of one walk: coefficients still to be taken to the input, and what has been paid.

    rough : spend less on the noise of maps over a wide input, see `linear`
    """

    network: Network
    weights: WeightBoxes
    ranges: Ranges
    pending: dict[int, Tensor]
    constant: Tensor
    error: Tensor
    rough: bool = False

    def give(self, position: int, a: Tensor) -> None:
        """Add coefficients (K, M, R, *shape) to a node; a sum of two is rounded."""
        if position in self.pending:
            a = self.pending[position] + a
            self.error = self.error + UNIT * dot(a.abs(), self.ranges.values[position].magnitude)
        self.pending[position] = a

    def underflow(self, position: int) -> None:
        """Pay for the products that make a node's coefficients: each may be off by TINY, whatever the node's value."""
        magnitude = self.ranges.values[position].magnitude
        self.error = self.error + (TINY * magnitude).reshape(*magnitude.shape[:2], 1, -1).sum(-1)

    def gain(self, value: Tensor, error: Tensor) -> None:
        """Add to the constant; `error` bounds the error of `value`."""
        self.constant = self.constant + value
        self.error = self.error + error + 2 * UNIT * (self.constant.abs() + value.abs())


def dot(a: Tensor, z: Tensor) -> Tensor:
    """Sum over the node of a (K, M, R, *shape) times z (K or 1, M or 1, *shape) -> (K, M, R)."""
    return (a.reshape(*a.shape[:3], -1) @ z.reshape(*z.shape[:2], -1, 1))[..., 0]


def over_rows(move: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """Apply a function of (K, M, *shape) to (K, M, R, *shape)."""
    return move(a.flatten(1, 2)).unflatten(1, a.shape[1:3])


def filled(z: Tensor, node: Node) -> Tensor:
    """Broadcast (K or 1, M or 1, *shape that broadcasts) to the node's shape."""
    return z.expand(*z.shape[:2], *node.shape)


def sum_to(a: Tensor, shape: torch.Size) -> Tensor:
    """Sum (K, M, R, *full) over the axes along which `shape` (same rank) was broadcast."""
    axes = [3 + i for i, (full, part) in enumerate(zip(a.shape[3:], shape, strict=True)) if part == 1 != full]
    return a.sum(axes, keepdim=True) if axes else a


def some(rows: Tensor, part: slice) -> Tensor:
    """The rows (N or 1, R, ..) or (K, N, R, ..) of some items; rows that are common to all stay as they are."""
    if rows.dim() == 4:
        return rows[:, part]
    return rows if len(rows) == 1 else rows[part]
