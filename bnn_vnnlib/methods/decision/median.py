"""The decision under the l1 loss: Y_j is the median of output j over the posterior, with no observation noise.

Rows a.Y + g.x are bounded from bounds on the medians over parts of the input box, which is split for all rows of an
item at once. Which part to split, and where, is said by sampled networks, on which nothing rests.
Guarantee: sound with probability 1, rounding included; every median counts where there are several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.attack import Aim
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.decision.median_sources import MedianSource, TailMedians, WeightMedians
from bnn_vnnlib.methods.decision.method import Criterion, Method, moderate
from bnn_vnnlib.methods.decision.regression.medians import OneLayerMedians
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.network.dense_chain import dense_chain
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import GaussianDiagonal, Network, WeightSamples
from bnn_vnnlib.network.nodes import Constant
from bnn_vnnlib.network.posterior import sample
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.mass import BoxUnion
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.rounding import TINY, gamma
from bnn_vnnlib.splitting.minimise import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline

HALF = np.array([0.5 + 1e-6])
"""Mass of the box at the mean."""

SAMPLED = 65
"""Networks behind the estimates that say where to split."""

CHUNK = 512
"""Points at a time."""

ACCURACY = 1e-3
"""Excess that is not worth a split, in standard deviations of the row's outputs."""

BOXES = {"samples": 400, "one layer": 200, "tails": 16}
"""Parts of an item, at most."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """K networks of the posterior and their shares (K,): estimates of medians and standard deviations."""

    network: Network
    params: dict[str, Tensor]
    share: Tensor

    @staticmethod
    def of(network: Network, posterior: GaussianDiagonal | WeightSamples, device: torch.device) -> Sampled:
        """The samples of the posterior, or some drawn ones."""
        if isinstance(posterior, WeightSamples):
            params = {name: torch.as_tensor(values, device=device) for name, values in posterior.samples.items()}
            return Sampled(network, params, torch.as_tensor(posterior.probabilities, device=device))
        drawn = sample(network, posterior, SAMPLED, torch.Generator().manual_seed(0))
        params = {name: values.to(device, torch.float64) for name, values in drawn.items()}
        return Sampled(network, params, torch.full((SAMPLED,), 1 / SAMPLED, dtype=torch.float64, device=device))

    def median(self, x: Tensor) -> Tensor:
        """(P, m) at points (P, n)."""
        return torch.cat([self._median(part) for part in x.split(CHUNK)])

    def spread(self, x: Tensor) -> Tensor:
        """(P, m)."""
        parts = [evaluate(self.network, part, self.params).std(0, correction=0) for part in x.split(CHUNK)]
        return torch.cat(parts)

    def _median(self, x: Tensor) -> Tensor:
        y, order = evaluate(self.network, x, self.params).sort(0)
        middle = (self.share[order].cumsum(0) < 0.5).sum(0, keepdim=True).clamp(max=len(y) - 1)
        return y.gather(0, middle)[0]


@dataclass(frozen=True, eq=False)
class MedianRows:
    """A method of the portfolio: lower bounds on rows over the medians.

    Parameters
    ----------
    most : parts of an item; 1 = one look
    """

    source: MedianSource
    typical: Sampled
    deadline: Deadline
    most: int = 1

    @property
    def name(self) -> str:
        """That of the source."""
        return self.source.name

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; outputs (N or 1, R, m), inputs alike or None."""
        known = self.rows(lower, upper, outputs, inputs)
        if self.most == 1 or bool((lower == upper).all()):
            return known
        size = self.typical.spread((lower + upper) / 2)
        tolerance = ACCURACY * (outputs.abs() * size[:, None]).sum(-1) + 1e-12
        look, effort = _Look(self, outputs, inputs), Effort(tolerance, self.most)
        return minimise(look.bound, look.value, lower, upper, known, effort, self.deadline)

    def rows(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> Tensor:
        """One look at each box: positive coefficients take lower bounds, negative ones upper bounds."""
        sides = self.source.sides(lower, upper)
        weights = torch.cat([outputs.clamp(min=0), -outputs.clamp(max=0)], -1)
        each = torch.where(weights > 0, weights * sides[:, None], 0.0)
        value = each.sum(-1) - 2 * gamma(weights.shape[-1]) * each.abs().sum(-1) - TINY
        if inputs is not None:
            moved = over_box(inputs, lower, upper)[0]
            value = value + moved - gamma(2) * (value.abs() + moved.abs())
        return value.nan_to_num(-torch.inf, torch.inf, -torch.inf)


@dataclass(frozen=True, eq=False)
class _Look:
    """Rows of some items, to be minimised."""

    method: MedianRows
    outputs: Tensor
    inputs: Tensor | None

    def _of(self, item: Tensor) -> tuple[Tensor, Tensor | None]:
        outputs = self.outputs if len(self.outputs) == 1 else self.outputs[item]
        inputs = self.inputs if self.inputs is None or len(self.inputs) == 1 else self.inputs[item]
        return outputs, inputs

    def bound(self, item: Tensor, lower: Tensor, upper: Tensor) -> Look:
        """Bounds, and the slopes of the estimate at the centre."""
        outputs, inputs = self._of(item)
        x = ((lower + upper) / 2).detach().requires_grad_()
        with torch.enable_grad():
            estimate = self.method.typical.median(x)
            slopes = [torch.autograd.grad(part.sum(), x, retain_graph=True)[0] for part in estimate.unbind(-1)]
        slope = outputs @ torch.stack(slopes, 1)
        slope = slope if inputs is None else slope + inputs
        return Look(self.method.rows(lower, upper, outputs, inputs), slope, lower, upper)

    def value(self, item: Tensor, x: Tensor) -> Tensor:
        """The rows of the estimate."""
        outputs, inputs = self._of(item)
        value = (outputs * self.method.typical.median(x)[:, None]).sum(-1)
        return value if inputs is None else value + (inputs * x[:, None]).sum(-1)


@dataclass(frozen=True, eq=False)
class Medians:
    """The methods that serve a network and its posterior, cheapest first; for `decide`, as `portfolio.Expectation`.

    Parameters
    ----------
    weights, mass : a box at the mean or K scattered ones and the mass of their unions, or K samples
    only_weights : nothing but these is used, because boxes were asked for
    """

    bounds: OutputBounds
    posterior: GaussianDiagonal | WeightSamples
    weights: WeightBoxes
    mass: BoxUnion | Tensor
    only_weights: bool

    aim: Aim = "median"
    quick: tuple[Method, ...] = ()
    criteria: tuple[Criterion, ...] = ()

    @cached_property
    def _typical(self) -> Sampled:
        return Sampled.of(self.bounds.engine.network, self.posterior, self.weights.scale.device)

    def _rows(self, source: MedianSource, most: int = 1) -> MedianRows:
        return MedianRows(source, self._typical, self.bounds.engine.deadline, most)

    @cached_property
    def by_weights(self) -> MedianRows:
        """The method that serves any graph."""
        return self._rows(WeightMedians(self.bounds, self.weights, self.mass))

    @cached_property
    def _closed(self) -> tuple[Method, ...]:
        if isinstance(self.posterior, WeightSamples) or self.only_weights:
            return ()
        engine = self.bounds.engine
        if engine.network.softmax_axis is not None or not moderate(engine.network, self.posterior):
            return ()
        chain = dense_chain(engine.network, self.posterior, self.weights.scale.device)
        if chain is None or not OneLayerMedians.serves(chain):
            return ()
        return (self._rows(OneLayerMedians(chain, engine.deadline), BOXES["one layer"]),)

    @cached_property
    def _by_tails(self) -> tuple[Method, ...]:
        if isinstance(self.posterior, WeightSamples) or self.only_weights:
            return ()
        engine, device = self.bounds.engine, self.weights.scale.device
        random = weight_sets.random_sources(engine.network, self.posterior)
        if any(isinstance(node, Constant) and node.value.source in random for node in engine.network.nodes):
            return ()
        tails = TailBounds(engine.network, self.posterior, device, engine.deadline)
        return (self._rows(TailMedians(tails, self._typical), BOXES["tails"]),)

    @cached_property
    def thorough(self) -> tuple[Method, ...]:
        """Methods that split inputs."""
        if isinstance(self.posterior, WeightSamples):
            return (self._rows(self.by_weights.source, BOXES["samples"]),)
        return self._closed or self._by_tails

    @property
    def tails(self) -> tuple[Method, ...]:
        """Methods for what is open at last."""
        return self._by_tails if self._closed else ()

    @property
    def methods(self) -> Iterator[Method]:
        """All of them, in order of cost."""
        yield from (self.by_weights, *self.thorough, *self.tails)

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.Y + g.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        return torch.stack([method.lower(lower, upper, outputs, inputs) for method in self.methods]).amax(0)

    def upper(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Upper bounds (N, R), by the lower bounds of the negated rows."""
        return -self.lower(lower, upper, -outputs, None if inputs is None else -inputs)
