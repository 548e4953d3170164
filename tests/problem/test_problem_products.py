"""Constraints with products of inputs: read exactly, bounded from outside for `unsat`, checked exactly for `sat`."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from bnn_vnnlib import Property, Query, Verdict, verify
from bnn_vnnlib.check_witness import at_point
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.network.pairs import side_by_side
from bnn_vnnlib.problem.pairs import differences
from bnn_vnnlib.problem.problem import feasible, from_property
from bnn_vnnlib.problem.products import CELLS, in_cells
from bnn_vnnlib.question.property import Polynomial, input_feasible, violated_case
from bnn_vnnlib.vnnlib import parse_property
from support.builders import model

NET = model([(np.eye(2), np.zeros(2))])
NOISY = model([(np.eye(2), np.zeros(2))], [(np.full((2, 2), 1e-6), np.zeros(2))])


def asked(constraint: str, violation: str = "(>= Y[0,0] Y[0,1])", low: float = 0.0, high: float = 1.0) -> Property:
    """Of networks with two inputs, x and y for short in the constraint, and two outputs."""
    text = f"""(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1,2]) (declare-output Y real [1,2]))
(assert (and (>= X[0,0] {low}) (<= X[0,0] {high}) (>= X[0,1] {low}) (<= X[0,1] {high})))
(assert {constraint.replace("x", "X[0,0]").replace("y", "X[0,1]")})
(assert {violation})
"""
    return parse_property(text)


def total(sense: str, bound: float) -> str:
    return f"({sense} (+ Y[0,0] Y[0,1]) {bound})"


def test_sums_and_products_are_multiplied_out() -> None:
    (found,) = asked("(<= (* (+ x 1.0) (- y 2.0) x) (* 3.0 y))").polynomials[0]
    terms = {(0,): -2, (0, 1): 1, (0, 0): -2, (0, 0, 1): 1, (1,): -3}
    assert {columns: int(a) for a, columns in found.terms} == terms
    assert (found.bound, found.strict) == (0, False)


def test_products_that_cancel_leave_a_linear_constraint() -> None:
    prop = asked("(<= (- (* x y) (* y x)) (- x 0.5))")
    assert prop.polynomials == ()
    assert prop.boxes.lower[0, 0] == 0.5


@pytest.mark.parametrize("constraint", ["(<= (* x Y[0,0]) 0.5)", "(<= (* x y) Y[0,0])", "(!= (* Y[0,0] Y[0,1]) 0.0)"])
def test_products_beside_outputs_are_refused_by_name(constraint: str) -> None:
    with pytest.raises(UnsupportedError, match=r"comparison of Y\[0,0\].* with a product of variables"):
        asked(constraint)


# (constraint, row, verdict): the extreme sum over the set is 1.25, 1, 0.5, 1.75 by hand
EXTREMES = [
    ("(<= (* x y) 0.25)", total(">=", 1.27), Verdict.UNSAT),
    ("(<= (* x y) 0.25)", total(">=", 1.22), Verdict.SAT),
    ("(>= (* x y) 0.25)", total("<=", 0.98), Verdict.UNSAT),
    ("(>= (* x y) 0.25)", total("<=", 1.03), Verdict.SAT),
    ("(> (* 1.0 x x x) 0.125)", total("<=", 0.48), Verdict.UNSAT),
    ("(> (* 1.0 x x x) 0.125)", total("<=", 0.52), Verdict.SAT),
    ("(<= (- (* x x) (* y y)) -0.4375)", total("<=", 0.64), Verdict.UNSAT),
    ("(>= (* x y) 1.5)", total("<=", 3.0), Verdict.UNSAT),
]


@pytest.mark.parametrize(("constraint", "violation", "verdict"), EXTREMES)
def test_verdicts_near_the_extreme(constraint: str, violation: str, verdict: Verdict) -> None:
    prop = asked(constraint, violation)
    found = verify(NET, prop, timeout=60)
    assert found.verdict is verdict
    if found.witness is not None:
        assert violated_case(prop, found.witness.x, found.witness.y) is not None


def test_a_drawn_network_is_bounded_on_the_same_set() -> None:
    """Far from the extreme, 1.25, P_safe is 1 but for 1e-6; just inside, a drawn network violates at once."""
    assert verify(NOISY, asked("(<= (* x y) 0.25)", total(">=", 1.3)), timeout=60).p_safe.lower > 0.999
    found = verify(NOISY, asked("(<= (* x y) 0.25)", total(">=", 1.2)), timeout=60)
    assert found.p_safe.upper < 0.01
    assert input_feasible(asked("(<= (* x y) 0.25)"), found.witness.x, 0)


def test_decisions_have_the_rows_of_the_file() -> None:
    net = replace(NOISY, likelihood="gaussian")
    found = verify(net, asked("(<= (* x y) 0.25)", total(">=", 1.6)), query="decision", timeout=60)
    assert found.verdict is Verdict.UNSAT
    assert found.decision.row_lower.shape == (1,)
    assert -1.6 < found.decision.row_lower[0] <= -1.25  # -(x + y) is at least -1.25


def test_words_and_a_point() -> None:
    prop = asked("(and (<= (* x y) 0.25) (>= (* 2.0 x x) (+ y 0.1)))")
    said = verify(NET, prop, timeout=5).asked.violation
    assert "X[0,0] * X[0,1] <= 0.25" in said
    assert "X[0,1] - 2 X[0,0] * X[0,0] <= -0.1" in said
    assert at_point(prop, np.array([0.5, 0.25])).num_cases == 1
    assert at_point(prop, np.array([0.9, 0.9])).num_cases == 0


def test_unequal_products_are_two_cases() -> None:
    prop = asked("(!= (* x x) (* x y))")
    assert prop.num_cases == 2
    assert not input_feasible(prop, np.array([0.5, 0.5]), 0)
    assert not input_feasible(prop, np.array([0.5, 0.5]), 1)
    assert input_feasible(prop, np.array([0.5, 0.25]), 0) != input_feasible(prop, np.array([0.5, 0.25]), 1)


def drawn(rng: np.random.Generator, inputs: int) -> Polynomial:
    """Up to 4 terms of up to 3 factors, with decimals that float64 does not hold."""
    terms = []
    for _ in range(int(rng.integers(1, 5))):
        columns = tuple(sorted(rng.integers(0, inputs, int(rng.integers(1, 4))).tolist()))
        terms.append((Fraction(int(rng.integers(-30, 31)) or 1, 10), columns))
    return Polynomial(tuple(terms), Fraction(int(rng.integers(-10, 11)), 10), bool(rng.integers(2)))


@pytest.mark.parametrize("seed", range(20))
def test_no_point_of_the_set_is_lost(seed: int) -> None:
    """A random point meets the constraints if and only if it does in some cell, where it meets the planes exactly, too;
    boxes that are called impossible hold none."""
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.uniform(-2, 2, 2)).round(2).tolist()
    prop = asked("(<= (* x y) 100.0)", low=low, high=high + 0.5)
    prop = replace(prop, polynomials=(tuple(drawn(rng, 2) for _ in range(int(rng.integers(1, 3)))),))
    cells, origin = in_cells(prop)
    assert len(cells.boxes) <= CELLS
    assert (origin == 0).all()
    ends = prop.boxes.inner_lower[0], prop.boxes.inner_upper[0]
    points = ends[0] + rng.random((200, 2)) * (ends[1] - ends[0])
    points[:8] = np.where(rng.random((8, 2)) < 0.5, *ends)
    for x in points:
        inside = input_feasible(prop, x, 0)
        assert inside == any(input_feasible(cells, x, k) for k in range(len(cells.boxes)))
    if not len(cells.boxes):
        return
    problem = from_property(cells)
    whole = from_property(prop)
    kept = feasible(whole.items(torch.zeros(200, dtype=torch.int64)), torch.as_tensor(points))
    assert kept.tolist() == [input_feasible(prop, x, 0) for x in points]
    boxes = [torch.as_tensor(points + side * 0.05 * rng.random((200, 1))) for side in (-1, 1)]
    excluded = whole.items(torch.zeros(200, dtype=torch.int64)).constraints.impossible(*boxes)
    assert not bool((excluded & kept).any())
    assert len(problem) == len(cells.boxes)


def test_planes_touch_the_surface() -> None:
    """Of x y <= 0.25 over a cell the planes are McCormick's: exact where an input is at an end."""
    cells, _ = in_cells(asked("(<= (* x y) 0.25)"))
    for k in range(len(cells.boxes)):
        low, high = cells.boxes.lower[k], cells.boxes.upper[k]
        which = cells.constraints.owner == k
        slopes, bounds = cells.constraints.inputs[which], cells.constraints.bound[which]
        for x in ([low[0], low[1]], [low[0], high[1]], [high[0], low[1]], [high[0], high[1]]):
            assert (slopes @ x - bounds).max() == pytest.approx(x[0] * x[1] - 0.25, abs=1e-6)


PAIR = """(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1,2]) (declare-output Y real [1,2]))
(declare-network g (equal-to f) (declare-input U real [1,2]) (declare-output V real [1,2]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0) (>= U[0,0] 0.0) (<= U[0,0] 1.0)))
(assert (and (== X[0,1] U[0,1]) {}))
(assert (>= (- Y[0,0] V[0,0]) {}))
"""


@pytest.mark.parametrize(("bound", "verdict"), [(1.02, Verdict.UNSAT), (0.97, Verdict.SAT)])
def test_products_over_both_networks(bound: float, verdict: Verdict) -> None:
    """(x_f + 1) x_g >= 0 and x_f x_g <= 0: with x_f = 1 and x_g = 0 the difference is 1, at most."""
    prop = parse_property(PAIR.format("(<= (* X[0,0] U[0,0]) 0.0)", bound))
    found = verify(NET, prop, timeout=60)
    assert found.verdict is verdict
    joined = side_by_side(NET, NET, "independent", same=True)
    way = differences(joined, prop)[0]
    ((one,),) = way.inner.polynomials  # x_f x_g = x_f^2 - x_f d
    assert {columns: int(a) for a, columns in one.terms} == {(0, 0): 1, (0, 2): -1}


def test_three_factors_of_two_networks_are_the_same_in_differences() -> None:
    rng = np.random.default_rng(3)
    prop = parse_property(PAIR.format("(<= (* X[0,0] U[0,0] U[0,1]) 0.1)", 0.5))
    ((inner,),) = differences(side_by_side(NET, NET, "independent", same=True), prop)[0].inner.polynomials
    ((outer,),) = prop.polynomials
    for numbers in rng.integers(0, 9, (20, 4)).tolist():
        x = [Fraction(v, 8) for v in numbers]
        d = [x[0] - x[2], x[1] - x[3]]
        assert inner.most([*x[:2], *d], [*x[:2], *d]) == outer.most(x, x)


def test_a_polynomial_alone_is_no_linear_constraint() -> None:
    prop: Any = asked("(<= (* x y) 0.25)")
    assert len(prop.constraints) == 0
    assert not input_feasible(prop, np.array([0.9, 0.9]), 0)
    assert input_feasible(prop, np.array([0.5, 0.5]), 0)
    assert input_feasible(prop, np.array([0.5, 0.500001]), 0, tolerance=1e-4)


def test_certificates_have_no_rule_for_products() -> None:
    from bnn_vnnlib.certificates.prove import refuse

    refuse(NET, Query.DETERMINISTIC, "certain", asked("(<= x 0.5)"))
    with pytest.raises(UnsupportedError, match="no rule for products of inputs"):
        refuse(NET, Query.DETERMINISTIC, "certain", asked("(<= (* x y) 0.25)"))
