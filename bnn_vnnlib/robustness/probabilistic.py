"""Bounds on P_safe = P_w(no case is violated by any x): tails, weight boxes or weight samples.

Guarantee: lower <= P_safe <= upper with probability 1 (no confidence level), rounding included.
Tails: see `bounds.tails`. Boxes: lower = mass of the union of boxes on which every case of every item is refuted;
upper = 1 - mass of the union of boxes on which one point of T violates one case for all weights of the box.
Samples: lower = sum of the probabilities of the samples that are proved safe; upper = 1 - sum of those with a point
that is proved to violate.
"""

from __future__ import annotations

from typing import Literal

from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model.network import GaussianDiagonal, WeightSamples
from bnn_vnnlib.robustness import attack, weight_sets
from bnn_vnnlib.robustness.attack import Attack
from bnn_vnnlib.robustness.by_boxes import by_centred_boxes, by_scattered_boxes
from bnn_vnnlib.robustness.by_samples import by_samples
from bnn_vnnlib.robustness.outputs import OutputBounds
from bnn_vnnlib.robustness.problem import Problem
from bnn_vnnlib.robustness.safety import SafetyBounds, feasible, nothing_known
from bnn_vnnlib.robustness.tails import by_tails, tails_apply

Means = Literal["both", "boxes", "tails"]
"""How a Gaussian posterior is bounded."""

ROUNDED_ZERO = 1e-9
"""Violations found by the attack in plain floating point count up to this; the bounds decide."""

SETTLED = 1e-6
"""Boxes are not tried where tails leave no more than this open."""


def safety_bounds(
    bounds: OutputBounds, posterior: GaussianDiagonal | WeightSamples, problem: Problem, settings: Attack,
    deadline: Deadline, *, means: Means = "both", boxes: str = "mean", number: int = 5, margin: float | None = None,
    first: float = 0.95,
) -> SafetyBounds:  # fmt: skip
    """Bounds on P_safe for every instance, by the family of the posterior.

    Parameters
    ----------
    means : for a Gaussian posterior: tails, boxes at the mean, or the better of both
    boxes, number : "sampled" takes `number` boxes around samples instead
    margin : of the boxes; None: searched (2.5 if sampled)
    first : the mass of the first box that is tried
    """
    if isinstance(posterior, WeightSamples):
        return by_samples(bounds, posterior, problem, settings)
    if boxes == "sampled":
        width = 2.5 if margin is None else margin
        return by_scattered_boxes(bounds, posterior, problem, settings, number=number, margin=width)
    points, values = (found[0] for found in attack.run(bounds.engine.network, problem, {}, settings, bounds.transform))
    usable = feasible(problem, points)
    found = nothing_known(problem, points)
    certain = weight_sets.random_count(bounds.engine.network, posterior) == 0  # then a box is exact
    suited = tails_apply(bounds, posterior, problem)
    if means == "tails" and not suited:
        raise UnsupportedError("method tails does not serve this network and property; method auto does")
    if means != "boxes" and suited and not certain:
        found = found.better(by_tails(bounds.engine.network, posterior, problem, points, usable, deadline))
    if means != "tails" or certain:
        hopeful = usable & (values <= ROUNDED_ZERO)
        open_ = (found.lower < 1 - SETTLED) & (found.upper > SETTLED)
        found = found.better(
            by_centred_boxes(bounds, posterior, problem, points, hopeful, open_, deadline, margin=margin, first=first)
        )
    return found
