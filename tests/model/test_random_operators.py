"""Every operator that is read, in random uses: what we read is what onnxruntime and ONNX's reference evaluator compute.

Each draw is read or refused by name. What is read must agree with both; where one of them has no answer (no kernel, no
implementation), with the other. OPERATOR_DRAWS=1000 draws more (default 6 for each row of the table).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from drawn_constants import FOLDED
from drawn_operators import GENERATORS, Draw
from model_helpers import make_model, node
from onnx import ModelProto, helper, numpy_helper, printer
from onnx.defs import SchemaError, get_schema, onnx_opset_version
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.model import build_network
from bnn_vnnlib.model.folding import FOLDABLE
from bnn_vnnlib.model.importer import OLDEST_OPSET
from bnn_vnnlib.model.operators import OPERATORS
from bnn_vnnlib.network.evaluate import evaluate

Arrays = list[np.ndarray]
DRAWS = int(os.environ.get("OPERATOR_DRAWS", "6"))
TOLERANCE = {"float16": 3e-2, "float32": 2e-4, "float64": 2e-6}  # of float64: the reference's erf has 7 digits
# Valid files that onnxruntime does not load for other reasons than what they compute.
NOT_ABOUT_MEANING = ("Type Error", "ParseData type mismatch for tensor: axes")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# three readings --------------------------------------------------------------------------------------------------


def ours(proto: ModelProto, x: np.ndarray) -> Arrays:
    """Outputs as our network has them."""
    network = build_network(proto)
    flat = torch.tensor(x.reshape(1, -1).astype(np.float64))
    y, outputs = evaluate(network, flat, softmax=True).numpy()[0], network.signature.outputs
    cuts = np.cumsum([output.size for output in outputs])[:-1]
    return [part.reshape(output.shape) for part, output in zip(np.split(y, cuts), outputs, strict=True)]


def runtime(proto: ModelProto, x: np.ndarray) -> Arrays | None:
    """Outputs by onnxruntime; None without a kernel."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(y) for y in session.run(None, {"x": x})]
    except NoKernel:
        return None
    except Exception as error:
        if any(words in str(error) for words in NOT_ABOUT_MEANING):
            return None
        raise


def reference(proto: ModelProto, x: np.ndarray) -> Arrays | None:
    """Outputs by the reference evaluator; None if it fails, for which it has many reasons."""
    try:
        return [np.asarray(y) for y in ReferenceEvaluator(proto).run(None, {"x": x})]
    except Exception:  # it lets whatever happens inside it through
        return None


def agree(a: Arrays, b: Arrays, tolerance: float) -> None:
    assert [y.shape for y in a] == [y.shape for y in b]
    for mine, other in zip(a, b, strict=True):
        wide = other.astype(np.float64)
        scale = max(1.0, np.abs(wide[np.isfinite(wide)]).max(initial=0))
        np.testing.assert_allclose(mine, wide, rtol=tolerance, atol=tolerance * scale)


# what the reference evaluator has wrong ---------------------------------------------------------------------------


@dataclass
class Fault:
    """Uses of an operator that the reference evaluator computes wrongly, and one of them computed by hand."""

    uses: Callable[[Draw], bool]
    proto: ModelProto
    x: Any
    y: Any


def one_node(operator: str, x: Any, opset: int, weights: dict[str, Any] | None = None, **attributes: Any) -> ModelProto:
    """A node of x and of float weights."""
    weights = {name: np.array(value, np.float32) for name, value in (weights or {}).items()}
    shape = np.shape(x)
    drawn = node(operator, " ".join(name or "-" for name in ["x", *weights]), **attributes)
    weights.pop("", None)
    return make_model([drawn], weights, shape, opset=opset, element=np.float32, ir_version=10)


def fault(
    uses: Callable[[Draw], bool], operator: str, opset: int, x: Any, y: Any, weights: Any = None, **attributes: Any
) -> Fault:
    return Fault(uses, one_node(operator, x, opset, weights, **attributes), x, y)


FAULTS = {
    # The window sees 1 2, 2 3, 3 and the pad.
    "max_pool_pads": fault(
        lambda draw: draw.operator == "MaxPool" and any(draw.attributes.get("pads", ())),
        "MaxPool", 12, [[[1, 2, 3]]], [[[2, 3, 3]]], kernel_shape=[2], pads=[0, 1]),
    # ceil(5 / 3) = 2 places and no pads to add: 1 2 and 4 5.
    "max_pool_same_lower": fault(
        lambda draw: draw.operator == "MaxPool" and draw.attributes.get("auto_pad") == "SAME_LOWER",
        "MaxPool", 12, [[[1, 2, 3, 4, 5]]], [[[2, 5]]], kernel_shape=[2], strides=[3], auto_pad="SAME_LOWER"),
    # The first window is whole: 1 2 3; the second has 4 alone.
    "average_pool_ceil": fault(
        lambda draw: draw.operator == "AveragePool" and bool(draw.attributes.get("ceil_mode")),
        "AveragePool", 11, [[[[1, 2, 3, 4]]]], [[[[2, 4]]]], kernel_shape=[1, 3], strides=[1, 3], ceil_mode=1),
    # Entries that are two apart: (1 + 3) / 2 and (2 + 4) / 2.
    "average_pool_dilated": fault(
        lambda draw: draw.operator == "AveragePool" and max(draw.attributes.get("dilations", (1,))) > 1,
        "AveragePool", 19, [[[1, 2, 3, 4]]], [[[2, 3]]], kernel_shape=[2], dilations=[2], auto_pad="VALID"),
    # The axes are those of the result, which has four, in any order: the second and the last are new.
    "unsqueeze_axes": fault(
        lambda draw: draw.operator == "Unsqueeze" and len(draw.attributes.get("axes", ())) > 1,
        "Unsqueeze", 11, [[1], [2]], [[[[1]]], [[[2]]]], axes=[-3, 3]),
    # At inference the momentum says nothing: (3 - 1) / sqrt 4 * 10 + 5.
    "batch_norm_momentum": fault(
        lambda draw: draw.operator == "BatchNormalization" and draw.opset < 14,
        "BatchNormalization", 9, [[3]], [[15]], {"s": [10], "b": [5], "m": [1], "v": [4]}, momentum=0.5, epsilon=0.0),
    # One number for each of two channels.
    "global_max_pool_shape": fault(
        lambda draw: draw.operator == "GlobalMaxPool" and len(draw.shape) != 4,
        "GlobalMaxPool", 12, [[[1, 2], [4, 3]]], [[[2], [4]]]),
    # Before opset 13 all axes from the first on are one: two equal entries.
    "softmax_flattens": fault(
        lambda draw: draw.operator == "Softmax" and draw.opset < 13,
        "Softmax", 11, [[[7], [7]]], [[[0.5], [0.5]]]),
    "log_softmax_flattens": fault(
        lambda draw: draw.operator == "LogSoftmax" and draw.opset < 13,
        "LogSoftmax", 11, [[[7], [7]]], np.log([[[0.5], [0.5]]])),
    # Each group has its own bias.
    "conv_transpose_groups": fault(
        lambda draw: draw.operator == "ConvTranspose" and "group" in draw.attributes and "b" in draw.weights,
        "ConvTranspose", 11, [[[1], [2]]], [[[13], [26]]], {"W": [[[3]], [[3]]], "b": [10, 20]}, group=2),
    # output_shape overrules the pads: one entry goes from the end, which is 3 + 0, as auto_pad is not SAME_UPPER
    "conv_transpose_output_shape": fault(
        lambda draw: draw.operator == "ConvTranspose" and {"output_shape", "pads"} <= set(draw.attributes),
        "ConvTranspose", 11, [[[1, 2, 3]]], [[[3, 5, 3]]], {"W": [[[1, 1]]]}, output_shape=[3], pads=[0, 1]),
    # floor(6 * 0.3) = 1 entry, which is the first one whatever the scale.
    "resize_to_one": fault(
        lambda draw: draw.operator == "Resize"
        and draw.attributes.get("coordinate_transformation_mode") == "pytorch_half_pixel" and "scales" in draw.operands,
        "Resize", 13, [1, 2, 3, 4, 5, 6], [1], {"": 0, "scales": [0.3]},
        coordinate_transformation_mode="pytorch_half_pixel", nearest_mode="round_prefer_ceil"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_reference_is_at_fault(name: str) -> None:
    """Where the reference alone differs, the hand decides."""
    one, x = FAULTS[name], np.array(FAULTS[name].x, np.float32)
    y = [np.array(FAULTS[name].y, np.float64)]
    agree(ours(one.proto, x), y, 1e-6)
    agree(runtime(one.proto, x) or [], y, 1e-6)
    other = reference(one.proto, x)
    assert other is not None
    assert other[0].shape != y[0].shape or not np.allclose(other[0], y[0], atol=1e-3)


# what is refused because it is read differently --------------------------------------------------------------------

IMAGE = (1, 1, 3, 3)
REFUSED: dict[str, tuple[ModelProto, str]] = {
    "valid_ceil": (one_node("MaxPool", np.ones(IMAGE), 17, kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID",
                            ceil_mode=1), "auto_pad = VALID with ceil_mode"),
    "valid_ceil_mean": (one_node("AveragePool", np.ones(IMAGE), 17, kernel_shape=[2, 2], strides=[2, 2],
                                 auto_pad="VALID", ceil_mode=1), "auto_pad = VALID with ceil_mode"),
    "same_dilated": (one_node("MaxPool", np.ones(IMAGE), 17, kernel_shape=[2, 2], dilations=[2, 1],
                              auto_pad="SAME_UPPER"), "SAME_UPPER with dilations"),
    "conv_same_dilated": (one_node("Conv", np.ones(IMAGE), 17, {"W": np.ones((1, 1, 2, 2))}, dilations=[1, 2],
                                   auto_pad="SAME_LOWER"), "SAME_LOWER with dilations"),
    "same_skips": (one_node("AveragePool", np.ones((1, 1, 4)), 17, kernel_shape=[1], strides=[2],
                            auto_pad="SAME_UPPER"), "strides skip the last entries"),
    "wide_pads": (one_node("MaxPool", np.ones(IMAGE), 17, kernel_shape=[2, 2], pads=[0, 2, 0, 0]), "below the kernel"),
    "auto_and_pads": (one_node("MaxPool", np.ones(IMAGE), 17, kernel_shape=[2, 2], pads=[0, 1, 0, 0],
                               auto_pad="VALID"), "ONNX allows one"),
    "conv_auto_and_no_pads": (one_node("Conv", np.ones(IMAGE), 17, {"W": np.ones((1, 1, 2, 2))}, pads=[0, 0, 0, 0],
                                       auto_pad="VALID"), "ONNX allows one"),
    "transposed_same": (one_node("ConvTranspose", np.ones((1, 1, 3)), 17, {"W": [[[1]]]}, strides=[2],
                                 auto_pad="SAME_UPPER"), "the kernel reaches"),
    "transposed_shape": (one_node("ConvTranspose", np.ones((1, 1, 3)), 17, {"W": [[[1]]]}, output_shape=[4]),
                         "the kernel reaches"),
    "transposed_padding": (one_node("ConvTranspose", np.ones((1, 1, 3)), 17, {"W": [[[1]]]}, strides=[2],
                                    output_padding=[2]), "below the stride"),
    "wrap_negative": (one_node("Pad", [1, 2, 3], 19, {"p": [1, -1]}, mode="wrap"), "negative pads"),
    "edge_negative": (one_node("Pad", [1, 2, 3], 19, {"p": [1, -1]}, mode="edge"), "negative pads"),
    "reflect_too_far": (one_node("Pad", [1, 2, 3], 19, {"p": [3, 0]}, mode="reflect"), "reflects more"),
    "uneven_split": (make_model([node("Split", "x", "a b")], {}, (5,), outputs="a b", opset=13), "equal parts"),
    "shrinking_upsample": (one_node("Upsample", [[1, 2]], 9, {"s": [1, 0.5]}), "only enlarge"),
    "late_upsample": (one_node("Upsample", [[1, 2]], 10, {"s": [1, 2]}), "not supported"),
    "resize_antialias": (one_node("Resize", [[1, 2]], 18, {"": 0, "s": [1, 2]}, antialias=1), "antialias"),
    "resize_outside": (one_node("Resize", [[1, 2]], 18, {"": 0, "s": [1, 2]}, exclude_outside=1), "exclude_outside"),
    "resize_crop": (one_node("Resize", [[1, 2]], 18, {"": 0, "s": [1, 1]},
                             coordinate_transformation_mode="tf_crop_and_resize"), "tf_crop_and_resize"),
    "crossed_limits": (one_node("Clip", [1, 2], 10, min=1.0, max=0.0), "above max"),
    "list_limit": (one_node("Clip", 1, 13, {"low": [0]}), "expected a scalar"),
    "early_flatten": (one_node("Flatten", [[1, 2]], 9, axis=-1), "out of range"),
    "no_axes": (one_node("Squeeze", [[1, 2]], 13, {"a": np.zeros(0)}), "empty list of axes"),
    "tile_rank": (one_node("Tile", [[1, 2]], 13, {"r": [2]}), "for 2 axes"),
    "cast_saturate": (one_node("Cast", [1, 2], 19, to=11, saturate=0), "8-bit floats"),
    "cast_rounding": (one_node("Cast", [1, 2], 24, to=11, round_mode="up"), "8-bit floats"),
    "element_out_of_range": (one_node("GatherElements", [[1, 2]], 13, {"i": [[1, 0]]}), "must lie in -1 .. 0"),
    "element_below_range": (one_node("GatherElements", [[1, 2]], 13, {"i": [[0, -2]]}), "must lie in -1 .. 0"),
    "elements_of_more": (one_node("GatherElements", [[1, 2]], 13, {"i": [[0, 0, 0]]}), "larger than the data"),
}  # fmt: skip
REFUSED |= {
    "operand_too_many": (one_node("Relu", [1, 2], 13, {"b": [1]}), "2 operands and 1 results"),
    "operand_too_few": (one_node("Add", [1, 2], 13), "1 operands and 1 results"),
    "result_too_many": (make_model([node("Relu", "x", "y z")], {}, (2,)), "1 operands and 2 results"),
    "no_axis": (make_model([node("Concat", "x x")], {}, (2,)), "'axis' is given 0 times"),
    "two_slopes": (one_node("LeakyRelu", [1, 2], 13, alpha=0.5), "'alpha' is given 2 times"),
}
REFUSED["two_slopes"][0].graph.node[0].attribute.append(helper.make_attribute("alpha", 0.1))
CONSTANTS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any], str]] = {
    "early_flatten": ("Flatten", 9, {"a": [[1, 2]]}, {"axis": -1}, "out of range"),
    "no_axes": ("Squeeze", 13, {"a": [[1, 2]], "b": np.zeros(0, np.int64)}, {}, "empty list of axes"),
    "tile_rank": ("Tile", 13, {"a": [[1, 2]], "r": [2]}, {}, "for 2 axes"),
    "reflected": ("Pad", 13, {"a": [6, 6], "p": [0, 2]}, {"mode": "reflect"}, "another mode"),
    "index_of_one_number": ("OneHot", 11, {"a": 1, "d": 2, "v": [0, 1]}, {}, "at least one axis"),
    "early_negative_index": ("OneHot", 9, {"a": [-1], "d": 2, "v": [0, 1]}, {}, "from opset 11 on"),
    "overflow": ("Mul", 13, {"a": [2**40], "b": [2**40]}, {}, "overflows int64"),
    "overflow_below": ("Sub", 13, {"a": [-(2**62)], "b": [2**63 - 1]}, {}, "overflows int64"),
    "overflow_of_many": ("ReduceProd", 13, {"a": [2**30, 2**30, 2**30]}, {}, "overflows int64"),
}


def with_integers(proto: ModelProto) -> ModelProto:
    """Shapes, indices and axes as integers; `one_node` makes floats of all."""
    for tensor in proto.graph.initializer:
        if tensor.name in ("p", "a", "r", "i"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.int64), tensor.name))
    return proto


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_read_differently_is_refused(name: str) -> None:
    proto, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as caught:
        build_network(with_integers(proto))
    assert caught.value.node


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_that_are_read_differently_are_refused(name: str) -> None:
    operator, opset, weights, attributes, message = CONSTANTS[name]
    weights = {key: np.array(value, np.int64) for key, value in weights.items()}
    nodes = [node(operator, " ".join(weights), "c", **attributes), node("Cast", "c", "f", to=1), node("Add", "x f")]
    with pytest.raises(InputError, match=message) as caught:
        build_network(make_model(nodes, weights, (1,), opset=opset, element=np.float32))
    assert caught.value.node


def test_the_largest_integers_are_no_overflow() -> None:
    nodes = [node("Sub", "a b", "c"), node("Slice", "x zero c")]
    weights = {"a": np.array([2**63 - 1]), "b": np.array([1]), "zero": np.array([0])}
    x = np.array([1, 2], np.float32)
    agree(ours(make_model(nodes, weights, (2,), opset=13, element=np.float32), x), [x], 0)


READ = {
    "valid_ceil_without_a_rest": one_node("MaxPool", np.ones((1, 1, 4)), 17, kernel_shape=[2], strides=[2],
                                          auto_pad="VALID", ceil_mode=1),
    "valid_and_no_pads": one_node("MaxPool", np.ones((1, 1, 4)), 17, kernel_shape=[2], pads=[0, 0], auto_pad="VALID"),
    "convolution_that_skips": one_node("Conv", np.ones((1, 1, 4)), 17, {"W": [[[2]]]}, strides=[2],
                                       auto_pad="SAME_UPPER"),
    "negative_constant_pads": one_node("Pad", [1, 2, 3], 13, {"p": [2, -1]}),
    "smaller_index": one_node("GatherElements", [[1, 2], [3, 4]], 13, {"i": [[0, -1]]}, axis=0),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_is_read_alike_is_not_refused(name: str) -> None:
    proto = with_integers(READ[name])
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.arange(1.0, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    agree(ours(proto, x), runtime(proto, x) or [], 1e-6)


def test_no_axes_to_reduce() -> None:
    """A reduction over no axes is that of each entry alone: |x|, x^2."""
    x = np.array([-3, 2], np.float32)
    for operator, y in (
        ("ReduceL1", [3, 2]),
        ("ReduceL2", [3, 2]),
        ("ReduceSumSquare", [9, 4]),
        ("ReduceMax", [-3, 2]),
    ):
        proto = one_node(operator, x, 18, noop_with_empty_axes=1)
        agree(ours(proto, x), [np.array(y)], 1e-6)
        agree(runtime(proto, x) or [], [np.array(y)], 1e-6)


def test_one_entry_of_a_slice_that_goes_backwards() -> None:
    """What numpy leaves with a stride of -1, and a scalar that it makes a list of."""
    nodes = [node("Slice", "x i j k s", "r"), node("Gather", "r zero")]
    integers = {"i": [-1], "j": [-9], "k": [0], "s": [-7], "zero": 0}
    proto = make_model(nodes, {name: np.array(value) for name, value in integers.items()}, (3,))
    assert ours(proto, np.array([1.0, 2.0, 3.0]))[0].tolist() == 3.0
    assert build_network(proto).signature.outputs[0].shape == ()


# random uses -----------------------------------------------------------------------------------------------------


def opsets(operator: str, in_table: bool) -> list[list[int]]:
    """The opsets in which the operator is the same, for each row of the table."""
    found: dict[int, list[int]] = {}
    for opset in range(OLDEST_OPSET, onnx_opset_version() + 1):
        try:
            version = get_schema(operator, opset, "").since_version
        except SchemaError:
            continue
        if not in_table or ("", operator, version) in OPERATORS:
            found.setdefault(version, []).append(opset)
    return list(found.values())


def drawn(operator: str, in_table: bool, row: list[int], seed: int) -> tuple[Draw, ModelProto, np.ndarray]:
    """One use, its graph and an input."""
    rng = np.random.default_rng([seed, row[0], in_table, *map(ord, operator)])
    draw = Draw(rng, operator, int(rng.choice(row)), rng.choice([np.float32, np.float32, np.float64, np.float16]))
    (GENERATORS if in_table else FOLDED)[operator](draw)
    folded = not in_table or draw.chance(0.2)
    shape = (1,) if folded else draw.shape
    return draw, draw.model(folded), draw.point(shape).reshape(shape)


def outcome(draw: Draw, proto: ModelProto, x: np.ndarray) -> str:
    """'refused', or with whom it agrees."""
    try:
        y = ours(proto, x)
    except InputError as error:
        return "refused" if error.node is not None else "refused without a name"
    tolerance = TOLERANCE[np.dtype(draw.floats).name]
    first = runtime(proto, x)
    if first is not None:
        agree(y, first, tolerance)
    second = None if any(one.uses(draw) for one in FAULTS.values()) else reference(proto, x)
    if second is not None:
        agree(y, second, tolerance)
    return "alone" if first is None and second is None else "onnxruntime" if first is not None else "reference"


USES = [*((operator, True) for operator in sorted(GENERATORS)), *((operator, False) for operator in sorted(FOLDED))]


@pytest.mark.parametrize(("operator", "in_table"), USES, ids=lambda value: value if isinstance(value, str) else "")
def test_reads_as_onnxruntime_and_the_reference(operator: str, in_table: bool) -> None:
    seen: Counter[str] = Counter()
    rows = opsets(operator, in_table)
    for row in rows:
        for seed in range(max(DRAWS, 4 * DRAWS // len(rows))):
            draw, proto, x = drawn(operator, in_table, row, seed)
            try:
                seen[outcome(draw, proto, x)] += 1
            except Exception as error:
                error.add_note(f"seed {seed}, opset {draw.opset}:\n{printer.to_text(proto)}\nx = {x.tolist()}")
                raise
    assert not seen["refused without a name"]
    assert seen["onnxruntime"] + seen["reference"] >= 0.1 * seen.total(), seen


def test_every_operator_is_drawn() -> None:
    assert set(GENERATORS) == {operator for domain, operator, _ in OPERATORS if not domain}
    assert set(FOLDABLE) <= set(FOLDED) | set(GENERATORS)
