"""Dropout in training mode, read as a posterior of masks."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib import Verdict, read_model, verify, verify_batch
from bnn_vnnlib.errors import InputError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import GaussianDiagonal, Replayer, attach, describe, model_from_proto
from bnn_vnnlib.network.draws import Draws
from bnn_vnnlib.network.network import DropoutMasks
from support.builders import properties

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "reports"
ASKED: dict[str, Any] = {"query": "probabilistic", "guarantee": "statistical"}

RNG = np.random.default_rng(0)
W1, W2 = RNG.normal(size=(6, 2)), RNG.normal(size=(2, 6))


def exported(ratio: float = 0.25, *, training: bool = True, batch: Any = 1, outputs: tuple[str, ...] = ("d",)) -> Any:
    """Two dense layers with a Dropout between them."""
    nodes = [
        helper.make_node("Gemm", ["x", "W1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Dropout", ["a", "ratio", "training"], list(outputs), name="drop"),
        helper.make_node("Gemm", ["d", "W2"], ["y"], transB=1),
    ]
    tensors = {"W1": W1, "W2": W2, "ratio": np.array(ratio), "training": np.array(training)}
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [batch, 2])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [batch, 2])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def used_elsewhere() -> Any:
    """The mask is an output of the network, too."""
    proto = exported(outputs=("d", "m"))
    proto.graph.output.append(helper.make_tensor_value_info("m", TensorProto.BOOL, [1, 6]))
    return proto


def exact(ratio: float, x: np.ndarray) -> float:
    """P(y_0 > y_1) at x over all 2^6 masks."""
    hidden, total = np.maximum(W1 @ x, 0), 0.0
    for mask in itertools.product((0.0, 1.0), repeat=6):
        y = W2 @ (hidden * np.array(mask) / (1 - ratio))
        off = mask.count(0.0)
        total += float(y[0] > y[1]) * ratio**off * (1 - ratio) ** (6 - off)
    return total


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.9])
def test_p_safe_is_that_of_all_masks(ratio: float) -> None:
    net = model_from_proto(exported(ratio))
    for x in (np.array([0.7, -0.4]), np.array([-0.3, 0.9])):
        found = verify_batch(net, x[None], x[None], labels=[0], draws=1500, goal="bounds", seed=2, **ASKED)
        assert found.lower[0] <= exact(ratio, x) <= found.upper[0]
        if ratio < 0.9:  # else all units are often off, and both outputs 0: a tie of real numbers, which stays open
            assert found.upper[0] - found.lower[0] < 0.2


def test_draws_are_zero_as_often_as_the_ratio_says_and_kept_values_are_in_their_boxes() -> None:
    for ratio in (0.5, 0.3, 0.1):
        net = model_from_proto(exported(ratio))
        assert isinstance(net.posterior, DropoutMasks)
        (name,) = net.posterior.ratios
        drawn = Draws(net.network, net.posterior, 1).take(np.arange(4000))
        values, radius = drawn.centers[name], drawn.radius[name]
        assert abs(float((values == 0).double().mean()) - ratio) < 5 * (ratio * (1 - ratio) / 24000) ** 0.5
        kept = 1 / (1 - Fraction(ratio))
        (value,) = values[values != 0].unique().tolist()
        assert abs(Fraction(value) - kept) <= Fraction(float(radius.max()))
        assert bool(radius.any()) == (Fraction(value) != kept)
        corner = torch.corrcoef(values.flatten(1).T) - torch.eye(6)
        assert float(corner.abs().max()) < 0.1


def test_a_mask_that_nothing_reads_is_no_matter() -> None:
    """The old exporter of torch names it."""
    net = model_from_proto(exported(outputs=("d", "m")))
    assert isinstance(net.posterior, DropoutMasks)


def test_the_mean_network_is_that_of_the_inference_mode() -> None:
    net, plain = model_from_proto(exported()), model_from_proto(exported(training=False))
    assert plain.posterior is None
    assert any("one mask a network" in note for note in net.notes)
    x = RNG.normal(size=(5, 2))
    np.testing.assert_array_equal(Replayer(net)(x), Replayer(plain)(x))


def test_decision_and_witness() -> None:
    net = model_from_proto(exported(0.5), likelihood="categorical")
    found = verify_batch(
        net, [[0.7, -0.4]], [[0.7, -0.4]], query="decision", guarantee="statistical", draws=2000, seed=1
    )
    hidden = np.maximum(W1 @ [0.7, -0.4], 0)
    logits = np.array([W2 @ (hidden * np.array(mask) * 2) for mask in itertools.product((0.0, 1.0), repeat=6)])
    truth = float((1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))).mean())
    assert found.lower[0, 0] <= truth <= found.upper[0, 0]
    prop = properties(net, [([0.6, -0.5], [0.8, -0.3])], [(0, [([-1.0, 1.0], None, 0.0, False)])])
    result = verify(net, prop, seed=1, tau_safe=0.999, tau_unsafe=0.999, **ASKED)
    assert result.verdict is Verdict.SAT
    assert result.witness is not None


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (exported(batch="N"), "there is no one network"),
        (exported(1.0), "no constant of"),
        (used_elsewhere(), "its mask is used elsewhere"),
    ],
)
def test_refused_by_name(proto: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_from_proto(proto)


def test_inspect_says_what_is_random() -> None:
    found = describe(model_from_proto(exported(0.2)))
    assert (found.family, found.uncertain_weights) == ("dropout", 6)
    (mask,) = (tensor for tensor in found.tensors if tensor.uncertain)
    assert mask.relative_sd == pytest.approx((0.5, 0.5, 0.5))


def test_certain_bounds_and_files_refuse_it() -> None:
    net = model_from_proto(exported())
    with pytest.raises(UnsupportedError, match=r"dropout .*ask guarantee statistical"):
        verify_batch(net, [[0.0, 0.0]], [[0.1, 0.1]], labels=[0])
    assert net.posterior is not None
    plain = exported(training=False)
    with pytest.raises(PosteriorError, match="dropout"):
        attach(plain, net.posterior)
    with pytest.raises(UnsupportedError, match="beside a posterior over weights"):
        model_from_proto(attach(exported(), GaussianDiagonal({"W1": 0.1 * np.ones_like(W1)})))


@pytest.mark.skipif(not CASES.is_dir(), reason="the folder of shared cases is not here")
def test_an_export_of_torch_dynamo() -> None:
    net = read_model(CASES / "d07_mcdropout_dynamo.onnx")
    assert isinstance(net.posterior, DropoutMasks)
    assert list(net.posterior.ratios.values()) == [float(np.float32(0.2))]
    found = verify_batch(net, [[0.4, 0.4]], [[0.6, 0.6]], labels=[0], draws=500, seed=1, **ASKED)
    assert 0 <= found.lower[0] < found.upper[0] <= 1
    assert onnx.load(CASES / "d07_mcdropout_dynamo.onnx").graph.node[2].op_type == "Dropout"
