"""Moments of relu(N(m, s^2)) in closed form; `normal` says what rounding costs them.

    g(m, s) = E relu(N(m, s^2)) = m Phi(t) + s phi(t),  t = m / s.

g is convex, positively homogeneous and nondecreasing in m and s: the maximum over tau of Phi(tau) m + phi(tau) s.
Proof: relu(a) >= a 1[N > -tau] for a = m + s N, whose expectation is m Phi(tau) + s phi(tau); equality at tau = t.
Hence dg/dm = Phi(t) in [0, 1] and dg/ds = phi(t) in [0, 0.3990].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import LEAST, ROUND, cdf, density, ratio
from bnn_vnnlib.rounding import UNIT


def relu_mean(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2)), up to ABSOLUTE (|m| + s)."""
    t = ratio(m, s)
    return m * cdf(t) + s * density(t)


def relu_square(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2))^2, up to ABSOLUTE (|m| + s)^2."""
    t = ratio(m, s)
    return (m * m + s * s) * cdf(t) + m * s * density(t)


def relu_fourth(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2))^4, up to 6 ABSOLUTE (|m| + s)^4."""
    t, a, b = ratio(m, s), m * m, s * s
    return (a * a + 6 * a * b + 3 * b * b) * cdf(t) + m * s * (a + 5 * b) * density(t)


def excess_above_mean(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2)) - relu(m) = s (phi(t) - |t| Phi(-|t|)), rounded up; falls with |m| and grows with s."""
    t = (m.abs() / s.clamp(min=LEAST)).clamp(max=40.0)
    return s * (density(t) - t * cdf(-t)).clamp(min=0.0) + ROUND * s * density(t) + LEAST


def exponential_excess(a: Tensor, square: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """E[exp(a z + square z^2 / 2) - 1 - a z], z = relu(N(m, s^2)), rounded up; inf where it is out of reach.

    With r^2 = 1 - square s^2 > 0 and y = (t + a s) / r, completing the square gives
        E exp(..) = Phi(-t) + exp(-t^2 / 2) exp(y^2 / 2) Phi(y) / r.
    """
    s = s.clamp(min=LEAST)
    t = m / s
    r = torch.sqrt((1 - square * s * s).clamp(min=0.0))
    y = (t + a * s) / r
    above = torch.exp(-t * t / 2) * torch.special.erfcx(y * -math.sqrt(0.5)) / (2 * r)
    below, first = cdf(t), a * (m * cdf(t) + s * density(t))
    size = above + below + a.abs() * (m.abs() * below + s * density(t))
    # r^2 is off by a few units, and so y^2 / 2 by that times (1 + y^2 + t^2) / r^2
    value = above - below - first + ROUND * size + 16 * UNIT * (1 + t * t + y * y) / (r * r) * above + LEAST
    usable = (r > 1e-3) & (t.abs() < 37) & (y.abs() < 37)
    return torch.where(usable, value.clamp(min=LEAST), torch.inf).nan_to_num(torch.inf, torch.inf)
