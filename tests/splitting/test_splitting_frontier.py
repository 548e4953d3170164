"""The frontier and the minima that rest on it: nothing is lost, whatever ends the work, and owners are independent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bnn_vnnlib.splitting.frontier import Effort, Frontier, Look, OpenBoxes, minimise
from bnn_vnnlib.system.clock import Deadline, OutOfTime


def boxes(lower: list[list[float]], upper: list[list[float]]) -> OpenBoxes:
    low, high = torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)
    return OpenBoxes(torch.arange(len(low)), low, high)


def flat(some: OpenBoxes) -> Tensor:
    return torch.ones_like(some.lower)


@given(st.integers(0, 10**6), st.sampled_from([1.0, 1e-320, 1e308]))
@settings(max_examples=50, deadline=None)
def test_halves_cover_their_boxes(seed: int, scale: float) -> None:
    """Whatever the slopes; also where the sum of the ends, or the width, is more than float64 holds."""
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.uniform(-1.7, 1.7, size=(2, 6, 3)) * scale, axis=0)
    ends[1, 0] = ends[0, 0]  # a point
    some = boxes(ends[0].tolist(), ends[1].tolist())
    slopes = torch.tensor(rng.choice([0.0, 1.0, 1e300, np.inf, np.nan], size=(6, 3)))
    halves, points = some.halves(slopes)
    assert 0 in points.owner
    count = len(halves) // 2
    first, second = halves.pick(slice(count)), halves.pick(slice(count, None))
    whole = some.pick(first.owner)
    assert torch.equal(first.owner, second.owner)
    assert torch.equal(torch.stack([first.lower, second.upper]), torch.stack([whole.lower, whole.upper]))
    cut = first.upper != whole.upper
    assert (cut.sum(-1) == 1).all()
    assert torch.equal(first.upper[cut], second.lower[cut])
    assert ((first.lower < first.upper) | ~cut).all()
    assert ((second.lower < second.upper) | ~cut).all()


def test_a_box_ends_where_floats_do() -> None:
    """Nothing lies between two neighbours; the middle of large numbers is a number although their sum is none."""
    for low, high in ((1.0, np.nextafter(1.0, 2)), (0.0, 5e-324), (-5e-324, 0.0), (0.3, 0.3)):
        halves, points = boxes([[low]], [[high]]).halves(torch.ones(1, 1, dtype=torch.float64))
        assert (len(halves), len(points)) == (0, 1)
    halves, points = boxes([[1.5e308]], [[1.7e308]]).halves(torch.ones(1, 1, dtype=torch.float64))
    assert (len(halves), len(points)) == (2, 0)
    assert halves.upper[0, 0] == 1.6e308


def test_a_box_is_cut_where_the_slope_times_the_width_is_largest() -> None:
    some = boxes([[0.0, 0.0, 0.0]], [[1.0, 4.0, 0.0]])
    for slopes, axis in (([5.0, 1.0, 9.0], 0), ([3.0, 1.0, 0.0], 1), ([0.0, 0.0, 0.0], 1), ([1.0, 0.0, 0.0], 0)):
        halves, _ = some.halves(torch.tensor([slopes], dtype=torch.float64))
        assert torch.nonzero(halves.upper[0] != some.upper[0]).item() == axis
    narrow = boxes([[0.0, 0.0]], [[1e-9, 4.0]])  # an input that the bounds ignore does not stay wide for ever
    assert narrow.halves(torch.tensor([[1.0, 0.0]], dtype=torch.float64))[0].upper[0, 1] == 2.0


@pytest.mark.parametrize("batch", [None, 1, 3, 100])
def test_an_owner_is_given_up_where_its_tree_is_too_large(batch: int | None) -> None:
    """Owner k has a tree of 2^(k + 2) - 1 boxes: halved until they are 2^-(k + 1) wide."""
    for most in (0, 2, 3, 6, 7, 20, 31, 1000):
        frontier = Frontier(boxes([[0.0]] * 4, [[1.0]] * 4), 4, most, Deadline())
        bounded = torch.zeros(4, dtype=torch.int64)

        def step(some: OpenBoxes, bounded: Tensor = bounded) -> OpenBoxes:
            bounded += torch.bincount(some.owner, minlength=4)
            width = (some.upper - some.lower)[:, 0]
            left = some.pick(width > 0.5 ** (some.owner + 1))
            return left.halves(flat(left))[0]

        frontier.run(step, batch)
        assert frontier.open.tolist() == [size > most for size in (3, 7, 15, 31)]
        assert (bounded <= max(most, 1)).all()


@pytest.mark.parametrize("steps", range(8))
def test_what_time_cuts_off_is_open(steps: int) -> None:
    """A step that does not end has closed nothing, and the owners that are done stay so."""
    left = [steps]
    told: list[OpenBoxes] = []
    frontier = Frontier(boxes([[0.0]] * 2, [[1.0]] * 2), 2, None, Deadline(), told.append)

    def step(some: OpenBoxes) -> OpenBoxes:
        left[0] -= 1
        if left[0] < 0:
            raise OutOfTime
        done = some.pick((some.owner == 0) | (some.upper - some.lower)[:, 0].le(0.25))
        some = some.pick((some.owner == 1) & (some.upper - some.lower)[:, 0].gt(0.25))
        assert len(done) + len(some)
        return some.halves(flat(some))[0]

    frontier.run(step, 1)
    open_, waiting = frontier.open.tolist(), told[-1]
    assert open_ == [bool((waiting.owner == k).any()) for k in range(2)]
    assert open_ == [steps < 8, steps < 7]  # seven boxes of the second one, which lies on top


def test_a_sweep_takes_every_item_once_and_in_order() -> None:
    seen: list[int] = []

    def step(some: OpenBoxes) -> OpenBoxes:
        seen.extend(some.owner.tolist())
        return some.pick(some.owner % 2 == 0)

    frontier = Frontier(boxes([[0.0]] * 5, [[1.0]] * 5), 5, None, Deadline())
    frontier.sweep(frontier.taken(), step, 2)
    assert seen == [0, 1, 2, 3, 4]
    assert frontier.open.tolist() == [True, False, True, False, True]
    frontier.give_up(torch.tensor([2]))
    frontier.settle(torch.tensor([True, False, False, False, False]))
    frontier.run(lambda some: some.pick(slice(0, 0)), 1)
    assert frontier.open.tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("steps", range(4))
def test_what_a_sweep_has_no_time_for_is_open(steps: int) -> None:
    left = [steps]

    def step(some: OpenBoxes) -> OpenBoxes:
        left[0] -= 1
        if left[0] < 0:
            raise OutOfTime
        return some.pick(slice(0, 0))

    frontier = Frontier(boxes([[0.0]] * 5, [[1.0]] * 5), 5, None, Deadline())
    frontier.sweep(frontier.taken(), step, 2)
    assert frontier.open.tolist() == [owner >= 2 * steps for owner in range(5)]


CENTERS = torch.tensor([[0.3, -0.2], [0.7, 0.6]], dtype=torch.float64)
LEAST = torch.tensor([[0.0], [5.0]], dtype=torch.float64)
"""Two rows for each of two items: |x_0 - c| + x_1^2 / 10 + the least value, which the items do not share."""


def values(item: Tensor, x: Tensor) -> Tensor:
    return (x[:, :1] - CENTERS[item]).abs() + x[:, 1:] ** 2 / 10 + LEAST[item]


def bound(item: Tensor, lower: Tensor, upper: Tensor) -> Look:
    """By intervals, and less by a tenth of the width, which the slope counts, too."""
    center = CENTERS[item]
    away = torch.maximum(lower[:, :1] - center, center - upper[:, :1]).clamp(min=0)
    square = torch.where((lower <= 0) & (upper >= 0), 0.0, torch.minimum(lower**2, upper**2))[:, 1:] / 10
    middle = (lower + upper) / 2
    slope = torch.stack([(middle[:, :1] - center).sign(), (middle[:, 1:] / 5 + 0.1).expand_as(center)], -1)
    return Look(away + square + LEAST[item] - 0.1 * (upper - lower).amax(-1, keepdim=True), slope, lower, upper)


LOW, HIGH = torch.full((2, 2), -1.0, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
NOTHING = torch.full((2, 2), -torch.inf, dtype=torch.float64)


def test_minima_are_reached_together_and_alone() -> None:
    """To within the tolerance."""
    effort = Effort(1e-2, 20_000)
    found = minimise(bound, values, LOW, HIGH, NOTHING, effort, Deadline()) - LEAST
    assert ((found <= 0) & (found >= -1e-2)).all()
    for item in range(2):
        at = torch.tensor([item])

        def alone(index: Tensor, lower: Tensor, upper: Tensor, at: Tensor = at) -> Look:
            return bound(at[index], lower, upper)

        one = minimise(alone, None, LOW[at], HIGH[at], NOTHING[at], effort, Deadline()) - LEAST[at]
        assert ((one <= 0) & (one >= -1.1e-2)).all()


@pytest.mark.parametrize("known", [-np.inf, -9.0])
@pytest.mark.parametrize("most", [0, 1, 2, 5, 20, 60])
def test_boxes_beyond_the_number_count_with_what_is_known(most: int, known: float) -> None:
    found = minimise(bound, values, LOW, HIGH, NOTHING.clamp(min=known), Effort(1e-3, most), Deadline())
    assert ((found <= LEAST) & (found >= (LEAST - 0.5).clamp(min=known))).all()


def test_boxes_that_cannot_be_halved_count() -> None:
    """Two neighbouring floats, between which a row is bounded by -1 and has the value 0."""

    def loose(item: Tensor, lower: Tensor, upper: Tensor) -> Look:
        value = torch.where(lower < upper, -1.0, 0.0)
        return Look(value, torch.ones_like(lower)[:, None], lower, upper)

    low = torch.ones(1, 1, dtype=torch.float64)
    high = torch.nextafter(low, 2 * low)
    for upper, least in ((high, -1.0), (torch.nextafter(high, 2 * low), -1.0), (low, 0.0)):
        found = minimise(loose, None, low, upper, torch.full_like(low, -9.0), Effort(1e-3, 100), Deadline())
        assert float(found) == least


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4, 5, 7, 12, 20])
@pytest.mark.parametrize("batch", [1, 3, 512])
def test_boxes_beyond_the_time_count_with_what_is_known(calls: int, batch: int) -> None:
    """Time ends inside a round: no box is lost, neither those that were bounded in it nor the others."""
    left = [calls]

    def limited(item: Tensor, lower: Tensor, upper: Tensor) -> Look:
        left[0] -= 1
        if left[0] < 0:
            raise OutOfTime
        return bound(item, lower, upper)

    found = minimise(limited, values, LOW, HIGH, NOTHING.clamp(min=-9.0), Effort(1e-3, 2000, batch), Deadline())
    assert (found <= LEAST).all()
    assert (found >= -9.0).all()
    assert bool((found > -9.0).any()) == (calls > 0)


def test_goals_end_the_work() -> None:
    """A row whose bound exceeds the goal is done, and one of which a point misses it is given up."""
    calls: list[int] = []

    def counted(item: Tensor, lower: Tensor, upper: Tensor) -> Look:
        calls.append(len(item))
        return bound(item, lower, upper)

    def work(goal: float | None) -> tuple[Tensor, int]:
        calls.clear()
        goals = None if goal is None else goal + LEAST.expand_as(NOTHING)
        found = minimise(counted, values, LOW, HIGH, NOTHING, Effort(1e-3, 2000), Deadline(), goals)
        return found - LEAST, sum(calls)

    _, everything = work(None)
    reached, few = work(-0.05)
    assert ((reached > -0.05) & (reached <= 0)).all()
    assert few < everything
    missed, fewer = work(0.05)
    assert (missed <= 0).all()
    assert fewer < few


def test_the_tolerance_may_be_a_share_of_how_much_a_row_varies() -> None:
    found = minimise(bound, values, LOW, HIGH, NOTHING, Effort(0.0, 5000, relative=0.05), Deadline()) - LEAST
    assert ((found <= 0) & (found >= -0.05 * 2.0)).all()
    assert (found < -1e-3).any()
