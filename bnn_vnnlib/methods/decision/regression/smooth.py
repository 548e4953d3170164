"""Bounds on rows of a one-hidden-layer net with tanh (or sigmoid, by 1/2 + tanh(z/2)/2) over boxes.

T_n(m, q) = E tanh^(n)(N(m, q)), q = s^2, with dT_n/dq = T_{n+2}/2 (heat equation). At the center c of the box, with
d = m - m_c, |d| <= R for a neuron,
    E tanh(a(x)) = T_0(m, q_c) + T_2(c) (q(x) - q_c) / 2 + r,    |r| <= dev dq / 2,
dev bounding how far T_2 gets from T_2(c) on the box: the smaller of C_3 R + C_4 dq/2 and what the range of tanh'' over
[m], widened by C_4 q/2, leaves. C_n bounds |tanh^(n)|: .7699, 2, 4.0859 for n = 2, 3, 4.

T_0(., q_c) is replaced by a parabola P = T_0 + b d + a d^2/2 and the largest error on the side that counts. Between
five points -R, -R/2, ..., R the Hermite cubic of the values and slopes is within C_4 (R/2)^4 / 384 of T_0, and P minus
a cubic lies in the range of its Bernstein coefficients, after one halving. Slopes likewise: T_1 is within C_3 (R/2)^2/8
of its chords. So
    row >= const + g.delta + delta' H delta / 2 - payments,   H = sum v_k a_k mu_k mu_k' + diag(sum v_k T_2 sig_k^2),
a quadratic in delta = x - c that keeps the neurons' signs against each other. Its minimum: see `parabola`.

Rounding: see `rows`; errors of T_n and of m, s are added to each fit, those of sums are paid relative to the sums of
absolute values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import ABSOLUTE
from bnn_vnnlib.gaussian.tanh import Expectations
from bnn_vnnlib.methods.decision.regression.branching import Bounded
from bnn_vnnlib.methods.decision.regression.parabola import least
from bnn_vnnlib.methods.decision.regression.relu import squares
from bnn_vnnlib.methods.decision.regression.rows import Rows
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import gamma

C2, C3, C4 = 0.7699, 2.0, 4.0859

INFLECTION = 0.5773502691896258
"""tanh'' is extreme where |tanh| is 1/sqrt 3, up to 1e-15."""

NARROW = 1e-3
"""Below this radius the parabola is Taylor's."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Of T_0 on a box, (B, K) each: value, slope and curvature of P, T_2 at the center, and what errors add up to.

    missed : of the value, for the sign of the row's v; bent : of the slope T_1 against b + a d; drift : |q - q_c|;
    dev : |T_2 - T_2(c)|
    """

    value: Tensor
    slope: Tensor
    curve: Tensor
    second: Tensor
    missed: Tensor
    bent: Tensor
    drift: Tensor
    dev: Tensor


@dataclass(frozen=True, eq=False)
class TanhRows:
    """A `branching.Relaxation`."""

    hidden: DenseLayer
    expected: Expectations

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        return 5 * self.hidden.outputs * (self.expected.size + 8) + 8 * self.hidden.inputs**2

    @cached_property
    def _pairs(self) -> Tensor:
        """(K, n n): mu_k mu_k'."""
        return (self.hidden.mean[:, :, None] * self.hidden.mean[:, None]).flatten(1)

    def value(self, rows: Rows, x: Tensor) -> Tensor:
        """The rows at points (B, n), not rounded."""
        m = x @ self.hidden.mean.mT + self.hidden.bias
        expected = self.expected.mean(m, self.hidden.deviation(x**2))
        return (rows.v * expected).sum(-1) + (rows.linear * x).sum(-1) + rows.constant

    def bound(self, rows: Rows, lower: Tensor, upper: Tensor) -> Bounded:
        """Lower bounds of the rows over boxes (B, n), and ranges of their slopes."""
        hidden, v, n = self.hidden, rows.v.abs(), self.hidden.inputs
        center, size = (lower + upper) / 2, torch.maximum(lower.abs(), upper.abs())
        r = torch.maximum(upper - center, center - lower) * (1 + 1e-14)
        fit = self._fit(rows, center, r, lower, upper)

        slope = (rows.v * fit.slope) @ hidden.mean + ((rows.v * fit.second) @ hidden.variance) * center + rows.linear
        curve = ((rows.v * fit.curve) @ self._pairs).reshape(-1, n, n)
        curve = curve + torch.diag_embed((rows.v * fit.second) @ hidden.variance)
        lost = (v * (fit.missed + fit.dev * fit.drift / 2 * (1 + 1e-12))).sum(-1) + (rows.slope_payment * r).sum(-1)

        value = (rows.v * fit.value).sum(-1) + (rows.linear * center).sum(-1) + rows.constant
        bend = (curve.abs() @ r[..., None])[..., 0]
        rounding = 32 * gamma(2 * (hidden.outputs + n) + 32)
        added = (v * fit.curve.abs()) @ hidden.mean.abs()  # rounding of the curvature, entry by entry at most
        bend = bend + rounding * (added * (r @ hidden.mean.abs().mT).amax(-1, keepdim=True) + bend)
        lost = lost + rounding * ((slope.abs() + bend) * r).sum(-1) * 1.001
        value = value + least(slope, curve, r) - lost
        trivial = torch.minimum(rows.linear * lower, rows.linear * upper).sum(-1) + rows.constant - v.sum(-1)

        off = (v * fit.bent) @ hidden.mean.abs() + ((v * fit.dev) @ hidden.variance) * size
        bend = (bend + off) * (1 + 1e-12) + rows.slope_payment
        return Bounded(torch.maximum(value, trivial) - rows.payment, slope - bend, slope + bend)

    def _fit(self, rows: Rows, center: Tensor, r: Tensor, lower: Tensor, upper: Tensor) -> Fit:
        hidden, room = self.hidden, rows.room
        m, reach = center @ hidden.mean.mT + hidden.bias, r @ hidden.mean.abs().mT + room
        s = hidden.deviation(center**2)
        small, most = (hidden.deviation(q) for q in squares(lower, upper))
        drift = torch.maximum(most**2 - s**2, s**2 - small**2).clamp(min=0) + 4 * room * (most + room)

        steps = torch.linspace(-1, 1, 5, dtype=m.dtype, device=m.device)[:, None, None]
        t0, t1, t2 = self.expected.values(m + steps * reach, s.expand(5, *s.shape))
        e0, e1, e2 = self.expected.errors(most + room)
        blur = 2 * room + 4e-15 * (1 + m.abs())  # E |m~ - m| + |s~ - s| |N|, and where the points are
        e0, e1, e2 = e0 + blur, e1 + blur, e2 + 2 * blur
        slope, curve = _parabola_through(t0, t1[2], t2[2], reach)
        d = steps * reach
        gap = (t0[2] + slope * d + curve * d**2 / 2) - t0
        tilt = slope + curve * d - t1
        sign = torch.where(rows.v >= 0, 1.0, -1.0).to(gap)
        piece = reach / 2
        missed = _largest_cubic(sign * gap, sign * tilt, piece) + C4 / 384 * piece**4 + 2 * e0 + 2 * piece * e1
        missed = missed + 1e-14 * (1 + slope.abs() * reach + curve.abs() * reach**2)
        bent = tilt.abs().amax(0) + C3 / 8 * piece**2 + e1 + C3 / 2 * drift
        dev = _second(t2[2], m, reach, drift, most + room) + e2
        return Fit(t0[2], slope, curve, t2[2], missed, bent * (1 + 1e-12), drift, dev)


def _parabola_through(t0: Tensor, t1: Tensor, t2: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and curvature with errors of alternating sign at the five points: best for a cubic plus a quartic."""
    narrow = reach < NARROW
    safe = torch.where(narrow, torch.ones_like(reach), reach)
    odd = (t0[3] - t0[1] + t0[4] - t0[0]) / (3 * safe)
    even = (t0[4] + t0[0] - 2 * t0[2]) / safe**2
    return torch.where(narrow, t1, odd), torch.where(narrow, t2, even)


def _largest_cubic(value: Tensor, slope: Tensor, piece: Tensor) -> Tensor:
    """Upper bound (B, K) on four cubics of length `piece` with these values and slopes (5, B, K) at their ends."""
    a, d = value[:-1], value[1:]
    b, c = a + slope[:-1] * piece / 3, d - slope[1:] * piece / 3
    ab, bc, cd = (a + b) / 2, (b + c) / 2, (c + d) / 2
    abc, bcd = (ab + bc) / 2, (bc + cd) / 2
    return torch.stack([a, ab, abc, (abc + bcd) / 2, bcd, cd, d]).amax((0, 1))


def _second(t2: Tensor, m: Tensor, reach: Tensor, drift: Tensor, most: Tensor) -> Tensor:
    """How far T_2 may be from its value at the center."""
    near = C3 * reach + C4 * drift / 2
    low, high = torch.tanh(m - reach) - ABSOLUTE, torch.tanh(m + reach) + ABSOLUTE
    at_low, at_high = -2 * low * (1 - low**2), -2 * high * (1 - high**2)
    largest, smallest = torch.maximum(at_low, at_high), torch.minimum(at_low, at_high)
    apart = 1e-9
    largest = torch.where((low <= apart - INFLECTION) & (high >= -INFLECTION - apart), C2, largest)
    smallest = torch.where((low <= INFLECTION + apart) & (high >= INFLECTION - apart), -C2, smallest)
    wide = C4 / 2 * most**2 + 1e-12
    largest, smallest = (largest + wide).clamp(max=C2), (smallest - wide).clamp(min=-C2)
    return torch.minimum(near, torch.maximum(largest - t2, t2 - smallest).clamp(min=0))
