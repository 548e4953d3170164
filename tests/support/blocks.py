"""Networks with norms and self-attention, read from ONNX, with a Gaussian posterior on some of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib import Model
from bnn_vnnlib.model import GaussianDiagonal, model_from_proto

Array = NDArray[np.float64]


class Graph:
    """Collects ONNX nodes and tensors; every method returns the name of what it added."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.tensors: dict[str, Array] = {}

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def tensor(self, name: str, value: Any) -> str:
        self.tensors[name] = np.asarray(value)
        return name

    def dense(self, x: str, name: str, before: int, after: int) -> str:
        """x W + b over the last axis, W and b of the size that keeps values of the size of 1."""
        weight = self.tensor(f"{name}.weight", self.rng.normal(size=(before, after)) / np.sqrt(before))
        bias = self.tensor(f"{name}.bias", 0.3 * self.rng.normal(size=after))
        return self.add("Add", self.add("MatMul", x, weight), bias)

    def scale_and_bias(self, size: int, name: str = "norm") -> tuple[str, str]:
        """Of a norm: about 1 and 0."""
        scale = self.tensor(f"{name}.scale", self.rng.uniform(0.7, 1.3, size))
        return scale, self.tensor(f"{name}.bias", 0.2 * self.rng.normal(size=size))

    def model(self, shape: tuple[int, ...], y: str, outputs: int) -> Model:
        kind = TensorProto.DOUBLE
        graph = helper.make_graph(
            self.nodes, "blocks", [helper.make_tensor_value_info("x", kind, shape)],
            [helper.make_tensor_value_info(y, kind, [1, outputs])],
            [numpy_helper.from_array(tensor, name) for name, tensor in self.tensors.items()],
        )  # fmt: skip
        return model_from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def layer_norm(*, front: bool = False) -> Model:
    """A norm behind a dense layer, or in front of all of them."""
    g = Graph(1)
    x = "x" if front else g.dense("x", "first", 4, 6)
    x = g.add("LayerNormalization", x, *g.scale_and_bias(4 if front else 6), axis=-1)
    x = g.dense(x, "first", 4, 6) if front else x
    return g.model((1, 4), g.dense(g.add("Relu", x), "last", 6, 2), 2)


def batch_norm(*, front: bool = False) -> Model:
    """A norm between a dense layer and its activation, or in front of all."""
    g = Graph(2)
    size = 4 if front else 6
    x = "x" if front else g.dense("x", "first", 4, 6)
    mean, variance = (
        g.tensor("mean", 0.1 * g.rng.normal(size=size)),
        g.tensor("variance", g.rng.uniform(0.5, 1.5, size)),
    )
    x = g.add("BatchNormalization", x, *g.scale_and_bias(size), mean, variance)
    x = g.dense(x, "first", 4, 6) if front else x
    return g.model((1, 4), g.dense(g.add("Tanh", x), "last", 6, 2), 2)


def image_norm(*, groups: int = 0) -> Model:
    """Instance norms (or group norms: normalised in groups of channels, scaled for each) behind a convolution."""
    g = Graph(3)
    x = g.add("Conv", "x", g.tensor("first.weight", g.rng.normal(size=(4, 1, 2, 2)) / 2), kernel_shape=[2, 2])
    ones, zeros = np.ones(groups or 4), np.zeros(groups or 4)
    if groups:  # as torch exports GroupNorm
        x = g.add("Reshape", x, g.tensor("grouped", np.array([1, groups, -1])))
        x = g.add("InstanceNormalization", x, g.tensor("ones", ones), g.tensor("zeros", zeros))
        x = g.add("Reshape", x, g.tensor("image", np.array([1, 4, 3, 3])))
        scale, bias = g.scale_and_bias(4)
        g.tensors = {k: v.reshape(4, 1, 1) if k in (scale, bias) else v for k, v in g.tensors.items()}
        x = g.add("Add", g.add("Mul", x, scale), bias)
    else:
        x = g.add("InstanceNormalization", x, *g.scale_and_bias(4))
    x = g.add("Reshape", g.add("Relu", x), g.tensor("flat", np.array([1, 36])))
    return g.model((1, 1, 4, 4), g.dense(x, "last", 36, 2), 2)


def self_attention(*, tokens: int = 3, size: int = 4) -> Model:
    """softmax(Q K' / sqrt(d)) V O + x over some tokens, and a dense layer over all of them."""
    g = Graph(4)
    q, k, v = (g.dense("x", name, size, size) for name in ("query", "key", "value"))
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1]))
    scores = g.add("Div", scores, g.tensor("root", np.sqrt(float(size))))
    mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), v)
    x = g.add("Add", g.dense(mixed, "output", size, size), "x")
    x = g.add("Reshape", x, g.tensor("flat", np.array([1, tokens * size])))
    return g.model((1, tokens, size), g.dense(g.add("Relu", x), "last", tokens * size, 2), 2)


BLOCKS: dict[str, Callable[[], Model]] = {
    "layer norm behind": layer_norm, "layer norm in front": lambda: layer_norm(front=True),
    "batch norm behind": batch_norm, "batch norm in front": lambda: batch_norm(front=True),
    "instance norm": image_norm, "group norm": lambda: image_norm(groups=2), "self-attention": self_attention,
}  # fmt: skip


TRAINED = ("norm", "first", "last", "query", "key", "value", "output")
"""What the names of all tensors that are trained begin with."""


def random(model: Model, deviation: float, *parts: str, likelihood: Any = None) -> Model:
    """The model with independent weights in the tensors whose names begin with one of the parts, each of that deviation
    times the size that entries of its tensor have (1 over the root of the inputs for a matrix, 1 for a scale)."""
    variances = {}
    for name, tensor in model.network.tensors.items():
        if name.startswith(parts):
            sd = deviation / np.sqrt(len(tensor) if name.endswith("weight") and tensor.ndim == 2 else 1)
            variances[name] = np.full(tensor.shape, sd**2)
    return replace(model, posterior=GaussianDiagonal(variances), likelihood=likelihood)
