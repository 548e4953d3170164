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
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import Walk, common, dot, filled, over_rows, sum_to
from bnn_vnnlib.bounds.weights import ParamBox
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.nodes import (
    Activation,
    Broadcast,
    Concat,
    Constant,
    Conv,
    Input,
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
    """The plane that varies less over the box."""
    width, height = x.upper - x.lower, y.upper - y.lower
    variation = [plane.q.abs() * width + plane.p.abs() * height for plane in (first, second)]
    chosen = variation[0] <= variation[1]
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


# 2. The rules

MANY_INPUTS = 128
"""Inputs beyond which a walk is rough, and the first layer is bounded by intervals (see `engine`)."""


def weighted(walk: Walk, node: Linear | Conv | Scale, position: int, a: Tensor) -> None:
    """A' = A Wc - s (|A| Wr)."""
    (source,) = node.inputs
    box = walk.weights.param(node.weight)
    shape = walk.network.nodes[source].shape

    def back(weight: Tensor, a: Tensor) -> Tensor:
        return over_rows(lambda flat: maps.adjoint(node, weight, flat, shape), a)

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
    walk.gain(-dot(size, loss))
    carry(walk, source, back(box.center, a), noises)


def _take_largest(walk: Walk, node: Linear | Conv | Scale, box: ParamBox, size: Tensor) -> None:
    """Take |A| (Wr max |z|) off the constant: looser than the chord, with a product of matrices less."""
    noise = interval.noise(node, box, walk.weights.scale, walk.ranges.values[node.inputs[0]].magnitude)
    if noise is not None:
        paid = 1 + walk.rate(math.prod(node.shape) + maps.fan(node))
        walk.gain(-paid * dot(size, filled(noise + SMALL, node)))


def carry(walk: Walk, source: int, carried: Tensor, noises: Sequence[tuple[Tensor, Tensor | None]]) -> None:
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
        carried = torch.addcmul(carried, noise, slope[:, :, None], value=-1.0)
        if offset is not None:
            walk.gain(-dot(noise, offset))
    walk.underflow(source)
    walk.give(source, carried)


def shift(walk: Walk, node: Shift, position: int, a: Tensor) -> None:
    """A (z + b): the entries of b that are added at several places are one variable, so A is summed over them first."""
    b = walk.weights.addend(node.bias, len(node.shape))
    tied = sum_to(a, b.center.shape[2:])
    value = dot(tied, b.center)
    loss = walk.rate(math.prod(node.shape)) * b.magnitude
    if b.radius is not None and tied is a:
        loss = loss + b.radius
    elif b.radius is not None:
        value = value - dot(tied.abs(), b.radius)
    walk.gain(value)
    walk.owe(node.inputs[0], a, filled(loss, node))


def _activation(walk: Walk, node: Activation, position: int, a: Tensor) -> None:
    """The lower line where A >= 0, the upper line where A < 0: A (half the sum) - |A| (half the difference).

    Halves of subnormal numbers are off by their spacing, which SMALL covers, for slopes at any |z|.
    """
    (source,) = node.inputs
    middle, half = walk.ranges.lines[position].middle, walk.ranges.lines[position].half
    steepest = middle.slope.abs() + half.slope.abs() + SMALL
    size = torch.addcmul(middle.level.abs() + half.level.abs(), steepest, walk.ranges.values[source].magnitude)
    loss = torch.add(half.level, size, alpha=walk.rate(math.prod(node.shape))) + SMALL
    absolute = a.abs()
    walk.gain(dot(a, middle.level) - dot(absolute, loss))
    walk.underflow(source)
    walk.give(source, (a * middle.slope[:, :, None]).addcmul_(absolute, half.slope[:, :, None], value=-1.0))


def _add(walk: Walk, node: Sum, position: int, a: Tensor) -> None:
    """Every branch gets the coefficients of the sum, with its sign."""
    for source, sign in zip(node.inputs, node.signs, strict=True):
        walk.give(source, a if sign > 0 else -a)


def _reshape(walk: Walk, node: Reshape, position: int, a: Tensor) -> None:
    """Back to the old shape."""
    (source,) = node.inputs
    walk.give(source, a.reshape(*a.shape[:3], *walk.network.nodes[source].shape))


def _transpose(walk: Walk, node: Transpose, position: int, a: Tensor) -> None:
    """The inverse permutation."""
    inverse = sorted(range(len(node.perm)), key=node.perm.__getitem__)
    walk.give(node.inputs[0], a.permute(0, 1, 2, *(axis + 3 for axis in inverse)))


def _broadcast(walk: Walk, node: Broadcast, position: int, a: Tensor) -> None:
    """Sum over the copies."""
    (source,) = node.inputs
    shape = walk.network.nodes[source].shape
    aligned = torch.Size((1,) * (len(node.shape) - len(shape)) + shape)
    walk.gain(-walk.rate(math.prod(node.shape)) * dot(a.abs(), walk.ranges.values[position].magnitude))
    walk.give(source, sum_to(a, aligned).reshape(*a.shape[:3], *shape))


def _concat(walk: Walk, node: Concat, position: int, a: Tensor) -> None:
    """To each branch its part."""
    sizes = [walk.network.nodes[source].shape[node.axis] for source in node.inputs]
    for source, part in zip(node.inputs, a.split(sizes, node.axis + 3), strict=True):
        walk.give(source, part)


def _select(walk: Walk, node: Select, position: int, a: Tensor) -> None:
    """To each entry the sum over its copies, of which there are at most `copies`."""
    (source,) = node.inputs
    if node.copies > 1:
        walk.gain(-walk.rate(node.copies) * dot(a.abs(), walk.ranges.values[position].magnitude))
    walk.give(source, maps.select_back(node, a, walk.network.nodes[source].shape))


def _product(walk: Walk, node: Product, position: int, a: Tensor) -> None:
    """A plane below where A >= 0, above where A < 0; slopes are end points, so that only p q is rounded."""
    x, y = (walk.ranges.values[source] for source in node.inputs)
    below, above = planes(x, y)
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    value = -dot(positive, below.p * below.q) - dot(negative, above.p * above.q)
    # |p| <= |x| and |q| <= |y|: each of the three terms is at most |x| |y|; p q may underflow
    walk.gain(value - dot(a.abs(), 4 * walk.rate(math.prod(node.shape)) * (x.magnitude * y.magnitude) + SMALL))
    for source, low, high in zip(node.inputs, (below.q, below.p), (above.q, above.p), strict=True):
        walk.underflow(source)
        walk.give(source, positive * low[:, :, None] + negative * high[:, :, None])


def _max(walk: Walk, node: Max, position: int, a: Tensor) -> None:
    """One entry of the input where A >= 0, a line over one entry where A < 0."""
    (source,) = node.inputs
    x = walk.ranges.values[source]
    lines = max_lines(x)
    a = a.expand(*common(a.shape[:2], x.lower.shape[:2]), *a.shape[2:])
    positive, negative = a.clamp(min=0)[..., None], a.clamp(max=0)[..., None]
    carried = a.new_zeros(*a.shape, x.lower.shape[-1]).scatter(-1, _over_rows(lines.under, a), positive)
    carried = carried.scatter_add(-1, _over_rows(lines.over, a), negative * lines.slope[:, :, None])
    size = x.magnitude.amax(-1) + lines.offset[..., 0].abs()
    paid = dot(a.abs(), walk.rate(math.prod(node.shape)) * size)
    walk.gain(dot(negative[..., 0], lines.offset[..., 0]) - paid)
    walk.underflow(source)
    walk.give(source, carried)


def _over_rows(index: Tensor, a: Tensor) -> Tensor:
    """(K or 1, M, *shape, 1) -> (K, M, R, *shape, 1)."""
    return index[:, :, None].expand(*a.shape[:3], *index.shape[2:])


def _enclosed(walk: Walk, node: Node, position: int, a: Tensor) -> None:
    """Stop at a node that is not linear: the minimum over its enclosure."""
    z = walk.ranges.values[position]
    center, radius = z.center_radius
    loss = torch.add(radius, z.magnitude, alpha=walk.rate(math.prod(node.shape)))
    walk.gain(dot(a, filled(center, node)) - dot(a.abs(), filled(loss, node)))


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
}
"""The linear method."""

INTERVAL: Rules = {**LINEAR, Activation: _enclosed, Product: _enclosed, Max: _enclosed}
"""The interval method: rows are folded into the maps behind the last activations, no further."""
