"""A network of few random numbers as a fixed network of more inputs: x, and the numbers that the weights are made of.

Every Gaussian weight is w = mean + sum_k z_k d_k, the z_k independent standard normal numbers. So a map with random
weights, at an input v, is W v = (mean) v + sum_k z_k (D_k v): fixed maps, products with z_k, and a sum. `unfolded`
writes that down, for every node with a parameter; what bounds a fixed network over a box of (x, z) then bounds the
random one over the weights of a box of z, whose probability is a product (`gaussian.cells`).

At one x, what a unit of a first dense layer adds up from independent weights of its own is one Gaussian number: its
deviation t(x) is sqrt(sum_j var W_ij x_j^2 + var b_i), and the numbers of different units are independent. `by_units`
makes these deviations inputs of the network, and each unit one latent number u_i: t_i u_i, instead of one for each
weight. That is the law at every single x, as decisions and points ask for it; over a box of inputs the networks that
some x violates are not the same.

Rounding: the directions of a factor are exact. A standard deviation is the root of a variance, and an entry of a
Kronecker-factored one a product, which are rounded: the parameter's slack pays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.network import (
    Gaussian,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Network,
)
from bnn_vnnlib.network.nodes import Node, Param
from bnn_vnnlib.rounding import TINY, UNIT
from bnn_vnnlib.signature import Variable

MAX_LATENTS = 6
"""Latent numbers, at most: boxes of more are too many."""

Mask = NDArray[np.bool_]

Direction = Mapping[str, tuple[Floats, bool]]
"""How one latent number moves the weights: tensor name -> what it moves the tensor by, and whether that is exact."""


def directions(network: Network, posterior: Gaussian) -> list[Direction] | None:
    """The latent numbers that move the network's output, as directions; None for more than `MAX_LATENTS`."""
    used = _used(network)
    match posterior:
        case GaussianDiagonal(variances=variances):
            every = _independent(variances, used)
        case GaussianLowRank(factors=factors, variances=variances):
            every = chain(_along(factors, used), _independent(variances, used))
        case GaussianFull(factors=factors):
            every = _along(factors, used)
        case GaussianKron(layers=layers):
            shapes = {name: tensor.shape for name, tensor in network.tensors.items()}
            every = chain.from_iterable(_of_layer(layer, shapes, used) for layer in layers)
    found = list(islice(every, MAX_LATENTS + 1))
    return found if len(found) <= MAX_LATENTS else None


def unfolded(network: Network, found: list[Direction]) -> Network:
    """The fixed network of the inputs x and z (k,)."""
    size = network.signature.input_size
    tensors, made = dict(network.tensors), list[Node]()
    for k in range(len(found)):
        made.append(nodes.Input(f"latent {k}", (), (1,), size + k))
    place = dict[int, int]()

    def add(node: Node) -> int:
        made.append(node)
        return len(made) - 1

    def moved(node: Node, position: int) -> int:
        """The node with the means, and what the latent numbers add to it."""
        terms = [position]
        for param in nodes.params_of(node):
            for k, part in _moves(found, param, tensors):
                z = add(nodes.Broadcast(f"latent {k}", (k,), node.shape))
                if isinstance(node, nodes.Linear | nodes.Conv | nodes.Scale):
                    fixed = add(replace(node, inputs=made[position].inputs, weight=part))
                    terms.append(add(nodes.Product(node.name, (fixed, z), node.shape)))
                else:
                    terms.append(add(nodes.Scale(node.name, (z,), node.shape, part)))
        if len(terms) == 1:
            return position
        return add(nodes.Sum(node.name, tuple(terms), node.shape, (1,) * len(terms)))

    for position, node in enumerate(network.nodes):
        fixed = add(replace(node, inputs=tuple(place[source] for source in node.inputs)))
        place[position] = moved(node, fixed)
    latents = Variable("latent numbers", "float64", (len(found),))
    signature = replace(network.signature, inputs=(*network.signature.inputs, latents))
    outputs = tuple(place[position] for position in network.outputs)
    return Network(signature, tuple(made), outputs, tensors, network.softmax_axis)


def _moves(found: list[Direction], param: Param, tensors: dict[str, Floats]) -> Iterator[tuple[int, Param]]:
    """The latent numbers that move a parameter, each with what it moves it by: a parameter of a further tensor."""
    for k, direction in enumerate(found):
        if param.source in direction:
            change, exact = direction[param.source]
            values = change.reshape(-1)[param.index]
            if values.any():
                name = f"{param.source} along latent {k}"
                tensors[name] = change
                slack = None if exact else 8 * UNIT * np.abs(values * param.factor) + TINY
                yield k, Param(name, param.index, param.factor, slack)


@dataclass(frozen=True, eq=False)
class Units:
    """A network whose first layer has one latent number for each random unit.

    Attributes
    ----------
    network : of the inputs x, t (the deviations of the units) and u (their latent numbers)
    posterior : of all other weights
    weight, bias : (units, n), (units,) : variances; inputs (n,) : the places of the layer's inputs in x
    """

    network: Network
    posterior: GaussianDiagonal
    weight: Floats
    bias: Floats
    inputs: NDArray[np.int64]


def by_units(network: Network, posterior: Gaussian) -> Units | None:
    """The network by units, if that has fewer latent numbers."""
    if not isinstance(posterior, GaussianDiagonal):
        return None
    uses = Counter(param.source for node in network.nodes for param in nodes.params_of(node))
    for position, node in enumerate(network.nodes):
        if not (isinstance(node, nodes.Linear) and _whole(node.weight, uses, posterior)):
            continue
        source = network.nodes[node.inputs[0]]
        while isinstance(source, nodes.Reshape):
            source = network.nodes[source.inputs[0]]
        size = math.prod(node.shape)
        if not isinstance(source, nodes.Input) or size != node.shape[node.axis]:
            continue
        readers = [place for place, other in enumerate(network.nodes) if position in other.inputs]
        last, names, bias = position, {node.weight.source}, np.zeros(size)
        follower = network.nodes[readers[0]] if len(readers) == 1 else None
        if isinstance(follower, nodes.Shift) and position not in network.outputs:
            own = follower.bias
            if own.index.size == size and _whole(own, uses, posterior):
                last, bias = readers[0], _variance(own, posterior).reshape(-1)
                names.add(own.source)
        weight = _variance(node.weight, posterior)
        units = np.flatnonzero(weight.any(-1) | (bias > 0))
        if len(units) < np.count_nonzero(weight) + np.count_nonzero(bias):
            rest = {name: variance for name, variance in posterior.variances.items() if name not in names}
            places = source.start + np.arange(math.prod(source.shape))
            return Units(_with_units(network, last, units), GaussianDiagonal(rest), weight[units], bias[units], places)
    return None


def _whole(param: Param, uses: Mapping[str, int], posterior: GaussianDiagonal) -> bool:
    """A random tensor that nothing else uses, each entry once."""
    return param.source in posterior.variances and uses[param.source] == 1 and param.copies == 1


def _variance(param: Param, posterior: GaussianDiagonal) -> Floats:
    variance: Floats = posterior.variances[param.source].reshape(-1)[param.index] * param.factor**2
    return variance


def _with_units(network: Network, last: int, units: NDArray[np.int64]) -> Network:
    """Inputs t and u behind x, and t_i u_i added to the units of the node `last`."""
    n, count, shape = network.signature.input_size, len(units), network.nodes[last].shape
    place = np.zeros((math.prod(shape), count))
    place[units, np.arange(count)] = 1.0
    tensors = {**network.tensors, "places of units": place}
    spread = Param("places of units", np.arange(place.size).reshape(place.shape), np.ones(()))
    added: list[Node] = [
        nodes.Input("deviations", (), (1, count), n),
        nodes.Input("latent numbers of units", (), (1, count), n + count),
        nodes.Product("noise of units", (last + 1, last + 2), (1, count)),
        nodes.Linear("noise of units", (last + 3,), (1, len(place)), spread, 1),
        nodes.Reshape("noise of units", (last + 4,), shape),
        nodes.Sum("units", (last, last + 5), shape, (1, 1)),
    ]

    def moved(source: int) -> int:
        return source + len(added) if source >= last else source

    behind = [replace(node, inputs=tuple(map(moved, node.inputs))) for node in network.nodes[last + 1 :]]
    both = (Variable("deviations", "float64", (count,)), Variable("latent numbers of units", "float64", (count,)))
    signature = replace(network.signature, inputs=(*network.signature.inputs, *both))
    made = (*network.nodes[: last + 1], *added, *behind)
    return Network(signature, made, tuple(map(moved, network.outputs)), tensors, network.softmax_axis)


def with_probabilities(network: Network, transform: str) -> Network:
    """The network with its softmax, or the sigmoids of its outputs, as nodes: one vector of outputs.

    softmax_i = 1 / (1 + sum over j != i of exp(f_j - f_i)), of two outputs the sigmoid of a difference; of one
    output it is 1.
    """
    made, tensors, m = list(network.nodes), dict(network.tensors), network.signature.output_size

    def add(node: Node) -> int:
        made.append(node)
        return len(made) - 1

    def fixed(values: Floats, what: str) -> Param:
        tensors[f"probabilities: {what}"] = values
        return Param(f"probabilities: {what}", np.arange(values.size).reshape(values.shape), np.ones(()))

    flat = [add(nodes.Reshape("outputs", (p,), (1, math.prod(network.nodes[p].shape)))) for p in network.outputs]
    y = flat[0] if len(flat) == 1 else add(nodes.Concat("outputs", tuple(flat), (1, m), 1))
    if transform == "sigmoid":
        y = add(nodes.Activation("probabilities", (y,), (1, m), "sigmoid"))
    elif transform == "softmax" and m == 1:
        y = add(nodes.Linear("probabilities", (y,), (1, 1), fixed(np.zeros((1, 1)), "zero"), 1))
        y = add(nodes.Shift("probabilities", (y,), (1, 1), fixed(np.ones(1), "one")))
    elif transform == "softmax" and m == 2:
        difference = fixed(np.array([[1.0, -1.0], [-1.0, 1.0]]), "differences")
        y = add(nodes.Linear("differences", (y,), (1, 2), difference, 1))
        y = add(nodes.Activation("probabilities", (y,), (1, 2), "sigmoid"))
    elif transform == "softmax":
        i, j = np.nonzero(~np.eye(m, dtype=bool))
        pairs = np.zeros((len(i), m))
        pairs[np.arange(len(i)), j], pairs[np.arange(len(i)), i] = 1.0, -1.0
        y = add(nodes.Linear("differences", (y,), (1, len(i)), fixed(pairs, "differences"), 1))
        y = add(nodes.Activation("exponentials", (y,), (1, len(i)), "exp"))
        groups = fixed(np.repeat(np.eye(m), m - 1, axis=1), "groups")
        y = add(nodes.Linear("sums", (y,), (1, m), groups, 1))
        y = add(nodes.Activation("sums", (y,), (1, m), "relu"))  # they are no less than 0, whatever rounding says
        y = add(nodes.Shift("divisors", (y,), (1, m), fixed(np.ones(1), "one")))
        y = add(nodes.Activation("probabilities", (y,), (1, m), "reciprocal"))
    return Network(network.signature, tuple(made), (y,), tensors)


def _used(network: Network) -> dict[str, Mask]:
    """Source -> a mask of the entries that some node uses."""
    found = dict[str, Mask]()
    for node in network.nodes:
        for param in nodes.params_of(node):
            mask = found.setdefault(param.source, np.zeros(network.tensors[param.source].size, dtype=bool))
            mask[param.index.reshape(-1)] = True
    return found


def _independent(variances: Mapping[str, Floats], used: Mapping[str, Mask]) -> Iterator[Direction]:
    """One direction for each random entry that is used."""
    for name, variance in variances.items():
        if name in used:
            deviations = np.sqrt(np.asarray(variance, np.float64)).reshape(-1)
            for place in np.flatnonzero((deviations > 0) & used[name]):
                direction = np.zeros(len(deviations))
                direction[place] = deviations[place]
                yield {name: (direction.reshape(np.shape(variance)), False)}


def _along(factors: Mapping[str, Floats], used: Mapping[str, Mask]) -> Iterator[Direction]:
    """One direction for each latent number of a factor."""
    for k in range(len(next(iter(factors.values())))):
        yield from _moving({name: np.asarray(factor[k], np.float64) for name, factor in factors.items()}, used, True)


def _of_layer(layer: KronLayer, shapes: Mapping[str, tuple[int, ...]], used: Mapping[str, Mask]) -> Iterator[Direction]:
    """The latent numbers of a Kronecker-factored layer: outer products of columns of its factors."""
    for a, b in np.argwhere(layer.spectrum > 0):
        parts = layer.split(np.sqrt(layer.spectrum[a, b]) * np.outer(layer.left[:, a], layer.right[:, b]))
        yield from _moving({name: part.reshape(shapes[name]) for name, part in parts.items()}, used, False)


def _moving(parts: Mapping[str, Floats], used: Mapping[str, Mask], exact: bool) -> Iterator[Direction]:
    """The direction, if it moves an entry that is used."""
    found = {name: (part, exact) for name, part in parts.items() if name in used and part.reshape(-1)[used[name]].any()}
    if found:
        yield found
