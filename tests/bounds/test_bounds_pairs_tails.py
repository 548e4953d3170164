"""Tails of two networks in differences: against drawn networks, closed forms, and slopes of quotients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bnn_vnnlib import Model
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.model import GaussianDiagonal, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Gap
from bnn_vnnlib.network.pairs import in_differences, side_by_side
from bnn_vnnlib.problem.pairs import differences
from bnn_vnnlib.problem.problem import from_cases, from_property
from bnn_vnnlib.relations import fair, monotone
from bnn_vnnlib.system.clock import Deadline
from support.networks import dense_network
from support.pairs import boxes_of, pair
from support.zoo import GRAPHS

ANYWHERE = -np.inf, np.inf
SERVED = ("residual", "tied", "several", "deep_conv", "linear_shift_inside", "conv_bias_inside", "scale_full_inside",
          "tanh_inside", "sigmoid_inside", "softplus_inside", "product_inside", "max_inside")  # fmt: skip
ASKED = [(name, "same") for name in SERVED]
ASKED += [(name, coupling) for name in ("several", "linear_shift_inside", "tanh_inside", "max_inside")
          for coupling in ("independent", "noise")]  # fmt: skip


def apart(joined: Model) -> Model:
    n = joined.network.signature.input_size // 2
    found = in_differences(joined, (np.full(n, ANYWHERE[0]), np.full(n, ANYWHERE[1])))
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "coupling"), ASKED)
def test_drawn_networks_fail_no_more_often(name: str, coupling: str) -> None:
    """Rows at thresholds between what 400 draws give: the bound is at least the share that fails at some tried point,
    but for chance."""
    model = apart(pair(GRAPHS[name](), coupling, np.random.default_rng(3)))
    rng = np.random.default_rng(4)
    n, m = model.network.signature.input_size // 2, model.network.signature.output_size // 3
    lower = np.concatenate([rng.normal(size=n), np.full(n, -0.02)])
    upper = lower + np.concatenate([np.full(n, 0.1), np.full(n, 0.05)])
    row = np.zeros(3 * m)
    row[2 * m :] = rng.normal(size=m)  # in differences alone
    rows = np.stack([row, row + np.concatenate([rng.normal(size=m), np.zeros(2 * m)])])
    x = torch.as_tensor(lower + rng.random((64, 2 * n)) * (upper - lower))
    drawn = sample(model.network, model.posterior, 400, torch.Generator().manual_seed(5))
    values = evaluate(model.network, x, drawn) @ torch.as_tensor(rows).T
    least = values.amin(1)  # (400, 2)
    thresholds = torch.quantile(least, torch.tensor([0.02, 0.3], dtype=torch.float64), 0)
    far = least.mean(0) - 100 * (least.std(0) + 0.02)
    box = tuple(torch.as_tensor(side)[None] for side in (lower, upper))
    tails = TailBounds(model.network, model.posterior, torch.device("cpu"), Deadline())
    for k in range(2):
        for threshold in (*thresholds[:, k].tolist(), float(far[k])):
            cases = [[(rows[k : k + 1], np.array([threshold]), np.zeros(1, bool))]]
            bound = float(tails.item_failures(from_cases(*box, cases, 3 * m))[0])
            share = float((least[:, k] <= threshold).double().mean())
            assert bound >= share - 4 * np.sqrt(share / 400)
            if threshold == float(far[k]) and name not in ("product_inside", "residual"):
                assert bound < 0.9, "the bound says nothing, so that it could not be wrong"


@pytest.mark.parametrize("size", [0.1, 0.3, 1.0])
def test_one_slope_is_exact(size: float) -> None:
    """y = w x, w ~ N(1, size^2): f - g = w d falls for some d in (0, 1] with Phi(-1 / size); d = 0 costs nothing."""
    from support.builders import model

    net = model([(np.eye(1), np.zeros(1))], [(np.full((1, 1), size**2), np.full(1, 4.0))])
    asked = differences(side_by_side(net, net, "independent", same=True), monotone(net, 0, 1, 0).property)
    (way,) = [one for one in asked if one.only_safe]
    tails = TailBounds(way.model.network, way.model.posterior, torch.device("cpu"), Deadline())
    failures = tails.item_failures(from_property(way.inner))
    assert float(failures.sum()) == pytest.approx(norm.cdf(-1 / size), rel=1e-6)


@pytest.mark.parametrize("kind", ["relu", "tanh", "softplus"])
def test_quotients_hold_for_every_part(kind: str) -> None:
    """(f(x) - f(x - t d)) / t over sampled x, d and t is never below the bound, which says something."""
    network = dense_network((2, 8, 8, 1), kind, seed=2)
    joined = pair(network, "same", np.random.default_rng(0))
    zero = np.full(2, ANYWHERE[0]), np.full(2, ANYWHERE[1])
    model = in_differences(joined, zero, form="quotients")
    assert model is not None
    gaps = [node for node in model.network.nodes if isinstance(node, Gap)]
    assert gaps
    assert all(node.quotient for node in gaps)
    rng = np.random.default_rng(1)
    lower = torch.tensor([[-0.3, 0.1, 0.2, -0.1, 0.0, -0.1]], dtype=torch.float64)  # x, d / t, d
    upper = lower + torch.tensor([[0.1, 0.1, 0.1, 0.2, 0.3, 0.2]], dtype=torch.float64)
    rows = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]], dtype=torch.float64)
    weights = boxes_of(joined, (0.0,))
    bound = Engine(model.network).rows(weights, lower, upper, rows).lower[0, 0]
    x = lower[0, :2] + torch.as_tensor(rng.random((20_000, 2))) * (upper - lower)[0, :2]
    d = lower[0, 2:4] + torch.as_tensor(rng.random((20_000, 2))) * (upper - lower)[0, 2:4]
    t = torch.as_tensor(rng.random((20_000, 1))).clamp(min=1e-3)
    values = (evaluate(network, x) - evaluate(network, x - t * d)) / t
    assert float(values.min()) >= float(bound[0])
    assert float((-values).min()) >= float(bound[1])
    assert float(bound.min()) > -4 * float(values.abs().max())


def test_faces_cover_the_box() -> None:
    """d in D but 0 is t times a point of a face: for random d of a box with both signs."""
    network = dense_network((3, 4, 1), "relu", seed=0)
    net = Model(network, GaussianDiagonal({}), None, None, b"")
    prop = fair(net, 0, 1, (), [0.1, 0, 0.2], 0, [0]).property
    (way,) = [one for one in differences(side_by_side(net, net, "independent", same=True), prop) if one.only_safe]
    boxes, rng = way.inner.boxes, np.random.default_rng(0)
    assert len(boxes) == 4
    for d in rng.uniform(-1, 1, (200, 3)) * [0.1, 0, 0.2]:
        t = max(abs(d[0]) / 0.1, abs(d[2]) / 0.2)
        inside = (boxes.lower[:, 3:6] <= d / t + 1e-12) & (d / t - 1e-12 <= boxes.upper[:, 3:6])
        assert inside.all(1).any()
    assert (boxes.lower[:, 6:] <= [-0.1, 0, -0.2]).all()
    assert (boxes.upper[:, 6:] >= [0.1, 0, 0.2]).all()


def test_ranges_of_gaps_are_slopes_times_differences() -> None:
    """tanh on [2, 3] and [-3, -2]: the largest slope of the hull is 1, whatever the slopes on both ranges."""
    from bnn_vnnlib.bounds import interval

    def side(low: float, high: float) -> Interval:
        return Interval(*(torch.full((1, 1, 1), end, dtype=torch.float64) for end in (low, high)))

    node = Gap("gap", (0, 1, 2), (1,), "tanh", quotient=True)
    found = interval.gap(node, boxes_of(pair(GRAPHS["identity"](), "same", np.random.default_rng(0))),
                         side(2, 3), side(-3, -2), side(4, 6))[0]  # fmt: skip
    assert float(found.upper) == pytest.approx(6.0, rel=1e-9)
    assert float(found.lower) == pytest.approx(4 * (1 - np.tanh(3) ** 2), rel=1e-6)
