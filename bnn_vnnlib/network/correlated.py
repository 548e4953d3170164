"""Posteriors whose weights depend on each other: Gaussians given by a square root of their covariance, and mixtures.

Every Gaussian here is w = mean + (a linear map of independent standard normal numbers), the mean being
`Network.tensors[name]` (in a mixture: the component's own). Tensors that are not listed are deterministic. A class
checks itself when it is made; whether it fits a network is the business of `families.check_posterior`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.signature import Floats


@dataclass(frozen=True, eq=False)
class GaussianLowRank:
    """w = mean + sum_r z_r factors[.][r] + sqrt(variances) e, with z (k,) common to all tensors and e independent.

    The covariance of the flattened tensors is F' F + diag(variances), with F (k, n) the factors side by side. SWAG,
    AutoLowRankMultivariateNormal.

    Attributes
    ----------
    factors : name -> (k, *shape), the same k for all
    variances : the same names -> (*shape), >= 0
    """

    factors: Mapping[str, Floats]
    variances: Mapping[str, Floats]

    def __post_init__(self) -> None:
        _check_factors(self.factors)
        if set(self.factors) != set(self.variances):
            odd = ", ".join(sorted(set(self.factors) ^ set(self.variances)))
            raise PosteriorError(f"every tensor needs a factor and variances (zeros will do); one is missing for {odd}")
        for name, variance in self.variances.items():
            _check_variances(name, variance)
            if np.shape(variance) != np.shape(self.factors[name])[1:]:
                shapes = f"{np.shape(self.factors[name])}, variances {np.shape(variance)}"
                raise PosteriorError(f"factor has shape {shapes}; expected (k, *shape) and (*shape)", node=name)

    @property
    def rank(self) -> int:
        """k, the number of latent variables."""
        return len(next(iter(self.factors.values())))


@dataclass(frozen=True, eq=False)
class GaussianFull:
    """w = mean + sum_r z_r factors[.][r], z (k,) common to all tensors: any covariance F' F.

    AutoMultivariateNormal, Laplace with a full Hessian (of the network or of its last layer). With F' lower triangular
    in the order of the layers, bounds are tighter; `families.from_covariance` gives that.

    Attributes
    ----------
    factors : name -> (k, *shape), the same k for all
    """

    factors: Mapping[str, Floats]

    def __post_init__(self) -> None:
        _check_factors(self.factors)

    @property
    def rank(self) -> int:
        """k, the number of latent variables."""
        return len(next(iter(self.factors.values())))


@dataclass(frozen=True, eq=False)
class KronLayer:
    """M = mean + left (sqrt(spectrum) * Z) right', Z (a, b) standard normal: Cov M_ij M_kl is
    sum_ab left_ia left_ka spectrum_ab right_jb right_lb.

    M is the weight as a matrix (first axis, all other axes); with a joint bias it has one more row or column, the
    bias, on the side whose factor has one row more. A Kronecker product A (x) B has a spectrum that is an outer product
    of eigenvalues; a general one also holds (A (x) B + prior I)^-1 exactly, which is no Kronecker product.

    Attributes
    ----------
    weight : name of the tensor; a bias on its own is a layer, too
    left : (p, a); right : (q, b); spectrum : (a, b), >= 0
    bias : name of the tensor that is the last row (bias_axis 0) or column (1) of M, or None
    """

    weight: str
    left: Floats
    right: Floats
    spectrum: Floats
    bias: str | None = None
    bias_axis: int = 1

    def __post_init__(self) -> None:
        for what, array in (("left", self.left), ("right", self.right)):
            if np.ndim(array) != 2 or not np.size(array):
                raise PosteriorError(f"{what} has shape {np.shape(array)}, expected a matrix", node=self.weight)
            _check_finite(self.weight, what, array)
        expected = (self.left.shape[1], self.right.shape[1])
        if np.shape(self.spectrum) != expected:
            raise PosteriorError(f"spectrum has shape {np.shape(self.spectrum)}, expected {expected}", node=self.weight)
        _check_variances(self.weight, self.spectrum, "spectrum")
        if self.bias == self.weight:
            raise PosteriorError("a tensor cannot be the bias of itself", node=self.weight)
        if self.bias_axis not in (0, 1):
            raise PosteriorError(f"bias_axis is {self.bias_axis!r}, expected 0 or 1", node=self.weight)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of the layer."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def split(self, matrix: Any) -> dict[str, Any]:
        """Entries of M (.., p, q), array or tensor: (.., rows, columns) of the weight, (.., entries) of the bias."""
        if self.bias is None:
            return {self.weight: matrix}
        if self.bias_axis:
            return {self.weight: matrix[..., :-1], self.bias: matrix[..., -1]}
        return {self.weight: matrix[..., :-1, :], self.bias: matrix[..., -1, :]}

    def marginal(self, name: str) -> KronLayer:
        """The layer of one of its two tensors alone."""
        if self.bias is None:
            return self
        if name == self.weight:
            left, right = (self.left, self.right[:-1]) if self.bias_axis else (self.left[:-1], self.right)
            return KronLayer(name, left, right, self.spectrum)
        if self.bias_axis:
            return KronLayer(name, self.left, self.right[-1:], self.spectrum)
        return KronLayer(name, self.right, self.left[-1:], self.spectrum.T)


@dataclass(frozen=True, eq=False)
class GaussianKron:
    """Layers that are independent of each other, each with a covariance that factors (see `KronLayer`)."""

    layers: tuple[KronLayer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise PosteriorError("the posterior names no tensor")
        names = [name for layer in self.layers for name in layer.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PosteriorError("belongs to two layers of the Kronecker-factored posterior", node=twice[0])


def _check_factors(factors: Mapping[str, Floats]) -> None:
    if not factors:
        raise PosteriorError("the posterior names no tensor")
    first, rank = next(iter(factors)), None
    for name, factor in factors.items():
        if np.ndim(factor) < 1 or len(factor) == 0:
            raise PosteriorError(f"factor has shape {np.shape(factor)}, expected (k, *shape), k > 0", node=name)
        rank = rank or len(factor)
        if len(factor) != rank:
            message = f"factor has {len(factor)} columns of the covariance's root, that of {first!r} has {rank}"
            raise PosteriorError(f"{message}; they must agree", node=name)
        _check_finite(name, "factor", factor)


def _check_variances(name: str, variances: Floats, what: str = "variances") -> None:
    _check_finite(name, what, variances)
    if (np.asarray(variances) < 0).any():
        raise PosteriorError(f"{what} hold negative entries: the covariance is not positive semi-definite", node=name)


def _check_finite(name: str, what: str, array: Floats) -> None:
    if not np.isfinite(array).all():
        raise PosteriorError(f"{what} holds NaN or infinite entries", node=name)
