"""P_safe with a stated confidence: every drawn network is proved safe, proved to violate, or left open.

Let Z_i say that draw i is safe on all of T, so that the Z_i are independent with mean P_safe. What the engine proves of
the weight box that holds draw i (`network.draws`) gives s_i <= Z_i <= 1 - v_i, whatever the clock did: s_i = 1 if
every item of the instance is proved safe, v_i = 1 if a point of some item is proved to violate.

1. A draw whose bits leave it open (not `known`) has s_i = v_i = 0.
2. Bounds are taken over the prefix 1..n of the order of draws (`martingale`): each side at half of delta, the lower one
   from the s_i, the upper one from the v_i. Whatever is not proved, for want of time, too, counts 0 on both sides, and
   no draw of the prefix is left out. Batches, the order of the work and a stop anywhere change what is proved, and
   nothing else. The best bound ever reached is kept.
3. An instance that is decided is not looked at any more: its n stays what it was.
4. Where some layers alone are drawn, probabilities take the place of s_i and v_i (`conditional`). In a long run of one
   instance that asks for no number of layers, a pilot looks for one that will end sooner; the draws that were counted
   stay.
5. Instances are bounded on the same draws: each holds with the stated confidence, all N together with 1 - N delta.

Time. Each batch gets a look: one pass of the engine, and an attack where that proves nothing. What stays open is left
to branch and bound, at once where there is no time limit. Where there is one, it gets as much time as all looks
took, the shortest attempt first, each twice as long as the one before. So hard draws do not keep the others waiting.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.arrays import Ints
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.martingale import LEVELS, exceeds, levels_of, lower_bounds
from bnn_vnnlib.methods.deterministic import branched
from bnn_vnnlib.methods.safety.safety import (
    CASELESS,
    DRAWN,
    NAMES,
    DrawCounts,
    SafetyBounds,
    SafetyTask,
    last_of_each,
    nothing_known,
    unsafe_items,
)
from bnn_vnnlib.methods.statistical.conditional import Conditional, Prospect, prospect
from bnn_vnnlib.methods.statistical.sampling import DrawnNetworks, Sampling
from bnn_vnnlib.network.layers import random_layers
from bnn_vnnlib.problem.problem import feasible
from bnn_vnnlib.problem.refute import refuted_cases
from bnn_vnnlib.splitting.branch import Decided
from bnn_vnnlib.system.clock import Deadline

_ATTEMPT = 0.05
"""Seconds of the first attempt of branch and bound on the draws of a batch that are open."""

_LONG, _PATIENCE = 1000, 20
"""Counted draws after which a pilot looks for a number of layers; the share of the time so far that it may take."""

_WORTH = 0.8
"""A number of layers is changed for an interval of less than this share of the width."""

_TOGETHER = 128
"""Draws of some layers at a time, at most: what bounds the rest has no use for more."""

_SHARE = 16
"""A drawn network that stays open costs a share of the bounds: less is spent on it than on the only one."""


def safety_bounds(task: SafetyTask, sampling: Sampling) -> SafetyBounds:
    """Bounds on P_safe of every instance, each with the stated confidence; certain where there is no case."""
    networks = DrawnNetworks(task.bounds.engine, task.posterior, sampling, task.problem.lower.device)
    run = _Run(task, networks)
    run.work()
    return run.found


@dataclass(order=True)
class _Waiting:
    """Draws (K,) of a batch that a look left open, and what is known of them; cost: seconds of the next attempt."""

    cost: float
    index: Ints = field(compare=False)
    known: Decided = field(compare=False)


class _Run:
    """What is known so far of I instances: counted (I,) of the prefix, safe, violating (I,) of those; lower, upper."""

    def __init__(self, task: SafetyTask, networks: DrawnNetworks) -> None:
        self._task, self._networks, self._problem = task, networks, task.problem
        problem, device = task.problem, task.problem.lower.device
        nothing = torch.zeros(problem.instances, dtype=torch.int64, device=device)
        self._counts = DrawCounts(nothing, nothing.clone(), nothing.clone())
        self._caseless = ~problem.any_item(problem.exists.any(-1).expand(len(problem)))
        self._lower, self._upper = self._caseless.double(), torch.ones_like(nothing, dtype=torch.float64)
        self._partial = nothing.clone()  # counted draws of some layers
        self._violations = torch.zeros(len(problem), dtype=torch.int64, device=device)
        self._point = (problem.lower + problem.upper) / 2
        self._waiting: list[_Waiting] = []
        self._levels: Ints = np.zeros((2, problem.instances, 0), np.int64)  # of draws of some layers, by side
        self._shares = torch.zeros(2, problem.instances, dtype=torch.float64, device=device)  # their sums
        self._partly: int | None = None  # layers of these
        self._spare = 0.0  # seconds that branch and bound may take: those of the looks less its own

    @property
    def found(self) -> SafetyBounds:
        """The bounds, the counts, and of each instance a point at which a draw violates, if there is one."""
        found = nothing_known(self._problem, self._point)
        best = last_of_each(self._problem, torch.argsort(self._violations, stable=True))
        counts = self._counts
        if self._partly is not None:
            safe, violating = (whole + share for whole, share in zip((counts.safe, counts.violating), self._shares,
                                                                      strict=True))  # fmt: skip
            counts = DrawCounts(counts.counted + self._partial, safe, violating, self._partly)
        found = replace(
            found, lower=self._lower, upper=self._upper, point=self._point[best], draws=counts
        ).named(DRAWN)  # fmt: skip
        lower_by = found.by[0].masked_fill(self._caseless, NAMES.index(CASELESS))
        return replace(found, by=torch.stack([lower_by, found.by[1]]))

    def work(self) -> None:
        """Draw networks until every instance is decided, there is nothing left to do, or time is up."""
        deadline, sampling, begun_at = self._task.deadline, self._networks.sampling, time.monotonic()
        if sampling.layers is not None:
            layers = random_layers(self._task.bounds.engine.network, self._task.posterior)
            if sampling.layers != len(layers):
                self._draw_layers(Conditional(self._task, sampling, sampling.layers))
                return
        tried = not sampling.pilot or sampling.layers is not None or self._problem.instances > 1
        better: Conditional | None = None
        for index in self._networks.batches(self._problem.rows.outputs.shape[1]):
            if deadline.passed or not bool(self._open.any()):
                break
            if not tried and int(self._counts.counted[0]) >= _LONG:
                tried = True
                better = self._better_layers(time.monotonic() - begun_at)
                if better is not None:
                    break
            begun = time.monotonic()
            self._look(index)
            self._spare += time.monotonic() - begun
            while self._waiting and (deadline.at is None or self._waiting[0].cost <= self._spare):
                self._branch(heapq.heappop(self._waiting))
        if better is not None:
            self._draw_layers(better)
        while self._waiting and not deadline.passed and bool(self._open.any()):
            self._branch(heapq.heappop(self._waiting))

    def _draw_layers(self, source: Conditional) -> None:
        """Draws of some layers, the rest being bounded, after those of whole networks that were counted."""
        problem, deadline = self._problem, self._task.deadline
        self._levels, self._partly = np.zeros((2, problem.instances, LEVELS + 1), np.int64), source.count
        for index in source.networks.batches(problem.rows.outputs.shape[1], _TOGETHER):
            if deadline.passed or not bool(self._open.any()):
                break
            open_ = self._open
            items = open_[problem.instance].nonzero()[:, 0]
            safe, unsafe, points = source.proved(index, items)
            if self._task.deadline.passed:  # the prefix ends before: it may end anywhere
                break
            for side, share in enumerate((safe, unsafe)):
                y = torch.where(open_, share, 0.0)
                self._levels[side] += levels_of(y.cpu().numpy(), LEVELS) * open_.cpu().numpy()[:, None]
                self._shares[side] += y.sum(0)
            self._partial += len(index) * open_
            worst = unsafe.amax(1).argmax()
            if bool(unsafe[worst].max() > 0) and not bool(self._violations.any()):
                self._point[items] = points[worst]
            self._bound()

    def _better_layers(self, seconds: float) -> Conditional | None:
        """A number of layers that is expected to end sooner than whole networks, by a pilot that took little time."""
        task, sampling, deadline = self._task, self._networks.sampling, self._task.deadline
        counted = int(self._counts.counted[0])
        left = sampling.draws - counted
        safe, unsafe = (int(side[0]) / counted for side in (self._counts.safe, self._counts.violating))
        whole = Prospect(1 - safe - unsafe, safe * (1 - safe), seconds / counted)
        try:
            layers = random_layers(task.bounds.engine.network, task.posterior)
        except UnsupportedError:
            return None
        begun, best, chosen = time.monotonic(), _WORTH * self._expected(whole, left), None
        for count in range(len(layers) - 1, 0, -1):
            if deadline.passed or _PATIENCE * (time.monotonic() - begun) > seconds:
                break
            try:
                source = Conditional(task, replace(sampling, draws=left), count)
            except UnsupportedError:
                continue
            seen = prospect(replace(source, pilot=True), whole)
            if (width := self._expected(seen, left)) < best:
                best, chosen = width, source
        return chosen

    def _expected(self, seen: Prospect, left: int) -> float:
        """The width of an interval after the draws that are left, or as many as time allows."""
        deadline = self._task.deadline
        if deadline.at is not None:
            left = max(1, min(left, int((deadline.at - time.monotonic()) / max(seen.seconds, 1e-9))))
        return seen.width(left, self._networks.sampling.side)

    @property
    def _open(self) -> Tensor:
        """(I,): the instances for which more draws are wanted."""
        return self._task.goal.open(self.found)

    def _look(self, index: Ints) -> None:
        """The draws that follow, of all open instances."""
        weights, known = self._networks.take(index)
        items = self._open[self._problem.instance].nonzero()[:, 0]
        nothing = torch.zeros(len(index), len(self._problem), dtype=torch.bool, device=items.device)
        found = Decided(nothing.clone(), nothing.clone(), self._point.expand(len(index), -1, -1).clone())
        part, bounds = self._problem.items(items), self._task.bounds
        found.safe[:, items] = refuted_cases(bounds, weights, part).all(-1) & known[:, None]
        if self._task.deadline.passed:  # the prefix ends before: it may end anywhere
            return
        left = (~found.safe[:, items]).any(1) & known
        if bool(left.any()):
            rows = left.nonzero()[:, 0]
            points = self._attacked(weights.boxes(rows), items)
            usable = torch.stack([feasible(part, x) for x in points])
            found.violated[rows[:, None], items] = unsafe_items(bounds, weights.boxes(rows), part, points, usable)
            found.point[rows[:, None], items] = points
        self._counts.counted[self._open] += len(index)
        self._learn(found, Decided(nothing, nothing, found.point))
        self._wait(_ATTEMPT, index[left.cpu().numpy()], Decided(*(side[left] for side in vars(found).values())))

    def _attacked(self, weights: WeightBoxes, items: Tensor) -> Tensor:
        """(K, N', n): points of some items at which the centres of draws are nearest to a violation."""
        task = self._task
        params = {name: center for name, center in weights.centers.items() if len(center) == weights.count}
        settings = replace(task.attack, restarts=min(task.attack.restarts, 8), pool=min(task.attack.pool, 8))
        part = self._problem.items(items)
        return attack.run(task.bounds.engine.network, part, params, settings, task.bounds.transform)[0]

    def _branch(self, waiting: _Waiting) -> None:
        """Branch and bound of open draws: to its own end, or for so many seconds, after which they wait again."""
        begun, deadline, known = time.monotonic(), self._task.deadline, waiting.known
        if deadline.at is not None:
            deadline = Deadline(min(deadline.at, begun + waiting.cost))
        bounds = replace(self._task.bounds, engine=replace(self._task.bounds.engine, deadline=deadline))
        idle = ~self._undecided(known)[:, self._problem.instance]
        asked = Decided(known.safe, known.violated | idle, known.point)
        found = branched(bounds, self._networks.take(waiting.index)[0], self._problem, asked, _SHARE)
        found = Decided(found.safe, torch.where(idle, known.violated, found.violated), found.point)
        self._learn(found, known)
        self._spare -= time.monotonic() - begun
        if deadline.at is not None:
            self._wait(2 * waiting.cost, waiting.index, found)

    def _wait(self, cost: float, index: Ints, known: Decided) -> None:
        """Put those of the draws (K,) that are still open among the waiting, for an attempt of `cost` seconds."""
        left = self._undecided(known).any(1)
        if bool(left.any()):
            still = Decided(*(side[left] for side in vars(known).values()))
            heapq.heappush(self._waiting, _Waiting(cost, index[left.cpu().numpy()], still))

    def _undecided(self, known: Decided) -> Tensor:
        """(K, I): draws that are neither safe nor violating, of the open instances."""
        settled = self._problem.all_items(known.safe) | self._problem.any_item(known.violated)
        return ~settled & self._open

    def _learn(self, found: Decided, known: Decided) -> None:
        """Count what is proved now and was not before; the bounds of all instances (steps 2 and 3)."""
        problem, counts, open_ = self._problem, self._counts, self._open
        for held, before, total, over in (
            (found.safe, known.safe, counts.safe, problem.all_items),
            (found.violated, known.violated, counts.violating, problem.any_item),
        ):
            total += ((over(held) & ~over(before)).sum(0)) * open_
        fresh = found.violated & ~known.violated
        self._violations += fresh.sum(0)
        item = fresh.any(0).nonzero()[:, 0]
        self._point[item] = found.point[fresh[:, item].to(torch.int8).argmax(0), item]
        self._bound()

    def _bound(self) -> None:
        """Each side at half of delta; a threshold that is passed is passed, whatever the search for a bound leaves."""
        goal, delta = self._task.goal, self._networks.sampling.side
        counted = self._counts.counted.cpu().numpy()
        sides = []
        both = ((self._counts.safe, goal.safe), (self._counts.violating, _beyond(goal.unsafe)))
        for (ones, threshold), levels in zip(both, self._levels, strict=True):
            hits = ones.cpu().numpy()
            counts = np.stack([counted - hits, hits], 1)
            if self._partly is not None:  # 0 and 1 are the first and the last level
                ends, counts = counts, levels.copy()
                counts[:, [0, -1]] += ends
            shown = lower_bounds(counts, delta)
            sides.append(np.where(exceeds(counts, threshold, delta), np.maximum(shown, threshold), shown))
        lower, violating = (torch.as_tensor(side, device=self._lower.device) for side in sides)
        upper = torch.nextafter(1.0 - violating, violating.new_tensor(torch.inf)).clamp(max=1.0)
        upper = torch.where(violating >= _beyond(goal.unsafe), upper.clamp(max=np.nextafter(goal.unsafe, 0.0)), upper)
        open_ = self._open
        self._lower = torch.where(open_, torch.maximum(self._lower, lower), self._lower)
        self._upper = torch.where(open_, torch.minimum(self._upper, upper), self._upper)


def _beyond(threshold: float) -> float:
    """m with 1 - m below the threshold by a float at least: P(violating) > m shows P_safe < threshold."""
    return float(np.nextafter(1.0 - np.nextafter(threshold, 0.0), 1.0))
