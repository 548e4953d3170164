"""Second moments of a random network: what a decision bound in regression pays for the weights outside its boxes.

|| z || = sup over x in T of sqrt(E_w z(x)^2), elementwise and per item. Going forwards with |z_j| in this norm,
    || sum_j W_ij z_j || <= sum_j sqrt(mu_ij^2 + s_ij^2) || z_j ||                                  (Minkowski)
    || sum_j W_ij z_j || <= sum_j |mu_ij| || z_j || + sqrt(sum_j s_ij^2 || z_j ||^2)
since the layer's weights are independent of z and of each other; the smaller of the two is taken. Both need every
random tensor to enter at one node only; with tied weights there is no bound (infinity). The second also needs every
entry to be used once in that node: a weight that was tiled or gathered first is not independent of its own copy.
Then |E[f 1_off]| <= || f || sqrt(P(off)) by Cauchy-Schwarz.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds import interval
from bnn_vnnlib.bounds.weights import ParamBox, WeightBoxes, aligned
from bnn_vnnlib.network import maps
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import (
    Activation,
    Broadcast,
    Concat,
    Constant,
    Conv,
    Input,
    Linear,
    Max,
    Node,
    Product,
    Reshape,
    Scale,
    Select,
    Shift,
    Sum,
    Transpose,
)
from bnn_vnnlib.problem.weight_sets import params_of
from bnn_vnnlib.rounding import TINY, UNIT, gamma, squared


def output_norms(network: Network, weights: WeightBoxes, lower: Tensor, upper: Tensor) -> Tensor:
    """(N, m): sup over the item's box of sqrt(E y^2), rounded up; weights = `weight_sets.centred`."""
    uses = Counter(param.source for param in params_of(network))
    size = network.signature.output_size
    if any(uses[name] > 1 for name in weights.spreads):
        return lower.new_full((len(lower), size), torch.inf)
    values: list[Tensor] = []
    for node in network.nodes:
        if isinstance(node, Input):
            largest = torch.maximum(lower.abs(), upper.abs())[None]
            values.append(interval.inputs(node, interval.Interval(largest, largest)).upper)
        else:
            values.append(_RULES[type(node)](node, weights, *(values[source] for source in node.inputs)))
    flat = [values[position].reshape(*values[position].shape[:2], -1) for position in network.outputs]
    return torch.cat(flat, -1)[0]


def _root(box: ParamBox) -> Tensor:
    """sqrt(mu^2 + s^2) plus the slack, rounded up: the norm of each entry of a parameter."""
    norm = box.center.abs() if box.spread is None else torch.hypot(box.center, box.spread)
    return (norm if box.slack is None else norm + box.slack) * (1 + 8 * UNIT) + TINY


def _weighted(node: Linear | Conv | Scale, weights: WeightBoxes, z: Tensor) -> Tensor:
    box = weights.param(node.weight)
    g = gamma(2 * maps.fan(node) + 16)
    norm = maps.apply(node, _root(box), z)
    if box.spread is not None and node.weight.copies == 1:
        mean = maps.apply(node, _root(ParamBox(box.center, None, box.slack)), z)
        noise = torch.sqrt(maps.apply(node, box.variance, squared(z)) * (1 + g) + TINY)
        norm = torch.minimum(norm, mean + noise)
    return norm * (1 + g) + TINY


def _shift(node: Shift, weights: WeightBoxes, z: Tensor) -> Tensor:
    box = weights.param(node.bias)
    return (z + aligned(_root(box), len(node.shape))) * (1 + 2 * UNIT)


def _constant(node: Constant, weights: WeightBoxes) -> Tensor:
    return aligned(_root(weights.param(node.value)), len(node.shape))


def _activation(node: Activation, _: WeightBoxes, z: Tensor) -> Tensor:
    """From |f(z)| <= c |z| + d; infinity where no such bound is at hand."""
    match node.kind:
        case "abs" | "silu" | "gelu" | "gelu_tanh" | "hard_swish":
            return z
        case "relu" | "leaky_relu" | "prelu":
            return z * (max(1.0, float(np.abs(node.alpha).max())) * (1 + 2 * UNIT))
        case "tanh" | "softsign" | "sin" | "sign" | "atan" | "erf":
            bound = torch.ones_like(z) if node.kind in ("sign", "erf") else z
            return bound if node.kind == "atan" else bound.clamp(max=1.0)
        case "sigmoid" | "cos":
            return torch.ones_like(z)
        case "softplus":
            return (z + 0.7) * (1 + 2 * UNIT)  # log 2 < .7
        case _:
            return torch.full_like(z, torch.inf)


def _max(node: Max, _: WeightBoxes, z: Tensor) -> Tensor:
    """E max^2 <= sum of E z_i^2 <= n times the largest."""
    return z.amax(-1) * (z.shape[-1] ** 0.5 * (1 + 4 * UNIT)) + TINY


def _unknown(node: Product, _: WeightBoxes, *zs: Tensor) -> Tensor:
    """A product of two tensors would need fourth moments."""
    return torch.full_like(zs[0] + zs[1], torch.inf)


def _add(node: Sum, _: WeightBoxes, *zs: Tensor) -> Tensor:
    total = zs[0]
    for z in zs[1:]:
        total = (total + z) * (1 + 2 * UNIT)
    return total


def _moved(move: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, _, *zs: move(node, *zs)


_RULES: dict[type[Node], Callable[..., Tensor]] = {
    Linear: _weighted,
    Conv: _weighted,
    Scale: _weighted,
    Shift: _shift,
    Constant: _constant,
    Activation: _activation,
    Sum: _add,
    Reshape: _moved(interval.reshape),
    Transpose: _moved(interval.transpose),
    Broadcast: _moved(interval.broadcast),
    Concat: _moved(interval.concat),
    Select: _moved(maps.select),
    Max: _max,
    Product: _unknown,
}
