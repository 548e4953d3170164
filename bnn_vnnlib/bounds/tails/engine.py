"""The one entrance to tail bounds: failure probabilities of rows over the boxes of many items."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds import linear
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails import run
from bnn_vnnlib.bounds.tails.run import SIDES, Deviations, Plan, Run, claimed
from bnn_vnnlib.bounds.tails.tail import deviations_of
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model.network import Network
from bnn_vnnlib.model.nodes import Constant


@dataclass(frozen=True)
class TailEngine:
    """Bounds rows of one network under a diagonal Gaussian, for all x of each item's box.

    Parameters
    ----------
    network : the graph
    deadline : checked between chunks; `clock.OutOfTime` is raised when it has passed
    """

    network: Network
    deadline: Deadline = Deadline()

    def failures(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        inputs: Tensor | None, bound: Tensor, budgets: Tensor,
    ) -> Tensor:  # fmt: skip
        """Upper bounds (K, N, R) on P(C y + G x <= bound for some x, on G), apart from P(not G) <= budgets[k].

        Parameters
        ----------
        means, deviations : one box each, at the posterior mean without and with spreads
        box : lower, upper (N, n)
        outputs, inputs : C (N or 1, R, m), G (N or 1, R, n) or None, exact
        bound : (N or 1, R)
        budgets : (K,) probabilities that the ranges of an item may fail
        """
        self.check(deviations)
        plan = self.plan(budgets)
        lower, upper = box
        step = self.chunk(len(budgets), outputs.shape[1])
        parts = []
        for start in range(0, len(lower), step):
            self.deadline.check()
            some = slice(start, start + step)
            shape = (len(budgets), *lower[some].shape)
            sides = Interval(lower[some].expand(shape), upper[some].expand(shape))
            found = Run(self.network, means, deviations, sides, plan)
            tail = found.tail(linear.some(outputs, some), None if inputs is None else linear.some(inputs, some))
            parts.append(tail.failure(linear.some(bound, some)))
        return torch.cat(parts, 1) if parts else lower.new_zeros(len(budgets), 0, outputs.shape[1])

    def plan(self, budgets: Tensor) -> Plan:
        """Equal shares of the budgets for all events."""
        places = claimed(self.network)
        count = SIDES * sum(math.prod(self.network.nodes[position].shape) for position in places)
        share = budgets.cpu().numpy() / max(count, 1) * (1 - 1e-12)
        one, half = (budgets.new_tensor(deviations_of(p))[:, None, None] for p in (share, share / 2))
        return Plan(dict.fromkeys(places, Deviations(one, half, one)))

    def check(self, deviations: WeightBoxes) -> None:
        """Refuse what tails do not serve."""
        for node in self.network.nodes:
            if isinstance(node, Constant) and node.value.source in deviations.spreads:
                raise UnsupportedError(
                    "tails do not serve a random tensor that is a branch of the graph", node=node.name
                )

    def chunk(self, budgets: int, rows: int) -> int:
        """Items at a time."""
        sizes = [math.prod(node.shape) for node in self.network.nodes]
        need = max([rows * max(sizes), *(2 * sizes[p] * max(sizes[: max(1, p - 1)]) for p in claimed(self.network))])
        return max(1, run.MEMORY // (budgets * need))
