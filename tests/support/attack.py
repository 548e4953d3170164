"""A search for weights and inputs that contradict a bound: gradients to the corners, exact arithmetic at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.engine import RowBounds
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Param
from support import exact

STARTS, STEPS = 8, 3


@dataclass
class Falsifier:
    """Lowest values found of the rows C y + G x, for each weight box, item and row.

    Weights are center + t * scale * spread with t in [-1, 1] and inputs are numbers of the box, so that every point
    found is in its box exactly and can be judged in exact arithmetic.
    """

    network: Network
    weights: WeightBoxes
    lower: Tensor
    upper: Tensor
    C: Tensor
    G: Tensor
    found: list[dict[str, Any]] = field(default_factory=list)

    def search(self, rng: np.random.Generator) -> None:
        """Random starts, then steps to the corners that the gradient points at; everything on the way is kept."""
        for k in range(max(self.weights.count, len(self.lower) if self.lower.dim() == 3 else 1)):
            for item in range(self.C.shape[0]):
                for row in range(self.C.shape[1]):
                    self._descend(rng, k, item, row)

    def check(self, bounds: RowBounds) -> None:
        """Compare with every point found: all of them in float64, the lowest one exactly."""
        for point in self.found:
            k, item, row = point["place"]
            lower = bounds.lower[k, item, row].item()
            size = bounds.magnitude[k, item]
            assert (point["values"] >= lower - 1e-9 * (1 + abs(lower))).all(), (point["place"], lower)
            assert (point["outputs"].abs() <= size * (1 + 1e-9) + 1e-300).all(), (point["place"], size)
            assert exact.at_most(Fraction(lower), point["exact"]), (point["place"], lower, float(point["exact"]))
            form = bounds.form
            if form is not None:
                slope = exact.fractions(form.slope[min(k, len(form.slope) - 1), item, row])
                below = slope @ point["x"] + Fraction(form.offset[k, item, row].item())
                assert exact.at_most(below, point["exact"]), (point["place"], float(below), float(point["exact"]))

    def _sides(self, k: int, item: int) -> tuple[Tensor, Tensor]:
        return (
            (self.lower[k, item], self.upper[k, item])
            if self.lower.dim() == 3
            else (self.lower[item], self.upper[item])
        )

    def _descend(self, rng: np.random.Generator, k: int, item: int, row: int) -> None:
        low, high = self._sides(k, item)
        scale = self.weights.scale[min(k, len(self.weights.scale) - 1), min(item, self.weights.scale.shape[1] - 1)]
        centers = {name: c[min(k, len(c) - 1)] for name, c in self.weights.centers.items()}
        radii = {name: scale * self.weights.spreads.get(name, torch.zeros_like(c)) for name, c in centers.items()}
        ts = {name: torch.as_tensor(rng.integers(-4, 5, size=(STARTS, *c.shape)) / 4.0) for name, c in centers.items()}
        x = low + torch.as_tensor(rng.random((STARTS, 1, len(low)))) * (high - low)
        x = torch.minimum(torch.maximum(x, low), high)
        points, values, outputs = [], [], []
        for _ in range(STEPS):
            params = {name: (centers[name] + ts[name] * radii[name]).requires_grad_() for name in centers}
            x = x.detach().requires_grad_()
            # an output that depends on no weight or input has no gradient: keep such points where they are
            y = evaluate(self.network, x, params) if params else evaluate(self.network, x[:, 0])[:, None]
            y = y.expand(STARTS, 1, -1)
            value = (y[:, 0] @ self.C[item, row]) + (x[:, 0] @ self.G[item, row])
            slopes = torch.autograd.grad(value.sum(), [x, *params.values()], allow_unused=True)
            points.append((x.detach(), ts))
            values.append(value.detach())
            outputs.append(y[:, 0].detach())
            x = torch.where(slopes[0] > 0, low, torch.where(slopes[0] < 0, high, x)).detach()
            ts = {
                name: t if slope is None else torch.where(slope == 0, t, -slope.sign())
                for (name, t), slope in zip(ts.items(), slopes[1:], strict=True)
            }
        everything = torch.cat(values)
        step, start = divmod(int(everything.argmin()), STARTS)
        x, ts = points[step]
        point = exact.fractions(x[start, 0])
        sources = {
            name: exact.fractions(c)
            + exact.fractions(ts[name][start])
            * Fraction(scale.item())
            * exact.fractions(self.weights.spreads.get(name, torch.zeros_like(c)))
            for name, c in centers.items()
        }

        def slack(param: Param) -> exact.Exact:
            signs = rng.choice([-1.0, 1.0], size=param.shape)
            return exact.fractions(signs) * exact.fractions(np.broadcast_to(param.slack, param.shape))

        with mpmath.workprec(exact.BITS):
            y = exact.evaluate(self.network, point, sources, slack)
            value = exact.fractions(self.C[item, row]) @ y + exact.fractions(self.G[item, row]) @ point
        self.found.append(
            {"place": (k, item, row), "values": everything, "outputs": torch.cat(outputs), "x": point, "exact": value}
        )
