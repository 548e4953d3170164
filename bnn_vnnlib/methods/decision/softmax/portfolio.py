"""Which of the methods of this package serve a network."""

from __future__ import annotations

from typing import cast

from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.methods.decision.method import Plan, Steps, Task
from bnn_vnnlib.methods.decision.softmax.by_samples import Samples
from bnn_vnnlib.methods.decision.softmax.by_tails import ALL_UP_TO, SoftmaxTails
from bnn_vnnlib.methods.decision.softmax.deep import ExponentialMoments, WithMoments
from bnn_vnnlib.methods.decision.softmax.method import SPLIT, SoftmaxRows
from bnn_vnnlib.methods.decision.softmax.one_layer import MeanNetwork, OneLayerSoftmax, Tilted
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.network.dense_chain import MAX_LAW_DISTANCE, DenseChain
from bnn_vnnlib.network.network import GaussianDiagonal, WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.weight_sets import SampledWeights
from bnn_vnnlib.splitting.frontier import Effort

MAX_CLASSES = 64
"""Classes, at most: all pairs of them are bounded."""

BUDGETS = (1e-2, 1e-5)
"""What the events of a deep network may fail with: for large deviations, and where little is uncertain."""

SPLIT_BUDGET, SPLIT_DEEP = (1e-4,), Effort(tolerance=5e-3, most=16)
"""Budgets of a deep network whose inputs are split, and how far they are: a box costs more than in a shallow one."""


def _no_softmax(task: Task) -> str | None:
    if task.bounds.transform == "identity":
        return "the decision is no expected softmax or sigmoid"
    if task.bounds.transform == "sigmoid" and task.network.signature.output_size > 1:
        return "each of several outputs has a sigmoid of its own"
    if task.network.signature.output_size > MAX_CLASSES:
        return f"there are more than {MAX_CLASSES} classes"
    return task.no_closed_forms


def _samples_serve(task: Task) -> str | None:
    samples = isinstance(task.posterior, WeightSamples)
    return _no_softmax(task) or (None if samples else "the posterior is not made of weight samples")


def _samples(task: Task) -> Steps:
    """Their lines are added up before x is minimised over."""
    engine, weights = task.bounds.engine, cast(SampledWeights, task.weights[0])
    samples = Samples(engine, weights, task.bounds.transform == "sigmoid")
    quick, aimed = (SoftmaxRows(samples, engine.deadline, effort) for effort in (None, SPLIT))
    return Steps(quick=(quick,), aimed=(aimed,))


def _relu_layers(task: Task) -> DenseChain | str:
    """The network with its zero logit, if its decision is a sigmoid; or why it is served as none, in words."""
    reason, found = _no_softmax(task), task.chain
    if reason is not None:
        return reason
    if found is None or found.kinds != {"relu"} or found.law_distance > MAX_LAW_DISTANCE:
        return "the network is no chain of dense layers with ReLU and independent Gaussian weights"
    return found.with_zero_output() if task.bounds.transform == "sigmoid" else found


def _one_layer_serves(task: Task) -> str | None:
    found = _relu_layers(task)
    if isinstance(found, str):
        return found
    return None if len(found.layers) == 2 else "the network has more than one hidden layer"


def _one_layer(task: Task) -> Steps:
    layers, deadline = cast(DenseChain, _relu_layers(task)), task.bounds.engine.deadline
    distance, closed = layers.law_distance, OneLayerSoftmax(layers)
    source = WithMoments(closed, ExponentialMoments(layers, BUDGETS))
    criteria = (MeanNetwork(task.bounds, closed),) if task.bounds.transform == "softmax" and distance == 0 else ()
    quick, aimed = (SoftmaxRows(source, deadline, effort, distance) for effort in (None, SPLIT))
    last = SoftmaxRows(Tilted(layers), deadline, None, distance)
    return Steps(quick=(quick,), criteria=criteria, aimed=(aimed,), last=(last,))


def _moments_serve(task: Task) -> str | None:
    found = _relu_layers(task)
    if isinstance(found, str):
        return found
    return None if len(found.layers) > 2 else "the network has one hidden layer, for which there are closed forms"


def _moments(task: Task) -> Steps:
    layers, deadline = cast(DenseChain, _relu_layers(task)), task.bounds.engine.deadline
    quick = SoftmaxRows(ExponentialMoments(layers, BUDGETS), deadline, None, layers.law_distance)
    aimed = SoftmaxRows(ExponentialMoments(layers, SPLIT_BUDGET), deadline, SPLIT_DEEP, layers.law_distance)
    return Steps(quick=(quick,), aimed=(aimed,))


def _tails_serve(task: Task) -> str | None:
    reason = _no_softmax(task)
    if reason is not None:
        return reason
    if not isinstance(task.posterior, GaussianDiagonal):
        return "the posterior is made of weight samples"
    if _one_layer_serves(task) is None:
        return "the network has one hidden layer, for which there are closed forms"
    if task.bounds.transform != "softmax" or task.network.signature.output_size < 2:
        return "the decision is no softmax of several outputs"
    return "a random tensor is a branch of the graph" if task.branches else None


def _tails(task: Task) -> Steps:
    """Too dear for every class of every item where there are moments, or many classes."""
    network, posterior = task.network, cast(GaussianDiagonal, task.posterior)
    means, deviations = (
        weight_sets.mean_weights(network, task.device), weight_sets.centred(network, posterior, task.device)
    )  # fmt: skip
    tails = (SoftmaxTails(TailEngine(network, task.bounds.engine.deadline), means, deviations),)
    dear = _moments_serve(task) is None or network.signature.output_size > ALL_UP_TO
    return Steps(last=tails) if dear else Steps(quick=tails)


METHODS: tuple[Method[Task, Plan], ...] = (
    Method("softmax of weight samples", _samples_serve, _samples),
    Method("softmax of one layer", _one_layer_serves, _one_layer),
    Method("softmax by exponential moments", _moments_serve, _moments),
    Method("softmax by tails", _tails_serve, _tails),
)
"""Of the expected softmax, or sigmoid of one output, cheapest first."""
