"""Bounds on P_safe as data, and what every way to them shares: points of T and what is unsafe at them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Constraints, Problem
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


def feasible(problem: Problem, x: Tensor) -> Tensor:
    """(N,): x (N, n) satisfies the item's constraints exactly (rational arithmetic); the boxes hold by construction.

    Where x stands for a real point between two floats (see `point_box`), all of what is between must satisfy them.
    """
    extra = problem.constraints
    if extra is None:
        return torch.ones(len(problem), dtype=torch.bool, device=x.device)
    lower, upper = point_box(problem, x)
    answers = [_satisfies(extra, i, lower[i], upper[i]) for i in range(len(x))]
    return torch.tensor(answers, dtype=torch.bool, device=x.device)


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
