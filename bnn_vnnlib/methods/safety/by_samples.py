"""P_safe by weight samples: every sample is a deterministic network."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.deterministic import branched, look
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
from bnn_vnnlib.problem.problem import feasible
from bnn_vnnlib.problem.weight_sets import SampledWeights
from bnn_vnnlib.splitting.branch import Decided


def _serves(task: Task) -> str | None:
    return None if isinstance(task.posterior, WeightSamples) else "the posterior is not made of weight samples"


def _bounds(task: Task, known: SafetyBounds | None) -> SafetyBounds:
    """Every sample is a deterministic network: proved safe, proved to violate, or neither."""
    problem, posterior = task.problem, cast(WeightSamples, task.posterior)
    samples = SampledWeights.of(task.bounds.engine.network, posterior, problem.lower.device)
    found = _decided(task, samples)
    points, unsafe = found.point, found.violated  # (S, N, n), (S, N)
    per_instance = problem.any_item(unsafe)
    proved, falsified = (_weight(samples.share, held) for held in (problem.all_items(found.safe), per_instance))
    point, at_point = _common_point(task, samples, points, unsafe)
    lower, upper = from_masses(proved, falsified)
    return replace(
        nothing_known(problem, points[0]), lower=lower, upper=upper, point=point, point_mass=at_point,
        violating=per_instance,
    ).named(SAMPLES.name)  # fmt: skip


def _decided(task: Task, samples: SampledWeights) -> Decided:
    """Of all S x N pairs: a first look at every sample, then branch and bound of those that it left open.

    Samples are taken part by part. The time that is left is shared between the parts that are left, so that hard
    samples do not keep the run from the others.
    """
    bounds, problem, deadline = task.bounds, task.problem, task.bounds.engine.deadline
    low, high = attack.inner_box(problem)
    safe = torch.zeros(samples.count, len(problem), dtype=torch.bool, device=low.device)
    violated, point = safe.clone(), (low + (high - low) / 2).expand(samples.count, -1, -1).clone()

    def keep(index: Tensor, found: Decided) -> None:
        safe[index], violated[index], point[index] = found.safe, found.violated, found.point

    def first_look(index: Tensor) -> None:
        weights = samples.boxes(index)
        keep(index, look(bounds, weights, problem, _attacked(task, samples, weights)))

    deadline.reached(samples.parts(), first_look)
    open_ = (~(safe | violated)).any(1).nonzero()[:, 0].cpu()
    parts = samples.parts(open_) if len(open_) else ()
    for place, index in enumerate(parts):
        if deadline.passed:
            break
        engine = replace(bounds.engine, deadline=deadline.share(len(parts) - place))
        found = Decided(safe[index], violated[index], point[index])
        keep(index, branched(replace(bounds, engine=engine), samples.boxes(index), problem, found))
    return Decided(safe, violated, point)


def _attacked(task: Task, samples: SampledWeights, weights: WeightBoxes) -> Tensor:
    """(k, N, n): points at which the samples are the nearest to a violation."""
    params = {name: weights.centers[name] for name in samples.posterior.stored}
    settings = replace(task.attack, restarts=min(task.attack.restarts, 8), pool=min(task.attack.pool, 8))
    return attack.run(samples.network, task.problem, params, settings, task.bounds.transform)[0]


SAMPLES: Method[Task, Pass] = Method("weight samples", _serves, _bounds)


def _weight(probabilities: Tensor, held: Tensor) -> Tensor:
    """Sum of the probabilities of the samples (S, I) that hold, rounded down; exactly 1 if all do."""
    total = (probabilities[:, None] * held).sum(0)
    total = total - 4 * (len(probabilities) + 4) * 2.0**-53
    return torch.where(held.all(0), torch.ones_like(total), total.clamp(0, 1))


def _common_point(task: Task, samples: SampledWeights, points: Tensor, unsafe: Tensor) -> tuple[Tensor, Tensor]:
    """For each instance, the one point of those found at which the largest mass of samples violates, and that mass.

    Of an item's point it is known already that it violates under its own sample; the others need time.
    """
    bounds, problem = task.bounds, task.problem
    heaviest = (samples.share[:, None] * unsafe).argmax(0)  # (N,): one candidate an item
    item = torch.arange(len(problem), device=points.device)
    candidate = points[heaviest, item]
    usable, violated = feasible(problem, candidate), torch.zeros_like(unsafe)

    def tried(index: Tensor) -> None:
        violated[index] = unsafe_items(bounds, samples.boxes(index), problem, candidate, usable)

    bounds.engine.deadline.reached(samples.parts(), tried)
    violated[heaviest, item] |= unsafe[heaviest, item]
    mass = _weight(samples.share, violated)
    best = last_of_each(problem, torch.argsort(mass))
    return candidate[best], mass[best]
