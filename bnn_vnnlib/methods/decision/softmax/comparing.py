"""Classes that keep their order, by margins instead of expected probabilities.

Guarantee: sound with probability 1, rounding included.
Method: D_i > D_j wherever E(f_i - f_j) > v_i + v'_j (`one_layer`), and E(f_i - f_j) falls short of the margin of the
mean network by at most sum_k (dW_k)^- sup (G_k - relu(m_k)). So the deterministic verifier, asked whether the mean
network keeps that much distance, proves the order; its failure proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.walk import completed
from bnn_vnnlib.methods.decision.softmax.method import FEW, SPLIT
from bnn_vnnlib.methods.decision.softmax.one_layer import OneLayerSoftmax
from bnn_vnnlib.methods.deterministic import decide
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds, compares_classes
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.rounding import UNIT
from bnn_vnnlib.splitting.minimise import Look, minimise
from bnn_vnnlib.system.memory import at_once


@dataclass(frozen=True, eq=False)
class MeanNetwork:
    """A criterion (see `decision.method.Steps`) for one hidden layer."""

    bounds: OutputBounds
    source: OneLayerSoftmax

    name: ClassVar[str] = "comparison of classes"

    def false_rows(self, problem: Problem) -> Tensor:
        """(N, R): rows a (Y_i - Y_j) <= 0 that are false because D_i > D_j on the whole item."""
        return self._suits(problem) & (self._needed(problem)[0] > 0)

    def refuted(self, problem: Problem) -> Tensor:
        """(N,): by splitting inputs where they are few, else by the verifier of fixed weights on the mean network."""
        few = (problem.lower < problem.upper).sum(-1) <= FEW
        out = torch.zeros_like(few)
        for chosen, decided in ((few, self._by_inputs), (~few, self._by_neurons)):
            index = torch.nonzero(chosen)[:, 0]
            if len(index):
                out[index] = decided(problem.items(index))
        return out

    def _by_inputs(self, problem: Problem) -> Tensor:
        """Every row for itself."""
        spare, _ = self._needed(problem)
        suits = self._suits(problem)
        first, second = _classes(problem)
        item, row = torch.nonzero(suits & (spare <= 0), as_tuple=True)

        def bound(target: Tensor, low: Tensor, high: Tensor) -> Look:
            pair = (side[item[target], row[target], None] for side in (first, second))
            found = self.source.comparisons(low, high, *pair)
            return Look(found.spare, found.margin.slope, low, high)

        known, deadline = spare[item, row, None], self.bounds.engine.deadline
        boxes = problem.lower[item], problem.upper[item]
        spare[item, row] = minimise(bound, None, *boxes, known, SPLIT, deadline, torch.zeros_like(known))[:, 0]
        return problem.refuted(suits & (spare > 0)).all(-1)

    def _by_neurons(self, problem: Problem) -> Tensor:
        """Rows that this says nothing about, inputs included, become 0 <= 1, which no one refutes."""
        suits = self._suits(problem)
        if not bool(suits.any()):
            return suits.any(-1)
        _, needed = self._needed(problem)
        rows = problem.rows
        usable = suits & torch.isfinite(needed)
        sign = rows.outputs.sign().expand(*usable.shape, -1)
        outputs = torch.where(usable[..., None], sign, 0.0)
        bound = torch.where(usable, needed, 1.0)
        shifted = replace(
            problem, rows=replace(
                rows, outputs=outputs, inputs=None, bound=bound, inner_bound=bound, strict=torch.zeros_like(usable),
                case=rows.case.expand(usable.shape), origin=rows.origin.expand(usable.shape),
            ),
        )  # fmt: skip
        plain = replace(self.bounds, transform="identity")
        points = (problem.lower + problem.upper)[None] / 2
        mean = weight_sets.mean_weights(plain.engine.network, problem.lower.device)
        return decide(plain, mean, shifted, points).safe[0]

    def _suits(self, problem: Problem) -> Tensor:
        """(N, R)"""
        rows = problem.rows
        return (compares_classes(rows) & (rows.case < problem.cases)).expand(len(problem), -1)

    def _needed(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """(N, R) twice: what the margins have to spare, and what those of the mean network must exceed."""
        first, second = _classes(problem)
        step = at_once(4 * self.source.size)

        def compared(index: Tensor) -> tuple[Tensor, Tensor]:
            pair = first[index], second[index]
            found = self.source.comparisons(problem.lower[index], problem.upper[index], *pair)
            short = (
                self.source.mean_correction(found.neurons).flatten(1).gather(1, pair[0] * self.source.count + pair[1])
            )
            return found.spare, (found.needed + short) * (1 + 4 * UNIT)

        parts = torch.arange(len(problem), device=first.device).split(step)
        found = self.bounds.engine.deadline.reached(parts, compared)
        spare = completed([spare for spare, _ in found], first.shape, -torch.inf, problem.lower)
        return spare, completed([needed for _, needed in found], first.shape, torch.inf, problem.lower)


def _classes(problem: Problem) -> tuple[Tensor, Tensor]:
    """(N, R): i and j of rows a (Y_i - Y_j), a > 0."""
    outputs = problem.rows.outputs.expand(len(problem), -1, -1)
    return outputs.argmax(-1), outputs.argmin(-1)
