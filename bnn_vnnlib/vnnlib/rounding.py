"""Many decimal numbers at once: the float64 numbers next to each, exactly as `literals.bracket_literal` gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.vnnlib.literals import bracket_literal

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LONGEST = 24  # characters
_DIGITS = 18  # from the first that is not 0; 10^18 < 2^63
_DECIMALS = 22  # 10^22 is exact in float64, 10^23 is not
_TOGETHER = 20_000  # bounds the memory for single characters
_FEW = 24  # so many are read faster one by one
_POWERS = np.array([float(10**s) for s in range(_DECIMALS + 1)])
_SPLITTER = 2.0**27 + 1


def bracket_literals(texts: Sequence[str]) -> tuple[Floats, Floats]:
    """For each number the largest float64 <= it and the smallest float64 >= it, arrays (len(texts),).

    Method: a number without an exponent, of at most 18 digits from the first that is not 0 and at most 22 decimals, is
    M / T with |M| < 10^18 < 2^63 and T = 10^s exact in float64. Python gives f, the float64 nearest to it, and the
    sign of f T - M decides on which side f lies. f T = p + e exactly (Dekker's product; |f| is 0 or in [10^-22, 10^18],
    so nothing underflows or overflows), and M = h + l exactly, h the float64 nearest to M and l a small integer. f is
    off by a factor 1 + d, |d| <= 2^-53, so p and h differ by a few units in the last place and p - h is exact
    (Sterbenz). l is 0 unless |M| > 2^53, and then p and h are multiples of 1 or more, so (p - h) - l is a sum of small
    integers: exact. The last sum, with e, may be rounded, which does not change its sign. All other numbers go through
    `bracket_literal`, and so do few numbers.

    Raises
    ------
    ValueError, OverflowError : as `bracket_literal`
    """
    if len(texts) <= _FEW:
        pairs = np.array([*map(bracket_literal, texts)], np.float64).reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1].copy()
    parts = [_brackets(texts[start : start + _TOGETHER]) for start in range(0, len(texts), _TOGETHER)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _brackets(texts: Sequence[str]) -> tuple[Floats, Floats]:
    nearest = np.fromiter(map(float, texts), np.float64, len(texts))
    digits, decimals, short = _split(texts)
    side = _side(np.where(short, nearest, 0.0), digits, _POWERS[decimals])
    down = np.where(side > 0, np.nextafter(nearest, -np.inf), nearest) + 0.0  # -0.0 becomes 0.0
    up = np.where(side < 0, np.nextafter(nearest, np.inf), nearest) + 0.0
    for i in np.flatnonzero(~short).tolist():
        down[i], up[i] = bracket_literal(texts[i])
    return down, up


def _split(texts: Sequence[str]) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """M and s of each number M / 10^s (0 and 0 where it is not short), and which are short."""
    width = min(max(map(len, texts), default=0), _LONGEST) + 1
    cells = np.array(texts, f"S{width}").view(np.uint8).reshape(len(texts), width).T
    figures = np.ascontiguousarray(cells) - np.uint8(ord("0"))  # wraps around for what is no digit
    is_digit = figures < 10
    behind = np.logical_or.accumulate(cells == ord("."), axis=0)
    decimals = np.count_nonzero(is_digit & behind, axis=0)
    leading = np.logical_or.accumulate(is_digit & (figures > 0), axis=0)
    short = (cells[-1] == 0) & ~((cells == ord("e")) | (cells == ord("E"))).any(axis=0)
    short &= (np.count_nonzero(is_digit & leading, axis=0) <= _DIGITS) & (decimals <= _DECIMALS)
    digits = np.zeros(len(texts), np.int64)
    for row, used in zip(figures[:-1], is_digit[:-1] & short, strict=True):
        np.multiply(digits, 10, out=digits, where=used)
        np.add(digits, row, out=digits, where=used)
    return np.where(cells[0] == ord("-"), -digits, digits), np.where(short, decimals, 0), short


def _side(f: Floats, digits: Ints, power: Floats) -> Floats:
    """A number with the sign of f * power - digits; see `bracket_literals`."""
    product = f * power
    error = _product_error(f, power, product)
    high = digits.astype(np.float64)
    low = (digits - high.astype(np.int64)).astype(np.float64)
    return ((product - high) - low) + error


def _product_error(a: Floats, b: Floats, product: Floats) -> Floats:
    """a * b - product, exactly (Dekker 1971)."""
    a_high, b_high = (x * _SPLITTER - (x * _SPLITTER - x) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
