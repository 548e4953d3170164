"""Standard deviations as somebody states them: absolute or relative, for all layers or for some."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from onnx import ModelProto

from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.model import GaussianDiagonal, Network
from bnn_vnnlib.model.attributes import holders
from bnn_vnnlib.network import nodes
from bnn_vnnlib.signature import Floats

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


def computed_weights(network: Network, proto: ModelProto) -> tuple[str, ...]:
    """A remark if layers have weights that the file computes from others (weight norm, say): those get no posterior."""
    made = {name for node in proto.graph.node if node.op_type != "Constant" for name in node.output if name}
    layers = [node for node in network.nodes if isinstance(node, nodes.Linear | nodes.Conv)]
    sources = dict.fromkeys(node.weight.source.rstrip("'") for node in layers)  # the name of the value, and marks
    names = [name for name in sources if name in made]
    if not names:
        return ()
    return (f"computed in the file, and left without deviations: {', '.join(names)}; simplify the network first",)


def stated_posterior(network: Network, names: Sequence[str], spreads: Sequence[Spread]) -> GaussianDiagonal:
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


def refuse_without_weights(names: Sequence[str]) -> None:
    """Raise if there is nothing that could be uncertain."""
    if not names:
        raise UnsupportedError("the network has no linear layer or convolution with weights of its own")
