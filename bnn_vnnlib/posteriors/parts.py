"""A model taken apart: the plain network and its posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from bnn_vnnlib.errors import InputError, PosteriorError
from bnn_vnnlib.model import Likelihood, Model, Posterior, attach, model_from_proto
from bnn_vnnlib.model.families import tensor_names
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.manifest import KEY, read_manifest
from bnn_vnnlib.model.posterior import PROBABILITIES, checked_likelihood
from bnn_vnnlib.model.recovery import is_stochastic, recover
from bnn_vnnlib.model.tensors import array_of, holders


@dataclass(frozen=True, eq=False)
class Parts:
    """What a file holds.

    Attributes
    ----------
    plain : the network alone, with the posterior means
    posterior : None for a deterministic network
    model : the same, read and checked
    """

    plain: ModelProto
    posterior: Posterior | None
    likelihood: Likelihood | None
    model: Model

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks of the reader."""
        return self.model.notes


def read_parts(path: str | Path, *, likelihood: str | None = None) -> Parts:
    """Read a file and take it apart; a stochastic export is recovered first.

    Raises
    ------
    InputError : whatever `read_model` refuses
    """
    chosen = checked_likelihood(likelihood)
    proto, found = read_proto(path)
    try:
        if is_stochastic(proto):
            proto = recover(proto).proto
        model = model_from_proto(proto, likelihood=chosen, path=found)
    except InputError as error:
        error.path = error.path or found
        raise
    return Parts(without_posterior(proto, model.posterior), model.posterior, model.likelihood, model)


def with_posterior(parts: Parts, posterior: Posterior) -> Parts:
    """The plain network with a posterior from elsewhere.

    Raises
    ------
    PosteriorError : the model has one already, or it does not fit
    """
    if parts.posterior is not None:
        raise PosteriorError("the model carries a posterior already; leave the other one out", path=parts.model.path)
    proto = attach(parts.plain, posterior, likelihood=parts.likelihood)
    model = model_from_proto(proto, path=parts.model.path)
    return Parts(without_posterior(proto, model.posterior), model.posterior, model.likelihood, model)


def without_posterior(proto: ModelProto, posterior: Posterior | None) -> ModelProto:
    """A copy without the manifest and the posterior's tensors."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    if posterior is None:
        return copy
    extra = tensor_names(posterior) | {PROBABILITIES}
    manifest = read_manifest(proto)
    if manifest is not None:  # also tensors of weights that no node reads, which the posterior leaves out
        extra |= {entry[key] for entry in manifest.entries for key in entry if f"sha256_{key}" in entry}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in extra]
    inputs = [info for info in proto.graph.input if info.name not in extra]
    entries = [entry for entry in proto.metadata_props if entry.key != KEY]
    del copy.graph.initializer[:], copy.graph.input[:], copy.metadata_props[:]
    copy.graph.initializer.extend(kept)
    copy.graph.input.extend(inputs)
    copy.metadata_props.extend(entries)
    return copy


def with_values(proto: ModelProto, values: Mapping[str, NDArray]) -> ModelProto:
    """A copy with other numbers in some tensors, rounded to the tensors' types."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    tensors = holders(copy)
    for name, array in values.items():
        old = array_of(tensors[name])
        new = np.asarray(array, np.float64).reshape(old.shape).astype(old.dtype)
        tensors[name].CopyFrom(numpy_helper.from_array(np.asarray(new, order="C"), tensors[name].name))
    return copy
