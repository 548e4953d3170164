"""Anytime refinement of bounds on P_safe: pieces of work in turn until the question is decided or nothing is left.

Guarantee: bounds only ever improve, since each piece of work yields valid bounds of its own and the tighter one is
kept; whatever has been reached when time is up stays. A stage treats the instances independently of each other, so
that nothing depends on the neighbours or the order, except for where time is cut off.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from bnn_vnnlib.methods.safety.safety import Goal, SafetyBounds
from bnn_vnnlib.system.clock import Deadline

GAIN = 0.01
"""What a turn has to gain on a side that leads to no verdict, for the next one to ask for it again."""


class Stage(Protocol):
    """A kind of work that comes in pieces of limited size."""

    def due(self, turn: int) -> bool:
        """Whether the stage has a piece in that turn (0, 1, ...), while others have."""

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """The next piece for the instances whose lower (I,) or upper (I,) bound is wanted; None: nothing is left.

        A piece that time cuts off returns what it has.
        """


def refine(found: SafetyBounds, goal: Goal, stages: Sequence[Stage], deadline: Deadline) -> SafetyBounds:
    """Better bounds: the stages take turns.

    Parameters
    ----------
    found : the bounds so far, of all instances
    stages : in the order of their turns
    """
    left, course = list(stages), _Course()
    hopeful = torch.ones_like(found.lower, dtype=torch.bool)  # that the side without a verdict ends the work
    for turn in itertools.count():
        before = found
        for stage in [stage for stage in left if stage.due(turn)] or left:
            open_ = goal.open(found)
            course.add(found)
            if deadline.passed or not bool(open_.any()):
                return course.ended(found)
            below, above = (found.upper >= goal.safe) | hopeful, (found.lower < goal.unsafe) | hopeful
            news = stage.step(open_ & below, open_ & above)
            if news is None:
                left = [other for other in left if other is not stage]
            else:
                found = found.better(news)
        if not left:
            break
        no_sat, no_unsat = before.lower >= goal.unsafe, before.upper < goal.safe
        gained = torch.where(no_sat, before.upper - found.upper, found.lower - before.lower) > GAIN
        hopeful = hopeful & (gained | ~(no_sat | no_unsat))
    return course.ended(found)


class _Course:
    """When the bounds of a single instance were what, for whoever asks whether more time would help."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float, float]] = []

    def add(self, found: SafetyBounds) -> None:
        """Note the bounds, where they are new."""
        if len(found.lower) == 1:
            now = time.monotonic(), float(found.lower), float(found.upper)
            if not self._marks or now[1:] != self._marks[-1][1:]:
                self._marks.append(now)

    def ended(self, found: SafetyBounds) -> SafetyBounds:
        """The bounds in the end, with those when three quarters of the time were used."""
        if not self._marks:
            return found
        first = self._marks[0][0]
        then = first + 0.75 * (time.monotonic() - first)
        return replace(found, three_quarters=[(low, high) for at, low, high in self._marks if at <= then][-1])


def rarely(turn: int) -> bool:
    """At turns 0, 1, 2, 4, 8, ...: for work that is mostly tried again in vain, or grows from piece to piece."""
    return turn & (turn - 1) == 0


def owned(chosen: Tensor, instance: Tensor) -> Tensor:
    """Indices of the items whose instance is chosen (I,)."""
    return torch.nonzero(chosen[instance])[:, 0]
