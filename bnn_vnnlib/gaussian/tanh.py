"""T_n = E tanh^(n)(m + s N), n = 0, 1, 2, with proved errors: for small s a series, else the trapezoidal rule.

Series: by the heat equation dT_n/dq = T_{n+2} / 2 in q = s^2, and T_n = tanh^(n) at q = 0, so that
    T_n = tanh^(n) + q tanh^(n+2) / 2 + q^2 tanh^(n+4) / 8 + r,     |r| <= q^3 C_{n+6} / 48,
C_k bounding |tanh^(k)|, a polynomial in t = tanh or in u = 1 - t^2: tanh' = u, tanh'' = -2 t u, tanh''' = 4 u - 6 u^2,
tanh'''' = 8 t u (3 u - 1), then u (16 - 120 u + 120 u^2) and -2 t u (16 - 240 u + 360 u^2).

Rule: with nodes i h and weights h phi(i h), |i h| <= 8.75,
    |E F(N) - sum_i w_i F(i h)| <= 2 M e^{a^2/2} / (e^{2 pi a / h} - 1) + 2 Phi(-8.75) sup |F|
for F analytic with |F| <= M on |Im| <= a (contour integration: Trefethen and Weideman 2014, theorem 5.1, with
integral |phi(t + i a)| dt = e^{a^2/2}; the weights left out lie below the integral of phi, as phi falls there).
F(t) = tanh^(n)(m + s t) is analytic for s |Im t| < pi/2, and for |Im z| <= pi/4
    |tanh z|^2 = (sinh^2 u + sin^2 v) / (sinh^2 u + cos^2 v) <= 1,     |tanh' z| = 1 / |cosh z|^2 <= 2,
hence |tanh''| = 2 |tanh tanh'| <= 4. So a = min(pi / (4 s), 2 pi / h, 26): the second is where the bound is least, and
the third serves h <= .25, where nothing is left to gain and e^{a^2/2} would overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import ABSOLUTE, LEAST
from bnn_vnnlib.rounding import gamma

_REACH = 8.75
"""Largest |i h| among the nodes: 2 Phi(-8.75) < 3e-18 is left out."""

_STEPS = (0.625, 0.5, 0.375, *(0.25 / 2**k for k in range(6)))
"""Step sizes h of the trapezoidal rule; the largest that is exact enough is taken."""

_ENOUGH = 1e-13
"""Error of E tanh that asks for no finer rule."""

_SMALL = 0.03
"""Up to this s the series is taken: its error is below 1e-9."""

_DERIVATIVES = (53.0, 273.0, 1224.0)
"""Upper bounds on |tanh^(k)|, k = 6, 7, 8."""

_WIDEST = 26.0
"""Largest half width of the strip: the rule's error is below 1e-100 there."""

Three = tuple[Tensor, Tensor, Tensor]


class Expectations(Protocol):
    """Values of T_0, T_1, T_2 with bounds on their errors."""

    @property
    def size(self) -> int:
        """Numbers that one pair (m, s) takes, about."""
        ...

    def values(self, m: Tensor, s: Tensor) -> Three:
        """T_0, T_1, T_2 at (m, s), each of their shape."""
        ...

    def mean(self, m: Tensor, s: Tensor) -> Tensor:
        """T_0 = E tanh(m + s N) alone, without its derivatives."""
        ...

    def errors(self, s: Tensor) -> Three:
        """Bounds on the errors of T_0, T_1, T_2, roundings included but for the effect of those of m and s."""
        ...


@dataclass(frozen=True)
class PowerSeries:
    """The series in s^2, for small s (up to `_SMALL`)."""

    size: int = 8

    def values(self, m: Tensor, s: Tensor) -> Three:
        """T_0, T_1, T_2 at (m, s), three terms of the series each."""
        t, q = torch.tanh(m), s * s
        u = 1 - t * t
        double, half, eighth = -2 * t * u, q / 2, q * q / 8
        fourth = 4 * double * (1 - 3 * u)
        return (
            t + half * double + eighth * fourth,
            u * (1 + half * (4 - 6 * u) + eighth * (16 + 120 * u * (u - 1))),
            double + half * fourth + eighth * double * (16 + u * (360 * u - 240)),
        )

    def mean(self, m: Tensor, s: Tensor) -> Tensor:
        """T_0 at (m, s) from two terms of the series and a bit: what is attained may be a little off."""
        t = torch.tanh(m)
        return t - s * s * t * (1 - t * t)

    def errors(self, s: Tensor) -> Three:
        """Bounds on the errors: the remainders, and roundings; the polynomials have slopes below 8 in t for q <=
        SMALL^2.
        """
        cube = s**6 / 48 * (1 + 1e-6)
        first, second, third = (cube * c + 32 * ABSOLUTE for c in _DERIVATIVES)
        return first, second, third


@dataclass(frozen=True, eq=False)
class Quadrature:
    """Nodes and weights (Q,) with step h."""

    step: float
    nodes: Tensor
    weights: Tensor

    @property
    def size(self) -> int:
        """Numbers that one pair (m, s) takes: t and u at each node."""
        return 2 * len(self.nodes)

    def values(self, m: Tensor, s: Tensor) -> Three:
        """T_0, T_1, T_2 at (m, s): sums over the nodes."""
        t = torch.tanh(m[..., None] + s[..., None] * self.nodes)
        u = 1 - t * t
        return t @ self.weights, u @ self.weights, -2 * ((t * u) @ self.weights)

    def mean(self, m: Tensor, s: Tensor) -> Tensor:
        """T_0 at (m, s): a sum over the nodes."""
        return torch.tanh(m[..., None] + s[..., None] * self.nodes) @ self.weights

    def missed(self, s: Tensor) -> Tensor:
        """Error of the rule for T_0; E tanh and the sum are at most 1, up to rounding."""
        strip = torch.clamp(math.pi / (4 * s.clamp(min=LEAST)), max=min(2 * math.pi / self.step, _WIDEST))
        error = 2 * torch.exp(strip**2 / 2) / torch.expm1(2 * math.pi * strip / self.step)
        return error.clamp(max=2.1) * (1 + 1e-9)

    def errors(self, s: Tensor) -> Three:
        """The rule's, times 1, 2, 4; summation; the error of tanh times the slopes of t, u, 2 t u."""
        missed, rounded = self.missed(s), gamma(2 * len(self.nodes) + 16) + 8 * ABSOLUTE
        return missed + rounded, 2 * missed + rounded, 4 * missed + rounded


def expectations_for(deviations: Tensor) -> Expectations:
    """A way that serves deviations up to the largest of these."""
    s = deviations.amax() if deviations.numel() else deviations.new_zeros(())
    if float(s) <= _SMALL:
        return PowerSeries()
    for step in _STEPS:
        count = math.ceil(_REACH / step)
        nodes = step * torch.arange(-count, count + 1, dtype=torch.float64, device=deviations.device)
        rule = Quadrature(step, nodes, step * torch.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi))
        if bool(rule.missed(s) < _ENOUGH):
            break
    return rule
