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

from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.model.network import GaussianDiagonal, WeightSamples
from bnn_vnnlib.robustness import attack, weight_sets
from bnn_vnnlib.robustness.attack import Attack
from bnn_vnnlib.robustness.margins import MarginSearch, mass_at
from bnn_vnnlib.robustness.outputs import OutputBounds
from bnn_vnnlib.robustness.problem import Constraints, Problem
from bnn_vnnlib.robustness.refute import refuted_cases, violated_cases

ROUNDED_ZERO = 1e-9
"""Violations found by the attack in plain floating point count up to this; the bounds decide."""


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
    """(N,): x (N, n) satisfies the item's constraints exactly (rational arithmetic); the boxes hold by construction.

    Where x stands for a real point between two floats (see `point_box`), all of what is between must satisfy them.
    """
    extra = problem.constraints
    if extra is None:
        return torch.ones(len(problem), dtype=torch.bool, device=x.device)
    lower, upper = point_box(problem, x)
    answers = [_satisfies(extra, i, lower[i], upper[i]) for i in range(len(x))]
    return torch.tensor(answers, device=x.device)


def _satisfies(extra: Constraints, item: int, lower: Tensor, upper: Tensor) -> bool:
    ends = [(Fraction(low), Fraction(high)) for low, high in zip(lower.tolist(), upper.tolist(), strict=True)]
    for g, bound, strict in zip(
        extra.inputs[item].tolist(), extra.inner_bound[item].tolist(), extra.strict[item].tolist(), strict=True
    ):
        left = sum((Fraction(a) * end[a > 0] for a, end in zip(g, ends, strict=True) if a), Fraction(0))
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
    points, values = (found[0] for found in attack.run(network, problem, {}, settings, bounds.transform))
    usable = feasible(problem, points)

    def unsafe(index: Tensor, scale: Tensor) -> Tensor:
        return _unsafe_items(bounds, boxes.scaled(scale), problem.items(index), points[index], usable[index])[0]

    def safe(index: Tensor, scale: Tensor) -> Tensor:
        return refuted_cases(bounds, boxes.scaled(scale), problem.items(index))[0].all(-1)

    # Every centred box holds the mean network: where that is safe at the point, no box is unsafe there, and once
    # one box is unsafe none is safe. So most instances need one search only.
    search = MarginSearch(problem, count, margin, deadline)
    hopeful = problem.any_item(usable & (values <= ROUNDED_ZERO))
    unsafe_margin, which = search.largest(unsafe, hopeful, first=0.5, every=False)
    safe_margin, _ = search.largest(safe, unsafe_margin.isnan(), first=first, every=True)
    unsafe_mass = mass_at(unsafe_margin, count)
    lower, upper = _bounds(mass_at(safe_margin, count), unsafe_mass)
    return SafetyBounds(lower, upper, points[which], unsafe_mass, safe_margin, unsafe_margin)


def _bounds(safe: Tensor, unsafe: Tensor) -> tuple[Tensor, Tensor]:
    """From lower bounds on the safe and the unsafe mass; 1 - unsafe is exact from .5 on (Sterbenz), else rounded up."""
    upper = 1.0 - unsafe
    upper = torch.where(unsafe >= 0.5, upper, torch.nextafter(upper, upper.new_tensor(torch.inf)))
    return safe.clamp(0, 1), upper.clamp(0, 1)


def _unsafe_items(
    bounds: OutputBounds, weights: WeightBoxes, problem: Problem, points: Tensor, usable: Tensor
) -> Tensor:
    """(K, N): the point is in T and violates a case for all weights of the box."""
    lower, upper = point_box(problem, points)
    return violated_cases(bounds, weights, problem, lower, upper).any(-1) & usable


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
    per_instance = problem.any_item(unsafe)
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
