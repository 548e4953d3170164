"""What a property asks, in words."""

from __future__ import annotations

import pytest

from bnn_vnnlib import Options, Query
from bnn_vnnlib.question.statement import violation_in_words, what_unsat_means
from bnn_vnnlib.vnnlib import parse_property


def old(body: str, inputs: int = 2, outputs: int = 3, box: tuple[str, str] = ("0.0", "1.0")) -> str:
    """A VNN-LIB 1.0 text over a box, with these assertions."""
    names = [f"X_{i}" for i in range(inputs)] + [f"Y_{i}" for i in range(outputs)]
    low, high = box
    limits = "".join(f"(assert (>= X_{i} {low})) (assert (<= X_{i} {high}))" for i in range(inputs))
    return "".join(f"(declare-const {name} Real)" for name in names) + limits + body


BOX = "X_0 in [0, 1], X_1 in [0, 1]"
MANY = " ".join(f"(and (>= Y_{i % 3} {i}) (<= Y_0 0))" for i in range(1, 6))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (old("(assert (>= Y_0 0.4))"), f"Y_0 >= 0.4 for some {BOX}"),
        (old("(assert (<= 0.4 Y_0))"), f"Y_0 >= 0.4 for some {BOX}"),
        (old("(assert (< Y_0 -0.1))"), f"Y_0 < -0.1 for some {BOX}"),
        (old("(assert (>= Y_1 Y_0))"), f"Y_0 <= Y_1 for some {BOX}"),
        (old("(assert (> Y_0 Y_1))"), f"Y_0 > Y_1 for some {BOX}"),
        (old("(assert (>= (* 2.0 Y_0) (* 2.0 Y_1)))"), f"2 Y_0 >= 2 Y_1 for some {BOX}"),
        (old("(assert (<= (+ Y_0 (* 2.0 Y_1)) X_1))"), f"Y_0 + 2 Y_1 - X_1 <= 0 for some {BOX}"),
        (old("(assert (<= Y_0 1e-7)) (assert (>= Y_1 1))"), f"Y_0 <= 1e-07 and Y_1 >= 1 for some {BOX}"),
        (old("(assert (or (>= Y_1 Y_0) (>= Y_2 Y_0)))"), f"Y_0 <= Y_1 or Y_0 <= Y_2 for some {BOX}"),
        (old("(assert (<= X_0 X_1)) (assert (>= Y_0 3))"), f"Y_0 >= 3 for some {BOX} with X_0 <= X_1"),
        (old("(assert (>= X_0 1)) (assert (>= Y_0 3))"), "Y_0 >= 3 for some X_0 = 1, X_1 in [0, 1]"),
        (old("(assert (>= X_0 0.3)) (assert (> 0.7 X_0)) (assert (>= Y_0 3))"),
         "Y_0 >= 3 for some X_0 in [0.3, 0.7], X_1 in [0, 1]"),
        (old(""), f"any output for some {BOX}"),
        (old("(assert (>= X_0 2))"), "none: no input satisfies the property's input part"),
        (old(f"(assert (or {MANY}))"),
         "(Y_1 >= 1 and Y_0 <= 0) or (Y_2 >= 2 and Y_0 <= 0) or (Y_0 >= 3 and Y_0 <= 0) "
         f"for some {BOX}; or one of 2 more cases"),
        (old("(assert (or (and (<= X_0 0.5) (>= Y_0 1)) (and (>= X_0 0.5) (>= Y_0 2))))"),
         "Y_0 >= 1 for some X_0 in [0, 0.5], X_1 in [0, 1]; or one more case, over 2 input sets in all"),
        (old("".join(f"(assert (>= Y_0 Y_{i}))" for i in range(1, 8)), 2, 8),
         f"Y_0 >= Y_1 and Y_0 >= Y_2 and Y_0 >= Y_3 and Y_0 >= Y_4 and 3 more rows for some {BOX}"),
        (old("(assert (<= (+ Y_0 Y_1 Y_2 Y_3 Y_4 Y_5 Y_6 Y_7) 1))", 2, 8),
         f"Y_0 + Y_1 + Y_2 + Y_3 + Y_4 + Y_5 + 2 more terms <= 1 for some {BOX}"),
        (old("(assert (>= Y_0 1))", 784, box=("0.3", "0.4")),
         "Y_0 >= 1 for some values of the 784 inputs, each in an interval of width at most 0.1"),
        (old("(assert (<= X_5 0.3)) (assert (>= Y_0 1))", 784, box=("0.3", "0.4")),
         "Y_0 >= 1 for some values of the 784 inputs, 783 of which vary, each in an interval of width at most 0.1"),
        (old("(assert (>= Y_0 1))", 9, box=("0.3", "0.3")),
         "Y_0 >= 1 for some values of the 9 inputs, all of them fixed"),
        ("(vnnlib-version <2.0>) (declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 []))"
         "(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (== X[0,1] 0.5))) (assert (>= Y 0.5))",
         "Y >= 0.5 for some X[0,0] in [0, 1], X[0,1] = 0.5"),
    ],
)  # fmt: skip
def test_a_violation_in_words(text, said):
    assert violation_in_words(parse_property(text)) == said


def test_what_unsat_means_by_query():
    question = Options(tau_safe=0.999, rule="median").question()
    assert "P_safe >= 0.999: " in what_unsat_means(Query.PROBABILISTIC, question, True, False)
    assert "medians of the outputs" in what_unsat_means(Query.DECISION, question, True, False)
    assert "expected probabilities" in what_unsat_means(Query.DECISION, Options().question(), True, True)
    assert "expected outputs" in what_unsat_means(Query.DECISION, Options().question(), True, False)
    assert what_unsat_means(Query.DETERMINISTIC, question, False, False) == "the network has no such input"
    assert "of the posterior means" in what_unsat_means(Query.DETERMINISTIC, question, True, False)
