"""The network under construction, and what an edge of the ONNX graph can be while it is read.

1. `Value`: an edge is computed, constant, or behind the final Softmax.
2. `Builder`: nodes are appended, constants keep track of their source tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import ModelError, PosteriorError, UnsupportedError
from bnn_vnnlib.model.balls import Ball, ball_product, reciprocal
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.nodes import Node, Param

# 1. Edges


@dataclass(frozen=True)
class Computed:
    """Computed by the node at `position`; `element` is its type in the file."""

    position: int
    shape: tuple[int, ...]
    element: np.dtype[Any]


@dataclass(frozen=True)
class Softmaxed(Computed):
    """Softmax over `axis` of the node at `position`; composed of nodes if the graph goes on behind it."""

    axis: int


@dataclass(frozen=True)
class Compared(Computed):
    """left >= right (or >: the uses that are supported are continuous), entry by entry: no node computes it.

    It may only be the condition of a Where that is a maximum, a LeakyRelu or the like; `Builder.branch` refuses it.
    """

    left: Value
    right: Value


@dataclass(frozen=True, eq=False)
class Fixed:
    """A tensor that no input changes.

    Attributes
    ----------
    name : ONNX name of the value, for messages
    values : float64 for floats (the posterior mean where the weight is uncertain), else the file's own type
    element : type in the file
    param : which entries of which source tensor; None for integers, booleans
    uncertain : the source tensor has a posterior
    """

    name: str
    values: NDArray[Any]
    element: np.dtype[Any]
    param: Param | None
    uncertain: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.values.shape

    @property
    def known(self) -> bool:
        """The values are exactly these numbers: no posterior, no rounding error."""
        return not self.uncertain and (self.param is None or self.param.slack is None)

    @property
    def ball(self) -> Ball:
        """Value and rounding error of a float constant."""
        return Ball(self.values, self.weight.slack)

    @property
    def weight(self) -> Param:
        """The parameter of a float constant."""
        if self.param is None:
            raise ValueError(f"{self.name!r} has type {self.element}, expected floats")
        return self.param

    def moved(self, move: Callable[[NDArray[Any]], NDArray[Any]]) -> Fixed:
        """Apply a function that only moves (repeats, drops) entries, so that a posterior follows."""

        def copied(array: NDArray[Any]) -> NDArray[Any]:
            return np.array(move(array), order="C")  # a view would be strided, or not writable

        if self.param is None:
            return replace(self, values=copied(self.values))
        param = self.param
        factor = param.factor if param.factor.ndim == 0 else copied(np.broadcast_to(param.factor, self.shape))
        slack = None if param.slack is None else copied(param.slack)
        moved = Param(param.source, copied(param.index), factor, slack)
        return replace(self, values=copied(self.values), param=moved)

    def reshaped(self, *shape: int) -> Fixed:
        """The tensor with its entries in another shape."""
        return self.moved(lambda array: array.reshape(shape))

    def transposed(self) -> Fixed:
        """Matrix with rows and columns exchanged."""
        return self.moved(np.transpose)


Value = Computed | Fixed


# 2. The network under construction

MAX_ENTRIES = 2**27  # entries of one tensor: beyond, a file is damaged or hostile
_MAX_TOTAL = 2**28  # entries of all tensors that are computed
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_ONE = np.float64(1)


class Builder:
    """Nodes and source tensors gathered so far.

    Parameters
    ----------
    opset : version of the default operator set
    uncertain : names of the tensors that carry a posterior
    reserved : names in the file, which tensors that are computed here must not take
    sampled : the posterior consists of weight samples
    """

    def __init__(
        self, opset: int, uncertain: Collection[str] = (), reserved: Collection[str] = (), sampled: bool = False
    ) -> None:
        self.opset = opset
        self.sampled = sampled
        self.reserved = frozenset(reserved)
        self.uncertain = frozenset(uncertain)
        self.nodes: list[Node] = []
        self.softmaxes: set[int] = set()
        self.sources: dict[str, NDArray[np.float64]] = {}
        self._computed = 0

    def constant(self, name: str, array: NDArray[Any]) -> Fixed:
        """A tensor of the file as a constant of the graph."""
        if array.dtype.name not in _FLOATS:
            return self._discrete(name, array)
        with np.errstate(invalid="ignore"):  # a signalling NaN, refused below
            values = array.astype(np.float64)
        if not np.isfinite(values).all():
            raise ModelError("holds NaN or infinite entries", node=name)
        if name in self.sources:  # the branches of two Ifs may give their own tensors the same name
            while name in self.sources or name in self.reserved:
                name += "'"
        return self._source(name, Ball(values), array.dtype)

    def derived(self, name: str, ball: Ball, element: np.dtype[Any]) -> Fixed:
        """A deterministic float constant that is computed here and becomes a source tensor of its own."""
        if not np.isfinite(ball.mid).all() or (ball.rad is not None and not np.isfinite(ball.rad).all()):
            raise ModelError("is not finite once computed", node=name)
        while name in self.sources or name in self.reserved:
            name += "'"
        self._count(name, ball.mid.size)
        return self._source(name, ball, element)

    def _count(self, name: str, entries: int) -> None:
        self._computed += entries
        if self._computed > _MAX_TOTAL:
            raise ModelError(f"all tensors up to this one have more than {_MAX_TOTAL:,} entries, the limit", node=name)

    def _source(self, name: str, ball: Ball, element: np.dtype[Any]) -> Fixed:
        values = np.array(ball.mid, np.float64)  # a copy: broadcast views must not leave
        self.sources[name] = values
        index = np.arange(values.size, dtype=np.int64).reshape(values.shape)
        slack = None if ball.rad is None else np.array(ball.rad, np.float64)
        param = Param(name, index, np.array(_ONE), slack)
        return Fixed(name, values, element, param, name in self.uncertain)

    def number(self, name: str, value: float, like: Computed) -> Fixed:
        """A scalar that the graph holds in an attribute."""
        return self.derived(name, Ball(np.array(value, np.float64)), like.element)

    def number_of(self, param: Param) -> tuple[float, float] | None:
        """The one number that a deterministic parameter holds, and its error; None for anything else."""
        if param.index.size != 1 or param.source in self.uncertain:
            return None
        value = float(self.sources[param.source].reshape(-1)[param.index.reshape(-1)[0]])
        slack = 0.0 if param.slack is None else float(param.slack.reshape(-1)[0])
        return value * float(param.factor.reshape(-1)[0]), slack

    def exact_number(self, param: Param) -> float | None:
        """`number_of`, if it is exact."""
        number = self.number_of(param)
        return number[0] if number is not None and number[1] == 0 and abs(param.factor).reshape(-1)[0] == 1 else None

    def times(self, weight: Fixed, factor: Fixed) -> Fixed:
        """weight * factor, both constants; the factor must be deterministic if the weight is not.

        A posterior stays with its weight: only the weight's factor changes, and only exactly.
        """
        if not weight.uncertain:
            if factor.uncertain:
                return self.times(factor, weight)
            ball = ball_product(weight.ball, factor.ball)
            return self.derived(f"{weight.name}*{factor.name}", ball, weight.element)
        shape = np.broadcast_shapes(weight.shape, factor.shape)
        weight = weight.moved(lambda array: np.broadcast_to(array, shape))
        product = ball_product(Ball(weight.weight.factor), factor.ball)
        if factor.uncertain or product.rad is not None:
            message = f"weight {weight.weight.source!r} has a posterior and is multiplied by {factor.name!r}"
            why = "which has one too" if factor.uncertain else "which cannot be done without rounding"
            raise UnsupportedError(f"{message}, {why}; multiply the weight before attaching its posterior")
        param = replace(weight.weight, factor=product.mid)
        return replace(weight, values=weight.values * factor.values, param=param)

    def negated(self, weight: Fixed) -> Fixed:
        """The parameter -weight, of the same source."""
        param = replace(weight.weight, factor=-weight.weight.factor)
        return replace(weight, values=-weight.values, param=param)

    def certain(self, constant: Fixed, what: str) -> Fixed:
        """The constant, if its place in the graph can do without a posterior."""
        if constant.uncertain:
            message = f"{what} cannot carry a posterior; attach none to {constant.weight.source!r}"
            raise PosteriorError(message, node=constant.name)
        return constant

    # nodes ---------------------------------------------------------------------------------------------------------

    def append(self, node: Node, element: np.dtype[Any]) -> Computed:
        """Add a node; its inputs must be there."""
        if 0 in node.shape or math.prod(node.shape) > MAX_ENTRIES:
            raise ModelError(f"computes a tensor of shape {node.shape}", node=node.name)
        self._count(node.name, math.prod(node.shape))
        self.nodes.append(node)
        return Computed(len(self.nodes) - 1, node.shape, element)

    def branch(self, name: str, value: Computed | Fixed) -> Computed:
        """A computed value; a constant becomes a node without predecessors."""
        if isinstance(value, Compared):
            message = "computes with a comparison of values that depend on the input; only a Where may take it"
            raise UnsupportedError(message, node=name)
        if isinstance(value, Softmaxed):  # its probabilities are used inside the graph
            return composed_softmax(self, name, Computed(value.position, value.shape, value.element), value.axis)
        if isinstance(value, Computed):
            return value
        weight = self.certain(value, "a tensor that is a branch of its own").weight
        return self.append(nodes.Constant(name, (), value.shape, weight), value.element)

    def linear(self, name: str, x: Computed, weight: Fixed, axis: int) -> Computed:
        """Contract `axis` of x with weight (out, in)."""
        rows, columns = weight.shape
        if x.shape[axis] != columns:
            raise ModelError(f"input {x.shape} and weight {weight.shape} do not fit on axis {axis}", node=name)
        shape = (*x.shape[:axis], rows, *x.shape[axis + 1 :])
        return self.append(nodes.Linear(name, (x.position,), shape, weight.weight, axis), x.element)

    def scale(self, name: str, x: Computed, weight: Fixed) -> Computed:
        """x * weight, numpy broadcasting."""
        x = self.broadcast(name, x, np.broadcast_shapes(x.shape, weight.shape))
        return self.append(nodes.Scale(name, (x.position,), x.shape, weight.weight), x.element)

    def shift(self, name: str, x: Computed, bias: Fixed) -> Computed:
        """x + bias, numpy broadcasting."""
        x = self.broadcast(name, x, np.broadcast_shapes(x.shape, bias.shape))
        return self.append(nodes.Shift(name, (x.position,), x.shape, bias.weight), x.element)

    def total(self, name: str, terms: Iterable[tuple[int, Computed]]) -> Computed:
        """Signed sum, numpy broadcasting."""
        signs, branches = zip(*terms, strict=True)
        shape = np.broadcast_shapes(*(branch.shape for branch in branches))
        positions = tuple(self.broadcast(name, branch, shape).position for branch in branches)
        return self.append(nodes.Sum(name, positions, shape, signs), branches[0].element)

    def broadcast(self, name: str, x: Computed, shape: tuple[int, ...]) -> Computed:
        """numpy.broadcast_to; x itself if it has the shape."""
        if x.shape == shape:
            return x
        np.broadcast_shapes(x.shape, shape)
        return self.append(nodes.Broadcast(name, (x.position,), tuple(shape)), x.element)

    def reshape(self, name: str, x: Computed, shape: tuple[int, ...]) -> Computed:
        """Same elements, new shape; x itself if it has it."""
        if x.shape == shape:
            return x
        if math.prod(x.shape) != math.prod(shape):
            raise ModelError(f"cannot reshape {x.shape} to {shape}", node=name)
        return self.append(nodes.Reshape(name, (x.position,), shape), x.element)

    def joined(self, name: str, branches: Sequence[Computed], axis: int) -> Computed:
        """The branches joined along an axis, as by numpy.concatenate."""
        size = sum(branch.shape[axis] for branch in branches)
        shape = (*branches[0].shape[:axis], size, *branches[0].shape[axis + 1 :])
        positions = tuple(branch.position for branch in branches)
        return self.append(nodes.Concat(name, positions, shape, axis), branches[0].element)

    def transpose(self, name: str, x: Computed, perm: tuple[int, ...]) -> Computed:
        """x with permuted axes, as by numpy.transpose."""
        if sorted(perm) != list(range(len(x.shape))):
            raise ModelError(f"perm {perm} does not permute the axes of {x.shape}", node=name)
        shape = tuple(x.shape[axis] for axis in perm)
        return self.append(nodes.Transpose(name, (x.position,), shape, perm), x.element)

    def activation(self, name: str, x: Computed, kind: nodes.ActivationKind, alpha: Any = 0.0) -> Computed:
        """An elementwise nonlinearity."""
        return self.append(nodes.Activation(name, (x.position,), x.shape, kind, alpha), x.element)

    def select(self, name: str, x: Computed, index: NDArray[Any]) -> Computed:
        """Entries of the flattened x; 0 where the index is -1."""
        index = np.array(index, np.int64, order="C")  # ascontiguousarray would keep strides of -1, and lift a scalar
        if index.size and (index.min() < -1 or index.max() >= math.prod(x.shape)):
            raise ModelError(f"takes entries that {x.shape} does not have", node=name)
        if index.shape == x.shape and (index.reshape(-1) == np.arange(index.size)).all():
            return x
        return self.append(nodes.Select(name, (x.position,), index.shape, index), x.element)

    def product(self, name: str, x: Computed, y: Computed) -> Computed:
        """x * y, numpy broadcasting; x^2 where both are the same."""
        shape = np.broadcast_shapes(x.shape, y.shape)
        if x.position == y.position:
            return self.activation(name, self.broadcast(name, x, shape), "power", 2)
        a, b = self.broadcast(name, x, shape), self.broadcast(name, y, shape)
        return self.append(nodes.Product(name, (a.position, b.position), shape), x.element)

    def maximum(self, name: str, x: Computed) -> Computed:
        """Maximum over the last axis."""
        if x.shape[-1] == 1:
            return self.reshape(name, x, x.shape[:-1])
        return self.append(nodes.Max(name, (x.position,), x.shape[:-1]), x.element)

    def sum_over(self, name: str, x: Computed, axis: int) -> Computed:
        """Sum over one axis, which stays with size 1."""
        ones = self.number(f"{name}.ones", 1.0, x).moved(lambda array: np.broadcast_to(array, (1, x.shape[axis])))
        return self.linear(name, x, ones, axis)

    def divided(self, name: str, x: Computed, divisor: float | NDArray[np.float64]) -> Computed:
        """x / divisor, with the rounding error of the inverse."""
        inverse = reciprocal(Ball(np.array(divisor, np.float64)))
        return self.scale(name, x, self.derived(f"{name}.share", inverse, x.element))

    def _discrete(self, name: str, array: NDArray[Any]) -> Fixed:
        if name in self.uncertain:
            raise PosteriorError(f"is of type {array.dtype}: only floats can carry a posterior", node=name)
        return Fixed(name, array, array.dtype, None)


def composed_softmax(graph: Builder, name: str, x: Computed, axis: int, *, logarithm: bool = False) -> Computed:
    """Softmax over an axis, or its logarithm, from nodes that have bounds.

    softmax_i = 1 / (1 + sum over j != i of exp(x_j - x_i)): the divisor is at least 1 whatever is known about x, and
    no exponential of x itself can overflow. (The Relu changes nothing: it keeps the rounding of a bound on the sum from
    making it negative.)
    """
    size = x.shape[axis]
    if size**3 > MAX_ENTRIES:
        raise UnsupportedError(f"a Softmax over {size} entries inside the graph is too large", node=name)
    i, j = np.nonzero(~np.eye(size, dtype=bool))
    pairs = np.zeros((len(i), size))
    pairs[np.arange(len(i)), j], pairs[np.arange(len(i)), i] = 1.0, -1.0
    groups = np.repeat(np.eye(size), size - 1, axis=1)
    total = graph.number(f"{name}.one", 1.0, x)
    if size == 1:
        constant = graph.scale(name, x, graph.number(f"{name}.zero", 0.0, x))
        return graph.shift(name, constant, total) if not logarithm else constant
    differences = graph.linear(name, x, graph.derived(f"{name}.pairs", Ball(pairs), x.element), axis)
    exponentials = graph.activation(name, differences, "exp")
    sums = graph.linear(name, exponentials, graph.derived(f"{name}.groups", Ball(groups), x.element), axis)
    divisor = graph.shift(name, graph.activation(name, sums, "relu"), total)
    if logarithm:
        return graph.total(name, [(-1, graph.activation(name, divisor, "log"))])
    y = graph.activation(name, divisor, "reciprocal")
    graph.softmaxes.add(y.position)
    return y
