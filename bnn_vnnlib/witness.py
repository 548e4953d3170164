"""Witnesses: built only after the check that their verdict asks for has been made (docs/semantics.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from bnn_vnnlib import attack as attacks
from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import SoundnessError
from bnn_vnnlib.methods.components import components_of, violation_mass
from bnn_vnnlib.methods.outcome import DecisionOutcome
from bnn_vnnlib.methods.safety.by_cells import CELLS, mass_at
from bnn_vnnlib.methods.safety.by_weights import CENTRED
from bnn_vnnlib.methods.safety.large_variance.rows import LARGE_VARIANCE, LargeVarianceBounds, chain_of
from bnn_vnnlib.methods.safety.last_layer import LAST_LAYER, LastLayerBounds
from bnn_vnnlib.methods.safety.safety import SafetyBounds
from bnn_vnnlib.methods.safety.tails import TAILS, TailBounds
from bnn_vnnlib.model.replay import Replayer
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import Drawable, Gaussian, GaussianDiagonal, Mixture, Model, WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.pairs import Differences, in_inner, pairs_near
from bnn_vnnlib.problem.problem import Problem, feasible, point_box
from bnn_vnnlib.problem.refute import violated_cases
from bnn_vnnlib.problem.weight_sets import SampledWeights, over_parts
from bnn_vnnlib.question.property import Property, input_feasible, violated_case
from bnn_vnnlib.result import Witness
from bnn_vnnlib.setting import Answer, Setting
from bnn_vnnlib.system.clock import Deadline

if TYPE_CHECKING:
    from torch import Tensor


REPLAYED = 64
"""Candidates for a deterministic witness that are replayed, at most."""

_ESTIMATE = 200
"""Networks sampled for the estimate that accompanies a probabilistic witness."""


def shown_output(setting: Setting, x: Floats) -> Floats:
    """(m,): what a witness shows as Y at x (n,): the mean network's output, as onnxruntime computes it, or its
    probability of the rule's event, which no file computes."""
    if setting.question.rule.event is None:
        return Replayer(setting.model)(x[None])[0]
    y: Floats = evaluate(setting.model.network, torch.as_tensor(x[None]))[0].numpy()
    return y


def _in_inputs(property: Property, x: Floats) -> bool:
    return any(input_feasible(property, x, box) for box in np.unique(property.case_box).tolist())


def witness(setting: Setting, property: Property, answer: Answer) -> Witness | None:
    """The witness of a `sat`; None where nothing that was found does in onnxruntime what it does here."""
    found = answer.found
    if isinstance(found, SafetyBounds):
        return _probabilistic(setting, property, answer.problem, found)
    if isinstance(found, DecisionOutcome):
        return _decision(setting, property, answer.problem, found)
    falsified = found.violated[0].nonzero()[:REPLAYED, 0]
    return replayed(setting, property, found.point[0, falsified], falsified.cpu().numpy())


def _in_pairs(asked: Differences, point: Tensor) -> tuple[Floats, Tensor] | None:
    """The pair (x_f, x_g) in T nearest to a point (1, 2 n) in differences, and it as such a point, exactly."""
    for pair in pairs_near(asked, point.cpu().numpy()):
        inner = in_inner(pair)
        if inner is not None:
            return pair, torch.as_tensor(inner[None], dtype=point.dtype, device=point.device)
    return None


def _probabilistic(setting: Setting, property: Property, problem: Problem, found: SafetyBounds) -> Witness | None:
    """X in T, and P_w((X, f(X)) in V) bounded again.

    With weight samples or a mixture the upper bound may rest on a different X for each sample or component; the witness
    then is the X at which most of the mass violates, and `shows` says so.
    """
    if setting.differences is None:
        x = found.point[0].cpu().numpy()
    else:
        property, near = setting.differences.property, _in_pairs(setting.differences, found.point)
        if near is None:
            return None
        x, point = near
        found = replace(found, point=point)
    if not _in_inputs(property, x):
        raise SoundnessError("the attacked point is not in the property's input set")
    if found.draws is not None:
        return _of_draws(setting, problem, found, x)
    again = _mass_at(setting, problem, found)
    enough = 1 - again < setting.question.tau_unsafe
    kind = {WeightSamples: "violating sample", Mixture: "component"}.get(type(setting.posterior))
    if not enough and kind is None:
        if setting.differences is not None:  # the point was moved to numbers of the model's type
            return None
        raise SoundnessError("the bound at the attacked point could not be repeated")
    shows = f"P_w((X, f(X)) violates the property) >= {again:.6g}"
    if not enough:
        shows += f"; the bound on P_safe rests on a witness of its own for each {kind}"
    check = {"point_in_inputs": True, "violation_mass_lower": again, **_estimate(setting, problem, found.point)}
    return Witness(x, shown_output(setting, x), shows + "; Y is the mean network's output", check)


def _of_draws(setting: Setting, problem: Problem, found: SafetyBounds, x: Floats) -> Witness:
    """X in T at which drawn networks violate: every draw may have a point of its own, so that X shows a part alone."""
    from bnn_vnnlib.methods.statistical.sampling import DrawnNetworks

    sampling, counts, point = setting.sampling, found.draws, found.point
    if sampling is None or counts is None:
        raise SoundnessError("a witness of draws without draws")
    networks = DrawnNetworks(_unhurried(setting.bounds).engine, setting.posterior, sampling, setting.device)
    part, looked = _items_at(problem, point[0]), min(_ESTIMATE, int(counts.counted[0]))
    weights, known = networks.take(np.arange(looked))
    at = point_box(part, point.expand(len(part), -1))
    held = violated_cases(_unhurried(setting.bounds), weights, part, *at).flatten(1).any(-1) & known
    violating, total = counts.violating[0].item(), int(counts.counted[0])
    told = f"{violating:.6g} of {total} drawn networks are proved to violate the property"
    if counts.layers is not None:
        told = f"given the drawn layers, the probability of a violation is {violating / total:.4g} or more on average"
    shows = (
        f"P_safe < {setting.question.tau_unsafe:g} with confidence {sampling.confidence!r}: {told}; at X, "
        f"{int(held.sum())} of the first {looked} networks do; Y is the mean network's output"
    )
    check = {"point_in_inputs": True, "draws_looked_at": looked, "draws_violating_at_x": int(held.sum())}
    return Witness(x, shown_output(setting, x), shows, check)


def _mass_at(setting: Setting, problem: Problem, found: SafetyBounds) -> float:
    """Lower bound on the mass of weights that violate a case at the point, computed anew on the items that hold it."""
    network, posterior = setting.bounds.engine.network, setting.posterior
    bounds, known = _unhurried(setting.bounds), float(found.point_mass[0])
    if isinstance(posterior, GaussianDiagonal) and setting.options.boxes == "sampled":
        return known
    part = _items_at(problem, found.point[0])
    if len(part) == 0:
        return 0.0
    lower, upper = point_box(part, found.point.expand(len(part), -1))
    if isinstance(posterior, WeightSamples):
        samples = SampledWeights.of(network, posterior, setting.device)
        violated = over_parts(
            samples, lambda weights: violated_cases(bounds, weights, part, lower, upper).flatten(1).any(-1)
        )
        return max(0.0, float((samples.share * violated).sum()) - 1e-12)
    if isinstance(posterior, Drawable):
        raise SoundnessError("certain bounds of a posterior that none serves")
    if isinstance(posterior, Gaussian):
        mass = _by_method(bounds, posterior, part, (lower, upper), found, known)
        if mass is not None:
            return mass
        if isinstance(posterior, GaussianDiagonal) or found.methods[1][0] == CENTRED.name:
            boxes = weight_sets.marginal(network, posterior, setting.device).scaled(found.unsafe_margin[None])
            return known if bool(violated_cases(bounds, boxes, part, lower, upper).any()) else 0.0
    return float(violation_mass(components_of(bounds, posterior), part, lower, upper, Deadline()).max())


def _by_method(
    bounds: OutputBounds, posterior: Gaussian, part: Problem, at: tuple[Tensor, Tensor], found: SafetyBounds,
    known: float,
) -> float | None:  # fmt: skip
    """The mass at a point as the method has it that gave the upper bound; None where boxes of weights did."""
    by = found.methods[1][0]
    if by == CELLS:
        instance = torch.arange(len(part), device=at[0].device)
        points = replace(part, lower=at[0], upper=at[1], instance=instance, instances=len(part))
        return mass_at(bounds, posterior, points, known * (1 - 1e-9))
    method: LastLayerBounds | LargeVarianceBounds | TailBounds | str = by
    if by == LAST_LAYER:
        method = LastLayerBounds.over(bounds, posterior, part)
    elif isinstance(posterior, GaussianDiagonal) and by == LARGE_VARIANCE:
        chain = chain_of(bounds, posterior, part)
        method = chain if isinstance(chain, str) else LargeVarianceBounds(chain, Deadline())
    elif isinstance(posterior, GaussianDiagonal) and by == TAILS.name:
        method = TailBounds(bounds.engine.network, posterior, at[0].device, Deadline())
    return None if isinstance(method, str) else float(method.unsafe(part, *at).max())


def _unhurried(bounds: OutputBounds) -> OutputBounds:
    """The bounds without their deadline: one point is checked in no time, and a verdict that was earned must not be
    lost.
    """
    return replace(bounds, engine=replace(bounds.engine, deadline=Deadline()))


def _items_at(problem: Problem, x: Tensor) -> Problem:
    """The items whose input set holds the point: boxes may overlap, and each has cases of its own."""
    inside = problem.items(torch.nonzero(((problem.lower <= x) & (x <= problem.upper)).all(-1))[:, 0])
    return inside.items(torch.nonzero(feasible(inside, x.expand(len(inside), -1)))[:, 0])


def _estimate(setting: Setting, problem: Problem, point: Tensor) -> dict[str, float]:
    """The share of sampled networks that violate at X: an estimate, for the record only."""
    network = setting.bounds.engine.network
    generator = torch.Generator().manual_seed(setting.seed)
    params = {name: drawn.to(point) for name, drawn in sample(network, setting.posterior, _ESTIMATE, generator).items()}
    part = _items_at(problem, point[0])
    x = point.expand(_ESTIMATE, 1, len(part), -1)
    value = attacks.violation(network, part, params, x, setting.transform).amin(-1)
    return {"sampled_violations_estimate": float((value <= 0).double().mean()), "sampled_networks": _ESTIMATE}


def _decision(setting: Setting, property: Property, problem: Problem, outcome: DecisionOutcome) -> Witness | None:
    """X in T, and D(X) bounded again; under the statistical guarantee X was fixed before the counted draws."""
    from bnn_vnnlib.methods.decision import portfolio, violates

    item = outcome.violated.nonzero()[:1, 0]
    point = outcome.point[item]
    x = point[0].cpu().numpy()
    if setting.differences is not None:
        property, near = setting.differences.property, _in_pairs(setting.differences, point)
        if near is None or (setting.sampling is not None and not torch.equal(near[1], point)):
            return None  # draws were counted at the point itself
        x, point = near
    part = problem.items(item)
    if setting.sampling is not None:
        if not _in_inputs(property, x):
            raise SoundnessError("the point of the draws is not in the property's input set")
        told = f"with confidence {setting.sampling.confidence!r}, (X, D(X)) violates the property"
        shows = f"{told}; Y is the mean network's {_shown(setting)}"
        return Witness(x, shown_output(setting, x), shows, {"point_in_inputs": True})
    expect = portfolio(replace(setting.decision_task, bounds=_unhurried(setting.bounds)))
    if setting.differences is not None and not bool(violates(expect, part, point).all()):
        return None  # the point was moved to numbers of the model's type
    if not _in_inputs(property, x) or not bool(violates(expect, part, point).all()):
        raise SoundnessError("the decision at the attacked point could not be bounded again")
    unit = torch.eye(part.rows.outputs.shape[-1], dtype=torch.float64, device=setting.device)[None]
    lower, upper = (side(point, point, unit)[0].cpu().numpy() for side in (expect.lower, expect.upper))
    check = {"point_in_inputs": True, "decision_lower": lower, "decision_upper": upper}
    rule = setting.question.rule
    plain = rule.level is None and rule.event is None
    what = f"(X, {'D(X)' if plain else f'{rule.of_outputs} at X'}) violates the property"
    return Witness(x, shown_output(setting, x), f"{what}; Y is the mean network's {_shown(setting)}", check)


def _shown(setting: Setting) -> str:
    return "output" if setting.question.rule.event is None else "probability of the event"


def replayed(setting: Setting, property: Property, points: Tensor, items: NDArray[np.int64]) -> Witness | None:
    """Replay points (P, n) of these items: X in T, Y what onnxruntime computes, (X, Y) in V by exact comparison."""
    if setting.differences is None:
        x = storable(setting.model, points.cpu().numpy(), property, np.unique(property.case_box)[items])
    else:
        property, pairs = setting.differences.property, pairs_near(setting.differences, points.cpu().numpy())
        if not pairs:
            return None
        x = np.array(pairs)
    y = Replayer(setting.model)(x)
    for one, output in zip(x, y, strict=True):
        case = violated_case(property, one, output)
        if case is not None:
            return Witness(one, output, "replayed in onnxruntime", {"replayed": True, "case": case})
    return None


def storable(model: Model, x: Floats, property: Property, boxes: NDArray[np.int64]) -> Floats:
    """Round to the model's own input type without leaving the inner box, where the type has a value inside."""
    kinds = {variable.element_type for variable in model.network.signature.inputs}
    if kinds != {"float32"}:
        return x
    low, high = property.boxes.inner_lower[boxes], property.boxes.inner_upper[boxes]
    short = x.astype(np.float32)
    short = np.where(short.astype(np.float64) < low, np.nextafter(short, np.float32(np.inf)), short)
    short = np.where(short.astype(np.float64) > high, np.nextafter(short, np.float32(-np.inf)), short)
    rounded = short.astype(np.float64)
    return np.where((rounded >= low) & (rounded <= high), rounded, x)
