"""Lower tails of a row: three bounds on one probability, of which the least is taken.

The row is at least m0 + sum over layers of delta . h(x) + bias noise on G (see the package). With h(x) in
[hc - rho, hc + rho] on G, all x are served by
    F := m0 + sum ( hc_j delta_j - rho_j |delta_j| ) + bias noise,
a concave function of the standardised noise, with E F = m0 - sqrt(2/pi) sum rho_j s_j, s_j^2 = Var delta_j, and
    Lip(F)^2 <= L^2 := sum over weights k of sigma_k^2 (|g_k| + r_k)^2 + bias variances,
g_k = sum over the uses of k of A_i hc_j, and r_k the same sum of |A_i| rho_j (for a dense layer L^2 becomes
sum_j s_j^2 (|hc_j| + rho_j)^2).

1. P(F <= t) <= Phi(-(E F - t) / L) for t < E F (at t = E F it fails for a constant F).
Proof. -F is convex and L-Lipschitz. By the Gaussian isoperimetric inequality (Borell 1975; Sudakov, Tsirelson 1974)
P(-F >= med(-F) + u) <= Phi(-u / L) for u > 0, and the median of a convex function of a Gaussian vector is at most its
mean (Kwapien, A remark on the median and the expectation of convex functions of Gaussian vectors, 1994).
No independence between layers is used: a weight that enters at several places makes F no less concave, and its uses
add up in g_k and r_k (here bounded by the triangle inequality over nodes, and by the multiplicity within one).

The radius rho is made by the noise of earlier layers as much as by x, and 1. pays it as if it were chosen after delta
is known. Now let every source of noise enter at one node only. Then delta, at its node, is independent of h(x0), x0
the centre of the box. Let rho' bound |h(x) - h(x0)| on G, and let h0 be h(x0) clipped to its range (equal on G). The
set of the h within rho' of h0 and inside the range is a box [c - r, c + r] that is known before delta, r <= rho', and
    row(x) >= m0 + sum ( c_j delta_j - r_j |delta_j| ) + bias noise on G.

2. P(the right side <= t) <= 2 Phi(-(E' - t) / L) for t < E' := m0 - sqrt(2/pi) sum rho'_j s_j, with the same L.
Proof. Go through the nodes in order and let M be the sum of their terms, each minus its mean given the earlier ones;
these means add up to at least E' - m0. Let a Brownian motion run for one unit of time for each standardised weight
(those of one node together). The process M_t = E[M | F_t] is a continuous martingale: at the node, the integrand is
the conditional mean of the gradient of the node's term, because the later terms have mean zero whatever the past was.
Its length is at most the Lipschitz constant of that term given the past. All of [c - r, c + r] lies in [hc - rho,
hc + rho], so its square is at most the node's part of L^2. Hence <M> <= L^2, M is a Brownian motion stopped at most
at L^2 (Dambis; Dubins, Schwarz), and by reflection P(M <= -u) <= P(min over [0, L^2] <= -u) = 2 Phi(-u / L).

3. Split off the folded part: row(x) >= m0 + S - Q on G, S = sum h0_j delta_j + bias noise, Q = sum rho'_j |delta_j|.
Given the past, each term of S is Gaussian with a variance between known bounds, so S is a Brownian motion stopped
somewhere in [a, b], a and b the sums of the bounds (b <= L^2). For every real u, by reflection,
    P(S <= u) <= P(B_a <= u or B falls to u during [a, b]) = Phi(k) + 2 T(k, sqrt((b - a) / a)),  k = u / sqrt(b),
T being Owen's function. Q is convex and L'-Lipschitz in the noise, L'^2 like L^2 with hc = 0 and rho', so that for
z > 0 P(Q > E Q + z L') <= Phi(-z) as in 1. Therefore P(the right side <= t) is at most Phi(-z) plus the former at
u = -(E' - t - z L'). It serves thresholds on both sides of the mean. Where the ranges of all h0 are points, the
variance of S is a number, known up to roundings, and Phi(k) alone will do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from bnn_vnnlib.bounds.rounding import SPECIAL, TINY, UNIT

FOLD = math.sqrt(2 / math.pi) * (1 + 4 * UNIT)
"""E|N|, rounded up."""

OWEN = 1e-14
"""Absolute error allowed to Owen's function in scipy (tested against mpmath)."""

SPLITS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 39.0)
"""z of bound 3; the last one is free and serves what is (nearly) not folded."""


@dataclass(frozen=True, eq=False)
class Split:
    """What bound 3 needs: folded L', the bounds a, b of the variance of S, and whether it is fixed; all (K, M, R)."""

    folded: Tensor
    least: Tensor
    most: Tensor
    fixed: Tensor


@dataclass(frozen=True, eq=False)
class Tail:
    """On G a row is at least F with E F >= mean and L <= spread; all (K, M, R).

    centred : E' of bound 2, or None where a source enters at several nodes
    split : for bound 3, or None
    """

    mean: Tensor
    spread: Tensor
    centred: Tensor | None = None
    split: Split | None = None

    def failure(self, threshold: Tensor) -> Tensor:
        """Upper bound on P(the lower bound of the row <= threshold)."""
        found = _normal(_below(self.mean, threshold), self.spread)
        if self.centred is not None:
            found = torch.minimum(found, 2 * _normal(_below(self.centred, threshold), self.spread))
        if self.centred is not None and self.split is not None:
            found = torch.minimum(found, self._split_failure(threshold, self.split))
        return found.nan_to_num(1.0, 1.0, 1.0).clamp(0.0, 1.0)

    def _split_failure(self, threshold: Tensor, split: Split) -> Tensor:
        if self.centred is None:
            raise TypeError("only a centred tail is split")
        lost = self.mean.new_tensor(_ndtr(-np.array(SPLITS))).reshape(-1, *(1,) * self.mean.dim())
        z = lost.new_tensor(SPLITS).reshape(lost.shape)
        drop = z * split.folded * (1 + 4 * UNIT)
        gap = _below(self.centred, threshold)
        gap = gap - drop - 2 * UNIT * (gap.abs() + drop)
        return (lost + _stopped(gap, split)).nan_to_num(1.0, 1.0, 1.0).amin(0)

    def log_failure(self, threshold: Tensor) -> Tensor:
        """Logarithm of the lesser of bounds 1 and 2, not rounded: smooth, for an optimiser to descend on."""
        found = torch.special.log_ndtr(-(self.mean - threshold) / self.spread)
        if self.centred is not None:
            other = torch.special.log_ndtr(-(self.centred - threshold) / self.spread)
            found = torch.minimum(found, math.log(2) + other)
        return found

    def quantile(self, deviations: Tensor, centred: Tensor) -> Tensor:
        """Threshold that the row stays above on G, except with probability p.

        deviations, centred : z >= 0 with Phi(-z) <= p and with 2 Phi(-z) <= p, broadcastable
        """
        found = _dropped(self.mean, deviations, self.spread)
        return found if self.centred is None else torch.maximum(found, _dropped(self.centred, centred, self.spread))


def deviations_of(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """z >= 0 with Phi(-z) <= probability (at most .5), rounded up."""
    return np.maximum(-special.ndtri(np.minimum(probability, 0.5)), 0.0) * (1 + 1e-10) + 1e-10


def _dropped(mean: Tensor, deviations: Tensor, spread: Tensor) -> Tensor:
    drop = deviations * spread * (1 + 4 * UNIT)
    value = mean - drop
    return (value - 2 * UNIT * (mean.abs() + drop)).nan_to_num(-torch.inf, torch.inf, -torch.inf)


def _below(mean: Tensor, threshold: Tensor) -> Tensor:
    """mean - threshold, rounded down."""
    return mean - threshold - 2 * UNIT * (mean.abs() + threshold.abs())


def _ndtr(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Phi, rounded up; its relative error grows with the square of a negative argument."""
    return special.ndtr(x) * (1 + SPECIAL * (1 + np.minimum(np.abs(x), 40.0) ** 2)) + TINY


def _normal(gap: Tensor, spread: Tensor) -> Tensor:
    """Phi(-gap / spread) rounded up where gap > 0, else 1; an indicator where the spread is 0."""
    x = (gap / spread) * (1 - 4 * UNIT)
    phi = x.new_tensor(_ndtr(-x.detach().cpu().numpy()))
    sure = (spread == 0) & (gap > 0)
    return torch.where(sure, 0.0, torch.where(gap > 0, phi, 1.0))


def _stopped(gap: Tensor, split: Split) -> Tensor:
    """P(a Brownian motion stopped in [a, b] is at most -gap), rounded up; at a fixed time where the variance is."""
    least, most = split.least, split.most
    ratio = torch.sqrt(((most - least).clamp(min=0) / least).nan_to_num(torch.inf)) * (1 + 8 * UNIT)
    k = _up(-gap / torch.sqrt(most))  # the bound grows with k
    owen = np.minimum(2 * special.owens_t(k, ratio.cpu().numpy()) + 2 * OWEN, _ndtr(-np.abs(k)))
    at_least = _ndtr(_up(-gap / torch.sqrt(least)))
    phi = np.where(split.fixed.cpu().numpy(), np.where(k > 0, at_least, _ndtr(k)), _ndtr(k) + owen)
    certain = (most == 0) & (gap > 0)
    return torch.where(certain, 0.0, torch.where(most > 0, gap.new_tensor(phi) * (1 + 2 * UNIT), 1.0))


def _up(k: Tensor) -> NDArray[np.float64]:
    return (k + 8 * UNIT * k.abs()).cpu().numpy()
