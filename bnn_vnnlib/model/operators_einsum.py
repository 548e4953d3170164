"""Einsum of two operands where it is a matrix product, up to transpositions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from onnx import NodeProto

from bnn_vnnlib.model.attributes import attribute, inconsistent, label, unsupported
from bnn_vnnlib.model.builder import Builder
from bnn_vnnlib.model.operators_linear import contracted
from bnn_vnnlib.model.operators_shape import Inputs, variable
from bnn_vnnlib.model.values import Constant, Value, Variable

_TERM = r"([A-Za-z]*(?:\.\.\.)?[A-Za-z]*)"
_EQUATION = re.compile(rf"{_TERM},{_TERM}(?:->{_TERM})?")

Axes = tuple[str, ...]
"""One name for each axis."""


def einsum(graph: Builder, node: NodeProto, inputs: Inputs) -> Value:
    """Sum over the axes that both operands have and the result has not.

    The axes are sorted into common ones (both operands and the result), left and right ones (one operand and the
    result) and summed ones (both operands): with these four groups made one axis each, the result is
    y[c, l, r] = sum_s a[c, l, s] b[c, r, s]. A constant operand is only moved, so that its posterior follows.
    """
    operands: list[Value] = [
        value if isinstance(value, Constant) else variable(graph, node, inputs, i) for i, value in enumerate(inputs)
    ]
    given, result = _axes(node, [operand.shape for operand in operands])
    sizes = _sizes(node, operands, given)
    if isinstance(operands[0], Constant):  # b a, then: the sum is symmetric
        operands, given = operands[::-1], given[::-1]
    (a, b), (of_a, of_b) = operands, given
    common = [axis for axis in of_a if axis in of_b and axis in result]
    summed = [axis for axis in of_a if axis in of_b and axis not in result]
    left, right = ([axis for axis in own if axis not in (*common, *summed)] for own in (of_a, of_b))
    if not set(left + right) <= set(result):
        raise unsupported(node, "sums over an axis that only one operand has; only a matrix product is supported")
    name, counts = label(node), [math.prod(sizes[axis] for axis in group) for group in (common, left, right, summed)]
    c, l, r, s = counts  # noqa: E741
    x = _grouped(graph, name, variable(graph, node, [a]), of_a, common + left + summed, (c, l, s))
    if isinstance(b, Constant) and not common:
        weight = b.moved(lambda array: array.transpose([of_b.index(axis) for axis in right + summed]).reshape(r, s))
        y = graph.linear(name, x, weight, 2)
    elif isinstance(b, Constant) and not right and not summed:
        weight = b.moved(lambda array: array.transpose([of_b.index(axis) for axis in common]).reshape(c, 1, 1))
        y = graph.scale(name, x, weight)
    elif isinstance(b, Constant):
        raise unsupported(node, "a stack of matrices as the constant is not supported")
    else:
        y = contracted(graph, node, x, _grouped(graph, name, b, of_b, common + summed + right, (c, s, r)))
    y = graph.reshape(name, y, tuple(sizes[axis] for axis in common + left + right))
    perm = tuple((common + left + right).index(axis) for axis in result)
    return y if perm == tuple(range(len(perm))) else graph.transpose(name, y, perm)


def _grouped(
    graph: Builder, name: str, x: Variable, axes: Axes, order: Sequence[str], shape: tuple[int, ...]
) -> Variable:
    perm = tuple(axes.index(axis) for axis in order)
    moved = x if perm == tuple(range(len(perm))) else graph.transpose(name, x, perm)
    return graph.reshape(name, moved, shape)


def _axes(node: NodeProto, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Axes], Axes]:
    """Names of the axes of both operands and of the result; those of an ellipsis are counted from its end."""
    equation = attribute(node, "equation", "").replace(" ", "")
    found = _EQUATION.fullmatch(equation)
    if found is None or len(shapes) != 2:
        raise unsupported(node, f"equation {equation!r}: only products of two operands are supported")
    given = []
    for term, shape in zip(found.groups()[:2], shapes, strict=True):
        letters, hidden = term.replace("...", ""), "..." in term
        rank = len(shape) - len(letters)
        if rank < 0 or (rank and not hidden):
            raise inconsistent(
                node, f"equation {equation!r} does not fit operands of shape {shapes[0]} and {shapes[1]}"
            )
        before = term.index("...") if hidden else len(letters)
        given.append((*letters[:before], *(f"...{i}" for i in reversed(range(rank))), *letters[before:]))
    dots = max(([axis for axis in axes if "." in axis] for axes in given), key=len)
    letters = [axis for axes in given for axis in axes if "." not in axis]
    term = found[3]
    if dots and term is not None and "..." not in term:
        raise inconsistent(node, f"equation {equation!r}: the axes of the ellipsis are missing in the result")
    if term is None:
        result = (*dots, *sorted(axis for axis in set(letters) if letters.count(axis) == 1))
    else:
        before = term.index("...") if "..." in term else len(term)
        result = (*term[:before], *(dots if "..." in term else ()), *term[before:].replace("...", ""))
    repeated = any(len(set(axes)) < len(axes) for axes in (*given, result))
    if repeated or not set(result) <= {axis for axes in given for axis in axes}:
        raise unsupported(node, f"equation {equation!r}: an axis that is repeated (a diagonal) or is in no operand")
    return given, result


def _sizes(node: NodeProto, operands: Sequence[Value], given: Sequence[Axes]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for operand, axes in zip(operands, given, strict=True):
        for axis, size in zip(axes, operand.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise unsupported(node, f"axis {axis!r} has the sizes {sizes[axis]} and {size}; they must be equal")
    return sizes
