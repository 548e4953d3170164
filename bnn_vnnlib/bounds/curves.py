"""Lines and ranges for functions that are convex or concave piece by piece, and the activations that are such curves.

A function is given as pieces [start, end] on each of which it is convex or concave (or linear, which is both). For a
slope s the intercept of a lower line is a lower bound on g(z) = f(z) - s z over [l, u], that is, the least one over the
pieces. On a piece clipped to [a, b]

- where g is concave it is least at a or b;
- where g is convex, bisection on the sign of g' gives a <= c1 <= c2 <= b with g'(c1) <= 0 unless c1 = a, and
  g'(c2) > 0 unless c2 = b. A convex function lies above its tangents: in front of c1 g >= g(c1), behind c2
  g >= g(c2), and between them g >= g(c1) + min(g'(c1), 0) (c2 - c1). The least of the three is the bound; how far the
  bisection got matters for tightness only.

Upper lines are lower lines of -f, the range of a function that is not monotone is the case s = 0. Everything computed
is paid for: f and f' with the errors that the piece declares, sums and products with a few units of roundoff; where
a piece ends at an irrational inflection point, f has the wrong curvature for at most `edge`, which is paid for
with the Lipschitz constant there.
The slopes themselves are guessed: the line that is best in the middle of [l, u] for 17 samples of f.

The second half states the pieces, inflection points and errors of computation of every activation in `CURVES`. Every
piece says where its function is convex or concave; the proofs are in the docstrings. Inflection points that are no
float64 numbers were computed with 50 digits and carry `steepest`, a bound on |f'| near them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bnn_vnnlib.network.evaluate import CUBIC, FUNCTIONS, ROOT, gelu_tanh, like, limits, softplus
from bnn_vnnlib.rounding import ELEMENTARY, TINY, UNIT, down, up

_Function = Callable[[Tensor], Tensor]
_HALVINGS, _SAMPLES = 24, 8
_EDGE = 2.0**-50
"""Relative error of an inflection point that was computed."""


@dataclass(frozen=True, eq=False)
class _Line:
    """slope z + level."""

    slope: Tensor
    level: Tensor


@dataclass(frozen=True, eq=False)
class Lines:
    """lower_slope z + lower_intercept <= f(z) <= upper_slope z + upper_intercept for all z in [l, u]."""

    lower_slope: Tensor
    lower_intercept: Tensor
    upper_slope: Tensor
    upper_intercept: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Slope and intercept of the lower line, then of the upper one."""
        return self.lower_slope, self.lower_intercept, self.upper_slope, self.upper_intercept

    @cached_property
    def middle(self) -> _Line:
        """Half the sum of both lines."""
        slopes, levels = (self.lower_slope, self.upper_slope), (self.lower_intercept, self.upper_intercept)
        return _Line(torch.lerp(*slopes, 0.5), torch.lerp(*levels, 0.5))

    @cached_property
    def half(self) -> _Line:
        """Half the difference, the upper line less the lower one."""
        return _Line((self.upper_slope - self.lower_slope) / 2, (self.upper_intercept - self.lower_intercept) / 2)


@dataclass(frozen=True, eq=False)
class Piece:
    """f on [start, end], a number or a tensor each.

    Attributes
    ----------
    bend : +1 convex, -1 concave, 0 linear; or a tensor of +1 and -1
    relative, absolute : |error of the computed f| <= relative |f| + absolute
    derivative_error : the same absolute error of the computed derivative (its relative error is `relative`)
    steepest : Lipschitz constant of f near an end that is known up to EDGE only; 0 where the ends are exact
    """

    value: _Function
    derivative: _Function
    bend: int | Tensor = 0
    start: float | Tensor = -torch.inf
    end: float | Tensor = torch.inf
    relative: float = ELEMENTARY
    absolute: float = TINY
    derivative_error: float = TINY
    steepest: float = 0.0

    def negated(self) -> Piece:
        """The piece of -f, which bends the other way."""
        value, derivative = self.value, self.derivative
        return replace(self, value=lambda z: -value(z), derivative=lambda z: -derivative(z), bend=-self.bend)

    def least(self, slope: Tensor | None, lower: Tensor, upper: Tensor) -> Tensor | None:
        """Lower bound on f(z) - slope z over the part of [lower, upper] in this piece, +inf where there is none.

        slope None is 0; returns None where no interval reaches the piece.
        """
        start, end = (torch.as_tensor(side, dtype=lower.dtype, device=lower.device) for side in (self.start, self.end))
        reached = (lower <= end) & (upper >= start)
        if not bool(reached.any()):
            return None
        a, b = (torch.minimum(torch.maximum(z, start), end) for z in (lower, upper))
        ends = self._below(slope, a)
        if lower is not upper:
            ends = torch.minimum(ends, self._below(slope, b))
        if lower is not upper and (isinstance(self.bend, Tensor) or self.bend > 0):
            bottom = self._bottom(slope, a, b)
            ends = torch.where(self.bend > 0, bottom, ends) if isinstance(self.bend, Tensor) else bottom
        if self.steepest:
            finite = torch.maximum(*(side.abs().nan_to_num(0.0, 0.0) for side in (start, end)))
            inclined = self.steepest if slope is None else self.steepest + slope.abs()
            # f' differs by EDGE^2 times the third derivative (below 4 here) between the true and the computed end
            ends = ends - _EDGE * finite * (2 * inclined + 4 * _EDGE * finite * (b - a)) - 2 * UNIT * ends.abs()
        return torch.where(reached, ends, torch.inf)

    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of f' over the part of [lower, upper] in this piece, (inf, -inf) where there is none.

        f' is monotone on the piece, so it is extreme at the ends. Where an end is an inflection point that is known up
        to e = EDGE |end| only, f' is monotone from the true one on, and between the two |f''| < 4 e, so that f'
        differs by less than 4 e^2.
        """
        start, end = (torch.as_tensor(side, dtype=lower.dtype, device=lower.device) for side in (self.start, self.end))
        a, b = (torch.minimum(torch.maximum(z, start), end) for z in (lower, upper))
        ends = torch.stack([self.derivative(a), self.derivative(b)])
        paid = (self.relative + 4 * UNIT) * ends.abs() + self.derivative_error
        if self.steepest:
            finite = torch.maximum(*(side.abs().nan_to_num(0.0, 0.0) for side in (start, end)))
            paid = paid + 4 * (_EDGE * finite) ** 2 + UNIT * ends.abs()
        paid = torch.where(torch.isfinite(ends), paid, 0.0)
        least, most = (ends - paid).amin(0), (ends + paid).amax(0)
        reached = (lower <= end) & (upper >= start)
        return torch.where(reached, least, torch.inf), torch.where(reached, most, -torch.inf)

    def _below(self, slope: Tensor | None, z: Tensor) -> Tensor:
        """g(z), lowered by its own error."""
        f = self.value(z)
        if slope is None:
            return f - ((self.relative + 8 * UNIT) * f.abs() + self.absolute + TINY)
        product = (slope * z).masked_fill(slope == 0, 0.0)  # also for infinite z
        return f - product - ((self.relative + 8 * UNIT) * f.abs() + self.absolute + 8 * UNIT * product.abs() + TINY)

    def _bottom(self, slope: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        """Lower bound on a convex g over [a, b]; see the module."""
        s: Tensor | float = 0.0 if slope is None else slope.detach()
        left, right = a, b
        for _ in range(_HALVINGS):
            middle = left / 2 + right / 2
            falling = self.derivative(middle) <= s
            left, right = torch.where(falling, middle, left), torch.where(falling, right, middle)
        descent, ascent = self.derivative(left), self.derivative(right)
        wrong = self.relative * (descent.abs() + ascent.abs()) + 2 * self.derivative_error
        wrong = wrong + 4 * UNIT * ((descent - s).abs() + (ascent - s).abs()) + TINY
        drop = ((descent - s).clamp(max=0) * (right - left)).detach()
        paid = ((1 + 32 * UNIT) * wrong * (b - a) - 8 * UNIT * drop + TINY).detach()
        # on an interval without width an infinite derivative costs nothing
        drop, paid = (torch.where(a == b, torch.zeros_like(a), part) for part in (drop, paid))
        return torch.minimum(self._below(slope, left) + drop, self._below(slope, right)) - paid


_Pieces = Callable[[Any, Tensor, Tensor], Sequence[Piece]]


@dataclass(frozen=True, eq=False)
class Curve:
    """An activation given by its pieces.

    Attributes
    ----------
    function : f(alpha, z) in float64, differentiable
    pieces : those of alpha for intervals [l, u]; they cover the domain
    rising : +1 or -1 for a monotone function, else 0
    least, greatest : bounds of f on its whole domain
    defined : whether f is defined on all of [l, u]; where it is not, nothing is claimed
    steepest : Lipschitz constant on the whole domain
    """

    function: Callable[[Any, Tensor], Tensor]
    pieces: _Pieces
    rising: int = 0
    least: float = -torch.inf
    greatest: float = torch.inf
    defined: Callable[[Tensor, Tensor], Tensor] = torch.le
    steepest: float = math.inf

    def range(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """At the ends for monotone functions, else over the pieces."""
        if self.rising:
            ends = (lower, upper) if self.rising > 0 else (upper, lower)
            low, high = (self._extreme(alpha, None, z, z, sign) for z, sign in zip(ends, (1, -1), strict=True))
        else:
            low, high = (self._extreme(alpha, None, lower, upper, sign) for sign in (1, -1))
        defined = self.defined(lower, upper)
        return (
            torch.where(defined, low.clamp(self.least, self.greatest), -torch.inf),
            torch.where(defined, high.clamp(self.least, self.greatest), torch.inf),
        )

    def lines(self, alpha: Any, lower: Tensor, upper: Tensor, choice: Tensor | None = None) -> Lines:
        """The choice moves the slopes by up to half of what f' varies by."""
        defined = self.defined(lower, upper)
        low, high = (torch.where(defined, side, torch.ones_like(side)) for side in (lower, upper))
        below, above, spread = self._guesses(alpha, low, high)
        if choice is not None:
            below, above = (s + (2 * c.clamp(0, 1) - 1) * spread for c, s in zip(choice, (below, above), strict=True))
        zero = torch.zeros_like(lower)
        below, above = torch.where(defined, below, zero), torch.where(defined, above, zero)
        return Lines(
            below, torch.where(defined, self._extreme(alpha, below, low, high, 1), -torch.inf),
            above, torch.where(defined, self._extreme(alpha, above, low, high, -1), torch.inf),
        )  # fmt: skip

    def slopes(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the slopes of all chords over [l, u]: those of f', by pieces."""
        found = [piece.slopes(lower, upper) for piece in self.pieces(alpha, lower, upper)]
        least, most = torch.stack([low for low, _ in found]).amin(0), torch.stack([high for _, high in found]).amax(0)
        # an overflow shows that f' is at least, or at most, the largest number
        least, most = least.nan_to_num(-torch.inf, None, -torch.inf), most.nan_to_num(torch.inf, torch.inf, None)
        least = least.clamp(min=0.0 if self.rising > 0 else -self.steepest)
        most = most.clamp(max=0.0 if self.rising < 0 else self.steepest)
        defined = self.defined(lower, upper)
        return torch.where(defined, least, -self.steepest), torch.where(defined, most, self.steepest)

    def _extreme(self, alpha: Any, slope: Tensor | None, lower: Tensor, upper: Tensor, sign: int) -> Tensor:
        """Lower (sign 1) or upper (-1) bound on f(z) - slope z; undefined where the interval is."""
        pieces = self.pieces(alpha, lower, upper)
        if sign < 0:
            pieces, slope = [piece.negated() for piece in pieces], None if slope is None else -slope
        found = [part for piece in pieces if (part := piece.least(slope, lower, upper)) is not None]
        if not found:
            return torch.full_like(lower, torch.nan)
        known = lower <= upper
        for part in found:  # no claim rests on a piece that could not be computed
            known = known & ~part.isnan()
        return sign * torch.where(known, torch.stack(found).amin(0), torch.nan)

    def _guesses(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Slopes below and above, and half of what the slope varies by: no proof rests on them."""
        with torch.no_grad():
            step = (upper / 2 - lower / 2) / _SAMPLES
            middle = lower / 2 + upper / 2
            z = torch.stack([middle + i * step for i in range(-_SAMPLES, _SAMPLES + 1)])
            f = self.function(alpha, torch.minimum(torch.maximum(z, lower), upper))
            steep = (f[1:] - f[:-1]) / step
            left, right = f[:_SAMPLES].flip(0), f[_SAMPLES + 1 :]
            # tangent in the middle, by a difference so narrow that only rounding matters less
            tiny = step * 1e-3
            tangent = (self.function(alpha, middle + tiny) - self.function(alpha, middle - tiny)) / (2 * tiny)
            best = [f[_SAMPLES], f[_SAMPLES]]
            slopes = [tangent, tangent]
            weight = torch.arange(1, _SAMPLES + 1, dtype=lower.dtype, device=lower.device)
            weight = weight.reshape(-1, *(1,) * lower.dim())
            for i in range(_SAMPLES):
                height = (weight * left[i] + (i + 1) * right) / (weight + (i + 1))
                slope = (right - left[i]) / ((weight + (i + 1)) * step)
                for side, (extreme, at) in enumerate((height.min(0), height.max(0))):
                    better = extreme < best[0] if side == 0 else extreme > best[1]
                    best[side] = torch.where(better, extreme, best[side])
                    slopes[side] = torch.where(better, slope.gather(0, at[None])[0], slopes[side])
            spread = (steep.amax(0) - steep.amin(0)) / 2
            below, above, spread = (s.nan_to_num(0.0, 0.0, 0.0) for s in (*slopes, spread))
            return below, above, spread


_INF = math.inf
_SILU = 2.3993572805154677
"""z tanh(z / 2) = 2; the left side grows with |z|, so that silu'' = sigmoid' (2 - z tanh(z / 2)) has no more roots."""
_SILU_LEAST = -0.27846454276107384
_GELU_TANH_LEAST = -0.17004075057125412
_GATED = 1.13
"""Bound on all slopes of silu, gelu and gelu_tanh, whose largest are 1.0998, 1.1290 and 1.1290."""
_GELU_TANH = 1.4185040087908284
"""The only positive root of gelu_tanh'': with T = tanh u, u = k (z + c z^3) it solves
(1 + 6 c z^2) / (1 + 3 c z^2)^2 = k z T(u), the left side of which falls and the right side of which grows."""
_FAR = 1e5
"""Beyond it sine and cosine are only known to lie in [-1, 1]."""


def _fixed(*pieces: Piece) -> Callable[[Any, Tensor, Tensor], Sequence[Piece]]:
    return lambda alpha, lower, upper: pieces


def _ones(z: Tensor) -> Tensor:
    return torch.ones_like(z)


def _same(z: Tensor) -> Tensor:
    return z


def _flat(z: Tensor) -> Tensor:
    return torch.zeros_like(z)


# piecewise linear --------------------------------------------------------------------------------------------------


def _clip_pieces(alpha: Any, lower: Tensor, upper: Tensor) -> list[Piece]:
    """min(max(z, low), high): constant, z, constant."""
    low, high = limits(alpha)
    pieces = [Piece(_same, _ones, 0, low, high, relative=0.0, absolute=0.0)]
    if low > -_INF:
        pieces.append(Piece(lambda z: torch.full_like(z, low), _flat, 0, -_INF, low, relative=0.0, absolute=0.0))
    if high < _INF:
        pieces.append(Piece(lambda z: torch.full_like(z, high), _flat, 0, high, _INF, relative=0.0, absolute=0.0))
    return pieces


def _prelu_pieces(alpha: Any, lower: Tensor, upper: Tensor) -> list[Piece]:
    """alpha z for z <= 0, z for z >= 0; alpha is a number or an array that broadcasts to the node."""
    slope = like(alpha, lower)
    return [Piece(lambda z: slope * z, lambda z: slope.expand_as(z), 0, -_INF, 0.0), Piece(_same, _ones, 0, 0.0, _INF)]


# exponentials ------------------------------------------------------------------------------------------------------


def _elu_pieces(alpha: Any, lower: Tensor, upper: Tensor) -> list[Piece]:
    """alpha (exp z - 1) for z <= 0, which bends like alpha; z behind."""
    bend = (alpha > 0) - (alpha < 0)
    curved = Piece(lambda z: alpha * torch.expm1(z), lambda z: alpha * torch.exp(z), bend, -_INF, 0.0)
    return [curved, Piece(_same, _ones, 0, 0.0, _INF)]


# gates: z times a sigmoid ------------------------------------------------------------------------------------------


def _silu_slope(z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * torch.sigmoid(-z))


def _gelu_pieces(alpha: Any, lower: Tensor, upper: Tensor) -> list[Piece]:
    """z/2 (1 + erf(alpha z)): f'' = 2 alpha / sqrt(pi) exp(-alpha^2 z^2) (1 - alpha^2 z^2), convex between +-1/alpha.

    The error of alpha, if it stands for 1/sqrt 2, moves f by at most |d alpha| / (e alpha^2 sqrt pi).
    """
    edge = 1 / alpha

    def derivative(z: Tensor) -> Tensor:
        bell = torch.exp(-((alpha * z) ** 2))
        return torch.special.erfc(-alpha * z) / 2 + z * (alpha / math.sqrt(math.pi)) * bell

    def piece(bend: int, start: float, end: float) -> Piece:
        return Piece(lambda z: FUNCTIONS["gelu"](alpha, z), derivative, bend, start, end, ELEMENTARY, 2e-15, 2e-14, 1.2)

    return [piece(-1, -_INF, -edge), piece(1, -edge, edge), piece(-1, edge, _INF)]


def _gelu_tanh_slope(z: Tensor) -> Tensor:
    inner = 2 * ROOT * (z + CUBIC * z**3)
    rate = 2 * ROOT * (1 + 3 * CUBIC * z**2)
    return torch.sigmoid(inner) + z * rate * torch.sigmoid(inner) * torch.sigmoid(-inner)


def _gate(value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], edge: float) -> tuple[Piece, ...]:
    """Concave, convex between +-edge, concave; |f'| < 1.2 and |f'''| < 4, errors from the bounded z sigmoid(-z)."""

    def piece(bend: int, start: float, end: float) -> Piece:
        return Piece(value, slope, bend, start, end, 2 * ELEMENTARY, 4e-15, 2e-13, 1.2)

    return piece(-1, -_INF, -edge), piece(1, -edge, edge), piece(-1, edge, _INF)


# powers ------------------------------------------------------------------------------------------------------------


def _power_pieces(alpha: Any, lower: Tensor, upper: Tensor) -> list[Piece]:
    """z^n for an integer n >= 2: convex for even n, else concave below 0 and convex above."""
    n = int(alpha)

    def piece(bend: int, start: float, end: float) -> Piece:
        return Piece(lambda z: z**n, lambda z: n * z ** (n - 1), bend, start, end)

    return [piece(1, -_INF, _INF)] if n % 2 == 0 else [piece(-1, -_INF, 0.0), piece(1, 0.0, _INF)]


class _Power(Curve):
    """z^n: monotone for odd n; for even n least at 0 and largest at an end."""

    def range(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of z^n over [lower, upper], from the ends and 0."""
        n = int(alpha)
        at = torch.stack([lower, upper]) ** n
        low, high = at.amin(0), at.amax(0)
        low, high = low - ELEMENTARY * low.abs() - TINY, high + ELEMENTARY * high.abs() + TINY
        if n % 2 == 0:
            low = torch.where((lower <= 0) & (upper >= 0), torch.zeros_like(low), low.clamp(min=0))
        return low, high


# waves -------------------------------------------------------------------------------------------------------------


def _wave(value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], shift: float) -> Curve:
    """sin (shift 0) and cos (shift 1/2): inflections at (k + shift) pi; at most three are in an interval of 2 pi."""

    def pieces(alpha: Any, lower: Tensor, upper: Tensor) -> list[Piece]:
        """The half waves from the one before l on."""
        first = torch.floor(lower / math.pi - shift)  # the half wave in which l lies, or the one beside it
        found = []
        for i in range(-1, 4):
            start, end = ((first + (i + j) + shift) * math.pi for j in (0, 1))
            # sin is concave from 2 k pi to (2 k + 1) pi, and cos = sin(. + pi / 2)
            bend = 2 * torch.remainder(first + i + (1 if shift else 0), 2) - 1
            found.append(Piece(value, slope, bend, start, end, ELEMENTARY, ELEMENTARY, ELEMENTARY, 1.0))
        return found

    return _Wave(lambda alpha, z: value(z), pieces, 0, -1.0, 1.0, steepest=1.0)


class _Wave(Curve):
    """An interval of a whole period, or far from 0, gets the range [-1, 1] and level lines."""

    def range(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of f over [lower, upper], from its pieces; [-1, 1] far out."""
        near, low, high = _near(lower, upper)
        least, greatest = super().range(alpha, low, high)
        known = lower <= upper
        return (
            torch.where(near, least, torch.where(known, -1.0, torch.nan)),
            torch.where(near, greatest, torch.where(known, 1.0, torch.nan)),
        )

    def slopes(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on f' over [lower, upper], from the pieces; the steepest slopes far out."""
        near, low, high = _near(lower, upper)
        least, most = super().slopes(alpha, low, high)
        return torch.where(near, least, -self.steepest), torch.where(near, most, self.steepest)

    def lines(self, alpha: Any, lower: Tensor, upper: Tensor, choice: Tensor | None = None) -> Lines:
        """Lines below and above f over [lower, upper], from the pieces; constants -1 and 1 far out."""
        near, low, high = _near(lower, upper)
        lines = super().lines(alpha, low, high, choice)
        level, known = torch.zeros_like(lower), lower <= upper
        return Lines(
            torch.where(near, lines.lower_slope, level),
            torch.where(near, lines.lower_intercept, torch.where(known, -1.0, -torch.inf)),
            torch.where(near, lines.upper_slope, level),
            torch.where(near, lines.upper_intercept, torch.where(known, 1.0, torch.inf)),
        )


def _near(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    near = (upper - lower < 2 * math.pi) & (lower > -_FAR) & (upper < _FAR)
    return near, torch.where(near, lower, torch.zeros_like(lower)), torch.where(near, upper, torch.zeros_like(upper))


class _Sign:
    """-1, 0 or 1. Across 0 a line through (0, -1) is below as long as it is at most -1 before and 1 at u."""

    def range(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the sign over [lower, upper]: monotone and exact."""
        return _sign(lower), _sign(upper)

    def slopes(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on the slopes of the sign: 0 where it is fixed, else anything from 0 on."""
        fixed = _sign(lower) == _sign(upper)
        return torch.zeros_like(lower), torch.where(fixed, 0.0, torch.inf)

    def lines(self, alpha: Any, lower: Tensor, upper: Tensor, choice: Tensor | None = None) -> Lines:
        """Slope between 0 and 2 / u below, 2 / -l above (1 / u and 1 / -l where the interval ends at 0)."""
        at_lower, at_upper = _sign(lower), _sign(upper)
        zero, fixed = torch.zeros_like(lower), at_lower == at_upper
        # from (0, at_lower) to (u, at_upper), and from (0, at_upper) to (l, at_lower)
        below = torch.where((upper > 0) & ~fixed, (at_upper - at_lower) / upper, zero)
        above = torch.where((lower < 0) & ~fixed, (at_upper - at_lower) / -lower, zero)
        # the other side of 0 wins where it is wider: a level line is better there
        shares = (upper >= -lower).to(lower.dtype), (upper <= -lower).to(lower.dtype)
        if choice is not None:
            shares = choice[0].clamp(0, 1), choice[1].clamp(0, 1)
        below, above = (
            (s * share * (1 - 8 * UNIT)).nan_to_num(0.0, 0.0, 0.0)
            for s, share in zip((below, above), shares, strict=True)
        )
        # slope * end is rounded up to 1 + 2 UNIT of what it should be: the intercept leaves room for that
        return Lines(
            below, torch.where(fixed, at_lower, down(at_lower)), above, torch.where(fixed, at_upper, up(at_upper))
        )


def _sign(z: Tensor) -> Tensor:
    """The sign; torch's is 0 for an undefined number."""
    return torch.where(z.isnan(), z, torch.sign(z))


# the table ---------------------------------------------------------------------------------------------------------


def _at_least_zero(lower: Tensor, upper: Tensor) -> Tensor:
    return (lower >= 0) & (upper >= lower)


def _positive(lower: Tensor, upper: Tensor) -> Tensor:
    return (lower > 0) & (upper >= lower)


def _away_from_zero(lower: Tensor, upper: Tensor) -> Tensor:
    return ((lower > 0) | (upper < 0)) & (upper >= lower)


def _curved(value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], **errors: float) -> tuple[Piece, ...]:
    """The pieces of a function that is convex below 0 and concave above."""
    return Piece(value, slope, 1, -_INF, 0.0, **errors), Piece(value, slope, -1, 0.0, _INF, **errors)


CURVES: dict[str, Curve | _Sign] = {
    "abs": Curve(
        FUNCTIONS["abs"],
        _fixed(
            Piece(lambda z: -z, lambda z: -_ones(z), 0, -_INF, 0.0, 0.0, 0.0),
            Piece(_same, _ones, 0, 0.0, _INF, 0.0, 0.0),
        ),
        least=0.0, steepest=1.0,
    ),
    "clip": Curve(FUNCTIONS["clip"], _clip_pieces, rising=1, steepest=1.0),
    "prelu": Curve(FUNCTIONS["prelu"], _prelu_pieces),
    "hard_swish": Curve(
        FUNCTIONS["hard_swish"],
        _fixed(
            Piece(_flat, _flat, 0, -_INF, -3.0),
            Piece(lambda z: z * (z + 3) / 6, lambda z: (2 * z + 3) / 6, 1, -3.0, 3.0, absolute=1e-15,
                  derivative_error=1e-15),
            Piece(_same, _ones, 0, 3.0, _INF),
        ),
        least=-0.375, steepest=1.5,
    ),
    "elu": Curve(FUNCTIONS["elu"], _elu_pieces),
    "softplus": Curve(
        FUNCTIONS["softplus"],
        _fixed(Piece(softplus, torch.sigmoid, 1, relative=4 * ELEMENTARY)), rising=1, least=0.0, steepest=1.0,
    ),
    "silu": Curve(
        FUNCTIONS["silu"],
        _fixed(*_gate(lambda z: z * torch.sigmoid(z), _silu_slope, _SILU)),
        least=_SILU_LEAST - 1e-15, steepest=_GATED,
    ),
    "gelu": Curve(FUNCTIONS["gelu"], _gelu_pieces, steepest=_GATED),
    "gelu_tanh": Curve(
        FUNCTIONS["gelu_tanh"], _fixed(*_gate(gelu_tanh, _gelu_tanh_slope, _GELU_TANH)),
        least=_GELU_TANH_LEAST - 1e-15, steepest=_GATED,
    ),
    "erf": Curve(
        FUNCTIONS["erf"],
        _fixed(*_curved(torch.special.erf, lambda z: 2 / math.sqrt(math.pi) * torch.exp(-(z**2)),
                        derivative_error=1e-15)),
        rising=1, least=-1.0, greatest=1.0, steepest=1.13,
    ),
    "atan": Curve(
        FUNCTIONS["atan"], _fixed(*_curved(torch.atan, lambda z: 1 / (1 + z**2))), rising=1,
        least=-1.5707963267948968, greatest=1.5707963267948968, steepest=1.0,
    ),
    "softsign": Curve(
        FUNCTIONS["softsign"],
        _fixed(*_curved(lambda z: z / (1 + z.abs()), lambda z: 1 / (1 + z.abs()) ** 2)),
        rising=1, least=-1.0, greatest=1.0, steepest=1.0,
    ),
    "exp": Curve(FUNCTIONS["exp"], _fixed(Piece(torch.exp, torch.exp, 1)), rising=1, least=0.0),
    "log": Curve(
        FUNCTIONS["log"], _fixed(Piece(torch.log, torch.reciprocal, -1, 0.0)), rising=1, defined=_positive
    ),
    "sqrt": Curve(
        FUNCTIONS["sqrt"], _fixed(Piece(torch.sqrt, lambda z: 0.5 / torch.sqrt(z), -1, 0.0)), rising=1,
        least=0.0, defined=_at_least_zero,
    ),
    "reciprocal": Curve(
        FUNCTIONS["reciprocal"],
        _fixed(
            Piece(torch.reciprocal, lambda z: -(1 / z) / z, -1, -_INF, 0.0),
            Piece(torch.reciprocal, lambda z: -(1 / z) / z, 1, 0.0, _INF),
        ),
        rising=-1, defined=_away_from_zero,
    ),
    "power": _Power(FUNCTIONS["power"], _power_pieces),
    "sin": _wave(torch.sin, torch.cos, 0.0),
    "cos": _wave(torch.cos, lambda z: -torch.sin(z), 0.5),
    "sign": _Sign(),
}  # fmt: skip
"""The curved activations by kind; what alpha is for each of them says `nodes.Activation`."""
