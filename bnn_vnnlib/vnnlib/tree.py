"""What parsing yields: the one syntax tree of both versions of VNN-LIB, and the text and numbers that its leaves hold.

1. `SourceText`: a text and where it came from; it turns an offset into a located error.
2. Decimal numbers, read exactly and rounded both ways.
3. The tree. A place (`at`) is an offset in the text; line and column are worked out only for an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from bnn_vnnlib.errors import InputError

Error = TypeVar("Error", bound=InputError)


@dataclass(frozen=True)
class SourceText:
    """The text of a property and the path it was read from, if any."""

    text: str
    path: Path | None = None

    def line(self, at: int) -> int:
        """1-based line of the offset `at`."""
        return self.text.count("\n", 0, at) + 1

    def error(self, kind: type[Error], message: str, at: int | None = None) -> Error:
        """An error of this kind, with path, line and column."""
        if at is None:
            return kind(message, path=self.path)
        column = at - self.text.rfind("\n", 0, at)
        return kind(message, path=self.path, line=self.line(at), column=column)

    def find(self, atom: str, start: int) -> int:
        """Offset of a number or variable at or after `start`; `start` itself if it is written with blanks inside."""
        if len(atom) > 10_000:  # a pattern of that length takes seconds
            return start
        found = re.compile(r"(?<![\w.\-+])" + re.escape(atom) + r"(?![\w.])").search(self.text, start, start + 100_000)
        return found.start() if found else start


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
    """The number exactly; ValueError or OverflowError for one that is too long, too large or too close to 0."""
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


@dataclass(frozen=True, slots=True)
class Apply:
    """(+ a b ...), (- a ...) or (* a b ...). A term that is no Apply is a number or a variable as written."""

    operator: str
    operands: tuple[str | Apply, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Compare:
    """(< a b) and its like; `operator` is as written."""

    operator: str
    left: str | Apply
    right: str | Apply
    at: int


@dataclass(frozen=True, slots=True)
class SimpleRun:
    """Simple things in a row, as written: comparisons of two atoms each, no comments between them.

    `kind` says what stands in the row: "assertions" (assert (< a b)), "comparisons" (< a b), or "clauses"
    (and (< a b) ...). Every member counts as an assertion or part of its own.
    """

    kind: str
    text: str
    at: int

    def words(self) -> list[str]:
        """The words without parentheses."""
        return self.text.replace("(", " ").replace(")", " ").split()


@dataclass(frozen=True, slots=True)
class Junction:
    """(and ...) or (or ...)."""

    connective: str
    parts: tuple[Compare | Junction | SimpleRun, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A constant declared by a 1.0 file."""

    name: str
    sort: str
    at: int


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """An input, hidden node or output declared by a 2.x file; `kind` is one of these words.

    `node` is the name of a hidden node's ONNX output.
    """

    kind: str
    name: str
    element_type: str
    shape: tuple[int, ...]
    initialized: bool
    at: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class DeclaredRelation:
    """(equal-to name) or (isomorphic-to name)."""

    word: str
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class DeclaredNetwork:
    """A network declared by a 2.x file."""

    name: str
    relation: DeclaredRelation | None
    tensors: tuple[DeclaredTensor, ...]
    at: int


@dataclass(frozen=True, slots=True)
class SyntaxTree:
    """A whole file: `symbols` in 1.0, `networks` in 2.x."""

    version: tuple[int, int]
    symbols: tuple[Symbol, ...]
    networks: tuple[DeclaredNetwork, ...]
    assertions: tuple[Compare | Junction | SimpleRun, ...]
