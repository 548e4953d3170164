"""Turn a posterior kept as NumPy arrays into an ONNX file that carries it.

Reads `mean_i` and `std_i` (STANDARD DEVIATIONS, i = 0, 1, 2, ... in the order W1, b1, W2, b2, ..., y = act(x @ W + b)),
or `samples_i` (S, *shape) with the counts `freq` (S,), and `arch_json`: either {"activation": "relu"} for a dense net,
or a list of Keras layers (InputLayer, Conv2D, MaxPooling2D, Flatten, Dense). The graph ends in the logits; a final
softmax of the list belongs to the likelihood.

    python scripts/npz_to_onnx.py IN.npz OUT.onnx --likelihood categorical
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from bnn_vnnlib.model import Posterior, WeightSamples, attach, from_standard_deviations
from bnn_vnnlib.model.reading import write_readable
from bnn_vnnlib.readers import read_npz

Arrays = dict[str, np.ndarray]
ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
OPSET = 17


def weight_names(arrays: Arrays) -> dict[str, int]:
    """Initializer name -> i of mean_i: W1, b1, W2, b2, ..."""
    count = sum(key.startswith("mean_") for key in arrays)
    return {f"{'Wb'[i % 2]}{i // 2 + 1}": i for i in range(count)}


def dense_layers(arrays: Arrays, activation: str) -> list[dict[str, Any]]:
    """Layer list of a dense net whose description names only its hidden activation."""
    count = sum(key.startswith("mean_") for key in arrays) // 2
    layers = [{"cls": "Dense", "activation": activation} for _ in range(count - 1)]
    return [*layers, {"cls": "Dense", "activation": "linear"}]


def layers_of(arrays: Arrays) -> list[dict[str, Any]]:
    """Layers in order, without the InputLayer."""
    description = json.loads(str(arrays["arch_json"]))
    if isinstance(description, dict):
        return dense_layers(arrays, description["activation"])
    return [layer for layer in description if layer["cls"] != "InputLayer"]


def input_shape(arrays: Arrays) -> list[int]:
    """[1, features], or [1, height, width, channels] for an image net."""
    description = json.loads(str(arrays["arch_json"]))
    if isinstance(description, list) and len(description[0]["batch_input_shape"]) == 4:
        return [1, *description[0]["batch_input_shape"][1:]]
    return [1, arrays["mean_0"].shape[0]]


def graph_nodes(layers: list[dict[str, Any]], value: str) -> Iterator[NodeProto]:
    """Nodes of the graph; images are kept in the file's NHWC order around each Conv and pool."""
    weight = 0
    for position, layer in enumerate(layers):
        kind, last = layer["cls"], position == len(layers) - 1
        result = "logits" if last else f"h{position + 1}"
        raw = result if last else f"{result}_pre"
        if kind in ("Dense", "Conv2D"):
            weight += 1
        if kind == "Dense":
            yield helper.make_node("Gemm", [value, f"W{weight}", f"b{weight}"], [raw], f"dense{weight}")
        elif kind in ("Conv2D", "MaxPooling2D"):
            yield from image_nodes(layer, value, raw, weight)
        elif kind == "Flatten":
            yield helper.make_node("Flatten", [value], [raw], f"flatten{position + 1}", axis=1)
        else:
            raise SystemExit(f"layer {kind} is not known to this script")
        activation = layer.get("activation", "linear")
        if not last:
            operator = ACTIVATIONS.get(activation, "Identity")
            yield helper.make_node(operator, [raw], [result], f"act{position + 1}")
        value = result


def image_nodes(layer: dict[str, Any], value: str, raw: str, weight: int) -> Iterator[NodeProto]:
    """One Conv2D (kernel HWIO in the file, transposed in the graph) or MaxPooling2D of NHWC images, no padding."""
    if layer["padding"] != "valid":
        raise SystemExit(f"padding {layer['padding']!r} is not known to this script")
    yield helper.make_node("Transpose", [value], [f"{raw}_nchw"], perm=[0, 3, 1, 2])
    if layer["cls"] == "Conv2D":
        kernel = f"W{weight}_oihw"
        yield helper.make_node("Transpose", [f"W{weight}"], [kernel], perm=[3, 2, 0, 1])
        inputs = [f"{raw}_nchw", kernel, f"b{weight}"]
        yield helper.make_node("Conv", inputs, [f"{raw}_out"], f"conv{weight}", strides=layer["strides"])
    else:
        shape = {"kernel_shape": layer["pool_size"], "strides": layer["strides"]}
        yield helper.make_node("MaxPool", [f"{raw}_nchw"], [f"{raw}_out"], **shape)
    yield helper.make_node("Transpose", [f"{raw}_out"], [raw], perm=[0, 2, 3, 1])


def mean_model(arrays: Arrays) -> ModelProto:
    """Deterministic ONNX model of the posterior mean, in the arrays' own float type."""
    names = weight_names(arrays)
    kind = helper.np_dtype_to_tensor_dtype(arrays["mean_0"].dtype)
    outputs = arrays[f"mean_{len(names) - 1}"].shape[0]
    graph = helper.make_graph(
        list(graph_nodes(layers_of(arrays), "x")),
        "posterior_mean",
        [helper.make_tensor_value_info("x", kind, input_shape(arrays))],
        [helper.make_tensor_value_info("logits", kind, [1, outputs])],
        [numpy_helper.from_array(np.ascontiguousarray(arrays[f"mean_{i}"]), name) for name, i in names.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def posterior_of(arrays: Arrays) -> Posterior:
    """Gaussian posterior from std_i, or weighted samples from samples_i and freq."""
    names = weight_names(arrays)
    if "samples_0" in arrays:
        samples = {name: np.asarray(arrays[f"samples_{i}"], np.float64) for name, i in names.items()}
        counts = arrays["freq"].astype(np.float64)
        return WeightSamples(samples, counts / math.fsum(counts))
    return from_standard_deviations({name: arrays[f"std_{i}"] for name, i in names.items()})


def convert(source: Path, likelihood: str | None) -> ModelProto:
    """Model with the posterior of `source` attached."""
    arrays = read_npz(source)
    return attach(mean_model(arrays), posterior_of(arrays), likelihood=likelihood)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="IN.npz")
    parser.add_argument("target", type=Path, help="OUT.onnx or OUT.onnx.gz")
    choices = ("categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic")
    parser.add_argument("--likelihood", choices=choices)
    options = parser.parse_args()
    write_readable(convert(options.source, options.likelihood), options.target)


if __name__ == "__main__":
    main()
