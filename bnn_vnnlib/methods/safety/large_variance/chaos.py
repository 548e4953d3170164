"""Upper bounds on E[e^{theta Q}; G] for a centred quadratic form Q of independent terms.

Q = sum_i c_i (gam_i - gbar_i)^2, gam_i - gbar_i = sum_j a_j nu_ji, a_j = A_j - E A_j. With F_ji = sqrt(c_i) nu_ji,
h = sqrt(2 theta) F' a (|h|^2 = 2 theta Q) and g standard Gaussian, e^{theta Q} = E_g e^{g . h} (Hubbard-Stratonovich),
so that the a_j, which are independent, enter by their generating functions at y = sqrt(2 theta) F g:
- for every y, E e^{y a_j} <= e^{y^2 v_j / 2}, v_j = d_j^2 + width_j^2 / 4: given zeta_j, A_j is a function of D_j with
  slopes in [0, 1], and its mean lies in the hull of {0, mu, e1 + e2 / 2, e2 / 2}, of that width (e1, e2 are the means
  of D on D > 0 and on D < 0);
- for |y| <= y_j, E e^{y a_j} <= e^{y^2 u_j / 2}, u_j = max over both signs of 2 (E e^{+-y_j a_j} - 1) / y_j^2. As
  E a_j = 0, E e^{y a} - 1 = y^2 E a^2 f(y a), f(x) = (e^x - 1 - x) / x^2 = int_0^1 (1 - t) e^{t x} dt. f is convex,
  hence E a^2 f(y a) is convex in y and largest at an end of [-y_j, y_j]. And e^{y a D} is convex in a on [0, 1], so
  E e^{y A} <= (1 - E a+) P(D > 0) + E a+ E[e^{y D}; D > 0] + the same for D < 0.
G is the event that |M_j . a| <= b_j for all j, M = F F'. By the second bound, as long as lam |M_jk| <= y_k,
    P(M_j . a > b_j) <= e^{-lam b_j + lam^2 S_j / 2},    S_j = sum_k M_jk^2 u_k,
so that b_j = lam S_j / 2 + log(2 H / SPENT) / lam makes P(not G) <= SPENT. On G, F_j . h = sqrt(2 theta) M_j . a: under
the law of g + h some |y_j| exceeds y_j = sqrt(2 theta) (sqrt(2 theta) b_j + z |F_j|) with probability at most
e = 2 H Phi(-z). Hence e^{theta Q} (1 - e) <= E_g[e^{g . h}; all |y_j| <= y_j] on G, and with
B = 2 theta F' diag(u) F < I
    E[e^{theta Q}; G] <= det(I - B)^{-1/2} / (1 - e).
Rounding: a symmetric eigenvalue is off by at most SOLVED times the trace. An error of F moves the root of each
eigenvalue by at most its Frobenius norm (Weyl). Where gbar_i misses sum_j E A_j nu_ji by b_i, use
(x + b)^2 <= (1 + t) x^2 + (1 + 1/t) b^2 with t = LEANING.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import cdf
from bnn_vnnlib.methods.safety.large_variance.lines import LineTerms, Neurons, half_line_moments, summed
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
from bnn_vnnlib.rounding import UP

_SOLVED = 1e-10
"""Backward error of eigenvalues here, relative to the trace, for matrices of up to some thousand rows."""

_REACHES = (3.0, 3.5, 4.0, 5.0)
"""Values of z that are tried: with it e = 2 H Phi(-z) falls and the caps y_j rise."""

SPENT = 1e-6
"""P(not G), paid for each row."""

_LEANING = 1e-6
"""t, the share of (x + b)^2 that is moved from the error b to the form: any t > 0 is sound."""

_LARGEST = 0.99
"""Largest eigenvalue of B that is served."""

_MOST_LOST = 0.999
"""Largest e that is served."""

_LEAST = 0.01
"""Smallest y_j times the size |mean_j| + d_j of D_j: below, rounding would be magnified by 1 / y_j^2."""


@dataclass(frozen=True, eq=False)
class Chaos:
    """Q of A rows: factor F (A, H, n), error of |F_j|, norm |F_j|, full v, bound b_j (A, H).

    off : (A,) sum_i c_i (1 + 1/t) b_i^2
    """

    weights: Weights
    lines: LineTerms
    factor: Tensor
    error: Tensor
    norm: Tensor
    off: Tensor
    full: Tensor
    bound: Tensor

    def log_moment(self, theta: Tensor, reaches: Sequence[float] = _REACHES) -> Tensor:
        """(A,): bounds on log E[e^{theta Q}; G] for theta (A,); infinite where there is none."""
        found = torch.full_like(theta, torch.inf)
        root = torch.sqrt(2 * theta)[:, None]
        for reach in reaches:
            near = torch.maximum(root * (root * self.bound + reach * self.norm), _smallest(self.weights)) * UP
            local = torch.minimum(_local(self.weights, self.lines, near), self.full)
            lost = self.norm.shape[1] * 2 * NormalDist().cdf(-reach) * UP
            if lost >= _MOST_LOST:
                continue
            moment = _minus_half_log_det(_eigenvalues(self.factor, self.error, local), 2 * theta)
            found = torch.minimum(found, moment - math.log1p(-lost))
        return found + theta * self.off + 1e-9


def chaos(layer: Neurons, weights: Weights, lines: LineTerms) -> Chaos:
    """Q of the rows, and G."""
    e1, e2, _, _ = half_line_moments(weights)
    ends = torch.stack([torch.zeros_like(e1), weights.mean, e1 + e2 / 2, e2 / 2])
    full = (weights.dev**2 + (ends.amax(0) - ends.amin(0)) ** 2 / 4) * (1 + 1e-9) + 1e-9 * weights.mean**2
    root = torch.sqrt(lines.coefficient * (1 + _LEANING))[:, None] * (1 + 1e-9)
    factor, error = root * layer.nu, torch.sqrt(((root * layer.nu_error) ** 2).sum(2)) * UP
    norm = torch.sqrt((factor**2).sum(2)) * UP + error + 1e-30
    products = (factor @ factor.mT).abs() + _SOLVED * norm[:, :, None] * norm[:, None]
    products = products + norm[:, :, None] * error[:, None] + error[:, :, None] * norm[:, None]
    missed = summed(1e-9 * (weights.mean.abs() + weights.dev), layer.nu.abs() + layer.nu_error)
    missed = missed + summed(lines.slope_mean.abs(), layer.nu_error)
    off = (lines.coefficient * missed**2).sum(1) * (2 + 1 / _LEANING)
    exponent = math.log(2 * norm.shape[1] / SPENT)
    rate = torch.sqrt(2 * exponent / (((products**2) @ lines.variance[..., None])[..., 0] + 1e-100))
    near = torch.maximum((rate[..., None] * products).amax(1), _smallest(weights)) * UP
    local = torch.minimum(_local(weights, lines, near), full)
    size = (products**2 @ local[..., None])[..., 0]
    bound = (rate * size / 2 + exponent / rate) * UP
    return Chaos(weights, lines, factor, error, norm, off, full, bound)


def eigenvalues(matrix: Tensor) -> Tensor:
    """(.., n): of positive semidefinite matrices (.., n, n), from above; infinite where an entry is not finite."""
    good = torch.isfinite(matrix).all(-1).all(-1)[..., None]
    values = torch.linalg.eigvalsh(torch.where(good[..., None], matrix, 0.0)).clamp(min=0.0)
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
    return torch.where(good, values + _SOLVED * trace, torch.inf)


def _eigenvalues(factor: Tensor, error: Tensor, proxy: Tensor) -> Tensor:
    """(A, n or H): of F' diag(proxy) F, from above."""
    scaled = torch.sqrt(proxy)[..., None] * factor
    transposed = scaled.mT
    matrix = transposed @ scaled if scaled.shape[2] <= scaled.shape[1] else scaled @ transposed
    return (torch.sqrt(eigenvalues(matrix)) + torch.sqrt((proxy * error**2).sum(1))[:, None] * UP) ** 2


def _minus_half_log_det(values: Tensor, times: Tensor) -> Tensor:
    """-log det(I - times B) / 2; infinite where times B is too large."""
    scaled = values * times[:, None]
    good = scaled.amax(1) < _LARGEST
    total = -torch.log1p(-torch.where(good[:, None], scaled, 0.0)).sum(1) / 2 * (1 + 1e-9)
    return torch.where(good, total, torch.inf)


def _smallest(weights: Weights) -> Tensor:
    """(A, H): y_j, at least; in the units of 1 / D_j, so that units of rows or of neurons do not matter."""
    return _LEAST / (weights.mean.abs() + weights.dev)


def _local(weights: Weights, lines: LineTerms, near: Tensor) -> Tensor:
    """u_j for |y| <= near (A, H)."""
    mean, dev = weights.mean, weights.dev
    positive = cdf(mean / dev)
    found = torch.zeros_like(mean)
    far = near * mean.abs() + (near * dev) ** 2 / 2 > 300.0
    near = torch.where(far, _smallest(weights), near)
    for y in (near, -near):
        whole = torch.exp((y * mean + (y * dev) ** 2 / 2).clamp(max=301.0))
        above = whole * cdf(mean / dev + y * dev)
        below = whole * cdf(-mean / dev - y * dev)
        total = 1 + lines.up * (above - positive) + lines.down * (below - (1 - positive))
        size = 1 + above + below
        slack = 1e-8 * near * (mean.abs() + dev) * size + 1e-11 * size
        log = torch.log(total + slack) - y * lines.slope_mean
        found = torch.maximum(found, 2 * torch.expm1(log.clamp(max=600.0)) / near**2)
    return torch.where(far, torch.inf, found)
