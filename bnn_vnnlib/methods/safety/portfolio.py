"""Bounds on P_safe = P_w(no case is violated by any x): the methods in their order, and what they give together.

Guarantee: lower <= P_safe <= upper with probability 1 (no confidence level), rounding included.
Tails: see `bounds.tails`. Boxes: lower = mass of the union of boxes on which every case of every item is refuted;
upper = 1 - mass of the union of boxes on which one point of T violates one case for all weights of the box.
Samples: lower = sum of the probabilities of the samples that are proved safe; upper = 1 - sum of those with a point
that is proved to violate. Correlated weights: tails alone. Mixtures: see `components`.
Each method that serves has one pass over what those before it leave open. Then what the passes leave undecided is
refined (see `refine`). On each side of each instance the tighter bound is kept, with the name of its method.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bnn_vnnlib.errors import SoundnessError, UnsupportedError
from bnn_vnnlib.methods.components import BY_COMPONENTS, BoundedComponent, by_components
from bnn_vnnlib.methods.method import Method, reasons
from bnn_vnnlib.methods.safety.by_cells import BY_CELLS, CellSplitting
from bnn_vnnlib.methods.safety.by_weights import CENTRED, SAMPLES, SCATTERED, boxes_of
from bnn_vnnlib.methods.safety.last_layer import BY_LAST_LAYER, LastLayerBounds, LastLayerSplitting, last_layer_of
from bnn_vnnlib.methods.safety.refine import (
    BY_LARGE_VARIANCE,
    BoxSplitting,
    InputSplitting,
    LargeVarianceItems,
    MorePoints,
    Stage,
    TunedItems,
    large_variance_of,
    refine,
)
from bnn_vnnlib.methods.safety.safety import CASELESS, NAMES, Goal, Pass, SafetyBounds, SafetyTask
from bnn_vnnlib.methods.safety.tails import TAILS, tails_of
from bnn_vnnlib.network.network import Mixture
from bnn_vnnlib.network.nodes import Gap
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.system.clock import Deadline

_FEW = 100
"""Up to so many random weights, boxes are split where tails are, too: beyond, they do better only where the deviations
are so small that the box refutes the attacked point."""


def _mixture_serves(task: SafetyTask) -> str | None:
    return None if isinstance(task.posterior, Mixture) else "the posterior is no mixture"


def _mixture(task: SafetyTask, known: SafetyBounds | None) -> SafetyBounds:
    """Bounds for a mixture: each component by all methods that serve it."""

    def solve(part: BoundedComponent, until: Deadline, refined: bool) -> SafetyBounds:
        own = replace(part.bounds, engine=replace(part.bounds.engine, deadline=until))
        return safety_bounds(
            replace(
                task, bounds=own, posterior=part.posterior, attack=replace(task.attack, deadline=until), deadline=until,
                goal=task.goal if refined else Goal(0.0, 0.0),
            )
        )  # fmt: skip

    return by_components(task, solve)


_PASSES: tuple[Method[SafetyTask, Pass], ...] = (
    SAMPLES,
    Method(BY_COMPONENTS, _mixture_serves, _mixture),
    SCATTERED,
    TAILS,
    BY_LAST_LAYER,
    CENTRED,
)
"""The methods that look at every instance, in their order."""

METHODS: tuple[Method[SafetyTask, Pass], ...] = (*_PASSES, BY_LARGE_VARIANCE, BY_CELLS)
"""The methods of P_safe. The last two take up to seconds an item, so that they are stages of the refinement only."""


def safety_bounds(task: SafetyTask) -> SafetyBounds:
    """Bounds on P_safe of every instance.

    Raises
    ------
    UnsupportedError : no method serves the posterior, the network and the property; the reasons are named
    """
    serving = [method for method in _PASSES if method.serves(task) is None]
    if not serving:
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons(_PASSES, task).items())
        raise UnsupportedError(f"no method for P_safe serves this question ({told})")
    last = last_layer_of(task)
    if last is not None and not last.linear:  # tails would spend time and probability on a body that has no noise
        many = weight_sets.random_count(task.bounds.engine.network, last.posterior) > _FEW
        left_out = {TAILS.name, CENTRED.name} if many else {TAILS.name}
        serving = [method for method in serving if method.name not in left_out]
    found = serving[0].bounds(task, None)
    for method in serving[1:]:
        found = method.bounds(task, found)
    found = refine(found, task.goal, _stages(task, last), task.deadline)
    if bool((found.lower > found.upper).any()):
        raise SoundnessError("a lower bound on P_safe exceeds an upper one")
    caseless = ~task.problem.any_item(task.problem.exists.any(-1).expand(len(task.problem)))
    by = torch.stack([found.by[0].masked_fill(caseless, NAMES.index(CASELESS)), found.by[1]])
    return replace(found, lower=found.lower.masked_fill(caseless, 1.0), by=by)  # exactly: there is nothing to violate


def _stages(task: SafetyTask, last: LastLayerBounds | None) -> list[Stage]:
    """What refines the bounds by tails and by boxes at the mean, in the order of the turns."""
    tails = tails_of(task) if TAILS.serves(task) is None else None
    known = tails if last is None or last.linear else last
    boxes = boxes_of(task) if CENTRED.serves(task) is None else None
    if tails is None and boxes is None:
        return []
    large_variance, (points, _, usable) = large_variance_of(task), task.attacked
    masses = [task.goal.safe] if task.goal.gap is None else [task.goal.safe, 1 - task.goal.gap]
    stages: list[Stage] = []
    if last is not None:
        stages.append(LastLayerSplitting(task, last))
    if large_variance is not None:
        stages.append(LargeVarianceItems(large_variance, task.problem, points, usable))
    if BY_CELLS.serves(task) is None:
        stages.append(CellSplitting(task))
    stages.append(MorePoints(task, known, boxes, large_variance))
    apart = any(isinstance(node, Gap) for node in task.bounds.engine.network.nodes)
    if boxes is not None and tails is not None and boxes.count > _FEW and not apart:  # of differences tails know more
        stages += [BoxSplitting(boxes, points, mass, only_likely=True) for mass in masses]
    if tails is not None and known is tails:
        stages.append(TunedItems(tails, task.problem, task.nothing))
    if known is not None:
        stages.append(InputSplitting(task, known))
    if boxes is not None and (tails is None or boxes.count <= _FEW):
        stages += [BoxSplitting(boxes, points, mass) for mass in masses]
    return stages
