"""Correlated weights in the tails: what the groups of a posterior add to the bounds of `tail`.

The noise of the weights is W - mu = Delta + sum over groups of a linear map of its latents z (see `groups`), Delta with
independent entries and the groups independent of Delta and of each other. Nothing else changes: a row is at least
m0 + sum over layers of (all noise) . h(x) on G.

Bound 1 uses no independence: F is concave in Delta and all z together, its gradient in a group is sum over maps of
B (hc + rho e), so that the group adds (|sum B hc| + sum reach(rho))^2 to L^2, and s_j^2 = Var delta_j has a part of
every group.

Bounds 2 to 4 go through the stages in order. A group comes in the earliest stage that it moves, before the independent
noise of that stage. At the *first* node that it moves, first among the nodes, z is independent of h(x0), as Delta is:
h(x0) depends on nodes before it only, and is known by then, since every stage that the group moves lies behind h. At
other nodes h(x0) may depend on z. Let its term be
    T(z) = least of z.B h over [c - r, c + r] at the first node + least of z.B h over [hc - rho, hc + rho] at later ones
(biases: z.B). It is concave in z, the boxes are known before z, its mean given the past is at least minus
sqrt(2/pi) (sum rho'_j s_j at the first + sum rho_j s_j at later nodes), and its Lipschitz constant at most
|sum B hc| + sum reach(rho), since all of it lies in [hc - rho, hc + rho]. On G the row is at least m0 + the sum of all
terms, so the proof of bound 2 holds with one more step of the martingale for each group. In bound 3, S takes z.B h0 at
the first node and z.B hc at later ones: Gaussian given the past, its deviation within |sum B c| +- reach(r); Q takes
the rest, reach(rho') and reach(rho). In bound 4 the law of the input of an activation is the one given the past, to
which the groups of its own layer belong: they move m, enter with known coefficients, and have no amplitude. `middle`
is about m: it includes them, and pays minus sqrt(2/pi) sum rho_j s_j for what is later than first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnn_vnnlib.bounds.tails.groups import Group, Use, Weighted
from bnn_vnnlib.bounds.walk import sum_to
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Linear, Param, Shift
from bnn_vnnlib.rounding import TINY, gamma


@dataclass(frozen=True, eq=False)
class Correlation:
    """The groups of a posterior over one network; none for independent weights."""

    network: Network
    groups: tuple[Group, ...] = ()
    _units: dict[tuple[int, int], Use] = field(default_factory=dict, repr=False)

    def of(self, param: Param) -> tuple[int, ...]:
        """The groups that move a parameter."""
        return tuple(i for i, group in enumerate(self.groups) if param.source in group.sources)

    def first(self, index: int) -> int:
        """The first node that a group moves."""
        sources = self.groups[index].sources
        return min(
            position
            for position, node in enumerate(self.network.nodes)
            for param in (getattr(node, "weight", None), getattr(node, "bias", None))
            if param is not None and param.source in sources
        )

    def to(self, dtype: torch.dtype) -> Correlation:
        """Rounded to another floating type: for searches only."""
        return Correlation(self.network, tuple(group.to(dtype) for group in self.groups))

    def deviations(self, param: Param) -> list[Tensor]:
        """Marginal standard deviations (1, *parameter shape) by each group that moves a parameter."""
        return [self.groups[i].deviations(param) for i in self.of(param)]

    def reach(self, position: int, node: Weighted, near: Tensor) -> list[Tensor]:
        """By each group that moves a map, the Lipschitz constants (K, M, *output) of sum_j |Delta_ij| near_j."""
        if not isinstance(node, Linear) or math.prod(node.shape) != node.shape[node.axis]:
            return [
                maps.apply(node, part, near) * (1 + gamma(4 * maps.fan(node))) for part in self.deviations(node.weight)
            ]
        found = []
        for i in self.of(node.weight):
            if (i, position) not in self._units:
                self._units[i, position] = self._unit(i, node, [])
            reach = self._units[i, position].reach(near)
            found.append(reach.reshape(*reach.shape[:2], *node.shape))
        return found

    def _unit(self, index: int, node: Linear, centers: Sequence[Tensor]) -> Use:
        group, size = self.groups[index], math.prod(node.shape)
        shape = self.network.nodes[node.inputs[0]].shape
        like = group.deviations(node.weight)
        rows = torch.eye(size, dtype=like.dtype, device=like.device).reshape(1, 1, size, *node.shape)
        return group.use(node, rows, shape, centers)

    def unit_centers(self, index: int, node: Linear, center: Tensor) -> Use:
        """The same with B h for one h (K, M, *input)."""
        return self._unit(index, node, [center])


@dataclass(eq=False)
class _Part:
    """What a group has added so far: B h (K, M, R, latents) at hc, and at the centre for bound 3, with the lengths that
    come on top."""

    center: Tensor | float = 0.0
    reach: Tensor | float = 0.0
    split: Tensor | float = 0.0
    split_reach: Tensor | float = 0.0
    near: Tensor | float = 0.0


@dataclass(eq=False)
class Shared:
    """The groups during one walk.

    late : sum of rho_j s_j of groups at nodes that are not their first (K, M, R)
    play : 0 where the variances of bound 3 are no random variables
    """

    correlation: Correlation
    zero: Tensor
    detailed: bool
    parts: dict[int, _Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.late = self.play = self.zero

    def weighted(
        self, node: Weighted, position: int, a: Tensor, shape: tuple[int, ...], ranges: tuple[Tensor, Tensor],
        near: Tensor | None, around: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor | float, Tensor | float]:  # fmt: skip
        """Charge a map; returns sum of s_j^2 of all groups there, and of those whose first node it is.

        ranges, around : center and radius of h, and of h0 (for bound 3); near : rho' if it is known
        """
        square: Tensor | float = 0.0
        fresh: Tensor | float = 0.0
        for i in self.correlation.of(node.weight):
            first = self.correlation.first(i) == position
            inside = around if first and around is not None else ranges
            centers = [ranges[0], inside[0]] if self.detailed else [ranges[0]]
            use = self.correlation.groups[i].use(node, a, shape, centers)
            self._add(i, use, ranges, near if first else ranges[1], inside, first, 1)
            square = square + use.deviation**2
            if first:
                fresh = fresh + use.deviation**2
        return square, fresh

    def shift(self, node: Shift, a: Tensor, rank: int) -> None:
        """Charge a bias, for rows a (K or 1, M or 1, R, *output)."""
        param = node.bias
        aligned = torch.Size((1,) * (rank - len(param.shape)) + param.shape)
        for i in self.correlation.of(param):
            tied = sum_to(a, aligned)
            paid = gamma(2 * math.prod(node.shape)) * sum_to(a.abs(), aligned)
            group = self.correlation.groups[i]
            found, error = group.shift(param, tied)
            error = error + paid.flatten(3) @ group.deviations(param).flatten() + TINY
            part = self.parts.setdefault(i, _Part())
            part.center, part.split = part.center + found, part.split + found
            part.reach, part.split_reach, part.near = part.reach + error, part.split_reach + error, part.near + error

    def units(
        self, node: Linear, position: int, ranges: tuple[Tensor, Tensor], near: Tensor | None, repeat: int = 2
    ) -> tuple[Tensor | float, Tensor | float]:
        """`weighted` for the rows I, then -I if repeat is 2, over a dense layer; s_j^2 (out, in) of the rows I."""
        square: Tensor | float = 0.0
        fresh: Tensor | float = 0.0
        for i in self.correlation.of(node.weight):
            first = self.correlation.first(i) == position
            use = self.correlation.unit_centers(i, node, ranges[0])
            self._add(i, use, ranges, near if first else ranges[1], ranges, first, repeat)
            own = use.deviation.reshape(node.weight.shape) ** 2
            square = square + own
            if first:
                fresh = fresh + own
        return square, fresh

    def _add(
        self, index: int, use: Use, ranges: tuple[Tensor, Tensor], near: Tensor | None,
        inside: tuple[Tensor, Tensor], first: bool, repeat: int,
    ) -> None:  # fmt: skip
        """Of rows A (repeat 1) or A and -A (2)."""
        part = self.parts.setdefault(index, _Part())

        def both(rows: Tensor, sign: int = 1) -> Tensor:
            return torch.cat([rows, sign * rows], 2) if repeat == 2 else rows

        part.center = part.center + both(use.centers[0], -1)
        part.reach = part.reach + both(use.reach(ranges[1]) + use.slacks[0])
        if not first:
            self.late = self.late + both(use.fold(ranges[1]))
        if self.detailed:
            radius = inside[1] if first else torch.zeros_like(ranges[1])
            part.split = part.split + use.centers[-1]
            part.split_reach = part.split_reach + use.reach(radius) + use.slacks[-1]
            part.near = part.near + use.reach(ranges[1] if near is None else near)
            self.play = self.play + radius.reshape(*radius.shape[:2], 1, -1).amax(-1)

    @property
    def squares(self) -> list[Tensor]:
        """Parts of L^2."""
        return [(_length(part.center) + part.reach) ** 2 * _UP + TINY for part in self.parts.values()]

    @property
    def near_squares(self) -> list[Tensor]:
        """Parts of L'^2."""
        return [_tensor(part.near, self.zero) ** 2 * _UP + TINY for part in self.parts.values()]

    @property
    def most(self) -> list[Tensor]:
        """Parts of b."""
        return [(_length(part.split) + part.split_reach) ** 2 * _UP + TINY for part in self.parts.values()]

    @property
    def least(self) -> Tensor:
        """Part of a."""
        total = self.zero
        for part in self.parts.values():
            short = _length(part.split) * (1 - 2.0**-30) - part.split_reach
            total = total + (short.clamp(min=0) ** 2 * (1 - 2.0**-30) - TINY).clamp(min=0)
        return total


_UP = 1 + 2.0**-45


def _length(center: Tensor | float) -> Tensor:
    """|B h|, rounded up."""
    if not isinstance(center, Tensor):
        raise TypeError("a group without a use has no part")
    tiny = torch.finfo(center.dtype).tiny
    return torch.sqrt((center**2).sum(-1) + tiny) * (1 + gamma(center.shape[-1] + 16))


def _tensor(value: Tensor | float, zero: Tensor) -> Tensor:
    return zero + value
