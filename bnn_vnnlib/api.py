"""The street itself: a model and a property in, a result out (`bnn_vnnlib.verify`)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import OptionError, PropertyError
from bnn_vnnlib.methods import method as methods
from bnn_vnnlib.methods.method import NONE
from bnn_vnnlib.problem.products import in_cells
from bnn_vnnlib.question.options import OptionFields, Options, takes_options
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.question.statement import vacuous, violation_in_words, what_unsat_means
from bnn_vnnlib.result import Asked, Bounds, DecisionBounds, Query, Result, Statistics, Verdict
from bnn_vnnlib.setting import Answer, Setting, ends_in_sigmoid, gives_probabilities, of_property, settle_run
from bnn_vnnlib.system.clock import for_diagnosis
from bnn_vnnlib.system.environment import plain_state
from bnn_vnnlib.system.memory import memory_of

if TYPE_CHECKING:
    from torch import Tensor

    from bnn_vnnlib.attack import Attack
    from bnn_vnnlib.methods.outcome import DecisionOutcome
    from bnn_vnnlib.methods.safety.safety import DrawCounts
    from bnn_vnnlib.network.network import Model
    from bnn_vnnlib.problem.problem import Problem

_RESTARTS, _POOL, _POOL_EFFORT, _POOL_CURVED = 64, 256, 2**22, 8
"""Starting points of an attack on one property: the best of up to POOL times as many, as long as the widest layer has
at most POOL_EFFORT numbers over all of them; POOL_CURVED where products of inputs are constrained."""

_EXCLUDED = "the ranges of the network's last activations exclude every violation, whatever the weights"
"""Note on a property that says nothing about the posterior."""


@plain_state()
@takes_options(without=("restarts",))
def verify(
    model: Model | tuple[Model, ...],
    property: Property,
    *,
    query: Query | str | None = None,
    started: float | None = None,
    **options: Unpack[OptionFields],
) -> Result:
    """Decide one property of one model.

    Parameters
    ----------
    model, property : from `read_model` and `read_property`; of a property about two networks both models, or the
        first alone where the second is equal to it
    query : what is asked: probabilistic, decision or deterministic. None: the property's comment, else probabilistic if
        the model carries a posterior, else deterministic
    started : when the time limit began to count (time.monotonic); None: now
    {options}

    Returns
    -------
    Result : bounds that hold with probability 1, and the verdict that they give; with guarantee statistical, bounds
        and a verdict that hold with the stated confidence over the draws

    Raises
    ------
    InputError : the question cannot be asked of this model, said before any work starts
    PropertyError : `strict`, and nothing can violate the property
    """
    begun = time.monotonic()
    how = Options(query, **options)
    model = of_property(model, property, how.coupling)
    certain = how.certain  # what drawn networks leave open needs more of them: nothing to diagnose
    limit = None if how.timeout is None else how.timeout - (for_diagnosis(how.timeout) if certain else 0.0)
    setting = settle_run(model, replace(how, timeout=limit), property, begun if started is None else started)
    setting = replace(setting, pilot=True)
    if setting.query is Query.DECISION and "probabilities" not in (how.outputs, property.options.get("outputs")):
        refuse_constants(setting, property, model)
    asked, (property, origin) = property, in_cells(property)
    said = _said(setting, asked, vacuous(property))
    if how.strict and said.vacuous:
        raise PropertyError(f"nothing can violate this property, whatever the network: {said.vacuous}")
    with memory_of(how.memory, setting.device):
        result = _by_file(_answered(setting, property, vacuous=said.vacuous is not None), origin)
        if certain and result.verdict in (Verdict.UNKNOWN, Verdict.TIMEOUT):
            from bnn_vnnlib.diagnosis import diagnose

            solve = partial(_solve_pair, restarts=1, most=1)  # its time is for proofs
            try:
                why = diagnose(setting, asked, result, time.monotonic() - begun, how.timeout, solve)
                result = replace(result, diagnosis=why)
            except Exception as error:  # a guess that fails must not cost the bounds that were proved
                failed = f"no diagnosis could be made ({type(error).__name__}: {error})"
                result = replace(result, notes=(*result.notes, failed))
    notes = (*property.notes, *setting.model.notes, *result.notes)
    return replace(result, time_s=time.monotonic() - begun, notes=tuple(dict.fromkeys(notes)), asked=said)


def _by_file(result: Result, origin: NDArray[np.int64]) -> Result:
    """The result with bounds on the rows that the file has: those of a row in all cells of its box together."""
    found = result.decision
    if found is None or len(origin) == len(set(origin.tolist())):
        return result
    lower, upper = np.full(origin.max() + 1, np.inf), np.full(origin.max() + 1, -np.inf)
    np.minimum.at(lower, origin, found.row_lower)
    np.maximum.at(upper, origin, found.row_upper)
    return replace(result, decision=replace(found, row_lower=lower, row_upper=upper))


def _said(setting: Setting, property: Property, why_vacuous: str | None) -> Asked:
    """The question in words."""
    network, query = setting.model.network, setting.query
    probabilities = gives_probabilities(network, query, setting.likelihood)
    has_posterior = setting.model.posterior is not None
    means = what_unsat_means(query, setting.question, has_posterior, probabilities)
    return Asked(violation_in_words(property), means, why_vacuous)


def _answered(setting: Setting, property: Property, *, vacuous: bool) -> Result:
    """The result, with the values of hidden nodes in its witness if the property declares any."""
    hidden = _hidden_nodes(setting.model, property)
    result = _by_the_property(setting) if vacuous else _solve_pair(setting, property)
    if result.witness is None or hidden is None:
        return result
    return replace(result, witness=replace(result.witness, hidden=hidden(result.witness.x)))


def _hidden_nodes(model: Model, property: Property) -> Callable[[NDArray[np.float64]], tuple[NDArray, ...]] | None:
    """What evaluates the property's hidden nodes for a witness; those that do not fit the model are refused at once."""
    if not property.hidden:
        return None
    from bnn_vnnlib.model.replay import hidden_nodes

    nodes = hidden_nodes(model, property)
    nodes(property.boxes.lower[0] if len(property.boxes) else np.zeros(property.signature.input_size))
    return nodes


def refuse_constants(setting: Setting, property: Property, model: Model) -> None:
    """`Y_0 >= 1500` meant for a logit would silently be compared with a probability; logits of two networks likewise.

    Parameters
    ----------
    model : as it was given; logits of two networks have become probabilities in that of the setting
    """
    sides = [model] if model.pair is None else [model.pair.first, model.pair.second]
    shown = any(side.network.softmax_axis is not None or ends_in_sigmoid(side.network) for side in sides)
    if shown or not gives_probabilities(model.network, setting.query, setting.likelihood):
        return
    rows = property.rows
    used = np.count_nonzero(rows.outputs, axis=1)
    compares = (used == 2) & (rows.outputs.sum(axis=1) == 0) & (rows.bound == 0)
    if model.pair is not None:
        first = rows.outputs[:, : model.pair.first.network.signature.output_size]
        compares &= np.isin(np.count_nonzero(first, axis=1), (0, 2))
    if rows.inputs is not None:
        compares &= ~rows.inputs.any(axis=1)
    if not (compares | (used == 0)).all():
        raise OptionError(
            "under query decision the outputs are expected probabilities, not the logits that the graph ends in, and "
            "this property compares an output with something else than another output of the network: if it is meant "
            "for probabilities, say --outputs probabilities"
        )


def _result(setting: Setting, verdict: Verdict, method: str, **fields: Any) -> Result:
    question = setting.question
    rule = question.rule if setting.query is Query.DECISION else None
    return Result(
        verdict, setting.query, question.tau_safe, question.tau_unsafe, method, 0.0, rule=rule, **fields
    )  # fmt: skip


def _by_the_property(setting: Setting) -> Result:
    """The result for a property that nothing can violate: proved safe for every network."""
    certain = Bounds(1.0, 1.0) if setting.query is Query.PROBABILISTIC else None
    return _result(setting, Verdict.UNSAT, "the property alone", p_safe=certain)


def _solve_pair(setting: Setting, property: Property, restarts: int = _RESTARTS, most: int = _POOL) -> Result:
    """`_solve`; of two networks in differences, in all ways that there are until one of them gives a verdict."""
    level = setting.question.rule.level  # the quantile of a difference is no difference of quantiles
    quantile = setting.query is Query.DECISION and level is not None
    if setting.model.pair is None or setting.transform != "identity" or quantile:
        return _solve(setting, property, restarts, most)
    from bnn_vnnlib.problem.pairs import differences

    ways = differences(setting.model, property)
    if any(way.inner.num_cases == 0 for way in ways):
        return _by_the_property(setting)
    if setting.sampling is not None:  # one way, chosen before the draws: the better of several would fail more often
        ways = [way for way in ways if not way.only_safe][:1]
    if not ways:
        return _solve(setting, property, restarts, most)
    if setting.query is Query.DETERMINISTIC and len(ways) > 1:  # proofs of safety wait for the attack alone
        found = _attacked(setting.in_differences(ways[0]), ways[0].inner, restarts, most)[-1]
        if found is not None:
            return found
    best: Result | None = None
    if setting.query is Query.DECISION:
        ways = [way for way in ways if not way.only_safe]
    for i, asked in enumerate(sorted(ways, key=lambda way: not way.only_safe)):
        inner = setting.in_differences(asked, setting.deadline.share(len(ways) - i))
        result = _solve(inner, asked.inner, restarts, most)
        best = _met(setting, best, result if not asked.only_safe else _only_safe(setting, result))
        if best.verdict in (Verdict.SAT, Verdict.UNSAT):
            return best
    return best or _solve(setting, property, restarts, most)


def _only_safe(setting: Setting, result: Result) -> Result:
    """The result reduced to what it says of safety."""
    p_safe = None if result.p_safe is None else Bounds(result.p_safe.lower, 1.0)
    verdict = Verdict.UNSAT if result.verdict is Verdict.UNSAT else setting.undecided
    return replace(result, p_safe=p_safe, verdict=verdict, witness=None)


def _met(setting: Setting, one: Result | None, other: Result) -> Result:
    """The better of two results on each side; the verdict is that of the second, unless both together give one."""
    if one is None:
        return other
    notes = tuple(dict.fromkeys((*one.notes, *other.notes)))
    if one.decision is not None and other.decision is not None:
        sides = [vars(result.decision) for result in (one, other)]
        best = {
            name: (np.maximum if "lower" in name else np.minimum)(*(side[name] for side in sides)) for name in sides[0]
        }
        return replace(other, decision=DecisionBounds(**best), notes=notes)
    if one.p_safe is None or other.p_safe is None:
        return replace(other, notes=notes)
    low = one if one.p_safe.lower > other.p_safe.lower else other
    high = one if one.p_safe.upper < other.p_safe.upper else other
    found = Bounds(low.p_safe.lower, high.p_safe.upper)  # type: ignore[union-attr]
    verdict = other.verdict
    if found.lower >= setting.question.tau_safe:
        verdict = Verdict.UNSAT
    elif verdict is not Verdict.SAT and setting.question.between(found.lower, found.upper):
        verdict = Verdict.UNKNOWN
    details = {**other.details, "lower_by": low.details["lower_by"], "upper_by": high.details["upper_by"]}
    return replace(other, verdict=verdict, p_safe=found, details=details, method=low.method, notes=notes)


def _attacked(
    setting: Setting, property: Property, restarts: int, most: int
) -> tuple[Problem, Attack, Tensor | None, Result | None]:
    """The problem and the attack on it; for fixed weights what it finds, and the verdict if a point is replayed."""
    from bnn_vnnlib.problem.problem import from_property
    from bnn_vnnlib.witness import REPLAYED, replayed

    problem = from_property(property, setting.device)
    widest = max(math.prod(node.shape) for node in setting.model.network.nodes)
    most = min(most, _POOL_CURVED) if property.polynomials else most  # each point takes many steps into T
    pool = min(most, max(1, _POOL_EFFORT // (restarts * widest * len(problem))))
    attack = setting.attack(restarts=restarts, pool=pool)
    if setting.query is not Query.DETERMINISTIC:
        return problem, attack, None, None
    points, values = setting.attacked(problem, attack)
    if setting.differences is not None and setting.differences.only_safe:
        return problem, attack, points, None
    nearest = values[0].argsort()[:REPLAYED]
    shown = replayed(setting, property, points[0, nearest], nearest.cpu().numpy())
    if shown is None:
        return problem, attack, points, None
    method = methods.of_network(setting, True)
    found = _result(setting, Verdict.SAT, method, witness=shown, notes=_warnings(setting))
    return problem, attack, points, found


def _solve(setting: Setting, property: Property, restarts: int = _RESTARTS, most: int = _POOL) -> Result:
    """The result for a settled question: attack, proof, replay of the witness, and diagnosis."""
    from bnn_vnnlib.witness import witness

    # what the attack finds is replayed before anything is proved
    problem, attack, points, found = _attacked(setting, property, restarts, most)
    if found is not None:
        return found
    answer = setting.answer(problem, attack, points)
    asked = property if setting.differences is None else setting.differences.property
    proved = _proved(setting, answer, len(property.rows), asked.signature.output_size)
    verdict = answer.verdicts[0]
    only_safe = setting.differences is not None and setting.differences.only_safe
    shown = witness(setting, property, answer) if verdict is Verdict.SAT and not only_safe else None
    if verdict is Verdict.SAT and shown is None:
        verdict = setting.undecided
    result = _result(setting, verdict, answer.method, witness=shown, notes=_warnings(setting), **proved)
    if points is not None or bool(answer.problem.exists.any()):
        return result
    return replace(result, method="the ranges of the last activations alone", notes=(*result.notes, _EXCLUDED))


def _warnings(setting: Setting) -> tuple[str, ...]:
    """Warnings about fixed weights that are the mean of samples or of a mixture, which may be a meaningless network."""
    from bnn_vnnlib.network.network import Mixture, WeightSamples

    match setting.query, setting.model.posterior:
        case Query.DETERMINISTIC, WeightSamples():
            return ("the mean of weight samples may be a meaningless network (hidden units permute between samples)",)
        case Query.DETERMINISTIC, Mixture():
            return ("the mean of a mixture may be a meaningless network (hidden units permute between components)",)
    return ()


def _proved(setting: Setting, answer: Answer, rows: int, outputs: int) -> dict[str, Any]:
    """The bounds, which methods gave them, and what else the record tells.

    Parameters
    ----------
    rows, outputs : of the question
    """
    from bnn_vnnlib.methods.outcome import DecisionOutcome
    from bnn_vnnlib.methods.safety.safety import CASELESS, SafetyBounds

    found = answer.found
    if isinstance(found, DecisionOutcome):
        lower_by, upper_by = (", ".join(names) or NONE for names in found.together)
        bounds = _decision_bounds(found, answer.problem, rows, outputs)
        proved = {"decision": bounds, "details": {"lower_by": lower_by, "upper_by": upper_by}}
        return proved if found.draws is None else proved | {"statistics": _averaged(setting, *found.draws)}
    if not isinstance(found, SafetyBounds):
        return {}
    (lower_by,), (upper_by,) = found.methods
    details: dict[str, Any] = {"lower_by": lower_by, "upper_by": upper_by}
    if found.draws is not None:
        details |= {} if found.draws.layers is None else {"drawn_layers": found.draws.layers}
        return {
            "p_safe": Bounds(float(found.lower[0]), float(found.upper[0])), "details": details,
            "statistics": None if lower_by == CASELESS else _statistics(setting, found.draws),
        }  # fmt: skip
    if found.violating is None:
        details |= {"safe_margin_sd": float(found.safe_margin[0]), "unsafe_margin_sd": float(found.unsafe_margin[0])}
        details |= {} if found.three_quarters is None else {"three_quarters": list(found.three_quarters)}
    else:
        violating = found.violating[:, 0].nonzero()[:, 0].tolist()
        details |= {"samples": len(found.violating), "violating_samples": violating}
    return {"p_safe": Bounds(float(found.lower[0]), float(found.upper[0])), "details": details}


def _statistics(setting: Setting, draws: DrawCounts) -> Statistics | None:
    """What the result says of the draws behind the bounds of the only instance."""
    from bnn_vnnlib.network.draws import GENERATOR

    counted, safe, violating, open_ = (
        side[0].item() for side in (draws.counted, draws.safe, draws.violating, draws.open)
    )
    sampling = setting.sampling
    if sampling is None:
        return None
    return Statistics(sampling.confidence, int(counted), safe, violating, open_, sampling.seed, GENERATOR)


def _averaged(setting: Setting, counted: int, open_: int) -> Statistics | None:
    from bnn_vnnlib.network.draws import GENERATOR

    sampling = setting.sampling
    if sampling is None:
        return None
    return Statistics(sampling.confidence, counted, None, None, open_, sampling.seed, GENERATOR)


def _decision_bounds(outcome: DecisionOutcome, problem: Problem, rows: int, outputs: int) -> DecisionBounds:
    """rows, outputs : of the question; two networks in differences have more outputs, behind those"""
    origin = problem.rows.origin.expand(outcome.row_lower.shape).cpu().numpy()
    real = origin >= 0

    def by_row(values: Tensor, fill: float) -> NDArray[np.float64]:
        out = np.full(rows, fill)
        out[origin[real]] = values.cpu().numpy()[real]
        return out

    return DecisionBounds(
        outcome.lower.amin(0).cpu().numpy()[:outputs], outcome.upper.amax(0).cpu().numpy()[:outputs],
        by_row(outcome.row_lower, -np.inf), by_row(outcome.row_upper, np.inf),
    )  # fmt: skip
