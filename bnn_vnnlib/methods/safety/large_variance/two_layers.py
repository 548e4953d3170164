"""Failure probabilities of rows over boxes for two hidden ReLU layers of independent Gaussian weights.

At a point x* of the box that may depend on the row (where the mean gradient leads, as far as it is sure),
    P(row(x) <= bound for some x of the box) <= P(row(x*) <= bound + loss) + what the events of `change` spend,
since on these events row(x) >= row(x*) - loss for all x. The first term is bounded by `moments`. All budgets are tried,
and where they leave much `composed`, a way of its own.
The ranges of means and deviations in front of the second layer are those of `second_order`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import typical
from bnn_vnnlib.gaussian.normal import cdf
from bnn_vnnlib.gaussian.relu import Rectangle
from bnn_vnnlib.methods.safety.large_variance import composed, second_order
from bnn_vnnlib.methods.safety.large_variance import moments as at_points
from bnn_vnnlib.methods.safety.large_variance.first_layer import Rows, first_layer, moments
from bnn_vnnlib.methods.safety.large_variance.moments import RowsAtPoints
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights, last_weights
from bnn_vnnlib.methods.safety.large_variance.variation import loss, second
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import up
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

FLOOR = 4.0
"""So many times the least that the first budget leaves."""

HARD = 0.1
"""Rows that fail with more are looked at by `composed` as well: what its ranges spend is of that size."""

SURE = 3.5
"""Standard deviations of the gradient that count as sure, where x* is chosen."""

LARGEST = 2**22
"""Numbers that one row may take at once."""


def serves(chain: DenseChain) -> bool:
    """Two hidden layers, and not too many inputs and neurons."""
    return len(chain.layers) == 3 and _size(chain) <= LARGEST


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
        tried(second_, good & (found < FLOOR * floor))
        for box in question.box[good & (found > HARD)].unique().tolist() if composed.serves(chain) else ():
            some = torch.nonzero(good & (question.box == box) & (found > HARD))[:, 0]
            if len(some):
                values = composed.failures(
                    chain, question.lower[box], question.upper[box], weights.rows(some), deadline
                )
                found[some] = torch.fmin(found[some], values + blur[some])
    return found.clamp(max=1.0)


def _bounded(
    chain: DenseChain, question: RowsAtBoxes, weights: Weights, some: Tensor, deadline: Deadline, budget: _Budget
) -> Tensor:
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
        ways = at_points.failures(chain, RowsAtPoints(x, x, outputs, bound[hopeful]), deadline)
        best[hopeful] = torch.stack([best[hopeful], *(values + delta for delta, values in ways)]).amin(0)
    spent = spent[:, None] + budget.structure + bound.new_tensor(budget.shares)
    return (torch.where(known, best, 1.0) + spent).amin(1) * (1 + 1e-9)


def _ranges(chain: DenseChain, point: Tensor, budget: float) -> tuple[Rectangle | None, Tensor]:
    """Of (m, s) given h at points (Q, n), and the probability that one of them does not hold, (Q,)."""
    if not second_order.serves(chain):
        return None, point.new_zeros(len(point))
    at = second_order.at_points(chain, point, point, budget)
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
    rows = Rows(guess[:, None], (scaled**2 @ variance + moved**2 @ mean**2)[:, None], torch.zeros_like(guess)[:, None])
    gradient, spread = (part[:, 0] for part in moments(layer, rows, torch.zeros_like(layer.m)))
    point = center - (gradient / (SURE * spread)).clamp(-1.0, 1.0) * radius
    return point.nan_to_num().clamp(lower, upper), guess
