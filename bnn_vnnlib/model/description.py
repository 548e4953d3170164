"""What a model holds, for people."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from onnx import ModelProto

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.network.families import family_of, marginal_variances, sample
from bnn_vnnlib.network.network import DropoutMasks, Model, Network, Sampler, WeightSamples
from bnn_vnnlib.network.nodes import Activation, Conv, Linear, Max, Product, Sum
from bnn_vnnlib.signature import Likelihood, Signature

_QUANTILES = (0.1, 0.5, 0.9)

_DRAWN = 256
"""Draws that the deviations of a posterior come from of which nothing else is known."""


@dataclass(frozen=True)
class _TensorSummary:
    """Summary of one source tensor.

    Attributes
    ----------
    uncertain : it has a posterior
    relative_sd : sd / |mean| at the 10, 50 and 90 % quantile over its entries; None without a posterior. Entries with
        mean 0 and sd > 0 count as infinite.
    """

    name: str
    shape: tuple[int, ...]
    entries: int
    uncertain: bool
    relative_sd: tuple[float, float, float] | None


@dataclass(frozen=True)
class Description:
    """A model at a glance.

    Attributes
    ----------
    family : "deterministic", or one of `families.FAMILIES`; `samples` is the number of samples, else 0
    operators : node kinds of the network with their numbers, most frequent first
    layers : the network in words: "2 dense layers, 32 ReLU"
    weights, uncertain_weights : numbers of entries in all tensors, and in those with a posterior
    """

    signature: Signature
    family: str
    samples: int
    likelihood: Likelihood | None
    tensors: tuple[_TensorSummary, ...]
    operators: tuple[tuple[str, int], ...]
    layers: str
    weights: int
    uncertain_weights: int
    softmax: bool
    notes: tuple[str, ...]


def describe(model: Model) -> Description:
    """Summary of a model for `inspect`."""
    network, deviations = model.network, _deviations(model)
    tensors = tuple(_summary(name, mean, deviations.get(name)) for name, mean in network.tensors.items())
    family, samples = "deterministic", 0
    if model.posterior is not None:
        family = family_of(model.posterior)
    if isinstance(model.posterior, WeightSamples):
        samples = len(model.posterior.probabilities)
    return Description(
        signature=network.signature,
        family=family,
        samples=samples,
        likelihood=model.likelihood,
        tensors=tensors,
        operators=tuple(Counter(type(node).__name__ for node in network.nodes).most_common()),
        layers=_layers_in_words(network),
        weights=sum(tensor.entries for tensor in tensors),
        uncertain_weights=sum(tensor.entries for tensor in tensors if tensor.uncertain),
        softmax=network.softmax_axis is not None,
        notes=model.notes,
    )


_SPELT = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU", "elu": "ELU", "silu": "SiLU", "leaky_relu": "leaky ReLU",
          "prelu": "PReLU", "hard_swish": "hard swish"}  # fmt: skip


def _layers_in_words(network: Network) -> str:
    """Layers with weights, numbers of activations by their kind, and what joins branches: `2 dense layers, 32 ReLU`."""
    kinds, units = Counter(type(node) for node in network.nodes), Counter[str]()
    for node in network.nodes:
        if isinstance(node, Activation):
            units[_SPELT.get(node.kind, node.kind)] += math.prod(node.shape)
    layers = ((Conv, "convolution"), (Linear, "dense layer"))
    joins = ((Sum, "sum of branches", "sums of branches"), (Product, "product of branches", "products of branches"),
             (Max, "maximum", "maxima"))  # fmt: skip
    said = [f"{kinds[kind]} {word}{'s' * (kinds[kind] > 1)}" for kind, word in layers if kinds[kind]]
    said += [f"{count:,} {word}" for word, count in units.items()]
    said += [f"{kinds[kind]} {one if kinds[kind] == 1 else many}" for kind, one, many in joins if kinds[kind]]
    return ", ".join([*said, *(["Softmax"] if network.softmax_axis is not None else [])]) or "no layers"


def _deviations(model: Model) -> dict[str, Floats]:
    """Standard deviation of every uncertain weight."""
    if model.posterior is None:
        return {}
    if isinstance(model.posterior, DropoutMasks):
        masks = model.posterior.ratios.items()
        return {name: np.full(model.network.tensors[name].shape, np.sqrt(ratio / (1 - ratio))) for name, ratio in masks}
    if isinstance(model.posterior, Sampler):  # of draws: nothing is known beside them
        drawn = sample(model.network, model.posterior, _DRAWN, torch.Generator().manual_seed(0))
        return {name: values.std(0).numpy() for name, values in drawn.items()}
    shapes = {name: mean.shape for name, mean in model.network.tensors.items()}
    return {name: np.sqrt(v).reshape(shapes[name]) for name, v in marginal_variances(model.posterior).items()}


def _summary(name: str, mean: Floats, deviation: Floats | None) -> _TensorSummary:
    if deviation is None:
        return _TensorSummary(name, mean.shape, mean.size, False, None)
    size = np.abs(mean)
    # 0/0 (a weight that is exactly 0) is no uncertainty; x/0 is infinite
    ratio = np.where(deviation > 0, np.divide(deviation, size, where=size > 0, out=np.full(size.shape, np.inf)), 0.0)
    low, median, high = (float(q) for q in np.quantile(ratio, _QUANTILES, method="nearest"))
    return _TensorSummary(name, mean.shape, mean.size, True, (low, median, high))


def onnx_operators(model: Model) -> set[str]:
    """The operators of the file's graph, by name."""
    proto = ModelProto()
    proto.ParseFromString(model.onnx_bytes)
    return {node.op_type for node in proto.graph.node}
