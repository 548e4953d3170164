"""Fixed weights (the mean network, or each of K samples): proved safe, proved to violate, or neither.

Guarantee: sound, rounding included, over real arithmetic on the stored weights; complete as far as `branch` is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnn_vnnlib.bounds.splits import kinks_of
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.safety.safety import unsafe_items
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, feasible
from bnn_vnnlib.problem.refute import before_softmax, refuted_cases, settled
from bnn_vnnlib.splitting.branch import Branching, Decided
from bnn_vnnlib.splitting.branch_neurons import NeuronBranching

MAX_BOXES, _MAX_PARTS = 2**14, 2**10
"""Boxes, or parts with signs, spent on one pair of a weight setting and an item where no time limit is given."""

MAX_SPLIT_INPUTS = 20
"""Inputs are split where no more than this vary, else neurons (and for expectations, nothing)."""


def decide_fixed(bounds: OutputBounds, weights: WeightBoxes, problem: Problem, points: Tensor) -> Decided:
    """Decide the items for one weight setting; points (1, N, n) were attacked and lie in their boxes."""
    problem = settled(bounds, weights, problem)
    return branched(bounds, weights, problem, look(bounds, weights, problem, points))


def look(bounds: OutputBounds, weights: WeightBoxes, problem: Problem, points: Tensor) -> Decided:
    """One pass over all K x N pairs, and a look at the attacked points (K, N, n), which lie in their boxes."""
    usable = torch.stack([feasible(problem, x) for x in points])
    violated = unsafe_items(bounds, weights, problem, points, usable)
    return Decided(refuted_cases(bounds, weights, problem).all(-1), violated, points)


def branched(bounds: OutputBounds, weights: WeightBoxes, problem: Problem, found: Decided, share: int = 1) -> Decided:
    """Branch and bound of the pairs that a first look left open.

    Parameters
    ----------
    share : of what is spent on a pair where no time limit is given, this part
    """
    open_ = ~(found.safe | found.violated)
    if not bool(open_.any()):
        return found
    bounds = before_softmax(bounds, problem)
    endless = bounds.engine.deadline.at is not None
    neurons = by_neurons(bounds, problem)
    for method, chosen, most in (
        (Branching, open_ & ~neurons, MAX_BOXES // share), (NeuronBranching, open_ & neurons, _MAX_PARTS // share),
    ):  # fmt: skip
        if bool(chosen.any()):
            found = found.met(method(bounds, weights, problem, chosen, None if endless else most).run())
    return found


def by_neurons(bounds: OutputBounds, problem: Problem) -> Tensor:
    """(N,): neurons are split instead of inputs, where many inputs vary and there are neurons to split."""
    free = (problem.lower < problem.upper).sum(-1)
    return (free > MAX_SPLIT_INPUTS) & (bounds.transform == "identity") & (kinks_of(bounds.engine.network).count > 0)
