"""The expected softmax of dense networks of any depth, by exponential moments (`exponents`, `powers`).

Guarantee: sound with probability 1, rounding included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import Exponents, typical
from bnn_vnnlib.bounds.dense.hidden import Lines
from bnn_vnnlib.methods.decision.softmax.one_layer import OneLayerSoftmax
from bnn_vnnlib.methods.decision.softmax.powers import ABOVE, BELOW, questions
from bnn_vnnlib.network.dense_chain import DenseChain

NOISY = 0.01
"""Log excess from which on exponential moments are asked, too: it costs D up to a quarter of that."""


@dataclass(frozen=True, eq=False)
class ExponentialMoments:
    """A `method.Source`: everything about one network that does not depend on the box.

    budgets : values of delta, of which the best is taken
    """

    chain: DenseChain
    budgets: tuple[float, ...]

    name: ClassVar[str] = "exponential moments"

    @property
    def count(self) -> int:
        """Number of classes."""
        return self.chain.layers[-1].outputs

    @cached_property
    def _exponents(self) -> list[Exponents]:
        found = [Exponents(self.chain, budget) for budget in self.budgets]
        return found if found[0].sides else found[:1]

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        m = self.count
        widest = max(max(layer.mean.shape) for layer in self.chain.layers)
        rows = m * ((m - 1) * len(BELOW) + 1 + len(ABOVE))
        return 32 * max(self._exponents[0].size, rows * widest)

    def value(self, x: Tensor) -> Tensor:
        """(P, m): about D at points, as if logits were independent Gaussians (MacKay's approximation)."""
        last = typical(self.chain, x)[-1]
        variance = last.v + last.m_spread**2
        return torch.softmax(last.m / torch.sqrt(1 + math.pi / 8 * variance), -1)

    def context(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Nothing: what is known of a box does not serve the boxes inside."""
        return lower.new_zeros(len(lower), 0)

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[Lines, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n)."""
        found = [self._rows(exponents, lower, upper, outputs) for exponents in self._exponents]
        lines, numbers, radius = found[0]
        for line, number, _ in found[1:]:
            lines, numbers = better(lines, line, radius), torch.maximum(numbers, number)
        return lines, numbers

    def _rows(
        self, exponents: Exponents, lower: Tensor, upper: Tensor, outputs: Tensor
    ) -> tuple[Lines, Tensor, Tensor]:
        ranges = exponents.ranges(lower, upper)
        mean = ranges.typical[-1].m
        asked = questions(mean, _wanted(outputs, torch.softmax(mean, -1)))
        radius = ranges.first.radius
        found = asked.classes(exponents.lines(ranges, asked.rows), radius, exponents.delta)
        return *found.rows(outputs), radius


def _wanted(outputs: Tensor, share: Tensor) -> Tensor:
    """(P, C): classes that are worth a lower bound: of a single row only one, where its coefficient matters most."""
    m = outputs.shape[-1]
    if outputs.shape[1] > 1:
        return torch.arange(m, device=share.device).expand(len(share), -1)
    gain = (outputs - outputs.amin(-1, keepdim=True))[:, 0] * (share + 1e-9)
    return gain.argmax(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class WithMoments:
    """One hidden layer: the closed forms, and exponential moments where these pay much for the noise."""

    source: OneLayerSoftmax
    moments: ExponentialMoments

    name: ClassVar[str] = "closed forms"

    @property
    def count(self) -> int:
        """Number of classes."""
        return self.source.count

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        return max(self.source.size, self.moments.size)

    def value(self, x: Tensor) -> None:
        """There is no closed form."""

    def context(self, lower: Tensor, upper: Tensor) -> Tensor:
        """That of the closed forms: log excesses."""
        return self.source.context(lower, upper)

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[Lines, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n)."""
        if context is None:
            context = self.context(lower, upper)
        lines, numbers = self.source.rows(lower, upper, outputs, context)
        noisy = torch.nonzero(~(context.amax(-1) < NOISY))[:, 0]
        if len(noisy) == 0:
            return lines, numbers
        low, high = lower[noisy], upper[noisy]
        line, number = self.moments.rows(low, high, outputs if len(outputs) == 1 else outputs[noisy])
        radius = (high - low) / 2
        line = better(Lines(lines.value[noisy], lines.slope[noisy]), line, radius)
        numbers = numbers.index_copy(0, noisy, torch.maximum(numbers[noisy], number))
        return Lines(
            lines.value.index_copy(0, noisy, line.value), lines.slope.index_copy(0, noisy, line.slope)
        ), numbers


def better(first: Lines, second: Lines, radius: Tensor) -> Lines:
    """(P, R): of each pair the one with the larger minimum; both are below the rows."""
    ahead = second.minimum(radius) > first.minimum(radius)
    return Lines(
        torch.where(ahead, second.value, first.value), torch.where(ahead[..., None], second.slope, first.slope)
    )
