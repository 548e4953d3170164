"""What branch and bound over neurons starts from: systems of rows, and the ranges of the nodes at the roots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import RangeKey, Ranges
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.splitting.pairs import Pairs, scatter


@dataclass(frozen=True, eq=False)
class Targets:
    """T targets: root (T,), the pair; outputs (T, R, m), inputs (T, R, n) or None, bound, strict (T, R): its rows,
    padded with bound = inf.
    """

    root: Tensor
    outputs: Tensor
    inputs: Tensor | None
    bound: Tensor
    strict: Tensor


def targets_of(problem: Problem) -> Targets:
    """Every case of every item (item = root), with the item's constraints on the inputs as further rows."""
    rows, count, extra = problem.rows, len(problem), problem.constraints
    root, case = torch.nonzero(problem.exists.expand(count, -1), as_tuple=True)
    mask = rows.case.expand(count, -1)[root] == case[:, None]
    most = max(1, int(mask.sum(-1).max())) if len(root) else 1
    order = torch.argsort(~mask, dim=-1, stable=True)[:, :most]

    def of_target(tensor: Tensor) -> Tensor:
        picked = tensor.expand(count, *tensor.shape[1:])[root]
        return picked[torch.arange(len(root), device=root.device)[:, None], order]

    outputs, strict = of_target(rows.outputs), of_target(rows.strict)
    bound = torch.where(mask.gather(-1, order), of_target(rows.bound), torch.inf)
    inputs = None if rows.inputs is None else of_target(rows.inputs)
    if extra is None:
        return Targets(root, outputs, inputs, bound, strict)
    if inputs is None:
        inputs = outputs.new_zeros(*bound.shape, extra.inputs.shape[-1])
    return Targets(
        root,
        torch.nn.functional.pad(outputs, (0, 0, 0, extra.bound.shape[-1])),
        torch.cat([inputs, extra.inputs[root]], 1),
        torch.cat([bound, extra.bound[root]], 1),
        torch.cat([strict, extra.strict[root]], 1),
    )


def root_ranges(roots: Pairs) -> Ranges:
    """(Q, *shape): the ranges of every node over the boxes of Q pairs."""
    problem, engine = roots.problem, roots.bounds.engine
    out: dict[RangeKey, Tensor] = {}
    for settings, index in roots.grids:
        for part in index.split(engine.chunk(len(settings), 1), 1):
            engine.deadline.check()
            box = Interval(problem.lower[part], problem.upper[part])
            for key, tensor in engine.ranges(roots.weights.boxes(settings), box).tensors().items():
                out[key] = scatter(out.get(key), tensor, part, len(problem))
    return Ranges.of(out)
