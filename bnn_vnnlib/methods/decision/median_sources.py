"""Bounds on the medians of the outputs over boxes of inputs.

A median of f_j(x) is any t with P(f_j(x) <= t) >= 1/2 and P(f_j(x) >= t) >= 1/2. If P(f_j(x) < v) < 1/2, no median is
below v: everything here proves such v, for f_j and for -f_j, so that the bounds hold every median.

Boxes of weights: f_j >= v_i for all x of the box and all weights of box i. With the boxes sorted by v_i in descending
order, v_i is proved as soon as the union of the first i has a mass above 1/2. What no box covers thus counts as lying
below all of them, which the paper's appendix gets right only where the mass is complete. One centred box of a mass
just above 1/2 is the best of nested ones. Samples: the same with each sample as a box of its own probability.
Tails: P(some x of the box has f_j(x) <= v) < 1/2, v found by bisection.
Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks (appendix, l1 loss).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import GaussianDiagonal, Network, WeightSamples
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, Rows
from bnn_vnnlib.problem.weight_sets import BoxUnion, CentredUnion, Mass, SampledWeights, over
from bnn_vnnlib.rounding import UNIT

DOUBLINGS, HALVINGS = 10, 9
"""Steps of the search for v: away from where it cannot be, and back."""


SAMPLED, FEW = 65, 256
"""Networks behind the estimates that say where to split: so many are drawn, unless the posterior has few samples."""

POINTS_AT_ONCE = 512
"""Points that are evaluated together, at most, each in all samples."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """K networks of the posterior and their shares (K,): estimates of medians and standard deviations."""

    network: Network
    params: dict[str, Tensor]
    share: Tensor

    @staticmethod
    def of(network: Network, posterior: GaussianDiagonal | WeightSamples, device: torch.device) -> Sampled:
        """The samples of the posterior where they are few, or some drawn ones."""
        if isinstance(posterior, WeightSamples) and len(posterior.probabilities) <= FEW:
            params = {name: torch.as_tensor(values, device=device) for name, values in posterior.samples.items()}
            return Sampled(network, params, torch.as_tensor(posterior.probabilities, device=device))
        drawn = sample(network, posterior, SAMPLED, torch.Generator().manual_seed(0))
        params = {name: values.to(device, torch.float64) for name, values in drawn.items()}
        return Sampled(network, params, torch.full((SAMPLED,), 1 / SAMPLED, dtype=torch.float64, device=device))

    def median(self, x: Tensor) -> Tensor:
        """(P, m) at points (P, n)."""
        return torch.cat([self._median(part) for part in x.split(POINTS_AT_ONCE)])

    def spread(self, x: Tensor) -> Tensor:
        """(P, m) standard deviations of the outputs over the drawn networks, at points (P, n)."""
        parts = [evaluate(self.network, part, self.params).std(0, correction=0) for part in x.split(POINTS_AT_ONCE)]
        return torch.cat(parts)

    def _median(self, x: Tensor) -> Tensor:
        y, order = evaluate(self.network, x, self.params).sort(0)
        middle = (self.share[order].cumsum(0) < 0.5).sum(0, keepdim=True).clamp(max=len(y) - 1)
        return y.gather(0, middle)[0]


class MedianSource(Protocol):
    """What bounds medians."""

    @property
    def name(self) -> str:
        """For people and the record."""
        ...

    def sides(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, 2 m): no median of f_j(x), then of -f_j(x), is below, for all x of the boxes (P, n)."""
        ...


def half_lower(value: Tensor, mass: Mass | Tensor) -> Tensor:
    """The largest value_k with a mass above 1/2 of the boxes that are at least that high; value (.., K) -> (..).

    mass : lower bounds on the masses of unions, or the probabilities (K,) of samples; -inf where no mass suffices.
    """
    value = value.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    ordered, order = value.sort(-1, descending=True)
    if isinstance(mass, Tensor):
        covered = mass[order].cumsum(-1) - 4 * (len(mass) + 4) * UNIT
    else:
        rank, first = order.argsort(-1), torch.arange(value.shape[-1], device=value.device)
        covered = mass(rank[..., None, :] <= first[:, None])
    return torch.where(covered > 0.5, ordered, -torch.inf).amax(-1)


@dataclass(frozen=True, eq=False)
class WeightMedians:
    """By K boxes of weights and the mass of their unions, or K samples and their probabilities."""

    bounds: OutputBounds
    weights: WeightBoxes | SampledWeights
    mass: BoxUnion | Tensor

    @property
    def name(self) -> str:
        """What the weights are."""
        if isinstance(self.mass, Tensor):
            return "weight samples"
        return "centred boxes" if isinstance(self.mass, CentredUnion) else "boxes around samples"

    def sides(self, lower: Tensor, upper: Tensor) -> Tensor:
        """See `MedianSource`."""
        unit = torch.eye(self.bounds.engine.network.signature.output_size, dtype=lower.dtype, device=lower.device)
        rows = torch.cat([unit, -unit])[None]
        value = over(self.weights, lambda weights: self.bounds.rows(weights, lower, upper, rows).lower)
        value = value.expand(self.weights.count, -1, -1).movedim(0, -1)
        return half_lower(value, self.mass if isinstance(self.mass, Tensor) else self.mass.union_lower)


@dataclass(frozen=True, eq=False)
class TailMedians:
    """By the tails of the outputs of a Gaussian posterior.

    Parameters
    ----------
    typical : estimates of medians and standard deviations, where the search starts; nothing rests on them
    """

    tails: TailBounds
    typical: _Typical

    name: ClassVar[str] = "tails"

    def sides(self, lower: Tensor, upper: Tensor) -> Tensor:
        """See `MedianSource`."""
        center = (lower + upper) / 2
        ends = torch.stack([self.typical.median(x) for x in (center, lower, upper)])
        middle = torch.cat([ends[0], -ends[0]], -1)
        step = self.typical.spread(center) + (ends - ends[0]).abs().amax(0)
        step = (0.1 * step + 1e-9 * (1 + ends[0].abs())).repeat(1, 2)
        return self._search(lower, upper, middle, step)

    def _search(self, lower: Tensor, upper: Tensor, start: Tensor, step: Tensor) -> Tensor:
        """(P, 2 m): the best v found below `start`."""
        good, bad, away = torch.full_like(start, -torch.inf), start, step
        for _ in range(DOUBLINGS):
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
        for _ in range(HALVINGS if len(row) else 0):
            tried = (low + high) / 2
            proved = self._proved(lower[row], upper[row], column, tried, start.shape[1] // 2)
            low, high = torch.where(proved, tried, low), torch.where(proved, high, tried)
        return good.index_put((row, column), low)

    def _proved(self, lower: Tensor, upper: Tensor, side: Tensor, value: Tensor, outputs: int) -> Tensor:
        """(M,): P(some x has +-f_j(x) <= value) < 1/2."""
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
        return self.tails.item_failures(problem) < 0.5


class _Typical(Protocol):
    """Estimates, (P, m) each."""

    def median(self, x: Tensor) -> Tensor:
        """Of the outputs at points (P, n)."""
        ...

    def spread(self, x: Tensor) -> Tensor:
        """Their standard deviations."""
        ...
