"""ONNX to chains of layers, with the variances of their numbers where they have some.

What is read: one input and one output, and between them Conv (two dimensions), Gemm, MatMul with a constant, Add and
Sub of a constant, Relu, LeakyRelu, Tanh, Sigmoid, Flatten, Reshape, Identity. Everything else is refused by name, and
so is a posterior that is none of: independent Gaussians, a mixture of such, weighted samples; each tensor read once.
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
MOST_WEIGHTS, MOST_PADDING = 2**26, 2**10
SUFFIXES = ("_variance", "_samples", "_factor")

_FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)

Tensors = Mapping[str, NDArray[Any]]
Changes = tuple[dict[str, Floats], dict[str, Floats]]
"""What one network changes in the graph, by names of the graph's tensors: tensors in their place, and variances."""


@dataclass(frozen=True, eq=False)
class Layer:
    """h -> activation(W h + b); all numbers are exact.

    weight : (out, in), None: the identity; bias : (out,)
    weight_variance, bias_variance : of the same shapes, None: no noise
    activation : "", "relu", "leaky", "tanh" or "sigmoid"; alpha : of "leaky"
    patches : of a convolution with noise: which h each place reads (places, K), `in` where it reads padding; z is
        (channels x places). shared : (channels, K + 1) the variances of the kernel and, last, of the bias, each of
        which is one number for all places; weight_variance and bias_variance repeat them
    """

    weight: Floats | None
    bias: Floats
    weight_variance: Floats | None = None
    bias_variance: Floats | None = None
    activation: str = ""
    alpha: float = 0.0
    patches: NDArray[np.int64] | None = None
    shared: Floats | None = None

    @property
    def variances(self) -> list[Floats]:
        """The variances of all random numbers, each once; some may be 0."""
        parts = (self.weight_variance, self.bias_variance) if self.shared is None else (self.shared,)
        return [part for part in parts if part is not None]


Layers = tuple[Layer, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A file's networks.

    family : "deterministic", "gaussian_diag", "mixture" or "samples"
    mean : the network of the graph itself
    parts, probabilities : a chain and an exact number each; the numbers add up to 1. One part of gaussian_diag
    inputs, outputs : how many
    """

    family: str
    mean: Layers
    parts: tuple[Layers, ...]
    probabilities: tuple[Fraction, ...]
    inputs: int
    outputs: int


def read_model(data: bytes) -> Model:
    """The model of a file's bytes."""
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise UnreadableError("the model is no ONNX file") from error
    graph = _Graph(proto)
    family, parts, numbers = _posterior(proto, graph.tensors)
    total = sum(numbers, Fraction(0))
    if family != "deterministic" and (not parts or min(numbers) < 0 or not total):
        raise UnreadableError("the probabilities of the parts are no probabilities")
    mean = graph.chain(({}, {}))
    chains = tuple(graph.chain(part) for part in parts)
    return Model(family, mean, chains, tuple(p / total for p in numbers), graph.inputs, len(mean[-1].bias))


# The posterior


def _posterior(proto: ModelProto, tensors: Tensors) -> tuple[str, list[Changes], list[Fraction]]:
    """Family, and what each part changes in the graph, with its probability."""
    entries = [entry.value for entry in proto.metadata_props if entry.key == KEY]
    known = set[str]()
    family, found = ("deterministic", ([], [])) if not entries else _listed(entries, tensors, known)
    loose = sorted(name for name in tensors if name.endswith(SUFFIXES) and name not in known)
    if loose:
        raise UnreadableError(f"tensor {loose[0]!r} looks like a part of a posterior, and no manifest lists it")
    return family, *found


def _listed(
    entries: list[str], tensors: Tensors, known: set[str]
) -> tuple[str, tuple[list[Changes], list[Fraction]]]:  # fmt: skip
    """The family of the posterior that the manifest names, what each part changes, and the parts' probabilities."""
    try:
        (content,) = [json.loads(entry) for entry in entries]
        family, form, params = content["family"], content["format"], dict(content["params"])
        components = [(part["family"], dict(part["params"])) for part in content.get("components", ())]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"the posterior's manifest {KEY!r} is damaged") from error
    families = [name for name, _ in components] if family == "mixture" else [family]
    known_here = {"gaussian_diag"} if family == "mixture" else {"gaussian_diag", "samples"}
    if form != 1 or not params or not families or not known_here.issuperset(map(str, families)):
        raise UnreadableError(f"no rule for a posterior of family {str(family)[:40]!r}, format {str(form)[:10]}")

    def tensor(name: str, entry: Any, what: str) -> Floats:
        """What an entry of the manifest names, of any shape."""
        where = entry.get(what) if isinstance(entry, dict) else None
        values = tensors.get(where) if isinstance(where, str) else None
        if values is None or not isinstance(where, str):
            raise UnreadableError(f"the {what} of {name!r} are not in the file, or stored in a way without a rule")
        if _hash(values) != entry.get(f"sha256_{what}"):
            raise UnreadableError(f"the {what} of {name!r} are not those of the manifest")
        if values.dtype.kind != "f" or not np.isfinite(values).all() or (what == "variance" and (values < 0).any()):
            raise UnreadableError(f"the {what} of {name!r} are no finite floats, or negative")
        known.add(where)
        return values.astype(np.float64)

    def like(name: str, entry: Any, what: str) -> Floats:
        """What an entry of the manifest names, of the shape of the graph's own tensor; of samples each one."""
        values, own = tensor(name, entry, what), tensors.get(name)
        if own is None or (values.shape[1:] if what == "samples" else values.shape) != own.shape:
            raise UnreadableError(f"the {what} of {name!r} do not fit the tensor of that name")
        return values

    for name, entry in params.items():
        if name not in tensors or not isinstance(entry, dict) or _hash(tensors[name]) != entry.get("sha256_mean"):
            raise UnreadableError(f"the posterior of {name!r} does not belong to the weight of this file")
    if family == "gaussian_diag":
        return family, ([({}, {name: like(name, entry, "variance") for name, entry in params.items()})], [Fraction(1)])
    numbers = tensor("the parts", content.get("probabilities"), "probabilities")
    parts: list[Changes]
    if family == "samples":
        stored = {name: like(name, entry, "samples") for name, entry in params.items()}
        if numbers.ndim != 1 or any(len(s) != len(numbers) for s in stored.values()):
            raise UnreadableError("the samples of the weights and their probabilities differ in number")
        parts = [({name: s[i] for name, s in stored.items()}, {}) for i in range(len(numbers))]
    else:
        if numbers.shape != (len(components),) or any(set(own) != set(params) for _, own in components):
            raise UnreadableError("the components of the mixture, their weights and their probabilities do not agree")
        parts = [
            (
                {name: like(name, entry, "mean") for name, entry in own.items()},
                {name: like(name, entry, "variance") for name, entry in own.items() if "variance" in entry},
            )
            for _, own in components
        ]
    return family, (parts, [Fraction(float(p)) for p in numbers])


def _hash(values: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()).hexdigest()


# The graph


class _Graph:
    """The nodes and constants of an ONNX graph, which must be a chain from one input to one output."""

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
        """Take over a tensor of the file; refuses large ones and other types."""
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

    def chain(self, changes: Changes) -> Layers:
        """The layers of one network; what is changed has to be read once."""
        chain = _Chain(self.tensors, changes, self._shape, self._input)
        for node in self._nodes:
            if node.domain not in ("", "ai.onnx"):
                raise UnreadableError(f"no rule for operators of domain {node.domain!r}")
            if len(node.output) != 1 or node.output[0] in self.tensors or list(node.input).count(chain.value) != 1:
                raise UnreadableError(f"node {node.name or node.op_type!r}: no rule for networks that are no chain")
            chain.take(node)
            chain.value = node.output[0]
        if chain.value != self._output:
            raise UnreadableError("the network's output is not the end of its chain")
        wrong = sorted(name for name in {*changes[0], *changes[1]} if chain.read.count(name) != 1)
        if wrong:
            raise UnreadableError(f"no rule for random weights that are not read at exactly one place: {wrong[0]!r}")
        layers = chain.layers or [Layer(None, np.zeros(chain.size))]
        numbers = [part for layer in layers for part in (layer.weight, layer.bias) if part is not None]
        if not all(np.isfinite(part).all() for part in numbers):
            raise UnreadableError("the network has numbers that are not finite")
        return tuple(layers)


@dataclass(eq=False)
class _Chain:
    """What has been read of a chain, each node of which has one input that is no constant.

    shape : of the value at its end, the batch included; value : its name
    layers; read : names of the constants in them
    """

    tensors: Tensors
    changes: Changes
    shape: tuple[int, ...]
    value: str
    layers: list[Layer] = field(default_factory=list)
    read: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def take(self, node: NodeProto) -> None:
        """Add one more node of the graph to the layers."""
        self.node = node
        match self.node.op_type:
            case "Gemm":
                self._gemm()
            case "MatMul":
                self._matmul()
            case "Conv":
                self._convolved()
            case "Add" | "Sub" as kind:
                self._shift(-1.0 if kind == "Sub" else 1.0)
            case "Flatten":
                axis = self._attributes(axis=1)["axis"]
                if abs(axis) > len(self.shape):
                    raise UnreadableError(f"Flatten: no axis {axis}")
                head = math.prod(self.shape[:axis])
                self.shape = (head, self.size // max(1, head))
            case "Reshape":
                self._reshape()
            case "Identity":
                self._attributes()
            case "Relu" | "LeakyRelu" | "Tanh" | "Sigmoid" as kind:
                self._activation(kind)
            case kind:
                raise UnreadableError(f"no rule for operator {kind!r}")

    def _attributes(self, **known: Any) -> dict[str, Any]:
        for one in self.node.attribute:
            if one.name not in known or one.type not in (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.INTS):
                raise UnreadableError(f"{self.node.op_type}: no rule for attribute {one.name!r}")
            value = {AttributeProto.INT: one.i, AttributeProto.FLOAT: one.f}.get(one.type, tuple(one.ints))
            if type(value) is not type(known[one.name]):
                raise UnreadableError(f"{self.node.op_type}: attribute {one.name!r} is of another type")
            known[one.name] = value
        return known

    def _other(self, at: int) -> tuple[Floats, Floats | None]:
        """A constant input of the node and its variance, if any."""
        name = self.node.input[at]
        if name not in self.tensors or self.tensors[name].dtype.kind != "f":
            raise UnreadableError(f"{self.node.op_type}: {name!r} is no constant of floats")
        self.read.append(name)
        replaced, variances = self.changes
        return replaced.get(name, self.tensors[name]).astype(np.float64), variances.get(name)

    def _gemm(self) -> None:
        form = self._attributes(alpha=1.0, beta=1.0, transA=0, transB=0)
        if (form["alpha"], form["beta"], form["transA"]) != (1.0, 1.0, 0) or self.node.input[0] != self.value:
            raise UnreadableError("Gemm: no rule for alpha, beta, transA, or a constant in front")
        weight, variance = self._other(1)
        if weight.ndim != 2 or len(self.shape) != 2 or self.shape[0] != 1:
            raise UnreadableError("Gemm: no rule for these shapes")
        if not form["transB"]:
            weight, variance = weight.T, None if variance is None else variance.T
        self._mapped(weight, variance, (1, len(weight)))
        if len(self.node.input) > 2 and self.node.input[2]:
            self._biased(*self._other(2), 1.0)

    def _matmul(self) -> None:
        self._attributes()
        front = self.node.input[0] != self.value
        weight, variance = self._other(0 if front else 1)
        if weight.ndim != 2 or not self.shape:
            raise UnreadableError("MatMul: no rule for these shapes")
        if not front:
            weight, variance = weight.T, None if variance is None else variance.T
        axis = max(0, len(self.shape) - 2) if front else len(self.shape) - 1
        if self.shape[axis] != self.size:
            raise UnreadableError("MatMul: no rule for a weight that is used at several places")
        self._mapped(weight, variance, (*self.shape[:axis], len(weight), *self.shape[axis + 1 :]))

    def _convolved(self) -> None:
        """Take over a Conv as a dense layer, with its patches where its numbers are random."""
        kernel, variance = self._other(1)
        form = self._attributes(dilations=(1, 1), group=1, kernel_shape=kernel.shape[2:], pads=(0,) * 4, strides=(1, 1))
        pads, steps, gaps = (np.array(form[name], int) for name in ("pads", "strides", "dilations"))
        if (
            self.node.input[0] != self.value or len(self.shape) != 4 or kernel.ndim != 4 or form["group"] != 1
            or kernel.shape[1:] != (self.shape[1], *form["kernel_shape"])
            or (len(pads), len(steps), len(gaps)) != (4, 2, 2)
            or min(pads) < 0 or min(steps) < 1 or min(gaps) < 1 or max(pads) > MOST_PADDING
        ):  # fmt: skip
            raise UnreadableError("Conv: no rule for these shapes or attributes")
        batch, channels, *size = self.shape
        places = (np.array(size) + pads[:2] + pads[2:] - gaps * (np.array(kernel.shape[2:]) - 1) - 1) // steps + 1
        many = len(kernel) * int(places.prod())
        if batch != 1 or min(places) < 1 or many * (self.size + 1) > MOST_WEIGHTS:
            raise UnreadableError("Conv: no rule for a batch, or too large")
        padded = np.pad(np.arange(self.size).reshape(channels, *size), ((0, 0), *zip(pads[:2], pads[2:], strict=True)),
                        constant_values=self.size)  # fmt: skip
        y, x = (
            np.arange(n)[:, None] * s + np.arange(k) * d
            for n, s, k, d in zip(places, steps, kernel.shape[2:], gaps, strict=True)
        )
        patches = (
            padded[:, y[:, None, :, None], x[None, :, None, :]].transpose(1, 2, 0, 3, 4).reshape(places.prod(), -1)
        )

        def spread(values: Floats) -> Floats:
            """The kernel's numbers as a matrix over h."""
            dense = np.zeros((len(kernel), len(patches), self.size + 1))
            dense[:, np.arange(len(patches))[:, None], patches] = values.reshape(len(kernel), 1, -1)
            return np.ascontiguousarray(dense[..., :-1].reshape(many, self.size))

        bias, noise = np.zeros(len(kernel)), None
        if len(self.node.input) > 2 and self.node.input[2]:
            bias, noise = self._other(2)
        if bias.shape != (len(kernel),):
            raise UnreadableError("Conv: no rule for a bias of this shape")
        layer = Layer(spread(kernel), np.repeat(bias, len(patches)))
        if variance is not None or noise is not None:
            variance = np.zeros(kernel.shape) if variance is None else variance
            noise = np.zeros(len(kernel)) if noise is None else noise
            shared = np.concatenate([variance.reshape(len(kernel), -1), noise[:, None]], 1)
            repeated = spread(variance), np.repeat(noise, len(patches))
            layer = Layer(layer.weight, layer.bias, *repeated, patches=patches, shared=shared)
        self.layers.append(layer)
        self.shape = (1, len(kernel), *places.tolist())

    def _mapped(self, weight: Floats, variance: Floats | None, shape: tuple[int, ...]) -> None:
        if weight.shape[1] != self.size:
            raise UnreadableError(f"{self.node.op_type}: a weight of shape {weight.shape} for {self.size} numbers")
        self.layers.append(Layer(np.ascontiguousarray(weight), np.zeros(len(weight)), variance))
        self.shape = shape

    def _shift(self, sign: float) -> None:
        self._attributes()
        if sign < 0 and self.node.input[0] != self.value:
            raise UnreadableError("Sub: no rule for a constant in front")
        self._biased(*self._other(0 if self.node.input[0] != self.value else 1), sign)

    def _biased(self, bias: Floats, variance: Floats | None, sign: float) -> None:
        """Add a bias to the last layer, or as a layer of its own."""
        try:
            shape = np.broadcast_shapes(self.shape, bias.shape)
        except ValueError as error:
            raise UnreadableError(f"{self.node.op_type}: shapes {self.shape} and {bias.shape} do not fit") from error
        if math.prod(shape) != self.size or (variance is not None and variance.size != self.size):
            raise UnreadableError(f"{self.node.op_type}: no rule for numbers that are used at several places")
        bias = sign * np.broadcast_to(bias, shape).ravel()
        variance = None if variance is None else np.broadcast_to(variance, shape).ravel()
        last = self.layers[-1] if self.layers else None
        if last is not None and not last.activation and not last.bias.any() and last.bias_variance is None:
            self.layers[-1] = replace(last, bias=bias, bias_variance=variance)
        else:
            self.layers.append(Layer(None, bias, None, variance))
        self.shape = tuple(shape)

    def _reshape(self) -> None:
        """Take over a Reshape, which only changes the shape."""
        if self._attributes(allowzero=0)["allowzero"]:
            raise UnreadableError("Reshape: no rule for allowzero")
        wanted = self.tensors.get(self.node.input[1]) if len(self.node.input) > 1 else None
        if wanted is None or wanted.dtype != np.int64 or wanted.ndim != 1:
            raise UnreadableError("Reshape: the shape is no constant")
        shape = [self.shape[i] if n == 0 and i < len(self.shape) else int(n) for i, n in enumerate(wanted)]
        if -1 in shape:
            rest = -math.prod(shape)
            shape[shape.index(-1)] = self.size // max(1, rest)
        if math.prod(shape) != self.size or any(n < 0 for n in shape):
            raise UnreadableError(f"Reshape: {list(map(int, wanted))} does not fit {self.size} numbers")
        self.shape = tuple(shape)

    def _activation(self, kind: str) -> None:
        known = {"alpha": float(np.float32(0.01))} if kind == "LeakyRelu" else {}
        alpha = self._attributes(**known).get("alpha", 0.0)
        if not 0 <= alpha <= 1:
            raise UnreadableError("LeakyRelu: no rule for an alpha that is not between 0 and 1")
        if not self.layers or self.layers[-1].activation:
            self.layers.append(Layer(None, np.zeros(self.size)))
        self.layers[-1] = replace(self.layers[-1], activation=ACTIVATIONS[kind], alpha=alpha)
