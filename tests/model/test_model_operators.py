"""Contract of every operator: our network computes what onnxruntime computes, for the weights in the file and for any
other weights put into the source tensors (so the posterior's entries land where the weight's entries do)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from model_helpers import make_model, node, run_onnx, with_weights
from onnx import ModelProto, NodeProto, helper, numpy_helper

from bnn_vnnlib.errors import ModelError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import GaussianDiagonal, build_network, sample
from bnn_vnnlib.model.operators import operator_table
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Conv, Linear, Scale, Shift


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@dataclass
class Case:
    """One small graph. `certain`: float tensors that cannot carry a posterior here."""

    name: str
    nodes: list[NodeProto]
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    shape: Any = (1, 4)
    opset: int = 17
    certain: tuple[str, ...] = ()
    element: Any = np.float64
    softmax: bool = False


def batch_norm(name: str, shape: tuple[int, ...], opset: int = 17, **attributes: Any) -> Case:
    channels = shape[1]
    weights = {"g": normal(channels), "b": normal(channels, seed=1), "m": normal(channels, seed=2)}
    weights["v"] = normal(channels, seed=3) ** 2
    nodes = [node("BatchNormalization", "x g b m v", **attributes)]
    return Case(name, nodes, weights, shape, opset, certain=("m", "v"))


def conv(name: str, shape: tuple[int, ...], kernel: tuple[int, ...], bias: bool = True, **attributes: Any) -> Case:
    weights = {"W": normal(*kernel)} | ({"b": normal(kernel[0], seed=1)} if bias else {})
    return Case(name, [node("Conv", "x W b" if bias else "x W", **attributes)], weights, shape, element=np.float32)


def pool(name: str, shape: tuple[int, ...], opset: int = 17, **attributes: Any) -> Case:
    return Case(name, [node("AveragePool", "x", **attributes)], {}, shape, opset, element=np.float32)


W34, B3 = normal(3, 4), normal(3, seed=9)
CASES = [
    Case("gemm", [node("Gemm", "x W b")], {"W": normal(4, 3), "b": B3}),
    Case("gemm_no_c", [node("Gemm", "x W", transB=1)], {"W": W34}, opset=11),
    Case("gemm_alpha_beta", [node("Gemm", "x W b", transB=1, alpha=0.3, beta=-1.7)], {"W": W34, "b": B3}),
    Case("gemm_trans_a", [node("Gemm", "x W b", transA=1)], {"W": normal(2, 3), "b": normal(4, 1)}, (2, 4)),
    Case("gemm_scalar_c", [node("Gemm", "x W b", beta=2.0)], {"W": normal(4, 3), "b": np.array(0.7)}),
    Case("gemm_const_left", [node("Gemm", "W x b", alpha=0.5)], {"W": normal(3, 2), "b": normal(3, 1)}, (2, 4)),
    Case("gemm_const_left_trans", [node("Gemm", "W x", transA=1, transB=1)], {"W": normal(4, 3)}, (2, 4)),
    Case("gemm_branch_c", [node("Gemm", "x W x", beta=0.5)], {"W": normal(4, 4)}),
    Case("gemm_opset7", [node("Gemm", "x W b")], {"W": normal(4, 3), "b": B3}, opset=7),
    Case("matmul", [node("MatMul", "x W")], {"W": normal(4, 3)}),
    Case("matmul_3d", [node("MatMul", "x W")], {"W": normal(4, 3)}, (1, 2, 4)),
    Case("matmul_rank1", [node("MatMul", "x W")], {"W": normal(4, 3)}, (4,)),
    Case("matmul_vector", [node("MatMul", "x W")], {"W": normal(4)}, (2, 4)),
    Case("matmul_vector_rank1", [node("MatMul", "x W")], {"W": normal(4)}, (4,)),
    Case("matmul_left", [node("MatMul", "W x")], {"W": normal(3, 4)}, (4,)),
    Case("matmul_left_3d", [node("MatMul", "W x")], {"W": normal(3, 4)}, (2, 4, 5)),
    Case("matmul_left_vector", [node("MatMul", "W x")], {"W": normal(4)}, (2, 4, 5)),
    Case("matmul_lead_1", [node("MatMul", "x W")], {"W": normal(1, 1, 4, 3)}, (2, 4)),
    Case("matmul_left_lead_1", [node("MatMul", "W x")], {"W": normal(1, 3, 4)}, (4,)),
    Case("add", [node("Add", "x c")], {"c": normal(4)}),
    Case("add_left", [node("Add", "c x")], {"c": normal(1, 4)}),
    Case("add_grows", [node("Add", "x c")], {"c": normal(2, 3, 1)}),
    Case("add_scalar", [node("Add", "x c")], {"c": np.array(0.25)}),
    Case("sub", [node("Sub", "x c")], {"c": normal(4)}),
    Case("sub_left", [node("Sub", "c x")], {"c": normal(2, 4)}),
    Case("mul", [node("Mul", "x c")], {"c": normal(4)}),
    Case("mul_grows", [node("Mul", "c x")], {"c": normal(3, 1)}),
    Case("div", [node("Div", "x c")], {"c": np.array([3.0, -7.0, 0.1, 4.0])}, certain=("c",)),
    Case("residual", [node("Gemm", "x W", "h"), node("Add", "h x")], {"W": normal(4, 4)}),
    Case("branch_sub_broadcast", [node("Gemm", "x W", "h"), node("Sub", "x h")], {"W": normal(4, 1)}),
    Case("self_add", [node("Add", "x x")]),
    Case("neg", [node("Neg", "x")]),
    Case("relu", [node("Relu", "x")]),
    Case("leaky", [node("LeakyRelu", "x", alpha=0.3)]),
    Case("leaky_default", [node("LeakyRelu", "x")], opset=9, element=np.float32),
    Case("sigmoid", [node("Sigmoid", "x")]),
    Case("tanh", [node("Tanh", "x")]),
    Case("softmax", [node("Gemm", "x W", "h"), node("Softmax", "h")], {"W": normal(4, 3)}, softmax=True),
    Case("softmax_axis1", [node("Softmax", "x", axis=1)], softmax=True),
    Case("softmax_opset11_axis0", [node("Softmax", "x", axis=0)], opset=11, softmax=True),
    Case("softmax_opset9", [node("Softmax", "x", "s"), node("Identity", "s")], opset=9, softmax=True),
    Case("softmax_opset11_image", [node("Softmax", "x")], {}, (1, 5, 1, 1), 11, softmax=True),
    conv("conv", (1, 3, 6, 5), (4, 3, 3, 2)),
    conv("conv_no_bias", (2, 3, 6, 5), (4, 3, 1, 1), bias=False),
    conv("conv_pads_strides", (1, 2, 7, 6), (3, 2, 3, 3), strides=[2, 3], pads=[1, 0, 2, 1]),
    conv("conv_dilated", (1, 2, 9, 8), (3, 2, 3, 2), dilations=[2, 3]),
    conv("conv_groups", (1, 4, 5, 5), (6, 2, 3, 3), group=2),
    conv("conv_depthwise", (1, 3, 5, 5), (3, 1, 2, 2), group=3, kernel_shape=[2, 2]),
    conv("conv_same_upper", (1, 2, 6, 5), (3, 2, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2]),
    conv("conv_same_lower", (1, 2, 6, 5), (3, 2, 2, 4), auto_pad="SAME_LOWER"),
    conv("conv_valid", (1, 2, 6, 5), (3, 2, 2, 2), auto_pad="VALID"),
    batch_norm("bn", (1, 4)),
    batch_norm("bn_image", (1, 3, 2, 2), epsilon=0.01),
    batch_norm("bn_opset9", (1, 3, 2, 2), 9),
    batch_norm("bn_opset7", (1, 3, 2, 2), 7),
    pool("pool", (1, 3, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
    pool("pool_pads", (1, 2, 5, 5), kernel_shape=[3, 2], pads=[1, 1, 1, 0]),
    pool("pool_count_pad", (1, 2, 5, 5), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    pool("pool_same", (1, 2, 5, 5), kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    pool("pool_ceil_equal", (1, 2, 6, 6), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    pool("pool_dilated", (1, 2, 7, 7), 19, kernel_shape=[2, 3], dilations=[2, 1]),
    Case("global_pool", [node("GlobalAveragePool", "x")], {}, (1, 3, 4, 5), element=np.float32),
    Case("flatten", [node("Flatten", "x", "f"), node("Gemm", "f W")], {"W": normal(12, 2)}, (1, 3, 4)),
    Case("flatten_opset8", [node("Flatten", "x", axis=0)], {}, (2, 3), 8),
    Case("flatten_negative", [node("Flatten", "x", axis=-1)], {}, (2, 3, 4), 13),
    Case("reshape_zero_minus", [node("Reshape", "x s")], {"s": ints(0, -1)}, (2, 3, 4)),
    Case("reshape_infer", [node("Reshape", "x s")], {"s": ints(4, -1, 2)}, (2, 3, 4)),
    Case("transpose", [node("Transpose", "x", perm=[0, 2, 1])], {}, (2, 3, 4)),
    Case("transpose_default", [node("Transpose", "x")], {}, (2, 3, 4)),
    Case("squeeze_input", [node("Squeeze", "x a")], {"a": ints(0, -1)}, (1, 3, 1)),
    Case("squeeze_all", [node("Squeeze", "x")], {}, (1, 3, 1)),
    Case("squeeze_attribute", [node("Squeeze", "x", axes=[0])], {}, (1, 3), 11),
    Case("unsqueeze_input", [node("Unsqueeze", "x a")], {"a": ints(0, -1)}, (3, 2)),
    Case("unsqueeze_attribute", [node("Unsqueeze", "x", axes=[1, 3])], {}, (3, 2), 11),
    Case("concat", [node("Relu", "x", "r"), node("Concat", "x r x", axis=1)]),
    Case("concat_constant", [node("Concat", "x c", axis=-1)], {"c": normal(1, 2)}, certain=("c",)),
    Case("identity", [node("Identity", "x")]),
    Case("dropout", [node("Dropout", "x", "y mask", ratio=0.5)], opset=10),
    Case("dropout_opset13", [node("Dropout", "x r t")], {"r": np.array(0.5), "t": np.array(False)}, certain=("r",)),
    Case("shape_gather", [
        node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Unsqueeze", "n a", "n1"),
        node("Concat", "n1 m", "t", axis=0), node("Reshape", "x t"),
    ], {"zero": np.array(0, np.int64), "a": ints(0), "m": ints(-1)}, (2, 3, 4)),
    # constants that are moved or scaled before they are used
    Case("fold_transpose", [node("Transpose", "W", "V"), node("MatMul", "x V")], {"W": normal(3, 4)}),
    Case("fold_reshape", [node("Reshape", "W s", "V"), node("MatMul", "x V")], {"W": normal(12), "s": ints(4, 3)}),
    Case("fold_slice", [node("Slice", "W i j k", "V"), node("MatMul", "x V")],
         {"W": normal(9, 3), "i": ints(1), "j": ints(5), "k": ints(0)}),
    Case("fold_gather", [node("Gather", "W i", "V"), node("MatMul", "x V")],
         {"W": normal(5, 3), "i": ints(4, 0, 0, 2)}),
    Case("fold_expand", [node("Expand", "b s", "c"), node("Add", "x c")], {"b": normal(1), "s": ints(1, 4)}),
    Case("fold_tile", [node("Tile", "b s", "c"), node("Add", "x c")], {"b": normal(2), "s": ints(2)}),
    Case("fold_neg", [node("Neg", "b", "c"), node("Add", "x c")], {"b": normal(4)}),
    Case("fold_mul_scalar", [node("Mul", "W two", "V"), node("MatMul", "x V")],
         {"W": normal(4, 3), "two": np.array(-0.5)}, certain=("two",)),
    Case("fold_twice", [
        node("Mul", "two W", "V"), node("Transpose", "V", "U"), node("Gemm", "x U b", alpha=2.0),
    ], {"W": normal(3, 4), "b": B3, "two": np.array(2.0)}, certain=("two",)),
    Case("fold_arithmetic", [
        node("Add", "v e", "s"), node("Sqrt", "s", "r"), node("Div", "g r", "f"), node("Mul", "x f", "p"),
        node("Mul", "m f", "q"), node("Sub", "b q", "c"), node("Add", "p c"),
    ], {"v": normal(4) ** 2, "e": np.array(1e-3), "g": normal(4), "m": normal(4, seed=1), "b": normal(4, seed=2)},
         certain=("v", "e", "g", "m", "b")),
    Case("shared", [
        node("MatMul", "x W", "h"), node("Relu", "h", "a"), node("Gemm", "a W b", transB=1),
    ], {"W": normal(4, 4), "b": normal(4)}),
]  # fmt: skip
IDS = [case.name for case in CASES]


def model_of(case: Case) -> ModelProto:
    return make_model(case.nodes, case.weights, case.shape, opset=case.opset, element=case.element)


def points(proto: ModelProto, count: int = 3) -> np.ndarray:
    size = sum(int(np.prod([d.dim_value for d in i.type.tensor_type.shape.dim])) for i in proto.graph.input)
    return np.random.default_rng(5).normal(size=(count, size)).astype(np.float32).astype(np.float64)


def tolerance(case: Case) -> float:
    return 1e-12 if case.element == np.float64 else 2e-5


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_operator_agrees_with_onnxruntime(case: Case) -> None:
    proto = model_of(case)
    x = points(proto)
    network = build_network(proto)
    y = evaluate(network, torch.tensor(x), softmax=True).numpy()
    np.testing.assert_allclose(y, run_onnx(proto, x), rtol=tolerance(case), atol=tolerance(case))
    assert (network.softmax_axis is not None) == case.softmax
    assert network.signature.output_size == y.shape[1]


def uncertain_names(case: Case) -> list[str]:
    return [name for name, array in case.weights.items() if array.dtype.kind == "f" and name not in case.certain]


@pytest.mark.parametrize("case", [c for c in CASES if uncertain_names(c)], ids=lambda case: case.name)
def test_posterior_follows_the_weight(case: Case) -> None:
    """Weights drawn into the sources of our network = the same weights written into the file."""
    proto = model_of(case)
    names = uncertain_names(case)
    network = build_network(proto, names)
    assert set(names) == set(network.tensors) & set(case.weights) - set(case.certain)
    posterior = GaussianDiagonal({name: np.full(case.weights[name].shape, 0.3) for name in names})
    drawn = sample(network, posterior, 3, torch.Generator().manual_seed(1))
    drawn = {name: tensor.to(torch.float32).to(torch.float64) for name, tensor in drawn.items()}
    x = points(proto)
    y = evaluate(network, torch.tensor(x), drawn, softmax=True).numpy()
    truth = [run_onnx(with_weights(proto, {n: t[k].numpy() for n, t in drawn.items()}), x) for k in range(3)]
    np.testing.assert_allclose(y, truth, rtol=tolerance(case), atol=tolerance(case))
    assert not np.allclose(truth[0], truth[1])  # the draw does reach the output


def test_several_inputs_and_outputs_in_order() -> None:
    nodes = [node("Gemm", "b W", "z"), node("Add", "a z", "y"), node("Neg", "a", "n")]
    proto = make_model(nodes, {"W": normal(3, 2)}, {"a": (1, 2), "b": (1, 3)}, outputs="n y")
    x = points(proto)
    network = build_network(proto)
    np.testing.assert_allclose(evaluate(network, torch.tensor(x)).numpy(), run_onnx(proto, x), rtol=1e-13, atol=1e-13)
    assert [v.name for v in network.signature.inputs] == ["a", "b"]
    assert [v.name for v in network.signature.outputs] == ["n", "y"]


CONSTANT_FORMS = [
    ({"value": numpy_helper.from_array(np.array([0.5, 2.0], np.float32))}, [0.5, 2.0]),
    ({"value_float": 0.5}, [0.5, 0.5]),
    ({"value_floats": [0.5, 3.0]}, [0.5, 3.0]),
    ({"sparse_value": helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([4.0], np.float32), "v"),
        numpy_helper.from_array(np.array([1], np.int64), "i"), [2])}, [0.0, 4.0]),
]  # fmt: skip


@pytest.mark.parametrize(("attributes", "expected"), CONSTANT_FORMS)
def test_constant_node(attributes: dict[str, Any], expected: list[float]) -> None:
    constant = helper.make_node("Constant", [], ["c"], **attributes)
    proto = make_model([constant, node("Add", "x c")], {}, (1, 2), opset=13, element=np.float32)
    y = evaluate(build_network(proto), torch.zeros(1, 2, dtype=torch.float64))
    assert y[0].tolist() == expected


def test_constant_node_of_integers() -> None:
    constant = helper.make_node("Constant", [], ["s"], value_ints=[2, 2])
    network = build_network(make_model([constant, node("Reshape", "x s")], {}, opset=13))
    assert network.signature.outputs[0].shape == (2, 2)


def test_exactness_is_said() -> None:
    """float32 alpha times weight needs no slack; 1/9 and 1/sqrt(v + eps) have one that covers their error."""
    gemm = build_network(make_model([node("Gemm", "x W", alpha=0.1)], {"W": normal(4, 3)}, element=np.float32))
    (linear,) = [n for n in gemm.nodes if isinstance(n, Linear)]
    assert linear.weight.slack is None
    pool_network = build_network(model_of(pool("", (1, 1, 6, 6), kernel_shape=[3, 3])))
    (share,) = [n.weight for n in pool_network.nodes if isinstance(n, Scale)]
    value = pool_network.tensors[share.source].reshape(-1)[share.index]
    assert share.slack is not None
    assert 0 < abs(9 * int(value * 2**60) - 2**60) <= 9 * (share.slack * 2**60)  # the product is exact in integers
    (sums,) = [n for n in pool_network.nodes if isinstance(n, Conv)]
    assert sums.weight.slack is None


def test_power_of_two_divisor_is_exact() -> None:
    network = build_network(make_model([node("Div", "x c")], {"c": np.array(256.0)}))
    (scale,) = [n for n in network.nodes if isinstance(n, Scale)]
    assert scale.weight.slack is None
    assert network.tensors[scale.weight.source].item() == 1 / 256


def test_batch_norm_keeps_gamma_and_beta_apart() -> None:
    proto = model_of(batch_norm("bn", (1, 3, 2, 2)))
    network = build_network(proto, ["g", "b"])
    sources = [n.weight.source if isinstance(n, Scale) else n.bias.source for n in network.nodes
               if isinstance(n, Scale | Shift)]  # fmt: skip
    assert sources[2:] == ["g", "b"]


UNSUPPORTED = {
    "unknown_operator": ([node("Floor", "x")], {}, (1, 4), "Floor of opset 17.*supported: Abs"),
    "unknown_domain": ([helper.make_node("Relu", ["x"], ["y"], domain="acme")], {}, (1, 4), "acme::Relu"),
    "matmul_stack": ([node("MatMul", "x W")], {"W": normal(2, 4, 3)}, (1, 4), "stack of matrices"),
    "many_softmaxes": ([node("Softmax", "x", axis=1)], {}, (2, 4), "one Softmax over all outputs"),
    "moved_softmax": ([node("Softmax", "x", "s"), node("Transpose", "s")], {}, (1, 4), "one Softmax over all outputs"),
    "large_softmax": ([node("Softmax", "x", "s"), node("Neg", "s")], {}, (1, 700), "too large"),
    "conv_4d": ([node("Conv", "x W")], {"W": normal(2, 1, 1, 1, 1, 1)}, (1, 1, 2, 2, 2, 2), "at most 3"),
    "pool_padding": ([node("MaxPool", "x", kernel_shape=[2, 2], dilations=[3, 3], pads=[1, 1, 1, 1])], {}, (1, 1, 2, 2),
                     "padding"),
    "power_of_power": ([node("Pow", "x x")], {}, (1, 4), "exponent"),
    "odd_power": ([node("Pow", "x p")], {"p": np.array(1.7)}, (1, 4), "exponent 1.7"),
    "linear_resize": ([node("Resize", "x - s", mode="linear")], {"s": np.array([1.0, 2.0])}, (1, 4), "nearest"),
    "computed_index": ([node("Gather", "c x")], {"c": normal(4)}, (1, 4), "constant|do not fit|index"),
    "computed_condition": ([node("Greater", "x c", "m"), node("Where", "m c c")], {"c": normal(4)}, (1, 4),
                           "condition"),
    "frozen_noise": ([node("Mul", "l.weight_sampler.eps_w s", "n"), node("Add", "x n")],
                     {"l.weight_sampler.eps_w": normal(4), "s": normal(4)}, (1, 4), "BLiTZ"),
    "conv_weight": ([node("Conv", "x x")], {}, (1, 1, 2, 2), "kernel must be constant"),
    "rounding_cast": ([node("Cast", "x", to=10)], {}, (1, 4), "rounds"),
    "mask": ([node("Dropout", "x", "d m"), node("Identity", "d", "y"), node("Not", "m", "z")], {}, (1, 4), "y z"),
    "random": ([node("RandomNormalLike", "x", "r"), node("Add", "x r")], {}, (1, 4), "stochastic export"),
    "random_uniform": ([node("RandomUniformLike", "x", "r"), node("Add", "x r")], {}, (1, 4), "stochastic export"),
    "mc_dropout": ([node("Dropout", "x r t")], {"r": np.array(1.5), "t": np.array(True)}, (1, 4), "training mode"),
    "drop_connect": ([node("Dropout", "W r t", "V"), node("MatMul", "x V")],
                     {"W": normal(4, 3), "r": np.array(0.5), "t": np.array(True)}, (1, 4), "MC dropout"),
    "training_bn": ([node("BatchNormalization", "x g g g g", training_mode=1)], {"g": normal(4)}, (1, 4), "eval mode"),
    "fold_unknown": ([node("Floor", "W", "V"), node("MatMul", "x V")], {"W": normal(4, 3)}, (1, 4), "Floor"),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in UNSUPPORTED if n != "mask"])
def test_refused_by_name(name: str) -> None:
    nodes, weights, shape, message = UNSUPPORTED[name]
    with pytest.raises(UnsupportedError, match=message) as caught:
        build_network(make_model(nodes, weights, shape))
    assert caught.value.node


def test_further_outputs_are_refused() -> None:
    nodes, weights, shape, _ = UNSUPPORTED["mask"]
    with pytest.raises(UnsupportedError, match=r"further outputs.*'m'"):
        build_network(make_model(nodes, weights, shape, outputs="y z"))


INCONSISTENT = {
    "undefined": ([node("Add", "x nothing")], {}, "nothing computes the value 'nothing'"),
    "shapes": ([node("Gemm", "x W")], {"W": normal(5, 3)}, "do not fit"),
    "broadcast": ([node("Add", "x c")], {"c": normal(5)}, "do not fit"),
    "nan": ([node("Add", "x c")], {"c": np.array([0, np.nan, 0, 0])}, "NaN or infinite"),
    "inf": ([node("Add", "x c")], {"c": np.array([0, np.inf, 0, 0])}, "NaN or infinite"),
    "division_by_zero": ([node("Div", "x c")], {"c": np.array([0.0, 1, 1, 1])}, "not finite"),
    "negative_variance": ([node("BatchNormalization", "x g g g v")],
                          {"g": normal(4), "v": np.full(4, -1.0)}, "not positive"),
    "twice": ([node("Relu", "x"), node("Neg", "x")], {}, "defined already"),
    "unknown_attribute": ([node("Relu", "x", slope=2)], {}, "slope"),
    "bad_attribute": ([node("Gemm", "x W", alpha="big")], {"W": normal(4, 3)}, "alpha"),
    "shadowed_weight": ([node("Neg", "x", "c"), node("Add", "x c")], {"c": normal(4)}, "defined already"),
    "reshape": ([node("Reshape", "x s")], {"s": ints(3, 3)}, "reshape"),
    "perm": ([node("Transpose", "x", perm=[0, 0])], {}, "perm"),
    "huge": ([node("ConstantOfShape", "s", "c"), node("Add", "x c")], {"s": ints(2**40)}, "entries"),
    "missing_operand": ([node("Add", "x -")], {}, "missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", INCONSISTENT)
def test_inconsistent_file(name: str) -> None:
    nodes, weights, message = INCONSISTENT[name]
    with pytest.raises(ModelError, match=message) as caught:
        build_network(make_model(nodes, weights))
    assert caught.value.node


NO_PLACE_FOR_A_POSTERIOR = {
    "running_mean": ([node("BatchNormalization", "x g g m g")], {"g": normal(4) ** 2, "m": normal(4)}, "m"),
    "running_variance": ([node("BatchNormalization", "x g g g m")], {"g": normal(4), "m": normal(4) ** 2}, "m"),
    "reshape": ([node("Reshape", "x s")], {"s": ints(2, 2)}, "s"),
    "concat": ([node("Concat", "x c", axis=1)], {"c": normal(1, 2)}, "c"),
    "divisor": ([node("Div", "x c")], {"c": normal(4)}, "c"),
    "added_before_use": ([node("Add", "c d", "e"), node("Add", "x e")], {"c": normal(4), "d": normal(4)}, "c"),
    "two_uncertain_factors": ([node("Mul", "c c", "e"), node("Add", "x e")], {"c": normal(4)}, "c"),
    "inexact_factors": ([node("Mul", "c d", "e"), node("Mul", "e d", "f"), node("Add", "x f")],
                        {"c": normal(4), "d": np.array(0.1)}, "c"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_PLACE_FOR_A_POSTERIOR)
def test_no_place_for_a_posterior(name: str) -> None:
    nodes, weights, tensor = NO_PLACE_FOR_A_POSTERIOR[name]
    proto = make_model(nodes, weights)
    build_network(proto)
    with pytest.raises((PosteriorError, UnsupportedError), match=rf"\b{tensor}\b"):
        build_network(proto, [tensor])


def test_widening_cast_is_the_identity() -> None:
    proto = make_model([node("Cast", "x", "d", to=11), node("MatMul", "d W")], {"W": normal(4, 3)}, element=np.float32)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(normal(4, 3), "W"))
    proto.graph.output[0].type.tensor_type.elem_type = 11
    x = points(proto)
    network = build_network(proto)
    assert network.signature.outputs[0].element_type == "float64"
    np.testing.assert_allclose(evaluate(network, torch.tensor(x)).numpy(), run_onnx(proto, x), rtol=1e-13)


@pytest.mark.parametrize("version", [6, 99])
def test_opset_is_named(version: int) -> None:
    proto = make_model([node("Relu", "x")], {})
    proto.opset_import[0].version = version
    with pytest.raises(UnsupportedError, match=f"opset {version} is not supported"):
        build_network(proto)


def test_table_refuses_duplicates() -> None:
    def converter(graph: Any, node: Any, inputs: Any) -> Any:
        raise NotImplementedError

    with pytest.raises(ValueError, match="Relu version 6 is in the table twice"):
        operator_table(("Relu", (1, 6), converter), ("Relu", (6,), converter))


def test_gradient_reaches_input_and_weights() -> None:
    network = build_network(make_model([node("Gemm", "x W", "h"), node("Tanh", "h")], {"W": normal(4, 3)}), ["W"])
    x = torch.zeros(2, 5, 4, dtype=torch.float64, requires_grad=True)
    w = torch.tensor(np.stack([normal(4, 3), normal(4, 3, seed=1)]), requires_grad=True)
    y = evaluate(network, x, {"W": w})
    y.sum().backward()
    assert y.shape == (2, 5, 3)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad[1, 0], w[1].sum(1).detach())
    assert w.grad is not None


def test_points_of_any_leading_shape() -> None:
    network = build_network(make_model([node("Gemm", "x W")], {"W": normal(4, 3)}))
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = evaluate(network, x)
    assert y.shape == (2, 3, 5, 3)
    np.testing.assert_allclose(y[1, 2], evaluate(network, x[1, 2]))
    assert evaluate(network, x[0, 0, 0]).shape == (3,)
