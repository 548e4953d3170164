"""Random uses of the operators that are computed from constants while a file is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from drawn_operators import INTEGERS, Draw, Generator, Shape
from onnx import TensorProto, helper, numpy_helper

FOLDED: dict[str, Generator] = {}


def folds(*operators: str) -> Callable[[Generator], Generator]:
    """Register a generator of a node of integers or booleans."""

    def register(generator: Generator) -> Generator:
        FOLDED.update(dict.fromkeys(operators, generator))
        return generator

    return register


def shown(draw: Draw) -> None:
    """What was computed, as floats that are added to the input."""
    to = helper.np_dtype_to_tensor_dtype(np.dtype(draw.floats))
    draw.after = [helper.make_node("Cast", ["y"], ["f"], to=to)]


def integers(draw: Draw, shape: Shape, low: int = -9, high: int = 9) -> np.ndarray:
    return draw.rng.integers(low, high + 1, shape)


@folds("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Equal", "Less", "LessOrEqual", "Greater",
       "GreaterOrEqual")  # fmt: skip
def integer_arithmetic(draw: Draw) -> None:
    shape, kind = draw.sizes(0, 3), draw.pick(np.int64, np.int64, np.int32)
    a, b = integers(draw, shape), integers(draw, draw.broadcast_to(shape))
    if draw.operator in ("Div", "Mod"):
        b = np.where(b == 0, 5, b)
    if draw.operator == "Pow":
        b = np.abs(b) % 4
    draw.set(0.3, fmod=draw.number(0, 1))
    draw.operand("a", a, kind)
    draw.operand("b", b, kind)
    shown(draw)


@folds("Neg", "Abs", "Sign", "Size", "NonZero", "Not")
def integer_function(draw: Draw) -> None:
    a = integers(draw, draw.sizes(1, 3), -2, 2)
    draw.operand("a", a > 0 if draw.operator == "Not" else a, bool if draw.operator == "Not" else draw.pick(*INTEGERS))
    shown(draw)


@folds("And", "Or", "Xor")
def logic(draw: Draw) -> None:
    shape = draw.sizes(0, 3)
    for name in "ab":
        draw.operand(name, draw.rng.random(draw.broadcast_to(shape)) < 0.5)
    shown(draw)


@folds("Where")
def integer_where(draw: Draw) -> None:
    shape, kind = draw.sizes(0, 3), draw.pick(*INTEGERS)
    draw.operand("mask", draw.rng.random(draw.broadcast_to(shape)) < 0.5)
    for name in "ab":
        draw.operand(name, integers(draw, draw.broadcast_to(shape)), kind)
    shown(draw)


@folds("Concat")
def integer_concat(draw: Draw) -> None:
    shape = draw.sizes(1, 3)
    draw.attributes["axis"] = draw.axis(len(shape))
    for name in "abc"[: draw.number(1, 3)]:
        draw.operand(name, integers(draw, shape))
    shown(draw)


@folds("Cast")
def integer_cast(draw: Draw) -> None:
    """From integers, booleans and floats, also where the result does not fit."""
    to = draw.pick(TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT8,
                   TensorProto.UINT8, TensorProto.DOUBLE)  # fmt: skip
    if draw.chance():
        draw.operand("a", integers(draw, draw.sizes(0, 2), -300, 300), draw.pick(*INTEGERS))
    else:
        draw.operand("a", draw.normal(draw.sizes(0, 2)) * draw.pick(1.0, 1.0, 100.0))
    draw.attributes["to"] = to
    draw.set(0.3, saturate=draw.number(0, 1))
    shown(draw)


@folds("Range")
def integer_range(draw: Draw) -> None:
    kind = draw.pick(*INTEGERS)
    for name, value in (("a", draw.number(-5, 5)), ("b", draw.number(-5, 9)), ("c", draw.pick(1, 2, 3, -1, -2))):
        draw.operand(name, np.array(value), kind)
    shown(draw)


@folds("CumSum")
def cumulated(draw: Draw) -> None:
    shape = draw.sizes(1, 3)
    draw.operand("a", integers(draw, shape), draw.pick(*INTEGERS))
    draw.operand("axis", np.array(draw.axis(len(shape))), draw.pick(*INTEGERS))
    draw.set(0.5, exclusive=draw.number(0, 1), reverse=draw.number(0, 1))
    shown(draw)


@folds("Pad")
def integer_pad(draw: Draw) -> None:
    shape = draw.sizes(1, 3)
    pads = draw.numbers(2 * len(shape), draw.pick(0, -1), 2)
    if draw.has("pads"):  # before opset 11 for floats only
        draw.operand("a", draw.normal(shape))
        draw.attributes["pads"] = pads
    else:
        draw.operand("a", integers(draw, shape), draw.pick(*INTEGERS))
        draw.operand("pads", np.array(pads, np.int64))
        if draw.chance():
            draw.operand("value", np.array(7), draw.weights["a"].dtype)
        draw.set(mode=draw.pick("constant", "reflect", "edge", *(["wrap"] if draw.opset >= 19 else [])))
    shown(draw)


@folds("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def integer_reduction(draw: Draw) -> None:
    shape = draw.sizes(0, 3)
    draw.operand("a", integers(draw, shape), draw.pick(*INTEGERS))
    draw.set(keepdims=draw.number(0, 1), noop_with_empty_axes=draw.number(0, 1))
    axes = draw.axes(len(shape))
    if draw.has("axes"):
        draw.set(0.8, axes=axes)
    elif draw.chance(0.8):
        draw.operand("axes", np.array(axes, np.int64))
    shown(draw)


@folds("ScatterND")
def scatter_nd(draw: Draw) -> None:
    shape = draw.sizes(1, 3)
    draw.operand("a", integers(draw, shape))
    depth, count = draw.number(1, len(shape)), draw.number(1, 2)
    places = draw.rng.permutation(int(np.prod(shape[:depth])))[:count]
    index = np.stack(np.unravel_index(places, shape[:depth]), -1)
    negative = np.array(shape[:depth]) * (draw.rng.random(depth) < 0.2)
    draw.operand("index", index - negative)
    draw.operand("updates", integers(draw, (len(places), *shape[depth:])))
    if draw.opset >= 16:
        draw.set(0.5, reduction=draw.pick("none", "add", "mul", *(["max", "min"] if draw.opset >= 18 else [])))
    shown(draw)


@folds("ScatterElements")
def scatter_elements(draw: Draw) -> None:
    shape = draw.sizes(1, 3)
    axis = draw.axis(len(shape))
    draw.operand("a", integers(draw, shape))
    rows = draw.rng.permuted(np.broadcast_to(np.arange(shape[axis]), (int(np.prod(shape)) // shape[axis], shape[axis])),
                             axis=1)  # fmt: skip
    rest = tuple(size for i, size in enumerate(shape) if i != axis % len(shape))
    draw.operand("index", np.moveaxis(rows.reshape(*rest, shape[axis]), -1, axis))
    draw.operand("updates", integers(draw, shape))
    if axis != 0 or draw.chance():
        draw.attributes["axis"] = axis
    if draw.opset >= 16:
        draw.set(0.5, reduction=draw.pick("none", "add", "mul", *(["max", "min"] if draw.opset >= 18 else [])))
    shown(draw)


@folds("Trilu")
def triangle(draw: Draw) -> None:
    draw.operand("a", integers(draw, draw.sizes(2, 3)))
    if draw.chance():
        draw.operand("k", np.array(draw.number(-5, 5), np.int64))
    draw.set(upper=draw.number(0, 1))
    shown(draw)


@folds("OneHot")
def one_hot(draw: Draw) -> None:
    shape = draw.sizes(0, 2)
    draw.operand("a", integers(draw, shape, -4, 4))
    draw.operand("depth", np.array(draw.number(1, 5)) if draw.chance() else np.array([draw.number(1, 5)]))
    draw.operand("values", integers(draw, (2,)))
    draw.set(axis=draw.axis(len(shape) + 1))
    shown(draw)


@folds("ConstantOfShape")
def constant_of_shape(draw: Draw) -> None:
    draw.operand("a", np.array(draw.sizes(0, 3), np.int64))
    kind = draw.pick(np.int64, np.float32, np.bool_)
    draw.set(value=numpy_helper.from_array(np.array([3], kind), "v"))
    shown(draw)


@folds("DequantizeLinear")
def dequantized(draw: Draw) -> None:
    """Of integers, with one scale or one for each entry of an axis."""
    shape, kind = draw.sizes(1, 3), draw.pick(np.int8, np.uint8, np.int32)
    draw.operand("q", draw.rng.integers(0, 100, shape) - (0 if kind == np.uint8 else 50), kind)
    axis, scales = draw.axis(len(shape)), ()
    if draw.has("axis") and draw.chance():
        draw.attributes["axis"], scales = axis, (shape[axis],)
    draw.operand("s", np.abs(draw.rng.normal(size=scales)) + 0.01, np.float32)
    if kind != np.int32 and draw.chance():
        draw.operand("z", draw.rng.integers(0, 9, scales), kind)
    draw.result = np.float32
