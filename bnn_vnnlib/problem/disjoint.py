"""Cases that exclude each other at a point: no network violates two of them there, so that their masses add up.

Let E_c be the event that all rows a.f(x) + g.x < b of case c hold, at one x. Two rows with a' = -a, g' = -g and
b + b' <= 0 cannot hold both: their sum would read 0 < b + b' <= 0. So E_c and E_d are disjoint if c has a row and d has
one that are such a pair, and for a set S of cases any two of which are disjoint

    P(some case holds at x) >= P(union of the E_c, c in S) = sum over S of P(E_c).

Both ends of a range of outputs are such cases, and so are "class i is the largest" for different i. The comparisons are
exact: equality of floats, and the sign of a sum of two floats, which rounding keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.rounding import UNIT


def some_case(problem: Problem, failures: Tensor) -> Tensor:
    """(N,) lower bounds on the probability that some case holds at a point of each item.

    The masses of disjoint cases are added up, from the likeliest case on; any such set gives a bound.

    Parameters
    ----------
    failures : (N, C) upper bounds on 1 - P(E_c), but for the roundings of a sum of R + 1 terms
    """
    terms = problem.rows.outputs.shape[1] + 1
    spent = (failures * (1 + 4 * (terms + 8) * UNIT)).nan_to_num(1.0)
    mass = torch.nextafter(1.0 - spent, spent.new_tensor(-torch.inf)).clamp(min=0.0)
    mass = torch.where(problem.exists, mass, 0.0)
    total = mass.amax(-1)
    index = torch.nonzero((mass > 0).sum(-1) > 1)[:, 0]  # one case alone has nothing to be added to it
    if len(index):
        total = total.index_copy(0, index, _added(mass[index], apart(problem.items(index))))
    return total.clamp(max=1.0)


def _added(mass: Tensor, disjoint: Tensor) -> Tensor:
    """(N,): sums of masses (N, C) over cases any two of which are `disjoint` (N or 1, C, C), rounded down."""
    items, cases = torch.arange(len(mass), device=mass.device), mass.shape[-1]
    disjoint = disjoint.expand(len(mass), -1, -1)
    left, total = mass, torch.zeros_like(mass[:, 0])
    for _ in range(cases):
        value, chosen = left.max(-1)
        if not bool((value > 0).any()):
            break
        total = total + value
        left = torch.where(disjoint[items, chosen], left, 0.0)
    return torch.maximum(total * (1 - 4 * (cases + 8) * UNIT), mass.amax(-1))


def apart(problem: Problem) -> Tensor:
    """(N or 1, C, C): pairs of cases that are proved to be disjoint at every x; never a case and itself."""
    rows = problem.rows
    items = max(len(part) for part in (rows.case, rows.outputs, rows.inner_bound))
    case = rows.case.expand(items, -1)
    outputs, bound = rows.outputs.expand(items, -1, -1), rows.inner_bound.expand(items, -1)
    # the sums of opposite rows are opposite: a quick look at all pairs, and an exact one at those that are left
    weight = torch.linspace(1.0, 2.0, outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    size = (outputs * weight).sum(-1)
    real = case < problem.cases
    maybe = (size[:, :, None] == -size[:, None]) & (bound[:, :, None] + bound[:, None] <= 0)
    maybe = maybe & real[:, :, None] & real[:, None] & (case[:, :, None] < case[:, None])
    item, p, q = torch.nonzero(maybe, as_tuple=True)
    opposite = (outputs[item, p] == -outputs[item, q]).all(-1)
    if rows.inputs is not None:
        inputs = rows.inputs.expand(items, -1, -1)
        opposite = opposite & (inputs[item, p] == -inputs[item, q]).all(-1)
    item, p, q = item[opposite], p[opposite], q[opposite]
    found = torch.zeros(items, problem.cases, problem.cases, dtype=torch.bool, device=case.device)
    found[item, case[item, p], case[item, q]] = True
    return found | found.mT
