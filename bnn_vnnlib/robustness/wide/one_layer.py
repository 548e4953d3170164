"""Failure probabilities of rows over boxes for one hidden ReLU layer of independent Gaussian weights (see `lines`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.robustness.classification.layers import OneLayer
from bnn_vnnlib.robustness.wide.chaos import SPENT, Chaos, chaos
from bnn_vnnlib.robustness.wide.gaussian import UP, Floats
from bnn_vnnlib.robustness.wide.inversion import below
from bnn_vnnlib.robustness.wide.last import Weights, last_weights
from bnn_vnnlib.robustness.wide.lines import RATES, Lines, lines
from bnn_vnnlib.robustness.wide.neurons import BEYOND, Neurons, neurons
from bnn_vnnlib.robustness.wide.transforms import terms

MEMORY, ROWS = 2**23, 8
"""Complex numbers, and rows, at once, at most about: less than a second of work."""

QUICK = (3.5,)
"""See `chaos.REACHES`, where theta is chosen."""

TARGETS = 48
"""l that are tried."""

SIZES = np.concatenate([np.linspace(0.0, 8.0, 81), np.geomspace(8.5, 200.0, 20)])
"""l over `Lines.scale`, among which the largest one is chosen."""


@dataclass(frozen=True, eq=False)
class RowsAtBoxes:
    """Question: is outputs . f(x) <= bound for some x of the box. Boxes (P, n); rows (A, m), bound (A,), box (A,) of
    each."""

    lower: Floats
    upper: Floats
    outputs: Floats
    bound: Floats
    box: np.ndarray


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what overflows ends as infinite, or as 1
def failures(layers: OneLayer, question: RowsAtBoxes, deadline: Deadline) -> Floats:
    """(A,): upper bounds on the probabilities that a row holds somewhere in its box; 1 where nothing is known."""
    found = np.ones(len(question.box))
    layer = neurons(layers.first, question.lower, question.upper)
    weights, blur, good = last_weights(layers.last, question.outputs, question.bound)
    chosen = np.flatnonzero(good & layer.served[question.box])
    each = min(max(1, MEMORY // (layer.m.shape[1] * 24 * 100)), ROWS)
    for start in range(0, len(chosen), each):
        deadline.check()
        some = chosen[start : start + each]
        found[some] = _bounded(_at(layer, question.box[some]), weights.rows(some)) + blur[some]
    return np.minimum(np.nan_to_num(found + layer.blur[question.box], nan=1.0), 1.0)


def _at(layer: Neurons, box: np.ndarray) -> Neurons:
    parts = {name: value if name == "variance" else value[box] for name, value in vars(layer).items()}
    return Neurons(**parts)


def _bounded(layer: Neurons, weights: Weights) -> Floats:
    """(A,); 1 where moments overflow."""
    found = lines(layer, weights)
    known = np.isfinite(np.stack([part.reshape(len(part), -1).sum(1) for part in vars(found).values()])).all(0)
    if not known.all():
        out, some = np.ones(len(known)), np.flatnonzero(known)
        if len(some):
            out[some] = _bounded(_at(layer, some), weights.rows(some))
        return out
    square = chaos(layer, weights, found)
    theta, scale = _chosen(layer, found, square)
    targets = scale[:, None] * np.linspace(0.0, 1.0, TARGETS)
    moved = np.asarray((layer.radius > 0).any(1))
    moment = square.log_moment(theta)
    tail = np.exp(np.minimum(moment[:, None] - theta[:, None] * targets * (1 - 1e-12), 0.0)) * UP
    tail = np.where(moved[:, None], tail, 0.0)
    ranges = np.where(moved, BEYOND * layer.m.shape[1] + SPENT, 0.0)
    return (below(terms(layer, weights, found, theta), targets) + tail).min(1) + ranges


def _chosen(layer: Neurons, found: Lines, square: Chaos) -> tuple[Floats, Floats]:
    """theta, and the largest l to try, by the normal approximation of Y: any numbers are sound."""
    rates = RATES / found.scale[:, None]
    moment = np.stack([square.log_moment(rate, QUICK) for rate in rates.T], 1)
    level = found.scale[:, None] * SIZES
    center = found.center[:, None] - rates * found.excess[:, None] / 2
    low = special.ndtr((level[:, None] - center[..., None]) / found.spread[:, None, None])
    total = low + np.exp(np.minimum(moment[..., None] - rates[..., None] * level[:, None], 0.0))
    best = total.reshape(len(total), -1).argmin(1)
    rate, place = np.divmod(best, level.shape[1])
    index = np.arange(len(best))
    theta = rates[index, rate]
    reach = level[index, place] * 2.0 + 2.0 / theta
    return theta, np.where((layer.radius > 0).any(1), reach, 0.0)
