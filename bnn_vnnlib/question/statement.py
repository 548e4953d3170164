"""What a property asks, in words, and whether it asks anything: nothing can violate a vacuous property.

1. Vacuous properties. They hold whatever the network: usually a mistake, and a proof of nothing. A case is
contradictory if its rows a.y + g.x <= b (or <) and the constraints on its inputs have no solution with x in the box and
y anywhere. By Farkas' lemma it is enough to find multipliers l >= 0 with sum l a = 0 and

    sum l b < min over the box of (sum l g).x,   or = if a row with l > 0 is strict:

every solution would give (sum l g).x <= sum l b (<, with such a row), which no x of the box does. A linear program
proposes multipliers; they are rounded to simple fractions and checked exactly, with the outward bounds. So the mark is
proved where it is given; a contradiction that needs other multipliers is missed.

2. The statement in words. Whoever reads it sees a comparison that is the wrong way round, or a missing bound. It is
short, however large the property is: a few rows, cases and inputs, and how many more there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.question.options import Question
from bnn_vnnlib.question.property import HalfSpaces, Polynomial, Property, row_false
from bnn_vnnlib.result import Query
from bnn_vnnlib.signature import Variable

# 1. Vacuous properties

_MAX_CHECKED_CASES = 1000
"""Cases that are looked at, at most: with so many contradictory ones in a row nothing is said."""

_TRIED_CASES = 100
"""Cases among which one is looked for that is easily met."""

_MAX_COEFFICIENTS = 1_000_000
"""Coefficients of a case, at most, that are looked at."""

_DENOMINATORS = (1, 12, 1000, 10**6)
"""Largest denominators of the multipliers, the simplest first."""


def vacuous(property: Property) -> str | None:
    """Why nothing can violate the property, or None where something might."""
    if property.num_cases == 0:
        return "no input satisfies its input part"
    if _easily_met(property):
        return None
    without_inputs = 0
    for case in range(property.num_cases):
        if case == _MAX_CHECKED_CASES:
            return None
        if _system(property, case, rows=False).contradictory:
            without_inputs += 1
        elif not _system(property, case, rows=True).contradictory:
            return None
    if without_inputs == property.num_cases:
        return "no input satisfies its input part"
    return (
        "its rows contradict each other" if property.num_cases == 1 else "the rows of every case contradict each other"
    )


def vacuous_row(a: Floats, b: Floats, case: NDArray[np.int64]) -> int | None:
    """The first of N boxes, each with its own cases, whose rows contradict each other in every case; None if there is
    none.

    Parameters
    ----------
    a, b, case : (N, R, m), (N, R), (R,): the case holds where all its rows a.y <= b do
    """
    numbers, owner = np.unique(case, return_inverse=True)
    open_ = np.flatnonzero(~np.any([_far_out(a[:, owner == k]) for k in range(len(numbers))], axis=0))
    none, strict = np.zeros((len(case), 0)), np.zeros(len(case), bool)
    for row in open_[:_MAX_CHECKED_CASES].tolist():
        parts = [owner == k for k in range(len(numbers))]
        systems = (_System(a[row, r], none[r], b[row, r], strict[r], none[0], none[0]) for r in parts)
        if all(system.contradictory for system in systems):
            return row
    return None


def _far_out(a: Floats) -> NDArray[np.bool_]:
    """(N,): one direction leads away from all rows of a (N, R, m); see `_easily_met`."""
    length = np.sqrt((a**2).sum(axis=-1, keepdims=True))
    unit = a / np.where(length > 0, length, 1.0)
    away: NDArray[np.bool_] = ((unit * -unit.sum(axis=1, keepdims=True)).sum(axis=-1) < -1e-9).all(axis=1)
    return away


def _easily_met(property: Property) -> bool:
    """Some case is met by an output far out in one direction, which covers nearly all properties: no row is against it.

    With d = -(sum of the rows' unit vectors) and a_r.d < 0 for all rows, y = t d meets all of them for large t.
    """
    cases = min(property.num_cases, _TRIED_CASES)
    owner = property.rows.owner[: np.searchsorted(property.rows.owner, cases)]
    outputs = property.rows.outputs[: len(owner)]
    length = np.sqrt((outputs**2).sum(axis=1))
    unit = outputs / np.where(length > 0, length, 1.0)[:, None]
    direction = np.zeros((cases, outputs.shape[1]))
    np.subtract.at(direction, owner, unit)
    against = ~((unit * direction[owner]).sum(axis=1) < -1e-9)
    met = np.bincount(owner, weights=against, minlength=cases) == 0
    limited = np.isin(property.case_box[:cases], property.constraints.owner)
    if property.polynomials:
        limited |= np.array([bool(property.polynomials[box]) for box in property.case_box[:cases].tolist()])
    return bool((met & ~limited).any())


@dataclass(frozen=True, eq=False)
class _System:
    """R rows a.y + g.x <= b (or <), x in [lower, upper]; inputs that no row mentions are left out."""

    outputs: Floats
    inputs: Floats
    bound: Floats
    strict: NDArray[np.bool_]
    lower: Floats
    upper: Floats

    @property
    def contradictory(self) -> bool:
        """Proved to have no solution."""
        if len(self.bound) == 0 or len(self.bound) * (self.outputs.shape[1] + self.inputs.shape[1]) > _MAX_COEFFICIENTS:
            return False
        multipliers = self._proposed()
        return multipliers is not None and any(self._proves(multipliers, most) for most in _DENOMINATORS)

    def _proposed(self) -> Floats | None:
        """min l.b - eps l.strict - p.lower + q.upper  with  l a = 0, l g = p - q, sum l = 1, all >= 0; rows scaled."""
        from scipy import sparse
        from scipy.optimize import linprog

        scale = np.abs(np.concatenate([self.outputs, self.inputs, self.bound[:, None]], axis=1)).max(axis=1)
        scale = np.where(scale > 0, scale, 1.0)
        a, g = self.outputs / scale[:, None], self.inputs / scale[:, None]
        unit, one = sparse.identity(g.shape[1]), np.ones((1, len(a)))
        left = sparse.vstack([sparse.csr_matrix(part) for part in (a.T, g.T, one)], format="csr")
        right = sparse.vstack([sparse.csr_matrix((a.shape[1], g.shape[1])), unit, sparse.csr_matrix((1, g.shape[1]))])
        cost = np.concatenate([self.bound / scale - 1e-6 * self.strict, -self.lower, self.upper])
        equal, goal = sparse.hstack([left, -right, right], format="csr"), np.append(np.zeros(left.shape[0] - 1), 1.0)
        solution = linprog(cost, A_eq=equal, b_eq=goal, bounds=(0, None), method="highs")
        return None if solution.x is None else np.maximum(solution.x[: len(a)], 0.0) / scale

    def _proves(self, multipliers: Floats, most: int) -> bool:
        """Farkas' certificate, in rational arithmetic, with multipliers rounded to denominators up to `most`."""
        used = np.flatnonzero(multipliers > 1e-9 * multipliers.max())
        weight = [Fraction(float(multipliers[r] / multipliers.max())).limit_denominator(most) for r in used]

        def combined(values: NDArray[Any]) -> Fraction:
            return sum((w * Fraction(float(values[r])) for w, r in zip(weight, used, strict=True)), Fraction(0))

        if any(combined(column) != 0 for column in self.outputs.T):
            return False
        slope = [combined(column) for column in self.inputs.T]
        ends = zip(slope, self.lower.tolist(), self.upper.tolist(), strict=True)
        least = sum((s * Fraction(low if s > 0 else high) for s, low, high in ends), Fraction(0))
        right = combined(self.bound)
        strict = any(self.strict[r] and w > 0 for w, r in zip(weight, used, strict=True))
        return any(w > 0 for w in weight) and bool(row_false(least, right, strict))


def _system(property: Property, case: int, *, rows: bool) -> _System:
    """The constraints on the inputs of a case, with its rows or without."""
    box = int(property.case_box[case])
    parts = [_part(property, property.constraints, box)] + ([_part(property, property.rows, case)] if rows else [])
    outputs, inputs, bound, strict = (np.concatenate(each) for each in zip(*parts, strict=True))
    used = inputs.any(axis=0)
    return _System(
        outputs, inputs[:, used], bound, strict, property.boxes.lower[box, used], property.boxes.upper[box, used]
    )  # fmt: skip


def _part(property: Property, rows: HalfSpaces, owner: int) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Rows of one owner, over all outputs and inputs."""
    which = slice(*np.searchsorted(rows.owner, (owner, owner + 1)))
    bound = rows.bound[which]
    outputs = rows.outputs[which]
    if outputs.shape[1] == 0:
        outputs = np.zeros((len(bound), property.signature.output_size))
    inputs = np.zeros((len(bound), property.signature.input_size)) if rows.inputs is None else rows.inputs[which]
    return outputs, inputs, bound, rows.strict[which]


ROWS, CASES, TERMS, _INPUTS = 4, 3, 6, 6
"""How many are written out: rows of a case, cases, terms of a row, inputs of a box."""


# 2. The statement in words

VariableNames = tuple[Callable[[int], str], Callable[[int], str]]
"""What an input and an output are called in the file, by flat index."""


def violation_in_words(property: Property) -> str:
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


def requirement_in_words(property: Property) -> str | None:
    """What the outputs must do, the negation of V: `Y_2 is larger than every other output`, `Y_0 < 0.4`.

    None where the input sets ask different things, or a case joins several rows: V itself is then easier to read.
    """
    rows, count = property.rows, property.num_cases
    boxes = len(np.unique(property.case_box)) or 1
    if count == 0 or len(rows) != count or (np.diff(rows.owner) != 1).any() or count % boxes:
        return None
    each = count // boxes
    parts = (rows.outputs, rows.bound[:, None], rows.strict[:, None])
    table = np.concatenate(parts if rows.inputs is None else (*parts, rows.inputs), axis=1)
    table = table[np.argsort(property.case_box, kind="stable")].reshape(boxes, each, -1)
    if not (table == table[:1]).all():
        return None
    signature = property.signature
    name = _named(property, signature.inputs), _named(property, signature.outputs)
    best = _largest(property, each)
    if best is not None:
        return f"{name[1](best)} is larger than every other output"
    shown = [_row(rows, r, name, negated=True) for r in range(min(each, CASES))]
    return " and ".join([*shown, *([f"{each - CASES} more comparisons"] if each > CASES else [])])


def _largest(property: Property, count: int) -> int | None:
    """l, where the first `count` rows say Y_l <= Y_j, once for every other output j."""
    rows = property.rows
    a = rows.outputs[:count]
    size = a.shape[1]
    if count != size - 1 or rows.inputs is not None or rows.bound[:count].any() or rows.strict[:count].any():
        return None
    if size < 2 or not ((a == 1).sum(axis=1) + (a == -1).sum(axis=1) == (a != 0).sum(axis=1)).all():
        return None
    best = int(np.abs(a).sum(axis=0).argmax()) if size > 2 else int(a[0].argmax())
    others = np.delete(a, best, axis=1)
    each_once = (a[:, best] == 1).all() and (others.sum(axis=0) == -1).all() and ((others != 0).sum(axis=1) == 1).all()
    return best if each_once else None


def inputs_in_words(property: Property) -> str:
    """The first input set: `X_0 in [0, 1], X_1 = 0.5`."""
    name = _named(property, property.signature.inputs), _named(property, property.signature.outputs)
    return _inputs(property, int(property.case_box[0]), name)


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
            plain = question.rule.level is None and question.rule.event is None
            value = value if plain else question.rule.of_outputs
            return f"no such input, where the outputs stand for the {value} over the posterior"
        case Query.DETERMINISTIC:
            return f"the network{' of the posterior means' if has_posterior else ''} has no such input"


def _named(property: Property, variables: tuple[Variable, ...]) -> Callable[[int], str]:
    """The name of a variable's element by its flat index over all variables."""

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


def _inputs(property: Property, box: int, name: VariableNames) -> str:
    """The input set of a box."""
    boxes = property.boxes
    ends = zip(
        *(side[box].tolist() for side in (boxes.lower, boxes.upper, boxes.inner_lower, boxes.inner_upper)), strict=True
    )
    size = boxes.lower.shape[1]
    if size <= _INPUTS:
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
    further = [_conjunction(property.constraints, box, name)]
    further += [_polynomial(one, name) for one in (property.polynomials or {box: ()})[box]]
    joined = " and ".join(filter(None, further))
    return f"{text} with {joined}" if joined else text


def _polynomial(one: Polynomial, name: VariableNames) -> str:
    """A constraint with products, its first coefficient positive: `X_0 * X_1 <= 0.25`."""
    sign = 1 if one.terms[0][0] > 0 else -1
    relation = {(1, False): "<=", (1, True): "<", (-1, False): ">=", (-1, True): ">"}[sign, one.strict]
    left = ""
    for a, inputs in one.terms[:TERMS]:
        value = sign * a
        factor = "" if abs(value) == 1 else f"{_number(float(abs(value)))} "
        joint = ("-" if value < 0 else "") if not left else (" - " if value < 0 else " + ")
        left += f"{joint}{factor}{' * '.join(map(name[0], inputs))}"
    more = f" + {len(one.terms) - TERMS} more terms" if len(one.terms) > TERMS else ""
    return f"{left}{more} {relation} {_number(float(sign * one.bound))}"


def _conjunction(rows: HalfSpaces, owner: int, name: VariableNames) -> str:
    """The rows of one owner; empty without any."""
    first, last = (int(end) for end in np.searchsorted(rows.owner, (owner, owner + 1)))
    texts = [_row(rows, r, name) for r in range(first, min(last, first + ROWS))]
    if last - first > ROWS:
        texts.append(f"{last - first - ROWS} more rows")
    return " and ".join(texts)


def _row(rows: HalfSpaces, r: int, name: VariableNames, *, negated: bool = False) -> str:
    """A comparison with a positive first coefficient: `Y_0 >= 0.4`, `Y_0 <= Y_1`, `2 Y_0 - X_1 < 0.5`."""
    terms = [(float(rows.outputs[r, i]), name[1](i)) for i in np.flatnonzero(rows.outputs[r]).tolist()]
    if rows.inputs is not None:
        terms += [(float(rows.inputs[r, i]), name[0](i)) for i in np.flatnonzero(rows.inputs[r]).tolist()]
    sign = -1.0 if terms and terms[0][0] < 0 else 1.0
    relation = {(1.0, False): "<=", (1.0, True): "<", (-1.0, False): ">=", (-1.0, True): ">"}[
        sign, bool(rows.strict[r])
    ]
    if negated:
        relation = {"<=": ">", "<": ">=", ">=": "<", ">": "<="}[relation]
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
