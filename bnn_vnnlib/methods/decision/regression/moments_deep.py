"""Regression of any depth with relu: intervals for E z^k by moments, no events and no union bounds.

Given z = z^{k-1}, zeta_i is N(m_i(z), q_i(z)) with m_i = mu_i.z + b_i, q_i = sum sig_ij^2 z_j^2 + sig_b^2, s = sqrt q;
g as in `gaussian.relu`. M_L <= E m <= M_U from the intervals of E z.

Layer 1: z = relu(N(m, s^2)); g, E z^2 and E z^4 grow with m and s, so the ends of [m] x [s] serve.
Lower: E z_i = E g(m, s) >= g(E m, E s) >= g(M_L, E s)              (Jensen: g is convex; g grows)
    E s >= s(E z) (a norm), and above layer 1 also E s >= sqrt(E q) (1 - Var q / (2 (E q)^2)),
    by sqrt(1 + u) >= 1 + u/2 - u^2/2 for u >= -1; Var q = sum sig^4 Var z_j^2 since layer 1 is independent.
Upper: E|m + s N| <= sqrt(m^2 + 2 s^2 / pi), hence E z_i <= (M_U + sqrt(M_U^2 + Var m + 2 E q / pi)) / 2.
    Proof: for f(t) = E|t + N|, f^2 - t^2 is 2/pi at 0 and falls: with w = f' = 2 Phi(t) - 1, f w <= t says
    h = t (1 - w^2) - 2 phi w >= 0; h(0) = h(inf) = 0 and h'' = 2 phi (w (t^2 - 3) + 2 t phi) is first negative, then
    positive, so that h rises and then falls.
    E z^2 <= max(M_U, 0)^2 + Var m + E q.
Var m_i: with h(z^k) = mu_i.z^k, condition downwards, Var h = E Var(h | z^{l-1}) + Var E(h | z^{l-1}) from l = k to 2.
Given z^{l-1} the zeta^l are independent, so Var(h | .) <= sum_j D_j^2 q_j (Poincare), D_j = sup |dh/dz_j|; layer 1 pays
sum D_j^2 Var z_j (Efron and Stein). One layer down, dh/dz_p is sum_j G_j (W_jp + N_j sig_jp^2 z_p / s_j), G_j from the
interval of dh/dz_j times [0, 1]; the noise term is at most phi(0) |mu_j| sig_jp at the top, E|N| D_j sig_jp below.

The boxes are cut into pieces first, and the least bound of the pieces counts: gaps from the moments stay.
Rounding: sums of nonnegative terms are multiplied by 1 +- gamma, other sums pay gamma times their absolute values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.walk import completed
from bnn_vnnlib.gaussian.normal import ABSOLUTE
from bnn_vnnlib.gaussian.relu import relu_fourth, relu_mean, relu_square
from bnn_vnnlib.methods.decision.regression.one_layer import squares
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.rounding import TINY, UNIT, gamma
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

_PIECES = 64
"""Parts of one box."""


@dataclass(frozen=True, eq=False)
class _Moments:
    """Moments of one hidden layer over boxes (B, K): range of E z, upper bounds of E z^2 and of E q."""

    low: Tensor
    high: Tensor
    square: Tensor
    noise: Tensor


@dataclass(frozen=True, eq=False)
class MomentsDeep:
    """Lower bounds for a chain of relu layers.

    steep : for each layer from the second on, D^2 (out, K_l) for the hidden layers l below it, from the top down
    """

    chain: DenseChain
    deadline: Deadline
    steep: tuple[tuple[Tensor, ...], ...]

    name: ClassVar[str] = "moments"

    @staticmethod
    def serves(chain: DenseChain) -> bool:
        """Whether the chain has two or more hidden layers, all of relu."""
        return len(chain.activations) >= 2 and chain.kinds == {"relu"}

    @staticmethod
    def over(chain: DenseChain, deadline: Deadline) -> MomentsDeep:
        """Prepare the slopes, which are the same for all boxes."""
        return MomentsDeep(chain, deadline, tuple(_steep(chain, k) for k in range(1, len(chain.layers) - 1)))

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) bounds on outputs.D(x) + inputs.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        count, widest = len(lower), max(layer.outputs for layer in self.chain.layers)
        step = at_once(32 * _PIECES * widest)
        outputs = outputs.expand(count, -1, -1)
        inputs = None if inputs is None else inputs.expand(count, -1, -1)

        def bounded(start: int) -> Tensor:
            some = slice(start, start + step)
            return self._lower(lower[some], upper[some], outputs[some], None if inputs is None else inputs[some])

        found = self.deadline.reached(range(0, count, step), bounded)
        return completed(found, outputs.shape[:2], -torch.inf, outputs)

    def _lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> Tensor:
        low, high = pieces(lower, upper, self.chain.layers[0].mean.abs().sum(0), _PIECES)
        hidden = self.hidden(low.flatten(0, 1), high.flatten(0, 1))[-1]
        shape = (*low.shape[:2], -1)
        value = _rows(self.chain.layers[-1], hidden.low.reshape(shape), hidden.high.reshape(shape), outputs)
        if inputs is not None:
            least = torch.minimum(inputs[:, None] * low[:, :, None], inputs[:, None] * high[:, :, None])
            paid = gamma(low.shape[-1] + 4) * least.abs().sum(-1) + TINY
            value = value + least.sum(-1) - paid
            value = value - 4 * UNIT * (value.abs() + paid)
        return value.amin(1).nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def hidden(self, lower: Tensor, upper: Tensor) -> list[_Moments]:
        """Moments of every hidden layer over boxes (B, n)."""
        first, variance, fluctuation = _first(self.chain.layers[0], lower, upper)
        found = [first]
        for k, layer in enumerate(self.chain.layers[1:-1], start=1):
            spread = _spread(self.steep[k - 1], found, variance)
            found.append(_next(layer, found[-1], spread, fluctuation if k == 1 else None))
        return found


def pieces(lower: Tensor, upper: Tensor, weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(N, count, n): halve the coordinate with the largest weighted width until there are `count` parts."""
    low, high = lower[:, None], upper[:, None]
    while low.shape[1] < count:
        axis = ((high - low)[:, :1] * weight).argmax(-1, keepdim=True).expand(-1, low.shape[1], 1)
        middle = ((low + high) / 2).gather(-1, axis)
        low, high = (
            torch.cat([low, low.scatter(-1, axis, middle)], 1),
            torch.cat([high.scatter(-1, axis, middle), high], 1),
        )
    return low, high


def _widened(layer: DenseLayer, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Range of mu.z + b for z in [low, high], rounded outward."""
    positive, negative = layer.mean.clamp(min=0), layer.mean.clamp(max=0)
    size = torch.maximum(low.abs(), high.abs())
    paid = gamma(2 * layer.inputs + 8) * (size @ layer.mean.abs().mT + layer.bias.abs())
    paid = paid + (size @ layer.slack.mT + layer.bias_slack) * (1 + gamma(layer.inputs + 8)) + TINY
    below = low @ positive.mT + high @ negative.mT + layer.bias
    above = high @ positive.mT + low @ negative.mT + layer.bias
    return below - paid, above + paid


def _root(layer: DenseLayer, square: Tensor, sign: int) -> Tensor:
    """sqrt(sum sig^2 z^2 + sig_b^2) from z^2 (B, in), rounded down (sign -1) or up."""
    q = square @ layer.variance.mT + layer.bias_variance
    return torch.sqrt((q * (1 + sign * gamma(layer.inputs + 16)) + sign * TINY).clamp(min=0)) * (1 + sign * 4 * UNIT)


def _relu_below(m: Tensor, s: Tensor) -> Tensor:
    return (relu_mean(m, s) - 4 * ABSOLUTE * (m.abs() + s)).clamp(min=0)


def _relu_above(m: Tensor, s: Tensor) -> Tensor:
    return (relu_mean(m, s) + 4 * ABSOLUTE * (m.abs() + s)).clamp(min=0)


def _first(layer: DenseLayer, lower: Tensor, upper: Tensor) -> tuple[_Moments, Tensor, tuple[Tensor, Tensor]]:
    """Layer 1: its moments, upper bounds of Var z, and (E z^2 from below, Var z^2 from above)."""
    m_low, m_high = _widened(layer, lower, upper)
    least, most = squares(lower, upper)
    s_low, s_high = _root(layer, least, -1), _root(layer, most, 1)
    low, high = _relu_below(m_low, s_low), _relu_above(m_high, s_high)
    square_low = (relu_square(m_low, s_low) - 16 * ABSOLUTE * (m_low.abs() + s_low) ** 2).clamp(min=0)
    square = relu_square(m_high, s_high) + 16 * ABSOLUTE * (m_high.abs() + s_high) ** 2
    fourth = relu_fourth(m_high, s_high) + 64 * ABSOLUTE * (m_high.abs() + s_high) ** 4
    noise = s_high**2 * (1 + 4 * UNIT) + TINY
    variance = torch.minimum((square - low**2 * (1 - 4 * UNIT)).clamp(min=0) * (1 + 4 * UNIT), noise)
    fluctuation = (fourth - square_low**2 * (1 - 4 * UNIT)).clamp(min=0) * (1 + 4 * UNIT)
    return _Moments(low, high, square, noise), variance, (square_low, fluctuation)


def _spread(steep: tuple[Tensor, ...], found: list[_Moments], variance: Tensor) -> Tensor:
    """Var m of every neuron of the next layer, rounded up."""
    noises = [*(moments.noise for moments in reversed(found[1:])), variance]
    parts = [noise @ slope.mT * (1 + gamma(slope.shape[1] + 8)) for noise, slope in zip(noises, steep, strict=True)]
    return torch.stack(parts).sum(0) * (1 + gamma(len(steep) + 8)) + TINY


def _next(layer: DenseLayer, below: _Moments, spread: Tensor, fluctuation: tuple[Tensor, Tensor] | None) -> _Moments:
    """Moments of the layer behind `below`; `fluctuation`: bounds behind Var q, where they are known."""
    m_low, m_high = _widened(layer, below.low, below.high)
    noise = _root(layer, below.square, 1) ** 2 * (1 + 4 * UNIT) + TINY
    s = _root(layer, below.low**2, -1)
    if fluctuation is not None:
        square, varies = fluctuation
        root = _root(layer, square, -1)
        wide = varies @ (layer.variance**2).mT * (1 + gamma(layer.inputs + 32)) + TINY
        better = root - wide / (2 * root**3) * (1 + 32 * UNIT) - 8 * UNIT * root
        s = torch.maximum(s, torch.where(root > 1e-70, better, torch.zeros_like(root)))
    low = _relu_below(m_low, s)
    inside = m_high**2 + spread + noise * 0.6366197723675815  # a little more than 2 / pi
    high = (m_high + torch.sqrt(inside) * (1 + 8 * UNIT)) / 2
    high = (high + 4 * UNIT * (m_high.abs() + high.abs())).clamp(min=0)
    square = (m_high.clamp(min=0) ** 2 + spread + noise) * (1 + 8 * UNIT) + TINY
    return _Moments(low, high, square, noise)


def _steep(chain: DenseChain, k: int) -> tuple[Tensor, ...]:
    """D^2 of mu_i.z^k, i over layer k's neurons, for the hidden layers k, k - 1, ..., 1; rounded up."""
    top = chain.layers[k]
    low, high = top.mean - top.slack, top.mean + top.slack
    found = []
    for position in range(k - 1, -1, -1):
        layer, width = chain.layers[position], low.shape[1]
        largest = torch.maximum(low.abs(), high.abs())
        found.append(largest**2 * (1 + 8 * UNIT) + TINY)
        low, high = low.clamp(max=0), high.clamp(min=0)
        deviation = torch.sqrt(layer.variance) * (1 + 8 * UNIT)
        factor = 0.39895 if position == k - 1 else 0.79789
        positive, negative = layer.mean.clamp(min=0), layer.mean.clamp(max=0)
        paid = largest @ (factor * deviation + layer.slack + gamma(2 * width + 16) * layer.mean.abs())
        paid = paid * (1 + gamma(width + 16)) + TINY
        low, high = low @ positive + high @ negative - paid, high @ positive + low @ negative + paid
    return tuple(found)


def _rows(top: DenseLayer, low: Tensor, high: Tensor, outputs: Tensor) -> Tensor:
    """(N, P, R): lower bounds of outputs (N, R, m) over E z in [low, high] (N, P, K)."""
    weight = outputs @ top.mean
    wrong = gamma(top.outputs + 4) * (outputs.abs() @ top.mean.abs()) + outputs.abs() @ top.slack * (1 + 1e-12) + TINY
    value = low @ weight.clamp(min=0).mT + high @ weight.clamp(max=0).mT
    size = torch.maximum(low.abs(), high.abs())
    constant = outputs @ top.bias
    paid = outputs.abs() @ (gamma(top.outputs + 4) * top.bias.abs() + top.bias_slack * (1 + 1e-12))
    paid = (paid + TINY)[:, None] + size @ (wrong + gamma(2 * top.inputs + 8) * weight.abs()).mT
    value = value + constant[:, None] - paid * (1 + 1e-12)
    return value - 4 * UNIT * (value.abs() + constant.abs()[:, None])
