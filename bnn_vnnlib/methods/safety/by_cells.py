"""P_safe of few latent numbers: boxes of inputs and latent numbers, split best first, of any graph.

Guarantee: sound with probability 1, rounding included; complete in the limit as far as linear bounds are.
1. Over a box of x and a cell C of z, every row is at least a.x + c.z + b (`methods.latents`), and at least c.z + d for
   all x of the box. So P(z in C, some x satisfies the row) <= P(z in C, c.z + d <= bound)
   (`gaussian.cells.half_space_mass`).
2. A case is satisfied no more often than each of its rows, and some case no more often than all together, or than C.
   These failures are the `own` bounds of a forest over (x, z): failures of parts add up, whichever way a box is split,
   and P_safe >= 1 - failures - P(z outside of all cells).
3. At one point x of T, a network is safe there only if in every case some row fails: P(z in C, safe at x) is at most
   the least over the cases of the sum over its rows of P(z in C, the row fails at x), or P(C) where the network may be
   undefined. Forests over z add that up, and P_safe is no more. At points units of a first layer are latent numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import LinearForm
from bnn_vnnlib.gaussian.cells import Cells, half_space_mass
from bnn_vnnlib.gaussian.normal import cdf_above
from bnn_vnnlib.methods.latents import REACH, LatentBounds, why_no_cells
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.safety import Pass, SafetyBounds, SafetyTask, at_points
from bnn_vnnlib.network.network import Gaussian
from bnn_vnnlib.problem.outputs import OutputBounds, outside
from bnn_vnnlib.problem.problem import Problem, Rows, point_box
from bnn_vnnlib.rounding import UP, up
from bnn_vnnlib.splitting.frontier import Forest
from bnn_vnnlib.system.memory import at_once

CELLS = "cells of weights"
"""Name of the method, for people and the record."""

_LEAVES, _MOST_LEAVES = 2**11, 2**17
"""Parts of an instance, at most: without a time limit, and with one."""

_ROUND, _CHUNK = 64, 2**10
"""Parts of an instance that a piece splits at least, and parts that are split between two looks at the clock."""


class CellSplitting:
    """A stage of the refinement: cells around the points that are known, and over the items.

    Parameters
    ----------
    task : of a posterior that cells serve
    """

    def __init__(self, task: SafetyTask) -> None:
        self._task, problem = task, task.problem
        posterior, device = cast(Gaussian, task.posterior), problem.lower.device
        points, values, usable = task.attacked
        order = torch.nonzero(usable)[:, 0]
        order = order[values[order].argsort(descending=True, stable=True)]
        nearest = torch.full((problem.instances,), -1, dtype=torch.int64, device=device)
        nearest[problem.instance[order]] = order  # of every instance the point that is nearest to a violation
        self._points, self._nearest = points, nearest[nearest >= 0]
        part = problem.items(self._nearest)
        lower, upper = point_box(part, points[self._nearest])
        self._sides = [(_Side(replace(part, lower=lower, upper=upper), _at(task, True), "safe"))]
        fixed = bool((problem.lower == problem.upper).all())
        if fixed or why_no_cells(task.bounds, posterior, at_points=False) is None:
            self._sides.append(_Side(problem, _at(task, fixed), "fails"))

    def due(self, turn: int) -> bool:
        """Whether it is the stage's turn: always."""
        return True

    def step(self, low: Tensor, high: Tensor) -> SafetyBounds | None:
        """Split the parts that matter most of the instances whose lower or upper bound is wanted."""
        most = _LEAVES if self._task.deadline.at is None else _MOST_LEAVES
        worked = [side.step(wanted, most) for side, wanted in zip(self._sides, (high, low), strict=False)]
        return self.bounds if any(worked) else None

    @property
    def bounds(self) -> SafetyBounds:
        """The bounds that the forests prove so far."""
        problem, (at, *over) = self._task.problem, self._sides
        lower = torch.zeros_like(at.total)
        for side in over:
            lower = torch.where(side.known, ((1 - side.total) / UP).clamp(0, 1), lower)
        mass = self._points.new_zeros(len(problem))
        mass[self._nearest] = ((1 - at.total[problem.instance[self._nearest]]) / UP).clamp(0, 1)
        return at_points(problem, self._points, mass, lower).named(CELLS)


def mass_at(bounds: OutputBounds, posterior: Gaussian, points: Problem, enough: float) -> float:
    """Lower bound on the largest mass that violates at one of the points (items of one instance each), from scratch:
    until it is enough, or nothing is left.
    """
    latents = LatentBounds.of(bounds, posterior, points.lower.device, at_points=True)
    side, best = _Side(points, latents, "safe"), 0.0
    everything = torch.ones_like(side.known)
    while best < enough and side.step(everything, _MOST_LEAVES):
        best = float(((1 - side.total) / UP).max())
    return best


def _at(task: SafetyTask, at_points: bool) -> LatentBounds:
    device = task.problem.lower.device
    return LatentBounds.of(task.bounds, cast(Gaussian, task.posterior), device, at_points=at_points)


class _Side:
    """Forests over x and z of the items of a problem, and bounds `total` (I,) on probabilities of its instances.

    Parameters
    ----------
    what : "fails": some x of an item violates, or "safe": the item, which is a point, does not
    """

    def __init__(self, problem: Problem, latents: LatentBounds, what: str) -> None:
        self._latents, self._deadline = latents, latents.bounds.engine.deadline
        self._problem, self._bound = self._joint(problem), self._failures if what == "fails" else self._successes
        self._forest: Forest | None = None
        self.known = torch.zeros(problem.instances, dtype=torch.bool, device=problem.lower.device)
        self.total = self.known.to(problem.lower) + 1
        self._left = True

    def step(self, wanted: Tensor, most: int) -> bool:
        """Do one piece of work for some instances (I,); False: nothing is left to do."""
        if not self._left or len(self._problem) == 0 or not bool(wanted.any()):
            return False
        if self._forest is None:
            found = self._deadline.reached([self._problem], self._bound)
            if not found:
                return False
            self._forest = Forest(self._problem, found[0])
        else:
            forest = self._forest
            count = torch.bincount(forest.instance, minlength=len(wanted))
            index = forest.worst(wanted & (count < most), (count // 4).clamp(min=_ROUND))
            if len(index) == 0:
                self._left = False
                return False

            def split(part: Tensor) -> None:
                forest.split(part, self._steepness(forest.boxes(part)), self._bound)

            step = min(_CHUNK, at_once(64 * self._problem.lower.shape[1]))
            self._deadline.reached(index.split(step), split)
        beyond = 2 * self._latents.latents * cdf_above(self.total.new_tensor(-REACH))
        roots = self._forest.roots() + beyond
        instance = self._problem.instance
        self.total = torch.zeros_like(self.total).index_add(0, instance, roots) * UP
        self.known = self.known.index_fill(0, instance, True)
        self.total = torch.where(self.known, self.total, 1.0)
        return True

    def _joint(self, problem: Problem) -> Problem:
        """A problem over x as one over (x, z), the latent numbers z (k,) anywhere in [-REACH, REACH]."""
        k = self._latents.latents
        end = problem.lower.new_full((len(problem), k), REACH)

        def padded(part: Tensor | None) -> Tensor | None:
            return None if part is None else torch.nn.functional.pad(part, (0, k))

        rows = replace(problem.rows, inputs=padded(problem.rows.inputs))
        constraints = problem.constraints
        if constraints is not None:
            constraints = replace(constraints, inputs=torch.nn.functional.pad(constraints.inputs, (0, k)))
        lower, upper = torch.cat([problem.lower, -end], -1), torch.cat([problem.upper, end], -1)
        inner = torch.cat([problem.inner_lower, -end], -1), torch.cat([problem.inner_upper, end], -1)
        return replace(
            problem, lower=lower, upper=upper, inner_lower=inner[0], inner_upper=inner[1], rows=rows,
            constraints=constraints,
        )  # fmt: skip

    def _half_spaces(self, problem: Problem, sign: float) -> tuple[Tensor, Tensor]:
        """(N, R): P(z in C, some x of the box has sign (a.y + g.x) <= sign bound), from above, and P(C) (N,)."""
        n, rows = self._latents.inputs, problem.rows
        inputs = None if rows.inputs is None else sign * rows.inputs[..., :n]
        least, form = self._latents.rows(problem.lower, problem.upper, sign * rows.outputs, inputs)
        self._deadline.check()  # what it cut off is -inf
        box = Interval(problem.lower[None, :, :n], problem.upper[None, :, :n])
        floor = LinearForm(form.slope[..., :n], form.offset).minimum(box)[0]
        bound = rows.bound if sign > 0 else -rows.inner_bound
        level = up(bound - floor).nan_to_num(torch.inf, torch.inf, torch.inf)
        slope, (count, height) = form.slope[0, ..., n:], level.shape
        usable = torch.isfinite(slope).all(-1) & torch.isfinite(level)
        low, high = (side[:, None, n:].expand(-1, height, -1).flatten(0, 1) for side in (problem.lower, problem.upper))
        slope, level = torch.where(usable[..., None], slope, 0.0), torch.where(usable, level, torch.inf)
        mass = half_space_mass(slope.flatten(0, 1), level.flatten(), low, high).unflatten(0, (count, height))
        never = _row_never(rows, least, bound, sign)
        return mass.masked_fill(never, 0.0), Cells.of(problem.lower[:, n:], problem.upper[:, n:]).most

    def _failures(self, problem: Problem) -> Tensor:
        """Upper bounds (N,) on P(z in the item's cell, some case is satisfied in its box) (step 2)."""
        each, most = self._half_spaces(problem, 1.0)
        cases = _by_case(problem, torch.minimum(each, most[:, None]), most, "amin")
        total = torch.where(problem.exists, cases, 0.0).sum(-1) * UP
        none = outside(problem, problem.lower, problem.upper)
        return torch.where(none, 0.0, torch.minimum(total, most))

    def _successes(self, problem: Problem) -> Tensor:
        """Upper bounds (N,) on P(z in the item's cell, the network is safe at its point) (step 3)."""
        each, most = self._half_spaces(problem, -1.0)
        cases = _by_case(problem, each, torch.zeros_like(most), "sum")
        least = torch.where(problem.exists, cases, torch.inf).amin(-1) * UP
        known = self._latents.defined(problem.lower, problem.upper)
        return torch.where(known, torch.minimum(least, most), most)

    def _steepness(self, problem: Problem) -> Tensor:
        """(N, n + k): how much the slope of the row varies that is nearest to its bound at the centre."""
        rows, n = problem.rows, self._latents.inputs
        center = (problem.lower + problem.upper) / 2
        outputs = rows.outputs.expand(len(problem), -1, -1)
        value = (outputs * self._latents.values(center[None])[0][:, None]).sum(-1) - rows.bound
        inputs = None if rows.inputs is None else rows.inputs.expand(len(problem), -1, -1)[..., :n]
        if inputs is not None:
            value = value + (inputs * center[:, None, :n]).sum(-1)
        distance = torch.where(rows.case < problem.cases, value.abs(), torch.inf).nan_to_num(torch.inf)
        row = distance.argmin(-1)
        place = torch.arange(len(row), device=row.device)
        moved = None if inputs is None else inputs[place, row]
        return self._latents.curvature(problem.lower, problem.upper, outputs[place, row], moved)


def _row_never(rows: Rows, lower: Tensor, bound: Tensor, sign: float) -> Tensor:
    """(N, R): ranges alone show that the half-space is missed on the whole box."""
    return rows.excluded(lower) if sign > 0 else lower > bound


def _by_case(problem: Problem, rows: Tensor, start: Tensor, how: str) -> Tensor:
    """(N, C): the least value, or the sum, of the rows (N, R) of each case, from `start` (N,) on."""
    found = start[:, None].repeat(1, problem.cases + 1)
    case = problem.rows.case.expand(len(problem), -1)
    return found.scatter_reduce(1, case, rows, how)[:, :-1]


def _serves(task: SafetyTask) -> str | None:
    if task.means == "boxes" or task.boxes != "mean" or task.margin is not None:
        return "boxes of weights are asked for"
    return why_no_cells(task.bounds, task.posterior)


def _one_pass(task: SafetyTask, known: SafetyBounds | None) -> SafetyBounds:
    """Bounds of the method by itself: its pieces until the goal or the deadline is reached."""
    stage, found = CellSplitting(task), known or task.nothing
    while bool((open_ := task.goal.open(found)).any()) and not task.deadline.passed:
        news = stage.step(open_, open_)
        if news is None:
            break
        found = found.better(news)
    return found


BY_CELLS: Method[SafetyTask, Pass] = Method(CELLS, _serves, _one_pass)
