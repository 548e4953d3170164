"""Runs of simple comparisons, read at once: the same constraints, the same language and the same messages."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_vnnlib_semantics import BOX, DECIMALS, formulas, text_1, text_2

from bnn_vnnlib import Property
from bnn_vnnlib.errors import InputError, PropertyError, VnnlibSyntaxError
from bnn_vnnlib.question.property import HalfSpaces
from bnn_vnnlib.vnnlib import parse_property
from bnn_vnnlib.vnnlib.groups import Groups
from bnn_vnnlib.vnnlib.linear import bracket_literals
from bnn_vnnlib.vnnlib.parse import parse
from bnn_vnnlib.vnnlib.tree import SourceText, bracket_literal

LISTS = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=5)


def meaning(prop: Property) -> set[tuple]:
    """The cases as a set: a box, its constraints and the rows, without order and repetitions."""
    boxes, n = prop.boxes, prop.signature.input_size

    def rows(part: HalfSpaces, owner: int) -> frozenset[tuple]:
        mine = part.owner == owner
        inputs = np.zeros((len(part), n)) if part.inputs is None else part.inputs
        columns = (*part.outputs.T, *inputs.T, part.bound, part.inner_bound, part.strict)
        return frozenset(map(tuple, np.column_stack(columns)[mine].tolist()))

    sides = np.hstack([boxes.lower, boxes.upper, boxes.inner_lower, boxes.inner_upper]).tolist()
    return {
        (*sides[box], rows(prop.constraints, box), rows(prop.rows, case))
        for case, box in enumerate(prop.case_box.tolist())
    }


def outcome(text: str) -> Property | str:
    try:
        return parse_property(text)
    except InputError as error:
        return error.message


@settings(max_examples=100, deadline=None)
@given(st.lists(formulas(DECIMALS, equal=("=", "!=")), min_size=1, max_size=4), st.booleans())
@example([("or", ("and", ("and", ("!=", "X_0", "X_1"), ("<=", "Y_0", "0.0")), ("<=", "Y_0", "0.1")))], True)
def test_a_run_means_what_its_members_mean_alone(trees: list[tuple], second: bool) -> None:
    """A comment after every "(" keeps the merged terminals from matching, so that each comparison is read alone."""
    trees = [*BOX, *trees]
    text = text_2(trees) if second else text_1(trees).replace("(!= ", "(= ")
    header = 2 if second else 0  # the version line stays
    lines = text.split("\n", header)
    alone = "\n".join([*lines[:header], lines[header].replace("(", "(;\n")])
    one, other = outcome(text), outcome(alone)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert meaning(one) == meaning(other)


HEAD = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))\n"


@pytest.mark.parametrize(
    "formula",
    [
        "(<= Y_0 1) (<= Y_0 2)",
        "(and (<= Y_0 1)) (and (<= Y_0 2))",
        "(or (and (<= Y_0 1)) (and (<= Y_0 2))",
        "(or (and (<= Y_0 1)) (and (<= Y_0 2 3)))",
        "(or (and (<= Y_0 1)) (and ))",
        "(or and (<= Y_0 1))",
    ],
)
def test_merged_terminals_add_nothing_to_the_language(formula: str) -> None:
    with pytest.raises(VnnlibSyntaxError) as caught:
        parse_property(f"{HEAD}(assert {formula})")
    assert caught.value.line == 2


ATOMS = st.sampled_from(["X_0", "Y_0", "0.5", "-3", "1e-3", "0"])
TERMS = st.recursive(
    ATOMS,
    lambda part: st.builds(
        lambda operator, operands: f"({operator} {' '.join(operands)})",
        st.sampled_from("+-*"),
        st.lists(part, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(TERMS, TERMS)
def test_a_flat_term_means_what_its_atoms_mean_alone(left: str, right: str) -> None:
    """A comment after every "(" keeps the merged terminal from matching."""
    text = f"{HEAD}(assert (<= {left} {right}))"
    one, other = outcome(text), outcome(text.replace("(", "(;\n"))
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert meaning(one) == meaning(other)
        assert len(one.notes) == len(other.notes)


@pytest.mark.parametrize("term", ["(+)", "(+ Y_0", "(* 2 Y_0 and)", "(- Y_0 (+ ))", "(-)", "(+ Y_0 1]"])
def test_flat_terms_add_nothing_to_the_language(term: str) -> None:
    messages = []
    for opening in ("(", "(;\n"):
        with pytest.raises(InputError) as caught:
            parse_property(f"{HEAD}(assert (<= {term.replace('(', opening)} 1))")
        messages.append((type(caught.value), caught.value.message))
    assert messages[0] == messages[1]


def test_a_tensor_may_be_named_like_a_keyword() -> None:
    text = "(vnnlib-version <2.0>)(declare-network f (declare-input and real []) (declare-output assert real []))"
    prop = parse_property(text + "(assert (or (and (<= and 1.0) (<= assert and)) (and (<= and 2.0) (<= assert 5.0))))"
                          "(assert (>= and 0.0))")  # fmt: skip
    assert prop.boxes.upper.ravel().tolist() == [1, 2]


def test_places_of_errors_inside_long_runs() -> None:
    many = "\n".join(f"(assert (<= Y_0 {i}.5))" for i in range(1500))
    for wrong, column in (("(assert (<= Y_7 1))", 13), ("(assert (<= Y_0 1e400))", 17)):
        with pytest.raises(PropertyError) as caught:
            parse_property(f"{HEAD}{many}\n{wrong}\n{many}")
        assert (caught.value.line, caught.value.column) == (1502, column)
    clauses = "\n".join(f"(and (<= Y_0 {i}.5) (<= Y_0 2))" for i in range(250))
    with pytest.raises(PropertyError) as caught:
        parse_property(f"{HEAD}(assert (or\n{clauses}\n(and (<= Y_0 1) (<= Y_3 1)) {clauses}))")
    assert (caught.value.line, caught.value.column) == (253, 21)


def test_ten_thousand_disjuncts_are_arrays() -> None:
    """Each with a box of its own; the rows of all are a few arrays."""
    clauses = "\n".join(f"(and (>= X_0 0.{i:05}) (<= X_0 0.{i:05}5) (<= Y_0 {i}))" for i in range(10_000))
    prop = parse_property(f"{HEAD}(assert (or {clauses}))")
    assert (len(prop.boxes), prop.num_cases, len(prop.rows)) == (10_000, 10_000, 10_000)
    np.testing.assert_array_equal(prop.rows.bound, np.arange(10_000))
    assert (prop.boxes.lower[1:, 0] > prop.boxes.upper[:-1, 0]).all()


def decimals() -> st.SearchStrategy[str]:
    """Numbers as files write them, of up to 30 digits."""
    digits = st.text("0123456789", max_size=24)
    point = st.builds(lambda a, b: f"{a}.{b}", digits, digits).filter(lambda text: text != ".")
    plain = point | digits.filter(bool) | st.floats(-1e20, 1e20).map(repr) | st.integers(-(2**64), 2**64).map(str)
    near = st.builds(lambda k, e: f"{Fraction(k, 2**e).numerator / 2**e!r}", st.integers(-(2**53), 2**53),
                     st.integers(0, 60))  # fmt: skip
    sign = st.sampled_from(["", "-", "+"])
    return st.builds(lambda s, text: s + text.lstrip("+-"), sign, plain | near)


@settings(max_examples=300, deadline=None)
@given(st.lists(decimals(), max_size=20))
def test_numbers_together_are_rounded_as_alone(texts: list[str]) -> None:
    expected = [bracket_literal(text) for text in texts]
    for times in (1, 50):  # few are read one by one
        down, up = bracket_literals(texts * times)
        assert list(zip(down.tolist(), up.tolist(), strict=True)) == expected * times
        assert not np.signbit(down[down == 0]).any()


@given(LISTS)
def test_groups_are_lists(lists: list[list[int]]) -> None:
    groups = Groups.of(lists)

    def listed(found: Groups) -> list[list[int]]:
        return [part.tolist() for part in np.split(found.items, found.starts[1:-1])][: len(found)]

    assert listed(groups) == lists
    assert listed(groups.distinct()) == [list(dict.fromkeys(one)) for one in lists]
    assert listed(groups.where(groups.items > 2)) == [[item for item in one if item > 2] for one in lists]
    assert listed(groups.beside(groups)) == [one + one for one in lists]
    assert listed(groups.times(groups)) == [one + other for one in lists for other in lists]
    for one in lists:
        assert listed(Groups.of([one]).times(groups)) == [one + other for other in lists]
    nothing = Groups.of([[] for _ in lists])
    assert listed(groups.beside(nothing)) == listed(nothing.beside(groups)) == lists
    assert listed(groups.copies(3)) == lists * 3
    assert groups.count(groups.items > 2).tolist() == [sum(item > 2 for item in one) for one in lists]
    assert listed(Groups.chain([groups, groups])) == lists + lists
    order = np.arange(len(lists))[::-1].repeat(2)
    assert listed(groups.take(order)) == [lists[i] for i in order]
    labels = np.arange(len(lists)) % 2
    numbers: dict[tuple[int, frozenset[int]], int] = {}
    keys = [(i % 2, frozenset(one)) for i, one in enumerate(lists)]
    assert groups.numbered(labels).tolist() == [numbers.setdefault(key, len(numbers)) for key in keys]
    alone: dict[frozenset[int], int] = {}
    assert groups.numbered().tolist() == [alone.setdefault(key, len(alone)) for _, key in keys]


SLOW = "(;\n"  # a comment after every "(" keeps the merged terminals from matching
TENSOR_TEXTS = [
    "(declare-input X real [2])",
    "( declare-input  X\n real [ 2 ] )",
    "(declare-input X real [1,2,1])(declare-input Z real [ 1\t, 1 ])",
    "(declare-input X real [])",
    "(declare-input X real [ ])",
    "(declare-input declare real [2])",  # a name that begins as the keyword does
    "(declare-input input real [2])",
    "(declare-input X real [2] initialized)",
    "(declare-input X real [2)",
    "(declare-input X real 2])",
    "(declare-input X real [2,])",
    "(declare-input X real [-2])",
    "(declare-input X real [0])",
    "(declare-input X float16 [2])",
    "(declare-input X mystery [2])",
    "(declare-input X real [99999999999999999999999999])",
    "(declare-input X [2])",
    "(declare-input X real real [2])",
    "(declare-inputX real [2])",
    "(declare-hidden X real [2])",
    "(declare-input 3 real [2])",
    "(declare-input X real [2]) (declare-input X real [2])",
    "",
]


@pytest.mark.parametrize("inputs", TENSOR_TEXTS)
@pytest.mark.parametrize("opening", ["(vnnlib-version <2.0>)", "( vnnlib-version\t< 2.1 > )", "(vnnlib-version <2.7>)"])
def test_whole_declarations_mean_what_their_words_mean(opening: str, inputs: str) -> None:
    name, last = "Z" if "Z" in inputs else "X", "[0]"
    for shape, index in (("[1,2,1]", "[0,1,0]"), ("[ 1\t, 1 ]", "[0,0]"), ("[]", ""), ("[ ]", "")):
        last = index if shape in inputs else last
    box = f"(assert (and (<= 0.0 {name}{last}) (<= {name}{last} 1.0)))"
    text = f"{opening}(declare-network f {inputs} (declare-output Y real [1]))\n{box}(assert (or (<= Y[0] 0.5)))"
    first, rest = text.split(")", 1)
    slow = f"{first})" + rest.replace("(", SLOW)
    one, other = outcome(text), outcome(slow)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert (one.version, one.signature, one.notes) == (other.version, other.signature, other.notes)
        assert meaning(one) == meaning(other)


@pytest.mark.parametrize(
    ("tensors", "line", "column"),
    [
        ("(declare-input X real [0]) (declare-output Y real [1])", 2, 35),
        ("(declare-input f real [1]) (declare-output Y real [1])", 2, 35),
        ("\n  ( declare-input\n  declare real [0]) (declare-output Y real [1])", 4, 3),
        ("(declare-input X real [1]) (declare-output X real [1])", 2, 63),
    ],
)
def test_places_of_errors_in_whole_declarations(tensors: str, line: int, column: int) -> None:
    with pytest.raises(InputError) as caught:
        parse_property(f"(vnnlib-version <2.0>)\n(declare-network f {tensors})(assert (<= X[0] 0.0))")
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    "formula",
    [
        "(or)",
        "(and ))",
        "(or (<= Y_0 1)",
        "(or (<= Y_0 1)))",
        "(or 1)",
        "(orr (<= Y_0 1))",
        "(or (not (<= Y_0 1)))",
        "(or (<= Y_0))",
        "( or (<= Y_0 1) (and (<= Y_0 2)) )",
    ],
)
def test_the_beginning_of_a_junction_read_at_once_adds_nothing(formula: str) -> None:
    one, other = (outcome(f"{HEAD}({gap}assert {formula})") for gap in ("", ";\n"))
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert meaning(one) == meaning(other)


def test_the_place_of_a_junction_read_at_once() -> None:
    text = f"{HEAD}(assert\n (  and (<= Y_0 1.0) (or (<= Y_0 2.0))))"
    junction = parse(SourceText(text)).assertions[-1]
    assert junction.connective == "and"
    assert text[junction.at :].startswith("and")
