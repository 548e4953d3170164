"""What the panel asks: one property for each posterior, test input and radius, and networks drawn to compare with.

T is the box of the radius around the input, cut to the range of the inputs. A classifier has to keep the class that
the predictive gives the input; a regression has to stay within a quarter of the targets' span around its predictive
mean there, as in the published studies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from data import Data
from numpy.typing import NDArray
from posteriors import Member

from bnn_vnnlib.model import Model, read_model, sample
from bnn_vnnlib.network.evaluate import evaluate

INPUTS, DRAWS = 10, 2000
SHARE = 0.25
"""By how much of the targets' span a regression may leave its predictive mean."""
TIMEOUT = 60
QUERIES = ("probabilistic", "decision")

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Trained:
    """A member as it lies in the panel's folder.

    Attributes
    ----------
    model : what is drawn from: the posterior itself, or the network without its dropout
    dropout : {weight: rate}: columns of this weight are dropped at this rate; empty for other posteriors
    """

    member: Member
    data: Data
    model: Model
    dropout: dict[str, float]

    def draws(self, count: int, chunk: int = 100) -> Iterator[Weights]:
        """`count` networks drawn with a fixed seed, in chunks: {weight: (K, *shape)}, float64."""
        generator = torch.Generator().manual_seed(0)
        for begun in range(0, count, chunk):
            size = min(chunk, count - begun)
            if self.model.posterior is None:
                yield {name: self._thinned(name, rate, size, generator) for name, rate in self.dropout.items()}
            else:
                yield sample(self.model.network, self.model.posterior, size, generator)

    def _thinned(self, name: str, rate: float, size: int, generator: torch.Generator) -> torch.Tensor:
        weight = torch.tensor(self.model.network.tensors[name], dtype=torch.float64)
        kept = torch.rand((size, 1, weight.shape[1]), generator=generator, dtype=torch.float64) >= rate
        return weight * kept / (1 - rate)

    def predictive(self, x: NDArray) -> torch.Tensor:
        """(N, m): mean of the outputs, of their softmax for a classifier, over DRAWS networks."""
        total, inputs = torch.zeros(()), torch.tensor(x, dtype=torch.float64)
        for weights in self.draws(DRAWS):
            out = evaluate(self.model.network, inputs, weights)
            total = total + (out if self.data.classes is None else torch.softmax(out, -1)).sum(0)
        return total / DRAWS


def trained(member: Member, data: Path, out: Path) -> Trained | None:
    """Read a member; None if it was not trained."""
    record = out / "onnx" / f"{member.name}.json"
    if not record.exists():
        return None
    dropout = json.loads(record.read_text(encoding="utf-8")).get("dropout", {})
    name = f"{member.name}_mean" if dropout else member.name
    return Trained(member, member.read(data), read_model(out / "onnx" / f"{name}.onnx"), dropout)


@dataclass(frozen=True, eq=False)
class Cell:
    """A box and what is asked of it.

    Attributes
    ----------
    name : of its property file
    network : of its model file
    lower, upper : (d,) the box
    label : the class to keep, or None
    low, high : what a regression has to stay within
    """

    name: str
    network: str
    radius: float
    lower: NDArray
    upper: NDArray
    label: int | None
    low: float = 0.0
    high: float = 0.0

    def text(self, outputs: int) -> str:
        """The property as VNN-LIB 1.0."""
        lines = [f"; {self.name}: what must not happen"]
        lines += [f"(declare-const X_{i} Real)" for i in range(len(self.lower))]
        lines += [f"(declare-const Y_{j} Real)" for j in range(outputs)]
        for i, (low, high) in enumerate(zip(self.lower.tolist(), self.upper.tolist(), strict=True)):
            lines += [f"(assert (>= X_{i} {low:.6f}))", f"(assert (<= X_{i} {high:.6f}))"]
        if self.label is None:
            lines.append(f"(assert (or (and (<= Y_0 {self.low:.6f})) (and (>= Y_0 {self.high:.6f}))))")
        else:
            others = [f"(and (>= Y_{j} Y_{self.label}))" for j in range(outputs) if j != self.label]
            lines.append(f"(assert (or {' '.join(others)}))")
        return "\n".join(lines) + "\n"


def cells(trained: Trained) -> list[Cell]:
    """The boxes of a member: INPUTS test inputs, three radii each. Numbers are rounded as their file has them."""
    data, member = trained.data, trained.member
    x = data.test_x[:INPUTS].astype(np.float64).round(6)
    predicted = trained.predictive(x)
    found = []
    for i in range(len(x)):
        for k, radius in enumerate(data.radii):
            lower, upper = (x[i] - radius).round(6), (x[i] + radius).round(6)
            if data.clip is not None and radius:
                lower, upper = lower.clip(*data.clip), upper.clip(*data.clip)
            name = f"{member.name}_{i}_{k}"
            if data.classes is None:
                mean, room = float(predicted[i, 0]), SHARE * data.span
                found.append(
                    Cell(name, member.name, radius, lower, upper, None, round(mean - room, 6), round(mean + room, 6))
                )
            else:
                found.append(Cell(name, member.name, radius, lower, upper, int(predicted[i].argmax())))
    return found
