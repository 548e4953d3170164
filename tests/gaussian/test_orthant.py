"""Orthants against quadrature where one factor is exact, and against sampling where Slepian's inequality is used."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from bnn_vnnlib.gaussian.orthant import _CELLS, _loads, all_above


def quadrature(k: np.ndarray, load: np.ndarray) -> float:
    """P(l_r G + sqrt(1 - l_r^2) W_r > -k_r for all r)."""

    def product(g: mpmath.mpf) -> mpmath.mpf:
        terms = (mpmath.ncdf((a + b * g) / mpmath.sqrt(1 - b * b)) for a, b in zip(k, load, strict=True))
        return mpmath.npdf(g) * mpmath.fprod(terms)

    return float(mpmath.quad(product, [-12, -4, 0, 4, 12]))


@pytest.mark.parametrize("seed", range(6))
def test_one_factor_is_exact_up_to_the_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    height = int(rng.integers(1, 6))
    k, load = rng.normal(0.5, 1.0, height), rng.uniform(0.2, 0.95, height)
    found = float(all_above(torch.tensor(k[None]), torch.tensor(np.outer(load, load)[None]))[0])
    exact = quadrature(k, load)
    assert exact <= found <= exact + 2 / _CELLS


@pytest.mark.parametrize("seed", range(8))
def test_above_what_is_sampled_of_any_correlations(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    height = int(rng.integers(2, 7))
    root = rng.normal(size=(height, int(rng.integers(1, height + 1)))) + rng.choice([0.0, 1.0])
    root /= np.linalg.norm(root, axis=1, keepdims=True)
    k = rng.normal(0.3, 1.0, height)
    seen = (rng.normal(size=(100_000, root.shape[1])) @ root.T > -k).all(1).mean()
    found = float(all_above(torch.tensor(k[None]), torch.tensor((root @ root.T)[None]))[0])
    assert seen <= found + 5 * np.sqrt(found * (1 - found) / 1e5) + 1e-4


def test_loads_meet_their_condition() -> None:
    rng = np.random.default_rng(9)
    root = rng.normal(size=(500, 4, 3)) + rng.choice([0.0, 1.0, 3.0], (500, 1, 1))
    root /= np.linalg.norm(root, axis=-1, keepdims=True)
    correlations = torch.tensor(root @ root.swapaxes(1, 2))
    load = _loads(correlations, torch.ones(500, 4, dtype=torch.bool))
    short = (correlations - load[:, :, None] * load[:, None]).masked_fill(torch.eye(4, dtype=torch.bool), 0.0)
    assert bool((short <= 0).all())
    assert bool(((load >= 0) & (load <= 1)).all())
    assert float((load < 1).all(-1).double().mean()) > 0.9


def test_differences_to_one_logit_are_met_with_equality() -> None:
    k = torch.tensor([[0.2, 0.7, 1.1, 0.4]], dtype=torch.float64)
    own, common = np.array([1.0, 0.5, 2.0, 0.8]), 1.5  # variances of the others, and of the one
    deviations = np.sqrt(common + own)
    correlations = torch.tensor((common / np.outer(deviations, deviations))[None])
    exact = quadrature(k[0].numpy(), np.sqrt(common) / deviations)
    assert exact <= float(all_above(k, correlations)[0]) <= exact + 2 / _CELLS


def test_edges() -> None:
    ones = torch.ones(1, 2, 2, dtype=torch.float64)
    inf, half = torch.inf, torch.tensor(0.5, dtype=torch.float64)
    assert float(all_above(torch.tensor([[inf, inf]], dtype=torch.float64), ones)[0]) == 1.0
    assert float(all_above(torch.tensor([[-inf, inf]], dtype=torch.float64), ones)[0]) <= 1e-300
    for part in (ones, torch.full_like(ones, torch.nan)):  # everything is the same variable; nothing is known
        assert half <= all_above(torch.tensor([[0.0, inf]], dtype=torch.float64), part)[0] <= half + 1e-9
        assert half <= all_above(torch.tensor([[0.0, 3.0]], dtype=torch.float64), part)[0] <= half + 1e-9
    assert len(all_above(torch.zeros(0, 2, dtype=torch.float64), torch.zeros(0, 2, 2, dtype=torch.float64))) == 0
