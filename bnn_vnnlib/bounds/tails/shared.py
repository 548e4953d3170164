"""Correlated weights in the tails: Gaussian noise that entries of weights share, and what it adds to the bounds.

1. Groups. A group is a set of independent standard normal latents z and a linear map from z to some weights. For a row
A at a map the noise is delta . h with delta_j = sum_r z_r B_rj, B linear in A, and as a function of z
    delta . h = z . (B h),  a gradient of length |B h|,  h = hc + rho e, |e_j| <= 1.
So its Lipschitz constant over a range of h is at most |B hc| + reach(rho), reach(rho) = sup over e of |B (rho e)|. With
s_j = |B_.j| = sd of delta_j and C the correlation matrix of delta, C_jk = B_.j . B_.k / (s_j s_k),
    reach(rho) <= sum_j rho_j s_j  and  reach(rho)^2 = d' C d <= lam |d|^2,  d_j = e_j rho_j s_j,
lam >= the largest eigenvalue of C, for which |C^2| in the norms of Frobenius and of the maximal row sum is taken, and
the root of it. A map with tied weights is no exception: B is what the adjoint map gives for the r-th factor.
Rounding: an entry of B is a sum of products whose errors, over all r, have a length of at most gamma (|A| dev)_j, dev
the marginal standard deviations (triangle inequality), which is added wherever B is used.

2. What the groups of a posterior add to the bounds of `tail`. The noise of the weights is W - mu = Delta + sum over
groups of a linear map of its latents z, Delta with independent entries and the groups independent of Delta and of each
other. Nothing else changes: a row is at least m0 + sum over layers of (all noise) . h(x) on G.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bnn_vnnlib.bounds.block import Block, over_rows
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Linear, Param, Shift, WeightedMap
from bnn_vnnlib.rounding import TINY, UNIT, gamma
from bnn_vnnlib.system.memory import at_once

# 1. Groups

_SMALL = 1e-140
"""Added to every deviation, so that one can divide."""

_MAX_CORRELATED = 256
"""Inputs (or latents), at most, of which a matrix of correlations is formed: it has the square of as many entries."""


@dataclass(frozen=True, eq=False)
class Use:
    """A group at one map, for rows A; (K or 1, M or 1, R, ..).

    deviation : s_j (.., *input), rounded up; error : length of the rounding errors of B_.j, alike
    lam : of the correlations, infinite where unknown; flat : f with reach(rho) <= f |rho|, infinite where unknown
    centers : B h (K, M, R, latents) for each h asked for, slacks : length of the error of each (K, M, R)
    """

    deviation: Tensor
    error: Tensor
    lam: Tensor
    flat: Tensor
    centers: tuple[Tensor, ...]
    slacks: tuple[Tensor, ...]

    def reach(self, radius: Tensor) -> Tensor:
        """(K, M, R): the Lipschitz constant of the noise over |h| <= radius (K, M, *input), rounded up."""
        rho = radius.flatten(2)[:, :, None]
        d = self.deviation.flatten(3) * rho
        n, tiny = d.shape[-1], torch.finfo(d.dtype).tiny
        paid = (self.error.flatten(3) * rho).sum(-1)
        root = torch.sqrt((d**2).sum(-1) + tiny) * torch.sqrt(self.lam) + paid
        size = torch.sqrt((rho**2).sum(-1) + tiny) * self.flat + paid
        least = torch.minimum(root, size).nan_to_num(torch.inf)
        return torch.minimum(d.sum(-1), least) * (1 + gamma(2 * n + 16)) + TINY

    def fold(self, radius: Tensor) -> Tensor:
        """(K, M, R): sum of rho_j s_j, up to a rounding."""
        return (self.deviation * radius[:, :, None]).flatten(3).sum(-1)


@dataclass(frozen=True, eq=False)
class Dense:
    """Latents with a factor for every entry: roots name -> (k, *shape)."""

    roots: Mapping[str, Tensor]
    _cache: dict[object, object] = field(default_factory=dict, repr=False)

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors that it moves."""
        return tuple(self.roots)

    @property
    def latents(self) -> int:
        """k, the number of latents."""
        return len(next(iter(self.roots.values())))

    def to(self, dtype: torch.dtype) -> Dense:
        """The group, rounded to another floating type: for searches only."""
        return Dense({name: root.to(dtype) for name, root in self.roots.items()})

    def deviations(self, param: Param) -> Tensor:
        """Marginal standard deviations (1, *parameter shape), rounded up."""
        root = self._factor(param)
        return torch.sqrt((root**2).sum(0, keepdim=True) + TINY) * (1 + gamma(len(root) + 8))

    def shift(self, param: Param, a: Tensor) -> tuple[Tensor, Tensor]:
        """B (K, M, R, k) of a bias, and the length of its error; a (K, M, R, *parameter shape), summed over places."""
        factor = self._factor(param)
        root, a = factor.reshape(len(factor), -1), a.reshape(*a.shape[:3], -1)  # one number has no axes to flatten
        size = a.abs() @ self.deviations(param).flatten()
        return a @ root.mT, gamma(2 * root.shape[1] + 8) * size

    def use(self, node: WeightedMap, a: Tensor, shape: tuple[int, ...], centers: Sequence[Tensor]) -> Use:
        """How the group enters rows a (K or 1, M or 1, R, *output) over a map whose input has that shape; centers (K,
        M, *input).
        """
        lead, root = a.shape[:3], self._factor(node.weight)
        upper = over_rows(lambda flat: maps.adjoint(node, self.deviations(node.weight), flat, shape), a.abs())
        size = math.prod(shape)
        step = at_once(4 * len(root) * size * lead[0] * lead[1])
        parts = [self._part(node, root, rows, shape, centers) for rows in a.split(step, 2)]
        deviation, lam, *found = (torch.cat(part, 2) for part in zip(*parts, strict=True))
        terms = gamma(2 * (math.prod(node.shape) + maps.fan(node) + size) + 16)
        error = terms * upper
        deviation = (deviation.reshape(*lead, *shape) + error) * (1 + 4 * UNIT)
        return Use(deviation, error, lam, torch.full_like(lam, torch.inf), tuple(found), _slacks(error, centers))

    def _part(
        self, node: WeightedMap, root: Tensor, a: Tensor, shape: tuple[int, ...], centers: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """s_j (.., input), lam and the centers of some rows."""
        lead = a.shape[:3]
        b = maps.adjoint(node, root, a.reshape(1, -1, *a.shape[3:]), shape).flatten(2).movedim(0, 1)  # (rows, k, input)
        deviation = torch.sqrt((b**2).sum(1) + max(torch.finfo(b.dtype).tiny, _SMALL**2)) * (1 + gamma(len(root) + 8))
        unit = b / deviation[:, None]
        fewer = unit.shape[1] <= unit.shape[2]  # latents than inputs: the same eigenvalues but for zeros
        gram = unit @ unit.mT if fewer else unit.mT @ unit
        lam = largest(gram, unit.shape[1] + unit.shape[2], not fewer)
        b = b.reshape(*lead, *b.shape[1:])
        found = [(b @ h.flatten(2)[:, :, None, :, None])[..., 0] for h in centers]
        return deviation.reshape(*lead, -1), lam.reshape(lead), *found

    def _factor(self, param: Param) -> Tensor:
        """(k, *parameter shape); a factor that is no sign is rounded, which the allowance for sums covers."""
        root = self.roots[param.source]
        index = torch.as_tensor(param.index, device=root.device).reshape(-1)
        factor = torch.as_tensor(param.factor, dtype=root.dtype, device=root.device)
        return root.reshape(len(root), -1)[:, index].reshape(len(root), *param.shape) * factor


@dataclass(frozen=True, eq=False)
class Kron:
    """Latents Z (a, b) with W = left (sqrt(spectrum) Z) right' for the (out, in) weight of dense layers.

    left (out, a), right (in, b), spectrum (a, b); bias : the name of a bias that takes part, or "", with
    bias_left (entries, a) and bias_right (b,) or (entries, b) and (a,): one of the two has the entries.
    """

    source: str
    left: Tensor
    right: Tensor
    spectrum: Tensor
    bias: str = ""
    bias_left: Tensor | None = None
    bias_right: Tensor | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors that it moves."""
        return (self.source, self.bias) if self.bias else (self.source,)

    @property
    def latents(self) -> int:
        """Number of independent latents: the a b entries of a Kronecker factor."""
        return self.spectrum.numel()

    def to(self, dtype: torch.dtype) -> Kron:
        """The group, rounded to another floating type: for searches only."""
        tensors: dict[str, Any] = {name: v.to(dtype) for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)

    def deviations(self, param: Param) -> Tensor:
        """Marginal standard deviations (1, *parameter shape), rounded up."""
        left, right = self._sides(param)
        square = (left**2) @ self.spectrum @ (right**2).mT
        up = 1 + gamma(2 * self.latents + 16)
        return (torch.sqrt(square + TINY) * up).reshape(1, *param.shape)

    def shift(self, param: Param, a: Tensor) -> tuple[Tensor, Tensor]:
        """B (K, M, R, latents) of the bias, and the length of its error."""
        left, right = self._sides(param)
        rows = a.flatten(3)
        found = (rows @ left)[..., :, None] * right if len(right) == 1 else left.mT * (rows @ right)[..., None, :]
        size = rows.abs() @ self.deviations(param).flatten()
        return (torch.sqrt(self.spectrum) * found).flatten(3), gamma(2 * rows.shape[-1] + 16) * size

    def use(self, node: WeightedMap, a: Tensor, shape: tuple[int, ...], centers: Sequence[Tensor]) -> Use:
        """How the group enters rows a (K or 1, M or 1, R, *output) over a map whose input has that shape; centers (K,
        M, *input).
        """
        lead, size = a.shape[:3], math.prod(shape)
        upper = over_rows(lambda flat: maps.adjoint(node, self.deviations(node.weight), flat, shape), a.abs())
        terms = gamma(2 * (sum(self.left.shape) + sum(self.right.shape) + size) + 32)
        u = a.flatten(3) @ self.left  # (.., R, a)
        weight = (u**2) @ self.spectrum  # (.., R, b)
        up, tiny = 1 + terms, max(torch.finfo(u.dtype).tiny, _SMALL**2)
        deviation = torch.sqrt(weight @ (self.right**2).mT + tiny) * up
        flat = torch.sqrt(weight.amax(-1) * largest(self.right.mT @ self.right, size, False) + tiny) * up
        lam = torch.full_like(flat, torch.inf) if size > _MAX_CORRELATED else self._lam(weight, deviation)
        root, error = torch.sqrt(self.spectrum), terms * upper
        across = [(h.flatten(2) @ self.right)[:, :, None, None, :] for h in centers]
        found = tuple((u[..., :, None] * h * root).flatten(3) for h in across)
        deviation = (deviation.reshape(*lead, *shape) + error) * (1 + 4 * UNIT)
        return Use(deviation, error, lam, flat, found, _slacks(error, centers))

    def _lam(self, weight: Tensor, deviation: Tensor) -> Tensor:
        """lam of V diag(weight) V', V = right, row by row."""
        n = self.right.shape[0]
        step = at_once(4 * n * max(n, self.right.shape[1]) * weight.shape[0] * weight.shape[1])
        found = []
        for w, s in zip(weight.split(step, 2), deviation.split(step, 2), strict=True):
            unit = self.right / s[..., None]  # (.., R, in, b)
            found.append(largest((unit * w[..., None, :]) @ unit.mT, sum(self.right.shape)))
        return torch.cat(found, 2)

    def _sides(self, param: Param) -> tuple[Tensor, Tensor]:
        if param.source == self.source:
            return self.left, self.right
        if self.bias_left is None or self.bias_right is None:
            raise TypeError("the layer has no bias")
        return self.bias_left, self.bias_right


Group = Dense | Kron


def _slacks(error: Tensor, centers: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Lengths (K, M, R) of the errors of B h; those of the sum over j are in the allowance, too."""
    return tuple((error * h.abs()[:, :, None]).flatten(3).sum(-1) * (1 + 2.0**-40) + TINY for h in centers)


def largest(gram: Tensor, terms: int, unit: bool = True) -> Tensor:
    """Upper bound (..) on the largest eigenvalue of positive semi-definite matrices (.., n, n).

    terms : products in one entry; unit : the diagonal is at most 1, as of correlations
    """
    n = gram.shape[-1]
    scale = torch.ones_like(gram[..., 0, 0]) if unit else gram.diagonal(dim1=-2, dim2=-1).amax(-1)
    square = gram @ gram
    found = torch.minimum(square.abs().sum(-1).amax(-1), torch.linalg.matrix_norm(square))
    # entries are at most `scale` (Cauchy, Schwarz) with errors gamma scale, those of the square n gamma scale^2
    return torch.sqrt(found + 8 * n**2 * gamma(2 * n + terms + 16) * scale**2) * (1 + 8 * UNIT)


# 2. What groups add to the bounds


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
        """All groups, rounded to another floating type: for searches only."""
        return Correlation(self.network, tuple(group.to(dtype) for group in self.groups))

    def deviations(self, param: Param) -> list[Tensor]:
        """Marginal standard deviations (1, *parameter shape) by each group that moves a parameter."""
        return [self.groups[i].deviations(param) for i in self.of(param)]

    def reach(self, position: int, node: WeightedMap, near: Tensor) -> list[Tensor]:
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
        """The rows I over a dense layer, with B h for one h (K, M, *input)."""
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
        self, node: WeightedMap, position: int, a: Tensor, shape: tuple[int, ...], ranges: tuple[Tensor, Tensor],
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
            tied = Block(a).over(aligned).values
            paid = gamma(2 * math.prod(node.shape)) * Block(a.abs()).over(aligned).values
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
        """Add what group `index` does at one map to its sums over the walk: for rows A (repeat 1), or for A and then -A
        (2).
        """
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
        """The parts of L^2 that the groups add, one for each."""
        return [(_length(part.center) + part.reach) ** 2 * _UP + TINY for part in self.parts.values()]

    @property
    def near_squares(self) -> list[Tensor]:
        """The parts of L'^2 that the groups add, one for each."""
        return [_tensor(part.near, self.zero) ** 2 * _UP + TINY for part in self.parts.values()]

    @property
    def most(self) -> list[Tensor]:
        """The parts that the groups add to b, the upper bound on the variance of S in bound 3."""
        return [(_length(part.split) + part.split_reach) ** 2 * _UP + TINY for part in self.parts.values()]

    @property
    def least(self) -> Tensor:
        """What the groups together add to a, the lower bound on the variance of S in bound 3."""
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
