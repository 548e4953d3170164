"""Inputs split under any method of the decision: best first, until the bounds are close to what points attain.

1. A row's least value over a box is the least one over parts that cover it, so it is at least the least of the parts'
   lower bounds (`frontier.minimise`).
2. Where to cut is a guess: along the input that moves the mean network's row most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.methods.decision.method import RowMethod, picked, rows_at
from bnn_vnnlib.methods.deterministic import MAX_SPLIT_INPUTS
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.splitting.frontier import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline

_MOST, MOST_DEAR = 400, 40
"""Boxes of an item, at most; of a method that takes seconds for one."""
_CLOSE = 0.02
"""Relative to how much a row varies over the item: closer bounds are not worth a split."""


@dataclass(frozen=True, eq=False)
class SplitInputs:
    """Bounds of a method on expected outputs, its boxes split where few inputs vary.

    Parameters
    ----------
    network : with the posterior's means
    """

    method: RowMethod
    network: Network
    deadline: Deadline
    most: int = _MOST

    @property
    def name(self) -> str:
        """Name of the method whose boxes are split."""
        return self.method.name

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; -inf where more inputs vary than are split, or none does."""
        known = lower.new_full((len(lower), outputs.shape[1]), -torch.inf)
        vary = (lower < upper).sum(-1)
        few = torch.nonzero((vary > 0) & (vary <= MAX_SPLIT_INPUTS))[:, 0]
        if len(few) == 0:
            return known

        def bound(item: Tensor, low: Tensor, high: Tensor) -> Look:
            rows, moved = picked(outputs, few[item]), picked(inputs, few[item])
            return Look(self.method.lower(low, high, rows, moved), self._slopes(low, high, rows, moved), low, high)

        effort = Effort(tolerance=0.0, most=self.most, relative=_CLOSE)
        found = minimise(bound, None, lower[few], upper[few], known[few], effort, self.deadline)
        return known.index_copy(0, few, found)

    def _slopes(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> Tensor:
        """(P, R, n): of the mean network's rows, from one side of each box to the other."""
        middle, n = (lower + upper) / 2, lower.shape[-1]
        unit = torch.eye(n, dtype=torch.bool, device=lower.device)
        ends = [torch.where(unit, side[:, None], middle[:, None]).flatten(0, 1) for side in (lower, upper)]
        values = [
            rows_at(
                evaluate(self.network, x).reshape(len(x), -1), x,
                outputs if len(outputs) == 1 else outputs.repeat_interleave(n, 0),
                inputs if inputs is None or len(inputs) == 1 else inputs.repeat_interleave(n, 0),
            ).unflatten(0, (-1, n))
            for x in ends
        ]  # fmt: skip
        width = (upper - lower)[:, :, None]
        slope = torch.where(width > 0, (values[1] - values[0]) / width, 0.0)
        return slope.mT
