"""Bounds on P_safe from a box of weights by splitting the inputs.

Lower: all parts are proved for the same box of weights, and so its mass holds for their union: splits cost no
probability. Upper: a point of T that violates for all weights of the box violates with at least its mass.
As the standard deviations vanish, the box of a given mass shrinks to the mean network, and this to branch and bound of
the deterministic question.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.methods.safety.by_boxes import CENTRED, CentredBoxes, mass_at
from bnn_vnnlib.methods.safety.refine import owned, rarely
from bnn_vnnlib.methods.safety.safety import SafetyBounds, from_masses, last_of_each, nothing_known
from bnn_vnnlib.problem.problem import point_box
from bnn_vnnlib.problem.refute import before_softmax
from bnn_vnnlib.problem.weight_sets import margin_of
from bnn_vnnlib.splitting.branch import Branching, Decided

FIRST = 2**6
"""Boxes of inputs spent on an item in the first piece of work; four times as many in each further one."""

PIECES, MOST_PIECES = 2, 20
"""Pieces where no time limit is given, and where one is: the last of them is longer than anybody waits, unless there is
nothing to split."""

INPUTS = 20
"""Inputs that vary, at most, where only what is likely is tried: parts of more of them stay large."""


class BoxSplitting:
    """A stage (see `refine`): the box whose mass is just the wanted lower bound, or the given one.

    Parameters
    ----------
    boxes : at the posterior mean
    points : (N, n) attacked points, in their boxes
    mass : the lower bound that is wanted
    only_likely : only the instances that pass `_likely`
    """

    def __init__(self, boxes: CentredBoxes, points: Tensor, mass: float, *, only_likely: bool = False) -> None:
        self._boxes, self._points, self._pieces = boxes, points, 0
        self._only_likely, self._chosen = only_likely, torch.ones(boxes.problem.instances, dtype=torch.bool)
        if boxes.count == 0:
            self._margin = 0.0
        elif boxes.margin is not None:
            self._margin = boxes.margin
        else:  # a little more, so that the mass that is computed from the margin does not fall short
            wanted = mass + 1e-3 * (1 - mass)
            self._margin = float(margin_of(np.array([wanted]), boxes.count)[0]) if wanted < 1 else float("inf")

    def due(self, turn: int) -> bool:
        """Less and less often, since the pieces grow."""
        return rarely(turn)

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """Branch and bound over the items of each instance, from the start, with more boxes each time."""
        most_pieces = PIECES if self._boxes.deadline.at is None else MOST_PIECES
        if not np.isfinite(self._margin) or self._pieces >= most_pieces:
            return None
        if self._only_likely and self._pieces == 0 and bool(below.any()):
            self._chosen = self._likely(below)
        below = below & self._chosen.to(below.device)
        if not bool(below.any()):
            return None
        index = owned(below, self._boxes.problem.instance)
        part = self._boxes.problem.items(index)
        every = torch.ones(1, len(part), dtype=torch.bool, device=index.device)
        bounds = before_softmax(self._boxes.bounds, part)
        most = FIRST * 4**self._pieces
        self._pieces += 1
        weights = self._boxes.weights.scaled(self._scale(index))
        return self._proved(below, index, Branching(bounds, weights, part, every, most).run())

    def _scale(self, index: Tensor) -> Tensor:
        return torch.full((1, 1), self._margin, dtype=torch.float64, device=index.device)

    def _proved(self, below: Tensor, index: Tensor, found: Decided) -> SafetyBounds:
        """Bounds from what is proved of the items `index` for the box."""
        problem = self._boxes.problem
        safe = torch.ones(len(problem), dtype=torch.bool, device=index.device)
        violated, points = torch.zeros_like(safe), self._points.clone()
        safe[index], violated[index], points[index] = found.safe[0], found.violated[0], found.point[0]
        nothing = torch.full_like(below, torch.nan, dtype=torch.float64)
        above = torch.where(problem.any_item(violated), self._margin, nothing)
        mass = mass_at(above, self._boxes.count)
        # each instance's point is that of its last violated item, if there is one
        which = last_of_each(problem, torch.argsort(violated.to(torch.int8), stable=True))
        from_above = replace(
            nothing_known(problem, points), upper=from_masses(mass, mass)[1], point=points[which], point_mass=mass,
            unsafe_margin=above,
        ).named(CENTRED.name)  # fmt: skip
        below_margin = torch.where(problem.all_items(safe) & below, self._margin, nothing)
        return from_above.better(self._boxes.proved(self._points, below_margin))

    def _likely(self, below: Tensor) -> Tensor:
        """(I,): few inputs vary, and no item's attacked point alone violates a case for any weights of the box.

        Where it fails no part with that point is ever refuted, however small. No bound rests on it.
        """
        problem = self._boxes.problem
        few = (problem.lower < problem.upper).sum(-1) <= INPUTS
        index = owned(below & problem.all_items(few), problem.instance)
        refuted = torch.zeros_like(few)
        if len(index):
            part = problem.items(index)
            lower, upper = point_box(part, self._points[index])
            bounds, weights = before_softmax(self._boxes.bounds, part), self._boxes.weights.scaled(self._scale(index))
            rows = part.rows
            least = bounds.rows(weights, lower, upper, rows.outputs, rows.inputs).lower
            refuted[index] = part.refuted(rows.excluded(least)).all(-1)[0]
        return problem.all_items(refuted)
