"""The first hidden layer at one point: independent h_k = relu(z_k), z_k ~ N(m_k, s_k^2), and exponential moments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.hidden import Hidden
from bnn_vnnlib.gaussian.relu import SAFE, log_moment, log_moment_below, relu_mean, relu_square
from bnn_vnnlib.rounding import UNIT, gamma

SEGMENTS, RATIO = 12, 1.2
"""Parts of [0, near], each so many times as long as the next."""

FAR = 30.0
"""Deviations beyond which a Gaussian tail is summed as a series: five terms leave 2e-11."""

SMALLEST = 0.02
"""y over one by s, at least, where variances are bounded."""


@dataclass(frozen=True, eq=False)
class Law:
    """m, s : (P, 1, H); blur : (P,) bound on the total variation to the law at any x of the boxes (nearly points)."""

    m: Tensor
    s: Tensor
    blur: Tensor

    def pick(self, some: Tensor) -> Law:
        """At some points."""
        return Law(self.m[some], self.s[some], self.blur[some])

    def above(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """log E exp(alpha h + beta h^2) for alpha, beta (P, R, H) of any sign, rounded up."""
        return log_moment(alpha, beta, self.m, self.s)

    def tilted_mean(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """The mean of h under the density e^{alpha h + beta h^2}, not rounded: up to 1e-10 of itself and of s."""
        m, s = self.m, self.s
        c = (1 - 2 * beta * s**2).clamp(min=SAFE)
        mean, dev = (m + alpha * s**2) / c, s / torch.sqrt(c)
        top = (beta * m**2 + alpha * m + alpha**2 * s**2 / 2) / c - torch.log(c) / 2
        on = top + torch.special.log_ndtr(mean / dev)
        logs = torch.logaddexp(torch.special.log_ndtr(-m / s), on)
        ratio = (mean / dev).clamp(min=-FAR)
        near = mean + dev * torch.exp(-(ratio**2) / 2 - torch.special.log_ndtr(ratio)) / math.sqrt(2 * math.pi)
        far = (mean / dev).clamp(max=-FAR)  # the mean of the part above 0 of a Gaussian far below it
        series = -(1 - (2 - (10 - (74 - 706 / far**2) / far**2) / far**2) / far**2) / far
        inner = torch.where(mean < -FAR * dev, dev * series, near.clamp(min=0.0))
        return torch.exp(on - logs) * inner

    def proxy(self, alpha: Tensor, beta: Tensor, near: Tensor) -> Tensor:
        """u with E e^{y (h - mean)} <= e^{u y^2 / 2} for |y| <= near under the tilted law; infinite if none is known.

        g(y) = log E e^{y (h - mean)} is convex with its minimum 0 at 0, so that 2 g(y) / y^2 <= 2 g(b) / a^2 for y in
        [a, b]; near 0, (e^{g(y)} - 1) / y^2 is convex in y (see `chaos`), and so largest at an end.
        """
        near = torch.maximum(near, SMALLEST / self.s)
        mean, base = self.tilted_mean(alpha, beta), log_moment_below(alpha, beta, self.m, self.s)

        def log(y: Tensor) -> Tensor:
            value = self.above(alpha + y, beta) - base
            value = value - y * mean + 4 * UNIT * value.abs() + 1e-10 * ((y * mean).abs() + y.abs() * self.s)
            return value.clamp(min=0.0).nan_to_num(torch.inf, torch.inf)

        found = torch.zeros_like(near)
        for sign in (1, -1):
            end, parts = near, torch.zeros_like(near)
            best = torch.full_like(near, torch.inf)
            for _ in range(SEGMENTS):
                high = log(sign * end)
                best = torch.minimum(best, torch.maximum(parts, 2 * torch.expm1(high.clamp(max=600.0)) / end**2))
                best = torch.where(high < 600.0, best, torch.inf)
                start = torch.maximum(end / RATIO, SMALLEST / self.s)
                parts, end = torch.maximum(parts, 2 * high / start**2), start
            found = torch.maximum(found, best)
        return found

    def plain(self) -> tuple[Tensor, Tensor, Tensor]:
        """E h, E h^2 and the deviation of h (at least a part of s), not rounded."""
        m, s = self.m, self.s
        mean = relu_mean(m, s)
        second = relu_square(m, s)
        return mean, second, torch.sqrt((second - mean**2).clamp(min=0.0)) + 1e-3 * s


def law_of(first: Hidden) -> Law:
    """Of boxes of size nearly zero."""
    relative = gamma(8) + (first.high - first.low) / first.least + (first.most / first.least) ** 2 - 1
    blur = relative.sum(-1).nan_to_num(1.0, 1.0)
    return Law(((first.low + first.high) / 2)[:, None], first.most[:, None], blur)
