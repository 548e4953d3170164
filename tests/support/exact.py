"""The network in exact arithmetic: slow, simple, and independent of the engine's own maps.

Numbers are `fractions.Fraction`, or mpmath's where the network has smooth activations (300 bits: exact enough to judge
a float64 bound).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.model import Network
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.nodes import Param

Exact = NDArray[Any]
BITS = 300


def fractions(values: Any) -> Exact:
    """An array of float64 as exact fractions."""
    array = np.asarray(values, dtype=np.float64)
    return np.array([Fraction(float(v)) for v in array.ravel()], dtype=object).reshape(array.shape)


def evaluate(
    network: Network, x: Exact, sources: Mapping[str, Exact], slack: Callable[[Param], Exact] | None = None
) -> Exact:
    """Outputs, flattened and joined, at a flat input and source tensors of exact numbers.

    slack : error to add to a parameter, for those that have any
    """

    def value(param: Param) -> Exact:
        source = np.asarray(sources[param.source], dtype=object).ravel()
        factor = fractions(np.broadcast_to(param.factor, param.shape))
        entries = np.asarray(source[param.index] * factor, dtype=object)
        return entries if slack is None or param.slack is None else entries + slack(param)

    with mpmath.workprec(BITS):
        values: list[Exact] = []
        for node in network.nodes:
            # arithmetic on arrays without axes returns bare numbers
            values.append(np.asarray(_node(node, [values[i] for i in node.inputs], x, value), dtype=object))
            if values[-1].shape != node.shape:
                raise ValueError(f"node {node.name}: shape {values[-1].shape}, declared {node.shape}")
        return np.concatenate([values[i].ravel() for i in network.outputs])


def _node(node: nodes.Node, xs: list[Exact], x: Exact, value: Callable[[Param], Exact]) -> Exact:
    match node:
        case nodes.Input():
            return x[node.start : node.start + math.prod(node.shape)].reshape(node.shape)
        case nodes.Constant():
            return value(node.value)
        case nodes.Linear():
            return np.moveaxis(np.tensordot(value(node.weight), xs[0], axes=(1, node.axis)), 0, node.axis)
        case nodes.Conv():
            return _convolve(node, value(node.weight), xs[0])
        case nodes.Scale():
            return xs[0] * value(node.weight)
        case nodes.Shift():
            return xs[0] + value(node.bias)
        case nodes.Activation():
            return elementwise(node.kind, node.alpha, xs[0])
        case nodes.Gap():
            if node.quotient:
                raise TypeError("a quotient has no value of its own")
            ends = [np.asarray(elementwise(node.kind, node.alpha, z), dtype=object) for z in xs[:2]]
            return ends[0] - ends[1]
        case nodes.Known():
            return xs[0]
        case nodes.Sum():
            return np.sum([sign * z for sign, z in zip(node.signs, xs, strict=True)], axis=0)
        case nodes.Reshape():
            return xs[0].reshape(node.shape)
        case nodes.Transpose():
            return xs[0].transpose(node.perm)
        case nodes.Broadcast():
            return np.broadcast_to(xs[0], node.shape)
        case nodes.Product():
            return xs[0] * xs[1]
        case nodes.Max():
            return xs[0].max(-1)
        case nodes.Select():
            return np.array([*xs[0].ravel(), Fraction(0)], dtype=object)[node.index]
        case nodes.Concat():
            return np.concatenate(xs, node.axis)
    raise TypeError(type(node))


def at_most(left: Any, right: Any) -> bool:
    """left <= right, for exact numbers of either kind."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left <= right
    with mpmath.workprec(BITS):
        return bool(_mpf(left) <= _mpf(right))


def _mpf(z: Any) -> Any:
    return mpmath.mpf(z.numerator) / z.denominator if isinstance(z, Fraction) else z


def elementwise(kind: str, alpha: Any, z: Exact) -> Exact:
    """An activation of exact numbers; an array of slopes (prelu) broadcasts."""
    if isinstance(alpha, np.ndarray):
        slopes = np.broadcast_to(alpha, z.shape).ravel()
        return np.array(
            [scalar(kind, float(a), v) for a, v in zip(slopes, z.ravel(), strict=True)], dtype=object
        ).reshape(z.shape)
    return np.array([scalar(kind, alpha, v) for v in z.ravel()], dtype=object).reshape(z.shape)


def scalar(kind: str, alpha: Any, z: Any) -> Any:
    """An activation of one exact number; stays a fraction where it can."""
    if kind in PIECEWISE:
        return PIECEWISE[kind](alpha, z if isinstance(z, Fraction) else _mpf(z))
    return SMOOTH[kind](alpha, _mpf(z))


def _gate(z: Any, inner: Any) -> Any:
    return z / (1 + mpmath.exp(-inner))


def _gelu(alpha: Any, z: Any) -> Any:
    c = 1 / mpmath.sqrt(2) if alpha == GELU else mpmath.mpf(alpha)
    return z / 2 * mpmath.erfc(-c * z)


GELU = 2**-0.5
"""Stands for 1 / sqrt 2, which no float64 is."""
PIECEWISE: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda alpha, z: z if z >= 0 else z * _same(z, alpha),
    "leaky_relu": lambda alpha, z: z if z >= 0 else z * _same(z, alpha),
    "prelu": lambda alpha, z: z if z >= 0 else z * _same(z, alpha),
    "abs": lambda alpha, z: abs(z),
    "sign": lambda alpha, z: _same(z, float((z > 0) - (z < 0))),
    "clip": lambda alpha, z: _clip(z, *alpha),
    "hard_swish": lambda alpha, z: z * _clip(z + 3, 0.0, 6.0) / 6,
    "power": lambda alpha, z: z ** int(alpha),
}
SMOOTH: dict[str, Callable[[Any, Any], Any]] = {
    "tanh": lambda alpha, z: mpmath.tanh(z),
    "sigmoid": lambda alpha, z: 1 / (1 + mpmath.exp(-z)),
    "elu": lambda alpha, z: z if z >= 0 else mpmath.mpf(alpha) * mpmath.expm1(z),
    "softplus": lambda alpha, z: mpmath.log1p(mpmath.exp(z)) if z < 0 else z + mpmath.log1p(mpmath.exp(-z)),
    "silu": lambda alpha, z: _gate(z, z),
    "gelu": _gelu,
    "gelu_tanh": lambda alpha, z: _gate(z, 2 * mpmath.sqrt(2 / mpmath.pi) * (z + mpmath.mpf("0.044715") * z**3)),
    "erf": lambda alpha, z: mpmath.erf(z),
    "atan": lambda alpha, z: mpmath.atan(z),
    "softsign": lambda alpha, z: z / (1 + abs(z)),
    "exp": lambda alpha, z: mpmath.exp(z),
    "log": lambda alpha, z: mpmath.log(z),
    "sqrt": lambda alpha, z: mpmath.sqrt(z),
    "reciprocal": lambda alpha, z: 1 / z,
    "sin": lambda alpha, z: mpmath.sin(z),
    "cos": lambda alpha, z: mpmath.cos(z),
}


def _same(z: Any, number: float) -> Any:
    """The number in the arithmetic of z: fractions and mpmath's numbers do not mix."""
    return Fraction(number) if isinstance(z, Fraction) else mpmath.mpf(number)


def _clip(z: Any, low: float, high: float) -> Any:
    if low > -math.inf:
        z = max(z, _same(z, low))
    return min(z, _same(z, high)) if high < math.inf else z


def _convolve(node: nodes.Conv, weight: Exact, x: Exact) -> Exact:
    top, left, bottom, right = node.pads
    batch, channels, height, width = x.shape
    padded = np.full((batch, channels, height + top + bottom, width + left + right), Fraction(0), dtype=object)
    padded[:, :, top : top + height, left : left + width] = x
    out_channels, depth, kh, kw = weight.shape
    y = np.empty(node.shape, dtype=object)
    for b, o, i, j in itertools.product(*map(range, node.shape)):
        first = o // (out_channels // node.groups) * depth
        rows = slice(i * node.strides[0], i * node.strides[0] + node.dilations[0] * (kh - 1) + 1, node.dilations[0])
        columns = slice(j * node.strides[1], j * node.strides[1] + node.dilations[1] * (kw - 1) + 1, node.dilations[1])
        y[b, o, i, j] = (padded[b, first : first + depth, rows, columns] * weight[o]).sum()
    return y
