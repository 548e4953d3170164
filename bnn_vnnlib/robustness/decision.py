"""Bounds on the decision D(x) = E_w[s(f^w(x))], s the identity, the softmax or the sigmoid, over all x of each item.

The property's own rows a.D(x) + g.x are bounded, not only the outputs one by one.
Guarantee: sound with probability 1, rounding included; not complete.
Boxes: on box k the row is at least v_k, everywhere at least `floor` (s bounded), so layers of boxes give a lower bound
on its expectation (`mass.layered_lower`). In regression there is no floor; what lies outside the boxes is paid by
|E[row 1_off]| <= ||row|| sqrt(P(off)) with the second moments of `moments`.
Samples: the weighted sum of each sample's bound.
Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks (decision robustness).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.engine import RowBounds
from bnn_vnnlib.bounds.rounding import TINY, UNIT, gamma
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.clock import OutOfTime
from bnn_vnnlib.model.network import GaussianDiagonal, Network, WeightSamples
from bnn_vnnlib.model.posterior import sample
from bnn_vnnlib.robustness import attack, weight_sets
from bnn_vnnlib.robustness.attack import Attack
from bnn_vnnlib.robustness.mass import BoxUnion, CentredUnion, layered_lower
from bnn_vnnlib.robustness.moments import output_norms
from bnn_vnnlib.robustness.outputs import OutputBounds, over_box
from bnn_vnnlib.robustness.problem import Problem
from bnn_vnnlib.robustness.refute import refuted_by
from bnn_vnnlib.robustness.safety import feasible, point_box

MASSES = np.array([0.3, 0.7, 0.9, 0.97, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12])
"""Masses of the nested boxes."""

MEMORY = 2**22
"""Numbers (boxes x items x rows x outputs) of one chunk, at most about."""

PREDICTIVE = 32
"""Weight samples that stand for the predictive in an attack."""


@dataclass(frozen=True, eq=False)
class Expectation:
    """E_w of rows over the transformed outputs, bounded below by weight boxes or by weight samples.

    weights : K boxes, or K samples; mass : of the unions of the boxes, or the samples' probabilities (K,)
    """

    bounds: OutputBounds
    posterior: GaussianDiagonal | WeightSamples
    weights: WeightBoxes
    mass: BoxUnion | Tensor

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.D(x) + g.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        size = self.weights.count * outputs.shape[1] * outputs.shape[2]
        step = max(1, MEMORY // size)

        def part(start: int) -> Tensor:
            some = slice(start, start + step)
            return self._lower(lower[some], upper[some], _some(outputs, some), _some(inputs, some))

        return torch.cat([part(start) for start in range(0, len(lower), step)])

    def upper(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Upper bounds (N, R), by the lower bounds of the negated rows."""
        return -self.lower(lower, upper, -outputs, None if inputs is None else -inputs)

    def _lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> Tensor:
        value = self.bounds.rows(self.weights, lower, upper, outputs, inputs).lower
        if isinstance(self.mass, Tensor):
            return _weighted_sum(self.mass, value)
        value = value.expand(self.weights.count, -1, -1).movedim(0, -1)  # (N, R, K)
        match self.bounds.transform:
            case "identity":
                return self._unbounded(self.mass, value, lower, upper, outputs, inputs)
            case "softmax":
                floor = outputs.amin(-1)
            case "sigmoid":
                floor = outputs.clamp(max=0).sum(-1)
                floor = floor - gamma(outputs.shape[-1]) * outputs.abs().sum(-1)
        floor = floor.expand(value.shape[:-1])
        if inputs is not None:
            floor = floor + over_box(inputs, lower, upper)[0]
            floor = floor - 2 * UNIT * floor.abs()
        return layered_lower(value, self.mass.union_lower, floor)

    def _unbounded(
        self, union: BoxUnion, value: Tensor, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None
    ) -> Tensor:
        """E[row] >= E[row 1_U] - ||row|| sqrt(P(off)), U a union of boxes; best over the nested choices of U."""
        network = self.bounds.engine.network
        norm = self._row_norm(network, lower, upper, outputs, inputs)
        count = value.shape[-1]
        choices = range(1, count + 1) if isinstance(union, CentredUnion) else (count,)
        found = [_on_union(value[..., :k], k, count, union, norm) for k in choices]
        return torch.stack(found).amax(0).nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def _row_norm(
        self, network: Network, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None
    ) -> Tensor:
        """(N, R): sup over x of sqrt(E (c.f + g.x)^2), rounded up."""
        if not isinstance(self.posterior, GaussianDiagonal):
            raise ValueError("moments are for Gaussian posteriors")
        boxes = weight_sets.centred(network, self.posterior, lower.device)
        norms = output_norms(network, boxes, lower, upper)
        total = _product(outputs.abs(), norms)
        if inputs is not None:
            total = total + _product(inputs.abs(), torch.maximum(lower.abs(), upper.abs()))
        return total * (1 + gamma(outputs.shape[-1] + lower.shape[-1])) + TINY


def _some(rows: Tensor | None, part: slice) -> Any:
    return rows if rows is None or len(rows) == 1 else rows[part]


def _weighted_sum(share: Tensor, value: Tensor) -> Tensor:
    """sum_k p_k value_k, rounded down: (K,) and (K, N, R) -> (N, R)."""
    share = share[:, None, None]
    error = 2 * gamma(2 * len(share)) * (share * value.abs()).sum(0) + TINY
    return ((share * value).sum(0) - error).nan_to_num(-torch.inf)


def _product(rows: Tensor, values: Tensor) -> Tensor:
    """(N or 1, R, d) times (N, d) -> (N, R), with 0 * inf = 0: a row does not pay for outputs that it does not use."""
    return torch.where(rows > 0, rows * values[:, None], 0.0).sum(-1)


def _on_union(value: Tensor, used: int, count: int, union: BoxUnion, norm: Tensor) -> Tensor:
    """The bound from the first `used` of `count` boxes."""
    member = torch.arange(count, device=value.device) < used
    inside, most = union.union_lower(member), union.union_upper(member)

    def mass(chosen: Tensor) -> Tensor:
        return union.union_lower(torch.nn.functional.pad(chosen, (0, count - used)))

    anchor = value.amin(-1)
    gain = layered_lower(value, mass, anchor) - anchor
    base = torch.where(anchor >= 0, anchor * inside, anchor * most)
    tail = norm * torch.sqrt(1 - inside) if float(inside) < 1 else torch.zeros_like(norm)
    return gain + base - tail - 16 * UNIT * (gain.abs() + 2 * anchor.abs() + tail.abs())


@dataclass(frozen=True, eq=False)
class DecisionOutcome:
    """Per item: bounds on the rows (N, R) and on the outputs (N, m), refuted (N,), violated (N,) at point (N, n)."""

    row_lower: Tensor
    row_upper: Tensor
    lower: Tensor
    upper: Tensor
    refuted: Tensor
    violated: Tensor
    point: Tensor
    complete: bool


def expectation(
    bounds: OutputBounds, posterior: GaussianDiagonal | WeightSamples, device: torch.device, *, boxes: str, number: int,
    margin: float | None, seed: int,
) -> Expectation:  # fmt: skip
    """Prepare the boxes of a Gaussian posterior; samples need none."""
    network = bounds.engine.network
    if isinstance(posterior, WeightSamples):
        return Expectation(bounds, posterior, *weight_sets.sample_weights(network, posterior, device))
    if boxes == "sampled":
        width = 2.5 if margin is None else margin
        family = weight_sets.scattered_family(network, posterior, number, width, seed, device)
    else:
        family = weight_sets.centred_family(network, posterior, MASSES, device, margin=margin)
    return Expectation(bounds, posterior, family.weights, family.union)


def decide(expect: Expectation, problem: Problem, settings: Attack) -> DecisionOutcome:
    """Bound D over every item, refute its cases, and look for a point whose decision is proved to be a violation."""
    rows, n = problem.rows, len(problem)
    r, m = rows.outputs.shape[1:]
    lost = problem.lower.new_full((n, 2 * (r + m)), -torch.inf)
    low, complete = lost, False
    violated = torch.zeros(n, dtype=torch.bool, device=lost.device)
    refuted, point = violated, attack.inner_box(problem)[0]
    try:
        low = _everything(expect, problem)
        refuted = _refuted(expect, problem, *_split(low, r, m))
        violated, point = _violation(expect, problem, settings, refuted)
        complete = True
    except OutOfTime:
        pass
    row_low, row_high, out_low, out_high = _split(low, r, m)
    return DecisionOutcome(row_low, row_high, *_clipped(expect, out_low, out_high), refuted, violated, point, complete)


def _everything(expect: Expectation, problem: Problem) -> Tensor:
    """Lower bounds of the rows, the negated rows, the outputs and the negated outputs, in one pass over the network."""
    rows = problem.rows
    unit = torch.eye(rows.outputs.shape[-1], dtype=torch.float64, device=problem.lower.device)
    unit = unit.expand(len(rows.outputs), -1, -1)
    outputs = torch.cat([rows.outputs, -rows.outputs, unit, -unit], 1)
    inputs = rows.inputs
    if inputs is not None:
        none = inputs.new_zeros(len(inputs), 2 * unit.shape[1], inputs.shape[-1])
        inputs = torch.cat([inputs, -inputs, none], 1)
    return expect.lower(problem.lower, problem.upper, outputs, inputs)


def _split(low: Tensor, r: int, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lower and upper bounds of the rows (N, r), then of the outputs (N, m)."""
    row, negated_row, out, negated_out = low.split([r, r, m, m], -1)
    return row, -negated_row, out, -negated_out


def _clipped(expect: Expectation, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Expected probabilities lie in [0, 1]."""
    return (low, high) if expect.bounds.transform == "identity" else (low.clamp(min=0.0), high.clamp(max=1.0))


def _refuted(
    expect: Expectation, problem: Problem, low: Tensor, _high: Tensor, out_low: Tensor, out_high: Tensor
) -> Tensor:
    magnitude = torch.maximum(out_low.abs(), out_high.abs()).nan_to_num(torch.inf, torch.inf)
    found = RowBounds(low[None], None, magnitude[None])
    return refuted_by(problem, found, expect.bounds.engine.deadline)[0].all(-1)


def _violation(expect: Expectation, problem: Problem, settings: Attack, refuted: Tensor) -> tuple[Tensor, Tensor]:
    """(N,), (N, n): attack the sampled predictive on the items that are left, then bound D at the point found."""
    violated, point = torch.zeros_like(refuted), attack.inner_box(problem)[0]
    index = torch.nonzero(~refuted)[:, 0]
    if len(index) == 0:
        return violated, point
    part = problem.items(index)
    network = expect.bounds.engine.network
    generator = torch.Generator().manual_seed(settings.seed)
    params = {k: v.to(point) for k, v in sample(network, expect.posterior, PREDICTIVE, generator).items()}
    x = attack.run(network, part, params, _smaller(settings), expect.bounds.transform, aim="mean")[0][0]
    violated[index], point[index] = violates(expect, part, x), x
    return violated, point


def _smaller(settings: Attack) -> Attack:
    """Every step of an attack on the predictive costs PREDICTIVE networks."""
    return replace(settings, restarts=min(settings.restarts, 8), pool=min(settings.pool, 8))


def violates(expect: Expectation, problem: Problem, x: Tensor) -> Tensor:
    """(N,): x (N, n) lies in its item and all rows of one case hold for D(x), proved."""
    rows = problem.rows
    lower, upper = point_box(problem, x)
    above = expect.upper(lower, upper, rows.outputs, rows.inputs)
    true = torch.where(rows.strict, above < rows.inner_bound, above <= rows.inner_bound)
    return (problem.all_rows(true) & problem.exists).any(-1) & feasible(problem, x)
