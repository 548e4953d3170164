"""Pairs of a weight setting and an item, each with an input box of its own: what branch and bound works on.

The engine bounds K weight settings x M items. A frontier is ragged: some settings have thousands of open boxes and most
have none. Pairs are sorted by setting and padded to such grids, in few groups of settings with about as many boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model.evaluate import evaluate
from bnn_vnnlib.robustness.attack import transformed
from bnn_vnnlib.robustness.outputs import OutputBounds
from bnn_vnnlib.robustness.problem import Problem


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs.

    Attributes
    ----------
    bounds, weights : the engine and the K weight settings (or boxes)
    setting : (P,) which of the K
    problem : P items, one instance
    """

    bounds: OutputBounds
    weights: WeightBoxes
    setting: Tensor
    problem: Problem

    @cached_property
    def _grids(self) -> list[tuple[Tensor, Tensor]]:
        """(settings (K'), index (K', M') into the pairs); padding repeats a pair."""
        order = torch.argsort(self.setting, stable=True)
        settings, counts = torch.unique_consecutive(self.setting[order], return_counts=True)
        starts = counts.cumsum(0) - counts
        sizes = torch.ceil(torch.log2(counts.double())).long()  # grids of equal size waste at most half
        grids = []
        for size in sizes.unique().tolist():
            chosen = torch.nonzero(sizes == size)[:, 0]
            slot = torch.arange(int(counts[chosen].max()), device=order.device)
            place = starts[chosen, None] + torch.minimum(slot, counts[chosen, None] - 1)
            grids.append((settings[chosen], order[place]))
        return grids

    def lower(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, *, forms: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Lower bounds (P, R) of the rows over boxes (P, n), and slopes (P, R, n) of linear functions below them.

        outputs (P or 1, R, m), inputs (P or 1, R, n) or None; the slopes only if asked for and where there are any.
        """
        low, slope = None, None
        for settings, index in self._grids:
            found = self.bounds.rows(
                self.weights.boxes(settings), lower[index], upper[index], _gridded(outputs, index),
                None if inputs is None else _gridded(inputs, index), forms=forms,
            )  # fmt: skip
            low = _scatter(low, found.lower, index, len(lower))
            if found.form is not None:
                slope = _scatter(slope, found.form.slope, index, len(lower))
        if low is None:
            raise ValueError("no pairs")
        return low, slope

    def outputs(self, x: Tensor) -> Tensor:
        """What the rows are over, at points (P, n), in plain floating point: (P, m)."""
        y = None
        network = self.bounds.engine.network
        for settings, index in self._grids:
            some = self.weights.boxes(settings)
            params = {name: center for name, center in some.centers.items() if len(center) > 1}
            value = evaluate(network, x[index] if params else x[index].flatten(0, 1), params)
            value = transformed(value.reshape(*index.shape, -1), self.bounds.transform)
            y = _scatter(y, value, index, len(x))
        if y is None:
            raise ValueError("no pairs")
        return y


def _gridded(rows: Tensor, index: Tensor) -> Tensor:
    """(1, R, ..) as it is, (P, R, ..) -> (K', M', R, ..)."""
    return rows if len(rows) == 1 else rows[index]


def _scatter(out: Tensor | None, values: Tensor, index: Tensor, count: int) -> Tensor:
    """Put a grid's values (K', M', ..) at their pairs; padding writes the same value again."""
    if out is None:
        out = values.new_empty(count, *values.shape[2:])
    values = values.expand(*index.shape, *values.shape[2:])
    out[index.flatten()] = values.flatten(0, 1)
    return out
