"""Moments of relu(N(m, s^2)) in closed form; `normal` says what rounding costs them.

    g(m, s) = E relu(N(m, s^2)) = m Phi(t) + s phi(t),  t = m / s.

g is convex, positively homogeneous and nondecreasing in m and s: the maximum over tau of Phi(tau) m + phi(tau) s.
Proof: relu(a) >= a 1[N > -tau] for a = m + s N, whose expectation is m Phi(tau) + s phi(tau); equality at tau = t.
Hence dg/dm = Phi(t) in [0, 1] and dg/ds = phi(t) in [0, 0.3990].

Upper planes of log E exp(alpha z + beta z^2), z = relu(N(m, s^2)), on rectangles of (m, s).

Let f(z) = alpha z + beta z^2, beta >= 0. With c = 1 - 2 beta s^2 > 0 and y = (m + alpha s^2) / (s sqrt c),
    E exp f(relu(a)) = Phi(-m / s) + exp(B) Phi(y),   E exp f(a) = exp(B),   a ~ N(m, s^2),
    B = (beta m^2 + alpha m + alpha^2 s^2 / 2) / c - log(c) / 2       (completing the square).
If F is convex, then log E exp F(m + s N) is convex in (m, s) (a sum of log-convex functions) and nondecreasing in s,
so that less any plane b m + g s it is largest at a corner of the rectangle. Three cases rest on that:
- alpha >= 0: F = f(relu(.)) itself.
- alpha < 0: F = f, since f(relu(a)) <= f(a): for a < 0 the right side is positive. Exact for active neurons.
- alpha < 0: exp f(z) - alpha z is convex and nondecreasing for z >= 0, with slope 0 at 0, hence so is its value at
  relu(.), and its mean P is convex in (m, s). E exp f = P + alpha G, G = E relu, where G is above its tangents,
  Phi(tau) m + phi(tau) s, for all tau; s >= (s^2 + l u) / (l + u) on [l, u]. And log g <= l0 + g exp(-l0) - 1 for any
  l0. Good for small alpha.
Finally g s <= k s^2 + g^2 / (4 k) for every k > 0, so that the planes are in m and s^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import LEAST, LOGARITHM, ROUND, cdf, density, log_cdf_above, log_cdf_below, ratio
from bnn_vnnlib.rounding import ELEMENTARY, UNIT


def relu_mean(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2)), up to ABSOLUTE (|m| + s)."""
    t = ratio(m, s)
    return m * cdf(t) + s * density(t)


def mean_abs(g: Tensor, s: Tensor) -> Tensor:
    """e(g, s) = E |N(g, s^2)| up to 8 ABSOLUTE of itself, as it is at least |g| and s sqrt(2 / pi).

    Lemma: e(g, s)^2 <= g^2 + 2 s^2 / pi.
    Proof: let s = 1 and g > 0. At g = 0 both sides are 2/pi, so that e e' <= g for g > 0 is enough, e' = T = 2 Phi(g) -
    1. As e = g T + 2 phi, this says 2 phi T <= g (1 - T^2), or T <= 2 g Phi(g) r with r = Phi(-g) / phi(g). By
    Birnbaum's inequality r >= 2 / (g + sqrt(g^2 + 4)), so that T (g + sqrt(g^2 + 4)) <= 4 g Phi(g) = 2 g + 2 g T is
    enough, that is T (sqrt(g^2 + 4) - g) <= 2 g. The bracket is at most 2, and T <= 2 phi(0) g < g.
    """
    size = g.abs()
    return 2 * relu_mean(size, s) - size


HIGHEST_DENSITY = 0.4
"""More than phi(0)."""


def mean_plane(low: Tensor, high: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """beta in [0, 1], gamma in [0, HIGHEST_DENSITY] and kappa with E relu(N(m, s^2)) <= beta m + gamma s + kappa for m
    in [low, high] and s in [least, most].

    The mean is convex, so that kappa is what the plane lacks at a corner, up to roundings of the values there. Slopes
    are those between the corners, or where these are close, derivatives; any would do.
    """
    ll, lu, ul, uu = (relu_mean(m, s) for m in (low, high) for s in (least, most))
    wide, tall, size = high - low, most - least, torch.maximum(low.abs(), high.abs()) + most
    t = ratio((low + high) / 2, most).clamp(-40.0, 40.0)
    beta = torch.where(wide > 1e-9 * size, (ul + uu - ll - lu) / (2 * wide), cdf(t)).nan_to_num(0.0).clamp(0.0, 1.0)
    lift = torch.where(tall > 1e-9 * size, (lu + uu - ll - ul) / (2 * tall), density(t)).nan_to_num(0.0)
    gain = torch.where(most > LEAST, lift.clamp(0.0, HIGHEST_DENSITY), 0.0)
    corners = ((ll, low, least), (lu, low, most), (ul, high, least), (uu, high, most))
    return beta, gain, torch.stack([value - beta * m - gain * s for value, m, s in corners]).amax(0)


def relu_square(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2))^2, up to ABSOLUTE (|m| + s)^2."""
    t = ratio(m, s)
    return (m * m + s * s) * cdf(t) + m * s * density(t)


def relu_fourth(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2))^4, up to 6 ABSOLUTE (|m| + s)^4."""
    t, a, b = ratio(m, s), m * m, s * s
    return (a * a + 6 * a * b + 3 * b * b) * cdf(t) + m * s * (a + 5 * b) * density(t)


def excess_above_mean(m: Tensor, s: Tensor) -> Tensor:
    """E relu(N(m, s^2)) - relu(m) = s (phi(t) - |t| Phi(-|t|)), rounded up; falls with |m| and grows with s."""
    t = (m.abs() / s.clamp(min=LEAST)).clamp(max=40.0)
    return s * (density(t) - t * cdf(-t)).clamp(min=0.0) + ROUND * s * density(t) + LEAST


def exponential_excess(a: Tensor, square: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """E[exp(a z + square z^2 / 2) - 1 - a z], z = relu(N(m, s^2)), rounded up; inf where it is out of reach.

    With r^2 = 1 - square s^2 > 0 and y = (t + a s) / r, completing the square gives
        E exp(..) = Phi(-t) + exp(-t^2 / 2) exp(y^2 / 2) Phi(y) / r.
    """
    s = s.clamp(min=LEAST)
    t = m / s
    r = torch.sqrt((1 - square * s * s).clamp(min=0.0))
    y = (t + a * s) / r
    above = torch.exp(-t * t / 2) * torch.special.erfcx(y * -math.sqrt(0.5)) / (2 * r)
    below, first = cdf(t), a * (m * cdf(t) + s * density(t))
    size = above + below + a.abs() * (m.abs() * below + s * density(t))
    # r^2 is off by a few units, and so y^2 / 2 by that times (1 + y^2 + t^2) / r^2
    value = above - below - first + ROUND * size + 16 * UNIT * (1 + t * t + y * y) / (r * r) * above + LEAST
    usable = (r > 1e-3) & (t.abs() < 37) & (y.abs() < 37)
    return torch.where(usable, value.clamp(min=LEAST), torch.inf).nan_to_num(torch.inf, torch.inf)


SAFE = 2.0**-10
"""What c must exceed for the closed form of the third case."""

_DEEP = -25.0
"""The third case is not tried where log E exp f is below: too many digits would be lost, and are paid for."""


@dataclass(frozen=True, eq=False)
class Rectangle:
    """low <= m <= high, least <= s <= most, and a point (m, s) that is typical; broadcastable, least > 0."""

    low: Tensor
    high: Tensor
    least: Tensor
    most: Tensor
    m: Tensor
    s: Tensor

    def expand(self, shape: torch.Size) -> Rectangle:
        """The rectangle with all its sides in that shape."""
        return Rectangle(*(side.expand(shape) for side in vars(self).values()))

    def pick(self, where: Tensor) -> Rectangle:
        """The entries at which a mask of the rectangle's shape is true, in one axis."""
        return Rectangle(*(side[where] for side in vars(self).values()))

    @property
    def size(self) -> Tensor:
        """Upper bound on |m| + s over the rectangle."""
        return torch.maximum(self.low.abs(), self.high.abs()) + self.most


@dataclass(frozen=True, eq=False)
class _Plane:
    """f <= constant + mean m + square s^2 on a rectangle."""

    constant: Tensor
    mean: Tensor
    square: Tensor

    def at(self, m: Tensor, s: Tensor) -> Tensor:
        """Value of the plane at (m, s), not rounded."""
        return self.constant + self.mean * m + self.square * s * s


Surface = Callable[[Tensor, Tensor], Tensor]


def relu_planes(alpha: Tensor, beta: Tensor, rectangle: Rectangle) -> _Plane:
    """Planes for coefficients alpha and beta >= 0 of one shape; the constant is inf where there is none."""
    shape = torch.Size(np.broadcast_shapes(alpha.shape, rectangle.low.shape))  # torch's own function loads sympy
    alpha, beta, rectangle = alpha.expand(shape), beta.expand(shape), rectangle.expand(shape)
    out = [alpha.new_zeros(shape) for _ in range(3)]
    for where, planes in ((alpha >= 0, _rising), (~(alpha >= 0), _falling)):
        found = planes(alpha[where], beta[where], rectangle.pick(where))
        for part, value in zip(out, vars(found).values(), strict=True):
            part[where] = value
    lost = ~(torch.isfinite(out[0]) & torch.isfinite(out[1]) & torch.isfinite(out[2]))
    return _Plane(*(part.masked_fill(lost, value) for part, value in zip(out, (torch.inf, 0.0, 0.0), strict=True)))


def _rising(alpha: Tensor, beta: Tensor, rectangle: Rectangle) -> _Plane:
    return _above_convex(lambda m, s: log_moment(alpha, beta, m, s), rectangle)


def _falling(alpha: Tensor, beta: Tensor, rectangle: Rectangle) -> _Plane:
    """The better one of two planes above log E exp f for alpha < 0, at the typical point."""
    active = _above_convex(lambda m, s: log_moment_active(alpha, beta, m, s), rectangle)
    level = log_moment(alpha, beta, rectangle.m, rectangle.s)
    small = _by_tangents(alpha, beta, rectangle, level)
    m, s = rectangle.m, rectangle.s
    better = (level > _DEEP) & (small.at(m, s) < active.at(m, s).nan_to_num(torch.inf))
    parts = zip(vars(small).values(), vars(active).values(), strict=True)
    return _Plane(*(torch.where(better, new, old) for new, old in parts))


def _by_tangents(alpha: Tensor, beta: Tensor, rectangle: Rectangle, level: Tensor) -> _Plane:
    """A plane above log E exp f for alpha < 0, by the split of E exp f into a convex part and tangents."""
    share = alpha.abs() * torch.exp(-level)

    def convex(m: Tensor, s: Tensor) -> Tensor:
        """P exp(-level), rounded up."""
        log = log_moment(alpha, beta, m, s)
        size = m.abs() + s
        grown = torch.exp(log - level) * (1 + 4 * ELEMENTARY + 4 * UNIT * (log.abs() + level.abs()))
        return grown + share * (relu_mean(m, s) + ROUND * size) * (1 + 2 * ELEMENTARY) + LEAST

    above = _above_convex(convex, rectangle)
    tau = (rectangle.m / rectangle.s).clamp(-40.0, 40.0)
    ends = rectangle.least + rectangle.most
    lift = share * density(tau) / ends
    paid = 4 * ROUND * share * rectangle.size + 8 * UNIT * (1 + level.abs() + above.constant.abs()) + LEAST
    constant = level - 1 + above.constant - lift * rectangle.least * rectangle.most + paid
    return _Plane(constant, above.mean - share * cdf(tau), above.square - lift)


def _above_convex(surface: Surface, rectangle: Rectangle) -> _Plane:
    """A plane above a convex surface, from its corners; the surface is rounded up there, and its slopes are guessed."""
    m, s = (rectangle.low, rectangle.high), (rectangle.least, rectangle.most)
    value = [[surface(a, b) for b in s] for a in m]
    wide, tall = m[1] - m[0], s[1] - s[0]
    rise = (value[1][0] + value[1][1] - value[0][0] - value[0][1]) / (2 * wide)
    lift = (value[0][1] + value[1][1] - value[0][0] - value[1][0]) / (2 * tall)
    size = rectangle.size  # a slope matters little where there is no width
    rise = torch.where(wide > 1e-9 * size, rise, 0.0).nan_to_num(0.0, 0.0, 0.0)
    lift = torch.where(tall > 1e-9 * size, lift, 0.0).nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
    corners = [value[i][j] - rise * m[i] - lift * s[j] for i in (0, 1) for j in (0, 1)]
    highest = torch.maximum(value[0][0].abs(), value[1][1].abs()) + torch.maximum(value[0][1].abs(), value[1][0].abs())
    paid = 16 * UNIT * (highest + (rise.abs() + lift) * size) + LEAST
    square = lift / (s[0] + s[1])
    stretched = torch.where(lift > 0, lift * lift / (4 * square), 0.0) * (1 + 16 * UNIT)
    return _Plane(torch.stack(corners).amax(0) + paid + stretched, rise, square)


def log_moment(alpha: Tensor, beta: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """log E exp f(relu(N(m, s^2))), alpha and beta of any sign, rounded up; inf where c is too small."""
    t = m / s
    value = torch.logaddexp(log_cdf_above(4 * UNIT * t.abs() - t), log_half_moment(alpha, beta, m, s))
    return value + LOGARITHM * (1 + value.abs())


def log_half_moment(alpha: Tensor, beta: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """log E[exp f(a); a > 0], a ~ N(m, s^2), alpha and beta of any sign, rounded up; inf where c is too small."""
    log, error, y, y_error = _exponent(alpha, beta, m, s)
    return log + error + log_cdf_above(y + y_error)


def log_moment_below(alpha: Tensor, beta: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """log E exp f(relu(N(m, s^2))), rounded down; only the share of z = 0 where c is too small."""
    log, error, y, y_error = _exponent(alpha, beta, m, s)
    t = m / s
    value = torch.logaddexp(log_cdf_below(-t - 4 * UNIT * t.abs()), log - error + log_cdf_below(y - y_error))
    return (value - LOGARITHM * (1 + value.abs())).nan_to_num(-torch.inf, -torch.inf, -torch.inf)


def log_moment_active(alpha: Tensor, beta: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """log E exp f(N(m, s^2)), rounded up; inf where c is too small."""
    log, error, *_ = _exponent(alpha, beta, m, s)
    return log + error


def _exponent(alpha: Tensor, beta: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """B and its error, infinite where c is too small, then y and its error.

    Rounding, u = UNIT: c loses at most u |c| + 2.01 u |1 - c|, so relatively 3.1 u (1 + 1 / c). A term of B over c
    takes 7 roundings and that: 11 u (1 + 1 / c) of its size; half a logarithm of c 1.6 u (1 + 1 / c) and its own error.
    y takes 7 roundings and half the error of c.
    """
    moved = alpha * s * s
    c = 1 - 2 * beta * s * s
    usable = c > SAFE
    c = c.clamp(min=SAFE)
    inverse, half = 1 / c, torch.log(c) / 2
    linear, bent, noise = alpha * m, beta * m * m, alpha * moved / 2
    log = (bent + linear + noise) * inverse - half
    scale = UNIT * (1 + inverse)
    error = 16 * scale * ((bent.abs() + linear.abs() + noise) * inverse + 1) + 2 * ELEMENTARY * half.abs()
    root = torch.rsqrt(c) / s
    return log, torch.where(usable, error, torch.inf), (m + moved) * root, 10 * scale * (m.abs() + moved.abs()) * root
