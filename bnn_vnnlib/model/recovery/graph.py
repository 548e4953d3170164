"""How randomness and input flow through a graph."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto

from bnn_vnnlib.model.attributes import array_of, attribute, constant_of
from bnn_vnnlib.model.inlining import reads, subgraphs
from bnn_vnnlib.model.operators import STOCHASTIC

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
    """Nothing inside it: no subgraph in an attribute."""
    return not any(subgraphs(node))


def scalar(node: NodeProto, name: str, default: float) -> float:
    """A float attribute, also if it was written as an integer."""
    value = attribute(node, name, default) if any(part.name == name for part in node.attribute) else default
    return float(value)
