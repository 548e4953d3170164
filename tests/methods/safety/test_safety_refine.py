"""Anytime refinement of P_safe: never wrong, never worse, no dependence on neighbours, and better than one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from bnn_vnnlib import BatchResult, Model, verify, verify_batch
from bnn_vnnlib.errors import SoundnessError
from bnn_vnnlib.methods.safety import portfolio as probabilistic
from bnn_vnnlib.methods.safety import refine as stages
from bnn_vnnlib.methods.safety.refine import FEW_INPUTS, LATER, Stage, TunedItems, rarely, refine
from bnn_vnnlib.methods.safety.safety import Goal, SafetyBounds, nothing_known
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.problem.problem import from_cases
from bnn_vnnlib.splitting.frontier import Forest
from bnn_vnnlib.system.clock import Deadline
from support.builders import (
    model,
    outputs,
    problem,
    properties,
    random_model,
    rows,
    sampled_violations,
)
from support.clock import Clock

LEVEL = 1e-9


def safety(lower: Any, upper: Any) -> SafetyBounds:
    low, high = (torch.tensor(side, dtype=torch.float64) for side in (lower, upper))
    nan, zero = torch.full_like(low, torch.nan), torch.zeros_like(low)
    nobody = torch.zeros(2, len(low), dtype=torch.int8)
    return SafetyBounds(low, high, low[:, None], zero, nobody, nan, nan)


def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the refinement off."""
    monkeypatch.setattr(probabilistic, "refine", lambda found, *_: found)


class Hills:
    """A tanh network, wide boxes, on which one linear bound loses much, and thresholds just below the least output."""

    def __init__(self, spread: float) -> None:
        self.net = random_model(7, [2, 12, 12, 2], spread=spread, activation="tanh")
        center, grid = np.random.default_rng(0).normal(size=(9, 2)), np.linspace(-0.8, 0.8, 25)
        around = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
        least = np.array([outputs(self.net, x + around)[:, 0].min() for x in center])
        self.low, self.high = center - 0.8, center + 0.8
        self.cases = [[rows([[1.0, 0.0]], [y])] for y in least - np.linspace(-0.05, 0.25, 9)]

    def verify(self, index: Any, method: Any, **options: Any) -> BatchResult:
        cases = [self.cases[i] for i in index]
        asked = {"tau_safe": 0.99, "tau_unsafe": 0.01, **options}
        return verify_batch(self.net, self.low[index], self.high[index], properties=cases, method=method, **asked)


# -- the loop


@pytest.mark.parametrize(
    ("lower", "upper", "worth"),
    [
        (0.0, 1.0, True),
        (0.9, 1.0, False),  # unsat
        (0.0, 0.29, False),  # sat
        (0.0, 0.3, True),  # tau_unsafe is not reached: strictly below
        (0.0, 0.89, True),  # cannot be unsat any more, but sat, or proved to be neither
        (0.3, 1.0, True),  # cannot be sat any more
        (0.3, 0.9, True),  # tau_safe is still within reach
        (0.4, 0.8, False),  # proved to be neither
        (0.3, 0.89, False),
        (0.5, 0.5, False),
    ],
)
def test_what_is_still_worth_looking_for(lower: float, upper: float, worth: bool) -> None:
    assert Goal(0.9, 0.3).open(safety([lower], [upper])).item() is worth


@pytest.mark.parametrize(
    ("pieces", "asked", "reached"),
    [
        ((([0.2], [1.0]), ([0.2], [0.8]), ([0.5], [0.6])), [(True, True)] * 2, (0.2, 0.8)),
        ((([0.2], [1.0]), ([0.3], [1.0]), ([0.4], [1.0])), [(True, True)] * 2 + [(True, False)] * 2, (0.4, 1.0)),
    ],
    ids=["gains", "in vain"],
)
def test_the_side_that_shows_that_there_is_no_verdict_is_looked_for(pieces: Any, asked: Any, reached: Any) -> None:
    """P_safe >= tau_unsafe is proved: a better upper bound ends the search for unsat, though sat is out of reach.

    It is not asked for any more after a turn that gained nothing there: no verdict depends on it.
    """
    seen = []

    class Wanted(Scripted):
        def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
            seen.append((below.item(), above.item()))
            return super().step(below, above)

    found = refined(Wanted(*pieces))
    assert (found.lower.item(), found.upper.item()) == reached
    assert seen == asked


class Scripted:
    """A stage that gives the listed bounds, one a step."""

    def __init__(self, *pieces: Any, rare: bool = False) -> None:
        self.pieces, self.rare, self.turns = list(pieces), rare, 0

    def due(self, turn: int) -> bool:
        return rarely(turn) if self.rare else True

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        if not self.pieces:
            return None
        self.turns += 1
        return safety(*self.pieces.pop(0))


def refined(*stages: Stage, deadline: Deadline | None = None) -> SafetyBounds:
    return refine(safety([0.0], [1.0]), Goal(0.9, 0.1), stages, deadline or Deadline())


def test_the_best_of_all_pieces_is_kept() -> None:
    found = refined(Scripted(([0.5], [1.0]), ([0.2], [1.0])), Scripted(([0.0], [0.95]), ([0.3], [0.99])))
    assert (found.lower.item(), found.upper.item()) == (0.5, 0.95)


def test_nothing_is_done_beyond_the_decision() -> None:
    first, second = Scripted(([0.95], [1.0]), ([0.99], [1.0])), Scripted(([0.0], [1.0]))
    assert refined(first, second).lower.item() == 0.95
    assert (first.turns, second.turns) == (1, 0)


def test_what_was_reached_before_time_was_up_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, 1)
    assert refined(Scripted(([0.5], [1.0]), ([0.8], [1.0])), deadline=Deadline(0.0)).lower.item() == 0.5
    assert refined(Scripted(([0.5], [1.0])), deadline=Deadline(0.0)).lower.item() == 0.0


def test_rare_stages_wait_only_for_others() -> None:
    often, rare = Scripted(*[([0.1], [1.0])] * 9), Scripted(*[([0.1], [1.0])] * 9, rare=True)
    seen = []
    rare_step = rare.step
    rare.step = lambda *a: (seen.append(often.turns), rare_step(*a))[1]  # type: ignore[method-assign]
    refined(often, rare)
    assert seen[:5] == [1, 2, 3, 5, 9]  # turns 0, 1, 2, 4 and 8
    assert rare.turns == 9


@pytest.mark.parametrize(("inputs", "first"), [(FEW_INPUTS, LATER), (FEW_INPUTS + 1, 0)])
def test_tuning_waits_where_splits_are_cheap(inputs: int, first: int) -> None:
    net = random_model(0, [inputs, 2, 1])
    question = problem(np.zeros(inputs), np.ones(inputs), rows([[1.0]], [0.0]))
    tails = TailBounds(net.network, net.posterior, torch.device("cpu"), Deadline())  # type: ignore[arg-type]
    stage = TunedItems(tails, question, nothing_known(question, question.lower))
    assert [turn for turn in range(LATER + 5) if stage.due(turn)][:3] == [first, first + 1, first + 2]


def test_contradictions_are_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probabilistic, "refine", lambda *_: safety([0.8], [0.7]))
    with pytest.raises(SoundnessError):
        verify_batch(line(0.0), [[1.0]], [[1.0]], properties=[[rows([[1.0]], [0.0])]])


# -- forests


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_forests_cover_their_roots_and_count_the_best_split(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.normal(size=(3, 2))
    question = from_cases(torch.tensor(low), torch.tensor(low + rng.uniform(0, 1, (3, 2))), [[rows([[1.0]], [0.0])]], 1)
    forest = Forest(question, torch.tensor(rng.random(3)))
    halves_of: dict[int, tuple[int, int]] = {}
    everything, most = torch.ones(3, dtype=torch.bool), torch.full((3,), 2)
    before = forest.roots()
    for _ in range(4):
        index = forest.worst(everything, most)
        assert (forest.nodes.first[index] < 0).all()
        assert (torch.bincount(forest.instance[index], minlength=3) <= 2).all()
        steepness = torch.tensor(rng.random((len(index), 2)))
        forest.split(index, steepness, lambda halves: torch.tensor(rng.random(len(halves)) ** 3))
        first = forest.nodes.first[index].tolist()
        halves_of |= {p: (f, f + 1) for p, f in zip(index.tolist(), first, strict=True)}
        assert (forest.roots() <= before).all()
        before = forest.roots()

    nodes = forest.nodes

    def value(node: int) -> float:
        own = nodes.own[node].item()
        return min(own, sum(value(half) for half in halves_of[node])) if node in halves_of else own

    np.testing.assert_allclose(before, [value(i) for i in range(3)], rtol=1e-12)
    for node, (left, right) in halves_of.items():
        outside = torch.stack([nodes.lower[node], nodes.upper[node]])
        inside = torch.stack([nodes.lower[left], nodes.upper[right]])
        assert torch.equal(outside, inside)  # together from corner to corner, and they meet in one face:
        differs = nodes.upper[left] != nodes.upper[node]
        assert differs.sum() == 1
        assert torch.equal(nodes.upper[left][differs], nodes.lower[right][differs])


def test_points_are_not_split() -> None:
    question = problem([0.3], [np.nextafter(0.3, 1)], rows([[1.0]], [0.0]))
    forest = Forest(question, torch.ones(1, dtype=torch.float64))
    index = forest.worst(torch.ones(1, dtype=torch.bool), torch.ones(1))
    forest.split(index, torch.ones(1, 1, dtype=torch.float64), lambda halves: halves.lower[:, 0])
    assert len(forest) == 1
    assert len(forest.worst(torch.ones(1, dtype=torch.bool), torch.ones(1))) == 0


# -- what it is worth


def line(mean: float, sd: float = 1.0) -> Model:
    """y = w x, w ~ N(mean, sd^2)."""
    return model([([[mean]], [0.0])], [([[sd**2]], None)])


@given(st.integers(0, 10**6), st.sampled_from(["tails", "linear", "auto"]))
@settings(max_examples=12, deadline=None)
def test_lines_in_closed_form(seed: int, method: Any) -> None:
    """y = w x on [l, u] with l > 0, V: y <= b: the end points decide. Thresholds that keep the refinement going."""
    rng = np.random.default_rng(seed)
    mean, sd, low = rng.normal(), rng.uniform(0.1, 1.0), rng.uniform(0.1, 1.0)
    high, b = low + rng.uniform(0.0, 1.0), rng.normal()
    exact = stats.norm.sf((max(b / low, b / high) - mean) / sd)
    found = verify_batch(
        line(mean, sd), [[low]], [[high]], properties=[[rows([[1.0]], [b])]], method=method,
        tau_safe=min(1.0, exact + 0.01), tau_unsafe=max(0.0, exact - 0.01),
    )  # fmt: skip
    assert found.lower[0] <= exact + 1e-12
    assert found.upper[0] >= exact - 1e-12


@given(st.integers(0, 10**6), st.sampled_from(["relu", "tanh"]), st.sampled_from([0.05, 0.2]))
@settings(max_examples=8, deadline=None)
def test_attacked_samples_never_contradict(seed: int, activation: str, spread: float) -> None:
    rng = np.random.default_rng(seed)
    net = random_model(seed, [2, 6, 5, 3], spread=spread, activation=activation)
    x = rng.normal(size=2)
    y = outputs(net, x)
    cases = [
        rows(np.eye(3)[:2], y[:2] - rng.uniform(0, 0.4)),
        rows([[0.0, -1.0, 1.0]], y[2] - y[1] - rng.uniform(0, 0.4)),
    ]
    found = verify_batch(net, [x - 0.3], [x + 0.3], properties=[cases], tau_safe=1.0, tau_unsafe=0.0)
    question = problem(x - 0.3, x + 0.3, *cases, outputs=3)
    count = sampled_violations(net, question, 300, seed)
    assert stats.binom.sf(count - 1, 300, 1 - found.lower[0]) >= LEVEL
    at = problem(found.points[0], found.points[0], *cases, outputs=3)
    assert stats.binom.cdf(sampled_violations(net, at, 300, seed + 1) + 1, 300, 1 - found.upper[0]) >= LEVEL


@pytest.mark.parametrize(("method", "spread"), [("tails", 0.02), ("linear", 0.0005)])
def test_splitting_decides_what_one_pass_leaves_open(
    monkeypatch: pytest.MonkeyPatch, method: Any, spread: float
) -> None:
    hills, index, hard = Hills(spread), [3, 4, 5, 8], [3, 4, 5]
    found = hills.verify(index, method)
    assert (found.lower >= 0.99).all()
    for i in index:
        question = problem(hills.low[i], hills.high[i], *hills.cases[i], outputs=2)
        assert stats.binom.sf(sampled_violations(hills.net, question, 200, 0) - 1, 200, 0.01) >= LEVEL
    one_pass(monkeypatch)
    assert (hills.verify(hard, method).lower < 0.99).all()


def test_the_point_where_most_networks_violate(monkeypatch: pytest.MonkeyPatch) -> None:
    """y = w x + b on [0, 1] is lowest on average at 1 and surest at 0: .69 of the networks violate at 1, .994 at 0."""
    net = model([([[-0.01]], [-0.05])], [([[0.1**2]], [0.02**2])])

    def upper() -> float:
        found = verify_batch(
            net, [[0.0]], [[1.0]], properties=[[rows([[1.0]], [0.0])]], method="tails", tau_safe=0.9, tau_unsafe=0.02
        )
        return float(found.upper[0])

    assert stats.norm.sf(2.5) - 1e-12 <= upper() < 0.02
    one_pass(monkeypatch)
    assert upper() > 0.2


def test_boxes_outside_the_constraints_cost_nothing() -> None:
    """y = w x on [0, 4] with x <= 1, w ~ N(1, .1^2), V: y >= 1.5: exact on a line through no corner of the box."""
    net = line(1.0, 0.1)
    question = properties(net, [(0.0, 4.0)], [(0, [([-1.0], None, -1.5, False)])], [(0, [1.0], 1.0, False)])
    found = verify(net, question, method="tails", tau_safe=0.99999, tau_unsafe=0.5)
    assert found.p_safe is not None
    assert 0.99999 <= found.p_safe.lower <= stats.norm.cdf(5.0)
    assert found.verdict == "unsat"


def test_boxes_that_reach_into_the_constraints_count() -> None:
    """The same with V: y >= 1.1, which w x reaches at x = 1 with probability Phi(-1)."""
    net = line(1.0, 0.1)
    question = properties(net, [(0.0, 4.0)], [(0, [([-1.0], None, -1.1, False)])], [(0, [1.0], 1.0, False)])
    found = verify(net, question, method="tails", tau_safe=0.84, tau_unsafe=0.5)
    assert found.p_safe is not None
    assert 0.6 < found.p_safe.lower <= stats.norm.cdf(1.0)  # the boxes on both sides of x = 1 count


# -- time, order, limits


@pytest.mark.parametrize("method", ["tails", "linear", "auto"])
def test_bounds_improve_with_time(monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
    """The clock is stopped at many looks: what comes back is never worse than a moment before."""
    clock = Clock(monkeypatch)
    hills = Hills(0.0005 if method == "linear" else 0.02)
    lower, upper = [], []
    for allowed in [*range(0, 40, 8), *range(40, 400, 90), 1000, 5000]:
        clock.stopped_at(allowed)
        found = hills.verify([3], method, timeout=1000.0)
        lower.append(found.lower[0])
        upper.append(found.upper[0])
    assert (lower[0], upper[0]) == (0.0, 1.0)
    assert (np.diff(lower) >= -1e-9).all()
    assert (np.diff(upper) <= 1e-9).all()
    assert lower[-1] > lower[0] or upper[-1] < upper[0]


@pytest.mark.parametrize(("method", "memory"), [("tails", 2**24), ("tails", 2**11), ("linear", 2**24)])
def test_refinement_does_not_depend_on_the_neighbours(
    monkeypatch: pytest.MonkeyPatch, method: Any, memory: int
) -> None:
    """Also where only a few instances fit into memory at a time."""
    monkeypatch.setattr(stages, "at_once", lambda numbers: max(1, memory // numbers))
    hills = Hills(0.02 if method == "tails" else 0.0005)
    some, order = np.array([0, 2, 3, 5, 8]), np.random.default_rng(1).permutation(5)
    whole, shuffled, alone = (hills.verify(index, method) for index in (some, some[order], [3]))
    for name in ("lower", "upper", "points"):
        full = getattr(whole, name)
        np.testing.assert_allclose(getattr(shuffled, name), full[order], atol=1e-7)
        np.testing.assert_allclose(getattr(alone, name)[0], full[2], atol=1e-7)
    assert len(set(whole.verdicts.astype(str))) >= 2


def test_work_ends_without_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left open is left after a number of splits, or of boxes in branch and bound."""
    splits: list[Any] = []
    boxes: list[int] = []
    step, branching = stages.InputSplitting.step, stages.Branching
    monkeypatch.setattr(stages.InputSplitting, "step", lambda self, *a: (splits.append(self), step(self, *a))[1])
    monkeypatch.setattr(stages, "Branching", lambda *a: (boxes.append(a[-1]), branching(*a))[1])
    assert Hills(0.02).verify([2], "tails").verdicts[0] == "unknown"
    spent = int(splits[-1]._spent.max())
    assert stages.SPLITS <= spent < stages.SPLITS + 2 * stages.SPLIT_ROUND
    assert Hills(0.002).verify([2], "linear").verdicts[0] == "unknown"
    assert boxes == [stages.FIRST_BOXES, 4 * stages.FIRST_BOXES]
