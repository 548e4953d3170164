"""What an edge of the ONNX graph can be while it is read: computed, constant, or behind the final Softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.model.balls import Ball
from bnn_vnnlib.network.nodes import Param


@dataclass(frozen=True)
class Variable:
    """Computed by the node at `position`; `element` is its type in the file."""

    position: int
    shape: tuple[int, ...]
    element: np.dtype[Any]


@dataclass(frozen=True)
class Softmaxed(Variable):
    """Softmax over `axis` of the node at `position`; composed of nodes if the graph goes on behind it."""

    axis: int


@dataclass(frozen=True)
class Compared(Variable):
    """left >= right (or >: the uses that are supported are continuous), entry by entry: no node computes it.

    It may only be the condition of a Where that is a maximum, a LeakyRelu or the like; `Builder.branch` refuses it.
    """

    left: Value
    right: Value


@dataclass(frozen=True, eq=False)
class Constant:
    """The same for every input.

    Attributes
    ----------
    name : ONNX name of the value, for messages
    values : float64 for floats (the posterior mean where the weight is uncertain), else the file's own type
    element : type in the file
    param : which entries of which source tensor; None for integers, booleans
    uncertain : the source tensor has a posterior
    """

    name: str
    values: NDArray[Any]
    element: np.dtype[Any]
    param: Param | None
    uncertain: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.values.shape

    @property
    def known(self) -> bool:
        """The values are exactly these numbers: no posterior, no rounding error."""
        return not self.uncertain and (self.param is None or self.param.slack is None)

    @property
    def ball(self) -> Ball:
        """Value and rounding error of a float constant."""
        return Ball(self.values, self.weight.slack)

    @property
    def weight(self) -> Param:
        """The parameter of a float constant."""
        if self.param is None:
            raise ValueError(f"{self.name!r} has type {self.element}, expected floats")
        return self.param

    def moved(self, move: Callable[[NDArray[Any]], NDArray[Any]]) -> Constant:
        """Apply a function that only moves (repeats, drops) entries, so that a posterior follows."""

        def copied(array: NDArray[Any]) -> NDArray[Any]:
            return np.array(move(array), order="C")  # a view would be strided, or not writable

        if self.param is None:
            return replace(self, values=copied(self.values))
        param = self.param
        factor = param.factor if param.factor.ndim == 0 else copied(np.broadcast_to(param.factor, self.shape))
        slack = None if param.slack is None else copied(param.slack)
        moved = Param(param.source, copied(param.index), factor, slack)
        return replace(self, values=copied(self.values), param=moved)

    def reshaped(self, *shape: int) -> Constant:
        """The same entries in another shape."""
        return self.moved(lambda array: array.reshape(shape))

    def transposed(self) -> Constant:
        """Matrix with rows and columns exchanged."""
        return self.moved(np.transpose)


Value = Variable | Constant
