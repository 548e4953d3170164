"""The whole operator set against onnxruntime, with the machinery of `test_model_operators`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from model_helpers import make_model, node, run_onnx
from test_model_operators import (
    Case,
    conv,
    ints,
    model_of,
    normal,
    points,
    pool,
    test_operator_agrees_with_onnxruntime,
    test_posterior_follows_the_weight,
    uncertain_names,
)

from bnn_vnnlib.errors import ModelError, UnsupportedError
from bnn_vnnlib.model import build_network
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Activation, Product, Select

f32 = np.float32


def plain(operator: str, shape: Any = (2, 4), opset: int = 17, element: Any = f32, **attributes: Any) -> Case:
    return Case(f"{operator}_{opset}_{len(attributes)}", [node(operator, "x", **attributes)], {}, shape, opset,
                element=element)  # fmt: skip


def positive(name: str, *nodes: Any, **more: Any) -> Case:
    """Behind x^2 + 1/2."""
    front = [node("Mul", "x x", "q"), node("Add", "q half", "p")]
    weights = {"half": np.array(0.5), **more.pop("weights", {})}
    return Case(name, [*front, *nodes], weights, certain=tuple(weights), element=f32, **more)


def deconv(name: str, shape: tuple[int, ...], kernel: tuple[int, ...], groups: int = 1, **attributes: Any) -> Case:
    weights = {"W": normal(*kernel), "b": normal(kernel[1] * groups, seed=1)}
    return Case(name, [node("ConvTranspose", "x W b", group=groups, **attributes)], weights, shape, element=f32)


def wide(name: str, operator: str, shape: tuple[int, ...], opset: int = 17, **attributes: Any) -> Case:
    return Case(name, [node(operator, "x", **attributes)], {}, shape, opset, element=f32)


IMAGE = (1, 2, 5, 6)
ACTIVATIONS = [
    plain("Abs"), plain("Atan"), plain("Cos"), plain("Erf"), plain("Exp"), plain("Sign"), plain("Sin"),
    plain("Softplus"), plain("Softsign"), plain("HardSwish"), plain("Elu"), plain("Elu", alpha=0.5),
    plain("Selu"), plain("Selu", alpha=1.5, gamma=2.0), plain("Celu"), plain("Celu", alpha=0.7),
    plain("HardSigmoid"), plain("HardSigmoid", alpha=0.3, beta=0.4), plain("LeakyRelu", alpha=1.5),
    plain("LeakyRelu", alpha=-0.5), plain("Gelu", opset=20), plain("Gelu", opset=20, approximate="tanh"),
    plain("Mish", opset=18), plain("Clip", opset=10, min=-0.5, max=0.25), plain("Clip", opset=6 + 1, min=-0.5),
    Case("swish_pattern", [node("Sigmoid", "x", "s"), node("Mul", "x s")]),
    Case("swish_pattern_left", [node("Sigmoid", "x", "s"), node("Mul", "s x")]),
    Case("gelu_pattern", [
        node("Div", "x r", "d"), node("Erf", "d", "e"), node("Add", "e one", "a"), node("Mul", "x a", "m"),
        node("Mul", "m half"),
    ], {"r": np.array(np.sqrt(2)), "one": np.array(1.0), "half": np.array(0.5)}, certain=("r", "one", "half"),
         element=f32),
    Case("clip", [node("Clip", "x a b")], {"a": np.array(-0.5), "b": np.array(0.75)}, certain=("a", "b")),
    Case("clip_above", [node("Clip", "x - b")], {"b": np.array(0.75)}, certain=("b",)),
    Case("clip_crossed", [node("Clip", "x a b")], {"a": np.array(0.5), "b": np.array(-0.75)}, certain=("a", "b")),
    Case("prelu", [node("PRelu", "x s")], {"s": normal(4)}),
    Case("prelu_image", [node("PRelu", "x s")], {"s": normal(2, 1, 1)}, IMAGE),
    Case("prelu_opset7", [node("PRelu", "x s")], {"s": np.array([0.1])}, opset=7, element=f32),
    positive("log", node("Log", "p")),
    positive("sqrt", node("Sqrt", "p")),
    positive("reciprocal", node("Reciprocal", "p")),
    positive("pow_half", node("Pow", "p e"), weights={"e": np.array(0.5)}),
    positive("pow_minus_one", node("Pow", "p e"), weights={"e": np.array(-1.0)}),
    positive("pow_minus_2", node("Pow", "p e"), weights={"e": np.array(-2.0)}),
    Case("pow_2", [node("Pow", "x e")], {"e": np.array(2.0)}, certain=("e",)),
    Case("pow_3_integer", [node("Pow", "x e")], {"e": np.array(3, np.int64)}, element=f32),
    Case("pow_1_grows", [node("Pow", "x e")], {"e": np.ones((1, 1, 1))}, certain=("e",)),
    Case("pow_0", [node("Pow", "x e")], {"e": np.array(0.0)}, certain=("e",)),
]  # fmt: skip
STRUCTURE = [
    Case("slice", [node("Slice", "x i j k s")],
         {"i": ints(1, -1), "j": ints(9, -5), "k": ints(2, 3), "s": ints(1, -2)}, (1, 2, 5, 6)),
    Case("slice_opset9", [node("Slice", "x", starts=[1], ends=[3], axes=[1])], {}, (2, 4), 9),
    Case("gather", [node("Gather", "x i", axis=1)], {"i": np.array([[0, 3], [-1, 0]])}, (2, 4)),
    Case("gather_scalar", [node("Gather", "x i", axis=1)], {"i": np.array(-1)}, (2, 4)),
    Case("gather_elements", [node("GatherElements", "x i", axis=1)], {"i": np.array([[0, 3, 1], [1, 1, 1]])}, (2, 4)),
    Case("gather_nd", [node("GatherND", "x i")], {"i": np.array([[0, 3], [1, 2]])}, (2, 4)),
    Case("split_equal", [node("Split", "x", "a b", axis=1), node("Sub", "b a")], {}, (2, 4)),
    Case("split_attribute", [node("Split", "x", "a b", axis=-1, split=[3, 1]), node("Mul", "b a")], {}, (2, 4), 11),
    Case("split_input", [node("Split", "x s", "a b c"), node("Sub", "c a")], {"s": ints(1, 2, 1)}, (4, 2)),
    Case("split_uneven", [node("Split", "x", "a b", axis=1, num_outputs=2), node("MatMul", "a W", "m"),
                          node("Add", "m b")], {"W": normal(3, 2)}, (2, 5), 18),
    Case("split_constant", [node("Split", "W", "a b", axis=0), node("MatMul", "x a", "m"), node("MatMul", "m b")],
         {"W": normal(8, 4)}),
    Case("pad_attribute", [node("Pad", "x", pads=[0, 1, 0, 2])], {}, (2, 4), 9),
    Case("pad_value", [node("Pad", "x", pads=[0, 1, 0, 2], value=1.5)], {}, (2, 4), 9, element=f32),
    Case("pad_input", [node("Pad", "x p v")], {"p": ints(1, -1, 0, 2), "v": np.array(0.75)}, (2, 4), certain=("v",)),
    Case("pad_reflect", [node("Pad", "x p", mode="reflect")], {"p": ints(0, 2, 1, 1)}, (2, 4)),
    Case("pad_edge", [node("Pad", "x p", mode="edge")], {"p": ints(0, 2, 1, 1)}, (2, 4)),
    Case("pad_wrap", [node("Pad", "x p", mode="wrap")], {"p": ints(0, 2, 1, 1)}, (2, 4), 19),
    Case("pad_axes", [node("Pad", "x p - a")], {"p": ints(2, 1), "a": ints(-1)}, (2, 4), 18),
    Case("expand", [node("Expand", "x s")], {"s": ints(3, 2, 1)}, (1, 4)),
    Case("tile", [node("Tile", "x r")], {"r": ints(2, 3)}, (2, 2)),
    wide("depth_to_space", "DepthToSpace", (1, 8, 2, 3), blocksize=2),
    wide("depth_to_space_crd", "DepthToSpace", (1, 8, 2, 3), blocksize=2, mode="CRD"),
    wide("space_to_depth", "SpaceToDepth", (1, 2, 4, 6), blocksize=2),
    Case("upsample_attribute", [node("Upsample", "x", scales=[1.0, 1.0, 2.0, 3.0])], {}, IMAGE, 7, element=f32),
    Case("upsample_input", [node("Upsample", "x s")], {"s": np.array([1.0, 1.0, 2.0, 4.0])}, IMAGE, 9, ("s",), f32),
    Case("where", [node("Relu", "x", "r"), node("Where", "m x r")],
         {"m": np.array([[True, False, True, False]])}, (2, 4)),
    Case("where_constant", [node("Where", "m x c")],
         {"m": np.array([[True, False, True, False]]), "c": np.array(0.3)}, (2, 4), certain=("c",)),
    Case("max_branches", [node("Neg", "x", "n"), node("Mul", "x c", "m"), node("Max", "x n m c")],
         {"c": normal(4)}, (2, 4), certain=("c",)),
    Case("min_branches", [node("Neg", "x", "n"), node("Mul", "x c", "m"), node("Min", "x n m c")],
         {"c": normal(4)}, (2, 4), certain=("c",)),
    Case("max_number", [node("Max", "x c")], {"c": np.array(0.3)}, certain=("c",)),
    Case("min_number", [node("Min", "c x")], {"c": np.array(0.3)}, certain=("c",)),
    Case("max_one", [node("Max", "x")]),
    Case("sum_mean", [node("Neg", "x", "n"), node("Sum", "x x n", "s"), node("Mean", "s x n")], element=f32),
    Case("mul_branches", [node("Gemm", "x W", "h"), node("Mul", "h x")], {"W": normal(4, 4)}),
    Case("mul_broadcast", [node("Gemm", "x W", "h"), node("Mul", "h x")], {"W": normal(4, 1)}, (2, 4)),
    Case("mul_itself", [node("Mul", "x x")]),
    positive("div_branches", node("Gemm", "x W", "h"), node("Div", "h p"), weights={"W": normal(4, 4)}),
    positive("div_constant", node("Div", "c p"), weights={"c": normal(4)}),
    Case("matmul_branches", [node("Transpose", "x", "t"), node("MatMul", "x t")], {}, (3, 4)),
    Case("matmul_stacks", [node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "m"),
                           node("MatMul", "m x")], {}, (2, 3, 4), element=f32),
    Case("gemm_branches", [node("Gemm", "x x x", transB=1, alpha=0.5, beta=2.0)], {}, (3, 3)),
    Case("gemm_branches_trans_a", [node("Gemm", "x x", transA=1, alpha=0.5)], {}, (3, 4)),
]  # fmt: skip
REDUCTIONS = [
    *(
        Case(f"{operator}_{opset}_{i}", [node(operator, "x", **attributes)], {}, (2, 3, 4), opset, element=f32)
        for operator in ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSumSquare")
        for i, (opset, attributes) in enumerate([(11, {"axes": [-1]}), (13, {"axes": [2, 0], "keepdims": 0}), (7, {})])
    ),
    Case("sum_attribute", [node("ReduceSum", "x", axes=[1], keepdims=0)], {}, (2, 3, 4), 11),
    Case("sum_input", [node("ReduceSum", "x a")], {"a": ints(0, -1)}, (2, 3, 4)),
    Case("sum_noop", [node("ReduceSum", "x", noop_with_empty_axes=1)], {}, (2, 3, 4)),
    Case("mean_input", [node("ReduceMean", "x a", keepdims=0)], {"a": ints(1)}, (2, 3, 4), 18),
    Case("max_input", [node("ReduceMax", "x a", keepdims=0)], {"a": ints(1)}, (2, 3, 4), 18),
    Case("softmax_inside", [node("Softmax", "x", "s"), node("Gemm", "s W")], {"W": normal(4, 3)}),
    Case("softmax_rows", [node("Softmax", "x", "s", axis=1), node("Add", "s x")], {}, (2, 3, 4), element=f32),
    Case("softmax_of_one", [node("Softmax", "x", "s", axis=0), node("Add", "s x")], {}, (1, 4)),
    Case("softmax_opset11", [node("Softmax", "x", "s", axis=2), node("Add", "s x")], {}, (2, 3, 4), 11, element=f32),
    Case("log_softmax", [node("LogSoftmax", "x", axis=1)], {}, (2, 3, 4), element=f32),
    Case("log_softmax_opset11", [node("LogSoftmax", "x", axis=-1)], {}, (2, 3, 4), 11, element=f32),
    Case("layer_norm", [node("LayerNormalization", "x g b")], {"g": normal(4), "b": normal(4, seed=1)}, (2, 3, 4),
         element=f32),
    Case("layer_norm_axes", [node("LayerNormalization", "x g", axis=1, epsilon=0.1)], {"g": normal(3, 4)}, (2, 3, 4),
         element=f32),
    Case("instance_norm", [node("InstanceNormalization", "x g b")], {"g": normal(2), "b": normal(2, seed=1)}, IMAGE,
         element=f32),
    Case("rms_norm", [node("RMSNormalization", "x g", axis=1)], {"g": normal(3, 4)}, (2, 3, 4), 23, element=f32),
]  # fmt: skip
WINDOWS = [
    conv("conv_1d", (2, 3, 7), (4, 3, 2), pads=[1, 2], strides=[2], dilations=[2]),
    conv("conv_1d_groups", (1, 4, 7), (6, 2, 3), group=2),
    conv("conv_3d", (2, 3, 5, 4, 5), (2, 3, 2, 3, 2), pads=[1, 0, 1, 0, 1, 1], strides=[2, 1, 2]),
    conv("conv_3d_groups", (1, 4, 4, 3, 3), (2, 2, 2, 2, 2), group=2, dilations=[2, 1, 1]),
    conv("conv_3d_same", (1, 2, 4, 3, 3), (2, 2, 2, 2, 2), auto_pad="SAME_LOWER"),
    deconv("deconv", (1, 3, 4, 5), (3, 2, 3, 2)),
    deconv("deconv_strides", (2, 3, 4, 5), (3, 2, 3, 2), strides=[2, 3], pads=[1, 0, 1, 1]),
    deconv("deconv_output_padding", (1, 2, 4, 3), (2, 2, 3, 3), strides=[2, 2], output_padding=[1, 1]),
    deconv("deconv_dilations", (1, 2, 4, 3), (2, 2, 2, 3), dilations=[2, 1], pads=[0, 1, 1, 0]),
    deconv("deconv_groups", (1, 4, 4, 3), (4, 3, 2, 2), 2, strides=[2, 1]),
    deconv("deconv_same_upper", (1, 2, 4, 3), (2, 2, 3, 2), strides=[2, 2], auto_pad="SAME_UPPER"),
    deconv("deconv_same_lower", (1, 2, 4, 3), (2, 2, 3, 2), strides=[2, 2], auto_pad="SAME_LOWER"),
    deconv("deconv_output_shape", (1, 2, 4, 3), (2, 2, 3, 3), strides=[2, 2], output_shape=[8, 6]),
    deconv("deconv_1d", (1, 3, 5), (3, 2, 3), strides=[2]),
    deconv("deconv_3d", (1, 2, 2, 3, 2), (2, 2, 2, 2, 2), strides=[2, 1, 2]),
    wide("max_pool", "MaxPool", IMAGE, kernel_shape=[2, 3], strides=[2, 1]),
    wide("max_pool_pads", "MaxPool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
    wide("max_pool_ceil", "MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    wide("max_pool_same", "MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    wide("max_pool_dilated", "MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 3]),
    wide("max_pool_1d", "MaxPool", (2, 3, 7), kernel_shape=[3], strides=[2]),
    wide("max_pool_3d", "MaxPool", (1, 2, 4, 3, 4), kernel_shape=[2, 2, 3]),
    wide("max_pool_opset8", "MaxPool", IMAGE, 8, kernel_shape=[2, 2]),
    wide("average_pool_1d", "AveragePool", (2, 3, 7), kernel_shape=[3], strides=[2], pads=[1, 1]),
    wide("average_pool_3d", "AveragePool", (1, 2, 4, 3, 4), kernel_shape=[2, 2, 3]),
    pool("average_pool_ceil", (1, 2, 5, 5), 19, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    pool("average_pool_ceil_pads", (1, 2, 5, 6), 19, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1,
         pads=[1, 1, 1, 1], count_include_pad=1),
    wide("global_average_pool_1d", "GlobalAveragePool", (1, 3, 5)),
    wide("global_max_pool", "GlobalMaxPool", IMAGE),
]  # fmt: skip
CASES = [*ACTIVATIONS, *STRUCTURE, *REDUCTIONS, *WINDOWS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_onnxruntime(case: Case) -> None:
    test_operator_agrees_with_onnxruntime(case)


@pytest.mark.parametrize("case", [case for case in CASES if uncertain_names(case)], ids=lambda case: case.name)
def test_random_weights_follow(case: Case) -> None:
    test_posterior_follows_the_weight(case)


MODES = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric")
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("sizes", [(10, 18), (5, 9), (7, 4), (1, 1), (3, 13), (15, 12)])
def test_resize_nearest(mode: str, rounding: str, sizes: tuple[int, int]) -> None:
    """Agrees, or is refused because a coordinate that is exactly between two entries needs to be rounded."""
    resize = node("Resize", "x - - s", coordinate_transformation_mode=mode, nearest_mode=rounding)
    case = Case("resize", [resize], {"s": ints(1, 2, *sizes)}, (1, 2, 5, 6), 19, element=f32)
    try:
        test_operator_agrees_with_onnxruntime(case)
    except UnsupportedError as error:
        assert "rounding" in str(error)  # noqa: PT017
        assert sizes not in [(10, 18), (15, 12)]


def test_upsample_that_needs_rounding_is_refused() -> None:
    case = Case("upsample", [node("Upsample", "x s")], {"s": np.array([1.0, 1.0, 2.0, 1.5])}, IMAGE, 9, element=f32)
    with pytest.raises(UnsupportedError, match="rounding"):
        build_network(model_of(case))


@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.5, 1.0), (1.7, 4.0)])
@pytest.mark.parametrize("opset", [10, 11, 13])
def test_resize_by_scales(scales: tuple[float, float], opset: int) -> None:
    operands: str = "x s"
    more: dict[str, Any] = {}
    if opset > 10:
        operands, more = "x r s", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    weights = {"s": np.array([1, 1, *scales], f32), "r": np.zeros(0, f32)}
    case = Case("resize", [node("Resize", operands, **more)], weights, (1, 2, 5, 6), opset, element=f32)
    test_operator_agrees_with_onnxruntime(case)


def test_what_x_enters_twice_is_one_activation() -> None:
    """Products of a function with itself or its argument would lose that both depend on x."""
    swish = build_network(model_of(next(case for case in CASES if case.name == "swish_pattern")))
    gelu = build_network(model_of(next(case for case in CASES if case.name == "gelu_pattern")))
    square = build_network(model_of(next(case for case in CASES if case.name == "mul_itself")))
    kinds = [[n.kind for n in network.nodes if isinstance(n, Activation)] for network in (swish, gelu, square)]
    assert kinds == [["sigmoid", "silu"], ["erf", "gelu"], ["power"]]
    assert not any(isinstance(n, Product) for network in (swish, gelu, square) for n in network.nodes)


def test_a_gate_of_another_tensor_is_a_product() -> None:
    nodes = [node("Neg", "x", "n"), node("Sigmoid", "n", "s"), node("Mul", "x s")]
    assert any(isinstance(n, Product) for n in build_network(make_model(nodes, {})).nodes)


def test_padding_is_no_entry_of_a_maximum() -> None:
    """All entries negative: zeros in place of the padding would win."""
    proto = model_of(next(case for case in CASES if case.name == "max_pool_pads"))
    x = -np.ones((1, 60))
    assert (evaluate(build_network(proto), torch.tensor(x)) == -1).all()


def test_slices_that_move_nothing_leave_no_node() -> None:
    proto = make_model([node("Slice", "x i j k", "s"), node("Relu", "s")],
                       {"i": ints(0), "j": ints(9), "k": ints(1)})  # fmt: skip
    assert not any(isinstance(n, Select) for n in build_network(proto).nodes)


REFUSED = {
    "gather_too_far": ([node("Gather", "x i")], {"i": ints(7)}, ModelError, "computed|out of"),
    "split_sizes": ([node("Split", "x s", "a b", axis=1), node("Add", "a b")], {"s": ints(1, 2)}, ModelError, "split"),
    "pad_lengths": ([node("Pad", "x p")], {"p": ints(1, 1)}, ModelError, "pads"),
    "pad_huge": ([node("Pad", "x p")], {"p": ints(0, 2**40, 0, 0)}, ModelError, "pads"),
    "tile_huge": ([node("Tile", "x r")], {"r": ints(2**20, 2**20)}, ModelError, "repeats"),
    "expand_huge": ([node("Expand", "x r")], {"r": ints(2**40, 4)}, ModelError, "shape"),
    "gather_huge": ([node("Expand", "x s", "e"), node("Gather", "e i", axis=1)],
                    {"s": ints(2**20, 4), "i": np.zeros(2**9, np.int64)}, UnsupportedError, "picks"),
    "upsample_huge": ([node("Resize", "x - s")], {"s": np.array([1e5, 1e5])}, ModelError, "resizes"),
    "nan_limit": ([node("Clip", "x c")], {"c": np.array(np.nan)}, ModelError, "NaN"),
    "uncertain_limit": ([node("Clip", "x c")], {"c": normal(4)}, UnsupportedError, "one constant number"),
    "celu": ([node("Celu", "x", alpha=-1.0)], {}, UnsupportedError, "alpha"),
    "infinite_pad": ([node("Pad", "x p c")], {"p": ints(0, 1, 0, 1), "c": np.array(np.inf)}, ModelError, "infinite"),
    "pool_index": ([node("MaxPool", "x", "y i", kernel_shape=[1]), node("Cast", "i", "z", to=1)], {}, UnsupportedError,
                   "further outputs"),
    "layer_epsilon": ([node("LayerNormalization", "x g", epsilon=0.0)], {"g": normal(4)}, UnsupportedError, "epsilon"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    nodes, weights, error, message = REFUSED[name]
    shape = (1, 1, 4) if name == "pool_index" else (1, 4)
    outputs = "y z" if name == "pool_index" else "y"
    with pytest.raises(error, match=message) as caught:
        build_network(make_model(nodes, weights, shape, outputs=outputs, element=f32))
    assert caught.value.node


def test_random_slopes_stay_with_prelu() -> None:
    """The slope of a PRelu may carry a posterior; then it is a Scale."""
    network = build_network(make_model([node("PRelu", "x s")], {"s": normal(4)}), ["s"])
    x = torch.tensor([[1.0, -1.0, 2.0, -2.0]], dtype=torch.float64)
    drawn = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.float64)
    assert evaluate(network, x, {"s": drawn})[0, 0].tolist() == [1.0, -1.0, 2.0, -6.0]


def test_attention_block() -> None:
    """Projections, scaled products, a Softmax over rows, and a residual LayerNormalization."""
    weights = {name: normal(4, 4, seed=i) for i, name in enumerate("QKV")}
    weights |= {"c": np.array(0.5), "g": normal(4), "b": normal(4, seed=7)}
    nodes = [
        node("MatMul", "x Q", "q"), node("MatMul", "x K", "k"), node("MatMul", "x V", "v"),
        node("Transpose", "k", "t", perm=[0, 2, 1]), node("MatMul", "q t", "s"), node("Mul", "s c", "m"),
        node("Softmax", "m", "p", axis=-1), node("MatMul", "p v", "o"), node("Add", "o x", "r"),
        node("LayerNormalization", "r g b"),
    ]  # fmt: skip
    proto = make_model(nodes, weights, (1, 3, 4), element=f32)
    x = points(proto)
    network = build_network(proto)
    y = evaluate(network, torch.tensor(x)).numpy()
    np.testing.assert_allclose(y, run_onnx(proto, x), rtol=1e-4, atol=1e-4)
