"""Everything that a run needs beside the boxes and the rows, settled before work starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.methods import method as methods
from bnn_vnnlib.question.options import (
    CONFIDENCE,
    DRAWS,
    Coupling,
    Options,
    Question,
    refuse_drawn_only,
    refuse_idle,
    refuse_unserved,
)
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.result import Event, Query, Rule, Verdict
from bnn_vnnlib.signature import PROBABILITY, joined
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.devices import find_device

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from bnn_vnnlib.attack import Attack
    from bnn_vnnlib.methods import decision
    from bnn_vnnlib.methods.outcome import DecisionOutcome
    from bnn_vnnlib.methods.safety.safety import Means, SafetyBounds, SafetyTask
    from bnn_vnnlib.methods.statistical.sampling import Sampling
    from bnn_vnnlib.network.network import Model, Network, Posterior
    from bnn_vnnlib.problem.outputs import OutputBounds, Transform
    from bnn_vnnlib.problem.pairs import Differences
    from bnn_vnnlib.problem.problem import Problem
    from bnn_vnnlib.signature import Likelihood, Signature
    from bnn_vnnlib.splitting.branch import Decided

_NUM_BOXES = 5
"""Boxes around samples, where their number is not given."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What is proved of the I instances of a problem.

    Attributes
    ----------
    problem : what was asked, without what the ranges of the last activations had settled
    found : the bounds, attacked points, and what they rest on
    verdicts : (I,) of `Verdict`
    method : what gave the bounds, for people
    """

    problem: Problem
    found: SafetyBounds | DecisionOutcome | Decided
    verdicts: NDArray[np.object_]
    method: str


@dataclass(frozen=True, eq=False)
class Setting:
    """A settled run.

    Attributes
    ----------
    model, query, question : what is asked of what
    likelihood : None where nothing says
    transform : what Y is, as a function of the graph's outputs (its final Softmax left out)
    bounds : the engine behind that transform
    deadline, options, device : how
    differences : what was asked of two networks, where the model is in differences; else None
    pilot : a long run of drawn networks may find out by itself how many of their layers to draw
    """

    model: Model
    query: Query
    question: Question
    likelihood: Likelihood | None
    transform: Transform
    bounds: OutputBounds
    deadline: Deadline
    options: Options
    device: torch.device
    differences: Differences | None = None
    pilot: bool = False

    def in_differences(self, asked: Differences, deadline: Deadline | None = None) -> Setting:
        """This run for two networks in differences, until its deadline or an earlier one."""
        until = self.deadline if deadline is None else deadline
        engine = replace(self.bounds.engine, network=asked.model.network, deadline=until)
        bounds = replace(self.bounds, engine=engine)
        averaged = self.query is Query.DECISION and self.question.rule.level is None
        model = _averaged(asked.model) if averaged else asked.model
        return replace(self, model=model, bounds=bounds, deadline=until, differences=asked)

    @property
    def posterior(self) -> Posterior:
        """The posterior of a query that needs one."""
        if self.model.posterior is None:
            raise OptionError(f"query {self.query} needs a posterior and the model carries none", path=self.model.path)
        return self.model.posterior

    @property
    def means(self) -> Means:
        """How P_safe of a Gaussian posterior is bounded; a given margin asks for boxes."""
        if self.options.method == "tails":
            return "tails"
        return "both" if self.options.method == "auto" and self.options.margin is None else "boxes"

    @property
    def seed(self) -> int:
        """Seed of everything random; 0 where none is given."""
        return self.options.seed or 0

    @property
    def sampling(self) -> Sampling | None:
        """How drawn networks are counted; None: the bounds are certain."""
        if self.options.certain:
            return None
        from bnn_vnnlib.methods.statistical.sampling import Sampling

        confidence = CONFIDENCE if self.options.confidence is None else self.options.confidence
        most = self.options.draws or (DRAWS if self.deadline.at is None else sys.maxsize)
        return Sampling(confidence, most, self.seed, self.options.drawn_layers, self.pilot)

    @property
    def _boxes(self) -> int:
        return self.options.num_boxes or _NUM_BOXES

    @property
    def undecided(self) -> Verdict:
        """The verdict on what is neither proved nor refuted: timeout or unknown."""
        return Verdict.TIMEOUT if self.deadline.passed else Verdict.UNKNOWN

    def attack(self, **effort: int) -> Attack:
        """An attack with this effort (steps, restarts, pool) and the seed, deadline and precision of the run."""
        import torch

        from bnn_vnnlib.attack import Attack

        kind = torch.float32 if self.options.search == "float32" else torch.float64
        deepest = self.differences is not None  # points are moved afterwards, and have to stay violations
        return Attack(**effort, seed=self.seed, deadline=self.deadline, precision=kind, deepest=deepest)

    def attacked(self, problem: Problem, attack: Attack) -> tuple[Tensor, Tensor]:
        """Points (1, N, n) at which the mean network is the nearest to a violation, and its values (1, N)."""
        from bnn_vnnlib import attack as attacks

        return attacks.run(self.bounds.engine.network, problem, {}, attack, self.transform)

    def answer(self, problem: Problem, attack: Attack, points: Tensor | None = None) -> Answer:
        """Bounds and verdicts on every instance, as far as time suffices; whoever says `sat` owes a witness.

        Parameters
        ----------
        points : of `attacked`, for fixed weights; None: looked for
        """
        from bnn_vnnlib.problem import weight_sets
        from bnn_vnnlib.problem.refute import settled

        network = self.bounds.engine.network
        weights = weight_sets.mean_weights(network, self.device)
        if self.query is Query.DETERMINISTIC:
            from bnn_vnnlib.methods import deterministic

            points = self.attacked(problem, attack)[0] if points is None else points
            decided = deterministic.decide_fixed(self.bounds, weights, problem, points)
            verdicts = self._verdicts(problem.all_items(decided.safe[0]), problem.any_item(decided.violated[0]))
            return Answer(problem, decided, verdicts, methods.of_network(self, False))
        problem = settled(self.bounds, weights, problem, weight_sets.random_names(network, self.posterior))
        if self.sampling is not None:
            return self._sampled(problem, attack, self.sampling)
        if self.query is Query.DECISION:
            from bnn_vnnlib.methods import decision

            outcome = decision.decide(self.decision(), problem, attack)
            verdicts = self._verdicts(problem.all_items(outcome.refuted), problem.any_item(outcome.violated))
            return Answer(problem, outcome, verdicts, methods.of_decision(self, outcome))
        from bnn_vnnlib.methods.safety.portfolio import safety_bounds

        question, found = self.question, safety_bounds(self.safety_task(problem, attack))
        verdicts = self._verdicts(found.lower >= question.tau_safe, found.upper < question.tau_unsafe)
        verdicts[question.between(found.lower, found.upper).cpu().numpy()] = Verdict.UNKNOWN
        return Answer(problem, found, verdicts, methods.of_safety(self, found))

    def _sampled(self, problem: Problem, attack: Attack, sampling: Sampling) -> Answer:
        """The answer to a problem by drawn networks, with a stated confidence."""
        if self.query is Query.DECISION:
            from bnn_vnnlib.methods.statistical.decision import decide

            rule, gap = self.question.rule, self.options.wanted_gap
            outcome = decide(self.bounds, self.posterior, rule, problem, attack, sampling, gap)
            decided = self._verdicts(problem.all_items(outcome.refuted), problem.any_item(outcome.violated))
            return Answer(problem, outcome, decided, methods.of_decision(self, outcome))
        from bnn_vnnlib.methods.statistical.safety import safety_bounds

        question, found = self.question, safety_bounds(self.safety_task(problem, attack), sampling)
        verdicts = self._verdicts(found.lower >= question.tau_safe, found.upper < question.tau_unsafe)
        verdicts[question.between(found.lower, found.upper).cpu().numpy()] = Verdict.UNKNOWN
        return Answer(problem, found, verdicts, methods.of_safety(self, found))

    def _verdicts(self, safe: Tensor, unsafe: Tensor) -> NDArray[np.object_]:
        verdicts = np.full(len(safe), None)
        verdicts[:] = self.undecided
        verdicts[unsafe.cpu().numpy()], verdicts[safe.cpu().numpy()] = Verdict.SAT, Verdict.UNSAT
        return verdicts

    def safety_task(self, problem: Problem, attack: Attack) -> SafetyTask:
        """What the methods of P_safe are asked."""
        from bnn_vnnlib.methods.safety.safety import Goal, SafetyTask

        goal = Goal(self.question.tau_safe, self.question.tau_unsafe, self.options.wanted_gap)
        return SafetyTask(
            self.bounds, self.posterior, problem, attack, self.deadline, goal, self.means, self.options.boxes,
            self._boxes, self.options.margin,
        )  # fmt: skip

    @property
    def decision_task(self) -> decision.DecisionTask:
        """What the methods of the decision are asked."""
        from bnn_vnnlib.methods import decision

        return decision.DecisionTask(
            self.bounds, self.posterior, self.device, self.question.rule, self.options.boxes, self._boxes,
            self.options.margin, self.seed, self.options.wanted_gap,
        )  # fmt: skip

    def decision(self) -> decision.Portfolio:
        """The portfolio of methods that bound the decision."""
        from bnn_vnnlib.methods import decision

        return decision.portfolio(self.decision_task)


def signature_of(models: Sequence[Model], property: Property, rule: Rule = Rule.MEAN) -> Signature:
    """What goes into and comes out of the model, or of both models of a property about two (the first may be both).

    Parameters
    ----------
    rule : what Y is; the probability of an event is one output

    Raises
    ------
    UnsupportedError, OptionError : the rule is about an event that the model's outcome has no law for
    """
    if property.second is None and rule.event is not None:
        if models[0].likelihood is not None:
            _check_event(models[0], rule, models[0].likelihood)
        return replace(models[0].network.signature, outputs=(PROBABILITY,), every_output=())
    if property.second is None:
        return models[0].network.signature
    declared = property.signature.split(property.second.inputs, property.second.outputs)
    pair = zip((models[0], models[-1]), declared, strict=True)
    return joined(*(model.with_outputs_of(part).network.signature for model, part in pair))


def of_property(model: Model | tuple[Model, ...], property: Property, coupling: Coupling | None = None) -> Model:
    """The model that a property is about: of two networks their product.

    Raises
    ------
    OptionError : too few or too many models, or a coupling where there is nothing to couple
    """
    from bnn_vnnlib.network.network import Model
    from bnn_vnnlib.network.pairs import side_by_side, why_not_equal

    models = model if isinstance(model, tuple) else (model,)
    if getattr(models[0], "pair", None) is not None:
        return models[0]
    second = property.second if isinstance(property, Property) else None
    if len(models) > 1 and not all(isinstance(one, Model) for one in models):
        raise OptionError("Models are wanted, as read_model(PATH) or attach gives them")
    if second is None:
        if len(models) != 1:
            raise OptionError(f"the property is about one network, and {len(models)} models were given")
        if coupling is not None:
            raise OptionError("coupling does not apply: the property is about one network; leave it out")
        return models[0]
    equal = second.relation == "equal-to"
    if len(models) != 2 and not (equal and len(models) == 1):
        raise OptionError(f"the property is about two networks, and {len(models)} model was given: give both")
    if coupling is not None and equal:
        raise OptionError(
            f"coupling does not apply: {second.name} is equal-to {property.network}, which is one draw for both; "
            "isomorphic-to and the same file twice ask about two draws"
        )
    if equal and (other := why_not_equal(models[0], models[-1])):
        raise OptionError(
            f"{second.name} is equal-to {property.network}, and their models are not the same: {other}",
            path=models[-1].path,
        )
    declared = property.signature.split(second.inputs, second.outputs)
    first, last = (one.with_outputs_of(part) for one, part in zip((models[0], models[-1]), declared, strict=True))
    if coupling is not None and first.posterior is None and last.posterior is None:
        raise OptionError("coupling does not apply: neither model carries a posterior; leave it out")
    return side_by_side(first, last, coupling or "independent", same=equal, label=second.name)


def settle_run(
    model: Model, options: Options, property: Property | None = None, started: float | None = None
) -> Setting:
    """Check that the question can be asked of the model.

    Parameters
    ----------
    property : whose comment counts, and whose outputs the model shall have; None: boxes without a property
    started : when time began to count (time.monotonic; None: now)

    Raises
    ------
    OptionError : no posterior, or no likelihood, for a query that needs one; an option that does not apply; a device
        that is not there
    UnsupportedError : boxes around samples for a sample posterior; medians of a classifier; what `refuse_drawn_only`
        and `refuse_unserved` say
    """
    from bnn_vnnlib.bounds.engine import Engine
    from bnn_vnnlib.network.network import Model
    from bnn_vnnlib.problem.outputs import OutputBounds

    if not isinstance(model, Model):
        raise OptionError(f"a Model is wanted, as read_model(PATH) or attach gives it, not {model!r}")
    comment: Mapping[str, str] = {}
    if property is not None:
        if not isinstance(property, Property):
            raise OptionError(f"a Property is wanted, as read_property(PATH) gives it, not {property!r}")
        comment, model = property.options, model.with_outputs_of(property.signature)
    question = options.question(comment)
    query = question.query_of(model.posterior is not None)
    refuse_drawn_only(model, query, options)
    likelihood = options.likelihood or model.likelihood
    _check_complete(model, query, likelihood)
    given = options.given
    if question.query is None:  # then the comment's thresholds and rule mean the query that is the model's own
        given = {**comment, **given}
    refuse_idle(query, given, model, probabilities=gives_probabilities(model.network, query, likelihood))
    if question.rule.level is not None:
        _check_quantile(model, query, question.rule, likelihood)
    if question.rule.event is not None:
        model = _with_event(model, query, question.rule, likelihood)
    transform = _transform(model.network, query, likelihood)
    if query is Query.DECISION:
        model, transform = _for_expectations(model, transform, question.rule)
    if options.certain:
        refuse_unserved(model, query, question.rule, options)
    deadline = _deadline(options.timeout, started)
    engine = Engine(model.network, "interval" if options.method == "interval" else "linear", deadline)
    if property is not None:
        _check_size(model, property)
    return Setting(
        model, query, question, likelihood, transform, OutputBounds(engine, transform), deadline, options.seeded,
        find_device(options.device),
    )  # fmt: skip


def _check_complete(model: Model, query: Query, likelihood: Likelihood | None) -> None:
    """The model has what the query is about."""
    if query is not Query.DETERMINISTIC and model.posterior is None:
        raise OptionError(
            f"query {query} needs a posterior, and the model carries none: attach one (bnn-vnnlib attach), "
            "or ask --query deterministic", path=model.path,
        )  # fmt: skip
    if query is Query.DECISION and likelihood is None:
        raise OptionError(
            "query decision needs the likelihood, and the model does not say it: add --likelihood "
            "categorical, bernoulli, gaussian or gaussian_heteroscedastic", path=model.path,
        )  # fmt: skip


def _for_expectations(model: Model, transform: Transform, rule: Rule) -> tuple[Model, Transform]:
    """What is easier to bound and has the same expected outputs: a pair with its softmax as nodes, fewer weights."""
    if model.pair is not None and transform == "softmax":
        from bnn_vnnlib.network.pairs import with_probabilities

        model, transform = with_probabilities(model), "identity"
    return (_averaged(model) if rule.level is None and transform == "identity" else model), transform


def _averaged(model: Model) -> Model:
    """The model with that part of its Gaussian posterior on which expected outputs depend beyond the means."""
    from bnn_vnnlib.network.expectation import without_last_layer
    from bnn_vnnlib.network.network import Gaussian

    if not isinstance(model.posterior, Gaussian) or model.network.softmax_axis is not None:
        return model
    return replace(model, posterior=without_last_layer(model.network, model.posterior))


def _check_size(model: Model, property: Property) -> None:
    have, want = model.network.signature, property.signature
    if (have.input_size, have.output_size) != (want.input_size, want.output_size):
        raise OptionError(
            f"the property is over {want.input_size} inputs and {want.output_size} outputs, "
            f"the model has {have.input_size} and {have.output_size}"
        )


def _check_quantile(model: Model, query: Query, rule: Rule, likelihood: Likelihood | None) -> None:
    """Quantiles are of a regression: the median is the decision under the l1 loss, others under tilted ones."""
    if query is not Query.DECISION:
        raise OptionError(f"rule {rule} says what Y means under query decision, and the query is {query}")
    if likelihood in ("categorical", "bernoulli") or model.network.softmax_axis is not None:
        raise UnsupportedError(
            f"rule {rule} is for regression, and the model is a classifier (likelihood {likelihood}): its decision "
            "compares expected probabilities, rule mean",
            path=model.path,
        )


def _with_event(model: Model, query: Query, rule: Rule, likelihood: Likelihood | None) -> Model:
    """The model with the probability of the rule's event as its only output."""
    from bnn_vnnlib.network.outcome import probability_below

    if query is not Query.DECISION:
        raise OptionError(f"rule {rule} says what Y means under query decision, and the query is {query}")
    if model.pair is not None:
        raise UnsupportedError(f"rule {rule} is about the outcome of one network, and the property is about two")
    event = _check_event(model, rule, likelihood)
    return replace(model, network=probability_below(model.network, event.threshold, event.noise), complete=None)


def _check_event(model: Model, rule: Rule, likelihood: Likelihood | None) -> Event:
    """The event of the rule, which an outcome of the model has a probability of."""
    network, event = model.network, rule.event
    wanted = {"gaussian": (1, "a mean"), "gaussian_heteroscedastic": (2, "a mean and a log-variance")}
    if event is None or likelihood not in wanted or network.softmax_axis is not None:
        raise UnsupportedError(
            f"rule {rule} is for likelihoods gaussian and gaussian_heteroscedastic, and the likelihood is {likelihood}",
            path=model.path,
        )
    count, what = wanted[likelihood]
    if network.signature.output_size != count:
        raise UnsupportedError(
            f"rule {rule} is about one outcome, which under likelihood {likelihood} is {what}: {count} output(s), and "
            f"the model has {network.signature.output_size}",
            path=model.path,
        )
    if (event.noise is None) is (likelihood == "gaussian"):
        needs = "needs the deviation of the noise: probability-below:T:S"
        has = "has the noise in its second output: probability-below:T, without another number"
        raise OptionError(f"likelihood {likelihood} {needs if event.noise is None else has}", path=model.path)
    return event


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
