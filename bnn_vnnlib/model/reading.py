"""ONNX file -> Model: the network, its posterior and the remarks for the user."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto

from bnn_vnnlib.errors import InputError, PosteriorError
from bnn_vnnlib.model.files import read_proto, serialised
from bnn_vnnlib.model.importer import import_graph
from bnn_vnnlib.model.network import Likelihood, Model
from bnn_vnnlib.model.posterior import checked_likelihood, names_of, only
from bnn_vnnlib.model.stored import stored_posterior

_REPLAYABLE_IR = 10  # what every onnxruntime since 1.18 accepts


def read_model(path: str | Path, *, likelihood: str | None = None) -> Model:
    """Read an ONNX file and the posterior in it.

    Parameters
    ----------
    path : `.onnx`, `.onnx.gz`, or a name of which only `<path>.gz` exists
    likelihood : overrides what the file says

    Raises
    ------
    ModelError : unreadable or inconsistent file
    PosteriorError : posterior stripped, stale or invalid
    UnsupportedError : an operator or a posterior family that is not supported, by name
    """
    chosen = checked_likelihood(likelihood)
    proto, found = read_proto(path)
    try:
        return model_from_proto(proto, likelihood=chosen, path=found)
    except InputError as error:
        if error.path is None:
            error.path = found
        raise


def model_from_proto(proto: ModelProto, *, likelihood: Likelihood | None = None, path: Path | None = None) -> Model:
    """`read_model` for a model in memory (no external data)."""
    posterior, declared, remarks = stored_posterior(proto)
    network, notes = import_graph(proto, names_of(posterior))
    notes = (*remarks, *notes)
    unused = [name for name in names_of(posterior) if name not in network.tensors]
    if posterior is not None and unused:
        notes += tuple(f"the posterior of {name} is ignored: no node uses that weight" for name in unused)
        posterior = only(posterior, network.tensors)
        if posterior is None:
            raise PosteriorError("no node uses any of the weights that carry the posterior")
    if likelihood is not None and declared not in (None, likelihood):
        notes += (f"likelihood {likelihood} as asked for; the file says {declared}",)
    data, remark = _replayable(proto)
    return Model(network, posterior, likelihood or declared, path, data, (*notes, *remark))


def _replayable(proto: ModelProto) -> tuple[bytes, tuple[str, ...]]:
    """The graph for onnxruntime: a container version that is newer than the library is lowered."""
    if proto.ir_version <= onnx.IR_VERSION:
        return serialised(proto), ()
    note = f"IR version {proto.ir_version} is newer than the installed onnx knows ({onnx.IR_VERSION}); read all the same"
    lowered = ModelProto()
    lowered.CopyFrom(proto)
    lowered.ir_version = _REPLAYABLE_IR
    return serialised(lowered), (note,)
