"""What is free in a tail bound, tuned by gradient on the final probability: budget, shares, slopes.

Any choice is sound, so that nothing here is rounded with care; the bound is evaluated again with the plan that comes
out. Every item is tuned by itself: the steps of Adam are elementwise, and an item keeps its own best plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.tails.run import EVENTS, Deviations, Plan, powers
from bnn_vnnlib.bounds.tails.tail import Tail, deviations_of
from bnn_vnnlib.network.network import Network

LARGEST, SMALLEST = 0.3, 1e-14
"""Budgets of an item."""

_RATES = (0.2, 0.2, 0.06)
"""Steps of the logarithm of the budget, of those of the shares, and of the choice of slopes."""


@dataclass(eq=False)
class Tuning:
    """The parameters of M items.

    level (M,): logarithm of the budget; shares (M, E): logits of the shares of the E events;
    slopes, moves : activation -> (2, 1, M, *shape) in [0, 1], see `activations` and `smoothing`
    """

    network: Network
    places: list[int]
    level: Tensor
    shares: Tensor
    slopes: dict[int, Tensor]
    moves: dict[int, Tensor]

    def to(self, dtype: torch.dtype) -> Tuning:
        """The same parameters in another floating type."""
        slopes, moves = ({p: c.to(dtype) for p, c in part.items()} for part in (self.slopes, self.moves))
        return Tuning(self.network, self.places, self.level.to(dtype), self.shares.to(dtype), slopes, moves)

    @property
    def tensors(self) -> list[Tensor]:
        """All parameters."""
        return [self.level, self.shares, *self.choices]

    @property
    def choices(self) -> list[Tensor]:
        """Those between 0 and 1."""
        return [*self.slopes.values(), *self.moves.values()]

    def plan(self, *, rounded: bool) -> tuple[Plan, Tensor]:
        """The plan, and what it spends (M,)."""
        share = torch.softmax(self.shares, -1) * self.level.exp()[:, None]
        sizes = [EVENTS * math.prod(self.network.nodes[place].shape) for place in self.places]
        z = _rounded if rounded else _smooth
        found = {}
        for place, part in zip(self.places, share.split(sizes, -1), strict=True):
            size = part.shape[-1] // EVENTS
            sides, middle, near = part.split([2 * size, 2 * size, size], -1)
            levels = [{k: z(p / k) for k in powers(self.network)} for p in (sides, middle)]
            found[place] = Deviations(levels[0], levels[1], z(near))
        return Plan(found, dict(self.slopes), dict(self.moves), thorough=True), share.sum(-1) * (1 + 1e-10)


def tuned(
    tuning: Tuning, tail: Callable[[Plan], Tail], bound: Tensor, total: Callable[[Tensor], Tensor], steps: int,
    out_of_time: Callable[[], bool],
) -> None:  # fmt: skip
    """Descend on log(total failure of the rows + budget), and keep the best parameters of each item.

    Parameters
    ----------
    tail : from a plan to the tails of the rows
    total : from the rows' failures (1, M, R) to what they add up to (M,)
    """
    parameters = tuning.tensors
    for parameter in parameters:
        parameter.requires_grad_()
    rates = [*_RATES[:2], *[_RATES[2]] * len(tuning.choices)]
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=True)]
    descent = torch.optim.Adam(groups, betas=(0.9, 0.9))
    best, kept = torch.full_like(tuning.level, torch.inf), [p.detach().clone() for p in parameters]
    for step in range(steps + 1):
        plan, spent = tuning.plan(rounded=False)
        value = torch.log(total(tail(plan).log_failure(bound).clamp(max=0).exp()) + spent)
        with torch.no_grad():
            better = value < best
            best = torch.where(better, value, best)
            for parameter, keep in zip(parameters, kept, strict=True):
                keep.copy_(torch.where(_items(better, keep), parameter, keep))
        if step == steps or out_of_time():
            break
        gradients = torch.autograd.grad(value.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient.nan_to_num(0.0, 0.0, 0.0)
        descent.step()
        with torch.no_grad():
            tuning.level.clamp_(math.log(SMALLEST), math.log(LARGEST))
            for choice in tuning.choices:
                choice.clamp_(0, 1)
    with torch.no_grad():
        for parameter, keep in zip(parameters, kept, strict=True):
            parameter.requires_grad_(False).copy_(keep)


def _items(mask: Tensor, parameter: Tensor) -> Tensor:
    """Align (M,) with a parameter."""
    if parameter.dim() <= 2:
        return mask.reshape(-1, *(1,) * (parameter.dim() - 1))
    return mask.reshape(1, 1, -1, *(1,) * (parameter.dim() - 3))


def _smooth(probability: Tensor) -> Tensor:
    return -torch.special.ndtri(probability.clamp(1e-290, 0.5))[None]


def _rounded(probability: Tensor) -> Tensor:
    """The share may be off by a few units of roundoff, which the sum of what is spent makes up for."""
    return probability.new_tensor(deviations_of(probability.cpu().numpy() * (1 - 1e-12)))[None]
