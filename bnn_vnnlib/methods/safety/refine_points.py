"""Upper bounds on P_safe from more points: where most networks of the posterior violate, and not the mean one alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.methods.safety.by_boxes import ROUNDED_ZERO, CentredBoxes
from bnn_vnnlib.methods.safety.large_variance.rows import LARGE_VARIANCE, SPARE, LargeVarianceBounds
from bnn_vnnlib.methods.safety.refine import owned, rarely
from bnn_vnnlib.methods.safety.safety import SafetyBounds, Task, from_masses, last_of_each, nothing_known
from bnn_vnnlib.methods.safety.tails import TAILS, TailBounds
from bnn_vnnlib.network.families import names_of, sample
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.problem.problem import Problem, feasible, point_box

PIECES = 3
"""Pieces where no time limit is given."""

NETWORKS, FEWEST, WEIGHTS = 64, 8, 2**20
"""Networks that are sampled to choose points by: the most, the least, and how many weights they have in all."""

ALONE = 8
"""Of these, networks that are attacked each for itself."""

STARTS = 16
"""Starting points of another attack on the mean network, the best of as many times as many."""

ITEMS = 64
"""Items of one instance that are attacked, at most: those nearest to a violation."""

CHUNK = 2**8
"""Items attacked and bounded between two looks at the clock."""

LATE = 4
"""Pieces without the bounds for large variances, if items take them seconds, several instances are open and time is
limited: then they look at the most promising instance only.
"""

SLIGHT = 1e-12
"""Of the values of the attack, where masses are ranked: they only decide between equal ones."""


class MorePoints:
    """A stage (see `refine`).

    First, from each known point the one that most sampled networks violate. Then the same from points of single
    networks and of the predictive one, the best of which is taken. Then again from where this led, with other starts.

    Parameters
    ----------
    task : its attacked points are where the search begins
    tails, boxes, large_variance : what bounds the mass that violates at a point; any may be missing. The last one is
        dear: it looks at one item of an instance in a piece, the one with the largest mass by tails, then the least
        value
    """

    def __init__(
        self, task: Task, tails: TailBounds | None, boxes: CentredBoxes | None,
        large_variance: LargeVarianceBounds | None = None,
    ) -> None:  # fmt: skip
        points, values, _ = task.attacked
        self._task, self._bounds, self._problem, self._deadline = task, task.bounds, task.problem, task.deadline
        self._points, self._values = points.clone(), values
        self._tails, self._boxes, self._large_variance = tails, boxes, large_variance
        self._mass = torch.zeros(len(values), dtype=torch.float64, device=points.device)
        self._settings = replace(task.attack, restarts=4, pool=1)
        self._pieces = 0

    def due(self, turn: int) -> bool:
        """Less and less often: what a few attacks do not find, further ones rarely do."""
        return rarely(turn)

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """New points for the items that are the nearest to a violation, and what they give."""
        if not bool(above.any()) or (self._pieces >= PIECES and self._deadline.at is None):
            return None
        index = self._nearest(above)
        piece, self._pieces = self._pieces, self._pieces + 1
        params = self._networks(piece)
        found = nothing_known(self._problem, self._points)
        for part in index.split(CHUNK):
            if self._deadline.passed:
                return found
            self._points[part] = self._attacked(part, params, piece)
            found = found.better(self._bounded(part, above))
        if self._large_variance is None:
            return found
        dear = not self._large_variance.quick and self._deadline.at is not None and int(above.sum()) > 1
        if dear and piece < LATE:
            return found
        most = 1 if dear else len(above)
        return found.better(self._by_large_variance(self._large_variance, index, above, most))

    def _by_large_variance(self, tight: LargeVarianceBounds, index: Tensor, above: Tensor, most: int) -> SafetyBounds:
        """Bounds at the most promising of the points just found, one for each instance, so many instances at most."""
        problem, points = self._problem, self._points
        found = nothing_known(problem, points)
        rank = torch.full_like(self._mass, -torch.inf)
        rank[index] = self._mass[index] - SLIGHT * self._values[index].to(rank)
        best = last_of_each(problem, torch.argsort(rank, stable=True))
        chosen = best[above & torch.isfinite(rank[best])]
        chosen = chosen[tight.pays(problem.items(chosen))] if len(chosen) else chosen
        chosen = chosen[feasible(problem.items(chosen), points[chosen])] if len(chosen) else chosen
        chosen = chosen[torch.argsort(rank[chosen], descending=True, stable=True)[:most]]
        if len(chosen) == 0:
            return found
        part = problem.items(chosen)
        mass = torch.zeros_like(self._mass)
        mass[chosen] = (tight.unsafe(part, *point_box(part, points[chosen])) - SPARE).clamp(min=0.0)
        return replace(
            found, upper=from_masses(mass[best], mass[best])[1], point=points[best], point_mass=mass[best],
        ).named(LARGE_VARIANCE)  # fmt: skip

    def _nearest(self, above: Tensor) -> Tensor:
        """Of each chosen instance the items with the least values of the attack, ITEMS at most."""
        instance = self._problem.instance
        index = owned(above, instance)
        index = index[torch.argsort(self._values[index], stable=True)]
        index = index[torch.argsort(instance[index], stable=True)]
        count = torch.bincount(instance[index], minlength=len(above))
        rank = torch.arange(len(index), device=index.device) - (count.cumsum(0) - count)[instance[index]]
        return index[rank < ITEMS]

    def _networks(self, piece: int) -> attack.Params:
        """Sampled weights, others in each piece."""
        network = self._bounds.engine.network
        size = sum(network.tensors[name].size for name in names_of(self._task.posterior))
        count = min(NETWORKS, max(FEWEST, WEIGHTS // max(size, 1)))
        generator = torch.Generator().manual_seed(self._settings.seed + piece)
        drawn = sample(network, self._task.posterior, count, generator)
        return {name: values.to(self._points.device) for name, values in drawn.items()}

    def _attacked(self, index: Tensor, params: attack.Params, piece: int) -> Tensor:
        """Points (P, n) of some items."""
        network, transform = self._bounds.engine.network, self._bounds.transform
        part, start = self._problem.items(index), self._points[index]
        settings = replace(self._settings, seed=self._settings.seed + piece)
        if piece == 1:
            few = {name: values[:ALONE] for name, values in params.items()}
            broad = replace(settings, restarts=STARTS, pool=STARTS)
            found = [
                attack.run(network, part, few, settings, transform)[0],
                attack.run(network, part, {}, broad, transform)[0],
                attack.run(network, part, params, settings, transform, "mean")[0],
            ]
            start = _best(network, part, params, torch.cat([start[None], *found]), transform)
        return attack.run(network, part, params, settings, transform, "common", start=start)[0][0]

    def _bounded(self, index: Tensor, above: Tensor) -> SafetyBounds:
        """Bounds at the points of some items."""
        problem, points = self._problem, self._points
        part, x = problem.items(index), points[index]
        usable = feasible(part, x)
        found = nothing_known(problem, points)
        if self._tails is not None:
            mass = torch.zeros_like(self._mass)
            mass[index] = torch.where(usable, self._tails.unsafe(part, *point_box(part, x)), 0.0)
            self._mass[index] = mass[index]
            best = last_of_each(problem, torch.argsort(mass, stable=True))
            found = replace(
                found, upper=from_masses(mass[best], mass[best])[1], point=points[best], point_mass=mass[best],
            ).named(TAILS.name)  # fmt: skip
        if self._boxes is not None:
            value = attack.violation(self._bounds.engine.network, part, {}, x[None, None], self._bounds.transform)
            hopeful = torch.zeros(len(problem), dtype=torch.bool, device=points.device)
            hopeful[index] = usable & (value[0, 0] <= ROUNDED_ZERO)
            found = found.better(self._boxes.unsafe(points, hopeful, above))
        return found


def _best(network: Network, problem: Problem, params: attack.Params, x: Tensor, transform: str) -> Tensor:
    """Of the points (S, N, n), for each item the one that is violated the most over all the networks."""
    with torch.no_grad():
        value = attack.violation(network, problem, params, x[None], transform, "common")[0]
    return x[value.argmin(0), torch.arange(x.shape[1], device=x.device)]
