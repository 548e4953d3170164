"""Bounds on P_safe as data, and what every method shares: what is unsafe at a point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.points import point_box
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.problem.refute import violated_cases


@dataclass(frozen=True, eq=False)
class SafetyBounds:
    """Bounds of I instances, and what they rest on.

    lower, upper (I,); point (I, n): the attacked x behind the upper bound (where it is below 1); point_mass (I,): lower
    bound on P_w(violated at `point` alone); by_tails, by_wide (2, I): whether the lower and the upper bound come from
    tails, or from `wide`; safe_margin, unsafe_margin (I,): margins of the boxes in sd (nan where there is none);
    violating (S, I): samples with a proved violation, or None.
    """

    lower: Tensor
    upper: Tensor
    point: Tensor
    point_mass: Tensor
    by_tails: Tensor
    by_wide: Tensor
    safe_margin: Tensor
    unsafe_margin: Tensor
    violating: Tensor | None = None

    def better(self, other: SafetyBounds) -> SafetyBounds:
        """For each instance and each side the tighter of two valid bounds, with what it rests on."""
        below, above = other.lower > self.lower, other.upper < self.upper

        def above_or(theirs: Tensor, ours: Tensor) -> Tensor:
            return torch.where(above if theirs.dim() == 1 else above[:, None], theirs, ours)

        return SafetyBounds(
            torch.where(below, other.lower, self.lower),
            above_or(other.upper, self.upper),
            above_or(other.point, self.point),
            above_or(other.point_mass, self.point_mass),
            torch.where(torch.stack([below, above]), other.by_tails, self.by_tails),
            torch.where(torch.stack([below, above]), other.by_wide, self.by_wide),
            torch.where(below, other.safe_margin, self.safe_margin),
            above_or(other.unsafe_margin, self.unsafe_margin),
        )


def nothing_known(problem: Problem, points: Tensor) -> SafetyBounds:
    """[0, 1] for every instance; points (N, n)."""
    zero = torch.zeros(problem.instances, dtype=torch.float64, device=points.device)
    nan, no = torch.full_like(zero, torch.nan), torch.zeros(2, len(zero), dtype=torch.bool, device=zero.device)
    point = points[last_of_each(problem, torch.arange(len(problem), device=points.device))]
    return SafetyBounds(zero, zero + 1, point, zero, no, no, nan, nan)


def from_masses(safe: Tensor, unsafe: Tensor) -> tuple[Tensor, Tensor]:
    """From lower bounds on the safe and the unsafe mass; 1 - unsafe is exact from .5 on (Sterbenz), else rounded up."""
    upper = 1.0 - unsafe
    upper = torch.where(unsafe >= 0.5, upper, torch.nextafter(upper, upper.new_tensor(torch.inf)))
    return safe.clamp(0, 1), upper.clamp(0, 1)


def unsafe_items(
    bounds: OutputBounds, weights: WeightBoxes, problem: Problem, points: Tensor, usable: Tensor
) -> Tensor:
    """(K, N): the point is in T and violates a case for all weights of the box."""
    lower, upper = point_box(problem, points)
    return violated_cases(bounds, weights, problem, lower, upper).any(-1) & usable


def last_of_each(problem: Problem, order: Tensor) -> Tensor:
    """The last item of each instance in the given order (scatter with duplicates has no defined winner)."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    top = torch.zeros(problem.instances, dtype=torch.int64, device=order.device)
    top = top.scatter_reduce(0, problem.instance, rank, "amax", include_self=False)
    return order[top]
