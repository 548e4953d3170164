"""Points of T, exactly: in rational arithmetic, and where the real point lies between two floats."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from bnn_vnnlib.problem.problem import Constraints, Problem
from bnn_vnnlib.question.property import row_true


def feasible(problem: Problem, x: Tensor) -> Tensor:
    """(N,): x (N, n) satisfies the item's constraints exactly (rational arithmetic); the boxes hold by construction.

    Where x stands for a real point between two floats (see `point_box`), all of what is between must satisfy them.
    """
    extra = problem.constraints
    if extra is None:
        return torch.ones(len(problem), dtype=torch.bool, device=x.device)
    lower, upper = point_box(problem, x)
    answers = [_satisfies(extra, i, lower[i], upper[i]) for i in range(len(x))]
    return torch.tensor(answers, dtype=torch.bool, device=x.device)


def _satisfies(extra: Constraints, item: int, lower: Tensor, upper: Tensor) -> bool:
    ends = [(Fraction(low), Fraction(high)) for low, high in zip(lower.tolist(), upper.tolist(), strict=True)]
    for g, bound, strict in zip(
        extra.inputs[item].tolist(), extra.inner_bound[item].tolist(), extra.strict[item].tolist(), strict=True
    ):
        left = sum((Fraction(a) * end[a > 0] for a, end in zip(g, ends, strict=True) if a), Fraction(0))
        if not row_true(left, Fraction(bound), strict):
            return False
    return True


def point_box(problem: Problem, x: Tensor) -> tuple[Tensor, Tensor]:
    """The point (.., N, n) as a box that surely holds a real point of T near it.

    Where no float64 lies in the item's interval (x == 0.1), the interval's own outward bounds, one unit apart.
    """
    empty = problem.inner_lower > problem.inner_upper
    return torch.where(empty, problem.lower, x), torch.where(empty, problem.upper, x)
