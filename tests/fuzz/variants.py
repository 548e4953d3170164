"""The same question asked in another way, and questions with a known relation to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from bnn_vnnlib.model import (
    Component,
    GaussianDiagonal,
    GaussianFull,
    GaussianLowRank,
    Mixture,
    Network,
    Posterior,
    WeightSamples,
)
from bnn_vnnlib.network.families import names_of
from bnn_vnnlib.network.nodes import Constant, Input, Linear, Node, Param, Scale
from bnn_vnnlib.problem.weight_sets import all_params
from fuzz.onnx_graph import has_conv
from fuzz.questions import Part, Question, Row
from fuzz.specs import Spec

Sense = Literal["same", "safer", "riskier"]
"""P_safe of the variant against that of the case: equal, at least, at most."""


@dataclass(frozen=True, eq=False)
class Ask:
    """A network, a posterior, a question, and how it is asked.

    rows_kept : the rows are the same ones, in their order
    """

    network: Network
    posterior: Posterior
    question: Question
    name: str = "as it is"
    sense: Sense = "same"
    version: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    rows_kept: bool = True


Change = Callable[[Ask, Spec, np.random.Generator], "Ask | None"]


def _parts(ask: Ask, change: Callable[[Part], Part]) -> Question:
    return Question(tuple(change(part) for part in ask.question.parts))


def _rows(ask: Ask, change: Callable[[Row], Row]) -> Question:
    return _parts(
        ask, lambda part: replace(part, cases=tuple(tuple(change(row) for row in case) for case in part.cases))
    )


def other_version(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """VNN-LIB 2.0."""
    return replace(ask, version=2)


def scaled_rows(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Rows times a power of two."""
    factor = 2.0 ** int(rng.choice([-200, -3, 5, 150]))
    question = _rows(ask, lambda row: Row(row.a * factor, row.g * factor, row.b * factor, row.strict))
    return replace(ask, question=question, rows_kept=False)  # the reader may divide a row by its only coefficient


def smaller_boxes(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """A part of T."""

    def shrink(part: Part) -> Part:
        ends = np.sort(rng.random((2, len(part.lower))), axis=0)
        low, high = (np.clip(part.lower + (part.upper - part.lower) * e, part.lower, part.upper) for e in ends)
        return replace(part, lower=np.minimum(low, high), upper=high)

    return replace(ask, question=_parts(ask, shrink), sense="safer")


def split_boxes(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """The same T as twice as many boxes."""
    parts = [half for part in ask.question.parts for half in halves(part, rng)]
    return replace(ask, question=Question(tuple(parts)), rows_kept=False)


def halves(part: Part, rng: np.random.Generator) -> tuple[Part, Part]:
    """Two boxes whose union is the part's."""
    axis = int(rng.integers(len(part.lower)))
    middle = (part.lower[axis] + part.upper[axis]) / 2
    upper, lower = part.upper.copy(), part.lower.copy()
    upper[axis] = lower[axis] = middle
    return replace(part, upper=upper), replace(part, lower=lower)


def shuffled(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Parts, cases and rows in another order; the first part twice."""

    def mixed(items: Any) -> tuple[Any, ...]:
        return tuple(items[i] for i in rng.permutation(len(items)))

    parts = mixed([*ask.question.parts, ask.question.parts[0]])
    parts = tuple(replace(part, cases=mixed([mixed(case) for case in part.cases])) for part in parts)
    return replace(ask, question=Question(parts), rows_kept=False)


def fewer_cases(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """One case of each part."""
    question = _parts(ask, lambda part: replace(part, cases=part.cases[:1]))
    return replace(ask, question=question, sense="safer", rows_kept=False)


def fewer_rows(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """One row of each case: the case holds more often."""
    question = _parts(ask, lambda part: replace(part, cases=tuple(case[:1] for case in part.cases)))
    return replace(ask, question=question, sense="riskier", rows_kept=False)


def stricter(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Ties are no violations."""
    return replace(ask, question=_rows(ask, lambda row: replace(row, strict=True)), sense="safer")


def with_ties(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Ties are violations."""
    return replace(ask, question=_rows(ask, lambda row: replace(row, strict=False)), sense="riskier")


def zero_variances(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Every tensor named, the others with variance zero; latents that move nothing; samples and components twice."""
    match ask.posterior:
        case GaussianDiagonal(variances=variances):
            used = set(_sources(ask.network))
            zeros = {name: np.zeros(tensor.shape) for name, tensor in ask.network.tensors.items() if name in used}
            return replace(ask, posterior=GaussianDiagonal(zeros | dict(variances)))
        case GaussianFull(factors=factors):
            return replace(ask, posterior=GaussianFull({name: _padded(factor) for name, factor in factors.items()}))
        case GaussianLowRank(factors=factors, variances=variances):
            padded = {name: _padded(factor) for name, factor in factors.items()}
            return replace(ask, posterior=GaussianLowRank(padded, variances))
        case Mixture(components=components, probabilities=share):
            both = np.concatenate([share, share[::-1]]) / 2
            return replace(ask, posterior=Mixture((*components, *reversed(components)), both))
        case WeightSamples(samples=samples, probabilities=share):
            twice = {name: np.concatenate([values, values[::-1]]) for name, values in samples.items()}
            return replace(ask, posterior=WeightSamples(twice, np.concatenate([share, share[::-1]]) / 2))
    return None


def _padded(factor: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(factor[:1]), factor])


def other_family(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """The same distribution, told as one of another family."""
    posterior = ask.posterior
    if isinstance(posterior, Mixture | WeightSamples):
        return None
    if isinstance(posterior, GaussianDiagonal) and rng.random() < 0.5:
        none = {name: np.zeros((1, *variance.shape)) for name, variance in posterior.variances.items()}
        return replace(ask, posterior=GaussianLowRank(none, posterior.variances))
    if isinstance(posterior, GaussianFull) and rng.random() < 0.5:
        zeros = {name: np.zeros(factor.shape[1:]) for name, factor in posterior.factors.items()}
        return replace(ask, posterior=GaussianLowRank(posterior.factors, zeros))
    means = {name: ask.network.tensors[name] for name in names_of(posterior)}
    return replace(ask, posterior=Mixture((Component(means, posterior),) * 2, np.array([0.25, 0.75])))


def _sources(network: Network) -> list[str]:
    fixed = {node.value.source for node in network.nodes if isinstance(node, Constant)}
    return [param.source for param in all_params(network) if param.source not in fixed]


def _before(network: Network, tensor: np.ndarray, linear: bool) -> Network | None:
    """Another layer in front of the first one."""
    nodes = network.nodes
    inputs = [p for p, node in enumerate(nodes) if isinstance(node, Input)]
    if inputs != [0] or len(nodes[0].shape) != 2 or nodes[0].shape[0] != 1:
        return None
    param = Param("front", np.arange(tensor.size).reshape(tensor.shape), np.asarray(1.0))
    shape = nodes[0].shape
    front: Node = Linear("front", (0,), shape, param, 1) if linear else Scale("front", (0,), shape, param)
    rest = [replace(node, inputs=tuple(p + 1 for p in node.inputs)) for node in nodes[1:]]
    outputs = tuple(p + 1 for p in network.outputs)
    tensors = {"front": tensor, **network.tensors}
    return replace(network, nodes=(nodes[0], front, *rest), outputs=outputs, tensors=tensors)


def _behind(network: Network, tensor: np.ndarray, linear: bool) -> Network | None:
    """Another layer behind the last one."""
    shape = network.signature.outputs[0].shape
    if len(network.outputs) != 1 or len(shape) != 2 or shape[0] != 1:
        return None
    param = Param("back", np.arange(tensor.size).reshape(tensor.shape), np.asarray(1.0))
    last: Node = Linear("back", network.outputs, shape, param, 1)
    if not linear:
        last = Scale("back", network.outputs, shape, param)
    tensors = {**network.tensors, "back": tensor}
    return replace(network, nodes=(*network.nodes, last), outputs=(len(network.nodes),), tensors=tensors)


def inputs_moved(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Inputs in another order, put right by a layer (the identity, now and then)."""
    n = ask.network.signature.input_size
    order = rng.permutation(n) if rng.random() < 0.7 else np.arange(n)
    network = _before(ask.network, np.eye(n)[np.argsort(order)], linear=True)
    if network is None:
        return None

    def move(part: Part) -> Part:
        cases = tuple(tuple(replace(row, g=row.g[order]) for row in case) for case in part.cases)
        constraints = tuple((g[order], b) for g, b in part.constraints)
        return Part(part.lower[order], part.upper[order], constraints, cases)

    return replace(ask, network=network, question=_parts(ask, move))


def outputs_moved(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Outputs in another order, by one more layer."""
    m = ask.network.signature.output_size
    order = rng.permutation(m) if rng.random() < 0.7 else np.arange(m)
    network = _behind(ask.network, np.eye(m)[order], linear=True)
    if network is None:
        return None
    return replace(ask, network=network, question=_rows(ask, lambda row: replace(row, a=row.a[order])))


def inputs_scaled(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Inputs in other units, undone by the first layer."""
    factor = 2.0 ** int(rng.choice([3, 10] if has_conv(ask.network) else [-300, -40, 3, 40, 300]))
    network = _before(ask.network, np.full((1, 1), 1 / factor), linear=False)
    if network is None:
        return None

    def scale(part: Part) -> Part:
        cases = tuple(tuple(replace(row, g=row.g / factor) for row in case) for case in part.cases)
        constraints = tuple((g / factor, b) for g, b in part.constraints)
        return Part(part.lower * factor, part.upper * factor, constraints, cases)

    return replace(ask, network=network, question=_parts(ask, scale))


def outputs_scaled(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Outputs in other units."""
    if spec.end or (spec.query == "decision" and spec.likelihood != "gaussian"):
        return None
    factor = 2.0 ** int(rng.choice([3, 10] if has_conv(ask.network) else [-300, -40, 3, 40, 300]))
    network = _behind(ask.network, np.full((1, 1), factor), linear=False)
    if network is None:
        return None
    return replace(ask, network=network, question=_rows(ask, lambda row: replace(row, a=row.a / factor)))


def other_method(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """Any other way to bound."""
    ways: list[dict[str, Any]] = [{"method": "linear"}, {"method": "interval"}, {"seed": int(rng.integers(1000))}]
    ways.append({"search": "float32"})
    if spec.query == "deterministic" or spec.family == "samples":
        return replace(ask, options=ask.options | ways[rng.integers(len(ways))])
    ways += [{"method": "tails"}] * 2
    if spec.family == "gaussian":
        ways += [
            {"margin": float(rng.uniform(0.01, 6))},
            {"boxes": "sampled", "num_boxes": int(rng.integers(1, 12)), "margin": float(rng.uniform(0.3, 4))},
        ]  # fmt: skip
    return replace(ask, options=ask.options | ways[rng.integers(len(ways))])


def in_a_hurry(ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """A time limit that may strike at any moment."""
    return replace(ask, options={"timeout": float(10 ** rng.uniform(-3, 0))})


CHANGES: tuple[Change, ...] = (
    other_version, scaled_rows, smaller_boxes, split_boxes, shuffled, fewer_cases, fewer_rows, stricter, with_ties,
    zero_variances, other_family, inputs_moved, outputs_moved, inputs_scaled, outputs_scaled, other_method,
    other_method, in_a_hurry,
)  # fmt: skip


def make_variant(change: Change, ask: Ask, spec: Spec, rng: np.random.Generator) -> Ask | None:
    """The variant; None where it does not apply or leaves float64."""
    with np.errstate(over="ignore", under="ignore"):
        found = change(ask, spec, rng)
    if found is None or not _exact(ask.question, found.question):
        return None
    return replace(found, name=change.__name__)


def _exact(before: Question, after: Question) -> bool:
    """No number has overflowed, and no factor was lost to underflow: the relation would not be exact."""

    def numbers(question: Question) -> np.ndarray:
        found = []
        for part in question.parts:
            found += [part.lower, part.upper, *(np.append(g, b) for g, b in part.constraints)]
            found += [np.concatenate([row.a, row.g, [row.b]]) for case in part.cases for row in case]
        return np.concatenate(found)

    values = numbers(after)
    small = (np.abs(values) < 2.0**-900) & (values != 0)
    gone = np.count_nonzero(numbers(before)) > np.count_nonzero(values) and len(numbers(before)) == len(values)
    return bool(np.isfinite(values).all()) and not small.any() and not gone and not math.isnan(values.sum())
