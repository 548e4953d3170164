"""What a method of the portfolio is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from bnn_vnnlib.network.network import GaussianDiagonal, Network, WeightSamples
from bnn_vnnlib.problem.problem import Problem

MODERATE = 1e12
"""Largest weight and standard deviation up to which closed forms are used."""


class Method(Protocol):
    """One way to bound rows over the decision.

    Sound, rounding included; an item's bound does not depend on its neighbours (up to rounding).
    """

    @property
    def name(self) -> str:
        """For people and the record."""
        ...

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.D(x) + g.x over boxes (N, n), -inf where it has nothing to say.

        outputs (N or 1, R, m), inputs (N or 1, R, n) or None.
        """
        ...


@runtime_checkable
class Aimed(Protocol):
    """A method that can stop once a goal (N, R) is exceeded or out of reach."""

    @property
    def name(self) -> str:
        """For people and the record."""
        ...

    def towards(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, goal: Tensor | None
    ) -> Tensor:
        """As `Method.lower`."""
        ...


class Criterion(Protocol):
    """A proof that rows are false which does not go through bounds on the decision itself."""

    @property
    def name(self) -> str:
        """For people and the record."""
        ...

    def false_rows(self, problem: Problem) -> Tensor:
        """(N, R): no x of the item has a decision for which the row holds."""
        ...

    def refuted(self, problem: Problem) -> Tensor:
        """(N,): every case of the item is refuted; as much work as is needed."""
        ...


def moderate(network: Network, posterior: GaussianDiagonal | WeightSamples) -> bool:
    """Closed forms square what they meet: weights so large that they undo an underflow are left to the boxes."""
    tensors = list(network.tensors.values())
    if isinstance(posterior, GaussianDiagonal):
        tensors += [np.sqrt(variance) for variance in posterior.variances.values()]
    return all(bool((np.abs(tensor) <= MODERATE).all()) for tensor in tensors)
