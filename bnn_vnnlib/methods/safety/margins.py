"""The search for the margin of boxes centred at the posterior mean: the certified set shrinks as the mass grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.problem.mass import centred_mass, margin_of
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.system.clock import Deadline

MASSES = (0.01, 0.03, 0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12)
"""Masses of the centred boxes that are tried before the margin is refined between two of them."""

REFINEMENTS = 5
"""Bisections of the margin between the last certified and the first failed one."""

Certifier = Callable[[Tensor, Tensor], Tensor]
"""(items, scale (1, len(items))) -> which of the items are certified on the box of that margin."""


def mass_at(margin: Tensor, count: int) -> Tensor:
    """Lower bound on the mass of centred boxes of `count` weights; 0 where no margin was certified (nan)."""
    lower, _ = centred_mass(margin.nan_to_num(0.0).cpu().numpy(), count)
    return torch.where(margin.isnan(), 0.0, torch.as_tensor(lower, device=margin.device))


@dataclass(frozen=True, eq=False)
class MarginSearch:
    """Finds the largest certified margin of each instance; each probe is itself a proof, so any order is sound.

    Attributes
    ----------
    problem : the instances
    count : number of random weights
    margin : the only margin to try, or None
    deadline : when it has passed, what is certified so far is returned
    """

    problem: Problem
    count: int
    margin: float | None
    deadline: Deadline

    def largest(self, holds: Certifier, among: Tensor, *, first: float, every: bool) -> tuple[Tensor, Tensor]:
        """Margins (I,), nan where nothing was certified, and one certified item (I,) of each instance.

        Parameters
        ----------
        among : (I,) the instances that are worth a search
        first : the mass to try first; then the largest or the smallest one, then bisection
        every : an instance needs all of its items, else one
        """
        problem = self.problem
        margins = self._grid(among.device)
        last = len(margins) - 1
        low = torch.full(among.shape, -1, dtype=torch.int64, device=among.device)
        high = torch.where(among, last + 1, 0)
        item = torch.zeros_like(low).scatter(0, problem.instance, torch.arange(len(problem), device=among.device))
        start = min(int(np.searchsorted(MASSES, first)), last)
        probe, opening = torch.full_like(low, start), True
        while bool((high - low > 1).any()):
            active = high - low > 1
            if self.deadline.passed:
                break
            good, item = self._probe(holds, margins[probe], active, item, every)
            low, high = torch.where(active & good, probe, low), torch.where(active & ~good, probe, high)
            probe = ((low + high) // 2).clamp(0, last)
            if opening:  # most instances are certified at every margin or at none
                probe, opening = torch.where(good, last, 0), False
        best = torch.where(low >= 0, margins[low.clamp(min=0)], torch.nan)
        return self._refine(holds, margins, low, best, item, among, every) if last > 0 else (best, item)

    def _refine(
        self, holds: Certifier, margins: Tensor, low: Tensor, best: Tensor, item: Tensor, among: Tensor, every: bool
    ) -> tuple[Tensor, Tensor]:
        """Bisect between the grid's neighbours, where the mass is not known to be 1 already."""
        top = margins[(low + 1).clamp(max=len(margins) - 1)]
        active = among & (low < len(margins) - 1) & (mass_at(best, self.count) < 1 - 1e-6)
        floor = best.nan_to_num(0.0)
        for _ in range(REFINEMENTS):
            if not bool(active.any()):
                break
            middle = (floor + top) / 2
            if self.deadline.passed:
                break
            good, item = self._probe(holds, middle, active, item, every)
            best, floor = torch.where(good, middle, best), torch.where(good, middle, floor)
            top = torch.where(good, top, middle)
        return best, item

    def _grid(self, device: torch.device) -> Tensor:
        if self.margin is not None:
            return torch.tensor([self.margin], dtype=torch.float64, device=device)
        if self.count == 0:
            return torch.zeros(1, dtype=torch.float64, device=device)
        return torch.as_tensor(margin_of(np.array(MASSES), self.count) * (1 + 1e-9), device=device)

    def _probe(
        self, holds: Certifier, margin: Tensor, active: Tensor, item: Tensor, every: bool
    ) -> tuple[Tensor, Tensor]:
        """(I,) certified at these margins (of the active ones), and the certified items."""
        problem = self.problem
        index = torch.nonzero(active[problem.instance])[:, 0]
        owner = problem.instance[index]
        good = holds(index, margin[owner][None])
        total = torch.zeros_like(active, dtype=torch.int64).scatter_add(0, owner, good.to(torch.int64))
        needed = torch.zeros_like(total).scatter_add(0, owner, torch.ones_like(owner))
        certified = (total == needed) if every else (total > 0)
        return certified & active, item.scatter(0, owner[good], index[good])
