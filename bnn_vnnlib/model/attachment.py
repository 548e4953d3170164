"""A posterior from outside, in a NumPy archive (.npz) or in memory, and how it is written into an ONNX file.

1. `posterior_from_npz`: reading the archive.
2. `attach`: writing into the ONNX file (format 1 of docs/onnx.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import PosteriorError, names_arguments, naming
from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.model.files import keep_inputs, read_proto
from bnn_vnnlib.model.stored import KEY, MANIFEST_FORMAT, embedded, fingerprint, float_shapes, write_manifest
from bnn_vnnlib.network import families
from bnn_vnnlib.network.network import Component, Gaussian, Mixture, Model, Posterior, WeightSamples
from bnn_vnnlib.readers import kinds, read_npz
from bnn_vnnlib.system.environment import plain_state

_DEVIATION, _BIAS, _MEAN = "std", "bias", "mean"


# 1. Posteriors in NumPy archives

_SUFFIXES = ("variance", _DEVIATION, "samples", "factor", "diagonal", "left", "right", "spectrum", _BIAS)
_COMPONENT = re.compile(r"component(0|[1-9][0-9]{0,8})/(.+)")

Arrays = Mapping[str, NDArray[Any]]


def posterior_from_npz(path: str | Path, shapes: families.Shapes) -> Posterior:
    """Posterior from a NumPy archive.

    Keys: `<initializer>_<what>` with the tensors of one family: `variance` or `std` (a standard deviation);
    `samples` (S, *shape), with `posterior_probabilities` (S,) unless all are 1/S; `factor` (k, *shape) and `diagonal`
    (*shape); `factor` alone; `left`, `right`, `spectrum` and, for a joint bias, its name as `bias`. Of a mixture
    the same behind `component0/`, `component1/`, .., with `<initializer>_mean`, and `posterior_probabilities`.

    Parameters
    ----------
    shapes : shapes of the model's float tensors by name

    Raises
    ------
    PosteriorError : unreadable file, a key that names no tensor (lists the tensors), wrong shape or values
    """
    kinds.expect(path, kinds.ARCHIVE, PosteriorError)
    arrays = read_npz(Path(path), PosteriorError)
    with naming(Path(path)):
        weights = arrays.pop(families.PROBABILITIES, None)
        probabilities = None if weights is None else _floats(families.PROBABILITIES, weights)
        parted = any(_COMPONENT.fullmatch(key) for key in arrays)
        posterior = _mixture(arrays, probabilities, shapes) if parted else _single(arrays, probabilities, shapes)
        families.check_posterior(posterior, shapes)
    return posterior


def _single(arrays: Arrays, probabilities: Floats | None, shapes: families.Shapes) -> Posterior:
    found = _by_what(arrays, _SUFFIXES)
    if "samples" not in found:
        if probabilities is not None:
            raise PosteriorError(f"{families.PROBABILITIES} without any <initializer>_samples")
        return _gaussian(found, shapes)
    if len(found) > 1:
        raise _mixed(found)
    samples = found["samples"]
    count = len(next(iter(samples.values())))
    return WeightSamples(samples, np.full(count, 1 / max(count, 1)) if probabilities is None else probabilities)


def _mixture(arrays: Arrays, probabilities: Floats | None, shapes: families.Shapes) -> Mixture:
    """The mixture from arrays named after component, tensor and kind."""
    parts: dict[int, dict[str, NDArray[Any]]] = {}
    for key, array in arrays.items():
        match = _COMPONENT.fullmatch(key)
        if match is None:
            raise PosteriorError(
                f"key {key!r} belongs to no component; in a mixture all but {families.PROBABILITIES} do"
            )
        parts.setdefault(int(match[1]), {})[match[2]] = array
    if sorted(parts) != list(range(len(parts))):
        raise PosteriorError(f"components {sorted(parts)} are there; expected 0, 1, .. without a gap")
    if probabilities is None:
        raise PosteriorError(f"a mixture needs {families.PROBABILITIES}")
    components = []
    for index in range(len(parts)):
        found = _by_what(parts[index], (*_SUFFIXES, _MEAN))
        means = found.pop(_MEAN, {})
        if "samples" in found:
            raise PosteriorError(f"component {index} is made of samples; a component of a mixture is a Gaussian")
        components.append(Component(means, _gaussian(found, shapes)))
    return Mixture(tuple(components), probabilities)


def _gaussian(found: dict[str, dict[str, Any]], shapes: families.Shapes) -> Gaussian:
    """The Gaussian from arrays by kind and tensor; its family follows from the kinds that are there."""
    biases = found.pop(_BIAS, {})
    variances = {**found.pop("variance", {}), **found.pop(_DEVIATION, {})}
    if variances or not found:
        if found or biases:
            raise _mixed({"variance": variances, **found})
        return families.gaussian_of(
            "gaussian_diag", {name: families.WeightTensors({"variance": value}) for name, value in variances.items()}
        )
    family = next((family for family, whats in families.STORED.items() if set(whats) == set(found)), None)
    if family is None or (biases and family != "gaussian_kron"):
        raise _mixed(found)
    names = list(dict.fromkeys(name for tensors in found.values() for name in tensors))
    entries = {}
    for name in names:
        missing = [what for what in families.STORED[family] if name not in found[what]]
        if missing:
            raise PosteriorError(f"{family} needs <initializer>_{missing[0]}, which is missing", node=name)
        entries[name] = families.WeightTensors(
            {what: found[what][name] for what in families.STORED[family]}, *_bias(name, biases, found, shapes)
        )
    if set(biases) - set(names):
        raise PosteriorError("has a joint bias, but no factors of its own", node=sorted(set(biases) - set(names))[0])
    return families.gaussian_of(family, entries)


def _bias(
    name: str, biases: Mapping[str, str], found: Mapping[str, Arrays], shapes: families.Shapes
) -> tuple[str | None, int]:
    """The joint bias of a weight and its side, which is that of the factor with one row more."""
    if name not in biases:
        return None, 1
    rows = shapes[name][0] if shapes.get(name) else 0
    return biases[name], 0 if len(found["left"][name]) == rows + 1 else 1


def _by_what(arrays: Arrays, suffixes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """what -> initializer -> array, standard deviations squared and biases as text."""
    found: dict[str, dict[str, Any]] = {}
    for key, array in arrays.items():
        what = next((suffix for suffix in suffixes if key.endswith(f"_{suffix}")), None)
        if what is None:
            expected = ", ".join(f"<initializer>_{suffix}" for suffix in suffixes)
            raise PosteriorError(f"key {key!r} is unknown; expected {expected} or {families.PROBABILITIES}")
        name = key.removesuffix(f"_{what}")
        if what == _BIAS:
            if array.dtype.kind != "U" or array.size != 1:
                raise PosteriorError(f"{key!r} is of type {array.dtype}, expected the name of an initializer")
            found.setdefault(what, {})[name] = str(array.reshape(-1)[0])
            continue
        found.setdefault(what, {})[name] = _floats(key, array)
    if twice := set(found.get("variance", {})) & set(found.get(_DEVIATION, {})):
        raise PosteriorError("the archive mixes variances and standard deviations", node=sorted(twice)[0])
    if _DEVIATION in found:
        found[_DEVIATION] = dict(families.from_standard_deviations(found[_DEVIATION]).variances)
    return found


def _mixed(found: Mapping[str, Any]) -> PosteriorError:
    known = "; ".join(f"{family}: {', '.join(whats)}" for family, whats in families.STORED.items())
    return PosteriorError(f"the archive mixes {', '.join(found)}, which is no family ({known})")


def _floats(key: str, array: NDArray[Any]) -> Floats:
    if array.dtype.kind not in "fiu":
        raise PosteriorError(f"{key!r} is of type {array.dtype}, expected numbers")
    return array.astype(np.float64)


# 2. Writing into an ONNX file

_FIRST_IR_WITH_PLAIN_INITIALIZERS = 4  # before, every initializer had to be a graph input


@names_arguments
@plain_state()
def attach(
    model: str | Path | ModelProto, posterior: Posterior, *, likelihood: str | None = None, embed: bool = False
) -> ModelProto:
    """A copy of the model that carries the posterior.

    Parameters
    ----------
    model : the posterior-mean network; simplify it before, not after
    posterior : by initializer name. Its tensors are stored in the weight's own type and mean, from then on, exactly
        what is stored. With samples or a mixture, each weight becomes its weighted mean.
    likelihood : "categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic"; None = unknown
    embed : also keep the tensors as text in the metadata, which survives every simplifier (a third larger)

    Raises
    ------
    PosteriorError : names the tensor: unknown (lists those there are), wrong shape, negative, not finite
    """
    source = model if isinstance(model, ModelProto) else read_proto(model)[0]
    proto = ModelProto()
    proto.CopyFrom(source)
    _refuse_second(proto)
    tensors = holders(proto)
    posterior = families.stated(posterior)
    families.check_posterior(posterior, float_shapes(tensors))
    proto.ir_version = max(proto.ir_version, _FIRST_IR_WITH_PLAIN_INITIALIZERS)
    content: dict[str, Any] = {"format": MANIFEST_FORMAT, "family": families.family_of(posterior)}
    if likelihood is not None:
        content["likelihood"] = families.checked_likelihood(likelihood)
    store = _Store(proto, embed)
    match posterior:
        case Mixture(components=components, probabilities=weights):
            parts = [store.component(part, index) for index, part in enumerate(components)]
            means = {
                name: families.weighted_mean(np.array([p.means[name] for p in components]), weights)
                for name in families.names_of(posterior)
            }
            content |= {"components": parts, "params": {name: store.moved(name, mean) for name, mean in means.items()}}
        case WeightSamples(stored=samples, probabilities=weights):
            params = {}
            for name, values in samples.items():
                stored = store.tensor(name, "samples", values)
                mean = families.weighted_mean(store.narrowed(name, values), weights)
                params[name] = stored | store.moved(name, mean)
            content["params"] = params
        case _:
            content["params"] = store.gaussian(posterior, "", store.mean)
    if isinstance(posterior, Mixture | WeightSamples):
        content["probabilities"] = store.probabilities(posterior.probabilities)
    write_manifest(proto, content)
    return proto


def attach_file(
    source: str | Path, posterior: Posterior, target: str | Path, *, likelihood: str | None = None, embed: bool = False
) -> Path:
    """`attach` from file to file; `target` may end in .gz.

    Raises
    ------
    OptionError : the target is the source
    PosteriorError : as `attach`; or no weight would be uncertain
    """
    from bnn_vnnlib.model.reading import write_readable

    keep_inputs(target, source)
    if not uncertain_names(posterior):
        raise PosteriorError(
            "no weight would be uncertain: all standard deviations are 0, or all samples are the same; "
            "without a posterior, verify the model as it is"
        )
    return write_readable(attach(source, posterior, likelihood=likelihood, embed=embed), target)


def uncertain_names(posterior: Posterior) -> list[str]:
    """Tensors some entry of which varies under the posterior."""
    return [name for name, variance in families.marginal_variances(posterior).items() if (variance > 0).any()]


@plain_state()
def read_posterior_npz(path: str | Path, model: Model | str | Path | ModelProto) -> Posterior:
    """Posterior for a model from a NumPy archive; `posterior_from_npz` says which keys."""
    if isinstance(model, Model):
        return posterior_from_npz(path, {name: tensor.shape for name, tensor in model.network.tensors.items()})
    proto = model if isinstance(model, ModelProto) else read_proto(model)[0]
    return posterior_from_npz(path, float_shapes(holders(proto)))


def _refuse_second(proto: ModelProto) -> None:
    if any(entry.key == KEY for entry in proto.metadata_props):
        raise PosteriorError("the model carries a posterior already; attach to the plain model instead")


@dataclass(frozen=True, eq=False)
class _Store:
    """Writes tensors into a model and says what the manifest has to hold of them."""

    proto: ModelProto
    embed: bool

    def gaussian(self, posterior: Gaussian, prefix: str, mean: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Entries of the weights; `mean` gives the part that a weight has in any family."""
        params = {}
        for name, entry in families.entries_of(posterior).items():
            params[name] = mean(name)
            for what, values in entry.tensors.items():
                params[name] |= self.tensor(name, what, values, prefix)
            if entry.bias is not None:
                params[name] |= {"bias": entry.bias, "bias_axis": entry.bias_axis}
                params[entry.bias] = mean(entry.bias) | {"layer": name}
        return params

    def component(self, component: Component, index: int) -> dict[str, Any]:
        """One part of a mixture; every weight has a mean in it, not every one a variance."""
        prefix = f"component{index}_"

        def mean(name: str) -> dict[str, Any]:
            values = component.means[name]
            return {"shape": list(values.shape), **self.tensor(name, "mean", values, prefix)}

        params = self.gaussian(component.posterior, prefix, mean)
        params |= {name: mean(name) for name in component.means if name not in params}
        return {"family": families.family_of(component.posterior), "params": params}

    def mean(self, name: str) -> dict[str, Any]:
        """Shape and fingerprint of a weight as it is."""
        values = array_of(holders(self.proto)[name])
        return {"shape": list(values.shape), "sha256_mean": fingerprint(values)}

    def moved(self, name: str, mean: NDArray[Any]) -> dict[str, Any]:
        """Put another mean in the place of a weight."""
        holder = holders(self.proto)[name]
        values = _rounded(mean, array_of(holder).dtype)
        holder.CopyFrom(numpy_helper.from_array(values, holder.name))
        return self.mean(name)

    def tensor(self, weight: str, what: str, values: NDArray[Any], prefix: str = "") -> dict[str, Any]:
        """Store a tensor of a weight in the weight's type."""
        found = self._put(weight, f"{weight}_{prefix}{what}", what, self.narrowed(weight, values))
        return found if what in families.PLAIN or what == "mean" else found | {f"shape_{what}": list(np.shape(values))}

    def probabilities(self, weights: NDArray[Any]) -> dict[str, Any]:
        """Store the probabilities of samples or components, in float64; returns their entry of the manifest."""
        values = np.asarray(weights, np.float64)
        return self._put(families.PROBABILITIES, families.PROBABILITIES, "probabilities", values) | {
            "shape": list(values.shape)
        }

    def narrowed(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """The values in the weight's type, provided that none overflows or vanishes in it."""
        element = array_of(holders(self.proto)[name]).dtype
        given = np.asarray(values, np.float64)
        stored = _rounded(given, element)
        if not np.isfinite(stored).all() or ((given != 0) & (stored == 0)).any():
            message = f"has values that {element} cannot hold (they overflow or become 0)"
            raise PosteriorError(f"{message}; store the network in float64", node=name)
        return stored

    def _put(self, weight: str, name: str, what: str, array: NDArray[Any]) -> dict[str, Any]:
        graph = self.proto.graph
        taken = {tensor.name for tensor in graph.initializer} | {info.name for info in graph.input}
        if name in taken | {output for node in graph.node for output in node.output}:
            raise PosteriorError(f"the model already has a tensor {name!r}; rename it", node=weight)
        graph.initializer.append(numpy_helper.from_array(array, name))
        entry: dict[str, Any] = {what: name, f"sha256_{what}": fingerprint(array)}
        return entry | {f"{what}_base64": embedded(array)} if self.embed else entry


def _rounded(values: NDArray[Any], element: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values).astype(element)
