"""Convolutions whose kernels depend on each other: bounds on P_safe against drawn networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib import verify_batch
from bnn_vnnlib.model import GaussianLowRank, Model, from_factor, model_from_proto, sample
from bnn_vnnlib.network.evaluate import evaluate

DRAWN, ERRORS = 20_000, 5


def convolutions(seed: int, family: str) -> Model:
    """Two padded convolutions, the second with strides, a maximum over its map, and a fixed row of the channels."""
    rng = np.random.default_rng(seed)
    tensors = {
        "K": rng.normal(size=(3, 1, 3, 3)) * 0.5, "b": rng.normal(size=3) * 0.2,
        "L": rng.normal(size=(3, 3, 3, 3)) * 0.3, "V": rng.normal(size=(1, 3)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "K", "b"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "L"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["t"]),
        helper.make_node("MaxPool", ["t"], ["p"], kernel_shape=[3, 3]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "V"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 1, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1, 1])],
        [numpy_helper.from_array(values, name) for name, values in tensors.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    shapes = {name: values.shape for name, values in tensors.items() if name != "V"}
    if family == "full":
        size = sum(int(np.prod(shape)) for shape in shapes.values())
        return replace(model_from_proto(proto), posterior=from_factor(0.006 * rng.normal(size=(size, 3)), shapes))
    factors = {name: 0.006 * rng.normal(size=(2, *shape)) for name, shape in shapes.items()}
    variances = {name: np.full(shape, 0.004**2) for name, shape in shapes.items()}
    return replace(model_from_proto(proto), posterior=GaussianLowRank(factors, variances))


@pytest.mark.parametrize("family", ["full", "lowrank"])
@pytest.mark.parametrize("side", [1, -1])
def test_drawn_networks_fail_no_more_often(family: str, side: int) -> None:
    """Thresholds below all outputs, and at quantiles, below which a known share of the networks falls."""
    told = 0
    for seed in (1, 2):
        net = convolutions(seed, family)
        x = np.random.default_rng(seed + 9).normal(size=(1, 25))
        drawn = sample(net.network, net.posterior, DRAWN, torch.Generator().manual_seed(0))
        parts = ({name: values[part] for name, values in drawn.items()} for part in torch.arange(DRAWN).split(4000))
        y = side * torch.cat([evaluate(net.network, torch.tensor(x), part)[:, 0, 0] for part in parts]).numpy()
        for bound in (float(y.min() - 2 * y.std()), *map(float, np.quantile(y, (0.001, 0.02)))):
            rows = [[(side * np.ones((1, 1)), np.array([bound]), np.array([False]))]]
            for radius in (0.0, 0.005):
                found = verify_batch(net, x - radius, x + radius, properties=rows, query="probabilistic", timeout=0.5)
                truth = float((y > bound).mean())
                error = ERRORS * np.sqrt(truth * (1 - truth) / DRAWN) + 1e-4
                assert found.lower[0] <= truth + error
                assert radius > 0 or found.upper[0] >= truth - error
                told += int(found.lower[0] > 0.5)
    assert told >= 4  # the first passes at the thresholds below all: or nothing has been tested
