"""Which of the methods of this package serve a network: none but chains of dense Gaussian layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from bnn_vnnlib.methods.decision.method import Plan, Steps, Task
from bnn_vnnlib.methods.decision.regression.moments_deep import MomentsDeep
from bnn_vnnlib.methods.decision.regression.one_layer import OneLayer
from bnn_vnnlib.methods.decision.regression.two_layers import TwoLayers
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.result import Rule


def _where(suits: Callable[[DenseChain], bool], what: str) -> Callable[[Task], str | None]:
    """The `serves` of a method for chains that suit; `what` names them in the reason why another is not served."""

    def serves(task: Task) -> str | None:
        """None where the task is the mean of such a chain's outputs; else why it is not."""
        if task.rule is Rule.MEDIAN:
            return "medians are asked for"
        if task.bounds.transform != "identity" or task.network.softmax_axis is not None:
            return "the decision is no expected output"
        if task.no_closed_forms is not None:
            return task.no_closed_forms
        if task.chain is None:
            return "the network is no chain of dense layers with independent Gaussian weights"
        return None if suits(task.chain) else f"the network is not {what}"

    return serves


def _one_layer(task: Task) -> Steps:
    return Steps(thorough=(OneLayer(cast(DenseChain, task.chain), task.bounds.engine.deadline),))


def _moments(task: Task) -> Steps:
    return Steps(thorough=(MomentsDeep.over(cast(DenseChain, task.chain), task.bounds.engine.deadline),))


def _two_layers(task: Task) -> Steps:
    return Steps(thorough=(TwoLayers(cast(DenseChain, task.chain), task.bounds.engine.deadline),))


METHODS: tuple[Method[Task, Plan], ...] = (
    Method("expectation of one layer", _where(OneLayer.serves, "one hidden layer of a known activation"), _one_layer),
    Method("expectation by moments", _where(MomentsDeep.serves, "a deeper chain of known activations"), _moments),
    Method("expectation of two layers", _where(TwoLayers.serves, "two hidden layers of ReLU"), _two_layers),
)
"""Of expected outputs, cheapest first."""
