"""Tail bounds in activation space: rows of a network with Gaussian weights, without boxes of weights.

Write W^k = mu^k + Delta^k, Delta^k Gaussian with independent entries of mean zero. Let G be the event that every
pre-activation, for every x of the item, stays in the range that was claimed for it; on G the activations' lines are
valid. Walking a row back with the *mean* weights, its coefficients A at a layer are plain numbers, and at each layer
the noise adds delta . h with delta_j = sum_i A_i Delta_ij and h in [hc - rho, hc + rho] on G. So on G, for all x,
    row(x) >= F := m0 + sum over layers and j of ( hc_j delta_j - rho_j |delta_j| ) + bias noise,
with m0 the deterministic linear bound of the mean network with those lines.

F is a concave function of the standardised noise, with
    E F = m0 - sqrt(2/pi) sum rho_j s_j,  s_j^2 = Var delta_j,
    Lip(F)^2 <= L^2 := sum over weights k of sigma_k^2 (|g_k| + r_k)^2 + bias variances,
g_k = sum over the uses of k of A_i hc_j, and r_k the same sum of |A_i| rho_j (for a dense layer L^2 becomes
sum_j s_j^2 (|hc_j| + rho_j)^2).

Lemma. P(F <= t) <= Phi(-(E F - t) / L) for t < E F (at t = E F it fails for a constant F).
Proof. -F is convex and L-Lipschitz. By the Gaussian isoperimetric inequality (Borell 1975; Sudakov, Tsirelson 1974)
P(-F >= med(-F) + u) <= Phi(-u / L) for u > 0, and the median of a convex function of a Gaussian vector is at most its
mean (Kwapien, A remark on the median and the expectation of convex functions of Gaussian vectors, 1994).

No independence between layers is used: a weight that enters at several places makes F no less concave, and its uses
add up in g_k and r_k (here bounded by the triangle inequality over nodes, and by the multiplicity within one).
Failure: P(row <= b for some x) <= P(not G) + P(F <= b); events are stated on the earlier ones, so the plain union
bound holds and nothing is ever conditioned on G.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from bnn_vnnlib.bounds import interval, linear, maps
from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import LINEAR, Ranges, Rules, Walk, dot, filled, over_rows, sum_to
from bnn_vnnlib.bounds.rounding import SPECIAL, TINY, UNIT, gamma
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model.network import Network
from bnn_vnnlib.model.nodes import Activation, Broadcast, Constant, Conv, Input, Linear, Node, Param, Scale, Shift

MEMORY = 2**19
"""Number of float64 in the largest tensor of one chunk, at most about."""

_FOLD = math.sqrt(2 / math.pi) * (1 + 4 * UNIT)


@dataclass(frozen=True, eq=False)
class Tail:
    """On G a row is at least F, concave in the noise, with E F >= mean and Lip(F) <= spread; both (K, M, R)."""

    mean: Tensor
    spread: Tensor

    def failure(self, threshold: Tensor) -> Tensor:
        """Upper bound on P(F <= threshold); an indicator where the spread is 0."""
        gap = self.mean - threshold
        gap = gap - 2 * UNIT * (self.mean.abs() + threshold.abs())
        x = (gap / self.spread) * (1 - 4 * UNIT)
        phi = torch.as_tensor(special.ndtr(-x.cpu().numpy()), device=x.device)
        # the relative error of ndtr grows with the square of its argument
        phi = phi * (1 + SPECIAL * (1 + x.clamp(max=40.0) ** 2)) + TINY
        sure = (self.spread == 0) & (gap > 0)
        phi = torch.where(sure, 0.0, torch.where(gap > 0, phi, 1.0))
        return phi.nan_to_num(1.0, 1.0, 1.0).clamp(0.0, 1.0)

    def quantile(self, deviations: Tensor) -> Tensor:
        """Threshold that F stays above except with probability Phi(-deviations); deviations >= 0, broadcastable."""
        drop = deviations * self.spread * (1 + 4 * UNIT)
        value = self.mean - drop
        return (value - 2 * UNIT * (self.mean.abs() + drop)).nan_to_num(-torch.inf, torch.inf, -torch.inf)


def deviations_of(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """z >= 0 with Phi(-z) <= probability (at most .5), rounded up."""
    return np.maximum(-special.ndtri(np.minimum(probability, 0.5)), 0.0) * (1 + 1e-10) + 1e-10


@dataclass(eq=False)
class _Noise:
    """What the noise of the weights adds up to during one walk.

    folded (K, M, R): sum of rho_j s_j; squares: source -> its part of L^2 (K, M, R)
    """

    deviations: WeightBoxes
    folded: Tensor
    squares: dict[str, Tensor] = field(default_factory=dict)

    def rules(self) -> Rules:
        """The linear method, with the noise of every parameter collected on the way."""
        return {**LINEAR, Linear: self.weighted, Conv: self.weighted, Scale: self.weighted, Shift: self.shift}

    @property
    def spread(self) -> Tensor:
        """L, rounded up; sources are independent of each other."""
        total = torch.zeros_like(self.folded)
        for square in self.squares.values():
            total = total + square
        return torch.sqrt(total * (1 + 2 * len(self.squares) * UNIT)) * (1 + 4 * UNIT)

    def charge(self, param: Param, folded: Tensor | None, square: Tensor, terms: int) -> None:
        """Add one use of a parameter; uses of a source at several nodes add up before they are squared."""
        times, up = param.copies, 1 + gamma(4 * terms + 16)
        square = square * times * up + TINY
        if folded is not None:
            self.folded = (self.folded + folded * math.sqrt(times) * up) * (1 + 2 * UNIT) + TINY
        if param.source in self.squares:
            square = (torch.sqrt(self.squares[param.source]) + torch.sqrt(square)) ** 2 * (1 + 16 * UNIT)
        self.squares[param.source] = square

    def weighted(self, walk: Walk, node: Linear | Conv | Scale, position: int, a: Tensor) -> None:
        """The mean goes on; delta . h is charged."""
        deviation = self.deviations.param(node.weight).spread
        if deviation is not None:
            (source,) = node.inputs
            center, radius = _center_radius(walk.ranges.values[source])
            shape = walk.network.nodes[source].shape
            squared = _squared(deviation)
            variance = over_rows(lambda flat: maps.adjoint(node, squared, flat, shape), _squared(a)) + TINY
            folded = dot(torch.sqrt(variance), radius)
            terms = math.prod(shape) + math.prod(node.shape) + maps.fan(node)
            self.charge(node.weight, folded, _square(node, deviation, a, variance, center, radius), terms)
        linear.weighted(walk, node, position, a)

    def shift(self, walk: Walk, node: Shift, position: int, a: Tensor) -> None:
        """A bias that is added at several places is one variable."""
        deviation = self.deviations.param(node.bias).spread
        if deviation is not None:
            aligned = deviation.reshape(1, 1, *(1,) * (len(node.shape) - deviation.ndim + 1), *deviation.shape[1:])
            terms = math.prod(node.shape)
            total = sum_to(a, aligned.shape[2:]).abs() + gamma(2 * terms) * sum_to(a.abs(), aligned.shape[2:])
            self.charge(node.bias, None, dot(_squared(total), _squared(aligned)), 2 * terms)
        linear.shift(walk, node, position, a)


def _squared(x: Tensor) -> Tensor:
    """x^2, moved up where it may have lost its digits to underflow; exactly 0 for 0."""
    return x**2 + TINY * (x != 0)


def _center_radius(z: Interval) -> tuple[Tensor, Tensor]:
    center = (z.lower + z.upper) / 2
    return center, torch.maximum(z.upper - center, center - z.lower) * (1 + 2 * UNIT)


def _square(
    node: Linear | Conv | Scale, deviation: Tensor, a: Tensor, variance: Tensor, center: Tensor, radius: Tensor
) -> Tensor:
    """sum_k sigma_k^2 (|g_k| + r_k)^2 -> (K, M, R)."""
    reach = center.abs() + radius
    if isinstance(node, Linear) and math.prod(node.shape) == node.shape[node.axis]:
        return dot(variance, _squared(reach))  # every weight is used once
    if isinstance(node, Scale):
        aligned = deviation.reshape(1, 1, *(1,) * (len(node.shape) - deviation.ndim + 1), *deviation.shape[1:])

        def uses(a: Tensor, h: Tensor) -> Tensor:
            return sum_to(a * h[:, :, None], aligned.shape[2:]).reshape(*a.shape[:3], -1)

        flat = aligned.reshape(1, 1, 1, -1)
    else:
        flat = deviation.reshape(1, 1, 1, -1)

        def uses(a: Tensor, h: Tensor) -> Tensor:
            return _uses(node, a, h)

    # the signed sums were rounded: pay for it with the sums of absolute values
    slack = gamma(2 * math.prod(node.shape)) * uses(a.abs(), reach)
    total = uses(a, center).abs() + uses(a.abs(), radius) + slack + TINY
    return (_squared(total) * _squared(flat)).sum(-1)


def _uses(node: Linear | Conv, a: Tensor, h: Tensor) -> Tensor:
    """For each weight the sum over its uses of A_i h_j: (K, M, R, weights)."""
    if isinstance(node, Linear):
        left = a.movedim(node.axis + 3, -1).flatten(3, -2)  # (K, M, R, P, out)
        right = h.movedim(node.axis + 2, -1).flatten(2, -2)[:, :, None]  # (K, M, 1, P, in)
        return (left.mT @ right).flatten(3)
    k, m = h.shape[:2]
    batch, outputs = node.shape[:2]
    top, left_, bottom, right_ = node.pads
    image = F.pad(h.reshape(k * m * batch, *h.shape[3:]), (left_, right_, top, bottom))
    kernel = node.weight.shape[2:]
    patches = F.unfold(image, kernel, dilation=node.dilations, stride=node.strides)  # (K M B, C kernel, places)
    per_group = node.weight.shape[1] * math.prod(kernel)
    patches = patches.reshape(k, m, batch, node.groups, per_group, -1)
    rows = a.reshape(*a.shape[:3], batch, node.groups, outputs // node.groups, -1)
    used = torch.einsum("kmrbgop,kmbgcp->kmrgoc", rows.expand(k, -1, -1, -1, -1, -1, -1), patches)
    return used.flatten(3)


@dataclass(frozen=True)
class TailEngine:
    """Bounds rows of one network under a diagonal Gaussian, for all x of each item's box.

    Parameters
    ----------
    network : the graph
    deadline : checked between chunks; `clock.OutOfTime` is raised when it has passed
    """

    network: Network
    deadline: Deadline = Deadline()

    def failures(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        inputs: Tensor | None, bound: Tensor, budgets: Tensor,
    ) -> Tensor:  # fmt: skip
        """Upper bounds (K, N, R) on P(F <= bound), for the rows C y + G x, apart from P(not G) <= budgets[k].

        Parameters
        ----------
        means, deviations : one box each, at the posterior mean without and with spreads
        box : lower, upper (N, n)
        outputs, inputs : C (N or 1, R, m), G (N or 1, R, n) or None, exact
        bound : (N or 1, R)
        budgets : (K,) probabilities that the ranges of an item may fail
        """
        self._refuse_random_branches(deviations)
        count = self._events()
        each = budgets.cpu().numpy() / max(count, 1) * (1 - 1e-12)
        deviation = torch.as_tensor(deviations_of(each), device=budgets.device)[:, None, None]
        lower, upper = box
        step = self._chunk(len(budgets), outputs.shape[1])
        parts = []
        for start in range(0, len(lower), step):
            self.deadline.check()
            some = slice(start, start + step)
            run = _Run(self.network, means, deviations, Interval(lower[None, some], upper[None, some]), deviation)
            tail = run.tail(linear.some(outputs, some), None if inputs is None else linear.some(inputs, some))
            parts.append(tail.failure(linear.some(bound, some)))
        return torch.cat(parts, 1)

    def _refuse_random_branches(self, deviations: WeightBoxes) -> None:
        for node in self.network.nodes:
            if isinstance(node, Constant) and node.value.source in deviations.spreads:
                raise UnsupportedError(
                    "tails do not serve a random tensor that is a branch of the graph", node=node.name
                )

    def _events(self) -> int:
        """One-sided events of one item: two for every element whose range is claimed."""
        nodes = self.network.nodes
        return sum(2 * math.prod(nodes[position].shape) for position in claimed(self.network))

    def _chunk(self, budgets: int, rows: int) -> int:
        sizes = [math.prod(node.shape) for node in self.network.nodes]
        need = max([rows * max(sizes), *(2 * sizes[p] * max(sizes[: max(1, p - 1)]) for p in claimed(self.network))])
        return max(1, MEMORY // (budgets * need))


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
            case Activation() | Linear() | Conv() | Scale() | Broadcast():
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


@dataclass(eq=False)
class _Run:
    """One chunk of items under K budgets."""

    network: Network
    means: WeightBoxes
    deviations: WeightBoxes
    box: Interval
    deviation: Tensor
    ranges: Ranges = field(default_factory=Ranges)

    def __post_init__(self) -> None:
        k, (items, _) = len(self.deviation), self.box.lower.shape[1:]
        self.box = Interval(self.box.lower.expand(k, items, -1), self.box.upper.expand(k, items, -1))
        plan = set(claimed(self.network))
        for position, node in enumerate(self.network.nodes):
            self._enclose(position, node)
            if position in plan:
                self.ranges.values[position] = self._claim(position)

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
            self.ranges.lines[position] = ACTIVATIONS[node.kind].lines(
                node.alpha, arguments[0].lower, arguments[0].upper
            )
        result, magnitude = interval.RULES[type(node)](node, self.means, *arguments)
        self.ranges.magnitudes[position] = magnitude
        if not isinstance(node, Linear | Conv | Scale):
            values[position] = result

    def _claim(self, position: int) -> Interval:
        """Range of a node, each side of each element failing with probability at most Phi(-deviation)."""
        shape = self.network.nodes[position].shape
        size = math.prod(shape)
        tails = list(self._units(position, size))
        sides = [tail.quantile(self.deviation).unflatten(2, (2, -1)) for tail in tails]
        lower, negated = torch.cat(sides, -1).unbind(2)
        return Interval(lower.reshape(*lower.shape[:2], *shape), -negated.reshape(*negated.shape[:2], *shape))

    def _units(self, position: int, size: int) -> Iterator[Tail]:
        k, items = self.box.lower.shape[:2]
        zero = self.box.lower.new_zeros(k, items, 2 * size)
        walk, noise = Walk(self.network, self.means, self.ranges, {}, zero, zero), _Noise(self.deviations, zero)
        if linear.start_at_units(walk, position):
            self._dense_noise(noise, position)
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
            yield self._walk([(position, rows)])

    def _dense_noise(self, noise: _Noise, position: int) -> None:
        """The noise of the rows I and -I over a dense layer: its own weights and biases, row by row."""
        node, nodes = self.network.nodes[position], self.network.nodes
        if isinstance(node, Shift):
            deviation = self.deviations.param(node.bias).spread
            if deviation is not None:
                aligned = deviation.reshape(1, 1, *(1,) * (len(node.shape) - deviation.ndim + 1), *deviation.shape[1:])
                flat = _squared(filled(aligned, node).flatten(2))
                noise.charge(node.bias, None, torch.cat([flat, flat], 2).expand_as(noise.folded), 1)
            node = nodes[node.inputs[0]]
        if not isinstance(node, Linear):
            raise TypeError("a dense layer ends in a Linear")
        deviation = self.deviations.param(node.weight).spread
        if deviation is not None:
            center, radius = _center_radius(self.ranges.values[node.inputs[0]])
            reach = (center.abs() + radius).flatten(2)
            folded, square = radius.flatten(2) @ deviation[0].mT, _squared(reach) @ _squared(deviation[0]).mT
            noise.charge(
                node.weight, torch.cat([folded, folded], 2), torch.cat([square, square], 2), deviation.shape[-1]
            )

    def _walk(self, seeds: list[tuple[int, Tensor]], inputs: Tensor | None = None) -> Tail:
        zero = seeds[0][1].new_zeros(seeds[0][1].shape[:3])
        walk, noise = Walk(self.network, self.means, self.ranges, {}, zero, zero), _Noise(self.deviations, zero)
        for position, a in seeds:
            walk.give(position, a)
        return self._finish(walk, noise, max(walk.pending), inputs)

    def _finish(self, walk: Walk, noise: _Noise, last: int, inputs: Tensor | None = None) -> Tail:
        form = linear.finish(walk, last, self.box.lower.shape[-1], noise.rules())
        if inputs is not None:
            form = form.plus(inputs, self.box)
        mean = form.minimum(self.box)
        fold = _FOLD * noise.folded
        return Tail(mean - fold - 2 * UNIT * (mean.abs() + fold), noise.spread)

    def tail(self, outputs: Tensor, inputs: Tensor | None) -> Tail:
        """The tails of the rows C y + G x."""
        k, items = self.box.lower.shape[:2]
        return self._walk(linear.seeds_of(self.network, outputs.expand(k, items, -1, -1)), inputs)
