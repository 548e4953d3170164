"""Linear lower bounds of functions over boxes, written from the centres of the boxes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.rounding import TINY, UNIT, gamma


@dataclass(frozen=True, eq=False)
class Lines:
    """f(x) >= value + slope . (x - center) for |x - center| <= radius: value (.., R), slope (.., R, n)."""

    value: Tensor
    slope: Tensor

    def reach(self, radius: Tensor) -> Tensor:
        """How far the line moves from its value over |x - center| <= radius (.., n), rounded up: (.., R)."""
        moved = (self.slope.abs() @ radius[..., None])[..., 0]
        return moved * (1 + gamma(2 * radius.shape[-1])) + TINY

    def minimum(self, radius: Tensor) -> Tensor:
        """(.., R), rounded down."""
        reach = self.reach(radius)
        return (self.value - reach - 2 * UNIT * (self.value.abs() + reach)).nan_to_num(-torch.inf, torch.inf)


def mixed(weights: Tensor, lines: Lines, radius: Tensor) -> Lines:
    """sum_l weights_rl lines_l, weights >= 0: (.., R, L) over lines (.., L) -> (.., R); roundings are paid for."""
    used = torch.where(weights > 0, weights, 0.0)
    value, slope = lines.value.nan_to_num(0.0), lines.slope.nan_to_num(0.0)
    size = value.abs() + lines.reach(radius).nan_to_num(0.0)
    total = (used @ value[..., None])[..., 0]
    error = 2 * gamma(2 * weights.shape[-1] + 8) * (used @ size[..., None])[..., 0] + TINY
    unusable = (used > 0) & ~torch.isfinite(lines.value)[..., None, :]
    return Lines(torch.where(unusable.any(-1), -torch.inf, total - error), used @ slope)
