"""A network that is a chain of layers, as affine maps with activations between them, for every weight sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnn_vnnlib.model import Network, WeightSamples
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.nodes import Param
from bnn_vnnlib.signature import Floats


@dataclass(frozen=True, eq=False)
class Affine:
    """y = W x + b for every sample: weight (S, out, in) and bias (S, out), with S = 1 where all samples agree."""

    weight: Floats
    bias: Floats

    @property
    def samples(self) -> int:
        """1 if all samples agree."""
        return max(len(self.weight), len(self.bias))


Layer = Affine | nodes.Activation


def layers(network: Network, posterior: WeightSamples) -> list[Layer] | None:
    """The network on flat vectors: affine maps, activations between them; None if it is no chain.

    It begins and ends with an affine map. Neighbouring affine operators are multiplied out in float64.
    """
    if len(network.outputs) != 1 or network.outputs[0] != len(network.nodes) - 1:
        return None
    size = math.prod(network.nodes[0].shape)
    found: list[Layer] = [_identity(size)]
    for position, node in enumerate(network.nodes):
        last = found[-1] if isinstance(found[-1], Affine) else _identity(math.prod(network.nodes[position - 1].shape))
        if position and node.inputs != (position - 1,):
            return None
        step = _step(node, network, posterior, last)
        if step is None:
            return None
        found[-1:] = step if isinstance(found[-1], Affine) else [found[-1], *step]
    return found if isinstance(found[-1], Affine) else [*found, _identity(math.prod(network.nodes[-1].shape))]


def _step(node: nodes.Node, network: Network, posterior: WeightSamples, last: Affine) -> list[Layer] | None:
    """What the affine map so far becomes with this node behind it."""
    size = math.prod(node.shape)
    match node:
        case nodes.Linear(weight=param, axis=axis) if node.shape[axis] == size:
            weight = _stack(param, network, posterior)
            return [Affine(weight @ last.weight, (weight @ last.bias[..., None])[..., 0])]
        case nodes.Shift(bias=param):
            return [Affine(last.weight, last.bias + _flat(param, node.shape, network, posterior))]
        case nodes.Scale(weight=param):
            factor = _flat(param, node.shape, network, posterior)
            return [Affine(factor[..., None] * last.weight, factor * last.bias)]
        case nodes.Activation(alpha=alpha) if isinstance(alpha, int | float):
            return [last, node]
        case nodes.Input():
            return [last]
        case nodes.Reshape():
            return [last]
        case nodes.Transpose() if sum(length > 1 for length in node.shape) <= 1:
            return [last]
    return None


def _identity(size: int) -> Affine:
    return Affine(np.eye(size)[None], np.zeros((1, size)))


def _stack(param: Param, network: Network, posterior: WeightSamples) -> Floats:
    """A parameter in every sample (S, *shape), or once if it is the same in all."""
    source = posterior.stored.get(param.source)
    stack = network.tensors[param.source][None] if source is None else np.asarray(source, np.float64)
    values: Floats = stack.reshape(len(stack), -1)[:, param.index] * param.factor
    return values


def _flat(param: Param, shape: Sequence[int], network: Network, posterior: WeightSamples) -> Floats:
    """A parameter in every sample, broadcast to a node's shape and made a vector (S, size)."""
    stack = _stack(param, network, posterior)
    stack = stack.reshape(len(stack), *(1,) * (len(shape) - stack.ndim + 1), *stack.shape[1:])
    return np.broadcast_to(stack, (len(stack), *shape)).reshape(len(stack), -1)
