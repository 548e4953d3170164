"""Linear bounds, walked backwards from rows over a node to the input: one rule a node type.

Guarantee: sound over real arithmetic on the stored numbers, rounding included; not complete.

1. Planes around products and lines around maxima over boxes, with the proofs that the rules rest on.

2. The rules.
Method: a row A over the output of a weighted map with |W - Wc| <= Wr is bounded below by
    min over W of A W z = (A Wc) z - (|A| Wr) |z|,
which is concave in every z_j, so that its best linear lower bound on [l, u] is the chord of |z_j|:
    A' = A Wc - s (|A| Wr),   constant -= (|A| Wr) t,   |z| <= s z + t on [l, u].
It dominates every McCormick plane after the minimum over W and never stores the linear form in W. In a `rough` walk,
which tightens the inputs of activations, |z| of a map over a wide input is replaced by its largest value: the loss is
of second order (radius of the weights times width of the inputs) and it saves the product |A| Wr, the dearest one.
A weight that is used several times (convolution, tied layers) is treated as independent uses: sound, looser.
Activations are replaced by their lines (`activations`). At the input the chord is exact, since a concave function
takes its minimum over an interval at an end point.

Rounding: any coefficients A' are valid as long as the difference to the exact ones is paid for, and that difference,
of at most gamma times |A| |W| |z|, is bounded by gamma |A| . magnitude with the magnitudes of the interval pass. The
walk takes these payments off the constant. A coefficient may also underflow, by at most TINY, and is paid for as
TINY |z| (`underflow`); such payments, and the rare ones, are collected in `error`.
What a node adds to the constant (`Walk.gain`) is the row times numbers c less the absolute row times r, where |c| + r
is at most the size of a node, magnitude or range, up to a few roundings. One payment serves the products, the vectors
c and r, and the place of the gain in the sum over all nodes: `Walk.rate` is 4 gamma(2 m + nodes), which is more than
(16 m + 8 nodes + 64) u for sums of m products, of which the products need 3 m u, the vectors 10 u, and n <= 8 nodes
gains n u, each times |A| . size. So r and the payment are added up before they meet |A|.
Reference: Wicker et al., Adversarial Robustness Certification for BNNs (McCormick bounds, here replaced by the chord);
Zhang et al., CROWN, NeurIPS 2018 (backward walk).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds import interval
from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.block import Block, adjoint, broadcast_back, common, parted, reshaped, select_back, transposed
from bnn_vnnlib.bounds.curves import Lines
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import Walk, filled
from bnn_vnnlib.bounds.weights import ParamBox
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
from bnn_vnnlib.rounding import SMALL, TINY, UNIT

# 1. Products and maxima


@dataclass(frozen=True, eq=False)
class _Plane:
    """q x + p y - p q, for a corner (p, q) of the box of (x, y)."""

    p: Tensor
    q: Tensor


def planes(x: Interval, y: Interval) -> tuple[_Plane, _Plane]:
    """A plane below x y and one above, over a box (McCormick 1976).

    x y - (q x + p y - p q) = (x - p)(y - q) >= 0 for (p, q) = (lx, ly) and (ux, uy), where both factors have the same
    sign, and <= 0 for (ux, ly) and (lx, uy). Of two corners the one with the flatter plane is taken.
    """
    below = _flatter(_Plane(x.lower, y.lower), _Plane(x.upper, y.upper), x, y)
    above = _flatter(_Plane(x.upper, y.lower), _Plane(x.lower, y.upper), x, y)
    return below, above


def _flatter(first: _Plane, second: _Plane, x: Interval, y: Interval) -> _Plane:
    """The plane that varies less over the box; the first one where both are as flat, whatever rounding says."""
    width, height = x.upper - x.lower, y.upper - y.lower
    variation = [plane.q.abs() * width + plane.p.abs() * height for plane in (first, second)]
    chosen = variation[0] <= variation[1] * (1 + 2.0**-40)
    return _Plane(torch.where(chosen, first.p, second.p), torch.where(chosen, first.q, second.q))


@dataclass(frozen=True, eq=False)
class _MaxLines:
    """x[under] <= max over the last axis <= slope x[over] + offset; all (K or 1, M, *shape, 1)."""

    under: Tensor
    over: Tensor
    slope: Tensor
    offset: Tensor


def max_lines(x: Interval) -> _MaxLines:
    """Lines around the maximum over the last axis.

    Any entry is a lower bound; the one with the largest centre is taken. For the upper one let i be the entry with the
    largest upper end and c the largest upper end of the others. Then max <= max(x_i, c), which is convex in x_i and so
    lies below its chord on [l_i, u_i]. Where l_i >= c, the maximum is x_i itself.
    """
    under = (x.lower + x.upper).argmax(-1, keepdim=True)
    best, over = x.upper.max(-1, keepdim=True)
    low = x.lower.gather(-1, over)
    others = x.upper.scatter(-1, over, -torch.inf).amax(-1, keepdim=True)
    fixed, zero = low >= others, torch.zeros_like(low)
    others = torch.where(fixed, zero, others)
    slope = ((best - others) / (best - low)).nan_to_num(0.0, 0.0, 0.0).clamp(0, 1)
    # the chord's offset at both ends, where max(x_i, c) is c and u_i, whatever the rounding of the slope
    offset = torch.maximum(others - slope * low, best - slope * best)
    offset = offset + 4 * UNIT * (low.abs() + best.abs() + others.abs()) + TINY
    return _MaxLines(under, over, torch.where(fixed, 1.0, slope), torch.where(fixed, zero, offset))


@dataclass(frozen=True, eq=False)
class _GapLines:
    """Lines in d around f(x) - f(y), d = x - y, and for which elements they are the better choice (`direct`)."""

    lines: Lines
    direct: Tensor


def gap_lines(node: Gap, walk: Walk) -> _GapLines:
    """f(x) - f(y) = s d with s between the least and the largest slope a <= b (see `interval.slopes`).

    For d >= 0 that is between a d and b d, for d <= 0 between b d and a d: lines through 0. Where d has both signs, the
    larger of a d and b d is convex and lies below its chord on [l, u]; the smaller one is concave and lies above its
    own. (A quotient is s times its third input, too.) The other choice is the lines of f at x and those of f at y:
    better where both ranges are known well beside the width of d. It is taken where it leaves less open in the middle
    of the ranges. Any choice is sound.
    """
    x, y, d, *ends = node.inputs
    values = walk.ranges.values
    z = values[d]
    a, b = interval.slopes(node, values[x], values[y])
    width = z.upper - z.lower
    positive, negative = z.lower >= 0, z.upper <= 0
    mixed = ~(positive | negative)
    rising = ((b * z.upper - a * z.lower) / width).nan_to_num(0.0, 0.0, 0.0)
    falling = ((a * z.upper - b * z.lower) / width).nan_to_num(0.0, 0.0, 0.0)
    steep = torch.maximum(a.abs(), b.abs()) + torch.maximum(rising.abs(), falling.abs())
    paid = 8 * UNIT * steep * z.magnitude + TINY
    above = torch.maximum(b * z.upper - rising * z.upper, a * z.lower - rising * z.lower) + paid
    below = torch.minimum(a * z.upper - falling * z.upper, b * z.lower - falling * z.lower) - paid
    zero = torch.zeros_like(above)
    lines = Lines(
        torch.where(mixed, falling, torch.where(positive, a, b)), torch.where(mixed, below, zero),
        torch.where(mixed, rising, torch.where(positive, b, a)), torch.where(mixed, above, zero),
    )  # fmt: skip
    if node.quotient:
        return _GapLines(lines, torch.ones_like(mixed))
    center = (z.lower + z.upper) / 2
    own = lines.half.level + lines.half.slope * center
    other = torch.zeros_like(own)
    for source, position in zip((x, y), ends, strict=True):
        at = values[source]
        known = walk.ranges.lines.get(position)  # signs of split neurons may give others, on the way back
        half = (known or ACTIVATIONS[node.kind].lines(node.alpha, at.lower, at.upper)).half
        other = other + half.level + half.slope * at.center_radius[0]
    return _GapLines(lines, ~(own > 2 * other))


# 2. The rules

MANY_INPUTS = 128
"""Inputs beyond which a walk is rough, and the first layer is bounded by intervals (see `engine`)."""


def weighted(walk: Walk, node: Linear | Conv | Scale, position: int, a: Block) -> None:
    """A' = A Wc - s (|A| Wr)."""
    (source,) = node.inputs
    box = walk.weights.param(node.weight)
    shape = walk.network.nodes[source].shape

    def back(weight: Tensor, a: Block) -> Block:
        return adjoint(node, weight, a, shape)

    size = a.abs()
    noises = []
    if walk.rough and isinstance(walk.network.nodes[source], Input) and math.prod(shape) > MANY_INPUTS:
        _take_largest(walk, node, box, size)
    else:
        scale = walk.weights.scale
        noises = [(back(part, size), f) for part, f in ((box.spread, scale), (box.slack, None)) if part is not None]
    loss = walk.rate(math.prod(shape) + maps.fan(node)) * walk.ranges.magnitudes[position]
    if position in walk.owed:
        loss = loss + walk.owed.pop(position)
    walk.gain(-size.dot(loss))
    carry(walk, source, back(box.center, a), noises)


def _take_largest(walk: Walk, node: Linear | Conv | Scale, box: ParamBox, size: Block) -> None:
    """Take |A| (Wr max |z|) off the constant: looser than the chord, with a product of matrices less."""
    noise = interval.noise(node, box, walk.weights.scale, walk.ranges.values[node.inputs[0]].magnitude)
    if noise is not None:
        paid = 1 + walk.rate(math.prod(node.shape) + maps.fan(node))
        walk.gain(-paid * size.dot(filled(noise + SMALL, node)))


def carry(walk: Walk, source: int, carried: Block, noises: Sequence[tuple[Block, Tensor | None]]) -> None:
    """Give A Wc - s noise to the source and take noise . t off the constant, for noise = |A| Wr in parts.

    A part comes without the factor (K or 1, M or 1) of its radius, if there is one: s
    and t get it, which are smaller.
    """
    z = walk.ranges.values[source]
    for noise, factor in noises:
        slope, offset = z.chord
        if factor is not None:
            factor = factor.reshape(*factor.shape, *(1,) * (slope.dim() - 2))
            slope = factor * slope
            walk.error = torch.addcmul(walk.error, z.extent, factor.reshape(*factor.shape[:2], 1), value=TINY)
            if offset is not None:  # both products may underflow: by TINY (1 + |z|) at most, for each unit of noise
                offset = factor * offset + SMALL * (1 + z.magnitude)
        carried = carried.holding(torch.addcmul(carried.values, noise.values, noise.see(slope), value=-1.0))
        if offset is not None:
            walk.gain(-noise.dot(offset))
    walk.underflow(source)
    walk.give(source, carried)


def shift(walk: Walk, node: Shift, position: int, a: Block) -> None:
    """A (z + b): the entries of b that are added at several places are one variable, so A is summed over them first."""
    b = walk.weights.addend(node.bias, len(node.shape))
    tied = a.over(b.center.shape[2:])
    value = tied.dot(b.center)
    loss = walk.rate(math.prod(node.shape)) * b.magnitude
    if b.radius is not None and tied is a:
        loss = loss + b.radius
    elif b.radius is not None:
        value = value - tied.abs().dot(b.radius)
    walk.gain(value)
    walk.owe(node.inputs[0], a, filled(loss, node))


def _activation(walk: Walk, node: Activation, position: int, a: Block) -> None:
    """The lower line where A >= 0, the upper line where A < 0: A (half the sum) - |A| (half the difference).

    Halves of subnormal numbers are off by their spacing, which SMALL covers, for slopes at any |z|.
    """
    (source,) = node.inputs
    middle, half = walk.ranges.lines[position].middle, walk.ranges.lines[position].half
    steepest = middle.slope.abs() + half.slope.abs() + SMALL
    size = torch.addcmul(middle.level.abs() + half.level.abs(), steepest, walk.ranges.values[source].magnitude)
    loss = torch.add(half.level, size, alpha=walk.rate(math.prod(node.shape))) + SMALL
    absolute = a.abs()
    walk.gain(a.dot(middle.level) - absolute.dot(loss))
    walk.underflow(source)
    carried = (a.values * a.see(middle.slope)).addcmul_(absolute.values, a.see(half.slope), value=-1.0)
    walk.give(source, a.holding(carried))


def _add(walk: Walk, node: Sum, position: int, a: Block) -> None:
    """Rows over each branch of a sum: the coefficients of the sum, with the branch's sign."""
    for source, sign in zip(node.inputs, node.signs, strict=True):
        walk.give(source, a if sign > 0 else a.holding(-a.values))


def _reshape(walk: Walk, node: Reshape, position: int, a: Block) -> None:
    """Rows over the node's input: the same numbers in the old shape."""
    (source,) = node.inputs
    walk.give(source, reshaped(a, walk.network.nodes[source].shape))


def _transpose(walk: Walk, node: Transpose, position: int, a: Block) -> None:
    """Rows over the node's input, by the inverse permutation."""
    walk.give(node.inputs[0], transposed(a, node.perm))


def _broadcast(walk: Walk, node: Broadcast, position: int, a: Block) -> None:
    """Rows over the node's input: sums over the copies."""
    (source,) = node.inputs
    walk.gain(-walk.rate(math.prod(node.shape)) * a.abs().dot(walk.ranges.values[position].magnitude))
    walk.give(source, broadcast_back(a, walk.network.nodes[source].shape))


def _concat(walk: Walk, node: Concat, position: int, a: Block) -> None:
    """Rows over each branch of a concatenation: its part."""
    shapes = [walk.network.nodes[source].shape for source in node.inputs]
    for source, part in zip(node.inputs, parted(a, node.axis, shapes), strict=True):
        walk.give(source, part)


def _select(walk: Walk, node: Select, position: int, a: Block) -> None:
    """Rows over the node's input: for each entry the sum over its copies, of which there are at most `copies`."""
    (source,) = node.inputs
    if node.copies > 1:
        walk.gain(-walk.rate(node.copies) * a.abs().dot(walk.ranges.values[position].magnitude))
    walk.give(source, select_back(node, a, walk.network.nodes[source].shape))


def _product(walk: Walk, node: Product, position: int, a: Block) -> None:
    """A plane below where A >= 0, above where A < 0; slopes are end points, so that only p q is rounded."""
    x, y = (walk.ranges.values[source] for source in node.inputs)
    below, above = planes(x, y)
    positive, negative = a.holding(a.values.clamp(min=0)), a.holding(a.values.clamp(max=0))
    value = -positive.dot(below.p * below.q) - negative.dot(above.p * above.q)
    # |p| <= |x| and |q| <= |y|: each of the three terms is at most |x| |y|; p q may underflow
    walk.gain(value - a.abs().dot(4 * walk.rate(math.prod(node.shape)) * (x.magnitude * y.magnitude) + SMALL))
    for source, low, high in zip(node.inputs, (below.q, below.p), (above.q, above.p), strict=True):
        walk.underflow(source)
        walk.give(source, a.holding(positive.values * a.see(low) + negative.values * a.see(high)))


def _gap(walk: Walk, node: Gap, position: int, a: Block) -> None:
    """Lines in the difference, or the difference of the lines of both: elementwise, what is better."""
    d, *ends = node.inputs[2:]
    found = gap_lines(node, walk)
    lines, z = found.lines, walk.ranges.values[d]
    direct = a.holding(a.values * a.see(found.direct.to(a.values)))
    apart = a.holding(a.values - direct.values)
    middle, half = lines.middle, lines.half
    # as for an activation, except that lines through 0 have no level: what they pay for is proportional to |d|
    size = torch.addcmul(middle.level.abs() + half.level, middle.slope.abs() + half.slope + SMALL, z.magnitude)
    absolute = direct.abs()
    loss = torch.add(half.level, size, alpha=walk.rate(math.prod(node.shape))) + SMALL
    walk.gain(direct.dot(middle.level) - absolute.dot(loss))
    walk.underflow(d)
    walk.give(d, a.holding(direct.values * a.see(middle.slope) - absolute.values * a.see(half.slope)))
    if not bool(found.direct.all()):
        walk.give(ends[0], apart)
        walk.give(ends[1], apart.holding(-apart.values))


def _known(walk: Walk, node: Known, position: int, a: Block) -> None:
    """Rows over the node's input, but for elements whose range the question makes smaller: these stop here."""
    (source,) = node.inputs
    own, below = walk.ranges.values[position], walk.ranges.values[source]
    stops = (own.lower > below.lower) | (own.upper < below.upper)
    if bool(stops.any()):
        stopped = a.holding(a.values * a.see(stops.to(a.values)))
        _enclosed(walk, node, position, stopped)
        a = a.holding(a.values - stopped.values)
    walk.give(source, a)


def _max(walk: Walk, node: Max, position: int, a: Block) -> None:
    """Rows over the node's input: over one entry where A >= 0, over a line in one entry where A < 0."""
    (source,) = node.inputs
    x = walk.ranges.values[source]
    lines = max_lines(x)
    a = a.holding(a.values.expand(*common(a.values.shape[:2], x.lower.shape[:2]), *a.values.shape[2:]))
    negative = a.holding(a.values.clamp(max=0))
    under, over, slope = (a.see(part[..., 0])[..., None] for part in (lines.under, lines.over, lines.slope))
    carried = a.values.new_zeros(*a.values.shape, x.lower.shape[-1])
    lead = carried[..., :1].shape
    carried = carried.scatter(-1, under.expand(lead), a.values.clamp(min=0)[..., None])
    carried = carried.scatter_add(-1, over.expand(lead), negative.values[..., None] * slope)
    size = x.magnitude.amax(-1) + lines.offset[..., 0].abs()
    paid = a.abs().dot(walk.rate(math.prod(node.shape)) * size)
    walk.gain(negative.dot(lines.offset[..., 0]) - paid)
    walk.underflow(source)
    walk.give(source, a.with_last(carried))


def _enclosed(walk: Walk, node: Node, position: int, a: Block) -> None:
    """Stop at a node that is not linear: the minimum over its enclosure."""
    z = walk.ranges.values[position]
    center, radius = z.center_radius
    loss = torch.add(radius, z.magnitude, alpha=walk.rate(math.prod(node.shape)))
    walk.gain(a.dot(filled(center, node)) - a.abs().dot(filled(loss, node)))


Rules = Mapping[type[Node], Callable[..., None]]

LINEAR: Rules = {
    Linear: weighted,
    Conv: weighted,
    Scale: weighted,
    Shift: shift,
    Constant: _enclosed,
    Activation: _activation,
    Sum: _add,
    Reshape: _reshape,
    Transpose: _transpose,
    Broadcast: _broadcast,
    Concat: _concat,
    Select: _select,
    Product: _product,
    Max: _max,
    Gap: _gap,
    Known: _known,
}
"""The linear method."""

INTERVAL: Rules = {**LINEAR, Activation: _enclosed, Product: _enclosed, Max: _enclosed, Gap: _enclosed}
"""The interval method: rows are folded into the maps behind the last activations, no further."""
