"""Decision rules as violations: against their definitions, and through `verify_batch`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnn_vnnlib import Verdict, rules, verify_batch
from bnn_vnnlib.errors import OptionError
from support.builders import model


def violated(cases: rules.Cases, y: np.ndarray) -> bool:
    return any(bool(np.where(strict, a @ y < b, a @ y <= b).all()) for a, b, strict in cases)


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_against_the_definitions(seed, classes):
    rng = np.random.default_rng(seed)
    y, label, tau = rng.dirichlet(np.ones(classes)), int(rng.integers(classes)), float(rng.uniform())
    costs = rng.uniform(0.1, 5.0, classes)
    expected = np.float32(costs).astype(float) * (1 - y)
    assert violated(rules.most_likely(classes, label), y) == (y.argmax() != label)
    assert violated(rules.least_cost(costs, label), y) == (expected.argmin() != label)
    assert violated(rules.confident(classes, label, tau), y) == (y[label] < tau)
    assert violated(rules.uncertain(classes, tau), y) == (y.max() > tau)
    low, high = y - rng.uniform(-0.1, 0.3, classes), y + 0.4
    assert violated(rules.within(low, high), y) == bool((y < low).any())
    assert violated(rules.within(low - 1, low), y) == bool((y > low).any())


@given(st.floats(0.1, 10.0), st.floats(0.0, 1.0))
def test_two_classes_have_a_threshold(cost, probability):
    """Berger's 0-K loss: decide 0 if its probability exceeds K_0 / (K_0 + K_1)."""
    k = float(np.float32(cost))
    threshold = k / (k + 1)
    if abs(probability - threshold) > 1e-9:
        found = violated(rules.least_cost([cost, 1.0], 0), np.array([probability, 1 - probability]))
        assert found == (probability < threshold)


def test_a_threshold_is_not_the_decision_of_three_classes():
    """The paper's K_i / sum K: .34 > 1/3 although .6 is there."""
    assert violated(rules.least_cost([1, 1, 1], 0), np.array([0.34, 0.6, 0.06]))


def certain(logits):
    """Softmax of fixed logits; a little noise in an input weight that nothing depends on."""
    w = np.zeros((len(logits), 1))
    noise = [(np.full((1, 1), 1e-6), [0.0]), (w, np.zeros(len(logits)))]
    return model([(np.zeros((1, 1)), [1.0]), (w, logits)], noise, likelihood="categorical")


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [  # D = (.665, .245, .090)
        (rules.most_likely(3, 0), Verdict.UNSAT), (rules.most_likely(3, 1), Verdict.SAT),
        (rules.least_cost([1, 1, 1], 0), Verdict.UNSAT), (rules.least_cost([5, 1, 1], 0), Verdict.SAT),
        (rules.least_cost([5, 1, 1], 1), Verdict.UNSAT),
        (rules.confident(3, 0, 0.66), Verdict.UNSAT), (rules.confident(3, 0, 0.67), Verdict.SAT),
        (rules.uncertain(3, 0.67), Verdict.UNSAT), (rules.uncertain(3, 0.66), Verdict.SAT),
        (rules.within([0.6, 0.2, 0.0], [0.7, 0.3, np.inf]), Verdict.UNSAT),
    ],
)  # fmt: skip
def test_verdicts(cases, verdict):
    found = verify_batch(certain([2.0, 1.0, 0.0]), [[-1.0]], [[1.0]], properties=[cases], query="decision")
    assert found.verdicts[0] == verdict


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rules.most_likely(1, 0), "two classes"),
        (lambda: rules.confident(3, 3, 0.5), "label"),
        (lambda: rules.uncertain(3, 1.5), "probability"),
        (lambda: rules.least_cost([1, 0], 0), "positive"),
        (lambda: rules.least_cost([1e30, 1.1], 0), "too much"),
        (lambda: rules.within([1.0], [0.0]), "interval"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(OptionError, match=message):
        make()
