"""P_safe by weight boxes: at the posterior mean, or around sampled weights as in the paper.

Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.model.network import GaussianDiagonal
from bnn_vnnlib.robustness import attack, weight_sets
from bnn_vnnlib.robustness.attack import Attack
from bnn_vnnlib.robustness.margins import MarginSearch, mass_at
from bnn_vnnlib.robustness.outputs import OutputBounds
from bnn_vnnlib.robustness.problem import Problem
from bnn_vnnlib.robustness.refute import refuted_cases
from bnn_vnnlib.robustness.safety import (
    SafetyBounds,
    feasible,
    from_masses,
    last_of_each,
    nothing_known,
    unsafe_items,
)


def by_centred_boxes(
    bounds: OutputBounds,
    posterior: GaussianDiagonal,
    problem: Problem,
    points: Tensor,
    hopeful: Tensor,
    open_: Tensor,
    deadline: Deadline,
    *,
    margin: float | None = None,
    first: float = 0.95,
) -> SafetyBounds:
    """One box at the posterior mean an instance, its margin searched (or given).

    Every centred box holds the mean network: where that is safe at the point, no box is unsafe there, and once one
    box is unsafe none is safe. So most instances need one search only.

    Parameters
    ----------
    points : (N, n) attacked points; hopeful (N,): those that seem to violate, and are in T
    open_ : (I,) the instances to bound
    margin, first : see `MarginSearch`
    """
    network = bounds.engine.network
    count = weight_sets.random_count(network, posterior)
    boxes = weight_sets.centred(network, posterior, problem.lower.device)

    def unsafe(index: Tensor, scale: Tensor) -> Tensor:
        return unsafe_items(bounds, boxes.scaled(scale), problem.items(index), points[index], hopeful[index])[0]

    def safe(index: Tensor, scale: Tensor) -> Tensor:
        return refuted_cases(bounds, boxes.scaled(scale), problem.items(index))[0].all(-1)

    search = MarginSearch(problem, count, margin, deadline)
    unsafe_margin, which = search.largest(unsafe, open_ & problem.any_item(hopeful), first=0.5, every=False)
    safe_margin, _ = search.largest(safe, open_ & unsafe_margin.isnan(), first=first, every=True)
    unsafe_mass = mass_at(unsafe_margin, count)
    lower, upper = from_masses(mass_at(safe_margin, count), unsafe_mass)
    return replace(
        nothing_known(problem, points), lower=lower, upper=upper, point=points[which], point_mass=unsafe_mass,
        safe_margin=safe_margin, unsafe_margin=unsafe_margin,
    )  # fmt: skip


def by_scattered_boxes(
    bounds: OutputBounds, posterior: GaussianDiagonal, problem: Problem, settings: Attack, *, number: int, margin: float
) -> SafetyBounds:
    """Boxes around sampled weights, as in the paper; unions done right."""
    network, device = bounds.engine.network, problem.lower.device
    family = weight_sets.scattered_family(network, posterior, number, margin, settings.seed, device)
    points = attack.run(network, problem, {}, settings, bounds.transform)[0][0]
    usable = feasible(problem, points)
    safe = problem.all_items(refuted_cases(bounds, family.weights, problem).all(-1)).mT
    unsafe = unsafe_items(bounds, family.weights, problem, points, usable).mT  # (N, K)
    mass = family.union.union_lower(unsafe)
    best = last_of_each(problem, torch.argsort(mass))
    lower, upper = from_masses(family.union.union_lower(safe), mass[best])
    used = torch.full_like(lower, margin)
    found = nothing_known(problem, points)
    return replace(
        found, lower=lower, upper=upper, point=points[best], point_mass=mass[best], safe_margin=used, unsafe_margin=used
    )
