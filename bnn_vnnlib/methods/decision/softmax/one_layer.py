"""The expected softmax behind one hidden ReLU layer of independent Gaussian weights, in closed form.

Guarantee: sound with probability 1, rounding included. Where all rows compare two classes, D_i > D_j on a box if
    min E(f_i - f_j) > v_i + v'_j,   v_i the largest log excess of the rows f_l - f_i, v'_j that of f_j - softmax . f,
because D_i >= exp(-v_i) softmax_i(E f) and D_j <= exp(v'_j) softmax_j(E f).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.hidden import Hidden, Lines, hidden
from bnn_vnnlib.methods.decision.softmax.noise import log_excess
from bnn_vnnlib.methods.decision.softmax.softmax import Pairs, classes
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import UNIT, gamma

SMALL = 1e-4
"""Log excesses below are not computed again for parts of a box: they cost D less than a quarter of this."""

UP = 1 + 2.0**-40
"""Covers a few roundings."""


@dataclass(frozen=True, eq=False)
class OneLayerSoftmax:
    """Everything about one network that does not depend on the box."""

    layers: DenseChain

    name: ClassVar[str] = "closed forms"

    @property
    def count(self) -> int:
        """m: classes."""
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

    def margins(self, neurons: Hidden) -> Lines:
        """Lines (P, m, m) below the means of f_i - f_j over the boxes."""
        mean, _, bias, _ = self._differences
        m, boxes = self.count, len(neurons.center)
        margin = neurons.lines(mean, bias)
        return Lines(margin.value.reshape(boxes, m, m), margin.slope.reshape(boxes, m, m, -1))

    def pairs(self, neurons: Hidden) -> Pairs:
        """Margins and log excesses of all ordered pairs over the boxes."""
        mean, noise, _, shift = self._differences
        # -(f_i - f_j) has the coefficients -mean
        excess = log_excess(neurons, -mean, noise, shift).reshape(len(neurons.center), self.count, self.count)
        return Pairs(self.margins(neurons), excess, neurons.radius)

    def above(self, neurons: Hidden, pairs: Pairs) -> Tensor:
        """v' (P, m): the log excess of f_i - softmax(E f) . f, from above.

        Its coefficients are sums of p_l (W_i - W_l), p the softmax without its i-th entry, of total p at most: so |a|
        is at most p times the largest difference, and the variance at most p^2 (v_i + the largest other v).
        """
        last, m = self.layers.last, self.count
        off = ~torch.eye(m, dtype=torch.bool, device=last.mean.device)
        odds = torch.where(off, torch.exp(-pairs.least()), 0.0).sum(-1) * UP
        share = torch.where(torch.isfinite(odds), odds / (1 + odds) * UP, 1.0).clamp(max=1.0)[..., None]
        largest = (last.mean[:, None] - last.mean).abs().amax(1) * (1 + 2 * UNIT)

        def others(values: Tensor) -> Tensor:
            spread = values[None].expand(m, *values.shape)
            return torch.where(off.reshape(m, m, *(1,) * (values.dim() - 1)), spread, 0.0).amax(1)

        noise = last.variance + others(last.variance)
        shift = last.bias_variance + others(last.bias_variance)
        square = share**2 * UP
        return log_excess(neurons, share * largest * UP, square * noise * UP, square[..., 0] * shift * UP)

    @property
    def size(self) -> int:
        """Numbers that one box takes: all pairs of classes by the neurons, or by the inputs."""
        return 4 * self.count**2 * max(self.layers.first.mean.shape)

    def value(self, x: Tensor) -> None:
        """There is no closed form."""

    def context(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The log excesses v and v' of boxes, which serve all boxes inside them: (N, m m + m)."""
        neurons = hidden(self.layers.first, lower, upper)
        pairs = self.pairs(neurons)
        return torch.cat([pairs.excess.flatten(1), self.above(neurons, pairs)], 1)

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[Lines, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n)."""
        if context is None:
            context = self.context(lower, upper)
        else:
            context = context.clone()
            large = torch.nonzero(~(context.amax(-1) < SMALL))[:, 0]
            if len(large):
                context[large] = torch.minimum(context[large], self.context(lower[large], upper[large]))
        neurons = hidden(self.layers.first, lower, upper)
        m = self.count
        pairs = Pairs(self.margins(neurons), context[:, : m * m].reshape(-1, m, m), neurons.radius)
        return classes(pairs, context[:, m * m :]).rows(outputs)

    def comparisons(self, lower: Tensor, upper: Tensor, first: Tensor, second: Tensor) -> Comparison:
        """D_first > D_second over boxes (P, n): classes (P, R)."""
        neurons = hidden(self.layers.first, lower, upper)
        pairs = self.pairs(neurons)
        above = self.above(neurons, pairs).gather(1, second)
        below = pairs.excess.amax(-1).gather(1, first)
        index = first * self.count + second
        value = pairs.margin.value.flatten(1).gather(1, index)
        slope = pairs.margin.slope.flatten(1, 2)
        slope = slope.gather(1, index[..., None].expand(-1, -1, slope.shape[-1]))
        return Comparison(Lines(value, slope), (below + above) * UP, neurons)

    def mean_correction(self, neurons: Hidden) -> Tensor:
        """(P, m, m): by how much E(f_i - f_j) may fall short of the same margin of the mean network."""
        falls = self._differences[0].clamp(max=0.0).abs()
        short = neurons.excess @ falls.mT
        return (short * (1 + gamma(2 * falls.shape[-1] + 16))).reshape(len(short), self.count, self.count)


@dataclass(frozen=True, eq=False)
class Comparison:
    """margin : Lines (P, R) below the mean margins; needed (P, R) : what they must exceed."""

    margin: Lines
    needed: Tensor
    neurons: Hidden

    @property
    def spare(self) -> Tensor:
        """(P, R): proved where positive."""
        least = self.margin.minimum(self.neurons.radius)
        return least - self.needed - 2 * UNIT * (least.abs() + self.needed)
