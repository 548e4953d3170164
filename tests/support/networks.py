"""Small networks built by hand, and weight boxes around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.nodes import Param
from bnn_vnnlib.signature import Signature, Variable

Array = NDArray[np.float64]


class Builder:
    """Collects nodes; every method returns the position of the node it added.

    Weights are arrays (a new source tensor), shapes (random numbers), or a `Param` made before (tied weights).
    """

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[nodes.Node] = []
        self.tensors: dict[str, Array] = {}
        self.inputs: list[Variable] = []

    def param(self, value: Any, factor: Any = 1.0, slack: Any = None) -> Param:
        """A parameter that is the whole of a new source tensor; a tuple stands for random numbers of that shape."""
        if isinstance(value, Param):
            return value
        if isinstance(value, tuple):
            value = self.rng.normal(size=value)
        array = np.asarray(value, dtype=np.float64)
        source = f"w{len(self.tensors)}"
        self.tensors[source] = array
        index = np.arange(array.size).reshape(array.shape)
        return Param(source, index, np.asarray(factor, dtype=np.float64), None if slack is None else np.asarray(slack))

    def input(self, *shape: int) -> int:
        """The next part of the flattened input."""
        start = sum(variable.size for variable in self.inputs)
        self.inputs.append(Variable(f"x{len(self.inputs)}", "float64", shape))
        return self._add(nodes.Input, (), shape, start=start)

    def constant(self, value: Any, factor: Any = 1.0, slack: Any = None) -> int:
        """A branch without input."""
        value = self.param(value, factor, slack)
        return self._add(nodes.Constant, (), value.shape, value=value)

    def linear(self, x: int, weight: Any, axis: int = -1) -> int:
        """Contract an axis; weight (out, in)."""
        weight = self.param(weight)
        shape = list(self.shape(x))
        axis %= len(shape)
        shape[axis] = weight.shape[0]
        return self._add(nodes.Linear, (x,), tuple(shape), weight=weight, axis=axis)

    def conv(
        self, x: int, weight: Any, strides: tuple[int, int] = (1, 1), pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilations: tuple[int, int] = (1, 1), groups: int = 1,
    ) -> int:  # fmt: skip
        """Convolution; weight (O, C / groups, kh, kw)."""
        weight = self.param(weight)
        batch, _, *image = self.shape(x)
        extents = [
            (size + before + after - (dilation * (k - 1) + 1)) // stride + 1
            for size, before, after, dilation, k, stride in zip(
                image, pads[:2], pads[2:], dilations, weight.shape[2:], strides, strict=True
            )
        ]
        shape = (batch, weight.shape[0], *extents)
        return self._add(
            nodes.Conv, (x,), shape, weight=weight, strides=strides, pads=pads, dilations=dilations, groups=groups
        )

    def scale(self, x: int, weight: Any) -> int:
        """Elementwise product."""
        return self._add(nodes.Scale, (x,), self.shape(x), weight=self.param(weight))

    def shift(self, x: int, bias: Any) -> int:
        """Elementwise sum."""
        return self._add(nodes.Shift, (x,), self.shape(x), bias=self.param(bias))

    def product(self, x: int, y: int) -> int:
        """Elementwise product of two nodes."""
        return self._add(nodes.Product, (x, y), self.shape(x))

    def maximum(self, x: int) -> int:
        """Maximum over the last axis."""
        return self._add(nodes.Max, (x,), self.shape(x)[:-1])

    def select(self, x: int, index: Any) -> int:
        """Entries of the flattened node; -1 for 0."""
        index = np.asarray(index, np.int64)
        return self._add(nodes.Select, (x,), index.shape, index=index)

    def activation(self, x: int, kind: str = "relu", alpha: Any = 0.0) -> int:
        """Elementwise nonlinearity."""
        return self._add(nodes.Activation, (x,), self.shape(x), kind=kind, alpha=alpha)

    def sum(self, *xs: int, signs: Sequence[int] = ()) -> int:
        """Signed sum."""
        return self._add(nodes.Sum, xs, self.shape(xs[0]), signs=tuple(signs) or (1,) * len(xs))

    def reshape(self, x: int, *shape: int) -> int:
        """Same elements."""
        return self._add(nodes.Reshape, (x,), shape)

    def transpose(self, x: int, *perm: int) -> int:
        """Permuted axes."""
        return self._add(nodes.Transpose, (x,), tuple(self.shape(x)[axis] for axis in perm), perm=perm)

    def broadcast(self, x: int, *shape: int) -> int:
        """Repeated elements."""
        return self._add(nodes.Broadcast, (x,), shape)

    def concat(self, *xs: int, axis: int = -1) -> int:
        """Joined along an axis."""
        shape = list(self.shape(xs[0]))
        axis %= len(shape)
        shape[axis] = sum(self.shape(x)[axis] for x in xs)
        return self._add(nodes.Concat, xs, tuple(shape), axis=axis)

    def dense(self, x: int, out: int, kind: str = "", alpha: float = 0.0) -> int:
        """Linear over the last axis and Shift, random; with an activation if `kind` is given."""
        x = self.shift(self.linear(x, (out, self.shape(x)[-1])), (out,))
        return self.activation(x, kind, alpha) if kind else x

    def shape(self, position: int) -> tuple[int, ...]:
        """Shape of a node."""
        return self.nodes[position].shape

    def network(self, *outputs: int) -> Network:
        """The network; its output is the last node unless told otherwise."""
        outputs = outputs or (len(self.nodes) - 1,)
        variables = tuple(Variable(f"y{i}", "float64", self.shape(at)) for i, at in enumerate(outputs))
        return Network(Signature(tuple(self.inputs), variables), tuple(self.nodes), outputs, self.tensors)

    def _add(self, node_type: type[nodes.Node], inputs: tuple[int, ...], shape: tuple[int, ...], **fields: Any) -> int:
        self.nodes.append(node_type(f"n{len(self.nodes)}", inputs, shape, **fields))
        return len(self.nodes) - 1


def dense_network(sizes: Sequence[int], kind: str = "relu", alpha: float = 0.0, seed: int = 0) -> Network:
    """A plain network of dense layers."""
    builder = Builder(seed)
    x = builder.input(1, sizes[0])
    for size in sizes[1:-1]:
        x = builder.dense(x, size, kind, alpha)
    builder.dense(x, sizes[-1])
    return builder.network()


def point_weights(network: Network) -> WeightBoxes:
    """The network's own weights, exactly."""
    centers = {name: torch.as_tensor(tensor)[None] for name, tensor in network.tensors.items()}
    return WeightBoxes(centers, {}, torch.ones(1, 1, dtype=torch.float64))


def random_boxes(network: Network, rng: np.random.Generator, boxes: int, items: int, size: float = 0.1) -> WeightBoxes:
    """K weight boxes of different centers, radii that are partly 0, and a scale for each box and item."""
    centers = {
        name: torch.as_tensor(tensor + 0.1 * rng.normal(size=(boxes, *tensor.shape)))
        for name, tensor in network.tensors.items()
    }
    spreads = {
        name: torch.as_tensor(size * rng.random(tensor.shape) * (rng.random(tensor.shape) < 0.8))
        for name, tensor in network.tensors.items()
    }
    return WeightBoxes(centers, spreads, torch.as_tensor(rng.random((boxes, items)) + 0.2))


def random_inputs(
    network: Network, rng: np.random.Generator, items: int, boxes: int = 1, size: float = 0.5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Input boxes (K, N, n), a part of the coordinates degenerate; (N, n) for one weight box."""
    n = network.signature.input_size
    lower = torch.as_tensor(rng.normal(size=(boxes, items, n)))
    upper = lower + torch.as_tensor(size * rng.random(lower.shape) * (rng.random(lower.shape) < 0.8))
    return (lower[0], upper[0]) if boxes == 1 else (lower, upper)


def random_rows(network: Network, rng: np.random.Generator, items: int, rows: int = 3) -> tuple[torch.Tensor, ...]:
    """Rows C (N, R, m) over the outputs and G (N, R, n) over the inputs."""
    sizes = (network.signature.output_size, network.signature.input_size)
    return tuple(torch.as_tensor(rng.normal(size=(items, rows, size))) for size in sizes)
