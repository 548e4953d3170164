"""The decision under the l1 loss: Y_j is the median of output j over the posterior, with no observation noise.

Rows a.Y + g.x are bounded from bounds on the medians over parts of the input box, which is split for all rows of an
item at once. Which part to split, and where, is said by sampled networks, on which nothing rests.
Guarantee: sound with probability 1, rounding included; every median counts where there are several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from bnn_vnnlib.methods.decision.median_sources import MedianSource, Sampled, TailMedians, WeightMedians
from bnn_vnnlib.methods.decision.method import Plan, Steps, Task
from bnn_vnnlib.methods.decision.regression.medians import OneLayerMedians
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.network.network import GaussianDiagonal, WeightSamples
from bnn_vnnlib.problem.outputs import over_box
from bnn_vnnlib.result import Rule
from bnn_vnnlib.rounding import TINY, gamma
from bnn_vnnlib.splitting.frontier import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline

ACCURACY = 1e-3
"""Excess that is not worth a split, in standard deviations of the row's outputs."""

MAX_BOXES = {"samples": 400, "one layer": 200, "tails": 16}
"""Parts of an item, at most."""


@dataclass(frozen=True, eq=False)
class _MedianRows:
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

    method: _MedianRows
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


def _rows(task: Task, source: MedianSource, most: int = 1) -> _MedianRows:
    return _MedianRows(source, task.typical, task.bounds.engine.deadline, most)


def _only_means(task: Task) -> str | None:
    return None if task.rule is Rule.MEDIAN else "expectations are asked for"


def _weights_serve(task: Task) -> str | None:
    independent = isinstance(task.posterior, GaussianDiagonal | WeightSamples)
    return _only_means(task) or (None if independent else "the posterior's weights are not independent")


def _weights(task: Task) -> Steps:
    """One look at each item; samples are split, too."""
    source = WeightMedians(task.bounds, *task.weights)
    split = (_rows(task, source, MAX_BOXES["samples"]),) if isinstance(task.posterior, WeightSamples) else ()
    return Steps(any_graph=(_rows(task, source),), thorough=split)


def _one_layer_serves(task: Task) -> str | None:
    reason = _only_means(task) or task.no_closed_forms
    if reason is not None:
        return reason
    if task.network.softmax_axis is None and task.chain is not None and OneLayerMedians.serves(task.chain):
        return None
    return "the network is not one hidden layer of ReLU with independent Gaussian weights"


def _one_layer(task: Task) -> Steps:
    source = OneLayerMedians(cast(DenseChain, task.chain), task.bounds.engine.deadline)
    return Steps(thorough=(_rows(task, source, MAX_BOXES["one layer"]),))


def _tails_serve(task: Task) -> str | None:
    reason = _only_means(task) or task.only_weights
    if reason is None and not isinstance(task.posterior, GaussianDiagonal):
        reason = "the posterior is made of weight samples"
    return "a random tensor is a branch of the graph" if reason is None and task.branches else reason


def _tails(task: Task) -> Steps:
    posterior, deadline = cast(GaussianDiagonal, task.posterior), task.bounds.engine.deadline
    tails = TailBounds(task.network, posterior, task.device, deadline)
    rows = (_rows(task, TailMedians(tails, task.typical), MAX_BOXES["tails"]),)
    return Steps(thorough=rows) if _one_layer_serves(task) else Steps(last=rows)


METHODS: tuple[Method[Task, Plan], ...] = (
    Method("medians by weights", _weights_serve, _weights),
    Method("medians of one layer", _one_layer_serves, _one_layer),
    Method("medians by tails", _tails_serve, _tails),
)
"""Of medians, cheapest first."""
