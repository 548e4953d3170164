"""P_safe by weights: boxes at the posterior mean, boxes around sampled weights, and weight samples.

1. The search for the margin of boxes centred at the posterior mean: the certified set shrinks as the mass grows.
2. Boxes at the mean, or around sampled weights as in the paper.
3. Weight samples: every sample is a deterministic network.
Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.deterministic import branched, look
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.safety import (
    Pass,
    SafetyBounds,
    SafetyTask,
    at_points,
    from_masses,
    last_of_each,
    nothing_known,
    unsafe_items,
)
from bnn_vnnlib.methods.safety.tails import why_no_tails
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, feasible
from bnn_vnnlib.problem.refute import refuted_cases
from bnn_vnnlib.problem.weight_sets import SampledWeights, centred_mass, margin_of
from bnn_vnnlib.splitting.branch import Decided
from bnn_vnnlib.system.clock import Deadline

# 1. The margin

_GRID_MASSES = (
    0.01,
    0.03,
    0.1,
    0.25,
    0.5,
    0.7,
    0.8,
    0.9,
    0.95,
    0.98,
    0.99,
    0.999,
    1 - 1e-4,
    1 - 1e-6,
    1 - 1e-9,
    1 - 1e-12,
)
"""Masses of the centred boxes that are tried before the margin is refined between two of them."""

_REFINEMENTS = 5
"""Bisections of the margin between the last certified and the first failed one."""

Certifier = Callable[[Tensor, Tensor], Tensor]
"""(items, scale (1, len(items))) -> which of the items are certified on the box of that margin."""


def mass_at(margin: Tensor, count: int) -> Tensor:
    """Lower bound on the mass of centred boxes of `count` weights; 0 where no margin was certified (nan)."""
    return torch.where(margin.isnan(), 0.0, centred_mass(margin.nan_to_num(0.0), count)[0])


@dataclass(frozen=True, eq=False)
class _MarginSearch:
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
        start = min(bisect.bisect_left(_GRID_MASSES, first), last)
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
        for _ in range(_REFINEMENTS):
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
        return margin_of(torch.tensor(_GRID_MASSES, dtype=torch.float64, device=device), self.count) * (1 + 1e-9)

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


# 2. Boxes

_SETTLED_GAP = 1e-6
"""Boxes are not tried where the bounds that are known leave no more than this open."""

ROUNDED_ZERO = 1e-9
"""Violations found by the attack in plain floating point count up to this; the bounds decide."""


@dataclass(frozen=True, eq=False)
class CentredBoxes:
    """One box at the posterior mean an instance, its margin searched, or the given one.

    Attributes
    ----------
    bounds, posterior, problem, deadline : what is bounded, and until when
    margin : in standard deviations, or None
    """

    bounds: OutputBounds
    posterior: Gaussian
    problem: Problem
    deadline: Deadline
    margin: float | None = None

    @cached_property
    def count(self) -> int:
        """Number of random weights."""
        return weight_sets.random_count(self.bounds.engine.network, self.posterior)

    @cached_property
    def weights(self) -> WeightBoxes:
        """The box at the posterior mean whose sides are standard deviations, to be scaled by a margin."""
        return weight_sets.marginal(self.bounds.engine.network, self.posterior, self.problem.lower.device)

    @property
    def _search(self) -> _MarginSearch:
        return _MarginSearch(self.problem, self.count, self.margin, self.deadline)

    def unsafe(self, points: Tensor, hopeful: Tensor, among: Tensor) -> SafetyBounds:
        """Upper bounds for the instances `among` (I,), from points (N, n) of T where `hopeful` (N,) says so."""

        def holds(index: Tensor, scale: Tensor) -> Tensor:
            part = self.problem.items(index)
            return unsafe_items(self.bounds, self.weights.scaled(scale), part, points[index], hopeful[index])[0]

        among = among & self.problem.any_item(hopeful)
        margin, which = self._search.largest(holds, among, first=0.5, every=False)
        mass = mass_at(margin, self.count)
        return replace(
            nothing_known(self.problem, points), upper=from_masses(mass, mass)[1], point=points[which],
            point_mass=mass, unsafe_margin=margin,
        ).named(CENTRED.name)  # fmt: skip

    def safe(self, points: Tensor, among: Tensor, first: float) -> SafetyBounds:
        """Lower bounds for the instances `among` (I,); `first` is the mass to try first."""

        def holds(index: Tensor, scale: Tensor) -> Tensor:
            return refuted_cases(self.bounds, self.weights.scaled(scale), self.problem.items(index))[0].all(-1)

        margin, _ = self._search.largest(holds, among, first=first, every=True)
        return self.proved(points, margin)

    def proved(self, points: Tensor, margin: Tensor) -> SafetyBounds:
        """Lower bounds from margins (I,) of boxes that are proved safe, nan where there is none."""
        mass = mass_at(margin, self.count)
        found = replace(nothing_known(self.problem, points), lower=from_masses(mass, mass)[0], safe_margin=margin)
        return found.named(CENTRED.name)


def boxes_of(task: SafetyTask) -> CentredBoxes:
    """Boxes at the posterior means, one an instance, for the task's network and Gaussian posterior."""
    posterior = cast(Gaussian, task.posterior)
    return CentredBoxes(task.bounds, posterior, task.problem, task.deadline, task.margin)


def _centred_serve(task: SafetyTask) -> str | None:
    if not isinstance(task.posterior, Gaussian):
        return "the posterior is no Gaussian"
    if task.boxes == "sampled":
        return "boxes around samples are asked for"
    if task.means != "tails":
        return None
    certain = boxes_of(task).count == 0 and why_no_tails(task.bounds, task.posterior, task.problem) is None
    return None if certain else "tails are asked for"


def _centred(task: SafetyTask, known: SafetyBounds | None) -> SafetyBounds:
    """Both bounds by one search for most instances, of those that are not settled.

    Every centred box holds the mean network: where that is safe at the point, no box is unsafe there, and once one
    box is unsafe none is safe.
    """
    boxes, (points, values, usable), known = boxes_of(task), task.attacked, known or task.nothing
    open_ = (known.lower < 1 - _SETTLED_GAP) & (known.upper > _SETTLED_GAP)
    unsafe = boxes.unsafe(points, usable & (values <= ROUNDED_ZERO), open_)
    safe = boxes.safe(points, open_ & unsafe.unsafe_margin.isnan(), task.goal.safe)
    return known.better(unsafe.better(safe))


def _scattered_serve(task: SafetyTask) -> str | None:
    if not isinstance(task.posterior, GaussianDiagonal):
        return "the posterior's weights are not independent Gaussians"
    return None if task.boxes == "sampled" else "nobody asked for them (--boxes sampled)"


def _scattered(task: SafetyTask, known: SafetyBounds | None) -> SafetyBounds:
    """Boxes around sampled weights, as in the paper; unions done right."""
    bounds, problem, margin = task.bounds, task.problem, 2.5 if task.margin is None else task.margin
    posterior, (points, _, usable) = cast(GaussianDiagonal, task.posterior), task.attacked
    family = weight_sets.scattered_family(
        bounds.engine.network, posterior, task.number, margin, task.attack.seed, problem.lower.device
    )
    safe = problem.all_items(refuted_cases(bounds, family.weights, problem).all(-1)).mT
    unsafe = unsafe_items(bounds, family.weights, problem, points, usable).mT  # (N, K)
    found = at_points(problem, points, family.union.union_lower(unsafe), family.union.union_lower(safe))
    used = torch.full_like(found.lower, margin)
    return replace(found, safe_margin=used, unsafe_margin=used).named(SCATTERED.name)


CENTRED: Method[SafetyTask, Pass] = Method("centred boxes", _centred_serve, _centred)
SCATTERED: Method[SafetyTask, Pass] = Method("boxes around samples", _scattered_serve, _scattered)


# 3. Samples


def _samples_serve(task: SafetyTask) -> str | None:
    return None if isinstance(task.posterior, WeightSamples) else "the posterior is not made of weight samples"


def _samples(task: SafetyTask, known: SafetyBounds | None) -> SafetyBounds:
    """Bounds for weight samples, each a deterministic network: proved safe, proved to violate, or neither."""
    problem, posterior = task.problem, cast(WeightSamples, task.posterior)
    samples = SampledWeights.of(task.bounds.engine.network, posterior, problem.lower.device)
    found = decided_samples(task, samples)
    points, unsafe = found.point, found.violated  # (S, N, n), (S, N)
    per_instance = problem.any_item(unsafe)
    proved, falsified = (_weight(samples.share, held) for held in (problem.all_items(found.safe), per_instance))
    point, at_point = _common_point(task, samples, points, unsafe)
    lower, upper = from_masses(proved, falsified)
    return replace(
        nothing_known(problem, points[0]), lower=lower, upper=upper, point=point, point_mass=at_point,
        violating=per_instance,
    ).named(SAMPLES.name)  # fmt: skip


def decided_samples(task: SafetyTask, samples: SampledWeights) -> Decided:
    """What is decided of all S x N pairs: a first look at every sample, then branch and bound of those that it left
    open.

    Samples are taken part by part. The time that is left is shared between the parts that are left, so that hard
    samples do not keep the run from the others.
    """
    bounds, problem, deadline = task.bounds, task.problem, task.bounds.engine.deadline
    low, high = attack.inner_box(problem)
    safe = torch.zeros(samples.count, len(problem), dtype=torch.bool, device=low.device)
    violated, point = safe.clone(), (low + (high - low) / 2).expand(samples.count, -1, -1).clone()

    def keep(index: Tensor, found: Decided) -> None:
        safe[index], violated[index], point[index] = found.safe, found.violated, found.point

    def first_look(index: Tensor) -> None:
        weights = samples.boxes(index)
        keep(index, look(bounds, weights, problem, _attacked(task, samples, weights)))

    deadline.reached(samples.parts(), first_look)
    open_ = (~(safe | violated)).any(1).nonzero()[:, 0].cpu()
    parts = samples.parts(open_) if len(open_) else ()
    for place, index in enumerate(parts):
        if deadline.passed:
            break
        engine = replace(bounds.engine, deadline=deadline.share(len(parts) - place))
        found = Decided(safe[index], violated[index], point[index])
        keep(index, branched(replace(bounds, engine=engine), samples.boxes(index), problem, found))
    return Decided(safe, violated, point)


def _attacked(task: SafetyTask, samples: SampledWeights, weights: WeightBoxes) -> Tensor:
    """(k, N, n): points at which the samples are the nearest to a violation."""
    params = {name: weights.centers[name] for name in samples.posterior.stored}
    settings = replace(task.attack, restarts=min(task.attack.restarts, 8), pool=min(task.attack.pool, 8))
    return attack.run(samples.network, task.problem, params, settings, task.bounds.transform)[0]


SAMPLES: Method[SafetyTask, Pass] = Method("weight samples", _samples_serve, _samples)


def _weight(probabilities: Tensor, held: Tensor) -> Tensor:
    """Sum of the probabilities of the samples (S, I) that hold, rounded down; exactly 1 if all do."""
    total = (probabilities[:, None] * held).sum(0)
    total = total - 4 * (len(probabilities) + 4) * 2.0**-53
    return torch.where(held.all(0), torch.ones_like(total), total.clamp(0, 1))


def _common_point(task: SafetyTask, samples: SampledWeights, points: Tensor, unsafe: Tensor) -> tuple[Tensor, Tensor]:
    """The one point of those found (I, n), an instance each, at which the largest mass of samples violates, and that
    mass (I,).

    Of an item's point it is known already that it violates under its own sample; the others need time.
    """
    bounds, problem = task.bounds, task.problem
    heaviest = (samples.share[:, None] * unsafe).argmax(0)  # (N,): one candidate an item
    item = torch.arange(len(problem), device=points.device)
    candidate = points[heaviest, item]
    usable, violated = feasible(problem, candidate), torch.zeros_like(unsafe)

    def tried(index: Tensor) -> None:
        violated[index] = unsafe_items(bounds, samples.boxes(index), problem, candidate, usable)

    bounds.engine.deadline.reached(samples.parts(), tried)
    violated[heaviest, item] |= unsafe[heaviest, item]
    mass = _weight(samples.share, violated)
    best = last_of_each(problem, torch.argsort(mass))
    return candidate[best], mass[best]
