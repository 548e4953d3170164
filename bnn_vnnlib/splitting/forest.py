"""Forests of input boxes: each item of a problem is a root, a box is split into two, and failures add up.

P(some x of a box violates) is at most the box's own bound, and at most the sum over its halves: a tree counts as the
least of both, at every node. So a split that does not pay costs nothing, and the total never grows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.rounding import TINY, UNIT


class Forest:
    """Boxes (P) of N items with upper bounds on their probabilities of being violated.

    Parameters
    ----------
    problem : the items
    own : (N,) bounds of the items' boxes
    """

    def __init__(self, problem: Problem, own: Tensor) -> None:
        index = torch.arange(len(problem), device=own.device)
        self.problem = problem
        self.item, self.lower, self.upper, self.own = index, problem.lower, problem.upper, own
        self._depth = torch.zeros_like(index)
        self._first = torch.full_like(index, -1)  # the first of the two halves, which follow each other
        self._stuck = torch.zeros_like(index, dtype=torch.bool)

    def __len__(self) -> int:
        return len(self.item)

    @property
    def instance(self) -> Tensor:
        """(P,)."""
        return self.problem.instance[self.item]

    @property
    def leaf(self) -> Tensor:
        """(P,): boxes without halves."""
        return self._first < 0

    def boxes(self, index: Tensor) -> Problem:
        """Some boxes as items, in the instances of theirs."""
        return replace(self.problem.items(self.item[index]), lower=self.lower[index], upper=self.upper[index])

    def worst(self, among: Tensor, most: Tensor) -> Tensor:
        """Of each chosen instance (I,) the leaves that matter most, `most` (I,) of them or fewer: down to a tenth of
        the largest bound.

        Equal bounds are taken in the order of their making, so that the larger boxes come first.
        """
        usable = self.leaf & ~self._stuck & among[self.instance]
        own = torch.where(usable, self.own, 0.0)
        largest = own.new_zeros(len(among)).scatter_reduce(0, self.instance, own, "amax")
        index = torch.nonzero(usable & (own >= 0.1 * largest[self.instance]))[:, 0]
        index = index[torch.argsort(own[index], descending=True, stable=True)]
        index = index[torch.argsort(self.instance[index], stable=True)]
        count = torch.bincount(self.instance[index], minlength=len(among))
        start = count.cumsum(0) - count
        rank = torch.arange(len(index), device=index.device) - start[self.instance[index]]
        return index[rank < most[self.instance[index]]]

    def halves(self, index: Tensor, steepness: Tensor) -> tuple[Tensor, Problem]:
        """Cut boxes where steepness (P', n) times width is the largest: those (P'') that can be cut, and their halves.

        The halves (2 P'') are: all first ones, then all second ones. See `grow`.
        """
        low, high = self.lower[index], self.upper[index]
        width = high - low
        middle = low + width / 2
        possible = (low < middle) & (middle < high)
        axis = torch.where(possible, (steepness + TINY) * width, -1.0).argmax(-1, keepdim=True)
        cut = possible.any(-1)
        self._stuck[index[~cut]] = True
        at = middle.gather(-1, axis)
        lower = torch.cat([low[cut], low.scatter(-1, axis, at)[cut]])
        upper = torch.cat([high.scatter(-1, axis, at)[cut], high[cut]])
        index = index[cut]
        return index, replace(self.problem.items(self.item[index].repeat(2)), lower=lower, upper=upper)

    def grow(self, parent: Tensor, halves: Problem, own: Tensor) -> None:
        """Attach halves (2 P'', see `halves`) with their bounds."""
        count = len(parent)
        self._first[parent] = len(self) + 2 * torch.arange(count, device=own.device)
        order = torch.arange(2 * count, device=own.device).reshape(2, count).mT.flatten()
        self.item = torch.cat([self.item, self.item[parent].repeat_interleave(2)])
        self.lower = torch.cat([self.lower, halves.lower[order]])
        self.upper = torch.cat([self.upper, halves.upper[order]])
        self.own = torch.cat([self.own, own[order]])
        self._depth = torch.cat([self._depth, self._depth[parent].repeat_interleave(2) + 1])
        self._first = torch.cat([self._first, self._first.new_full((2 * count,), -1)])
        self._stuck = torch.cat([self._stuck, self._stuck.new_zeros(2 * count)])

    def roots(self) -> Tensor:
        """(N,) upper bounds on the probability that the item is violated: of its box and of all ways to split it."""
        value = self.own.clone()
        for depth in range(int(self._depth.max()) - 1, -1, -1):
            node = torch.nonzero((self._depth == depth) & ~self.leaf)[:, 0]
            first = self._first[node]
            value[node] = torch.minimum(value[node], (value[first] + value[first + 1]) * (1 + 2 * UNIT))
        return value[: len(self.problem)]
