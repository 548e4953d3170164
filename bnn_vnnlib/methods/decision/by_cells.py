"""The decision for few latent numbers: expectations and quantiles over cells of them, best first, of any graph.

Guarantee: sound with probability 1, rounding included; complete in the limit as far as linear bounds are.
1. On a cell C of the latent numbers and a box of x, row >= a.x + c.z + b (`methods.latents`), or row >= d. So at every
   x of the box E[row 1_C] >= P(C) (a.x + c.E[z | C] + b), or P(C) d: the better of both at the centre of the box.
2. Cells that cover [-REACH, REACH]^k add up, and with them their functions of x, which are minimised together.
3. What lies outside: probabilities are no less than a row's least value on their range; of other outputs
   |E[row 1_off]| <= sqrt(E row^2) sqrt(P(off)), with the norms of `by_weights`.
4. P(row <= v at x) is at most the sum over the cells of P(z in C, c.z <= v - b - least a.x), or 0 where v < d, plus
   what lies outside. Where that is less than alpha, no alpha-quantile of the row at x is v or less; those of the
   negated row are its (1 - alpha)-quantiles.
5. A cell counts for what its function leaves open at some places of it, times its mass; for quantiles, only where the
   row may be on either side of its own. Those that count most are cut in two where the slope of the row varies most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.cells import Cells, half_space_mass
from bnn_vnnlib.gaussian.normal import cdf_above
from bnn_vnnlib.methods.decision.method import Sampled, picked
from bnn_vnnlib.methods.latents import REACH, WEIGHTS, LatentBounds, halves
from bnn_vnnlib.rounding import TINY, UNIT, UP, gamma, up
from bnn_vnnlib.splitting.frontier import Items
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

_BATCH = 2**11
"""Cells that are cut between two looks at the clock, at most."""

_SHARE = 0.1
"""Cells wait that leave open less than this share of what the worst cell of their item does."""

# 1. Cells


@dataclass(frozen=True, eq=False)
class _Leaves(Items):
    """P cells of items.

    low, high (P, k); mass (P, 2) : least and most; value (P, R) and slope (P, R, v) : the better function at the centre
    of x and the mean of z, and along the inputs that vary; tilt (P, R, k) and level (P, R) : c and the least a.x + b;
    flat (P, R) : d; open (P,) : what the cell leaves open of its worst row, which is `row`
    """

    low: Tensor
    high: Tensor
    mass: Tensor
    value: Tensor
    slope: Tensor
    tilt: Tensor
    level: Tensor
    flat: Tensor
    open: Tensor
    row: Tensor


@dataclass(frozen=True, eq=False)
class CellTrees:
    """Cells of items, grown.

    Parameters
    ----------
    least : rows (N or 1, R, m) -> (N or 1, R), what they are on the outputs' whole range; None: outputs have no range
    tolerance : what may stay open of a row whose coefficients add up to 1; most : cells of an item
    patient : takes half of the time that is left, else as much as there is
    """

    latents: LatentBounds
    least: Callable[[Tensor], Tensor] | None
    deadline: Deadline
    tolerance: float
    most: int
    patient: bool = False

    def grown(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, at: tuple[Tensor, Tensor] | None = None
    ) -> _Leaves | None:
        """The cells that were grown for boxes (N, n) and rows (N or 1, R, m); None where time does not suffice for one
        cell each.

        at : quantiles (N, R) and deviations of the rows, estimated, near which cells count; None: they count everywhere
        """
        if self.patient:
            until = self.deadline.share(2)
            return replace(self, latents=self.latents.until(until), deadline=until, patient=False).grown(
                lower, upper, outputs, at
            )
        n, k = len(lower), self.latents.latents
        tree = _Tree(self, lower, upper, outputs, at)
        end, owner = lower.new_full((n, k), REACH), torch.arange(n, device=lower.device)
        width = outputs.shape[1] * (lower.shape[1] + k)
        most = min(self.most, at_once(width) * 4)
        whole = self.deadline.reached([owner], lambda index: tree.bounded(index, -end, end))
        if not whole:
            return None
        leaves = whole[0]
        while len(chosen := self._worst(leaves, n, most)):
            parts = chosen.split(min(_BATCH, at_once(8 * width)))
            found = tree.cuts(leaves, parts)
            stays = torch.ones(len(leaves), dtype=torch.bool, device=lower.device)
            for index in parts[: len(found)]:
                stays[index] = False
            leaves = leaves.pick(stays).join(*found)
            if len(found) < len(parts):
                break
        return leaves

    def _worst(self, leaves: _Leaves, items: int, most: int) -> Tensor:
        """Indices of the leaves to cut next."""
        owner = leaves.owner
        left = leaves.open.new_zeros(items).index_add(0, owner, leaves.open)
        count = torch.bincount(owner, minlength=items)
        worst = leaves.open.new_zeros(items).scatter_reduce(0, owner, leaves.open, "amax")
        wanted = (left > self.tolerance) & (count < most)
        index = torch.nonzero(wanted[owner] & (leaves.open >= _SHARE * worst[owner]) & (leaves.open > 0))[:, 0]
        return index[leaves.open[index].argsort(descending=True)]

    def beyond(self, like: Tensor) -> Tensor:
        """What lies outside of all cells, at most."""
        return 2 * self.latents.latents * cdf_above(like.new_tensor(-REACH)) * UP


@dataclass(frozen=True, eq=False)
class _Tree:
    """The boxes and rows that cells are bounded for, see `CellTrees.grown`."""

    trees: CellTrees
    lower: Tensor
    upper: Tensor
    outputs: Tensor
    at: tuple[Tensor, Tensor] | None

    @property
    def varying(self) -> Tensor:
        """The inputs that vary in some box, by their places."""
        return torch.nonzero((self.lower < self.upper).any(0))[:, 0]

    def cuts(self, leaves: _Leaves, parts: Sequence[Tensor]) -> list[_Leaves]:
        """The halves of some cells, part by part, as far as time suffices."""
        return self.trees.deadline.reached(parts, lambda index: self._cut(leaves.pick(index)))

    def _cut(self, leaves: _Leaves) -> _Leaves:
        owner, n = leaves.owner, self.lower.shape[-1]
        rows = self.outputs.expand(len(self.lower), -1, -1)[owner, leaves.row]
        low, high = (torch.cat([x[owner], z], -1) for x, z in ((self.lower, leaves.low), (self.upper, leaves.high)))
        bend = self.trees.latents.curvature(low, high, rows, None)[:, n:]
        axis = ((bend + 1e-3 * bend.amax(-1, keepdim=True) + TINY) * (leaves.high - leaves.low)).argmax(-1)
        return self.bounded(owner.repeat(2), *halves(leaves.low, leaves.high, axis))

    def bounded(self, owner: Tensor, low: Tensor, high: Tensor) -> _Leaves:
        """The cells low <= z <= high (P, k) of items `owner` (P,), with the functions below their rows (step 1)."""
        latents, n, rows = self.trees.latents, self.lower.shape[-1], picked(self.outputs, owner)
        x_low, x_high = self.lower[owner], self.upper[owner]
        left, right = torch.cat([x_low, low], -1), torch.cat([x_high, high], -1)
        (flat, form), cells = latents.rows(left, right, rows, None), Cells.of(low, high)
        self.trees.deadline.check()  # what it cut off is -inf
        slope, offset = form.slope[0], form.offset[0]
        if self.trees.least is not None:
            flat = torch.maximum(flat, picked(self.trees.least(self.outputs), owner))
        x = (x_low + x_high) / 2
        reach = torch.maximum(x_high - x, x - x_low) * (1 + 2 * UNIT)
        center, paid = torch.cat([x, cells.mean], -1), gamma(2 * left.shape[-1] + 8)
        size = (slope.abs() * center.abs()[:, None]).sum(-1) + offset.abs()
        moved = (slope[..., :n].abs() * reach[:, None]).sum(-1) * UP
        off = (slope[..., n:].abs() * cells.error[:, None]).sum(-1) * UP + paid * size
        value = ((slope * center[:, None]).sum(-1) + offset - off).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        level = (slope[..., :n] * x[:, None]).sum(-1) + offset - moved - paid * size
        by_form = value - moved > flat
        places = latents.places(left, right)
        linear = (places[..., None, :] * torch.where(by_form[..., None], slope, 0.0)).sum(-1)
        values = (latents.values(places)[..., None, :] * rows).sum(-1)
        counted = values.new_tensor(WEIGHTS)[:, None, None]
        gap = ((values - linear) * counted).sum(0) - torch.where(by_form, offset, flat)
        scale = rows.abs().sum(-1).clamp(min=TINY)
        if self.at is not None:
            middle, scale = (part[owner] for part in self.at)
            half = rows.shape[1] // 2  # the rows, then the negated rows
            above = -torch.cat([flat[:, half:], flat[:, :half]], 1)
            gap = torch.where((flat <= middle) & (middle <= above), gap, 0.0)
        open_, row = (gap * cells.most[:, None] / scale).nan_to_num(torch.inf, torch.inf, 0.0).clamp(min=0).max(-1)
        mass = torch.stack([cells.least, cells.most], -1)
        along = torch.where(by_form[..., None], slope[..., self.varying], 0.0)
        return _Leaves(
            owner, low, high, mass, torch.where(by_form, value, flat), along, slope[..., n:],
            level.nan_to_num(-torch.inf, -torch.inf, -torch.inf), flat, open_, row,
        )  # fmt: skip


# 2. Expectations


@dataclass(frozen=True, eq=False)
class CellExpectations:
    """A `RowMethod`: expected outputs, probabilities or values.

    norm : (lower, upper, rows) -> (N, R), at least sqrt(E row^2) on boxes
    """

    trees: CellTrees
    norm: Callable[[Tensor, Tensor, Tensor], Tensor]

    name: ClassVar[str] = "cells of weights"

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds on c.D(x) + g.x over boxes (N, n)."""
        leaves = self.trees.grown(lower, upper, outputs)
        n = len(lower)
        if leaves is None:
            return lower.new_full((n, outputs.shape[1]), -torch.inf)
        vary = torch.nonzero((lower < upper).any(0))[:, 0]
        x = (lower + upper) / 2
        reach = torch.maximum(upper - x, x - lower) * (1 + 2 * UNIT)
        least, most = leaves.mass[:, :1], leaves.mass[:, 1:]
        each = torch.where(leaves.value >= 0, leaves.value * least, leaves.value * most)
        each = each - 4 * UNIT * each.abs() - TINY
        width = (leaves.slope.abs() * reach[leaves.owner][:, None, vary]).sum(-1) * UP
        each = each - (most - least) * UP * width  # what the mass may differ from `least` by, along x

        def added(part: Tensor) -> Tensor:
            return part.new_zeros(n, *part.shape[1:]).index_add(0, leaves.owner, part)

        value, slope = added(each), lower.new_zeros(n, outputs.shape[1], lower.shape[1])
        slope[..., vary] = added(leaves.slope * least[..., None])
        size = added(each.abs() + most * width)
        if inputs is not None:
            value, slope = value + (inputs * x[:, None]).sum(-1), slope + inputs
            size = size + (inputs.abs() * (x.abs() + reach)[:, None]).sum(-1)
        value = value - (slope.abs() * reach[:, None]).sum(-1)
        beyond = self.trees.beyond(x)
        if self.trees.least is not None:
            value = value + (beyond * self.trees.least(outputs)).clamp(max=0.0)
        else:
            value = value - self.norm(lower, upper, outputs) * beyond.sqrt() * UP
        value = value - 2 * gamma(2 * len(leaves) + 2 * lower.shape[-1] + 16) * size - TINY
        return value.nan_to_num(-torch.inf, -torch.inf, -torch.inf)


# 3. Quantiles

_DOUBLINGS, _HALVINGS = 12, 16
"""Doublings away from the estimate and halvings back, in the search for v."""


@dataclass(frozen=True, eq=False)
class CellMedians:
    """A `median.MedianSource`.

    typical : estimates of quantiles and deviations, near which cells count; nothing rests on them
    quantile : alpha
    """

    trees: CellTrees
    typical: Sampled
    quantile: float = 0.5

    name: ClassVar[str] = "cells of weights"

    def sides(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P, 2 m): below all quantiles of f_j(x), then of -f_j(x), for all x of the boxes (P, n)."""
        center, m = (lower + upper) / 2, self.typical.network.signature.output_size
        middle = self.typical.quantile(center, self.quantile)
        spread = (self.typical.spread(center) + 1e-9 * (1 + middle.abs())).repeat(1, 2)
        unit, middle = torch.eye(m, dtype=lower.dtype, device=lower.device), torch.cat([middle, -middle], -1)
        leaves = self.trees.grown(lower, upper, torch.cat([unit, -unit])[None], (middle, spread))
        good, bad, away = torch.full_like(middle, -torch.inf), middle + spread, 1e-3 * spread
        if leaves is None:
            return good
        for _ in range(_DOUBLINGS):
            proved = self._proved(leaves, middle - away)
            good = torch.where(proved, torch.maximum(good, middle - away), good)
            bad = torch.where(proved, bad, torch.minimum(bad, middle - away))
            away = torch.where(proved, away, 3 * away)
            if bool((good > -torch.inf).all()):
                break
        for _ in range(_HALVINGS):
            tried = torch.where(good > -torch.inf, (good + bad) / 2, -torch.inf)
            proved = self._proved(leaves, tried)
            good, bad = torch.where(proved, tried, good), torch.where(proved, bad, tried)
        return good

    def _proved(self, leaves: _Leaves, value: Tensor) -> Tensor:
        """Whether `value` is proved below all quantiles, for items and rows (P, 2 m) (step 4)."""
        threshold = value[leaves.owner]
        index = torch.nonzero((threshold >= leaves.flat) & torch.isfinite(threshold))
        place, row = index.unbind(-1)
        level = up(threshold[place, row] - leaves.level[place, row])
        tilt = leaves.tilt[place, row]
        usable = torch.isfinite(level) & torch.isfinite(tilt).all(-1)
        mass = leaves.mass[place, 1]
        mass[usable] = half_space_mass(
            tilt[usable], level[usable], leaves.low[place][usable], leaves.high[place][usable]
        )
        total = torch.zeros_like(value).index_put((leaves.owner[place], row), mass, accumulate=True)
        half = value.shape[1] // 2
        needed = value.new_tensor([self.quantile, math.nextafter(1 - self.quantile, 0)]).repeat_interleave(half)
        return total * (1 + gamma(len(leaves))) + self.trees.beyond(value) < needed
