"""The methods of the decision, and those that serve a task, in the order of their cost.

Guarantee: sound with probability 1, rounding included; not complete.

1. What serves any graph: boxes or samples of weights, cells of few latent numbers, and components (a mixture's, or one
   correlated Gaussian). At every x the decision is sum_i p_i E_i s(f(x)), so that a row's least value over a box is at
   least the weighted sum of those of the components. A component of a mixture is bounded by everything that serves it,
   one correlated Gaussian by its tails (`softmax.by_tails`).
2. The expected softmax, or sigmoid of one output.
3. Expected outputs, of chains of dense Gaussian layers.
4. Medians, and other quantiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import cast

import torch
from torch import Tensor

from bnn_vnnlib.attack import Attack
from bnn_vnnlib.methods.components import BY_COMPONENTS, BoundedComponent, components_of, weighted_sum
from bnn_vnnlib.methods.decision.by_cells import CellExpectations, CellMedians, CellTrees
from bnn_vnnlib.methods.decision.by_weights import ByWeights, output_norms
from bnn_vnnlib.methods.decision.median import MedianRows, MedianSource, TailMedians, WeightMedians
from bnn_vnnlib.methods.decision.method import DecisionTask, Plan, RowMethod, Steps
from bnn_vnnlib.methods.decision.regression.by_tails import ExpectationByTails
from bnn_vnnlib.methods.decision.regression.medians import OneLayerMedians
from bnn_vnnlib.methods.decision.regression.moments_deep import MomentsDeep
from bnn_vnnlib.methods.decision.regression.one_layer import OneLayer
from bnn_vnnlib.methods.decision.regression.two_layers import TwoLayers
from bnn_vnnlib.methods.decision.softmax.by_safety import SoftmaxBySafety
from bnn_vnnlib.methods.decision.softmax.by_samples import Samples
from bnn_vnnlib.methods.decision.softmax.by_tails import ALL_UP_TO, SoftmaxTails
from bnn_vnnlib.methods.decision.softmax.deep import ExponentialMoments, WithMoments
from bnn_vnnlib.methods.decision.softmax.gaussian_logits import GaussianLogits, of_logits
from bnn_vnnlib.methods.decision.softmax.method import SPLIT, SoftmaxRows
from bnn_vnnlib.methods.decision.softmax.one_layer import MeanNetwork, OneLayerSoftmax, Tilted
from bnn_vnnlib.methods.decision.split import MOST_DEAR, SplitInputs
from bnn_vnnlib.methods.last_layer import last_layer
from bnn_vnnlib.methods.latents import LatentBounds, why_no_cells
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.portfolio import safety_bounds
from bnn_vnnlib.methods.safety.safety import Goal, SafetyTask
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.network.dense_chain import MAX_LAW_DISTANCE, DenseChain
from bnn_vnnlib.network.latents import with_probabilities
from bnn_vnnlib.network.network import Correlated, Gaussian, GaussianDiagonal, Mixture, WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.problem.weight_sets import SampledWeights
from bnn_vnnlib.rounding import UP
from bnn_vnnlib.splitting.frontier import Effort
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once


@dataclass(frozen=True, eq=False)
class Portfolio:
    """The work of all methods that serve a task; for `decide`, and a `RowMethod` itself."""

    task: DecisionTask
    steps: Steps

    @property
    def name(self) -> str:
        """Name of the portfolio as a method, for people and the record."""
        return "portfolio"

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.D(x) + g.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        return torch.stack([method.lower(lower, upper, outputs, inputs) for method in self.steps.rows]).amax(0)

    def upper(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Upper bounds (N, R), by the lower bounds of the negated rows."""
        return -self.lower(lower, upper, -outputs, None if inputs is None else -inputs)


def portfolio(task: DecisionTask) -> Portfolio:
    """The portfolio of all methods that serve the task."""
    steps = [method.bounds(task) for method in METHODS if method.serves(task) is None]
    return Portfolio(task, reduce(Steps.then, steps))


# 1. Any graph


@dataclass(frozen=True, eq=False)
class _Components:
    """The weighted sum over the components, each bounded for itself."""

    task: DecisionTask

    @property
    def name(self) -> str:
        """Name of the method by what the components are bounded with, for people and the record."""
        return BY_COMPONENTS if isinstance(self.task.posterior, Mixture) else "tails"

    @cached_property
    def _parts(self) -> list[tuple[float, RowMethod]]:
        posterior = cast("Gaussian | Mixture", self.task.posterior)
        return [(part.share, self._method(part)) for part in components_of(self.task.bounds, posterior)]

    def _method(self, part: BoundedComponent) -> RowMethod:
        if isinstance(part.posterior, GaussianDiagonal) or isinstance(self.task.posterior, Mixture):
            return portfolio(replace(self.task, bounds=part.bounds, posterior=part.posterior))
        return Portfolio(self.task, Steps(any_graph=_by_tails(part.bounds, part.posterior, self.task.device)))

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on the weighted sum of the components' expectations of rows over boxes (N, n)."""
        values = torch.stack([method.lower(lower, upper, outputs, inputs) for _, method in self._parts])
        return weighted_sum(lower.new_tensor([share for share, _ in self._parts]), values)


def _by_tails(
    bounds: OutputBounds, posterior: Gaussian, device: torch.device
) -> tuple[SoftmaxTails | ExpectationByTails, ...]:
    """What bounds expectations of any graph by tails; the last one that of the outputs, or of the probabilities as
    outputs of a network that computes them, unless they are many.
    """
    network, transform, found = bounds.engine.network, bounds.transform, list[SoftmaxTails | ExpectationByTails]()
    if transform == "softmax":
        found = [SoftmaxTails.over(network, posterior, device, bounds.engine.deadline)]
        if network.signature.output_size > ALL_UP_TO:
            return tuple(found)
    if transform != "identity":
        network = with_probabilities(network, transform)
        bounds = OutputBounds(replace(bounds.engine, network=network), "identity")
    return (*found, ExpectationByTails.over(bounds, network, posterior, device))


def _no_means(task: DecisionTask) -> str | None:
    return None if task.rule.level is None else "quantiles are asked for"


def _components_serve(task: DecisionTask) -> str | None:
    if not isinstance(task.posterior, Correlated | Mixture):
        return "the posterior's weights are independent, or samples"
    return _no_means(task)


def _weights_serve(task: DecisionTask) -> str | None:
    if not isinstance(task.posterior, Gaussian | WeightSamples):
        return "the posterior is a mixture"
    return _no_means(task)


def _weights(task: DecisionTask) -> Steps:
    posterior = cast("Gaussian | WeightSamples", task.posterior)
    rows = ByWeights(task.bounds, posterior, *task.weights)
    splits = isinstance(posterior, WeightSamples) and task.bounds.transform == "identity"
    return Steps(any_graph=(rows,), longest=(SplitInputs(rows, task.network, task.deadline),) if splits else ())


_CELLS, _MOST_CELLS = 2**9, 2**18
"""Cells of an item at first, and, where time is limited, of what is open at last."""

_CELL_BOXES = 12
"""Boxes that an item is split into, at most: each has its own cells."""

CELL_CLASSES = 16
"""Classes, at most, of which probabilities are nodes of a graph."""

_CELL_TOLERANCE = 1e-4
"""What cells may leave open of a row whose coefficients add up to 1, unless a gap is asked for."""


def _cells_serve(task: DecisionTask) -> str | None:
    if task.bounds.transform == "softmax" and task.network.signature.output_size > CELL_CLASSES:
        return f"there are more than {CELL_CLASSES} classes"
    return task.boxes_asked_for or why_no_cells(task.bounds, task.posterior)


def _cell_trees(task: DecisionTask) -> tuple[CellTrees, CellTrees]:
    """The trees of cells for a first look, and those for what is open at last."""
    latents = LatentBounds.of(task.bounds, cast("Gaussian", task.posterior), task.device, at_points=True)
    least = {"softmax": lambda rows: rows.amin(-1), "sigmoid": lambda rows: rows.clamp(max=0).sum(-1)}
    tolerance = _CELL_TOLERANCE if task.gap is None else task.gap / 2.5
    first = CellTrees(latents, least.get(task.bounds.transform), task.deadline, tolerance, _CELLS)
    return first, replace(first, most=_MOST_CELLS, patient=True)


def _expectations_by_cells_serve(task: DecisionTask) -> str | None:
    return _no_means(task) or _cells_serve(task)


def _expectations_by_cells(task: DecisionTask) -> Steps:
    independent = isinstance(task.posterior, GaussianDiagonal)
    boxes = weight_sets.marginal(task.network, cast("Gaussian", task.posterior), task.device)

    def norm(lower: Tensor, upper: Tensor, rows: Tensor) -> Tensor:
        norms = output_norms(task.network, boxes, lower, upper, independent=independent)
        each = torch.where(rows != 0, rows.abs() * norms[:, None], 0.0)
        return each.sum(-1) * UP

    first, last = (CellExpectations(trees, norm) for trees in _cell_trees(task))
    longest = (last, SplitInputs(first, task.network, task.deadline, _CELL_BOXES))
    return Steps(last=(first,), longest=() if task.deadline.at is None else longest)


# 2. Softmax

_MAX_CLASSES = 64
"""Classes, at most: all pairs of them are bounded."""

_EVENT_BUDGETS = (1e-2, 1e-5)
"""What the events of a deep network may fail with: for large deviations, and where little is uncertain."""

_SURE = 0.999
"""P_safe from which on it is not refined any more: a thousandth of the mass moves no decision by more."""

_SPLIT_BUDGET, _SPLIT_DEEP = (1e-4,), Effort(tolerance=5e-3, most=16)
"""Budgets of a deep network whose inputs are split, and how far they are: a box costs more than in a shallow one."""


def _no_softmax(task: DecisionTask) -> str | None:
    if task.bounds.transform == "identity":
        return "the decision is no expected softmax or sigmoid"
    if task.bounds.transform == "sigmoid" and task.network.signature.output_size > 1:
        return "each of several outputs has a sigmoid of its own"
    if task.network.signature.output_size > _MAX_CLASSES:
        return f"there are more than {_MAX_CLASSES} classes"
    return task.no_closed_forms


def _softmax_of_samples_serve(task: DecisionTask) -> str | None:
    samples = isinstance(task.posterior, WeightSamples)
    return _no_softmax(task) or (None if samples else "the posterior is not made of weight samples")


def _softmax_of_samples(task: DecisionTask) -> Steps:
    """Softmax or sigmoid of weight samples, whose lines are added up before x is minimised over."""
    weights = cast(SampledWeights, task.weights[0])
    samples = Samples(task.bounds.engine, weights, task.bounds.transform == "sigmoid")
    quick, aimed = (SoftmaxRows(samples, task.deadline, effort) for effort in (None, SPLIT))
    return Steps(quick=(quick,), aimed=(aimed,))


def _relu_layers(task: DecisionTask) -> DenseChain | str:
    """The network with its zero logit, if its decision is a sigmoid; or why it is served as none, in words."""
    reason, found = _no_softmax(task), task.chain
    if reason is not None:
        return reason
    if found is None or found.kinds != {"relu"} or found.law_distance > MAX_LAW_DISTANCE:
        return "the network is no chain of dense layers with ReLU and independent Gaussian weights"
    return found.with_zero_output() if task.bounds.transform == "sigmoid" else found


def _softmax_of_one_layer_serves(task: DecisionTask) -> str | None:
    found = _relu_layers(task)
    if isinstance(found, str):
        return found
    return None if len(found.layers) == 2 else "the network has more than one hidden layer"


def _softmax_of_one_layer(task: DecisionTask) -> Steps:
    layers, deadline = cast(DenseChain, _relu_layers(task)), task.deadline
    distance, closed = layers.law_distance, OneLayerSoftmax(layers)
    source = WithMoments(closed, ExponentialMoments(layers, _EVENT_BUDGETS))
    criteria = (MeanNetwork(task.bounds, closed),) if task.bounds.transform == "softmax" and distance == 0 else ()
    quick, aimed = (SoftmaxRows(source, deadline, effort, distance) for effort in (None, SPLIT))
    last = SoftmaxRows(Tilted(layers), deadline, None, distance)
    return Steps(quick=(quick,), criteria=criteria, aimed=(aimed,), last=(last,))


def _softmax_by_moments_serve(task: DecisionTask) -> str | None:
    found = _relu_layers(task)
    if isinstance(found, str):
        return found
    return None if len(found.layers) > 2 else "the network has one hidden layer, for which there are closed forms"


_STEPS_OF_MOMENTS = 4
"""Exponential moments of one box come first if they take the memory of at most so many steps."""


def _moments_are_dear(task: DecisionTask) -> bool:
    """Whether exponential moments take many times as long as P_safe, as those of a large network do: tails come first
    then.
    """
    moments = ExponentialMoments(cast(DenseChain, _relu_layers(task)), _EVENT_BUDGETS)
    return at_once(moments.size // _STEPS_OF_MOMENTS) == 1


def _softmax_by_moments(task: DecisionTask) -> Steps:
    layers, deadline = cast(DenseChain, _relu_layers(task)), task.deadline
    if _moments_are_dear(task):  # so much so that time may be up before one box is bounded
        cut_off = ExponentialMoments(layers, _EVENT_BUDGETS, deadline)
        return Steps(longest=(SoftmaxRows(cut_off, deadline, None, layers.law_distance),))
    look = SoftmaxRows(ExponentialMoments(layers, _EVENT_BUDGETS), deadline, None, layers.law_distance)
    aimed = SoftmaxRows(ExponentialMoments(layers, _SPLIT_BUDGET), deadline, _SPLIT_DEEP, layers.law_distance)
    return Steps(second=(look,), aimed=(aimed,)) if _tails_are_quicker(task) else Steps(quick=(look,), aimed=(aimed,))


def _softmax_by_tails_serve(task: DecisionTask) -> str | None:
    reason = task.no_closed_forms if task.bounds.transform == "sigmoid" else _no_softmax(task)
    if reason is not None:
        return reason
    if not isinstance(task.posterior, GaussianDiagonal):
        return "the posterior is made of weight samples"
    if task.bounds.transform == "softmax" and task.network.signature.output_size < 2:
        return "the softmax of one output is 1"
    return "a random tensor is a branch of the graph" if task.branches else None


def _tails_are_quicker(task: DecisionTask) -> bool:
    """A pass of tails bounds all classes, and takes less time than a look of moments does."""
    return task.bounds.transform == "softmax" and 2 <= task.network.signature.output_size <= ALL_UP_TO


def _softmax_by_tails(task: DecisionTask) -> Steps:
    """Too dear for every class of every item where there are closed forms, moments or many classes.

    Those rest on E exp(f_j - f_i), which a wide posterior makes huge although f_j < f_i nearly always: tails do not.
    In large networks a quick pass comes first, and those with all budgets are for what it leaves open.
    """
    tails = _by_tails(task.bounds, cast(GaussianDiagonal, task.posterior), task.device)
    thorough = tuple(replace(part, thorough=True) for part in tails if isinstance(part, ExpectationByTails))
    deep = _softmax_by_moments_serve(task) is None and not _moments_are_dear(task)
    exponents = _softmax_of_one_layer_serves(task) is None or deep
    if exponents or task.network.signature.output_size > ALL_UP_TO:
        first = 1 if deep and _tails_are_quicker(task) else 0
        return Steps(quick=tails[:first], last=(*tails[first:], *thorough))
    if task.lengthy:
        return Steps(quick=(tails[0].quick,), last=(*tails, *thorough))
    return Steps(quick=tails, last=thorough)


def _softmax_by_safety_serves(task: DecisionTask) -> str | None:
    if task.bounds.transform != "softmax" or not 2 <= task.network.signature.output_size <= _MAX_CLASSES:
        return f"the decision is no softmax of 2 to {_MAX_CLASSES} outputs"
    if isinstance(task.posterior, WeightSamples):
        return "the posterior is made of weight samples"
    return task.boxes_asked_for


def _softmax_by_safety(task: DecisionTask) -> Steps:
    """The expected softmax by all that bounds P_safe, refined for half of the time that is left where time is
    limited.
    """

    def safe(problem: Problem) -> Tensor:
        until = task.deadline.share(2)
        bounds = OutputBounds(replace(task.bounds.engine, deadline=until), "identity")
        looked = Attack(steps=0, restarts=1, seed=task.seed, deadline=until)
        goal = Goal(0.0 if until.at is None else _SURE, 0.0)
        return safety_bounds(SafetyTask(bounds, task.posterior, problem, looked, until, goal)).lower

    return Steps(longest=(SoftmaxBySafety(safe),))


def _gaussian_logits_serve(task: DecisionTask) -> str | None:
    if (reason := _no_means(task)) is not None:
        return reason
    logits = of_logits(task.bounds)
    if logits.transform == "identity":
        return "the decision is no sigmoid, and no softmax"
    if logits.transform == "softmax" and not 2 <= task.network.signature.output_size <= _MAX_CLASSES:
        return f"the decision is no softmax of 2 to {_MAX_CLASSES} outputs"
    if not isinstance(task.posterior, Gaussian):
        return "the posterior is made of weight samples, or a mixture"
    if last_layer(logits.engine.network, task.posterior) is None:
        return "not the last dense layer alone is random"
    return task.boxes_asked_for


def _gaussian_logits(task: DecisionTask) -> Steps:
    logits = GaussianLogits.over(of_logits(task.bounds), cast("Gaussian", task.posterior), task.device)
    return Steps(quick=(logits,), longest=(SplitInputs(logits, task.network, task.deadline),))


# 3. Expectations


def _expectation(
    name: str, suits: Callable[[DenseChain], bool], what: str, make: Callable[[DenseChain, Deadline], RowMethod]
) -> Method[DecisionTask, Plan]:
    """A method for chains that suit; `what` names them in the reason why another is not served."""

    def serves(task: DecisionTask) -> str | None:
        """Why this closed form does not serve; None where it does."""
        if (reason := _no_means(task)) is not None:
            return reason
        if task.bounds.transform != "identity" or task.network.softmax_axis is not None:
            return "the decision is no expected output"
        if task.no_closed_forms is not None:
            return task.no_closed_forms
        if task.chain is None:
            return "the network is no chain of dense layers with independent Gaussian weights"
        return None if suits(task.chain) else f"the network is not {what}"

    def bounds(task: DecisionTask) -> Steps:
        closed = make(cast(DenseChain, task.chain), task.deadline)
        return Steps(thorough=(closed,), longest=(SplitInputs(closed, task.network, task.deadline),))

    return Method(name, serves, bounds)


def _expectation_by_tails_serves(task: DecisionTask) -> str | None:
    if (reason := _no_means(task)) is not None:
        return reason
    if task.bounds.transform != "identity" or task.network.softmax_axis is not None:
        return "the decision is no expected output"
    if not isinstance(task.posterior, GaussianDiagonal):
        return "the posterior's weights are not independent, or it is made of weight samples"
    if task.chain is not None and (OneLayer.serves(task.chain) or TwoLayers.serves(task.chain)):
        return "there are closed forms for the layers of the network"
    return task.boxes_asked_for or ("a random tensor is a branch of the graph" if task.branches else None)


def _expectation_by_tails(task: DecisionTask) -> Steps:
    tails = ExpectationByTails.over(task.bounds, task.network, cast(GaussianDiagonal, task.posterior), task.device)
    deep = replace(tails, thorough=True)
    longest = (SplitInputs(deep, task.network, task.deadline, MOST_DEAR),)
    if task.lengthy:
        return Steps(quick=(tails.quick,), last=(tails, deep), longest=longest)
    return Steps(thorough=(tails,), last=(deep,), longest=longest)


# 4. Medians, and other quantiles

_MAX_PARTS = {"samples": 400, "one layer": 200, "tails": 16}
"""Parts of an item, at most."""


def _median_rows(task: DecisionTask, source: MedianSource, most: int = 1) -> MedianRows:
    return MedianRows(source, task.typical, task.deadline, _level(task), most)


def _level(task: DecisionTask) -> float:
    return 0.5 if task.rule.level is None else task.rule.level


def _no_medians(task: DecisionTask) -> str | None:
    return "expectations are asked for" if task.rule.level is None else None


def _medians_by_weights_serve(task: DecisionTask) -> str | None:
    served = isinstance(task.posterior, Gaussian | WeightSamples)
    return _no_medians(task) or (None if served else "the posterior is a mixture")


def _medians_by_weights(task: DecisionTask) -> Steps:
    """Quantiles by boxes of weights or by samples: one look at each item; for samples items are split, too."""
    source = replace(WeightMedians(task.bounds, *task.weights), level=_level(task))
    split = (_median_rows(task, source, _MAX_PARTS["samples"]),) if isinstance(task.posterior, WeightSamples) else ()
    return Steps(any_graph=(_median_rows(task, source),), thorough=split)


def _medians_of_one_layer_serve(task: DecisionTask) -> str | None:
    reason = _no_medians(task) or task.no_closed_forms
    if reason is not None:
        return reason
    if task.rule.level != 0.5:
        return "another quantile than the median is asked for"
    if task.network.softmax_axis is None and task.chain is not None and OneLayerMedians.serves(task.chain):
        return None
    return "the network is not one hidden layer of ReLU with independent Gaussian weights"


def _medians_of_one_layer(task: DecisionTask) -> Steps:
    source = OneLayerMedians(cast(DenseChain, task.chain), task.deadline)
    return Steps(thorough=(_median_rows(task, source, _MAX_PARTS["one layer"]),))


def _medians_by_tails_serve(task: DecisionTask) -> str | None:
    reason = _no_medians(task) or task.boxes_asked_for
    if reason is None and not isinstance(task.posterior, Gaussian):
        reason = "the posterior is made of weight samples, or a mixture"
    return "a random tensor is a branch of the graph" if reason is None and task.branches else reason


def _medians_by_tails(task: DecisionTask) -> Steps:
    tails = TailBounds(task.network, cast("Gaussian", task.posterior), task.device, task.deadline)
    rows = (_median_rows(task, TailMedians(tails, task.typical, _level(task)), _MAX_PARTS["tails"]),)
    return Steps(thorough=rows) if _medians_of_one_layer_serve(task) else Steps(last=rows)


def _medians_by_cells_serve(task: DecisionTask) -> str | None:
    return _no_medians(task) or _cells_serve(task)


def _medians_by_cells(task: DecisionTask) -> Steps:
    first, last = (CellMedians(trees, task.typical, _level(task)) for trees in _cell_trees(task))
    longest = (_median_rows(task, last), _median_rows(task, first, _CELL_BOXES))
    return Steps(last=(_median_rows(task, first),), longest=() if task.deadline.at is None else longest)


METHODS: tuple[Method[DecisionTask, Plan], ...] = (
    Method("components", _components_serve, lambda task: Steps(any_graph=(_Components(task),))),
    Method("boxes or samples of weights", _weights_serve, _weights),
    Method("softmax of weight samples", _softmax_of_samples_serve, _softmax_of_samples),
    Method("softmax of one layer", _softmax_of_one_layer_serves, _softmax_of_one_layer),
    Method("softmax by tails", _softmax_by_tails_serve, _softmax_by_tails),
    Method("Gaussian logits", _gaussian_logits_serve, _gaussian_logits),
    Method("softmax by P_safe", _softmax_by_safety_serves, _softmax_by_safety),
    Method("softmax by exponential moments", _softmax_by_moments_serve, _softmax_by_moments),
    _expectation("expectation of one layer", OneLayer.serves, "one hidden layer of a known activation", OneLayer),
    _expectation("expectation by moments", MomentsDeep.serves, "a deeper chain of known activations", MomentsDeep.over),
    _expectation("expectation of two layers", TwoLayers.serves, "two hidden layers of ReLU", TwoLayers),
    Method("expectation by tails", _expectation_by_tails_serves, _expectation_by_tails),
    Method("medians by weights", _medians_by_weights_serve, _medians_by_weights),
    Method("medians of one layer", _medians_of_one_layer_serve, _medians_of_one_layer),
    Method("medians by tails", _medians_by_tails_serve, _medians_by_tails),
    Method("expectation by cells", _expectations_by_cells_serve, _expectations_by_cells),
    Method("medians by cells", _medians_by_cells_serve, _medians_by_cells),
)
"""The methods of the decision, of each kind the cheapest first. `reasons` says why some do not serve."""
