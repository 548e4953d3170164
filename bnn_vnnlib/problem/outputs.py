"""Rows over what a query calls Y: the network's outputs, or their softmax or sigmoid.

The engine bounds rows over the outputs of the graph without its final Softmax; this module adds the last step.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bnn_vnnlib.bounds import exact
from bnn_vnnlib.bounds.activations import ACTIVATIONS
from bnn_vnnlib.bounds.engine import Engine, RowBounds
from bnn_vnnlib.bounds.functional import sigmoid_lower, softmax_lower
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import LinearForm, some
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.problem.problem import Problem, Rows
from bnn_vnnlib.rounding import down
from bnn_vnnlib.system.memory import at_once

Transform = Literal["identity", "softmax", "sigmoid"]

_PAIRS = 32
"""Up to this many classes, differences of all pairs of logits are bounded; beyond, the logits one by one."""


@dataclass(frozen=True)
class OutputBounds:
    """Lower bounds on c.Y + g.x, Y = transform(outputs of the graph)."""

    engine: Engine
    transform: Transform

    def rows(
        self, weights: WeightBoxes, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None,
        *, forms: bool = False,
    ) -> RowBounds:  # fmt: skip
        """Lower bounds of rows over the outputs (`Engine.rows`), or their transform; forms only without one."""
        if self.transform == "identity":
            return self.engine.rows(weights, lower, upper, outputs, inputs, forms=forms)
        bound = self._softmax if self.transform == "softmax" else self._sigmoid
        value = bound(weights, lower, upper, _by_box(outputs))
        if inputs is not None:
            value = down(value + over_box(inputs, lower, upper))
        return RowBounds(value, None, value.new_ones(*value.shape[:2], outputs.shape[-1]))

    def defined(self, weights: WeightBoxes, lower: Tensor, upper: Tensor, random: Collection[str] = ()) -> Tensor:
        """(K or 1, N or 1): the network is surely defined on the boxes (N, n) or (K, N, n); see `exact.defined`.

        An output that is not violates nothing, so that whoever claims a violation has to ask for this.

        Parameters
        ----------
        weights : K settings or boxes; what has a spread, and `random`, may be any real numbers
        """
        lower, upper = (side if side.dim() == 3 else side[None] for side in (lower, upper))
        names = [*weights.spreads, *random]
        return exact.defined(self.engine.network, weights, Interval(lower, upper), names)

    def ranges(self, weights: WeightBoxes, lower: Tensor, upper: Tensor, random: Collection[str] = ()) -> Interval:
        """(K or 1, N, m): closed ranges of Y that pay for no rounding where there is none (`bounds.exact`).

        Parameters
        ----------
        weights : K settings, without spreads; random : tensors whose entries may be any real numbers instead
        """
        lower, upper = (side if side.dim() == 3 else side[None] for side in (lower, upper))
        network = self.engine.network
        if self.transform == "softmax":
            m = network.signature.output_size
            high = lower.new_ones(1, lower.shape[1], m)
            return Interval(high if m == 1 else torch.zeros_like(high), high)
        step = at_once(16 * max(weights.count, len(lower)) * max(math.prod(node.shape) for node in network.nodes))
        ends = []
        for start in range(0, max(1, lower.shape[1]), step):
            box = Interval(lower[:, start : start + step], upper[:, start : start + step])
            y = exact.outputs(network, weights, box, random)
            if self.transform == "sigmoid":
                y = Interval(*ACTIVATIONS["sigmoid"].range(0.0, y.lower, y.upper))
            ends.append([side.expand(-1, box.lower.shape[1], -1) for side in (y.lower, y.upper)])
        return Interval(*(torch.cat(sides, 1) for sides in zip(*ends, strict=True)))

    def closed(
        self, weights: WeightBoxes, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None,
        random: Collection[str] = (),
    ) -> Tensor:  # fmt: skip
        """Lower bounds (K or 1, N, R) of rows by the `ranges` of Y.

        They hold for the rows over one network's outputs, and, since the ranges are convex, over expected outputs and
        over medians. A softmax lies in the simplex, on which a row is least at a corner, where one output is 1.
        """
        return self.over_ranges(self.ranges(weights, lower, upper, random), lower, upper, outputs, inputs)

    def over_ranges(
        self, y: Interval, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None
    ) -> Tensor:
        """Lower bounds (K, N, R) on rows, as `closed` gives them, from known ranges of the outputs."""
        lower, upper = (side if side.dim() == 3 else side[None] for side in (lower, upper))
        height, wide = outputs.shape[1], outputs.shape[-1] if inputs is None else outputs.shape[-1] + inputs.shape[-1]
        step = at_once(16 * max(len(y.lower), len(lower)) * height * wide)

        def part(start: int) -> Tensor:
            """Lower bounds (K, items, R) of the items from `start` on, as many as memory allows."""
            some_ = slice(start, start + step)
            rows = some(outputs, some_)
            if self.transform == "softmax":
                value = rows.amin(-1)[None]
            else:
                value = exact.least(rows, Interval(y.lower[:, some_], y.upper[:, some_]))
            if inputs is not None:
                box = Interval(lower[:, some_], upper[:, some_])
                value = exact.add_down(value, exact.least(some(inputs, some_), box))
            value = value.nan_to_num(-torch.inf, neginf=-torch.inf)  # what overflows is at least the largest number
            return value.expand(-1, lower[:, some_].shape[1], -1)

        return torch.cat([part(start) for start in range(0, max(1, lower.shape[1]), step)], 1)

    def _softmax(self, weights: WeightBoxes, lower: Tensor, upper: Tensor, outputs: Tensor) -> Tensor:
        """Differences to the class with the largest coefficient, then the exact minimum over their box."""
        m = outputs.shape[-1]
        if m > _PAIRS:
            low, high = self._logits(weights, lower, upper, m)
            return softmax_lower(outputs, low[:, :, None], high[:, :, None])
        low = self._differences(weights, lower, upper, m)
        high = -low.mT  # f_k - f_r = -(f_r - f_k)
        reference = outputs.argmax(-1)[..., None].expand(*low.shape[:2], -1, m)
        return softmax_lower(outputs, low.gather(2, reference), high.gather(2, reference))

    def _sigmoid(self, weights: WeightBoxes, lower: Tensor, upper: Tensor, outputs: Tensor) -> Tensor:
        low, high = self._logits(weights, lower, upper, outputs.shape[-1])
        return sigmoid_lower(outputs, low[:, :, None], high[:, :, None])

    def _logits(self, weights: WeightBoxes, lower: Tensor, upper: Tensor, m: int) -> tuple[Tensor, Tensor]:
        unit = torch.eye(m, dtype=torch.float64, device=lower.device)
        bound = self.engine.rows(weights, lower, upper, torch.cat([unit, -unit])[None]).lower
        return bound[..., :m], -bound[..., m:]

    def _differences(self, weights: WeightBoxes, lower: Tensor, upper: Tensor, m: int) -> Tensor:
        """(K, N, r, k): lower bounds of f_k - f_r; 0 on the diagonal."""
        if m == 1:
            return lower.new_zeros(max(weights.count, len(lower) if lower.dim() == 3 else 1), lower.shape[-2], 1, 1)
        unit = torch.eye(m, dtype=torch.float64, device=lower.device)
        pairs = unit[None] - unit[:, None]
        different = ~torch.eye(m, dtype=torch.bool, device=lower.device)
        bound = self.engine.rows(weights, lower, upper, pairs[different][None]).lower
        out = bound.new_zeros(*bound.shape[:2], m, m)
        out[..., different] = bound
        return out


def over_box(inputs: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Minimum of g.x over the boxes: (K or 1, N, R)."""
    lower, upper = (side if side.dim() == 3 else side[None] for side in (lower, upper))
    slope = _by_box(inputs)
    slope = slope.expand(max(len(slope), len(lower)), lower.shape[1], -1, -1)
    return LinearForm(slope, slope.new_zeros(slope.shape[:-1])).minimum(Interval(lower, upper))


def _by_box(rows: Tensor) -> Tensor:
    """(N or 1, R, ..) or (K, N, R, ..) -> (K or 1, N or 1, R, ..)."""
    return rows if rows.dim() == 4 else rows[None]


def outside(problem: Problem, lower: Tensor, upper: Tensor) -> Tensor:
    """(N,): no x of the box (N, n) satisfies the constraints on the inputs of its item."""
    extra = problem.constraints
    if extra is None:
        return torch.zeros(len(lower), dtype=torch.bool, device=lower.device)
    return extra.excluded(over_box(extra.inputs, lower, upper)[0]).any(-1) | extra.impossible(lower, upper)


def compares_classes(rows: Rows) -> Tensor:
    """(N or 1, R): rows a (Y_i - Y_j) <= 0 (or <) over the outputs alone.

    A softmax keeps the order of the classes, so that these rows mean the same over the logits.
    """
    outputs = rows.outputs
    difference = ((outputs != 0).sum(-1) == 2) & (outputs.amax(-1) == -outputs.amin(-1))
    found = difference & (rows.bound == 0) & (rows.inner_bound == 0)
    return found if rows.inputs is None else found & (rows.inputs == 0).all(-1)


def only_compares_classes(problem: Problem) -> bool:
    """Whether all rows of all items compare classes (`compares_classes`), and none is stated with inputs."""
    rows = problem.rows
    padding = rows.case >= problem.cases
    return rows.inputs is None and bool((compares_classes(rows) | padding).all())
