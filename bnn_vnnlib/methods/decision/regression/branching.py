"""Minima of rows over boxes of inputs, from a relaxation that also bounds their slopes.

Guarantee: the result is a lower bound, as good as the relaxation's; complete only in the limit.
Method: `splitting.minimise`, and where a slope has one sign on a box, its minimum lies on a face, which takes the
place of the box.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnn_vnnlib.methods.decision.regression.rows import Rows
from bnn_vnnlib.splitting.minimise import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

ACCURACY = 2e-4
"""Tolerance relative to how much the row varies over its box."""

BOXES = 2**13
"""Boxes of one row, at most."""

COLLAPSES = 3
"""Times that a box is bounded anew after it became a face."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """Of boxes (B, n): lower bounds (B,), and ranges of the slopes (B, n) each."""

    value: Tensor
    slope_low: Tensor
    slope_high: Tensor

    def where(self, mask: Tensor, other: Bounded) -> Bounded:
        """Replace the entries of the mask, in order, by those of the other; bounds only improve."""
        value, low, high = self.value.clone(), self.slope_low.clone(), self.slope_high.clone()
        value[mask] = torch.maximum(value[mask], other.value)
        low[mask], high[mask] = other.slope_low, other.slope_high
        return Bounded(value, low, high)


class Relaxation(Protocol):
    """What is minimised; bounds of a box must not depend on the other boxes."""

    def value(self, rows: Rows, x: Tensor) -> Tensor:
        """Values at points, not rounded."""
        ...

    def bound(self, rows: Rows, lower: Tensor, upper: Tensor) -> Bounded:
        """Rigorous bounds over boxes."""
        ...

    @property
    def size(self) -> int:
        """Numbers that one box takes, about."""
        ...


def least_over(relaxation: Relaxation, rows: Rows, lower: Tensor, upper: Tensor, deadline: Deadline) -> Tensor:
    """Lower bounds (M,) on the rows, each over its box (M, n), which is bounded once whatever the time."""

    def bound(row: Tensor, lower: Tensor, upper: Tensor) -> Look:
        """Of the boxes, after those with a slope of one sign have become faces."""
        some = rows.of(row)
        found = relaxation.bound(some, lower, upper)
        for _ in range(COLLAPSES):
            rising, falling = found.slope_low >= 0, found.slope_high <= 0
            low, high = torch.where(falling & ~rising, upper, lower), torch.where(rising, lower, upper)
            changed = ((low != lower) | (high != upper)).any(-1)
            if not bool(changed.any()):
                break
            lower, upper = low, high
            found = found.where(changed, relaxation.bound(some.of(changed), lower[changed], upper[changed]))
        steeper = torch.where(found.slope_high.abs() >= found.slope_low.abs(), found.slope_high, found.slope_low)
        return Look(found.value[:, None], steeper[:, None], lower, upper)

    def value(row: Tensor, x: Tensor) -> Tensor:
        return relaxation.value(rows.of(row), x)[:, None]

    batch = at_once(32 * relaxation.size)
    effort = Effort(8 * rows.payment[:, None], BOXES, batch, ACCURACY, once=True)
    known = lower.new_full((len(lower), 1), -torch.inf)
    return minimise(bound, value, lower, upper, known, effort, deadline)[:, 0]
