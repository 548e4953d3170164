"""Characteristic functions of the terms of Y (see `lines`) by Gauss-Legendre rules, with proved errors.

X_j = D p - l a D - k a^2 D^2 of one neuron; D and zeta run over nodes within CUT deviations of their means, cut where
the formulas for p and a change: D at 0, zeta at 0, +-R~ and `reach`. (The law left out is paid for in `inversion`.)

Error of a rule with N nodes on [c - H, c + H] for f analytic with |f| <= M inside the ellipse of foci c +- H and
semi-axes H (r + 1/r) / 2, H (r - 1/r) / 2: a polynomial of degree 2 N - 1 is within 2 M r^{-(2N-1)} / (r - 1) of f, the
rule is exact for it, and its weights are positive with sum 2 H:   error <= 8 H M r^{-(2N-1)} / (r - 1). The double rule
is off by at most the mean over zeta of the error in D, plus the rule over D of the error in zeta. In D = x + i y,
|phi_d(D)| <= e^{y^2 / 2 d^2} / (d sqrt(2 pi)), |e^{-i w (l a D + k a^2 D^2)}| <= e^{w (|l y| + 2 k |x y|)},
|e^{i w D p}| <= e^{w |y| p}, p <= (1 + rho) relu(zeta) + 2 reach. In zeta = x + i y, on the ramp
|Im a| <= |y| / (2 R~), |a| <= 1 + |zeta - c| / (2 R~) and |Im p| <= |y| (3/2 + (reach - R~) / (2 R~) + 2 rho |a|);
elsewhere a is constant and |Im p| <= (1 + rho) |y|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from bnn_vnnlib.gaussian.half_line import TERM, UP, Complexes, Floats, density, log_half_line
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
