"""The families of posteriors: their tensors, draws from them, and ways to make and check one.

1. Families as data: which tensors each consists of, and what every user of one has to ask.
2. `sample`: networks drawn from a posterior.
3. `from_...` and `check_posterior`: ways to make a posterior, and validation against a model's weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError, did_you_mean
from bnn_vnnlib.network.network import (
    Component,
    Drawable,
    DropoutMasks,
    Gaussian,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Mixture,
    Network,
    Posterior,
    Sampler,
    WeightSamples,
)
from bnn_vnnlib.signature import Likelihood
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    import torch

    Drawn = dict[str, torch.Tensor]
    Normal = Callable[..., torch.Tensor]


# 1. Families as data

_FIELDS: Mapping[str, tuple[type, Mapping[str, str]]] = {
    "gaussian_diag": (GaussianDiagonal, {"variance": "variances"}),
    "samples": (WeightSamples, {"samples": "stored"}),
    "gaussian_lowrank": (GaussianLowRank, {"factor": "factors", "diagonal": "variances"}),
    "gaussian_full": (GaussianFull, {"factor": "factors"}),
    "gaussian_kron": (GaussianKron, {"left": "left", "right": "right", "spectrum": "spectrum"}),
}
"""Family -> its class, and the field of it (or of its layers) with what is stored for a weight."""

STORED: Mapping[str, tuple[str, ...]] = {family: tuple(fields) for family, (_, fields) in _FIELDS.items()}
"""Family -> what is stored for a weight, as tensors `<weight>_<what>`. A mixture stores those of its components."""

MIXTURE = "mixture"
_SAMPLER, _DROPOUT = "sampler", "dropout"
FAMILIES = (*STORED, MIXTURE)
PLAIN = ("variance", "samples")
"""What is recognised by its name alone; of a correlated posterior a part would be taken for the whole."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class WeightTensors:
    """What belongs to one weight: its tensors by `STORED`, and the bias that shares them (see `KronLayer`), or None."""

    tensors: Mapping[str, Floats]
    bias: str | None = None
    bias_axis: int = 1


def stated(posterior: Posterior) -> Gaussian | WeightSamples | Mixture:
    """The posterior, of a family that certain bounds and files have.

    Raises
    ------
    PosteriorError : dropout, or a function that draws
    """
    if isinstance(posterior, Drawable):
        what = "dropout" if isinstance(posterior, DropoutMasks) else posterior.what
        raise PosteriorError(
            f"the posterior is {what}, which this does not serve; verify and verify_batch do, with guarantee "
            "statistical"
        )
    return posterior


def family_of(posterior: Posterior) -> str:
    """The name of the family in files."""
    if isinstance(posterior, Drawable):
        return _DROPOUT if isinstance(posterior, DropoutMasks) else _SAMPLER
    return next((family for family, (kind, _) in _FIELDS.items() if isinstance(posterior, kind)), MIXTURE)


def entries_of(posterior: Gaussian | WeightSamples) -> dict[str, WeightTensors]:
    """Weight -> its tensors; a bias that shares those of its weight has none of its own."""
    fields = _FIELDS[family_of(posterior)][1]
    if isinstance(posterior, GaussianKron):
        return {
            layer.weight: WeightTensors(
                {what: getattr(layer, field) for what, field in fields.items()}, layer.bias, layer.bias_axis
            )
            for layer in posterior.layers
        }
    found = {what: getattr(posterior, field) for what, field in fields.items()}
    return {name: WeightTensors({what: found[what][name] for what in found}) for name in next(iter(found.values()))}


def gaussian_of(family: str, entries: Mapping[str, WeightTensors]) -> Gaussian:
    """The Gaussian of a family from its tensors by weight: the opposite of `entries_of`."""
    kind, fields = _FIELDS[family]
    if kind is WeightSamples:
        raise PosteriorError(f"posterior family {family!r} is no Gaussian")
    if kind is GaussianKron:
        layers = (
            KronLayer(name, **entry.tensors, bias=entry.bias, bias_axis=entry.bias_axis)
            for name, entry in entries.items()
        )
        return GaussianKron(tuple(layers))
    made: Gaussian = kind(
        **{field: {name: entry.tensors[what] for name, entry in entries.items()} for what, field in fields.items()}
    )
    return made


def names_of(posterior: Posterior | None) -> tuple[str, ...]:
    """The tensors that carry the posterior."""
    match posterior:
        case None:
            return ()
        case Mixture(components=components):
            return tuple(components[0].means)
        case GaussianKron(layers=layers):
            return tuple(name for layer in layers for name in layer.names)
        case Sampler(names=names):
            return names
        case DropoutMasks(ratios=ratios):
            return tuple(ratios)
        case _:
            return tuple(entries_of(posterior))


def tensors_of(posterior: Posterior) -> dict[str, Floats]:
    """Every number of a posterior, by names that say where it belongs."""
    match posterior := stated(posterior):
        case Mixture(components=components, probabilities=weights):
            found = {"probabilities": np.asarray(weights)}
            for index, part in enumerate(components):
                found |= {f"{index} mean {name}": mean for name, mean in part.means.items()}
                found |= {f"{index} {key}": value for key, value in tensors_of(part.posterior).items()}
            return found
        case _:
            found = {} if not isinstance(posterior, WeightSamples) else {"probabilities": posterior.probabilities}
            for name, entry in entries_of(posterior).items():
                joint = "" if entry.bias is None else f" with {entry.bias} {entry.bias_axis}"
                found |= {f"{name} {what}{joint}": value for what, value in entry.tensors.items()}
            return found


def tensor_names(posterior: Posterior) -> set[str]:
    """The names under which `attach` stores the tensors of a posterior."""
    posterior = stated(posterior)
    if isinstance(posterior, Mixture):
        found = {f"{name}_component{i}_mean" for i in range(len(posterior.components)) for name in names_of(posterior)}
        for i, component in enumerate(posterior.components):
            found |= {f"{name}_component{i}_{what}" for name, what in _stored(component.posterior)}
        return found
    return {f"{name}_{what}" for name, what in _stored(posterior)}


def _stored(posterior: Gaussian | WeightSamples) -> list[tuple[str, str]]:
    return [(name, what) for name, entry in entries_of(posterior).items() for what in entry.tensors]


def only(posterior: Posterior, names: Collection[str]) -> Posterior | None:
    """The marginal posterior of some of its tensors; None if it has none of them."""
    if not any(name in names for name in names_of(posterior)):
        return None
    if isinstance(posterior, Sampler):
        return posterior.only(names)
    if isinstance(posterior, DropoutMasks):
        return DropoutMasks({name: ratio for name, ratio in posterior.ratios.items() if name in names})
    match posterior := stated(posterior):
        case WeightSamples(stored=samples, probabilities=weights):
            return WeightSamples({name: values for name, values in samples.items() if name in names}, weights)
        case GaussianKron(layers=layers):
            kept = (_part(layer, names) for layer in layers)
            return GaussianKron(tuple(layer for layer in kept if layer is not None))
        case Mixture(components=components, probabilities=weights):
            return Mixture(tuple(_component(part, names) for part in components), weights)
        case _:
            entries = {name: entry for name, entry in entries_of(posterior).items() if name in names}
            return gaussian_of(family_of(posterior), entries)


def _component(component: Component, names: Collection[str]) -> Component:
    means = {name: mean for name, mean in component.means.items() if name in names}
    posterior = only(component.posterior, means)
    if posterior is None:  # what varies is not used: the component is a point
        posterior = GaussianDiagonal({name: np.zeros_like(mean) for name, mean in means.items()})
    if isinstance(posterior, WeightSamples | Mixture | Drawable):
        raise PosteriorError("a component of a mixture is a Gaussian")
    return Component(means, posterior)


def _part(layer: KronLayer, names: Collection[str]) -> KronLayer | None:
    kept = [name for name in layer.names if name in names]
    if len(kept) == len(layer.names):
        return layer
    return layer.marginal(kept[0]) if kept else None


def marginal_variances(posterior: Posterior) -> dict[str, Floats]:
    """The variance of every entry of every uncertain tensor, not rounded with care, a Kronecker-factored weight as a
    matrix (first axis, all others)."""
    match posterior := stated(posterior):
        case GaussianDiagonal(variances=variances):
            return dict(variances)
        case WeightSamples(stored=samples, probabilities=weights):
            return {name: _spread(values, weights) for name, values in samples.items()}
        case GaussianLowRank(factors=factors, variances=variances):
            return {name: (factor**2).sum(0) + variances[name] for name, factor in factors.items()}
        case GaussianFull(factors=factors):
            return {name: (factor**2).sum(0) for name, factor in factors.items()}
        case GaussianKron(layers=layers):
            squares = {layer: (layer.left**2) @ layer.spectrum @ (layer.right**2).T for layer in layers}
            return {name: v for layer, square in squares.items() for name, v in layer.split(square).items()}
        case Mixture(components=components, probabilities=weights):
            found = {}
            for name in names_of(posterior):
                total = _spread(np.array([part.means[name] for part in components]), weights)
                for weight, part in zip(weights, components, strict=True):
                    within = marginal_variances(part.posterior).get(name)
                    if within is not None:
                        total = total + weight * within.reshape(total.shape)
                found[name] = total
            return found


def _spread(values: NDArray[Any], weights: Floats) -> Floats:
    """Variance (*shape) of samples (S, *shape)."""
    mean = weighted_mean(values, weights)
    return _total((weights[part], (values[part] - mean) ** 2) for part in _blocks(values))


# 2. Networks drawn from a posterior


@plain_state()
def sample(
    network: Network, posterior: Posterior, count: int, generator: torch.Generator | None = None
) -> dict[str, torch.Tensor]:
    """Draw weights.

    Returns
    -------
    {source: (count, *shape)} float64, for the uncertain tensors only; one draw of all tensors per row
    """
    import torch

    match posterior:
        case WeightSamples(probabilities=weights):
            rows = torch.multinomial(torch.tensor(weights), count, replacement=True, generator=generator)
            return {name: _tensor(values) for name, values in posterior.drawn(rows.numpy()).items()}
        case Mixture(components=components, probabilities=weights):
            rows = torch.multinomial(torch.tensor(weights), count, replacement=True, generator=generator)
            return _mixed(components, rows, generator)
        case Sampler(draw=draw):
            seed = int(torch.randint(2**62, (1,), generator=generator))
            return {name: _tensor(v) for name, v in draw(count, np.random.default_rng(seed)).items()}
        case DropoutMasks(ratios=ratios):
            kept = {
                name: torch.rand(count, *network.tensors[name].shape, dtype=torch.float64, generator=generator) >= ratio
                for name, ratio in ratios.items()
            }
            return {name: mask.double() / (1 - ratios[name]) for name, mask in kept.items()}
        case _:
            parts = kronecker_noise(posterior, _normal(count, generator))
            return {name: _added(network.tensors[name], part) for name, part in parts.items()}


def _normal(count: int, generator: torch.Generator | None) -> Normal:
    """Standard normal numbers of a generator."""
    import torch

    return lambda *shape: torch.randn((count, *shape), dtype=torch.float64, generator=generator)


def _mixed(components: tuple[Component, ...], rows: torch.Tensor, generator: torch.Generator | None) -> Drawn:
    """Drawn weights, row after row from the components that `rows` (count,) names."""
    drawn = {name: _tensor(mean).expand(len(rows), *mean.shape).clone() for name, mean in components[0].means.items()}
    for index, component in enumerate(components):
        (places,) = (rows == index).nonzero(as_tuple=True)
        parts = kronecker_noise(component.posterior, _normal(len(places), generator))
        for name, values in drawn.items():
            mean = component.means[name]
            values[places] = _added(mean, parts[name]) if name in parts else _tensor(mean)
    return drawn


def kronecker_noise(posterior: Gaussian, normal: Normal) -> Drawn:
    """{source: (count, ..)} with mean zero, a Kronecker-factored weight as a matrix: linear in the normal numbers.

    Parameters
    ----------
    normal : shape -> (count, *shape) numbers, in the order in which the posterior uses them
    """
    import torch

    match posterior:
        case GaussianDiagonal(variances=variances):
            return {name: _tensor(np.sqrt(variance)) * normal(*variance.shape) for name, variance in variances.items()}
        case GaussianFull(factors=factors):
            z = normal(posterior.rank)
            return {name: torch.tensordot(z, _tensor(factor), 1) for name, factor in factors.items()}
        case GaussianLowRank(factors=factors, variances=variances):
            z = normal(posterior.rank)
            return {
                name: torch.tensordot(z, _tensor(factor), 1)
                + _tensor(np.sqrt(variances[name])) * normal(*factor.shape[1:])
                for name, factor in factors.items()
            }
        case GaussianKron(layers=layers):
            found: Drawn = {}
            for layer in layers:
                root = _tensor(np.sqrt(layer.spectrum))
                matrix = _tensor(layer.left) @ (root * normal(*root.shape)) @ _tensor(layer.right).T
                found |= layer.split(matrix)
            return found


def _added(mean: Floats, noise: torch.Tensor) -> torch.Tensor:
    return _tensor(mean) + noise.reshape(-1, *mean.shape)


def _tensor(array: Floats) -> torch.Tensor:
    import torch

    return torch.tensor(array, dtype=torch.float64)


# 3. Making and checking a posterior

PROBABILITIES = "posterior_probabilities"
_RESERVED_FAMILIES = ("dropout",)


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
    given = given / 2 + given.T / 2
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
        case WeightSamples(stored=tensors, probabilities=weights):
            _check_probabilities(weights, None)
            for name, values in tensors.items():
                _check_shape(name, "samples", np.shape(values), (len(weights), *_shape(name, shapes)))
                if np.size(values) and not np.isfinite([np.min(values), np.max(values)]).all():
                    raise PosteriorError("samples hold NaN or infinite entries", node=name)
        case Mixture(components=components, probabilities=weights):
            _check_probabilities(weights, len(components))
            for component in components:
                _check_component(component, shapes)
        case Sampler() | DropoutMasks():
            for name in names_of(posterior):
                _shape(name, shapes)
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


def weighted_mean(samples: NDArray[Any], probabilities: Floats) -> Floats:
    """Mean (*shape) of samples (S, *shape)."""
    return _total((probabilities[part], samples[part]) for part in _blocks(samples))


_BLOCK = 2**22
"""Numbers of samples that are converted to float64 together: 32 MiB."""


def _blocks(samples: NDArray[Any]) -> list[slice]:
    """Slices of the samples (S, *shape) of about `_BLOCK` numbers each."""
    step = max(1, _BLOCK // max(1, math.prod(samples.shape[1:])))
    return [slice(start, start + step) for start in range(0, max(1, len(samples)), step)]


def _total(parts: Iterable[tuple[Floats, NDArray[Any]]]) -> Floats:
    """Sum over weights (B,) times values (B, *shape), block by block, in float64."""
    sums = (np.tensordot(weights, np.asarray(values, np.float64), axes=1) for weights, values in parts)
    return functools.reduce(np.add, sums)


def refuse_family(family: str) -> None:
    """Raise unless this version reads the family."""
    if family in _RESERVED_FAMILIES:
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
