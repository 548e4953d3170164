"""A sample posterior as ONE deterministic network: its output is the posterior predictive.

1. A network that is a chain of layers, as affine maps with activations between them, for every weight sample.
2. Such a chain as one chain of wider layers. The S networks lie side by side: where they part, their weights are
   stacked; further ones are block-diagonal; the last ones are joined in a row, with the probabilities as factors. Every
   reader of Gemm and activations understands that.
3. Any graph: a copy for every sample, and the average of their outputs.
4. `merge` chooses, and compares the result with the single networks in onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from scipy.linalg import block_diag

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import OptionError, PosteriorError, SoundnessError, UnsupportedError
from bnn_vnnlib.model import Model, Network, Posterior, WeightSamples, model_from_proto, replay, sample
from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.model.recovery.graph import alone, prune
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.families import family_of
from bnn_vnnlib.network.nodes import Param
from bnn_vnnlib.posteriors.parts import FileParts, drawn
from bnn_vnnlib.signature import Likelihood, Signature, Variable
from bnn_vnnlib.system.environment import plain_state

# 1. Chains of layers


@dataclass(frozen=True, eq=False)
class _Affine:
    """y = W x + b for every sample: weight (S, out, in) and bias (S, out), with S = 1 where all samples agree."""

    weight: Floats
    bias: Floats

    @property
    def samples(self) -> int:
        """Number of samples, 1 if all of them agree."""
        return max(len(self.weight), len(self.bias))


_Layer = _Affine | nodes.Activation


def _chain(network: Network, posterior: WeightSamples) -> list[_Layer] | None:
    """The network on flat vectors: affine maps, activations between them; None if it is no chain.

    It begins and ends with an affine map. Neighbouring affine operators are multiplied out in float64.
    """
    if len(network.outputs) != 1 or network.outputs[0] != len(network.nodes) - 1:
        return None
    size = math.prod(network.nodes[0].shape)
    found: list[_Layer] = [_identity(size)]
    for position, node in enumerate(network.nodes):
        last = found[-1] if isinstance(found[-1], _Affine) else _identity(math.prod(network.nodes[position - 1].shape))
        if position and node.inputs != (position - 1,):
            return None
        step = _step(node, network, posterior, last)
        if step is None:
            return None
        found[-1:] = step if isinstance(found[-1], _Affine) else [found[-1], *step]
    return found if isinstance(found[-1], _Affine) else [*found, _identity(math.prod(network.nodes[-1].shape))]


def _step(node: nodes.Node, network: Network, posterior: WeightSamples, last: _Affine) -> list[_Layer] | None:
    """What the affine map so far becomes with this node behind it."""
    size = math.prod(node.shape)
    match node:
        case nodes.Linear(weight=param, axis=axis) if node.shape[axis] == size:
            weight = _stack(param, network, posterior)
            return [_Affine(weight @ last.weight, (weight @ last.bias[..., None])[..., 0])]
        case nodes.Shift(bias=param):
            return [_Affine(last.weight, last.bias + _flat(param, node.shape, network, posterior))]
        case nodes.Scale(weight=param):
            factor = _flat(param, node.shape, network, posterior)
            return [_Affine(factor[..., None] * last.weight, factor * last.bias)]
        case nodes.Activation(alpha=alpha) if isinstance(alpha, int | float):
            return [last, node]
        case nodes.Input():
            return [last]
        case nodes.Reshape():
            return [last]
        case nodes.Transpose() if sum(length > 1 for length in node.shape) <= 1:
            return [last]
    return None


def _identity(size: int) -> _Affine:
    return _Affine(np.eye(size)[None], np.zeros((1, size)))


def _stack(param: Param, network: Network, posterior: WeightSamples) -> Floats:
    """A parameter in every sample (S, *shape), or once if it is the same in all."""
    source = posterior.stored.get(param.source)
    stack = network.tensors[param.source][None] if source is None else np.asarray(source, np.float64)
    values: Floats = stack.reshape(len(stack), -1)[:, param.index] * param.factor
    return values


def _flat(param: Param, shape: Sequence[int], network: Network, posterior: WeightSamples) -> Floats:
    """A parameter in every sample, broadcast to a node's shape and made a vector (S, size)."""
    stack = _stack(param, network, posterior)
    stack = stack.reshape(len(stack), *(1,) * (len(shape) - stack.ndim + 1), *stack.shape[1:])
    return np.broadcast_to(stack, (len(stack), *shape)).reshape(len(stack), -1)


# 2. A chain in blocks

_End = Literal["outputs", "softmax", "sigmoid"]
_ACTIVATIONS = {
    "abs": "Abs",
    "elu": "Elu",
    "leaky_relu": "LeakyRelu",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
}
_WITH_ALPHA = ("leaky_relu", "elu")
_MAX_MATRIX_ENTRIES = 2**27
"""Entries of one matrix: half a gigabyte in float32."""
_OPSET, _IR = 13, 7


@dataclass
class _Writer:
    """Nodes and tensors of the graph under construction; `value` is the last one."""

    element: Any
    value: str
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)

    def store(self, array: NDArray) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(self, operator: str, *arrays: NDArray | None, **attributes: Any) -> None:
        """A node on new tensors and (in front of them, or in the place of None) the last value."""
        operands = arrays if any(array is None for array in arrays) else (None, *arrays)
        inputs = [self.value if array is None else self.store(array) for array in operands]
        self.value = f"v{len(self.nodes)}"
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [self.value], name=name, **attributes))

    def gemm(self, weight: Floats, bias: Floats) -> None:
        if weight.size > _MAX_MATRIX_ENTRIES:
            raise OptionError(f"a block matrix of {weight.size:,} entries is too large; use --form copies")
        self.add("Gemm", weight.astype(self.element), bias.astype(self.element), transB=1)

    def shape(self, *sizes: int) -> None:
        self.add("Reshape", np.array(sizes, np.int64))


def _merged_blocks(chain: list[_Layer], posterior: WeightSamples, signature: Signature, end: _End) -> ModelProto | None:
    """One deterministic network whose output is the average over the samples; None for activations without a name here.

    Parameters
    ----------
    end : what is averaged: the outputs, or softmax or sigmoid of them
    """
    activations = [layer for layer in chain if isinstance(layer, nodes.Activation)]
    if any(layer.kind not in _ACTIVATIONS for layer in activations):
        return None
    (source,), (target,) = signature.inputs, signature.outputs
    writer = _Writer(np.dtype(source.element_type), source.name)
    if source.shape != (1, source.size):
        writer.shape(1, source.size)
    copies = 1
    *body, last = chain
    for layer in body:
        copies = _write(writer, layer, copies)
    if not isinstance(last, _Affine):
        raise ValueError("a chain ends in an affine map")
    share = posterior.probabilities
    if end == "outputs":
        writer.gemm(*_averaged(last, share, copies))
    else:
        copies = _write(writer, last, copies)
        _squash(writer, end, share, copies, target.size)
    return _finished(writer, source, target)


def _write(writer: _Writer, layer: _Layer, copies: int) -> int:
    """Write one layer; returns how many copies lie side by side behind it."""
    if isinstance(layer, nodes.Activation):
        alpha = {"alpha": float(layer.alpha)} if layer.kind in _WITH_ALPHA and isinstance(layer.alpha, float) else {}
        writer.add(_ACTIVATIONS[layer.kind], **alpha)
        return copies
    if copies == 1:
        weight, bias = _spread(layer, layer.samples)
        writer.gemm(weight.reshape(-1, weight.shape[-1]), bias.reshape(-1))
        return layer.samples
    weight, bias = _spread(layer, copies)
    if copies**2 * weight[0].size > _MAX_MATRIX_ENTRIES:
        raise OptionError(f"a block matrix of {copies**2 * weight[0].size:,} entries is too large; use --form copies")
    writer.gemm(block_diag(*weight), bias.reshape(-1))
    return copies


def _spread(layer: _Affine, count: int) -> tuple[Floats, Floats]:
    weight = np.broadcast_to(layer.weight, (count, *layer.weight.shape[1:]))
    return weight, np.broadcast_to(layer.bias, (count, *layer.bias.shape[1:]))


def _averaged(layer: _Affine, share: Floats, copies: int) -> tuple[Floats, Floats]:
    """The last layer and the mean over the samples in one."""
    weight, bias = _spread(layer, len(share))
    mean: Floats = np.tensordot(share, bias, 1)
    if copies == 1:
        return np.tensordot(share, weight, 1), mean
    return np.concatenate(share[:, None, None] * weight, axis=1), mean


def _squash(writer: _Writer, end: _End, share: Floats, copies: int, size: int) -> None:
    """Softmax (or sigmoid) of every copy's outputs, and their mean."""
    if end == "sigmoid":
        writer.add("Sigmoid")
    if end == "softmax":
        if copies > 1:
            writer.shape(-1, copies, size)
        writer.add("Softmax", axis=-1)
    if copies == 1:
        return
    if end == "softmax":
        writer.add("MatMul", share[None].astype(writer.element), None)
        writer.shape(-1, size)
    else:
        writer.gemm(np.kron(share[None], np.eye(size)).astype(np.float64), np.zeros(size))


def _finished(writer: _Writer, source: Variable, target: Variable) -> ModelProto:
    if target.shape != (1, target.size):
        writer.shape(*target.shape)
    writer.nodes[-1].output[0] = target.name
    kind = helper.np_dtype_to_tensor_dtype(writer.element)
    inputs, outputs = (helper.make_tensor_value_info(v.name, kind, list(v.shape)) for v in (source, target))
    graph = helper.make_graph(writer.nodes, "merged", [inputs], [outputs], writer.tensors)
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="bnn-vnnlib")


# 3. Copies of any graph


def _merged_copies(plain: ModelProto, posterior: WeightSamples, end: _End, axis: int) -> ModelProto:
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


def _average(ends: list[str], end: _End, axis: int, output: str) -> Iterator[NodeProto]:
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


MergeForm = Literal["auto", "blocks", "copies"]
Average = Literal["auto", "outputs", "probabilities"]
# 4. All of it

_POINTS, _TOLERANCE = 8, 1e-3


@plain_state()
def merge(
    parts: FileParts, *, average: Average = "auto", form: MergeForm = "auto", draws: int | None = None, seed: int = 0
) -> tuple[ModelProto, tuple[str, ...]]:
    """One plain network that computes the average over the samples.

    Parameters
    ----------
    average : what is averaged: "outputs" as the graph gives them, or "probabilities" (softmax for a categorical,
        sigmoid for a bernoulli likelihood); "auto" = what the decision query asks for
    form : "blocks" (a chain of wide layers), "copies" (any graph); "auto" = blocks where the network is a chain
    draws : for a Gaussian posterior, how many networks are drawn: the merged network is then an estimate

    Returns
    -------
    the network, and remarks; it was compared with the average of the single networks in onnxruntime at some points

    Raises
    ------
    PosteriorError : no posterior
    OptionError : a Gaussian without `draws`; `average` cannot be settled; blocks of a network that is no chain
    """
    posterior, notes = _samples(parts, draws, seed)
    end = _end(parts, average)
    chain = _chain(parts.model.network, posterior) if form != "copies" else None
    signature = parts.model.network.signature
    shaped = len(signature.inputs) == len(signature.outputs) == 1
    inside = parts.model.network.softmax_axis is not None
    proto = None
    if chain is not None and shaped and (not inside or signature.outputs[0].shape == (1, signature.output_size)):
        proto = _merged_blocks(chain, posterior, signature, "softmax" if inside else end)
    if proto is None and form == "blocks":
        raise OptionError("the network is no chain of layers with known activations; use --form copies")
    if proto is None:
        proto = _merged_copies(_asked_about(parts), posterior, end, len(signature.outputs[0].shape) - 1)
    worst = _difference(parts, posterior, proto, end)
    return proto, (*notes, f"onnxruntime's output differs from the average of the networks by at most {worst:.1e}")


def _asked_about(parts: FileParts) -> ModelProto:
    """The plain network without the outputs that the reader leaves out."""
    names = {variable.name for variable in parts.model.network.signature.outputs}
    proto = ModelProto()
    proto.CopyFrom(parts.plain)
    del proto.graph.output[:]
    proto.graph.output.extend(info for info in parts.plain.graph.output if info.name in names)
    return proto


def _samples(parts: FileParts, draws: int | None, seed: int) -> tuple[WeightSamples, tuple[str, ...]]:
    """The samples that are merged: those of the posterior, or drawn ones with a remark."""
    posterior: Posterior | None = parts.posterior
    if posterior is None:
        raise PosteriorError("the model carries no posterior, so there is nothing to merge", path=parts.model.path)
    if isinstance(posterior, WeightSamples):
        if draws is not None:
            raise OptionError("the posterior is made of samples, all of which are merged: leave --n out")
        return posterior, ()
    if draws is None:
        message = f"the posterior is of family {family_of(posterior)}: say how many networks to draw (--n)"
        raise OptionError(f"{message}; the result is an estimate")
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights = sample(parts.model.network, posterior, draws, generator)
    tensors = {name: values.numpy() for name, values in weights.items()}
    family = family_of(posterior)
    note = f"{draws} networks were drawn from a {family} posterior: the merged network is an estimate of the predictive"
    return WeightSamples(tensors, np.full(draws, 1 / draws)), (note,)


def _end(parts: FileParts, average: Average) -> _End:
    likelihood: Likelihood | None = parts.likelihood
    if average == "outputs" or parts.model.network.softmax_axis is not None:
        return "outputs"
    if likelihood is None:
        raise OptionError("the model does not say how its outputs are read: add --likelihood, or --average outputs")
    squashed: dict[str, _End] = {"categorical": "softmax", "bernoulli": "sigmoid"}
    if likelihood not in squashed and average == "probabilities":
        raise OptionError(f"outputs of a {likelihood} likelihood are no logits; use --average outputs")
    return squashed.get(likelihood, "outputs")


def _difference(parts: FileParts, posterior: WeightSamples, proto: ModelProto, end: _End) -> float:
    """Largest difference to the average of the single networks, relative to max(1, |y|)."""
    x = np.random.default_rng(0).uniform(0, 1, (_POINTS, parts.model.network.signature.input_size))
    single = FileParts(parts.plain, posterior, parts.likelihood, parts.model)
    expected = np.zeros(())
    for network, share in drawn(single, None):
        expected = expected + share * _squashed(replay(model_from_proto(network), x), end)
    found = replay(_readable(proto, parts.model), x)
    worst = float((np.abs(found - expected) / np.maximum(1, np.abs(expected))).max())
    if not worst <= _TOLERANCE:
        raise SoundnessError(f"the merged network differs from the average of the networks by {worst}")
    return worst


def _readable(proto: ModelProto, like: Model) -> Model:
    """The merged graph with the signature of the original (a Softmax inside is not for our reader)."""
    return Model(like.network, None, None, None, proto.SerializeToString())


def _squashed(y: Floats, end: _End) -> Floats:
    from scipy.special import expit, softmax

    if end == "softmax":
        return np.asarray(softmax(y, axis=-1))
    return np.asarray(expit(y)) if end == "sigmoid" else y
