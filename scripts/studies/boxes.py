"""Networks with boxes of inputs and what must hold there: what the recipe and the validation ask about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bnn_vnnlib.model import Model, WeightSamples
from bnn_vnnlib.problem.problem import Problem, from_cases, from_labels
from bnn_vnnlib.rules import within
from bnn_vnnlib.sweeps import Table, make_table
from studies import places as of
from studies.places import Floats, Labels, Net, Places

SHARE = 0.25
"""A regression's output may move from its target by this share of the range of the test targets."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """N boxes (N, n) of one network: the decision is the label, or the output lies between `least` and `most`.

    family : hcas, concrete, powerplant, mnist or digits
    labels : (N,), -1 where there is none; None: a regression, whose range of outputs is least, most (N,)
    """

    name: str
    family: str
    model: Model
    lower: Floats
    upper: Floats
    labels: Labels | None = None
    least: Floats | None = None
    most: Floats | None = None

    def __post_init__(self) -> None:
        if (self.labels is None) == (self.least is None or self.most is None):
            raise ValueError(f"{self.name}: boxes have labels, or ranges of the output")

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def outputs(self) -> int:
        """How many."""
        return self.model.network.signature.output_size

    @property
    def exact(self) -> bool:
        """Whether the posterior is a finite sum."""
        return isinstance(self.model.posterior, WeightSamples)

    @property
    def asked(self) -> NDArray[np.int64]:
        """Rows with something to ask: those that have a label, or all."""
        return np.arange(len(self)) if self.labels is None else np.flatnonzero(self.labels >= 0)

    def problem(self, rows: NDArray[np.int64]) -> Problem:
        """These boxes with their violations."""
        ends = torch.as_tensor(self.lower[rows]), torch.as_tensor(self.upper[rows])
        if self.labels is not None:
            return from_labels(*ends, torch.as_tensor(self.labels[rows]), self.outputs)
        return from_cases(*ends, [within([a], [b]) for a, b in zip(*self.ranges(rows), strict=True)], self.outputs)

    def ranges(self, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Allowed outputs of a regression."""
        if self.least is None or self.most is None:
            raise TypeError(f"{self.name} is a classifier")
        return self.least[rows], self.most[rows]

    def table(self) -> Table:
        """For a sweep."""
        arrays = {"lower": self.lower, "upper": self.upper}
        if self.labels is not None:
            return make_table(arrays | {"label": self.labels})
        least, most = self.ranges(np.arange(len(self)))
        return make_table(arrays | {"output_lower": least[:, None], "output_upper": most[:, None]})


def around(x: Floats, radius: float | Floats, low: float = -np.inf, high: float = np.inf) -> tuple[Floats, Floats]:
    """Boxes of this radius inside the valid range."""
    return np.maximum(x - radius, low), np.minimum(x + radius, high)


def made(places: Places, net: Net, radius: float) -> Boxes:
    """Boxes around labelled points of the network's family.

    hcas: points of the grid. concrete, powerplant: test inputs; a radius of 1 is half of the test range of each
    feature. mnist: the first test images, of our own networks the first that they were not trained on. digits: test
    images of 8 x 8 pixels.
    """
    model = net.read(places)
    if net.family in of.UCI_FILES:
        x, y = of.regression(places, net.family)
        rows, delta, half = places.some(len(x)), SHARE * float(np.ptp(y)), np.ptp(x, axis=0) / 2
        ends = around(x[rows], radius * half)
        return Boxes(net.name, net.family, model, *ends, least=y[rows] - delta, most=y[rows] + delta)
    x, labels = labelled(places, net)
    valid = (-np.inf, np.inf) if net.family == "hcas" else (0.0, 1.0)
    return Boxes(net.name, net.family, model, *around(x, radius, *valid), labels)


def labelled(places: Places, net: Net) -> tuple[Floats, Labels]:
    """Some points (N, n) of a classifier's family, and their labels (N,)."""
    if net.family == "mnist":
        x, labels = of.mnist(places)
        rows = (of.mnist_held_out(places) if net.ours else np.arange(len(x)))[: places.limit]
        return x[rows], labels[rows]
    x, labels = of.digits() if net.family == "digits" else (of.hcas_grid(places), of.hcas_labels_of(places, net.name))
    rows = places.some(len(x))
    return x[rows], labels[rows]
