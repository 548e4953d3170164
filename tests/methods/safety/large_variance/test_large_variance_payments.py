"""Two hidden layers at a point: each event and gap where it is nearly attained, and that each is paid for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import special

from bnn_vnnlib.bounds.dense.exponents import Exponents
from bnn_vnnlib.bounds.dense.hidden import hidden
from bnn_vnnlib.gaussian.relu import Rectangle, log_moment
from bnn_vnnlib.methods.safety.large_variance import moments
from bnn_vnnlib.methods.safety.large_variance.first_layer import UnitLaw, law_of
from bnn_vnnlib.methods.safety.large_variance.moments import (
    BENDS,
    SHARPER,
    SPARE_SHARE,
    AtPoints,
    RowsAtPoints,
    failures_by_budget,
    parabolas,
)
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.system.clock import Deadline
from support.large_variance import dense, sampled


def stack(*widths: int, spread: float = 0.1) -> DenseChain:
    rng = np.random.default_rng(0)
    return DenseChain.relu(*(dense(rng, b, a, spread=spread) for a, b in itertools.pairwise(widths)))


def far(net: DenseChain, wide: float = 0.0) -> list[tuple[float, torch.Tensor]]:
    """Of a row that is nearly sure."""
    x, row = torch.full((1, 2), 0.5, dtype=torch.float64), torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    return failures_by_budget(
        net, RowsAtPoints(x - wide, x + wide, row, torch.tensor([[-1e4]], dtype=torch.float64)), Deadline()
    )


def test_best_pays_for_the_variance_where_it_is_used() -> None:
    logs = torch.tensor([[[-1.0, -3.0]], [[-2.0, -1.0]]], dtype=torch.float64)
    found = moments._best(logs, torch.full_like(logs, -5.0), 0.01)
    assert found[0].tolist() == pytest.approx([math.exp(-7.0) + 0.01, math.exp(-8.0) + 0.01])
    assert moments._best(logs, torch.full_like(logs, -5.0), 0.2)[0].tolist() == pytest.approx(
        [math.exp(-2), math.exp(-3)]
    )


def test_the_event_of_the_quadratic_form_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the exponents with bends say something."""
    right = AtPoints.log_moments

    def bent_only(at: AtPoints, u: torch.Tensor, spent: float) -> torch.Tensor:
        found = right(at, u, spent)
        return torch.stack([torch.full_like(found[0], torch.inf), torch.full_like(found[1], -1e9)])

    monkeypatch.setattr(AtPoints, "log_moments", bent_only)
    for budget, (_, values) in zip(SHARPER, far(stack(2, 4, 4, 2)), strict=True):
        assert float(values[0, 0]) >= SPARE_SHARE * budget


def test_points_that_are_not_exact_are_paid_for() -> None:
    """A box of some width stands for one unknown x in it: total variation of the first layer's laws."""
    net, wide = stack(2, 4, 4, 2), 1e-7
    x = torch.full((1, 2), 0.5, dtype=torch.float64)
    law = law_of(hidden(net.layers[0], x - wide, x + wide))
    first, corner = net.layers[0], x[0] + wide
    m, s = first.mean @ corner + first.bias, torch.sqrt(first.variance @ corner**2 + first.bias_variance)
    distance = ((m - law.m[0, 0]).abs() / s / math.sqrt(2 * math.pi)).max()
    assert law.blur[0] > distance > 1e-9
    assert all(values[0, 0] >= law.blur[0] for _, values in far(net, wide))


@pytest.mark.parametrize("spread", [1e-3, 0.3])
def test_least_variances_of_deeper_networks(spread: float) -> None:
    """Three hidden layers; where they hardly vary the variance is nearly known."""
    net, count, spent = stack(2, 4, 4, 4, 2, spread=spread), 40_000, 0.2
    x = torch.full((1, 2), 0.5, dtype=torch.float64)
    exponents = Exponents(net, 1e-3)
    ranges, variance = exponents.ranges(x, x), torch.full((1, 1, 4), 0.5, dtype=torch.float64)
    found = float(moments._least_variance(exponents, ranges, variance, torch.zeros(1, 1, dtype=torch.float64), spent))
    rng, h = np.random.default_rng(0), np.full((count, 2), 0.5)
    for layer in net.layers[:-1]:
        w, b = sampled(layer, count, rng)
        h = np.maximum(np.einsum("soi,si->so", w, h) + b, 0.0)
    truth = 0.5 * (h**2).sum(1)
    assert (truth < found).mean() <= spent + 0.01
    if spread < 0.01:
        assert found > 0.8 * truth.mean()


def test_parabolas_are_nearly_attained() -> None:
    """Deviations that are small and known, so that what is between the nodes of m counts: on a fine grid."""
    count = 60
    rng = np.random.default_rng(0)
    low, s = rng.uniform(-3, -1, count), np.full(count, 0.15)
    parts = (low, low + rng.uniform(3, 5, count), s, s * (1 + 1e-9), low + rng.uniform(1, 2, count), s)
    box = Rectangle(*(torch.tensor(part)[None, None] for part in parts))
    alpha, beta = torch.tensor(rng.uniform(1, 6, count))[None, None], torch.zeros(1, 1, count, dtype=torch.float64)
    spread = torch.full_like(alpha, 0.5)
    bent = parabolas(alpha, beta, box, spread, ((0.0,), BENDS[1:]))[1]
    m = box.low[..., None] + (box.high - box.low)[..., None] * torch.linspace(0, 1, 2001, dtype=torch.float64)
    truth = log_moment(alpha[..., None], beta[..., None], m, box.s[..., None])
    gap = m - bent.center[..., None]
    value = (bent.constant + bent.square * box.s**2)[..., None] + bent.slope[..., None] * gap
    value = value + bent.bend[..., None] * gap**2 / 2
    least = (value - truth).amin(-1)
    assert (least >= 0).all()
    assert (bent.bend > 0).any()
    assert (least < 0.05).any()


@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_quadratic_forms_are_limited_as_often_as_is_said(shift: float) -> None:
    """J, for independent coordinates of nearly Gaussian h: its exact probability, not far from what is paid."""
    count, spent = 8, 0.3
    law = UnitLaw(*(torch.full((1, 1, count), part, dtype=torch.float64) for part in (6.0, 1.0)), torch.zeros(1))
    form = 0.7 * torch.eye(count, dtype=torch.float64)[None, None]
    center = law.plain()[0].expand(1, 1, count) + shift
    reach = moments._reach(form, center, law, spent)[0, 0].numpy()
    limit = (reach - moments.PRODUCT_DEVIATIONS * math.sqrt(0.7)) / 0.7
    each = special.ndtr(-(limit + shift)) + special.ndtr(-(limit - shift))
    assert 0.05 * spent * (shift == 0) < 1 - np.prod(1 - each) <= spent
