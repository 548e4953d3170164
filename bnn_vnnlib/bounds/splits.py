"""Linear bounds under splits of neurons, with slopes and multipliers optimised by gradient.

On the part of the input box where sign_j z_j >= 0 for the split neurons j, any multipliers beta >= 0 give
    row(x) >= row(x) - sum_j beta_j sign_j z_j,
whose linear bound is walked back as usual: at the activation of a split neuron beta_j sign_j is taken off the
coefficient of z_j, and the lines there are exact because the sign is known. Slopes (alpha) of the open neurons and
multipliers (beta) are free; every choice is a proof, and the best one met during the ascent is kept.

Guarantee: sound, rounding included (the walk is that of `linear`). Only the ranges of the root are used, met with the
signs.
Reference: Xu et al., Fast and Complete, ICLR 2021 (slopes); Wang et al., Beta-CROWN, NeurIPS 2021 (multipliers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnn_vnnlib.bounds import linear
from bnn_vnnlib.bounds.activations import ACTIVATIONS, Lines
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import LinearForm, Ranges, Walk, dot
from bnn_vnnlib.bounds.rounding import UNIT
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model.network import Network
from bnn_vnnlib.model.nodes import Activation

RATE, DECAY = 0.3, 0.95
"""First step of the ascent for the slopes, and what is left of it after each step."""


@dataclass(frozen=True)
class Kinks:
    """The neurons that can be split: those of Relu and LeakyRelu, in one vector of H.

    places : (position of the activation, its first index in the vector, its size)
    """

    places: tuple[tuple[int, int, int], ...]

    @property
    def count(self) -> int:
        """H."""
        return sum(size for _, _, size in self.places)


def kinks_of(network: Network) -> Kinks:
    """Every Relu and LeakyRelu of the graph."""
    places, start = [], 0
    for position, node in enumerate(network.nodes):
        if isinstance(node, Activation) and node.kind in ("relu", "leaky_relu"):
            size = math.prod(node.shape)
            places.append((position, start, size))
            start += size
    return Kinks(tuple(places))


@dataclass(frozen=True, eq=False)
class Choice:
    """For K x M parts: signs (K, M, H) in {-1, 0, 1}, alpha (K, M, H) in [0, 1], beta (K, M, H) >= 0."""

    signs: Tensor
    alpha: Tensor
    beta: Tensor


@dataclass(frozen=True, eq=False)
class SplitBounds:
    """lower (K, M, R); choice: the one behind the best of them; corner (K, M, n): the input that minimises the row
    nearest to its bound; gain (K, M, H): what the relaxation of each open neuron costs, about.
    """

    lower: Tensor
    choice: Choice
    corner: Tensor
    gain: Tensor


@dataclass(frozen=True, eq=False)
class SplitEngine:
    """Bounds the rows of K settings x M parts.

    Parameters
    ----------
    network, kinks : the graph
    weights : K weight settings
    ranges : of the roots, gathered for each part: values, magnitudes (K, M, *shape), lines of the other activations
    box : of the inputs, (K, M, n)
    seeds : see `linear.seeds_of`: the rows (K, M, R, *shape) over the outputs
    inputs : (K, M, R, n) or None
    bound : (K, M, R): the ascent is on `lower - bound`
    """

    network: Network
    kinks: Kinks
    weights: WeightBoxes
    ranges: Ranges
    box: Interval
    seeds: Sequence[tuple[int, Tensor]]
    inputs: Tensor | None
    bound: Tensor

    def ascend(self, choice: Choice, steps: int) -> SplitBounds:
        """The best bounds met in so many steps (0: those of the given choice)."""
        alpha, beta = (value.clone().requires_grad_(steps > 0) for value in (choice.alpha, choice.beta))
        ascent = [_Adam(torch.zeros_like(alpha), torch.zeros_like(alpha)) for _ in range(2)]
        best = None
        for step in range(steps + 1):
            with torch.set_grad_enabled(step < steps):
                found = self._bound(Choice(choice.signs, alpha, beta))
                goal = (found.lower - self.bound).amax(-1).clamp(-1e30, 1e30).sum()
            found = replace(found, lower=found.lower.detach())
            best = found if best is None else _better(best, found, self.bound)
            if step == steps or bool(((best.lower - self.bound).amax(-1) > 0).all()):
                return best
            gradients = torch.autograd.grad(goal, (alpha, beta))
            with torch.no_grad():
                for value, gradient, one in zip((alpha, beta), gradients, ascent, strict=True):
                    value.add_(RATE * DECAY**step * one.direction(gradient.nan_to_num(0.0, 0.0, 0.0), step))
                alpha.clamp_(0, 1)
                beta.clamp_(min=0)
        raise ValueError("the number of steps must not be negative")

    def _bound(self, choice: Choice) -> SplitBounds:
        split = _Split(self, choice)
        last = max(position for position, _ in self.seeds)
        zero = self.bound.new_zeros(self.bound.shape)
        walk = Walk(self.network, self.weights, self.ranges, {}, zero, zero)
        for position, a in self.seeds:
            walk.give(position, a)
        rules = {**linear.LINEAR, Activation: split.activation}
        form = linear.finish(walk, last, self.box.lower.shape[-1], rules)
        if self.inputs is not None:
            form = form.plus(self.inputs, self.box)
        lower = form.minimum(self.box)
        detached = Choice(choice.signs, choice.alpha.detach().clone(), choice.beta.detach().clone())
        return SplitBounds(lower, detached, self._corner(form, lower), split.gain)

    def _corner(self, form: LinearForm, lower: Tensor) -> Tensor:
        row = (lower - self.bound).detach().argmax(-1)[..., None, None]
        slope = form.slope.detach().gather(2, row.expand(-1, -1, 1, form.slope.shape[-1]))[:, :, 0]
        return torch.where(slope >= 0, self.box.lower, self.box.upper)


class _Split:
    """The rule of the activations for one choice; notes on the way what each relaxation costs."""

    def __init__(self, engine: SplitEngine, choice: Choice) -> None:
        self._engine, self._choice = engine, choice
        self._place = {position: (start, size) for position, start, size in engine.kinks.places}
        self.gain = torch.zeros_like(choice.alpha)

    def activation(self, walk: Walk, node: Activation, position: int, a: Tensor) -> None:
        """The lines that the signs allow, and the multipliers."""
        if position not in self._place:
            linear.LINEAR[Activation](walk, node, position, a)
            return
        start, size = self._place[position]
        (source,) = node.inputs
        lead = a.shape[:2]
        signs, alpha, beta = (
            part[..., start : start + size].reshape(*lead, *node.shape)
            for part in (self._choice.signs, self._choice.alpha, self._choice.beta)
        )
        z = walk.ranges.values[source]
        lower = torch.where(signs > 0, z.lower.clamp(min=0), z.lower)
        upper = torch.where(signs < 0, z.upper.clamp(max=0), z.upper)
        lower, upper = torch.minimum(lower, upper), torch.maximum(lower, upper)  # an empty part: any lines will do
        lines = ACTIVATIONS[node.kind].lines(node.alpha, lower, upper, torch.stack([alpha, alpha]))
        self._note(a, lines, lower, upper, start, size)
        walk.ranges.lines[position] = lines
        linear.LINEAR[Activation](walk, node, position, a)
        multiplier = (beta * signs)[:, :, None]
        carried = walk.pending[source] - multiplier
        walk.error = walk.error + UNIT * dot(carried.detach().abs(), z.magnitude)
        walk.pending[source] = carried

    def _note(self, a: Tensor, lines: Lines, lower: Tensor, upper: Tensor, start: int, size: int) -> None:
        """What each open neuron costs: the distance of both lines at z = 0, weighted by the coefficients."""
        open_ = (lower < 0) & (upper > 0)
        with torch.no_grad():
            a = a.detach()
            above = a.clamp(max=0).abs().amax(2) * lines.upper_intercept
            below = a.clamp(min=0).amax(2) * torch.minimum(upper, -lower) / 2
            cost = torch.where(open_, above + below, 0.0)
        self.gain[..., start : start + size] += cost.flatten(2)


def _better(best: SplitBounds, found: SplitBounds, bound: Tensor) -> SplitBounds:
    """Part by part the one whose best row is further above its bound; the lower bounds row by row."""
    ahead = (found.lower.detach() - bound).amax(-1) > (best.lower.detach() - bound).amax(-1)

    def pick(theirs: Tensor, ours: Tensor) -> Tensor:
        return torch.where(ahead[..., None], theirs, ours)

    old, new = best.choice, found.choice
    return SplitBounds(
        torch.maximum(best.lower.detach(), found.lower.detach()),
        Choice(old.signs, pick(new.alpha, old.alpha), pick(new.beta, old.beta)),
        pick(found.corner, best.corner), pick(found.gain, best.gain),
    )  # fmt: skip


@dataclass(eq=False)
class _Adam:
    """Kingma and Ba, 2015; elementwise, so that no part depends on its neighbours."""

    mean: Tensor
    square: Tensor

    def direction(self, gradient: Tensor, step: int) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        spread = (self.square / (1 - 0.999 ** (step + 1))).sqrt()
        return self.mean / (1 - 0.9 ** (step + 1)) / (spread + 1e-12)
