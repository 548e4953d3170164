"""Linear bounds, walked backwards from rows over a node to the input: one rule a node type.

Guarantee: sound over real arithmetic on the stored numbers, rounding included; not complete.
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
walk carries the sum of these payments in `error`. A coefficient may also underflow, by at most TINY, and is paid for
as TINY |z| (`underflow`).
Reference: Wicker et al., Adversarial Robustness Certification for BNNs (McCormick bounds, here replaced by the chord);
Zhang et al., CROWN, NeurIPS 2018 (backward walk).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from bnn_vnnlib.bounds import interval, maps
from bnn_vnnlib.bounds.interval import Interval, center_of, radius_of
from bnn_vnnlib.bounds.relaxations import max_lines, planes
from bnn_vnnlib.bounds.rounding import TINY, UNIT, gamma
from bnn_vnnlib.bounds.walk import LinearForm as LinearForm
from bnn_vnnlib.bounds.walk import Ranges as Ranges
from bnn_vnnlib.bounds.walk import Walk as Walk
from bnn_vnnlib.bounds.walk import dot as dot
from bnn_vnnlib.bounds.walk import filled as filled
from bnn_vnnlib.bounds.walk import over_rows as over_rows
from bnn_vnnlib.bounds.walk import some as some
from bnn_vnnlib.bounds.walk import sum_to as sum_to
from bnn_vnnlib.bounds.weights import ParamBox, WeightBoxes
from bnn_vnnlib.model.network import Network
from bnn_vnnlib.model.nodes import (
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

WIDE = 128
"""Inputs beyond which a walk is rough, and the first layer is bounded by intervals (see `engine`)."""


def weighted(walk: Walk, node: Linear | Conv | Scale, position: int, a: Tensor) -> None:
    """A' = A Wc - s (|A| Wr)."""
    (source,) = node.inputs
    box = walk.weights.param(node.weight)
    shape = walk.network.nodes[source].shape
    rough = walk.rough and isinstance(walk.network.nodes[source], Input) and math.prod(shape) > WIDE

    def back(weight: Tensor, a: Tensor) -> Tensor:
        return over_rows(lambda flat: maps.adjoint(node, weight, flat, shape), a)

    size = a.abs()
    noise = None
    if rough:
        _take_largest(walk, node, box, size)
    elif box.spread is not None:
        scale = walk.weights.scale.reshape(*walk.weights.scale.shape, 1, *(1,) * len(node.shape))
        least = TINY * (scale > 0).to(scale.dtype)  # what |A| scale may lose to underflow, whatever the spread
        noise = back(box.spread, torch.addcmul(least, size, scale))
    if box.slack is not None and not rough:
        slack = back(box.slack, size)
        noise = slack if noise is None else noise + slack
    terms = math.prod(shape) + maps.fan(node)
    error = 4 * gamma(2 * terms) * dot(size, walk.ranges.magnitudes[position]) + TINY
    _carry(walk, source, back(box.center, a), noise, error)


def _take_largest(walk: Walk, node: Linear | Conv | Scale, box: ParamBox, size: Tensor) -> None:
    """Take |A| (Wr max |z|) off the constant: looser than the chord, with a product of matrices less."""
    noise = interval.noise(node, box, walk.weights.scale, walk.ranges.values[node.inputs[0]].magnitude)
    if noise is not None:
        loss = dot(size, filled(noise + TINY, node))
        walk.gain(-loss, 4 * gamma(2 * (math.prod(node.shape) + maps.fan(node))) * loss + TINY)


def _carry(walk: Walk, source: int, carried: Tensor, noise: Tensor | None, error: Tensor) -> None:
    """Give A Wc - s noise to the source, with noise = |A| Wr, and take noise . t off the constant."""
    if noise is None:
        walk.error = walk.error + error
    else:
        slope, offset = _chord_of_absolute(walk.ranges.values[source])
        carried = torch.addcmul(carried, noise, slope[:, :, None], value=-1.0)
        walk.gain(-dot(noise, offset) if bool(offset.any()) else torch.zeros_like(walk.constant), error)
    walk.underflow(source)
    walk.give(source, carried)


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

    (source,), scale = dense.inputs, walk.weights.scale[:, :, None, None]
    box, shape = walk.weights.param(dense.weight), nodes[source].shape
    g = 4 * gamma(2 * (math.prod(shape) + maps.fan(dense)))
    error = g * both(walk.ranges.magnitudes[place].flatten(2)) + TINY
    if bias is not None:
        added = walk.weights.param(bias.bias)
        center, radius = center_of(added, len(bias.shape)), radius_of(added, walk.weights.scale, len(bias.shape))
        flat = both(filled(center, bias).flatten(2), -1)
        paid = g * both(filled(walk.ranges.magnitudes[position], bias).flatten(2)) + TINY
        if isinstance(radius, Tensor):
            flat = flat - both(filled(radius, bias).flatten(2))
        walk.gain(flat, paid)
    noise = None
    if box.spread is not None:
        noise = scale * both(box.spread[:, None])
    if box.slack is not None:
        slack = both(box.slack[:, None])
        noise = slack if noise is None else noise + slack
    k, m = walk.error.shape[:2]
    carried = both(box.center[:, None], -1).expand(k, m, -1, -1).reshape(k, m, -1, *shape)
    noise = None if noise is None else noise.reshape(*noise.shape[:3], *shape)
    _carry(walk, source, carried, noise, error)
    return True


def _chord_of_absolute(z: Interval) -> tuple[Tensor, Tensor]:
    """s, t with |z| <= s z + t on [l, u]: exact where the sign is fixed, t rounded up elsewhere."""
    lower, upper = z.lower, z.upper
    width = upper - lower
    slope = torch.where(width > 0, (upper.abs() - lower.abs()) / width, torch.zeros_like(width)).nan_to_num(0.0)
    slope = slope.clamp(-1, 1)
    offset = torch.maximum(lower.abs() - slope * lower, upper.abs() - slope * upper)
    offset = offset + (4 * UNIT * (lower.abs() + upper.abs()) + TINY)
    slope = torch.where(lower >= 0, 1.0, torch.where(upper <= 0, -1.0, slope))
    return slope, torch.where((lower >= 0) | (upper <= 0), torch.zeros_like(offset), offset)


def shift(walk: Walk, node: Shift, position: int, a: Tensor) -> None:
    """A (z + b): the entries of b that are added at several places are one variable, so A is summed over them first."""
    box, rank = walk.weights.param(node.bias), len(node.shape)
    center, radius = center_of(box, rank), radius_of(box, walk.weights.scale, rank)
    tied = sum_to(a, center.shape[2:])
    value = dot(tied, center)
    if isinstance(radius, Tensor):
        value = value - dot(tied.abs(), radius)
    payment = 4 * gamma(2 * math.prod(node.shape)) * dot(a.abs(), filled(walk.ranges.magnitudes[position], node))
    walk.gain(value, payment + TINY)
    walk.give(node.inputs[0], a)


def _constant(walk: Walk, node: Constant, position: int, a: Tensor) -> None:
    """A c, for c in its enclosure."""
    value = walk.ranges.values[position]
    center = (value.lower + value.upper) / 2
    radius = torch.maximum(value.upper - center, center - value.lower) * (1 + 2 * UNIT)
    payment = 4 * gamma(2 * math.prod(node.shape)) * dot(a.abs(), filled(walk.ranges.magnitudes[position], node))
    walk.gain(dot(a, filled(center, node)) - dot(a.abs(), filled(radius, node)), payment + TINY)


def _activation(walk: Walk, node: Activation, position: int, a: Tensor) -> None:
    """The lower line where A >= 0, the upper line where A < 0."""
    (source,) = node.inputs
    lines = walk.ranges.lines[position]
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    carried = positive * lines.lower_slope[:, :, None] + negative * lines.upper_slope[:, :, None]
    value = dot(positive, lines.lower_intercept) + dot(negative, lines.upper_intercept)
    steepest = torch.maximum(lines.lower_slope.abs(), lines.upper_slope.abs())
    widest = torch.maximum(lines.lower_intercept.abs(), lines.upper_intercept.abs())
    size = widest + steepest * walk.ranges.values[source].magnitude
    walk.gain(value, 4 * gamma(2 * math.prod(node.shape)) * dot(a.abs(), size) + TINY)
    walk.underflow(source)
    walk.give(source, carried)


def _add(walk: Walk, node: Sum, position: int, a: Tensor) -> None:
    """The same coefficients to every branch."""
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
    payment = 4 * gamma(2 * math.prod(node.shape)) * dot(a.abs(), walk.ranges.values[position].magnitude)
    walk.error = walk.error + payment + TINY
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
        paid = 4 * gamma(2 * node.copies) * dot(a.abs(), walk.ranges.values[position].magnitude)
        walk.error = walk.error + paid + TINY
    walk.give(source, maps.select_back(node, a, walk.network.nodes[source].shape))


def _product(walk: Walk, node: Product, position: int, a: Tensor) -> None:
    """A plane below where A >= 0, above where A < 0; slopes are end points, so that only p q is rounded."""
    x, y = (walk.ranges.values[source] for source in node.inputs)
    below, above = planes(x, y)
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    value = -dot(positive, below.p * below.q) - dot(negative, above.p * above.q)
    # |p| <= |x| and |q| <= |y|: each of the three terms is at most |x| |y|; p q may underflow
    paid = 16 * gamma(2 * math.prod(node.shape)) * dot(a.abs(), x.magnitude * y.magnitude)
    walk.gain(value, paid + TINY * (1 + dot(a.abs(), torch.ones_like(below.p))))
    for source, low, high in zip(node.inputs, (below.q, below.p), (above.q, above.p), strict=True):
        walk.underflow(source)
        walk.give(source, positive * low[:, :, None] + negative * high[:, :, None])


def _max(walk: Walk, node: Max, position: int, a: Tensor) -> None:
    """One entry of the input where A >= 0, a line over one entry where A < 0."""
    (source,) = node.inputs
    x = walk.ranges.values[source]
    lines = max_lines(x)
    positive, negative = a.clamp(min=0)[..., None], a.clamp(max=0)[..., None]
    carried = a.new_zeros(*a.shape, x.lower.shape[-1]).scatter(-1, _over_rows(lines.under, a), positive)
    carried = carried.scatter_add(-1, _over_rows(lines.over, a), negative * lines.slope[:, :, None])
    size = x.magnitude.amax(-1) + lines.offset[..., 0].abs()
    paid = 4 * gamma(2 * math.prod(node.shape)) * dot(a.abs(), size) + TINY
    walk.gain(dot(negative[..., 0], lines.offset[..., 0]), paid)
    walk.underflow(source)
    walk.give(source, carried)


def _over_rows(index: Tensor, a: Tensor) -> Tensor:
    """(K or 1, M, *shape, 1) -> (K, M, R, *shape, 1)."""
    return index[:, :, None].expand(*a.shape[:3], *index.shape[2:])


def _enclosed(walk: Walk, node: Node, position: int, a: Tensor) -> None:
    """Stop at a node that is not linear: the minimum over its enclosure."""
    value = walk.ranges.values[position]
    box = Interval(*(side.reshape(*side.shape[:2], -1) for side in (value.lower, value.upper)))
    walk.gain(LinearForm(a.reshape(*a.shape[:3], -1), a.new_zeros(())).minimum(box), walk.error.new_zeros(()))


Rules = Mapping[type[Node], Callable[..., None]]

LINEAR: Rules = {
    Linear: weighted,
    Conv: weighted,
    Scale: weighted,
    Shift: shift,
    Constant: _constant,
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


def walk_back(
    network: Network,
    weights: WeightBoxes,
    ranges: Ranges,
    seeds: Sequence[tuple[int, Tensor]],
    size: int,
    rules: Rules = LINEAR,
    *,
    rough: bool = False,
) -> LinearForm:
    """Lower-bound rows over nodes as linear functions of the input.

    Parameters
    ----------
    ranges : of the forward pass over the same weights and input boxes
    seeds : positions of nodes, and the coefficients (K, M, R, *shape) of the rows over them
    size : n, the number of scalar inputs
    rules : the method
    rough : take the noise of a map over a wide input at the largest |x|
    """
    lead = seeds[0][1]
    zero = lead.new_zeros(lead.shape[:3])
    walk = Walk(network, weights, ranges, {}, zero, zero, rough)
    for position, a in seeds:
        walk.give(position, a)
    return finish(walk, max(walk.pending), size, rules)


def seeds_of(network: Network, outputs: Tensor) -> list[tuple[int, Tensor]]:
    """Split the columns of C (K, M, R, m) by output; a node may be listed twice."""
    shapes = [network.nodes[position].shape for position in network.outputs]
    parts = outputs.split([math.prod(shape) for shape in shapes], -1)
    return [
        (position, part.reshape(*part.shape[:3], *shape))
        for position, part, shape in zip(network.outputs, parts, shapes, strict=True)
    ]


def units(
    network: Network, weights: WeightBoxes, ranges: Ranges, position: int, index: Tensor, items: int, size: int
) -> LinearForm:
    """`walk_back` with the rows e_i, then -e_i, for the elements i in `index` of a node: R = 2 len(index)."""
    shape = network.nodes[position].shape
    unit = weights.scale.new_zeros(len(index), math.prod(shape))
    unit[torch.arange(len(index), device=index.device), index] = 1.0
    rows = torch.cat([unit, -unit]).reshape(1, 1, -1, *shape).expand(weights.count, items, -1, *shape)
    return walk_back(network, weights, ranges, [(position, rows)], size, rough=True)


def dense_units(
    network: Network, weights: WeightBoxes, ranges: Ranges, position: int, items: int, size: int
) -> LinearForm | None:
    """`units` for all elements of a dense layer's output, without storing an identity; None for any other node."""
    zero = weights.scale.new_zeros(weights.count, items, 2 * math.prod(network.nodes[position].shape))
    walk = Walk(network, weights, ranges, {}, zero, zero, rough=True)
    return finish(walk, position, size, LINEAR) if start_at_units(walk, position) else None


def finish(walk: Walk, last: int, size: int, rules: Rules) -> LinearForm:
    """Take a walk that has been started from node `last` to the input: its rows as functions of x (K, M, R, size)."""
    parts: list[tuple[int, Tensor]] = []
    for position in range(last, -1, -1):
        if (a := walk.pending.pop(position, None)) is None:
            continue
        node = walk.network.nodes[position]
        if isinstance(node, Input):
            parts.append((node.start, a.reshape(*a.shape[:3], -1)))
        else:
            rules[type(node)](walk, node, position, a)
    offset = walk.constant - walk.error * (1 + 1e-6)  # the payments themselves were added up with roundings
    offset = offset - 2 * UNIT * offset.abs()
    if len(parts) == 1 and parts[0][1].shape[-1] == size:
        return LinearForm(parts[0][1], offset)
    slope = offset.new_zeros(*offset.shape, size)
    for start, part in parts:
        slope[..., start : start + part.shape[-1]] += part
    return LinearForm(slope, offset)
