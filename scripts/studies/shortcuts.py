"""Steps of published code that are not sound, each on a network of one weight, where the truth is a closed form."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from scipy import stats

from bnn_vnnlib import attach, rules, verify_batch
from bnn_vnnlib.model import Model, model_from_proto
from bnn_vnnlib.network.network import GaussianDiagonal
from studies.tables import Row


def one_weight(mean: float, deviation: float, operator: str = "MatMul") -> Model:
    """y = w x with w ~ N(mean, deviation^2), as a product or as a 1 x 1 convolution."""
    shape = [1, 1] if operator == "MatMul" else [1, 1, 1, 1]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "one_weight",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, shape)],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, shape)],
        [numpy_helper.from_array(np.full(shape, float(mean)), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model_from_proto(
        attach(proto, GaussianDiagonal({"w": np.full(shape, float(deviation) ** 2)}), likelihood="gaussian")
    )


def bounds(model: Model, ends: tuple[float, float], allowed: tuple[float, float]) -> tuple[float, float]:
    """Our bounds on P(the output is in `allowed` for all x between the ends), as tight as time allows."""
    found = verify_batch(
        model, [[ends[0]]], [[ends[1]]], properties=[rules.within([allowed[0]], [allowed[1]])], query="probabilistic",
        tau_safe=1.0, tau_unsafe=0.0,
    )  # fmt: skip
    return float(found.lower[0]), float(found.upper[0])


def counterexamples() -> list[Row]:
    """What the step claims, what is true, and what our bounds are."""
    far = 1e6
    cases = (
        (
            "certify boxes of +-2 sd, add up masses of +-4 sd", "w ~ N(2, 1), x = 1, safe: y >= 0",
            f"P_safe >= {1 - 2 * stats.norm.sf(4):.5f}", stats.norm.cdf(2),
            bounds(one_weight(2, 1), (1, 1), (0, far)),
        ),
        (
            "attack at lower + upper / 2, outside of the box", "w ~ N(1, 0.01^2), x in [0.9, 1.1], safe: y <= 1.2",
            f"P_safe <= {stats.norm.cdf((1.2 / 1.45 - 1) / 0.01):.2g}", stats.norm.cdf((1.2 / 1.1 - 1) / 0.01),
            bounds(one_weight(1, 0.01), (0.9, 1.1), (-far, 1.2)),
        ),
        (
            "intervals of a convolution without the kernel's own", "1 x 1 kernel w ~ N(1, 0.5^2), x = 1, safe: y >= 0",
            "P_safe >= 1", stats.norm.cdf(2),
            bounds(one_weight(1, 0.5, "Conv"), (1, 1), (0, far)),
        ),
    )  # fmt: skip
    return [
        {"step": step, "network": network, "it claims": claim, "truth": float(truth), "our lower bound": low,
         "our upper bound": high}
        for step, network, claim, truth, (low, high) in cases
    ]  # fmt: skip
