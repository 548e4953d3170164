"""Several networks of one architecture as one sample posterior."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from bnn_vnnlib.errors import OptionError, PosteriorError
from bnn_vnnlib.model import WeightSamples
from bnn_vnnlib.model.attributes import array_of, holders, label
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.recovery.graph import Flow


def ensemble_posterior(first: ModelProto, others: Sequence[str | Path]) -> WeightSamples:
    """Samples of the weights that differ, by the first network's names; all networks count alike.

    Raises
    ------
    PosteriorError : a network has another graph, or other shapes; names file and node
    OptionError : no other network, or no difference
    """
    if not others:
        raise OptionError("an ensemble needs two networks or more: name the others with --member")
    own = _floats(first)
    members = [own]
    for path in others:
        proto, found = read_proto(path)
        try:
            names = _correspondence(first, proto)
            theirs = _floats(proto)
            members.append({name: theirs[names[name]] for name in own if name in names})
        except PosteriorError as error:
            error.path = found
            raise
    shared = [name for name in own if all(name in member for member in members)]
    samples = {name: np.array([member[name] for member in members], np.float64) for name in shared}
    different = {name: stack for name, stack in samples.items() if (stack != stack[0]).any()}
    if not different:
        raise OptionError("the networks have the same weights")
    return WeightSamples(different, np.full(len(members), 1 / len(members)))


def _floats(proto: ModelProto) -> dict[str, NDArray]:
    arrays = {name: array_of(tensor) for name, tensor in holders(proto).items()}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def _correspondence(first: ModelProto, other: ModelProto) -> dict[str, str]:
    """Names of the one graph -> names of the other, provided that they are the same graph."""
    mine, theirs = Flow(first), Flow(other)
    names: dict[str, str] = {}
    for ours, its in zip(_inputs(first), _inputs(other), strict=False):
        names[ours] = its
    a, b = (list(_operations(flow)) for flow in (mine, theirs))
    if len(a) != len(b) or len(_inputs(first)) != len(_inputs(other)):
        raise PosteriorError(f"another architecture: {len(b)} nodes, expected {len(a)}")
    values = [{name: array_of(tensor) for name, tensor in holders(proto).items()} for proto in (first, other)]
    for node, twin in zip(a, b, strict=True):
        if not _same(node, twin):
            raise PosteriorError(f"another architecture: expected {label(node)} with its attributes", node=label(twin))
        for ours, its in (*zip(node.input, twin.input, strict=True), *zip(node.output, twin.output, strict=True)):
            if names.setdefault(ours, its) != its:
                raise PosteriorError(f"another architecture: reads {its!r}, expected {names[ours]!r}", node=label(twin))
            _compare(values[0].get(ours), values[1].get(its), its)
    return names


def _inputs(proto: ModelProto) -> list[str]:
    stored = {tensor.name for tensor in proto.graph.initializer}
    return [info.name for info in proto.graph.input if info.name not in stored]


def _operations(flow: Flow) -> list[NodeProto]:
    return [node for node in flow.nodes if node.op_type != "Constant"]


def _same(node: NodeProto, twin: NodeProto) -> bool:
    counts = (len(node.input), len(node.output)) == (len(twin.input), len(twin.output))
    kinds = (node.op_type, node.domain) == (twin.op_type, twin.domain)
    parts = [sorted(part.SerializeToString() for part in one.attribute) for one in (node, twin)]
    return counts and kinds and parts[0] == parts[1]


def _compare(ours: NDArray | None, its: NDArray | None, name: str) -> None:
    if (ours is None) != (its is None):
        raise PosteriorError("is stored in one network and computed in the other", node=name)
    if ours is None or its is None:
        return
    if ours.shape != its.shape or ours.dtype != its.dtype:
        found, expected = f"shape {its.shape}, type {its.dtype}", f"{ours.shape}, {ours.dtype}"
        raise PosteriorError(f"another architecture: has {found}, expected {expected}", node=name)
    if ours.dtype.kind != "f" and not np.array_equal(ours, its):
        raise PosteriorError("holds other integers: another architecture", node=name)
