"""P_safe by weight boxes: at the posterior mean, or around sampled weights as in the paper.

Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.safety.margins import MarginSearch, mass_at
from bnn_vnnlib.methods.safety.safety import SafetyBounds, from_masses, last_of_each, nothing_known, unsafe_items
from bnn_vnnlib.network.network import GaussianDiagonal
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.points import feasible
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.problem.refute import refuted_cases
from bnn_vnnlib.system.clock import Deadline


@dataclass(frozen=True, eq=False)
class CentredBoxes:
    """One box at the posterior mean an instance, its margin searched, or the given one.

    Attributes
    ----------
    bounds, posterior, problem, deadline : what is bounded, and until when
    margin : in standard deviations, or None
    """

    bounds: OutputBounds
    posterior: GaussianDiagonal
    problem: Problem
    deadline: Deadline
    margin: float | None = None

    @cached_property
    def count(self) -> int:
        """Random weights."""
        return weight_sets.random_count(self.bounds.engine.network, self.posterior)

    @cached_property
    def weights(self) -> WeightBoxes:
        """The box, to be scaled by a margin."""
        return weight_sets.centred(self.bounds.engine.network, self.posterior, self.problem.lower.device)

    @property
    def _search(self) -> MarginSearch:
        return MarginSearch(self.problem, self.count, self.margin, self.deadline)

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
        )  # fmt: skip

    def safe(self, points: Tensor, among: Tensor, first: float) -> SafetyBounds:
        """Lower bounds for the instances `among` (I,); `first` is the mass to try first."""

        def holds(index: Tensor, scale: Tensor) -> Tensor:
            return refuted_cases(self.bounds, self.weights.scaled(scale), self.problem.items(index))[0].all(-1)

        margin, _ = self._search.largest(holds, among, first=first, every=True)
        return self.proved(points, margin)

    def proved(self, points: Tensor, margin: Tensor) -> SafetyBounds:
        """Lower bounds from margins (I,) of boxes that are proved safe, nan where there is none."""
        mass = mass_at(margin, self.count)
        return replace(nothing_known(self.problem, points), lower=from_masses(mass, mass)[0], safe_margin=margin)


def by_centred_boxes(boxes: CentredBoxes, points: Tensor, hopeful: Tensor, open_: Tensor, first: float) -> SafetyBounds:
    """Both bounds by one search for most instances.

    Every centred box holds the mean network: where that is safe at the point, no box is unsafe there, and once one
    box is unsafe none is safe.

    Parameters
    ----------
    points : (N, n) attacked points; hopeful (N,): those that seem to violate, and are in T
    open_ : (I,) the instances to bound
    first : the mass of the safe box to try first
    """
    unsafe = boxes.unsafe(points, hopeful, open_)
    return unsafe.better(boxes.safe(points, open_ & unsafe.unsafe_margin.isnan(), first))


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
