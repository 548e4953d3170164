"""The last layer as rows see it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnn_vnnlib.gaussian.half_line import PAID, UP, Complexes, Floats, half_line, log_half_line
from bnn_vnnlib.network.dense_chain import DenseLayer
from bnn_vnnlib.rounding import gamma


@dataclass(frozen=True, eq=False)
class Weights:
    """The last layer as A rows see it: D_j ~ N(mean, dev^2) (A, H), B ~ N(bias, bias_dev^2) (A,); all independent."""

    mean: Floats
    dev: Floats
    bias: Floats
    bias_dev: Floats

    def rows(self, some: np.ndarray) -> Weights:
        """Some of them."""
        return Weights(*(part[some] for part in vars(self).values()))


def last_weights(last: DenseLayer, outputs: Floats, bound: Floats) -> tuple[Weights, Floats, np.ndarray]:
    """Of the rows outputs . f(x) - bound, (A, m) and (A,).

    Returns
    -------
    tuple of (Weights, ndarray, ndarray)
        also (A,): a bound on the total variation that the rounding of D's moments costs, and whether they are served
    """
    mean, bias, variance, noise = (
        part.detach().cpu().numpy() for part in (last.mean, last.bias, last.variance, last.bias_variance)
    )
    a, off = outputs, gamma(outputs.shape[1] + 8)
    # products first: a square of a small coefficient underflows, though the weight's deviation may be large
    dev = np.sqrt(((np.abs(a)[..., None] * np.sqrt(variance)) ** 2).sum(1))
    center, size = a @ bias - bound, np.abs(a) @ np.abs(bias) + np.abs(bound)
    center = center - off * size
    spread = np.sqrt(((np.abs(a) * np.sqrt(noise)) ** 2).sum(1))
    blur = (off * (np.abs(a) @ np.abs(mean)) / np.maximum(dev, 1e-280) + off).sum(1) + off
    good = (dev > 1e-100).all(1) & (blur < 1e-3) & np.isfinite(center)
    return Weights(a @ mean, dev, center, spread), blur * UP, good


@dataclass(frozen=True, eq=False)
class Sides:
    """Independent terms of A rows, of their own Gaussian variables delta ~ N(0, dev^2): low delta where delta > 0, and
    high delta where delta < 0; 0 <= low <= high, dev (A, K) each.
    """

    low: Floats
    high: Floats
    dev: Floats

    def rows(self, some: np.ndarray) -> Sides:
        """Some of them."""
        return Sides(self.low[some], self.high[some], self.dev[some])

    def scaled(self, share: Floats) -> Sides:
        """Below themselves over 1 + t, where 1 / (1 + t) is within share (A,) of 1."""
        low, high = self.low * (1 - share[:, None]), self.high * (1 + share[:, None])
        return Sides(low - PAID * np.abs(low), high + PAID * np.abs(high), self.dev)

    def transform(self, waves: Floats) -> Complexes:
        """(A, W): E e^{i w (sum of terms)}, up to 3 TERM a term."""
        w, dev = waves[:, None], np.maximum(self.dev, 1e-100)[..., None]
        plus, minus = (half_line(w * part[..., None], 0 * dev, dev, 0.0) for part in (self.low, self.high))
        return np.asarray((plus + np.conj(minus)).prod(1))

    def log_moment(self, rate: Floats) -> Floats:
        """(A,): log E e^{-rate (sum of terms)}, rate (A,), from above."""
        x = rate[:, None] * self.dev
        plus, minus = (log_half_line(x * side, np.zeros(1), np.ones(1), 0.0) for side in (-self.low, self.high))
        logs = np.logaddexp(plus, minus)
        return np.asarray((logs + 1e-12 * (1 + np.abs(plus) + np.abs(minus))).sum(1))

    def moments(self) -> tuple[Floats, Floats]:
        """(A,), (A,): mean and variance, not rounded."""
        mean = (self.low - self.high) * self.dev / np.sqrt(2 * np.pi)
        return mean.sum(1), ((self.low**2 + self.high**2) / 2 * self.dev**2 - mean**2).sum(1)


def no_sides(rows: int) -> Sides:
    """No terms, for so many rows."""
    return Sides(*(np.zeros((rows, 0)) for _ in range(3)))
