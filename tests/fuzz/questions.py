"""Random properties of a spec, as text of both versions of VNN-LIB; the text is what is verified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from bnn_vnnlib import Model, Property
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Activation
from bnn_vnnlib.signature import Signature
from bnn_vnnlib.vnnlib import parse_property
from fuzz.specs import Spec

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Row:
    """a.y + g.x <= b, or < b."""

    a: Array
    g: Array
    b: float
    strict: bool


@dataclass(frozen=True, eq=False)
class Part:
    """A box with constraints g.x <= b, and the cases over it."""

    lower: Array
    upper: Array
    constraints: tuple[tuple[Array, float], ...]
    cases: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True, eq=False)
class Question:
    """A union of parts; all numbers are float64 and are written exactly."""

    parts: tuple[Part, ...]

    def text(self, signature: Signature, version: int = 1) -> str:
        """VNN-LIB text."""
        n, m = signature.input_size, signature.output_size
        if version == 1:
            xs, ys = [f"X_{i}" for i in range(n)], [f"Y_{i}" for i in range(m)]
            head = [f"(declare-const {name} Real)" for name in (*xs, *ys)]
        else:
            xs, ys = (_entries(signature, which) for which in ("inputs", "outputs"))
            head = ["(vnnlib-version <2.0>)", "(declare-network f"]
            for which, letter in (("input", "X"), ("output", "Y")):
                for k, variable in enumerate(getattr(signature, f"{which}s")):
                    shape = ",".join(map(str, variable.shape))
                    head.append(f"  (declare-{which} {letter}{k} real [{shape}])")
            head.append(")")
        clauses = [
            "(and " + " ".join([*_inputs(part, xs), *(_comparison(row, xs, ys) for row in case)]) + ")"
            for part in self.parts
            for case in part.cases
        ]
        return "\n".join([*head, "(assert (or", *clauses, "))", ""])

    def read(self, signature: Signature, version: int = 1) -> Property:
        """The property, as read from its text."""
        several = len(signature.inputs) + len(signature.outputs) > 2  # not in version 1
        return parse_property(self.text(signature, 2 if several else version), signature=signature)


def _entries(signature: Signature, which: str) -> list[str]:
    letter = "X" if which == "inputs" else "Y"
    names = []
    for k, variable in enumerate(getattr(signature, which)):
        for place in np.ndindex(*variable.shape):
            names.append(f"{letter}{k}[{','.join(map(str, place))}]" if place else f"{letter}{k}[]")
    if any(name.endswith("[]") for name in names):
        names = [name.removesuffix("[]") for name in names]
    return names


def _number(value: float) -> str:
    return str(Decimal(value))


def _inputs(part: Part, xs: Sequence[str]) -> list[str]:
    box = [f"(>= {x} {_number(v)})" for x, v in zip(xs, part.lower, strict=True)]
    box += [f"(<= {x} {_number(v)})" for x, v in zip(xs, part.upper, strict=True)]
    return box + [f"(<= {_sum(g, xs)} {_number(b)})" for g, b in part.constraints]


def _comparison(row: Row, xs: Sequence[str], ys: Sequence[str]) -> str:
    total = _sum(np.concatenate([row.a, row.g]), [*ys, *xs])
    return f"({'<' if row.strict else '<='} {total} {_number(row.b)})"


def _sum(coefficients: Array, names: Sequence[str]) -> str:
    terms = [f"(* {_number(c)} {name})" for c, name in zip(coefficients, names, strict=True) if c != 0]
    if not terms:
        return f"(* 0.0 {names[0]})"
    return terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"


def make_question(spec: Spec, model: Model) -> Question:
    """Boxes around random points, rows with thresholds that about the wanted share of sampled networks violates."""
    rng = spec.stream("question")
    n, m = model.network.signature.input_size, model.network.signature.output_size
    whole = spec.numbers == "integers"
    parts = []
    for _ in range(spec.boxes):
        x = rng.integers(-1, 2, size=n).astype(np.float64) if whole else rng.normal(size=n)
        reach = spec.radius * rng.uniform(0.5, 1.0, size=n) * (rng.random(n) >= spec.degenerate)
        reach = np.round(4 * reach) / 4 if whole else reach
        lower, upper = x - reach, x + reach
        ys, xs = _outputs(spec, model, lower, upper, rng)
        constraints = tuple(_constraint(rng, x, reach) for _ in range(spec.constraints))
        if spec.labels and m > 1:
            cases = tuple((_versus(m, j, n, spec.strict),) for j in range(1, m))
        else:
            cases = tuple(
                tuple(_row(spec, rng, xs, ys, whole) for _ in range(rng.integers(1, spec.rows + 1)))
                for _ in range(spec.cases)
            )
        parts.append(Part(lower, upper, constraints, cases))
    return Question(tuple(_moved(spec, model, parts, rng, whole)))


def _moved(spec: Spec, model: Model, parts: list[Part], rng: np.random.Generator, whole: bool) -> list[Part]:
    """All thresholds moved together, in units of the rows, until about the share `quantile` of networks violates."""
    if spec.labels and model.network.signature.output_size > 1:
        return parts
    least, sizes = [], []
    for part in parts:
        ys, xs = _outputs(spec, model, part.lower, part.upper, rng, points=12)
        for case in part.cases:
            values = [ys @ row.a + xs @ row.g - row.b for row in case]
            sizes.append([float(np.std(value)) or 1.0 for value in values])
            scaled = [value / size for value, size in zip(values, sizes[-1], strict=True)]
            least.append(np.max(scaled, 0).min(-1))
    step = float(np.quantile(np.min(least, 0), spec.quantile))
    if spec.family == "samples":  # thresholds are at a tie now; some stay there
        step += float(rng.choice([0.0, -1.0, 1.0], p=[0.2, 0.4, 0.4])) * 1e-3
    if not math.isfinite(step):
        return parts
    remaining = iter(sizes)

    def shift(case: tuple[Row, ...]) -> tuple[Row, ...]:
        moved = [float(row.b + step * size) for row, size in zip(case, next(remaining), strict=True)]
        return tuple(replace(row, b=float(round(b)) if whole else b) for row, b in zip(case, moved, strict=True))

    return [replace(part, cases=tuple(shift(case) for case in part.cases)) for part in parts]


def _outputs(
    spec: Spec, model: Model, lower: Array, upper: Array, rng: np.random.Generator, points: int = 1
) -> tuple[Array, Array]:
    """Outputs (K, P, m) as the query sees them, of K sampled networks at points (K, P, n) of the box, every other one
    of them a corner.
    """
    count = 200
    generator = torch.Generator().manual_seed(spec.seed)
    if model.posterior is None:
        raise ValueError("the fuzzer's models carry posteriors")
    params = sample(model.network, model.posterior, count, generator)
    share = rng.random((count, points, len(lower)))
    share[:, 1::2] = share[:, 1::2].round()
    x = lower + (upper - lower) * share
    y = evaluate(model.network, torch.as_tensor(x), params).numpy()
    return transformed(y, transform_of(spec, model)), x


def transform_of(spec: Spec, model: Model) -> str:
    """What Y is, as a function of the outputs without their Softmax."""
    if model.network.softmax_axis is not None:
        return "softmax"
    if spec.query != "decision" or model.likelihood in (None, "gaussian"):
        return "identity"
    if model.likelihood == "categorical":
        return "softmax"
    last = [model.network.nodes[position] for position in model.network.outputs]
    return "identity" if all(isinstance(n, Activation) and n.kind == "sigmoid" for n in last) else "sigmoid"


def transformed(y: Array, transform: str) -> Array:
    """Apply it."""
    if transform == "softmax":
        return np.asarray(special.softmax(y, -1))
    return np.asarray(special.expit(y)) if transform == "sigmoid" else y


def _versus(m: int, j: int, n: int, strict: bool) -> Row:
    a = np.zeros(m)
    a[0], a[j] = 1.0, -1.0
    return Row(a, np.zeros(n), 0.0, strict)


def _row(spec: Spec, rng: np.random.Generator, xs: Array, ys: Array, whole: bool) -> Row:
    n, m = xs.shape[-1], ys.shape[-1]
    a = rng.integers(-2, 3, size=m).astype(np.float64) if whole or rng.random() < 0.3 else rng.normal(size=m)
    g = rng.normal(size=n) if spec.on_x else np.zeros(n)
    g = np.round(g) if whole else g
    values = ys @ a + xs @ g
    b = float(np.median(values)) + (float(np.std(values)) or 1.0) * float(rng.choice([0.0, 0.0, -0.5, 0.5]))
    b = round(b) if whole else b
    return Row(a, g, float(b) if math.isfinite(b) else 0.0, bool(spec.strict and rng.random() < 0.7))


def _constraint(rng: np.random.Generator, x: Array, reach: Array) -> tuple[Array, float]:
    """A half-space that cuts the box, with its centre inside (or, now and then, on the face)."""
    g = rng.normal(size=len(x))
    return g, float(g @ x + np.abs(g) @ reach * float(rng.choice([0.0, 0.2, 0.5])) + 1e-9)
