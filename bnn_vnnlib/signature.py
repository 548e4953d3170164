"""What goes into and comes out of a network: the only thing that a property must know about a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Likelihood = Literal["categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic"]
"""What an output of a network stands for."""


@dataclass(frozen=True)
class Variable:
    """One tensor of a network's signature.

    Attributes
    ----------
    name : the ONNX name, or the name declared by the property
    element_type : ONNX IR name ("float32", "float64", ...) or "real"
    shape : concrete dimensions; () is a scalar
    """

    name: str
    element_type: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


PROBABILITY = Variable("probability", "float64", (1, 1))
"""The only output where the rule asks for the probability of an event."""


@dataclass(frozen=True)
class Hidden(Variable):
    """A tensor inside a network that a property declares: `node` is the name of the ONNX node output that it is."""

    node: str


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs in the model's order; flattened row-major and concatenated in that order.

    Attributes
    ----------
    every_output : with the outputs that depend on no input, which `outputs` leaves out; () if there are none
    """

    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    every_output: tuple[Variable, ...] = ()

    def split(self, inputs: int, outputs: int) -> tuple[Signature, Signature]:
        """The signature without its last inputs and outputs, and the signature of these alone: two networks side by
        side.
        """
        i, o = len(self.inputs) - inputs, len(self.outputs) - outputs
        return Signature(self.inputs[:i], self.outputs[:o]), Signature(self.inputs[i:], self.outputs[o:])

    @property
    def input_size(self) -> int:
        """n: number of scalar inputs."""
        return sum(variable.size for variable in self.inputs)

    @property
    def output_size(self) -> int:
        """m: number of scalar outputs."""
        return sum(variable.size for variable in self.outputs)


def joined(first: Signature, second: Signature) -> Signature:
    """The signature of two networks side by side: the inputs of both, and the outputs of both."""
    return Signature((*first.inputs, *second.inputs), (*first.outputs, *second.outputs))
