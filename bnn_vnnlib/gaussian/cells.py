"""Boxes of independent standard normal numbers z: their masses, means, and the mass of half-spaces in them.

A cell is a box [l, u] of z (k,). With m_j = Phi(u_j) - Phi(l_j) its mass is the product of the m_j, and given that z
lies in it the z_j are independent with means (phi(l_j) - phi(u_j)) / m_j, which lie in [l_j, u_j].

Half-spaces (`half_space_mass`): P(z in the cell, a.z <= t) from above.
1. Let q be the coordinate in which a.z varies most over the cell. Every other one is cut into steps of equal size d of
   a_j z_j, as many as it takes, and a_j z_j is replaced by its least value on the step: the sum only falls, and with it
   the probability rises.
2. The sum of these is a multiple of d above its least value, and its law the convolution of the laws of the steps.
3. For each of its values s, P(a_q z_q <= t - s, l_q <= z_q <= u_q) is a difference of two values of Phi.
A coordinate loses a step, so the sum at most k - 1 of them: of `_STEPS`, which reach over the range of all other
coordinates together. Sums of nonnegative numbers are rounded up, and t is raised by what ends of steps are off by.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import cdf_above, cdf_below, density
from bnn_vnnlib.rounding import SPECIAL, TINY, UNIT, UP

_STEPS = 32
"""Steps d that the range of the sum of all coordinates but q is cut into; the sum loses at most k - 1 of them."""


def _interval_mass(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds on Phi(high) - Phi(low), 0 where high < low; of the smaller tails."""
    flip = low > 0
    a, b = torch.where(flip, -high, low), torch.where(flip, -low, high)
    least, most = cdf_below(b) - cdf_above(a), cdf_above(b) - cdf_below(a)
    empty = high < low
    return least.clamp(min=0.0).masked_fill(empty, 0.0), most.clamp(0.0, 1.0).masked_fill(empty, 0.0)


@dataclass(frozen=True, eq=False)
class Cells:
    """P cells. least, most (P,) : bounds on their masses; mean (P, k) : of z in them, up to `error` (P, k)."""

    least: Tensor
    most: Tensor
    mean: Tensor
    error: Tensor

    @staticmethod
    def of(low: Tensor, high: Tensor) -> Cells:
        """The cells that are boxes low <= z <= high (P, k), with bounds on their masses and means."""
        least, most = _interval_mass(low, high)
        size = density(low) + density(high)
        middle, half = (low + high) / 2, (high - low) / 2
        # the densities are off by units of exponents of up to z^2 / 2
        off = SPECIAL * (1 + torch.minimum(low.abs(), high.abs()) ** 2) * size + TINY
        mean = (density(low) - density(high)) / most.clamp(min=TINY)
        error = (off + mean.abs() * (most - least)) / least.clamp(min=TINY) + 8 * UNIT * (low.abs() + high.abs())
        known = torch.isfinite(mean) & (error < half)
        mean = torch.where(known, mean, middle).clamp(low, high)
        error = torch.where(known, error, half * (1 + 4 * UNIT))
        return Cells(least.prod(-1) / UP, (most.prod(-1) * UP + TINY).clamp(max=1.0), mean, error)


def half_space_mass(slope: Tensor, level: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(P,): upper bounds on P(z in the cell, slope . z <= level); slope, low, high (P, k), level (P,)."""
    ends = torch.stack([slope * low, slope * high])
    slack = (64 * UNIT * torch.maximum(low.abs(), high.abs()) * slope.abs()).sum(-1) + TINY
    room = level + slack - ends.amin(0).sum(-1)  # t less the least value of the sum
    reach = (ends[1] - ends[0]).abs()
    total = reach.sum(-1)
    most = (_interval_mass(low, high)[1].prod(-1) * UP + TINY).clamp(max=1.0)
    found = torch.where(room < -slack, 0.0, most)
    cut = torch.nonzero((room >= -slack) & (room < total) & torch.isfinite(total))[:, 0]
    if len(cut):
        part = _cut(slope[cut], room[cut] + slack[cut], low[cut], high[cut], reach[cut])
        found = found.index_put((cut,), torch.minimum(found[cut], part))
    return found


def _cut(slope: Tensor, room: Tensor, low: Tensor, high: Tensor, reach: Tensor) -> Tensor:
    """`half_space_mass`, where the hyperplane cuts the cell; room (P,) : from the least value of the sum on."""
    first = reach.argmax(-1, keepdim=True)
    step = reach.scatter(-1, first, 0.0).sum(-1, keepdim=True) / _STEPS  # (P, 1)
    law: Tensor | None = None
    order = reach.argsort(-1, descending=True)
    for place in order[:, 1:].unbind(-1):
        mine = place[:, None]
        law = _convolved(law, _steps(slope.gather(-1, mine), low.gather(-1, mine), high.gather(-1, mine), step))
    a, left, right = (part.gather(-1, first) for part in (slope, low, high))
    values = room[:, None]
    if law is not None:
        values = values - step * torch.arange(law.shape[1], dtype=step.dtype, device=step.device)
    # a z <= least a z + value, the least one being at the left end for a > 0
    distance = values / a.abs()
    lower = torch.where(a > 0, left, right - distance)
    upper = torch.where(a > 0, left + distance, right)
    mass = _interval_mass(torch.maximum(lower, left), torch.minimum(upper, right))[1]
    mass = mass.masked_fill(values < 0, 0.0)
    return (mass if law is None else law * mass).sum(-1) * UP + TINY


def _steps(slope: Tensor, low: Tensor, high: Tensor, step: Tensor) -> Tensor:
    """(P, STEPS + 2): upper bounds on the masses of the steps of one coordinate; slope, low, high, step (P, 1)."""
    edge = torch.arange(_STEPS + 3, dtype=step.dtype, device=step.device) * (step / slope.abs())
    edge = edge.nan_to_num(torch.inf, torch.inf)
    edge[:, 0], edge[:, -1] = 0.0, torch.inf  # whatever the size of a step: the last one holds what is left
    rising = slope >= 0
    ends = torch.where(rising, low + edge, high - edge)
    ends = torch.minimum(torch.maximum(ends, low), high)
    first, last = ends[:, :-1], ends[:, 1:]
    mass = _interval_mass(torch.minimum(first, last), torch.maximum(first, last))[1]
    return mass.masked_fill(edge[:, :-1] > (high - low) * (1 + 4 * UNIT), 0.0)


def _convolved(law: Tensor | None, other: Tensor) -> Tensor:
    """The law of a sum of two; each (P, steps)."""
    if law is None:
        return other
    padded = torch.nn.functional.pad(other, (law.shape[1] - 1, law.shape[1] - 1))
    windows = padded.unfold(1, law.shape[1], 1)  # (P, steps of both, steps of one)
    return (windows @ law.flip(-1)[..., None])[..., 0] * UP
