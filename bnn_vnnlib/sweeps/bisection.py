"""The largest radius that is certified and the smallest that is certified to fail, of many inputs at once.

A certificate at radius r holds at every smaller radius and a violation at every larger one, because the balls are
nested (`balls`). The bounds that give certificates need not be monotone: a proof can fail at one radius and succeed
at a larger one. So what is certified is used at once for all smaller radii, and a failed proof only steers the search:
a bracket is [certified, a radius at which the proof failed], halved until it is narrower than the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.network.network import Floats

Index = NDArray[np.int64]
Probe = Callable[[Index, Floats], tuple[NDArray[np.bool_], Floats]]
"""rows (K,) and radii (K,) -> certified robust (K,), and the radius from which on it is certified to fail, or inf."""

STATE = ("robust", "failed", "broken", "spared")

NOTHING = -1.0
"""Stands for a radius that is below all."""

FINEST = 2.0**-40
"""Tolerances below this share of the largest radius would ask for radii that floats do not tell apart."""


@dataclass(frozen=True)
class Radii:
    """largest : no radius beyond it is tried; first : the first one after 0; tolerance : width of a final bracket."""

    largest: float
    tolerance: float
    first: float | None = None

    def __post_init__(self) -> None:
        for name in ("largest", "tolerance", "first"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise OptionError(f"{name} must be a positive number, found {value}")
        if not FINEST * self.largest <= self.tolerance <= self.largest:
            raise OptionError(f"the tolerance must lie between {FINEST * self.largest:.1g} and the largest radius")
        if self.first is not None and self.first > self.largest:
            raise OptionError("the first radius exceeds the largest one")

    @property
    def start(self) -> float:
        """The first radius after 0."""
        return min(self.largest, max(self.tolerance, self.largest / 32)) if self.first is None else self.first


class Bisection:
    """One search over N inputs.

    Attributes
    ----------
    robust : (N,) the largest radius certified so far, NOTHING where not even the input itself is
    failed : (N,) the smallest one above at which neither was proved, inf
    broken : (N,) the smallest radius certified to fail, inf
    spared : (N,) the largest one below at which neither was proved, NOTHING
    rounds : probes of all inputs that were open, so far
    """

    def __init__(self, count: int, radii: Radii) -> None:
        self._radii = radii
        self.robust, self.spared = np.full(count, NOTHING), np.full(count, NOTHING)
        self.failed, self.broken = np.full(count, np.inf), np.full(count, np.inf)
        self.rounds = 0

    def run(self, probe: Probe) -> None:
        """Search until every bracket is narrow, open on its far side beyond the largest radius, or empty at 0."""
        while self.open.any():
            self.step(probe)

    def step(self, probe: Probe) -> None:
        """One probe of every input that is open."""
        index, radius = self._next()
        self.rounds += 1
        self._learn(index, radius, *probe(index, radius))

    @property
    def open(self) -> NDArray[np.bool_]:
        """(N,) whether a bracket of the input is to be probed."""
        index, _ = self._next()
        found = np.zeros(len(self.robust), bool)
        found[index] = True
        return found

    @property
    def state(self) -> dict[str, Floats]:
        """What the next step depends on; with `rounds` it is all there is to know."""
        return {name: getattr(self, name) for name in STATE}

    @classmethod
    def resumed(cls, radii: Radii, state: Mapping[str, Floats], rounds: int) -> Bisection:
        """A search that goes on."""
        search = cls(len(state[STATE[0]]), radii)
        for name in STATE:
            setattr(search, name, np.array(state[name]))
        search.rounds = rounds
        return search

    def _next(self) -> tuple[Index, Floats]:
        """One radius for each bracket that is not closed; both of an input may ask for the same."""
        below = self._between(self.robust, np.minimum(self.failed, self.broken))
        above = self._between(np.maximum(self.spared, self.robust), self.broken)
        above[above == below] = np.nan
        radius = np.concatenate([below, above])
        index = np.flatnonzero(~np.isnan(radius))
        return index % len(below), radius[index]

    def _between(self, low: Floats, high: Floats) -> Floats:
        """(N,) the next radius in each bracket, nan where it is closed."""
        radii = self._radii
        further = np.minimum(np.maximum(2 * low, radii.start), radii.largest)
        further[low >= radii.largest] = np.nan
        with np.errstate(invalid="ignore"):  # inf - inf has no middle, and is not used
            inside = np.where(high - low > radii.tolerance, (np.maximum(low, 0) + high) / 2, np.nan)
        radius = np.where(np.isinf(high), further, inside)
        radius[low == NOTHING] = 0.0
        radius[high <= 0] = np.nan
        return radius

    def _learn(self, index: Index, radius: Floats, robust: NDArray[np.bool_], broken: Floats) -> None:
        fails = np.isfinite(broken)
        vain = ~robust & ~fails  # what is decided is in `robust` or `broken`: the brackets are the same until then
        np.maximum.at(self.robust, index[robust], radius[robust])
        np.minimum.at(self.failed, index[vain], radius[vain])
        np.minimum.at(self.broken, index[fails], broken[fails])
        np.maximum.at(self.spared, index[vain], radius[vain])
        # A proof that failed below what is proved now says nothing any more.
        self.failed[self.failed <= self.robust] = np.inf
        self.spared[self.spared >= self.broken] = NOTHING
        again = (self.spared == NOTHING) & np.isfinite(self.broken) & (self.broken > 0)
        self.spared[again] = np.maximum(self.robust[again], 0.0)
