"""Lower bounds on P_safe from a box of weights by splitting the inputs.

All parts are proved for the same box of weights, and so its mass holds for their union: splits cost no probability.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.robustness.branch import Branching
from bnn_vnnlib.robustness.by_boxes import CentredBoxes
from bnn_vnnlib.robustness.mass import margin_of
from bnn_vnnlib.robustness.refine import owned, rarely
from bnn_vnnlib.robustness.refute import before_softmax
from bnn_vnnlib.robustness.safety import SafetyBounds

FIRST = 2**6
"""Boxes of inputs spent on an item in the first piece of work; four times as many in each further one."""

PIECES = 2
"""Pieces where no time limit is given."""


class BoxSplitting:
    """A stage (see `refine`): the box whose mass is just the wanted lower bound, or the given one.

    Parameters
    ----------
    boxes : at the posterior mean
    points : (N, n) any points, for the record
    mass : the lower bound that is wanted
    """

    def __init__(self, boxes: CentredBoxes, points: Tensor, mass: float) -> None:
        self._boxes, self._points, self._pieces = boxes, points, 0
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
        limited = self._boxes.deadline.at is None
        if not bool(below.any()) or not np.isfinite(self._margin) or (limited and self._pieces >= PIECES):
            return None
        problem = self._boxes.problem
        index = owned(below, problem.instance)
        part = problem.items(index)
        scale = torch.full((1, 1), self._margin, dtype=torch.float64, device=index.device)
        every = torch.ones(1, len(part), dtype=torch.bool, device=index.device)
        bounds = before_softmax(self._boxes.bounds, part)
        most = FIRST * 4**self._pieces
        self._pieces += 1
        safe = torch.ones(len(problem), dtype=torch.bool, device=index.device)
        safe[index] = Branching(bounds, self._boxes.weights.scaled(scale), part, every, most).run().safe[0]
        margin = torch.full_like(below, torch.nan, dtype=torch.float64)
        margin[problem.all_items(safe) & below] = self._margin
        return self._boxes.proved(self._points, margin)
