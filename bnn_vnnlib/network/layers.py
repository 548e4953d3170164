"""A network in two parts: what is known once the first random layers are drawn, and the rest.

A random layer is a linear map with random weights and what is added or multiplied to it before the next one: its
tensors, in the order in which the graph uses them. With the first K layers drawn, a node is known if no other random
tensor leads to it. The known nodes that others read (or that are outputs) are the frontier. `first` computes them from
x; `rest` computes the outputs from them, and reads none of the drawn tensors. So f(x) = rest(first(x)), and given
`first`, the outputs depend on the other layers alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.network.families import names_of
from bnn_vnnlib.network.network import GaussianDiagonal, GaussianKron, Network, Posterior
from bnn_vnnlib.network.nodes import Constant, Conv, Input, Linear, Node, params_of
from bnn_vnnlib.signature import Signature, Variable


@dataclass(frozen=True, eq=False)
class NetworkSplit:
    """A network cut in two: f(x) = rest(first(x))."""

    first: Network
    rest: Network


def random_layers(network: Network, posterior: Posterior) -> list[tuple[str, ...]]:
    """The tensors of each random layer, in the order of the graph.

    Raises
    ------
    UnsupportedError : the layers are not independent of each other
    """
    if not isinstance(posterior, GaussianDiagonal | GaussianKron):
        raise UnsupportedError(
            "drawn_layers needs random layers that are independent of each other (independent Gaussian weights, or "
            "Kronecker factors by layer): leave it out, and all of each network is drawn"
        )
    random, layers = set(names_of(posterior)), list[list[str]]()
    for node in network.nodes:
        own = [param.source for param in params_of(node) if param.source in random]
        fresh = [name for name in own if not any(name in layer for layer in layers)]
        if fresh and (not layers or isinstance(node, Linear | Conv)):
            layers.append([])
        if fresh:
            layers[-1] += fresh
    if isinstance(posterior, GaussianKron):  # a bias that shares the factors of its weight
        for part in posterior.layers:
            places = [i for i, layer in enumerate(layers) if set(layer) & set(part.names)]
            for place in places[:0:-1]:
                layers[places[0]] += layers.pop(place)
    return [tuple(layer) for layer in layers]


def split_layers(network: Network, layers: Sequence[Collection[str]], count: int) -> NetworkSplit:
    """The network after the first `count` of its random layers.

    Raises
    ------
    UnsupportedError : there are fewer, or the rest uses a drawn tensor again
    """
    if count > len(layers):
        raise UnsupportedError(f"drawn_layers is {count}, and the network has {len(layers)} random layers")
    drawn = {name for layer in layers[:count] for name in layer}
    other = {name for layer in layers[count:] for name in layer}
    known = list[bool]()
    for node in network.nodes:
        sources = {param.source for param in params_of(node)}
        known.append(not sources & other and all(known[place] for place in node.inputs))
    unknown = [place for place, is_known in enumerate(known) if not is_known]
    again = sorted(drawn & {param.source for place in unknown for param in params_of(network.nodes[place])})
    if again:
        raise UnsupportedError(f"drawn_layers {count}: behind these layers the graph uses {again[0]} again")
    read = {source for place in unknown for source in network.nodes[place].inputs} | set(network.outputs)
    frontier = sorted(
        place for place in read if known[place] and not isinstance(network.nodes[place], Constant)
    )  # fmt: skip
    constants = sorted(place for place in read if known[place] and isinstance(network.nodes[place], Constant))
    first = before(network, frontier)
    variables = first.signature.outputs
    starts, start = list[Node](), 0
    for variable in variables:
        starts.append(Input(variable.name, (), variable.shape, start))
        start += variable.size
    places = {place: index for index, place in enumerate(frontier)}
    body = list[Node](starts)
    for place in sorted((*constants, *unknown)):
        node = network.nodes[place]
        places[place] = len(body)
        body.append(replace(node, inputs=tuple(places[source] for source in node.inputs)))
    rest = Network(
        Signature(variables, network.signature.outputs), tuple(body), tuple(places[one] for one in network.outputs),
        _used(network, body), network.softmax_axis,
    )  # fmt: skip
    return NetworkSplit(first, rest)


def before(network: Network, places: Sequence[int]) -> Network:
    """The part of a network that computes some nodes: they are its outputs."""
    variables = tuple(Variable(f"h{place}", "float64", network.nodes[place].shape) for place in places)
    return _part(network, _ancestors(network, places), Signature(network.signature.inputs, variables), places)


def _ancestors(network: Network, places: Sequence[int]) -> list[int]:
    needed = set(places)
    for place in reversed(range(len(network.nodes))):
        if place in needed:
            needed.update(network.nodes[place].inputs)
    return sorted(needed | {i for i, node in enumerate(network.nodes) if isinstance(node, Input)})


def _part(network: Network, kept: Sequence[int], signature: Signature, outputs: Sequence[int]) -> Network:
    places = {place: index for index, place in enumerate(kept)}
    nodes = [
        replace(network.nodes[place], inputs=tuple(places[one] for one in network.nodes[place].inputs))
        for place in kept
    ]
    ends = tuple(places[one] for one in outputs)
    return Network(signature, tuple(nodes), ends, _used(network, nodes), None)


def _used(network: Network, nodes: Sequence[Node]) -> dict[str, Floats]:
    names = {param.source for node in nodes for param in params_of(node)}
    return {name: network.tensors[name] for name in sorted(names)}
