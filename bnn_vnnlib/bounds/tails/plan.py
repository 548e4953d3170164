"""What is claimed of a network on the event G, and with which probability each claim may fail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from bnn_vnnlib.bounds.tails.tail import Levels
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.errors import SoundnessError
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import (
    Activation,
    Broadcast,
    Concat,
    Constant,
    Conv,
    Input,
    Linear,
    Max,
    Product,
    Reshape,
    Scale,
    Select,
    Shift,
    Sum,
    Transpose,
)

EVENTS = 5
"""Events of an element whose range is claimed: below, above, variation over the box, and its mean given the earlier
stages below and above; without the centred bounds only the first two, which take no more than their share."""


@dataclass(frozen=True, eq=False)
class Deviations:
    """z of the events of one claimed node.

    sides, middle : `Levels`, broadcast to (K, M, 2 size); near : (K, M, size)
    """

    sides: Levels
    middle: Levels
    near: Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """What is free to choose: any choice is sound.

    deviations : of each claimed node; slopes, moves : of some activations, the choice of their lines and of those of
    bound 4 (2, K, M, *shape);
    thorough : with swings, bound 4 and the tighter variation, which takes two to three times as long
    """

    deviations: Mapping[int, Deviations]
    slopes: Mapping[int, Tensor] = field(default_factory=dict)
    moves: Mapping[int, Tensor] = field(default_factory=dict)
    thorough: bool = False


def claimed(network: Network) -> list[int]:
    """Nodes whose ranges have to be claimed: the first ones behind a parameter on every way to an activation, to a
    weighted map or to a place where branches meet.

    Every parameter counts as random here, which costs a few events and keeps the plan independent of the posterior.
    """
    found: list[int] = []
    known = []
    for node in network.nodes:
        match node:
            case Input() | Constant():
                known.append(True)
                continue
            case Activation() | Linear() | Conv() | Scale() | Broadcast() | Select() | Product() | Max():
                for source in node.inputs:
                    if not known[source]:
                        found.append(source)
                        known[source] = True
            case _:
                pass
        open_ = isinstance(node, Linear | Conv | Scale | Shift)
        known.append(not open_ and all(known[source] for source in node.inputs))
    uses = [*network.outputs, *(source for node in network.nodes for source in node.inputs)]
    found += [p for p in range(len(network.nodes)) if not known[p] and uses.count(p) > 1]
    return sorted(found)


def stages(network: Network) -> dict[int, int]:
    """For each map and bias the claim that its noise is behind; the number of nodes where only the rows are.

    The proofs in `tail` go in this order. What they need is checked: noise that is not claimed yet has one reader,
    which only adds or moves it.

    Raises
    ------
    SoundnessError : noise that gets past the claims
    """
    nodes, last, ends = network.nodes, len(network.nodes), set(claimed(network))
    readers: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for source in node.inputs:
            readers[source].append(position)
    for position in network.outputs:
        readers[position].append(last)
    found: dict[int, int] = {}
    for start, node in enumerate(nodes):
        place, used = start, isinstance(node, Linear | Conv | Scale | Shift) and bool(readers[start])
        while used and place not in ends and place != last:
            reader, *others = readers[place] or [last]
            if others or (reader != last and not isinstance(nodes[reader], Shift | Sum | Reshape | Transpose | Concat)):
                raise SoundnessError(f"noise gets past the claims at node {nodes[place].name}")
            place = reader
        if used:
            found[start] = place
    return found


def powers(network: Network) -> list[int]:
    """The k of all `Levels` that are asked for: one swing a dense layer at most, and half of p for all of them."""
    layers = sum(isinstance(node, Linear) for node in network.nodes)
    return [2**i for i in range(max(3, layers.bit_length() + 2))]


def sources_enter_once(network: Network, deviations: WeightBoxes) -> bool:
    """No random source is read by two nodes."""
    params = [getattr(node, name) for node in network.nodes for name in ("weight", "bias") if hasattr(node, name)]
    names = [param.source for param in params if param.source in deviations.spreads]
    return len(set(names)) == len(names)


def own_noise_is_independent(network: Network, position: int) -> bool:
    """The node is a dense layer of its own weights: no two elements share one. (Else they may.)"""
    node = network.nodes[position]
    if isinstance(node, Shift):
        if node.bias.copies > 1 or math.prod(node.bias.shape) < math.prod(node.shape):
            return False
        node = network.nodes[node.inputs[0]]
    return isinstance(node, Linear) and math.prod(node.shape) == node.shape[node.axis] and node.weight.copies == 1
