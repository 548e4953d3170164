"""The closed set of nodes that a network is made of.

Every node has the ONNX shape of its output, the batch dimension of the file included (usually a leading 1), so that
Reshape, Transpose and Flatten mean here exactly what they mean in the file. The bound engine adds its own leading
dimensions in front.

Weights are referred to, never copied: a `Param` says which entries of which source tensor a node uses and by which
factor. That is how the variance (or the samples) of a weight follows every transposition, reshape, alpha/beta, fused
constant and sharing: whatever tensor of the source's shape is put in (mean, standard deviation, sample, bound), the
same indices and factors apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Param:
    """A node's parameter: value = factor * source.ravel()[index], up to an absolute error of `slack`.

    Attributes
    ----------
    source : key into `Network.tensors`
    index : integer array of the parameter's shape, flat indices into the source
    factor : scalar or array that broadcasts to the parameter's shape; exact unless `slack` says otherwise
    slack : nonnegative array of the parameter's shape, or None (= exact): absolute error of the factor times the
        mean, where a constant of the file had to be rounded (1/9, 1/sqrt(var + eps)). Only for deterministic sources.
    """

    source: str
    index: NDArray[np.int64]
    factor: NDArray[np.float64]
    slack: NDArray[np.float64] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter as the node uses it."""
        return self.index.shape

    @cached_property
    def whole(self) -> bool:
        """The source as it is, up to its shape."""
        flat = self.index.reshape(-1)
        return bool(np.all(self.factor == 1) and np.array_equal(flat, np.arange(len(flat))))

    @cached_property
    def copies(self) -> int:
        """How often the most used entry of the source appears; 1 unless the weight was tiled or gathered."""
        return int(np.unique(self.index, return_counts=True)[1].max(initial=1))


@dataclass(frozen=True, eq=False)
class Node:
    """Common to all nodes: `name` is the ONNX node (for messages), `inputs` index earlier nodes."""

    name: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Input(Node):
    """Slice [start, start + size) of the flattened input vector, reshaped to `shape`. No predecessors."""

    start: int


@dataclass(frozen=True, eq=False)
class Constant(Node):
    """A deterministic tensor that takes part in the graph as a branch (e.g. in Concat). No predecessors."""

    value: Param


@dataclass(frozen=True, eq=False)
class Linear(Node):
    """Contracts `axis` (>= 0) of its input with a weight (out, in): y[.., o, ..] = sum_i W[o, i] x[.., i, ..]."""

    weight: Param
    axis: int


@dataclass(frozen=True, eq=False)
class Conv(Node):
    """2-d convolution of (B, C, H, W) without bias; weight (O, C / groups, kh, kw).

    pads = (top, left, bottom, right), zero padding.
    """

    weight: Param
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    groups: int


@dataclass(frozen=True, eq=False)
class Scale(Node):
    """Elementwise product with a parameter that broadcasts to the input's shape."""

    weight: Param


WeightedMap = Linear | Conv | Scale
"""Linear maps with a weight."""


@dataclass(frozen=True, eq=False)
class Shift(Node):
    """Elementwise sum with a parameter that broadcasts to the input's shape."""

    bias: Param


ActivationKind = Literal[
    "abs", "atan", "clip", "cos", "elu", "erf", "exp", "gelu", "gelu_tanh", "hard_swish", "leaky_relu", "log", "power",
    "prelu", "reciprocal", "relu", "sigmoid", "sign", "silu", "sin", "softplus", "softsign", "sqrt", "tanh",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Activation(Node):
    """Elementwise nonlinearity.

    `alpha` is the slope of leaky_relu (in [0, 1]), the slope of prelu (a number or an array that broadcasts to the
    shape), the parameter of elu, the exponent of power (an integer >= 2), c in z/2 (1 + erf(c z)) for gelu, (low, high)
    for clip; else 0.
    """

    kind: ActivationKind
    alpha: float | tuple[float, float] | NDArray[np.float64] = 0.0


GAPS: tuple[ActivationKind, ...] = (
    "abs", "atan", "clip", "cos", "erf", "gelu", "gelu_tanh", "hard_swish", "leaky_relu", "relu", "sigmoid", "silu",
    "sin", "softplus", "softsign", "tanh",
)  # fmt: skip
"""Activations of which slopes are known, so that a `Gap` says more than two ranges do."""


@dataclass(frozen=True, eq=False)
class Gap(Node):
    """f(x) - f(y) of one activation f at two places.

    The inputs are x, y, x - y, f(x), f(y), all of the output's shape: five nodes, so that a bound may rest on whichever
    of them is known best.

    `quotient`: all is divided by a number t in (0, 1]: the third input is (x - y) / t, the output (f(x) - f(y)) / t,
    and the last two inputs are left out. It is evaluated for a small t; bounds hold for all t.
    """

    kind: ActivationKind
    alpha: float | tuple[float, float] | NDArray[np.float64] = 0.0
    quotient: bool = False


@dataclass(frozen=True, eq=False)
class Known(Node):
    """Its input, which the question keeps in [lower, upper] (arrays of the shape; ends may be infinite)."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Product(Node):
    """Elementwise product of two inputs of the output's shape."""


@dataclass(frozen=True, eq=False)
class Max(Node):
    """Maximum over the last axis of the input."""


@dataclass(frozen=True, eq=False)
class Sum(Node):
    """signs[0] * first input + signs[1] * second input + ...; all inputs have the output's shape."""

    signs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Reshape(Node):
    """The elements of the input, in row-major order, in another shape."""


@dataclass(frozen=True, eq=False)
class Transpose(Node):
    """numpy.transpose with `perm`."""

    perm: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Broadcast(Node):
    """numpy.broadcast_to(input, shape)."""


@dataclass(frozen=True, eq=False)
class Concat(Node):
    """numpy.concatenate along `axis` (>= 0)."""

    axis: int


@dataclass(frozen=True, eq=False)
class Select(Node):
    """y = x.ravel()[index], or 0 where the index is -1; index has the output's shape."""

    index: NDArray[np.int64]

    @cached_property
    def copies(self) -> int:
        """How often the most used entry of the input appears."""
        used = self.index[self.index >= 0]
        return int(np.unique(used, return_counts=True)[1].max(initial=1))


def params_of(node: Node) -> list[Param]:
    """The parameters of a node (none or one)."""
    match node:
        case Linear() | Conv() | Scale():
            return [node.weight]
        case Shift():
            return [node.bias]
        case Constant():
            return [node.value]
    return []
