"""Failure probabilities of rows over boxes for one hidden ReLU layer of independent Gaussian weights (see `lines`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnn_vnnlib.gaussian.normal import cdf
from bnn_vnnlib.methods.safety.large_variance.chaos import SPENT, Chaos, chaos
from bnn_vnnlib.methods.safety.large_variance.law import below, terms
from bnn_vnnlib.methods.safety.large_variance.lines import PAST_LEVELS, THETAS, LineTerms, Neurons, lines, neurons
from bnn_vnnlib.methods.safety.large_variance.output_layer import Sides, Weights, last_weights, no_sides
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.rounding import PAID, UP
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

ROWS = 8
"""Rows at once, at most: less than a second of work."""

_QUICK = (3.5,)
"""The only z that is tried while theta is chosen, of those like `chaos._REACHES`."""

_TARGETS = 48
"""Number of values of l that are tried."""

_DEEPEST, _DEPTHS = 8.0, 128
"""Standard deviations of Y below its mean, and numbers among which one is chosen, see `lowest`."""

_PARTS = (0.25, 0.5, 0.75)
"""Shares of the level that are tried for what the lines lose."""

_SIZES = (*(k / 10 for k in range(81)), *(8.5 * (200 / 8.5) ** (k / 19) for k in range(20)))
"""Values of l over `LineTerms.scale`, among which the largest one to try is chosen."""


@dataclass(frozen=True, eq=False)
class RowsAtBoxes:
    """Question: is outputs . f(x) <= bound for some x of the box. Boxes (P, n); rows (A, m), bound (A,), box (A,) of
    each."""

    lower: Tensor
    upper: Tensor
    outputs: Tensor
    bound: Tensor
    box: Tensor


def failures(layers: DenseChain, question: RowsAtBoxes, deadline: Deadline) -> Tensor:
    """(A,): upper bounds on the probabilities that a row holds somewhere in its box; 1 where nothing is known, or time
    is up before.
    """
    found = torch.ones_like(question.bound)
    layer = neurons(layers.first, question.lower, question.upper)
    weights, blur, good = last_weights(layers.last, question.outputs, question.bound)
    chosen = torch.nonzero(good & layer.served[question.box])[:, 0]  # split makes one part of none
    for some in chosen.split(min(at_once(2 * layer.m.shape[1] * 24 * 100), ROWS)):
        if deadline.passed or not len(some):
            break
        found[some] = bounded(row_layers(layer, question.box[some]), weights.rows(some)) + blur[some]
    return (found + layer.blur[question.box]).nan_to_num(1.0).clamp(max=1.0)


def _finite(found: LineTerms) -> Tensor:
    """(A,): rows of which all is known."""
    return torch.stack([torch.isfinite(part).reshape(len(part), -1).all(1) for part in vars(found).values()]).all(0)


def _with_sides(found: LineTerms, more: Sides) -> LineTerms:
    """The lines with the mean and variance of `more` added to the moments that choices are made by."""
    mean, variance = more.moments()
    return replace(found, center=found.center + mean, spread=torch.sqrt(found.spread**2 + variance))


def row_layers(layer: Neurons, box: Tensor) -> Neurons:
    """The layer with one box a row, box (A,)."""
    parts = {name: value if name == "variance" else value[box] for name, value in vars(layer).items()}
    return Neurons(**parts)


def bounded(layer: Neurons, weights: Weights, more: Sides | None = None) -> Tensor:
    """(A,): upper bounds on the probabilities that B + sum_j D_j relu(V_j x + b_j) <= 0 somewhere in the box, more
    being added to B; 1 where moments overflow.
    """
    more = (no_sides(weights.bias) if more is None else more).scaled(layer.share)
    found = _with_sides(lines(layer, weights), more)
    known = _finite(found)
    if not known.all():
        out, some = torch.ones_like(weights.bias), torch.nonzero(known)[:, 0]
        if len(some):
            out[some] = bounded(row_layers(layer, some), weights.rows(some), more.rows(some))
        return out
    square = chaos(layer, weights, found)
    theta, scale = _chosen(layer, found, square)
    targets = scale[:, None] * torch.linspace(0.0, 1.0, _TARGETS, dtype=scale.dtype, device=scale.device)
    moved = (layer.radius > 0).any(1)
    moment = square.log_moment(theta)
    tail = torch.exp((moment[:, None] - theta[:, None] * targets * (1 - 1e-12)).clamp(max=0.0)) * UP
    tail = torch.where(moved[:, None], tail, 0.0)
    values = (below(terms(layer, weights, found, theta, more), targets) + tail).amin(1)
    return torch.where(moved, values + PAST_LEVELS * layer.m.shape[1] + SPENT, values)


def lowest(layer: Neurons, weights: Weights, level: Tensor) -> Tensor:
    """(A,): numbers that B + sum_j D_j relu(V_j x + b_j) falls below somewhere in the box with probability at most
    `level` (A,); -inf where none is known.

    With P(Y <= q + l) + e^{-theta l} E[e^{theta Q}; G] + (events) <= level the sum of B / (1 + t) and the
    D_j relu(zeta_j + v_j) exceeds q, and the row is 1 + t times as large, |t| <= rb <= share.
    """
    found = lines(layer, weights)
    if not _finite(found).all():
        low, some = torch.full_like(weights.bias, -torch.inf), torch.nonzero(_finite(found))[:, 0]
        if len(some):
            low[some] = lowest(row_layers(layer, some), weights.rows(some), level[some])
        return low
    square, spare = chaos(layer, weights, found), level - PAST_LEVELS * layer.m.shape[1] - SPENT
    rates = level.new_tensor(THETAS) / found.scale[:, None]
    moments = torch.stack([square.log_moment(rate) for rate in rates.unbind(1)], 1)
    lost = (moments - torch.log(level / 2)[:, None]) / rates + rates * found.excess[:, None] / 2
    chosen = lost.argmin(1, keepdim=True)
    theta, moment = (part.gather(1, chosen)[:, 0] for part in (rates, moments))
    start = found.center - theta * found.excess / 2 - _DEEPEST * found.spread
    moved = replace(found, constant=found.constant + start, center=found.center - start)
    targets = found.spread[:, None] * torch.linspace(0.0, _DEEPEST, _DEPTHS, dtype=theta.dtype, device=theta.device)
    values = below(terms(layer, weights, moved, theta), targets).cummax(1).values
    low = torch.full_like(theta, -torch.inf)
    for part in _PARTS:
        loss = (moment - torch.log(part * spare)) / theta * UP
        place = (values <= (1 - part) * spare[:, None]).sum(1, keepdim=True) - 1
        q = start + targets.gather(1, place.clamp(min=0))[:, 0] - loss
        q = q - PAID * (start.abs() + found.constant.abs() + targets[:, -1] + loss)
        low = torch.fmax(low, torch.where(place[:, 0] >= 0, q, -torch.inf))
    return (low - layer.share * low.abs() * UP).nan_to_num(-torch.inf, torch.inf, -torch.inf)


def _chosen(layer: Neurons, found: LineTerms, square: Chaos) -> tuple[Tensor, Tensor]:
    """theta, and the largest l to try, by the normal approximation of Y: any numbers are sound."""
    scale = found.scale[:, None]
    rates, level = scale.new_tensor(THETAS) / scale, scale * scale.new_tensor(_SIZES)
    moment = torch.stack([square.log_moment(rate, _QUICK) for rate in rates.unbind(1)], 1)
    center = found.center[:, None] - rates * found.excess[:, None] / 2
    low = cdf((level[:, None] - center[..., None]) / found.spread[:, None, None])
    total = low + torch.exp((moment[..., None] - rates[..., None] * level[:, None]).clamp(max=0.0))
    best = total.flatten(1).argmin(1, keepdim=True)
    theta = rates.gather(1, best // level.shape[1])[:, 0]
    reach = level.gather(1, best % level.shape[1])[:, 0] * 2.0 + 2.0 / theta
    return theta, torch.where((layer.radius > 0).any(1), reach, 0.0)
