"""The normal form means what the formula means; numbers are rounded outward and inward; nothing else escapes."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bnn_vnnlib import Property
from bnn_vnnlib.errors import InputError
from bnn_vnnlib.question.property import HalfSpaces, input_feasible, violated_case
from bnn_vnnlib.vnnlib import parse_property
from bnn_vnnlib.vnnlib.tree import bracket_literal

VARIABLES = ("X_0", "X_1", "Y_0", "Y_1")
QUARTERS = st.integers(-6, 6).map(lambda k: str(k / 4))
DECIMALS = st.integers(-20, 20).map(lambda k: str(k / 10))


def formulas(numbers: st.SearchStrategy[str], *, equal: tuple[str, ...] = ("=",)) -> st.SearchStrategy[tuple]:
    """Nested tuples: (connective, parts...), (relation, term, term), terms ("+" | "-" | "*", terms...) or atoms."""
    variable = st.sampled_from(VARIABLES)
    scaled = st.tuples(st.just("*"), numbers, variable)
    summand = variable | scaled | numbers | st.tuples(st.just("-"), variable)
    term = summand | st.tuples(st.sampled_from("+-"), summand, summand)
    with_variable = variable | st.tuples(st.sampled_from("+-"), variable, summand)
    comparison = st.tuples(st.sampled_from(("<=", "<", ">=", ">", *equal)), with_variable, term)
    simple = st.tuples(st.sampled_from(("<=", "<", ">=", ">", *equal)), variable, numbers)
    return st.recursive(
        comparison | simple,
        lambda inner: (
            st.tuples(st.sampled_from(("and", "or")), inner, inner)
            | st.tuples(st.sampled_from(("and", "or")), inner, inner, inner)
        ),
        max_leaves=8,
    )


def write(tree: tuple | str) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(write, tree))})"


def value(term: tuple | str, point: dict[str, Fraction]) -> Fraction:
    if isinstance(term, str):
        return point[term] if term in point else Fraction(term)
    operator, *operands = term
    numbers = [value(operand, point) for operand in operands]
    if operator == "+":
        return sum(numbers, Fraction(0))
    if operator == "*":
        return math.prod(numbers, start=Fraction(1))
    return -numbers[0] if len(numbers) == 1 else numbers[0] - sum(numbers[1:])


def holds(tree: tuple, point: dict[str, Fraction]) -> bool:
    word, *parts = tree
    if word in ("and", "or"):
        return (all if word == "and" else any)(holds(part, point) for part in parts)
    one, other = (value(part, point) for part in parts)
    return {"<=": one <= other, "<": one < other, ">=": one >= other, ">": one > other, "=": one == other,
            "==": one == other, "!=": one != other}[word]  # fmt: skip


BOX = [(relation, x, bound) for x in ("X_0", "X_1") for relation, bound in ((">=", "-1.0"), ("<=", "1.0"))]


def text_1(trees: list[tuple]) -> str:
    declare = "".join(f"(declare-const {name} Real)\n" for name in VARIABLES)
    return declare + "".join(f"(assert {write(tree)})\n" for tree in trees)


def text_2(trees: list[tuple]) -> str:
    text = "".join(f"(assert {write(tree)})\n" for tree in trees)
    for name in VARIABLES:
        text = text.replace(name, f"{name[0]}[0,{name[-1]}]")
    tensors = "(declare-input X float32 [1,2]) (declare-output Y float32 [1,2])"
    return f"(vnnlib-version <2.0>)\n(declare-network f {tensors})\n" + text.replace("(= ", "(== ")


POINTS = st.lists(st.tuples(*[st.integers(-6, 6).map(lambda k: k / 4)] * 4), min_size=5, max_size=30)


def in_outer(prop: Property, x: np.ndarray, y: np.ndarray) -> bool:
    """Membership by the outward numbers with every strict row closed, written out slowly."""

    def rows_hold(rows: HalfSpaces, owner: int) -> bool:
        for r in np.flatnonzero(rows.owner == owner):
            total = sum(Fraction(a) * Fraction(v) for a, v in zip(rows.outputs[r], y, strict=False))
            if rows.inputs is not None:
                total += sum(Fraction(g) * Fraction(v) for g, v in zip(rows.inputs[r], x, strict=True))
            if total > Fraction(rows.bound[r]):
                return False
        return True

    for case in range(prop.num_cases):
        box = int(prop.case_box[case])
        inside = ((prop.boxes.lower[box] <= x) & (x <= prop.boxes.upper[box])).all()
        if inside and rows_hold(prop.constraints, box) and rows_hold(prop.rows, case):
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(st.lists(formulas(QUARTERS), min_size=1, max_size=3), POINTS, st.integers(0, 3), st.booleans())
def test_membership_is_the_formula(trees: list[tuple], points: list, place: int, second: bool) -> None:
    everything = [*trees[:place], *BOX, *trees[place:]]
    prop = parse_property((text_2 if second else text_1)(everything))
    for numbers in points:
        point = dict(zip(VARIABLES, map(Fraction, numbers), strict=True))
        x, y = np.array(numbers[:2]), np.array(numbers[2:])
        truth = all(holds(tree, point) for tree in everything)
        case = violated_case(prop, x, y)
        assert (case is not None) == truth
        assert in_outer(prop, x, y) >= truth
        if case is not None:
            assert input_feasible(prop, x, int(prop.case_box[case]))


@settings(max_examples=100, deadline=None)
@given(st.lists(formulas(QUARTERS, equal=("==", "!=")), min_size=1, max_size=2), POINTS)
def test_not_equal(trees: list[tuple], points: list) -> None:
    prop = parse_property(text_2([*BOX, *trees]))
    for numbers in points:
        point = dict(zip(VARIABLES, map(Fraction, numbers), strict=True))
        truth = all(holds(tree, point) for tree in [*BOX, *trees])
        assert (violated_case(prop, np.array(numbers[:2]), np.array(numbers[2:])) is not None) == truth


@settings(max_examples=150, deadline=None)
@given(
    st.lists(formulas(DECIMALS), min_size=1, max_size=2), st.lists(st.tuples(*[st.integers(-20, 20)] * 4), max_size=30)
)
def test_inner_implies_formula_implies_outer(trees: list[tuple], tenths: list) -> None:
    """Decimals that float64 does not hold, at the floats next to them: where rounding decides."""
    prop = parse_property(text_1([*BOX, *trees]))
    assume((prop.boxes.inner_lower <= prop.boxes.inner_upper).all())
    for numbers in tenths:
        for step in (-math.inf, None, math.inf):
            floats = [k / 10 if step is None else math.nextafter(k / 10, step) for k in numbers]
            point = dict(zip(VARIABLES, map(Fraction, floats), strict=True))
            x, y = np.array(floats[:2]), np.array(floats[2:])
            truth = all(holds(tree, point) for tree in [*BOX, *trees])
            assert (violated_case(prop, x, y) is not None) <= truth <= in_outer(prop, x, y)


@settings(max_examples=100, deadline=None)
@given(st.lists(formulas(QUARTERS), min_size=1, max_size=3))
def test_versions_agree(trees: list[tuple]) -> None:
    one, two = parse_property(text_1([*BOX, *trees])), parse_property(text_2([*BOX, *trees]))
    for name in ("lower", "upper", "inner_lower", "inner_upper"):
        assert np.array_equal(getattr(one.boxes, name), getattr(two.boxes, name))
    for rows, others in ((one.rows, two.rows), (one.constraints, two.constraints)):
        assert np.array_equal(rows.outputs, others.outputs)
        assert np.array_equal(rows.bound, others.bound)
        assert np.array_equal(rows.owner, others.owner)
    assert np.array_equal(one.case_box, two.case_box)


NUMBERS = st.from_regex(r"[-+]?([0-9]{1,25}(\.[0-9]{0,25})?|\.[0-9]{1,25})([eE][-+]?[0-9]{1,2})?", fullmatch=True)


@given(NUMBERS)
def test_brackets_against_fractions(text: str) -> None:
    down, up = bracket_literal(text)
    exact = Fraction(text)
    assert Fraction(down) <= exact <= Fraction(up)
    assert up in (down, math.nextafter(down, math.inf))
    assert (down == up) == (Fraction(float(text)) == exact)


@given(NUMBERS, st.booleans(), st.booleans())
def test_bounds_are_the_tightest(text: str, upper: bool, strict: bool) -> None:
    """lower is the largest float <= the bound, inner_lower the smallest that satisfies it; mirrored above."""
    relation = ("<" if upper else ">") + ("" if strict else "=")
    huge = "1.7e308"
    prop = parse_property(text_1([("<=", "X_0", huge), (">=", "X_0", "-" + huge), *BOX[2:], (relation, "X_0", text)]))
    exact, sign = Fraction(text), -1 if upper else 1
    outer = (prop.boxes.upper if upper else prop.boxes.lower)[0, 0]
    inner = (prop.boxes.inner_upper if upper else prop.boxes.inner_lower)[0, 0]
    assert sign * Fraction(outer) <= sign * exact < sign * Fraction(math.nextafter(outer, sign * math.inf))

    def satisfied(number: float) -> bool:
        difference = sign * (Fraction(number) - exact)
        return difference > 0 if strict else difference >= 0

    assert satisfied(inner)
    assert not satisfied(math.nextafter(inner, -sign * math.inf))


SEEDS = [
    text_1([*BOX, ("or", ("and", ("<=", "Y_0", "0.5"), ("<", "X_0", "Y_1")), (">", ("*", "2", "Y_0"), "1e-3"))]),
    text_2([*BOX, ("or", ("and", ("<=", "Y_0", "0.5"), ("<", "X_0", "Y_1")), ("!=", ("-", "Y_0"), "1"))]),
    "; bnn-vnnlib: query=decision\n" + text_1([*BOX, ("=", "X_0", "0.5")]),
]
PIECES = st.sampled_from(
    ["(", ")", "[", "]", " ", "\n", ";", "-", "1e", "0", "X_0", "<", "=", "and", "*", '"', "\x00", "é", "9" * 30]
)
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12), PIECES | st.just("")), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), EDITS)
def test_only_input_errors_escape(text: str, edits: list[tuple[int, int, str]]) -> None:
    for place, length, piece in edits:
        start = place % (len(text) + 1)
        text = text[:start] + piece + text[start + length :]
    with contextlib.suppress(InputError):
        assert isinstance(parse_property(text), Property)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nothing_is_violated_at_nan_or_infinity(bad: float) -> None:
    prop = parse_property(text_1(BOX))
    assert violated_case(prop, np.array([0.0, 0.0]), np.array([0.0, 0.0])) == 0
    assert violated_case(prop, np.array([bad, 0.0]), np.array([0.0, 0.0])) is None
    assert violated_case(prop, np.array([0.0, 0.0]), np.array([0.0, bad])) is None
    assert not input_feasible(prop, np.array([bad, 0.0]), 0)


def test_tolerance_is_for_inputs_only() -> None:
    prop = parse_property(text_1([*BOX, ("<=", "X_0", "X_1"), ("<=", "Y_0", "0.0")]))
    x = np.array([1.0001, 1.0])
    assert violated_case(prop, x, np.zeros(2)) is None
    assert violated_case(prop, x, np.zeros(2), tolerance=1e-3) == 0
    assert violated_case(prop, x, np.array([1e-6, 0.0]), tolerance=1e-3) is None


def test_where_no_float_satisfies_the_box_the_nearest_ones_count() -> None:
    prop = parse_property(text_1([*BOX, ("=", "X_0", "0.1")]))
    assert violated_case(prop, np.array([0.1, 0.0]), np.zeros(2)) == 0
    assert violated_case(prop, np.array([0.1001, 0.0]), np.zeros(2)) is None
