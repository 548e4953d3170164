"""Texts that tools are known to read wrongly, with the normal form they must have (one table)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from bnn_vnnlib.vnnlib import parse_property

TWO = """
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (>= X_0 0)) (assert (<= X_0 1)) (assert (>= X_1 0)) (assert (<= X_1 1))
"""
TENSORS = """(vnnlib-version <2.0>)
(declare-network f (declare-input X real [2]) (declare-output Y real [2]))
(assert (and (>= X[0] 0.0) (<= X[0] 1.0) (>= X[1] 0.0) (<= X[1] 1.0)))
"""
UNIT = ((0.0, 1.0), (0.0, 1.0))
Row = tuple[tuple[float, ...], tuple[float, ...] | None, float, bool]


@dataclass(frozen=True)
class Known:
    """A text and its normal form: per case the box and the rows (outputs, inputs, bound, strict)."""

    name: str
    text: str
    cases: list[tuple[tuple[tuple[float, float], ...], list[Row]]]
    constraints: list[tuple[int, tuple[float, ...], float, bool]] = field(default_factory=list)
    note: str | None = None


def row(*outputs: float, bound: float, strict: bool = False, inputs: tuple[float, ...] | None = None) -> Row:
    return outputs, inputs, bound, strict


A, B = (1.0, 0.0), (0.0, 1.0)
KNOWN = [
    Known("no blank between parts", TWO + "(assert (or (and (<= Y_1 Y_0)(<= Y_0 0.5))(and (>= Y_1 0.9))))", [
        (UNIT, [row(-1, 1, bound=0), row(1, 0, bound=0.5)]),
        (UNIT, [row(0, -1, bound=-0.9)]),
    ]),
    Known("bare comparisons under or", TWO + "(assert (or (>= Y_0 2) (<= Y_1 0.5)))", [
        (UNIT, [row(-1, 0, bound=-2)]),
        (UNIT, [row(0, 1, bound=0.5)]),
    ]),
    Known("and at the top", TWO + "(assert (and (>= Y_0 0.5) (<= Y_1 0.5)))", [
        (UNIT, [row(-1, 0, bound=-0.5), row(0, 1, bound=0.5)]),
    ]),
    Known("assertion after or belongs to every case", TWO + "(assert (or (>= Y_0 2) (>= Y_1 2))) (assert (<= Y_0 3))", [
        (UNIT, [row(1, 0, bound=3), row(-1, 0, bound=-2)]),
        (UNIT, [row(1, 0, bound=3), row(0, -1, bound=-2)]),
    ]),
    Known("box stays in its disjunct", TWO
          + "(assert (or (and (>= X_0 1) (<= Y_0 0)) (and (>= X_1 0.5) (<= Y_0 0.25))))", [
        (((1, 1), (0, 1)), [row(1, 0, bound=0)]),
        (((0, 1), (0.5, 1)), [row(1, 0, bound=0.25)]),
    ]),
    Known("or of inputs times or of outputs", TWO
          + "(assert (or (<= X_0 0.25) (>= X_0 0.75))) (assert (or (<= Y_0 0) (<= Y_1 0)))", [
        (((0, 0.25), (0, 1)), [row(1, 0, bound=0)]),
        (((0, 0.25), (0, 1)), [row(0, 1, bound=0)]),
        (((0.75, 1), (0, 1)), [row(1, 0, bound=0)]),
        (((0.75, 1), (0, 1)), [row(0, 1, bound=0)]),
    ]),
    Known("nested and/or", TWO + "(assert (or (and (<= Y_0 0) (or (<= Y_1 1) (<= Y_1 2))) (<= Y_1 3)))", [
        (UNIT, [row(1, 0, bound=0), row(0, 1, bound=1)]),
        (UNIT, [row(1, 0, bound=0), row(0, 1, bound=2)]),
        (UNIT, [row(0, 1, bound=3)]),
    ]),
    Known("> tightens the lower bound", TWO + "(assert (> X_0 0.25)) (assert (< X_1 0.5)) (assert (<= Y_0 0))", [
        (((0.25, 1), (0, 0.5)), [row(1, 0, bound=0)]),
    ]),
    Known("strict rows stay strict", TWO + "(assert (> Y_0 0.5)) (assert (< Y_0 Y_1))", [
        (UNIT, [row(-1, 0, bound=-0.5, strict=True), row(1, -1, bound=0, strict=True)]),
    ]),
    Known("relation between inputs is no box", TWO + "(assert (<= X_0 X_1)) (assert (<= Y_0 0))",
          [(UNIT, [row(1, 0, bound=0)])], [(0, (1, -1), 0, False)]),
    Known("linear input constraint", TWO + "(assert (<= (- (* 1.5 X_0) X_1) -0.5)) (assert (<= Y_0 0))",
          [(UNIT, [row(1, 0, bound=0)])], [(0, (1.5, -1), -0.5, False)]),
    Known("constraint in one disjunct only", TWO + "(assert (or (and (< X_0 X_1) (<= Y_0 0)) (<= Y_0 1)))",
          [(UNIT, [row(1, 0, bound=0)]), (UNIT, [row(1, 0, bound=1)])], [(0, (1, -1), 0, True)]),
    Known("scaled bound", TWO + "(assert (>= (* 2.0 X_0) 0.5)) (assert (<= (* -4 X_1) -1)) (assert (<= Y_0 0))", [
        (((0.25, 1), (0.25, 1)), [row(1, 0, bound=0)]),
    ]),
    Known("input on both sides", TWO + "(assert (<= (* 3 X_0) (+ X_0 1))) (assert (<= Y_0 0))", [
        (((0, 0.5), (0, 1)), [row(1, 0, bound=0)]),
    ]),
    Known("= is two bounds", TWO + "(assert (= X_0 0.5)) (assert (= Y_0 Y_1))", [
        (((0.5, 0.5), (0, 1)), [row(1, -1, bound=0), row(-1, 1, bound=0)]),
    ]),
    Known("constant on the left", TWO + "(assert (<= 0.25 X_0)) (assert (> 0.5 Y_0))", [
        (((0.25, 1), (0, 1)), [row(1, 0, bound=0.5, strict=True)]),
    ]),
    Known("minus signs", TWO + "(assert (>= X_0 -0.0)) (assert (<= Y_0 (- 1))) (assert (<= (- Y_1) (- 3 2 1)))", [
        (UNIT, [row(1, 0, bound=-1), row(0, -1, bound=0)]),
    ]),
    Known("constants fold", TWO + "(assert (<= (+ Y_0 (* 2 3) (- 1)) (* 0.5 4)))", [(UNIT, [row(1, 0, bound=-3)])]),
    Known("exponents", TWO + "(assert (>= Y_0 1e-2)) (assert (<= Y_1 2.5E+03))", [
        (UNIT, [row(-1, 0, bound=-0.01), row(0, 1, bound=2500)]),
    ]),
    Known("inputs in rows", TWO + "(assert (<= (+ Y_0 (* 2 X_1)) X_0))", [
        (UNIT, [row(1, 0, bound=0, inputs=(-1, 2))]),
    ]),
    Known("inexact coefficients become integers", TWO + "(assert (<= (+ (* 0.1 Y_0) (* 0.3 Y_1)) 0.7))", [
        (UNIT, [row(1, 3, bound=7)]),
    ]),
    Known("false disjunct", TWO + "(assert (or (<= 1 0) (<= Y_0 0)))", [(UNIT, [row(1, 0, bound=0)])], note="false"),
    Known("true disjunct", TWO + "(assert (or (<= 0 1) (<= Y_0 0)))", [(UNIT, []), (UNIT, [row(1, 0, bound=0)])]),
    Known("false assertion", TWO + "(assert (< Y_0 Y_0))", [], note="false"),
    Known("cancelled variable", TWO + "(assert (<= (- Y_0 Y_0) 0)) (assert (<= Y_1 0))",
          [(UNIT, [row(0, 1, bound=0)])]),
    Known("empty box", TWO + "(assert (>= X_0 0.6)) (assert (<= X_0 0.4)) (assert (<= Y_0 0))", [],
          note="empty input set"),
    Known("empty by strictness", TWO + "(assert (or (> X_0 1) (<= Y_0 0)))", [(UNIT, [row(1, 0, bound=0)])],
          note="case 1 of 2: empty input set"),
    Known("empty, strict against not strict", TWO
          + "(assert (< X_0 0.1)) (assert (>= X_0 0.1)) (assert (<= Y_0 0))", [],
          note="empty input set"),
    Known("empty by less than a rounding", TWO
          + "(assert (<= X_0 0.1)) (assert (>= X_0 0.1000000000000000000000001)) (assert (<= Y_0 0))", [],
          note="empty input set"),
    Known("half-open point",
          "(declare-const X_0 Real) (declare-const Y_0 Real) (assert (and (> X_0 0.1) (<= X_0 0.1)))",
          [], note="empty input set"),
    Known("repeated case", TWO + "(assert (or (<= Y_0 0) (<= Y_1 0) (<= Y_0 0)))", [
        (UNIT, [row(1, 0, bound=0)]), (UNIT, [row(0, 1, bound=0)]),
    ]),
    Known("declare-fun, tabs, CR LF, comment, real", (
        "(declare-fun X_0 () real)\r\n( declare-const\tY_0 Real )\r\n; ((( \r\n"
        "( assert ( and ; why\r\n (>= X_0 0)(<= X_0 2) ( <= Y_0 ; here\r\n 1 ) ) ) ; no newline"), [
        (((0, 2),), [row(1, bound=1)]),
    ]),
    Known("a comment ends at a lone CR", "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0)) ; to\r"
          "(assert (<= X_0 2)) ; here\r\n(assert (<= Y_0 1))", [(((0, 2),), [row(1, bound=1)])]),
    Known("no rows", TWO + "(assert (<= X_0 0.5))", [(((0, 0.5), (0, 1)), [])]),
    Known("2.x", TENSORS + "(assert (>= Y[0] 0.5))", [(UNIT, [row(-1, 0, bound=-0.5)])]),
    Known("2.x ==", TENSORS + "(assert (== Y[0] 0.5))", [(UNIT, [row(1, 0, bound=0.5), row(-1, 0, bound=-0.5)])]),
    Known("2.x !=", TENSORS + "(assert (!= X[0] 0.5))", [(((0, 0.5), (0, 1)), []), (((0.5, 1), (0, 1)), [])]),
    Known("2.x exponent", TENSORS + "(assert (<= Y[0] 1.0e1))", [(UNIT, [row(1, 0, bound=10)])], note="1.0e1"),
    Known("2.x blanks and integers", TENSORS + "( assert (<= Y [ 1 ] 5))", [(UNIT, [row(0, 1, bound=5)])]),
    Known("2.x minor version", TENSORS.replace("2.0", "2.7") + "(assert (<= Y[0] 1.0))", [(UNIT, [row(1, 0, bound=1)])],
          note="2.7"),
    Known("2.x row-major", """(vnnlib-version <2.0>)
        (declare-network f (declare-input X real []) (declare-output Y real [2,3]))
        (assert (and (>= X 0.0) (<= X 1.0) (<= Y[1,0] Y[0,2]) (<= Y[1,2] 1.0)))""", [
        (((0, 1),), [row(0, 0, -1, 1, 0, 0, bound=0), row(0, 0, 0, 0, 0, 1, bound=1)]),
    ]),
    Known("2.x order of several tensors, scalar, two dimensions, unused hidden node", """(vnnlib-version <2.1>)
        (declare-network f (declare-input A Real [2, 1]) (declare-input s REAL [])
          (declare-hidden h real [7] "relu \\"3\\"") (declare-output B real [1,2]) (declare-output t real []))
        (assert (and (>= A[0,0] 1.0) (<= A[0,0] 2.0) (>= A[1,0] 3.0) (<= A[1,0] 4.0) (>= s 5.0) (<= s 6.0)))
        (assert (or (<= B[0,1] 7.0) (< t B[0,0])))""", [
        (((1, 2), (3, 4), (5, 6)), [row(0, 1, 0, bound=7)]),
        (((1, 2), (3, 4), (5, 6)), [row(-1, 0, 1, bound=0, strict=True)]),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_normal_form(known: Known) -> None:
    prop = parse_property(known.text)
    found = []
    for case in range(prop.num_cases):
        box = prop.case_box[case]
        bounds = tuple(zip(prop.boxes.lower[box].tolist(), prop.boxes.upper[box].tolist(), strict=True))
        rows = []
        for r in np.flatnonzero(prop.rows.owner == case):
            inputs = None
            if prop.rows.inputs is not None and prop.rows.inputs[r].any():
                inputs = tuple(prop.rows.inputs[r].tolist())
            # Both bounds are nearest floats here, except where the decimal is not a float.
            bound = prop.rows.bound[r]
            assert prop.rows.inner_bound[r] in (bound, np.nextafter(bound, -np.inf))
            rows.append(
                (tuple(prop.rows.outputs[r].tolist()), inputs, pytest.approx(bound, rel=1e-15), prop.rows.strict[r])
            )
        found.append((bounds, rows))
    assert found == [(box, rows) for box, rows in known.cases]
    constraints = prop.constraints
    assert constraints.inputs is not None
    assert [
        (int(constraints.owner[q]), tuple(constraints.inputs[q].tolist()), constraints.bound[q], constraints.strict[q])
        for q in range(len(constraints))
    ] == known.constraints
    assert constraints.outputs.shape == (len(constraints), 0)
    if known.note is None:
        assert prop.notes == ()
    else:
        assert any(known.note in note for note in prop.notes)


def test_strict_bounds_are_closed_outside_and_open_inside() -> None:
    prop = parse_property(TWO + "(assert (> X_0 0.25)) (assert (< X_0 0.1e1))")
    assert prop.boxes.lower[0, 0] == 0.25
    assert prop.boxes.inner_lower[0, 0] == np.nextafter(0.25, 1)
    assert prop.boxes.upper[0, 0] == 1
    assert prop.boxes.inner_upper[0, 0] == np.nextafter(1, 0)


def test_point_that_float64_does_not_hold() -> None:
    prop = parse_property(TWO + "(assert (= X_0 0.1))")
    assert prop.num_cases == 1
    assert prop.boxes.inner_lower[0, 0] > prop.boxes.inner_upper[0, 0]
    assert prop.boxes.lower[0, 0] < prop.boxes.upper[0, 0] == np.nextafter(prop.boxes.lower[0, 0], 1)


def test_cases_share_one_box() -> None:
    declare = "".join(f"(declare-const X_{i} Real)" for i in range(784)) + "".join(
        f"(declare-const Y_{i} Real)" for i in range(10)
    )
    bounds = "".join(f"(assert (>= X_{i} 0.{i})) (assert (<= X_{i} 1.{i}))" for i in range(784))
    disjuncts = "".join(f"(and (<= Y_0 Y_{i}))" for i in range(1, 10))
    prop = parse_property(f"{declare}{bounds}(assert (or {disjuncts}))")
    assert (len(prop.boxes), prop.num_cases, len(prop.rows)) == (1, 9, 9)


def test_equal_boxes_written_differently_are_one() -> None:
    text = TWO + "(assert (or (and (<= X_0 0.50) (<= Y_0 0)) (and (<= X_1 2) (<= X_0 0.5) (<= Y_1 0))))"
    prop = parse_property(text)
    assert (len(prop.boxes), prop.num_cases) == (1, 2)
    assert prop.case_box.tolist() == [0, 0]


def test_equal_boxes_with_different_constraints_are_two() -> None:
    prop = parse_property(TWO + "(assert (or (and (<= X_0 X_1) (<= Y_0 0)) (and (<= X_1 X_0) (<= Y_0 0))))")
    assert (len(prop.boxes), prop.num_cases) == (2, 2)
    assert prop.constraints.owner.tolist() == [0, 1]


def test_error_of_an_input_coefficient_is_in_the_bounds() -> None:
    text = TWO + "(assert (<= (+ (* 0.12345678901234567891 X_0) (* 3 X_1)) 1)) (assert (<= Y_0 0))"
    prop = parse_property(text)
    assert prop.constraints.inputs is not None
    assert prop.constraints.inputs[0].tolist() == [0.12345678901234567891, 3]
    assert prop.constraints.inner_bound[0] < 1 < prop.constraints.bound[0]
    assert prop.constraints.bound[0] - prop.constraints.inner_bound[0] < 1e-15
