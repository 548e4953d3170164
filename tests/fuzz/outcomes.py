"""Calls of the public functions, and what they return brought into one form."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from bnn_vnnlib import Model, Property, Query, Verdict, verify, verify_batch
from bnn_vnnlib.errors import ModelError, UnsupportedError
from bnn_vnnlib.setting import gives_probabilities
from fuzz.questions import Array, Question
from fuzz.specs import Spec


@contextmanager
def processor_time() -> Iterator[None]:
    """Time limits count what this process works: a busy machine would empty the bounds, and nothing would be tested."""
    with mock.patch("time.monotonic", time.process_time):
        yield


@dataclass(frozen=True, eq=False)
class Outcome:
    """Bounds on the same quantities, whoever computed them.

    lower, upper : (1,) on P_safe, or on the rows of the decision in their order; verdict of the call
    outputs : bounds (2, m) on the decision's outputs, or None
    method : as it was asked for
    """

    name: str
    lower: Array
    upper: Array
    verdict: Verdict
    point: Array | None = None
    outputs: Array | None = None
    violating: list[int] = field(default_factory=list)
    method: str = "auto"


def call_verify(spec: Spec, model: Model, property: Property, name: str, **options: Any) -> Outcome | None:
    """`verify`; None where the method does not serve the case."""
    settings: dict[str, Any] = {"query": spec.query, "seed": spec.seed % 1000} | options
    query = Query(settings["query"])
    if query is Query.DECISION and gives_probabilities(model.network, query, model.likelihood):
        settings["outputs"] = "probabilities"
    try:
        with processor_time():
            found = verify(model, property, **settings)
    except UnsupportedError:
        return None
    except ModelError as error:  # onnxruntime has not every operator in float64
        if "NOT_IMPLEMENTED" in str(error):
            return None
        raise
    point = None if found.witness is None else found.witness.x
    if found.decision is not None:
        d = found.decision
        both = np.stack([d.lower, d.upper])
        return Outcome(name, d.row_lower, d.row_upper, found.verdict, point, both, method=asked(options))
    if found.p_safe is not None:
        samples = list(found.details.get("violating_samples", []))
        low, high = np.array([found.p_safe.lower]), np.array([found.p_safe.upper])
        return Outcome(name, low, high, found.verdict, point, None, samples, asked(options))
    if settings["query"] == "decision":  # the reader dropped every case: no rows, no bounds
        return None
    low, high = np.zeros(1), np.ones(1)
    if found.verdict is Verdict.UNSAT:
        low[:] = 1.0
    return Outcome(name, low, high, found.verdict, point, method=asked(options))


def asked(options: dict[str, Any]) -> str:
    """The method that options ask for, in few words."""
    if options.get("boxes") == "sampled":
        return "sampled boxes"
    return "centred boxes" if "margin" in options else str(options.get("method", "auto"))


def call_batch(spec: Spec, model: Model, question: Question, name: str, **options: Any) -> Outcome | None:
    """`verify_batch` on the first part of the question, alone or beside other boxes; None where it is not served."""
    part = question.parts[0]
    if part.constraints or any(row.g.any() for case in part.cases for row in case):
        return None
    cases = [
        (np.array([row.a for row in case]), np.array([row.b for row in case]), np.array([row.strict for row in case]))
        for case in part.cases
    ]
    low, high = part.lower[None], part.upper[None]
    if options.pop("beside", False):
        low, high = np.concatenate([low - 1, low, low]), np.concatenate([high, high, high + 0.5])
    which = min(1, len(low) - 1)
    try:
        with processor_time():
            found = verify_batch(
                model, low, high, properties=[cases], query=spec.query, seed=spec.seed % 1000, **options
            )
    except UnsupportedError:
        return None
    verdict, point = found.verdicts[which], found.points[which]
    if found.row_lower is not None and found.row_upper is not None:
        both = np.stack([found.lower[which], found.upper[which]])
        return Outcome(name, found.row_lower[which], found.row_upper[which], verdict, point, both)
    return Outcome(name, found.lower[[which]], found.upper[[which]], verdict, point)
