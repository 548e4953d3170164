"""Regression with two hidden relu layers: values at points by characteristic functions, what lies between by curvature.

The output is sum_i v_i E relu(zeta_i) + const, zeta_i of the second layer, v the mean weights of the last layer, which
is independent. Boxes with at most one free input are bounded by segments (1., 3.), those with up to MAX_FREE by stars
of points (2., 3.); nothing (-inf) is said about others.

1. How fast E relu(zeta_i(x)) may change along a segment x_j in [l, u] of one input (`interpolation_errors`).
zeta = sum_k W_k relu(a_k) + b, a_k = m_k(x) + s_k(x) N along the segment has the derivative V_k ~ N(mu_k, sig_k^2).
    |d/dx E relu(zeta)|  <= L = sqrt(E zeta'^2),
    |d2/dx2 E relu(zeta)| <= B = E zeta'^2 / (sqrt(2 pi) sig_b) + sum_k E|W_k| (phi(t)/s) E[V_k^2 | a_k = 0]:
over b alone E relu(y + b) has a second derivative of at most 1 / (sqrt(2 pi) sig_b), and z_k'' is V_k^2 at a_k = 0.
    E zeta'^2 = sum (mu_W^2 + sig_W^2) E[V^2; a > 0] - sum mu_W^2 E[V; a > 0]^2 + (sum mu_W E[V; a > 0])^2,
    E[V; a > 0] = Phi(t) mu + phi(t) rho, rho = sig^2 x / s: the slope of a convex function of x, so its ends serve;
    E[V^2; a > 0] = (mu^2 + sig^2) Phi(t) + 2 mu rho phi(t) - rho^2 t phi(t), and |t| phi(t) < .242;
    V given a = 0 has the mean mu - rho t and the variance sig^2 - rho^2.
The linear interpolant of a function on a segment of length h is off by at most min(B h^2 / 8, L h / 2).
Rounding: m, s are widened by their errors, and B, L by a factor that exceeds what sums of this length can lose.

2. Boxes with several free inputs: values at a star of points, and curvature (`curvature`, `star_bound`).
With B(u) >= |d' Hess E relu(zeta_i) d| for all x of the box and |d_j| <= u_j, c the center, r the radii and D+-j the
values at the ends of axis j,
    D(x) >= D(c) - sum_j ( |D+j - D-j| / 2 + B(r_j e_j) / 2 ) - B(r) / 2:
Taylor's remainder is at most B(r) / 2, and (D+j - D-j) / 2 is g_j r_j up to B(r_j e_j) / 2.
B as in 1., with the slope V_k.d of each first-layer neuron: its mean is at most a = sum |mu_kj| u_j, its
variance at most v = sum sig_kj^2 u_j^2, so that
    E[(V.d)^2; a_k > 0] <= min(a^2 + v, sqrt((a^4 + 6 a^2 v + 3 v^2) Phi(t)))                 (Cauchy and Schwarz),
    E[V_j; a_k > 0] = Phi(t) mu_j + phi(t) sig_j^2 x_j / s,
and V.d given a_k = 0 has a mean of at most a + |t| sum sig_j^2 |x_j| u_j / s and a variance of at most v.

3. The method (`TwoLayers`). Between two points of a segment the row stays above the smaller end minus sum |v_i| times
the interpolation errors of 1. Segments are halved where that matters, in rounds, all items at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.characteristic import expected_relu
from bnn_vnnlib.gaussian.normal import ABSOLUTE, LEAST, cdf, density
from bnn_vnnlib.methods.decision.regression.one_layer import errors_at, squares, sums_at
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.rounding import gamma
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

# 1. Segments: how fast E relu(zeta_i(x)) may change

_WIDER = 1 + 1e-9
"""Covers sums of a million nonnegative products."""


def _nearest(low: Tensor, high: Tensor) -> Tensor:
    """The least |t| for t in [low, high]."""
    return torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))


def _quotients(low: Tensor, high: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Range of m / s for m in [low, high] and s in [least, most], least > 0."""
    return torch.minimum(low / least, low / most), torch.maximum(high / least, high / most)


def interpolation_errors(
    means: tuple[Tensor, Tensor], deviations: tuple[Tensor, Tensor], room: Tensor, ends: tuple[Tensor, Tensor],
    mu: Tensor, variance: Tensor, top: DenseLayer,
) -> Tensor:  # fmt: skip
    """(A, I): bounds for A segments and the I neurons of the second layer, `top`.

    means, deviations : m and s (A, K) at both ends; room (A, K) their errors; ends (A,) each: l <= u
    mu, variance : (A, K) of the weights that the input of the segment has
    """
    lower, upper = ends
    largest = torch.maximum(lower.abs(), upper.abs())[:, None]
    low, high = torch.minimum(*means) - room, torch.maximum(*means) + room
    crosses = ((lower <= 0) & (upper >= 0))[:, None]
    bottom = torch.sqrt((torch.minimum(*deviations) ** 2 - crosses * variance * largest**2).clamp(min=0.0))
    s_low = ((bottom - room) * (1 - 1e-9)).clamp(min=LEAST)
    s_high = torch.maximum(*deviations) + room
    t_low, t_high = _quotients(low, high, s_low, s_high)
    peak, mass = density(_nearest(t_low, t_high)) + ABSOLUTE, cdf(t_high) + ABSOLUTE
    sig = torch.sqrt(variance) * _WIDER
    rho = torch.minimum(sig, variance * largest / s_low * _WIDER)
    absolute = mu.abs()

    square = (mu**2 + variance) * mass + 2 * absolute * rho * peak + 0.242 * rho**2 * (t_low < 0)
    square = torch.minimum(square, mu**2 + variance) * _WIDER
    first, last = (_slope(m, s, x, mu, variance, room) for m, s, x in zip(means, deviations, ends, strict=True))
    lowest, highest = first[0], last[1]
    smallest = _nearest(lowest, highest) ** 2 / _WIDER
    weight, slack, noise, bias = top.mean, top.slack, torch.sqrt(top.variance), torch.sqrt(top.bias_variance)
    large, small = weight.abs() + slack, (weight.abs() - slack).clamp(min=0.0)
    center, radius = (lowest + highest) / 2, (highest - lowest) / 2 * _WIDER
    mean = (center @ weight.mT).abs() + radius @ large.mT + center.abs() @ (slack + 1e-12 * large).mT
    bent = square @ (large**2 + noise**2).mT * _WIDER - smallest @ (small**2).mT / _WIDER + mean**2 * _WIDER

    tilt = absolute + rho * (torch.maximum(low.abs(), high.abs()) / s_low).clamp(max=1e150)
    kink = peak / s_low * (tilt**2 + variance).clamp(max=1e300) * _WIDER
    kink = torch.where(absolute + sig > 0, kink, 0.0)
    expected = large * _WIDER + 0.79789 * noise  # E|W| <= |mu| + E|N| sig
    length = (upper - lower)[:, None] * _WIDER
    curved = bent / (math.sqrt(2 * math.pi) * bias) + kink @ expected.mT
    curved = curved.nan_to_num(torch.inf, torch.inf).clamp(max=1e300)  # no noise in the bias: L is what is left
    return torch.minimum(curved * length**2 / 8, torch.sqrt(bent) * length / 2) * _WIDER


def _slope(m: Tensor, s: Tensor, x: Tensor, mu: Tensor, variance: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """E[V; a > 0] at a point, from below and above."""
    least, most = (s - room).clamp(min=LEAST), s + room
    t_low, t_high = _quotients(m - room, m + room, least, most)
    low, high = cdf(t_low) - ABSOLUTE, cdf(t_high) + ABSOLUTE
    first = torch.minimum(low * mu, high * mu), torch.maximum(low * mu, high * mu)
    far = torch.maximum(t_low.abs(), t_high.abs())
    rho = variance * x.abs()[:, None]
    cap = torch.sqrt(variance) * 0.4
    small = torch.minimum((density(far) - ABSOLUTE).clamp(min=0.0) * rho / most, cap) / _WIDER
    large = torch.minimum((density(_nearest(t_low, t_high)) + ABSOLUTE) * rho / least, cap) * _WIDER
    positive = x[:, None] >= 0
    second = torch.where(positive, small, -large), torch.where(positive, large, -small)
    paid = 1e-13 * (mu.abs() + cap)
    return first[0] + second[0] - paid, first[1] + second[1] + paid


# 2. Stars of points


def curvature(
    first: DenseLayer, second: DenseLayer, lower: Tensor, upper: Tensor, reach: Tensor, room: Tensor
) -> Tensor:
    """B(u) (A, I) over boxes (A, n) with u = reach (A, n); room (A, K): errors of m and s."""
    center, size = (lower + upper) / 2, torch.maximum(lower.abs(), upper.abs())
    absolute, variance = first.mean.abs() + first.slack, first.variance * _WIDER
    m = center @ first.mean.mT + first.bias
    radius = (upper - lower) / 2 @ absolute.mT * _WIDER + room
    noise = first.bias_variance
    s_low = torch.sqrt(squares(lower, upper)[0] @ first.variance.mT + noise)
    s_low = ((s_low - room) * (1 - 1e-9)).clamp(min=LEAST)
    s_high = torch.sqrt(size**2 @ variance.mT + noise) * _WIDER + room
    low, high = m - radius, m + radius
    t_low, t_high = _quotients(low, high, s_low, s_high)
    p_low, p_high = cdf(t_low) - ABSOLUTE, cdf(t_high) + ABSOLUTE
    peak = (density(_nearest(t_low, t_high)) + ABSOLUTE) / s_low

    a, v = reach @ absolute.mT, reach**2 @ variance.mT
    square = torch.minimum(a**2 + v, torch.sqrt((a**4 + 6 * a**2 * v + 3 * v**2) * p_high)) * _WIDER
    middle, spread = (p_low + p_high) / 2, (p_high - p_low) / 2 * _WIDER
    tilt = torch.minimum(peak[..., None] * variance * size[:, None], 0.4 * torch.sqrt(variance))  # (A, K, n)
    off = spread[..., None] * absolute + tilt + first.slack
    large = second.mean.abs() + second.slack
    slope = (second.mean @ (middle[..., None] * first.mean)).abs() + large @ off  # (A, I, n)
    slope = slope + (second.slack + 1e-9 * large) @ absolute
    mean = (slope * reach[:, None]).sum(-1)

    shifted = a + (size * reach) @ variance.mT * torch.maximum(low.abs(), high.abs()) / s_low**2
    kink = peak * (shifted**2 + v)
    bent = square @ (large**2 + second.variance).mT + mean**2
    found = bent / (math.sqrt(2 * math.pi) * torch.sqrt(second.bias_variance))
    found = found + kink @ (large + 0.79789 * torch.sqrt(second.variance)).mT
    return (found * _WIDER**4).nan_to_num(torch.inf, torch.inf)


def _star_points(lower: Tensor, upper: Tensor) -> Tensor:
    """(A, 1 + 2 n, n): the center, then the upper and the lower end of each axis through it."""
    center = (lower + upper) / 2
    n = center.shape[-1]
    points = center[:, None].repeat(1, 1 + 2 * n, 1)
    axis = torch.arange(n, device=center.device)
    points[:, 1 + axis, axis] = upper
    points[:, 1 + n + axis, axis] = lower
    return points


def star_bound(below: Tensor, above: Tensor, along: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """(A, R) bounds and (A, R, n) what each axis costs.

    below, above (A, R, 1 + 2 n) : rows at the star's points, from below and above
    along (A, R, n), whole (A, R) : sum |v_i| B of the axes and of the box
    """
    n = along.shape[-1]
    up, down = slice(1, 1 + n), slice(1 + n, 1 + 2 * n)
    rise = torch.maximum((above[..., up] - below[..., down]).abs(), (above[..., down] - below[..., up]).abs())
    cost = (rise + along) / 2 * _WIDER
    value = below[..., 0] - (cost.sum(-1) + whole / 2) * _WIDER
    return value.nan_to_num(-torch.inf, torch.inf, -torch.inf), cost


# 3. The method

_ACCURACY = 1e-3
"""Error of the interpolation, relative to how much a row varies over the item."""

_MAX_ROUNDS = 12
"""Rounds in which segments are halved, at most."""

_MAX_POINTS = 257
"""Points of one item, at most about."""

_MAX_FREE = 6
"""Free inputs of a box, at most: each costs two points."""

_STAR_ROUNDS = 3
"""Halvings of such a box."""

_MIN_WIDTH = 1e-6
"""Widths below, relative to the size of x, are left alone: rounding of the center would matter."""


@dataclass(frozen=True, eq=False)
class _Points:
    """x (P, n), bounds on E relu(zeta) (P, I) each, m and s of the first layer and their errors (P, K).

    blur (P, I) : what those errors, and slack, do to E relu(zeta)
    """

    x: Tensor
    low: Tensor
    high: Tensor
    m: Tensor
    s: Tensor
    room: Tensor
    blur: Tensor

    def joined(self, other: _Points) -> _Points:
        return _Points(*(torch.cat(parts) for parts in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True, eq=False)
class _Rows:
    """v (N, R, I), its rounding error, and what is left besides the neurons and x: constant, inputs (N, R, n)."""

    v: Tensor
    wrong: Tensor
    constant: Tensor
    paid: Tensor
    inputs: Tensor

    @property
    def negated(self) -> _Rows:
        """The rows with the other sign."""
        return _Rows(-self.v, self.wrong, -self.constant, self.paid, -self.inputs)

    def of(self, some: Tensor) -> _Rows:
        """The rows of some items."""
        return _Rows(*(part[some] for part in vars(self).values()))

    def at(self, points: _Points, owner: Tensor, index: Tensor) -> Tensor:
        """(A, R): lower bounds on the rows of the owners at points; -inf where NaN."""
        low, high, x = points.low[index, None], points.high[index, None], points.x[index, None]
        v, g = self.v[owner], self.inputs[owner]
        value = torch.where(v > 0, v * low, v * high).sum(-1) + (g * x).sum(-1) + self.constant[owner]
        size = (v.abs() * high).sum(-1) + (g * x).abs().sum(-1) + self.constant[owner].abs()
        terms = v.shape[-1] + x.shape[-1]
        value = value - (self.wrong[owner] * high).sum(-1) * (1 + 1e-9) - self.paid[owner] - gamma(2 * terms) * size
        return value.nan_to_num(-torch.inf, torch.inf, -torch.inf)


@dataclass(frozen=True, eq=False)
class TwoLayers:
    """Lower bounds for a chain of two relu layers."""

    chain: DenseChain
    deadline: Deadline

    name: ClassVar[str] = "closed forms"

    @staticmethod
    def serves(chain: DenseChain) -> bool:
        """Whether the chain has two hidden layers, both of relu."""
        return len(chain.activations) == 2 and chain.kinds == {"relu"}

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) bounds on outputs.D(x) + inputs.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        found = lower.new_full((len(lower), outputs.shape[1]), -torch.inf)
        bounded = torch.isfinite(lower).all(-1) & torch.isfinite(upper).all(-1)
        rows = self._rows(lower, outputs, inputs)
        free = (upper > lower).sum(-1)
        wide = (upper - lower > _MIN_WIDTH * (1 + lower.abs() + upper.abs())) | (upper == lower)
        step = at_once(64 * self.chain.layers[1].mean.numel())
        for some, bound in (
            (free <= 1, self._segments),
            ((free > 1) & (free <= _MAX_FREE) & wide.all(-1), self._stars),
        ):
            for part in torch.nonzero(some & bounded)[:, 0].split(step):
                if self.deadline.passed:
                    break
                if len(part):
                    found[part] = bound(lower[part], upper[part], rows.of(part))
        # numbers beyond all range end in nan or infinity, which say nothing
        return found.nan_to_num(-torch.inf, -torch.inf, -torch.inf)

    def _rows(self, lower: Tensor, outputs: Tensor, inputs: Tensor | None) -> _Rows:
        top, c = self.chain.layers[2], outputs.expand(len(lower), -1, -1)
        small, absolute = gamma(c.shape[-1] + 4), c.abs()
        g = torch.zeros_like(lower)[:, None] if inputs is None else inputs
        return _Rows(
            c @ top.mean, absolute @ (small * top.mean.abs() + top.slack * (1 + 1e-9)) + 1e-300,
            c @ top.bias, absolute @ (small * top.bias.abs() + top.bias_slack * (1 + 1e-9)) + 1e-300,
            g.expand(len(lower), c.shape[1], -1),
        )  # fmt: skip

    def points(self, x: Tensor) -> _Points:
        """What is known at points (P, n): E relu and m, s of the second layer, with errors."""
        first, second, _ = self.chain.layers
        sums = sums_at(first, second, x)
        m, s = (part[:: second.outputs] for part in (sums.m, sums.s))
        low, high, blur = (part.unflatten(0, (len(x), -1)) for part in (*expected_relu(sums), sums.blur))
        return _Points(x, low, high, m, s, errors_at(first, x, m, s), blur)

    def _segments(self, low: Tensor, high: Tensor, rows: _Rows) -> Tensor:
        """(N, R): rounds of halving; every segment that stops leaves its bound behind."""
        count = len(low)
        points = self.points(torch.cat([low, high]))
        owner = left = torch.arange(count, device=low.device)
        right = left + count
        ends = rows.at(points, owner, left), rows.at(points, owner, right)
        best, worst = torch.minimum(*ends), torch.maximum(*ends)
        finished, used = torch.full_like(best, torch.inf), torch.full_like(owner, 2)
        for turn in range(_MAX_ROUNDS + 1):
            least = torch.minimum(rows.at(points, owner, left), rows.at(points, owner, right))
            value = least - self._gaps(points, owner, left, right, rows)
            enough = best - _ACCURACY * (worst - best) - 1e-7 * (1 + best.abs())
            keep = (value < enough[owner]).any(-1) & (used[owner] < _MAX_POINTS)
            keep &= (points.x[left] < points.x[right]).any(-1)
            if turn == _MAX_ROUNDS or self.deadline.passed:
                keep = torch.zeros_like(keep)
            finished = _reduced(finished, owner[~keep], value[~keep], "amin")
            if not bool(keep.any()):
                break
            owner, left, right = owner[keep], left[keep], right[keep]
            middle = len(points.x) + torch.arange(len(owner), device=low.device)
            points = points.joined(self.points((points.x[left] + points.x[right]) / 2))
            at = rows.at(points, owner, middle)
            best, worst = _reduced(best, owner, at, "amin"), _reduced(worst, owner, at, "amax")
            used = used.index_add(0, owner, torch.ones_like(owner))
            owner, left, right = owner.repeat(2), torch.cat([left, middle]), torch.cat([middle, right])
        return finished

    def _gaps(self, points: _Points, owner: Tensor, left: Tensor, right: Tensor, rows: _Rows) -> Tensor:
        """(A, R): how far a row may be below the smaller end of its segment."""
        first, second, _ = self.chain.layers
        difference = points.x[right] - points.x[left]
        axis = difference.argmax(-1)
        ends = tuple(points.x[side].gather(1, axis[:, None])[:, 0] for side in (left, right))
        errors = interpolation_errors(
            (points.m[left], points.m[right]), (points.s[left], points.s[right]),
            torch.maximum(points.room[left], points.room[right]),
            (ends[0], ends[1]), first.mean.mT[axis], first.variance.mT[axis], second,
        )  # fmt: skip
        errors = torch.where(difference.gather(1, axis[:, None]) > 0, errors, 0.0)
        errors = errors + 2 * torch.maximum(points.blur[left], points.blur[right])  # slack of the first layer's slopes
        weight = rows.v[owner].abs() + rows.wrong[owner]
        return (weight * errors[:, None]).sum(-1) * (1 + 1e-9)

    def _stars(self, low: Tensor, high: Tensor, rows: _Rows) -> Tensor:
        """(N, R): rounds of halving along the axis that costs most."""
        owner = torch.arange(len(low), device=low.device)
        finished = torch.full_like(rows.constant, torch.inf)
        best, worst = finished, -finished
        for turn in range(_STAR_ROUNDS + 1):
            value, cost, seen = self._star(low, high, rows, owner)
            best = _reduced(best, owner, seen.amin(-1), "amin")
            worst = _reduced(worst, owner, seen.amax(-1), "amax")
            enough = best - 10 * _ACCURACY * (worst - best) - 1e-7 * (1 + best.abs())
            keep = (value < enough[owner]).any(-1)
            if turn == _STAR_ROUNDS or self.deadline.passed:
                keep = torch.zeros_like(keep)
            finished = _reduced(finished, owner[~keep], value[~keep], "amin")
            if not bool(keep.any()):
                break
            axis = cost[keep].amax(1).nan_to_num(0.0, 1e300).argmax(-1, keepdim=True)
            owner, low, high = owner[keep], low[keep], high[keep]
            middle = ((low + high) / 2).gather(1, axis)
            low, high = (
                torch.cat([low, low.scatter(1, axis, middle)]), torch.cat([high.scatter(1, axis, middle), high])
            )  # fmt: skip
            owner = owner.repeat(2)
        return finished

    def _star(self, low: Tensor, high: Tensor, rows: _Rows, owner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(A, R) bounds, (A, R, n) costs of the axes, (A, R, P) values seen."""
        first, second, _ = self.chain.layers
        x = _star_points(low, high)
        count, number, n = x.shape
        points = self.points(x.flatten(0, 1))
        of_point = owner.repeat_interleave(number)
        index = torch.arange(count * number, device=low.device)
        below, above = (
            side.unflatten(0, (count, number)).mT
            for side in (rows.at(points, of_point, index), -rows.negated.at(points, of_point, index))
        )
        # what is farther out than the star's points has at most n times their |x|
        room, blur = (part.unflatten(0, (count, number)).amax(1) * (n + 3) for part in (points.room, points.blur))
        reach = (high - low) / 2 * _WIDER
        weight = rows.v[owner].abs() + rows.wrong[owner]
        whole = (weight * (curvature(first, second, low, high, reach, room) + 4 * blur)[:, None]).sum(-1)
        single = torch.diag_embed(reach).flatten(0, 1)
        again = torch.arange(count, device=low.device).repeat_interleave(n)
        along = curvature(first, second, low[again], high[again], single, room[again]).unflatten(0, (count, n))
        return *star_bound(below, above, weight @ (along + 4 * blur[:, None]).mT, whole), below


def _reduced(values: Tensor, owner: Tensor, new: Tensor, how: str) -> Tensor:
    """values (N, R) with the least (`amin`) or greatest (`amax`) of what `new` (A, R) has for each owner (A,)."""
    return values.scatter_reduce(0, owner[:, None].expand_as(new), new, how)
