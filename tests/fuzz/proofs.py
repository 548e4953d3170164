"""Branch and bound with its witnesses taken away: a wrong proof can no longer hide behind a violation found in time."""

from __future__ import annotations

import time
from unittest import mock

import numpy as np
import torch

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.splits import kinks_of
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import from_property
from bnn_vnnlib.splitting.branch import Branching, Pairs
from bnn_vnnlib.splitting.branch_neurons import NeuronBranching
from bnn_vnnlib.system.clock import Deadline
from fuzz.judge import CLEAR, Court

POINTS, MOST = 3000, 300


def nowhere(pairs: Pairs, x: torch.Tensor) -> torch.Tensor:
    """No point violates."""
    return torch.zeros(len(x), dtype=torch.bool)


def proof_evidence(court: Court, rng: np.random.Generator) -> str | None:
    """The mean network proved safe by splitting inputs or neurons, and a random point that violates."""
    network = court.model.network
    property = court.question.read(network.signature)
    if property.num_cases == 0 or court.transform != "identity":
        return None
    problem = from_property(property)
    x = np.concatenate(list(court.points(rng, POINTS)))
    violated = court.distance(x, court.outputs(torch.as_tensor(x), None)[0]) < -CLEAR
    if not violated.any() or court.confirmed({}, torch.as_tensor(x)[None], court.outputs(torch.as_tensor(x), None)) < 1:
        return None
    every = torch.ones(1, len(problem), dtype=torch.bool)
    weights = weight_sets.mean_weights(network)
    for method in (Branching, NeuronBranching):
        if method is NeuronBranching and kinks_of(network).count == 0:
            continue
        limit = Deadline(time.monotonic() + float(10 ** rng.uniform(-2, 0)))  # may end anywhere
        bounds = OutputBounds(Engine(network, "linear", limit), "identity")
        with mock.patch.object(Pairs, "violated", nowhere):
            found = method(bounds, weights, problem, every, MOST).run()
        if bool(found.safe.all()):
            return f"{method.__name__}: safe, and {int(violated.sum())} of {len(x)} random points violate"
    return None
