"""The expected softmax by P_safe: with which probability one class leads by a margin, for all inputs of a box.

Guarantee: sound with probability 1, rounding included; any graph and posterior that P_safe is bounded for.
Method. For a class i and a margin t >= 0 let E_t be the event that f_i - f_j > t for all j != i and all x of the box;
P_t <= P(E_t) is a lower bound on the P_safe of the property that forbids f_i - f_j <= t.
1. On E_t the softmax s(x) lies in the simplex with s_j <= a s_i, a = exp(-t). A row c . s is least at a corner of that
   polytope: s_i = 1 / (1 + a q), s_j = a s_i for q of the other classes and 0 for the rest, and for a given q at those
   with the smallest coefficients. w_t is the least over q = 0 .. m - 1.
2. w_t grows with t, since the polytopes shrink. Off all events the row is at least its smallest coefficient w_0.
3. For t_1 < .. < t_K the layers add up: E[c . s(x)] >= w_0 + sum_k (w_(t_k) - w_(t_(k-1))) P_(t_k), at every x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.problem.outputs import over_box
from bnn_vnnlib.problem.problem import Problem, Rows
from bnn_vnnlib.rounding import ELEMENTARY, UNIT, gamma

MARGINS = (1.0, 3.0, 6.0)
"""Values of t: the first decides which class is the likeliest, the others say how likely it is."""


@dataclass(frozen=True, eq=False)
class SoftmaxBySafety:
    """A `decision.method.RowMethod` for outputs under a softmax.

    safe : lower bounds (I,) on the P_safe of every instance of a problem over the logits
    """

    safe: Callable[[Problem], Tensor]

    name: ClassVar[str] = "P_safe"

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds; outputs (N or 1, R, m), inputs alike or None."""
        outputs = outputs.expand(len(lower), -1, -1)
        top = outputs.argmax(-1)  # (N, R): the class whose lead the row profits from
        item, leader = torch.nonzero(torch.zeros_like(outputs[:, 0]).scatter(1, top, 1.0), as_tuple=True)
        proved = lower.new_zeros(len(MARGINS), len(lower), outputs.shape[-1])  # (K, N, m)
        proved[:, item, leader] = self._leads(lower[item], upper[item], leader, outputs.shape[-1])
        mass = proved.gather(-1, top.expand(len(MARGINS), -1, -1))  # (K, N, R)
        value = worst = outputs.amin(-1)
        for margin, probability in zip(MARGINS, mass, strict=True):
            least = torch.maximum(_least(outputs, margin), worst)  # of step 1, rounded down
            value, worst = value + (least - worst).clamp(min=0) * probability, least
        value = value - gamma(8 * len(MARGINS)) * outputs.abs().amax(-1)
        if inputs is None:
            return value
        moved = over_box(inputs, lower, upper)[0]
        return value + moved - 2 * UNIT * (value.abs() + moved.abs())

    def _leads(self, lower: Tensor, upper: Tensor, leader: Tensor, m: int) -> Tensor:
        """(K, P): lower bounds on P(E_t) for every margin, of P boxes (P, n) and the class that leads in each."""
        count, device, bound = len(lower), lower.device, lower.new_tensor(MARGINS)
        unit = torch.eye(m, dtype=torch.float64, device=device)
        others = torch.arange(m - 1, device=device) + (torch.arange(m - 1, device=device) >= leader[:, None])
        rows = (unit[leader][:, None] - unit[others]).repeat(len(MARGINS), 1, 1)  # (K P, m - 1, m)
        bound = bound.repeat_interleave(count)[:, None].expand(-1, m - 1)
        number = torch.arange(m - 1, device=device)[None]
        strict, exists = (torch.full((1, m - 1), flag, dtype=torch.bool, device=device) for flag in (False, True))
        half_spaces = Rows(rows, None, bound, bound, strict, number, torch.full_like(number, -1))
        low, high = (side.repeat(len(MARGINS), 1) for side in (lower, upper))
        items = torch.arange(len(low), device=device)
        problem = Problem(low, high, low, high, half_spaces, exists, None, items, len(low))
        return self.safe(problem).reshape(len(MARGINS), count)


def _least(outputs: Tensor, margin: float) -> Tensor:
    """w_t (N, R) of rows (N, R, m) whose largest coefficient is that of the class that leads."""
    m = outputs.shape[-1]
    a = torch.exp(outputs.new_tensor(-margin)) * (1 + ELEMENTARY)
    ordered = outputs.sort(-1).values
    taken = torch.nn.functional.pad(ordered[..., :-1].cumsum(-1), (1, 0))  # of the q smallest coefficients
    corner = 1 / (1 + a * torch.arange(m, device=outputs.device))
    value = (corner * (ordered[..., -1:] + a * taken)).amin(-1)
    return value - 8 * gamma(m + 8) * outputs.abs().amax(-1) - 4 * m * ELEMENTARY * outputs.abs().amax(-1)
