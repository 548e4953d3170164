"""Nodes that only have constants in front of them are computed while the file is read.

Operators that move entries about are applied to the indices into the source tensor, so that a posterior follows its
weight through them. Arithmetic on floats is done in float64 with a bound of its rounding; on integers it is exact. Any
other operator of the table is enclosed in intervals (`_enclosed`). What carries a posterior is moved, negated or
multiplied exactly, and else refused by name: exp of a Gaussian weight is no Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from typing import cast as typed

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from bnn_vnnlib.model import balls
from bnn_vnnlib.model import operators_elementwise as elementwise
from bnn_vnnlib.model import operators_shape as shapes
from bnn_vnnlib.model.attributes import attribute, evaluate_node, inconsistent, label, unsupported
from bnn_vnnlib.model.balls import Ball
from bnn_vnnlib.model.builder import Builder, Fixed, Value
from bnn_vnnlib.network import nodes as network_nodes

OperatorRow = Callable[[Builder, NodeProto, Sequence[Value | None]], Value | tuple[Value, ...]]
"""Row of the operator table: what a node with these operands computes."""

# operators that move, repeat or drop entries of their first operand
MOVES = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand", "Tile")
# operators on integers and booleans, which the reference evaluator computes exactly
_DISCRETE = (
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Concat", "Cast", "Equal", "Where", "Min", "Max", "Mod", "Range", "Pow",
    "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Xor", "Sign", "Size", "CumSum", "Pad",
    "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin", "ScatterND", "ScatterElements", "Trilu", "NonZero", "OneHot",
)  # fmt: skip
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_PICKS = ("Abs", "Clip", "Max", "Min")
"""Operators whose result is one of the operands' numbers, up to a sign: exact in float64, whatever the file's type."""
_ARITHMETIC: dict[str, Callable[..., Ball]] = {
    "Add": balls.ball_sum,
    "Sub": lambda a, b: balls.ball_sum(a, Ball(-b.mid, b.rad)),
    "Mul": balls.ball_product,
    "Div": lambda a, b: balls.ball_product(a, balls.reciprocal(b)),
    "Neg": lambda a: Ball(-a.mid, a.rad),
    "Sqrt": balls.square_root,
    "Reciprocal": balls.reciprocal,
}
_ELEMENTWISE = frozenset((
    "Add", "Sub", "Mul", "Div", "Equal", "Where", "Min", "Max", "Mod", "Pow", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "And", "Or", "Xor",
))  # fmt: skip
_OVERFLOWS = ("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Pow", "CumSum", "ReduceProd", "ReduceSum")
_GROWN = 2**24
FOLDABLE = frozenset((*MOVES, *_DISCRETE, *_ARITHMETIC, "ConstantOfShape", "DequantizeLinear", "Dropout", "Identity"))
"""Operators that can be folded whether or not the table has them for computed tensors."""


Others = Sequence[Fixed | None]
"""Operands of a node behind the first."""


def fold(
    graph: Builder, node: NodeProto, inputs: Sequence[Fixed | None], converter: OperatorRow | None = None
) -> Fixed:
    """Value of a node of constants; `converter` is the operator's row of the table, if it has one.

    Raises
    ------
    UnsupportedError : an operator that is not folded, or one through which a posterior cannot follow
    """
    first = inputs[0] if inputs else None
    if first is None:
        raise inconsistent(node, "operand 0 is missing")
    if node.op_type in _WHATEVER:
        return _WHATEVER[node.op_type](graph, node, first, inputs[1:])
    given = [value for value in inputs if value is not None]
    if node.op_type == "OneHot" and (not first.shape or (graph.opset < 11 and (first.values < 0).any())):
        raise inconsistent(
            node, f"indices of shape {first.shape}: at least one axis, and negative from opset 11 on only"
        )
    if node.op_type == "Pad" and attribute(node, "mode", "constant") != "constant":
        raise unsupported(node, "pads constants in another mode than constant; simplify the model first")
    _refuse_large(node, _size(node, [value.values for value in given]), given)
    if all(value.param is None for value in given) and node.op_type in FOLDABLE:
        return graph.constant(node.output[0], _discrete(node, graph.opset, [value.values for value in given]))
    if node.op_type == "Where" and first.param is None and len(given) == 3 and given[1].param and given[2].param:
        return _chosen(graph, node, *given)
    return _float(graph, node, inputs, given, converter)


def _filled(graph: Builder, node: NodeProto, sizes: Fixed, _: Others) -> Fixed:
    """The constant that ConstantOfShape makes."""
    _refuse_large(node, math.prod(int(size) for size in sizes.values.reshape(-1)), [sizes])
    return graph.constant(node.output[0], evaluate_node(node, graph.opset, [sizes.values]))


def _dropped(graph: Builder, node: NodeProto, value: Fixed, others: Others) -> Fixed:
    """Dropout, which refuses training mode (DropConnect, here)."""
    shapes.dropout(graph, node, [value, *others])
    return value


def _discrete(node: NodeProto, opset: int, arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """A node of integers and booleans; refused where it overflows or divides by 0, where runtimes differ (or stop)."""
    if node.op_type in ("Div", "Mod") and not arrays[-1].all():
        raise inconsistent(node, "divides integers by 0")
    result = evaluate_node(node, opset, arrays)
    if node.op_type in _OVERFLOWS and result.dtype.kind in "iu":
        summands = len(arrays) if node.op_type in _ELEMENTWISE else 1  # behind them come axes
        wide = evaluate_node(node, opset, [a.astype(np.float64) if i < summands else a for i, a in enumerate(arrays)])
        # an overflow is off by a multiple of 2^bits, of which float64 rounding is a small part
        if (np.abs(wide - result.astype(np.float64)) >= 2.0 ** (8 * result.dtype.itemsize - 1)).any():
            raise inconsistent(node, f"overflows {result.dtype}")
    return result


def _move(graph: Builder, node: NodeProto, data: Fixed, others: Others) -> Fixed:
    """The constant that an operator of MOVES makes: the same entries at other places."""
    arrays = [None if other is None else other.values for other in others]
    match node.op_type:  # the evaluator reads these otherwise than ONNX
        case "Flatten":
            return data.reshaped(*shapes.flattened(graph, node, data.shape))
        case "Squeeze":
            return data.reshaped(*shapes.squeezed(node, [data, *others], data.shape))
        case "Unsqueeze":
            return data.reshaped(*shapes.unsqueezed(node, [data, *others], data.shape))
        case "Tile":
            shapes.tile_repeats(node, [data, *others], data.values.ndim)
    if node.op_type == "Gather" and arrays and arrays[0] is not None and data.shape:
        _refuse_large(node, arrays[0].size * (data.values.size // max(min(data.shape), 1)), [data])
    if node.op_type in ("Expand", "Tile") and arrays and arrays[0] is not None:
        _refuse_large(node, math.prod(int(size) for size in arrays[0].reshape(-1)) * max(data.values.size, 1), [data])
    return data.moved(lambda array: evaluate_node(node, graph.opset, [np.array(array, order="C"), *arrays]))


def _cast(graph: Builder, node: NodeProto, value: Fixed, _: Others) -> Fixed:
    """A Cast between floats that keeps every value keeps the source; others make a new, deterministic one."""
    target = shapes.cast_type(node)
    if value.param is not None and shapes.widens(value.element, target):
        return Fixed(value.name, value.values, target, value.param, value.uncertain)
    if value.uncertain or (value.param is not None and value.param.slack is not None):
        raise unsupported(node, f"{value.name!r} cannot be cast to {target} without rounding")
    if value.param is None:
        return graph.constant(node.output[0], evaluate_node(node, graph.opset, [value.values]))
    return graph.constant(node.output[0], value.values.astype(value.element).astype(target))


def _float(
    graph: Builder,
    node: NodeProto,
    inputs: Sequence[Fixed | None],
    given: Sequence[Fixed],
    converter: OperatorRow | None,
) -> Fixed:
    """The constant that an operator makes of float constants, with its rounding error; refuses uncertain ones."""
    uncertain = [value for value in given if value.uncertain]
    floats = all(value.param is not None for value in given)
    if uncertain and node.op_type == "Mul" and len(given) == 2 and floats:
        return graph.times(*given)
    if uncertain and node.op_type == "Neg":
        return graph.negated(given[0])
    if uncertain:
        message = f"changes the weight {uncertain[0].weight.source!r}, which has a posterior, before it is used"
        raise unsupported(node, f"{message}; attach the posterior to the tensor that is used")
    exact = all(value.known for value in given)
    if node.op_type in _COMPARISONS:
        if not exact or any((value.values.astype(value.element) != value.values).any() for value in given):
            raise unsupported(node, f"{node.op_type} of constants that are not exact numbers depends on rounding")
        return graph.constant(node.output[0], evaluate_node(node, graph.opset, [value.values for value in given]))
    ball = _ball(graph, node, inputs, given, converter)
    element = next((value.element for value in given if value.param is not None), given[0].element)
    if (np.abs(ball.mid) > np.finfo(element if element.kind == "f" else np.float32).max).any():
        raise inconsistent(node, f"overflows {element}: its value is not finite in the file's own type")
    return graph.derived(node.output[0], ball, element)


def _ball(
    graph: Builder,
    node: NodeProto,
    inputs: Sequence[Fixed | None],
    given: Sequence[Fixed],
    converter: OperatorRow | None,
) -> Ball:
    """The value of a node of deterministic constants, in the exactest way that there is for its operator."""
    floats = all(value.param is not None for value in given)
    if node.op_type in _PICKS and all(value.known for value in given):
        return Ball(evaluate_node(node, graph.opset, [None if value is None else value.values for value in inputs]))
    if node.op_type == "Concat" and floats:
        axis = attribute(node, "axis", 0)
        slack = np.concatenate([np.zeros(v.shape) if v.weight.slack is None else v.weight.slack for v in given], axis)
        return Ball(np.concatenate([v.values for v in given], axis), slack if slack.any() else None)
    if node.op_type in _ARITHMETIC and floats:
        return _ARITHMETIC[node.op_type](*(value.ball for value in given))
    if converter is None:
        raise unsupported(node, f"{node.op_type} of constant floats is not supported; simplify the model first")
    return _enclosed(graph, node, inputs, _power if node.op_type == "Pow" else converter)


def _enclosed(graph: Builder, node: NodeProto, inputs: Sequence[Fixed | None], converter: OperatorRow) -> Ball:
    """Any operator of the table, of deterministic constants.

    Method: the operator becomes the nodes that it would become behind an input, its first float operand a node without
    predecessors, and these are bounded by the interval rules of the engine, over a box that is one point up to the
    slack of the constants.
    Guarantee: the ball holds the operator's value in real arithmetic for all values of the operands within their slack,
    because each rule encloses its node for all values of its operands in their intervals, rounding included, and the
    composition of enclosures is one. With lower <= value <= upper, |value - mid| <= max(upper - mid, mid - lower) for
    any mid; each difference is rounded once, which `UP` covers.
    """
    import torch

    from bnn_vnnlib.bounds.interval import RULES, Interval
    from bnn_vnnlib.bounds.weights import WeightBoxes

    aside = Builder(graph.opset)
    aside.sources = dict(graph.sources)
    name, operands = label(node), list[Value | None](inputs)
    place = next((i for i, value in enumerate(inputs) if value is not None and value.param is not None), None)
    if place is None:
        raise unsupported(node, f"{node.op_type} of constant integers is not supported; simplify the model first")
    operands[place] = aside.branch(name, typed(Fixed, inputs[place]))
    result = converter(aside, node, operands)
    end = aside.branch(name, result[0] if isinstance(result, tuple) else result)
    used = {param.source for step in aside.nodes for param in network_nodes.params_of(step)}
    centers = {source: torch.from_numpy(aside.sources[source])[None] for source in used}
    box = WeightBoxes(centers, {}, torch.zeros(1, 1, dtype=torch.float64, device="cpu"))
    found: list[Interval] = []
    for step in aside.nodes:
        found.append(RULES[type(step)](step, box, *(found[i] for i in step.inputs))[0])
    lower, upper = (side[0, 0].numpy() for side in (found[end.position].lower, found[end.position].upper))
    with np.errstate(all="ignore"):  # what is not finite is refused by whoever makes a constant of it
        mid = lower / 2 + upper / 2
        rad = np.maximum(upper - mid, mid - lower) * balls.UP
    return Ball(np.array(mid), np.array(rad) if rad.any() else None)


def _power(graph: Builder, node: NodeProto, inputs: Sequence[Value | None]) -> Value:
    """base^exponent, entry by entry: exp(exponent log base), or the operator's own way where it has one."""
    base, exponent = graph.branch(label(node), typed(Value, inputs[0])), inputs[1]
    if not isinstance(exponent, Fixed) or exponent.param is None or exponent.values.size == 1:
        return elementwise.power(graph, node, inputs)
    logarithm = graph.activation(label(node), base, "log")
    return graph.activation(label(node), graph.scale(label(node), logarithm, exponent), "exp")


def _dequantized(graph: Builder, node: NodeProto, quantized: Fixed, others: Others) -> Fixed:
    """(quantized - zero) * scale: one scale and zero point for the tensor, each entry of an axis, or each block of it.

    The scale may carry a posterior: it is multiplied by integers, exactly.
    """
    scale, zero = (*others, None, None)[:2]
    integers = quantized.param is None and quantized.values.dtype.name.removeprefix("u").startswith("int")
    if scale is None or scale.param is None or not integers:
        raise unsupported(node, "only integers with a floating-point scale can be dequantized")
    steps = quantized.values.astype(np.int64)
    axis, block = attribute(node, "axis", 1), attribute(node, "block_size", 0)

    def spread(array: NDArray[Any]) -> NDArray[Any]:
        """Scale or zero point, one for each entry of the tensor."""
        if array.size == 1:
            return np.broadcast_to(array.reshape(()), steps.shape)
        place = shapes.normal_axis(node, axis, steps.ndim)
        before, size, behind = steps.shape[:place], steps.shape[place], steps.shape[place + 1 :]
        expected = (*before, -(-size // block), *behind) if block > 0 else (size,)
        if block < 0 or array.shape != expected:
            message = f"scale or zero point of shape {array.shape}, expected {expected} or one number"
            raise inconsistent(node, f"{message} for a tensor of shape {steps.shape} and axis {axis}")
        if block:
            return np.repeat(array, block, place)[(slice(None),) * place + (slice(size),)]
        return np.broadcast_to(array.reshape(-1, *(1,) * len(behind)), steps.shape)

    if zero is not None:
        if zero.values.dtype != quantized.values.dtype or zero.shape != scale.shape:
            raise inconsistent(node, "the zero point must have the type of the tensor and the shape of the scale")
        steps = steps - spread(zero.values).astype(np.int64)
    factor = graph.derived(f"{node.output[0]}.steps", Ball(steps.astype(np.float64)), scale.element)
    return graph.times(scale.moved(spread), factor)


def _chosen(graph: Builder, node: NodeProto, mask: Fixed, a: Fixed, b: Fixed) -> Fixed:
    """The constant that a Where makes of two float constants by a known mask, each entry with its own slack."""
    for value in (a, b):
        graph.certain(value, "a branch of a Where")
    rad = np.where(mask.values, *(0.0 if value.weight.slack is None else value.weight.slack for value in (a, b)))
    ball = Ball(np.where(mask.values, a.values, b.values), rad if rad.any() else None)
    return graph.derived(node.output[0], ball, a.element)


def _size(node: NodeProto, arrays: Sequence[NDArray[Any]]) -> int:
    """How many entries the result will have, at most: a few numbers may ask for a result of any size."""
    match node.op_type:
        case "Range" if len(arrays) == 3 and arrays[2].size == 1 and arrays[2].reshape(-1)[0] != 0:
            start, limit, step = (array.reshape(-1)[0].item() for array in arrays)
            return max(0, math.ceil((limit - start) / step))
        case "OneHot":
            return arrays[0].size * max(int(np.max(arrays[1], initial=0)), 1)
        case "Pad" if len(arrays) > 1:
            amounts = np.maximum(arrays[1].reshape(-1), 0)
            return math.prod(size + int(amounts.sum(dtype=object)) for size in arrays[0].shape)
        case "Concat":
            return sum(array.size for array in arrays)
        case _ if node.op_type in _ELEMENTWISE:
            return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    return 0


def _refuse_large(node: NodeProto, size: int, operands: Sequence[Fixed]) -> None:
    """Refuse a result of many entries that is larger than each operand: small files make those, one after the other."""
    if not 0 <= size <= max(_GROWN, *(operand.values.size for operand in operands)):
        raise inconsistent(node, f"would make a constant of {size} entries")


_WHATEVER: dict[str, Callable[[Builder, NodeProto, Fixed, Others], Fixed]] = {
    "Identity": lambda graph, node, value, _: value,
    "Dropout": _dropped,
    "DequantizeLinear": _dequantized,
    "ConstantOfShape": _filled,
    "Cast": _cast,
    **dict.fromkeys(MOVES, _move),
}
"""Operators that are folded whatever the type of their first operand."""
