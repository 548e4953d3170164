"""Failure probabilities of rows over boxes for one hidden ReLU layer of independent Gaussian weights (see `lines`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bnn_vnnlib.gaussian.half_line import PAID, UP, Floats
from bnn_vnnlib.methods.safety.large_variance.inversion import below, terms
from bnn_vnnlib.methods.safety.large_variance.lines import BEYOND, RATES, Lines, Neurons, lines, neurons
from bnn_vnnlib.methods.safety.large_variance.output_layer import Sides, Weights, last_weights, no_sides
from bnn_vnnlib.methods.safety.large_variance.variation import SPENT, Chaos, chaos
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

ROWS = 8
"""Rows at once, at most: less than a second of work."""

QUICK = (3.5,)
"""See `variation.REACHES`, where theta is chosen."""

TARGETS = 48
"""l that are tried."""

DEEPEST, DEPTHS = 8.0, 128
"""Standard deviations of Y below its mean, and numbers among which one is chosen, see `lowest`."""

PARTS = (0.25, 0.5, 0.75)
"""Of the level, for what the lines lose."""

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
def failures(layers: DenseChain, question: RowsAtBoxes, deadline: Deadline) -> Floats:
    """(A,): upper bounds on the probabilities that a row holds somewhere in its box; 1 where nothing is known, or time
    is up before.
    """
    found = np.ones(len(question.box))
    layer = neurons(layers.first, question.lower, question.upper)
    weights, blur, good = last_weights(layers.last, question.outputs, question.bound)
    chosen = np.flatnonzero(good & layer.served[question.box])
    each = min(at_once(2 * layer.m.shape[1] * 24 * 100), ROWS)
    for start in range(0, len(chosen), each):
        if deadline.passed:
            break
        some = chosen[start : start + each]
        found[some] = bounded(rows_at(layer, question.box[some]), weights.rows(some)) + blur[some]
    return np.minimum(np.nan_to_num(found + layer.blur[question.box], nan=1.0), 1.0)


def _finite(found: Lines) -> NDArray[np.bool_]:
    """(A,): rows of which all is known."""
    return np.asarray(np.isfinite([part.reshape(len(part), -1).sum(1) for part in vars(found).values()]).all(0))


def _with_sides(found: Lines, more: Sides) -> Lines:
    """With the moments that choices are made by."""
    mean, variance = more.moments()
    return replace(found, center=found.center + mean, spread=np.sqrt(found.spread**2 + variance))


def rows_at(layer: Neurons, box: np.ndarray) -> Neurons:
    """The layer with one box a row, box (A,)."""
    parts = {name: value if name == "variance" else value[box] for name, value in vars(layer).items()}
    return Neurons(**parts)


def bounded(layer: Neurons, weights: Weights, more: Sides | None = None) -> Floats:
    """(A,): upper bounds on the probabilities that B + sum_j D_j relu(V_j x + b_j) <= 0 somewhere in the box, more
    being added to B; 1 where moments overflow.
    """
    more = (no_sides(len(weights.bias)) if more is None else more).scaled(layer.share)
    found = _with_sides(lines(layer, weights), more)
    known = _finite(found)
    if not known.all():
        out, some = np.ones(len(known)), np.flatnonzero(known)
        if len(some):
            out[some] = bounded(rows_at(layer, some), weights.rows(some), more.rows(some))
        return out
    square = chaos(layer, weights, found)
    theta, scale = _chosen(layer, found, square)
    targets = scale[:, None] * np.linspace(0.0, 1.0, TARGETS)
    moved = np.asarray((layer.radius > 0).any(1))
    moment = square.log_moment(theta)
    tail = np.exp(np.minimum(moment[:, None] - theta[:, None] * targets * (1 - 1e-12), 0.0)) * UP
    tail = np.where(moved[:, None], tail, 0.0)
    ranges = np.where(moved, BEYOND * layer.m.shape[1] + SPENT, 0.0)
    return (below(terms(layer, weights, found, theta, more), targets) + tail).min(1) + ranges


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what overflows ends as -inf
def lowest(layer: Neurons, weights: Weights, level: Floats) -> Floats:
    """(A,): numbers that B + sum_j D_j relu(V_j x + b_j) falls below somewhere in the box with probability at most
    `level` (A,); -inf where none is known.

    With P(Y <= q + l) + e^{-theta l} E[e^{theta Q}; G] + (events) <= level the sum of B / (1 + t) and the
    D_j relu(zeta_j + v_j) exceeds q, and the row is 1 + t times as large, |t| <= rb <= share.
    """
    found = lines(layer, weights)
    if not _finite(found).all():
        low, some = np.full(len(weights.bias), -np.inf), np.flatnonzero(_finite(found))
        if len(some):
            low[some] = lowest(rows_at(layer, some), weights.rows(some), level[some])
        return low
    square, index = chaos(layer, weights, found), np.arange(len(weights.bias))
    rates, spare = RATES / found.scale[:, None], level - BEYOND * layer.m.shape[1] - SPENT
    moments = np.stack([square.log_moment(rate) for rate in rates.T], 1)
    chosen = ((moments - np.log(level / 2)[:, None]) / rates + rates * found.excess[:, None] / 2).argmin(1)
    theta, moment = rates[index, chosen], moments[index, chosen]
    start = found.center - theta * found.excess / 2 - DEEPEST * found.spread
    moved = replace(found, constant=found.constant + start, center=found.center - start)
    targets = found.spread[:, None] * np.linspace(0.0, DEEPEST, DEPTHS)
    values = np.maximum.accumulate(below(terms(layer, weights, moved, theta), targets), 1)
    low = np.full(len(theta), -np.inf)
    for part in PARTS:
        loss = (moment - np.log(part * spare)) / theta * UP
        place = (values <= (1 - part) * spare[:, None]).sum(1) - 1
        q = np.where(place >= 0, start + targets[index, np.maximum(place, 0)] - loss, -np.inf)
        q = q - PAID * (np.abs(start) + np.abs(found.constant) + targets[:, -1] + loss)
        low = np.fmax(low, q)
    return np.asarray(np.nan_to_num(low - layer.share * np.abs(low) * UP, nan=-np.inf))


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
