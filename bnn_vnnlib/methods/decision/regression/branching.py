"""Minimum of many rows over boxes of inputs, by splitting all of their boxes at once.

Guarantee: the result is a lower bound, as good as the relaxation's; complete only in the limit.
Method: breadth first. Where a slope has one sign on a box, its minimum lies on a face, and the box becomes that face.
A box is done when its bound comes within the tolerance of a value that the row attains; others are halved along the
coordinate with the largest width times slope. The bound of a row is the least bound of its boxes that are done.
The tolerance rests on attained values, which need no rounding: they decide how long to work, never what is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnn_vnnlib.methods.decision.regression.rows import Rows
from bnn_vnnlib.system.clock import Deadline

CHUNK = 2**19
"""Numbers (boxes times what one takes) of one call, at most about."""

ACCURACY = 2e-4
"""Tolerance relative to how much the row varies over its box."""

BOXES = 4096
"""Boxes of one row, at most about."""

ROUNDS = 60
"""Halvings, at most."""

COLLAPSES = 3
"""Times that a box is bounded anew after it became a face."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """Of boxes (B, n): lower bounds (B,), ranges of the slopes (B, n) each, points that may be minimal (B, n)."""

    value: Tensor
    slope_low: Tensor
    slope_high: Tensor
    point: Tensor

    def where(self, mask: Tensor, other: Bounded) -> Bounded:
        """Replace the entries of the mask, in order, by those of the other; bounds only improve."""
        value, low, high, point = (side.clone() for side in (self.value, self.slope_low, self.slope_high, self.point))
        value[mask] = torch.maximum(value[mask], other.value)
        low[mask], high[mask], point[mask] = other.slope_low, other.slope_high, other.point
        return Bounded(value, low, high, point)


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


@dataclass(frozen=True, eq=False)
class _Boxes:
    """Open boxes: owner (B,), lower and upper (B, n)."""

    owner: Tensor
    lower: Tensor
    upper: Tensor

    def of(self, mask: Tensor) -> _Boxes:
        return _Boxes(self.owner[mask], self.lower[mask], self.upper[mask])


def minimise(
    relaxation: Relaxation, rows: Rows, lower: Tensor, upper: Tensor, deadline: Deadline, boxes: int = BOXES
) -> Tensor:
    """Lower bounds (M,) on the rows, each over its box (M, n)."""
    count = len(lower)
    boxes_open = _Boxes(torch.arange(count, device=lower.device), lower, upper)
    inherited = lower.new_full((count,), -torch.inf)
    best, finished, used = -inherited, -inherited, torch.zeros(count, dtype=torch.int64, device=lower.device)
    tolerance = torch.zeros_like(best)
    for turn in range(ROUNDS + 1):
        owner = boxes_open.owner
        found, boxes_open = _bounded(relaxation, rows, boxes_open)
        value = torch.maximum(found.value.nan_to_num(-torch.inf, torch.inf, -torch.inf), inherited)
        middle = (boxes_open.lower + boxes_open.upper) / 2
        attained = [_values(relaxation, rows, owner, x) for x in (found.point, middle)]
        best = best.scatter_reduce(0, owner, torch.minimum(*attained), "amin")
        if turn == 0:
            opposite = _values(relaxation, rows, owner, lower + upper - found.point)
            tolerance = _tolerance(rows, torch.stack([*attained, opposite]))
        used = used + torch.bincount(owner, minlength=count)
        hopeless = ~torch.isfinite(rows.payment)
        over = (hopeless | (used > boxes))[owner] | (turn == ROUNDS) | deadline.passed
        width = (boxes_open.upper - boxes_open.lower).amax(-1)
        keep = (value < (best - tolerance)[owner]) & ~over & (width > 0)
        finished = finished.scatter_reduce(0, owner[~keep], value[~keep], "amin")
        if not bool(keep.any()):
            return finished
        boxes_open, inherited = _halves(boxes_open.of(keep), found, keep), value[keep].repeat(2)
    return finished


def _tolerance(rows: Rows, values: Tensor) -> Tensor:
    """From the values at the candidate, the middle and the opposite corner (3, M)."""
    varies = values.amax(0) - values.amin(0)
    return ACCURACY * varies + 8 * rows.payment + 1e-12 * values.abs().amax(0)


def _step(relaxation: Relaxation) -> int:
    return max(1, CHUNK // max(1, relaxation.size))


def _values(relaxation: Relaxation, rows: Rows, owner: Tensor, x: Tensor) -> Tensor:
    step = _step(relaxation)
    parts = [relaxation.value(rows.of(o), p) for o, p in zip(owner.split(step), x.split(step), strict=True)]
    return torch.cat(parts).nan_to_num(torch.inf, torch.inf, torch.inf)


def _bounded(relaxation: Relaxation, rows: Rows, boxes: _Boxes) -> tuple[Bounded, _Boxes]:
    """Bounds of all boxes, after those with a slope of one sign have become faces."""
    found = _bound(relaxation, rows, boxes)
    for _ in range(COLLAPSES):
        rising, falling = found.slope_low >= 0, found.slope_high <= 0
        lower = torch.where(falling & ~rising, boxes.upper, boxes.lower)
        upper = torch.where(rising, boxes.lower, boxes.upper)
        changed = ((lower != boxes.lower) | (upper != boxes.upper)).any(-1)
        if not bool(changed.any()):
            break
        boxes = _Boxes(boxes.owner, lower, upper)
        found = found.where(changed, _bound(relaxation, rows, boxes.of(changed)))
    return found, boxes


def _bound(relaxation: Relaxation, rows: Rows, boxes: _Boxes) -> Bounded:
    step = _step(relaxation)
    parts = [
        relaxation.bound(rows.of(owner), lower, upper)
        for owner, lower, upper in zip(
            boxes.owner.split(step), boxes.lower.split(step), boxes.upper.split(step), strict=True
        )
    ]
    return Bounded(*(torch.cat([getattr(p, k) for p in parts]) for k in Bounded.__dataclass_fields__))


def _halves(boxes: _Boxes, found: Bounded, keep: Tensor) -> _Boxes:
    """Two boxes from each, at the middle of the coordinate that matters most."""
    steep = torch.maximum(found.slope_low[keep].abs(), found.slope_high[keep].abs()).nan_to_num(1.0, 1e300, 1e300)
    width = boxes.upper - boxes.lower
    score = torch.where(width > 0, width * (steep + 1e-300), torch.full_like(width, -1.0))
    axis = score.argmax(-1, keepdim=True)
    middle = ((boxes.lower + boxes.upper) / 2).gather(-1, axis)
    left, right = boxes.upper.scatter(-1, axis, middle), boxes.lower.scatter(-1, axis, middle)
    return _Boxes(boxes.owner.repeat(2), torch.cat([boxes.lower, right]), torch.cat([left, boxes.upper]))
