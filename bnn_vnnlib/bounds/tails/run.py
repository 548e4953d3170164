"""One chunk of items: ranges forwards, each claimed by a walk back, then the rows of the property."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnn_vnnlib.bounds import interval, linear
from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import Ranges, Walk
from bnn_vnnlib.bounds.rounding import UNIT
from bnn_vnnlib.bounds.tails.noise import Noise
from bnn_vnnlib.bounds.tails.tail import Tail
from bnn_vnnlib.bounds.tails.variation import Variation
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model.network import Network
from bnn_vnnlib.model.nodes import (
    Activation,
    Broadcast,
    Constant,
    Conv,
    Input,
    Linear,
    Max,
    Node,
    Product,
    Scale,
    Select,
    Shift,
)

MEMORY = 2**19
"""Number of float64 in the largest tensor of one chunk, at most about."""

SIDES = 3
"""Events of an element whose range is claimed: below, above, and the variation over the box."""


@dataclass(frozen=True, eq=False)
class Deviations:
    """z of the events of one claimed node; `sides`, `centred` broadcast to (K, M, 2 size), `near` to (K, M, size).

    With p the probability of an event: Phi(-sides) <= p, 2 Phi(-centred) <= p, Phi(-near) <= p.
    """

    sides: Tensor
    centred: Tensor
    near: Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """What is free to choose: any choice is sound.

    deviations : of each claimed node; slopes : of some activations, the choice of their lines (2, K, M, *shape)
    """

    deviations: Mapping[int, Deviations]
    slopes: Mapping[int, Tensor] = field(default_factory=dict)


def claimed(network: Network) -> list[int]:
    """Nodes whose ranges have to be claimed: the first ones behind a parameter on every way to an activation, to a
    weighted map or to a place where branches meet.

    Every parameter counts as random here, which costs a few events and keeps the plan independent of the posterior.
    """
    found: list[int] = []
    known = []
    for node in network.nodes:
        match node:
            case Input() | Constant():
                known.append(True)
                continue
            case Activation() | Linear() | Conv() | Scale() | Broadcast() | Select() | Product() | Max():
                for source in node.inputs:
                    if not known[source]:
                        found.append(source)
                        known[source] = True
            case _:
                pass
        open_ = isinstance(node, Linear | Conv | Scale | Shift)
        known.append(not open_ and all(known[source] for source in node.inputs))
    uses = [*network.outputs, *(source for node in network.nodes for source in node.inputs)]
    found += [p for p in range(len(network.nodes)) if not known[p] and uses.count(p) > 1]
    return sorted(found)


def sources_enter_once(network: Network, deviations: WeightBoxes) -> bool:
    """No random source is read by two nodes."""
    params = [getattr(node, name) for node in network.nodes for name in ("weight", "bias") if hasattr(node, name)]
    names = [param.source for param in params if param.source in deviations.spreads]
    return len(set(names)) == len(names)


@dataclass(eq=False)
class Run:
    """Some items under K budgets."""

    network: Network
    means: WeightBoxes
    deviations: WeightBoxes
    box: Interval
    plan: Plan
    ranges: Ranges = field(default_factory=Ranges)

    def __post_init__(self) -> None:
        """Variation is None where bounds 2 and 3 do not apply."""
        once = sources_enter_once(self.network, self.deviations)
        self.variation = Variation(self.means, self.deviations) if once else None
        for position, node in enumerate(self.network.nodes):
            self._enclose(position, node)
            if self.variation is not None:
                self.variation.enclose(position, node, self.ranges.values)
            if position in self.plan.deviations:
                self._claim(position, self.plan.deviations[position])

    def tail(self, outputs: Tensor, inputs: Tensor | None) -> Tail:
        """The tails of the rows C y + G x."""
        k, items = self.box.lower.shape[:2]
        return self.walk(linear.seeds_of(self.network, outputs.expand(k, items, -1, -1)), inputs, detailed=True)

    def walk(self, seeds: list[tuple[int, Tensor]], inputs: Tensor | None = None, *, detailed: bool = False) -> Tail:
        """The tails of rows over nodes."""
        zero = seeds[0][1].new_zeros(seeds[0][1].shape[:3])
        walk = Walk(self.network, self.means, self.ranges, {}, zero, zero)
        for position, a in seeds:
            walk.give(position, a)
        return self._finish(walk, Noise(self.deviations, self.variation, zero, detailed), max(walk.pending), inputs)

    def _enclose(self, position: int, node: Node) -> None:
        """The range of a node on G where it follows from earlier ones, and its magnitude."""
        values = self.ranges.values
        if isinstance(node, Input):
            values[position] = interval.inputs(node, self.box)
            return
        if isinstance(node, Shift):
            box = self.means.param(node.bias)
            center = interval.center_of(box, len(node.shape))
            radius = interval.radius_of(box, self.means.scale, len(node.shape))
            self.ranges.magnitudes[position] = (center.abs() + radius) * (1 + 2 * UNIT)
            return
        if any(source not in values for source in node.inputs):
            return
        arguments = [values[source] for source in node.inputs]
        if isinstance(node, Activation):
            lower, upper = arguments[0].lower, arguments[0].upper
            lines = ACTIVATIONS[node.kind].lines(node.alpha, lower, upper, self.plan.slopes.get(position))
            self.ranges.lines[position] = lines
        result, magnitude = interval.RULES[type(node)](node, self.means, *arguments)
        self.ranges.magnitudes[position] = magnitude
        if not isinstance(node, Linear | Conv | Scale):
            values[position] = result

    def _claim(self, position: int, deviations: Deviations) -> None:
        """The range of a node and its variation, every event failing with its own probability at most."""
        shape = self.network.nodes[position].shape
        size = math.prod(shape)
        sides, start = [], 0
        for tail in self.units(position, size):
            stop = start + tail.mean.shape[2] // 2
            z = (_part(side, start, stop, size) for side in (deviations.sides, deviations.centred))
            sides.append(tail.quantile(*z).unflatten(2, (2, -1)))
            start = stop
        lower, negated = torch.cat(sides, -1).unbind(2)
        claim = Interval(lower.reshape(*lower.shape[:2], *shape), -negated.reshape(*negated.shape[:2], *shape))
        self.ranges.values[position] = claim
        if self.variation is not None:
            near = deviations.near
            near = near.reshape(*near.shape[:2], *(shape if near.shape[2] > 1 else (1,) * len(shape)))
            self.variation.claim(position, near, claim)

    def units(self, position: int, size: int) -> Iterator[Tail]:
        """The tails of the rows e_i, then -e_i, part by part."""
        k, items = self.box.lower.shape[:2]
        zero = self.box.lower.new_zeros(k, items, 2 * size)
        walk = Walk(self.network, self.means, self.ranges, {}, zero, zero)
        if linear.start_at_units(walk, position):
            noise = Noise(self.deviations, self.variation, zero)
            self._unit_noise(noise, position)
            yield self._finish(walk, noise, position)
            return
        shape = self.network.nodes[position].shape
        widest = max(math.prod(node.shape) for node in self.network.nodes[: position + 1])
        step = max(1, MEMORY // (k * items * widest))
        for start in range(0, size, step):
            count = min(step, size - start)
            unit = zero.new_zeros(count, size)
            unit[torch.arange(count), torch.arange(start, start + count)] = 1.0
            rows = torch.cat([unit, -unit]).reshape(1, 1, -1, *shape).expand(k, items, -1, *shape)
            yield self.walk([(position, rows)])

    def _unit_noise(self, noise: Noise, position: int) -> None:
        nodes = self.network.nodes
        node = nodes[position]
        weighted = nodes[node.inputs[0]] if isinstance(node, Shift) else node
        if not isinstance(weighted, Linear):
            raise TypeError("a dense layer ends in a Linear")
        noise.units(node, weighted, self.ranges.values[weighted.inputs[0]])

    def _finish(self, walk: Walk, noise: Noise, last: int, inputs: Tensor | None = None) -> Tail:
        form = linear.finish(walk, last, self.box.lower.shape[-1], noise.rules())
        if inputs is not None:
            form = form.plus(inputs, self.box)
        return noise.tail(form.minimum(self.box))


def _part(deviation: Tensor, start: int, stop: int, size: int) -> Tensor:
    """The deviations of the rows e_i, then -e_i, start <= i < stop."""
    if deviation.shape[2] == 1:
        return deviation
    return torch.cat([deviation[:, :, start:stop], deviation[:, :, size + start : size + stop]], 2)
