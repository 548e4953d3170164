"""Dropout in training mode (MC dropout) as a posterior: a mask for each network, in the place of noise for each run.

A node Dropout(x, ratio) in training mode multiplies x by a random mask with entries 0, with probability `ratio`, and
1 / (1 - ratio). Drawn once and used for every input, such a mask is a random tensor of the network. So the node
becomes Mul(x, mask), the mask an initializer of ones, which is its mean, and a `DropoutMasks` posterior says how it is
drawn. The mean network is then that of the inference mode.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model.attributes import inlined, label
from bnn_vnnlib.model.recovery.graph import Flow

_NOTE = "dropout in training mode: one mask a network, which all inputs share; the posterior is that of the masks"


def with_masks(proto: ModelProto) -> tuple[ModelProto, dict[str, float], tuple[str, ...]]:
    """The graph with masks as tensors, their ratios by name, and notes; the graph itself where nothing trains.

    Raises
    ------
    UnsupportedError : a mask whose shape follows an open axis, a ratio that is computed, a mask that is used elsewhere
    """
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    if not any(node.op_type == "Dropout" for node in nodes):
        return proto, {}, ()
    flow = Flow(inlined(proto))
    training = [
        node for node in flow.nodes if node.op_type == "Dropout" and flow.trains(node) and node.input[0] in flow.data
    ]
    if not training:
        return proto, {}, ()
    own = ModelProto()
    own.CopyFrom(inlined(proto))
    kinds = {info.name: info.type.tensor_type for info in _inferred(own)}
    names = {tensor.name for tensor in own.graph.initializer} | {name for one in own.graph.node for name in one.output}
    ratios: dict[str, float] = {}
    for node in training:
        name = f"{node.output[0]}_mask"
        while name in names:
            name += "_"
        names.add(name)
        shape = _shape(flow, node, kinds)
        ratios[name] = _ratio(flow, node)
        (place,) = (i for i, one in enumerate(own.graph.node) if node.output[0] in one.output)
        own.graph.node[place].CopyFrom(helper.make_node("Mul", [node.input[0], name], [node.output[0]], name=node.name))
        dtype = helper.tensor_dtype_to_np_dtype(kinds[node.input[0]].elem_type)
        own.graph.initializer.append(numpy_helper.from_array(np.ones(shape, dtype), name))
    return own, ratios, (_NOTE,)


def _inferred(proto: ModelProto) -> list[onnx.ValueInfoProto]:
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    return [*graph.input, *graph.value_info, *graph.output]


def _shape(flow: Flow, node: NodeProto, kinds: dict[str, onnx.TypeProto.Tensor]) -> tuple[int, ...]:
    kind = kinds.get(node.input[0])
    sizes = () if kind is None else tuple(axis.dim_value for axis in kind.shape.dim)
    if kind is None or not all(sizes):
        raise UnsupportedError(
            "runs in training mode, with a mask whose shape follows an open axis: such noise is drawn for each input, "
            "and there is no one network; export with a batch of 1", node=label(node),
        )  # fmt: skip
    mask = node.output[1] if len(node.output) > 1 else ""
    if mask in flow.consumers or mask in flow.outputs:
        raise UnsupportedError("runs in training mode, and its mask is used elsewhere, too", node=label(node))
    return sizes


def _ratio(flow: Flow, node: NodeProto) -> float:
    """Ratio of a Dropout in training mode: its second operand, 0.5 where it is left out."""
    if len(node.input) < 2 or not node.input[1]:
        return 0.5
    value = flow.plain(node.input[1])
    if value is None or value.size != 1 or not 0 <= float(value.reshape(())) < 1:
        raise UnsupportedError("runs in training mode with a ratio that is no constant of [0, 1)", node=label(node))
    return float(value.reshape(()))
