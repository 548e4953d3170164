"""P_safe by tails against closed forms and sampled networks: rows of a case, cases, items, transforms, batches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from bnn_vnnlib import Model, Verdict, verify, verify_batch
from bnn_vnnlib.bounds.tails.tail import Tail
from bnn_vnnlib.errors import InputError, UnsupportedError
from bnn_vnnlib.methods.safety.tails import FIRST, SETTLED, TailBounds, why_no_tails
from bnn_vnnlib.model import GaussianDiagonal, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.problem import Problem, from_labels, from_property
from bnn_vnnlib.system.clock import Deadline
from support.builders import (
    bounds_of,
    model,
    problem,
    properties,
    random_model,
    rows,
    sampled_violations,
)

LEAST = 1e-13


def bounds_by_tails(net: Model, search: torch.dtype = torch.float64) -> TailBounds:
    assert isinstance(net.posterior, GaussianDiagonal)
    return TailBounds(net.network, net.posterior, torch.device("cpu"), Deadline(), search)


def lower_of(net: Model, question: Problem) -> float:
    return bounds_by_tails(net).lower(question).item()


def unsafe_of(net: Model, question: Problem) -> float:
    """Of a problem whose box is a point."""
    return bounds_by_tails(net).unsafe(question, question.lower, question.upper).item()


def p_safe(net: Model, lower: Any, upper: Any, *cases: Any, **options: Any) -> tuple[float, float]:
    found = verify_batch(
        net, [lower], [upper], properties=[list(cases)], query="probabilistic", method="tails", **options
    )
    return float(found.lower[0]), float(found.upper[0])


def at_most(count: int, total: int, probability: float) -> bool:
    """A binomial variable of this probability reaches the count with probability 1e-9 at least."""
    return bool(stats.binom.sf(count - 1, total, min(probability, 1.0)) >= 1e-9)


def layer(weight: Any, bias: Any, variance: Any, **options: Any) -> Model:
    """One dense layer with random weights and an exact bias."""
    uncertain: Any = [(variance, None)]
    return model([(weight, bias)], uncertain, **options)


def normal_pair() -> Model:
    """y0 = w0 x, y1 = w1 x with w ~ N(0, I)."""
    return layer(np.zeros((2, 1)), np.zeros(2), np.ones((2, 1)))


ONE = [1.0]


@pytest.mark.parametrize("z", [0.1, 1.0, 3.0, 7.0])
def test_one_row_at_a_point_is_nearly_exact(z: float) -> None:
    """V: y <= -z and V: y <= z for y ~ N(0, 1): exact on both sides, but for the last row of digits."""
    net = layer([[0.0]], [0.0], [[1.0]])
    for exact, bound in ((stats.norm.cdf(z), -z), (stats.norm.sf(z), z)):
        lower, upper = p_safe(net, ONE, ONE, rows([[1.0]], [bound]))
        assert exact - 2e-12 <= lower <= exact + 1e-15
        assert exact - 1e-15 <= upper <= exact + 2e-12 or lower > SETTLED


@pytest.mark.parametrize("strict", [False, True])
def test_the_rows_of_one_case_add_up(strict: bool) -> None:
    """y0 <= a and y1 <= a, independent: Phi(a)^2. The least row alone would claim Phi(a)."""
    net = normal_pair()
    for a in [0.5, 1.0, 2.0, 4.0]:
        case = rows(np.eye(2), [a, a], [strict, strict])
        exact = stats.norm.cdf(a) ** 2
        found = unsafe_of(net, problem(ONE, ONE, case, outputs=2))
        assert found <= exact
        assert found == pytest.approx(max(0.0, 1 - 2 * stats.norm.sf(a)), abs=1e-12)
        assert p_safe(net, ONE, ONE, case)[1] >= 1 - exact


def test_upper_bounds_take_the_inner_side_of_a_row() -> None:
    """y <= b with b between two floats: a violation is certain only below the lower one."""
    net = layer([[0.0]], [0.0], [[1.0]])
    question = problem(ONE, ONE, rows([[1.0]], [1.0]))
    question = replace(question, rows=replace(question.rows, inner_bound=torch.zeros_like(question.rows.bound)))
    assert unsafe_of(net, question) <= 0.5
    assert lower_of(net, question) <= stats.norm.sf(1.0)


def test_the_budget_is_paid() -> None:
    """Rows that never fail still rest on ranges that may."""
    net = random_model(4, [2, 3, 1])
    question = problem([0.1, 0.2], [0.1, 0.2], rows([[1.0]], [-1e9]))
    assert bounds_by_tails(net).item_failures(question).item() == pytest.approx(FIRST)
    assert lower_of(net, question) <= 1 - FIRST


def test_rows_that_exclude_each_other_are_never_unsafe() -> None:
    """y <= 0 and -y <= -1e-3: impossible, while each row alone has a probability of a half."""
    net = layer([[0.0]], [5.0], [[1.0]])
    case = rows([[1.0], [-1.0]], [4.0, -4.001])
    assert unsafe_of(net, problem(ONE, ONE, case)) == 0.0
    assert p_safe(net, ONE, ONE, case)[1] == 1.0


def test_safe_needs_one_row_of_every_case() -> None:
    """Cases y0 <= -a, y1 <= -a: their failures add. A further row in a case can only help."""
    net = normal_pair()
    for a in [1.0, 2.0, 4.0]:
        one, two = rows([[1.0, 0.0]], [-a]), rows([[0.0, 1.0]], [-a])
        exact = stats.norm.cdf(a) ** 2
        found = lower_of(net, problem(ONE, ONE, one, two, outputs=2))
        assert found <= exact
        assert found == pytest.approx(1 - 2 * stats.norm.sf(a), abs=1e-12)
        both = rows(np.eye(2), [-a, -a])
        found = lower_of(net, problem(ONE, ONE, both, outputs=2))
        assert found <= 1 - stats.norm.sf(a) ** 2
        assert found == pytest.approx(1 - stats.norm.sf(a), abs=1e-12)


def test_cases_without_rows_and_instances_without_cases() -> None:
    net = normal_pair()
    empty = rows(np.zeros((0, 2)), np.zeros(0))
    question = problem(ONE, ONE, rows([[1.0, 0.0]], [-9.0]), empty, outputs=2)
    assert lower_of(net, question) == 0.0
    assert unsafe_of(net, question) >= 1 - 2 * LEAST
    nothing = problem(ONE, ONE, outputs=2)
    assert lower_of(net, nothing) >= 1 - 2 * LEAST
    assert unsafe_of(net, nothing) == 0.0


def test_the_best_case_counts_at_a_point() -> None:
    net = normal_pair()
    question = problem(ONE, ONE, rows([[1.0, 0.0]], [1.0]), rows([[0.0, 1.0]], [2.0]), rows(np.eye(2), [9.0, -9.0]),
                       outputs=2)  # fmt: skip
    found = unsafe_of(net, question)
    assert found == pytest.approx(stats.norm.cdf(2.0), abs=1e-12)
    assert found <= 1 - stats.norm.sf(1.0) * stats.norm.sf(2.0)


@pytest.mark.parametrize("gap", [1.0, 2.0, 5.0])
def test_boxes_of_one_property_are_joint(gap: float) -> None:
    """y = w x at x = 1 and at x = -1, V: y <= -gap at either: P_safe = P(|w| < gap), one network for all boxes."""
    net = layer([[0.0]], [0.0], [[1.0]])
    question = properties(
        net, [(1.0, 1.0), (-1.0, -1.0)], [(0, [(ONE, None, -gap, False)]), (1, [(ONE, None, -gap, False)])]
    )
    result = verify(net, question, query="probabilistic", method="tails")
    exact = 1 - 2 * stats.norm.sf(gap)
    assert result.p_safe is not None
    assert result.p_safe.lower <= exact <= result.p_safe.upper
    assert result.p_safe.lower == pytest.approx(exact, abs=1e-12)


def test_rows_with_inputs() -> None:
    """y + 2 x <= b with y = w x at x = 1.5: y ~ N(0, 1.5), both sides; over a box the worst x counts."""
    net = layer([[0.0]], [0.0], [[1.0]])
    for b in [2.0, 5.0]:
        question = properties(net, [(1.5, 1.5)], [(0, [(ONE, [2.0], b, False)])])
        exact = stats.norm.sf((b - 3) / 1.5)
        part = from_property(question)
        assert lower_of(net, part) <= exact
        assert unsafe_of(net, part) <= 1 - exact
        assert lower_of(net, part) == pytest.approx(exact, abs=1e-11)
        assert unsafe_of(net, part) == pytest.approx(1 - exact, abs=1e-11)
    question = properties(net, [(1.0, 2.0)], [(0, [(ONE, [2.0], -1.0, False)])])
    exact = stats.norm.cdf(2.5) - stats.norm.sf(math.inf)  # w < -2 - 1/x for some x in [1, 2]: w < -2.5
    assert lower_of(net, from_property(question)) <= exact


def test_points_that_are_no_floats() -> None:
    """x == 1/10 lies between two floats; an upper bound is found and is right."""
    net = layer([[1.0]], [0.0], [[1.0]])
    lower, upper = p_safe(net, [0.1], [np.nextafter(0.1, 1)], rows([[1.0]], [0.3]))
    assert stats.norm.sf(0.3 / 0.1 - 1) - 1e-6 <= lower <= stats.norm.sf(2.0) + 1e-12
    assert stats.norm.sf(2.0) - 1e-12 <= upper <= stats.norm.sf(2.0) + 1e-6


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "leaky_relu"])
@pytest.mark.parametrize("spread", [0.05, 0.2, 1.5])
def test_random_networks_against_attacked_samples(activation: str, spread: float) -> None:
    """The attack finds too few violations, so that 1 - lower may not be below its share; points are sampled exactly.

    Once with all that refinement finds, once as far as a verdict asks for it.
    """
    found_something = False
    for seed in range(2):
        net = random_model(seed, [3, 6, 5, 3], spread=spread, activation=activation)
        rng = np.random.default_rng(seed)
        center = rng.normal(size=3)
        y = evaluate(net.network, torch.tensor(center)).numpy()
        shift = spread * rng.uniform(0.0, 2.0, size=3)
        cases = [rows(np.eye(3)[:2], y[:2] - shift[:2]), rows([[0.0, -1.0, 1.0]], [y[2] - y[1] - shift[2]])]
        question = problem(center - 0.05, center + 0.05, *cases, outputs=3)
        thresholds = {"tau_safe": 0.5, "tau_unsafe": 0.5} if seed else {}
        lower, upper = p_safe(net, center - 0.05, center + 0.05, *cases, **thresholds)
        count = sampled_violations(net, question, 400, seed)
        assert at_most(count, 400, 1 - lower)
        at = problem(center, center, rows(np.eye(3)[:2], y[:2] + shift[:2]), outputs=3)
        found = unsafe_of(net, at)
        assert net.posterior is not None
        params = sample(net.network, net.posterior, 20_000, torch.Generator().manual_seed(seed))
        values = evaluate(net.network, torch.tensor(center)[None], params)[:, 0, :2].numpy()
        safe = (values > y[:2] + shift[:2]).any(1).sum()
        assert at_most(int(safe), 20_000, 1 - found)
        assert lower <= upper
        found_something = found_something or lower > 0 or found > 0
    assert found_something or spread > 0.05


@pytest.mark.parametrize("shift", [0.0, 1.0, -1.0])
def test_differences_of_probabilities(shift: float) -> None:
    """Y_0 <= Y_1 after a Softmax is a row over the logits; any other row is left to other methods."""
    net = layer([[0.0], [0.0]], [shift, 0.0], np.ones((2, 1)), end=["Softmax"], likelihood="softmax")
    exact = stats.norm.cdf(shift / math.sqrt(2))
    lower, upper = p_safe(net, ONE, ONE, rows([[1.0, -1.0]], [0.0]))
    assert lower <= exact <= upper
    assert lower == pytest.approx(exact, abs=1e-9)
    assert upper == pytest.approx(exact, abs=1e-9)
    with pytest.raises(UnsupportedError):
        p_safe(net, ONE, ONE, rows([[1.0, 0.0]], [0.9]))


def test_which_rows_survive_a_transform() -> None:
    net = normal_pair()
    posterior = net.posterior
    assert isinstance(posterior, GaussianDiagonal)

    def applies(transform: str, *cases: Any) -> bool:
        return why_no_tails(bounds_of(net, transform), posterior, problem(ONE, ONE, *cases, outputs=2)) is None

    good, other, moved = rows([[2.0, -2.0]], [0.0]), rows([[1.0, 1.0]], [0.0]), rows([[1.0, -1.0]], [0.1])
    assert applies("softmax", good)
    for bad in (other, moved, rows([[1.0, -2.0]], [0.0]), rows([[1.0, 0.0]], [0.0])):
        assert not applies("softmax", good, bad)
        assert applies("identity", good, bad)
    assert not applies("sigmoid", good)


def test_batches_do_not_change_answers() -> None:
    net = random_model(3, [4, 8, 8, 3], spread=0.1)
    rng = np.random.default_rng(0)
    center = rng.normal(size=(7, 4))
    labels = evaluate(net.network, torch.tensor(center)).argmax(-1).numpy()

    def answer(index: Any) -> Any:
        low, high = center[index] - 0.01, center[index] + 0.01
        return verify_batch(net, low, high, labels[index], query="probabilistic", method="tails").lower

    whole, order = answer(np.arange(7)), rng.permutation(7)
    assert (whole > 0.1).any()
    np.testing.assert_allclose(answer(order), whole[order], rtol=1e-9)
    for i in range(7):
        np.testing.assert_allclose(answer([i]), whole[[i]], rtol=1e-9)


def test_both_methods_are_better_than_each() -> None:
    net = random_model(5, [3, 6, 2], spread=0.2)
    x = np.array([0.4, -0.3, 0.8])
    label = int(evaluate(net.network, torch.tensor(x)).argmax())
    decided = {"tau_safe": 0.1, "tau_unsafe": 0.1}  # at first sight: no method refines its bounds
    found = [
        verify_batch(net, [x - 0.01], [x + 0.01], labels=[label], query="probabilistic", method=method, **decided)
        for method in ("tails", "linear", "auto")
    ]
    assert min(result.lower[0] for result in found[::2]) > 0.1
    assert found[2].lower[0] >= max(result.lower[0] for result in found[:2]) - 1e-6
    assert found[2].upper[0] <= min(result.upper[0] for result in found[:2]) + 1e-6


def test_a_deterministic_posterior_is_decided() -> None:
    """All variances 0: the mean network's answer, up to the budget."""
    net = model([([[1.0]], [0.0])], [([[0.0]], [0.0])])
    lower, _ = p_safe(net, [0.5], [1.0], rows([[1.0]], [0.4]))
    assert lower >= 1 - 2 * LEAST
    _, upper = p_safe(net, [0.5], [1.0], rows([[1.0]], [0.6]))
    assert upper <= 2 * LEAST


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [(-1.645, Verdict.UNSAT), (-1.644, Verdict.UNKNOWN), (0.2533, Verdict.UNKNOWN), (0.254, Verdict.SAT)],
)
def test_verdicts(bound: float, verdict: Verdict) -> None:
    """P_safe = P(y > bound), just above .95, just below, just above .4 and just below."""
    net = layer([[0.0]], [0.0], [[1.0]])
    found = verify_batch(
        net, [ONE], [ONE], properties=[[rows([[1.0]], [bound])]], query="probabilistic", method="tails",
        tau_safe=0.95, tau_unsafe=0.4,
    )  # fmt: skip
    assert found.verdicts[0] == verdict


@pytest.mark.parametrize("options", [{"boxes": "sampled"}, {"margin": 2.0}, {"query": "decision"}])
def test_what_tails_cannot_do_is_refused(options: dict[str, Any]) -> None:
    net = layer([[0.0]], [0.0], [[1.0]], likelihood="gaussian")
    asked = {"query": "probabilistic", "method": "tails", **options}
    with pytest.raises(InputError):
        verify_batch(net, [ONE], [ONE], properties=[[rows([[1.0]], [0.0])]], **asked)


def _open_model(seed: int, activation: str) -> Model:
    return random_model(seed, [3, 6, 5, 3], spread=0.3, activation=activation)


def _open_items(seed: int, activation: str = "relu") -> tuple[TailBounds, Problem]:
    """Eight boxes that a network with wide weights leaves open."""
    net = _open_model(seed, activation)
    center = np.random.default_rng(seed).normal(size=(8, 3))
    y = evaluate(net.network, torch.tensor(center))
    return bounds_by_tails(net), from_labels(torch.tensor(center - 0.02), torch.tensor(center + 0.02), y.argmax(-1), 3)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_tuned_bounds_are_better_and_do_not_depend_on_neighbours(activation: str) -> None:
    tails, question = _open_items(11, activation)
    plain = tails.item_failures(question)
    better = tails.improved(question, plain, 15, 1e-6)
    assert (better <= plain).all()
    assert (better < plain * 0.99).any()
    assert torch.equal(tails.improved(question, plain, 15, 1.0), plain)
    some = torch.tensor([5, 2])
    alone = tails.improved(question.items(some), plain[some], 15, 1e-6)
    torch.testing.assert_close(alone, better[some], rtol=1e-3, atol=1e-12)
    torch.testing.assert_close(tails.improved(question, plain, 15, 1e-6), better, rtol=0, atol=0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tuned_bounds_against_attacked_samples(seed: int) -> None:
    net = random_model(seed, [2, 5, 4, 2], spread=0.4)
    center = np.random.default_rng(seed).normal(size=2)
    y = evaluate(net.network, torch.tensor(center)).numpy()
    tails = bounds_by_tails(net)
    for shift in (0.2, 0.6, 1.5):
        question = problem(center - 0.03, center + 0.03, rows([[1.0, 0.0]], [y[0] - shift]), outputs=2)
        failure = tails.improved(question, tails.item_failures(question), 20, 0.0).item()
        assert at_most(sampled_violations(net, question, 1000, seed), 1000, failure)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_tuning_in_float32_is_confirmed_in_float64(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly as good, and the bound itself rests on float64 alone."""
    tails, question = _open_items(11, activation)
    plain = tails.item_failures(question)
    better = tails.improved(question, plain, 15, 1e-6)
    rough = bounds_by_tails(_open_model(11, activation), torch.float32)
    seen: list[torch.dtype] = []

    def failure(self: Tail, bound: torch.Tensor) -> torch.Tensor:
        seen.extend((bound.dtype, *(b.mean.dtype for b in self.bounds)))
        return untouched(self, bound)

    untouched = Tail.failure
    monkeypatch.setattr(Tail, "failure", failure)
    found = rough.improved(question, plain, 15, 1e-6)
    assert set(seen) == {torch.float64}
    assert found.dtype == torch.float64
    assert (found <= plain).all()
    assert (plain - found).sum() > 0.8 * (plain - better).sum()


def test_time_that_is_up_ends_the_tuning() -> None:
    tails, question = _open_items(12)
    plain = tails.item_failures(question)
    object.__setattr__(tails._engine, "deadline", Deadline(0.0))
    assert torch.equal(tails.improved(question, plain, 15, 1e-6), plain)
    assert (tails.item_failures(question) == 1).all()
