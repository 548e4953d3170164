"""Refuting systems of rows: contradictions are found for any network, and a feasible system is never refuted."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bnn_vnnlib import verify, verify_batch
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.problem import from_property
from bnn_vnnlib.problem.refute import refuted_cases
from support.builders import bounds_of, model, problem, properties, random_model, rows

QUERIES = ["probabilistic", "decision", "deterministic"]
SIZE = 3
IDENTITY = model([(np.eye(SIZE), np.zeros(SIZE))], [(np.full((SIZE, SIZE), 1e-6), None)], likelihood="gaussian")
seeds = st.integers(0, 10**6)


def refuted(net, question, method: str = "linear") -> np.ndarray:
    weights = weight_sets.mean_weights(net.network)
    return refuted_cases(bounds_of(net, method=method), weights, question)[0].numpy()


def dyadic(rng: np.random.Generator, shape) -> np.ndarray:
    """Numbers with which products and sums are exact in float64."""
    return rng.integers(-8, 9, size=shape) / 4


def exactly_feasible(a, b, strict, y) -> bool:
    """In rational arithmetic."""
    for row, bound, open_ in zip(a.tolist(), b.tolist(), strict.tolist(), strict=True):
        left = sum((Fraction(c) * Fraction(v) for c, v in zip(row, y.tolist(), strict=True)), Fraction(0))
        if left > Fraction(bound) or (open_ and left == Fraction(bound)):
            return False
    return True


@given(seeds, st.integers(1, 6), st.sampled_from(["interval", "linear"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_feasible_system_is_never_refuted(seed, count, method, tight):
    """The rows hold at one point of the box, with equality where `tight`."""
    rng = np.random.default_rng(seed)
    low = dyadic(rng, SIZE)
    high = low + np.abs(dyadic(rng, SIZE))
    point = np.where(rng.random(SIZE) < 0.5, low, high) if tight else low + (high - low) / 2
    a = dyadic(rng, (count, SIZE))
    slack = np.zeros(count) if tight else np.abs(dyadic(rng, count))
    b = a @ point + slack
    strict = (rng.random(count) < 0.5) & (slack > 0)
    assert exactly_feasible(a, b, strict, point)
    assert not refuted(IDENTITY, problem(low, high, (a, b, strict), outputs=SIZE), method).any()


@given(seeds, st.integers(2, 7))
@settings(max_examples=60, deadline=None)
def test_what_a_linear_program_refutes_clearly_is_refuted(seed, count):
    """For y = x the combination of rows is complete; compared with an independent program in primal form."""
    rng = np.random.default_rng(seed)
    low, high = -np.ones(SIZE), np.ones(SIZE)
    a, b = rng.normal(size=(count, SIZE)), rng.normal(size=count) - 0.7
    # the smallest t with A y <= b + t over the box
    cost, matrix = np.append(np.zeros(SIZE), 1.0), np.column_stack([a, -np.ones(count)])
    box = [*zip(low, high, strict=True), (None, None)]
    least = linprog(cost, A_ub=matrix, b_ub=b, bounds=box).fun
    answer = bool(refuted(IDENTITY, problem(low, high, rows(a, b), outputs=SIZE)).all())
    if least > 1e-6:
        assert answer
    if least < -1e-9:
        assert not answer


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_constraints_on_inputs_take_part(seed):
    """y = x, one row over y and random constraints on x; a feasible point is kept, a clear contradiction found."""
    rng = np.random.default_rng(seed)
    low, high = -np.ones(SIZE), np.ones(SIZE)
    point = dyadic(rng, SIZE).clip(-1, 1)
    g, a = dyadic(rng, (3, SIZE)), dyadic(rng, SIZE)
    limits = [(0, row, float(row @ point), False) for row in g]
    touching = properties(IDENTITY, [(low, high)], [(0, [(a, None, float(a @ point), False)])], limits)
    assert not refuted(IDENTITY, from_property(touching)).any()
    solved = linprog(a, A_ub=g, b_ub=g @ point, bounds=list(zip(low, high, strict=True)))
    beyond = properties(IDENTITY, [(low, high)], [(0, [(a, None, float(solved.fun) - 1e-6, False)])], limits)
    assert refuted(IDENTITY, from_property(beyond)).all()


NETWORKS = {
    "relu": lambda: random_model(0, [2, 6, 2], spread=0.5, likelihood="gaussian"),
    "classifier": lambda: random_model(1, [2, 6, 2], spread=0.5, likelihood="categorical"),
    "Softmax": lambda: random_model(2, [2, 6, 2], spread=0.5, likelihood="categorical", end=["Softmax"]),
    "bernoulli": lambda: random_model(3, [2, 6, 2], spread=0.5, likelihood="bernoulli"),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("kind", NETWORKS)
def test_contradictory_rows_are_refuted_for_any_network(query, kind):
    net = NETWORKS[kind]()
    contradictions = [
        rows([[1, 0], [-1, 0]], [0.0, -1.0]),  # y0 <= 0 and y0 >= 1
        rows([[1, 1], [-1, 0], [0, -1]], [0.0, -0.5, 0.25]),  # y0 + y1 <= 0, y0 >= .5, y1 >= -.25
        rows([[1, -1], [-1, 1]], [-0.125, -0.125]),  # y0 < y1 < y0
    ]
    for case in contradictions:
        found = verify_batch(net, [[-1, -1]], [[1, 1]], properties=[[case]], query=query)
        assert found.verdicts[0] == "unsat"
        if query == "probabilistic":
            assert found.lower[0] >= 1 - 1e-11


@pytest.mark.parametrize("query", QUERIES)
def test_contradictory_constraints_on_inputs_are_refuted(query):
    net = NETWORKS["relu"]()
    limits = [(0, (1, 0), 0.25, False), (0, (-1, -1), -1.5, False), (0, (0, 1), 0.5, False)]
    case = [] if query == "decision" else [([1, 0], None, 1000.0, False)]
    prop = properties(net, [((-1, -1), (1, 1))], [(0, case)], limits)
    assert verify(net, prop, query=query).verdict == "unsat"


@pytest.mark.parametrize("query", QUERIES)
def test_touching_rows_are_not_a_contradiction(query):
    """y0 <= 0 and y0 >= 0 holds on a line: not refuted, and 0 <= P_safe <= 1 says nothing more."""
    net = model([([[1.0]], [0.0])], [([[0.25]], None)], likelihood="gaussian")
    found = verify_batch(net, [[-1.0]], [[1.0]], properties=[[rows([[1], [-1]], [0.0, 0.0])]], query=query)
    assert found.verdicts[0] != "unsat"
    if query == "probabilistic":
        assert found.lower[0] == 0.0


def test_multipliers_are_checked_and_not_believed(monkeypatch):
    """A solver that claims nonsense changes no answer from feasible to refuted."""
    from bnn_vnnlib.problem import refute

    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        refute,
        "_multipliers",
        lambda system, part: rng.exponential(size=system.bound[part].shape) * 10.0 ** rng.integers(-9, 9),
    )
    for _ in range(50):
        a = dyadic(rng, (4, SIZE))
        assert not refuted(IDENTITY, problem(-np.ones(SIZE), np.ones(SIZE), rows(a, np.zeros(4)), outputs=SIZE)).any()


def test_a_solver_that_fails_refutes_nothing(monkeypatch):
    monkeypatch.setattr("scipy.optimize.linprog", lambda *_, **__: type("Failed", (), {"x": None})())
    question = problem(-np.ones(SIZE), np.ones(SIZE), rows([[1, 0, 0], [-1, 0, 0]], [0.0, -1.0]), outputs=SIZE)
    assert not refuted(IDENTITY, question).any()


@given(seeds, st.integers(1, 3))
@example(22437, 3)
@settings(max_examples=4, deadline=None)
def test_many_weight_boxes_agree_with_each_alone(seed, count):
    """Padding, several cases of different length and the batch do not change an answer."""
    rng = np.random.default_rng(seed)
    net = random_model(seed, [2, 3, 2])
    low = rng.normal(size=(count, 2))
    cases = [
        [rows(rng.normal(size=(k, 2)), rng.normal(size=k) - 0.5) for k in rng.integers(0, 4, size=rng.integers(1, 4))]
        for _ in range(count)
    ]
    asked: dict[str, Any] = {"query": "probabilistic", "tau_safe": 0.5, "tau_unsafe": 0.5}
    together = verify_batch(net, low, low + 0.1, properties=cases, **asked)
    for i in range(count):
        alone = verify_batch(net, low[[i]], low[[i]] + 0.1, properties=[cases[i]], **asked)
        assert alone.lower[0] == pytest.approx(together.lower[i], abs=1e-6)
        assert alone.upper[0] == pytest.approx(together.upper[i], abs=1e-6)
        assert alone.verdicts[0] == together.verdicts[i]


def test_infinite_magnitudes_do_not_break_the_check():
    net = model([(np.full((1, 1), 1e200), [0.0]), ([[1e200]], [0.0])], [([[0.0]], None), ([[0.0]], None)])
    found = verify_batch(net, [[1.0]], [[2.0]], properties=[[rows([[1], [-1]], [1.0, 0.0])]], query="deterministic")
    assert found.verdicts[0] == "unknown"
