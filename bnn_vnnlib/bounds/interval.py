"""Interval bounds over input box x weight box: one rule a node type.

Guarantee: sound over real arithmetic on the stored numbers, rounding included (see `rounding`); not complete.
Method: centre and radius. For |W - Wc| <= Wr and |x - xc| <= xr,
    W x in Wc xc +- ( |Wc| xr + Wr (|xc| + xr) ),
because |W x - Wc xc| <= |Wc| |x - xc| + |W - Wc| |x|.
Every rule also returns the magnitude: an upper bound on the sum of the absolute products in each output, which is what
the rounding error of any later pass over the node is proportional to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.weights import ParamBox, WeightBoxes
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.nodes import (
    Activation,
    Broadcast,
    Concat,
    Constant,
    Conv,
    Gap,
    Input,
    Known,
    Linear,
    Max,
    Node,
    Product,
    Reshape,
    Scale,
    Select,
    Shift,
    Sum,
    Transpose,
)
from bnn_vnnlib.rounding import TINY, UNIT, down, gamma, up


@dataclass(frozen=True, eq=False)
class Interval:
    """lower <= value <= upper, each (K or 1, M, *node shape). What follows from the ends is computed once."""

    lower: Tensor
    upper: Tensor

    @cached_property
    def magnitude(self) -> Tensor:
        """Largest absolute value."""
        return torch.maximum(self.upper.abs(), self.lower.abs())

    @cached_property
    def extent(self) -> Tensor:
        """Sum of the largest absolute values (K or 1, M, 1), up to a rounding."""
        return self.magnitude.reshape(*self.magnitude.shape[:2], 1, -1).sum(-1)

    @cached_property
    def center_radius(self) -> tuple[Tensor, Tensor]:
        """Center and radius, rounded up, with |value - center| <= radius."""
        center = (self.lower + self.upper) / 2
        return center, torch.maximum(self.upper - center, center - self.lower) * (1 + 2 * UNIT)

    @cached_property
    def chord(self) -> tuple[Tensor, Tensor | None]:
        """s, t with |value| <= s value + t: the line through the end points; of a point, one of slope 1.

        Where the sign is fixed, the quotient is x / x = 1 or -1 and its line is exact. Where it is not, |s| <= 1 and
        both ends are at most the width, of which the roundings of t are at most 4 units; the line is paid for
        everywhere. If no value is negative (behind a Relu, say), s is (1, 1, 1, .., 1), which spares products of its
        size, and t is None, for 0.
        """
        if bool((self.lower >= 0).all()):
            return self.lower.new_ones(1, 1, *(1,) * (self.lower.dim() - 2)), None
        low, high, width = self.lower.abs(), self.upper.abs(), self.upper - self.lower
        slope = ((high - low) / width).nan_to_num(1.0, 0.0, 0.0).clamp(-1, 1)
        gap = torch.maximum(
            torch.addcmul(high, slope, self.upper, value=-1.0), torch.addcmul(low, slope, self.lower, value=-1.0)
        )
        return slope, torch.add(gap, width, alpha=4 * UNIT) + TINY

    def meet(self, other: Interval) -> Interval:
        """Intersection of two valid enclosures of the same value."""
        return Interval(torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper))


_Ranged = tuple[Interval, Tensor]


def _weighted(node: Linear | Conv | Scale, weights: WeightBoxes, x: Interval) -> _Ranged:
    """Rule of the weighted linear maps.

    Rounding: the sums for center, radius and size have errors of at most fan u times `size`, and so has center -
    radius; gamma(2 fan + 8) > 4 fan u + 32 u times the computed `size` is more than all of them.
    """
    box = weights.param(node.weight)
    xc, xr = x.center_radius
    radius, size = maps.apply(node, box.size, torch.cat([xr, x.magnitude], 1)).chunk(2, 1)
    added = noise(node, box, weights.scale, x.magnitude)
    if added is not None:
        radius, size = radius + added, size + added
    g = gamma(2 * maps.fan(node) + 8)
    center, radius = maps.apply(node, box.center, xc), torch.add(radius, size, alpha=g) + TINY
    return Interval(center - radius, center + radius), size * (1 + g) + TINY


def noise(node: Linear | Conv | Scale, box: ParamBox, scale: Tensor, absolute: Tensor) -> Tensor | None:
    """(scale * spread + slack) |x|."""
    total = None
    if box.spread is not None:
        total = _items(scale, len(node.shape)) * maps.apply(node, box.spread, absolute)
    if box.slack is not None:
        rounding = maps.apply(node, box.slack, absolute)
        total = rounding if total is None else total + rounding
    return total


def _items(scale: Tensor, rank: int) -> Tensor:
    """(K or 1, M or 1) -> (K or 1, M or 1, 1, .., 1)."""
    return scale.reshape(*scale.shape, *(1,) * rank)


def _shift(node: Shift, weights: WeightBoxes, x: Interval) -> _Ranged:
    """Rule of x + b, b a parameter of the network: ends are added and rounded outward."""
    b = weights.addend(node.bias, len(node.shape))
    return Interval(down(x.lower + b.lower), up(x.upper + b.upper)), b.magnitude


def constant(node: Constant, weights: WeightBoxes) -> _Ranged:
    """Range of a tensor of the file, whose values may have been rounded."""
    b = weights.addend(node.value, len(node.shape))
    result = Interval(b.lower, b.upper)
    return result, result.magnitude


def activation(node: Activation, _: WeightBoxes, x: Interval) -> _Ranged:
    """Range of an elementwise nonlinearity."""
    lower, upper = ACTIVATIONS[node.kind].range(node.alpha, x.lower, x.upper)
    result = Interval(lower, upper)
    return result, result.magnitude


def slopes(node: Gap, x: Interval, y: Interval) -> tuple[Tensor, Tensor]:
    """Least and largest slope of f between any two places in the ranges of x and y, rounded outward.

    By the mean value theorem f(x) - f(y) = s (x - y) for a slope s of f somewhere between x and y, so in the hull of
    both ranges. (Where f has a kink, s lies between the slopes to both sides.) Both ends are finite.
    """
    lower, upper = torch.minimum(x.lower, y.lower), torch.maximum(x.upper, y.upper)
    return ACTIVATIONS[node.kind].slopes(node.alpha, lower, upper)


def gap(node: Gap, _: WeightBoxes, x: Interval, y: Interval, d: Interval, *ends: Interval) -> _Ranged:
    """A slope times the difference, met with the difference of the ranges; exactly 0 where the difference is."""
    products = torch.stack([_times(s, end) for s in slopes(node, x, y) for end in (d.lower, d.upper)])
    result = Interval(_outward(products.amin(0), down), _outward(products.amax(0), up))
    if not node.quotient:
        fx, fy = ends
        result = result.meet(Interval(down(fx.lower - fy.upper), up(fx.upper - fy.lower)))
    return result, result.magnitude


def _times(s: Tensor, end: Tensor) -> Tensor:
    """The product, 0 where a factor is; underflow to 0 is marked by the least number of its sign."""
    product = (s * end).nan_to_num(0.0, torch.inf, -torch.inf)
    lost = (product == 0) & (s != 0) & (end != 0)
    return torch.where(lost, torch.sign(s) * torch.sign(end) * 2.0**-1074, product)


def _outward(z: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.where(z == 0, z, move(z))


def known(node: Known, _: WeightBoxes, x: Interval) -> _Ranged:
    """Range of a node, met with what the question says of it; the ends are exact."""
    result = x.meet(Interval(*(torch.as_tensor(end).to(x.lower)[None, None] for end in (node.lower, node.upper))))
    return result, x.magnitude


def product(node: Product, _: WeightBoxes, x: Interval, y: Interval) -> _Ranged:
    """Range of x y, which is bilinear: its extremes over a box are at the corners."""
    corners = torch.stack([a * b for a in (x.lower, x.upper) for b in (y.lower, y.upper)])
    return (result := Interval(down(corners.amin(0)), up(corners.amax(0)))), result.magnitude


def maximum(node: Max, _: WeightBoxes, x: Interval) -> _Ranged:
    """Range of a maximum: nondecreasing in every entry, and exact."""
    result = Interval(x.lower.amax(-1), x.upper.amax(-1))
    return result, result.magnitude


def add(node: Sum, _: WeightBoxes, *xs: Interval) -> _Ranged:
    """Signed sum of branches."""
    first, *rest = (x if sign > 0 else Interval(-x.upper, -x.lower) for sign, x in zip(node.signs, xs, strict=True))
    for x in rest:
        first = Interval(down(first.lower + x.lower), up(first.upper + x.upper))
    return first, first.magnitude


def _exactly(move: Callable[..., Tensor]) -> Callable[..., _Ranged]:
    """Rule of a node that only moves elements."""

    def rule(node: Node, _: WeightBoxes, *xs: Interval) -> _Ranged:
        result = Interval(move(node, *(x.lower for x in xs)), move(node, *(x.upper for x in xs)))
        return result, result.magnitude

    return rule


def reshape(node: Reshape, x: Tensor) -> Tensor:
    """Elements (K, M, *old) in the node's new shape, (K, M, *new)."""
    return x.reshape(*x.shape[:2], *node.shape)


def transpose(node: Transpose, x: Tensor) -> Tensor:
    """Permute the node's axes, not the engine's."""
    return x.permute(0, 1, *(axis + 2 for axis in node.perm))


def broadcast(node: Broadcast, x: Tensor) -> Tensor:
    """Repeat along axes of length 1 and along new leading axes."""
    shape = x.shape[2:]
    return x.reshape(*x.shape[:2], *(1,) * (len(node.shape) - len(shape)), *shape).expand(*x.shape[:2], *node.shape)


def concat(node: Concat, *xs: Tensor) -> Tensor:
    """Join along the node's axis; branches may differ in K and M where they do not depend on them."""
    k, m = max(len(x) for x in xs), max(x.shape[1] for x in xs)
    return torch.cat([x.expand(k, m, *x.shape[2:]) for x in xs], node.axis + 2)


def inputs(node: Input, box: Interval) -> Interval:
    """The part of the flattened input box (1, M, n) that enters here."""
    size = int(torch.Size(node.shape).numel())
    return Interval(
        *(
            side[..., node.start : node.start + size].reshape(*side.shape[:2], *node.shape)
            for side in (box.lower, box.upper)
        )
    )


RULES: dict[type[Node], Callable[..., _Ranged]] = {
    Linear: _weighted,
    Conv: _weighted,
    Scale: _weighted,
    Shift: _shift,
    Constant: constant,
    Activation: activation,
    Sum: add,
    Reshape: _exactly(reshape),
    Transpose: _exactly(transpose),
    Broadcast: _exactly(broadcast),
    Concat: _exactly(concat),
    Select: _exactly(maps.select),
    Gap: gap,
    Known: known,
    Product: product,
    Max: maximum,
}
