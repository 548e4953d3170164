"""The one syntax tree of both versions of VNN-LIB.

A place (`at`) is an offset in the text; line and column are worked out only for an error.
"""

from __future__ import annotations

from dataclasses import dataclass


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
class Run:
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
    parts: tuple[Compare | Junction | Run, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A constant declared by a 1.0 file."""

    name: str
    sort: str
    at: int


@dataclass(frozen=True, slots=True)
class Tensor:
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
class Relation:
    """(equal-to name) or (isomorphic-to name)."""

    word: str
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Network:
    """A network declared by a 2.x file."""

    name: str
    relation: Relation | None
    tensors: tuple[Tensor, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Query:
    """A whole file: `symbols` in 1.0, `networks` in 2.x."""

    version: tuple[int, int]
    symbols: tuple[Symbol, ...]
    networks: tuple[Network, ...]
    assertions: tuple[Compare | Junction | Run, ...]
