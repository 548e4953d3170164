"""The expected softmax over weight samples: the lines of all samples are added up before x is minimised over.

Guarantee: sound, rounding included; complete in the limit of small boxes, since the lines of a sample meet its outputs
at points. Each sample is a network without randomness, so that its margins have linear bounds (`bounds.engine`) and no
log excess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.attack import transformed
from bnn_vnnlib.bounds.dense.hidden import CentredForm
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.walk import LinearForm
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.decision.softmax.method import SoftmaxSource
from bnn_vnnlib.methods.decision.softmax.softmax import ClassPairs, classes
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.weight_sets import SampledWeights
from bnn_vnnlib.rounding import TINY, UNIT, gamma


@dataclass(frozen=True, eq=False)
class Samples(SoftmaxSource):
    """Softmax, or sigmoid, over the K samples of a posterior."""

    engine: Engine
    samples: SampledWeights
    sigmoid: bool

    name: ClassVar[str] = "weight samples"

    @property
    def logits(self) -> int:
        """Outputs of the graph."""
        return self.engine.network.signature.output_size

    @property
    def count(self) -> int:
        """Number of classes."""
        return self.logits + self.sigmoid

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        inputs = self.engine.network.signature.input_size
        widest = max(math.prod(node.shape) for node in self.engine.network.nodes)
        return self.samples.count * self.count**2 * max(inputs, widest)

    def value(self, x: Tensor) -> Tensor:
        """(P, m): D at points, not rounded."""
        total = x.new_zeros(len(x), self.count)
        for index in self.samples.parts():
            centers = self.samples.boxes(index).centers
            params = {name: centers[name] for name in self.samples.posterior.stored}
            y = transformed(evaluate(self.engine.network, x, params), "sigmoid" if self.sigmoid else "softmax")
            total = total + (self.samples.share[index, None, None] * y).sum(0)
        return total

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[CentredForm, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n)."""
        parts = [self._sums(index, lower, upper, outputs) for index in self.samples.parts()]
        value, size, slope, number, sure = (torch.stack(each).sum(0) for each in zip(*parts, strict=True))
        error = 2 * gamma(2 * self.samples.count + 8)  # of a sum over all samples, in whatever order
        return CentredForm(value - error * size - TINY, slope), number - error * sure - TINY

    def _sums(self, index: Tensor, lower: Tensor, upper: Tensor, outputs: Tensor) -> tuple[Tensor, ...]:
        """Weighted sums (P, R, ..) over some samples: the lines' values, the sizes that their rounding is relative to,
        their slopes, the numbers and the absolute values of these.
        """
        center = (lower + upper) / 2
        radius = torch.maximum(upper - center, center - lower) * (1 + 2 * UNIT)
        margin = self._margins(self.samples.boxes(index), lower, upper, center)
        k, p = margin.value.shape[:2]
        flat = CentredForm(margin.value.flatten(0, 1), margin.slope.flatten(0, 1))
        pairs = ClassPairs(flat, torch.zeros_like(flat.value), radius.repeat(k, 1))
        lines, numbers = classes(pairs, None).rows(outputs.expand(p, -1, -1).repeat(k, 1, 1))
        value, numbers = (part.unflatten(0, (k, p)) for part in (lines.value, numbers))
        moved = lines.reach(radius.repeat(k, 1)).unflatten(0, (k, p))
        slope, share = lines.slope.unflatten(0, (k, p)), self.samples.share[index, None, None]
        summed = share * value, share * (value.abs() + moved), share[..., None] * slope
        return tuple(part.sum(0) for part in (*summed, share * numbers, share * numbers.abs()))

    def _margins(self, weights: WeightBoxes, lower: Tensor, upper: Tensor, center: Tensor) -> CentredForm:
        """(k, P, m, m), written from the centres."""
        m = self.count
        if m == 1:  # no margins at all
            zero = lower.new_zeros(weights.count, len(lower), 1, 1)
            return CentredForm(zero, zero[..., None].expand(-1, -1, -1, -1, lower.shape[-1]))
        unit = torch.eye(m, dtype=torch.float64, device=lower.device)
        off = ~torch.eye(m, dtype=torch.bool, device=lower.device)
        pairs = (unit[:, None] - unit)[off][None, :, : self.logits]
        found = self.engine.rows(weights, lower, upper, pairs, forms=True)
        if found.form is None:
            raise ValueError("forms were asked for")
        form = found.form
        at = _at(form, center)
        value = at.new_zeros(*at.shape[:2], m, m)
        slope = at.new_zeros(*at.shape[:2], m, m, center.shape[-1])
        value[:, :, off], slope[:, :, off] = at, form.slope
        return CentredForm(value, slope)


def _at(form: LinearForm, center: Tensor) -> Tensor:
    """Lower bounds (K, P, R) of the forms at the centres (P, n)."""
    value = (form.slope @ center[..., None])[..., 0]
    size = (form.slope.abs() @ center.abs()[..., None])[..., 0]
    lower = value + form.offset - gamma(2 * center.shape[-1] + 8) * size
    return (lower - 4 * UNIT * (value.abs() + form.offset.abs()) - TINY).nan_to_num(-torch.inf, torch.inf, -torch.inf)
