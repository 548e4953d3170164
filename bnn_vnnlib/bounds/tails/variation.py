"""How far the value of a node at any x of the item is from its value at the centre of the box, with random weights.

Forwards, on earlier events: |h(x) - h(x0)| <= rho' elementwise. A weighted map of mean mu and noise Delta makes of it
    |z_i(x) - z_i(x0)| <= sum_j ( |mu_ij| + |Delta_ij| ) rho'_j,
a convex function of the noise with a known mean and Lipschitz constant, which does not exceed its mean by z times the
latter except with probability Phi(-z) (bound 1 of `tail`). Biases drop out; activations multiply by their largest
slope at most. What the ranges allow is never exceeded.

On the way, the law of z_i(x0) given the earlier stages (see `tail`): Gaussian, with a variance between known bounds.
What weights share (`shared`) is part of Delta, but not of that law, which is the one given the groups as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bnn_vnnlib.bounds import interval
from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails.shared import Correlation
from bnn_vnnlib.bounds.tails.tail import FOLD
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import (
    Activation,
    Constant,
    Conv,
    Input,
    Linear,
    Node,
    Product,
    Reshape,
    Scale,
    Shift,
    Sum,
    Transpose,
)
from bnn_vnnlib.rounding import TINY, UNIT, gamma, squared, squared_down


@dataclass(frozen=True, eq=False)
class _Open:
    """A node behind random weights, (K or 1, M, *shape) each.

    mean, spread : of the convex function that bounds the variation, its Lipschitz constant
    least, most : bounds of the variance at the centre, given the earlier stages
    """

    mean: Tensor
    spread: Tensor
    least: Tensor
    most: Tensor


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of an activation's output h at the centre, given the earlier stages; (K or 1, M, *shape).

    square : bound of E(|h| + rho')^2; deviation : of its input; independent : for different elements
    """

    square: Tensor
    deviation: Tensor
    independent: bool


@dataclass(eq=False)
class Variation:
    """rho' of the nodes where it is known, and the noise of the nodes where it is not yet.

    known : position -> (K or 1, M, *shape)
    fixed : h(x0) where no weight has a part in it
    variances : of claimed nodes, bounds of the variance given the earlier stages
    moments : of activations and what moves their elements, where they are known
    """

    means: WeightBoxes
    deviations: WeightBoxes
    correlation: Correlation | None = None
    known: dict[int, Tensor] = field(default_factory=dict)
    open: dict[int, _Open] = field(default_factory=dict)
    fixed: dict[int, Tensor] = field(default_factory=dict)
    variances: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    moments: dict[int, Moments] = field(default_factory=dict)

    def enclose(self, position: int, node: Node, values: dict[int, Interval]) -> None:
        """Go on by one node, whose range is known by now if it can be."""
        match node:
            case Input():
                self.fixed[position], self.known[position] = values[position].center_radius
            case Constant():
                self.known[position] = torch.zeros_like(values[position].lower)
            case Activation():
                z = values[node.inputs[0]]
                least, most = ACTIVATIONS[node.kind].slopes(node.alpha, z.lower, z.upper)
                near = torch.maximum(-least, most) * self.known[node.inputs[0]]
                self.known[position] = self._capped(near, values[position])
            case Product():
                self.known[position] = self._capped(self._of_product(node, values), values[position])
            case Linear() | Conv() | Scale():
                self.open[position] = self._mapped(position, node, values[node.inputs[0]])
            case _:
                self._moved(position, node)

    def claim(self, position: int, deviation: Tensor, other: Tensor, value: Interval) -> None:
        """Close an open node, one event an element, each failing with probability at most Phi(-deviation).

        other : another bound that fails no more often; all there is to claim of a node that is known already
        """
        if position in self.open:
            opened = self.open.pop(position)
            drop = (deviation * opened.spread).nan_to_num(torch.inf, torch.inf)
            near = torch.minimum((opened.mean + drop) * (1 + 8 * UNIT), other)
            self.known[position] = self._capped(near, value)
            self.variances[position] = opened.least * (1 - 2.0**-40), opened.most
        else:
            self.known[position] = self._capped(torch.minimum(self.known[position], other), value)

    def own(self, network: Network, position: int) -> frozenset[int]:
        """The open nodes behind a claimed node, itself included: their noise is what it has of its own."""
        found, stack = {position}, [position]
        while stack:
            fresh = [s for s in network.nodes[stack.pop()].inputs if s not in self.known and s not in found]
            found.update(fresh)
            stack.extend(fresh)
        return frozenset(found)

    def at_center(self, position: int, h: Interval) -> tuple[Tensor, Tensor]:
        """Center and radius of h0, clipped to the range h."""
        if position in self.fixed:
            return self.fixed[position], torch.zeros_like(self.fixed[position])
        return h.center_radius

    def _capped(self, variation: Tensor, z: Interval) -> Tensor:
        width = z.upper - z.lower
        return (torch.minimum(variation, width) * (1 + 2 * UNIT)).nan_to_num(torch.inf, torch.inf)

    def _of_product(self, node: Product, values: dict[int, Interval]) -> Tensor:
        """|x y - x0 y0| <= |x| |y - y0| + |y0| |x - x0|."""
        x, y = node.inputs
        near = values[x].magnitude * self.known[y] + values[y].magnitude * self.known[x]
        return near * (1 + 4 * UNIT) + TINY

    def _mapped(self, position: int, node: Linear | Conv | Scale, value: Interval) -> _Open:
        """What is known of the variation behind a map with random weights."""
        (source,) = node.inputs
        box, near, g = self.means.param(node.weight), self.known[source], gamma(4 * maps.fan(node) + 16)
        mean = maps.apply(node, box.size, near)
        if box.slack is not None:
            mean = mean + maps.apply(node, box.slack, near)
        noise, zero = self.deviations.param(node.weight), torch.zeros_like(mean)
        reach = [] if self.correlation is None else self.correlation.reach(position, node, near)
        shared = sum((part**2 for part in reach), zero) * (1 + 2.0**-45)
        spreads = [] if self.correlation is None else self.correlation.deviations(node.weight)
        if noise.spread is not None:
            spreads.append(noise.spread)
        if not spreads:
            return _Open(mean * (1 + g) + TINY, zero, zero, zero)
        every = (
            spreads[0]
            if len(spreads) == 1
            else torch.sqrt(torch.stack([squared(s) for s in spreads]).sum(0)) * (1 + 8 * UNIT)
        )
        mean = (mean + FOLD * maps.apply(node, every, near)) * (1 + g) + TINY
        if noise.spread is None:
            return _Open(mean, torch.sqrt(shared + TINY) * (1 + 4 * UNIT), zero, zero)
        copies, variance = node.weight.copies, noise.variance
        center, radius = self.at_center(source, value)
        least = zero
        if copies == 1:  # entries that are one variable could cancel
            least = maps.apply(node, noise.sure_variance, squared_down((center.abs() - radius).clamp(min=0)))
            least = (least * (1 - 2 * g) - TINY).clamp(min=0)
        square, most = maps.apply(node, variance, torch.cat([squared(near), squared(center.abs() + radius)], 1)).chunk(
            2, 1
        )
        spread = torch.sqrt(square * ((1 + g) * copies) + shared + TINY) * (1 + 4 * UNIT)
        return _Open(mean, spread, least, most * ((1 + g) * copies) + TINY)

    def _moved(self, position: int, node: Node) -> None:
        """Sums, maxima and moves of elements; a sum of bounds is a bound, and |max x - max y| <= max |x - y|.

        A bias does not vary, but what it is added to has noise of its own from then on.
        """
        if not isinstance(node, Shift | Sum) and all(source in self.fixed for source in node.inputs):
            centers = (Interval(self.fixed[source], self.fixed[source]) for source in node.inputs)
            self.fixed[position] = interval.RULES[type(node)](node, self.means, *centers)[0].lower
        if isinstance(node, Reshape | Transpose) and node.inputs[0] in self.moments:
            old = self.moments[node.inputs[0]]
            square, scale = (self._through(node, [part]) for part in (old.square, old.deviation))
            self.moments[position] = Moments(square, scale, old.independent)
        if not isinstance(node, Shift) and all(source in self.known for source in node.inputs):
            self.known[position] = self._through(node, [self.known[source] for source in node.inputs])
            return
        parts = zip(*(vars(self._opened(source)).values() for source in node.inputs), strict=True)
        opened = _Open(*(self._through(node, list(part)) for part in parts))
        if isinstance(node, Shift):
            deviation = self.deviations.param(node.bias).spread
            if deviation is not None:
                aligned = deviation.reshape(1, 1, *(1,) * (len(node.shape) - deviation.ndim + 1), *deviation.shape[1:])
                sure = squared_down(aligned) * (1 - 64 * UNIT)
                opened = replace(
                    opened, least=opened.least + sure, most=(opened.most + squared(aligned)) * (1 + 8 * UNIT)
                )
        self.open[position] = opened

    def _opened(self, position: int) -> _Open:
        if position in self.open:
            return self.open[position]
        zero = torch.zeros_like(self.known[position])
        return _Open(self.known[position], zero, zero, zero)

    def _through(self, node: Node, near: list[Tensor]) -> Tensor:
        if isinstance(node, Shift):
            return near[0]
        return interval.RULES[type(node)](node, self.means, *(Interval(-x, x) for x in near))[0].upper
