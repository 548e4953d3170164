"""Texts that must be refused: the kind of error, the place, the words."""

from __future__ import annotations

import pytest

from bnn_vnnlib.errors import InputError, PropertyError, UnsupportedError, VnnlibSyntaxError
from bnn_vnnlib.vnnlib import parse_property

# Line 1 declares, line 2 bounds, the assertion under test is in line 3.
ONE = (
    "(declare-const X_0 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)\n(assert (and (>= X_0 0) (<= X_0 1)))\n"
)
TWO = "(vnnlib-version <2.0>)\n(declare-network f (declare-input X real [2]) (declare-output Y real [1,2]))\n"
OTHER = "(declare-network g {} (declare-input A real [2]) (declare-output B real [1,2]))\n"
BOUNDS = "(assert (and (>= X[0] 0.0) (<= X[0] 1.0) (>= X[1] 0.0) (<= X[1] 1.0)))\n"


def network(inputs: str, outputs: str = "(declare-output Y real [1])") -> str:
    return f"(vnnlib-version <2.0>)\n(declare-network f {inputs} {outputs})\n(assert (<= Y[0] 1.0))"


REFUSED = [
    # text, kind, line, column (None: not looked at), words of the message
    ("", PropertyError, None, None, "empty"),
    ("; only a comment", PropertyError, None, None, "empty"),
    ("(declare-const X_0 Real)", PropertyError, None, None, "no assertions"),
    ("(assert (<= 0 1))", PropertyError, None, None, "no input is declared"),
    ("(declare-const X_0 Real)(assert (<= X_0 1))", PropertyError, None, None, "no output"),
    (ONE + "(assert ((<= Y_0 1)))", VnnlibSyntaxError, 3, 10, "one pair of parentheses too many"),
    (ONE + "(assert (<= Y_0 1)", VnnlibSyntaxError, 3, 19, "closing parenthesis is missing"),
    (ONE + "(assert (<= Y_0 1)))", VnnlibSyntaxError, 3, 20, "found ')'"),
    (ONE + "(assert (<= Y_0))", VnnlibSyntaxError, 3, 16, "expected '(', a number such as -0.5 or a variable"),
    (ONE + "(assert (<= Y_0 1 2))", VnnlibSyntaxError, 3, 19, "found '2', expected ')'"),
    (ONE + "(assert (and))", VnnlibSyntaxError, 3, 13, "expected '('"),
    (ONE + "(assert (Y_0 < 1))", VnnlibSyntaxError, 3, 10, "the sign first"),
    (ONE + "(assert (<= Y_0 1.5.2))", VnnlibSyntaxError, 3, 17, "found '1.5.2'"),
    (ONE + "(assert (<= Y_0 1e))", VnnlibSyntaxError, 3, 17, "found '1e'"),
    (ONE + "(assert (<= (-1 Y_0) 1))", VnnlibSyntaxError, 3, 14, "found '-1'"),
    (ONE + "(assert (== Y_0 1))", VnnlibSyntaxError, 3, None, "writes = for equality"),
    (ONE + "(assert (!= Y_0 1))", VnnlibSyntaxError, 3, 10, "(or (< a b) (> a b))"),
    (ONE + "(check-sat)", VnnlibSyntaxError, 3, 2, "remove this line"),
    (ONE + "(assert (<= Y_0 \x00))", VnnlibSyntaxError, 3, 17, "the character '\\x00'"),
    ("\n(declare-network f)", VnnlibSyntaxError, 2, 2, "(vnnlib-version <2.0>)"),
    ("hello", VnnlibSyntaxError, 1, 1, "found 'hello'"),
    (ONE + "(assert (not (<= Y_0 1)))", UnsupportedError, 3, 10, "'not' is not supported"),
    (ONE + "(assert (=> (<= Y_0 1) (<= Y_0 2)))", UnsupportedError, 3, 10, "'=>' is not supported"),
    (ONE + "(assert (<= (ite (<= Y_0 1) 1 2) 1))", UnsupportedError, 3, 14, "'ite' is not supported"),
    (ONE + "(assert (<= (/ Y_0 2) 1))", UnsupportedError, 3, 14, "'/' is not supported"),
    (ONE + "(assert (<= (* Y_0 Y_1) 1))", UnsupportedError, 3, 10, "product of variables"),
    (ONE + "(assert (<= (* 2 (+ Y_0 1) (- X_0)) 1))", UnsupportedError, 3, 10, "product of variables"),
    (ONE + "(assert (or (<= Y_0 1)\n (<= Y_0 Y_7)))", PropertyError, 4, 10, "Y_7 is not declared"),
    (ONE + "(assert (<= (+ (* 3 Y_1) Y_0) Y_10) (<= Y_0 1))", VnnlibSyntaxError, 3, None, "expected ')'"),
    (ONE + "(assert (<= Y_0 Y_10 ))(declare-const Y_2 Real)(assert (<= Y_22 Y_2))", PropertyError, 3, 17, "Y_10"),
    (ONE + "(declare-const Y_2 Real)(assert (<= 1.55 1.5e999))", PropertyError, 3, 42, "1.5e999"),
    (ONE + "(assert (<= (+ Y_0 y_1) 1))", PropertyError, 3, 20, "y_1 is not declared"),
    (ONE + "(declare-const Z_0 Real) (assert (<= Y_0 1))", PropertyError, 3, None, "Z_0 is neither"),
    (ONE + "(declare-const X_01 Real) (assert (<= Y_0 1))", PropertyError, 3, None, "X_01 is neither"),
    (ONE + "(declare-const Y_0 Real) (assert (<= Y_0 1))", PropertyError, 3, None, "declared twice, first in line 1"),
    (ONE + "(declare-const X_2 Real) (assert (<= Y_0 1))", PropertyError, 3, None, "X_2 is declared but X_1 is not"),
    (ONE + "(declare-const X_1 Int) (assert (<= Y_0 1))", PropertyError, 3, None, "expected Real"),
    (ONE + "(declare-const X_1 Real) (assert (<= X_1 1))", PropertyError, None, None, "no lower bound for X_1"),
    (ONE + "(declare-const X_1 Real) (assert (>= X_1 X_0))", PropertyError, None, None, "unbounded, add bounds"),
    (ONE + "(declare-const X_1 Real) (assert (or (= X_1 0) (= Y_0 0)))", PropertyError, None, None, "in some case"),
    (ONE + "(assert (<= Y_0 1e400))", PropertyError, 3, 17, "beyond the range of float64"),
    (ONE + "(assert (<= Y_0 -1.8e308))", PropertyError, 3, 17, "beyond the range of float64"),
    (ONE + "(assert (<= Y_0 1e99999999999999999999999))", PropertyError, 3, 17, "beyond the range"),
    (ONE + "(assert (<= Y_0 1e-999999999999))", PropertyError, 3, 17, "too close to 0"),
    (ONE + "(assert (<= (* 2 Y_0) 1e-99999999999999999999999))", PropertyError, 3, 23, "exponent"),
    (ONE + f"(assert (<= Y_0 {'1' * 5000}))", PropertyError, 3, 17, "too long"),
    (ONE + "(assert (<= (* 1e308 10 Y_0) Y_1))", UnsupportedError, 3, None, "too many digits"),
    (ONE + "(assert (<= Y_0 (* 1e308 10)))", UnsupportedError, 3, None, "beyond the range of float64"),
    (ONE + "(assert (<= (* 0.12345678901234567891 Y_0) Y_1))", UnsupportedError, 3, None, "a coefficient of Y_0, Y_1"),
    (ONE + f"(assert {'(or (<= Y_0 0)' * 300}(<= Y_0 1){')' * 301}", UnsupportedError, 3, None, "200 deep"),
    (ONE + f"(assert (<= {'(- ' * 300}Y_0{')' * 300} 1))", UnsupportedError, 3, None, "200 deep"),
    (ONE + "(assert (or (<= Y_0 1) (<= Y_1 1)))" * 30, UnsupportedError, None, None, "1,000,000 cases"),
    (ONE + f"(assert (<= (* {'1e-300 ' * 2000} Y_0) 1))", UnsupportedError, 3, None, "too long"),
    # 2.x
    ("(vnnlib-version <3.0>)", PropertyError, 1, 17, "version 3.0"),
    ("(vnnlib-version <1.0>)", PropertyError, 1, 17, "version 1.0"),
    ("(vnnlib-version 2.0)", VnnlibSyntaxError, 1, 17, "a version such as <2.0>"),
    ("(vnnlib-version <2.0>)", VnnlibSyntaxError, 1, 23, "'('"),
    (TWO, PropertyError, None, None, "no assertions"),
    (TWO + BOUNDS + "(assert (Y[0,0] < 1.0))", VnnlibSyntaxError, 4, 10, "the sign first"),
    (TWO + BOUNDS + "(assert (= Y[0,0] 1.0))", VnnlibSyntaxError, 4, 10, "2.x writes =="),
    (TWO + BOUNDS + "(assert (<= Y[0 0] 1.0))", VnnlibSyntaxError, 4, None, "separated by commas"),
    (TWO + BOUNDS + "(declare-fun Y () Real)", VnnlibSyntaxError, 4, 2, "left over from VNN-LIB 1.0"),
    (TWO + BOUNDS + "(declare-network g (declare-input A real [1]))", VnnlibSyntaxError, 4, 2,
     "before the first assertion"),
    (network("(declare-input X real [1 4])"), VnnlibSyntaxError, 2, None, "found '4'"),
    (network("(declare-input f-copy real [1])"), VnnlibSyntaxError, 2, None, "found 'f-copy'"),
    (network("(declare-hidden H real [1] \"h\") (declare-input X real [1])"), VnnlibSyntaxError, 2, None,
     "declare-input"),
    (network("(declare-input X real [0])"), PropertyError, 2, 35, "at least 1"),
    (network("(declare-input X real [99999999999999999999,9])"), UnsupportedError, 2, None, "elements"),
    (network("(declare-input X float16 [1])"), UnsupportedError, 2, None, "float16"),
    (network("(declare-input X int64 [1])"), UnsupportedError, 2, None, "int64"),
    (network("(declare-input X Float32 [1])"), PropertyError, 2, None, "unknown element type Float32"),
    (network("(declare-input X float32 [1])"), PropertyError, 2, None, "real must be the element type of all"),
    (network("(declare-input X real [1] initialized)"), UnsupportedError, 2, None, "initialized"),
    (network("(declare-input Y real [1])"), PropertyError, 2, None, "the name Y is declared twice"),
    (network("(declare-input f real [1])"), PropertyError, 2, None, "the name f is declared twice"),
    (network("(equal-to g) (declare-input X real [1])"), PropertyError, 2, None, "g, which is not declared before it"),
    (TWO + OTHER.format("(equal-to f)").replace("A real [2]", "A real [1,2]") + BOUNDS,
     PropertyError, 3, None, "inputs differ: real [2] and real [1, 2]"),
    (TWO + OTHER.format("(isomorphic-to f)").replace("B real [1,2]", "B real [2]") + BOUNDS,
     PropertyError, 3, None, "outputs differ: [1, 2] and [2]"),
    (TWO + OTHER.format("(equal-to f)") + OTHER.format("(equal-to f)").replace("g", "h").replace("A", "C")
     .replace("B", "D") + BOUNDS, UnsupportedError, 4, None, "3 networks (f, g, h)"),
    (TWO + OTHER.format("(equal-to f)") + OTHER.format("(equal-to g)").replace("k g", "k h") + BOUNDS,
     PropertyError, 4, None, "h is equal-to g, which has a relation of its own"),
    (TWO + OTHER.format("(equal-to f)").replace("A", "X") + BOUNDS, PropertyError, 3, None, "X is declared twice"),
    (TWO + OTHER.format("(equal-to f)").replace("A", "f") + BOUNDS, PropertyError, 3, None, "f is declared twice"),
    (TWO + OTHER.format("(equal-to h)") + BOUNDS, PropertyError, 3, None, "h, which is not declared before it"),
    (TWO + OTHER.format("(equal-to g)") + BOUNDS, PropertyError, 3, None, "g, which is not declared before it"),
    (TWO + OTHER.format("").replace("network g", "network f") + BOUNDS, PropertyError, 3, None, "declared twice"),
    (network("(isomorphic-to g) (declare-input X real [1])"), PropertyError, 2, None, "not declared before it"),
    (network("(declare-input X real [1]) (declare-hidden H real [1] \"h\")") + "(assert (<= H[0] 1.0))",
     UnsupportedError, 3, None, "H is a hidden node"),
    (TWO + BOUNDS + "(assert (<= Y[0] 1.0))", PropertyError, 4, 13, "NotEnoughIndices"),
    (TWO + BOUNDS + "(assert (<= Y 1.0))", PropertyError, 4, 13, "NotEnoughIndices"),
    (TWO + BOUNDS + "(assert (<= Y[0,0,0] 1.0))", PropertyError, 4, 13, "TooManyIndices"),
    (TWO + BOUNDS + "(assert (<= 1.0 Y[0,2]))", PropertyError, 4, 17, "IndexOutOfBounds"),
    (TWO + BOUNDS + "(assert (<= Y[0,99999999999999999999] 1.0))", PropertyError, 4, 13, "IndexOutOfBounds"),
    (TWO + BOUNDS + "(assert (<= Z[0] 1.0))", PropertyError, 4, 13, "Z is not declared (declared: X, Y)"),
    (TWO + BOUNDS + "(assert (<= x[0] 1.0))", PropertyError, 4, 13, "x is not declared"),
    (TWO + BOUNDS + "(assert (<= 0.0 1.0))", PropertyError, 4, None, "ill-typed"),
    (TWO + BOUNDS + "(assert (<= (* Y[0,0] X[1]) 1.0))", UnsupportedError, 4, 10, "POLY"),
    ("(vnnlib-version <2.0>)(declare-network f (declare-input X float32 [1]) (declare-output Y float64 [1]))"
     "(assert (and (>= X[0] 0.0) (<= X[0] 1.0) (<= X[0] Y[0])))", PropertyError, 1, None, "mixes the element types"),
    # options
    (ONE + "; bnn-vnnlib: tau_safe\n(assert (<= Y_0 1))", PropertyError, 3, 15, "found 'tau_safe'"),
    (ONE + "; bnn-vnnlib: tau_safe = 0.9\n(assert (<= Y_0 1))", PropertyError, 3, None, "found 'tau_safe'"),
    (ONE + "; bnn-vnnlib: a=1\n; bnn-vnnlib: a=2\n(assert (<= Y_0 1))", PropertyError, 4, None, "given twice: 1 and 2"),
    (ONE + "; bnn-vnnlib tau_safe=1\n(assert (<= Y_0 1))", PropertyError, 3, None, "expected ':'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "line", "column", "words"), REFUSED)
def test_refused(text: str, kind: type[InputError], line: int | None, column: int | None, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_property(text, "some.vnnlib")
    error = caught.value
    assert type(error) is kind
    assert words in error.message
    assert error.line == line
    if column is not None:
        assert error.column == column
    assert "\n" not in str(error)
    assert str(error).startswith("some.vnnlib:")


def test_deep_and_at_the_top_is_flat() -> None:
    prop = parse_property(ONE + f"(assert {'(and ' * 5000}(<= Y_0 1){')' * 5000})")
    assert prop.num_cases == 1


@pytest.mark.parametrize("opening", ["(and (<= Y_0 1) ", "(or (<= Y_0 1) ", "(", "(<= (- "])
def test_hostile_nesting_gives_one_message(opening: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_property(ONE + "(assert " + opening * 30_000)
    assert len(str(caught.value)) < 500


def test_many_cases_are_counted_before_they_are_written_out() -> None:
    choice = "".join(f"(<= Y_0 {i})" for i in range(2000))
    with pytest.raises(UnsupportedError, match="4,000,000 cases"):
        parse_property(ONE + f"(assert (or {choice}))(assert (or {choice}))")
