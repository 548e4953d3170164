"""The expected sigmoid of a Gaussian logit: exact, up to rounding, at every x where only the last layer is random.

Let the weight and the biases of the last dense layer be all that is random, and z(x) its input. Every logit, an output
under a sigmoid of its own or the difference of the two outputs of a softmax, is a row a of the outputs. It is Gaussian
at every x: its mean m(x) is that of the mean network, and its deviation s(x) the length of a linear map of z(x),
    s^2 = sum_kj a_k^2 Var W_kj z_j^2 + sum_k a_k^2 Var b_k + sum over groups of shared noise |B z + b|^2   (`shared`).

1. E sigmoid(m + s N) rises with m. By Stein's lemma its derivative in s is s E sigmoid''(m + s N). That has the sign of
   -m, since sigmoid'' is odd and negative above 0, where a normal density of mean m > 0 is the larger one of x and -x.
   So it falls with s where m > 0, and rises with s where m < 0.
2. Over a box with m in [m1, m2] and s in [s1, s2] it is therefore least at m1, with s2 if m1 > 0 and else with s1, and
   greatest at m2, with s1 if m2 > 0 and else with s2.
3. E sigmoid(X) = (1 + E tanh(X / 2)) / 2, which `gaussian.tanh` computes with a proved error.
4. For large s: sigmoid(x) - [x > 0] is odd, and sigmoid(-x) in size, and a normal density of deviation s has slopes of
   at most e^(-1/2) / (sqrt(2 pi) s^2) < 0.2420 / s^2. So E sigmoid(X) differs from Phi(m / s) by at most
   2 (0.2420 / s^2) integral of x sigmoid(-x) over x > 0 = 2 (0.2420 / s^2) pi^2 / 12 < 0.4 / s^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails.shared import Correlation, Group
from bnn_vnnlib.bounds.weights import ParamBox, WeightBoxes
from bnn_vnnlib.gaussian.normal import cdf_above, cdf_below
from bnn_vnnlib.gaussian.tanh import expectations_for
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.methods.last_layer import LastLayer, last_layer
from bnn_vnnlib.network.network import Gaussian
from bnn_vnnlib.network.nodes import Activation, Linear, Reshape, params_of
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.rounding import TINY, UNIT, gamma, squared, squared_down
from bnn_vnnlib.system.memory import at_once


def of_logits(bounds: OutputBounds) -> OutputBounds:
    """The logits of a graph that ends in a Sigmoid, which becomes the transform; other bounds stay as they are."""
    network = bounds.engine.network
    position = network.outputs[0]
    while isinstance(node := network.nodes[position], Reshape):
        (position,) = node.inputs
    if bounds.transform != "identity" or len(network.outputs) > 1 or network.softmax_axis is not None:
        return bounds
    if not (isinstance(node, Activation) and node.kind == "sigmoid"):
        return bounds
    before = replace(network, outputs=node.inputs)
    return OutputBounds(replace(bounds.engine, network=before), "sigmoid")


@dataclass(frozen=True, eq=False)
class GaussianLogits:
    """A `decision.method.RowMethod` for a sigmoid on every output, or the softmax of two."""

    bounds: OutputBounds
    layer: LastLayer
    means: WeightBoxes
    deviations: WeightBoxes
    shared: Correlation | None

    name: ClassVar[str] = "Gaussian logit"

    @staticmethod
    def over(bounds: OutputBounds, posterior: Gaussian, device: torch.device) -> GaussianLogits:
        """The method for a network whose last dense layer alone is random; ValueError for any other."""
        network = bounds.engine.network
        layer = last_layer(network, posterior)
        if layer is None:
            raise ValueError("not the last dense layer alone is random")
        means = weight_sets.mean_weights(network, device)
        deviations = weight_sets.centred(network, independent(posterior), device)
        return GaussianLogits(bounds, layer, means, deviations, correlation(network, posterior, device))

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds on c.D(x) + g.x over boxes (N, n)."""
        rows = self._logits(lower)
        step = self.bounds.engine.chunk(1, 2 * len(rows))
        low, high = torch.zeros(2, len(lower), len(rows), dtype=lower.dtype, device=lower.device)
        high += 1

        def work(some: Tensor) -> None:
            low[some], high[some] = self._expected(lower[some], upper[some], rows)

        self.bounds.engine.deadline.reached(torch.arange(len(lower), device=lower.device).split(step), work)
        if self.bounds.transform == "softmax":  # D = (1 - p, p)
            slope, constant = outputs[..., 1:] - outputs[..., :1], outputs[..., 0]
            paid = UNIT * slope.abs()[..., 0]
        else:
            slope, constant, paid = outputs, torch.zeros_like(outputs[..., 0]), torch.zeros_like(outputs[..., 0])
        value = torch.where(slope >= 0, slope * low[:, None], slope * high[:, None]).sum(-1) + constant
        if inputs is not None:
            moved = over_box(inputs, lower, upper)[0]
            value, paid = value + moved, paid + 2 * UNIT * moved.abs()
        size = outputs.abs().sum(-1) + value.abs()
        return value - paid - gamma(2 * len(rows) + 8) * size - TINY

    def _logits(self, like: Tensor) -> Tensor:
        """(L, m): the rows of the outputs that are logits."""
        m = self.bounds.engine.network.signature.output_size
        return (
            like.new_tensor([[-1.0, 1.0]])
            if self.bounds.transform == "softmax"
            else torch.eye(m, dtype=like.dtype, device=like.device)
        )

    def _expected(self, lower: Tensor, upper: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) each: bounds on E sigmoid of the logits (steps 1 and 2)."""
        engine = self.bounds.engine
        found = engine.rows(self.means, lower, upper, torch.cat([rows, -rows])[None]).lower[0]
        least, most = found[:, : len(rows)], -found[:, len(rows) :]
        z = engine.ranges(self.means, Interval(lower[None], upper[None])).values[
            engine.network.nodes[self.layer.weight].inputs[0]
        ]
        narrow, wide = self._deviation(z, rows)
        engine.deadline.check()
        low, _ = expected_sigmoid(least, torch.where(least > 0, wide, narrow))
        _, high = expected_sigmoid(most, torch.where(most > 0, narrow, wide))
        return low, high

    def _deviation(self, z: Interval, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) each: bounds on s over z in a box (1, N, *features)."""
        nodes, m = self.bounds.engine.network.nodes, rows.shape[1]
        node = nodes[self.layer.weight]
        if not isinstance(node, Linear):
            raise TypeError("the last layer is dense")
        biases = [param for place in self.layer.biases for param in params_of(nodes[place])]
        ends = torch.stack([z.lower, z.upper])[:, 0].flatten(2).abs()
        inside = ((z.lower <= 0) & (z.upper >= 0))[0].flatten(1)
        smallest, largest = squared_down(torch.where(inside, 0.0, ends.amin(0))), squared(ends.amax(0))
        weight, square = self.deviations.param(node.weight), rows**2
        paid = gamma(2 * (ends.shape[-1] + m) + 64)

        def of_independent(variance: Callable[[ParamBox], Tensor], z2: Tensor) -> Tensor:
            """(N, L): the variance of the noise that is independent."""
            found = z2 @ (square @ variance(weight).expand(1, *node.weight.shape)[0]).mT
            for param in biases:
                own = variance(self.deviations.param(param)).expand(1, *param.shape)
                found = found + square @ own.reshape(m)
            return found

        least = of_independent(lambda box: box.sure_variance, smallest) * (1 - paid)
        most = of_independent(lambda box: box.variance, largest) * (1 + paid) + TINY
        for group in () if self.shared is None else self.shared.groups:
            near, far = self._group(group, node, z, rows)
            least, most = least + squared_down(near) * (1 - paid), (most + squared(far)) * (1 + paid)
        return torch.sqrt(least) * (1 - 4 * UNIT), torch.sqrt(most) * (1 + 4 * UNIT)

    def _group(self, group: Group, node: Linear, z: Interval, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) each: bounds on |B z + b| of a group of shared noise."""
        nodes, count = self.bounds.engine.network.nodes, len(rows)
        center, radius = z.center_radius
        total, slack = center.new_zeros(1, 1, count, group.latents), center.new_zeros(1, 1, count)
        if node.weight.source in group.sources:
            a = rows.reshape(1, 1, count, *node.shape)
            use = group.use(node, a, nodes[node.inputs[0]].shape, [center])
            total, slack = total + use.centers[0], slack + use.reach(radius) + use.slacks[0]
        for param in (param for place in self.layer.biases for param in params_of(nodes[place])):
            if param.source in group.sources:
                found, error = group.shift(param, rows.reshape(1, 1, count, *param.shape))
                total, slack = total + found, slack + error
        length, paid = torch.linalg.vector_norm(total, dim=-1)[0], gamma(2 * group.latents + 16)
        slack = slack[0] * (1 + paid)
        return (length * (1 - paid) - slack).clamp(min=0), length * (1 + paid) + slack + TINY


_CLOSE = 0.4
"""s^2 times what E sigmoid(X) differs from Phi(m / s) by, at most (step 4)."""

_POINTS = 4e-15
"""What the roundings of m + s N cost, relative to 1 + |m|, as in `regression.one_layer`."""


def expected_sigmoid(m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds on E sigmoid(m + s N), of the shape of m and s >= 0 (steps 3 and 4); [0, 1] where they are not finite."""
    known = torch.isfinite(m) & torch.isfinite(s)
    half, deviation = torch.where(known, m / 2, 0.0), torch.where(known, s / 2, 0.0)
    expected = expectations_for(deviation)
    values, flat = [], deviation.flatten()
    for some in torch.arange(len(flat), device=flat.device).split(at_once(4 * expected.size)):
        values.append(expected.values(half.flatten()[some], flat[some])[0])
    mean = torch.cat(values).reshape(m.shape) if values else torch.zeros_like(m)
    error = expected.errors(deviation)[0] + _POINTS * (1 + half.abs())
    low, high = ((1 + mean + sign * error) / 2 + sign * 4 * UNIT for sign in (-1, 1))
    far = torch.where(s > 0, m / s, 0.0).nan_to_num(0.0)
    apart = torch.where(s > 1, _CLOSE / s**2 + 8 * UNIT * (1 + far.abs()), 1.0)  # Phi has slopes below 1
    low, high = torch.maximum(low, cdf_below(far) - apart), torch.minimum(high, cdf_above(far) + apart)
    return torch.where(known, low.clamp(min=0), 0.0), torch.where(known, high.clamp(max=1), 1.0)
