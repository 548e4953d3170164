"""A posterior in the layout of other tensors, to which another tool has moved the entries of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bnn_vnnlib.errors import PosteriorError, UnsupportedError
from bnn_vnnlib.model import (
    Component,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    Mixture,
    Posterior,
    WeightSamples,
)
from bnn_vnnlib.network.network import Gaussian
from bnn_vnnlib.posteriors.fingerprints import Fingerprints, Places
from bnn_vnnlib.signature import Floats


@dataclass(frozen=True, eq=False)
class Moves:
    """Where the entries went.

    Attributes
    ----------
    marks : of the old tensors
    found : new tensor -> which mark each of its entries is, -1 for entries that are deterministic
    own : new tensor -> its numbers
    """

    marks: Fingerprints
    found: Mapping[str, Places]
    own: Mapping[str, Floats]

    def tensors(self, old: Mapping[str, Floats]) -> dict[str, Floats]:
        """Numbers that are 0 for what is deterministic or not listed."""
        joined = np.append(self.marks.joined(self._filled(old)), 0.0)  # -1 is the last
        return {name: joined[places] for name, places in self.found.items()}

    def rows(self, old: Mapping[str, Floats]) -> dict[str, Floats]:
        """`tensors` of each of S samples: arrays (S, *shape)."""
        count = len(next(iter(old.values())))
        each = [self.tensors({name: values[i] for name, values in old.items()}) for i in range(count)]
        return {name: np.array([tensors[name] for tensors in each]) for name in self.found}

    def means(self, old: Mapping[str, Floats]) -> dict[str, Floats]:
        """Values of weights (.., *shape): what is deterministic keeps its own."""
        found = self.tensors(old)
        return {name: np.where(places >= 0, found[name], self.own[name]) for name, places in self.found.items()}

    @property
    def unchanged(self) -> bool:
        """Every tensor is where and as it was."""
        return set(self.found) == set(self.marks.spans) and all(
            places.shape == shape and np.array_equal(places.reshape(-1), start + np.arange(places.size))
            for name, places in self.found.items()
            for start, shape in [self.marks.spans[name]]
        )

    def _filled(self, old: Mapping[str, Floats]) -> dict[str, Floats]:
        return {name: old[name] if name in old else np.zeros(shape) for name, (_, shape) in self.marks.spans.items()}


def moved(posterior: Posterior, moves: Moves) -> Posterior:
    """The posterior in the new layout; entries that were not marked are deterministic.

    Raises
    ------
    UnsupportedError : Kronecker factors, unless nothing moved: they are tied to rows and columns
    """
    match posterior:
        case WeightSamples(probabilities=weights):
            each = [
                moves.means({name: values[0] for name, values in posterior.drawn(slice(i, i + 1)).items()})
                for i in range(len(weights))
            ]
            return WeightSamples({name: np.array([tensors[name] for tensors in each]) for name in moves.found}, weights)
        case Mixture(components=components, probabilities=weights):
            parts = (Component(moves.means(part.means), _gaussian(part.posterior, moves)) for part in components)
            return Mixture(tuple(parts), weights)
        case _:
            return _gaussian(posterior, moves)


def _gaussian(posterior: Gaussian, moves: Moves) -> Gaussian:
    match posterior:
        case GaussianDiagonal(variances=variances):
            return GaussianDiagonal(moves.tensors(variances))
        case GaussianLowRank(factors=factors, variances=variances):
            return GaussianLowRank(moves.rows(factors), moves.tensors(variances))
        case GaussianFull(factors=factors):
            return GaussianFull(moves.rows(factors))
        case GaussianKron():
            if moves.unchanged:
                return posterior
            message = "the tool moves entries of weights, and their Kronecker factors cannot follow"
            raise UnsupportedError(f"{message}: simplify the plain network first, attach the posterior after")
    raise PosteriorError("a family that cannot be moved")
