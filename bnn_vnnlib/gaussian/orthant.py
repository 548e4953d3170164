"""Probabilities that correlated Gaussian variables all exceed their thresholds.

Let u_1 .. u_R be standard normal with correlations c_rs, and 0 <= l_r <= 1 with l_r l_s >= c_rs for r != s.
1. P(u_r > -k_r for all r) does not fall when correlations are raised (Slepian 1962), so it is at most that of
   l_r G + sqrt(1 - l_r^2) W_r with independent standard normal G and W_r, which have the correlations l_r l_s.
2. Given G = g that is prod_r Phi((k_r + l_r g) / sqrt(1 - l_r^2)), which rises with g. So on each of the cells into
   which the line is cut, its value at the right end counts, and 1 on the last one.
Where c_rs = l_r l_s, as of differences between one independent logit and others, it is exact up to the cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import cdf_above, cdf_below
from bnn_vnnlib.rounding import UNIT, gamma
from bnn_vnnlib.system.memory import at_once

_CELLS = 2**12
"""Cells of equal mass: the sum is off by the mass of one, at most."""


def all_above(thresholds: Tensor, correlations: Tensor) -> Tensor:
    """(N,) upper bounds on P(u_r > -k_r for all r).

    thresholds (N, R): upper bounds on k_r, inf for a variable that does not count; correlations (N, R, R): upper bounds
    """
    counts = torch.isfinite(thresholds) | (thresholds < 0)
    loads = _loads(correlations, counts)
    step = at_once(4 * thresholds.shape[-1] * _CELLS)
    parts = [_sum(k, load) for k, load in zip(thresholds.split(step), loads.split(step), strict=True)]
    alone = cdf_above(thresholds).amin(-1)  # what holds of all holds of each
    return torch.minimum(torch.cat(parts), alone).clamp(max=1.0) if parts else alone


def _loads(correlations: Tensor, counts: Tensor) -> Tensor:
    """l (N, R) that meet the condition between the variables that count; the same for all where no others are found."""
    height = counts.shape[-1]
    pairs = counts[:, :, None] & counts[:, None] & ~torch.eye(height, dtype=torch.bool, device=counts.device)
    wanted = torch.where(pairs, correlations, 0.0).clamp(0.0, 1.0).nan_to_num(1.0)
    # least squares of log l_r + log l_s = log c_rs, and then towards equality where it counts; any numbers will do
    logs, several = torch.where(pairs, wanted.clamp(min=1e-9).log(), 0.0).sum(-1), counts.sum(-1, keepdim=True)
    mean = logs.sum(-1, keepdim=True) / (2 * (several - 1)).clamp(min=1)
    load = torch.where(several > 2, ((logs - mean) / (several - 2).clamp(min=1)).exp(), torch.sqrt(wanted.amax(-1)))
    load = load.clamp(1e-9, 1.0)
    for _ in range(8):
        other = (wanted / load[:, None].clamp(min=1e-150)).amax(-1).clamp(max=1.0)
        load = torch.sqrt(load * other)
    short = (wanted / (load[:, :, None] * load[:, None]).clamp(min=1e-300)).amax((-2, -1)).clamp(min=1.0)
    load = load * torch.sqrt(short)[:, None] * (1 + 16 * UNIT)
    met = ((load <= 1).all(-1))[:, None]
    return torch.where(met, load, (torch.sqrt(wanted.amax((-2, -1))) * (1 + 4 * UNIT)).clamp(max=1.0)[:, None])


def _sum(k: Tensor, load: Tensor) -> Tensor:
    ends = torch.special.ndtri(torch.arange(1, _CELLS, dtype=k.dtype, device=k.device) / _CELLS)
    mass = torch.nn.functional.pad(cdf_above(ends), (0, 1), value=1.0)
    mass = mass - torch.nn.functional.pad(cdf_below(ends), (1, 0))
    moved = load[..., None] * ends
    top = k[..., None] + moved
    top = top + 4 * UNIT * (k[..., None].abs() + moved.abs())
    x = top / torch.sqrt((1 - load) * (1 + load))[..., None]
    product = cdf_above((x + 16 * UNIT * x.abs()).nan_to_num(torch.inf, torch.inf, -torch.inf)).prod(-2)
    product = torch.nn.functional.pad(product.clamp(max=1.0), (0, 1), value=1.0)
    size = k.shape[-1] + _CELLS
    return (mass * product).sum(-1) * (1 + gamma(4 * size))
