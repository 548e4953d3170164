"""Bounds on P_safe = P_w(no case is violated by any x): tails, weight boxes or weight samples.

Guarantee: lower <= P_safe <= upper with probability 1 (no confidence level), rounding included.
Tails: see `bounds.tails`. Boxes: lower = mass of the union of boxes on which every case of every item is refuted;
upper = 1 - mass of the union of boxes on which one point of T violates one case for all weights of the box.
Samples: lower = sum of the probabilities of the samples that are proved safe; upper = 1 - sum of those with a point
that is proved to violate. Correlated weights: tails alone. Mixtures: see `components`.
Gaussian posteriors: one pass over all instances, and what it leaves undecided is refined (see `refine`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from bnn_vnnlib import attack
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.errors import SoundnessError, UnsupportedError
from bnn_vnnlib.methods.components import Component, by_components
from bnn_vnnlib.methods.safety.by_boxes import CentredBoxes, by_centred_boxes, by_scattered_boxes
from bnn_vnnlib.methods.safety.by_samples import by_samples
from bnn_vnnlib.methods.safety.large_variance.rows import WideBounds, wide_stack
from bnn_vnnlib.methods.safety.refine import Goal, Stage, refine
from bnn_vnnlib.methods.safety.refine_boxes import BoxSplitting
from bnn_vnnlib.methods.safety.refine_inputs import InputSplitting
from bnn_vnnlib.methods.safety.refine_points import ROUNDED_ZERO, MorePoints
from bnn_vnnlib.methods.safety.refine_tails import Tuning
from bnn_vnnlib.methods.safety.refine_wide import Wide
from bnn_vnnlib.methods.safety.safety import SafetyBounds, nothing_known
from bnn_vnnlib.methods.safety.tails import TailBounds, by_tails, tails_apply
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, Mixture, Posterior, WeightSamples
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.points import feasible
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.system.clock import Deadline

Means = Literal["both", "boxes", "tails"]
"""How a Gaussian posterior is bounded."""

SETTLED = 1e-6
"""Boxes are not tried where tails leave no more than this open."""

FEW = 100
"""Up to so many random weights, boxes are split where tails are, too: beyond, they do better only where the deviations
are so small that the box refutes the attacked point."""


def safety_bounds(
    bounds: OutputBounds, posterior: Posterior, problem: Problem, settings: Attack, deadline: Deadline, goal: Goal,
    *, means: Means = "both", boxes: str = "mean", number: int = 5, margin: float | None = None,
) -> SafetyBounds:  # fmt: skip
    """Bounds on P_safe for every instance, by the family of the posterior.

    Parameters
    ----------
    goal : the thresholds; bounds at the mean of a Gaussian posterior are refined where they decide neither
    means : for a Gaussian posterior: tails, boxes at the mean, or the better of both
    boxes, number : "sampled" takes `number` boxes around samples instead
    margin : of the boxes; None: searched (2.5 if sampled)

    Raises
    ------
    UnsupportedError : tails alone, where they do not serve the network and the property
    """
    found = _safety_bounds(
        bounds, posterior, problem, settings, deadline, goal, means=means, boxes=boxes, number=number, margin=margin
    )
    caseless = ~problem.any_item(problem.exists.any(-1).expand(len(problem)))
    return replace(found, lower=found.lower.masked_fill(caseless, 1.0))  # exactly: there is nothing to violate


def _safety_bounds(
    bounds: OutputBounds, posterior: Posterior, problem: Problem, settings: Attack, deadline: Deadline, goal: Goal,
    *, means: Means, boxes: str, number: int, margin: float | None,
) -> SafetyBounds:  # fmt: skip
    if isinstance(posterior, WeightSamples):
        return by_samples(bounds, posterior, problem, settings)
    if isinstance(posterior, Mixture):

        def solve(part: Component, until: Deadline, refined: bool) -> SafetyBounds:
            own = replace(part.bounds, engine=replace(part.bounds.engine, deadline=until))
            return safety_bounds(
                own, part.posterior, problem, replace(settings, deadline=until), until,
                goal if refined else Goal(0.0, 0.0), means=means, boxes=boxes,
                number=number, margin=margin,
            )  # fmt: skip

        return by_components(bounds, posterior, problem, deadline, goal, solve)
    if boxes == "sampled" and isinstance(posterior, GaussianDiagonal):
        width = 2.5 if margin is None else margin
        return by_scattered_boxes(bounds, posterior, problem, settings, number=number, margin=width)
    return _Gaussian(bounds, posterior, problem, settings, deadline, goal, means, margin).bounds()


class _Gaussian:
    """One run with tails and boxes at the mean."""

    def __init__(
        self, bounds: OutputBounds, posterior: Gaussian, problem: Problem, settings: Attack,
        deadline: Deadline, goal: Goal, means: Means, margin: float | None,
    ) -> None:  # fmt: skip
        self._bounds, self._posterior, self._problem = bounds, posterior, problem
        self._settings, self._deadline, self._goal = settings, deadline, goal
        network, device = bounds.engine.network, problem.lower.device
        suited = tails_apply(bounds, posterior, problem)
        self._means = means
        self._boxes: CentredBoxes | None = None
        self._tails: TailBounds | None = None
        if not isinstance(posterior, GaussianDiagonal):
            if not suited or means == "boxes":
                raise UnsupportedError("correlated weights are bounded by tails, which do not serve this question")
            self._tails = TailBounds(network, posterior, device, deadline, settings.precision)
            return
        centred = CentredBoxes(bounds, posterior, problem, deadline, margin)
        certain = centred.count == 0  # then a box is exact
        if means == "tails" and not suited:
            raise UnsupportedError("method tails does not serve this network and property; method auto does")
        self._boxes = centred if means != "tails" or certain else None
        if means != "boxes" and suited and not certain:
            self._tails = TailBounds(network, posterior, device, deadline, settings.precision)

    def bounds(self) -> SafetyBounds:
        """One pass, then refinement."""
        network, problem = self._bounds.engine.network, self._problem
        points, values = (part[0] for part in attack.run(network, problem, {}, self._settings, self._bounds.transform))
        usable = feasible(problem, points)
        found = nothing_known(problem, points)
        if self._tails is not None:
            found = found.better(by_tails(network, self._posterior, problem, points, usable, self._deadline))
        if self._boxes is not None:
            open_ = (found.lower < 1 - SETTLED) & (found.upper > SETTLED)
            hopeful = usable & (values <= ROUNDED_ZERO)
            found = found.better(by_centred_boxes(self._boxes, points, hopeful, open_, self._goal.safe))
        found = refine(found, self._goal, self._stages(points, values, usable), self._deadline)
        if bool((found.lower > found.upper).any()):
            raise SoundnessError("a lower bound on P_safe exceeds an upper one")
        return found

    def _stages(self, points: torch.Tensor, values: torch.Tensor, usable: torch.Tensor) -> list[Stage]:
        problem, tails, boxes = self._problem, self._tails, self._boxes
        stages: list[Stage] = []
        wanted = tails is not None and self._means == "both"
        stack = None
        if wanted and isinstance(self._posterior, GaussianDiagonal):
            stack = wide_stack(self._bounds, self._posterior, problem)
        wide = None if stack is None else WideBounds(stack, self._deadline)
        if wide is not None:
            stages.append(Wide(wide, problem, points, usable))
        stages.append(
            MorePoints(
                self._bounds, self._posterior, problem, points, values, tails, boxes, self._settings, self._deadline,
                wide,
            )
        )  # fmt: skip
        if boxes is not None and tails is not None and boxes.count > FEW:
            stages.append(BoxSplitting(boxes, points, self._goal.safe, only_likely=True))
        if tails is not None:
            stages.append(Tuning(tails, problem, nothing_known(problem, points)))
            stages.append(InputSplitting(self._bounds, tails, problem, nothing_known(problem, points), self._deadline))
        if boxes is not None and (tails is None or boxes.count <= FEW):
            stages.append(BoxSplitting(boxes, points, self._goal.safe))
        return stages
