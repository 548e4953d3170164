"""The law of a chain of dense layers with independent Gaussian weights, however a graph writes it.

    zeta^1 = W^1 z + b^1,   zeta^{k+1} = W^{k+1} sigma_k(zeta^k) + b^{k+1},   output = the last zeta.

Every node is read as an affine map, with independent Gaussian entries, of one earlier *base*: the input, an activation,
or a deterministic node that is anything else. An activation behind such a map closes a layer and is the next base. Maps
of one base are moved (Reshape, Transpose, Select, Broadcast, Concat), scaled, shifted, added up and multiplied.

Independence. Each random entry of a source occurs once in the whole graph, which is counted. So two maps share none,
unless a node is read twice: a random map with several readers is refused, and so are moves that repeat a random entry.
A product V (U h + c) has independent Gaussian entries if
    (1) where V_.k has a random entry, row k of (U, c) is fixed and has at most one entry other than 0, so that no
        entry of V occurs twice;
    (2) where row k of (U, c) has a random entry, V_.k is fixed and has at most one entry other than 0.

Rounding. Moves, signs, and products with powers of two change no number. All else is paid for: `slack` bounds what is
wrong with a mean, and a variance is off by at most VARIANCE units relative to itself. So one graph written in several
exact ways gives equal bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.network import GaussianDiagonal, Network
from bnn_vnnlib.network.nodes import Node, Param
from bnn_vnnlib.rounding import LOST, TINY, UNIT, gamma

Integers = NDArray[np.int64]

_ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid")
"""Activations that may stand between the layers; slopes of leaky_relu lie in [0, 1]."""

MAX_LAW_DISTANCE = 1e-10
"""Largest `law_distance` of a chain that is served by methods which take the stored numbers as exact and pay the
distance from every bound.
"""

VARIANCE = 8
"""Units of relative error that a variance may have; a chain that needs more is none."""


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """zeta = W z + b with independent Gaussian entries.

    Attributes
    ----------
    mean, variance (o, i), bias, bias_variance (o,) : finite; each variance is off by at most VARIANCE units
    slack (o, i), bias_slack (o,) : the exact means lie within the slack of the stored ones
    """

    mean: Tensor
    bias: Tensor
    variance: Tensor
    bias_variance: Tensor
    slack: Tensor
    bias_slack: Tensor

    @staticmethod
    def exact(mean: Tensor, bias: Tensor, variance: Tensor, bias_variance: Tensor) -> DenseLayer:
        """A layer of which every number is known exactly."""
        return DenseLayer(mean, bias, variance, bias_variance, torch.zeros_like(mean), torch.zeros_like(bias))

    @property
    def outputs(self) -> int:
        """Number of neurons, o."""
        return len(self.mean)

    @property
    def inputs(self) -> int:
        """Number of what they read, i."""
        return self.mean.shape[1]

    def range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Means of the pre-activations over boxes (B, i): center and radius (B, o), not rounded."""
        center, radius = (lower + upper) / 2, (upper - lower) / 2
        return center @ self.mean.mT + self.bias, radius @ self.mean.abs().mT

    def deviation(self, square: Tensor) -> Tensor:
        """s = sqrt(sum_j sig_j^2 x_j^2 + sig_b^2) (B, o) from the squares of x (B, i), not rounded."""
        return torch.sqrt(square @ self.variance.mT + self.bias_variance)


@dataclass(frozen=True, eq=False)
class DenseChain:
    """L layers with L - 1 activations (kind, alpha) between them.

    Attributes
    ----------
    law_distance : bound on the total variation between the law of the stored numbers, taken as exact, and that of the
        network: 0 where nothing was rounded. It moves a probability by as much, and the mean of a function by as much
        times the width of its range.
    prefix : the deterministic node whose flattened outputs the first layer reads; None: it reads the flattened input
    """

    layers: tuple[DenseLayer, ...]
    activations: tuple[tuple[str, float], ...]
    law_distance: float = 0.0
    prefix: int | None = None

    @staticmethod
    def relu(*layers: DenseLayer) -> DenseChain:
        """These layers with a Relu between each two."""
        return DenseChain(layers, (("relu", 0.0),) * (len(layers) - 1))

    @property
    def first(self) -> DenseLayer:
        """The layer that reads the input."""
        return self.layers[0]

    @property
    def last(self) -> DenseLayer:
        """The layer that makes the output."""
        return self.layers[-1]

    @cached_property
    def kinds(self) -> set[str]:
        """The activations that occur."""
        return {kind for kind, _ in self.activations}

    def with_zero_output(self) -> DenseChain:
        """One more output that is always 0: sigmoid(f) is the first entry of softmax(f, 0)."""
        padded = {
            name: torch.cat([values, torch.zeros_like(values[:1])]) for name, values in vars(self.last).items()
        }  # fmt: skip
        return replace(self, layers=(*self.layers[:-1], DenseLayer(**padded)))


def dense_chain(
    network: Network, posterior: GaussianDiagonal, device: torch.device, *, prefix: bool = False
) -> DenseChain | None:
    """The network as a chain of dense layers on the device, or None if it is anything else.

    A Softmax that ends the graph is not looked at: the chain's outputs are the logits then.

    Parameters
    ----------
    prefix : also return chains whose first layer reads a deterministic node other than the input
    """
    if len(network.outputs) != 1 or not _occurs_once(network, posterior):
        return None
    recognised = _Reading(network, posterior).output()
    if recognised is None or (recognised.prefix is not None and not prefix):
        return None
    distance = sum(rows.law_distance for rows in recognised.layers) * (1 + gamma(len(recognised.layers)))
    layers = tuple(rows.layer(device) for rows in recognised.layers)
    return DenseChain(layers, recognised.activations, distance, recognised.prefix)


def _occurs_once(network: Network, posterior: GaussianDiagonal) -> bool:
    """Whether every random entry of every source occurs at most once in the graph."""
    used: dict[str, list[Integers]] = {}
    for param in (param for node in network.nodes for param in nodes.params_of(node)):
        used.setdefault(param.source, []).append(param.index.reshape(-1))
    for name, variance in posterior.variances.items():
        random = variance.reshape(-1) > 0
        if name in used and random.any():
            count = np.bincount(np.concatenate(used[name]), minlength=random.size)
            if (count[random] > 1).any():
                return False
    return True


def _power_of_two(factor: Floats) -> NDArray[np.bool_]:
    """Mask of the factors by which a product is exact but for underflow: powers of two, and 0."""
    return np.isin(np.abs(np.frexp(factor)[0]), (0.0, 0.5))


@dataclass(frozen=True, eq=False)
class _Entries:
    """Independent Gaussian numbers: stored means that are off by at most `slack`, variances off by `loose` units.

    A variance that lost digits to underflow has `loose` infinity.
    """

    mean: Floats
    slack: Floats
    variance: Floats
    loose: Floats

    @staticmethod
    def zeros(shape: tuple[int, ...]) -> _Entries:
        """Numbers of this shape that are all 0."""
        return _Entries(*(np.zeros(shape) for _ in range(4)))

    @property
    def random(self) -> NDArray[np.bool_]:
        """Mask of the numbers that have a variance, be it too small for a float."""
        return (self.variance > 0) | np.isinf(self.loose)

    @property
    def possible(self) -> NDArray[np.bool_]:
        """Mask of the numbers that may differ from 0."""
        return (self.mean != 0) | (self.slack > 0) | self.random

    @property
    def vague(self) -> NDArray[np.bool_]:
        """Mask of the numbers the square of whose mean is not known to 3 %: it may be 0 or not, or has lost digits."""
        return (100 * self.slack > np.abs(self.mean)) | ((self.mean != 0) & (self.mean**2 <= LOST))

    def moved(self, move: Callable[[Floats], Floats]) -> _Entries:
        """The numbers at other places."""
        return _Entries(*(move(part) for part in vars(self).values()))

    def times(self, factor: Floats, wrong: Floats | float = 0.0) -> _Entries:
        """Products with fixed factors that are known up to `wrong`; arrays broadcast."""
        if (factor == 1).all() and not np.any(wrong):
            return self
        mean, variance = self.mean * factor, self.variance * factor * factor
        shift, known = _power_of_two(factor), np.asarray(wrong) == 0
        rounded = ~(shift | _power_of_two(self.mean)) | ((np.abs(mean) <= LOST) & (np.abs(factor) != 1))
        rounded = np.where(rounded & (self.mean != 0) & (factor != 0), UNIT * np.abs(mean) + TINY, 0.0)
        slack = np.abs(factor) * self.slack + wrong * (np.abs(self.mean) + self.slack) + rounded
        slack = slack + np.where((self.slack > 0) & (factor != 0) | ~known & self.possible, TINY, 0.0)  # underflow
        clean = shift & known & ((variance > LOST) | (np.abs(factor) == 1) | (factor == 0))
        relative = np.where(known, 0.0, 2.1 * wrong / np.abs(factor) / UNIT)  # of the factor's square
        loose = np.where(self.random & ~clean, self.loose + 2.1 + relative, self.loose)
        lost = self.random & ~clean & (variance <= LOST)
        return _Entries(mean, slack * (1 + 8 * UNIT), variance, np.where(lost, np.inf, loose))

    def plus(self, other: _Entries) -> _Entries:
        """Sums of independent numbers; arrays broadcast."""
        mean = self.mean + other.mean
        rounded = np.where((self.mean == 0) | (other.mean == 0), 0.0, UNIT * np.abs(mean) + TINY)
        both = self.random & other.random
        slack = (self.slack + other.slack + rounded) * (1 + 4 * UNIT)
        loose = np.maximum(self.loose, other.loose) + both
        return _Entries(mean, slack, self.variance + other.variance, loose)

    @property
    def law_distance(self) -> float:
        """Bound on the total variation between the laws of the stored and of the exact numbers.

        For one number, |d| away in mean and e relatively in variance: that of equal variances is 2 Phi(|d| / 2 s) - 1
        <= 0.4 |d| / s, and by Pinsker's inequality that of equal means is at most sqrt((e - log(1 + e)) / 4) <= |e| / 2
        for |e| <= 1/2. Distances of independent numbers add up.
        """
        off = np.nonzero(self.possible & ((self.slack > 0) | (self.random & (self.loose > 0))))
        slack, variance, loose = self.slack[off], self.variance[off], self.loose[off]
        with np.errstate(divide="ignore"):
            each = 0.4 * slack / np.sqrt(variance) + loose * UNIT / 2
        return float(each.sum() * (1 + gamma(each.size) + 1e-12))


@dataclass(frozen=True, eq=False)
class _Rows:
    """W h + c over the flattened outputs h of the base: weight (rows, width), bias (rows,); width 0 for constants."""

    base: int | None
    weight: _Entries
    bias: _Entries

    @property
    def random(self) -> NDArray[np.bool_]:
        """(rows,): where any entry is random."""
        return self.weight.random.any(1) | self.bias.random

    @property
    def law_distance(self) -> float:
        """How far the stored law may be from the exact one (`_Entries.law_distance`)."""
        return self.weight.law_distance + self.bias.law_distance

    def moved(self, move: Callable[[Floats], Floats]) -> _Rows:
        """The rows at other places."""
        return replace(self, weight=self.weight.moved(move), bias=self.bias.moved(move))

    def times(self, factor: Floats, wrong: Floats) -> _Rows:
        """The rows times fixed factors (rows,) that are known up to `wrong` (rows,)."""
        return replace(
            self, weight=self.weight.times(factor[:, None], wrong[:, None]), bias=self.bias.times(factor, wrong)
        )

    def plus(self, other: _Rows) -> _Rows:
        """Rows of one base, or constants."""
        bias = self.bias.plus(other.bias)
        if self.base is None or other.base is None:
            return replace(other if self.base is None else self, bias=bias)
        return replace(self, weight=self.weight.plus(other.weight), bias=bias)

    def layer(self, device: torch.device) -> DenseLayer:
        """The rows as a layer of tensors on the device."""
        w, b = self.weight, self.bias
        parts = (w.mean, b.mean, w.variance, b.variance, w.slack, b.slack)
        return DenseLayer(*(torch.as_tensor(part, device=device) for part in parts))


@dataclass(frozen=True, eq=False)
class _Elements:
    """Outputs of the base at other places, `order` (rows,), times fixed factors (rows,): no matrix yet."""

    base: int
    order: Integers
    factor: _Entries


_State = _Rows | _Elements


@dataclass(frozen=True, eq=False)
class _Recognised:
    """What lies at and below a base; width : of its outputs."""

    prefix: int | None
    width: int
    layers: tuple[_Rows, ...] = ()
    activations: tuple[tuple[str, float], ...] = ()


_INPUT = -1
"""The base that is the flattened input."""


class _Reading:
    """One walk over the nodes."""

    def __init__(self, network: Network, posterior: GaussianDiagonal) -> None:
        self._network, self._posterior = network, posterior
        self._readers = Counter(position for node in network.nodes for position in node.inputs)
        self._bases = {_INPUT: _Recognised(None, network.signature.input_size)}
        self._states: list[_State] = []

    @np.errstate(all="ignore")  # what is not finite then is refused by `_sound`
    def output(self) -> _Recognised | None:
        """The whole chain; None where a random node is not affine, or something deterministic ends the graph."""
        random: list[bool] = []
        for position, node in enumerate(self._network.nodes):
            above = any(random[i] for i in node.inputs)
            here = any(self._entries(param).random.any() for param in nodes.params_of(node))
            random.append(above or here)
            state = self._state(position, node)
            if state is None or (isinstance(state, _Rows) and not self._sound(position, state)):
                if random[-1]:
                    return None
                state = self._based(position, node, _Recognised(position, math.prod(node.shape)))
            self._states.append(state)
        state = self._states[self._network.outputs[0]]
        if not isinstance(state, _Rows) or state.base is None:
            return None
        below = self._bases[state.base]
        return replace(below, layers=(*below.layers, state))

    def _sound(self, position: int, rows: _Rows) -> bool:
        """Random rows are read once, numbers are finite, and variances are exact enough."""
        readers = self._readers[position] + (position in self._network.outputs)
        known = all(
            bool((np.isfinite(part.mean + part.slack + part.variance) & (part.loose <= VARIANCE)).all())
            for part in (rows.weight, rows.bias)
        )
        return known and not (readers > 1 and bool(rows.random.any()))

    def _based(self, position: int, node: Node, base: _Recognised) -> _Elements:
        self._bases[position] = base
        return _elements(position, np.arange(math.prod(node.shape)))

    def _entries(self, param: Param) -> _Entries:
        """A parameter as the node sees it, of its own shape."""
        shape = param.shape
        factor = np.broadcast_to(np.asarray(param.factor, np.float64), shape)
        variance = np.zeros(shape)
        if param.source in self._posterior.variances:
            variance = self._posterior.variances[param.source].reshape(-1)[param.index]
        mean = self._network.tensors[param.source].reshape(-1)[param.index]
        found = _Entries(mean, np.zeros(shape), variance, np.zeros(shape)).times(factor)
        if param.slack is None:
            return found
        loose = np.where(found.random & (param.slack > 0), np.inf, found.loose)  # slack is for fixed numbers
        return replace(found, slack=(found.slack + param.slack) * (1 + 4 * UNIT), loose=loose)

    def _state(self, position: int, node: Node) -> _State | None:
        """The node as an affine map of a base, or None."""
        given = [self._states[i] for i in node.inputs]
        shapes = [self._network.nodes[i].shape for i in node.inputs]
        match node:
            case nodes.Input():
                return _elements(_INPUT, node.start + np.arange(math.prod(node.shape)))
            case nodes.Constant():
                value = self._entries(node.value).moved(np.ravel)
                return _Rows(None, _Entries.zeros((len(value.mean), 0)), value)
            case nodes.Reshape() | nodes.Transpose() | nodes.Select() | nodes.Broadcast() | nodes.Concat():
                return _taken(_joined(given), _places(node, shapes))
            case nodes.Linear() if math.prod(shapes[0]) == shapes[0][node.axis]:
                return self._product(self._entries(node.weight), given[0])
            case nodes.Conv() if shapes[0][0] == 1 and math.prod(node.shape) == node.weight.shape[0]:
                return self._product(_unfolded(node, self._entries(node.weight), shapes[0]), given[0])
            case nodes.Scale():
                return _scaled(given[0], self._spread(node.weight, node.shape))
            case nodes.Shift():
                bias = self._spread(node.bias, node.shape)
                constant = None if bias is None else _Rows(None, _Entries.zeros((len(bias.mean), 0)), bias)
                return _summed([given[0], constant], (1, 1))
            case nodes.Sum():
                return _summed(given, node.signs)
            case nodes.Activation() if isinstance(given[0], _Rows):
                return self._closed(position, node, given[0])
        return None

    def _closed(self, position: int, node: nodes.Activation, rows: _Rows) -> _Elements | None:
        """A layer with the activation behind it, which is the next base."""
        alpha = node.alpha
        if rows.base is None or node.kind not in _ACTIVATIONS or not isinstance(alpha, float | int):
            return None
        if not 0 <= alpha <= 1:
            return None
        below = self._bases[rows.base]
        layers, activations = (*below.layers, rows), (*below.activations, (node.kind, float(alpha)))
        return self._based(position, node, _Recognised(below.prefix, math.prod(node.shape), layers, activations))

    def _spread(self, param: Param, shape: tuple[int, ...]) -> _Entries | None:
        """A parameter as a vector over the node's outputs; None if that repeats a random entry."""
        entries = self._entries(param)
        if math.prod(param.shape) != math.prod(shape) and entries.random.any():
            return None
        return entries.moved(lambda part: np.array(np.broadcast_to(part, shape)).reshape(-1))

    def _product(self, outer: _Entries, given: _State) -> _Rows | None:
        """outer (o, i) times an affine map of i rows."""
        if isinstance(given, _Rows):
            return _composed(outer, given)
        columns = outer.times(given.factor.mean, given.factor.slack)
        width = self._bases[given.base].width
        used = given.factor.possible
        if not used.all():
            columns, given = columns.moved(lambda part: part[:, used]), replace(given, order=given.order[used])
        return _Rows(given.base, _placed(columns, given.order, width), _Entries.zeros(outer.mean.shape[:1]))


def _elements(base: int, order: Integers) -> _Elements:
    return _Elements(base, order, replace(_Entries.zeros(order.shape), mean=np.ones(order.shape)))


def _places(node: Node, shapes: list[tuple[int, ...]]) -> Integers:
    """Which of the joined, flattened inputs each flattened output is; -1 for 0."""
    if isinstance(node, nodes.Select):
        return node.index.reshape(-1)
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
    parts = [start + np.arange(math.prod(shape)).reshape(shape) for start, shape in zip(ends, shapes, strict=False)]
    match node:
        case nodes.Concat():
            moved = np.concatenate(parts, node.axis)
        case nodes.Transpose():
            moved = parts[0].transpose(node.perm)
        case nodes.Broadcast():
            moved = np.broadcast_to(parts[0], node.shape)
        case _:
            moved = parts[0]
    return moved.reshape(-1)


def _joined(given: list[_State]) -> _State | None:
    """The rows of several maps of one base, one after the other."""
    first = given[0]
    if len(given) == 1:
        return first
    if any(type(part) is not type(first) or part.base != first.base for part in given):
        return None

    def joined(parts: list[_Entries]) -> _Entries:
        return _Entries(*(np.concatenate(arrays) for arrays in zip(*(vars(p).values() for p in parts), strict=True)))

    elements = [part for part in given if isinstance(part, _Elements)]
    if elements:
        order = np.concatenate([part.order for part in elements])
        return _Elements(elements[0].base, order, joined([part.factor for part in elements]))
    rows = [part for part in given if isinstance(part, _Rows)]
    return _Rows(first.base, joined([part.weight for part in rows]), joined([part.bias for part in rows]))


def _taken(given: _State | None, places: Integers) -> _State | None:
    """Rows at other places; None if that repeats a random one."""
    if given is None or np.array_equal(places, np.arange(_count(given))):
        return given

    def take(part: Floats) -> Floats:
        taken = part[places]
        taken[places < 0] = 0
        return taken

    if isinstance(given, _Elements):
        return _Elements(given.base, given.order[places], given.factor.moved(take))
    repeated = np.bincount(places[places >= 0], minlength=_count(given)) > 1
    if (repeated & given.random).any():
        return None
    return given.moved(take)


def _count(given: _State) -> int:
    return len(given.order) if isinstance(given, _Elements) else len(given.bias.mean)


def _scaled(given: _State, factor: _Entries | None) -> _State | None:
    """Rows times fixed factors (rows,)."""
    if factor is None or factor.random.any():
        return None
    if isinstance(given, _Elements):
        return replace(given, factor=given.factor.times(factor.mean, factor.slack))
    return given.times(factor.mean, factor.slack)


def _summed(given: Sequence[_State | None], signs: tuple[int, ...]) -> _Rows | None:
    """Signed sum of maps of one base and of constants."""
    parts = [part for part in given if isinstance(part, _Rows)]
    if len(parts) < len(given) or len({part.base for part in parts} - {None}) > 1:
        return None
    exact = np.zeros(_count(parts[0]))
    return reduce(_Rows.plus, (part.times(exact + sign, exact) for part, sign in zip(parts, signs, strict=True)))


def _placed(columns: _Entries, order: Integers, width: int) -> _Entries:
    """Columns (o, i) put where the base (width) has what they read; those that read the same add up."""
    rows, count = len(columns.mean), np.bincount(order, minlength=width)
    if width == len(order) and np.array_equal(order, np.arange(width)):
        return columns

    def put(part: Floats) -> Floats:
        full = np.zeros((rows, width))
        if (count > 1).any():
            np.add.at(full.T, order, part.T)
        else:
            full[:, order] = part
        return full

    placed = columns.moved(put)
    if not (count > 1).any():
        return placed
    shared = (count > 1) * (gamma(int(count.max())) * put(np.abs(columns.mean)) + TINY)
    loose = placed.loose + np.where(placed.random & (count > 1), count, 0)
    return replace(placed, slack=(placed.slack + shared) * (1 + gamma(int(count.max()))), loose=loose)


def _composed(outer: _Entries, inner: _Rows) -> _Rows | None:
    """outer (o, i) times the rows (i, width), with their bias as one more column; None if entries are dependent."""
    inside = _Entries(*(np.column_stack(parts) for parts in zip(
        vars(inner.weight).values(), vars(inner.bias).values(), strict=True)))  # fmt: skip
    random = outer.random.any(0)
    if (random & (inside.random.any(1) | (inside.possible.sum(1) > 1))).any():  # (1)
        return None
    if (inside.random.any(1) & (outer.possible.sum(0) > 1)).any():  # (2)
        return None
    if _meet(outer.random, inside.vague).any() or _meet(outer.vague, inside.random).any():
        return None
    terms = outer.possible.astype(np.float64) @ inside.possible.astype(np.float64)
    size = np.abs(outer.mean) @ np.abs(inside.mean)
    shifts = bool(_power_of_two(outer.mean).all()), bool(_power_of_two(inside.mean).all())
    exact = (terms <= 1) & any(shifts) & ((size > LOST) | ~_meet(outer.mean, inside.mean))
    exact &= ~(_meet(outer.slack, inside.possible) | _meet(outer.possible, inside.slack))
    slack = np.abs(outer.mean) @ inside.slack + outer.slack @ (np.abs(inside.mean) + inside.slack)
    slack = slack * (1 + gamma(len(inside.mean))) + np.where(exact, 0.0, gamma(len(inside.mean)) * size + TINY)
    squares = outer.mean**2, inside.mean**2
    variance = outer.variance @ squares[1] + squares[0] @ inside.variance
    wrong = (outer.variance * outer.loose) @ squares[1] + squares[0] @ (inside.variance * inside.loose)
    wrong = wrong + 2 / UNIT * (outer.variance @ (np.abs(inside.mean) * inside.slack))
    wrong = wrong + 2 / UNIT * ((np.abs(outer.mean) * outer.slack) @ inside.variance)
    clean = (terms <= 1) & (shifts[1] or not outer.random.any()) & (shifts[0] or not inside.random.any())
    loose = np.where(variance > 0, wrong / variance * 1.01, 0.0)
    loose = loose + np.where(clean | (variance == 0), 0.0, terms + 2.1)
    underflow = (_meet(outer.random, inside.possible) | _meet(outer.possible, inside.random)) & (variance <= LOST)
    found = _Entries(outer.mean @ inside.mean, slack, variance, np.where(underflow, np.inf, loose))
    return _Rows(inner.base, found.moved(lambda part: part[:, :-1]), found.moved(lambda part: part[:, -1]))


def _meet(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """(o, j): where a term of the matrix product left (o, i) right (i, j) has two factors other than 0."""
    return (left != 0).astype(np.float64) @ (right != 0).astype(np.float64) > 0


def _unfolded(node: nodes.Conv, weight: _Entries, image: tuple[int, ...]) -> _Entries:
    """A convolution with one output pixel as a matrix (O, C H W); what falls on the padding is left out."""
    _, channels, height, width = image
    outputs, per_group, *_ = weight.mean.shape
    o, c, row, column = (np.asarray(axis) for axis in np.indices(weight.mean.shape))
    c = c + o // (outputs // node.groups) * per_group
    row, column = row * node.dilations[0] - node.pads[0], column * node.dilations[1] - node.pads[1]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    at = (o[inside], ((c * height + row) * width + column)[inside])

    def unfold(part: Floats) -> Floats:
        full = np.zeros((outputs, channels * height * width))
        full[at] = part[inside]
        return full

    return weight.moved(unfold)
