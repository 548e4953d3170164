"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bnn_vnnlib.system.heap import keep_freed_memory

keep_freed_memory()  # as the commands do

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared measuring data beside the checkout; it is not part of the project."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("../shared is not here")
    return folder


@pytest.fixture(scope="session")
def identity_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file of y = x for two numbers, without a posterior."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"], name="identity")],
        "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(np.eye(2, dtype=np.float32), "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path_factory.mktemp("models") / "identity.onnx"
    onnx.save(model, path)
    return path
