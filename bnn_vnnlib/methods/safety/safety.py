"""What is asked of the methods of P_safe, the bounds that they give, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.method import NONE
from bnn_vnnlib.network.network import Posterior
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, feasible, point_box
from bnn_vnnlib.problem.refute import violated_cases
from bnn_vnnlib.system.clock import Deadline

Means = Literal["both", "boxes", "tails"]
"""How a Gaussian posterior is bounded: boxes of weights, tails and what refines them, or the better of both."""

_CLOSED = 1e-9
"""Bounds that are this close to each other are not refined."""

CASELESS = "nothing to violate"
"""Name in the place of a method's: for the lower bound 1 of an instance without a case."""

DRAWN = "drawn networks"
"""The method behind bounds with a stated confidence."""

NAMES = (
    NONE, CASELESS, "centred boxes", "boxes around samples", "weight samples", "tails", "large variance",
    "components of a mixture", "cells of weights", DRAWN, "last layer",
)  # fmt: skip
"""What a bound may be due to; `SafetyBounds.by` holds positions in this tuple."""


@dataclass(frozen=True, eq=False)
class DrawCounts:
    """Numbers of draws for I instances, (I,) each: those counted, those proved safe, and those proved to violate.

    Where a part of each network was drawn (`layers` of its random layers, in some of the draws at least), a draw counts
    with the probabilities that are proved of the rest.
    """

    counted: Tensor
    safe: Tensor
    violating: Tensor
    layers: int | None = None

    @property
    def open(self) -> Tensor:
        """Numbers (I,) of counted draws that are proved neither safe nor violating."""
        return self.counted - self.safe - self.violating


@dataclass(frozen=True, eq=False)
class SafetyBounds:
    """Bounds of I instances, and what they rest on.

    lower, upper (I,); point (I, n): the attacked x behind the upper bound (where it is below 1); point_mass (I,): lower
    bound on P_w(violated at `point` alone); by (2, I): which method gave the lower and the upper bound, as positions in
    NAMES; safe_margin, unsafe_margin (I,): margins of the boxes in sd (nan where there is none); violating (S, I):
    samples with a proved violation, or None; three_quarters: the bounds of the only instance when three quarters of the
    refinement's time were used, or None; draws: behind bounds with a stated confidence, else None.
    """

    lower: Tensor
    upper: Tensor
    point: Tensor
    point_mass: Tensor
    by: Tensor
    safe_margin: Tensor
    unsafe_margin: Tensor
    violating: Tensor | None = None
    three_quarters: tuple[float, float] | None = None
    draws: DrawCounts | None = None

    def named(self, method: str) -> SafetyBounds:
        """These bounds as found by that method, on each side that says anything."""
        told = torch.stack([self.lower > 0, self.upper < 1])
        return replace(self, by=told.to(torch.int8) * NAMES.index(method))

    @property
    def methods(self) -> tuple[list[str], list[str]]:
        """The names of the methods behind the lower bounds of the I instances, and behind their upper bounds."""
        lower, upper = ([NAMES[position] for position in side] for side in self.by.tolist())
        return lower, upper

    def better(self, other: SafetyBounds) -> SafetyBounds:
        """The tighter of two valid bounds for each instance and each side, with what it rests on."""
        below, above = other.lower > self.lower, other.upper < self.upper

        def above_or(theirs: Tensor, ours: Tensor) -> Tensor:
            return torch.where(above if theirs.dim() == 1 else above[:, None], theirs, ours)

        return SafetyBounds(
            torch.where(below, other.lower, self.lower),
            above_or(other.upper, self.upper),
            above_or(other.point, self.point),
            above_or(other.point_mass, self.point_mass),
            torch.where(torch.stack([below, above]), other.by, self.by),
            torch.where(below, other.safe_margin, self.safe_margin),
            above_or(other.unsafe_margin, self.unsafe_margin),
        )


@dataclass(frozen=True)
class Goal:
    """The thresholds on P_safe: decided where the lower bound reaches `safe` or the upper one falls below `unsafe`.

    With two different thresholds, P_safe may also lie between: no verdict follows from lower >= `unsafe` and
    upper < `safe`, however good the bounds become.

    gap : instead, both bounds have to be as close; None: the thresholds end the work
    """

    safe: float
    unsafe: float
    gap: float | None = None

    def open(self, found: SafetyBounds) -> Tensor:
        """(I,): neither decided nor between, so that better bounds can still tell; or too far apart.

        Where sat is out of reach (lower >= `unsafe`), the lower bound may still lead to unsat, and the upper one show
        that nothing does; the other way round where unsat is out of reach.
        """
        if self.gap is not None:
            return found.upper - found.lower > max(self.gap, _CLOSED)
        decided = (found.lower >= self.safe) | (found.upper < self.unsafe)
        between = (found.lower >= self.unsafe) & (found.upper < self.safe)
        return ~(decided | between) & (found.upper - found.lower > _CLOSED)


@dataclass(frozen=True, eq=False)
class SafetyTask:
    """P_safe of every instance of a problem: what is asked, and what may be spent on it.

    Attributes
    ----------
    bounds, posterior, problem : what is bounded
    attack, deadline, goal : points are looked for, and bounds refined, until the goal is reached or time is up
    means : for a Gaussian posterior: tails, boxes at the mean, or the better of both
    boxes, number : "sampled" takes `number` boxes around samples instead
    margin : of the boxes in standard deviations; None: searched (2.5 if sampled)
    """

    bounds: OutputBounds
    posterior: Posterior
    problem: Problem
    attack: Attack
    deadline: Deadline
    goal: Goal
    means: Means = "both"
    boxes: str = "mean"
    number: int = 5
    margin: float | None = None

    @cached_property
    def attacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """Points (N, n) at which the mean network is the nearest to a violation, its values (N,), and whether they
        surely lie in T (N,).
        """
        network, transform = self.bounds.engine.network, self.bounds.transform
        points, values = (part[0] for part in attack.run(network, self.problem, {}, self.attack, transform))
        return points, values, feasible(self.problem, points)

    @property
    def nothing(self) -> SafetyBounds:
        """[0, 1] for every instance, at the attacked points."""
        return nothing_known(self.problem, self.attacked[0])


Pass = Callable[[SafetyTask, SafetyBounds | None], SafetyBounds]
"""One pass of a method over the instances of a task: bounds no worse than those that are known already, if any."""


def nothing_known(problem: Problem, points: Tensor) -> SafetyBounds:
    """[0, 1] for every instance; points (N, n)."""
    zero = torch.zeros(problem.instances, dtype=torch.float64, device=points.device)
    nan, nobody = torch.full_like(zero, torch.nan), torch.zeros(2, len(zero), dtype=torch.int8, device=zero.device)
    point = points[last_of_each(problem, torch.arange(len(problem), device=points.device))]
    return SafetyBounds(zero, zero + 1, point, zero, nobody, nan, nan)


def from_masses(safe: Tensor, unsafe: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds on P_safe from lower bounds on the safe and the unsafe mass; 1 - unsafe is exact from .5 on (Sterbenz),
    else rounded up.
    """
    upper = 1.0 - unsafe
    upper = torch.where(unsafe >= 0.5, upper, torch.nextafter(upper, upper.new_tensor(torch.inf)))
    return safe.clamp(0, 1), upper.clamp(0, 1)


def at_points(problem: Problem, points: Tensor, mass: Tensor, lower: Tensor | None = None) -> SafetyBounds:
    """What points (N, n) give: of each instance the one at which the most mass violates counts.

    mass (N,) : lower bounds on P_w(violated at the item's point); lower (I,) : on P_safe; None: 0
    """
    found, best = nothing_known(problem, points), last_of_each(problem, torch.argsort(mass, stable=True))
    below, upper = from_masses(found.lower if lower is None else lower, mass[best])
    return replace(found, lower=below, upper=upper, point=points[best], point_mass=mass[best])


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
