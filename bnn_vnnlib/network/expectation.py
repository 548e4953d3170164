"""Which random weights the expected output of a network depends on through their means alone."""

from __future__ import annotations

from collections import Counter

from bnn_vnnlib.network.families import names_of, only
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, GaussianKron, Network
from bnn_vnnlib.network.nodes import Conv, Linear, Reshape, Scale, Select, Shift, Transpose, params_of


def without_last_layer(network: Network, posterior: Gaussian) -> Gaussian:
    """The posterior of the weights that matter for E f(x) beyond their means, which `Network.tensors` holds.

    Proof. Walk from the output back along nodes with one input as long as they are affine in it.
    1. The output is W z + (terms with other parameters): linear in the entries of W, for fixed z, and W is used once.
    2. If W is independent of every random tensor in front of it, and so of z and of what is added in front, then
       E[W z] = E[W] E[z]. Biases behind W may depend on it: they are added, and E of a sum is the sum of the E.
    3. With W replaced by its mean the walk goes on with E[z], to which the same applies. A bias enters linearly, too.

    Returns
    -------
    the marginal of all other tensors; with none of them `GaussianDiagonal({})`
    """
    if len(network.outputs) != 1:
        return posterior
    random, block = set(names_of(posterior)), _blocks(posterior)
    uses = Counter(param.source for node in network.nodes for param in params_of(node))
    passed, averaged, position = set[int](), set[str](), network.outputs[0]
    while isinstance(node := network.nodes[position], Linear | Conv | Scale | Shift | Reshape | Transpose | Select):
        passed.add(position)
        for param in params_of(node):
            if param.source in random:
                before = {
                    block[other.source]
                    for place, earlier in enumerate(network.nodes)
                    if place not in passed
                    for other in params_of(earlier)
                    if other.source in random
                }
                free = isinstance(node, Shift) or block[param.source] not in before
                if uses[param.source] > 1 or not free:
                    return _marginal(posterior, random - averaged)
                averaged.add(param.source)
        (position,) = node.inputs
    return _marginal(posterior, random - averaged)


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
