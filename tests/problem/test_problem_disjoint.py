"""Cases that exclude each other add up at a point, and no others do: against closed forms of Gaussian outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bnn_vnnlib import Model, Verdict, rules, verify_batch
from bnn_vnnlib.methods.safety.large_variance.rows import LargeVarianceBounds, chain_of
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.model import GaussianDiagonal, sample
from bnn_vnnlib.problem.problem import Problem, apart, from_cases, from_property, some_case
from bnn_vnnlib.system.clock import Deadline
from support.builders import bounds_of, model, outputs, problem, properties, random_model, rows

ONE = [1.0]


def linear(mean: Any, deviation: Any) -> Model:
    """y_j = w_j x, w_j independent Gaussians."""
    mean, deviation = np.asarray(mean, float)[:, None], np.asarray(deviation, float)[:, None]
    uncertain: Any = [(deviation**2, None)]
    return model([(mean, np.zeros(len(mean)))], uncertain, likelihood="gaussian")


def unsafe_of(net: Model, question: Problem) -> float:
    """Lower bound on the mass that violates at a point."""
    assert isinstance(net.posterior, GaussianDiagonal)
    tails = TailBounds(net.network, net.posterior, torch.device("cpu"), Deadline())
    return float(tails.unsafe(question, question.lower, question.upper))


def pairs(question: Problem) -> list[tuple[int, int]]:
    """Cases that are proved to be disjoint."""
    return [(int(c), int(d)) for c, d in torch.nonzero(apart(question)[0]) if c < d]


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.1, 2.0), (0.5, 0.5), (-3.0, 3.0), (1.0, 4.0)])
def test_both_ends_of_a_range(low: float, high: float) -> None:
    """y ~ N(0, 1): the mass outside of [low, high] is the sum of both tails, and nearly all of it is found."""
    question = problem(ONE, ONE, *rules.within([low], [high]))
    truth = stats.norm.cdf(low) + stats.norm.sf(high)
    assert truth - 1e-11 <= unsafe_of(linear([0.0], [1.0]), question) <= truth + 1e-15


def test_a_range_is_unsafe_where_neither_end_is() -> None:
    """Each tail has .31, both .62: below a threshold of .5 only together."""
    net = linear([0.0], [1.0])
    found = verify_batch(
        net, [ONE], [ONE], properties=[rules.within([-0.5], [0.5])], query="probabilistic", tau_safe=0.5, tau_unsafe=0.5
    )
    assert found.verdicts[0] is Verdict.SAT
    assert found.upper[0] == pytest.approx(1 - 2 * stats.norm.sf(0.5), abs=1e-12)


OVERLAPPING = {
    "nested": ([rows([[1.0, 0.0]], [-1.0]), rows([[1.0, 0.0]], [-0.5])], stats.norm.cdf(-0.5)),
    "different outputs": ([rows([[1.0, 0.0]], [-1.0]), rows([[0.0, 1.0]], [-1.0])], 1 - stats.norm.cdf(1.0) ** 2),
    "ranges that overlap": (
        [rows([[1.0, 0.0], [0.0, 1.0]], [2.0, 1.0]), rows([[-1.0, 0.0], [0.0, 1.0]], [2.0, 1.0])],
        stats.norm.cdf(1.0),
    ),
    "nearly opposite": (
        [rows([[1.0, 1.0]], [-1.0]), rows([[-1.0, 1.0]], [-1.0])],
        1 - float(stats.multivariate_normal([0, 0]).cdf([2**-0.5, 2**-0.5])),
    ),
}


@pytest.mark.parametrize("kind", OVERLAPPING)
def test_cases_that_can_hold_together_are_not_added(kind: str) -> None:
    """Their sum would exceed the mass of the union: nested cases .16 + .31 instead of .31."""
    cases, truth = OVERLAPPING[kind]
    question = problem(ONE, ONE, *cases, outputs=2)
    assert pairs(question) == []
    single = max(unsafe_of(linear([0, 0], [1, 1]), problem(ONE, ONE, case, outputs=2)) for case in cases)
    found = unsafe_of(linear([0, 0], [1, 1]), question)
    assert single - 1e-12 <= found <= truth
    assert found == pytest.approx(single, abs=1e-12)


def test_of_many_cases_only_disjoint_ones_are_added() -> None:
    """Both ends of two ranges: four cases, two disjoint pairs, the better one counts."""
    net, low, high = linear([0.0, 0.0], [1.0, 2.0]), [-1.0, -1.0], [1.0, 1.0]
    question = problem(ONE, ONE, *rules.within(low, high), outputs=2)
    assert pairs(question) == [(0, 2), (1, 3)]
    truth = 2 * stats.norm.sf(0.5)  # of the second range alone
    assert unsafe_of(net, question) == pytest.approx(truth, abs=1e-12)


def test_every_other_class_as_the_largest_one() -> None:
    """Three disjoint cases of two rows each, in place of single comparisons."""
    cases = [rows([-np.eye(3)[c] + np.eye(3)[d] for d in range(3) if d != c], [0.0, 0.0]) for c in range(3)]
    question = problem(ONE, ONE, *cases, outputs=3)
    assert pairs(question) == [(0, 1), (0, 2), (1, 2)]
    failures = torch.tensor([[0.7, 0.8, 0.9]], dtype=torch.float64)
    assert float(some_case(question, failures)) == pytest.approx(0.6, abs=1e-12)
    assert float(some_case(question, failures)) < 0.3 + 0.2 + 0.1 + 1e-15


def test_the_inputs_of_a_row_count() -> None:
    """y <= -.5 and -y <= .5 touch; -y - 3x <= .5, which is y >= -3.5 at x = 1, has the same numbers and overlaps."""
    net = linear([0.0], [1.0])
    below: Any = [([1.0], [0.0], -0.5, False)]
    for slope, bound, expected in ((0.0, 0.5, [(0, 1)]), (-3.0, 0.5, []), (0.0, 0.51, [])):
        above: Any = [([-1.0], [slope], bound, False)]
        assert pairs(from_property(properties(net, [(ONE, ONE)], [(0, below), (0, above)]))) == expected


def test_the_inner_side_of_a_row_decides() -> None:
    """What is bounded is a.y < inner bound: ends that touch are apart, ends that overlap by one float are not."""
    question = problem(ONE, ONE, *rules.within([0.25], [0.25]))
    assert pairs(question) == [(0, 1)]
    wider = question.rows.inner_bound.clone()
    wider[..., 0] = np.nextafter(0.25, 1)
    assert pairs(replace(question, rows=replace(question.rows, inner_bound=wider))) == []


def test_items_without_a_second_case_and_padding() -> None:
    """Properties of different sizes in one batch: padding is no case."""
    net = linear([0.0], [1.0])
    both, one = rules.within([-1.0], [1.0]), rules.within([-1.0], [np.inf])
    point = torch.ones(3, 1, dtype=torch.float64)
    question = from_cases(point, point, [one, both, []], 1)
    assert apart(question).sum((1, 2)).tolist() == [0, 2, 0]
    tails = TailBounds(net.network, net.posterior, torch.device("cpu"), Deadline())  # type: ignore[arg-type]
    tail = stats.norm.sf(1.0)
    np.testing.assert_allclose(tails.unsafe(question, point, point), [tail, 2 * tail, 0.0], atol=1e-12)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_sums_are_over_disjoint_sets(seed: int) -> None:
    """Against all subsets: never more than the heaviest set of disjoint cases, never less than the heaviest case."""
    rng = np.random.default_rng(seed)
    cases = [rows(rng.choice([-1.0, 0.0, 1.0], (2, 2)), rng.choice([-1.0, 0.0, 1.0], 2)) for _ in range(4)]
    question = problem(ONE, ONE, *cases, outputs=2)
    mass = rng.dirichlet(np.ones(4)) * rng.uniform()
    found = float(some_case(question, torch.as_tensor(1 - mass)[None]))
    disjoint = apart(question)[0].numpy()
    sets = [[c for c in range(4) if k >> c & 1] for k in range(1, 16)]
    allowed = [mass[s].sum() for s in sets if all(disjoint[c, d] for c in s for d in s if c < d)]
    assert mass.max() - 1e-12 <= found <= max(allowed) + 1e-15


@pytest.mark.parametrize(("activation", "wide"), [("relu", False), ("tanh", False), ("relu", True)])
def test_sampled_networks_outside_of_a_range(activation: str, wide: bool) -> None:
    """One hidden layer at points: no fewer networks leave the range than the bound says, by a binomial test at 1e-9."""
    net = random_model(3, [2, 6, 1], spread=0.8 if wide else 0.1, activation=activation, likelihood="gaussian")
    assert isinstance(net.posterior, GaussianDiagonal)
    x = np.random.default_rng(0).normal(size=(4, 2))
    drawn = outputs(net, x, sample(net.network, net.posterior, 20_000, torch.Generator().manual_seed(0)))[..., 0]
    low, high = np.quantile(drawn, [0.35, 0.6], axis=0)
    point = torch.as_tensor(x)
    question = from_cases(point, point, [rules.within([a], [b]) for a, b in zip(low, high, strict=True)], 1)
    bounds: Any = TailBounds(net.network, net.posterior, torch.device("cpu"), Deadline())
    if wide:
        stack = chain_of(bounds_of(net), net.posterior, question)
        assert not isinstance(stack, str)
        bounds = LargeVarianceBounds(stack, Deadline())
    found = bounds.unsafe(question, point, point).numpy()
    outside = ((drawn < low) | (drawn > high)).sum(0)
    assert (stats.binom.cdf(outside, len(drawn), found) > 1e-9).all()
    ends = zip(*(rules.within([a], [b]) for a, b in zip(low, high, strict=True)), strict=True)
    single = [bounds.unsafe(from_cases(point, point, [[case] for case in end], 1), point, point) for end in ends]
    assert (found > torch.stack(single).amax(0).numpy() + 0.02).all()  # and both ends count
