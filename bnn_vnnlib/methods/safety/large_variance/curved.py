"""Exponential moments of two hidden ReLU layers at a point, to second order in what the first layer does to the second.

`classification.exponents` bounds log E[e^{u . f} | h], h the first layer's outputs, by planes in the means m_i and
the variances v_i of the second layer's inputs. Here it is bounded by `parabolas`,

    log E[e^{u . f} | h] <= sum_i (k_i + r_i (m_i - c_i) + q_i (m_i - c_i)^2 / 2 + t_i v_i)   on their ranges, q_i >= 0,

m_i = mu_i . h + b_i, v_i = sig_i^2 . h^2 + noise. About any numbers e_k, with a = h - e, this is C + alpha . h +
beta . h^2 + a' K a / 2, K = mu' diag(q) mu. The h_k are independent and their moments L_k = log E e^{alpha h_k +
beta h_k^2} are known (`law`). With d_k the tilted mean of h_k less e_k, and g standard Gaussian, K = F F',
    e^{a' K a / 2} = E_g e^{g . F' a}    (Hubbard and Stratonovich).
Let J be the event that |(K a)_k| <= b_k for all k. On J, under the law of g shifted by F' a, y = F g leaves |y_k| <=
Y_k = b_k + z root K_kk for some k with probability at most e = 2 H Phi(-z). So e^{a' K a / 2} (1 - e) <= E_g[e^{y .
a}; all |y_k| <= Y_k] on J. For these y the tilted law has E e^{y (h_k - its mean)} <= e^{u_k y^2 / 2}, hence
    log E[e^{..}; J] <= C + sum_k L_k + log E_g e^{d . y + y' U y / 2} - log(1 - e)
                     <= C + sum_k L_k - log det(I - F' U F) / 2 + d' K d / (2 (1 - largest eigenvalue)) - log(1 - e).
P(not J) <= `spent`: by e^{u y^2 / 2} without a tilt, for |lam K_jk| <= y_k, where u_k = s_k^2 will do for every y
(h_k is a function of a Gaussian variable of Lipschitz constant s_k),
    P((K (h - E h))_j > x) <= e^{-lam x + lam^2 S_j / 2}, S_j = sum_k K_jk^2 u_k, and b_j adds |(K (E h - e))_j|.
Without bends, K = 0 and nothing is spent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import LEAST, cdf
from bnn_vnnlib.methods.safety.large_variance.law import Law
from bnn_vnnlib.methods.safety.large_variance.parabolas import PAID, Parabola
from bnn_vnnlib.network.dense_chain import DenseLayer

REACH = 3.5
"""z."""

STEPS = 3
"""Towards e = the tilted mean."""

SOLVED = 1e-10
"""Backward error of eigenvalues, relative to the trace."""

LARGEST = 0.98
"""Largest eigenvalue that is served."""


def first_moments(dense: DenseLayer, law: Law, found: Parabola, spent: float, *, bent: bool) -> Tensor:
    """(P, R): log E exp of sums of parabolas (P, R, H2) but for their constants, on J; infinite where there is none.

    Parameters
    ----------
    dense : the second layer
    bent : whether the parabolas have bends; without, nothing is spent
    """
    square = found.square
    beta = square @ dense.variance + PAID * (square.abs() @ dense.variance) + LEAST
    center = law.plain()[0].expand(beta.shape)
    for _ in range(STEPS if bent else 1):
        center = law.tilted_mean(_about(dense, found, center)[2], beta)
    value, slope, alpha = _about(dense, found, center)
    size = slope.abs() @ dense.mean.abs()
    total = value + square @ dense.bias_variance - (alpha * center).sum(-1)
    alpha = alpha + PAID * size  # h is never negative
    logs = law.above(alpha, beta)
    scale = slope.abs() @ dense.bias.abs() + square.abs() @ dense.bias_variance
    scale = scale + ((slope * found.center).abs() + (found.slope * found.center).abs()).sum(-1) + value.abs()
    scale = scale + (size * center + logs.abs()).sum(-1)
    largest = center @ dense.mean.abs().mT + dense.bias.abs() + found.center.abs()
    scale = scale + (found.bend * largest**2).sum(-1)
    total = total + logs.sum(-1) + 2 * PAID * (1 + scale)
    if bent:
        total = total + _second(dense, law, found, (alpha, beta, center), spent)
    return total.nan_to_num(torch.inf, torch.inf)


def _about(dense: DenseLayer, found: Parabola, center: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The parabolas about m at h = center: their values' sum (P, R), slopes (P, R, H2), and alpha (P, R, H1)."""
    gap = center @ dense.mean.mT + dense.bias - found.center
    slope = found.slope + found.bend * gap
    return (found.slope * gap + found.bend * gap**2 / 2).sum(-1), slope, slope @ dense.mean


def _second(dense: DenseLayer, law: Law, found: Parabola, at: tuple[Tensor, Tensor, Tensor], spent: float) -> Tensor:
    """(P, R): what the quadratic form adds."""
    alpha, beta, center = at
    form = torch.einsum("pri,ik,il->prkl", found.bend, dense.mean, dense.mean)
    reach = _reach(form, center, law, spent)
    local = law.proxy(alpha, beta, reach)
    root = torch.sqrt(local)
    matrix = root[..., None] * form * root[..., None, :]
    usable = matrix.abs().amax((-2, -1)) < 1e3  # neither nan nor infinite
    matrix = torch.where(usable[..., None, None], matrix, 0.0)
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    values = torch.linalg.eigvalsh(matrix).clamp(min=0.0) + SOLVED * trace[..., None]
    largest = values.amax(-1)
    gap = law.tilted_mean(alpha, beta) - center
    pulled = torch.einsum("prk,prkl,prl->pr", gap, form, gap).clamp(min=0.0) * (1 + 1e-6) + 1e-9 * trace
    second = -torch.log1p(-values.clamp(max=LARGEST)).sum(-1) / 2 + pulled / (2 * (1 - largest.clamp(max=LARGEST)))
    escaped = 2 * form.shape[-1] * float(cdf(torch.tensor(-REACH, dtype=torch.float64))) * (1 + 1e-9)
    rounded = 1e-9 * (reach * law.s).sum(-1)  # y times what the tilted means are off by
    total = second * (1 + 1e-9) - math.log1p(-escaped) + rounded
    return torch.where(usable & (largest < LARGEST), total, torch.inf)


def _reach(form: Tensor, center: Tensor, law: Law, spent: float) -> Tensor:
    """(P, R, H): Y; not finite where it is not known."""
    exponent = math.log(2 * form.shape[-1] / spent)
    mean, _, spread = law.plain()
    variance = ((form * spread[:, :, None]) ** 2).sum(-1)  # products first: squares of a small K underflow
    rate = math.sqrt(2 * exponent) / torch.sqrt(variance + 1e-200)
    near = (rate[..., None] * form.abs()).amax(-2) * (1 + 1e-9)
    zero = torch.zeros_like(near)
    local = torch.minimum(law.proxy(zero, zero, near), law.s**2 * (1 + PAID))
    size = ((form * torch.sqrt(local)[..., None, :]) ** 2).sum(-1)
    bound = (rate * size / 2 + exponent / rate) * (1 + 1e-9)
    shift = torch.einsum("prkl,prl->prk", form, mean - center).abs()
    paid = PAID * torch.einsum("prkl,prl->prk", form.abs(), mean + center + law.s)
    diagonal = form.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
    return (bound + shift + paid + REACH * torch.sqrt(diagonal)) * (1 + 1e-9)
