"""Small networks, sampled weights, and exact infima over boxes by enumeration of kinks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch

from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer


def dense(rng: np.random.Generator, outputs: int, inputs: int, *, spread: float, bias: float = 0.5) -> DenseLayer:
    """A layer whose standard deviations are about `spread` times the size of the means."""
    mean = rng.normal(size=(outputs, inputs))
    dev = spread * rng.uniform(0.5, 1.5, (outputs, inputs))
    shift, noise = bias * rng.normal(size=outputs), bias * spread * rng.uniform(0.5, 1.5, outputs)
    return DenseLayer.exact(*(torch.tensor(part) for part in (mean, shift, dev**2, noise**2)))


def network(seed: int, inputs: int, hidden: int, outputs: int, spread: float = 0.7) -> DenseChain:
    """f(x) = W relu(V x + b) + c."""
    rng = np.random.default_rng(seed)
    return DenseChain.relu(dense(rng, hidden, inputs, spread=spread), dense(rng, outputs, hidden, spread=spread))


def sampled(layer: DenseLayer, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Weights (S, o, i) and biases (S, o)."""
    mean, bias, variance, noise = (
        part.numpy() for part in (layer.mean, layer.bias, layer.variance, layer.bias_variance)
    )
    weight = mean + np.sqrt(variance) * rng.standard_normal((count, *mean.shape))
    return weight, bias + np.sqrt(noise) * rng.standard_normal((count, len(bias)))


def candidates(v: np.ndarray, b: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """(S, K, 2): points of a two-dimensional box among which every function that is linear between the kinks
    v x + b = 0 (S, H, 2), (S, H) takes its minimum: corners, kinks on edges, crossings of kinks; clipped to the box.
    """
    if (lower == upper).all():
        return np.broadcast_to(lower, (len(v), 1, 2))
    corners = np.stack(np.meshgrid(*zip(lower, upper, strict=True)), -1).reshape(-1, 2)
    points = [np.broadcast_to(corners, (len(v), 4, 2))]
    with np.errstate(divide="ignore", invalid="ignore"):
        for axis in (0, 1):
            for end in (lower[axis], upper[axis]):
                other = -(b + v[..., axis] * end) / v[..., 1 - axis]
                edge = np.stack(
                    [np.full_like(other, end), other] if axis == 0 else [other, np.full_like(other, end)], -1
                )
                points.append(edge)
        i, j = np.triu_indices(v.shape[1], 1)
        det = v[:, i, 0] * v[:, j, 1] - v[:, i, 1] * v[:, j, 0]
        first = (-b[:, i] * v[:, j, 1] + b[:, j] * v[:, i, 1]) / det
        second = (-b[:, j] * v[:, i, 0] + b[:, i] * v[:, j, 0]) / det
        points.append(np.stack([first, second], -1))
    return np.clip(np.nan_to_num(np.concatenate(points, 1)), lower, upper)


def least_margins(
    layers: DenseChain, row: np.ndarray, bound: float, lower: np.ndarray, upper: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """(S,): exact infima over a two-dimensional box of row . f(x) - bound, for sampled weights."""
    rng = np.random.default_rng(seed)
    v, b = sampled(layers.first, count, rng)
    w, c = sampled(layers.last, count, rng)
    x = candidates(v, b, lower, upper)
    hidden = np.maximum(np.einsum("shi,ski->skh", v, x) + b[:, None], 0.0)
    return ((hidden * (row @ w)[:, None]).sum(-1) + (c @ row)[:, None] - bound).min(1)


def least_margins_deep(
    layers: DenseChain, row: np.ndarray, bound: float, lower: np.ndarray, upper: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """(S,): the same for two hidden layers; exact, since in each of the cells on which the first layer is linear the
    second one's kinks are lines, and the least value lies where two kinks or edges cross. Cells that do not meet the
    box are left out.
    """
    rng = np.random.default_rng(seed)
    weights = [sampled(layer, count, rng) for layer in layers.layers]
    (v, b), last = weights[0], (np.einsum("o,soi->si", row, weights[2][0]), weights[2][1] @ row - bound)
    middle, moved = v @ ((lower + upper) / 2) + b, np.abs(v) @ ((upper - lower) / 2)
    moved = moved + 1e-9 * (1 + np.abs(middle))  # rounding: rather a cell too many
    found = np.full(count, np.inf)
    for pattern in itertools.product((False, True), repeat=v.shape[1]):
        meets = np.where(pattern, middle + moved >= 0, middle - moved <= 0).all(1)
        if meets.any():
            part = [(weight[meets], shift[meets]) for weight, shift in (*weights[:2], last)]
            found[meets] = np.minimum(found[meets], _least_in_cells(part, np.array(pattern), lower, upper))
    return found


def _least_in_cells(
    weights: list[tuple[np.ndarray, np.ndarray]], pattern: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """(S,): the least value where kinks cross, the first layer in one pattern; the last layer is one row a network."""
    (v, b), (w, c), (d, e) = weights
    slope = np.concatenate([v, (w * pattern) @ v], 1)
    shift = np.concatenate([b, np.einsum("sij,sj->si", w * pattern, b) + c], 1)
    x = candidates(slope, shift, lower, upper)
    hidden = np.maximum(x @ v.mT + b[:, None], 0.0)
    hidden = np.maximum(hidden @ w.mT + c[:, None], 0.0)
    return np.asarray(((hidden @ d[..., None])[..., 0] + e[:, None]).min(1))


def margins_at(layers: DenseChain, row: np.ndarray, bound: float, x: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(S,): row . f(x) - bound at a point, for sampled weights of any number of layers."""
    rng, h = np.random.default_rng(seed), np.broadcast_to(x, (count, len(x)))
    for place, layer in enumerate(layers.layers):
        weight, bias = sampled(layer, count, rng)
        h = np.einsum("soi,si->so", weight, np.maximum(h, 0.0) if place else h) + bias
    return np.asarray(h @ row - bound)


class View:
    """A dataclass of tensors seen from numpy: its fields, and what its methods return."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __getattr__(self, name: str) -> Any:
        return _seen(getattr(self.held, name))


def in_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for arrays and views."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return _seen(function(*map(_given, args), **{name: _given(value) for name, value in kwargs.items()}))

    return called


def _seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, tuple):
        return tuple(map(_seen, value))
    if isinstance(value, (DenseChain, DenseLayer, View, type)):
        return value
    if is_dataclass(value):
        return View(value)
    return in_numpy(value) if callable(value) else value


def _given(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.tensor(np.array(value))
    if isinstance(value, tuple):
        return tuple(map(_given, value))
    return value.held if isinstance(value, View) else value
