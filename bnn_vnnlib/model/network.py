"""A network (what the ONNX graph computes) and a posterior over its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.model.nodes import Node
from bnn_vnnlib.signature import Signature

Floats = NDArray[np.float64]
Likelihood = Literal["categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic"]


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
    """S weighted samples: `samples[name]` has shape (S, *shape), `probabilities` (S,) sum to 1.

    Tensors that are not listed are the same in every sample.
    """

    samples: Mapping[str, Floats]
    probabilities: Floats


Posterior = GaussianDiagonal | WeightSamples


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
    """

    network: Network
    posterior: Posterior | None
    likelihood: Likelihood | None
    path: Path | None
    onnx_bytes: bytes = field(repr=False)
    notes: tuple[str, ...] = ()
