"""Decimal numbers, read exactly and rounded both ways."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from fractions import Fraction

# Longer numbers are hostile, and slow to handle exactly.
_MAX_CHARACTERS = 1000
_MIN_EXPONENT = -2000


def is_number(atom: str) -> bool:
    """Whether an atom of the syntax tree is a number (else it is a variable)."""
    return atom[0] in "0123456789-+."


def bracket_literal(text: str) -> tuple[float, float]:
    """The largest float64 <= the number and the smallest float64 >= it.

    Raises
    ------
    ValueError : the number is too long or too close to 0
    OverflowError : it is beyond the range of float64

    Examples
    --------
    >>> bracket_literal("0.5")
    (0.5, 0.5)
    >>> low, high = bracket_literal("0.1")
    >>> low < Fraction(1, 10) < high
    True
    """
    exact = _decimal(text)
    nearest = float(text) + 0.0  # -0.0 becomes 0.0
    # Decimal holds both numbers exactly and compares them exactly, whatever its context's precision.
    return _bracket(nearest, exact, Decimal(nearest))


def read_literal(text: str) -> Fraction:
    """The exact number. Raises as `bracket_literal` does."""
    return Fraction(_decimal(text))


def bracket(exact: Fraction) -> tuple[float, float]:
    """The largest float64 <= `exact` and the smallest float64 >= it; OverflowError beyond float64's range."""
    nearest = float(exact)  # correctly rounded by Python
    return _bracket(nearest, exact, Fraction(nearest))


def _decimal(text: str) -> Decimal:
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"a number of {len(text)} characters is too long (at most {_MAX_CHARACTERS})")
    if math.isinf(float(text)):
        raise OverflowError(f"{text} is beyond the range of float64 (1.8e308)")
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent of about 19 digits
        raise ValueError(f"{text} has an exponent that is too long") from None
    if exact and exact.adjusted() < _MIN_EXPONENT:
        raise ValueError(f"{text} is too close to 0 (at least 1e{_MIN_EXPONENT}); write 0 or a larger number")
    # A zero keeps the exponent it is written with, and 0e999999999 must not become a giant fraction.
    return exact if exact else Decimal(0)


def _bracket(nearest: float, exact: Decimal | Fraction, nearest_exact: Decimal | Fraction) -> tuple[float, float]:
    if nearest_exact == exact:
        return nearest, nearest
    if nearest_exact < exact:
        down, up = nearest, math.nextafter(nearest, math.inf)
    else:
        down, up = math.nextafter(nearest, -math.inf), nearest
    if math.isinf(down) or math.isinf(up):
        raise OverflowError("beyond the range of float64 (1.8e308)")
    return down + 0.0, up + 0.0  # -0.0 becomes 0.0
