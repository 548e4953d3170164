"""Linear bounds of systems of rows under splits of neurons: slopes, multipliers and mixture optimised by gradient.

A system asks for all its rows to hold: row_r(x) <= b_r. It has no solution where, for some weights m_r >= 0 (the
mixture), sum m_r (row_r(x) - b_r) > 0. On the part of the input box where sign_j z_j >= 0 for the split neurons j, any
multipliers beta_j >= 0 give
    sum m_r (row_r - b_r) >= sum m_r (row_r - b_r) - sum beta_j sign_j z_j,
whose linear bound is walked back as usual: at the activation of a split neuron beta_j sign_j is taken off the
coefficient of z_j, and the lines there are exact because the sign is known. Slopes (alpha) of the open neurons,
multipliers and mixture are free: every choice is a proof, and the best one met during the ascent is kept.

Guarantee: sound, rounding included (the walk is that of `linear`; the mixture is rounded and paid for). Only the ranges
of the root are used, met with the signs.
Reference: Xu et al., Fast and Complete, ICLR 2021 (slopes); Wang et al., Beta-CROWN, NeurIPS 2021 (multipliers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnn_vnnlib.bounds import backward, linear
from bnn_vnnlib.bounds.activations import ACTIVATIONS, Lines
from bnn_vnnlib.bounds.block import Block, dot
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import LinearForm, Ranges, Walk
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Activation
from bnn_vnnlib.rounding import TINY, UNIT, gamma

_RATE, _DECAY = 0.3, 0.95
"""First step of the ascent for the slopes, and what is left of it after each step."""


@dataclass(frozen=True)
class _Kinks:
    """The neurons that can be split: those of Relu and LeakyRelu, in one vector of H.

    places : (position of the activation, its first index in the vector, its size)
    """

    places: tuple[tuple[int, int, int], ...]

    @property
    def count(self) -> int:
        """H, the number of neurons that can be split."""
        return sum(size for _, _, size in self.places)


def kinks_of(network: Network) -> _Kinks:
    """Every Relu and LeakyRelu of the graph."""
    places, start = [], 0
    for position, node in enumerate(network.nodes):
        if isinstance(node, Activation) and node.kind in ("relu", "leaky_relu"):
            size = math.prod(node.shape)
            places.append((position, start, size))
            start += size
    return _Kinks(tuple(places))


@dataclass(frozen=True, eq=False)
class Choice:
    """The free parameters of K x M parts: signs of the split neurons (K, M, H) in {-1, 0, 1}, slopes alpha (K, M, H) in
    [0, 1], multipliers beta (K, M, H) >= 0, mixture of the rows (K, M, R) >= 0.
    """

    signs: Tensor
    alpha: Tensor
    beta: Tensor
    mixture: Tensor


@dataclass(frozen=True, eq=False)
class SplitBounds:
    """margin (K, M): lower bounds of the mixed rows less their bounds, > 0 where the system has no solution; choice:
    behind it; corner (K, M, n): the input that minimises the linear function; gain (K, M, H): what the relaxation of
    each open neuron costs, about; 0 where the sign is known.
    """

    margin: Tensor
    choice: Choice
    corner: Tensor
    gain: Tensor


@dataclass(frozen=True, eq=False)
class SplitEngine:
    """Bounds one system for each of K settings x M parts.

    Parameters
    ----------
    network, kinks : the graph
    weights : K weight settings
    ranges : of the roots, gathered for each part: values, magnitudes (K, M, *shape), lines of the other activations
    box : of the inputs, (K, M, n)
    outputs, inputs : rows (K, M, R, m) over the outputs and (K, M, R, n) over the inputs, or None
    bound : (K, M, R); inf for padding
    """

    network: Network
    kinks: _Kinks
    weights: WeightBoxes
    ranges: Ranges
    box: Interval
    outputs: Tensor
    inputs: Tensor | None
    bound: Tensor

    def ascend(self, choice: Choice, steps: int) -> SplitBounds:
        """The best bounds met in so many steps (0: those of the given choice)."""
        free = [part.clone().requires_grad_(steps > 0) for part in (choice.alpha, choice.beta, choice.mixture)]
        ascent = [_Adam(torch.zeros_like(part), torch.zeros_like(part)) for part in free]
        best = None
        for step in range(steps + 1):
            with torch.set_grad_enabled(step < steps):
                found = self._bound(Choice(choice.signs, *free))
                goal = (found.margin / free[2].sum(-1)).clamp(-1e30, 1e30).sum()
            found = replace(
                found,
                margin=found.margin.detach(),
                choice=Choice(choice.signs, *(part.detach().clone() for part in free)),
            )
            best = found if best is None else _better(best, found)
            if step == steps or bool((best.margin > 0).all()):
                return best
            gradients = torch.autograd.grad(goal, free)
            with torch.no_grad():
                for part, gradient, one in zip(free, gradients, ascent, strict=True):
                    part.add_(_RATE * _DECAY**step * one.direction(gradient.nan_to_num(0.0, 0.0, 0.0), step))
                self._restore(*free)
        raise ValueError("the number of steps must not be negative")

    def _restore(self, alpha: Tensor, beta: Tensor, mixture: Tensor) -> None:
        """Clamp the parameters back into the valid choices, in place."""
        alpha.clamp_(0, 1)
        beta.clamp_(min=0)
        mixture.clamp_(min=0)
        mixture[~torch.isfinite(self.bound)] = 0.0
        total = mixture.sum(-1, keepdim=True)
        even = torch.isfinite(self.bound).to(mixture.dtype)
        mixture.copy_(torch.where(total > 1e-6, mixture / total.clamp(min=1e-6), even))

    def _bound(self, choice: Choice) -> SplitBounds:
        split = _Split(self, choice)
        bound = self.bound.nan_to_num(posinf=0.0) * choice.mixture
        form = self.form(split, self._mixed(choice.mixture))
        lower = form.minimum(self.box)[..., 0]
        size = lower.abs() + bound.abs().sum(-1)
        margin = lower - bound.sum(-1) - gamma(4 * bound.shape[-1]) * size - TINY
        slope = form.slope.detach()[:, :, 0]
        return SplitBounds(margin, choice, torch.where(slope >= 0, self.box.lower, self.box.upper), split.gain)

    def _mixed(self, mixture: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The mixed row over the outputs (K, M, 1, m) and over the inputs, and the rounding (K, M, 1)."""
        y = torch.cat([self.ranges.values[place].magnitude.flatten(2) for place in self.network.outputs], -1)
        g = gamma(2 * mixture.shape[-1])

        def mix(rows: Tensor, magnitude: Tensor) -> tuple[Tensor, Tensor]:
            error = g * dot(mixture[:, :, None] @ rows.abs(), magnitude)
            return mixture[:, :, None] @ rows, error + TINY * magnitude.sum(-1)[..., None]

        outputs, error = mix(self.outputs, y)
        if self.inputs is None:
            return outputs, None, error
        inputs, more = mix(self.inputs, self.box.magnitude)
        return outputs, inputs, error + more

    def affine(self, choice: Choice) -> LinearForm:
        """Linear functions below the R rows, then below the inputs of the H neurons that can be split.

        Where all signs are known they are the affine functions themselves, apart from rounding.
        """
        count, rows = self.kinks.count, self.bound.shape[-1]
        lead = self.bound.shape[:2]
        still = Choice(choice.signs, choice.alpha, torch.zeros_like(choice.beta), choice.mixture)
        zero = self.bound.new_zeros(*lead, rows + count)
        walk = Walk(self.network, self.weights, self.ranges, {}, zero, zero[..., :1])
        for position, a in backward.seeds_of(self.network, torch.nn.functional.pad(self.outputs, (0, 0, 0, count))):
            walk.give(position, Block(a))
        unit = torch.eye(count, dtype=zero.dtype, device=zero.device)
        for position, start, size in self.kinks.places:
            (source,) = self.network.nodes[position].inputs
            part = torch.nn.functional.pad(unit[:, start : start + size], (0, 0, rows, 0))
            shape = self.network.nodes[source].shape
            whole = part.reshape(1, 1, rows + count, *shape).expand(*lead, *[-1] * (1 + len(shape)))
            walk.give(source, Block(whole))
        rules = {**linear.LINEAR, Activation: _Split(self, still).activation}
        form = backward.finish(walk, max(walk.pending), self.box.lower.shape[-1], rules)
        if self.inputs is None:
            return form
        return form.plus(torch.nn.functional.pad(self.inputs, (0, 0, 0, count)), self.box)

    def form(self, split: _Split, rows: tuple[Tensor, Tensor | None, Tensor]) -> LinearForm:
        """Linear functions below rows (outputs, inputs, error)."""
        outputs, inputs, error = rows
        walk = Walk(self.network, self.weights, self.ranges, {}, torch.zeros_like(error), error)
        for position, a in backward.seeds_of(self.network, outputs):
            walk.give(position, Block(a))
        rules = {**linear.LINEAR, Activation: split.activation}
        form = backward.finish(walk, max(walk.pending), self.box.lower.shape[-1], rules)
        return form if inputs is None else form.plus(inputs, self.box)


class _Split:
    """The rule of the activations for one choice; notes on the way what each relaxation costs."""

    def __init__(self, engine: SplitEngine, choice: Choice) -> None:
        self._engine, self._choice = engine, choice
        self._place = {position: (start, size) for position, start, size in engine.kinks.places}
        self.gain = torch.zeros_like(choice.alpha)

    def activation(self, walk: Walk, node: Activation, position: int, a: Block) -> None:
        """The lines that the signs allow, and the multipliers."""
        if position not in self._place:
            linear.LINEAR[Activation](walk, node, position, a)
            return
        start, size = self._place[position]
        (source,) = node.inputs
        lead = a.values.shape[:2]
        signs, alpha, beta = (
            part[..., start : start + size].reshape(*lead, *node.shape)
            for part in (self._choice.signs, self._choice.alpha, self._choice.beta)
        )
        z = walk.ranges.values[source]
        lower = torch.where(signs > 0, z.lower.clamp(min=0), z.lower)
        upper = torch.where(signs < 0, z.upper.clamp(max=0), z.upper)
        lower, upper = torch.minimum(lower, upper), torch.maximum(lower, upper)  # an empty part: any lines will do
        lines = ACTIVATIONS[node.kind].lines(node.alpha, lower, upper, torch.stack([alpha, alpha]))
        self._note(a.whole, lines, lower, upper, start, size)
        walk.ranges.lines[position] = lines
        linear.LINEAR[Activation](walk, node, position, a)
        multiplier = (beta * signs)[:, :, None]
        carried = Block(walk.pending[source].whole - multiplier)
        walk.error = walk.error + UNIT * Block(carried.values.detach().abs()).dot(z.magnitude)
        walk.pending[source] = carried

    def _note(self, a: Tensor, lines: Lines, lower: Tensor, upper: Tensor, start: int, size: int) -> None:
        """What each open neuron costs: the distance of both lines at z = 0, weighted by the coefficients."""
        open_ = (lower < 0) & (upper > 0)
        with torch.no_grad():
            a = a.detach()
            above = a.clamp(max=0).abs().amax(2) * lines.upper_intercept
            below = a.clamp(min=0).amax(2) * torch.minimum(upper, -lower) / 2
            cost = torch.where(open_, above + below + TINY, 0.0)
        self.gain[..., start : start + size] += cost.flatten(2)


def _better(best: SplitBounds, found: SplitBounds) -> SplitBounds:
    """The bounds with the larger margin, part by part."""
    ahead = found.margin > best.margin

    def pick(theirs: Tensor, ours: Tensor) -> Tensor:
        return torch.where(ahead[..., None], theirs, ours)

    old, new = best.choice, found.choice
    return SplitBounds(
        torch.maximum(best.margin, found.margin),
        Choice(
            old.signs, pick(new.alpha, old.alpha), pick(new.beta, old.beta), pick(new.mixture, old.mixture)
        ),
        pick(found.corner, best.corner), pick(found.gain, best.gain),
    )  # fmt: skip


@dataclass(eq=False)
class _Adam:
    """Adam, the optimiser (Kingma and Ba, 2015), elementwise, so that no part depends on its neighbours."""

    mean: Tensor
    square: Tensor

    def direction(self, gradient: Tensor, step: int) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        spread = (self.square / (1 - 0.999 ** (step + 1))).sqrt()
        return self.mean / (1 - 0.9 ** (step + 1)) / (spread + 1e-12)
