"""Numbers that decide: Arb's balls, each of which contains the real number that it stands for.

A float is an exact number here. Arrays of floats may be chosen without any care (coefficients, claimed ranges); what
follows from them is computed in balls. Whether something holds is asked of `surely_less` and `surely_at_least` alone:
the comparisons of python-flint, its `min` and its `max` are not to be used on balls.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
from flint import arb, arb_mat, ctx, fmpq
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRECISION = 96
"""Bits of a ball's middle."""

ctx.prec = PRECISION

ZERO, HALF, ROOT = arb(0), arb(0.5), arb(2).sqrt()
FOLD = (arb(2) / arb.pi()).sqrt()
"""E|N| of a standard normal N."""


def ball(number: Fraction | float | int) -> arb:
    """An exact number as a ball."""
    if isinstance(number, Fraction):
        return arb(fmpq(number.numerator, number.denominator))
    return arb(number)


def surely_less(a: arb, b: arb) -> bool:
    """a < b, whatever numbers of the balls a and b stand for; never if one is not finite."""
    return bool(a.is_finite() and b.is_finite() and (b - a).lower() > 0)


def surely_at_least(a: arb, b: arb) -> bool:
    """a >= b, whatever numbers of the balls a and b stand for; never if one is not finite."""
    return bool(a.is_finite() and b.is_finite() and (a - b).lower() >= 0)


def below(x: arb) -> float:
    """A float below all numbers of the ball; -inf where it is not finite."""
    if not x.is_finite():
        return -math.inf
    value = min(float(x.lower()), sys.float_info.max)
    near = math.nextafter(value, -math.inf)  # float() may be off by more among subnormal numbers: then a coarse step
    candidates = (value, near, math.nextafter(near, -math.inf), 0.0, -(2.0**-1000))
    return next((one for one in candidates if math.isfinite(one) and surely_at_least(x, arb(one))), -math.inf)


def above(x: arb) -> float:
    """A float above all numbers of the ball; inf where it is not finite."""
    return -below(-x)


def matrix(values: Floats) -> arb_mat:
    """A matrix of floats (R, n) as balls."""
    rows, columns = values.shape
    return arb_mat(rows, columns, values.ravel().tolist())


def column(values: Iterable[arb | float]) -> arb_mat:
    """The values as a column (n, 1)."""
    entries = list(values)
    return arb_mat(len(entries), 1, entries)


def entrywise(function: Callable[[arb], arb], m: arb_mat) -> arb_mat:
    """The matrix of the function's values at every entry."""
    return arb_mat(m.nrows(), m.ncols(), [function(x) for x in m.entries()])


def positive(x: arb) -> arb:
    """A number that is at least 0 and at least x, whatever x is; max(x, 0) for a number x."""
    return x.upper().nonnegative_part()


def square(x: arb) -> arb:
    """x^2."""
    return x * x


def root(x: arb) -> arb:
    """An upper bound of the root of a number that is not negative; not finite where the ball is not."""
    return positive(x).sqrt()


def normal_below(gap: arb, spread: arb) -> arb:
    """An upper bound of Phi(-gap / spread), spread >= 0; 1 where gap > 0 is not sure, 0 for a spread of 0."""
    if not surely_less(ZERO, gap) or not spread.is_finite():
        return arb(1)
    least, most = gap.lower(), spread.upper()
    if not surely_less(ZERO, most):
        return ZERO
    return ((least / most).lower() / ROOT).lower().erfc().upper() / 2


def at_most_one(q: arb) -> arb:
    """An upper bound of a probability that is at most q: 1 where q says nothing."""
    return q.upper() if surely_less(q.upper(), arb(1)) else arb(1)
