"""Deterministic networks into BNNs: by stated standard deviations, by a fit on data, or as an ensemble.

1. `Spread`: standard deviations as somebody states them, absolute or relative, for all layers or for some.
2. Several networks of one architecture as weight samples.
3. The recipes, and `convert`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError, naming
from bnn_vnnlib.model import GaussianDiagonal, Network, WeightSamples, attach, model_from_proto
from bnn_vnnlib.model.attributes import array_of, holders, label
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.reading import write_readable
from bnn_vnnlib.model.recovery import is_stochastic
from bnn_vnnlib.model.recovery.graph import Flow
from bnn_vnnlib.network import nodes
from bnn_vnnlib.posteriors.fit import Data, FitMethod, fit
from bnn_vnnlib.posteriors.parts import with_values
from bnn_vnnlib.signature import Likelihood
from bnn_vnnlib.system.environment import plain_state

# 1. Stated deviations

_TRANSPARENT = (nodes.Reshape, nodes.Transpose, nodes.Broadcast, nodes.Sum, nodes.Scale, nodes.Shift)


@dataclass(frozen=True)
class Spread:
    """sd = value, or value * |mean| if it is relative, for the weights whose name fits a pattern (`*`, `?`, `[..]`)."""

    value: float
    relative: bool
    pattern: str = "*"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise OptionError(f"a standard deviation must be a finite number >= 0, found {self.value}")

    @classmethod
    def parse(cls, text: str) -> Spread:
        """`PATTERN=0.1` (absolute) or `PATTERN=10%` (of |mean|).

        Raises
        ------
        OptionError : not of this form

        >>> Spread.parse("fc*.weight=5%")
        Spread(value=0.05, relative=True, pattern='fc*.weight')
        """
        pattern, _, number = text.rpartition("=")
        relative = number.endswith("%")
        try:
            value = float(number.removesuffix("%"))
        except ValueError:
            value = math.nan
        if not pattern or not math.isfinite(value):
            raise OptionError(f"--layer {text!r}: expected NAME=0.1 (absolute) or NAME=5% (relative to the mean)")
        return cls(value / 100 if relative else value, relative, pattern)

    def of(self, mean: Floats) -> Floats:
        """Standard deviations of weights."""
        return self.value * np.abs(mean) if self.relative else np.full(mean.shape, self.value)


def weight_names(network: Network, proto: ModelProto) -> list[str]:
    """The weights and biases of the linear layers and convolutions, in the file's names and the graph's order.

    Not among them: constants in front of the first layer (a normalisation of the input), operands of normalisations,
    and what is computed while the file is read.
    """
    norms = [node for node in proto.graph.node if node.op_type.endswith("Normalization")]
    stored = holders(proto).keys() - {name for node in norms for name in node.input[1:]}
    names: dict[str, None] = {}
    for node in network.nodes:
        if isinstance(node, nodes.Linear | nodes.Conv):
            names[node.weight.source] = None
        elif isinstance(node, nodes.Shift) and _behind_layer(network, node):
            names[node.bias.source] = None
    return [name for name in names if name in stored]


def _computed_weights(network: Network, proto: ModelProto) -> tuple[str, ...]:
    """A remark if layers have weights that the file computes from others (weight norm, say): those get no posterior."""
    made = {name for node in proto.graph.node if node.op_type != "Constant" for name in node.output if name}
    layers = [node for node in network.nodes if isinstance(node, nodes.Linear | nodes.Conv)]
    sources = dict.fromkeys(node.weight.source.rstrip("'") for node in layers)  # the name of the value, and marks
    names = [name for name in sources if name in made]
    if not names:
        return ()
    return (f"computed in the file, and left without deviations: {', '.join(names)}; simplify the network first",)


def _stated_posterior(network: Network, names: Sequence[str], spreads: Sequence[Spread]) -> GaussianDiagonal:
    """Independent Gaussians around the weights; the last spread that fits a name counts.

    Parameters
    ----------
    names : the weights that may get a posterior

    Raises
    ------
    OptionError : a pattern fits no weight (lists them), or every sd is 0
    """
    for spread in spreads:
        if not any(fnmatchcase(name, spread.pattern) for name in names):
            raise OptionError(f"no weight is called {spread.pattern!r}; the weights are {', '.join(names) or 'none'}")
    variances = {}
    for name in names:
        fitting = [spread for spread in spreads if fnmatchcase(name, spread.pattern)]
        deviation = fitting[-1].of(network.tensors[name]) if fitting else np.zeros(())
        if deviation.any():
            variances[name] = deviation**2
    if not variances:
        raise OptionError("every standard deviation is 0: this is the network itself, which needs no conversion")
    return GaussianDiagonal(variances)


def _behind_layer(network: Network, node: nodes.Node) -> bool:
    """A linear layer or a convolution is in front, with no activation between."""
    pending = list(node.inputs)
    while pending:
        before = network.nodes[pending.pop()]
        if isinstance(before, nodes.Linear | nodes.Conv):
            return True
        if isinstance(before, _TRANSPARENT):
            pending.extend(before.inputs)
    return False


def _refuse_without_weights(names: Sequence[str]) -> None:
    """Raise if there is nothing that could be uncertain."""
    if not names:
        raise UnsupportedError("the network has no linear layer or convolution with weights of its own")


# 2. Ensembles


def _ensemble_posterior(first: ModelProto, others: Sequence[str | Path]) -> WeightSamples:
    """Samples of the weights that differ, by the first network's names; all networks count alike.

    Raises
    ------
    PosteriorError : a network has another graph, or other shapes; names file and node
    OptionError : no other network, or no difference
    """
    if not others:
        raise OptionError("an ensemble needs two networks or more: name the others with --member")
    own = _floats(first)
    members = [own]
    for path in others:
        proto, found = read_proto(path)
        with naming(found):
            names = _correspondence(first, proto)
            theirs = _floats(proto)
            members.append({name: theirs[names[name]] for name in own if name in names})
    shared = [name for name in own if all(name in member for member in members)]
    samples = {name: np.array([member[name] for member in members], np.float64) for name in shared}
    different = {name: stack for name, stack in samples.items() if (stack != stack[0]).any()}
    if not different:
        raise OptionError("the networks have the same weights")
    return WeightSamples(different, np.full(len(members), 1 / len(members)))


def _floats(proto: ModelProto) -> dict[str, NDArray]:
    arrays = {name: array_of(tensor) for name, tensor in holders(proto).items()}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def _correspondence(first: ModelProto, other: ModelProto) -> dict[str, str]:
    """Names of the one graph -> names of the other, provided that they are the same graph."""
    mine, theirs = Flow(first), Flow(other)
    names: dict[str, str] = {}
    for ours, its in zip(_inputs(first), _inputs(other), strict=False):
        names[ours] = its
    a, b = ([node for node in flow.nodes if node.op_type != "Constant"] for flow in (mine, theirs))
    if len(a) != len(b) or len(_inputs(first)) != len(_inputs(other)):
        raise PosteriorError(f"another architecture: {len(b)} nodes, expected {len(a)}")
    values = [{name: array_of(tensor) for name, tensor in holders(proto).items()} for proto in (first, other)]
    for node, twin in zip(a, b, strict=True):
        if not _same(node, twin):
            raise PosteriorError(f"another architecture: expected {label(node)} with its attributes", node=label(twin))
        for ours, its in (*zip(node.input, twin.input, strict=True), *zip(node.output, twin.output, strict=True)):
            if names.setdefault(ours, its) != its:
                raise PosteriorError(f"another architecture: reads {its!r}, expected {names[ours]!r}", node=label(twin))
            _compare(values[0].get(ours), values[1].get(its), its)
    return names


def _inputs(proto: ModelProto) -> list[str]:
    stored = {tensor.name for tensor in proto.graph.initializer}
    return [info.name for info in proto.graph.input if info.name not in stored]


def _same(node: NodeProto, twin: NodeProto) -> bool:
    counts = (len(node.input), len(node.output)) == (len(twin.input), len(twin.output))
    kinds = (node.op_type, node.domain) == (twin.op_type, twin.domain)
    parts = [sorted(part.SerializeToString() for part in one.attribute) for one in (node, twin)]
    return counts and kinds and parts[0] == parts[1]


def _compare(ours: NDArray | None, its: NDArray | None, name: str) -> None:
    if (ours is None) != (its is None):
        raise PosteriorError("is stored in one network and computed in the other", node=name)
    if ours is None or its is None:
        return
    if ours.shape != its.shape or ours.dtype != its.dtype:
        found, expected = f"shape {its.shape}, type {its.dtype}", f"{ours.shape}, {ours.dtype}"
        raise PosteriorError(f"another architecture: has {found}, expected {expected}", node=name)
    if ours.dtype.kind != "f" and not np.array_equal(ours, its):
        raise PosteriorError("holds other integers: another architecture", node=name)


# 3. Recipes

Converted = tuple[ModelProto, tuple[str, ...]]


Recipe = Callable[[ModelProto, Network, Likelihood, Path], Converted]
"""How a plain network (the graph, the same read, the likelihood, the file) becomes a BNN, with remarks."""


@dataclass(frozen=True)
class Stated:
    """Independent Gaussians with stated standard deviations."""

    spreads: tuple[Spread, ...]

    def __call__(self, proto: ModelProto, network: Network, likelihood: Likelihood, source: Path) -> Converted:
        names = weight_names(network, proto)
        _refuse_without_weights(names)
        posterior = _stated_posterior(network, names, self.spreads)
        counts = f"{len(posterior.variances)} of {len(names)} weight tensors"
        notes = (f"stated standard deviations for {counts}", *_computed_weights(network, proto))
        return attach(proto, posterior, likelihood=likelihood), notes


@dataclass(frozen=True)
class FittedOn:
    """A posterior fitted on data: an archive, or a folder with an archive <network's name>.npz for each network."""

    method: FitMethod
    data: Path
    epochs: int = 20
    rate: float = 1e-3
    seed: int = 0
    progress: Callable[[int], None] | None = None

    def __call__(self, proto: ModelProto, network: Network, likelihood: Likelihood, source: Path) -> Converted:
        names = weight_names(network, proto)
        _refuse_without_weights(names)
        stem = source.name.removesuffix(".gz").removesuffix(".onnx")
        path = self.data / f"{stem}.npz" if self.data.is_dir() else self.data
        data = Data.read(path, network, likelihood)
        means, variances, remarks = fit(
            self.method, network, names, data, likelihood,
            epochs=self.epochs, rate=self.rate, seed=self.seed, progress=self.progress,
        )  # fmt: skip
        moved = with_values(proto, means)
        notes = (*remarks, *_computed_weights(network, proto))
        return attach(moved, GaussianDiagonal(variances), likelihood=likelihood), notes


@dataclass(frozen=True)
class Ensemble:
    """The network and others of its architecture, as weight samples."""

    members: tuple[Path, ...]

    def __call__(self, proto: ModelProto, network: Network, likelihood: Likelihood, source: Path) -> Converted:
        posterior = _ensemble_posterior(proto, self.members)
        note = f"{len(posterior.probabilities)} networks as samples of {len(posterior.stored)} weight tensors"
        return attach(proto, posterior, likelihood=likelihood), (note,)


@plain_state()
def convert(source: Path, recipe: Recipe, likelihood: Likelihood) -> Converted:
    """A plain network file as a BNN, checked by reading it again.

    Raises
    ------
    PosteriorError : the file has a posterior already, or one that has to be recovered
    InputError : whatever the recipe or the reader refuses
    """
    proto, found = read_proto(source)
    with naming(found):
        if is_stochastic(proto):
            raise PosteriorError("draws its weights itself: use `bnn-vnnlib recover`")
        plain = model_from_proto(proto)
        if plain.posterior is not None:
            raise PosteriorError("carries a posterior already")
        converted, notes = recipe(proto, plain.network, likelihood, found)
        model_from_proto(converted)
    return converted, notes


def convert_file(source: Path, target: Path, recipe: Recipe, likelihood: Likelihood) -> Sequence[str]:
    """`convert` from file to file; returns the remarks."""
    proto, notes = convert(source, recipe, likelihood)
    return (*notes, f"wrote {write_readable(proto, target)}")
