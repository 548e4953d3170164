"""Closed ranges of a network's outputs, exact where the other bounds pay for roundings that were not made.

Bounds are moved outward by what rounding may have cost, so that they never quite reach a number that an output does
reach: the 0 of a Relu, the 1 of a Sigmoid, c at a point where the network computes c. A strict row that is only touched
there would stay open for ever. Here every end is a number that float64 made no error in, or else moved outward:

  - Random weights may be anything, and so may be what they are added to or multiplied with.
  - Behind an activation stands the closed range of its function (Relu [0, inf), Sigmoid [0, 1], Clip, abs, ..),
    whatever came before. Values in floating point stay inside, too, and may reach ends that the function tends to.
  - A sum of products is computed without error if they are all multiples of some 2^g and their absolute values add up
    to at most 2^(53 + g): then so are all partial sums, in any order, and float64 holds each of them.
  - Of a sum of two numbers the rounding error is a number that float64 computes without error (Knuth's TwoSum).

These are intervals: how outputs depend on each other is not known. Ends may be infinite. Where a function may be
undefined (the logarithm of a number that may be negative), nothing is claimed of any output: what comes behind it would
have a closed range of numbers that are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from bnn_vnnlib.bounds import interval
from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.curves import Curve
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Activation, Constant, Conv, Input, Linear, Node, Scale, Shift, Sum
from bnn_vnnlib.rounding import ANY, LEAST, TINY, down, exponent, finest, gamma

PARTIAL = {
    kind: shape for kind, shape in ACTIVATIONS.items() if isinstance(shape, Curve) and shape.defined is not torch.le
}
"""Activations that are not defined for every number: log, sqrt, reciprocal."""


def outputs(network: Network, weights: WeightBoxes, box: Interval, random: Collection[str] = ()) -> Interval:
    """(K or 1, M or 1, m): closed ranges of the outputs, flattened and joined.

    Parameters
    ----------
    weights : K settings of the weights, without spreads
    box : (K or 1, M, n)
    random : tensors the entries of which may be any real numbers instead
    """
    found, known = ranges(network, weights, box, random)
    ends = [found[position] for position in network.outputs]
    k, items = (max(end.lower.shape[axis] for end in ends) for axis in (0, 1))
    lower, upper = (
        torch.cat([side.reshape(*side.shape[:2], -1).expand(k, items, -1) for side in sides], -1)
        for sides in ([end.lower for end in ends], [end.upper for end in ends])
    )
    open_ = ~known[..., None]
    return Interval(lower.masked_fill(open_, -torch.inf), upper.masked_fill(open_, torch.inf))


def defined(network: Network, weights: WeightBoxes, box: Interval, random: Collection[str] = ()) -> Tensor:
    """(K or 1, M or 1): every function of the network is defined, for all x of the box and all random weights.

    Parameters
    ----------
    weights, box, random : see `outputs`
    """
    if not any(isinstance(node, Activation) and node.kind in PARTIAL for node in network.nodes):
        return torch.ones(1, 1, dtype=torch.bool, device=box.lower.device)
    return ranges(network, weights, box, random)[1]


def ranges(
    network: Network, weights: WeightBoxes, box: Interval, random: Collection[str]
) -> tuple[list[Interval], Tensor]:
    """The closed range of every node, and whether all functions are surely defined (K or 1, M or 1).

    Parameters
    ----------
    weights, box, random : see `outputs`
    """
    found: list[Interval] = []
    known = torch.ones(1, 1, dtype=torch.bool, device=box.lower.device)
    for node in network.nodes:
        sources = [found[source] for source in node.inputs]
        if isinstance(node, Activation) and node.kind in PARTIAL:
            inside = PARTIAL[node.kind].defined(sources[0].lower, sources[0].upper)
            known = known & inside.reshape(*inside.shape[:2], -1).all(-1)
        value = _range(node, weights, box, sources, random)
        lower = value.lower.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        found.append(Interval(lower, value.upper.nan_to_num(torch.inf, torch.inf, torch.inf)))
    return found, known


def least(rows: Tensor, z: Interval) -> Tensor:
    """Lower bounds (K, M, R) on rows (M or 1, R, d) times z in boxes (K or 1, M or 1, d), -inf where one overflows."""
    ends = torch.where(rows > 0, exponent(z.lower)[:, :, None], exponent(z.upper)[:, :, None])
    grain = torch.where(rows != 0, ends, ANY).amin(-1) + finest(rows[None], 3)
    found = _least(lambda weight, x: (weight @ x[..., None])[..., 0], rows[None], z, grain, rows.shape[-1])
    return found.nan_to_num(-torch.inf, -torch.inf, -torch.inf)


def add_down(x: Tensor, y: Tensor) -> Tensor:
    """x + y, and the next smaller number where the sum was rounded up, or where its error is not known for overflow."""
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)
    return torch.where(error >= 0, total, down(total))


def _range(
    node: Node, weights: WeightBoxes, box: Interval, sources: list[Interval], random: Collection[str]
) -> Interval:
    """Range of a node whatever the random weights are, rounded only where its sums are not exact."""
    match node:
        case Input():
            return interval.inputs(node, box)
        case Linear(weight=param) | Conv(weight=param) | Scale(weight=param):
            return _anything(node, box) if param.source in random else _mapped(node, weights, sources[0])
        case Shift(bias=param) | Constant(value=param) if param.source in random:
            return _anything(node, box)
        case Shift():
            bias = weights.addend(node.bias, len(node.shape))
            return _sum(sources[0], Interval(bias.lower, bias.upper))
        case Sum():
            total, *rest = (z if sign > 0 else _negated(z) for sign, z in zip(node.signs, sources, strict=True))
            for z in rest:
                total = _sum(total, z)
            return total
        case Activation():
            return _activated(node, sources[0])
        case _:
            found: Interval = interval.RULES[type(node)](node, weights, *sources)[0]
            return found


def _anything(node: Node, box: Interval) -> Interval:
    lower = box.lower.new_full((1, box.lower.shape[1], *node.shape), -torch.inf)
    return Interval(lower, -lower)


def _negated(z: Interval) -> Interval:
    return Interval(-z.upper, -z.lower)


def _sum(x: Interval, y: Interval) -> Interval:
    return Interval(add_down(x.lower, y.lower), -add_down(-x.upper, -y.upper))


def _activated(node: Activation, z: Interval) -> Interval:
    """Range of an activation, met with the function's own range. Where it may be undefined, `outputs` claims
    nothing.
    """
    lower, upper, shape = z.lower, z.upper, ACTIVATIONS[node.kind]
    match node.kind:
        case "abs":
            magnitude = torch.maximum(-lower, upper)
            return Interval(torch.maximum(lower, -upper).clamp(min=0.0), magnitude)
        case "clip":
            return Interval(*(side.clamp(*node.alpha) for side in (lower, upper)))  # type: ignore[misc]
    low, high = shape.range(node.alpha, lower, upper)
    if not isinstance(shape, Curve):
        return Interval(low, high)
    low, high = low.nan_to_num(-torch.inf, -torch.inf, -torch.inf), high.nan_to_num(torch.inf, torch.inf, torch.inf)
    bottom = -float(node.alpha) if node.kind == "elu" and float(node.alpha) >= 0 else shape.least  # type: ignore[arg-type]
    return Interval(low.clamp(min=bottom), high.clamp(max=shape.greatest))


def _mapped(node: Linear | Conv | Scale, weights: WeightBoxes, z: Interval) -> Interval:
    """Range of a linear map of z, rounded only where the sums are not exact."""
    box = weights.param(node.weight)
    grain = box.finest[:, None] + torch.minimum(finest(z.lower, 2), finest(z.upper, 2))
    grain = grain.reshape(*grain.shape, *(1,) * len(node.shape))

    def below(z: Interval) -> Tensor:
        """Lower bounds of the map's values for inputs in z."""
        low = _least(lambda weight, x: maps.apply(node, weight, x), box.center, z, grain, maps.fan(node))
        if box.slack is None:
            return low
        size = torch.maximum(z.lower.abs(), z.upper.abs())
        moved = maps.apply(node, box.slack, size) * (1 + gamma(2 * maps.fan(node) + 8)) + TINY
        return down(low - moved)  # also where it is so little that the difference is rounded to `low`

    return Interval(below(z), -below(_negated(z)))


def _least(apply: Callable[[Tensor, Tensor], Tensor], weight: Tensor, z: Interval, grain: Tensor, terms: int) -> Tensor:
    """Lower bounds on sums of `terms` products of weights and numbers in z, which are multiples of 2^grain."""
    known = [torch.isfinite(side) for side in (z.lower, z.upper)]
    lower, upper = (torch.where(k, side, 0.0) for k, side in zip(known, (z.lower, z.upper), strict=True))
    positive, negative = weight.clamp(min=0.0), weight.clamp(max=0.0)
    value = apply(positive, lower) + apply(negative, upper)
    size = apply(positive, lower.abs()) - apply(negative, upper.abs())
    open_ = apply(positive, (~known[0]).to(weight)) - apply(negative, (~known[1]).to(weight)) > 0
    largest = torch.exp2((52 + grain).clamp(max=1023).to(size))  # one bit is left for errors, of `size` among them
    exact = (size <= largest) & (grain >= LEAST)
    value = torch.where(exact, value, value - gamma(2 * terms + 8) * size - TINY)
    return torch.where(open_, -torch.inf, value)
