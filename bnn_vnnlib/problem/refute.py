"""Refuting cases: no x of the item, for no weights of the box, satisfies all rows of the case."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.engine import RowBounds
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.problem.outputs import OutputBounds, compares_classes, only_compares_classes
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.question.property import row_false, row_true
from bnn_vnnlib.rounding import TINY, gamma
from bnn_vnnlib.system.clock import Deadline

_LP_SIZE = 200_000
"""Variables of one linear program; more blocks are solved in several programs."""

_TOUCH = 1e-6
"""Room for roundings, relative to what a row adds up: rows that miss their bounds by less get a closer look."""


def refuted_cases(bounds: OutputBounds, weights: WeightBoxes, problem: Problem) -> Tensor:
    """(K, N, C): cases refuted by one row, or by a checked combination of their rows and the input constraints.

    Padding counts as refuted.
    """
    rows = problem.rows
    combine = _worth_combining(problem)
    found = bounds.rows(weights, problem.lower, problem.upper, rows.outputs, rows.inputs, forms=combine)
    false = rows.excluded(found.lower)
    if _touches(weights, found.lower - rows.bound, ~false, rows.outputs, found.magnitude):
        closed = bounds.closed(weights, problem.lower, problem.upper, rows.outputs, rows.inputs)
        false = false | rows.excluded(closed)
    if bounds.transform == "softmax":
        false = false | _false_before_softmax(bounds, weights, problem, problem.lower, problem.upper, 1.0)
    return _or_combined(problem, found, problem.refuted(false), combine, bounds.engine.deadline)


def refuted_by(problem: Problem, found: RowBounds, deadline: Deadline) -> Tensor:
    """`refuted_cases` from known lower bounds (K, N, R) of the rows."""
    done = problem.refuted(problem.rows.excluded(found.lower))
    return _or_combined(problem, found, done, _worth_combining(problem), deadline)


def _or_combined(problem: Problem, found: RowBounds, done: Tensor, combine: bool, deadline: Deadline) -> Tensor:
    return done | _combined(problem, found, done, deadline) if combine and not bool(done.all()) else done


def violated_cases(
    bounds: OutputBounds, weights: WeightBoxes, problem: Problem, lower: Tensor, upper: Tensor
) -> Tensor:
    """(K, N, C): cases all rows of which hold for all x in [lower, upper] (usually a point) and weights of the box.

    lower, upper : (N, n) or (K, N, n). Whether the point lies in the item is for the caller to know.
    """
    rows = problem.rows
    inputs = None if rows.inputs is None else -rows.inputs
    found = bounds.rows(weights, lower, upper, -rows.outputs, inputs)
    true = rows.implied(-found.lower)
    if _touches(weights, found.lower + rows.inner_bound, ~true, rows.outputs, found.magnitude):
        true = true | rows.implied(-bounds.closed(weights, lower, upper, -rows.outputs, inputs))
    if bounds.transform == "softmax":
        true = true | _false_before_softmax(bounds, weights, problem, lower, upper, -1.0)
    return problem.met(true) & bounds.defined(weights, lower, upper)[..., None]


def _touches(weights: WeightBoxes, spare: Tensor, open_: Tensor, outputs: Tensor, magnitude: Tensor) -> bool:
    """Some open row of fixed weights misses its bound by no more than rounding can make of it, or so.

    spare (K, N, R) : by how much a bound of the row exceeds what it must exceed; magnitude (K, N, m) of the outputs
    """
    if weights.spreads:
        return False
    size = outputs.abs().sum(-1) * magnitude.amax(-1, keepdim=True) + 1.0
    known = torch.isfinite(spare)  # not where time did not suffice for a bound
    return bool((open_ & known & (spare >= -_TOUCH * size)).any())


def settled(bounds: OutputBounds, weights: WeightBoxes, problem: Problem, random: Collection[str] = ()) -> Problem:
    """The problem without what closed ranges settle (`OutputBounds.closed`), for one setting of the fixed weights.

    Cases of which a row is false on the whole item, whatever the random weights are, do not exist any more; their rows,
    and rows that always hold, are padding. So no method has to prove them, least of all those that pay for roundings or
    for noise: P(row <= b) may be large where P(row < b) is 0.
    """
    rows = problem.rows
    both = torch.cat([rows.outputs, -rows.outputs], 1)
    inputs = None if rows.inputs is None else torch.cat([rows.inputs, -rows.inputs], 1)
    below, above = bounds.closed(weights, problem.lower, problem.upper, both, inputs, random)[0].chunk(2, -1)
    false, true = rows.excluded(below), rows.implied(-above)
    real = rows.case < problem.cases
    false, true = false & real, true & real
    if not bool((false | true).any()):
        return problem
    gone, case = problem.any_row(false), rows.case.expand(len(problem), -1)
    idle = true | torch.nn.functional.pad(gone, (0, 1)).gather(-1, case)
    full = {name: part.expand(len(case), *part.shape[1:]) for name, part in vars(rows).items() if part is not None}
    full["case"] = case.masked_fill(idle, problem.cases)
    return replace(problem, rows=replace(rows, **full), exists=problem.exists & ~gone)


def before_softmax(bounds: OutputBounds, problem: Problem) -> OutputBounds:
    """Bounds for the same rows over the logits, where all rows only compare classes: the signs are the same there."""
    if bounds.transform == "softmax" and only_compares_classes(problem):
        return replace(bounds, transform="identity")
    return bounds


def _false_before_softmax(
    bounds: OutputBounds, weights: WeightBoxes, problem: Problem, lower: Tensor, upper: Tensor, sign: float
) -> Tensor:
    """Rows a (Y_i - Y_j) <= 0 decided on the logits, whose differences have the same sign.

    sign = 1: the row is false (a (f_i - f_j) > 0, or >= 0 if strict); -1: it holds (<= 0, or < 0 if strict).
    """
    rows = problem.rows
    suits = compares_classes(rows)
    if not bool(suits.any()):
        return suits[None]
    low = bounds.engine.rows(weights, lower, upper, sign * rows.outputs).lower
    decided = row_false(low, 0.0, rows.strict) if sign > 0 else row_true(-low, 0.0, rows.strict)
    return decided & suits


def _worth_combining(problem: Problem) -> bool:
    """Whether some case has several rows, or there are constraints on the inputs."""
    if problem.constraints is not None:
        return True
    case = problem.rows.case
    counts = case.new_zeros(len(case), problem.cases + 1)
    counts = counts.scatter_add(-1, case, torch.ones_like(case))
    return bool((counts[:, :-1] > 1).any())


@dataclass(frozen=True, eq=False)
class _System:
    """T systems slope z - bound <= 0 over boxes of z, padded with the row 0 <= 1.

    slope (T, R, d), bound (T, R), lower, upper (T, d).
    """

    slope: Tensor
    bound: Tensor
    lower: Tensor
    upper: Tensor


def _combined(problem: Problem, found: RowBounds, done: Tensor, deadline: Deadline) -> Tensor:
    """Farkas: multipliers >= 0 under which the sum of the rows exceeds the sum of their bounds on the whole box."""
    box, item, case = torch.nonzero(~done, as_tuple=True)
    mask = problem.rows.case.expand(len(problem), -1)[item] == case[:, None]
    result = torch.zeros(len(box), dtype=torch.bool, device=done.device)
    builders = (_over_outputs,) if found.form is None else (_over_outputs, _over_forms)
    for build in builders:
        left = torch.nonzero(~result)[:, 0]
        if len(left):
            system = build(problem, found, box[left], item[left], mask[left])
            result[left] = _infeasible(system, deadline)
    out = done.clone()
    out[box, item, case] = result
    return out & ~done


def _with_constraints(problem: Problem, item: Tensor, pad: int, system: _System) -> _System:
    """Append the item's constraints on x; z = (x, `pad` further coordinates)."""
    extra = problem.constraints
    if extra is None:
        return system
    slope = torch.nn.functional.pad(extra.inputs[item], (0, pad))
    return _System(
        torch.cat([system.slope, slope], 1), torch.cat([system.bound, extra.bound[item]], 1),
        system.lower, system.upper,
    )  # fmt: skip


def _masked(slope: Tensor, bound: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The rows in the mask; all others become 0 <= 1."""
    return torch.where(mask[..., None], slope, 0.0), torch.where(mask, bound, 1.0)


def _over_outputs(problem: Problem, found: RowBounds, box: Tensor, item: Tensor, mask: Tensor) -> _System:
    """z = (x, y), y anywhere in its enclosure: finds contradictions between the rows that hold for any network."""
    rows, count = problem.rows, len(problem)
    outputs = rows.outputs.expand(count, -1, -1)[item]
    inputs = outputs.new_zeros(*outputs.shape[:2], problem.lower.shape[1])
    if rows.inputs is not None:
        inputs = rows.inputs.expand(count, -1, -1)[item]
    slope, bound = _masked(torch.cat([inputs, outputs], -1), rows.bound.expand(count, -1)[item], mask)
    size = found.magnitude[box, item]
    system = _System(
        slope, bound, torch.cat([problem.lower[item], -size], 1), torch.cat([problem.upper[item], size], 1)
    )
    return _with_constraints(problem, item, size.shape[1], system)


def _over_forms(problem: Problem, found: RowBounds, box: Tensor, item: Tensor, mask: Tensor) -> _System:
    """z = x, the rows replaced by the linear functions below them."""
    form = found.form
    if form is None:
        raise ValueError("combinations need the linear forms")
    # moving the offset to the right is one rounding, paid for in `_infeasible` through the sizes
    bound = problem.rows.bound.expand(len(problem), -1)[item] - form.offset[box, item]
    slope, bound = _masked(form.slope[box, item], bound, mask)
    usable = torch.isfinite(bound) & torch.isfinite(slope).all(-1)
    slope, bound = _masked(slope, bound, usable)
    return _with_constraints(problem, item, 0, _System(slope, bound, problem.lower[item], problem.upper[item]))


def _infeasible(system: _System, deadline: Deadline) -> Tensor:
    """(T,) proved infeasible, by multipliers from a linear program that are then checked with rounding.

    Systems with infinite numbers (an output without any bound) are left open: no solver takes them.
    """
    finite = torch.stack([torch.isfinite(part.flatten(1)).all(-1) for part in vars(system).values()]).all(0)
    out = torch.zeros_like(finite)
    if bool(finite.any()):
        out[finite] = _solved(_System(*(part[finite] for part in vars(system).values())), deadline)
    return out


def _solved(system: _System, deadline: Deadline) -> Tensor:
    """Systems that time does not suffice for stay open."""
    blocks, rows, size = system.slope.shape
    step = max(1, _LP_SIZE // (rows + 2 * size))
    parts = (slice(start, start + step) for start in range(0, blocks, step))
    found = deadline.reached(parts, lambda part: _multipliers(system, part))
    lam = np.zeros((blocks, rows))
    for start, multipliers in zip(range(0, blocks, step), found, strict=False):
        lam[start : start + step] = multipliers
    return _check(system, torch.as_tensor(lam, device=system.slope.device))


def _check(system: _System, lam: Tensor) -> Tensor:
    """min over the box of sum_r lam_r (slope_r z - bound_r) > 0, every rounding paid for."""
    slope = (lam[:, None] @ system.slope)[:, 0]
    center = (system.lower + system.upper) / 2
    radius = torch.maximum(system.upper - center, center - system.lower)
    value = (slope * center).sum(-1) - (slope.abs() * radius).sum(-1) - (lam * system.bound).sum(-1)
    size = (lam[:, None] @ system.slope.abs())[:, 0] * (center.abs() + 2 * radius)
    total = size.sum(-1) + (lam * system.bound.abs()).sum(-1)
    rows, width = system.slope.shape[1:]
    lost = TINY * (1 + (center.abs() + 2 * radius).sum(-1))  # products of multipliers and slopes that underflow
    return value - 4 * gamma(2 * (rows + width) + 16) * total - lost > 0


def _multipliers(system: _System, part: slice) -> np.ndarray:
    """Maximise the dual of each block, all blocks in one sparse program; (T, R), zero where the solver fails.

    max sum_r lam_r (-bound_r) + lower.p - upper.q  subject to  sum_r lam_r slope_r = p - q, sum lam = 1, all >= 0.
    Rows are scaled to a largest coefficient of 1, which the multipliers undo.
    """
    from scipy import sparse  # loaded here: few questions need a linear program, and it takes a quarter of a second
    from scipy.optimize import linprog

    slope, bound = system.slope[part].cpu().numpy(), system.bound[part].cpu().numpy()
    lower, upper = system.lower[part].cpu().numpy(), system.upper[part].cpu().numpy()
    scale = np.maximum(np.abs(slope).max(-1), np.abs(bound))
    scale = np.where(scale > 0, scale, 1.0)
    slope, bound = slope / scale[..., None], bound / scale
    blocks, rows, size = slope.shape
    balance = sparse.block_diag([sparse.csr_matrix(block.T) for block in slope])
    unit = sparse.identity(blocks * size, format="csr")
    equalities = sparse.bmat(
        [[balance, -unit, unit], [sparse.kron(sparse.identity(blocks), np.ones((1, rows))), None, None]], format="csr"
    )
    right = np.concatenate([np.zeros(blocks * size), np.ones(blocks)])
    cost = np.concatenate([bound.ravel(), -lower.ravel(), upper.ravel()])
    solution = linprog(cost, A_eq=equalities, b_eq=right, bounds=(0, None), method="highs")
    if solution.x is None:
        return np.zeros((blocks, rows))
    return np.maximum(solution.x[: blocks * rows].reshape(blocks, rows), 0.0) / scale
