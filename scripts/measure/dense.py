"""A chain of dense layers as a network: what several of these scripts measure on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Activation, ActivationKind, Input, Linear, Node, Param, Shift
from bnn_vnnlib.signature import Signature, Variable

Layers = Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]


def dense_network(layers: Layers, kind: ActivationKind = "relu", alpha: float = 0.0) -> Network:
    """Weights (m, n) and biases (m,) with activations between; the tensors are W0, b0, W1, b1, ..."""
    tensors: dict[str, NDArray[np.float64]] = {}
    size = layers[0][0].shape[1]
    graph: list[Node] = [Input("x", (), (1, size), 0)]
    for k, (weight, bias) in enumerate(layers):
        tensors |= {f"W{k}": weight, f"b{k}": bias}
        whole = [Param(n, np.arange(t.size).reshape(t.shape), np.array(1.0)) for n, t in list(tensors.items())[-2:]]
        graph.append(Linear(f"l{k}", (len(graph) - 1,), (1, len(bias)), whole[0], 1))
        graph.append(Shift(f"s{k}", (len(graph) - 1,), (1, len(bias)), whole[1]))
        if k + 1 < len(layers):
            graph.append(Activation(f"a{k}", (len(graph) - 1,), (1, len(bias)), kind, alpha))
    ends = [(Variable(name, "float64", (1, n)),) for name, n in (("x", size), ("y", len(layers[-1][1])))]
    return Network(Signature(*ends), tuple(graph), (len(graph) - 1,), tensors)
