"""The function F behind bound 1: concave, Lipschitz, below the row."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from bnn_vnnlib.model import Network
from bnn_vnnlib.network.nodes import Param
from support.networks import Builder
from support.tails import (
    INSIDE,
    ROUNDING,
    left_claims,
    node_values,
    rows_of,
    setup,
)
from support.zoo import GRAPHS


def lip_networks() -> Iterator[tuple[str, Network]]:
    for name in ("tied", "shared_source", "residual", "deep_conv", "conv_groups_inside", "scale_column_inside"):
        yield name, GRAPHS[name]()
    yield "tiled", tiled()


def tiled() -> Network:
    """Entries of one tensor that are used several times within one map, by different factors."""
    builder = Builder(11)
    base = builder.param((2, 2))
    wide = Param(base.source, np.tile(base.index, (2, 2)), builder.rng.normal(size=(4, 4)))
    bias = Param(base.source, base.index[[0, 0, 1, 1], [0, 0, 1, 0]], np.asarray(-0.5))
    x = builder.activation(builder.shift(builder.linear(builder.input(1, 4), wide), bias), "tanh")
    return builder.network(builder.scale(builder.linear(x, wide), bias))


LIP = dict(lip_networks())


@pytest.mark.parametrize("size", [0.1, 1.0])
@pytest.mark.parametrize("name", LIP)
def test_f_is_concave_and_lipschitz_with_the_claimed_mean(
    monkeypatch: pytest.MonkeyPatch, name: str, size: float
) -> None:
    case, _, _ = setup(monkeypatch, name, size, 0.3, 1e-2, LIP[name])
    generator = torch.Generator().manual_seed(3)
    spread = case.normal.spread[0, 0]
    one, two = (case.draw(generator, 150) for _ in range(2))
    for step in (1.0, 1e-3):
        near = {source: one[source] + step * (two[source] - one[source]) for source in one}
        middle = {source: (one[source] + near[source]) / 2 for source in one}
        left, right, between = (case.value(noise) for noise in (one, near, middle))
        distance = torch.cat([(one[s] - near[s]).reshape(len(one[s]), -1) for s in one], -1).norm(dim=-1)[:, None]
        room = ROUNDING * (1 + left.abs())
        assert ((left - right).abs() <= spread * distance * (1 + 1e-9) + room * step).all()
        assert (between >= (left + right) / 2 - room).all()
    # the steepest direction, not a random one
    steep = {source: noise.clone().requires_grad_() for source, noise in one.items()}
    for row in range(len(spread)):
        parts = torch.autograd.grad(case.value(steep)[:, row].sum(), list(steep.values()), allow_unused=True)
        length = torch.cat([part.reshape(len(part), -1) for part in parts if part is not None], -1).norm(dim=-1)
        assert (length <= spread[row] * (1 + 1e-9)).all()
        assert length.max() >= 0.2 * spread[row]  # the claim is about this F
    drawn = case.value(case.draw(generator, 4_000))
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert (drawn.mean(0) + case.constant >= case.normal.mean[0, 0] - 7 * error).all()
    assert (drawn.std(0) <= spread * 1.1).all()  # Poincare: Var F <= L^2


@pytest.mark.parametrize("size", [0.5, 3.0])
@pytest.mark.parametrize("name", INSIDE)
def test_rows_stay_above_f_where_the_ranges_hold(monkeypatch: pytest.MonkeyPatch, name: str, size: float) -> None:
    """The inequality behind everything, sample by sample: on G, row(x) >= m0 + the noise, for the x of the grid."""
    case, rows, grid = setup(monkeypatch, name, size, 0.2, 0.5)
    drawn = case.draw(torch.Generator().manual_seed(4), 300)
    values = node_values(case.network, grid, case.weights(drawn))
    good = ~left_claims(case, values).expand(300)
    good = good & torch.isfinite(rows_of(case.network, values, rows)).all(-1).all(-1)  # log of a negative number
    least = rows_of(case.network, values, rows).amin(1).expand(300, -1)
    above = least - (case.constant + case.value(drawn))
    assert good.any()
    proved = torch.isfinite(case.constant)
    assert (above[good][:, proved] >= -ROUNDING * (1 + least[good].abs())[:, proved]).all()
