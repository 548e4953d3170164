"""Requirements as people say them, written as VNN-LIB: "within 0.02 of this image, class 9 stays the largest".

VNN-LIB describes what must *not* happen. Here one says what must happen, and the negation is done:

1. `Requirement`: what the outputs must do. `robust`, `within`, `most_likely`, `least_cost`, `confident` and `uncertain`
   make one; the last four are about the decision, and mean the same as their namesakes in `bnn_vnnlib.rules`.
2. `Region`: the inputs for which they must do it, given in the units of the data.
3. `property_text` writes both; `parse_property` reads the text back.

Numbers are decimals, and what is written is exact, with one exception: where the network takes standardised inputs
(x - mean) / std, the ends of the intervals are rounded outward to 20 digits, so that the file covers the whole region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from itertools import starmap
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bnn_vnnlib.errors import InputError, OptionError, names_arguments
from bnn_vnnlib.printable import printable
from bnn_vnnlib.result import Query
from bnn_vnnlib.signature import Signature, Variable

Number: TypeAlias = float | str | Decimal
Version = Literal["1.0", "2.0"]

_DOWN, _UP = (Context(prec=20, rounding=rounding) for rounding in (ROUND_FLOOR, ROUND_CEILING))


def decimal(value: Any, what: str) -> Decimal:
    """A finite number as one reads it: 0.1 is a tenth, not the float64 next to it.

    Raises
    ------
    OptionError : it is none
    """
    try:
        text = repr(float(value)) if isinstance(value, np.floating) else str(value).strip()
        found = Decimal(text)
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite():
        raise OptionError(f"{what} must be a finite number, found {value!r}")
    return found


# 1. What the outputs must do


@dataclass(frozen=True)
class Row:
    """A comparison of outputs: sum of coefficient * Y_index <= bound, or < bound where strict."""

    coefficients: Mapping[int, Decimal]
    bound: Decimal
    strict: bool = False


@dataclass(frozen=True)
class Requirement:
    """What the outputs must do.

    Attributes
    ----------
    says : it in words
    outputs : m, how many the network has
    forbidden : the negation: the rows of one of these cases hold together
    comment : settings that the file carries for this program (`question.options.IN_COMMENTS`)
    """

    says: str
    outputs: int
    forbidden: tuple[tuple[Row, ...], ...]
    comment: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.forbidden:
            raise OptionError("nothing is asked of any output: every network would satisfy it")
        if bad := [i for case in self.forbidden for row in case for i in row.coefficients if not 0 <= i < self.outputs]:
            raise OptionError(f"there are {self.outputs} outputs, 0 to {self.outputs - 1}; found {bad[0]}")

    def asked(self, comment: Mapping[str, str]) -> Requirement:
        """This requirement, asked with these settings in place of its own; asked with another query than the decision,
        it is about the outputs as they are.
        """
        settings = {**self.comment, **comment}
        if "query" not in self.comment or settings["query"] == Query.DECISION:
            return replace(self, comment=settings)
        settings.pop("outputs", None)
        return replace(self, says=self.says.replace("expected probability", "output"), comment=settings)


_OF_PROBABILITIES = {"query": Query.DECISION.value, "outputs": "probabilities"}


@names_arguments
def robust(outputs: int, label: int) -> Requirement:
    """Output `label` is larger than every other one. Ties are forbidden."""
    return Requirement(f"output {label} is larger than every other output", outputs, _beaten(outputs, label), {})


@names_arguments
def within(lower: Sequence[Number | None], upper: Sequence[Number | None]) -> Requirement:
    """lower_j <= Y_j <= upper_j for every output j; None, -inf below and inf above ask nothing."""
    if len(lower) != len(upper):
        raise OptionError(
            f"an interval for each output is needed, found {len(lower)} lower and {len(upper)} upper ends"
        )
    cases, said = [], []
    ends = [_end(value, "-") for value in lower], [_end(value, "+") for value in upper]
    for j, (low, high) in enumerate(zip(*ends, strict=True)):
        if low is not None and high is not None and low > high:
            raise OptionError(f"output {j} must lie between {low} and {high}: there is no such number")
        cases += [(Row({j: Decimal(1)}, low, strict=True),)] if low is not None else []
        cases += [(Row({j: Decimal(-1)}, -high, strict=True),)] if high is not None else []
        if low is not None and high is not None:
            said.append(f"output {j} lies in [{low}, {high}]")
        elif low is not None or high is not None:
            said.append(f"output {j} is at least {low}" if high is None else f"output {j} is at most {high}")
    return Requirement(_listed(said, " and "), len(lower), tuple(cases), {})


@names_arguments
def most_likely(outputs: int, label: int) -> Requirement:
    """The expected probability of class `label` is larger than that of every other class. Ties are forbidden."""
    says = f"class {label} has the largest expected probability"
    return Requirement(says, outputs, _beaten(outputs, label), {"query": Query.DECISION.value})


@names_arguments
def least_cost(costs: Sequence[Number], label: int) -> Requirement:
    """Deciding class i costs K_i where i is wrong: its expected cost is K_i (1 - Y_i), and that of `label` is least."""
    k = [decimal(cost, "a cost") for cost in costs]
    _check_label(len(k), label)
    if min(k) <= 0:
        raise OptionError(f"costs must be positive, found {min(k)}")
    cases = tuple((Row({label: k[label], j: -k[j]}, k[label] - k[j]),) for j in range(len(k)) if j != label)
    said = (
        f"deciding class {label} has the least expected cost, where a wrong class i costs {_listed(map(str, k), ', ')}"
    )
    return Requirement(f"{said} (i = 0, 1, ...)", len(k), cases, _OF_PROBABILITIES)


@names_arguments
def confident(outputs: int, label: int, tau: Number) -> Requirement:
    """The expected probability of class `label` is at least tau."""
    bound = _probability(tau)
    _check_label(outputs, label)
    says = f"the expected probability of class {label} is at least {bound}"
    return Requirement(says, outputs, ((Row({label: Decimal(1)}, bound, strict=True),),), _OF_PROBABILITIES)


@names_arguments
def uncertain(outputs: int, tau: Number) -> Requirement:
    """No class has an expected probability above tau."""
    bound = _probability(tau)
    _check_label(outputs, 0)
    cases = tuple((Row({j: Decimal(-1)}, -bound, strict=True),) for j in range(outputs))
    return Requirement(f"no class has an expected probability above {bound}", outputs, cases, _OF_PROBABILITIES)


def _beaten(outputs: int, label: int) -> tuple[tuple[Row, ...], ...]:
    """Some output j reaches output `label`: Y_label - Y_j <= 0."""
    _check_label(outputs, label)
    others = (j for j in range(outputs) if j != label)
    return tuple((Row({label: Decimal(1), j: Decimal(-1)}, Decimal(0)),) for j in others)


def _check_label(outputs: int, label: int) -> None:
    if outputs < 2:
        raise OptionError("a classifier has at least two outputs; for one output say between which values it must lie")
    if not 0 <= label < outputs:
        raise OptionError(f"the label must be one of 0 to {outputs - 1}, found {label}")


def _probability(tau: Number) -> Decimal:
    value = decimal(tau, "tau")
    if not 0 <= value <= 1:
        raise OptionError(f"tau is a probability, between 0 and 1; found {tau}")
    return value


def _end(value: Number | None, open_: str) -> Decimal | None:
    """None where nothing is asked: no end, or the infinity of this sign. The other one is refused: nothing meets it."""
    text = str(value).strip().lower()
    if value is None or (text.lstrip("+-") in ("inf", "infinity") and (text[0] == "-") == (open_ == "-")):
        return None
    return decimal(value, "an end of an interval")


def _listed(parts: Iterable[str], between: str, most: int = 6) -> str:
    found = list(parts)
    more = [f"{len(found) - most} more"] if len(found) > most else []
    return between.join([*found[:most], *more])


# 2. For which inputs


@dataclass(frozen=True)
class Region:
    """A box of inputs.

    Attributes
    ----------
    lower, upper : n numbers each, as the network takes them
    says : in words, after "for every input"
    """

    lower: tuple[Decimal, ...]
    upper: tuple[Decimal, ...]
    says: str


@names_arguments
def around(
    center: ArrayLike, radius: Number | Sequence[Number] | ArrayLike,
    clip: tuple[Any, Any] | None = None, mean: Any = 0, std: Any = 1, called: str = "a given one",
) -> Region:  # fmt: skip
    """All inputs that differ from the centre by at most the radius in each number.

    Parameters
    ----------
    center : n numbers, of any shape
    radius : one number, or one for each input
    clip : the range of values that occur, (low, high), each one number or n; the centre lies in it
    mean, std : the network takes (x - mean) / std; one number, or n. All else is in the units of x
    called : the centre in words

    Raises
    ------
    OptionError : numbers that do not fit, a negative radius, a centre outside of the range
    """
    x = numbers(center, None, "the centre")
    r = numbers(radius, len(x), "the radius")
    if min(r) < 0:
        raise OptionError(f"the radius must not be negative, found {min(r)}")
    lower, upper = list(map(_DOWN.subtract, x, r)), list(map(_UP.add, x, r))
    says = f"within {_range(r)} of {called} in each number"
    if clip is not None:
        low, high = (numbers(end, len(x), "the valid range") for end in clip)
        for i, (at, first, last) in enumerate(zip(x, low, high, strict=True)):
            if not first <= at <= last:
                raise OptionError(f"number {i} of {called} is {at}, outside of the valid range [{first}, {last}]")
        lower, upper = list(map(max, lower, low)), list(map(min, upper, high))
        says += f", and inside the valid range [{_range(low)}, {_range(high)}]"
    return _standardised(lower, upper, mean, std, says)


@names_arguments
def between(lower: ArrayLike, upper: ArrayLike, mean: Any = 0, std: Any = 1) -> Region:
    """All inputs between two ends; mean and std as in `around`."""
    low = numbers(lower, None, "the lower end of the inputs")
    high = numbers(upper, len(low), "the upper end of the inputs")
    for i, (first, last) in enumerate(zip(low, high, strict=True)):
        if first > last:
            raise OptionError(f"input {i} must lie between {first} and {last}: there is no such number")
    return _standardised(low, high, mean, std, "between the given ends")


def numbers(values: Any, count: int | None, what: str) -> list[Decimal]:
    """`count` decimals, from as many numbers or from one; None: as many as there are."""
    found = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    flat = [decimal(value, what) for value in found.ravel()]
    if count is not None and len(flat) == 1:
        flat *= count
    if len(flat) == 0 or (count is not None and len(flat) != count):
        wanted = "at least one number" if count is None else f"one number, or {count}"
        raise OptionError(f"{what} must be {wanted}, found {len(flat)}")
    return flat


def _standardised(lower: list[Decimal], upper: list[Decimal], mean: Any, std: Any, says: str) -> Region:
    middle, scale = numbers(mean, len(lower), "the mean"), numbers(std, len(lower), "the standard deviation")
    if min(scale) <= 0:
        raise OptionError(f"the standard deviation must be positive, found {min(scale)}")
    if any(middle) or any(value != 1 for value in scale):
        lower = [_DOWN.divide(_DOWN.subtract(x, m), s) for x, m, s in zip(lower, middle, scale, strict=True)]
        upper = [_UP.divide(_UP.subtract(x, m), s) for x, m, s in zip(upper, middle, scale, strict=True)]
        says += f"; the network takes (x - mean) / std with mean {_range(middle)} and std {_range(scale)}"
    return Region(tuple(lower), tuple(upper), says)


def _range(values: Sequence[Decimal]) -> str:
    """The range of the values in words: one number where all are equal."""
    ends = [f"{value.normalize():f}" for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


# 3. The text


@names_arguments
def property_text(
    region: Region, requirement: Requirement, version: Version = "1.0", signature: Signature | None = None,
    comment: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """The property as VNN-LIB, with what it means in its first lines.

    Parameters
    ----------
    signature : of the model, whose shapes a 2.0 file declares; None: one input and one output without shapes
    comment : settings in place of the requirement's own, with or without them

    Raises
    ------
    InputError : the requirement or the region has another number of outputs or inputs than the model; a 1.0 file of a
        model with several inputs or outputs
    """
    n, m = len(region.lower), requirement.outputs
    _check_fit(signature, n, m, version)
    requirement = requirement.asked(comment or {})
    settings = requirement.comment
    lines = [
        f"; Required: {requirement.says}",
        f";           for every input {region.says}.",
        f"; Forbidden, and stated below: {_listed(map(_case_in_words, requirement.forbidden), ', or ', 3)}",
        ";           for some of these inputs. The answer `unsat` is the good news: nothing forbidden happens.",
    ]
    lines = [printable(line) for line in lines]
    lines += [f"; bnn-vnnlib: {' '.join(starmap('{}={}'.format, settings.items()))}"] if settings else []
    if version == "1.0":
        inputs, outputs = [f"X_{i}" for i in range(n)], [f"Y_{j}" for j in range(m)]
        lines += [f"(declare-const {name} Real)" for name in (*inputs, *outputs)]
    else:
        declaration, (inputs, outputs) = declared(signature, n, m)
        lines += ["(vnnlib-version <2.0>)", *declaration]
    for name, low, high in zip(inputs, region.lower, region.upper, strict=True):
        lines += [f"(assert (>= {name} {low:f}))", f"(assert (<= {name} {high:f}))"]
    cases = [[_comparison(row, outputs) for row in case] for case in requirement.forbidden]
    if len(cases) == 1:
        lines += [f"(assert {row})" for row in cases[0]]
    else:
        lines.append(f"(assert (or {' '.join('(and ' + ' '.join(case) + ')' for case in cases)}))")
    return "\n".join(lines) + "\n"


def _check_fit(signature: Signature | None, n: int, m: int, version: str) -> None:
    if signature is None:
        return
    if (n, m) != (signature.input_size, signature.output_size):
        raise InputError(
            f"the network takes {signature.input_size} numbers and gives {signature.output_size}; "
            f"the region has {n}, and the requirement is about {m}"
        )
    if version == "1.0" and (len(signature.inputs), len(signature.outputs)) != (1, 1):
        raise InputError("VNN-LIB 1.0 knows one input and one output; this network has more: write version 2.0")


def declared(
    signature: Signature | None, n: int, m: int, network: str = "f"
) -> tuple[list[str], tuple[list[str], list[str]]]:
    """The declaration of a network in 2.0, and the names of all inputs and of all outputs in order."""
    sides: tuple[tuple[Variable, ...], tuple[Variable, ...]] = (
        (Variable("", "real", (n,)),),
        (Variable("", "real", (m,)),),
    )
    if signature is not None:
        sides = signature.inputs, signature.outputs
    lines, suffix = [f"(declare-network {network}"], "" if network == "f" else f"_{network}"
    names: list[list[str]] = []
    for word, letter, variables in (("input", "X", sides[0]), ("output", "Y", sides[1])):
        names.append([])
        for k, variable in enumerate(variables):
            name = (letter if len(variables) == 1 else f"{letter}{k}") + suffix
            shape = variable.shape or (1,)
            lines.append(f"    (declare-{word} {name} real [{','.join(map(str, shape))}])")
            names[-1] += [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
    return [*lines, ")"], (names[0], names[1])


def _comparison(row: Row, names: Sequence[str]) -> str:
    """`(<= Y_0 0.4)`, `(>= Y_1 Y_0)`, `(<= (+ (* 2 Y_0) (* -3 Y_1)) -1)`."""
    parts = list(row.coefficients.items())
    relation = ("<=", "<"), (">=", ">")
    if len(parts) == 1 and abs(parts[0][1]) == 1:
        ((index, sign),) = parts
        return f"({relation[sign < 0][row.strict]} {names[index]} {sign * row.bound:f})"
    if len(parts) == 2 and row.bound == 0 and {value for _, value in parts} == {1, -1}:
        (one, sign), (other, _) = parts
        return f"({relation[sign > 0][row.strict]} {names[other]} {names[one]})"
    terms = " ".join(f"(* {value:f} {names[index]})" for index, value in parts)
    return f"({relation[0][row.strict]} {terms if len(parts) == 1 else f'(+ {terms})'} {row.bound:f})"


def _case_in_words(case: Sequence[Row]) -> str:
    return " and ".join(map(_row_in_words, case))


def _row_in_words(row: Row) -> str:
    relation = ("<=", "<"), (">=", ">")
    (first, sign), *rest = row.coefficients.items()
    if len(rest) == 1 and row.bound == 0 and {sign, rest[0][1]} == {1, -1}:
        return f"Y_{rest[0][0]} {relation[sign > 0][row.strict]} Y_{first}"
    turn = -1 if sign < 0 else 1
    terms = [f"{'' if turn * value == 1 else f'{turn * value} '}Y_{index}" for index, value in row.coefficients.items()]
    return f"{' + '.join(terms).replace('+ -', '- ')} {relation[turn < 0][row.strict]} {turn * row.bound}"


MAKERS: dict[str, Callable[..., Requirement]] = {
    make.__name__: make for make in (robust, within, most_likely, least_cost, confident, uncertain)
}
"""The makers of requirements by name, as the command `property` offers them."""
