"""Rows of a network with two hidden ReLU layers over a box, as rows of one with a single one.

Let zeta_i(x) be the inputs of the second layer, D_i ~ N(mean_i, dev_i^2) the row's combination of the last one, and
[l_i, u_i] numbers in which zeta_i(x) stays for all x of the box, but for an event that is paid for. With h_i(x) =
relu(zeta_i(x)), and a line below or above relu on [l_i, u_i] (`bounds.activations.Kink`) times mean_i,
    mean_i h_i >= A_i zeta_i + low_i,
    delta_i h_i >= delta_i relu(l_i) where delta_i = D_i - mean_i > 0,    >= delta_i relu(u_i) where delta_i < 0.
As zeta(x) = W h1(x) + b,
    row(x) >= B + sum_i low_i + A . (W h1(x) + b) + sum_i delta_i (relu(l_i) or relu(u_i)):
a row A of the network with the last layer W, b, and terms besides that are independent of V, W, b and B
(`output_layer.Sides`). `one_layer` bounds such rows. The ranges are those that its rows +-e_i hold but for a
probability, see `ranges`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnn_vnnlib.bounds.activations import Kink
from bnn_vnnlib.bounds.dense.exponents import typical
from bnn_vnnlib.gaussian.normal import LEAST, cdf
from bnn_vnnlib.methods.safety.large_variance.lines import Neurons, neurons
from bnn_vnnlib.methods.safety.large_variance.one_layer import ROWS, bounded, lowest, rows_at
from bnn_vnnlib.methods.safety.large_variance.output_layer import Sides, Weights, last_weights
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.rounding import PAID
from bnn_vnnlib.system.clock import Deadline

BUDGET = 0.04
"""Spent on the ranges of a box, and in the bound of each of its rows."""

EVENLY = 0.1
"""Share of it that all neurons have the same part of; the rest goes where ranges matter."""

LARGEST = 2**16
"""Inputs times neurons of both layers, at most: ranges take some tens of milliseconds a neuron there, and with more
inputs they are too wide.
"""


def serves(chain: DenseChain) -> bool:
    """Two hidden layers, and few inputs."""
    (first, count), (middle, _) = (layer.mean.shape for layer in chain.layers[:2])
    return len(chain.layers) == 3 and first * count * middle <= LARGEST


def failures(chain: DenseChain, lower: Tensor, upper: Tensor, weights: Weights, deadline: Deadline) -> Tensor:
    """(A,): upper bounds on the probabilities that rows over the second layer fail somewhere in one box (n,); 1 where
    nothing is known. BUDGET is in each.
    """
    at = typical(chain, (lower + upper)[None] / 2)[1]
    mean, spread = at.m[0], torch.sqrt(at.v + at.m_spread**2)[0] + LEAST
    layer, second, found = (
        neurons(chain.layers[0], lower[None], upper[None]),
        chain.layers[1],
        torch.ones_like(weights.bias),
    )
    if not layer.served[0]:
        return found
    low, high = ranges(second, layer, _levels(weights, mean, spread), deadline)
    if not bool(torch.isfinite(low + high).all()):
        return found
    high, share = torch.maximum(low, high), cdf(mean / spread)
    for some in torch.arange(len(found), device=found.device).split(ROWS):
        deadline.check()
        asked, sides, blur, good = composed(
            second, weights.rows(some), *(part.expand(len(some), -1) for part in (low, high, share))
        )
        values = bounded(rows_at(layer, torch.zeros_like(some)), asked, sides) + blur + layer.blur[0] + BUDGET
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


def ranges(second: DenseLayer, layer: Neurons, levels: Tensor, deadline: Deadline) -> tuple[Tensor, Tensor]:
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
        found[some] = lowest(rows_at(layer, torch.zeros_like(some)), weights.rows(some), spare[some])
    found = torch.where(good, found, -torch.inf)
    return found[:count], -found[count:]
