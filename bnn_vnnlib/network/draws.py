"""Networks drawn from a posterior by number: draw i is a function of (seed, i) alone, and known up to a radius.

Nothing is assumed but fair bits, which a counter-based generator (Philox) gives: draw i takes the words i W .. (i + 1)W
of its stream, whatever else is drawn. What the bits leave open, and what rounding loses, is a box of weights that holds
the drawn network; what is proved of all of the box is proved of that network.

1. A standard normal number takes two words. Its tail U = P(|Z| > |z|) is uniform on (0, 1). The number g of leading
   zeros of the first word has P(g) = 2^-(g + 1), and is its exponent; 52 bits of the second are its digits, one is the
   sign of z. So U lies in [lo, hi), two neighbouring floats, and given the bits U is uniform there. A draw with more
   than 52 leading zeros (2^-53 for each number) is not known.
2. |z| is decreasing in U: 2 Phi(-|z|) = U. `_normal` takes z' = -ndtri(lo / 2) and checks, with bounds on Phi that pay
   for erfc, that Phi(-(z' - r)) >= hi / 2 and Phi(-(z' + r)) <= lo / 2 for r = 2^-39, so that ||z| - z'| <= r. Where
   the check fails, or z' > LARGEST_NORMAL, the draw is not known. A draw that is not known is one of which nothing is
   proved.
3. A Gaussian weight is mu + A z, A linear. Its centre is computed from z', and
   |w - centre| <= |A| r + gamma (|mu| + |A| |z'|) <= |A| (r + gamma LARGEST_NORMAL) + gamma |mu|,
   with gamma for as many roundings as a sum of products of that length has. That does not depend on the draw: one
   radius serves all. A weight without noise is mu, exactly.
4. Components and weight samples come by their probabilities, which are taken as the rational numbers p_s / sum p. One
   word k stands for U in [k, k + 1) / 2^64; the draw is s if all of that lies in [c_s, c_(s + 1)), c the exact sums,
   and is not known where it does not.
5. A function that draws is asked for 64 networks at a time, with a generator of (seed, i / 64): what it does with the
   bits is its own business, and its law is that of the numbers that it returns, exactly. Networks with numbers that are
   not finite are not known.
6. An entry of a mask of dropout takes one word k for U in [k, k + 1) / 2^64: it is 0 where U < ratio, and the draw is
   not known where the ratio lies inside. Else it is 1 / (1 - ratio), which float64 has up to two roundings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Flags, Floats, Ints
from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.gaussian.normal import cdf_above, cdf_below
from bnn_vnnlib.network.families import kronecker_noise
from bnn_vnnlib.network.network import (
    DropoutMasks,
    Gaussian,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Mixture,
    Network,
    Posterior,
    Sampler,
    WeightSamples,
)
from bnn_vnnlib.rounding import SMALL, UNIT, gamma

if TYPE_CHECKING:
    from torch import Tensor

Words = NDArray[np.uint64]

GENERATOR = "Philox4x64-10"
"""Name of the generator that the bits come from."""

LARGEST_NORMAL = 9.25
"""Largest |z| of a draw that is known."""

_RADIUS = 2.0**-39
"""r, of the check; what is claimed is larger by the rounding of z' + r and z' - r, and of a factor of z that a network
may have (`pairs`)."""

_CLAIMED = _RADIUS * (1 + 2.0**-8)

_BLOCK = 4
"""Words that the generator makes at a time."""

_CACHED = 2**14
"""Normal numbers that are made at a time: what they need lies in the processor's cache."""

_TOGETHER = 64
"""Draws that a function is asked for at a time."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """K drawn networks.

    centers : {source: (K, *shape)} float64; radius : {source: (*shape)}, common to all; where it is missing, 0
    known (K,) : of the others nothing is known, whatever their centers
    """

    centers: dict[str, Tensor]
    radius: dict[str, Tensor]
    known: Tensor


@dataclass(frozen=True, eq=False)
class Draws:
    """The draws of a posterior with a seed.

    Attributes
    ----------
    network, posterior : what is drawn from
    seed : a whole number, not negative
    stream : draws of different streams have nothing to do with each other: 0 for those that are counted, others for
        draws that choose what is counted, and for every part of the posterior that is drawn by itself
    """

    network: Network
    posterior: Posterior
    seed: int
    stream: int = 0

    def take(self, index: Ints) -> Drawn:
        """Draws by their numbers (K,)."""
        if isinstance(self.posterior, Sampler):
            return self._sampled(self.posterior, index)
        words = self._words(index)
        match self.posterior:
            case DropoutMasks(ratios=ratios):
                return self._masked(ratios, words)
            case WeightSamples():
                chosen, known = self._choice.of(words[:, 0])
                centers = {name: torch.tensor(v) for name, v in self.posterior.drawn(chosen).items()}
                return Drawn(centers, {}, torch.as_tensor(known))
            case Mixture(components=components):
                chosen, known = self._choice.of(words[:, 0])
                z, valid = _normal(words[:, 1:])
                names = list(components[0].means)
                centers = {name: z.new_empty(len(index), *np.shape(components[0].means[name])) for name in names}
                for position, law in enumerate(self._laws):
                    (places,) = np.nonzero(chosen == position)
                    for name, values in law.centers(z[places], names).items():
                        centers[name][places] = values
                return Drawn(centers, self.radius, torch.as_tensor(known) & valid)
            case _:
                z, valid = _normal(words)
                (law,) = self._laws
                return Drawn(law.centers(z, list(self.radius)), self.radius, valid)

    def _masked(self, ratios: Mapping[str, float], words: Words) -> Drawn:
        """Masks of dropout by their ratios (step 6)."""
        centers, radius, known, start = {}, {}, np.ones(len(words), np.bool_), 0
        for name, ratio in ratios.items():
            shape = self.network.tensors[name].shape
            own = words[:, start : start + math.prod(shape)]
            start += math.prod(shape)
            end, kept = 2**64 * Fraction(ratio), 1.0 / (1.0 - ratio)
            floor = np.uint64(math.floor(end))
            if end.denominator != 1:
                known &= (own != floor).all(1)
            centers[name] = torch.as_tensor(np.where(own >= floor, kept, 0.0)).reshape(-1, *shape)
            exact = Fraction(kept) * (1 - Fraction(ratio)) == 1
            radius[name] = torch.full(shape, 0.0 if exact else 4 * UNIT * kept, dtype=torch.float64)
        return Drawn(centers, radius, torch.as_tensor(known))

    def _sampled(self, posterior: Sampler, index: Ints) -> Drawn:
        """What the function of a `Sampler` draws, by numbers (K,) of draws (step 5)."""
        centers: dict[str, list[Tensor]] = {name: [] for name in posterior.names}
        blocks, place = np.unique(index // _TOGETHER, return_inverse=True)
        for block in blocks.tolist():
            bits = np.random.SeedSequence([self.seed, self.stream, block])
            found = posterior.draw(_TOGETHER, np.random.Generator(np.random.Philox(bits)))
            if set(found) != set(posterior.names):
                raise PosteriorError(
                    f"the posterior's function draws {sorted(found)}, expected {sorted(posterior.names)}"
                )
            for name, values in found.items():
                drawn = torch.as_tensor(np.asarray(values, np.float64))
                if drawn.shape != (_TOGETHER, *self.network.tensors[name].shape):
                    expected = (_TOGETHER, *self.network.tensors[name].shape)
                    told = f"the posterior's function draws shape {tuple(drawn.shape)}, expected {expected}"
                    raise PosteriorError(told, node=name)
                centers[name].append(drawn)
        rows = torch.as_tensor(place * _TOGETHER + index % _TOGETHER)
        every = {name: torch.cat(parts)[rows] for name, parts in centers.items()}
        finite = [values.isfinite().flatten(1).all(1) for values in every.values()]
        return Drawn(every, {}, torch.stack(finite).all(0))

    @cached_property
    def numbers(self) -> int:
        """float64 numbers that a draw consists of."""
        if isinstance(self.posterior, Sampler):
            return sum(self.network.tensors[name].size for name in self.posterior.names)
        if isinstance(self.posterior, WeightSamples):
            return sum(math.prod(values.shape[1:]) for values in self.posterior.stored.values())
        return max(self._width, sum(radius.numel() for radius in self.radius.values()))

    @cached_property
    def radius(self) -> dict[str, Tensor]:
        """{source: (*shape)}: of a mixture the largest among the components."""
        found: dict[str, Tensor] = {}
        for law in self._laws:
            for name, radius in law.radius().items():
                found[name] = torch.maximum(found[name], radius) if name in found else radius
        return found

    @cached_property
    def _choice(self) -> _Choice:
        if not isinstance(self.posterior, Mixture | WeightSamples):
            raise TypeError("only mixtures and weight samples have probabilities")
        return _Choice(self.posterior.probabilities)

    @cached_property
    def _laws(self) -> list[_Law]:
        match self.posterior:
            case WeightSamples() | Sampler() | DropoutMasks():
                return []
            case Mixture(components=components):
                return [_Law(component.means, component.posterior) for component in components]
            case gaussian:
                return [_Law(self.network.tensors, gaussian)]

    @cached_property
    def _width(self) -> int:
        """Words of a draw, whole blocks."""
        chosen = isinstance(self.posterior, Mixture | WeightSamples)
        if isinstance(self.posterior, DropoutMasks):
            return -(-sum(self.network.tensors[name].size for name in self.posterior.ratios) // _BLOCK) * _BLOCK
        used = chosen + 2 * max((law.size for law in self._laws), default=0)
        return -(-max(used, 1) // _BLOCK) * _BLOCK

    def _words(self, index: Ints) -> Words:
        """(K, words); draws that follow each other are made together."""
        key = np.random.SeedSequence([self.seed, self.stream]).generate_state(2, np.uint64)
        found = [np.zeros((0, self._width), np.uint64)]
        for run in np.split(index, np.flatnonzero(np.diff(index) != 1) + 1):
            if len(run):
                generator = np.random.Philox(key=key, counter=int(run[0]) * self._width // _BLOCK)
                found.append(generator.random_raw(len(run) * self._width).reshape(len(run), self._width))
        return np.concatenate(found)


class _Law:
    """A Gaussian as means and a linear map of standard normal numbers; size : of them."""

    def __init__(self, means: Mapping[str, Floats], posterior: Gaussian) -> None:
        self._means, self._posterior, self.size = means, posterior, 0

        def ones(*shape: int) -> Tensor:
            self.size += math.prod(shape)
            return torch.ones(1, *shape, dtype=torch.float64)

        # |A| 1, and the roundings of a sum of products of that length
        self._size = {name: values[0] for name, values in kronecker_noise(_absolute(posterior), ones).items()}
        self._lost = 4 * gamma(_terms(posterior))

    def centers(self, z: Tensor, names: list[str]) -> dict[str, Tensor]:
        """{source: (K, *shape)} of those names, by numbers z (K, >= size)."""
        start = 0

        def taken(*shape: int) -> Tensor:
            nonlocal start
            start += math.prod(shape)
            return z[:, start - math.prod(shape) : start].reshape(-1, *shape)

        parts = kronecker_noise(self._posterior, taken)
        found = {name: torch.as_tensor(self._means[name], dtype=torch.float64) for name in names}
        return {
            name: mean + parts[name].reshape(-1, *mean.shape) if name in parts else mean.expand(len(z), *mean.shape)
            for name, mean in found.items()
        }

    def radius(self) -> dict[str, Tensor]:
        """{source: (*shape)}; 0 where a weight has no noise."""
        found = {}
        for name, size in self._size.items():
            mean = torch.as_tensor(self._means[name], dtype=torch.float64)
            size = size.reshape(mean.shape)
            total = size * (_CLAIMED + self._lost * LARGEST_NORMAL) * (1 + self._lost) + 4 * UNIT * mean.abs() + SMALL
            # a product of Kronecker factors may have underflowed to 0; sums of sizes do not
            found[name] = total if isinstance(self._posterior, GaussianKron) else torch.where(size > 0, total, 0.0)
        return found


def _absolute(posterior: Gaussian) -> Gaussian:
    """The Gaussian with the absolute values of all its factors; its variances are as they were."""
    match posterior:
        case GaussianDiagonal():
            return posterior
        case GaussianFull(factors=factors):
            return GaussianFull({name: np.abs(factor) for name, factor in factors.items()})
        case GaussianLowRank(factors=factors, variances=variances):
            return GaussianLowRank({name: np.abs(factor) for name, factor in factors.items()}, variances)
        case GaussianKron(layers=layers):
            return GaussianKron(
                tuple(
                    KronLayer(one.weight, np.abs(one.left), np.abs(one.right), one.spectrum, one.bias, one.bias_axis)
                    for one in layers
                )
            )


def _terms(posterior: Gaussian) -> int:
    """Roundings behind an entry of A z, at most: of a root, of products, and of sums."""
    match posterior:
        case GaussianDiagonal():
            return 4
        case GaussianFull() | GaussianLowRank():
            return posterior.rank + 8
        case GaussianKron(layers=layers):
            return max(layer.left.shape[1] + layer.right.shape[1] for layer in layers) + 8


def _normal(words: Words) -> tuple[Tensor, Tensor]:
    """z' (K, words / 2), and which of the K draws are known (steps 1 and 2)."""
    half = words.shape[1] // 2
    exponent, digits = (words[:, part : part + half].reshape(-1) for part in (0, half))
    z = torch.empty(len(words) * half, dtype=torch.float64)
    sure = torch.empty(len(z), dtype=torch.bool)
    for start in range(0, len(z), _CACHED):
        part = slice(start, start + _CACHED)
        z[part], sure[part] = _cells(exponent[part], digits[part])
    return z.reshape(-1, half), sure.reshape(-1, half).all(1)


def _cells(exponent: Words, digits: Words) -> tuple[Tensor, Tensor]:
    """z' (P,) of two words each, and which of them are known."""
    leading = exponent >> np.uint64(11)  # 53 bits, which a float holds
    zeros = 53 - np.frexp(leading.astype(np.float64))[1]
    fraction = 1.0 + (digits >> np.uint64(12)).astype(np.float64) * 2.0**-52
    low = torch.as_tensor(np.ldexp(fraction, -(zeros + 1)))
    high = torch.nextafter(low, low.new_tensor(torch.inf))
    z = -torch.special.ndtri(low / 2)
    sure = (cdf_below(_RADIUS - z) >= high / 2) & (cdf_above(-(z + _RADIUS)) <= low / 2) & (z <= LARGEST_NORMAL)
    sure &= torch.as_tensor(leading > 0)
    negative = torch.as_tensor((digits & np.uint64(1)).astype(np.bool_))
    return torch.where(negative, -z, z), sure


class _Choice:
    """Positions drawn by their probabilities (step 4)."""

    def __init__(self, probabilities: Floats) -> None:
        shares = [Fraction(value) for value in np.asarray(probabilities, np.float64).tolist()]
        sums = list(itertools.accumulate(shares))
        ends = [2**64 * part / sums[-1] for part in sums[:-1]]  # 2^64 c_1, 2^64 c_2, ...
        self._floors = np.array([min(math.floor(end), 2**64 - 1) for end in ends], dtype=np.uint64)
        self._whole = np.array([end.denominator == 1 and end < 2**64 for end in ends], dtype=np.bool_)

    def of(self, words: Words) -> tuple[Ints, Flags]:
        """(K,) positions, and which of them are known: not where a word is the floor of an end that is not whole."""
        index = np.searchsorted(self._floors, words, side="right")
        known = np.ones(len(words), dtype=np.bool_)
        if len(self._floors):
            last = np.maximum(index - 1, 0)
            known = (index == 0) | (self._floors[last] != words) | self._whole[last]
        return index.astype(np.int64), known
