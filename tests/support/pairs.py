"""Pairs of the zoo's networks: a network and itself, a disturbed copy, or a copy with a posterior of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from bnn_vnnlib import Model
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import GaussianDiagonal, Network
from bnn_vnnlib.network.families import marginal_variances
from bnn_vnnlib.network.pairs import side_by_side

COUPLINGS = ("same", "independent", "noise")


def with_posterior(network: Network, rng: np.random.Generator, deviation: float = 0.1) -> Model:
    """Independent Gaussian weights, some of them certain."""
    variances = {
        name: (deviation * rng.random(tensor.shape) * (rng.random(tensor.shape) < 0.8)) ** 2
        for name, tensor in network.tensors.items()
    }
    return Model(network, GaussianDiagonal(variances), None, None, b"")


def disturbed(network: Network, rng: np.random.Generator, size: float = 0.02) -> Network:
    """With other weights, close by; some stay."""
    tensors = {
        name: tensor + size * rng.normal(size=tensor.shape) * (rng.random(tensor.shape) < 0.7)
        for name, tensor in network.tensors.items()
    }
    return replace(network, tensors=tensors)


def pair(network: Network, coupling: str, rng: np.random.Generator) -> Model:
    """The product of a network and its copy."""
    first = with_posterior(network, rng)
    if coupling == "same":
        return side_by_side(first, first, "independent", same=True)
    return side_by_side(first, with_posterior(disturbed(network, rng), rng), coupling)


def boxes_of(model: Model, scales: tuple[float, ...] = (1.0,)) -> WeightBoxes:
    """Boxes of so many standard deviations around the mean."""
    centers = {name: torch.as_tensor(tensor)[None] for name, tensor in model.network.tensors.items()}
    spreads = {} if model.posterior is None else marginal_variances(model.posterior)
    return WeightBoxes(
        centers, {name: torch.as_tensor(np.sqrt(value)) for name, value in spreads.items()},
        torch.tensor(scales, dtype=torch.float64)[:, None],
    )  # fmt: skip
