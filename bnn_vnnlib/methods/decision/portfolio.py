"""Which methods serve a network and its posterior, cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnn_vnnlib.attack import Aim
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.decision import regression
from bnn_vnnlib.methods.decision import softmax as classification
from bnn_vnnlib.methods.decision.by_weights import ByWeights
from bnn_vnnlib.methods.decision.median import HALF, Medians
from bnn_vnnlib.methods.decision.method import Criterion, Method, moderate
from bnn_vnnlib.network.network import GaussianDiagonal, WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.mass import BoxUnion
from bnn_vnnlib.problem.outputs import OutputBounds

Floats = NDArray[np.float64]

MASSES = np.array([0.3, 0.7, 0.9, 0.97, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12])
"""Masses of the nested boxes."""


@dataclass(frozen=True, eq=False)
class Expectation:
    """E_w of rows over the transformed outputs.

    Parameters
    ----------
    weights, mass : K boxes and the mass of their unions, or K samples and their probabilities
    only_weights : nothing but these is used, because boxes were asked for
    """

    bounds: OutputBounds
    posterior: GaussianDiagonal | WeightSamples
    weights: WeightBoxes
    mass: BoxUnion | Tensor
    only_weights: bool

    aim: Aim = "mean"

    @cached_property
    def by_weights(self) -> ByWeights:
        """The method that serves any graph."""
        return ByWeights(self.bounds, self.posterior, self.weights, self.mass)

    @cached_property
    def _classification(self) -> classification.Portfolio:
        if self.only_weights or not self._moderate:
            return classification.Portfolio()
        return classification.methods(self.bounds, self.posterior, self.weights, self.mass)

    @cached_property
    def _regression(self) -> tuple[Method, ...]:
        if self.bounds.transform != "identity" or self.only_weights or not self._moderate:
            return ()
        engine, device = self.bounds.engine, self.weights.scale.device
        return regression.methods(engine.network, self.posterior, device, engine.deadline)

    @cached_property
    def _moderate(self) -> bool:
        return moderate(self.bounds.engine.network, self.posterior)

    @cached_property
    def quick(self) -> tuple[Method, ...]:
        """One look at each item, cheaper than the boxes of weights."""
        return self._classification.quick

    @cached_property
    def thorough(self) -> tuple[Method, ...]:
        """Methods that go on until the bounds are good, such as by splitting inputs."""
        return (*self._classification.thorough, *self._regression)

    @property
    def tails(self) -> tuple[Method, ...]:
        """Methods that are too dear for every class of every item."""
        return self._classification.tails

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """Proofs that classes keep their order."""
        return self._classification.criteria

    @property
    def methods(self) -> Iterator[Method]:
        """All of them, in order of cost."""
        yield from (*self.quick, self.by_weights, *self.thorough, *self.tails)

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.D(x) + g.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        return torch.stack([method.lower(lower, upper, outputs, inputs) for method in self.methods]).amax(0)

    def upper(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Upper bounds (N, R), by the lower bounds of the negated rows."""
        return -self.lower(lower, upper, -outputs, None if inputs is None else -inputs)


def expectation(
    bounds: OutputBounds, posterior: GaussianDiagonal | WeightSamples, device: torch.device, *, boxes: str, number: int,
    margin: float | None, seed: int,
) -> Expectation:  # fmt: skip
    """Prepare the boxes of a Gaussian posterior; samples need none."""
    weights = _weights(bounds, posterior, device, MASSES, boxes, number, margin, seed)
    return Expectation(bounds, posterior, *weights)


def medians(
    bounds: OutputBounds, posterior: GaussianDiagonal | WeightSamples, device: torch.device, *, boxes: str, number: int,
    margin: float | None, seed: int,
) -> Medians:  # fmt: skip
    """The same for medians: of nested boxes the smallest that holds half of the mass says most."""
    return Medians(bounds, posterior, *_weights(bounds, posterior, device, HALF, boxes, number, margin, seed))


def _weights(
    bounds: OutputBounds, posterior: GaussianDiagonal | WeightSamples, device: torch.device, masses: Floats, boxes: str,
    number: int, margin: float | None, seed: int,
) -> tuple[WeightBoxes, BoxUnion | Tensor, bool]:  # fmt: skip
    """Boxes and the mass of their unions, or samples and their probabilities; whether nothing else is to be used."""
    network = bounds.engine.network
    only = boxes == "sampled" or margin is not None or bounds.engine.method == "interval"
    if isinstance(posterior, WeightSamples):
        return *weight_sets.sample_weights(network, posterior, device), only
    if boxes == "sampled":
        width = 2.5 if margin is None else margin
        family = weight_sets.scattered_family(network, posterior, number, width, seed, device)
    else:
        family = weight_sets.centred_family(network, posterior, masses, device, margin=margin)
    return family.weights, family.union, only
