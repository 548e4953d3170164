"""Posteriors of every family around given weights, and what they say of a weighted sum of weights, exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.model import (
    Component,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Mixture,
    Network,
    Posterior,
    WeightSamples,
    from_covariance,
)
from bnn_vnnlib.network.network import Gaussian
from support import exact

Array = NDArray[np.float64]
Arrays = Mapping[str, Array]

GAUSSIAN = ("gaussian", "full", "low_rank", "kron")
FAMILIES = (*GAUSSIAN, "mixture", "samples")
CORRELATED = FAMILIES[1:5]


def drawn(family: str, means: Arrays, deviations: Arrays, rng: np.random.Generator, parts: int) -> Posterior:
    """A posterior whose entries deviate from the means by about as much as asked for; 0 stays 0.

    parts : components of a mixture, samples
    """
    if family == "samples":
        return _samples(means, deviations, rng, parts)
    if family == "mixture":
        return _mixture(means, deviations, rng, parts)
    return gaussian(family, deviations, rng)


def gaussian(family: str, deviations: Arrays, rng: np.random.Generator) -> Gaussian:
    """One of the four Gaussian families."""
    if family == "gaussian":
        return GaussianDiagonal({name: deviation**2 for name, deviation in deviations.items()})
    if family == "kron":
        return GaussianKron(tuple(_layers(deviations, rng)))
    factors = _factors(deviations, rng)
    if family == "full":
        return _triangular(factors) if rng.random() < 0.5 else GaussianFull(factors)
    common = float(rng.choice([0.3, 0.7, 1.0], p=[0.45, 0.45, 0.1]))
    own = {name: (1 - common) * deviation**2 for name, deviation in deviations.items()}
    return GaussianLowRank({name: math.sqrt(common) * factor for name, factor in factors.items()}, own)


def _factors(deviations: Arrays, rng: np.random.Generator) -> dict[str, Array]:
    """(k, *shape): every entry along a random direction of its own, or all along the same."""
    size = sum(deviation.size for deviation in deviations.values())
    rank, common = int(rng.integers(1, min(size, 6) + 1)), rng.normal(size=8)
    alike = rng.random() < 0.3
    found = {}
    for name, deviation in deviations.items():
        directions = rng.normal(size=(rank, *deviation.shape))
        if alike:
            directions = 0.3 * directions + common[:rank].reshape(rank, *(1,) * deviation.ndim)
        found[name] = directions / np.sqrt((directions**2).sum(0)) * deviation
    return found


def _triangular(factors: Arrays) -> GaussianFull:
    """The same covariance with a lower triangular root, in the order of the layers."""
    joint = np.concatenate([factor.reshape(len(factor), -1) for factor in factors.values()], 1)
    with np.errstate(under="ignore"):
        return from_covariance(joint.T @ joint, {name: factor.shape[1:] for name, factor in factors.items()})


def _layers(deviations: Arrays, rng: np.random.Generator) -> Iterator[KronLayer]:
    """Weights with the biases that follow them, where these have as many entries as a side; the rest by itself."""
    names, at = list(deviations), 0
    while at < len(names):
        weight, deviation = names[at], deviations[names[at]]
        rows = deviation.shape[0] if deviation.ndim else 1
        columns = deviation.size // rows
        after = names[at + 1] if at + 1 < len(names) else ""
        axes = [axis for axis in (0, 1) if after and deviations[after].shape == ((columns, rows)[axis],)]
        at += 1
        size = float(deviation.mean())
        if deviation.ndim < 2 or not axes or rng.random() < 0.3:
            yield KronLayer(weight, *_sides(rows, columns, size, rng))
            continue
        axis, at = axes[-1], at + 1
        size = float(max(deviation.mean(), deviations[after].mean()))
        yield KronLayer(weight, *_sides(rows + (axis == 0), columns + (axis == 1), size, rng), after, axis)


def _sides(rows: int, columns: int, size: float, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Orthogonal factors, now and then with fewer columns, and a spectrum with some zeros."""
    left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (rows, columns))
    if rng.random() < 0.3:
        left, right = left[:, : (rows + 1) // 2], right[:, : (columns + 1) // 2]
    shape = (left.shape[1], right.shape[1])
    return left, right, size**2 * rng.uniform(0.2, 2.0, shape) * (rng.random(shape) < 0.9)


def _mixture(means: Arrays, deviations: Arrays, rng: np.random.Generator, parts: int) -> Mixture:
    apart = float(rng.choice([0.0, 1.0, 4.0]))
    components = []
    for _ in range(parts):
        moved = {n: means[n] + apart * d * rng.normal(size=d.shape) for n, d in deviations.items()}
        scale = float(rng.choice([0.5, 1.0, 0.0], p=[0.45, 0.45, 0.1]))
        own = {name: scale * deviation for name, deviation in deviations.items()}
        components.append(Component(moved, gaussian(str(rng.choice(GAUSSIAN)), own, rng)))
    share = rng.uniform(0.05, 1.0, size=parts) ** 2
    return Mixture(tuple(components), share / share.sum())


def _samples(means: Arrays, deviations: Arrays, rng: np.random.Generator, parts: int) -> WeightSamples:
    share = rng.uniform(0.1, 1.0, size=parts) * (rng.random(parts) < 0.9)
    share = np.full(parts, 1.0) if share.sum() == 0 else share
    samples = {name: means[name] + d * rng.normal(size=(parts, *d.shape)) for name, d in deviations.items()}
    return WeightSamples(samples, share / share.sum())


def mapped(posterior: Posterior, change: Any) -> Posterior:
    """Every number of it changed by a function that keeps 0."""

    def all_of(arrays: Arrays) -> dict[str, Array]:
        return {name: change(array) for name, array in arrays.items()}

    match posterior:
        case GaussianDiagonal(variances=variances):
            return GaussianDiagonal(all_of(variances))
        case GaussianFull(factors=factors):
            return GaussianFull(all_of(factors))
        case GaussianLowRank(factors=factors, variances=variances):
            return GaussianLowRank(all_of(factors), all_of(variances))
        case GaussianKron(layers=layers):
            sides = ((one, change(one.left), change(one.right), change(one.spectrum)) for one in layers)
            return GaussianKron(tuple(KronLayer(one.weight, *s, one.bias, one.bias_axis) for one, *s in sides))
        case Mixture(components=components, probabilities=share):
            parts = [Component(all_of(part.means), mapped(part.posterior, change)) for part in components]
            return Mixture(tuple(parts), share)
        case WeightSamples(samples=samples, probabilities=share):
            return WeightSamples(all_of(samples), share)


def parts_of(network: Network, posterior: Posterior) -> list[tuple[Fraction, Arrays, Gaussian | None]]:
    """(probability, tensors, what varies around them) of the components, or of the samples, which do not vary."""
    match posterior:
        case Mixture(components=components, probabilities=share):
            rest = [({**network.tensors, **part.means}, part.posterior) for part in components]
        case WeightSamples(samples=samples, probabilities=share):
            rest = [({**network.tensors, **{n: v[k] for n, v in samples.items()}}, None) for k in range(len(share))]
        case _:
            return [(Fraction(1), network.tensors, posterior)]
    total = sum(map(Fraction, share), Fraction(0))
    return [(Fraction(p) / total, *part) for p, part in zip(share, rest, strict=True)]


def latents(posterior: Gaussian | None, coefficients: Mapping[str, exact.Exact]) -> tuple[exact.Exact, exact.Exact]:
    """(variances, values) with sum_k coefficient_k (w_k - mean_k) = sum_r values_r sqrt(variances_r) z_r, z standard
    normal; the variances are the same for all coefficients, which name every tensor of the posterior.
    """
    one: list[Any] = []
    values: list[Any] = []

    def flat(name: str) -> exact.Exact:
        return coefficients[name].ravel()

    match posterior:
        case GaussianDiagonal(variances=variances) | GaussianLowRank(variances=variances):
            for name, variance in variances.items():
                one += list(exact.fractions(variance).ravel())
                values += list(flat(name))
        case GaussianKron(layers=layers):
            for layer in layers:
                one += list(exact.fractions(layer.spectrum).ravel())
                sides = exact.fractions(layer.left).T, exact.fractions(layer.right)
                values += list((sides[0] @ _matrix(layer, coefficients) @ sides[1]).ravel())
    if isinstance(posterior, GaussianFull | GaussianLowRank):
        for r in range(posterior.rank):
            one.append(Fraction(1))
            parts = [exact.fractions(factor[r]).ravel() @ flat(n) for n, factor in posterior.factors.items()]
            values.append(sum(parts, Fraction(0)))
    return np.array(one, dtype=object), np.array(values, dtype=object)


def _matrix(layer: KronLayer, coefficients: Mapping[str, exact.Exact]) -> exact.Exact:
    rows = len(layer.left) - (layer.bias is not None and layer.bias_axis == 0)
    weight = coefficients[layer.weight].reshape(rows, -1)
    if layer.bias is None:
        return weight
    bias = coefficients[layer.bias]
    return np.concatenate([weight, bias[:, None] if layer.bias_axis else bias[None]], layer.bias_axis)
