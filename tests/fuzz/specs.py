"""What a case of the fuzzer is made of: few discrete choices, drawn from a seed, each of which can be made simpler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnn_vnnlib.network.nodes import Constant
from fuzz.onnx_graph import writable
from fuzz.posterior_families import CORRELATED, FAMILIES
from support import zoo


def _suits(name: str) -> bool:
    network = zoo.GRAPHS[name]()
    fixed = {node.value.source for node in network.nodes if isinstance(node, Constant)}
    return (
        writable(network) and "slack" not in name and name != "only_constant" and bool(network.tensors.keys() - fixed)
    )


ZOO = tuple(name for name in zoo.GRAPHS if _suits(name))
"""Graphs that an ONNX file with a posterior can hold."""

BUILT = ("dense", "residual", "conv", "tied", "tied_branches", "concat", "scaled_units")


@dataclass(frozen=True)
class Spec:
    """One case. Weights, posterior and property are drawn from streams of their own, so that a field can be changed
    and the others stay as they were.

    graph : how the network is built, see `models`; numbers : what its weights look like
    family : of the posterior; only : which weights are random; zero_share : of exact zeros among the variances
    parts : components of a mixture; spread : sd / |mean|
    radius : of the boxes, relative to the inputs; degenerate : share of fixed coordinates
    labels : the property says 'not label 0'; on_x : rows involve x
    quantile : about the share of networks that violate, as far as thresholds can be moved
    """

    seed: int
    graph: str = "dense"
    inputs: int = 1
    outputs: int = 1
    width: int = 1
    depth: int = 0
    kind: str = "relu"
    end: str = ""
    numbers: str = "normal"
    family: str = "gaussian"
    only: str = "all"
    spread: float = 0.1
    zero_share: float = 0.0
    samples: int = 1
    parts: int = 1
    query: str = "probabilistic"
    likelihood: str = "gaussian"
    boxes: int = 1
    cases: int = 1
    rows: int = 1
    radius: float = 0.0
    degenerate: float = 0.0
    labels: bool = False
    on_x: bool = False
    constraints: int = 0
    strict: bool = False
    quantile: float = 0.0

    def stream(self, name: str) -> np.random.Generator:
        """Random numbers for one purpose."""
        return np.random.default_rng([self.seed, *name.encode()])


def random_spec(seed: int) -> Spec:
    """A case; equal seeds give equal cases. Most are small and near a threshold: bounds of others say nothing."""
    rng = np.random.default_rng(seed)

    def one(values: Any, shares: Any = None) -> Any:
        return values[rng.choice(len(values), p=shares)]

    zoo_graph = rng.random() < 0.12
    graph = f"zoo:{one(ZOO)}" if zoo_graph else one(BUILT, (0.55, 0.08, 0.09, 0.07, 0.07, 0.07, 0.07))
    family = one(FAMILIES, (0.3, 0.14, 0.14, 0.14, 0.14, 0.14))
    spec = Spec(
        seed, graph, inputs=one((1, 2, 3, 5)), outputs=one((1, 2, 3)),
        width=one((1, 2, 4, 8, 16), (0.22, 0.28, 0.28, 0.14, 0.08)),
        depth=one((0, 1, 2, 3, 4), (0.35, 0.4, 0.15, 0.06, 0.04)),
        kind=one(("relu", "leaky_relu", "tanh", "sigmoid", "mixed", "other"), (0.5, 0.1, 0.08, 0.08, 0.16, 0.08)),
        end=one(("", "Softmax", "Sigmoid"), (0.8, 0.15, 0.05)),
        numbers=one(("normal", "integers", "sparse", "rescaled", "large"), (0.68, 0.12, 0.07, 0.08, 0.05)),
        family=family, only=one(("all", "one_tensor", "one_weight"), (0.65, 0.2, 0.15)),
        spread=float(10 ** rng.uniform(-2.5, -0.5)), zero_share=one((0.0, 0.3, 1.0), (0.75, 0.22, 0.03)),
        samples=one((1, 2, 4, 9)), parts=one((1, 2, 3)),
        query=one(("probabilistic", "decision", "deterministic"), (0.68, 0.25, 0.07)),
        likelihood=one(("gaussian", "categorical", "bernoulli")),
        boxes=one((1, 2, 3), (0.75, 0.17, 0.08)), cases=one((1, 2, 3), (0.65, 0.27, 0.08)),
        rows=one((1, 2, 3), (0.7, 0.2, 0.1)),
        radius=float(one((0.0, 1e-16, 10 ** rng.uniform(-4, -1), 10 ** rng.uniform(-1, 0)), (0.35, 0.05, 0.5, 0.1))),
        degenerate=one((0.0, 0.5), (0.6, 0.4)), labels=bool(rng.random() < 0.15), on_x=bool(rng.random() < 0.15),
        constraints=one((0, 1, 2), (0.88, 0.08, 0.04)), strict=bool(rng.random() < 0.4),
        quantile=float(one((0.0, 0.01, 0.05, 0.2, 0.5, 0.9), (0.06, 0.25, 0.28, 0.24, 0.12, 0.05))),
    )  # fmt: skip
    return _served(spec)


def _served(spec: Spec) -> Spec:
    """The same, less what is refused: a regression's decision, and numbers behind a Softmax, of correlated weights."""
    if spec.end == "Softmax":
        spec = replace(spec, likelihood="categorical")
    if spec.family not in CORRELATED:
        return spec
    if spec.query == "decision":
        return replace(spec, likelihood="categorical", outputs=max(spec.outputs, 2), end="")
    if spec.query == "probabilistic" and spec.end == "Softmax":
        return replace(spec, labels=True, on_x=False, outputs=max(spec.outputs, 2))
    return spec


def simpler(spec: Spec) -> Iterator[Spec]:
    """Cases with one choice made simpler, the most drastic ones first."""
    plain = Spec(spec.seed)
    ladder: dict[str, tuple[Any, ...]] = {
        "graph": ("dense",), "depth": (0, 1, 2, 3), "width": (1, 2, 4, 8), "inputs": (1, 2, 3), "outputs": (1, 2),
        "boxes": (1, 2), "cases": (1, 2), "rows": (1, 2), "samples": (1, 2, 4), "parts": (1, 2),
        "constraints": (0, 1), "family": ("gaussian",) if spec.family != "samples" else ("samples",),
    }  # fmt: skip
    for name in (
        "graph", "family", "depth", "boxes", "cases", "rows", "constraints", "width", "inputs", "outputs", "samples",
        "parts", "on_x", "labels", "end", "numbers", "only", "zero_share", "radius", "degenerate", "strict", "kind",
        "quantile",
    ):  # fmt: skip
        value = getattr(spec, name)
        for choice in ladder.get(name, (getattr(plain, name),)):
            if choice == value:
                break
            yield replace(spec, **{name: choice})
