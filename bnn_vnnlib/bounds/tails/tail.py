"""Lower tails of a row: four bounds on one probability, of which the least is taken, and one on its mean.

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

The order of what follows is that of the claims (`run.stages`). A stage is the noise of all nodes behind one claim, or
of those behind the rows themselves, which comes last; `earlier` always means earlier stages. The order of the nodes
would not do. Let a claim be z = u + v with u a map of a skip connection: u may come before other claims among the
nodes, but its noise is part of what z has of its own, and what is said of z given the earlier weights leaves u open.
Stages are an order:
  - An open node, whose noise is not claimed yet, has exactly one reader, since one with several is claimed. So the way
    along the readers leads from every node with noise to one claim, or to the rows: its stage.
  - A map reads a known node h. The noise that h depends on was claimed at h or before it, and the map's own claim lies
    behind h. So h is a function of earlier stages.

The radius rho is made by the noise of earlier stages as much as by x, and 1. pays it as if it were chosen after delta
is known. Now let every source of noise enter at one node only. Then delta, at its node, is independent of h(x0), x0
the centre of the box. Let rho' bound |h(x) - h(x0)| on G, and let h0 be h(x0) clipped to its range (equal on G). The
set of the h within rho' of h0 and inside the range is a box [c - r, c + r] that is known before delta, r <= rho', and
    row(x) >= m0 + sum ( c_j delta_j - r_j |delta_j| ) + bias noise on G.

2. P(the right side <= t) <= 2 Phi(-(E' - t) / L) for t < E' := m0 - sqrt(2/pi) sum rho'_j s_j, with the same L.
Proof. Go through the stages in order and let M be the sum of their nodes' terms, each minus its mean given the earlier
stages; these means add up to at least E' - m0. Let a Brownian motion run for one unit of time for each standardised
weight, node by node within a stage (those of one node together). The process M_t = E[M | F_t] is a continuous
martingale: at a node, the integrand is the conditional mean of the gradient of its own term, because the terms of its
stage have boxes that were known before the stage, and later ones have mean zero whatever the past was. Its length is at
most the Lipschitz constant of that term given the past. All of [c - r, c + r] lies in [hc - rho, hc + rho], so its
square is at most the node's part of L^2. Hence <M> <= L^2, M is a Brownian motion stopped at most at L^2 (Dambis;
Dubins, Schwarz), and by reflection P(M <= -u) <= P(min over [0, L^2] <= -u) = 2 Phi(-u / L).

3. Split off the folded part: row(x) >= m0 + S - Q on G, S = sum h0_j delta_j + bias noise, Q = sum rho'_j |delta_j|.
Given the earlier stages, each term of S is Gaussian with a variance between known bounds, so S is a Brownian motion
stopped somewhere in [a, b], a and b the sums of the bounds (b <= L^2). For every real u, by reflection,
    P(S <= u) <= P(B_a <= u or B falls to u during [a, b]) = Phi(k) + 2 T(k, sqrt((b - a) / a)),  k = u / sqrt(b),
T being Owen's function. Q is convex and L'-Lipschitz in the noise, L'^2 like L^2 with hc = 0 and rho', so that for
z > 0 P(Q > E Q + z L') <= Phi(-z) as in 1. Therefore P(the right side <= t) is at most Phi(-z) plus the former at
u = -(E' - t - z L'). It serves thresholds on both sides of the mean. Where the ranges of all h0 are points, the
variance of S is a number, known up to roundings, and Phi(k) alone will do.

The node's part of L^2 in bound 2 is sum_j s_j^2 |h_j|^2 with every h_j at the end of its range. But they cannot all be
there. Let h_j = f(zeta_j), f = relu or leaky, zeta_j ~ N(m_j, sd_j^2) given the earlier stages (`variation`). The root
of the part, as a function of the standardised own noise of the zeta_j, is convex and Lipschitz with max_j s_j sd_j if
that noise is independent for different j, else with (sum s_j^2 sd_j^2)^(1/2), and its mean is at most
(sum s_j^2 E(|h_j| + rho'_j)^2)^(1/2) =: root. So by 1., given the stages before that of the zeta_j, it exceeds root +
z slope with probability at most Phi(-z): the `swing`. M is stopped where <M> exceeds the new L^2, which changes nothing
otherwise.

4. Bound 2 with other lines, which do not pay for the noise of the activation's own input: see `smoothing`.

5. The mean. Let V be the row at one x of the box, V >= E' + M on G with E M = 0 and E exp(s M) <= exp(s^2 L^2 / 2) for
all s, and P(not G) <= p <= 1/2. Then for every a <= V that holds surely, and d >= -E[V; not G], as
p^(1 - 1/q) (E |V|^q)^(1/q) by Hoelder, with c = p sqrt(2 log(1 / p)),
    E V >= E' - p (E' - a)^+ - c L   and   E V >= E' - p |E'| - c L - d.
Proof. E V = E[V; G] + E[V; not G] >= E' P(G) + E[M; G] + E[V; not G]. As E M = 0, E[M; G] = -E[M; not G]. With r =
P(not G), by Jensen s E[-M | not G] <= log E[exp(-s M) | not G] <= s^2 L^2 / 2 + log(1 / r), so that E[-M; not G] <=
r L sqrt(2 log(1 / r)) for the best s, and so is E[M; not G]. This grows with r up to exp(-1/2). E[V; not G] is at least
a r, and at least -d. What is left is linear in r, and least at one of its ends.
All bounds above have such an M. In 1. it is F - E F: a function of a standard Gaussian vector with the Lipschitz
constant L (Ibragimov, Sudakov, Tsirelson 1976). In 2. and 4. it is the martingale with <M> <= L^2, for which
exp(s M - s^2 <M> / 2) is a supermartingale; the means of its terms given the earlier stages add up to at least E' - m0
whatever these were, also off G: h0 is clipped to its range, so that the box [c - r, c + r] is never empty. (Swings are
not used.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import cdf_above
from bnn_vnnlib.rounding import TINY, UNIT

FOLD = math.sqrt(2 / math.pi) * (1 + 4 * UNIT)
"""E|N|, rounded up."""

OWEN = 1e-14
"""Absolute error allowed to Owen's function in scipy (tested against mpmath)."""

_SPLITS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 39.0)
"""z of bound 3; the last one is free and serves what is (nearly) not folded."""


Levels = Mapping[int, Tensor]
"""Quantiles of the normal law for a probability p: k = 1, 2, 4, 8, .. -> z >= 0 with k Phi(-z) <= p, broadcastable."""


@dataclass(frozen=True, eq=False)
class Normal:
    """Bound 1: P(the row's lower bound <= t) <= Phi(-(mean - t) / spread) for t < mean; both (K, M, R)."""

    mean: Tensor
    spread: Tensor

    def failure(self, threshold: Tensor) -> Tensor:
        """Upper bound on the probability that the row's lower bound is at or below the threshold."""
        return _normal(_below(self.mean, threshold), self.spread)

    def quantile(self, levels: Levels) -> Tensor:
        """Threshold that is not reached except with probability p."""
        return _dropped(self.mean, levels[1], self.spread)

    def log_failure(self, threshold: Tensor) -> Tensor:
        """Logarithm of `failure`, smooth, not rounded."""
        return torch.special.log_ndtr(-(self.mean - threshold) / self.spread)


@dataclass(frozen=True, eq=False)
class Swing:
    """Bound on one node's part of L: for any z > 0 at most root + z slope, except with probability Phi(-z)."""

    root: Tensor
    slope: Tensor


@dataclass(frozen=True, eq=False)
class Martingale:
    """Bounds 2 and 4: mean (E') and, of each source, its part of L^2 and its swing where there is one."""

    mean: Tensor
    squares: tuple[Tensor, ...]
    swings: tuple[Swing | None, ...]

    @property
    def events(self) -> int:
        """Number of swings."""
        return sum(swing is not None for swing in self.swings)

    def spread(self, z: Tensor | None = None) -> Tensor:
        """L, rounded up; except with probability events Phi(-z) if z is given."""
        parts = []
        for square, swing in zip(self.squares, self.swings, strict=True):
            if z is not None and swing is not None:
                square = torch.minimum(square, (swing.root + z * swing.slope) ** 2 * (1 + 8 * UNIT) + TINY)
            parts.append(square)
        total = sum(parts[1:], parts[0]) if parts else torch.zeros_like(self.mean)
        return torch.sqrt(total * (1 + 2 * len(parts) * UNIT)) * (1 + 4 * UNIT)

    def failure(self, threshold: Tensor) -> Tensor:
        """Upper bound on the probability that the row's lower bound is at or below the threshold."""
        gap = _below(self.mean, threshold)
        found = 2 * _normal(gap, self.spread())
        if self.events:
            z = self._balanced(gap)
            left = cdf_above(-z) * self.events
            found = torch.minimum(found, (2 * _normal(gap, self.spread(z)) + left) * (1 + 4 * UNIT))
        return found

    def quantile(self, levels: Levels) -> Tensor:
        """Threshold that is not reached except with probability p; half of it for the swings."""
        found = _dropped(self.mean, levels[2], self.spread())
        if self.events:
            z = levels[2 * 2 ** (self.events - 1).bit_length()]
            found = torch.maximum(found, _dropped(self.mean, levels[4], self.spread(z)))
        return found

    def log_failure(self, threshold: Tensor) -> Tensor:
        """Logarithm of `failure`, smooth, not rounded."""
        gap = self.mean - threshold
        if not self.events:
            return math.log(2) + torch.special.log_ndtr(-gap / self.spread())
        z = self._balanced(gap)
        left = math.log(self.events) + torch.special.log_ndtr(-z)
        return torch.logaddexp(math.log(2) + torch.special.log_ndtr(-gap / self.spread(z)), left)

    def _balanced(self, gap: Tensor) -> Tensor:
        """z that makes both parts about equal; any will do."""
        z = torch.full_like(gap, 3.0)
        for _ in range(4):
            z = (gap / self.spread(z)).nan_to_num(0.0, 40.0, 0.0).clamp(0.0, 40.0)
        return z


@dataclass(frozen=True, eq=False)
class MarginSplit:
    """Bound 3: E' and L', the bounds a, b of the variance of S, and whether it is fixed; all (K, M, R)."""

    mean: Tensor
    folded: Tensor
    least: Tensor
    most: Tensor
    fixed: Tensor


@dataclass(frozen=True, eq=False)
class Tail:
    """Bounds on the lower tail of a row, each valid."""

    bounds: tuple[Normal | Martingale, ...]
    split: MarginSplit | None = None

    def failure(self, threshold: Tensor) -> Tensor:
        """Upper bound on P(the lower bound of the row <= threshold)."""
        found = [bound.failure(threshold) for bound in self.bounds]
        if self.split is not None:
            found.append(_split_failure(threshold, self.split))
        return torch.stack(found).nan_to_num(1.0, 1.0, 1.0).amin(0).clamp(0.0, 1.0)

    def log_failure(self, threshold: Tensor) -> Tensor:
        """About the logarithm of `failure`: smooth, not rounded, for an optimiser to descend on."""
        return torch.stack([bound.log_failure(threshold) for bound in self.bounds]).amin(0)

    def quantile(self, levels: Levels) -> Tensor:
        """Threshold that the row stays above on G, except with probability p."""
        return functools.reduce(torch.maximum, [bound.quantile(levels) for bound in self.bounds])

    def expectation(self, lost: Tensor, sure: Tensor, off: Tensor) -> Tensor:
        """(K, M, R): lower bound on E V by 5., -inf where there is none.

        Parameters
        ----------
        lost : P(not G) <= lost <= 1/2, (K, M or 1, 1)
        sure : (M, R) V >= sure, -inf where there is none; off : (K, M, R) d, inf where it is not known
        """
        share = lost * torch.sqrt(2 * torch.log(1 / lost)) * (1 + 32 * UNIT)
        found = []
        for bound in self.bounds:
            mean, spread = bound.mean, bound.spread if isinstance(bound, Normal) else bound.spread()
            by_range = lost * (mean - sure).clamp(min=0) + share * spread
            by_norm = lost * mean.abs() + share * spread + off
            paid = torch.minimum(by_range, by_norm).nan_to_num(torch.inf, torch.inf) * (1 + 16 * UNIT) + TINY
            found.append((mean - paid - 2 * UNIT * (mean.abs() + paid)).nan_to_num(-torch.inf, -torch.inf, -torch.inf))
        return torch.stack(found).amax(0)

    def better(self, other: Tail) -> Tail:
        """The tail that takes the least of the bounds of both."""
        return Tail(self.bounds + other.bounds, self.split or other.split)


def _split_failure(threshold: Tensor, split: MarginSplit) -> Tensor:
    gap = _below(split.mean, threshold)
    z = gap.new_tensor(_SPLITS).reshape(-1, *(1,) * gap.dim())
    lost, drop = cdf_above(-z), z * split.folded * (1 + 4 * UNIT)
    gap = gap - drop - 2 * UNIT * (gap.abs() + drop)
    return (lost + _stopped(gap, split)).nan_to_num(1.0, 1.0, 1.0).amin(0)


def _dropped(mean: Tensor, deviations: Tensor, spread: Tensor) -> Tensor:
    drop = deviations * (1 + 4 * UNIT) * spread
    lower = torch.sub(mean - drop, mean.abs() + drop, alpha=2 * UNIT)
    return lower.nan_to_num(-torch.inf, torch.inf, -torch.inf)


def _below(mean: Tensor, threshold: Tensor) -> Tensor:
    """mean - threshold, rounded down."""
    return torch.sub(mean - threshold, mean.abs() + threshold.abs(), alpha=2 * UNIT)


def _normal(gap: Tensor, spread: Tensor) -> Tensor:
    """Phi(-gap / spread) rounded up where gap > 0, else 1; an indicator where the spread is 0."""
    x = (gap / spread) * (1 - 4 * UNIT)
    sure = (spread == 0) & (gap > 0)
    return torch.where(sure, 0.0, torch.where(gap > 0, cdf_above(-x.detach()), 1.0))


def _stopped(gap: Tensor, split: MarginSplit) -> Tensor:
    """P(a Brownian motion stopped in [a, b] is at most -gap), rounded up; at a fixed time where the variance is."""
    from scipy import special  # loaded here: it is rarely needed, and slow to load

    least, most = split.least, split.most
    ratio = torch.sqrt(((most - least).clamp(min=0) / least).nan_to_num(torch.inf)) * (1 + 8 * UNIT)
    k = _up(-gap / torch.sqrt(most))  # the bound grows with k
    owen = k.new_tensor(special.owens_t(k.cpu().numpy(), ratio.cpu().numpy()))  # torch has none
    owen = torch.minimum(2 * owen + 2 * OWEN, cdf_above(-k.abs()))
    at_least = cdf_above(_up(-gap / torch.sqrt(least)))
    phi = torch.where(split.fixed, torch.where(k > 0, at_least, cdf_above(k)), cdf_above(k) + owen)
    certain, known = (most == 0) & (gap > 0), (most > 0) & (most < torch.inf)  # k = 0 where b overflows: not 1/2
    return torch.where(certain, 0.0, torch.where(known, phi * (1 + 2 * UNIT), 1.0))


def _up(k: Tensor) -> Tensor:
    return k + 8 * UNIT * k.abs()
