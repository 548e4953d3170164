"""Sequential networks of tensorflow_probability.layers, built from their weights without an exporter.

Images stay channels last: every convolution stands between two Transpose nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bnn_vnnlib.adapters.adapted import DRAWS, Adapted, adapt, array, drawn_outputs
from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import PosteriorError, UnsupportedError, names_arguments
from bnn_vnnlib.model import from_standard_deviations
from bnn_vnnlib.system.environment import plain_state

_ACTIVATIONS = {
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "elu": "Elu",
    "softmax": "Softmax",
}


@dataclass
class _Graph:
    """Nodes in a chain, the tensors that they read, and the deviations of those that are drawn."""

    value: str = "input"
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, Floats] = field(default_factory=dict)
    deviations: dict[str, Floats] = field(default_factory=dict)

    def add(self, operator: str, *tensors: str, **attributes: Any) -> None:
        """Append a node that reads the value so far and some tensors."""
        name = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, [self.value, *tensors], [name], **attributes))
        self.value = name


@names_arguments
@plain_state(device=False)
def from_tfp(model: Any, x: ArrayLike, *, likelihood: str | None, draws: int = DRAWS) -> Adapted:
    """The posterior of a Sequential model with layers of tensorflow_probability.

    Layers: DenseReparameterization, DenseFlipout, DenseLocalReparameterization, Convolution2DReparameterization,
    Convolution2DFlipout, and Dense, Conv2D, Flatten, Activation, ReLU and Dropout of Keras (inference). The library's
    own outputs at `x` are compared with those drawn here (`check_predictive`).

    Parameters
    ----------
    model : tf_keras.Sequential, built
    x : (N, ...) inputs, best such that were not trained on
    draws : how often the library draws for the comparison; 0 = no comparison

    Raises
    ------
    UnsupportedError : another kind of model, layer, activation or posterior, by name
    PosteriorError : no layer that draws its weights; the comparison fails
    """
    if type(model).__name__ != "Sequential":
        message = f"{type(model).__name__} is not known; a chain of layers (tf_keras.Sequential) is expected"
        raise UnsupportedError(f"{message}. Draw weights and use from_samples")
    if not model.built:
        raise PosteriorError("the model has no weights yet: train it, or load its weights, before it is taken over")
    inputs = array(x)
    graph = _Graph()
    for layer in model.layers:
        _refuse_repeated(layer, model.layers)
        rule = _RULES.get(type(layer).__name__)
        if rule is None:
            raise UnsupportedError(f"layers of class {type(layer).__name__} are not known", node=layer.name)
        rule(layer, graph)
    if not graph.deviations:
        raise PosteriorError("no layer of the model draws its weights")
    example = array(model(inputs.astype(np.float32)))
    proto = _proto(graph, (1, *inputs.shape[1:]), (1, *example.shape[1:]))

    def outputs(draws: int) -> Floats:
        # a graph draws anew whenever it runs, as the model does, and runs a hundred times as fast
        return drawn_outputs(import_module("tensorflow").function(lambda: model(inputs.astype(np.float32))), draws)

    return adapt(proto, from_standard_deviations(graph.deviations), likelihood).compared(outputs, inputs, draws)


def _dense(layer: Any, graph: _Graph) -> None:
    graph.add("Gemm", *_weights(layer, graph, ()))
    _activation(layer, graph)


def _convolution(layer: Any, graph: _Graph) -> None:
    if layer.data_format != "channels_last" or layer.padding not in ("valid", "same"):
        message = f"data format {layer.data_format}, padding {layer.padding}; known: channels_last, valid and same"
        raise UnsupportedError(message, node=layer.name)
    graph.add("Transpose", perm=[0, 3, 1, 2])
    names = _weights(layer, graph, (3, 2, 0, 1))
    padding = "SAME_UPPER" if layer.padding == "same" else "VALID"
    graph.add("Conv", *names, strides=layer.strides, dilations=layer.dilation_rate, auto_pad=padding)
    graph.add("Transpose", perm=[0, 2, 3, 1])
    _activation(layer, graph)


def _weights(layer: Any, graph: _Graph, axes: tuple[int, ...]) -> list[str]:
    """Put kernel and bias into the graph, the kernel's axes in this order; their names."""
    found = []
    for role, order in (("kernel", axes), ("bias", ())):
        mean, deviation = _law(layer, role)
        if mean is None:
            continue
        name = f"{layer.name}.{role}"
        graph.tensors[name] = np.ascontiguousarray(mean.transpose(order) if order else mean)
        if deviation is not None:
            graph.deviations[name] = np.ascontiguousarray(deviation.transpose(order) if order else deviation)
        found.append(name)
    return found


def _law(layer: Any, role: str) -> tuple[Floats | None, Floats | None]:
    """Mean and standard deviation of a layer's kernel or bias; None where there is none."""
    if not hasattr(layer, "kernel_posterior"):
        plain = getattr(layer, role) if role == "kernel" or layer.use_bias else None
        return (None if plain is None else array(plain)), None
    posterior = getattr(layer, f"{role}_posterior")
    if posterior is None:
        return None, None
    base = getattr(posterior, "distribution", posterior)
    kind = type(base).__name__
    if kind not in ("Normal", "Deterministic"):
        raise UnsupportedError(f"{role}: a posterior of class {kind}; known: Normal and Deterministic", node=layer.name)
    return array(posterior.mean()), array(posterior.stddev()) if kind == "Normal" else None


def _activation(layer: Any, graph: _Graph) -> None:
    name = getattr(layer.activation, "__name__", "linear") if layer.activation is not None else "linear"
    if name == "linear":
        return
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"activation {name} is not known; known: {', '.join(_ACTIVATIONS)}", node=layer.name)
    graph.add(_ACTIVATIONS[name])


def _relu(layer: Any, graph: _Graph) -> None:
    if layer.max_value is not None or layer.negative_slope or layer.threshold:
        raise UnsupportedError("ReLU with a maximum, a slope or a threshold is not known", node=layer.name)
    graph.add("Relu")


def _nothing(layer: Any, graph: _Graph) -> None:
    """Converter of layers that do nothing at inference: adds no node."""


def _refuse_repeated(layer: Any, layers: list[Any]) -> None:
    if sum(other is layer for other in layers) > 1:
        raise PosteriorError(
            "runs more than once: a weight has one value, but the library draws anew each time", node=layer.name
        )


def _proto(graph: _Graph, read: tuple[int, ...], written: tuple[int, ...]) -> ModelProto:
    graph.nodes[-1].output[0] = "output"
    parts = helper.make_graph(
        graph.nodes,
        "network",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, read)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, written)],
        [numpy_helper.from_array(tensor.astype(np.float32), name) for name, tensor in graph.tensors.items()],
    )
    return helper.make_model(parts, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


_RULES: dict[str, Callable[[Any, _Graph], None]] = {
    "DenseReparameterization": _dense,
    "DenseFlipout": _dense,
    "DenseLocalReparameterization": _dense,
    "Dense": _dense,
    "Conv2DReparameterization": _convolution,
    "Conv2DFlipout": _convolution,
    "Conv2D": _convolution,
    "Activation": _activation,
    "ReLU": _relu,
    "Flatten": lambda _, graph: graph.add("Flatten", axis=1),
    "Dropout": _nothing,
    "InputLayer": _nothing,
}
