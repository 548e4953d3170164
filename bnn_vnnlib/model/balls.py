"""Arithmetic on constants that may carry an error: mid +- rad encloses the exact value.

A file's constants are exact; 1/9 or 1/sqrt(variance + epsilon) is not a float64 number. Each function below returns the
float64 result as `mid` and a bound `rad` of its error that covers the operands' errors and its own rounding; `rad` is
None where the result is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats

UP = 1 + 2.0**-48  # more than the roundings of the few operations that make a radius
_UNIT = 2.0**-53  # relative error of one operation
_TINY = math.ulp(0.0)  # 2^-1074: absolute error of one operation that underflows; 2.0**-1074 could be compiled to 0


@dataclass(frozen=True, eq=False)
class Ball:
    """|exact - mid| <= rad; rad None: exact."""

    mid: Floats
    rad: Floats | None = None


@np.errstate(all="ignore")
def ball_sum(a: Ball, b: Ball) -> Ball:
    """a + b, with the rounding of the sum added to the radius."""
    mid = a.mid + b.mid
    # two-sum (Knuth): the rounding error itself, itself exact
    part = mid - a.mid
    error = (a.mid - (mid - part)) + (b.mid - part)
    return _ball(mid, np.abs(error) + _rad(a) + _rad(b))


@np.errstate(all="ignore")
def ball_product(a: Ball, b: Ball) -> Ball:
    """a b, with the rounding of the product added to the radius."""
    mid = a.mid * b.mid
    spread = np.abs(a.mid) * _rad(b) + np.abs(b.mid) * _rad(a) + _rad(a) * _rad(b)
    # subnormal products of nonzero radii are covered by _TINY
    spread = np.where(_inexact_product(a.mid, b.mid, mid), spread + _rounding(mid), spread * UP)
    return _ball(mid, np.where((_rad(a) > 0) | (_rad(b) > 0), spread + 3 * _TINY, spread))


@np.errstate(all="ignore")
def reciprocal(a: Ball) -> Ball:
    """1 / a; not finite where the ball of `a` contains 0."""
    mid = 1 / a.mid
    exact = (np.abs(np.frexp(a.mid)[0]) == 0.5) & np.isfinite(mid)
    smallest = np.abs(a.mid) - _rad(a) * UP
    # |1/x - 1/a| <= rad / (|a| smallest), _TINY for a quotient that underflows
    spread = np.where(smallest > 0, (_rad(a) / np.abs(a.mid) * UP + _TINY) / smallest * UP + _TINY, np.inf)
    spread = np.where((_rad(a) > 0) | (a.mid == 0), spread, 0.0)
    return _ball(mid, spread + np.where(exact, 0.0, _rounding(mid)))


@np.errstate(all="ignore")
def square_root(a: Ball) -> Ball:
    """sqrt(a); not finite where `a` may be negative or is not clearly away from 0."""
    mid = np.sqrt(a.mid)
    smallest = a.mid - _rad(a) * UP
    # |sqrt x - sqrt a| <= rad / sqrt a for x >= 0
    spread = np.where(_rad(a) > 0, np.where(smallest > 0, _rad(a) / mid * UP + _TINY, np.inf), 0.0)
    exact = ~_inexact_product(mid, mid, a.mid) & (mid * mid == a.mid)
    return _ball(mid, spread + np.where(exact, 0.0, _rounding(mid)))


def _rad(a: Ball) -> Floats:
    return np.zeros_like(a.mid) if a.rad is None else a.rad


def _rounding(mid: Floats) -> Floats:
    return np.abs(mid) * (2 * _UNIT) + 2 * _TINY


def _ball(mid: Floats, rad: Floats) -> Ball:
    mid, rad = np.broadcast_arrays(mid, rad)
    return Ball(mid, rad * UP if rad.any() else None)


def _inexact_product(a: Floats, b: Floats, product: Floats) -> NDArray[np.bool_]:
    """Whether float64 `product` may differ from the real a * b (False only if equal)."""
    mantissas = np.frexp(a)[0], np.frexp(b)[0]
    # Two factors of at most 26 significant bits each have an exact product; powers of two are exact with anything
    short = [np.ldexp(m, 26) == np.rint(np.ldexp(m, 26)) for m in mantissas]
    power = [np.abs(m) == 0.5 for m in mantissas]
    safe = (short[0] & short[1]) | power[0] | power[1]
    in_range = (np.abs(product) > 2.0**-1000) & np.isfinite(product)
    inexact: NDArray[np.bool_] = ~((safe & in_range) | (a == 0) | (b == 0))
    return inexact
