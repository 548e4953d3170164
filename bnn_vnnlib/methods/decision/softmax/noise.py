"""How far the exponential of a row of logits may exceed the exponential of its mean.

A row u . f(x) = sum_k U_k z_k + U_0 has independent Gaussian U_k ~ N(a_k, b_k^2), z_k = relu(N(m_k, s_k^2)), and
    log E exp(u . f) - E u . f <= v = sum_k v_k + Var(U_0) / 2,
with v_k the smaller one of two bounds, both nondecreasing in (m_k, s_k), so that a box is served by its upper corner:
- z is a 1-Lipschitz function of a Gaussian: E exp(A (z - G)) <= exp(A^2 s^2 / 2) for fixed A. With A = a + b N, and
  b s < 1, integrating N gives  a^2 s^2 / 2 + b^2 (G + a s^2)^2 / (2 (1 - b^2 s^2)) - log(1 - b^2 s^2) / 2.
- log y <= y - 1: E h(z), h(z) = exp(a z + b^2 z^2 / 2) - 1 - a z. It is convex with h(0) = h'(0) = 0, so it does not
  fall on z >= 0, and h(relu(.)) is convex and nondecreasing. This one serves neurons that are nearly dead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.hidden import Hidden
from bnn_vnnlib.gaussian.normal import LEAST, ROUND
from bnn_vnnlib.gaussian.relu import exponential_excess
from bnn_vnnlib.rounding import UNIT, gamma

MAX_NOISE = 1 - 2.0**-20
"""b^2 s^2 must stay below: the first bound divides by 1 - b^2 s^2, which has few digits left close to 0."""


def log_excess(neurons: Hidden, weights: Tensor, square: Tensor, constant: Tensor) -> Tensor:
    """Upper bounds v (P, R) over the boxes; inf where there is none.

    weights a (R, H) or (P, R, H), square b^2 alike, constant Var(U_0) (R,) or (P, R).
    """
    s, g, m = (part[:, None] for part in (neurons.most, neurons.mean_above, neurons.high))
    found = torch.minimum(_by_lipschitz(weights, square, g, s), exponential_excess(weights, square, m, s))
    total = found.sum(-1) + constant / 2
    return total * (1 + gamma(found.shape[-1] + 16) + ROUND) + LEAST


def _by_lipschitz(a: Tensor, square: Tensor, g: Tensor, s: Tensor) -> Tensor:
    variance = s * s
    play = square * variance * (1 + 4 * UNIT)
    tilted = torch.where(a >= 0, g + a * variance, torch.maximum(g, -a * variance))
    left = 1 - play
    value = a * a * variance / 2 + square * tilted**2 / (2 * left) - torch.log1p(-play) / 2
    # 1 - play loses at most a factor 1 + 2^-32 where play is below MAX_NOISE
    value = value * (1 + 2.0**-30) + LEAST
    return torch.where(play < MAX_NOISE, value, torch.inf)
