"""Which random weights the expected output of a network depends on through their means alone."""

from __future__ import annotations

from collections import Counter

from bnn_vnnlib.network.families import names_of, only
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, GaussianKron, Network
from bnn_vnnlib.network.nodes import Conv, Linear, Reshape, Scale, Select, Shift, Sum, Transpose, params_of


def without_last_layer(network: Network, posterior: Gaussian) -> Gaussian:
    """The posterior of the weights that matter for E f(x) beyond their means, which `Network.tensors` holds.

    Proof. Walk from the output back along nodes with one input as long as they are affine in it.
    1. The output is W z + (terms with other parameters): linear in the entries of W, for fixed z, and W is used once.
    2. If W is independent of every random tensor in front of it, and so of z and of what is added in front, then
       E[W z] = E[W] E[z]. Biases behind W may depend on it: they are added, and E of a sum is the sum of the E.
    3. With W replaced by its mean the walk goes on with E[z], to which the same applies. A bias enters linearly, too.
    4. Where the walk meets a sum, each of its terms is walked by itself, with what has been passed so far, and so is
       each of several outputs: E of a sum is the sum of the E, and each term asks only for what is in front of it. A
       tensor is replaced by its mean where that may be done on every walk that depends on it.

    Returns
    -------
    the marginal of all other tensors; with none of them `GaussianDiagonal({})`
    """
    random = set(names_of(posterior))
    averaged, needed = set[str](), set[str]()
    walks = [walk for output in network.outputs for walk in _walks(network, posterior, output, set(), set())]
    for mine, used in walks:
        averaged |= mine
        needed |= (used & random) - mine
    return _marginal(posterior, random - (averaged - needed))


_MOST_TERMS = 64
"""Sums with more terms are not walked through."""


def _walks(
    network: Network, posterior: Gaussian, position: int, passed: set[int], averaged: set[str]
) -> list[tuple[set[str], set[str]]]:
    """Every walk from a node on, as (names of the tensors that it replaces by their mean, names of those it depends
    on).

    passed, averaged : on the way here
    """
    random, block = set(names_of(posterior)), _blocks(posterior)
    behind = passed | _ancestors(network, position)
    uses = Counter(param.source for place in behind for param in params_of(network.nodes[place]))
    passed, averaged = set(passed), set(averaged)
    while isinstance(node := network.nodes[position], Linear | Conv | Scale | Shift | Reshape | Transpose | Select):
        passed.add(position)
        for param in params_of(node):
            if param.source in random:
                before = {
                    block[other.source]
                    for place in behind - passed
                    for other in params_of(network.nodes[place])
                    if other.source in random
                }
                free = isinstance(node, Shift) or block[param.source] not in before
                if uses[param.source] > 1 or not free:
                    return [(averaged, set(uses))]
                averaged.add(param.source)
        (position,) = node.inputs
    if not isinstance(node, Sum) or len(node.inputs) > _MOST_TERMS // max(1, len(passed)):
        return [(averaged, set(uses))]
    passed.add(position)
    return [walk for term in node.inputs for walk in _walks(network, posterior, term, passed, averaged)]


def _ancestors(network: Network, position: int) -> set[int]:
    """The nodes that a node depends on, itself included."""
    found, stack = set[int](), [position]
    while stack:
        place = stack.pop()
        if place not in found:
            found.add(place)
            stack.extend(network.nodes[place].inputs)
    return found


def _marginal(posterior: Gaussian, names: set[str]) -> Gaussian:
    found = only(posterior, names)
    return GaussianDiagonal({}) if found is None else found  # type: ignore[return-value]


def _blocks(posterior: Gaussian) -> dict[str, int]:
    """Tensors of different blocks are independent."""
    match posterior:
        case GaussianDiagonal(variances=variances):
            return {name: place for place, name in enumerate(variances)}
        case GaussianKron(layers=layers):
            return {name: place for place, layer in enumerate(layers) for name in layer.names}
        case _:
            return dict.fromkeys(names_of(posterior), 0)
