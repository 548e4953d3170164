"""Y_j is a quantile of output j over the posterior, with no observation noise: the median, say, under the l1 loss.

1. Bounds on the quantiles of the outputs over boxes of inputs.
An alpha-quantile of f_j(x) is any t with P(f_j(x) <= t) >= alpha and P(f_j(x) >= t) >= 1 - alpha. If P(f_j(x) < v) <
alpha, none is below v; and -t is a (1 - alpha)-quantile of -f_j(x). Everything here proves such v, for f_j at alpha and
for -f_j at 1 - alpha, so that the bounds hold every quantile. alpha is a float, 1 - alpha is rounded to the safe side.

Boxes of weights: f_j >= v_i for all x of the box and all weights of box i. With the boxes sorted by v_i in descending
order, v_i is proved as soon as the union of the first i has a mass above 1 - alpha. What no box covers thus counts as
lying below all of them, which the paper's appendix gets right only where the mass is complete. One centred box of a
mass just above 1 - alpha is the best of nested ones. Samples: the same, each a box of its own probability.
Tails: P(some x of the box has f_j(x) <= v) < alpha, v found by bisection.
Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks (appendix, l1 loss).

2. Rows a.Y + g.x are bounded from bounds on the quantiles over parts of the input box, which is split for all rows of
an item at once. Which part to split, and where, is said by sampled networks, on which nothing rests.
Guarantee: sound with probability 1, rounding included; every quantile counts where there are several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.decision.method import Sampled, picked, rows_at, weights_name
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.problem.problem import Problem, Rows
from bnn_vnnlib.problem.weight_sets import BoxUnion, Mass, SampledWeights, over_parts
from bnn_vnnlib.rounding import TINY, UNIT, gamma
from bnn_vnnlib.splitting.frontier import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline

# 1. Quantiles

_DOUBLINGS, _HALVINGS = 10, 9
"""Doublings away from where v cannot be and halvings back, in the search for v."""


class MedianSource(Protocol):
    """A source of bounds on the quantiles of outputs."""

    @property
    def name(self) -> str:
        """Name of the source, for people and the record."""
        ...

    def sides(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, 2 m): no quantile of f_j(x), then of -f_j(x), is below, for all x of the boxes (P, n)."""
        ...


def _above(level: float) -> float:
    """1 - alpha for a level alpha, rounded up."""
    return float(np.nextafter(1.0 - level, 1.0))


def quantile_lower(value: Tensor, mass: Mass | Tensor, needed: Tensor) -> Tensor:
    """The largest value_k with a mass above `needed` (..) of the boxes that are at least that high; (.., K) -> (..).

    mass : lower bounds on the masses of unions, or the probabilities (K,) of samples; -inf where no mass suffices.
    """
    value = value.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    ordered, order = value.sort(-1, descending=True)
    if isinstance(mass, Tensor):
        covered = mass[order].cumsum(-1) - 4 * (len(mass) + 4) * UNIT
    else:
        rank, first = order.argsort(-1), torch.arange(value.shape[-1], device=value.device)
        covered = mass(rank[..., None, :] <= first[:, None])
    return torch.where(covered > needed[..., None], ordered, -torch.inf).amax(-1)


@dataclass(frozen=True, eq=False)
class WeightMedians:
    """By K boxes of weights and the mass of their unions, or K samples and their probabilities."""

    bounds: OutputBounds
    weights: WeightBoxes | SampledWeights
    mass: BoxUnion | Tensor
    level: float = 0.5

    @property
    def name(self) -> str:
        """Name of the source by what the weights are, for people and the record."""
        return weights_name(self.mass)

    def sides(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, 2 m): below all quantiles of f_j(x), then of -f_j(x), for all x of the boxes (P, n)."""
        unit = torch.eye(self.bounds.engine.network.signature.output_size, dtype=lower.dtype, device=lower.device)
        rows = torch.cat([unit, -unit])[None]
        value = over_parts(self.weights, lambda weights: self.bounds.rows(weights, lower, upper, rows).lower)
        value = value.expand(self.weights.count, -1, -1).movedim(0, -1)
        needed = lower.new_tensor([_above(self.level), self.level]).repeat_interleave(len(unit))
        return quantile_lower(value, self.mass if isinstance(self.mass, Tensor) else self.mass.union_lower, needed)


@dataclass(frozen=True, eq=False)
class TailMedians:
    """By the tails of the outputs of a Gaussian posterior.

    Parameters
    ----------
    typical : estimates of quantiles and standard deviations, where the search starts; nothing rests on them
    """

    tails: TailBounds
    typical: Sampled
    level: float = 0.5

    name: ClassVar[str] = "tails"

    def sides(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, 2 m): below all quantiles of f_j(x), then of -f_j(x), for all x of the boxes (P, n)."""
        center = (lower + upper) / 2
        ends = torch.stack([self.typical.quantile(x, self.level) for x in (center, lower, upper)])
        middle = torch.cat([ends[0], -ends[0]], -1)
        step = self.typical.spread(center) + (ends - ends[0]).abs().amax(0)
        step = (0.1 * step + 1e-9 * (1 + ends[0].abs())).repeat(1, 2)
        return self._search(lower, upper, middle, step)

    def _search(self, lower: Tensor, upper: Tensor, start: Tensor, step: Tensor) -> Tensor:
        """(P, 2 m): the best v found below `start`."""
        good, bad, away = torch.full_like(start, -torch.inf), start, step
        for _ in range(_DOUBLINGS):
            index = torch.nonzero(good == -torch.inf)
            if len(index) == 0:
                break
            row, column = index.unbind(-1)
            tried = (start - away)[row, column]
            proved = self._proved(lower[row], upper[row], column, tried, start.shape[1] // 2)
            good = good.index_put((row, column), torch.where(proved, tried, -torch.inf))
            bad = bad.index_put((row, column), torch.where(proved, bad[row, column], tried))
            away = 2 * away
        row, column = torch.nonzero(good > -torch.inf).unbind(-1)
        low, high = good[row, column], bad[row, column]
        for _ in range(_HALVINGS if len(row) else 0):
            tried = (low + high) / 2
            proved = self._proved(lower[row], upper[row], column, tried, start.shape[1] // 2)
            low, high = torch.where(proved, tried, low), torch.where(proved, high, tried)
        return good.index_put((row, column), low)

    def _proved(self, lower: Tensor, upper: Tensor, side: Tensor, value: Tensor, outputs: int) -> Tensor:
        """Whether P(some x of the box has +-f_j(x) <= value) is proved below alpha, or below 1 - alpha, (M,)."""
        count, device = len(lower), lower.device
        rows = (
            torch.nn.functional.one_hot(side % outputs, outputs).to(lower)
            * torch.where(side < outputs, 1.0, -1.0)[:, None]
        )
        zero, one = (torch.full((1, 1), flag, dtype=torch.bool, device=device) for flag in (False, True))
        case = torch.zeros(1, 1, dtype=torch.int64, device=device)
        bound = value[:, None]
        half_spaces = Rows(rows[:, None], None, bound, bound, zero, case, case)
        problem = Problem(lower, upper, lower, upper, half_spaces, one, None, torch.arange(count, device=device), count)
        level = torch.where(side < outputs, self.level, float(np.nextafter(1.0 - self.level, 0.0)))
        return self.tails.item_failures(problem) < level


# 2. Rows

_ACCURACY = 1e-3
"""Excess that is not worth a split, in standard deviations of the row's outputs."""


@dataclass(frozen=True, eq=False)
class MedianRows:
    """A method of the portfolio: lower bounds on rows over the medians.

    Parameters
    ----------
    level : of the quantiles
    most : parts of an item; 1 = one look
    """

    source: MedianSource
    typical: Sampled
    deadline: Deadline
    level: float = 0.5
    most: int = 1

    @property
    def name(self) -> str:
        """Name of the source of bounds, for people and the record."""
        return self.source.name

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; outputs (N or 1, R, m), inputs alike or None."""
        known = self._looked(lower, upper, outputs, inputs)
        if self.most == 1 or bool((lower == upper).all()):
            return known

        def bound(item: Tensor, lower: Tensor, upper: Tensor) -> Look:
            """Bounds, and the slopes of the estimate at the centre."""
            rows, added = picked(outputs, item), picked(inputs, item)
            x = ((lower + upper) / 2).detach().requires_grad_()
            with torch.enable_grad():
                estimate = self.typical.quantile(x, self.level)
                slopes = [torch.autograd.grad(part.sum(), x, retain_graph=True)[0] for part in estimate.unbind(-1)]
            slope = rows @ torch.stack(slopes, 1)
            slope = slope if added is None else slope + added
            return Look(self._looked(lower, upper, rows, added), slope, lower, upper)

        def value(item: Tensor, x: Tensor) -> Tensor:
            return rows_at(self.typical.quantile(x, self.level), x, picked(outputs, item), picked(inputs, item))

        size = self.typical.spread((lower + upper) / 2)
        tolerance = _ACCURACY * (outputs.abs() * size[:, None]).sum(-1) + 1e-12
        return minimise(bound, value, lower, upper, known, Effort(tolerance, self.most), self.deadline)

    def _looked(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> Tensor:
        """Lower bounds (P, R) by one look at each box: positive coefficients take lower bounds, negative ones upper
        bounds.
        """
        sides = self.source.sides(lower, upper)
        weights = torch.cat([outputs.clamp(min=0), -outputs.clamp(max=0)], -1)
        each = torch.where(weights > 0, weights * sides[:, None], 0.0)
        value = each.sum(-1) - 2 * gamma(weights.shape[-1]) * each.abs().sum(-1) - TINY
        if inputs is not None:
            moved = over_box(inputs, lower, upper)[0]
            value = value + moved - gamma(2) * (value.abs() + moved.abs())
        return value.nan_to_num(-torch.inf, torch.inf, -torch.inf)
