"""Figures beside a bound, and none themselves.

1. `estimate`: what attacks make of drawn networks, and how far the decision goes.
2. `find_witness`: the input at which an attack on the posterior found the property violated the most. It proves nothing
   by itself; what is said of it beyond figures is said by `check_witness`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.api import refuse_constants
from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.attack import Attack, Params
from bnn_vnnlib.check_witness import Check, check_witness
from bnn_vnnlib.errors import OptionError, PropertyError, names_arguments
from bnn_vnnlib.files.vnncomp import ResultsFile
from bnn_vnnlib.model.replay import hidden_nodes
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import Model
from bnn_vnnlib.problem.problem import Problem, Rows, from_property
from bnn_vnnlib.question.options import OptionFields, Options
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.question.statement import case_in_words
from bnn_vnnlib.result import Query, Verdict, Witness
from bnn_vnnlib.setting import Setting, of_property, settle_run
from bnn_vnnlib.signature import Likelihood, Variable
from bnn_vnnlib.system.environment import plain_state
from bnn_vnnlib.system.memory import at_once
from bnn_vnnlib.witness import shown_output, storable

_STEPS, _RESTARTS = 20, 4
"""Steps and restarts of the attack on each drawn network."""

_FEW, _FRESH = 64, 1000
"""Networks that stand for the posterior where a point is looked for; that its figures come from."""


# 1. Figures


@dataclass(frozen=True, eq=False)
class Estimate:
    """What drawn networks look like. Nothing here is proved, nothing is a bound.

    Attributes
    ----------
    networks : drawn
    broken : share of them in which an attack found a violation; the share that violates is larger, but for the draw
    error : standard error of `broken`
    point : (n,) the point of T found at which most of them violate
    at_point : the share of them that violate there
    lower, upper : (m,) least and largest value found of each mean output over T: expected probabilities where the
        likelihood gives them
    spread : (m,) standard deviation of each output between the networks, at the point
    seconds : that it took
    """

    networks: int
    broken: float
    error: float
    point: Floats
    at_point: float
    lower: Floats
    upper: Floats
    spread: Floats
    seconds: float


@names_arguments
@plain_state()
def estimate(
    model: Model, property: Property, *, networks: int = 200, seed: int = 0, likelihood: Likelihood | None = None,
    timeout: float | None = None,
) -> Estimate:  # fmt: skip
    """Attack networks drawn from the posterior, and their mean.

    Parameters
    ----------
    networks : to draw
    likelihood : overrides what the model says; None: outputs are taken as they are where it says nothing
    timeout : seconds after which attacks end; what they have found counts

    Raises
    ------
    InputError : no posterior, or a property that does not fit the model
    """
    begun = time.monotonic()
    if networks < 1:
        raise OptionError(f"networks must be a positive whole number, found {networks!r}")
    how = Options(Query.PROBABILISTIC, guarantee="statistical", seed=seed, timeout=timeout)
    setting = settle_run(model, how, property, begun)
    predictive = setting.transform
    if (likelihood or model.likelihood) is not None:
        predictive = settle_run(model, replace(how, query=Query.DECISION, likelihood=likelihood)).transform
    network, problem = setting.bounds.engine.network, from_property(property, setting.device)
    drawn = sample(network, setting.posterior, networks, torch.Generator().manual_seed(seed))
    params = {name: values.to(problem.lower) for name, values in drawn.items()}
    search = Attack(steps=_STEPS, restarts=_RESTARTS, seed=seed, deadline=setting.deadline)
    size = sum(tensor.size for tensor in network.tensors.values())
    violated = torch.cat([
        (attack.run(network, problem, {name: values[index] for name, values in params.items()}, search,
                    setting.transform)[1] <= 0).any(-1)
        for index in torch.arange(networks).split(at_once(8 * size))
    ])  # fmt: skip
    broken = float(violated.double().mean())
    few = {name: values[:_FEW] for name, values in params.items()}
    x, value = attack.run(network, problem, few, search, setting.transform, "common")
    item = int(value[0].argmin())
    point = x[0, item]
    part = problem.items(torch.tensor([item], device=point.device))
    there = attack.violation(network, part, params, point.expand(networks, 1, 1, -1), setting.transform)
    outputs = evaluate(network, point[None], params).reshape(networks, -1)
    low, high = (sign * _least(setting, problem, few, search, predictive, sign) for sign in (1.0, -1.0))
    return Estimate(
        networks, broken, float(np.sqrt(broken * (1 - broken) / networks)), point.cpu().numpy(),
        float((there <= 0).double().mean()), low, high,
        attack.transformed(outputs, predictive).std(0, correction=0).cpu().numpy(), time.monotonic() - begun,
    )  # fmt: skip


def _least(setting: Setting, problem: Problem, params: Params, search: Attack, transform: str, sign: float) -> Floats:
    """(m,): the least value found of each mean output over the items, times the sign."""
    count, m = len(problem), problem.rows.outputs.shape[-1]
    item = torch.arange(count, device=problem.lower.device).repeat_interleave(m)
    unit = sign * torch.eye(m, dtype=torch.float64, device=item.device).repeat(count, 1)[:, None]
    zero = torch.zeros(1, 1, dtype=torch.float64, device=item.device)
    rows = Rows(unit, None, zero, zero, zero.bool(), zero.long(), zero.long() - 1)
    asked = replace(problem.items(item), rows=rows, exists=torch.ones_like(zero, dtype=torch.bool))
    value = attack.run(setting.bounds.engine.network, asked, params, search, transform, "mean")[1]
    return value[0].reshape(count, m).amin(0).cpu().numpy()


# 2. A witness


@dataclass(frozen=True, eq=False)
class Found:
    """The strongest violation that an attack found, and what is known of it.

    Attributes
    ----------
    witness : X, with the (mean) network's output there
    query : what the figures and the check are about
    networks : drawn to be attacked; as many as `fresh` were drawn afterwards, for the figures
    share, error : of the fresh networks that violate at X, and its standard error; None but for `probabilistic`
    decision, spread : (m,) what Y means under the query at X, estimated by the fresh networks, and their standard
        deviation; of a network without randomness its outputs, and 0
    fails : the cases in words that are violated at X, the worst first, each with the share of the fresh networks for
        which it is, or (decision, deterministic) by how much all its rows hold
    check : of the witness, by `check_witness`: the only part that claims anything
    """

    witness: Witness
    query: Query
    networks: int
    fresh: int
    share: float | None
    error: float | None
    decision: Floats
    spread: Floats
    fails: tuple[tuple[str, float], ...]
    check: Check
    seconds: float


@plain_state()
def find_witness(
    model: Model | tuple[Model, ...], property: Property, *, query: Query | str | None = None, networks: int = _FEW,
    **options: Unpack[OptionFields],
) -> Found:  # fmt: skip
    """Attack the posterior: the X of T at which most drawn networks violate, or their mean or quantile does.

    Parameters
    ----------
    model, property, query, options : as in `verify`; with guarantee statistical the check counts networks drawn anew
    networks : to draw for the attack

    Raises
    ------
    InputError : the question cannot be asked of the model; nothing can violate the property
    """
    begun = time.monotonic()
    if networks < 1:
        raise OptionError(f"networks must be a positive whole number, found {networks!r}")
    how = Options(query, **options).seeded
    joint = of_property(model, property, how.coupling)
    setting = settle_run(joint, how, property, begun)
    if setting.query is Query.DECISION and "probabilities" not in (how.outputs, property.options.get("outputs")):
        refuse_constants(setting, property, joint)
    problem = from_property(property, setting.device)
    if not len(problem):
        raise PropertyError("no input satisfies the property's input part: there is nothing to attack")
    generator = torch.Generator().manual_seed(setting.seed)
    attacked, fresh = (_drawn(setting, count, generator) for count in (networks, _FRESH))
    point, item = _strongest(setting, problem, attacked)
    number = np.unique(property.case_box)[item]
    x = storable(setting.model, point[None].cpu().numpy(), property, np.array([number]))[0]
    part = problem.items(torch.tensor([item], device=point.device))
    own, at = np.flatnonzero(property.case_box == number), torch.as_tensor(x).to(point)
    network = setting.bounds.engine.network
    y = evaluate(network, at[None], fresh) if fresh else evaluate(network, at[None])
    y = attack.transformed(y.reshape(-1, y.shape[-1]), setting.transform)
    share = error = None
    if setting.query is Query.PROBABILISTIC:
        margins, level = _margins(part, at, y), attack.over_networks(y, "mean")
        weights = (margins <= 0).double().mean(0)
        share = float((margins.amin(1) <= 0).double().mean())
        error, held = float(np.sqrt(share * (1 - share) / len(margins))), weights > 0
    else:
        level = attack.over_networks(y, _aim(setting))
        weights = -_margins(part, at, level)[0]
        held = weights >= 0
    order = [case for case in weights.argsort(descending=True).tolist() if bool(held[case])]
    fails = tuple((case_in_words(property, int(own[case])), float(weights[case])) for case in order)
    hidden = tuple(hidden_nodes(setting.model, property)(x)) if property.hidden else ()
    witness = Witness(x, shown_output(setting, x), "the strongest violation that an attack found", hidden=hidden)
    limit = None if how.timeout is None else max(0.1, how.timeout - (time.monotonic() - begun))
    values = {**_values(property.signature.inputs, witness.x), **_values(property.signature.outputs, witness.y)}
    rest = replace(how, query=None, tau_safe=None, tau_unsafe=None, rule=None, timeout=limit)
    check = check_witness(joint, property, ResultsFile(Verdict.SAT, values), setting.question, rest)
    return Found(
        witness, setting.query, networks if attacked else 1, _FRESH if fresh else 1, share, error,
        level[0].cpu().numpy(), y.std(0, correction=0).cpu().numpy(), fails, check, time.monotonic() - begun,
    )  # fmt: skip


def _drawn(setting: Setting, count: int, generator: torch.Generator) -> Params:
    """Networks of the posterior; none of fixed weights."""
    if setting.query is Query.DETERMINISTIC:
        return {}
    drawn = sample(setting.bounds.engine.network, setting.posterior, count, generator)
    return {name: values.to(setting.device) for name, values in drawn.items()}


def _aim(setting: Setting) -> attack.AttackAim:
    """What the attack aims at: `common` for one x for all networks, `each`, `mean`, or a level of quantiles."""
    if setting.query is not Query.DECISION:
        return "common" if setting.query is Query.PROBABILISTIC else "each"
    level = setting.question.rule.level
    return "mean" if level is None else level


def _strongest(setting: Setting, problem: Problem, params: Params) -> tuple[Tensor, int]:
    """The point (n,) and its item; half of the time is left for the check.

    What most networks have in common is looked for from all centres, then from where single networks violate: many of
    them may, at points far from each other, where the gradient of all together says nothing.
    """
    network, aim = setting.bounds.engine.network, _aim(setting)
    search = Attack(2 * _STEPS, 4 * _RESTARTS, 4, setting.seed, setting.deadline.share(2), deepest=True)
    x, value = attack.run(network, problem, params, search, setting.transform, aim)
    best = value[0].argsort()[:2]
    if aim != "common":
        return x[0, best[0]], int(best[0])
    part, few = problem.items(best), replace(search, steps=_STEPS, restarts=_RESTARTS, pool=1)
    single = attack.run(network, part, {name: v[:_FEW] for name, v in params.items()}, few, setting.transform)[0]

    def shares(points: Tensor) -> Tensor:
        """(P, 2) of the networks that violate at points (P, 2, n) of the two items."""
        each = [attack.violation(network, part, params, one.expand(len(next(iter(params.values()))), *one.shape),
                                 setting.transform) for one in points[:, None]]  # fmt: skip
        return (torch.cat(each, 1) <= 0).double().mean(0)

    points = torch.cat([x[:1, best], single])
    start = points[shares(points).argmax(0), torch.arange(len(best))]
    again = attack.run(network, part, params, few, setting.transform, aim, start=start)[0]
    points = torch.cat([start[None], x[:1, best], again])
    place, which = divmod(int(shares(points).argmax()), len(best))
    return points[place, which], int(best[which])


def _margins(part: Problem, x: Tensor, y: Tensor) -> Tensor:
    """(K, C): by how much each case of the one item is missed at x (n,) by outputs y (K, m); 0 and below: it is met."""
    rows = part.rows
    value = (y[:, None, None] * rows.outputs).sum(-1) - rows.inner_bound
    value = value if rows.inputs is None else value + (rows.inputs * x).sum(-1)
    return torch.where(part.exists, part.worst(value), torch.inf)[:, 0]


def _values(variables: tuple[Variable, ...], flat: Floats) -> dict[str, Floats]:
    """Values by the variable's name, as a results file has them."""
    parts = np.split(flat, np.cumsum([one.size for one in variables])[:-1])
    return {one.name: part.reshape(one.shape) for one, part in zip(variables, parts, strict=True)}
