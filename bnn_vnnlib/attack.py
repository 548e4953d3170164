"""Projected gradient descent towards the violating set: finds points, proves nothing.

Every point that is returned lies in the inner box of its item, and in the item's constraints as far as projections
can reach them; whoever uses a point checks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.problem.problem import Constraints, Problem
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

Params = dict[str, Tensor]

AttackAim = Literal["each", "mean", "common"] | float
"""What is attacked of K sets of weights: each for itself, their mean output, the quantile of their outputs of a level,
or all at one common point."""

_FIRST_STEP, _LAST_STEP = 0.5, 1e-4
"""First and last step, as shares of the box; geometric in between."""


_CURVED, _POOLED = 6, 8
"""Number of steps towards constraints with products; of steps of a pool's points towards all constraints."""


@dataclass(frozen=True)
class Attack:
    """Settings: `steps` gradient steps from `restarts` starting points an item, the best of `pool` times as many.

    With a lower `precision` points are looked for in it, and what they are worth is computed again in float64. The
    `deepest` violation is looked for, or any one.
    """

    steps: int = 30
    restarts: int = 4
    pool: int = 1
    seed: int = 0
    deadline: Deadline = Deadline()
    precision: torch.dtype = torch.float64
    deepest: bool = False


def run(
    network: Network,
    problem: Problem,
    params: Params,
    attack: Attack,
    transform: str = "identity",
    aim: AttackAim = "each",
    *,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The most violating point found for every item and every set of weights.

    Parameters
    ----------
    params : K sets of weights, name -> (K, *shape); empty = the network's own weights (K = 1)
    transform : what is applied to the outputs before the rows: "identity", "softmax" or "sigmoid"
    aim : "each" of the K sets; the "mean", or a quantile, of the transformed outputs over the sets; or the point
        that is "common" to most sets: the mean of the violations over their standard deviation is the least there
    start : (N, n) points of the items to start from, instead of their centres

    Returns
    -------
    x (K', N, n), value (K', N) : K' = K for "each", else 1; value <= 0 where the (rounded) network violates the
        property, or about half of the sets do
    """
    count = max((len(p) for p in params.values()), default=1)
    widest = max(int(torch.Size(node.shape).numel()) for node in network.nodes)
    step = at_once(4 * count * attack.restarts * widest)
    parts = [
        _searched(
            network, problem.items(index), params, attack, transform, aim, None if start is None else start[index]
        )
        for index in torch.arange(len(problem), device=problem.lower.device).split(step)
    ]
    return torch.cat([x for x, _ in parts], 1), torch.cat([value for _, value in parts], 1)


def _searched(
    network: Network, problem: Problem, params: Params, attack: Attack, transform: str, aim: AttackAim,
    start: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`_run` in the attack's precision, confirmed in that of the problem."""
    kind, own = attack.precision, problem.lower.dtype
    if kind == own:
        return _run(network, problem, params, attack, transform, aim, start)
    rounded = {name: value.to(kind) for name, value in params.items()}
    x = _run(network, problem.to(kind), rounded, attack, transform, aim, None if start is None else start.to(kind))[0]
    x = x.to(own).clamp(*inner_box(problem))
    with torch.no_grad():
        value = violation(network, problem, params, x[:, None], transform, aim)[:, 0]
    return x, value


def _run(
    network: Network, problem: Problem, params: Params, attack: Attack, transform: str, aim: AttackAim,
    start: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Points (K, N, n) and values (K, N) of the least objective that any restart found."""
    low, high = inner_box(problem)
    count = max((len(p) for p in params.values()), default=1) if aim == "each" else 1
    shape = (count, attack.restarts, *low.shape)
    x = _starts(network, problem, params, attack, transform, aim, count)
    if start is not None:
        x[:, 0] = start.clamp(low, high)
    best, best_value = x, torch.full(shape[:3], torch.inf, dtype=low.dtype, device=low.device)
    done = torch.zeros(count, len(problem), dtype=torch.bool, device=low.device)
    shrink = (_LAST_STEP / _FIRST_STEP) ** (1 / max(attack.steps, 1))
    for i in range(attack.steps + 1):
        x = x.detach().requires_grad_()
        value, target = _objective(network, problem, params, x, transform, aim)
        better = (value.detach() < best_value) & ~done[:, None]
        best = torch.where(better[..., None], x.detach(), best)
        best_value = torch.where(better, value.detach(), best_value)
        if i >= attack.steps // 2 and aim != "common" and not attack.deepest:
            done = best_value.amin(1) < 0  # frozen, so that an item does not depend on its neighbours
        if i == attack.steps or bool(done.all()) or attack.deadline.passed:
            break
        (gradient,) = torch.autograd.grad(target.sum(), x)
        x = (x.detach() - _FIRST_STEP * shrink**i * (high - low) * gradient.sign()).clamp(low, high)
        x = _project(x, low, high, problem.constraints)
    restart = best_value.argmin(1, keepdim=True)
    chosen = best.gather(1, restart[..., None].expand(-1, -1, -1, best.shape[-1]))[:, 0]
    return chosen, best_value.gather(1, restart)[:, 0]


def _starts(
    network: Network, problem: Problem, params: Params, attack: Attack, transform: str, aim: AttackAim, count: int
) -> Tensor:
    """(K, S, N, n): the centre, then the best of a pool of random points, every other of which is drawn to the corners.

    Networks with dead units are flat over most of a large box: without the pool, gradients are zero at every start.
    """
    low, high = inner_box(problem)
    generator = torch.Generator().manual_seed(attack.seed)  # of the CPU: the same starts on every device
    rounds = []
    for _ in range(attack.pool):
        # the same shares for all items and all sets of weights: what is found for one must not depend on the others
        shape = (1, attack.restarts, 1, low.shape[-1])
        share = torch.rand(shape, generator=generator, dtype=low.dtype).to(low.device)
        share[:, ::2] = (share[:, ::2] * 3 - 1).clamp(0, 1)
        x = _project((low + (high - low) * share).clamp(low, high), low, high, problem.constraints, _POOLED)
        x = x.expand(count, -1, -1, -1)
        with torch.no_grad():
            value = violation(network, problem, params, x, transform, aim) if attack.pool > 1 else x[..., 0]
        rounds.append((x, value))
        if attack.deadline.passed:
            break
    x, value = (torch.cat(parts, 1) for parts in zip(*rounds, strict=True))
    if attack.pool > 1:
        chosen = value.topk(attack.restarts, dim=1, largest=False).indices
        x = x.gather(1, chosen[..., None].expand(-1, -1, -1, x.shape[-1]))
        x = _project(x, low, high, problem.constraints)
    middle = _project(((low + high) / 2).clamp(low, high)[None], low, high, problem.constraints)
    return torch.cat([middle.expand(count, 1, -1, -1), x[:, 1:]], 1)


def inner_box(problem: Problem) -> tuple[Tensor, Tensor]:
    """The inner boxes; where one holds no float64 (x == 0.1), the nearest one."""
    empty = problem.inner_lower > problem.inner_upper
    middle = (problem.lower + problem.upper) / 2
    return torch.where(empty, middle, problem.inner_lower), torch.where(empty, middle, problem.inner_upper)


def violation(
    network: Network, problem: Problem, params: Params, x: Tensor, transform: str, aim: AttackAim = "each"
) -> Tensor:
    """(K', S, N): min over the cases of the max over their rows of a.y + g.x - b; <= 0 is a violation.

    More than 0 where x misses a constraint of its item. For the aim "common" see `run`.
    """
    return _objective(network, problem, params, x, transform, aim)[0]


def _objective(
    network: Network, problem: Problem, params: Params, x: Tensor, transform: str, aim: AttackAim
) -> tuple[Tensor, Tensor]:
    """The violation, and what to descend on: the sum of the rows that do not hold yet, of the nearest case.

    The gradient of the maximum alone sees one row at a time and jumps between rows.
    """
    count, restarts, items, size = x.shape
    flat = x.reshape(count, restarts * items, size)
    y = transformed(evaluate(network, flat, params) if params else evaluate(network, flat), transform)
    y = over_networks(y, aim)
    rows = problem.rows
    value = (y.unflatten(1, (restarts, items))[..., None, :] * rows.outputs).sum(-1)
    if rows.inputs is not None:
        value = value + (x[..., None, :] * rows.inputs).sum(-1)
    scale = rows.outputs.abs().amax(-1).clamp(min=1e-300)
    value = ((value - rows.inner_bound) / scale).clamp(-1e30, 1e30)
    index = rows.case.expand(value.shape)
    worst = value.new_full((*value.shape[:-1], problem.cases + 1), -torch.inf)
    worst = worst.scatter_reduce(-1, index, value, "amax")[..., :-1]
    nearest, case = torch.where(problem.exists, worst, torch.inf).min(-1)
    chosen = index == case[..., None]
    target = torch.where(chosen, value.clamp(min=0), 0.0).sum(-1) + 0.1 * nearest.clamp(-1e30, 1e30)
    nearest = nearest.clamp(-1e30, 1e30)
    if aim == "common":
        nearest = target = _standardised(nearest)
    if problem.constraints is not None:  # a point outside violates nothing: it ranks behind those inside
        outside = (_excess(x.detach(), problem.constraints) > 0).any(-1)
        outside = outside | (_curved_excess(x.detach(), problem.constraints) > 0)
        nearest = torch.where(outside, nearest.clamp(min=0) + 1.0, nearest)
    return nearest, target


def over_networks(y: Tensor, aim: AttackAim) -> Tensor:
    """(K, ..) -> (1, ..): the mean of the sets, or the quantile of a level; for other aims y itself."""
    if aim == "mean":
        return y.mean(0, keepdim=True)
    if isinstance(aim, str):
        return y
    place = max(0, math.ceil(aim * len(y)) - 1)
    return y.sort(0).values[place : place + 1]


def _standardised(value: Tensor) -> Tensor:
    """(K, ..) -> (1, ..): mean over standard deviation; the share of values below 0 grows as it falls."""
    mean = value.mean(0, keepdim=True)
    deviation = ((value - mean) ** 2).mean(0, keepdim=True).clamp(min=1e-60).sqrt()
    return mean / deviation


def transformed(y: Tensor, transform: str) -> Tensor:
    """Outputs (.., m) as the query sees them: under the softmax or sigmoid that is asked for."""
    match transform:
        case "softmax":
            return torch.softmax(y, -1)
        case "sigmoid":
            return torch.sigmoid(y)
        case _:
            return y


def _project(x: Tensor, low: Tensor, high: Tensor, constraints: Constraints | None, rounds: int = 50) -> Tensor:
    """Averaged projections onto the violated half-spaces, then the box; exact for the box only.

    Where products are constrained, steps along the gradient of what they exceed follow.
    """
    if constraints is None:
        return x
    with torch.no_grad():
        norm = (constraints.inputs**2).sum(-1).clamp(min=1e-300)
        size = (torch.maximum(low.abs(), high.abs())[:, None] * constraints.inputs.abs()).sum(-1)
        for i in range(rounds):
            excess = _excess(x, constraints)
            if not bool((excess > 0).any()):
                break
            # beyond the face by more than the rounding to float32; not to the end, since an equality has no inside
            further = 1e-6 * size if i < rounds // 2 else 0.0
            active = (excess > 0).sum(-1, keepdim=True).clamp(min=1)
            step = torch.where(excess > 0, 1.2 * excess + further, 0.0) / norm
            x = (x - (step[..., None] * constraints.inputs).sum(-2) / active).clamp(low, high)
    for i in range(_CURVED if any(constraints.polynomials) else 0):
        x = x.detach().requires_grad_()
        excess = _curved_excess(x, constraints)
        if not bool((excess > 0).any()):
            break
        (slope,) = torch.autograd.grad(excess.sum(), x)
        length = 1.0 if i >= _CURVED // 2 else 1.0 + 1e-6  # beyond the surface, but for equalities
        step = length * excess.detach() / (slope**2).sum(-1).clamp(min=1e-300)
        x = (x.detach() - step[..., None] * slope).clamp(low, high)
    return x.detach()


def _excess(x: Tensor, constraints: Constraints) -> Tensor:
    """(.., N, Q): by how much each constraint on the inputs is missed, as far as float64 can tell."""
    return ((x[..., None, :] * constraints.inputs).sum(-1) - constraints.inner_bound).clamp(min=0)


def _curved_excess(x: Tensor, constraints: Constraints) -> Tensor:
    """(.., N): by how much the constraints with products are missed, all together."""
    total = torch.zeros_like(x[..., 0])
    for number in constraints.which.unique().tolist() if any(constraints.polynomials) else []:
        own = constraints.which == number
        for one in constraints.polynomials[number]:
            terms = [float(a) * x[..., own, :][..., list(inputs)].prod(-1) for a, inputs in one.terms]
            missed = (torch.stack(terms).sum(0) - float(one.bound)).clamp(min=0)
            total = total.masked_scatter(own.expand(total.shape), total[..., own] + missed)
    return total
