"""Lines and ranges for functions that are convex or concave piece by piece.

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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bnn_vnnlib.rounding import ELEMENTARY, TINY, UNIT

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
        """In the order in which they are declared."""
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
        """-f."""
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
    """

    function: Callable[[Any, Tensor], Tensor]
    pieces: _Pieces
    rising: int = 0
    least: float = -torch.inf
    greatest: float = torch.inf
    defined: Callable[[Tensor, Tensor], Tensor] = torch.le

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
