"""Regression with one hidden layer: closed forms, minimised over x by branch and bound.

Guarantee: sound, rounding included; the gap goes to 0 with the number of boxes, see `branching`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.tanh import expectations_for
from bnn_vnnlib.methods.decision.regression.branching import Relaxation, least_over
from bnn_vnnlib.methods.decision.regression.relu import ReluRows
from bnn_vnnlib.methods.decision.regression.rows import rows_over
from bnn_vnnlib.methods.decision.regression.smooth import TanhRows
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.system.clock import Deadline

CURVED_INPUTS = 64
"""Up to this many inputs there are Hessians."""


@dataclass(frozen=True, eq=False)
class OneLayer:
    """Lower bounds for a chain with one activation."""

    chain: DenseChain
    deadline: Deadline

    name: ClassVar[str] = "closed forms"

    @staticmethod
    def serves(chain: DenseChain) -> bool:
        """One activation of a known kind."""
        if len(chain.activations) != 1:
            return False
        return chain.kinds <= {"relu", "leaky_relu"} or chain.layers[0].inputs <= CURVED_INPUTS

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) bounds on outputs.D(x) + inputs.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        count, height = len(lower), outputs.shape[1]

        def each(part: Tensor) -> Tensor:
            return part.expand(count, height, -1).reshape(count * height, -1)

        low, high = each(lower[:, None]), each(upper[:, None])
        size = torch.maximum(low.abs(), high.abs())
        (kind, alpha), (hidden, top) = self.chain.activations[0], self.chain.layers
        if kind == "sigmoid":
            hidden = _halved(hidden)
        added = None if inputs is None else each(inputs)
        rows = rows_over(hidden, top, kind, alpha, each(outputs), added, size)
        found = least_over(_relaxation(kind, hidden, size), rows, low, high, self.deadline)
        return found.reshape(count, height)


def _relaxation(kind: str, hidden: DenseLayer, size: Tensor) -> Relaxation:
    if kind in ("relu", "leaky_relu"):
        return ReluRows(hidden)
    return TanhRows(hidden, expectations_for(hidden.deviation(size**2).nan_to_num(0.0, 0.0, 0.0)))


def _halved(layer: DenseLayer) -> DenseLayer:
    """The pre-activations over 2, exactly."""
    return DenseLayer(
        layer.mean / 2, layer.bias / 2, layer.variance / 4, layer.bias_variance / 4,
        layer.slack / 2, layer.bias_slack / 2,
    )  # fmt: skip
