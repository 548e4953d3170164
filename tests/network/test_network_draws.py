"""Draws by their numbers: the cells of single normal numbers, the boxes of weights, and the laws of all families."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from bnn_vnnlib.model import (
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    Mixture,
    Posterior,
    WeightSamples,
)
from bnn_vnnlib.network import draws
from bnn_vnnlib.network.draws import Draws
from bnn_vnnlib.network.families import marginal_variances, weighted_mean
from fuzz.posterior_families import FAMILIES, drawn
from support.networks import dense_network

NETWORK = dense_network((3, 4, 2), seed=2)


def posterior_of(family: str, size: float = 0.3, seed: int = 0) -> Posterior:
    rng = np.random.default_rng(seed)
    deviations = {name: size * rng.uniform(0.5, 1, mean.shape) for name, mean in NETWORK.tensors.items()}
    return drawn(family, NETWORK.tensors, deviations, rng, 5)


def test_cells_of_normal_numbers_hold_what_the_bits_leave_open() -> None:
    rng = np.random.default_rng(0)
    zeros = rng.integers(0, 64, 300)
    zeros[:2] = 0
    first = (rng.integers(0, 2**63, 300, dtype=np.uint64) | np.uint64(2**63)) >> zeros.astype(np.uint64)
    second = rng.integers(0, 2**64, 300, dtype=np.uint64)
    second[:4], first[0], first[1] = (0, 2**64 - 1, 0, 2**64 - 1), 2**64 - 1, 2**63
    z, known = draws._normal(np.stack([first, second], 1))
    assert known[: len(zeros)][zeros < 50].all()
    assert not known[zeros >= 53].any()
    for value, sure, a, b in zip(z[:, 0].tolist(), known.tolist(), first.tolist(), second.tolist(), strict=True):
        if not sure:
            continue
        shift = 64 - a.bit_length()
        low = Fraction(2**52 + (b >> 12), 2**52 * 2 ** (shift + 1))
        high = low + Fraction(1, 2**52 * 2 ** (shift + 1))
        assert (value < 0) == bool(b & 1) or value == 0
        with mpmath.workdps(40):
            far, near = mpmath.mpf(abs(value)) + draws._RADIUS, mpmath.mpf(abs(value)) - draws._RADIUS
            assert 2 * mpmath.ncdf(-far) <= mpmath.mpf(low.numerator) / low.denominator
            assert 2 * mpmath.ncdf(-near) >= mpmath.mpf(high.numerator) / high.denominator
    assert float(z[known].abs().max()) <= draws.LARGEST_NORMAL


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draw_depends_on_seed_and_number_alone(family: str) -> None:
    source = Draws(NETWORK, posterior_of(family), 7)
    every = source.take(np.arange(40))
    for index in ([0], [5, 6, 7, 8], [39, 3, 4, 20]):
        part = source.take(np.array(index))
        for name, values in part.centers.items():
            radius = source.radius.get(name, torch.zeros(()))
            assert ((values - every.centers[name][index]).abs() <= radius).all()
        assert torch.equal(part.known, every.known[index])
    for other in (Draws(NETWORK, source.posterior, 8), Draws(NETWORK, source.posterior, 7, stream=1)):
        assert any(not torch.equal(other.take(np.arange(40)).centers[name], v) for name, v in every.centers.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_have_the_law_of_the_posterior(family: str) -> None:
    """Means and variances of all weights, and of one weight its whole law, where it is a Gaussian."""
    posterior, count = posterior_of(family), 6000
    found = Draws(NETWORK, posterior, 11).take(np.arange(count))
    assert found.known.all()
    variances = marginal_variances(posterior)
    for name, values in found.centers.items():
        variance = torch.as_tensor(variances[name]).reshape(values.shape[1:])
        mean = torch.as_tensor(_mean(posterior, name))
        assert ((values.mean(0) - mean).abs() <= 5 * (variance / count).sqrt() + 1e-12).all()
        assert ((values.var(0) - variance).abs() <= 0.12 * variance + 1e-12).all()
        if not isinstance(posterior, Mixture | WeightSamples):
            spread = variance.flatten()[0].sqrt()
            if spread > 0:
                standard = (values.flatten(1)[:, 0] - mean.flatten()[0]) / spread
                assert stats.kstest(standard.numpy(), "norm").pvalue > 1e-4


def _mean(posterior: Posterior, name: str) -> Any:
    match posterior:
        case WeightSamples(stored=stored, probabilities=weights):
            return weighted_mean(stored[name], weights)
        case Mixture(components=components, probabilities=weights):
            return weighted_mean(np.stack([part.means[name] for part in components]), weights)
        case _:
            return NETWORK.tensors[name]


@pytest.mark.parametrize("size", [0.3, 1e-9, 1e9])
def test_boxes_pay_for_the_roundings_of_the_centres(size: float) -> None:
    """The centre against mu + A z' in rational arithmetic: what it is off by fits beside |A| r."""
    for family in ("gaussian", "full", "low_rank", "kron"):
        posterior = posterior_of(family, size)
        source = Draws(NETWORK, posterior, 5)
        z, _ = draws._normal(source._words(np.arange(2)))
        for k in range(2):
            exact, sizes = _exact(posterior, [Fraction(v) for v in z[k].tolist()])
            for name, values in source.take(np.arange(2)).centers.items():
                radius = source.radius[name].flatten().tolist()
                for place, value in enumerate(values[k].flatten().tolist()):
                    off = abs(Fraction(value) - Fraction(NETWORK.tensors[name].flat[place]) - exact[name][place])
                    assert off + sizes[name][place] * Fraction(draws._RADIUS) <= Fraction(radius[place])


def _exact(posterior: Posterior, z: list[Fraction]) -> tuple[dict[str, list[Fraction]], dict[str, list[Fraction]]]:
    """A z and |A| 1 of a Gaussian, entry by entry; roots up to 1e-60."""
    numbers, values, sizes = iter(z), {}, {}
    if isinstance(posterior, GaussianDiagonal):
        for name, variance in posterior.variances.items():
            roots = [_root(v) for v in variance.flat]
            values[name], sizes[name] = [root * next(numbers) for root in roots], roots
    if isinstance(posterior, GaussianFull | GaussianLowRank):
        common = [next(numbers) for _ in range(posterior.rank)]
        for name, factor in posterior.factors.items():
            columns = [[Fraction(v) for v in column] for column in factor.reshape(len(factor), -1).T.tolist()]
            values[name] = [sum((a * b for a, b in zip(c, common, strict=True)), Fraction()) for c in columns]
            sizes[name] = [sum(map(abs, c), Fraction()) for c in columns]
            if isinstance(posterior, GaussianLowRank):
                roots = [_root(v) for v in posterior.variances[name].flat]
                values[name] = [v + root * next(numbers) for v, root in zip(values[name], roots, strict=True)]
                sizes[name] = [v + root for v, root in zip(sizes[name], roots, strict=True)]
    if isinstance(posterior, GaussianKron):
        for layer in posterior.layers:
            left, right = (np.vectorize(Fraction, otypes=[object])(part) for part in (layer.left, layer.right))
            roots = np.vectorize(_root, otypes=[object])(layer.spectrum)
            own = np.array([next(numbers) for _ in range(roots.size)], dtype=object).reshape(roots.shape)
            for name, matrix in layer.split(left @ (roots * own) @ right.T).items():
                values[name] = list(matrix.flat)
            for name, matrix in layer.split(abs(left) @ roots @ abs(right).T).items():
                sizes[name] = list(matrix.flat)
    return values, sizes


def _root(value: float) -> Fraction:
    with mpmath.workdps(60):
        return Fraction(str(mpmath.nstr(mpmath.sqrt(mpmath.mpf(value)), 60)))


def test_weights_without_noise_are_exact() -> None:
    posterior = GaussianDiagonal({name: np.zeros_like(mean) for name, mean in NETWORK.tensors.items()})
    source = Draws(NETWORK, posterior, 0)
    for name, values in source.take(np.array([3, 4])).centers.items():
        assert (values == torch.as_tensor(NETWORK.tensors[name])).all()
        assert not source.radius[name].any()


def test_choices_are_exact_in_their_probabilities() -> None:
    """Ends that are whole belong to the next one; a word that holds an end inside is not known."""
    choice = draws._Choice(np.array([0.25, 0.0, 0.5, 0.25]))
    words = np.array([0, 2**62 - 1, 2**62, 3 * 2**62 - 1, 3 * 2**62, 2**64 - 1], dtype=np.uint64)
    index, known = choice.of(words)
    assert index.tolist() == [0, 0, 2, 2, 3, 3]
    assert known.all()
    thirds = draws._Choice(np.array([1.0, 1.0, 1.0]))
    index, known = thirds.of(np.array([2**64 // 3 - 1, 2**64 // 3, 2**64 // 3 + 1], dtype=np.uint64))
    assert known.tolist() == [True, False, True]
    assert index[[0, 2]].tolist() == [0, 1]
    only = draws._Choice(np.array([1.0, 0.0])).of(np.array([5, 2**64 - 1], dtype=np.uint64))
    assert only[0].tolist()[0] == 0
    assert only[1].tolist() == [True, False]
