"""Is every weight a Gaussian of its own? Found by evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.model.recovery.diagnosis import NotRecoverable
from bnn_vnnlib.model.recovery.draws import Draws
from bnn_vnnlib.network.network import Floats

_SEED, _TRIALS = 0x5EED, 4
_EXACT = 1e-10
"""Relative to |mean| + sd: what counts as rounding of float64; a thousandth of the float32 in which files are kept."""


@dataclass(frozen=True, eq=False)
class Marginals:
    """Weights w_j = mean_j + slope_j z_source(j), all of them in one vector.

    Attributes
    ----------
    mean, slope : (m,)
    source : (m,) which noise variable; -1 where the slope is 0
    """

    mean: Floats
    slope: Floats
    source: NDArray[np.int64]

    @property
    def shared(self) -> NDArray[np.bool_]:
        """(m,) entries whose noise variable moves another entry as well: they are not independent."""
        moved = self.source[self.source >= 0]
        counts = np.bincount(moved, minlength=1)
        return (self.source >= 0) & (counts[self.source] > 1)


def marginals(draws: Draws) -> Marginals:
    """Mean and standard deviation of every entry, provided that each is an affine function of one noise variable.

    Method: with w(z) the entries as a function of all noise variables, mean = w(0) and slope = w(1, ..., 1) - w(0). If
    entry j depends on variable i alone, w(b_k) - w(0) is slope_j where bit k of i is set and 0 otherwise, for b_k the
    k-th bits of all positions: log2 evaluations name i. That this holds for every z is then checked at random z of
    several sizes: an entry that depends on more variables, or not affinely, fails there with probability 1.

    Raises
    ------
    NotRecoverable : "correlated" (affine in several variables), "not gaussian" (not affine)
    """
    mean = flat(draws.at_zero)
    size = draws.size
    slope = flat(draws(np.ones(size))) - mean
    slope[np.abs(slope) <= _EXACT * np.abs(mean)] = 0.0
    source = np.zeros(len(mean), np.int64)
    for bit in range(max(size - 1, 0).bit_length()):
        change = flat(draws(((np.arange(size) >> bit) & 1).astype(np.float64))) - mean
        source |= (np.abs(change - slope) < np.abs(change)).astype(np.int64) << bit
    source[slope == 0] = -1
    found = Marginals(mean, slope, source)
    _check(draws, found)
    return found


def flat(values: list[NDArray]) -> Floats:
    """All entries of all values, one after the other."""
    return np.concatenate([np.asarray(value, np.float64).reshape(-1) for value in values])


def _check(draws: Draws, found: Marginals) -> None:
    generator = np.random.default_rng(_SEED)
    for scale in np.geomspace(0.3, 8, _TRIALS):
        z = scale * generator.standard_normal(draws.size)
        own = np.where(found.source >= 0, z[found.source], 0.0) if draws.size else np.zeros_like(found.mean)
        room = _EXACT * (np.abs(found.mean) + (1 + np.abs(own)) * np.abs(found.slope))
        wrong = ~(np.abs(flat(draws(z)) - (found.mean + found.slope * own)) <= room)
        if wrong.any():
            raise _explained(draws, found, generator, int(wrong.sum()))


def _explained(draws: Draws, found: Marginals, generator: np.random.Generator, wrong: int) -> NotRecoverable:
    """Affine in several variables, or not affine at all."""
    a, b = (generator.standard_normal(draws.size) for _ in range(2))
    w_a, w_b, both = (flat(draws(z)) for z in (a, b, a + b))
    bend = both - w_a - w_b + found.mean
    size = np.abs(w_a) + np.abs(w_b) + np.abs(both) + np.abs(found.mean)
    node = ", ".join(draws.names)
    if (np.abs(bend) <= 1e3 * _EXACT * size).all():
        return correlated(node, wrong, len(found.mean))
    return NotRecoverable("not gaussian", _NOT_GAUSSIAN, node=node)


def correlated(node: str, entries: int, total: int) -> NotRecoverable:
    """The refusal of a full (or low-rank) covariance."""
    return NotRecoverable("correlated", _CORRELATED.format(entries=entries, total=total), node=node)


_CORRELATED = (
    "{entries} of {total} weights share Gaussian noise with others: the posterior has a full (or low-rank) covariance, "
    "which this version cannot keep, and independent weights of the same variance would be another posterior. Export a "
    "posterior of independent weights, or draw samples and attach those"
)
_NOT_GAUSSIAN = (
    "the weights are no affine function of Gaussian noise (a log-normal, a mixture, a clipped Gaussian, ...): not a "
    "Gaussian posterior. Draw samples and attach those"
)
