"""The law of Y (see `lines`): bounds on P(Y <= t) from its characteristic function.

1. Characteristic functions of the terms of Y (see `lines`) by Gauss-Legendre rules, with proved errors.

X_j = D p - l a D - k a^2 D^2 of one neuron; D and zeta run over nodes within CUT deviations of their means, cut where
the formulas for p and a change: D at 0, zeta at 0, +-R~ and `reach`. (The law left out is paid for in 3.)

Error of a rule with N nodes on [c - H, c + H] for f analytic with |f| <= M inside the ellipse of foci c +- H and
semi-axes H (r + 1/r) / 2, H (r - 1/r) / 2: a polynomial of degree 2 N - 1 is within 2 M r^{-(2N-1)} / (r - 1) of f, the
rule is exact for it, and its weights are positive with sum 2 H:   error <= 8 H M r^{-(2N-1)} / (r - 1). The double rule
is off by at most the mean over zeta of the error in D, plus the rule over D of the error in zeta. In D = x + i y,
|phi_d(D)| <= e^{y^2 / 2 d^2} / (d sqrt(2 pi)), |e^{-i w (l a D + k a^2 D^2)}| <= e^{w (|l y| + 2 k |x y|)},
|e^{i w D p}| <= e^{w |y| p}, p <= (1 + rho) relu(zeta) + 2 reach. In zeta = x + i y, on the ramp
|Im a| <= |y| / (2 R~), |a| <= 1 + |zeta - c| / (2 R~) and |Im p| <= |y| (3/2 + (reach - R~) / (2 R~) + 2 rho |a|);
elsewhere a is constant and |Im p| <= (1 + rho) |y|.

2. What is left of Y far below its mean, and of its characteristic function at large waves. X_j is that of 1.

Far: for lam > 0, on D in (a, b] of one sign with |D| <= far = max(|a|, |b|), near = min(|a|, |b|),
    D > 0: E e^{-lam X} <= e^{lam (max(l a, l b) + k far^2)} E[e^{-lam near (1 - rho) z}; z > 0] + P(z <= 0),
    D < 0: E e^{-lam X} <= e^{lam (|l| far + k far^2)} (E[e^{lam far (1 + rho) z}; z > 0] + P(z <= 0)
                            + P(|z| < reach) e^{lam far (1 + rho) reach} ((1 - p) e^{lam far c} + p e^{lam far C} - 1)),
p the probability of the last level, c = (1/2 + rho) R~, C = c + reach - R~; summed over cells of D with their
probabilities, on the event that all D_j lie within CUT deviations.

Waves: given D > 0, the part of X on z > 0 is linear in z with slope D (1 - rho), and a density that rises and falls has
|integral of e^{i c z} f| <= 2 sup f / |c|; likewise for D < 0 on z > R~, but for the last level. So for all w' >= w
    |E e^{i w' X}| <= 1 - P(D > 0) P(z > 0) - (1 - p) P(D < 0) P(z > R~)
        + sum over cells of D > 0 of P(cell) min(P(z > 0), 2 phi(0) / (s w near (1 - rho)))
        + (1 - p) (the same for D < 0),
which falls with w. Terms of `output_layer.Sides` are independent of these, and left out. The bias S = B - |B| share,
B ~ N(m, d^2), is (1 - share) B where B > 0 and (1 + share) B elsewhere,
hence |E e^{i w' S}| <= e^{-(w (1 - share) d)^2 / 2} + 2 Phi(-|m| / d), without the last term if share = 0.

3. Upper bounds on P(Y <= t) from the characteristic function of Y.

Smoothing: with an independent standard Gaussian N, P(Y <= t) Phi(c) = P(Y <= t, N <= c) <= P(Y + eta N <= t + eta c).
Inversion: the square wave of period 2 P that is sign(y) on (-P, P) has the partial sums, bounded, of
(4 / pi) sum over odd n of sin(n pi y / P) / n. For y = Y + eta N - t the wave is -1 on all of (-P, 0), hence
    P(Y + eta N <= t) <= (1 - S) / 2 + P(Y + eta N <= t - P),
    S = (4 / pi) sum over odd n of Im(phi(w_n) e^{-i w_n t}) / n,   w_n = n pi / P,
phi(w) = E e^{i w Y} e^{-eta^2 w^2 / 2}. What lies beyond t + P can only raise the right side. For even N the sum of
1 / n over odd n in (N, 2 N] is at most (log 2) / 2, so that the rest of the series after N is at most the sum over
d >= 0 of (log 2) / 2 times envelope(2^d w_N) e^{-(eta 2^d w_N)^2 / 2}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bnn_vnnlib.gaussian.half_line import TERM, UP, Complexes, Floats, density, half_line, log_half_line
from bnn_vnnlib.methods.safety.large_variance.lines import SHARES, Lines, Neurons
from bnn_vnnlib.methods.safety.large_variance.output_layer import Sides, Weights, no_sides

CUT = 6.0
"""2 Phi(-CUT) < 2e-9."""

FINE, MOST = 64, 20000
"""Lattice points a standard deviation of Y, unless more than so many were needed."""

OUTER, INNER = 32, 8
"""Nodes on a half line, in D or zeta; on a short piece of zeta."""

FINER = ((6, 4), (24, 2))
"""Up to so many neurons take so many times as many nodes: the fewer terms, the slower their product falls with w."""

ELLIPSES = np.array([1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0])
"""r."""

_RULES = {
    times * count: np.polynomial.legendre.leggauss(times * count) for times in (1, 2, 4) for count in (OUTER, INNER)
}


def _nodes(layer: Neurons) -> tuple[int, int]:
    """How many on a half line, on a short piece."""
    times = next((times for few, times in FINER if layer.m.shape[1] <= few), 1)
    return times * OUTER, times * INNER


@dataclass(frozen=True, eq=False)
class _Side:
    """D > 0 or D < 0.

    nodes, weights : (A, H, ..) in D; half : (A, H) half width of its piece; mass : (A, H) probability
    lift, line, share : (A, H, E) p, a and (signed) weights at the nodes in zeta; rest : (A, H) mass of zeta where X = 0
    tilt : (A, H) l, rounded to the unsafe side
    """

    nodes: Floats
    weights: Floats
    half: Floats
    mass: Floats
    lift: Floats
    line: Floats
    share: Floats
    rest: Floats
    tilt: Floats


@dataclass(frozen=True, eq=False)
class Terms:
    """All terms of A rows; k : (A, H) at the chosen theta; more : of B."""

    layer: Neurons
    weights: Weights
    lines: Lines
    k: Floats
    sides: tuple[_Side, _Side]
    more: Sides


def terms(layer: Neurons, weights: Weights, lines: Lines, theta: Floats, more: Sides | None = None) -> Terms:
    """The terms of A rows at their theta (A,)."""
    k = (lines.curvature + theta[:, None] * lines.per_rate) * UP
    zero = np.zeros_like(layer.m)
    lift, share, _ = _outer(layer, zero, -1)
    count = _nodes(layer)[0]
    plus = _side(weights, 1, (lift, np.ones_like(lift), share), special.ndtr(-layer.m / layer.s), lines, count)
    minus = _side(weights, -1, *_pieces(layer), lines, count)
    return Terms(layer, weights, lines, k, (plus, minus), no_sides(len(theta)) if more is None else more)


def _rule(low: Floats, high: Floats, count: int, m: Floats, s: Floats) -> tuple[Floats, Floats]:
    """Nodes and weights (.., count) for a Gaussian law on [low, high]."""
    nodes, gauss = _RULES[count]
    middle, half = ((high + low) / 2)[..., None], ((high - low) / 2)[..., None]
    z = middle + half * nodes
    return z, half * gauss * density((z - m[..., None]) / s[..., None]) / s[..., None]


def _outer(layer: Neurons, start: Floats, sign: int) -> tuple[Floats, Floats, Floats]:
    """p and weights on zeta > start, and the half width of that piece."""
    m, s = layer.m, layer.s
    low, high = np.maximum(m - CUT * s, start), np.maximum(m + CUT * s, start)
    z, weight = _rule(low, high, _nodes(layer)[0], m, s)
    return (1 + sign * layer.rho)[..., None] * z, weight, (high - low) / 2


def _side(
    weights: Weights, sign: int, pieces: tuple[Floats, Floats, Floats], rest: Floats, lines: Lines, count: int
) -> _Side:
    mean, dev = weights.mean, weights.dev
    inner, outer = (sign * np.maximum(sign * mean - part * dev, 0.0) for part in (CUT, -CUT))
    low, high = np.minimum(inner, outer), np.maximum(inner, outer)
    nodes, weight = _rule(low, high, count, mean, dev)
    tilt = lines.tilt + sign * lines.tilt_error
    return _Side(nodes, weight, (high - low) / 2, special.ndtr(sign * mean / dev), *pieces, rest, tilt)


def _pieces(layer: Neurons) -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """For D < 0."""
    m, s, ramp, reach = layer.m, layer.s, layer.ramp, layer.reach
    rho, top, excess = layer.rho[..., None], SHARES[-1], (reach - ramp)[..., None]
    lift, share, _ = _outer(layer, ramp, 1)
    lifts, slopes, shares = [lift], [np.ones_like(lift)], [share]
    inner = _nodes(layer)[1]
    for low, high in ((-ramp, 0 * ramp), (0 * ramp, ramp)):
        z, weight = _rule(low, high, inner, m, s)
        a = (z + ramp[..., None]) / (2 * ramp[..., None])
        for place, part in enumerate(SHARES):
            level = np.minimum(layer.levels[..., place], ramp)[..., None]
            lift = np.maximum(z, 0.0) + level * np.minimum(a, 1 - a) + rho * a * np.abs(z)
            if place == len(SHARES) - 1:
                lift = lift + excess * np.maximum(a, 1 - a)
            for kept, value in ((lifts, lift), (slopes, a), (shares, part * weight)):
                kept.append(value)
    z, weight = _rule(ramp, reach, inner, m, s)
    for sign, more in ((1.0, excess), (-1.0, 0 * excess)):  # the last level instead of none
        for kept, value in ((lifts, (1 + rho) * z + more), (slopes, np.ones_like(z)), (shares, sign * top * weight)):
            kept.append(value)
    left = special.ndtr((-ramp - m) / s)
    strip = np.maximum(left - special.ndtr((-reach - m) / s), 0.0) * top
    for kept, value in ((lifts, excess), (slopes, np.zeros_like(excess)), (shares, strip[..., None])):
        kept.append(value)
    pieces = np.concatenate(lifts, -1), np.concatenate(slopes, -1), np.concatenate(shares, -1)
    return pieces, left - strip


def _lagrange() -> Floats:
    """(6, 6): coefficients, constant first, of the polynomials of degree 5 that are 1 at k - 2 and 0 at the other ones
    of -2 .. 3.
    """
    places = np.arange(-2.0, 4.0)
    rows = []
    for k, own in enumerate(places):
        others = np.delete(places, k)
        rows.append(np.polynomial.polynomial.polyfromroots(others) / (own - others).prod())
    return np.stack(rows)


_LAGRANGE = _lagrange()


@dataclass(frozen=True, eq=False)
class Spread:
    """The laws of A rows' terms on lattices: masses (A, H, C) at start (A, H) + step (A,) times 0, 1, .. ;
    size (A, H): the total of the absolute weights behind them.
    """

    masses: Floats
    start: Floats
    step: Floats
    size: Floats

    @property
    def largest(self) -> Floats:
        """(A, H): |X_j|, at most."""
        return np.abs(self.start) + self.step[:, None] * self.masses.shape[2]

    def at(self, waves: Floats) -> Complexes:
        """(A, H, W): E e^{i w X_j} at waves (A, W)."""
        angle = (waves * self.step[:, None])[:, None] * np.arange(self.masses.shape[2])[:, None]
        turned = self.masses @ np.cos(angle) + 1j * (self.masses @ np.sin(angle))
        return np.asarray(turned * np.exp(1j * waves[:, None] * self.start[..., None]))

    def error(self, wave: Floats) -> Floats:
        """(A, H): what interpolation costs at waves up to (A,)."""
        return 0.0049 * self.size * ((wave * self.step) ** 6)[:, None]


def spread(terms: Terms) -> Spread:
    """The laws behind `Spread.at`, for rows one at a time."""
    values, weights = zip(*(_points(terms, row) for row in range(len(terms.k))), strict=True)
    start = np.stack([value.min(1) for value in values])
    width = np.array([(value.max(1) - value.min(1)).max() for value in values])
    step = np.maximum(terms.lines.spread / FINE, width / MOST)
    cells = int((width / step).max()) + 8  # at most MOST + 8
    masses = np.stack(
        [_interpolated(v, w, x, h, cells) for v, w, x, h in zip(values, weights, start, step, strict=True)]
    )
    size = np.stack([np.abs(weight).sum(1) for weight in weights]) * UP
    return Spread(masses, start - 2 * step[:, None], step, size)


def _points(terms: Terms, row: int) -> tuple[Floats, Floats]:
    """Values and weights (H, ..) of X_j at all nodes; the constant parts are at 0."""
    values, weights = [], []
    for side in terms.sides:
        d, line = side.nodes[row][..., None], side.line[row][:, None]
        value = d * (side.lift[row][:, None] - side.tilt[row][:, None, None] * line)
        value = value - terms.k[row][:, None, None] * (d * line) ** 2
        values.append(value.reshape(len(d), -1))
        weights.append((side.weights[row][..., None] * side.share[row][:, None]).reshape(len(d), -1))
    known = sum(side.mass[row] * side.rest[row] for side in terms.sides)[:, None]
    return np.concatenate([*values, 0 * known], 1), np.concatenate([*weights, known], 1)


def _interpolated(values: Floats, weights: Floats, start: Floats, step: float, cells: int) -> Floats:
    """(H, C): masses at lattice points -2 .. around start, by Lagrange's polynomials of degree 5.

    They reproduce sum w e^{i w x} up to max |(t+2)(t+1)t(t-1)(t-2)(t-3)| / 6! < .0049 of (w step)^6 (divided
    differences). Powers of t in [0, 1) are summed in each cell, and the polynomials, whose coefficients are at most
    1.25, are applied to the sums.
    """
    place = (values - start[:, None]) / step
    low = np.floor(place)
    t = (place - low).ravel()
    index = (low.astype(np.int64) + np.arange(len(values))[:, None] * cells).ravel()
    share, size = weights.ravel(), len(values) * cells
    sums = np.empty((6, size))
    for power in range(6):
        sums[power] = np.bincount(index, share, size)
        share = share * t
    total = np.zeros(size)
    for k, part in enumerate(_LAGRANGE @ sums):
        total[k:] += part[: size - k]
    return total.reshape(len(values), cells)


def errors(terms: Terms, wave: Floats) -> Floats:
    """(A, H): bounds on the errors of `characteristic` at waves up to (A,), besides mass beyond CUT."""
    total = 64 * TERM + sum(_in_weights(terms, side, wave) + _in_inputs(terms, side, wave) for side in terms.sides)
    return np.minimum(np.nan_to_num(total, nan=2.0), 2.0)


def _rule_error(half: Floats, dev: Floats, r: float, count: int) -> Floats:
    """log of 8 H r^{-(2N-1)} / (r - 1) times the largest |density| in the ellipse."""
    y = half * (r - 1 / r) / 2
    rule = np.log(8 * np.maximum(half, 1e-300) / (dev * np.sqrt(2 * np.pi) * (r - 1)))
    return rule + (y / dev) ** 2 / 2 - (2 * count - 1) * np.log(r)


def _in_weights(terms: Terms, side: _Side, wave: Floats) -> Floats:
    layer, dev, w = terms.layer, terms.weights.dev, wave[:, None]
    widest = np.abs(terms.weights.mean) + CUT * dev
    logs = []
    for r in ELLIPSES:
        y, x = side.half * (r - 1 / r) / 2, widest + side.half * (r + 1 / r) / 2
        grown = np.logaddexp(0.0, log_half_line(w * y * (1 + layer.rho), layer.m, layer.s, 0.0))
        grown = grown + w * y * (2 * layer.reach + np.abs(side.tilt) + 2 * terms.k * x)
        logs.append(grown + _rule_error(side.half, dev, r, _nodes(layer)[0]))
    return 2 * np.exp(np.minimum(np.min(logs, 0), 1.0))


def _in_inputs(terms: Terms, side: _Side, wave: Floats) -> Floats:
    """The rules in zeta, averaged over the nodes in D."""
    layer, w = terms.layer, wave[:, None, None]
    outer, inner = _nodes(layer)
    size, rho, s = np.abs(side.nodes), layer.rho[..., None], layer.s[..., None]
    start = layer.ramp if side is terms.sides[1] else 0 * layer.ramp
    half = _outer(layer, start, 1)[2][..., None]
    found = _least(w * size * (1 + rho), half, s, outer)
    if side is terms.sides[1]:
        ramp, excess = layer.ramp[..., None], np.maximum(layer.reach - layer.ramp, 0.0)[..., None]
        found = found + 2 * SHARES[-1] * _least(w * size * (1 + rho), excess / 2, s, inner)
        logs = []
        for r in ELLIPSES:
            y = ramp / 2 * (r - 1 / r) / 2
            line = 1 + ramp / 2 * r / (2 * ramp)
            steep = 1.5 + excess / (2 * ramp) + 2 * rho * line
            bent = (np.abs(side.tilt)[..., None] + 2 * terms.k[..., None] * size * line) / (2 * ramp)
            logs.append(w * size * (steep + bent) * y + _rule_error(ramp / 2, s, r, inner))
        found = found + 2 * np.exp(np.minimum(np.min(logs, 0), 1.0))
    return (found * side.weights).sum(-1)


def _least(rate: Floats, half: Floats, s: Floats, count: int) -> Floats:
    """The best ellipse where the integrand grows by e^{rate |y|}."""
    logs = [rate * half * (r - 1 / r) / 2 + _rule_error(half, s, r, count) for r in ELLIPSES]
    return np.exp(np.minimum(np.min(logs, 0), 1.0))


CELLS = 28
"""Cells of D within CUT deviations; 0 is another edge."""

RATES = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0])
"""lam, over one by the standard deviation of Y."""


def _cells(terms: Terms) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Ends low < high of one sign, (A, H, C), their probabilities, and whether D > 0."""
    mean, dev = (part[..., None] for part in (terms.weights.mean, terms.weights.dev))
    edges = mean + dev * np.linspace(-CUT, CUT, CELLS + 1)
    edges = np.sort(np.concatenate([edges, np.clip(0.0, edges[..., :1], edges[..., -1:])], -1), -1)
    low, high = edges[..., :-1], edges[..., 1:]
    left, right = (low - mean) / dev, (high - mean) / dev
    flip = left > 0
    mass = special.ndtr(np.where(flip, -left, right)) - special.ndtr(np.where(flip, -right, left))
    return low, high, np.maximum(mass, 0.0) * UP + 1e-300, low >= 0


def far_below(terms: Terms, target: Floats, spread: Floats) -> Floats:
    """(A,): bounds on P(Y <= target) for targets far below the mean."""
    layer, lines = terms.layer, terms.lines
    low, high, mass, positive = _cells(terms)
    far, near = np.maximum(np.abs(low), np.abs(high)), np.minimum(np.abs(low), np.abs(high))
    m, s, rho, reach = (part[..., None] for part in (layer.m, layer.s, layer.rho, layer.reach))
    tilt, k = (np.abs(lines.tilt) + lines.tilt_error)[..., None], terms.k[..., None]
    signed = lines.tilt[..., None]
    drift = np.where(positive, np.maximum(signed * low, signed * high) + lines.tilt_error[..., None] * far, tilt * far)
    off = special.log_ndtr(-m / s)
    strip = special.ndtr((reach - m) / s) - special.ndtr((-reach - m) / s) + 1e-15
    ramp = layer.ramp[..., None]
    usual = (0.5 + rho) * ramp
    last = usual + reach - ramp
    best = np.zeros_like(target)
    for rate in RATES:
        lam = (rate / spread)[:, None, None]
        over = np.where(positive, -lam * near * (1 - rho), lam * far * (1 + rho))
        swing = np.logaddexp(log_half_line(over, m, s, 0.0), off)
        pull = np.minimum(lam * far, 600.0 / (usual + last + 2 * reach))
        more = strip * np.exp(pull * (1 + rho) * reach)
        more = more * ((1 - SHARES[-1]) * np.expm1(pull * usual) + SHARES[-1] * np.expm1(pull * last))
        swing = np.where(positive, swing, np.logaddexp(swing, np.log(np.maximum(more, 1e-300))))
        swing = np.where(~positive & (pull < lam * far), np.inf, swing)
        each = swing + np.maximum(lam * (drift + k * far**2), 0.0) + np.log(mass)
        total = special.logsumexp(each, -1).sum(1) + _log_bias_moment(terms, -rate / spread)
        total = total + terms.more.log_moment(rate / spread)
        total = total + rate / spread * (lines.constant + target) + 1e-9 * (1 + np.abs(total))
        best = np.minimum(best, total)
    return np.exp(best) * UP


def _log_bias_moment(terms: Terms, rate: Floats) -> Floats:
    """log E e^{rate (B - |B| share)} from above: |B| share only scales B by 1 +- share."""
    mean, dev, share = terms.weights.bias, terms.weights.bias_dev, terms.layer.share
    ends = [rate * side * mean + (rate * side * dev) ** 2 / 2 for side in (1 - share, 1 + share)]
    return np.logaddexp(*ends)


def envelope(terms: Terms, waves: Floats) -> Floats:
    """(A, W): bounds on |E e^{i w' Y}| for all w' >= w."""
    layer = terms.layer
    low, high, mass, positive = _cells(terms)
    near = np.minimum(np.abs(low), np.abs(high))[..., None]
    last = SHARES[-1]
    above = special.ndtr(layer.m / layer.s)
    beyond = special.ndtr((layer.m - layer.ramp) / layer.s)
    share = np.where(positive, 1.0, 1 - last)[..., None]
    part = np.where(positive, above[..., None], beyond[..., None])[..., None]
    slope = (waves[:, None] * (layer.s * (1 - layer.rho))[..., None])[:, :, None]
    wave = np.minimum(part, 0.79789 / np.maximum(slope * near, 1e-300))
    controlled = (mass[..., None] * share * wave).sum(2)
    off = 1 - terms.sides[0].mass * above - (1 - last) * terms.sides[1].mass * beyond
    hidden = np.minimum(controlled + np.maximum(off, 0.0)[..., None] + 1e-12, 1.0).prod(1)
    return hidden * _bias_envelope(terms, waves) * (1 + 1e-9)


def _bias_envelope(terms: Terms, waves: Floats) -> Floats:
    """(A, W): bounds on |E e^{i w' (B - |B| share)}| for all w' >= w."""
    mean, dev, share = (part[:, None] for part in (terms.weights.bias, terms.weights.bias_dev, terms.layer.share))
    other = np.where(share > 0, 2 * special.ndtr(-np.abs(mean) / np.maximum(dev, 1e-100)), 0.0)
    return np.minimum(np.exp(-((waves * (1 - share) * dev) ** 2) / 2) + other + 1e-15, 1.0)


BLOCK = 8
"""Terms of the series at once."""

BLOCKS = 24
"""At most."""

ENOUGH = 1e-5
"""Rest of the series that asks for no more terms."""

SMOOTH = ((1e-5, 6.0), (1e-3, 5.0), (0.01, 4.0), (0.03, 3.5), (0.1, 3.0))
"""eta over the standard deviation of Y, and c."""

BEYOND = 6.5
"""Standard deviations above the mean within which the wave is right."""

DOUBLINGS = 60

FINAL = 9.0
"""eta times the last doubled wave, at least: what comes after it is below 1e-15."""

LOST = 5e-9
"""Mass of the law that is left out or counted wrongly (D_j and zeta_j beyond their nodes), below 4e-9 a neuron; see
section 1.
"""


def below(terms: Terms, targets: Floats) -> Floats:
    """(A, T): bounds on P(Y <= targets (A, T))."""
    lines = terms.lines
    spread = lines.spread
    period = np.maximum(lines.center, 0.0) + BEYOND * spread + targets.max(1)
    waves, values, wrong, rest = _series(terms, period)
    n = np.arange(1, 2 * waves.shape[1], 2)
    lost = LOST * (1 + terms.k.shape[1])
    # very many deviations away the series is of no use, and this is all there is to know
    best = np.minimum(np.ones_like(targets), far_below(terms, targets.max(1), spread)[:, None] + lost)
    most = spread * max(smooth * (reach + 9) for smooth, reach in SMOOTH)
    far = far_below(terms, targets.max(1) + most - period, spread) + 1.2e-19  # or the Gaussian is below -9 eta
    for smooth, reach in SMOOTH:
        eta = smooth * spread
        damped = np.exp(-((eta[:, None] * waves) ** 2) / 2)
        t = targets + (eta * reach)[:, None]
        wave = np.imag(np.einsum("aw,atw->at", values * damped / n, np.exp(-1j * waves[:, None] * t[..., None])))
        error = (wrong * damped / n).sum(1) + rest(eta)
        half = 0.5 - 2 / np.pi * wave + (2 / np.pi * error)[:, None]
        found = (half + far[:, None] + lost) / special.ndtr(reach) * UP
        best = np.fmin(best, np.maximum(found, 0.0))
    return best


def _series(terms: Terms, period: Floats) -> tuple[Floats, Complexes, Floats, Callable[[Floats], Floats]]:
    """Waves (A, W), E e^{i w Y}, bounds on its errors, and a function of eta (A,) that bounds what the rest adds."""
    waves, values, wrong = [], [], []
    law = spread(terms)
    # a phase is rounded by a few units of its size
    phases = period + np.abs(terms.weights.bias) + np.abs(terms.lines.constant) + law.largest.sum(1)
    for block in range(BLOCKS):
        n = np.arange(2 * BLOCK * block + 1, 2 * BLOCK * (block + 1), 2)
        w = n * np.pi / period[:, None]
        each = law.at(w)
        error = (errors(terms, w[:, -1]) + law.error(w[:, -1]))[..., None]
        each = each / np.maximum(np.abs(each), 1.0)  # the true value lies in the disc, no farther than before
        size = np.minimum(np.abs(each) + error, 1.0)
        shift = _bias(terms, w) * terms.more.transform(w)
        product = each.prod(1) * shift
        waves.append(w)
        values.append(product * np.exp(-1j * w * terms.lines.constant[:, None]))
        bound = envelope(terms, w)
        off = (error / size).sum(1) * size.prod(1) * (1 + 1e-9) * (np.abs(shift) + 4 * TERM)
        off = np.minimum(off, np.abs(product) + bound)
        wrong.append(off + 4 * TERM * (1 + terms.more.dev.shape[1]) + 1e-15 * w * phases[:, None])
        last = w[:, -1]
        if (bound[:, -1] <= ENOUGH).all():
            break
    doubled = last[:, None] * 2.0 ** np.arange(DOUBLINGS)
    high = envelope(terms, doubled)

    def rest(eta: Floats) -> Floats:
        damped = high * np.exp(-((eta[:, None] * doubled) ** 2) / 2)
        total = np.log(2) / 2 * (damped.sum(1) + 1e-15) * UP
        return np.where(eta * doubled[:, -1] >= FINAL, total, np.inf)

    return np.concatenate(waves, 1), np.concatenate(values, 1), np.concatenate(wrong, 1), rest


def _bias(terms: Terms, waves: Floats) -> Complexes:
    """E e^{i w (B - |B| share)}."""
    mean, dev, share = (part[:, None] for part in (terms.weights.bias, terms.weights.bias_dev, terms.layer.share))
    known = np.exp(1j * waves * (mean - np.abs(mean) * share))
    sure = np.maximum(dev, 1e-100)
    plus = half_line(waves * (1 - share), mean, sure, 0.0)
    minus = np.conj(half_line(waves * (1 + share), -mean, sure, 0.0))
    return np.where(dev > 0, plus + minus, known)
