"""Gaussian expectations of relu with the errors that they are allowed.

    g(m, s) = E relu(N(m, s^2)) = m Phi(t) + s phi(t),  t = m / s.

g is convex, positively homogeneous and nondecreasing in m and s: the maximum over tau of Phi(tau) m + phi(tau) s.
Proof: relu(a) >= a 1[N > -tau] for a = m + s N, whose expectation is m Phi(tau) + s phi(tau); equality at tau = t.
Hence dg/dm = Phi(t) in [0, 1] and dg/ds = phi(t) in [0, .3990].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnn_vnnlib.methods.decision.regression.rows import FLOOR

_ROOT = math.sqrt(2 * math.pi)


def density(t: Tensor) -> Tensor:
    """phi(t), absolute error below 1e-15."""
    return torch.exp(-0.5 * t**2) / _ROOT


def mass(t: Tensor) -> Tensor:
    """Phi(t), absolute error below 1e-15."""
    return torch.special.ndtr(t)


def ratio(m: Tensor, s: Tensor) -> Tensor:
    """t = m / s, large where s is nothing."""
    return m / s.clamp(min=FLOOR)


def mean_relu(m: Tensor, s: Tensor) -> Tensor:
    """g(m, s), with an error of at most 1e-14 (|m| + s): t is off by 2 units at most and |t| phi(t) < .25."""
    t = ratio(m, s)
    return m * mass(t) + s * density(t)
