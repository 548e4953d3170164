"""How far the value of a node at any x of the item is from its value at the centre of the box, with random weights.

Forwards, on earlier events: |h(x) - h(x0)| <= rho' elementwise. A weighted map of mean mu and noise Delta makes of it
    |z_i(x) - z_i(x0)| <= sum_j ( |mu_ij| + |Delta_ij| ) rho'_j,
a convex function of the noise with a known mean and Lipschitz constant, which does not exceed its mean by z times the
latter except with probability Phi(-z) (bound 1 of `tail`). Biases drop out; activations multiply by their largest
slope at most. What the ranges allow is never exceeded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnn_vnnlib.bounds import interval, maps
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.rounding import TINY, UNIT, gamma
from bnn_vnnlib.bounds.tails.tail import FOLD
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model.nodes import Activation, Constant, Conv, Input, Linear, Node, Product, Scale, Shift, Sum


@dataclass(eq=False)
class Variation:
    """rho' of the nodes where it is known, and mean and Lipschitz constant of what bounds it elsewhere.

    known : position -> (K or 1, M, *shape); open : position -> two of these
    fixed : h(x0) where no weight has a part in it
    """

    means: WeightBoxes
    deviations: WeightBoxes
    known: dict[int, Tensor] = field(default_factory=dict)
    open: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    fixed: dict[int, Tensor] = field(default_factory=dict)

    def enclose(self, position: int, node: Node, values: dict[int, Interval]) -> None:
        """Go on by one node, whose range is known by now if it can be."""
        match node:
            case Input():
                self.fixed[position], self.known[position] = center_radius(values[position])
            case Constant():
                self.known[position] = torch.zeros_like(values[position].lower)
            case Activation():
                self.known[position] = self._capped(steepest(node) * self.known[node.inputs[0]], values[position])
            case Product():
                self.known[position] = self._capped(self._of_product(node, values), values[position])
            case Linear() | Conv() | Scale():
                self.open[position] = self._mapped(node, self.known[node.inputs[0]])
            case _:
                self._moved(position, node)

    def claim(self, position: int, deviation: Tensor, value: Interval) -> None:
        """Close an open node, one event an element, each failing with probability at most Phi(-deviation)."""
        if position in self.open:
            mean, spread = self.open.pop(position)
            drop = (deviation * spread).nan_to_num(torch.inf, torch.inf)
            self.known[position] = self._capped((mean + drop) * (1 + 8 * UNIT), value)

    def at_center(self, position: int, h: Interval) -> tuple[Tensor, Tensor]:
        """Center and radius of h0, clipped to the range h."""
        if position in self.fixed:
            return self.fixed[position], torch.zeros_like(self.fixed[position])
        return center_radius(h)

    def _capped(self, variation: Tensor, z: Interval) -> Tensor:
        width = z.upper - z.lower
        return (torch.minimum(variation, width) * (1 + 2 * UNIT)).nan_to_num(torch.inf, torch.inf)

    def _of_product(self, node: Product, values: dict[int, Interval]) -> Tensor:
        """|x y - x0 y0| <= |x| |y - y0| + |y0| |x - x0|."""
        x, y = node.inputs
        near = values[x].magnitude * self.known[y] + values[y].magnitude * self.known[x]
        return near * (1 + 4 * UNIT) + TINY

    def _mapped(self, node: Linear | Conv | Scale, near: Tensor) -> tuple[Tensor, Tensor]:
        box, g = self.means.param(node.weight), 1 + gamma(4 * maps.fan(node) + 16)
        mean = maps.apply(node, box.center.abs(), near)
        if box.slack is not None:
            mean = mean + maps.apply(node, box.slack, near)
        deviation = self.deviations.param(node.weight).spread
        if deviation is None:
            return mean * g + TINY, torch.zeros_like(mean)
        square = maps.apply(node, squared(deviation), squared(near))
        mean = mean + FOLD * maps.apply(node, deviation, near)
        return mean * g + TINY, torch.sqrt(square * (g * node.weight.copies) + TINY) * (1 + 4 * UNIT)

    def _moved(self, position: int, node: Node) -> None:
        """Sums, maxima and moves of elements; a sum of bounds is a bound, and |max x - max y| <= max |x - y|."""
        if not isinstance(node, Shift | Sum) and all(source in self.fixed for source in node.inputs):
            centers = (Interval(self.fixed[source], self.fixed[source]) for source in node.inputs)
            self.fixed[position] = interval.RULES[type(node)](node, self.means, *centers)[0].lower
        if all(source in self.known for source in node.inputs):
            self.known[position] = self._through(node, [self.known[source] for source in node.inputs])
            return
        pairs = [
            self.open[s] if s in self.open else (self.known[s], torch.zeros_like(self.known[s])) for s in node.inputs
        ]
        mean, spread = (self._through(node, list(part)) for part in zip(*pairs, strict=True))
        self.open[position] = mean, spread

    def _pair(self, position: int) -> tuple[Tensor, Tensor]:
        if position in self.open:
            return self.open[position]
        return self.known[position], torch.zeros_like(self.known[position])

    def _through(self, node: Node, near: list[Tensor]) -> Tensor:
        if isinstance(node, Shift):
            return near[0]
        return interval.RULES[type(node)](node, self.means, *(Interval(-x, x) for x in near))[0].upper


def steepest(node: Activation) -> float:
    """Lipschitz constant of an activation, infinite where none is known here."""
    match node.kind:
        case "relu" | "tanh" | "abs" | "clip" | "softplus" | "atan" | "softsign" | "sin" | "cos":
            return 1.0
        case "silu" | "gelu" | "gelu_tanh" | "erf":
            return 1.13
        case "hard_swish":
            return 1.5
        case "leaky_relu":
            return max(1.0, float(node.alpha))  # type: ignore[arg-type]
        case "sigmoid":
            return 0.25
        case _:
            return math.inf


def squared(x: Tensor) -> Tensor:
    """x^2, moved up where it may have lost its digits to underflow; exactly 0 for 0."""
    return x**2 + TINY * (x != 0).to(x.dtype)  # a number times a mask would be float32, where TINY is 0


def center_radius(z: Interval) -> tuple[Tensor, Tensor]:
    """hc and rho, rounded up, with z in [hc - rho, hc + rho]."""
    center = (z.lower + z.upper) / 2
    return center, torch.maximum(z.upper - center, center - z.lower) * (1 + 2 * UNIT)
