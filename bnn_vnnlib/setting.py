"""Everything that a run needs beside the boxes and the rows, settled before work starts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from bnn_vnnlib.errors import OptionError, UnsupportedError, did_you_mean
from bnn_vnnlib.question.options import Question
from bnn_vnnlib.question.served import refuse_idle, refuse_unserved
from bnn_vnnlib.result import Query, Rule
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.devices import find_device

if TYPE_CHECKING:
    import torch

    from bnn_vnnlib.attack import Attack
    from bnn_vnnlib.methods.decision import Decision
    from bnn_vnnlib.methods.safety.portfolio import Means
    from bnn_vnnlib.methods.safety.safety import SafetyBounds
    from bnn_vnnlib.network.network import Likelihood, Model, Network, Posterior
    from bnn_vnnlib.problem.outputs import OutputBounds, Transform
    from bnn_vnnlib.problem.problem import Problem

Method = Literal["auto", "interval", "linear", "tails"]
BoxKind = Literal["mean", "sampled"]
Search = Literal["float64", "float32"]

NUM_BOXES = 5
"""Boxes around samples, where their number is not given."""


@dataclass(frozen=True)
class Choices:
    """How to bound; see `verify` for the meaning of each."""

    method: Method = "auto"
    boxes: BoxKind = "mean"
    num_boxes: int | None = None
    margin: float | None = None
    seed: int = 0
    device: str | None = None
    search: Search = "float64"

    def __post_init__(self) -> None:
        for what, word, known in (
            ("method", self.method, get_args(Method)), ("boxes", self.boxes, get_args(BoxKind)),
            ("type to search in", self.search, get_args(Search)),
        ):  # fmt: skip
            if word not in known:
                hint = did_you_mean(str(word), known)
                raise OptionError(f"unknown {what} {word!r}; expected one of {', '.join(known)}{hint}")
        if self.method == "tails" and (self.boxes != "mean" or self.margin is not None):
            raise OptionError("method tails uses no boxes of weights: leave out --boxes and --margin")
        if self.num_boxes is not None and self.boxes == "mean":
            raise OptionError("the number of boxes goes with boxes around samples: add --boxes sampled")
        if self.num_boxes is not None and self.num_boxes < 1:
            raise OptionError(f"the number of boxes must be positive, not {self.num_boxes}")
        if self.seed < 0:
            raise OptionError(f"the seed must not be negative, found {self.seed}")
        if self.margin is not None and not 0 < self.margin < float("inf"):
            raise OptionError(f"the margin must be a positive number of standard deviations, not {self.margin}")


@dataclass(frozen=True, eq=False)
class Setting:
    """A settled run.

    Attributes
    ----------
    model, query, question : what is asked of what
    likelihood : None where nothing says
    transform : what Y is, as a function of the graph's outputs (its final Softmax left out)
    bounds : the engine behind that transform
    deadline, choices, device : how
    """

    model: Model
    query: Query
    question: Question
    likelihood: Likelihood | None
    transform: Transform
    bounds: OutputBounds
    deadline: Deadline
    choices: Choices
    device: torch.device

    @property
    def posterior(self) -> Posterior:
        """The posterior of a query that needs one."""
        if self.model.posterior is None:
            raise OptionError(f"query {self.query} needs a posterior and the model carries none", path=self.model.path)
        return self.model.posterior

    @property
    def means(self) -> Means:
        """How P_safe of a Gaussian posterior is bounded; a given margin asks for boxes."""
        if self.choices.method == "tails":
            return "tails"
        return "both" if self.choices.method == "auto" and self.choices.margin is None else "boxes"

    @property
    def precision(self) -> torch.dtype:
        """Of what is searched and confirmed afterwards: attacks, tuning."""
        import torch

        return torch.float32 if self.choices.search == "float32" else torch.float64

    @property
    def _boxes(self) -> int:
        return self.choices.num_boxes or NUM_BOXES

    def settled(self, problem: Problem) -> Problem:
        """The problem without what the ranges of the last activations settle, whatever the random weights are."""
        from bnn_vnnlib.problem import weight_sets
        from bnn_vnnlib.problem.refute import settled

        network = self.bounds.engine.network
        weights = weight_sets.mean_weights(network, self.device)
        return settled(self.bounds, weights, problem, weight_sets.random_names(network, self.posterior))

    def safety(self, problem: Problem, attack: Attack) -> SafetyBounds:
        """Bounds on P_safe of every instance, as far as time suffices."""
        from bnn_vnnlib.methods.safety.portfolio import safety_bounds
        from bnn_vnnlib.methods.safety.refine import Goal

        return safety_bounds(
            self.bounds, self.posterior, problem, attack, self.deadline,
            Goal(self.question.tau_safe, self.question.tau_unsafe), means=self.means, boxes=self.choices.boxes,
            number=self._boxes, margin=self.choices.margin,
        )  # fmt: skip

    def decision(self) -> Decision:
        """What bounds the decision."""
        from bnn_vnnlib.methods import decision
        from bnn_vnnlib.network.network import Correlated, Mixture

        if isinstance(self.posterior, Correlated | Mixture):
            return decision.PartsExpectation(
                self.bounds, self.posterior, self.device, self.choices.boxes, self._boxes, self.choices.margin,
                self.choices.seed,
            )  # fmt: skip
        portfolio = decision.medians if self.question.rule is Rule.MEDIAN else decision.expectation
        return portfolio(
            self.bounds, self.posterior, self.device, boxes=self.choices.boxes, number=self._boxes,
            margin=self.choices.margin, seed=self.choices.seed,
        )  # fmt: skip


def settle_run(
    model: Model, question: Question, likelihood: Likelihood | None, choices: Choices, timeout: float | None,
    started: float | None, asked: Mapping[str, Any] | None = None,
) -> Setting:  # fmt: skip
    """Check that the question can be asked of the model.

    Parameters
    ----------
    asked : the options behind the question (tau_safe, tau_unsafe, rule, outputs), as they were given

    Raises
    ------
    OptionError : no posterior, or no likelihood, for a query that needs one; an option that does not apply; a device
        that is not there
    UnsupportedError : boxes around samples for a sample posterior; medians of a classifier; what `served` refuses
    """

    from bnn_vnnlib.bounds.engine import Engine
    from bnn_vnnlib.network.network import Model
    from bnn_vnnlib.problem.outputs import OutputBounds

    if not isinstance(model, Model):
        raise OptionError(f"a Model is wanted, as read_model(PATH) or attach gives it, not {model!r}")
    if timeout is not None and math.isnan(timeout):
        raise OptionError("the time limit is not a number")
    query = question.query_of(model.posterior is not None)
    if query is not Query.DETERMINISTIC and model.posterior is None:
        raise OptionError(
            f"query {query} needs a posterior, and the model carries none: attach one (bnn-vnnlib attach), "
            "or ask --query deterministic",
            path=model.path,
        )
    known = likelihood or model.likelihood
    if query is Query.DECISION and known is None:
        raise OptionError(
            "query decision needs the likelihood, and the model does not say it: add --likelihood "
            "categorical, bernoulli, gaussian or gaussian_heteroscedastic",
            path=model.path,
        )
    given = {**vars(choices), **(asked or {}), "likelihood": likelihood}
    refuse_idle(query, given, model, probabilities=gives_probabilities(model.network, query, known))
    if question.rule is Rule.MEDIAN:
        _check_median(model, query, known)
    transform = _transform(model.network, query, known)
    refuse_unserved(model, query, question.rule, choices, transform)
    deadline = _deadline(timeout, started)
    engine = Engine(model.network, "interval" if choices.method == "interval" else "linear", deadline)
    device = find_device(choices.device)
    return Setting(model, query, question, known, transform, OutputBounds(engine, transform), deadline, choices, device)


def _check_median(model: Model, query: Query, likelihood: Likelihood | None) -> None:
    """The median is the decision of a regression under the l1 loss, and of nothing else."""
    if query is not Query.DECISION:
        raise OptionError(f"rule median says what Y means under query decision, and the query is {query}")
    if likelihood in ("categorical", "bernoulli") or model.network.softmax_axis is not None:
        raise UnsupportedError(
            f"rule median is for regression, and the model is a classifier (likelihood {likelihood}): its decision "
            "compares expected probabilities, rule mean",
            path=model.path,
        )


def _transform(network: Network, query: Query, likelihood: Likelihood | None) -> Transform:
    if network.softmax_axis is not None:
        return "softmax"
    if query is not Query.DECISION:
        return "identity"
    match likelihood:
        case "categorical":
            return "softmax"
        case "bernoulli":
            return "identity" if ends_in_sigmoid(network) else "sigmoid"
        case _:
            return "identity"


def gives_probabilities(network: Network, query: Query, likelihood: Likelihood | None) -> bool:
    """Y is made of probabilities."""
    return _transform(network, query, likelihood) != "identity" or ends_in_sigmoid(network)


def ends_in_sigmoid(network: Network) -> bool:
    """The graph itself turns its logits into probabilities, which it may still move about."""
    from bnn_vnnlib.network.nodes import Activation, Broadcast, Concat, Reshape, Select, Transpose

    def is_probability(position: int) -> bool:
        node = network.nodes[position]
        if isinstance(node, Reshape | Transpose | Broadcast | Concat | Select):
            return all(is_probability(source) for source in node.inputs)
        return isinstance(node, Activation) and node.kind == "sigmoid"

    return all(is_probability(position) for position in network.outputs)


def _deadline(timeout: float | None, started: float | None) -> Deadline:
    """Leaves a little of the limit for the check of a witness and for writing the results."""
    if timeout is None:
        return Deadline()
    begun = time.monotonic() if started is None else started
    return Deadline(begun + timeout - min(0.5, 0.1 * timeout))
