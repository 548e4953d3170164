"""Rows of a chain of layers, bounded from below over a box: the walk of docs/certificates.md.

Notation: layer k maps h_k to z_k = W_k h_k + b_k, and h_(k+1) = f_k(z_k); h_0 = x. A *row* is a linear function of z_k.

A walk takes rows from a layer back to the input. Its coefficients are floats that may be chosen at will: what a choice
misses, (A - A') h, is a row as well, and is paid for with the range of h. So no coefficient is ever a ball, its sign is
known, and rounding of floats decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from flint import arb, arb_mat, fmpq, fmpq_mat

from bnn_vnnlib_check.balls import (
    HALF,
    ZERO,
    Floats,
    above,
    ball,
    below,
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

KINKS = ("relu", "leaky")


@dataclass(frozen=True, eq=False)
class Box:
    """All z with lower <= z <= upper; floats, exact."""

    lower: Floats
    upper: Floats

    @cached_property
    def balls(self) -> arb_mat:
        """Balls (n, 1), each of which contains its interval."""
        return column(arb(a).union(arb(b)) for a, b in zip(self.lower.tolist(), self.upper.tolist(), strict=True))

    @cached_property
    def middle(self) -> arb_mat:
        """The middles of the intervals, (n, 1)."""
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

    @cached_property
    def squares(self) -> arb_mat:
        """(n, 1): (max |z|)^2, which is (|middle| + radius)^2."""
        return entrywise(square, self.largest)


class Chain:
    """Layers with their matrices; the weights may be anywhere in a box, `margin` deviations around their means."""

    def __init__(self, layers: Sequence[Layer], margin: Fraction | None = None) -> None:
        self.layers, self._margin = tuple(layers), margin
        self._weights = [None if layer.weight is None else matrix(layer.weight) for layer in layers]
        self._sizes = [None if layer.weight is None else matrix(np.abs(layer.weight)) for layer in layers]
        self.biases = [column(layer.bias.tolist()) for layer in layers]
        self._radii: dict[int, list[Floats]] = {}

    def __len__(self) -> int:
        return len(self.layers)

    def random(self, k: int) -> bool:
        """Whether layer k or one in front of it has noise."""
        return any(layer.variances for layer in self.layers[: k + 1])

    def boxed(self, k: int, h: Box) -> tuple[arb_mat, arb_mat] | None:
        """R (out, in) and r (out, 1): by the box of the weights z_k is within R h + r of that of the means; or None."""
        layer = self.layers[k]
        if self._margin is None or not layer.variances:
            return None
        if k not in self._radii:
            parts = layer.weight_variance, layer.bias_variance
            shapes = (len(layer.bias), len(h.lower)), (len(layer.bias), 1)
            found = [np.zeros(shape) if part is None else part for part, shape in zip(parts, shapes, strict=True)]
            self._radii[k] = [_radii(ball(self._margin), part) for part in found]
        sign, (radius, fixed) = np.where(h.lower >= 0, 1.0, np.where(h.upper <= 0, -1.0, 0.0)), self._radii[k]
        return matrix(radius * sign), matrix(radius * (sign == 0)) * h.largest + column(fixed.ravel().tolist())

    def through(self, k: int, rows: arb_mat) -> arb_mat:
        """Rows over z_k, as rows over h_k."""
        weight = self._weights[k]
        return rows if weight is None else rows * weight

    def size(self, k: int, h: arb_mat) -> arb_mat:
        """|W_k| h, (out, 1), for numbers h >= 0, (in, 1)."""
        weight = self._sizes[k]
        return h if weight is None else weight * h

    def intervals(self, k: int, h: Box) -> Box:
        """The range of z_k by the range of h_k alone; no ball is as wide as a range, since radii have few digits."""
        weight, reach, box = self._weights[k], self.size(k, h.radius), self.boxed(k, h)
        if box is not None:
            reach = reach + box[0] * h.middle + entrywise(abs, box[0]) * h.radius + box[1]
        z = (h.middle if weight is None else weight * h.middle) + self.biases[k]
        return Box(ends((z - reach).entries())[0], ends((z + reach).entries())[1])

    def at(self, x: Sequence[Fraction]) -> list[Fraction]:
        """The outputs at x, exactly; of a chain whose activations have rational values."""
        h = fmpq_mat(len(x), 1, [fmpq(v.numerator, v.denominator) for v in x])
        for layer in self.layers:
            if layer.weight is not None:
                h = fmpq_mat(len(layer.weight), h.nrows(), _rationals(layer.weight)) * h
            h = h + fmpq_mat(len(layer.bias), 1, _rationals(layer.bias))
            if layer.activation in KINKS:
                (alpha,) = _rationals(np.array([layer.alpha]))
                h = fmpq_mat(len(layer.bias), 1, [v if v > 0 else alpha * v for v in h.entries()])
        return [Fraction(int(v.p), int(v.q)) for v in h.entries()]

    @property
    def rational(self) -> bool:
        """Whether rational inputs have rational outputs."""
        return all(layer.activation in ("", *KINKS) for layer in self.layers)


def _radii(margin: arb, variances: Floats) -> Floats:
    """Floats above the margin times the standard deviations."""
    return np.array([above(margin * arb(v).sqrt()) for v in variances.ravel().tolist()]).reshape(variances.shape)


def _rationals(values: Floats) -> list[fmpq]:
    return [fmpq(*value.as_integer_ratio()) for value in values.ravel().tolist()]


# Activations


CURVES = {"tanh": 1, "sigmoid": 2}
"""c of f(z) = (c - 1) / 2 + tanh(z / c) / c, whose slope is (1 - tanh(z / c)^2) / c^2."""


def image(layer: Layer, z: Box) -> Box:
    """The range of the layer's activation, which does not decrease, over a range of its input."""
    if layer.activation in ("", "relu"):
        return Box(np.maximum(z.lower, 0.0), np.maximum(z.upper, 0.0)) if layer.activation else z
    values = [[_value(layer, arb(v)) for v in side.tolist()] for side in (z.lower, z.upper)]
    return Box(ends(values[0])[0], ends(values[1])[1])


def _value(layer: Layer, z: arb) -> arb:
    if layer.activation in KINKS:
        least, most = (end if surely_less(ZERO, end) else end * arb(layer.alpha) for end in (z.lower(), z.upper()))
        return least.union(most)
    c = CURVES.get(layer.activation)
    return z if c is None else HALF * (c - 1) + (z / c).tanh() / c


def steepest(layer: Layer, z: Box) -> list[arb]:
    """Upper bounds of the activation's slope over a range."""
    if layer.activation in KINKS:
        return [arb(1 if high > 0 else layer.alpha) for high in z.upper.tolist()]
    c, nearest = CURVES.get(layer.activation), np.maximum(np.maximum(z.lower, -z.upper), 0.0).tolist()
    return [arb(1) if c is None else ((1 - (arb(v) / c).tanh() ** 2) / c**2).upper() for v in nearest]


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


def _slopes(layer: Layer, z: Box) -> Floats:
    """Slopes (2, n) of good lines below and above; nothing rests on them."""
    low, high = z.lower, z.upper
    if not layer.activation:
        return np.ones((2, len(low)))
    with np.errstate(all="ignore"):
        if layer.activation in KINKS:
            alpha = layer.alpha
            mixed = (low < 0) & (high > 0)
            chord = (high - alpha * low) / (high - low)
            sign = np.where(low >= 0, 1.0, alpha)
            found = np.stack([np.where(mixed, np.where(high >= -low, 1.0, alpha), sign), np.where(mixed, chord, sign)])
            return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)
        c = CURVES[layer.activation]
        found = np.stack([_slopes_above(c, -high, -low), _slopes_above(c, low, high)])  # f(-z) = 2 f(0) - f(z)
    return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)


def _slopes_above(c: int, low: Floats, high: Floats) -> Floats:
    """Slopes of lines above f on [low, high]: its chord's if convex, its middle's if concave, else a tangent's."""

    def steep(z: Floats) -> Floats:
        return (1 - np.tanh(z / c) ** 2) / c**2

    def rise(z: Floats) -> Floats:
        return (np.tanh(z / c) - np.tanh(low / c)) / c

    chord = np.where(high > low, rise(high) / (high - low), steep(low))
    left, right = np.zeros_like(high), np.maximum(high, 0.0)
    for _ in range(24):
        at = (left + right) / 2
        early = steep(at) * (at - low) > rise(at)
        left, right = np.where(early, at, left), np.where(early, right, at)
    mixed = np.where(chord <= steep(high), chord, steep(right))
    return np.where(low >= 0, steep((low + high) / 2), np.where(high <= 0, chord, mixed))


def _least(layer: Layer, low: float, high: float, slope: float, sign: int) -> arb:
    """For sign = 1 an upper bound of max f(z) - slope z over [low, high], for sign = -1 a lower bound of its minimum.
    The extremes are at the ends, at the kink, or where f' is the slope.
    """
    s, places = arb(slope), [arb(low), arb(high)]
    if layer.activation in KINKS and low < 0 < high:
        places.append(ZERO)
    if layer.activation in CURVES:
        c = CURVES[layer.activation]
        at = 1 - s * c**2  # tanh(z / c)^2 at the place
        if surely_less(ZERO, at) and surely_less(at, arb(1)):
            place = at.sqrt().atanh() * c
            places += [p for p in (place, -place) if not (surely_less(p, places[0]) or surely_less(places[1], p))]
        elif not (surely_at_least(ZERO, at) or surely_at_least(at, arb(1))):
            return arb(sign) * arb.pos_inf()  # the place is not known: no line
    values = [_value(layer, p) - s * p for p in places]
    best, *others = [value.upper() if sign > 0 else value.lower() for value in values]
    for end in others:
        best = end if surely_less(best, end) == (sign > 0) else best
    return best if all(value.is_finite() for value in values) else sign * arb.pos_inf()


# Walks


Charge = Callable[[int, Floats], None]
"""Is told of the rows over z_k of every layer that a walk passes."""


@dataclass(eq=False)
class Ranges:
    """What is known of a chain over a box, layer by layer: ranges of z_k and h_k, and lines with `hints` as slopes."""

    chain: Chain
    box: Box
    hints: dict[int, Floats] = field(default_factory=dict)
    z: list[Box] = field(default_factory=list)
    lines: list[Lines] = field(default_factory=list)
    h: list[Box] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.h.append(self.box)

    def add(self, z: Box) -> None:
        """Take over a range of the next layer's z, and all that follows from it."""
        k = len(self.z)
        layer = self.chain.layers[k]
        self.z.append(z)
        self.h.append(image(layer, z))
        self.lines.append(lines(layer, z, self.hints.get(k)))

    def next(self) -> Box:
        """The range of the next layer's z, from those in front of it: the better of intervals and walks."""
        k = len(self.z)
        found = self.chain.intervals(k, self.h[k])
        if not (np.isfinite(found.lower).all() and np.isfinite(found.upper).all()):
            raise RejectedError(f"the range of layer {k} is not finite")
        if k == 0:
            return found
        size = len(found.lower)
        least = np.array([below(value) for value in self.walk(k, np.concatenate([np.eye(size), -np.eye(size)]))])
        return Box(np.maximum(found.lower, least[:size]), np.minimum(found.upper, -least[size:]))

    def folded(self, k: int, rows: Floats, inputs: arb_mat | None = None, charge: Charge | None = None) -> list[arb]:
        """Lower bounds of rows over z_k, plus `inputs` over x, from the range of h_k alone."""
        if charge is not None:
            charge(k, rows)
        exact = matrix(rows)
        wanted, total = self._back(k, exact)
        a = middle(wanted)
        total = total + self.h[k].least(a) + (wanted - matrix(a)) * self.h[k].balls
        if inputs is not None:
            g = middle(inputs)
            total = total + self.box.least(g) + (inputs - matrix(g)) * self.box.balls
        return [value.lower() if value.is_finite() else arb.neg_inf() for value in total.entries()]

    def walk(
        self, k: int, rows: Floats, inputs: arb_mat | None = None, charge: Charge | None = None,
        less: Mapping[int, arb_mat] | None = None,
    ) -> list[arb]:  # fmt: skip
        """Lower bounds of rows (R, out) over z_k, plus `inputs` (R, n) over x, less the rows `less` over some z_j."""
        a, exact, total = rows, matrix(rows), column([ZERO] * len(rows))
        for at in range(k, -1, -1):
            if charge is not None:
                charge(at, a)
            wanted, added = self._back(at, exact)
            if at == 0 and inputs is not None:
                wanted = wanted + inputs
            a = middle(wanted)
            total = total + added + (wanted - matrix(a)) * self.h[at].balls
            if at:
                a, paid = self._across(at - 1, a)
                exact, total = matrix(a), total + paid
                exact = exact - less[at - 1] if less and at - 1 in less else exact
        total = total + self.box.least(a)
        return [value.lower() if value.is_finite() else arb.neg_inf() for value in total.entries()]

    def _back(self, k: int, rows: arb_mat) -> tuple[arb_mat, arb_mat]:
        """Rows over z_k as rows over h_k and numbers (R, 1); below what any weights of the box give."""
        wanted, added, box = self.chain.through(k, rows), rows * self.chain.biases[k], self.chain.boxed(k, self.h[k])
        if box is None:
            return wanted, added
        sizes = entrywise(abs, rows)
        return wanted - sizes * box[0], added - sizes * box[1]

    def signed(self, chain: Chain, signs: Floats, slopes: Floats) -> Ranges | None:
        """These ranges in a chain that goes on behind their own, with signs (0: unknown) of the inputs of Relu and
        LeakyRelu and slopes of the lines below, in one vector each. None where no x has these signs."""
        found, start = Ranges(chain, self.box), 0
        for k, (layer, z) in enumerate(zip(self.chain.layers, self.z, strict=True)):
            if layer.activation in KINKS:
                here = slice(start, start + len(z.lower))
                low = np.where(signs[here] > 0, np.maximum(z.lower, 0.0), z.lower)
                high = np.where(signs[here] < 0, np.minimum(z.upper, 0.0), z.upper)
                if (low > high).any():
                    return None
                start, z = here.stop, Box(low, high)
                usual = _slopes(layer, z)
                found.hints[k] = np.stack([np.where((low < 0) & (high > 0), slopes[here], usual[0]), usual[1]])
            found.add(z)
        return found

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


def reached(chain: Chain, box: Box, count: int) -> Ranges:
    """Ranges of the first layers of a chain without noise."""
    found = Ranges(chain, box)
    for _ in range(count):
        found.add(found.next())
    return found
