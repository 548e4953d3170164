"""The part of a graph in front of the weights, run as a function of its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.model.attributes import array_of, label, raw_attribute
from bnn_vnnlib.model.recovery.graph import NORMAL, Flow, NotRecoverable, alone, is_random, scalar

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT)


class GraphDraws:
    """Values of a graph as functions of its Gaussian noise, at one input.

    Parameters
    ----------
    names : the values that are wanted
    feeds : the network's inputs, if a value depends on them
    double : compute in float64 whatever the file says (weights stay the numbers in the file)

    Raises
    ------
    NotRecoverable : an operator that cannot be evaluated; names the node
    """

    def __init__(
        self, flow: Flow, names: Sequence[str], *, feeds: Mapping[str, NDArray[Any]] | None = None, double: bool = True
    ) -> None:
        self.names = list(names)
        needed = flow.ancestors(self.names)
        self._feeds = {
            name: np.asarray(value, np.float64 if double else value.dtype)
            for name, value in (feeds or {}).items()
            if name in needed
        }
        nodes = [node for node in flow.nodes if needed.intersection(node.output)]
        for node in nodes:
            if not alone(node):
                raise NotRecoverable("not evaluated", "a control-flow node before the weights", node=label(node))
        self.sources = [node.output[0] for node in nodes if is_random(node)]
        self._noise: dict[str, Floats] | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        program = _program(flow, nodes, self.names, needed, double)
        program.graph.input.extend(helper.make_value_info(name, TypeProto()) for name in self._feeds)
        try:
            self._session = ReferenceEvaluator(program, new_ops=self._operators())
        except Exception as error:
            raise self._not_evaluated(error) from error
        self._first = self._run(None)  # also finds the shapes of the noise

    @property
    def size(self) -> int:
        """Number of scalar noise variables."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def at_zero(self) -> list[NDArray[Any]]:
        """The values without noise."""
        return self._first

    def __call__(self, z: Floats) -> list[NDArray[Any]]:
        """The values at noise z (size,), standard normal variables in the order of `sources`."""
        noise, start = {}, 0
        for name in self.sources:
            size = math.prod(self.shapes[name])
            noise[name] = z[start : start + size].reshape(self.shapes[name])
            start += size
        return self._run(noise)

    def _run(self, noise: dict[str, Floats] | None) -> list[NDArray[Any]]:
        self._noise = noise
        try:
            with np.errstate(all="ignore"):  # 0 / 0 at noise 0, say: what is not finite is no Gaussian
                return [np.asarray(value) for value in self._session.run(None, self._feeds)]
        except Exception as error:  # the evaluator lets whatever happens inside it through
            raise self._not_evaluated(error) from error

    def _not_evaluated(self, error: Exception) -> NotRecoverable:
        message = f"the graph in front of the weights cannot be evaluated: {error}"
        return NotRecoverable("not evaluated", message, node=self.names[0])

    def _drawn(self, node: NodeProto, shape: tuple[int, ...], element: Any) -> NDArray[Any]:
        name = node.output[0]
        self.shapes[name] = shape
        z = np.zeros(shape) if self._noise is None else self._noise[name]
        return np.asarray(scalar(node, "mean", 0.0) + scalar(node, "scale", 1.0) * z, element)

    def _operators(self) -> list[type[OpRun]]:
        """The random operators, reading the noise instead of drawing it."""
        draws = self

        class RandomNormalLike(OpRun):
            def _run(self, x: NDArray[Any], **_attributes: Any) -> tuple[NDArray[Any]]:
                return (draws._drawn(self.onnx_node, x.shape, _element(self.onnx_node, x.dtype)),)

        class RandomNormal(OpRun):
            def _run(self, **_attributes: Any) -> tuple[NDArray[Any]]:
                shape = tuple(raw_attribute(self.onnx_node, "shape") or ())
                return (draws._drawn(self.onnx_node, shape, _element(self.onnx_node, np.dtype(np.float32))),)

        return [RandomNormalLike, RandomNormal, BroadcastArgs]


class BroadcastArgs(OpRun):
    """The shape to which two shapes broadcast: an operator of TensorFlow that tf2onnx leaves in the file.

    onnx knows an operator by the name of its class.
    """

    def _run(self, a: NDArray[Any], b: NDArray[Any], **_attributes: Any) -> tuple[NDArray[Any]]:
        return (np.array(np.broadcast_shapes(tuple(a), tuple(b)), a.dtype),)


def _element(node: NodeProto, default: Any) -> Any:
    kind = raw_attribute(node, "dtype")
    return default if kind is None else helper.tensor_dtype_to_np_dtype(kind)


def _program(
    flow: Flow, nodes: Sequence[NodeProto], names: Sequence[str], needed: set[str], double: bool
) -> ModelProto:
    copies = [_copied(node, double) for node in nodes]
    tensors = [tensor for name, tensor in flow.stored.items() if name in needed]
    if double:
        tensors = [_doubled(tensor) for tensor in tensors]
    outputs = [helper.make_value_info(name, TypeProto()) for name in names]
    graph = helper.make_graph(copies, "draws", [], outputs, tensors)
    return helper.make_model(graph, opset_imports=flow.proto.opset_import, ir_version=8)


def _doubled(tensor: TensorProto) -> TensorProto:
    if tensor.data_type not in _NARROW:
        return tensor
    return numpy_helper.from_array(array_of(tensor).astype(np.float64), tensor.name)


def _copied(node: NodeProto, double: bool) -> NodeProto:
    """The node, its float32 attributes made float64 where the result's type hangs on them."""
    copy = NodeProto()
    copy.CopyFrom(node)
    if not double:
        return copy
    for attribute in copy.attribute:
        if attribute.HasField("t"):
            attribute.t.CopyFrom(_doubled(attribute.t))
        elif attribute.name in ("to", "dtype") and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(np.array(numbers, np.float64))))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        copy.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    if node.op_type in NORMAL and raw_attribute(node, "dtype") is None:
        copy.attribute.append(helper.make_attribute("dtype", TensorProto.DOUBLE))
    return copy
