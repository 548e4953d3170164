"""The last layer as rows see it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnn_vnnlib.bounds.rounding import gamma
from bnn_vnnlib.robustness.classification.layers import Dense
from bnn_vnnlib.robustness.wide.gaussian import UP, Floats


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


def last_weights(last: Dense, outputs: Floats, bound: Floats) -> tuple[Weights, Floats, np.ndarray]:
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
