"""Failure probabilities of rows over boxes for two hidden ReLU layers of independent Gaussian weights.

1. At a point x* of the box that may depend on the row (where the mean gradient leads, as far as it is sure),
    P(row(x) <= bound for some x of the box) <= P(row(x*) <= bound + loss) + what the events of `variation` spend,
since on these events row(x) >= row(x*) - loss for all x. The first term is bounded by `moments`. All budgets are tried,
and where they leave much, 2. The ranges of means and deviations in front of the second layer are those of `moments`.

2. Rows of the network over a box as rows of one with a single hidden layer.

Let zeta_i(x) be the inputs of the second layer, D_i ~ N(mean_i, dev_i^2) the row's combination of the last one, and
[l_i, u_i] numbers in which zeta_i(x) stays for all x of the box, but for an event that is paid for. With h_i(x) =
relu(zeta_i(x)), and a line below or above relu on [l_i, u_i] (`bounds.activations.Kink`) times mean_i,
    mean_i h_i >= A_i zeta_i + low_i,
    delta_i h_i >= delta_i relu(l_i) where delta_i = D_i - mean_i > 0,    >= delta_i relu(u_i) where delta_i < 0.
As zeta(x) = W h1(x) + b,
    row(x) >= B + sum_i low_i + A . (W h1(x) + b) + sum_i delta_i (relu(l_i) or relu(u_i)):
a row A of the network with the last layer W, b, and terms besides that are independent of V, W, b and B
(`output_layer.Sides`). `one_layer` bounds such rows. The ranges are those that its rows +-e_i hold but for a
probability, see `input_ranges`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.activations import Kink
from bnn_vnnlib.bounds.dense.exponents import typical
from bnn_vnnlib.gaussian.normal import LEAST, cdf
from bnn_vnnlib.gaussian.relu import Rectangle
from bnn_vnnlib.methods.safety.large_variance import moments as at_points
from bnn_vnnlib.methods.safety.large_variance.first_layer import RowWeights, first_layer, row_moments
from bnn_vnnlib.methods.safety.large_variance.lines import Neurons, neurons
from bnn_vnnlib.methods.safety.large_variance.moments import RowsAtPoints
from bnn_vnnlib.methods.safety.large_variance.one_layer import ROWS, RowsAtBoxes, bounded, lowest, row_layers
from bnn_vnnlib.methods.safety.large_variance.output_layer import Sides, Weights, last_weights
from bnn_vnnlib.methods.safety.large_variance.variation import loss, second
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.rounding import PAID, up
from bnn_vnnlib.system.clock import Deadline, OutOfTime
from bnn_vnnlib.system.memory import at_once


@dataclass(frozen=True)
class _Budget:
    """structure, ranges : spent on single neurons, and on the means and deviations in front of the second layer given
    the first layer's outputs; shares : spent on the row, one of these.
    """

    structure: float
    ranges: float
    shares: tuple[float, ...]


BUDGETS = (_Budget(3e-3, 1e-3, (1e-3, 1e-2, 4e-2)), _Budget(3e-4, 1e-4, (1e-4, 1e-3)))
"""The second one where the first one is nearly all that a row fails with."""

_FLOOR = 4.0
"""So many times the least that the first budget leaves."""

HARD = 0.1
"""Rows that fail with more are looked at by 2 as well: what its ranges spend is of that size."""

_SURE = 3.5
"""Standard deviations of the gradient that count as sure, where x* is chosen."""

_LARGEST = 2**22
"""Numbers that one row may take at once."""


def serves(chain: DenseChain) -> bool:
    """Whether the chain has two hidden layers, and not too many inputs and neurons."""
    return len(chain.layers) == 3 and _size(chain) <= _LARGEST


def _size(chain: DenseChain) -> int:
    (first, inputs), (middle, _) = (layer.mean.shape for layer in chain.layers[:2])
    return int(middle * first * inputs)


def failures(chain: DenseChain, question: RowsAtBoxes, deadline: Deadline) -> Tensor:
    """(A,): upper bounds on the probabilities that a row holds somewhere in its box; 1 where nothing is known."""
    found = torch.ones_like(question.bound)
    weights, blur, good = last_weights(chain.layers[-1], question.outputs, question.bound)

    def tried(budget: _Budget, chosen: Tensor) -> None:
        for some in torch.nonzero(chosen)[:, 0].split(each):
            if len(some):
                deadline.check()
                values = _bounded(chain, question, weights.rows(some), some, deadline, budget) + blur[some]
                found[some] = torch.fmin(found[some], values)

    each = at_once(8 * _size(chain))
    first, second_ = BUDGETS
    floor = first.structure + first.ranges + first.shares[0]
    with suppress(OutOfTime):  # what was found before counts
        tried(first, good)
        tried(second_, good & (found < _FLOOR * floor))
        for box in question.box[good & (found > HARD)].unique().tolist() if _size(chain) <= _FEW else ():
            some = torch.nonzero(good & (question.box == box) & (found > HARD))[:, 0]
            if len(some):
                low, high = question.lower[box], question.upper[box]
                values = composed_failures(chain, low, high, weights.rows(some), deadline)
                found[some] = torch.fmin(found[some], values + blur[some])
    return found.clamp(max=1.0)


def _bounded(
    chain: DenseChain, question: RowsAtBoxes, weights: Weights, some: Tensor, deadline: Deadline, budget: _Budget
) -> Tensor:
    """Upper bounds on the failure probabilities of the rows `some`, by one budget."""
    lower, upper = question.lower[question.box[some]], question.upper[question.box[some]]
    point, guess = _worst(chain, lower, upper, weights)
    layer = first_layer(chain.layers[0], point, lower, upper)
    at = second(layer, chain.layers[1], guess, budget.structure)
    ranges, spent = _ranges(chain, point, budget.ranges)
    lost = torch.stack([loss(layer, at, weights, share, ranges) for share in budget.shares], 1)
    known = torch.isfinite(lost) & layer.served[:, None]
    bound = up(question.bound[some, None] + torch.where(known, lost, 0.0) * (1 + 1e-9))
    best = torch.ones_like(lost)
    hopeful = torch.nonzero((_margins(chain, point, question.outputs[some]) > bound.amin(1)) & known.any(1))[:, 0]
    if len(hopeful):
        x, outputs = point[hopeful], question.outputs[some[hopeful], None].expand(-1, bound.shape[1], -1)
        ways = at_points.failures_by_budget(chain, RowsAtPoints(x, x, outputs, bound[hopeful]), deadline)
        best[hopeful] = torch.stack([best[hopeful], *(values + delta for delta, values in ways)]).amin(0)
    spent = spent[:, None] + budget.structure + bound.new_tensor(budget.shares)
    return (torch.where(known, best, 1.0) + spent).amin(1) * (1 + 1e-9)


def _ranges(chain: DenseChain, point: Tensor, budget: float) -> tuple[Rectangle | None, Tensor]:
    """Ranges of the second layer's (m, s) given h at points (Q, n), if any, and the probability (Q,) that one does not
    hold.
    """
    if not at_points.sharpened(chain):
        return None, point.new_zeros(len(point))
    at = at_points.laws_at_points(chain, point, point, budget)
    return at.ranges, budget + at.law.blur


def _margins(chain: DenseChain, point: Tensor, outputs: Tensor) -> Tensor:
    """(Q,): the rows' means, about; where they do not exceed what is lost nothing can be won."""
    return (typical(chain, point)[-1].m * outputs).sum(1)


def _worst(chain: DenseChain, lower: Tensor, upper: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """(Q, n): x*, and the gradient (Q, H1) in the first layer's outputs there. Any x* of the box is sound."""
    center, radius = (lower + upper) / 2, (upper - lower) / 2
    layer = first_layer(chain.layers[0], center, lower, upper)
    at = typical(chain, center)[1]
    share = cdf(at.m / torch.sqrt(at.v + at.m_spread**2 + 1e-300))
    mean, variance = chain.layers[1].mean, chain.layers[1].variance
    scaled, moved = weights.mean * share, weights.dev * share
    guess = scaled @ mean
    rows = RowWeights(
        guess[:, None], (scaled**2 @ variance + moved**2 @ mean**2)[:, None], torch.zeros_like(guess)[:, None]
    )
    gradient, spread = (part[:, 0] for part in row_moments(layer, rows, torch.zeros_like(layer.m)))
    point = center - (gradient / (_SURE * spread)).clamp(-1.0, 1.0) * radius
    return point.nan_to_num().clamp(lower, upper), guess


# 2. As rows of one hidden layer

BUDGET = 0.04
"""Spent on the ranges of a box, and in the bound of each of its rows."""

EVENLY = 0.1
"""Share of it that all neurons have the same part of; the rest goes where ranges matter."""

_FEW = 2**16
"""Inputs times neurons of both layers, at most: ranges take some tens of milliseconds a neuron there, and with more
inputs they are too wide.
"""


def composed_failures(chain: DenseChain, lower: Tensor, upper: Tensor, weights: Weights, deadline: Deadline) -> Tensor:
    """(A,): upper bounds on the probabilities that rows over the second layer fail somewhere in one box (n,); 1 where
    nothing is known. BUDGET is in each.
    """
    at = typical(chain, (lower + upper)[None] / 2)[1]
    mean, spread = at.m[0], torch.sqrt(at.v + at.m_spread**2)[0] + LEAST
    layer, found = neurons(chain.layers[0], lower[None], upper[None]), torch.ones_like(weights.bias)
    if not layer.served[0]:
        return found
    low, high = input_ranges(chain.layers[1], layer, _levels(weights, mean, spread), deadline)
    if not bool(torch.isfinite(low + high).all()):
        return found
    high, share = torch.maximum(low, high), cdf(mean / spread)
    for some in torch.arange(len(found), device=found.device).split(ROWS):
        deadline.check()
        asked, sides, blur, good = composed(
            chain.layers[1], weights.rows(some), *(part.expand(len(some), -1) for part in (low, high, share))
        )
        values = bounded(row_layers(layer, torch.zeros_like(some)), asked, sides) + blur + layer.blur[0] + BUDGET
        found[some] = torch.where(good, values.nan_to_num(1.0), 1.0)
    return found.clamp(max=1.0)


def _levels(weights: Weights, mean: Tensor, spread: Tensor) -> Tensor:
    """(H2,): what either end of a neuron's range may fail with, BUDGET in all. Chords above relu cost where a sign is
    open, the noise of D where the neuron is active: any choice is sound.
    """
    ratio = mean / spread
    cost = (-weights.mean).clamp(min=0.0) * torch.exp(-(ratio**2) / 12) / 4 + 0.3 * weights.dev * cdf(ratio + 1)
    cost = (spread * cost).sum(0) + 1e-300
    return BUDGET / 2 * ((1 - EVENLY) * cost / cost.sum() + EVENLY / len(cost)) * (1 - PAID)


def composed(
    second: DenseLayer, weights: Weights, low: Tensor, high: Tensor, share: Tensor
) -> tuple[Weights, Sides, Tensor, Tensor]:
    """Rows over the first layer's outputs.

    Parameters
    ----------
    weights : of the rows over the second layer's outputs
    low, high : (A, H2) l and u, finite
    share : (A, H2) A_i over mean_i where mean_i > 0 and the sign of zeta_i is open, in [0, 1]

    Returns
    -------
    tuple of (Weights, Sides, Tensor, Tensor)
        the rows, with their further terms; (A,) a bound on the total variation that rounding of the rows' moments
        costs, and whether they are served
    """
    mean = weights.mean
    lines, falls = Kink().lines(0.0, low, high, torch.stack([share, share])), mean < 0
    row = mean * torch.where(falls, lines.upper_slope, lines.lower_slope)
    least = mean * torch.where(falls, lines.upper_intercept, lines.lower_intercept)
    size = ((mean.abs() + row.abs()) * torch.maximum(low.abs(), high.abs())).sum(1)
    known = weights.bias + least.sum(1) - PAID * (size + weights.bias.abs())
    rows, blur, good = last_weights(second, row, -known)
    noise = torch.sqrt(rows.bias_dev**2 + weights.bias_dev**2)
    sides = Sides(low.clamp(min=0.0), high.clamp(min=0.0), weights.dev)
    return Weights(rows.mean, rows.dev, rows.bias, noise), sides, blur, good


def input_ranges(second: DenseLayer, layer: Neurons, levels: Tensor, deadline: Deadline) -> tuple[Tensor, Tensor]:
    """(H2,), (H2,): l and u over the one box of `layer`; they do not hold with probabilities of at most `levels` (H2,)
    for each of them.
    """
    count = second.outputs
    unit = torch.eye(count, dtype=levels.dtype, device=levels.device)
    sign = torch.cat([unit, -unit])
    weights, blur, good = last_weights(second, sign, torch.zeros_like(sign[:, 0]))
    spare, found = levels.repeat(2) - blur - layer.blur[0], torch.full_like(blur, -torch.inf)
    for some in torch.arange(2 * count, device=blur.device).split(ROWS):
        deadline.check()
        found[some] = lowest(row_layers(layer, torch.zeros_like(some)), weights.rows(some), spare[some])
    found = torch.where(good, found, -torch.inf)
    return found[:count], -found[count:]
