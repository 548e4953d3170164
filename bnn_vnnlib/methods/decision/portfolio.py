"""The methods of the decision, and those that serve a task, in the order of their cost.

Guarantee: sound with probability 1, rounding included; not complete.
Components (a mixture's, or one correlated Gaussian): at every x the decision is sum_i p_i E_i s(f(x)), so that a row's
least value over a box is at least the weighted sum of those of the components. A component of independent weights is
bounded by everything that serves it, one of correlated weights by its tails (`softmax.by_tails`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import cast

import torch
from torch import Tensor

from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.methods.components import MIXTURE, Component, components_of, weighted_sum
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.methods.decision import median
from bnn_vnnlib.methods.decision.by_weights import ByWeights
from bnn_vnnlib.methods.decision.method import Plan, Steps, Task
from bnn_vnnlib.methods.decision.regression import portfolio as regression
from bnn_vnnlib.methods.decision.softmax import portfolio as softmax
from bnn_vnnlib.methods.decision.softmax.by_tails import SoftmaxTails
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.network.network import Correlated, Gaussian, GaussianDiagonal, Mixture, WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.result import Rule


@dataclass(frozen=True, eq=False)
class Portfolio:
    """The work of all methods that serve a task; for `decide`."""

    task: Task
    steps: Steps

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.D(x) + g.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        return torch.stack([method.lower(lower, upper, outputs, inputs) for method in self.steps.rows]).amax(0)

    def upper(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Upper bounds (N, R), by the lower bounds of the negated rows."""
        return -self.lower(lower, upper, -outputs, None if inputs is None else -inputs)


def portfolio(task: Task) -> Portfolio:
    """Of all methods that serve the task."""
    steps = [method.bounds(task) for method in METHODS if method.serves(task) is None]
    return Portfolio(task, reduce(Steps.then, steps))


@dataclass(frozen=True, eq=False)
class _Components:
    """The weighted sum over the components, each bounded for itself."""

    task: Task

    @property
    def name(self) -> str:
        """What the components are bounded by."""
        return MIXTURE if isinstance(self.task.posterior, Mixture) else "tails"

    @cached_property
    def _parts(self) -> list[tuple[float, Portfolio | SoftmaxTails]]:
        posterior = cast("Gaussian | Mixture", self.task.posterior)
        return [(part.share, self._method(part)) for part in components_of(self.task.bounds, posterior)]

    def _method(self, part: Component) -> Portfolio | SoftmaxTails:
        if isinstance(part.posterior, GaussianDiagonal):
            return portfolio(replace(self.task, bounds=part.bounds, posterior=part.posterior))
        device, deadline = self.task.device, part.bounds.engine.deadline
        engine = TailEngine(part.network, deadline, correlation=correlation(part.network, part.posterior, device))
        noise = weight_sets.centred(part.network, independent(part.posterior), device)
        return SoftmaxTails(engine, weight_sets.mean_weights(part.network, device), noise)

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on the weighted sum of the components' expectations of rows over boxes (N, n)."""
        values = torch.stack([method.lower(lower, upper, outputs, inputs) for _, method in self._parts])
        return weighted_sum(lower.new_tensor([share for share, _ in self._parts]), values)


def _components_serve(task: Task) -> str | None:
    if not isinstance(task.posterior, Correlated | Mixture):
        return "the posterior's weights are independent, or samples"
    return "medians are asked for" if task.rule is Rule.MEDIAN else None


def _components(task: Task) -> Steps:
    return Steps(any_graph=(_Components(task),))


def _weights_serve(task: Task) -> str | None:
    if not isinstance(task.posterior, GaussianDiagonal | WeightSamples):
        return "the posterior's weights are not independent"
    return "medians are asked for" if task.rule is Rule.MEDIAN else None


def _weights(task: Task) -> Steps:
    posterior = cast("GaussianDiagonal | WeightSamples", task.posterior)
    return Steps(any_graph=(ByWeights(task.bounds, posterior, *task.weights),))


METHODS: tuple[Method[Task, Plan], ...] = (
    Method("components", _components_serve, _components),
    Method("boxes or samples of weights", _weights_serve, _weights),
    *softmax.METHODS,
    *regression.METHODS,
    *median.METHODS,
)
"""All of them. `reasons` says why some do not serve."""
