"""VNN-LIB 1.0 and 2.0: the text of a property to cases, in exact rationals.

A case is a box of inputs and a conjunction of rows a.y + g.x <= b (or < b); constraints on the inputs that are no box
stay with the case. What is asserted is a formula of `and`, `or` and comparisons of linear terms; it is brought into
disjunctive normal form here, exactly. A case whose box is empty has no points and is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bnn_vnnlib_check.errors import UnreadableError

MOST_CASES, MOST_DEPTH, MOST_DIGITS, MOST_INPUTS = 100_000, 64, 1000, 10**7

_TOKEN, _LINE_END = re.compile(r'"[^"]*"|[()"]|[^\s()"]+'), re.compile(r"[\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?")
_VARIABLE = re.compile(r"([XY])_(\d{1,9})")
_INDEXED = re.compile(r"([^\[\]\s]+)\[([\d,\s]+)\]")
_COMMENT = re.compile(r"[^;]*;[;\s]*bnn-vnnlib(?![\w.\-/])(?::|(?=.*=))(.*)")

Term = tuple[dict[tuple[str, int], Fraction], Fraction]
"""Coefficients of inputs ("X", i) and outputs ("Y", i), and a constant."""

Atom = tuple[Term, bool]
"""Term <= 0, or < 0 where True."""


@dataclass(frozen=True)
class Row:
    """a.y + g.x <= bound, or < bound where strict; a, g : index -> coefficient, none of them 0."""

    outputs: Mapping[int, Fraction]
    inputs: Mapping[int, Fraction]
    bound: Fraction
    strict: bool


@dataclass(frozen=True)
class Case:
    """lower, upper : of each input, closed; rows : with outputs; constraints : on inputs alone, and strict sides of
    the box."""

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    rows: tuple[Row, ...]
    constraints: tuple[Row, ...]


@dataclass(frozen=True)
class Property:
    """The set of violations.

    cases : those whose box is not empty; inputs, outputs : how many
    comment : the settings of `; bnn-vnnlib: key=value ...`
    """

    cases: tuple[Case, ...]
    inputs: int
    outputs: int
    comment: Mapping[str, str]


def number(text: str) -> Fraction:
    """A decimal number, exactly."""
    if len(text) > MOST_DIGITS or not _NUMBER.fullmatch(text):
        raise UnreadableError(f"{text[:40]!r} is no number")
    return Fraction(text)


def read_property(data: bytes) -> Property:
    """The property of a file's bytes."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError("the property is no text in UTF-8") from error
    reader = _Reader()
    for form in _forms(text):
        reader.take(form)
    return reader.property(_comment(text))


def _comment(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _LINE_END.split(text):
        match = _COMMENT.match(line)
        for word in match[1].split() if match else ():
            key, equals, value = word.partition("=")
            if not equals or key in found:
                raise UnreadableError(f"the property's comment {line.strip()[:60]!r} is not understood")
            found[key] = value
    return found


def _forms(text: str) -> list[Any]:
    """The parenthesised forms of a text, as nested lists."""
    top: list[Any] = []
    stack = [top]
    for line in _LINE_END.split(text):
        for token in _TOKEN.findall(line.partition(";")[0]):
            if token == "(":  # noqa: S105
                stack[-1].append([])
                stack.append(stack[-1][-1])
                if len(stack) > MOST_DEPTH:
                    raise UnreadableError("the property nests too deeply")
            elif token == ")":  # noqa: S105
                stack.pop()
                if not stack:
                    raise UnreadableError("the property closes a parenthesis that was never opened")
            else:
                stack[-1].append(token)
    if len(stack) > 1:
        raise UnreadableError("the property ends inside a parenthesis")
    return top


class _Reader:
    """common : the atoms of all cases; cases : what they have besides."""

    def __init__(self) -> None:
        self._sizes = {"X": 0, "Y": 0}
        self._tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._declared: set[tuple[str, int]] = set()
        self._common: list[Atom] = []
        self._cases: list[list[Atom]] = [[]]

    def take(self, form: Any) -> None:
        """Take over one form of the file: a declaration or an assertion."""
        match form:
            case ["vnnlib-version", _]:
                pass
            case ["declare-const", str(name), "Real"]:
                match_ = _VARIABLE.fullmatch(name)
                if match_ is None or (key := (match_[1], int(match_[2]))) in self._declared:
                    raise UnreadableError(f"{name!r} is declared twice, or is no X_i or Y_i")
                self._declared.add(key)
                self._sizes[key[0]] += 1
            case ["declare-network", str(_), *parts]:
                if self._tensors or self._declared:
                    raise UnreadableError("properties of several networks are not known to this version")
                for part in parts:
                    self._declare(part)
            case ["assert", formula]:
                self._assert(self._normal(formula))
            case _:
                raise UnreadableError(f"not known to this version: {str(form)[:60]}")

    def _declare(self, part: Any) -> None:
        match part:
            case ["declare-input" | "declare-output" as what, str(name), str(_), *shape]:
                sizes, kind = "".join(shape).strip("[]"), "X" if what == "declare-input" else "Y"
                if not re.fullmatch(r"(\d{1,9}(,\d{1,9})*)?", sizes) or name in self._tensors:
                    raise UnreadableError(f"the shape of {name!r} is not understood, or it is declared twice")
                if self._sizes[kind]:
                    raise UnreadableError("several inputs or outputs are not known to this version")
                dims = tuple(int(n) for n in sizes.split(",") if n)
                self._tensors[name], self._sizes[kind] = (kind, dims), math.prod(dims)
            case _:
                raise UnreadableError(f"not known to this version: {str(part)[:60]}")

    def _assert(self, found: list[list[Atom]]) -> None:
        if len(found) == 1:
            self._common += found[0]
        else:
            self._cases = _joined(self._cases, found)

    def _normal(self, form: Any) -> list[list[Atom]]:
        """A formula as a disjunction of conjunctions of atoms."""
        match form:
            case ["and", *parts] if parts:
                found: list[list[Atom]] = [[]]
                for part in parts:
                    found = _joined(found, self._normal(part))
                return found
            case ["or", *parts] if parts:
                return [one for part in parts for one in self._normal(part)]
            case ["<" | "<=" | ">" | ">=" as sign, left, right]:
                less = _minus(self._term(left), self._term(right))
                return [[(less if sign[0] == "<" else _times(less, Fraction(-1)), len(sign) == 1)]]
            case ["=" | "==", left, right]:
                less = _minus(self._term(left), self._term(right))
                return [[(less, False), (_times(less, Fraction(-1)), False)]]
            case _:
                raise UnreadableError(f"not known to this version: {str(form)[:60]}")

    def _term(self, form: Any) -> Term:
        """A linear term of the property, exactly."""
        match form:
            case str(name) if _NUMBER.fullmatch(name):
                return {}, number(name)
            case str(name):
                return {self._variable(name): Fraction(1)}, Fraction(0)
            case ["+", *parts] if parts:
                total: Term = ({}, Fraction(0))
                for part in parts:
                    total = _minus(total, _minus(({}, Fraction(0)), self._term(part)))
                return total
            case ["-", one]:
                return _minus(({}, Fraction(0)), self._term(one))
            case ["-", first, *rest]:
                return _minus(self._term(first), self._term(["+", *rest]))
            case ["*", first, second]:
                one, other = self._term(first), self._term(second)
                if one[0] and other[0]:
                    raise UnreadableError("products of variables are not known to this version")
                return _times(other, one[1]) if not one[0] else _times(one, other[1])
            case _:
                raise UnreadableError(f"no linear term: {str(form)[:60]}")

    def _variable(self, name: str) -> tuple[str, int]:
        """The kind ("X" or "Y") and the flat index of a variable that is declared."""
        found = _VARIABLE.fullmatch(name)
        if found is not None and (key := (found[1], int(found[2]))) in self._declared:
            return key
        indexed = _INDEXED.fullmatch(name)
        tensor = self._tensors.get(indexed[1] if indexed else name)
        if tensor is not None:
            kind, dims = tensor
            places = [int(n) for n in indexed[2].split(",")] if indexed else []
            if len(places) == len(dims) and all(i < n for i, n in zip(places, dims, strict=True)):
                flat = 0
                for i, n in zip(places, dims, strict=True):
                    flat = flat * n + i
                return kind, flat
        raise UnreadableError(f"the property uses {name[:40]!r}, which it does not declare")

    def property(self, comment: Mapping[str, str]) -> Property:
        n, m = self._sizes["X"], self._sizes["Y"]
        indices = {kind: {i for k, i in self._declared if k == kind} for kind in "XY"}
        if self._declared and any(indices[kind] != set(range(self._sizes[kind])) for kind in "XY"):
            raise UnreadableError("the variables X_i or Y_i are not numbered from 0 on")
        if not n or not m or n * len(self._cases) > MOST_INPUTS:
            raise UnreadableError("the property has no inputs, no outputs, or too many of both")
        cases = (_case(self._common + atoms, n) for atoms in self._cases)
        return Property(tuple(case for case in cases if case is not None), n, m, comment)


def _case(atoms: list[Atom], inputs: int) -> Case | None:
    """A conjunction; None where no input meets its box."""
    lower, upper = dict[int, Fraction](), dict[int, Fraction]()
    rows, constraints = list[Row](), list[Row]()
    for (coefficients, constant), strict in atoms:
        y, x = ({i: a for (kind, i), a in coefficients.items() if a and kind == which} for which in "YX")
        if y:
            rows.append(Row(y, x, -constant, strict))
        elif not x:
            if constant > 0 or (strict and constant == 0):
                return None
        else:
            if len(x) == 1:
                ((i, a),) = x.items()
                side, tighter = (upper, min) if a > 0 else (lower, max)
                side[i] = tighter(side.get(i, -constant / a), -constant / a)
            if len(x) > 1 or strict:  # for points: whoever covers the box covers its sides, too
                constraints.append(Row({}, x, -constant, strict))
    for i in range(inputs):
        if i not in lower or i not in upper:
            raise UnreadableError(f"input {i} has no lower or no upper bound in some case")
    if any(lower[i] > upper[i] for i in range(inputs)):
        return None
    low, high = (tuple(side[i] for i in range(inputs)) for side in (lower, upper))
    return Case(low, high, tuple(rows), tuple(constraints))


def _joined(one: list[list[Atom]], other: list[list[Atom]]) -> list[list[Atom]]:
    """The conjunction of two disjunctions, multiplied out."""
    if len(one) * len(other) > MOST_CASES:
        raise UnreadableError(f"the property has more than {MOST_CASES} cases")
    return [a + b for a in one for b in other]


def _minus(one: Term, other: Term) -> Term:
    coefficients = dict(one[0])
    for key, value in other[0].items():
        coefficients[key] = coefficients.get(key, Fraction(0)) - value
    return coefficients, one[1] - other[1]


def _times(term: Term, factor: Fraction) -> Term:
    return {key: value * factor for key, value in term[0].items()}, term[1] * factor
