"""Rows of a chain of layers, bounded from below over a box: rules `linear/1` and `point/1` of docs/certificates.md.

Notation: layer k maps h_k to z_k = W_k h_k + b_k, and h_(k+1) = f_k(z_k); h_0 = x. A *row* is a linear function of z_k.

A walk takes rows from a layer back to the input. Its coefficients are floats that may be chosen at will: what a choice
misses, (A - A') h, is a row as well, and is paid for with the range of h. So no coefficient is ever a ball, its sign is
known, and rounding of floats decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial

import numpy as np
from flint import arb, arb_mat, fmpq, fmpq_mat

from bnn_vnnlib_check.balls import (
    ZERO,
    Floats,
    above,
    ball,
    below,
    between,
    column,
    ends,
    entrywise,
    matrix,
    middle,
    square,
    surely_at_least,
    surely_less,
)
from bnn_vnnlib_check.errors import RejectedError
from bnn_vnnlib_check.model import Layer


@dataclass(frozen=True, eq=False)
class Box:
    """All z with lower <= z <= upper; floats, exact."""

    lower: Floats
    upper: Floats

    @cached_property
    def balls(self) -> arb_mat:
        """(n, 1): each contains its interval."""
        return column(between(low, high) for low, high in zip(self.lower.tolist(), self.upper.tolist(), strict=True))

    @cached_property
    def middle(self) -> arb_mat:
        """(n, 1)."""
        return column((arb(a) + arb(b)) / 2 for a, b in zip(self.lower.tolist(), self.upper.tolist(), strict=True))

    @cached_property
    def radius(self) -> arb_mat:
        """(n, 1): half the widths."""
        return column((arb(b) - arb(a)) / 2 for a, b in zip(self.lower.tolist(), self.upper.tolist(), strict=True))

    def least(self, rows: Floats) -> arb_mat:
        """(R, 1): the least values of rows (R, n), at corners."""
        plus, minus = matrix(np.maximum(rows, 0.0)), matrix(np.minimum(rows, 0.0))
        return plus * column(self.lower.tolist()) + minus * column(self.upper.tolist())

    @cached_property
    def largest(self) -> arb_mat:
        """(n, 1): max |z|, exact."""
        return column(np.maximum(np.abs(self.lower), np.abs(self.upper)).tolist())

    @property
    def finite(self) -> bool:
        """All ends are finite."""
        return bool(np.isfinite(self.lower).all() and np.isfinite(self.upper).all())


class Chain:
    """Layers with their matrices."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self._weights = [None if layer.weight is None else matrix(layer.weight) for layer in layers]
        self._sizes = [None if layer.weight is None else matrix(np.abs(layer.weight)) for layer in layers]
        self._biases = [column(layer.bias.tolist()) for layer in layers]

    def __len__(self) -> int:
        return len(self.layers)

    def random(self, k: int) -> bool:
        """Layer k or one in front of it has noise."""
        return any(
            part is not None for layer in self.layers[: k + 1] for part in (layer.weight_variance, layer.bias_variance)
        )

    def through(self, k: int, rows: arb_mat) -> arb_mat:
        """Rows over z_k, as rows over h_k."""
        weight = self._weights[k]
        return rows if weight is None else rows * weight

    def bias(self, k: int) -> arb_mat:
        """(out, 1)."""
        return self._biases[k]

    def size(self, k: int, h: arb_mat) -> arb_mat:
        """|W_k| h, from numbers h >= 0 (in, 1)."""
        weight = self._sizes[k]
        return h if weight is None else weight * h

    def intervals(self, k: int, h: Box) -> Box:
        """The range of z_k by the range of h_k alone; no ball is as wide as a range, since radii have few digits."""
        weight, reach = self._weights[k], self.size(k, h.radius)
        z = (h.middle if weight is None else weight * h.middle) + self._biases[k]
        return Box(ends((z - reach).entries())[0], ends((z + reach).entries())[1])

    def at(self, x: Sequence[Fraction]) -> list[Fraction] | list[arb]:
        """The outputs at x: exact, or balls where an activation has no rational values."""
        return self._values(x) if any(layer.activation in _SMOOTH for layer in self.layers) else self._exact(x)

    def _values(self, x: Sequence[Fraction]) -> list[arb]:
        h = column(ball(v) for v in x)
        for k, layer in enumerate(self.layers):
            weight = self._weights[k]
            h = entrywise(partial(_value, layer), (h if weight is None else weight * h) + self._biases[k])
        return h.entries()

    def _exact(self, x: Sequence[Fraction]) -> list[Fraction]:
        h = fmpq_mat(len(x), 1, [fmpq(v.numerator, v.denominator) for v in x])
        for layer in self.layers:
            if layer.weight is not None:
                h = fmpq_mat(len(layer.weight), h.nrows(), _rationals(layer.weight)) * h
            h = h + fmpq_mat(len(layer.bias), 1, _rationals(layer.bias))
            if layer.activation in ("relu", "leaky"):
                alpha = _rational(layer.alpha)
                h = fmpq_mat(len(layer.bias), 1, [v if v > 0 else alpha * v for v in h.entries()])
        return [Fraction(int(v.p), int(v.q)) for v in h.entries()]


def _rational(value: float) -> fmpq:
    return fmpq(*value.as_integer_ratio())


def _rationals(values: Floats) -> list[fmpq]:
    return [_rational(value) for value in values.ravel().tolist()]


# Activations


def image(layer: Layer, z: Box) -> Box:
    """The range of the layer's activation, which does not decrease, over a range of its input."""
    if layer.activation in ("relu", ""):
        return z if not layer.activation else Box(np.maximum(z.lower, 0.0), np.maximum(z.upper, 0.0))
    values = [[_value(layer, arb(v)) for v in side.tolist()] for side in (z.lower, z.upper)]
    return Box(np.array([below(v) for v in values[0]]), np.array([above(v) for v in values[1]]))


def _value(layer: Layer, z: arb) -> arb:
    match layer.activation:
        case "relu" | "leaky":
            least, most = (end if surely_less(ZERO, end) else end * arb(layer.alpha) for end in (z.lower(), z.upper()))
            return least.union(most)
        case "tanh":
            return z.tanh()
        case "sigmoid":
            return (1 + (z / 2).tanh()) / 2
        case _:
            return z


def steepest(layer: Layer, z: Box) -> list[arb]:
    """Upper bounds of the activation's slope over a range."""
    nearest = np.maximum(np.maximum(z.lower, -z.upper), 0.0).tolist()
    match layer.activation:
        case "relu" | "leaky":
            return [arb(1 if high > 0 else layer.alpha) for high in z.upper.tolist()]
        case "tanh":
            return [(1 - arb(v).tanh() ** 2).upper() for v in nearest]
        case "sigmoid":
            return [((1 - arb(v / 2).tanh() ** 2) / 4).upper() for v in nearest]
        case _:
            return [arb(1)] * len(nearest)


@dataclass(frozen=True, eq=False)
class Lines:
    """slope[0] z + offset[0] <= f(z) <= slope[1] z + offset[1] on a range; slopes (2, n) floats, offsets (n, 1)."""

    slopes: Floats
    offsets: tuple[arb_mat, arb_mat]


def lines(layer: Layer, z: Box, hints: Floats | None = None) -> Lines:
    """Lines below and above the activation over a range; `hints` (2, n): other slopes, any numbers."""
    slopes = _slopes(layer, z) if hints is None else hints
    offsets: tuple[list[arb | float], list[arb | float]] = ([], [])
    for low, high, below_, above_ in zip(z.lower.tolist(), z.upper.tolist(), *slopes.tolist(), strict=True):
        offsets[0].append(_least(layer, low, high, below_, -1))
        offsets[1].append(_least(layer, low, high, above_, 1))
    return Lines(slopes, (column(offsets[0]), column(offsets[1])))


Curve = Callable[[Floats], Floats]


def _slopes(layer: Layer, z: Box) -> Floats:
    """Good ones; nothing rests on that."""
    low, high = z.lower, z.upper
    if not layer.activation:
        return np.ones((2, len(low)))
    with np.errstate(all="ignore"):
        if layer.activation in ("relu", "leaky"):
            alpha = layer.alpha
            mixed = (low < 0) & (high > 0)
            chord = (high - alpha * low) / (high - low)
            sign = np.where(low >= 0, 1.0, alpha)
            found = np.stack([np.where(mixed, np.where(high >= -low, 1.0, alpha), sign), np.where(mixed, chord, sign)])
            return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)
        function, steep = _SMOOTH[layer.activation]
        above_ = _slopes_above(function, steep, low, high)
        found = np.stack([_slopes_above(function, steep, -high, -low), above_])  # f(-z) = 2 f(0) - f(z)
    return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)


def _slopes_above(function: Curve, steep: Curve, low: Floats, high: Floats) -> Floats:
    """Where f is convex the chord's, where it is concave that in the middle, else of the tangent through (l, f(l))."""
    chord = np.where(high > low, (function(high) - function(low)) / (high - low), steep(low))
    left, right = np.zeros_like(high), np.maximum(high, 0.0)
    for _ in range(24):
        at = (left + right) / 2
        early = steep(at) * (at - low) > function(at) - function(low)
        left, right = np.where(early, at, left), np.where(early, right, at)
    mixed = np.where(chord <= steep(high), chord, steep(right))
    return np.where(low >= 0, steep((low + high) / 2), np.where(high <= 0, chord, mixed))


def _tanh_slope(z: Floats) -> Floats:
    return 1 - np.tanh(z) ** 2


def _sigmoid(z: Floats) -> Floats:
    return (1 + np.tanh(z / 2)) / 2


_SMOOTH: dict[str, tuple[Curve, Curve]] = {
    "tanh": (np.tanh, _tanh_slope),
    "sigmoid": (_sigmoid, lambda z: _tanh_slope(z / 2) / 4),
}


def _least(layer: Layer, low: float, high: float, slope: float, sign: int) -> arb:
    """For sign = 1 an upper bound of max f(z) - slope z over [low, high], for -1 a lower bound of its minimum.

    The extremes are at the ends, at the kink, or where f' is the slope.
    """
    s, places = arb(slope), [arb(low), arb(high)]
    if layer.activation in ("relu", "leaky") and low < 0 < high:
        places.append(ZERO)
    if layer.activation in ("tanh", "sigmoid"):
        at = 1 - (s if layer.activation == "tanh" else 4 * s)  # tanh^2 at the place, or at half of it
        if surely_less(ZERO, at) and surely_less(at, arb(1)):
            place = at.sqrt().atanh() * (1 if layer.activation == "tanh" else 2)
            places += [p for p in (place, -place) if not (surely_less(p, places[0]) or surely_less(places[1], p))]
        elif not (surely_at_least(ZERO, at) or surely_at_least(at, arb(1))):
            return arb(sign) * arb.pos_inf()  # the place is not known: no line
    values = [_value(layer, p) - s * p for p in places]
    best, *others = [value.upper() if sign > 0 else value.lower() for value in values]
    for end in others:
        best = end if surely_less(best, end) == (sign > 0) else best
    return best if all(value.is_finite() for value in values) else sign * arb.pos_inf()


# Walks


@dataclass(eq=False)
class Noise:
    """Receives the rows (R, out) over z_k of every layer on the way back; see `tails`."""

    def charge(self, k: int, rows: Floats) -> None:
        """Nothing is charged here."""


@dataclass(eq=False)
class Ranges:
    """What is known of a chain over a box: ranges of z_k and h_k, and lines, layer by layer.

    hints : slopes (2, out) for some layers
    """

    chain: Chain
    box: Box
    hints: dict[int, Floats] = field(default_factory=dict)
    z: list[Box] = field(default_factory=list)
    lines: list[Lines] = field(default_factory=list)
    h: list[Box] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.h.append(self.box)

    def add(self, z: Box) -> None:
        """The range of the next layer's z."""
        k = len(self.z)
        layer = self.chain.layers[k]
        self.z.append(z)
        self.h.append(image(layer, z))
        self.lines.append(lines(layer, z, self.hints.get(k)))

    def next(self) -> Box:
        """The range of the next layer's z, from those in front of it: the better of intervals and walks."""
        k = len(self.z)
        found = self.chain.intervals(k, self.h[k])
        if k == 0 or not found.finite:
            return found
        size = len(found.lower)
        least = np.array([below(value) for value in self.walk(k, np.concatenate([np.eye(size), -np.eye(size)]))])
        return Box(np.maximum(found.lower, least[:size]), np.minimum(found.upper, -least[size:]))

    def folded(self, k: int, rows: Floats, inputs: Floats | None = None) -> list[arb]:
        """Lower bounds of rows over z_k, plus `inputs` over x, from the range of h_k alone."""
        exact = matrix(rows)
        wanted = self.chain.through(k, exact)
        a = middle(wanted)
        total = exact * self.chain.bias(k) + self.h[k].least(a) + (wanted - matrix(a)) * self.h[k].balls
        total = total if inputs is None else total + self.box.least(inputs)
        return [value.lower() if value.is_finite() else arb.neg_inf() for value in total.entries()]

    def walk(self, k: int, rows: Floats, inputs: Floats | None = None, noise: Noise | None = None) -> list[arb]:
        """Lower bounds of rows (R, out) over z_k, plus `inputs` (R, n) over x, for the mean weights."""
        a, exact, total = rows, matrix(rows), column([ZERO] * len(rows))
        for at in range(k, -1, -1):
            if noise is not None:
                noise.charge(at, a)
            total = total + exact * self.chain.bias(at)
            wanted = self.chain.through(at, exact)
            if at == 0 and inputs is not None:
                wanted = wanted + matrix(inputs)
            a = middle(wanted)
            total = total + (wanted - matrix(a)) * self.h[at].balls
            if at:
                a, paid = self._across(at - 1, a)
                exact, total = matrix(a), total + paid
        total = total + self.box.least(a)
        return [value.lower() if value.is_finite() else arb.neg_inf() for value in total.entries()]

    def _across(self, k: int, a: Floats) -> tuple[Floats, arb_mat]:
        """Rows over h_(k+1) as rows over z_k, and what is added to them (R, 1)."""
        found = self.lines[k]
        paid = matrix(np.minimum(a, 0.0)) * found.offsets[1]
        if not all(offset.is_zero() for offset in found.offsets[0].entries()):  # those below Relu are 0
            paid = paid + matrix(np.maximum(a, 0.0)) * found.offsets[0]
        slope = np.where(a >= 0, found.slopes[0], found.slopes[1])
        chosen = np.nan_to_num(a * slope, posinf=0.0, neginf=0.0)
        extra = _missed(a, slope, chosen, self.z[k].balls)
        return chosen, paid + extra


def _missed(a: Floats, slope: Floats, chosen: Floats, z: arb_mat) -> arb_mat:
    """(R, 1): sum_j (a_j slope_j - chosen_j) z_j, term by term where the slope is neither 0 nor 1."""
    total, balls = [ZERO] * len(a), z.entries()
    exact = ((slope == 0) & (chosen == 0)) | ((slope == 1) & (chosen == a)) | ((a == 0) & (chosen == 0))
    for r, j in np.argwhere(~exact).tolist():
        total[r] = total[r] + (arb(a[r, j]) * arb(slope[r, j]) - arb(chosen[r, j])) * balls[j]
    return column(total)


def reached(chain: Chain, box: Box) -> Ranges:
    """Ranges of all layers but the last of a chain without noise."""
    found = Ranges(chain, box)
    for k in range(len(chain) - 1):
        z = found.next()
        if not z.finite:
            raise RejectedError(f"the range of layer {k} is not finite")
        found.add(z)
    return found


def squares(rows: Floats) -> arb_mat:
    """Entries squared."""
    return entrywise(square, matrix(rows))
