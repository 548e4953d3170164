"""The proof of an answer, with the rules of format 1.

`refuse` says before any work what has no rule. `write_proof` looks for a proof of the answer of a run and writes it;
`certified` tells of it in the result.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.certificates.file import StoredArrays, write_certificate
from bnn_vnnlib.certificates.trees import FINE, Claims, FixedSettings, Tails, by_signs, grow, preorder
from bnn_vnnlib.errors import InputError, UnsupportedError
from bnn_vnnlib.methods.components import components_of
from bnn_vnnlib.methods.deterministic import by_neurons
from bnn_vnnlib.methods.safety.by_weights import decided_samples
from bnn_vnnlib.model.description import onnx_operators
from bnn_vnnlib.network.families import family_of, names_of
from bnn_vnnlib.network.network import GaussianDiagonal, Mixture, Model, Network, WeightSamples
from bnn_vnnlib.network.nodes import Activation, Conv, Input, Linear, Reshape, Shift, params_of
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, from_property, point_box
from bnn_vnnlib.problem.refute import violated_cases
from bnn_vnnlib.question.options import Guarantee, Options
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.readers.text import located
from bnn_vnnlib.result import Query, Result, Verdict
from bnn_vnnlib.setting import Setting, settle_run
from bnn_vnnlib.splitting.frontier import Forest
from bnn_vnnlib.system.clock import OutOfTime

_OPERATORS = (
    "Add", "Constant", "Conv", "Flatten", "Gemm", "Identity", "LeakyRelu", "MatMul", "Relu", "Reshape", "Sigmoid",
    "Sub", "Tanh",
)  # fmt: skip
"""Operators that have a rule."""

_ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid")

_MOST_BOXES = 2**17
"""Boxes of one proof: fixed weights; tails take a sixteenth of it."""

MOST_PARTS = 2**12
"""Parts with signs of an item, and boxes of inputs under one box of weights."""

_FEW = 64
"""Items that are tuned where splits do not suffice, at most."""

_SLACK, _CURVED = 1e-9, 1e-6
"""What the checker may compute otherwise: of probability, and relative to it where lines of curves are searched for."""


@dataclass(frozen=True)
class Certified:
    """What a certificate claims: `verdict` (unsat, sat or bound) and the bound on P_safe, None where it has none.

    size : of its file in bytes; lost : how much weaker the bound is than that of the run, None without a bound
    """

    verdict: str
    bound: float | None
    size: int
    lost: float | None

    @property
    def claim(self) -> str:
        """What is certified, in words."""
        sign = "<=" if self.verdict == "sat" else ">="
        said = "" if self.bound is None else f"P_safe {sign} {self.bound:.9g}"
        return {"bound": f"{said}, too little for a verdict"}.get(self.verdict, f"{self.verdict} {said}".strip())


def refuse(model: Model, query: Query, guarantee: Guarantee, prop: Property | None = None) -> None:
    """Raise UnsupportedError where no rule of format 1 serves the question; `prop`, if it is about one property."""

    def no_rule(what: str) -> UnsupportedError:
        return UnsupportedError(f"no rule for {what} in certificates: leave out --certificate", path=model.path)

    if guarantee != "certain":
        raise no_rule(f"guarantee {guarantee}")
    if query is Query.DECISION:
        raise no_rule("query decision")
    if prop is not None and any(prop.polynomials):
        raise no_rule("products of inputs")
    if model.pair is not None:
        raise no_rule("properties about two networks")
    posterior, network = model.posterior, model.network
    parts = [part.posterior for part in posterior.components] if isinstance(posterior, Mixture) else [posterior]
    for part in parts:
        if part is not None and not isinstance(part, GaussianDiagonal | WeightSamples):
            raise no_rule(f"posteriors of family {family_of(part)}")
    operators = onnx_operators(model)
    others = sorted(operators - set(_OPERATORS))
    if network.softmax_axis is not None or others:
        raise no_rule(f"operator {others[0] if others else 'Softmax'}")
    if not _is_chain(network, set(names_of(posterior)), operators):
        raise no_rule("networks that are no chain of layers with weights of their own")


def _is_chain(network: Network, random: set[str], operators: set[str]) -> bool:
    """Whether served layers follow each other, each with weights of its own, `random` those of the posterior."""
    used = [param.source for node in network.nodes for param in params_of(node)]
    end = len(network.nodes) - 1
    served = all(_is_layer(network, position, random, operators) for position in range(len(network.nodes)))
    return served and network.outputs == (end,) and all(used.count(name) == 1 for name in random)


def _is_layer(network: Network, position: int, random: set[str], operators: set[str]) -> bool:
    node = network.nodes[position]
    front = network.nodes[position - 1] if position else node
    served = (
        isinstance(node, Input | Linear | Shift | Reshape)
        or (isinstance(node, Activation) and node.kind in _ACTIVATIONS)
        or (isinstance(node, Conv) and node.groups == 1)
    )
    behind = node.inputs == ((position - 1,) if position else ())
    once = not isinstance(node, Linear) or math.prod(node.shape) == node.shape[node.axis]
    plain = all(param.copies == 1 for param in params_of(node))
    twice = isinstance(node, Shift) and isinstance(front, Shift)
    tied = (  # one random number at several places, which is read as the bias of a Conv alone
        isinstance(node, Shift) and node.bias.source in random and math.prod(node.bias.shape) < math.prod(node.shape)
        and (not isinstance(front, Conv) or not {"Add", "Sub"}.isdisjoint(operators))
    )  # fmt: skip
    return served and behind and once and plain and not twice and not tied


def write_proof(
    path: Path, files: Mapping[str, Path], setting: Setting, prop: Property, result: Result
) -> Certified | str:
    """Write the certificate of a result; or why none was found, in words.

    Parameters
    ----------
    files : model and property
    setting : of the run, its deadline included
    """
    if result.verdict not in (Verdict.UNSAT, Verdict.SAT):
        return f"the verdict is {result.verdict.value}"
    arrays, problem = StoredArrays(), from_property(prop, setting.device)
    if result.verdict is Verdict.SAT:
        found = _sat(setting, problem, result, arrays)
    elif len(problem) == 0:
        found = {"rule": "empty/1"}, 0.0
    else:
        found = _unsat(setting, problem, result.details.get("violating_samples", ()), arrays)
    if isinstance(found, str):
        return found
    proof, failure = found
    question, claim = setting.question, {"verdict": result.verdict.value}
    content: dict[str, Any] = {"query": setting.query.value}
    bound, lost = None, None
    if setting.query is Query.PROBABILISTIC:
        content |= {name: repr(float(getattr(question, name))) for name in ("tau_safe", "tau_unsafe")}
        if result.verdict is Verdict.SAT:
            bound = min(1.0, failure + _SLACK)
            if bound >= question.tau_unsafe:
                return f"the rules prove P_safe <= {bound:.6g}, which is not below tau_unsafe"
        else:
            bound = max(0.0, 1.0 - failure - _SLACK) if failure else 1.0
            claim["verdict"] = "unsat" if bound >= question.tau_safe else "bound"
        claim["bound"] = repr(bound)
        if result.p_safe is not None:
            lost = bound - result.p_safe.upper if result.verdict is Verdict.SAT else result.p_safe.lower - bound
    info = {"method": result.method, "lost": lost}
    size = write_certificate(path, files, {**content, "claim": claim, "proof": proof, "info": info}, arrays)
    return Certified(claim["verdict"], bound, size, lost)


def certified(
    path: Path, files: Mapping[str, Path], model: Model, prop: Property, options: Options, result: Result,
    started: float,
) -> Result:  # fmt: skip
    """The result of a run with what became of its certificate (`details.certificate`, and a note).

    Parameters
    ----------
    started : when the time limit began to count
    """
    begun, files = time.monotonic(), {role: located(file) for role, file in files.items()}
    setting = settle_run(model, options, prop, started)
    try:
        found = write_proof(path, files, setting, prop, result)
    except OutOfTime:
        found = "time is up"
    except InputError as error:  # a disk that is full must not cost the answer
        found = error.message
    told: dict[str, Any] = {"file": str(path), "seconds": time.monotonic() - begun}
    if isinstance(found, str):
        told |= {"file": None, "why": found}
        note = f"no certificate was written: {found}"
    else:
        told |= vars(found)
        asked = {"query": options.query, "tau-safe": options.tau_safe, "tau-unsafe": options.tau_unsafe}
        given = [word for name, value in asked.items() if value is not None for word in (f"--{name}", str(value))]
        command = ["bnn-vnnlib-check", str(files["model"]), str(files["property"]), str(path), *given]
        note = f"certificate of {found.claim} ({found.size} bytes); check it with: {shlex.join(command)}"
    return replace(result, details={**result.details, "certificate": told}, notes=(*result.notes, note))


# unsat


def _unsat(
    setting: Setting, problem: Problem, violating: Collection[int], arrays: StoredArrays
) -> tuple[dict[str, Any], float] | str:  # fmt: skip
    """The proof, and what is left of probability 1 - P_safe.

    Parameters
    ----------
    violating : samples of which nothing can be proved
    """
    network, posterior = setting.model.network, setting.model.posterior
    if setting.query is Query.DETERMINISTIC:
        return _by_mean(setting, problem, arrays)
    if isinstance(posterior, GaussianDiagonal):
        return _by_gaussian(setting, setting.bounds, posterior, problem, arrays)
    if isinstance(posterior, Mixture):
        return _by_components(setting, posterior, problem, arrays)
    if not isinstance(posterior, WeightSamples):
        return "the posterior has no rule"
    samples = weight_sets.SampledWeights.of(network, posterior, setting.device)
    chosen = torch.arange(samples.count)
    copies = _copies(problem, samples.count)
    hopeless = torch.tensor([index in violating for index in range(samples.count)], device=setting.device)
    leaves, proved = FixedSettings(setting.bounds, samples.boxes(chosen)), _all_proved(copies)
    forest = grow(leaves, copies, _MOST_BOXES, lambda failures: proved(failures) | hopeless, setting.deadline)
    held = proved(forest.roots())
    trees = _items(forest, copies, arrays, lambda tree: {"rule": "linear/1"})["items"]
    count, parts = len(problem), []
    for index in torch.nonzero(held)[:, 0].tolist():
        items = {"rule": "items/1", "items": trees[index * count : (index + 1) * count]}
        parts.append({"index": index, "proof": items})
    shares = [Fraction(float(p)) for p in posterior.probabilities]
    left = sum((share for share, ok in zip(shares, held.tolist(), strict=True) if not ok), Fraction(0)) / sum(shares)
    arrays.stored = {name: arrays.stored[name] for name in _arrays_of(parts)}
    return {"rule": "samples/1", "samples": parts}, float(left)


def _by_mean(setting: Setting, problem: Problem, arrays: StoredArrays) -> tuple[dict[str, Any], float] | str:
    """Splits of the inputs where few of them vary, else of signs where the whole box does not do."""
    bounds, weights = setting.bounds, weight_sets.mean_weights(setting.model.network, setting.device)
    leaves, signs = FixedSettings(bounds, weights), by_neurons(bounds, problem)
    most = len(problem) if bool(signs.all()) else _MOST_BOXES
    forest = grow(leaves, problem, most, _all_proved(problem), setting.deadline)
    left = torch.nonzero(forest.roots() > 0)[:, 0]
    node = _items(forest, problem, arrays, lambda tree: {"rule": "linear/1"})
    if len(left) == 0:
        return node, 0.0
    trees = by_signs(leaves, problem.items(left), MOST_PARTS) if bool(signs[left].all()) else None
    if trees is None:
        return _not_found(forest, setting, "signs" if bool(signs[left].all()) else "the inputs")
    for item, cases in zip(left.tolist(), trees, strict=True):
        parts = [{key: arrays.name(part) for key, part in vars(case).items()} for case in cases]
        node["items"][item]["tree"] = {"rule": "split_signs/1", "cases": parts}
    arrays.stored = {name: arrays.stored[name] for name in _arrays_of(node)}
    return node, 0.0


def _by_components(
    setting: Setting, posterior: Mixture, problem: Problem, arrays: StoredArrays
) -> tuple[dict[str, Any], float]:  # fmt: skip
    """Each component with a proof of its own; what is not proved of one counts in full."""
    shares = [Fraction(float(p)) for p in posterior.probabilities]
    places = [index for index, share in enumerate(shares) if share]
    parts, left = [], Fraction(0)
    for index, part in zip(places, components_of(setting.bounds, posterior), strict=True):
        if not isinstance(part.posterior, GaussianDiagonal):
            raise TypeError("a component without a rule")
        proof, failure = _by_gaussian(setting, part.bounds, part.posterior, problem, arrays)
        parts.append({"index": index, "proof": proof})
        left += shares[index] * Fraction(min(1.0, failure))
    return {"rule": "mixture/1", "components": parts}, float(left / sum(shares))


def _by_gaussian(
    setting: Setting, bounds: OutputBounds, posterior: GaussianDiagonal, problem: Problem, arrays: StoredArrays
) -> tuple[dict[str, Any], float]:  # fmt: skip
    """The proof of a lower bound on P_safe by tails; where these do not suffice, by a box of the weights, if that
    does.
    """
    proof, failure = _by_tails(setting, bounds, posterior, problem, arrays)
    count, wanted = weight_sets.random_count(bounds.engine.network, posterior), setting.question.tau_safe + 2 * _SLACK
    if failure + _SLACK <= 1 - setting.question.tau_safe or not 0 < wanted < 1 or count == 0:
        return proof, failure
    margin = float(weight_sets.margin_of(torch.tensor(wanted, dtype=torch.float64), count)) * (1 + _SLACK)
    weights = weight_sets.centred(bounds.engine.network, posterior, setting.device)
    leaves = FixedSettings(bounds, weights.scaled(torch.full_like(weights.scale, margin)))
    forest = grow(leaves, problem, MOST_PARTS, _all_proved(problem), setting.deadline)
    if bool((forest.roots() > 0).any()):
        return proof, failure
    arrays.stored = {name: kept for name, kept in arrays.stored.items() if name not in _arrays_of(proof)}
    inside = _items(forest, problem, arrays, lambda tree: {"rule": "linear/1"})
    missed = 1 - float(weight_sets.centred_mass(torch.tensor([margin], dtype=torch.float64), count)[0])
    return {"rule": "box_mass/1", "margin": repr(margin), "proof": inside}, missed


def _arrays_of(node: Any) -> list[str]:
    """The arrays that a proof refers to."""
    if isinstance(node, dict):
        return [name for value in node.values() for name in _arrays_of(value)]
    if isinstance(node, list):
        return [name for value in node for name in _arrays_of(value)]
    return [node] if isinstance(node, str) and node.endswith(".npy") else []


def _copies(problem: Problem, count: int) -> Problem:
    """The items once for each of so many settings of the weights, which are the instances."""
    index = torch.arange(len(problem), device=problem.lower.device).repeat(count)
    owner = torch.arange(count, device=index.device).repeat_interleave(len(problem))
    return replace(problem.items(index), instance=owner, instances=count)


def _all_proved(problem: Problem) -> Any:
    return lambda failures: problem.all_items(failures == 0)


def _by_tails(
    setting: Setting, bounds: OutputBounds, posterior: GaussianDiagonal, problem: Problem, arrays: StoredArrays
) -> tuple[dict[str, Any], float]:  # fmt: skip
    """The proof of a lower bound on P_safe by tails, as an object of the manifest, and the failure probability it
    leaves.
    """
    leaves, goal = Tails(bounds, posterior, setting.device), 1 - setting.question.tau_safe

    def enough(failures: Tensor) -> Tensor:
        return (failures.sum() * (1 + _CURVED) + 2 * _SLACK <= goal).reshape(1)

    forest = grow(leaves, problem, _MOST_BOXES // 16, enough, setting.deadline)
    if not bool(enough(forest.roots())):
        leaves.budgets = FINE
        open_ = torch.nonzero(forest.nodes.first < 0)[:, 0]
        forest.nodes.own[open_] = leaves.failures(forest.boxes(open_))

    def leaf(boxes: Tensor) -> dict[str, Any]:
        part = forest.boxes(boxes)
        return _tails(leaves.claims(part.lower, part.upper, leaves.best(part, leaves.of_cases)[1]), arrays)

    failures, tuned = forest.roots(), {}
    if not bool(enough(failures)) and len(problem) <= _FEW:
        found, claims = leaves.tuned(problem, failures, setting.deadline)
        tuned = {index: claims.of(index) for index in torch.nonzero(found < failures)[:, 0].tolist()}
        failures = torch.minimum(found, failures)
        forest = forest.without(sorted(tuned))
    node = _items(forest, problem, arrays, leaf)
    for index, own in tuned.items():
        unused = _arrays_of(node["items"][index]["tree"]["leaf"])
        arrays.stored = {name: kept for name, kept in arrays.stored.items() if name not in unused}
        node["items"][index]["tree"]["leaf"] = _tails(own, arrays)
    return node, float(failures.sum()) * (1 + _CURVED)


def _tails(claims: Claims, arrays: StoredArrays) -> dict[str, Any]:
    """A leaf of rule `tails/1`; what is not claimed is left out."""
    parts = {key: [arrays.name(one) for one in part] for key, part in vars(claims).items()}
    return {"rule": "tails/1", **{key: part for key, part in parts.items() if part or key in ("lower", "upper")}}


def _items(forest: Forest, problem: Problem, arrays: StoredArrays, leaf: Any) -> dict[str, Any]:
    """The manifest's object for rule `items/1`: every item with its box, its tree and its leaves."""
    items, roots = [], torch.stack([problem.lower, problem.upper], 1).cpu().numpy()
    for box, tree in zip(roots, preorder(forest), strict=True):
        node = {
            "rule": "split_inputs/1", "inputs": arrays.name(tree.inputs), "cuts": arrays.name(tree.cuts),
            "leaf": leaf(tree.leaves),
        }  # fmt: skip
        items.append({"box": arrays.name(box), "tree": node})
    return {"rule": "items/1", "items": items}


def _not_found(forest: Forest, setting: Setting, what: str) -> str:
    parts = f"{MOST_PARTS} parts" if what == "signs" else f"{len(forest)} boxes"
    why = "time is up" if setting.deadline.passed else f"{parts} did not suffice"
    return f"no proof was found by splits of {what} alone: {why}"


# sat


def _sat(
    setting: Setting, problem: Problem, result: Result, arrays: StoredArrays
) -> tuple[dict[str, Any], float] | str:  # fmt: skip
    """The proof, and an upper bound on P_safe."""
    network, posterior = setting.model.network, setting.model.posterior
    if result.witness is None:
        return "there is no witness"
    x = torch.tensor(np.asarray(result.witness.x, np.float64), device=setting.device)
    points = x.expand(len(problem), -1)
    if setting.query is Query.DETERMINISTIC:
        weights = weight_sets.mean_weights(network, setting.device)
        lower, upper = point_box(problem, points)
        if not bool(violated_cases(setting.bounds, weights, problem, lower, upper).any()):
            return "the violation is too small to be proved in real arithmetic"
        return {"rule": "point/1", "x": arrays.name(x.numpy())}, 0.0
    if isinstance(posterior, GaussianDiagonal):
        return _at_point(setting, posterior, problem, points, arrays)
    if not isinstance(posterior, WeightSamples):
        return "the posterior has no rule"
    return _of_samples(setting, posterior, problem, arrays)


def _at_point(
    setting: Setting, posterior: GaussianDiagonal, problem: Problem, points: Tensor, arrays: StoredArrays
) -> tuple[dict[str, Any], float]:  # fmt: skip
    """All rows of the best case hold, but with a small probability."""
    leaves, rows = Tails(setting.bounds, posterior, setting.device), problem.rows
    inside = ((problem.lower <= points) & (points <= problem.upper)).all(-1)
    against = replace(
        rows, outputs=-rows.outputs, inputs=None if rows.inputs is None else -rows.inputs, bound=-rows.inner_bound
    )
    lower, upper = point_box(problem, points)
    asked = replace(problem, lower=lower, upper=upper, rows=against)

    def total(part: Problem, failures: Tensor) -> Tensor:
        return torch.where(part.exists, part.total(failures), torch.inf).amin(-1)

    failures, budgets = leaves.best(asked, total)
    item = int(torch.where(inside, failures, 2.0).argmin())
    claims = leaves.claims(lower[item : item + 1], upper[item : item + 1], budgets[item : item + 1])
    x = arrays.name(points[item].numpy())
    return {"rule": "point/1", "x": x, "leaf": _tails(claims, arrays)}, float(failures[item])


def _of_samples(
    setting: Setting, posterior: WeightSamples, problem: Problem, arrays: StoredArrays
) -> tuple[dict[str, Any], float]:  # fmt: skip
    """Each sample with a violating point of its own."""
    task = setting.safety_task(problem, setting.attack(restarts=8, pool=8))
    found = decided_samples(task, weight_sets.SampledWeights.of(task.bounds.engine.network, posterior, setting.device))
    parts, shares = [], [Fraction(float(p)) for p in posterior.probabilities]
    left = Fraction(0)
    for index, violated in enumerate(found.violated):
        if not bool(violated.any()):
            left += shares[index]
            continue
        x = found.point[index, int(violated.to(torch.int8).argmax())]
        parts.append({"index": index, "proof": {"rule": "point/1", "x": arrays.name(x.numpy())}})
    return {"rule": "samples/1", "samples": parts}, float(left / sum(shares))
