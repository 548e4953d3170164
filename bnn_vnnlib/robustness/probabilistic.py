"""Bounds on P_safe = P_w(no case is violated by any x), by weight boxes or by weight samples.

Guarantee: lower <= P_safe <= upper with probability 1 (no confidence level), rounding included.
Boxes: lower = mass of the union of boxes on which every case of every item is refuted; upper = 1 - mass of the union
of boxes on which one point of T violates one case for all weights of the box.
Samples: lower = sum of the probabilities of the samples that are proved safe; upper = 1 - sum of those with a point
that is proved to violate.
Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks, with centred boxes whose
margin is searched in place of the boxes around samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.clock import Deadline, OutOfTime
from bnn_vnnlib.model.network import GaussianDiagonal, WeightSamples
from bnn_vnnlib.robustness import attack, weight_sets
from bnn_vnnlib.robustness.attack import Attack
from bnn_vnnlib.robustness.mass import centred_mass, margin_of
from bnn_vnnlib.robustness.outputs import OutputBounds
from bnn_vnnlib.robustness.problem import Constraints, Problem
from bnn_vnnlib.robustness.refute import refuted_cases, violated_cases

MASSES = (0.01, 0.03, 0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12)
"""Masses of the centred boxes that are tried before the margin is refined between two of them."""

REFINEMENTS = 5
"""Bisections of the margin between the last certified and the first failed one."""


@dataclass(frozen=True, eq=False)
class SafetyBounds:
    """Bounds of I instances, and what they rest on.

    lower, upper (I,); point (I, n): the attacked x behind the upper bound (where it is below 1);
    safe_margin, unsafe_margin (I,): margins of the centred boxes in sd (nan where not used); violating (S, I): samples
    with a proved violation, or None; point_mass (I,): lower bound on P_w(violated at `point` alone).
    """

    lower: Tensor
    upper: Tensor
    point: Tensor
    point_mass: Tensor
    safe_margin: Tensor
    unsafe_margin: Tensor
    violating: Tensor | None = None


def feasible(problem: Problem, x: Tensor) -> Tensor:
    """(N,): x (N, n) satisfies the item's constraints exactly (rational arithmetic); the boxes hold by construction."""
    extra = problem.constraints
    if extra is None:
        return torch.ones(len(problem), dtype=torch.bool, device=x.device)
    answers = [_satisfies(extra, i, x[i]) for i in range(len(x))]
    return torch.tensor(answers, device=x.device)


def _satisfies(extra: Constraints, item: int, x: Tensor) -> bool:
    values = [Fraction(v) for v in x.tolist()]
    for g, bound, strict in zip(
        extra.inputs[item].tolist(), extra.inner_bound[item].tolist(), extra.strict[item].tolist(), strict=True
    ):
        left = sum((Fraction(a) * v for a, v in zip(g, values, strict=True) if a), Fraction(0))
        if left > Fraction(bound) or (strict and left == Fraction(bound)):
            return False
    return True


def point_box(problem: Problem, x: Tensor) -> tuple[Tensor, Tensor]:
    """The point (.., N, n) as a box that surely holds a real point of T near it.

    Where no float64 lies in the item's interval (x == 0.1), the interval's own outward bounds, one unit apart.
    """
    empty = problem.inner_lower > problem.inner_upper
    return torch.where(empty, problem.lower, x), torch.where(empty, problem.upper, x)


def by_centred_boxes(
    bounds: OutputBounds, posterior: GaussianDiagonal, problem: Problem, settings: Attack, deadline: Deadline, *,
    margin: float | None = None, first: float = 0.95,
) -> SafetyBounds:  # fmt: skip
    """One box at the posterior mean an instance, its margin searched (or given)."""
    network = bounds.engine.network
    count = weight_sets.random_count(network, posterior)
    boxes = weight_sets.centred(network, posterior, problem.lower.device)
    points = attack.run(network, problem, {}, settings, bounds.transform)[0][0]
    usable = feasible(problem, points)

    def unsafe(index: Tensor, scale: Tensor) -> Tensor:
        return _unsafe_items(bounds, boxes.scaled(scale), problem.items(index), points[index], usable[index])[0]

    def safe(index: Tensor, scale: Tensor) -> Tensor:
        return refuted_cases(bounds, boxes.scaled(scale), problem.items(index))[0].all(-1)

    search = _MarginSearch(problem, count, margin, deadline)
    unsafe_margin, which = search.largest(unsafe, first=0.5, every=False)
    safe_margin, _ = search.largest(safe, first=first, every=True)
    return SafetyBounds(
        *_bounds(_mass(safe_margin, count), _mass(unsafe_margin, count)), points[which],
        _mass(unsafe_margin, count), safe_margin, unsafe_margin,
    )  # fmt: skip


def _bounds(safe: Tensor, unsafe: Tensor) -> tuple[Tensor, Tensor]:
    """From lower bounds on the safe and the unsafe mass; 1 - unsafe is exact from .5 on (Sterbenz), else rounded up."""
    upper = 1.0 - unsafe
    upper = torch.where(unsafe >= 0.5, upper, torch.nextafter(upper, upper.new_tensor(torch.inf)))
    return safe.clamp(0, 1), upper.clamp(0, 1)


def _mass(margin: Tensor, count: int) -> Tensor:
    """Lower bound on the mass; 0 where no margin was certified (nan)."""
    lower, _ = centred_mass(margin.nan_to_num(0.0).cpu().numpy(), count)
    return torch.where(margin.isnan(), 0.0, torch.as_tensor(lower, device=margin.device))


def _unsafe_items(
    bounds: OutputBounds, weights: WeightBoxes, problem: Problem, points: Tensor, usable: Tensor
) -> Tensor:
    """(K, N): the point is in T and violates a case for all weights of the box."""
    lower, upper = point_box(problem, points)
    return violated_cases(bounds, weights, problem, lower, upper).any(-1) & usable


@dataclass(frozen=True, eq=False)
class _MarginSearch:
    """Bisection for the largest certified margin of each instance; each probe is a proof, so any order is sound."""

    problem: Problem
    count: int
    margin: float | None
    deadline: Deadline

    def largest(self, holds: Callable[[Tensor, Tensor], Tensor], *, first: float, every: bool) -> tuple[Tensor, Tensor]:
        """Margins (I,), nan where nothing was certified, and one certified item (I,) of each instance.

        holds(items, scale (1, len(items))) -> certified; `every`: an instance needs all of its items, else one.
        """
        problem = self.problem
        device, instances = problem.lower.device, problem.instances
        margins = self._grid(device)
        last = len(margins)
        low = torch.full((instances,), -1, dtype=torch.int64, device=device)
        high = torch.full_like(low, last)
        item = torch.zeros_like(low).scatter(0, problem.instance, torch.arange(len(problem), device=device))
        start = int(np.searchsorted(MASSES, first)) if last > 1 else 0
        probe = torch.full_like(low, min(start, last - 1))
        while bool((high - low > 1).any()) and not self.deadline.passed:
            active = high - low > 1
            try:
                good, item = self._probe(holds, margins[probe], active, item, every)
            except OutOfTime:
                break
            low, high = torch.where(active & good, probe, low), torch.where(active & ~good, probe, high)
            probe = ((low + high) // 2).clamp(0, last - 1)
        best = torch.where(low >= 0, margins[low.clamp(min=0)], torch.nan)
        if last > 1:
            best, item = self._refine(holds, margins, low, best, item, every)
        return best, item

    def _refine(
        self, holds: Callable[[Tensor, Tensor], Tensor], margins: Tensor, low: Tensor, best: Tensor, item: Tensor,
        every: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Bisect between the grid's neighbours, where the mass is not known to be 1 already."""
        top = margins[(low + 1).clamp(max=len(margins) - 1)]
        active = (low < len(margins) - 1) & (_mass(best, self.count) < 1 - 1e-6)
        floor = best.nan_to_num(0.0)
        for _ in range(REFINEMENTS):
            if self.deadline.passed or not bool(active.any()):
                break
            middle = (floor + top) / 2
            try:
                good, item = self._probe(holds, middle, active, item, every)
            except OutOfTime:
                break
            good = good & active
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
        self, holds: Callable[[Tensor, Tensor], Tensor], margin: Tensor, active: Tensor, item: Tensor, every: bool
    ) -> tuple[Tensor, Tensor]:
        """(I,) certified at these margins, and the certified items."""
        problem = self.problem
        index = torch.nonzero(active[problem.instance])[:, 0]
        owner = problem.instance[index]
        good = holds(index, margin[owner][None])
        total = torch.zeros_like(active, dtype=torch.int64).scatter_add(0, owner, good.to(torch.int64))
        needed = torch.zeros_like(total).scatter_add(0, owner, torch.ones_like(owner))
        certified = (total == needed) if every else (total > 0)
        return certified & active, item.scatter(0, owner[good], index[good])


def by_scattered_boxes(
    bounds: OutputBounds, posterior: GaussianDiagonal, problem: Problem, settings: Attack, *, number: int, margin: float
) -> SafetyBounds:
    """Boxes around sampled weights, as in the paper; unions done right."""
    network, device = bounds.engine.network, problem.lower.device
    family = weight_sets.scattered_family(network, posterior, number, margin, settings.seed, device)
    points = attack.run(network, problem, {}, settings, bounds.transform)[0][0]
    usable = feasible(problem, points)
    safe = problem.all_items(refuted_cases(bounds, family.weights, problem).all(-1)).mT
    unsafe = _unsafe_items(bounds, family.weights, problem, points, usable).mT  # (N, K)
    mass = family.union.union_lower(unsafe)
    best = _last(problem, torch.argsort(mass))
    lower, upper = _bounds(family.union.union_lower(safe), mass[best])
    used = torch.full_like(lower, margin)
    return SafetyBounds(lower, upper, points[best], mass[best], used, used)


def _last(problem: Problem, order: Tensor) -> Tensor:
    """The last item of each instance in the given order (scatter with duplicates has no defined winner)."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    top = torch.zeros(problem.instances, dtype=torch.int64, device=order.device)
    top = top.scatter_reduce(0, problem.instance, rank, "amax", include_self=False)
    return order[top]


def by_samples(bounds: OutputBounds, posterior: WeightSamples, problem: Problem, settings: Attack) -> SafetyBounds:
    """Every sample is a deterministic network: proved safe, proved to violate, or neither."""
    network, device = bounds.engine.network, problem.lower.device
    weights, probabilities = weight_sets.sample_weights(network, posterior, device)
    safe = problem.all_items(refuted_cases(bounds, weights, problem).all(-1))  # (S, I)
    params = {name: weights.centers[name] for name in posterior.samples}
    smaller = replace(settings, restarts=min(settings.restarts, 8), pool=min(settings.pool, 8))  # S networks each
    points = attack.run(network, problem, params, smaller, bounds.transform)[0]  # (S, N, n)
    usable = torch.stack([feasible(problem, x) for x in points])
    unsafe = _unsafe_items(bounds, weights, problem, points, usable)  # (S, N)
    per_instance = torch.zeros_like(safe, dtype=torch.int8).scatter_reduce(
        1, problem.instance.expand(unsafe.shape), unsafe.to(torch.int8), "amax"
    ).bool()  # fmt: skip
    proved, falsified = (_weight(probabilities, held) for held in (safe, per_instance))
    point, at_point = _common_point(bounds, weights, probabilities, problem, points, usable, unsafe)
    lower, upper = _bounds(proved, falsified)
    nothing = torch.full_like(lower, torch.nan)
    return SafetyBounds(lower, upper, point, at_point, nothing, nothing, per_instance)


def _weight(probabilities: Tensor, held: Tensor) -> Tensor:
    """Sum of the probabilities of the samples (S, I) that hold, rounded down; exactly 1 if all do."""
    total = (probabilities[:, None] * held).sum(0)
    total = total - 4 * (len(probabilities) + 4) * 2.0**-53
    return torch.where(held.all(0), torch.ones_like(total), total.clamp(0, 1))


def _common_point(
    bounds: OutputBounds, weights: WeightBoxes, probabilities: Tensor, problem: Problem, points: Tensor, usable: Tensor,
    unsafe: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """For each instance, the one point of those found at which the largest mass of samples violates, and that mass."""
    heaviest = (probabilities[:, None] * unsafe).argmax(0)  # (N,): one candidate an item
    candidate = points[heaviest, torch.arange(len(problem), device=points.device)]
    ok = usable[heaviest, torch.arange(len(problem), device=points.device)]
    violated = _unsafe_items(bounds, weights, problem, candidate, ok)  # (S, N)
    mass = _weight(probabilities, violated)
    best = _last(problem, torch.argsort(mass))
    return candidate[best], mass[best]


def safety_bounds(
    bounds: OutputBounds, posterior: GaussianDiagonal | WeightSamples, problem: Problem, settings: Attack,
    deadline: Deadline, *, boxes: str = "mean", number: int = 5, margin: float | None = None, first: float = 0.95,
) -> SafetyBounds:  # fmt: skip
    """Bounds on P_safe for every instance, by the family of the posterior."""
    if isinstance(posterior, WeightSamples):
        return by_samples(bounds, posterior, problem, settings)
    if boxes == "sampled":
        return by_scattered_boxes(
            bounds, posterior, problem, settings, number=number, margin=2.5 if margin is None else margin
        )
    return by_centred_boxes(bounds, posterior, problem, settings, deadline, margin=margin, first=first)
