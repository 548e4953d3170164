"""What the noise of the weights adds up to during one walk.

1. `Uses`: sums over the weights of one map, over all places where a weight is used.
2. `Noise`: the sums of all nodes, collected on the way back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn_vnnlib.bounds import linear
from bnn_vnnlib.bounds.block import Block, adjoint, dot, single
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import LINEAR, Rules
from bnn_vnnlib.bounds.tails.shared import Correlation, Shared
from bnn_vnnlib.bounds.tails.tail import FOLD, MarginSplit, Martingale, Normal, Swing, Tail
from bnn_vnnlib.bounds.tails.variation import Moments, Variation
from bnn_vnnlib.bounds.walk import Walk, filled
from bnn_vnnlib.bounds.weights import ParamBox, WeightBoxes, aligned
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.nodes import (
    Activation,
    Concat,
    Conv,
    Linear,
    Node,
    Param,
    Reshape,
    Scale,
    Shift,
    Sum,
    Transpose,
    WeightedMap,
)
from bnn_vnnlib.rounding import TINY, UNIT, gamma, squared, squared_down

# 1. One map


Range = tuple[Tensor, Tensor]
"""Range of a node, as its center and its radius."""


@dataclass(frozen=True, eq=False)
class Uses:
    """Sums over the weights k of a node, over their uses: sum_k sigma_k^2 (|g_k| + r_k)^2 -> (K, M, R).

    a : rows over the output, amplitude : the same or None, added to |A| where signs are not known; shape : of the
    node's input
    """

    node: WeightedMap
    box: ParamBox
    a: Block
    amplitude: Block | None
    shape: tuple[int, ...]

    @property
    def deviation(self) -> Tensor:
        """sigma, the standard deviations of the weights."""
        if self.box.spread is None:
            raise TypeError("a map without noise has no uses")
        return self.box.spread

    @cached_property
    def squares(self) -> Block:
        """A^2, rounded up."""
        return self.a.holding(squared(self.a.values))

    @cached_property
    def plain(self) -> Block:
        """s_j^2, rounded up."""
        return self._variance(self.squares)

    @cached_property
    def root(self) -> Block:
        """s_j, up to a rounding."""
        return self.plain.holding(torch.sqrt(self.plain.values))

    @cached_property
    def variance(self) -> Block:
        """s_j^2 with the amplitudes, rounded up."""
        if self.amplitude is None:
            return self.plain
        total = self.a.abs().plus(self.amplitude)
        return self._variance(total.holding(squared(total.values)))

    @property
    def terms(self) -> int:
        """Products in one sum, at most."""
        weights = 0 if self.once else math.prod(self.node.weight.shape)
        return math.prod(self.shape) + math.prod(self.node.shape) + maps.fan(self.node) + weights

    def most(self, ranges: Sequence[Range]) -> Sequence[Tensor]:
        """Upper bounds on the sums (K, M, R), for each range of h."""
        if self.once:
            return self.variance.dots([squared(center.abs() + radius) for center, radius in ranges])
        return [self._most(center, radius) for center, radius in ranges]

    def _most(self, center: Tensor, radius: Tensor) -> Tensor:
        total, rest = self._sums(center, radius)
        if self.amplitude is not None:
            rest = rest + self._uses(self.amplitude, center.abs() + radius)
        reach, square = total + rest, squared(self._flat)
        # up to three sums and a square have lost up to TINY to underflow: 8 TINY (1 + reach^2) at most, whose second
        # part is nothing beside the relative roundings that `_add_use` pays for
        return (reach * reach) @ square + 8 * TINY * square.sum()

    def least(self, center: Tensor, radius: Tensor) -> Tensor:
        """Lower bounds on the sums for every h in the range: sum_k sigma_k^2 max(0, |g_k| - r_k)^2, up to relative
        roundings.

        For a weight that is used once, `plain` is s_j^2 apart from relative roundings and an `_excess`.
        """
        if self.once:
            square = squared_down((center.abs() - radius).clamp(min=0))
            added = _excess(self.squares.values, self.box, self.terms)
            return self.plain.dot(square) - added * square.flatten(2).sum(-1, keepdim=True)
        total, rest = self._sums(center, radius)
        return squared_down((total - rest).clamp(min=0)) @ squared_down(self._flat)

    @property
    def once(self) -> bool:
        """Whether every weight is used once."""
        node = self.node
        if isinstance(node, Linear):
            return math.prod(node.shape) == node.shape[node.axis]
        return single(node, self.a) and self.amplitude is None

    def _variance(self, squares: Block) -> Block:
        found = adjoint(self.node, self.box.variance, squares, self.shape)
        return found.holding(found.values.add_(TINY))  # a sum of products, which nobody else has

    @property
    def _flat(self) -> Tensor:
        return self.deviation.reshape(-1)

    def _sums(self, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """|g_k|, and r_k with what the rounding of the signed sums may have cost, a share of the sums of |A| |h|; up to
        TINY each."""
        wider = torch.add(radius + TINY, center.abs() + radius, alpha=gamma(2 * math.prod(self.node.shape)))
        return self._uses(self.a, center).abs(), self._uses(self.a.abs(), wider)

    def _uses(self, a: Block, h: Tensor) -> Tensor:
        """Sums (K, M, R, weights) of A_i h_j over the uses of each weight."""
        node = self.node
        match node:
            case Scale():
                shape = aligned(self.deviation, len(node.shape)).shape[2:]
                return a.holding(a.values * a.see(h)).over(shape).whole.flatten(3)
            case Linear():
                a, size = a.spanning(node.axis), self.shape[node.axis]
                read = h[:, :, None] if a.place is None else a.place.replaced(node.axis, size, size, 0).see(h)
                left = a.values.movedim(node.axis + 3, -1).flatten(3, -2)  # (K, M, R, P, out)
                right = read.movedim(node.axis + 3, -1).flatten(3, -2)  # (K, M, R or 1, P, in)
                return (left.mT @ right).flatten(3)
            case Conv():
                return _convolved(node, a.spanning(1), h)


def _excess(squares: Tensor, box: ParamBox, terms: int) -> Tensor:
    """(K, M, R): what is added for underflow to a sum of less than `terms` products A^2 sigma^2.

    `squared` adds at most TINY to each factor, and for products and sum there are 2 TINY: less than
    TINY (sum of A^2 + sum of sigma^2 + terms + 2), with a factor of 2 for relative roundings.
    """
    return 2 * TINY * (squares.reshape(*squares.shape[:3], -1).sum(-1) + (box.total + (terms + 2)))


def _convolved(node: Conv, a: Block, h: Tensor) -> Tensor:
    """The gradient of a . conv(h) with respect to the kernel; windows of a have all channels."""
    k, m = h.shape[:2]
    batch, outputs = node.shape[:2]
    top, left, bottom, right = node.pads
    image = F.pad(h.reshape(k * m * batch, *h.shape[3:]), (left, right, top, bottom))
    kernel = node.weight.shape[2:]
    patches = F.unfold(image, kernel, dilation=node.dilations, stride=node.strides)  # (K M B, C kernel, places)
    per_group = node.weight.shape[1] * math.prod(kernel)
    patches = patches.reshape(k, m, batch, node.groups, per_group, -1)
    if a.place is None:
        rows = a.values.reshape(*a.values.shape[:3], batch, node.groups, outputs // node.groups, -1)
        used = torch.einsum("kmrbgop,kmbgcp->kmrgoc", rows.expand(k, m, -1, -1, -1, -1, -1), patches)
        return used.flatten(3)
    seen = patches.permute(0, 1, 2, 5, 3, 4).flatten(2, 3)  # (K, M, B places, groups, C kernel)
    seen = torch.cat([seen, torch.zeros_like(seen[:, :, :1])], 2)  # what is outside of the node reads nothing
    at = a.place.over((0, 2, 3))
    seen = seen.index_select(2, at.flatten()).unflatten(2, (len(at), -1))  # (K, M, R, window, groups, C kernel)
    rows = a.values.movedim(4, 3).flatten(4).unflatten(3, (node.groups, -1))  # (K, M, R, groups, O, window)
    return (rows @ seen.movedim(4, 3)).flatten(3)


# 2. One walk

_Squares = dict[str, Tensor]


@dataclass(eq=False)
class Noise:
    """The sums behind a `Tail`, collected on the way back.

    Parameters
    ----------
    deviations : standard deviations
    variation : rho' and h0 of the nodes, or None where a source enters at several nodes
    zero : (K, M, R)
    detailed : collect for bound 3, too
    own : nodes whose noise is left out of `middle`
    smooth : for bound 4: by activation, how far the slope of its function may be from the slope of the line below
        and of the line above
    correlation : what weights share, or None

    Attributes
    ----------
    folded, near : sum of rho_j s_j, sum of rho'_j s_j (K, M, R)
    squares, near_squares, below : source -> its part of L^2, of L'^2, of L^2 without the own noise
    most : source -> its part of b; least : a; play : 0 where the variance of S is no random variable
    amplitude : node -> how far its coefficient may be from the gradient, where that is random
    largest : numbers that a row has held, at most
    """

    deviations: WeightBoxes
    variation: Variation | None
    zero: Tensor
    detailed: bool = False
    own: frozenset[int] = frozenset()
    smooth: Mapping[int, tuple[Tensor, Tensor]] | None = None
    correlation: Correlation | None = None
    squares: _Squares = field(default_factory=dict)
    near_squares: _Squares = field(default_factory=dict)
    below: _Squares = field(default_factory=dict)
    most: _Squares = field(default_factory=dict)
    amplitude: dict[int, Block] = field(default_factory=dict)
    swings: dict[str, Swing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folded = self.near = self.least = self.play = self.zero
        self.largest = 1
        self.shared = None if self.correlation is None else Shared(self.correlation, self.zero, self.detailed)

    def rules(self) -> Rules:
        """The linear method, with the noise of every parameter collected on the way."""
        rules: Rules = {**LINEAR, Linear: self.weighted, Conv: self.weighted, Scale: self.weighted, Shift: self.shift}
        if self.smooth is None:
            return rules
        return {**rules, Activation: self.activation, **dict.fromkeys((Sum, Reshape, Transpose, Concat), self.moved)}

    def tail(self, level: Tensor) -> Tail:
        """The tail of a row with this m0."""
        bounds: tuple[Normal | Martingale, ...] = ()
        if self.smooth is None:
            square = _total(self._with(self.squares, "squares"), self.zero)
            bounds = (Normal(_less(level, FOLD * self.folded), _root(square)),)
        if self.variation is None:
            return Tail(bounds)
        centred = _less(level, FOLD * self.near)
        bounds = (*bounds, self._martingale(centred, self.squares))
        if not self.detailed:
            return Tail(bounds)
        least, play = self.least, self.play
        if self.shared is not None:
            least, play = least + self.shared.least, play + self.shared.play
        least = least * (1 - 2 * (len(self.squares) + 16) * UNIT)
        most = _total(self._with(self.most, "most"), self.zero)
        folded = _root(_total(self._with(self.near_squares, "near_squares"), self.zero))
        return Tail(bounds, MarginSplit(centred, folded, least, most, play == 0))

    def middle(self, level: Tensor) -> Tail:
        """The tail of the row's mean given the earlier stages, at the centre; `level` is m0 there."""
        if self.shared is not None:
            level = _less(level, FOLD * self.shared.late * (1 + 2.0**-40))
        return Tail((self._martingale(level, self.below),))

    def _with(self, squares: _Squares, what: str) -> _Squares:
        """The squares by source, with the parts `what` of the groups of shared noise."""
        parts: list[Tensor] = [] if self.shared is None else getattr(self.shared, what)
        return {**squares, **{f"\0{i}": part for i, part in enumerate(parts)}}

    def _martingale(self, mean: Tensor, squares: _Squares) -> Martingale:
        squares = self._with(squares, "squares")
        return Martingale(mean, tuple(squares.values()), tuple(self.swings.get(source) for source in squares))

    def weighted(self, walk: Walk, node: WeightedMap, position: int, a: Block) -> None:
        """Go on with the mean of a weighted node, and charge its noise times h."""
        box, amplitude = self.deviations.param(node.weight), self.amplitude.pop(position, None)
        (source,) = node.inputs
        shape = walk.network.nodes[source].shape
        uses = None if box.spread is None else Uses(node, box, a, amplitude, shape)
        if uses is not None:
            self.largest = max(self.largest, 1 if uses.once else math.prod(node.weight.shape))
            self._independent(node, position, source, uses, walk.ranges.values[source])
        self._fold_all(node, position, a, source, uses, walk.ranges.values[source], shape)
        linear.weighted(walk, node, position, a)

    def _independent(self, node: WeightedMap, position: int, source: int, uses: Uses, h: Interval) -> None:
        """What independent weights add to the squares."""
        if self.variation is None:
            self._charge(position, node.weight, uses.most([h.center_radius])[0], uses.terms)
            return
        if isinstance(node, Linear) and uses.once and source in self.variation.moments:
            self._swing(node.weight, uses.variance.whole, self.variation.moments[source], uses.terms)
        if not self.detailed:
            self._charge(position, node.weight, uses.most([h.center_radius])[0], uses.terms)
            return
        near, inside = self.variation.known[source], self.variation.at_center(source, h)
        wanted: list[Range] = [h.center_radius, (torch.zeros_like(near), near)]
        if source in self.variation.fixed:  # else h0 may be anywhere in the range of h
            wanted.append(inside)
        found = uses.most(wanted)
        self._charge(position, node.weight, found[0], uses.terms)
        _add_use(self.near_squares, node.weight, found[1], uses.terms)
        _add_use(self.most, node.weight, found[2] if len(found) > 2 else found[0], uses.terms)
        self._charge_least(node.weight, uses.least(*inside), uses.terms)
        self.play = self.play + inside[1].reshape(*inside[1].shape[:2], 1, -1).amax(-1)

    def _fold_all(
        self, node: WeightedMap, position: int, a: Block, source: int, uses: Uses | None, h: Interval,
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Charge the groups, and the folded part of all noise: s_j^2 is a sum of variances."""
        terms = math.prod(shape) + math.prod(node.shape) + maps.fan(node)
        root = None if uses is None else uses.root.holding(_copied(uses.root.values, node.weight))
        fresh, ranges = root, h.center_radius
        near = None if self.variation is None else self.variation.known[source]
        if self.shared is not None:
            square = 0.0 if uses is None else uses.plain.whole * node.weight.copies
            around = None if self.variation is None else self.variation.at_center(source, h)
            late = self.shared.late
            shared, first = self.shared.weighted(node, position, a.whole, shape, ranges, near, around)
            root, fresh = (None if (s := _sqrt(square + part)) is None else Block(s) for part in (shared, first))
            self.near = self._fold(self.near, self.shared.late - late, terms)
        if root is not None and fresh is root and near is not None:
            folded, closer = root.dots([ranges[1], near])
            self.folded, self.near = self._fold(self.folded, folded, terms), self._fold(self.near, closer, terms)
            return
        if root is not None:
            self.folded = self._fold(self.folded, root.dot(ranges[1]), terms)
        if near is not None and fresh is not None:
            self.near = self._fold(self.near, fresh.dot(near), terms)

    def shift(self, walk: Walk, node: Shift, position: int, a: Block) -> None:
        """A bias that is added at several places is one variable."""
        box, amplitude = self.deviations.param(node.bias), self.amplitude.pop(position, None)
        if self.shared is not None:
            self.shared.shift(node, a.whole, len(node.shape))
        if box.spread is not None:
            variance, terms = aligned(box.variance, len(node.shape)), 2 * math.prod(node.shape)
            tied = a.over(variance.shape[2:])
            reach = total = tied.abs()
            if tied is not a:  # sums are rounded
                slack = gamma(terms) * a.abs().over(variance.shape[2:]).values
                reach = total.holding(total.values + slack)
                total = total.holding((total.values - slack).clamp(min=0))
            if amplitude is not None:
                reach = reach.plus(amplitude.over(variance.shape[2:]))
            squares = reach.holding(squared(reach.values))
            square = squares.dot(variance)
            self._charge(position, node.bias, square, terms)
            if self.detailed:
                _add_use(self.most, node.bias, square, terms)
                if reach is total:
                    sure = square - _excess(squares.values, box, terms)
                else:
                    sure = total.holding(squared_down(total.values)).dot(aligned(box.sure_variance, len(node.shape)))
                self._charge_least(node.bias, sure, terms)
        if amplitude is not None:
            self._pass(node.inputs[0], amplitude)
        linear.shift(walk, node, position, a)

    def activation(self, walk: Walk, node: Activation, position: int, a: Block) -> None:
        """Go on along an activation's lines, and note how far the gradient may be from them."""
        if self.smooth is not None and position in self.smooth:
            (source,) = node.inputs
            below, above = (a.see(side) for side in self.smooth[position])
            amplitude = (a.values.clamp(min=0) * below - a.values.clamp(max=0) * above) * (1 + 2.0**-40)
            self._grow(source, a.holding(amplitude))
        LINEAR[Activation](walk, node, position, a)

    def moved(self, walk: Walk, node: Node, position: int, a: Block) -> None:
        """Amplitudes move like coefficients, without signs."""
        amplitude = self.amplitude.pop(position, None)
        if amplitude is not None:
            shadow = Walk(walk.network, walk.weights, walk.ranges, {}, self.zero, self.zero[..., :1])
            LINEAR[type(node)](shadow, node, position, amplitude)
            for source, moved in shadow.pending.items():
                self._pass(source, moved.abs())
        LINEAR[type(node)](walk, node, position, a)

    def units(self, position: int, node: Node, place: int, weighted: Linear, h: Interval) -> None:
        """Collect the noise of the rows I and -I over a dense layer at `place`: its own, row by row."""
        if isinstance(node, Shift):
            self._unit_biases(position, node)
        box, (source,) = self.deviations.param(weighted.weight), weighted.inputs
        terms, ranges = weighted.weight.shape[-1], h.center_radius
        root: Tensor | None = None
        if box.spread is not None:
            total = squared(ranges[0].abs() + ranges[1]).flatten(2) @ box.variance[0].mT
            self._charge(position, weighted.weight, _twice(total), terms)
            root = _copied(box.spread, weighted.weight)
            moments = None if self.variation is None else self.variation.moments.get(source)
            if moments is not None:
                self._swing(weighted.weight, box.variance[None], moments, terms, 2)
        fresh, near = root, None if self.variation is None else self.variation.known[source]
        if self.shared is not None:
            square = 0.0 if box.spread is None else box.variance[0] * weighted.weight.copies
            late = self.shared.late
            shared, first = self.shared.units(weighted, place, ranges, near)
            root, fresh = _sqrt(square + shared), _sqrt(square + first)
            self.near = self._fold(self.near, self.shared.late - late, terms)
        if root is not None:
            self.folded = self._fold(self.folded, _twice(_rows(root, ranges[1])), terms)
        if near is not None and fresh is not None:
            self.near = self._fold(self.near, _twice(_rows(fresh, near)), terms)

    def elements(self, node: WeightedMap, position: int, h: Interval, move: Callable[[Tensor], Tensor]) -> None:
        """The noise of the rows e_i and -e_i over the elements of a map, each of which uses a weight once: its own.

        move : from elements (K, M, *output shape) to the rows (K, M, R / 2)
        """
        box, terms = self.deviations.param(node.weight), maps.fan(node)
        if box.spread is None:
            return
        center, radius = h.center_radius

        def rows(weight: Tensor, z: Tensor) -> Tensor:
            return _twice(move(maps.apply(node, weight, z)))

        self._charge(position, node.weight, rows(box.variance, squared(center.abs() + radius)), terms)
        plain = _copied(box.spread, node.weight)
        self.folded = self._fold(self.folded, rows(plain, radius), terms)
        if self.variation is not None:
            self.near = self._fold(self.near, rows(plain, self.variation.known[node.inputs[0]]), terms)

    def element_biases(self, node: Shift, position: int, move: Callable[[Tensor], Tensor]) -> None:
        """Collect the noise of the biases that are added to elements, as `elements` does."""
        box = self.deviations.param(node.bias)
        if box.spread is not None:
            rows = move(filled(aligned(box.variance, len(node.shape)), node))
            self._charge(position, node.bias, _twice(rows).expand_as(self.zero), 1)

    def _unit_biases(self, position: int, node: Shift) -> None:
        box = self.deviations.param(node.bias)
        if box.spread is not None:
            flat = filled(aligned(box.variance, len(node.shape)), node).flatten(2)
            self._charge(position, node.bias, torch.cat([flat, flat], 2).expand_as(self.zero), 1)
        if self.shared is not None:
            size = self.zero.shape[2] // 2
            eye = torch.eye(size, dtype=self.zero.dtype, device=self.zero.device)
            rows = torch.cat([eye, -eye]).reshape(1, 1, 2 * size, *node.shape)
            self.shared.shift(node, rows, len(node.shape))

    def rows_of(self, weighted: Linear, place: int, near: Tensor) -> None:
        """Collect the noise of the rows I over a dense layer whose input is between -near and near."""
        box, terms = self.deviations.param(weighted.weight), weighted.weight.shape[-1]
        root: Tensor | None = None
        if box.spread is not None:
            _add_use(self.squares, weighted.weight, squared(near).flatten(2) @ box.variance[0].mT, terms)
            root = _copied(box.spread, weighted.weight)
        if self.shared is not None:
            square = 0.0 if box.spread is None else box.variance[0] * weighted.weight.copies
            shared, _ = self.shared.units(weighted, place, (torch.zeros_like(near), near), None, 1)
            root = _sqrt(square + shared)
        if root is not None:
            self.folded = self._fold(self.folded, _rows(root, near), terms)

    def _swing(self, param: Param, variance: Tensor, moments: Moments, terms: int, repeat: int = 1) -> None:
        """Note a source's swing, from the s_j^2 of each row (K or 1, M or 1, R, *shape)."""
        up = (1 + gamma(4 * terms + 16)) * param.copies
        deviations, variance = moments.deviation.flatten(2), variance.flatten(3)
        if moments.independent:
            slope = (torch.sqrt(variance) * deviations[:, :, None]).amax(-1)
        else:
            slope = torch.sqrt(dot(variance.expand(*deviations.shape[:2], -1, -1), squared(deviations)))
        square = dot(variance.expand(*deviations.shape[:2], -1, -1), moments.square.flatten(2))
        root = torch.sqrt(square * up + TINY) * (1 + 4 * UNIT)
        slope = slope * (math.sqrt(param.copies) * (1 + gamma(4 * terms + 16))) + TINY
        self.swings[param.source] = Swing(*(torch.cat([part] * repeat, 2) for part in (root, slope)))

    def _grow(self, position: int, amplitude: Block) -> None:
        known = self.amplitude.get(position)
        self.amplitude[position] = amplitude if known is None else known.plus(amplitude)

    def _pass(self, position: int, amplitude: Block) -> None:
        """Pass an amplitude on to a node that is not known yet; what is known does not depend on the own noise of what
        is above.
        """
        if self.variation is not None and position not in self.variation.known:
            self._grow(position, amplitude)

    def _charge(self, position: int, param: Param, square: Tensor, terms: int) -> None:
        _add_use(self.squares, param, square, terms)
        if self.own and position not in self.own:
            _add_use(self.below, param, square, terms)

    def _charge_least(self, param: Param, square: Tensor, terms: int) -> None:
        if param.copies == 1:  # entries that are one variable could cancel
            self.least = self.least + (square * (1 - gamma(4 * terms + 64)) - TINY).clamp(min=0)

    def _fold(self, total: Tensor, folded: Tensor, terms: int) -> Tensor:
        return (total + folded * (1 + gamma(4 * terms + 16))) * (1 + 2 * UNIT) + TINY


def _rows(root: Tensor, radius: Tensor) -> Tensor:
    """sum_j s_ij radius_j (K, M, out) for each row i of a dense layer, from s_ij (.., out, *input)."""
    return radius.flatten(2) @ root.reshape(-1, radius[0, 0].numel()).mT


def _copied(root: Tensor, param: Param) -> Tensor:
    """Deviations of sums over all copies of an entry."""
    return root if param.copies == 1 else root * math.sqrt(param.copies)


def _sqrt(square: Tensor | float) -> Tensor | None:
    """Entrywise square root of a tensor of squares; None for a number, which says that nothing was added up."""
    return torch.sqrt(square) if isinstance(square, Tensor) else None


def _twice(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows], 2)


def _add_use(squares: _Squares, param: Param, square: Tensor, terms: int) -> None:
    """Add one use of a parameter; uses of a source at several nodes add up before they are squared."""
    square = square * (param.copies * (1 + gamma(4 * terms + 16))) + TINY
    if param.source in squares:
        square = (torch.sqrt(squares[param.source]) + torch.sqrt(square)) ** 2 * (1 + 16 * UNIT)
    squares[param.source] = square


def _total(squares: Mapping[str, Tensor], zero: Tensor) -> Tensor:
    """Sum over the sources, which are independent of each other, rounded up."""
    return sum(squares.values(), zero) * (1 + 2 * (len(squares) + 1) * UNIT)


def _root(square: Tensor) -> Tensor:
    """Square root, rounded up."""
    return torch.sqrt(square) * (1 + 4 * UNIT)


def _less(level: Tensor, fold: Tensor) -> Tensor:
    return torch.sub(level - fold, level.abs() + fold, alpha=2 * UNIT)
