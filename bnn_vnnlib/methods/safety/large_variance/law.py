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

3. Upper bounds on P(Y <= t): `gaussian.inversion`, with several eta and c. P(Y + eta N <= t - P) is bounded by 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnn_vnnlib.gaussian.characteristic import half_line
from bnn_vnnlib.gaussian.inversion import series
from bnn_vnnlib.gaussian.normal import LEAST, TERM, cdf, density, log_cdf_above
from bnn_vnnlib.gaussian.relu import log_half_moment
from bnn_vnnlib.methods.safety.large_variance.lines import LEVEL_SHARES, LineTerms, Neurons
from bnn_vnnlib.methods.safety.large_variance.output_layer import Sides, Weights, no_sides
from bnn_vnnlib.rounding import UP

_CUT = 6.0
"""2 Phi(-CUT) < 2e-9."""

FINE, _MOST = 64, 20000
"""Lattice points a standard deviation of Y, unless more than so many were needed."""

OUTER, INNER = 32, 8
"""Nodes on a half line, in D or zeta; on a short piece of zeta."""

FINER = ((6, 4), (24, 2))
"""Up to so many neurons take so many times as many nodes: the fewer terms, the slower their product falls with w."""

_CELLS = 28
"""Cells of D within CUT deviations; 0 is another edge."""

_ELLIPSES = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
"""Values of r, the ellipses that the error of a rule is bounded by: the least bound counts."""

_RULES = {
    times * count: np.polynomial.legendre.leggauss(times * count) for times in (1, 2, 4) for count in (OUTER, INNER)
}


def _nodes(layer: Neurons) -> tuple[int, int]:
    """Numbers of nodes for these neurons: on a half line, and on a short piece."""
    times = next((times for few, times in FINER if layer.m.shape[1] <= few), 1)
    return times * OUTER, times * INNER


@dataclass(frozen=True, eq=False)
class _Side:
    """D > 0 or D < 0.

    nodes, weights : (A, H, ..) in D; half : (A, H) half width of its piece; mass : (A, H) probability
    lift, line, share : (A, H, E) p, a and (signed) weights at the nodes in zeta; rest : (A, H) mass of zeta where X = 0
    tilt : (A, H) l, rounded to the unsafe side
    """

    nodes: Tensor
    weights: Tensor
    half: Tensor
    mass: Tensor
    lift: Tensor
    line: Tensor
    share: Tensor
    rest: Tensor
    tilt: Tensor


@dataclass(frozen=True, eq=False)
class Terms:
    """All terms of A rows; k : (A, H) at the chosen theta; more : of B."""

    layer: Neurons
    weights: Weights
    lines: LineTerms
    k: Tensor
    sides: tuple[_Side, _Side]
    more: Sides

    @cached_property
    def cells(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ends low < high of one sign of cells of D, (A, H, C), their probabilities, and whether D > 0."""
        mean, dev = (part[..., None] for part in (self.weights.mean, self.weights.dev))
        edges = mean + dev * torch.linspace(-_CUT, _CUT, _CELLS + 1, dtype=mean.dtype, device=mean.device)
        zero = torch.zeros_like(mean).clamp(edges[..., :1], edges[..., -1:])
        edges = torch.cat([edges, zero], -1).sort(-1).values
        low, high = edges[..., :-1], edges[..., 1:]
        left, right = (low - mean) / dev, (high - mean) / dev
        flip = left > 0
        mass = cdf(torch.where(flip, -left, right)) - cdf(torch.where(flip, -right, left))
        return low, high, mass.clamp(min=0.0) * UP + 1e-300, low >= 0

    @cached_property
    def rules(self) -> tuple[list[tuple[float, Tensor, Tensor]], ...]:
        """For D > 0 and for D < 0, the rules in zeta at the nodes in D (E, A, H, ..): how often each occurs, the
        logarithm of its error by ellipse, and what a wave of 1 adds to it.
        """
        return tuple(_rules(self, side) for side in self.sides)


def terms(layer: Neurons, weights: Weights, lines: LineTerms, theta: Tensor, more: Sides | None = None) -> Terms:
    """The terms of A rows at their theta (A,)."""
    k = (lines.curvature + theta[:, None] * lines.per_rate) * UP
    lift, share = _outer(layer, torch.zeros_like(layer.m), -1)
    count = _nodes(layer)[0]
    plus = _side(weights, 1, (lift, torch.ones_like(lift), share), cdf(-layer.m / layer.s), lines, count)
    minus = _side(weights, -1, *_pieces(layer), lines, count)
    return Terms(layer, weights, lines, k, (plus, minus), no_sides(theta) if more is None else more)


def _rule(low: Tensor, high: Tensor, count: int, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (.., count) for a Gaussian law on [low, high]."""
    nodes, gauss = (low.new_tensor(part) for part in _RULES[count])
    middle, half = ((high + low) / 2)[..., None], ((high - low) / 2)[..., None]
    z = middle + half * nodes
    return z, half * gauss * density((z - m[..., None]) / s[..., None]) / s[..., None]


def _ends(layer: Neurons, start: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends of the piece zeta > start, as far as it lies within _CUT deviations of the mean."""
    return torch.maximum(layer.m - _CUT * layer.s, start), torch.maximum(layer.m + _CUT * layer.s, start)


def _outer(layer: Neurons, start: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """p and the weights at the nodes on zeta > start."""
    z, weight = _rule(*_ends(layer, start), _nodes(layer)[0], layer.m, layer.s)
    return (1 + sign * layer.rho)[..., None] * z, weight


def _side(
    weights: Weights, sign: int, pieces: tuple[Tensor, Tensor, Tensor], rest: Tensor, lines: LineTerms, count: int
) -> _Side:
    mean, dev = weights.mean, weights.dev
    inner, outer = (sign * (sign * mean - part * dev).clamp(min=0.0) for part in (_CUT, -_CUT))
    low, high = torch.minimum(inner, outer), torch.maximum(inner, outer)
    nodes, weight = _rule(low, high, count, mean, dev)
    tilt = lines.tilt + sign * lines.tilt_error
    return _Side(nodes, weight, (high - low) / 2, cdf(sign * mean / dev), *pieces, rest, tilt)


def _pieces(layer: Neurons) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """The pieces of zeta for D < 0: (p, a, signed weights) at their nodes, (A, H, E) each, and the mass (A, H) where X
    = 0.
    """
    m, s, ramp, reach = layer.m, layer.s, layer.ramp, layer.reach
    rho, top, excess = layer.rho[..., None], LEVEL_SHARES[-1], (reach - ramp)[..., None]
    lift, share = _outer(layer, ramp, 1)
    lifts, slopes, shares = [lift], [torch.ones_like(lift)], [share]
    inner = _nodes(layer)[1]
    for low, high in ((-ramp, 0 * ramp), (0 * ramp, ramp)):
        z, weight = _rule(low, high, inner, m, s)
        a = (z + ramp[..., None]) / (2 * ramp[..., None])
        for place, part in enumerate(LEVEL_SHARES):
            level = torch.minimum(layer.levels[..., place], ramp)[..., None]
            lift = z.clamp(min=0.0) + level * torch.minimum(a, 1 - a) + rho * a * z.abs()
            if place == len(LEVEL_SHARES) - 1:
                lift = lift + excess * torch.maximum(a, 1 - a)
            for kept, value in ((lifts, lift), (slopes, a), (shares, part * weight)):
                kept.append(value)
    z, weight = _rule(ramp, reach, inner, m, s)
    for sign, more in ((1.0, excess), (-1.0, 0 * excess)):  # the last level instead of none
        for kept, value in ((lifts, (1 + rho) * z + more), (slopes, torch.ones_like(z)), (shares, sign * top * weight)):
            kept.append(value)
    left = cdf((-ramp - m) / s)
    strip = (left - cdf((-reach - m) / s)).clamp(min=0.0) * top
    for kept, value in ((lifts, excess), (slopes, torch.zeros_like(excess)), (shares, strip[..., None])):
        kept.append(value)
    pieces = torch.cat(lifts, -1), torch.cat(slopes, -1), torch.cat(shares, -1)
    return pieces, left - strip


def _lagrange() -> NDArray[np.float64]:
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
class LatticeTerms:
    """The laws of A rows' terms on lattices, and Y as a `gaussian.inversion.Law`: masses (A, H, C) at start (A, H) +
    step (A,) times 0, 1, .. ; total (A, H): of the absolute weights behind them.
    """

    terms: Terms
    masses: Tensor
    start: Tensor
    step: Tensor
    total: Tensor

    @property
    def noise(self) -> Tensor:
        """Zeros (A,): no noise is left out of the envelope."""
        return torch.zeros_like(self.step)

    @property
    def size(self) -> Tensor:
        """(A,): |Y|, at most, but for B - E B."""
        largest = self.start.abs() + self.step[:, None] * self.masses.shape[2]
        return self.terms.weights.bias.abs() + self.terms.lines.constant.abs() + largest.sum(1)

    def at(self, waves: Tensor) -> Tensor:
        """(A, H, W): E e^{i w X_j} at waves (A, W)."""
        places = torch.arange(self.masses.shape[2], dtype=waves.dtype, device=waves.device)
        angle = (waves * self.step[:, None])[:, None] * places[:, None]
        turned = torch.complex(self.masses @ torch.cos(angle), self.masses @ torch.sin(angle))
        shift = waves[:, None] * self.start[..., None]
        return turned * torch.polar(torch.ones_like(shift), shift)

    def error(self, wave: Tensor) -> Tensor:
        """(A, H): what interpolation costs at waves up to (A,)."""
        return 0.0049 * self.total * ((wave * self.step) ** 6)[:, None]

    def transform(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """E e^{i w Y} at waves (A, W), and bounds on its errors."""
        terms, each = self.terms, self.at(w)
        error = (errors(terms, w[:, -1]) + self.error(w[:, -1]))[..., None]
        each = each / each.abs().clamp(min=1.0)  # the true value lies in the disc, no farther than before
        size = (each.abs() + error).clamp(max=1.0)
        shift = _bias(terms, w) * terms.more.transform(w)
        product = each.prod(1) * shift
        moved = -w * terms.lines.constant[:, None]
        wrong = (error / size).sum(1) * size.prod(1) * (1 + 1e-9) * (shift.abs() + 4 * TERM)
        wrong = torch.minimum(wrong, product.abs() + self.envelope(w)) + 4 * TERM * (1 + terms.more.dev.shape[1])
        return product * torch.polar(torch.ones_like(moved), moved), wrong

    def envelope(self, w: Tensor) -> Tensor:
        """(A, W): bounds on |E e^{i w' Y}| for all w' >= w."""
        return envelope(self.terms, w)


def lattice_terms(terms: Terms) -> LatticeTerms:
    """The laws of Y on a lattice, which are made for one row at a time."""
    values, weights = zip(*(_points(terms, row) for row in range(len(terms.k))), strict=True)
    start = torch.stack([value.amin(1) for value in values])
    width = torch.stack([(value.amax(1) - value.amin(1)).amax() for value in values])
    step = torch.maximum(terms.lines.spread / FINE, width / _MOST)
    cells = int((width / step).amax()) + 8  # at most MOST + 8
    masses = torch.stack([_interpolated(*row, cells) for row in zip(values, weights, start, step, strict=True)])
    total = torch.stack([weight.abs().sum(1) for weight in weights]) * UP
    return LatticeTerms(terms, masses, start - 2 * step[:, None], step, total)


def _points(terms: Terms, row: int) -> tuple[Tensor, Tensor]:
    """Values and weights (H, ..) of X_j at all nodes; the constant parts are at 0."""
    values, weights = [], []
    for side in terms.sides:
        d, line = side.nodes[row][..., None], side.line[row][:, None]
        moved = d * line
        lost = (terms.k[row][:, None, None] * moved).add_(side.tilt[row][:, None, None]).mul_(moved)
        values.append((d * side.lift[row][:, None]).sub_(lost).flatten(1))
        weights.append((side.weights[row][..., None] * side.share[row][:, None]).flatten(1))
    plus, minus = (side.mass[row] * side.rest[row] for side in terms.sides)
    known = (plus + minus)[:, None]
    return torch.cat([*values, 0 * known], 1), torch.cat([*weights, known], 1)


def _interpolated(values: Tensor, weights: Tensor, start: Tensor, step: Tensor, cells: int) -> Tensor:
    """(H, C): masses at lattice points -2 .. around start, by Lagrange's polynomials of degree 5.

    They reproduce sum w e^{i w x} up to max |(t+2)(t+1)t(t-1)(t-2)(t-3)| / 6! < .0049 of (w step)^6 (divided
    differences). Powers of t in [0, 1) are summed in each cell, and the polynomials, whose coefficients are at most
    1.25, are applied to the sums.
    """
    place = (values - start[:, None]).div_(step)
    low = place.floor()
    rows, size = torch.arange(len(values), device=values.device)[:, None], len(values) * cells
    index, t = low.long().add_(rows * cells).flatten(), place.sub_(low).flatten()
    share = weights.flatten().clone()
    sums = [torch.bincount(index, share, size)]
    for _ in range(5):
        sums.append(torch.bincount(index, share.mul_(t), size))
    total = values.new_zeros(size)
    for k, part in enumerate(values.new_tensor(_LAGRANGE) @ torch.stack(sums)):
        total[k:] += part[: size - k]
    return total.reshape(len(values), cells)


def errors(terms: Terms, wave: Tensor) -> Tensor:
    """(A, H): bounds on the errors of `characteristic` at waves up to (A,), besides mass beyond CUT."""
    total = torch.full_like(terms.k, 64 * TERM)
    for side, rules in zip(terms.sides, terms.rules, strict=True):
        in_inputs = torch.zeros_like(side.nodes)
        for times, error, growth in rules:
            in_inputs = in_inputs + times * _least(error + wave[:, None, None] * growth)
        total = total + _in_weights(terms, side, wave) + (in_inputs * side.weights).sum(-1)
    return total.nan_to_num(2.0).clamp(max=2.0)


def _least(logs: Tensor) -> Tensor:
    """The best ellipse of logarithms (E, ..)."""
    return torch.exp(logs.amin(0).clamp(max=1.0))


def _ellipses(half: Tensor) -> tuple[Tensor, Tensor]:
    """r, and the semi-axis H (r - 1 / r) / 2 for half widths H (..): (E, 1 ..), (E, ..)."""
    r = half.new_tensor(_ELLIPSES).reshape(-1, *(1,) * half.dim())
    return r, half * (r - 1 / r) / 2


def _log_error(half: Tensor, dev: Tensor, count: int) -> Tensor:
    """(E, ..): of a rule, for integrands besides the density of at most 1."""
    r, y = _ellipses(half)
    rule = torch.log(8 * half.clamp(min=1e-300) / (dev * math.sqrt(2 * math.pi))) - torch.log(r - 1)
    return rule + (y / dev) ** 2 / 2 - (2 * count - 1) * torch.log(r)


def _in_weights(terms: Terms, side: _Side, wave: Tensor) -> Tensor:
    layer, dev, w = terms.layer, terms.weights.dev, wave[:, None]
    r, y = _ellipses(side.half)
    x = terms.weights.mean.abs() + _CUT * dev + side.half * (r + 1 / r) / 2
    zero = torch.zeros_like(y)
    grown = torch.logaddexp(zero, log_half_moment(w * y * (1 + layer.rho), zero, layer.m, layer.s))
    grown = grown + w * y * (2 * layer.reach + side.tilt.abs() + 2 * terms.k * x)
    return 2 * _least(grown + _log_error(side.half, dev, _nodes(layer)[0]))


def _rules(terms: Terms, side: _Side) -> list[tuple[float, Tensor, Tensor]]:
    """The rules in zeta on one side: how often each occurs, its error by ellipse, what a wave of 1 adds to it."""
    layer, (outer, inner) = terms.layer, _nodes(terms.layer)
    size, rho, s = side.nodes.abs(), layer.rho[..., None], layer.s[..., None]
    low, high = _ends(layer, layer.ramp if side is terms.sides[1] else 0 * layer.ramp)
    straight, half = size * (1 + rho), ((high - low) / 2)[..., None]
    found = [(1.0, _log_error(half, s, outer), straight * _ellipses(half)[1])]
    if side is terms.sides[1]:
        ramp, excess = layer.ramp[..., None], (layer.reach - layer.ramp).clamp(min=0.0)[..., None]
        found.append((2 * LEVEL_SHARES[-1], _log_error(excess / 2, s, inner), straight * _ellipses(excess / 2)[1]))
        r, y = _ellipses(ramp / 2)
        line = 1 + r / 4
        steep = 1.5 + excess / (2 * ramp) + 2 * rho * line
        bent = (side.tilt.abs()[..., None] + 2 * terms.k[..., None] * size * line) / (2 * ramp)
        found.append((2.0, _log_error(ramp / 2, s, inner), size * (steep + bent) * y))
    return found


_FAR_RATES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0)
"""Values of lam that are tried, over one by the standard deviation of Y."""


def far_below(terms: Terms, target: Tensor, spread: Tensor) -> Tensor:
    """(A,): bounds on P(Y <= target) for targets far below the mean."""
    layer, lines = terms.layer, terms.lines
    low, high, mass, positive = terms.cells
    far, near = torch.maximum(low.abs(), high.abs()), torch.minimum(low.abs(), high.abs())
    m, s, rho, reach = (part[..., None] for part in (layer.m, layer.s, layer.rho, layer.reach))
    tilt, k = (lines.tilt.abs() + lines.tilt_error)[..., None], terms.k[..., None]
    signed = lines.tilt[..., None]
    drift = torch.maximum(signed * low, signed * high) + lines.tilt_error[..., None] * far
    drift = torch.where(positive, drift, tilt * far)
    zero, off = torch.zeros_like(m), log_cdf_above(-m / s)
    strip = cdf((reach - m) / s) - cdf((-reach - m) / s) + 1e-15
    ramp = layer.ramp[..., None]
    usual = (0.5 + rho) * ramp
    last = usual + reach - ramp
    best = torch.zeros_like(target)
    for times in _FAR_RATES:
        rate = times / spread
        lam = rate[:, None, None]
        over = torch.where(positive, -lam * near * (1 - rho), lam * far * (1 + rho))
        swing = torch.logaddexp(log_half_moment(over, zero, m, s), off)
        pull = torch.minimum(lam * far, 600.0 / (usual + last + 2 * reach))
        more = strip * torch.exp(pull * (1 + rho) * reach)
        more = more * ((1 - LEVEL_SHARES[-1]) * torch.expm1(pull * usual) + LEVEL_SHARES[-1] * torch.expm1(pull * last))
        grown = torch.logaddexp(swing, torch.log(more.clamp(min=1e-300)))
        swing = torch.where(positive, swing, torch.where(pull < lam * far, torch.inf, grown))
        each = swing + (lam * (drift + k * far**2)).clamp(min=0.0) + torch.log(mass)
        total = each.logsumexp(-1).sum(1) + _log_bias_moment(terms, -rate) + terms.more.log_moment(rate)
        total = total + rate * (lines.constant + target) + 1e-9 * (1 + total.abs())
        best = torch.minimum(best, total)
    return torch.exp(best) * UP


def _log_bias_moment(terms: Terms, rate: Tensor) -> Tensor:
    """log E e^{rate (B - |B| share)} from above: |B| share only scales B by 1 +- share."""
    mean, dev, share = terms.weights.bias, terms.weights.bias_dev, terms.layer.share
    less, more = (rate * side * mean + (rate * side * dev) ** 2 / 2 for side in (1 - share, 1 + share))
    return torch.logaddexp(less, more)


def envelope(terms: Terms, waves: Tensor) -> Tensor:
    """(A, W): bounds on |E e^{i w' Y}| for all w' >= w."""
    layer = terms.layer
    low, high, mass, positive = terms.cells
    near = torch.minimum(low.abs(), high.abs())[..., None]
    last = LEVEL_SHARES[-1]
    above, beyond = cdf(layer.m / layer.s), cdf((layer.m - layer.ramp) / layer.s)
    share = (1 - last * (~positive).to(mass))[..., None]
    part = torch.where(positive, above[..., None], beyond[..., None])[..., None]
    slope = (waves[:, None] * (layer.s * (1 - layer.rho))[..., None])[:, :, None]
    wave = torch.minimum(part, 0.79789 / (slope * near).clamp(min=1e-300))
    controlled = (mass[..., None] * share * wave).sum(2)
    off = 1 - terms.sides[0].mass * above - (1 - last) * terms.sides[1].mass * beyond
    hidden = (controlled + off.clamp(min=0.0)[..., None] + 1e-12).clamp(max=1.0).prod(1)
    return hidden * _bias_envelope(terms, waves) * (1 + 1e-9)


def _bias_envelope(terms: Terms, waves: Tensor) -> Tensor:
    """(A, W): bounds on |E e^{i w' (B - |B| share)}| for all w' >= w."""
    mean, dev, share = (part[:, None] for part in (terms.weights.bias, terms.weights.bias_dev, terms.layer.share))
    other = torch.where(share > 0, 2 * cdf(-mean.abs() / dev.clamp(min=LEAST)), 0.0)
    return (torch.exp(-((waves * (1 - share) * dev) ** 2) / 2) + other + 1e-15).clamp(max=1.0)


BLOCK = 8
"""Terms of the series at once."""

BLOCKS = 24
"""Number of blocks of terms, at most."""

_ENOUGH = 1e-5
"""Rest of the series that asks for no more terms."""

_SMOOTH = ((1e-5, 6.0), (1e-3, 5.0), (0.01, 4.0), (0.03, 3.5), (0.1, 3.0))
"""eta over the standard deviation of Y, and c."""

_DEVIATIONS = 6.5
"""Standard deviations above the mean within which the wave is right."""

_LOST = 5e-9
"""Mass of the law that is left out or counted wrongly (D_j and zeta_j beyond their nodes), below 4e-9 a neuron; see
section 1.
"""


def below(terms: Terms, targets: Tensor) -> Tensor:
    """(A, T): bounds on P(Y <= targets (A, T))."""
    lines, highest = terms.lines, targets.amax(1)
    law, period = lattice_terms(terms), lines.center.clamp(min=0.0) + _DEVIATIONS * lines.spread + highest
    waves = series(law, period, block=BLOCK, most=2 * BLOCK * BLOCKS, enough=_ENOUGH)
    lost = _LOST * (1 + terms.k.shape[1])
    smooth, c = (targets.new_tensor(part) for part in zip(*_SMOOTH, strict=True))
    eta = lines.spread[:, None] * smooth
    most = (eta * (c + 9)).amax(1)
    far = far_below(terms, highest + most - period, lines.spread) + 1.2e-19  # or the Gaussian is below -9 eta
    half = (1 - waves.mean(targets, eta, c) + waves.error(targets.abs().amax(1) + most, eta)[:, None]) / 2
    found = ((half + far[:, None, None] + lost) / cdf(c) * UP).clamp(min=0.0)
    # very many deviations away the series is of no use, and this is all there is to know
    best = (far_below(terms, highest, lines.spread)[:, None] + lost).clamp(max=1.0).expand(targets.shape)
    for one in found.unbind(-1):
        best = torch.fmin(best, one)
    return best


def _bias(terms: Terms, waves: Tensor) -> Tensor:
    """E e^{i w (B - |B| share)}."""
    mean, dev, share = (part[:, None] for part in (terms.weights.bias, terms.weights.bias_dev, terms.layer.share))
    angle = waves * (mean - mean.abs() * share)
    zero, sure = torch.zeros_like(mean), dev.clamp(min=LEAST)
    plus = half_line(waves * (1 - share), zero, mean, sure)
    minus = half_line(waves * (1 + share), zero, -mean, sure).conj_physical()
    return torch.where(dev > 0, plus + minus, torch.polar(torch.ones_like(angle), angle))
