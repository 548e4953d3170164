"""Comparisons to constraints: linear ones with coefficients that float64 holds exactly, and products of inputs.

1. `bracket_literals`: the float64 numbers next to each of many decimal numbers, all at once, exactly as
   `tree.bracket_literal` gives them.
2. `Comparisons`: one comparison to constraints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product as every

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats, Ints
from bnn_vnnlib.errors import PropertyError, UnsupportedError
from bnn_vnnlib.question.property import Polynomial
from bnn_vnnlib.vnnlib.check import Constraint, Scope
from bnn_vnnlib.vnnlib.tree import Apply, Compare, bracket, bracket_literal, is_number, read_literal

# 1. Many decimal numbers at once

_MOST_CHARACTERS = 24  # characters
_DIGITS = 18  # from the first that is not 0; 10^18 < 2^63
_DECIMALS = 22  # 10^22 is exact in float64, 10^23 is not
_TOGETHER = 20_000  # bounds the memory for single characters
_MIN_TOGETHER = 24  # so many are read faster one by one
_POWERS = np.array([float(10**s) for s in range(_DECIMALS + 1)])
_SPLITTER = 2.0**27 + 1


def bracket_literals(texts: Sequence[str]) -> tuple[Floats, Floats]:
    """The largest float64 <= x and the smallest float64 >= x for each number x, arrays (len(texts),).

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
    if len(texts) <= _MIN_TOGETHER:
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
    width = min(max(map(len, texts), default=0), _MOST_CHARACTERS) + 1
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


# 2. Comparisons

MAX_FORMULA_DEPTH = 200
_MAX_BITS = 40_000
_MAX_TERMS, _MAX_DEGREE = 10_000, 8
_ZERO, _ONE, _MINUS_ONE = Fraction(0), Fraction(1), Fraction(-1)

Conjunction = tuple[Constraint, ...]


@dataclass(frozen=True)
class _Sum:
    """coefficients (by column) * variables + constant + products (by their columns, in order) of variables.

    A coefficient may have become 0.
    """

    coefficients: dict[int, Fraction]
    constant: Fraction
    products: dict[tuple[int, ...], Fraction] = field(default_factory=dict)

    @property
    def is_constant(self) -> bool:
        return not any(self.coefficients.values()) and not any(self.products.values())

    @property
    def columns(self) -> set[int]:
        """Columns of all variables that occur."""
        return set(self.coefficients).union(*self.products)

    def scaled(self, factor: Fraction) -> _Sum:
        products = {columns: factor * a for columns, a in self.products.items()} if self.products else {}
        if factor == -1:  # the common case, without multiplications
            return _Sum({j: -a for j, a in self.coefficients.items()}, -self.constant, products)
        return _Sum({j: factor * a for j, a in self.coefficients.items()}, factor * self.constant, products)

    def terms(self) -> dict[tuple[int, ...], Fraction]:
        """All coefficients by the columns of their variables; the constant has no columns."""
        return {(): self.constant, **{(j,): a for j, a in self.coefficients.items()}, **self.products}

    def times(self, other: _Sum) -> _Sum:
        """The product of two sums, multiplied out."""
        found: dict[tuple[int, ...], Fraction] = {}
        for (ours, a), (theirs, b) in every(self.terms().items(), other.terms().items()):
            columns = tuple(sorted((*ours, *theirs)))
            found[columns] = found.get(columns, _ZERO) + a * b
        linear = {columns[0]: a for columns, a in found.items() if len(columns) == 1}
        return _Sum(linear, found[()], {columns: a for columns, a in found.items() if len(columns) > 1})


class Comparisons:
    """Turns comparisons into constraints; remembers the numbers that it has read, and remarks in `notes`."""

    def __init__(self, scope: Scope) -> None:
        self.notes: list[str] = []
        self._scope = scope
        self._source = scope.source
        self._one_type = scope.has_one_type
        self._num_inputs = scope.signature.input_size
        self._exact: dict[str, Fraction] = {}

    @property
    def literals(self) -> set[str]:
        """The numbers read so far, as written."""
        return set(self._exact)

    def alternatives(self, comparison: Compare) -> tuple[Conjunction, ...]:
        """The comparison as an or of conjunctions: () is false, ((),) is true.

        Raises
        ------
        PropertyError : an unknown variable, an index out of range, an unusable number, or (2.x) ill-typed
        UnsupportedError : not linear, or a coefficient of an output that float64 cannot hold
        """
        at = comparison.at
        difference = self._sum([comparison.left, comparison.right], at, 1, negate_rest=True)
        columns = difference.columns
        if not columns and self._scope.version[0] > 1:
            raise self._source.error(PropertyError, "a comparison without variables is ill-typed in VNN-LIB 2.x", at)
        if not self._one_type:
            self._scope.check_types(columns, at)
        if difference.is_constant:
            return self._constant(comparison.operator, difference.constant, at)
        if comparison.operator in ("<=", "<"):
            return ((self._constraint(difference, comparison.operator == "<", at),),)
        below, above = difference, difference.scaled(_MINUS_ONE)
        match comparison.operator:
            case ">=" | ">":
                return ((self._constraint(above, comparison.operator == ">", at),),)
            case "!=":
                return ((self._constraint(below, True, at),), (self._constraint(above, True, at),))
            case _:
                return ((self._constraint(below, False, at), self._constraint(above, False, at)),)

    def _literal(self, literal: str, at: int) -> Fraction:
        found = self._exact.get(literal)
        if found is None:
            try:
                found = self._exact[literal] = read_literal(literal)
            except (ValueError, OverflowError) as error:
                raise self._source.error(PropertyError, str(error), self._source.find(literal, at)) from None
        return found

    def _constant(self, operator: str, difference: Fraction, at: int) -> tuple[Conjunction, ...]:
        truth = {
            "<=": difference <= 0,
            "<": difference < 0,
            ">=": difference >= 0,
            ">": difference > 0,
            "!=": difference != 0,
        }.get(operator, difference == 0)
        if not truth:
            line = self._source.line(at)
            self.notes.append(f"line {line}: a comparison is false for every input; the cases with it are dropped")
        return ((),) if truth else ()

    def _constraint(self, linear: _Sum, strict: bool, at: int) -> Constraint:
        """The constraint linear <= 0 (or < 0)."""
        if any(linear.products.values()):
            return self._polynomial(linear, strict, at)
        coefficients = {j: a for j, a in linear.coefficients.items() if a}
        bound = -linear.constant
        if len(coefficients) == 1:
            ((column, coefficient),) = coefficients.items()
            if column < self._num_inputs:
                coefficients, bound = {column: coefficient / abs(coefficient)}, bound / abs(coefficient)
        return self._row(coefficients, bound, strict, at)

    def _polynomial(self, left: _Sum, strict: bool, at: int) -> Constraint:
        """The constraint left <= 0 (or < 0), with products of inputs alone."""
        terms = tuple((a, columns) for columns, a in left.terms().items() if a and columns)
        outputs = sorted({j for _, columns in terms for j in columns if j >= self._num_inputs})
        if outputs:
            names = ", ".join(map(self._scope.name, outputs[:5]))
            message = f"a comparison of {names} with a product of variables is not supported: products may be of "
            message += "inputs, compared with inputs and numbers (outputs: theory LIN, not POLY)"
            raise self._source.error(UnsupportedError, message, at)
        polynomial = Polynomial(terms, -left.constant, strict)
        return Constraint((), (), strict, 0.0, 0.0, polynomial.bound, polynomial=polynomial)

    def _row(self, coefficients: dict[int, Fraction], bound: Fraction, strict: bool, at: int) -> Constraint:
        """Coefficients as written if float64 holds them, else times their common denominator.

        What is inexact even then is carried as an error if it concerns an input, and refused if an output.
        """
        columns, exact = tuple(coefficients), tuple(coefficients.values())
        for accept_up_to, scale in ((0, False), (0, True), (self._num_inputs, False), (self._num_inputs, True)):
            factor = math.lcm(*(a.denominator for a in exact)) if scale else 1
            scaled = [factor * a for a in exact] if scale else exact
            values = tuple(map(_nearest, scaled))
            errors = _errors(columns, scaled, values)
            if errors is not None and all(column < accept_up_to for column, _ in errors):
                down, up = self._round(factor * bound, at)
                return Constraint(columns, values, strict, down, up, factor * bound, errors)
        outputs = [column for column in columns if column >= self._num_inputs] or columns
        names = ", ".join(map(self._scope.name, outputs[:5]))
        message = f"a coefficient of {names} has too many digits for float64; round it to at most 15 digits"
        raise self._source.error(UnsupportedError, message, at)

    def _round(self, exact: Fraction, at: int) -> tuple[float, float]:
        try:
            return bracket(exact)
        except OverflowError:
            raise self._source.error(UnsupportedError, "a bound is beyond the range of float64", at) from None

    def _term(self, term: str | Apply, at: int, depth: int) -> _Sum:
        if isinstance(term, str):
            if is_number(term):
                return _Sum({}, self._literal(term, at))
            return _Sum({self._scope.column(term, at): _ONE}, _ZERO)
        if depth > MAX_FORMULA_DEPTH:
            raise self._source.error(UnsupportedError, f"a term is nested more than {MAX_FORMULA_DEPTH} deep", term.at)
        if term.operator == "*":
            return self._multiple(term) or self._product(term, depth)
        only_negates = term.operator == "-" and len(term.operands) == 1
        total = self._sum(term.operands, term.at, depth, negate_rest=term.operator == "-")
        return total.scaled(_MINUS_ONE) if only_negates else total

    def _sum(self, terms: list[str | Apply] | tuple[str | Apply, ...], at: int, depth: int, negate_rest: bool) -> _Sum:
        """The sum of terms; all but the first are negated for a difference."""
        coefficients: dict[int, Fraction] = {}
        constant = _ZERO
        products: dict[tuple[int, ...], Fraction] = {}
        for position, term in enumerate(terms):
            part = self._term(term, at, depth + 1)
            if negate_rest and position:
                part = part.scaled(_MINUS_ONE)
            if part.constant:
                constant += part.constant
            for column, value in part.coefficients.items():
                coefficients[column] = coefficients[column] + value if column in coefficients else value
            for columns, value in part.products.items():
                products[columns] = products.get(columns, _ZERO) + value
        return _Sum(coefficients, constant, products)

    def _multiple(self, term: Apply) -> _Sum | None:
        """A number times a variable: nearly every product that files hold, without arithmetic; None for others."""
        if len(term.operands) != 2:
            return None
        number, variable = term.operands
        if not (isinstance(number, str) and isinstance(variable, str)) or not is_number(number) or is_number(variable):
            return None
        return _Sum({self._scope.column(variable, term.at): self._literal(number, term.at)}, _ZERO)

    def _product(self, term: Apply, depth: int) -> _Sum:
        """The product of a term's operands, multiplied out."""
        total = _Sum({}, _ONE)
        for operand in term.operands:
            factor = self._term(operand, term.at, depth + 1)
            if total.is_constant:
                total, factor = factor, total
            if factor.is_constant:
                columns = dict.fromkeys(factor.columns, _ZERO)
                total = total.scaled(factor.constant)
                total = _Sum(columns | total.coefficients, total.constant, total.products)
            else:
                if len(total.terms()) * len(factor.terms()) > _MAX_TERMS:
                    raise self._source.error(UnsupportedError, "a product of sums has too many terms", term.at)
                total = total.times(factor)
                if max(map(len, total.products)) > _MAX_DEGREE:
                    message = f"a product of more than {_MAX_DEGREE} variables is not supported"
                    raise self._source.error(UnsupportedError, message, term.at)
            if max(map(_bits, total.terms().values())) > _MAX_BITS:
                raise self._source.error(UnsupportedError, "a product of numbers is too long", term.at)
        return total


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf


def _errors(
    columns: tuple[int, ...], exact: Sequence[Fraction], values: tuple[float, ...]
) -> tuple[tuple[int, Fraction], ...] | None:
    """Columns whose value is not exact, with the error; None if a value is infinite."""
    if any(map(math.isinf, values)):
        return None
    rounded = (
        (column, a, value)
        for column, a, value in zip(columns, exact, values, strict=True)
        if value.as_integer_ratio() != (a.numerator, a.denominator)  # both in lowest terms
    )
    return tuple((column, abs(a - Fraction(value))) for column, a, value in rounded)


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())
