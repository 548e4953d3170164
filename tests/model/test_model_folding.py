"""Nodes of constants only: what onnxruntime computes, an enclosure of the exact value, and never a posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from model_helpers import make_model, node, run_onnx
from onnx import ModelProto, NodeProto
from test_model_operators import ints, normal, points

from bnn_vnnlib.errors import ModelError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import build_network
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Shift

mp = mpmath.mp.clone()
mp.dps = 60


def folded(*nodes: NodeProto, element: Any = np.float64, opset: int = 17, **weights: np.ndarray) -> ModelProto:
    """y = x + V, where the nodes compute V (3, 4) from W (3, 4) and other constants."""
    used = {name for one in nodes for name in one.input}
    tensors = {"W": normal(3, 4), **{key: array for key, array in weights.items() if key in used}}
    return make_model([*nodes, node("Add", "x V")], tensors, (3, 4), opset=opset, element=element)


Exact = Callable[[Any], Any]


def each(function: Exact) -> Exact:
    return lambda w: [function(entry) for entry in w]


def rows(function: Exact) -> Exact:
    """A function of four numbers to four numbers, row by row."""
    return lambda w: [entry for i in range(0, 12, 4) for entry in function(w[i : i + 4])]


def softmax(w: list[Any]) -> list[Any]:
    total = mp.fsum(mp.exp(entry) for entry in w)
    return [mp.exp(entry) / total for entry in w]


def weight_norm(w: list[Any]) -> list[Any]:
    length = mp.sqrt(mp.fsum(entry**2 for entry in w))
    return [entry / length * mp.mpf(1.5) for entry in w]


def normalised(w: list[Any]) -> list[Any]:
    mean = mp.fsum(w) / 4
    sd = mp.sqrt(mp.fsum((entry - mean) ** 2 for entry in w) / 4 + mp.mpf(float(np.float32(1e-5))))
    return [(entry - mean) / sd * mp.mpf(0.5) for entry in w]


def times_m(w: list[Any]) -> list[Any]:
    return [mp.fsum(w[i] * mp.mpf(S["M"][i, j]) for i in range(4)) for j in range(4)]


def clipped(z: Any) -> Any:
    return min(max(z, mp.mpf(-0.5)), mp.mpf(0.75))


S = {"g": np.array([[1.5]]), "ax": ints(1), "two": np.array(2.0), "third": np.array(3.0), "half": np.full(4, 0.5),
     "low": np.array(-0.5), "high": np.array(0.75), "ten": np.array(10.0), "big": np.array(300.0),
     "e": np.linspace(-1.3, 1.7, 12).reshape(3, 4), "M": normal(4, 4, seed=3)}  # fmt: skip
FOLDS: dict[str, tuple[list[NodeProto], Exact]] = {
    "exp": ([node("Exp", "W", "V")], each(mp.exp)),
    "softplus": ([node("Softplus", "W", "V")], each(lambda z: mp.log1p(mp.exp(z)))),
    "sigmoid": ([node("Sigmoid", "W", "V")], each(lambda z: 1 / (1 + mp.exp(-z)))),
    "tanh": ([node("Tanh", "W", "V")], each(mp.tanh)),
    "erf": ([node("Erf", "W", "V")], each(mp.erf)),
    "sin": ([node("Sin", "W", "V")], each(mp.sin)),
    "relu": ([node("Relu", "W", "V")], each(lambda z: max(z, mp.mpf(0)))),
    "abs": ([node("Abs", "W", "V")], each(abs)),
    "clip": ([node("Clip", "W low high", "V")], each(clipped)),
    "elu": ([node("Elu", "W", "V")], each(lambda z: z if z > 0 else mp.expm1(z))),
    "square": ([node("Pow", "W two", "V")], each(lambda z: z**2)),
    "cube_of_integer": ([node("Pow", "W k", "V")], each(lambda z: z**3)),
    "powers": ([node("Pow", "ten e", "V")], lambda w: [mp.mpf(10) ** mp.mpf(x) for x in S["e"].reshape(-1)]),
    "log_of_exp": ([node("Exp", "W", "p"), node("Log", "p", "V")], each(lambda z: z)),
    "exp_of_quotient": ([node("Div", "W third", "q"), node("Mul", "q big", "r"), node("Exp", "r", "V")],
                        each(lambda z: mp.exp(z / 3 * 300))),
    "softmax": ([node("Softmax", "W", "V", axis=1)], rows(softmax)),
    "log_softmax": ([node("LogSoftmax", "W", "V", axis=1)], rows(lambda w: [mp.log(p) for p in softmax(w)])),
    "weight_norm": ([node("ReduceL2", "W", "n", axes=[1], keepdims=1), node("Div", "W n", "u"),
                     node("Mul", "u g", "V")], rows(weight_norm)),
    "mean": ([node("ReduceMean", "W", "m", axes=[1]), node("Sub", "W m", "V")],
             rows(lambda w: [entry - mp.fsum(w) / 4 for entry in w])),
    "sum": ([node("ReduceSum", "W ax", "m"), node("Add", "W m", "V")],
            rows(lambda w: [entry + mp.fsum(w) for entry in w])),
    "max": ([node("ReduceMax", "W", "m", axes=[1]), node("Add", "W m", "V")],
            rows(lambda w: [entry + max(w) for entry in w])),
    "layer_norm": ([node("LayerNormalization", "W half", "V")], rows(normalised)),
    "matmul": ([node("MatMul", "W M", "V")],
               rows(times_m)),
    "low_rank_update": ([node("MatMul", "W M", "U"), node("Add", "W U", "V")],
                        rows(lambda w: [a + b for a, b in zip(w, times_m(w), strict=True)])),
    "einsum": ([node("Einsum", "W M", "V", equation="ij,jk->ik")],
               rows(times_m)),
    "min_of_two": ([node("Min", "W half", "V")], each(lambda z: min(z, mp.mpf(0.5)))),
    "where": ([node("Greater", "W low", "m"), node("Where", "m W low", "V")], each(lambda z: max(z, mp.mpf(-0.5)))),
}  # fmt: skip
EXACT = {"relu", "abs", "clip", "min_of_two", "where"}


def proto_of(name: str, element: Any = np.float64) -> ModelProto:
    return folded(*FOLDS[name][0], element=element, k=np.array(3), **S)


@pytest.mark.parametrize("name", sorted(FOLDS.keys() - {"exp_of_quotient"}))
def test_a_fold_agrees_with_onnxruntime(name: str) -> None:
    proto = proto_of(name, np.float32)
    x = points(proto)
    y = evaluate(build_network(proto), torch.tensor(x)).numpy()
    np.testing.assert_allclose(y, run_onnx(proto, x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", FOLDS)
def test_the_exact_value_is_enclosed(name: str) -> None:
    """60 digits against the float64 value and its slack, which is there exactly where it must be, and is small."""
    network = build_network(proto_of(name))
    (bias,) = [one.bias for one in network.nodes if isinstance(one, Shift)]
    assert np.ndim(bias.factor) == 0
    values = network.tensors[bias.source].reshape(-1)[bias.index.reshape(-1)] * bias.factor
    slack = np.zeros(values.size) if bias.slack is None else bias.slack.reshape(-1)
    assert (bias.slack is None) == (name in EXACT)
    truth = FOLDS[name][1]([mp.mpf(float(entry)) for entry in normal(3, 4).reshape(-1)])
    for value, radius, exact in zip(values, slack, truth, strict=True):
        assert abs(mp.mpf(float(value)) - exact) <= mp.mpf(float(radius)), (value, radius)
        assert radius <= 3e-13 * max(1.0, abs(float(exact)))


@pytest.mark.parametrize("name", FOLDS)
def test_a_posterior_is_never_folded(name: str) -> None:
    """exp, a norm, ... of a Gaussian weight is no Gaussian: refused, naming the weight."""
    if name == "powers":
        pytest.skip("does not use W")
    with pytest.raises((UnsupportedError, PosteriorError), match="W") as caught:
        build_network(proto_of(name), ["W"])
    assert caught.value.node


NOT_FINITE = {
    "log": node("Log", "W", "V"),
    "sqrt": node("Sqrt", "W", "V"),
    "overflow": node("Exp", "big", "V"),
    "root_of_negative": node("Pow", "W e", "V"),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_what_is_not_finite_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="not finite") as caught:
        build_network(folded(NOT_FINITE[name], big=np.full((3, 4), 1e3), e=S["e"]))
    assert caught.value.node


def test_what_overflows_in_the_type_of_the_file_is_refused() -> None:
    """onnxruntime would compute with infinity."""
    build_network(proto_of("exp_of_quotient", np.float64))
    with pytest.raises(ModelError, match="overflows float32"):
        build_network(proto_of("exp_of_quotient", np.float32))


ROUNDED = {
    "exponent": [node("Log", "two", "l"), node("Exp", "l", "p"), node("Pow", "x p")],
    "border": [node("Exp", "two", "p"), node("Pad", "x pads p")],
    "scales": [node("Exp", "logs", "p"), node("Resize", "x - p", mode="nearest")],
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_number_that_was_rounded_is_not_taken_for_exact(name: str) -> None:
    """exp(log 2) in float64 is not 2: x^2 is another function, and the border would lose its error."""
    tensors = {"two": np.array(2.0), "pads": ints(0, 1, 0, 1), "logs": np.log([1.0, 2.0])}
    used = {one for step in ROUNDED[name] for one in step.input}
    proto = make_model(ROUNDED[name], {key: array for key, array in tensors.items() if key in used})
    with pytest.raises(UnsupportedError, match="exactly"):
        build_network(proto)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_integers_are_not_divided_by_zero(operator: str) -> None:
    """numpy says 0; onnxruntime stops."""
    nodes = [node(operator, "a b", "q"), node("Cast", "q", "V", to=11)]
    with pytest.raises(ModelError, match="by 0"):
        build_network(folded(*nodes, a=ints(5, 3, 1, 0), b=ints(1, 2, 0, 1)))


def test_a_quotient_that_overflows_is_refused() -> None:
    nodes = [node("Div", "a b", "q"), node("Cast", "q", "V", to=11)]
    with pytest.raises(ModelError, match="overflows int64"):
        build_network(folded(*nodes, a=np.full(4, np.iinfo(np.int64).min), b=ints(-1)))


def test_a_posterior_of_scales_is_not_lost() -> None:
    proto = make_model([node("Resize", "x - p", mode="nearest")], {"p": np.array([1.0, 2.0])})
    with pytest.raises(UnsupportedError, match="without a posterior"):
        build_network(proto, ["p"])


def test_integers_are_not_taken_for_floats() -> None:
    with pytest.raises(UnsupportedError, match="constant integers"):
        build_network(folded(node("Softmax", "n", "V"), n=np.ones((3, 4), np.int64)))


def test_a_large_constant_is_refused() -> None:
    """A small file may ask for a constant of any size."""
    with pytest.raises((ModelError, UnsupportedError), match=r"shape|large|entries"):
        build_network(folded(node("MatMul", "a b", "V"), a=np.ones((2**14, 1)), b=np.ones((1, 2**14))))


def test_a_comparison_that_rounding_decides_is_refused() -> None:
    nodes = [node("Div", "W third", "q"), node("Greater", "q e", "m"), node("Where", "m W e", "V")]
    with pytest.raises(UnsupportedError, match="depends on rounding"):
        build_network(folded(*nodes, **S))
