"""One small network for each node type and use that the bounds must survive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from bnn_vnnlib.model import Network
from bnn_vnnlib.network.nodes import Param
from support import exact
from support.networks import Builder

Piece = Callable[[Builder, int], int]
"""Adds the nodes under test behind a node and returns the last one."""

IMAGE = (1, 2, 5, 4)
PLAIN = (
    "abs", "softplus", "silu", "gelu_tanh", "erf", "atan", "softsign", "exp", "sin", "cos", "hard_swish", "sign",
)  # fmt: skip

PIECES: dict[str, tuple[tuple[int, ...], Piece]] = {
    "linear": ((1, 4), lambda b, x: b.linear(x, (3, 4))),
    "linear_shift": ((1, 4), lambda b, x: b.shift(b.linear(x, (3, 4)), (1, 3))),
    "linear_shift_scalar": ((1, 4), lambda b, x: b.shift(b.linear(x, (3, 4)), ())),
    "linear_vector": ((4,), lambda b, x: b.shift(b.linear(x, (3, 4), axis=0), (3,))),
    "linear_left": ((3, 1), lambda b, x: b.shift(b.linear(x, (2, 3), axis=0), (2, 1))),
    "linear_left_matrix": ((3, 2), lambda b, x: b.linear(x, (4, 3), axis=0)),
    "linear_middle": ((2, 3, 2), lambda b, x: b.shift(b.linear(x, (2, 3), axis=1), (2, 1))),
    "linear_last_of_three": ((1, 2, 3), lambda b, x: b.shift(b.linear(x, (2, 3), axis=2), (2,))),
    "conv": (IMAGE, lambda b, x: b.conv(x, (3, 2, 3, 2))),
    "conv_bias": (IMAGE, lambda b, x: b.shift(b.conv(x, (3, 2, 3, 2)), (3, 1, 1))),
    "conv_pads": (IMAGE, lambda b, x: b.conv(x, (2, 2, 3, 3), pads=(1, 2, 0, 1))),
    "conv_strides": (IMAGE, lambda b, x: b.conv(x, (2, 2, 2, 3), strides=(2, 1), pads=(0, 0, 1, 0))),
    "conv_unread": (IMAGE, lambda b, x: b.conv(x, (2, 2, 2, 2), strides=(2, 3))),
    "conv_dilations": (IMAGE, lambda b, x: b.conv(x, (1, 2, 2, 2), dilations=(3, 2), pads=(1, 0, 1, 0))),
    "conv_groups": (IMAGE, lambda b, x: b.conv(x, (4, 1, 2, 2), groups=2, strides=(2, 2))),
    "conv_depthwise": (IMAGE, lambda b, x: b.conv(x, (2, 1, 3, 3), groups=2, pads=(1, 1, 1, 1), dilations=(1, 2))),
    "conv_batch": ((2, 1, 3, 3), lambda b, x: b.conv(x, (2, 1, 2, 2))),
    "scale_scalar": ((2, 3), lambda b, x: b.scale(x, ())),
    "scale_vector": ((2, 3), lambda b, x: b.scale(x, (3,))),
    "scale_full": ((2, 3), lambda b, x: b.scale(x, (2, 3))),
    "scale_column": ((2, 3), lambda b, x: b.scale(x, (2, 1))),
    "shift_scalar": ((2, 3), lambda b, x: b.shift(x, ())),
    "shift_vector": ((2, 3), lambda b, x: b.shift(x, (3,))),
    "shift_column": ((2, 3), lambda b, x: b.shift(x, (2, 1))),
    "shift_full": ((2, 3), lambda b, x: b.shift(x, (2, 3))),
    "constant": ((2, 3), lambda b, x: b.concat(x, b.constant((1, 3)), axis=0)),
    "constant_sum": ((2, 3), lambda b, x: b.sum(b.constant((2, 3)), x, signs=(1, -1))),
    "constant_slack": ((2, 3), lambda b, x: b.sum(x, b.constant((2, 3), 1 / 3, np.full((2, 3), 1e-3)))),
    "relu": ((2, 3), lambda b, x: b.activation(x)),
    "leaky_relu_0": ((2, 3), lambda b, x: b.activation(x, "leaky_relu", 0.0)),
    "leaky_relu_.1": ((2, 3), lambda b, x: b.activation(x, "leaky_relu", 0.1)),
    "leaky_relu_1": ((2, 3), lambda b, x: b.activation(x, "leaky_relu", 1.0)),
    "leaky_relu_2": ((2, 3), lambda b, x: b.activation(x, "leaky_relu", 2.0)),
    "tanh": ((2, 3), lambda b, x: b.activation(x, "tanh")),
    "sigmoid": ((2, 3), lambda b, x: b.activation(x, "sigmoid")),
    **{kind: ((2, 3), partial(Builder.activation, kind=kind)) for kind in PLAIN},
    "clip": ((2, 3), lambda b, x: b.activation(x, "clip", (-0.25, 0.5))),
    "clip_below": ((2, 3), lambda b, x: b.activation(x, "clip", (-0.25, np.inf))),
    "prelu": ((2, 3), lambda b, x: b.activation(x, "prelu", np.array([[0.25, -0.5, 2.0]]))),
    "elu_.5": ((2, 3), lambda b, x: b.activation(x, "elu", 0.5)),
    "elu_2": ((2, 3), lambda b, x: b.activation(x, "elu", 2.0)),
    "gelu": ((2, 3), lambda b, x: b.activation(x, "gelu", exact.GELU)),
    "gelu_1": ((2, 3), lambda b, x: b.activation(x, "gelu", 1.0)),
    "power_2": ((2, 3), lambda b, x: b.activation(x, "power", 2)),
    "power_3": ((2, 3), lambda b, x: b.activation(x, "power", 3)),
    "sqrt": ((2, 3), lambda b, x: b.activation(b.shift(b.activation(x, "abs"), np.array(0.5)), "sqrt")),
    "log": ((2, 3), lambda b, x: b.activation(b.shift(b.activation(x, "abs"), np.array(0.5)), "log")),
    "reciprocal": ((2, 3), lambda b, x: b.activation(b.shift(b.activation(x, "abs"), np.array(0.5)), "reciprocal")),
    "reciprocal_below": ((2, 3), lambda b, x: b.activation(b.activation(x, "clip", (-2.0, -0.75)), "reciprocal")),
    "product": ((2, 3), lambda b, x: b.product(b.scale(x, (3,)), b.shift(x, (2, 1)))),
    "product_itself": ((2, 3), lambda b, x: b.product(x, x)),
    "product_constant": ((2, 3), lambda b, x: b.product(b.constant((2, 3)), x)),
    "max": ((2, 4), lambda b, x: b.maximum(x)),
    "max_one": ((2, 1), lambda b, x: b.maximum(x)),
    "max_all": ((5,), lambda b, x: b.maximum(b.scale(x, (5,)))),
    "max_image": ((1, 2, 3, 4), lambda b, x: b.maximum(x)),
    "max_apart": ((2, 3), lambda b, x: b.maximum(b.shift(x, b.param(np.array([0.0, 9.0, 1.0]))))),
    "select": ((2, 3), lambda b, x: b.scale(b.select(x, [[5, 0], [3, 1]]), (2,))),
    "select_padded": ((2, 3), lambda b, x: b.scale(b.select(x, [[-1, 5, -1], [0, -1, 2]]), (3,))),
    "select_repeated": ((2, 3), lambda b, x: b.linear(b.select(x, [[1, 1, 0], [1, 4, 4]]), (2, 3))),
    "sum_signs": ((2, 3), lambda b, x: b.sum(b.scale(x, ()), x, b.scale(x, (3,)), signs=(-1, 1, -1))),
    "sum_one": ((2, 3), lambda b, x: b.sum(x, signs=(-1,))),
    "sum_itself": ((2, 3), lambda b, x: b.sum(x, x, signs=(1, 1))),
    "difference_itself": ((2, 3), lambda b, x: b.sum(x, b.shift(x, (3,)), signs=(1, -1))),
    "reshape": ((2, 3), lambda b, x: b.linear(b.reshape(x, 3, 2), (2, 2))),
    "transpose": ((2, 3, 2), lambda b, x: b.scale(b.transpose(x, 2, 0, 1), (3,))),
    "transpose_twice": ((2, 3, 2), lambda b, x: b.linear(b.transpose(b.transpose(x, 1, 2, 0), 2, 1, 0), (2, 3))),
    "broadcast_axis": ((2, 1), lambda b, x: b.scale(b.broadcast(x, 2, 3), (2, 3))),
    "broadcast_lead": ((3,), lambda b, x: b.scale(b.broadcast(x, 2, 2, 3), (2, 1, 3))),
    "concat": ((2, 3), lambda b, x: b.concat(b.scale(x, (3,)), x, b.shift(x, (2, 1)), axis=1)),
    "factor": ((1, 4), lambda b, x: b.scale(x, b.param((4,), factor=1 / 3))),
    "factor_array": ((1, 4), lambda b, x: b.linear(x, b.param((3, 4), factor=b.rng.normal(size=(3, 1))))),
    "factor_sign": ((1, 4), lambda b, x: b.shift(x, b.param((4,), factor=-1.0))),
    "slack": ((1, 4), lambda b, x: b.linear(x, b.param((3, 4), 1 / 7, np.full((3, 4), 1e-3)))),
    "slack_shift": ((1, 4), lambda b, x: b.shift(x, b.param((4,), 1 / 7, np.full(4, 1e-3)))),
    "slack_scale": ((1, 4), lambda b, x: b.scale(x, b.param((1, 4), 1 / 7, np.full((1, 4), 1e-3)))),
}  # fmt: skip


def bare(name: str) -> Network:
    """The piece alone."""
    shape, piece = PIECES[name]
    builder = Builder()
    return builder.network(piece(builder, builder.input(*shape)))


def sandwiched(name: str, kind: str = "relu") -> Network:
    """The piece between layers with activations, so that its input and its output are hidden."""
    shape, piece = PIECES[name]
    builder = Builder(1)
    x = builder.shift(builder.scale(builder.input(*shape), shape), shape)
    x = piece(builder, builder.activation(x, kind))
    x = builder.activation(x, "leaky_relu", 0.1)
    x = builder.reshape(x, 1, int(np.prod(builder.shape(x))))
    return builder.network(builder.dense(x, 2))


def residual() -> Network:
    """Two blocks with a skip; the middle node is used three times and is an output as well."""
    b = Builder(2)
    x = b.dense(b.input(1, 3), 4, "relu")
    y = b.sum(x, b.dense(b.dense(x, 3, "relu"), 4))
    z = b.sum(b.dense(b.activation(y, "tanh"), 4), y, b.scale(y, (4,)), signs=(1, -1, 1))
    return b.network(b.dense(b.activation(z), 2), y)


def tied() -> Network:
    """One matrix used as it is, transposed, and negated; one bias entry for all."""
    b = Builder(3)
    weight, bias = b.param((3, 4)), b.param((1,))
    transposed = Param(weight.source, weight.index.T.copy(), np.asarray(-1.0))
    first = b.activation(b.shift(b.linear(b.input(1, 4), weight), bias))
    second = b.activation(b.shift(b.linear(first, transposed), bias))
    return b.network(b.linear(second, weight))


def shared_source() -> Network:
    """A Linear and a Shift that read different rows of one tensor in a different order."""
    b = Builder(4)
    whole = b.param((4, 3))
    matrix = Param(whole.source, whole.index[[2, 0, 2]], np.asarray(1.0))
    x = b.shift(b.linear(b.input(1, 3), matrix), Param(whole.source, whole.index[3], np.asarray(0.5)))
    return b.network(b.linear(b.activation(x), matrix))


def several() -> Network:
    """Three inputs of different shapes and four outputs, one of them an input and one listed twice."""
    b = Builder(5)
    x, y, z = b.input(1, 2), b.input(2, 1), b.input(3)
    joined = b.concat(x, b.reshape(y, 1, 2), b.reshape(z, 1, 3))
    hidden = b.dense(joined, 4, "sigmoid")
    out = b.dense(b.sum(hidden, b.dense(x, 4)), 2)
    return b.network(out, y, hidden, out)


def scalar_output() -> Network:
    """Output of shape (): one number without axes."""
    b = Builder(6)
    x = b.linear(b.dense(b.input(1, 3), 3, "relu"), (1, 3))
    return b.network(b.activation(b.shift(b.reshape(x), ()), "tanh"))


def only_constant() -> Network:
    """The output does not depend on the input."""
    b = Builder(7)
    b.input(1, 2)
    return b.network(b.activation(b.shift(b.constant((1, 3)), (3,)), "relu"))


def identity() -> Network:
    """The output is the input."""
    b = Builder(8)
    return b.network(b.input(1, 3))


def deep_conv() -> Network:
    """Convolutions, a skip, and a dense head."""
    b = Builder(9)
    x = b.activation(b.shift(b.conv(b.input(1, 1, 4, 4), (2, 1, 3, 3), pads=(1, 1, 1, 1)), (2, 1, 1)))
    y = b.sum(x, b.shift(b.conv(x, (2, 2, 3, 3), pads=(1, 1, 1, 1)), (2, 1, 1)))
    z = b.activation(b.conv(b.activation(y), (2, 1, 2, 2), strides=(2, 2), groups=2))
    return b.network(b.dense(b.reshape(z, 1, 8), 2))


GRAPHS: dict[str, Callable[[], Network]] = {
    "residual": residual,
    "tied": tied,
    "shared_source": shared_source,
    "several": several,
    "scalar_output": scalar_output,
    "only_constant": only_constant,
    "identity": identity,
    "deep_conv": deep_conv,
    **{f"{name}_alone": lambda name=name: bare(name) for name in PIECES},
    **{f"{name}_inside": lambda name=name: sandwiched(name) for name in PIECES},
}
