"""A stochastic export as it is: the part of its graph that draws the weights, kept as a program that draws them.

Where no Gaussian can be read from the graph (`recovery`), it still says how a network is drawn. The values that are
drawn without the input, where they meet it, are the weights. They become tensors of the network, and what computes them
a `Sampler`: random nodes get their numbers from its generator (normal, uniform, Bernoulli), onnxruntime computes the
rest, in the types of the file. The law of the weights is that of the numbers which come out. The tensors themselves
hold the mean of some draws, which is what the mean network is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model.attributes import inlined, label, raw_attribute
from bnn_vnnlib.model.recovery.graph import Flow, NotRecoverable, is_random, prune, refuse_activation_noise, scalar
from bnn_vnnlib.model.recovery.recover import make_initializer, without_random_outputs
from bnn_vnnlib.model.replay import session_of
from bnn_vnnlib.network.network import Sampler

KEPT = ("correlated", "not gaussian", "other noise")
"""Kinds of random weights of which no Gaussian is recovered, and which are drawn as the graph draws them instead."""

MEAN_OF = 256
"""Draws whose mean stands for the weights."""

_Noise = Callable[[np.random.Generator], NDArray[Any]]


def with_draws(proto: ModelProto, reason: NotRecoverable) -> tuple[ModelProto, Sampler, tuple[str, ...]]:
    """The graph with weights in the place of what draws them, how they are drawn, and notes.

    Parameters
    ----------
    reason : why no Gaussian was recovered; raised where nothing can be drawn from, either

    Raises
    ------
    UnsupportedError : noise for every input, random operators or shapes that are not known, a program that onnxruntime
        cannot run
    """
    own = ModelProto()
    own.CopyFrom(inlined(proto))
    notes = without_random_outputs(own)
    flow = Flow(own)
    refuse_activation_noise(flow)
    names = flow.frontier()
    if not names or set(names) & set(flow.outputs):
        raise reason
    program, noise = _program(flow, names, reason)
    session = session_of(program.SerializeToString())
    size = sum(len(node.output) for node in program.graph.node)

    def draw(count: int, rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
        """The weights of `count` networks, one run of the program for each."""
        found = []
        for _ in range(count):
            found.append(session.run(names, {name: one(rng) for name, one in noise.items()}))
        return {name: np.stack(parts) for name, parts in zip(names, zip(*found, strict=True), strict=True)}

    try:
        first = draw(MEAN_OF, np.random.default_rng(0))
    except Exception as error:
        raise UnsupportedError(f"the part of the graph that draws weights cannot be run: {error}") from error
    for name, values in first.items():
        if values.dtype.kind != "f":
            raise UnsupportedError("a drawn value that is no floating-point number", node=name)
        make_initializer(own, name, values.mean(0, dtype=np.float64).astype(values.dtype))
    prune(own.graph)
    told = (
        f"the weights are drawn by a part of the graph ({len(noise)} random nodes, {size} values), which is kept as it "
        f"is: {reason.message}"
    )
    mean = f"what stands for the mean network is the mean of {MEAN_OF} draws"
    what = "what a part of the graph draws, not a Gaussian posterior"
    return own, Sampler(draw, tuple(names), what), (told, mean, *notes)


def _program(flow: Flow, names: list[str], reason: NotRecoverable) -> tuple[ModelProto, dict[str, _Noise]]:
    """The nodes in front of the weights, with inputs in the place of noise, and what each of these is drawn by."""
    needed = flow.ancestors(names)
    nodes = [node for node in flow.nodes if needed.intersection(node.output)]
    shapes = _shapes(flow)
    kept, inputs, noise = list[NodeProto](), [], dict[str, _Noise]()
    for node in nodes:
        if not is_random(node):
            kept.append(node)
            continue
        out, (shape, kind) = node.output[0], _kind(node, shapes)
        name = out
        if node.op_type == "Bernoulli":
            name, fits = f"{out}.uniform", f"{out}.below"
            kept += [
                helper.make_node("Less", [name, node.input[0]], [fits]),
                helper.make_node("Cast", [fits], [out], to=kind),
            ]
            kind = shapes[node.input[0]][1]
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        noise[name] = _drawn_by(node, shape, dtype, reason)
        inputs.append(helper.make_tensor_value_info(name, kind, shape))
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    stored = [tensor for name, tensor in flow.stored.items() if name in needed]
    graph = helper.make_graph(kept, "draws", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=flow.proto.opset_import, ir_version=flow.proto.ir_version), noise


def _shapes(flow: Flow) -> dict[str, tuple[tuple[int, ...], int]]:
    """Shape and type of every value of which onnx knows both."""
    graph = onnx.shape_inference.infer_shapes(flow.proto, data_prop=True).graph
    found = {name: (tuple(tensor.dims), tensor.data_type) for name, tensor in flow.stored.items()}
    for info in (*graph.input, *graph.value_info, *graph.output):
        kind = info.type.tensor_type
        sizes = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in kind.shape.dim]
        if kind.HasField("shape") and min(sizes, default=0) >= 0:
            found.setdefault(info.name, (tuple(sizes), kind.elem_type))
    return found


def _kind(node: NodeProto, shapes: dict[str, tuple[tuple[int, ...], int]]) -> tuple[tuple[int, ...], int]:
    """Shape and type of what a random node draws."""
    kind = raw_attribute(node, "dtype")
    if not node.input:
        return tuple(raw_attribute(node, "shape") or ()), int(TensorProto.FLOAT if kind is None else kind)
    if node.input[0] not in shapes:
        raise UnsupportedError("draws numbers, and the file does not say how many", node=label(node))
    shape, own = shapes[node.input[0]]
    return shape, int(own if kind is None else kind)


def _drawn_by(node: NodeProto, shape: tuple[int, ...], dtype: Any, reason: NotRecoverable) -> _Noise:
    """What draws the numbers of a random node; of Bernoulli the uniform ones."""
    match node.op_type:
        case "RandomNormal" | "RandomNormalLike":
            mean, scale = scalar(node, "mean", 0.0), scalar(node, "scale", 1.0)
            return lambda rng: (mean + scale * rng.standard_normal(shape)).astype(dtype)
        case "RandomUniform" | "RandomUniformLike":
            low, high = scalar(node, "low", 0.0), scalar(node, "high", 1.0)
            return lambda rng: (low + (high - low) * rng.random(shape)).astype(dtype)
        case "Bernoulli":
            return lambda rng: rng.random(shape, dtype=np.float32 if dtype == np.float32 else np.float64).astype(dtype)
        case _:
            raise reason
