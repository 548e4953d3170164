"""Writing a posterior into an ONNX file (format 1 of docs/onnx.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.model.files import read_proto, write_model
from bnn_vnnlib.model.manifest import FORMAT, KEY, STORED, embedded, sha256, write_manifest
from bnn_vnnlib.model.network import GaussianDiagonal, Model, Posterior
from bnn_vnnlib.model.posterior import (
    PROBABILITIES,
    check_posterior,
    checked_likelihood,
    posterior_from_npz,
    weighted_mean,
)
from bnn_vnnlib.model.stored import float_shapes
from bnn_vnnlib.model.tensors import array_of, holders

_FIRST_IR_WITH_PLAIN_INITIALIZERS = 4  # before, every initializer had to be a graph input


def attach(
    model: str | Path | ModelProto, posterior: Posterior, *, likelihood: str | None = None, embed: bool = False
) -> ModelProto:
    """A copy of the model that carries the posterior.

    Parameters
    ----------
    model : the posterior-mean network; simplify it before, not after
    posterior : by initializer name. Variances and samples are stored in the weight's own type and mean, from then on,
        exactly what is stored. With samples, each weight becomes its weighted mean.
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
    check_posterior(posterior, float_shapes(tensors))
    proto.ir_version = max(proto.ir_version, _FIRST_IR_WITH_PLAIN_INITIALIZERS)
    gaussian = isinstance(posterior, GaussianDiagonal)
    family = "gaussian_diag" if gaussian else "samples"
    content: dict[str, Any] = {"format": FORMAT, "family": family, "params": {}}
    if likelihood is not None:
        content["likelihood"] = checked_likelihood(likelihood)
    given = posterior.variances if isinstance(posterior, GaussianDiagonal) else posterior.samples
    for name, values in given.items():
        holder = tensors[name]
        mean = array_of(holder)
        stored = _narrowed(name, values, mean.dtype)
        if not isinstance(posterior, GaussianDiagonal):
            mean = _rounded(weighted_mean(stored, posterior.probabilities), mean.dtype)
            holder.CopyFrom(numpy_helper.from_array(mean, holder.name))
        entry = _stored(proto, name, STORED[family], stored, embed)
        content["params"][name] = entry | {"shape": list(mean.shape), "sha256_mean": sha256(mean)}
    if not isinstance(posterior, GaussianDiagonal):
        weights = np.asarray(posterior.probabilities, np.float64)
        entry = _stored(proto, PROBABILITIES, "probabilities", weights, embed)
        content["probabilities"] = entry | {"shape": list(weights.shape)}
    write_manifest(proto, content)
    return proto


def attach_file(
    source: str | Path, posterior: Posterior, target: str | Path, *, likelihood: str | None = None, embed: bool = False
) -> Path:
    """`attach` from file to file; `target` may end in .gz."""
    return write_model(attach(source, posterior, likelihood=likelihood, embed=embed), target)


def read_posterior_npz(path: str | Path, model: Model | str | Path | ModelProto) -> Posterior:
    """Posterior for a model from a NumPy archive; `posterior_from_npz` says which keys."""
    if isinstance(model, Model):
        return posterior_from_npz(path, {name: tensor.shape for name, tensor in model.network.tensors.items()})
    proto = model if isinstance(model, ModelProto) else read_proto(model)[0]
    return posterior_from_npz(path, float_shapes(holders(proto)))


def _refuse_second(proto: ModelProto) -> None:
    if any(entry.key == KEY for entry in proto.metadata_props):
        raise PosteriorError("the model carries a posterior already; attach to the plain model instead")


def _narrowed(name: str, values: NDArray[Any], element: np.dtype[Any]) -> NDArray[Any]:
    """The values in the weight's type, provided that none overflows or vanishes in it."""
    given = np.asarray(values, np.float64)
    stored = _rounded(given, element)
    if not np.isfinite(stored).all() or ((given != 0) & (stored == 0)).any():
        message = f"has values that {element} cannot hold (they overflow or become 0)"
        raise PosteriorError(f"{message}; store the network in float64", node=name)
    return stored


def _rounded(values: NDArray[Any], element: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values).astype(element)


def _stored(proto: ModelProto, weight: str, what: str, array: NDArray[Any], embed: bool) -> dict[str, Any]:
    """Add a tensor (and, if asked, its text); returns its part of the manifest."""
    name = weight if weight == PROBABILITIES else f"{weight}_{what}"
    taken = {tensor.name for tensor in proto.graph.initializer} | {info.name for info in proto.graph.input}
    if name in taken | {output for node in proto.graph.node for output in node.output}:
        raise PosteriorError(f"the model already has a tensor {name!r}; rename it", node=weight)
    proto.graph.initializer.append(numpy_helper.from_array(array, name))
    entry: dict[str, Any] = {what: name, f"sha256_{what}": sha256(array)}
    if embed:
        entry[f"{what}_base64"] = embedded(array)
    return entry
