"""One chunk of items: ranges forwards, each claimed by a walk back, then the rows of the property.

1. `TailPlan`: what is claimed of a network on the event G, and with which probability each claim may fail.
2. `TailRun`: the claims in their order, and the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnn_vnnlib.bounds import backward, block, interval
from bnn_vnnlib.bounds.activations import ACTIVATIONS, KINKED
from bnn_vnnlib.bounds.block import Block
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails.differences import RangeDifferences
from bnn_vnnlib.bounds.tails.noise import Noise
from bnn_vnnlib.bounds.tails.shared import Correlation
from bnn_vnnlib.bounds.tails.smoothing import InputLaw, Smooth, moments_of, smoothed
from bnn_vnnlib.bounds.tails.tail import Levels, Tail
from bnn_vnnlib.bounds.tails.variation import Variation
from bnn_vnnlib.bounds.walk import LinearForm, Ranges, Walk
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.errors import SoundnessError
from bnn_vnnlib.network.network import Network
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
from bnn_vnnlib.rounding import TINY, UNIT, gamma
from bnn_vnnlib.system.clock import Deadline, OutOfTime
from bnn_vnnlib.system.memory import at_once

# 1. Claims

EVENTS = 5
"""Events of an element whose range is claimed: below, above, variation over the box, and its mean given the earlier
stages below and above; without the centred bounds only the first two, which take no more than their share."""


@dataclass(frozen=True, eq=False)
class Deviations:
    """z of the events of one claimed node.

    sides, middle : `Levels`, broadcast to (K, M, 2 size); near : (K, M, size)
    """

    sides: Levels
    middle: Levels
    near: Tensor


@dataclass(frozen=True, eq=False)
class TailPlan:
    """What is free to choose: any choice is sound.

    deviations : of each claimed node; slopes, moves : of some activations, the choice of their lines and of those of
    bound 4 (2, K, M, *shape);
    thorough : with swings, bound 4 and the tighter variation, which takes two to three times as long
    """

    deviations: Mapping[int, Deviations]
    slopes: Mapping[int, Tensor] = field(default_factory=dict)
    moves: Mapping[int, Tensor] = field(default_factory=dict)
    thorough: bool = False


def claimed(network: Network) -> list[int]:
    """Nodes whose ranges are claimed: the first ones behind a parameter on every way to an activation, to a weighted
    map or to a place where branches meet. They have to be; sums and products of them that an activation, a product or a
    maximum reads need not be, but what their terms have in common may cancel, as the mean of a norm does.

    Every parameter counts as random here, which costs a few events and keeps the plan independent of the posterior.
    """
    found: list[int] = []
    known = []
    for node in network.nodes:
        match node:
            case Input() | Constant():
                known.append(True)
                continue
            case (
                Activation()
                | Gap()
                | Linear()
                | Conv()
                | Scale()
                | Broadcast()
                | Select()
                | Product()
                | Max()
                | Known()
            ):
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
    return sorted({*found, *(place for place in _loose(network) if known[place])})


def _loose(network: Network) -> Iterator[int]:
    """What an activation, a product or a maximum reads, moved or repeated at most, and intervals bound badly: sums of
    several terms that depend on the input, and products."""
    for node in network.nodes:
        for source in node.inputs if isinstance(node, Activation | Product | Max) else ():
            while isinstance(moved := network.nodes[source], Reshape | Transpose | Broadcast | Select):
                (source,) = moved.inputs
            several = sum(not isinstance(network.nodes[i], Constant) for i in moved.inputs) > 1
            if several and isinstance(moved, Sum | Product):
                yield source


def stages(network: Network) -> dict[int, int]:
    """Position of each map and bias -> position of the claim that its noise is behind; the number of nodes where only
    the rows are.

    The proofs in `tail` go in this order. What they need is checked: noise that is not claimed yet has one reader,
    which only adds or moves it.

    Raises
    ------
    SoundnessError : noise that gets past the claims
    """
    nodes, last, ends = network.nodes, len(network.nodes), set(claimed(network))
    readers: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for source in node.inputs:
            readers[source].append(position)
    for position in network.outputs:
        readers[position].append(last)
    found: dict[int, int] = {}
    for start, node in enumerate(nodes):
        place, used = start, isinstance(node, Linear | Conv | Scale | Shift) and bool(readers[start])
        while used and place not in ends and place != last:
            reader, *others = readers[place] or [last]
            if others or (reader != last and not isinstance(nodes[reader], Shift | Sum | Reshape | Transpose | Concat)):
                raise SoundnessError(f"noise gets past the claims at node {nodes[place].name}")
            place = reader
        if used:
            found[start] = place
    return found


def powers(network: Network) -> list[int]:
    """The k of all `Levels` that are asked for: one swing a dense layer at most, and half of p for all of them."""
    layers = sum(isinstance(node, Linear) for node in network.nodes)
    return [2**i for i in range(max(3, layers.bit_length() + 2))]


def _sources_enter_once(network: Network, deviations: WeightBoxes) -> bool:
    """Whether no random source is read by two nodes."""
    params = [getattr(node, name) for node in network.nodes for name in ("weight", "bias") if hasattr(node, name)]
    names = [param.source for param in params if param.source in deviations.spreads]
    return len(set(names)) == len(names)


def _own_noise_is_independent(network: Network, position: int) -> bool:
    """The node is a dense layer of its own weights: no two elements share one. (Else they may.)"""
    node = network.nodes[position]
    if isinstance(node, Shift):
        if node.bias.copies > 1 or math.prod(node.bias.shape) < math.prod(node.shape):
            return False
        node = network.nodes[node.inputs[0]]
    return isinstance(node, Linear) and math.prod(node.shape) == node.shape[node.axis] and node.weight.copies == 1


# 2. The run


@dataclass(eq=False)
class TailRun:
    """Some items under K budgets; units that the deadline does not suffice for keep the ranges of shortcuts."""

    network: Network
    means: WeightBoxes
    deviations: WeightBoxes
    box: Interval
    plan: TailPlan
    correlation: Correlation | None = None
    deadline: Deadline = Deadline()
    ranges: Ranges = field(default_factory=Ranges)

    def __post_init__(self) -> None:
        """`variation` is None where only bound 1 applies; `smooth` holds the lines of bound 4."""
        once = _sources_enter_once(self.network, self.deviations)
        once = once and not any(isinstance(node, Gap | Known) for node in self.network.nodes)
        self.variation = Variation(self.means, self.deviations, self.correlation) if once else None
        self.smooth: dict[int, Smooth] = {}
        self._middles: dict[int, Interval] = {}
        self._laws: dict[int, InputLaw] = {}
        self._mean_layers: dict[int, Interval] = {}
        self._largest = 1
        for position, node in enumerate(self.network.nodes):
            self._enclose(position, node)
            if self.variation is not None:
                self.variation.enclose(position, node, self.ranges.values)
                if position in self._laws:
                    self._moments(position, node, self.variation)
            if position in self.plan.deviations:
                self._claim(position, self.plan.deviations[position])

    def tail(self, outputs: Tensor, inputs: Tensor | None) -> Tail:
        """The tails of the rows C y + G x.

        When time is up, many large ones go without bound 3, which takes longest, and have `LAST_ROWS` seconds more
        before OutOfTime is raised.
        """
        outputs = outputs if outputs.dim() == 4 else outputs[None]
        if self.correlation is not None:  # groups count on rows of every item
            outputs = outputs.expand(*self.box.lower.shape[:2], -1, -1)
        seeds = [(position, Block(rows)) for position, rows in backward.seeds_of(self.network, outputs)]
        large = at_once(16 * self.box.lower.shape[:2].numel() * outputs.shape[2] * self._largest) == 1
        until = self.deadline.later(backward.LAST_ROWS) if large else Deadline()
        detailed = not (large and self.deadline.passed)
        found = self._walk(seeds, False, until, detailed=detailed, inputs=inputs)[0]
        return found.better(self._walk(seeds, True, until, inputs=inputs)[0]) if self.smooth else found

    def _walk(
        self, seeds: list[tuple[int, Block]], smooth: bool, until: Deadline = Deadline(), *,
        own: frozenset[int] = frozenset(), inputs: Tensor | None = None, detailed: bool = False,
    ) -> tuple[Tail, Tail]:  # fmt: skip
        """The tails of rows over nodes, and of their middles; raises OutOfTime."""
        zero = self.box.lower.new_zeros(*self.box.lower.shape[:2], seeds[0][1].values.shape[2])
        walk, noise = self._start(zero, smooth, own, until, detailed)
        for position, a in seeds:
            walk.give(position, a)
        return self._finish(walk, noise, max(walk.pending), inputs)

    def _start(
        self, zero: Tensor, smooth: bool, own: frozenset[int], until: Deadline = Deadline(), detailed: bool = False
    ) -> tuple[Walk, Noise]:
        ranges, far = self.ranges, None
        if smooth:
            lines = {position: found.lines for position, found in self.smooth.items()}
            ranges = Ranges(ranges.values, ranges.magnitudes, {**ranges.lines, **lines})
            far = {position: (found.below, found.above) for position, found in self.smooth.items()}
        walk = Walk(self.network, self.means, ranges, {}, zero, zero[..., :1], deadline=until)
        return walk, Noise(self.deviations, self.variation, zero, detailed, own, far, self.correlation)

    def _finish(self, walk: Walk, noise: Noise, last: int, inputs: Tensor | None = None) -> tuple[Tail, Tail]:
        """Two tails of each row: over the box and, where known, that of its mean given the earlier stages, at the
        centre.
        """
        found = backward.descend(walk, last, noise.rules())
        self._largest = max(walk.largest, noise.largest)
        if inputs is None and not noise.own:
            tail = noise.tail(found.minimum(self.box))
            return tail, tail
        form = found.form(self.box.lower.shape[-1])
        if inputs is not None:
            form = form.plus(inputs, self.box)
        tail = noise.tail(form.minimum(self.box))
        if not noise.own:
            return tail, tail
        return tail, noise.middle(at(form, (self.box.lower + self.box.upper) / 2))

    def _enclose(self, position: int, node: Node) -> None:
        """The range of a node on G where it follows from earlier ones, and its magnitude."""
        values = self.ranges.values
        if isinstance(node, Input):
            values[position] = interval.inputs(node, self.box)
            return
        if isinstance(node, Shift):
            self.ranges.magnitudes[position] = self.means.addend(node.bias, len(node.shape)).magnitude
            return
        if any(source not in values for source in node.inputs):
            return
        arguments = [values[source] for source in node.inputs]
        if isinstance(node, Activation):
            lower, upper = arguments[0].lower, arguments[0].upper
            lines = ACTIVATIONS[node.kind].lines(node.alpha, lower, upper, self.plan.slopes.get(position))
            self.ranges.lines[position] = lines
            self._smoothen(position, node)
        result, magnitude = interval.RULES[type(node)](node, self.means, *arguments)
        self.ranges.magnitudes[position] = magnitude
        if isinstance(node, Linear | Conv | Scale):
            self._mean_layers[position] = result
        else:
            values[position] = result

    def _claim(self, position: int, deviations: Deviations) -> None:
        """The range of a node and what else is claimed of it, every event with its own probability of failing."""
        shape = self.network.nodes[position].shape
        size = math.prod(shape)
        sides, middles = self._levels(position, size, deviations)
        claim = _interval(sides, shape)
        known = position in self.ranges.values
        if known:
            claim = claim.meet(self.ranges.values[position])
        self.ranges.values[position] = claim
        if self.variation is not None:
            near = deviations.near
            other = torch.full_like(claim.lower, torch.inf)
            if self.plan.thorough and (known or self.ranges.lines):  # else there is nothing to gain: one map at most
                with suppress(OutOfTime):
                    other = -self._differences(position, size, near, self.variation).reshape(other.shape)
            near = near.reshape(*near.shape[:2], *(shape if near.shape[2] > 1 else (1,) * len(shape)))
            self.variation.claim(position, near, other, claim)
            self._middles[position] = _interval(middles, shape)

    def _smoothen(self, position: int, node: Activation) -> None:
        """The lines of bound 4 for an activation behind a claimed node that has noise of its own."""
        (source,) = node.inputs
        if self.variation is not None and self.plan.thorough and source in self.variation.variances:
            law = InputLaw(
                self.ranges.values[source], self._middles[source], *self.variation.variances[source],
                self.variation.known[source],
            )  # fmt: skip
            found = smoothed(node, law, self.ranges.lines[position], self.plan.moves.get(position))
            if found is not None:
                self.smooth[position] = found
            self._laws[position] = law

    def _moments(self, position: int, node: Node, variation: Variation) -> None:
        if isinstance(node, Activation):
            independent = _own_noise_is_independent(self.network, node.inputs[0])
            found = moments_of(node, self._laws[position], variation.known[position], independent)
            if found is not None:
                variation.moments[position] = found

    def _levels(self, position: int, size: int, deviations: Deviations) -> tuple[Tensor, Tensor]:
        """Lower bounds (K, M, 2, size) of the units of a node and of the negated ones on G; the same of their middles.

        What has no shortcut, or a loose one, is walked back unit by unit, as far as it matters and time suffices. Of
        several bounds of a unit the best one counts. Which one that is does not depend on the weights, so that it
        fails no more often than any of them does.
        """
        asked = deviations.sides, deviations.middle
        short, tight = self.shortcut(position)
        if short is None:
            found = [self.box.lower.new_full((*self.box.lower.shape[:2], 2, size), -torch.inf) for _ in asked]
        else:
            found = [tail.quantile(z).unflatten(2, (2, -1)) for tail, z in zip(short, asked, strict=True)]
        if tight:
            return found[0], found[1]
        found = [level.expand(*self.box.lower.shape[:2], 2, size).clone() for level in found]
        for sides in backward.sides(self.network, position) if short and not self.plan.thorough else ((0, 1),):
            open_ = self._open(position, found[0]) if short else torch.ones_like(found[0][:, :, :1], dtype=torch.bool)
            units = open_.reshape(-1, size).any(0).nonzero()[:, 0]
            rows = torch.tensor(sides, device=units.device)[:, None]
            for index, pair in self._walked(position, units, sides, bool(short)):
                mine = open_[..., index]  # what matters to a neighbour only would make bounds depend on the batch
                for level, tail, z in zip(found, pair, asked, strict=True):
                    own = {k: _part(deviation, rows * size + index) for k, deviation in z.items()}
                    walked = tail.quantile(own).unflatten(2, (len(sides), -1)).where(mine, -torch.inf)
                    level[:, :, rows, index] = torch.maximum(level[:, :, rows, index], walked)
        return found[0], found[1]

    def _open(self, position: int, levels: Tensor) -> Tensor:
        """(K, M, 1, size): units of which better bounds matter. A thorough pass takes all, else it depends on who
        reads the node. Kinked activations: units whose sign is open, and rivals behind a maximum. Scales: all, since
        their noise is as large as what they read, but none if the scale is certain or the network so large that every
        unit would walk alone. Any other node: all."""
        nodes, open_ = self.network.nodes, (levels < 0).all(2, keepdim=True)
        readers = {place: node for place, node in enumerate(nodes) if position in node.inputs}
        kinked = {p: n for p, n in readers.items() if isinstance(n, Activation) and n.kind in KINKED}
        scales = [node for node in readers.values() if isinstance(node, Scale)]
        noisy = any(self.deviations.param(node.weight).spread is not None for node in scales)
        others = len(kinked) + len(scales) < len(readers) or position in self.network.outputs
        if self.plan.thorough or others or (noisy and not backward.lengthy(self.network, position)):
            return torch.ones_like(open_)
        if not kinked:
            return torch.zeros_like(open_)
        claim = _interval(levels, nodes[position].shape)
        for place, node in kinked.items():
            rival = backward.rivals(self.network, self.means, place, interval.activation(node, self.means, claim)[0])
            if rival is not None:
                open_ = open_ | (rival & (claim.upper > 0)).reshape(open_.shape)
        return open_

    def _walked(
        self, position: int, units: Tensor, sides: Sequence[int], known: bool
    ) -> Iterator[tuple[Tensor, tuple[Tail, Tail]]]:
        """The tails of the rows e_i (side 0), -e_i (side 1), and of their middles, for some units i at a time.

        known : there are bounds already, so that units that time does not suffice for may be left out
        """
        k, items = self.box.lower.shape[:2]
        styles = (False, True) if any(place < position for place in self.smooth) else (False,)
        own, shape = self._own(position), self.network.nodes[position].shape
        start, step = 0, 1
        while start < len(units):
            index = units[start : start + step]
            rows = block.units(index, shape, (k, items), self.box.lower, sides)
            try:
                walked = [self._walk([(position, rows)], smooth, self.deadline, own=own) for smooth in styles]
            except OutOfTime:
                if known:
                    return
                raise
            yield index, _merged(walked)
            start, step = start + step, at_once(16 * len(sides) * k * items * self._largest)

    def _own(self, position: int) -> frozenset[int]:
        if self.variation is None or not self.plan.thorough:
            return frozenset()
        return self.variation.own(self.network, position)

    def shortcut(self, position: int) -> tuple[tuple[Tail, Tail] | None, bool]:
        """The tails of the rows e_i, then -e_i, of all units and of their middles, if no row has to be walked for each.

        Second, whether walks would give the same. Dense layers are walked together. Of any other node the rows stop at
        the nodes behind it that are known: on G these are in their ranges, which is all that the proofs in `tail` ask
        of the input of a map. An element uses every weight of a map once, so that its noise is that of a dense layer,
        and all sums are those of the map itself: nothing of the size of elements x inputs is stored. A dense layer that
        is large (`backward.lengthy`) is no exception.
        """
        size, own = math.prod(self.network.nodes[position].shape), self._own(position)
        zero = self.box.lower.new_zeros(*self.box.lower.shape[:2], 2 * size)
        styles = (False, True) if any(place < position for place in self.smooth) else (False,)
        dense = [self._dense(position, zero, smooth, own) for smooth in styles]
        if dense[0] is not None:
            return _merged([pair for pair in dense if pair is not None]), True
        if self.correlation is not None:
            return None, False
        _, noise = self._start(zero, False, own)
        tight = self._charge(position, noise, lambda z: z.reshape(*z.shape[:2], -1))
        return self._stopped(position, noise), tight

    def _stopped(self, position: int, noise: Noise) -> tuple[Tail, Tail]:
        """The tails of all units of a node, of which this is the noise, from its range with mean weights."""
        tail = noise.tail(_sides(self._mean_range(position)))
        return tail, noise.middle(_sides(self._mean_range(position, center=True))) if noise.own else tail

    def _charge(self, position: int, noise: Noise, move: Callable[[Tensor], Tensor]) -> bool:
        """Collect the noise between the known nodes and the units of one that is claimed, in the order of the claim.

        move : from elements (K, M, *shape) of the node at `position` to those of the claimed one (K, M, size). True:
        an interval of the mean is as tight as a walk
        """
        node = self.network.nodes[position]

        def behind(source: int, move: Callable[[Tensor], Tensor]) -> bool:
            return self._is_input(source) if source in self.ranges.values else self._charge(source, noise, move)

        match node:
            case Linear() | Conv() | Scale():
                noise.elements(node, position, self.ranges.values[node.inputs[0]], move)
                return self._is_input(node.inputs[0])
            case Shift():
                noise.element_biases(node, position, move)
                return behind(node.inputs[0], move)
            case Reshape():
                return behind(node.inputs[0], lambda z: move(interval.reshape(node, z)))
            case Transpose():
                return behind(node.inputs[0], lambda z: move(interval.transpose(node, z)))
            case Sum() | Concat():
                tight = [behind(source, self._branch(node, i, move)) for i, source in enumerate(node.inputs)]
                return isinstance(node, Concat) and all(tight)
            case Product():
                return False  # of nodes that are claimed: it has no noise of its own
            case _:
                raise TypeError(f"{node.name} has no noise that is not claimed")

    def _branch(self, node: Sum | Concat, index: int, move: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`move` of a node for one of its branches; the others of a concatenation add nothing."""
        if isinstance(node, Sum):
            return move
        shapes = [self.network.nodes[source].shape for source in node.inputs]

        def joined(z: Tensor) -> Tensor:
            parts = [z if i == index else z.new_zeros(*z.shape[:2], *shape) for i, shape in enumerate(shapes)]
            return move(interval.concat(node, *parts))

        return joined

    def _mean_range(self, position: int, *, center: bool = False) -> Interval:
        """The range of a node with mean weights behind the known nodes; at the centre of the box, if that is asked for
        and the input is what is known."""
        node, values = self.network.nodes[position], self.ranges.values
        if center and isinstance(node, Input):
            middle = (self.box.lower + self.box.upper) / 2
            return interval.inputs(node, Interval(middle, middle))
        if position in self._mean_layers and not center:
            return self._mean_layers[position]
        sources = (
            values[source]
            if source in values and not (center and self._is_input(source))
            else self._mean_range(source, center=center)
            for source in node.inputs
        )
        found: Interval = interval.RULES[type(node)](node, self.means, *sources)[0]
        return found

    def _differences(self, position: int, size: int, deviation: Tensor, variation: Variation) -> Tensor:
        """(K, M, size): minus a bound of the variation; raises OutOfTime."""
        known = self.network, self.means, self.deviations, self.box, self.ranges
        differences = RangeDifferences(*known, variation, self.deadline)
        found = differences.dense(position)
        if found is not None:
            return found.quantile({1: deviation})
        k, items = self.box.lower.shape[:2]
        shape = self.network.nodes[position].shape
        parts = []
        for index in torch.arange(size, device=deviation.device).split(at_once(32 * k * items * self._largest)):
            rows = block.units(index, shape, (k, items), deviation, (0,))
            z = deviation if deviation.shape[2] == 1 else deviation[:, :, index]
            parts.append(differences.bound(position, rows).quantile({1: z}))
        return torch.cat(parts, 2)

    def _dense(self, position: int, zero: Tensor, smooth: bool, own: frozenset[int]) -> tuple[Tail, Tail] | None:
        """All units of a dense layer without storing an identity; None for any other node, or if they are too many."""
        nodes = self.network.nodes
        node = nodes[position]
        weighted = nodes[node.inputs[0]] if isinstance(node, Shift) else node
        if not isinstance(weighted, Linear) or math.prod(weighted.shape) != weighted.shape[weighted.axis]:
            return None
        alone = self.correlation is None and backward.lengthy(self.network, position)
        if alone and not self._is_input(weighted.inputs[0]):
            return None
        walk, noise = self._start(zero, smooth, own)
        source = self.ranges.values[weighted.inputs[0]]
        place = position if weighted is node else node.inputs[0]
        noise.units(position, node, place, weighted, source)
        if self._is_input(weighted.inputs[0]):  # no walk, which would store outputs x inputs for every item
            return self._stopped(position, noise)
        if not backward.start_at_units(walk, position):
            raise TypeError("a dense layer starts a walk")
        return self._finish(walk, noise, position)

    def _is_input(self, position: int) -> bool:
        """The input, moved or shifted by known numbers at most."""
        node = self.network.nodes[position]
        match node:
            case Input():
                return True
            case Reshape() | Transpose():
                return self._is_input(node.inputs[0])
            case Shift():
                shared = self.correlation is not None and self.correlation.of(node.bias)
                known = self.deviations.param(node.bias).spread is None and not shared
                return known and self._is_input(node.inputs[0])
            case _:
                return False


def at(form: LinearForm, x: Tensor) -> Tensor:
    """Lower bound (K, M, R) of a linear form at points (K, M, n)."""
    value, size = form.slope @ x[..., None], form.slope.abs() @ x.abs()[..., None]
    level = value[..., 0] + form.offset
    error = gamma(2 * x.shape[-1]) * size[..., 0] + 4 * UNIT * (value[..., 0].abs() + form.offset.abs()) + TINY
    return (level - error).nan_to_num(-torch.inf, torch.inf, -torch.inf)


def _sides(z: Interval) -> Tensor:
    """Lower bounds (K, M, 2 size) of the elements, then of the negated ones."""
    return torch.cat([side.reshape(*side.shape[:2], -1) for side in (z.lower, -z.upper)], 2)


def _merged(pairs: list[tuple[Tail, Tail]]) -> tuple[Tail, Tail]:
    tail, middle = pairs[0]
    for other, another in pairs[1:]:
        tail, middle = tail.better(other), middle.better(another)
    return tail, middle


def _interval(sides: Tensor, shape: tuple[int, ...]) -> Interval:
    """An interval from lower bounds of z and of -z (K, M, 2, elements)."""
    lower, negated = sides.unbind(2)
    return Interval(lower.reshape(*lower.shape[:2], *shape), -negated.reshape(*negated.shape[:2], *shape))


def _part(deviation: Tensor, rows: Tensor) -> Tensor:
    """The deviations of some of the rows e_i, then -e_i, of all units i."""
    return deviation if deviation.shape[2] == 1 else deviation[:, :, rows.flatten()]
