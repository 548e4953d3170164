"""What a case of the fuzzer is made of: few discrete choices, drawn from a seed, each of which can be made simpler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnn_vnnlib.model.nodes import Constant
from fuzz.onnx_graph import writable
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
    spread : sd / |mean|; radius : of the boxes, relative to the inputs; degenerate : share of fixed coordinates
    labels : the property says 'not label 0'; on_x : rows involve x; quantile : where the rows' thresholds lie among
    sampled outputs
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
    """A case; equal seeds give equal cases."""
    rng = np.random.default_rng(seed)

    def one(values: Any, shares: Any = None) -> Any:
        return values[rng.choice(len(values), p=shares)]

    zoo_graph = rng.random() < 0.2
    graph = f"zoo:{one(ZOO)}" if zoo_graph else one(BUILT, (0.4, 0.1, 0.12, 0.1, 0.1, 0.09, 0.09))
    family = one(("gaussian", "samples"), (0.75, 0.25))
    spec = Spec(
        seed, graph, inputs=one((1, 2, 3, 5)), outputs=one((1, 2, 3)), width=one((1, 2, 4, 8, 16)),
        depth=one((0, 1, 2, 3, 4), (0.1, 0.35, 0.3, 0.15, 0.1)),
        kind=one(("relu", "leaky_relu", "tanh", "sigmoid", "mixed", "other"), (0.4, 0.1, 0.1, 0.1, 0.2, 0.1)),
        end=one(("", "Softmax", "Sigmoid"), (0.8, 0.15, 0.05)),
        numbers=one(("normal", "integers", "sparse", "rescaled", "large"), (0.5, 0.15, 0.1, 0.15, 0.1)),
        family=family, only=one(("all", "one_tensor", "one_weight"), (0.7, 0.15, 0.15)),
        spread=float(10 ** rng.uniform(-3, 0)), zero_share=one((0.0, 0.3, 1.0), (0.7, 0.25, 0.05)),
        samples=one((1, 2, 4, 9)),
        query=one(("probabilistic", "decision", "deterministic"), (0.65, 0.25, 0.1)),
        likelihood=one(("gaussian", "categorical", "bernoulli")),
        boxes=one((1, 2, 3), (0.7, 0.2, 0.1)), cases=one((1, 2, 3), (0.6, 0.3, 0.1)),
        rows=one((1, 2, 3), (0.6, 0.25, 0.15)),
        radius=float(one((0.0, 1e-16, 10 ** rng.uniform(-4, 0), 3.0), (0.15, 0.05, 0.7, 0.1))),
        degenerate=one((0.0, 0.5), (0.7, 0.3)), labels=bool(rng.random() < 0.3), on_x=bool(rng.random() < 0.15),
        constraints=one((0, 1, 2), (0.85, 0.1, 0.05)), strict=bool(rng.random() < 0.4),
        quantile=float(one((0.0, 0.01, 0.2, 0.5, 1.0), (0.35, 0.2, 0.25, 0.15, 0.05))),
    )  # fmt: skip
    return replace(spec, likelihood="categorical") if spec.end == "Softmax" else spec


def simpler(spec: Spec) -> Iterator[Spec]:
    """Cases with one choice made simpler, the most drastic ones first."""
    plain = Spec(spec.seed)
    ladder: dict[str, tuple[Any, ...]] = {
        "graph": ("dense",), "depth": (0, 1, 2, 3), "width": (1, 2, 4, 8), "inputs": (1, 2, 3), "outputs": (1, 2),
        "boxes": (1, 2), "cases": (1, 2), "rows": (1, 2), "samples": (1, 2, 4), "constraints": (0, 1),
    }  # fmt: skip
    for name in (
        "graph", "depth", "boxes", "cases", "rows", "constraints", "width", "inputs", "outputs", "samples", "on_x",
        "labels", "end", "numbers", "only", "zero_share", "radius", "degenerate", "strict", "kind", "quantile",
    ):  # fmt: skip
        value = getattr(spec, name)
        for choice in ladder.get(name, (getattr(plain, name),)):
            if choice == value:
                break
            yield replace(spec, **{name: choice})
