"""The eight shortcuts that published code took and that are unsound, each with numbers on which it shows.

Every test states what the shortcut claims, and that our bound keeps to the right side of the truth.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper
from scipy import stats

from bnn_vnnlib import verify, verify_batch
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.weight_sets import CentredUnion, layered_lower, scattered_union
from support.builders import expectation, from_nodes, model, outputs, properties, rows

ROUNDING = 1e-9


def normal(mean: float, deviation: float):
    """f(x) = w x with one weight."""
    return model([([[mean]], [0.0])], [([[deviation**2]], None)])


@pytest.fixture(params=["table", "pairs"])
def union_method(request, monkeypatch):
    """Inclusion-exclusion, and the truncation that many boxes get."""
    if request.param == "pairs":
        monkeypatch.setattr(weight_sets, "EXACT_UNION", 0)
    return request.param


def everything(union, count: int) -> tuple[float, float]:
    member = torch.ones(count, dtype=torch.bool)
    return float(union.union_lower(member)), float(union.union_upper(member))


@pytest.mark.parametrize("margin", [None, 1.0, 1.99, 2.0, 2.01, 4.0])
def test_a_mass_is_that_of_the_box_that_was_certified(margin):
    claimed, truth = 1 - 2 * stats.norm.sf(4), stats.norm.cdf(2)  # certify +-2 sd, integrate +-4 sd
    found = verify_batch(
        normal(2, 1),
        [[1.0]],
        [[1.0]],
        properties=[[rows([[1.0]], [0.0], [True])]],
        margin=margin,
        query="probabilistic",
    )
    assert found.lower[0] <= truth < claimed
    if margin is None:
        assert found.lower[0] >= 0.95
    elif margin > 2:
        assert found.lower[0] == 0
    elif margin < 2:
        assert found.lower[0] == pytest.approx(1 - 2 * stats.norm.sf(margin), abs=ROUNDING)


def test_b_the_union_is_over_boxes_not_over_the_weights_one_by_one(union_method):
    side = stats.norm.cdf(-0.5) - stats.norm.cdf(-1.5)
    claimed, truth = (2 * side) ** 2, 2 * side**2
    lower, upper = everything(scattered_union(torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64), 0.5), 2)
    assert lower <= truth + ROUNDING < claimed
    assert upper >= truth - ROUNDING
    assert lower >= truth - 1e-6


def test_c_a_truncated_sum_ends_on_the_right_side(union_method):
    margin = stats.norm.ppf(0.545)
    claimed = (4 - 6 + 4) * 0.09
    lower, upper = everything(scattered_union(torch.zeros(4, 1, dtype=torch.float64), margin), 4)
    assert lower == pytest.approx(0.09, abs=1e-9)
    assert lower < claimed
    assert upper >= 0.09


def test_d_the_intersections_are_those_of_the_right_boxes(union_method):
    margin = stats.norm.ppf(0.545)
    centers = torch.tensor([[0.0], [40.0], [0.0], [-40.0], [0.0]], dtype=torch.float64)
    claimed = 0.63
    lower, upper = everything(scattered_union(centers, margin), 5)
    assert lower == pytest.approx(0.09, abs=1e-9)
    assert lower < claimed
    assert upper >= 0.09
    for drop in range(5):
        member = torch.arange(5) != drop
        assert float(scattered_union(centers, margin).union_lower(member)) <= 0.09 + ROUNDING


def test_e_what_no_box_covers_may_take_the_largest_value():
    claimed = 0.8125
    union = CentredUnion(torch.tensor([0.25], dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64))
    upper = -layered_lower(
        torch.tensor([-1.0], dtype=torch.float64), union.union_lower, torch.tensor(-1.0, dtype=torch.float64)
    )
    assert float(upper) >= 1.0 > claimed


def test_e_on_a_network():
    net = model([([[40.0]], [0.0])], [([[1.0]], None)], likelihood="bernoulli")
    margin = float(stats.norm.ppf(0.625))  # a box of mass .25
    found = verify_batch(net, [[1.0]], [[1.0]], properties=[[rows([[1.0]], [0.5])]], margin=margin, query="decision")
    assert found.upper[0, 0] >= 1 - 1e-15  # E sigmoid(w) with w about 40
    assert found.lower[0, 0] == pytest.approx(0.25, abs=1e-6)


def test_e_in_regression_the_tail_is_paid_for():
    """f = relu(w - 3): zero on every box of mass below .997, but its mean is not."""
    net = model([([[0.0]], [-3.0]), ([[1.0]], [0.0])], [([[1.0]], None), ([[0.0]], None)], likelihood="gaussian")
    truth = stats.norm.pdf(3) - 3 * stats.norm.sf(3)
    for margin in (0.5, 1.0, 2.0, 2.9):
        expect = expectation(net, margin=margin)
        one, unit = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
        assert 0.0 < truth <= float(expect.upper(one, one, unit))
        assert float(expect.lower(one, one, unit)) <= truth


@pytest.mark.parametrize("query", ["probabilistic", "decision", "deterministic"])
def test_f_an_attack_stays_in_the_input_set(query):
    net = model([([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])], [([[0.0, 0.0], [0.0, 0.0]], None)], likelihood="gaussian")
    beyond = properties(net, [((0, 0), (1, 1))], [(0, [([-1, 0], None, -1.0000001, False)])])
    found = verify(net, beyond, query=query)
    assert found.verdict == "unsat"
    constrained = properties(
        net, [((0, 0), (1, 1))], [(0, [([-1, 1], None, -1e-6, False)])], [(0, (1, -1), 0.0, False)]
    )
    found = verify(net, constrained, query=query)
    assert found.verdict != "sat"
    if query == "probabilistic":
        assert found.p_safe.upper == 1.0


def test_g_a_convolution_pays_for_its_random_kernel():
    net = from_nodes(
        [helper.make_node("Conv", ["x", "K"], ["y"], name="conv")],
        {"K": np.ones((1, 1, 1, 1))}, (1, 1, 2, 2), {"K": np.full((1, 1, 1, 1), 0.25)},
    )  # fmt: skip
    claimed, truth = 1.0, stats.norm.cdf(2)  # y = k x, k ~ N(1, .25): y <= 0 with probability .023
    cases = [[rows(np.eye(4)[i], 0.0) for i in range(4)]]
    for method in ("interval", "linear"):
        ones = np.ones((1, 4))
        found = verify_batch(net, ones, ones, properties=cases, method=method, query="probabilistic")
        assert 0.9 <= found.lower[0] <= truth < claimed
    assert outputs(net, np.ones(4)).tolist() == [1.0] * 4


def symmetric_cases(net) -> list:
    """Two cases over one box, and one case over each of two boxes: both violated by |w| >= 1.5."""
    one_box = properties(net, [(1, 1)], [(0, [([-1], None, -1.5, False)]), (0, [([1], None, -1.5, False)])])
    row = ([-1], None, -1.5, False)
    two_boxes = properties(net, [(1, 1), (-1, -1)], [(0, [row]), (1, [row])])
    return [one_box, two_boxes]


@pytest.mark.parametrize("boxes", ["mean", "sampled"])
@pytest.mark.parametrize("which", [0, 1])
def test_h_several_cases_are_joint(boxes, which):
    net = normal(0, 1)
    claimed, truth = stats.norm.cdf(1.5), 1 - 2 * stats.norm.sf(1.5)
    found = verify(net, symmetric_cases(net)[which], boxes=boxes, query="probabilistic")
    assert found.p_safe.lower <= truth < claimed
    assert found.p_safe.upper >= truth
    if boxes == "mean":
        assert found.p_safe.lower >= truth - 0.01


@pytest.mark.parametrize("which", [0, 1])
def test_h_for_weight_samples(which):
    drawn = np.array([-2.0, 0.0, 2.0, 1.0]).reshape(4, 1, 1)
    net = model([([[0.0]], [0.0])], samples=[(drawn, None)], probabilities=[0.25, 0.25, 0.25, 0.25])
    found = verify(net, symmetric_cases(net)[which], query="probabilistic")
    assert found.p_safe.lower == pytest.approx(0.5, abs=1e-12)  # each case alone: .75
    assert found.p_safe.upper == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("boxes", ["mean", "sampled"])
@pytest.mark.parametrize("swapped", [False, True])
def test_h_the_harder_case_counts(boxes, swapped):
    """Violations w >= 1.5 and w <= -.5: a box that is safe for one of them only is not safe."""
    net = normal(0, 1)
    truth = stats.norm.cdf(1.5) - stats.norm.cdf(-0.5)
    cases = [(0, [([-1], None, -1.5, False)]), (0, [([1], None, -0.5, False)])]
    for prop in (
        properties(net, [(1, 1)], cases[:: -1 if swapped else 1]),
        properties(net, [(1, 1), (1, 1)], [(k, rows_) for k, (_, rows_) in enumerate(cases[:: -1 if swapped else 1])]),
    ):
        found = verify(net, prop, boxes=boxes, query="probabilistic")
        assert found.p_safe.lower <= truth <= found.p_safe.upper
