"""The probability that an outcome is below a threshold, as a network: Y_0 = P(outcome < T | x, w), noise included.

An outcome is N(m, s^2) with m the first output; s^2 = exp(v) with v the second output (`gaussian_heteroscedastic`), or
s is given (`gaussian`). Then Y_0 = Phi((T - m) / s) = (1 + erf((T - m) / (sqrt(2) s))) / 2, and its expectation over
the posterior is the predictive probability. 1 / (sqrt(2) s) is rounded, for which the slack of the parameter pays.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Node, Param
from bnn_vnnlib.rounding import UNIT
from bnn_vnnlib.signature import PROBABILITY


def probability_below(network: Network, threshold: float, noise: float | None) -> Network:
    """The network with that probability as its only output.

    Parameters
    ----------
    network : of one output, the mean; or of two, the mean and the log-variance
    noise : s; None: as the second output says
    """
    made, tensors = list(network.nodes), dict(network.tensors)

    def add(node: Node) -> int:
        made.append(node)
        return len(made) - 1

    def number(value: float, slack: float = 0.0) -> Param:
        name = f"outcome: {value!r}"
        tensors[name] = np.array([value])
        return Param(name, np.zeros(1, np.int64), np.ones(()), np.array([slack]) if slack else None)

    one, two = (1, 1), (1, network.signature.output_size)
    flat = [add(nodes.Reshape("outcome", (p,), (1, math.prod(network.nodes[p].shape)))) for p in network.outputs]
    y = flat[0] if len(flat) == 1 else add(nodes.Concat("outcome", tuple(flat), two, 1))
    mean = add(nodes.Select("mean", (y,), one, np.array([[0]])))
    distance = add(
        nodes.Shift("outcome", (add(nodes.Scale("outcome", (mean,), one, number(-1.0))),), one, number(threshold))
    )
    scale = math.sqrt(0.5) if noise is None else math.sqrt(0.5) / noise
    distance = add(nodes.Scale("outcome", (distance,), one, number(scale, 8 * UNIT * scale)))
    if noise is None:
        log_variance = add(nodes.Select("log-variance", (y,), one, np.array([[1]])))
        halved = add(nodes.Scale("outcome", (log_variance,), one, number(-0.5)))
        precision = add(nodes.Activation("outcome", (halved,), one, "exp"))
        distance = add(nodes.Product("outcome", (distance, precision), one))
    value = add(nodes.Activation("outcome", (distance,), one, "erf"))
    value = add(nodes.Scale("outcome", (value,), one, number(0.5)))
    value = add(nodes.Shift("outcome", (value,), one, number(0.5)))
    signature = replace(network.signature, outputs=(PROBABILITY,), every_output=())
    return Network(signature, tuple(made), (value,), tensors)
