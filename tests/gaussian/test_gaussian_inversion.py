"""Inversion of laws that are known in closed form: truncation, smoothing and rounding are paid for, not too dearly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from bnn_vnnlib.gaussian.inversion import odd_numbers, pairs, rest, series


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Sum:
    """Z = C + deviation N for a Cauchy variable C of that scale: one row."""

    scale: float
    deviation: float
    off: float = 0.0

    @property
    def noise(self) -> Tensor:
        return column(self.deviation)

    @property
    def size(self) -> Tensor:
        return column(1.0)

    def transform(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Off by `off` times i, as is said."""
        value = torch.exp(-self.scale * w - (self.deviation * w) ** 2 / 2)
        return torch.complex(value, torch.full_like(value, self.off)), torch.full_like(value, self.off)

    def envelope(self, w: Tensor) -> Tensor:
        return torch.exp(-self.scale * w)

    def wave(self, t: float, period: float, eta: float = 0.0) -> float:
        """S(t) of Z + eta N, by a very long series."""
        w = np.arange(1, 200_001, 2) * math.pi / period
        size = np.exp(-self.scale * w - (self.deviation**2 + eta**2) * w**2 / 2)
        return float(-4 / math.pi * (size * np.sin(w * t) / (w * period / math.pi)).sum())


laws = st.builds(Sum, st.sampled_from([0.0, 1e-3, 0.05, 0.5, 2.0]), st.floats(0.01, 2.0), st.sampled_from([0.0, 0.02]))


@given(
    laws, st.floats(-3, 3), st.floats(3.5, 20), st.integers(1, 4), st.integers(2, 40), st.floats(0, 1), st.floats(-3, 3)
)
@settings(max_examples=200, deadline=None)
def test_errors_of_waves_are_bounded(
    law: Sum, t: float, period: float, block: int, most: int, eta: float, c: float
) -> None:
    """However short the series is."""
    waves = series(law, column(period), block=block, most=most, enough=1e-3)
    found = float(waves.mean(column(t)[None], column(eta)[None], column(c))[0, 0, 0])
    error = float(waves.error(column(abs(t) + eta * abs(c)), column(eta)[None])[0, 0])
    assert abs(found - law.wave(t + eta * c, period, eta)) <= error + 1e-9


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0])
def test_shells_are_above_the_sums_that_they_stand_for(sigma: float) -> None:
    """Also where the noise alone ends the series, and never far above."""
    for scale, last in ((0.0, 3), (0.01, 31), (0.2, 8)):
        n = np.arange(last + 1 + last % 2, 100_000, 2)
        truth = float((np.exp(-scale * n - (sigma * n) ** 2 / 2) / n).sum())
        found = float(rest(lambda w, scale=scale: torch.exp(-scale * w), column(sigma)[None], column(last))[0, 0])
        assert truth <= found <= 2.5 * truth + 0.4 * math.exp(-scale * last - (sigma * last) ** 2 / 2) + 1e-14


def test_without_noise_nothing_is_known() -> None:
    assert rest(torch.ones_like, column(0.0)[None], column(3.0)).isinf().all()


@given(st.floats(-1.5, 1.5), st.floats(0.0, 2.0), st.floats(0.05, 1.0))
@settings(max_examples=60, deadline=None)
def test_probabilities_are_bounded_closely(mean: float, t: float, eta: float) -> None:
    """A Gaussian variable: P(Z <= t) by smoothing, and its price."""
    waves, c = series(Sum(0.0, 1.0), column(30.0), block=8, most=400, enough=1e-14), 4.0
    place = column(t - mean)[None]
    wave = waves.mean(place, column(eta)[None], column(c)) + waves.error(column(40.0), column(eta)[None])[:, None]
    low, high = float(stats.norm.cdf(t - mean)), float(stats.norm.cdf((t - mean + eta * c) / math.hypot(1.0, eta)))
    found = float((1 - waves.mean(place, column(eta)[None], column(c))[0, 0, 0]) / 2)
    assert float(wave[0, 0, 0]) >= 1 - 2 * high - 1e-9
    assert low * float(stats.norm.cdf(c)) <= found + 1e-9
    assert found == pytest.approx(high, abs=1e-6)


@given(st.floats(-0.5, 1.5), st.floats(-0.5, 1.5), st.floats(-0.8, 0.8), st.integers(1, 12), st.floats(0.1, 0.8))
@settings(max_examples=60, deadline=None)
def test_quadrants_are_bounded_from_below(one: float, other: float, shared: float, count: int, eta: float) -> None:
    """A Gaussian pair: E (1 - wave_1)(1 - wave_2) / 4 with periods far beyond it, however short the series is."""
    found = pairs(torch.full((1, 2), math.pi / 12, dtype=torch.float64), count)
    w, v = found.w, found.v
    size = torch.exp(-(w**2 + 2 * shared * w * v + v**2) / 2)
    values = torch.polar(size, one * w + other * v)
    own = 1 - shared**2
    envelope = lambda waves: torch.exp(-(waves**2) * own / 2)  # noqa: E731
    noise, c = torch.full((1, 2, 1), eta, dtype=torch.float64), column(1.0)
    turned = found.factors * torch.polar(torch.ones_like(w), eta * (w + v))
    wrong = 0.02 * (turned.conj() / turned.abs())  # the worst error of that size
    off = float(found.quadrant(values + wrong, wrong.abs(), (envelope, envelope), noise, c)[0, 0])
    bound = float(found.quadrant(values, torch.zeros_like(w), (envelope, envelope), noise, c)[0, 0])
    assert off <= bound + 1e-9
    law = stats.multivariate_normal([one + eta, other + eta], [[1 + eta**2, shared], [shared, 1 + eta**2]])
    assert bound <= float(law.cdf([0.0, 0.0])) + 1e-6
    if count == 12:
        assert bound >= float(law.cdf([0.0, 0.0])) - 1e-3


def test_numbers_are_odd_and_none_is_missing() -> None:
    assert torch.cat(list(odd_numbers(20, 3, column(0.0)))).tolist() == list(range(1, 25, 2))
