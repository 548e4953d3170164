"""Why a run ended without a verdict, and what to try next: a guess from what the run knows and a few cheap looks.

Nothing here is a bound, and nothing here changes the run's verdict, bounds or witness. The looks, while time allows:

1. Attack networks drawn from the posterior (`decision`: their mean or median; `deterministic`: the network itself).
   Where so many are broken that the answer is probably `sat`, the *network* is weak; else the *bound* is.
2. Gaussian weights: bound the open row once more with the weights of one layer, or with the inputs, fixed at their
   centre: what the bound gains is the share of the loss of that part. Of a mixture, its most probable component is
   asked. Fixed weights and weight samples: what the linear bounds lose at the nonlinear nodes of each layer.
3. Ask the same question over smaller boxes around the same inputs.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.attack import Attack, Params
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.components import components_of
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.methods.method import reasons
from bnn_vnnlib.methods.safety.refine import BY_LARGE_VARIANCE, large_variance_of
from bnn_vnnlib.methods.safety.tails import TAILS, why_no_tails
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import names_of, only, sample
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, Mixture, Network, Posterior, WeightSamples
from bnn_vnnlib.network.nodes import Activation, Conv, Gap, Linear, Max, Product, Shift, params_of
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.problem import Problem, from_property
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.question.statement import case_in_words
from bnn_vnnlib.result import Diagnosis, Query, Result, Verdict
from bnn_vnnlib.setting import Setting
from bnn_vnnlib.system.clock import Deadline, OutOfTime, for_diagnosis

_LEAST = 0.025
"""Seconds that the diagnosis of a shorter run may take (`clock.for_diagnosis`)."""

_NETWORKS, _FEW, _WORK = 64, 4, 2**21
"""Networks that are attacked: at most, and at first. The first batch tells what more of them take; it has more than
four where together they are little work (weights times input sets), which takes about 0.1 s at most."""

_MEAN, _MEMORY = 32, 2**24
"""Networks whose mean or median stands for the decision in the attack, as long as they have no more weights in all."""

_ITEMS = 64
"""Input sets of the property that are attacked: those whose centre is the nearest to a violation."""

_WIDTHS = (0.5, 0.25, 0.125, 0.0625, 0.0)
"""Smaller boxes that are tried, as shares of the widths of the input intervals; 0 is a point."""

_SHORTEST = 0.1
"""Seconds for which a smaller box is not tried: a first pass, which ends late, may take more."""

_TELLING = 0.5
"""A smaller tau_safe is suggested where at least this is proved: it says little below."""

_PATIENCE = 5.0
"""Seconds after which drawn networks are suggested to who has learnt nothing with certainty."""

_LONGER, _MINUTE = 4, 60.0
"""The time limit that is suggested where more time is: so many times the seconds used. Any suggested command gets a
minute at least, because a limit counts from the start of the program, which takes ten seconds on a busy machine."""

_DEVIATIONS = 2.0
"""Half-width in standard deviations of the box of weights that losses are compared in, where tails do not serve."""

_BUDGET = 1e-3
"""Probability that a tail spends on ranges, as in the first thorough pass of a run."""

_OFFSETS = np.concatenate([-np.exp2(np.arange(12, -9, -1.0)), [0.0], np.exp2(np.arange(-8, 13, 1.0))])
"""Offsets from a row's bound at which its tail is looked at, in units of the mean network's distance to the bound."""


def diagnose(
    setting: Setting, property: Property, result: Result, spent: float, timeout: float | None,
    solve: Callable[[Setting, Property], Result],
) -> Diagnosis:  # fmt: skip
    """What probably kept the run from a verdict.

    Parameters
    ----------
    result : without a verdict
    spent, timeout : seconds that the run took, and its limit as it was given
    solve : the run itself, for smaller boxes
    """
    begun = time.monotonic()
    budget = max(for_diagnosis(spent), _LEAST)
    boxes = 0.3 * budget >= _SHORTEST * len(_WIDTHS).bit_length()  # there is time to try smaller ones
    parts = 0.3, 0.5 if boxes else 0.8, 0.8
    first, second, third = (_until(setting, Deadline(begun + part * budget)) for part in parts)
    problem = _nearest(setting, from_property(property, setting.device))
    seen = _attacked(first, property, problem)
    cause, why = _cause(setting, result, seen)
    cases, loss, smaller = seen.cases, dict[str, float](), None
    if cause == "weak bound":
        cases, loss = _lost(second, property, problem, result, seen)
    if cause != "between":
        smaller = _smaller(third, property, solve)
    limit, limited_by = _limit(result, timeout)
    command, advice, decides = _next(setting, property, result, cause, limit, smaller, spent, timeout)
    return Diagnosis(
        cause=cause, why=why, drawn=seen.drawn, margin=seen.margin,
        broken=seen.broken if setting.query is Query.PROBABILISTIC else None,
        rows=tuple(f"{case_in_words(property, case)} (case {case + 1} of {property.num_cases})" for case in cases),
        loss=loss, limit=limit, limited_by=limited_by, unserved=_unserved(setting, problem), smaller=smaller,
        advice=advice, command=command, decides=decides, seconds=time.monotonic() - begun,
    )  # fmt: skip


def _until(setting: Setting, deadline: Deadline) -> Setting:
    engine = replace(setting.bounds.engine, deadline=deadline)
    return replace(setting, deadline=deadline, bounds=replace(setting.bounds, engine=engine))


def _nearest(setting: Setting, problem: Problem) -> Problem:
    """The items whose centre is the nearest to a violation by the mean network."""
    low, high = attack.inner_box(problem)
    margins = _margins(setting, problem, {}, (low + (high - low) / 2)[None])
    return problem.items(margins[0].amin(-1).topk(min(len(problem), _ITEMS), largest=False).indices)


# 1. What an attack finds


@dataclass(frozen=True)
class _Seen:
    """What attacks found.

    drawn : networks; broken : the share of them with a violation; margin : the least that the worst row of a case
    exceeded its bound by, in units of its largest coefficient; <= 0 is a violation; item, cases : of the problem and of
    the property, where most networks violate or, where none does, where the least is missing
    """

    drawn: int
    broken: float
    margin: float
    item: int
    cases: tuple[int, ...]


def _attacked(setting: Setting, property: Property, problem: Problem) -> _Seen:
    """Attack networks: all of them or, where that is much work, a few, and twice as many as long as time suffices."""
    network, generator = setting.bounds.engine.network, torch.Generator().manual_seed(setting.seed)
    steps = 20 if bool((problem.lower < problem.upper).any()) else 0  # there is nothing to search at points
    how = Attack(steps=steps, restarts=2, seed=setting.seed, deadline=setting.deadline)
    total, most, few = _networks(setting)
    found, weights = list[Tensor](), list[Tensor]()
    made, count, together = 0, min(total, most, _at_first(network, problem)), setting.query is Query.DECISION
    while count:
        begun = time.monotonic()
        if together:  # the networks are attacked by their mean or median: the largest batch counts alone
            found, weights, made = [], [], 0
        params, weight = _drawn(setting, slice(made, made + count), few, generator)
        x, _ = attack.run(network, problem, params, how, setting.transform, _aim(setting))
        found.append(_margins(setting, problem, params, x).flatten(1))
        weights.append(weight[: len(found[-1])])
        made += count
        taken, left = time.monotonic() - begun, (setting.deadline.at or begun) - time.monotonic()
        more = total - made if not together or made == total else total
        count = min(most, more, 2 * count) if left > 2 * taken else 0  # at most twice as long
    margins, weight = torch.cat(found), torch.cat(weights)
    least, place = margins.min(1)
    broken = least <= 0
    often = Counter(place[broken].tolist()).most_common(1)
    item, case = divmod(often[0][0] if often else int(place[least.argmin()]), problem.cases)
    origin = problem.rows.origin.expand(len(problem), -1)[item]
    rows = origin[problem.rows.case.expand(len(problem), -1)[item] == case].tolist()
    share = float(weight[broken].sum() / weight.sum())
    return _Seen(made, share, float(least.min()), item, tuple(property.rows.owner[rows[:1]].tolist()))


def _at_first(network: Network, problem: Problem) -> int:
    """How many networks are attacked in the first batch."""
    places = network.signature.input_size if any(isinstance(node, Conv) for node in network.nodes) else 1
    one = places * len(problem) * sum(tensor.size for tensor in network.tensors.values())
    return max(_FEW, _WORK // max(1, one))


def _aim(setting: Setting) -> attack.AttackAim:
    if setting.query is not Query.DECISION:
        return "each"
    level = setting.question.rule.level
    return "mean" if level is None else level


def _networks(setting: Setting) -> tuple[int, int, bool]:
    """How many networks are attacked, in all and at once, and whether they are all of few weight samples."""
    if setting.query is Query.DETERMINISTIC:
        return 1, 1, False
    posterior, tensors = setting.posterior, setting.bounds.engine.network.tensors
    most = max(1, _MEMORY // max(1, sum(tensors[name].size for name in names_of(posterior))))
    if setting.query is Query.DECISION:
        return min(_MEAN, most), most, False
    if isinstance(posterior, WeightSamples) and len(posterior.probabilities) <= _NETWORKS:
        return len(posterior.probabilities), most, True
    return _NETWORKS, most, False


def _drawn(setting: Setting, part: slice, few: bool, generator: torch.Generator) -> tuple[Params, Tensor]:
    """The next networks, and the weight of each."""
    equal, network = torch.ones(part.stop - part.start, dtype=torch.float64), setting.bounds.engine.network
    if setting.query is Query.DETERMINISTIC:
        return {}, equal
    posterior = setting.posterior
    if few and isinstance(posterior, WeightSamples):
        samples = {name: torch.tensor(values) for name, values in posterior.drawn(part).items()}
        weight = torch.tensor(posterior.probabilities[part])
    else:
        samples, weight = sample(network, posterior, len(equal), generator), equal
    return {name: values.to(setting.device) for name, values in samples.items()}, weight


@torch.no_grad()
def _margins(setting: Setting, problem: Problem, params: Params, x: Tensor) -> Tensor:
    """(K, N, C) by how much each case is missed at x (K, N, n): see `_Seen`; infinite where there is no case."""
    network, rows, aim = setting.bounds.engine.network, problem.rows, _aim(setting)
    y = attack.transformed(evaluate(network, x, params) if params else evaluate(network, x), setting.transform)
    y = attack.over_networks(y, aim) if params else y
    value = (y[..., None, :] * rows.outputs).sum(-1)
    if rows.inputs is not None:
        value = value + (x[..., None, :] * rows.inputs).sum(-1)
    value = (value - rows.inner_bound) / _scale(rows.outputs)
    return torch.where(problem.exists, problem.worst(value), torch.inf).clamp(-1e30, 1e30)


def _scale(outputs: Tensor) -> Tensor:
    """The largest coefficient of each row (.., R), at least 1e-300."""
    return outputs.abs().amax(-1).clamp(min=1e-300)


def _cause(setting: Setting, result: Result, seen: _Seen) -> tuple[str, str]:
    """Why there is no verdict, in a word and in a sentence."""
    question, drawn = setting.question, f"{seen.drawn} drawn networks"
    if result.between and result.p_safe is not None:
        where = _interval(result.p_safe.lower, result.p_safe.upper)
        thresholds = f"tau_unsafe = {result.tau_unsafe:g} and tau_safe = {result.tau_safe:g}"
        return "between", f"P_safe is proved to lie in {where}, between {thresholds}, so that neither verdict applies"
    if setting.query is Query.DETERMINISTIC:
        if seen.margin > 0:
            return "weak bound", f"an attack found no violation; the nearest one was {seen.margin:.3g} away"
        return (
            "weak network",
            "an attack found a violation in float64, which a replay in the model's own type did not show",
        )
    if setting.query is Query.DECISION:
        what = f"the {question.rule.replace(':', ' ')} of {drawn} (an estimate of the decision)"
        if seen.margin > 0:
            return "weak bound", f"an attack on {what} found no violation; the nearest one was {seen.margin:.3g} away"
        return "weak network", f"an attack found an input at which {what} violates the property, by {-seen.margin:.3g}"
    lower, safe = 0.0 if result.p_safe is None else result.p_safe.lower, 1 - seen.broken
    if isinstance(setting.posterior, WeightSamples) and seen.drawn == len(setting.posterior.probabilities):
        drawn = f"{seen.drawn} weight samples"
    proved = f"only P_safe >= {_down(lower)} is proved" if lower >= 0.001 else "nothing of use about P_safe is proved"
    if seen.broken == 0:
        return "weak bound", f"an attack broke none of {drawn}, but {proved}"
    said = f"an attack broke {100 * seen.broken:.0f} % of {drawn}: P_safe is at most about {safe:.2g} (an estimate)"
    if safe < question.tau_safe:
        return "weak network", f"{said}, less than tau_safe = {question.tau_safe:g}"
    return "weak bound", f"{said}, but {proved}"


def _down(value: float) -> str:
    """Three digits of a lower bound, rounded down."""
    return f"{math.floor(value * 1000) / 1000:g}"


def _interval(lower: float, upper: float) -> str:
    """Bounds, rounded outward."""
    return f"[{_down(lower)}, {-math.floor(-upper * 1000) / 1000:g}]"


# 2. Where the bound is lost


def _lost(
    setting: Setting, property: Property, problem: Problem, result: Result, seen: _Seen
) -> tuple[tuple[int, ...], dict[str, float]]:
    """The cases that stay open, the worst first, three at most, and the share of the loss of each part of the question.

    Asked of the item that the attack came nearest to violating.
    """
    one = problem.items(torch.tensor([seen.item], device=problem.lower.device))
    setting = _of_component(setting)
    posterior = None if setting.query is Query.DETERMINISTIC else setting.posterior
    level = _levels(setting, posterior, one, one.lower, one.upper)
    if level is None or setting.deadline.passed:
        return seen.cases, {}
    known = level
    if result.decision is not None:  # what the run's own methods proved counts, too
        proved = torch.as_tensor(result.decision.row_lower, device=level.device)[one.rows.origin.clamp(min=0)]
        known = torch.maximum(level, proved)
    spare = (known - one.rows.bound) / _scale(one.rows.outputs)
    real = one.rows.case < one.cases
    spare = torch.where(real, spare, -torch.inf)
    by_case = torch.where(one.exists, one.worst(spare), torch.inf)[0]
    order = by_case.argsort()
    order = order[(by_case[order] <= 0) | (order == order[0])][:3]
    mine = one.rows.case[0] == order[0]
    if not bool(mine.any()):
        return seen.cases, {}
    row = int(torch.where(mine, spare[0], -torch.inf).argmax())
    origin = [one.rows.origin[0][one.rows.case[0] == case] for case in order]
    cases = tuple(property.rows.owner[[int(rows[0]) for rows in origin if len(rows)]].tolist())
    if isinstance(posterior, Gaussian):
        return cases, _gains(setting, posterior, one, row, float(level[0, row]))
    return cases, _losses(setting, posterior, one, row)


def _of_component(setting: Setting) -> Setting:
    """The setting of a mixture's most probable component; any other setting as it is."""
    posterior = setting.model.posterior
    if setting.query is Query.DETERMINISTIC or not isinstance(posterior, Mixture):
        return setting
    part = max(components_of(setting.bounds, posterior), key=lambda part: part.share)
    model = replace(setting.model, network=part.network, posterior=part.posterior)
    return replace(setting, bounds=part.bounds, model=model)


def _losses(setting: Setting, posterior: Posterior | None, one: Problem, row: int) -> dict[str, float]:
    """What linear bounds of the row lose, layer by layer, as shares of the loss; that of samples is their mean.

    Of a row over softmax or sigmoid, what the row over their inputs loses. Empty where time did not suffice.
    """
    engine, rows = setting.bounds.engine, one.rows
    outputs = rows.outputs.expand(1, -1, -1)[:, None, row : row + 1]
    inputs = None if rows.inputs is None else rows.inputs.expand(1, -1, -1)[:, None, row : row + 1]
    box, labels = Interval(one.lower[None], one.upper[None]), _nonlinear(engine.network)
    if not labels:
        return {}

    def lost(weights: WeightBoxes) -> Tensor:
        found = engine.losses(weights, box, outputs, inputs)
        zero = box.lower.new_zeros(weights.count, 1)
        return torch.stack([found.get(position, zero).expand(weights.count, 1)[:, 0] for position in labels], -1)

    try:
        if isinstance(posterior, WeightSamples):
            samples = weight_sets.SampledWeights.of(engine.network, posterior, setting.device)
            found = samples.share @ weight_sets.over_parts(samples, lost)
        else:
            found = lost(weight_sets.mean_weights(engine.network, setting.device))[0]
    except OutOfTime:
        return {}
    parts = Counter[str]()
    for label, loss in zip(labels.values(), found.clamp(min=0).tolist(), strict=True):
        parts[label] += loss
    total = sum(parts.values())
    return {label: loss / total for label, loss in parts.items() if loss > 0} if 0 < total < math.inf else {}


def _nonlinear(network: Network) -> dict[int, str]:
    """The nodes whose linear bounds lose, each with the number of the layer in front and its own ONNX node."""
    found, count = dict[int, str](), 0
    for position, node in enumerate(network.nodes):
        count += isinstance(node, Linear | Conv)
        if isinstance(node, Activation | Gap | Max | Product):
            found[position] = f"layer {count}{f' ({node.name})' if node.name else ''}"
    return found


def _gains(setting: Setting, posterior: Gaussian, one: Problem, row: int, level: float) -> dict[str, float]:
    """What the bound of the row gains, part by part, as shares of all gains; empty where time did not suffice."""
    if not math.isfinite(level):
        return {}
    centre = one.lower + (one.upper - one.lower) / 2
    names = names_of(posterior)
    questions: dict[str, tuple[Posterior, Tensor, Tensor]] = {}
    if bool((one.lower < one.upper).any()):
        questions["the input box"] = posterior, centre, centre
    for layer, own in _layers(setting.bounds.engine.network, names).items():
        others = only(posterior, [name for name in names if name not in own])
        questions[layer] = (others or GaussianDiagonal({}), one.lower, one.upper)
    gains = dict[str, float]()
    for part, (weights, lower, upper) in questions.items():
        found = _levels(setting, weights, one, lower, upper)
        if found is None or setting.deadline.passed:
            return {}
        gains[part] = max(0.0, float(found[0, row]) - level)
    total = sum(gains.values())
    return {part: gain / total for part, gain in gains.items()} if 0 < total < math.inf else {}


def _layers(network: Network, random: tuple[str, ...]) -> dict[str, set[str]]:
    """The random tensors of every layer, a bias with the weights before it, by the layer's number and ONNX node."""
    found: dict[str, set[str]] = {}
    seen, label, count = set[str](), "the bias in front", 0
    for node in network.nodes:
        for param in params_of(node):
            if isinstance(node, Linear | Conv) or (param.source in random and not isinstance(node, Shift)):
                count += 1
                label = f"layer {count}{f' ({node.name})' if node.name else ''}"
            if param.source in random and param.source not in seen:
                found.setdefault(label, set()).add(param.source)
                seen.add(param.source)
    return found


def _levels(
    setting: Setting, posterior: Posterior | None, problem: Problem, lower: Tensor, upper: Tensor
) -> Tensor | None:
    """(N, R): what the rows are at least, by a quick method of the query; None where nothing quick serves.

    `probabilistic`: but for a probability of 1 - tau_safe, by tails, else over a box of weights, or of samples;
    `decision`: in expectation; `deterministic`: of the network itself.
    """
    network, rows = setting.bounds.engine.network, problem.rows

    def bounds(weights: WeightBoxes) -> Tensor:
        return setting.bounds.rows(weights, lower, upper, rows.outputs, rows.inputs).lower

    if setting.query is Query.DECISION:
        steps = replace(setting, model=replace(setting.model, posterior=posterior)).decision().steps
        return (*steps.quick, *steps.any_graph)[0].lower(lower, upper, rows.outputs, rows.inputs)
    if posterior is None:
        weights = weight_sets.mean_weights(network, setting.device)
    elif isinstance(posterior, WeightSamples):
        samples = weight_sets.SampledWeights.of(network, posterior, setting.device)
        values, order = weight_sets.over_parts(samples, bounds).sort(0)
        below = samples.share[order].cumsum(0) - samples.share[order]  # probability of the samples before
        last = (below <= 1 - setting.question.tau_safe).sum(0, keepdim=True) - 1
        return values.gather(0, last.clamp(min=0))[0]
    elif (
        isinstance(posterior, Gaussian)
        and setting.means != "boxes"
        and why_no_tails(setting.bounds, posterior, problem) is None
    ):
        return _quantiles(setting, posterior, problem, lower, upper)
    elif isinstance(posterior, GaussianDiagonal):
        weights = weight_sets.centred(network, posterior, setting.device)
        weights = weights.scaled(torch.full_like(weights.scale, _DEVIATIONS))
    else:
        return None
    return bounds(weights)[0]


def _quantiles(setting: Setting, posterior: Gaussian, problem: Problem, lower: Tensor, upper: Tensor) -> Tensor | None:
    """(N, R): the values that tails let the rows fall below with a probability of 1 - tau_safe; -inf beyond `_OFFSETS`.

    Interpolated, as if a tail were Gaussian between two thresholds.
    """
    network, rows = setting.bounds.engine.network, problem.rows
    if rows.inputs is not None:
        return None
    engine = TailEngine(network, setting.deadline, correlation=correlation(network, posterior, setting.device))
    means = weight_sets.mean_weights(network, setting.device)
    noise = weight_sets.centred(network, independent(posterior), setting.device)
    real = rows.case < problem.cases
    with torch.no_grad():
        y = evaluate(network, (lower + (upper - lower) / 2)[None])[0]
    distance = torch.where(real, (y[:, None] * rows.outputs).sum(-1) - rows.bound, 0.0)
    middle = rows.bound[real.expand(rows.bound.shape)].median()
    unit = (distance.abs().amax() + (rows.bound[real] - middle).abs().amax()).clamp(min=1e-6)
    thresholds = middle + unit * torch.as_tensor(_OFFSETS, device=lower.device)
    budget = torch.full((1,), _BUDGET, dtype=torch.float64, device=lower.device)
    fails = engine.levels(means, noise, (lower, upper), rows.outputs, thresholds, budget)[0]
    goal = -NormalDist().inv_cdf(min(max(1 - setting.question.tau_safe, 1e-9), 0.5))
    z = (-torch.special.ndtri(fails)).clamp(-40.0, 40.0).cpu().numpy()  # falls from threshold to threshold
    held = np.cumprod(z >= goal, -1).astype(bool)
    last = held.sum(-1) - 1
    at = np.clip(last, 0, len(_OFFSETS) - 2)[..., None]
    left, right = (np.take_along_axis(z, at + step, -1)[..., 0] for step in (0, 1))
    share = np.clip((left - goal) / np.maximum(left - right, 1e-12), 0.0, 1.0)
    points = thresholds.cpu().numpy()
    low, high = points[at[..., 0]], points[at[..., 0] + 1]
    level = np.where(last < 0, -np.inf, low + share * (high - low))
    return torch.as_tensor(level, device=lower.device)


# 3. What limits, and what to try next


def _smaller(setting: Setting, property: Property, solve: Callable[[Setting, Property], Result]) -> float | None:
    """The largest of `_WIDTHS` for which the run itself proves `unsat` in the time left; None: none was found."""
    if not (property.boxes.inner_lower < property.boxes.inner_upper).any() or setting.deadline.at is None:
        return None
    first, last = 0, len(_WIDTHS)
    while first < last:
        middle, now = (first + last) // 2, time.monotonic()
        left = (setting.deadline.at - now) / (last - first).bit_length()
        if left < _SHORTEST:
            break
        box = property.shrunk(_WIDTHS[middle])
        if solve(_until(setting, Deadline(now + left)), box).verdict is Verdict.UNSAT:
            last = middle
        else:
            first = middle + 1
    return _WIDTHS[last] if last < len(_WIDTHS) else None


def _limit(result: Result, timeout: float | None) -> tuple[str | None, str | None]:
    """What stopped the run, in a word and in a sentence; None where nothing did."""
    if result.between:
        return None, None
    if result.verdict is Verdict.TIMEOUT:
        text, earlier = f"the time limit of {timeout:g} s", result.details.get("three_quarters")
        if earlier is None or result.p_safe is None:
            return "time", text
        now = result.p_safe.lower, result.p_safe.upper
        if now == tuple(earlier):
            return "time", f"{text}, in whose last quarter the bounds did not change"
        return "time", f"{text}, in whose last quarter the bounds went from {_interval(*earlier)} to {_interval(*now)}"
    if timeout is None:
        return "effort", "the amount of work that is done without a time limit"
    return "methods", "the methods: all of them came to their end before the time limit"


def _unserved(setting: Setting, problem: Problem) -> tuple[str, ...]:
    """Methods for P_safe under a Gaussian posterior that do not serve the question, and why."""
    posterior = setting.model.posterior
    if setting.query is not Query.PROBABILISTIC or not isinstance(posterior, Gaussian) or setting.means != "both":
        return ()
    task = setting.safety_task(problem, Attack())
    found = reasons((TAILS, BY_LARGE_VARIANCE), task)
    large_variance = large_variance_of(task)
    if large_variance is not None and not bool(large_variance.serves(problem).any()):
        found[BY_LARGE_VARIANCE.name] = "inputs vary in front of more than two hidden layers, or of large ones"
    if TAILS.name in found:  # large variance rests on them
        found = {TAILS.name: found[TAILS.name]}
    return tuple(f"{name} does not serve: {reason}" for name, reason in found.items())


def _next(
    setting: Setting, property: Property, result: Result, cause: str, limit: str | None, smaller: float | None,
    spent: float, timeout: float | None,
) -> tuple[tuple[str, ...] | None, str | None, bool]:  # fmt: skip
    """One command, what it is for, and whether it is known to decide; None where none is known that would help."""
    choices, question = setting.options, setting.question
    lower = 0.0 if result.p_safe is None else float(result.details.get("three_quarters", [result.p_safe.lower])[0])
    tau, gained = math.floor(lower * 1000) / 1000, 0.0 if result.p_safe is None else result.p_safe.lower - lower
    changes: Mapping[str, str | None]
    longer = {"timeout": f"{max(_MINUTE, _LONGER * (timeout or spent)):.0f}"}
    below = {"tau_safe": f"{tau:g}", "tau_unsafe": f"{tau:g}"}  # a comment in the file may have another
    soon = gained > 0 and result.p_safe is not None and question.tau_safe - result.p_safe.lower <= 4 * _LONGER * gained
    if cause == "between":
        changes, advice, decides = below, f"unsat for a tau_safe of {tau:g}, which is proved already", True
    elif choices.method != "auto" or choices.boxes != "mean" or choices.margin is not None:
        changes = dict.fromkeys(("method", "boxes", "num_boxes", "margin"))
        advice, decides = "all methods instead of the one that was chosen", False
    elif cause == "weak network" and tau >= _TELLING:
        changes, advice, decides = below, f"unsat for a tau_safe of {tau:g}, which is proved already", True
    elif smaller is not None and not soon:
        changes = {"shrink": f"{smaller * property.width:.17g}"}
        what = (
            "at the centre of the inputs" if smaller == 0 else f"for {smaller:g} of the width of every input interval"
        )
        advice, decides = f"unsat {what}, the largest share of {', '.join(f'{w:g}' for w in _WIDTHS)} tried", True
    elif _drawing_helps(setting, cause, gained > 0 or tau >= _TELLING, spent):
        changes, decides = {"guarantee": "statistical"}, False
        advice = "bounds that hold with a stated confidence, from drawn networks; no step towards certain ones is known"
    elif limit != "methods":
        advice = f"more time: {'the bounds were still improving' if gained > 0 else 'no other step is known to help'}"
        changes, decides = longer, False
    elif tau >= _TELLING:
        changes, advice, decides = below, f"unsat for a tau_safe of {tau:g}, which is proved already", True
    else:
        return None, None, False
    return _command(setting, property, timeout, changes), advice, decides


def _drawing_helps(setting: Setting, cause: str, told: bool, spent: float) -> bool:
    """Whether drawn networks may say what no method proves; told : something of use is proved, or on its way."""
    asked = setting.options.certain and setting.query is not Query.DETERMINISTIC
    return asked and cause == "weak bound" and not told and spent >= _PATIENCE


def _command(
    setting: Setting, property: Property, timeout: float | None, changes: Mapping[str, str | None]
) -> tuple[str, ...]:
    """The run's own options, some of them changed; None leaves one out."""
    options: dict[str, object] = {**setting.options.given, "query": setting.query}
    options |= {"timeout": None if timeout is None else f"{max(timeout, _MINUTE):g}"}
    options |= {"shrink": property.width if property.width < 1 else None, **changes}
    given = [
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
        for name, value in options.items()
        if value is not None
    ]
    return ("bnn-vnnlib", "verify", "PROPERTY", "--network=MODEL", *given)
