"""Stochastic exports as they are: laws in closed form, against the intervals of P_safe; samples of them; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model.test_model_masks import exported as with_dropout
from onnx import ModelProto, TensorProto, helper, numpy_helper
from scipy.special import ndtr

from bnn_vnnlib import read_model, verify, verify_batch
from bnn_vnnlib.errors import InputError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import WeightSamples, model_from_proto
from bnn_vnnlib.model.recovery import NotRecoverable, recover
from bnn_vnnlib.network.network import Sampler
from bnn_vnnlib.posteriors.parts import write_samples
from contract.zoo import networks
from support.builders import model, properties
from support.command import call

ASKED: dict[str, Any] = {"query": "probabilistic", "guarantee": "statistical"}


def op(operator: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], name=f"{operator}_{output}", **attributes)


def graph(*nodes: onnx.NodeProto, kind: int = TensorProto.DOUBLE, **tensors: Any) -> ModelProto:
    """y = W x, W (1, 1) drawn by the nodes, with a constant `one` (1, 1)."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    tensors = {"one": [[1.0]], **tensors}
    stored = [numpy_helper.from_array(np.asarray(value, dtype), name) for name, value in tensors.items()]
    ends = [helper.make_tensor_value_info(name, kind, [1, 1]) for name in ("x", "y")]
    body = helper.make_graph([*nodes, op("MatMul", "x W", "y")], "g", ends[:1], ends[1:], stored)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NORMAL = op("RandomNormalLike", "one", "e", mean=0.5, scale=2.0)
FLOAT = TensorProto.FLOAT
LAWS: dict[str, tuple[ModelProto, float, float]] = {
    "uniform": (graph(op("RandomUniformLike", "one", "W", low=-1.0, high=3.0)), 1.0, 0.5),
    "uniform of a shape": (graph(op("RandomUniform", "", "W", low=-1.0, high=3.0, shape=[1, 1]), kind=FLOAT), 1.0, 0.5),
    "Bernoulli": (graph(op("Bernoulli", "p", "W"), p=[[0.3]]), 0.5, 0.7),
    "Bernoulli of a drawn chance": (graph(op("RandomUniformLike", "one", "p"), op("Bernoulli", "p", "W")), 0.5, 0.5),
    "log-normal": (graph(NORMAL, op("Exp", "e", "W")), 4.0, float(ndtr((np.log(4.0) - 0.5) / 2))),
    "square": (graph(NORMAL, op("Mul", "e e", "W"), kind=FLOAT), 1.0, float(ndtr(0.25) - ndtr(-0.75))),
    "one noise twice": (graph(NORMAL, op("Mul", "e e", "q"), op("Sub", "q e", "W")), 0.0,
                        float(ndtr(0.25) - ndtr(-0.25))),
    "a spike and a slab": (graph(NORMAL, op("Bernoulli", "p", "b"), op("Mul", "e b", "W"), p=[[0.4]]), 1.0,
                           float(0.6 + 0.4 * ndtr(0.25))),
}  # fmt: skip
"""Graph, b, and P(W <= b)."""


@pytest.mark.parametrize("name", LAWS)
def test_laws_in_closed_form(name: str) -> None:
    proto, bound, truth = LAWS[name]
    with pytest.raises(NotRecoverable):
        recover(proto)
    net = model_from_proto(proto)
    assert isinstance(net.posterior, Sampler)
    assert any("kept as it is" in note for note in net.notes)
    above = [(np.array([[-1.0]]), np.array([-bound]), np.array([True]))]
    found = verify_batch(net, [[1.0]], [[1.0]], properties=above, draws=600, confidence=0.9999, seed=1, goal="bounds",
                         **ASKED)  # fmt: skip
    assert found.lower[0] <= truth <= found.upper[0]
    assert found.upper[0] - found.lower[0] <= 0.26
    assert found.draws[0, 3] == 0  # type: ignore[index]
    for query in ("probabilistic", "decision"):  # before anybody asks for a likelihood
        with pytest.raises(UnsupportedError, match="not a Gaussian posterior: no certain bound serves it"):
            verify_batch(net, [[1.0]], [[1.0]], properties=above, query=query)


def test_two_weights_keep_their_common_noise() -> None:
    """W and V = 2 W from one noise: y = V x - 2 W x is 0 for every network, and nothing else."""
    nodes = [NORMAL, op("Exp", "e", "W"), op("Mul", "W two", "V"), op("MatMul", "x V", "v"),
             op("MatMul", "x W", "w"), op("Mul", "w two", "u"), op("Sub", "v u", "y")]  # fmt: skip
    proto = graph(two=[[2.0]])
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    net = model_from_proto(proto)
    assert net.posterior is not None
    assert set(net.posterior.names) == {"W", "V"}  # type: ignore[union-attr]
    small = [(np.array([[s]]), np.array([-1e-6]), np.array([False])) for s in (1.0, -1.0)]
    found = verify_batch(net, [[0.5]], [[1.0]], properties=small, draws=400, seed=1, **ASKED)
    assert str(found.verdicts[0]) == "unsat"
    drawn = networks(net, 50, seed=3)
    np.testing.assert_allclose(drawn["V"], 2 * drawn["W"])


def test_samples_of_what_cannot_be_recovered(tmp_path: Path) -> None:
    onnx.save(LAWS["uniform"][0], tmp_path / "u.onnx")
    out = call("recover", tmp_path / "u.onnx", tmp_path / "s.onnx", "--samples", 200, "--seed", 4)
    assert "wrote 200 weighted samples" in out.stderr
    net = read_model(tmp_path / "s.onnx")
    assert isinstance(net.posterior, WeightSamples)
    values = net.posterior.stored["W"].ravel()
    assert len(np.unique(values)) == 200
    assert abs(values.mean() - 1.0) < 0.3
    assert -1 <= values.min() < values.max() <= 3
    prop = properties(net, [(0.5, 1.0)], [(0, [([-1.0], None, -2.0, False)])])
    assert verify(net, prop, query="probabilistic").p_safe is not None
    again = call("recover", tmp_path / "u.onnx", tmp_path / "t.onnx", "--samples", 200, "--seed", 4)
    assert again.exit_code == 0
    assert (tmp_path / "s.onnx").read_bytes() == (tmp_path / "t.onnx").read_bytes()
    call("sample", tmp_path / "u.onnx", tmp_path / "plain", "--n", 3)
    assert len(list((tmp_path / "plain").glob("*.onnx"))) == 3
    assert read_model(tmp_path / "plain" / "draw_0000.onnx").posterior is None


def test_samples_of_dropout_and_of_functions(tmp_path: Path) -> None:
    onnx.save(with_dropout(0.25), tmp_path / "d.onnx")
    call("recover", tmp_path / "d.onnx", tmp_path / "s.onnx", "--samples", 400)
    net = read_model(tmp_path / "s.onnx")
    (mask,) = net.posterior.stored.values()  # type: ignore[union-attr]
    assert set(np.unique(mask)) == {0.0, 1 / 0.75}
    assert abs((mask == 0).mean() - 0.25) < 0.05
    call("sample", tmp_path / "d.onnx", tmp_path / "plain", "--n", 2)
    assert read_model(tmp_path / "plain" / "draw_0001.onnx").posterior is None
    own = model([([[1.0]], [0.0])], element=np.float64)
    with pytest.raises(PosteriorError, match="nothing to draw from"):
        write_samples(own, tmp_path / "f.onnx", 5)
    own = own.drawn_by(lambda n, rng: {"b0": rng.exponential(size=(n, 1))})
    write_samples(own, tmp_path / "f.onnx", 50, seed=1)
    read = read_model(tmp_path / "f.onnx")
    assert (read.posterior.stored["b0"] >= 0).all()  # type: ignore[union-attr]


REFUSED: dict[str, tuple[list[onnx.NodeProto], str]] = {
    "noise of the input's shape": ([op("RandomUniformLike", "x", "W")], "adds noise to activations"),
    "whole numbers": ([op("Multinomial", "one", "i"), op("Cast", "i", "W", to=TensorProto.DOUBLE)], "not Gaussian"),
    "an output by itself": ([op("RandomUniformLike", "one", "W"), op("Add", "W W", "y")], "not Gaussian"),
    "a runtime that refuses": ([op("RandomUniformLike", "one", "u"), op("Nothing", "u", "W")], "onnxruntime"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    nodes, message = REFUSED[name]
    proto = graph()
    del proto.graph.node[:]
    last = [] if "y" in nodes[-1].output else [op("MatMul", "x W", "y")]
    proto.graph.node.extend([*nodes, *last])
    with pytest.raises(InputError, match=message):
        model_from_proto(proto)
