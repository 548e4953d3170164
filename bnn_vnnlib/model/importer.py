"""ONNX graph -> Network: the walk over the file's nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.defs import onnx_opset_version
from onnx.helper import tensor_dtype_to_np_dtype

from bnn_vnnlib.errors import InputError, ModelError, UnsupportedError
from bnn_vnnlib.model import attributes
from bnn_vnnlib.model import operators_shape as shapes
from bnn_vnnlib.model.attributes import inconsistent, inlined, label, raw_attribute, reads, unsupported
from bnn_vnnlib.model.builder import Builder, Computed, Fixed, Softmaxed, Value
from bnn_vnnlib.model.folding import FOLDABLE, fold
from bnn_vnnlib.model.operators import FROZEN_NOISE, STOCHASTIC, find_converter, missing_operator
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.signature import Signature, Variable

OLDEST_OPSET = 7
_WHATEVER = (shapes.shape_of, shapes.split)
"""Converters that serve constants as well as computed values."""


def build_network(proto: ModelProto, uncertain: Collection[str] = ()) -> Network:
    """The graph as a Network; see `import_graph`."""
    return import_graph(proto, uncertain)[0]


def import_graph(
    proto: ModelProto, uncertain: Collection[str] = (), *, every_output: bool = False, sampled: bool = False
) -> tuple[Network, tuple[str, ...]]:
    """Read the graph of a model.

    Parameters
    ----------
    uncertain : names of the tensors that carry a posterior; it must be able to follow them to where they are used
    every_output : keep outputs that depend on no input
    sampled : the posterior consists of samples, so that a weight may stand where a Gaussian cannot (see
        `operators_linear.batch_normalization`)

    Returns
    -------
    the network (its tensors are the weights in the file), and remarks for the user

    Raises
    ------
    UnsupportedError : an operator, or a use of it, that is not in the table; names domain, operator, opset, node
    ModelError : the file contradicts itself
    PosteriorError : a posterior on a tensor in a place that cannot carry one
    """
    for function in proto.functions:  # behind the inliner, values inside have other names
        _refuse_frozen(function.node)
    proto = inlined(proto)
    opset = _default_opset(proto)
    notes: list[str] = []
    outputs = _chosen_outputs(proto, every_output, notes)
    alive = _live_nodes(proto.graph, outputs, notes)
    graph = Builder(opset, uncertain, _names(proto), sampled)
    values = _FileValues(graph, proto.graph)
    signature_inputs = _add_inputs(graph, proto, values, notes)
    quantized = next((node for node in alive if node.op_type == "DequantizeLinear"), None)
    if quantized is not None:
        note = "by default onnxruntime rounds to 8 bits what the weight is multiplied by; here it is taken as it is"
        notes.append(f"node {label(quantized)}: {note}")
    _convert(graph, alive, values, proto)
    return _finish(graph, proto, outputs, values, signature_inputs, notes), tuple(notes)


def left_out_outputs(proto: ModelProto) -> tuple[str, ...]:
    """Names of the outputs that depend on no input, where the graph has others: nothing can be asked about them."""
    dependent = {info.name for info in proto.graph.input} - {tensor.name for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if not dependent.isdisjoint(reads(node)):
            dependent.update(node.output)
    names = tuple(info.name for info in proto.graph.output if info.name not in dependent)
    return names if len(names) < len(proto.graph.output) else ()


def _default_opset(proto: ModelProto) -> int:
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
    """Values by name in one graph; a tensor of the file becomes a constant when it is first asked for.

    A branch of an If has values of its own, and sees those of the graph around it (`outer`).
    """

    def __init__(self, graph: Builder, body: GraphProto, outer: _FileValues | None = None) -> None:
        super().__init__()
        self.graph, self.body, self.outer = graph, body, outer
        self.stored = {tensor.name: tensor for tensor in body.initializer}
        self.sparse = {tensor.values.name: tensor for tensor in body.sparse_initializer}

    def __missing__(self, name: str) -> Value | None:
        if not name:
            return None  # an optional operand that is left out
        if name in self.stored:
            self[name] = self.graph.constant(name, attributes.array_of(self.stored[name]))
        elif name in self.sparse:
            self[name] = self.graph.constant(name, attributes.dense_of(self.sparse[name]))
        elif self.outer is not None:
            return self.outer[name]
        else:
            raise ModelError(f"nothing computes the value {name!r} before it is used")
        value: Value = self[name]
        return value

    def defines(self, name: str) -> bool:
        """Whether this graph or one around it has the name already."""
        own = name in self or name in self.stored or name in self.sparse
        return own or (self.outer is not None and self.outer.defines(name))


def _names(proto: ModelProto) -> set[str]:
    return {tensor.name for tensor in proto.graph.initializer} | {
        name for node in proto.graph.node for name in (*reads(node), *node.output)
    }


def _chosen_outputs(proto: ModelProto, every_output: bool, notes: list[str]) -> list[ValueInfoProto]:
    """The outputs that can be asked about: floating-point tensors that depend on an input.

    A classifier of scikit-learn also has a label, and its probabilities as a map from labels to numbers (ZipMap): the
    label is left out, and the tensor in front of the map is taken. Where nothing is left, all stay, to be refused by
    name.
    """
    constant = () if every_output else left_out_outputs(proto)
    zips = [node for node in proto.graph.node if (node.domain, node.op_type) == ("ai.onnx.ml", "ZipMap")]
    fronts = {node.output[0]: node.input[0] for node in zips if node.input and node.output}
    chosen, remarks = [], []
    for info in proto.graph.output:
        kind = info.type.tensor_type.elem_type
        if info.name in constant:
            remarks.append(f"output {info.name} depends on no input: left out unless a property declares all outputs")
        elif info.name in fronts:
            front = fronts[info.name]
            chosen.append(ValueInfoProto(name=front))
            remarks.append(f"output {info.name} is a map (ZipMap): the tensor {front} in front of it is taken")
        elif info.type.HasField("tensor_type") and kind in (TensorProto.UNDEFINED, *attributes.FLOATS):
            chosen.append(info)
        else:
            remarks.append(f"output {info.name} ({_kind(info)}) is no tensor of floating-point numbers and is left out")
    if not chosen:
        return list(proto.graph.output)
    notes += remarks
    return chosen


def _kind(info: ValueInfoProto) -> str:
    if not info.type.HasField("tensor_type"):
        return str(info.type.WhichOneof("value")).removesuffix("_type")
    known = dict(zip(TensorProto.DataType.values(), TensorProto.DataType.keys(), strict=True))
    return known.get(info.type.tensor_type.elem_type, "of an unknown type").lower()


def _live_nodes(body: GraphProto, outputs: Iterable[ValueInfoProto], notes: list[str] | None = None) -> list[NodeProto]:
    """Nodes on which the chosen outputs depend, in the file's order; a note on those on which no output does."""
    computed = {info.name for info in (*body.input, *body.initializer)}
    for node in body.node:
        for name in filter(None, node.output):
            if name in computed:
                raise inconsistent(node, f"computes {name!r}, which is defined already")
            computed.add(name)
    chosen, any_output = ({info.name for info in infos} for infos in (outputs, body.output))
    alive: list[NodeProto] = []
    for node in reversed(body.node):
        if not chosen.isdisjoint(filter(None, node.output)):
            alive.append(node)
            chosen.update(reads(node))
        if not any_output.isdisjoint(filter(None, node.output)):
            any_output.update(reads(node))
        elif notes is not None:
            notes.append(f"node {label(node)} does not contribute to any output and is left out")
    return alive[::-1]


def _convert(graph: Builder, alive: Iterable[NodeProto], values: _FileValues, proto: ModelProto) -> None:
    """Nodes one after the other; the results are added to the values."""
    _refuse_stochastic(alive)
    for node in alive:
        if node.op_type == "If" and node.domain in ("", "ai.onnx"):
            results: Value | tuple[Value, ...] = _taken_branch(graph, node, values, proto)
        else:
            results = _converted(graph, node, values, proto)
        named = zip(node.output, results if isinstance(results, tuple) else (results,), strict=False)
        values.update((name, value) for name, value in named if name)


def _taken_branch(graph: Builder, node: NodeProto, values: _FileValues, proto: ModelProto) -> tuple[Value, ...]:
    """The outputs of the branch that an If with a constant condition takes."""
    condition = values[node.input[0]] if node.input else None
    if not isinstance(condition, Fixed):
        raise unsupported(node, "its condition is computed from the input; only an If with a constant one is supported")
    if condition.values.dtype != np.bool_ or condition.values.size != 1:
        raise inconsistent(node, "its condition must be one boolean")
    body = raw_attribute(node, "then_branch" if condition.values.reshape(()) else "else_branch")
    if not isinstance(body, GraphProto) or len(body.output) != len(node.output) or body.input:
        raise inconsistent(node, f"needs two branches without inputs and with {len(node.output)} outputs")
    own = [*(tensor.name for tensor in body.initializer), *(tensor.values.name for tensor in body.sparse_initializer)]
    own += [name for inner in body.node for name in inner.output]
    # a posterior goes by the name of its tensor, which a node behind this one may compute
    hidden = [name for name in own if name and (values.defines(name) or name in graph.uncertain)]
    if hidden:
        raise inconsistent(node, f"a branch defines {hidden[0]!r}, which is defined around it already")
    inside = _FileValues(graph, body, values)
    _convert(graph, _live_nodes(body, body.output), inside, proto)
    return tuple(inside[info.name] for info in body.output)


def _refuse_further_outputs(node: NodeProto, body: GraphProto) -> None:
    """Dropout's mask, BatchNormalization's statistics: none of them is for inference."""
    used = {name for other in body.node for name in reads(other)} | {info.name for info in body.output}
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
    _refuse_frozen(alive)


def _refuse_frozen(alive: Iterable[NodeProto]) -> None:
    for node in alive:
        frozen = [name for name in node.input if name.endswith(FROZEN_NOISE)]
        if frozen:
            message = (
                f"uses {frozen[0]}, the noise of one forward pass that a BLiTZ layer left in the file: this is one "
                "sample of the weights, not their posterior. Export the posterior-mean network and attach the "
                "posterior to it"
            )
            raise unsupported(node, message)


def _add_inputs(graph: Builder, proto: ModelProto, values: _FileValues, notes: list[str]) -> list[Variable]:
    """Input nodes; initializers that are listed as inputs (IR 3) are weights."""
    found: list[Variable] = []
    start = 0
    for info in proto.graph.input:
        if info.name in values.stored or info.name in values.sparse:
            continue
        element = _element_type(info)
        shape = _concrete_shape(info, notes)
        variable = Variable(info.name, element.name, shape)
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
        constant = [value is None or isinstance(value, Fixed) for value in inputs]
        if inputs and all(constant) and converter not in _WHATEVER:
            return fold(graph, node, inputs, converter)
        if converter is None:
            raise missing_operator(graph, node, proto, "of a computed tensor " if node.op_type in FOLDABLE else "")
        if len(node.output) > 1 and converter is not shapes.split:
            _refuse_further_outputs(node, values.body)
        return converter(graph, node, inputs)
    except InputError as error:
        if error.node is None:
            error.node = label(node)
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError) as error:
        # the converters check what they rely on; numpy finds the rest (shapes that do not broadcast, ...)
        raise inconsistent(node, f"the operands do not fit: {error}") from error


def _finish(
    graph: Builder,
    proto: ModelProto,
    chosen: list[ValueInfoProto],
    values: _FileValues,
    inputs: list[Variable],
    notes: list[str],
) -> Network:
    """The network of a graph whose nodes were all read, with its outputs, its signature and the tensors that are
    used.
    """
    if not all(info.name for info in chosen):
        raise ModelError("an output of the graph has no name")
    ends = [values[info.name] for info in chosen]
    softmax_axis = None
    if any(isinstance(end, Softmaxed) for end in ends):
        if len(ends) > 1:
            raise UnsupportedError("a Softmax at one of several outputs is not supported", node=chosen[0].name)
        softmax_axis = ends[0].axis
        ends = [Computed(ends[0].position, ends[0].shape, ends[0].element)]
    for info, end in zip(chosen, ends, strict=True):
        if isinstance(end, Fixed) and end.param is None:
            message = f"the output is a constant of type {end.element.name}; only floating-point outputs are supported"
            raise UnsupportedError(message, node=info.name)
    ends = [graph.branch(info.name, end) for info, end in zip(chosen, ends, strict=True)]
    positions = tuple(end.position for end in ends)
    outputs = []
    names = {variable.name for variable in inputs}
    opened = any(None in _declared(info) for info in proto.graph.input if info.name in names)
    for info, end in zip(chosen, ends, strict=True):
        outputs.append(Variable(info.name, end.element.name, end.shape))
        _compare_shape(info, end.shape, notes, opened)
    _refuse_softmax_at_end(graph, chosen, positions)
    used = {param.source for node in graph.nodes for param in nodes.params_of(node)}
    sources: Mapping[str, Any] = {name: graph.sources[name] for name in sorted(used)}
    return Network(Signature(tuple(inputs), tuple(outputs)), tuple(graph.nodes), positions, sources, softmax_axis)


def _refuse_softmax_at_end(graph: Builder, chosen: Iterable[ValueInfoProto], positions: Iterable[int]) -> None:
    """Probabilities that a composed Softmax hands out would be taken for logits."""
    for info, position in zip(chosen, positions, strict=True):
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


def _declared(info: ValueInfoProto) -> list[int | None]:
    """Sizes that the file gives; None for one that it leaves open (by a name, by nothing, by 0)."""
    return [dim.dim_value or None for dim in info.type.tensor_type.shape.dim]


def _compare_shape(info: ValueInfoProto, shape: tuple[int, ...], notes: list[str], opened: bool) -> None:
    """Refuse a declared shape that the graph contradicts; a note if the open sizes that were chosen may be why."""
    declared = _declared(info)
    if not declared and (shape or not info.type.tensor_type.HasField("shape")):  # no sizes: some exporters know none
        notes.append(f"output {info.name}: the file gives no shape; it is {shape}")
        return
    fits = [size is None or size < 0 or size == own for size, own in zip(declared, shape, strict=False)]
    if len(declared) == len(shape) and all(fits):
        return
    written = tuple("?" if size is None else size for size in declared)
    message = f"the file declares shape {written} for this output, but its graph computes {shape}"
    if not opened:
        raise ModelError(f"{message}; one of them is wrong: export the model again", node=info.name)
    notes.append(f"output {info.name}: {message}, with the open sizes of the inputs taken as 1")
