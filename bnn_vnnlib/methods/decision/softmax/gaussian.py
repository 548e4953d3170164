"""Moments of relu(N(m, s^2)) in closed form, each with a stated error.

With t = m / s:  E relu = m Phi(t) + s phi(t), jointly convex in (m, s) and nondecreasing in both (it is s h(m / s) with
h(t) = t Phi(t) + phi(t) convex, h' = Phi, and d/ds = phi(t)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnn_vnnlib.rounding import UNIT

ROUND = 2.0**-38
"""Error of the values here, relative to the sum of the absolute terms: arguments of erfc, exp and erfcx are at most
about 40 where they matter, so that their rounding costs a factor 1 + 2 * 40^2 u, and the functions a few units more.
"""

LEAST = 1e-100
"""Standard deviations below count as this, which changes the values by less."""


def cdf(t: Tensor) -> Tensor:
    """Phi."""
    return torch.special.erfc(t * -math.sqrt(0.5)) / 2


def density(t: Tensor) -> Tensor:
    """Density of the standard Gaussian."""
    return torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def relu_mean(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2)), up to ROUND (|m| + s)."""
    t = (m / s.clamp(min=LEAST)).clamp(-40.0, 40.0)
    return m * cdf(t) + s * density(t)


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
