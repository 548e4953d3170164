"""Which of the methods of this package serve a network."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model.network import GaussianDiagonal, WeightSamples
from bnn_vnnlib.robustness.classification.comparing import MeanNetwork
from bnn_vnnlib.robustness.classification.layers import one_layer
from bnn_vnnlib.robustness.classification.method import SPLIT, SoftmaxRows
from bnn_vnnlib.robustness.classification.one_layer import OneLayerSoftmax
from bnn_vnnlib.robustness.mass import BoxUnion
from bnn_vnnlib.robustness.outputs import OutputBounds


@dataclass(frozen=True, eq=False)
class Portfolio:
    """quick : one look; thorough : inputs are split; points : for single points; criteria : see `decision.method`."""

    quick: tuple[SoftmaxRows, ...] = ()
    thorough: tuple[SoftmaxRows, ...] = ()
    points: tuple[SoftmaxRows, ...] = ()
    criteria: tuple[MeanNetwork, ...] = ()


def methods(
    bounds: OutputBounds, posterior: GaussianDiagonal | WeightSamples, weights: WeightBoxes, mass: BoxUnion | Tensor
) -> Portfolio:
    """Those that apply to the graph, its outputs and its posterior."""
    network, deadline = bounds.engine.network, bounds.engine.deadline
    single = network.signature.output_size == 1
    if bounds.transform == "identity" or (bounds.transform == "sigmoid" and not single):
        return Portfolio()
    if isinstance(posterior, WeightSamples):
        return Portfolio()
    layers = one_layer(network, posterior, weights.scale.device)
    if layers is None:
        return Portfolio()
    source = OneLayerSoftmax(layers.with_zero_logit() if bounds.transform == "sigmoid" else layers)
    criteria = (MeanNetwork(bounds, source),) if bounds.transform == "softmax" else ()
    return Portfolio((SoftmaxRows(source, deadline),), (SoftmaxRows(source, deadline, SPLIT),), criteria=criteria)
