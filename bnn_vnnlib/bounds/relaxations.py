"""Planes around products and lines around maxima over boxes; the proofs that `linear` rests on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.rounding import TINY, UNIT


@dataclass(frozen=True, eq=False)
class Plane:
    """q x + p y - p q, for a corner (p, q) of the box of (x, y)."""

    p: Tensor
    q: Tensor


def planes(x: Interval, y: Interval) -> tuple[Plane, Plane]:
    """A plane below x y and one above, over a box (McCormick 1976).

    x y - (q x + p y - p q) = (x - p)(y - q) >= 0 for (p, q) = (lx, ly) and (ux, uy), where both factors have the same
    sign, and <= 0 for (ux, ly) and (lx, uy). Of two corners the one with the flatter plane is taken.
    """
    below = _flatter(Plane(x.lower, y.lower), Plane(x.upper, y.upper), x, y)
    above = _flatter(Plane(x.upper, y.lower), Plane(x.lower, y.upper), x, y)
    return below, above


def _flatter(first: Plane, second: Plane, x: Interval, y: Interval) -> Plane:
    """The plane that varies less over the box."""
    width, height = x.upper - x.lower, y.upper - y.lower
    variation = [plane.q.abs() * width + plane.p.abs() * height for plane in (first, second)]
    chosen = variation[0] <= variation[1]
    return Plane(torch.where(chosen, first.p, second.p), torch.where(chosen, first.q, second.q))


@dataclass(frozen=True, eq=False)
class MaxLines:
    """x[under] <= max over the last axis <= slope x[over] + offset; all (K or 1, M, *shape, 1)."""

    under: Tensor
    over: Tensor
    slope: Tensor
    offset: Tensor


def max_lines(x: Interval) -> MaxLines:
    """Lines around the maximum over the last axis.

    Any entry is a lower bound; the one with the largest centre is taken. For the upper one let i be the entry with the
    largest upper end and c the largest upper end of the others. Then max <= max(x_i, c), which is convex in x_i and so
    lies below its chord on [l_i, u_i]. Where l_i >= c, the maximum is x_i itself.
    """
    under = (x.lower + x.upper).argmax(-1, keepdim=True)
    best, over = x.upper.max(-1, keepdim=True)
    low = x.lower.gather(-1, over)
    others = x.upper.scatter(-1, over, -torch.inf).amax(-1, keepdim=True)
    fixed, zero = low >= others, torch.zeros_like(low)
    others = torch.where(fixed, zero, others)
    slope = ((best - others) / (best - low)).nan_to_num(0.0, 0.0, 0.0).clamp(0, 1)
    # the chord's offset at both ends, where max(x_i, c) is c and u_i, whatever the rounding of the slope
    offset = torch.maximum(others - slope * low, best - slope * best)
    offset = offset + 4 * UNIT * (low.abs() + best.abs() + others.abs()) + TINY
    return MaxLines(under, over, torch.where(fixed, 1.0, slope), torch.where(fixed, zero, offset))
