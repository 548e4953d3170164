"""Which of the methods of this package serve a network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.decision.softmax.by_samples import Samples
from bnn_vnnlib.methods.decision.softmax.by_tails import ALL, SoftmaxTails
from bnn_vnnlib.methods.decision.softmax.comparing import MeanNetwork
from bnn_vnnlib.methods.decision.softmax.deep import ExponentialMoments, WithMoments
from bnn_vnnlib.methods.decision.softmax.method import SPLIT, SoftmaxRows
from bnn_vnnlib.methods.decision.softmax.one_layer import OneLayerSoftmax
from bnn_vnnlib.methods.decision.softmax.tilted import Tilted
from bnn_vnnlib.network.dense_chain import MAX_LAW_DISTANCE, DenseChain, dense_chain
from bnn_vnnlib.network.network import GaussianDiagonal, WeightSamples
from bnn_vnnlib.network.nodes import Constant
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.mass import BoxUnion
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.splitting.minimise import Effort

LARGEST = 64
"""Classes, at most: all pairs are bounded."""

BUDGETS = (1e-2, 1e-5)
"""What the events of a deep network may fail with: for large deviations, and where little is uncertain."""

SPLIT_BUDGET, SPLIT_DEEP = (1e-4,), Effort(tolerance=5e-3, most=16)
"""The same where its inputs are split, and how far: a box costs more than one of a shallow network."""


@dataclass(frozen=True, eq=False)
class Portfolio:
    """quick : one look; thorough : inputs are split; criteria : see `decision.method`;
    tails : too dear for every class of every item: for graphs without closed forms and many classes, and for points.
    """

    quick: tuple[SoftmaxTails | SoftmaxRows, ...] = ()
    thorough: tuple[SoftmaxRows, ...] = ()
    criteria: tuple[MeanNetwork, ...] = ()
    tails: tuple[SoftmaxTails | SoftmaxRows, ...] = ()


def methods(
    bounds: OutputBounds, posterior: GaussianDiagonal | WeightSamples, weights: WeightBoxes, mass: BoxUnion | Tensor
) -> Portfolio:
    """Those that apply to the graph, its outputs and its posterior."""
    network, deadline = bounds.engine.network, bounds.engine.deadline
    outputs = network.signature.output_size
    if bounds.transform == "identity" or (bounds.transform == "sigmoid" and outputs > 1):
        return Portfolio()
    if isinstance(posterior, WeightSamples):
        if not isinstance(mass, Tensor) or bounds.engine.method != "linear" or outputs > LARGEST:
            return Portfolio()
        samples = Samples(bounds.engine, weights, mass, bounds.transform == "sigmoid")
        return Portfolio((SoftmaxRows(samples, deadline),), (SoftmaxRows(samples, deadline, SPLIT),))
    device = weights.scale.device
    found = None if outputs > LARGEST else dense_chain(network, posterior, device)
    if found is None or found.kinds != {"relu"} or found.law_distance > MAX_LAW_DISTANCE:
        tails = _tails(bounds, posterior, device)
        return Portfolio(quick=tails) if outputs <= ALL else Portfolio(tails=tails)
    layers = found.with_zero_output() if bounds.transform == "sigmoid" else found
    if len(layers.layers) == 2:
        return _shallow(bounds, layers)
    quick, thorough = ExponentialMoments(layers, BUDGETS), ExponentialMoments(layers, SPLIT_BUDGET)
    distance = layers.law_distance
    return Portfolio(
        (SoftmaxRows(quick, deadline, None, distance),), (SoftmaxRows(thorough, deadline, SPLIT_DEEP, distance),),
        tails=_tails(bounds, posterior, device),
    )  # fmt: skip


def _shallow(bounds: OutputBounds, layers: DenseChain) -> Portfolio:
    deadline, distance = bounds.engine.deadline, layers.law_distance
    closed = OneLayerSoftmax(layers)
    source = WithMoments(closed, ExponentialMoments(layers, BUDGETS))
    criteria = (MeanNetwork(bounds, closed),) if bounds.transform == "softmax" and distance == 0 else ()
    quick, thorough = (SoftmaxRows(source, deadline, effort, distance) for effort in (None, SPLIT))
    return Portfolio((quick,), (thorough,), criteria, (SoftmaxRows(Tilted(layers), deadline, None, distance),))


def _tails(bounds: OutputBounds, posterior: GaussianDiagonal, device: torch.device) -> tuple[SoftmaxTails, ...]:
    network = bounds.engine.network
    random = weight_sets.random_sources(network, posterior)
    fixed = not any(isinstance(node, Constant) and node.value.source in random for node in network.nodes)
    if bounds.transform != "softmax" or not fixed or not 1 < network.signature.output_size <= LARGEST:
        return ()
    means = weight_sets.mean_weights(network, device)
    deviations = weight_sets.centred(network, posterior, device)
    return (SoftmaxTails(TailEngine(network, bounds.engine.deadline), means, deviations),)
