"""The expected softmax behind one hidden ReLU layer of independent Gaussian weights, in closed form.

Guarantee: sound with probability 1, rounding included.

1. `OneLayerSoftmax`. Where all rows compare two classes, D_i > D_j on a box if
    min E(f_i - f_j) > v_i + v'_j,   v_i the largest log excess of the rows f_l - f_i, v'_j that of f_j - softmax . f,
because D_i >= exp(-v_i) softmax_i(E f) and D_j <= exp(v'_j) softmax_j(E f).

2. `Tilted`: for points and small boxes, where deviations are large.
Let S = sum_l exp(f_l - f_i), so that softmax_i = 1 / S, and Y = exp(g . f) for any row g. Cauchy and Schwarz give
    (E Y)^2 = (E[S^(-1/2) S^(1/2) Y])^2 <= E[1 / S] E[S Y^2],   hence
    D_i >= (E exp(g . f))^2 / sum_l E exp((2 g + e_l - e_i) . f).
It is an equality where Y is proportional to 1 / S, so g is taken along the gradient of log softmax_i at scaled means.
Upper bounds are what the lower bounds of the other classes leave.
The moments. Given the hidden outputs z, a row u . f is Gaussian, and its log E exp is sum_k f_k(z_k) + constant with
f_k(z) = alpha z + beta z^2, alpha = u W, beta = u^2 sig^2 / 2, and independent z_k = relu(N(m_k, s_k^2)).
Over a box, and with rounding, (m, s) is known up to |m' - m| <= d, |s' - s| <= e s. Then a' = m' + s' N is at most
D = d + e |m| away from r (m + s N), r = s' / s, and z' from r z, since relu is 1-Lipschitz and positively homogeneous.
With 2 r z D <= D (r^2 z^2 + 1) and e < 1 that leaves
    f(z') <= (alpha + e |alpha|) z + beta (1 + e)^2 (1 + D) z^2 + |alpha| D + beta (D + D^2),
    f(z') >= (alpha - e |alpha|) z + beta max(0, (1 - e)^2 - D) z^2 - |alpha| D - beta D.
The moments of these at (m, s) have closed forms (`gaussian.relu`). A neuron without noise is a number in a range.

3. `MeanNetwork`: classes that keep their order, by margins instead of expected probabilities.
Method: D_i > D_j wherever E(f_i - f_j) > v_i + v'_j (1.), and E(f_i - f_j) falls short of the margin of the
mean network by at most sum_k (dW_k)^- sup (G_k - relu(m_k)). So the deterministic verifier, asked whether the mean
network keeps that much distance, proves the order; its failure proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import typical
from bnn_vnnlib.bounds.dense.hidden import CentredForm, HiddenRanges, hidden
from bnn_vnnlib.bounds.walk import completed
from bnn_vnnlib.gaussian.normal import LEAST
from bnn_vnnlib.gaussian.relu import log_moment, log_moment_below
from bnn_vnnlib.methods.decision.softmax.method import SPLIT, SoftmaxSource
from bnn_vnnlib.methods.decision.softmax.softmax import GRAIN, Classes, ClassPairs, classes, log_excess
from bnn_vnnlib.methods.deterministic import MAX_SPLIT_INPUTS, decide_fixed
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds, compares_classes
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.rounding import ELEMENTARY, TINY, UNIT, gamma
from bnn_vnnlib.splitting.frontier import Look, minimise
from bnn_vnnlib.system.memory import at_once

# 1. Closed forms over boxes

_NEGLIGIBLE_EXCESS = 1e-4
"""Log excesses below are not computed again for parts of a box: they cost D less than a quarter of this."""

_UP = 1 + 2.0**-40
"""Factor that covers a few roundings."""


@dataclass(frozen=True, eq=False)
class OneLayerSoftmax(SoftmaxSource):
    """Everything about one network that does not depend on the box."""

    layers: DenseChain

    name: ClassVar[str] = "closed forms"

    @property
    def count(self) -> int:
        """m, the number of classes."""
        return self.layers.last.outputs

    @cached_property
    def _differences(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means (m m, H) and variances of W_i - W_j, then of c_i - c_j (m m,)."""
        last = self.layers.last
        mean, bias = (part[:, None] - part for part in (last.mean, last.bias))
        noise, shift = ((part[:, None] + part) * (1 + 2 * UNIT) for part in (last.variance, last.bias_variance))
        off = ~torch.eye(self.count, dtype=torch.bool, device=mean.device)
        noise, shift = noise * off[..., None], shift * off
        return mean.flatten(0, 1), noise.flatten(0, 1), bias.flatten(), shift.flatten()

    def margins(self, neurons: HiddenRanges) -> CentredForm:
        """Lines (P, m, m) below the means of f_i - f_j over the boxes."""
        mean, _, bias, _ = self._differences
        m, boxes = self.count, len(neurons.center)
        margin = neurons.lines(mean, bias)
        return CentredForm(margin.value.reshape(boxes, m, m), margin.slope.reshape(boxes, m, m, -1))

    def pairs(self, neurons: HiddenRanges) -> ClassPairs:
        """Margins and log excesses of all ordered pairs over the boxes."""
        mean, noise, _, shift = self._differences
        # -(f_i - f_j) has the coefficients -mean
        excess = log_excess(neurons, -mean, noise, shift).reshape(len(neurons.center), self.count, self.count)
        return ClassPairs(self.margins(neurons), excess, neurons.radius)

    def above(self, neurons: HiddenRanges, pairs: ClassPairs) -> Tensor:
        """v' (P, m): the log excess of f_i - softmax(E f) . f, from above.

        Its coefficients are sums of p_l (W_i - W_l), p the softmax without its i-th entry, of total p at most: so |a|
        is at most p times the largest difference, and the variance at most p^2 (v_i + the largest other v).
        """
        last, m = self.layers.last, self.count
        off = ~torch.eye(m, dtype=torch.bool, device=last.mean.device)
        odds = torch.where(off, torch.exp(-pairs.least()), 0.0).sum(-1) * _UP
        share = torch.where(torch.isfinite(odds), odds / (1 + odds) * _UP, 1.0).clamp(max=1.0)[..., None]
        largest = (last.mean[:, None] - last.mean).abs().amax(1) * (1 + 2 * UNIT)

        def others(values: Tensor) -> Tensor:
            spread = values[None].expand(m, *values.shape)
            return torch.where(off.reshape(m, m, *(1,) * (values.dim() - 1)), spread, 0.0).amax(1)

        noise = last.variance + others(last.variance)
        shift = last.bias_variance + others(last.bias_variance)
        square = share**2 * _UP
        return log_excess(neurons, share * largest * _UP, square * noise * _UP, square[..., 0] * shift * _UP)

    @property
    def size(self) -> int:
        """Numbers that one box takes: all pairs of classes by the neurons, or by the inputs."""
        return 4 * self.count**2 * max(self.layers.first.mean.shape)

    def context(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The log excesses v and v' of boxes, which serve all boxes inside them: (N, m m + m)."""
        neurons = hidden(self.layers.first, lower, upper)
        pairs = self.pairs(neurons)
        return torch.cat([pairs.excess.flatten(1), self.above(neurons, pairs)], 1)

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[CentredForm, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n)."""
        if context is None:
            context = self.context(lower, upper)
        else:
            context = context.clone()
            large = torch.nonzero(~(context.amax(-1) < _NEGLIGIBLE_EXCESS))[:, 0]
            if len(large):
                context[large] = torch.minimum(context[large], self.context(lower[large], upper[large]))
        neurons = hidden(self.layers.first, lower, upper)
        m = self.count
        pairs = ClassPairs(self.margins(neurons), context[:, : m * m].reshape(-1, m, m), neurons.radius)
        return classes(pairs, context[:, m * m :]).rows(outputs)

    def comparisons(self, lower: Tensor, upper: Tensor, first: Tensor, second: Tensor) -> _Comparison:
        """D_first > D_second over boxes (P, n): classes (P, R)."""
        neurons = hidden(self.layers.first, lower, upper)
        pairs = self.pairs(neurons)
        above = self.above(neurons, pairs).gather(1, second)
        below = pairs.excess.amax(-1).gather(1, first)
        index = first * self.count + second
        value = pairs.margin.value.flatten(1).gather(1, index)
        slope = pairs.margin.slope.flatten(1, 2)
        slope = slope.gather(1, index[..., None].expand(-1, -1, slope.shape[-1]))
        return _Comparison(CentredForm(value, slope), (below + above) * _UP, neurons)

    def mean_correction(self, neurons: HiddenRanges) -> Tensor:
        """(P, m, m): by how much E(f_i - f_j) may fall short of the same margin of the mean network."""
        falls = self._differences[0].clamp(max=0.0).abs()
        short = neurons.excess @ falls.mT
        return (short * (1 + gamma(2 * falls.shape[-1] + 16))).reshape(len(short), self.count, self.count)


@dataclass(frozen=True, eq=False)
class _Comparison:
    """margin : Lines (P, R) below the mean margins; needed (P, R) : what they must exceed."""

    margin: CentredForm
    needed: Tensor
    neurons: HiddenRanges

    @property
    def spare(self) -> Tensor:
        """What the comparisons (P, R) have to spare: proved where positive."""
        least = self.margin.minimum(self.neurons.radius)
        return least - self.needed - 2 * UNIT * (least.abs() + self.needed)


# 2. Tilting

_SCALES = (1.0, 0.6, 0.3)
"""Means are scaled by these before the gradient is taken: the softmax of a noisy network is flatter than its mean's."""

_TILTS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Lengths of g along that gradient; 0 is tried as well (Jensen's inequality)."""

_MAX_CHANGE = 0.1
"""A deviation varies by at most this share (less than 1) over a box that is bounded; other boxes are left alone."""

_MAX_WIDTH_COST = 2.0
"""What the width of a box may cost in log D, about; boxes that cost more are left alone."""


@dataclass(frozen=True, eq=False)
class Tilted(SoftmaxSource):
    """Bounds on the expected softmax by tilted expectations, at points and over small boxes."""

    layers: DenseChain

    name: ClassVar[str] = "closed forms"

    @property
    def count(self) -> int:
        """Number of classes."""
        return self.layers.last.outputs

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        combinations = 1 + len(_SCALES) * len(_TILTS)
        return 8 * combinations * self.count * (1 + self.count) * self.layers.first.outputs

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[CentredForm, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n)."""
        m = self.count
        low = lower.new_zeros(len(lower), m)
        neurons = hidden(self.layers.first, lower, upper)
        small = torch.nonzero(self._cost(neurons) < _MAX_WIDTH_COST)[:, 0]
        if len(small):
            low[small] = self._below(lower[small], upper[small])
        high = 1 - (low.sum(-1, keepdim=True) - low) + 4 * m * UNIT
        flat = lower.new_zeros(len(lower), m, lower.shape[-1])
        found = Classes(CentredForm(low, flat), CentredForm(-high, flat), low, high, (upper - lower) / 2)
        return found.rows(outputs)

    def _cost(self, neurons: HiddenRanges) -> Tensor:
        """(P,): about what the width of a box costs; nothing rests on it."""
        weights = self.layers.last.mean
        return ((neurons.high - neurons.low) / 2) @ (weights.amax(0) - weights.amin(0))

    def _below(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, m): D_i from below, at least 0."""
        m = self.count
        g = _tilts(typical(self.layers, (lower + upper) / 2)[-1].m)
        unit = torch.eye(m, dtype=g.dtype, device=g.device)
        top = 2 * g[..., None, :] + (unit - unit[:, None])  # (P, C, m, m, m): 2 g + e_l - e_i
        moments = _Moments(self.layers, hidden(self.layers.first, lower, upper))
        tilted = moments.below(g.flatten(1, 2)).unflatten(1, g.shape[1:3])
        total = torch.logsumexp(moments.above(top.flatten(1, 3)).unflatten(1, top.shape[1:4]), -1)
        value = 2 * tilted - total
        value = value - 16 * (m + 8) * UNIT * (1 + 2 * tilted.abs() + total.abs()) - 4 * ELEMENTARY
        value = value.nan_to_num(-torch.inf, -torch.inf, -torch.inf).amax(1)
        return (torch.exp(value.clamp(max=0.0)) * (1 - ELEMENTARY)).clamp(min=0.0)


def _tilts(mean: Tensor) -> Tensor:
    """Rows g (P, C, m, m) of all classes for expected logits of about `mean` (P, m); any are sound."""
    scales = mean.new_tensor(_SCALES)
    lengths = mean.new_tensor(_TILTS)
    p = torch.softmax(scales[:, None] * mean[:, None], -1)
    gradient = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device) - p[:, :, None]  # (P, S, m, m)
    g = (lengths[:, None, None, None] * gradient[:, None]).flatten(1, 2)
    return torch.cat([torch.zeros_like(g[:, :1]), (g * GRAIN).round() / GRAIN], 1)


@dataclass(frozen=True, eq=False)
class _Moments:
    """log E exp(u . f) over boxes, from both sides, for rows u (P, R, m)."""

    layers: DenseChain
    neurons: HiddenRanges

    def above(self, rows: Tensor) -> Tensor:
        """(P, R), rounded up; inf where it is out of reach."""
        return self._sum(rows, 1.0)

    def below(self, rows: Tensor) -> Tensor:
        """(P, R), rounded down; -inf where it is out of reach."""
        return self._sum(rows, -1.0)

    def _sum(self, rows: Tensor, sign: float) -> Tensor:
        """Logarithms (P, R) of exponential moments of rows, above for sign 1 and below for -1."""
        last = self.layers.last
        relative = gamma(4 * rows.shape[-1] + 16)
        alpha, size = rows @ last.mean, rows.abs() @ last.mean.abs()
        beta = (rows * rows) @ last.variance / 2
        alpha = alpha + sign * (relative * size + TINY)  # z >= 0: the moment grows with both coefficients
        beta = (beta * (1 + sign * relative) + sign * TINY).clamp(min=0.0)
        terms = torch.where(self._fixed, self._numbers(alpha, beta, sign), self._noisy(alpha, beta, sign))
        shift = rows @ last.bias + (rows * rows) @ last.bias_variance / 2
        paid = rows.abs() @ last.bias.abs() + (rows * rows) @ last.bias_variance / 2
        lost = gamma(terms.shape[-1] + 8) * terms.abs().sum(-1) + relative * paid + LEAST
        total = terms.sum(-1) + shift
        return total + sign * (lost + 4 * UNIT * total.abs())

    @property
    def _fixed(self) -> Tensor:
        """(H,): neurons without noise."""
        first = self.layers.first
        return (first.variance == 0).all(-1) & (first.bias_variance == 0)

    def _numbers(self, alpha: Tensor, beta: Tensor, sign: float) -> Tensor:
        """alpha z + beta z^2 for z in a range: at its ends, term by term."""
        low, high = (side.clamp(min=0.0)[:, None] for side in (self.neurons.low, self.neurons.high))
        end = torch.where((alpha >= 0) == (sign > 0), high, low)
        square = high if sign > 0 else low
        value = alpha * end + beta * square * square
        return value + sign * (8 * UNIT * ((alpha * end).abs() + beta * square * square) + LEAST)

    def _noisy(self, alpha: Tensor, beta: Tensor, sign: float) -> Tensor:
        """What each neuron with noise adds to the logarithms, above for sign 1 and below for -1."""
        n = self.neurons
        m, s = ((a + b)[:, None] / 2 for a, b in ((n.low, n.high), (n.least, n.most)))
        apart = torch.maximum(n.high[:, None] - m, m - n.low[:, None]) * (1 + 4 * UNIT) + TINY
        e = torch.maximum(n.most[:, None] - s, s - n.least[:, None]) / s * (1 + 8 * UNIT) + 4 * UNIT
        reach = (apart + e * m.abs()) * (1 + 8 * UNIT) + LEAST
        if sign > 0:
            square, constant = (1 + e) ** 2 * (1 + reach) * (1 + 16 * UNIT), reach + reach * reach
        else:
            square, constant = ((1 - e) ** 2 - reach - 16 * UNIT).clamp(min=0.0), reach
        first = alpha + sign * e * alpha.abs() * (1 + 8 * UNIT) + sign * 4 * UNIT * alpha.abs()
        moment = (log_moment if sign > 0 else log_moment_below)(first, beta * square, m, s)
        paid = (alpha.abs() * reach + beta * constant) * (1 + 16 * UNIT) + LEAST
        value = moment + sign * (paid + 4 * UNIT * (moment.abs() + paid))
        return torch.where(e < _MAX_CHANGE, value, sign * torch.inf).nan_to_num(sign * torch.inf, torch.inf, -torch.inf)


# 3. Comparison by the mean network


@dataclass(frozen=True, eq=False)
class MeanNetwork:
    """A criterion (see `decision.method.Steps`) for one hidden layer."""

    bounds: OutputBounds
    source: OneLayerSoftmax

    name: ClassVar[str] = "comparison of classes"

    def false_rows(self, problem: Problem) -> Tensor:
        """(N, R): rows a (Y_i - Y_j) <= 0 that are false because D_i > D_j on the whole item."""
        return self._suits(problem) & (self._needed(problem)[0] > 0)

    def refuted(self, problem: Problem) -> Tensor:
        """(N,): by splitting inputs where they are few, else by the verifier of fixed weights on the mean network."""
        few = (problem.lower < problem.upper).sum(-1) <= MAX_SPLIT_INPUTS
        out = torch.zeros_like(few)
        for chosen, decided in ((few, self._by_inputs), (~few, self._by_neurons)):
            index = torch.nonzero(chosen)[:, 0]
            if len(index):
                out[index] = decided(problem.items(index))
        return out

    def _by_inputs(self, problem: Problem) -> Tensor:
        """Whether the items (N,) are refuted, their rows each for itself, by splitting the inputs."""
        spare, _ = self._needed(problem)
        suits = self._suits(problem)
        first, second = _classes(problem)
        item, row = torch.nonzero(suits & (spare <= 0), as_tuple=True)

        def bound(target: Tensor, low: Tensor, high: Tensor) -> Look:
            pair = (side[item[target], row[target], None] for side in (first, second))
            found = self.source.comparisons(low, high, *pair)
            return Look(found.spare, found.margin.slope, low, high)

        known, deadline = spare[item, row, None], self.bounds.engine.deadline
        boxes = problem.lower[item], problem.upper[item]
        spare[item, row] = minimise(bound, None, *boxes, known, SPLIT, deadline, torch.zeros_like(known))[:, 0]
        return problem.refuted(suits & (spare > 0)).all(-1)

    def _by_neurons(self, problem: Problem) -> Tensor:
        """Rows that this says nothing about, inputs included, become 0 <= 1, which no one refutes."""
        suits = self._suits(problem)
        if not bool(suits.any()):
            return suits.any(-1)
        _, needed = self._needed(problem)
        rows = problem.rows
        usable = suits & torch.isfinite(needed)
        sign = rows.outputs.sign().expand(*usable.shape, -1)
        outputs = torch.where(usable[..., None], sign, 0.0)
        bound = torch.where(usable, needed, 1.0)
        shifted = replace(
            problem, rows=replace(
                rows, outputs=outputs, inputs=None, bound=bound, inner_bound=bound, strict=torch.zeros_like(usable),
                case=rows.case.expand(usable.shape), origin=rows.origin.expand(usable.shape),
            ),
        )  # fmt: skip
        plain = replace(self.bounds, transform="identity")
        points = (problem.lower + problem.upper)[None] / 2
        mean = weight_sets.mean_weights(plain.engine.network, problem.lower.device)
        return decide_fixed(plain, mean, shifted, points).safe[0]

    def _suits(self, problem: Problem) -> Tensor:
        """(N, R): the row is real and compares two classes, which is all that a mean network can decide."""
        rows = problem.rows
        return (compares_classes(rows) & (rows.case < problem.cases)).expand(len(problem), -1)

    def _needed(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """(N, R) twice: what the margins have to spare, and what those of the mean network must exceed."""
        first, second = _classes(problem)
        step = at_once(4 * self.source.size)

        def compared(index: Tensor) -> tuple[Tensor, Tensor]:
            pair = first[index], second[index]
            found = self.source.comparisons(problem.lower[index], problem.upper[index], *pair)
            short = (
                self.source.mean_correction(found.neurons).flatten(1).gather(1, pair[0] * self.source.count + pair[1])
            )
            return found.spare, (found.needed + short) * (1 + 4 * UNIT)

        parts = torch.arange(len(problem), device=first.device).split(step)
        found = self.bounds.engine.deadline.reached(parts, compared)
        spare = completed([spare for spare, _ in found], first.shape, -torch.inf, problem.lower)
        return spare, completed([needed for _, needed in found], first.shape, torch.inf, problem.lower)


def _classes(problem: Problem) -> tuple[Tensor, Tensor]:
    """(N, R): i and j of rows a (Y_i - Y_j), a > 0."""
    outputs = problem.rows.outputs.expand(len(problem), -1, -1)
    return outputs.argmax(-1), outputs.argmin(-1)
