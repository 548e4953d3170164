"""Properties that nothing can violate: marked where that is certain, and never where something can."""

from __future__ import annotations

import numpy as np
import pytest
from test_statement import old

from bnn_vnnlib import Property
from bnn_vnnlib.errors import InputError
from bnn_vnnlib.question.property import Boxes, HalfSpaces
from bnn_vnnlib.question.statement import vacuous, vacuous_row
from bnn_vnnlib.signature import Signature, Variable
from bnn_vnnlib.sweeps import read_table
from bnn_vnnlib.vnnlib import parse_property
from support.command import call

INPUTS, ROWS = "no input satisfies its input part", "its rows contradict each other"
EACH = "the rows of every case contradict each other"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("(assert (>= Y_0 1))", None),
        ("", None),
        ("(assert (>= X_0 2))", INPUTS),
        ("(assert (>= (+ X_0 X_1) 2.5)) (assert (>= Y_0 1))", INPUTS),
        ("(assert (>= (+ X_0 X_1) 2.0)) (assert (>= Y_0 1))", None),
        ("(assert (> (+ X_0 X_1) 2.0)) (assert (>= Y_0 1))", INPUTS),
        ("(assert (<= Y_0 0)) (assert (>= Y_0 1))", ROWS),
        ("(assert (<= Y_0 0)) (assert (>= Y_0 0))", None),
        ("(assert (< Y_0 0)) (assert (>= Y_0 0))", ROWS),
        ("(assert (< Y_0 0.1)) (assert (> Y_0 0.1))", None),  # decimals are rounded outward: a float lies between
        ("(assert (<= Y_0 1)) (assert (>= Y_0 0.9999999999))", None),
        ("(assert (<= Y_0 0.9999999999)) (assert (>= Y_0 1))", ROWS),
        ("(assert (> Y_0 Y_1)) (assert (> Y_1 Y_2)) (assert (> Y_2 Y_0))", ROWS),
        ("(assert (>= Y_0 Y_1)) (assert (>= Y_1 Y_2)) (assert (>= Y_2 Y_0))", None),
        ("(assert (<= (+ Y_0 Y_1) 1)) (assert (>= Y_0 0.75)) (assert (>= Y_1 0.5))", ROWS),
        ("(assert (<= (+ (* 3.0 Y_0) (* 7.0 Y_1)) 1)) (assert (>= Y_0 0.5)) (assert (>= Y_1 0.5))", ROWS),
        ("(assert (<= Y_0 X_0)) (assert (>= Y_0 1.5))", ROWS),
        ("(assert (<= Y_0 X_0)) (assert (>= Y_0 1.0))", None),
        ("(assert (<= Y_0 X_0)) (assert (> Y_0 1.0))", ROWS),
        ("(assert (<= Y_0 0)) (assert (or (>= Y_0 1) (>= Y_1 2)))", None),
        ("(assert (<= Y_0 0)) (assert (or (>= Y_0 1) (>= Y_0 2)))", EACH),
        ("(assert (or (>= X_0 2) (>= X_1 3)))", INPUTS),
        ("(assert (<= Y_0 1e300)) (assert (>= Y_0 -1e300))", None),
        ("(assert (<= Y_0 1e-300)) (assert (>= Y_0 2e-300))", ROWS),
    ],
)
def test_what_is_vacuous(body, why):
    assert vacuous(parse_property(old(body))) == why


@pytest.mark.parametrize("seed", range(40))
def test_what_something_meets_is_never_marked(seed):
    """Rows made to hold at a known point, some exactly and as close to contradictory as numbers allow."""
    rng = np.random.default_rng(seed)
    n, m, count = 2, 3, 8
    x, y = rng.integers(-4, 5, n) / 4, rng.integers(-8, 9, m) / 8
    a, g = rng.integers(-3, 4, (count, m)).astype(float), rng.integers(-2, 3, (count, n)).astype(float)
    a[count // 2 :], g[count // 2 :] = -a[: count // 2], -g[: count // 2]  # against each other, and both with equality
    bound = a @ y + g @ x
    strict = np.zeros(count, bool)
    if seed % 2:
        slack = rng.choice([0.0, 2.0**-40], count)
        bound, strict = bound + slack, slack > 0
    one = np.ones((1, n))
    none = HalfSpaces(np.zeros((0, 0)), None, *np.zeros((2, 0)), np.zeros(0, bool), np.zeros(0, np.int64))
    rows = HalfSpaces(a, g, bound, bound.copy(), strict, np.zeros(count, np.int64))
    signature = Signature((Variable("X", "real", (n,)),), (Variable("Y", "real", (m,)),))
    boxes = Boxes(-one, one.copy(), -one, one.copy())
    made = Property((1, 0), None, signature, boxes, none, np.zeros(1, np.int64), rows)
    assert vacuous(made) is None
    tighter = HalfSpaces(a, g, bound - 1.0, bound - 1.0, strict, rows.owner)
    marked = vacuous(Property((1, 0), None, signature, boxes, none, np.zeros(1, np.int64), tighter))
    assert marked == ROWS


def test_rows_that_nearly_contradict_each_other():
    """Y_0 - Y_1 <= -1 and (1 - 2^-40) Y_1 <= Y_0 hold from Y_1 = 2^40 on; a linear program sees no difference to 1."""
    a = np.array([[[1.0, -1.0], [-1.0, 1 - 2.0**-40]]])
    assert vacuous_row(a, np.array([[-1.0, 0.0]]), np.array([0, 0])) is None
    a[0, 1, 1] = 1.0
    assert vacuous_row(a, np.array([[-1.0, 0.0]]), np.array([0, 0])) == 0


def test_rows_of_a_table(tmp_path):
    """Row 1: Y_0 <= 0 and Y_0 >= 1; row 2 has the same and another case that something meets."""
    two = np.array([[[1.0, 0.0], [-1.0, 0.0]]])
    a, b = np.repeat(two, 3, 0), np.array([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]])
    assert vacuous_row(a, b, np.array([0, 0])) == 1
    assert vacuous_row(a, b, np.array([0, 1])) is None
    assert vacuous_row(a[::2], b[::2], np.array([0, 0])) is None
    table = {"lower": np.zeros((3, 2)), "upper": np.ones((3, 2)), "a": a, "b": b, "case": np.array([0, 0])}
    np.savez(tmp_path / "t.npz", **table)
    with pytest.raises(InputError, match=r"t\.npz: nothing can violate row 1"):
        read_table(tmp_path / "t.npz").asked.refuse_vacuous(tmp_path / "t.npz")
    outcome = call("sweep", tmp_path / "net.onnx", tmp_path / "t.npz", "--out", tmp_path / "out", "--strict", code=2)
    assert "nothing can violate row 1" in outcome.stderr


def test_many_cases_are_looked_at_quickly():
    """One case that can be met is enough, wherever it comes among those that are easily seen to be."""
    body = "(assert (or " + " ".join(f"(and (<= Y_0 {i}.0) (>= Y_0 {i}.5))" for i in range(50)) + " (>= Y_1 1)))"
    assert vacuous(parse_property(old(body))) is None
    assert vacuous(parse_property(old(body.replace(" (>= Y_1 1)", "")))) == EACH
