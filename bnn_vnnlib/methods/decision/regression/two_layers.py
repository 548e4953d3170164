"""Regression with two hidden relu layers: values at points by characteristic functions, segments by bending.

Boxes with up to FREE free inputs are bounded by `stars`; nothing (-inf) is said about others.
The output is sum_i v_i E relu(zeta_i) + const with v the mean weights of the last layer, which is independent. Between
two points of a segment the row stays above the smaller end minus sum |v_i| times the interpolation errors of `bending`.
Segments are halved where that matters, in rounds, all items at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.characteristic import expected_relu
from bnn_vnnlib.methods.decision.regression.bending import WIDER, interpolation_errors
from bnn_vnnlib.methods.decision.regression.one_layer import errors_at, sums_at
from bnn_vnnlib.methods.decision.regression.stars import curvature, star_bound, star_points
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import gamma
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

ACCURACY = 1e-3
"""Error of the interpolation, relative to how much a row varies over the item."""

ROUNDS = 12
"""Halvings."""

POINTS = 257
"""Points of one item, at most about."""

FREE = 6
"""Free inputs of a box, at most: each costs two points."""

STAR_ROUNDS = 3
"""Halvings of such a box."""

THIN = 1e-6
"""Widths below, relative to the size of x, are left alone: rounding of the center would matter."""


@dataclass(frozen=True, eq=False)
class _Points:
    """x (P, n), bounds on E relu(zeta) (P, I) each, m and s of the first layer and their errors (P, K).

    blur (P, I) : what those errors, and slack, do to E relu(zeta)
    """

    x: Tensor
    low: Tensor
    high: Tensor
    m: Tensor
    s: Tensor
    room: Tensor
    blur: Tensor

    def joined(self, other: _Points) -> _Points:
        return _Points(*(torch.cat(parts) for parts in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True, eq=False)
class _Rows:
    """v (N, R, I), its rounding error, and what is left besides the neurons and x: constant, inputs (N, R, n)."""

    v: Tensor
    wrong: Tensor
    constant: Tensor
    paid: Tensor
    inputs: Tensor

    @property
    def negated(self) -> _Rows:
        """The rows with the other sign."""
        return _Rows(-self.v, self.wrong, -self.constant, self.paid, -self.inputs)

    def of(self, some: Tensor) -> _Rows:
        """Those of some items."""
        return _Rows(*(part[some] for part in vars(self).values()))

    def at(self, points: _Points, owner: Tensor, index: Tensor) -> Tensor:
        """(A, R): lower bounds on the rows of the owners at points; -inf where NaN."""
        low, high, x = points.low[index, None], points.high[index, None], points.x[index, None]
        v, g = self.v[owner], self.inputs[owner]
        value = torch.where(v > 0, v * low, v * high).sum(-1) + (g * x).sum(-1) + self.constant[owner]
        size = (v.abs() * high).sum(-1) + (g * x).abs().sum(-1) + self.constant[owner].abs()
        terms = v.shape[-1] + x.shape[-1]
        value = value - (self.wrong[owner] * high).sum(-1) * (1 + 1e-9) - self.paid[owner] - gamma(2 * terms) * size
        return value.nan_to_num(-torch.inf, torch.inf, -torch.inf)


@dataclass(frozen=True, eq=False)
class TwoLayers:
    """Lower bounds for a chain of two relu layers."""

    chain: DenseChain
    deadline: Deadline

    name: ClassVar[str] = "closed forms"

    @staticmethod
    def serves(chain: DenseChain) -> bool:
        """Two layers of relu."""
        return len(chain.activations) == 2 and chain.kinds == {"relu"}

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) bounds on outputs.D(x) + inputs.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        found = lower.new_full((len(lower), outputs.shape[1]), -torch.inf)
        bounded = torch.isfinite(lower).all(-1) & torch.isfinite(upper).all(-1)
        rows = self._rows(lower, outputs, inputs)
        free = (upper > lower).sum(-1)
        wide = (upper - lower > THIN * (1 + lower.abs() + upper.abs())) | (upper == lower)
        step = at_once(64 * self.chain.layers[1].mean.numel())
        for some, bound in ((free <= 1, self._segments), ((free > 1) & (free <= FREE) & wide.all(-1), self._stars)):
            for part in torch.nonzero(some & bounded)[:, 0].split(step):
                if self.deadline.passed:
                    break
                if len(part):
                    found[part] = bound(lower[part], upper[part], rows.of(part))
        # numbers beyond all range end in nan or infinity, which say nothing
        return found.nan_to_num(-torch.inf, -torch.inf, -torch.inf)

    def _rows(self, lower: Tensor, outputs: Tensor, inputs: Tensor | None) -> _Rows:
        top, c = self.chain.layers[2], outputs.expand(len(lower), -1, -1)
        small, absolute = gamma(c.shape[-1] + 4), c.abs()
        g = torch.zeros_like(lower)[:, None] if inputs is None else inputs
        return _Rows(
            c @ top.mean, absolute @ (small * top.mean.abs() + top.slack * (1 + 1e-9)) + 1e-300,
            c @ top.bias, absolute @ (small * top.bias.abs() + top.bias_slack * (1 + 1e-9)) + 1e-300,
            g.expand(len(lower), c.shape[1], -1),
        )  # fmt: skip

    def points(self, x: Tensor) -> _Points:
        """Everything at points (P, n)."""
        first, second, _ = self.chain.layers
        sums = sums_at(first, second, x)
        m, s = (part[:: second.outputs] for part in (sums.m, sums.s))
        low, high, blur = (part.unflatten(0, (len(x), -1)) for part in (*expected_relu(sums), sums.blur))
        return _Points(x, low, high, m, s, errors_at(first, x, m, s), blur)

    def _segments(self, low: Tensor, high: Tensor, rows: _Rows) -> Tensor:
        """(N, R): rounds of halving; every segment that stops leaves its bound behind."""
        count = len(low)
        points = self.points(torch.cat([low, high]))
        owner = left = torch.arange(count, device=low.device)
        right = left + count
        ends = rows.at(points, owner, left), rows.at(points, owner, right)
        best, worst = torch.minimum(*ends), torch.maximum(*ends)
        finished, used = torch.full_like(best, torch.inf), torch.full_like(owner, 2)
        for turn in range(ROUNDS + 1):
            least = torch.minimum(rows.at(points, owner, left), rows.at(points, owner, right))
            value = least - self._gaps(points, owner, left, right, rows)
            enough = best - ACCURACY * (worst - best) - 1e-7 * (1 + best.abs())
            keep = (value < enough[owner]).any(-1) & (used[owner] < POINTS)
            keep &= (points.x[left] < points.x[right]).any(-1)
            if turn == ROUNDS or self.deadline.passed:
                keep = torch.zeros_like(keep)
            finished = _reduced(finished, owner[~keep], value[~keep], "amin")
            if not bool(keep.any()):
                break
            owner, left, right = owner[keep], left[keep], right[keep]
            middle = len(points.x) + torch.arange(len(owner), device=low.device)
            points = points.joined(self.points((points.x[left] + points.x[right]) / 2))
            at = rows.at(points, owner, middle)
            best, worst = _reduced(best, owner, at, "amin"), _reduced(worst, owner, at, "amax")
            used = used.index_add(0, owner, torch.ones_like(owner))
            owner, left, right = owner.repeat(2), torch.cat([left, middle]), torch.cat([middle, right])
        return finished

    def _gaps(self, points: _Points, owner: Tensor, left: Tensor, right: Tensor, rows: _Rows) -> Tensor:
        """(A, R): how far a row may be below the smaller end of its segment."""
        first, second, _ = self.chain.layers
        difference = points.x[right] - points.x[left]
        axis = difference.argmax(-1)
        ends = tuple(points.x[side].gather(1, axis[:, None])[:, 0] for side in (left, right))
        errors = interpolation_errors(
            (points.m[left], points.m[right]), (points.s[left], points.s[right]),
            torch.maximum(points.room[left], points.room[right]),
            (ends[0], ends[1]), first.mean.mT[axis], first.variance.mT[axis], second,
        )  # fmt: skip
        errors = torch.where(difference.gather(1, axis[:, None]) > 0, errors, 0.0)
        errors = errors + 2 * torch.maximum(points.blur[left], points.blur[right])  # slack of the first layer's slopes
        weight = rows.v[owner].abs() + rows.wrong[owner]
        return (weight * errors[:, None]).sum(-1) * (1 + 1e-9)

    def _stars(self, low: Tensor, high: Tensor, rows: _Rows) -> Tensor:
        """(N, R): rounds of halving along the axis that costs most."""
        owner = torch.arange(len(low), device=low.device)
        finished = torch.full_like(rows.constant, torch.inf)
        best, worst = finished, -finished
        for turn in range(STAR_ROUNDS + 1):
            value, cost, seen = self._star(low, high, rows, owner)
            best = _reduced(best, owner, seen.amin(-1), "amin")
            worst = _reduced(worst, owner, seen.amax(-1), "amax")
            enough = best - 10 * ACCURACY * (worst - best) - 1e-7 * (1 + best.abs())
            keep = (value < enough[owner]).any(-1)
            if turn == STAR_ROUNDS or self.deadline.passed:
                keep = torch.zeros_like(keep)
            finished = _reduced(finished, owner[~keep], value[~keep], "amin")
            if not bool(keep.any()):
                break
            axis = cost[keep].amax(1).nan_to_num(0.0, 1e300).argmax(-1, keepdim=True)
            owner, low, high = owner[keep], low[keep], high[keep]
            middle = ((low + high) / 2).gather(1, axis)
            low, high = (
                torch.cat([low, low.scatter(1, axis, middle)]), torch.cat([high.scatter(1, axis, middle), high])
            )  # fmt: skip
            owner = owner.repeat(2)
        return finished

    def _star(self, low: Tensor, high: Tensor, rows: _Rows, owner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(A, R) bounds, (A, R, n) costs of the axes, (A, R, P) values seen."""
        first, second, _ = self.chain.layers
        x = star_points(low, high)
        count, number, n = x.shape
        points = self.points(x.flatten(0, 1))
        of_point = owner.repeat_interleave(number)
        index = torch.arange(count * number, device=low.device)
        below, above = (
            side.unflatten(0, (count, number)).mT
            for side in (rows.at(points, of_point, index), -rows.negated.at(points, of_point, index))
        )
        # what is farther out than the star's points has at most n times their |x|
        room, blur = (part.unflatten(0, (count, number)).amax(1) * (n + 3) for part in (points.room, points.blur))
        reach = (high - low) / 2 * WIDER
        weight = rows.v[owner].abs() + rows.wrong[owner]
        whole = (weight * (curvature(first, second, low, high, reach, room) + 4 * blur)[:, None]).sum(-1)
        single = torch.diag_embed(reach).flatten(0, 1)
        again = torch.arange(count, device=low.device).repeat_interleave(n)
        along = curvature(first, second, low[again], high[again], single, room[again]).unflatten(0, (count, n))
        return *star_bound(below, above, weight @ (along + 4 * blur[:, None]).mT, whole), below


def _reduced(values: Tensor, owner: Tensor, new: Tensor, how: str) -> Tensor:
    """values (N, R) with the least (`amin`) or greatest (`amax`) of what `new` (A, R) has for each owner (A,)."""
    return values.scatter_reduce(0, owner[:, None].expand_as(new), new, how)
