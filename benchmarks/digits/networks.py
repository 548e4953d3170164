"""The four small networks: their layers, what they compute in torch, and their ONNX graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Layer:
    """A dense layer, or a 3 x 3 convolution with stride 2 and padding 1; `name` prefixes its two tensors."""

    name: str
    kind: Literal["dense", "conv"]
    inputs: int
    outputs: int

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight, outputs first."""
        return (self.outputs, self.inputs, 3, 3) if self.kind == "conv" else (self.outputs, self.inputs)

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply the layer to a batch."""
        if self.kind == "conv":
            return F.conv2d(x, weight, bias, stride=2, padding=1)
        return F.linear(x.flatten(1), weight, bias)


@dataclass(frozen=True)
class Architecture:
    """Layers with one activation between them; the likelihood says what the outputs mean."""

    name: str
    input_shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    activation: Literal["Relu", "Tanh"]
    likelihood: Literal["categorical", "gaussian"]

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.layers[-1].outputs

    def activate(self, x: Tensor) -> Tensor:
        """The activation; it is monotone, so it maps the ends of an interval to the ends of its image."""
        return torch.relu(x) if self.activation == "Relu" else torch.tanh(x)

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """He-scaled random weights, zero biases."""
        weights = {}
        for layer in self.layers:
            shape = layer.weight_shape
            scale = math.sqrt(2 / math.prod(shape[1:]))
            weights[f"{layer.name}_weight"] = scale * torch.randn(shape, generator=generator)
            weights[f"{layer.name}_bias"] = torch.zeros(layer.outputs)
        return weights

    def forward(self, weights: Weights, x: Tensor) -> Tensor:
        """Outputs (N, m) for flat inputs (N, d)."""
        return self.interval(weights, x, x)[0]

    def interval(self, weights: Weights, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Interval bounds (N, m) on the outputs over the boxes [lower, upper], both (N, d), for fixed weights."""
        shape = (-1, *self.input_shape[1:])
        centre, radius = ((upper + lower) / 2).reshape(shape), ((upper - lower) / 2).reshape(shape)
        for layer in self.layers:
            if layer is not self.layers[0]:
                lower, upper = self.activate(centre - radius), self.activate(centre + radius)
                centre, radius = (upper + lower) / 2, (upper - lower) / 2
            weight, bias = weights[f"{layer.name}_weight"], weights[f"{layer.name}_bias"]
            centre, radius = layer.affine(centre, weight, bias), layer.affine(radius, weight.abs(), None)
        return centre - radius, centre + radius


def onnx_model(architecture: Architecture, weights: Mapping[str, NDArray[Any]]) -> ModelProto:
    """The plain float32 network as an ONNX model, one node per layer and activation."""
    nodes, value = [], "X"
    for layer in architecture.layers:
        if layer is not architecture.layers[0]:
            nodes.append(helper.make_node(architecture.activation, [value], [f"{value}_active"], f"{value}_active"))
            value = f"{value}_active"
        if layer.kind == "dense" and nodes and architecture.layers[0].kind == "conv":
            nodes.append(helper.make_node("Flatten", [value], ["features"], "flatten", axis=1))
            value = "features"
        output = "Y" if layer is architecture.layers[-1] else layer.name
        operands = [value, f"{layer.name}_weight", f"{layer.name}_bias"]
        if layer.kind == "conv":
            nodes.append(helper.make_node("Conv", operands, [output], layer.name, strides=[2, 2], pads=[1, 1, 1, 1]))
        else:
            nodes.append(helper.make_node("Gemm", operands, [output], layer.name, transB=1))
        value = output
    graph = helper.make_graph(
        nodes,
        architecture.name,
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, architecture.input_shape)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, (1, architecture.outputs))],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()],
    )
    opset = helper.make_opsetid("", 13)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="benchmarks/digits/generate.py")


MLP = Architecture(
    "digits_vi_mlp",
    (1, 64),
    (Layer("dense1", "dense", 64, 32), Layer("dense2", "dense", 32, 10)),
    "Relu",
    "categorical",
)
CONV = Architecture(
    "digits_vi_conv",
    (1, 1, 8, 8),
    (Layer("conv1", "conv", 1, 6), Layer("conv2", "conv", 6, 8), Layer("dense", "dense", 32, 10)),
    "Relu",
    "categorical",
)
ENSEMBLE = Architecture(
    "digits_ensemble",
    (1, 64),
    (Layer("dense1", "dense", 64, 16), Layer("dense2", "dense", 16, 10)),
    "Relu",
    "categorical",
)
DIABETES = Architecture(
    "diabetes_vi_tanh",
    (1, 10),
    (Layer("dense1", "dense", 10, 16), Layer("dense2", "dense", 16, 1)),
    "Tanh",
    "gaussian",
)
