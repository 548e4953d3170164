"""From a Gaussian posterior of any family to its independent noise and the groups of what weights share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.bounds.tails.shared import Correlation, Dense, Group, Kron
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.network.network import (
    Gaussian,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Network,
)
from bnn_vnnlib.network.nodes import Linear, Node, Param, Shift

Device = torch.device | str

EXPANDED = 2**24
"""Numbers of a Kronecker-factored layer that is written out, at most."""


def independent(posterior: Gaussian) -> GaussianDiagonal:
    """The noise that every entry has for itself."""
    match posterior:
        case GaussianDiagonal():
            return posterior
        case GaussianLowRank(variances=variances):
            return GaussianDiagonal(variances)
        case _:
            return GaussianDiagonal({})


def correlation(network: Network, posterior: Gaussian, device: Device = "cpu") -> Correlation | None:
    """What the entries share beyond that, for the tails; None for nothing.

    The latents of a factor are cut into groups by the first layer that they move: of a lower triangular root each
    layer has its own, which serves the tails better than one for all.

    Raises
    ------
    UnsupportedError : a Kronecker-factored layer that would have to be written out and is too large for that
    """
    uses = _uses(network)
    match posterior:
        case GaussianDiagonal():
            return None
        case GaussianLowRank(factors=factors) | GaussianFull(factors=factors):
            used = {name: factor for name, factor in factors.items() if name in uses}
            return Correlation(network, _by_first_use(used, uses, device))
        case GaussianKron(layers=layers):
            groups = [group for layer in layers for group in _layer(layer, network, uses, device)]
            return Correlation(network, tuple(groups))


_Uses = dict[str, list[tuple[int, Node, Param]]]


def _uses(network: Network) -> _Uses:
    """source -> the places where it is used, in the order of the nodes."""
    found: _Uses = {}
    for position, node in enumerate(network.nodes):
        for what in ("weight", "bias", "value"):
            param = getattr(node, what, None)
            if isinstance(param, Param):
                found.setdefault(param.source, []).append((position, node, param))
    return found


def _by_first_use(factors: dict[str, Floats], uses: _Uses, device: Device) -> tuple[Group, ...]:
    names = sorted(factors, key=lambda name: uses[name][0][0])
    if not names:
        return ()
    moves = np.array([np.any(factors[name].reshape(len(factors[name]), -1) != 0, axis=1) for name in names])
    first = np.where(moves.any(0), moves.argmax(0), -1)
    groups: list[Group] = []
    for index in sorted(set(first[first >= 0].tolist())):
        rows = first == index
        roots = {name: factors[name][rows] for name, moved in zip(names, moves, strict=True) if moved[rows].any()}
        groups.append(Dense({name: _tensor(root, device) for name, root in roots.items()}))
    return tuple(groups)


def _layer(layer: KronLayer, network: Network, uses: _Uses, device: Device) -> tuple[Group, ...]:
    """Structured where the layer is dense and used once as it is; else written out."""
    used = [name for name in layer.names if name in uses]
    if not used or not layer.spectrum.any():
        return ()
    if len(used) < len(layer.names):
        layer = layer.marginal(used[0])
    found = _structured(layer, network, uses, device)
    if found is not None:
        return (found,)
    size = layer.spectrum.size * sum(network.tensors[name].size for name in layer.names)
    if size > EXPANDED:
        message = f"a Kronecker-factored posterior of {layer.weight!r} is served for dense layers only"
        raise UnsupportedError(f"{message}, or for smaller ones (its factors written out have {size} entries)")
    root = np.sqrt(layer.spectrum)[:, :, None, None] * (
        layer.left.T[:, None, :, None] * layer.right.T[None, :, None, :]
    )
    parts = layer.split(root.reshape(-1, *root.shape[2:]))
    factors = {name: part.reshape(len(part), *network.tensors[name].shape) for name, part in parts.items()}
    return _by_first_use(factors, uses, device)


def _structured(layer: KronLayer, network: Network, uses: _Uses, device: Device) -> Kron | None:
    """The group of a Kronecker-factored layer that is used as one dense layer; None where it is used otherwise."""
    if len(uses[layer.weight]) > 1 or network.tensors[layer.weight].ndim < 2:
        return None
    _, node, param = uses[layer.weight][0]
    if not isinstance(node, Linear) or node.shape[node.axis] != np.prod(node.shape) or not (param.factor == 1).all():
        return None
    if layer.bias is not None and not all(_added(use, network.tensors[layer.bias].size) for use in uses[layer.bias]):
        return None
    rows, columns = network.tensors[layer.weight].shape[0], network.tensors[layer.weight][0].size
    flat = np.arange(rows * columns).reshape(rows, columns)
    left, right, spectrum, axis = layer.left, layer.right, layer.spectrum, layer.bias_axis
    if np.array_equal(param.index, flat.T):  # the matrix of the file is (in, out)
        left, right, spectrum, axis = right, left, spectrum.T, 1 - axis
    elif not np.array_equal(param.index, flat):
        return None
    left_, right_, spectrum_ = (_tensor(array, device) for array in (left, right, spectrum))
    if layer.bias is None:
        return Kron(layer.weight, left_, right_, spectrum_)
    if axis == 1:
        return Kron(layer.weight, left_, right_[:-1], spectrum_, layer.bias, left_, right_[-1:])
    return Kron(layer.weight, left_[:-1], right_, spectrum_, layer.bias, left_[-1:], right_)


def _added(use: tuple[int, Node, Param], size: int) -> bool:
    """Whether a bias of that size is added as a whole and as it is: `Kron` knows no other use of it."""
    _, node, param = use
    whole = np.array_equal(param.index.ravel(), np.arange(size))
    return isinstance(node, Shift) and whole and bool((param.factor == 1).all())


def _tensor(array: Floats, device: Device) -> Tensor:
    return torch.tensor(np.ascontiguousarray(array), dtype=torch.float64, device=device)
