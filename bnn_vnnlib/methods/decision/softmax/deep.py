"""The expected softmax of dense networks of any depth, by exponential moments (`exponents`).

Guarantee: sound with probability 1, rounding included.

From exponential moments of logits to linear bounds of the expected softmax (`_questions`).
Let E[exp(u . f(x)) 1_G] <= exp T_u(x), T linear, P(G) >= 1 - delta; S_i = sum over j of exp(f_j - f_i), j other than i.
Below:  softmax_i = 1 / (1 + S) and, for 0 < lam <= 1, S^lam <= sum_j exp(lam (f_j - f_i)), whose mean on G is at most
U(x) = sum_j exp T. With s >= (1 - lam) / lam, b = s^(1 - lam) / (lam (1 + s)^2), a = 1 / (1 + s) + s / (lam (1 + s)^2),
    1 / (1 + S) >= a - b S^lam  for all S >= 0,   hence   D_i >= a (1 - delta) - b U(x).
Proof: as a function of u = S^lam the left side is concave up to S = (1 / lam - 1) / (1 / lam + 1), then convex. The
right side is its tangent at S = s, for s = (1 - lam) / lam the one through (0, 1); so those from there on lie below. It
still holds with a larger b and a smaller a. (lam = 1 is Jensen's inequality; smaller ones bear larger deviations.)
Above:  log softmax_i = f_i - log sum exp f <= (e_i - p) . f - H(p) for every probability vector p (Gibbs), H the
entropy. So D_i <= delta + exp(T_u(x) - H(p)) with u = e_i - p.
Here p = (1 - lam) e_i + lam q, q a probability vector without e_i: lam = 1 - softmax_i(E f), q in proportion to
softmax(E f), is the tangent of log softmax at E f.
Exponentials of linear functions lie below their chords over a box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import Exponents, typical
from bnn_vnnlib.bounds.dense.hidden import CentredForm, mixed
from bnn_vnnlib.methods.decision.method import picked
from bnn_vnnlib.methods.decision.softmax.method import SoftmaxSource
from bnn_vnnlib.methods.decision.softmax.one_layer import OneLayerSoftmax
from bnn_vnnlib.methods.decision.softmax.softmax import GRAIN, HUGE, Classes, entropy, on_a_grid
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import ELEMENTARY, UNIT
from bnn_vnnlib.system.clock import Deadline

BELOW = (1.0, 0.75, 0.5, 0.375)
"""lam of the lower bounds, besides 1 - softmax_i those of the upper bounds."""

_ABOVE = (1.0, 0.5)
"""Values of lam for the upper bounds, besides 1 - softmax_i(E f)."""


@dataclass(frozen=True, eq=False)
class _Questions:
    """Rows u whose exponential moments are needed: below (P, C, L, m - 1, m) for the classes wanted (P, C), above
    (P, L', m, m), and entropy (P, L', m) : lower bounds on H(p).
    """

    wanted: Tensor
    below: Tensor
    above: Tensor
    entropy: Tensor

    @property
    def rows(self) -> Tensor:
        """All rows (P, R, m), those from below first."""
        return torch.cat([self.below.flatten(1, 3), self.above.flatten(1, 2)], 1)

    def classes(self, found: CentredForm, radius: Tensor, delta: float) -> Classes:
        """Bounds on every D_i from lines below -T of the rows; those that are not wanted get 0 from below."""
        count = math.prod(self.below.shape[1:4])
        low, high = (
            CentredForm(found.value[:, part], found.slope[:, part]) for part in (slice(count), slice(count, None))
        )
        chords = _chords(low, radius)
        shape = self.below.shape[1:4]
        chords = CentredForm(chords.value.unflatten(1, shape), chords.slope.unflatten(1, shape))
        below, least = _below(chords, radius, delta)
        shape = self.above.shape[1:3]
        paid = high.value.unflatten(1, shape) + self.entropy
        paid = paid - 2 * UNIT * (paid.abs() + self.entropy.abs())
        above, most = _above(CentredForm(paid, high.slope.unflatten(1, shape)), radius, delta)
        return self._all(below, least, above, most, radius)

    def _all(self, below: CentredForm, least: Tensor, above: CentredForm, most: Tensor, radius: Tensor) -> Classes:
        m = self.above.shape[-1]
        lines = CentredForm(
            below.value.new_zeros(len(radius), m).scatter(1, self.wanted, below.value),
            below.slope.new_zeros(len(radius), m, radius.shape[-1]).scatter(
                1, self.wanted[..., None].expand_as(below.slope), below.slope
            ),
        )
        low = torch.zeros_like(lines.value).scatter(1, self.wanted, least)
        rest = 1 - (low.sum(-1, keepdim=True) - low) + 4 * m * UNIT
        return Classes(lines, above, low, torch.minimum(most, rest), radius)


def _questions(mean: Tensor, wanted: Tensor) -> _Questions:
    """The rows whose exponential moments bound the classes `wanted`, chosen for expected logits of about `mean` (P, m);
    any mean is sound.
    """
    boxes, m = mean.shape
    unit = torch.eye(m, dtype=mean.dtype, device=mean.device)
    other = (unit - unit[:, None])[~unit.bool()].reshape(m, m - 1, m)  # e_j - e_i
    powers = mean.new_tensor(BELOW)
    below = powers[:, None, None] * other[wanted][:, :, None]
    p = torch.softmax(mean, -1)
    others = torch.softmax(mean[:, None].expand(-1, m, -1).masked_fill(unit.bool(), -torch.inf), -1)
    q = on_a_grid(others)[:, None]
    tangent = (((1 - p) * GRAIN).ceil() / GRAIN).clamp(1 / GRAIN, 1.0)
    share = torch.stack([tangent, *(torch.full_like(p, power) for power in _ABOVE)], 1)[..., None]
    mixed_in = (1 - share) * unit + share * q
    above = share * (unit - q)
    return _Questions(wanted, below, above.reshape(boxes, -1, m, m), entropy(mixed_in))


def _chords(lines: CentredForm, radius: Tensor) -> CentredForm:
    """Lines below -exp(T) from lines below -T; -inf where that is of no use."""
    reach = lines.reach(radius)
    middle = -lines.value
    slack = 4 * UNIT * (middle.abs() + reach)
    start, end = middle - reach + slack, middle + reach + slack
    left, right = torch.exp(start.clamp(-HUGE, HUGE)), torch.exp(end.clamp(-HUGE, HUGE))
    up = (1 + ELEMENTARY) * (1 + 16 * UNIT)
    moves = reach > 1e-12
    rate = torch.where(moves, (right - left) / (2 * reach), 0.0)
    half = torch.where(moves, (left + right) / 2 * up + 16 * UNIT * right, right * up)
    useful = (end <= HUGE) & torch.isfinite(lines.value)
    return CentredForm(
        torch.where(useful, -half, -torch.inf), torch.where(useful[..., None], rate[..., None] * lines.slope, 0.0)
    )


def _below(chords: CentredForm, radius: Tensor, delta: float) -> tuple[CentredForm, Tensor]:
    """Lines and numbers (P, C) below D_i, from lines (P, C, L, m - 1) below the terms of -U."""
    ones = torch.ones_like(chords.value[..., None, :])
    total = mixed(ones, chords, radius[:, None, None])
    total = CentredForm(total.value[..., 0], total.slope[..., 0, :])  # (P, C, L)
    most = -total.minimum(radius[:, None])
    power = chords.value.new_tensor(BELOW)
    line = _tangent(total, -total.value, power, radius, delta)
    number = _tangent(total, most, power, radius, delta).minimum(radius[:, None])
    least = line.minimum(radius[:, None])
    best = least.argmax(-1, keepdim=True)
    found = CentredForm(line.value.gather(-1, best)[..., 0], _gathered(line.slope, best))
    return found, torch.maximum(number, least).amax(-1).clamp(min=0.0)


def _tangent(total: CentredForm, at: Tensor, power: Tensor, radius: Tensor, delta: float) -> CentredForm:
    """a (1 - delta) - b U, for the tangent at about U = `at`; 0 where U is not known."""
    known = torch.isfinite(total.value)
    s = torch.maximum(at.clamp(1e-300, 1e100) ** (1 / power), (1 - power) / power * (1 + 4 * UNIT))
    s = torch.where(known, s, 1.0)
    fall = 1 / (power * (1 + s) ** 2)
    a = (1 / (1 + s) + s * fall) * (1 - 2.0**-40) - 2.0**-60
    b = s ** (1 - power) * fall * (1 + 2.0**-40)
    moved = CentredForm(torch.where(known, total.value, 0.0), b[..., None] * total.slope)
    size = a + b * moved.value.abs() + moved.reach(radius[:, None])
    value = a * (1 - delta) + b * moved.value - 16 * UNIT * size
    return CentredForm(torch.where(known, value, 0.0), torch.where(known[..., None], moved.slope, 0.0))


def _above(lines: CentredForm, radius: Tensor, delta: float) -> tuple[CentredForm, Tensor]:
    """Lines below -D_i and numbers above it (P, m), from lines (P, L', m) below H - T."""
    flat = CentredForm(lines.value.flatten(1), lines.slope.flatten(1, 2))
    chords = _chords(flat, radius)
    value = (chords.value - delta * (1 + 4 * UNIT)) * (1 + 4 * UNIT)
    value, slope = value.reshape(lines.value.shape), chords.slope.reshape(lines.slope.shape)
    trivial = ~torch.isfinite(value)
    line = CentredForm(torch.where(trivial, -1.0, value), slope)
    least = line.minimum(radius[:, None])
    best = least.argmax(1, keepdim=True)
    found = CentredForm(line.value.gather(1, best)[:, 0], _gathered(line.slope.transpose(1, 2), best.transpose(1, 2)))
    return found, (-least.amax(1)).clamp(max=1.0)


def _gathered(slope: Tensor, best: Tensor) -> Tensor:
    """The vector (.., n) among L (.., L, n) that the index (.., 1) chooses."""
    index = best[..., None].expand(*best.shape, slope.shape[-1])
    return slope.gather(-2, index)[..., 0, :]


_NOISY = 0.01
"""Log excess from which on exponential moments are asked, too: it costs D up to a quarter of that."""


@dataclass(frozen=True, eq=False)
class ExponentialMoments(SoftmaxSource):
    """Everything about one network that does not depend on the box.

    budgets : values of delta, of which the best is taken; deadline : see `Exponents`
    """

    chain: DenseChain
    budgets: tuple[float, ...]
    deadline: Deadline = Deadline()

    name: ClassVar[str] = "exponential moments"

    @property
    def count(self) -> int:
        """Number of classes."""
        return self.chain.layers[-1].outputs

    @cached_property
    def _exponents(self) -> list[Exponents]:
        found = [Exponents(self.chain, budget, self.deadline) for budget in self.budgets]
        return found if found[0].sides else found[:1]

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        m = self.count
        widest = max(max(layer.mean.shape) for layer in self.chain.layers)
        rows = m * ((m - 1) * len(BELOW) + 1 + len(_ABOVE))
        return 32 * max(self._exponents[0].size, rows * widest)

    def value(self, x: Tensor) -> Tensor:
        """(P, m): about D at points, as if logits were independent Gaussians (MacKay's approximation)."""
        last = typical(self.chain, x)[-1]
        variance = last.v + last.m_spread**2
        return torch.softmax(last.m / torch.sqrt(1 + math.pi / 8 * variance), -1)

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[CentredForm, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n); raises OutOfTime."""
        found = [self._rows(exponents, lower, upper, outputs) for exponents in self._exponents]
        lines, numbers, radius = found[0]
        for line, number, _ in found[1:]:
            lines, numbers = _better(lines, line, radius), torch.maximum(numbers, number)
        return lines, numbers

    def _rows(
        self, exponents: Exponents, lower: Tensor, upper: Tensor, outputs: Tensor
    ) -> tuple[CentredForm, Tensor, Tensor]:
        ranges = exponents.ranges(lower, upper)
        mean = ranges.typical[-1].m
        asked = _questions(mean, _wanted(outputs, torch.softmax(mean, -1)))
        radius = ranges.first.radius
        found = asked.classes(exponents.lines(ranges, asked.rows), radius, exponents.delta)
        return *found.rows(outputs), radius


def _wanted(outputs: Tensor, share: Tensor) -> Tensor:
    """(P, C): classes that are worth a lower bound: of a single row only one, where its coefficient matters most."""
    m = outputs.shape[-1]
    if outputs.shape[1] > 1:
        return torch.arange(m, device=share.device).expand(len(share), -1)
    gain = (outputs - outputs.amin(-1, keepdim=True))[:, 0] * (share + 1e-9)
    return gain.argmax(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class WithMoments(SoftmaxSource):
    """One hidden layer: the closed forms, and exponential moments where these pay much for the noise."""

    source: OneLayerSoftmax
    moments: ExponentialMoments

    name: ClassVar[str] = "closed forms"

    @property
    def count(self) -> int:
        """Number of classes."""
        return self.source.count

    @property
    def size(self) -> int:
        """Numbers that one box takes."""
        return max(self.source.size, self.moments.size)

    def context(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The log excesses of boxes (N, n) that the closed forms use, (N, m m + m); they serve all boxes inside."""
        return self.source.context(lower, upper)

    def rows(
        self, lower: Tensor, upper: Tensor, outputs: Tensor, context: Tensor | None = None
    ) -> tuple[CentredForm, Tensor]:
        """Lines and numbers (P, R) below the rows (P or 1, R, m) over boxes (P, n)."""
        if context is None:
            context = self.context(lower, upper)
        lines, numbers = self.source.rows(lower, upper, outputs, context)
        noisy = torch.nonzero(~(context.amax(-1) < _NOISY))[:, 0]
        if len(noisy) == 0:
            return lines, numbers
        low, high = lower[noisy], upper[noisy]
        line, number = self.moments.rows(low, high, picked(outputs, noisy))
        radius = (high - low) / 2
        line = _better(CentredForm(lines.value[noisy], lines.slope[noisy]), line, radius)
        numbers = numbers.index_copy(0, noisy, torch.maximum(numbers[noisy], number))
        return CentredForm(
            lines.value.index_copy(0, noisy, line.value), lines.slope.index_copy(0, noisy, line.slope)
        ), numbers


def _better(first: CentredForm, second: CentredForm, radius: Tensor) -> CentredForm:
    """(P, R): of each pair the one with the larger minimum; both are below the rows."""
    ahead = second.minimum(radius) > first.minimum(radius)
    return CentredForm(
        torch.where(ahead, second.value, first.value), torch.where(ahead[..., None], second.slope, first.slope)
    )
