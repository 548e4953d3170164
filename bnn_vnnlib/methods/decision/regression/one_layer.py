"""Regression with one hidden layer: closed forms, minimised over x by branch and bound.

Guarantee: sound, rounding included; the gap goes to 0 with the number of boxes, see 2.

1. Lower bounds on quadratics over boxes: min of g.d + d' H d / 2 over |d_j| <= r_j, two ways.
By coordinates: each on its own, with the entries off the diagonal at their worst.
Convexified: with d = r e and A = diag(r) H diag(r), for shift >= -(least eigenvalue of A)
    d' H d / 2 >= e' (A + shift I) e / 2 - shift n / 2      on |e_j| <= 1,
and the convex quadratic is above its tangent plane at any point z, which a few steps of descent choose. The eigenvalue
comes from LAPACK, whose error is a small multiple of n UNIT |A|; 1e-9 |A| is added.

2. Minima of rows over boxes of inputs, from a relaxation that also bounds their slopes.
Guarantee: the result is a lower bound, as good as the relaxation's; complete only in the limit.
Method: `splitting.frontier.minimise`, and where a slope has one sign on a box, its minimum lies on a face, which takes
the place of the box.

3. Rows c.D(x) + g.x as numbers in front of the neurons (`_NeuronRows`).
    row(x) = constant + linear.x + sum_k v_k h(a_k(x)),   a_k = V_k.x + b_k ~ N(m_k(x), s_k(x)^2),
with v = c E[W] because the last layer is independent of the hidden one, and h = E relu or E tanh:
    leaky(a) = alpha a + (1 - alpha) relu(a),   sigmoid(a) = 1/2 + tanh(a/2)/2.
Rounding, a priori and once for every row. First the row is replaced by the one with the stored numbers as exact
parameters: v, mu_k, b_k, linear, constant as computed, the variances as stored. As h is 1-Lipschitz and |h(a)| <= |a|,
that costs |v* - v| |a| + |v| |m* - m| and so on. Then all that is computed on a box are sums of products whose absolute
values add up to at most a small multiple of |v_k| A_k with A_k = |mu_k|.X + |b_k| + s_k(X), X >= |x| on the item's box:
every value pays C sum |v_k| A_k, C = 16 gamma(n) + 32 ABSOLUTE with n all the lengths of sums together. Inequalities
are used in forms that hold for any float coefficients.

4. Bounds on rows with relu or leaky relu over boxes (`ReluRows`).
Below, for v_k >= 0 and any tau, any y:       g(m, s) >= Phi(tau) m + phi(tau) s          (see `gaussian.relu`)
    s(x) = |diag(sig) x, sig_b| >= (sum_j sig_j^2 y_j x_j + sig_b^2) / s(y)              (Cauchy-Schwarz).
With y the center and tau = t(y) it is the tangent there.
Above, for v_k < 0, on the rectangle [m] x [s] of the box and any beta in [0, 1], gamma in [0, .4]:
    g <= beta m + gamma s + kappa, kappa = the maximum of g - beta m - gamma s at the four corners (it is convex),
    s(x) <= s_0/2 + q(x) / (2 s_0) for any s_0 > 0,      x_j^2 <= (l + u) x_j - l u on [l, u].
The signed sum is linear in x; its minimum over the box is taken coordinate by coordinate.
Slopes: d_j = linear_j + sum v_k [Phi(t) mu_kj + phi(t)/s sig_kj^2 x_j], wherever s > 0.
Rounding (see 3. for the payment): kappa is evaluated at corners off by at most `room`, where g - beta m - gamma s
moves by at most (1 + .4) room; s_0 >= s_max / 4 keeps gamma q / s_0 below 2 s_max. Slopes take m and s widened by
`room` before t is formed.

5. Bounds on rows with tanh (or sigmoid, by 1/2 + tanh(z/2)/2) over boxes (`TanhRows`).
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
a quadratic in delta = x - c that keeps the neurons' signs against each other. Its minimum: see 1.
Rounding: see 3.; errors of T_n and of m, s are added to each fit, those of sums are paid relative to the sums of
absolute values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.characteristic import Sums
from bnn_vnnlib.gaussian.normal import ABSOLUTE, LEAST, cdf, density, ratio
from bnn_vnnlib.gaussian.relu import mean_plane, relu_mean
from bnn_vnnlib.gaussian.tanh import Expectations, expectations_for
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.rounding import UNIT, gamma
from bnn_vnnlib.splitting.frontier import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

# 1. Quadratics over boxes

_DESCENTS = 12
"""Number of accelerated gradient steps towards the minimum of a convex quadratic on |e_j| <= 1."""

_EIGENVALUE_ERROR = 1e-9
"""What the least eigenvalue is moved down by, relative to the norm."""


def least_quadratic(slope: Tensor, curve: Tensor, r: Tensor) -> Tensor:
    """(B,) from g (B, n), symmetric H (B, n, n) and r (B, n); rounding is the caller's, relative to |g| r + r |H| r."""
    found = by_coordinates(slope, curve, r)
    if slope.shape[-1] == 1:
        return found
    return torch.maximum(found, convexified(slope * r, curve * r[:, :, None] * r[:, None], r > 0))


def by_coordinates(slope: Tensor, curve: Tensor, r: Tensor) -> Tensor:
    """Lower bound coordinate by coordinate, with the entries off the diagonal at their worst."""
    diagonal = curve.diagonal(dim1=1, dim2=2)
    rest = ((curve.abs() @ r[..., None])[..., 0] - diagonal.abs() * r) * r / 2
    return (_entrywise(slope, diagonal, r) - rest).sum(-1)


def convexified(slope: Tensor, curve: Tensor, free: Tensor) -> Tensor:
    """Lower bounds (B,) of g.e + e'He / 2 on |e_j| <= 1 by making H convex; coordinates that are not free have no slope
    and no curvature.
    """
    finite = torch.isfinite(curve).all(-1).all(-1)
    curve = torch.where(finite[:, None, None], curve, torch.zeros_like(curve))
    eigenvalues = torch.linalg.eigvalsh(curve)
    norm = torch.linalg.matrix_norm(curve)
    shift = (-eigenvalues[:, 0]).clamp(min=0) + _EIGENVALUE_ERROR * norm
    convex = curve + torch.diag_embed(shift[:, None] * free)

    def gradient(z: Tensor) -> Tensor:
        return slope + (convex @ z[..., None])[..., 0]

    step = 1 / (eigenvalues[:, -1].clamp(min=0) + shift).clamp(min=1e-300)[:, None]
    z = torch.zeros_like(slope)
    previous = z
    for turn in range(_DESCENTS):
        ahead = z + turn / (turn + 3) * (z - previous)
        previous, z = z, (ahead - step * gradient(ahead)).clamp(-1, 1).nan_to_num(0.0)
    tangent = gradient(z)
    value = (z * (slope + tangent) / 2 - z * tangent - tangent.abs()).sum(-1)
    value = value - shift * free.sum(-1) / 2
    return torch.where(finite, value, torch.full_like(value, -torch.inf)).nan_to_num(-torch.inf)


def _entrywise(slope: Tensor, curve: Tensor, r: Tensor) -> Tensor:
    """min of g d + h d^2 / 2 over |d| <= r, entrywise; -g^2 / (2 h) is below it wherever h > 0."""
    ends = -slope.abs() * r + curve * r**2 / 2
    inside = (curve > 0) & (slope.abs() < curve * r)
    return torch.where(inside, -(slope**2) / (2 * torch.where(inside, curve, torch.ones_like(curve))), ends)


# 2. Minima of rows

_ACCURACY = 2e-4
"""Tolerance relative to how much the row varies over its box."""

_MAX_BOXES = 2**13
"""Boxes of one row, at most."""

_COLLAPSES = 3
"""Times that a box is bounded anew after it became a face."""


@dataclass(frozen=True, eq=False)
class _Bounded:
    """Bounds of rows over boxes (B, n): lower bounds (B,), and ranges of the slopes (B, n) each."""

    value: Tensor
    slope_low: Tensor
    slope_high: Tensor

    def where(self, mask: Tensor, other: _Bounded) -> _Bounded:
        """Replace the entries of the mask, in order, by those of the other; bounds only improve."""
        value, low, high = self.value.clone(), self.slope_low.clone(), self.slope_high.clone()
        value[mask] = torch.maximum(value[mask], other.value)
        low[mask], high[mask] = other.slope_low, other.slope_high
        return _Bounded(value, low, high)


class _Relaxation(Protocol):
    """What is minimised; bounds of a box must not depend on the other boxes."""

    def value(self, rows: _NeuronRows, x: Tensor) -> Tensor:
        """Values at points, not rounded."""
        ...

    def bound(self, rows: _NeuronRows, lower: Tensor, upper: Tensor) -> _Bounded:
        """Rigorous bounds over boxes."""
        ...

    @property
    def size(self) -> int:
        """Numbers that one box takes, about."""
        ...


def _least_over(relaxation: _Relaxation, rows: _NeuronRows, lower: Tensor, upper: Tensor, deadline: Deadline) -> Tensor:
    """Lower bounds (M,) on the rows, each over its box (M, n), which is bounded once whatever the time."""

    def bound(row: Tensor, lower: Tensor, upper: Tensor) -> Look:
        """Bounds over the boxes, once each with a slope of one sign has become the face that is least for its row."""
        some = rows.of(row)
        found = relaxation.bound(some, lower, upper)
        for _ in range(_COLLAPSES):
            rising, falling = found.slope_low >= 0, found.slope_high <= 0
            low, high = torch.where(falling & ~rising, upper, lower), torch.where(rising, lower, upper)
            changed = ((low != lower) | (high != upper)).any(-1)
            if not bool(changed.any()):
                break
            lower, upper = low, high
            found = found.where(changed, relaxation.bound(some.of(changed), lower[changed], upper[changed]))
        steeper = torch.where(found.slope_high.abs() >= found.slope_low.abs(), found.slope_high, found.slope_low)
        return Look(found.value[:, None], steeper[:, None], lower, upper)

    def value(row: Tensor, x: Tensor) -> Tensor:
        return relaxation.value(rows.of(row), x)[:, None]

    batch = at_once(32 * relaxation.size)
    effort = Effort(8 * rows.payment[:, None], _MAX_BOXES, batch, _ACCURACY, once=True)
    known = lower.new_full((len(lower), 1), -torch.inf)
    return minimise(bound, value, lower, upper, known, effort, deadline)[:, 0]


# 3. Rows

_UNDERFLOW = 1e-140
"""More than what underflow takes from a standard deviation."""


@dataclass(frozen=True, eq=False)
class _NeuronRows:
    """M rows, each over a box of its own.

    Attributes
    ----------
    v (M, K), linear (M, n), constant (M,) : see above
    payment (M,) : what the value of a row pays on any part of its box
    slope_payment (M, n) : what a slope pays on any part of the box
    room (M, K) : error of a computed m or s on the box, at most
    """

    v: Tensor
    linear: Tensor
    constant: Tensor
    payment: Tensor
    slope_payment: Tensor
    room: Tensor

    def of(self, owner: Tensor) -> _NeuronRows:
        """The rows of an index, repeats allowed."""
        return _NeuronRows(*(getattr(self, name)[owner] for name in self.__dataclass_fields__))


def rows_over(
    hidden: DenseLayer, top: DenseLayer, kind: str, alpha: float, outputs: Tensor, inputs: Tensor | None, size: Tensor
) -> _NeuronRows:
    """The rows outputs (M, m), inputs (M, n) or None over boxes with |x| <= size (M, n).

    For tanh and sigmoid `hidden` must be scaled already, so that h is E tanh of its pre-activations.
    """
    small, long = gamma(top.outputs + 4), gamma(2 * (hidden.outputs + hidden.inputs) + 32)
    absolute = outputs.abs()
    v, constant = outputs @ top.mean, outputs @ top.bias
    wrong = small * (absolute @ top.mean.abs()) + absolute @ top.slack * (1 + small) + _UNDERFLOW
    paid = small * (absolute @ top.bias.abs()) + absolute @ top.bias_slack * (1 + small) + _UNDERFLOW
    linear = torch.zeros_like(size) if inputs is None else inputs
    paid = paid + long * (linear.abs() * size).sum(-1)

    deviation = torch.sqrt(hidden.variance)
    largest = size @ hidden.mean.abs().mT + hidden.bias.abs() + hidden.deviation(size**2)
    blurred = size @ hidden.slack.mT + hidden.bias_slack
    room = 16 * long * largest * (1 + 1e-6) + _UNDERFLOW
    share = 16 * long + 32 * ABSOLUTE
    weight = v.abs() + wrong
    paid = paid + (weight * (share * largest + blurred + _UNDERFLOW)).sum(-1)
    match kind:
        case "relu" | "leaky_relu":
            paid = paid + (wrong * (largest + blurred)).sum(-1)
            linear = linear + alpha * (v @ hidden.mean)
            constant = constant + alpha * (v @ hidden.bias)
            v = (1 - alpha) * v
        case "tanh":
            paid = paid + wrong.sum(-1) + share * weight.sum(-1)
        case "sigmoid":
            paid = paid + wrong.sum(-1) + share * weight.sum(-1)
            v = v / 2
            constant = constant + v.sum(-1)
    steep = weight @ hidden.mean.abs() + weight @ deviation + (weight @ hidden.variance) * size
    slope = 16 * (long + ABSOLUTE) * (steep + linear.abs()) * (1 + 1e-6) + _UNDERFLOW
    paid = (paid + 8 * UNIT * constant.abs()) * (1 + 1e-6)
    return _NeuronRows(v, linear, constant, paid, slope, room)


def sums_at(first: DenseLayer, second: DenseLayer, x: Tensor) -> Sums:
    """The outputs of two layers with relu between them at points (P, n): P times I sums, those of a point together.

    m and s are off by some roundings, and m by what the slack of the first layer allows; `blur` is what that and the
    slack of the second layer do to an output, since relu has slopes of at most 1.
    """
    m, s = x @ first.mean.mT + first.bias, first.deviation(x**2)
    error = errors_at(first, x, m, s) + 16 * UNIT * (m.abs() + s)
    sig = torch.sqrt(second.variance)
    blur = 2 * error @ (second.mean.abs() + second.slack + sig).mT + (m.abs() + s) @ second.slack.mT
    blur = (blur + 16 * UNIT * second.bias.abs() + second.bias_slack) * (1 + 1e-9)
    count = len(x)
    return Sums(
        m.repeat_interleave(second.outputs, 0), s.repeat_interleave(second.outputs, 0),
        second.mean.repeat(count, 1), sig.repeat(count, 1),
        second.bias.repeat(count), torch.sqrt(second.bias_variance).repeat(count), blur.flatten(),
    )  # fmt: skip


def errors_at(layer: DenseLayer, x: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """(P, K): how far the computed m and s may be from the true ones at points (P, n)."""
    size = x.abs() @ layer.mean.abs().mT + layer.bias.abs() + s
    error = gamma(2 * x.shape[1] + 16) * size + x.abs() @ layer.slack.mT + layer.bias_slack
    return error * (1 + 1e-9) + _UNDERFLOW


# 4. Relu


def squares(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Range of x^2, not rounded."""
    below, above = lower**2, upper**2
    inside = (lower <= 0) & (upper >= 0)
    return torch.where(inside, torch.zeros_like(below), torch.minimum(below, above)), torch.maximum(below, above)


@dataclass(frozen=True, eq=False)
class ReluRows:
    """The relaxation of a layer of relu or leaky relu, see 4. above."""

    hidden: DenseLayer

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        return self.hidden.outputs

    def value(self, rows: _NeuronRows, x: Tensor) -> Tensor:
        """The rows at points (B, n), not rounded."""
        m = x @ self.hidden.mean.mT + self.hidden.bias
        expected = relu_mean(m, self.hidden.deviation(x**2))
        return (rows.v * expected).sum(-1) + (rows.linear * x).sum(-1) + rows.constant

    def bound(self, rows: _NeuronRows, lower: Tensor, upper: Tensor) -> _Bounded:
        """Lower bounds of the rows over boxes (B, n), and ranges of their slopes."""
        center = (lower + upper) / 2
        m, radius = self.hidden.range(lower, upper)
        s, (least, most) = self.hidden.deviation(center**2), (self.hidden.deviation(q) for q in squares(lower, upper))
        low, high = m - radius, m + radius
        positive, negative = rows.v.clamp(min=0), rows.v.clamp(max=0)
        slope, constant = self._below(positive, m, s, center)
        above, added = self._above(negative, s, (low, high, least, most), lower, upper)
        slope, constant = slope + above + rows.linear, constant + added + rows.constant
        value = torch.minimum(slope * lower, slope * upper).sum(-1) + constant - rows.payment
        return _Bounded(value, *self._slopes(rows, (low, high), (least, most), lower, upper))

    def _below(self, v: Tensor, m: Tensor, s: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
        t = ratio(m, s)
        beta = v * cdf(t)
        weight = torch.where(s > LEAST, v * density(t) / s.clamp(min=LEAST), torch.zeros_like(s))
        slope = beta @ self.hidden.mean + (weight @ self.hidden.variance) * center
        return slope, beta @ self.hidden.bias + weight @ self.hidden.bias_variance

    def _above(
        self, v: Tensor, s: Tensor, ranges: tuple[Tensor, Tensor, Tensor, Tensor], lower: Tensor, upper: Tensor
    ) -> tuple[Tensor, Tensor]:
        beta, steep, kappa = mean_plane(*ranges)
        anchor = torch.maximum(s, ranges[-1] / 4).clamp(min=LEAST)
        weight = v * steep / (2 * anchor)
        spread = weight @ self.hidden.variance
        slope = (v * beta) @ self.hidden.mean + spread * (lower + upper)
        constant = (v * (kappa + steep * anchor / 2)).sum(-1) + (v * beta) @ self.hidden.bias
        constant = constant + weight @ self.hidden.bias_variance - (spread * lower * upper).sum(-1)
        return slope, constant

    def _slopes(
        self,
        rows: _NeuronRows,
        means: tuple[Tensor, Tensor],
        deviations: tuple[Tensor, Tensor],
        lower: Tensor,
        upper: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Range of the row's slopes over each box, (B, n) each."""
        low, high = means[0] - rows.room, means[1] + rows.room
        least, most = (deviations[0] - rows.room).clamp(min=LEAST), (deviations[1] + rows.room).clamp(min=LEAST)
        t_low, t_high = torch.minimum(low / least, low / most), torch.maximum(high / least, high / most)
        inside = (t_low <= 0) & (t_high >= 0)
        near = torch.where(inside, torch.zeros_like(t_low), torch.minimum(t_low.abs(), t_high.abs()))
        far = torch.maximum(t_low.abs(), t_high.abs())
        p, p_radius = _middle(cdf(t_low) - ABSOLUTE, cdf(t_high) + ABSOLUTE)
        d, d_radius = _middle((density(far) - ABSOLUTE).clamp(min=0) / most, (density(near) + ABSOLUTE) / least)
        size, v = torch.maximum(lower.abs(), upper.abs()), rows.v.abs()
        curve = (d * rows.v) @ self.hidden.variance
        slope = (p * rows.v) @ self.hidden.mean + curve * (lower + upper) / 2 + rows.linear
        radius = (p_radius * v) @ self.hidden.mean.abs() + curve.abs() * (upper - lower) / 2
        radius = radius + ((d_radius * v) @ self.hidden.variance) * size
        long = gamma(2 * (self.hidden.outputs + self.hidden.inputs) + 32)
        radius = radius * (1 + 16 * long) + rows.slope_payment
        return slope - radius, slope + radius


def _middle(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Center and radius, the radius with room for its own rounding."""
    radius = (high - low) / 2
    return (low + high) / 2, radius * (1 + 1e-12)


C2, C3, C4 = 0.7699, 2.0, 4.0859


# 5. Tanh and sigmoid

_INFLECTION = 0.5773502691896258
"""tanh'' is extreme where |tanh| is 1/sqrt 3, up to 1e-15."""

_TAYLOR_RADIUS = 1e-3
"""Below this radius the parabola is Taylor's."""


@dataclass(frozen=True, eq=False)
class _Fit:
    """Parabola P for T_0 on a box, (B, K) each: value, slope and curvature of P, T_2 at the center, and what errors add
    up to.

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
    """The relaxation of a layer of tanh, see 5. above."""

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

    def value(self, rows: _NeuronRows, x: Tensor) -> Tensor:
        """The rows at points (B, n), not rounded."""
        m = x @ self.hidden.mean.mT + self.hidden.bias
        expected = self.expected.mean(m, self.hidden.deviation(x**2))
        return (rows.v * expected).sum(-1) + (rows.linear * x).sum(-1) + rows.constant

    def bound(self, rows: _NeuronRows, lower: Tensor, upper: Tensor) -> _Bounded:
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
        value = value + least_quadratic(slope, curve, r) - lost
        trivial = torch.minimum(rows.linear * lower, rows.linear * upper).sum(-1) + rows.constant - v.sum(-1)

        off = (v * fit.bent) @ hidden.mean.abs() + ((v * fit.dev) @ hidden.variance) * size
        bend = (bend + off) * (1 + 1e-12) + rows.slope_payment
        return _Bounded(torch.maximum(value, trivial) - rows.payment, slope - bend, slope + bend)

    def _fit(self, rows: _NeuronRows, center: Tensor, r: Tensor, lower: Tensor, upper: Tensor) -> _Fit:
        """The parabola fitted to T_0 on each box, and its errors."""
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
        return _Fit(t0[2], slope, curve, t2[2], missed, bent * (1 + 1e-12), drift, dev)


def _parabola_through(t0: Tensor, t1: Tensor, t2: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and curvature with errors of alternating sign at the five points: best for a cubic plus a quartic."""
    narrow = reach < _TAYLOR_RADIUS
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
    largest = torch.where((low <= apart - _INFLECTION) & (high >= -_INFLECTION - apart), C2, largest)
    smallest = torch.where((low <= _INFLECTION + apart) & (high >= _INFLECTION - apart), -C2, smallest)
    wide = C4 / 2 * most**2 + 1e-12
    largest, smallest = (largest + wide).clamp(max=C2), (smallest - wide).clamp(min=-C2)
    return torch.minimum(near, torch.maximum(largest - t2, t2 - smallest).clamp(min=0))


# The method

_CURVED_INPUTS = 64
"""Up to this many inputs there are Hessians."""


@dataclass(frozen=True, eq=False)
class OneLayer:
    """Lower bounds for a chain with one activation."""

    chain: DenseChain
    deadline: Deadline

    name: ClassVar[str] = "closed forms"

    @staticmethod
    def serves(chain: DenseChain) -> bool:
        """Whether the chain has one hidden layer, of an activation that is served with so many inputs."""
        if len(chain.activations) != 1:
            return False
        return chain.kinds <= {"relu", "leaky_relu"} or chain.layers[0].inputs <= _CURVED_INPUTS

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) bounds on outputs.D(x) + inputs.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        count, height = len(lower), outputs.shape[1]

        def each(part: Tensor) -> Tensor:
            return part.expand(count, height, -1).reshape(count * height, -1)

        low, high = each(lower[:, None]), each(upper[:, None])
        size = torch.maximum(low.abs(), high.abs())
        (kind, alpha), (hidden, top) = self.chain.activations[0], self.chain.layers
        if kind == "sigmoid":
            hidden = _halved(hidden)
        added = None if inputs is None else each(inputs)
        rows = rows_over(hidden, top, kind, alpha, each(outputs), added, size)
        found = _least_over(_relaxation(kind, hidden, size), rows, low, high, self.deadline)
        return found.reshape(count, height)


def _relaxation(kind: str, hidden: DenseLayer, size: Tensor) -> _Relaxation:
    if kind in ("relu", "leaky_relu"):
        return ReluRows(hidden)
    return TanhRows(hidden, expectations_for(hidden.deviation(size**2).nan_to_num(0.0, 0.0, 0.0)))


def _halved(layer: DenseLayer) -> DenseLayer:
    """The layer with its pre-activations halved, exactly."""
    return DenseLayer(
        layer.mean / 2, layer.bias / 2, layer.variance / 4, layer.bias_variance / 4,
        layer.slack / 2, layer.bias_slack / 2,
    )  # fmt: skip
