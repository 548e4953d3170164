"""How randomness and input flow through a graph, and what stands in the way of a posterior.

1. `Flow`: what depends on what.
2. What an export is from which no posterior can be read, by name, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model.attributes import array_of, attribute, constant_of, label, reads, subgraphs
from bnn_vnnlib.model.operators import FROZEN_NOISE, STOCHASTIC

# 1. Flow

NORMAL = ("RandomNormal", "RandomNormalLike")
_TENSORFLOW = "StatelessRandom"  # operators of TensorFlow that tf2onnx could not convert


def is_random(node: NodeProto) -> bool:
    """The node draws random numbers (a Dropout in training mode aside)."""
    return node.op_type in STOCHASTIC or node.op_type.startswith(_TENSORFLOW)


class Flow:
    """A graph without local functions, and what depends on what.

    Attributes
    ----------
    nodes : those on which an output depends, in the file's order
    data : values that depend on an input of the network (be it only by their shape)
    drawn : values that depend on random numbers and not on the input
    """

    def __init__(self, proto: ModelProto) -> None:
        self.proto = proto
        self.stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.producer = {name: node for node in proto.graph.node for name in node.output if name}
        self.outputs = [info.name for info in proto.graph.output]
        inputs = {info.name for info in proto.graph.input} - set(self.stored)
        needed = self.ancestors(self.outputs)
        self.nodes = [node for node in proto.graph.node if needed.intersection(node.output)]
        self.data: set[str] = set(inputs)
        self.drawn: set[str] = set()
        for node in self.nodes:
            if self.data.intersection(reads(node)):
                self.data.update(filter(None, node.output))
            elif is_random(node) or self.drawn.intersection(reads(node)):
                self.drawn.update(filter(None, node.output))

    @cached_property
    def consumers(self) -> dict[str, list[NodeProto]]:
        """Live nodes that read a value."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(reads(node)):
                readers.setdefault(name, []).append(node)
        return readers

    def ancestors(self, names: Iterable[str]) -> set[str]:
        """The values themselves and all on which they depend."""
        found: set[str] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name and name not in found:
                found.add(name)
                if name in self.producer:
                    pending.extend(reads(self.producer[name]))
        return found

    def trains(self, node: NodeProto) -> bool:
        """A Dropout in training mode: by its third operand, or (opset 6) by its attribute."""
        if len(node.input) > 2 and node.input[2]:
            flag = self.plain(node.input[2])
            return flag is None or bool(np.asarray(flag).any())
        return False

    def plain(self, name: str) -> NDArray[Any] | None:
        """Value of an initializer or a Constant node; None for whatever is computed."""
        if name in self.stored:
            return array_of(self.stored[name])
        node = self.producer.get(name)
        if node is None or node.op_type != "Constant":
            return None
        return constant_of(node)

    def is_number(self, name: str, number: float) -> bool:
        """A constant of which every entry is this number."""
        value = self.plain(name)
        return value is not None and value.dtype.kind in "fiu" and bool((value == number).all())

    def frontier(self) -> list[str]:
        """Drawn values that meet the input (or an output): the weights, as the network uses them."""
        ends = dict.fromkeys(name for name in self.outputs if name in self.drawn)
        for node in self.nodes:
            if self.data.intersection(reads(node)):
                ends.update(dict.fromkeys(name for name in reads(node) if name in self.drawn))
        return list(ends)


def prune(graph: GraphProto) -> None:
    """Drop, in place, nodes and initializers on which no output depends."""
    needed = {info.name for info in graph.output}
    alive: list[NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(filter(None, node.output)):
            alive.append(node)
            needed.update(reads(node))
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    dropped = {tensor.name for tensor in graph.initializer} - {tensor.name for tensor in tensors}
    inputs = [info for info in graph.input if info.name not in dropped]
    infos = [info for info in graph.value_info if info.name in needed]
    for field, kept in ((graph.node, alive[::-1]), (graph.initializer, tensors)):
        _replace(field, kept)
    _replace(graph.input, inputs)
    _replace(graph.value_info, infos)


def _replace(field: Any, kept: Iterable[Any]) -> None:
    copies = []
    for item in kept:
        copy = type(item)()
        copy.CopyFrom(item)
        copies.append(copy)
    del field[:]
    field.extend(copies)


def alone(node: NodeProto) -> bool:
    """Whether nothing is inside the node: no subgraph in an attribute."""
    return not any(subgraphs(node))


def scalar(node: NodeProto, name: str, default: float) -> float:
    """A float attribute, also if it was written as an integer."""
    value = attribute(node, name, default) if any(part.name == name for part in node.attribute) else default
    return float(value)


# 2. Obstacles

Obstacle = Literal[
    "activation noise", "correlated", "flipout", "frozen noise", "mc dropout", "mean only", "not evaluated",
    "not gaussian", "other noise",
]  # fmt: skip

_ATTACH = "write the mean network with torch.onnx.export (or its like) and attach mean and standard deviation to it"


class NotRecoverable(UnsupportedError):
    """No posterior can be read from this export; `kind` is the diagnosis in a word or two."""

    def __init__(self, kind: Obstacle, message: str, *, node: str | None = None) -> None:
        super().__init__(message, node=node)
        self.kind = kind


def refuse_unrecoverable(flow: Flow) -> None:
    """Raise for every kind of export that is known to hold no posterior in a form that can be recovered."""
    _refuse_frozen(flow)
    random = [node for node in flow.nodes if is_random(node)]
    others = [node for node in random if node.op_type not in NORMAL]
    flipout = _signs(flow, others) or [node for node in others if "flipout" in " ".join(node.output).lower()]
    if flipout:
        raise NotRecoverable("flipout", _FLIPOUT, node=label(flipout[0]))
    dropout = [node for node in flow.nodes if node.op_type == "Dropout" and flow.trains(node)]
    if dropout:
        raise NotRecoverable("mc dropout", _DROPOUT, node=label(dropout[0]))
    if others:
        raise NotRecoverable("other noise", _OTHER, node=label(others[0]))
    if not random:
        raise NotRecoverable("mean only", _MEAN_ONLY)


def refuse_activation_noise(flow: Flow) -> None:
    """Raise if noise is left whose shape depends on the input: it is drawn for activations, not for weights."""
    for node in flow.nodes:
        if is_random(node) and node.output[0] in flow.data:
            raise NotRecoverable("activation noise", _ACTIVATION, node=label(node))


def frozen(flow: Flow) -> list[str]:
    """Initializers that hold the noise of one forward pass (BLiTZ)."""
    used = {name for node in flow.nodes if not is_random(node) for name in node.input}
    return sorted(name for name in flow.stored if name.endswith(FROZEN_NOISE) and name in used)


def _refuse_frozen(flow: Flow) -> None:
    names = frozen(flow)
    if names:
        raise NotRecoverable("frozen noise", _FROZEN.format(names=", ".join(names)))


def _signs(flow: Flow, others: Iterable[NodeProto]) -> list[NodeProto]:
    """Noise other than Gaussian that a Sign turns into random signs."""
    signed = [node.input[0] for node in flow.nodes if node.op_type == "Sign"]
    behind = {name for value in signed for name in flow.ancestors([value])}
    return [node for node in others if behind.intersection(node.output)]


_FLIPOUT = (
    "this is a Flipout export: it draws random signs for every input, and its weight noise is a perturbation kernel, "
    "not the posterior. Take mean and standard deviation from the layers themselves (bayesian-torch: mu_*, rho_*; "
    f"TFP: kernel_posterior_loc, kernel_posterior_untransformed_scale): {_ATTACH}"
)
_DROPOUT = (
    "this is an MC-dropout export (Dropout in training mode): its posterior is one of masks, which no Gaussian is. "
    "verify --guarantee statistical takes the file as it is. Export in eval mode for the one network of the weights, "
    "or draw S networks yourself and attach them as samples"
)
_OTHER = (
    "this is a stochastic export that draws random numbers which are not Gaussian: no Gaussian posterior can be read "
    f"from it. If you have one, {_ATTACH}"
)
_MEAN_ONLY = (
    "the graph draws no random numbers, so there is nothing to recover: it is one network, either the posterior mean "
    "or one frozen sample (a graph cannot tell which; IVON and most optimisers export this). The posterior is in your "
    "training program: attach it with `bnn-vnnlib attach`, or fit one with `bnn-vnnlib convert`"
)
_FROZEN = (
    "the noise of one forward pass is stored in {names} (a BLiTZ layer keeps it in a buffer): the file computes one "
    "sample of the weights, not their posterior. `bnn-vnnlib recover EXPORT OUT --frozen-noise` takes these tensors "
    "for the standard normal noise as which they were drawn"
)
_ACTIVATION = (
    "this stochastic export adds noise to activations, and not by a local reparameterisation that this version knows "
    "(mean + sqrt(x^2 S) * noise with the same x): no posterior over weights can be read from it. "
    f"{_ATTACH.capitalize()}"
)
