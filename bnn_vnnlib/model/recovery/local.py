"""Two shapes of random weights: a Gaussian of its own for every entry, and local reparameterisation.

1. `marginals`. Is every weight a Gaussian of its own? Found by evaluation.

2. `local_noises`. Local reparameterisation: the noise of the weights, moved onto the pre-activations. A layer computes
y = M x + b + sqrt(S x^2 + c) * noise instead of drawing W. For every x, y has the distribution that independent weights
of mean M and variance S (and a bias of variance c) give it. Evaluation cannot see that, so this is the one place where
a pattern of operators is matched; every part of it is checked, and what differs is no match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.model.attributes import float_attribute, raw_attribute
from bnn_vnnlib.model.recovery.draws import GraphDraws
from bnn_vnnlib.model.recovery.graph import NORMAL, Flow, NotRecoverable

_SEED, _TRIALS = 0x5EED, 4


# 1. Is every weight a Gaussian of its own?

_EXACT = 1e-10
"""What counts as rounding of float64, relative to |mean| + sd; a thousandth of the float32 in which files are kept."""


@dataclass(frozen=True, eq=False)
class _Marginals:
    """Weights w_j = mean_j + slope_j z_source(j), all of them in one vector.

    Attributes
    ----------
    mean, slope : (m,)
    source : (m,) which noise variable; -1 where the slope is 0
    """

    mean: Floats
    slope: Floats
    source: NDArray[np.int64]

    @property
    def shared(self) -> NDArray[np.bool_]:
        """(m,) entries whose noise variable moves another entry as well: they are not independent."""
        moved = self.source[self.source >= 0]
        counts = np.bincount(moved, minlength=1)
        return (self.source >= 0) & (counts[self.source] > 1)


def marginals(draws: GraphDraws) -> _Marginals:
    """Mean and standard deviation of every entry, provided that each is an affine function of one noise variable.

    Method: with w(z) the entries as a function of all noise variables, mean = w(0) and slope = w(1, ..., 1) - w(0). If
    entry j depends on variable i alone, w(b_k) - w(0) is slope_j where bit k of i is set and 0 otherwise, for b_k the
    k-th bits of all positions: log2 evaluations name i. That this holds for every z is then checked at random z of
    several sizes: an entry that depends on more variables, or not affinely, fails there with probability 1.

    Raises
    ------
    NotRecoverable : "correlated" (affine in several variables), "not gaussian" (not affine)
    """
    mean = _flat(draws.at_zero)
    size = draws.size
    slope = _flat(draws(np.ones(size))) - mean
    slope[np.abs(slope) <= _EXACT * np.abs(mean)] = 0.0
    source = np.zeros(len(mean), np.int64)
    for bit in range(max(size - 1, 0).bit_length()):
        change = _flat(draws(((np.arange(size) >> bit) & 1).astype(np.float64))) - mean
        source |= (np.abs(change - slope) < np.abs(change)).astype(np.int64) << bit
    source[slope == 0] = -1
    found = _Marginals(mean, slope, source)
    _check(draws, found)
    return found


def _flat(values: list[NDArray]) -> Floats:
    """All entries of all values, one after the other."""
    return np.concatenate([np.asarray(value, np.float64).reshape(-1) for value in values])


def _check(draws: GraphDraws, found: _Marginals) -> None:
    generator = np.random.default_rng(_SEED)
    for scale in np.geomspace(0.3, 8, _TRIALS):
        z = scale * generator.standard_normal(draws.size)
        own = np.where(found.source >= 0, z[found.source], 0.0) if draws.size else np.zeros_like(found.mean)
        room = _EXACT * (np.abs(found.mean) + (1 + np.abs(own)) * np.abs(found.slope))
        wrong = ~(np.abs(_flat(draws(z)) - (found.mean + found.slope * own)) <= room)
        if wrong.any():
            raise _explained(draws, found, generator, int(wrong.sum()))


def _explained(draws: GraphDraws, found: _Marginals, generator: np.random.Generator, wrong: int) -> NotRecoverable:
    """Why no Gaussian is recovered: weights affine in several variables, or not affine at all."""
    a, b = (generator.standard_normal(draws.size) for _ in range(2))
    w_a, w_b, both = (_flat(draws(z)) for z in (a, b, a + b))
    bend = both - w_a - w_b + found.mean
    size = np.abs(w_a) + np.abs(w_b) + np.abs(both) + np.abs(found.mean)
    node = ", ".join(draws.names)
    if (np.abs(bend) <= 1e3 * _EXACT * size).all():
        return correlated(node, wrong, len(found.mean))
    return NotRecoverable("not gaussian", _NOT_GAUSSIAN, node=node)


def correlated(node: str, entries: int, total: int) -> NotRecoverable:
    """The refusal of a full (or low-rank) covariance."""
    return NotRecoverable("correlated", _CORRELATED.format(entries=entries, total=total), node=node)


_CORRELATED = (
    "{entries} of {total} weights share Gaussian noise with others: the posterior has a full (or low-rank) covariance, "
    "which this version cannot keep, and independent weights of the same variance would be another posterior. Export a "
    "posterior of independent weights, or draw samples and attach those"
)
_NOT_GAUSSIAN = (
    "the weights are no affine function of Gaussian noise (a log-normal, a mixture, a clipped Gaussian, ...): not a "
    "Gaussian posterior. Draw samples and attach those"
)


# 2. Local reparameterisation

_STABILISER = 1e-6
"""A constant under the root up to this size is there against sqrt(0), and no variance."""
_SAME, _SHAPED = ("Identity", "Cast"), ("Shape", *NORMAL)
_WINDOW = ("strides", "pads", "dilations", "group", "kernel_shape", "auto_pad")


@dataclass(frozen=True, eq=False)
class LocalNoise:
    """One layer that uses the trick.

    Attributes
    ----------
    noise : the random value
    total : the node that adds the noise to `mean`, the value M x + b
    weight : the value M; `variance` is S in its layout
    bias_variance : c, or None
    axes : how many axes of length 1 the sum has in front of the mean's (TensorFlow Probability adds one)
    stabiliser : a constant under the root that is left out, 0 if there is none
    """

    noise: str
    total: NodeProto
    mean: str
    weight: str
    variance: Floats
    bias_variance: Floats | None
    axes: int
    stabiliser: float


@dataclass(frozen=True, eq=False)
class _Layer:
    """y = x W, with W constant; `added` are constants that further nodes add to it."""

    node: NodeProto
    x: str
    weight: str
    added: list[str]


def local_noises(flow: Flow) -> Iterator[LocalNoise]:
    """All layers of the graph that use the trick."""
    for node in flow.nodes:
        if node.op_type in NORMAL:
            found = _matched(flow, node)
            if found is not None:
                yield found


def _matched(flow: Flow, random: NodeProto) -> LocalNoise | None:
    """The layer with local reparametrisation that a random node belongs to; None if it is no such layer."""
    noise = random.output[0]
    product = _reader(flow, noise, "Mul")
    total = product and _reader(flow, product.output[0], "Add")
    if product is None or total is None or not _standard(random):
        return None
    root, mean = _other(flow, product, noise), _other(flow, total, product.output[0])
    floors: list[str] = []
    upper, lower = _layer(flow, mean), _layer(flow, _under_root(flow, root, floors))
    if upper is None or lower is None or not _squares(flow, lower.x, upper.x) or not _same_window(upper, lower):
        return None
    axes = _axes_in_front(flow, noise, mean, root)
    if axes is None or not _used_once(flow, upper):
        return None
    variance = _in_layout(flow, upper, lower)
    if variance is None or (variance < 0).any():
        return None
    added = _under_root_besides(flow, upper, lower, floors, variance)
    return None if added is None else LocalNoise(noise, total, mean, upper.weight, variance, added[0], axes, added[1])


def _under_root_besides(
    flow: Flow, upper: _Layer, lower: _Layer, floors: list[str], variance: Floats
) -> tuple[Floats | None, float] | None:
    """c of a bias (None: there is none) and the stabiliser; None where the constants under the root are neither."""
    if flow.drawn.intersection((*lower.added, *floors)):
        return None  # a variance that is random itself
    constants = [_value(flow, name) for name in (*lower.added, *floors)] + _own_bias(flow, lower.node)
    small = [value for value in constants if value.size == 1 and 0 <= value.max() <= _STABILISER]
    large = [value for value in constants if not (value.size == 1 and 0 <= value.max() <= _STABILISER)]
    stabiliser = max((float(value.reshape(-1)[0]) for value in small), default=0.0)
    if not large:
        return None, stabiliser
    if len(large) > 1 or (large[0] < 0).any() or floors:  # a floor that is no stabiliser changes the distribution
        return None
    bias = _one_for_each_unit(upper.node, variance, large[0])
    return None if bias is None else (bias, stabiliser)


def _reader(flow: Flow, name: str, operator: str) -> NodeProto | None:
    """The one node that reads a value and its copies, if it is of this kind."""
    readers = [node for node in flow.consumers.get(name, []) if node.op_type != "Shape"]
    while len(readers) == 1 and readers[0].op_type in _SAME:
        name = readers[0].output[0]
        readers = [node for node in flow.consumers.get(name, []) if node.op_type != "Shape"]
    fits = len(readers) == 1 and readers[0].op_type == operator and list(readers[0].input).count(name) == 1
    return readers[0] if fits else None


def _standard(random: NodeProto) -> bool:
    """Whether a random node draws numbers of mean 0 and deviation 1."""
    return not raw_attribute(random, "mean") and raw_attribute(random, "scale") in (None, 1, 1.0)


def _other(flow: Flow, node: NodeProto, known: str) -> str:
    """The operand of a binary node that is not the given value or a copy of it."""
    first, second = node.input
    return str(second if _peeled(flow, first) == known else first)


def _peeled(flow: Flow, name: str) -> str:
    """The value in front of copies and casts."""
    node = flow.producer.get(name)
    while node is not None and node.op_type in _SAME:
        name = node.input[0]
        node = flow.producer.get(name)
    return name


def _under_root(flow: Flow, name: str, floors: list[str]) -> str:
    """v of sqrt(v) or v^(1/2), in front of a Relu or a Clip from below; "" if there is no root."""
    node = flow.producer.get(_peeled(flow, name))
    if node is None or not (node.op_type == "Sqrt" or (node.op_type == "Pow" and flow.is_number(node.input[1], 0.5))):
        return ""
    name = _peeled(flow, node.input[0])
    node = flow.producer.get(name)
    if node is not None and node.op_type == "Relu":
        return str(node.input[0])
    if node is not None and node.op_type == "Clip" and len(node.input) == 2:
        floors.append(node.input[1])
        return str(node.input[0])
    return name


def _layer(flow: Flow, name: str) -> _Layer | None:
    """The linear layer that computes a value, behind sums with constants."""
    name, added = _peeled(flow, name), []
    node = flow.producer.get(name)
    while node is not None and node.op_type == "Add":
        constants = [part for part in node.input if part not in flow.data]
        if len(constants) != 1:
            return None
        added += constants
        node = flow.producer.get(_peeled(flow, next(part for part in node.input if part in flow.data)))
    if node is None or node.op_type not in ("Gemm", "MatMul", "Conv") or len(node.input) < 2:
        return None
    x, weight = node.input[:2]
    plain = not raw_attribute(node, "transA") and all(float_attribute(node, key, 1.0) == 1 for key in ("alpha", "beta"))
    if x not in flow.data or weight in flow.data or flow.drawn.intersection(node.input[1:2]) or not plain:
        return None
    return _Layer(node, _peeled(flow, x), weight, added)


def _one_for_each_unit(node: NodeProto, variance: Floats, constant: Floats) -> Floats | None:
    """Variances of the biases, one for each unit (channel) also where one number serves them all; None if unclear."""
    if node.op_type == "Conv":
        own: tuple[int, ...] = (len(variance), *(1,) * (variance.ndim - 2))
    else:
        own = (variance.shape[0 if raw_attribute(node, "transB") else 1],)
    if constant.size == 1:
        return np.full(own, float(constant.reshape(())))
    lead, shape = constant.shape[: -len(own)], constant.shape[-len(own) :]
    return constant.reshape(own) if shape == own and math.prod(lead) == 1 else None


def _own_bias(flow: Flow, node: NodeProto) -> list[Floats]:
    """The third operand, so that it broadcasts to the output: a convolution's lies along the channels."""
    biases = [_value(flow, name) for name in node.input[2:3] if name]
    if node.op_type != "Conv":
        return biases
    return [bias.reshape(-1, *(1,) * (_value(flow, node.input[1]).ndim - 2)) for bias in biases]


def _squares(flow: Flow, square: str, x: str) -> bool:
    """Whether `square` is the elementwise square of `x`."""
    node = flow.producer.get(square)
    if node is None:
        return False
    if node.op_type == "Mul":
        return [_peeled(flow, part) for part in node.input] == [x, x]
    return node.op_type == "Pow" and _peeled(flow, node.input[0]) == x and flow.is_number(node.input[1], 2)


def _same_window(upper: _Layer, lower: _Layer) -> bool:
    if "Conv" not in (upper.node.op_type, lower.node.op_type):
        return True
    same = all(raw_attribute(upper.node, key) == raw_attribute(lower.node, key) for key in _WINDOW)
    return upper.node.op_type == lower.node.op_type and same


def _used_once(flow: Flow, layer: _Layer) -> bool:
    """The weight is drawn for this layer only."""
    return [node for node in flow.consumers[layer.weight] if node.op_type not in _SHAPED] == [layer.node]


def _axes_in_front(flow: Flow, noise: str, mean: str, root: str) -> int | None:
    """Axes that the noise adds; None unless every entry has noise of its own. Found by running the graph."""
    shapes = [value.shape for value in GraphDraws(flow, [mean, root, noise], feeds=some_input(flow)).at_zero]
    whole = np.broadcast_shapes(*shapes)
    own = all(math.prod(shape) == math.prod(whole) for shape in shapes)
    return len(whole) - len(shapes[0]) if own else None


def some_input(flow: Flow) -> dict[str, Floats]:
    """Ones of the inputs' shapes, open dimensions taken as 1."""
    feeds = {}
    for info in flow.proto.graph.input:
        if info.name not in flow.stored:
            dims = [dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim]
            feeds[info.name] = np.ones(dims, helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    return feeds


def _value(flow: Flow, name: str) -> Floats:
    return np.asarray(GraphDraws(flow, [name]).at_zero[0], np.float64)


def _in_layout(flow: Flow, upper: _Layer, lower: _Layer) -> Floats | None:
    """S, laid out as M is; None if the two do not fit."""
    mean, variance = _value(flow, upper.weight), _value(flow, lower.weight)
    if upper.node.op_type != "Conv":
        if mean.ndim != 2 or variance.ndim != 2:
            return None
        turned = bool(raw_attribute(upper.node, "transB")) != bool(raw_attribute(lower.node, "transB"))
        variance = variance.T if turned else variance
    return variance if variance.shape == mean.shape and math.prod(mean.shape) else None
