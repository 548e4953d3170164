"""Boxes of weights: the second set, beside the input box, over which the engine bounds a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib.network.nodes import Param
from bnn_vnnlib.rounding import TINY, UNIT, down, finest, squared, squared_down, up


@dataclass(frozen=True, eq=False)
class ParamBox:
    """A parameter as a node sees it: |w - center| <= scale * spread + slack.

    center (K or 1, *shape); spread, slack (1, *shape) or None where they are zero; scale (K or 1, M or 1) is common
    to all parameters, so that nothing of the size of the weights is stored for each item.
    """

    center: Tensor
    spread: Tensor | None
    slack: Tensor | None

    @cached_property
    def size(self) -> Tensor:
        """|center|, the absolute values that rounding is relative to."""
        return self.center.abs()

    @cached_property
    def finest(self) -> Tensor:
        """(K or 1,): every center is a multiple of 2 to that power."""
        return finest(self.center)

    @cached_property
    def variance(self) -> Tensor:
        """Variances (1, *shape), rounded up, where the spread stands for standard deviations: its square."""
        return squared(self.center.new_zeros(1) if self.spread is None else self.spread)

    @cached_property
    def sure_variance(self) -> Tensor:
        """Variances (1, *shape), rounded down, where the spread stands for standard deviations: its square."""
        return squared_down(self.center.new_zeros(1) if self.spread is None else self.spread)

    @cached_property
    def total(self) -> Tensor:
        """Sum of all variances."""
        return self.variance.sum()


@dataclass(frozen=True, eq=False)
class _Addend:
    """A parameter that is added, aligned with nodes of some rank: (K or 1, M or 1, 1, .., *shape).

    center; radius, rounded up, or None if it is exact; lower, upper : its ends; magnitude : of what is added
    """

    center: Tensor
    radius: Tensor | None
    lower: Tensor
    upper: Tensor
    magnitude: Tensor


@dataclass(frozen=True, eq=False)
class WeightBoxes:
    """K boxes of weights, the radius of which may differ from item to item by one factor.

    Attributes
    ----------
    centers : source tensor name -> (K or 1, *shape) float64
    spreads : source tensor name -> (*shape), the radius at scale 1; a tensor that is missing is exactly its center
    scale : (K or 1, N or 1), >= 0
    """

    centers: Mapping[str, Tensor]
    spreads: Mapping[str, Tensor]
    scale: Tensor
    _cache: dict[Param, ParamBox] = field(default_factory=dict, repr=False)
    _addends: dict[tuple[Param, int], _Addend] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """K, the number of boxes."""
        return max([len(self.scale), *(len(center) for center in self.centers.values())])

    def scaled(self, scale: Tensor) -> WeightBoxes:
        """These boxes with another scale; shares the gathered parameters."""
        return WeightBoxes(self.centers, self.spreads, scale, self._cache)

    def to(self, dtype: torch.dtype) -> WeightBoxes:
        """These boxes, rounded to another floating type: for searches only."""
        centers, spreads = ({k: v.to(dtype) for k, v in part.items()} for part in (self.centers, self.spreads))
        return WeightBoxes(centers, spreads, self.scale.to(dtype))

    def items(self, rows: slice | Tensor) -> WeightBoxes:
        """The boxes of some items (columns of `scale`)."""
        return self if self.scale.shape[1] == 1 else self.scaled(self.scale[:, rows])

    def boxes(self, index: Tensor) -> WeightBoxes:
        """Some of the K boxes, in that order; repeats are allowed."""
        if self.count == 1:
            return self
        centers = {name: center if len(center) == 1 else center[index] for name, center in self.centers.items()}
        return WeightBoxes(centers, self.spreads, self.scale if len(self.scale) == 1 else self.scale[index])

    def param(self, param: Param) -> ParamBox:
        """Gather a node's parameter from its source.

        The factor times an entry is rounded once unless the factor is a sign; that rounding goes into the slack,
        and the spread is rounded up.
        """
        if param not in self._cache:
            self._cache[param] = self._gather(param)
        return self._cache[param]

    def addend(self, param: Param, rank: int) -> _Addend:
        """Gather a parameter that is added to a node of that rank, see `param`."""
        if (param, rank) not in self._addends:
            box = self.param(param)
            center, radius = aligned(box.center, rank), self._radius(box, rank)
            lower, upper = (center, center) if radius is None else (down(center - radius), up(center + radius))
            magnitude = (center.abs() if radius is None else center.abs() + radius) * (1 + 2 * UNIT)
            self._addends[param, rank] = _Addend(center, radius, lower, upper, magnitude)
        return self._addends[param, rank]

    def _radius(self, box: ParamBox, rank: int) -> Tensor | None:
        if box.spread is None and box.slack is None:
            return None
        total = self.scale.new_zeros(())
        if box.spread is not None:
            total = self.scale.reshape(*self.scale.shape, *(1,) * rank) * aligned(box.spread, rank)
        if box.slack is not None:
            total = total + aligned(box.slack, rank)
        return total * (1 + 4 * UNIT) + TINY

    def _gather(self, param: Param) -> ParamBox:
        """A parameter as its node sees it: entries, factors and slack of its source."""
        device, kind = self.scale.device, self.scale.dtype
        index = torch.as_tensor(param.index, device=device).reshape(-1)
        factor = torch.as_tensor(param.factor, dtype=kind, device=device)

        def entries(tensor: Tensor) -> Tensor:
            return tensor.reshape(len(tensor), -1)[:, index].reshape(len(tensor), *param.shape)

        center = entries(self.centers[param.source]) * factor
        slack = None if param.slack is None else torch.as_tensor(param.slack, dtype=kind, device=device)[None]
        if not bool((factor.abs() == 1).all()):
            rounded = UNIT * center.abs().amax(0, keepdim=True) + torch.finfo(kind).tiny
            slack = rounded if slack is None else slack + rounded
        spread = None
        if param.source in self.spreads:
            spread = entries(self.spreads[param.source][None]) * factor.abs() * (1 + 4 * UNIT)
        if slack is not None and not bool(slack.any()):
            slack = None
        return ParamBox(center, spread, None if slack is None else slack * (1 + 4 * UNIT))


def aligned(tensor: Tensor, rank: int) -> Tensor:
    """(K or 1, *shape) as part of nodes of that rank: (K or 1, 1, 1, .., *shape)."""
    k, *shape = tensor.shape
    return tensor.reshape(k, 1, *(1,) * (rank - len(shape)), *shape)
