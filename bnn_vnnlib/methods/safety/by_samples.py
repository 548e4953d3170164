"""P_safe by weight samples: every sample is a deterministic network."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.deterministic import decide
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.safety import (
    Pass,
    SafetyBounds,
    Task,
    from_masses,
    last_of_each,
    nothing_known,
    unsafe_items,
)
from bnn_vnnlib.network.network import WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, feasible


def _serves(task: Task) -> str | None:
    return None if isinstance(task.posterior, WeightSamples) else "the posterior is not made of weight samples"


def _bounds(task: Task, known: SafetyBounds | None) -> SafetyBounds:
    """Every sample is a deterministic network: proved safe, proved to violate, or neither."""
    bounds, problem, posterior = task.bounds, task.problem, cast(WeightSamples, task.posterior)
    network, settings = bounds.engine.network, task.attack
    weights, probabilities = weight_sets.sample_weights(network, posterior, problem.lower.device)
    params = {name: weights.centers[name] for name in posterior.samples}
    smaller = replace(settings, restarts=min(settings.restarts, 8), pool=min(settings.pool, 8))  # S networks each
    points = attack.run(network, problem, params, smaller, bounds.transform)[0]  # (S, N, n)
    found = decide(bounds, weights, problem, points)
    points, unsafe = found.point, found.violated  # (S, N)
    safe = problem.all_items(found.safe)  # (S, I)
    usable = torch.stack([feasible(problem, x) for x in points])
    per_instance = problem.any_item(unsafe)
    proved, falsified = (_weight(probabilities, held) for held in (safe, per_instance))
    point, at_point = _common_point(bounds, weights, probabilities, problem, points, usable, unsafe)
    lower, upper = from_masses(proved, falsified)
    return replace(
        nothing_known(problem, points[0]), lower=lower, upper=upper, point=point, point_mass=at_point,
        violating=per_instance,
    ).named(SAMPLES.name)  # fmt: skip


SAMPLES: Method[Task, Pass] = Method("weight samples", _serves, _bounds)


def _weight(probabilities: Tensor, held: Tensor) -> Tensor:
    """Sum of the probabilities of the samples (S, I) that hold, rounded down; exactly 1 if all do."""
    total = (probabilities[:, None] * held).sum(0)
    total = total - 4 * (len(probabilities) + 4) * 2.0**-53
    return torch.where(held.all(0), torch.ones_like(total), total.clamp(0, 1))


def _common_point(
    bounds: OutputBounds, weights: WeightBoxes, probabilities: Tensor, problem: Problem, points: Tensor, usable: Tensor,
    unsafe: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """For each instance, the one point of those found at which the largest mass of samples violates, and that mass.

    Of an item's point it is known already that it violates under its own sample; the others need time.
    """
    heaviest = (probabilities[:, None] * unsafe).argmax(0)  # (N,): one candidate an item
    item = torch.arange(len(problem), device=points.device)
    candidate, ok = points[heaviest, item], usable[heaviest, item]
    violated = unsafe_items(bounds, weights, problem, candidate, ok)  # (S, N)
    violated[heaviest, item] |= unsafe[heaviest, item]
    mass = _weight(probabilities, violated)
    best = last_of_each(problem, torch.argsort(mass))
    return candidate[best], mass[best]
