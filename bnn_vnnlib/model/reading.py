"""ONNX file -> Model: the network, its posterior and the remarks for the user."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper

from bnn_vnnlib.errors import InputError, ModelError, PosteriorError, UnsupportedError, names_arguments, naming
from bnn_vnnlib.model.attributes import array_of, holders, inlined
from bnn_vnnlib.model.files import read_proto, serialised, write_model
from bnn_vnnlib.model.importer import import_graph, left_out_outputs
from bnn_vnnlib.model.masks import with_masks
from bnn_vnnlib.model.recovery import NotRecoverable, is_stochastic, recover
from bnn_vnnlib.model.stochastic import KEPT, with_draws
from bnn_vnnlib.model.stored import stored_posterior, without_posterior
from bnn_vnnlib.network.families import checked_likelihood, names_of, only
from bnn_vnnlib.network.network import DropoutMasks, Model, Sampler, WeightSamples
from bnn_vnnlib.signature import Likelihood, Signature
from bnn_vnnlib.system.environment import plain_state

_REPLAYABLE_IR = 10  # what every onnxruntime since 1.18 accepts


@names_arguments
@plain_state()
def read_model(path: str | Path, *, likelihood: str | None = None) -> Model:
    """Read an ONNX file and the posterior in it; from a stochastic export, the posterior is recovered, with a note.

    Parameters
    ----------
    path : `.onnx`, `.onnx.gz`, or a name of which only `<path>.gz` exists
    likelihood : overrides what the file says

    Raises
    ------
    ModelError : unreadable or inconsistent file
    PosteriorError : posterior stripped, stale or invalid
    UnsupportedError : an operator or a posterior family that is not supported, by name; a stochastic export from which
        no posterior can be recovered (`recovery.NotRecoverable`)
    """
    chosen = checked_likelihood(likelihood)
    proto, found = read_proto(path)
    with naming(found):
        return model_from_proto(proto, likelihood=chosen, path=found)


@names_arguments
@plain_state()
def model_from_proto(proto: ModelProto, *, likelihood: Likelihood | None = None, path: Path | None = None) -> Model:
    """`read_model` for a model in memory (no external data)."""
    return read_prepared(prepared(proto), likelihood=likelihood, path=path)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A graph in which nothing is random: what was drawn in it are tensors.

    drawn : how these are drawn, where the file itself cannot hold their posterior; None: it does, or there is none
    """

    proto: ModelProto
    drawn: Sampler | DropoutMasks | None
    notes: tuple[str, ...]


def prepared(proto: ModelProto) -> Prepared:
    """A stochastic export with its posterior recovered, or as it is; masks of dropout as tensors; else the file.

    Raises
    ------
    UnsupportedError : what is random, and can be neither recovered nor kept
    """
    notes: tuple[str, ...] = ()
    if is_stochastic(proto):
        try:
            recovery = recover(proto)
        except NotRecoverable as reason:
            if reason.kind not in KEPT:
                raise
            return Prepared(*with_draws(proto, reason))
        proto, notes = recovery.proto, recovery.notes
    proto, ratios, masked = with_masks(proto)
    return Prepared(proto, DropoutMasks(ratios) if ratios else None, (*notes, *masked))


def read_prepared(found: Prepared, *, likelihood: Likelihood | None = None, path: Path | None = None) -> Model:
    """`model_from_proto` of a prepared graph."""
    posterior, declared, remarks = stored_posterior(found.proto)
    if found.drawn is not None and posterior is not None:
        raise UnsupportedError("random nodes beside a posterior over weights are not supported")
    proto = without_posterior(found.proto, posterior)  # what follows copies the graph, some parts several times
    posterior = posterior if found.drawn is None else found.drawn
    sampled = isinstance(posterior, WeightSamples | Sampler)
    network, notes = import_graph(proto, names_of(posterior), sampled=sampled)
    notes = (*found.notes, *remarks, *notes)
    complete = None
    if left_out_outputs(inlined(proto)):
        with contextlib.suppress(InputError):  # nobody asked for them yet
            complete = import_graph(proto, names_of(posterior), every_output=True, sampled=sampled)[0]
            network = replace(network, signature=replace(network.signature, every_output=complete.signature.outputs))
    unused = [name for name in names_of(posterior) if name not in network.tensors]
    if posterior is not None and unused:
        notes += tuple(f"the posterior of {name} is ignored: no node uses that weight" for name in unused)
        posterior = only(posterior, network.tensors)
        if posterior is None:
            raise PosteriorError("no node uses any of the weights that carry the posterior")
    if likelihood is not None and declared not in (None, likelihood):
        notes += (f"likelihood {likelihood} as asked for; the file says {declared}",)
    data, remark = _replayable(proto, network.signature)
    return Model(network, posterior, likelihood or declared, path, data, (*notes, *remark), complete)


def write_readable(proto: ModelProto, path: str | Path) -> Path:
    """`write_model`, if this program reads what is written: the very bytes are read back before the file has its name.

    Raises
    ------
    ModelError : the file cannot be written, or not be read back; there is no file then
    """

    def check(written: Path) -> None:
        try:
            read_model(written)
        except InputError as error:
            error.path = None
            raise ModelError(f"nothing is written, because it could not be read back: {error}", path=path) from error

    return write_model(proto, path, check)


def _replayable(proto: ModelProto, signature: Signature) -> tuple[bytes, tuple[str, ...]]:
    """The graph for onnxruntime, made acceptable to it where the file is not, without changing what it computes."""
    notes = []
    own = ModelProto()
    own.CopyFrom(proto)
    if proto.ir_version > onnx.IR_VERSION:
        newest = f"newer than the installed onnx knows ({onnx.IR_VERSION})"
        notes.append(f"IR version {proto.ir_version} is {newest}; read all the same")
        own.ir_version = _REPLAYABLE_IR
    inputs = {info.name: info.type.tensor_type.elem_type for info in proto.graph.input}
    weights = [tensor for tensor in holders(own).values() if tensor.data_type == TensorProto.FLOAT]
    casts = any(node.op_type == "Cast" for node in proto.graph.node)
    double = all(kind == TensorProto.DOUBLE for name, kind in inputs.items() if name not in holders(proto))
    if weights and double and not casts:
        notes.append("float32 weights with a float64 input, which ONNX does not allow: taken as float64, exactly")
        for tensor in weights:
            tensor.CopyFrom(numpy_helper.from_array(array_of(tensor).astype(np.float64), tensor.name))
    given = {info.name for info in own.graph.output}
    own.graph.output.extend(ValueInfoProto(name=one.name) for one in signature.outputs if one.name not in given)
    return serialised(own), tuple(notes)
