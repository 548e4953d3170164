"""Random models of a spec: the graph, its weights, its posterior; written to ONNX and read back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import torch

from bnn_vnnlib import Model, attach
from bnn_vnnlib.model import Network, Posterior, model_from_proto
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Activation, Constant, Node, Param
from fuzz.onnx_graph import has_conv, to_onnx
from fuzz.posterior_families import drawn, mapped
from fuzz.specs import Spec
from support import zoo
from support.networks import Builder

KINDS = ("relu", "leaky_relu", "tanh", "sigmoid")
OTHERS = ("abs", "softplus", "softsign", "atan", "sin", "cos", "erf", "silu", "elu", "clip", "power")
SLOPES: dict[str, tuple[Any, ...]] = {
    "leaky_relu": (0.0, 0.01, 0.3, 1.0), "elu": (0.5, 1.0), "clip": ((-0.25, 0.5), (0.0, 6.0)), "power": (2, 3),
}  # fmt: skip
SHIFT = 40
"""Exponent of the powers of two between layers that are rescaled."""


def make_model(spec: Spec) -> Model:
    """The model of a spec, read from its ONNX file."""
    network = make_network(spec)
    return from_network(network, make_posterior(spec, network), spec)


def from_network(network: Network, posterior: Posterior, spec: Spec) -> Model:
    """Write, attach, read back; the graph that was read computes what was written."""
    shape = network.signature.outputs[0].shape
    end = spec.end if len(network.outputs) == 1 and len(shape) == 2 and shape[0] == 1 else ""
    model = model_from_proto(attach(to_onnx(network, end), posterior, likelihood=spec.likelihood))
    x = torch.as_tensor(spec.stream("import").normal(size=(3, network.signature.input_size)))
    means = {name: torch.as_tensor(model.network.tensors[name]) for name in model.network.tensors}
    ours = evaluate(network, x, {k: v for k, v in means.items() if k in network.tensors})
    theirs = evaluate(model.network, x, softmax=False)
    finite = bool(torch.isfinite(ours).all())  # exp and powers may overflow
    if (
        finite
        and end != "Sigmoid"
        and not torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12 * float(1 + ours.abs().max()))
    ):
        raise AssertionError(f"the imported graph computes something else: {ours} {theirs}")
    return model


def proto_of(model: Model) -> onnx.ModelProto:
    """The ONNX file, posterior included."""
    return onnx.load_from_string(model.onnx_bytes)


def make_network(spec: Spec) -> Network:
    """The graph with random weights."""
    if spec.graph.startswith("zoo:"):
        network = zoo.GRAPHS[spec.graph.removeprefix("zoo:")]()
    else:
        builder = Builder()
        last = GRAPHS[spec.graph](builder, spec, _kinds(spec))
        network = builder.network(last)
    return replace(network, nodes=tuple(map(_storable, network.nodes)), tensors=_weights(spec, network))


def _storable(node: Node) -> Node:
    """ONNX holds the slopes of LeakyRelu and Elu in float32."""
    short = isinstance(node, Activation) and node.kind in ("leaky_relu", "elu")
    return replace(node, alpha=float(np.float32(node.alpha))) if short else node


def _kinds(spec: Spec) -> Callable[[], tuple[str, Any]]:
    rng = spec.stream("kinds")

    def draw() -> tuple[str, Any]:
        among = {"mixed": KINDS, "other": OTHERS}.get(spec.kind, (spec.kind,))
        kind = among[rng.integers(len(among))]
        choices = SLOPES.get(kind, (0.0,))
        return kind, choices[rng.integers(len(choices))]

    return draw


def _weights(spec: Spec, network: Network) -> dict[str, np.ndarray]:
    rng = spec.stream("weights")
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in network.tensors.items():
        fan = tensor.shape[-1] if tensor.ndim >= 2 else 4
        fan = math.prod(tensor.shape[1:]) if tensor.ndim == 4 else fan
        values = rng.normal(size=tensor.shape) * 1.4 / math.sqrt(max(fan, 1))
        match spec.numbers:
            case "integers":
                values = rng.integers(-2, 3, size=tensor.shape).astype(np.float64)
            case "sparse":
                values = values * (rng.random(tensor.shape) < 0.5)
            case "large":
                values = values * 4.0
            case "rescaled" if tensor.ndim >= 2:
                matrices = sum(other.ndim >= 2 for other in tensors.values())
                values = values * 2.0 ** (SHIFT * (-1) ** matrices)
        tensors[name] = _short(network, values)
    return tensors


def _short(network: Network, values: Any) -> np.ndarray:
    """Numbers of float32 for graphs with convolutions."""
    with np.errstate(under="ignore"):
        return np.asarray(values).astype(np.float32 if has_conv(network) else np.float64).astype(np.float64)


def make_posterior(spec: Spec, network: Network) -> Posterior:
    """Standard deviations relative to the weights, a share of them zero."""
    rng = spec.stream("posterior")
    fixed = {node.value.source for node in network.nodes if isinstance(node, Constant)}
    used = [name for name in network.tensors if name not in fixed]
    names = used if spec.only == "all" else [used[rng.integers(len(used))]]
    deviations = {}
    for name in names:
        size = np.abs(network.tensors[name])
        base = np.where(rng.random(size.shape) < 0.5, size, np.mean(size)) * spec.spread
        deviations[name] = base * rng.uniform(0.2, 1.0, size=size.shape) * (rng.random(size.shape) >= spec.zero_share)
        if spec.only == "one_weight":
            keep = np.zeros(size.size)
            keep[rng.integers(size.size)] = 1.0
            deviations[name] = deviations[name] * keep.reshape(size.shape)
    parts = spec.samples if spec.family == "samples" else spec.parts
    posterior = drawn(spec.family, {name: network.tensors[name] for name in deviations}, deviations, rng, parts)
    return mapped(posterior, lambda array: _short(network, array))


Kinds = Callable[[], tuple[str, Any]]


def _dense(b: Builder, spec: Spec, kinds: Kinds) -> int:
    x = b.input(1, spec.inputs)
    for _ in range(spec.depth):
        x = b.dense(x, spec.width, *kinds())
    return b.dense(x, spec.outputs)


def _residual(b: Builder, spec: Spec, kinds: Kinds) -> int:
    x = b.dense(b.input(1, spec.inputs), spec.width, *kinds())
    for k in range(max(1, spec.depth // 2)):
        y = b.dense(b.dense(x, spec.width, *kinds()), spec.width)
        x = b.activation(b.sum(x, y, signs=(1, 1 - 2 * (k % 2))), *kinds())
    return b.dense(x, spec.outputs)


def _conv(b: Builder, spec: Spec, kinds: Kinds) -> int:
    x = b.input(1, 1, 2 + spec.inputs % 3, 3)
    channels = 1
    for k in range(max(1, min(spec.depth, 2))):
        x = b.conv(x, (2, channels, 2, 2), strides=(1, 1 + k), pads=(k, 0, 1, 1))
        x = b.activation(b.shift(x, (2, 1, 1)), *kinds())
        channels = 2
    return b.dense(b.reshape(x, 1, math.prod(b.shape(x))), spec.outputs)


def _tied(b: Builder, spec: Spec, kinds: Kinds) -> int:
    """One matrix as it is, transposed and negated, and one bias for everything."""
    n = max(spec.inputs, 2)
    weight, bias = b.param((n, n)), b.param((1,))
    flipped = Param(weight.source, weight.index.T.copy(), np.asarray(-1.0))
    x = b.input(1, n)
    for k in range(max(1, spec.depth)):
        x = b.activation(b.shift(b.linear(x, flipped if k % 2 else weight), bias), *kinds())
    return b.dense(b.linear(x, weight), spec.outputs)


def _tied_branches(b: Builder, spec: Spec, kinds: Kinds) -> int:
    """The same weights on both branches of a difference: their uses are fully correlated."""
    n = max(spec.inputs, 2)
    weight = b.param((n, n))
    x = b.input(1, n)
    for _ in range(max(1, spec.depth)):
        left = b.linear(x, weight)
        right = b.linear(b.activation(x, *kinds()), weight)
        x = b.activation(b.sum(left, right, signs=(1, -1)), *kinds())
    return b.dense(x, spec.outputs)


def _concat(b: Builder, spec: Spec, kinds: Kinds) -> int:
    x = b.input(1, spec.inputs)
    for _ in range(max(1, spec.depth)):
        x = b.concat(b.dense(x, spec.width, *kinds()), x, b.constant((1, 2)))
    return b.dense(x, spec.outputs)


def _scaled_units(b: Builder, spec: Spec, kinds: Kinds) -> int:
    x = b.input(1, spec.inputs)
    for _ in range(max(1, spec.depth)):
        x = b.activation(b.shift(b.scale(x, (spec.inputs,)), (1,)), *kinds())
        x = b.sum(b.scale(x, ()), x, signs=(1, -1))
    return b.dense(x, spec.outputs)


GRAPHS: dict[str, Any] = {
    "dense": _dense,
    "residual": _residual,
    "conv": _conv,
    "tied": _tied,
    "tied_branches": _tied_branches,
    "concat": _concat,
    "scaled_units": _scaled_units,
}
