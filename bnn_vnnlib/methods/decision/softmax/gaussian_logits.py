"""The expected softmax or sigmoid of Gaussian logits: one-dimensional integrals where only the last layer is random.

Let the weight and the biases of the last dense layer be all that is random, and z(x) its input. A row u of the outputs
is Gaussian at every x: its mean m(x) is that of the mean network, and its deviation s(x) the length of a linear map of
z(x),
    s^2 = sum_kj u_k^2 Var W_kj z_j^2 + sum_k u_k^2 Var b_k + sum over groups of shared noise |B z + b|^2   (`shared`).

1. E sigmoid(m + s N) rises with m. By Stein's lemma its derivative in s is s E sigmoid''(m + s N). That has the sign of
   -m, since sigmoid'' is odd and negative above 0, where a normal density of mean m > 0 is the larger one of x and -x.
   So it falls with s where m > 0, and rises with s where m < 0.
2. Over a box with m <= m2 and s in [s1, s2] it is therefore greatest at m2, with s1 if m2 > 0 and else with s2. Its
   least value is 1 less the greatest one of the negated row, as sigmoid(f) = 1 - sigmoid(-f).
3. E sigmoid(X) = (1 + E tanh(X / 2)) / 2, which `gaussian.tanh` computes with a proved error.
4. For large s: sigmoid(x) - [x > 0] is odd, and sigmoid(-x) in size, and a normal density of deviation s has slopes of
   at most e^(-1/2) / (sqrt(2 pi) s^2) < 0.2420 / s^2. So E sigmoid(X) differs from Phi(m / s) by at most
   2 (0.2420 / s^2) integral of x sigmoid(-x) over x > 0 = 2 (0.2420 / s^2) pi^2 / 12 < 0.4 / s^2.
5. Softmax. For probabilities p_k of the classes k other than j, with the entropy H(p), Jensen's inequality gives
       sum_k exp(f_k) >= sum_k p_k exp(f_k - log p_k) >= exp(p . f + H(p)),
   so that softmax_j <= sigmoid(f_j - p . f - H(p)): the sigmoid of one Gaussian logit, with the row e_j - p. Of several
   p the best one counts: the strongest rival alone, which is exact for two classes, and softmaxes of the others.
   As the D_k add up to 1, D_i >= 1 - the sum of these bounds over the other classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails.shared import Correlation, Group
from bnn_vnnlib.bounds.walk import completed
from bnn_vnnlib.bounds.weights import ParamBox, WeightBoxes
from bnn_vnnlib.gaussian.normal import cdf_above, cdf_below
from bnn_vnnlib.gaussian.tanh import expectations_for
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.methods.decision.softmax.softmax import entropy, on_a_grid, rows_over_classes
from bnn_vnnlib.methods.last_layer import LastLayer, forms_of_rows, last_layer
from bnn_vnnlib.network.evaluate import evaluate
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


_HEATS = (1.0, 2.5)
"""p is a softmax of the mean logits of the other classes, divided by these (step 5): more noise asks for more."""


@dataclass(frozen=True, eq=False)
class GaussianLogits:
    """A `decision.method.RowMethod` for a softmax, or a sigmoid on every output."""

    bounds: OutputBounds
    layer: LastLayer
    means: WeightBoxes
    deviations: WeightBoxes
    shared: Correlation | None

    name: ClassVar[str] = "Gaussian logits"

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
        engine, m = self.bounds.engine, self.bounds.engine.network.signature.output_size
        step = engine.chunk(1, 2 * m if self.bounds.transform == "sigmoid" else m * (1 + len(_HEATS)))
        parts = torch.arange(len(lower), device=lower.device).split(step)
        found = engine.deadline.reached(parts, lambda some: self._expected(lower[some], upper[some]))
        low = completed([part[0] for part in found], (len(lower), m), 0.0, lower)
        high = completed([part[1] for part in found], (len(lower), m), 1.0, lower)
        if self.bounds.transform == "softmax":
            value = rows_over_classes(outputs, low, high)
        else:
            value = torch.where(outputs >= 0, outputs * low[:, None], outputs * high[:, None]).sum(-1)
            value = value - gamma(2 * m + 8) * outputs.abs().sum(-1) - TINY
        if inputs is None:
            return value
        moved = over_box(inputs, lower, upper)[0]
        return value + moved - 2 * UNIT * (value.abs() + moved.abs())

    def _expected(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """(N, m) each: bounds on the expected softmax, or sigmoids."""
        m = self.bounds.engine.network.signature.output_size
        unit = torch.eye(m, dtype=lower.dtype, device=lower.device)
        if self.bounds.transform == "sigmoid":
            high = self._highest(lower, upper, torch.cat([unit, -unit]).expand(len(lower), -1, -1), lower.new_zeros(()))
            return (1 - high[:, m:] - UNIT).clamp(min=0), high[:, :m]
        mean = evaluate(self.bounds.engine.network, (lower + upper) / 2).nan_to_num(0.0, 1e300, -1e300)
        others = torch.where(unit.bool(), -torch.inf, mean[:, None])
        rival = torch.nn.functional.one_hot(others.argmax(-1), m).to(lower)
        p = torch.cat([rival, *(on_a_grid(torch.softmax(others / heat, -1)) for heat in _HEATS)], 1)
        high = self._highest(lower, upper, unit.repeat(1 + len(_HEATS), 1) - p, entropy(p))
        high = high.unflatten(1, (-1, m)).amin(1)
        rest = high.sum(-1, keepdim=True) - high
        return (1 - rest - gamma(2 * m + 8) * (1 + high.sum(-1, keepdim=True))).clamp(min=0), high

    def _highest(self, lower: Tensor, upper: Tensor, rows: Tensor, less: Tensor) -> Tensor:
        """(N, L): bounds from above on E sigmoid(row . f - less) over boxes (N, n) (steps 1 and 2), rows (N, L, m)."""
        engine, box = self.bounds.engine, Interval(lower[None], upper[None])
        ranges = engine.ranges(self.means, box)
        most = -forms_of_rows(engine, self.means, ranges, box, -rows).minimum(box)[0]
        most = most - less + 2 * UNIT * (most.abs() + less)
        narrow, wide = self._deviation(ranges.values[engine.network.nodes[self.layer.weight].inputs[0]], rows)
        engine.deadline.check()
        return expected_sigmoid(most, torch.where(most > 0, narrow, wide))[1]

    def _deviation(self, z: Interval, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) each: bounds on s over z in a box (1, N, *features)."""
        nodes, m = self.bounds.engine.network.nodes, rows.shape[-1]
        node = nodes[self.layer.weight]
        if not isinstance(node, Linear):
            raise TypeError("the last layer is dense")
        biases = [param for place in self.layer.biases for param in params_of(nodes[place])]
        ends = torch.stack([z.lower, z.upper])[:, 0].flatten(2).abs().expand(2, len(rows), -1)
        inside = ((z.lower <= 0) & (z.upper >= 0))[0].flatten(1)
        smallest, largest = squared_down(torch.where(inside, 0.0, ends.amin(0))), squared(ends.amax(0))
        weight, square, square_down = self.deviations.param(node.weight), squared(rows), squared_down(rows)
        paid = gamma(2 * (ends.shape[-1] + m) + 64)

        def of_independent(variance: Callable[[ParamBox], Tensor], square: Tensor, z2: Tensor) -> Tensor:
            """(N, L): the variance of the noise that is independent."""
            each = square @ variance(weight).expand(1, *node.weight.shape)[0]
            found = (each @ z2[..., None])[..., 0]
            for param in biases:
                own = variance(self.deviations.param(param)).expand(1, *param.shape)
                found = found + square @ own.reshape(m)
            return found

        least = of_independent(lambda box: box.sure_variance, square_down, smallest) * (1 - paid)
        most = of_independent(lambda box: box.variance, square, largest) * (1 + paid) + TINY
        for group in () if self.shared is None else self.shared.groups:
            near, far = self._group(group, node, z, rows)
            least, most = least + squared_down(near) * (1 - paid), (most + squared(far)) * (1 + paid)
        return torch.sqrt(least) * (1 - 4 * UNIT), torch.sqrt(most) * (1 + 4 * UNIT)

    def _group(self, group: Group, node: Linear, z: Interval, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) each: bounds on |B z + b| of a group of shared noise."""
        nodes, lead = self.bounds.engine.network.nodes, (len(rows), 1, rows.shape[1])
        center, radius = (side.transpose(0, 1).expand(len(rows), *(-1,) * (side.dim() - 1)) for side in z.center_radius)
        total, slack = center.new_zeros(*lead, group.latents), center.new_zeros(lead)
        if node.weight.source in group.sources:
            use = group.use(node, rows.reshape(*lead, *node.shape), nodes[node.inputs[0]].shape, [center])
            total, slack = total + use.centers[0], slack + use.reach(radius) + use.slacks[0]
        for param in (param for place in self.layer.biases for param in params_of(nodes[place])):
            if param.source in group.sources:
                found, error = group.shift(param, rows.reshape(*lead, *param.shape))
                total, slack = total + found, slack + error
        length, paid = torch.linalg.vector_norm(total, dim=-1)[:, 0], gamma(2 * group.latents + 16)
        slack = slack[:, 0] * (1 + paid)
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
