"""Rows of a chain of layers, bounded from below over a box: the walk of docs/certificates.md.

Notation: layer k maps h_k to z_k = W_k h_k + b_k, and h_(k+1) = f_k(z_k); h_0 = x. A *row* is a linear function of z_k.

A walk takes rows from a layer back to the input, in balls. Coefficients A over h may be exchanged for any others: what
is missed, (A - A') h, is a row as well, and is paid for with the range of h. So radii do not grow from layer to layer.
An h_j that is 0 on its whole range counts for nothing, and walks leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from flint import arb, arb_mat, fmpq, fmpq_mat
from numpy.typing import NDArray

from bnn_vnnlib_check.balls import (
    HALF,
    ZERO,
    Floats,
    above,
    ball,
    below,
    column,
    entrywise,
    matrix,
    positive,
    square,
    surely_at_least,
    surely_less,
)
from bnn_vnnlib_check.errors import RejectedError
from bnn_vnnlib_check.model import Layer

KINKS = ("relu", "leaky")

Places = NDArray[np.int64]
"""Which numbers of a vector are meant, increasing."""


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

    def least(self, rows: arb_mat) -> arb_mat:
        """(R, 1): the least values of rows (R, n), at corners."""
        plus = entrywise(positive, rows)
        return plus * column(self.lower.tolist()) + (rows - plus) * column(self.upper.tolist())

    def part(self, places: Places) -> Box:
        """The box of some of the numbers."""
        return Box(self.lower[places], self.upper[places])

    @cached_property
    def largest(self) -> arb_mat:
        """(n, 1): max |z|, exact."""
        return column(np.maximum(np.abs(self.lower), np.abs(self.upper)).tolist())

    @cached_property
    def squares(self) -> arb_mat:
        """(n, 1): (max |z|)^2, which is (|middle| + radius)^2."""
        return entrywise(square, self.largest)


@dataclass(frozen=True, eq=False)
class Part:
    """A layer from some h_k, the places `live`, which lie in `h`, to some z_k: weight (None: the identity), bias, and
    their variances (None: no noise). box : R and r; by the box of the weights z is within R h + r of that of the means.
    """

    live: Places
    h: Box
    weight: arb_mat | None
    bias: arb_mat
    variances: tuple[arb_mat | None, arb_mat | None]
    box: tuple[arb_mat, arb_mat] | None


class Chain:
    """Layers with their matrices; the weights may be anywhere in a box, `margin` deviations around their means."""

    def __init__(self, layers: Sequence[Layer], margin: Fraction | None = None) -> None:
        self.layers, self._margin = tuple(layers), margin
        self._weights = [None if layer.weight is None else matrix(layer.weight) for layer in layers]
        self._sizes = [None if layer.weight is None else matrix(np.abs(layer.weight)) for layer in layers]
        self._radii: dict[int, list[Floats]] = {}

    def __len__(self) -> int:
        return len(self.layers)

    def random(self, k: int) -> bool:
        """Whether layer k or one in front of it has noise."""
        return any(layer.variances for layer in self.layers[: k + 1])

    def whole(self, k: int) -> bool:
        """Whether parts of layer k have to have all z_k: without a matrix, or a convolution with noise."""
        return k < len(self) and (self.layers[k].weight is None or self.layers[k].shared is not None)

    def part(self, k: int, h: Box, some: Places | None = None, live: Places | None = None) -> Part:
        """Layer k from these h_k to these z_k, or all; h : the range of all h_k."""
        layer, weight = self.layers[k], self._weights[k]
        some = np.arange(len(layer.bias)) if some is None else some
        live = np.arange(len(h.lower)) if live is None else live
        cut, noise = np.ix_(some, live), (layer.weight_variance, layer.bias_variance)
        if self._margin is not None and layer.variances and k not in self._radii:
            margin, shapes = ball(self._margin), ((len(layer.bias), len(h.lower)), (len(layer.bias),))
            floats = np.vectorize(lambda v: above(margin * arb(v).sqrt()), otypes=[np.float64])
            self._radii[k] = [np.zeros(n) if v is None else floats(v) for v, n in zip(noise, shapes, strict=True)]
        h, box = h.part(live), None
        if k in self._radii:
            radius, fixed = self._radii[k][0][cut], column(self._radii[k][1][some].tolist())
            sign = np.where(h.lower >= 0, 1.0, np.where(h.upper <= 0, -1.0, 0.0))
            box = matrix(radius * sign), matrix(radius * (sign == 0)) * h.largest + fixed
        if weight is not None and layer.weight is not None and (len(some), len(live)) != layer.weight.shape:
            weight = matrix(layer.weight[cut])
        variance = None if noise[0] is None or box is not None else matrix(noise[0][cut])
        variances = variance, None if noise[1] is None else column(noise[1][some].tolist())
        return Part(live, h, weight, column(layer.bias[some].tolist()), variances, box)

    def size(self, k: int, h: arb_mat) -> arb_mat:
        """|W_k| h, (out, 1), for numbers h >= 0, (in, 1)."""
        weight = self._sizes[k]
        return h if weight is None else weight * h

    def intervals(self, k: int, h: Box) -> Box:
        """The range of z_k by the range of h_k alone; no ball is as wide as a range, since radii have few digits."""
        part, reach = self.part(k, h), self.size(k, h.radius)
        box, z = part.box, (h.middle if part.weight is None else part.weight * h.middle) + part.bias
        if box is not None:
            reach = reach + box[0] * h.middle + entrywise(abs, box[0]) * h.radius + box[1]
        return Box(np.array([*map(below, (z - reach).entries())]), np.array([*map(above, (z + reach).entries())]))

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


def _rationals(values: Floats) -> list[fmpq]:
    return [fmpq(*value.as_integer_ratio()) for value in values.ravel().tolist()]


# Activations


CURVES = {"tanh": 1, "sigmoid": 2}
"""c of f(z) = (c - 1) / 2 + tanh(z / c) / c, whose slope is (1 - tanh(z / c)^2) / c^2."""


def image(layer: Layer, z: Box) -> Box:
    """The range of the layer's activation, which does not decrease, over a range of its input."""
    if layer.activation in ("", "relu"):
        return Box(np.maximum(z.lower, 0.0), np.maximum(z.upper, 0.0)) if layer.activation else z
    lower, upper = ([_value(layer, arb(v)) for v in side.tolist()] for side in (z.lower, z.upper))
    return Box(np.array([*map(below, lower)]), np.array([*map(above, upper)]))


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
    """slope[0] z + offset[0] <= f(z) <= slope[1] z + offset[1] on a range, at the places `bent`; f(z) = z elsewhere.
    Slopes (2, bent) are floats; offsets (bent, 1)."""

    bent: Places
    slopes: Floats
    offsets: tuple[arb_mat, arb_mat]


def lines(layer: Layer, z: Box, hints: Floats | None = None) -> Lines:
    """Lines below and above the activation over a range; `hints` (2, n): other slopes, any numbers."""
    slopes = _slopes(layer, z) if hints is None else hints
    same = (slopes == 1).all(0) & ((layer.activation == "") | ((layer.activation in KINKS) & (z.lower >= 0)))
    bent = np.flatnonzero(~same)
    slopes, z = slopes[:, bent], z.part(bent)
    offsets: tuple[list[arb | float], list[arb | float]] = ([], [])
    for low, high, below_, above_ in zip(z.lower.tolist(), z.upper.tolist(), *slopes.tolist(), strict=True):
        offsets[0].append(_least(layer, low, high, below_, -1))
        offsets[1].append(_least(layer, low, high, above_, 1))
    return Lines(bent, slopes, (column(offsets[0]), column(offsets[1])))


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


class Ranges:
    """What is known of a chain over a box, layer by layer: ranges of z_k and h_k, and lines with `hints` as slopes.

    live : which h_k count in walks: those that are not surely 0, or all where `whole`; only these have lines
    """

    def __init__(self, chain: Chain, box: Box, hints: Mapping[int, Floats] | None = None, whole: bool = False) -> None:
        self.chain, self.box, self.z, self.h, self._lines = chain, box, list[Box](), [box], list[Lines]()
        self._hints, self._whole, self._live = {} if hints is None else hints, whole, [np.arange(len(box.lower))]
        self._parts = dict[tuple[int, bytes], Part]()

    def add(self, z: Box) -> None:
        """Take over a range of the next layer's z, and all that follows from it."""
        k, layer, hints = len(self.z), self.chain.layers[len(self.z)], self._hints.get(len(self.z))
        h, whole = image(layer, z), self._whole or any(self.chain.whole(j) for j in (k, k + 1))
        live = np.flatnonzero((h.lower != 0) | (h.upper != 0) | whole)
        self.z.append(z)
        self.h.append(h)
        self._live.append(live)
        self._lines.append(lines(layer, z.part(live), None if hints is None else hints[:, live]))

    def next(self) -> Box:
        """The range of the next layer's z, from those in front of it: the better of intervals and walks."""
        k = len(self.z)
        found = self.chain.intervals(k, self.h[k])
        if not (np.isfinite(found.lower).all() and np.isfinite(found.upper).all()):
            raise RejectedError(f"the range of layer {k} is not finite")
        if k == 0:
            return found
        dead = (self.chain.layers[k].activation == "relu") & (found.upper <= 0)  # 0 follows, whatever z is
        rows = np.eye(len(dead))[~dead]
        least = np.array([below(value) for value in self.walk(k, np.concatenate([rows, -rows]))])
        found.lower[~dead] = np.maximum(found.lower[~dead], least[: len(rows)])
        found.upper[~dead] = np.minimum(found.upper[~dead], -least[len(rows) :])
        return found

    def walk(
        self, k: int, rows: Floats, inputs: arb_mat | None = None,
        charge: Callable[[int, arb_mat, Part], None] | None = None, less: Mapping[int, Floats] | None = None,
        folded: bool = False,
    ) -> list[arb]:  # fmt: skip
        """Lower bounds of rows (R, out) over z_k, plus `inputs` (R, n) over x, less the rows `less` over some z_j;
        `folded`: from the range of h_k alone. `charge` is told of each layer's part, and of the rows over its z."""
        some = np.flatnonzero(rows.any(0) | self.chain.whole(k))
        a, total = matrix(rows[:, some]), column([ZERO] * len(rows))
        for at in range(k, -1, -1):
            key, live = (at, some.tobytes()), self._live[at]
            part = self._parts.get(key) or self.chain.part(at, self.h[at], some, live)
            self._parts[key] = part
            if charge is not None:
                charge(at, a, part)
            wanted, total = a if part.weight is None else a * part.weight, total + a * part.bias
            if part.box is not None:
                sizes = entrywise(abs, a)
                wanted, total = wanted - sizes * part.box[0], total - sizes * part.box[1]
            if folded:
                a, total = arb_mat(len(rows), len(self.box.lower)), total + part.h.least(wanted)
                break
            a, some = wanted.mid(), live
            total = total + (wanted - a) * part.h.balls
            if at:
                a, paid = self._across(at - 1, a)
                total = total + paid
                a = a - matrix(less[at - 1]) if less and at - 1 in less else a
        total = total + self.box.least(a if inputs is None else a + inputs)
        return [value.lower() if value.is_finite() else arb.neg_inf() for value in total.entries()]

    def signed(self, chain: Chain, signs: Floats, slopes: Floats) -> Ranges | None:
        """These ranges in a chain that goes on behind their own, with signs (0: unknown) of the inputs of Relu and
        LeakyRelu and slopes of the lines below, in one vector each. None where no x has these signs."""
        start, hints = 0, dict[int, Floats]()
        found = Ranges(chain, self.box, hints, whole=True)
        for k, (layer, z) in enumerate(zip(self.chain.layers, self.z, strict=True)):
            if layer.activation in KINKS:
                here = slice(start, start + len(z.lower))
                low = np.where(signs[here] > 0, np.maximum(z.lower, 0.0), z.lower)
                high = np.where(signs[here] < 0, np.minimum(z.upper, 0.0), z.upper)
                if (low > high).any():
                    return None
                start, z = here.stop, Box(low, high)
                usual = _slopes(layer, z)
                hints[k] = np.stack([np.where((low < 0) & (high > 0), slopes[here], usual[0]), usual[1]])
            found.add(z)
        return found

    def _across(self, k: int, a: arb_mat) -> tuple[arb_mat, arb_mat]:
        """Rows over the live h_(k+1) as rows over their z_k, and what is added to them (R, 1)."""
        found, rows = self._lines[k], arb_mat(a)
        plus, minus = (arb_mat(a.nrows(), len(found.bent)) for _ in range(2))
        for i, (j, low, high) in enumerate(zip(found.bent.tolist(), *found.slopes.tolist(), strict=True)):
            slopes = arb(low), arb(high)
            for r in range(a.nrows()):  # p f by the line below, as p >= 0, and (a - p) f by that above, as a <= p
                p = positive(a[r, j])
                plus[r, i], minus[r, i] = p, a[r, j] - p
                rows[r, j] = p * slopes[0] + (a[r, j] - p) * slopes[1]
        return rows, plus * found.offsets[0] + minus * found.offsets[1]


def reached(chain: Chain, box: Box, count: int) -> Ranges:
    """Ranges of the first layers of a chain without noise."""
    found = Ranges(chain, box)
    for _ in range(count):
        found.add(found.next())
    return found
