"""ONNX to a chain of layers, each with the variances of its numbers where it has some.

What is read: one input and one output, and between them Gemm, MatMul with a constant, Add and Sub of a constant, Relu,
LeakyRelu, Tanh, Sigmoid, Flatten, Reshape, Identity. Everything else is refused by name, and so is a posterior that is
none of: independent Gaussians or weighted samples, each tensor read at one place.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from bnn_vnnlib_check.balls import Floats
from bnn_vnnlib_check.errors import UnreadableError

KEY = "bnn.posterior"
ACTIVATIONS = {"Relu": "relu", "LeakyRelu": "leaky", "Tanh": "tanh", "Sigmoid": "sigmoid"}
MOST_WEIGHTS = 2**26
SUFFIXES = ("_variance", "_samples", "_factor")

_FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)


@dataclass(frozen=True, eq=False)
class Layer:
    """h -> activation(W h + b); all numbers are exact.

    weight : (out, in), None: the identity; bias : (out,)
    weight_variance, bias_variance : of the same shapes, None: no noise
    activation : "", "relu", "leaky", "tanh" or "sigmoid"; alpha : of "leaky"
    """

    weight: Floats | None
    bias: Floats
    weight_variance: Floats | None = None
    bias_variance: Floats | None = None
    activation: str = ""
    alpha: float = 0.0


@dataclass(frozen=True, eq=False)
class Model:
    """A file's networks.

    family : "deterministic", "gaussian_diag" or "samples"
    layers : with the variances of gaussian_diag
    samples, probabilities : of "samples", one chain and one exact number each; the numbers add up to 1
    inputs, outputs : how many
    """

    family: str
    layers: tuple[Layer, ...]
    samples: tuple[tuple[Layer, ...], ...]
    probabilities: tuple[Fraction, ...]
    inputs: int
    outputs: int

    @property
    def mean(self) -> tuple[Layer, ...]:
        """The network of the graph itself."""
        return tuple(replace(layer, weight_variance=None, bias_variance=None) for layer in self.layers)


def read_model(data: bytes) -> Model:
    """The model of a file's bytes."""
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise UnreadableError("the model is no ONNX file") from error
    graph = _Graph(proto)
    family, params, extra = _posterior(proto, graph.tensors)
    if family == "samples":
        probabilities = [Fraction(float(p)) for p in extra]
        total = sum(probabilities, Fraction(0))
        if any(p < 0 for p in probabilities) or not total:
            raise UnreadableError("the probabilities of the samples are no probabilities")
        chains = [graph.chain({name: s[i] for name, s in params.items()}, {}, set(params)) for i in range(len(extra))]
        layers = graph.chain({}, {}, set())
        shares = tuple(p / total for p in probabilities)
        return Model(family, layers, tuple(chains), shares, graph.inputs, len(layers[-1].bias))
    layers = graph.chain({}, params, set(params))
    return Model(family, layers, (), (), graph.inputs, len(layers[-1].bias))


# The posterior


def _posterior(
    proto: ModelProto, tensors: Mapping[str, NDArray[Any]]
) -> tuple[str, dict[str, Floats], NDArray[Any]]:  # fmt: skip
    """Family, variances or samples by the weight's name, probabilities."""
    nothing = np.zeros(0)
    entries = [entry.value for entry in proto.metadata_props if entry.key == KEY]
    if not entries:
        loose = sorted(name for name in tensors if name.endswith(SUFFIXES))
        if loose:
            raise UnreadableError(f"tensor {loose[0]!r} looks like a part of a posterior, and no manifest lists it")
        return "deterministic", {}, nothing
    try:
        (content,) = [json.loads(entry) for entry in entries]
        family, form, listed = content["family"], content["format"], dict(content["params"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(f"the posterior's manifest {KEY!r} is damaged") from error
    if form != 1 or family not in ("gaussian_diag", "samples"):
        raise UnreadableError(f"no rule for a posterior of family {str(family)[:40]!r}, format {str(form)[:10]}")
    part = "variance" if family == "gaussian_diag" else "samples"
    found, known = {}, set[str]()
    for name, entry in listed.items():
        found[name], used = _listed(tensors, name, entry, part)
        known.add(used)
        mean = tensors.get(name)
        want = () if mean is None else mean.shape
        have = found[name].shape if part == "variance" else found[name].shape[1:]
        if mean is None or have != want or _hash(mean) != entry.get("sha256_mean"):
            raise UnreadableError(f"the posterior of {name!r} does not belong to the weight of this file")
        if part == "variance" and not (found[name] >= 0).all():
            raise UnreadableError(f"the variance of {name!r} has numbers below 0")
    probabilities = nothing
    if family == "samples":
        probabilities, used = _listed(tensors, "the samples", content.get("probabilities"), "probabilities")
        known.add(used)
        if probabilities.ndim != 1 or any(len(s) != len(probabilities) for s in found.values()):
            raise UnreadableError("the samples of the weights and their probabilities differ in number")
    loose = sorted(name for name in tensors if name.endswith(SUFFIXES) and name not in known)
    if loose or not found:
        raise UnreadableError(f"tensor {(loose or ['none'])[0]!r}: the posterior's manifest does not list it")
    return family, {name: values.astype(np.float64) for name, values in found.items()}, probabilities


def _listed(
    tensors: Mapping[str, NDArray[Any]], name: str, entry: Any, part: str
) -> tuple[NDArray[Any], str]:  # fmt: skip
    where = entry.get(part) if isinstance(entry, dict) else None
    values = tensors.get(where) if isinstance(where, str) else None
    if values is None or not isinstance(where, str):
        raise UnreadableError(f"the {part} of {name!r} are not in the file, or stored in a way without a rule")
    if _hash(values) != entry.get(f"sha256_{part}"):
        raise UnreadableError(f"the {part} of {name!r} are not those of the manifest")
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        raise UnreadableError(f"the {part} of {name!r} are no finite floats")
    return values, where


def _hash(values: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()).hexdigest()


# The graph


@dataclass(eq=False)
class _Chain:
    """What has been read of a chain; shape : of the value at its end, the batch included."""

    shape: tuple[int, ...]
    layers: list[Layer] = field(default_factory=list)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class _Graph:
    def __init__(self, proto: ModelProto) -> None:
        graph = proto.graph
        for what, there in (
            ("functions", proto.functions), ("sparse initializers", graph.sparse_initializer),
            ("training information", proto.training_info),
        ):  # fmt: skip
            if there:
                raise UnreadableError(f"no rule for {what} in an ONNX file")
        self.tensors: dict[str, NDArray[Any]] = {}
        for tensor in graph.initializer:
            self._constant(tensor.name, tensor)
        self._nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                if [a.name for a in node.attribute] != ["value"] or len(node.output) != 1:
                    raise UnreadableError(f"no rule for the constant {node.name!r}")
                self._constant(node.output[0], node.attribute[0].t)
            else:
                self._nodes.append(node)
        inputs = [info for info in graph.input if info.name not in self.tensors]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise UnreadableError("no rule for networks of several inputs or outputs")
        dims = inputs[0].type.tensor_type.shape.dim
        self._input, self._output = inputs[0].name, graph.output[0].name
        self._shape = tuple(dim.dim_value if dim.dim_value > 0 else 1 for dim in dims)
        self.inputs = math.prod(self._shape)
        if inputs[0].type.tensor_type.elem_type not in _FLOATS or self.inputs > MOST_WEIGHTS:
            raise UnreadableError("the network's input is of a type without a rule, or too large")

    def _constant(self, name: str, tensor: TensorProto) -> None:
        if name in self.tensors:
            raise UnreadableError(f"tensor {name!r} is defined twice")
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise UnreadableError(f"tensor {name!r} lies outside of the file")
        if tensor.data_type not in (*_FLOATS, TensorProto.INT64):
            raise UnreadableError(f"no rule for the type of tensor {name!r}")
        if math.prod(tensor.dims) > MOST_WEIGHTS or any(n < 0 for n in tensor.dims):
            raise UnreadableError(f"tensor {name!r} is too large")
        try:
            self.tensors[name] = numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise UnreadableError(f"tensor {name!r} is damaged") from error

    def chain(
        self, replaced: Mapping[str, Floats], variances: Mapping[str, Floats], random: set[str]
    ) -> tuple[Layer, ...]:  # fmt: skip
        """The layers, with some tensors replaced, and variances beside some; `random` : to be read once, each."""
        value, chain, read = self._input, _Chain(self._shape), list[str]()
        for node in self._nodes:
            if node.domain not in ("", "ai.onnx"):
                raise UnreadableError(f"no rule for operators of domain {node.domain!r}")
            if len(node.output) != 1 or node.output[0] in self.tensors or list(node.input).count(value) != 1:
                raise UnreadableError(f"node {node.name or node.op_type!r}: no rule for networks that are no chain")
            step = _Step(node, value, self.tensors, replaced, variances)
            chain = step.taken(chain)
            read += step.read
            value = node.output[0]
        if value != self._output:
            raise UnreadableError("the network's output is not the end of its chain")
        wrong = sorted(name for name in random if read.count(name) != 1)
        if wrong:
            raise UnreadableError(f"no rule for random weights that are not read at exactly one place: {wrong[0]!r}")
        layers = chain.layers or [Layer(None, np.zeros(chain.size))]
        numbers = [part for layer in layers for part in (layer.weight, layer.bias) if part is not None]
        if not all(np.isfinite(part).all() for part in numbers):
            raise UnreadableError("the network has numbers that are not finite")
        return tuple(layers)


@dataclass(eq=False)
class _Step:
    """One node of a chain, whose other inputs are constants; read : names of those with a part in the layers."""

    node: NodeProto
    value: str
    tensors: Mapping[str, NDArray[Any]]
    replaced: Mapping[str, Floats]
    variances: Mapping[str, Floats]
    read: list[str] = field(default_factory=list)

    def taken(self, chain: _Chain) -> _Chain:
        match self.node.op_type:
            case "Gemm":
                return self._gemm(chain)
            case "MatMul":
                return self._matmul(chain)
            case "Add" | "Sub" as kind:
                return self._shift(chain, -1.0 if kind == "Sub" else 1.0)
            case "Flatten":
                axis = self._attributes(axis=1)["axis"]
                axis = axis + len(chain.shape) if axis < 0 else axis
                head = math.prod(chain.shape[:axis])
                return replace(chain, shape=(head, chain.size // max(1, head)))
            case "Reshape":
                return self._reshape(chain)
            case "Identity":
                self._attributes()
                return chain
            case "Relu" | "LeakyRelu" | "Tanh" | "Sigmoid" as kind:
                return self._activation(chain, kind)
            case kind:
                raise UnreadableError(f"no rule for operator {kind!r}")

    def _attributes(self, **known: Any) -> dict[str, Any]:
        for one in self.node.attribute:
            if one.name not in known or one.type not in (AttributeProto.INT, AttributeProto.FLOAT):
                raise UnreadableError(f"{self.node.op_type}: no rule for attribute {one.name!r}")
            known[one.name] = one.i if one.type == AttributeProto.INT else one.f
        return known

    def _other(self, at: int) -> tuple[Floats, Floats | None]:
        """A constant input and its variance."""
        name = self.node.input[at]
        if name not in self.tensors or self.tensors[name].dtype.kind != "f":
            raise UnreadableError(f"{self.node.op_type}: {name!r} is no constant of floats")
        self.read.append(name)
        return self.replaced.get(name, self.tensors[name]).astype(np.float64), self.variances.get(name)

    def _gemm(self, chain: _Chain) -> _Chain:
        form = self._attributes(alpha=1.0, beta=1.0, transA=0, transB=0)
        if (form["alpha"], form["beta"], form["transA"]) != (1.0, 1.0, 0) or self.node.input[0] != self.value:
            raise UnreadableError("Gemm: no rule for alpha, beta, transA, or a constant in front")
        weight, variance = self._other(1)
        if weight.ndim != 2 or len(chain.shape) != 2 or chain.shape[0] != 1:
            raise UnreadableError("Gemm: no rule for these shapes")
        if not form["transB"]:
            weight, variance = weight.T, None if variance is None else variance.T
        self._mapped(chain, weight, variance, (1, len(weight)))
        if len(self.node.input) > 2 and self.node.input[2]:
            chain = self._biased(chain, *self._other(2), 1.0)
        return chain

    def _matmul(self, chain: _Chain) -> _Chain:
        self._attributes()
        front = self.node.input[0] != self.value
        weight, variance = self._other(0 if front else 1)
        if weight.ndim != 2 or not chain.shape:
            raise UnreadableError("MatMul: no rule for these shapes")
        if front:
            axis = max(0, len(chain.shape) - 2)
            shape = (*chain.shape[:axis], weight.shape[0], *chain.shape[axis + 1 :])
        else:
            weight, variance = weight.T, None if variance is None else variance.T
            axis, shape = len(chain.shape) - 1, (*chain.shape[:-1], weight.shape[0])
        if chain.shape[axis] != chain.size:
            raise UnreadableError("MatMul: no rule for a weight that is used at several places")
        self._mapped(chain, weight, variance, shape)
        return chain

    def _mapped(self, chain: _Chain, weight: Floats, variance: Floats | None, shape: tuple[int, ...]) -> None:
        if weight.shape[1] != chain.size:
            raise UnreadableError(f"{self.node.op_type}: a weight of shape {weight.shape} for {chain.size} numbers")
        chain.layers.append(Layer(np.ascontiguousarray(weight), np.zeros(len(weight)), variance))
        chain.shape = shape

    def _shift(self, chain: _Chain, sign: float) -> _Chain:
        self._attributes()
        if sign < 0 and self.node.input[0] != self.value:
            raise UnreadableError("Sub: no rule for a constant in front")
        return self._biased(chain, *self._other(0 if self.node.input[0] != self.value else 1), sign)

    def _biased(self, chain: _Chain, bias: Floats, variance: Floats | None, sign: float) -> _Chain:
        try:
            shape = np.broadcast_shapes(chain.shape, bias.shape)
        except ValueError as error:
            raise UnreadableError(f"{self.node.op_type}: shapes {chain.shape} and {bias.shape} do not fit") from error
        if math.prod(shape) != chain.size or (variance is not None and variance.size != chain.size):
            raise UnreadableError(f"{self.node.op_type}: no rule for numbers that are used at several places")
        bias = sign * np.broadcast_to(bias, shape).ravel()
        variance = None if variance is None else np.broadcast_to(variance, shape).ravel()
        last = chain.layers[-1] if chain.layers else None
        if last is not None and not last.activation and not last.bias.any() and last.bias_variance is None:
            chain.layers[-1] = replace(last, bias=bias, bias_variance=variance)
        else:
            chain.layers.append(Layer(None, bias, None, variance))
        chain.shape = tuple(shape)
        return chain

    def _reshape(self, chain: _Chain) -> _Chain:
        if self._attributes(allowzero=0)["allowzero"]:
            raise UnreadableError("Reshape: no rule for allowzero")
        wanted = self.tensors.get(self.node.input[1]) if len(self.node.input) > 1 else None
        if wanted is None or wanted.dtype != np.int64 or wanted.ndim != 1:
            raise UnreadableError("Reshape: the shape is no constant")
        shape = [chain.shape[i] if n == 0 and i < len(chain.shape) else int(n) for i, n in enumerate(wanted)]
        if -1 in shape:
            rest = -math.prod(shape)
            shape[shape.index(-1)] = chain.size // max(1, rest)
        if math.prod(shape) != chain.size or any(n < 0 for n in shape):
            raise UnreadableError(f"Reshape: {list(map(int, wanted))} does not fit {chain.size} numbers")
        chain.shape = tuple(shape)
        return chain

    def _activation(self, chain: _Chain, kind: str) -> _Chain:
        alpha = float(self._attributes(alpha=0.01)["alpha"]) if kind == "LeakyRelu" else 0.0
        if kind != "LeakyRelu":
            self._attributes()
        elif not any(one.name == "alpha" for one in self.node.attribute):
            alpha = float(np.float32(0.01))
        if not 0 <= alpha <= 1:
            raise UnreadableError("LeakyRelu: no rule for an alpha that is not between 0 and 1")
        if not chain.layers or chain.layers[-1].activation:
            chain.layers.append(Layer(None, np.zeros(chain.size)))
        chain.layers[-1] = replace(chain.layers[-1], activation=ACTIVATIONS[kind], alpha=alpha)
        return chain
