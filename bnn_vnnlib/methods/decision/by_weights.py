"""The decision by boxes of weights or by weight samples, each bounded for itself: any graph, any transform.

Guarantee: sound with probability 1, rounding included; not complete.

1. Norms of a random network: what a decision bound in regression pays for the weights that it leaves out.
|| z ||_p = sup over x in T of (E_w |z(x)|^p)^(1/p), elementwise and per item; p is even, and 2 at the outputs.
(a) Of independent Gaussian weights, a tensor that enters at one node is independent of the node's input. With g_p the
    norm of a standard normal number,
    || sum_j W_ij z_j ||_p <= sum_j || W_ij ||_p || z_j ||_p                                         (Minkowski)
    || sum_j W_ij z_j ||_p <= sum_j |mu_ij| || z_j ||_p + g_p sqrt(sum_j s_ij^2 || z_j ||_p^2)
    The second needs every entry to be used once in that node: a weight that was tiled or gathered first is not
    independent of its own copy. The smaller of the two is taken.
(b) Otherwise, and for products of two nodes, || a b ||_p <= || a ||_2p || b ||_2p (Hoelder): the order doubles.
(c) || W_ij ||_2 = sqrt(mu^2 + s^2), and || W_ij ||_p <= |mu| + s g_p.
(d) Exponentials of one layer, or of two with Relu between, of independent weights (`exponential_norm`). With
    v = sum_j W_j h_j + b, E exp(p v) is at most exp(p mu_b + p^2 s_b^2 / 2) times the product over j of
    E exp(c h_j + g h_j^2), c = max(p mu_j, 0), g = p^2 s_j^2 / 2, since the h_j >= 0 are independent. For
    h = max(a, 0), a = N(m, t^2), that is convex and rising in a, and so rises with m and t; and with
    e = 1 - 2 g t^2 > 0 it is
    Phi(-m / t) + exp(c m + g m^2 + t^2 (c + 2 g m)^2 / (2 e)) Phi((m + c t^2) / (t sqrt(e))) / sqrt(e).
(e) A number is no larger than its closed range (`bounds.exact`), whatever the weights are.
Then |E[f 1_off]| <= || f ||_2 sqrt(P(off)) by Cauchy-Schwarz.

2. `ByWeights`.
Boxes: on box k the row is at least v_k, everywhere at least `floor` (s bounded), so layers of boxes give a lower bound
on its expectation (`weight_sets.layered_lower`). In regression there is no floor; what lies outside the boxes is paid
by |E[row 1_off]| <= ||row|| sqrt(P(off)) with the norms of 1.
Samples: the weighted sum of each sample's bound.
Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks (decision robustness).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds import exact, interval
from bnn_vnnlib.bounds.weights import ParamBox, WeightBoxes, aligned
from bnn_vnnlib.gaussian.normal import cdf_above
from bnn_vnnlib.methods.decision.method import picked, weights_name
from bnn_vnnlib.network import maps, nodes
from bnn_vnnlib.network.dense_chain import dense_chain
from bnn_vnnlib.network.layers import before
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, Network, WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.problem.weight_sets import BoxUnion, CentredUnion, SampledWeights, all_params, layered_lower, over_parts
from bnn_vnnlib.rounding import TINY, UNIT, UP, gamma, squared
from bnn_vnnlib.system.memory import at_once

# 1. Norms

_HIGHEST = 2**16
"""Orders beyond are not asked for: the norm is infinite then."""


def output_norms(
    network: Network, weights: WeightBoxes, lower: Tensor, upper: Tensor, *, independent: bool = True, order: int = 2
) -> Tensor:
    """(N, m): sup over the item's box of (E |y|^p)^(1/p), p = order, rounded up; infinite where it is not known.

    Parameters
    ----------
    weights : means, and marginal deviations as spreads (`weight_sets.marginal`)
    independent : no two weights depend on each other
    """
    uses = Counter(param.source for param in all_params(network))
    alone = {name for name in weights.spreads if independent and uses[name] == 1}
    orders = _orders(network, weights, alone, order)
    if max(orders) > _HIGHEST:
        return lower.new_full((len(lower), network.signature.output_size), torch.inf)
    found = _norms(network, weights, lower, upper, orders, alone, None)
    if bool(torch.isfinite(found).all()):
        return found
    fixed = WeightBoxes(weights.centers, {}, torch.zeros_like(weights.scale[:, :1]))
    ranges, known = exact.ranges(network, fixed, interval.Interval(lower[None], upper[None]), weights.spreads)
    return _norms(network, weights, lower, upper, orders, alone, ranges) if bool(known.all()) else found


def _norms(
    network: Network, weights: WeightBoxes, lower: Tensor, upper: Tensor, orders: list[int], alone: set[str],
    ranges: list[interval.Interval] | None,
) -> Tensor:  # fmt: skip
    """Upper bounds (N, m) on the norms of the outputs over boxes (N, n), computed node by node."""
    values: list[Tensor] = []
    largest = torch.maximum(lower.abs(), upper.abs())[None]
    for position, node in enumerate(network.nodes):
        if isinstance(node, nodes.Input):
            value = interval.inputs(node, interval.Interval(largest, largest)).upper
        else:
            norm = _Norm(weights, orders[position], alone)
            value = _RULES[type(node)](node, norm, *(values[source] for source in node.inputs))
        if ranges is not None and isinstance(node, nodes.Activation) and node.kind == "exp" and alone:
            inner = before(network, node.inputs)
            value = torch.minimum(value, exponential_norm(inner, weights, lower, upper, orders[position]))
        values.append(value if ranges is None else torch.minimum(value, ranges[position].magnitude))
    flat = [values[position].reshape(*values[position].shape[:2], -1) for position in network.outputs]
    return torch.cat([one.expand(1, len(lower), -1) for one in flat], -1)[0]


def _orders(network: Network, weights: WeightBoxes, alone: set[str], least: int) -> list[int]:
    """p of every node, as large as what reads it asks for: `least` at the outputs, an even number."""
    orders = [least] * len(network.nodes)
    for position in range(len(network.nodes) - 1, -1, -1):
        node, order = network.nodes[position], orders[position]
        if isinstance(node, nodes.Product):
            order = 2 * order
        elif isinstance(node, nodes.Linear | nodes.Conv | nodes.Scale):
            name = node.weight.source
            order = 2 * order if name in weights.spreads and name not in alone else order
        elif isinstance(node, nodes.Activation) and node.kind == "power":
            order = int(node.alpha) * order  # type: ignore[arg-type]
        for source in node.inputs:
            orders[source] = max(orders[source], order + order % 2)
    return orders


@dataclass(frozen=True, eq=False)
class _Norm:
    """What the rule of a node needs: the weights, the order of its norm, and what is independent of its input."""

    weights: WeightBoxes
    order: int
    alone: set[str]

    def root(self, box: ParamBox, order: int) -> Tensor:
        """The norm of each entry of a parameter plus the slack, rounded up."""
        norm = box.center.abs()
        if box.spread is not None:
            norm = torch.hypot(box.center, box.spread) if order == 2 else norm + box.spread * _normal_norm(order)
        return (norm if box.slack is None else norm + box.slack) * (1 + 8 * UNIT) + TINY


def _normal_norm(order: int) -> float:
    """(E |N|^p)^(1/p) of a standard normal number, rounded up."""
    return math.sqrt(2) * math.exp((math.lgamma((order + 1) / 2) - math.lgamma(0.5)) / order) * (1 + 1e-12)


def _weighted(node: nodes.Linear | nodes.Conv | nodes.Scale, norm: _Norm, z: Tensor) -> Tensor:
    box = norm.weights.param(node.weight)
    g = gamma(2 * maps.fan(node) + 16)
    independent = box.spread is None or node.weight.source in norm.alone
    order = norm.order if independent else 2 * norm.order
    found = maps.apply(node, norm.root(box, order), z)
    if box.spread is not None and independent and node.weight.copies == 1:
        mean = maps.apply(node, norm.root(ParamBox(box.center, None, box.slack), order), z)
        noise = torch.sqrt(maps.apply(node, box.variance, squared(z)) * (1 + g) + TINY)
        found = torch.minimum(found, mean + _normal_norm(order) * noise)
    return (found * (1 + g) + TINY).nan_to_num(torch.inf, torch.inf)


def _shift(node: nodes.Shift, norm: _Norm, z: Tensor) -> Tensor:
    box = norm.weights.param(node.bias)
    return (z + aligned(norm.root(box, norm.order), len(node.shape))) * (1 + 2 * UNIT)


def _activation(node: nodes.Activation, norm: _Norm, z: Tensor) -> Tensor:
    """Norms behind an activation, from |f(z)| <= c |z| + d; infinity where no such bound is at hand."""
    match node.kind:
        case "abs" | "silu" | "gelu" | "gelu_tanh" | "hard_swish":
            return z
        case "relu" | "leaky_relu" | "prelu" | "elu":
            return z * (max(1.0, float(np.abs(node.alpha).max())) * (1 + 2 * UNIT))
        case "tanh" | "softsign" | "sin" | "sign" | "atan" | "erf":
            bound = torch.ones_like(z) if node.kind in ("sign", "erf") else z
            return bound if node.kind == "atan" else bound.clamp(max=1.0)
        case "sigmoid" | "cos":
            return torch.ones_like(z)
        case "softplus":
            return (z + 0.7) * (1 + 2 * UNIT)  # log 2 < .7
        case "sqrt":
            return (z + 1) * (1 + 2 * UNIT)
        case "power":  # of the norm of an order so many times as high
            return z ** int(node.alpha) * (1 + 16 * UNIT) + TINY  # type: ignore[arg-type]
        case _:
            return torch.full_like(z, torch.inf)


def _add(node: nodes.Sum, _: _Norm, *zs: Tensor) -> Tensor:
    total = zs[0]
    for z in zs[1:]:
        total = (total + z) * (1 + 2 * UNIT)
    return total


def exponential_norm(network: Network, weights: WeightBoxes, lower: Tensor, upper: Tensor, order: int) -> Tensor:
    """(1, N, *shape): || exp(v) || of the output v of independent weights; infinite where (d) says nothing."""
    posterior = GaussianDiagonal({name: (spread**2).cpu().numpy() for name, spread in weights.spreads.items()})
    shape = network.nodes[network.outputs[0]].shape
    nothing = lower.new_full((1, len(lower), *shape), torch.inf)
    chain = dense_chain(network, posterior, lower.device)
    if chain is None or len(chain.layers) > 2 or not chain.kinds <= {"relu"}:
        return nothing
    first, last = chain.first, chain.last
    x = torch.maximum(lower.abs(), upper.abs())
    size = x @ (first.mean.abs() + first.slack).mT + first.bias.abs() + first.bias_slack
    center, radius = first.range(lower, upper)
    m = center + radius + x @ first.slack.mT + first.bias_slack + 1e-11 * size + TINY
    t = first.deviation(x**2) * (1 + 1e-11) + TINY
    if len(chain.layers) == 1:
        return torch.exp(m + order / 2 * t**2).mul(1 + 1e-9).reshape(nothing.shape)
    p, m = float(order), m.clamp(min=0.0)[:, None]
    t, c, g = t[:, None], (p * (last.mean + last.slack)).clamp(min=0) * UP, p**2 / 2 * last.variance * UP
    e = 1 - 2 * g * t**2 * UP
    some = torch.where(e > 0, e, 1.0)
    log = c * m + g * m**2 + t**2 * (c + 2 * g * m) ** 2 / (2 * some)
    share = cdf_above((m + c * t**2) / (t * some.sqrt())) / some.sqrt()
    each = torch.log(cdf_above(-m / t) + torch.exp(log) * share) + 1e-11 * (1 + log)
    each = torch.where(e > 0, each, torch.inf).sum(-1)
    bias = p * (last.bias + last.bias_slack) + p**2 / 2 * last.bias_variance
    total = each + bias + 1e-9 * (1 + each.abs() + (p * last.bias).abs() + p**2 * last.bias_variance)
    return torch.exp(total / p).mul(1 + 1e-9).nan_to_num(torch.inf, torch.inf).reshape(nothing.shape)


def _moved(move: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, _, *zs: move(node, *zs)


_RULES: dict[type[nodes.Node], Callable[..., Tensor]] = {
    nodes.Linear: _weighted,
    nodes.Conv: _weighted,
    nodes.Scale: _weighted,
    nodes.Shift: _shift,
    nodes.Constant: lambda node, norm: aligned(norm.root(norm.weights.param(node.value), norm.order), len(node.shape)),
    nodes.Activation: _activation,
    nodes.Sum: _add,
    nodes.Reshape: _moved(interval.reshape),
    nodes.Transpose: _moved(interval.transpose),
    nodes.Broadcast: _moved(interval.broadcast),
    nodes.Concat: _moved(interval.concat),
    nodes.Select: _moved(maps.select),
    # E max^p <= sum of E |z_i|^p <= n times the largest, and n^(1/p) <= n^(1/2)
    nodes.Max: lambda node, _, z: z.amax(-1) * (z.shape[-1] ** 0.5 * (1 + 4 * UNIT)) + TINY,
    nodes.Product: lambda node, _, a, b: (a * b * (1 + 2 * UNIT) + TINY).nan_to_num(torch.inf, torch.inf),
    nodes.Gap: lambda node, _, *zs: (zs[3] + zs[4]) * (1 + 2 * UNIT),
    nodes.Known: lambda node, _, z: z,
}


# 2. The method


@dataclass(frozen=True, eq=False)
class ByWeights:
    """E_w of rows over the transformed outputs, bounded below by weight boxes or by weight samples.

    weights : K boxes, or K samples; mass : of the unions of the boxes, or the samples' probabilities (K,)
    """

    bounds: OutputBounds
    posterior: Gaussian | WeightSamples
    weights: WeightBoxes | SampledWeights
    mass: BoxUnion | Tensor

    @property
    def name(self) -> str:
        """Name of the method by what the weights are, for people and the record."""
        return weights_name(self.mass)

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.D(x) + g.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        step = at_once(4 * self.weights.count * outputs.shape[1] * outputs.shape[2])

        def part(start: int) -> Tensor:
            some = slice(start, start + step)
            return self._lower(lower[some], upper[some], picked(outputs, some), picked(inputs, some))

        return torch.cat([part(start) for start in range(0, len(lower), step)])

    def _lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> Tensor:
        """Lower bounds (N, R) on the rows, from bounds on each box of weights."""
        value = over_parts(self.weights, lambda weights: self.bounds.rows(weights, lower, upper, outputs, inputs).lower)
        if isinstance(self.mass, Tensor):
            return _weighted_sum(self.mass, value)
        value = value.expand(self.weights.count, -1, -1).movedim(0, -1)  # (N, R, K)
        match self.bounds.transform:
            case "identity":
                return self._unbounded(self.mass, value, lower, upper, outputs, inputs)
            case "softmax":
                floor = outputs.amin(-1)
            case "sigmoid":
                floor = outputs.clamp(max=0).sum(-1)
                floor = floor - gamma(outputs.shape[-1]) * outputs.abs().sum(-1)
        floor = floor.expand(value.shape[:-1])
        if inputs is not None:
            floor = floor + over_box(inputs, lower, upper)[0]
            floor = floor - 2 * UNIT * floor.abs()
        return layered_lower(value, self.mass.union_lower, floor)

    def _unbounded(
        self, union: BoxUnion, value: Tensor, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None
    ) -> Tensor:
        """E[row] >= E[row 1_U] - ||row|| sqrt(P(off)), U a union of boxes; best over the nested choices of U."""
        network = self.bounds.engine.network
        norm = self._row_norm(network, lower, upper, outputs, inputs)
        count = value.shape[-1]
        choices = range(1, count + 1) if isinstance(union, CentredUnion) else (count,)
        found = [on_union(value[..., :k], k, count, union, norm) for k in choices]
        return torch.stack(found).amax(0).nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def _row_norm(
        self, network: Network, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None
    ) -> Tensor:
        """(N, R): sup over x of sqrt(E (c.f + g.x)^2), rounded up."""
        if isinstance(self.posterior, WeightSamples):
            raise ValueError("moments are for Gaussian posteriors")
        boxes, independent = (
            weight_sets.marginal(network, self.posterior, lower.device),
            isinstance(self.posterior, GaussianDiagonal),
        )
        norms = output_norms(network, boxes, lower, upper, independent=independent)
        total = _product(outputs.abs(), norms)
        if inputs is not None:
            total = total + _product(inputs.abs(), torch.maximum(lower.abs(), upper.abs()))
        return total * (1 + gamma(outputs.shape[-1] + lower.shape[-1])) + TINY


def _weighted_sum(share: Tensor, value: Tensor) -> Tensor:
    """sum_k p_k value_k, rounded down: (K,) and (K, N, R) -> (N, R)."""
    share = share[:, None, None]
    error = 2 * gamma(2 * len(share)) * (share * value.abs()).sum(0) + TINY
    return ((share * value).sum(0) - error).nan_to_num(-torch.inf)


def _product(rows: Tensor, values: Tensor) -> Tensor:
    """(N or 1, R, d) times (N, d) -> (N, R), with 0 * inf = 0: a row does not pay for outputs that it does not use."""
    return torch.where(rows > 0, rows * values[:, None], 0.0).sum(-1)


def on_union(value: Tensor, used: int, count: int, union: BoxUnion, norm: Tensor) -> Tensor:
    """The bound from the first `used` of `count` boxes."""
    member = torch.arange(count, device=value.device) < used
    inside, most = union.union_lower(member), union.union_upper(member)

    def mass(chosen: Tensor) -> Tensor:
        return union.union_lower(torch.nn.functional.pad(chosen, (0, count - used)))

    anchor = value.amin(-1)
    gain = layered_lower(value, mass, anchor) - anchor
    base = torch.where(anchor >= 0, anchor * inside, anchor * most)
    tail = norm * torch.sqrt(1 - inside) if float(inside) < 1 else torch.zeros_like(norm)
    return gain + base - tail - 16 * UNIT * (gain.abs() + 2 * anchor.abs() + tail.abs())
