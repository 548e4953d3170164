"""Rows c.D(x) + g.x over a network with one hidden layer, as numbers in front of its neurons.

    row(x) = constant + linear.x + sum_k v_k h(a_k(x)),   a_k = V_k.x + b_k ~ N(m_k(x), s_k(x)^2),
with v = c E[W] because the last layer is independent of the hidden one, and h = E relu or E tanh:
    leaky(a) = alpha a + (1 - alpha) relu(a),   sigmoid(a) = 1/2 + tanh(a/2)/2.

Rounding, a priori and once for every row. First the row is replaced by the one with the stored numbers as exact
parameters: v, mu_k, b_k, linear, constant as computed, the variances as stored. As h is 1-Lipschitz and |h(a)| <= |a|,
that costs |v* - v| |a| + |v| |m* - m| and so on. Then all that is computed on a box are sums of products whose absolute
values add up to at most a small multiple of |v_k| A_k with A_k = |mu_k|.X + |b_k| + s_k(X), X >= |x| on the item's box:
every value pays C sum |v_k| A_k, C = 16 gamma(n) + 32 ABSOLUTE with n all the lengths of sums together. Inequalities
are used in forms that hold for any float coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.characteristic import Sums
from bnn_vnnlib.gaussian.normal import ABSOLUTE
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import UNIT, gamma

LOST = 1e-140
"""More than what underflow takes from a standard deviation."""


@dataclass(frozen=True, eq=False)
class Rows:
    """M rows, each over a box of its own.

    Attributes
    ----------
    v (M, K), linear (M, n), constant (M,) : see above
    payment (M,) : what the value of a row pays on any part of its box
    slope_payment (M, n) : what a slope pays on any part of the box
    room (M, K) : error of a computed m or s on the box, at most
    """

    v: Tensor
    linear: Tensor
    constant: Tensor
    payment: Tensor
    slope_payment: Tensor
    room: Tensor

    def of(self, owner: Tensor) -> Rows:
        """Some of them, repeats allowed."""
        return Rows(*(getattr(self, name)[owner] for name in self.__dataclass_fields__))


def rows_over(
    hidden: DenseLayer, top: DenseLayer, kind: str, alpha: float, outputs: Tensor, inputs: Tensor | None, size: Tensor
) -> Rows:
    """The rows outputs (M, m), inputs (M, n) or None over boxes with |x| <= size (M, n).

    For tanh and sigmoid `hidden` must be scaled already, so that h is E tanh of its pre-activations.
    """
    small, long = gamma(top.outputs + 4), gamma(2 * (hidden.outputs + hidden.inputs) + 32)
    absolute = outputs.abs()
    v, constant = outputs @ top.mean, outputs @ top.bias
    wrong = small * (absolute @ top.mean.abs()) + absolute @ top.slack * (1 + small) + LOST
    paid = small * (absolute @ top.bias.abs()) + absolute @ top.bias_slack * (1 + small) + LOST
    linear = torch.zeros_like(size) if inputs is None else inputs
    paid = paid + long * (linear.abs() * size).sum(-1)

    deviation = torch.sqrt(hidden.variance)
    largest = size @ hidden.mean.abs().mT + hidden.bias.abs() + hidden.deviation(size**2)
    blurred = size @ hidden.slack.mT + hidden.bias_slack
    room = 16 * long * largest * (1 + 1e-6) + LOST
    share = 16 * long + 32 * ABSOLUTE
    weight = v.abs() + wrong
    paid = paid + (weight * (share * largest + blurred + LOST)).sum(-1)
    match kind:
        case "relu" | "leaky_relu":
            paid = paid + (wrong * (largest + blurred)).sum(-1)
            linear = linear + alpha * (v @ hidden.mean)
            constant = constant + alpha * (v @ hidden.bias)
            v = (1 - alpha) * v
        case "tanh":
            paid = paid + wrong.sum(-1) + share * weight.sum(-1)
        case "sigmoid":
            paid = paid + wrong.sum(-1) + share * weight.sum(-1)
            v = v / 2
            constant = constant + v.sum(-1)
    steep = weight @ hidden.mean.abs() + weight @ deviation + (weight @ hidden.variance) * size
    slope = 16 * (long + ABSOLUTE) * (steep + linear.abs()) * (1 + 1e-6) + LOST
    paid = (paid + 8 * UNIT * constant.abs()) * (1 + 1e-6)
    return Rows(v, linear, constant, paid, slope, room)


def sums_at(first: DenseLayer, second: DenseLayer, x: Tensor) -> Sums:
    """The outputs of two layers with relu between them at points (P, n): P times I sums, those of a point together.

    m and s are off by some roundings, and m by what the slack of the first layer allows; `blur` is what that and the
    slack of the second layer do to an output, since relu has slopes of at most 1.
    """
    m, s = x @ first.mean.mT + first.bias, first.deviation(x**2)
    error = errors_at(first, x, m, s) + 16 * UNIT * (m.abs() + s)
    sig = torch.sqrt(second.variance)
    blur = 2 * error @ (second.mean.abs() + second.slack + sig).mT + (m.abs() + s) @ second.slack.mT
    blur = (blur + 16 * UNIT * second.bias.abs() + second.bias_slack) * (1 + 1e-9)
    count = len(x)
    return Sums(
        m.repeat_interleave(second.outputs, 0), s.repeat_interleave(second.outputs, 0),
        second.mean.repeat(count, 1), sig.repeat(count, 1),
        second.bias.repeat(count), torch.sqrt(second.bias_variance).repeat(count), blur.flatten(),
    )  # fmt: skip


def errors_at(layer: DenseLayer, x: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """(P, K): how far the computed m and s may be from the true ones at points (P, n)."""
    size = x.abs() @ layer.mean.abs().mT + layer.bias.abs() + s
    error = gamma(2 * x.shape[1] + 16) * size + x.abs() @ layer.slack.mT + layer.bias_slack
    return error * (1 + 1e-9) + LOST
