"""Rows over the expected softmax as a method of the decision's portfolio (`methods.decision`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.hidden import CentredForm
from bnn_vnnlib.bounds.walk import completed
from bnn_vnnlib.methods.decision.method import picked, rows_at
from bnn_vnnlib.methods.deterministic import MAX_SPLIT_INPUTS
from bnn_vnnlib.problem.outputs import over_box
from bnn_vnnlib.rounding import TINY, UNIT, gamma
from bnn_vnnlib.splitting.frontier import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

SPLIT = Effort(tolerance=1e-3, most=400)
"""How far the inputs of an item are split."""

_TOGETHER = 3
"""Boxes that all rows of an item share are this many times as many as those of a single row."""


class SoftmaxSource(ABC):
    """What bounds rows over the expected softmax on boxes; `name` is for people and the record."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers that one box takes."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of classes."""

    @abstractmethod
    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[CentredForm, Tensor]:
        """Lines and numbers (P, R) below the rows outputs (P or 1, R, m) . D over boxes (P, n)."""

    def context(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(N, c) what is known of boxes that also serves all boxes inside; nothing, by default."""
        return lower.new_zeros(len(lower), 0)

    def value(self, x: Tensor) -> Tensor | None:
        """(P, m): D at points (P, n), not rounded; None where that takes as long as a bound."""
        return None


@dataclass(frozen=True, eq=False)
class SoftmaxRows:
    """Lower bounds on c.D(x) + g.x from a source.

    Parameters
    ----------
    effort : split the inputs; None = one look at each box
    law_distance : of the law that the source bounds from that of the network (see `DenseChain`), as the source may take
        rounded weights as exact; a row over D, which lies between its least and largest coefficient, is off by as much
        times their difference
    """

    source: SoftmaxSource
    deadline: Deadline
    effort: Effort | None = None
    law_distance: float = 0.0

    @property
    def name(self) -> str:
        """Name of the source of bounds, for people and the record."""
        return self.source.name

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; outputs (N or 1, R, m), inputs alike or None."""
        if self.effort is None:
            return self._looked(lower, upper, outputs, inputs)[0]
        known, context = self._first(lower, upper, outputs, inputs)
        few = torch.nonzero((lower < upper)[: len(context)].sum(-1) <= MAX_SPLIT_INPUTS)[:, 0]
        if len(few) == 0:
            return known
        effort = replace(self.effort, most=_TOGETHER * self.effort.most)

        def bound(item: Tensor, low: Tensor, high: Tensor) -> Look:
            """All rows of the items together: most of the work on a box does not depend on the row."""
            item = few[item]
            return Look(*self._looked(low, high, picked(outputs, item), picked(inputs, item), context[item]), low, high)

        def value(item: Tensor, x: Tensor) -> Tensor:
            """The values themselves where the source knows them; else the bound, the best that can be hoped for."""
            expected = self.source.value(x)
            if expected is None:
                return bound(item, x, x).value
            return rows_at(expected, x, picked(outputs, few[item]), picked(inputs, few[item]))

        found = minimise(bound, value, lower[few], upper[few], known[few], effort, self.deadline)
        return known.index_copy(0, few, found)

    def towards(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, goal: Tensor) -> Tensor:
        """(N, R) lower bounds; no more is done than to exceed the goal (N, R), or to see that it cannot be reached."""
        if self.effort is None:
            return self._looked(lower, upper, outputs, inputs)[0]
        known, context = self._first(lower, upper, outputs, inputs)
        few = (lower < upper)[: len(context)].sum(-1) <= MAX_SPLIT_INPUTS
        rows = outputs.shape[1]
        aim = goal.expand_as(known)
        left = few[:, None] & ~(known > aim)[: len(context)]
        item, row = torch.nonzero(left, as_tuple=True)
        if len(item) == 0:
            return known
        outputs = outputs.expand(len(lower), rows, -1)[item, row][:, None]
        if inputs is not None:
            inputs = inputs.expand(len(lower), rows, -1)[item, row][:, None]

        def bound(target: Tensor, low: Tensor, high: Tensor) -> Look:
            some = None if inputs is None else inputs[target]
            return Look(*self._looked(low, high, outputs[target], some, context[item[target]]), low, high)

        each, goals = known[item, row, None], aim[item, row, None]  # every row for itself
        found = minimise(bound, None, lower[item], upper[item], each, self.effort, self.deadline, goals)
        return known.index_put((item, row), found[:, 0])

    def _first(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        """One look at each box (N, R), and the contexts (Q, c) of the first Q, which are all that time suffices for."""
        parts = self._parts(lower, outputs)
        found = self.deadline.reached(parts, lambda index: self.source.context(lower[index], upper[index]))
        context = torch.cat(found) if found else lower.new_zeros(0, 0)
        some = slice(len(context))
        known, _ = self._looked(lower[some], upper[some], picked(outputs, some), picked(inputs, some), context)
        return completed([known], (len(lower), outputs.shape[1]), -torch.inf, lower), context

    def _looked(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One look at each box: bounds (P, R), slopes (P, R, n)."""
        found = self.deadline.reached(
            self._parts(lower, outputs),
            lambda index: self._chunk(
                lower[index], upper[index], picked(outputs, index), picked(inputs, index),
                None if context is None else context[index],
            ),
        )  # fmt: skip
        shape = len(lower), outputs.shape[1]
        value = completed([value for value, _ in found], shape, -torch.inf, lower)
        return value, completed([slope for _, slope in found], (*shape, lower.shape[1]), 0.0, lower)

    def _parts(self, lower: Tensor, outputs: Tensor) -> Sequence[Tensor]:
        """Indices of boxes that are looked at together."""
        step = at_once(4 * (self.source.size + outputs.shape[1] * lower.shape[-1]))
        return torch.arange(len(lower), device=lower.device).split(step)

    def _chunk(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, context: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Bounds and slopes of rows over some boxes, the distance of the law included."""
        missing = self.source.count - outputs.shape[-1]  # a logit that is always 0
        outputs = torch.nn.functional.pad(outputs, (0, missing))
        lines, numbers = self.source.rows(lower, upper, outputs, context)
        if self.law_distance > 0:
            moved = self.law_distance * (outputs.amax(-1) - outputs.amin(-1)) * (1 + 8 * UNIT)
            lines, numbers = (
                CentredForm(lines.value - moved - 2 * UNIT * (lines.value.abs() + moved), lines.slope),
                numbers - moved - 2 * UNIT * (numbers.abs() + moved),
            )
        center = (lower + upper) / 2
        radius = torch.maximum(upper - center, center - lower) * (1 + 2 * UNIT)
        if inputs is not None:
            lines = _plus(lines, inputs, center, radius)
            moved = over_box(inputs, lower, upper)[0]
            numbers = numbers + moved - 2 * UNIT * (numbers.abs() + moved.abs())
        return torch.maximum(lines.minimum(radius), numbers.nan_to_num(-torch.inf)), lines.slope


def _plus(lines: CentredForm, inputs: Tensor, center: Tensor, radius: Tensor) -> CentredForm:
    """Add g . x = g . center + g . (x - center); each sum of slopes is one rounding."""
    slope = lines.slope + inputs
    at, size = (inputs @ center[..., None])[..., 0], (inputs.abs() @ center.abs()[..., None])[..., 0]
    paid = 2 * gamma(2 * center.shape[-1] + 8) * size + 4 * UNIT * (lines.value.abs() + at.abs()) + TINY
    return CentredForm(lines.value + at - paid - 2 * UNIT * CentredForm(at, slope).reach(radius), slope)
