"""Figures beside a bound, and none themselves: what attacks make of drawn networks, and how far the decision goes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from bnn_vnnlib import attack
from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.attack import Attack, Params
from bnn_vnnlib.errors import OptionError, names_arguments
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import Model
from bnn_vnnlib.problem.problem import Problem, Rows, from_property
from bnn_vnnlib.question.options import Options
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.result import Query
from bnn_vnnlib.setting import Setting, settle_run
from bnn_vnnlib.signature import Likelihood
from bnn_vnnlib.system.environment import plain_state
from bnn_vnnlib.system.memory import at_once

STEPS, RESTARTS = 20, 4
"""Of the attack on each drawn network."""

FEW = 64
"""Networks that stand for the posterior where a point is looked for."""


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
    search = Attack(steps=STEPS, restarts=RESTARTS, seed=seed, deadline=setting.deadline)
    size = sum(tensor.size for tensor in network.tensors.values())
    violated = torch.cat([
        (attack.run(network, problem, {name: values[index] for name, values in params.items()}, search,
                    setting.transform)[1] <= 0).any(-1)
        for index in torch.arange(networks).split(at_once(8 * size))
    ])  # fmt: skip
    broken = float(violated.double().mean())
    few = {name: values[:FEW] for name, values in params.items()}
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
