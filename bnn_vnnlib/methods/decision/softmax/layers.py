"""Dense layers and activations in turn: the form of a network whose weights are independent Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.network.network import GaussianDiagonal, Network
from bnn_vnnlib.network.nodes import Activation, Input, Linear, Node, Param, Reshape, Shift


@dataclass(frozen=True, eq=False)
class Dense:
    """y = W z + b: mean (o, i), bias (o,), and their variances (o, i), (o,)."""

    mean: Tensor
    bias: Tensor
    variance: Tensor
    bias_variance: Tensor

    @property
    def outputs(self) -> int:
        """o."""
        return len(self.mean)


@dataclass(frozen=True, eq=False)
class OneLayer:
    """f(x) = W relu(V x + b) + c; first: V and b, last: W and c; all entries independent."""

    first: Dense
    last: Dense

    def with_zero_logit(self) -> OneLayer:
        """One more output that is always 0: sigmoid(f) is the first entry of softmax(f, 0)."""
        last = self.last

        def padded(values: Tensor) -> Tensor:
            return torch.cat([values, torch.zeros_like(values[:1])])

        return OneLayer(
            self.first,
            Dense(padded(last.mean), padded(last.bias), padded(last.variance), padded(last.bias_variance)),
        )


@dataclass(frozen=True, eq=False)
class Stack:
    """Dense layers with one kind of activation between them; all entries independent."""

    layers: tuple[Dense, ...]
    kind: str

    def with_zero_logit(self) -> Stack:
        """See `OneLayer.with_zero_logit`."""
        pair = OneLayer(self.layers[0], self.layers[-1]).with_zero_logit()
        return Stack((*self.layers[:-1], pair.last), self.kind)


def stack(network: Network, posterior: GaussianDiagonal, device: torch.device) -> Stack | None:
    """The form, if the network has it: a chain of two dense layers or more with activations of one kind between them.

    None for any other graph, and where a random tensor is used twice or holds a weight twice.
    """
    chain = _chain(network)
    if chain is None:
        return None
    groups, kinds = _groups(chain[1:])
    parts = [_affine(nodes) for nodes in groups]
    if len(set(kinds)) != 1 or any(part is None for part in parts):
        return None
    params = [param for part in parts if part for param in part if param is not None]
    random = [param for param in params if param.source in posterior.variances]
    exact = all(param.slack is None and (np.abs(param.factor) == 1).all() for param in params)
    if not exact or any(param.copies > 1 for param in random) or len({p.source for p in random}) < len(random):
        return None
    return Stack(tuple(_dense(part, network, posterior, device) for part in parts if part), kinds[0])


def one_layer(network: Network, posterior: GaussianDiagonal, device: torch.device) -> OneLayer | None:
    """A `stack` of two layers with a Relu in between."""
    found = stack(network, posterior, device)
    if found is None or found.kind != "relu" or len(found.layers) != 2:
        return None
    return OneLayer(*found.layers)


def _groups(nodes: list[Node]) -> tuple[list[list[Node]], list[str]]:
    """The nodes between activations, and the kinds of these."""
    groups: list[list[Node]] = [[]]
    kinds: list[str] = []
    for node in nodes:
        if isinstance(node, Activation):
            kinds.append(node.kind)
            groups.append([])
        else:
            groups[-1].append(node)
    return groups, kinds


def _chain(network: Network) -> list[Node] | None:
    """The nodes without Reshape, if each one feeds only the next and the input enters in its own order."""
    if len(network.outputs) != 1 or network.outputs[0] != len(network.nodes) - 1:
        return None
    for place, node in enumerate(network.nodes):
        expected = () if place == 0 else (place - 1,)
        if node.inputs != expected or isinstance(node, Input) != (place == 0):
            return None
    first = network.nodes[0]
    if isinstance(first, Input) and (first.start != 0 or math.prod(first.shape) != network.signature.input_size):
        return None
    return [node for node in network.nodes if not isinstance(node, Reshape)]


def _affine(nodes: list[Node]) -> tuple[Param, Param | None] | None:
    """Weight and bias of a dense layer, over a plain vector."""
    if not nodes or len(nodes) > 2 or not isinstance(nodes[0], Linear):
        return None
    weight = nodes[0]
    if math.prod(weight.shape) != weight.shape[weight.axis]:
        return None
    if len(nodes) == 1:
        return weight.weight, None
    shift = nodes[1]
    if not isinstance(shift, Shift) or math.prod(shift.bias.shape) != math.prod(shift.shape):
        return None
    return weight.weight, shift.bias


def _dense(
    part: tuple[Param, Param | None], network: Network, posterior: GaussianDiagonal, device: torch.device
) -> Dense:
    weight, bias = part
    mean, variance = _values(weight, network, posterior, device)
    if bias is None:
        zero = torch.zeros_like(mean[:, 0])
        return Dense(mean, zero, variance, zero)
    shift, noise = _values(bias, network, posterior, device)
    return Dense(mean, shift.flatten(), variance, noise.flatten())


def _values(param: Param, network: Network, posterior: GaussianDiagonal, device: torch.device) -> tuple[Tensor, Tensor]:
    mean = network.tensors[param.source].ravel()[param.index] * param.factor
    variance = np.zeros_like(mean)
    if param.source in posterior.variances:
        variance = posterior.variances[param.source].ravel()[param.index]
    return torch.tensor(mean, device=device), torch.tensor(variance, device=device)
