"""A network (what the ONNX graph computes) and a posterior over its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.network.correlated import GaussianFull as GaussianFull
from bnn_vnnlib.network.correlated import GaussianKron as GaussianKron
from bnn_vnnlib.network.correlated import GaussianLowRank as GaussianLowRank
from bnn_vnnlib.network.correlated import KronLayer as KronLayer
from bnn_vnnlib.network.nodes import Node
from bnn_vnnlib.signature import Floats as Floats
from bnn_vnnlib.signature import Likelihood, Signature


@dataclass(frozen=True, eq=False)
class Network:
    """A directed acyclic graph of nodes in topological order.

    Attributes
    ----------
    signature : inputs and outputs with concrete shapes and element types, in the model's order
    nodes : topologically ordered; `Node.inputs` are positions in this tuple
    outputs : positions of the nodes that compute the outputs, in the model's order
    tensors : source tensors by name, float64 (float16/32 weights are held exactly)
    softmax_axis : the axis of a Softmax that ends the (single-output) graph, else None. The Softmax itself is not in
        `nodes`: `outputs` then names the logits.
    """

    signature: Signature
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    tensors: Mapping[str, Floats]
    softmax_axis: int | None = None


@dataclass(frozen=True, eq=False)
class GaussianDiagonal:
    """Independent Gaussian weights: mean `Network.tensors[name]`, variance `variances[name]` (same shape, >= 0).

    Tensors that are not listed are deterministic.
    """

    variances: Mapping[str, Floats]


@dataclass(frozen=True, eq=False)
class WeightSamples:
    """S weighted samples: `stored[name]` has shape (S, *shape), `probabilities` (S,) sum to 1.

    Tensors that are not listed are the same in every sample. Samples are most of what a run holds: they keep the type
    of the file, and whoever computes with them takes some of them in float64, which holds them exactly.
    """

    stored: Mapping[str, NDArray[Any]]
    probabilities: Floats

    @property
    def samples(self) -> dict[str, Floats]:
        """All samples in float64: a copy, unless that is their type."""
        return {name: np.asarray(values, np.float64) for name, values in self.stored.items()}

    def drawn(self, which: slice | NDArray[np.int64]) -> dict[str, Floats]:
        """Some of the samples, by position, in float64."""
        return {name: np.asarray(values[which], np.float64) for name, values in self.stored.items()}


Correlated = GaussianLowRank | GaussianFull | GaussianKron
"""Gaussians whose weights depend on each other."""

Gaussian = GaussianDiagonal | Correlated


@dataclass(frozen=True, eq=False)
class Component:
    """One part of a mixture: a Gaussian around means of its own.

    means : name -> (*shape), for every tensor of the mixture; posterior : over some of these tensors
    """

    means: Mapping[str, Floats]
    posterior: Gaussian

    def __post_init__(self) -> None:
        for name, mean in self.means.items():
            if not np.isfinite(mean).all():
                raise PosteriorError("the mean of a component holds NaN or infinite entries", node=name)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Component i with probability `probabilities[i]`; the components' means cover the same tensors.

    `Network.tensors` holds the weighted mean, whose network is none of the mixture.
    """

    components: tuple[Component, ...]
    probabilities: Floats

    def __post_init__(self) -> None:
        if not self.components:
            raise PosteriorError("a mixture needs at least one component")
        names = set(self.components[0].means)
        for index, component in enumerate(self.components):
            if set(component.means) != names:
                odd = ", ".join(sorted(names ^ set(component.means)))
                raise PosteriorError(f"the components' means must cover the same tensors; not all have {odd}")
            for name, mean in component.means.items():
                expected = np.shape(self.components[0].means[name])
                if np.shape(mean) != expected:
                    message = f"the mean of component {index} has shape {np.shape(mean)}, expected {expected}"
                    raise PosteriorError(message, node=name)


Posterior = Gaussian | WeightSamples | Mixture


@dataclass(frozen=True, eq=False)
class Model:
    """What `read_model` returns.

    Attributes
    ----------
    network : the graph; `network.tensors` holds the posterior means (plain weights if there is no posterior)
    posterior : None for a deterministic network
    likelihood : None if the file does not say
    path : where it was read from; None if it was built in memory
    onnx_bytes : the serialised graph, for replay in onnxruntime (external data inlined)
    notes : remarks for the user (posterior accepted by name, unused initializers, ...)
    complete : the network with all outputs, where `network` leaves out those that depend on no input; else None
    """

    network: Network
    posterior: Posterior | None
    likelihood: Likelihood | None
    path: Path | None
    onnx_bytes: bytes = field(repr=False)
    notes: tuple[str, ...] = ()
    complete: Network | None = None

    def with_outputs_of(self, declared: Signature) -> Model:
        """The model with the outputs that a property declares: all, if it declares as many, constant ones included."""
        if self.complete is None or len(declared.outputs) != len(self.complete.signature.outputs):
            return self
        return replace(self, network=self.complete, complete=None)
