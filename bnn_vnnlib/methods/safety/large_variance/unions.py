"""What several rows of an item fail with at once: see `pairs` for the inequality."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.methods.safety.large_variance.pairs import PairsAtBoxes, both
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.system.clock import Deadline

WORTH = 3e-3
"""What the sum over rows exceeds its largest term by, at least: it cannot exceed the union by more."""

LEAST = 1e-4
"""Failure of a row, at least, that is looked at."""


def shared(
    layers: DenseChain, problem: Problem, outputs: Tensor, bound: Tensor, failures: Tensor, deadline: Deadline
) -> Tensor:
    """(N,): at least this much may be taken from the sum over cases of an item.

    The tree is a star: the row that fails most, joined with the others. Only cases of one row are looked at; the
    other ones are left out of the tree, which stays a forest.

    Parameters
    ----------
    outputs, bound : (N, R, m), (N, R): rows outputs . f(x) <= bound of which the cases are made
    failures : (N, R) upper bounds, at most 1, on the probabilities that they hold somewhere in the box
    """
    case = problem.rows.case.expand(failures.shape)
    heights = torch.cat([problem.total(torch.ones_like(failures)), failures.new_zeros(len(problem), 1)], 1)
    exists = torch.cat([problem.exists.expand(len(problem), -1), problem.exists.new_zeros(len(problem), 1)], 1)
    lone = (heights.gather(1, case) == 1) & exists.gather(1, case) & torch.isfinite(bound)
    values = torch.where(lone, failures, 0.0)
    most, hub = values.max(1, keepdim=True)
    worth = (values.sum(1, keepdim=True) - most > WORTH) & (most < 1)
    chosen = lone & worth & (values > LEAST)
    item, row = torch.nonzero(chosen.scatter(1, hub, torch.zeros_like(worth)), as_tuple=True)
    found = torch.zeros_like(failures[:, 0])
    if not len(item):
        return found
    pair = torch.stack([hub[item, 0], row], 1)
    lower, upper = (np.asarray(part.numpy(force=True), dtype=np.float64) for part in (problem.lower, problem.upper))
    rows, bounds = (part[item[:, None], pair].numpy(force=True) for part in (outputs, bound))
    question = PairsAtBoxes(lower, upper, rows, bounds, item.numpy(force=True))
    values = torch.as_tensor(both(layers, question, deadline), device=found.device)
    return found.index_add(0, item, values) * (1 - 1e-12)
