"""The posterior inside an ONNX file, found by its manifest or by the names of unused tensors.

1. The manifest (format 1): model metadata under one key, tensors beside the weights. The SHA-256 of the mean and of the
variance say whether a tool changed one without the other: a stale variance is silently wrong, which is worse than none.
A hash is over the little-endian, row-major bytes in the tensor's own type.

2. `stored_posterior`: the posterior that the manifest describes, or the names of unused tensors where there is none.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError
from bnn_vnnlib.model.attributes import array_of, holders, reads, subgraphs
from bnn_vnnlib.network import families
from bnn_vnnlib.network.network import Component, Gaussian, GaussianDiagonal, Mixture, Posterior, WeightSamples
from bnn_vnnlib.readers import parse_json
from bnn_vnnlib.signature import Likelihood

# 1. The manifest

KEY = "bnn.posterior"
MANIFEST_FORMAT = 1


@dataclass(frozen=True)
class _Manifest:
    """Contents of the metadata entry, checked for form.

    Attributes
    ----------
    family : one of `families.FAMILIES`
    params : weight name -> its entry (the tensors' names or their bytes, shapes, hashes)
    probabilities : entry of the probabilities of samples or components, else None
    components : of a mixture, the family and the params of each
    """

    family: str
    likelihood: Likelihood | None
    params: dict[str, dict[str, Any]]
    probabilities: dict[str, Any] | None
    components: tuple[_Manifest, ...] = ()

    @property
    def entries(self) -> list[dict[str, Any]]:
        """All entries, those of components and of the probabilities included."""
        found = [*self.params.values(), *(entry for part in self.components for entry in part.entries)]
        return found if self.probabilities is None else [*found, self.probabilities]


def _little_endian(array: NDArray[Any]) -> bytes:
    """Row-major bytes, least significant first."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def fingerprint(array: NDArray[Any]) -> str:
    """Fingerprint of a tensor's bytes."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.reshape(-1).view(np.uint8).data).hexdigest()


def embedded(array: NDArray[Any]) -> str:
    """Tensor as text for the manifest."""
    return base64.b64encode(_little_endian(array)).decode("ascii")


def _extracted(text: Any, element: np.dtype[Any], shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """Tensor from the manifest's text."""
    try:
        flat = np.frombuffer(base64.b64decode(text, validate=True), element.newbyteorder("<"))
        return flat.reshape(shape).astype(element)
    except (TypeError, ValueError, binascii.Error) as error:
        raise PosteriorError(f"the embedded tensor is damaged ({error})", node=name) from error


def write_manifest(proto: ModelProto, content: dict[str, Any]) -> None:
    """Put the manifest into the model's metadata."""
    entry = proto.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(content, sort_keys=True)


def _read_manifest(proto: ModelProto) -> _Manifest | None:
    """The manifest, or None if the file has none.

    Raises
    ------
    PosteriorError : damaged
    UnsupportedError : a later format or a reserved family
    """
    entries = [entry.value for entry in proto.metadata_props if entry.key == KEY]
    if not entries:
        return None
    if len(entries) > 1:
        raise PosteriorError(f"the file has {len(entries)} metadata entries {KEY!r}, expected one")
    try:
        content = parse_json(entries[0])
    except ValueError as error:
        raise _damaged(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _damaged("not a JSON object")
    if content.get("format") != MANIFEST_FORMAT:
        raise UnsupportedError(
            f"posterior format {content.get('format')!r} is not supported; this version reads {MANIFEST_FORMAT}"
        )
    family = content.get("family")
    families.refuse_family(family if isinstance(family, str) else repr(family))
    params = _params(content)
    probabilities = content.get("probabilities")
    if family in ("samples", families.MIXTURE):
        if not isinstance(probabilities, dict):
            raise _damaged("'probabilities' must be an object")
    else:
        probabilities = None
    components = _components(content) if family == families.MIXTURE else ()
    return _Manifest(str(family), _likelihood(content.get("likelihood")), params, probabilities, components)


def _params(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    params = content.get("params")
    if not isinstance(params, dict) or not params or not all(isinstance(entry, dict) for entry in params.values()):
        raise _damaged("'params' must be an object with an entry for each weight")
    return params


def _components(content: dict[str, Any]) -> tuple[_Manifest, ...]:
    parts = content.get("components")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise _damaged("'components' must be a list of objects")
    gaussian = [family for family in families.STORED if family != "samples"]
    for part in parts:
        if part.get("family") not in gaussian:
            raise _damaged(f"a component is of family {part.get('family')!r}, expected one of {', '.join(gaussian)}")
    return tuple(_Manifest(str(part["family"]), None, _params(part), None) for part in parts)


def _likelihood(stored: Any) -> Likelihood | None:
    try:
        return families.checked_likelihood(stored)
    except OptionError as error:
        raise _damaged(error.message) from error


def _damaged(what: str) -> PosteriorError:
    return PosteriorError(f"the metadata entry {KEY!r} is damaged: {what}; attach the posterior again")


_VARIANCE, _SAMPLES = "_variance", "_samples"


# 2. The posterior

_PART = re.compile(r"(.+)_component\d+_mean")
_WHATS = tuple(dict.fromkeys(what for whats in families.STORED.values() for what in whats))
_FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
_STALE = "remove the posterior and attach one that belongs to these weights"


def stored_posterior(proto: ModelProto) -> tuple[Posterior | None, Likelihood | None, tuple[str, ...]]:
    """Posterior and likelihood of a model, and remarks.

    Raises
    ------
    PosteriorError : stripped (a tensor is missing), stale (a hash differs), or invalid
    UnsupportedError : reserved family, later format
    """
    tensors = holders(proto)
    manifest = _read_manifest(proto)
    unused = _unused(proto)
    _refuse_homeless(proto, tensors)
    if manifest is None:
        posterior, notes = _by_name(tensors, unused)
        likelihood = None
    else:
        posterior, notes = _by_manifest(manifest, tensors), ()
        _refuse_strays(manifest, tensors, unused)
        likelihood = manifest.likelihood
    if posterior is not None:
        families.check_posterior(posterior, float_shapes(tensors))
    return posterior, likelihood, (*notes, *_spare(unused, tensors, manifest))


def _refuse_homeless(proto: ModelProto, tensors: dict[str, TensorProto]) -> None:
    """A variance beside a value that can carry none (computed, sparse, of a branch) would be ignored."""
    names, stored, read = set[str](), set[str](), set[str]()
    pending = [proto.graph]
    while pending:
        graph = pending.pop()
        stored.update(tensor.name for tensor in graph.initializer)
        names.update(tensor.values.name for tensor in graph.sparse_initializer)
        names.update(name for node in graph.node for name in node.output)
        read.update(info.name for info in graph.output)
        read.update(name for node in graph.node for name in node.input)
        pending += (inner for node in graph.node for inner in subgraphs(node))
    for name in sorted(stored - read):
        for suffix in (_VARIANCE, _SAMPLES):
            weight = name.removesuffix(suffix)
            if name.endswith(suffix) and weight in names | stored and weight not in tensors:
                message = f"looks like the posterior of {weight!r}, which is no dense tensor of the main graph"
                raise PosteriorError(
                    f"{message}: rename or remove it, or store {weight!r} as an initializer", node=name
                )


def float_shapes(tensors: dict[str, TensorProto]) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that could carry a posterior."""
    return {name: tuple(tensor.dims) for name, tensor in tensors.items() if tensor.data_type in _FLOATS}


def _unused(proto: ModelProto) -> set[str]:
    """Initializers that no node reads and that are no output."""
    read = {name for node in proto.graph.node for name in reads(node)} | {info.name for info in proto.graph.output}
    return {tensor.name for tensor in proto.graph.initializer} - read


def _companion(name: str, suffix: str, tensors: dict[str, TensorProto], unused: set[str]) -> str | None:
    """W, if `name` is W_variance (or W_samples) and nothing computes with it."""
    weight = name.removesuffix(suffix)
    return weight if name.endswith(suffix) and name in unused and weight in tensors else None


def _companions(suffix: str, tensors: dict[str, TensorProto], unused: set[str]) -> dict[str, str]:
    found = {name: _companion(name, suffix, tensors, unused) for name in tensors}
    return {weight: name for name, weight in found.items() if weight is not None}


def _by_name(tensors: dict[str, TensorProto], unused: set[str]) -> tuple[Posterior | None, tuple[str, ...]]:
    """The posterior that tensors carry by their names alone, with a note; None if there is none."""
    _refuse_correlated(tensors, unused)
    variances = _companions(_VARIANCE, tensors, unused)
    samples = _companions(_SAMPLES, tensors, unused)
    if variances and samples:
        raise PosteriorError("the file has both *_variance and *_samples tensors and no manifest that says which count")
    if samples and families.PROBABILITIES not in tensors:
        raise PosteriorError(f"tensors {', '.join(samples.values())} need {families.PROBABILITIES!r}, which is missing")
    names = variances or samples
    if not names:
        return None, ()
    read = {weight: _floats(name, tensors) for weight, name in names.items()}
    note = f"no posterior manifest: {', '.join(names.values())} accepted by name, unchecked against the weights"
    if variances:
        return GaussianDiagonal({weight: _doubles(values) for weight, values in read.items()}), (note,)
    return WeightSamples(read, _doubles(_floats(families.PROBABILITIES, tensors))), (note,)


def _floats(name: str, tensors: dict[str, TensorProto]) -> NDArray[Any]:
    array = array_of(tensors[name])
    if array.dtype.kind != "f":
        raise PosteriorError(f"is of type {array.dtype}, expected floats", node=name)
    return array


def _doubles(array: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # a signalling NaN stays one NaN among others, which the posterior refuses
        return array.astype(np.float64)


def _refuse_correlated(tensors: dict[str, TensorProto], unused: set[str]) -> None:
    """Refuse parts of a correlated posterior without its manifest, which would be read as a deterministic network, or
    in part.
    """
    parts = [
        name
        for what in _WHATS
        if what not in families.PLAIN
        for name in _companions(f"_{what}", tensors, unused).values()
    ]
    parts += [name for name in unused if (match := _PART.fullmatch(name)) and match[1] in tensors]
    if parts:
        message = f"tensors {', '.join(sorted(parts))} look like a correlated posterior, but its manifest is missing"
        raise PosteriorError(f"{message}: attach the posterior again, or rename or remove the tensors")


def _by_manifest(manifest: _Manifest, tensors: dict[str, TensorProto]) -> Posterior:
    """The posterior that the manifest describes."""
    means = {weight: _mean(weight, entry, tensors) for weight, entry in manifest.params.items()}
    if manifest.probabilities is None:
        return _gaussian(manifest, means, tensors)
    shape = _shape(families.PROBABILITIES, manifest.probabilities)
    double = np.dtype(np.float64)
    stored = _tensor(families.PROBABILITIES, "probabilities", manifest.probabilities, tensors, shape, double)
    weights = stored.astype(np.float64)
    if manifest.family == families.MIXTURE:
        return Mixture(tuple(_component(part, means, tensors) for part in manifest.components), weights)
    read = {
        weight: _tensor(weight, "samples", entry, tensors, (*shape, *means[weight].shape), means[weight].dtype)
        for weight, entry in manifest.params.items()
    }
    return WeightSamples(read, weights)


def _component(part: _Manifest, weights: dict[str, NDArray[Any]], tensors: dict[str, TensorProto]) -> Component:
    means = {}
    for weight, entry in part.params.items():
        if weight not in weights:
            raise PosteriorError("the manifest lists it in a component only; attach the posterior again", node=weight)
        own = weights[weight]
        means[weight] = _tensor(weight, "mean", entry, tensors, own.shape, own.dtype).astype(np.float64)
    return Component(means, _gaussian(part, weights, tensors))


def _gaussian(part: _Manifest, means: dict[str, NDArray[Any]], tensors: dict[str, TensorProto]) -> Gaussian:
    """A Gaussian family; in a component a weight may have a mean and nothing else, and is a number then."""
    first, entries = families.STORED[part.family][0], {}
    for weight, entry in part.params.items():
        if "layer" in entry or ("mean" in entry and first not in entry):
            continue
        read = {}
        for what in families.STORED[part.family]:
            mean = means[weight]
            shape = mean.shape if what in families.PLAIN else _shape(weight, entry, f"shape_{what}")
            read[what] = _tensor(weight, what, entry, tensors, shape, mean.dtype).astype(np.float64)
        entries[weight] = families.WeightTensors(read, *_bias(weight, entry, part))
    return families.gaussian_of(part.family, entries)


def _bias(weight: str, entry: dict[str, Any], part: _Manifest) -> tuple[str | None, int]:
    """The bias that shares the factors of a weight; both entries have to say so."""
    bias, axis = entry.get("bias"), entry.get("bias_axis", 1)
    partners = [name for name, other in part.params.items() if other.get("layer") == weight]
    if partners != ([] if bias is None else [bias]):
        raise PosteriorError("the manifest is at odds with itself about its bias; attach again", node=weight)
    return bias, axis


def _shape(name: str, entry: dict[str, Any], key: str = "shape") -> tuple[int, ...]:
    shape = entry.get(key)
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise PosteriorError(f"the manifest gives {key} {shape!r}, expected a list of sizes", node=name)
    return tuple(shape)


def _mean(weight: str, entry: dict[str, Any], tensors: dict[str, TensorProto]) -> NDArray[Any]:
    """The weight, provided it is still the one to which the posterior was attached."""
    if weight not in tensors:
        message = f"the posterior belongs to {weight!r}, which the model no longer has (renamed, folded or fused)"
        raise PosteriorError(f"{message}: simplify first, attach after (`bnn-vnnlib simplify` does both)")
    mean = array_of(tensors[weight])
    if mean.shape != _shape(weight, entry) or fingerprint(mean) != entry.get("sha256_mean"):
        message = (
            "the weight changed after its posterior was attached (fused, transposed, retrained), which is stale now"
        )
        raise PosteriorError(f"{message}; {_STALE}", node=weight)
    return mean


def _tensor(
    weight: str,
    what: str,
    entry: dict[str, Any],
    tensors: dict[str, TensorProto],
    shape: tuple[int, ...],
    element: np.dtype[Any],
) -> NDArray[Any]:
    """Variance, samples, ..: from the tensor that the manifest names, or embedded in it."""
    if f"{what}_base64" in entry:
        array = _extracted(entry[f"{what}_base64"], element, shape, weight)
    else:
        name = entry.get(what)
        if not isinstance(name, str):
            raise PosteriorError(f"the manifest names no {what} tensor; attach the posterior again", node=weight)
        if name not in tensors:
            message = f"its {what} {name!r} is missing: posterior stripped, probably by a simplifier"
            raise PosteriorError(
                f"{message}: simplify first, attach after (`bnn-vnnlib simplify` does both)", node=weight
            )
        array = array_of(tensors[name])
    if fingerprint(array) != entry.get(f"sha256_{what}"):
        raise PosteriorError(f"its {what} changed after it was attached; {_STALE}", node=weight)
    return array


def _refuse_strays(manifest: _Manifest, tensors: dict[str, TensorProto], unused: set[str]) -> None:
    """A variance beside its weight that the manifest does not list would be ignored silently."""
    listed = _listed(manifest)
    for what in _WHATS:
        for weight, name in _companions(f"_{what}", tensors, unused).items():
            if name not in listed and f"{what}_base64" not in manifest.params.get(weight, {}):
                raise PosteriorError(f"tensor {name!r} is not listed in the manifest; attach the posterior again")


def _listed(manifest: _Manifest) -> set[str]:
    return {value for entry in manifest.entries for value in entry.values() if isinstance(value, str)}


def _spare(unused: set[str], tensors: dict[str, TensorProto], manifest: _Manifest | None) -> list[str]:
    """A remark on unused initializers that are no part of a posterior."""
    part = {families.PROBABILITIES} | (set() if manifest is None else _listed(manifest))
    part.update(name for suffix in (_VARIANCE, _SAMPLES) for name in _companions(suffix, tensors, unused).values())
    spare = sorted(unused - part)
    return [f"initializer {name} is used by no node and ignored" for name in spare]


def without_posterior(proto: ModelProto, posterior: Posterior | None) -> ModelProto:
    """A copy without the manifest and the posterior's tensors, which are not copied on the way."""
    extra = set[str]()
    if posterior is not None:
        extra = families.tensor_names(posterior) | {families.PROBABILITIES}
        manifest = _read_manifest(proto)
        if manifest is not None:  # also tensors of weights that no node reads, which the posterior leaves out
            extra |= {entry[key] for entry in manifest.entries for key in entry if f"sha256_{key}" in entry}
        extra &= _unused(proto)
    copy = ModelProto()
    _copy_fields(proto, copy, ("graph", "metadata_props"))
    entries = proto.metadata_props
    copy.metadata_props.extend(entry for entry in entries if posterior is None or entry.key != KEY)
    _copy_fields(proto.graph, copy.graph, ("initializer", "input"))
    copy.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name not in extra)
    copy.graph.input.extend(info for info in proto.graph.input if info.name not in extra)
    return copy


def _copy_fields(source: Message, target: Message, but: tuple[str, ...]) -> None:
    """Copy what is set in one message into another, new one."""
    for field, value in source.ListFields():
        if field.name in but:
            continue
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
