"""Posteriors: validation against a model's weights, and ways to make one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError, did_you_mean
from bnn_vnnlib.network.families import FAMILIES, Shapes
from bnn_vnnlib.network.families import names_of as names_of
from bnn_vnnlib.network.families import only as only
from bnn_vnnlib.network.network import (
    Component,
    Floats,
    Gaussian,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Mixture,
    Posterior,
    WeightSamples,
)
from bnn_vnnlib.network.sampling import sample as sample
from bnn_vnnlib.signature import Likelihood
from bnn_vnnlib.system.environment import plain_state

PROBABILITIES = "posterior_probabilities"
RESERVED_FAMILIES = ("dropout",)


@plain_state()
def from_standard_deviations(deviations: Mapping[str, ArrayLike]) -> GaussianDiagonal:
    """Gaussian posterior from {initializer name: standard deviations}.

    Raises
    ------
    PosteriorError : negative or not finite; the message names the tensor
    """
    variances: dict[str, Floats] = {}
    for name, given in deviations.items():
        deviation = np.asarray(given, np.float64)
        _refuse_bad(name, "standard deviation", deviation)
        with np.errstate(over="ignore"):  # an infinite variance is refused with all others
            variances[name] = deviation**2
    return GaussianDiagonal(variances)


@plain_state()
def from_factor(factor: ArrayLike, shapes: Shapes) -> GaussianFull:
    """Gaussian posterior from a square root of the covariance of all entries, tensor after tensor.

    Parameters
    ----------
    factor : (n, k): the covariance is factor factor' (a lower triangular `scale_tril`, say)
    shapes : the tensors in the order of the rows, n entries in all, each row-major

    Raises
    ------
    PosteriorError : shapes that do not fit, not finite
    """
    return GaussianFull(_factors(factor, shapes))


@plain_state()
def from_low_rank(factor: ArrayLike, variances: ArrayLike, shapes: Shapes) -> GaussianLowRank:
    """Gaussian posterior with the covariance factor factor' + diag(variances), tensor after tensor.

    Parameters
    ----------
    factor : (n, k), `cov_factor`; variances : (n,), `cov_diag`; shapes : as in `from_factor`

    Raises
    ------
    PosteriorError : shapes that do not fit, not finite, negative variances
    """
    diagonal, size = np.asarray(variances, np.float64), sum(math.prod(shape) for shape in shapes.values())
    if diagonal.shape != (size,):
        raise PosteriorError(f"the variances have shape {diagonal.shape}, expected ({size},)")
    parts = {name: part.reshape(shapes[name]) for name, part in _cut(diagonal, shapes).items()}
    return GaussianLowRank(_factors(factor, shapes), parts)


@plain_state()
def from_covariance(covariance: ArrayLike, shapes: Shapes) -> GaussianFull:
    """Gaussian posterior from the covariance (n, n) of all entries, tensor after tensor (see `from_factor`).

    Its root is lower triangular, which serves bounds best if the tensors come in the order of the layers.

    Raises
    ------
    PosteriorError : not square, not symmetric, not positive semi-definite, not finite
    """
    given = np.asarray(covariance, np.float64)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise PosteriorError(f"the covariance has shape {given.shape}, expected a square matrix")
    if not np.isfinite(given).all():
        raise PosteriorError("the covariance holds NaN or infinite entries")
    largest = float(np.abs(given).max(initial=0.0))
    if (np.abs(given - given.T) > 1e-6 * largest).any():
        raise PosteriorError("the covariance is not symmetric")
    given = (given + given.T) / 2
    try:
        return from_factor(np.linalg.cholesky(given), shapes)
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(given)
    if values[0] < -1e-9 * largest * len(given):
        raise PosteriorError(f"the covariance is not positive semi-definite: it has an eigenvalue {values[0]:.3g}")
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    upper = np.asarray(np.linalg.qr(root.T, mode="r"))
    return from_factor(upper.T, shapes)


def checked_likelihood(likelihood: str | None) -> Likelihood | None:
    """One of the known likelihoods, or None."""
    known: tuple[Likelihood, ...] = get_args(Likelihood)
    for name in known:
        if name == likelihood:
            return name
    if likelihood is None:
        return None
    hint = did_you_mean(likelihood, known)
    raise OptionError(f"likelihood {likelihood!r} is unknown; expected one of {', '.join(known)}{hint}")


def check_posterior(posterior: Posterior, shapes: Shapes) -> None:
    """Raise PosteriorError unless the posterior fits tensors of these shapes; names the tensor."""
    match posterior:
        case WeightSamples(samples=tensors, probabilities=weights):
            _check_probabilities(weights, None)
            for name, values in tensors.items():
                _check_shape(name, "samples", np.shape(values), (len(weights), *_shape(name, shapes)))
                if not np.isfinite(values).all():
                    raise PosteriorError("samples hold NaN or infinite entries", node=name)
        case Mixture(components=components, probabilities=weights):
            _check_probabilities(weights, len(components))
            for component in components:
                _check_component(component, shapes)
        case _:
            _check_gaussian(posterior, shapes)
    if not names_of(posterior):
        raise PosteriorError("the posterior names no tensor")


def _check_gaussian(posterior: Gaussian, shapes: Shapes) -> None:
    match posterior:
        case GaussianDiagonal(variances=variances):
            for name, variance in variances.items():
                _check_shape(name, "variance", np.shape(variance), _shape(name, shapes))
                _refuse_bad(name, "variance", variance)
        case GaussianKron(layers=layers):
            for layer in layers:
                _check_layer(layer, shapes)
        case GaussianLowRank(factors=factors) | GaussianFull(factors=factors):
            for name, factor in factors.items():
                _check_shape(name, "factor", np.shape(factor), (posterior.rank, *_shape(name, shapes)))


def _check_layer(layer: KronLayer, shapes: Shapes) -> None:
    shape = _shape(layer.weight, shapes) or (1,)
    rows, columns = shape[0], math.prod(shape[1:])
    if layer.bias is not None:
        size = (columns, rows)[layer.bias_axis]
        _check_shape(layer.bias, f"the bias of {layer.weight!r}", _shape(layer.bias, shapes), (size,))
        rows, columns = rows + (layer.bias_axis == 0), columns + (layer.bias_axis == 1)
    _check_shape(layer.weight, "left", layer.left.shape, (rows, layer.left.shape[1]))
    _check_shape(layer.weight, "right", layer.right.shape, (columns, layer.right.shape[1]))


def _check_component(component: Component, shapes: Shapes) -> None:
    for name, mean in component.means.items():
        _check_shape(name, "the mean of a component", np.shape(mean), _shape(name, shapes))
    for name in names_of(component.posterior):
        if name not in component.means:
            raise PosteriorError("a component has a posterior but no mean for it", node=name)
    _check_gaussian(component.posterior, shapes)


def weighted_mean(samples: NDArray, probabilities: Floats) -> Floats:
    """Mean (*shape) of samples (S, *shape)."""
    mean: Floats = np.tensordot(probabilities, np.asarray(samples, np.float64), axes=1)
    return mean


def refuse_family(family: str) -> None:
    """Raise unless this version reads the family."""
    if family in RESERVED_FAMILIES:
        raise UnsupportedError(f"posterior family {family!r} is not supported yet; supported: {', '.join(FAMILIES)}")
    if family not in FAMILIES:
        raise PosteriorError(f"posterior family {family!r} is unknown; supported: {', '.join(FAMILIES)}")


def _factors(factor: ArrayLike, shapes: Shapes) -> dict[str, Floats]:
    root, size = np.asarray(factor, np.float64), sum(math.prod(shape) for shape in shapes.values())
    if root.ndim != 2 or len(root) != size:
        raise PosteriorError(
            f"the factor has shape {root.shape}, expected ({size}, k): the tensors have {size} entries"
        )
    return {name: np.ascontiguousarray(part.T).reshape(-1, *shapes[name]) for name, part in _cut(root, shapes).items()}


def _cut(array: Floats, shapes: Shapes) -> dict[str, Floats]:
    """Rows of an array (n, ..), tensor after tensor."""
    stops = np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1]
    return dict(zip(shapes, np.split(array, stops), strict=True))


def _shape(name: str, shapes: Shapes) -> tuple[int, ...]:
    if name not in shapes:
        raise PosteriorError(f"the model has no weight {name!r}; it has {', '.join(shapes) or 'none'}")
    return shapes[name]


def _check_shape(name: str, what: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise PosteriorError(f"{what} has shape {shape}, expected {expected}", node=name)


def _refuse_bad(name: str, what: str, array: NDArray[np.float64]) -> None:
    if not np.isfinite(array).all():
        raise PosteriorError(f"{what} holds NaN or infinite entries", node=name)
    if (np.asarray(array) < 0).any():
        raise PosteriorError(f"{what} holds negative entries", node=name)


def _check_probabilities(weights: Floats, count: int | None) -> None:
    if np.ndim(weights) != 1 or not np.isfinite(weights).all() or (weights < 0).any():
        raise PosteriorError("must be a vector of finite numbers >= 0", node=PROBABILITIES)
    if count is not None and len(weights) != count:
        raise PosteriorError(f"has {len(weights)} entries for {count} components", node=PROBABILITIES)
    if abs(float(np.sum(weights)) - 1) > 1e-6:
        raise PosteriorError(f"must sum to 1, but sum to {float(np.sum(weights))}", node=PROBABILITIES)
