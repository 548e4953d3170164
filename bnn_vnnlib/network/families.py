"""The families of posteriors as data: which tensors each consists of, and what every user of one has to ask."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from bnn_vnnlib.errors import PosteriorError
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

STORED: Mapping[str, tuple[str, ...]] = {
    "gaussian_diag": ("variance",),
    "samples": ("samples",),
    "gaussian_lowrank": ("factor", "diagonal"),
    "gaussian_full": ("factor",),
    "gaussian_kron": ("left", "right", "spectrum"),
}
"""Family -> what is stored for a weight, as tensors `<weight>_<what>`. A mixture stores those of its components."""

MIXTURE = "mixture"
FAMILIES = (*STORED, MIXTURE)
PLAIN = ("variance", "samples")
"""What is recognised by its name alone; of a correlated posterior a part would be taken for the whole."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Entry:
    """What belongs to one weight: its tensors by `STORED`, and the bias that shares them (see `KronLayer`), or None."""

    tensors: Mapping[str, Floats]
    bias: str | None = None
    bias_axis: int = 1


def family_of(posterior: Posterior) -> str:
    """The name of the family in files."""
    match posterior:
        case GaussianDiagonal():
            return "gaussian_diag"
        case WeightSamples():
            return "samples"
        case GaussianLowRank():
            return "gaussian_lowrank"
        case GaussianFull():
            return "gaussian_full"
        case GaussianKron():
            return "gaussian_kron"
        case Mixture():
            return MIXTURE


def entries_of(posterior: Gaussian | WeightSamples) -> dict[str, Entry]:
    """Weight -> its tensors; a bias that shares those of its weight has none of its own."""
    match posterior:
        case GaussianDiagonal(variances=variances):
            return {name: Entry({"variance": variance}) for name, variance in variances.items()}
        case WeightSamples(samples=samples):
            return {name: Entry({"samples": values}) for name, values in samples.items()}
        case GaussianLowRank(factors=factors, variances=variances):
            return {name: Entry({"factor": factors[name], "diagonal": variances[name]}) for name in factors}
        case GaussianFull(factors=factors):
            return {name: Entry({"factor": factor}) for name, factor in factors.items()}
        case GaussianKron(layers=layers):
            return {
                layer.weight: Entry(
                    {"left": layer.left, "right": layer.right, "spectrum": layer.spectrum}, layer.bias, layer.bias_axis
                )
                for layer in layers
            }


def gaussian_of(family: str, entries: Mapping[str, Entry]) -> Gaussian:
    """The opposite of `entries_of`, for a Gaussian family."""
    by_what = {what: {name: entry.tensors[what] for name, entry in entries.items()} for what in STORED[family]}
    match family:
        case "gaussian_diag":
            return GaussianDiagonal(by_what["variance"])
        case "gaussian_lowrank":
            return GaussianLowRank(by_what["factor"], by_what["diagonal"])
        case "gaussian_full":
            return GaussianFull(by_what["factor"])
        case "gaussian_kron":
            return GaussianKron(
                tuple(
                    KronLayer(
                        name,
                        by_what["left"][name],
                        by_what["right"][name],
                        by_what["spectrum"][name],
                        entry.bias,
                        entry.bias_axis,
                    )
                    for name, entry in entries.items()
                )
            )
        case _:
            raise PosteriorError(f"posterior family {family!r} is no Gaussian")


def names_of(posterior: Posterior | None) -> tuple[str, ...]:
    """The tensors that carry the posterior."""
    match posterior:
        case None:
            return ()
        case Mixture(components=components):
            return tuple(components[0].means)
        case GaussianKron(layers=layers):
            return tuple(name for layer in layers for name in layer.names)
        case _:
            return tuple(entries_of(posterior))


def tensors_of(posterior: Posterior) -> dict[str, Floats]:
    """Every number of a posterior, by names that say where it belongs."""
    match posterior:
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
    match posterior:
        case WeightSamples(samples=samples, probabilities=weights):
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
    if isinstance(posterior, WeightSamples | Mixture):
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
    match posterior:
        case GaussianDiagonal(variances=variances):
            return dict(variances)
        case WeightSamples(samples=samples, probabilities=weights):
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


def _spread(values: Floats, weights: Floats) -> Floats:
    mean = np.tensordot(weights, values, axes=1)
    spread: Floats = np.tensordot(weights, (values - mean) ** 2, axes=1)
    return spread
