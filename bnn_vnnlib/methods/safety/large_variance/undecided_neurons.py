"""What neurons of the second layer cost of which it is not sure whether they are active.

Notation of `change`: f = relu(zeta + v) - relu(zeta) - a v, v in [-fall, rise], -p <= f <= q, cost D^+ p + D^- q. For
a = 0, whatever zeta is,
    p = min(fall, zeta^+),    q = (rise + min(zeta, 0))^+,
as f = max(v, -zeta) for zeta > 0 and f = (zeta + v)^+ else. Both grow with zeta. For a = 1 the same holds with -zeta,
-v: relu(u) - u = relu(-u), so that f = relu(-zeta - v) - relu(-zeta), fall and rise exchanged.

Given the first layer's outputs at x*, the zeta_i are independent of each other, N(m_i, s_i^2), and D is independent of
them. With thresholds t_0 = -rise < .. < t_K = fall a function g of the cost that grows is at most g(t_k) on (t_{k-1},
t_k], and g(t_K) beyond; hence
    E g(zeta) <= g(0 cost) + sum_k (P_{k-1} - P_k) (g(t_k) - g(0 cost)),    P_k >= P(zeta > t_k) falling in k, P_K = 0.
On a rectangle of (m, s) the largest P(zeta > t) is Phi((high - t) / s), s its most if high < t, its least else. So the
means given h are bounded, whatever h is on the event that all rectangles hold, and their product bounds E[e^{tau cost};
that event]. `fall` and `rise` are fixed numbers: that v stays between them is another event.

Neurons that are sure to some degree are cheaper by the largest cost on their range: one cell of mass 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from bnn_vnnlib.gaussian.half_line import UP, Floats, mean_relu
from bnn_vnnlib.gaussian.relu import Rectangle
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights

CELLS = 8
"""Cells of zeta on either side of 0."""


@dataclass(frozen=True, eq=False)
class Costs:
    """slope (Q, H): a. mass, plus, minus (Q, H, C): masses of cells of zeta, p and q on them; elsewhere both are 0."""

    slope: Floats
    mass: Floats
    plus: Floats
    minus: Floats

    def padded(self, count: int) -> Costs:
        """With cells of mass 0."""
        wide = [(0, 0), (0, 0), (0, count - self.mass.shape[2])]
        return Costs(self.slope, *(np.pad(part, wide) for part in (self.mass, self.plus, self.minus)))


def cheapest(
    constant: list[Costs], weights: Weights, fall: Floats, rise: Floats, ranges: Rectangle | None = None
) -> Costs:
    """Of the candidates the one that costs least on average, neuron by neuron: any is sound."""
    tried = list(constant)
    if ranges is not None:
        low, high, least, most = (
            getattr(ranges, name)[:, 0].numpy(force=True) for name in ("low", "high", "least", "most")
        )
        tried += [_random(fall, rise, high, least, most, 0.0), _random(rise, fall, -low, least, most, 1.0)]
    count = max(one.mass.shape[2] for one in tried)
    tried = [one.padded(count) for one in tried]
    plus, minus = (mean_relu(side * weights.mean, weights.dev)[..., None] for side in (1, -1))
    means = np.stack([(one.mass * (plus * one.plus + minus * one.minus)).sum(2) for one in tried])
    best = np.where(np.isnan(means), np.inf, means).argmin(0)
    slope = np.take_along_axis(np.stack([one.slope for one in tried]), best[None], 0)[0]
    parts = (
        np.take_along_axis(np.stack([getattr(one, name) for one in tried]), best[None, ..., None], 0)[0]
        for name in ("mass", "plus", "minus")
    )
    return Costs(slope, *parts)


def _random(fall: Floats, rise: Floats, high: Floats, least: Floats, most: Floats, slope: float) -> Costs:
    """For a = 0 and zeta at most `high` on average; for a = 1 with everything mirrored."""
    part = np.linspace(0.0, 1.0, CELLS + 1)
    zero = np.zeros((*fall.shape, 1))
    ends = np.concatenate([-rise[..., None] * (1 - part[:-1]), zero, fall[..., None] * part[1:]], -1)
    over = high[..., None] - ends[..., :-1]
    above = special.ndtr(over / np.where(over < 0, most[..., None], least[..., None]))
    mass = np.maximum(above - np.concatenate([above[..., 1:], zero], -1), 0.0) + 1e-12
    plus = np.minimum(fall[..., None], np.maximum(ends[..., 1:], 0.0)) * UP
    minus = np.maximum(rise[..., None] + np.minimum(ends[..., 1:], 0.0), 0.0) * UP
    return Costs(np.full(fall.shape, slope), mass, plus, minus)
