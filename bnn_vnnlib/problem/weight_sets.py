"""From a posterior to sets of weights that the engine can bound a network over, and the posterior mass of such sets.

1. Posterior mass of weight boxes and of their unions, and expectations by layers of boxes (`layered_lower`). Two
families of boxes are used. *Centred* boxes have the posterior mean as center and a margin in standard deviations: they
are nested, so a union is its largest member. Whatever the correlations, a centred box of marginal deviations has at
least the mass that it would have of independent weights (Sidak 1967), so that lower bounds serve every Gaussian.
*Scattered* boxes of independent weights have sampled centers (the method of Wicker et al.): they may overlap, and
unions are taken exactly by inclusion-exclusion over intersections (an intersection of boxes is a box) while they are
few, else bounded by the largest mass and by S1 - S2 (Bonferroni).

Rounding: `gaussian.normal` bounds the tails, and every returned mass is a lower or an upper bound as its name says.

2. The weight boxes themselves, and weight samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.gaussian.normal import cdf_above, cdf_below
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.families import marginal_variances, names_of
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, Network, Posterior, WeightSamples
from bnn_vnnlib.network.nodes import Param
from bnn_vnnlib.rounding import SPECIAL, TINY, UNIT
from bnn_vnnlib.system.memory import at_once

# 1. Posterior mass

EXACT_UNION = 10
"""Up to this many scattered boxes, all 2**K intersections are computed."""


def centred_mass(margin: Tensor, weights: int) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds on (1 - 2 Phi(-g))^n, the mass of |w - mu| <= g s in each of n independent weights.

    Computed as exp(n log1p(-2 Phi(-g))): a plain product of 5,000 factors 1 - 1e-7 would lose its digits.
    """
    if weights == 0:
        return torch.ones_like(margin), torch.ones_like(margin)
    above, below = (2 * cdf_above(-margin)).clamp(max=1.0), 2 * cdf_below(-margin)
    low, high = weights * torch.log1p(-above) * (1 + 16 * UNIT), weights * torch.log1p(-below) * (1 - 16 * UNIT)
    # masses below TINY are subnormal, where a relative error says nothing
    least, most = torch.exp(low) * (1 - 8 * UNIT) - TINY, torch.exp(high) * (1 + 8 * UNIT) + TINY
    return least.clamp(min=0.0), most.clamp(max=1.0)


def margin_of(mass: Tensor, weights: int) -> Tensor:
    """A margin whose centred box has about this mass (no guarantee: the mass is computed from the margin again)."""
    if weights == 0:
        return torch.zeros_like(mass)
    return torch.special.ndtri(-torch.expm1(torch.log(mass) / weights) / 2).abs()


@dataclass(frozen=True, eq=False)
class CentredUnion:
    """K nested boxes; lower and upper (K,) bound their masses."""

    lower: Tensor
    upper: Tensor

    def union_lower(self, member: Tensor) -> Tensor:
        """member (.., K) -> (..): lower bound on the mass of the union of the members."""
        return torch.where(member, self.lower, 0.0).amax(-1)

    def union_upper(self, member: Tensor) -> Tensor:
        """Upper bound on the mass of the union of nested boxes: member (.., K) -> (..)."""
        return torch.where(member, self.upper, 0.0).amax(-1)


@dataclass(frozen=True, eq=False)
class ScatteredUnion:
    """K boxes that may overlap.

    table_lower, table_upper (2**K,) bound the union of each subset, by its bit mask (K <= EXACT_UNION, else None);
    single_lower, single_upper (K,) bound the masses, pair_upper (K, K) the pairwise intersections (0 if unused).
    """

    table_lower: Tensor | None
    table_upper: Tensor | None
    single_lower: Tensor
    single_upper: Tensor
    pair_upper: Tensor

    def union_lower(self, member: Tensor) -> Tensor:
        """member (.., K) -> (..): lower bound on the mass of the union."""
        if self.table_lower is not None:
            return self.table_lower[_mask(member)]
        chosen = member.to(self.single_lower.dtype)
        largest = (chosen * self.single_lower).amax(-1)
        overlaps = ((chosen @ self.pair_upper) * chosen).sum(-1) / 2
        return torch.maximum(largest, (chosen * self.single_lower).sum(-1) - overlaps * (1 + SPECIAL) - SPECIAL)

    def union_upper(self, member: Tensor) -> Tensor:
        """Upper bound on the mass of the union: member (.., K) -> (..); exact, or the sum of the masses."""
        if self.table_upper is not None:
            return self.table_upper[_mask(member)]
        return torch.where(member, self.single_upper, 0.0).sum(-1).mul(1 + SPECIAL).clamp(max=1.0)


BoxUnion = CentredUnion | ScatteredUnion

Mass = Callable[[Tensor], Tensor]
"""Lower bound on the mass of a union: member (.., K) -> (..)."""


def _mask(member: Tensor) -> Tensor:
    bits = 2 ** torch.arange(member.shape[-1], device=member.device)
    return (member.to(torch.int64) * bits).sum(-1)


def scattered_union(centers: Tensor, margin: float) -> ScatteredUnion:
    """Masses of the boxes |z - center| <= margin of standardised weights; centers (K, n) in standard deviations.

    The interval of each weight is shrunk by the rounding of the standardisation before a lower bound is taken, and
    grown before an upper bound.
    """
    slack = 8 * UNIT * (centers.abs() + margin)
    low, high = centers - margin, centers + margin
    inner, outer = (low + slack, high - slack), (low - slack, high + slack)
    lower = upper = None
    pairs = centers.new_zeros(len(centers), len(centers))
    if len(centers) <= EXACT_UNION:
        lower, upper = _tables(inner, outer)
    else:
        for k in range(1, len(centers)):
            ends = torch.maximum(outer[0][k], outer[0][:k]), torch.minimum(outer[1][k], outer[1][:k])
            pairs[k, :k] = pairs[:k, k] = _box_mass(*ends)[1]
    return ScatteredUnion(lower, upper, _box_mass(*inner)[0], _box_mass(*outer)[1], pairs)


def _box_mass(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(..): bounds on prod_j (Phi(high_j) - Phi(low_j)) for ends (.., n); 0 if an interval is empty (low > high)."""
    flip = low > 0  # subtract the smaller tails
    a, b = torch.where(flip, -high, low), torch.where(flip, -low, high)
    least = torch.log((cdf_below(b) - cdf_above(a)).clamp(min=0.0)).sum(-1) * (1 + SPECIAL)
    most = torch.log((cdf_above(b) - cdf_below(a)).clamp(max=1.0)).sum(-1) * (1 - SPECIAL)
    empty = (low > high).any(-1)
    found = (torch.exp(least) * (1 - SPECIAL) - TINY).clamp(min=0.0), (torch.exp(most) * (1 + SPECIAL) + TINY)
    return found[0].masked_fill(empty, 0.0), found[1].clamp(max=1.0).masked_fill(empty, 0.0)


def _tables(inner: tuple[Tensor, Tensor], outer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """P(union of S) = sum over nonempty subsets T of S of (-1)^(|T| + 1) P(intersection of T), for all S at once.

    The sum over subsets is a zeta transform. Signs alternate, so each table uses the lower bounds of the intersections
    where the sign is positive and the upper bounds where it is negative, or the other way round.
    """
    count = len(inner[0])
    low, high = inner[0].new_zeros(2, 2**count)
    for mask in range(1, 2**count):
        members = [k for k in range(count) if mask >> k & 1]
        below = _box_mass(inner[0][members].amax(0), inner[1][members].amin(0))[0]
        above = _box_mass(outer[0][members].amax(0), outer[1][members].amin(0))[1]
        low[mask], high[mask] = (below, above) if len(members) % 2 else (-above, -below)
    subsets = torch.arange(2**count, device=low.device)
    for k in range(count):
        has = subsets[(subsets >> k) % 2 == 1]
        low[has], high[has] = low[has] + low[has - 2**k], high[has] + high[has - 2**k]
    slack = 2.0**count * 4 * UNIT
    return (low - slack).clamp(0.0, 1.0), (high + slack).clamp(0.0, 1.0)


def layered_lower(value: Tensor, mass: Mass, floor: Tensor | float) -> Tensor:
    """Lower bound on E[s] from s >= value_k on box k and s >= floor everywhere; value (.., K) -> (..).

    With the values in descending order and U_i the union of the first i boxes,
        E[s] >= floor + sum_i (value_i - value_{i+1}) P(U_i),   value_{K+1} = floor,
    by integrating P(s - floor > t) over t. Valid with any lower bounds on the P(U_i).
    """
    floor = torch.as_tensor(floor, dtype=value.dtype, device=value.device)
    value = torch.maximum(value.nan_to_num(-torch.inf), floor[..., None].expand_as(value))
    value, order = value.sort(-1, descending=True)
    steps = value - torch.cat([value[..., 1:], floor[..., None].expand_as(value[..., :1])], -1)
    rank = order.argsort(-1)
    count = value.shape[-1]
    prefix = (
        rank[..., None, :] <= torch.arange(count, device=value.device)[:, None]
    )  # (.., i, k): k among the first i + 1
    total = (steps * mass(prefix)).sum(-1)
    return floor + total - 8 * count * UNIT * (total.abs() + floor.abs() + value.abs().amax(-1))


# 2. Boxes and samples of weights

_Device = torch.device | str

_COPIES = 8
"""Arrays of the size of the weights that an engine makes of one sample, about: gathered, absolute values, gradients."""


@dataclass(frozen=True, eq=False)
class BoxFamily:
    """K weight boxes and the masses of their unions."""

    weights: WeightBoxes
    union: BoxUnion


def all_params(network: Network) -> list[Param]:
    """All parameters, node by node."""
    return [param for node in network.nodes for param in nodes.params_of(node)]


def random_sources(network: Network, posterior: GaussianDiagonal) -> list[str]:
    """Sources with a variance that some node uses; weights that nothing uses are marginalised away."""
    used = {param.source for param in all_params(network)}
    return [name for name, variance in posterior.variances.items() if name in used and (variance > 0).any()]


def random_names(network: Network, posterior: Posterior) -> list[str]:
    """Sources that a draw from any posterior may change."""
    return random_sources(network, posterior) if isinstance(posterior, GaussianDiagonal) else list(names_of(posterior))


def random_count(network: Network, posterior: Gaussian) -> int:
    """n: number of random weights that the network's output depends on, at most."""
    if not isinstance(posterior, GaussianDiagonal):
        return sum(int((spread > 0).sum()) for spread in marginal(network, posterior).spreads.values())
    names = random_sources(network, posterior)
    return int(sum(np.count_nonzero(posterior.variances[name] > 0) for name in names))


def mean_weights(network: Network, device: _Device = "cpu") -> WeightBoxes:
    """One box: the mean network itself."""
    centers = {
        name: torch.tensor(value, dtype=torch.float64, device=device)[None] for name, value in network.tensors.items()
    }
    return WeightBoxes(centers, {}, torch.zeros(1, 1, dtype=torch.float64, device=device))


def centred(network: Network, posterior: GaussianDiagonal, device: _Device = "cpu") -> WeightBoxes:
    """One box at the mean; its scale is the margin in standard deviations.

    The standard deviations are rounded up, so that the box contains |w - mu| <= margin * s exactly.
    """
    spreads = {
        name: torch.tensor(np.sqrt(posterior.variances[name]) * (1 + 4 * UNIT), dtype=torch.float64, device=device)
        for name in random_sources(network, posterior)
    }
    weights = mean_weights(network, device)
    return WeightBoxes(weights.centers, spreads, weights.scale)


def marginal(network: Network, posterior: Gaussian, device: _Device = "cpu") -> WeightBoxes:
    """One box at the mean; its spreads are the marginal standard deviations, rounded up, of any Gaussian."""
    if isinstance(posterior, GaussianDiagonal):
        return centred(network, posterior, device)
    used, weights = {param.source for param in all_params(network)}, mean_weights(network, device)
    spreads = {
        name: torch.tensor(np.sqrt(variance) * (1 + 1e-9), dtype=torch.float64, device=device).reshape(
            network.tensors[name].shape
        )
        for name, variance in marginal_variances(posterior).items()
        if name in used
    }
    return WeightBoxes(weights.centers, spreads, weights.scale)


def centred_family(
    network: Network, posterior: Gaussian, masses: Sequence[float], device: _Device, *, margin: float | None
) -> BoxFamily:
    """Nested boxes at the mean with about the given masses, or one box with the given margin.

    Of weights that depend on each other the masses are at least those, and at most 1.
    """
    count = random_count(network, posterior)
    given = torch.tensor(masses if margin is None else [margin], dtype=torch.float64, device=device)
    margins = margin_of(given, count) if margin is None else given
    least, most = centred_mass(margins, count)
    most = most if isinstance(posterior, GaussianDiagonal) else torch.ones_like(most)
    return BoxFamily(marginal(network, posterior, device).scaled(margins[:, None]), CentredUnion(least, most))


def scattered_family(
    network: Network, posterior: GaussianDiagonal, count: int, margin: float, seed: int, device: _Device = "cpu"
) -> BoxFamily:
    """Boxes around sampled weights (the method of Wicker et al.), for fidelity: their mass is tiny for many weights."""
    generator = np.random.default_rng(seed)
    boxes = centred(network, posterior, device)
    centers, standardised = dict(boxes.centers), []
    for name in random_sources(network, posterior):
        mean, deviation = network.tensors[name], np.sqrt(posterior.variances[name])
        drawn = mean + deviation * generator.standard_normal((count, *mean.shape))
        centers[name] = torch.as_tensor(drawn, device=device)
        random = deviation > 0
        standardised.append((drawn[:, random] - mean[random]) / deviation[random])
    z = np.concatenate(standardised, axis=1) if standardised else np.zeros((count, 0))
    scale = torch.full((count, 1), float(margin), dtype=torch.float64, device=device)
    return BoxFamily(
        WeightBoxes(centers, boxes.spreads, scale), scattered_union(torch.as_tensor(z, device=device), margin)
    )


@dataclass(frozen=True, eq=False)
class SampledWeights:
    """The samples of a posterior as K exact weight settings, some at a time: all at once may exceed the memory.

    posterior : as it is stored; share (K,): its probabilities, normalised to sum 1
    """

    network: Network
    posterior: WeightSamples
    share: Tensor

    @staticmethod
    def of(network: Network, posterior: WeightSamples, device: _Device = "cpu") -> SampledWeights:
        """All samples of the posterior."""
        share = torch.tensor(posterior.probabilities, dtype=torch.float64, device=device)
        return SampledWeights(network, posterior, share / share.sum())

    @property
    def count(self) -> int:
        """K, the number of samples."""
        return len(self.share)

    def parts(self, index: Tensor | None = None) -> tuple[Tensor, ...]:
        """The positions (k,) of all samples, or of those in `index`, cut into as many as memory allows at once."""
        size = sum(math.prod(values.shape[1:]) for values in self.posterior.stored.values())
        index = torch.arange(self.count) if index is None else index
        return index.split(at_once(_COPIES * size))

    def boxes(self, index: Tensor) -> WeightBoxes:
        """Some of the samples, by their positions (k,)."""
        return self._all if len(index) == self.count and len(self.parts()) == 1 else self._boxes(index)

    @cached_property
    def _all(self) -> WeightBoxes:
        return self._boxes(torch.arange(self.count))

    def _boxes(self, index: Tensor) -> WeightBoxes:
        device = self.share.device
        drawn = {name: torch.tensor(v, device=device) for name, v in self.posterior.drawn(index.cpu().numpy()).items()}
        fixed = {
            name: torch.tensor(values, dtype=torch.float64, device=device)[None]
            for name, values in self.network.tensors.items()
            if name not in drawn
        }
        return WeightBoxes({**fixed, **drawn}, {}, torch.zeros(len(index), 1, dtype=torch.float64, device=device))


def over_parts(weights: WeightBoxes | SampledWeights, bound: Callable[[WeightBoxes], Tensor]) -> Tensor:
    """What `bound` gives for K weight boxes (K or 1, ..); for samples (K, ..), part by part."""
    if isinstance(weights, WeightBoxes):
        return bound(weights)
    found = ((index, bound(weights.boxes(index))) for index in weights.parts())
    return torch.cat([value.expand(len(index), *value.shape[1:]) for index, value in found])
