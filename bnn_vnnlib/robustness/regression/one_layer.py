"""Regression with one hidden layer: closed forms, minimised over x by branch and bound.

Guarantee: sound, rounding included; the gap goes to 0 with the number of boxes, see `branching`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.robustness.regression.branching import minimise
from bnn_vnnlib.robustness.regression.chain import Chain
from bnn_vnnlib.robustness.regression.relu import ReluRows
from bnn_vnnlib.robustness.regression.rows import rows_over


@dataclass(frozen=True, eq=False)
class OneLayer:
    """Lower bounds for a chain with one activation."""

    chain: Chain
    deadline: Deadline

    @staticmethod
    def serves(chain: Chain) -> bool:
        """One activation of a known kind."""
        return len(chain.activations) == 1 and chain.kinds <= {"relu", "leaky_relu"}

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) bounds on outputs.D(x) + inputs.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        count, height = len(lower), outputs.shape[1]

        def each(part: Tensor) -> Tensor:
            return part.expand(count, height, -1).reshape(count * height, -1)

        low, high = each(lower[:, None]), each(upper[:, None])
        hidden, top = self.chain.layers
        kind, alpha = self.chain.activations[0]
        rows = rows_over(
            hidden, top, kind, alpha, each(outputs), None if inputs is None else each(inputs),
            torch.maximum(low.abs(), high.abs()),
        )  # fmt: skip
        found = minimise(ReluRows(hidden), rows, low, high, self.deadline)
        return found.reshape(count, height)
