"""The network as a differentiable function of its input and of its weights (torch, in the type of the input).

1. The activations of `nodes.Activation`: f(alpha, z) of each kind, elementwise.
2. `evaluate`: node by node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn_vnnlib.network import maps, nodes
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import ActivationKind, Param

# 1. Activations

Function = Callable[[Any, Tensor], Tensor]


def like(alpha: Any, z: Tensor) -> Tensor:
    """alpha as a tensor of the type and device of z."""
    return torch.as_tensor(alpha, dtype=z.dtype, device=z.device)


def limits(alpha: Any) -> tuple[float, float]:
    """Low and high of a clip. ONNX takes the maximum first: with low > high the result is high."""
    low, high = (float(side) for side in alpha)
    return min(low, high), high


def softplus(z: Tensor) -> Tensor:
    """log(1 + exp z) without overflow; torch's own returns z from z = 20 on."""
    return z.clamp(min=0) + torch.log1p(torch.exp(-z.abs()))


CUBIC, ROOT = 0.044715, math.sqrt(2 / math.pi)
"""gelu_tanh(z) = z sigmoid(2 ROOT (z + CUBIC z^3)) = z/2 (1 + tanh(ROOT (z + CUBIC z^3)))."""


def gelu_tanh(z: Tensor) -> Tensor:
    """GELU by its usual approximation with tanh."""
    return z * torch.sigmoid(2 * ROOT * (z + CUBIC * z**3))


FUNCTIONS: dict[ActivationKind, Function] = {
    "abs": lambda alpha, z: z.abs(),
    "atan": lambda alpha, z: torch.atan(z),
    "clip": lambda alpha, z: z.clamp(*limits(alpha)),
    "cos": lambda alpha, z: torch.cos(z),
    "elu": lambda alpha, z: torch.where(z > 0, z, alpha * torch.expm1(z.clamp(max=0))),
    "erf": lambda alpha, z: torch.special.erf(z),
    "exp": lambda alpha, z: torch.exp(z),
    "gelu": lambda alpha, z: z / 2 * torch.special.erfc(-alpha * z),
    "gelu_tanh": lambda alpha, z: gelu_tanh(z),
    "hard_swish": lambda alpha, z: z * ((z + 3).clamp(0, 6) / 6),
    "leaky_relu": lambda alpha, z: torch.relu(z) if alpha == 0 else F.leaky_relu(z, alpha),
    "log": lambda alpha, z: torch.log(z),
    "power": lambda alpha, z: z ** int(alpha),
    "prelu": lambda alpha, z: torch.where(z < 0, like(alpha, z) * z, z),
    "reciprocal": lambda alpha, z: 1 / z,
    "relu": lambda alpha, z: torch.relu(z),
    "sigmoid": lambda alpha, z: torch.sigmoid(z),
    "sign": lambda alpha, z: torch.sign(z),
    "silu": lambda alpha, z: z * torch.sigmoid(z),
    "sin": lambda alpha, z: torch.sin(z),
    "softplus": lambda alpha, z: softplus(z),
    "softsign": lambda alpha, z: z / (1 + z.abs()),
    "sqrt": lambda alpha, z: torch.sqrt(z),
    "tanh": lambda alpha, z: torch.tanh(z),
}
"""The activation functions by kind, (alpha, z) -> values; what alpha is says `nodes.Activation`."""


# 2. Nodes

_Parameter = Callable[[Param], Tensor]
_Rule = Callable[[Any, list[Tensor], _Parameter], Tensor]


def evaluate(
    network: Network, x: Tensor, params: Mapping[str, Tensor] | None = None, *, softmax: bool = False
) -> Tensor:
    """Outputs of the network.

    Parameters
    ----------
    x : (.., n) float64, inputs flattened and joined in the model's order; with K sets of weights (K or 1, N, n)
        or (N, n)
    params : tensors that replace sources of the network, by name: (*shape), or (K, *shape) for K sets of weights
    softmax : apply the Softmax that ends the graph, if there is one

    Returns
    -------
    (.., m), or (K, N, m) with K sets of weights: outputs flattened and joined in the model's order
    """
    params = params or {}
    counts = {len(tensor) for name, tensor in params.items() if tensor.dim() > network.tensors[name].ndim}
    if len(counts) > 1:
        raise ValueError(f"params hold different numbers of weight sets: {sorted(counts)}")
    batch = x if counts and x.dim() == 3 else x.reshape(1, -1, x.shape[-1])
    values = node_values(network, batch, params)
    rows = (max(*counts, len(batch)) if counts else len(batch), batch.shape[1])
    outputs = [values[i].flatten(2) if values[i].dim() > 2 else values[i][..., None] for i in network.outputs]
    y = torch.cat([output.expand(*rows, -1) for output in outputs], dim=-1)
    if softmax and network.softmax_axis is not None:
        y = torch.softmax(y, dim=-1)  # the importer accepts only a Softmax over all outputs together
    return y if counts else y.reshape(*x.shape[:-1], y.shape[-1])


def _gatherer(network: Network, params: Mapping[str, Tensor], x: Tensor) -> _Parameter:
    """Param -> its value (K or 1, *shape), from `params` or else from the network; of the device and type of x."""
    device, kind = x.device, x.dtype

    def parameter(param: Param) -> Tensor:
        """Entries times factor; most weights are a source as it is."""
        shape = network.tensors[param.source].shape
        source = params.get(param.source)
        if source is None:
            source = torch.as_tensor(network.tensors[param.source], device=device, dtype=kind)
        entries = source.reshape(-1, math.prod(shape))
        if param.whole and entries.shape[1] == param.index.size:  # a gather would copy it
            return entries.reshape(len(entries), *param.shape)
        index = torch.as_tensor(param.index, device=device).reshape(-1)
        factor = torch.as_tensor(param.factor, dtype=kind, device=device)
        return entries[:, index].reshape(len(entries), *param.shape) * factor

    return parameter


def node_values(network: Network, x: Tensor, params: Mapping[str, Tensor]) -> list[Tensor]:
    """Value (K or 1, N, *shape) of every node; x (K or 1, N, n), params as `evaluate` takes them."""
    values, parameter = list[Tensor](), _gatherer(network, params, x)
    for node in network.nodes:
        if isinstance(node, nodes.Input):
            piece = x[..., node.start : node.start + math.prod(node.shape)]
            values.append(piece.reshape(*x.shape[:2], *node.shape))
        else:
            values.append(_RULES[type(node)](node, [values[i] for i in node.inputs], parameter))
    return values


def _weighted(node: nodes.WeightedMap, inputs: list[Tensor], parameter: _Parameter) -> Tensor:
    return maps.apply(node, parameter(node.weight), inputs[0])


def _items(parameter: Tensor, rank: int) -> Tensor:
    """(K, *p) -> (K, 1, 1, .., *p): broadcasts over the items and the leading axes that p lacks."""
    return parameter.reshape(len(parameter), *(1,) * (rank + 2 - parameter.dim()), *parameter.shape[1:])


def _sum(node: nodes.Sum, inputs: list[Tensor], _parameter: _Parameter) -> Tensor:
    first, *rest = (sign * term for sign, term in zip(node.signs, inputs, strict=True))
    for term in rest:
        first = first + term
    return first


_SMALL_T = 2.0**-20


def _gap(node: nodes.Gap, inputs: list[Tensor], _parameter: _Parameter) -> Tensor:
    if not node.quotient:
        return inputs[3] - inputs[4]
    x, _, d = inputs
    function = FUNCTIONS[node.kind]
    return (function(node.alpha, x) - function(node.alpha, x - _SMALL_T * d)) / _SMALL_T


def _broadcast(node: nodes.Broadcast, inputs: list[Tensor], _parameter: _Parameter) -> Tensor:
    (x,) = inputs
    lead, shape = x.shape[:2], x.shape[2:]
    padded = x.reshape(*lead, *(1,) * (len(node.shape) - len(shape)), *shape)
    return padded.expand(*lead, *node.shape)


def _concat(node: nodes.Concat, inputs: list[Tensor], _parameter: _Parameter) -> Tensor:
    lead = [max(sizes) for sizes in zip(*(x.shape[:2] for x in inputs), strict=True)]
    return torch.cat([x.expand(*lead, *x.shape[2:]) for x in inputs], dim=node.axis + 2)


_RULES: dict[type[nodes.Node], _Rule] = {
    nodes.Linear: _weighted,
    nodes.Conv: _weighted,
    nodes.Scale: _weighted,
    nodes.Shift: lambda node, inputs, parameter: inputs[0] + _items(parameter(node.bias), len(node.shape)),
    nodes.Constant: lambda node, _, parameter: _items(parameter(node.value), len(node.shape)),
    nodes.Activation: lambda node, inputs, _: FUNCTIONS[node.kind](node.alpha, inputs[0]),
    nodes.Gap: _gap,
    nodes.Known: lambda _, inputs, __: inputs[0],
    nodes.Sum: _sum,
    nodes.Reshape: lambda node, inputs, _: inputs[0].reshape(*inputs[0].shape[:2], *node.shape),
    nodes.Transpose: lambda node, inputs, _: inputs[0].permute(0, 1, *(axis + 2 for axis in node.perm)),
    nodes.Broadcast: _broadcast,
    nodes.Concat: _concat,
    nodes.Product: lambda _, inputs, __: inputs[0] * inputs[1],
    nodes.Max: lambda _, inputs, __: inputs[0].amax(-1),
    nodes.Select: lambda node, inputs, _: maps.select(node, inputs[0]),
}
