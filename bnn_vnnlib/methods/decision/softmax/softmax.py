"""From linear bounds of the differences of logits to linear bounds of the expected softmax.

1. Let f_i - f_j have a mean of at least F_ij(x), F linear, and let  E exp(-(f_i - f_j)) <= exp(-F_ij + v_ij).
Below:  D_i = E[1 / (1 + sum_j exp(-(f_i - f_j)))] >= 1 / Z_i,  Z_i = 1 + sum_j exp(-F_ij + v_ij)  (Jensen: 1/Z is
convex). The chord of exp gives Z_i <= zeta_i, linear in x, and 1 / zeta >= 2 w - w^2 zeta for every w.
Above:  log softmax_i is concave, its gradient at E f is e_i - softmax(E f), so  D_i <= softmax_i(E f) exp(v'_i),
v' = the log excess of that row, and softmax_i(E f) <= 1 / (1 + sum_j exp(F_ji)). The tangent of exp gives a linear
function below the denominator, and the chord of 1 / zeta a linear function above the quotient.
A row c . D equals kappa + (c - kappa) . D for every kappa, as the D_i add up to 1: with kappa = min c it needs lower
bounds only, with kappa = max c upper bounds only.

2. How far the exponential of a row of logits may exceed the exponential of its mean (`log_excess`).
A row u . f(x) = sum_k U_k z_k + U_0 has independent Gaussian U_k ~ N(a_k, b_k^2), z_k = relu(N(m_k, s_k^2)), and
    log E exp(u . f) - E u . f <= v = sum_k v_k + Var(U_0) / 2,
with v_k the smaller one of two bounds, both nondecreasing in (m_k, s_k), so that a box is served by its upper corner:
- z is a 1-Lipschitz function of a Gaussian: E exp(A (z - G)) <= exp(A^2 s^2 / 2) for fixed A. With A = a + b N, and
  b s < 1, integrating N gives  a^2 s^2 / 2 + b^2 (G + a s^2)^2 / (2 (1 - b^2 s^2)) - log(1 - b^2 s^2) / 2.
- log y <= y - 1: E h(z), h(z) = exp(a z + b^2 z^2 / 2) - 1 - a z. It is convex with h(0) = h'(0) = 0, so it does not
  fall on z >= 0, and h(relu(.)) is convex and nondecreasing. This one serves neurons that are nearly dead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.hidden import CentredForm, HiddenRanges, mixed
from bnn_vnnlib.gaussian.normal import LEAST, ROUND
from bnn_vnnlib.gaussian.relu import exponential_excess
from bnn_vnnlib.rounding import ELEMENTARY, UNIT, gamma

HUGE = 600.0
"""Largest exponent that is computed; beyond, a bound is useless."""

GRAIN = 2.0**20
"""Rows g are multiples of 1 / GRAIN, so that 2 g + e_l - e_i is exact; probabilities p multiples of 1 / GRAIN or its
square, so that they add up to 1 and e_i - p is exact."""


def on_a_grid(p: Tensor) -> Tensor:
    """Probabilities near p (.., m) that are multiples of 1 / GRAIN, add up to 1, and are 0 where p is 0."""
    q = (p * GRAIN).round() / GRAIN
    return q.scatter_add(-1, q.argmax(-1, keepdim=True), 1 - q.sum(-1, keepdim=True))


def entropy(p: Tensor) -> Tensor:
    """H(p) of probabilities (.., m), rounded down."""
    terms = torch.special.entr(p)
    found = terms.sum(-1) - 2 * (ELEMENTARY + gamma(p.shape[-1] + 8)) * terms.abs().sum(-1) - 4 * ELEMENTARY
    return found.clamp(min=0)


def rows_over_classes(outputs: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(N, R): bounds from below on rows c . D, c in outputs (N or 1, R, m), from low <= D <= high (N, m).

    The D_i add up to 1, so that for l <= D <= u
        c . D = min c + sum_i (c_i - min c) D_i >= min c + sum_i (c_i - min c) l_i,
        c . D = max c - sum_i (max c - c_i) D_i >= max c - sum_i (max c - c_i) u_i.
    """
    m, (least, most) = outputs.shape[-1], torch.aminmax(outputs, dim=-1, keepdim=True)
    value = least[..., 0] + ((outputs - least) * low[:, None]).sum(-1)
    value = torch.maximum(value, most[..., 0] - ((most - outputs) * high[:, None]).sum(-1))
    return value - 4 * gamma(2 * m + 8) * m * outputs.abs().amax(-1)


@dataclass(frozen=True, eq=False)
class ClassPairs:
    """Margins of P boxes: margin : Lines (P, m, m) below the means of f_i - f_j; excess (P, m, m) : v_ij >= 0.

    radius (P, n). The diagonal of the lines is 0.
    """

    margin: CentredForm
    excess: Tensor
    radius: Tensor

    def least(self) -> Tensor:
        """(P, m, m): minima of the margins."""
        return self.margin.minimum(self.radius[:, None])


@dataclass(frozen=True, eq=False)
class Classes:
    """Lines and numbers below and above each D_i: lines (P, m), numbers (P, m)."""

    below: CentredForm
    above: CentredForm
    low: Tensor
    high: Tensor
    radius: Tensor

    def rows(self, outputs: Tensor) -> tuple[CentredForm, Tensor]:
        """Lines and numbers below the rows outputs (P or 1, R, m): (P, R) each; the best kappa of each."""
        outputs = outputs.expand(len(self.low), -1, -1)
        found = [self._row(outputs, kappa) for kappa in _shifts(outputs)]
        value = torch.stack([line.minimum(self.radius) for line, _ in found])
        best = value.argmax(0, keepdim=True)
        numbers = torch.stack([number for _, number in found]).amax(0)
        slope = torch.stack([line.slope for line, _ in found])
        chosen = slope.gather(0, best[..., None].expand(-1, -1, -1, slope.shape[-1]))[0]
        at = torch.stack([line.value for line, _ in found]).gather(0, best)[0]
        return CentredForm(at, chosen), numbers

    def _row(self, outputs: Tensor, kappa: Tensor) -> tuple[CentredForm, Tensor]:
        """Lines and numbers below rows, by kappa times sum_i D_i = 1 and the classes' bounds."""
        share = outputs - kappa
        moved = UNIT * share.abs().amax(-1)  # c - kappa was rounded, and the D_i add up to 1
        weights = torch.cat([share.clamp(min=0.0), -share.clamp(max=0.0)], -1)
        sides = CentredForm(
            torch.cat([self.below.value, self.above.value], -1), torch.cat([self.below.slope, self.above.slope], -2)
        )
        line = mixed(weights, sides, self.radius)
        ends = torch.cat([self.low, -self.high], -1)
        number = (weights @ ends[..., None])[..., 0]
        size = (weights @ ends.abs()[..., None])[..., 0] + kappa[..., 0].abs()
        number = number + kappa[..., 0] - moved - 2 * gamma(2 * weights.shape[-1] + 8) * size
        paid = moved + 4 * UNIT * (line.value.abs() + kappa[..., 0].abs())
        return CentredForm(line.value + kappa[..., 0] - paid, line.slope), number


def _shifts(outputs: Tensor) -> list[Tensor]:
    least, most = outputs.amin(-1, keepdim=True), outputs.amax(-1, keepdim=True)
    return [torch.zeros_like(least), least, most]


def classes(pairs: ClassPairs, log_excess_above: Tensor | None) -> Classes:
    """Bounds on every D_i; log_excess_above : v' (P, m), or None where the weights are fixed (v' = 0)."""
    m = pairs.excess.shape[-1]
    off = ~torch.eye(m, dtype=torch.bool, device=pairs.excess.device)
    reach = pairs.margin.reach(pairs.radius[:, None])
    below, low = _below(pairs, reach, off)
    factor = None if log_excess_above is None else log_excess_above
    above, high = _above(pairs, reach, off, factor)
    # what the lower bounds of the others leave
    rest = 1 - (low.sum(-1, keepdim=True) - low) + 4 * m * UNIT
    return Classes(below, above, low, torch.minimum(high, rest), pairs.radius)


def _below(pairs: ClassPairs, reach: Tensor, off: Tensor) -> tuple[CentredForm, Tensor]:
    """Lines below the D_i, and numbers below them, from margins and log excesses of pairs."""
    middle = pairs.excess - pairs.margin.value
    slack = 4 * UNIT * (middle.abs() + reach)
    start, end = middle - reach + slack, middle + reach + slack  # the chord of exp(. + slack)
    left, right = torch.exp(start.clamp(-HUGE, HUGE)), torch.exp(end.clamp(-HUGE, HUGE))
    up = (1 + ELEMENTARY) * (1 + 16 * UNIT)
    useless = (end > HUGE) | end.isnan()
    half = (left + right) / 2 * up
    moves = reach > 1e-12
    rate = torch.where(moves, (right - left) / (2 * reach), 0.0).nan_to_num(0.0)
    half = torch.where(moves, half + ELEMENTARY * right, right * up)  # at its end the chord is that of `right`
    half, rate = (torch.where(off, part, 0.0) for part in (half, rate))
    # -zeta as a line below -Z: chords, whose slopes multiply those of the margins
    moving = mixed(
        rate[..., None, :], CentredForm(torch.zeros_like(pairs.margin.value), pairs.margin.slope), pairs.radius[:, None]
    )
    top = 1 + half.sum(-1)
    zeta = (top * (1 + gamma(half.shape[-1] + 8))) - moving.value[..., 0]
    slope = moving.slope[..., 0, :]
    w = 1 / zeta
    value = 2 * w - w * w * zeta
    value = value - 16 * UNIT * w - gamma(2 * slope.shape[-1]) * w * w * CentredForm(zeta, slope).reach(pairs.radius)
    lost = (useless & off).any(-1)
    value = torch.where(lost, 0.0, value)
    line = CentredForm(value, torch.where(lost[..., None], 0.0, (w * w)[..., None] * slope))
    largest = 1 + torch.where(off, right * up, 0.0).sum(-1)
    number = (1 / largest) * (1 - gamma(half.shape[-1] + 8))
    number = torch.where(lost, 0.0, torch.maximum(number, line.minimum(pairs.radius)).clamp(min=0.0))
    return line, number


def _above(pairs: ClassPairs, reach: Tensor, off: Tensor, excess: Tensor | None) -> tuple[CentredForm, Tensor]:
    """Lines below -D_i, and numbers above D_i."""
    middle, slope, reach = pairs.margin.value.mT, pairs.margin.slope.transpose(1, 2), reach.mT  # F_ji at [i, j]
    middle = middle.nan_to_num(-HUGE, HUGE, -HUGE).clamp(-HUGE, HUGE)  # lowering F is sound
    down = (1 - ELEMENTARY) * (1 - 16 * UNIT)
    rate = torch.where(off & (middle > -HUGE), torch.exp(middle), 0.0)
    paid = 2 * ELEMENTARY * rate * (1 + reach)
    least = 1 + torch.where(off, torch.exp((middle - reach).clamp(min=-HUGE) - 4 * UNIT * HUGE), 0.0).sum(-1) * down
    least = least * (1 - gamma(rate.shape[-1] + 8))
    zeta = mixed(rate[..., None, :], CentredForm(torch.zeros_like(middle), slope), pairs.radius[:, None])
    at = (1 + (rate - paid).sum(-1)) * (1 - gamma(rate.shape[-1] + 8)) + zeta.value[..., 0]
    slope = zeta.slope[..., 0, :]
    far = CentredForm(at, slope).reach(pairs.radius)
    bottom, top = torch.maximum(at - far, least), torch.maximum(at + far, least)
    bottom = torch.maximum(bottom, torch.ones_like(bottom))
    top = torch.maximum(top, bottom)
    fall = 1 / (bottom * top)
    level = torch.maximum(1 / bottom + fall * bottom, 1 / top + fall * top) * (1 + 16 * UNIT)
    factor = torch.ones_like(level) if excess is None else torch.exp(excess) * (1 + ELEMENTARY)
    value = factor * (fall * at - level)  # below -D_i
    size = factor * (fall * (at.abs() + far) + level)
    value = value - (16 * UNIT + gamma(8)) * size
    line = CentredForm(value.nan_to_num(-torch.inf, torch.inf, -torch.inf), (factor * fall)[..., None] * slope)
    number = torch.minimum(-line.minimum(pairs.radius), factor / bottom * (1 + 8 * UNIT)).nan_to_num(1.0).clamp(max=1.0)
    useless = ~torch.isfinite(line.value)
    return CentredForm(torch.where(useless, -1.0, line.value), torch.where(useless[..., None], 0.0, line.slope)), number


_MAX_PRODUCT = 1 - 2.0**-20
"""(b s)^2 stays below, so that 1 minus it keeps its digits."""


def log_excess(neurons: HiddenRanges, weights: Tensor, square: Tensor, constant: Tensor) -> Tensor:
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
    # 1 - play loses at most a factor 1 + 2^-32 where play is below MAX_PRODUCT
    value = value * (1 + 2.0**-30) + LEAST
    return torch.where(play < _MAX_PRODUCT, value, torch.inf)
