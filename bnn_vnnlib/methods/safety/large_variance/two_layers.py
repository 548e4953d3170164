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

import numpy as np
import torch

from bnn_vnnlib.bounds.dense.exponents import typical
from bnn_vnnlib.gaussian.half_line import Floats
from bnn_vnnlib.gaussian.relu import Rectangle
from bnn_vnnlib.methods.safety.large_variance import composed, second_order
from bnn_vnnlib.methods.safety.large_variance import moments as at_points
from bnn_vnnlib.methods.safety.large_variance.first_layer import Rows, first_layer, moments
from bnn_vnnlib.methods.safety.large_variance.moments import RowsAtPoints
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights, last_weights
from bnn_vnnlib.methods.safety.large_variance.variation import loss, second
from bnn_vnnlib.network.dense_chain import DenseChain
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


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what overflows ends as infinite, or as 1
def failures(chain: DenseChain, question: RowsAtBoxes, deadline: Deadline) -> Floats:
    """(A,): upper bounds on the probabilities that a row holds somewhere in its box; 1 where nothing is known."""
    found = np.ones(len(question.box))
    weights, blur, good = last_weights(chain.layers[-1], question.outputs, question.bound)

    def tried(budget: _Budget, chosen: np.ndarray) -> None:
        for some in np.split(chosen, range(each, len(chosen), each)):
            if len(some):
                deadline.check()
                values = _bounded(chain, question, weights.rows(some), some, deadline, budget) + blur[some]
                found[some] = np.fmin(found[some], values)

    each = at_once(8 * _size(chain))
    first, second_ = BUDGETS
    floor = first.structure + first.ranges + first.shares[0]
    with suppress(OutOfTime):  # what was found before counts
        tried(first, np.flatnonzero(good))
        tried(second_, np.flatnonzero(good & (found < FLOOR * floor)))
        for box in np.unique(question.box[found > HARD]) if composed.serves(chain) else ():
            some = np.flatnonzero(good & (question.box == box) & (found > HARD))
            if len(some):
                values = composed.failures(
                    chain, question.lower[box], question.upper[box], weights.rows(some), deadline
                )
                found[some] = np.fmin(found[some], values + blur[some])
    return np.minimum(found, 1.0)


def _bounded(
    chain: DenseChain, question: RowsAtBoxes, weights: Weights, some: np.ndarray, deadline: Deadline, budget: _Budget
) -> Floats:
    lower, upper = question.lower[question.box[some]], question.upper[question.box[some]]
    point, guess = _worst(chain, lower, upper, weights)
    layer = first_layer(chain.layers[0], point, lower, upper)
    at = second(layer, chain.layers[1], guess, budget.structure)
    ranges, spent = _ranges(chain, point, budget.ranges)
    lost = np.stack([loss(layer, at, weights, share, ranges) for share in budget.shares], 1)
    known = np.isfinite(lost) & layer.served[:, None]
    bound = np.nextafter(question.bound[some, None] + np.where(known, lost, 0.0) * (1 + 1e-9), np.inf)
    best = np.ones_like(lost)
    hopeful = np.flatnonzero((_margins(chain, point, question.outputs[some]) > bound.min(1)) & known.any(1))
    if len(hopeful):
        x = torch.as_tensor(point[hopeful])
        outputs = torch.as_tensor(question.outputs[some[hopeful]])[:, None].expand(-1, bound.shape[1], -1)
        ways = at_points.failures(chain, RowsAtPoints(x, x, outputs, torch.as_tensor(bound[hopeful])), deadline)
        best[hopeful] = np.stack([best[hopeful], *(values.numpy() + delta for delta, values in ways)]).min(0)
    spent = spent + budget.structure
    return (np.where(known, best, 1.0) + spent[:, None] + np.array(budget.shares)).min(1) * (1 + 1e-9)


def _ranges(chain: DenseChain, point: Floats, budget: float) -> tuple[Rectangle | None, Floats]:
    """Of (m, s) given h at points (Q, n), and the probability that one of them does not hold, (Q,)."""
    if not second_order.serves(chain):
        return None, np.zeros(len(point))
    x = torch.as_tensor(point)
    at = second_order.at_points(chain, x, x, budget)
    return at.ranges, budget + at.law.blur.numpy()


def _margins(chain: DenseChain, point: Floats, outputs: Floats) -> Floats:
    """(Q,): the rows' means, about; where they do not exceed what is lost nothing can be won."""
    mean = typical(chain, torch.as_tensor(point))[-1].m.numpy()
    return np.asarray((mean * outputs).sum(1))


def _worst(chain: DenseChain, lower: Floats, upper: Floats, weights: Weights) -> tuple[Floats, Floats]:
    """(Q, n): x*, and the gradient (Q, H1) in the first layer's outputs there. Any x* of the box is sound."""
    center, radius = (lower + upper) / 2, (upper - lower) / 2
    layer = first_layer(chain.layers[0], center, lower, upper)
    at = typical(chain, torch.as_tensor(center))[1]
    dense = chain.layers[1]
    share = torch.special.ndtr(at.m / torch.sqrt(at.v + at.m_spread**2 + 1e-300)).numpy()
    mean, variance = dense.mean.numpy(), dense.variance.numpy()
    scaled, moved = weights.mean * share, weights.dev * share
    guess = scaled @ mean
    rows = Rows(guess[:, None], (scaled**2 @ variance + moved**2 @ mean**2)[:, None], np.zeros_like(guess)[:, None])
    gradient, spread = (part[:, 0] for part in moments(layer, rows, np.zeros_like(layer.m)))
    point = center - np.clip(gradient / (SURE * spread), -1.0, 1.0) * radius
    return np.clip(np.nan_to_num(point), lower, upper), guess
