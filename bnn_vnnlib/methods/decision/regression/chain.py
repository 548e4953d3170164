"""A graph as a chain of dense Gaussian layers, the only graphs for which expectations are known almost exactly.

    zeta^1 = V x + b,   zeta^{k+1} = W^k sigma(zeta^k) + b^k,   output = the last zeta.

Every random source tensor enters at one node and each of its entries once, so that all weights are independent and
a layer is independent of its input. What only moves elements (Reshape, Transpose, Select) is folded into the columns.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnn_vnnlib.bounds.rounding import TINY, UNIT
from bnn_vnnlib.network.network import GaussianDiagonal, Network
from bnn_vnnlib.network.nodes import Activation, Input, Linear, Param, Reshape, Select, Shift, Transpose
from bnn_vnnlib.problem.weight_sets import params_of

KINDS = ("relu", "leaky_relu", "tanh", "sigmoid")
"""Activations that a chain may have."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Layer:
    """zeta = W z + b with independent Gaussian entries.

    Attributes
    ----------
    mean, slack (out, in); bias, bias_slack (out,) : the exact means lie within the slack of the stored ones
    variance (out, in); bias_variance (out,) : with a relative error of at most 8 units, absolutely TINY
    """

    mean: Tensor
    slack: Tensor
    variance: Tensor
    bias: Tensor
    bias_slack: Tensor
    bias_variance: Tensor

    @property
    def outputs(self) -> int:
        """Number of neurons."""
        return len(self.mean)

    @property
    def inputs(self) -> int:
        """Number of what they read."""
        return self.mean.shape[1]

    def range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Means of the pre-activations over boxes (B, in): center and radius (B, out), not rounded."""
        center, radius = (lower + upper) / 2, (upper - lower) / 2
        return center @ self.mean.mT + self.bias, radius @ self.mean.abs().mT

    def deviation(self, square: Tensor) -> Tensor:
        """s = sqrt(sum_j sig_j^2 x_j^2 + sig_b^2) (B, out) from the squares of x (B, in)."""
        return torch.sqrt(square @ self.variance.mT + self.bias_variance)


@dataclass(frozen=True, eq=False)
class Chain:
    """L layers with L - 1 activations (kind, alpha) between them."""

    layers: tuple[Layer, ...]
    activations: tuple[tuple[str, float], ...]

    @property
    def kinds(self) -> set[str]:
        """The activations that occur."""
        return {kind for kind, _ in self.activations}


def chain_of(network: Network, posterior: GaussianDiagonal, device: torch.device) -> Chain | None:
    """The network as a chain of dense layers, or None if it is anything else."""
    if len(network.outputs) != 1 or network.softmax_axis is not None or not _independent(network, posterior):
        return None
    path = _path(network)
    if path is None or not isinstance(network.nodes[path[0]], Input):
        return None
    first = network.nodes[path[0]]
    if math.prod(first.shape) != network.signature.input_size:
        return None
    return _folded(network, posterior, path, device)


def _independent(network: Network, posterior: GaussianDiagonal) -> bool:
    """Every random source is used once, and every entry of it at most once."""
    params = params_of(network)
    uses = Counter(param.source for param in params)
    random = {name for name, variance in posterior.variances.items() if (variance > 0).any()}
    return all(uses[p.source] == 1 and p.copies == 1 for p in params if p.source in random)


def _path(network: Network) -> list[int] | None:
    """Positions from the first node to the output, if every node has one predecessor."""
    path = [network.outputs[0]]
    while network.nodes[path[-1]].inputs:
        if len(network.nodes[path[-1]].inputs) > 1:
            return None
        path.append(network.nodes[path[-1]].inputs[0])
    return path[::-1]


def _folded(network: Network, posterior: GaussianDiagonal, path: list[int], device: torch.device) -> Chain | None:
    layers: list[list[Floats]] = []
    activations: list[tuple[str, float]] = []
    order = np.arange(network.signature.input_size).reshape(network.nodes[path[0]].shape)
    width = network.signature.input_size
    fresh = True  # what is carried is an input or an activation, not a pre-activation
    for node in (network.nodes[position] for position in path[1:]):
        match node:
            case Reshape():
                order = order.reshape(node.shape)
            case Transpose():
                order = order.transpose(node.perm)
            case Select() if (node.index >= 0).all() and node.copies == 1:
                order = order.reshape(-1)[node.index]
            case Linear() if fresh and order.size == order.shape[node.axis]:
                layers.append(_weights(network, posterior, node.weight, order.reshape(-1), width))
                width, fresh = node.weight.shape[0], False
                order = np.arange(width).reshape(node.shape)
            case Shift() if not fresh and math.prod(node.bias.shape) == width == order.size:
                layers[-1] = _biased(layers[-1], _entries(network, posterior, node.bias), order.reshape(-1))
            case Activation() if not fresh and node.kind in KINDS and isinstance(node.alpha, float | int):
                if not 0 <= node.alpha <= 1:
                    return None
                activations.append((node.kind, float(node.alpha)))
                fresh = True
            case _:
                return None
    if fresh or not layers or not np.array_equal(order.reshape(-1), np.arange(width)):
        return None
    made = [Layer(*(torch.as_tensor(part, device=device) for part in layer)) for layer in layers]
    return Chain(tuple(made), tuple(activations))


def _entries(network: Network, posterior: GaussianDiagonal, param: Param) -> tuple[Floats, Floats, Floats]:
    """Mean, slack and variance of a parameter as the node sees it."""
    factor = np.broadcast_to(np.asarray(param.factor, np.float64), param.shape)
    mean = network.tensors[param.source].reshape(-1)[param.index] * factor
    slack = np.zeros(param.shape) if param.slack is None else np.array(param.slack, np.float64)
    slack = slack + np.where(np.abs(factor) == 1, 0.0, UNIT * np.abs(mean) + TINY)
    variance = np.zeros(param.shape)
    if param.source in posterior.variances:
        variance = posterior.variances[param.source].reshape(-1)[param.index] * factor**2
    return mean, slack * (1 + 4 * UNIT), variance


def _weights(
    network: Network, posterior: GaussianDiagonal, param: Param, order: NDArray[np.int64], width: int
) -> list[Floats]:
    """Weights with their columns where the layer below has its neurons, and no bias yet."""

    def placed(part: Floats) -> Floats:
        full = np.zeros((len(part), width))
        full[:, order] = part
        return full

    mean, slack, variance = (placed(part) for part in _entries(network, posterior, param))
    return [mean, slack, variance, *(np.zeros(len(mean)) for _ in range(3))]


def _biased(layer: list[Floats], added: tuple[Floats, Floats, Floats], order: NDArray[np.int64]) -> list[Floats]:
    """Independent biases add up; their sum is rounded once."""
    mean, slack, variance = (np.empty(len(order)) for _ in range(3))
    for full, part in zip((mean, slack, variance), added, strict=True):
        full[order] = part.reshape(-1)
    total = layer[3] + mean
    rounded = np.where((layer[3] == 0) | (mean == 0), 0.0, UNIT * np.abs(total) + TINY)
    return [*layer[:3], total, (layer[4] + slack + rounded) * (1 + 4 * UNIT), layer[5] + variance]
