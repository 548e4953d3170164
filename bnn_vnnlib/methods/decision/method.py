"""What the methods of the decision are asked, and what they give: work for each turn of `decide`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.backward import lengthy
from bnn_vnnlib.bounds.tails import claimed
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network.dense_chain import DenseChain, dense_chain
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, Network, Posterior, WeightSamples
from bnn_vnnlib.network.nodes import Constant
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.weight_sets import BoxUnion, CentredUnion, SampledWeights
from bnn_vnnlib.result import Rule
from bnn_vnnlib.system.clock import Deadline

if TYPE_CHECKING:
    from bnn_vnnlib.methods.decision.softmax.method import SoftmaxRows
    from bnn_vnnlib.methods.decision.softmax.one_layer import MeanNetwork

MODERATE = 1e12
"""Largest weight and standard deviation up to which closed forms are used: they square what they meet. Weights so
large that they undo an underflow are left to the boxes."""

_MASSES = (0.3, 0.7, 0.9, 0.97, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12)
"""Masses of the nested boxes."""

_SPARE = 2e-6
"""Share of the mass outside that boxes behind quantiles hold beyond the mass that they need."""


_SAMPLED, _FEW = 65, 256
"""Networks behind the estimates that say where to split: so many are drawn, unless the posterior has few samples."""

_POINTS_AT_ONCE = 512
"""Points that are evaluated together, at most, each in all samples."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """K networks of the posterior and their shares (K,): estimates of quantiles and standard deviations."""

    network: Network
    params: dict[str, Tensor]
    share: Tensor

    @staticmethod
    def of(network: Network, posterior: GaussianDiagonal | WeightSamples, device: torch.device) -> Sampled:
        """The samples of the posterior where they are few, or some drawn ones."""
        if isinstance(posterior, WeightSamples) and len(posterior.probabilities) <= _FEW:
            params = {name: torch.tensor(values, device=device) for name, values in posterior.samples.items()}
            return Sampled(network, params, torch.as_tensor(posterior.probabilities, device=device))
        drawn = sample(network, posterior, _SAMPLED, torch.Generator().manual_seed(0))
        params = {name: values.to(device, torch.float64) for name, values in drawn.items()}
        return Sampled(network, params, torch.full((_SAMPLED,), 1 / _SAMPLED, dtype=torch.float64, device=device))

    def quantile(self, x: Tensor, level: float) -> Tensor:
        """Quantiles (P, m) of the outputs over the drawn networks, at points (P, n)."""
        return torch.cat([self._quantile(part, level) for part in x.split(_POINTS_AT_ONCE)])

    def spread(self, x: Tensor) -> Tensor:
        """(P, m) standard deviations of the outputs over the drawn networks, at points (P, n)."""
        parts = [evaluate(self.network, part, self.params).std(0, correction=0) for part in x.split(_POINTS_AT_ONCE)]
        return torch.cat(parts)

    def _quantile(self, x: Tensor, level: float) -> Tensor:
        y, order = evaluate(self.network, x, self.params).sort(0)
        middle = (self.share[order].cumsum(0) < level).sum(0, keepdim=True).clamp(max=len(y) - 1)
        return y.gather(0, middle)[0]


def weights_name(mass: BoxUnion | Tensor) -> str:
    """What weights are that have these masses, or probabilities: for people and the record."""
    if isinstance(mass, Tensor):
        return "weight samples"
    return "centred boxes" if isinstance(mass, CentredUnion) else "boxes around samples"


def picked(rows: Tensor | None, index: Tensor | slice) -> Any:
    """Rows (N, R, ..) of some items; what all items share (1, R, ..), or None, stays as it is."""
    return rows if rows is None or len(rows) == 1 else rows[index]


def rows_at(values: Tensor, x: Tensor, outputs: Tensor, inputs: Tensor | None) -> Tensor:
    """(P, R): c.D + g.x for values of D (P, m) at points x (P, n), in plain floating point."""
    found = (outputs * values[:, None]).sum(-1)
    return found if inputs is None else found + (inputs * x[:, None]).sum(-1)


class RowMethod(Protocol):
    """One way to bound rows over the decision.

    Sound, rounding included; an item's bound does not depend on its neighbours (up to rounding).
    """

    @property
    def name(self) -> str:
        """Name of the method, for people and the record."""
        ...

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.D(x) + g.x over boxes (N, n), -inf where it has nothing to say.

        outputs (N or 1, R, m), inputs (N or 1, R, n) or None.
        """
        ...


@dataclass(frozen=True, eq=False)
class DecisionTask:
    """The decision of a network and its posterior, and what it may be bounded with.

    Attributes
    ----------
    rule : D is the expected output, or quantiles of the outputs
    boxes, number : "sampled" takes `number` boxes around samples instead of nested ones at the mean
    margin : of the boxes in standard deviations; None: several (2.5 if sampled)
    seed : of sampled boxes
    gap : the work goes on until bounds on the outputs are as close; None: until the cases are refuted
    """

    bounds: OutputBounds
    posterior: Posterior
    device: torch.device
    rule: Rule = Rule.MEAN
    boxes: str = "mean"
    number: int = 5
    margin: float | None = None
    seed: int = 0
    gap: float | None = None

    @property
    def network(self) -> Network:
        """The network with the posterior's means as its weights."""
        return self.bounds.engine.network

    @property
    def deadline(self) -> Deadline:
        """The time limit, which is that of the bounds' engine."""
        return self.bounds.engine.deadline

    @cached_property
    def weights(self) -> tuple[WeightBoxes, BoxUnion] | tuple[SampledWeights, Tensor]:
        """K boxes of a Gaussian posterior of independent weights and the mass of their unions, or K samples and their
        probabilities.
        """
        if isinstance(self.posterior, WeightSamples):
            samples = SampledWeights.of(self.network, self.posterior, self.device)
            return samples, samples.share
        if not isinstance(self.posterior, Gaussian):
            raise ValueError("boxes of weights are for Gaussian weights")
        if self.boxes == "sampled":
            if not isinstance(self.posterior, GaussianDiagonal):
                raise ValueError("boxes around samples are for independent weights")
            width = 2.5 if self.margin is None else self.margin
            family = weight_sets.scattered_family(
                self.network, self.posterior, self.number, width, self.seed, self.device
            )
            return family.weights, family.union
        level = self.rule.level
        masses: tuple[float, ...] = _MASSES
        if level is not None:  # of nested boxes the smallest that hold enough say most, one for each side
            masses = tuple(q + _SPARE * (1 - q) for q in sorted({level, 1 - level}))
        nested = weight_sets.centred_family(self.network, self.posterior, masses, self.device, margin=self.margin)
        return nested.weights, nested.union

    @property
    def boxes_asked_for(self) -> str | None:
        """Why nothing but boxes of weights, or interval bounds, is to be used, in words; None where everything is."""
        if self.boxes == "sampled" or self.margin is not None or self.bounds.engine.method == "interval":
            return "boxes of weights, or interval bounds, are asked for"
        return None

    @property
    def only_weights(self) -> str | None:
        """Why nothing but boxes of weights, or samples, is to be used, in words; None where everything is."""
        if not isinstance(self.posterior, GaussianDiagonal | WeightSamples):
            return "the posterior's weights are not independent"
        return self.boxes_asked_for

    @cached_property
    def no_closed_forms(self) -> str | None:
        """Why closed forms do not serve, whatever the graph; None where they may."""
        tensors = list(self.network.tensors.values())
        if isinstance(self.posterior, GaussianDiagonal):
            tensors += [np.sqrt(variance) for variance in self.posterior.variances.values()]
        if self.only_weights is None and not all(bool((np.abs(tensor) <= MODERATE).all()) for tensor in tensors):
            return f"a weight or its deviation exceeds {MODERATE:.0e}"
        return self.only_weights

    @cached_property
    def branches(self) -> bool:
        """A random tensor is a branch of the graph, which tails do not serve."""
        if not isinstance(self.posterior, GaussianDiagonal):
            return False
        random = weight_sets.random_sources(self.network, self.posterior)
        return any(isinstance(node, Constant) and node.value.source in random for node in self.network.nodes)

    @cached_property
    def lengthy(self) -> bool:
        """One pass of tails over an item takes long: its units walk alone."""
        return any(lengthy(self.network, position) for position in claimed(self.network))

    @cached_property
    def typical(self) -> Sampled:
        """Some networks of the posterior, on which no bound rests."""
        posterior = cast("GaussianDiagonal | WeightSamples", self.posterior)
        return Sampled.of(self.network, posterior, self.device)

    @cached_property
    def chain(self) -> DenseChain | None:
        """The network as dense layers with independent Gaussian weights, if that is what it is."""
        if not isinstance(self.posterior, GaussianDiagonal):
            return None
        return dense_chain(self.network, self.posterior, self.device)


@dataclass(frozen=True, eq=False)
class Steps:
    """The work of one or more methods, by when its turn comes.

    Attributes
    ----------
    quick : one look at each item, cheaper than what serves any graph
    second : a dearer look at what the quick ones leave open
    any_graph : what serves any graph: boxes of weights, samples, components
    criteria : proofs that rows are false, which do not go through bounds on the decision itself
    aimed : split inputs as far as it takes to refute an item, and later until the bounds are good
    thorough : split inputs until the bounds are good
    last : for what is open at last: too dear for every class of every item
    longest : for what is open even then: takes half of the time that is left, and is not used at attacked points
    """

    quick: tuple[RowMethod, ...] = ()
    second: tuple[RowMethod, ...] = ()
    any_graph: tuple[RowMethod, ...] = ()
    criteria: tuple[MeanNetwork, ...] = ()
    aimed: tuple[SoftmaxRows, ...] = ()
    thorough: tuple[RowMethod, ...] = ()
    last: tuple[RowMethod, ...] = ()
    longest: tuple[RowMethod, ...] = ()

    @property
    def rows(self) -> tuple[RowMethod, ...]:
        """The steps that bound rows without a search of their own, in order of cost."""
        return (*self.quick, *self.second, *self.any_graph, *self.aimed, *self.thorough, *self.last)

    def then(self, other: Steps) -> Steps:
        """The steps of both, these first."""
        return Steps(*(ours + theirs for ours, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))


Plan = Callable[[DecisionTask], Steps]
"""What a registered method contributes to a task that it serves."""
