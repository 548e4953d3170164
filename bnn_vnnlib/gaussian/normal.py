"""The standard Gaussian in torch, and what rounding costs the closed forms of this package.

| value | error allowed | why |
|---|---|---|
| `density`, `cdf`, tanh | ABSOLUTE | a few units each |
| `cdf_above`, `cdf_below` | rounded up, down | SPECIAL, times 1 + x^2 below 0: a unit of x moves log Phi by x^2 units |
| log Phi | LOGARITHM (1 + its size) | the same, where it is summed as a series |
| moments of relu | ABSOLUTE times their absolute terms | t = m / s is off by 2 units, and t phi(t) < 0.25 |
| exponential moments | ROUND times their absolute terms | arguments of exp and erfcx up to 40^2 / 2 |
| half lines, factors of characteristic functions | TERM | the Faddeeva function is good to 1e-13 |

tests/gaussian holds every line against mpmath.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnn_vnnlib.rounding import SPECIAL, TINY

ABSOLUTE = 1e-14
"""Absolute error allowed to Phi, phi and tanh in torch: about 50 units."""

LOGARITHM = 2.0**-44
"""Error allowed to log Phi, relative to 1 + |log Phi|: 2^9 units."""

ROUND = 2.0**-38
"""Error of exponential moments, relative to the sum of the absolute terms: arguments of erfc, exp and erfcx are at most
about 40 where they matter, so that their rounding costs a factor 1 + 2 * 40^2 u, and the functions a few units more.
"""

TERM = 1e-12
"""Absolute error allowed to a value of modulus 1 at most that the Faddeeva function takes part in."""

LEAST = 1e-100
"""Standard deviations below count as this, which changes the values by less; its square does not underflow."""

_FAR = 1e4
"""Arguments of log Phi below -FAR count as that, which only raises it."""


def density(t: Tensor) -> Tensor:
    """phi(t), the standard normal density."""
    return torch.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)


def cdf(t: Tensor) -> Tensor:
    """Phi(t), by erfc: ndtr of torch subtracts from 1, and has no digits left in the lower tail."""
    return torch.special.erfc(t * -math.sqrt(0.5)) / 2


def cdf_above(x: Tensor) -> Tensor:
    """Phi(x), rounded up; its relative error grows with the square of a negative argument."""
    return cdf(x) * (1 + SPECIAL * (1 + x.clamp(-40.0, 0.0) ** 2)) + TINY


def cdf_below(x: Tensor) -> Tensor:
    """Phi(x), rounded down."""
    return (cdf(x) * (1 - SPECIAL * (1 + x.clamp(-40.0, 0.0) ** 2)) - TINY).clamp(min=0.0)


def quantile(probability: Tensor) -> Tensor:
    """z >= 0 with Phi(-z) <= probability, rounded up; 0 for one half and more."""
    return (-torch.special.ndtri(probability.clamp(max=0.5))).clamp(min=0.0) * (1 + 1e-10) + 1e-10


def log_cdf_above(x: Tensor) -> Tensor:
    """log Phi(x), rounded up."""
    value = torch.special.log_ndtr(x.clamp(min=-_FAR))
    return value + LOGARITHM * (1 + value.abs())


def log_cdf_below(x: Tensor) -> Tensor:
    """log Phi(x), rounded down; -inf far out."""
    value = torch.special.log_ndtr(x.clamp(min=-_FAR))
    return torch.where(x > -_FAR, value - LOGARITHM * (1 + value.abs()), -torch.inf)


def ratio(m: Tensor, s: Tensor) -> Tensor:
    """t = m / s, large where s is nothing."""
    return m / s.clamp(min=LEAST)
