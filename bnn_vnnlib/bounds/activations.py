"""Activations: range over an interval, and one line below and one above, valid on the interval.

The slope is chosen first, by any heuristic; the intercept is then the exact extremum of f(z) - slope * z over [l, u],
taken at the end points and at the critical points, and moved outward. A bad slope costs tightness, never soundness.
Here are the kinked and the sigmoidal ones in closed form; `curves` has the general scheme, and what it serves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bnn_vnnlib.bounds.curves import CURVES
from bnn_vnnlib.bounds.curves import Lines as Lines
from bnn_vnnlib.rounding import ELEMENTARY, TINY, UNIT, down, up

_FLAT = 1e-12
"""Slopes below this become 0: the critical point of f(z) - slope * z would be ill-conditioned."""

_CRITICAL = 1e-14
"""Error of f(z) - slope * z at a computed critical point: |f''| d^2 / 2 with d <= UNIT / slope, and f itself."""


_SLOPE = 1e-13
"""Error of a computed slope of tanh and sigmoid, with room."""

KINKED = ("relu", "leaky_relu")
"""Linear but for a kink at 0: where the input keeps its sign, a tighter range of it changes no line."""


class _ActivationShape(Protocol):
    """What the engine needs of an activation; alpha is its parameter, if it has any (see `nodes.Activation`)."""

    def range(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of f over [lower, upper]."""
        ...

    def slopes(self, alpha: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of (f(x) - f(y)) / (x - y) over all x, y in [lower, upper]; infinite where nothing is known."""
        ...

    def lines(self, alpha: Any, lower: Tensor, upper: Tensor, choice: Tensor | None = None) -> Lines:
        """The two lines on [lower, upper].

        choice (2, *shape), in [0, 1]: which of the valid slopes to take below ([0]) and above ([1]), differentiable;
        None: a good guess. Any choice is sound.
        """
        ...


def _chord(lower: Tensor, upper: Tensor, at_lower: Tensor, at_upper: Tensor) -> Tensor:
    """Slope between the end points; 0 on a degenerate interval."""
    width = upper - lower
    return torch.where(width > 0, (at_upper - at_lower) / width, torch.zeros_like(width)).nan_to_num(0.0, 0.0, 0.0)


class Kink:
    """Relu and LeakyRelu: f(z) = z for z >= 0, alpha z below (Relu: alpha = 0), alpha >= 0.

    Convex for alpha <= 1: the chord is above, any slope between alpha and 1 through the origin below; mirrored for
    alpha > 1. The slope below is 1 where the positive part is the wider one, else alpha (the choice of CROWN,
    Zhang et al. 2018).
    """

    def range(self, alpha: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of f over [lower, upper]; exact for Relu."""
        if alpha == 0:
            return lower.clamp(min=0), upper.clamp(min=0)
        return torch.where(lower < 0, down(alpha * lower), lower), torch.where(upper < 0, up(alpha * upper), upper)

    def slopes(self, alpha: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Exact bounds on the slope of f: alpha, 1, or between the two where the sign is open."""
        at_lower, at_upper = ((lower >= 0).to(lower), (~(upper <= 0)).to(lower))  # of undefined bounds: 0 and 1
        slopes = _from_alpha(alpha, at_lower), _from_alpha(alpha, at_upper)
        return torch.minimum(*slopes), torch.maximum(*slopes)

    def lines(self, alpha: float, lower: Tensor, upper: Tensor, choice: Tensor | None = None) -> Lines:
        """Exact lines where the sign is fixed; the choice runs from alpha to 1, on the side away from the chord.

        Let p = max(u, 0) and n = max(-l, 0). Whatever the chord's slope c became by rounding, f(z) - c z is
        (c - alpha) n at -n and (1 - c) p at p: both have a relative error of 2 units, or lose less than TINY to
        underflow. Where the sign is fixed, p or n is 0, c is alpha or 1, and both are 0. `open_sign` is TINY where
        both are positive, else 0. There is no `torch.where` here, which takes ten times as long as a sum.
        """
        n, p = (-lower).clamp(min=0), upper.clamp(min=0)
        share = (p / (p + n)).nan_to_num(0.0, 0.0, 0.0)
        chord = _from_alpha(alpha, share)
        open_sign = (torch.minimum(n, p) * _ANY_IS_MORE).clamp(max=TINY)
        away, along = (n, p) if alpha <= 1 else (-n, -p)  # so that both products are positive
        gap = torch.maximum((chord - alpha) * away, (1 - chord) * along)
        gap = torch.add(open_sign, gap, alpha=1 + 8 * UNIT)
        if choice is None:
            tangent = _from_alpha(alpha, torch.floor(share + 0.5))
        else:
            chosen = _from_alpha(alpha, choice[0 if alpha <= 1 else 1].clamp(0, 1))
            tangent = torch.where((n > 0) & (p > 0), chosen, chord)  # in float32 TINY, and so `open_sign`, is 0
        zero = torch.zeros_like(lower)
        return Lines(tangent, zero, chord, gap) if alpha <= 1 else Lines(chord, -gap, tangent, zero)


_ANY_IS_MORE = 2.0**100
"""Times the least positive number this is more than TINY."""


def _from_alpha(alpha: float, share: Tensor) -> Tensor:
    """alpha + (1 - alpha) share; exactly alpha for a share of 0, and 1 for 1."""
    return share if alpha == 0 else torch.lerp(share.new_tensor(alpha), share.new_ones(()), share)


@dataclass(frozen=True)
class _Sigmoidal:
    """Bounded, increasing, convex below 0 and concave above, with f' even: tanh and sigmoid.

    f' >= 0 falls from f'(0) to 0 on z >= 0, so f' = s has the roots +-critical(s). Because f(-z) = 2 f(0) - f(z), the
    lower line on [l, u] has the slope of the upper line on [-u, -l].
    """

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    critical: Callable[[Tensor], Tensor]
    infimum: float

    def range(self, alpha: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The range of a nondecreasing function: its values at the ends, rounded outward, within its range."""
        at_lower, at_upper = self.function(lower), self.function(upper)
        return (
            (at_lower - ELEMENTARY * at_lower.abs() - TINY).clamp(min=self.infimum),
            (at_upper + ELEMENTARY * at_upper.abs() + TINY).clamp(max=1.0),
        )

    def slopes(self, alpha: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on f' over [lower, upper], which falls from 0 to both sides."""
        nearest, farthest = torch.maximum(lower, -upper).clamp(min=0), torch.maximum(lower.abs(), upper.abs())
        return (self.derivative(farthest) - _SLOPE).clamp(min=0), self.derivative(nearest) + _SLOPE

    def lines(self, alpha: float, lower: Tensor, upper: Tensor, choice: Tensor | None = None) -> Lines:
        """Chords and tangents; the choice multiplies their slopes by a number between 0 and 2."""
        above, below = self._slope_above(lower, upper), self._slope_above(-upper, -lower)
        if choice is not None:
            below, above = (_sloping(2 * c.clamp(0, 1) * s) for c, s in zip(choice, (below, above), strict=True))
        return Lines(
            below, self._gap(below, lower, upper).amin(0) - self._outward(below, lower, upper),
            above, self._gap(above, lower, upper).amax(0) + self._outward(above, lower, upper),
        )  # fmt: skip

    def _gap(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """f(z) - slope z at the points where it can be extreme; by the envelope theorem its derivative is -z there."""
        root = self.critical(slope.detach()).nan_to_num(0.0, torch.inf, torch.inf)
        points = torch.stack([lower, upper, *(torch.minimum(torch.maximum(z, lower), upper) for z in (root, -root))])
        return self.function(points) - slope * points

    def _outward(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        return _CRITICAL + 4 * UNIT * slope * (lower.abs() + upper.abs())

    def _slope_above(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The chord, where the tangent at u stays above f(l); else a tangent.

        Tangents at t >= 0 are valid from the one on that goes through (l, f(l)). Of these the lowest in the middle of
        [l, u] is taken: the one at the middle, if it is valid, else the first one.
        """
        at_lower = self.function(lower)
        chord = _chord(lower, upper, at_lower, self.function(upper))
        left, right = torch.zeros_like(upper), upper.clamp(min=0)
        for _ in range(24):  # f'(t) (t - l) - (f(t) - f(l)) is decreasing on t >= 0
            middle = (left + right) / 2
            early = self.derivative(middle) * (middle - lower) > self.function(middle) - at_lower
            left, right = torch.where(early, middle, left), torch.where(early, right, middle)
        tangent = self.derivative(torch.maximum(right, (lower + upper) / 2))
        slope = torch.where((upper <= 0) | (chord <= self.derivative(upper)), chord, tangent)
        return _sloping(slope.nan_to_num(0.0, 0.0, 0.0))


def _sloping(slope: Tensor) -> Tensor:
    return torch.where(slope < _FLAT, torch.zeros_like(slope), slope)


def _sigmoid_slope(z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 - s)


ACTIVATIONS: dict[str, _ActivationShape] = {
    "relu": Kink(),
    "leaky_relu": Kink(),
    "tanh": _Sigmoidal(
        torch.tanh,
        lambda z: 1 - torch.tanh(z) ** 2,
        lambda s: torch.atanh(torch.sqrt((1 - s).clamp(0, 1))),
        -1.0,
    ),
    "sigmoid": _Sigmoidal(
        torch.sigmoid,
        _sigmoid_slope,
        lambda s: torch.logit((1 + torch.sqrt((1 - 4 * s).clamp(0, 1))) / 2),
        0.0,
    ),
    **CURVES,
}
