"""Lower bounds on quadratics over boxes: min of g.d + d' H d / 2 over |d_j| <= r_j, two ways.

By coordinates: each on its own, with the entries off the diagonal at their worst.
Convexified: with d = r e and A = diag(r) H diag(r), for shift >= -(least eigenvalue of A)
    d' H d / 2 >= e' (A + shift I) e / 2 - shift n / 2      on |e_j| <= 1,
and the convex quadratic is above its tangent plane at any point z, which a few steps of descent choose. The eigenvalue
comes from LAPACK, whose error is a small multiple of n UNIT |A|; 1e-9 |A| is added.
"""

from __future__ import annotations

import torch
from torch import Tensor

DESCENTS = 12
"""Steps of descent."""

SAFE = 1e-9
"""What the least eigenvalue is moved down by, relative to the norm."""


def least(slope: Tensor, curve: Tensor, r: Tensor) -> Tensor:
    """(B,) from g (B, n), symmetric H (B, n, n) and r (B, n); rounding is the caller's, relative to |g| r + r |H| r."""
    found = by_coordinates(slope, curve, r)
    if slope.shape[-1] == 1:
        return found
    return torch.maximum(found, convexified(slope * r, curve * r[:, :, None] * r[:, None], r > 0))


def by_coordinates(slope: Tensor, curve: Tensor, r: Tensor) -> Tensor:
    """The first way."""
    diagonal = curve.diagonal(dim1=1, dim2=2)
    rest = ((curve.abs() @ r[..., None])[..., 0] - diagonal.abs() * r) * r / 2
    return (_entrywise(slope, diagonal, r) - rest).sum(-1)


def convexified(slope: Tensor, curve: Tensor, free: Tensor) -> Tensor:
    """The second way on |e_j| <= 1; coordinates that are not free have no slope and no curvature."""
    finite = torch.isfinite(curve).all(-1).all(-1)
    curve = torch.where(finite[:, None, None], curve, torch.zeros_like(curve))
    eigenvalues = torch.linalg.eigvalsh(curve)
    norm = torch.linalg.matrix_norm(curve)
    shift = (-eigenvalues[:, 0]).clamp(min=0) + SAFE * norm
    convex = curve + torch.diag_embed(shift[:, None] * free)

    def gradient(z: Tensor) -> Tensor:
        return slope + (convex @ z[..., None])[..., 0]

    step = 1 / (eigenvalues[:, -1].clamp(min=0) + shift).clamp(min=1e-300)[:, None]
    z = torch.zeros_like(slope)
    previous = z
    for turn in range(DESCENTS):
        ahead = z + turn / (turn + 3) * (z - previous)
        previous, z = z, (ahead - step * gradient(ahead)).clamp(-1, 1).nan_to_num(0.0)
    tangent = gradient(z)
    value = (z * (slope + tangent) / 2 - z * tangent - tangent.abs()).sum(-1)
    value = value - shift * free.sum(-1) / 2
    return torch.where(finite, value, torch.full_like(value, -torch.inf)).nan_to_num(-torch.inf)


def _entrywise(slope: Tensor, curve: Tensor, r: Tensor) -> Tensor:
    """min of g d + h d^2 / 2 over |d| <= r, entrywise; -g^2 / (2 h) is below it wherever h > 0."""
    ends = -slope.abs() * r + curve * r**2 / 2
    inside = (curve > 0) & (slope.abs() < curve * r)
    return torch.where(inside, -(slope**2) / (2 * torch.where(inside, curve, torch.ones_like(curve))), ends)
