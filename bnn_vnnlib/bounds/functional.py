"""Linear functionals of the softmax (and of the sigmoid) over boxes of logits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.rounding import ELEMENTARY, TINY, UNIT


def softmax_lower(coefficients: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Exact minimum (rounded down) of c . softmax(d) over lower <= d <= upper.

    Parameters
    ----------
    coefficients, lower, upper : (.., m); d may be the logits, or their differences to one of them (then 0 there),
        since the softmax does not change when all logits are shifted.

    Method: with e = exp(d) the functional is (c . e) / (1 . e), linear-fractional over a box, and its value v at the
    minimum satisfies sum_k min over e_k of (c_k - v) e_k = 0: the coordinates with c_k < v are at their upper end, the
    others at their lower end. So only the m + 1 vertices that are sorted by c need to be compared.
    Rounding: exponents are at most 745 in absolute value where they matter, so each e_k has a relative error of at most
    (745 + 64) u, and the quotient of sums of m of them an absolute error of at most 2 max|c| (900 + 2 m) u.
    """
    m = coefficients.shape[-1]
    c, order = coefficients.sort(-1)
    shape = np.broadcast_shapes(order.shape, lower.shape)
    order = order.expand(shape)
    low, high = lower.expand(shape).gather(-1, order), upper.expand(shape).gather(-1, order)
    top = high.amax(-1, keepdim=True)  # shift: the largest exponent is 0
    e_low, e_high = torch.exp(low - top), torch.exp(high - top)
    zero = torch.zeros_like(e_low[..., :1])

    def vertices(weight: Tensor | float) -> Tensor:
        """Sum of the first i terms at the upper end and the rest at the lower end, for i = 0 .. m."""
        first = torch.cat([zero, (weight * e_high).cumsum(-1)], -1)
        rest = torch.cat([(weight * e_low).flip(-1).cumsum(-1).flip(-1), zero], -1)
        return first + rest

    scale = coefficients.abs().amax(-1)
    mass = vertices(1.0)
    # a vertex whose mass is near underflow cannot be computed: fall back to the smallest coefficient there
    # products c e that underflow are off by TINY together
    value = torch.where(mass > 1e-280, (vertices(c) - TINY) / mass, c[..., :1])
    lowest = value.amin(-1) - 2 * scale * (900 + 4 * m) * UNIT
    floor = coefficients.amin(-1)
    return torch.maximum(lowest.nan_to_num(-torch.inf), floor.expand_as(lowest))


def sigmoid_lower(coefficients: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Minimum (rounded down) of sum_k c_k sigmoid(d_k) over lower <= d <= upper; all (.., m)."""
    end = torch.where(coefficients >= 0, torch.sigmoid(lower), torch.sigmoid(upper))
    value = (coefficients * end).sum(-1)
    size = coefficients.abs().sum(-1)
    return (value - size * (ELEMENTARY + 4 * coefficients.shape[-1] * UNIT) - TINY).nan_to_num(-torch.inf)
