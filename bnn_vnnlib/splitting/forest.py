"""Forests of input boxes: each item of a problem is a root, a box is split into two, and failures add up.

P(some x of a box violates) is at most the box's own bound, and at most the sum over its halves: a tree counts as the
least of both, at every node. So a split that does not pay costs nothing, and the total never grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.rounding import UNIT
from bnn_vnnlib.splitting.frontier import Boxes


@dataclass(frozen=True, eq=False)
class _Nodes(Boxes):
    """own (P,) : bounds of the boxes themselves; depth (P,) : halvings that led here; first (P,) : the first of the
    two halves, which follow each other, or -1; stuck (P,) : no float lies inside.
    """

    own: Tensor
    depth: Tensor
    first: Tensor
    stuck: Tensor

    @staticmethod
    def leaves(boxes: Boxes, own: Tensor, depth: Tensor) -> _Nodes:
        none, no = torch.full_like(depth, -1), torch.zeros_like(depth, dtype=torch.bool)
        return _Nodes(boxes.owner, boxes.lower, boxes.upper, own, depth, none, no)


class Forest:
    """Boxes (P) of N items, which own them, with upper bounds on their probabilities of being violated.

    Parameters
    ----------
    problem : the items
    own : (N,) bounds of the items' boxes

    Attributes
    ----------
    nodes : all boxes, in the order of their making: first those of the items
    """

    def __init__(self, problem: Problem, own: Tensor) -> None:
        index = torch.arange(len(problem), device=own.device)
        self.problem = problem
        self.nodes = _Nodes.leaves(Boxes(index, problem.lower, problem.upper), own, torch.zeros_like(index))

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def instance(self) -> Tensor:
        """(P,) the instance that each part belongs to."""
        return self.problem.instance[self.nodes.owner]

    def boxes(self, index: Tensor) -> Problem:
        """Some boxes as items, in the instances of theirs."""
        return self._asked(self.nodes.pick(index))

    def _asked(self, boxes: Boxes) -> Problem:
        return replace(self.problem.items(boxes.owner), lower=boxes.lower, upper=boxes.upper)

    def worst(self, among: Tensor, most: Tensor) -> Tensor:
        """Of each chosen instance (I,) the leaves that matter most, `most` (I,) of them or fewer: down to a tenth of
        the largest bound.

        Equal bounds are taken in the order of their making, so that the larger boxes come first.
        """
        nodes = self.nodes
        usable = (nodes.first < 0) & ~nodes.stuck & among[self.instance]
        own = torch.where(usable, nodes.own, 0.0)
        largest = own.new_zeros(len(among)).scatter_reduce(0, self.instance, own, "amax")
        index = torch.nonzero(usable & (own >= 0.1 * largest[self.instance]))[:, 0]
        index = index[torch.argsort(own[index], descending=True, stable=True)]
        index = index[torch.argsort(self.instance[index], stable=True)]
        count = torch.bincount(self.instance[index], minlength=len(among))
        start = count.cumsum(0) - count
        rank = torch.arange(len(index), device=index.device) - start[self.instance[index]]
        return index[rank < most[self.instance[index]]]

    def split(self, index: Tensor, steepness: Tensor, failures: Callable[[Problem], Tensor]) -> None:
        """Halve boxes (P',) as `Boxes.halves` says, and bound the halves; a box that cannot be halved is left alone.

        Parameters
        ----------
        steepness : (P', n)
        failures : bounds (2 P'') of the halves, which are given as items; where time ends it, nothing is split
        """
        nodes = self.nodes
        halves, points = Boxes(index, nodes.lower[index], nodes.upper[index]).halves(steepness)
        nodes.stuck[points.owner] = True
        boxes = Boxes(nodes.owner[halves.owner], halves.lower, halves.upper)
        count, parent = len(halves) // 2, halves.owner[: len(halves) // 2]
        new = _Nodes.leaves(boxes, failures(self._asked(boxes)), nodes.depth[halves.owner] + 1)
        side_by_side = torch.arange(2 * count, device=index.device).reshape(2, count).mT.flatten()
        nodes.first[parent] = len(self) + 2 * torch.arange(count, device=index.device)
        self.nodes = nodes.join(new.pick(side_by_side))

    def roots(self) -> Tensor:
        """(N,) upper bounds on the probability that the item is violated: of its box and of all ways to split it."""
        nodes = self.nodes
        value = nodes.own.clone()
        for depth in range(int(nodes.depth.max()) - 1, -1, -1):
            node = torch.nonzero((nodes.depth == depth) & (nodes.first >= 0))[:, 0]
            first = nodes.first[node]
            value[node] = torch.minimum(value[node], (value[first] + value[first + 1]) * (1 + 2 * UNIT))
        return value[: len(self.problem)]
