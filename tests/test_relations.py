"""Relations: what they write is what they say, on networks where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from bnn_vnnlib import Verdict, verify
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.question.property import violated_case
from bnn_vnnlib.relations import equivalent, fair, global_robustness, monotone
from support.builders import model, random_model

WEIGHT = np.array([[2.0, -0.5, 0.0], [0.25, 1.0, -1.0]])
LINEAR = model([(WEIGHT, np.array([0.0, 1.0]))])
"""y_0 = 2 x_0 - x_1 / 2, y_1 = x_0 / 4 + x_1 - x_2 + 1."""

HAT = model([(np.array([[1.0], [1.0]]), np.array([0.0, -0.5])), (np.array([[1.0, -2.0]]), np.zeros(1))])
"""y = relu(x) - 2 relu(x - 1/2): rises until x = 1/2, then falls."""


def verdict(relation, *models) -> Verdict:
    return verify(models, relation.property, timeout=20).verdict


@pytest.mark.parametrize(
    ("input_", "output", "decreasing", "expected"),
    [(0, 0, False, "unsat"), (0, 0, True, "sat"), (1, 0, True, "unsat"), (1, 0, False, "sat"), (2, 0, False, "unsat"),
     (2, 0, True, "unsat"), (2, 1, True, "unsat"), (2, 1, False, "sat")],
)  # fmt: skip
def test_monotone(input_: int, output: int, decreasing: bool, expected: str) -> None:
    """A constant output neither rises nor falls."""
    assert verdict(monotone(LINEAR, 0, 1, input_, output, decreasing=decreasing), LINEAR) == expected


def test_monotone_up_to_the_peak_alone() -> None:
    assert verdict(monotone(HAT, 0, 0.5, 0), HAT) == "unsat"
    assert verdict(monotone(HAT, 0, 0.6, 0), HAT) == "sat"
    assert verdict(monotone(HAT, 0.5, 1, 0, decreasing=True), HAT) == "unsat"


def test_monotone_for_most_draws() -> None:
    """The slope is N(1, s^2) on all of the box: P_safe is Phi(1 / s), and no bound may miss it."""
    from scipy.stats import norm

    for size in (0.2, 0.6):
        net = model([(np.eye(1), np.zeros(1))], [(np.full((1, 1), size**2), np.full(1, 0.04))])
        found = verify(net, monotone(net, 0, 1, 0).property, timeout=60).p_safe
        truth = norm.cdf(1 / size)
        assert found.lower <= truth <= found.upper
        assert found.lower == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize(("delta", "expected"), [(2.076, "unsat"), (2.074, "sat")])
def test_fair(delta: float, expected: str) -> None:
    """|y_0| moves by 2 with the sensitive x_0 and by 0.15 / 2 with x_1."""
    assert verdict(fair(LINEAR, 0, 1, 0, 0.15, delta, [0]), LINEAR) == expected


def test_eps_of_each_input() -> None:
    assert verdict(fair(LINEAR, 0, 1, (), [0.1, 0, 0], 0.2001, [0]), LINEAR) == "unsat"
    assert verdict(fair(LINEAR, 0, 1, (), [0.1, 0, 0], 0.19, [0]), LINEAR) == "sat"
    relation = global_robustness(LINEAR, 0, 1, 0.1, 0.225)  # y_1: 0.25 of 0.1 three times over: 0.025 + 0.1 + 0.1
    assert verdict(relation, LINEAR) == "sat"  # of y_0: 0.2 + 0.05
    assert verdict(global_robustness(LINEAR, 0, 1, 0.1, 0.251), LINEAR) == "unsat"


def test_equivalent() -> None:
    moved = WEIGHT.copy()
    moved[0, 0] += 0.01
    other = model([(moved, np.array([0.0, 1.0]))])
    assert verdict(equivalent(LINEAR, other, -1, 1, "0.0100001"), LINEAR, other) == "unsat"
    assert verdict(equivalent(LINEAR, other, -1, 1, 0.0099), LINEAR, other) == "sat"
    assert verdict(equivalent(LINEAR, LINEAR, -1, 1, 0, relation="equal-to"), LINEAR) == "unsat"
    wide = model([(np.ones((4, 3)), np.zeros(4)), (np.zeros((2, 4)), np.array([0.0, 1.0]))])
    assert verdict(equivalent(LINEAR, wide, 0, 0, 0.1, relation=None), LINEAR, wide) == "unsat"  # both are (0, 1) at 0


def test_corners_that_no_float_holds_have_a_witness() -> None:
    """Differences of float64 numbers such as 0.203 and -0.568 are rounded; a pair nearby is not."""
    net = random_model(3, [3, 5, 2], spread=0.05)
    found = verify((net, net), monotone(net, [-0.568, -0.453, -0.216], [0.203, 0.1, 0.5], 0).property, timeout=20)
    other = monotone(net, [-0.568, -0.453, -0.216], [0.203, 0.1, 0.5], 0, decreasing=True)
    answers = found, verify((net, net), other.property, timeout=5)
    assert Verdict.SAT in [answer.verdict for answer in answers]
    for answer in answers:
        assert answer.p_safe.upper >= 0.95 or answer.verdict == "sat"


def test_text_says_what_it_asks() -> None:
    relation = fair(LINEAR, 0, [1, 2, "0.3"], 1, 0.05, 0.25)
    assert "; Required: inputs that differ in 1, and by at most 0.05 elsewhere" in relation.text
    assert "(equal-to f)" in relation.text
    assert "0.3)" in relation.text
    prop = relation.property
    x = np.array([0.5, 0.0, 0.1, 0.5, 2.0, 0.1])
    assert violated_case(prop, x, np.array([0.0, 0.0, 0.0, 0.26])) is not None
    assert violated_case(prop, x, np.array([0.0, 0.0, 0.0, 0.25])) is None
    x[0] += 0.06
    assert violated_case(prop, x, np.array([0.0, 0.0, 0.0, 0.26])) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: monotone(LINEAR, 0, 1, 3), "there is no input 3"),
        (lambda: monotone(LINEAR, 0, 1, 0, 2), "there is no output 2"),
        (lambda: monotone(LINEAR, 1, 0, 0), "must lie between 1 and 0"),
        (lambda: fair(LINEAR, 0, 1, 0, -0.1, 1), "eps must not be negative"),
        (lambda: fair(LINEAR, 0, 1, 0, 0.1, -1), "delta must not be negative"),
        (lambda: fair(LINEAR, [0, 0], 1, 0, 0.1, 1), "must be one number, or 3"),
        (lambda: equivalent(LINEAR, HAT, 0, 1, 0.1), "other shapes"),
    ],
)
def test_refused(make, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()
