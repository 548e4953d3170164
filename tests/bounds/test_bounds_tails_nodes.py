"""Tails of networks with products, maxima, selections and curves, against sampled weights at attacked inputs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from bnn_vnnlib.network.evaluate import evaluate
from support import exact
from support.networks import Builder

DRAWS, BUDGET = 4000, 1e-4


def dense(builder: Builder, *sizes: int, kind: str = "") -> int:
    """Input and a first dense layer."""
    return builder.dense(builder.input(1, sizes[0]), sizes[1], kind)


def products() -> Network:
    """Two random layers multiplied; the product goes on."""
    b = Builder(1)
    x = b.input(1, 3)
    return b.network(b.dense(b.product(b.dense(x, 4, "tanh"), b.dense(x, 4)), 2))


def product_after_sum() -> Network:
    """Branches that meet before they are multiplied; one of them is used twice."""
    b = Builder(2)
    x = b.input(1, 3)
    y, z = b.dense(x, 4), b.dense(x, 4)
    return b.network(b.linear(b.product(b.sum(y, z), y), (2, 4)))


def squares() -> Network:
    b = Builder(3)
    return b.network(b.dense(b.activation(dense(b, 3, 4), "power", 2), 2))


def maxima() -> Network:
    """A random layer right in front of a pool."""
    b = Builder(4)
    return b.network(b.dense(b.maximum(b.reshape(dense(b, 3, 6), 1, 2, 3)), 2))


def pooled_convolution() -> Network:
    """Overlapping windows picked from a convolution."""
    b = Builder(5)
    y = b.shift(b.conv(b.input(1, 1, 4, 4), (2, 1, 2, 2)), (2, 1, 1))
    picks = np.arange(18).reshape(2, 3, 3)
    windows = np.stack([picks[:, i : i + 2, j : j + 2].reshape(2, 4) for i in (0, 1) for j in (0, 1)], 1)
    return b.network(b.dense(b.reshape(b.maximum(b.select(y, windows)), 1, 8), 2))


def selected() -> Network:
    """Entries that are repeated, dropped and padded between random layers."""
    b = Builder(6)
    return b.network(b.dense(b.select(dense(b, 3, 4), [[0, 0, -1, 3, 3, 0]]), 2))


def divided() -> Network:
    """A quotient of two random tensors, the divisor kept away from 0."""
    b = Builder(7)
    x = b.input(1, 3)
    positive = b.shift(b.activation(b.dense(x, 4), "abs"), np.array(0.5))
    return b.network(b.dense(b.product(b.dense(x, 4), b.activation(positive, "reciprocal")), 2))


def softmax_inside() -> Network:
    """exp, sums and reciprocals."""
    b = Builder(8)
    y = b.linear(dense(b, 3, 3), np.array([[-1.0, 1, 0], [-1, 0, 1], [1, -1, 0], [0, -1, 1], [1, 0, -1], [0, 1, -1]]))
    sums = b.linear(b.activation(y, "exp"), np.repeat(np.eye(3), 2, 1))
    return b.network(b.dense(b.activation(b.shift(sums, np.array(1.0)), "reciprocal"), 2))


def curve(kind: str, alpha: object = 0.0) -> Network:
    b = Builder(sum(map(ord, kind)))
    return b.network(b.dense(b.activation(dense(b, 3, 4), kind, alpha), 2))


CURVES = [
    ("gelu", exact.GELU), ("silu", 0), ("sin", 0), ("clip", (-0.5, 0.5)), ("elu", 1.5), ("sign", 0), ("prelu", -0.5),
    ("exp", 0), ("softplus", 0),
]  # fmt: skip
NETWORKS = {
    "products": products, "product_after_sum": product_after_sum, "squares": squares, "maxima": maxima,
    "pooled_convolution": pooled_convolution, "selected": selected, "divided": divided, "softmax": softmax_inside,
    **{kind: partial(curve, kind, alpha) for kind, alpha in CURVES},
}  # fmt: skip


def deviations_of(network: Network, rng: np.random.Generator, size: float) -> dict[str, torch.Tensor]:
    """Every weight is random but for single numbers and matrices of -1, 0 and 1, which belong to compositions."""
    weights = {
        name: tensor
        for name, tensor in network.tensors.items()
        if tensor.size > 1 and not np.isin(tensor, [-1.0, 0.0, 1.0]).all()
    }
    return {name: torch.as_tensor(size * rng.uniform(0.3, 1, tensor.shape)) for name, tensor in weights.items()}


def lowest_rows(
    network: Network, deviations: dict[str, torch.Tensor], rng: np.random.Generator, lower: torch.Tensor,
    upper: torch.Tensor, rows: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """(DRAWS, rows): the least value of each row over random points, corners, and one step to a corner."""
    params = {
        name: torch.as_tensor(
            network.tensors[name] + deviation.numpy() * rng.standard_normal((DRAWS, *deviation.shape))
        )
        for name, deviation in deviations.items()
    }
    share = torch.as_tensor(np.concatenate([rng.random((6, 1, len(lower))), rng.integers(0, 2, (6, 1, len(lower)))]))
    share = torch.cat([torch.full_like(share[:1], 0.5), share])
    points = (lower + share * (upper - lower))[:, 0].expand(DRAWS, -1, -1)
    found = []
    for row in rows:
        x = points.clone().requires_grad_()
        y = evaluate(network, x, params) @ row
        (slope,) = torch.autograd.grad(y.sum(), x)
        corner = torch.where(slope > 0, lower, torch.where(slope < 0, upper, points))
        with torch.no_grad():
            found.append(torch.minimum(y.amin(1), (evaluate(network, corner, params) @ row).amin(1)).detach())
    return torch.stack(found, 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_sampled_weights_never_fail_more_often(name: str) -> None:
    network, rng = NETWORKS[name](), np.random.default_rng(sum(map(ord, name)))
    size = network.signature.input_size
    centers = {key: torch.as_tensor(value)[None] for key, value in network.tensors.items()}
    rows = torch.as_tensor(rng.normal(size=(3, network.signature.output_size)))
    useful = 0
    for spread, radius in ((0.02, 0.02), (0.1, 0.1), (0.3, 0.5)):
        deviations = deviations_of(network, rng, spread)
        lower = torch.as_tensor(rng.normal(size=size))
        upper = lower + radius * torch.as_tensor(rng.random(size))
        values = lowest_rows(network, deviations, rng, lower, upper, rows)
        one = torch.ones(1, 1, dtype=torch.float64)
        means, noise = WeightBoxes(centers, {}, 0 * one), WeightBoxes(centers, deviations, one)
        spans = values.amax(0) - values.amin(0)
        thresholds = [values.amin(0) - share * spans for share in (1.0, 0.5)]
        for bound in thresholds + [values.quantile(share, 0) for share in (0.0, 0.4, 0.5, 0.7, 1.0)]:
            found = TailEngine(network).failures(
                means, noise, (lower[None], upper[None]), rows[None], None, bound[None], torch.tensor([BUDGET]).double()
            )[0, 0]
            for claimed, count in zip(found.tolist(), (values <= bound).sum(0).tolist(), strict=True):
                # the true probability is above this limit with probability 1 - 1e-9
                sure = stats.beta.ppf(1e-9, count, DRAWS - count + 1) if count else 0.0
                assert claimed + BUDGET >= sure, (name, spread, claimed, count)
                useful += claimed < 0.9
    assert useful or name == "sign", "no bound says anything"
