"""Properties about two networks: their variables, and input bounds that follow from the other network's."""

from __future__ import annotations

import numpy as np
import pytest

from bnn_vnnlib.errors import PropertyError
from bnn_vnnlib.question.property import Second, input_feasible, violated_case
from bnn_vnnlib.vnnlib import parse_property

PAIR = """(vnnlib-version <2.0>)
(declare-network f (declare-input X real [2]) (declare-hidden H real [3] "h") (declare-output Y real [1]))
(declare-network g ({} f) (declare-input A real [2]) (declare-output B real [1]))
(assert (and (>= X[0] 0.0) (<= X[0] 1.0) (>= X[1] 0.1) (<= X[1] 0.3)))
"""
SAME = "(assert (== X[0] A[0])) (assert (== X[1] A[1]))"


@pytest.mark.parametrize("word", ["equal-to", "isomorphic-to"])
def test_inputs_of_both_come_before_outputs(word: str) -> None:
    read = parse_property(PAIR.format(word) + SAME + "(assert (< Y[0] B[0]))")
    assert read.second == Second("g", word, 1, 0, 1)
    assert [variable.name for variable in read.signature.inputs] == ["X", "A"]
    assert [variable.name for variable in read.signature.outputs] == ["Y", "B"]
    np.testing.assert_array_equal(read.rows.outputs, [[1.0, -1.0]])
    assert read.rows.strict.all()
    assert read.declared == (("input", 0), ("hidden", 0), ("output", 0), ("input", 1), ("output", 1))


def test_an_equality_gives_the_other_input_its_bounds() -> None:
    read = parse_property(PAIR.format("equal-to") + SAME + "(assert (< Y[0] B[0]))")
    for side in (read.boxes.lower, read.boxes.upper, read.boxes.inner_lower, read.boxes.inner_upper):
        assert side.shape == (1, 4)
    assert read.boxes.lower[0, 2] == 0
    assert read.boxes.upper[0, 2] == 1
    assert read.boxes.lower[0, 3] == read.boxes.lower[0, 1]
    assert read.boxes.upper[0, 3] == read.boxes.upper[0, 1]
    x = np.array([0.5, 0.2, 0.5, 0.2])
    assert input_feasible(read, x, 0)
    assert not input_feasible(read, np.array([0.5, 0.2, 0.5 + 1e-9, 0.2]), 0)
    assert violated_case(read, x, np.array([0.0, 1.0])) == 0
    assert violated_case(read, x, np.array([1.0, 1.0])) is None


def test_implied_ends_are_rounded_outward() -> None:
    text = PAIR.format("equal-to") + "(assert (and (<= (- (* 3.0 A[0]) X[1]) 0.1) (>= A[0] -1.0) (== A[1] X[1])))"
    read = parse_property(text + "(assert (< Y[0] B[0]))")
    end = read.boxes.upper[0, 2]  # (0.1 + 0.3) / 3
    assert 0 <= end - 0.4 / 3 < 1e-15
    assert read.boxes.lower[0, 2] == -1


def test_a_chain_of_constraints_bounds_the_last_one() -> None:
    text = PAIR.format("isomorphic-to") + "(assert (and (<= A[0] A[1]) (== A[1] X[1]) (>= A[0] X[1])))"
    read = parse_property(text + "(assert (< Y[0] B[0]))")
    assert 0.1 <= read.boxes.upper[0, 2] - 0.2 < 0.1 + 1e-15
    assert read.boxes.lower[0, 2] == read.boxes.lower[0, 1]


def test_implied_bounds_may_leave_nothing() -> None:
    text = PAIR.format("equal-to") + "(assert (and (>= A[0] 3.0) (<= A[0] X[0]) (== A[1] X[1])))"
    assert parse_property(text + "(assert (< Y[0] B[0]))").num_cases == 0


def test_one_side_alone_stays_open() -> None:
    text = PAIR.format("equal-to") + "(assert (and (>= X[0] A[0]) (== A[1] X[1])))"
    read = parse_property(text + "(assert (< Y[0] B[0]))")
    assert read.boxes.lower[0, 2] == -np.finfo(np.float32).max
    assert any(note.startswith("no bound for A[0]: ") for note in read.notes)


def test_element_types_may_differ_but_not_in_a_comparison() -> None:
    text = PAIR.format("isomorphic-to").replace("A real", "A float32").replace("B real", "B float32")
    text = text.replace(" real ", " float64 ")
    bounds = "(assert (and (>= A[0] 0.0) (<= A[0] 1.0) (>= A[1] 0.0) (<= A[1] 1.0) (< Y[0] 0.5)))"
    assert parse_property(text + bounds).second is not None
    with pytest.raises(PropertyError, match="mixes the element types"):
        parse_property(text + bounds + "(assert (< Y[0] B[0]))")


def test_inputs_of_a_pair_without_any_bound_are_all_numbers_of_float32() -> None:
    """Of one network they stay refused: there it is nearly always a mistake."""
    text = """(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1]) (declare-output Y real [1]))
(declare-network g (equal-to f) (declare-input A real [1]) (declare-output B real [1]))
(assert (>= X[0] 0.0))
(assert (> Y[0] B[0]))
"""
    prop = parse_property(text)
    largest = float(np.finfo(np.float32).max)
    assert prop.boxes.lower.tolist() == [[0.0, -largest]]
    assert prop.boxes.upper.tolist() == [[largest, largest]]
    assert any("no bound for X[0], A[0]: all numbers of float32" in note for note in prop.notes)
