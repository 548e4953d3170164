"""Norms divide by a root of a mean of squares: no quotient exceeds the root of their number, and one may attain it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.model.reading import model_from_proto
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import Network
from support.networks import point_weights


def norm(operator: str, size: int, **attributes: float) -> Network:
    """One norm of a vector, its scale and bias 1 and 0."""
    tensors = {"scale": np.ones(size), "bias": np.zeros(size)}
    inputs = ["x", *list(tensors)[: 1 if operator == "RMSNormalization" else 2]]
    node = helper.make_node(operator, inputs, ["y"], name="y", axis=-1, **attributes)
    kinds = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, size]) for name in ("x", "y")]
    holders = [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]
    graph = helper.make_graph([node], "norm", kinds[:1], kinds[1:], holders)
    opset = helper.make_opsetid("", 23 if operator == "RMSNormalization" else 17)
    return model_from_proto(helper.make_model(graph, opset_imports=[opset], ir_version=8)).network


@pytest.mark.parametrize(("operator", "size", "most"), [("RMSNormalization", 5, 5), ("LayerNormalization", 9, 8)])
def test_the_largest_quotient(operator, size, most):
    """x = t e_0: t / sqrt(t^2 / n) = sqrt(n), less the mean sqrt(n - 1); bounds know sqrt(n) wherever x is."""
    network = norm(operator, size)
    x = torch.zeros(1, size, dtype=torch.float64)
    x[0, 0] = 1e6
    np.testing.assert_allclose(evaluate(network, x)[0, 0], np.sqrt(most), rtol=1e-9)
    rows = torch.stack([torch.eye(size), -torch.eye(size)]).flatten(0, 1).to(torch.float64)[None]
    box = torch.full((1, size), 50.0, dtype=torch.float64)
    found = Engine(network, "linear").rows(point_weights(network), -box, box, rows).lower[0, 0]
    assert (found <= -np.sqrt(most)).all()
    assert (found >= -np.sqrt(size) * (1 + 1e-5)).all()
