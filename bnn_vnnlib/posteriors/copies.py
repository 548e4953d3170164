"""Any graph with weight samples as one graph: a copy for every sample, and the average of their outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model import WeightSamples
from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.model.recovery.graph import alone, prune
from bnn_vnnlib.posteriors.blocks import End


def merged_copies(plain: ModelProto, posterior: WeightSamples, end: End, axis: int) -> ModelProto:
    """One deterministic graph whose output is the average over the samples; what no sample changes is there once.

    Parameters
    ----------
    axis : the last axis of the output, over which a Softmax goes

    Raises
    ------
    UnsupportedError : several outputs, control flow
    """
    if len(plain.graph.output) != 1:
        raise UnsupportedError("a model with several outputs cannot be merged")
    if not all(alone(node) for node in plain.graph.node):
        raise UnsupportedError("a model with control flow cannot be merged")
    merged = ModelProto()
    merged.CopyFrom(plain)
    tensors = holders(plain)
    changed = _changed(plain, set(posterior.stored))
    del merged.graph.node[:], merged.graph.value_info[:]
    merged.graph.node.extend(node for node in plain.graph.node if changed.isdisjoint(node.output))
    output = plain.graph.output[0].name
    element = array_of(tensors[next(iter(posterior.stored))]).dtype
    ends = []
    for index in range(len(posterior.probabilities)):
        suffix = f"@{index}"
        for name, values in posterior.stored.items():
            array = values[index].astype(array_of(tensors[name]).dtype)
            merged.graph.initializer.append(numpy_helper.from_array(np.asarray(array, order="C"), name + suffix))
        merged.graph.node.extend(_renamed(plain, changed, suffix))
        ends.append(output + suffix)
    merged.graph.node.extend(_average(ends, end, axis, output))
    for index, share in enumerate(posterior.probabilities):
        merged.graph.initializer.append(numpy_helper.from_array(np.array(share, element), f"{output}.share@{index}"))
    prune(merged.graph)
    return merged


def _changed(plain: ModelProto, names: set[str]) -> set[str]:
    """Values that differ between samples."""
    changed = set(names)
    for node in plain.graph.node:
        if changed.intersection(node.input):
            changed.update(filter(None, node.output))
    return changed


def _renamed(plain: ModelProto, changed: set[str], suffix: str) -> Iterator[NodeProto]:
    for node in plain.graph.node:
        if node.op_type != "Constant" and changed.intersection(node.output):
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.name = node.name + suffix
            for names in (copy.input, copy.output):
                for place, name in enumerate(names):
                    names[place] = name + suffix if name in changed else name
            yield copy


def _average(ends: list[str], end: End, axis: int, output: str) -> Iterator[NodeProto]:
    """(Softmax or Sigmoid of) every copy's output, times its probability, summed up."""
    total = ""
    for index, value in enumerate(ends):
        if end != "outputs":
            squashed = f"{value}.squashed"
            node = helper.make_node("Softmax" if end == "softmax" else "Sigmoid", [value], [squashed], squashed)
            if end == "softmax":
                node.attribute.append(helper.make_attribute("axis", axis))
            yield node
            value = squashed
        yield helper.make_node("Mul", [value, f"{output}.share@{index}"], [f"{value}.part"], name=f"{value}.part")
        part, last = f"{value}.part", index == len(ends) - 1
        if index:
            name = output if last else f"{output}.sum@{index}"
            yield helper.make_node("Add", [total, part], [name], name=f"{output}.sum@{index}")
            total = name
        else:
            total = part
    if len(ends) == 1:
        yield helper.make_node("Identity", [total], [output], name=f"{output}.only")
