"""What a property asks, in words: whoever reads them sees a comparison that is the wrong way round, or a missing bound.

Short, however large the property is: a few rows, cases and inputs, and how many more there are.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_CEILING, Context

import numpy as np

from bnn_vnnlib.question.options import Question
from bnn_vnnlib.question.property import HalfSpaces, Property
from bnn_vnnlib.result import Query, Rule
from bnn_vnnlib.signature import Variable

ROWS, CASES, TERMS, INPUTS = 4, 3, 6, 6
"""How many are written out: rows of a case, cases, terms of a row, inputs of a box."""

Names = tuple[Callable[[int], str], Callable[[int], str]]
"""What an input and an output are called in the file, by flat index."""


def violation(property: Property) -> str:
    """The set V of the property: `Y_0 >= 0.4 for some X_0 in [0, 1], X_1 = 0.5`."""
    count = property.num_cases
    if count == 0:
        return "none: no input satisfies the property's input part"
    signature = property.signature
    name = _named(property, signature.inputs), _named(property, signature.outputs)
    boxes = len(np.unique(property.case_box))
    shown = 1 if boxes > 1 else min(count, CASES)
    cases = [_conjunction(property.rows, case, name) or "any output" for case in range(shown)]
    if count > 1:
        cases = [f"({case})" if " and " in case else case for case in cases]
    text = f"{' or '.join(cases)} for some {_inputs(property, int(property.case_box[0]), name)}"
    if count == shown:
        return text
    more = f"one of {count - shown} more cases" if count - shown > 1 else "one more case"
    return f"{text}; or {more}" if boxes == 1 else f"{text}; or {more}, over {boxes} input sets in all"


def case_in_words(property: Property, case: int) -> str:
    """The rows of a case: `Y_0 >= 0.4 and Y_1 <= Y_0`."""
    signature = property.signature
    name = _named(property, signature.inputs), _named(property, signature.outputs)
    return _conjunction(property.rows, case, name) or "any output"


def what_unsat_means(query: Query, question: Question, has_posterior: bool, probabilities: bool) -> str:
    """What `unsat` says, given the violation.

    Parameters
    ----------
    has_posterior : of the model
    probabilities : its decision is made of probabilities
    """
    match query:
        case Query.PROBABILISTIC:
            return (
                f"P_safe >= {_number(question.tau_safe)}: with at least this probability a network drawn from the "
                "posterior has no such input"
            )
        case Query.DECISION:
            value = "expected probabilities" if probabilities else "expected outputs"
            value = "medians of the outputs" if question.rule is Rule.MEDIAN else value
            return f"no such input, where the outputs stand for the {value} over the posterior"
        case Query.DETERMINISTIC:
            return f"the network{' of the posterior means' if has_posterior else ''} has no such input"


def _named(property: Property, variables: tuple[Variable, ...]) -> Callable[[int], str]:
    def name(index: int) -> str:
        """The variable and the place in it of a flat index over all of them."""
        for variable in variables:
            if index < variable.size:
                place = np.unravel_index(index, variable.shape) if variable.shape else ()
                if property.version[0] == 1:
                    return f"{variable.name}_{index}"
                return f"{variable.name}[{','.join(map(str, place))}]" if place else variable.name
            index -= variable.size
        raise IndexError(index)

    return name


def _inputs(property: Property, box: int, name: Names) -> str:
    """The input set of a box."""
    boxes = property.boxes
    ends = zip(
        *(side[box].tolist() for side in (boxes.lower, boxes.upper, boxes.inner_lower, boxes.inner_upper)), strict=True
    )
    size = boxes.lower.shape[1]
    if size <= INPUTS:
        text = ", ".join(
            f"{name[0](i)} = {_number(low, inner)}"
            if _number(low, inner) == _number(high, outer)
            else f"{name[0](i)} in [{_number(low, inner)}, {_number(high, outer)}]"
            for i, (low, high, inner, outer) in enumerate(ends)
        )
    else:
        width = boxes.upper[box] - boxes.lower[box]
        vary = int((boxes.inner_lower[box] < boxes.inner_upper[box]).sum())
        each = f"each in an interval of width at most {_rounded_up(float(width.max()))}"
        some = "" if vary == size else f", {vary} of which vary"
        text = f"values of the {size} inputs{f'{some}, {each}' if vary else ', all of them fixed'}"
    further = _conjunction(property.constraints, box, name)
    return f"{text} with {further}" if further else text


def _conjunction(rows: HalfSpaces, owner: int, name: Names) -> str:
    """The rows of one owner; empty without any."""
    first, last = (int(end) for end in np.searchsorted(rows.owner, (owner, owner + 1)))
    texts = [_row(rows, r, name) for r in range(first, min(last, first + ROWS))]
    if last - first > ROWS:
        texts.append(f"{last - first - ROWS} more rows")
    return " and ".join(texts)


def _row(rows: HalfSpaces, r: int, name: Names) -> str:
    """A comparison with a positive first coefficient: `Y_0 >= 0.4`, `Y_0 <= Y_1`, `2 Y_0 - X_1 < 0.5`."""
    terms = [(float(rows.outputs[r, i]), name[1](i)) for i in np.flatnonzero(rows.outputs[r]).tolist()]
    if rows.inputs is not None:
        terms += [(float(rows.inputs[r, i]), name[0](i)) for i in np.flatnonzero(rows.inputs[r]).tolist()]
    sign = -1.0 if terms and terms[0][0] < 0 else 1.0
    relation = {(1.0, False): "<=", (1.0, True): "<", (-1.0, False): ">=", (-1.0, True): ">"}[
        sign, bool(rows.strict[r])
    ]
    right = _number(sign * float(rows.bound[r]), sign * float(rows.inner_bound[r]))
    if len(terms) == 2 and terms[0][0] == -terms[1][0] and right == "0":
        factor = "" if abs(terms[0][0]) == 1 else f"{_number(abs(terms[0][0]))} "
        return f"{factor}{terms[0][1]} {relation} {factor}{terms[1][1]}"
    left = ""
    for coefficient, variable in terms[:TERMS]:
        value = sign * coefficient
        factor = "" if abs(value) == 1 else f"{_number(abs(value))} "
        joint = ("-" if value < 0 else "") if not left else (" - " if value < 0 else " + ")
        left += f"{joint}{factor}{variable}"
    more = f" + {len(terms) - TERMS} more terms" if len(terms) > TERMS else ""
    return f"{left or '0'}{more} {relation} {right}"


def _number(outer: float, inner: float | None = None) -> str:
    """A number as short as the file has it: of its two roundings the one with fewer digits."""
    each = [outer] if inner is None else [outer, inner]
    shortest = min((repr(value) for value in each), key=len)
    return "0" if shortest == "-0.0" else shortest.removesuffix(".0")


def _rounded_up(value: float) -> str:
    """Three significant digits; what outward rounding of a bound adds does not show."""
    rounded = Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(value * (1 - 1e-9)))
    return f"{float(rounded):.3g}"
