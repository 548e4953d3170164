"""The refinement by `methods.safety.large_variance`: what it asks, and of how many items at once."""

from __future__ import annotations

import torch
from torch import Tensor

from bnn_vnnlib.methods.safety.refine import JUDGED, PACE, TIGHT_CHUNK, LargeVarianceItems
from bnn_vnnlib.problem.problem import Problem, from_labels


class Asked:
    """In place of `LargeVarianceBounds`: every third item pays, and every bound is known."""

    quick = True

    def __init__(self) -> None:
        self.judged: list[int] = []
        self.bounded: list[Tensor] = []

    def serves(self, problem: Problem) -> Tensor:
        """All."""
        return torch.ones(len(problem), dtype=torch.bool)

    def pays(self, problem: Problem) -> Tensor:
        """By the place of the box."""
        self.judged.append(len(problem))
        return problem.lower[:, 0] % 3 == 0

    def item_failures(self, problem: Problem) -> Tensor:
        """Small."""
        self.bounded.append(problem.lower[:, 0])
        return torch.full((len(problem),), 0.25, dtype=torch.float64)


def test_only_open_items_that_pay_are_bounded_and_never_all_at_once() -> None:
    count = 3 * JUDGED + 5
    lower = torch.arange(count, dtype=torch.float64)[:, None].expand(-1, 2)
    problem = from_labels(lower, lower + 1, torch.zeros(count, dtype=torch.long), 2)
    asked, nobody = Asked(), torch.zeros(count, dtype=torch.bool)
    stage = LargeVarianceItems(asked, problem, lower, nobody)  # type: ignore[arg-type]
    open_ = torch.arange(count) >= JUDGED
    bounds = None
    while (found := stage.step(open_, nobody)) is not None:
        bounds = found
    assert bounds is not None
    assert sum(asked.judged) == count - JUDGED
    assert max(asked.judged) <= JUDGED
    assert max(map(len, asked.bounded)) <= TIGHT_CHUNK
    expected = torch.arange(count)[open_ & (torch.arange(count) % 3 == 0)]
    assert torch.equal(torch.cat(asked.bounded).long(), expected)
    known = torch.zeros(count, dtype=torch.bool)
    known[expected] = True
    assert torch.equal(bounds.lower > 0.7, known)
    assert (bounds.lower[~known] == 0).all()


def test_items_that_take_long_wait_for_the_other_stages() -> None:
    lower = torch.zeros(5, 2, dtype=torch.float64)
    problem = from_labels(lower, lower + 1, torch.zeros(5, dtype=torch.long), 2)
    asked, nobody = Asked(), torch.zeros(5, dtype=torch.bool)
    assert LargeVarianceItems(asked, problem, lower, nobody).due(0)  # type: ignore[arg-type]
    asked.quick = False
    stage = LargeVarianceItems(asked, problem, lower, nobody)  # type: ignore[arg-type]
    for piece in range(1, 4):
        assert [turn for turn in range(PACE * 4) if stage.due(turn)] == list(range(PACE * piece, PACE * 4))
        assert stage.step(~nobody, nobody) is not None
    assert list(map(len, asked.bounded)) == [1, 1, 1]
