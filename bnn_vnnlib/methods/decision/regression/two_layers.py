"""Regression with two hidden relu layers: values at points by characteristic functions, segments by bending.

Boxes with up to FREE free inputs are bounded by `stars`; nothing (-inf) is said about others.
The output is sum_i v_i E relu(zeta_i) + const with v the mean weights of the last layer, which is independent. Between
two points of a segment the row stays above the smaller end minus sum |v_i| times the interpolation errors of `bending`.
Segments are halved where that matters, in rounds, all items at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnn_vnnlib.gaussian.characteristic import Sums, expected_relu
from bnn_vnnlib.methods.decision.regression.bending import WIDER, interpolation_errors
from bnn_vnnlib.methods.decision.regression.stars import curvature, star_bound, star_points
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import UNIT, gamma
from bnn_vnnlib.system.clock import Deadline

Floats = NDArray[np.float64]

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

MEMORY = 2**18
"""Numbers (items x weights of the second layer) at once, at most about."""


@dataclass(frozen=True, eq=False)
class _Points:
    """x (P, n), bounds on E relu(zeta) (P, I) each, m and s of the first layer and their errors (P, K).

    blur (P, I) : what those errors, and slack, do to E relu(zeta)
    """

    x: Floats
    low: Floats
    high: Floats
    m: Floats
    s: Floats
    room: Floats
    blur: Floats

    def joined(self, other: _Points) -> _Points:
        return _Points(
            *(np.concatenate([getattr(self, k), getattr(other, k)]) for k in self.__dataclass_fields__)
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Rows:
    """v (N, R, I), its rounding error, and what is left besides the neurons and x: constant, inputs (N, R, n)."""

    v: Floats
    wrong: Floats
    constant: Floats
    paid: Floats
    inputs: Floats

    @property
    def negated(self) -> _Rows:
        """The same with the other sign."""
        return _Rows(-self.v, self.wrong, -self.constant, self.paid, -self.inputs)

    def at(self, points: _Points, owner: NDArray[np.intp], index: NDArray[np.intp]) -> Floats:
        """(A, R): lower bounds on the rows of the owners at points; -inf where NaN."""
        low, high, x = points.low[index, None], points.high[index, None], points.x[index, None]
        v, g = self.v[owner], self.inputs[owner]
        value = np.where(v > 0, v * low, v * high).sum(-1) + (g * x).sum(-1) + self.constant[owner]
        size = (np.abs(v) * high).sum(-1) + np.abs(g * x).sum(-1) + np.abs(self.constant[owner])
        terms = v.shape[-1] + x.shape[-1]
        value = value - (self.wrong[owner] * high).sum(-1) * (1 + 1e-9) - self.paid[owner] - gamma(2 * terms) * size
        return np.nan_to_num(value, nan=-np.inf)


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
        count, height = len(lower), outputs.shape[1]
        found = np.full((count, height), -np.inf)
        low, high = lower.cpu().numpy(), upper.cpu().numpy()
        bounded = np.isfinite(low).all(-1) & np.isfinite(high).all(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            rows = self._rows(outputs, inputs, count)
        free = (high > low).sum(-1)
        wide = (high - low > THIN * (1 + np.abs(low) + np.abs(high))) | (high == low)
        step = max(1, MEMORY // self._arrays[1]["mean"].size)
        for some, bound in ((free <= 1, self._segments), ((free > 1) & (free <= FREE) & wide.all(-1), self._stars)):
            index = np.flatnonzero(some & bounded)
            for part in (index[start : start + step] for start in range(0, len(index), step)):
                if self.deadline.passed:
                    break
                with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                    found[part] = bound(low[part], high[part], _of(rows, part))
        # numbers beyond all range end in nan, which says nothing
        return torch.as_tensor(np.nan_to_num(found, nan=-np.inf, posinf=-np.inf, neginf=-np.inf), device=lower.device)

    @cached_property
    def _arrays(self) -> list[dict[str, Floats]]:
        names = ("mean", "slack", "variance", "bias", "bias_slack", "bias_variance")
        return [{k: getattr(layer, k).cpu().numpy() for k in names} for layer in self.chain.layers]

    def _rows(self, outputs: Tensor, inputs: Tensor | None, count: int) -> _Rows:
        top, c = self._arrays[2], outputs.cpu().numpy()
        c = np.broadcast_to(c, (count, *c.shape[1:]))
        small, absolute = gamma(c.shape[-1] + 4), np.abs(c)
        n = self.chain.layers[0].inputs
        g = np.zeros((1, 1, n)) if inputs is None else inputs.cpu().numpy()
        return _Rows(
            c @ top["mean"], absolute @ (small * np.abs(top["mean"]) + top["slack"] * (1 + 1e-9)) + 1e-300,
            c @ top["bias"], absolute @ (small * np.abs(top["bias"]) + top["bias_slack"] * (1 + 1e-9)) + 1e-300,
            np.broadcast_to(g, (count, c.shape[1], n)),
        )  # fmt: skip

    def points(self, x: Floats) -> _Points:
        """Everything at points (P, n)."""
        first, second = self._arrays[0], self._arrays[1]
        m, s = x @ first["mean"].T + first["bias"], np.sqrt(x**2 @ first["variance"].T + first["bias_variance"])
        size = np.abs(x) @ np.abs(first["mean"]).T + np.abs(first["bias"]) + s
        room = gamma(2 * x.shape[1] + 16) * size + np.abs(x) @ first["slack"].T + first["bias_slack"]
        room = room * (1 + 1e-9) + 1e-140
        sig = np.sqrt(second["variance"])
        error = room + 16 * UNIT * (np.abs(m) + s)
        blur = 2 * error @ (np.abs(second["mean"]) + second["slack"] + sig).T + (np.abs(m) + s) @ second["slack"].T
        blur = (blur + 16 * UNIT * np.abs(second["bias"]) + second["bias_slack"]) * (1 + 1e-9)
        count, wide = len(x), len(second["bias"])

        def each(part: Floats) -> Floats:
            return np.repeat(part, wide, axis=0)

        sums = Sums(
            each(m), each(s), np.tile(second["mean"], (count, 1)), np.tile(sig, (count, 1)),
            np.tile(second["bias"], count), np.tile(np.sqrt(second["bias_variance"]), count), blur.reshape(-1),
        )  # fmt: skip
        low, high = expected_relu(sums)
        return _Points(x, low.reshape(count, wide), high.reshape(count, wide), m, s, room, blur)

    def _segments(self, low: Floats, high: Floats, rows: _Rows) -> Floats:
        """(N, R): rounds of halving; every segment that stops leaves its bound behind."""
        count = len(low)
        points = self.points(np.concatenate([low, high]))
        owner, left, right = np.arange(count), np.arange(count), np.arange(count) + count
        best = np.minimum(rows.at(points, owner, left), rows.at(points, owner, right))
        worst = np.maximum(rows.at(points, owner, left), rows.at(points, owner, right))
        finished, used = np.full_like(best, np.inf), np.full(count, 2)
        for turn in range(ROUNDS + 1):
            ends = np.minimum(rows.at(points, owner, left), rows.at(points, owner, right))
            value = ends - self._gaps(points, owner, left, right, rows)
            enough = best - ACCURACY * (worst - best) - 1e-7 * (1 + np.abs(best))
            keep = (value < enough[owner]).any(-1) & (used[owner] < POINTS)
            keep &= (turn < ROUNDS) and not self.deadline.passed
            keep &= (points.x[left] < points.x[right]).any(-1)
            np.minimum.at(finished, owner[~keep], value[~keep])
            if not keep.any():
                break
            owner, left, right = owner[keep], left[keep], right[keep]
            middle = len(points.x) + np.arange(len(owner))
            points = points.joined(self.points((points.x[left] + points.x[right]) / 2))
            at = rows.at(points, owner, middle)
            np.minimum.at(best, owner, at)
            np.maximum.at(worst, owner, at)
            np.add.at(used, owner, 1)
            owner, left, right = np.tile(owner, 2), np.concatenate([left, middle]), np.concatenate([middle, right])
        return finished

    def _gaps(
        self, points: _Points, owner: NDArray[np.intp], left: NDArray[np.intp], right: NDArray[np.intp], rows: _Rows
    ) -> Floats:
        """(A, R): how far a row may be below the smaller end of its segment."""
        first, second = self._arrays[0], self._arrays[1]
        difference = points.x[right] - points.x[left]
        axis = difference.argmax(-1)
        each = np.arange(len(axis))
        errors = interpolation_errors(
            (points.m[left], points.m[right]), (points.s[left], points.s[right]),
            np.maximum(points.room[left], points.room[right]),
            (points.x[left, axis], points.x[right, axis]), first["mean"].T[axis], first["variance"].T[axis],
            (second["mean"], second["slack"], np.sqrt(second["variance"]), np.sqrt(second["bias_variance"])),
        )  # fmt: skip
        errors = np.where((difference[each, axis] > 0)[:, None], errors, 0.0)
        errors = errors + 2 * np.maximum(points.blur[left], points.blur[right])  # slack of the first layer's slopes
        weight = np.abs(rows.v[owner]) + rows.wrong[owner]
        return np.asarray((weight * errors[:, None]).sum(-1) * (1 + 1e-9))

    def _stars(self, low: Floats, high: Floats, rows: _Rows) -> Floats:
        """(N, R): rounds of halving along the axis that costs most."""
        owner = np.arange(len(low))
        finished = np.full(rows.constant.shape, np.inf)
        best, worst = finished.copy(), -finished
        for turn in range(STAR_ROUNDS + 1):
            value, cost, seen = self._star(low, high, rows, owner)
            np.minimum.at(best, owner, seen.min(-1))
            np.maximum.at(worst, owner, seen.max(-1))
            enough = best - 10 * ACCURACY * (worst - best) - 1e-7 * (1 + np.abs(best))
            keep = (value < enough[owner]).any(-1)
            keep &= (turn < STAR_ROUNDS) and not self.deadline.passed
            np.minimum.at(finished, owner[~keep], value[~keep])
            if not keep.any():
                break
            axis = np.nan_to_num(cost[keep].max(1), nan=0.0, posinf=1e300).argmax(-1)
            owner, low, high = owner[keep], low[keep], high[keep]
            each, left, right = np.arange(len(owner)), high.copy(), low.copy()
            left[each, axis] = right[each, axis] = (low[each, axis] + high[each, axis]) / 2
            owner, low, high = np.tile(owner, 2), np.concatenate([low, right]), np.concatenate([left, high])
        return finished

    def _star(self, low: Floats, high: Floats, rows: _Rows, owner: NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
        """(A, R) bounds, (A, R, n) costs of the axes, (A, R, P) values seen."""
        first, second = self._arrays[0], self._arrays[1]
        x = star_points(low, high)
        count, number, n = x.shape
        points = self.points(x.reshape(-1, n))
        of_point = np.repeat(owner, number)
        index = np.arange(count * number)
        below, above = (
            np.moveaxis(side.reshape(count, number, -1), 1, 2)
            for side in (rows.at(points, of_point, index), -rows.negated.at(points, of_point, index))
        )
        # what is farther out than the star's points has at most n times their |x|
        room, blur = (part.reshape(count, number, -1).max(1) * (n + 3) for part in (points.room, points.blur))
        reach = (high - low) / 2 * WIDER
        weight = np.abs(rows.v[owner]) + rows.wrong[owner]
        whole = (weight * (curvature(first, second, low, high, reach, room) + 4 * blur)[:, None]).sum(-1)
        single = (reach[:, None] * np.eye(n)).reshape(-1, n)
        again = np.repeat(np.arange(count), n)
        along = curvature(first, second, low[again], high[again], single, room[again]).reshape(count, n, -1)
        along = np.einsum("ari,ani->arn", weight, along + 4 * blur[:, None])
        return *star_bound(below, above, along, whole), below


def _of(rows: _Rows, some: NDArray[np.intp]) -> _Rows:
    return _Rows(*(getattr(rows, k)[some] for k in rows.__dataclass_fields__))
