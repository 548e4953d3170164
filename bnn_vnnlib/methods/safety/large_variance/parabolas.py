"""Parabolas above logarithms of exponential moments, as functions of the mean and the variance in front of a ReLU.

log E[e^{f(relu(N(m, s^2)))}] <= constant + slope (m - center) + bend (m - center)^2 / 2 + square s^2 on a rectangle
of (m, s), bend >= 0. A plane above a convex function on a range is far above it in the middle; a parabola is not.

S(m, s) is convex in (m, s) (the three cases of `classification.exponentials`). Take nodes of distances d, e over the
ranges of m and s. In a cell of nodes S is below the mean of its values at the four corners, weighted as (m, s) is by
the corners (first in m, then in s); the parabola is at most bend d^2 / 8 + square^+ e^2 / 4 below that of its own
values. So that sum, with the largest value of S less the parabola at a node, is a constant that does.

The third case is split: E e^f = P + alpha G, P convex, G = E relu above its tangents Phi(tau) m + phi(tau) s, and s
>= (s^2 + l u) / (l + u) on [l, u]; log g <= l0 + g e^{-l0} - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import LEAST, cdf, density
from bnn_vnnlib.gaussian.relu import Rectangle, log_moment, log_moment_active, relu_mean

NODES, LEVELS = 17, 7
"""Over a range of m, of s."""

BENDS = (0.0, 0.4, 1.0)
"""bend over what makes the parabola touch at the centre."""

PAID = 1e-11
"""Relative error allowed to sums of products here, 40 times what a thousand terms need."""

Surface = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Parabola:
    """f <= constant + slope (m - center) + bend (m - center)^2 / 2 + square s^2 on a rectangle; bend >= 0."""

    constant: Tensor
    slope: Tensor
    bend: Tensor
    square: Tensor
    center: Tensor

    def worth(self, at: Rectangle, spread: Tensor) -> Tensor:
        """Its mean at the typical s, if m has this deviation; infinite where it is not known."""
        gap = at.m - self.center
        value = self.constant + self.slope * gap + self.bend * (gap**2 + spread**2) / 2 + self.square * at.s**2
        return value.nan_to_num(torch.inf, torch.inf, torch.inf)


def _better(old: Parabola, new: Parabola, at: Rectangle, spread: Tensor, where: Tensor | None = None) -> Parabola:
    better = new.worth(at, spread) < old.worth(at, spread)
    better = better if where is None else better & where
    return Parabola(*(torch.where(better, a, b) for a, b in zip(vars(new).values(), vars(old).values(), strict=True)))


def parabolas(
    alpha: Tensor, beta: Tensor, at: Rectangle, spread: Tensor, bends: Sequence[Sequence[float]]
) -> list[Parabola]:
    """Above log E exp(alpha z + beta z^2), z = relu(N(m, s^2)), beta >= 0: the best one for each choice of bends."""
    at = at.expand(alpha.shape)
    a, b, falls = alpha[..., None, None], beta[..., None, None], alpha < 0
    rising = _above_convex(lambda m, s: log_moment(a, b, m, s), at, spread, bends)
    active = _above_convex(lambda m, s: log_moment_active(a, b, m, s), at, spread, bends)
    small = _by_tangents(alpha, beta, at, spread, bends)
    found = []
    for up, first, second in zip(rising, active, small, strict=True):
        best = _better(first, second, at, spread)
        parts = zip(vars(best).values(), vars(up).values(), strict=True)
        found.append(Parabola(*(torch.where(falls, new, old) for new, old in parts)))
    return found


def _above_convex(surface: Surface, at: Rectangle, spread: Tensor, bends: Sequence[Sequence[float]]) -> list[Parabola]:
    """Of several slopes and bends the best at the typical point."""

    def nodes(low: Tensor, high: Tensor, count: int) -> Tensor:
        part = torch.linspace(0.0, 1.0, count, dtype=low.dtype, device=low.device)
        return torch.cat([low[..., None] + (high - low)[..., None] * part[:-1], high[..., None]], -1)

    m, s = nodes(at.low, at.high, NODES), nodes(at.least, at.most, LEVELS)
    value = surface(m[..., :, None], s[..., None, :])
    size = value.abs().amax((-2, -1))
    wide, tall = (at.high - at.low).clamp(min=1e-300), (at.most - at.least).clamp(min=1e-300)
    step, lift = wide / (NODES - 1), tall / (LEVELS - 1)
    near = [surface((at.m + sign * step / 2)[..., None, None], at.s[..., None, None])[..., 0, 0] for sign in (-1, 0, 1)]
    over = [surface(at.m[..., None, None], (at.s * part)[..., None, None])[..., 0, 0] for part in (0.98, 1.02)]
    slopes = (near[2] - near[0]) / step, (value[..., -1, LEVELS // 2] - value[..., 0, LEVELS // 2]) / wide
    squares = (
        (over[1] - over[0]) / (at.s**2 * (1.02**2 - 0.98**2)),
        (value[..., NODES // 2, -1] - value[..., NODES // 2, 0]) / (tall * (at.most + at.least)),
    )
    gap = m - at.m[..., None]
    middle = surface(m[..., :, None], at.s[..., None, None])[..., 0]
    best: list[Parabola | None] = [None] * len(bends)
    for rise in (part.nan_to_num(0.0, 0.0, 0.0) for part in slopes):
        above = middle - near[1][..., None] - rise[..., None] * gap
        full = torch.where(gap.abs() > step[..., None] / 2, 2 * above / gap**2, 0.0).amax(-1)
        full = full.nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
        for square in (part.nan_to_num(0.0, 0.0, 0.0) for part in squares):
            rest = (value - square[..., None, None] * s[..., None, :] ** 2).amax(-1)
            for place, shares in enumerate(bends):
                for share in shares:
                    bend = share * full
                    top = (rest - rise[..., None] * gap - bend[..., None] * gap**2 / 2).amax(-1)
                    top = top + bend * step**2 / 8 + square.clamp(min=0.0) * lift**2 / 4
                    paid = size + rise.abs() * wide + bend * wide**2 + square.abs() * at.most**2 + 1e-3
                    new, old = Parabola(top + PAID * paid, rise, bend, square, at.m), best[place]
                    best[place] = new if old is None else _better(old, new, at, spread)
    return [found for found in best if found is not None]


def _by_tangents(
    alpha: Tensor, beta: Tensor, at: Rectangle, spread: Tensor, bends: Sequence[Sequence[float]]
) -> list[Parabola]:
    """The third case of `exponentials`: exp f - alpha z is convex and alpha E z is below its tangents."""
    level = log_moment(alpha, beta, at.m, at.s)
    share = alpha.abs() * torch.exp(-level)

    def convex(m: Tensor, s: Tensor) -> Tensor:
        log = log_moment(alpha[..., None, None], beta[..., None, None], m, s)
        grown, slope = torch.exp(log - level[..., None, None]), share[..., None, None]
        return grown + slope * relu_mean(m, s) + PAID * (grown * (1 + log.abs()) + slope * (m.abs() + s))

    tau = (at.m / at.s).clamp(-40.0, 40.0)
    ends = at.least + at.most
    lift, slope = share * density(tau) / ends, share * cdf(tau)
    usable = (level > -25.0) & (alpha < 0)
    found = []
    for above in _above_convex(convex, at, spread, bends):
        paid = PAID * (1 + level.abs() + above.constant.abs() + share * at.size) + LEAST
        constant = level - 1 + above.constant - lift * at.least * at.most - slope * above.center + paid
        constant = torch.where(usable, constant, torch.inf)
        found.append(Parabola(constant, above.slope - slope, above.bend, above.square - lift, above.center))
    return found
