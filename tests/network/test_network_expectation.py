"""Weights behind the last nonlinear node: which of them an expected output knows by their means alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib.model import GaussianDiagonal, GaussianKron, KronLayer, from_factor, model_from_proto, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.expectation import without_last_layer
from bnn_vnnlib.network.families import names_of

SHAPES = {"W0": (3, 2), "b0": (3,), "W1": (2, 3), "b1": (2,), "W2": (2, 2)}
GEMM0, RELU, GEMM1 = ("Gemm", ["x", "W0", "b0"], "a"), ("Tanh", ["a"], "h"), ("Gemm", ["h", "W1", "b1"], "c")
GRAPHS = {
    "two layers": [GEMM0, RELU, GEMM1],
    "a reshape behind": [GEMM0, RELU, GEMM1, ("Transpose", ["c"], "d")],
    "two affine layers": [GEMM0, RELU, GEMM1, ("Gemm", ["c", "W2"], "d")],
    "an activation at the end": [GEMM0, RELU, GEMM1, ("Tanh", ["c"], "d")],
    "used twice": [("Gemm", ["x", "W2"], "a"), ("Tanh", ["a"], "h"), ("Gemm", ["h", "W2"], "c")],
    "a sum of branches": [GEMM0, RELU, GEMM1, ("Gemm", ["x", "W2"], "e"), ("Add", ["c", "e"], "d")],
}


def network(name: str):
    nodes = GRAPHS[name]
    rng = np.random.default_rng(0)
    used = {name for _, inputs, _ in nodes for name in inputs} & set(SHAPES)
    tensors = {name: rng.normal(size=SHAPES[name]) for name in sorted(used)}
    made = [
        helper.make_node(kind, inputs, [output], **({"transB": 1} if kind == "Gemm" else {}))
        for kind, inputs, output in nodes
    ]
    graph = helper.make_graph(
        made, "net",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 2])],
        [helper.make_tensor_value_info(nodes[-1][2], TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(values, name) for name, values in tensors.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model_from_proto(proto).network


def diagonal(net, size: float = 0.3) -> GaussianDiagonal:
    return GaussianDiagonal({name: np.full(values.shape, size**2) for name, values in net.tensors.items()})


@pytest.mark.parametrize(("name", "left"), [
    ("two layers", {"W0", "b0"}), ("a reshape behind", {"W0", "b0"}), ("two affine layers", {"W0", "b0"}),
    ("an activation at the end", {"W0", "b0", "W1", "b1"}), ("used twice", {"W2"}),
    ("a sum of branches", {"W0", "b0"}),
])  # fmt: skip
def test_what_is_left_of_independent_weights(name, left):
    net = network(name)
    assert set(names_of(without_last_layer(net, diagonal(net)))) == left


@pytest.mark.parametrize("name", GRAPHS)
def test_the_expectation_stays(name):
    net = network(name)
    x = torch.tensor([[0.4, -0.7]], dtype=torch.float64)
    means = []
    for posterior in (diagonal(net), without_last_layer(net, diagonal(net))):
        drawn = sample(net, posterior, 60_000, torch.Generator().manual_seed(1))
        y = evaluate(net, x, drawn)[:, 0]
        means.append((y.mean(0), y.std(0) / len(y) ** 0.5))
    (full, error), (left, other) = means
    assert ((full - left).abs() <= 5 * (error + other) + 1e-12).all()


def test_only_the_last_layer_is_random():
    """Of any family: nothing is left. Where a factor moves more than the layer, all of it stays."""
    net = network("two layers")
    rng = np.random.default_rng(0)
    last = from_factor(rng.normal(size=(8, 4)), {"W1": (2, 3), "b1": (2,)})
    both = from_factor(rng.normal(size=(12, 4)), {"W0": (3, 2), "W1": (2, 3)})
    for posterior in (last, GaussianDiagonal({"W1": np.ones((2, 3))})):
        assert names_of(without_last_layer(net, posterior)) == ()
    assert without_last_layer(net, both) is not None
    assert set(names_of(without_last_layer(net, both))) == {"W0", "W1"}


def test_layers_of_kronecker_factors_are_independent():
    net = network("two layers")
    rng = np.random.default_rng(0)

    def layer(weight, bias, p, q):
        return KronLayer(weight, rng.normal(size=(p, p)), rng.normal(size=(q, q)), np.ones((p, q)), bias, 1)

    posterior = GaussianKron((layer("W0", "b0", 3, 3), layer("W1", "b1", 2, 4)))
    assert set(names_of(without_last_layer(net, posterior))) == {"W0", "b0"}


def test_a_bias_that_moves_with_a_weight_behind_it():
    """W2 (W1 h + b1) with W2 and b1 of one factor: E[W2 b1] is no product of means, and W2 stays."""
    net = network("two affine layers")
    rng = np.random.default_rng(0)
    posterior = from_factor(rng.normal(size=(6, 3)), {"b1": (2,), "W2": (2, 2)})
    assert set(names_of(without_last_layer(net, posterior))) == {"b1", "W2"}
