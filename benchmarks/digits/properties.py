"""The properties, in VNN-LIB 1.0 and 2.0.

A property is written once, with the names of VNN-LIB 1.0 (X_5, Y_3); the 2.0 file has the same assertions with
indexed tensors. All numbers are exact decimals: pixels are multiples of 1/16, radii are short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import prod

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[Decimal]
_VARIABLE = re.compile(r"([XY])_(\d+)")
_LONE_AND = re.compile(r"\(and (\([^()]*\))\)")


@dataclass(frozen=True)
class Spec:
    """A property for one model.

    Attributes
    ----------
    name : of the files
    comments : lines without the leading ';'
    assertions : boolean expressions in VNN-LIB 1.0
    input_shape, output_shape : of the model
    """

    name: str
    comments: tuple[str, ...]
    assertions: tuple[str, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    def v1(self) -> str:
        """The text in VNN-LIB 1.0."""
        sizes = (("X", prod(self.input_shape)), ("Y", prod(self.output_shape)))
        declared = [f"(declare-const {letter}_{i} Real)" for letter, size in sizes for i in range(size)]
        return self._text([*declared, *(f"(assert {text})" for text in self.assertions)])

    def v2(self) -> str:
        """The text in VNN-LIB 2.0; `real`, because the bounds are meant for real arithmetic on the stored weights."""
        header = [
            "(vnnlib-version <2.0>)",
            "(declare-network f",
            f"    (declare-input X real {_dims(self.input_shape)})",
            f"    (declare-output Y real {_dims(self.output_shape)})",
            ")",
        ]
        return self._text([*header, *(f"(assert {self._indexed(text)})" for text in self.assertions)])

    def _text(self, lines: Iterable[str]) -> str:
        return "\n".join([*(f"; {comment}" for comment in self.comments), *lines]) + "\n"

    def _indexed(self, text: str) -> str:
        shapes = {"X": self.input_shape, "Y": self.output_shape}

        def tensor(found: re.Match[str]) -> str:
            index = np.unravel_index(int(found[2]), shapes[found[1]])
            return found[1] + "[" + ",".join(str(int(i)) for i in index) + "]"

        # 1.0 readers expect (or (and row) ...); the text of 2.0 wants two or more parts in an `and`
        return _VARIABLE.sub(tensor, _LONE_AND.sub(r"\1", text))


def exact(values: NDArray[np.float64], places: int = 4) -> list[Decimal]:
    """Decimals of at most so many places; digits' pixels need four and lose nothing."""
    return [Decimal(repr(float(np.round(value, places)))) for value in values]


def number(value: Decimal) -> str:
    """A literal of both versions: no exponent, and a point even in whole numbers."""
    whole, _, part = f"{value + 0:f}".partition(".")  # + 0 turns -0 into 0
    return f"{whole}.{part.rstrip('0') or '0'}"


def box(centre: Numbers, radii: Numbers, low: Decimal | None = None, high: Decimal | None = None) -> list[str]:
    """Every input within its radius of the centre, clipped to [low, high] where given."""
    rows = []
    for i, (value, radius) in enumerate(zip(centre, radii, strict=True)):
        lower, upper = value - radius, value + radius
        lower = lower if low is None else max(lower, low)
        upper = upper if high is None else min(upper, high)
        rows += [f"(>= X_{i} {number(lower)})", f"(<= X_{i} {number(upper)})"]
    return rows


def image_box(image: Numbers, eps: Decimal) -> list[str]:
    """The eps-ball in the maximum norm around an image, clipped to [0, 1]."""
    return box(image, [eps] * len(image), Decimal(0), Decimal(1))


def other_class(label: int, classes: int = 10) -> str:
    """Violation: some other class scores at least as much as the label."""
    return "(or " + " ".join(f"(and (>= Y_{j} Y_{label}))" for j in range(classes) if j != label) + ")"


def largest(target: int, classes: int = 10) -> str:
    """The target scores at least as much as every other class."""
    return conjunction(f"(>= Y_{target} Y_{j})" for j in range(classes) if j != target)


def sum_unchanged(image: Numbers, slack: Decimal) -> list[str]:
    """The image's total brightness changes by at most the slack."""
    total = "(+ " + " ".join(f"X_{i}" for i in range(len(image))) + ")"
    return [f"(>= {total} {number(sum(image) - slack)})", f"(<= {total} {number(sum(image) + slack)})"]


def row_together(image: Numbers, row: int, slack: Decimal, width: int = 8) -> list[str]:
    """Neighbouring pixels of one row change by the same amount, up to the slack."""
    rows = []
    for i in range(width * row, width * row + width - 1):
        step = image[i] - image[i + 1]
        rows += [f"(>= (- X_{i} X_{i + 1}) {number(step - slack)})", f"(<= (- X_{i} X_{i + 1}) {number(step + slack)})"]
    return rows


def conjunction(rows: Iterable[str]) -> str:
    """All of the rows, as one flat `and`."""
    return "(and " + " ".join(rows) + ")"


def outside(low: Decimal, high: Decimal) -> str:
    """Violation of a regression property: the output leaves [low, high]."""
    return f"(or (and (<= Y_0 {number(low)})) (and (>= Y_0 {number(high)})))"


def _dims(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(str(size) for size in shape) + "]"
