"""Masses of boxes and of their unions against exact values."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.weight_sets import centred_mass, layered_lower, margin_of, scattered_union

MARGINS = [0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 4.6, 6.0, 8.0, 9.5, 12.0, 20.0, 30.0, 37.0, 37.6, 38.0]


def number(value: float | list[float] | np.ndarray) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def exact_centred(margin: float, weights: int) -> mpmath.mpf:
    with mpmath.workdps(400):
        return mpmath.erf(mpmath.mpf(margin) / mpmath.sqrt(2)) ** weights


@pytest.mark.parametrize("weights", [1, 2, 10, 37, 150, 155, 1000, 5000, 10**6])
@pytest.mark.parametrize("margin", MARGINS)
def test_centred_mass_encloses_the_exact_one_closely(margin, weights):
    lower, upper = (float(side) for side in centred_mass(number(margin), weights))
    exact = exact_centred(margin, weights)
    with mpmath.workdps(400):
        assert mpmath.mpf(lower) <= exact <= mpmath.mpf(upper)
        if exact > 1e-290:
            assert upper - lower <= 1e-9 * float(exact)


@given(st.floats(0.003, 40), st.integers(1, 10**7))
@settings(max_examples=100, deadline=None)
def test_centred_mass_at_random_places(margin, weights):
    lower, upper = (float(side) for side in centred_mass(number(margin), weights))
    with mpmath.workdps(400):
        assert mpmath.mpf(lower) <= exact_centred(margin, weights) <= mpmath.mpf(upper)


def test_many_tiny_tails_are_not_rounded_away():
    margin = float(-stats.norm.ppf(0.5e-7))  # 5,000 factors of 1 - 1e-7
    lower, upper = centred_mass(number(margin), 5000)
    assert lower == pytest.approx(np.exp(5000 * np.log1p(-1e-7)), rel=1e-9)
    assert lower <= upper < 1


@pytest.mark.parametrize("weights", [1, 50, 42_310])
def test_margins_have_about_the_mass_that_was_asked_for(weights):
    wanted = number([1e-3, 0.5, 0.98, 1 - 1e-9])
    lower, _ = centred_mass(margin_of(wanted, weights), weights)
    np.testing.assert_allclose(lower, wanted, rtol=1e-6)


def test_no_weights_mean_certainty():
    assert centred_mass(number([0.0, 3.0]), 0)[0].tolist() == [1.0, 1.0]
    assert centred_mass(number([0.0]), 1)[0].tolist() == [0.0]


class Cells:
    """The cells that K boxes cut the space into, with their exact masses: unions and expectations by enumeration."""

    def __init__(self, centers: np.ndarray, margin: float) -> None:
        low, high = centers - margin, centers + margin
        masses, inside = np.ones(1), np.ones((1, len(centers)), bool)
        for j in range(centers.shape[1]):
            cuts = np.concatenate([[-np.inf], np.unique(np.concatenate([low[:, j], high[:, j]])), [np.inf]])
            middle = np.clip((cuts[:-1] + cuts[1:]) / 2, -1e300, 1e300)
            share = np.array([between(a, b) for a, b in itertools.pairwise(cuts)])
            covered = (low[:, j] <= middle[:, None]) & (middle[:, None] <= high[:, j])
            masses = np.multiply.outer(masses, share).ravel()
            inside = (inside[:, None] & covered[None]).reshape(-1, len(centers))
        self.masses, self.inside = masses, inside

    def union(self, member: np.ndarray) -> float:
        return float(self.masses[(self.inside & member).any(1)].sum())

    def expectation(self, values: np.ndarray, floor: float) -> float:
        """Of the largest value among the boxes that hold the point, `floor` outside."""
        best = np.where(self.inside, values, -np.inf).max(1)
        return float((self.masses * np.where(self.inside.any(1), np.maximum(best, floor), floor)).sum())


def between(a: float, b: float) -> float:
    return float(stats.norm.cdf(b) - stats.norm.cdf(a)) if a <= 0 else float(stats.norm.sf(a) - stats.norm.sf(b))


families = st.tuples(
    st.integers(1, 6), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from([0.2, 0.7, 1.5, 2.5, 6.0])
)


def drawn(count: int, size: int, seed: int) -> np.ndarray:
    """Centres, some of them equal."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(count, size))
    return centers[rng.integers(0, count, count)] if seed % 3 == 0 else centers


@given(families)
@settings(max_examples=60, deadline=None)
def test_unions_by_inclusion_and_exclusion_are_exact(family):
    count, size, seed, margin = family
    centers = drawn(count, size, seed)
    union, cells = scattered_union(torch.as_tensor(centers), margin), Cells(centers, margin)
    for member in itertools.product([False, True], repeat=count):
        exact = cells.union(np.array(member))
        lower, upper = (float(side(torch.tensor(member))) for side in (union.union_lower, union.union_upper))
        assert exact - 1e-9 <= lower <= exact + 1e-12
        assert exact - 1e-12 <= upper <= exact + 1e-9


@given(st.tuples(st.integers(11, 14), st.integers(1, 2), st.integers(0, 10**6), st.sampled_from([0.05, 0.3, 1.5])))
@settings(max_examples=30, deadline=None)
def test_unions_of_many_boxes_are_bounded_on_both_sides(family):
    count, size, seed, margin = family
    centers = drawn(count, size, seed)
    union, cells = scattered_union(torch.as_tensor(centers), margin), Cells(centers, margin)
    rng = np.random.default_rng(seed)
    for member in rng.random((20, count)) < rng.random((20, 1)):
        exact = cells.union(member)
        assert float(union.union_lower(torch.tensor(member))) <= exact + 1e-12
        assert float(union.union_upper(torch.tensor(member))) >= exact - 1e-12
        assert float(union.union_lower(torch.tensor(member))) >= max(
            [cells.union(np.arange(count) == k) for k in np.flatnonzero(member)], default=0.0
        ) * (1 - 1e-9)


def test_truncation_has_the_right_parity(monkeypatch):
    """Lightly overlapping boxes: S1 - S2 is sharper than the largest mass, and still below the truth."""
    monkeypatch.setattr(weight_sets, "EXACT_UNION", 0)
    centers = np.linspace(-1.5, 1.5, 6)[:, None]
    union, cells = scattered_union(torch.as_tensor(centers), 0.31), Cells(centers, 0.31)
    member = np.ones(6, bool)
    lower = float(union.union_lower(torch.tensor(member)))
    assert cells.union(np.arange(6) == 2) < lower <= cells.union(member)
    assert lower == pytest.approx(cells.union(member), abs=1e-9)  # no three boxes meet


@given(families, st.floats(-3, 0), st.booleans())
@settings(max_examples=60, deadline=None)
def test_layers_give_the_expectation_of_a_step_function(family, floor, exact_union):
    count, size, seed, margin = family
    centers = drawn(count, size, seed)
    cells = Cells(centers, margin)
    values = np.random.default_rng(seed + 1).uniform(-4, 5, size=(3, count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_sets, "EXACT_UNION", 10 if exact_union else 0)
        union = scattered_union(torch.as_tensor(centers), margin)
    floors = torch.full((3,), floor, dtype=torch.float64)
    found = layered_lower(torch.tensor(values), union.union_lower, floors).numpy()
    truth = np.array([cells.expectation(row, floor) for row in values])
    assert (found <= truth + 1e-12).all()
    assert (found >= floor - 1e-9).all()
    if exact_union:
        np.testing.assert_allclose(found, truth, atol=1e-8)


def test_layers_ignore_what_is_not_known():
    union = scattered_union(number(np.zeros((2, 1))), 1.0)
    value = torch.tensor([torch.nan, -torch.inf], dtype=torch.float64)
    assert float(layered_lower(value, union.union_lower, torch.tensor(-1.0, dtype=torch.float64))) == pytest.approx(
        -1, abs=1e-9
    )


def test_an_empty_union_has_no_mass():
    for union in (scattered_union(number(np.zeros((2, 1))), 1.0), scattered_union(number(np.zeros((12, 1))), 1.0)):
        nobody = torch.zeros(len(union.single_lower), dtype=torch.bool)
        assert float(union.union_lower(nobody)) == 0
