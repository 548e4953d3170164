"""The posterior inside an ONNX file: found by its manifest, or by the names of unused tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.model.manifest import STORED, Manifest, extracted, read_manifest, sha256
from bnn_vnnlib.model.network import GaussianDiagonal, Likelihood, Posterior, WeightSamples
from bnn_vnnlib.model.posterior import PROBABILITIES, SAMPLES, VARIANCE, check_posterior
from bnn_vnnlib.model.tensors import array_of, holders

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
    manifest = read_manifest(proto)
    unused = _unused(proto)
    if manifest is None:
        posterior, notes = _by_name(tensors, unused)
        likelihood = None
    else:
        posterior, notes = _by_manifest(manifest, tensors), ()
        _refuse_strays(manifest, tensors, unused)
        likelihood = manifest.likelihood
    if posterior is not None:
        check_posterior(posterior, float_shapes(tensors))
    return posterior, likelihood, (*notes, *_spare(unused, tensors))


def float_shapes(tensors: dict[str, TensorProto]) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that could carry a posterior."""
    return {name: tuple(tensor.dims) for name, tensor in tensors.items() if tensor.data_type in _FLOATS}


def _unused(proto: ModelProto) -> set[str]:
    """Initializers that no node reads and that are no output."""
    read = {name for node in proto.graph.node for name in node.input} | {info.name for info in proto.graph.output}
    return {tensor.name for tensor in proto.graph.initializer} - read


def _companion(name: str, suffix: str, tensors: dict[str, TensorProto], unused: set[str]) -> str | None:
    """W, if `name` is W_variance (or W_samples) and nothing computes with it."""
    weight = name.removesuffix(suffix)
    return weight if name.endswith(suffix) and name in unused and weight in tensors else None


def _companions(suffix: str, tensors: dict[str, TensorProto], unused: set[str]) -> dict[str, str]:
    found = {name: _companion(name, suffix, tensors, unused) for name in tensors}
    return {weight: name for name, weight in found.items() if weight is not None}


def _by_name(tensors: dict[str, TensorProto], unused: set[str]) -> tuple[Posterior | None, tuple[str, ...]]:
    variances = _companions(VARIANCE, tensors, unused)
    samples = _companions(SAMPLES, tensors, unused)
    if variances and samples:
        raise PosteriorError("the file has both *_variance and *_samples tensors and no manifest that says which count")
    if samples and PROBABILITIES not in tensors:
        raise PosteriorError(f"tensors {', '.join(samples.values())} need {PROBABILITIES!r}, which is missing")
    names = variances or samples
    if not names:
        return None, ()
    read = {weight: _floats(name, tensors) for weight, name in names.items()}
    note = f"no posterior manifest: {', '.join(names.values())} accepted by name, unchecked against the weights"
    if variances:
        return GaussianDiagonal(read), (note,)
    return WeightSamples(read, _floats(PROBABILITIES, tensors)), (note,)


def _floats(name: str, tensors: dict[str, TensorProto]) -> NDArray[np.float64]:
    array = array_of(tensors[name])
    if array.dtype.kind != "f":
        raise PosteriorError(f"is of type {array.dtype}, expected floats", node=name)
    return array.astype(np.float64)


def _by_manifest(manifest: Manifest, tensors: dict[str, TensorProto]) -> Posterior:
    what = STORED[manifest.family]
    read: dict[str, NDArray[np.float64]] = {}
    for weight, entry in manifest.params.items():
        mean = _mean(weight, entry, tensors)
        lead: tuple[int, ...] = ()
        if manifest.probabilities is not None:
            lead = tuple(_shape(PROBABILITIES, manifest.probabilities))
        read[weight] = _tensor(weight, what, entry, tensors, (*lead, *mean.shape), mean.dtype).astype(np.float64)
    if manifest.probabilities is None:
        return GaussianDiagonal(read)
    shape = _shape(PROBABILITIES, manifest.probabilities)
    double = np.dtype(np.float64)
    weights = _tensor(PROBABILITIES, "probabilities", manifest.probabilities, tensors, shape, double)
    return WeightSamples(read, weights.astype(np.float64))


def _shape(name: str, entry: dict[str, Any]) -> tuple[int, ...]:
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise PosteriorError(f"the manifest gives shape {shape!r}, expected a list of sizes", node=name)
    return tuple(shape)


def _mean(weight: str, entry: dict[str, Any], tensors: dict[str, TensorProto]) -> NDArray[Any]:
    """The weight, provided it is still the one to which the posterior was attached."""
    if weight not in tensors:
        message = f"the posterior belongs to {weight!r}, which the model no longer has (renamed, folded or fused)"
        raise PosteriorError(f"{message}: simplify first, attach after (`bnn-vnnlib simplify` does both)")
    mean = array_of(tensors[weight])
    if mean.shape != _shape(weight, entry) or sha256(mean) != entry.get("sha256_mean"):
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
    """Variance, samples or probabilities: from the tensor that the manifest names, or embedded in it."""
    if f"{what}_base64" in entry:
        array = extracted(entry[f"{what}_base64"], element, shape, weight)
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
    if sha256(array) != entry.get(f"sha256_{what}"):
        raise PosteriorError(f"its {what} changed after it was attached; {_STALE}", node=weight)
    return array


def _refuse_strays(manifest: Manifest, tensors: dict[str, TensorProto], unused: set[str]) -> None:
    """A variance beside its weight that the manifest does not list would be ignored silently."""
    for suffix in (VARIANCE, SAMPLES):
        for weight, name in _companions(suffix, tensors, unused).items():
            entry = manifest.params.get(weight, {})
            if name not in entry.values() and f"{STORED[manifest.family]}_base64" not in entry:
                raise PosteriorError(f"tensor {name!r} is not listed in the manifest; attach the posterior again")


def _spare(unused: set[str], tensors: dict[str, TensorProto]) -> list[str]:
    """A remark on unused initializers that are no part of a posterior."""
    part = {PROBABILITIES}
    part.update(name for suffix in (VARIANCE, SAMPLES) for name in _companions(suffix, tensors, unused).values())
    spare = sorted(unused - part)
    return [f"initializer {name} is used by no node and ignored" for name in spare]
