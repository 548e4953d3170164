"""The networks, posteriors and questions that every method meets: small enough that the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bnn_vnnlib import Model
from bnn_vnnlib.model import Network, Posterior, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.rules import Cases
from fuzz.posterior_families import drawn
from support import zoo
from support.blocks import BLOCKS, TRAINED, random
from support.networks import Builder, dense_network

Array = NDArray[np.float64]

RADIUS = 0.1
"""Of the boxes around the centre of an item; the other items are points."""

CENTRES = 2**11
"""Networks that say where thresholds lie."""


def scaled(network: Network) -> Network:
    """Its matrices divided by the square roots of their widths, so that values stay of the size of 1."""
    tensors = {k: v / np.sqrt(v.shape[-1]) if v.ndim > 1 else 0.5 * v for k, v in network.tensors.items()}
    return Network(network.signature, network.nodes, network.outputs, tensors, network.softmax_axis)


def attention() -> Network:
    """A product of two branches, and a maximum."""
    b = Builder(3)
    x = b.dense(b.input(1, 2), 3, "sigmoid")
    y = b.product(x, b.dense(x, 3))
    return b.network(b.concat(b.dense(y, 2), b.reshape(b.maximum(y), 1, 1)))


GRAPHS: dict[str, Callable[[], Network]] = {
    "linear": lambda: dense_network((2, 2), seed=1),
    "one layer": lambda: dense_network((2, 5, 2), seed=5),
    "one layer, tanh": lambda: dense_network((2, 4, 2), "tanh", seed=3),
    "two layers": lambda: dense_network((2, 4, 4, 2), seed=4),
    "three layers": lambda: dense_network((2, 3, 3, 3, 2), seed=6),
    "residual": zoo.residual,
    "tied": zoo.tied,
    "convolution": zoo.deep_conv,
    "attention": attention,
    "one output": lambda: dense_network((2, 5, 1), seed=8),
}

DEVIATIONS = {"none": 0.0, "tiny": 0.003, "narrow": 0.05, "wide": 0.7}
"""Standard deviations of the weights, about; those of the networks are of the size of 1 over the root of the width."""


@dataclass(frozen=True, eq=False)
class Case:
    """A model and N questions about it; those of P_safe have about the mass `safe` (N,) at their centres.

    lower, upper : (N, n) boxes, some of which are points
    properties : one DNF a box
    options : of `verify_batch`
    """

    name: str
    model: Model
    transform: str
    lower: Array
    upper: Array
    properties: list[Cases]
    options: dict[str, Any]

    @property
    def outputs(self) -> int:
        """m."""
        return self.model.network.signature.output_size

    @property
    def posterior(self) -> Posterior:
        """Every model of the zoo has one."""
        assert self.model.posterior is not None
        return self.model.posterior


def model_of(graph: str, family: str, size: str, likelihood: Any = None, *, only: str = "") -> Model:
    """A graph with a posterior; `only`: a "bias", the last tensor, is random, the "last layer" is, or a "few"
    weights are."""
    if graph in BLOCKS:
        return random(BLOCKS[graph](), DEVIATIONS[size], *TRAINED, likelihood=likelihood)
    network = scaled(GRAPHS[graph]())
    rng = np.random.default_rng(sum(map(ord, graph + family + size)))
    names = list(network.tensors)[-{"bias": 1, "last layer": 2}.get(only, 0) :]
    means = {name: network.tensors[name] for name in names}
    deviations = {
        name: DEVIATIONS[size] * rng.uniform(0.5, 1.0, mean.shape) / np.sqrt(mean.shape[-1] if mean.ndim > 1 else 1)
        for name, mean in means.items()
    }
    if only == "few":
        deviations = few(deviations, rng)
    return Model(network, drawn(family, means, deviations, rng, 8), likelihood, None, b"")


def few(deviations: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Four of them; the others are 0."""
    every = np.concatenate([deviation.ravel() for deviation in deviations.values()])
    every[rng.permutation(len(every))[4:]] = 0
    ends = np.cumsum([deviation.size for deviation in deviations.values()])
    parts = zip(deviations.items(), np.split(every, ends[:-1]), strict=True)
    return {name: part.reshape(deviation.shape) for (name, deviation), part in parts}


def probabilistic(graph: str, family: str, size: str, *, only: str = "", **options: Any) -> Case:
    """Rows, conjunctions and disjunctions that the networks violate rarely, mostly, or in half of all cases."""
    model = model_of(graph, family, size, only=only)
    y, lower, upper = _items(model, 6)
    difference = np.zeros(y.shape[-1])
    difference[[0, -1]] = (1.0, -1.0) if y.shape[-1] > 1 else 1.0
    first = np.eye(y.shape[-1])[0]
    properties: list[Cases] = []
    for i, mass in enumerate((0.003, 0.99, 0.05, 0.97, 0.03, 0.2)):
        row, other = (first, difference) if i % 2 else (difference, first)
        a, b = (_threshold(y[:, i] @ c, mass, model) for c in (row, other))
        both = [(row[None], [a], [False]), (other[None], [b], [True])]
        if i < 4:
            properties.append([_case(*both[0])])
        elif i < 5:
            properties.append([_case(np.stack([row, other]), [a, b + 0.1], [False, True])])
        else:
            properties.append([_case(*part) for part in both])
    name = ", ".join((graph, family, size, *([only] if only not in ("", "bias") else [])))
    return Case(name, model, "identity", lower, upper, properties, options)


def decision(graph: str, family: str, size: str, likelihood: str, *, only: str = "", **options: Any) -> Case:
    """Rows that the decision keeps, or breaks, by about a tenth of what the networks differ by."""
    model = model_of(graph, family, size, likelihood, only=only)
    y, lower, upper = _items(model, 6)
    transform = {"categorical": "softmax", "bernoulli": "sigmoid"}.get(likelihood, "identity")
    value = transformed(y, transform)
    difference = np.zeros(y.shape[-1])
    difference[[0, -1]] = (1.0, -1.0) if y.shape[-1] > 1 else 1.0
    properties: list[Cases] = []
    for i in range(len(lower)):
        row = difference if i % 3 else np.eye(y.shape[-1])[0]
        seen = np.average(value[:, i], 0, weights=_shares(model)) @ row
        away = (0.1, -0.1)[i % 2] * max(0.1, float((value[:, i] @ row).std()))
        bound = 0.0 if transform == "softmax" and i % 3 else seen - away
        properties.append([_case(row[None], [bound], [False])])
    return Case(
        f"{graph}, {family}, {size}, {likelihood}", model, transform, lower, upper, properties,
        {"query": "decision", **options},
    )  # fmt: skip


def tensor(values: Array) -> torch.Tensor:
    """As the engine takes it."""
    return torch.as_tensor(values)


def transformed(y: Array, transform: str) -> Array:
    """What the decision averages; over the last axis."""
    if transform == "softmax":
        z = np.exp(y - y.max(-1, keepdims=True))
        return z / z.sum(-1, keepdims=True)
    return 1 / (1 + np.exp(-y)) if transform == "sigmoid" else y


def _items(model: Model, count: int) -> tuple[Array, Array, Array]:
    """Outputs (S, N, m) of sampled networks at the centres, and the boxes: a point, a box, a point, ..."""
    rng, n = np.random.default_rng(7), model.network.signature.input_size
    center = 0.7 * rng.normal(size=(count, n))
    radius = np.where(np.arange(count)[:, None] % 4 < 2, 0.0, RADIUS)
    return outputs(model, center), center - radius, center + radius


def outputs(model: Model, x: Array, count: int = CENTRES, seed: int = 0) -> Array:
    """(S, P, m) at points (P, n): of all weight samples, or of so many networks drawn from a Gaussian posterior."""
    params = networks(model, count, seed)
    return np.asarray(evaluate(model.network, torch.as_tensor(x), params).numpy())


def networks(model: Model, count: int, seed: int) -> dict[str, torch.Tensor]:
    """The weights of `outputs`."""
    posterior = model.posterior
    assert posterior is not None
    if hasattr(posterior, "samples"):
        return {name: torch.tensor(values) for name, values in posterior.samples.items()}
    return sample(model.network, posterior, count, torch.Generator().manual_seed(seed))


def _shares(model: Model) -> Array | None:
    return getattr(model.posterior, "probabilities", None) if hasattr(model.posterior, "samples") else None


def _threshold(values: Array, mass: float, model: Model) -> float:
    """What a mass of about that size of the networks does not exceed; between two samples where there are few."""
    shares = _shares(model)
    if shares is None:
        return float(np.quantile(values, mass))
    order = np.argsort(values)
    place = int(np.searchsorted(np.cumsum(shares[order]), mass).clip(0, len(values) - 2))
    return float(values[order][place : place + 2].mean())


def _case(a: Any, b: Any, strict: Any) -> tuple[Array, Array, NDArray[np.bool_]]:
    return np.asarray(a, np.float64), np.asarray(b, np.float64), np.asarray(strict, bool)


def cases() -> Iterator[Case]:
    """All of them."""
    for graph, size in (
        ("linear", "narrow"), ("one layer", "narrow"), ("one layer", "wide"), ("one layer, tanh", "narrow"),
        ("two layers", "wide"), ("two layers", "tiny"), ("three layers", "narrow"), ("residual", "narrow"),
        ("tied", "narrow"), ("convolution", "tiny"), ("attention", "tiny"),
    ):  # fmt: skip
        yield probabilistic(graph, "gaussian", size)
    for graph in ("layer norm behind", "batch norm behind", "self-attention"):
        yield probabilistic(graph, "gaussian", "narrow")
    yield probabilistic("linear", "gaussian", "wide", only="bias")
    for graph in ("one layer", "two layers", "residual", "tied", "attention"):
        yield probabilistic(graph, "gaussian", "wide", only="few")
    for graph, family in (
        ("one layer, tanh", "gaussian"), ("two layers", "gaussian"), ("convolution", "gaussian"),
        ("two layers", "full"),
        ("one layer", "low_rank"), ("two layers", "kron"),
    ):  # fmt: skip
        yield probabilistic(graph, family, "wide", only="last layer")
    for family in ("full", "low_rank", "kron", "mixture", "samples"):
        yield probabilistic("linear", family, "narrow")
        yield probabilistic("one layer", family, "narrow")
    yield probabilistic("residual", "samples", "narrow")
    for likelihood in ("categorical", "gaussian"):
        for graph, size in (
            ("linear", "narrow"), ("one layer", "narrow"), ("one layer", "wide"), ("two layers", "narrow"),
            ("three layers", "narrow"), ("residual", "tiny"),
        ):  # fmt: skip
            yield decision(graph, "gaussian", size, likelihood)
        for graph in ("linear", "one layer", "residual"):
            yield decision(graph, "samples", "narrow", likelihood)
        for graph in ("layer norm behind", "batch norm behind", "self-attention"):
            yield decision(graph, "gaussian", "narrow", likelihood)
    yield decision("one layer, tanh", "gaussian", "narrow", "gaussian")
    yield decision("one layer, tanh", "gaussian", "narrow", "categorical")
    yield decision("one output", "gaussian", "narrow", "bernoulli")
    yield decision("one output", "samples", "narrow", "bernoulli")
    for family in ("full", "low_rank", "kron", "mixture"):
        yield decision("one layer", family, "narrow", "categorical")
    for graph in ("two layers", "residual", "tied", "attention"):
        yield decision(graph, "gaussian", "wide", "categorical", only="few", goal="bounds", timeout=1.0)
        if graph != "two layers":  # whose closed forms take minutes for a few random weights over boxes
            yield decision(graph, "gaussian", "wide", "gaussian", only="few", goal="bounds", timeout=1.0)
    yield decision("residual", "gaussian", "wide", "gaussian", only="few", rule="median")
    for graph, family in (
        ("linear", "gaussian"), ("one layer", "gaussian"), ("residual", "gaussian"), ("one layer", "samples"),
    ):  # fmt: skip
        yield decision(graph, family, "narrow", "gaussian", rule="median")
    for graph, family, rule in (
        ("linear", "gaussian", "quantile:0.1"), ("one layer", "gaussian", "quantile:0.8"),
        ("one layer", "samples", "quantile:0.3"),
    ):  # fmt: skip
        yield decision(graph, family, "narrow", "gaussian", rule=rule)
