"""ONNX graph -> Network: the walk over the file's nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto
from onnx.defs import onnx_opset_version
from onnx.helper import tensor_dtype_to_np_dtype

from bnn_vnnlib.errors import InputError, ModelError, UnsupportedError
from bnn_vnnlib.model import nodes, tensors
from bnn_vnnlib.model import operators_select as select
from bnn_vnnlib.model import operators_shape as shapes
from bnn_vnnlib.model.attributes import inconsistent, label, unsupported
from bnn_vnnlib.model.builder import Builder
from bnn_vnnlib.model.folding import FOLDABLE, fold
from bnn_vnnlib.model.network import Network
from bnn_vnnlib.model.nodes import Param
from bnn_vnnlib.model.operators import STOCHASTIC, find_converter, missing_operator
from bnn_vnnlib.model.values import Constant, Softmaxed, Value, Variable
from bnn_vnnlib.signature import Signature
from bnn_vnnlib.signature import Variable as SignatureVariable

OLDEST_OPSET = 7
FROZEN_NOISE = ("_sampler.eps_w", "_sampler.eps_b")
WHATEVER = (shapes.shape_of, select.split)
"""Converters that serve constants, too."""


def build_network(proto: ModelProto, uncertain: Collection[str] = ()) -> Network:
    """The graph as a Network; see `import_graph`."""
    return import_graph(proto, uncertain)[0]


def import_graph(proto: ModelProto, uncertain: Collection[str] = ()) -> tuple[Network, tuple[str, ...]]:
    """Read the graph of a model.

    Parameters
    ----------
    uncertain : names of the tensors that carry a posterior; it must be able to follow them to where they are used

    Returns
    -------
    the network (its tensors are the weights in the file), and remarks for the user

    Raises
    ------
    UnsupportedError : an operator, or a use of it, that is not in the table; names domain, operator, opset, node
    ModelError : the file contradicts itself
    PosteriorError : a posterior on a tensor in a place that cannot carry one
    """
    opset = default_opset(proto)
    notes: list[str] = []
    alive = _live_nodes(proto, notes)
    _refuse_stochastic(alive)
    graph = Builder(opset, uncertain, _names(proto))
    values = _FileValues(graph, proto)
    signature_inputs = _add_inputs(graph, proto, values, notes)
    for node in alive:
        results = _converted(graph, node, values, proto)
        named = zip(node.output, results if isinstance(results, tuple) else (results,), strict=False)
        values.update((name, value) for name, value in named if name)
    return _finish(graph, proto, values, signature_inputs, notes), tuple(notes)


def default_opset(proto: ModelProto) -> int:
    """Version of the default operator set."""
    versions = {entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")}
    if len(versions) != 1:
        raise ModelError(f"the file imports the versions {sorted(versions)} of the default operator set, expected one")
    version = int(versions.pop())
    newest = onnx_opset_version()
    if not OLDEST_OPSET <= version <= newest:
        hint = "; convert the model to an older one" if version > newest else "; convert it with onnx.version_converter"
        message = f"opset {version} is not supported (supported: {OLDEST_OPSET} to {newest}, by the installed onnx)"
        raise UnsupportedError(message + hint)
    return version


class _FileValues(dict[str, Any]):
    """Values by name; a tensor of the file becomes a constant when it is first asked for."""

    def __init__(self, graph: Builder, proto: ModelProto) -> None:
        super().__init__()
        self.graph = graph
        self.stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.sparse = {tensor.values.name: tensor for tensor in proto.graph.sparse_initializer}

    def __missing__(self, name: str) -> Value | None:
        if not name:
            return None  # an optional operand that is left out
        if name in self.stored:
            self[name] = self.graph.constant(name, tensors.array_of(self.stored[name]))
        elif name in self.sparse:
            self[name] = self.graph.constant(name, tensors.dense_of(self.sparse[name]))
        else:
            raise ModelError(f"nothing computes the value {name!r} before it is used")
        value: Value = self[name]
        return value


def _names(proto: ModelProto) -> set[str]:
    return {tensor.name for tensor in proto.graph.initializer} | {
        name for node in proto.graph.node for name in (*node.input, *node.output)
    }


def _live_nodes(proto: ModelProto, notes: list[str]) -> list[NodeProto]:
    """Nodes on which an output depends, in the file's order."""
    needed = {output.name for output in proto.graph.output}
    alive: list[NodeProto] = []
    computed = {info.name for info in (*proto.graph.input, *proto.graph.initializer)}
    for node in proto.graph.node:
        for name in filter(None, node.output):
            if name in computed:
                raise inconsistent(node, f"computes {name!r}, which is defined already")
            computed.add(name)
    for node in reversed(proto.graph.node):
        if needed.intersection(filter(None, node.output)):
            alive.append(node)
            needed.update(filter(None, node.input))
        else:
            notes.append(f"node {label(node)} does not contribute to any output and is left out")
    return alive[::-1]


def _refuse_further_outputs(node: NodeProto, proto: ModelProto) -> None:
    """Dropout's mask, BatchNormalization's statistics: none of them is for inference."""
    used = {name for other in proto.graph.node for name in other.input} | {info.name for info in proto.graph.output}
    further = sorted(used.intersection(filter(None, node.output[1:])))
    if further:
        raise unsupported(node, f"its further outputs {further} are used; only the first is supported")


def _refuse_stochastic(alive: Iterable[NodeProto]) -> None:
    for node in alive:
        if node.op_type in STOCHASTIC and node.domain in ("", "ai.onnx"):
            message = (
                "draws random numbers: this is a stochastic export, whose posterior has to be recovered first "
                "(`bnn-vnnlib recover`, or read_model)"
            )
            raise unsupported(node, message)
        frozen = [name for name in node.input if name.endswith(FROZEN_NOISE)]
        if frozen:
            message = (
                f"uses {frozen[0]}, the noise of one forward pass that a BLiTZ layer left in the file: this is one "
                "sample of the weights, not their posterior. Export the posterior-mean network and attach the "
                "posterior to it"
            )
            raise unsupported(node, message)


def _add_inputs(graph: Builder, proto: ModelProto, values: _FileValues, notes: list[str]) -> list[SignatureVariable]:
    """Input nodes; initializers that are listed as inputs (IR 3) are weights."""
    found: list[SignatureVariable] = []
    start = 0
    for info in proto.graph.input:
        if info.name in values.stored or info.name in values.sparse:
            continue
        element = _element_type(info)
        shape = _concrete_shape(info, notes)
        variable = SignatureVariable(info.name, element.name, shape)
        values[info.name] = graph.append(nodes.Input(info.name, (), shape, start), element)
        found.append(variable)
        start += variable.size
    if not found:
        raise ModelError("the graph has no input")
    return found


def _element_type(info: ValueInfoProto) -> np.dtype[Any]:
    if not info.type.HasField("tensor_type"):
        raise UnsupportedError("only tensors can be inputs", node=info.name)
    try:
        element = np.dtype(tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError("the input has no known element type", node=info.name) from error
    if element.name not in ("float16", "float32", "float64"):
        raise UnsupportedError(f"an input of type {element.name}; only float16, float32, float64", node=info.name)
    return element


def _concrete_shape(info: ValueInfoProto, notes: list[str]) -> tuple[int, ...]:
    """Dimensions, 1 for each that the file leaves open."""
    if not info.type.tensor_type.HasField("shape"):
        raise ModelError("the input has no shape; give it one", node=info.name)
    shape = tuple(size or 1 for size in _declared(info))
    if any(size < 1 for size in shape):
        raise ModelError(f"the input has shape {shape}", node=info.name)
    if None in _declared(info):
        notes.append(f"input {info.name}: open dimensions are taken as 1, shape {shape}")
    return shape


def _converted(graph: Builder, node: NodeProto, values: _FileValues, proto: ModelProto) -> Value | tuple[Value, ...]:
    """Value of the node's first output, or of all; whatever goes wrong inside is this node's message."""
    try:
        inputs = [values[name] for name in node.input]
        converter = find_converter(graph, node, proto)
        constant = [value is None or isinstance(value, Constant) for value in inputs]
        if inputs and all(constant) and converter not in WHATEVER:
            return fold(graph, node, inputs)
        if converter is None:
            raise missing_operator(graph, node, proto, "of a computed tensor " if node.op_type in FOLDABLE else "")
        if len(node.output) > 1 and converter is not select.split:
            _refuse_further_outputs(node, proto)
        return converter(graph, node, inputs)
    except InputError as error:
        if error.node is None:
            error.node = label(node)
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError) as error:
        # the converters check what they rely on; numpy finds the rest (shapes that do not broadcast, ...)
        raise inconsistent(node, f"the operands do not fit: {error}") from error


def _finish(
    graph: Builder, proto: ModelProto, values: _FileValues, inputs: list[SignatureVariable], notes: list[str]
) -> Network:
    """Outputs, signature and the tensors that are used."""
    if not all(info.name for info in proto.graph.output):
        raise ModelError("an output of the graph has no name")
    ends = [values[info.name] for info in proto.graph.output]
    softmax_axis = None
    if any(isinstance(end, Softmaxed) for end in ends):
        if len(ends) > 1:
            raise UnsupportedError(
                "a Softmax at one of several outputs is not supported", node=proto.graph.output[0].name
            )
        softmax_axis = ends[0].axis
        ends = [Variable(ends[0].position, ends[0].shape, ends[0].element)]
    for info, end in zip(proto.graph.output, ends, strict=True):
        if isinstance(end, Constant) and end.param is None:
            message = f"the output is a constant of type {end.element.name}; only floating-point outputs are supported"
            raise UnsupportedError(message, node=info.name)
    ends = [graph.branch(info.name, end) for info, end in zip(proto.graph.output, ends, strict=True)]
    positions = tuple(end.position for end in ends)
    outputs = []
    names = {variable.name for variable in inputs}
    chosen = any(None in _declared(info) for info in proto.graph.input if info.name in names)
    for info, end in zip(proto.graph.output, ends, strict=True):
        outputs.append(SignatureVariable(info.name, end.element.name, end.shape))
        _compare_shape(info, end.shape, notes, chosen)
    _refuse_softmax_at_end(graph, proto, positions)
    used = {param.source for node in graph.nodes for param in params_of(node)}
    sources: Mapping[str, Any] = {name: graph.sources[name] for name in sorted(used)}
    return Network(Signature(tuple(inputs), tuple(outputs)), tuple(graph.nodes), positions, sources, softmax_axis)


def _refuse_softmax_at_end(graph: Builder, proto: ModelProto, positions: Iterable[int]) -> None:
    """Probabilities that a composed Softmax hands out would be taken for logits."""
    for info, position in zip(proto.graph.output, positions, strict=True):
        pending = [position]
        while pending:
            place = pending.pop()
            node = graph.nodes[place]
            if place in graph.softmaxes:
                message = (
                    "ends in a Softmax over a part of the outputs, or moves its result; only one Softmax over all "
                )
                raise UnsupportedError(f"{message}outputs at the very end is supported", node=info.name)
            if isinstance(node, nodes.Reshape | nodes.Transpose | nodes.Broadcast | nodes.Concat | nodes.Select):
                pending.extend(node.inputs)


def params_of(node: nodes.Node) -> list[Param]:
    """The parameters of a node (none or one)."""
    match node:
        case nodes.Linear() | nodes.Conv() | nodes.Scale():
            return [node.weight]
        case nodes.Shift():
            return [node.bias]
        case nodes.Constant():
            return [node.value]
    return []


def _declared(info: ValueInfoProto) -> list[int | None]:
    """Sizes that the file gives; None for one that it leaves open (by a name, by nothing, by 0)."""
    return [dim.dim_value or None for dim in info.type.tensor_type.shape.dim]


def _compare_shape(info: ValueInfoProto, shape: tuple[int, ...], notes: list[str], chosen: bool) -> None:
    """Refuse a declared shape that the graph contradicts; a note if the open sizes that were `chosen` may be why."""
    declared = _declared(info)
    if not declared and (shape or not info.type.tensor_type.HasField("shape")):  # no sizes: some exporters know none
        notes.append(f"output {info.name}: the file gives no shape; it is {shape}")
        return
    fits = [size is None or size < 0 or size == own for size, own in zip(declared, shape, strict=False)]
    if len(declared) == len(shape) and all(fits):
        return
    written = tuple("?" if size is None else size for size in declared)
    message = f"the file declares shape {written} for this output, but its graph computes {shape}"
    if not chosen:
        raise ModelError(f"{message}; one of them is wrong: export the model again", node=info.name)
    notes.append(f"output {info.name}: {message}, with the open sizes of the inputs taken as 1")
